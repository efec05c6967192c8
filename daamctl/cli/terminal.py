"""What commands print: paths, lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from daamctl.reporting.document import Table as Content


FEW_ROWS = 3
"""Rows that may be alike in every column by chance."""


def is_terminal() -> bool:
    """Whether somebody watches."""
    return _console().is_terminal


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    width: int | None = 160,
    right: Iterable[int] = (),
    fold: bool = True,
    bold: bool = False,
    markup: bool = False,
    styles: Sequence[str | None] = (),
) -> None:
    """Print a table without lines. Where it does not fit, names of columns are wrapped, and cells only after these.

    Args:
        head: names of the columns; if all are empty, they are not printed.
        width: that of an output that is not a terminal, in characters; None: as the environment says.
        right: numbers of the columns that are justified to the right.
        fold: wrap cells that do not fit instead of cutting them off.
        bold: set the first column in bold, and do not wrap it.
        markup: cells may hold Rich's markup.
        styles: one per row.
    """
    from rich.cells import cell_len
    from rich.markup import render
    from rich.table import Table
    from rich.text import Text

    shown = [[render(cell or "") if markup else Text(cell or "") for cell in row] for row in rows]
    console, needs = _console(), _widths(head, [[cell.plain for cell in row] for row in shown])
    if width is not None and not console.is_terminal:
        console.width = width
    names = list(head)
    if sum(max(need, cell_len(name)) + 2 for need, name in zip(needs, names, strict=True)) > console.width:
        names = ["\n".join(wrap(name, max(need, 1))) for need, name in zip(needs, names, strict=True)]
    # two characters between columns if they fit, else one, before any cell is wrapped
    gap = 2 if sum(needs) + 2 * len(needs) <= console.width else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold", show_header=any(head))
    for index, name in enumerate(names):
        lead = bold and index == 0
        table.add_column(
            escaped(name),
            justify="right" if index in right else "left",
            overflow="fold" if fold else "ellipsis",
            no_wrap=lead or not fold,
            style="bold" if lead else None,
        )
    for index, row in enumerate(shown):
        table.add_row(*row, style=styles[index] if styles else None)
    console.print(table)


def _widths(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Widths of columns in which no cell is wrapped; their names may be, between words."""
    from rich.cells import cell_len

    words = [max(name.split(), key=len, default="") for name in head]
    return [max(map(cell_len, column)) for column in zip_longest(words, *rows, fillvalue="")]


def print_wide(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int, width: int = 160, right: Sequence[int] = ()
) -> None:
    """Print a table of any number of columns: one that does not fit is cut into several, each with the first columns.

    Then what is the same in all of many rows stands in a line below.

    Args:
        keys: number of the first columns.
        width: of an output that is not a terminal, in characters.
        right: numbers of the columns that are justified to the right.
    """
    console = _console()
    width = console.width if console.is_terminal else width
    sizes = [2 + size for size in _widths(head, rows)]
    every, same = list(range(len(head))), list[int]()
    if sum(sizes) > width and len(rows) > FEW_ROWS:
        same = [at for at in every if len({row[at] for row in rows}) == 1]
        every = [at for at in every if at not in same]
    first = [at for at in every if at < keys]
    parts = [first.copy()]
    for at in every[len(first) :]:
        # a column that fits nowhere still gets a part of its own
        if sum(sizes[one] for one in (*parts[-1], at)) > width and parts[-1] != first:
            parts.append(first.copy())
        parts[-1].append(at)
    for part in parts:
        if part is not parts[0]:
            show_line("")
        shown = [[row[at] for at in part] for row in rows]
        print_table([head[at] for at in part], shown, width=width, right=[part.index(at) for at in right if at in part])
    if same:
        show_line(f"[dim]in all rows: {escaped(', '.join(f'{head[at]} {rows[0][at]}' for at in same))}[/]")


def print_content(tables: Iterable[Content], notes: Iterable[str], sentence: str, *, captions: bool = True) -> None:
    """Print tables of a report, notes, and the answer in one sentence."""
    for table in tables:
        if captions:
            show_line(f"[bold]{escaped(table.caption)}[/]")
        print_wide(table.columns, [[str(cell) for cell in row] for row in table.rows], keys=1)
    for note in notes:
        show_line(f"- {escaped(note)}")
    show_line(f"[bold]{escaped(sentence)}[/]")


def show_path(path: Path) -> None:
    """Print the path of a result, relative to the current folder if it is inside."""
    typer.echo(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def show_line(text: str) -> None:
    """Print a line, whole where nobody watches."""
    console = _console()
    console.print(text, soft_wrap=not console.is_terminal)


def escaped(text: str) -> str:
    """Text in which Rich sees no markup."""
    from rich.markup import escape

    return escape(text)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)
