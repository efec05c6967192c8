"""How often prediction sets hold the true class of items of a new speaker: by simulation, or on a trained method.

    python scripts/set_coverage.py                                   # simulated; a minute
    python scripts/set_coverage.py PROJECT my-emodb daam-v1-mlp      # each speaker in turn is the new one

Simulated speakers have 10 to 50 items of four classes, and a skill of their own; predictions are too certain. On a run,
the sets for each speaker are calibrated on the predictions for the others, all of folds that were not trained on the
speaker concerned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy.special import softmax

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import load_config
from daamctl.evaluation.conformal import in_set, smallest_probabilities
from daamctl.evaluation.scoring import items_of

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SPEAKERS = (5, 10, 20, 50)
CLASSES = 4


def simulated(rng: np.random.Generator, speakers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Speaker, true class and probabilities of items."""
    speaker = np.repeat(np.arange(speakers), rng.integers(10, 51, speakers))
    target = rng.integers(CLASSES, size=len(speaker))
    logits = rng.normal(size=(len(speaker), CLASSES))
    logits[np.arange(len(speaker)), target] += rng.normal(1.5, 1.0, speakers)[speaker]
    return speaker, target, softmax(1.5 * logits, axis=1)


def of_new(
    speaker: np.ndarray, target: np.ndarray, probabilities: np.ndarray, new: object, level: float
) -> tuple[float, float] | None:
    """Share of the items of one speaker whose set holds their class, and the mean size of the sets."""
    other, of_true = speaker != new, probabilities[np.arange(len(target)), target]
    smallest = smallest_probabilities(of_true[other], speaker[other]).get(level)
    if smallest is None:
        return None
    chosen = in_set(probabilities[~other], smallest)
    return float(chosen[np.arange(len(chosen)), target[~other]].mean()), float(chosen.sum(axis=1).mean())


def row(name: str, found: dict[float, list[tuple[float, float]]]) -> str:
    """Coverage in percent and mean size of the sets by level."""
    cells = [
        f"{100 * np.mean([one for one, _ in part]):.1f} ({np.mean([size for _, size in part]):.2f})" if part else "none"
        for part in found.values()
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main(
    project: Annotated[Path | None, typer.Argument()] = None,
    pipeline: Annotated[str, typer.Argument()] = "",
    method: Annotated[str, typer.Argument()] = "",
    rounds: int = 2_000,
    seed: int = 0,
) -> None:
    """Print a table: share of the items whose set holds their class, in brackets the classes per set."""
    print("| speakers | " + " | ".join(f"{100 * level:g} %" for level in LEVELS) + " |")
    print("| --- |" + " --- |" * len(LEVELS))
    if project is not None:
        layout = Layout.of(project, pipeline, load_config(project, pipeline))
        parts = [items_of(fold.predictions(), "utterance") for fold in read_folds(layout.method(method))]
        speaker = np.concatenate([np.asarray(part.speakers, dtype=str) for part in parts])
        target = np.concatenate([part.targets for part in parts])
        probabilities = np.concatenate([part.probabilities for part in parts])
        names = np.unique(speaker)
        found = {level: [of_new(speaker, target, probabilities, name, level) for name in names] for level in LEVELS}
        print(
            row(f"{len(names) - 1} of {method}", {level: [one for one in part if one] for level, part in found.items()})
        )
        return
    for number in SPEAKERS:
        rng = np.random.default_rng(seed)
        drawn: dict[float, list[tuple[float, float]]] = {level: [] for level in LEVELS}
        for _ in range(rounds):
            corpus = simulated(rng, number + 1)
            for level in LEVELS:
                if (one := of_new(*corpus, number, level)) is not None:
                    drawn[level].append(one)
        print(row(str(number), drawn), flush=True)


if __name__ == "__main__":
    typer.run(main)
