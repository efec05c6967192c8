"""Compare a published row with ours, or two published rows. Published rows have only their folds and mean.

Our results are given under the published scoring (per clip, best epoch on the test group) and as reported. Values are
fractions; differences are first minus second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from daamctl.evaluation.comparison import COMPARED
from daamctl.evaluation.paired import TrainedMethod, fill_holm
from daamctl.evaluation.scoring import score_items
from daamctl.evaluation.settings_diff import differing, merged
from daamctl.evaluation.statistics import nadeau_bengio
from daamctl.evaluation.summary import spread

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
"""n_test / n_train of five sessions of about one size, one of them tested."""


@dataclass(frozen=True)
class Row:
    """A printed row, or a trained method reduced to what a printed row has.

    Args:
        method: the method.
        told: the facts that a published table tells.
        figures: name, label, corpus; fairness (None in print); print (text, mean_agrees, std_is, disagrees; None for
            ours); as_published and as_reported (metric -> `spread`; None in print); folds (each with fold, session,
            value).
        notes: what must be known of the figures.
    """

    method: str
    told: dict[str, Any]
    figures: dict[str, Any]
    notes: list[str]


def trained_row(trained: TrainedMethod, unit: str) -> Row:
    """A trained method beside a printed row; `unit` is what its items are."""
    return Row(trained.method, _told(trained, unit), _figures(trained), trained.notes)


def compare_printed(pairs: Sequence[tuple[Row, Row]]) -> dict[str, Any]:
    """Set rows beside one another, fold by fold where folds are the same sessions.

    Args:
        pairs: at least one; the first ones are of one side, the second ones of another.

    Returns:
        kind ("printed", or "both-printed" without any of ours); settings (can_change, cannot_change, not_known);
        family (None without a test); comparisons; notes.
    """
    settings = {first.method: differing(_spelt(first.told), _spelt(second.told)) for first, second in pairs}
    comparisons = [_entry(first.figures, second.figures) for first, second in pairs]
    fill_holm([entry["test"] for entry in comparisons])
    notes = [note for side in zip(*pairs, strict=True) for row in side for note in row.notes]
    notes += [note for entry in comparisons for note in _notes(entry)]
    tested = any(entry["test"] for entry in comparisons)
    family = {"methods": [first.method for first, _ in pairs], "size": len(pairs), "correction": "holm"}
    return {
        "kind": "both-printed" if all(row.figures["print"] for pair in pairs for row in pair) else "printed",
        "settings": {**merged(settings), "not_known": NOT_PRINTED},
        "family": family if tested else None,
        "comparisons": comparisons,
        "notes": list(dict.fromkeys(notes)),
    }


def _spelt(told: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with the corpus spelt as daamctl does: the tables print `ag-news`."""
    return {name: _plain(value) if name == "download.corpus" else value for name, value in told.items()}


def _plain(corpus: str) -> str:
    return corpus.replace("-", "")


def _told(trained: TrainedMethod, unit: str) -> dict[str, Any]:
    """Of a trained method, the facts that a published table tells too."""
    known, layers = trained.facts, trained.facts["model.layers"]
    whole = layers == list(range(1, known.get("encoder.num_layers", 0) + 1))
    return {
        **{name: known[name] for name in ("method", "download.corpus", "extract.encoder", "train.selection")},
        "model.layers": "all" if whole else ", ".join(map(str, layers)),
        "scoring.unit": unit if trained.modality == "speech" else "item",
        "runs.num_folds": known["runs.num_folds"],
        "runs.per_fold": len(known["runs.seeds"]),
    }


def _figures(trained: TrainedMethod) -> dict[str, Any]:
    """Ours under the published scoring (per clip, best epoch on test), and as reported."""
    best = [float(fold.result["metrics"]["accuracy_best_on_test"] or 0.0) for fold in trained.folds]
    scores = [score_items(part, len(trained.facts["data.classes"])) for part in trained.items]
    by_fold: dict[int, list[float]] = {}
    for fold, value in zip(trained.folds, best, strict=True):
        by_fold.setdefault(fold.fold, []).append(value)
    folds = zip(trained.facts["data.test_groups"], by_fold.values(), strict=True)
    return {
        "name": trained.name,
        "label": trained.label,
        "fairness": asdict(trained.fairness),
        "corpus": trained.facts["download.corpus"],
        "print": None,
        "as_published": spread(best),
        "as_reported": {name: spread([score[name] for score in scores]) for name in COMPARED},
        "folds": [
            {"fold": group, "session": _last_number(group), "value": float(np.mean(values))} for group, values in folds
        ],
    }


def _last_number(group: str) -> int | None:
    """Session1 and Ses01 -> 1."""
    digits = re.search(r"\d+$", group)
    return int(digits[0]) if digits else None


def _entry(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of two rows side by side."""
    not_aligned, folds = _not_aligned(first, second), None
    sides = [{fold["session"]: fold["value"] for fold in side["folds"]} for side in (first, second)]
    if not_aligned is None:
        pairs = {session: (sides[0][session], sides[1][session]) for session in sorted(sides[0])}
        folds = [
            {"session": session, "first": one, "second": other, "difference": one - other}
            for session, (one, other) in pairs.items()
        ]
    test, no_test = _test(first, second, folds)
    return {
        "first": first["name"],
        "second": second["name"],
        "figures": {"first": first, "second": second},
        "difference": first["as_published"]["mean"] - second["as_published"]["mean"],
        "folds": folds,
        "not_aligned": not_aligned,
        "same_columns": folds is not None and list(sides[0]) == list(sides[1]),
        "test": test,
        "no_test": no_test,
    }


def _not_aligned(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Why folds of two sides cannot be set beside one another; None if they are the same sessions."""
    if _plain(first["corpus"]) != _plain(second["corpus"]):
        return f"the corpora differ: {first['corpus']} and {second['corpus']}"
    sessions = [[fold["session"] for fold in side["folds"]] for side in (first, second)]
    if any(None in part for part in sessions):
        return "columns or groups are not numbered sessions"
    if sorted(sessions[0]) != sorted(sessions[1]) or len(set(sessions[0])) < len(sessions[0]):
        return f"the folds are not the same sessions: {sessions[0]} and {sessions[1]}"
    return None


def _test(
    first: Mapping[str, Any], second: Mapping[str, Any], folds: Sequence[Mapping[str, Any]] | None
) -> tuple[dict[str, Any] | None, str | None]:
    """A test between two printed rows of IEMOCAP; else None and why."""
    if first["print"] is None or second["print"] is None:
        return None, NO_TEST
    if folds is None:
        return None, "no test: the published columns cannot be paired"
    if first["corpus"] != "iemocap":
        return None, f"no test: n_test / n_train of the folds of {first['corpus']} is unknown"
    result = nadeau_bengio([fold["difference"] for fold in folds], PRINTED_RATIO, 1.0)
    return {"test": "nadeau-bengio", "unit": "printed fold", "label": PRINTED_TEST, **result, "p_holm": None}, None


def _notes(entry: Mapping[str, Any]) -> list[str]:
    """What must be known of one comparison with a printed row."""
    notes, name = [], f"{entry['first']} and {entry['second']}"
    if entry["not_aligned"]:
        notes.append(f"{name}: not compared by fold, because {entry['not_aligned']}")
    elif not entry["same_columns"]:
        order = ", ".join(map(str, LORA_SESSIONS))
        notes.append(f"{name}: the columns of a LoRA row are sessions {order} (D15), so folds are paired by session")
    for side in entry["figures"].values():
        if side["print"] and side["print"]["disagrees"]:
            wrong = [] if side["print"]["mean_agrees"] else ["mean"]
            wrong += ["deviation"] if side["print"]["std_is"] == "neither" else []
            notes.append(f"{side['name']}: the printed {' and '.join(wrong)} cannot come from the printed folds")
    return notes
