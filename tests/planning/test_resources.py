"""Which trainings share a program, and what they hold, told without features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daamctl.config import load_config
from daamctl.layout import Layout
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.resources import ResourceEstimate

NO_SEARCH = {"train.search": "none"}


def needs_of(project: Path, changes: dict[str, Any]) -> ResourceEstimate:
    config = load_config(project, "demo", {"train.device": "cpu", "method_settings": {}, **changes})
    return ResourceEstimate(ArtifactStatus(Layout.of(project, "demo", config), config))


@pytest.mark.parametrize(
    ("method", "layers", "changes", "members"),
    [
        ("none-mlp", None, NO_SEARCH, 5),
        ("none-mlp", None, {**NO_SEARCH, "train.seeds": [1, 2, 3]}, 15),
        ("none-mlp", None, {**NO_SEARCH, "train.seeds": list(range(1, 20))}, 20),  # their batches fill the caches
        ("none-mlp", 1, {**NO_SEARCH, "train.seeds": list(range(1, 20))}, 32),  # the most that one program holds
        ("none-mlp", None, {"train.search_lr": [0.001, 0.003]}, 10),  # two candidates of each fold
        ("none-mlp", 1, {"train.batch_folds": "never"}, 1),
        ("none-mlp", None, {"train.features": "stream"}, 1),
        ("none-mlp", None, {"train.batch_size": 80}, 1),  # more numbers in a batch than pays
        ("none-mlp", 1, {**NO_SEARCH, "train.batch_size": 80}, 5),
        ("daam-v1", None, {}, 1),  # convolutions
        ("ridge-mean", None, {}, 1),
    ],
)
def test_trainings_that_share_a_program(
    project: Path, method: str, layers: int | None, changes: dict[str, Any], members: int
) -> None:
    assert needs_of(project, changes).members(method, layers) == members


@pytest.mark.parametrize(
    ("method", "changes", "trainings"),
    [
        ("none-mlp", NO_SEARCH, 5),
        ("none-mlp", {"train.search_lr": [0.001, 0.003]}, 10),
        ("daam-v1", {"train.search_lr": [0.001, 0.003]}, 2),  # one fold at a time, with all its candidates
        ("daam-v1", NO_SEARCH, 1),
        ("ridge-mean", {}, 1),
    ],
)
def test_memory_counts_every_candidate_that_is_held(
    project: Path, method: str, changes: dict[str, Any], trainings: int
) -> None:
    needs = needs_of(project, changes)
    size, _ = needs.method(method)
    assert size is not None
    assert needs.trainings(method) == trainings
    each = 4 if method.startswith("ridge") else 16  # weights, and where steps are taken gradients and two means
    assert needs.state_bytes(method, size) == trainings * each * size.num_parameters
    beside = trainings - needs.members(method)
    assert needs.state_bytes(method, size, taken=1000) == 1000 + beside * each * size.num_parameters


def test_memory_of_a_kernel(project: Path) -> None:
    needs = needs_of(project, {})
    size, _ = needs.method("ridge-concat")
    assert size is not None
    clips = max(len(split.train) for split in needs.splits)
    assert needs.state_bytes("ridge-concat", size, taken=1000) == 1000 + 2 * 4 * clips**2
