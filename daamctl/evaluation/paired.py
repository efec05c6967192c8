"""Compare two trained methods on the same test items, and list their different settings.

Within one pipeline, `evaluate` refuses methods with different embeddings or training settings. `compare` accepts them
and lists the differences, because they may be what the comparison is about. Scores are fractions; differences are first
minus second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.comparison import Disagreement, PairedMethods, PairedResult
from daamctl.artifacts.evaluation import MethodFairness
from daamctl.artifacts.results import Fold, marked
from daamctl.artifacts.scores import ALPHA, Compared
from daamctl.artifacts.statistics import Family
from daamctl.artifacts.terms import listed
from daamctl.config import Config
from daamctl.data.task import Task
from daamctl.errors import ArtifactError
from daamctl.evaluation.comparison import (
    SCHEMA,
    compare_methods,
    item_table,
    speakers_known,
    with_holm,
)
from daamctl.evaluation.consistency import differences
from daamctl.evaluation.fairness import identical_groups, judge
from daamctl.evaluation.scoring import Items, items_of
from daamctl.evaluation.settings_diff import CANNOT_SECTIONS, code_changed, differing, facts, merged
from daamctl.evaluation.trials import compare_primary
from daamctl.store.differences import flat

MOST_DISAGREEMENTS = 10
CUTTING = ("segment.max_duration_s", "segment.tail", "segment.tail_below_s")
"""Settings that decide how utterances are cut into clips."""


@dataclass(frozen=True)
class TrainedMethod:
    """A method with its finished folds and its scored items.

    Args:
        folds: its finished folds, all with the same settings.
        items: scored items of each fold, in the same order.
        table: the same items over folds and seeds, in the columns of `SCHEMA`.
        facts: how it was made, see `settings_diff.facts`.
        remake: command that makes its test items again.
    """

    side: str
    method: str
    folds: list[Fold]
    items: list[Items]
    table: pl.DataFrame
    facts: dict[str, Any]
    config: Config
    remake: str
    fairness: MethodFairness

    @classmethod
    def of(
        cls,
        side: str,
        method: str,
        folds: list[Fold],
        unit: str,
        config: Config,
        remake: str,
        probes: Mapping[str, list[Fold]] | None = None,
    ) -> TrainedMethod:
        """Score finished folds.

        Args:
            remake: command that makes its test items again.
            probes: finished folds of closed-form probes of the same run, to judge how well it was trained.
        """
        predictions = [fold.predictions() for fold in folds]
        items = [items_of(part, unit, folds[0].task) for part in predictions]
        table = item_table(folds, items)
        fairness = judge(folds, probes or {}, unit=unit, margin=config.evaluate.margin)
        return cls(side, method, folds, items, table, facts(folds, predictions), config, remake, fairness)

    @property
    def name(self) -> str:
        """Side and method."""
        return f"{self.side}/{self.method}"

    @property
    def label(self) -> str:
        """Name of the method in results."""
        return f"{self.side}/{marked(self.folds[0].label, self.fairness.mark)}"

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return self.folds[0].task

    @property
    def later(self) -> dict[str, Any]:
        """The current settings that are read after training, and the listed methods."""
        sections = {name: self.config.section(name) for name in CANNOT_SECTIONS}
        return {**flat(sections), "methods": list(self.config.trained)}

    @property
    def notes(self) -> list[str]:
        """Notes for the reader of its results."""
        run = self.folds[0].result["run"]
        notes = []
        if self.fairness.mark:
            notes.append(f"{self.name}: {self.fairness.status}: {'; '.join(self.fairness.reasons)}")
        if self.folds[0].rule.selection == "best-on-test":
            notes.append(
                f"{self.side}: epochs are selected on the test groups themselves (D7), so its results are inflated"
            )
        if run.get("reconstructed"):
            notes.append(f"{self.name}: {run['reconstructed']}; a reconstruction, not a replication")
        if run.get("eval_batches"):
            notes.append(f"{self.name}: predictions depend on the other {self.task.clip}s in the batch (D1)")
        changed = {text for fold in self.folds for text in differences(fold, self.config)}
        return notes + [
            f"{self.name}: trained with other settings than the current ones: {one}" for one in sorted(changed)
        ]


def compare_paired(pairs: Sequence[tuple[TrainedMethod, TrainedMethod]], unit: str, command: str) -> PairedResult:
    """Compare every pair; all pairs are one family of tests per metric.

    Args:
        pairs: methods of the first side and methods of the second side; at least one pair.
        command: `daamctl compare` with these sides, for errors.

    Raises:
        ArtifactError: the methods of a pair were tested on different items or targets; the message names the settings
            that differ and the repair.
    """
    settings, notes = {}, []
    rows: list[Compared] = []
    facts_of: list[PairedMethods] = []
    for first, second in pairs:
        settings[first.method] = differing({**first.facts, **first.later}, {**second.facts, **second.later})
        found, family = _compare(first, second, unit, command)
        rows += compare_primary(first.folds, second.folds, (first.name, second.name))
        rows += found
        facts_of.append(
            PairedMethods(
                first=first.name,
                second=second.name,
                first_label=first.label,
                second_label=second.label,
                fairness={"first": first.fairness, "second": second.fairness},
                doubt=_doubt(first, second),
                disagreements=disagreements(first, second),
                design=family.design,
                floor=family.floor,
            )
        )
        notes += [*family.notes, *first.notes, *second.notes, *_same(first, second)]
    floor = max((entry.floor for entry in facts_of if entry.floor), default=None)
    floor_holm = 1.0 if floor is None else min(1.0, floor * len(pairs))
    # only where the correction is to blame; without it, a difference could be significant
    if floor is not None and floor <= ALPHA < floor_holm:
        notes.append(
            f"after correction over {len(pairs)} methods, no p-value below {floor_holm:.4g} is possible, so no "
            f"difference can be significant at {ALPHA:g}; compare fewer methods"
        )
    if any(part.can_change for part in settings.values()):
        notes.append("the difference between the sides is due to all listed settings together, not to a single one")
    else:
        notes.append("no recorded setting that can change the results differs")
    return PairedResult(
        settings=merged(settings),
        alpha=ALPHA,
        floor=floor,
        comparisons=with_holm(rows),
        pairs=facts_of,
        notes=list(dict.fromkeys(notes)),
    )


def _same(first: TrainedMethod, second: TrainedMethod) -> list[str]:
    """Notes on identical predictions, and on code that must have changed."""
    both = {one.name: one for one in (first, second)}
    folds = {name: one.folds for name, one in both.items()}
    items = {name: one.items for name, one in both.items()}
    notes = [group.text for group in identical_groups(folds, items)]
    if code_changed(first.folds, second.folds):
        notes.append(
            f"{first.name} and {second.name}: settings and embeddings agree, but content keys differ, so the code of "
            "the method has changed"
        )
    return notes


def _doubt(first: TrainedMethod, second: TrainedMethod) -> str | None:
    """Warning if a method was not trained well, else None."""
    doubted = [one for one in (first, second) if one.fairness.doubtful]
    marks = [f"{one.name} ({one.fairness.mark})" for one in doubted]
    return f"training alone may explain this difference, whatever the p-value: {listed(marks)}" if marks else None


def disagreements(first: TrainedMethod, second: TrainedMethod) -> list[Disagreement]:
    """The items on which two methods disagree most: by share of seeds right, then by probability of the true class.

    Returns:
        At most `MOST_DISAGREEMENTS` items; none without classes.
    """
    classes, known = first.task.classes, speakers_known(first.table)
    if not classes:
        return []
    gap = pl.col("correct") - pl.col("correct_second")
    # among items with equal shares, those that the methods are surest about come first
    surer = pl.col("probability") - pl.col("probability_second")
    places = ["item"] if _other_folds(first.table, second.table) else ["fold", "item"]
    rows = _averaged(first).join(_averaged(second), on=places, suffix="_second", validate="1:1")
    rows = rows.filter(gap != 0).sort(gap.abs(), surer.abs(), "item", descending=[True, True, False])
    shown = rows.head(MOST_DISAGREEMENTS).select(
        "item",
        "fold",
        speaker="speaker" if known else pl.lit(None),
        label=pl.col("target").map_elements(lambda target: classes[target], return_dtype=pl.String),
        first_right="correct",
        second_right="correct_second",
        first_probability="probability",
        second_probability="probability_second",
    )
    return [Disagreement(**row) for row in shown.iter_rows(named=True)]


def _averaged(method: TrainedMethod) -> pl.DataFrame:
    """One row per fold and item: share of seeds that are right, and mean probability of the true class."""
    parts = [part.probabilities[np.arange(len(part)), part.targets] for part in method.items]
    # the table and the items have the same order: it was made from them
    table = method.table.with_columns(probability=np.concatenate(parts))
    return table.group_by("fold", "item").agg(
        pl.col("speaker", "target").first(), pl.col("correct", "probability").mean()
    )


def _compare(first: TrainedMethod, second: TrainedMethod, unit: str, command: str) -> tuple[list[Compared], Family]:
    """Compare one pair.

    Raises:
        ArtifactError: see `compare_paired`.
    """
    found = differing(first.facts, second.facts)
    names = [row.name for row in found.can_change]
    # where items came from changes no score of the same items
    every = [*names, *(row.name for row in found.cannot_change)]
    made = [name for name in every if name.startswith(("download.", "segment."))]
    again = f"they differ in {', '.join(made)}" if made else "their settings of download and segment agree"
    again += (
        f"; different items cannot be paired. If they should be equal, make them again: {first.remake}, {second.remake}"
    )
    if "data.classes" in names:
        classes = " and ".join(", ".join(method.facts["data.classes"]) for method in (first, second))
        raise ArtifactError(f"'{first.name}' and '{second.name}' have different targets: {classes}", fix=again)
    cut = [name for name in names if name in CUTTING or name == "data.test_clips_key"]
    # utterances are the same however they are cut, so a comparison by utterance is still possible
    if unit == "clip" and cut and "data.test_utterances_key" not in names:
        raise ArtifactError(
            f"'{first.name}' and '{second.name}' were tested on the same utterances but on different clips, so clips "
            f"cannot be paired (differing: {', '.join(cut)})",
            fix=f"compare them by utterance: {command} --unit utterance",
        )
    # compare_methods requires equal numbers of clips. If they differ, use those of the method with the larger share of
    # test clips, which gives the larger p-value.
    sides = [method.table.select("fold", "n_test", "n_train").unique("fold").sort("fold") for method in (first, second)]
    ratios = [float((side["n_test"] / side["n_train"]).mean()) for side in sides]  # type: ignore[arg-type]
    sizes = sides[0] if ratios[0] >= ratios[1] else sides[1]
    tables = {
        method.name: method.table.drop("n_test", "n_train").join(sizes, on="fold", how="left").select(list(SCHEMA))
        for method in (first, second)
    }
    same_folds = not _other_folds(first.table, second.table)
    try:
        rows, family = compare_methods(tables, task=first.task, same_folds=same_folds, alpha=ALPHA)
    except ArtifactError as error:
        items, others = (set(method.table["item"]) for method in (first, second))
        if items != others and items & others:
            again += f". To judge the items that both have: daamctl judge {first.name} {second.name} --common"
        raise ArtifactError(error.message, fix=again) from error
    if not same_folds:
        return rows, replace(family, notes=[*family.notes, _other_folds_note(first, second)])
    if ratios[0] == ratios[1] or family.design.n_folds < 2:
        return rows, family
    shares = " and ".join(f"{ratio:.3g}" for ratio in ratios)
    note = f"n_test / n_train is {shares}; the test over folds uses the larger one"
    return rows, replace(family, notes=[*family.notes, note])


def _other_folds(first: pl.DataFrame, second: pl.DataFrame) -> bool:
    """Whether two methods were tested on the same items, each once per seed, but in other folds."""
    places = [table.select("item", "fold").unique().sort("item", "fold") for table in (first, second)]
    same_items = places[0]["item"].equals(places[1]["item"]) and not places[0]["item"].is_duplicated().any()
    return same_items and not places[0].equals(places[1])


def _other_folds_note(first: TrainedMethod, second: TrainedMethod) -> str:
    """What a comparison across different folds is, and is not."""
    one, two = (f"{method.side}: {method.folds[0].result['run']['num_folds']}" for method in (first, second))
    return (
        f"the test items are the same, but the folds are not ({one}, {two}), so the methods were trained on other "
        "items. Items are paired, all folds together; nothing is tested over folds"
    )
