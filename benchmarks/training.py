"""What a training step costs, against the released code's and against the bare step; and folds together or apart.

python -m benchmarks.training --out data/bench/training.json    # --help for other sizes and methods

The first three ways train one model on the same clips in turns. `reference` restates the released loop: eager DAAM of
one head after another, float32, one kernel per tensor in Adam, anomaly detection left on
(docs/sources.md#training-set-up, D41); a method other than daam-v1 and daam-v2 goes through that loop as our module.
`limit` is the least a step can be: forward, loss, backward and optimiser on a batch that is already in place, nothing
else. `ours` is a pass of the training loop over clips held in memory, by its steps. The last ways train 25 folds of a
small method, one by one and in one program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.harness import conclude, in_turns, ratio
from daamctl.config import TrainConfig
from daamctl.devices import autocast, resolve_device
from daamctl.methods import FusionClassifier, build
from daamctl.methods.decoder import ConvDecoder
from daamctl.training.batched import Program
from daamctl.training.feature_split import InMemorySplit
from daamctl.training.fusion_training import (
    FusionTraining,
    build_optimizer,
    channels_last,
    order_weights,
    train_precision,
)
from daamctl.training.loop import TrainingSetup
from daamctl.training.losses import build_loss

CLASSES = 4
MEMBERS = 25
SMALL = ("weighted-sum", "daam-v2-mlp")
SMALL_STEPS = 20
Measure = Callable[[], dict[str, float]]


def main(
    clips: Annotated[int, typer.Option(min=1, help="Clips of a pass.")] = 240,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 24,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer.")] = 1024,
    method: Annotated[str, typer.Option(help="Method that is trained.")] = "daam-v1",
    batch_size: Annotated[int, typer.Option(min=1, help="Clips per step.")] = 8,
    small_layers: Annotated[int, typer.Option(min=1, help="Layers where folds are trained together.")] = 6,
    small_dim: Annotated[int, typer.Option(min=8, help="Features per layer there.")] = 384,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare training steps."""
    device, config = resolve_device(device), TrainConfig(batch_size=batch_size, epochs=1000, selection="last")
    part = drawn(clips, layers, dim, device)
    small = drawn(SMALL_STEPS * batch_size, small_layers, small_dim, device)
    with TemporaryDirectory(prefix="daamctl-bench-") as work:
        makers: dict[str, Measure] = {
            "reference": reference(model_of(method, part), part, config, device),
            "limit": limit(model_of(method, part), part, config, device),
            "ours": alone([training(method, part, config, device, Path(work))]),
        }
        for name in SMALL:
            members = [
                [training(name, small, config, device, Path(work), seed) for seed in range(MEMBERS)] for _ in "ab"
            ]
            makers |= {f"{name} apart": alone(members[0]), f"{name} together": together(members[1])}
        for measure in makers.values():
            measure()  # what the first pass prepares is no step's
        ways = in_turns(makers, repeats, "step_s")
    goal = ">= 3.5" if device == "cpu" else ">= 15"
    ratios = [
        ratio(ways, "step_s", "ours", "reference", inverse=True, goal=goal),
        ratio(ways, "step_s", "ours", "limit", inverse=True, goal=">= 0.9"),
        *(ratio(ways, "step_s", f"{name} together", f"{name} apart", inverse=True, goal=">= 1.3") for name in SMALL),
    ]
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "batch": batch_size}
    precision = train_precision(model_of(method, part), config, device)
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


def training(
    method: str, part: InMemorySplit, config: TrainConfig, device: str, work: Path, seed: int = 0
) -> FusionTraining:
    """A training of ours, before its first epoch; little is tested, as evaluation is not measured."""
    model, few = model_of(method, part, seed), InMemorySplit(part.x[:2], part.y[:2])
    precision = train_precision(model, config, device)
    setup = TrainingSetup(seed, device, precision, work, key="")
    return FusionTraining(model, part, None, few, config, setup)


def timed(run: Callable[[], Any], steps: int) -> Measure:
    """Time by step."""

    def measure() -> dict[str, float]:
        started = time.perf_counter()
        run()
        return {"step_s": (time.perf_counter() - started) / steps}

    return measure


def alone(members: list[FusionTraining]) -> Measure:
    """Our loop: a training pass of one after the other, until its loss is known."""

    def run() -> None:
        for member in members:
            member.one_pass(1)

    return timed(run, sum(-(-len(member.train) // member.config.batch_size) for member in members))


def together(members: list[FusionTraining]) -> Measure:
    """Our loop: a training pass of all in one program."""
    program, size = Program(members), members[0].config.batch_size

    def run() -> None:
        for seen in program.one_pass():
            seen.means()

    return timed(run, sum(-(-len(member.train) // size) for member in members))


def limit(model: FusionClassifier, part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """The bare step, over and over on one batch."""
    precision, loss_of = train_precision(model, config, device), build_loss(config)
    model.to(device)
    if channels_last(device, precision):
        order_weights(model, torch.channels_last)
    optimizer = build_optimizer(model, config, fused=True)
    x, y = part.x[: config.batch_size].float(), part.y[: config.batch_size]
    steps = -(-len(part) // config.batch_size)

    def run() -> None:
        for _ in range(steps):
            with autocast(device, precision):
                loss, _ = model.training_loss(x, y, loss_of)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()  # waits for a GPU

    return timed(run, steps)


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


def reference(model: FusionClassifier, part: InMemorySplit, config: TrainConfig, device: str) -> Measure:
    """The released loop, in float32."""
    density = isinstance(model.decoder, ConvDecoder) and type(model.fusion).__name__ == "MultiHeadDAAM"
    if density:
        model = FusionClassifier(PublishedDAAM(model.fusion.num_heads, part.x.shape[2]), model.decoder)  # type: ignore[arg-type]
    model.to(device)
    loss_of, kind = build_loss(config), torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay, foreach=False)

    def run() -> None:
        total = correct = 0.0
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            for x, y in part.batches(config.batch_size, 1):
                optimizer.zero_grad()
                logits = model(x.float())
                loss = loss_of(logits, y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
                optimizer.step()
                total += loss.item()
                correct += (logits.argmax(1) == y).sum().item()

    return timed(run, -(-len(part) // config.batch_size))


if __name__ == "__main__":
    typer.run(main)
