"""How long `preflight` and `report` take, and how much memory, on a corpus as large as IEMOCAP's embeddings.

Repeat it:

    python -m benchmarks.large_corpus --out data/bench/large_corpus.json    # --help for other sizes

Makes a project in a temporary folder (set TMPDIR to choose where; 24 layers x 1024 features of 10 000 clips take half a
gigabyte) with seeded embeddings and fold results, scores them with `evaluate` and `importance` (without its audit), and
runs each command in a process of its own, in turns. Nothing is trained: logits, maps and histories are drawn, weights
are those at the start. MLflow is left out of `report` (--no-track), since its time depends on the store. The baseline
is a process that reads all embeddings and does nothing with them.
"""

from __future__ import annotations

import math
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
import yaml
from numpy.typing import NDArray

from benchmarks.harness import apart, command, conclude, in_turns, ratio
from daamctl import __version__
from daamctl.artifacts.embeddings import EmbeddingsMetadata, shard_path, write_head, write_shard
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import FoldResult, fold_dir
from daamctl.artifacts.splits import Split, make_split
from daamctl.config import Config, load_config
from daamctl.config.keys import embedding_settings
from daamctl.store.files import content_key, write_text
from daamctl.store.provenance import versions
from daamctl.store.records import hashes_of, write_record
from daamctl.store.tables import write_frame

Floats = NDArray[np.floating[Any]]

NAME = "large"
CLASSES = ("neutral", "happy", "angry", "sad")
SHARES = (0.3, 0.3, 0.2, 0.2)
GROUPS = 5
CLIPS_PER_UTTERANCE = 2
METHODS = {"none": 0.8, "weighted-sum": 1.1, "mha": 1.0, "daam-v1": 1.2, "daam-v2": 1.1}
"""Methods, and how far their logits stand out at the true class, in standard deviations of the noise."""
MAPS = {"weighted-sum": "layer_weights", "mha": "layer_weights", "daam-v1": "density", "daam-v2": "density"}
COMMANDS = {"preflight": (), "report": ("--no-track",)}
READ = "from pathlib import Path; from daamctl.artifacts.embeddings import read_embeddings; read_embeddings(Path({!r}))"
EPOCHS = 35


def main(
    clips: Annotated[int, typer.Option(min=100, help="Clips.")] = 10_000,
    layers: Annotated[int, typer.Option(min=2, help="Layers of the encoder.")] = 24,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer; a multiple of 8.")] = 1024,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each command.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Time preflight and report on a large synthetic corpus."""
    if dim % 8:
        raise typer.BadParameter(f"must be a multiple of 8, the heads of mha, got {dim}", param_hint="--dim")
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        root = Path(folder)
        stored = apart(make, root, clips, layers, dim)  # apart, or its memory would be in the peaks of the commands
        for stage in ("evaluate", "importance"):
            daamctl(root, stage)
        runs = {name: partial(daamctl, root, name, *options) for name, options in COMMANDS.items()}
        embeddings = Layout.of(root, NAME, load_config(root, NAME)).embeddings
        read = partial(command, [sys.executable, "-c", READ.format(str(embeddings))], root)
        ways = in_turns({"read": read, **runs}, repeats, "seconds")
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "folds": GROUPS, "methods": len(METHODS)}
    ratios = [ratio(ways, quantity, name, "read") for quantity in ("seconds", "peak_bytes") for name in COMMANDS]
    conclude("large_corpus", {**sizes, "embeddings_bytes": stored}, ways, ratios, device="cpu", out=out)


def daamctl(root: Path, stage: str, *options: str) -> dict[str, float]:
    """Run a command on the pipeline, in a fresh process."""
    return command([sys.executable, "-m", "daamctl", stage, NAME, *options], root)


def make(root: Path, clips: int, layers: int, dim: int) -> int:
    """Write a project with the pipeline `NAME`: settings, embeddings and finished folds.

    Args:
        root: an empty folder.
        clips: N, over five groups of two speakers each.
        layers: L.
        dim: D.

    Returns:
        Size of the embeddings on disk, in bytes.
    """
    settings = {
        "methods": list(METHODS),
        "method_settings": {"daam-v1": {"num_heads": min(math.gcd(8, layers), layers // 2)}},
        "train": {"device": "cpu", "epochs": EPOCHS},
        "importance": {"audit": False},
    }
    write_text(root / "params.yaml", f"pipelines: [{NAME}]\n")
    write_text(root / "pipelines" / f"{NAME}.yaml", yaml.safe_dump(settings))
    config = load_config(root, NAME)
    layout = Layout.of(root, NAME, config)
    table = clip_table(clips)
    head = write_embeddings(layout, config, table, layers, dim)
    for number, method in enumerate(METHODS):
        for fold in range(1, GROUPS + 1):
            write_fold(layout, config, table, head, method, fold, np.random.default_rng([number, fold]))
    return sum(path.stat().st_size for path in layout.embeddings.iterdir())


def clip_table(clips: int) -> pl.DataFrame:
    """Clips in the columns of the embeddings: two per utterance, two speakers per group, classes drawn by `SHARES`."""
    utterance = np.arange(clips) // CLIPS_PER_UTTERANCE
    number = int(utterance[-1]) + 1
    target = np.random.default_rng(0).choice(len(CLASSES), number, p=SHARES)[utterance]
    group = utterance * GROUPS // number
    names = [f"u{one:06d}" for one in utterance]
    return pl.DataFrame(
        {
            "clip_id": [f"{name}#{index % CLIPS_PER_UTTERANCE:03d}" for index, name in enumerate(names)],
            "utterance_id": names,
            "label": [CLASSES[one] for one in target],
            "speaker": [f"s{2 * one + utterance[index] % 2:02d}" for index, one in enumerate(group)],
            "group": [f"Session{one + 1}" for one in group],
            "duration_s": np.full(len(group), 5.0),
        }
    )


def class_ids(table: pl.DataFrame) -> NDArray[np.int64]:
    """The class of every clip, (N,)."""
    return np.array([CLASSES.index(label) for label in table["label"]])


def profile(layers: int) -> Floats:
    """How much of a signal each layer carries, (L,) in (0, 1]: most at two thirds of the depth."""
    depth = np.arange(1, layers + 1) / layers
    return np.asarray(np.exp(-(((depth - 2 / 3) / 0.25) ** 2)))


def write_embeddings(layout: Layout, config: Config, table: pl.DataFrame, layers: int, dim: int) -> EmbeddingsMetadata:
    """Noise, an offset per speaker, and the centre of the class as far as the layer carries it; float16 shards."""
    rng = np.random.default_rng(1)
    numbers = tuple(range(1, layers + 1))
    # centres about two standard deviations of the noise apart from the origin, however many features there are
    centres = 2 / math.sqrt(dim) * profile(layers)[:, None] * rng.standard_normal((len(CLASSES), 1, dim))  # (C, L, D)
    offsets = 1 / math.sqrt(dim) * rng.standard_normal((2 * GROUPS, 1, dim))
    target = class_ids(table)
    speaker = table["speaker"].str.slice(1).cast(pl.Int64).to_numpy()
    head = EmbeddingsMetadata(
        key=content_key([len(table), layers, dim]),
        corpus=config.download.corpus,
        classes=CLASSES,
        layers=numbers,
        embed_dim=dim,
        encoder={"name": "drawn", "num_layers": layers},
        settings=embedding_settings(config),
        num_clips=len(table),
    )
    size = config.extract.shard_clips
    for index, start in enumerate(range(0, len(table), size)):
        rows = np.arange(start, min(start + size, len(table)))
        noise = rng.standard_normal((len(rows), layers, dim), dtype=np.float32)
        vectors = (noise + centres[target[rows]] + offsets[speaker[rows]]).astype(np.float16)
        facts = {"key": head.key, "unreadable": 0}
        write_shard(shard_path(layout.embeddings, index), table[rows], np.full(len(rows), 249), vectors, numbers, facts)
    write_head(layout.embeddings, head, table)
    return head


def write_fold(
    layout: Layout,
    config: Config,
    table: pl.DataFrame,
    head: EmbeddingsMetadata,
    method: str,
    fold: int,
    rng: np.random.Generator,
) -> None:
    """The files of one finished fold: what `train` leaves, drawn; the weights are those at the start."""
    from safetensors.numpy import save_file

    from daamctl.methods import build, save_weights, settings_of

    folder = fold_dir(layout.method(method), fold, 1)
    own = settings_of(method, config.method_settings)
    sizes = {"num_layers": len(head.layers), "embed_dim": head.embed_dim, "num_classes": len(CLASSES)}
    model = build(method, **sizes, **own)
    save_weights(model, folder / "weights.safetensors", method=method, **sizes, settings=own, origin=None)

    split = make_split(table, fold, dev_group=True)
    rows = table[split.test]
    target = class_ids(rows)
    logits = rng.standard_normal((len(rows), len(CLASSES)))
    logits[np.arange(len(rows)), target] += METHODS[method]
    predictions = rows.with_columns(
        pl.Series("target", target), pl.Series("logits", logits.tolist(), dtype=pl.List(pl.Float32))
    )
    accuracy = float((logits.argmax(axis=1) == target).mean())
    history = draw_history(accuracy, rng)
    if method in MAPS:
        save_file(draw_maps(MAPS[method], head, rng), folder / f"{MAPS[method]}.safetensors")

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    result = fold_result(config, head, split, method, num_parameters, accuracy, history)
    facts = {"key": result["run"]["key"], "classes": list(CLASSES)}
    write_frame(folder / "predictions.parquet", predictions, facts)
    write_frame(folder / "history.parquet", history, facts)
    result["files"] = hashes_of(folder)
    write_record(folder / "result.json", result)


def fold_result(
    config: Config,
    head: EmbeddingsMetadata,
    split: Split,
    method: str,
    num_parameters: int,
    accuracy: float,
    history: pl.DataFrame,
) -> FoldResult:
    """The content of `result.json`."""
    from daamctl.methods import settings_of

    test = history["test_accuracy"].to_list()
    selected = int(history["dev_accuracy"].arg_max() or 0)
    stages = ("download", "segment", "extract", "train")
    return {
        "run": {
            "key": content_key([head.key, method, split.fold]),
            "pipeline": NAME,
            "method": method,
            "fold": split.fold,
            "num_folds": split.num_folds,
            "modality": "speech",
            "seed": 1,
            "test_group": split.test_group,
            "dev_group": split.dev_group,
            "classes": list(CLASSES),
            "layers": list(head.layers),
            "embed_dim": head.embed_dim,
            "num_parameters": num_parameters,
            "reconstructed": "",
            "eval_batches": None,
            "config": {
                **{stage: config.section(stage) for stage in stages},
                "method": settings_of(method, config.method_settings),
            },
        },
        "metrics": {
            "accuracy": accuracy,
            "accuracy_best_on_test": max(accuracy, *test),
            "accuracy_last": test[-1],
            "dev_accuracy": history["dev_accuracy"][selected],
            "selected_epoch": selected + 1,
            "epochs": EPOCHS,
        },
        "files": {},
        "meta": {
            "daamctl": __version__,
            "versions": versions(),
            "git_commit": None,
            "device": "cpu",
            "precision": "float32",
            "embeddings_key": head.key,
            "encoder": head.encoder,
            "train_s": 100.0,
            "peak_memory_bytes": None,
            "num_train_clips": len(split.train),
            "num_dev_clips": len(split.dev),
            "num_test_clips": len(split.test),
        },
    }


def draw_history(accuracy: float, rng: np.random.Generator) -> pl.DataFrame:
    """Epochs that rise to an accuracy."""
    rise = 1 - np.exp(-np.arange(1, EPOCHS + 1) / 5)
    dev, test = np.clip(accuracy * rise + rng.normal(scale=0.01, size=(2, EPOCHS)), 0, 1)
    curves = {"train_loss": 0.3 * (1.2 - rise), "train_accuracy": rise, "dev_accuracy": dev, "test_accuracy": test}
    steps = range(10, 10 * EPOCHS + 1, 10)
    return pl.DataFrame({"step": steps, "epoch": range(1, EPOCHS + 1), "lr": [1e-4] * EPOCHS, **curves})


def draw_maps(kind: str, head: EmbeddingsMetadata, rng: np.random.Generator) -> dict[str, Floats]:
    """A score per layer (weights, sum 1) or per layer and feature (density), which training moves to the profile."""
    layers = len(head.layers)
    shape = (layers, head.embed_dim) if kind == "density" else (layers, 1)
    untrained = 0.6 + 0.02 * rng.standard_normal(shape)
    trained = untrained + 0.1 * profile(layers)[:, None] + 0.02 * rng.standard_normal(shape)
    maps = {"trained": trained, "untrained": untrained}
    if kind == "layer_weights":
        maps = {name: values[:, 0] / values.sum() for name, values in maps.items()}
    return {name: values.astype(np.float32) for name, values in maps.items()}


if __name__ == "__main__":
    typer.run(main)
