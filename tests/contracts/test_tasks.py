"""Every task: its words, and that selection, scores, comparisons and non-inferiority use the same primary figure.

A task that exists only here, which predicts a number per item, goes through evaluation and comparison as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.utterances import SCHEMAS, Modality
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.corpora import CORPORA
from daamctl.data import METRICS
from daamctl.data.metrics import Metric
from daamctl.data.spans import word_id
from daamctl.data.task import FIGURES, TASKS, Sums, Task, task_of
from daamctl.evaluation.comparison import compare_methods, item_table, not_worse
from daamctl.evaluation.scores import run_rows
from daamctl.evaluation.scoring import items_of, score_predictions
from daamctl.evaluation.trials import compare_primary, primary_not_worse, trial_intervals, trials_of
from daamctl.fit.trial import Trial
from daamctl.stages import evaluate
from daamctl.store.files import read_json
from tests.fixtures.folds import write_fold

CLASSES = ("O", "B-x", "I-x")
SOURCES, ITEMS = 40, 5
UNIT = "utterance"

every_task = pytest.mark.parametrize("modality", list(TASKS))


@dataclass
class Trained:
    """What is read of a fold: predictions of items of known sources, right with some probability."""

    modality: str
    skill: float
    seed: int = 1
    fold: int = 1
    is_few_shot: bool = False
    num_fitted: int = 1000

    @property
    def task(self) -> Task:
        return task_of(self.modality, CLASSES)

    @property
    def result(self) -> dict[str, Any]:
        return {"meta": {"num_test_clips": SOURCES * ITEMS}, "run": {}, "metrics": {}}

    def predictions(self) -> pl.DataFrame:
        truth, rng = np.random.default_rng(0), np.random.default_rng([self.seed, int(100 * self.skill)])
        target = truth.integers(3, size=SOURCES * ITEMS)
        other = (target + rng.integers(1, 3, size=len(target))) % 3
        guess = np.where(rng.random(len(target)) < self.skill, target, other)
        ids = [word_id(f"s{source:02d}", at) for source in range(SOURCES) for at in range(ITEMS)]
        sources = [name.rpartition("-")[0] for name in ids]
        return pl.DataFrame(
            {
                "clip_id": [f"{name}#000" for name in ids],
                "utterance_id": ids,
                "speaker": sources,
                "label": [CLASSES[one] for one in target],
                "target": target,
                "logits": np.eye(3)[guess].tolist(),
                "duration_s": 1.0,
            }
        )


def trained(modality: str, skill: float, seeds: tuple[int, ...] = (1,)) -> list[Fold]:
    return [cast(Fold, Trained(modality, skill, seed)) for seed in seeds]


def primary(folds: list[Fold]) -> float:
    """The primary figure, mean over seeds."""
    task = folds[0].task
    return float(np.mean([score_predictions(fold.predictions(), UNIT, task)[task.primary] for fold in folds]))


def test_every_corpus_has_a_task() -> None:
    assert set(TASKS) == set(SCHEMAS)
    for name in CORPORA:
        corpus = CORPORA.load(name)
        assert corpus.task.classes == corpus.classes


@every_task
def test_words(modality: str) -> None:
    task = task_of(modality, CLASSES)
    texts = [getattr(task, one.name) for one in fields(task) if one.name != "classes"]
    assert all(isinstance(text, str) and text.strip() for text in texts)
    assert task.metric == FIGURES[task.primary]
    assert task.title.lower() == task.metric.lower()
    assert (task.unit("clip"), task.unit("utterance")) == (task.clip, task.item)
    assert task.per("clip") in ("", f" per {task.clip}")


@every_task
def test_right_answers_are_best(modality: str) -> None:
    poor, good, best = (primary(trained(modality, skill)) for skill in (0.2, 0.7, 1.0))
    assert poor < good < best == 1.0


@every_task
def test_items_that_are_read_together_are_in_one_unit(modality: str) -> None:
    rows, task = Trained(modality, 1.0).predictions(), task_of(modality, CLASSES)
    wholes = pl.Series(task.wholes(rows["utterance_id"]))
    assert pl.DataFrame({"whole": wholes, "source": rows["speaker"]}).unique().height == wholes.n_unique()
    assert wholes.n_unique() == pl.Series(task.wholes(rows["clip_id"])).n_unique()


@every_task
def test_the_known_sources_name_the_units(modality: str) -> None:
    rows, task = Trained(modality, 1.0).predictions(), task_of(modality, CLASSES)
    table = item_table(folds := trained(modality, 0.7), [items_of(fold.predictions(), UNIT) for fold in folds])
    design = compare_methods({"a": table}, task=task)[1].design
    assert design.source_word == design.unit_word == task.with_sources(rows["utterance_id"], rows["speaker"]).source


@every_task
def test_the_epoch_is_selected_by_the_primary_figure(modality: Modality) -> None:
    """Accuracy is known to the loop; another figure is a function of the logits of a part."""
    rows = Trained(modality, 0.7).predictions()
    table = ClipTable("corpus", CLASSES, rows.drop("target", "logits"), {}, modality)
    half = np.arange(rows.height // 2)
    split = SimpleNamespace(dev=half, test=half + len(half))
    found = Trial.f1.func(SimpleNamespace(clips=table, split=split))  # type: ignore[arg-type]
    assert set(found) == (set() if table.task.by_accuracy else {"dev", "test"})
    for name, value in found.items():
        part = rows[getattr(split, name)]
        expected = score_predictions(part, UNIT, table.task)[table.task.primary]
        assert value(torch.tensor(part["logits"].to_list())) == pytest.approx(expected)


@every_task
def test_comparisons_are_of_the_primary_figure(modality: str) -> None:
    seeds = (1, 2)
    methods = {"good": trained(modality, 0.8, seeds), "poor": trained(modality, 0.5, seeds)}
    tables = {
        name: item_table(folds, [items_of(fold.predictions(), UNIT) for fold in folds])
        for name, folds in methods.items()
    }
    task = methods["good"][0].task
    rows, family = compare_methods(tables, task=task)
    assert any(
        "two families" if task.by_accuracy else "and entity F1 are three families" in note for note in family.notes
    )
    rows += compare_primary(methods["good"], methods["poor"], ("good", "poor"))
    compared, gap = {row.metric: row for row in rows}[task.primary], primary(methods["good"]) - primary(methods["poor"])
    assert compared.difference == pytest.approx(gap)
    assert compared.low is not None
    assert compared.high is not None
    assert compared.low < gap < compared.high
    assert compared.p is not None
    assert compared.p < 0.01
    assert (compared.unit, compared.units) == (task.source, SOURCES)

    _, tested = not_worse(tables, reference="good", margin=0.05, task=task)
    found = primary_not_worse(methods, tested, reference="good", margin=0.05, alpha=0.05)["poor"]
    assert (found.value, found.difference) == pytest.approx((primary(methods["poor"]), -gap))
    assert found.p is not None
    assert found.p > 0.9


@every_task
def test_another_figure_is_a_function_of_sums_over_units(modality: str) -> None:
    folds = trained(modality, 0.7)
    task, rows = folds[0].task, folds[0].predictions()
    if task.by_accuracy:
        assert task.values(rows, rows["target"].to_numpy()) == {}
        return
    sums = task.sums(rows)
    assert len(sums.units) == len(set(sums.units)) == SOURCES
    table = np.vstack([sums.given, sums.own])
    assert task.figure(table.sum(axis=1, keepdims=True)) == pytest.approx([primary(folds)])
    assert task.figure(table).shape == (SOURCES,)
    trials = trials_of(task, [(fold, fold.predictions()) for fold in folds])
    (interval,) = trial_intervals(task, [trials])
    assert interval.value == pytest.approx(primary(folds))
    order = np.random.default_rng(1).permutation(SOURCES)  # units in another order, their items as they were
    moved = rows[(order[:, None] * ITEMS + np.arange(ITEMS)).ravel()]
    assert dict(zip(task.sums(moved).units, task.sums(moved).own.T.tolist(), strict=True)) == dict(
        zip(sums.units, sums.own.T.tolist(), strict=True)
    )


MAE = Metric("mae", "Error", False, "nats", lambda items: float(abs(items.targets - items.predictions).mean()))
NUMBERS = 60


class Measuring(Task):
    """A number per item, judged by the concordance correlation coefficient (Lin 1989)."""

    primary: ClassVar[str] = "ccc"
    metrics: ClassVar[tuple[str, ...]] = ("mae",)
    over_items: ClassVar[tuple[str, ...]] = ()

    def answers(self, outputs: Any) -> Any:
        return outputs[:, 0]

    def values(self, rows: pl.DataFrame, predicted: Any) -> dict[str, float]:
        return {"ccc": concordance(rows["target"].to_numpy(), predicted)}

    def sums(self, predictions: pl.DataFrame) -> Sums:
        units, index = np.unique(predictions["speaker"].to_numpy(), return_inverse=True)
        true, own = predictions["target"].to_numpy(), predictions["logits"].list.first().to_numpy().astype(np.float64)
        add = [np.bincount(index, values) for values in (np.ones(len(true)), true, true**2, own, own**2, true * own)]
        return Sums(self.source, units, np.stack(add[:3]), np.stack(add[3:]))

    def figure(self, sums: Any) -> Any:
        number, true, true2, own, own2, both = sums
        spread = true2 / number - (true / number) ** 2 + own2 / number - (own / number) ** 2
        return 2 * (both / number - true * own / number**2) / (spread + (true / number - own / number) ** 2)


def concordance(true: Any, own: Any) -> float:
    """From the definition."""
    covariance = np.cov(true, own, bias=True)
    return float(2 * covariance[0, 1] / (np.trace(covariance) + (true.mean() - own.mean()) ** 2))


@pytest.fixture
def measured(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    """Two pipelines whose folds predict numbers; the methods of the second are worse."""
    words = ("recording", "clip", "speaker", "recording", "listen to", "Who speaks is not known", "recording")
    monkeypatch.setitem(TASKS, "measured", Measuring(*words))
    monkeypatch.setitem(FIGURES, "ccc", "concordance")
    monkeypatch.setitem(METRICS._table, "mae", f"{__name__}:MAE")
    layouts = []
    for name, noise in (("fine", 0.3), ("rough", 1.5)):
        text = "download: {corpus: iemocap}\nmethods: [mean, ridge-mean, ridge-last]\nevaluate: {reference: mean}\n"
        (project / f"pipelines/{name}.yaml").write_text(text)
        config = load_config(project, name)
        layouts.append(Layout.of(project, name, config))
        for at, method in enumerate(config.methods):
            for fold in (1, 2, 3, 4, 5):
                truth, rng = np.random.default_rng(fold), np.random.default_rng([fold, at, int(10 * noise)])
                target = truth.normal(size=NUMBERS)
                own = target + (noise + at / 10) * rng.normal(size=NUMBERS)
                ids = [f"f{fold}-{number:02d}" for number in range(NUMBERS)]
                rows = pl.DataFrame(
                    {
                        "clip_id": ids,
                        "utterance_id": ids,
                        "label": "",
                        "speaker": [f"f{fold}s{number % 3}" for number in range(NUMBERS)],
                        "target": target,
                        "logits": own[:, None].tolist(),
                        "duration_s": 1.0,
                    }
                )
                recorded = {"run.modality": "measured", "run.classes": [], "metrics.ccc": concordance(target, own)}
                write_fold(layouts[-1], config, method, fold, 1, rows, changes=recorded)
    return layouts


def test_a_task_without_classes_is_evaluated(measured: list[Layout]) -> None:
    layout = measured[0]
    evaluate.run(layout, config := load_config(layout.root, layout.run_name))
    found = read_evaluation(layout.stage("evaluate"))
    folds = {name: read_folds(layout.method(name)) for name in config.methods}
    rows = {name: pl.concat([fold.predictions() for fold in own]) for name, own in folds.items()}
    pairs = {name: (one["target"].to_numpy(), one["logits"].list.first().to_numpy()) for name, one in rows.items()}
    assert found.ranked == sorted(pairs, key=lambda name: -concordance(*pairs[name]))
    assert (list(found.metrics), found.chance, found.source) == (["mae"], {}, "speaker")
    for name, (true, own) in pairs.items():
        ccc = found.scores.figure(name, "ccc")
        assert ccc.mean == pytest.approx(concordance(true, own))
        assert ccc.low is not None
        assert ccc.low < ccc.mean < cast(float, ccc.high)
        assert (ccc.unit, ccc.units) == ("speaker", 15)
        assert found.scores.figure(name, "mae", UNIT).pooled == pytest.approx(abs(true - own).mean())
    gaps = {row.first: row.difference for row in found.scores.comparisons("ccc")}
    base = concordance(*pairs["mean"])
    assert gaps == pytest.approx({name: concordance(*pairs[name]) - base for name in pairs if name != "mean"})
    assert not found.scores.comparisons("accuracy")
    assert [len(found.scores.frames[table]) for table in ("confusion", "speakers", "entities")] == [0, 0, 0]
    assert found.fairness.methods["mean"].gap == pytest.approx(
        np.mean([one.result["metrics"]["ccc"] - other.result["metrics"]["ccc"]
                 for one, other in zip(folds["mean"], folds["ridge-mean"], strict=True)])
    )  # fmt: skip
    shown = read_json(layout.stage("metrics") / "mean.json")
    assert list(shown) == ["mae", "ccc"]
    of_runs = run_rows("all", (1,), folds["mean"], UNIT)
    assert [row.kind for row in of_runs] == ["mae", "ccc"] * 5


def test_a_task_without_classes_is_compared(measured: list[Layout], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(measured[0].root)
    text = CliRunner().invoke(app, ["compare", "fine", "rough"]).stdout
    assert "ridge-mean  concordance" in text
    found = read_json(measured[0].root / "data/compare/fine__rough/comparison.json")
    assert {row["metric"] for row in found["comparisons"]} == {"ccc"}
    assert all(row["difference"] > 0.1 and row["p"] < 0.01 for row in found["comparisons"])
    assert not any(pair["disagreements"] for pair in found["pairs"])
    assert not any("balanced accuracy" in note for note in found["notes"])
