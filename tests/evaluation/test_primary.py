"""Entity scores of folds: documents as units where they are known, and differences over trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_rel

from daamctl.artifacts.results import Fold
from daamctl.artifacts.statistics import NonInferiority
from daamctl.data.spans import word_id
from daamctl.data.task import Task, task_of
from daamctl.errors import ArtifactError
from daamctl.evaluation.primary import over_trials, primary_rows
from daamctl.evaluation.trials import compare_primary, primary_not_worse

CLASSES = ["O", "B-X"]


@dataclass
class Trained:
    """What is read of a fold."""

    sources: list[str]
    wrong: int
    fold: int = 1
    seed: int = 1
    method: str = "mean"
    best: float | None = None

    @property
    def task(self) -> Task:
        return task_of("tokens", CLASSES)

    @property
    def result(self) -> dict[str, Any]:
        metrics = {} if self.best is None else {"entity_f1": 0.5, "entity_f1_best_on_test": self.best}
        return {"run": {"classes": CLASSES, "method": self.method}, "metrics": metrics}

    def predictions(self) -> pl.DataFrame:
        """Sentences of two words, of which the first is an entity; the first ones are predicted wrong."""
        sentences = [f"s{number}" for number in range(len(self.sources))]
        guess = [int(position == 0 and at >= self.wrong) for at in range(len(sentences)) for position in (0, 1)]
        return pl.DataFrame(
            {
                "clip_id": [word_id(name, position) for name in sentences for position in (0, 1)],
                "utterance_id": [word_id(name, position) for name in sentences for position in (0, 1)],
                "speaker": [source for source in self.sources for _ in (0, 1)],
                "target": [1, 0] * len(sentences),
                "logits": np.eye(2)[guess].tolist(),
            }
        )


def figures(rows: dict[str, list[Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """(method, metric) -> row."""
    return {(row["method"], row["metric"]): row for row in rows["figures"]}


@pytest.mark.parametrize(
    ("sources", "unit", "units"),
    [([f"s{number}" for number in range(12)], "sentence", 12), ([f"d{at // 3}" for at in range(12)], "document", 4)],
)
def test_documents_are_the_units_where_they_are_known(sources: list[str], unit: str, units: int) -> None:
    folds = {name: [cast(Fold, Trained(sources, wrong))] for name, wrong in (("a", 3), ("b", 6))}
    found = primary_rows(folds, ["a", "b"], "b")
    f1 = figures(found)["a", "entity_f1"]
    assert (f1["unit"], f1["resampled"], f1["units"]) == (unit, unit, units)
    assert f1["mean"] == f1["pooled"] == pytest.approx(2 * 9 / (12 + 9))
    (pair,) = found["comparisons"]
    assert (pair.first, pair.second, pair.unit, pair.units) == ("a", "b", unit, units)
    rows = Trained(sources, 0).predictions()
    assert task_of("tokens").with_sources(rows["utterance_id"], rows["speaker"]).source == unit
    assert task_of("text").with_sources(rows["utterance_id"], rows["speaker"]).source == "author"


def test_taggers_of_other_seeds_are_compared_by_the_figures_that_are_shown() -> None:
    sources = [f"s{number}" for number in range(12)]
    wrong = {"a": {1: 3, 2: 9}, "b": {1: 6}, "c": {3: 6}}
    folds = {
        name: [cast(Fold, Trained(sources, number, seed=seed)) for seed, number in trials.items()]
        for name, trials in wrong.items()
    }
    rows = primary_rows(folds, list(folds), "b")
    shown = {name: figures(rows)[name, "entity_f1"]["mean"] for name in folds}
    assert shown["a"] == pytest.approx(np.mean([2 * 9 / (12 + 9), 2 * 3 / (12 + 3)]))
    for found in rows["comparisons"]:
        assert (found.first_value, found.second_value) == pytest.approx((shown[found.first], shown["b"]))
    assert [found.first for found in rows["comparisons"]] == ["a", "c"]
    (same,) = compare_primary(folds["a"], folds["c"], ("a", "c"))
    assert same.difference == pytest.approx(shown["a"] - shown["c"])


def test_inflation_is_over_runs_and_a_probe_has_none() -> None:
    sources, found = [f"s{number}" for number in range(12)], {}
    for method in ("mean", "ridge-mean"):
        folds = [Trained(sources, 3, seed=seed, method=method, best=0.9) for seed in (1, 2)]
        found[method] = figures(primary_rows({method: cast(list[Fold], folds)}, [method], ""))
    f1, best = (found["mean"]["mean", metric]["mean"] for metric in ("entity_f1", "entity_f1_best_on_test"))
    assert best == pytest.approx(f1 + 0.9 - 0.5)
    assert ("ridge-mean", "entity_f1_best_on_test") not in found["ridge-mean"]


@pytest.mark.parametrize(("documents", "p"), [(1, None), (3, None), (6, 0.02)])
def test_fewer_layers_are_tested_where_accuracy_is(documents: int, p: float | None) -> None:
    """The test of accuracy says whether there are enough units."""
    sources = [f"d{at % documents}" for at in range(24)]
    folds = {name: [cast(Fold, Trained(sources, wrong))] for name, wrong in (("few", 4), ("all", 2))}
    accurate = NonInferiority(value=0.9, difference=0.0, low=-0.1, high=0.1, p=p)
    found = primary_not_worse(folds, dict.fromkeys(folds, accurate), reference="all", margin=0.1, alpha=0.05)["few"]
    few, whole = (2 * right / (24 + right) for right in (20, 22))
    assert (found.value, found.difference) == pytest.approx((few, few - whole))
    assert [value is None for value in (found.low, found.high, found.p)] == 3 * [p is None]


def test_sentences_of_a_single_document_are_resampled() -> None:
    f1 = figures(primary_rows({"a": [cast(Fold, Trained(["d"] * 12, 3))]}, ["a"], ""))["a", "entity_f1"]
    assert (f1["unit"], f1["units"]) == ("sentence", 12)


def test_one_test_sentence_has_a_figure_but_neither_interval_nor_test() -> None:
    folds = {name: [cast(Fold, Trained(["s0"], wrong))] for name, wrong in (("a", 0), ("b", 1))}
    f1 = figures(primary_rows(folds, ["a"], ""))["a", "entity_f1"]
    assert f1["mean"] == f1["pooled"] == 1.0  # so that it can be exported
    assert "low" not in f1
    with pytest.raises(ArtifactError, match="the test part has one sentence"):
        primary_rows(folds, ["a", "b"], "b")


def test_differences_over_trials_are_those_of_a_paired_t_test() -> None:
    one, two = [0.5, 0.6, 0.4], [0.4, 0.62, 0.1]
    mean, low, high, ahead = over_trials(one, two)
    expected = ttest_rel(one, two).confidence_interval(0.95)
    assert (mean, low, high, ahead) == pytest.approx((0.38 / 3, expected.low, expected.high, 2))
    with pytest.raises(ValueError, match="1 and 1 trials"):
        over_trials([0.5], [0.5])
