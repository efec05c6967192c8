"""What training from disk costs, against training from memory: clips per second, and peak memory.

Repeat it:

    python -m benchmarks.streaming --out data/bench/streaming.json    # --help for other sizes and methods

Makes a seeded synthetic set in a temporary folder (set TMPDIR to choose where) with an official train and test part,
and trains one method on it, with `train.features` memory and stream in turns, each run in a process of its own. The
first epoch warms up; the second is timed: a pass over the training part, and the evaluation on the test part. Loading,
which only training from memory needs, is timed by itself; `read` reads the same files from end to end and does nothing
with them, which is as fast as a set on disk can be. Shards come from the page cache where the set is smaller than
memory: decoding them is measured, the disk is not. Added memory is the peak above that of training on a few clips.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from benchmarks.harness import apart, conclude, in_turns, peak_bytes, ratio
from daamctl.artifacts.embeddings import EmbeddingsMetadata, shard_path, write_head, write_shard
from daamctl.artifacts.layout import Layout
from daamctl.compute.devices import resolve_device
from daamctl.config import Config
from daamctl.config.keys import embedding_settings

NAME = "streamed"
WAYS = ("memory", "stream")
CLASSES = ("a", "b", "c", "d")
TEST_SHARE = 0.05
FEW_CLIPS = 200
"""Of a second set, after which what the libraries take for themselves is known."""


def main(
    clips: Annotated[int, typer.Option(min=100, help="Clips.")] = 10_000,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 12,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer.")] = 384,
    method: Annotated[str, typer.Option(help="Method that is trained.")] = "weighted-sum",
    batch_size: Annotated[int, typer.Option(min=1, help="Clips per step.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each way.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare training from memory with training from disk."""
    device = apart(resolve_device, device)  # apart, or torch would be in the peaks of the runs
    settings = {"batch_size": batch_size, "device": device, "selection": "last", "steps": None, "epochs": 2}
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        root = Path(folder)
        stored = apart(make, root, clips, layers, dim)
        apart(make, root / "few", FEW_CLIPS, layers, dim)
        runs = {way: partial(apart, measure, root, method, {**settings, "features": way}) for way in WAYS}
        runs["read"] = partial(apart, read, root, clips)
        ways = in_turns(runs, repeats, "clips_per_s")
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "vectors_bytes": 2 * clips * layers * dim}
    ratios = [ratio(ways, quantity, "stream", "memory") for quantity in ("clips_per_s", "peak_bytes", "added_bytes")]
    ratios.append(ratio(ways, "clips_per_s", "stream", "read"))
    conclude(
        "streaming",
        {**sizes, "stored_bytes": stored},
        ways,
        ratios,
        device=device,
        out=out,
        method=method,
        train=settings,
    )


def make(root: Path, clips: int, layers: int, dim: int) -> int:
    """Write a set of embeddings: noise, and the centre of the class; returns its size on disk in bytes."""
    config, rng = Config(), np.random.default_rng(0)
    folder, numbers = layout_of(root).embeddings, tuple(range(1, layers + 1))
    centres = 3 / math.sqrt(dim) * rng.standard_normal((len(CLASSES), layers, dim), dtype=np.float32)
    test = round(TEST_SHARE * clips)
    size, tables = config.extract.shard_clips, []
    for index, start in enumerate(range(0, clips, size)):
        rows = np.arange(start, min(start + size, clips))
        target = rng.integers(len(CLASSES), size=len(rows))
        vectors = rng.standard_normal((len(rows), layers, dim), dtype=np.float32) + centres[target]
        names = [f"i{row:07d}" for row in rows]
        table = pl.DataFrame(
            {
                "clip_id": [f"{name}#000" for name in names],
                "utterance_id": names,
                "label": [CLASSES[one] for one in target],
                "speaker": names,
                "group": np.where(rows < test, "test", "train"),
                "duration_s": np.full(len(rows), 5.0),
            }
        )
        tables.append(table)
        path = shard_path(folder, index)
        write_shard(path, table, np.ones(len(rows)), vectors.astype(np.float16), numbers, {"unreadable": 0})
    write_head(
        folder,
        EmbeddingsMetadata(
            key="drawn",
            corpus=config.download.corpus,
            classes=CLASSES,
            layers=numbers,
            embed_dim=dim,
            encoder={"name": "drawn"},
            settings=embedding_settings(config, "speech"),
            num_clips=clips,
        ),
        pl.concat(tables),
    )
    return sum(path.stat().st_size for path in folder.iterdir())


def layout_of(root: Path) -> Layout:
    """Where the set lies."""
    return Layout(root, NAME, NAME, NAME)


def measure(root: Path, method: str, settings: dict[str, Any]) -> dict[str, float]:
    """Train for two epochs, on a few clips and then on the set.

    Returns:
        load_s; epoch_s, of the second epoch; clips_per_s, its training clips by epoch_s; accuracy on the test part;
        peak_bytes, resident; added_bytes, of it what the set took.
    """
    train(root / "few", method, settings)
    before = peak_bytes()
    found = train(root, method, settings)
    return {**found, "peak_bytes": peak_bytes(), "added_bytes": peak_bytes() - before}


def read(root: Path, clips: int) -> dict[str, float]:
    """Read the files of the set one after the other."""
    before, started = peak_bytes(), time.perf_counter()
    for path in sorted(layout_of(root).embeddings.glob("*.parquet")):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    per_s = clips / (time.perf_counter() - started)
    return {"clips_per_s": per_s, "peak_bytes": peak_bytes(), "added_bytes": peak_bytes() - before}


def train(root: Path, method: str, settings: dict[str, Any]) -> dict[str, float]:
    """Train on one set; see `measure`."""
    from daamctl.artifacts.results import Fold
    from daamctl.fit.features import load_features
    from daamctl.fit.loop import Recorded
    from daamctl.fit.runner import train_group
    from daamctl.fit.trial import FoldSpec, FusionTrial

    marks = [time.perf_counter()]
    config = Config.model_validate({"train": settings})
    features = load_features(layout_of(root), config).to_gpu(config)
    load_s = time.perf_counter() - marks[0]
    trial, work = FusionTrial(FoldSpec(NAME, method, 1, 1, config), features), root / f"work-{os.getpid()}"

    for event in train_group([trial], work / method, work, root=root):
        if isinstance(event, Recorded):
            marks.append(time.perf_counter())
        elif isinstance(event, Fold):
            fold = event
    epoch_s, accuracy = marks[-1] - marks[-2], fold.result["metrics"]["accuracy_last"]
    assert accuracy is not None
    per_s = fold.result["meta"]["num_train_clips"] / epoch_s
    return {"load_s": load_s, "epoch_s": epoch_s, "clips_per_s": per_s, "accuracy": accuracy}


if __name__ == "__main__":
    typer.run(main)
