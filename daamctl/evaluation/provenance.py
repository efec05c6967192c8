"""What the figures rest on: how many items, which groups, which versions, encoder, machines and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daamctl.artifacts.results import Fold
from daamctl.evaluation.scoring import UNITS, Items, join
from daamctl.evaluation.summary import chance


def provenance(folds: Mapping[str, Sequence[Fold]]) -> dict[str, Any]:
    """What the folds say of the machines, versions, encoder and settings that made them."""
    every = [fold for part in folds.values() for fold in part]
    metas = [fold.result["meta"] for fold in every]
    return {
        "git_commits": sorted({meta["git_commit"] or "unknown" for meta in metas}),
        "daamctl": sorted({meta["daamctl"] for meta in metas}),
        "versions": {
            name: ", ".join(sorted({meta["versions"][name] for meta in metas if name in meta["versions"]}))
            for name in sorted({name for meta in metas for name in meta["versions"]})
        },
        "devices": sorted({meta["device"] for meta in metas}),
        "precisions": sorted({meta["precision"] for meta in metas}),
        "embeddings_key": metas[0]["embeddings_key"],
        "encoder": metas[0]["encoder"],
        "train_s": {method: sum(fold.result["meta"]["train_s"] for fold in part) for method, part in folds.items()},
        "peak_memory_bytes": max((meta["peak_memory_bytes"] or 0 for meta in metas), default=0) or None,
        "clips_per_fold": sorted(
            {
                (fold.fold, meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"])
                for fold, meta in zip(every, metas, strict=True)
            }
        ),
        "config": every[0].result["run"]["config"],
    }


def counts(folds: Mapping[str, Sequence[Fold]], items: Mapping[str, Mapping[str, list[Items]]]) -> dict[str, Any]:
    """How many items were tested, seeds counted once, and the groups they come from."""
    method = _largest(folds)
    sizes = {unit: len(join(_one_seed(folds[method], items[method][unit]))) for unit in UNITS}
    groups = {fold.fold: fold.result["run"]["test_group"] for fold in folds[method]}
    return {**sizes, "groups": {str(fold): group for fold, group in sorted(groups.items())}}


def chance_of(items: Mapping[str, Mapping[str, list[Items]]], unit: str, classes: Sequence[str]) -> dict[str, Any]:
    """The scores of answering without looking, on the test items of the method with the most folds."""
    # Seeds repeat the same items, so the shares do not change with their number.
    parts = max((parts[unit] for parts in items.values()), key=len)
    return chance(join(parts).targets, classes)


def _one_seed(folds: Sequence[Fold], parts: list[Items]) -> list[Items]:
    """The items of the lowest seed of each fold: every test item once."""
    first: dict[int, Items] = {}
    for fold, part in zip(folds, parts, strict=True):
        first.setdefault(fold.fold, part)
    return list(first.values())


def _largest(folds: Mapping[str, Sequence[Fold]]) -> str:
    """The method with the most folds: the items it was tested on stand for the data."""
    return max(folds, key=lambda method: len({fold.fold for fold in folds[method]}))
