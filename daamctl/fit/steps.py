"""What every training takes its steps with: seeds, losses, optimiser and schedule, memory; and evaluation."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from daamctl.compute.devices import choose_gpu_kernels, is_out_of_memory, seed_torch
from daamctl.config import TrainConfig
from daamctl.errors import TrainingError
from daamctl.fit.features import Part, on_device
from daamctl.methods.base import FusionClassifier, Traits

log = logging.getLogger(__name__)

SURE = 0.95
"""Probability of the target class where the squared loss is 0."""
FOCAL_EPS = 1e-6  # inside the power, as in the published code (D39)
WARM_UP_FRACTION = 0.1
"""Share of the steps over which the rate of `warm-up` rises."""
EVAL_BATCH = 256
CPU_EVAL_BATCH = 16
"""Of models with 2-D convolutions: what the conv decoder keeps between them, 2 MB a clip, then stays near the
caches."""
Schedule = Literal["cosine", "linear", "warm-up", "constant", "plateau"]
T = TypeVar("T")


def seed_everything(seed: int, device: str) -> None:
    """Seed torch before a model is built; on a GPU also request deterministic kernels and full float32."""
    seed_torch(seed)
    if device.startswith("cuda"):
        choose_gpu_kernels()  # evaluation is float32 whatever the precision of the training step
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)


def seed_generators(number: int) -> None:
    """Seed all that draw in a step: torch dropout and layer drop, numpy time masks; Python what an encoder likes."""
    seed_torch(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def generator_states() -> dict[str, Any]:
    """States of all generators, as tensors, numbers and strings only, so that a resume file can hold them."""
    name, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Restore `generator_states`; skips generators of devices that were absent then or are absent now."""
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states.get("cuda", []), strict=False):
            torch.cuda.set_rng_state(state, device)
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])


def focal_loss(
    logits: Float[Tensor, "B C"], targets: Int[Tensor, " B"], *, gamma: float, alpha: float
) -> Float[Tensor, ""]:
    """Alpha * (1 - p + 1e-6)^gamma * cross-entropy in float32, averaged; p = softmax probability of the target class.

    `alpha` is the same for all classes (docs/sources.md#focal-loss).
    """
    cross_entropy = F.cross_entropy(logits.float(), targets, reduction="none")  # (B,)
    return (alpha * (1 - (-cross_entropy).exp() + FOCAL_EPS) ** gamma * cross_entropy).mean()


def square_loss(logits: Float[Tensor, "B C"], targets: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean squared distance of logits from scaled one-hot targets, in float32 (docs/sources.md#square-loss).

    Targets are s for the class and 0 for the others; s is the logit at which softmax gives the class the probability
    `SURE`. Distances are divided by s squared.
    """
    number = logits.shape[-1]
    logit = math.log(SURE / (1 - SURE) * max(number - 1, 1))
    # one_hot() would look at the values, and wait for a GPU
    wanted = (targets.unsqueeze(-1) == torch.arange(number, device=logits.device)).float()  # (B, C)
    return (logits.float() / logit - wanted).square().sum(-1).mean()


def build_loss(config: TrainConfig, *, finetuning: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss named in the settings: a function of logits (B, C) and targets (B,); see `train.loss`."""
    if config.loss == "focal":
        return lambda logits, targets: focal_loss(logits, targets, gamma=config.focal_gamma, alpha=config.focal_alpha)
    if config.loss == "square" and not finetuning:
        return square_loss
    return lambda logits, targets: F.cross_entropy(logits.float(), targets)


def adam(groups: Sequence[Mapping[str, Any]], device: str, *, decoupled: bool = True, fused: bool = True) -> Any:
    """AdamW over parameter groups, or with `decoupled=False` Adam, whose decay is added to the gradient.

    Args:
        groups: params, lr and weight_decay of each; empty ones are left out.
        device: resolved device; on CUDA rates are tensors, so that a recorded step can change them.
        fused: update a group in one kernel, where the device has one.
    """
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    filled: list[dict[str, Any]] = [dict(group) for group in groups if group["params"]]
    for group in filled:
        group["peak"] = group["lr"]
        if device.startswith("cuda") and fused:
            group["lr"] = torch.tensor(group["lr"], device=device)
    return kind(filled, fused=(fused and device != "mps") or None)


def factors_of(
    named: Mapping[str, Tensor], config: TrainConfig, traits: Traits
) -> dict[tuple[float, float], list[str]]:
    """Names of tensors by the factors on their rate and on their weight decay.

    `train.fusion_lr_factor` is for the matrices and kernels of the fusion, unless the method takes the full rate
    (`Traits.full_rate`). These have decay, and so have those of the decoder; with `train.decay: all` every tensor has.
    AdamW multiplies the decay by the rate, which is made up for.
    """
    found: dict[tuple[float, float], list[str]] = {}
    factor = 1.0 if traits.full_rate else config.fusion_lr_factor
    for name, value in named.items():
        is_matrix = value.ndim > 1 and name.endswith("weight") and name not in traits.gains
        rate = factor if is_matrix and name.startswith("fusion.") else 1.0
        decay = 1 / rate if config.optimizer == "adamw" else 1.0
        found.setdefault((rate, decay if is_matrix or config.decay == "all" else 0.0), []).append(name)
    return found


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every rate to its peak times a factor."""
    for group in optimizer.param_groups:
        rate = group["peak"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state; how the kernels run stays as this optimiser was built, since it depends on the device."""
    for saved, ours in zip(state["param_groups"], optimizer.param_groups, strict=True):
        saved |= {name: ours[name] for name in ("fused", "capturable", "lr")}
    optimizer.load_state_dict(state)
    for value, moments in optimizer.state.items():  # the fused kernel ignores strides
        for name, moment in moments.items():
            if moment.shape == value.shape and moment.stride() != value.stride():
                moments[name] = torch.empty_like(value, requires_grad=False).copy_(moment)


def rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Factor on the peak rate.

    Args:
        schedule: cosine and linear fall from 1 to 0 one step after the last; warm-up rises over the first tenth, then
            falls linearly; constant and plateau stay at 1.
        step: counted from 0.
    """
    if schedule == "cosine":
        return (1 + math.cos(math.pi * step / steps)) / 2
    if schedule == "linear":
        return 1 - step / steps
    if schedule == "warm-up":
        rise = max(1, round(WARM_UP_FRACTION * steps))
        return min((step + 1) / rise, (steps - step) / (steps - rise + 1))
    return 1.0


def check_gradients(named: Mapping[str, Tensor | None]) -> None:
    """Check after a backward pass that every trained tensor has a gradient.

    Raises:
        TrainingError: tensors without one, by name; they would silently keep their initial values.
    """
    without = [name for name, gradient in named.items() if gradient is None]
    if without:
        raise TrainingError(f"no gradient reaches {', '.join(without)}: they would never be trained")


class Stateful:
    """What can be saved and restored: the attributes in `state_names` (numbers, tensors, what has a `state_dict`)."""

    state_names: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Their values, as tensors, numbers and text."""
        values = {name: getattr(self, name) for name in self.state_names}
        return {name: one.state_dict() if hasattr(one, "state_dict") else one for name, one in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; tensors stay in their places."""
        for name in self.state_names:
            ours, saved = getattr(self, name), state[name]
            if isinstance(ours, torch.optim.Optimizer):
                load_optimizer(ours, saved)
            elif hasattr(ours, "load_state_dict"):
                ours.load_state_dict(saved)
            elif isinstance(ours, Tensor):
                ours.copy_(saved)
            else:
                setattr(self, name, saved)


class BatchLimit(Stateful):
    """How many items a device takes at once. The number is halved for good whenever memory runs out.

    Args:
        most: items to begin with.
        smallest: number that is not halved further.
    """

    state_names = ("most",)

    def __init__(self, most: int, *, smallest: int = 1) -> None:
        self.most, self.smallest = most, smallest

    def attempt(self, work: Callable[[int], T], size: int) -> T:
        """Run `work` with the largest number of items at once, again with half of them after each failure.

        Args:
            work: takes the number; it must be harmless to run it again.

        Raises:
            OutOfMemoryError: not even the smallest number fits.
        """
        while True:
            try:
                return work(min(self.most, size))
            except (RuntimeError, MemoryError) as error:
                if min(self.most, size) <= self.smallest or not is_out_of_memory(error):
                    raise
            # retried outside the block above, which keeps the failed pass's tensors alive
            torch.cuda.empty_cache()
            self.most = max(min(self.most, size) // 2, self.smallest)
            log.warning("out of memory: from now on %d items at once", self.most)

    def in_pieces(self, work: Callable[[int, int], T], size: int) -> list[T]:
        """Run `work` on consecutive pieces of `size` items, from one position to another; raises as `attempt`."""
        found: list[T] = []
        start = 0
        while start < size:
            found.append(self.attempt(lambda most, start=start: work(start, start + most), size - start))  # type: ignore[misc]
            start += min(self.most, size - start)
        return found


def free_batch(model: nn.Module, device: str) -> int:
    """Clips per batch of an evaluation, chosen for speed."""
    convolves = device == "cpu" and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return CPU_EVAL_BATCH if convolves else EVAL_BATCH


@torch.no_grad()
def over_batches(
    of: Callable[[Tensor], Tensor], model: FusionClassifier, part: Part, device: str, batch_size: int | None = None
) -> list[Tensor]:
    """Apply `of` to the batches of a part, in order, in eval mode and float32.

    Args:
        of: takes (B, L, D) on the device; calls the model.
        batch_size: B, which must not be split; None: free, and halved for good if a GPU runs out of memory.
    """
    model.eval()
    found: list[Tensor] = []
    size = batch_size or free_batch(model, device)
    limit = BatchLimit(size, smallest=batch_size or 1)
    for batch, _ in part.batches(size):
        x = on_device(batch, device)
        found += limit.in_pieces(lambda start, stop, x=x: of(x[start:stop]), len(x))  # type: ignore[misc]
    return found


def predict(model: FusionClassifier, part: Part, device: str, batch_size: int) -> Float32[Tensor, "N C"]:
    """Logits of a part, in its order, on the CPU.

    Args:
        batch_size: of training. Methods whose predictions depend on the batch are evaluated with it, as in the
            released code (docs/sources.md#training-set-up).

    Raises:
        OutOfMemoryError: the GPU has no room for one clip, or for a batch that must not be split.
    """
    size = batch_size if model.traits.batch_dependent else None
    return torch.cat(over_batches(lambda x: model(x).float().cpu(), model, part, device, size))


def wide(x: Tensor) -> Tensor:
    """Convert to float64; on CPU if the device (mps) has none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def maps_of(model: FusionClassifier, part: Part, device: str) -> dict[str, Tensor]:
    """Means over the clips of a part of what a method tells: `density`, (L, D), and `layer_weights`, (L,).

    Computed in float64, without the decoder; every clip has the same weight, whatever the batch size (D19).

    Returns:
        float32 on the CPU, for what the method has.
    """
    told = {"density": model.density} if model.has_density else {}
    told |= {"layer_weights": model.layer_weights} if model.weighs_layers else {}
    found = {}
    for name, of in told.items():
        sums = over_batches(lambda x, of=of: wide(of(x)).sum(0).cpu(), model, part, device)  # type: ignore[misc]
        found[name] = (torch.stack(sums).sum(0) / len(part)).float()
    return found


def accuracy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Share of rows whose largest logit is the target, in [0, 1]."""
    return (logits.argmax(-1) == targets.cpu()).double().mean().item()


def is_one_class(logits: Float[Tensor, "N C"]) -> bool:
    """Whether the largest logit of every row is that of the same class."""
    return bool(logits.argmax(-1).unique().numel() < 2)


def evaluated(
    name: str, logits: Tensor | None, targets: Tensor | None, f1: Mapping[str, Callable[[Tensor], float]]
) -> dict[str, float | int | None]:
    """Figures of a part (train, dev or test) for an entry of the history, from its logits; None without them.

    Accuracy, unless it is the test part the loss, and the primary figure if that is another one.
    """
    figures: dict[str, float | int | None] = {f"{name}_accuracy": None}
    figures |= {f"{name}_loss": None} if name != "test" else {}
    figures |= {f"{name}_f1": None} if name in f1 else {}
    if logits is not None and targets is not None:
        figures[f"{name}_accuracy"] = accuracy_of(logits, targets)
        if name != "test":
            figures[f"{name}_loss"] = cross_entropy_of(logits, targets)
        if name in f1:
            figures[f"{name}_f1"] = f1[name](logits)
    return figures


def cross_entropy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Mean cross-entropy, in nats, of logits (N, C) against class ids (N,); never class-weighted, whatever the loss."""
    return F.cross_entropy(logits.double(), targets.cpu()).item()
