"""A settled model gives what it gave before."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from daamctl.config import ExtractConfig
from daamctl.encoders.base import CPU_WORK, Encoder
from daamctl.encoders.frozen import CAST, prepare_for_inference
from daamctl.encoders.load import open_encoder

ENCODERS = {"wavlm-micro": "speech", "llama-micro": "text", "beit-micro": "image"}


def opened(name: str, precision: str) -> Encoder:
    settings = ExtractConfig(encoder=name)
    encoder = open_encoder(
        settings,
        modality=ENCODERS[name],  # type: ignore[arg-type]
        max_duration_s=5.0,
        device="cpu",
        precision=precision,
    ).encoder
    assert isinstance(encoder, Encoder)
    return encoder


def items(name: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if name == "llama-micro":
        return [torch.randint(3, 200, (size,), generator=generator) for size in (9, 16)]
    if name == "beit-micro":
        return [torch.randn(3, 32, 32, generator=generator) for _ in range(2)]
    return [torch.randn(size, generator=generator) for size in (9000, 16000)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama-micro", "beit-micro"])
def test_vectors_stay_bit_for_bit(name: str, precision: str) -> None:
    encoder = opened(name, precision)
    batch = items(name)
    before = encoder.pool(batch)[0]
    encoder.prepare_for_inference()
    assert torch.equal(encoder.pool(batch)[0], before)
    assert encoder.model.training is False
    held = {value.dtype for module in encoder.model.modules() if isinstance(module, CAST)
            for value in module.parameters(recurse=False)}  # fmt: skip
    assert held == {getattr(torch, precision)}
    encoder.prepare_for_inference()
    assert torch.equal(encoder.pool(batch)[0], before)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_wavlm_stays_equal_but_for_rounding(precision: str, tolerance: float) -> None:
    encoder, batch = opened("wavlm-micro", precision), items("wavlm-micro")
    before, n_frames = encoder.pool(batch)
    encoder.prepare_for_inference()
    after, same = encoder.pool(batch)
    assert (after - before).norm() <= tolerance * before.norm()
    assert torch.equal(n_frames, same)
    assert not any("parametrizations" in name for name, _ in encoder.model.named_parameters())


def test_wavlm_casts_the_input_of_an_attention_once() -> None:
    """Not for each of the four projections that read it; the bits stay the same."""
    encoder, batch = opened("wavlm-micro", "bfloat16"), items("wavlm-micro")
    encoder.prepare_for_inference()
    encoder.prepare_for_inference()
    for module in encoder.model.modules():
        if isinstance(module, nn.LayerNorm):  # on a GPU, autocast computes it in float32
            module.register_forward_hook(lambda _, __, output: output.float())
    plain = deepcopy(encoder)
    attentions = [layer.attention for layer in plain.model.encoder.layers]
    for attention in attentions:
        assert len(attention._forward_pre_hooks) == 1
        attention._forward_pre_hooks.clear()
    seen: list[bool] = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default):
                seen.append((args[0].dtype, made.dtype) == (torch.float32, torch.bfloat16))
            return made

    found, casts = [], []
    for one in (encoder, plain):
        seen.clear()
        with Casts():
            found.append(one.pool(batch)[0])
        casts.append(sum(seen))
    assert torch.equal(*found)
    assert casts[1] - casts[0] == 3 * len(attentions)


def test_a_cpu_is_given_no_more_than_keeps_it_busy() -> None:
    encoder = opened("wavlm-micro", "float32")
    assert encoder.max_useful_batch(16000) == CPU_WORK // 64**2 // 49  # tiny: thousands of clips of 49 frames
    encoder.embed_dim = 1024
    assert encoder.max_useful_batch(16000) == 5  # 286 frames
    assert encoder.max_useful_batch(80000) == 1
    encoder.embed_dim = 5120
    assert encoder.max_useful_batch(16000) == 5  # so many positions at least as make up for reading the weights
    encoder.device = "cuda"
    assert encoder.max_useful_batch(16000) > 10**9


def test_norms_and_embeddings_keep_their_precision() -> None:
    model = nn.Sequential(nn.Embedding(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    prepare_for_inference(model, "bfloat16")
    kinds = [value.dtype for value in model.parameters()]
    assert kinds == [torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


def test_weight_norm_is_computed_once() -> None:
    model, x = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3), dim=2)), torch.randn(2, 4, 9)
    before = model(x)
    prepare_for_inference(model, "float32")
    assert [name for name, _ in model.named_parameters()] == ["0.bias", "0.weight"]
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("channels", [4, 12, 16])
def test_grouped_convolutions_are_right_in_bfloat16(channels: int) -> None:
    """On AMX processors oneDNN gets groups of 4 to 15 channels wrong by as much as the numbers themselves."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv1d(2 * channels, 2 * channels, 16, groups=2)), torch.randn(2, 2 * channels, 200)
    expected = model(x)
    prepare_for_inference(model, "bfloat16")
    prepare_for_inference(model, "bfloat16")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = deepcopy(model)(x)
    assert found.dtype == (torch.bfloat16 if channels == 16 else torch.float32)
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0.03)
