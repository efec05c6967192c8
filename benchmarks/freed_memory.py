"""Training steps with 2-D convolutions while the process keeps freed memory, as daamctl runs, against giving it back.

Repeat it (Linux with glibc; three minutes on two cores):

    python -m benchmarks.freed_memory --out data/bench/freed_memory.json    # --help for sizes

A step is one of `none`, the published decoder alone, on seeded numbers. Every measurement is a process of its own.
Figures of each:

- seconds: of a step.
- peak_bytes: highest resident memory of the process.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.extraction_memory import memory
from benchmarks.harness import apart, conclude, in_turns, ratio
from daamctl.compute.environment import keep_freed_memory
from daamctl.config import TrainConfig
from daamctl.fit.stack import SingleModel
from daamctl.methods import build

KEPT, RETURNED = "kept", "returned"
CLASSES = 4


def main(
    layers: Annotated[int, typer.Option(min=1, help="Layers L.")] = 6,
    dim: Annotated[int, typer.Option(min=1, help="Features D.")] = 512,
    batch: Annotated[int, typer.Option(min=1, help="Clips in the batch.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a measurement.")] = 10,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare the two ways."""
    ways = {name: partial(apart, measure, name, layers, dim, batch, steps, precision) for name in (KEPT, RETURNED)}
    found = in_turns(ways, repeats, "seconds")
    ratios = [ratio(found, quantity, KEPT, RETURNED) for quantity in ("seconds", "peak_bytes")]
    sizes = {"layers": layers, "dim": dim, "batch": batch, "steps": steps, "precision": precision}
    conclude("freed_memory", sizes, found, ratios, device="cpu", out=out)


def measure(way: str, layers: int, dim: int, batch: int, steps: int, precision: str) -> dict[str, float]:
    """Seconds of a step, and memory, in this process."""
    if way == KEPT:
        keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build("none", num_layers=layers, embed_dim=dim, num_classes=CLASSES).train()
    one = SingleModel(model, TrainConfig(), "cpu", precision)
    x, y = torch.randn(1, batch, layers, dim), torch.randint(CLASSES, (1, batch))
    one.step(x, y)
    start = time.perf_counter()
    for _ in range(steps):
        one.step(x, y)
    return {"seconds": (time.perf_counter() - start) / steps, "peak_bytes": memory("VmHWM")}


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory can only be told on Linux")
    typer.run(main)
