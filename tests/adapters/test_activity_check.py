"""The check that adapters act."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import nn

from daamctl.adapters import Effect, check_effect
from daamctl.errors import TrainingError
from tests.adapters.test_base import COMBINATIONS, PUBLISHED, TARGETS, copies, make, moved

CRITERION = nn.functional.cross_entropy


@pytest.mark.parametrize(("name", "architecture"), COMBINATIONS)
def test_every_tensor_acts_and_all_is_restored(name: str, architecture: str) -> None:
    model, inputs, mask = make(name, architecture)
    model.train_mode(encoder_dropout=True)
    before, modes = copies(model), [module.training for module in model.modules()]
    effect = check_effect(model, inputs, mask, TARGETS, CRITERION)
    assert moved(before, model) == set()
    assert [module.training for module in model.modules()] == modes
    assert all(value.grad is None for value in model.parameters())
    within = [key for key in model.trained() if key.startswith("model.")]
    assert effect.tensors == len(within)
    if name in ("linear-probe", "base-plus-1", "base-plus-2"):  # frozen
        assert effect == Effect(0, 0, 0.0, ())
    elif name in PUBLISHED and architecture == "wavlm":
        assert effect == Effect(8, 0, 0.0, tuple(within))
    else:
        assert effect.with_gradient == effect.tensors > 0
        assert effect.output_change > 1e-5
        assert effect.silent == ()
        assert len(model.adapted) > 0
    assert set(asdict(effect)) == {"tensors", "with_gradient", "output_change", "silent"}


@pytest.mark.parametrize("name", ["lora-r8", "dora-r8", "ia3", "rslora-r8"])
def test_adapters_that_are_bypassed_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """WavLM as transformers has it: nothing attached to its projections acts (D2)."""
    monkeypatch.setattr("daamctl.adapters.inject.call_projections", lambda model: ())
    model, inputs, mask = make(name, "wavlm")
    before = copies(model)
    with pytest.raises(TrainingError, match=f"{name} does not act on WavLMModel: .* tensors have no gradient, first"):
        check_effect(model, inputs, mask, TARGETS, CRITERION)
    assert moved(before, model) == set()


def test_adapters_that_can_never_start_are_refused() -> None:
    model, inputs, mask = make("lora-r8", "bert")
    for key, value in model.trained().items():
        if "lora_A" in key:
            nn.init.zeros_(value)  # as B is: neither gets a gradient, for ever
    with pytest.raises(TrainingError, match="0 have one at the start"):
        check_effect(model, inputs, mask, TARGETS, CRITERION)


def test_own_weights_may_be_silent_in_part() -> None:
    model, inputs, mask = make("full-finetune", "bert")
    model.model.add_module("spare", nn.Linear(2, 2))
    model._idle = None
    model.added = ()
    effect = check_effect(model, inputs, mask, TARGETS, CRITERION)
    assert effect.silent == ("model.spare.weight", "model.spare.bias")
    assert effect.with_gradient == effect.tensors - 2


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_acts_under_autocast_too(precision: torch.dtype) -> None:
    """Autocast keeps half-precision copies of the weights, which must not outlive the noise."""
    model, inputs, mask = make("lora-r8", "wav2vec2")
    with torch.autocast("cpu", precision):
        expected = model(inputs, mask)
        effect = check_effect(model, inputs, mask, TARGETS, CRITERION)
        assert torch.equal(model(inputs, mask), expected)
    assert effect.with_gradient == effect.tensors
    assert effect.output_change > 1e-3
