"""`daamctl finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common

complete = common.completer("daamctl.adapters", "FINETUNES")


def command(
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", help="Fine-tuning method (see `daamctl ls finetunes`).", autocompletion=complete
        ),
    ],
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    fold: Annotated[str, typer.Option(help="Fold number, or 'all'.")] = "all",
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Train with this seed only.")] = None,
    seeds: common.Seeds = None,
    device: common.DeviceName = None,
    engine: common.EngineName = "local",
    workers: common.Workers = None,
    gpus_per_worker: common.GpusPerWorker = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    force: common.Force = False,
    if_possible: common.IfPossible = False,
    no_track: common.NoTrack = False,
    dry_run: common.DryRun = False,
) -> None:
    """Fine-tune the encoder on every fold or one, with an adapter or fully. Finished folds are kept."""
    layout, config = common.resolve(
        pipeline,
        sets,
        corpus=corpus,
        encoder=encoder,
        finetune__device=device,
        train__seeds=common.seed_list(seeds),
        train__recipe=recipe,
    )
    common.stop_if_dry(dry_run, config)
    number = common.fold_number(fold)
    common.stop_if_impossible(if_possible, layout, config, "finetune", method=method)
    from daamctl.engines import make_engine

    with make_engine(engine, workers=workers, gpus_per_worker=gpus_per_worker) as opened:
        from daamctl.stages import finetune

        folder = finetune.run(
            layout,
            config,
            method=method,
            fold=number,
            seed=seed,
            force=force,
            track=not no_track,
            engine=opened,
        )
    common.show_path(folder)
