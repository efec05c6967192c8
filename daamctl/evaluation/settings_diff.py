"""Differences between two trained methods: settings, data, model, runs, code, versions and machines.

Facts are read from the finished folds, not from the current settings. Each has a dotted name and a JSON value. If the
folds of a method do not agree on a fact, e.g. because they ran on two machines, its value is the list of their values.
A fact counts as able to change accuracy or balanced accuracy unless it is listed as unable to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from daamctl.artifacts.comparison import SettingDifference, SettingDifferences
from daamctl.artifacts.results import Fold
from daamctl.config.keys import without_effect
from daamctl.config.marks import Affects
from daamctl.errors import UnknownNameError
from daamctl.evaluation.consistency import HARMLESS, TRAINING
from daamctl.methods import METHODS, resolve_method
from daamctl.methods.heads import resolved
from daamctl.store.differences import flat
from daamctl.store.files import content_key

ABSENT = "–"
"""Value of a fact that one side does not have."""
CANNOT = without_effect(Affects.NOTHING, Affects.RUNS, Affects.MAPS) | {
    "encoder.source",  # where the weights came from; their hash is another fact
    "methods",
    "code.content_key",  # follows from the other facts
    *(f"versions.{name}" for name in ("mlflow", "dvc", "polars", "pyarrow")),
}
"""Facts that cannot change a compared score."""
MADE_BEFORE = ("download", "segment", "extract", "encoder")
"""What makes embeddings. Of equal vectors, nothing but their labels and folds can matter, which are facts of their own.
"""
ONLY_ENCODERS = ("transformers", "peft", "torchaudio")
"""Libraries that training over stored layers does not use."""
CODE = ("code.training", "code.method")
"""Hashes of the code that a fold depends on. If they are known, no commit matters."""
CANNOT_SECTIONS = ("evaluate", "importance", "ablate", "report")
"""Sections of settings that are read after training. Both sides of a comparison have the same unit of scoring."""


def facts(folds: Sequence[Fold], predictions: Sequence[pl.DataFrame]) -> dict[str, Any]:
    """Everything recorded about the training and the test of one method.

    Args:
        predictions: their test clips, in the same order.

    Returns:
        Dotted name -> JSON value. `method.*` are the method's settings with the builder's defaults filled in;
        `data.*_key` are hashes of the test items of all folds; lists under `data` go by fold.
    """
    found: dict[str, list[Any]] = {}
    for fold in folds:
        for name, value in flat(_of_fold(fold)).items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    per_fold = {name: values[0] if len(values) == 1 else values for name, values in found.items()}
    return {**per_fold, **_of_all(folds, predictions)}


def settings(fold: Fold) -> dict[str, Any]:
    """The settings that a fold was made with, by dotted name; `method.*` as `facts` has them."""
    run = fold.result["run"]
    sections = {name: part for name, part in run["config"].items() if name != "method"}
    method = _settings(run["method"], run["config"].get("method", {}), len(run["layers"]))
    return flat({"method": method, **sections})


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> SettingDifferences:
    """The facts in which two sides differ; `ABSENT` is the value of a fact that a side does not have.

    Args:
        first: dotted name -> value.
        second: likewise.
    """
    rows = [
        SettingDifference(name, first.get(name, ABSENT), second.get(name, ABSENT))
        for name in {**first, **second}
        if first.get(name, ABSENT) != second.get(name, ABSENT)
    ]
    harmless = _harmless(first, second)
    return SettingDifferences(
        can_change=[row for row in rows if can_change(row.name) and row.name not in harmless],
        cannot_change=[row for row in rows if not can_change(row.name) or row.name in harmless],
    )


def _harmless(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Facts that cannot change a score because of what else is known of both sides."""
    found = set[str]()
    if all(name in side for name in CODE for side in (first, second)):
        found |= {"code.daamctl", "code.git_commit"}
    if first.get("method") != second.get("method"):  # other methods have other code
        found.add("code.method")
    if first.get("model.fine_tuned") == second.get("model.fine_tuned") == "no":
        found |= {f"versions.{name}" for name in ONLY_ENCODERS}
    if "vectors_key" in first and "vectors_key" in second:
        found.add("embeddings_key")  # it covers the vectors, and labels and folds, which are other facts
    if "vectors_key" in first and first["vectors_key"] == second.get("vectors_key"):
        found |= {name for name in {**first, **second} if name.partition(".")[0] in MADE_BEFORE}
    return found


def merged(parts: Mapping[str, SettingDifferences], not_known: str | None = None) -> SettingDifferences:
    """The differences of several pairs of methods, each listed once with the pairs that have it.

    Args:
        parts: method -> differences of its pair.
        not_known: what a published table leaves open.
    """
    return SettingDifferences(
        can_change=_merged({method: part.can_change for method, part in parts.items()}),
        cannot_change=_merged({method: part.cannot_change for method, part in parts.items()}),
        not_known=not_known,
    )


def _merged(parts: Mapping[str, Sequence[SettingDifference]]) -> list[SettingDifference]:
    found: list[SettingDifference] = []
    methods: list[list[str]] = []
    for method, rows in parts.items():
        for row in rows:
            if row in found:
                methods[found.index(row)].append(method)
            else:
                found.append(row)
                methods.append([method])
    order = list(dict.fromkeys(row.name for row in found))
    named = [
        replace(row, methods=None if len(having) == len(parts) else having)
        for row, having in zip(found, methods, strict=True)
    ]
    return sorted(named, key=lambda row: order.index(row.name))


def can_change(name: str) -> bool:
    """Whether a fact can change accuracy or balanced accuracy."""
    return name not in CANNOT and name.partition(".")[0] not in CANNOT_SECTIONS


def code_changed(first: Sequence[Fold], second: Sequence[Fold]) -> bool:
    """Whether folds of the same number and seed differ only in their content key, so that the code must differ."""
    others = {(fold.fold, fold.seed): fold for fold in second}
    pairs = [(fold, others[fold.fold, fold.seed]) for fold in first if (fold.fold, fold.seed) in others]
    return any(
        _keyed(fold) == _keyed(other) and fold.result["run"]["key"] != other.result["run"]["key"]
        for fold, other in pairs
    )


def _of_fold(fold: Fold) -> dict[str, Any]:
    """Facts of one fold that do not depend on its number or seed."""
    run, meta = fold.result["run"], fold.result["meta"]
    return {
        "method": run["method"],
        **settings(fold),
        "embeddings_key": meta["embeddings_key"],
        **({"vectors_key": meta["vectors_key"]} if "vectors_key" in meta else {}),
        "encoder": meta["encoder"],
        "data": {
            "modality": fold.modality,
            "classes": run["classes"],
            "streamed": "yes" if meta.get("features") == "stream" else "no",  # streaming changes the order of clips
        },
        "model": {
            "layers": run["layers"],
            "embed_dim": run["embed_dim"],
            "num_parameters": run["num_parameters"],
            "reconstructed": run.get("reconstructed") or "no",
            "fine_tuned": "yes" if run.get("finetune") else "no",
        },
        "runs": {"num_folds": run["num_folds"]},
        "code": {"daamctl": meta["daamctl"], "git_commit": meta["git_commit"], **meta.get("code", {})},
        "versions": meta["versions"],
        "machine": {"device": meta["device"], "precision": meta["precision"]},
    }


def _settings(method: str, stored: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """Settings of a method, with the builder's defaults. For a method that no longer exists, only the stored ones."""
    try:
        base, preset = resolve_method(method)
    except UnknownNameError:
        return dict(stored)
    return resolved({**METHODS.defaults(base), **preset, **stored}, num_layers)


def _of_all(folds: Sequence[Fold], predictions: Sequence[pl.DataFrame]) -> dict[str, Any]:
    """Facts of all folds together."""
    by_fold = {fold.fold: fold for fold in sorted(folds, key=lambda fold: fold.fold)}  # seeds share the data
    runs = [fold.result["run"] for fold in by_fold.values()]
    metas = [fold.result["meta"] for fold in by_fold.values()]
    columns = ["fold", "utterance_id", "label", "speaker"]
    rows = pl.concat(
        part.select(pl.lit(fold.fold).alias("fold"), *columns[1:], "clip_id")
        for fold, part in zip(folds, predictions, strict=True)
    ).unique()
    utterances = rows.select(columns).unique()
    held_out = [run["dev_group"] for run in runs]
    return {
        "data.test_groups": [run["test_group"] for run in runs],
        "data.held_out_groups": held_out if any(held_out) else "none",
        "data.train_clips": [meta["num_train_clips"] for meta in metas],
        "data.held_out_clips": [meta["num_dev_clips"] for meta in metas],
        "data.test_clips": [meta["num_test_clips"] for meta in metas],
        "data.test_utterances": len(utterances),
        "data.test_utterances_key": content_key(sorted(map(list, utterances.rows()), key=str)),
        "data.test_clips_key": content_key(sorted(map(list, rows.rows()), key=str)),
        **_batches([run.get("eval_batches") for run in runs]),
        "runs.folds": list(by_fold),
        "runs.seeds": sorted({fold.seed for fold in folds}),
        "code.content_key": content_key(sorted([fold.fold, fold.seed, fold.result["run"]["key"]] for fold in folds)),
    }


def _batches(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Facts of the test batches of all folds; they are None for a method whose predictions do not depend on them."""
    first = found[0]
    if not first:
        return {
            "batches.size": "predictions do not depend on batches",
            "batches.order": ABSENT,
            "batches.clips_key": ABSENT,
        }
    return {
        "batches.size": first["size"],
        "batches.order": first["order"],
        "batches.clips_key": content_key([batches["clips_sha256"] for batches in found if batches]),
    }


def _keyed(fold: Fold) -> dict[str, Any]:
    """Parts of a fold's content key that are also recorded separately."""
    run = fold.result["run"]
    made = {stage: run["config"].get(stage) for stage in TRAINING}
    return {
        "embeddings": fold.result["meta"]["embeddings_key"],
        "layers": run["layers"],
        "method": run["method"],
        "settings": run["config"]["method"],
        **{name: value for name, value in flat(made).items() if name not in HARMLESS},
    }
