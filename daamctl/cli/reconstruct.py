"""`daamctl reconstruct`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common

complete = common.completer("daamctl.reconstruction", "BLOCKS")


def command(
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="Block of the VQ-VAE (see `daamctl ls blocks`).", autocompletion=complete),
    ],
    pipeline: common.Pipeline = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Train with this seed only.")] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N,N,…", help="Train with these seeds instead of the settings'.")
    ] = None,
    device: common.DeviceName = None,
    engine: common.EngineName = "local",
    workers: common.Workers = None,
    gpus_per_worker: common.GpusPerWorker = None,
    sets: common.Sets = None,
    force: common.Force = False,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Train a VQ-VAE with one kind of block, once per seed. Finished trainings made from identical inputs are kept."""
    layout, config = common.resolve(
        pipeline, sets, reconstruct__device=device, reconstruct__seeds=common.seed_list(seeds)
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "reconstruct", method=method)
    from daamctl.engines import make_engine

    with make_engine(engine, workers=workers, gpus_per_worker=gpus_per_worker) as opened:
        from daamctl.stages import reconstruct

        folder = reconstruct.run(layout, config, method=method, seed=seed, force=force, engine=opened)
    common.show_path(folder)
