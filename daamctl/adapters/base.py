"""A fine-tuned encoder: which tensors are trained, at which rate, and which ones a file must contain."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from daamctl.adapters.module_lookup import device_of, recomputable_layers
from daamctl.errors import MethodError


@dataclass(frozen=True)
class Adaptation:
    """What a fine-tuning method has done to an encoder.

    Args:
        adapted: names of the encoder's modules that have an adapter, or whose own weights are trained.
        notes: caveats for the report, one line each.
        head: creates the classifier for C classes; None: the one that all methods share.
        lr_factor: learning rate of a tensor with this name, as a multiple of the base rate.
        published: whether it reproduces the released scripts, faults included.
        idle: prefix of the names of tensors that are flagged as trainable but not passed to an optimiser.
        before_head: maps the hidden states of all layers, each (B, T, D), and which positions are no padding (B, T),
            to what the classifier reads, (B, T, D); None: it reads the last hidden state.
    """

    adapted: tuple[str, ...]
    notes: tuple[str, ...] = ()
    head: Callable[[int], nn.Module] | None = None
    lr_factor: Callable[[str], float] = lambda _name: 1.0
    published: bool = False
    idle: str | None = None
    before_head: nn.Module | None = None


class FineTuned(nn.Module):
    """An adapted encoder and a classifier on its last hidden state, or on what a module makes of all of them.

    Args:
        head: maps the last hidden state (B, T, D) and the mask (B, T) to logits (B, C), in float32; for words, the mask
            (B, W, T) to the logits (N, C) of N words.

    Attributes:
        published, adapted, notes: see `Adaptation`.
        added: names of the tensors that did not come with the encoder, trained or not, including the classifier's.
    """

    def __init__(
        self, name: str, encoder: Any, head: nn.Module, adaptation: Adaptation, *, pretrained: Sequence[nn.Parameter]
    ) -> None:
        super().__init__()
        self.name = name
        self.model: nn.Module = encoder.model
        self.encoder = encoder
        self.head = head.to(device_of(self.model))
        self.before_head = None if adaptation.before_head is None else adaptation.before_head.to(device_of(self.model))
        self.published, self.adapted, self.notes = adaptation.published, adaptation.adapted, adaptation.notes
        self._lr_factor, self._idle = adaptation.lr_factor, adaptation.idle
        theirs = {id(value) for value in pretrained}
        self.added = tuple(key for key, value in self.named_parameters() if id(value) not in theirs)
        for value in self.trained().values():
            value.data = value.data.float()  # half-precision encoders: an optimiser's steps need full precision

    def forward(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Classify a batch from the encoder's `collate`.

        Args:
            inputs: keyword arguments of the encoder's model.
            mask: (B, T) 1 for positions to average, 0 for others; (B, W, T) for each of W words.

        Returns:
            logits (B, C), or (N, C) for N words, float32.
        """
        config: Any = self.model.config
        masked = getattr(config, "apply_spec_augment", False)
        if masked:  # transformers refuses to mask in time where all clips are shorter than one mask
            config.apply_spec_augment = mask.shape[-1] >= getattr(config, "mask_time_length", 0)
        try:
            states = [self.encoder.hidden(inputs)] if self.before_head is None else self.encoder.hidden_layers(inputs)
        finally:
            if masked:
                config.apply_spec_augment = masked
        hidden = states[-1]  # (B, T, D)
        with torch.autocast(hidden.device.type, enabled=False):
            if self.before_head is not None:
                visible = visible_positions(inputs, mask, hidden.shape[1])
                hidden = self.before_head(states, visible)
            logits: Tensor = self.head(hidden.float(), mask)
        return logits

    def trained(self) -> dict[str, nn.Parameter]:
        """The tensors for the optimiser, by name."""
        return {
            name: value
            for name, value in self.named_parameters()
            if value.requires_grad and not (self._idle and name.startswith(self._idle))
        }

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Group the trained tensors for AdamW, each tensor once.

        Biases, norms and other vectors get no weight decay: it would pull a factor that starts at 1 towards 0. The
        published variants decay everything, as AdamW does by default.

        Args:
            lr: learning rate; for LoRA+, that of A and of the classifier.
        """
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, value in self.trained().items():
            vector = sum(size > 1 for size in value.shape) <= 1
            decay = 0.0 if vector and not self.published else weight_decay
            groups.setdefault((lr * self._lr_factor(name), decay), []).append(value)
        return [{"params": values, "lr": rate, "weight_decay": decay} for (rate, decay), values in groups.items()]

    def trainable_state(self) -> dict[str, Tensor]:
        """Copy to CPU everything needed, besides the pretrained encoder, to restore this model.

        That is every trained tensor, and the random tensors that a method adds and never trains.
        """
        return {name: value.detach().cpu().clone().contiguous() for name, value in self._own().items()}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load the `trainable_state` of an identically built model.

        Raises:
            MethodError: a tensor is missing, unknown, or of another shape; nothing is changed then.
        """
        own = self._own()
        wrong = sorted(own.keys() ^ state.keys())
        wrong += [name for name in sorted(own.keys() & state.keys()) if own[name].shape != state[name].shape]
        if wrong:
            raise MethodError(
                f"weights do not fit {self.name}: {len(wrong)} tensors missing, unknown or of another shape, "
                f"first '{wrong[0]}'",
                fix="they belong to another encoder, way of fine-tuning or number of classes",
            )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state[name])

    def train_mode(self, encoder_dropout: bool) -> None:
        """Prepare for training.

        Args:
            encoder_dropout: enable the encoder's own dropout, layer drop and time masking; otherwise it computes as in
                feature extraction. Batch norm always uses the statistics of the pretrained encoder.
        """
        self.train()
        self.model.train(encoder_dropout)
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()

    def enable_gradient_checkpointing(self) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them.

        transformers' own switch affects only layers in training mode, which these are not without encoder dropout.

        Raises:
            MethodError: the encoder has no layers that support it.
        """
        layers = recomputable_layers(self.model)
        if not layers:
            raise MethodError(
                f"no layers to recompute in {type(self.model).__name__}",
                fix="set finetune.gradient_checkpointing=false",
            )
        for layer in layers:
            layer.forward = functools.partial(_recomputed, layer.forward)

    def _own(self) -> dict[str, Tensor]:
        kept = {*self.trained(), *self.added}
        own: dict[str, Tensor] = {name: value for name, value in self.named_parameters() if name in kept}
        if self.before_head is not None:  # DWAtt draws its positions once and never trains them
            own |= {f"before_head.{name}": value for name, value in self.before_head.named_buffers()}
        return own


def visible_positions(inputs: Mapping[str, Tensor], mask: Tensor, length: int) -> Tensor | None:
    """Which of T positions are no padding, (B, T).

    Args:
        mask: positions that the classifier averages; (B, T), or (B, W, T) for words.

    Returns:
        the encoder's own mask if it has one for these positions, else the classifier's; None: all.
    """
    if "pixel_values" in inputs:  # the class token may be left out of the mean, but is no padding
        return None
    given = inputs.get("attention_mask")
    # that of speech counts samples, that of Qwen2-Audio says what each position sees
    if given is None or given.ndim != 2 or given.shape[-1] != length:
        given = mask if mask.ndim == 2 else None
    return None if given is None else given > 0


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a CPU generator seeded with `seed` in the block; the global one then continues unaffected."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed GPUs, without restoring them
        yield


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one layer with activation checkpointing, unless no gradient can be requested.

    Uses the non-reentrant form: the reentrant one needs an input with a gradient, but the first layers' inputs are
    frozen.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
