"""The gallery: every pixel is where it belongs."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from daamctl.reporting.figure_gallery import GAP, LABEL, gallery


def test_pictures_stand_in_rows_enlarged_by_a_whole_factor() -> None:
    rng = np.random.default_rng(0)
    rows = {name: rng.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8) for name in ("original", "daam")}
    found = gallery(rows, "x.png", "two rows")
    page = np.asarray(Image.open(io.BytesIO(found.data)))
    cell = page.shape[0] // 2
    factor = (cell - GAP) // 8
    assert page.shape == (2 * cell, LABEL + 3 * cell, 3)
    for row, pictures in enumerate(rows.values()):
        for column, picture in enumerate(pictures):
            top, left = row * cell, LABEL + column * cell
            shown = page[top : top + 8 * factor : factor, left : left + 8 * factor : factor]
            np.testing.assert_array_equal(shown, picture)
    assert (page[:, :LABEL] < 128).any()  # names
