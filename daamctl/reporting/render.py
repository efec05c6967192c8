"""A report as one self-contained HTML file, or as Markdown with separate pictures.

All text is escaped: names of classes, groups, speakers and corpora come from files of the user. The HTML contains its
styles, scripts, plotly.js and pictures, and its content policy forbids any request.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from daamctl.reporting import figure_interactive as figures
from daamctl.reporting.document import CODE, Document, Linked, Number, number_of
from daamctl.reporting.figure_spec import Picture
from daamctl.reporting.glossary import explainer

TEMPLATES = Path(__file__).parent
PICTURES_DIR = "pictures"
TABLES_DIR = "tables"


def to_html(document: Document, *, version: str, interactive: bool = True) -> str:
    """One self-contained HTML page.

    Args:
        interactive: embed plotly.js (5 MB) for interactive figures; otherwise the page has pictures only.
    """
    environment = _environment(autoescape=True)
    environment.filters.update(
        data_uri=_data_uri, json=_json, number=number_of, data=figures.to_data, explain=explainer()
    )
    plotly = ""
    if interactive and document.plots:
        from plotly.offline import get_plotlyjs

        load: Callable[[], str] = get_plotlyjs
        plotly = Markup(load().replace("</script", "<\\/script"))  # safe inside a script element
    return environment.get_template("template.html.j2").render(
        document=document, version=version, plotly=plotly,
        figures_script=Markup(figures.SCRIPT.read_text(encoding="utf-8")), tables_dir=TABLES_DIR,
    )  # fmt: skip


def to_markdown(document: Document, *, version: str) -> str:
    """Markdown with pipe tables. It expects the pictures in the folder `pictures/`."""
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


def _json(value: Any) -> Markup:
    """JSON that cannot close the script element around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _data_uri(picture: Picture) -> str:
    """The picture with at most 256 colours, if that is smaller; most charts then take a third of the space."""
    from PIL import Image  # comes with matplotlib

    stream = BytesIO()
    with Image.open(BytesIO(picture.data)) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(stream, format="png")
    data = min(stream.getvalue(), picture.data, key=len)
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def _escape_markdown(value: Any) -> Any:
    """Escaped text, in which `code` stays code."""
    if isinstance(value, Markup) or not isinstance(value, str | Number):
        return value
    parts = CODE.split(" ".join(str(value).split()))
    escaped = [re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(part, quote=False)) for part in parts]
    return "".join(f"`{parts[number]}`" if number % 2 else text for number, text in enumerate(escaped))


def _verbatim(text: str) -> Markup:
    """An indented code block: no fence that the text could close."""
    return Markup("\n".join(f"    {line}" if line else "" for line in text.splitlines()))
