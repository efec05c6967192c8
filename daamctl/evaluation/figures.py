"""Figures by which `judge` ranks models besides accuracy: F1 over classes, and agreement of numbers.

Each is a function of sums over independent units, so `daamctl.evaluation.trials` gives its intervals and tests.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.data.sign_flip import Floats
from daamctl.data.spans import count_entities, sentence_of
from daamctl.data.task import Sums, Tagging, Task


class FigureOfSums(Task):
    """A task whose primary figure follows from the true and predicted answers of items."""

    @abstractmethod
    def item_sums(self, labels: Floats, predictions: Floats) -> tuple[Floats, Floats]:
        """What is summed over N items: of the labels alone, (A, N), and of a model, (K, N)."""

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Sums over units; see `Task`.

        Args:
            predictions: N items: unit, and label and prediction as numbers or as class ids, -1 for no class.
        """
        units, places = np.unique(predictions["unit"].to_numpy(), return_inverse=True)
        tables = self.item_sums(*(predictions[name].to_numpy().astype(np.float64) for name in ("label", "prediction")))
        given, own = (np.stack([_by_unit(row, places, len(units)) for row in table]) for table in tables)
        return Sums(self.source, units, given, own)


class MacroF1(FigureOfSums):
    """Mean of the F1 of the classes, as scikit-learn's `f1_score(average="macro")` over the classes of the labels."""

    primary: ClassVar[str] = "macro_f1"

    def item_sums(self, labels: Floats, predictions: Floats) -> tuple[Floats, Floats]:
        """Items that are of each class, that are called so, and those called so that are."""
        classes = np.arange(len(self.classes))[:, None]
        true, said = (classes == labels).astype(np.float64), (classes == predictions).astype(np.float64)
        return true, np.concatenate([said, true * said])

    def figure(self, sums: Floats) -> Floats:
        """See `Task`; a class that neither occurs in a sample nor is predicted there does not count."""
        true, said, right = np.split(sums, 3)
        f1 = np.divide(2 * right, true + said, out=np.zeros_like(right), where=true + said > 0)
        weights = self.weights(true, said)
        return np.asarray((f1 * weights).sum(0) / np.maximum(weights.sum(0), 1e-9))

    def weights(self, true: Floats, said: Floats) -> Floats:
        """What each class counts, (C, R)."""
        return (true + said > 0).astype(np.float64)

    def size(self, figure: float, given: Floats, trials: int) -> float:
        """As many items as would give the weighted mean over classes the same variance; see `Task`."""
        weights = self.weights(given, given)
        number = float(weights.sum() ** 2 / (weights**2 / np.maximum(given, 1)).sum())
        return number * trials if 0 < figure < 1 else number


class WeightedF1(MacroF1):
    """Mean of the F1 of the classes, each weighted by its number of labels."""

    primary: ClassVar[str] = "weighted_f1"

    def weights(self, true: Floats, said: Floats) -> Floats:
        """See `MacroF1`."""
        return true


class EntityF1(Tagging):
    """Micro-averaged F1 of entities, from the tags of words; see `Tagging`."""

    def sums(self, predictions: pl.DataFrame) -> Sums:
        """Sums over units; see `FigureOfSums`.

        Args:
            predictions: the words of every sentence in their order, also with item. The sentence is that of daamctl's
                names of words, or the unit.

        Raises:
            ValueError: a label is no tag, or the words of a sentence do not follow each other.
        """
        named = predictions.select("unit", "item", sentence=pl.Series(sentence_of(predictions["item"])))
        is_apart = named["sentence"].n_unique() == named.select("sentence", "unit").n_unique()
        units, sentences = (named[name].to_numpy() for name in ("unit", "sentence"))
        if not is_apart or (named["sentence"] == named["item"]).any():  # names of another kind
            sentences = units
        counts = count_entities(sentences, predictions["label"], predictions["prediction"], self.classes)
        return self.entity_sums(counts, self.source, dict(zip(sentences, units, strict=True)))


class Concordance(FigureOfSums):
    """Lin's concordance correlation coefficient (1989), with variances over N."""

    primary: ClassVar[str] = "ccc"

    def item_sums(self, labels: Floats, predictions: Floats) -> tuple[Floats, Floats]:
        """The sums of which means, variances and the covariance are made."""
        # in units of the labels' spread, so that rounding is small whatever their size
        y, p = ((values - labels.mean()) / labels.std() for values in (labels, predictions))
        return np.stack([np.ones_like(y), y, y * y]), np.stack([p, p * p, y * p])

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

    def agreement(self, y: Floats, p: Floats, var_y: Floats, var_p: Floats, covariance: Floats) -> Floats:
        """See `Concordance`."""
        return _ratio(covariance, np.sqrt(np.maximum(var_y, 0) * np.maximum(var_p, 0)))


class Determination(Concordance):
    """Coefficient of determination: 1 minus squared errors over squared distances of labels from their mean."""

    primary: ClassVar[str] = "r2"

    def agreement(self, y: Floats, p: Floats, var_y: Floats, var_p: Floats, covariance: Floats) -> Floats:
        """See `Concordance`."""
        return _ratio(2 * covariance - var_p - (y - p) ** 2, var_y)


FIGURES_OF_SUMS: dict[str, type[Task]] = {
    one.primary: one for one in (MacroF1, WeightedF1, EntityF1, Concordance, Correlation, Determination)
}


def _by_unit(values: Floats, places: NDArray[np.int64], number: int) -> Floats:
    return np.bincount(places, values, number).astype(np.float64)


def _ratio(upper: Floats, lower: Floats) -> NDArray[np.float64]:
    return np.asarray(np.divide(upper, lower, out=np.zeros_like(upper), where=lower > 1e-12))
