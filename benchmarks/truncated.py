"""What an encoder that is cut after layer k costs, against the whole one: time and memory.

Repeat it (Linux; two minutes on two idle cores with the default encoder; as much room in TMPDIR as its weights take):

    python -m benchmarks.truncated --out data/bench/truncated.json    # --help for other encoders and sizes

The whole encoder, in the shape of a preset and with seeded random weights, is saved in a folder. Each way opens it
from there, whole or cut after a quarter, a half or three quarters of its layers. Every measurement is a process of its
own, which prepares the encoder as extraction does and embeds a batch of seeded items. Figures of each:

- seconds: of the batch, from collated inputs to pooled vectors of all layers that it has; the least of three after a
  first one. cpu_s: the same as time of the processor, which other work on the machine disturbs less.
- opening_s: from the folder to an encoder that is ready.
- peak_bytes: highest resident memory of the process, less what it held before it opened the encoder.
- parameters: of the encoder.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.extraction_memory import memory, reset_peak
from benchmarks.harness import apart, conclude, in_turns, ratio
from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.devices import resolve_precision
from daamctl.encoders import ENCODERS
from daamctl.encoders.load import open_encoder
from daamctl.encoders.save import save_cut_encoder

QUARTERS = (1, 2, 3)
RATE, SECONDS, TOKENS = 16000, 3, 128
BATCHES = 3


def main(
    encoder: Annotated[str, typer.Option(help="Preset that gives the shape.")] = "wavlm-large",
    items: Annotated[int, typer.Option(min=1, help="Items in the batch.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare cut encoders with the whole one."""
    modality = ENCODERS.load(encoder).modality
    precision = resolve_precision(precision, "cpu", work="encoder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "whole"
        number: int = apart(save_whole, encoder, modality, folder)
        depths = [max(1, number * quarter // 4) for quarter in QUARTERS]
        ways = {
            named(k, number): partial(apart, measure, folder, modality, k, items, precision) for k in (*depths, number)
        }
        found = in_turns(ways, repeats, "seconds")
    whole = named(number, number)
    ratios = [
        ratio(found, quantity, named(k, number), whole)
        for quantity in ("seconds", "cpu_s", "peak_bytes", "opening_s", "parameters")
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
    usual: dict[str, Any] = {"modality": modality, "max_duration_s": float(SECONDS), "device": "cpu"}
    return open_encoder(config, **usual, **options)


def save_whole(encoder: str, modality: Modality, folder: Path) -> int:
    """Save the whole encoder; return its number of layers."""
    whole = opened(encoder, modality, precision="float32")
    save_cut_encoder(whole, folder)
    number: int = max(whole.encoder.layers)
    return number


def measure(folder: Path, modality: Modality, k: int, items: int, precision: str) -> dict[str, float]:
    """Open the encoder cut after layer k in this process, and embed a batch.

    Returns:
        The quantities named above.
    """
    before = reset_peak()
    start = time.perf_counter()
    encoder = opened(str(folder), modality, precision=precision, highest_layer=k, weights_sha256="not needed").encoder
    encoder.prepare_for_inference()
    ready = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    makers = {
        "speech": lambda: torch.randn(SECONDS * RATE, generator=generator),
        "text": lambda: torch.randint(3, encoder.vocabulary, (TOKENS,), generator=generator),
        "image": lambda: torch.randn(3, *encoder.image_size, generator=generator),
    }
    batch = encoder.to_batch([makers[modality]() for _ in range(items)])
    encoder.run_async(batch)()
    seconds, cpu_s = [], []
    for _ in range(BATCHES):
        wall, cpu = time.perf_counter(), time.process_time()
        encoder.run_async(batch)()
        seconds.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
    return {
        "seconds": min(seconds),
        "cpu_s": min(cpu_s),
        "opening_s": ready - start,
        "peak_bytes": memory("VmHWM") - before,
        "parameters": sum(value.numel() for value in encoder.model.parameters()),
    }


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory can only be told on Linux")
    typer.run(main)
