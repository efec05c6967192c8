"""`daamctl importance`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    audit: Annotated[
        bool | None,
        typer.Option("--audit/--no-audit", help="Test whether layer scores reflect how useful the layers are."),
    ] = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Compute Importance Factor maps of trained and untrained methods, and test whether layer scores can be trusted."""
    layout, config = common.resolve(
        pipeline, sets, corpus=corpus, encoder=encoder, importance__audit=audit, train__recipe=recipe
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "importance")
    from daamctl.stages import importance

    common.show_path(importance.run(layout, config))
