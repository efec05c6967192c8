"""What Whisper's encoder costs if it reads fewer than its 30 s: time of a batch of clips of 3 s.

Repeat it (a minute on two idle cores with the default encoder):

    python -m benchmarks.window --out data/bench/window.json    # --help for other encoders and windows

The encoder has the shape of a preset and seeded random weights. It is open once per window. The batches are measured in
turns, from the mel spectrogram to the pooled vectors.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import conclude, in_turns, ratio
from benchmarks.truncated import embed, prepared
from daamctl.compute.devices import resolve_precision
from daamctl.config import ExtractConfig
from daamctl.encoders.load import open_encoder

WHOLE = "30 s"


def main(
    encoder: Annotated[str, typer.Option(help="Preset that gives the shape.")] = "whisper-tiny",
    windows: Annotated[list[int] | None, typer.Option(min=3, help="Seconds; repeatable. [default: 5, 10]")] = None,
    items: Annotated[int, typer.Option(min=1, help="Clips in the batch.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 10,
    precision: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare windows with the whole 30 s."""
    precision = resolve_precision(precision, "cpu", work="encoder")
    named = {f"{seconds} s": seconds for seconds in windows or (5, 10)}
    batches = {}
    for way, seconds in {**named, WHOLE: None}.items():
        config = ExtractConfig(encoder=encoder, weights="random", window_s=seconds)
        opened = open_encoder(config, modality="speech", max_duration_s=5.0, device="cpu", precision=precision)
        batches[way] = partial(embed, opened.encoder, prepared(opened.encoder, items))
    found = in_turns(batches, repeats, "seconds")
    ratios = [ratio(found, "seconds", way, WHOLE) for way in named]
    sizes = {"encoder": encoder, "items": items, "precision": precision}
    conclude("window", sizes, found, ratios, device="cpu", out=out)


if __name__ == "__main__":
    typer.run(main)
