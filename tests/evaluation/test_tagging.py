"""Entity scores of folds: documents as units where they are known, and differences over trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_rel

from daamctl.artifacts.results import Fold
from daamctl.artifacts.words import terms_for, word_id
from daamctl.evaluation.tagging import entities_of, over_trials

CLASSES = ["O", "B-X"]


@dataclass
class Trained:
    """What is read of a fold."""

    sources: list[str]
    wrong: int
    fold: int = 1
    seed: int = 1

    @property
    def result(self) -> dict[str, Any]:
        return {"run": {"classes": CLASSES}, "metrics": {}}

    def predictions(self) -> pl.DataFrame:
        """Sentences of two words, of which the first is an entity; the first ones are predicted wrong."""
        sentences = [f"s{number}" for number in range(len(self.sources))]
        guess = [int(position == 0 and at >= self.wrong) for at in range(len(sentences)) for position in (0, 1)]
        return pl.DataFrame(
            {
                "utterance_id": [word_id(name, position) for name in sentences for position in (0, 1)],
                "speaker": [source for source in self.sources for _ in (0, 1)],
                "target": [1, 0] * len(sentences),
                "logits": np.eye(2)[guess].tolist(),
            }
        )


@pytest.mark.parametrize(
    ("sources", "unit", "units"),
    [([f"s{number}" for number in range(12)], "sentence", 12), ([f"d{at // 3}" for at in range(12)], "document", 4)],
)
def test_documents_are_the_units_where_they_are_known(sources: list[str], unit: str, units: int) -> None:
    folds = {name: [cast(Fold, Trained(sources, wrong))] for name, wrong in (("a", 3), ("b", 6))}
    found = entities_of(folds, ["a", "b"], "b")
    assert found is not None
    assert (found.unit, found.sentences) == (unit, 12)
    assert found.methods["a"].f1.n_clusters == units
    assert found.methods["a"].f1.value == pytest.approx(2 * 9 / (12 + 9))
    primary = found.comparisons["a"].primary
    assert primary is not None
    assert (primary.unit, primary.n) == (unit, units)
    rows = Trained(sources, 0).predictions()
    assert terms_for("tokens", rows["utterance_id"], rows["speaker"]).source == unit
    assert terms_for("text", rows["utterance_id"], rows["speaker"]).source == "author"


def test_differences_over_trials_are_those_of_a_paired_t_test() -> None:
    one, two = [0.5, 0.6, 0.4], [0.4, 0.62, 0.1]
    mean, low, high, ahead = over_trials(one, two)
    expected = ttest_rel(one, two).confidence_interval(0.95)
    assert (mean, low, high, ahead) == pytest.approx((0.38 / 3, expected.low, expected.high, 2))
    with pytest.raises(ValueError, match="1 and 1 trials"):
        over_trials([0.5], [0.5])
