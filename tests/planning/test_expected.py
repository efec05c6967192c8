"""Sizes of methods, and how many trainings are held at once, known without features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.config import load_config
from daamctl.fit.trial import build_method
from daamctl.methods.probes import concat_bytes
from daamctl.planning.expected import Expected, MethodSize

NO_SEARCH = {"train.search": "none"}


def needs_of(project: Path, changes: dict[str, Any]) -> Expected:
    config = load_config(
        project, "demo", {"extract.encoder": "wavlm-micro", "train.device": "cpu", "method_settings": {}, **changes}
    )
    return Expected(Layout.of(project, "demo", config), config)


@pytest.mark.parametrize(
    ("method", "layers", "changes", "trainings"),
    [
        ("none-mlp", None, NO_SEARCH, 5),
        ("none-mlp", None, {**NO_SEARCH, "train.seeds": [1, 2, 3]}, 15),
        ("none-mlp", None, {**NO_SEARCH, "train.seeds": list(range(1, 20))}, 20),  # their batches fill the caches
        ("none-mlp", 1, {**NO_SEARCH, "train.seeds": list(range(1, 20))}, 64),  # the most in a stack
        ("none-mlp", None, {"train.search_lr": [0.001, 0.003]}, 10),  # two candidates of each fold
        ("none-mlp", 1, {**NO_SEARCH, "train.stack": "never"}, 1),
        ("none-mlp", None, {**NO_SEARCH, "train.features": "stream"}, 1),
        ("none-mlp", None, {**NO_SEARCH, "train.batch_size": 80}, 1),  # more numbers in a batch than pays
        ("none-mlp", 1, {**NO_SEARCH, "train.batch_size": 80}, 5),
        ("daam-v1", None, NO_SEARCH, 1),  # convolutions
        ("daam-v1", None, {"train.search_lr": [0.001, 0.003]}, 1),  # one after the other
        ("ridge-mean", None, {}, 1),
    ],
)
def test_models_that_training_holds_at_once(
    project: Path, method: str, layers: int | None, changes: dict[str, Any], trainings: int
) -> None:
    needs = needs_of(project, changes)
    assert needs.models_at_once(method, layers) == trainings
    size, _ = needs.method(method, layers)
    assert size is not None
    each = 4 if method.startswith("ridge") else 16  # weights, and where steps are taken gradients and two means
    assert needs.state_bytes(method, size, layers) == trainings * each * size.num_parameters


def test_memory_of_a_kernel(project: Path) -> None:
    needs = needs_of(project, {})
    size, _ = needs.method("ridge-concat")
    assert size is not None
    clips = max(len(split.train) for split in needs.splits)
    assert needs.state_bytes("ridge-concat", size) == 4 * size.num_parameters + 2 * 4 * clips**2
    features = 6 * 384  # fewer than clips; the layers are held if they are not too large
    assert concat_bytes(50_000, 6, 384) == 4 * (2 * features**2 + 50_000 * features)
    assert concat_bytes(0, 6, 384) == 0  # not known yet
    assert concat_bytes(500_000, 6, 384) == 4 * 2 * features**2
    reduced = 24 * (12_000 // 24)  # components of 24 layers, and these of all clips
    assert concat_bytes(40_000, 24, 1024) == 4 * (2 * reduced**2 + 40_000 * reduced)


@pytest.mark.parametrize(
    ("method", "density", "scored"), [("none", False, False), ("weighted-sum", False, True), ("daam-v2", True, True)]
)
def test_size_of_a_method_is_that_of_the_built_one(project: Path, method: str, density: bool, scored: bool) -> None:
    needs = needs_of(project, {})
    found, problem = needs.method(method)
    assert (found is not None, problem) == (True, None)
    assert needs.sizes is not None
    built = build_method(method, needs.config, *needs.sizes)
    assert found == MethodSize(sum(value.numel() for value in built.state_dict().values()), density, scored)


def test_method_that_does_not_fit_has_no_size(project: Path) -> None:
    size, problem = needs_of(project, {"method_settings.daam-v1.num_heads": 7}).method("daam-v1")
    assert size is None
    assert problem is not None
    assert problem.reason.startswith("daam-v1: num_heads (7) must divide the number of layers (24)")
