"""Entity F1 of held-out and test words, by which the epoch of a tagger is selected.

Almost every word is outside of entities, so the accuracy per word hardly tells one epoch from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor

from daamctl.artifacts.splits import Split
from daamctl.artifacts.words import sentence_of
from daamctl.evaluation.entities import count_entities, micro_f1

F1 = Callable[[Tensor], float]
"""Micro-averaged entity F1 of the logits (N, C) of a part's words, in the order of the part."""


def entity_f1(clips: pl.DataFrame, classes: Sequence[str], split: Split) -> Mapping[str, F1]:
    """Functions that give the entity F1 of the held-out (`dev`) and the test part.

    Args:
        clips: words, sorted by sentence and position.
        classes: tags in BIO; the index is the class id.
    """
    return {name: _f1_of(clips[rows], classes) for name, rows in (("dev", split.dev), ("test", split.test))}


def _f1_of(words: pl.DataFrame, classes: Sequence[str]) -> F1:
    sentences = sentence_of(words["utterance_id"])
    index = {name: number for number, name in enumerate(classes)}
    gold = np.array([index[label] for label in words["label"]], np.int64)

    def f1(logits: Tensor) -> float:
        predicted = torch.as_tensor(logits).argmax(-1).cpu().numpy()
        return micro_f1(count_entities(sentences, gold, predicted, classes))

    return f1
