"""Paired comparison of methods on the same test items (docs/sources.md#paired-comparison).

Seeds are averaged first: the correctness of an item is the share of seeds in which the method is right. The primary
test is a sign-flip test over speakers, the secondary one a corrected t-test over folds. Intervals are over speakers too
(`engine`).

- With too few speakers, or speakers that are partly unknown, the test runs over folds, and the result gives the reason.
- If every item is its own speaker, as with texts and images of unknown origin, the test runs over items.
- With one fold (an official split) there is no secondary test: the correction does not cover runs that differ only in
  their seed, because they share all test items.
- Methods with other folds over the same items have no folds in common: items are paired by id, and no test runs over
  folds.

Two scores are compared: accuracy (WA) and balanced accuracy (UA). Items have equal weights in WA; in UA the weight of
an item is 1 / (number of test items of its class, over all folds). The test flips the signs of the units' sums of
weighted differences, so it is a test of the difference that is printed: a unit counts by its items, may lack a class,
and a rare item does not count as a whole class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import Design, Family, Interval, NonInferiority
from daamctl.artifacts.terms import counted, listed
from daamctl.compute.progress import progress
from daamctl.data.metrics import ClassIds
from daamctl.data.sign_flip import Floats, paired_sign_flip, sign_flip_floor
from daamctl.data.task import FIGURES, TASKS, Task
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation.engine import flip_interval, mean_intervals, non_inferiority
from daamctl.evaluation.scoring import Items
from daamctl.evaluation.statistics import (
    class_items,
    grouped_means,
    holm,
    minimal_detectable_difference,
    nadeau_bengio,
)

if TYPE_CHECKING:
    from daamctl.artifacts.results import Fold

MIN_SPEAKERS = 5
MANY_PAIRS = 200
"""So many comparisons take seconds."""
FIXED = {"target": "target", "speaker": "speaker", "n_test": "test-clip count", "n_train": "training-clip count"}
"""Column -> its name in errors. An item must have the same values in all seeds and methods. The counts are among them
because n_test / n_train corrects every test over folds."""
SCHEMA: dict[str, Any] = {
    "item": pl.String,
    "speaker": pl.String,
    "fold": pl.Int64,
    "seed": pl.Int64,
    "target": pl.Int64,
    "correct": pl.Boolean,
    "n_test": pl.Int64,
    "n_train": pl.Int64,
}


class MethodIntervals(NamedTuple):
    """Metric -> interval of a method over units of this name; nothing without a unit."""

    word: str
    metrics: dict[str, Interval]


@dataclass(frozen=True)
class _Data:
    """Test items of all methods, for N items.

    Args:
        targets: true class ids, shape (N,).
        folds: fold numbers, shape (N,).
        units: unit of each item, shape (N,); None without a unit.
        n_test: number of test clips, one per fold.
        n_train: number of clips that the models were trained on, one per fold.
    """

    targets: ClassIds
    folds: ClassIds
    units: NDArray[np.integer[Any]] | None
    n_test: list[int]
    n_train: list[int]
    design: Design


def item_table(folds: Sequence[Fold], items: Sequence[Items]) -> pl.DataFrame:
    """Test items of one method over folds and seeds, in the columns of `SCHEMA`; n_test and n_train count clips.

    n_train counts what the tested weights were trained on.

    Args:
        items: scored items of each fold, in the same order.
    """
    parts = [
        pl.DataFrame(
            {
                "item": part.ids,
                "speaker": part.speakers,
                "fold": fold.fold,
                "seed": fold.seed,
                "target": part.targets,
                "correct": part.predictions == part.targets,
                "n_test": fold.result["meta"]["num_test_clips"],
                "n_train": _num_train(fold, folds),
            },
            schema_overrides=SCHEMA if part.targets.dtype.kind == "i" else {**SCHEMA, "target": pl.Float64},
        )
        for fold, part in zip(folds, items, strict=True)
    ]
    return pl.concat(parts)


def with_least_trained(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Tables with the n_train of each fold that is the smallest of all methods, which gives the larger p-values.

    Methods of one run differ in it where only some are refitted with the held-out group.
    """
    sizes = pl.concat(table.select("fold", "n_train") for table in tables.values())
    least = sizes.group_by("fold").agg(pl.col("n_train").min())
    return {
        name: table.drop("n_train").join(least, on="fold", how="left", maintain_order="left").select(list(SCHEMA))
        for name, table in tables.items()
    }


def _num_train(fold: Fold, folds: Sequence[Fold]) -> int:
    """`Fold.num_fitted`; of few-shot trials the mean over seeds, which draw sentences of different lengths."""
    alike = [one for one in folds if one.fold == fold.fold] if fold.is_few_shot else [fold]
    return round(mean(one.num_fitted for one in alike))


def speakers_known(table: pl.DataFrame) -> bool:
    """Whether an `item_table` has speakers; False if every item is its own speaker or has none."""
    # a corpus of unknown speakers names each utterance as its own
    own = pl.col("item").str.replace(r"#\d+$", "")  # utterance of a clip
    known = table.filter(pl.col("speaker").is_not_null())
    return not known.filter(pl.col("speaker").ne(pl.col("item")) & pl.col("speaker").ne(own)).is_empty()


def compare_methods(
    tables: Mapping[str, pl.DataFrame],
    *,
    reference: str | None = None,
    task: Task = TASKS["speech"],
    same_folds: bool = True,
    alpha: float = 0.05,
    seed: int = 0,
) -> tuple[list[Compared], Family]:
    """Compare methods in pairs, as one family of tests per metric.

    Args:
        tables: method -> its test items (`item_table`); at least one.
        reference: compare every other method with this one; None: compare all pairs. Choose it before looking at
            results.
        same_folds: whether the methods share folds and numbers of clips; otherwise items are paired by id alone.
        alpha: two-sided level; intervals have the level 1 - alpha.
        seed: of random sign flips.

    Raises:
        ArtifactError: the methods were not tested on the same items, targets, speakers and folds, or tested or trained
            on different numbers of clips.
        UnknownNameError: `reference` is not among the methods.
    """
    if reference is not None and reference not in tables:
        raise UnknownNameError("method", reference, tables)
    averaged = {method: _averaged(method, table) for method, table in tables.items()}
    if not same_folds:
        none = [pl.lit(0, pl.Int64).alias(name) for name in ("fold", "n_test", "n_train")]
        # folds and sizes that agree by name would pair items of different trainings
        averaged = {method: table.with_columns(none).sort("item") for method, table in averaged.items()}
    _check_same(averaged)
    data = _data(next(iter(averaged.values())), task, same_folds=same_folds)
    correct = {method: table["correct"].to_numpy() for method, table in averaged.items()}
    if reference is None:
        pairs = list(combinations(tables, 2))
    else:
        pairs = [(reference, method) for method in tables if method != reference]
    runs = {method: accuracies_of(table) if same_folds else {} for method, table in tables.items()}
    rows = []
    for first, second in with_progress(pairs):
        both = _wins(correct[first], correct[second]) | _ahead(runs[first], runs[second])
        for name in task.over_items:
            row = _compare(correct[first], correct[second], data, name, alpha, seed) | both
            rows.append(Compared(first=first, second=second, **row))
    floor = None if data.design.n_units is None else sign_flip_floor(data.design.n_units)
    design = _design(data, tables)
    family = Family(list(tables), reference, len(pairs), alpha, floor, design, [])
    return with_holm(rows), replace(family, notes=_notes(family, tables, task))


def not_worse(
    tables: Mapping[str, pl.DataFrame],
    *,
    reference: str,
    margin: float,
    metric: str = "accuracy",
    task: Task = TASKS["speech"],
    alpha: float = 0.05,
) -> tuple[Design, dict[str, NonInferiority]]:
    """Test of each method that it is less than a margin worse than a reference (docs/sources.md#shortest-encoder).

    The interval of the difference has the level 1 - 2 alpha, so its lower end is a one-sided bound of the level
    1 - alpha. The p-values are not corrected.

    Args:
        tables: method -> its test items (`item_table`), the reference among them.
        margin: fraction of the metric; choose it before looking at results.
        metric: accuracy or balanced_accuracy.
        alpha: one-sided level.

    Returns:
        The units of the tests, and the result of every method, the reference included.

    Raises:
        ArtifactError: see `compare_methods`.
    """
    averaged = {method: _averaged(method, table) for method, table in tables.items()}
    _check_same(averaged)
    data = _data(averaged[reference], task)
    correct = {method: table["correct"].to_numpy() for method, table in averaged.items()}
    classes, items, found = _classes(data, metric), _number(data, metric), {}
    weights = item_weights(len(data.targets), classes)
    for method, values in correct.items():
        difference = weights * (values - correct[reference])
        low = high = p = None
        if data.units is not None:
            low = high = p = 0.0  # of the reference
            if method != reference:
                units = unit_sums(difference, weights, data.units)
                interval, p = non_inferiority(difference, *units, margin, level=1 - 2 * alpha, items=items)
                low, high = interval.low, interval.high
        value = float(grouped_means(values, data.folds, classes).mean())  # as `evaluate` gives it
        found[method] = NonInferiority(value, float(difference.mean()), low, high, p)
    return _design(data, tables), found


def method_intervals(
    tables: Mapping[str, pl.DataFrame],
    *,
    task: Task = TASKS["speech"],
    level: float = 0.95,
) -> dict[str, MethodIntervals]:
    """Intervals of the scores of every method, over speakers, or over folds if there are too few speakers.

    Args:
        tables: method -> its test items (`item_table`), which may differ from method to method.

    Raises:
        ArtifactError: an item occurs twice in one test pass, or changes one of `FIXED` between seeds.
    """
    found: dict[str, MethodIntervals] = {}
    for method, table in tables.items():
        rows = _averaged(method, table)
        data, correct = _data(rows, task), rows["correct"].to_numpy()
        drawn = {name: _interval(correct, data, name, level) for name in task.over_items}
        found[method] = MethodIntervals(data.design.unit_word, {name: one for name, one in drawn.items() if one})
    return found


def with_holm(rows: Sequence[Compared]) -> list[Compared]:
    """Comparisons with the corrected p-values filled in: Holm's correction within each metric and test."""
    found = list(rows)
    for metric in dict.fromkeys(row.metric for row in rows):
        own = [index for index, row in enumerate(rows) if row.metric == metric]
        p, p_folds = (holm([getattr(rows[index], name) for index in own]) for name in ("p", "p_folds"))
        for index, one, other in zip(own, p, p_folds, strict=True):
            found[index] = replace(found[index], p_holm=one, p_folds_holm=other)
    return found


def _averaged(method: str, table: pl.DataFrame) -> pl.DataFrame:
    """One row per fold and item, sorted: the columns of `FIXED`, and `correct`, the share of seeds that are right."""
    again = table.filter(pl.struct("fold", "seed", "item").is_duplicated())
    if len(again):
        raise ArtifactError(
            f"test item '{again['item'][0]}' of '{method}' occurs more than once in fold {again['fold'][0]}, seed "
            f"{again['seed'][0]} ({len(again)} such rows)"
        )
    averaged = table.group_by("fold", "item").agg(
        pl.col(*FIXED).first(), pl.col(*FIXED).n_unique().name.suffix("_kinds"), pl.col("correct").mean()
    )
    for name, what in FIXED.items():
        changed = averaged.filter(pl.col(f"{name}_kinds") > 1).sort("fold", "item")
        if len(changed):
            raise ArtifactError(
                f"{len(changed)} test items of '{method}' change their {what} from seed to seed, e.g. "
                f"'{changed['item'][0]}' in fold {changed['fold'][0]}"
            )
    return averaged.select("fold", "item", *FIXED, "correct").sort("fold", "item")


def _check_same(tables: Mapping[str, pl.DataFrame]) -> None:
    """Check that all methods were tested on the same items with the same values of `FIXED`.

    Raises:
        ArtifactError: an item is missing or differs.
    """
    (first, expected), *others = tables.items()
    for method, table in others:
        same = set(expected["item"]) == set(table["item"])
        keys = ["fold", "item"] if same else ["item"]  # an item that another fold tests is not missing
        lacking, further = expected.join(table, on=keys, how="anti"), table.join(expected, on=keys, how="anti")
        if len(lacking) or len(further):
            example = (lacking if len(lacking) else further).sort("fold", "item")
            raise ArtifactError(
                f"'{first}' and '{method}' were not tested on the same items: '{method}' lacks {len(lacking)} of "
                f"{len(expected)} and has {len(further)} others, e.g. '{example['item'][0]}' of fold "
                f"{example['fold'][0]}",
                fix="train the missing folds, or leave the method out",
            )
        for name, what in FIXED.items():
            found, known = table[name], expected[name]
            wrong = np.flatnonzero(found.ne_missing(known).to_numpy())
            if len(wrong):
                row = int(wrong[0])
                raise ArtifactError(
                    f"'{first}' and '{method}' were tested with different {what}s: {len(wrong)} of {len(expected)} "
                    f"items differ, e.g. '{expected['item'][row]}': {known[row]} and {found[row]}",
                    fix="train both on the same clips",
                )


def _data(table: pl.DataFrame, task: Task, *, same_folds: bool = True) -> _Data:
    sizes = table.group_by("fold").agg(pl.col("n_test", "n_train").first()).sort("fold")
    names, folds = table["speaker"], table["fold"].to_numpy()
    unit, word, reason = _unit(table, task, same_folds=same_folds)
    # where every item is a unit of its own, a number of speakers would mislead
    known = unit != "item" and not names.null_count()
    units = None
    if unit is not None:
        units = (table["fold"] if unit == "fold" else names).rank("dense").to_numpy().astype(np.int64) - 1
    design = Design(
        unit=unit,
        unit_word=word,
        source_word=task.with_sources(table["item"], names).source,
        reason=reason,
        n_units=None if units is None else len(np.unique(units)),
        n_items=len(table),
        n_speakers=names.n_unique() if known else None,
        n_folds=len(sizes) if same_folds else 0,
        seeds={},
    )
    tested, trained = sizes["n_test"].to_list(), sizes["n_train"].to_list()
    return _Data(table["target"].to_numpy(), folds, units, tested, trained, design)


def _unit(table: pl.DataFrame, task: Task, *, same_folds: bool) -> tuple[str | None, str, str]:
    """Unit that the test takes as independent, its name, and the reason."""
    unknown, speakers, folds = table["speaker"].null_count(), table["speaker"].n_unique(), table["fold"].n_unique()
    task = task.with_sources(table["item"], table["speaker"])
    tested = f"{counted(speakers, task.source)} {'is' if speakers == 1 else 'are'} tested"
    if unknown:
        why = f"the {task.source} of {unknown} of {len(table)} test items is unknown"
    elif not speakers_known(table) and speakers >= MIN_SPEAKERS:
        return (
            "item",
            task.item,
            f"{task.unknown[0].lower()}{task.unknown[1:]}, so each {task.item} is its own unit",
        )
    # then speakers and folds are the same units
    elif folds > 1 and table.select("fold", "speaker").n_unique() == speakers == folds:
        why = f"each fold tests one {task.source}"
    elif speakers < MIN_SPEAKERS:
        why = f"only {tested}, {MIN_SPEAKERS} are needed"
    else:
        return "speaker", task.source, tested
    if folds < 2:
        folded = "there is one fold" if same_folds else "the folds differ"
        return None, "", f"no test is available: {why}, and {folded}"
    text = f"the test over {task.source}s is not available: {why}; it runs over the {folds} folds instead"
    return "fold", "fold", text


def _design(data: _Data, tables: Mapping[str, pl.DataFrame]) -> Design:
    seeds = {method: sorted(table["seed"].unique().to_list()) for method, table in tables.items()}
    return replace(data.design, seeds=seeds)


def _compare(first: Floats, second: Floats, data: _Data, metric: str, alpha: float, seed: int) -> dict[str, Any]:
    """One metric of one pair, as `Compared`. p_holm stays empty until the family is complete."""
    classes = _classes(data, metric)
    one, two = (float(grouped_means(part, np.zeros(len(part), dtype=np.int64), classes)[0]) for part in (first, second))
    row: dict[str, Any] = {"metric": metric, "first_value": one, "second_value": two, "difference": one - two}
    if data.units is not None:
        weights = item_weights(len(first), classes)
        sums, sizes = unit_sums(weights * (first - second), weights, data.units)
        sums[np.abs(sums) < 1e-12] = 0  # items of a unit may cancel, but for rounding
        alike = None if sums.any() else _number(data, metric)
        row |= paired_columns(sums, sizes, data.design.unit_word, alpha=alpha, alike=alike, seed=seed)
    # balanced accuracy over the classes that a fold tests
    folds = grouped_means(first - second, data.folds, classes)
    if len(folds) > 1:
        row["p_folds"] = nadeau_bengio(folds, data.n_test, data.n_train).p
    return row


def paired_columns(
    sums: Floats, sizes: Floats, unit: str, *, alpha: float, alike: float | None, seed: int
) -> dict[str, Any]:
    """What a comparison says of the test and the interval of a difference, and of what was detectable.

    Args:
        sums: what each unit adds, times U, (U,).
        sizes: what it counts, (U,), with mean 1.
        unit: name of a unit.
        alike: see `flip_interval`.
    """
    test = paired_sign_flip(sums, sizes, seed=seed)
    row = {"unit": unit, "units": test["n"], "test": "sign-flip"}
    row |= {name: test[name] for name in ("p", "floor", "exact", "flips")}
    # A large unit has a large sum also where all units agree; only what is left of that is chance.
    row["detectable"] = minimal_detectable_difference(sums - sums.mean() * sizes, alpha=alpha)
    if interval := flip_interval(sums, sizes, level=1 - alpha, alike=alike, seed=seed):
        row |= {"low": interval.low, "high": interval.high}
        row |= {"interval": interval.method, "resamples": interval.resamples}
    return row


def with_progress(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The pairs one by one, with a progress bar if they take seconds."""
    if len(pairs) < MANY_PAIRS:
        yield from pairs
        return
    with progress(len(pairs), "comparing", "pairs") as bar:
        for pair in pairs:
            yield pair
            bar.advance()


def item_weights(number: int, classes: ClassIds | None) -> Floats:
    """What each of N items counts, (N,), with mean 1; with classes in balanced accuracy."""
    if classes is None:
        return np.ones(number)
    weights = 1.0 / np.bincount(classes)[classes]
    return np.asarray(weights / weights.mean())


def unit_sums(differences: Floats, weights: Floats, units: NDArray[np.integer[Any]]) -> tuple[Floats, Floats]:
    """Weighted differences of N items summed by unit, and their weights likewise, both (U,).

    They are scaled: the mean of the sums is the difference of the figure, the mean of the weights is 1.
    """
    sums, sizes = (np.bincount(units, values) for values in (differences, weights))
    return sums / sizes.mean(), sizes / sizes.mean()


def _interval(correct: Floats, data: _Data, metric: str, level: float) -> Interval | None:
    """Interval of the accuracy, or balanced accuracy, of one method; None without a unit."""
    if data.units is None:
        return None
    items = _number(data, metric)
    mean, variance = float(correct.mean()), float(correct.var())
    if variance > 0:  # shares of seeds or draws vary less than right and wrong, as more items would
        items *= mean * (1 - mean) / variance
    return mean_intervals([correct], data.units, classes=_classes(data, metric), level=level, items=items)[0]


def _number(data: _Data, metric: str) -> float:
    """Number of items; of balanced accuracy `class_items`."""
    classes = _classes(data, metric)
    return float(len(data.folds)) if classes is None else class_items(np.unique(classes, return_counts=True)[1])


def _classes(data: _Data, metric: str) -> ClassIds | None:
    """Classes of the items for balanced accuracy, None for accuracy."""
    return data.targets if metric == "balanced_accuracy" else None


def _wins(first: Floats, second: Floats) -> dict[str, int]:
    """Number of items that only one method gets right in most seeds. Half of the seeds are not enough."""
    right, other = first > 0.5, second > 0.5
    wins, losses = int((right & ~other).sum()), int((other & ~right).sum())
    return {"wins": wins, "losses": losses, "ties": len(first) - wins - losses}


def accuracies_of(table: pl.DataFrame) -> dict[tuple[int, int], float]:
    """Accuracy of every run of a method, by fold and seed."""
    return {
        (fold, seed): mean for fold, seed, mean in table.group_by("fold", "seed").agg(pl.col("correct").mean()).rows()
    }


def _ahead(first: Mapping[tuple[int, int], float], second: Mapping[tuple[int, int], float]) -> dict[str, int]:
    """Number of shared runs, and of those in which the first method has the higher or the lower accuracy."""
    gaps = [value - second[run] for run, value in first.items() if run in second]
    return {"runs": len(gaps), "ahead": sum(gap > 0 for gap in gaps), "behind": sum(gap < 0 for gap in gaps)}


def _notes(family: Family, tables: Mapping[str, pl.DataFrame], task: Task) -> list[str]:
    design = family.design
    notes = [design.reason] if design.unit != "speaker" else []
    several = len(family.methods) > 1
    if design.n_folds == 1 and several:
        notes.append(
            "all seeds share the test items of the only fold, so the results hold for methods trained on the items of "
            "these runs, and there is no secondary test"
        )
    if family.floor is not None and family.floor > family.alpha:
        notes.append(
            f"no p-value below {family.floor:.4g} is possible, so no difference can be significant at "
            f"{family.alpha:g}, and none has an interval"
        )
    elif family.floor_holm is not None and family.floor_holm > family.alpha:
        tiers = "; the tiers ask for less" if family.reference is None else "; compare fewer methods"
        notes.append(
            f"after correction over {family.size} comparisons, no p-value below {family.floor_holm:.4g} is possible, "
            f"so no difference can be significant at {family.alpha:g}{tiers}"
        )
    if design.n_units is not None and 1 < design.n_folds < design.n_units:
        notes.append(
            f"{design.unit_word}s of one fold are tested on the same trained models, so they are not fully independent"
        )
    metrics = [FIGURES[metric] for metric in dict.fromkeys((*task.over_items, task.primary))]
    if several and len(metrics) > 1:
        number, better = ("two", "better") if len(metrics) == 2 else ("three", "best")
        notes.append(f"{listed(metrics)} are {number} families; do not report the {better} of the {number}")
    runs = {frozenset(table.select("fold", "seed").unique().iter_rows()) for table in tables.values()}
    if len(runs) > 1 and design.n_folds:
        fewer = ", so some scores are averages over fewer runs than others" if len(set(map(len, runs))) > 1 else ""
        notes.append(f"methods differ in their seeds{fewer}")
    return notes
