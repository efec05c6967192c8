"""The scores of constant predictions."""

import numpy as np
import pytest

from daamctl.data.task import task_of


def test_chance():
    result = task_of("speech", ["calm", "angry", "sad"]).chance(np.array([0, 1, 1, 1]))
    assert result is not None
    assert (result.majority_class, result.majority_fraction) == ("angry", 0.75)
    assert result.uniform_fraction == pytest.approx(1 / 2)  # balanced accuracy is over the classes that have items
    assert result.uniform_log_loss == pytest.approx(np.log(3))
    assert result.share_log_loss == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert result.per_class == {"calm": 1, "angry": 3, "sad": 0}
    assert task_of("speech").chance(np.array([0.5])) is None
