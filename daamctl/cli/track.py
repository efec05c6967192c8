"""`daamctl track`."""

from __future__ import annotations

from daamctl.cli.options import Run
from daamctl.cli.terminal import show_path


def command(run: Run) -> None:
    """Log finished runs that MLflow does not have yet, e.g. after an outage or after changing the store."""
    from daamctl.config import find_root
    from daamctl.stages import track

    show_path(track.run(find_root(), run.pipeline))
