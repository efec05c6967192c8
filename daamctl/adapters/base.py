"""A fine-tuned encoder: what of it is trained, at which rate, and what a file must hold to have it back."""

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
    """What a way of fine-tuning has done to an encoder.

    Args:
        adapted: names of the encoder's modules that have an adapter, or whose own weights are trained.
        notes: what a reader of its figures must know, one line each.
        head: makes the classifier for C classes; None: the one that all ways share.
        lr_factor: learning rate of a tensor of this name, as a multiple of the rate given.
        published: the released scripts' behaviour, faults included.
        idle: beginning of the names of tensors that are flagged as trainable but that no optimiser holds.
    """

    adapted: tuple[str, ...]
    notes: tuple[str, ...] = ()
    head: Callable[[int], nn.Module] | None = None
    lr_factor: Callable[[str], float] = lambda _name: 1.0
    published: bool = False
    idle: str | None = None


class FineTuned(nn.Module):
    """An adapted encoder and a classifier on its last hidden state.

    Args:
        name: its name in the table.
        encoder: see `build_finetune`.
        head: maps the last hidden state (B, T, D) and the mask (B, T) to logits (B, C), in float32.
        adaptation: what has been done to the encoder.
        pretrained: the encoder's tensors before that.

    Attributes:
        published: whether this is the behaviour of the released scripts.
        adapted: names of the adapted modules.
        notes: what a reader of its figures must know.
        added: names of the tensors that did not come with the encoder, trained or not, the classifier's among them.
    """

    def __init__(
        self, name: str, encoder: Any, head: nn.Module, adaptation: Adaptation, *, pretrained: Sequence[nn.Parameter]
    ) -> None:
        super().__init__()
        self.name = name
        self.model: nn.Module = encoder.model
        self.encoder = encoder
        self.head = head.to(device_of(self.model))
        self.published, self.adapted, self.notes = adaptation.published, adaptation.adapted, adaptation.notes
        self._lr_factor, self._idle = adaptation.lr_factor, adaptation.idle
        theirs = {id(value) for value in pretrained}
        self.added = tuple(key for key, value in self.named_parameters() if id(value) not in theirs)
        for value in self.trained().values():
            value.data = value.data.float()  # half-precision encoders: an optimiser's steps need the full one

    def forward(self, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Classify a batch as the encoder's `collate` gives it.

        Args:
            inputs: keyword arguments of the encoder's model.
            mask: (B, T) 1 for positions that count in the mean, 0 for others.

        Returns:
            logits (B, C), float32.
        """
        hidden = self.encoder.hidden(inputs)  # (B, T, D)
        with torch.autocast(hidden.device.type, enabled=False):
            logits: Tensor = self.head(hidden.float(), mask)
        return logits

    def trained(self) -> dict[str, nn.Parameter]:
        """The tensors that an optimiser is to hold, by name."""
        return {
            name: value
            for name, value in self.named_parameters()
            if value.requires_grad and not (self._idle and name.startswith(self._idle))
        }

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """The trained tensors as groups for AdamW, each tensor once.

        Biases, norms and other vectors have no decay: it would pull a factor that starts at 1 towards 0. The published
        forms decay everything, as AdamW does by default.

        Args:
            lr: learning rate; of LoRA+ that of A and of the classifier.
            weight_decay: decoupled decay.
        """
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, value in self.trained().items():
            vector = sum(size > 1 for size in value.shape) <= 1
            decay = 0.0 if vector and not self.published else weight_decay
            groups.setdefault((lr * self._lr_factor(name), decay), []).append(value)
        return [{"params": values, "lr": rate, "weight_decay": decay} for (rate, decay), values in groups.items()]

    def trainable_state(self) -> dict[str, Tensor]:
        """Copies on CPU of what, over the pretrained encoder, makes this model.

        That is every trained tensor and, of the published forms, the random ones that they never train.
        """
        return {name: value.detach().cpu().clone().contiguous() for name, value in self._own().items()}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `trainable_state` of a model built alike has given.

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
        """Make ready for training.

        Args:
            encoder_dropout: switch on the encoder's own dropout, layer drop and time masking; otherwise it computes as
                in feature extraction. Statistics of batch norms stay those of the pretrained encoder.
        """
        self.train()
        self.model.train(encoder_dropout)
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()

    def enable_gradient_checkpointing(self) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them.

        transformers' own switch does so only for layers in training mode, and ours are not without encoder dropout.

        Raises:
            MethodError: the encoder has no layers that can be recomputed.
        """
        layers = recomputable_layers(self.model)
        if not layers:
            raise MethodError(
                f"no layers to recompute in {type(self.model).__name__}",
                fix="set finetune.gradient_checkpointing=false",
            )
        for layer in layers:
            layer.forward = functools.partial(_recomputed, layer.forward)

    def _own(self) -> dict[str, nn.Parameter]:
        kept = {*self.trained(), *self.added}
        return {name: value for name, value in self.named_parameters() if name in kept}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` on CPU within; the generators of the program go on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed GPUs, for good
        yield


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One layer, its activations kept only where no gradient can be asked for.

    Not the reentrant form, which needs an input with a gradient: here the first layers' inputs are frozen.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
