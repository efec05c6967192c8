"""Run benchmarks one after another, each in a process of its own, and print all ratios in one table.

python -m benchmarks                 # all
python -m benchmarks training daam   # some
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness import ratio_table

NAMES = (
    "startup",
    "daam",
    "training",
    "search",
    "streaming",
    "extraction",
    "extraction_memory",
    "truncated",
    "window",
    "position_bias",
    "freed_memory",
    "concat_probe",
    "large_corpus",
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of: {', '.join(NAMES)}. [default: all]")] = None,
    out: Annotated[Path, typer.Option(help="Folder for <name>.json.")] = Path("data/bench"),
) -> None:
    """Run benchmarks."""
    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {', '.join(NAMES)}")
    failed = []
    for name in names or NAMES:
        command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(out / f"{name}.json")]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    done = {name: json.loads((out / f"{name}.json").read_text()) for name in names or NAMES if name not in failed}
    Console().print(ratio_table({name: result["ratios"] for name, result in done.items()}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    typer.run(main)
