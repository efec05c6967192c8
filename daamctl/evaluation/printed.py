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

from daamctl.artifacts.comparison import PrintedPair, PrintedResult, Row, by_session
from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.scores import BEST_ON_TEST, Compared, Figure, Score
from daamctl.evaluation.comparison import with_holm
from daamctl.evaluation.paired import TrainedMethod
from daamctl.evaluation.settings_diff import differing, merged
from daamctl.evaluation.statistics import nadeau_bengio

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
class PrintedSide:
    """A row with its figures, and what else is said of it.

    Args:
        stated: the facts that a published table states, by dotted name.
        scores: accuracy of every fold under the published scoring.
        notes: notes for the reader of the scores.
    """

    method: str
    row: Row
    stated: dict[str, Any]
    figures: list[Figure]
    scores: list[Score]
    notes: list[str]


def trained_side(trained: TrainedMethod, unit: str) -> PrintedSide:
    """A trained method as a row; `unit` is the unit of its scores as reported."""
    best: dict[int, list[float]] = {}
    for fold in trained.folds:
        best.setdefault(fold.fold, []).append(float(fold.result["metrics"][BEST_ON_TEST] or 0.0))
    reported = [trained.task.score(part) for part in trained.items]
    figures = [figure_of(trained.name, "clip", BEST_ON_TEST, [value for own in best.values() for value in own])]
    figures += [
        figure_of(trained.name, unit, name, [one[name] for one in reported]) for name in trained.task.over_items
    ]
    groups = zip(trained.facts["data.test_groups"], best.values(), strict=True)
    scores = [score_of(trained.name, group, _last_number(group), float(np.mean(own))) for group, own in groups]
    row = Row(trained.name, trained.label, trained.facts["download.corpus"], fairness=trained.fairness)
    return PrintedSide(trained.method, row, _stated(trained, unit), figures, scores, trained.notes)


def figure_of(name: str, unit: str, metric: str, values: Sequence[float]) -> Figure:
    """A figure of a row over its runs."""
    level = over_runs(values)
    return Figure(method=name, unit=unit, metric=metric, mean=level.mean or 0.0, std=level.std, runs=level.n)


def score_of(name: str, group: str, session: int | None, value: float) -> Score:
    """Accuracy of a row on a fold."""
    return Score(method=name, fold=session, seed=1, test_group=group, unit="clip", metric=BEST_ON_TEST, value=value)


def compare_printed(pairs: Sequence[tuple[PrintedSide, PrintedSide]]) -> PrintedResult:
    """Compare rows, by fold if the folds are the same sessions.

    Args:
        pairs: rows of the first side and rows of the second side; at least one pair.
    """
    sides = {side.row.name: side for pair in pairs for side in pair}
    rows, facts, notes = [], [], []
    for first, second in pairs:
        not_aligned = _not_aligned(first, second)
        ours, theirs = (by_session(side.scores, side.row) for side in (first, second))
        means = [side.figures[0].mean for side in (first, second)]
        row = Compared(
            first=first.row.name, second=second.row.name, metric=BEST_ON_TEST, first_value=means[0],
            second_value=means[1], difference=means[0] - means[1],
        )  # fmt: skip
        about = _no_test(first.row, second.row, not_aligned)
        if about is None:
            gaps = [ours[session] - theirs[session] for session in sorted(ours)]
            test = nadeau_bengio(gaps, PRINTED_RATIO, 1.0, unit="printed fold")
            row = replace(row, unit=test.unit, units=test.n, test=test.test, p=test.p)
        rows.append(row)
        facts.append(PrintedPair(first.row, second.row, not_aligned, about or PRINTED_TEST))
        name = f"{row.first} and {row.second}"
        if not_aligned:
            notes.append(f"{name}: not compared by fold, because {not_aligned}")
        elif list(ours) != list(theirs):
            order = ", ".join(map(str, LORA_SESSIONS))
            notes.append(
                f"{name}: the columns of a LoRA row are sessions {order} (D15), so folds are paired by session"
            )
        for one in (first.row, second.row):
            if one.wrong:
                notes.append(f"{one.name}: the printed {' and '.join(one.wrong)} cannot come from the printed folds")
    own = [note for column in zip(*pairs, strict=True) for side in column for note in side.notes]
    return PrintedResult(
        settings=merged({one.method: differing(one.stated, other.stated) for one, other in pairs}, NOT_PRINTED),
        figures=[figure for side in sides.values() for figure in side.figures],
        scores=[score for side in sides.values() for score in side.scores],
        comparisons=with_holm(rows),
        pairs=facts,
        notes=list(dict.fromkeys([*own, *notes])),
        kind="both-printed" if all(side.row.published for side in sides.values()) else "printed",
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


def _last_number(group: str) -> int | None:
    """Session1 and Ses01 -> 1."""
    digits = re.search(r"\d+$", group)
    return int(digits[0]) if digits else None


def _not_aligned(first: PrintedSide, second: PrintedSide) -> str | None:
    """Why the folds of two rows cannot be paired; None if they are the same sessions."""
    if first.row.corpus != second.row.corpus:
        return f"the corpora differ: {first.row.corpus} and {second.row.corpus}"
    ours, theirs = ([score.fold for score in side.scores if score.fold is not None] for side in (first, second))
    if len(ours) < len(first.scores) or len(theirs) < len(second.scores):
        return "columns or groups are not numbered sessions"
    if sorted(ours) != sorted(theirs) or len(set(ours)) < len(ours):
        return f"the folds are not the same sessions: {ours} and {theirs}"
    return None


def _no_test(first: Row, second: Row, not_aligned: str | None) -> str | None:
    """Why there is no test; None for two published rows of IEMOCAP whose folds can be paired."""
    if not (first.published and second.published):
        return NO_TEST
    if not_aligned is not None:
        return "no test: the published columns cannot be paired"
    if first.corpus != "iemocap":
        return f"no test: n_test / n_train of the folds of {first.corpus} is unknown"
    return None
