"""The table of results on sets of layers, its record, and what follows from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daamctl.artifacts import audit
from daamctl.artifacts.layer_sets import ABLATION, TABLE, find_ablation, write_layer_sets, write_rows
from daamctl.errors import ArtifactError
from tests.fixtures.records import ablation_of
from tests.fixtures.truncations import row, truncation


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    found = ablation_of({"all": ((1, 2), 0.5), "layers-2": ((2,), 0.25)}, marks={"layers-2": "undertrained"})
    write_layer_sets(tmp_path / "ablate" / "toy" / ABLATION, found, ())
    folder = tmp_path / "ablate" / "toy"
    read = find_ablation(folder)
    assert read is not None
    assert replace(read, files={}, tests=()) == found
    assert set(read.files) == {TABLE, audit.TABLE}
    assert (read.sets, read.runs("layers-2")[2, 1], read.probed("all")[5, 1]) == ({"layers-2": (2,)}, 0.25, 0.51)
    write_rows(folder, "toy", read.rows[1:])
    with pytest.raises(ArtifactError, match=r"layers.parquet is damaged or from elsewhere") as error:
        find_ablation(folder)
    assert error.value.path == folder / TABLE


@pytest.mark.parametrize(
    ("p_values", "enough", "shortest"),
    [
        # of layers 1 to 3, then 1 to 2, then 1
        ([0.01, 0.05, 0.2], [True, True, False], 2),
        ([0.01, 0.2, 0.01], [True, False], 3),  # what passes behind the first failure does not count
        ([0.06, 0.01, 0.01], [False], None),
        ([0.01, None, 0.01], [True], 3),
        ([None, None, None], [], None),
        ([0.01, 0.01, 0.01], [True, True, True], 1),
    ],
)
def test_prefixes_are_tested_until_the_first_that_fails(
    p_values: list[float | None], enough: list[bool], shortest: int | None
) -> None:
    rows = [row(*range(1, 4 - i), p=p) for i, p in enumerate(p_values)]
    found = truncation(rows=[row(1, 2, 3, 4), *rows])
    assert list(found.enough.values()) == enough
    assert (found.shortest and found.shortest.layers[-1]) == shortest
