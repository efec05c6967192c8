"""Training steps as CUDA graphs: the kernels of a step are recorded once and then launched with a single call.

A small model's step is about a hundred kernels, which take a GPU less time than Python takes to launch them. The first
steps of a training run as usual, on the stream that will record: libraries set themselves up there, and as these are
steps of the training, nothing has to be restored afterwards. Recording executes nothing. Each replay then takes one
step: it is a recorded call of `FusionTraining.step`, the function that trains without a graph, on the batch that a
counter on the GPU points to, and leaves loss and logits where the host collects them now and then.

What makes a replay right:

- The recorded kernels read and write fixed addresses: those of the weights and moments, of the buffers below, and of
  memory that belongs to the graph, where gradients and activations are. Before every block of replays the addresses
  of weights and moments are compared with the recorded ones; if any has changed, the step is recorded again.
- Numbers of Python are recorded as constants. The only ones that change are the learning rates; a step with another
  rate is recorded again. (A rate in a tensor would be float32, and round differently from a step without a graph.)
- A step first drops the gradients, so its backward pass writes new ones and never adds to older ones. Steps outside
  of the graph, as that of the smaller last batch, have theirs in other memory, which no recorded kernel knows.
- Nothing in a step asks the GPU for a number. Clipping multiplies by a factor that stays there, Adam's fused kernel
  counts its steps there, and the gradients have been checked in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from daamctl.devices import is_out_of_memory
from daamctl.errors import TrainingError
from daamctl.methods.base import FusionClassifier
from daamctl.training.feature_split import InMemorySplit

if TYPE_CHECKING:
    from daamctl.training.fusion_training import FusionTraining, Seen

DEVICES = ("cuda",)
"""Kinds of devices that record graphs."""
WARM_UP = 3
"""Steps that a training takes before one is recorded."""
BLOCK = 32
"""Replays after which the host collects losses and logits, and may save the state."""
MOST_STREAMS = 8
"""Largest number of trainings side by side: CUDA has eight hardware queues unless told otherwise."""
STATEFUL = (nn.Dropout, _BatchNorm)
"""Modules that draw random numbers or change in the forward pass."""


def obstacle(model: FusionClassifier, device: str, precision: str, *, held: bool) -> str | None:
    """Why the training steps of a model cannot be recorded; None if they can.

    The loss of a method that defines its own may do anything, so only the plain one is recorded.

    Args:
        model: the model, on any device.
        device: resolved device of the training.
        precision: resolved precision of its steps.
        held: the training part is in the memory of the device.
    """
    plain = type(model).training_loss is FusionClassifier.training_loss
    if device.split(":")[0] not in DEVICES:
        return f"{device} records no graphs"
    if not held:
        return "its embeddings are not in the memory of the GPU"
    if precision == "float16":
        return "float16 looks at the gradients before every step, to scale the loss"
    if model.traits.needs_dev or not plain:
        return "its loss is not the plain one of its logits"
    if any(isinstance(module, STATEFUL) for module in model.modules()):
        return "it has dropout or batch normalisation"
    return None


class Graph:
    """A function that is recorded on a stream of its own; its memory is freed with it."""

    def __init__(self, device: str) -> None:
        self.device, self.own = device, torch.cuda.Stream(device)
        self.recorded: torch.cuda.CUDAGraph | None = None

    def stream(self) -> AbstractContextManager[Any]:
        """Within the block, work is queued on the own stream."""
        return torch.cuda.stream(self.own)

    def begin(self) -> None:
        """Let the own stream wait for what the current one has been given so far."""
        self.own.wait_stream(torch.cuda.current_stream(self.device))

    def end(self) -> None:
        """Let the current stream wait for what the own one has been given so far."""
        torch.cuda.current_stream(self.device).wait_stream(self.own)

    def record(self, work: Callable[[], None]) -> None:
        """Record a function without executing it; replaces what was recorded."""
        self.recorded = None  # frees its memory
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded, stream=self.own):
            work()
        self.recorded = recorded

    def replay(self) -> None:
        """Execute what was recorded."""
        assert self.recorded is not None
        with self.stream():
            self.recorded.replay()


class GraphedSteps:
    """Takes the steps of one training, which is the same in every call.

    Args:
        device: resolved device of the training.

    Attributes:
        at: (1,) number of the next step within its block.
        rows: (BLOCK, B) rows of the features, for each step of a block.
        targets: (BLOCK, B) class ids.
        losses: (BLOCK,) results, in the number format of the step.
        logits: (BLOCK, B, C) likewise.
        numbers: (BLOCK,) 0, 1, 2, and so on.
    """

    at: Tensor
    numbers: Tensor
    rows: Tensor
    targets: Tensor
    losses: Tensor
    logits: Tensor

    def __init__(self, device: str) -> None:
        self.graph = Graph(device)
        self.warm_up = WARM_UP
        self.constants: list[Any] | None = None

    def steps(self, training: FusionTraining, order_seed: int, seen: Seen) -> Iterator[None]:
        """Take the steps of a pass that `seen` does not have yet; yields after each one is queued.

        Args:
            training: its training part is in the memory of the device.
            order_seed: seed of the batch order.
            seen: gets losses and predictions.

        Raises:
            TrainingError: the step cannot be recorded.
        """
        part, size = training.train, training.config.batch_size
        assert isinstance(part, InMemorySplit)
        self.graph.begin()
        with self.graph.stream():
            rows, targets = part.order(order_seed)
        full, done = len(rows) // size, len(seen.losses)
        while done < full and self.warm_up:
            self._eager(training, rows[done * size :][:size], targets[done * size :][:size], seen)
            self.warm_up -= 1
            done += 1
            if not self.warm_up:
                with self.graph.stream():
                    self._allocate(seen.losses[-1], seen.logits[-1])
            yield
        while done < full:
            block = slice(done * size, min(done + BLOCK, full) * size)
            with self.graph.stream():
                number = self._prepare(training, rows[block], targets[block])
            for _ in range(number):
                self.graph.replay()
                yield
            with self.graph.stream():
                seen.losses += self.losses[:number].clone().unbind()
                seen.logits += self.logits[:number].clone().unbind()
            seen.targets += targets[block].split(size)
            done += number
            training.save_if_due()
        if done * size < len(rows):
            self._eager(training, rows[done * size :], targets[done * size :], seen)
            yield
        self.graph.end()

    def _eager(self, training: FusionTraining, rows: Tensor, targets: Tensor, seen: Seen) -> None:
        """Take one step without a graph."""
        assert isinstance(training.train, InMemorySplit)
        with self.graph.stream():
            seen.add(*training.step(training.train.x[rows], targets))
        training.save_if_due()

    def _allocate(self, loss: Tensor, logits: Tensor) -> None:
        """Allocate the buffers, for steps with a loss and logits like these."""
        whole: dict[str, Any] = {"dtype": torch.int64, "device": logits.device}
        self.at, self.numbers = torch.zeros(1, **whole), torch.arange(BLOCK, **whole)
        self.rows, self.targets = (torch.zeros(BLOCK, len(logits), **whole) for _ in range(2))
        self.losses = loss.new_zeros(BLOCK)
        self.logits = logits.new_zeros(BLOCK, *logits.shape)

    def _prepare(self, training: FusionTraining, rows: Tensor, targets: Tensor) -> int:
        """Make ready the steps of a block, which have these rows and class ids; return their number."""
        constants = constants_of(training)
        if constants != self.constants:
            self._record(training)
            self.constants = constants
        size = training.config.batch_size
        number = len(rows) // size
        self.rows[:number].copy_(rows.view(number, size))
        self.targets[:number].copy_(targets.view(number, size))
        self.at.zero_()
        return number

    def _record(self, training: FusionTraining) -> None:
        """Record a step."""
        training.optimizer.zero_grad(set_to_none=True)
        groups = training.optimizer.param_groups
        for group in groups:
            group["capturable"] = True  # else Adam refuses; fused, it computes the same either way
        try:
            self.graph.record(partial(self._step, training))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "")
            raise TrainingError(
                f"the training step cannot be recorded as a CUDA graph: {reason}",
                fix="train with --set train.graphs=never",
            ) from error
        finally:
            for group in groups:
                group["capturable"] = False
            training.optimizer.zero_grad(set_to_none=True)  # they are in the memory of the graph

    def _step(self, training: FusionTraining) -> None:
        """The recorded step."""
        assert isinstance(training.train, InMemorySplit)
        rows, y = (every.index_select(0, self.at).view(-1) for every in (self.rows, self.targets))
        loss, logits, _ = training.step(training.train.x[rows], y)
        now = self.numbers == self.at  # where() instead of an indexed write, whose deterministic kernels sort
        torch.where(now, loss.detach(), self.losses, out=self.losses)
        torch.where(now.view(-1, 1, 1), logits.detach(), self.logits, out=self.logits)
        self.at += 1


def constants_of(training: FusionTraining) -> list[Any]:
    """What a recorded step holds as constants and may change: rates, and addresses of weights, buffers and moments."""
    model, optimizer = training.model, training.optimizer
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    tensors = [*model.parameters(), *model.buffers(), *moments]
    return [group["lr"] for group in optimizer.param_groups] + [tensor.data_ptr() for tensor in tensors]
