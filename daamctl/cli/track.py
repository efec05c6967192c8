"""`daamctl track`."""

from __future__ import annotations

from daamctl.cli import common


def command(pipeline: common.Pipeline = None) -> None:
    """Send finished runs to MLflow that it does not have yet (after an outage, or to another store)."""
    from daamctl.config import find_root
    from daamctl.stages import track

    common.show_path(track.run(find_root(), pipeline))


command.__name__ = "track"
