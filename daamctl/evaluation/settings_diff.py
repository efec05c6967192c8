"""In what two trained methods differ: settings, data, model, runs, code, versions and machines.

Facts are read from the finished folds, not from the settings of now. Each is a dotted name and a JSON value; where the
folds of a method do not agree on it (say, two machines) its value is the list of what they say. What is not listed as
unable to change accuracy or balanced accuracy counts as able to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from daamctl.artifacts.io import content_key
from daamctl.artifacts.results import Fold
from daamctl.config.keys import without_effect
from daamctl.config.marks import Changes
from daamctl.errors import UnknownNameError
from daamctl.evaluation.consistency import HARMLESS, TRAINING, flat
from daamctl.methods import METHODS, resolve_method
from daamctl.methods.heads import resolved

ABSENT = "–"
"""Stands for a fact that one side does not have."""
CANNOT = without_effect(*Changes) | {
    "encoder.source",  # where the weights came from; their hash is a fact of its own
    "methods",
}
"""Facts that cannot change a compared figure."""
CANNOT_SECTIONS = ("evaluate", "importance", "ablate", "report")
"""Sections of settings that are read after training; the unit of scoring is the same on both sides of a comparison."""


def facts(folds: Sequence[Fold], predictions: Sequence[pl.DataFrame]) -> dict[str, Any]:
    """Everything known of how one method was trained and tested.

    Args:
        folds: its finished folds.
        predictions: their test clips, in the same order.

    Returns:
        Dotted name -> JSON value. `method.*` are the method's settings with the builder's defaults filled in;
        `data.*_key` are hashes of the test items of all folds; lists under `data` go by fold.
    """
    met: dict[str, list[Any]] = {}
    for fold in folds:
        for name, value in flat(_of_fold(fold)).items():
            values = met.setdefault(name, [])
            if value not in values:
                values.append(value)
    one = {name: values[0] if len(values) == 1 else values for name, values in met.items()}
    return {**one, **_of_all(folds, predictions)}


def settings(fold: Fold) -> dict[str, Any]:
    """The settings that a fold was made with, by dotted name; `method.*` as `facts` has them."""
    run = fold.result["run"]
    sections = {name: part for name, part in run["config"].items() if name != "method"}
    method = _settings(run["method"], run["config"].get("method", {}), len(run["layers"]))
    return flat({"method": method, **sections})


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The facts in which two sides differ.

    Args:
        first: dotted name -> value.
        second: likewise.

    Returns:
        can_change, cannot_change: lists of name, first, second; `ABSENT` where a side has no such fact.
    """
    rows = [
        {"name": name, "first": first.get(name, ABSENT), "second": second.get(name, ABSENT)}
        for name in {**first, **second}
        if first.get(name, ABSENT) != second.get(name, ABSENT)
    ]
    return {
        "can_change": [row for row in rows if can_change(row["name"])],
        "cannot_change": [row for row in rows if not can_change(row["name"])],
    }


def merged(parts: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    """The differences of several pairs of methods, each named once.

    Args:
        parts: method -> what `differing` says of its pair.

    Returns:
        As `differing`, each entry with `methods`: the pairs it holds for, None for all of them.
    """
    result: dict[str, list[dict[str, Any]]] = {"can_change": [], "cannot_change": []}
    for group, rows in result.items():
        for method, part in parts.items():
            for entry in part[group]:
                known = next((row for row in rows if all(row[key] == entry[key] for key in entry)), None)
                if known is None:
                    rows.append({**entry, "methods": [method]})
                else:
                    known["methods"].append(method)
        order = list(dict.fromkeys(row["name"] for row in rows))
        rows.sort(key=lambda row: order.index(row["name"]))
        for row in rows:
            row["methods"] = None if len(row["methods"]) == len(parts) else row["methods"]
    return result


def can_change(name: str) -> bool:
    """Whether a fact can change accuracy or balanced accuracy."""
    return name not in CANNOT and name.partition(".")[0] not in CANNOT_SECTIONS


def code_changed(first: Sequence[Fold], second: Sequence[Fold]) -> bool:
    """Whether folds of the same number and seed differ in their content key alone: what is left is the code."""
    others = {(fold.fold, fold.seed): fold for fold in second}
    pairs = [(fold, others[fold.fold, fold.seed]) for fold in first if (fold.fold, fold.seed) in others]
    return any(
        _keyed(fold) == _keyed(other) and fold.result["run"]["key"] != other.result["run"]["key"]
        for fold, other in pairs
    )


def _of_fold(fold: Fold) -> dict[str, Any]:
    """What one fold says that does not depend on its number or seed."""
    run, meta = fold.result["run"], fold.result["meta"]
    return {
        "method": run["method"],
        **settings(fold),
        "embeddings_key": meta["embeddings_key"],
        "encoder": meta["encoder"],
        "data": {
            "modality": fold.modality,
            "classes": run["classes"],
            "streamed": "yes" if meta.get("features") == "stream" else "no",  # in another order than from memory
        },
        "model": {
            "layers": run["layers"],
            "embed_dim": run["embed_dim"],
            "num_parameters": run["num_parameters"],
            "reconstructed": run.get("reconstructed") or "no",
            "fine_tuned": "yes" if run.get("finetune") else "no",
        },
        "runs": {"num_folds": run["num_folds"]},
        "code": {"daamctl": meta["daamctl"], "git_commit": meta["git_commit"]},
        "versions": meta["versions"],
        "machine": {"device": meta["device"], "precision": meta["precision"]},
    }


def _settings(method: str, stored: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """A method's settings as built, those left alone at their default; of a method that is gone, only those stored."""
    try:
        base, preset = resolve_method(method)
    except UnknownNameError:
        return dict(stored)
    return resolved({**METHODS.defaults(base), **preset, **stored}, num_layers)


def _of_all(folds: Sequence[Fold], predictions: Sequence[pl.DataFrame]) -> dict[str, Any]:
    """What all folds say together."""
    by_fold = {fold.fold: fold for fold in sorted(folds, key=lambda fold: fold.fold)}  # seeds share the data
    runs = [fold.result["run"] for fold in by_fold.values()]
    metas = [fold.result["meta"] for fold in by_fold.values()]
    columns = ["fold", "utterance_id", "label", "speaker"]
    rows = pl.concat(
        part.select(pl.lit(fold.fold).alias("fold"), *columns[1:], "clip_id")
        for fold, part in zip(folds, predictions, strict=True)
    ).unique()
    utterances = rows.select(columns).unique()
    batches = [run.get("eval_batches") for run in runs]
    return {
        "data.test_groups": [run["test_group"] for run in runs],
        "data.held_out_groups": [run["dev_group"] for run in runs] if any(run["dev_group"] for run in runs) else "none",
        "data.train_clips": [meta["num_train_clips"] for meta in metas],
        "data.held_out_clips": [meta["num_dev_clips"] for meta in metas],
        "data.test_clips": [meta["num_test_clips"] for meta in metas],
        "data.test_utterances": len(utterances),
        "data.test_utterances_key": content_key(sorted(map(list, utterances.rows()), key=str)),
        "data.test_clips_key": content_key(sorted(map(list, rows.rows()), key=str)),
        "batches.size": batches[0]["size"] if batches[0] else "predictions do not depend on batches",
        "batches.order": batches[0]["order"] if batches[0] else ABSENT,
        "batches.clips_key": content_key([part["clips_sha256"] for part in batches if part]) if batches[0] else ABSENT,
        "runs.folds": list(by_fold),
        "runs.seeds": sorted({fold.seed for fold in folds}),
        "code.content_key": content_key(sorted([fold.fold, fold.seed, fold.result["run"]["key"]] for fold in folds)),
    }


def _keyed(fold: Fold) -> dict[str, Any]:
    """What enters a fold's content key, as far as it is recorded by itself."""
    run = fold.result["run"]
    made = {stage: run["config"].get(stage) for stage in TRAINING}
    return {
        "embeddings": fold.result["meta"]["embeddings_key"],
        "layers": run["layers"],
        "method": run["method"],
        "settings": run["config"]["method"],
        **{name: value for name, value in flat(made).items() if name not in HARMLESS},
    }
