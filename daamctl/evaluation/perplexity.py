"""Perplexity of masked tokens with intervals over articles, and paired ratios to a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daamctl.evaluation.engine import mean_intervals


@dataclass(frozen=True)
class Figure:
    """A perplexity, or the ratio of two; `low` and `high` are None with fewer than two articles."""

    value: float
    low: float | None
    high: float | None


def perplexities(nll: Mapping[str, NDArray[np.float64]], articles: ArrayLike) -> dict[str, Figure]:
    """Exp of the mean negative log-likelihood, with a 95 % interval over whole articles.

    exp is monotone, so it maps the ends of the interval of the mean to those of the perplexity.

    Args:
        nll: way -> one value per masked token, in nats, (N,).
        articles: article of each token, (N,).
    """
    return _figures(nll, articles)


def ratios(nll: Mapping[str, NDArray[np.float64]], reference: str, articles: ArrayLike) -> dict[str, Figure]:
    """Perplexity of every other way divided by that of the reference: exp of the mean paired difference.

    Args:
        nll: as for `perplexities`.
        reference: one of the ways.
        articles: article of each token, (N,).
    """
    return _figures({name: values - nll[reference] for name, values in nll.items() if name != reference}, articles)


def _figures(values: Mapping[str, NDArray[np.float64]], articles: ArrayLike) -> dict[str, Figure]:
    if not values:
        return {}
    table = np.stack(list(values.values()))
    if len(np.unique(np.asarray(articles))) < 2:
        return {name: Figure(float(np.exp(mean)), None, None) for name, mean in zip(values, table.mean(1), strict=True)}
    return {
        name: Figure(*(float(np.exp(end)) for end in (one.value, one.low, one.high)))
        for name, one in zip(values, mean_intervals(table, articles), strict=True)
    }
