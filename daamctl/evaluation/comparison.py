"""Paired comparison of methods on the same test items: which differences the speakers can carry (BASELINES 8).

Seeds are averaged first: an item's correctness is the share of its method's seeds that answered rightly. The primary
test is a sign-flip over speakers, the secondary one a corrected t-test over folds; intervals redraw speakers. Where
speakers cannot carry the test, folds do, and the result says so.

Two figures are compared, accuracy (WA) and balanced accuracy (UA). An item weighs the same in WA; in UA it weighs
1 / (number of test items of its class, over all folds). A speaker's difference is the weighted mean over the speaker's
items, so it is defined whichever classes a speaker lacks, and one rare item cannot stand for a whole class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.results import Fold
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation.metrics import ClassIds
from daamctl.evaluation.scoring import Items
from daamctl.evaluation.statistics import (
    FEW_CLUSTERS,
    Floats,
    cluster_bootstrap,
    friedman_nemenyi,
    grouped_means,
    holm,
    minimal_detectable_difference,
    nadeau_bengio,
    paired_sign_flip,
    sign_flip_floor,
)

COMPARED = ("accuracy", "balanced_accuracy")
"""Metrics compared: those that are means over items."""
MIN_SPEAKERS = 5
FIXED = {"target": "target", "speaker": "speaker", "n_test": "test-clip count", "n_train": "training-clip count"}
"""What an item must have in common over seeds and methods, as named in errors; the counts, because one share tested
corrects every test over folds. The same embeddings, folds and training settings give the same counts."""
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


@dataclass(frozen=True)
class _Design:
    """What all methods share, one entry per test item (N of them) unless said otherwise.

    Args:
        targets: true class ids.
        folds: fold numbers.
        speakers: codes from 0; None where a speaker is unknown.
        unit: "speaker", "fold" or None: what the primary test and the intervals take as independent.
        reason: why that unit.
        n_test: clips tested, one per fold.
        n_train: clips trained on, one per fold.
    """

    targets: ClassIds
    folds: ClassIds
    speakers: NDArray[np.int64] | None
    unit: str | None
    reason: str
    n_test: list[int]
    n_train: list[int]

    @property
    def units(self) -> NDArray[np.integer[Any]] | None:
        """The unit of each item."""
        if self.unit is None:
            return None
        return self.speakers if self.unit == "speaker" else self.folds


def item_table(folds: Sequence[Fold], items: Sequence[Items]) -> pl.DataFrame:
    """The test items of one method over folds and seeds, in the columns of `SCHEMA`; n_test and n_train are clips.

    Args:
        folds: finished folds of the method.
        items: what each of them was scored on, in the same order.
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
                "n_train": fold.result["meta"]["num_train_clips"],
            },
            schema_overrides=SCHEMA,
        )
        for fold, part in zip(folds, items, strict=True)
    ]
    return pl.concat(parts)


def compare_methods(
    tables: Mapping[str, pl.DataFrame],
    *,
    reference: str | None = None,
    alpha: float = 0.05,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare methods in pairs, as one family of tests per metric.

    Args:
        tables: method -> its test items (`item_table`); at least one.
        reference: compare every other method with this one; None: compare all pairs. Declare it before looking.
        alpha: two-sided level; intervals are of level 1 - alpha.
        resamples: draws of each bootstrap.
        seed: of the bootstrap and of random sign flips.

    Returns:
        family: methods; reference; size (comparisons per metric); alpha; correction ("holm", within each metric);
            floor (smallest primary p, None without a test) and floor_holm (the same after correction).
        design: unit ("speaker", "fold", or None: no test); reason; n_items; n_speakers (None: unknown); n_folds; seeds
            (method -> list).
        comparisons: a list of
            first, second: methods; differences are first minus second.
            wins, losses, ties: items that more than half of the seeds of `first` alone got right, of `second` alone, of
                both or neither.
            metrics: metric ->
                first_value, second_value, difference: over all test items, seeds averaged (not a mean over folds).
                interval: of the difference (`cluster_bootstrap` over the unit), None without a unit.
                primary: `paired_sign_flip` over the unit, with test, unit and p_holm; None without a unit.
                secondary: `nadeau_bengio` over folds, with test, unit and p_holm; None with one fold.
                minimal_detectable: `minimal_detectable_difference` over the unit; None without one.
        ranks: metric -> `friedman_nemenyi` over folds; None with fewer than three methods or two folds.
        notes: what a reader must know.

    Raises:
        ArtifactError: the methods were not tested on the same items, targets, speakers and folds, or tested or trained
            on different numbers of clips.
        UnknownNameError: `reference` is not among the methods.
    """
    if reference is not None and reference not in tables:
        raise UnknownNameError("method", reference, tables)
    averaged = {method: _averaged(method, table) for method, table in tables.items()}
    _check_same(averaged)
    design = _design(next(iter(averaged.values())))
    correct = {method: table["correct"].to_numpy() for method, table in averaged.items()}
    pairs = (
        list(combinations(tables, 2))
        if reference is None
        else [(reference, method) for method in tables if method != reference]
    )
    comparisons = [
        {
            "first": first,
            "second": second,
            **_wins(correct[first], correct[second]),
            "metrics": {
                name: _compare(correct[first], correct[second], design, name, alpha, resamples, seed)
                for name in COMPARED
            },
        }
        for first, second in pairs
    ]
    _correct_within_family(comparisons)
    floor = None if design.units is None else sign_flip_floor(len(np.unique(design.units)))
    family = {
        "methods": list(tables),
        "reference": reference,
        "size": len(pairs),
        "alpha": alpha,
        "correction": "holm",
        "floor": floor,
        "floor_holm": None if floor is None else min(1.0, floor * max(1, len(pairs))),
    }
    seeds = {method: sorted(table["seed"].unique().to_list()) for method, table in tables.items()}
    return {
        "family": family,
        "design": {
            "unit": design.unit,
            "reason": design.reason,
            "n_items": len(design.targets),
            "n_speakers": None if design.speakers is None else len(np.unique(design.speakers)),
            "n_folds": len(design.n_test),
            "seeds": seeds,
        },
        "comparisons": comparisons,
        "ranks": {name: _ranks(correct, design, name, alpha) for name in COMPARED},
        "notes": _notes(family, design, tables),
    }


def method_intervals(
    method: str, table: pl.DataFrame, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Bootstrap intervals of one method's own figures, over speakers, or over folds where speakers cannot carry them.

    Args:
        method: named in errors.
        table: its test items (`item_table`).
        level: of the intervals.
        resamples: draws of the bootstrap.
        seed: of the draws.

    Returns:
        unit, reason: as the design in `compare_methods`; metrics: metric -> `cluster_bootstrap`, None without a unit.

    Raises:
        ArtifactError: an item occurs twice in one test pass, or changes one of `FIXED` between seeds.
    """
    averaged = _averaged(method, table)
    design = _design(averaged)
    correct = averaged["correct"].to_numpy()
    intervals = {name: _interval(correct, design, name, level, resamples, seed) for name in COMPARED}
    return {"unit": design.unit, "reason": design.reason, "metrics": intervals}


def _averaged(method: str, table: pl.DataFrame) -> pl.DataFrame:
    """One row per fold and item, sorted: speaker, target, n_test, n_train, and `correct`, the share of seeds right."""
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
    """Refuse methods that were tested on other items, or on items that differ in one of `FIXED`."""
    (first, expected), *others = tables.items()
    for method, table in others:
        lacking = expected.join(table, on=["fold", "item"], how="anti")
        further = table.join(expected, on=["fold", "item"], how="anti")
        if len(lacking) or len(further):
            example = (lacking if len(lacking) else further).sort("fold", "item")
            raise ArtifactError(
                f"'{first}' and '{method}' were not tested on the same items: '{method}' lacks {len(lacking)} of "
                f"{len(expected)} and has {len(further)} others, e.g. '{example['item'][0]}' of fold "
                f"{example['fold'][0]}",
                fix="train the missing folds, or leave the method out",
            )
        for name, what in FIXED.items():
            met, known = table[name], expected[name]
            wrong = np.flatnonzero(met.ne_missing(known).to_numpy())
            if len(wrong):
                row = int(wrong[0])
                raise ArtifactError(
                    f"'{first}' and '{method}' were tested with different {what}s: {len(wrong)} of {len(expected)} "
                    f"items differ, e.g. '{expected['item'][row]}': {known[row]} and {met[row]}",
                    fix="train both on the same clips",
                )


def _design(table: pl.DataFrame) -> _Design:
    sizes = table.group_by("fold").agg(pl.col("n_test", "n_train").first()).sort("fold")
    names = table["speaker"]
    known = None if names.null_count() else names.rank("dense").to_numpy().astype(np.int64) - 1
    unit, reason = _unit(table)
    return _Design(
        table["target"].to_numpy(), table["fold"].to_numpy(), known, unit, reason,
        sizes["n_test"].to_list(), sizes["n_train"].to_list(),
    )  # fmt: skip


def _unit(table: pl.DataFrame) -> tuple[str | None, str]:
    """What the test takes as independent, and why."""
    unknown, speakers, folds = table["speaker"].null_count(), table["speaker"].n_unique(), table["fold"].n_unique()
    if unknown:
        why = f"the speaker of {unknown} of {len(table)} test items is unknown"
    elif table.select("fold", "speaker").n_unique() == speakers == folds:
        why = "each fold tests one speaker"
    elif speakers < MIN_SPEAKERS:
        why = f"only {speakers} speakers are tested, {MIN_SPEAKERS} are needed"
    else:
        return "speaker", f"{speakers} speakers are tested"
    if folds < 2:
        return None, f"no test is available: {why}, and there is one fold"
    return "fold", f"the test over speakers is not available: {why}; it runs over the {folds} folds instead"


def _compare(
    first: Floats, second: Floats, design: _Design, metric: str, alpha: float, resamples: int, seed: int
) -> dict[str, Any]:
    """One metric of one pair; p_holm is filled in once the family is complete."""
    difference = first - second
    everything = np.zeros(len(difference), dtype=np.int64)
    values = [float(grouped_means(part, everything, _classes(design, metric))[0]) for part in (first, second)]
    units = _unit_differences(difference, design, metric)
    folds = grouped_means(difference, design.folds, _classes(design, metric))
    primary = secondary = detectable = None
    if units is not None:
        flipped = paired_sign_flip(units, seed=seed)
        primary = {"test": "sign-flip", "unit": design.unit, **flipped, "p_holm": None}
        detectable = minimal_detectable_difference(units, alpha=alpha)
    if len(folds) > 1:
        corrected = nadeau_bengio(folds, design.n_test, design.n_train)
        secondary = {"test": "nadeau-bengio", "unit": "fold", **corrected, "p_holm": None}
    return {
        "first_value": values[0],
        "second_value": values[1],
        "difference": values[0] - values[1],
        "interval": _interval(difference, design, metric, 1 - alpha, resamples, seed),
        "primary": primary,
        "secondary": secondary,
        "minimal_detectable": detectable,
    }


def _unit_differences(difference: Floats, design: _Design, metric: str) -> Floats | None:
    """The differences the primary test runs on: one per speaker (weights: see the module), or one per fold."""
    if design.unit is None:
        return None
    classes = _classes(design, metric)
    if design.unit == "fold":
        return grouped_means(difference, design.folds, classes)
    assert design.speakers is not None
    weights = np.ones(len(difference)) if classes is None else 1.0 / np.bincount(classes)[classes]
    return np.bincount(design.speakers, weights * difference) / np.bincount(design.speakers, weights)


def _interval(
    values: Floats, design: _Design, metric: str, level: float, resamples: int, seed: int
) -> dict[str, Any] | None:
    if design.units is None:
        return None
    classes = _classes(design, metric)
    return cluster_bootstrap(values, design.units, classes=classes, level=level, resamples=resamples, seed=seed)


def _ranks(correct: Mapping[str, Floats], design: _Design, metric: str, alpha: float) -> dict[str, Any] | None:
    if len(correct) < 3 or len(design.n_test) < 2:
        return None
    classes = _classes(design, metric)
    scores = {method: grouped_means(values, design.folds, classes).tolist() for method, values in correct.items()}
    return friedman_nemenyi(scores, alpha=alpha)


def _classes(design: _Design, metric: str) -> ClassIds | None:
    """What balances the figure: the classes for balanced accuracy, nothing for accuracy."""
    return design.targets if metric == "balanced_accuracy" else None


def _wins(first: Floats, second: Floats) -> dict[str, int]:
    """Items got right by the majority of seeds of one method only; an even split counts as wrong."""
    right, other = first > 0.5, second > 0.5
    wins, losses = int((right & ~other).sum()), int((other & ~right).sum())
    return {"wins": wins, "losses": losses, "ties": len(first) - wins - losses}


def _correct_within_family(comparisons: Sequence[Mapping[str, Any]]) -> None:
    """Fill in p_holm: one family per metric and test."""
    for metric in COMPARED:
        for test in ("primary", "secondary"):
            results = [entry["metrics"][metric][test] for entry in comparisons]
            adjusted = holm([result["p"] if result else None for result in results])
            for result, p in zip(results, adjusted, strict=True):
                if result:
                    result["p_holm"] = p


def _notes(family: Mapping[str, Any], design: _Design, tables: Mapping[str, pl.DataFrame]) -> list[str]:
    notes = [design.reason] if design.unit != "speaker" else []
    alpha, floor, corrected = family["alpha"], family["floor"], family["floor_holm"]
    if floor is not None and floor > alpha:
        notes.append(f"no p below {floor:.4g} is possible, so no difference can reach {alpha:g}, however large")
    elif corrected is not None and corrected > alpha:
        notes.append(
            f"corrected over {family['size']} comparisons no p below {corrected:.4g} is possible, so no difference can "
            f"reach {alpha:g}, however large; a smaller family could"
        )
    if design.units is not None:
        clusters = len(np.unique(design.units))
        if clusters < FEW_CLUSTERS:
            notes.append(f"intervals redraw only {clusters} {design.unit}s and are optimistic (too narrow)")
        if len(design.n_test) < clusters:
            notes.append("speakers of one fold are tested on the same trained models: not fully independent")
    if len(family["methods"]) > 1:
        notes.append("accuracy and balanced accuracy are two families; the better of the two is not a result")
    passes = {method: set(table.select("fold", "seed").unique().iter_rows()) for method, table in tables.items()}
    if len({frozenset(part) for part in passes.values()}) > 1:
        notes.append("methods differ in their seeds, so some figures are averages over fewer runs than others")
    return notes
