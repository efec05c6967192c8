"""What choosing the settings on the held-out group costs, against one recipe; and whether halving picks what full does.

Repeat it:

    python -m benchmarks.search --out data/bench/search.json    # --help for other sizes and methods

Every method trains all folds of a synthetic set in memory, in turns: with the default search; with one recipe, which
is `train.search=none` (learning rate 1e-4); and with a fast recipe, which is the same at 1e-3. The fast recipe stops
earliest, too early for some methods: compare the accuracies before the times. The class moves every layer of a clip,
whose noise has a part that all of its layers share; layers differ in scale like those of Whisper-base's encoder. Then
every method trains once with `search=full`, whose candidates are all trained to their end: `same` is the share of
folds in which halving chose the same settings, `accuracy` what halving's folds have on the test groups beyond those of
full, on average.
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
from daamctl.artifacts.results import Fold, SearchPart
from daamctl.config import Config
from daamctl.layout import Layout
from daamctl.tracking import Tracker
from daamctl.fit.features import Features
from daamctl.fit.runner import train_all
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials.fusion import FusionTrial

NAME = "searched"
METHODS = ["mean", "weighted-sum", "none-mlp", "daam-v1-mlp", "daam-v2-mlp", "mha-mlp"]
CLASSES = ("a", "b", "c", "d")
GROUPS = 5
SCALES = (0.17, 0.20, 0.26, 0.40, 0.90, 0.77)
"""Standard deviations of the layers; of more layers, repeated."""
DISTANCE = 4.0
"""Of the centres of two classes, about, in standard deviations of the noise along the line between them."""
WAYS: dict[str, dict[str, Any]] = {
    "searched": {},
    "one recipe": {"search": "none"},
    "fast recipe": {"search": "none", "lr": 1e-3},
}


def main(
    methods: Annotated[list[str] | None, typer.Argument(help=f"[default: {' '.join(METHODS)}]")] = None,
    clips: Annotated[int, typer.Option(min=40, help="Clips.")] = 339,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 6,
    dim: Annotated[int, typer.Option(min=8, help="Features per layer.")] = 512,
    epochs: Annotated[int | None, typer.Option(min=1, help="Most epochs of each training. [default: train's]")] = None,
    full: Annotated[bool, typer.Option(help="Also compare with every candidate trained to its end.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare training with a search to training with one recipe."""
    features, methods = drawn(clips, layers, dim), methods or METHODS
    shared: dict[str, Any] = {"device": "cpu", **({} if epochs is None else {"epochs": epochs})}
    runs = {f"{name} {way}": partial(measure, name, {**shared, **own}, features)
            for name in methods for way, own in WAYS.items()}  # fmt: skip
    for name in methods:
        train(name, {**shared, "epochs": 1}, features)  # what a first training prepares is no way's
    ways = in_turns(runs, repeats, "seconds")
    ratios = [ratio(ways, quantity, f"{name} searched", f"{name} {recipe}", goal=goal)
              for quantity in ("seconds", "cpu_s") for name in methods
              for recipe, goal in (("one recipe", "<= 3"), ("fast recipe", None))]  # fmt: skip
    agreement = {name: agreed(name, shared, features) for name in methods} if full else {}
    for name, found in agreement.items():
        typer.echo(f"{name}: same {found['same']:.0%}, accuracy {found['accuracy']:+.4f}", err=True)
    sizes = {"clips": clips, "layers": layers, "embed_dim": dim, "folds": GROUPS}
    conclude("search", sizes, ways, ratios, device="cpu", out=out, halving_against_full=agreement)


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


def measure(method: str, settings: dict[str, Any], features: Features) -> dict[str, float]:
    """Train a method.

    Returns:
        seconds of all folds; cpu_s, of this process, which other work on the machine hardly changes; accuracy on the
        test groups and epochs of the model that is kept, on average.
    """
    started, used = time.perf_counter(), time.process_time()
    folds = train(method, settings, features)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
    epochs = [float(fold.result["metrics"]["epochs"] or 0) for fold in folds]
    return {"seconds": seconds, "cpu_s": cpu_s, "accuracy": mean_accuracy(folds), "epochs": statistics.mean(epochs)}


def mean_accuracy(folds: list[Fold]) -> float:
    """On the test groups, on average over folds."""
    return statistics.mean(float(fold.result["metrics"]["accuracy"] or 0.0) for fold in folds)


def agreed(method: str, shared: dict[str, Any], features: Features) -> dict[str, float]:
    """Whether halving chose what training every candidate to its end chooses: see the module."""
    halving, full = (train(method, {**shared, "search": search}, features) for search in ("halving", "full"))
    same = [chosen(one) == chosen(other) for one, other in zip(halving, full, strict=True)]
    return {"same": sum(same) / len(same), "accuracy": mean_accuracy(halving) - mean_accuracy(full)}


def chosen(fold: Fold) -> dict[str, Any]:
    """The settings that the search of a fold chose."""
    search: SearchPart = fold.result["search"]
    return search["candidates"][search["chosen"]]["settings"]


if __name__ == "__main__":
    typer.run(main)
