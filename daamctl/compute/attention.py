"""Replacements for the attention of Hugging Face models: WavLM's, and any attention with a learned prefix.

transformers' WavLM passes the weights of its projections to a functional attention and never calls the projection
modules, so adapters attached to them have no effect (D2; versions 4.36 to 5.23). `call_projections` replaces each such
attention of a model: the new one computes the same values by calling the modules. `read_projections` uses the weights
without calling the modules, at the same speed. Both are also faster than the original: transformers passes torch a
transposed view (T, B, D), and torch then multiplies by T copies of a projection's weights if neither the view nor the
weights need a gradient. `gate_bias_once` saves memory traffic where there are no gradients.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

IMPLEMENTATION = "daamctl-prefix"
"""Name of `attend` in transformers' table of attention functions."""

_BYPASSING = "torch_multi_head_self_attention"
ALIGNED = 8
"""Kernels copy a bias whose rows do not begin at a multiple of this many numbers."""


def call_projections(model: nn.Module) -> tuple[str, ...]:
    """Make every attention that bypasses its projection modules call them.

    Returns:
        notes for the report; empty if no attention bypasses its projections.
    """
    bypassing = [module for module in model.modules() if hasattr(module, _BYPASSING)]
    for module in bypassing:
        setattr(module, _BYPASSING, types.MethodType(_called_attention, module))
    if not bypassing:
        return ()
    return (f"the attention of {type(model).__name__} is computed by calling its projections (D2)",)


def read_projections(model: nn.Module) -> None:
    """Make every attention that still bypasses its projection modules use their weights at full speed."""
    for module in model.modules():
        if hasattr(module, _BYPASSING) and _BYPASSING not in vars(module):
            setattr(module, _BYPASSING, types.MethodType(_bypassing_attention, module))


def gate_bias_once(model: nn.Module) -> None:
    """Make every attention of WavLM compute its bias in one pass, in the number format of the scores; no gradients.

    transformers repeats the position bias over the batch and makes the gated bias in float32, a copy in the format of
    the scores, and another with the padding masked. This writes the last one alone. The values are the same.
    """
    for module in model.modules():
        if hasattr(module, _BYPASSING) and not hasattr(module, "_hf_hook") and "forward" not in vars(module):
            module.forward = types.MethodType(_forward_without_gradients, module)


def _forward_without_gradients(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_unused: Any,
) -> tuple[Tensor, None, Tensor]:
    """WavLM's attention; the position bias is (H, T, T), of the first layer, for all items of the batch.

    Args:
        hidden_states: (B, T, D).
        attention_mask: (B, T) 1 for frames, 0 for padding; None: all are frames.
        position_bias: (H, T, T), or None in the first layer.

    Returns:
        (B, T, D), None, and the position bias.
    """
    batch, time, _ = hidden_states.shape
    if position_bias is None:
        position_bias = self.compute_bias(time, time).contiguous()
    split = hidden_states.view(batch, time, self.num_heads, -1).transpose(1, 2)  # (B, H, T, d)
    projected = self.gru_rel_pos_linear(split).unflatten(-1, (2, 4)).sum(-1)
    gate_a, gate_b = torch.sigmoid(projected).chunk(2, dim=-1)
    gate = gate_a * (gate_b * self.gru_rel_pos_const - 1.0) + 2.0  # (B, H, T, 1)

    def heads(projection: nn.Module) -> Tensor:
        projected: Tensor = projection(hidden_states)
        return projected.view(batch, time, self.num_heads, -1).transpose(1, 2)

    query = heads(self.q_proj)
    width = -(-time // ALIGNED) * ALIGNED
    bias = query.new_empty(batch, self.num_heads, time, width)[..., :time]
    gate = gate.to(position_bias.dtype)
    if attention_mask is None:
        torch.mul(gate, position_bias, out=bias)
    else:
        hidden = gate.new_zeros(batch, 1, 1, time)
        hidden.masked_fill_(attention_mask.ne(1)[:, None, None], torch.finfo(bias.dtype).min)
        torch.addcmul(hidden, gate, position_bias, out=bias)
    mixed, _ = attend(
        self, query, heads(self.k_proj), heads(self.v_proj), bias, dropout=0.0, scaling=self.scaling, is_causal=False
    )
    output: Tensor = self.out_proj(mixed.reshape(batch, time, -1))
    return output, None, position_bias


def _called_attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None, gated_position_bias: Tensor
) -> tuple[Tensor, None]:
    """WavLM's attention, calling the modules; see `_attention`."""
    return _attention(self, hidden_states, attention_mask, gated_position_bias, _called), None


def _bypassing_attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None, gated_position_bias: Tensor
) -> tuple[Tensor, None]:
    """WavLM's attention, using the weights of its modules; see `_attention`."""
    return _attention(self, hidden_states, attention_mask, gated_position_bias, _read), None


def _called(projection: Any, hidden: Tensor) -> Tensor:
    projected: Tensor = projection(hidden)
    return projected


def _read(projection: Any, hidden: Tensor) -> Tensor:
    return nn.functional.linear(hidden, projection.weight, projection.bias)


def _attention(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    gated_position_bias: Tensor,
    project: Callable[[Any, Tensor], Tensor],
) -> Tensor:
    """WavLM's attention, softmax(q k^T / sqrt(d) + gated bias) v.

    Args:
        self: the attention module, with projections q, k, v and out.
        hidden_states: (B, T, D).
        attention_mask: (B, T) 1 for frames, 0 for padding; None: all are frames.
        gated_position_bias: (B * H, T, T).
        project: applies one of the projections to its input.

    Returns:
        (B, T, D).
    """
    batch, time, width = hidden_states.shape

    def heads(projection: nn.Module) -> Tensor:
        return project(projection, hidden_states).view(batch, time, self.num_heads, -1).transpose(1, 2)  # (B, H, T, d)

    query, key, value = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
    bias = gated_position_bias.view(batch, self.num_heads, time, time).to(query.dtype)
    if attention_mask is not None:
        bias = bias.masked_fill(attention_mask.ne(1)[:, None, None], torch.finfo(bias.dtype).min)
    dropout = self.dropout if self.training else 0.0
    mixed, _ = attend(self, query, key, value, bias, dropout=dropout, scaling=self.scaling, is_causal=False)
    return project(self.out_proj, mixed.reshape(batch, time, width))


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Run transformers' SDPA attention with the module's own prefix, if any, before keys and values.

    Every query sees the prefix; the visibility of all other positions is unchanged.

    Args:
        module: the attention; its parameters `prefix_key` and `prefix_value` are (P, width of all key heads).
        query: (B, H, T, D / H).
        key: (B, H', T, D / H).
        value: like `key`.
        attention_mask: (…, T, T), True for visible or added to the scores; None: all visible, or the causal mask.
        settings: of the attention function, see transformers.

    Returns:
        (B, T, H, D / H), and None.
    """
    from transformers import AttentionInterface

    if isinstance(getattr(module, "prefix_key", None), nn.Parameter):
        length = len(module.prefix_key)
        causal = settings.get("is_causal")
        if attention_mask is None and (getattr(module, "is_causal", True) if causal is None else causal):
            time = query.shape[2]
            attention_mask = torch.ones(1, 1, time, time, dtype=torch.bool, device=query.device).tril()
        if attention_mask is not None:
            attention_mask = _visible(attention_mask, length)
        if settings.get("position_bias") is not None:
            settings["position_bias"] = _visible(settings["position_bias"], length)
        settings["is_causal"] = False
        key = torch.cat([_as_heads(module.prefix_key, key), key], dim=2)
        value = torch.cat([_as_heads(module.prefix_value, value), value], dim=2)
    result: tuple[Tensor, None] = AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **settings)
    return result


def register() -> None:
    """Register `attend` in transformers' table of attention functions, with SDPA's masks."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, attend)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _visible(mask: Tensor, length: int) -> Tensor:
    """Extend a mask or bias over keys (…, T) by `length` leading keys visible to all queries: (…, length + T)."""
    return nn.functional.pad(mask, (length, 0), value=mask.dtype == torch.bool)


def _as_heads(prefix: Tensor, like: Tensor) -> Tensor:
    """Reshape (P, H' * d) to (B, H', P, d), to be concatenated with keys or values (B, H', T, d)."""
    batch, heads, _, size = like.shape
    return prefix.view(1, -1, heads, size).transpose(1, 2).expand(batch, -1, -1, -1).to(like.dtype)
