"""`daamctl paper`."""

from __future__ import annotations

from daamctl.cli import common


def command() -> None:
    """Write the report on the papers: every published table beside the results of the pipelines."""
    from daamctl.config import find_root
    from daamctl.stages import paper

    common.show_path(paper.run(find_root()))
