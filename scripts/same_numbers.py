"""Compare all results of two projects: does a change of the code leave every number as it was?

    python scripts/same_numbers.py BEFORE AFTER            # two project folders, or their data folders
    python scripts/same_numbers.py BEFORE AFTER --ignore interval

Reads every JSON record, CSV table and Parquet table of a run below evaluate, ablate, importance, truncate, compare,
score, mlm and report, and lists each number and text that differs. Hashes, times and versions are not compared.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from daamctl.store.differences import TOLERANCE, by_row, differences

STAGES = ("evaluate", "ablate", "importance", "truncate", "compare", "score", "mlm", "report")
NOT_COMPARED = r"(?i)sha256|files|_s$|_per_s|\(s\)|/s\b|seconds|git_commit|versions|time|bytes|joules"


def main(
    before: Path,
    after: Path,
    ignore: Annotated[list[str] | None, typer.Option(help="Also not compared: names with this in them.")] = None,
    tolerance: Annotated[float, typer.Option(help="Relative; the order of a sum changes the last digits.")] = TOLERANCE,
) -> None:
    """List what differs; exit with 1 if anything does."""
    skipped = re.compile("|".join([NOT_COMPARED, *(ignore or [])]))
    roots = [path / "data" if (path / "data").is_dir() else path for path in (before, after)]
    names = [{path.relative_to(root) for path in files(root)} for root in roots]
    count = 0
    for name in sorted(names[0] ^ names[1]):
        typer.echo(f"{name}: only in {before if name in names[0] else after}")
    for name in sorted(names[0] & names[1]):
        before_this, after_this = (compared(content(root / name), skipped) for root in roots)
        for place, one, other in differences(before_this, after_this, place=str(name), tolerance=tolerance):
            typer.echo(f"{place}: {one!r} -> {other!r}")
            count += 1
    typer.echo(f"{len(names[0] & names[1])} files compared, {count} differences")
    raise typer.Exit(int(count > 0))


def files(root: Path) -> Iterator[Path]:
    """Records and tables of a data folder; of Parquet files only those of a run, not those of its folds."""
    for stage in STAGES:
        for suffix in ("json", "csv"):
            yield from (root / stage).rglob(f"*.{suffix}")
        yield from (root / stage).glob("*/*.parquet")


def content(path: Path) -> Any:
    """JSON as it is; Parquet by row, CSV as a list of rows, but of names and values as one object."""
    if path.suffix == ".parquet":
        return by_row(pl.read_parquet(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    head, *rows = csv.reader(text.splitlines())
    if len(head) == 2 and len({row[0] for row in rows}) == len(rows):
        return {name: number(value) for name, value in rows}
    return [{f"{index} {name}": number(row[index]) for index, name in enumerate(head)} for row in rows]


def compared(tree: Any, skipped: re.Pattern[str]) -> Any:
    """The tree without the names that are not compared; keys of rows are no names."""
    if isinstance(tree, list):
        return [compared(one, skipped) for one in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: compared(one, skipped) for key, one in tree.items()
            if not (isinstance(key, str) and skipped.search(key))}  # fmt: skip


def number(text: str) -> float | str:
    """A number if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


if __name__ == "__main__":
    typer.run(main)
