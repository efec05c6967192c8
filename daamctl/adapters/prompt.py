"""Learned vectors in front of the sequence: prompt tuning for text, visual prompt tuning (shallow) for images.

Sources: Lester et al. 2021, who find little gain beyond 20 vectors and start from rows of the embedding table; Jia et
al. 2022, whose start is uniform within sqrt(6 / (patch values + D)). peft's form wraps the model and changes its call;
here hooks put the vectors in and take their positions off the last hidden state again, so that masks still fit.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.adapters.base import Adaptation
from daamctl.errors import MethodError

NUM_VECTORS = 20
POSITIONS = ("position_embeddings", "wpe", "embed_positions", "positions_embed")
"""Names of tables of positions."""


def prompt_tuning(encoder: Any) -> Adaptation:
    """20 learned vectors in front of the embedded text or the image patches (prompt tuning)."""
    if encoder.modality == "speech":
        raise MethodError(
            f"{type(encoder.model).__name__} takes sound, not embeddings that vectors could stand before",
            fix="use prefix-tuning, which puts learned keys and values into every layer",
        )
    if encoder.modality == "image":
        adapted = _image(encoder.model)
    else:
        adapted, longest = _text(encoder.model), longest_text(encoder.model)
        if longest < 1:
            raise MethodError(
                f"{type(encoder.model).__name__} has no position left for a text beside {NUM_VECTORS} vectors",
                fix="use prefix-tuning",
            )
        encoder.max_tokens = min(getattr(encoder, "max_tokens", longest), longest)  # from now on, longer texts are cut
    encoder.model.register_forward_hook(_strip)
    return Adaptation((adapted,))


def longest_text(model: nn.Module) -> int:
    """Most tokens of a text beside the vectors: a learned table has positions for both; without one, no limit."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in POSITIONS:
            kept = 0 if module.padding_idx is None else module.padding_idx + 1  # by RoBERTa, for padding
            kept = getattr(module, "offset", kept)  # of OPT and BART
            return module.num_embeddings - kept - NUM_VECTORS
    return sys.maxsize


class Prompt(nn.Module):
    """The vectors.

    Args:
        start: (P, D).
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(start)

    def forward(self, embedded: Tensor) -> Tensor:
        """Put the vectors before (B, T, D): (B, P + T, D)."""
        vectors = self.vectors.to(embedded.dtype).expand(len(embedded), -1, -1)
        return torch.cat([vectors, embedded], dim=1)


def _text(model: Any) -> str:
    table = model.get_input_embeddings().weight
    rows = torch.randint(len(table), (NUM_VECTORS,)).to(table.device)
    model.add_module("prompt", Prompt(table.detach()[rows].clone()))
    model.register_forward_pre_hook(_prepend, with_kwargs=True)
    return "prompt"


def _image(model: Any) -> str:
    """Put the vectors behind the embedding of the patches."""
    embeddings = getattr(model, "embeddings", nn.Identity())
    patches = next((module for module in embeddings.modules() if isinstance(module, nn.Conv2d)), None)
    if patches is None:
        raise MethodError(f"{type(model).__name__} has no embeddings of patches", fix="use lora-r8")
    width = patches.out_channels
    bound = (6 / (patches.weight[0].numel() + width)) ** 0.5
    start = torch.empty(NUM_VECTORS, width).uniform_(-bound, bound).to(patches.weight.device)
    embeddings.add_module("prompt", Prompt(start))
    embeddings.register_forward_hook(_insert)
    for module in model.modules():  # BEiT: the vectors are outside the grid of its relative positions
        if type(module).__name__.endswith("RelativePositionBias"):
            module.register_forward_hook(_no_bias)
    return "embeddings.prompt"


def _prepend(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Forward pre-hook of a text encoder."""
    kwargs = dict(kwargs)
    ids = kwargs.pop("input_ids")
    room = longest_text(model)
    if ids.shape[1] > room:
        raise MethodError(
            f"prompt-tuning: a text of {ids.shape[1]} tokens and {NUM_VECTORS} vectors exceed the "
            f"{room + NUM_VECTORS} positions of {type(model).__name__}",
            fix=f"set finetune.max_tokens={room}",
        )
    kwargs["inputs_embeds"] = model.prompt(model.get_input_embeddings()(ids))
    for name, value in (("attention_mask", 1), ("token_type_ids", 0)):
        if kwargs.get(name) is not None:
            kwargs[name] = nn.functional.pad(kwargs[name], (NUM_VECTORS, 0), value=value)
    return args, kwargs


def _insert(module: Any, args: Any, output: Any) -> Tensor:
    """Forward hook of the embedding of patches."""
    if not isinstance(output, Tensor) or output.dim() != 3:
        raise MethodError(f"prompt-tuning: {type(module).__name__} gives no sequence of patches", fix="use lora-r8")
    prompted: Tensor = module.prompt(output)
    return prompted


def _no_bias(module: Any, args: Any, output: Tensor) -> Tensor:
    """Forward hook of a bias (…, T, T): none to and from the vectors."""
    return nn.functional.pad(output, (NUM_VECTORS, 0, NUM_VECTORS, 0))


def _strip(model: Any, args: Any, output: Any) -> Any:
    """Forward hook of the encoder: the last hidden state without the vectors' positions."""
    output.last_hidden_state = output.last_hidden_state[:, NUM_VECTORS:]
    return output
