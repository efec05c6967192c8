"""Perplexity with intervals over articles."""

from __future__ import annotations

import numpy as np
import pytest

from daamctl.evaluation.perplexity import perplexities, ratios


def test_perplexity_and_paired_ratio_on_planted_values() -> None:
    rng = np.random.default_rng(0)
    articles = np.repeat(np.arange(30), 40)
    base = rng.normal(2, 0.5, 1200) + np.repeat(rng.normal(0, 0.5, 30), 40)
    nll = {"last": base, "better": base - 0.1}
    found = perplexities(nll, articles)
    assert found["last"].value == pytest.approx(np.exp(base.mean()))
    low, high = found["last"].low, found["last"].high
    assert low is not None
    assert high is not None
    expected = 1.96 * np.std([base[articles == one].mean() for one in range(30)], ddof=1) / np.sqrt(30)
    assert np.log(high / low) / 2 == pytest.approx(expected, rel=0.15)
    ratio = ratios(nll, "last", articles)
    assert set(ratio) == {"better"}
    assert (ratio["better"].value, ratio["better"].low, ratio["better"].high) == pytest.approx([np.exp(-0.1)] * 3)


def test_one_article_has_no_interval() -> None:
    found = perplexities({"last": np.log([2.0, 8.0])}, ["a", "a"])["last"]
    assert found.value == pytest.approx(4)
    assert (found.low, found.high) == (None, None)
    assert ratios({"last": np.ones(2)}, "last", ["a", "a"]) == {}
