"""A document as files: report.html, report.md, and every table and picture beside them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from daamctl import __version__
from daamctl.artifacts.io import write_text
from daamctl.files import atomic_path
from daamctl.reporting.document import Document
from daamctl.reporting.render import PICTURES_DIR, TABLES_DIR, to_html, to_markdown
from daamctl.reporting.tables import to_csv, to_latex


def write_report(folder: Path, document: Document, *, interactive: bool = True) -> Path:
    """Write a document; what an earlier one left in its folders goes.

    Args:
        folder: of the report.
        document: what to write.
        interactive: whether figures can be explored in the page; pictures stand in their place otherwise.

    Returns:
        Path of report.html.
    """
    pictures = {picture.name: picture.data for picture in document.pictures}
    pictures |= {f"{Path(picture.name).stem}.pdf": picture.vector for picture in document.pictures if picture.vector}
    for name, data in pictures.items():
        with atomic_path(folder / PICTURES_DIR / name) as temporary:
            temporary.write_bytes(data)
    tables = {f"{table.key}.csv": to_csv(table) for table in document.tables}
    tables |= {f"{table.key}.tex": to_latex(table, label=f"{document.name}-{table.key}") for table in document.tables}
    for name, text in tables.items():
        write_text(folder / TABLES_DIR / name, text)
    _remove_others(folder / PICTURES_DIR, pictures)
    _remove_others(folder / TABLES_DIR, tables)
    write_text(folder / "report.md", to_markdown(document, version=__version__))
    path = folder / "report.html"
    write_text(path, to_html(document, version=__version__, interactive=interactive))
    return path


def _remove_others(folder: Path, kept: Collection[str]) -> None:
    """Remove what an earlier report left: it would be taken for a part of this one."""
    for old in folder.iterdir() if folder.is_dir() else ():
        if old.is_file() and old.name not in kept:
            old.unlink()
