"""What the layers of an encoder cost: the share of its time and of its parameters up to each layer."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from daamctl.compute.devices import autocast
from daamctl.encoders.base import Encoder
from daamctl.encoders.cut import cut_config
from daamctl.encoders.discovery import hook_layers

SPEECH_S, TEXT_TOKENS = 3, 128
"""Length of the items of a measurement."""
BATCH = 2
PASSES, PASSES_S = 5, 10.0
"""Number of measured passes; once they have taken this many seconds, no further one begins."""


def time_shares(encoder: Encoder) -> list[float]:
    """Measure the share of an encoder's time that has passed at the input of its first layer and behind each layer.

    Medians over up to five forward passes on noise, after a first one. The last share is 1.

    Args:
        encoder: freshly opened; prepared for inference by the call.

    Returns:
        N + 1 shares, for layer 0 to N.
    """
    encoder.prepare_for_inference()
    items = noise(encoder, BATCH)
    _pass(encoder, items)
    found, start = [_pass(encoder, items)], time.monotonic()
    while len(found) < PASSES and time.monotonic() - start < PASSES_S:
        found.append(_pass(encoder, items))
    return [statistics.median(shares) for shares in zip(*found, strict=True)]


def noise(encoder: Any, number: int) -> list[Tensor]:
    """Seeded items that an encoder reads: noise of a few seconds, random tokens, or random pixels."""
    generator = torch.Generator().manual_seed(0)
    if encoder.modality == "speech":
        return [0.1 * torch.randn(SPEECH_S * encoder.sampling_rate, generator=generator) for _ in range(number)]
    if encoder.modality in ("text", "tokens"):
        length = min(TEXT_TOKENS, encoder.max_tokens)
        return [torch.randint(encoder.vocabulary, (length,), generator=generator) for _ in range(number)]
    return [torch.randn(3, *encoder.image_size, generator=generator) for _ in range(number)]


def _pass(encoder: Encoder, items: list[Tensor]) -> list[float]:
    """Shares of the time of one forward pass, see `time_shares`."""
    inputs, _ = encoder.collate(items)
    layers, marks = encoder.pooler.layers, []

    def mark(*_: Any) -> None:
        if encoder.device.startswith("cuda"):
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    handles = hook_layers(layers, mark, with_input=True)
    try:
        mark()
        with torch.inference_mode(), autocast(encoder.device, encoder.precision):
            encoder.model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    start, *rest = marks
    return [(at - start) / (rest[-1] - start) for at in rest]


def parameter_shares(encoder: Encoder) -> list[float]:
    """Share of an encoder's parameters up to each layer: N + 1 shares, for layer 0 to N."""
    whole = _number(encoder.model)
    layers = encoder.pooler.layers  # those above k that do not run below it as well
    above = [sum(map(_number, {*layers[k:]} - {*layers[:k]})) for k in range(len(layers) + 1)]
    return [(whole - number) / whole for number in above]


def outline_shares(configuration: Any) -> list[float] | None:
    """The same from a Hugging Face configuration alone, for layers of equal size; None if its model cannot be built.

    Args:
        configuration: that of the modality, e.g. `text_config` of a multimodal model.
    """
    try:
        number = configuration.num_hidden_layers
        whole = _outline(configuration)
        layer = whole - _outline(cut_config(configuration, number - 1, "the encoder")) if number > 1 else 0
    except Exception:  # a library may refuse a configuration in any way
        return None
    return [(whole - layer * (number - k)) / whole for k in range(number + 1)]


def _outline(configuration: Any) -> int:
    """Number of parameters of the encoder of a configuration."""
    from transformers import AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(configuration)
    if hasattr(model, "encoder") and hasattr(model, "decoder"):
        model = model.get_encoder()
    return _number(model)


def _number(module: torch.nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())
