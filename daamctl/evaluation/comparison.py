"""Paired comparison of methods on the same test items: which differences the speakers can carry.

Source: docs/sources.md#paired-comparison. Seeds are averaged first: an item's correctness is the share of its method's
seeds that answered rightly. The primary test is a sign-flip over speakers, the secondary one a corrected t-test over
folds; intervals redraw speakers. Where speakers cannot carry the test, folds do, and the result says so. Where every
item is a speaker of its own, as texts and images of unknown origin are, items are the units. With one fold, an official
split, there is no secondary test: runs with other seeds share their training and test items, which the correction is
not made for.

Two figures are compared, accuracy (WA) and balanced accuracy (UA). An item weighs the same in WA; in UA it weighs
1 / (number of test items of its class, over all folds). A speaker's difference is the weighted mean over the speaker's
items, so it is defined whichever classes a speaker lacks, and one rare item cannot stand for a whole class. Where items
are the units, an item's difference is multiplied by its weight over the mean weight instead.
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
from daamctl.artifacts.terms import terms_of
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation.metrics import ClassIds
from daamctl.evaluation.scoring import Items
from daamctl.evaluation.statistics import (
    FEW_CLUSTERS,
    cluster_bootstraps,
    friedman_nemenyi,
    grouped_means,
    holm,
    minimal_detectable_difference,
    nadeau_bengio,
)
from daamctl.sign_flip import Floats, paired_sign_flip, sign_flip_floor

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
        unit: "speaker", "item", "fold" or None: what the primary test and the intervals take as independent.
        word: what that unit is called.
        reason: why that unit.
        n_test: clips tested, one per fold.
        n_train: clips trained on, one per fold.
    """

    targets: ClassIds
    folds: ClassIds
    speakers: NDArray[np.int64] | None
    unit: str | None
    word: str
    reason: str
    n_test: list[int]
    n_train: list[int]

    @property
    def n_speakers(self) -> int | None:
        """How many speakers are known; None where any is not, or none."""
        return None if self.speakers is None or self.unit == "item" else len(np.unique(self.speakers))

    @property
    def units(self) -> NDArray[np.integer[Any]] | None:
        """The unit of each item."""
        if self.unit is None:
            return None
        return self.folds if self.unit == "fold" else self.speakers


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


def speakers_known(table: pl.DataFrame) -> bool:
    """Whether any item of an `item_table` comes from somebody: not where all are their own speakers, or have none."""
    own = pl.col("item").str.replace(r"#\d+$", "")  # a clip's utterance
    known = table.filter(pl.col("speaker").is_not_null())
    return not known.filter(pl.col("speaker").ne(pl.col("item")) & pl.col("speaker").ne(own)).is_empty()


def compare_methods(
    tables: Mapping[str, pl.DataFrame],
    *,
    reference: str | None = None,
    modality: str = "speech",
    alpha: float = 0.05,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare methods in pairs, as one family of tests per metric.

    Args:
        tables: method -> its test items (`item_table`); at least one.
        reference: compare every other method with this one; None: compare all pairs. Declare it before looking.
        modality: of the items; for the words.
        alpha: two-sided level; intervals are of level 1 - alpha.
        resamples: draws of each bootstrap.
        seed: of the bootstrap and of random sign flips.

    Returns:
        family: methods; reference; size (comparisons per metric); alpha; correction ("holm", within each metric);
            floor (smallest primary p, None without a test) and floor_holm (the same after correction).
        design: unit ("speaker", "item": every item is its own speaker, "fold", or None: no test); unit_word and
            source_word (what a unit and a speaker are called); reason; n_units; n_items; n_speakers (None: unknown);
            n_folds; seeds (method -> list).
        comparisons: a list of
            first, second: methods; differences are first minus second.
            wins, losses, ties: items that more than half of the seeds of `first` alone got right, of `second` alone, of
                both or neither.
            runs, ahead, behind: folds and seeds that both have, and in how many of them `first` has the higher, and the
                lower, accuracy.
            metrics: metric ->
                first_value, second_value, difference: over all test items, seeds averaged (not a mean over folds).
                interval: of the difference (`cluster_bootstraps` over the unit), None without a unit.
                primary: `paired_sign_flip` over the unit, with test, unit (its word) and p_holm; None without a unit.
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
    design = _design(next(iter(averaged.values())), modality)
    correct = {method: table["correct"].to_numpy() for method, table in averaged.items()}
    pairs = (
        list(combinations(tables, 2))
        if reference is None
        else [(reference, method) for method in tables if method != reference]
    )
    drawn = {
        name: _intervals([correct[a] - correct[b] for a, b in pairs], design, name, 1 - alpha, resamples, seed)
        for name in COMPARED
    }
    comparisons = [
        {
            "first": first,
            "second": second,
            **_wins(correct[first], correct[second]),
            **_runs(tables[first], tables[second]),
            "metrics": {
                name: {
                    **_compare(correct[first], correct[second], design, name, alpha, seed),
                    "interval": drawn[name][index],
                }
                for name in COMPARED
            },
        }
        for index, (first, second) in enumerate(pairs)
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
            "unit_word": design.word,
            "source_word": terms_of(modality).source,
            "reason": design.reason,
            "n_units": None if design.units is None else len(np.unique(design.units)),
            "n_items": len(design.targets),
            "n_speakers": design.n_speakers,
            "n_folds": len(design.n_test),
            "seeds": seeds,
        },
        "comparisons": comparisons,
        "ranks": {name: _ranks(correct, design, name, alpha) for name in COMPARED},
        "notes": _notes(family, design, tables),
    }


def method_intervals(
    tables: Mapping[str, pl.DataFrame],
    *,
    modality: str = "speech",
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Bootstrap intervals of methods' own figures, over speakers, or over folds where speakers cannot carry them.

    Args:
        tables: method -> its test items (`item_table`), which may differ from method to method.
        modality: of the items; for the words.
        level: of the intervals.
        resamples: draws of the bootstrap.
        seed: of the draws.

    Returns:
        method -> unit, unit_word, reason: as the design in `compare_methods`; metrics: metric -> `cluster_bootstraps`,
        None without a unit.

    Raises:
        ArtifactError: an item occurs twice in one test pass, or changes one of `FIXED` between seeds.
    """
    averaged = {method: _averaged(method, table) for method, table in tables.items()}
    alike: list[list[str]] = []  # methods tested on the same items are drawn together
    for method, table in averaged.items():
        same = (part for part in alike if averaged[part[0]].drop("correct").equals(table.drop("correct")))
        if (group := next(same, None)) is not None:
            group.append(method)
        else:
            alike.append([method])
    found: dict[str, dict[str, Any]] = {}
    for group in alike:
        design = _design(averaged[group[0]], modality)
        correct = [averaged[method]["correct"].to_numpy() for method in group]
        drawn = {name: _intervals(correct, design, name, level, resamples, seed) for name in COMPARED}
        for index, method in enumerate(group):
            figures = {name: drawn[name][index] for name in COMPARED}
            found[method] = {
                "unit": design.unit, "unit_word": design.word, "reason": design.reason, "metrics": figures,
            }  # fmt: skip
    return {method: found[method] for method in tables}


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


def _design(table: pl.DataFrame, modality: str) -> _Design:
    sizes = table.group_by("fold").agg(pl.col("n_test", "n_train").first()).sort("fold")
    names = table["speaker"]
    known = None if names.null_count() else names.rank("dense").to_numpy().astype(np.int64) - 1
    unit, word, reason = _unit(table, modality)
    return _Design(
        table["target"].to_numpy(), table["fold"].to_numpy(), known, unit, word, reason,
        sizes["n_test"].to_list(), sizes["n_train"].to_list(),
    )  # fmt: skip


def _unit(table: pl.DataFrame, modality: str) -> tuple[str | None, str, str]:
    """What the test takes as independent, what that is called, and why."""
    unknown, speakers, folds = table["speaker"].null_count(), table["speaker"].n_unique(), table["fold"].n_unique()
    words = terms_of(modality)
    if unknown:
        why = f"the {words.source} of {unknown} of {len(table)} test items is unknown"
    elif not speakers_known(table) and speakers >= MIN_SPEAKERS:
        return (
            "item",
            words.item,
            f"{words.unknown[0].lower()}{words.unknown[1:]}, so each {words.item} is its own unit",
        )
    elif table.select("fold", "speaker").n_unique() == speakers == folds:
        why = f"each fold tests one {words.source}"
    elif speakers < MIN_SPEAKERS:
        why = f"only {speakers} {words.source}s are tested, {MIN_SPEAKERS} are needed"
    else:
        return "speaker", words.source, f"{speakers} {words.source}s are tested"
    if folds < 2:
        return None, "", f"no test is available: {why}, and there is one fold"
    text = f"the test over {words.source}s is not available: {why}; it runs over the {folds} folds instead"
    return "fold", "fold", text


def _compare(first: Floats, second: Floats, design: _Design, metric: str, alpha: float, seed: int) -> dict[str, Any]:
    """One metric of one pair, without its interval; p_holm is filled in once the family is complete."""
    difference = first - second
    everything = np.zeros(len(difference), dtype=np.int64)
    values = [float(grouped_means(part, everything, _classes(design, metric))[0]) for part in (first, second)]
    units = _unit_differences(difference, design, metric)
    folds = grouped_means(difference, design.folds, _classes(design, metric))
    primary = secondary = detectable = None
    if units is not None:
        flipped = paired_sign_flip(units, seed=seed)
        primary = {"test": "sign-flip", "unit": design.word, **flipped, "p_holm": None}
        detectable = minimal_detectable_difference(units, alpha=alpha)
    if len(folds) > 1:
        corrected = nadeau_bengio(folds, design.n_test, design.n_train)
        secondary = {"test": "nadeau-bengio", "unit": "fold", **corrected, "p_holm": None}
    return {
        "first_value": values[0],
        "second_value": values[1],
        "difference": values[0] - values[1],
        "primary": primary,
        "secondary": secondary,
        "minimal_detectable": detectable,
    }


def _unit_differences(difference: Floats, design: _Design, metric: str) -> Floats | None:
    """The differences the primary test runs on: one per speaker or item (weights: see the module), or per fold."""
    if design.unit is None:
        return None
    classes = _classes(design, metric)
    if design.unit == "fold":
        return grouped_means(difference, design.folds, classes)
    assert design.speakers is not None
    weights = np.ones(len(difference)) if classes is None else 1.0 / np.bincount(classes)[classes]
    if design.unit == "item":
        weighted = np.bincount(design.speakers, weights * difference)
        return np.asarray(weighted * len(weighted) / weights.sum())
    return np.bincount(design.speakers, weights * difference) / np.bincount(design.speakers, weights)


def _intervals(
    values: Sequence[Floats], design: _Design, metric: str, level: float, resamples: int, seed: int
) -> list[dict[str, Any]] | list[None]:
    if design.units is None or not values:
        return [None] * len(values)
    classes = _classes(design, metric)
    table = np.array(values)
    return cluster_bootstraps(table, design.units, classes=classes, level=level, resamples=resamples, seed=seed)


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


def _runs(first: pl.DataFrame, second: pl.DataFrame) -> dict[str, int]:
    """In how many of the shared folds and seeds the first method has the higher accuracy."""
    means = [table.group_by("fold", "seed").agg(pl.col("correct").mean()) for table in (first, second)]
    shared = means[0].join(means[1], on=["fold", "seed"], suffix="_second")
    gaps = shared["correct"] - shared["correct_second"]
    return {"runs": len(shared), "ahead": int((gaps > 0).sum()), "behind": int((gaps < 0).sum())}


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
    if len(design.n_test) == 1 and len(family["methods"]) > 1:
        notes.append(
            "there is one fold, whose training and test items all seeds share: what is found holds for methods trained "
            "on these items, and there is no secondary test"
        )
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
            notes.append(f"intervals redraw only {clusters} {design.word}s and are optimistic (too narrow)")
        if 1 < len(design.n_test) < clusters:
            notes.append(f"{design.word}s of one fold are tested on the same trained models: not fully independent")
    if len(family["methods"]) > 1:
        notes.append("accuracy and balanced accuracy are two families; the better of the two is not a result")
    passes = {method: set(table.select("fold", "seed").unique().iter_rows()) for method, table in tables.items()}
    if len({frozenset(part) for part in passes.values()}) > 1:
        notes.append("methods differ in their seeds, so some figures are averages over fewer runs than others")
    return notes
