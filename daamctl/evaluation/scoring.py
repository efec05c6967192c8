"""Scores per clip and per utterance from the logits of clips.

The logits of an utterance are the mean of its clips' logits, weighted by their durations (`artifacts.clips`). Its
probabilities are the softmax of that mean, not the mean of the clips' probabilities. The published scores are per clip
(D22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray
from scipy.special import softmax

from daamctl.artifacts.clips import means_of_clips, weights_of
from daamctl.data.task import TASKS, Task
from daamctl.errors import ArtifactError

UNITS = ("utterance", "clip")


@dataclass(frozen=True)
class Items:
    """N scored clips or utterances.

    Args:
        ids: clip or utterance ids, sorted for utterances.
        speakers: speaker, author or other source of each item; None if unknown.
        targets: true answers, of classes their ids, shape (N,).
        predictions: answers of the model (`Task.answers`), shape (N,).
        outputs: what the model gave for each item, of C classes their logits, shape (N, C).
    """

    ids: list[str]
    speakers: list[str | None]
    targets: Shaped[np.ndarray, " N"]
    predictions: Shaped[np.ndarray, " N"]
    outputs: Float64[np.ndarray, "N C"]

    @cached_property
    def probabilities(self) -> Float64[np.ndarray, "N C"]:
        """Softmax of the logits."""
        return np.asarray(softmax(self.outputs, axis=1))

    def __len__(self) -> int:
        """Number of items."""
        return len(self.ids)


def items_of(predictions: pl.DataFrame, unit: str, task: Task = TASKS["speech"]) -> Items:
    """The items of one test pass.

    Args:
        predictions: columns clip_id, utterance_id, speaker, target, logits (list of C), and of recordings duration_s.
        unit: "clip" or "utterance".

    Raises:
        ArtifactError: a logit is not finite, there are no rows, or the clips of an utterance differ in target or
            speaker.
        ValueError: `unit` is unknown.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit '{unit}'; known: {', '.join(UNITS)}")
    logits = _logits(predictions)  # (B, C)
    speakers = [name or None for name in predictions["speaker"].to_list()]
    if unit == "clip":
        ids, targets = predictions["clip_id"].to_list(), predictions["target"].to_numpy()
        return Items(ids, speakers, targets, task.answers(logits), logits)
    return _pool(predictions, speakers, logits, task)


def join(parts: Sequence[Items]) -> Items:
    """Concatenate the items of several test passes."""
    return Items(
        [name for part in parts for name in part.ids],
        [name for part in parts for name in part.speakers],
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.predictions for part in parts]),
        np.concatenate([part.outputs for part in parts]),
    )


def score_predictions(predictions: pl.DataFrame, unit: str, task: Task) -> dict[str, float]:
    """Every figure of one test pass; arguments and errors as in `items_of`."""
    predicted = task.answers(_logits(predictions))
    return {**task.score(items_of(predictions, unit, task)), **task.values(predictions, predicted)}


def _logits(predictions: pl.DataFrame) -> NDArray[np.float64]:
    if predictions.is_empty():
        raise ArtifactError("the predictions have no test clip")
    sizes = sorted(set(predictions["logits"].list.len()))
    if len(sizes) > 1:
        raise ArtifactError(
            f"predictions have {sizes[0]} to {sizes[-1]} logits per clip; every clip needs the same number"
        )
    logits = predictions["logits"].explode().to_numpy().astype(np.float64).reshape(len(predictions), -1)
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        first = predictions["clip_id"][int(np.argmin(finite))]
        raise ArtifactError(f"{int((~finite).sum())} clips have logits that are not finite, first '{first}'")
    return logits


def _pool(predictions: pl.DataFrame, speakers: list[str | None], logits: NDArray[np.float64], task: Task) -> Items:
    utterances, targets = predictions["utterance_id"].to_numpy(), predictions["target"].to_numpy()
    ids, first, index = np.unique(utterances, return_index=True, return_inverse=True)
    names = np.asarray(speakers, dtype=object)
    for what, values in (("targets", targets), ("speakers", names)):
        same = values[first][index] == values
        if not same.all():
            wrong = utterances[int(np.argmin(same))]
            raise ArtifactError(f"clips of utterance '{wrong}' have different {what}")
    means = means_of_clips(logits, index, weights_of(index, predictions), len(ids))
    return Items(ids.tolist(), names[first].tolist(), targets[first], task.answers(means), means)
