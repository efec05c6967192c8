"""Stage `evaluate` on synthetic folds."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.results import read_folds
from daamctl.artifacts.scores import BEST_ON_TEST, TABLES
from daamctl.config import Config
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation.scores import read_scores
from daamctl.planning.repair import repair_of
from daamctl.stages import evaluate
from daamctl.store.files import write_json
from tests.fixtures.folds import make_layout, predictions_frame, tuned, write_fold, write_items, write_method

CONFIG = Config.model_validate({"methods": ["none", "mha"]})


@pytest.fixture
def layout(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none", skill=2.0, num_parameters=11)
    write_method(layout, CONFIG, "mha", skill=0.5)
    return layout


def test_numbers_equal_an_independent_computation(layout):
    path = evaluate.run(layout, CONFIG)
    entry, scores = json.loads(path.read_text())["methods"]["none"], scores_of(layout)
    clip, utterance = [], []
    for fold in read_folds(layout.method("none")):
        table = fold.predictions()
        logits, targets = np.array(table["logits"].to_list()), table["target"].to_numpy()
        clip.append((logits.argmax(1) == targets).mean())
        names = table["utterance_id"].to_numpy()
        pooled = {name: logits[names == name].mean(0).argmax() == targets[names == name][0] for name in set(names)}
        utterance.append(np.mean(list(pooled.values())))
    for unit, values in (("clip", clip), ("utterance", utterance)):
        figure, runs = scores.figure("none", unit=unit), scores.runs("none", unit=unit)
        assert (figure.mean, figure.runs) == (pytest.approx(np.mean(values)), 5)
        assert figure.std == pytest.approx(np.std(values, ddof=1))
        assert [row.value for row in runs.values()] == pytest.approx(values)
        counts = scores.confusion("none", unit)
        assert counts.sum() == sum(row.items for row in runs.values())
        assert np.trace(counts) / counts.sum() == pytest.approx(figure.pooled)
    best = [fold.result["metrics"]["accuracy_best_on_test"] for fold in read_folds(layout.method("none"))]
    assert scores.figure("none", BEST_ON_TEST).mean == pytest.approx(np.mean(best))
    assert entry["num_parameters"] == 11


def scores_of(layout):
    return read_evaluation(layout.stage("evaluate")).scores


def shown_of(layout):
    """What `dvc metrics show` shows: method -> its figures."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(layout.stage("metrics").iterdir())}


def test_files(layout):
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    folder = layout.stage("evaluate")
    flat = shown_of(layout)
    assert list(flat) == ["mha", "none"]
    assert list(flat["none"]) == ["accuracy", "balanced_accuracy", "macro_f1"]
    assert flat["none"]["accuracy"] == round(scores_of(layout).figure("none").mean, 6)
    history = pl.read_parquet(folder / "history.parquet").to_dicts()
    assert len(history) == 2 * 5 * 6
    assert list(history[0]) == [
        "method", "fold", "seed", "step", "epoch", "train_loss", "train_accuracy", "dev_accuracy", "test_accuracy",
    ]  # fmt: skip
    assert report["counts"]["utterance"] == 5 * 40
    assert report["counts"]["groups"]["3"] == "Ses03"
    assert report["provenance"]["devices"] == ["cpu"]


def test_tables_have_their_columns_and_the_record_no_figure(layout):
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    tables = {name: read_scores(layout, name) for name in TABLES if name not in ("layers", "audit", "protocols")}
    for name, table in tables.items():
        assert dict(table.schema) == TABLES[name]
        assert len(table) or name == "entities"
    scores = scores_of(layout)
    figure = scores.figure("mha")
    assert figure.low < figure.pooled < figure.high
    assert scores.figure("mha", unit="clip").low is None
    assert {row.metric for row in scores.comparisons("accuracy")} == {"accuracy"}
    assert len(tables["scores"].filter(method="mha", unit="clip", metric="macro_f1")) == 5
    assert not [name for name in ("summary", "pooled", "intervals", "confusion") if name in report["methods"]["mha"]]
    with pytest.raises(UnknownNameError, match="unknown table 'score'"):
        read_scores(layout, "score")
    with pytest.raises(ArtifactError, match=r"no file .*layers\.parquet"):
        read_scores(layout, "layers")


def test_clip_can_be_the_main_unit(layout):
    config = CONFIG.model_copy(update={"evaluate": CONFIG.evaluate.model_copy(update={"unit": "clip"})})
    evaluate.run(layout, config)
    flat = shown_of(layout)
    assert flat["mha"]["accuracy"] == round(scores_of(layout).figure("mha", unit="clip").mean, 6)


def test_missing_folds_are_named(tmp_path, caplog):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none", folds=(1, 2, 4))
    report = json.loads(evaluate.run(layout, Config(methods=["none"])).read_text())
    assert report["methods"]["none"]["missing"] == [[3, 1], [5, 1]]
    assert "none: some folds are missing: fold 3 seed 1, fold 5 seed 1" in report["notes"]
    assert "some folds are missing: fold 3 seed 1" in caplog.text


def test_one_fold_has_no_deviation(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none", folds=(2,))
    evaluate.run(layout, Config(methods=["none"]))
    assert scores_of(layout).figure("none").std is None


def test_methods_that_are_gone_are_no_longer_shown(layout, caplog):
    caplog.set_level("INFO", "daamctl")
    evaluate.run(layout, CONFIG)
    assert "not evaluated" not in caplog.text
    evaluate.run(layout, Config(methods=["mha"]))
    assert list(shown_of(layout)) == ["mha"]
    assert "trained, but not listed in the settings, so not evaluated: none; add them to methods" in caplog.text
    assert f"daamctl compare {layout.run_name}/none {layout.run_name}/mha" in caplog.text


@pytest.mark.parametrize(
    ("methods", "families"),
    [
        (["ridge-best-layer", "ridge-mean", "mha"], {"ridge-best-layer": ["ridge-mean"]}),
        (["ridge-best-layer", "mha"], {"ridge-best-layer": ["mha"]}),
        (["ridge-best-layer", "best-layer", "mha"], {"best-layer": ["mha"]}),
        (
            ["ridge-best-layer", "ridge-mean", "best-layer", "mha", "mean"],
            {"ridge-best-layer": ["ridge-mean"], "best-layer": ["mha", "mean"]},
        ),
        (["ridge-mean", "mha"], {}),
    ],
)
def test_fusions_are_compared_with_a_single_layer_of_their_kind(tmp_path, methods, families):
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": methods})
    for index, method in enumerate(methods):
        write_method(layout, config, method, skill=1.0 + index / 4)
    evaluate.run(layout, config)
    found = read_evaluation(layout.stage("evaluate"))
    rows = found.scores.comparisons("accuracy", "single layer")
    assert {
        probe: [row.second for row in rows if row.first == probe] for probe in {row.first for row in rows}
    } == families
    first = next(iter(families), None)
    assert (found.single_layer and found.single_layer.reference) == first
    for probe, own in families.items():  # each is corrected on its own
        p = [row.p for row in rows if row.first == probe]
        assert min(row.p_holm for row in rows if row.first == probe) == pytest.approx(min(1, min(p) * len(own)))


def test_two_seeds(tmp_path):
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none"], "train": {"seeds": [1, 2]}})
    write_method(layout, config, "none", seeds=(1, 2))
    report = json.loads(evaluate.run(layout, config).read_text())
    assert scores_of(layout).figure("none").runs == 10
    assert report["counts"]["utterance"] == 5 * 40


def test_seeds_outside_the_settings_are_ignored(layout, caplog):
    caplog.set_level("INFO", "daamctl")
    write_method(layout, CONFIG, "none", seeds=(7,))
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    assert {row["seed"] for row in report["methods"]["none"]["runs"]} == {1}
    assert "none was also trained with seeds that are not in train.seeds, so not evaluated: 7" in caplog.text


def test_no_fold_names_the_command(layout):
    with pytest.raises(ArtifactError, match="no finished fold of method 'daam-v1'") as error:
        evaluate.run(layout, Config(methods=["none", "daam-v1"]))
    assert repair_of(error.value.path, layout) == "make it: daamctl train toy --method daam-v1"
    assert error.value.fix == "make it: daamctl run toy"  # which trains every method that lacks folds


def test_only_other_seeds_says_so(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none", seeds=(7,))
    with pytest.raises(ArtifactError, match=r"with seed 1 \(available: 7\)"):
        evaluate.run(layout, Config(methods=["none"]))


def test_skipped_method_is_left_out(layout):
    write_json(layout.method("mha") / "skipped.json", {"reason": "not listed by the pipeline"})
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    assert list(report["methods"]) == ["none"]
    assert report["skipped"] == {"mha": {"reason": "not listed by the pipeline"}}
    with pytest.raises(ArtifactError, match="no method to evaluate; skipped: mha"):
        evaluate.run(layout, Config(methods=["mha"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.config.train.epochs": 3}, r"train.epochs is 35 in fold1-seed1, 3 in fold5-seed1"),
        ({"run.config.train.selection": "last"}, r"train.selection is 'dev-group' in fold1-seed1, 'last' in fold5"),
        ({"run.config.method.num_heads": 4}, r"method.num_heads is null in fold1-seed1, 4 in fold5-seed1"),
        ({"meta.embeddings_key": "other"}, r"embeddings_key is '00112233aabbccdd' in fold1-seed1, 'other' in fold5"),
    ],
)
def test_folds_made_differently_are_refused(layout, changes, message):
    rows = predictions_frame(["a"], [0], [[1, 0, 0, 0]])
    write_fold(layout, CONFIG, "none", 5, 1, rows, changes=changes)
    with pytest.raises(ArtifactError, match=message) as error:
        evaluate.run(layout, CONFIG)
    assert repair_of(error.value.path, layout) == "make it again: daamctl train toy --method none"


def test_device_and_seeds_may_differ(layout):
    rows = read_folds(layout.method("none"))[4].predictions()
    changes = {"run.config.train.device": "cuda", "run.config.train.seeds": [1, 2], "run.config.extract.device": "cpu"}
    write_fold(layout, CONFIG, "none", 5, 1, rows, changes=changes)
    assert evaluate.run(layout, CONFIG).is_file()


def test_methods_on_different_embeddings_are_refused(layout):
    for fold in read_folds(layout.method("mha")):
        write_fold(layout, CONFIG, "mha", fold.fold, 1, fold.predictions(), changes={"meta.embeddings_key": "other"})
    with pytest.raises(ArtifactError, match="embeddings_key is '00112233aabbccdd' for 'none', 'other' for 'mha'") as e:
        evaluate.run(layout, CONFIG)
    assert repair_of(e.value.path, layout) == "make it again: daamctl run toy"  # no setting tells which one is older


@pytest.mark.parametrize("method", CONFIG.methods)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.config.train.epochs": 3}, "train.epochs is "),
        ({"run.config.extract.normalize": "never", "meta.embeddings_key": "other"}, "extract.normalize is "),
    ],
)
def test_of_methods_made_differently_the_one_that_is_out_of_date_is_made_again(layout, method, changes, message):
    write_method(layout, CONFIG, method, changes=changes)
    with pytest.raises(ArtifactError, match=f"methods cannot be compared: {message}") as error:
        evaluate.run(layout, CONFIG)
    assert repair_of(error.value.path, layout) == f"make it again: daamctl train toy --method {method}"


def test_settings_changed_since_are_noted(layout):
    config = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"epochs": 7})})
    report = json.loads(evaluate.run(layout, config).read_text())
    assert "trained with other settings than the current ones: train.epochs: 35 (now 7)" in report["notes"]


def test_reconstructions_and_batch_dependence_are_named_wherever_figures_stand(tmp_path, caplog):
    config = Config.model_validate({"methods": ["sga", "mha-published"]})
    layout = make_layout(tmp_path)
    write_method(layout, config, "sga", changes={"run.reconstructed": "reading A, scalar"})
    batches = {"size": 8, "order": "clip table", "clips_sha256": "0" * 64}
    write_method(layout, config, "mha-published", changes={"run.eval_batches": batches})
    caplog.set_level("INFO")
    report = json.loads(evaluate.run(layout, config).read_text())
    assert report["methods"]["sga"]["label"] == "sga (reconstructed)"
    assert report["methods"]["mha-published"]["label"] == "mha-published"
    assert any(
        note.startswith("sga (reconstructed): reading A, scalar; the original definition") for note in report["notes"]
    )
    assert any(
        "mha-published: predictions depend on the other clips" in note and "test batches have 8 clips" in note
        for note in report["notes"]
    )
    rows = pl.read_parquet(layout.stage("evaluate") / "history.parquet").to_dicts()
    assert {row["method"] for row in rows} == {"sga", "mha-published"}
    assert {name: entry.get("note") for name, entry in shown_of(layout).items()} == {
        "mha-published": None, "sga": "reconstructed",
    }  # fmt: skip


def test_the_balanced_accuracy_of_a_constant_answer_is_a_mean_over_folds_of_the_classes_they_test(layout):
    evaluate.run(layout, CONFIG)
    assert not read_evaluation(layout.stage("evaluate")).main_chance.lacking
    for method in ("none", "mha"):
        for fold in read_folds(layout.method(method))[:2]:
            rows = fold.predictions().filter(pl.col("label") != "sad")
            write_fold(layout, CONFIG, method, fold.fold, 1, rows)
    evaluate.run(layout, CONFIG)
    chance = read_evaluation(layout.stage("evaluate")).chance
    assert [one.uniform_fraction for one in chance.values()] == pytest.approx([(2 / 3 + 3 / 4) / 5] * 2)
    assert all(one.lacking for one in chance.values())


def test_texts_of_unknown_origin_are_their_own_units(tmp_path):
    layout, config = (
        make_layout(tmp_path),
        Config.model_validate({"methods": ["none", "mha"], "train": {"seeds": [1, 2]}}),
    )
    for method, skill in (("none", 1.0), ("mha", 3.0)):
        write_items(layout, config, method, seeds=(1, 2), skill=skill)
    report = json.loads(evaluate.run(layout, config).read_text())
    assert (report["modality"], report["num_folds"]) == ("text", 1)
    design = report["comparison"]["family"]["design"]
    assert (design["unit"], design["unit_word"], design["n_units"], design["n_speakers"]) == ("item", "text", 240, None)
    scores = scores_of(layout)
    for method, entry in report["methods"].items():
        assert scores.speakers(method) == {}
        figure = scores.figure(method)
        assert (figure.resampled, figure.units) == ("text", 240)
        assert figure.mean == scores.figure(method, unit="clip").mean
        assert entry["missing"] == []
    (pair,) = scores.comparisons("accuracy")
    assert (pair.runs, pair.behind, pair.p_folds) == (2, 2, None)


def test_authors_that_are_known_are_scored_one_by_one(tmp_path):
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none"]})
    write_items(layout, config, "none", seeds=(1,), authors=6)
    evaluate.run(layout, config)
    speakers = scores_of(layout).speakers("none")
    assert [(name, number) for name, (_, number) in speakers.items()] == [(f"w{index}", 40) for index in range(6)]
    assert scores_of(layout).figure("none").resampled == "author"


def test_fine_tuned_encoders_are_scored_behind_the_methods_and_marked(tmp_path):
    config = Config.model_validate({"methods": ["none"], "finetunes": ["lora-r8", "lora-r8-published", "linear-probe"]})
    layout = make_layout(tmp_path)
    write_items(layout, config, "none", seeds=(1,))
    write_items(layout, config, "lora-r8", seeds=(1,), changes=tuned(96, 96, notes=["rank 8"]))
    write_items(layout, config, "lora-r8-published", seeds=(1,), changes=tuned(96, 0))
    write_items(layout, config, "linear-probe", seeds=(1,), changes=tuned(0, 0))
    report = json.loads(evaluate.run(layout, config).read_text())
    assert {name: entry["label"] for name, entry in report["methods"].items()} == {
        "none": "none", "lora-r8": "lora-r8 (fine-tuned)", "lora-r8-published": "lora-r8-published (no effect)",
        "linear-probe": "linear-probe",
    }  # fmt: skip
    assert [entry["finetune"] for entry in report["methods"].values()] == [False, True, True, True]
    assert report["methods"]["lora-r8-published"]["effect"]["with_gradient"] == 0
    assert "lora-r8: rank 8" in report["notes"]
    assert shown_of(layout)["lora-r8"]["note"] == "fine-tuned"


def test_a_probe_that_is_listed_first_does_not_tell_how_the_others_were_trained(tmp_path):
    """It records no steps, so it would seem that nothing was refitted."""
    config = Config.model_validate({"methods": ["ridge-last", "none"]})
    layout = make_layout(tmp_path)
    recorded = {"train": {"dev_fraction": 0.1, "refit": True, "selection": "dev-group"}}
    write_items(layout, config, "ridge-last", seeds=(1,), changes={"run.config": recorded})
    write_items(layout, config, "none", seeds=(1,))
    evaluate.run(layout, config)
    found = read_evaluation(layout.stage("evaluate"))
    assert (found.selection, found.refit) == ("dev-group", True)
    assert found.provenance.config["train"]["steps"] == config.train.steps


def probed(tmp_path, skills, *, reference=None, changes=None, margin=0.02):
    """Methods beside `ridge-concat`, evaluated."""
    config = Config.model_validate(
        {"methods": list(skills), "evaluate": {"reference": reference, "margin": margin}}
    )  # fmt: skip
    layout = make_layout(tmp_path)
    for method, skill in skills.items():
        write_method(layout, config, method, skill=skill, changes=(changes or {}).get(method))
    return layout, json.loads(evaluate.run(layout, config).read_text())


def test_undertrained_methods_are_marked_wherever_a_figure_stands(tmp_path, caplog):
    layout, report = probed(tmp_path, {"none": 0.8, "mha": 2.5, "ridge-concat": 2.5}, margin=0.2)
    assert report["fairness"]["verdict"] == "not fair"
    assert list(report["methods"]) == list(report["fairness"]["methods"]) == ["none", "mha", "ridge-concat"]
    assert report["methods"]["none"]["label"] == "none (undertrained)"
    assert report["methods"]["mha"]["label"] == "mha"
    assert "none: undertrained: " in caplog.text
    assert any(note.startswith("none: undertrained: ") for note in report["notes"])
    assert {name: entry.get("note") for name, entry in shown_of(layout).items()} == {
        "mha": None, "none": "undertrained", "ridge-concat": None,
    }  # fmt: skip
    rows = pl.read_parquet(layout.stage("evaluate") / "history.parquet").to_dicts()
    assert {row["method"] for row in rows} == {"none", "mha", "ridge-concat"}


def test_the_default_reference_does_not_depend_on_results(tmp_path, caplog):
    skills = {"mha": 0.0, "none": 0.8, "gqa": 2.6, "ridge-concat": 2.5}
    _, report = probed(tmp_path / "a", skills, margin=0.2)
    assert report["comparison"]["reference"] == "none"
    assert report["comparison"]["family"]["reference"] == "none"
    warning = "the reference is {}, so training alone may explain every difference from it"
    assert warning.format("none (undertrained)") in caplog.messages
    _, report = probed(tmp_path / "b", {"mha": 0.0, "gqa": 2.6, "ridge-concat": 2.5})
    assert report["comparison"]["reference"] == "mha"  # the first of the list
    assert warning.format("mha (learned nothing)") in caplog.messages
    caplog.clear()
    _, report = probed(tmp_path / "c", skills, reference="gqa", margin=0.2)
    assert report["comparison"]["reference"] == "gqa"
    _, report = probed(tmp_path / "d", {"mha": 2.5, "none": 2.5})
    assert report["comparison"]["reference"] == "none"
    assert not [message for message in caplog.messages if message.startswith("the reference is")]
    assert Config(methods=[], finetunes=["lora-r8", "linear-probe"]).reference == "lora-r8"


def test_a_reference_with_missing_folds_is_not_replaced(layout):
    for number in (4, 5):
        shutil.rmtree(layout.method("none") / f"fold{number}-seed1")
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    assert report["comparison"] == {"reference": "none", "left_out": ["none"], "family": None}
    write_json(layout.method("none") / "skipped.json", {"reason": "no such GPU"})
    report = json.loads(evaluate.run(layout, CONFIG).read_text())
    assert report["comparison"] == {"reference": "none", "left_out": [], "family": None}


def test_formats_of_folds_from_several_runs_are_named(layout):
    """Where they were copied together; a run trains in one."""
    assert not any("precision" in note for note in json.loads(evaluate.run(layout, CONFIG).read_text())["notes"])
    write_method(layout, CONFIG, "mha", skill=0.5, changes={"meta.precision": "bfloat16"})
    notes = json.loads(evaluate.run(layout, CONFIG).read_text())["notes"]
    assert [note for note in notes if "precision" in note] == [
        "trained in bfloat16 and float32, because folds come from several runs; to compare them in one format, name it "
        "in the pipeline's file (train.precision) and train again"
    ]
