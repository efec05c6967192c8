"""The closed-form probe of all layers where neither all clips nor all features can be solved at once.

Repeat it, on made-up features or on those of an encoder (one fold; the last two groups choose the penalty and test):

    python -m benchmarks.concat_probe --out data/bench/concat_probe.json
    python -m benchmarks.concat_probe PROJECT/data/extract/agnews --rows 1000 --clips 4560

Three ways to fit it to the same training clips:

- all: every clip and feature, by a system of as many rows as there are features.
- components: every clip, each layer reduced so that the system has at most `--rows` rows, as `ridge-concat` does.
- sample: every feature of `--rows` clips drawn at random.

Figures: seconds of fitting, accuracy on the test clips, and macro-F1, which counts rare classes as much as others.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import numpy as np
import torch
import typer
from sklearn.metrics import f1_score

from benchmarks.harness import conclude, in_turns, ratio
from daamctl.artifacts.embeddings import read_embeddings
from daamctl.methods import Layers, build, probes

ALL, COMPONENTS, SAMPLE = "all", "components", "sample"
CLASSES, LAYERS, DIM = 10, 6, 96


def main(
    embeddings: Annotated[Path | None, typer.Argument(help="Folder of stage `extract`. [default: made up]")] = None,
    rows: Annotated[int, typer.Option(min=10, help="Rows of the largest system of the reduced ways.")] = 200,
    clips: Annotated[int, typer.Option(min=20, help="Training clips at most.")] = 6000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare the three ways."""
    x, y, group = made_up(clips) if embeddings is None else stored(embeddings)
    names = sorted(set(group.tolist()))
    own = {name: np.flatnonzero(group == name) for name in names}
    train = np.concatenate([own[name] for name in names[:-2]])
    parts = [np.sort(np.random.default_rng(0).permutation(train)[:clips]), own[names[-2]], own[names[-1]]]
    ways = {name: partial(fitted, name, x, y, parts, rows) for name in (ALL, COMPONENTS, SAMPLE)}
    found = in_turns(ways, repeats, "accuracy")
    sizes = {"clips": len(parts[0]), "layers": x.shape[1], "embed_dim": x.shape[2], "rows": rows}
    ratios = [ratio(found, "seconds", name, SAMPLE) for name in (ALL, COMPONENTS)]
    conclude("concat_probe", sizes, found, ratios, device="cpu", out=out)


def stored(folder: Path) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Features, classes and groups of a corpus; an official split in the order train, dev, test."""
    clips, vectors, _ = read_embeddings(folder)
    group = clips["group"].replace({"train": "1 train", "dev": "2 dev", "test": "3 test"}).to_numpy()
    return torch.from_numpy(vectors), torch.from_numpy(np.unique(clips["label"], return_inverse=True)[1]), group


def made_up(clips: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Correlated Gaussian features, in which every layer tells the classes apart a little."""
    rng = np.random.default_rng(0)
    number = 2 * clips
    y = rng.integers(0, CLASSES, number)
    spread = rng.standard_normal((LAYERS, DIM, DIM)) * np.geomspace(1, 0.05, DIM)[:, None]
    centres = 0.12 * rng.standard_normal((LAYERS, CLASSES, DIM))
    hidden = rng.standard_normal((number, LAYERS, DIM)) + centres[:, y].swapaxes(0, 1)
    x = np.einsum("nld,lde->nle", hidden, spread).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y), np.array(["1", "1", "2", "3"] * (number // 4))


def fitted(way: str, x: torch.Tensor, y: torch.Tensor, parts: list[np.ndarray], rows: int) -> dict[str, float]:
    """Fit one way, and test it."""
    train, dev, test = parts
    if way == SAMPLE:
        train = np.sort(np.random.default_rng(1).permutation(train)[:rows])
    largest = rows if way == COMPONENTS else x.shape[1] * x.shape[2]

    def part(numbers: np.ndarray) -> Layers:
        return Layers(y[numbers], lambda index: x[numbers, index])

    model = build("ridge-concat", num_layers=x.shape[1], embed_dim=x.shape[2], num_classes=int(y.max()) + 1)
    assert isinstance(model, probes.RidgeProbe)
    start = time.perf_counter()
    with patch.object(probes, "LARGEST_SYSTEM", largest):
        model.solve(part(train), part(dev))
    seconds = time.perf_counter() - start
    with torch.no_grad():
        answers = torch.cat([model(x[block].float()).argmax(1) for block in np.array_split(test, len(test) // 512 + 1)])
    right = (answers == y[test]).double().mean().item()
    return {"seconds": seconds, "accuracy": right, "macro_f1": float(f1_score(y[test], answers, average="macro"))}


if __name__ == "__main__":
    typer.run(main)
