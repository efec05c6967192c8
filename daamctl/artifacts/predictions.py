"""Predictions that any tool made, and the verdict on several of them (`daamctl judge`). Scores are fractions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from daamctl.artifacts.scores import Compared, tie_tiers
from daamctl.artifacts.statistics import Design, Interval, NonInferiority

NUMBERS = ("ccc", "pearson", "spearman", "r2")
"""Figures of predictions that are numbers."""
SCORED = ("auroc", "eer_accuracy", "average_precision")
"""Figures of scores of two classes."""
COUNTED = "counted_accuracy"
"""The figure of errors that a scorer has counted."""
VALUED = (MEAN, LOSS) = ("mean", "mean_loss")
"""Figures of what every item scores, on any scale: the mean of what is the better the more, and the less."""
SETS = ("multilabel_f1", "multilabel_macro_f1")
"""Figures of items that may have several labels, or none."""
SEPARATOR, NO_LABELS = ";", "(none)"
"""Between the labels of such an item, and what stands for none."""
ERRORS = {
    **dict.fromkeys(SETS, "wrong labels"),
    "word_accuracy": "word errors",
    "character_accuracy": "character errors",
    COUNTED: "errors",
    **dict.fromkeys(NUMBERS, "absolute errors"),
    **dict.fromkeys(SCORED, "shares of the other class on the wrong side"),
    MEAN: "scores",
    LOSS: "losses",
}
"""Figures for which items have errors, or scores, not a share of repeats that are right -> what these are."""
ROWS: dict[str, Any] = {
    "item": pl.String(), "label": pl.String(), "prediction": pl.String(), "correct": pl.Float64(),
    "group": pl.String(), "fold": pl.String(), "seed": pl.String(), "score": pl.Float64(),
    "sentence": pl.String(),
}  # fmt: skip
"""Columns of `Predictions.rows`. correct: 1 right, 0 wrong, or the score of an item, between 0 and 1; null where
labels and predictions are numbers. score: of the second of two classes (`in_order`) minus that of the first. sentence:
of a tagged word, where a column tells it."""


def in_order(classes: Iterable[str]) -> list[str]:
    """Names of classes, numbers by their size."""

    def key(name: str) -> tuple[float, str]:
        try:
            number = float(name)
        except ValueError:
            return 0.0, name
        return (0.0 if math.isnan(number) else number), name  # nan may be what a class is called

    return sorted(classes, key=key)


@dataclass(frozen=True)
class Predictions:
    """Predictions of one model.

    Args:
        name: of the model: the name of its file.
        tool: what wrote the file, or "table".
        rows: one row per item, fold and seed, in the columns of `ROWS`; unknown values are null.
        group: name of the column that says which items are not independent, e.g. "speaker"; None if there is none.
        by_order: whether items have no names, so that they are known by their order.
        notes: for the reader of the results.
    """

    name: str
    tool: str
    rows: pl.DataFrame
    group: str | None
    by_order: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Models compared in pairs, the better one first.

    Args:
        models: names, best first.
        values: metric -> model -> its score over all items.
        intervals: model -> metric -> interval; empty without a test.
        metric: which ranks the models.
        pairs: every pair in every metric.
        needed: number of units with which a difference like that of the best two is detected with 80 % power; None if
            it is significant already, or there is no difference or test.
        not_worse: model -> test that it is less than a margin worse than the first file; empty without a margin.
        items: item, group and label of every item, and for every model the share of its repeats that are right, or the
            error, see `ERRORS`.
        sentences: what it says, for people; notebooks show them.
    """

    models: list[str]
    values: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, Interval]] = field(repr=False)  # notebooks print the rest
    metric: str
    pairs: list[Compared] = field(repr=False)
    needed: int | None
    not_worse: dict[str, NonInferiority] = field(repr=False)
    margin: float | None
    design: Design = field(repr=False)
    items: pl.DataFrame = field(repr=False)
    notes: list[str]
    sentences: Sequence[str] = field(default=(), repr=False)

    def __str__(self) -> str:
        """The sentences and notes, a line each."""
        return "\n".join([*self.sentences, *(f"- {note}" for note in self.notes)]) if self.sentences else repr(self)

    def _repr_markdown_(self) -> str | None:
        """The same for a notebook."""
        return "  \n".join(self.sentences).replace("*", "\\*").replace("_", "\\_") if self.sentences else None

    def pair(self, first: str, second: str, metric: str | None = None) -> Compared:
        """The comparison of two models: first minus second."""
        found = next(
            one
            for one in self.pairs
            if {one.first, one.second} == {first, second} and one.metric == (metric or self.metric)
        )
        return found if found.first == first else found.turned()

    @property
    def p_of_lead(self) -> float | None:
        """The p-value of the first model against the second, corrected as in `tie_tiers`; None without a test."""
        p = self.pair(*self.models[:2]).p
        return None if p is None else min(1.0, p * (len(self.models) - 1))

    @property
    def tiers(self) -> list[list[str]]:
        """Models in tiers (`tie_tiers`)."""
        return tie_tiers([one for one in self.pairs if one.metric == self.metric])

    @property
    def metrics(self) -> list[str]:
        """Metrics in which the models are compared."""
        return list(self.values)

    def by(self, column: str, first: str, second: str) -> pl.DataFrame:
        """Wins, losses and mean difference of a pair within each label or group; the largest difference first."""
        gap = pl.col(first) - pl.col(second)
        won, lost = only_right(first, second, self.metric)
        columns = [
            pl.len().alias("items"),
            won.sum().alias("wins"),
            lost.sum().alias("losses"),
            gap.mean().alias("difference"),
            gap.sum().alias("sum"),
        ]
        found = self.items.drop_nulls(column).group_by(column).agg(columns)
        return found.sort(pl.col("sum").abs(), column, descending=[True, False])

    def deciding(self, first: str, second: str, most: int = 10) -> pl.DataFrame:
        """Items that only one of two models gets right, those with the most agreement among repeats first."""
        gap = (pl.col(first) - pl.col(second)).alias("difference")
        rows = self.items.select("item", "group", "label", first, second, gap).filter(pl.col("difference") != 0)
        number = pl.col("item").cast(pl.Int64, strict=False)  # 2 before 10
        return rows.sort(pl.col("difference").abs(), number, "item", descending=[True, False, False]).head(most)

    def as_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {
            "models": [
                {"model": name, "tier": self.tier(name), self.metric: self.values[self.metric][name]}
                | {metric: _ends(one) for metric, one in self.intervals.get(name, {}).items()}
                for name in self.models
            ],
            "metric": self.metric,
            "pairs": [vars(one) for one in self.pairs],
            "tiers": self.tiers,
            "units_needed": self.needed,
            "margin": self.margin,
            "not_worse": {name: one._asdict() for name, one in self.not_worse.items()},
            "design": vars(self.design),
            "items": self.items.to_dicts(),
            "notes": self.notes,
        }

    def tier(self, model: str) -> int:
        """Number of the tier of a model, from 1."""
        return next(number for number, tier in enumerate(self.tiers, 1) if model in tier)


def only_right(first: str, second: str, metric: str) -> tuple[pl.Expr, pl.Expr]:
    """Whether only one model is right, and only the other; or has the smaller error, or the higher score."""
    if metric in ERRORS:
        lower, higher = pl.col(first) < pl.col(second), pl.col(second) < pl.col(first)
        return (higher, lower) if metric == MEAN else (lower, higher)
    right, other = pl.col(first) > 0.5, pl.col(second) > 0.5  # half of the repeats are not enough
    return right & ~other, other & ~right


def _ends(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
