"""Several folds and seeds of one small method trained in one program.

A small method's step is short; most of its time goes into starting kernels. Here the models stand side by side, and one
forward and backward pass serves all of them, each on a batch of its own: the batches, their order and the optimiser's
steps are those of `train_fold`, only rounding differs. What follows an epoch (evaluation, schedule, selection, resume
file) is each member's own, so an interrupted group goes on from its members' own files, together or one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.results import Fold
from daamctl.devices import autocast, resolve_device
from daamctl.methods.base import FusionClassifier
from daamctl.training.fold import Features, FoldJob, FoldSpec, build_method, train_precision
from daamctl.training.loop import Epoch, Seen, Training
from daamctl.training.parts import HeldPart, on_device

CPU_BATCH_NUMBERS = 100_000
"""Most numbers in a member's batch, B * L * D, with which training together pays on a CPU: beyond, its memory decides,
not the number of kernels (benchmarks/training.py)."""
CPU_PARAMETERS = 300_000
"""Most trainable numbers with which it pays on a CPU, likewise."""
CPU_STEP_NUMBERS = 1_000_000
"""Numbers in the batches of all members that a CPU's caches hold beside everything else."""
MOST_MEMBERS = 32
SEPARATE = (nn.Conv2d, nn.Dropout, _BatchNorm)
"""What keeps a model from it: convolutions fill the processor by themselves, the others have a state or draw numbers
that members would share."""


def in_groups(specs: Sequence[FoldSpec], features: Features) -> list[list[FoldSpec]]:
    """Share folds out among programs, in their order; those that train by themselves are groups of one.

    Raises:
        MethodError: a method does not fit these sizes.
        ConfigError: the device or precision asked for is not here.
    """
    groups: list[list[FoldSpec]] = []
    room = 0
    for spec in specs:
        last = groups[-1][-1] if groups else None
        alike = last is not None and (last.method, last.config) == (spec.method, spec.config)
        if not alike:
            most = _most_members(spec, features)
        if alike and room:
            groups[-1].append(spec)
            room -= 1
        else:
            groups.append([spec])
            room = most - 1
    return groups


def _most_members(spec: FoldSpec, features: Features) -> int:
    """How many folds like this one may share a program; 1: none may."""
    train, device = spec.config.train, resolve_device(spec.config.train.device)
    if train.together == "never" or not _is_on(features.x, device):
        return 1
    with torch.device("meta"):
        sizes = (len(features.layers), features.head.embed_dim, len(features.head.classes))
        model = build_method(spec.method, spec.config, *sizes)
    if not separable(model) or train.density_maps == "all-epochs" or train_precision(model, train, device) == "float16":
        return 1
    numbers = train.batch_size * sizes[0] * sizes[1]
    if train.together == "always":
        return MOST_MEMBERS
    if device != "cpu" or numbers > CPU_BATCH_NUMBERS or sum(p.numel() for p in model.parameters()) > CPU_PARAMETERS:
        return 1
    return min(MOST_MEMBERS, CPU_STEP_NUMBERS // numbers)


def _is_on(x: Tensor | StoredVectors, device: str) -> bool:
    """Whether all features are held where the models are; see `to_gpu` of `run`."""
    return isinstance(x, Tensor) and x.device.type == torch.device(device).type


def separable(model: FusionClassifier) -> bool:
    """Whether one program can hold several such models, none of which sees the others."""
    plain = type(model).training_loss is FusionClassifier.training_loss
    traits = model.traits
    free = not (traits.batch_dependent or traits.needs_dev or traits.closed_form)
    return plain and free and not any(isinstance(module, SEPARATE) for module in model.modules())


def train_together(
    specs: Sequence[FoldSpec],
    features: Features,
    method_dir: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: Callable[[FoldSpec, Epoch], None] = lambda spec, epoch: None,
) -> list[Fold]:
    """Train folds of one method and put their folders in place, each as `train_fold` does.

    Args:
        specs: of one of the groups that `in_groups` gives.
        features: the embeddings that it was given.
        method_dir: folder that will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        root: project folder, for the commit.
        on_epoch: called after each epoch of each fold.

    Returns:
        The folds, in the order of `specs`.

    Raises:
        TrainingError: the split or the numbers do not allow it.
        MethodError: the method does not fit these sizes.
    """
    jobs = [FoldJob(spec, features, method_dir, work) for spec in specs]
    folds: dict[int, Fold] = {}
    with ExitStack() as locks:
        for job in sorted(jobs, key=lambda job: job.folder):  # one order for all processes, or two would wait in a ring
            locks.enter_context(job.locked())
        open_jobs: list[tuple[FoldJob, Training]] = []
        for job in jobs:
            kept = job.made_meanwhile()
            if kept is not None:
                folds[id(job)] = kept
                continue
            training = job.start(lambda epoch, spec=job.spec: on_epoch(spec, epoch))  # type: ignore[misc]
            assert isinstance(training, Training)  # see `separable`
            open_jobs.append((job, training))
        train_all_epochs([training for _, training in open_jobs])
        for job, training in open_jobs:
            folds[id(job)] = job.finish(training, root, together=len(open_jobs))
    return [folds[id(job)] for job in jobs]


def train_all_epochs(trainings: Sequence[Training]) -> None:
    """Train all to their last epoch; of those that were interrupted elsewhere, some may end before the others."""
    going = [training for training in trainings if not training.ended]
    while going:
        program = Program(going)
        remaining = min(training.config.epochs - len(training.done.history) for training in going)
        for _ in range(remaining):
            program.epoch()
        going = [training for training in going if not training.ended]


class Program:
    """Models of one kind, side by side, all at an epoch of their own.

    The models' own tensors become views of the stacks, so that either changes both.

    Args:
        trainings: at least one; all over the same held features.
    """

    def __init__(self, trainings: Sequence[Training]) -> None:
        # most steps first: those that still have a full batch are always the first ones
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
            member.run.align()
        self.run = self.members[0].run

    def epoch(self) -> None:
        """One epoch of every member."""
        started = time.monotonic()
        seen = self.one_pass()
        pass_s = (time.monotonic() - started) / len(self.members)
        for member, one in zip(self.members, seen, strict=True):
            member.end_epoch(one, pass_s)

    def one_pass(self) -> list[Seen]:
        """One pass over every member's training part."""
        size, seen = self.run.config.batch_size, [Seen() for _ in self.members]
        orders = [_part(member).order(member.order_seed) for member in self.members]
        full = [len(y) // size for _, y in orders]
        x = _part(self.members[0]).x
        for member in self.members:
            member.model.train()
        first = 0
        if any(not member.run.optimizer.state for member in self.members):
            first = 1  # the very first step makes the optimiser's state, and checks the gradients
            for member, one, (rows, y), steps in zip(self.members, seen, orders, full, strict=True):
                if steps:
                    one.add(*member.run.step(x[rows[:size]], y[:size]))
        step = first
        while step < full[0]:
            count = sum(steps > step for steps in full)
            last = min(full[:count])
            joint = JointStep(self, count)
            for start in range(step * size, last * size, size):
                here = slice(start, start + size)
                rows = torch.stack([rows[here] for rows, _ in orders[:count]])
                targets = torch.stack([y[here] for _, y in orders[:count]])
                losses, logits = joint(x[rows], targets)
                for one, *what in zip(seen, losses, logits, targets, strict=False):
                    one.add(*what)
            step = last
        for member, one, (rows, y), steps in zip(self.members, seen, orders, full, strict=True):
            if steps * size < len(y):  # the last, smaller batch
                one.add(*member.run.step(x[rows[steps * size :]], y[steps * size :]))
        return seen


class JointStep:
    """An optimiser step of the first members of a program.

    Args:
        program: whose stacks are trained.
        count: how many of its members.
    """

    def __init__(self, program: Program, count: int) -> None:
        self.run = program.run
        self.members = program.members[:count]
        self.values = {name: stack[:count].detach() for name, stack in program.stacks.items()}
        self.leaves = [self.values[name].requires_grad_() for name in program.trained]
        self.update = JointAdam([member.run.optimizer for member in self.members], self.leaves)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Train on one batch for each of the M members.

        Args:
            x: (M, B, L, D) in the stored number format.
            y: (M, B) class ids.

        Returns:
            losses (M,) and logits (M, B, C).
        """
        run = self.run
        with (
            autocast(run.device, run.precision),
            sdpa_kernel(SDPBackend.MATH),
        ):  # other kernels take one model at a time
            losses, logits = vmap(self._loss)(self.values, on_device(x, run.device), y)
        gradients = torch.autograd.grad(losses.sum(), self.leaves)
        if run.config.grad_clip_norm is not None:
            gradients = clipped(gradients, run.config.grad_clip_norm)
        self.update(gradients)
        return losses.detach(), logits.detach()

    def _loss(self, values: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional_call(self.run.model, values, (x,))
        return self.run.loss(logits, y), logits


def clipped(gradients: Sequence[Tensor], most: float) -> tuple[Tensor, ...]:
    """As `clip_grad_norm_`, for each of the M members by its own norm; gradients are (M, …)."""
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)  # (M,)
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    return tuple(one * factors.view(-1, *[1] * (one.ndim - 1)) for one in gradients)


class JointAdam:
    """One step of several Adam or AdamW optimisers, in one kernel for all that have the same rate.

    Args:
        optimizers: fused, of one kind and with one set of options but the rate, each with a state.
        stacks: (M, …), of which the optimisers train one each.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], stacks: Sequence[Tensor]) -> None:
        self.stacks = stacks
        self.kind = adamw if isinstance(optimizers[0], torch.optim.AdamW) else adam
        options = optimizers[0].param_groups[0]
        self.options: dict[str, Any] = {
            "beta1": options["betas"][0],
            "beta2": options["betas"][1],
            **{name: options[name] for name in ("eps", "weight_decay", "amsgrad", "maximize")},
        }
        by_rate: dict[float, list[int]] = {}
        for index, optimizer in enumerate(optimizers):
            by_rate.setdefault(optimizer.param_groups[0]["lr"], []).append(index)
        self.groups = [(rate, which, _tensors([optimizers[i] for i in which])) for rate, which in by_rate.items()]

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Make the step; gradients are (M, …) for each of the trained tensors."""
        alike = [
            one if one.stride() == stack.stride() else torch.empty_like(stack, requires_grad=False).copy_(one)
            for one, stack in zip(gradients, self.stacks, strict=True)
        ]  # the kernel goes by memory, not by strides
        apart = [[_in_order(part) for part in one.unbind()] for one in alike]
        for rate, which, (values, means, squares, steps) in self.groups:
            ours = [one[index] for index in which for one in apart]
            self.kind(values, ours, means, squares, [], steps, fused=True, lr=rate, **self.options)


def _tensors(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[list[Tensor], ...]:
    """Values, first and second means and step counts, of one optimiser after the other."""
    values = [value for optimizer in optimizers for value in optimizer.param_groups[0]["params"]]
    states = [optimizer.state[value] for optimizer in optimizers for value in optimizer.param_groups[0]["params"]]
    return (
        [_in_order(value.detach()) for value in values],
        *([_in_order(state[name]) for state in states] for name in ("exp_avg", "exp_avg_sq", "step")),
    )


def _in_order(x: Tensor) -> Tensor:
    """The tensor, or where it is the matrix of a linear layer (see `_stack`) its transpose: contiguous, not copied."""
    return x if x.is_contiguous() else x.t()


def _stack(tensors: Sequence[Tensor], transposed: bool) -> Tensor:
    """Join tensors (…) to (M, …); the matrix of a linear layer in the order in memory that its gradient has."""
    return torch.stack([one.t() for one in tensors]).transpose(1, 2) if transposed else torch.stack(list(tensors))


def _part(training: Training) -> HeldPart:
    assert isinstance(training.train, HeldPart)
    return training.train
