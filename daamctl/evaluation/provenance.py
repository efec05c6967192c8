"""What the scores are based on: number of items, groups, versions, encoder, machines and settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.evaluation import FoldClips, ItemCounts, Provenance
from daamctl.artifacts.results import Fold
from daamctl.evaluation.scoring import UNITS, Items


def provenance(folds: Mapping[str, Sequence[Fold]]) -> Provenance:
    """Code, machines, versions, encoder and settings, as recorded in the folds."""
    every = [fold for part in folds.values() for fold in part]
    metas = [fold.result["meta"] for fold in every]
    clips = {
        FoldClips(fold.fold, meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"])
        for fold, meta in zip(every, metas, strict=True)
    }
    versions: dict[str, set[str]] = {}
    for meta in metas:
        for name, version in meta["versions"].items():
            versions.setdefault(name, set()).add(version)
    return Provenance(
        git_commits=sorted({meta["git_commit"] or "unknown" for meta in metas}),
        daamctl=sorted({meta["daamctl"] for meta in metas}),
        versions={name: ", ".join(sorted(versions[name])) for name in sorted(versions)},
        devices=sorted({meta["device"] for meta in metas}),
        precisions=sorted({meta["precision"] for meta in metas}),
        embeddings_key=metas[0]["embeddings_key"],
        encoder=metas[0]["encoder"],
        train_s={method: sum(fold.result["meta"]["train_s"] for fold in part) for method, part in folds.items()},
        peak_memory_bytes=max((meta["peak_memory_bytes"] or 0 for meta in metas), default=0) or None,
        clips_per_fold=sorted(clips),
        config=_settings(fold.result["run"]["config"] for fold in every),
        code_versions=max(len(found) for found in _codes(folds)),
    )


def _settings(configs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Settings of all folds together; of `train` the fullest, as probes and fine-tuning record only a part of it."""
    found: dict[str, Any] = {}
    for config in sorted(configs, key=lambda config: len(config.get("train", {}))):
        found |= config
    return found


def _codes(folds: Mapping[str, Sequence[Fold]]) -> Iterator[set[str]]:
    """Versions of the code of every method, and of training as a whole; of older folds, their commits."""
    training: dict[bool, set[str]] = {}
    for part in folds.values():
        method = set()
        for fold in part:
            meta = fold.result["meta"]
            commit = meta["git_commit"] or "unknown"
            code = meta.get("code", {"training": commit, "method": commit})
            method.add(code["method"])
            training.setdefault(bool(fold.result["run"].get("finetune")), set()).add(code["training"])
        yield method
    yield from training.values()


def counts(folds: Mapping[str, Sequence[Fold]], items: Mapping[str, Mapping[str, list[Items]]]) -> ItemCounts:
    """Number of tested items, each seed's once, and the test groups, of the method with the most folds."""
    method = max(folds, key=lambda name: len({fold.fold for fold in folds[name]}))
    first = {fold.fold: index for index, fold in reversed(list(enumerate(folds[method])))}  # lowest seed of each fold
    sizes = {unit: sum(len(items[method][unit][index]) for index in first.values()) for unit in UNITS}
    groups = {fold.fold: fold.result["run"]["test_group"] for fold in folds[method]}
    tested = [folds[method][index] for index in first.values()]
    longest = tested[0].result["run"]["config"].get("segment", {}).get("max_duration_s")
    rows = pl.concat([fold.predictions() for fold in tested], how="diagonal_relaxed")
    weighted = merged = 0
    if "duration_s" in rows.columns:
        spans = rows.group_by("utterance_id").agg(pl.col("duration_s").n_unique() > 1)
        weighted = int(spans["duration_s"].sum())
        merged = int((rows["duration_s"] > longest + 1e-6).sum()) if longest else 0
    return ItemCounts(
        utterance=sizes["utterance"],
        clip=sizes["clip"],
        groups={str(fold): group for fold, group in sorted(groups.items())},
        wholes=len(np.unique(tested[0].task.wholes(rows["utterance_id"]))),
        weighted=weighted,
        merged=merged,
    )
