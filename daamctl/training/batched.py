"""Train several small models jointly: folds, seeds, or candidates of a search.

A step of a small method is short and dominated by kernel launches. In a program, the weights of several models are
stacked, and one forward and backward pass serves all of them, each on its own batch. The batches, their order and the
optimiser's steps are those of separate training; only rounding differs. Where steps are CUDA graphs (`graphed`), they
run side by side instead, and nothing differs. Each member does its own evaluation, schedule, selection
and resume file after an epoch, so an interrupted group resumes from its members' files, jointly or one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from daamctl.devices import autocast
from daamctl.methods.base import FusionClassifier
from daamctl.training.feature_split import InMemorySplit, on_device
from daamctl.training.fusion_training import FusionTraining, Seen
from daamctl.training.loop import Training

MOST_MEMBERS = 32
"""Largest number of models in one program."""
SEPARATE = (nn.Conv2d, nn.Dropout, _BatchNorm)
"""Modules that rule out joint training: convolutions already fill the processor; the others hold state or draw random
numbers that members would share."""


def separable(model: FusionClassifier) -> bool:
    """Whether copies of this model can be trained jointly without affecting one another."""
    plain = type(model).training_loss is FusionClassifier.training_loss
    traits = model.traits
    free = not (traits.batch_dependent or traits.needs_dev or traits.closed_form)
    return plain and free and not any(isinstance(module, SEPARATE) for module in model.modules())


def train_jointly(
    trainings: Sequence[Training], epochs: int | None, *, members: int = MOST_MEMBERS, pause: bool = False
) -> None:
    """Train each of several trainings until `epochs` epochs are done; with None, to its end.

    Args:
        trainings: trainings of one method; fusions with the same tensors are trained jointly: in one program, or, if
            their steps are CUDA graphs, side by side.
        epochs: see above.
        members: largest number to train jointly; 1: one after the other.
        pause: pause each training afterwards.
    """
    alike: dict[tuple[str, ...], list[Training]] = {}
    for training in trainings:
        names = tuple(training.model.state_dict()) if isinstance(training, FusionTraining) else ()
        alike.setdefault(names, []).append(training)
    for same in alike.values():
        for start in range(0, len(same), members):
            batch = same[start : start + members]
            if len(batch) > 1:
                fusions = [training for training in batch if isinstance(training, FusionTraining)]
                graphed = all(training.graphed is not None for training in fusions)
                (_train_side_by_side if graphed else _train_in_one_program)(fusions, epochs)
            for training in batch:
                training.train_until(epochs)  # does nothing if it was trained above
                if pause:
                    training.pause()


def _train_side_by_side(trainings: Sequence[FusionTraining], epochs: int | None) -> None:
    """Train fusions whose steps are CUDA graphs, each on a stream of its own: they share the GPU, and nothing else.

    This thread launches a step of each in turn. A small model's step leaves most of a large GPU idle.
    """
    for training in trainings:
        if not training.reached(epochs):
            training.end_open_epoch()
    while running := [training for training in trainings if not training.reached(epochs)]:
        started = time.monotonic()
        for training in running:
            training.begin_pass(1 / len(running))
        for _ in zip_longest(*(training.steps(training.order_seed) for training in running)):
            pass
        passed = [training.end_pass() for training in running]
        pass_s = (time.monotonic() - started) / len(running)
        for training, (loss, accuracy) in zip(running, passed, strict=True):
            training.end_epoch(loss, accuracy, pass_s)


def _train_in_one_program(trainings: Sequence[FusionTraining], epochs: int | None) -> None:
    """Train fusions with the same tensors in one program; those left when some have ended form a smaller one."""
    unfinished = [training for training in trainings if not training.reached(epochs)]
    for training in unfinished:
        training.end_open_epoch()
    unfinished = [training for training in unfinished if not training.reached(epochs)]
    while unfinished:
        program = Program(unfinished)
        while not any(training.reached(epochs) for training in unfinished):
            program.epoch()
        unfinished = [training for training in unfinished if not training.reached(epochs)]


@dataclass
class _MemberPass:
    """One pass of a member of a program over its training part.

    Args:
        training: the member.
        rows: (N,) rows of the features, in the order of this epoch.
        targets: (N,) class ids in the same order.
        batch_size: clips per step.
        seen: losses and predictions so far.
    """

    training: FusionTraining
    rows: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    batch_size: int
    seen: Seen = field(default_factory=Seen)

    @property
    def num_full(self) -> int:
        """Number of full batches; one smaller batch may follow them."""
        return len(self.rows) // self.batch_size

    def step_alone(self, x: Float[Tensor, "M L D"], clips: slice) -> None:
        """Train this member alone on some of its clips."""
        self.seen.add(*self.training.step(x[self.rows[clips]], self.targets[clips]))


class Program:
    """Several models of one kind with stacked weights; each is at its own epoch.

    The models' own tensors become views of the stacks, so a change of either shows in both.

    Args:
        trainings: at least one; all over the same features in memory.
    """

    def __init__(self, trainings: Sequence[FusionTraining]) -> None:
        # most steps first, so that the members that still have a full batch are always a prefix
        self.members = sorted(trainings, key=lambda training: -len(training.train))
        models = [member.model for member in self.members]
        tensors = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
        linear = {f"{name}.weight" for name, module in models[0].named_modules() if isinstance(module, nn.Linear)}
        self.stacks = {name: _stack([one[name].detach() for one in tensors], name in linear) for name in tensors[0]}
        self.trained = [name for name, value in tensors[0].items() if value.requires_grad]
        for index, one in enumerate(tensors):
            for name, tensor in one.items():
                tensor.data = self.stacks[name][index]
        for member in self.members:
            member.align()
        self.lead = self.members[0]

    def epoch(self) -> None:
        """Train every member for one epoch."""
        started = time.monotonic()
        seen = self.one_pass()
        pass_s = (time.monotonic() - started) / len(self.members)
        for member, found in zip(self.members, seen, strict=True):
            member.end_epoch(*found.means(), pass_s)

    def one_pass(self) -> list[Seen]:
        """Run one pass over every member's training part.

        Training parts differ in size. A member takes part in joint steps as long as it has a full batch.
        """
        size = self.lead.config.batch_size
        x = _part(self.lead).x
        passes = []
        for training in self.members:
            rows, targets = _part(training).order(training.order_seed)
            passes.append(_MemberPass(training, rows, targets, size))
            training.model.train()
        step = 0
        if any(not training.optimizer.state for training in self.members):
            # The first step of a training creates the optimiser's state and checks the gradients.
            for member in passes:
                if member.num_full:
                    member.step_alone(x, slice(0, size))
            step = 1
        while step < passes[0].num_full:  # the first member has most
            together = [member for member in passes if member.num_full > step]
            until = min(member.num_full for member in together)
            joint_step = JointStep(self, len(together))
            for start in range(step * size, until * size, size):
                clips = slice(start, start + size)
                rows = torch.stack([member.rows[clips] for member in together])
                targets = torch.stack([member.targets[clips] for member in together])
                losses, logits = joint_step(x[rows], targets)
                for member, loss, own_logits, own_targets in zip(together, losses, logits, targets, strict=True):
                    member.seen.add(loss, own_logits, own_targets)
            step = until
        for member in passes:
            if member.num_full * size < len(member.rows):
                member.step_alone(x, slice(member.num_full * size, None))  # the last, smaller batch
        return [member.seen for member in passes]


class JointStep:
    """One optimiser step of the first `count` members of a program.

    Args:
        program: the program whose stacks are trained.
        count: number of its members to train.
    """

    def __init__(self, program: Program, count: int) -> None:
        self.lead = program.lead
        self.members = program.members[:count]
        self.values = {name: stack[:count].detach() for name, stack in program.stacks.items()}
        self.leaves = [self.values[name].requires_grad_() for name in program.trained]
        parameters = dict(self.lead.model.named_parameters())
        trained = [parameters[name] for name in program.trained]
        self.update = JointAdam([member.optimizer for member in self.members], self.leaves, trained)

    def __call__(
        self, x: Float[Tensor, "M B L D"], y: Int[Tensor, "M B"]
    ) -> tuple[Float[Tensor, " M"], Float[Tensor, "M B C"]]:
        """Train on one batch for each of the M members.

        Args:
            x: (M, B, L, D) in the stored number format.
            y: (M, B) class ids.

        Returns:
            losses (M,) and logits (M, B, C).
        """
        lead = self.lead
        with (
            autocast(lead.device, lead.precision),
            sdpa_kernel(SDPBackend.MATH),
        ):  # the other attention kernels cannot be batched over models
            losses, logits = vmap(self._loss)(self.values, on_device(x, lead.device), y)
        gradients = torch.autograd.grad(losses.sum(), self.leaves)
        if lead.config.grad_clip_norm is not None:
            gradients = clipped(gradients, lead.config.grad_clip_norm)
        self.update(gradients)
        return losses.detach(), logits.detach()

    def _loss(self, values: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional_call(self.lead.model, values, (x,))
        return self.lead.loss(logits, y), logits


def clipped(gradients: Sequence[Tensor], most: float) -> tuple[Tensor, ...]:
    """Clip like `clip_grad_norm_`, each of the M members by its own norm; gradients are (M, …)."""
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)  # (M,)
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    return tuple(one * factors.view(-1, *[1] * (one.ndim - 1)) for one in gradients)


@dataclass(frozen=True)
class _Alike:
    """Tensors that one fused kernel updates.

    Args:
        rate: learning rate.
        decay: weight decay.
        gradients: for each tensor, the indices of the trained tensor and of the model that its gradient belongs to.
        tensors: values, first and second moments, and step counts.
    """

    rate: float
    decay: float
    gradients: list[tuple[int, int]]
    tensors: tuple[list[Tensor], ...]


class JointAdam:
    """One step of several Adam or AdamW optimisers, with one kernel for all tensors of equal rate and decay.

    Args:
        optimizers: fused, of one class, with equal options except rate and decay; each must have a state.
        stacks: (M, …) tensors; each optimiser trains one slice.
        trained: the first optimiser's tensors, in the order of the stacks; its parameter groups may order them
            differently.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], stacks: Sequence[Tensor], trained: Sequence[Tensor]
    ) -> None:
        self.stacks = stacks
        positions = {id(value): place for place, value in enumerate(trained)}
        self.kind = adamw if isinstance(optimizers[0], torch.optim.AdamW) else adam
        first = optimizers[0].param_groups
        options = first[0]
        self.options: dict[str, Any] = {
            "beta1": options["betas"][0],
            "beta2": options["betas"][1],
            **{name: options[name] for name in ("eps", "amsgrad", "maximize")},
        }
        self.groups: list[_Alike] = []
        for number, group in enumerate(first):
            places = [positions[id(value)] for value in group["params"]]
            alike: dict[tuple[float, float], list[int]] = {}
            for index, optimizer in enumerate(optimizers):
                own = optimizer.param_groups[number]
                alike.setdefault((own["lr"], own["weight_decay"]), []).append(index)
            for (rate, decay), which in alike.items():
                tensors = _tensors([optimizers[index] for index in which], number)
                self.groups.append(
                    _Alike(rate, decay, [(place, index) for index in which for place in places], tensors)
                )

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Take the step; gradients are (M, …) for each of the trained tensors."""
        by_model: list[list[Tensor]] = []  # for every trained tensor, the gradient of each model
        for gradient, stack in zip(gradients, self.stacks, strict=True):
            if gradient.stride() != stack.stride():  # the kernel ignores strides and reads memory in order
                gradient = torch.empty_like(stack, requires_grad=False).copy_(gradient)
            by_model.append([_in_order(part) for part in gradient.unbind()])
        for group in self.groups:
            values, means, squares, steps = group.tensors
            own = [by_model[tensor][model] for tensor, model in group.gradients]
            options = {"lr": group.rate, "weight_decay": group.decay, **self.options}
            self.kind(values, own, means, squares, [], steps, fused=True, **options)


def _tensors(optimizers: Sequence[torch.optim.Optimizer], group: int) -> tuple[list[Tensor], ...]:
    """Values, first and second moments and step counts of one parameter group, optimiser by optimiser."""
    values = [value for optimizer in optimizers for value in optimizer.param_groups[group]["params"]]
    states = [optimizer.state[value] for optimizer in optimizers for value in optimizer.param_groups[group]["params"]]
    return (
        [_in_order(value.detach()) for value in values],
        *([_in_order(state[name]) for state in states] for name in ("exp_avg", "exp_avg_sq", "step")),
    )


def _in_order(x: Tensor) -> Tensor:
    """The tensor itself, or the transpose of a linear layer's matrix (see `_stack`): contiguous, without a copy."""
    return x if x.is_contiguous() else x.t()


def _stack(tensors: Sequence[Tensor], transposed: bool) -> Tensor:
    """Stack tensors (…) into (M, …); `transposed` gives a linear layer's matrix the memory layout of its gradient."""
    return torch.stack([one.t() for one in tensors]).transpose(1, 2) if transposed else torch.stack(list(tensors))


def _part(training: FusionTraining) -> InMemorySplit:
    assert isinstance(training.train, InMemorySplit)
    return training.train
