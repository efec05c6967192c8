"""`daamctl protocols`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import print_content, show_path


def command(
    run: Run,
    names: Annotated[
        list[str] | None, typer.Option("--protocol", metavar="NAME", help="Only this one beside the first. Repeatable.")
    ] = None,
) -> None:
    """Say how many points the protocol is worth: shared speakers, shared sentences, and those of known benchmarks.

    Closed-form probes of the stored vectors are tested under each protocol (docs/protocols.md). Nothing is trained.
    """
    layout, config = run.settings()
    from daamctl.artifacts.protocols import find_protocols
    from daamctl.reporting.protocols import notes, sentences, table
    from daamctl.stages import protocols

    page = protocols.run(layout, config, names=names or ())
    found = find_protocols(page.parent)
    assert found is not None
    print_content([table(found)], notes(found), "\n".join(sentences(found)))
    show_path(page)
