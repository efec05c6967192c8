"""Compare two trained methods on the same test items, and list their different settings.

The methods may differ in embeddings and training settings, which `evaluate` refuses within one pipeline. Here these are
the subject of the comparison, so they are listed with the difference. Values are fractions; differences are first minus
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.results import Fold, marked
from daamctl.artifacts.terms import listed, terms_of
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.evaluation.comparison import COMPARED, SCHEMA, compare_methods, item_table, speakers_known
from daamctl.evaluation.consistency import differences, flat
from daamctl.evaluation.fairness import MethodFairness, assess_method, identical_groups, identical_text
from daamctl.evaluation.scoring import Items, items_of
from daamctl.evaluation.settings_diff import CANNOT_SECTIONS, code_changed, differing, facts, merged
from daamctl.evaluation.statistics import holm

MOST_CONSISTENT = 10
ALPHA = 0.05
CUTTING = ("segment.max_duration_s", "segment.tail", "segment.tail_below_s")


@dataclass(frozen=True)
class TrainedMethod:
    """A method with its finished folds, and what each of them was scored on.

    Args:
        side: pipeline or run.
        method: the method.
        folds: its finished folds, made alike.
        items: what each fold was scored on, in the same order.
        table: the same over folds and seeds, in the columns of `SCHEMA`.
        facts: how it was made, see `settings_diff.facts`.
        config: settings of now.
        remake: the command that makes its test items again.
        fairness: how well it was trained.
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
            side: pipeline or run.
            method: the method.
            folds: its finished folds.
            unit: "utterance" or "clip".
            config: settings of now.
            remake: the command that makes its test items again.
            probes: finished folds of the closed-form probes beside it, which tell how well it was trained.
        """
        predictions = [fold.predictions() for fold in folds]
        items = [items_of(part, unit) for part in predictions]
        tables = {method: item_table(folds, items)}
        for name, part in (probes or {}).items():
            tables[name] = item_table(part, [items_of(fold.predictions(), unit) for fold in part])
        fairness = assess_method(method, {method: folds}, items, tables, margin=config.evaluate.margin)
        return cls(side, method, folds, items, tables[method], facts(folds, predictions), config, remake, fairness)

    @property
    def name(self) -> str:
        """Side and method."""
        return f"{self.side}/{self.method}"

    @property
    def label(self) -> str:
        """Name of the method in results."""
        return f"{self.side}/{marked(self.folds[0].label, self.fairness.mark)}"

    @property
    def modality(self) -> str:
        """Modality of its items."""
        return self.folds[0].modality

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
        if run["config"]["train"]["selection"] == "best-on-test":
            notes.append(
                f"{self.side}: epochs are selected on the test groups themselves (D7), so its results are inflated"
            )
        if run.get("reconstructed"):
            notes.append(f"{self.name}: {run['reconstructed']}; a reconstruction, not a replication")
        if run.get("eval_batches"):
            clips = f"{terms_of(self.modality).clip}s"
            notes.append(f"{self.name}: predictions depend on the other {clips} in the batch (D1)")
        changed = {text for fold in self.folds for text in differences(fold, self.config)}
        return notes + [
            f"{self.name}: trained with other settings than the current ones: {one}" for one in sorted(changed)
        ]


def compare_paired(pairs: Sequence[tuple[TrainedMethod, TrainedMethod]], unit: str, command: str) -> dict[str, Any]:
    """Paired tests of every pair, as one family per metric.

    Args:
        pairs: at least one; the first ones are of one side, the second ones of another.
        unit: what their items are.
        command: `daamctl compare` on these sides, to be named in errors.

    Returns:
        kind ("paired"); settings (can_change, cannot_change, not_known); family; comparisons; notes.

    Raises:
        ArtifactError: a pair was tested on other items or targets; says which settings differ and what helps.
    """
    settings, comparisons, notes = {}, [], []
    for first, second in pairs:
        settings[first.method] = differing({**first.facts, **first.later}, {**second.facts, **second.later})
        result = _compare(first, second, unit, command)
        figures = {key: value for key, value in result["comparisons"][0].items() if key not in ("first", "second")}
        comparisons.append(
            {
                "first": first.name,
                "second": second.name,
                "first_label": first.label,
                "second_label": second.label,
                "fairness": {"first": asdict(first.fairness), "second": asdict(second.fairness)},
                "doubt": _doubt(first, second),
                **figures,
                "disagreements": disagreements(first, second),
                "design": result["design"],
                "floor": result["family"]["floor"],
            }
        )
        notes += [*result["notes"], *first.notes, *second.notes]
        together = {one.name: one for one in (first, second)}
        for group in identical_groups(
            {name: one.folds for name, one in together.items()}, {name: one.items for name, one in together.items()}
        ):
            notes.append(identical_text(group.methods, group.reason))
        if code_changed(first.folds, second.folds):
            notes.append(
                f"{first.name} and {second.name}: settings and embeddings agree, but content keys differ, so the code "
                "of the method has changed"
            )
    family = _family([first.method for first, _ in pairs], comparisons)
    if family["floor"] is not None and family["floor"] <= ALPHA < family["floor_holm"]:
        notes.append(
            f"after correction over {family['size']} methods, no p below {family['floor_holm']:.4g} is possible, so no "
            f"difference can be significant at {ALPHA:g}; compare fewer methods"
        )
    notes.append(
        "the difference between the sides is due to all listed settings together, not to a single one"
        if any(part["can_change"] for part in settings.values())
        else "no recorded setting that can change the results differs"
    )
    return {
        "kind": "paired",
        "settings": {**merged(settings), "not_known": None},
        "family": family,
        "comparisons": comparisons,
        "notes": list(dict.fromkeys(notes)),
    }


def _doubt(first: TrainedMethod, second: TrainedMethod) -> str | None:
    """Warning if a side is undertrained or learned nothing, else None."""
    marks = [f"{one.name} ({one.fairness.mark})" for one in (first, second) if one.fairness.mark]
    return f"training alone may explain this difference, whatever the p-value: {listed(marks)}" if marks else None


def fill_holm(results: Sequence[dict[str, Any] | None]) -> None:
    """Apply Holm's correction to the p-values of one family of tests, in place; None means no test."""
    adjusted = holm([result["p"] if result else None for result in results])
    for result, p in zip(results, adjusted, strict=True):
        if result:
            result["p_holm"] = p


def disagreements(first: TrainedMethod, second: TrainedMethod) -> list[dict[str, Any]]:
    """The items on which two methods disagree most: by share of seeds right, then by probability of the true class.

    Returns:
        At most `MOST_CONSISTENT` of item, fold, speaker (None where nobody is known), class, and of each side the share
        of seeds that are right and the mean probability of the true class.
    """
    classes, known = first.folds[0].result["run"]["classes"], speakers_known(first.table)
    averaged = [
        method.table.with_columns(
            probability=np.concatenate(
                [part.probabilities[np.arange(len(part)), part.targets] for part in method.items]
            )
        )
        .group_by("fold", "item")
        .agg(pl.col("speaker", "target").first(), pl.col("correct", "probability").mean())
        for method in (first, second)
    ]
    gap = pl.col("correct") - pl.col("correct_right")
    surer = pl.col("probability") - pl.col("probability_right")
    rows = averaged[0].join(averaged[1], on=["fold", "item"], suffix="_right", validate="1:1").filter(gap != 0)
    rows = rows.sort(gap.abs(), surer.abs(), "item", descending=[True, True, False]).head(MOST_CONSISTENT)
    return [
        {
            "item": row["item"],
            "fold": row["fold"],
            "speaker": row["speaker"] if known else None,
            "class": classes[row["target"]],
            "first_right": row["correct"],
            "second_right": row["correct_right"],
            "first_probability": row["probability"],
            "second_probability": row["probability_right"],
        }
        for row in rows.iter_rows(named=True)
    ]


def _compare(first: TrainedMethod, second: TrainedMethod, unit: str, command: str) -> dict[str, Any]:
    """`compare_methods` on one pair.

    Raises:
        ArtifactError: see `compare_paired`.
    """
    names = [row["name"] for row in differing(first.facts, second.facts)["can_change"]]
    made = [name for name in names if name.startswith(("download.", "segment."))]
    again = f"they differ in {', '.join(made)}" if made else "their settings of download and segment agree"
    again += (
        f"; different items cannot be paired. If they should be equal, make them again: {first.remake}, {second.remake}"
    )
    if "data.classes" in names:
        met = " and ".join(", ".join(method.facts["data.classes"]) for method in (first, second))
        raise ArtifactError(f"'{first.name}' and '{second.name}' have different targets: {met}", fix=again)
    cut = [name for name in names if name in CUTTING or name == "data.test_clips_key"]
    if unit == "clip" and cut and "data.test_utterances_key" not in names:
        raise ArtifactError(
            f"'{first.name}' and '{second.name}' were tested on the same utterances but on different clips, so clips "
            f"cannot be paired (differing: {', '.join(cut)})",
            fix=f"compare them by utterance: {command} --unit utterance",
        )
    # compare_methods wants equal sizes; of sides that differ the larger share tested is the cautious one
    ratios = [
        float(np.divide(method.facts["data.test_clips"], method.facts["data.train_clips"]).mean())
        for method in (first, second)
    ]
    sizes = (first if ratios[0] >= ratios[1] else second).table.select("fold", "n_test", "n_train").unique("fold")
    tables = {
        method.name: method.table.drop("n_test", "n_train").join(sizes, on="fold", how="left").select(list(SCHEMA))
        for method in (first, second)
    }
    try:
        result = compare_methods(tables, modality=first.modality, alpha=ALPHA)
    except ArtifactError as error:
        raise ArtifactError(error.message, fix=again) from error
    if ratios[0] != ratios[1]:
        shares = " and ".join(f"{ratio:.3g}" for ratio in ratios)
        result["notes"].append(f"n_test / n_train is {shares}; the test over folds uses the larger one")
    return result


def _family(methods: list[str], comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Correct p over all pairs, per metric and test, in place; `floor` is the smallest p the test allows."""
    for metric in COMPARED:
        for test in ("primary", "secondary"):
            fill_holm([entry["metrics"][metric][test] for entry in comparisons])
    size, floor = len(methods), max((entry["floor"] for entry in comparisons if entry["floor"]), default=None)
    return {
        "methods": methods,
        "size": size,
        "alpha": ALPHA,
        "correction": "holm",
        "floor": floor,
        "floor_holm": None if floor is None else min(1.0, floor * size),
    }
