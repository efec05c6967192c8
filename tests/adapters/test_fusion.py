"""Fusions and further layers between a fine-tuned encoder and its classifier (docs/sources.md#token-tasks)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daamctl.adapters import FINETUNES, build_finetune
from daamctl.adapters.base import visible_positions
from daamctl.adapters.fusion import FusedLayers
from daamctl.errors import MethodError
from daamctl.methods.base_plus_n import TokenLayers
from daamctl.methods.concat import ConcatLinear
from daamctl.methods.dwatt import DepthWiseAttention
from tests.fixtures.tiny_models import batch, tiny

NAMES = [name for name in FINETUNES if FINETUNES.module_of(name) == "daamctl.adapters.fusion"]
TAGGERS = ("bert", "llama")


def sentences(*lengths: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A batch of sentences of one token a word, padded, from fixed ids."""
    longest = max(lengths)
    ids = torch.arange(1, 1 + longest).expand(len(lengths), longest)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    mask = torch.diag_embed(real)  # (B, W, T)
    return {"input_ids": torch.where(real, ids, 0), "attention_mask": real.long()}, mask


@pytest.mark.parametrize("architecture", TAGGERS)
@pytest.mark.parametrize("name", NAMES)
def test_padding_and_other_sentences_have_no_effect(name: str, architecture: str) -> None:
    encoder = tiny(architecture)
    encoder.modality = "tokens"
    model = build_finetune(name, encoder, num_classes=3, seed=0).eval()
    for value in model.before_head.parameters():  # type: ignore[union-attr]
        nn.init.normal_(value, std=0.2)
    with torch.no_grad():
        alone, padded = model(*sentences(4)), model(*sentences(4, 9))
    torch.testing.assert_close(padded[:4], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ["wavlm", "beit", "whisper"])
@pytest.mark.parametrize("name", NAMES)
def test_every_modality_has_them(name: str, architecture: str) -> None:
    encoder = tiny(architecture)
    model = build_finetune(name, encoder, num_classes=3, seed=0)
    loss = model(*batch(encoder)).square().sum()
    within = [value for key, value in model.named_parameters() if key.startswith("before_head.")]
    assert all(grad is not None for grad in torch.autograd.grad(loss, within, allow_unused=True))


def test_layers_on_top_see_the_class_token_of_an_image() -> None:
    """Which the mean of the patches leaves out."""
    encoder = tiny("beit")
    model = build_finetune("base-plus-1", encoder, num_classes=3, seed=0).eval()
    inputs, mask = batch(encoder)
    states = [state.detach() for state in encoder.hidden_layers(inputs)]
    changed = [state.clone() for state in states]
    changed[-1][:, 0] += torch.randn(states[-1].shape[-1])
    assert not mask[:, 0].any()
    one, other = (
        model.before_head(given, visible_positions(inputs, mask, mask.shape[1])) for given in (states, changed)
    )
    assert not torch.allclose(one[:, 1:], other[:, 1:])


@pytest.mark.parametrize("name", ["full-finetune-weighted-sum", "full-finetune-concat", "full-finetune-dwatt"])
def test_every_layer_is_trained_through_the_fusion(name: str) -> None:
    """Without the last layer's path, layer 1 still gets a gradient from the fusion."""
    encoder = tiny("bert")
    model = build_finetune(name, encoder, num_classes=3, seed=0)
    states: list[torch.Tensor] = []
    given = encoder.hidden_layers

    def kept(inputs):
        states.extend(state.detach().requires_grad_() for state in given(inputs))
        return states

    encoder.hidden_layers = kept
    model(*batch(encoder)).square().sum().backward()
    assert len(states) == encoder.model.config.num_hidden_layers
    assert all(state.grad.count_nonzero() for state in states)


@pytest.mark.parametrize("architecture", ["wavlm", "whisper"])
def test_no_layer_is_dropped_that_the_fusion_needs(architecture: str) -> None:
    encoder = tiny(architecture)
    for module in encoder.model.modules():
        if hasattr(module, "config"):
            module.config.layerdrop = module.config.encoder_layerdrop = 1.0
        if hasattr(module, "layerdrop"):
            module.layerdrop = 1.0
    model = build_finetune("full-finetune-concat", encoder, num_classes=3, seed=0)
    model.train_mode(encoder_dropout=True)
    assert model(*batch(encoder)).isfinite().all()


def test_a_frozen_encoder_stays_as_it_is() -> None:
    encoder = tiny("bert")
    before = copy.deepcopy(encoder.model.state_dict())
    model = build_finetune("base-plus-2", encoder, num_classes=3, seed=0)
    assert {name.split(".")[0] for name in model.trained()} == {"before_head", "head"}
    optimizer = torch.optim.AdamW(model.parameter_groups(1e-2, 0.0))
    model(*batch(encoder)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in encoder.model.state_dict().items())


def test_parameters_are_those_of_the_paper() -> None:
    """24 layers of width 1024; docs/sources.md#depth-wise-attention says what it prints beside them."""
    with torch.device("meta"):
        counts = [
            sum(value.numel() for value in module.parameters())
            for module in (
                TokenLayers(embed_dim=1024, num_extra_layers=2, num_heads=16),
                ConcatLinear(num_layers=24, embed_dim=1024),
                FusedLayers(DepthWiseAttention(num_layers=24, embed_dim=1024)),
            )
        ]
    assert counts == [25_192_448, 25_166_848, 26_353_152]


@pytest.mark.parametrize(
    ("config", "name", "lacking"),
    [
        ({"num_hidden_layers": 3}, "base-plus-1", "how many attention heads its layers have"),
        ({"num_attention_heads": [1, 2, 4]}, "base-plus-1", "how many attention heads its layers have"),  # as Swin's
        ({"num_attention_heads": 2}, "full-finetune-concat", "how many layers it has"),
    ],
)
def test_an_encoder_that_hides_its_shape_is_refused(config: dict[str, Any], name: str, lacking: str) -> None:
    encoder = tiny("bert")
    encoder.model.config = type("Config", (), config)()
    with pytest.raises(MethodError, match=f"{name}: BertModel does not say {lacking}"):
        build_finetune(name, encoder, num_classes=3, seed=0)
