"""From the logits of clips to scores per clip and per utterance.

An utterance's logits are the mean of its clips' logits, each clip counting the same whatever its length. The published
figures score every clip by itself (DEVIATIONS D22).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.errors import ArtifactError
from daamctl.evaluation.metrics import ClassIds, score

UNITS = ("utterance", "clip")


@dataclass(frozen=True)
class Items:
    """What is scored: clips or utterances.

    Args:
        ids: clip or utterance ids, sorted for utterances.
        targets: true class ids.
        predictions: class ids of the largest logit; the lowest id on ties.
    """

    ids: list[str]
    targets: ClassIds
    predictions: ClassIds

    def __len__(self) -> int:
        """Number of items."""
        return len(self.ids)


def items_of(predictions: pl.DataFrame, unit: str) -> Items:
    """The items of one test pass.

    Args:
        predictions: columns clip_id, utterance_id, target, logits (list of C).
        unit: "clip" or "utterance".

    Raises:
        ArtifactError: a logit is not finite, there are no rows, or the clips of an utterance differ in target.
        ValueError: `unit` is unknown.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit '{unit}'; known: {', '.join(UNITS)}")
    logits = _logits(predictions)  # (B, C)
    targets = predictions["target"].to_numpy()
    if unit == "clip":
        return Items(predictions["clip_id"].to_list(), targets, logits.argmax(axis=1))
    return _pool(predictions["utterance_id"].to_numpy(), targets, logits)


def join(parts: list[Items]) -> Items:
    """The items of several test passes as one."""
    return Items(
        [name for part in parts for name in part.ids],
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.predictions for part in parts]),
    )


def score_items(items: Items, num_classes: int) -> dict[str, Any]:
    """Every metric, and `n`, the number of items."""
    return {**score(items.targets, items.predictions, num_classes), "n": len(items)}


def _logits(predictions: pl.DataFrame) -> NDArray[np.float64]:
    if predictions.is_empty():
        raise ArtifactError("predictions hold no test clip")
    logits = np.asarray(predictions["logits"].to_list(), dtype=np.float64)
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        first = predictions["clip_id"][int(np.argmin(finite))]
        raise ArtifactError(f"{int((~finite).sum())} clips have logits that are not finite, first '{first}'")
    return logits


def _pool(utterances: NDArray[Any], targets: ClassIds, logits: NDArray[np.float64]) -> Items:
    ids, first, index, counts = np.unique(utterances, return_index=True, return_inverse=True, return_counts=True)
    pooled_targets = targets[first]
    if not np.array_equal(pooled_targets[index], targets):
        wrong = utterances[int(np.argmax(pooled_targets[index] != targets))]
        raise ArtifactError(f"clips of utterance '{wrong}' have different targets")
    sums = np.zeros((len(ids), logits.shape[1]))
    np.add.at(sums, index, logits)
    return Items(ids.tolist(), pooled_targets, (sums / counts[:, None]).argmax(axis=1))
