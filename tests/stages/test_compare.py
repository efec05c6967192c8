"""Stage `compare` on synthetic folds: how sides are opened and matched, printed rows, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import polars as pl
import pytest
import yaml

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import load_config
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.statistics import nadeau_bengio
from daamctl.paper.tables import read_published
from daamctl.planning.repair import repair_of
from daamctl.stages import compare, evaluate
from tests.fixtures.folds import write_fold, write_method

BASE = {"download": {"corpus": "iemocap"}, "extract": {"encoder": "wavlm-large"}, "methods": ["mha", "daam-v1"]}


def make(project, name, *, skill=1.0, changes=None, **settings):
    """A pipeline with folds of all its methods; returns its layout and settings."""
    (project / "pipelines" / f"{name}.yaml").write_text(yaml.safe_dump({**BASE, **settings}), encoding="utf-8")
    config = load_config(project, name)
    layout = Layout.of(project, name, config)
    for method in config.methods:
        write_method(layout, config, method, skill=skill, changes=changes, seeds=config.train.seeds)
    return layout, config


def result_of(path):
    return json.loads(path.read_text(encoding="utf-8"))


def rewrite(layout, config, method, edit, **options):
    """Write a method's folds again with other predictions or records."""
    for fold in read_folds(layout.method(method)):
        write_fold(layout, config, method, fold.fold, fold.seed, edit(fold.predictions()), **options)


@pytest.fixture
def pair(project):
    """`left` and `right`: other embeddings, other tail and learning rate, another title, two seeds each."""
    left = make(project, "left", skill=1.0, train={"seeds": [1, 2]})
    right = make(
        project, "right", skill=0.7, train={"seeds": [1, 2], "lr": 0.001}, segment={"tail": "drop"},
        report={"title": "Other"}, changes={"meta.embeddings_key": "ffff000011112222"},
    )  # fmt: skip
    return left, right


def test_both_sides_are_opened_and_set_side_by_side(project, pair):
    result = result_of(compare.run(project, "left", "right"))
    assert (result["first"], result["second"], result["kind"]) == ("left", "right", "paired")
    assert result["matched"] == [["mha", "mha"], ["daam-v1", "daam-v1"]]
    for method, entry in zip(("mha", "daam-v1"), result["pairs"], strict=True):
        assert (entry["first"], entry["second"]) == (f"left/{method}", f"right/{method}")
        assert entry["design"]["seeds"] == {f"left/{method}": [1, 2], f"right/{method}": [1, 2]}
        row = next(row for row in result["comparisons"] if row["first"] == entry["first"])
        met = [row[name] for name in ("first_value", "second_value")]
        for value, (layout, _) in zip(met, pair, strict=True):
            items = [items_of(fold.predictions(), "utterance") for fold in read_folds(layout.method(method))]
            assert value == pytest.approx(np.mean([np.mean(part.predictions == part.targets) for part in items]))
        assert met[0] > met[1]


def test_an_evaluation_of_other_folds_is_named(project, pair, caplog):
    for layout, config in pair:
        evaluate.run(layout, config)
    compare.run(project, "left", "right")
    assert "the evaluation of" not in caplog.text
    make(project, "right", skill=0.7, train={"seeds": [1, 2]}, changes={"meta.train_s": 99.0})
    compare.run(project, "left", "right")
    assert (
        "the evaluation of 'right': These methods were trained again after scoring: mha, daam-v1. To update, run: "
        "daamctl evaluate right"
    ) in caplog.messages
    caplog.clear()
    compare.run(project, "right/mha", "right/daam-v1")  # both sides are of one run
    assert sum("the evaluation of 'right'" in line for line in caplog.messages) == 1
    caplog.clear()
    (pair[1][0].stage("evaluate") / "evaluation.json").write_text("{}")  # it is not needed
    assert compare.run(project, "left", "right").is_file()
    (warning,) = [line for line in caplog.messages if line.startswith("the evaluation of 'right': ")]
    assert "daamctl evaluate right" in warning


def test_every_planted_difference_is_listed_and_no_other(project, pair):
    settings = result_of(compare.run(project, "left", "right"))["settings"]
    listed = {row["name"]: (row["first"], row["second"], row["methods"]) for row in settings["can_change"]}
    assert listed == {
        "segment.tail": ("merge", "drop", None),
        "train.lr": (0.0001, 0.001, None),
        "embeddings_key": ("00112233aabbccdd", "ffff000011112222", None),
    }
    assert settings["cannot_change"] == [{"name": "report.title", "first": None, "second": "Other", "methods": None}]


def test_methods_of_one_side_only_are_named(project):
    make(project, "left", methods=["mha", "gqa"])
    make(project, "right", methods=["none", "mha"])
    result = result_of(compare.run(project, "left", "right"))
    assert result["matched"] == [["mha", "mha"]]
    assert result["unmatched"] == {"first": ["gqa"], "second": ["none"]}


def test_two_methods_of_one_pipeline(project):
    make(project, "left")
    path = compare.run(project, "left/mha", "left/daam-v1")
    assert path == project / "data/compare/left.mha__left.daam-v1/comparison.json"
    assert result_of(path)["matched"] == [["mha", "daam-v1"]]


def test_no_two_comparisons_share_a_folder(project):
    names = ["a", "a__b", "b__c", "c", "a.mha", "a_", "_c"]
    for name in names:
        make(project, name)
    sides = [("a__b", "c"), ("a", "b__c"), ("a/mha", "c"), ("a.mha", "c"), ("a_", "c"), ("a", "_c")]
    paths = [compare.run(project, *both) for both in sides]
    assert len(set(paths)) == len(sides)
    assert paths[2] == project / "data/compare/a.mha__c/comparison.json"


def test_one_method_meets_its_namesake(project, pair):
    assert result_of(compare.run(project, "left/mha", "right"))["matched"] == [["mha", "mha"]]


def test_ad_hoc_runs_are_sides(project):
    config = load_config(project, None, {"download.corpus": "iemocap", "extract.encoder": "wavlm-large"})
    write_method(Layout.of(project, None, config), config, "mha", seeds=(3, 4))
    make(project, "left")
    result = result_of(compare.run(project, "iemocap-wavlm-large", "left/mha"))
    assert result["matched"] == [["mha", "mha"]]
    assert result["pairs"][0]["design"]["seeds"] == {"iemocap-wavlm-large/mha": [3, 4], "left/mha": [1]}
    assert {row["name"] for row in result["settings"]["can_change"]} == {"runs.seeds"}


# the same items in other folds


def refold(layout, config, method, *, keep=lambda rows: rows):
    """Write a method's folds again, as two folds: the women's test items and the men's."""
    folds = read_folds(layout.method(method))
    rows = pl.concat([fold.predictions() for fold in folds])
    for fold in folds:
        shutil.rmtree(fold.folder)
    for number, letter in enumerate("FM", 1):
        part = keep(rows.filter(pl.col("speaker").str.ends_with(letter)))
        write_fold(layout, config, method, number, 1, part, changes={"run.num_folds": 2, "run.test_group": letter})


def test_the_same_items_in_other_folds_are_paired_whatever_their_fold(project):
    make(project, "left", methods=["mha"])
    layout, config = make(project, "right", methods=["mha"], skill=0.5)
    plain = result_of(compare.run(project, "left", "right"))
    refold(layout, config, "mha")
    result = result_of(compare.run(project, "left", "right"))
    (entry,) = result["pairs"]
    for found, before in zip(result["comparisons"], plain["comparisons"], strict=True):
        assert found["p_folds"] is None
        assert [found[name] for name in ("wins", "losses", "ties")] == [
            before[name] for name in ("wins", "losses", "ties")
        ]
        for name in ("first_value", "second_value", "difference", "p"):
            assert found[name] == pytest.approx(before[name])
        assert found["runs"] == 0
    assert {row["item"] for row in entry["disagreements"]} == {
        row["item"] for row in plain["pairs"][0]["disagreements"]
    }
    assert (entry["design"]["unit"], entry["design"]["n_folds"]) == ("speaker", 0)
    assert [note for note in result["notes"] if "folds" in note] == [
        "the test items are the same, but the folds are not (left: 5, right: 2), so the methods were trained on other "
        "items. Items are paired, all folds together; nothing is tested over folds"
    ]


def test_other_items_in_other_folds_are_refused(project):
    make(project, "left", methods=["mha"])
    layout, config = make(project, "right", methods=["mha"])
    refold(layout, config, "mha", keep=lambda rows: rows[:-5])
    with pytest.raises(ArtifactError, match="were not tested on the same items"):
        compare.run(project, "left", "right")


# refusals


@pytest.mark.parametrize(
    ("first", "second", "kind", "message", "fix"),
    [
        ("lefft", "right", UnknownNameError, "unknown pipeline or run 'lefft'", "did you mean 'left'"),
        ("left/daam-v9", "right", UnknownNameError, "unknown method 'daam-v9' of 'left'", "did you mean 'daam-v1'"),
        (
            "left/mha/fold1-seed1",
            "right",
            UnknownNameError,
            "unknown method 'mha/fold1-seed1' of 'left'",
            "known: daam-v1, mha",
        ),
        ("left/mha", "lone", UnknownNameError, "unknown method 'mha' of 'lone'", "known: none"),
        ("left", "lone", ConfigError, "share no method", "daamctl compare left/mha lone/none"),
        ("left", "left", ConfigError, "are the same, so there is nothing", None),
        (
            "published:T2-iemocap/mha",
            "published:daam-v4/T2-iemocap/mha",
            ConfigError,
            "are the same, so there is nothing",
            None,
        ),
        ("published:T2-iemcap/mha", "left", UnknownNameError, "published table 'T2-iemcap/mha'", "'T2-iemocap'"),
        ("published:T2-iemocap/mho", "left", UnknownNameError, "row 'mho' of 'published:T2-iemocap'", "'mha'"),
        ("published:T2-iemocap/lora-r4", "left", UnknownNameError, "method 'lora-r4' of 'left'", "known: daam-v1, mha"),
    ],
)
def test_names_that_do_not_fit_are_refused(project, first, second, kind, message, fix):
    make(project, "left")
    make(project, "right")
    make(project, "lone", methods=["none"])
    with pytest.raises(kind, match=message) as error:
        compare.run(project, first, second)
    assert fix is None or fix in error.value.fix
    assert not (project / "data" / "compare").exists()


def test_missing_folds_name_the_command(project):
    left, _ = make(project, "left"), make(project, "right")
    (left[0].method("mha") / "fold3-seed1" / "result.json").unlink()
    with pytest.raises(ArtifactError, match="'left/mha' lacks fold 3 seed 1") as error:
        compare.run(project, "left", "right")
    assert repair_of(error.value.path) == "make it again: daamctl train left --method mha"
    compare.run(project, "left/daam-v1", "right/daam-v1")
    with pytest.raises(ArtifactError, match="'demo/mean' has no finished fold") as error:
        compare.run(project, "demo/mean", "right/mha")
    assert repair_of(error.value.path) == "make it: daamctl train demo --method mean"


def test_folds_made_differently_are_refused(project):
    left, _ = make(project, "left"), make(project, "right")
    rows = read_folds(left[0].method("mha"))[4].predictions()
    write_fold(*left, "mha", 5, 1, rows, changes={"run.config.train.epochs": 3})
    with pytest.raises(ArtifactError, match=r"folds of 'mha' were made with different settings: train\.epochs"):
        compare.run(project, "left", "right")


def test_other_test_items_are_refused_with_the_settings_to_blame(project):
    make(project, "left")
    right = make(project, "right", download={"corpus": "iemocap", "num_groups": 4})
    for method in ("mha", "daam-v1"):
        rewrite(*right, method, lambda part: part.slice(3))
    with pytest.raises(ArtifactError, match="'left/mha' and 'right/mha' were not tested on the same items") as error:
        compare.run(project, "left", "right")
    assert "they differ in download.num_groups; different items cannot be paired" in error.value.fix
    assert "daamctl download left, daamctl download right" in error.value.fix


def test_units_must_agree_or_be_chosen(project):
    make(project, "left")
    make(project, "right", evaluate={"unit": "clip"})
    with pytest.raises(ConfigError, match=r"evaluate\.unit differs: utterance for 'left', clip for 'right'") as error:
        compare.run(project, "left", "right")
    assert "--unit utterance" in error.value.fix
    result = result_of(compare.run(project, "left", "right", unit="clip"))
    assert result["unit"] == "clip"
    assert result["pairs"][0]["design"]["n_items"] > 200
    with pytest.raises(ConfigError, match="--unit does not apply"):
        compare.run(project, "published:T2-iemocap/mha", "published:T2-iemocap/daam-v1", unit="clip")


def test_clips_cut_differently_are_compared_by_utterance_only(project, pair):
    with pytest.raises(ArtifactError, match="same utterances but on different clips") as error:
        compare.run(project, "left", "right", unit="clip")
    assert error.value.fix == "compare them by utterance: daamctl compare left right --unit utterance"
    assert result_of(compare.run(project, "left", "right", unit="utterance"))["unit"] == "utterance"


# published rows


def test_ours_beside_a_printed_row(project):
    layout, config = make(project, "left", train={"seeds": [1, 2]})
    result = result_of(compare.run(project, "left/mha", "published:T2-iemocap/mha"))
    evaluate.run(layout, config)
    scores = read_evaluation(layout.stage("evaluate")).scores
    pair, compared = result["pairs"][0], result["comparisons"][0]
    assert result["kind"] == "printed"
    ours = {one["metric"]: one for one in result["figures"] if one["method"] == "left/mha"}
    for metric in ("accuracy_best_on_test", "accuracy", "balanced_accuracy"):
        figure, found = scores.figure("mha", metric), ours[metric]
        assert (found["mean"], found["std"], found["runs"]) == (figure.mean, figure.std, figure.runs)
    row = read_published("T2-iemocap").row("mha")
    assert (pair["second"]["printed"], pair["second"]["wrong"]) == ("62.3 ± 2.00", ["deviation"])
    printed = next(one for one in result["figures"] if one["method"] == "published:T2-iemocap/mha")
    assert printed["std"] == pytest.approx(row.sample_std / 100)
    assert compared["difference"] == pytest.approx(ours["accuracy_best_on_test"]["mean"] - row.mean / 100)
    best = {}
    for fold in read_folds(layout.method("mha")):
        best.setdefault(fold.fold, []).append(fold.result["metrics"]["accuracy_best_on_test"])
    by_session = {(one["method"], one["fold"]): one["value"] for one in result["scores"]}
    for session in range(1, 6):
        assert by_session["left/mha", session] == pytest.approx(np.mean(best[session]))
        assert by_session["published:T2-iemocap/mha", session] == row.folds[f"F{session}"] / 100
    assert compared["test"] is None
    assert "another protocol" in pair["about_test"]
    listed = {row["name"]: (row["first"], row["second"]) for row in result["settings"]["can_change"]}
    assert listed == {
        "train.selection": ("dev-group", "best-on-test"),
        "scoring.unit": ("utterance", "clip"),
        "runs.per_fold": (2, 1),
    }
    assert result["settings"]["not_known"]
    text = "\n".join(result["notes"])
    assert "published:T2-iemocap/mha: the printed deviation cannot come from the printed folds" in text
    assert read_published("T2-iemocap").protocol in text


def test_a_printed_row_may_come_first(project):
    make(project, "left")
    one = result_of(compare.run(project, "left/mha", "published:T2-iemocap/mha"))["comparisons"][0]
    other = result_of(compare.run(project, "published:T2-iemocap/mha", "left/mha"))["comparisons"][0]
    assert one["difference"] == -other["difference"]
    assert (one["first"], one["first_value"]) == (other["second"], other["second_value"])


def test_a_pipeline_beside_a_whole_table(project):
    make(project, "left", methods=["mha", "daam-v1", "none"])
    result = result_of(compare.run(project, "left", "published:gaam-v1/T2"))
    assert result["matched"] == [["mha", "mha"], ["daam-v1", "daam-v1"]]
    assert result["unmatched"]["first"] == ["none"]
    assert "sga" in result["unmatched"]["second"]


def test_another_corpus_is_not_set_fold_by_fold(project):
    make(project, "left", download={"corpus": "demo"})
    result = result_of(compare.run(project, "left/mha", "published:T2-iemocap/mha"))
    assert "the corpora differ: demo and iemocap" in result["pairs"][0]["not_aligned"]
    assert {row["name"] for row in result["settings"]["can_change"]} >= {"download.corpus"}


# daam-v1 against the other rows of gaam-v1's table 2: p, computed elsewhere (docs/sources.md#paired-comparison)
NADEAU_BENGIO = {"mha": 0.005, "mha-bn": 0.007, "sga": 0.014, "bi-sga": 0.101, "daam-v2": 0.042, "gqdaam": 0.499}


@pytest.mark.parametrize("method", NADEAU_BENGIO)
def test_two_printed_rows(project, method):
    result = result_of(compare.run(project, "published:gaam-v1/T2/daam-v1", f"published:gaam-v1/T2/{method}"))
    found = result["comparisons"][0]
    assert (result["kind"], result["unit"]) == ("both-printed", "as printed")
    assert found["p"] == pytest.approx(NADEAU_BENGIO[method], abs=6e-4)
    assert "printed folds" in result["pairs"][0]["about_test"]
    table = read_published("gaam-v1/T2")
    gaps = [table.row("daam-v1").folds[f] - table.row(method).folds[f] for f in table.row(method).folds]
    assert 100 * found["difference"] == pytest.approx(np.mean(gaps))
    assert [row["name"] for row in result["settings"]["can_change"]] == ["method"]


def test_lora_columns_are_other_sessions(project):
    """Printed column k of a LoRA row is not session k (D15), so pairing by column would be wrong."""
    result = result_of(compare.run(project, "published:T2-iemocap/lora-r4", "published:T2-iemocap/mha"))
    table = read_published("T2-iemocap")
    lora, mha = table.row("lora-r4").folds, table.row("mha").folds
    column = {5: "F1", 3: "F2", 1: "F3", 2: "F4", 4: "F5"}
    gaps = [(lora[column[session]] - mha[f"F{session}"]) / 100 for session in range(1, 6)]
    assert result["comparisons"][0]["p"] == pytest.approx(nadeau_bengio(gaps, 1, 4).p)
    assert any("paired by session" in note and "(D15)" in note for note in result["notes"])
    both = result_of(compare.run(project, "published:T2-iemocap/lora-r4", "published:T2-iemocap/lora-r8"))
    assert not any("paired by session" in note for note in both["notes"])


def test_repeats_of_one_split_are_not_paired(project):
    result = result_of(compare.run(project, "published:T2-cifar100/mha", "published:T2-cifar100/daam-v1"))
    assert result["pairs"][0]["about_test"] == "no test: the published columns cannot be paired"
    assert result["comparisons"][0]["test"] is None
    assert result["comparisons"][0]["difference"] < 0


def test_whole_tables_are_one_family(project):
    result = result_of(compare.run(project, "published:T2-iemocap", "published:daam-blog/ablation-iemocap"))
    assert result["matched"] == [[name, name] for name in ("single-layer-high-if", "single-layer-low-if")]


def test_a_run_with_another_recipe_is_compared_with_its_pipeline(project):
    _, config = make(project, "toy")
    again = load_config(project, "toy", {"train.recipe": "published"})
    layout = Layout.of(project, "toy", again, ["train.recipe=published"], "published")
    for method in again.methods:
        write_method(layout, again, method, seeds=again.train.seeds)
    found = result_of(compare.run(project, "toy", "toy-published-recipe"))
    assert (found["first"], found["second"]) == ("toy", "toy-published-recipe")
    assert found["matched"] == [[name, name] for name in config.methods]
    (project / "data/train/toy-published-recipe/mha/fold1-seed1/result.json").unlink()
    with pytest.raises(ArtifactError, match="lacks fold 1 seed 1") as error:
        compare.run(project, "toy", "toy-published-recipe")
    command = "daamctl train toy --set train.recipe=published --method mha"
    assert repair_of(error.value.path) == f"make it again: {command}"
