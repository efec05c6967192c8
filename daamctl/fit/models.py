"""The models of a stack, and how they take a step: one by itself, several in one program, or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from daamctl.config import TrainConfig
from daamctl.cpu_formats import cpu_formats
from daamctl.devices import autocast
from daamctl.fit.losses import build_loss
from daamctl.fit.optimizer import adam, check_gradients, clip_by_member, gradients_of, is_decayed, load_optimizer
from daamctl.methods.base import FusionClassifier

SEPARATE = (nn.Conv2d, nn.Dropout, _BatchNorm)
"""Modules that rule out a stack of several: convolutions already fill the processor; the others hold state or draw
random numbers that the models would share."""


def stackable(model: FusionClassifier) -> bool:
    """Whether several of these models can be trained in one stack without affecting one another."""
    plain = type(model).training_loss is FusionClassifier.training_loss
    traits = model.traits
    free = not (traits.batch_dependent or traits.needs_dev or traits.closed_form)
    return plain and free and not any(isinstance(module, SEPARATE) for module in model.modules())


class One:
    """A single model, trained as it is."""

    def __init__(self, model: FusionClassifier, config: TrainConfig, device: str, precision: str) -> None:
        self.model, self.config, self.device, self.precision = model, config, device, precision
        self.loss = build_loss(config)
        self.channels_last = channels_last(device, precision)
        if self.channels_last:
            order_weights(model, torch.channels_last)
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        groups = [
            {
                "params": [one for name, one in trained.items() if is_decayed(name, one, config.decay) == decayed],
                "lr": config.lr,
                "weight_decay": config.weight_decay if decayed else 0.0,
            }
            for decayed in (True, False)
        ]
        self.optimizer = adam(groups, device, decoupled=config.optimizer == "adamw")
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=precision == "float16")
        self.checked = False

    def step(self, x: Float[Tensor, "1 B L D"], y: Int[Tensor, "1 B"]) -> tuple[Tensor, Tensor]:
        """Train on a batch; returns the loss (1,) and the logits (1, B, C).

        Raises:
            TrainingError: at the first step, if a trainable tensor gets no gradient.
        """
        with autocast(self.device, self.precision):
            loss, logits = self.model.training_loss(x[0], y[0], self.loss)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if not self.checked:
            check_gradients(gradients_of(self.model))
            self.checked = True
        if self.config.grad_clip_norm is not None:
            if self.config.grad_clip == "unscaled":
                self.scaler.unscale_(self.optimizer)  # so that clipping sees true, unscaled gradients (D21)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()[None], logits.detach()[None]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put copies in place of the weights, in the memory format in which this device evaluates.

        NVIDIA GPUs are made for contiguous convolutions in float32, and for channels last in half precision.
        """
        if not self.channels_last or not self.device.startswith("cuda"):
            yield
            return
        trained = [(value, value.data) for value in self.model.parameters()]
        order_weights(self.model, torch.contiguous_format)
        try:
            yield
        finally:
            for value, data in trained:
                value.data = data  # a recorded step knows their addresses

    def state(self) -> dict[str, Any]:
        """States of model, optimiser and scaler."""
        return {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved `state`."""
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        for value, moments in self.optimizer.state.items():  # the fused kernel ignores strides
            for name, moment in moments.items():
                if moment.shape == value.shape and moment.stride() != value.stride():
                    moments[name] = torch.empty_like(value, requires_grad=False).copy_(moment)


class Many:
    """Models of F trials with C candidates each, in one program.

    All trained numbers of a model lie side by side in one row of `flat` (F, C, P), those with weight decay first; the
    models' own tensors are views of it, so they follow every step. Buffers are those of the trials.

    Args:
        models: F x C models that are `stackable`, trial by trial, on the device.
        configs: their settings; only rate and decay differ.
        shape: F and C.
    """

    def __init__(
        self,
        models: Sequence[FusionClassifier],
        configs: Sequence[TrainConfig],
        shape: tuple[int, int],
        device: str,
        precision: str,
    ) -> None:
        self.device, self.precision, self.config = device, precision, configs[0]
        template, loss = models[0], build_loss(configs[0])
        trained = {name: value for name, value in template.named_parameters() if value.requires_grad}
        decayed = [name for name, value in trained.items() if is_decayed(name, value, self.config.decay)]
        names = [*decayed, *(name for name in trained if name not in decayed)]
        split = sum(trained[name].numel() for name in decayed)
        own = [dict(model.named_parameters()) for model in models]
        rows = [torch.cat([tensors[name].detach().reshape(-1) for name in names]) for tensors in own]
        self.flat = torch.stack(rows).view(*shape, -1)  # (F, C, P)
        self.gradient = torch.zeros_like(self.flat)
        self.values: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        start = 0
        for name in names:
            part = slice(start, start + trained[name].numel())
            start = part.stop
            self.values[name] = self.flat[..., part].view(*shape, *trained[name].shape).detach().requires_grad_()
            self.gradients[name] = self.gradient[..., part].view(*shape, *trained[name].shape)
        for index, tensors in enumerate(own):
            trial, candidate = divmod(index, shape[1])
            for name in names:
                tensors[name].data = self.values[name].detach()[trial, candidate]
        fixed = [
            {name: value for name, value in [*model.named_parameters(), *model.named_buffers()] if name not in names}
            for model in models[:: shape[1]]
        ]
        self.fixed = {name: torch.stack([one[name].detach() for one in fixed]) for name in fixed[0]}

        def one_loss(
            values: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[Tensor, Tensor]:
            logits = functional_call(template, (values, fixed), (x,))
            return loss(logits, y), logits

        self.losses: Callable[..., tuple[Tensor, Tensor]] = vmap(vmap(one_loss, (0, None, None, None)))
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for index, config in enumerate(configs):
            place = divmod(index, shape[1])
            for part, decay in ((slice(0, split), config.weight_decay), (slice(split, None), 0.0)):
                leaf = self.flat[*place, part]
                leaf.grad = self.gradient[*place, part]
                if leaf.numel():
                    groups.setdefault((config.lr, decay), []).append(leaf)
        alike = [{"params": leaves, "lr": lr, "weight_decay": decay} for (lr, decay), leaves in groups.items()]
        self.optimizer = adam(alike, device, decoupled=self.config.optimizer == "adamw")

    def step(self, x: Float[Tensor, "F B L D"], y: Int[Tensor, "F B"]) -> tuple[Tensor, Tensor]:
        """Train every model on the batch of its trial; returns losses (F * C,) and logits (F * C, B, classes).

        Raises:
            TrainingError: a trainable tensor gets no gradient.
        """
        with (
            autocast(self.device, self.precision),
            sdpa_kernel(SDPBackend.MATH),
        ):  # the other attention kernels cannot be batched over models
            losses, logits = self.losses(self.values, self.fixed, x, y)
        found = torch.autograd.grad(losses.sum(), list(self.values.values()), allow_unused=True)
        check_gradients(dict(zip(self.values, found, strict=True)))
        for own, gradient in zip(self.gradients.values(), found, strict=True):
            own.copy_(gradient)
        if self.config.grad_clip_norm is not None:
            clip_by_member(self.gradient, self.config.grad_clip_norm)
        self.optimizer.step()
        return losses.detach().flatten(), logits.detach().flatten(0, 1)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Models that are stacked are evaluated as they are."""
        yield

    def state(self) -> dict[str, Any]:
        """All trained numbers, and the state of the optimiser."""
        return {"flat": self.flat.cpu(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved `state`."""
        self.flat.copy_(state["flat"])
        load_optimizer(self.optimizer, state["optimizer"])


def channels_last(device: str, precision: str) -> bool:
    """Whether 2-D convolutions use the channels-last memory format.

    Half-precision GPU kernels expect it. On a CPU it is used where it was measured to be faster. It changes only the
    memory layout, not the shapes or values of the weights.
    """
    if device == "cpu":
        return cpu_formats().channels_last.get(precision, False)
    return device.startswith("cuda") and precision != "float32"


def order_weights(model: nn.Module, order: torch.memory_format) -> None:
    """Set the memory format of the weights of 2-D convolutions."""
    model.to(memory_format=order)  # type: ignore[call-overload]  # torch's annotations lack it
