"""LoRA and LoRA+ as the released scripts of the DAAM papers train them, faults included (D2-D4, D16, D46, D55).

    y = W x + alpha (x A) B        A: (in, r) ~ N(0, 1/r), B: (r, out) zero at start; no division by r

The adapters are hooks on the outputs of the query and value modules. WavLM never calls these modules, so there they
have no effect: LoRA is a linear classifier behind a random projection, and LoRA+, whose optimiser leaves the classifier
out, trains nothing. On text the score map is random and frozen in both. Attached by structure, since transformers 5 has
renamed BEiT's modules and the released search by name would find none (D55).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.heads import LastPositionHead, PatchHead, ProjectedHead
from daamctl.adapters.module_lookup import linear_sizes, projections
from daamctl.adapters.released import TEXT_LENGTH

TARGETS = ("query", "value")
ALPHA = 16.0
PLUS_RATIO = 2.828


def lora_r4(encoder: Any) -> Adaptation:
    """LoRA of rank 4 as the released scripts train it: scale alpha, attached to modules, without effect on WavLM."""
    return _published(encoder, 4)


def lora_r8(encoder: Any) -> Adaptation:
    """LoRA of rank 8 as the released scripts train it: scale alpha, attached to modules, without effect on WavLM."""
    return _published(encoder, 8)


def lora_plus_r4(encoder: Any) -> Adaptation:
    """LoRA+ of rank 4 as released: B learns 2.828 times as fast, the classifier never; nothing at all on WavLM."""
    return _published(encoder, 4, plus=True)


def lora_plus_r8(encoder: Any) -> Adaptation:
    """LoRA+ of rank 8 as released: B learns 2.828 times as fast, the classifier never; nothing at all on WavLM."""
    return _published(encoder, 8, plus=True)


class LowRank(nn.Module):
    """The published low-rank update.

    Args:
        inputs: width of the adapted map's input.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(inputs, rank) * rank**-0.5)
        self.b = nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, inputs) to what is added to the output, (…, outputs)."""
        return ALPHA * (x.to(self.a.dtype) @ self.a @ self.b)


def _published(encoder: Any, rank: int, *, plus: bool = False) -> Adaptation:
    model = encoder.model
    names = projections(model, TARGETS)
    for name in names:
        linear = model.get_submodule(name)
        device = linear.get_parameter("weight").device  # layers may be on several GPUs
        linear.add_module("low_rank", LowRank(*linear_sizes(linear), rank).to(device))
        linear.register_forward_hook(_add)
    head, note = _head(encoder)
    notes = [f"scale alpha = {ALPHA:g}, not alpha / r, and A ~ N(0, 1/r) (D16)", note]
    idle = None
    if encoder.modality == "text":
        model.register_forward_pre_hook(_pad, with_kwargs=True)
    elif plus:
        notes.append("the classifier is flagged as trainable but never updated (D3)")
        idle = "head.classifier."
    ratio = PLUS_RATIO if plus else 1.0
    return Adaptation(
        names,
        tuple(notes),
        head=head,
        lr_factor=lambda name: ratio if name.endswith("low_rank.b") else 1.0,
        published=True,
        idle=idle,
    )


def _head(encoder: Any) -> tuple[Callable[[int], nn.Module], str]:
    """The published classifier of a modality, and what is odd about it."""
    model, width = encoder.model, encoder.embed_dim
    if encoder.modality == "text":
        note = f"random frozen score map (D4), read at the last of {TEXT_LENGTH} padded positions (D46)"
        return functools.partial(LastPositionHead, width), note
    if encoder.modality == "image":
        return functools.partial(PatchHead, _norm(model, width)), "classifier on the frozen norm of the mean patch"
    projected = getattr(model.config, "classifier_proj_size", 256)
    return functools.partial(ProjectedHead, width, projected), f"classifier behind a random frozen map to {projected}"


def _norm(model: Any, width: int) -> nn.LayerNorm:
    """The norm of the pooler: the checkpoint's own, or a new one as transformers creates it."""
    norm = nn.LayerNorm(width, eps=getattr(model.config, "layer_norm_eps", 1e-5))
    own = getattr(getattr(model, "pooler", None), "layernorm", None)
    if own is not None:
        norm = nn.LayerNorm(width, eps=own.eps)
        norm.load_state_dict(own.state_dict())  # not a copy of the module: that might be tied to a GPU by hooks
    return norm


def _add(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook of an adapted map."""
    added: Tensor = module.low_rank(args[0])
    return output + added.to(output.dtype)


def _pad(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of a text encoder: the published length, by cutting or by end tokens, masked out.

    The end token also takes the place of whatever a batch was padded with, since the last position is read (D46).
    """
    ids = kwargs["input_ids"][:, :TEXT_LENGTH]
    mask = kwargs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask[:, :TEXT_LENGTH]
    ends = [getattr(model.config, key, None) for key in ("eos_token_id", "pad_token_id")]
    end = next((token for token in ends if isinstance(token, int)), 0)
    missing = (0, TEXT_LENGTH - ids.shape[1])
    mask = nn.functional.pad(mask, missing)
    padded = {"input_ids": nn.functional.pad(ids, missing).masked_fill(mask == 0, end), "attention_mask": mask}
    if kwargs.get("token_type_ids") is not None:
        padded["token_type_ids"] = nn.functional.pad(kwargs["token_type_ids"][:, :TEXT_LENGTH], missing)
    return args, {**kwargs, **padded}
