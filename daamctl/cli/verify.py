"""`daamctl verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.terminal import escaped, show_line

MOST = 20
"""Differences that are printed."""


def command(file: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file of `daamctl bundle`.")]) -> None:
    """Check a bundle without its project: hashes, seals, and every figure, computed again from the predictions."""
    from daamctl.artifacts.terms import counted
    from daamctl.errors import ArtifactError
    from daamctl.stages import bundle

    found = bundle.verify(file)
    lines = [f"{found.run}: {found.files} files, {found.folds} folds, {found.rows} rows of tables"]
    this = bundle.version()
    if found.version != this:
        lines.append(
            f"made by daamctl {found.version}, verified with other code, {this}: figures may differ by the change"
        )
    lines += found.wrong[:MOST]
    if not found.wrong:
        lines.append("Verified: all hashes and seals hold, and the predictions give every figure of the tables.")
        hashed = "The report is" if found.version == this else "The report and the text for the paper are"
        lines.append(
            "Not known from a bundle: that the named encoder made the predictions, that labels and speakers are true, "
            "that the list of leaks is complete, and what training recorded (learning curves, other epochs, times). "
            f"{hashed} only hashed."
        )
    for line in lines:
        show_line(escaped(line))
    if found.wrong:
        sides = f", of which {found.one_sided} in what only one side has" if found.one_sided else ""
        fix = f"verify it with the code that made it: daamctl {found.version}" if found.version != this else None
        raise ArtifactError(f"{file} does not verify: {counted(len(found.wrong), 'difference')}{sides}", fix=fix)
