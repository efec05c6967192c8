"""What an encoder that is cut after layer k costs, against the whole one: time and memory.

Repeat it (Linux; two minutes on two idle cores with the default encoder; as much room in TMPDIR as its weights take):

    python -m benchmarks.truncated --out data/bench/truncated.json    # --help for other encoders and sizes

The whole encoder, in the shape of a preset and with seeded random weights, is saved in a folder. Each way opens it
from there, whole or cut after a quarter, a half or three quarters of its layers, prepares it as extraction does and
embeds a batch of seeded items. The time of a batch is measured with all of them open, in turns, because a batch takes
so short that other work on the machine would hit one way alone. Figures of each:

- seconds: of the batch, from collated inputs to pooled vectors of all layers that it has; after a first one.
- opening_s: from the folder to an encoder that is ready, in a process of its own.
- peak_bytes: highest resident memory of that process, which embeds a batch too, less what it held before.
- parameters: of the encoder.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.extraction_memory import memory, reset_peak
from benchmarks.harness import apart, conclude, in_turns, ratio
from daamctl.artifacts.utterances import Modality
from daamctl.compute.devices import resolve_precision
from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS
from daamctl.encoders.base import Batch
from daamctl.encoders.cost import noise
from daamctl.encoders.load import open_encoder
from daamctl.encoders.save import save_cut_encoder

QUARTERS = (1, 2, 3)


def main(
    encoder: Annotated[str, typer.Option(help="Preset that gives the shape.")] = "wavlm-large",
    items: Annotated[int, typer.Option(min=1, help="Items in the batch.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of batches; of processes, a fifth.")] = 15,
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare cut encoders with the whole one."""
    modality = ENCODERS[encoder].modality
    precision = resolve_precision(precision, "cpu", work="encoder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "whole"
        number: int = apart(save_whole, encoder, modality, folder)
        depths = [max(1, number * quarter // 4) for quarter in QUARTERS]
        ways = {named(k, number): k for k in (*depths, number)}
        alone = {way: partial(apart, measure, folder, modality, k, items, precision) for way, k in ways.items()}
        found = in_turns(alone, math.ceil(repeats / 5), "opening_s")
        batches = {}
        for way, k in ways.items():
            one = opened(
                str(folder), modality, precision=precision, highest_layer=k, weights_sha256="not needed"
            ).encoder
            batches[way] = partial(embed, one, prepared(one, items))
    for way, figures in in_turns(batches, repeats, "seconds").items():
        found[way] |= figures
    whole = named(number, number)
    ratios = [
        ratio(found, quantity, named(k, number), whole)
        for quantity in ("seconds", "peak_bytes", "opening_s", "parameters")
        for k in depths
    ]
    sizes = {"encoder": encoder, "items": items, "precision": precision}
    conclude("truncated", sizes, found, ratios, device="cpu", out=out)


def named(k: int, number: int) -> str:
    """A way."""
    return f"all {number} layers" if k == number else f"layers 1-{k}"


def opened(encoder: str, modality: Modality, **options: Any) -> Any:
    """An encoder on the CPU, in float32."""
    config = ExtractConfig(encoder=encoder, weights="random" if encoder in ENCODERS else "pretrained")
    usual: dict[str, Any] = {"modality": modality, "max_duration_s": 5.0, "device": "cpu"}
    return open_encoder(config, **usual, **options)


def save_whole(encoder: str, modality: Modality, folder: Path) -> int:
    """Save the whole encoder; return its number of layers."""
    whole = opened(encoder, modality, precision="float32")
    save_cut_encoder(whole, folder)
    number: int = max(whole.encoder.layers)
    return number


def prepared(encoder: Any, items: int) -> Batch:
    """Prepare an encoder for inference, and embed a first batch."""
    encoder.prepare_for_inference()
    batch: Batch = encoder.to_batch(noise(encoder, items))
    embed(encoder, batch)
    return batch


def embed(encoder: Any, batch: Batch) -> dict[str, float]:
    """Embed a batch; return its seconds."""
    start = time.perf_counter()
    encoder.run_async(batch)()
    return {"seconds": time.perf_counter() - start}


def measure(folder: Path, modality: Modality, k: int, items: int, precision: str) -> dict[str, float]:
    """Open the encoder cut after layer k in this process, and embed a batch.

    Returns:
        The quantities named above, except `seconds`.
    """
    before = reset_peak()
    start = time.perf_counter()
    encoder = opened(str(folder), modality, precision=precision, highest_layer=k, weights_sha256="not needed").encoder
    ready = time.perf_counter()
    prepared(encoder, items)
    return {
        "opening_s": ready - start,
        "peak_bytes": memory("VmHWM") - before,
        "parameters": sum(value.numel() for value in encoder.model.parameters()),
    }


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory can only be told on Linux")
    typer.run(main)
