"""Stage and command `preflight` on synthetic embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from daamctl.artifacts.clips import ClipTable, write_clips
from daamctl.artifacts.embeddings import EmbeddingsMetadata, shard_path, write_head, write_shard
from daamctl.artifacts.layout import Layout
from daamctl.cli.app import app
from daamctl.config import Config, load_config
from daamctl.config.keys import embedding_settings
from daamctl.corpora.images import write_images
from daamctl.corpora.sources import register
from daamctl.data.spans import word_id
from daamctl.errors import ArtifactError
from daamctl.planning.repair import repair_of
from daamctl.stages import preflight
from tests.fixtures.embeddings import CLASSES, write_embeddings

EMBED_DIM = 12
TAGS = ("B-place", "I-place", "O")
SENTENCE = ["O", "O", "O", "B-place", "I-place", "O", "O", "O", "O", "O"]


def make_set(kind: str = "one", *, groups: int = 5, utterances: int = 48, layers: int = 4) -> Any:
    """Clips and vectors: one clip per utterance, two speakers per group.

    Args:
        kind: one: layer 2 tells all classes apart; parts: each layer tells one class from the rest, so only all of them
            together do; none: no layer knows anything.
    """
    rng = np.random.default_rng(0)
    number = groups * utterances
    target, group = np.arange(number) % len(CLASSES), np.arange(number) // utterances
    clips = pl.DataFrame(
        {
            "clip_id": [f"u{i}#000" for i in range(number)],
            "utterance_id": [f"u{i}" for i in range(number)],
            "label": [CLASSES[t] for t in target],
            "speaker": [f"s{2 * g + (i // 4) % 2}" for i, g in enumerate(group)],
            "group": [f"group{g + 1}" for g in group],
            "duration_s": np.full(number, 5.0),
        }
    )
    vectors = rng.standard_normal((number, layers, EMBED_DIM))
    if kind == "one":
        vectors[:, 1] += 3 * rng.standard_normal((len(CLASSES), EMBED_DIM))[target]
    if kind == "parts":
        for layer in range(layers):
            vectors[:, layer, layer] += 4.0 * (target == layer)
    return clips, vectors.astype(np.float16)


def write(
    layout: Layout, config: Config, clips: pl.DataFrame, vectors: np.ndarray, modality: str = "speech", **encoder: Any
) -> None:
    classes = TAGS if modality == "tokens" else CLASSES
    layers = tuple(range(1, vectors.shape[1] + 1))
    head = {"key": "test", "unreadable": 0}
    folder = layout.embeddings
    write_shard(shard_path(folder, 0), clips, np.full(len(clips), 49), vectors, layers, head)
    write_head(
        folder,
        EmbeddingsMetadata(
            key="test",
            corpus="demo",
            classes=classes,
            layers=layers,
            embed_dim=vectors.shape[2],
            encoder={"name": "wavlm-micro", **encoder},
            settings=embedding_settings(config, modality),
            num_clips=len(clips),
            modality=modality,
        ),
        clips,
    )


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "toy", "toy", "toy")


def result_of(layout: Layout, clips: pl.DataFrame, vectors: np.ndarray, **settings: Any) -> Any:
    config = Config.model_validate(settings)
    write(layout, config, clips, vectors)
    path = preflight.run(layout, config)
    assert path == layout.root / "data/preflight/toy/preflight.json"
    return json.loads(path.read_text())


def warnings_of(result: Any) -> dict[str, Any]:
    return {one["check"]: one for one in result["checks"] if one["severity"] == "warning"}


def test_one_good_layer_means_fusion_is_unlikely_to_help(layout: Layout) -> None:
    result = result_of(layout, *make_set("one"))
    assert result["probe"]["best_layer"]["chosen"] == [2] * 5
    assert result["probe"]["best_layer"]["accuracy"] == result["probe"]["layers"]["2"]["accuracy"]
    assert result["probe"]["layers"]["2"]["accuracy"]["mean"] > 0.95
    assert result["probe"]["last_layer"] == result["probe"]["layers"]["4"]
    assert result["verdict"]["case"] == "unlikely"
    assert result["verdict"]["text"].startswith("Fusing layers is unlikely to help here: the best linear fusion gains ")
    assert result["verdict"]["rule"] == preflight.RULE
    assert warnings_of(result) == {}
    assert result["skipped"] is None
    assert result["layers"] == [1, 2, 3, 4]
    assert result["folds"][4] == {
        "fold": 5, "test_group": "group5", "dev_group": "group1", "num_train_clips": 144, "num_dev_clips": 48,
        "num_test_clips": 48,
    }  # fmt: skip


def test_layers_that_complete_one_another_mean_fusion_is_likely_to_help(layout: Layout) -> None:
    result = result_of(layout, *make_set("parts"))
    assert result["verdict"]["case"] == "likely"
    probe, headroom = result["probe"], result["headroom"]
    assert probe["concatenation"]["accuracy"]["mean"] > 0.9 > probe["best_layer"]["accuracy"]["mean"]
    single, fused = (probe[name]["accuracy"]["per_fold"] for name in ("best_layer", "concatenation"))
    gain = np.subtract(fused, single)
    assert headroom["concatenation"]["per_fold"] == pytest.approx(gain.tolist())
    assert headroom["concatenation"]["mean"] == pytest.approx(gain.mean())
    assert headroom["concatenation"]["standard_error"] == pytest.approx(gain.std(ddof=1) / np.sqrt(5))
    assert set(headroom) == {"mean", "average", "concatenation", "best_fusion", "last_layer"}


def test_nothing_above_chance_cannot_be_told(layout: Layout) -> None:
    result = result_of(layout, *make_set("none"))
    assert result["verdict"]["case"] == "cannot be told"
    assert "neither the best layer nor a fusion is above chance" in result["verdict"]["text"]
    assert result["probe"]["chance"]["accuracy"]["mean"] == pytest.approx(0.25)
    assert result["probe"]["chance"]["balanced_accuracy"]["mean"] == pytest.approx(0.25)


def test_planted_leaks_and_duplicates_are_caught(layout: Layout) -> None:
    clips, vectors = make_set("one")
    row = pl.int_range(pl.len())
    clips = clips.with_columns(speaker=pl.when(row == 5).then(pl.lit("s8")).otherwise("speaker"))
    vectors[201] = vectors[6]  # u201 of group5 is u6 of group1, with another label
    result = result_of(layout, clips, vectors)
    found = warnings_of(result)
    assert set(found) == {"speakers", "duplicates", "duplicate-labels"}
    assert found["speakers"]["examples"] == ["s8"]
    assert found["duplicates"]["examples"] == found["duplicate-labels"]["examples"] == ["u6#000 = u201#000"]
    assert "The data checks have warnings (speakers, duplicates, duplicate-labels" in result["verdict"]["text"]


def test_unit_is_the_one_of_the_evaluation(layout: Layout, tmp_path: Path) -> None:
    config = Config()
    clips = write_embeddings(layout.embeddings, config)
    utterances = json.loads(preflight.run(layout, config).read_text())
    by_clip = Config.model_validate({"evaluate": {"unit": "clip"}})
    single = json.loads(preflight.run(layout, by_clip).read_text())
    assert (utterances["unit"], single["unit"]) == ("utterance", "clip")
    per_group = len(clips) // 5
    for result, items in ((utterances, per_group // 2), (single, per_group)):
        for value in result["probe"]["layers"]["1"]["accuracy"]["per_fold"]:
            assert value * items == pytest.approx(round(value * items))
    assert utterances["probe"]["layers"]["1"] != single["probe"]["layers"]["1"]


def test_two_groups_are_probed_but_tell_nothing(layout: Layout) -> None:
    result = result_of(layout, *make_set("one", groups=2))
    assert [fold["dev_group"] for fold in result["folds"]] == [None, None]
    assert result["probe"]["best_layer"]["chosen"] == [2, 2]
    assert result["verdict"]["case"] == "cannot be told"
    assert "2 folds are too few" in result["verdict"]["text"]
    assert (
        "points of accuracy over the best single layer). To find out, form folds from the same data with "
        "download: {folds: stratified" in (result["verdict"]["text"])
    )
    assert set(warnings_of(result)) == {"group-sizes"}
    clips, vectors = make_set("one", groups=2)
    text = result_of(layout, clips.with_columns(speaker=pl.col("group")), vectors)["verdict"]["text"]
    assert "To find out, add data: 2 speakers give no third fold." in text


def test_one_layer_cannot_be_fused(layout: Layout) -> None:
    result = result_of(layout, *make_set("none", layers=1))
    assert result["verdict"]["case"] == "unlikely"
    assert result["verdict"]["text"] == "Fusing layers cannot help here: there is only one layer."


@pytest.mark.parametrize("fault", ["values", "classes"])
def test_what_cannot_be_probed_is_still_checked(layout: Layout, fault: str) -> None:
    clips, vectors = make_set("one")
    if fault == "values":
        vectors[3, 0, 0] = np.nan
    else:
        first = pl.col("group") == "group1"
        clips = clips.with_columns(label=pl.when(first).then(pl.lit("anger")).otherwise("label"))
    result = result_of(layout, clips, vectors)
    reason = {
        "values": "Values that are not finite occur in 1 clip",
        "classes": "fold 1: the test part (group1) holds only class 'anger'",
    }[fault]
    assert result["skipped"].startswith(reason)
    assert result["verdict"]["case"] == "cannot be told"
    assert result["verdict"]["text"].startswith(f"It is unclear whether fusing layers helps here: {reason}")
    assert (result["probe"], result["headroom"], result["folds"]) == (None, None, [])
    assert set(warnings_of(result)) == {"values": {"values"}, "classes": {"absent-classes"}}[fault]


def test_set_on_disk_within_the_sample_gives_the_same(layout: Layout) -> None:
    clips, vectors = make_set("parts")
    vectors[201] = vectors[6]
    expected = result_of(layout, clips, vectors)
    found = result_of(layout, clips, vectors, train={"features": "stream"})
    assert (found["sample"], expected["sample"]) == ({"clips": 240, "seed": 0}, None)
    assert found["probe"].pop("note").startswith("Probed on a sample of 240 of 240 clips (whole utterances, seed 0")
    assert found["checks"][7]["text"] == "No two groups share almost equal embeddings in a sample of 240 clips."
    for result in (found, expected):
        del result["sample"], result["checks"][7]
    assert found == expected


def test_set_on_disk_is_probed_on_a_sample_and_checked_whole(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    clips, vectors = make_set("one", utterances=100)
    vectors[401] = vectors[6]
    monkeypatch.setattr(preflight, "SAMPLE_BYTES", 200 * vectors[0].nbytes)
    monkeypatch.setattr(preflight.StoredVectors, "load", lambda self: pytest.fail("read whole"))
    result = result_of(layout, clips, vectors, train={"features": "stream"})
    assert (result["num_clips"], result["sample"]["clips"]) == (500, 200)
    assert [fold["num_test_clips"] for fold in result["folds"]] == [40] * 5
    assert result["probe"]["best_layer"]["chosen"] == [2] * 5
    assert result["probe"]["note"].startswith("Probed on a sample of 200 of 500 clips")
    assert set(warnings_of(result)) == {"duplicates", "duplicate-labels"}
    vectors[499, 3, 0] = np.inf
    result = result_of(layout, clips, vectors, train={"features": "stream"})
    assert result["skipped"].startswith("Values that are not finite occur in 1 clip")


def test_sample_takes_whole_utterances_of_every_group_alike() -> None:
    number = 1000
    utterance = np.arange(number) // 2
    clips = pl.DataFrame(
        {
            "utterance_id": [f"u{one}" for one in utterance],
            "group": np.where(np.arange(number) < 60, "dev", np.where(np.arange(number) < 300, "test", "train")),
        }
    )
    rows = preflight.sample_rows(clips, 300)
    assert (np.diff(rows) > 0).all()
    counts = dict(clips[rows]["group"].value_counts().iter_rows())
    assert counts == {"dev": 60, "test": 120, "train": 120}  # what dev lacks goes to the others
    assert (clips[rows]["utterance_id"].value_counts()["count"] == 2).all()
    np.testing.assert_array_equal(rows, preflight.sample_rows(clips, 300))
    np.testing.assert_array_equal(preflight.sample_rows(clips, 5000), np.arange(number))
    assert len(preflight.sample_rows(clips, 301)) == 300


def test_missing_embeddings_name_the_command(layout: Layout) -> None:
    with pytest.raises(ArtifactError, match="no embeddings in ") as error:
        preflight.run(layout, Config())
    assert repair_of(error.value.path, layout) == "make it: daamctl extract toy"


def official(clips: pl.DataFrame, texts: list[str]) -> pl.DataFrame:
    """The clips as texts nobody is known to have written, the last two fifths of them for testing."""
    part = pl.when(pl.int_range(pl.len()) < 0.6 * len(clips)).then(pl.lit("train")).otherwise(pl.lit("test"))
    return clips.with_columns(group=part, speaker="utterance_id", text=pl.Series(texts))


def test_texts_with_an_official_split(layout: Layout) -> None:
    clips, vectors = make_set("one")
    texts = [f"text {i}" for i in range(len(clips))]
    texts[200] = texts[4]  # of the test part; another embedding
    items, config = (official(clips, texts), Config.model_validate({"train": {"dev_fraction": 0.25}}))
    encoder = {"max_tokens": 50, "special_tokens": {"first": 1, "last": 0, "pooled": False}}
    write(layout, config, items, vectors, "text", **encoder)
    rows = items.select("clip_id", "utterance_id", "text", "label", "speaker", "group")
    write_clips(layout.clips, ClipTable("demo-text", CLASSES, rows, {}, "text"))
    result = json.loads(preflight.run(layout, config).read_text())
    assert (result["modality"], result["unit"]) == ("text", "text")
    assert result["folds"] == [
        {"fold": 1, "test_group": "test", "dev_group": "25% of train", "num_train_clips": 108, "num_dev_clips": 36,
         "num_test_clips": 96},
    ]  # fmt: skip
    checks = {one["check"]: one for one in result["checks"]}
    assert len(result["checks"]) == 10
    assert checks["duplicates"]["text"].startswith("2 texts are equal (1 set), 1 of them across groups")
    assert checks["duplicates"]["examples"] == ["u4#000 = u200#000"]
    assert checks["lengths"]["numbers"]["cut"] == 240  # all fill 49 of 50 tokens beside the one that is added
    assert checks["speakers"]["severity"] == "note"
    assert checks["group-sizes"]["severity"] == "note"
    gain = result["headroom"]["best_fusion"]["mean"]
    assert result["verdict"]["text"].startswith(
        "It is unclear whether fusing layers helps here: one test part has no spread over folds (on it, the best "
        f"linear fusion gains {100 * gain:+.1f} points of accuracy over the best single layer). To find out, form "
        "folds from the same data with download: {folds: stratified, num_groups: 5}. You can also repeat training on "
        "this part with several seeds (train.seeds: [1, 2, 3]) to see how much"
    )


def make_words() -> Any:
    """Words of 100 sentences in five groups; layer 2 tells the tags apart, the others know nothing."""
    rng = np.random.default_rng(0)
    tags = [SENTENCE if number % 2 else ["O"] * len(SENTENCE) for number in range(100)]
    rows = [
        {"utterance_id": word_id(f"s{number}", place), "label": tag, "speaker": f"s{number}", "group": f"g{number % 5}"}
        for number, sentence in enumerate(tags)
        for place, tag in enumerate(sentence)
    ]
    words = pl.DataFrame(rows).select(pl.format("{}#000", "utterance_id").alias("clip_id"), "*")
    vectors = rng.standard_normal((len(rows), 3, EMBED_DIM))
    target = np.array([TAGS.index(tag) for tag in words["label"]])
    vectors[:, 1] += 5 * rng.standard_normal((len(TAGS), EMBED_DIM))[target]
    return words, vectors.astype(np.float16)


@pytest.mark.parametrize("on_disk", [False, True])
def test_probes_of_words_are_compared_by_entity_f1(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, *, on_disk: bool
) -> None:
    if on_disk:
        monkeypatch.setattr(preflight, "LARGEST_SYSTEM", 505)
    config = Config.model_validate({"train": {"features": "stream"}} if on_disk else {})
    write(layout, config, *make_words(), "tokens")
    result = json.loads(preflight.run(layout, config).read_text())
    probe = result["probe"]
    assert (result["metric"], result["unit"]) == ("entity_f1", "word")
    assert probe["layers"]["2"]["entity_f1"]["mean"] > 0.95
    assert probe["layers"]["1"]["entity_f1"]["mean"] < 0.2
    assert probe["layers"]["1"]["accuracy"]["mean"] == pytest.approx(0.9, abs=0.02)  # as of all words outside
    assert probe["chance"]["entity_f1"]["mean"] == 0.0
    assert probe["best_layer"]["chosen"] == [2] * 5
    gain = result["headroom"]["last_layer"]["mean"]
    assert gain == pytest.approx(probe["last_layer"]["entity_f1"]["mean"] - probe["best_layer"]["entity_f1"]["mean"])
    assert "points of entity F1 over the best single layer" in result["verdict"]["text"]
    checks = {one["check"]: one["text"] for one in result["checks"]}
    assert checks["class-balance"].endswith("accuracy tells little, so taggers are compared by entity F1.")
    assert checks["duplicates"] == "No two sentences have equal embeddings."
    assert checks["near-duplicates"] == "Almost equal words are not looked for, because words recur."
    if on_disk:
        assert result["sample"]["clips"] == 500
        assert "(whole sentences, seed 0" in probe["note"]


@pytest.mark.parametrize("seeds", [[3], [3, 4, 5]])
def test_figures_after_one_of_several_draws_of_sentences_are_called_so(layout: Layout, seeds: list[int]) -> None:
    words, vectors = make_words()
    words = words.with_columns(group=pl.col("group").replace_strict({"g0": "test"}, default="train"))
    config = Config.model_validate({"train": {"shots": 8, "seeds": seeds}})
    write(layout, config, words, vectors, "tokens")
    result = json.loads(preflight.run(layout, config).read_text())
    several = len(seeds) > 1
    assert result["probe"].get("note") == (
        "Probed after one draw of training sentences, that of seed 3; results are means over 3 draws (train.seeds)."
        if several
        else None
    )
    assert ("(train.seeds: [1, 2, 3])" in result["verdict"]["text"]) is not several


def test_images_are_compared_by_their_files(layout: Layout) -> None:
    clips, vectors = make_set("one")
    items, config, root = official(clips, [""] * len(clips)), Config(), layout.root / "pictures"
    root.mkdir()
    number = len(clips)
    for row in range(number // 2):
        (root / f"{row}.png").write_bytes(b"%d" % row)
    images = [b"%d" % (row if row != number - 1 else 5) for row in range(number // 2, number)]
    write_images(root / "rest.parquet", images, [0] * len(images), label_column="label", classes=["a"])
    half = number // 2
    rows = items.drop("text").with_columns(
        path=pl.Series([f"{row}.png" if row < half else "rest.parquet" for row in range(number)]),
        index=pl.Series([None if row < half else row - half for row in range(number)], dtype=pl.Int64),
    )
    write(layout, config, items, vectors, "image")
    write_clips(layout.clips, ClipTable("digits", CLASSES, rows, {}, "image"))
    checks = {one["check"]: one for one in json.loads(preflight.run(layout, config).read_text())["checks"]}
    assert checks["duplicates"]["severity"] == "ok"  # where the images lie is not known: their embeddings tell
    assert checks["duplicates"]["text"] == "No two images have equal embeddings."
    register(layout.root, "digits", root)
    checks = {one["check"]: one for one in json.loads(preflight.run(layout, config).read_text())["checks"]}
    assert checks["duplicates"]["examples"] == ["u5#000 = u239#000"]


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_command_prints_tables_and_ends_with_the_verdict(project: Path) -> None:
    config = load_config(project, "demo")
    clips, vectors = make_set("parts")
    vectors[201] = vectors[6]
    write(Layout.of(project, "demo", config), config, clips, vectors)
    result = call("preflight", "--pipeline", "demo")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    assert lines[-1] == "data/preflight/demo/preflight.json"
    stored = json.loads((project / lines[-1]).read_text())
    assert lines[-3] == stored["verdict"]["text"]
    assert lines[-4] == "Verdict: likely"
    assert lines[0].startswith("demo: linear probes of 4 layers, 5 folds, by utterance; ")
    rows = {name: line for line in lines for name in ("1", "4", "best layer", "all concatenated", "chance") if
            line.startswith(f"{name} ")}  # fmt: skip
    for name, key in (("best layer", "best_layer"), ("all concatenated", "concatenation"), ("chance", "chance")):
        figure = stored["probe"][key]["accuracy"]
        assert f"{100 * figure['mean']:.1f} ± {100 * figure['std']:4.1f}" in rows[name]
    assert "############" in rows["all concatenated"]
    assert "#" not in rows["chance"]
    assert f"{100 * stored['headroom']['concatenation']['mean']:+.1f} ± " in rows["all concatenated"]
    chosen = ", ".join(map(str, stored["probe"]["best_layer"]["chosen"]))
    assert any(line.startswith(f"Chosen on the held-out group, fold by fold: layer {chosen}; ") for line in lines)
    assert "        for example: u6#000 = u201#000" in lines
    assert sum(line.startswith(("ok ", "note ", "warning ")) for line in lines) == 9


def test_command_without_a_probe_and_without_embeddings(project: Path) -> None:
    result = call("preflight", "--corpus", "emodb", "--encoder", "wavlm-micro")
    assert result.exit_code == 3
    assert result.stderr == (
        f"ArtifactError: no embeddings in {project}/data/extract/emodb-wavlm-micro\n"
        "  make it: daamctl extract --corpus emodb --encoder wavlm-micro\n"
    )
    config = load_config(project, "demo")
    clips, vectors = make_set("one")
    vectors[3, 0, 0] = np.nan
    write(Layout.of(project, "demo", config), config, clips, vectors)
    result = call("preflight", "-p", "demo")
    assert result.exit_code == 0, result.output
    assert "linear probes of" not in result.stdout
    assert "Verdict: cannot be told\n" in result.stdout


def test_dry_run_prints_settings_and_writes_nothing(project: Path) -> None:
    result = call("preflight", "-p", "demo", "--set", "evaluate.unit=clip", "--dry-run")
    assert result.exit_code == 0
    assert "unit: clip" in result.stdout
    assert not (project / "data").exists()


def test_a_project_that_cannot_be_written_is_refused_before_the_work(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, Config(), *make_set())
    layout.stage("preflight").parent.touch()
    monkeypatch.setattr(preflight, "corpus_facts", None)
    with pytest.raises(ArtifactError, match=r"cannot write .*preflight.*\n  a file is where a folder should be"):
        preflight.run(layout, Config())
