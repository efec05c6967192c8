"""`daamctl report`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--static", help="Interactive figures in report.html, or static pictures only (5 MB smaller)."
        ),
    ] = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    no_track: common.NoTrack = False,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Write the report: report.html, report.md, and every table as CSV and LaTeX."""
    layout, config = common.resolve(
        pipeline, sets, corpus=corpus, encoder=encoder, report__interactive=interactive, train__recipe=recipe
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "report")
    from daamctl.stages import report

    common.show_path(report.run(layout, config, track=not no_track))
