"""Coverage of intervals for few speakers, by simulation: how often a 95 % interval contains the true value.

    python scripts/coverage.py    # the table of docs/sources.md#intervals; a few minutes

Speakers have 10 to 50 utterances and an accuracy of their own, from a beta distribution around 75 % with a standard
deviation of 10 points. A second method has another accuracy for each, correlated with the first, and is 3 points worse.
`bootstrap` redraws speakers whatever their number; `daamctl` is what the package computes.
"""

from __future__ import annotations

import numpy as np
import typer

from daamctl.artifacts.statistics import Interval
from daamctl.evaluation import engine
from daamctl.evaluation.statistics import grouped_means

SPEAKERS = (5, 6, 8, 10, 15, 20, 30, 50)
MEAN, SPREAD, GAP, CLASSES = 0.75, 0.10, 0.03, 4


def draw(rng: np.random.Generator, speakers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Speaker, class, and whether each of two methods is right, of every utterance."""
    size = rng.integers(10, 51, speakers)
    total = MEAN * (1 - MEAN) / SPREAD**2 - 1
    first = rng.beta(MEAN * total, (1 - MEAN) * total, speakers)
    second = np.clip(first - GAP + rng.normal(0, 0.05, speakers), 0, 1)
    speaker = np.repeat(np.arange(speakers), size)
    classes = rng.integers(CLASSES, size=len(speaker))
    one, two = ((rng.random(len(speaker)) < rate[speaker]).astype(float) for rate in (first, second))
    return speaker, classes, one, two


def main(rounds: int = 2_000, seed: int = 0) -> None:
    """Print the table."""
    rng = np.random.default_rng(seed)
    big = draw(rng, 200_000)
    truth = float(grouped_means(big[2], big[0]).mean() - grouped_means(big[3], big[0]).mean())
    few = engine.FEW_UNITS
    print(
        "| speakers | accuracy: bootstrap | daamctl | balanced: bootstrap | daamctl | difference: bootstrap | daamctl |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for speakers in SPEAKERS:
        hits = np.zeros(6)
        none = 0
        for _ in range(rounds):
            speaker, classes, one, two = draw(rng, speakers)
            found: list[Interval] = []
            for kinds in (None, classes):
                for limit in (0, few):
                    engine.FEW_UNITS = limit
                    found += engine.mean_intervals([one], speaker, classes=kinds, resamples=1_000)
            engine.FEW_UNITS = 0
            (plain,) = engine.mean_intervals([one - two], speaker, resamples=1_000)
            engine.FEW_UNITS = few
            sizes = np.bincount(speaker)
            sums = np.bincount(speaker, one - two)
            exact = engine.flip_interval(sums / sizes.mean(), sizes / sizes.mean())
            none += exact is None
            for index, interval in enumerate([*found, plain, exact]):
                value = MEAN if index < 4 else truth
                hits[index] += interval is not None and interval.low <= value <= interval.high
        shares = [f"{100 * hit / rounds:.1f}" for hit in hits]
        if none:
            shares[5] = "none"
        print(f"| {speakers} | " + " | ".join(shares) + " |", flush=True)


if __name__ == "__main__":
    typer.run(main)
