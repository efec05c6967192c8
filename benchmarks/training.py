"""What a training step costs, against the released code's and against the bare step; and folds together or apart.

python -m benchmarks.training --out data/bench/training.json    # --help for other sizes and methods

The first ways train one model on the same clips in turns. `reference` restates the released loop: eager DAAM of one
head after another, float16 with loss scaling on a GPU and float32 elsewhere, torch's own choice of kernels, one kernel
per tensor in Adam, anomaly detection left on (docs/sources.md#training-set-up, D41, D42); a method other than daam-v1
and daam-v2 goes through that loop as our module. `limit` is the least a step can be: forward, loss, backward and
optimiser on a batch that is already in place, nothing else. `ours` is as many steps of a training with a budget as a
pass has, over clips held in memory, with the deterministic kernels that every fold uses. `reference fold` and `ours
fold` train from fresh weights to the predictions of the selected epoch: after each epoch the test part is evaluated,
and the best epoch is kept. The last ways train 25 folds of a small method, one by one and in one stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import torch
import typer
from torch import Tensor, nn

from benchmarks.harness import conclude, in_turns, ratio
from daamctl.compute.devices import autocast, resolve_device, resolve_precision
from daamctl.compute.energy import joules
from daamctl.compute.environment import prepare
from daamctl.config import Config, TrainConfig
from daamctl.fit.features import InMemorySplit, Part
from daamctl.fit.loop import RECORDS, Member
from daamctl.fit.stack import Fusion, SingleModel, Stack, channels_last, order_weights
from daamctl.fit.steps import build_loss, seed_everything
from daamctl.fit.trial import FoldSpec, Trial, run_precision
from daamctl.methods import FusionClassifier, build
from daamctl.methods.decoder import ConvDecoder

CLASSES = 4
CLIPS = {"cpu": 240, "cuda": 4654}
"""Training clips by default; on a GPU those of an IEMOCAP fold, where fewer would measure the start of a pass."""
TESTED = 3
"""Training clips for each clip of the test part, as in IEMOCAP's folds."""
SCALE = 1024.0
"""First loss scale. It is lower than torch's, so that no overflow on drawn clips stops the anomaly detection."""
MEMBERS = 25
SMALL = ("weighted-sum", "daam-v2-mlp")
SMALL_STEPS = 20
Measure = Callable[[], dict[str, float]]


def main(
    clips: Annotated[
        int | None, typer.Option(min=1, help="Clips of a pass. [default: 240; on a GPU 4654, an IEMOCAP fold]")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 24,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer.")] = 1024,
    method: Annotated[str, typer.Option(help="Method that is trained.")] = "daam-v1",
    batch_size: Annotated[int, typer.Option(min=1, help="Clips per step.")] = 8,
    small_layers: Annotated[int, typer.Option(min=1, help="Layers where folds are trained together.")] = 6,
    small_dim: Annotated[int, typer.Option(min=8, help="Features per layer there.")] = 384,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of a fold.")] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare training steps and folds."""
    prepare()  # deterministic kernels need one of the defaults
    device = resolve_device(device)
    clips = clips or CLIPS["cuda" if device.startswith("cuda") else "cpu"]
    part, test = drawn(clips, layers, dim, device), drawn(-(-clips // TESTED), layers, dim, device)
    fixed: dict[str, Any] = {"batch_size": batch_size, "lr": 1e-4, "stack": "always"}
    config = TrainConfig(**fixed, steps=RECORDS * steps_in(part, batch_size), selection="last")
    fold = TrainConfig(**fixed, steps=None, epochs=epochs, selection="best-on-test")
    small = drawn(SMALL_STEPS * batch_size, small_layers, small_dim, device)
    few = config.model_copy(update={"steps": RECORDS * SMALL_STEPS})
    makers: dict[str, Measure] = {
        "reference": reference(method, part, config, device),
        "limit": limit(method, part, config, device),
        "ours": steps_of([method], part, config, device),
        "reference fold": reference_fold(method, part, test, fold, device),
        "ours fold": our_fold(method, part, test, fold, device),
    }
    for name in SMALL:
        makers |= {
            f"{name} apart": apart(MEMBERS, name, small, few, device),
            f"{name} together": steps_of([name] * MEMBERS, small, few, device),
        }
    for measure in makers.values():
        measure()  # what the first pass prepares is no step's
    ways = in_turns(makers, repeats, "step_s")
    step_goal, fold_goal = (">= 3.5", None) if device == "cpu" else (None, ">= 15")
    ratios = [
        ratio(ways, "fold_s", "ours fold", "reference fold", inverse=True, goal=fold_goal),
        ratio(ways, "step_s", "ours", "reference", inverse=True, goal=step_goal),
        ratio(ways, "step_s", "ours", "limit", inverse=True, goal=">= 0.9"),
        *(ratio(ways, "step_s", f"{name} together", f"{name} apart", inverse=True, goal=">= 1.3") for name in SMALL),
    ]
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "batch": batch_size, "epochs": epochs}
    precision = precision_of(method, config, device)
    facts = {"method": method, "precision": precision, "together": {"layers": small_layers, "embed_dim": small_dim}}
    conclude("training", sizes, ways, ratios, device=device, out=out, members=MEMBERS, **facts)


def drawn(clips: int, layers: int, dim: int, device: str) -> InMemorySplit:
    """Random clips in the stored format, on the device."""
    x = torch.randn(clips, layers, dim, generator=torch.Generator().manual_seed(0)).half()
    return InMemorySplit(x.to(device), (torch.arange(clips) % CLASSES).to(device))


def model_of(method: str, part: InMemorySplit, seed: int = 0) -> FusionClassifier:
    """A freshly initialised model for a part."""
    torch.manual_seed(seed)
    return build(method, num_layers=part.x.shape[1], embed_dim=part.x.shape[2], num_classes=CLASSES)


def precision_of(method: str, config: TrainConfig, device: str) -> str:
    """Number format of the method's step in a run of its own."""
    return run_precision(FoldSpec("", method, 1, 1, Config(train=config)), "train", device)


def training(
    methods: Sequence[str], part: InMemorySplit, config: TrainConfig, device: str, test: Part | None = None
) -> Stack:
    """Trainings of one method in a stack, before their first step, as folds with seeds of their own."""
    members, fusions = [], []
    for seed, method in enumerate(methods):
        trial = SimpleNamespace(key=str(seed), refits=False, chosen_on_dev=())
        members.append(Member(cast(Trial, trial), 0, {}, final=True))
        fusions.append(Fusion(model_of(method, part, seed), config, part, None, test, seed, {}))
    return Stack(members, fusions, device, precision_of(methods[0], config, device))


def timed(run: Callable[[], Any], steps: int, device: str, *, released: bool = False, fold: bool = False) -> Measure:
    """Time by step, and the time of a whole fold.

    Args:
        run: what to time; it waits for a GPU itself.
        steps: training steps in it.
        device: resolved device.
        released: with torch's own choice of kernels, as the released code has it, instead of those of our folds.
        fold: whether it is a whole fold.
    """

    def measure() -> dict[str, float]:
        seed_everything(1, device)
        if released:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.allow_tf32 = True
        before, started = joules(device), time.perf_counter()
        run()
        seconds, after = time.perf_counter() - started, joules(device)
        figures = {"step_s": seconds / steps, **({"fold_s": seconds} if fold else {})}
        return figures if not fold or before is None or after is None else {**figures, "fold_j": after - before}

    return measure


def steps_in(part: Part, batch_size: int) -> int:
    """Training steps of a pass."""
    return -(-len(part) // batch_size)


def steps_of(methods: Sequence[str], part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """Our steps up to a record, a tenth of the budget, until their loss is known; nothing is evaluated.

    Args:
        methods: the method of each training of the stack.
        part: training part.
        config: with a budget.
        device: resolved device.
    """
    assert config.steps is not None
    stacks = [training(methods, part, config, device)]

    def run() -> None:
        taken(stacks[0])
        if stacks[0].ended:
            stacks[0] = training(methods, part, config, device)

    return timed(run, len(methods) * config.steps // RECORDS, device)


def apart(number: int, method: str, part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """The same, one training after the other."""
    assert config.steps is not None
    stacks = [training([method], part, config, device) for _ in range(number)]

    def run() -> None:
        for index, stack in enumerate(stacks):
            taken(stack)
            if stack.ended:
                stacks[index] = training([method], part, config, device)

    return timed(run, number * config.steps // RECORDS, device)


def taken(stack: Stack) -> None:
    """Take the steps up to a record, and make it."""
    for _ in stack.run():
        pass
    stack.record()


def our_fold(method: str, part: InMemorySplit, test: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """Our training from fresh weights to its results."""

    def run() -> None:
        stack = training([method], part, config, device, test)
        while not stack.ended:
            taken(stack)
        stack.finish()

    return timed(run, config.epochs * steps_in(part, config.batch_size), device, fold=True)


def limit(method: str, part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """The bare step, over and over on one batch."""
    precision, loss_of = precision_of(method, config, device), build_loss(config)
    model = model_of(method, part).to(device)
    if channels_last(device, precision):
        order_weights(model, torch.channels_last)
    optimizer = SingleModel(model, config, device, precision).optimizer
    x, y = part.x[: config.batch_size].float(), part.y[: config.batch_size]
    steps = steps_in(part, config.batch_size)

    def run() -> None:
        for _ in range(steps):
            with autocast(device, precision):
                loss, _ = model.training_loss(x, y, loss_of)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()  # waits for a GPU

    return timed(run, steps, device)


class PublishedDAAM(nn.Module):
    """The released module: a loop over heads, variance as a difference of moments, joined at the end (D25)."""

    def __init__(self, num_heads: int, embed_dim: int) -> None:
        super().__init__()
        self.c = nn.ParameterList([nn.Parameter(torch.full((1, embed_dim), 2.0)) for _ in range(num_heads)])
        self.mean_offset = nn.ParameterList([nn.Parameter(torch.zeros(1, embed_dim)) for _ in range(num_heads)])

    def forward(self, x: Tensor) -> Tensor:
        """Weight (B, L, D), head by head."""
        heads = []
        for part, c, offset in zip(x.chunk(len(self.c), dim=1), self.c, self.mean_offset, strict=True):
            mean = part.mean(dim=1, keepdim=True)
            variance = (part.square().mean(dim=1, keepdim=True) - mean.square()).abs() + 1e-8
            y = (part - (mean + offset)) / (variance + 1e-5).sqrt()
            heads.append(part * torch.exp(-(y.square()) / (2 * c)))
        return torch.cat(heads, dim=1)


class Released:
    """The released loop.

    Args:
        method: a method; daam-v1 and daam-v2 become the released module.
        part: gives the sizes.
        config: batch size, loss, rate and decay.
        device: resolved device.
    """

    def __init__(self, method: str, part: InMemorySplit, config: TrainConfig, device: str) -> None:
        self.model, self.config, self.device = model_of(method, part), config, device
        if isinstance(self.model.decoder, ConvDecoder) and type(self.model.fusion).__name__ == "MultiHeadDAAM":
            published = PublishedDAAM(self.model.fusion.num_heads, part.x.shape[2])  # type: ignore[arg-type]
            self.model = FusionClassifier(published, self.model.decoder)
        self.model.to(device)
        self.precision = resolve_precision("published", device, work="convolutions")
        self.loss = build_loss(config)
        options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "foreach": False}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **options)
        enabled = self.precision == "float16"
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], init_scale=SCALE, enabled=enabled)

    def one_pass(self, part: InMemorySplit, order_seed: int) -> None:
        """Train on every clip once."""
        self.model.train()
        total = correct = 0.0
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            for x, y in part.batches(self.config.batch_size, order_seed):
                self.optimizer.zero_grad()
                with autocast(self.device, self.precision):
                    logits = self.model(x.float())
                    loss = self.loss(logits, y)
                self.scaler.scale(loss).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1000.0)  # of the gradients still scaled (D21)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                total += loss.item()
                correct += (logits.argmax(1) == y).sum().item()

    @torch.no_grad()
    def accuracy(self, part: InMemorySplit) -> float:
        """Validation, in float32 and in batches as large as in training."""
        self.model.eval()
        total = correct = 0.0
        for x, y in part.batches(self.config.batch_size):
            logits = self.model(x.float())
            total += self.loss(logits, y).item()
            correct += (logits.argmax(1) == y).sum().item()
        return correct / len(part)


def reference(method: str, part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """A pass of the released loop."""
    loop = Released(method, part, config, device)
    return timed(lambda: loop.one_pass(part, 1), steps_in(part, config.batch_size), device, released=True)


def reference_fold(method: str, part: InMemorySplit, test: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """The released loop from fresh weights; the best epoch's are kept."""

    def run() -> None:
        loop, best = Released(method, part, config, device), -1.0
        for epoch in range(config.epochs):
            loop.one_pass(part, epoch)
            if (accuracy := loop.accuracy(test)) > best:
                best = accuracy
                _ = {name: value.cpu().clone() for name, value in loop.model.state_dict().items()}

    return timed(run, config.epochs * steps_in(part, config.batch_size), device, released=True, fold=True)


if __name__ == "__main__":
    typer.run(main)
