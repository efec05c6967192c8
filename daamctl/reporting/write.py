"""Writes a document as files: report.html, report.md, tables and pictures."""

from __future__ import annotations

from pathlib import Path

from daamctl.reporting.document import Document
from daamctl.reporting.render import PICTURES_DIR, TABLES_DIR, to_html, to_markdown
from daamctl.reporting.tables import to_csv, to_latex
from daamctl.store.files import remove_others, write_bytes, write_text
from daamctl.store.version import __version__


def write_report(folder: Path, document: Document, *, interactive: bool = True) -> Path:
    """Write a document. Tables and pictures of an earlier one are removed.

    Args:
        interactive: whether figures in the page are interactive; otherwise it has pictures only.

    Returns:
        Path of report.html.
    """
    pictures = {}
    for picture in document.pictures:
        pictures[picture.name] = picture.data
        if picture.vector is not None:
            pictures[f"{Path(picture.name).stem}.pdf"] = picture.vector
    write_bytes(folder / PICTURES_DIR, pictures)
    tables = {}
    for table in document.tables:
        tables[f"{table.key}.csv"] = to_csv(table)
        tables[f"{table.key}.tex"] = to_latex(table, label=f"{document.name}-{table.key}")
    for name, text in tables.items():
        write_text(folder / TABLES_DIR / name, text)
    remove_others(folder / PICTURES_DIR, pictures)
    remove_others(folder / TABLES_DIR, tables)
    write_text(folder / "report.md", to_markdown(document, version=__version__))
    path = folder / "report.html"
    write_text(path, to_html(document, version=__version__, interactive=interactive))
    return path


def write_plots(folder: Path, document: Document) -> None:
    """Write the figures of a document, without the pictures of single methods, for `dvc plots show`."""
    figures = {picture.name: picture.data for picture in document.pictures if picture.vector is not None}
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder, figures)
    remove_others(folder, figures)
