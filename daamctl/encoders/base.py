"""Encoder protocol, and the pooling shared by speech, text and images.

Layer numbers are Hugging Face's hidden-state index: 0 is the embedding output, 1..N the transformer layers. The time
axis T holds frames, tokens or patches. Forward hooks average every layer over time during the forward pass, so the
frames of at most one layer are in memory at any time.
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
"""Positions x D^2 at which a CPU reaches full speed in matrix products: 300 frames of 1024 features. Larger batches
only overflow its caches and add padding."""
CPU_POSITIONS = 256
"""Lower limit of positions per batch, below which reading the weights dominates."""


@dataclass(frozen=True)
class PoolingOptions:
    """How the time axis is reduced to one vector per layer.

    Args:
        layer_00: also return the embedding output.
        final_norm: take the last layer after the encoder's final norm, if it has one.
        all_frames: speech: average over every frame of input zero-padded to `pad_to_s`, without attention mask
            (published).
        pad_to_s: length that `all_frames` pads to, in seconds.
        special_tokens: text: include the tokens that the tokenizer adds.
        class_token: images: include class and register tokens.
    """

    layer_00: bool = False
    final_norm: bool = True
    all_frames: bool = False
    pad_to_s: float = 5.0
    special_tokens: bool = False
    class_token: bool = False


@dataclass(frozen=True)
class Batch:
    """A batch in main memory, pinned if it will be copied to a GPU.

    Args:
        inputs: the model's inputs.
        mask: (B, T) positions to average.
        n_frames: (B,) number of these positions.
    """

    inputs: dict[str, Tensor]
    mask: Tensor
    n_frames: Tensor


@dataclass(frozen=True)
class Pooled:
    """Pooled vectors of a batch.

    Args:
        values: (B, L, D) in the requested number format.
        fits: (B, L) whether all D values are finite and representable in that format.
    """

    values: Tensor
    fits: Tensor

    @classmethod
    def of(cls, values: Tensor, storage: torch.dtype) -> Pooled:
        """Check and cast (B, L, D) float32, on its device."""
        fits = values.abs().amax(2) <= torch.finfo(storage).max  # amax propagates NaN, and comparing NaN gives False
        return cls(values.to(storage), fits)

    def to_cpu(self) -> Callable[[], Pooled]:
        """Start copying to main memory; return a function that waits for the copy."""
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
        model: the Hugging Face base model (for encoder-decoders such as Whisper, the encoder), frozen, in eval mode.
        layers: layer numbers that `pool` returns, in order.
        embed_dim: D.
        equal_length_batches: whether a batch may only hold items of one length, because padding would change an item's
            result.
        has_final_norm: whether the last layer is followed by a norm.
    """

    modality: Modality
    model: Any
    layers: tuple[int, ...]
    embed_dim: int
    equal_length_batches: bool
    has_final_norm: bool

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Turn items into the model's inputs on its device, and the mask (B, T) of positions to average."""

    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Like `collate`, but in main memory. Several threads may call it at once."""

    def hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model once; return the last hidden state (B, T, D). Uses the caller's gradient mode and autocast."""

    def pool(self, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Run a batch; return (B, L, D) float32 and the number of averaged positions (B,), on CPU."""

    def padded(self, size: int) -> int:
        """Size to which all items of a batch are padded if the longest one has this size."""

    def enough(self, size: int) -> int:
        """Number of items of a size (samples, tokens, 1 per image) that keeps the device busy; more is not faster."""

    def settle(self) -> None:
        """Prepare for pooling; afterwards it can do nothing else. See `daamctl.encoders.frozen`."""

    def stage(self, items: Sequence[Tensor]) -> Batch:
        """Collate a batch, ready to be copied to the device. Several threads may call it at once."""

    def launch(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], Pooled]:
        """Launch a batch, on a GPU asynchronously; return a function that waits, in any thread, for the CPU result."""


class PooledEncoder(ABC):
    """The part of `Encoder` shared by all modalities: from inputs to one mean vector per layer."""

    model: Any
    device: str
    precision: str
    pooler: LayerPooler
    embed_dim: int

    _copies: torch.cuda.Stream | None = None

    @abstractmethod
    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Turn items into inputs and mask in main memory; see `Encoder`."""

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Turn items into inputs and mask on the device; see `Encoder`."""
        inputs, mask = self.gather(items)
        return {name: value.to(self.device) for name, value in inputs.items()}, mask.to(self.device)

    def hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden state (B, T, D); see `Encoder`."""
        last: Tensor = self.model(**inputs).last_hidden_state
        return last

    def pool(self, items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return pooled layers (B, L, D) and position counts (B,); see `Encoder`."""
        batch = self.stage(items)
        return self.launch(batch)().values, batch.n_frames

    def padded(self, size: int) -> int:
        """Return `size` unchanged: by default, batches are padded to their longest item."""
        return size

    @abstractmethod
    def positions(self, size: int) -> int:
        """Number of frames, tokens or patches that an item of a size occupies in the model."""

    def enough(self, size: int) -> int:
        """Number of items that keep the device busy; see `Encoder`."""
        if self.device != "cpu":
            return sys.maxsize
        most = max(CPU_POSITIONS, CPU_WORK // self.embed_dim**2)
        return max(1, most // max(self.positions(size), 1))

    def settle(self) -> None:
        """Prepare the model for inference only; see `daamctl.encoders.frozen`."""
        settle(self.model, self.precision)

    def stage(self, items: Sequence[Tensor]) -> Batch:
        """Collate a batch, in pinned memory for a GPU; see `Encoder`."""
        inputs, mask = self.gather(items)
        n_frames = mask.sum(1)
        if self.device.startswith("cuda"):  # only pinned memory can be copied while the device computes
            inputs, mask = {name: value.pin_memory() for name, value in inputs.items()}, mask.pin_memory()
        return Batch(inputs, mask, n_frames)

    @torch.inference_mode()
    def launch(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], Pooled]:
        """Launch a batch and return a function that waits for its result; see `Encoder`."""
        inputs, mask = self._send(batch)
        with autocast(self.device, self.precision):
            pooled = self.pooler.run(lambda: self.hidden(inputs), mask)
        return Pooled.of(pooled, storage).to_cpu()

    def _send(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Copy a batch to the device; on a GPU, in parallel to the computation of the previous batch."""
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
            value.record_stream(current)  # from the copy stream's memory: not to be reused before it is read
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
        """Call `forward()` and return the pooled layers.

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
            pooled[number] = mean.to(mask.device)  # layers may be on different GPUs

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
    """Find the hidden states among the arguments of a layer, passed by position or by keyword."""
    return args[0] if args else named.get("hidden_states")


def normalized(clip: Tensor) -> Tensor:
    """Normalise a clip (T,) to zero mean and unit variance over its own samples."""
    return (clip - clip.mean()) / (clip.var(correction=0) + NORMALIZE_EPS).sqrt()


def padded_samples(longest: int, pad_to_s: float, sampling_rate: int) -> int:
    """Number of samples that the published pooling pads every clip to.

    Raises:
        EncoderError: a clip is longer, so its vector would depend on the other clips of its batch.
    """
    samples = round(pad_to_s * sampling_rate)
    if longest > samples:
        raise EncoderError(
            f"pooling over all frames pads to {pad_to_s:g} s, but a clip has {longest / sampling_rate:g} s",
            fix="use extract.pooling=valid-frames, or a segment.tail other than merge",
        )
    return samples


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of all tensors: equal for equal weights, whatever file they come from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
