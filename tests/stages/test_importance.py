"""Stage `importance` on synthetic folds, and its audit on embeddings where we know which layers carry the class."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from safetensors.numpy import save_file

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.embeddings import StoredVectors, read_embeddings, read_head, shard_path, write_head, write_shard
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.importance import Importance, find_importance
from daamctl.artifacts.layer_sets import find_ablation, find_truncation, over_runs
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_fold, read_folds
from daamctl.artifacts.splits import split_of
from daamctl.cli import show
from daamctl.config import Config, TrainConfig, load_config
from daamctl.errors import ArtifactError
from daamctl.evaluation.audit import parts_of
from daamctl.evaluation.comparison import compare_methods, item_table
from daamctl.evaluation.scoring import items_of
from daamctl.planning.repair import repair_of
from daamctl.reporting import layers as layer_sections
from daamctl.reporting.answers import answers
from daamctl.reporting.document import Table
from daamctl.reporting.verdict import labelled
from daamctl.stages import ablate, evaluate, importance, preflight, train, truncate
from daamctl.store.files import read_json
from daamctl.store.records import write_record
from daamctl.store.tables import read_frame
from tests.fixtures.embeddings import CLASSES, FIXED, rehash, write_embeddings
from tests.fixtures.folds import make_layout, random_predictions, seal_fold, write_fold, write_method
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.ridge import ridge_scores

pytestmark = pytest.mark.usefixtures("blank_pictures")

CONFIG = Config.model_validate(
    {
        "methods": ["none", "daam-v1", "daam-v2"],
        "importance": {"dpi": 50},
        "method_settings": {"daam-v1": {"num_heads": 2}},
    }
)


def made(layout) -> Importance:
    found = find_importance(layout.stage("importance"))
    assert found is not None
    return found


def named_tests(summary: Importance, method: str) -> dict[tuple[str, str], LayerTest]:
    return {(one.score, one.test): one for one in summary.tests if one.method == method}


@pytest.fixture
def layout(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none")
    write_method(layout, CONFIG, "daam-v1", density_shape=(6, 8), learned=5.0)
    write_method(layout, CONFIG, "daam-v2", density_shape=(6, 8), learned=0.01)
    return layout


def test_table_equals_an_independent_computation(layout):
    importance.run(layout, CONFIG)
    rows, head = read_frame(layout.stage("importance") / "importance.parquet")
    assert rows.columns == [
        "method", "fold", "seed", "layer", "feature", "density", "importance", "untrained_density",
        "untrained_importance",
    ]  # fmt: skip
    assert len(rows) == 2 * 6 * 6 * 8
    assert head["methods"] == ["daam-v1", "daam-v2"]
    mean = np.mean([fold.density()["trained"] for fold in read_folds(layout.method("daam-v1"))], axis=0)
    part = rows.filter((pl.col("method") == "daam-v1") & (pl.col("fold") == 0))
    expected = (mean - mean.min()) / (mean.max() - mean.min())
    cell = part.filter((pl.col("layer") == 3) & (pl.col("feature") == 8))
    assert cell["importance"].item() == pytest.approx(expected[2, 7], abs=1e-6)
    assert cell["density"].item() == pytest.approx(mean[2, 7], abs=1e-6)
    assert set(part["seed"]) == {0}


def test_summary(layout):
    summary = json.loads(importance.run(layout, CONFIG).read_text())
    entry = summary["methods"]["daam-v1"]
    mean = np.mean([fold.density()["trained"] for fold in read_folds(layout.method("daam-v1"))], axis=0, dtype=float)
    assert entry["ranking"] == (np.argsort(-mean.mean(axis=1)) + 1).tolist()
    shares = made(layout).by_layer("daam-v1", "contribution")
    assert sum(row.value for row in shares.values()) == pytest.approx(1)
    assert shares[2].value == pytest.approx(mean[1].sum() / mean.sum())
    assert entry["num_heads"] == 2
    assert entry["folds"] == [[fold, 1] for fold in range(1, 6)]
    assert summary["without_density"] == ["none"]
    assert summary["note"] == "Importance Factor of daam-v1, daam-v2; methods without a density: none."


def test_caution_only_where_the_map_is_geometry(layout):
    methods = json.loads(importance.run(layout, CONFIG).read_text())["methods"]
    assert methods["daam-v1"]["correlation_with_untrained"] < 0.9
    assert methods["daam-v1"]["caution"] is None
    assert methods["daam-v2"]["correlation_with_untrained"] > 0.9
    assert "mostly geometry" in methods["daam-v2"]["caution"]


def test_pictures_follow_the_settings(layout):
    importance.run(layout, CONFIG)
    folder = layout.stage("importance")
    kinds = ("heatmap", "layers", "band")
    assert {p.name for p in folder.glob("*.png")} == {f"daam-v{n}-{kind}.png" for n in (1, 2) for kind in kinds}
    importance.run(layout, CONFIG.model_copy(update={"methods": ("none", "daam-v1")}))
    assert {p.name for p in folder.glob("*.png")} == {f"daam-v1-{kind}.png" for kind in kinds}


def test_without_any_density_it_explains(layout):
    config = CONFIG.model_copy(update={"methods": ("none",)})
    summary = json.loads(importance.run(layout, config).read_text())
    assert summary["methods"] == {}
    assert summary["note"].startswith("No method has a density")
    rows, _ = read_frame(layout.stage("importance") / "importance.parquet")
    assert rows.is_empty()


def test_density_that_does_not_fit(layout):
    rng = np.random.default_rng(0)
    maps = {"trained": np.ones((4, 8), np.float32), "untrained": np.ones((4, 8), np.float32)}
    write_fold(layout, CONFIG, "daam-v1", 5, 1, random_predictions(rng, 5, 1.0, 5), density=maps)
    with pytest.raises(ArtifactError, match=r"'daam-v1' have different shapes: \[\(4, 8\), \(6, 8\)\]") as error:
        importance.run(layout, CONFIG)
    assert repair_of(error.value.path, layout) == "make it again: daamctl train toy --method daam-v1"
    write_fold(layout, CONFIG, "daam-v1", 5, 1, random_predictions(rng, 5, 1.0, 5), density=maps,
               changes={"run.layers": [1, 2]})  # fmt: skip
    with pytest.raises(ArtifactError, match=r"map 'trained' has shape \(4, 8\), but the fold has 2 layers"):
        importance.run(layout, CONFIG)


def test_a_density_that_does_not_vary_ranks_no_layer(layout):
    rng = np.random.default_rng(0)
    for fold in range(1, 6):
        constant = {name: (1 + 1e-7 * rng.normal(size=(6, 8))).astype(np.float32) for name in ("trained", "untrained")}
        write_fold(layout, CONFIG, "daam-v1", fold, 1, random_predictions(rng, fold, 1.0, 5), density=constant)
    config = CONFIG.model_copy(update={"methods": ("daam-v1",)})
    summary = json.loads(importance.run(layout, config).read_text())
    entry, score = summary["methods"]["daam-v1"], summary["scores"]["daam-v1"]
    assert [part[key] for part in (entry, score) for key in ("ranking", "ranking_untrained")] == [[]] * 4
    assert {row.value for row in made(layout).by_layer("daam-v1", "importance").values()} == {0.0}
    assert score["stability"] == {"tau_mean": None, "tau_min": None, "pairs": 0}
    assert list(summary["audit"]["not_audited"]) == ["daam-v1"]


@pytest.mark.parametrize("method", ["weighted-sum", "best-layer", "ridge-best-layer"])
def test_scores_and_their_stability(layout, method):
    rng = np.random.default_rng(0)
    weights = {"trained": rng.random((5, 6)).astype(np.float32), "untrained": np.full((5, 6), 1 / 6, np.float32)}
    if method != "weighted-sum":  # a refit begins with the layer that was chosen
        weights["untrained"] = weights["trained"]
    write_method(layout, CONFIG, method, density_shape=None, changes={"run.layers": list(range(1, 7))})
    for index, fold in enumerate(read_folds(layout.method(method))):
        save_file({name: values[index] for name, values in weights.items()}, fold.folder / "layer_weights.safetensors")
        seal_fold(fold.folder)
    config = CONFIG.model_copy(update={"methods": ("none", method, "daam-v1", "mha")})
    summary = json.loads(importance.run(layout, config).read_text())
    assert summary["without_score"] == {
        "none": "it has neither a density nor one weight per layer", "mha": "it has no finished fold",
    }  # fmt: skip
    entry = summary["scores"][method]
    assert (entry["kind"], entry["learned"], entry["tau_with_untrained"]) == ("weight", True, None)
    values = [row.value for row in made(layout).by_layer(method, "weight").values()]
    assert values == pytest.approx(weights["trained"].mean(axis=0))
    assert entry["stability"]["pairs"] == 10
    assert entry["stability_untrained"]["pairs"] == 0
    assert (len(entry["ranking"]), entry["ranking_untrained"]) == (6, [])  # before training all weigh the same
    maps = [fold.density()["trained"].astype(float) for fold in read_folds(layout.method("daam-v1"))]
    assert summary["scores"]["daam-v1"]["kind"] == "importance"
    assert summary["scores"]["daam-v1"]["ranking"] == summary["methods"]["daam-v1"]["ranking"]
    assert len(maps) == 5
    assert (layout.stage("importance") / entry["band"]).exists()


def test_head_positions_come_from_the_folds_own_settings(layout):
    write_method(layout, CONFIG, "daam-v1", density_shape=(6, 8), changes={"run.config.method": {"num_heads": 3}})
    entry = json.loads(importance.run(layout, CONFIG).read_text())["methods"]["daam-v1"]
    assert entry["num_heads"] == 3
    assert entry["head_positions"]["counts"] == [3, 3]
    scores = [row.value for row in made(layout).by_layer("daam-v1", "importance").values()]
    means = np.array(scores).reshape(3, 2).mean(axis=0)
    assert entry["head_positions"]["means"] == pytest.approx(means)
    assert json.loads((layout.stage("importance") / "summary.json").read_text())["methods"]["daam-v2"]["num_heads"] == 1


def test_without_embeddings_the_maps_are_made_and_the_audit_says_what_is_missing(layout):
    summary = json.loads(importance.run(layout, CONFIG).read_text())
    (line,) = summary["audit"]["missing"]
    assert line.startswith("No audit: no embeddings in ")
    assert line.endswith("make them: daamctl extract toy, then daamctl importance toy")
    assert summary["audit"]["methods"] == {}
    assert summary["audit"]["sentence"] == ("The layer scores were not tested against the usefulness of the layers.")
    off = CONFIG.model_copy(update={"importance": CONFIG.importance.model_copy(update={"audit": False})})
    assert "switched off" in json.loads(importance.run(layout, off).read_text())["audit"]["missing"][0]
    curves, _ = read_frame(layout.stage("importance") / "audit-curves.parquet")
    assert curves.is_empty()


def test_weights_that_do_not_fit(layout):
    write_method(layout, CONFIG, "weighted-sum", density_shape=None, changes={"run.layers": [1, 2]})
    config = CONFIG.model_copy(update={"methods": ("weighted-sum",)})
    (first, *_) = read_folds(layout.method("weighted-sum"))
    save_file({"trained": np.ones(3, np.float32)}, first.folder / "layer_weights.safetensors")
    seal_fold(first.folder)
    with pytest.raises(ArtifactError, match=r"map 'trained' has shape \(3,\), but the fold has 2 layers"):
        importance.run(layout, config)
    save_file({"trained": np.ones(2, np.float32)}, first.folder / "layer_weights.safetensors")
    seal_fold(first.folder)
    with pytest.raises(ArtifactError, match="lacks the map 'untrained'"):
        importance.run(layout, config)
    nan = np.array([np.nan, 1], np.float32)
    save_file({"trained": nan, "untrained": nan}, first.folder / "layer_weights.safetensors")
    seal_fold(first.folder)
    with pytest.raises(ArtifactError, match="'trained' is not finite"):
        importance.run(layout, config)


STRENGTH = np.random.default_rng(1).permutation(np.linspace(0, 0.9, 24))  # how much of the class each layer carries
HIGH, LOW = int(STRENGTH.argmax()) + 1, int(STRENGTH.argmin()) + 1
PLANTED = Config.model_validate(
    {
        "methods": ["none-mlp", "mean", "weighted-sum", "daam-v1-mlp"],
        "method_settings": {"daam-v1-mlp": {"hidden_dim": 8}},
        "train": {"steps": 100, "passes": 0, "lr": 0.01, "batch_size": 16, "device": "cpu", **FIXED},
        "importance": {"dpi": 50, "audit_clips": 60},
        "ablate": {"rank_by": "daam-v1-mlp", "method": "none-mlp", "k": [1], "layers": [[HIGH], [LOW]]},
    }
)
ONE = PLANTED.model_copy(update={"methods": ("weighted-sum",)})


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Layout:
    """Three trained folds on layers that carry more or less of the class."""
    layout = make_layout(tmp_path_factory.mktemp("planted"))
    write_embeddings(layout.embeddings, PLANTED, clips_per_group=64, num_groups=3, shards=1)
    clips, vectors, layers = read_embeddings(layout.embeddings)
    rng = np.random.default_rng(3)
    target = [CLASSES.index(label) for label in clips["label"]]
    centres = rng.standard_normal((len(CLASSES), 16))[target]
    vectors = rng.standard_normal(vectors.shape) + STRENGTH[:, None] * centres[:, None]
    write_shard(shard_path(layout.embeddings, 0), clips, np.full(len(clips), 49), vectors.astype(np.float16), layers,
                {"key": "planted", "unreadable": 0})  # fmt: skip
    rehash(layout.embeddings)
    for method in PLANTED.methods:
        train.run(layout, PLANTED, method=method, track=False)
    ablate.run(layout, PLANTED, track=False)
    return layout


@pytest.fixture(scope="module")
def audited(planted):
    with blank_pictures():
        importance.run(planted, PLANTED)
    return made(planted)


@pytest.fixture
def copied(planted, tmp_path) -> Layout:
    """The planted run, free to be damaged."""
    shutil.copytree(planted.data, tmp_path / "data")
    return make_layout(tmp_path)


def test_planted_weights_pass_the_audit(audited):
    tests = named_tests(audited, "weighted-sum")
    assert set(tests) == {  # all layers weigh the same at the start
        ("trained", test)
        for test in ("probe", "probe-turned", "probe-depth", "deletion", "insertion", "alone", "alone-folds")
    }
    assert tests["trained", "probe"].verdict == "yes"
    assert tests["trained", "probe"].value > 0.6
    assert tests["trained", "deletion"].verdict == "yes"
    alone, over_folds = tests["trained", "alone"], tests["trained", "alone-folds"]
    assert (alone.k, alone.number) == (1, 4)
    assert STRENGTH[int(alone.high) - 1] > STRENGTH[int(alone.low) - 1]
    assert over_folds.value > 0.3
    assert over_folds.p == over_folds.floor == 1 / 8
    assert audited.audit.no_ablation is None
    assert audited.audit.methods["weighted-sum"] == []


def test_probe_of_the_audit_follows_what_was_planted(audited):
    assert [row.layers for row in audited.profile] == [(layer,) for layer in range(1, 25)]
    assert np.corrcoef([row.value for row in audited.profile], STRENGTH)[0, 1] > 0.9
    own = [row for row in audited.rows if row[1:4] == ((HIGH,), "ridge-last", "accuracy")]
    runs = [row.value for row in own if row.fold is not None]
    assert (len(runs), np.mean(runs)) == (3, pytest.approx(audited.profile[HIGH - 1].value))


def test_methods_without_a_ranking_and_the_summary(audited):
    assert list(audited.without_score) == ["none-mlp"]
    assert list(audited.audit.not_audited) == ["mean"]
    assert list(audited.audit.methods) == ["weighted-sum", "daam-v1-mlp"]
    tests = named_tests(audited, "daam-v1-mlp")
    assert tests["trained", "probe"].verdict != "yes"
    assert ("untrained", "deletion") in tests
    sentence = audited.audit.sentence
    assert "There is no evidence that Importance Factors" in sentence
    assert "Layer weights, 1 audited method: layers with a higher score" in sentence
    assert "better for a linear probe in 1, and removing layers by score" in sentence


def test_curves_are_written_and_drawn(planted, audited):
    folder = planted.stage("importance")
    curves, _ = read_frame(folder / "audit-curves.parquet")
    assert len(curves) == 2 * 3 * 7 * (20 + 21)  # kinds, folds, steps, orders: those of weighted-sum and of daam
    part = curves.filter((pl.col("method") == "weighted-sum") & (pl.col("order") == "score") & (pl.col("layers") == 0))
    assert part.filter(pl.col("kind") == "deletion")["accuracy"].mean() > 0.9
    deletion = curves.filter((pl.col("method") == "weighted-sum") & (pl.col("kind") == "deletion"))
    assert deletion.filter(pl.col("layers") == 24)["accuracy"].max() < 0.5
    assert curves.filter(pl.col("order") == "random")["draw"].unique().sort().to_list() == list(range(1, 20))
    for method in ("weighted-sum", "daam-v1-mlp"):
        assert (folder / audited.scores[method].replacement).read_bytes()[:4] == b"\x89PNG"
    assert audited.scores["mean"].replacement is None
    assert part["layers"].unique().to_list() == [0]
    assert curves["layers"].unique().sort().to_list() == [0, 1, 2, 4, 8, 16, 24]


def test_a_second_run_writes_the_same_bytes(copied):
    importance.run(copied, ONE)
    files = list(copied.stage("importance").iterdir())
    first = [file.read_bytes() for file in files]
    (copied.stage("importance") / "summary.json").unlink()
    importance.run(copied, ONE)
    assert [file.read_bytes() for file in files] == first


def test_what_was_made_of_the_same_inputs_is_kept(copied, monkeypatch, caplog):
    caplog.set_level("INFO", "daamctl")
    path = importance.run(copied, ONE)
    first, calls = path.read_bytes(), []
    real = importance.audit_scores
    monkeypatch.setattr(importance, "audit_scores", lambda *given: calls.append(given) or real(*given))
    importance.run(copied, ONE)
    assert (path.read_bytes(), calls) == (first, [])
    assert caplog.messages[-1] == "importance is finished and kept"
    others = ONE.model_copy(update={"importance": ONE.importance.model_copy(update={"audit_orders": 21})})
    importance.run(copied, others)
    (copied.stage("importance") / "weighted-sum-band.png").write_bytes(b"damaged")
    importance.run(copied, others)
    assert len(calls) == 2
    alone = next(copied.stage("ablate").glob("*/fold1-seed1"))
    for fold in (read_folds(copied.method("weighted-sum"))[0], read_fold(alone)):  # trained again with the same result
        seal_fold(fold.folder, {**fold.result, "meta": {**fold.result["meta"], "train_s": 9.0}})
    ablate.run(copied, PLANTED, track=False)
    importance.run(copied, others)
    assert len(calls) == 2
    fold = read_folds(copied.method("weighted-sum"))[0]
    (fold.folder / "history.parquet").write_bytes(b"of another training")
    seal_fold(fold.folder)
    importance.run(copied, others)
    assert len(calls) == 3


def test_all_layers_give_the_accuracy_of_the_fold(copied):
    config = ONE.model_copy(update={"importance": ONE.importance.model_copy(update={"audit_clips": 400})})
    importance.run(copied, config)
    curves, _ = read_frame(copied.stage("importance") / "audit-curves.parquet")
    own = curves.filter((pl.col("layers") == 0) & (pl.col("kind") == "deletion") & (pl.col("order") == "score"))
    folds = read_folds(copied.method("weighted-sum"))
    assert own["accuracy"].to_list() == pytest.approx([fold.result["metrics"]["accuracy"] for fold in folds])


def test_random_scores_do_not_pass(copied):
    weights = np.random.default_rng(2).random(24).astype(np.float32)  # the same in all folds: stable, but about nothing
    for fold in read_folds(copied.method("weighted-sum")):
        save_file({"trained": weights, "untrained": np.roll(weights, 7)}, fold.folder / "layer_weights.safetensors")
        seal_fold(fold.folder)
    importance.run(copied, ONE)
    tests = named_tests(made(copied), "weighted-sum")
    assert {tests["trained", name].verdict for name in ("probe", "deletion", "insertion")} == {"not shown"}
    assert ("untrained", "deletion") in tests


def test_missing_weights_and_ablation_are_named_with_their_commands(copied):
    (first, *_) = read_folds(copied.method("weighted-sum"))
    (first.folder / "weights.safetensors").unlink()
    shutil.rmtree(copied.stage("ablate"))
    importance.run(copied, PLANTED)
    audit, tests = made(copied).audit, named_tests(made(copied), "weighted-sum")
    assert audit.missing == []
    assert audit.no_ablation == (
        "No layers trained alone on these embeddings; train them: daamctl ablate toy, then daamctl importance toy"
    )
    (line,) = audit.methods["weighted-sum"]
    assert line.startswith("weighted-sum fold 1 seed 1 has no curves: no file ")
    assert line.endswith("train it again: daamctl train toy --method weighted-sum")
    assert ("trained", "deletion") in tests
    assert ("trained", "alone") not in tests
    assert "deletion advantage" not in audit.sentence


def test_layers_that_were_trained_alone_with_other_settings_test_no_score(copied):
    config = PLANTED.model_copy(update={"train": PLANTED.train.model_copy(update={"lr": 0.02})})
    for method in config.methods:
        train.run(copied, config, method=method, track=False)
    importance.run(copied, config)
    assert made(copied).audit.no_ablation == (
        "Layers were trained alone with other settings: train.lr: 0.01 (now 0.02); "
        "train them: daamctl ablate toy, then daamctl importance toy"
    )
    assert ("trained", "alone") not in named_tests(made(copied), "weighted-sum")


@pytest.mark.parametrize("few", [{"k": (), "layers": ()}, {"k": (), "layers": ((HIGH,), (1, 2))}])
def test_an_ablation_that_tests_nothing_is_named(copied, few):
    config = ONE.model_copy(update={"ablate": ONE.ablate.model_copy(update=few)})
    ablate.run(copied, config.model_copy(update={"methods": PLANTED.methods}), track=False)
    importance.run(copied, config)
    audit = made(copied).audit
    assert ("trained", "alone") not in named_tests(made(copied), "weighted-sum")
    assert audit.missing == []
    assert audit.no_ablation == (
        "Layer scores were not tested on layers trained alone, because the ablation has no two groups of the same "
        "size; see ablate.k, ablate.layers and ablate.presets"
    )


def test_folds_of_other_embeddings_are_refused(copied):
    for fold in read_folds(copied.method("weighted-sum")):
        result = read_json(fold.folder / "result.json")
        result["meta"]["embeddings_key"] = "another"
        write_record(fold.folder / "result.json", result)
    with pytest.raises(ArtifactError, match=r"was trained on other embeddings than those in .* now"):
        importance.run(copied, ONE)


def streaming(config: Config) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"features": "stream"})})


def test_audit_from_disk_is_that_from_memory(copied, monkeypatch):
    """Only rounding differs; the probes read one layer at a time."""
    importance.run(copied, ONE)
    expected = made(copied)
    monkeypatch.setattr(StoredVectors, "load", lambda self: pytest.fail("read whole"))
    (copied.stage("importance") / "summary.json").unlink()  # else it is kept
    importance.run(copied, streaming(ONE))
    found = made(copied)
    assert found.profile == expected.profile
    assert [one[:3] for one in found.tests] == [one[:3] for one in expected.tests]
    assert [one.value for one in found.tests] == pytest.approx([one.value for one in expected.tests])


def test_official_split_is_audited_as_it_was_trained(tmp_path):
    """What is held out of the training part for selection has no group of its own, and trains no probe."""
    layout = make_layout(tmp_path)
    train_settings = {**PLANTED.section("train"), "steps": 10, "seeds": (1, 2), "dev_fraction": 0.25}
    config = ONE.model_copy(update={"train": TrainConfig.model_validate(train_settings)})
    clips = write_embeddings(layout.embeddings, config, clips_per_group=80, num_groups=2, shards=1)
    parts = pl.when(pl.col("group") == "group1").then(pl.lit("train")).otherwise(pl.lit("test"))
    clips, (_, vectors, _) = clips.with_columns(group=parts), read_embeddings(layout.embeddings)
    write_head(layout.embeddings, read_head(layout.embeddings), clips)
    train.run(layout, config, method="weighted-sum", track=False)
    folds = read_folds(layout.method("weighted-sum"))
    assert [(fold.fold, fold.seed) for fold in folds] == [(1, 1), (1, 2)]
    split = split_of(clips, 1, config.train)
    assert (len(split.train), len(split.dev)) == (64, 16)  # both clips of two of ten utterances of each class
    for fold in folds:
        rows = parts_of(clips, fold)
        assert [part.tolist() for part in rows] == [split.train.tolist(), split.dev.tolist(), split.test.tolist()]
        assert split.test.tolist() == list(range(80, 160))
    importance.run(layout, config)
    found = made(layout)
    y = np.array([CLASSES.index(label) for label in clips["label"]])
    x = torch.from_numpy(vectors)
    logits = ridge_scores(x[:, 6], y, split, 4).reshape(40, 2, 4)  # two clips per utterance; no refit
    right = logits.mean(1).argmax(-1).numpy() == y[split.test][::2]
    assert found.profile[6].value == pytest.approx(right.mean())
    assert "per clip" in found.audit.note


def test_one_figure_for_a_layer_alone(tmp_path, capsys, monkeypatch):
    """The headline, its table, `preflight`, the ablation's probe, `truncate` and `ridge-last` give the same figure."""
    names = ["none-mlp", "ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat"]
    settings = {
        "methods": names,
        "train": {"steps": 10, "batch_size": 32, "device": "cpu", "search": "none"},
        "ablate": {"method": "none-mlp", "k": [], "layers": [[6], [24]]},
    }
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pipelines": ["toy"]}))
    (tmp_path / "pipelines/toy.yaml").write_text(yaml.safe_dump(settings))
    config = load_config(tmp_path, "toy")
    layout = Layout.of(tmp_path, "toy", config)
    clips = write_embeddings(layout.embeddings, config, clips_per_group=48, num_groups=3, shards=1)
    _, vectors, layers = read_embeddings(layout.embeddings)
    keep = np.flatnonzero(
        (clips["group"].to_numpy() != "group1") | (np.arange(len(clips)) < 20)
    )  # folds of different sizes
    clips = clips[keep].with_columns(duration_s=pl.Series(np.where(np.arange(len(keep)) % 2, 0.6, 5.0)))
    vectors = vectors + np.random.default_rng(1).normal(0, 1.5, vectors.shape)
    write_shard(shard_path(layout.embeddings, 0), clips, np.full(len(clips), 49), vectors[keep].astype(np.float16),
                layers, {"key": "uneven", "unreadable": 0})  # fmt: skip
    write_head(layout.embeddings, replace(read_head(layout.embeddings), num_clips=len(clips), files={}), clips)
    for method in names:
        train.run(layout, config, method=method, track=False)
    evaluation = read_evaluation(evaluate.run(layout, config).parent)
    importance.run(layout, config)
    summary = find_importance(layout.stage("importance"))
    fitting = truncate._fitting
    monkeypatch.setattr(
        truncate, "_fitting", lambda *given: ([one for one in fitting(*given)[0] if len(one) in (1, 24)], [])
    )
    truncation = find_truncation(truncate.run(tmp_path, "toy").parent)
    before = json.loads(preflight.run(layout, config).read_text())["probe"]

    by_layer = {one.layers[0]: one.value for one in summary.profile}
    assert len({round(value, 6) for value in by_layer.values()}) > 10  # figures that could differ
    assert summary.probed.unit == truncation.unit == "utterance"
    assert {one.layers[0]: one.value for one in truncation.singles} == pytest.approx(by_layer)
    assert {int(layer): one["accuracy"]["mean"] for layer, one in before["layers"].items()} == pytest.approx(by_layer)
    assert evaluation.accuracy("ridge-last").mean == pytest.approx(by_layer[24])
    assert evaluation.accuracy("ridge-concat").mean == pytest.approx(truncation.whole.value)
    assert before["concatenation"]["accuracy"]["mean"] == pytest.approx(truncation.whole.value)
    chosen = evaluation.accuracy("ridge-best-layer").mean
    assert before["best_layer"]["accuracy"]["mean"] == pytest.approx(chosen)
    assert before["mean"]["accuracy"]["mean"] == pytest.approx(evaluation.accuracy("ridge-mean").mean)
    ablation = find_ablation(ablate.run(layout, config, track=False).parent)
    assert ablation.probe == "ridge-mean"
    alone = {layers: over_runs(ablation.probed(name).values()).mean for name, layers in ablation.sets.items()}
    assert alone == pytest.approx({(6,): by_layer[6], (24,): by_layer[24]})

    section = layer_sections.importance(summary, {}, defaultdict(bytes), labels={}, task=evaluation.task, command="")
    blocks = [inner for block in section.blocks for inner in getattr(block, "blocks", [block])]
    (table,) = [block for block in blocks if isinstance(block, Table) and block.key == "probe"]
    assert {int(row[0]): row[1].value for row in table.rows} == pytest.approx(by_layer)
    assert "so its sign may be another than that of the means" in table.note
    first, fusing, *_ = answers(labelled(evaluation), summary, stale=[], command="").blocks
    text = first.text
    show.show_results(layout)
    printed = capsys.readouterr().out
    assert fusing.text.startswith("Whether fusing layers helps cannot be tested with so few speakers")
    assert fusing.text in printed.replace("\n", " ")
    words = [line.split()[:2] for line in printed.splitlines() if line.startswith("ridge-concat")]
    assert words == [["ridge-concat", f"{100 * truncation.whole.value:.1f}"]]
    best = max(by_layer, key=lambda layer: by_layer[layer])
    assert f"Layer {best} has the highest figure: alone it classifies {100 * by_layer[best]:.1f} %" in text
    assert f"The last layer, 24, reaches {100 * by_layer[24]:.1f} %." in text


def test_layers_are_tested_against_the_best_in_pairs(copied):
    """The p-values are those of the comparison engine; a layer inside the interval of the best may still be worse."""
    importance.run(copied, ONE)
    profile = made(copied).profile
    clips, vectors, _ = read_embeddings(copied.embeddings)
    y = np.array([CLASSES.index(label) for label in clips["label"]])
    folds = read_folds(copied.method("weighted-sum"))
    tables = {}
    for layer in range(24):
        items = []
        for fold in folds:
            split = split_of(clips, fold.fold, ONE.train)
            logits = ridge_scores(vectors[:, layer], y, split, 4)
            frame = clips[split.test].with_columns(target=pl.Series(y[split.test]), logits=pl.Series(logits.tolist()))
            items.append(items_of(frame, "utterance"))
        tables[str(layer + 1)] = item_table(folds, items)
    (best,) = max(profile, key=lambda one: one.value).layers
    assert STRENGTH[best - 1] > 0.5
    rows, family = compare_methods(tables, reference=str(best))
    assert min(one.floor for one in profile if one.floor is not None) == family.floor_holm
    found = {one.layers[0]: (one.difference, one.p) for one in profile}
    assert found.pop(best) == (0.0, None)
    expected = {int(row.second): (-row.difference, row.p_holm) for row in rows if row.metric == "accuracy"}
    assert found == {layer: pytest.approx(values) for layer, values in expected.items()}
