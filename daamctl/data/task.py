"""Tasks: what an item is, what is independent of what, which figures there are, and how texts speak of all this.

`task_of` gives the task of a corpus. All else asks the task: `Task` classifies items and is judged by accuracy;
`Tagging` classifies the words of sentences and is judged by entity F1, because almost every word is outside of
entities. Another kind of task is a subclass that gives `primary`, `metrics`, `over_items` and, if its figure is not
accuracy, `values`, `sums` and `figure`; the functions over trials (`daamctl.evaluation.trials`) then give its intervals
and tests. Without classes it also gives `answers`, and has no confusion matrix and no chance level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.data import METRICS
from daamctl.data.metrics import ScoredItems, check_classes, confusion_matrix
from daamctl.data.spans import EntityCounts, count_entities, micro_f1, sentence_of

FIGURES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "entity_f1": "entity F1", "macro_f1": "macro F1",
    "weighted_f1": "weighted F1", "multilabel_f1": "multi-label F1", "multilabel_macro_f1": "multi-label macro F1",
    "ccc": "CCC", "pearson": "Pearson's r", "spearman": "Spearman's ρ", "r2": "R²",
    "word_accuracy": "word accuracy (1 − WER)", "character_accuracy": "character accuracy (1 − CER)",
    "counted_accuracy": "counted accuracy (1 − error rate)", "auroc": "AUROC", "eer_accuracy": "EER accuracy (1 − EER)",
    "average_precision": "average precision",
    "mean": "mean score", "mean_loss": "negative mean loss",
}  # fmt: skip
"""Figures by which methods are compared -> their names in texts."""


def title_of(figure: str) -> str:
    """Name of a figure at the begin of a sentence."""
    return FIGURES[figure][0].upper() + FIGURES[figure][1:]


@dataclass(frozen=True)
class Sums:
    """What a figure is computed from, of U independent units.

    Args:
        word: name of a unit.
        units: names of the units, (U,).
        given: sums of the true answers, the same for every method, (A, U).
        own: sums of the predictions of a method, (K, U).
    """

    word: str
    units: NDArray[Any]
    given: NDArray[np.float64]
    own: NDArray[np.float64]


@dataclass(frozen=True)
class Chance:
    """Scores of constant predictions, which need no model.

    Args:
        majority_fraction: its share of the items, the accuracy of always predicting it.
        uniform_fraction: 1 / C for C classes with items, the balanced accuracy of a constant prediction; of an
            evaluation its mean over folds, of which some may lack classes.
        uniform_log_loss: ln C.
        share_log_loss: log loss of always predicting the class frequencies, that is, their entropy.
        per_class: class -> number of items.
    """

    majority_class: str
    majority_fraction: float
    uniform_fraction: float
    uniform_log_loss: float
    share_log_loss: float
    per_class: dict[str, int]

    @property
    def lacking(self) -> bool:
        """Whether a fold of the evaluation lacks one of the C classes, so that its own C is smaller."""
        classes = sum(number > 0 for number in self.per_class.values())
        return self.uniform_fraction * classes > 1 + 1e-9  # a mean of equal fractions may be rounded


@dataclass(frozen=True)
class Task:
    """Classification of items. The first seven fields are words for texts, in the singular.

    Args:
        item: what is classified, a row of the utterance table.
        clip: what is trained on, a row of the clip table.
        source: where an item comes from; the unit of independence.
        original: what a corpus consists of.
        examine: verb for checking whether two items are alike.
        unknown: phrase for corpora in which every item is its own source.
        whole: what is read at once, and never divided.
        classes: class names; the index is the class id.
    """

    item: str
    clip: str
    source: str
    original: str
    examine: str
    unknown: str
    whole: str
    classes: tuple[str, ...] = ()
    primary: ClassVar[str] = "accuracy"
    """Figure that selects epochs and ranks methods; higher is better."""
    metrics: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "log_loss", "ece",
    )  # fmt: skip
    """Figures of items, of `METRICS`, in the order of reports."""
    over_items: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy")
    """Figures that are means over items, by which methods are compared too."""
    imbalance: ClassVar[str] = "report balanced accuracy beside accuracy"
    """Advice if one class dominates."""

    @property
    def by_accuracy(self) -> bool:
        """Whether accuracy is the primary figure. All others are compared by `sums` and `figure`."""
        return self.primary == "accuracy"

    @property
    def metric(self) -> str:
        """Name of the primary figure in texts."""
        return FIGURES[self.primary]

    @property
    def title(self) -> str:
        """The same at the begin of a sentence."""
        return title_of(self.primary)

    def unit(self, unit: str) -> str:
        """The word for a unit of scoring, "utterance" or "clip"."""
        return self.clip if unit == "clip" else self.item

    def per(self, unit: str) -> str:
        """What follows the name of the primary figure: accuracy is per item, entity F1 is not."""
        return f" per {self.unit(unit)}" if self.by_accuracy else ""

    def wholes(self, ids: pl.Series) -> NDArray[Any]:
        """What each item, given by its utterance_id or clip_id, is read with, (N,)."""
        return ids.to_numpy()

    def with_sources(self, ids: pl.Series, sources: pl.Series) -> Task:
        """The same task with the word for the sources that are known.

        Args:
            ids: utterance_id of the items, (N,).
            sources: their `speaker`, (N,).
        """
        return self

    def answers(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """What a model with these outputs (N, K) answers, (N,): the class of the largest logit, the first of equals."""
        return np.asarray(outputs.argmax(axis=1))

    def score(self, items: ScoredItems) -> dict[str, float]:
        """The figures of items; ValueError if there are classes and the items are not of them (`check_classes`)."""
        if self.classes:
            check_classes(items, len(self.classes))
        return {name: METRICS.load(name).compute(items) for name in self.metrics}

    def confusion(self, items: ScoredItems) -> list[dict[str, Any]]:
        """How often each class was taken for each other one: actual, predicted, count; nothing without classes."""
        if not self.classes:
            return []
        counts = confusion_matrix(items.targets, items.predictions, len(self.classes))
        return [
            {"actual": self.classes[one], "predicted": self.classes[other], "count": int(count)}
            for (one, other), count in np.ndenumerate(counts)
        ]

    def chance(self, targets: NDArray[Any]) -> Chance | None:
        """Scores of constant predictions, from the class ids of N items, (N,), N > 0; None without classes."""
        if not self.classes:
            return None
        counts = np.bincount(targets, minlength=len(self.classes))
        # a class without items adds nothing to the entropy, but its logarithm is infinite
        shares = counts[counts > 0] / counts.sum()
        return Chance(
            majority_class=self.classes[int(counts.argmax())],
            majority_fraction=float(shares.max()),
            uniform_fraction=1.0 / len(shares),
            uniform_log_loss=float(np.log(len(self.classes))),
            share_log_loss=float(-(shares * np.log(shares)).sum()),
            per_class={name: int(count) for name, count in zip(self.classes, counts, strict=True)},
        )

    def values(self, rows: pl.DataFrame, predicted: NDArray[np.int64]) -> dict[str, float]:
        """The figures that need more than the classes of single items, among them the primary one if it is such.

        Args:
            rows: N items, whole, with utterance_id, and their label or, as class id, target.
            predicted: class ids, (N,).
        """
        return {}

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Sums over independent units.

        Args:
            predictions: N items, whole, with utterance_id, speaker, target and logits.
        """
        raise NotImplementedError

    def figure(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """The primary figure of R samples, (R,), from sums over their units, (A + K, R)."""
        raise NotImplementedError

    def weights(self, given: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each unit counts in the primary figure, (U,), from what is given to the trials, (A, U), see `Sums`."""
        return np.asarray(given.sum(0))

    def size(self, figure: float, given: NDArray[np.float64], trials: int) -> float | None:
        """How many items the primary figure, a mean over trials, is at most a share of; None: it is no share.

        Args:
            given: sums over all units of what is given to the trials, (A,), see `Sums`.
        """
        return None


class Tagging(Task):
    """Classification of the words of sentences, which marks entities by tags in BIO."""

    primary: ClassVar[str] = "entity_f1"
    imbalance: ClassVar[str] = "accuracy tells little, so taggers are compared by entity F1"

    def wholes(self, ids: pl.Series) -> NDArray[Any]:
        """The sentence of each word."""
        return sentence_of(ids.str.replace(r"#\d+$", ""))

    def with_sources(self, ids: pl.Series, sources: pl.Series) -> Task:
        """The source of a word is a document where the sources hold several sentences, else its sentence."""
        # readers of tagged words name a sentence after itself where its document is not known
        in_documents = sources.null_count() == 0 and bool((sources.to_numpy() != sentence_of(ids)).any())
        return replace(self, source="document") if in_documents else self

    def values(self, rows: pl.DataFrame, predicted: NDArray[np.int64]) -> dict[str, float]:
        """Micro-averaged entity F1, lenient."""
        if "target" in rows.columns:
            gold = rows["target"]
        else:
            gold = rows["label"].replace_strict(self.classes, range(len(self.classes)), return_dtype=pl.Int64)
        return {"entity_f1": micro_f1(count_entities(sentence_of(rows["utterance_id"]), gold, predicted, self.classes))}

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Numbers of true entities, (1, U), and of predicted and correct ones, (2, U), of U sentences or documents."""
        ids, sources = predictions["utterance_id"], predictions["speaker"]
        sentences, predicted = sentence_of(ids), predictions["logits"].list.arg_max().to_numpy()
        counts = count_entities(sentences, predictions["target"], predicted, self.classes)
        word = self.with_sources(ids, sources).source if sources.n_unique() > 1 else self.source
        return self.entity_sums(counts, word, dict(zip(sentences, sources, strict=True)) if word != self.source else {})

    def entity_sums(self, counts: EntityCounts, word: str, units: Mapping[str, str]) -> Sums:
        """Sums over sentences, or over what they belong to.

        Args:
            word: name of a unit.
            units: sentence -> its unit; empty: sentences are units.
        """
        if units:
            counts = counts.grouped([units[name] for name in counts.sentences])
        tables = np.stack([part.sum(axis=1) for part in (counts.gold, counts.predicted, counts.correct)])
        return Sums(word, counts.sentences, tables[:1].astype(np.float64), tables[1:].astype(np.float64))

    def figure(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Micro-averaged entity F1, 2 correct / (true + predicted); 0 without entities."""
        both = sums[0] + sums[1]
        return np.asarray(np.divide(2 * sums[2], both, out=np.zeros_like(both), where=both > 0))

    def size(self, figure: float, given: NDArray[np.float64], trials: int) -> float:
        """Twice the true entities, because an entity counts as true and as predicted; see `Task`.

        With an F1 of 0 or 1 each counts once: nothing tells whether an error would be in one of the two or in both.
        """
        number = float(given.sum())
        return 2 * number * trials if 0 < figure < 1 else number


TASKS: dict[str, Task] = {
    "speech": Task("utterance", "clip", "speaker", "recording", "listen to", "Who speaks is not known", "utterance"),
    "text": Task("text", "text", "author", "text", "read", "Who wrote the texts is not known", "text"),
    "image": Task("image", "image", "source", "image", "look at", "Where the images come from is not known", "image"),
    "tokens": Tagging(
        "word", "word", "sentence", "sentence", "read", "The sentences of the words are not known", "sentence"
    ),
    "embeddings": Task(
        "utterance", "item", "speaker", "item", "look at", "Who the items come from is not known", "utterance"
    ),
}
"""Modality of a corpus -> its task. What is read is one thing, what is asked of it another; so far one gives the
other."""


def task_of(modality: str, classes: Sequence[str] = ()) -> Task:
    """The task of a corpus."""
    return replace(TASKS[modality], classes=tuple(classes))
