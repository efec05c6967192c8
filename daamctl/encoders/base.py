"""What an encoder is to the extract stage, and the pooling that every family shares.

Layer numbers are Hugging Face's hidden-state index: 0 is the embedding output, 1..N the transformer layers. Every
layer's frames are averaged inside the forward pass, in the layer's own forward hook, so at no time are the frames of
more than one layer kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from daamctl.errors import EncoderError

NORMALIZE_EPS = 1e-7  # as in the feature extractors of the waveform models


@dataclass(frozen=True)
class Preset:
    """A named encoder.

    Args:
        hub_id: Hugging Face id; None: it exists with random weights only.
        model_type: Hugging Face model type, a name from `FAMILIES`.
        shape: configuration values that differ from the model type's defaults, for random weights.
        normalize: whether its feature extractor makes the waveform zero-mean and unit-variance.
    """

    hub_id: str | None
    model_type: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    normalize: bool = True


@dataclass(frozen=True)
class PoolingOptions:
    """How frames become one vector per layer.

    Args:
        layer_00: also give the embedding output.
        final_norm: take the last layer after the encoder's final norm, where it has one.
        all_frames: average over every frame of input zero-padded to `pad_to_s`, without attention mask (published).
        pad_to_s: length that `all_frames` pads to, in seconds.
    """

    layer_00: bool = False
    final_norm: bool = True
    all_frames: bool = False
    pad_to_s: float = 5.0


class Encoder(Protocol):
    """A frozen encoder, ready on its device.

    Attributes:
        layers: layer numbers that `pool` gives, in order.
        embed_dim: D.
        sampling_rate: Hz that the waveforms must have.
        equal_length_batches: whether a batch may only hold clips of one length, because the encoder's own
            normalisation would otherwise see the padding of the others.
        has_final_norm: whether the last layer is followed by a norm.
    """

    layers: tuple[int, ...]
    embed_dim: int
    sampling_rate: int
    equal_length_batches: bool
    has_final_norm: bool

    def pool(self, waveforms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Run a batch of mono float32 waveforms; give (B, L, D) float32 and the frames averaged (B,), on CPU."""


class LayerPooler:
    """Forward hooks that average each layer's frames while the model runs.

    Args:
        layers: the N transformer layers, in order.
        final_norm: module whose output replaces the last layer's, or None.
        layer_00: also pool the input of the first layer.
    """

    def __init__(self, layers: Sequence[nn.Module], final_norm: nn.Module | None, *, layer_00: bool) -> None:
        self.layers, self.final_norm, self.layer_00 = layers, final_norm, layer_00

    def run(self, forward: Any, mask: Tensor) -> Tensor:
        """Call `forward()` and give the pooled layers.

        Args:
            forward: runs the model once.
            mask: (B, T) 1 for frames to average, 0 for others.

        Returns:
            (B, L, D) float32.
        """
        weights = mask.float() / mask.sum(1, keepdim=True)  # (B, T)
        pooled: dict[int, Tensor] = {}

        def average(number: int, frames: Any) -> None:
            hidden = frames[0] if isinstance(frames, tuple) else frames  # (B, T, D)
            with torch.autocast(hidden.device.type, enabled=False):
                pooled[number] = torch.einsum("bt,btd->bd", weights, hidden.float())

        handles = [
            layer.register_forward_hook(lambda _m, _i, out, n=number: average(n, out))
            for number, layer in enumerate(self.layers, start=1)
        ]
        if self.layer_00:
            handles.append(self.layers[0].register_forward_pre_hook(lambda _m, args: average(0, args[0])))
        if self.final_norm is not None:
            last = len(self.layers)
            handles.append(self.final_norm.register_forward_hook(lambda _m, _i, out: average(last, out)))
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([pooled[number] for number in sorted(pooled)], dim=1)


def normalized(clip: Tensor) -> Tensor:
    """Zero mean and unit variance over the clip's own samples (T,)."""
    return (clip - clip.mean()) / (clip.var(correction=0) + NORMALIZE_EPS).sqrt()


def padded_samples(longest: int, pad_to_s: float, sampling_rate: int) -> int:
    """Samples that the published pooling pads every clip to.

    Raises:
        EncoderError: a clip is longer, so that its vector would depend on the clips beside it.
    """
    samples = round(pad_to_s * sampling_rate)
    if longest > samples:
        raise EncoderError(
            f"pooling over all frames pads to {pad_to_s:g} s, but a clip has {longest / sampling_rate:g} s",
            fix="use extract.pooling=valid-frames, or a segment.tail other than merge",
        )
    return samples


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of all tensors: equal for equal weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
