"""Vectors that other tools stored item by item: each layout gives the vectors that went into it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from daamctl.corpora.dumps import import_vectors
from daamctl.corpora.files import match_names
from daamctl.corpora.vector_file import open_vectors
from daamctl.errors import ArtifactError, CorpusError

LAYERS, WIDTH = 3, 8
IDS = [f"s{number % 2}/item{number}" for number in range(6)]


def states(number: int, *, layers: int = LAYERS) -> torch.Tensor:
    """Hidden states (L, T, D) of an item; T differs."""
    return torch.randn(layers, 4 + number, WIDTH, generator=torch.Generator().manual_seed(number))


MEANS = np.stack([states(number).mean(1).numpy() for number in range(6)])
LAST = np.stack([states(number)[:, -1].numpy() for number in range(6)])


def table(folder: Path, ids: list[str] = IDS, **more: list[str]) -> Path:
    path = folder / "items.csv"
    labels = ["joy", "anger", "joy"] * 2
    pl.DataFrame({"id": ids, "label": labels[: len(ids)], **more}).write_csv(path)
    return path


def written(path: Path) -> tuple[np.ndarray[Any, Any], pl.DataFrame, tuple[int, ...]]:
    file = open_vectors(path)
    return np.concatenate(list(file.blocks())), file.columns(), file.layers


@pytest.mark.parametrize("layout", ["a column of layers", "a column per layer", "one layer"])
def test_a_table_with_vectors(tmp_path: Path, layout: str) -> None:
    frame = pl.DataFrame({"id": IDS, "label": ["joy", "anger", "joy"] * 2, "tokens": [["a"], ["b", "c"]] * 3})
    if layout == "a column of layers":
        frame = frame.with_columns(states=pl.Series(MEANS.tolist()))
    elif layout == "a column per layer":
        frame = frame.with_columns(pl.Series(f"layer_{at}", MEANS[:, at].tolist()) for at in range(LAYERS))
    else:
        frame = frame.with_columns(
            embedding=pl.Series(MEANS[:, 0].astype(np.float16).tolist(), dtype=pl.Array(pl.Float32, WIDTH))
        )
    frame.write_parquet(tmp_path / "given.parquet")
    speakers = pl.DataFrame({"id": IDS, "speaker": [item[:2] for item in IDS]})
    speakers.write_csv(tmp_path / "speakers.csv")
    axes = "LD" if layout == "a column of layers" else None
    import_vectors(tmp_path / "given.parquet", tmp_path / "out.parquet", table=tmp_path / "speakers.csv", axes=axes)
    vectors, columns, layers = written(tmp_path / "out.parquet")
    expected = MEANS[:, :1] if layout == "one layer" else MEANS
    np.testing.assert_allclose(vectors, expected, atol=2e-3)
    assert layers == {"a column per layer": (0, 1, 2), "one layer": (1,)}.get(layout, (1, 2, 3))
    assert columns.rows(named=True)[0] == {"id": IDS[0], "label": "joy", "speaker": "s0"}


def test_a_table_without_vectors_or_names_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": IDS, "label": ["joy"] * 6, "v": MEANS[:, 0].tolist()})
    for wrong, message in (
        (frame.drop("v"), "neither a column of lists nor numbered columns, .*; it has id, label"),
        (frame.with_columns(id=pl.lit("a")), "no column id of different names; it has id, label, v"),
    ):
        wrong.write_parquet(tmp_path / "given.parquet")
        with pytest.raises(CorpusError, match=message):
            import_vectors(tmp_path / "given.parquet", tmp_path / "out.parquet")
    frame.with_columns(id=pl.lit("a")).write_parquet(tmp_path / "given.parquet")
    with pytest.raises(CorpusError) as caught:
        import_vectors(tmp_path / "given.parquet", tmp_path / "out.parquet")
    assert caught.value.fix is not None
    assert caught.value.fix.endswith("of several rows for an item, e.g. its frames, write one: their mean")
    frame.with_columns(v=pl.Series([[1.0]] * 5 + [None])).write_parquet(tmp_path / "given.parquet")
    with pytest.raises(CorpusError, match="is not one item"):
        import_vectors(tmp_path / "given.parquet", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def save(item: str, value: Any, root: Path) -> Path:
    path = root / item
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, value.numpy())
    elif path.suffix == ".npz":
        np.savez(path, **{name: one.numpy() for name, one in value.items()})
    elif path.suffix == ".safetensors":
        save_file({name: one.contiguous() for name, one in value.items()}, path)
    else:
        torch.save(value, path)
    return path


FOLDERS: dict[str, tuple[str, Any, tuple[int, ...]]] = {  # layout -> suffix, what an item holds, layers
    "time first, as vLLM": (
        ".safetensors",
        lambda found: {"hidden_states": found.transpose(0, 1), "token_ids": torch.arange(found.shape[1])},
        (1, 2, 3),
    ),
    "a list, as s3prl and transformers": (".pt", lambda found: [one[None] for one in found], (0, 1, 2)),
    "a named list": (".pt", lambda found: {"hidden_states": tuple(found), "len": 3}, (0, 1, 2)),
    "TransformerLens": (
        ".pt",
        lambda found: {
            "hook_embed": found[0, None],
            "blocks.0.hook_resid_pre": found[0, None],
            "blocks.0.attn.hook_q": found[0, None],
            "blocks.0.hook_resid_post": found[1, None],
            "blocks.4.hook_resid_post": found[2, None],
        },
        (0, 1, 5),
    ),
    "modules": (".npz", lambda found: {f"model.layers.{at}": one for at, one in enumerate(found)}, (1, 2, 3)),
    "hidden states by name": (
        ".safetensors",
        lambda found: {f"hidden_states_{at}": one for at, one in enumerate(found)},
        (0, 1, 2),
    ),
    "one array": (".npy", lambda found: found, (1, 2, 3)),
    "one array with the axis of a batch": (".npy", lambda found: found[:, None], (1, 2, 3)),
    "one array, features before time": (".npy", lambda found: found.transpose(1, 2), (1, 2, 3)),
}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize(
    ("form", "kept", "layers"),
    [
        ("layer_{layer}_{feature}", [0, 1, 2], [2, 3, 12]),
        ("h.{layer}.{feature}", [0, 1, 2], [3, 4, 13]),  # modules, which give the state after them
        ("emb{feature}", [2], [1]),
        ("{feature}", [2], [1]),
        ("Feature {feature}", [2], [1]),
    ],
)
def test_a_column_for_each_feature(suffix: str, form: str, kept: list[int], layers: list[int], tmp_path: Path) -> None:
    """Other numbers, and numbered columns of another kind, are no features."""
    states = np.random.default_rng(0).standard_normal((6, 3, 5)).round(3)
    columns = {"file": [f"a{row}.wav" for row in range(6)], "emotion": list("ababab"), "age": list(range(20, 26))}
    columns |= {f"pose_{index}": [1.0] * 6 for index in range(4)}
    for place, layer in enumerate((2, 3, 12)):
        for feature in (4, 0, 1, 3, 2):  # in any order
            columns[form.format(layer=layer, feature=feature)] = states[:, place, feature].tolist()
    frame, path = pl.DataFrame(columns), tmp_path / f"given{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if suffix == ".csv" else "\t")
    import_vectors(path, tmp_path / "out.parquet")
    vectors, rows, numbers = written(tmp_path / "out.parquet")
    np.testing.assert_allclose(vectors, states[:, kept], atol=1e-6)
    assert list(numbers) == layers
    assert rows["id"].to_list() == columns["file"]
    assert rows["label"].to_list() == columns["emotion"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"f0": [1.0], "f1": [2.0], "f2": [3.0]}, "has neither a column of lists nor numbered columns"),  # too few
        ({f"f{index}": [1.0] for index in (0, 1, 2, 4, 5)}, "nor numbered columns, as feat_0, feat_1, without gaps"),
        ({f"f{index}": ["x"] for index in range(5)}, "nor numbered columns"),
        ({f"f{index}": [None] for index in range(5)}, "nor numbered columns"),
    ],
)
def test_columns_that_are_no_features(columns: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    pl.DataFrame({"id": ["a"], "label": ["x"], **columns}).write_csv(tmp_path / "given.csv")
    with pytest.raises(CorpusError, match=message):
        import_vectors(tmp_path / "given.csv", tmp_path / "out.parquet")


@pytest.mark.parametrize("empty", [None, "NA"])
def test_a_numbered_feature_without_a_value_is_refused(empty: str | None, tmp_path: Path) -> None:
    states = np.random.default_rng(0).standard_normal((6, 12))
    frame = pl.DataFrame(states, [f"feat_{index}" for index in range(12)]).cast(pl.String)
    frame = frame.with_columns(feat_5=pl.Series([*frame["feat_5"][:2], empty, *frame["feat_5"][3:]]))
    frame.with_columns(id=pl.Series(IDS[:6]), label=pl.lit("x")).write_csv(tmp_path / "given.csv")
    with pytest.raises(CorpusError, match=rf"given\.csv: feat_5 has no number for 1 of 6 items, e\.g\. '{IDS[2]}'"):
        import_vectors(tmp_path / "given.csv", tmp_path / "out.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("numbered", [0, 5])
def test_columns_of_decimals_with_names_of_their_own(
    suffix: str, numbered: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As openSMILE writes them: a few names end in numbers, but these alone are no vector."""
    caplog.set_level("INFO", "daamctl")
    states = np.random.default_rng(0).standard_normal((6, 12)).round(3)
    names = [f"F0_{part}_percentile{place}.0" for place in (20, 50, 80) for part in "abcd"]
    names[:numbered] = [f"sma_lpc{place}" for place in range(numbered)]
    columns: dict[str, Any] = {
        "file": [f"/wav/item{row}.wav" for row in range(6)], "start": [0.5] * 6, "end": [2.25] * 6,
        "emotion_id": [0, 1] * 3, "EmoVal": [3.5, 1.25] * 3, "spoken": ["a"] * 6, "jitter": [0.5, None] * 3,
    }  # fmt: skip
    frame = pl.DataFrame(columns | dict(zip(names, states.T.tolist(), strict=True)))
    path = tmp_path / f"egemaps{suffix}"
    frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    labels = table(tmp_path, IDS[1:5])  # which lists four of the six items
    found = import_vectors(path, tmp_path / "out.parquet", table=labels)
    vectors, rows, _ = written(tmp_path / "out.parquet")
    np.testing.assert_allclose(vectors[:, 0], states[1:5], atol=1e-6)
    assert rows["id"].to_list() == columns["file"][1:5]
    assert (found.shape, found.unlisted) == ((4, 1, 12), 2)
    assert f"a vector is the 12 columns of decimals, {', '.join(names[:3])} and 9 more; left out: " in caplog.text
    assert "left out: start, end, emotion_id, EmoVal, spoken and 1 more" in caplog.text


ARFF = """% made by hand, as Weka writes it
@relation 'two items'

@attribute name string
@attribute 'a note' {'it\\'s, odd',plain}
{features}
@attribute class {{joy,anger}}

@data
% a comment
'x.wav','it\\'s, odd',0.5,1.5,2.5,3.5,4.5,5.5,6.5,7.5,?,joy

y.wav,plain,0.25,1.25,2.25,3.25,4.25,5.25,6.25,7.25,1.5,anger
"""


def test_columns_of_text_that_are_not_used_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daamctl")
    features = {f"feat_{at}": MEANS[:, 0, at] for at in range(WIDTH)}
    rows = {"id": IDS, "label": ["joy", "anger"] * 3, "writer": list("abcabc"), "mood_of": list("defdef"), **features}
    pl.DataFrame(rows).write_csv(tmp_path / "given.csv")
    import_vectors(tmp_path / "given.csv", tmp_path / "out.parquet")
    assert written(tmp_path / "out.parquet")[1]["speaker"].to_list() == list("abcabc")
    assert "given.csv: the column mood_of is not used; one that tells who an item comes from" in caplog.text


@pytest.mark.parametrize("name", ["groups", "speakers"])
@pytest.mark.parametrize("form", ["given.npz", "given.csv", "--table"])
def test_groups_of_scikit_learn_are_sources(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, form: str
) -> None:
    caplog.set_level("INFO", "daamctl")
    beside: dict[str, Any] = {"ids": np.array(IDS), "y": np.array(["joy", "anger"] * 3), "age": np.arange(6)}
    columns = beside | {name: np.arange(6) // 2}
    features = {f"feat_{at}": MEANS[:, 0, at] for at in range(WIDTH)}
    given, labels = tmp_path / form, None
    if form == "given.csv":
        pl.DataFrame(columns | features).write_csv(given)
    else:
        given = tmp_path / "given.npz"
        np.savez(given, X=MEANS[:, 0], **(columns if form == "given.npz" else beside))
    if form == "--table":
        labels = table(tmp_path, **{name: list("aabbcc")})
    import_vectors(given, tmp_path / "out.parquet", table=labels, axes="D")
    found = written(tmp_path / "out.parquet")[1]
    assert found["speaker"].to_list() == (list("aabbcc") if labels else list("001122"))
    assert f"'{name}' tells who an item comes from" in caplog.text
    one = "column" if form == "given.csv" else "array"
    assert f"the {one} age is not used; one that tells who an item comes from must be named speaker" in caplog.text


def test_ids_name_the_items_of_arrays_rather_than_files(tmp_path: Path) -> None:
    files = np.array(["a.wav", "b.wav"]).repeat(3)  # of pieces of recordings
    np.savez(tmp_path / "given.npz", X=MEANS[:, 0], filename=files, ids=np.array(IDS), y=files)
    import_vectors(tmp_path / "given.npz", tmp_path / "out.parquet", axes="D")
    assert written(tmp_path / "out.parquet")[1]["id"].to_list() == IDS
    columns = {"ids": files, "label": files, **{f"feat_{at}": MEANS[:, 0, at] for at in range(WIDTH)}}
    pl.DataFrame(columns).write_csv(tmp_path / "given.csv")
    import_vectors(tmp_path / "given.csv", tmp_path / "out.parquet")
    assert written(tmp_path / "out.parquet")[1]["id"][0] == "item-000001"


def test_no_other_file_is_overwritten(tmp_path: Path) -> None:
    np.savez(tmp_path / "given.npz", X=MEANS[:, 0], ids=np.array(IDS))
    labels = tmp_path / "labels.parquet"
    pl.read_csv(table(tmp_path)).with_columns(age=30).write_parquet(labels)
    other = tmp_path / "other.parquet"
    pl.DataFrame({"id": ["a"], "embeddings": [[[1.0]]]}).write_parquet(other)
    for out, told in ((labels, "is what is read"), (other, "exists and is not a file that import-vectors wrote")):
        before = out.read_bytes()
        with pytest.raises(ArtifactError, match=f"^{out} {told}\n  choose another file with --out$"):
            import_vectors(tmp_path / "given.npz", out, table=labels, axes="D")
        assert out.read_bytes() == before
    for _ in range(2):
        import_vectors(tmp_path / "given.npz", tmp_path / "out.parquet", table=labels, axes="D")
    with pytest.raises(ArtifactError, match="is what is read"):
        import_vectors(tmp_path / "out.parquet", tmp_path / "out.parquet")


def test_a_table_of_weka(tmp_path: Path) -> None:
    names = "\n".join(f"@ATTRIBUTE F0_{letter} numeric" for letter in "abcdefghi")
    path = tmp_path / "features.arff"
    path.write_text(ARFF.replace("{features}", names).replace("{{", "{").replace("}}", "}"))
    import_vectors(path, tmp_path / "out.parquet")
    vectors, rows, _ = written(tmp_path / "out.parquet")
    assert rows.select("id", "label").rows() == [("x.wav", "joy"), ("y.wav", "anger")]
    np.testing.assert_allclose(vectors[:, 0], [np.arange(8) + 0.5, np.arange(8) + 0.25])  # without the gap
    for wrong in ("", "@relation x\n@attribute a numeric\n", "@attribute a numeric\n@data\n{0 1.5}, 2\n"):
        path.write_text(wrong)
        with pytest.raises(CorpusError, match=r"features\.arff cannot be read: need different names of columns"):
            import_vectors(path, tmp_path / "out.parquet")


def test_a_table_of_weka_that_is_no_text(tmp_path: Path) -> None:
    for content, words in (
        (b"\x80@attribute a numeric\n@data\n1\n", "it is not UTF-8"),
        (b"@attribute a string\n@data\n'" + b"x" * 140_000 + b"'\n", "need different names of columns"),
    ):
        (tmp_path / "bad.arff").write_bytes(content)
        with pytest.raises(CorpusError, match=words):
            import_vectors(tmp_path / "bad.arff", tmp_path / "out.parquet")


def test_the_file_of_smilextract(tmp_path: Path) -> None:
    """Its names are quoted as in Weka's files, and its columns are separated by semicolons."""
    lines = [";".join(["name", "frameTime", *(f"F0_{letter}" for letter in "abcdefgh")])]
    lines += [";".join([f"'{item}.wav'", "0.0", *(f"{row}.{place}" for place in range(1, 9))])
              for row, item in enumerate(IDS)]  # fmt: skip
    (tmp_path / "out.csv").write_text("\n".join(lines) + "\n")
    import_vectors(tmp_path / "out.csv", tmp_path / "out.parquet", table=table(tmp_path))
    vectors, rows, _ = written(tmp_path / "out.parquet")
    assert rows["id"].to_list() == [f"{item}.wav" for item in IDS]
    np.testing.assert_allclose(vectors[1, 0], [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8], atol=1e-6)


@pytest.mark.parametrize("layout", FOLDERS)
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_a_folder_with_a_file_per_item(tmp_path: Path, layout: str, pool: Any) -> None:
    suffix, form, layers = FOLDERS[layout]
    for number, item in enumerate(IDS):
        save(f"{item}{suffix}", form(states(number)), tmp_path / "dump")
    save(f"other{suffix}", form(states(9)), tmp_path / "dump")
    speakers = [item[:2] for item in IDS]
    out = tmp_path / "mine.parquet"
    found = import_vectors(tmp_path / "dump", out, table=table(tmp_path, speaker=speakers), pool=pool, name="mine")
    vectors, rows, numbers = written(out)
    np.testing.assert_allclose(vectors, MEANS if pool == "mean" else LAST, atol=1e-6)
    assert (found.shape, found.steps, found.unlisted) == ((6, LAYERS, WIDTH), (4, 9), 1)
    assert found.layers == numbers == layers
    assert rows["id"].to_list() == IDS
    assert rows["speaker"].to_list() == speakers
    assert open_vectors(out).facts()["made_by"] == "mine"


def test_json_beside_the_files_says_what_items_are(tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    told: list[dict[str, Any]] = [
        {"emotion": "joy", "speaker_id": 3, "length": 1.5, "words": ["a"]}, {"emotion": "fear", "speaker_id": 4}
    ]  # fmt: skip
    folder.mkdir()
    for item, facts in zip("ab", told, strict=True):
        np.save(folder / f"{item}.npy", np.ones((5, 8), dtype=np.float32))
        (folder / f"{item}.json").write_text(json.dumps(facts), encoding="utf-8")
    out = tmp_path / "vectors.parquet"
    import_vectors(folder, out, axes="TD")
    _, rows, _ = written(out)
    assert rows.select("id", "label", "speaker").rows() == [("a", "joy", "3"), ("b", "fear", "4")]
    import_vectors(folder, out, axes="TD", table=table(tmp_path, ["a", "b"]))
    assert written(out)[1].rows() == [("a", "joy"), ("b", "anger")]  # the table alone counts
    (folder / "b.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(CorpusError, match="does not tell the labels"):
        import_vectors(folder, out, axes="TD")
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        archive.add(folder, "shard")
    with pytest.raises(CorpusError, match=r"shard\.tar is an archive") as error:
        import_vectors(tmp_path / "shard.tar", out)
    assert "tar -xf" in str(error.value.fix)


def test_one_file_with_an_entry_per_item(tmp_path: Path) -> None:
    pooled = {item: torch.from_numpy(one) for item, one in zip(IDS, MEANS, strict=True)}
    for suffix in (".pt", ".safetensors"):
        dump = save(f"all{suffix}", pooled, tmp_path)
        ids = [f"{item.rsplit('/', 1)[-1]}.wav" for item in reversed(IDS)]  # file names, in another order
        found = import_vectors(dump, tmp_path / "mine.parquet", table=table(tmp_path, ids), axes="LD")
        vectors, rows, _ = written(tmp_path / "mine.parquet")
        np.testing.assert_allclose(vectors, MEANS[::-1], atol=1e-6)
        assert rows["id"].to_list() == IDS[::-1]
        assert found.steps is None


def test_bfloat16_and_layer_numbers(tmp_path: Path) -> None:
    dump = save("all.safetensors", {item: states(at).bfloat16() for at, item in enumerate(IDS)}, tmp_path)
    found = import_vectors(dump, tmp_path / "mine.parquet", table=table(tmp_path), layers=[2, 10, 24])
    assert found.layers == (2, 10, 24)
    np.testing.assert_allclose(written(tmp_path / "mine.parquet")[0], MEANS, atol=0.02)


def hear(root: Path, **facts: str) -> Path:
    told = {"embedding_type": "scene", "prediction_type": "multiclass", "splits": ["train", "valid", "test"], **facts}
    root.mkdir()
    (root / "task_metadata.json").write_text(json.dumps(told))
    for number, item in enumerate(IDS):
        split = told["splits"][number % 3]
        file = root / split / f"{Path(item).name}.wav"
        file.parent.mkdir(exist_ok=True)
        np.save(f"{file}.embedding.npy", MEANS[number, 0])
        Path(f"{file}.target-labels.json").write_text(json.dumps(["joy" if number % 2 else "anger"]))
    return root


def test_a_task_of_hear_knows_its_labels_and_its_split(tmp_path: Path) -> None:
    found = import_vectors(hear(tmp_path / "task"), tmp_path / "mine.parquet")
    vectors, rows, _ = written(tmp_path / "mine.parquet")
    assert (found.axes, found.shape) == ("D", (6, 1, WIDTH))
    by_item = dict(zip(rows["id"], zip(rows["label"], rows["group"], vectors[:, 0], strict=True), strict=True))
    label, group, vector = by_item["valid/item4.wav"]
    assert (label, group) == ("anger", "valid")
    np.testing.assert_allclose(vector, MEANS[4, 0])
    speakers = table(tmp_path, [f"item{number}.wav" for number in range(6)], speaker=list("abcdef"))
    import_vectors(tmp_path / "task", tmp_path / "mine.parquet", table=speakers)
    rows = written(tmp_path / "mine.parquet")[1]
    assert rows.filter(pl.col("id") == "valid/item4.wav").rows() == [("valid/item4.wav", "anger", "e", "valid")]


def test_other_tasks_of_hear_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="of the kind event, multilabel"):
        import_vectors(
            hear(tmp_path / "task", embedding_type="event", prediction_type="multilabel"), tmp_path / "mine.parquet"
        )
    (tmp_path / "task" / "task_metadata.json").write_text('{"embedding_type": "scene"}')
    with pytest.raises(CorpusError, match=r"task_metadata\.json names no splits"):
        import_vectors(tmp_path / "task", tmp_path / "mine.parquet")


def refused(tmp_path: Path, value: Any, suffix: str = ".pt", **options: Any) -> CorpusError:
    """The error for a dump in which every item is this value."""
    for item in IDS:
        save(f"{item}{suffix}", value, tmp_path / "dump")
    out = tmp_path / "mine.parquet"
    with pytest.raises(CorpusError) as caught:
        import_vectors(tmp_path / "dump", out, **{"table": table(tmp_path), **options})
    assert not out.exists()
    return caught.value


def test_axes_that_cannot_be_told_are_asked_for(tmp_path: Path) -> None:
    error = refused(tmp_path, states(0)[0], ".npy")
    assert "does not tell which axes are layers (L), time (T) and features (D); an item has the shape (4, 8)" in str(
        error
    )
    assert error.fix == "say it: --axes LD or TD or DT"


def test_equally_long_items_of_a_serving_engine_need_no_axes(tmp_path: Path) -> None:
    value = torch.stack([states(0), states(0) + 1])[0].transpose(0, 1).contiguous()  # (T, L, D)
    told = {"hidden_states": value, "token_ids": torch.arange(len(value))}
    for item in IDS:
        save(f"{item}.pt", told, tmp_path / "dump")
    import_vectors(tmp_path / "dump", tmp_path / "mine.parquet", table=table(tmp_path))
    vectors, _, layers = written(tmp_path / "mine.parquet")
    assert layers == (1, 2, 3)
    assert np.allclose(vectors[0], value.mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (states(0), {"axes": "XY"}, "unknown axes XY"),
        (states(0), {"axes": "TD"}, r"has the shape (3, 4, 8), not the axes TD"),
        (states(0)[:, :0], {"axes": "LTD"}, r"has the shape (3, 0, 8)"),
        (states(0), {"axes": "LTD", "layers": [1, 2]}, "has 3 layers of 8 features, expected"),
        ({"a": states(0), "b": states(0)}, {}, "is not one item"),
        ([states(0), states(1)], {}, "is not one item"),
        ([torch.zeros(2, 3, 4)], {}, "is not one item"),
        ("text", {}, "is not one item"),
        ({"a.layers.0": states(0), "b.layers.0": states(0)}, {}, "'a.layers.0' and 'b.layers.0' are both layer 1"),
        (states(0), {"out": Path("x.csv")}, "must be a .parquet file"),
        (states(0), {"table": None}, "does not tell the labels"),
        (states(0), {"axes": "LTD", "layers": [3, 2, 1]}, "the layers must ascend, got 3, 2, 1"),
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused(tmp_path: Path, value: Any, options: dict[str, Any], words: str) -> None:
    out = options.pop("out", None)
    if out is not None:
        with pytest.raises(CorpusError, match=words):
            import_vectors(tmp_path, out)
        return
    assert words in str(refused(tmp_path, value, **options))


def test_items_that_differ_are_refused(tmp_path: Path) -> None:
    for number, item in enumerate(IDS):
        save(f"{item}.npy", states(number, layers=2 + (number == 5)), tmp_path / "dump")
    with pytest.raises(
        CorpusError, match="item5 has 3 layers of 8 features, expected are 8 features of the layers 1, 2"
    ):
        import_vectors(tmp_path / "dump", tmp_path / "mine.parquet", table=table(tmp_path), axes="LTD")


def test_ids_must_fit(tmp_path: Path) -> None:
    dump = save("all.pt", {"a/x": states(0), "b/x": states(1), "y": states(2)}, tmp_path)
    for ids, words in ((["x", "y"], "1 of 2 name no item, or several: x"), (["y", "y.wav"], "some occur twice")):
        with pytest.raises(CorpusError, match=words):
            import_vectors(dump, tmp_path / "mine.parquet", table=table(tmp_path, ids))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    torch.save({"x": Path("x")}, tmp_path / "all.pt")  # an object, not a tensor
    (tmp_path / "all.npy").write_bytes(b"no array")
    with pytest.raises(CorpusError, match="cannot be read") as caught:
        import_vectors(tmp_path / "all.pt", tmp_path / "mine.parquet")
    assert caught.value.fix is not None
    assert "torch.save(dict(cache), path)" in caught.value.fix
    (tmp_path / "all.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CorpusError, match="cannot be read") as caught:
        import_vectors(tmp_path / "all.safetensors", tmp_path / "mine.parquet")
    assert caught.value.fix is None  # not how to store what was pickled
    np.savez(tmp_path / "nothing.npz")
    with pytest.raises(CorpusError, match=r"nothing\.npz does not name its items"):
        import_vectors(tmp_path / "nothing.npz", tmp_path / "mine.parquet")
    (tmp_path / "noid.csv").write_text("name,label\nx,a\n")
    save("dump/x.npy", states(0), tmp_path)
    with pytest.raises(CorpusError, match=r"noid.csv has no column id; it has name, label"):
        import_vectors(tmp_path / "dump", tmp_path / "mine.parquet", table=tmp_path / "noid.csv")
    with pytest.raises(CorpusError, match="it is damaged, or holds more than arrays"):
        import_vectors(tmp_path / "all.npy", tmp_path / "mine.parquet")
    with pytest.raises(CorpusError, match="does not exist"):
        import_vectors(tmp_path / "none.pt", tmp_path / "mine.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="has no files"):
        import_vectors(tmp_path / "empty", tmp_path / "mine.parquet")


LABELS = ["joy", "anger", "joy"] * 2
FLAT: np.ndarray[Any, Any] = MEANS[:, 0]


@pytest.mark.parametrize(
    ("save_all", "shape"),
    [
        (lambda path: np.savez(path / "all.npz", X=FLAT, y=np.array([1, 0, 1] * 2)), (6, 1, WIDTH)),
        (lambda path: np.savez(path / "all.npz", features=FLAT, labels=np.array(LABELS)[:, None]), (6, 1, WIDTH)),
        (lambda path: np.savez(path / "all.npz", layer_0=FLAT, layer_1=FLAT, target=np.array(LABELS)), (6, 2, WIDTH)),
        (lambda path: np.savez(path / "all.npz", hidden_states=MEANS, label=np.array(LABELS)), (6, LAYERS, WIDTH)),
        (
            lambda path: torch.save(
                {"embeddings": torch.tensor(FLAT), "labels": torch.tensor([1, 0, 1] * 2), "ids": IDS}, path / "all.pt"
            ),
            (6, 1, WIDTH),
        ),
    ],
)
def test_arrays_of_all_items(tmp_path: Path, save_all: Any, shape: tuple[int, ...]) -> None:
    save_all(tmp_path)
    (source,) = tmp_path.iterdir()
    import_vectors(source, tmp_path / "out.parquet", axes="LD" if shape[1] == LAYERS else None)
    vectors, columns, layers = written(tmp_path / "out.parquet")
    np.testing.assert_allclose(vectors, MEANS if shape[1] == LAYERS else np.repeat(MEANS[:, :1], shape[1], axis=1))
    assert columns["label"].n_unique() == 2
    assert set(columns["label"]) <= {"joy", "anger", "1", "0"}
    assert columns["id"].to_list() == (IDS if source.suffix == ".pt" else [f"item-{at:06d}" for at in range(1, 7)])
    assert layers == ((0, 1) if shape[1] == 2 else tuple(range(1, shape[1] + 1)))


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_rows_of_a_table_name_the_rows_of_an_array(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / f"all{suffix}"
    np.save(source, FLAT) if suffix == ".npy" else torch.save(torch.tensor(FLAT), source)
    with caplog.at_level("INFO"):
        import_vectors(source, tmp_path / "out.parquet", table=table(tmp_path))
    vectors, columns, _ = written(tmp_path / "out.parquet")
    np.testing.assert_allclose(vectors[:, 0], FLAT)
    assert (columns["id"].to_list(), columns["label"].to_list()) == (IDS, LABELS)
    assert "the rows of" in caplog.text
    with pytest.raises(CorpusError, match=r"has 6 items without names, and .*items\.csv 5 rows"):
        import_vectors(source, tmp_path / "out.parquet", table=table(tmp_path, IDS[:5]))
    with pytest.raises(CorpusError, match="does not tell the labels") as caught:
        import_vectors(source, tmp_path / "out.parquet")
    assert "a row for each item in the same order" in str(caught.value)


def test_an_id_of_one_part_means_no_item_of_another() -> None:
    names = ["train/0", "train/1", "wav/2.wav"]
    assert match_names(["test/0", "train/1", "1", "test/2"], names) == [None, "train/1", "train/1", "wav/2.wav"]
    assert match_names(["train/a.wav"], ["/data/corpus-train/a"]) == ["/data/corpus-train/a"]


def test_two_items_of_one_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", X=FLAT, y=np.array(LABELS), ids=np.array(["a"] * 6))
    with pytest.raises(CorpusError, match="two items of the arrays have the same id"):
        import_vectors(tmp_path / "all.npz", tmp_path / "out.parquet")


@pytest.mark.parametrize("form", ["json lines", "json", "text in csv"])
def test_vectors_in_the_rows_of_a_text_file(tmp_path: Path, form: str) -> None:
    rows = [{"Text": f"text {at}", "category": LABELS[at], "embedding": FLAT[at].tolist()} for at in range(6)]
    source = tmp_path / {"json lines": "all.jsonl", "json": "all.json", "text in csv": "all.csv"}[form]
    if form == "json lines":
        source.write_text("\n".join(map(json.dumps, rows)))
    elif form == "json":
        source.write_text(json.dumps(rows))
    else:  # as pandas writes them
        pl.DataFrame([{**row, "embedding": str(row["embedding"])} for row in rows]).write_csv(source)
    import_vectors(source, tmp_path / "out.parquet")
    vectors, columns, _ = written(tmp_path / "out.parquet")
    np.testing.assert_allclose(vectors[:, 0], FLAT, rtol=1e-6)
    assert columns["label"].to_list() == LABELS
    assert columns["id"][5] == "item-000006"


def test_answers_of_a_batch(tmp_path: Path) -> None:
    """As OpenAI's batches return them, in any order."""
    source = tmp_path / "answers.jsonl"
    lines = [
        {
            "custom_id": name,
            "response": {"status_code": 200, "body": {"data": [{"index": 0, "embedding": one.tolist()}]}},
        }
        for name, one in zip(IDS[::-1], FLAT[::-1], strict=True)
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    import_vectors(source, tmp_path / "out.parquet", table=table(tmp_path))
    vectors, columns, _ = written(tmp_path / "out.parquet")
    found = dict(zip(columns["id"], columns["label"], strict=True))
    assert found == dict(zip(IDS, LABELS, strict=True))
    np.testing.assert_allclose(vectors[columns["id"].to_list().index(IDS[0]), 0], FLAT[0], rtol=1e-6)
    failed = {"custom_id": "x", "response": {"status_code": 429, "body": None}}
    source.write_text("\n".join(map(json.dumps, [*lines, failed])))
    with pytest.raises(CorpusError, match=r"answers\.jsonl: a row has no vector"):
        import_vectors(source, tmp_path / "out.parquet", table=table(tmp_path))


def test_a_text_that_is_no_vector(tmp_path: Path) -> None:
    pl.DataFrame({"id": ["a", "b"], "label": ["x", "y"], "v": ["[1, 2]", "[1, 2"]}).write_csv(tmp_path / "all.csv")
    with pytest.raises(CorpusError, match=r"all\.csv: a row has no vector"):
        import_vectors(tmp_path / "all.csv", tmp_path / "out.parquet")


def test_lists_under_the_name_of_a_label_are_vectors(tmp_path: Path) -> None:
    pl.DataFrame({"id": ["a", "b"], "label": ["x", "y"], "fold": [[1.0, 2.0], [3.0, 4.0]]}).write_parquet(
        tmp_path / "all.parquet"
    )
    import_vectors(tmp_path / "all.parquet", tmp_path / "out.parquet")
    vectors, columns, _ = written(tmp_path / "out.parquet")
    assert vectors[:, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert columns["label"].to_list() == ["x", "y"]
