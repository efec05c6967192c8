"""Figures of sums: equal to scikit-learn's and SciPy's, and swapped within units by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats
from sklearn.metrics import average_precision_score, f1_score, r2_score, roc_auc_score, roc_curve

from daamctl.artifacts.predictions import Predictions
from daamctl.data.task import TASKS
from daamctl.errors import ConfigError
from daamctl.evaluation.figures import FIGURES_OF_SUMS, CharacterAccuracy, FigureOfSums, WordAccuracy, edit_distances
from daamctl.evaluation.judge import judge
from daamctl.evaluation.prediction_columns import of_table
from daamctl.evaluation.trials import compare_trials, mean_figure, trial_intervals

CLASSES = ("a", "b", "c", "d")
WORDS = ("so", "it", "goes", "on", "and")
AVERAGES = {"multilabel_f1": "micro", "multilabel_macro_f1": "macro"}
NUMBERS = ("ccc", "pearson", "spearman", "r2")
SCORED = ("auroc", "eer_accuracy", "average_precision")
OF_ITEMS = [name for name in FIGURES_OF_SUMS if name != "entity_f1"]
"""The others; that of entities is that of seqeval in the tests of `judge`."""


def task_of(name: str) -> FigureOfSums:
    classes = CLASSES if name.endswith("f1") else ()
    return FIGURES_OF_SUMS[name](**vars(replace(TASKS["embeddings"], source="speaker", classes=classes)))


def answers(name: str, *, units: int = 7, noise: float = 0.5, seed: int = 0) -> pl.DataFrame:
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    unit = shared.integers(0, units, 200)
    if name in NUMBERS:
        label = shared.normal(1e4, 1.0, 200)
        rows = pl.DataFrame({"unit": unit, "label": label, "prediction": label + own.normal(0.1, noise, 200)})
        if name == "pearson":  # in standard deviations, because those of two models are not alike otherwise
            return rows.with_columns(
                (pl.col("prediction") - pl.col("prediction").mean()) / pl.col("prediction").std(ddof=0)
            )
        return rows.with_columns(pl.col("label", "prediction").rank()) if name == "spearman" else rows
    if name in SCORED:  # ranks, because those of two models are not alike otherwise
        label = shared.integers(0, 2, 200).astype(float)
        return pl.DataFrame(
            {"unit": unit, "label": label, "prediction": label + 2 * noise * own.normal(size=200)}
        ).with_columns(pl.col("prediction").round(1).rank())
    if name.startswith("mean"):
        return pl.DataFrame({"unit": unit, "label": None, "prediction": 20 + 9 * own.normal(noise, size=200)})
    if name == "counted_accuracy":
        label = shared.integers(1, 20, 200).astype(float)
        return pl.DataFrame({"unit": unit, "label": label, "prediction": own.poisson(noise * label).astype(float)})
    if name in AVERAGES:
        true = shared.random((200, 4)) < [0.6, 0.5, 0.4, 0.3]
        said = np.where(own.random((200, 4)) < noise, own.random((200, 4)) < 0.4, true)
        texts = (pl.Series([";".join(np.array(CLASSES)[own]) or "(none)" for own in hot]) for hot in (true, said))
        return pl.DataFrame({"unit": unit, **dict(zip(("label", "prediction"), texts, strict=True))})
    if name.endswith("accuracy"):
        true = [" ".join(shared.choice(WORDS, shared.integers(1, 6))) for _ in range(200)]
        said = [" ".join(own.choice(WORDS) if own.random() < noise else word for word in text.split()) for text in true]
        rows = pl.DataFrame({"unit": unit, "label": true, "prediction": [*said[:-2], "", None]})
        figure = WordAccuracy if name.startswith("word") else CharacterAccuracy
        return rows.with_columns(error=figure.item_errors(rows["label"], rows["prediction"]))
    label = shared.choice(4, 200, p=[0.5, 0.3, 0.19, 0.01])
    said = np.where(own.random(200) < noise, own.integers(-1, 4, 200), label)  # -1 is no class
    return pl.DataFrame({"unit": unit, "label": label, "prediction": said})


def distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance as it is defined."""
    if not one or not other:
        return len(one) + len(other)
    known = list(range(len(other) + 1))
    for first in one:
        row = [known[0] + 1]
        for place, second in enumerate(other):
            row.append(min(row[-1] + 1, known[place + 1] + 1, known[place] + (first != second)))
        known = row
    return known[-1]


def hot(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([[int(name in text.split(";")) for name in CLASSES] for text in texts])


def reference(name: str, rows: pl.DataFrame) -> float:
    label, said = rows["label"].to_numpy(), rows["prediction"].to_numpy()
    if name == "auroc":
        return float(roc_auc_score(label, said))
    if name == "average_precision":
        return float(average_precision_score(label, said))
    if name == "eer_accuracy":
        wrong, right, _ = roc_curve(label, said, drop_intermediate=False)
        return 1 - optimize.brentq(lambda rate: 1 - rate - np.interp(rate, wrong, right), 0, 1)
    if name in AVERAGES:
        return float(f1_score(hot(label), hot(said), average=AVERAGES[name], zero_division=0.0))
    if name == "mean":
        return float(said.mean())
    if name == "mean_loss":
        return float(-said.mean())
    if name == "counted_accuracy":
        return float(1 - said.sum() / label.sum())
    if name.endswith("accuracy"):
        split = list if name.startswith("character") else str.split
        errors = sum(distance(split(one), split(other or "")) for one, other in zip(label, said, strict=True))
        return 1 - errors / sum(len(split(one)) for one in label)
    if name in ("pearson", "spearman"):  # of ranks
        return float(stats.pearsonr(label, said)[0])
    if name == "r2":
        return float(r2_score(label, said))
    if name == "ccc":
        covariance = np.cov(label, said, bias=True)
        return float(2 * covariance[0, 1] / (covariance.trace() + (label.mean() - said.mean()) ** 2))
    return float(f1_score(label, said, labels=range(4), average=name.removesuffix("_f1"), zero_division=0.0))


@pytest.mark.parametrize("name", OF_ITEMS)
def test_figures_are_those_of_other_libraries(name: str) -> None:
    task = task_of(name)
    for seed in range(5):
        rows = answers(name, seed=seed)
        assert mean_figure(task, [task.sums(rows)]) == pytest.approx(reference(name, rows), abs=1e-9)


@pytest.mark.parametrize("name", OF_ITEMS)
def test_the_test_swaps_whole_speakers(name: str) -> None:
    task = task_of(name)
    rows = [answers(name, noise=noise, seed=seed) for seed, noise in ((1, 0.3), (2, 0.7))]
    sums = [task.sums(one) for one in rows]
    found = compare_trials(task, {0: sums[0]}, {0: sums[1]}, ("one", "two"))
    unit = rows[0]["unit"].to_numpy()
    gaps = []
    for swaps in product((False, True), repeat=7):
        swapped = np.array(swaps)[unit]
        said = [one["prediction"].to_numpy() for one in rows]
        sides = (np.where(swapped, said[1], said[0]), np.where(swapped, said[0], said[1]))
        one, two = (reference(name, rows[0].with_columns(prediction=side)) for side in sides)
        gaps.append(one - two)
    assert found.difference == pytest.approx(gaps[0], abs=1e-9)
    assert found.p == np.mean(np.abs(gaps) >= abs(gaps[0]) - 1e-9)
    assert (found.unit, found.units, found.exact, found.flips) == ("speaker", 7, True, 128)


def test_correlation_knows_no_offset_and_no_scale_of_predictions() -> None:
    task = task_of("pearson")
    one, two = (answers("pearson", noise=noise, seed=seed) for seed, noise in ((1, 0.3), (2, 0.7)))
    expected = compare_trials(task, {0: task.sums(one)}, {0: task.sums(two)}, ("one", "two"))
    for scale, offset in ((1.0, 1.7e9), (1e-12, 0.0), (1e6, 5.0)):  # as of times, prices and raw scores
        moved = two.with_columns(prediction=pl.col("prediction") * scale + offset)
        found = compare_trials(task, {0: task.sums(one)}, {0: task.sums(moved)}, ("one", "two"))
        assert (found.difference, found.p) == pytest.approx((expected.difference, expected.p), abs=1e-6)
    constant = two.with_columns(prediction=pl.lit(3.0))
    assert mean_figure(task, [task.sums(constant)]) == 0


@pytest.mark.parametrize("name", OF_ITEMS)
def test_interval_and_test_of_a_difference_agree(name: str) -> None:
    task = task_of(name)
    for seed in range(20):
        rows = [answers(name, units=8, noise=noise, seed=2 * seed + at) for at, noise in enumerate((0.5, 0.6))]
        found = compare_trials(task, *({0: task.sums(one)} for one in rows), ("one", "two"))
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        assert (found.p <= 0.05) == (not found.low <= 0 <= found.high)
        assert found.low < found.difference < found.high


@pytest.mark.parametrize("name", OF_ITEMS)
def test_what_is_detectable_follows_from_what_speakers_add(name: str) -> None:
    task = task_of(name)
    rows = [answers(name, noise=noise, seed=seed) for seed, noise in ((1, 0.3), (2, 0.7))]
    both = pl.concat(rows)
    gaps = []
    for unit in range(7):  # every row occurs twice, once with each answer, but those of this speaker
        parts = []
        for own in rows:
            parts.append(
                reference(name, pl.concat([both.filter(pl.col("unit") != unit), *[own.filter(unit=unit)] * 2]))
            )
        gaps.append(7 * (parts[0] - parts[1]))
    labels = rows[0].group_by("unit").len().sort("unit")["len"].to_numpy()
    if name in ("macro_f1", *SCORED):  # classes count the same
        counts = rows[0].group_by("unit", "label").len().with_columns(of=pl.col("len").sum().over("label"))
        labels = counts.group_by("unit").agg((pl.col("len") / pl.col("of")).sum()).sort("unit")["len"].to_numpy()
    if name in AVERAGES:
        counts = hot(rows[0]["label"])
        share = (counts / counts.sum(0)).sum(1)
        each = 1 + counts.sum(1) if name == "multilabel_f1" else share + share.sum() / len(share)  # items, and labels
        labels = np.bincount(rows[0]["unit"], each)
    if name == "counted_accuracy":
        labels = rows[0].group_by("unit").agg(pl.col("label").sum()).sort("unit")["label"].to_numpy()
    if name in ("word_accuracy", "character_accuracy"):
        split = str.split if name.startswith("word") else list
        labels = np.bincount(rows[0]["unit"], [len(split(text)) for text in rows[0]["label"]])
    pair = compare_trials(task, *({0: task.sums(one)} for one in rows), ("one", "two"))
    assert np.mean(gaps) == pytest.approx(pair.difference, rel=0.05)
    residuals = np.array(gaps) * pair.difference / np.mean(gaps) - pair.difference * labels / labels.mean()
    # the power of a t-test with this effect, from the non-central t distribution
    assert pair.detectable is not None
    shift, end = pair.detectable / (np.std(residuals, ddof=1) / np.sqrt(7)), stats.t.ppf(0.975, 6)
    power = stats.nct.sf(end, 6, shift) + stats.nct.cdf(-end, 6, shift)
    assert power == pytest.approx(0.8, abs=1e-6)


def test_a_sample_without_variance_has_no_agreement() -> None:
    for name in NUMBERS:
        task = task_of(name)
        flat = pl.DataFrame({"unit": [0, 1], "label": [1.0, 2.0], "prediction": [3.0, 3.0]})
        assert mean_figure(task, [task.sums(flat)]) == pytest.approx(reference("r2", flat) if name == "r2" else 0.0)


@pytest.mark.parametrize(("name", "items"), [("auroc", 40), ("eer_accuracy", 30)])
def test_perfect_scores_have_an_interval_and_one_class_has_no_figure(name: str, items: int) -> None:
    """Of as many items; for EER as many as would give the balanced accuracy of 10 and 30 items the same variance."""
    task = task_of(name)
    rows = pl.DataFrame({"unit": range(40), "label": [0.0] * 10 + [1.0] * 30, "prediction": range(40)})
    (found,) = trial_intervals(task, [{0: task.sums(rows)}])
    assert (found.value, found.high) == (1.0, 1.0)
    reach = stats.t.ppf(0.975, items - 1) / stats.t.ppf(0.975, 39)
    assert found.low == pytest.approx(0.025 ** (1 / (items * reach**2)), abs=1e-6)
    # where scores are not all right, there may be twice as much in them, of each repeat
    assert task.size(0.9, np.array([10.0, 30.0]), 3) == {"auroc": 240, "eer_accuracy": 90}[name]
    for one in (rows.head(10), rows.tail(30)):
        assert mean_figure(task, [task.sums(one)]) == 0.5


def test_intervals_contain_the_figure_of_the_population() -> None:
    """In nearly 95 % of samples of 12 speakers, who differ in how well they are understood."""
    task, inside = task_of("macro_f1"), 0
    rng = np.random.default_rng(0)

    def sample(speakers: int) -> Any:
        unit = np.repeat(np.arange(speakers), 20)
        label, skill = rng.integers(0, 4, len(unit)), rng.beta(4, 2, speakers)[unit]
        said = np.where(rng.random(len(unit)) < skill, label, rng.integers(0, 4, len(unit)))
        return task.sums(pl.DataFrame({"unit": unit, "label": label, "prediction": said}))

    truth = mean_figure(task, [sample(20_000)])
    for _ in range(200):
        (interval,) = trial_intervals(task, [{0: sample(12)}])
        inside += interval.low <= truth <= interval.high
    assert 180 <= inside <= 199


def test_distances_of_texts() -> None:
    rng = np.random.default_rng(0)
    texts = [list(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(1300)]
    others = [list(rng.choice(WORDS, rng.integers(0, 9))) for _ in texts]
    found = edit_distances(texts, others)
    assert found.tolist() == [distance(one, other) for one, other in zip(texts, others, strict=True)]
    assert edit_distances([], []).tolist() == []
    assert edit_distances([[]], [[]]).tolist() == [0]
    assert edit_distances(["kitten"], ["sitting"]).tolist() == [3]


def test_a_class_that_a_sample_lacks_does_not_count() -> None:
    rows = answers("macro_f1").filter(pl.col("label") < 2, pl.col("prediction") < 2)
    task = task_of("macro_f1")
    wanted = f1_score(rows["label"].to_numpy(), rows["prediction"].to_numpy(), labels=[0, 1], average="macro")
    assert mean_figure(task, [task.sums(rows)]) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "counts", "items"),
    [
        ("macro_f1", [20, 20, 20, 20], 80),  # as many as there are, if classes are equal
        ("macro_f1", [10, 30], 2**2 / (1 / 10 + 1 / 30)),  # fewer, because a rare class counts as much
        ("macro_f1", [10, 0, 30], 2**2 / (1 / 10 + 1 / 30)),
        ("weighted_f1", [10, 0, 30], 40),
    ],
)
def test_f1_is_a_share_of_so_many_items(name: str, counts: list[int], items: float) -> None:
    task, given = task_of(name), np.array(counts, dtype=np.float64)
    assert task.size(0.7, given, 1) == pytest.approx(items)
    assert task.size(0.7, given, 3) == pytest.approx(3 * items)
    # repeats of a model that is always right, or never, tell no more than one
    assert task.size(1.0, given, 3) == task.size(0.0, given, 3) == pytest.approx(items)


TOPICS = ("anger", "fear", "joy", "love")


def label_sets(rng: int, number: int = 60) -> NDArray[np.int64]:
    """Which of the labels each item has, (N, C); some have none."""
    return np.random.default_rng(rng).integers(0, 2, (number, len(TOPICS))) * (np.arange(number) % 7 != 0)[:, None]


def as_lists(hot: NDArray[np.int64]) -> list[list[str]]:
    return [[TOPICS[at] for at in np.flatnonzero(row)] for row in hot]


@pytest.mark.parametrize("metric", AVERAGES)
@pytest.mark.parametrize("form", ["lists", "text", "commas", "python", "numbers", "scores", "logits",
                                  "csv", "csv of scores", "csv of flags", "numpy"])  # fmt: skip
def test_f1_of_items_with_several_labels(metric: str, form: str) -> None:
    """As scikit-learn's, in whatever form the labels are written."""
    true, files, expected = label_sets(0), [], {}
    for name, rng in (("x", 1), ("y", 2)):
        said = np.where(np.random.default_rng(rng).random(true.shape) < 0.8, true, 1 - true)
        expected[name] = f1_score(true, said, average=AVERAGES[metric])
        written = {
            "lists": as_lists,
            "text": lambda hot: [" ; ".join(own) for own in as_lists(hot)],
            "commas": lambda hot: [",".join(own[::-1]) for own in as_lists(hot)],
            "python": lambda hot: [str(own) for own in as_lists(hot)],
            "numpy": lambda hot: [str(own) for own in hot],
            "csv": lambda hot: [str(own) for own in hot.tolist()],
            "csv of scores": lambda hot: [str(own) for own in (0.7 * hot).tolist()],
            "csv of flags": lambda hot: [str(own) for own in (hot > 0).tolist()],
        }.get(form, lambda hot: hot.tolist())
        answers = written(said)
        if form == "scores":
            answers = np.where(said > 0, 0.5, 0.4).tolist()
        elif form == "logits":
            answers = np.where(said > 0, 0.01, -2.0).tolist()
        table = {"id": [f"u{at}" for at in range(len(true))], "label": written(true), "pred": answers}
        group = {"speaker": [f"s{at % 6}" for at in range(len(true))]}
        files.append(of_table(pl.DataFrame({**table, **group}), {}, name, metric=metric))
    verdict = judge(files, metric=metric)
    assert verdict.values == {metric: {name: pytest.approx(value) for name, value in expected.items()}}
    assert verdict.design.n_units == 6


def test_an_item_without_numbers_of_its_labels_has_no_labels() -> None:
    table = pl.DataFrame(
        {"id": ["a", "b", "c"], "label": ["[1, 0]", "[0, 1]", "[1, 1]"], "pred": ["[1 0]", None, "[1 1]"]}
    )
    found = of_table(table, {}, "m", metric="multilabel_f1")
    assert found.rows["prediction"].to_list() == ["0", None, "0;1"]
    assert "1 of 3 predictions are missing and count as empty" in found.notes
    gap = of_table(table.with_columns(label=pl.Series(["[1, 0]", "[0, 1]", None])), {}, "n", metric="multilabel_f1")
    with pytest.raises(ConfigError, match=r"1 of 3 labels are none, e\.g\. that of item 'c'"):
        judge([replace(gap, name="m"), gap], metric="multilabel_f1")
    with pytest.raises(ConfigError, match="t: 'pred' has scores that are no numbers"):
        of_table(table.with_columns(pred=pl.lit("[0.2, nan]")), {}, "t", metric="multilabel_f1")


def test_predicted_labels_that_no_item_has() -> None:
    labels = [["joy"], ["joy", "fear"], ["fear"]]

    def read(name: str, said: list[list[Any]]) -> Predictions:
        table = pl.DataFrame({"id": ["a", "b", "c"], "label": labels, "pred": said})
        return of_table(table, {}, name, metric="multilabel_f1")

    right = read("x", labels)
    with pytest.raises(ConfigError, match=r"y: no predicted label \(0, 1\) is among the labels \(fear, joy\)"):
        judge([right, read("y", [[0.9, 0.1], [0.2, 0.7], [0.6, 0.1]])], metric="multilabel_f1")
    notes = judge([right, read("y", [["joy"], ["love"], []])], metric="multilabel_f1").notes
    assert "y: 1 of 2 predicted labels are no label of any item (love)" in notes
    judge([right, read("y", [[], [], []])], metric="multilabel_f1")  # nothing is predicted


def test_a_label_may_have_a_semicolon() -> None:
    table = pl.DataFrame({"id": ["a", "b"], "label": [["x; y"], ["x; y", "z"]], "pred": [["z", "x; y"], []]})
    found = of_table(table, {}, "m", metric="multilabel_f1")
    assert found.rows["label"].to_list() == ["x, y", "x, y;z"]
    assert found.rows["prediction"].to_list() == ["x, y;z", "(none)"]


def test_lists_of_labels_are_told_their_metric() -> None:
    table = pl.DataFrame({"id": ["a", "b"], "label": [["x"], ["x", "y"]], "pred": [["x"], []]})
    with pytest.raises(ConfigError, match="'pred' has lists") as error:
        of_table(table, {}, "m")
    assert error.value.fix is not None
    assert error.value.fix.endswith("; to rank by several labels of an item: --metric multilabel-f1")


def test_wrong_labels_of_an_item() -> None:
    labels, said = pl.Series(["a;b", "(none)", "a", "b"]), pl.Series(["b;c", "(none)", None, "b"])
    for kind in (FIGURES_OF_SUMS[metric] for metric in AVERAGES):
        assert kind.item_errors(labels, said).tolist() == [2, 0, 1, 0]
