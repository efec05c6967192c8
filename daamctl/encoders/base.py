"""What an encoder is to the stages, and the pooling that speech, text and vision share.

Layer numbers are Hugging Face's hidden-state index: 0 is the embedding output, 1..N the transformer layers. The time
axis T holds frames, tokens or patches. Every layer is averaged over it inside the forward pass, in the layer's own
forward hook, so at no time are the frames of more than one layer kept.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from daamctl.artifacts.utterances import Modality
from daamctl.devices import autocast
from daamctl.encoders.frozen import settle
from daamctl.errors import EncoderError

NORMALIZE_EPS = 1e-7  # as in the feature extractors of the waveform models
CPU_WORK = 3 * 10**8
"""Positions x D^2 from which a CPU multiplies matrices at full speed: 300 frames of 1024 features. What is larger only
leaves its caches, and pads."""
CPU_POSITIONS = 256
"""But at least so many positions, or reading the weights takes the time."""


@dataclass(frozen=True)
class PoolingOptions:
    """How the time axis becomes one vector per layer.

    Args:
        layer_00: also give the embedding output.
        final_norm: take the last layer after the encoder's final norm, where it has one.
        all_frames: speech: average over every frame of input zero-padded to `pad_to_s`, without attention mask
            (published).
        pad_to_s: length that `all_frames` pads to, in seconds.
        special_tokens: text: count the tokens that the tokenizer adds.
        class_token: images: count class and register tokens.
    """

    layer_00: bool = False
    final_norm: bool = True
    all_frames: bool = False
    pad_to_s: float = 5.0
    special_tokens: bool = False
    class_token: bool = False


@dataclass(frozen=True)
class Batch:
    """A batch in main memory, pinned where it goes to a GPU.

    Args:
        inputs: of the model.
        mask: (B, T) positions that count in the mean.
        n_frames: (B,) how many these are.
    """

    inputs: dict[str, Tensor]
    mask: Tensor
    n_frames: Tensor


@dataclass(frozen=True)
class Pooled:
    """What a batch gives.

    Args:
        values: (B, L, D) in the number format asked for.
        fits: (B, L) whether all D values are finite, and within that format.
    """

    values: Tensor
    fits: Tensor

    @classmethod
    def of(cls, values: Tensor, storage: torch.dtype) -> Pooled:
        """Check and cast (B, L, D) float32, where it lies."""
        fits = values.abs().amax(2) <= torch.finfo(storage).max  # amax hands NaN on, and NaN is not <= anything
        return cls(values.to(storage), fits)

    def to_cpu(self) -> Callable[[], Pooled]:
        """Begin to copy to main memory; what comes back waits for the copy."""
        if not self.values.is_cuda:
            here = Pooled(self.values.cpu(), self.fits.cpu())
            return lambda: here
        copied = Pooled(
            torch.empty(self.values.shape, dtype=self.values.dtype, pin_memory=True),
            torch.empty(self.fits.shape, dtype=self.fits.dtype, pin_memory=True),
        )
        copied.values.copy_(self.values, non_blocking=True)
        copied.fits.copy_(self.fits, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.values.device))

        def wait() -> Pooled:
            arrived.synchronize()
            return copied

        return wait


class Encoder(Protocol):
    """A frozen encoder, ready on its device.

    Attributes:
        modality: what it reads.
        model: the Hugging Face base model (of Whisper and other encoder-decoders the encoder), frozen, in eval mode.
        layers: layer numbers that `pool` gives, in order.
        embed_dim: D.
        equal_length_batches: whether a batch may only hold items of one length, because the encoder would otherwise see
            the padding of the others.
        has_final_norm: whether the last layer is followed by a norm.
    """

    modality: Modality
    model: Any
    layers: tuple[int, ...]
    embed_dim: int
    equal_length_batches: bool
    has_final_norm: bool

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Turn items into the model's inputs on its device, and the mask (B, T) of positions that count in the mean."""

    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The same in main memory. Several threads may call it at once."""

    def hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model once: last hidden state (B, T, D); gradients and autocast are those in force outside."""

    def pool(self, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Run a batch; give (B, L, D) float32 and the number of positions averaged (B,), on CPU."""

    def padded(self, size: int) -> int:
        """The size that the longest item of a batch, of this size, is padded to with all others."""

    def enough(self, size: int) -> int:
        """How many items of a size (samples, tokens, 1 per image) keep the device busy: more take longer, not less."""

    def settle(self) -> None:
        """Prepare for pooling alone, from here on; see `daamctl.encoders.frozen`."""

    def stage(self, items: Sequence[Tensor]) -> Batch:
        """Make a batch ready to be copied to the device. Several threads may call it at once."""

    def launch(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], Pooled]:
        """Run a batch, on a GPU without waiting for it; what comes back waits, in any thread, and gives it on CPU."""


class PooledEncoder(ABC):
    """The part of an `Encoder` that modalities share: from inputs to one mean per layer."""

    model: Any
    device: str
    precision: str
    pooler: LayerPooler
    embed_dim: int

    _copies: torch.cuda.Stream | None = None

    @abstractmethod
    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """See `Encoder.gather`."""

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """See `Encoder.collate`."""
        inputs, mask = self.gather(items)
        return {name: value.to(self.device) for name, value in inputs.items()}, mask.to(self.device)

    def hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `Encoder.hidden`."""
        last: Tensor = self.model(**inputs).last_hidden_state
        return last

    def pool(self, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """See `Encoder.pool`."""
        batch = self.stage(items)
        return self.launch(batch)().values, batch.n_frames

    def padded(self, size: int) -> int:
        """See `Encoder.padded`."""
        return size

    @abstractmethod
    def positions(self, size: int) -> int:
        """Frames, tokens or patches that an item of a size takes in the model."""

    def enough(self, size: int) -> int:
        """See `Encoder.enough`."""
        if self.device != "cpu":
            return sys.maxsize
        most = max(CPU_POSITIONS, CPU_WORK // self.embed_dim**2)
        return max(1, most // max(self.positions(size), 1))

    def settle(self) -> None:
        """See `Encoder.settle`."""
        settle(self.model, self.precision)

    def stage(self, items: Sequence[Tensor]) -> Batch:
        """See `Encoder.stage`."""
        inputs, mask = self.gather(items)
        n_frames = mask.sum(1)
        if self.device.startswith("cuda"):  # only pinned memory is copied while the device computes
            inputs, mask = {name: value.pin_memory() for name, value in inputs.items()}, mask.pin_memory()
        return Batch(inputs, mask, n_frames)

    @torch.inference_mode()
    def launch(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], Pooled]:
        """See `Encoder.launch`."""
        inputs, mask = self._send(batch)
        with autocast(self.device, self.precision):
            pooled = self.pooler.run(lambda: self.hidden(inputs), mask)
        return Pooled.of(pooled, storage).to_cpu()

    def _send(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Copy a batch to the device; to a GPU beside the computation of the batch before."""
        tensors = {**batch.inputs, "": batch.mask}
        if not self.device.startswith("cuda"):
            sent = {name: value.to(self.device) for name, value in tensors.items()}
            return sent, sent.pop("")
        if self._copies is None:
            self._copies = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._copies):
            sent = {name: value.to(self.device, non_blocking=True) for name, value in tensors.items()}
        current = torch.cuda.current_stream(torch.device(self.device))
        current.wait_stream(self._copies)
        for value in sent.values():
            value.record_stream(current)  # its memory is the copying stream's: not to be reused before it was read
        return sent, sent.pop("")


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
                mean = torch.einsum("bt,btd->bd", weights.to(hidden.device), hidden.float())
            pooled[number] = mean.to(mask.device)  # layers may lie on several GPUs

        handles = [
            layer.register_forward_hook(lambda _m, _i, out, n=number: average(n, out))
            for number, layer in enumerate(self.layers, start=1)
        ]
        if self.layer_00:
            handles.append(
                self.layers[0].register_forward_pre_hook(
                    lambda _m, args, named: average(0, layer_input(args, named)), with_kwargs=True
                )
            )
        if self.final_norm is not None:
            last = len(self.layers)
            handles.append(self.final_norm.register_forward_hook(lambda _m, _i, out: average(last, out)))
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([pooled[number] for number in sorted(pooled)], dim=1)


def layer_input(args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The hidden states among the arguments that a layer was called with, by position or by keyword."""
    return args[0] if args else named.get("hidden_states")


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
