"""Which folds train together, told without features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daamctl.config import load_config
from daamctl.layout import Layout
from daamctl.planning.needs import Needs
from daamctl.planning.present import Present


@pytest.mark.parametrize(
    ("method", "layers", "changes", "members"),
    [
        ("none-mlp", None, {}, 5),
        ("none-mlp", None, {"train.seeds": [1, 2, 3, 4]}, 20),
        ("none-mlp", None, {"train.seeds": list(range(1, 20))}, 32),  # the most that one program holds
        ("none-mlp", 1, {"train.together": "never"}, 1),
        ("none-mlp", None, {"train.features": "stream"}, 1),
        ("none-mlp", None, {"train.batch_size": 80}, 1),  # more numbers in a batch than pays
        ("none-mlp", 1, {"train.batch_size": 80}, 5),
        ("daam-v1", None, {}, 1),  # convolutions
    ],
)
def test_folds_that_train_together(
    project: Path, method: str, layers: int | None, changes: dict[str, Any], members: int
) -> None:
    config = load_config(project, "demo", {"train.device": "cpu", "method_settings": {}, **changes})
    needs = Needs(Present(Layout.of(project, "demo", config), config))
    assert needs.members(method, layers) == members
