"""`daamctl run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline,
    source: Annotated[Path | None, typer.Option("--from", help="Corpus folder, or a manifest file.")] = None,
    seeds: common.Seeds = None,
    device: common.DeviceName = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    no_track: common.NoTrack = False,
    dry_run: common.DryRun = False,
) -> None:
    """Run every stage of a pipeline in this process, without DVC. Finished results are kept."""
    layout, config = common.resolve(
        pipeline,
        sets,
        extract__device=device,
        train__device=device,
        finetune__device=device,
        train__seeds=common.seed_list(seeds),
        train__recipe=recipe,
    )
    common.stop_if_dry(dry_run, config)
    from daamctl import pipeline as whole

    common.show_path(whole.run(layout, config, source=source, track=not no_track))
