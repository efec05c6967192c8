"""`daamctl run`."""

from __future__ import annotations

from daamctl.cli.options import Run
from daamctl.cli.show import show_results
from daamctl.cli.terminal import show_path


def command(run: Run) -> None:
    """Run every stage of a pipeline in this process, without DVC. Finished results are kept."""
    layout, config = run.settings()
    from daamctl.stages import pipeline

    path = pipeline.run(layout, config, source=run.source, track=run.track)
    show_results(layout)
    show_path(path)
