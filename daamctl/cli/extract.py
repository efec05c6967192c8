"""`daamctl extract`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hugging Face model.")] = None,
    device: common.DeviceName = None,
    precision: Annotated[str | None, typer.Option(help="Precision: auto, float32, bfloat16 or float16.")] = None,
    engine: common.EngineName = "local",
    workers: common.Workers = None,
    gpus_per_worker: common.GpusPerWorker = None,
    sets: common.Sets = None,
    force: common.Force = False,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Embed every clip, text or image: one vector per encoder layer, averaged over frames, tokens or patches."""
    layout, config = common.resolve(
        pipeline,
        sets,
        corpus=corpus,
        encoder=encoder,
        extract__revision=revision,
        extract__device=device,
        extract__precision=precision,
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "extract")
    from daamctl.engines import make_engine

    with make_engine(engine, workers=workers, gpus_per_worker=gpus_per_worker) as opened:
        from daamctl.stages import extract

        common.show_path(extract.run(layout, config, force=force, engine=opened))
