"""WavLM's transformer with its position bias gated in one pass, as extraction runs it, against the former three passes.

Repeat it (Linux; a minute on two cores):

    python -m benchmarks.position_bias --out data/bench/position_bias.json    # --help for sizes and precisions

Two transformers of WavLM-Large's shape with the same seeded random weights read the same seeded frames, of which the
last of the first clip are padding. Their outputs must be equal, bit by bit. Figures of each:

- seconds: of the forward pass through the layers, in turns.
- peak_bytes: highest resident memory of a process that runs it once, less what it held before.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.extraction_memory import memory, reset_peak
from benchmarks.harness import apart, conclude, in_turns, ratio
from daamctl.compute.attention import call_projections, gate_bias_once
from daamctl.encoders import ENCODERS

FRAMES_PER_S = 50
PADDED = 20
ONE_PASS, THREE_PASSES = "one pass", "three passes"


def main(
    layers: Annotated[int, typer.Option(min=1, help="Transformer layers.")] = 2,
    clips: Annotated[int, typer.Option(min=1, help="Clips in the batch.")] = 16,
    clip_s: Annotated[float, typer.Option(min=1, help="Their length in seconds.")] = 5.0,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare the two ways."""
    frames = round(clip_s * FRAMES_PER_S) - 1
    ways = {name: transformer(layers, name) for name in (ONE_PASS, THREE_PASSES)}
    first, second = (run(model, clips, frames, precision) for model in ways.values())
    if not torch.equal(first, second):
        raise SystemExit("the two ways do not give equal bits")
    found = in_turns(
        {name: partial(timed, model, clips, frames, precision) for name, model in ways.items()}, repeats, "seconds"
    )
    for name, figures in in_turns(
        {name: partial(apart, peak, layers, name, clips, frames, precision) for name in ways}, 1, "peak_bytes"
    ).items():
        found[name] |= figures
    ratios = [ratio(found, quantity, ONE_PASS, THREE_PASSES) for quantity in ("seconds", "peak_bytes")]
    sizes = {"layers": layers, "clips": clips, "frames": frames, "precision": precision}
    conclude("position_bias", sizes, found, ratios, device="cpu", out=out)


def transformer(layers: int, way: str) -> Any:
    """The layers of WavLM-Large's shape, frozen."""
    from transformers import WavLMConfig, WavLMModel

    torch.manual_seed(0)
    shape = {**ENCODERS["wavlm-large"].shape, "num_hidden_layers": layers}
    model = WavLMModel(WavLMConfig(**shape)).eval().requires_grad_(False)
    call_projections(model)
    if way == ONE_PASS:
        gate_bias_once(model)
    return model.encoder


def run(model: Any, clips: int, frames: int, precision: str) -> Tensor:
    """Last hidden state (clips, frames, D)."""
    drawn = torch.randn(clips, frames, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(clips, frames, dtype=torch.bool)
    mask[0, -PADDED:] = False
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        state: Tensor = model(drawn, attention_mask=mask).last_hidden_state
    return state


def timed(model: Any, clips: int, frames: int, precision: str) -> dict[str, float]:
    """Seconds of one forward pass."""
    start = time.perf_counter()
    run(model, clips, frames, precision)
    return {"seconds": time.perf_counter() - start}


def peak(layers: int, way: str, clips: int, frames: int, precision: str) -> dict[str, float]:
    """Memory of one forward pass in this process."""
    model = transformer(layers, way)
    before = reset_peak()
    run(model, clips, frames, precision)
    return {"peak_bytes": memory("VmHWM") - before}


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory can only be told on Linux")
    typer.run(main)
