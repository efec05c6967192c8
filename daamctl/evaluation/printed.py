"""Compare a published row with a trained method, or two published rows. A published row has only its folds and mean.

A trained method is shown under the published scoring (per clip, best epoch on the test group) and as reported. Scores
are fractions; differences are first minus second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daamctl.artifacts.comparison import (
    FoldAccuracy,
    PrintedPair,
    PrintedResult,
    RowFigures,
    SessionDifference,
)
from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.statistics import CorrectedTTest
from daamctl.evaluation.paired import TrainedMethod
from daamctl.evaluation.settings_diff import differing, merged
from daamctl.evaluation.statistics import nadeau_bengio, with_holm

LORA_SESSIONS = (5, 3, 1, 2, 4)
"""IEMOCAP session behind each printed column of a LoRA row; column k of all other rows is session k (D15)."""
NOT_PRINTED = (
    "the table does not state other settings; for deviations between the papers' text and code: daamctl deviations"
)
NO_TEST = (
    "no test: a published row has no test items to pair with ours, and its folds were trained, selected and scored "
    "under another protocol, so a test would compare protocols, not methods"
)
PRINTED_TEST = (
    "Nadeau-Bengio on the printed folds, assuming n_test / n_train = 0.25; folds are rounded to 0.1 points, and each "
    "is the best epoch on its own test session"
)
PRINTED_RATIO = 0.25
"""n_test / n_train of five sessions of similar size, one of which is tested."""


@dataclass(frozen=True)
class Row:
    """A published row, or a trained method reduced to what a published row has.

    Args:
        stated: the facts that a published table states, by dotted name.
        notes: notes for the reader of the scores.
    """

    method: str
    stated: dict[str, Any]
    figures: RowFigures
    notes: list[str]


def trained_row(trained: TrainedMethod, unit: str) -> Row:
    """A trained method as a row; `unit` is the unit of its scores as reported."""
    return Row(trained.method, _stated(trained, unit), _figures(trained), trained.notes)


def compare_printed(pairs: Sequence[tuple[Row, Row]]) -> PrintedResult:
    """Compare rows, by fold if the folds are the same sessions.

    Args:
        pairs: rows of the first side and rows of the second side; at least one pair.
    """
    settings = {first.method: differing(first.stated, second.stated) for first, second in pairs}
    comparisons = [_pair(first.figures, second.figures) for first, second in pairs]
    tests = with_holm([entry.test for entry in comparisons])
    comparisons = [replace(entry, test=test) for entry, test in zip(comparisons, tests, strict=True)]
    notes = [note for side in zip(*pairs, strict=True) for row in side for note in row.notes]
    notes += [note for entry in comparisons for note in _notes(entry)]
    published = all(row.figures.print for pair in pairs for row in pair)
    return PrintedResult(
        settings=merged(settings, NOT_PRINTED),
        comparisons=comparisons,
        notes=list(dict.fromkeys(notes)),
        kind="both-printed" if published else "printed",
    )


def _stated(trained: TrainedMethod, unit: str) -> dict[str, Any]:
    """Those facts of a trained method that a published table states too."""
    known, layers = trained.facts, trained.facts["model.layers"]
    whole = layers == list(range(1, known.get("encoder.num_layers", 0) + 1))
    return {
        **{name: known[name] for name in ("method", "download.corpus", "extract.encoder", "train.selection")},
        "model.layers": "all" if whole else ", ".join(map(str, layers)),
        "scoring.unit": unit if trained.folds[0].modality == "speech" else "item",
        "runs.num_folds": known["runs.num_folds"],
        "runs.per_fold": len(known["runs.seeds"]),
    }


def _figures(trained: TrainedMethod) -> RowFigures:
    """Scores of a trained method under the published scoring, and as reported."""
    best = [float(fold.result["metrics"]["accuracy_best_on_test"] or 0.0) for fold in trained.folds]
    scores = [trained.task.score(part) for part in trained.items]
    reported = {name: over_runs(score[name] for score in scores) for name in trained.folds[0].task.over_items}
    by_fold: dict[int, list[float]] = {}
    for fold, value in zip(trained.folds, best, strict=True):
        by_fold.setdefault(fold.fold, []).append(value)
    folds = []
    for group, values in zip(trained.facts["data.test_groups"], by_fold.values(), strict=True):
        folds.append(FoldAccuracy(group, _last_number(group), float(np.mean(values))))
    return RowFigures(
        name=trained.name,
        label=trained.label,
        corpus=trained.facts["download.corpus"],
        fairness=trained.fairness,
        print=None,
        as_published=over_runs(best),
        as_reported=reported,
        folds=folds,
    )


def _last_number(group: str) -> int | None:
    """Session1 and Ses01 -> 1."""
    digits = re.search(r"\d+$", group)
    return int(digits[0]) if digits else None


def _pair(first: RowFigures, second: RowFigures) -> PrintedPair:
    """Compare two rows."""
    not_aligned, folds = _not_aligned(first, second), None
    ours = {fold.session: fold.value for fold in first.folds}
    theirs = {fold.session: fold.value for fold in second.folds}
    if not_aligned is None:
        folds = []
        for session in sorted(session for session in ours if session is not None):
            difference = ours[session] - theirs[session]
            folds.append(SessionDifference(session, ours[session], theirs[session], difference))
    test, about_test = _test(first, second, folds)
    return PrintedPair(
        first=first.name,
        second=second.name,
        figures={"first": first, "second": second},
        difference=(first.as_published.mean or 0.0) - (second.as_published.mean or 0.0),
        folds=folds,
        not_aligned=not_aligned,
        same_columns=folds is not None and list(ours) == list(theirs),
        test=test,
        about_test=about_test,
    )


def _not_aligned(first: RowFigures, second: RowFigures) -> str | None:
    """Why the folds of two rows cannot be paired; None if they are the same sessions."""
    if first.corpus != second.corpus:
        return f"the corpora differ: {first.corpus} and {second.corpus}"
    ours = [fold.session for fold in first.folds if fold.session is not None]
    theirs = [fold.session for fold in second.folds if fold.session is not None]
    if len(ours) < len(first.folds) or len(theirs) < len(second.folds):
        return "columns or groups are not numbered sessions"
    if sorted(ours) != sorted(theirs) or len(set(ours)) < len(ours):
        return f"the folds are not the same sessions: {ours} and {theirs}"
    return None


def _test(
    first: RowFigures, second: RowFigures, folds: Sequence[SessionDifference] | None
) -> tuple[CorrectedTTest | None, str]:
    """A test between two published rows of IEMOCAP and what it assumes; else None and the reason."""
    if first.print is None or second.print is None:
        return None, NO_TEST
    if folds is None:
        return None, "no test: the published columns cannot be paired"
    if first.corpus != "iemocap":
        return None, f"no test: n_test / n_train of the folds of {first.corpus} is unknown"
    return nadeau_bengio([fold.difference for fold in folds], PRINTED_RATIO, 1.0, unit="printed fold"), PRINTED_TEST


def _notes(entry: PrintedPair) -> list[str]:
    """Notes on one pair of rows."""
    notes, name = [], f"{entry.first} and {entry.second}"
    if entry.not_aligned:
        notes.append(f"{name}: not compared by fold, because {entry.not_aligned}")
    elif not entry.same_columns:
        order = ", ".join(map(str, LORA_SESSIONS))
        notes.append(f"{name}: the columns of a LoRA row are sessions {order} (D15), so folds are paired by session")
    for side in entry.figures.values():
        if side.print and side.print.disagrees:
            wrong = []
            if not side.print.mean_agrees:
                wrong.append("mean")
            if side.print.std_is == "neither":
                wrong.append("deviation")
            notes.append(f"{side.name}: the printed {' and '.join(wrong)} cannot come from the printed folds")
    return notes
