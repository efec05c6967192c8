"""The interface of all encoders, and the pooling that speech, text and images share.

Layer numbers are Hugging Face's hidden-state index: 0 is the embedding output, 1..N the transformer layers. The time
axis T holds frames, tokens or patches. Forward hooks average every layer over time during the forward pass, so the
frames of at most one layer are in memory at any time.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float32, Shaped
from torch import Tensor, nn

from daamctl.artifacts.utterances import Modality
from daamctl.compute.devices import autocast
from daamctl.config import ExtractConfig
from daamctl.encoders.cut import cut_of, skip
from daamctl.encoders.discovery import (
    ModelLayers,
    begins_in_layer,
    by_position,
    find_layers,
    first_of,
    hook_layers,
    library_states,
)
from daamctl.encoders.frozen import prepare_for_inference
from daamctl.encoders.presets import Preset
from daamctl.errors import EncoderError

CPU_WORK = 3 * 10**8
"""Positions x D^2 at which a CPU reaches full speed in matrix products: 300 frames of 1024 features. Larger batches
only overflow its caches and add padding."""
CPU_POSITIONS = 256
"""Lower limit of positions per batch, below which reading the weights dominates."""
CLOSE, CLOSE_IN_HALF = 1e-3, 0.05
"""Allowed distance of two vectors that should be equal up to rounding, relative to their length: float32, half
precision."""


@dataclass(frozen=True)
class Batch:
    """A batch in main memory, pinned if it will be copied to a GPU.

    Args:
        mask: (B, T) positions to average; for words (B, W, T), the positions of each word.
        n_frames: (R,) number of these positions, per item; for words, per word that has any.
    """

    inputs: dict[str, Tensor]
    mask: Shaped[Tensor, "B *W T"]
    n_frames: Shaped[Tensor, " R"]


@dataclass(frozen=True)
class PooledBatch:
    """Pooled vectors of a batch.

    Args:
        values: (B, L, D) in the requested number format.
        is_representable: (B, L) whether all D values are finite and within the range of that format.
    """

    values: Float[Tensor, "B L D"]
    is_representable: Bool[Tensor, "B L"]

    @classmethod
    def of(cls, values: Float32[Tensor, "B L D"], storage: torch.dtype) -> PooledBatch:
        """Check and cast (B, L, D) float32, on its device."""
        # amax propagates NaN, and comparing NaN gives False
        return cls(values.to(storage), values.abs().amax(2) <= torch.finfo(storage).max)

    def to_cpu(self) -> Callable[[], PooledBatch]:
        """Start copying to main memory; return a function that waits for the copy."""
        if not self.values.is_cuda:
            copy = PooledBatch(self.values.cpu(), self.is_representable.cpu())
            return lambda: copy
        here = (self.values, self.is_representable)
        copied = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in here]
        for to, one in zip(copied, here, strict=True):
            to.copy_(one, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.values.device))

        def wait() -> PooledBatch:
            arrived.synchronize()
            return PooledBatch(*copied)

        return wait


class Encoder(ABC):
    """A frozen encoder, ready on its device: from items to one mean vector per layer.

    Each family of models is a subclass, which implements `load_reader`, `random_reader`, `set_up`, `collate_cpu`,
    `positions` and `facts`.

    Args:
        model: the Hugging Face base model (of an encoder-decoder the encoder), frozen, in eval mode, on its device.
        reader: its feature extractor, tokenizer or image processor.
        precision: resolved precision of the forward pass.
        options: how items are read, and how the time axis is reduced to one vector per layer.
        pad_to_s: seconds that `extract.pooling=all-frames` pads to.

    Attributes:
        modality: what it reads.
        layers: layer numbers that `pool` returns, in order.
        widths: number of features of each of these layers.
        embed_dim: D, the largest of them.
        has_final_norm: whether the last layer is followed by a norm; in a cut encoder it is not.
        ends_in_layer: whether the model's output is that of its last layer, or of the norm after it.
        equal_length_batches: whether a batch may only hold items of one length, because padding would change an item's
            result.
        was_padded: whether earlier versions padded them nevertheless; then the vectors need another content key.
    """

    modality: ClassVar[Modality]
    poolings: ClassVar[tuple[str, ...]] = ("valid-frames",)
    """Values of `extract.pooling` that it knows."""
    any_positions: ClassVar[bool] = False
    """Whether layers may have any numbers of positions, of which all count: no item of a batch is padded."""
    layers: tuple[int, ...]
    widths: tuple[int, ...]
    embed_dim: int
    has_final_norm: bool
    ends_in_layer: bool
    equal_length_batches: bool = False
    was_padded: bool = False

    pooler: LayerPooler | StatePooler
    _copies: torch.cuda.Stream | None = None

    def __init__(
        self,
        name: str,
        model: Any,
        reader: Any,
        *,
        device: str,
        precision: str,
        options: ExtractConfig,
        pad_to_s: float = 5.0,
    ) -> None:
        self.pad_to_s = pad_to_s
        self.what, self.model, self.reader = f"encoder '{name}'", model, reader
        self.device, self.precision, self.options = device, precision, options
        if options.pooling not in self.poolings:
            allowed = " or ".join(self.poolings)
            raise EncoderError(f"{self.what} cannot pool by {options.pooling}", fix=f"set extract.pooling to {allowed}")
        try:
            self.set_up(model, reader)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # of what its files hold
            reason = " ".join(str(error).split())[:300]
            raise EncoderError(f"the settings in the files of {self.what} are not usable: {reason}") from error

    # What a family defines

    @abstractmethod
    def set_up(self, model: Any, reader: Any) -> None:
        """Finish the constructor: read what `collate_cpu` needs, and call `discover` with trial items."""

    @staticmethod
    def load_model(source: str, **options: Any) -> Any:
        """Load a checkpoint's model; arguments and result as in `from_pretrained`."""
        from transformers import AutoModel

        return AutoModel.from_pretrained(source, **options)

    @staticmethod
    @abstractmethod
    def load_reader(source: str, **options: Any) -> Any:
        """Load a checkpoint's feature extractor, tokenizer or image processor; arguments as in `from_pretrained`."""

    @staticmethod
    @abstractmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make the feature extractor, tokenizer or image processor that goes with random weights."""

    @abstractmethod
    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Shaped[Tensor, "B T"]]:
        """Turn items into the model's inputs, and the mask (B, T) of positions to average, in main memory.

        Several threads may call it at once.
        """

    @abstractmethod
    def positions(self, size: int) -> int:
        """Number of frames, tokens or patches that an item of a size (samples, tokens, 1 per image) occupies."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts that affect the vectors, besides weights and precision; JSON-able."""

    def padded(self, size: int) -> int:
        """Size to which all items of a batch are padded if the longest one has this size."""
        return size

    def set_token_mask(self, found: ModelLayers) -> None:  # noqa: B027
        """Set up `collate_cpu` by the result of the trial; does nothing unless a family overrides it."""

    # What all families share

    def discover(self, trial: Sequence[Tensor]) -> None:
        """Find layers and final norm by running trial items, and check that pooling reproduces the means.

        Raises:
            EncoderError: the model cannot be run on the trial, or its layers cannot be pooled.
        """
        try:
            inputs, mask = self.collate(trial)
            with torch.inference_mode(), autocast(self.device, self.precision):
                found = self.find(lambda: self.model(**inputs, output_hidden_states=True), mask.shape[-1])
        except (ValueError, RuntimeError, TypeError, LookupError, AttributeError) as error:
            reason = " ".join(str(error).split())[:300]
            half = "use --set extract.weights_dtype=float32" if self.model.dtype != torch.float32 else None
            raise EncoderError(f"{self.what} cannot be run on a trial input: {reason}", fix=half) from error
        if (number := len(found.states[0])) != len(trial):
            raise EncoderError(f"{self.what} turns {len(trial)} items into {number}, so they cannot be told apart")
        self.set_token_mask(found)
        if (cut := cut_of(self.model.config)) is not None:
            if len(found.layers) != cut.highest_layer:
                raise EncoderError(f"{self.what} is cut after layer {cut.highest_layer}, but has {len(found.layers)}")
            if found.final_norm is not None:
                skip(found.final_norm)
            found = replace(found, final_norm=None, normed=found.states[-1])
        first = 0 if self.options.layer_00 else 1
        if found.states[first].shape[1] == 0:
            raise EncoderError(f"{self.what} gives no layer 0", fix="use --set extract.layer_00=false")
        mask = self.collate(trial)[1]  # again: `set_token_mask` may have changed it
        self.ends_in_layer = found.ends_in_layer and found.normed.shape[1] == mask.shape[-1]
        self.has_final_norm = found.normed is not found.states[-1]
        self.widths = tuple(int(state.shape[2]) for state in found.states[first:])
        self.embed_dim = max(self.widths)
        self.layers = tuple(range(first, len(found.states)))
        normed = self.has_final_norm and self.options.final_norm
        if found.layers:
            norm = found.final_norm if normed else None
            self.pooler = LayerPooler(found.layers, norm, layer_00=self.options.layer_00)
        else:
            last = found.channels_last
            self.pooler = StatePooler(self.widths, normed=normed, channels_last=last)
        # The pooler must give the same as averaging the hidden states, which are all in memory here.
        weights = weighted(mask)
        states = [*found.states[first:-1], found.normed if normed else found.states[-1]]
        means = torch.stack([averaged(state, *weights, self.embed_dim).cpu() for state in states], dim=1)
        pooled, _ = self.pool(trial)
        if not self.is_close(pooled, means):
            raise EncoderError(f"pooling {self.what} does not give the mean of its hidden states on a trial input")

    def find(self, forward: Callable[[], Any], num_positions: int) -> ModelLayers:
        """Find the layers by running a trial; where there are none, take the library's hidden states."""
        try:
            return find_layers(self.model, forward, self.what)
        except EncoderError:
            output = forward()
            found = library_states(output, embedded=not begins_in_layer(self.model, forward, output))
            if found is None:
                raise
            if not self.any_positions and any(state.shape[1] != num_positions for state in found.states):
                raise
            return found

    def is_close(self, ours: Float[Tensor, "B L D"], theirs: Float[Tensor, "B L D"]) -> bool:
        """Whether pooled vectors (B, L, D) are equal up to rounding."""
        exact = self.precision == "float32" and self.model.dtype == torch.float32
        limit = CLOSE if exact else CLOSE_IN_HALF
        return bool(((ours - theirs).norm(dim=2) <= limit * theirs.norm(dim=2)).all())

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Shaped[Tensor, "B *W T"]]:
        """Turn items into the model's inputs and the mask of positions to average, on the device.

        The mask is (B, T), or (B, W, T) for the words of sentences. On a GPU, what was launched before goes on.
        """
        return self.send(*self._staged(*self.collate_cpu(items)))

    def hidden(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "B T D"]:
        """Run the model once; return the last hidden state (B, T, D). Uses the caller's gradient mode and autocast.

        Raises:
            EncoderError: the model does not end in its last layer.
        """
        if not self.ends_in_layer:
            raise EncoderError(f"the output of {self.what} is not that of its last layer, so it cannot be fine-tuned")
        last: Tensor = self.model(**inputs).last_hidden_state
        return last

    def hidden_layers(self, inputs: Mapping[str, Tensor]) -> list[Float[Tensor, "B T D"]]:
        """Run the model once; return the hidden states of layers 1 to L, see `layer_states`.

        Raises:
            EncoderError: the model is hierarchical, or of timm.
        """
        output = self.model(**inputs, output_hidden_states=True)
        if {state.shape for state in output.hidden_states[1:]} != {output.last_hidden_state.shape}:
            raise EncoderError(f"the layers of {self.what} differ in shape, so no method can fuse their frames")
        return layer_states(output)

    def pool(self, items: Sequence[Tensor]) -> tuple[Float32[Tensor, "R L D"], Shaped[Tensor, " R"]]:
        """Run a batch; return (R, L, D) float32 and the number of averaged positions (R,), on CPU, see `Batch`."""
        batch = self.to_batch(items)
        return self.run_async(batch)().values, batch.n_frames

    def max_useful_batch(self, size: int) -> int:
        """Number of items of a size (samples, tokens, 1 per image) that keeps the device busy; more is not faster."""
        if self.device != "cpu":
            return sys.maxsize
        most = max(CPU_POSITIONS, CPU_WORK // self.embed_dim**2)
        return max(1, most // max(self.positions(size), 1))

    def prepare_for_inference(self) -> None:
        """Prepare for pooling; afterwards it can do nothing else. See `daamctl.encoders.frozen`."""
        prepare_for_inference(self.model, self.precision)

    def to_batch(self, items: Sequence[Tensor]) -> Batch:
        """Collate a batch, in pinned memory for a GPU. Several threads may call it at once."""
        inputs, mask = self.collate_cpu(items)
        n_frames = mask.sum(-1)
        n_frames = n_frames[n_frames > 0] if mask.ndim == 3 else n_frames
        return Batch(*self._staged(inputs, mask), n_frames)

    @torch.inference_mode()
    def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
        """Launch a batch, on a GPU asynchronously; return a function that waits, in any thread, for the CPU result."""
        inputs, mask = self.send(batch.inputs, batch.mask)
        with autocast(self.device, self.precision):
            pooled = self.pooler.run(lambda: self.model(**inputs, **self.pooler.asked), mask)
        return PooledBatch.of(pooled, storage).to_cpu()

    def _staged(self, inputs: dict[str, Tensor], mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The same in pinned memory for a GPU: only that can be copied while the device computes."""
        if not self.device.startswith("cuda"):
            return inputs, mask
        return {name: value.pin_memory() for name, value in inputs.items()}, mask.pin_memory()

    def send(self, inputs: dict[str, Tensor], mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Copy a batch to the device; on a GPU, in parallel to the computation of the previous batch."""
        if not self.device.startswith("cuda"):
            return {name: value.to(self.device) for name, value in inputs.items()}, mask.to(self.device)
        if self._copies is None:
            self._copies = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._copies):
            inputs = {name: value.to(self.device, non_blocking=True) for name, value in inputs.items()}
            mask = mask.to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(torch.device(self.device))
        current.wait_stream(self._copies)
        for value in (*inputs.values(), mask):
            # Its memory belongs to the copy stream, which could otherwise reuse it before `current` has read it.
            value.record_stream(current)
        return inputs, mask


class LayerPooler:
    """Forward hooks that average each layer's frames, or the sub-words of each word, while the model runs.

    Args:
        layers: the N transformer layers, in order; see `ModelLayers`.
        final_norm: module whose output replaces the last layer's, or None.
        layer_00: also pool the input of the first layer.
    """

    asked: Mapping[str, bool] = MappingProxyType({})
    """Arguments of the model, besides its inputs."""

    def __init__(self, layers: Sequence[nn.Module], final_norm: nn.Module | None, *, layer_00: bool) -> None:
        self.layers, self.final_norm, self.layer_00 = layers, final_norm, layer_00

    def run(self, forward: Any, mask: Shaped[Tensor, "B *W T"]) -> Float32[Tensor, "R L D"]:
        """Call `forward()` and return the pooled layers.

        Args:
            mask: (B, T) 1 for frames to average, 0 for others; or (B, W, T), likewise for each word.

        Returns:
            (R, L, D) float32, where R is B, or the number of words that have positions.
        """
        weights, words = weighted(mask)
        pooled: dict[int, Tensor] = {}

        def average(number: int, frames: Any) -> None:
            hidden = first_of(frames)[:, : mask.shape[-1]]  # (B, T, D), without what a model pads itself
            pooled[number] = averaged(hidden, weights, words).to(mask.device)  # layers may be on different GPUs

        handles = hook_layers(self.layers, average, with_input=self.layer_00)
        if self.final_norm is not None:
            last = len(self.layers)

            def average_last(_module: nn.Module, _args: Any, out: Tensor) -> None:
                if out.ndim == 3:  # BLIP norms its pooled vectors with the same module
                    average(last, out)

            handles.append(self.final_norm.register_forward_hook(average_last))
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([pooled[number] for number in sorted(pooled)], dim=1)


class StatePooler:
    """Averages the hidden states that the library returns, of a model without layers that hooks could read.

    All of them are in memory at once. The vectors of a hierarchical model, e.g. Swin, ConvNeXt or ResNet, have the
    width of its widest layer; those of the others end in zeros.

    Args:
        widths: numbers of features of the layers to pool, which are the last of the states.
        normed: whether the last hidden state, which is the norm of the last layer, takes its place.
        channels_last: see `by_position`.
    """

    layers: tuple[nn.Module, ...] = ()
    final_norm: nn.Module | None = None
    asked: Mapping[str, bool] = MappingProxyType({"output_hidden_states": True})

    def __init__(self, widths: tuple[int, ...], *, normed: bool, channels_last: bool) -> None:
        self.widths, self.normed, self.channels_last = widths, normed, channels_last

    def run(self, forward: Any, mask: Shaped[Tensor, "B *W T"]) -> Float32[Tensor, "R L D"]:
        """Call `forward()`, which returns the model's output, and return the pooled layers; see `LayerPooler.run`.

        Raises:
            EncoderError: the layers have other widths, so what was taken for features depends on the input.
        """
        output, weights = forward(), weighted(mask)
        states = list(output.hidden_states)[-len(self.widths) :]
        if self.normed:
            states[-1] = output.last_hidden_state
        states = [by_position(state, channels_last=self.channels_last) for state in states]
        if (widths := tuple(state.shape[2] for state in states)) != self.widths:
            raise EncoderError(f"the layers of the encoder have {widths} features, and {self.widths} on a trial input")
        width = max(self.widths)
        pooled = [averaged(state, *weights, width).to(mask.device) for state in states]  # perhaps of several GPUs
        return torch.stack(pooled, dim=1)


def weighted(mask: Shaped[Tensor, "B *W T"]) -> tuple[Float32[Tensor, "B *W T"], Bool[Tensor, "B W"] | None]:
    """Weights of positions in the mean over those that a mask has; for words also which have any."""
    words = mask.any(-1) if mask.ndim == 3 else None
    counts = mask.sum(-1, keepdim=True)
    return mask.float() / (counts if words is None else counts.clamp(min=1)), words


def averaged(
    hidden: Float[Tensor, "B T D"],
    weights: Float32[Tensor, "B *W P"],
    words: Bool[Tensor, "B W"] | None,
    width: int | None = None,
) -> Float32[Tensor, "R F"]:
    """Average positions of items or words, see `weighted`; all, if their number is another than that of the weights.

    Args:
        width: append zeros up to this number of features; None: none.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        if hidden.shape[1] != weights.shape[-1]:  # a lower layer of a hierarchical model
            mean = hidden.float().mean(1)
        elif words is None:
            mean = torch.einsum("bt,btd->bd", weights.to(hidden.device), hidden.float())
        else:
            mean = torch.bmm(weights.to(hidden.device), hidden.float())[words.to(hidden.device)]
    return mean if width is None else nn.functional.pad(mean, (0, width - mean.shape[1]))


def layer_states(output: Any) -> list[Float[Tensor, "B T D"]]:
    """Hidden states of layers 1 to L, each (B, T, D), of a model's output; the last after the final norm, if any."""
    return [*output.hidden_states[1:-1], output.last_hidden_state]


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of all tensors: equal for equal weights, whatever file they come from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
