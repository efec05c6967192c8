"""Shapes in signatures are checked while tests run; without these tests the checks could be lost silently."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from daamctl.evaluation.importance import layer_contribution
from daamctl.fit.steps import focal_loss
from daamctl.methods import build
from daamctl.methods.daam import density_weights
from daamctl.methods.mixture import mixture_weights
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.shapes import CHECKED


def test_a_parameter_must_broadcast_with_the_input() -> None:
    x, variance = torch.randn(2, 8, 4), torch.ones(1, 4)
    assert density_weights(x, torch.zeros(1, 4), variance).shape == x.shape
    with pytest.raises(TypeCheckError, match="offset"):
        density_weights(x, torch.zeros(1, 5), variance)


def test_parameters_must_agree_on_their_axis() -> None:
    with pytest.raises(TypeCheckError, match="spreads"):
        mixture_weights(torch.randn(2, 8, 4), torch.zeros(3), torch.ones(2), dim=1)


def test_a_model_needs_three_axes() -> None:
    model = build("mean", num_layers=3, embed_dim=8, num_classes=2)
    with pytest.raises(TypeCheckError, match="B L D"):
        model(torch.randn(3, 8))


def test_rows_of_logits_and_targets_must_agree() -> None:
    with pytest.raises(TypeCheckError, match="targets"):
        focal_loss(torch.randn(4, 3), torch.zeros(1, dtype=torch.int64), gamma=2.0, alpha=1.0)


def test_arrays_are_checked_too() -> None:
    with pytest.raises(TypeCheckError, match="density"):
        layer_contribution(np.ones(4))


def test_shapes_stand_on_classes_not_aliases() -> None:
    """From NumPy 2.5 `NDArray[...]` is an alias, in which jaxtyping looks for no shape: nothing would be checked."""
    found = set()
    for path in (REPOSITORY / "daamctl").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping"]
        kinds = {alias.name for node in imports for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in kinds:
                assert isinstance(node.slice, ast.Tuple)
                found.add(ast.unparse(node.slice.elts[0]))
    assert found == {"Tensor", "np.ndarray"}


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_test_can_switch_the_check_off() -> None:
    with pytest.raises(ValueError, match="has shape"):
        layer_contribution(np.ones(4))


def test_every_module_of_the_list_exists_and_is_checked() -> None:
    for name in CHECKED:
        assert type(importlib.import_module(name).__spec__.loader).__name__ == "_JaxtypingLoader"


def test_production_checks_nothing() -> None:
    script = "import daamctl.methods.daam, sys; sys.exit('beartype' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
