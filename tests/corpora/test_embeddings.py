"""Given embeddings: each format holds the same items, and every mistake is one clear line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from daamctl.corpora import vector_file
from daamctl.corpora.base import PREPARED_EMBEDDINGS
from daamctl.corpora.embeddings import facts, prepare
from daamctl.corpora.vector_file import open_vectors
from daamctl.errors import CorpusError
from tests.fixtures.given import DIM, LAYERS, items, write_items
from tests.fixtures.projects import REPOSITORY

SUFFIXES = (".npz", ".safetensors", ".parquet")
LAYERS_ARE = "'layers' must be 4 ascending whole numbers"
AXES_ARE = "'embeddings' must have the axes items, layers and features"


def refused(path: Path) -> str:
    """The message for a file, without its path."""
    with pytest.raises(CorpusError) as caught:
        prepare(path)
    assert caught.value.fix
    return caught.value.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")


def message(tmp_path: Path, suffix: str = ".npz", **changes: Any) -> str:
    return refused(write_items(tmp_path / f"x{suffix}", items(**changes)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_holds_the_same_items(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_file, "BLOCK_BYTES", 5 * LAYERS * DIM * 4)
    expected = items(layers=[0, 2, 5, 9], name="my encoder", licence="CC0")
    path = write_items(tmp_path / f"mine{suffix}", expected)
    rows = prepare(path)
    assert rows.schema == pl.Schema(PREPARED_EMBEDDINGS)
    for column, name in (("clip_id", "id"), ("utterance_id", "utterance"), ("label",) * 2, ("speaker",) * 2):
        assert rows[column].to_list() == expected[name]
    assert rows["index"].to_list() == list(range(24))
    file = open_vectors(path)
    blocks = list(file.blocks())
    assert len(blocks) == 5
    np.testing.assert_array_equal(np.concatenate(blocks), expected["embeddings"])
    told = facts(path)
    assert (told["layers"], told["embed_dim"], told["storage"]) == ([0, 2, 5, 9], DIM, "float32")
    assert (told["name"], told["source"], told["made_by"], told["licence"]) == (
        f"embeddings from mine{suffix}", path.name, "my encoder", "CC0",
    )  # fmt: skip
    assert len(told["sha256"]) == 64


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("given", "stored"), [("float16", "float16"), ("float64", "float32")])
def test_number_formats(tmp_path: Path, suffix: str, given: str, stored: str) -> None:
    found = items(embeddings=items()["embeddings"].astype(given))
    file = open_vectors(write_items(tmp_path / f"x{suffix}", found))
    (block,) = file.blocks()
    assert (file.dtype, file.storage, str(block.dtype)) == (given, stored, stored)
    np.testing.assert_array_equal(block, found["embeddings"].astype(stored))


def test_plain_lists_in_parquet(tmp_path: Path) -> None:
    found = items()
    frame = pl.DataFrame({"id": found["id"], "label": found["label"], "embeddings": found["embeddings"].tolist()})
    frame.write_parquet(tmp_path / "x.parquet")
    file = open_vectors(tmp_path / "x.parquet")
    assert (file.shape, file.dtype) == ((24, LAYERS, DIM), "float64")
    np.testing.assert_array_equal(np.concatenate(list(file.blocks())), found["embeddings"])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_folds_under_another_name_are_told(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    parts = [str(number % 3) for number in range(24)]
    rows = prepare(write_items(tmp_path / f"x{suffix}", items(group=None, fold=parts)))
    assert rows["group"].null_count() == 24
    told = "the column 'fold' is not used; if it tells the fold, or the training and test part, rename it 'group'"
    assert f"x{suffix}: {told}" in caplog.messages


def test_what_may_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = np.arange(24)
    rows = prepare(write_items(tmp_path / "x.npz", items(id=numbers, speaker=None, group=None, utterance=None)))
    assert rows["clip_id"].to_list() == rows["utterance_id"].to_list() == [str(one) for one in numbers]
    assert rows["speaker"].to_list() == rows["utterance_id"].to_list()
    assert rows["group"].null_count() == 24
    assert "x.npz has no column speaker: every utterance counts as its own speaker" in caplog.messages
    assert open_vectors(tmp_path / "x.npz").layers == (1, 2, 3, 4)


def test_official_split(tmp_path: Path) -> None:
    rows = prepare(write_items(tmp_path / "x.npz", items(group=["Train"] * 12 + ["val"] * 6 + ["test"] * 6)))
    assert rows["group"].unique(maintain_order=True).to_list() == ["train", "dev", "test"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"id": None}, "id is missing"),
        ({"id": None, "label": None}, "id is missing; label is missing"),
        ({"id": ["i0"] * 2 + [f"i{n}" for n in range(2, 24)]}, "1 ids occur more than once: i0"),
        ({"label": [" "] * 6 + ["b"] * 18}, "label is empty for item 0, 1, 2 and 3 more (from 0)"),
        ({"speaker": [f"s{n}" for n in range(24)]}, "the items of one utterance differ in their speaker: u0, u1, u2"),
        ({"layers": [3, 1, 2, 4]}, f"{LAYERS_ARE}, one for each layer of 'embeddings', got 3, 1, 2, 4"),
        ({"layers": [1, 2]}, LAYERS_ARE),
    ],
)  # fmt: skip
def test_faults_of_columns(tmp_path: Path, suffix: str, changes: dict[str, Any], expected: str) -> None:
    found = message(tmp_path, suffix, **changes)
    assert found.startswith(expected)
    assert "\n" not in found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_that_are_no_numbers(tmp_path: Path, suffix: str) -> None:
    vectors = items()["embeddings"].astype("float64")
    vectors[1, 2, 3], vectors[1, 0, 0], vectors[20, 3, 7] = np.nan, np.inf, 1e300
    assert message(tmp_path, suffix, embeddings=vectors) == (
        "3 vectors have values that are NaN, infinite or too large for float32: "
        "i1 (layer 1), i1 (layer 3), i20 (layer 4)"
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        (np.zeros((24, 8), "float32"), f"{AXES_ARE}, got shape (24, 8), so the axis of the layers is missing"),
        (np.zeros((24, 4, 8), "int32"), "'embeddings' holds int32, not float16, float32, float64"),
        (np.zeros((24, 2, 4, 8), "float32"), f"{AXES_ARE}, got shape (24, 2, 4, 8)"),
        (np.zeros((24, 0, 8), "float32"), "'embeddings' is empty, its shape is (24, 0, "),
    ],
)  # fmt: skip
def test_wrong_arrays(tmp_path: Path, suffix: str, vectors: np.ndarray, expected: str) -> None:
    found = message(tmp_path, suffix, embeddings=vectors)
    assert found.startswith(expected.replace("int32", "I32") if suffix == ".safetensors" else expected)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_columns_of_another_length(tmp_path: Path, suffix: str) -> None:
    found = message(tmp_path, suffix, label=["a"] * 23)
    assert found == "label has 23 values, 'embeddings' has 24 items"


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    found = message(tmp_path, id=["i0"] * 24, label=["", *["b"] * 23], group=["g"] * 23 + ["h"])
    assert found.splitlines() == [
        "label is empty for item 0 (from 0)",
        "    1 ids occur more than once: i0",
        "    the items of one utterance differ in their label: u0",
        "    the items of one utterance differ in their group: u11",
    ]


def test_rows_of_other_sizes_in_parquet(tmp_path: Path) -> None:
    one, path = [[0.0] * 3] * 2, tmp_path / "x.parquet"
    for cells, expected in (
        ([one, one, [[0.0] * 3, [0.0] * 4]], "item 2 (from 0) has 4 features, not 3"),
        ([one, None, one], "item 1 (from 0) has 0 layers, not 2"),
    ):
        pl.DataFrame({"id": ["a", "b", "c"], "label": ["x", "y", "x"], "embeddings": cells}).write_parquet(path)
        assert refused(path) == f"cannot be read: {expected}"


def test_files_that_are_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path / "none.npz").startswith("no file ")
    for suffix in (*SUFFIXES, ".pt"):
        (tmp_path / f"x{suffix}").write_bytes(b"something else, long enough to be read")
        found = refused(tmp_path / f"x{suffix}")
        assert found.startswith("is of an unknown kind (allowed: " if suffix == ".pt" else "cannot be read: ")
    np.savez(tmp_path / "x.npz", id=["a"], label=["b"], x=np.zeros((1, 2, 3)))
    assert refused(tmp_path / "x.npz") == "cannot be read: it has no array 'embeddings', only id, label, x"
    np.savez(tmp_path / "x.npz", id=np.array(["a", None], object), label=["x", "y"], embeddings=np.zeros((2, 2, 3)))
    assert refused(tmp_path / "x.npz").startswith("id: Python objects, not text; convert it with np.asarray")
    for label, kind in ((np.array([0.5, 1.5], np.float32), "float32"), (np.array([0.5, 1.5]), "float64")):
        np.savez(tmp_path / "x.npz", id=["a", "b"], label=label, embeddings=np.zeros((2, 2, 3)))
        told = f"label: {kind}, not text; numbers to predict become classes, e.g. low, middle and high"
        assert refused(tmp_path / "x.npz") == told
    path = tmp_path / "x.safetensors"
    for label, expected in (("joy", "not JSON"), ('{"a": 1}', "not a JSON list of texts")):
        save_file({"embeddings": np.zeros((1, 2, 3))}, path, {"id": '["a"]', "label": label})
        assert refused(path) == f"label: the entry of the metadata is {expected}"
    monkeypatch.setattr(vector_file, "free_memory", lambda: 100)
    assert " GB of memory, 0.0 GB are free" in message(tmp_path)


@pytest.mark.parametrize(
    ("local", "central", "value", "reason"),
    [(6, 8, 1, "is encrypted"), (8, 10, 97, "compression method is not supported")],
)
def test_members_of_npz_that_python_cannot_open(
    tmp_path: Path, local: int, central: int, value: int, reason: str
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, id=["a", "b"], label=["x", "y"], embeddings=np.zeros((2, 2, 3)))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        start = -1
        while (start := content.find(mark, start + 1)) >= 0:
            content[start + offset] = value
    path.write_bytes(content)
    found = refused(path)
    assert found.startswith("cannot be read: ")
    assert reason in found


def test_the_example_of_the_docs_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "embeddings.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)[0]
    assert len(code.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"json": json}
    exec(compile(code, "docs/embeddings.md", "exec"), given)
    given |= {"labels": given["labels"].tolist(), "speakers": given["speakers"].tolist()}
    others = re.findall(r"^    (.+)$", page, re.MULTILINE)
    exec(compile("\n".join(others), "docs/embeddings.md", "exec"), given)
    tables = [prepare(tmp_path / f"mine{suffix}") for suffix in SUFFIXES]
    assert tables[0].drop("path").equals(tables[1].drop("path"))
    assert tables[0].drop("path").equals(tables[2].drop("path"))
    assert tables[0]["label"].unique().sort().to_list() == ["anger", "joy", "neutral"]
