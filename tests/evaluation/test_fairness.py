"""Planted cases of unequal training: each is found, named with its reason, and nothing else is."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from daamctl.artifacts.evaluation import Fairness
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.evaluation.comparison import item_table, method_intervals
from daamctl.evaluation.fairness import assess
from daamctl.evaluation.scoring import items_of
from tests.fixtures.folds import make_layout, write_fold, write_items, write_method

CONFIG = Config.model_validate({"train": {"steps": None, "epochs": 35, "schedule": "plateau", "refit": False}})


def search(rates: list[float], chosen: int, edges: list[str] | None = None) -> dict[str, Any]:
    """A search over learning rates."""
    candidates = [{"settings": {"lr": rate}, "dev_accuracy": [0.5, 0.6], "dev_loss": [1.0, 0.9]} for rate in rates]
    return {"steps": 20, "candidates": candidates, "chosen": chosen, "edges": edges or []}


def write(root: Path, methods: dict[str, dict[str, Any]], config: Config = CONFIG) -> Layout:
    layout = make_layout(root)
    for method, options in methods.items():
        write_method(layout, config, method, **options)
    return layout


def judge(layout: Layout, methods: list[str], *, margin: float = 0.02) -> Fairness:
    folds = {method: read_folds(layout.method(method)) for method in methods}
    items = {method: [items_of(fold.predictions(), "utterance") for fold in part] for method, part in folds.items()}
    tables = {method: item_table(folds[method], items[method]) for method in methods}
    return assess(folds, items, tables, margin=margin)


def judged(root: Path, methods: dict[str, dict[str, Any]], *, margin: float = 0.02) -> Fairness:
    return judge(write(root, methods), list(methods), margin=margin)


def edited(layout: Layout, source: str, target: str, edit: Any = lambda part: part, **changes: Any) -> None:
    """Write a method's folds again under another name, with other predictions or records (`__` for the dot)."""
    records = {name.replace("__", "."): value for name, value in changes.items()}
    for fold in read_folds(layout.method(source)):
        write_fold(layout, CONFIG, target, fold.fold, fold.seed, edit(fold.predictions()), changes=records)


def constant(part: pl.DataFrame) -> pl.DataFrame:
    """Every item gets class 1, with logits of its own."""
    logits = np.asarray(part["logits"].to_list()) * 0.1
    logits[:, 1] += 10
    return part.with_columns(logits=pl.Series(logits.tolist(), dtype=pl.List(pl.Float32)))


def test_a_rate_that_is_too_small_shows_as_a_gap(tmp_path: Path) -> None:
    same = {"metrics.train_accuracy": 0.8}
    skills = {"mean": {"skill": 0.8, "changes": same}, "ridge-last": {"skill": 0.5}}
    found = judged(tmp_path, {**skills, "ridge-mean": {"skill": 2.5, "changes": same}})
    one = found.methods["mean"]
    accuracies = {}
    for method in ("mean", "ridge-mean"):
        parts = [items_of(fold.predictions(), "utterance") for fold in read_folds(make_layout(tmp_path).method(method))]
        accuracies[method] = [float((part.predictions == part.targets).mean()) for part in parts]
    gaps = np.subtract(accuracies["mean"], accuracies["ridge-mean"])
    assert one.counterpart == "ridge-mean"  # the closest, not the first listed
    assert list(one.gaps.values()) == pytest.approx(gaps)
    assert one.gap == pytest.approx(gaps.mean())
    assert one.status == "overfitted"  # as good as the probe on the training parts
    assert found.verdict == "not fair"
    assert found.text == (
        f"This comparison is not fair: mean is overfitted. mean: {-100 * gaps.mean():.1f} points below ridge-mean, "
        "equal to it on the training parts, equal to it on what was held out."
    )
    assert found.methods["ridge-mean"].status == "closed form"


@pytest.mark.parametrize(
    ("train", "dev", "refits", "mark", "reason"),
    [
        (0.5, 0.4, 0, "undertrained", "30.0 points below it on the training parts"),
        (0.77, 0.4, 0, "undertrained", "3.0 points below it on the training parts"),
        (0.79, 0.4, 0, "overfitted", "20.0 points below it on what was held out"),
        (1.0, 0.4, 0, "overfitted", "20.0 points above it on the training parts"),
        (1.0, 0.7, 2, "collapsed", "the refit collapsed in 5 of 5 runs"),
    ],
)
def test_the_cause_of_a_gap_is_named(
    tmp_path: Path, train: float, dev: float, refits: int, mark: str, reason: str
) -> None:
    changes = {"metrics.train_accuracy": train, "metrics.dev_accuracy": dev, "metrics.collapsed": refits}
    probe = {"skill": 2.5, "changes": {"metrics.train_accuracy": 0.8}}
    found = judged(tmp_path, {"mean": {"skill": 0.8, "changes": changes}, "ridge-mean": probe})
    one = found.methods["mean"]
    assert (one.status, one.mark) == (mark, mark)
    assert reason in one.reasons
    assert one.train_gap == pytest.approx(train - 0.8)
    assert one.dev_gap == pytest.approx(dev - 0.6)
    assert f"mean is {mark}" in found.text


@pytest.mark.parametrize(
    "changes",
    [
        {"search": search([1e-4, 1e-3, 1e-2], 2, ["lr"])},
        {"metrics.selected_epoch": 35},
        {"metrics.collapsed": 1},
        {"metrics.train_accuracy": 0.1},
    ],
)
def test_a_method_that_reaches_its_probe_is_fair(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = judged(tmp_path, {"mean": {"skill": 2.5, "changes": changes}, "ridge-mean": {"skill": 1.0}})
    assert (found.methods["mean"].status, found.verdict) == ("fair", "fair")


def test_taggers_are_compared_with_their_probe_by_entity_f1(tmp_path: Path) -> None:
    scores = {"mean": [0.1, 0.3], "ridge-mean": [0.5, 0.6]}
    folds = {}
    for method, f1 in scores.items():
        layout = write(tmp_path, {method: {"skill": 2.0}})
        for fold, value in zip(read_folds(layout.method(method))[:2], f1, strict=True):
            fold.result["metrics"]["entity_f1"] = value
            fold.result["metrics"]["train_accuracy"] = 0.8
            fold.result["run"]["modality"] = "tokens"
            folds.setdefault(method, []).append(fold)
    items = {method: [items_of(fold.predictions(), "clip") for fold in part] for method, part in folds.items()}
    tables = {method: item_table(folds[method], items[method]) for method in folds}
    one = assess(folds, items, tables, margin=0.02).methods["mean"]
    assert one.gaps == pytest.approx({"1": -0.4, "2": -0.3})
    assert one.reasons[0] == "35.0 points below ridge-mean"
    assert one.status == "overfitted"
    for fold in folds["mean"]:  # a hundredth of all words is a lot: almost every word is outside of entities
        fold.result["metrics"]["train_accuracy"] = 0.79
    assert assess(folds, items, tables, margin=0.02).methods["mean"].status == "undertrained"
    folds["mean"].append(replace(folds["mean"][0], result=deepcopy(folds["mean"][0].result)))
    folds["mean"][-1].result["run"] |= {"seed": 2}
    folds["mean"][-1].result["metrics"]["entity_f1"] = 0.9  # of other sentences, which the probe has not seen
    for part in folds.values():
        for fold in part:
            fold.result["run"]["config"]["train"]["shots"] = 8
    items["mean"] = [items_of(fold.predictions(), "clip") for fold in folds["mean"]]
    tables["mean"] = item_table(folds["mean"], items["mean"])
    assert assess(folds, items, tables, margin=0.02).methods["mean"].gaps == pytest.approx({"1": -0.4, "2": -0.3})


def test_the_margin_decides(tmp_path: Path) -> None:
    methods = {"mean": {"skill": 2.3}, "ridge-mean": {"skill": 2.5}}
    gap = judged(tmp_path, methods, margin=1.0).methods["mean"].gap
    assert gap is not None
    assert gap < 0
    for margin, verdict in ((-gap, "fair"), (-gap - 1e-6, "not fair")):
        assert judge(make_layout(tmp_path), list(methods), margin=margin).verdict == verdict


def test_seeds_are_averaged_and_a_probe_has_one(tmp_path: Path) -> None:
    layout = write(tmp_path, {"mean": {"skill": 1.5, "seeds": (1, 2)}, "ridge-mean": {"skill": 1.5}})
    one = judge(layout, ["mean", "ridge-mean"]).methods["mean"]
    runs = [items_of(fold.predictions(), "utterance") for fold in read_folds(layout.method("mean")) if fold.fold == 2]
    (probe,) = [fold for fold in read_folds(layout.method("ridge-mean")) if fold.fold == 2]
    theirs = items_of(probe.predictions(), "utterance")
    mean = np.mean([(part.predictions == part.targets).mean() for part in runs])
    assert one.gaps["2"] == pytest.approx(mean - (theirs.predictions == theirs.targets).mean())
    assert one.runs == 10


def test_without_a_probe_two_epochs_are_not_enough(tmp_path: Path) -> None:
    short = {"metrics.epochs": 2, "metrics.selected_epoch": 2}
    found = judged(tmp_path, {"mean": {"skill": 2.0, "changes": short}})
    assert found.methods["mean"].reasons == ["selected one of its last epochs in 5 of 5 runs"]
    assert found.text == (
        "This comparison is not fair: mean is undertrained. mean: selected one of its last epochs in 5 of 5 runs."
    )


@pytest.mark.parametrize(("selected", "late"), [(31, False), (32, True), (35, True)])
def test_the_last_tenth_of_the_epochs_is_late(tmp_path: Path, selected: int, late: bool) -> None:
    found = judged(tmp_path, {"mean": {"skill": 2.0, "epochs": 35, "changes": {"metrics.selected_epoch": selected}}})
    assert found.methods["mean"].unfinished == (5 if late else 0)


@pytest.mark.parametrize(
    "changes", [{"metrics.selected_epoch": None, "metrics.epochs": None}, {"run.config.train.selection": "last"}]
)
def test_where_no_epoch_is_selected_none_is_late(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = judged(tmp_path, {"mean": {"skill": 2.0, "changes": changes}})
    assert found.methods["mean"].unfinished is None
    assert found.methods["mean"].status == "not checked"


def test_half_of_the_runs_is_not_most(tmp_path: Path) -> None:
    layout = write(
        tmp_path, {"mean": {"skill": 2.0, "folds": (1, 2), "epochs": 35, "changes": {"metrics.selected_epoch": 35}}}
    )
    write_method(layout, CONFIG, "mean", skill=2.0, folds=(3, 4), epochs=35)
    assert judge(layout, ["mean"]).methods["mean"].mark == ""
    write_method(layout, CONFIG, "mean", skill=2.0, folds=(4,), epochs=35, changes={"metrics.selected_epoch": 35})
    assert judge(layout, ["mean"]).methods["mean"].mark == "undertrained"


def test_a_choice_at_the_edge_of_the_grid(tmp_path: Path) -> None:
    layout = write(tmp_path, {"ridge-mean": {"skill": 2.0, "changes": {"search": search([1, 10], 1, ["penalty"])}}})
    write_method(
        layout, CONFIG, "mean", skill=2.0, folds=(1, 2, 3), changes={"search": search([1e-4, 1e-3], 1, ["lr"])}
    )
    write_method(layout, CONFIG, "mean", skill=2.0, folds=(4, 5), changes={"search": search([1e-4, 3e-4, 1e-3], 1)})
    found = judge(layout, ["mean"])
    one = found.methods["mean"]
    assert one.chosen == {"lr": {"0.001": 3, "0.0003": 2}}
    assert (one.edges, one.highest) == ({"lr": 3}, {"lr": 3})
    assert one.reasons == ["chose the lowest or highest lr tried in 3 of 5 runs"]
    assert "mean: chose the lowest or highest lr tried in 3 of 5 runs" in found.text
    found = judge(layout, ["mean", "ridge-mean"], margin=1.0)
    assert found.methods["mean"].status == "fair"  # it reaches its probe
    assert found.methods["ridge-mean"].edges == {"penalty": 5}  # told, but a probe has no training to be cut short
    assert found.methods["ridge-mean"].status == "closed form"


def test_without_probe_and_search_nothing_is_checked(tmp_path: Path) -> None:
    found = judged(tmp_path / "a", {"mean": {"skill": 2.0}, "none": {"skill": 2.0}, "ridge-concat": {"skill": 1.0}})
    assert found.verdict == "not checked"
    assert found.methods["mean"].status == "not checked"
    assert found.methods["none"].status == "fair"
    assert (
        "was not checked for mean. To check it, add ridge-mean, closed-form probe of the same input, to the methods"
        in found.text
    )
    found = judged(tmp_path / "b", {"mean": {"skill": 2.0, "changes": {"search": search([1e-3, 1e-2, 1e-1], 1)}}})
    assert found.verdict == "fair"
    assert found.text.startswith("This comparison is fair: no method is more than 2 points below")
    found = judged(tmp_path / "c", {"mean": {"skill": 2.0, "changes": {"search": search([1e-3, 1e-2], 1)}}})
    assert found.verdict == "not checked"  # of two values each is an edge
    assert found.text.endswith("to the methods, or try three or more learning rates (search_lr).")


def test_one_class_for_every_item(tmp_path: Path) -> None:
    layout = write(tmp_path, {"mean": {"skill": 2.0}})
    edited(layout, "mean", "sga", constant)
    found = judge(layout, ["mean", "sga"])
    assert found.methods["sga"].mark == "learned nothing"
    assert found.methods["sga"].reasons == ["predicts the same class for every item of a fold"]
    assert found.text.endswith("sga learned nothing. sga: predicts the same class for every item of a fold.")
    assert found.notes == ["sga: learned nothing: predicts the same class for every item of a fold"]


@pytest.mark.parametrize(("skill", "nothing"), [(0.0, True), (1.5, False)])
def test_chance_over_folds_and_over_items(tmp_path: Path, skill: float, nothing: bool) -> None:
    for name, folds in (("folds", (1, 2, 3, 4, 5)), ("one", (1,)), ("two", (1, 2))):
        one = judged(tmp_path / name, {"mean": {"skill": skill, "folds": folds, "utterances": 120}}).methods["mean"]
        assert (one.mark == "learned nothing") is nothing, name
        if nothing:
            made = read_folds(make_layout(tmp_path / name).method("mean"))
            targets = np.concatenate([items_of(fold.predictions(), "utterance").targets for fold in made])
            share = 100 * np.bincount(targets).max() / len(targets)
            assert one.reasons[0].startswith("neither its accuracy, ")
            assert f"nor its balanced accuracy is above chance (most frequent class: {share:.1f} %)" in one.reasons[0]


def test_the_accuracy_of_a_method_at_chance_is_the_one_in_its_row(tmp_path: Path) -> None:
    layout = write(tmp_path, {"mean": {"skill": 0.0, "folds": (1, 2, 3), "utterances": 120}})
    (first, *others) = read_folds(layout.method("mean"))
    few = first.predictions().head(12)
    write_fold(layout, CONFIG, "mean", first.fold, first.seed, few)
    parts = [items_of(part, "utterance") for part in (few, *(fold.predictions() for fold in others))]
    level = 100 * np.mean([(part.predictions == part.targets).mean() for part in parts])
    pooled = 100 * np.concatenate([part.predictions == part.targets for part in parts]).mean()
    assert f"{level:.1f}" != f"{pooled:.1f}"
    (reason,) = judge(layout, ["mean"]).methods["mean"].reasons
    assert reason.startswith(f"neither its accuracy, {level:.1f} %, ")


def test_one_good_fold_of_five_may_be_chance(tmp_path: Path) -> None:
    layout = write(tmp_path, {"mean": {"skill": 0.0, "folds": (2, 3, 4, 5), "utterances": 120}})
    write_method(layout, CONFIG, "mean", skill=9.0, folds=(1,), utterances=120)
    assert judge(layout, ["mean"]).methods["mean"].mark == "learned nothing"


def test_folds_of_different_difficulty_are_not_chance(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    for fold, skill in ((1, 0.2), (2, 1.0), (3, 9.0)):
        write_method(layout, CONFIG, "mha", skill=skill, folds=(fold,), utterances=120)
    ten = pl.col("group") + pl.col("utterance_id").str.slice(-1)  # speakers in each fold
    edited(layout, "mha", "mean", lambda part: part.with_columns(speaker=ten))
    folds = read_folds(layout.method("mean"))
    items = [items_of(fold.predictions(), "utterance") for fold in folds]
    values = [float((part.predictions == part.targets).mean()) for part in items]
    assert np.mean(values) - stats.t.ppf(0.95, 2) * np.std(values, ddof=1) / np.sqrt(3) < 0.25  # of four classes
    interval = method_intervals({"mean": item_table(folds, items)})["mean"].metrics["accuracy"]
    targets = np.concatenate([part.targets for part in items])
    assert interval.low > np.bincount(targets).max() / len(targets)
    assert judge(layout, ["mean"]).methods["mean"].mark == ""


def test_an_official_split_is_judged_over_its_items(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    write_items(layout, CONFIG, "mean", skill=0.2)
    write_items(layout, CONFIG, "mha", skill=1.5)
    found = judge(layout, ["mean", "mha"])
    assert [found.methods[name].mark for name in ("mean", "mha")] == ["learned nothing", ""]


def test_epoch_1_everywhere(tmp_path: Path) -> None:
    first = {"metrics.selected_epoch": 1}
    assert judged(tmp_path / "a", {"mean": {"skill": 2.0, "changes": first}}).methods["mean"].reasons == [
        "selected epoch 1 in every run"
    ]
    for name, changes in (
        ("last", {"run.config.train.selection": "last"}),
        ("easy", {"metrics.dev_accuracy": 1.0}),
    ):
        found = judged(tmp_path / name, {"mean": {"skill": 2.0, "changes": {**first, **changes}}})
        assert found.methods["mean"].mark == "", name
    reached = {"mean": {"skill": 2.5, "changes": first}, "ridge-mean": {"skill": 1.0}}
    assert judged(tmp_path / "reached", reached).methods["mean"].mark == ""


def test_a_probe_at_chance_learned_nothing_which_is_not_unfair(tmp_path: Path) -> None:
    found = judged(tmp_path, {"mean": {"skill": 2.0}, "ridge-mean": {"skill": 0.0}})
    assert [one.mark for one in found.methods.values()] == ["", "learned nothing"]
    assert found.text == "This comparison is fair: no method is more than 2 points below its closed-form probe."


def test_a_method_at_chance_that_reaches_its_probe_is_not_unfair(tmp_path: Path) -> None:
    for probe, doubtful in ((-1.0, False), (2.0, True)):
        found = judged(tmp_path / str(probe), {"mean": {"skill": 0.0}, "ridge-mean": {"skill": probe}})
        assert found.methods["mean"].mark == "learned nothing"
        assert found.methods["mean"].doubtful is doubtful
        assert found.verdict == ("not fair" if doubtful else "fair")


def test_a_method_that_does_nothing_is_found(tmp_path: Path) -> None:
    layout = write(tmp_path, {"none-mlp": {"skill": 2.0, "density_shape": (6, 8)}, "mha": {"skill": 2.0}})
    maps = {"trained": np.ones((6, 8), np.float32), "untrained": np.ones((6, 8), np.float32)}
    for fold in read_folds(layout.method("none-mlp")):
        changes = {"run.config.method": {"num_heads": 6}}
        write_fold(layout, CONFIG, "daam-v1-mlp", fold.fold, 1, fold.predictions(), density=maps, changes=changes)
    (group,) = judge(layout, ["none-mlp", "mha", "daam-v1-mlp"]).identical
    assert group.methods == ["none-mlp", "daam-v1-mlp"]
    assert group.reason == "the density of daam-v1-mlp is constant because each head has one layer, so it has no effect"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (("daam-v1", {"num_heads": 1}), ("daam-v2", {}), "daam-v1 with one head is the same as daam-v2"),
        (("daam-v1", {"num_heads": "auto"}), ("daam-v2", {}), "daam-v1 with one head is the same as daam-v2"),
        (("daam-v1-mlp", {}), ("daam-v1", {"decoder": "mlp"}), "they are the same method with the same settings"),
        (("mha", {}), ("gqa", {}), None),
        (("lora-r4", {}), ("lora-r8", {}), None),
    ],
)
def test_two_names_for_one_computation(
    tmp_path: Path, first: tuple[str, Any], second: tuple[str, Any], reason: str | None
) -> None:
    layers = [1, 2, 3]  # over three, auto is one head; as in a bundle, there are no weights that tell it
    layout = write(tmp_path, {first[0]: {"changes": {"run.config.method": first[1], "run.layers": layers}}})
    edited(layout, first[0], second[0], run__config__method=second[1], run__layers=layers)
    found = judge(layout, [first[0], second[0]])
    assert [(group.methods, group.reason) for group in found.identical] == [([first[0], second[0]], reason)]
    said = f"the predictions of {first[0]} and {second[0]} are identical in every fold: "
    assert said + (reason or "the reason is unknown") in found.notes


def test_a_probe_that_chose_the_last_layer_everywhere_is_that_layers_probe(tmp_path: Path) -> None:
    layout = write(tmp_path, {"ridge-last": {}})
    for last in (True, False):
        for fold in read_folds(layout.method("ridge-last")):
            layers = fold.result["run"]["layers"]
            curves: dict[str, list[float]] = {"dev_accuracy": [0.5], "dev_loss": [1.0]}
            tried = [{"settings": {"penalty": 1.0, "layer": float(layer)}, **curves} for layer in layers[-2:]]
            place = 0 if fold.fold == 2 and not last else 1
            chosen = {"candidates": tried, "chosen": place, "edges": [], "steps": 0}
            write_fold(layout, CONFIG, "ridge-best-layer", fold.fold, 1, fold.predictions(), changes={"search": chosen})
        (group,) = judge(layout, ["ridge-last", "ridge-best-layer"]).identical
        assert group.reason == ("ridge-best-layer chose the last layer in every fold" if last else None)


def test_one_layer_leaves_nothing_to_fuse(tmp_path: Path) -> None:
    layout = write(tmp_path, {"mean": {"changes": {"run.layers": [3]}}})
    edited(layout, "mean", "last-layer", run__layers=[3])
    (group,) = judge(layout, ["mean", "last-layer"]).identical
    assert group.reason == "there is only one layer, so there is nothing to fuse"


def test_nearly_identical_is_not_identical(tmp_path: Path) -> None:
    def moved(by: float) -> Any:
        def edit(part: pl.DataFrame) -> pl.DataFrame:
            logits = np.asarray(part["logits"].to_list(), dtype=np.float32)
            logits[0] *= 1 + np.float32(by)
            return part.with_columns(logits=pl.Series(logits.tolist(), dtype=pl.List(pl.Float32)))

        return edit

    layout = write(tmp_path, {"mean": {}})
    edited(layout, "mean", "mha", moved(1e-2))
    edited(layout, "mean", "gqa", moved(1e-7))
    (group,) = judge(layout, ["mean", "mha", "gqa"]).identical
    assert group.methods == ["mean", "gqa"]
    write_method(layout, CONFIG, "gqa", folds=(5,))
    assert judge(layout, ["mean", "mha", "gqa"]).identical == []
