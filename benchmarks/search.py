"""What training the candidates of a search side by side saves, against the same candidates one by one.

Repeat it:

    python -m benchmarks.search --out data/bench/search.json    # --help for other sizes and methods

Every method trains all folds of a synthetic set in memory with the default search and refit, in turns: `side by side`
as by default, candidates of all folds in one stack; and `one by one`, the baseline, which is `train.stack=never` and
takes the same steps on the same batches. Both choose by the same rule, so their accuracies on the test groups are to
agree: `accuracy` is that of each, and `same` the share of folds in which both chose the same settings. `one recipe`
trains without a search (`train.search=none`), to show what the search adds. The class moves every layer of a clip,
whose noise has a part that all of its layers share; layers differ in scale like those of Whisper-base's encoder.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer

from benchmarks.harness import conclude, in_turns, ratio
from daamctl.artifacts.embeddings import EmbeddingsMetadata
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, SearchPart
from daamctl.config import Config
from daamctl.fit.features import Features
from daamctl.fit.runner import train_all
from daamctl.fit.tracking import Tracker
from daamctl.fit.trial import FoldSpec, FusionTrial

NAME = "searched"
METHODS = ["mean", "weighted-sum", "none-mlp", "daam-v1-mlp", "daam-v2-mlp", "mha-mlp"]
CLASSES = ("a", "b", "c", "d")
GROUPS = 5
SCALES = (0.17, 0.20, 0.26, 0.40, 0.90, 0.77)
"""Standard deviations of the layers; of more layers, repeated."""
DISTANCE = 4.0
"""Of the centres of two classes, about, in standard deviations of the noise along the line between them."""
STACKED, ALONE, RECIPE = "side by side", "one by one", "one recipe"
WAYS: dict[str, dict[str, Any]] = {STACKED: {}, ALONE: {"stack": "never"}, RECIPE: {"search": "none"}}


def main(
    methods: Annotated[list[str] | None, typer.Argument(help=f"[default: {' '.join(METHODS)}]")] = None,
    clips: Annotated[int, typer.Option(min=40, help="Clips.")] = 339,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 6,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer.")] = 512,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each training. [default: train's]")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare a search side by side to the same search one by one."""
    features, methods = drawn(clips, layers, dim), methods or METHODS
    shared: dict[str, Any] = {"device": "cpu", **({} if steps is None else {"steps": steps})}
    found: dict[str, list[Fold]] = {}

    def measured(method: str, way: str) -> dict[str, float]:
        found[f"{method} {way}"], figures = measure(method, {**shared, **WAYS[way]}, features)
        return figures

    for name in methods:
        train(name, {**shared, "steps": 2}, features)  # what a first training prepares is no way's
    ways = in_turns(
        {f"{name} {way}": partial(measured, name, way) for name in methods for way in WAYS}, repeats, "seconds"
    )
    ratios = [
        *(ratio(ways, quantity, f"{name} {STACKED}", f"{name} {ALONE}", inverse=True)
          for quantity in ("seconds", "cpu_s") for name in methods),
        *(ratio(ways, "accuracy", f"{name} {STACKED}", f"{name} {other}")
          for other in (ALONE, RECIPE) for name in methods),
    ]  # fmt: skip
    agreement = {name: agreed(found[f"{name} {STACKED}"], found[f"{name} {ALONE}"]) for name in methods}
    for name, one in agreement.items():
        typer.echo(f"{name}: same {one['same']:.0%}, accuracy {one['accuracy']:+.4f}", err=True)
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "folds": GROUPS}
    conclude("search", sizes, ways, ratios, device="cpu", out=out, against_one_by_one=agreement)


def drawn(clips: int, layers: int, dim: int) -> Features:
    """A set of embeddings in memory, in which the class can be learned."""
    rng = np.random.default_rng(0)
    target = rng.integers(len(CLASSES), size=clips)
    centres = DISTANCE / math.sqrt(2 * dim) * rng.standard_normal((len(CLASSES), 1, dim))
    noise = rng.standard_normal((clips, 1, dim)) + 0.5 * rng.standard_normal((clips, layers, dim))
    scales = np.resize(SCALES, layers)[:, None]
    names = [f"i{row:07d}" for row in range(clips)]
    table = pl.DataFrame(
        {
            "clip_id": [f"{name}#000" for name in names],
            "utterance_id": names,
            "label": [CLASSES[one] for one in target],
            "speaker": names,
            "group": [f"group{row % GROUPS + 1}" for row in range(clips)],
            "duration_s": np.full(clips, 5.0),
        }
    )
    numbers = tuple(range(1, layers + 1))
    head = EmbeddingsMetadata("drawn", "drawn", CLASSES, numbers, dim, {"name": "drawn"}, {}, clips)
    return Features(head, table, torch.from_numpy(scales * (centres[target] + noise)).half(), numbers)


def train(method: str, settings: dict[str, Any], features: Features) -> list[Fold]:
    """Train every fold of a method; its results are read, its files are gone."""
    config = Config.model_validate({"train": settings})
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        layout = Layout(Path(folder), NAME, NAME, NAME)
        specs = [FoldSpec(NAME, method, fold, 1, config) for fold in range(1, GROUPS + 1)]
        trials = [FusionTrial(spec, features) for spec in specs]
        return train_all(trials, layout.method(method), layout, Tracker(), force=False)


def measure(method: str, settings: dict[str, Any], features: Features) -> tuple[list[Fold], dict[str, float]]:
    """Train a method.

    Returns:
        its folds; and seconds of all of them; cpu_s, of this process, which other work on the machine hardly changes;
        accuracy on the test groups, on average.
    """
    started, used = time.perf_counter(), time.process_time()
    folds = train(method, settings, features)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
    return folds, {"seconds": seconds, "cpu_s": cpu_s, "accuracy": mean_accuracy(folds)}


def mean_accuracy(folds: list[Fold]) -> float:
    """On the test groups, on average over folds."""
    return statistics.mean(float(fold.result["metrics"]["accuracy"] or 0.0) for fold in folds)


def agreed(ours: list[Fold], theirs: list[Fold]) -> dict[str, float]:
    """Share of folds in which two searches chose the same, and by how much the first is more accurate."""
    same = [chosen(one) == chosen(other) for one, other in zip(ours, theirs, strict=True)]
    return {"same": sum(same) / len(same), "accuracy": mean_accuracy(ours) - mean_accuracy(theirs)}


def chosen(fold: Fold) -> dict[str, Any]:
    """The settings that the search of a fold chose."""
    search: SearchPart = fold.result["search"]
    return search["candidates"][search["chosen"]]["settings"]


if __name__ == "__main__":
    typer.run(main)
