"""`daamctl paper`."""

from __future__ import annotations

from daamctl.cli import common


def command() -> None:
    """Write the report of the whole paper: every published table beside what the pipelines make of it."""
    from daamctl.config import find_root
    from daamctl.stages import paper

    common.show_path(paper.run(find_root()))


command.__name__ = "paper"
