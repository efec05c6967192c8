"""How fast items become stored embeddings: against the released code's procedure, a peer, and the forward pass alone.

Repeat it (two to three minutes a round on two idle cores; 2 GB of memory, 1 GB in TMPDIR):

    python -m benchmarks.extraction --out data/bench/extraction.json     # --help for other encoders and sizes
    python -m benchmarks.extraction --profile                            # where the time of our way goes

The encoder has the shape of a preset and seeded random weights, which take as long as trained ones. Speech is seeded
noise with the durations of EmoDB (or recordings of your own), cut into clips of at most 5 s; texts and images are
seeded too. Every way starts from files or strings; the ways take turns.

- reference: the released code's procedure: one item at a time, speech as it is read and zero-padded to 5 s, float32,
  every frame of every layer saved with torch.save, over the file of an earlier item once there are 24.
- peer: transformers as its documentation has it, float32, batches of 8 in the order of the corpus. Texts and images go
  through its feature-extraction pipeline, which gives the last layer only. It has none for speech: feature extractor,
  padded batches, all hidden states, mean over each item's own frames; one float32 array at the end.
- ours: `make_shards` with the default settings: read, batch, pool, store.
- limit: the forward pass alone of the very batches of ours, made beforehand, in the same precision; no vector is
  pooled, nothing is stored.

On a GPU ours and limit take 6,000 clips, so that start and last shard are a small part of the time; reference and peer,
whose rate does not depend on the number, take 200 of them, with the TF32 convolutions of torch's defaults.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import soundfile
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from benchmarks.harness import conclude, in_turns, ratio
from daamctl.artifacts.clips import SCHEMAS, ClipTable
from daamctl.artifacts.embeddings import EmbeddingsMetadata, read_embeddings, shard_path, write_head
from daamctl.compute.devices import autocast, resolve_device, resolve_precision
from daamctl.compute.energy import joules
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.data.audio import probe
from daamctl.encoders import ENCODERS
from daamctl.encoders.base import Batch
from daamctl.encoders.load import open_encoder
from daamctl.extraction.batching import plan_batches
from daamctl.extraction.items import Items, open_items
from daamctl.extraction.shards import ShardTask, make_shards
from daamctl.extraction.stream import planned
from daamctl.fit.adapter import AdapterFit, AdapterTrial, EncoderAndItems, EncoderSource, ItemSet
from daamctl.fit.loop import Member
from daamctl.fit.trial import FoldSpec

RATE, CLIP_S = 16000, 5.0
MEDIAN_S, SPREAD, SHORTEST_S, LONGEST_S = 2.6, 0.36, 1.2, 9.0
"""Durations of EmoDB's 535 recordings: about log-normal, mean 2.8 s."""
NUMBER, CPU_CLIPS, GPU_CLIPS = 535, 24, 6000
SLOW_CLIPS = 200
"""Most clips of the ways that take one at a time, or few, and of the comparison of vectors."""
PEER_BATCH = 8
REFERENCE_FILES = 24
"""Files that the reference keeps: those of all recordings would take 13 GB, and measure the disk."""
PROPOSED: dict[str, Any] = {"pad_frames_to": 8, "writers": 2, "max_batch_s": 320.0, "shard_clips": 2048}
"""Settings that docs/scaling.md proposes for a large GPU."""
GOALS = {"cpu": (">= 5", ">= 0.9"), "cuda": (">= 20", ">= 0.9")}
"""Of ours / reference and ours / limit."""


@dataclass
class Bench:
    """What all ways work on.

    Args:
        rows: clip table.
        root: folder of its files.
        config: settings of our way.
        ours: our encoder, in the precision of the settings.
        plain: the same weights in float32, untouched.
        device: resolved device.
        folder: where results go.
    """

    rows: pl.DataFrame
    root: Path
    config: Config
    ours: Any
    plain: Any
    device: str
    folder: Path

    def items(self, rows: pl.DataFrame) -> Items:
        """Rows as the encoder reads them."""
        return open_items(rows, self.plain.modality, self.root, self.plain, self.config)

    def shards(self) -> list[pl.DataFrame]:
        """The rows of each shard."""
        size = self.config.extract.shard_clips
        return [self.rows[start : start + size] for start in range(0, len(self.rows), size)]


def lora(bench: Bench, config: Config, open_encoder: Callable[[], Any]) -> AdapterFit:
    """A LoRA in an encoder, about to be trained on the first half of the items.

    Args:
        bench: its items; they get four classes in turn.
        config: settings of the training.
        open_encoder: gives an encoder to adapt.
    """
    items, number = bench.items(bench.rows), len(bench.rows)
    plan = partial(plan_batches, budget=items.budget, equal_length=False)
    known = ItemSet(torch.arange(number) % 4, items.sizes, items.read, plan)
    rows = bench.rows.with_columns(
        pl.Series("label", [f"class{row % 4}" for row in range(number)]),
        pl.Series("group", ["train" if row < number // 2 else "test" for row in range(number)]),
    )
    clips = ClipTable("bench", tuple(f"class{one}" for one in range(4)), rows, {}, bench.plain.modality)
    train = config.train.model_copy(update={"selection": "last"})
    spec = FoldSpec("bench", "lora-r8", 1, 1, config.model_copy(update={"train": train}))
    trial = AdapterTrial(spec, EncoderSource(clips, lambda: EncoderAndItems(open_encoder(), {}, known)))
    fitting = trial.start([Member(trial, 0, {}, final=True)])
    assert isinstance(fitting, AdapterFit)
    fitting.model.train_mode(False)
    return fitting


def main(
    encoder: Annotated[str, typer.Option(help="Preset that gives the shape.")] = "wavlm-large",
    clips: Annotated[
        int | None,
        typer.Option(min=1, help="Clips, drawn at random. [default: 24; on a GPU 6000]"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    corpus_folder: Annotated[Path | None, typer.Option(help="WAV recordings in place of synthetic ones.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="Of ours: auto, float32, bfloat16 or float16.")] = "auto",
    shard_clips: Annotated[int, typer.Option(min=1, help="Clips per shard.")] = 512,
    proposed: Annotated[
        bool, typer.Option("--proposed", help="Also measure the settings proposed for a large GPU.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time of ours goes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare ways of extracting embeddings."""
    settings = {"encoder": encoder, "weights": "random", "device": device, "precision": precision}
    config = Config.model_validate({"extract": {**settings, "shard_clips": shard_clips}})
    with tempfile.TemporaryDirectory() as name:
        bench = prepared(config, clips or default_clips(resolve_device(device)), corpus_folder, Path(name))
        measures = ways(bench, with_settings(bench, PROPOSED) if proposed else None)
        warm_up(bench)
        if profile:
            print_profile(measures["ours"], bench.device)
            return
        found = in_turns(measures, repeats, "items_per_s")
        near = agreement(replace(bench, rows=bench.rows[:SLOW_CLIPS]))
    faster, of_limit = GOALS[bench.device.split(":")[0]]
    ratios = [
        ratio(found, "items_per_s", "ours", "reference", goal=faster),
        ratio(found, "items_per_s", "ours", "limit", goal=of_limit),
        ratio(found, "items_per_s", "ours", "peer"),
        ratio(found, "stored_bytes_per_item", "ours", "reference", inverse=True, goal=">= 400"),
    ]
    if proposed:
        ratios.append(ratio(found, "items_per_s", "proposed", "ours"))
    sizes = {"encoder": encoder, "items": len(bench.rows), "precision": bench.ours.precision, "shard": shard_clips}
    conclude("extraction", sizes, found, ratios, device=bench.device, out=out, agreement=near)
    for what, cosine in near.items():
        typer.echo(f"lowest cosine, {what}: {cosine:.6f}")


def default_clips(device: str) -> int:
    """On a GPU many, because the start and the last shard are not overlapped; on a CPU as many as take a minute."""
    return GPU_CLIPS if device.startswith("cuda") else CPU_CLIPS


def prepared(config: Config, clips: int, corpus_folder: Path | None, folder: Path) -> Bench:
    """Material and encoders."""
    modality = ENCODERS[config.extract.encoder].modality
    device = resolve_device(config.extract.device)
    precision = resolve_precision(config.extract.precision, device, work="encoder")
    usual: dict[str, Any] = {"modality": modality, "max_duration_s": CLIP_S, "device": device}
    ours = open_encoder(config.extract, precision=precision, **usual).encoder
    whole = config.extract.model_copy(update={"weights_dtype": "float32"})
    plain = open_encoder(whole, precision="float32", **usual).encoder
    rng, number = np.random.default_rng(0), max(NUMBER, clips)
    root = folder / "corpus"
    root.mkdir()
    if modality == "speech":
        if corpus_folder is None:
            write_recordings(root, rng, number)
        else:
            root = corpus_folder
        columns = cut(root)
    elif modality == "text":
        words = ["".join(rng.choice(list("aeinrst"), 5)) for _ in range(500)]
        columns = pl.DataFrame({"text": [" ".join(rng.choice(words, rng.integers(5, 60))) for _ in range(number)]})
    else:
        for one in range(number):
            pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"{one}.png")
        columns = pl.DataFrame({"path": [f"{one}.png" for one in range(number)], "index": [None] * number})
    chosen = np.sort(rng.choice(len(columns), min(clips, len(columns)), replace=False))
    rows = columns[chosen].with_row_index("clip_id").with_columns(pl.col("clip_id").cast(pl.String))
    others = [name for name in SCHEMAS[modality] if name not in rows.columns]
    rows = rows.with_columns(pl.lit("x").alias(name) for name in others)
    return Bench(rows, root, config, ours, plain, device, folder)


def write_recordings(root: Path, rng: np.random.Generator, number: int) -> None:
    """Noise with the durations of EmoDB."""
    durations = np.clip(MEDIAN_S * np.exp(SPREAD * rng.standard_normal(number)), SHORTEST_S, LONGEST_S)
    for one, seconds in enumerate(durations):
        wave = 0.1 * rng.standard_normal(round(seconds * RATE))
        soundfile.write(root / f"{one:04d}.wav", wave, RATE, subtype="PCM_16")


def cut(root: Path) -> pl.DataFrame:
    """Every recording in pieces of at most `CLIP_S`, as the segment stage cuts them by default."""
    pieces = []
    for path in sorted(root.rglob("*.wav")):
        info = probe(path)
        step = round(CLIP_S * info.sampling_rate)
        for start in range(0, info.num_samples, step):
            length = min(step, info.num_samples - start)
            pieces.append((str(path.relative_to(root)), start / info.sampling_rate, length / info.sampling_rate))
    if not pieces:
        raise typer.BadParameter(f"{root} holds no WAV recordings", param_hint="--corpus-folder")
    table = pl.DataFrame(pieces, schema=["path", "start_s", "duration_s"], orient="row")
    return table.with_columns(pl.lit(None, pl.Float64).alias("pad_to_s"), pl.lit(RATE).alias("sampling_rate"))


def with_settings(bench: Bench, settings: dict[str, Any]) -> Bench:
    """The same work with other settings of `extract` for ours."""
    extract = bench.config.extract.model_copy(update=settings)
    usual: dict[str, Any] = {"modality": bench.ours.modality, "max_duration_s": CLIP_S, "device": bench.device}
    encoder = open_encoder(extract, precision=bench.ours.precision, **usual).encoder
    encoder.prepare_for_inference()
    return replace(bench, config=bench.config.model_copy(update={"extract": extract}), ours=encoder)


def ways(bench: Bench, proposed: Bench | None = None) -> dict[str, Callable[[], dict[str, float]]]:
    """One measurement of each way; `proposed`: the same work with the settings proposed for a large GPU."""
    few = replace(bench, rows=bench.rows[:SLOW_CLIPS])
    made: dict[str, Callable[[Bench, Path], None]] = {"reference": reference, "peer": peer, "ours": ours}
    if proposed is not None:
        made["proposed"] = lambda _, folder: ours(proposed, folder)

    def measure(name: str) -> dict[str, float]:
        work, kernels = (few, torch_kernels()) if name in ("reference", "peer") else (bench, nullcontext())
        number = len(work.rows)
        with emptied(bench.folder / name) as folder, kernels:
            before = joules(bench.device)
            seconds = timed(lambda: made[name](work, folder), bench.device)
            after = joules(bench.device)
            sizes = [path.stat().st_size for path in folder.iterdir()]
        stored = sum(sizes) / (len(sizes) if name == "reference" else number)
        energy = {} if before is None or after is None else {"joules_per_item": (after - before) / number}
        return {"items_per_s": number / seconds, "stored_bytes_per_item": stored, **energy}

    batches = our_batches(bench)

    def limit() -> dict[str, float]:
        seconds = timed(lambda: forward(bench, batches), bench.device)
        return {"items_per_s": len(bench.rows) / seconds, "stored_bytes_per_item": 0.0}

    bench.ours.prepare_for_inference()
    return {**{name: lambda name=name: measure(name) for name in made}, "limit": limit}  # type: ignore[misc]


@contextmanager
def torch_kernels() -> Iterator[None]:
    """Within the block, convolutions in TF32: torch's default, with which the released code and the peer compute."""
    kept, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = kept


def reference(bench: Bench, folder: Path) -> None:
    """As the released code extracts: every frame of every layer of every item, one file each."""
    items = bench.items(bench.rows)
    for row in range(len(bench.rows)):
        torch.save(
            hidden_states(bench, reference_inputs(bench, items.read(row))).cpu(), folder / f"{row % REFERENCE_FILES}.pt"
        )


def reference_inputs(bench: Bench, item: Tensor) -> dict[str, Tensor]:
    """One item as the released code hands it over."""
    if bench.plain.modality != "speech":
        return {bench.plain.model.main_input_name: item[None].to(bench.device)}
    padded = torch.nn.functional.pad(item, (0, max(0, round(CLIP_S * RATE) - len(item))))
    if bench.plain.model.main_input_name != "input_values":  # Whisper reads a spectrogram
        return dict(bench.plain.collate([padded])[0])
    return {"input_values": padded[None].to(bench.device)}


@torch.inference_mode()
def hidden_states(bench: Bench, inputs: dict[str, Tensor]) -> Tensor:
    """All layers' frames, (L, B, T, D); the last behind the final norm, as the released code had it."""
    output = bench.plain.model(**inputs, output_hidden_states=True)
    return torch.stack([*output.hidden_states[1:-1], output.last_hidden_state])


def peer(bench: Bench, folder: Path) -> None:
    """As a user of transformers would: its own pipeline, or padded batches and the mean over each item's frames."""
    if bench.plain.modality != "speech":
        np.save(folder / "vectors.npy", from_pipeline(bench))
        return
    items, pooled = bench.items(bench.rows), []
    for start in range(0, len(bench.rows), PEER_BATCH):
        rows = range(start, min(start + PEER_BATCH, len(bench.rows)))
        inputs, mask = bench.plain.collate([items.read(row) for row in rows])
        weights = mask.float() / mask.sum(1, keepdim=True)
        pooled.append(torch.einsum("bt,lbtd->bld", weights, hidden_states(bench, inputs)).cpu())
    np.save(folder / "vectors.npy", torch.cat(pooled).numpy())


def from_pipeline(bench: Bench) -> NDArray[np.float32]:
    """Last hidden states of the feature-extraction pipeline, (N, D), averaged over tokens or patches."""
    from transformers import pipeline

    common: dict[str, Any] = {"model": bench.plain.model, "device": bench.device, "batch_size": PEER_BATCH}
    if bench.plain.modality == "text":
        tokenizer = bench.plain.tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        extractor: Any = pipeline("feature-extraction", tokenizer=tokenizer, **common)
        inputs = list(bench.rows["text"])
    else:
        extractor = pipeline("image-feature-extraction", image_processor=bench.plain.processor, **common)
        inputs = [str(bench.root / path) for path in bench.rows["path"]]
    return torch.cat([states.mean(1) for states in extractor(inputs, return_tensors=True)]).float().cpu().numpy()


def ours(bench: Bench, folder: Path) -> None:
    """Our code from rows to shards."""
    tasks = [ShardTask(shard_path(folder, index), rows) for index, rows in enumerate(bench.shards())]
    for made in make_shards(tasks, bench.ours, head=head(bench), root=bench.root, config=bench.config):
        if not isinstance(made, Units) and made.unreadable:
            raise RuntimeError(f"clips cannot be read: {made.unreadable}")


def head(bench: Bench) -> EmbeddingsMetadata:
    """Facts of the set."""
    return EmbeddingsMetadata(
        key="benchmark",
        corpus="benchmark",
        classes=("x",),
        layers=bench.ours.layers,
        embed_dim=bench.ours.embed_dim,
        encoder={},
        settings={},
        num_clips=len(bench.rows),
        modality=bench.ours.modality,
    )


def our_batches(bench: Bench) -> list[Batch]:
    """The batches that `ours` makes, in memory (on a GPU: in pinned memory)."""
    batches = []
    for rows in bench.shards():
        items = open_items(rows, bench.ours.modality, bench.root, bench.ours, bench.config)
        for batch in planned(bench.ours, items):
            batches.append(bench.ours.to_batch([items.read(row) for row in batch.tolist()]))
    return batches


@torch.inference_mode()
def forward(bench: Bench, batches: list[Batch]) -> None:
    """Nothing but the forward pass."""
    for batch in batches:
        inputs = {name: value.to(bench.device, non_blocking=True) for name, value in batch.inputs.items()}
        with autocast(bench.device, bench.ours.precision):
            bench.ours.hidden(inputs)


def warm_up(bench: Bench) -> None:
    """Have both encoders run once."""
    item = bench.items(bench.rows[:1]).read(0)
    bench.plain.pool([item])
    bench.ours.pool([item])


def agreement(bench: Bench) -> dict[str, float]:
    """Lowest cosine, over items and layers, of our vectors with others.

    `the same item by itself in float32`: the mean over its hidden states, unpadded and untouched by our engine; what
    lies below 1 is our precision. `the reference`: what lies below 1 is also its padding, and its unnormalised input.
    """
    with emptied(bench.folder / "agreement") as folder:
        ours(bench, folder)
        write_head(folder, head(bench), bench.rows)
        vectors = torch.from_numpy(read_embeddings(folder)[1]).float()
    items = bench.items(bench.rows)
    alone, published = [], []
    for row in range(len(bench.rows)):
        item = items.read(row)
        inputs, mask = bench.plain.collate([item])
        states = hidden_states(bench, inputs)[:, 0]  # (L, T, D)
        alone.append(states[:, mask[0].bool()].mean(1).cpu())
        published.append(hidden_states(bench, reference_inputs(bench, item))[:, 0].mean(1).cpu())
    cosine = torch.nn.functional.cosine_similarity
    return {
        "the same item by itself in float32": float(cosine(vectors, torch.stack(alone), dim=2).min()),
        "the reference": float(cosine(vectors, torch.stack(published), dim=2).min()),
    }


def timed(work: Callable[[], None], device: str) -> float:
    """Seconds that some work takes, to the end of what it leaves running on a GPU."""
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """A folder that is there only within the block."""
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def print_profile(work: Callable[[], Any], device: str) -> None:
    """Print the operations that take most of the time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    with profiler(activities=kinds, acc_events=True) as seen:
        work()
    by = "self_cuda_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    typer.echo(seen.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=45))


if __name__ == "__main__":
    typer.run(main)
