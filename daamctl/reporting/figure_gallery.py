"""A grid of small pictures: one row per name."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from daamctl.reporting.figure_spec import Picture

WIDTH = 900
"""Aimed width of the pictures of a row together, in pixels."""
GAP, LABEL = 4, 150
"""Space between pictures, and width of the names, in pixels."""
FONT_SIZE = 16


def gallery(rows: Mapping[str, NDArray[np.uint8]], name: str, alt: str) -> Picture:
    """Draw pictures (E, S, S, 3) of 0 to 255, one row per name; small ones enlarged by a whole factor to stay sharp."""
    from PIL import Image, ImageDraw, ImageFont

    number, side = next(iter(rows.values())).shape[:2]
    factor = max(1, (WIDTH // number - GAP) // side)
    cell = side * factor + GAP
    page = Image.new("RGB", (LABEL + number * cell, len(rows) * cell), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(FONT_SIZE)
    for row, (label, pictures) in enumerate(rows.items()):
        draw.text((4, row * cell + cell // 2), label, "black", font, anchor="lm")
        for column, picture in enumerate(pictures):
            large = Image.fromarray(picture).resize((side * factor, side * factor), Image.Resampling.NEAREST)
            page.paste(large, (LABEL + column * cell, row * cell))
    stream = io.BytesIO()
    page.save(stream, "PNG")
    return Picture(name, alt, stream.getvalue())
