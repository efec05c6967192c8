"""`daamctl paper`."""

from __future__ import annotations

from daamctl.cli.terminal import show_path


def command() -> None:
    """Write the report on the papers: every published table beside the results of the pipelines."""
    from daamctl.config import find_root
    from daamctl.stages import paper

    show_path(paper.run(find_root()))
