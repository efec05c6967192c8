"""Tables as files: CSV for machines, LaTeX (booktabs) for papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from io import StringIO

from daamctl.reporting.document import DASH, DOWN, FORMATS, UP, Cell, Linked, Number, Table, number_of
from daamctl.store.files import csv_text

LONG = 45
"""Tables with more rows do not fit on a page and become a longtable."""
WIDE_TEXT = 28
"""Columns of text with more characters get a fixed width, so that their lines break."""
WIDE_TABLE = 95
"""Tables whose rows have more characters are scaled down to the width of the page."""
SYMBOLS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "²": r"$^2$",
    "√": r"$\surd$",
    "χ": r"$\chi$",
    "δ": r"$\delta$",
    "ξ": r"$\xi$",
    "τ": r"$\tau$",
    "ρ": r"$\rho$",
    "α": r"$\alpha$",
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    UP: r"$\uparrow$",
    DOWN: r"$\downarrow$",
    DASH: "--",
    "—": "---",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
}


def to_csv(table: Table) -> str:
    """Comma-separated values, with separate columns for deviations, ends of intervals and notes.

    Numbers have the unit that the report shows (percent, points) and nine digits; missing values are empty.
    """
    grid = list(zip(*table.all_rows, strict=True)) or [()] * len(table.columns)
    columns: list[list[str]] = []
    for heading, cells in zip(table.columns, grid, strict=True):
        numbers = [number for cell in cells if (number := number_of(cell))]
        name = csv_text(heading.partition(" [95 % interval")[0].translate({ord(UP): None, ord(DOWN): None}).strip())
        units = {FORMATS[number.kind][2] for number in numbers}
        unit = units.pop() if len(units) == 1 else ""  # if units differ, the rows name them
        suffix = f" [{unit}]" if unit and unit not in name else ""
        for part in dict.fromkeys(part for number in numbers or [Number(None)] for part in number.parts):
            columns.append([f"{name}, {part}{suffix}" if part else name + suffix, *(_csv(c, part) for c in cells)])
        if any(isinstance(cell, Linked) for cell in cells):
            notes = ["; ".join([one.note, *(path for _, path in one.links)]) if isinstance(one, Linked) else ""
                     for one in cells]  # fmt: skip
            columns.append([f"{name}, note", *map(csv_text, notes)])
    stream = StringIO()
    csv.writer(stream, lineterminator="\n").writerows(zip(*columns, strict=True))
    return stream.getvalue()


def to_latex(table: Table, *, label: str) -> str:
    r"""A `table` (a `longtable` for many rows) for booktabs, with the numbers as in the report; `\ref{tab:label}`."""
    letters, width = [], 0  # characters per row; columns of text count at most `WIDE_TEXT`
    for index, column in enumerate(zip(table.columns, *table.all_rows, strict=True)):
        longest, words = max(len(str(cell)) for cell in column[1:] or ("",)), index in table.text_columns
        letters.append(r"p{0.3\linewidth}" if words and longest > WIDE_TEXT else "l" if words or index == 0 else "r")
        width += min(max(longest, len(column[0])), WIDE_TEXT) + 2
    long, wide = len(table.all_rows) > LONG, width > WIDE_TABLE
    environment = "longtable" if long else "tabular"
    packages = ["booktabs", *(["longtable"] if long else []), *(["graphicx"] if wide and not long else [])]
    if any("✓" in str(cell) for row in table.all_rows for cell in row):
        packages.append("amssymb")
    head = f"{_row(table.columns)}\n\\midrule"
    body = [_row(row) for row in table.rows]
    if table.foot:
        body += [r"\midrule", *(_row(row) for row in table.foot)]
    title = table.caption if table.caption.endswith((".", "?", "!")) else f"{table.caption}."
    label = re.sub(r"[^A-Za-z0-9:-]+", "-", label).strip("-")
    caption = f"\\caption{{{escape(title)}}}\n\\label{{tab:{label}}}"
    note = f"\\par\\smallskip\n{{\\footnotesize {escape(table.note)}}}\n" if table.note else ""
    opening = f"% needs the packages {', '.join(packages)}\n"
    start = f"\\begin{{{environment}}}{{@{{}}{''.join(letters)}@{{}}}}\n"
    end = "\n".join([*body, r"\bottomrule", f"\\end{{{environment}}}"])
    if long:
        size = r"\scriptsize" if wide else r"\small"
        top = f"{caption} \\\\\n\\toprule\n{head}\n\\endfirsthead\n\\toprule\n{head}\n\\endhead\n"
        return f"{opening}{{{size}\n{start}{top}{end}\n{note}}}\n"
    inner = f"{start}\\toprule\n{head}\n{end}"
    if wide:
        inner = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{inner}%\n}}"
    star = "*" if wide else ""
    return f"{opening}\\begin{{table{star}}}[t]\n\\centering\n\\small\n{caption}\n{inner}\n{note}\\end{{table{star}}}\n"


def escape(text: str) -> str:
    """Escape plain text for LaTeX."""
    return "".join(SYMBOLS.get(sign, sign) for sign in " ".join(text.split()))


def _csv(cell: Cell, part: str) -> str:
    inner = cell.cell if isinstance(cell, Linked) else cell
    if isinstance(inner, Number):
        value = inner.parts.get(part)
        return "" if value is None else f"{value:.9g}"
    return "" if part or inner == DASH else csv_text(inner)


def _row(cells: Sequence[Cell]) -> str:
    text = " & ".join(escape(str(cell)) for cell in cells) + r" \\"
    return f"{{}}{text}" if text[0] in "[*" else text  # the preceding \\ would read [ or * as its option
