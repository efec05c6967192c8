"""Figures as PNG and PDF, drawn by matplotlib.

Panels have a fixed size; what surrounds them (labels, legend, colour scale) is measured and the canvas is cut to fit.
Nothing is global and no display is needed. The same figure gives the same bytes.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any, Literal, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import get_font_names
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from daamctl.reporting.figure_spec import Axis, Confusion, Figure, HeatMap, Line, Panel, Picture, Rule

COLOURS = {
    "blue": "#0072B2", "orange": "#D55E00", "green": "#009E73", "pink": "#CC79A7", "sky": "#56B4E9", "gold": "#E69F00",
    "grey": "#5B6470", "text": "black",
}  # fmt: skip
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":", None: "none"}
MARKERS = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P", "x": "X",
    "triangle-left": "<", "triangle-right": ">", "star": "*", "hexagon": "h", "hourglass": "d", "line-ns": "|",
    None: "none",
}  # fmt: skip
DPI = 130
FONT, SMALL_FONT = 9.0, 7.0
"""Points, in panels of full size and in a grid of small ones."""
LINE_HEIGHT = 1.15 / 72
DIGIT_WIDTH = 0.6 / 72
"""Inches that a line of text and a digit take, per point of their font."""
FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC", "Hiragino Sans", "Microsoft YaHei",
    "Malgun Gothic", "WenQuanYi Zen Hei", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai",
    "Arial Unicode MS", "Noto Emoji",
)  # fmt: skip
"""Fonts that draw what matplotlib's own cannot, e.g. Chinese names of classes, where they are installed."""
NO_GLYPH = re.compile(r"Glyph (\d+) .*missing from")
LONG_NAME = 3
"""Longer names under a panel are rotated."""
T = TypeVar("T")

log = logging.getLogger(__name__)


@contextmanager
def _fonts() -> Iterator[None]:
    """Draw texts as they are, with all fonts that help, and say once which characters none of them has."""
    installed = set(get_font_names())
    families = ["DejaVu Sans", *(name for name in FONTS if name in installed)]
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it logs every table of a font
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it warns that a font has a single weight
    with (
        warnings.catch_warnings(record=True) as caught,
        mpl.rc_context({"font.family": families, "text.parse_math": False}),  # a name such as "$5-$10" is no formula
    ):
        warnings.filterwarnings("always", NO_GLYPH.pattern)
        yield
    lacking = set()
    for warning in caught:
        if found := NO_GLYPH.match(str(warning.message)):
            lacking.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if lacking:
        _tell_lacking("".join(sorted(lacking)))


@cache
def _tell_lacking(characters: str) -> None:
    log.warning("figures show boxes for %s: no font that has them is installed, e.g. Noto Sans CJK", characters)


@_fonts()
def pictures(figure: Figure) -> list[Picture]:
    """The figure as one picture, or as several with a part of its views each."""
    views = figure.printed or figure.views
    parts = _chunks(list(views), figure.per_picture)
    found = []
    for number, part in enumerate(parts, start=1):
        name, alt = figure.key, figure.alt
        if len(parts) > 1:
            first, last = part[0][0], part[-1][0]  # options of the first choice, e.g. methods
            name += f"-{number}"
            alt += f" Part {number} of {len(parts)}: {first} to {last}."
        rows = [views[chosen] for chosen in part]
        if figure.small is not None:
            rows = _chunks([panel for row in rows for panel in row], figure.columns)
        canvas = _canvas(rows, small=figure.small)
        box = _box(canvas)
        found.append(Picture(f"{name}.png", alt, _save(canvas, "png", box), _save(canvas, "pdf", box)))
    return found


@_fonts()
def png(panels: Sequence[Panel], *, title: str = "", dpi: int = DPI) -> bytes:
    """Panels side by side in full size, as a PNG."""
    canvas = _canvas([panels], title=title, dpi=dpi)
    return _save(canvas, "png", _box(canvas))


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _canvas(
    rows: Sequence[Sequence[Panel]], *, small: tuple[float, float] | None = None, title: str = "", dpi: int = DPI
) -> Canvas:
    """Draw rows of panels; `small`: width and height of every panel in a grid."""
    font = FONT if small is None else SMALL_FONT
    # All sizes are in inches, without the names and titles around the panels: `_save` cuts the canvas to fit them.
    columns = max(map(len, rows))
    widths = [max((small or row[column].size)[0] for row in rows if column < len(row)) for column in range(columns)]
    heights = [max((small or panel.size)[1] for panel in row) for row in rows]
    title_lines = max(1 + panel.title.count("\n") for row in rows for panel in row)
    gap_x, gap_y = 0.3, 0.2 + LINE_HEIGHT * (font + 1) * (1 + title_lines)
    width = sum(widths) + gap_x * (columns - 1)
    height = sum(heights) + gap_y * (len(rows) - 1)
    canvas = Canvas(figsize=(width, height), dpi=dpi)
    FigureCanvasAgg(canvas)  # measures text
    image = None
    handles: dict[str, Any] = {}  # name in the legend -> what it explains
    drawn: list[tuple[Axes, int]] = []
    more = np.zeros(columns)  # inches that names left of a panel need beyond the gap
    top = height
    for number, row in enumerate(rows):
        left = 0.0
        below = rows[number + 1] if number + 1 < len(rows) else ()
        for column, panel in enumerate(row):
            size = small or panel.size
            place = (left / width, (top - size[1]) / height, size[0] / width, size[1] / height)
            axes = canvas.add_axes(place)
            image = _draw(axes, panel, size, font) or image
            # Names of rows that the panel to the left has too, and names of columns that the panel below has too, are
            # written once.
            same_y = column > 0 and panel.y == row[0].y and bool(panel.y.names or panel.y.limits)
            written = column >= len(below) or not panel.x.names
            # beside a shorter row, slanted names that are longer than the gap would lie under its panels
            reach = DIGIT_WIDTH * font * max(map(len, panel.x.names), default=0) / math.sqrt(2)
            upright = bool(below) and written and reach > gap_y
            _label(axes.xaxis, panel.x, size[0], font, written=written, upright=upright)
            _label(axes.yaxis, panel.y, size[1], font, written=not same_y)
            axes.set_title(panel.title, fontsize=font + 0.5, pad=3)
            if small is None:
                axes.set_xlabel("" if column < len(below) else panel.x.title, fontsize=font)
                axes.set_ylabel("" if same_y else panel.y.title, fontsize=font)
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
            drawn.append((axes, column))
            if column > 0 and not same_y and (whole := axes.get_tightbbox()) is not None:
                more[column] = max(more[column], (axes.bbox.x0 - whole.x0) / dpi + 0.1 - gap_x)
            left += widths[column] + gap_x
        top -= heights[number] + gap_y
    if more.any():
        wider = width + more.sum()
        canvas.set_size_inches(wider, height)
        for axes, column in drawn:
            x, y, wide, high = axes.get_position().bounds
            axes.set_position(((x * width + more[: column + 1].sum()) / wider, y, wide * width / wider, high))
    _surround(canvas, rows[0][0], shared=small is not None, title=title, image=image, handles=handles)
    return canvas


def _draw(axes: Axes, panel: Panel, size: tuple[float, float], font: float) -> AxesImage | None:
    """Draw the marks and set the limits. Returns the image that the colour scale explains, if there is one."""
    image = None
    for mark in panel.marks:
        if isinstance(mark, Line):
            _line(axes, mark, font)
        elif isinstance(mark, Rule):
            draw = axes.axvline if mark.vertical else axes.axhline
            draw(mark.at, color=COLOURS[mark.colour], linestyle=DASHES[mark.dash], linewidth=1.2, label=mark.name)
        elif isinstance(mark, HeatMap):
            image = _heat_map(axes, mark)
        else:
            image = _confusion(axes, mark, size, font)
    if image is None:
        axes.grid(alpha=0.25)
    for axis, limit in ((panel.x, axes.set_xlim), (panel.y, axes.set_ylim)):
        limits = axis.limits or ((-0.5, len(axis.names) - 0.5) if axis.names else None)
        if limits is not None:
            limit(*(limits[::-1] if axis.reverse else limits))
    return image


def _line(axes: Axes, mark: Line, font: float) -> None:
    colour = COLOURS[mark.colour]
    if mark.band is not None:
        low, high = mark.band
        axes.fill_between(mark.x, low, high, color=colour, alpha=0.2, linewidth=0.6, label=mark.band_name)
    legend = mark.name if mark.legend is None else mark.legend
    axes.plot(
        mark.x, mark.y, color=colour, linestyle=DASHES[mark.dash], linewidth=mark.width, marker=MARKERS[mark.marker],
        markersize=mark.size, markerfacecolor=colour if mark.filled else "white",
        markeredgewidth=mark.width if mark.dash is None else 1.0, label=legend,
    )  # fmt: skip
    for x, y, text in zip(mark.x, mark.y, mark.texts, strict=False):
        axes.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", fontsize=font - 1)


def _heat_map(axes: Axes, mark: HeatMap) -> AxesImage:
    rows, columns = mark.values.shape
    values, colours, low, high = mark.values, "cividis", 0.0, 1.0
    if mark.minus is not None:
        values, colours = mark.values - mark.minus, "PuOr_r"
        high = float(np.abs(values).max()) or 1.0
        low = -high
    # With more cells than pixels, matplotlib averages neighbouring features but does not blur one layer into the next.
    values = values.repeat(math.ceil(1000 / rows), axis=0).repeat(math.ceil(1600 / columns), axis=1)
    extent = (0.5, columns + 0.5, -0.5, rows - 0.5)
    image = axes.imshow(values, aspect="auto", origin="lower", cmap=colours, vmin=low, vmax=high, extent=extent)
    image.set_label(mark.label)
    return image


def _confusion(axes: Axes, mark: Confusion, size: tuple[float, float], font: float) -> AxesImage:
    shares = mark.shares
    norm: Normalize = PowerNorm(0.5, vmin=0, vmax=100) if mark.many else Normalize(0, 100)
    image = axes.imshow(shares, aspect="auto", cmap="cividis", norm=norm, interpolation="nearest")
    image.set_label(mark.label)
    room = size[1] / len(shares) / (LINE_HEIGHT * font)  # lines of text that fit into a cell
    for row, column in np.ndindex(*shares.shape) if room > 2 else ():
        share = f"{shares[row, column]:.0f}"
        text = f"{share} %\n{mark.counts[row, column]}" if room > 3 else share
        colour = "white" if shares[row, column] < 50 else "black"  # cividis is dark below the middle
        axes.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)
    return image


def _label(axis: Any, spec: Axis, length: float, font: float, *, written: bool, upright: bool = False) -> None:
    """Set the ticks of an axis of a length in inches: all names, or as many as fit.

    Args:
        written: whether with text.
        upright: whether long names under a panel are rotated by 90 degrees in any case.
    """
    if not spec.names:
        low, high = sorted(axis.get_view_interval())
        for ticks in range(min(10, int(4 * length) + 1), 0, -1):
            axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10], integer=spec.whole, min_n_ticks=1))
            if axis.axis_name == "y":
                break
            # numbers beside one another take room by their length
            places = axis.get_majorticklocs()
            texts = axis.get_major_formatter().format_ticks(places)
            apart = length * np.diff(places).min(initial=high - low) / (high - low)
            if apart > DIGIT_WIDTH * font * (1 + max(map(len, texts), default=0)):
                break
        axis.set_tick_params(labelsize=font, pad=2)
        if not written:
            axis.set_major_formatter(NullFormatter())
        return
    step = math.ceil(len(spec.names) * LINE_HEIGHT * font / length)
    places = range(0, len(spec.names), step)
    axis.set_ticks(places, [spec.names[place] if written else "" for place in places], fontsize=font)
    axis.set_tick_params(pad=2)
    if axis.axis_name == "x" and max(map(len, spec.names)) > LONG_NAME:
        many = upright or len(spec.names) > len(places) or len(places) > 20
        for text in axis.get_ticklabels():
            text.set(rotation=90 if many else 45, ha="right", va="center", rotation_mode="anchor")


def _surround(
    canvas: Canvas, first: Panel, *, shared: bool, title: str, image: AxesImage | None, handles: dict[str, Any]
) -> None:
    """Write what belongs to all panels: title above; axis labels, colour scale and legend below."""
    width, height = canvas.get_size_inches()
    box = canvas.get_tightbbox()
    if title:
        canvas.text(0.5, (box.y1 + 0.1) / height, title, ha="center", va="bottom", fontsize=FONT + 3)
    below = box.y0 - 0.06  # inches
    if shared:
        canvas.text(0.5, below / height, first.x.title, ha="center", va="top", fontsize=FONT)
        left = (box.x0 - 0.1) / width
        canvas.text(left, 0.5, first.y.title, ha="right", va="center", rotation=90, fontsize=FONT)
        below -= 0.22
    if image is not None:
        wide, high = min(3.6, width), 0.12
        place = (0.5 - wide / width / 2, (below - high - 0.05) / height, wide / width, high / height)
        scale = canvas.add_axes(place)
        bar = canvas.colorbar(image, cax=scale, orientation="horizontal")
        bar.set_label(str(image.get_label()), fontsize=FONT)
        scale.tick_params(labelsize=FONT - 1, pad=1)
        below -= 0.6
    if handles:
        longest = max(map(len, handles))
        columns = max(1, min(6, int((width + 1) / (0.55 + 0.6 * FONT / 72 * longest))))
        canvas.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, below / height),
                      ncols=columns, frameon=False, fontsize=FONT)  # fmt: skip


def _box(canvas: Canvas) -> Bbox:
    """What is drawn and a margin, in inches. `bbox_inches="tight"` would draw every picture twice to find it."""
    return canvas.get_tightbbox().padded(0.1)


def _save(canvas: Canvas, form: Literal["png", "pdf"], box: Bbox) -> bytes:
    """Without dates and versions, so that the same figure gives the same bytes."""
    stream = BytesIO()
    names = ("Software",) if form == "png" else ("CreationDate", "Producer", "Creator")
    with mpl.rc_context({"pdf.fonttype": 42}):  # text stays text
        canvas.savefig(stream, format=form, dpi=canvas.dpi, bbox_inches=box, metadata=dict.fromkeys(names))
    return stream.getvalue()
