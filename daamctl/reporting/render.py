"""A report as one self-contained HTML file, or as Markdown with pictures beside it.

Everything shown is escaped: class, group, speaker and corpus names come from files that users bring. The HTML loads
nothing: styles, scripts, plotly.js and pictures stand in it, and its content policy forbids any request.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from daamctl.reporting.document import Document, Linked, Number, Picture, number_of

TEMPLATES = Path(__file__).parent
PICTURES_DIR = "pictures"
TABLES_DIR = "tables"


def to_html(document: Document, *, version: str, interactive: bool = True) -> str:
    """One HTML page with everything inside.

    Args:
        document: what to show.
        version: of daamctl, for the footer.
        interactive: embed plotly.js (5 MB) and let figures be explored; their pictures stand in their place otherwise.
    """
    environment = _environment(autoescape=True)
    environment.filters.update(data_uri=_data_uri, json=_json, number=number_of)
    return environment.get_template("template.html.j2").render(
        document=document, version=version, plotly=_plotly() if interactive and document.plots else "",
        tables_dir=TABLES_DIR,
    )  # fmt: skip


def to_markdown(document: Document, *, version: str) -> str:
    """Markdown (with pipe tables) that expects the pictures in `pictures/` beside it."""
    environment = _environment(autoescape=False, finalize=_escape_markdown)
    environment.filters.update(verbatim=_verbatim, plain=Markup)
    return environment.get_template("template.md.j2").render(
        document=document, version=version, pictures_dir=PICTURES_DIR, tables_dir=TABLES_DIR
    )


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )
    environment.tests["linked"] = lambda cell: isinstance(cell, Linked)
    return environment


def _plotly() -> Markup:
    """The script, safe to stand inside a script element."""
    from plotly.offline import get_plotlyjs

    load: Callable[[], str] = get_plotlyjs
    return Markup(load().replace("</script", "<\\/script"))


def _json(value: Any) -> Markup:
    """JSON that cannot close the element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _data_uri(picture: Picture) -> str:
    return f"data:image/png;base64,{base64.b64encode(_small(picture.data)).decode('ascii')}"


def _small(png: bytes) -> bytes:
    """The same picture with at most 256 colours where that is smaller; charts then take a third."""
    from PIL import Image  # comes with matplotlib

    stream = BytesIO()
    with Image.open(BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(stream, format="png")
    return min(stream.getvalue(), png, key=len)


def _escape_markdown(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str | Number):
        return value
    text = html.escape(" ".join(str(value).split()), quote=False)
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"\\{sign}")
    return text


def _verbatim(text: str) -> Markup:
    """An indented code block: no fence that the text could close."""
    return Markup("\n".join(f"    {line}" if line else "" for line in text.splitlines()))
