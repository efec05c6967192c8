"""A report as one self-contained HTML file, or as Markdown with pictures beside it.

Everything shown is escaped: class, group and corpus names come from files that users bring.
"""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from daamctl.reporting.document import Document, Picture

TEMPLATES = Path(__file__).parent
PICTURES_DIR = "pictures"


def to_html(document: Document, *, version: str) -> str:
    """One HTML page with the pictures inside; needs no network and no script.

    Args:
        document: what to show.
        version: of daamctl, for the footer.
    """
    environment = _environment(autoescape=True)
    environment.filters["data_uri"] = _data_uri
    return environment.get_template("template.html.j2").render(document=document, version=version)


def to_markdown(document: Document, *, version: str) -> str:
    """Markdown (with pipe tables) that expects the pictures in `pictures/` beside it."""
    environment = _environment(autoescape=False, finalize=_escape_markdown)
    environment.filters.update(verbatim=_verbatim, plain=Markup)
    return environment.get_template("template.md.j2").render(
        document=document, version=version, pictures_dir=PICTURES_DIR
    )


def _environment(**options: Any) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )


def _data_uri(picture: Picture) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.data).decode('ascii')}"


def _escape_markdown(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = html.escape(" ".join(value.split()), quote=False)
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"\\{sign}")
    return text


def _verbatim(text: str) -> Markup:
    """An indented code block: no fence that the text could close."""
    return Markup("\n".join(f"    {line}" if line else "" for line in text.splitlines()))
