"""`daamctl track`."""

from __future__ import annotations

from daamctl.cli import common


def command(pipeline: common.Pipeline = None) -> None:
    """Log finished runs that MLflow does not have yet, e.g. after an outage or after changing the store."""
    from daamctl.config import find_root
    from daamctl.stages import track

    common.show_path(track.run(find_root(), pipeline))
