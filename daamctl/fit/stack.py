"""Training of fusions over stored layers: a stack of one or several models of one method.

With a budget of steps, several are trained together, each on the batches of its trial and with its own rate:
candidates of a search and folds side by side. Batches are cut from an endless sequence of shuffled passes, the rate
falls to 0, and the last weights are kept. With epochs, as published, a stack has one model, and `train.selection`
selects the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from daamctl.compute.cpu_formats import cpu_formats
from daamctl.compute.devices import autocast, exact_dtype, seed_torch
from daamctl.config import TrainConfig
from daamctl.errors import TrainingError
from daamctl.fit.features import BatchedPart, InMemorySplit, Part, on_device, pass_seed
from daamctl.fit.graphs import GraphedStep, obstacle
from daamctl.fit.loop import RECORDS, Entry, Fit, Member, improves, test_score
from daamctl.fit.steps import (
    Stateful,
    adam,
    build_loss,
    check_gradients,
    evaluated,
    factors_of,
    is_one_class,
    maps_of,
    over_batches,
    predict,
    rate_factor,
    restore_generators,
    set_rate,
    wide,
)
from daamctl.methods.base import FusionClassifier


@dataclass(frozen=True, eq=False)
class Fusion:
    """Model and data of a member.

    Args:
        model: freshly initialised, on the CPU.
        config: training settings, with those of the candidate.
        dev: held-out part; None for a refit, and without a held-out group.
        test: test part; None if this training does not look at it.
        seed: of the order of batches and of dropout.
        f1: part (`dev`, `test`) -> function of its logits that gives the primary figure, unless that is accuracy.
    """

    model: FusionClassifier
    config: TrainConfig
    train: Part
    dev: Part | None
    test: Part | None
    seed: int
    f1: Mapping[str, Callable[[Tensor], float]]


class Stack(Fit):
    """Train fusions; several if they are `stackable`, have a budget, and are in memory.

    Args:
        members: F trials with C candidates each, trial by trial.
        fusions: their models and data, in the same order.
        precision: resolved precision of the steps; evaluation is float32.

    Raises:
        TrainingError: a model needs a held-out part and there is none.
    """

    state_names = (*Fit.state_names, "rows", "loss", "right", "models", "plateau", "rate", "maps")

    def __init__(self, members: Sequence[Member], fusions: Sequence[Fusion], device: str, precision: str) -> None:
        super().__init__(members, device)
        first, number = fusions[0], len({id(member.trial) for member in members})
        if first.model.traits.needs_dev and first.dev is None and members[0].first is None:
            raise TrainingError(
                "part of this method is chosen on a held-out group, which only train.selection=dev-group sets aside",
                fix="leave the method out, or train with --set train.selection=dev-group",
            )
        self.fusions, self.config = fusions, first.config
        self.by_trial = fusions[:: len(members) // number]  # the first candidate of each
        for member, fusion, result in zip(members, fusions, self.trained, strict=True):
            fusion.model.to(device)
            if member.final and fusion.test is not None:
                result.untrained_maps = maps_of(fusion.model, fusion.test, device)
        configs = [one.config for one in fusions]
        shape = (number, len(members) // number)
        self.models: SingleModel | StackedModels
        if len(members) == 1:
            self.models = SingleModel(first.model, self.config, device, precision)
        else:
            self.models = StackedModels([one.model for one in fusions], configs, shape, device, precision)
        held = isinstance(first.train, InMemorySplit) and first.train.x.device.type == device.split(":")[0]
        self.obstacle = obstacle(first.model, device, held=held) if self.config.graphs == "auto" else "off"
        self.take = self.models.step if self.obstacle else GraphedStep(self.models, device)
        # A scheduler needs an optimiser: this one trains nothing, and only holds the rate that `_factor` reads.
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            torch.optim.SGD([torch.zeros(1)], lr=self.config.lr),
            mode="min" if self.config.selection == "last" else "max",
            factor=self.config.plateau_factor,
            patience=self.config.plateau_patience,
        )
        self.maps = EpochMaps() if first.model.has_density and self.config.density_maps == "all-epochs" else None
        self.rows, self.rate = 0, self.config.lr  # which the plateau has reached; its own state lacks it
        self.loss, self.right = (torch.zeros(len(members), dtype=exact_dtype(device), device=device) for _ in range(2))

    def run(self) -> Iterator[int]:
        """See `Fit.run`; the unit of work is a step of one model."""
        config, first, recorded = self.config, self.fusions[0], len(self.trained[0].history)
        size, order = config.batch_size, pass_seed(first.seed, recorded)
        seed_torch(order)  # so that dropout repeats too
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
        for fusion in self.fusions:
            fusion.model.train()
        batches: Iterator[tuple[Tensor, Tensor]]  # (F, B, L, D) and (F, B)
        if config.steps is None:
            every = islice(first.train.batches(size, order), self.in_record, None)  # the rest of an interrupted epoch
            batches = ((x[None], y[None]) for x, y in every)
        elif len(self.by_trial) == 1:
            batches = ((x[None], y[None]) for x, y in first.train.stream(size, first.seed, self.steps))
        else:
            held = [(one.train, one.seed) for one in self.by_trial if isinstance(one.train, InMemorySplit)]
            rows = zip(*(part.stream_rows(size, seed, self.steps) for part, seed in held), strict=True)
            stacked = ([torch.stack(each) for each in zip(*found, strict=True)] for found in rows)
            batches = ((held[0][0].x[some], y) for some, y in stacked)  # folds share the tensor
        if config.steps is not None:  # records are evenly spaced
            batches = islice(batches, (recorded + 1) * config.steps // min(RECORDS, config.steps) - self.steps)
        for x, y in batches:
            x, y = on_device(x, self.device), y.to(self.device, non_blocking=self.device.startswith("cuda"))
            set_rate(self.models.optimizer, self._factor(self.steps))
            losses, logits = self.take(x, y)
            number = y.shape[-1]
            targets = y.repeat_interleave(len(self.members) // len(y), 0)  # (M, B): candidates share a batch
            self.loss += losses.to(self.loss.dtype) * number
            self.right += (logits.argmax(-1) == targets).sum(-1)
            self.steps, self.in_record, self.rows = self.steps + 1, self.in_record + 1, self.rows + number
            yield len(self.members)

    def record(self) -> list[Entry]:
        """See `Fit.record`; with epochs, it also selects the epoch and sets the rate of the next one."""
        means = torch.stack([self.loss, self.right]).cpu().double() / self.rows
        config, factor, device = self.config, self._factor(self.steps - 1), self.device
        with self.models.evaluating():
            for index, (fusion, result) in enumerate(zip(self.fusions, self.trained, strict=True)):
                model, dev = fusion.model, fusion.dev
                entry: Entry = {
                    "step": self.steps,
                    "epoch": None if config.steps else len(result.history) + 1,
                    "lr": fusion.config.lr * factor,
                    "train_loss": means[0, index].item(),
                    "train_accuracy": means[1, index].item(),
                }
                if dev is not None and model.traits.needs_dev:
                    model.eval()
                    with torch.no_grad():  # in batches: a held-out group may be larger than memory
                        model.choose(BatchedPart(dev, device), dev.y.to(device))
                for name, part in (("dev", dev), ("test", fusion.test)):
                    logits = None if part is None else predict(model, part, device, config.batch_size)
                    entry |= evaluated(name, logits, None if part is None else part.y, fusion.f1)
                    if name == "dev":
                        one_class = logits is not None and is_one_class(logits)
                if self.maps is not None and fusion.test is not None:
                    self.maps.add(model, fusion.test, device, config.batch_size)
                result.history.append(entry)
                if config.steps is not None:
                    result.one_class = one_class
        self.in_record = self.rows = 0
        self.loss.zero_()
        self.right.zero_()
        one, done, selection = self.trained[0], len(self.trained[0].history), config.selection
        if config.steps is None:
            if improves(one.history, one.selected_epoch, selection):
                one.selected_epoch, one.weights = done, _weights(self.fusions[0].model)
                one.one_class = one_class
                if self.maps is not None:
                    one.maps["density"] = self.maps.mean()
            entry = one.history[-1]
            held_out = entry.get("dev_f1", entry["dev_accuracy"])
            watched = {"dev-group": held_out, "best-on-test": test_score(entry), "last": entry["train_loss"]}
            (group,) = self.plateau.optimizer.param_groups
            group["lr"] = self.rate
            self.plateau.step(watched[selection] or 0.0)
            self.rate = group["lr"]
        last = done >= (min(RECORDS, config.steps) if config.steps else config.epochs)
        self.ended = last or (len(self.members) == 1 and one.diverged)
        return [result.history[-1] for result in self.trained]

    def finish(self) -> None:
        """See `Fit.finish`."""
        for member, fusion, result in zip(self.members, self.fusions, self.trained, strict=True):
            model, test = fusion.model, fusion.test
            if not result.weights:
                kept = None
                if (
                    member.trial.refits and not member.final
                ):  # the refit takes over what was chosen on the held-out group
                    kept = _chosen(model) if model.traits.needs_dev else []
                result.weights = _weights(model, kept)
            if not member.final or test is None:
                continue
            model.load_state_dict(result.weights)
            result.model, result.weights = model, {}
            with self.models.evaluating():
                result.logits = predict(model, test, self.device, fusion.config.batch_size)
                result.maps = maps_of(model, test, self.device) | result.maps  # density of all epochs, if asked for
            order_weights(model, torch.contiguous_format)  # the layout that files and other code expect

    def _factor(self, step: int) -> float:
        """Factor on the rates at a step; with epochs, that of the whole epoch."""
        config = self.config
        if config.schedule == "plateau":
            return self.rate / config.lr
        if config.steps is None:
            return rate_factor(config.schedule, len(self.trained[0].history), config.epochs)
        return rate_factor(config.schedule, step, config.steps)


def _weights(model: FusionClassifier, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Copy of the tensors of a model with these names, on the CPU; None: all."""
    every = model.state_dict()
    return {name: value.detach().cpu().clone() for name, value in every.items() if names is None or name in names}


def _chosen(model: FusionClassifier) -> list[str]:
    """Names of the buffers that hold what a method has chosen; running statistics of a batch norm are of training."""
    norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, _BatchNorm))
    return [name for name, _ in model.named_buffers() if not name.startswith(("standardize.", *norms))]


class EpochMaps(Stateful):
    """Mean density as in the published code: over the batches of every epoch so far (D19)."""

    state_names = ("total", "count")

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0

    def add(self, model: FusionClassifier, part: Part, device: str, batch_size: int) -> None:
        """Add one pass over a part. Every batch has the same weight, even a smaller last one."""
        for density in over_batches(lambda x: wide(model.density(x)).mean(0).cpu(), model, part, device, batch_size):
            self.total = density if self.total is None else self.total + density
            self.count += 1

    def mean(self) -> Float[Tensor, "L D"]:
        """The mean up to this epoch, in float32."""
        assert self.total is not None
        return (self.total / self.count).float()


class SingleModel(Stateful):
    """A single model, trained as it is."""

    state_names = ("model", "optimizer", "scaler")
    keeps_gradients = False

    def __init__(self, model: FusionClassifier, config: TrainConfig, device: str, precision: str) -> None:
        self.model, self.config, self.device, self.precision = model, config, device, precision
        self.loss = build_loss(config)
        self.channels_last = channels_last(device, precision)
        if self.channels_last:
            order_weights(model, torch.channels_last)
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        groups = [
            {
                "params": [trained[name] for name in names],
                "lr": config.lr * rate,
                "weight_decay": config.weight_decay * decay,
            }
            for (rate, decay), names in factors_of(trained, config, model.traits).items()
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
            check_gradients({name: one.grad for name, one in self.model.named_parameters() if one.requires_grad})
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


class StackedModels(Stateful):
    """Models of F trials with C candidates each, in one program.

    All trained numbers of a model lie side by side in one row of `flat` (F, C, P), those with the same factors on rate
    and decay together; the models' own tensors are views of it, so they follow every step. Buffers are those of the
    trials.

    Args:
        models: F x C models that are `stackable`, trial by trial, on the device.
        configs: their settings; only rate and decay differ.
        shape: F and C.
    """

    state_names = ("flat", "optimizer")
    keeps_gradients = True
    evaluating = nullcontext  # models that are stacked are evaluated as they are

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
        alike = factors_of(trained, self.config, template.traits)
        names = [name for some in alike.values() for name in some]
        own = [dict(model.named_parameters()) for model in models]
        rows = [torch.cat([tensors[name].detach().reshape(-1) for name in names]) for tensors in own]
        self.flat = torch.stack(rows).view(*shape, -1)  # (F, C, P)
        self.gradient = torch.zeros_like(self.flat)
        self.values, self.gradients = dict[str, Tensor](), dict[str, Tensor]()
        start = 0
        for name in names:
            part, full = slice(start, start + trained[name].numel()), (*shape, *trained[name].shape)
            start = part.stop
            # a view, so that steps on `flat` move it; a leaf, so that gradients of a model's tensors can be taken
            self.values[name] = self.flat[..., part].view(full).detach().requires_grad_()
            self.gradients[name] = self.gradient[..., part].view(full)
            for index, tensors in enumerate(own):
                tensors[name].data = self.values[name].detach()[divmod(index, shape[1])]
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

        # the outer map is over trials with their batches, the inner one over their candidates, which share these
        self.losses: Callable[..., tuple[Tensor, Tensor]] = vmap(vmap(one_loss, (0, None, None, None)))
        groups: dict[tuple[float, float], list[Tensor]] = {}
        sizes = [sum(trained[name].numel() for name in some) for some in alike.values()]
        # An optimiser has one rate and decay a group; members and tensors with the same pair share one.
        for index, config in enumerate(configs):
            place = divmod(index, shape[1])
            parts = zip(alike, self.flat[place].split(sizes), self.gradient[place].split(sizes), strict=True)
            for (rate, decay), leaf, gradient in parts:
                leaf.grad = gradient
                groups.setdefault((config.lr * rate, config.weight_decay * decay), []).append(leaf)
        optimised = [{"params": leaves, "lr": lr, "weight_decay": decay} for (lr, decay), leaves in groups.items()]
        self.optimizer = adam(optimised, device, decoupled=self.config.optimizer == "adamw")

    def step(self, x: Float[Tensor, "F B L D"], y: Int[Tensor, "F B"]) -> tuple[Tensor, Tensor]:
        """Train every model on the batch of its trial; returns losses (F * C,) and logits (F * C, B, classes).

        Raises:
            TrainingError: a trainable tensor gets no gradient.
        """
        # the other attention kernels cannot be batched over models
        with autocast(self.device, self.precision), sdpa_kernel(SDPBackend.MATH):
            losses, logits = self.losses(self.values, self.fixed, x, y)
        found = torch.autograd.grad(losses.sum(), list(self.values.values()), allow_unused=True)
        check_gradients(dict(zip(self.values, found, strict=True)))
        for own, gradient in zip(self.gradients.values(), found, strict=True):
            own.copy_(gradient)
        if self.config.grad_clip_norm is not None:  # like `clip_grad_norm_`, each model by its own norm
            norms = self.gradient.norm(dim=-1, keepdim=True)
            self.gradient.mul_((self.config.grad_clip_norm / (norms + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        return losses.detach().flatten(), logits.detach().flatten(0, 1)


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
