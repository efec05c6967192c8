"""WavLM's attention by its modules, and attention with a prefix, against what they stand for."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import transformers
from peft.tuners.lora import LoraLayer
from torch import nn

from daamctl.adapters import FINETUNES, build_finetune
from daamctl.compute import attention as attention_module
from daamctl.compute.attention import attend, call_projections, gate_bias_once, read_projections
from tests.fixtures.tiny_models import Tiny, batch, tiny


@pytest.mark.parametrize("architecture", ["wavlm", "wavlm-base"])
@pytest.mark.parametrize("masked", [True, False])
def test_called_projections_give_the_same_numbers(architecture: str, masked: bool) -> None:
    plain, fixed = tiny(architecture), tiny(architecture)
    inputs, mask = batch(plain)
    if not masked:
        inputs.pop("attention_mask")
    calls = []
    for name, module in fixed.model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(lambda *_: calls.append(0))
    fixed.hidden(inputs)
    assert len(calls) == 0  # why the fix is needed (D2)
    assert len(call_projections(fixed.model)) == 1
    for encoder in (plain, fixed):
        encoder.model.requires_grad_(True)
    first, second = plain.hidden(inputs), fixed.hidden(inputs)
    assert len(calls) == 2 * 4  # q, k, v, out in each of two layers
    assert (first - second).abs().max() <= 1e-5
    assert fixed.model.state_dict().keys() == plain.model.state_dict().keys()
    weights = torch.randn(first.shape, generator=torch.Generator().manual_seed(1)) * mask[..., None]
    for output in (first, second):
        (output * weights).sum().backward()
    met = 0
    for (name, value), other in zip(plain.model.named_parameters(), fixed.model.parameters(), strict=True):
        if value.grad is not None and "k_proj.bias" not in name:
            assert torch.allclose(value.grad, other.grad, rtol=1e-3, atol=1e-3), name
            met += 1
    assert met > 40


MENDED = (
    f"transformers {transformers.__version__} calls the projections of WavLM's attention itself "
    "(huggingface/transformers#48773): remove call_projections and read_projections from "
    "daamctl/compute/attention.py, adapt gate_bias_once, and keep deviation D2 for the version that the paper's code "
    "used"
)
RENAMED = (
    f"transformers {transformers.__version__} has renamed the method that daamctl/compute/attention.py replaces: "
    "fine-tuned WavLM would silently train no adapter (D2)"
)


def with_lora(encoder: Tiny) -> Any:
    """The model with an adapter of peft on each projection of its attention, none of them zero."""
    names = ["q_proj", "k_proj", "v_proj", "out_proj"]
    model: Any = peft.inject_adapter_in_model(
        peft.LoraConfig(r=2, lora_alpha=2, target_modules=names), encoder.model, adapter_name="default"
    )
    generator = torch.Generator().manual_seed(0)
    for name, value in model.named_parameters():
        if "lora_" in name:
            value.data = 0.3 * torch.randn(value.shape, generator=generator)
    return model.eval()


def test_transformers_has_not_mended_wavlm_itself() -> None:
    """Fails with what to do once it has; our replacement is then needless."""
    encoder = tiny("wavlm")
    attention = encoder.model.encoder.layers[0].attention
    assert hasattr(attention, attention_module._BYPASSING), RENAMED
    model = with_lora(encoder).requires_grad_(True)
    encoder.hidden(batch(encoder)[0]).sum().backward()
    without = [value.grad is None for name, value in model.named_parameters() if "lora_" in name]
    assert len(without) == 2 * 4 * 2  # A and B of four projections in two layers
    assert all(without), MENDED


def test_an_adapter_acts_once() -> None:
    """Ours and, if it comes, the mend of transformers must not both add it: as with the adapter merged."""
    fixed, merged = tiny("wavlm"), tiny("wavlm")
    inputs, _ = batch(fixed)
    before = merged.hidden(dict(inputs))
    call_projections(fixed.model)
    call_projections(fixed.model)
    with_lora(fixed)
    found = fixed.hidden(dict(inputs))
    for module in with_lora(merged).modules():
        if isinstance(module, LoraLayer):
            module.merge()  # into the weights, which the attention reads
    expected = merged.hidden(dict(inputs))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (expected - before).abs().max() > 0.01


@pytest.mark.parametrize("architecture", ["wavlm", "wavlm-base"])
def test_read_projections_give_the_same_numbers_and_are_not_called(architecture: str) -> None:
    plain, fast = tiny(architecture), tiny(architecture)
    inputs, mask = batch(plain)
    calls = []
    for name, module in fast.model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(lambda *_: calls.append(0))
    read_projections(fast.model)
    for encoder in (plain, fast):
        encoder.model.requires_grad_(True)
    first, second = plain.hidden(inputs), fast.hidden(inputs)
    assert calls == []  # or the published adapters would act (D2)
    assert (first - second).abs().max() <= 1e-5
    assert not torch.equal(first, second)  # it is another way
    for output in (first, second):
        (output * mask[..., None]).square().sum().backward()
    for (name, value), other in zip(plain.model.named_parameters(), fast.model.parameters(), strict=True):
        if value.grad is not None and "k_proj.bias" not in name:
            assert torch.allclose(value.grad, other.grad, rtol=1e-3, atol=1e-3), name


@pytest.mark.parametrize("name", [name for name in FINETUNES if name != "prompt-tuning"])
def test_fine_tuned_wavlm_is_evaluated_as_before_but_for_rounding(name: str) -> None:
    """No attention bypasses its modules in the slow way, and where adapters act they go on to."""
    encoder = tiny("wavlm")
    inputs, mask = batch(encoder)
    model = build_finetune(name, encoder, num_classes=3, seed=1).eval()
    attentions = [layer.attention for layer in encoder.model.encoder.layers]
    ways = {vars(attention)["torch_multi_head_self_attention"].__name__ for attention in attentions}
    with torch.no_grad():
        for key, value in model.trained().items():
            if key.startswith("model."):
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(0)) * 0.05)
        ours = model(inputs, mask)
        if ways == {"_bypassing_attention"}:
            for attention in attentions:
                del attention.torch_multi_head_self_attention
            torch.testing.assert_close(ours, model(inputs, mask), atol=1e-5, rtol=1e-5)
        else:
            assert ways == {"_called_attention"}
            assert name.startswith(("lora", "rslora", "dora", "ia3", "prefix"))
            assert not model.published


@pytest.mark.parametrize("architecture", ["wavlm", "wavlm-base"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_bias_that_is_gated_once_gives_equal_bits(architecture: str, masked: bool, precision: str) -> None:
    plain, lean = tiny(architecture), tiny(architecture)
    inputs, _ = batch(plain)
    if not masked:
        inputs.pop("attention_mask")
    for encoder in (plain, lean):
        call_projections(encoder.model)
    gate_bias_once(lean.model)
    gate_bias_once(lean.model)  # a second call changes nothing
    copied = copy.deepcopy(lean)  # has its own attention
    for value in copied.model.parameters():
        value.zero_()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        expected = plain.hidden(dict(inputs))
        assert torch.equal(lean.hidden(dict(inputs)), expected)
        assert expected.count_nonzero() > 0


def test_the_gated_bias_is_written_once_and_in_aligned_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny("wavlm")
    call_projections(encoder.model)
    gate_bias_once(encoder.model)
    inputs, mask = batch(encoder)
    biases = []

    def kept(module, query, key, value, bias, **settings):
        biases.append(bias)
        return attend(module, query, key, value, bias, **settings)

    monkeypatch.setattr("daamctl.compute.attention.attend", kept)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        encoder.hidden(inputs)
    for bias in biases:
        assert bias.dtype == torch.bfloat16
        assert bias.shape[0] == len(mask)
        assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
        assert bias.shape[-1] % 8 != 0  # so there is something to align
    assert len(biases) == 2


def test_fix_is_of_the_instance_and_survives_a_copy() -> None:
    fixed, other = tiny("wavlm"), tiny("wavlm")
    call_projections(fixed.model)
    attention = copy.deepcopy(fixed.model).encoder.layers[0].attention
    assert attention.torch_multi_head_self_attention.__self__ is attention
    assert "torch_multi_head_self_attention" not in vars(other.model.encoder.layers[0].attention)
    assert call_projections(tiny("hubert").model) == ()


def test_dropout_of_the_attention_stays() -> None:
    encoder = tiny("wavlm")
    call_projections(encoder.model)
    inputs, _ = batch(encoder)
    attention = encoder.model.encoder.layers[0].attention
    attention.dropout = 0.5
    assert torch.equal(encoder.hidden(inputs), encoder.hidden(inputs))
    attention.train()
    assert not torch.equal(encoder.hidden(inputs), encoder.hidden(inputs))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "bias"])
@pytest.mark.parametrize("groups", [1, 2])
def test_prefix_is_seen_by_all_and_hides_nothing(causal: bool, mask: str, groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    batch_size, heads, time, size, length = 2, 4, 5, 3, 2
    query = torch.randn(batch_size, heads, time, size, generator=generator)
    key, value = torch.randn(2, batch_size, heads // groups, time, size, generator=generator)
    prefix_key, prefix_value = torch.randn(2, length, heads // groups * size, generator=generator)
    module = SimpleNamespace(
        prefix_key=nn.Parameter(prefix_key),
        prefix_value=nn.Parameter(prefix_value),
        is_causal=causal,
        num_key_value_groups=groups,
        training=False,
    )
    seen = torch.ones(time, time, dtype=torch.bool)
    given = None
    if mask == "bool":
        seen = torch.rand(time, time, generator=generator) > 0.5
        given = seen.expand(batch_size, 1, -1, -1)
    elif mask == "bias":
        given = torch.randn(1, heads, time, time, generator=generator)
    elif causal:
        seen = seen.tril()
    output, _ = attend(module, query, key, value, given, scaling=0.7)

    for row in range(batch_size):
        for head in range(heads):
            group = head // groups
            block = slice(group * size, (group + 1) * size)
            keys = torch.cat([prefix_key[:, block], key[row, group]])
            values = torch.cat([prefix_value[:, block], value[row, group]])
            scores = 0.7 * query[row, head] @ keys.T
            if mask == "bias":
                scores[:, length:] += given[0, head]
            scores[:, length:][~seen] = -torch.inf
            expected = scores.softmax(-1) @ values
            assert torch.allclose(output[row, :, head], expected, atol=1e-5)


def test_position_bias_leaves_the_prefix_alone() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 4, 3)
    module = SimpleNamespace(prefix_key=nn.Parameter(torch.randn(2, 6)), prefix_value=nn.Parameter(torch.randn(2, 6)))
    bias = torch.randn(1, 2, 4, 4)
    one, _ = attend(module, query, key, value, None, is_causal=False, position_bias=bias)
    other, _ = attend(module, query, key, value, bias, is_causal=False)
    assert torch.allclose(one, other, atol=1e-6)
