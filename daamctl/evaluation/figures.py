"""Figures by which `judge` ranks models besides accuracy: F1, errors, agreement of numbers, and scores.

Each is a function of sums over independent units, so `daamctl.evaluation.trials` gives its intervals and tests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.predictions import NO_LABELS, SEPARATOR
from daamctl.data.sign_flip import Floats
from daamctl.data.spans import count_entities, sentence_of
from daamctl.data.task import Sums, Tagging, Task
from daamctl.evaluation.statistics import class_items

PAIRS = 500
"""Texts whose errors are counted at once."""
FEWEST_LEVELS, MOST_LEVELS = 500, 500_000
"""Levels of ranks of an AUROC, and of all its units together; 500 change it by less than 0.0001."""


class FigureOfSums(Task):
    """A task whose primary figure follows from the true and predicted answers of items."""

    @abstractmethod
    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """What is summed over N items, see `sums`: of the labels alone, (A, N), and of a model, (K, N)."""

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Sums over units; see `Task`.

        Args:
            predictions: N items: unit, and label and prediction as numbers, texts, or class ids, -1 for no class; of
                texts also error, see `FigureOfErrors.item_errors`.
        """
        units, places = np.unique(predictions["unit"].to_numpy(), return_inverse=True)
        tables = self.item_sums(predictions)
        given, own = (np.stack([_by_unit(row, places, len(units)) for row in table]) for table in tables)
        return Sums(self.source, units, given, own)


class FigureOfErrors(Task):
    """A figure of texts, numbers or scores, which are not right or wrong but near or far."""

    over_items: ClassVar[tuple[str, ...]] = ()
    of_texts: ClassVar[bool] = False
    """Whether labels and predictions are texts, not numbers."""

    @classmethod
    @abstractmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """How far off each item is, (N,)."""


class MacroF1(FigureOfSums):
    """Mean of the F1 of the classes, as scikit-learn's `f1_score(average="macro")` over the classes of the labels."""

    primary: ClassVar[str] = "macro_f1"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Items that are of each class, that are called so, and those called so that are."""
        classes = np.arange(len(self.classes))[:, None]
        true, said = ((classes == rows[name].to_numpy()).astype(np.float64) for name in ("label", "prediction"))
        return true, np.concatenate([said, true * said])

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; a class that neither occurs in a sample nor is predicted there does not count."""
        true, said, right = np.split(sums, 3)
        f1 = np.divide(2 * right, true + said, out=np.zeros_like(right), where=true + said > 0)
        weights = self.of_classes(true, said)
        return np.asarray((f1 * weights).sum(0) / np.maximum(weights.sum(0), 1e-9))

    def of_classes(self, true: Floats, said: Floats) -> Floats:
        """What each class counts, (C, R)."""
        return (true + said > 0).astype(np.float64)

    def weights(self, given: Floats) -> Floats:
        """An item counts as its class divided by the items of this; see `Task`."""
        total = given.sum(1, keepdims=True)
        return np.asarray((given * self.of_classes(total, total) / np.maximum(total, 1)).sum(0))

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """`class_items`; see `Task`."""
        number = class_items(given, self.of_classes(given, given))
        return number * trials if 0 < figure < 1 else number


class WeightedF1(MacroF1):
    """Mean of the F1 of the classes, each weighted by its number of labels."""

    primary: ClassVar[str] = "weighted_f1"

    def of_classes(self, true: Floats, said: Floats) -> Floats:
        """See `MacroF1`."""
        return true


class EntityF1(Tagging):
    """Micro-averaged F1 of entities, from the tags of words; see `Tagging`."""

    def with_sources(self, ids: pl.Series, sources: pl.Series) -> Task:
        """The same task: its source is the column of the sentences or documents; see `Task`."""
        return self

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Sums over units; see `FigureOfSums`.

        Args:
            predictions: the words of every sentence in their order, also with item and sentence. If this is null, the
                sentence is that of daamctl's names of words, or the unit.

        Raises:
            ValueError: a label is no tag, or the words of a sentence do not follow each other.
        """
        named = predictions.select("unit", "item", sentence=pl.Series(sentence_of(predictions["item"])))
        is_apart = named["sentence"].n_unique() == named.select("sentence", "unit").n_unique()
        units, sentences = (named[name].to_numpy() for name in ("unit", "sentence"))
        if predictions["sentence"].null_count() == 0:  # two documents may number theirs alike
            sentences = predictions.select(pl.concat_str("unit", "sentence", separator="\n")).to_series().to_numpy()
        elif not is_apart or (named["sentence"] == named["item"]).any():  # names of another kind
            sentences = units
        counts = count_entities(sentences, predictions["label"], predictions["prediction"], self.classes)
        return self.entity_sums(counts, self.source, dict(zip(sentences, units, strict=True)))


class LabelSetF1(FigureOfSums, FigureOfErrors):
    """Micro-averaged F1 of the labels of items that may have several: 2 right / (true + predicted)."""

    primary: ClassVar[str] = "multilabel_f1"
    of_texts: ClassVar[bool] = True

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Numbers of items and of true labels; of predicted labels, and of those that are true."""
        pairs = [(labels_in(true), labels_in(said)) for true, said in rows.select("label", "prediction").iter_rows()]
        counts = np.array([(1, len(true), len(said), len(true & said)) for true, said in pairs], dtype=np.float64).T
        return counts[:2], counts[2:]  # items count even if they have no label, because one may be predicted

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """Number of labels that are missing or wrong."""
        pairs = zip(labels, predictions, strict=True)
        return np.array([len(labels_in(true) ^ labels_in(said)) for true, said in pairs], dtype=np.float64)

    def figure(self, sums: Floats) -> Floats:
        """2 right / (true + predicted); 0 without labels."""
        return _ratio(2 * sums[3], sums[1] + sums[2])

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """Twice the true labels, as of entities; see `Tagging`."""
        number = float(given[1])
        return 2 * number * trials if 0 < figure < 1 else number


class LabelSetMacroF1(MacroF1, FigureOfErrors):
    """Mean of the F1 of the labels of items that may have several, over the labels that some item has."""

    primary: ClassVar[str] = "multilabel_macro_f1"
    over_items: ClassVar[tuple[str, ...]] = ()
    of_texts: ClassVar[bool] = True
    item_errors = LabelSetF1.item_errors

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Numbers of items, and what `MacroF1` sums."""
        place = {name: number for number, name in enumerate(self.classes)}
        true, said = (np.zeros((len(place), len(rows))) for _ in range(2))
        for table, column in ((true, "label"), (said, "prediction")):
            for item, text in enumerate(rows[column]):
                table[[place[name] for name in labels_in(text) if name in place], item] = 1
        return np.concatenate([np.ones((1, len(rows))), true]), np.concatenate([said, true * said])

    def figure(self, sums: Floats) -> Floats:
        """See `MacroF1`."""
        return super().figure(sums[1:])

    def weights(self, given: Floats) -> Floats:
        """Half for the items, which may have no label, and half as in `MacroF1`."""
        return np.asarray(super().weights(given[1:]) + len(given[1:]) * given[0] / given[0].sum())

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """See `MacroF1`."""
        return super().size(figure, given[1:], trials)


class CountedAccuracy(FigureOfSums, FigureOfErrors):
    """1 minus an error rate: errors, which are the predictions, over what they are counted of, the labels."""

    primary: ClassVar[str] = "counted_accuracy"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Labels and predictions as they are."""
        return rows["label"].to_numpy()[None], rows["prediction"].to_numpy()[None]

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """The predictions."""
        return predictions.to_numpy()

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; 1 minus the errors where a sample is of nothing."""
        total, errors = sums
        return np.asarray(1 - errors / np.where(total > 0, total, 1))


class WordAccuracy(CountedAccuracy):
    """1 minus the word error rate: words to replace, insert or delete, over the words of the labels."""

    primary: ClassVar[str] = "word_accuracy"
    of_texts: ClassVar[bool] = True

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Numbers of words, and of errors."""
        words = [len(self.parts(text)) for text in rows["label"]]
        return np.array([words], dtype=np.float64), rows["error"].to_numpy()[None]

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """Number of wrong words; in a missing prediction all are deleted."""
        return edit_distances(*([cls.parts(text or "") for text in column] for column in (labels, predictions)))

    @staticmethod
    def parts(text: str) -> Sequence[str]:
        """What is counted in a text."""
        return text.split()


class CharacterAccuracy(WordAccuracy):
    """1 minus the character error rate; a space between words is a character."""

    primary: ClassVar[str] = "character_accuracy"

    @staticmethod
    def parts(text: str) -> Sequence[str]:
        """See `WordAccuracy`."""
        return " ".join(text.split())


class MeanScore(FigureOfSums, FigureOfErrors):
    """Mean of the predictions, which are scores of the items; there are no labels."""

    primary: ClassVar[str] = "mean"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Numbers of items, and their scores."""
        return np.ones((1, len(rows))), rows["prediction"].to_numpy()[None]

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """The scores."""
        return predictions.to_numpy()

    def figure(self, sums: Floats) -> Floats:
        """See `Task`."""
        number, scores = sums
        return np.asarray(scores / np.maximum(number, 1))


class NegativeMeanLoss(MeanScore):
    """Minus the mean of the predictions, which are losses of the items."""

    primary: ClassVar[str] = "mean_loss"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """Numbers of items, and their negative losses."""
        return np.ones((1, len(rows))), -rows["prediction"].to_numpy()[None]


class Concordance(FigureOfSums, FigureOfErrors):
    """Lin's concordance correlation coefficient (1989), with variances over N."""

    primary: ClassVar[str] = "ccc"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """The sums of which means, variances and the covariance are made."""
        # in units of the labels' spread, so that rounding is small whatever their size
        true, said = rows["label"].to_numpy(), rows["prediction"].to_numpy()
        y, p = ((values - true.mean()) / true.std() for values in (true, said))
        return np.stack([np.ones_like(y), y, y * y]), np.stack([p, p * p, y * p])

    def weights(self, given: Floats) -> Floats:
        """Every item counts the same; see `Task`."""
        return np.asarray(given[0])

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """Absolute differences."""
        return (labels - predictions).abs().to_numpy()

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; 0 where a sample holds one number alone."""
        number, y, yy, p, pp, yp = sums
        number = np.maximum(number, 1)
        y, p = y / number, p / number
        return self.agreement(y, p, yy / number - y * y, pp / number - p * p, yp / number - y * p)

    def agreement(self, y: Floats, p: Floats, var_y: Floats, var_p: Floats, covariance: Floats) -> Floats:
        """The figure from means, variances and the covariance of labels and predictions."""
        return _ratio(2 * covariance, var_y + var_p + (y - p) ** 2)


class Correlation(Concordance):
    """Pearson's correlation coefficient."""

    primary: ClassVar[str] = "pearson"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """See `Concordance`; predictions may be far from the labels, or on another scale."""
        both = pl.col("label", "prediction")
        # a constant has no spread
        scaled = ((both - both.mean()) / both.std(ddof=0)).fill_nan(0.0)
        return super().item_sums(rows.with_columns(scaled))

    def agreement(self, y: Floats, p: Floats, var_y: Floats, var_p: Floats, covariance: Floats) -> Floats:
        """See `Concordance`."""
        return _ratio(covariance, np.sqrt(np.maximum(var_y, 0) * np.maximum(var_p, 0)))


class RankCorrelation(Correlation):
    """Spearman's rank correlation coefficient. Ranks are those of all items, also where units are left out."""

    primary: ClassVar[str] = "spearman"

    def item_sums(self, rows: pl.DataFrame) -> tuple[Floats, Floats]:
        """See `Concordance`; of ranks, equal values have the mean of theirs."""
        return super().item_sums(rows.with_columns(pl.col("label", "prediction").rank()))


class Determination(Concordance):
    """Coefficient of determination: 1 minus squared errors over squared distances of labels from their mean."""

    primary: ClassVar[str] = "r2"

    def agreement(self, y: Floats, p: Floats, var_y: Floats, var_p: Floats, covariance: Floats) -> Floats:
        """See `Concordance`."""
        return _ratio(2 * covariance - var_p - (y - p) ** 2, var_y)


class Auroc(FigureOfErrors):
    """Area under the ROC curve: how often an item of the second class has a higher score than one of the first.

    Labels are 0 and 1. Scores of two models need not be alike, so each is replaced by its rank among those of its
    model.
    """

    primary: ClassVar[str] = "auroc"

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Numbers of items of each class, (2, U), and of those at each of B levels of ranks, (2 B, U).

        Every rank is a level, unless there would be more than `MOST_LEVELS` for all units together.
        """
        units, places = np.unique(predictions["unit"].to_numpy(), return_inverse=True)
        positive, number = predictions["label"].to_numpy() > 0, 2 * len(predictions)  # ranks may end in .5
        levels = min(number, max(FEWEST_LEVELS, MOST_LEVELS // len(units)))
        rank = (2 * predictions["prediction"].rank().to_numpy() - 2).astype(np.int64)
        own = np.zeros((2, levels, len(units)))
        np.add.at(own, (positive.astype(int), rank * levels // number, places), 1.0)
        return Sums(self.source, units, own.sum(1), own.reshape(2 * levels, -1))

    @classmethod
    def item_errors(cls, labels: pl.Series, predictions: pl.Series) -> Floats:
        """Share of the other class with a score on the wrong side; an equal one counts half."""
        scores, positive = predictions.to_numpy(), labels.to_numpy() > 0
        errors = np.empty(len(scores))
        for is_positive in (False, True):
            own = positive == is_positive
            other = np.sort(scores[~own])
            lower = sum(np.searchsorted(other, scores[own], side) for side in ("left", "right")) / 2 / len(other)
            errors[own] = 1 - lower if is_positive else lower
        return errors

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; a half where a sample lacks a class."""
        (first, second), (negative, positive) = sums[:2], np.split(sums[2:], 2)
        higher = (positive * (np.cumsum(negative, axis=0) - negative / 2)).sum(0)
        pairs = first * second
        return np.asarray(np.divide(higher, pairs, out=np.full_like(higher, 0.5), where=pairs > 0))

    def weights(self, given: Floats) -> Floats:
        """Both classes count the same; see `Task`."""
        return np.asarray((given / given.sum(1, keepdims=True)).sum(0))

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """Twice the items: near 1 it varies less than a share of as many; see `Task`."""
        number = float(given.sum())
        return 2 * number * trials if 0 < figure < 1 else number


class EqualErrors(Auroc):
    """1 minus the equal error rate, at which as large a share of one class is accepted as of the other is missed.

    Between two levels of scores the ROC curve is a line.
    """

    primary: ClassVar[str] = "eer_accuracy"

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; a half where a sample lacks a class."""
        total = sums[:2, None]
        shares = np.cumsum(np.stack(np.split(sums[2:], 2)), axis=1) / np.maximum(total, 1)
        shares = np.concatenate([np.zeros_like(total), shares], axis=1)  # of both classes, at or below each level
        missed, gap = shares[1], shares.sum(0) - 1
        after = np.maximum((gap >= 0).argmax(0), 1)[None]
        one, two = (np.take_along_axis(gap, at, 0)[0] for at in (after - 1, after))
        low, high = (np.take_along_axis(missed, at, 0)[0] for at in (after - 1, after))
        rate = low + (high - low) * -one / np.maximum(two - one, 1e-12)
        return np.where((sums[:2] > 0).all(0), 1 - rate, 0.5)

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """As of the balanced accuracy at this level; see `Task`."""
        number = class_items(given)
        return number * trials if 0 < figure < 1 else number


class AveragePrecision(Auroc):
    """Mean precision over the items of the second class, each at its score, as scikit-learn's."""

    primary: ClassVar[str] = "average_precision"

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; 0 where a sample lacks the class."""
        negative, positive = np.split(sums[2:], 2)
        # from the highest level down
        above, right = (np.cumsum(part[::-1], axis=0) for part in (negative + positive, positive))
        precision = right / np.maximum(above, 1e-12)
        return _ratio((precision * positive[::-1]).sum(0), sums[1])

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """The items of the second class; see `Task`."""
        number = float(given[1])
        return number * trials if 0 < figure < 1 else number


FIGURES_OF_SUMS: dict[str, type[Task]] = {
    one.primary: one
    for one in (
        MacroF1, WeightedF1, EntityF1, LabelSetF1, LabelSetMacroF1, MeanScore, NegativeMeanLoss, CountedAccuracy,
        WordAccuracy, CharacterAccuracy, Concordance, Correlation, RankCorrelation, Determination, Auroc, EqualErrors,
        AveragePrecision,
    )
}  # fmt: skip


def labels_in(text: str | None) -> set[str]:
    """The labels of an item, `a;b`; none in an empty text, or in `NO_LABELS`."""
    return set(text.split(SEPARATOR)) - {NO_LABELS} if text else set()


def edit_distances(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]) -> Floats:
    """Smallest number of insertions, deletions and replacements that turn one sequence into another, of N pairs, (N,).

    Levenshtein's distance, by the usual recursion over the words of the first; blocks of pairs are computed at once.
    """
    found = np.zeros(len(first))
    order = sorted(range(len(first)), key=lambda pair: (len(first[pair]), len(second[pair])))
    for start in range(0, len(order), PAIRS):
        block = order[start : start + PAIRS]
        codes: dict[str, int] = {}
        sides = []
        for side in (first, second):
            rows = np.full((len(block), max(len(side[pair]) for pair in block)), -1)
            for row, pair in zip(rows, block, strict=True):
                row[: len(side[pair])] = [codes.setdefault(word, len(codes)) for word in side[pair]]
            sides.append(rows)
        one, two = sides
        places = np.arange(two.shape[1] + 1)
        # distance of the first i words of one sequence to the first j of the other, for all j
        distance = np.tile(places, (len(block), 1))
        lengths = np.array([(len(first[pair]), len(second[pair])) for pair in block])
        for i in range(one.shape[1] + 1):
            if i > 0:
                replaced = distance[:, :-1] + (two != one[:, i - 1 : i])
                distance = np.concatenate([distance[:, :1] + 1, np.minimum(distance[:, 1:] + 1, replaced)], axis=1)
                distance = np.minimum.accumulate(distance - places, axis=1) + places  # insertions
            ends = lengths[:, 0] == i
            found[np.array(block)[ends]] = distance[ends, lengths[ends, 1]]
    return found


def _by_unit(values: Floats, places: NDArray[np.int64], number: int) -> Floats:
    return np.bincount(places, values, number).astype(np.float64)


def _ratio(upper: Floats, lower: Floats) -> NDArray[np.float64]:
    return np.asarray(np.divide(upper, lower, out=np.zeros_like(upper), where=lower > 1e-12))
