"""Pictures: every kind of mark is drawn, parts cover all views once, and the same figure gives the same bytes."""

import struct
import warnings
from dataclasses import replace
from io import BytesIO
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from daamctl.reporting import figure_static as static
from daamctl.reporting.figure_spec import Axis, Confusion, Figure, HeatMap, Line, Panel, Rule, rows

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height from the PNG's own header."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def has_colour(png: bytes, colour: tuple[int, int, int]) -> bool:
    pixels = np.rint(255 * imread(BytesIO(png))[..., :3]).astype(int)
    return bool((np.abs(pixels - colour).max(axis=-1) <= 2).any())


def curve(name: str = "Training") -> Panel:
    line = Line([1, 2, 3], [50, float("nan"), 70], name, band=([40, 40, 60], [60, 60, 80]), marker="circle")
    return Panel("none", Axis("Epoch", whole=True), Axis("Accuracy", "%", limits=(0, 101)), [line, Rule(30, "Chance")])


def confusion(num_classes: int, side: float = 2.5) -> Panel:
    counts = np.eye(num_classes, dtype=int)
    counts[0] = 0  # a class without a test item
    names = [f"class {number}" for number in range(num_classes)]
    return Panel("none", Axis("Predicted", names=names), rows(names), [Confusion(counts)], (side, side))


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_colours_of_the_marks_are_in_the_picture():
    filled = Line([1, 2], [1, 2], "a", "orange", None, "square", filled=True)
    png = static.png([Panel("", Axis(), Axis(), [filled])])
    assert has_colour(png, ORANGE)
    assert not has_colour(png, BLUE)
    assert has_colour(static.png([curve()]), BLUE)


def test_dpi_sets_the_size():
    small, large = (size_of(static.png([curve()], dpi=dpi)) for dpi in (50, 100))
    assert large[0] == pytest.approx(2 * small[0], rel=0.05)


def test_names_left_of_a_panel_and_numbers_below_it_have_room():
    names = rows(["weighted-sum", "daam-v1-mlp with a long name"])
    share = Axis("Layer contribution", "%", limits=(15.9, 17.7))
    methods = Panel("Methods", share, names, [Line([16.1, 17.6], [0, 1], "Mean")], (1.4, 1.0))
    canvas = static._canvas([[curve(), methods, methods], [curve(), methods]])
    wholes = [axes.get_tightbbox() for axes in canvas.axes]
    assert not any(one.overlaps(other) for one, other in combinations(wholes, 2))
    for axes in canvas.axes:
        low, high = axes.get_xlim()
        numbers = [text for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]
        assert len(numbers) >= 2
        assert all(left.get_window_extent().x1 < right.get_window_extent().x0 for left, right in pairwise(numbers))


def test_long_names_of_classes_lie_beside_the_panels_of_a_shorter_row():
    names = ["negative sentiment", "neutral sentiment", "positive sentiment"]
    panel = Panel("m", Axis("Predicted", names=names), rows(names), [Confusion(np.eye(3, dtype=int))])
    canvas = static._canvas([[panel] * 4, [panel] * 2], small=(1.75, 1.75))
    canvas.draw_without_rendering()
    matrices = canvas.axes[:6]
    written = [text.get_window_extent() for axes in matrices[2:4] for text in axes.get_xticklabels()]
    assert not any(box.overlaps(axes.get_window_extent()) for box in written for axes in matrices[4:])


def test_names_with_dollars_are_no_formulas():
    names = [r"$\foo$", "$5_{a}$"]
    panel = Panel("$5-$10", Axis("Predicted", names=names), rows(names), [Confusion(np.eye(2, dtype=int))])
    with static._fonts():
        canvas = static._canvas([[panel]], title=names[0])
        assert not any(text.get_parse_math() for text in canvas.findobj(Text))
    assert static.png([panel], title=names[0])


def test_same_figure_gives_same_bytes():
    figure = Figure("learning", "All.", {("none",): [curve()]})
    first, second = static.pictures(figure), static.pictures(figure)
    assert first == second
    (picture,) = first
    assert picture.vector.startswith(b"%PDF-")
    assert b"CreationDate" not in picture.vector


def test_parts_cover_all_views_once():
    views = {(f"m{number}",): [curve()] for number in range(5)}
    figure = Figure("learning", "All.", views, ("Method",), per_picture=2, small=(2, 1))
    found = static.pictures(figure)
    assert [picture.name for picture in found] == ["learning-1.png", "learning-2.png", "learning-3.png"]
    assert [picture.alt for picture in found] == [
        "All. Part 1 of 3: m0 to m1.", "All. Part 2 of 3: m2 to m3.", "All. Part 3 of 3: m4 to m4.",
    ]  # fmt: skip
    assert size_of(found[0].data)[0] > 1.5 * size_of(found[2].data)[0]
    (single,) = static.pictures(Figure("learning", "All.", {("m0",): [curve()]}, ("Method",)))
    assert (single.name, single.alt) == ("learning.png", "All.")


def test_a_grid_grows_by_rows():
    def grid(number: int) -> tuple[int, int]:
        views = {(f"m{place}",): [curve()] for place in range(number)}
        (picture,) = static.pictures(Figure("learning", "All.", views, ("Method",), small=(2, 1)))
        return size_of(picture.data)

    assert grid(4)[0] == pytest.approx(grid(8)[0], abs=2)
    assert grid(8)[1] > grid(4)[1] + static.DPI


def test_printed_views_replace_those_of_the_page():
    figure = Figure("map", "All.", {("a",): [curve()]}, ("Method",), {("a",): [curve(), curve()]})
    (picture,) = static.pictures(figure)
    (other,) = static.pictures(Figure("map", "All.", figure.views))
    assert size_of(picture.data)[0] > 1.7 * size_of(other.data)[0]


@pytest.mark.parametrize("num_classes", [2, 4, 12, 30])
def test_confusion(num_classes):
    assert min(size_of(static.png([confusion(num_classes)], dpi=60))) > 100


@pytest.mark.parametrize("number", [1, 3])
def test_a_hundred_classes_have_three_pixels_per_cell(number):
    views = {(f"m{place}",): [confusion(100)] for place in range(number)}
    figure = Figure("confusion", "All.", views, ("Method",), small=(3.9, 3.9), columns=2)
    (picture,) = static.pictures(figure)
    width, height = size_of(picture.data)
    assert min(width / min(number, 2), height / -(-number // 2)) > 300 + 200


def test_shares_are_of_the_actual_class():
    mark = Confusion(np.array([[3, 1], [0, 0]]))
    assert mark.shares.tolist() == [[75.0, 25.0], [0.0, 0.0]]
    assert not mark.many


@pytest.mark.parametrize("helps", [False, True])
def test_characters_that_no_font_has_are_told_once(helps, monkeypatch, caplog):
    character = "\u214a"  # matplotlib's font lacks it, another that comes with it does not
    monkeypatch.setattr(static, "FONTS", ("No such font", *(["STIXGeneral"] if helps else [])))
    static._tell_lacking.cache_clear()
    panel = replace(curve(), title=f"Class {character}")
    figure = Figure("learning", "All.", {("none",): [panel]})
    first, _ = static.pictures(figure), static.png([panel], title=character)
    told = [record.getMessage() for record in caplog.records]
    assert told == ([] if helps else [f"figures show boxes for {character}: no font that has them is installed, "
                                      "e.g. Noto Sans CJK"])  # fmt: skip
    assert static.pictures(figure) == first


def test_a_map_and_its_change():
    values = np.random.default_rng(0).random((2, 8))
    axes = Axis("Feature"), Axis("Layer", names=["1", "2"])
    plain = static.png([Panel("", *axes, [HeatMap(values, "Importance Factor")])], dpi=60)
    change = static.png([Panel("", *axes, [HeatMap(values, "Change", np.zeros((2, 8)))])], dpi=60)
    same = static.png([Panel("", *axes, [HeatMap(values, "Change", values)])], dpi=60)
    assert len({plain, change, same}) == 3
