"""A training step as a CUDA graph: its kernels are recorded once and then launched with a single call.

A small model's step is about a hundred kernels, which take a GPU less time than Python takes to launch them. The first
steps run as usual, on the stream that will record: libraries set themselves up there, and as these are steps of the
training, nothing has to be restored afterwards. Recording executes nothing. What makes a replay right:

- The recorded kernels read and write fixed addresses: of weights, moments and rates, of the batch below, and of memory
  that belongs to the graph, where gradients and activations are. Before a replay the addresses are compared with the
  recorded ones; if any has changed, the step is recorded again.
- Rates are tensors on the GPU, which `set_rate` fills.
- Nothing in a step asks the GPU for a number. Clipping multiplies by a factor that stays there, Adam's fused kernel
  counts its steps there, so does the scaler of float16, and the gradients have been checked in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from daamctl.compute.devices import is_out_of_memory
from daamctl.errors import TrainingError
from daamctl.methods.base import FusionClassifier

DEVICES = ("cuda",)
"""Kinds of devices that record graphs."""
WARM_UP = 3
"""Steps that are taken before one is recorded."""
STATEFUL = (nn.Dropout, _BatchNorm)
"""Modules that draw random numbers or change in the forward pass."""


class Models(Protocol):
    """One model or several that take their steps together (`daamctl.fit.stack`).

    Attributes:
        keeps_gradients: gradients stay at their addresses; else a recorded step makes them in the memory of its graph.
    """

    optimizer: torch.optim.Optimizer
    keeps_gradients: bool

    def step(self, x: Tensor, y: Tensor, /) -> tuple[Tensor, Tensor]:
        """Take a step; returns losses and logits."""


def obstacle(model: FusionClassifier, device: str, *, held: bool) -> str | None:
    """Why the training steps of a model cannot be recorded; None if they can.

    The loss of a method that defines its own may do anything, so only the plain one is recorded.

    Args:
        held: the training part is in the memory of the device.
    """
    plain = type(model).training_loss is FusionClassifier.training_loss
    if device.split(":")[0] not in DEVICES:
        return f"{device} records no graphs"
    if not held:
        return "its embeddings are not in the memory of the GPU"
    if model.traits.needs_dev or not plain:
        return "its loss is not the plain one of its logits"
    if any(isinstance(module, STATEFUL) for module in model.modules()):
        return "it has dropout or batch normalisation"
    if has_foreign_parts(model):
        return "another package defines a part of it"
    return None


def has_foreign_parts(model: nn.Module) -> bool:
    """Whether a package that adds methods defines a part of it, which may do what only plain steps can."""
    return any(not type(one).__module__.startswith(("daamctl.", "torch.")) for one in model.modules())


class Graph:
    """A function that is recorded on a stream of its own; its memory is freed with it."""

    def __init__(self, device: str) -> None:
        self.device, self.own = device, torch.cuda.Stream(device)
        self.recorded: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Within the block, work is queued on the own stream, which the current one then waits for."""
        current = torch.cuda.current_stream(self.device)
        self.own.wait_stream(current)
        with torch.cuda.stream(self.own):
            yield
        current.wait_stream(self.own)

    def record(self, work: Callable[[], None]) -> None:
        """Record a function without executing it; replaces what was recorded."""
        self.recorded = None  # frees its memory
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=self.own):
            work()
        self.recorded = recorded

    def replay(self) -> None:
        """Execute what was recorded, on the own stream."""
        assert self.recorded is not None
        self.recorded.replay()


class GraphedStep:
    """Takes the steps of the models of a stack."""

    def __init__(self, models: Models, device: str) -> None:
        self.models, self.graph = models, Graph(device)
        self.warm_up, self.addresses = WARM_UP, list[int]()
        self.batch: tuple[Tensor, ...] = ()
        self.results: tuple[Tensor, ...] = ()
        for group in models.optimizer.param_groups:
            group["capturable"] = True  # else Adam refuses; fused, it computes the same either way

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step; see `SingleModel.step`. A batch of another shape, the last of a pass, is not recorded.

        Raises:
            TrainingError: the step cannot be recorded.
        """
        with self.graph.stream():
            if self.warm_up or x.shape != self.batch[0].shape:
                if self.warm_up:
                    self.batch = (x.clone(), y.clone())
                    self.warm_up -= 1
                return self.models.step(x, y)
            for own, given in zip(self.batch, (x, y), strict=True):
                own.copy_(given)
            addresses = self._addresses()
            if addresses != self.addresses:
                self._record()
                self.addresses = addresses
            self.graph.replay()
            losses, logits = self.results
            return losses.clone(), logits.clone()

    def _addresses(self) -> list[int]:
        """Addresses of weights and moments, which loading a state may change."""
        optimizer = self.models.optimizer
        weights = [value for group in optimizer.param_groups for value in group["params"]]
        moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
        return [tensor.data_ptr() for tensor in [*weights, *moments]]

    def _record(self) -> None:
        def work() -> None:
            self.results = self.models.step(*self.batch)

        if not self.models.keeps_gradients:
            self.models.optimizer.zero_grad(set_to_none=True)
        try:
            self.graph.record(work)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "")
            raise TrainingError(
                f"the training step cannot be recorded as a CUDA graph: {reason}",
                fix="train with --set train.graphs=never",
            ) from error
