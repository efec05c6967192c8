"""Find an encoder's modules by structure and a few common names, so that no model need be listed.

Verified for the speech families and for BERT, RoBERTa, DistilBERT, ModernBERT, GPT-2, Llama, Mistral, BEiT, ViT,
DINOv2, DINOv3, CLIP and SigLIP of transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from daamctl.errors import MethodError

ROLES = {
    "query": ("q_proj", "query", "q_lin", "linear_q", "q"),
    "key": ("k_proj", "key", "k_lin", "linear_k", "k"),
    "value": ("v_proj", "value", "v_lin", "linear_v", "v"),
}
FUSED = ("qkv", "Wqkv", "c_attn", "query_key_value", "qkv_proj")
"""Names of a single linear map that computes query, key and value together."""

# Not used between the input and the last hidden state: poolers and heads after it, embeddings of masked positions.
UNUSED = re.compile(r"(^|\.)(pooler|head|mask_token|masked_spec_embed)(\.|$)")


def projections(model: nn.Module, roles: Iterable[str], *, fused: bool = True) -> tuple[str, ...]:
    """Names of self-attention's linear maps with the given roles, in the encoder's order.

    Args:
        roles: some of query, key and value.
        fused: use a map that computes all three, if there is one.

    Raises:
        MethodError: there are none, or their roles are ambiguous.
    """
    roles = tuple(roles)
    linear = [name for name, module in model.named_modules() if _is_linear(module) and not UNUSED.search(name)]
    by_role = {role: [name for name in linear if _leaf(name) in leaves] for role, leaves in ROLES.items()}
    # A module is self-attention if it has maps of all roles: other modules, too, have a map named `key` or the like.
    attention = set.intersection(*({_parent(name) for name in names} for names in by_role.values()))
    found = {name for role in roles for name in by_role[role]}
    names = [name for name in linear if name in found and _parent(name) in attention]
    if not names and fused:
        names = [name for name in linear if _leaf(name) in FUSED]
    if not names:
        raise MethodError(
            f"no maps to {', '.join(roles)} found in {type(model).__name__}",
            fix="use linear-probe, ln-tuning or full-finetune",
        )
    return tuple(names)


def are_fused(names: Iterable[str]) -> bool:
    """Whether these projections compute query, key and value together."""
    return any(_leaf(name) in FUSED for name in names)


def feed_forward_outputs(model: nn.Module) -> tuple[str, ...]:
    """Names of the maps from each layer's inner feed-forward width back to D: the layer's last such map.

    Raises:
        MethodError: there are none.
    """
    layers = [name for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)]
    found = {}
    for query in projections(model, ("query",)):
        around = max((name for name in layers if query.startswith(f"{name}.")), key=len, default=None)
        if around is None:
            continue
        width = linear_sizes(model.get_submodule(query))[0]
        for name, module in model.get_submodule(around).named_modules():
            inside_attention = f"{around}.{name}".startswith(f"{_parent(query)}.")
            if _is_linear(module) and linear_sizes(module)[1] == width and not inside_attention:
                found[around] = f"{around}.{name}"
    if not found:
        raise MethodError(f"no feed-forward part found in the layers of {type(model).__name__}", fix="use lora-r8")
    return tuple(found.values())


def layer_norms(model: nn.Module) -> tuple[str, ...]:
    """Names of the layer norms (also RMS norms) between the input and the last hidden state."""
    return tuple(
        name
        for name, module in model.named_modules()
        if (isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "LayerNorm")))
        and not UNUSED.search(name)
    )


def reached_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The encoder's tensors that affect the last hidden state, by name."""
    return {name: value for name, value in model.named_parameters() if value.numel() and not UNUSED.search(name)}


def device_of(model: nn.Module) -> torch.device:
    """Device of the encoder."""
    return next(iter(reached_parameters(model).values())).device


def recomputable_layers(model: nn.Module) -> list[nn.Module]:
    """Layers for which transformers supports activation checkpointing; of nested ones the outermost."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)}
    return [
        module
        for name, module in layers.items()
        if not any(name.startswith(f"{other}.") for other in layers if other != name)
    ]


def linear_sizes(module: nn.Module) -> tuple[int, int]:
    """Input and output width of a linear map; GPT-2's Conv1D stores its weight transposed."""
    first, second = module.get_parameter("weight").shape
    return (first, second) if isinstance(module, Conv1D) else (second, first)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, Conv1D))


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
