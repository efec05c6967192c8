"""Measure on a GPU what `make gpu-check` does not: variants of extraction, whole trainings, repeatable fine-tuning.

Each command prints a JSON line per figure and writes them all to OUT. With --tiny they only have to run, on any device.
scripts/gpu_offline.sh calls them.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer

from benchmarks import extraction as bench_of
from benchmarks import large_corpus
from benchmarks.harness import command
from daamctl.artifacts.layout import Layout
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.compute.energy import joules
from daamctl.compute.environment import prepare
from daamctl.config import Config, load_config
from daamctl.encoders.load import open_encoder
from daamctl.fit.adapter import AdapterFit, predict
from daamctl.store.files import write_json, write_text

Out = Annotated[Path, typer.Argument(help="JSON file to write.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Tiny sizes.")]
Note = Callable[..., None]
VARIANTS = ((1, 80, 512, 1), (8, 80, 512, 1), (8, 320, 2048, 1), (8, 320, 2048, 2))
"""Values of pad_frames_to, max_batch_s, shard_clips and writers."""
app = typer.Typer(add_completion=False, help=__doc__)


@contextmanager
def noted(out: Path) -> Iterator[Note]:
    """A function that prints a figure and adds it to a file, so that those before a failure are kept."""
    prepare()
    found: list[dict[str, Any]] = []

    def note(**row: Any) -> None:
        found.append(row)
        typer.echo(json.dumps(row))
        write_json(out, found)

    yield note


def waited(device: str) -> float:
    """The time once the device has nothing left to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


@app.command()
def extract(out: Out, tiny: Tiny = False) -> None:
    """Extraction: batches of 80 and 320 s, lengths rounded or not, one or two writers, against the forward pass."""
    encoder, clips = ("wavlm-micro", 6) if tiny else ("wavlm-large", bench_of.GPU_CLIPS)
    device = resolve_device("auto")
    with noted(out) as note, tempfile.TemporaryDirectory() as folder:
        settings = {"encoder": encoder, "weights": "random", "device": device}
        bench = bench_of.prepared(Config.model_validate({"extract": settings}), clips, None, Path(folder))
        seconds_of_audio = float(bench.rows["duration_s"].sum())

        def timed(way: str, work: Callable[[], None]) -> None:
            before, seconds, after = joules(device), bench_of.timed(work, device), joules(device)
            energy = None if before is None or after is None else (after - before) / len(bench.rows)
            speed = {"clips_per_s": len(bench.rows) / seconds, "audio_s_per_s": seconds_of_audio / seconds}
            note(way=way, seconds=seconds, **speed, joules_per_clip=energy)

        for frames, budget, shard, writers in VARIANTS:
            values = {"pad_frames_to": frames, "max_batch_s": float(budget), "shard_clips": shard, "writers": writers}
            variant = bench_of.with_settings(bench, values)
            name = f"{budget} s, {shard} a shard, multiples of {frames}, {writers} writer(s)"
            for turn in ("cold", "again"):
                with bench_of.emptied(bench.folder / "made") as where:
                    timed(f"ours {turn}: {name}", functools.partial(bench_of.ours, variant, where))
            batches = bench_of.our_batches(variant)
            timed(f"limit: {name}", functools.partial(bench_of.forward, variant, batches))
            started = waited(device)
            bench_of.forward(variant, batches[:12])
            launched = time.perf_counter() - started
            note(way=f"host ms to launch a batch: {name}", ms=1000 * launched / len(batches[:12]))
            if writers == 2:
                forward = functools.partial(bench_of.forward, variant, batches[:12])
                bench_of.print_profile(lambda: bench_of.timed(forward, device), device)  # noqa: B023


@app.command()
def folds(out: Out, tiny: Tiny = False) -> None:
    """The command `train` on drawn embeddings of IEMOCAP's size, as published, and with the default search."""
    clips, layers, dim, epochs, steps = (200, 8, 32, 1, 4) if tiny else (7757, 24, 1024, 35, 200)
    device = resolve_device("auto")
    fixed = {
        "steps": None,
        "epochs": epochs,
        "search": "none",
        "refit": False,
        "selection": "best-on-test",
        "batch_size": 8,
    }
    runs: list[tuple[str, dict[str, Any], list[str]]] = [
        (f"{epochs} epochs, batch 8, graphs", {**fixed, "graphs": "auto"}, []),
        (f"{epochs} epochs, batch 8, one fold", fixed, ["--fold", "1"]),
        ("search and refit, graphs, one fold", {"graphs": "auto", "steps": steps}, ["--fold", "1"]),
        ("search and refit, one fold", {"steps": steps}, ["--fold", "1"]),
    ]
    with noted(out) as note, tempfile.TemporaryDirectory() as folder:
        root, name = Path(folder), large_corpus.NAME
        write_text(root / "params.yaml", f"pipelines: [{name}]\n")
        words = [sys.executable, "-m", "daamctl", "train", "-p", name, "-m", "daam-v1", "--no-track", "--force"]
        for what, train, more in runs:
            recipe = json.dumps({"device": device, **train})
            write_text(root / "pipelines" / f"{name}.yaml", f"methods: [daam-v1]\ntrain: {recipe}\n")
            config = load_config(root, name)
            layout = Layout.of(root, name, config)
            if not layout.embeddings.exists():
                large_corpus.write_embeddings(layout, config, large_corpus.clip_table(clips), layers, dim)
            try:
                note(run=what, **command([*words, *more], root))
            except RuntimeError as error:
                note(run=what, error=str(error)[-600:])


@app.command()
def finetune(out: Out, tiny: Tiny = False) -> None:
    """LoRA: whether it repeats bit by bit with and without deterministic kernels, ms and waits a step, evaluation."""
    encoder, number, warm, steps = ("wavlm-micro", 6, 1, 1) if tiny else ("wavlm-large", 96, 5, 15)
    device = resolve_device("auto")
    precision = resolve_precision("auto", device, work="other")
    given = {"extract": {"encoder": encoder, "weights": "random", "device": device},
             "finetune": {"batch_size": 8, "epochs": 1, "device": device}}  # fmt: skip
    config, batch = Config.model_validate(given), np.arange(min(8, number // 2))
    with noted(out) as note, tempfile.TemporaryDirectory() as folder:
        bench = bench_of.prepared(config, number, None, Path(folder))
        kept = {name: value.detach().cpu().clone() for name, value in bench.plain.model.state_dict().items()}

        def fresh() -> Any:
            usual: dict[str, Any] = {"modality": "speech", "max_duration_s": bench_of.CLIP_S, "device": device}
            opened = open_encoder(config.extract, precision="float32", **usual).encoder
            opened.model.load_state_dict(kept)
            return opened

        def trained(warn_only: bool) -> tuple[AdapterFit, dict[str, torch.Tensor], dict[str, float]]:
            run = bench_of.lora(bench, config, fresh)
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            read = [run.opened.items.read(int(row)) for row in batch]
            for _ in range(warm):
                run.step(read, batch)
            started = waited(device)
            for _ in range(steps):
                run.step(read, batch)
            launched = time.perf_counter() - started
            figures = {"host_ms": 1000 * launched / steps, "step_ms": 1000 * (waited(device) - started) / steps}
            return run, {name: value.clone() for name, value in run.model.trainable_state().items()}, figures

        for warn_only in (True, False):
            try:
                _, first, _ = trained(warn_only)
                run, second, figures = trained(warn_only)
            except RuntimeError as error:
                note(deterministic=not warn_only, error=str(error)[:300])
            else:
                repeats = all(torch.equal(first[name], second[name]) for name in first)
                note(deterministic=not warn_only, repeats=repeats, **figures)
        torch.use_deterministic_algorithms(True, warn_only=True)
        if device.startswith("cuda"):
            read = [run.opened.items.read(int(row)) for row in batch]
            torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                run.step(read, batch)
            torch.cuda.set_sync_debug_mode("default")
            note(waits_per_step=sum("synchroniz" in str(one.message) for one in seen))
        for evaluated in dict.fromkeys(("float32", precision)):
            started = waited(device)
            predict(run.model, run.opened, run.split.test, precision=evaluated)
            note(evaluated=evaluated, clips_per_s=len(run.split.test) / (waited(device) - started))
        torch.use_deterministic_algorithms(False)


@app.command()
def same(out: Out, one: Path, other: Path, method: str) -> None:
    """Whether the folds of a method in two trees (`data/train`) have the same logits, bit by bit."""
    with noted(out) as note:
        for path in sorted(one.glob(f"*/{method}/*/predictions.parquet")):
            beside = other / path.relative_to(one)
            equal = beside.exists() and pl.read_parquet(path)["logits"].equals(pl.read_parquet(beside)["logits"])
            note(fold=path.parent.name, same=equal)


if __name__ == "__main__":
    app()
