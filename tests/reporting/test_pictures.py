"""Pictures of many methods: split into parts that fit a page, named and described."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from daamctl.reporting.pictures import (
    PER_PICTURE,
    confusion_panels,
    gap_rows,
    importance_rows,
    learning_panels,
    parts,
    rank_rows,
    search_panels,
    speaker_lines,
)

CURVE = {"epochs": [1, 2, 3, 4], "mean": [0.2, 0.5, None, 0.6], "low": [0.1] * 4, "high": [0.9] * 4}


def size_of(png: bytes) -> tuple[int, int]:
    height, width = imread(BytesIO(png)).shape[:2]
    return width, height


def check(drawn: tuple[bytes, bytes]) -> tuple[int, int]:
    png, pdf = drawn
    assert pdf.startswith(b"%PDF-")
    assert b"CreationDate" not in pdf
    pixels = imread(BytesIO(png))[..., :3]
    assert pixels.std() > 0.01
    return size_of(png)


def test_parts_cover_all_methods_once() -> None:
    asked: list[list[str]] = []
    items = {f"m{number}": number for number in range(2 * PER_PICTURE + 1)}
    found = parts("learning", "All.", items, PER_PICTURE, lambda part: asked.append(list(part)) or (b"png", b"pdf"))
    assert [name for part in asked for name in part] == list(items)
    assert [len(part) for part in asked] == [PER_PICTURE, PER_PICTURE, 1]
    assert [picture.name for picture in found] == ["learning-1.png", "learning-2.png", "learning-3.png"]
    assert found[0].alt == f"All. Part 1 of 3: m0 to m{PER_PICTURE - 1}."
    assert found[0].vector == b"pdf"
    (single,) = parts("learning", "All.", {"m0": 0}, PER_PICTURE, lambda part: (b"png", b"pdf"))
    assert (single.name, single.alt) == ("learning.png", "All.")


@pytest.mark.parametrize("number", [1, 5])
def test_panels(number: int) -> None:
    names = [f"method-{index} (reconstructed)" for index in range(number)]
    check(learning_panels({name: {"Training": CURVE, "Test group": CURVE} for name in names}, 0.3))
    shares = np.eye(4) * 0.6 + 0.1
    check(confusion_panels(dict.fromkeys(names, shares), ["neutral", "happy", "angry", "sad"]))


@pytest.mark.parametrize("number", [1, 3])
def test_a_hundred_classes_are_drawn_large(number: int) -> None:
    """At least three pixels for every cell, and names of some classes only."""
    classes = [f"class-{index}" for index in range(100)]
    shares = np.eye(100) * 0.5 + 0.005
    names = [f"m{index}" for index in range(number)]
    width, height = check(confusion_panels(dict.fromkeys(names, shares), classes))
    assert min(width / min(number, 2), height / -(-number // 2)) > 300 + 200


def test_same_picture_same_bytes() -> None:
    curves = {"none": {"Test group": CURVE}}
    assert learning_panels(curves, 0.3) == learning_panels(curves, 0.3)


def test_rank_rows_grow_with_methods() -> None:
    def ranks(number: int) -> dict[str, object]:
        names = [f"m{index}" for index in range(number)]
        average = dict(zip(names, np.linspace(1.5, number - 0.5, number).tolist(), strict=True))
        return {"average_ranks": average, "critical_difference": number / 2, "groups": [names[: number // 2 + 1]]}

    few, many = check(rank_rows(ranks(3))), check(rank_rows(ranks(39)))
    assert few[0] == many[0]
    assert many[1] > 3 * few[1]


@pytest.mark.parametrize("number", [2, 10, 30])
def test_speaker_lines_take_unknown_speakers(number: int) -> None:
    speakers = [f"S{index}" for index in range(number)]
    found = {"none": dict.fromkeys(speakers, 0.5), "mha": {speakers[0]: 0.7}, "empty": {}}
    check(speaker_lines(found, speakers, label="Accuracy"))


def test_importance_rows() -> None:
    rng = np.random.default_rng(0)
    shares = np.full(6, 100 / 6)
    maps = {name: ([1, 2, 3, 4, 5, 6], rng.random((6, 8)), rng.random((6, 8)), shares, shares) for name in ("a", "b")}
    check(importance_rows(maps))


@pytest.mark.parametrize("number", [1, 6])
def test_searches_and_gaps(number: int) -> None:
    names = [f"m{index} (undertrained)" for index in range(number)]
    candidates = [("lr 0.001", [0.5, 0.6, 0.7, 0.8], 3, 5), ("lr 0.01", [0.4], 2, 5), ("lr 0.1", [0.3, 0.2], 0, 5)]
    check(search_panels(dict.fromkeys(names, candidates)))
    check(gap_rows({name: [-0.1, 0.02][: index + 1] for index, name in enumerate(names)}, 0.02))
