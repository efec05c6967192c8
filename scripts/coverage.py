"""Coverage of intervals for few speakers, by simulation: how often a 95 % interval contains the true value.

    python scripts/coverage.py    # the tables of docs/sources.md#intervals; half an hour

Speakers have 10 to 50 utterances and an accuracy of their own, from a beta distribution around 75 % with a standard
deviation of 10 points, or around 97 % with 3. A second method has another accuracy for each, correlated with the first,
and is 3 points worse. `bootstrap` redraws speakers whatever their number; `daamctl` is what the package computes. The
second table is of items without speakers. The third is of the entity F1 of documents with 10 to 50 entities, or of
sentences with 1 to 3, that differ as speakers do: half of the errors are entities of a wrong type, half are missed, and
half as many are made up. The fourth is of differences in figures that are no means, of two methods that are equally
good, and of perplexities.

The next table is of tests with a margin (docs/sources.md#shortest-encoder): how often a method that is worse by exactly
the margin passes at a level of 5 %. It wins 1 % of the items, and loses as many and the margin; speakers have these
rates times a number of their own, with a mean of 1 and a standard deviation of a half.

The last table is of the equal error rates of two equally good systems of speaker verification
(docs/sources.md#trials-of-speaker-verification): how often they are told apart at a level of 5 %. In a score, both
speakers of a trial have a part of their own in each system.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import typer

from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import Interval
from daamctl.data.sign_flip import paired_sign_flip
from daamctl.data.task import Sums, Task, task_of
from daamctl.evaluation import engine
from daamctl.evaluation.figures import Concordance, EqualErrors, MacroF1
from daamctl.evaluation.statistics import grouped_means
from daamctl.evaluation.trials import compare_trials, trial_intervals

TAGGING = task_of("tokens")
SPEAKERS = (5, 6, 8, 10, 15, 20, 30, 50)
ITEMS = (30, 100, 300, 1000)
MEANS = {0.75: 0.10, 0.97: 0.03}
"""Mean accuracy of speakers -> its standard deviation."""
ALONE = (0.75, 0.9, 0.97, 0.99)
GAP, CLASSES = 0.03, 4
TAGGED = (
    (10, (10, 50)), (30, (10, 50)), (50, (10, 50)), (30, (1, 3)), (100, (1, 3)), (300, (1, 3)), (1000, (1, 3)),
)  # fmt: skip
"""Number of units and the range of their entities."""
OTHERS = (10, 30, 100, 300)
"""Numbers of units."""
MARGINS, WON, OWN = (0.01, 0.02, 0.05), 0.01, 0.5
COMPARED = ((1, 50), (1, 100), (1, 300), (1, 1000), (30, 8), (30, 20), (30, 50))
"""Items per unit, and number of units."""
TRIALS = 2_000
VERIFIED = ((12, 0.4), (40, 0.4), (40, 0.8), (100, 0.4))
"""Number of speakers, and the standard deviation of their parts of a score; that of the rest is 1."""
SPREADS = {0.4: 0.1, 0.75: 0.1, 0.95: 0.04, 0.99: 0.01}
"""Share of entities that are found -> its standard deviation."""


def draw(rng: np.random.Generator, speakers: int, mean: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Speaker, class, and whether each of two methods is right, of every utterance."""
    size = rng.integers(10, 51, speakers)
    total = mean * (1 - mean) / MEANS[mean] ** 2 - 1
    first = rng.beta(mean * total, (1 - mean) * total, speakers)
    second = np.clip(first - GAP + rng.normal(0, 0.05, speakers), 0, 1)
    speaker = np.repeat(np.arange(speakers), size)
    classes = rng.integers(CLASSES, size=len(speaker))
    one, two = ((rng.random(len(speaker)) < rate[speaker]).astype(float) for rate in (first, second))
    return speaker, classes, one, two


def redrawn(sums: engine.Sums, statistic: engine.Statistic) -> Interval:
    """The percentile interval of a bootstrap that redraws whole units, however few they are."""
    number = sums.shape[1]
    times = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), size=1_000).T
    low, high = np.quantile(statistic(sums @ times.astype(float))[0], [0.025, 0.975]).tolist()
    value = float(statistic(sums @ np.ones((number, 1)))[0, 0])
    return Interval(value, low, high, 0.95, number, 1_000, "bootstrap")


def bootstrap(values: np.ndarray, units: np.ndarray, classes: np.ndarray | None = None) -> Interval:
    """The interval of a mean by a bootstrap."""
    return redrawn(*engine.mean_sums([values], units, classes))


def share(values: np.ndarray, units: np.ndarray, classes: np.ndarray | None = None) -> Interval:
    """The interval of a share."""
    (found,) = engine.mean_intervals([values], units, classes=classes, items=len(values))
    return found


def tagged(rng: np.random.Generator, units: int, entities: tuple[int, int], mean: float) -> np.ndarray:
    """True, predicted and correct entities of units, (3, U)."""
    number, total = rng.integers(entities[0], entities[1] + 1, units), mean * (1 - mean) / SPREADS[mean] ** 2 - 1
    rate = rng.beta(mean * total, (1 - mean) * total, units)
    correct = rng.binomial(number, rate)
    predicted = correct + rng.binomial(number - correct, 0.5) + rng.poisson(number * (1 - rate) / 2)
    return np.stack([number, predicted, correct]).astype(float)


def entity_f1(sums: np.ndarray) -> np.ndarray:
    """F1 of samples, (1, R)."""
    return TAGGING.figure(sums)[None]


def tagged_intervals(sums: np.ndarray) -> list[Interval | None]:
    """The intervals of an entity F1: of a bootstrap, and the package's."""
    return [
        redrawn(sums, entity_f1),
        *trial_intervals(TAGGING, [{1: Sums("sentence", np.arange(sums.shape[1]), sums[:1], sums[1:])}]),
    ]


def other_figures(rng: np.random.Generator, units: int) -> dict[str, tuple[float, list[Interval | None]]]:
    """Figures that are no shares, of so many units: its value, the interval of a bootstrap, and the package's."""
    found: dict[str, tuple[float, list[Interval | None]]] = {}

    few = units <= max(OTHERS)  # the truth needs no interval

    def add(name: str, sums: np.ndarray, statistic: engine.Statistic, row: Compared | None = None) -> None:
        value = float(statistic(sums.sum(1, keepdims=True))[0, 0])
        pair: list[Interval | None] = []
        if few:
            if row is None:
                (own,) = engine.intervals(sums, statistic)
            else:
                assert row.low is not None
                assert row.high is not None
                own = Interval(value, row.low, row.high, 0.95, units, 0, "sign-flip")
            pair = [redrawn(sums, statistic), own]
        found[name] = value, pair

    def add_difference(name: str, task: Task, one: Sums, two: Sums) -> None:
        def difference(sums: np.ndarray) -> np.ndarray:
            given, first, second = np.split(sums, [len(one.given), len(one.given) + len(one.own)])
            return np.asarray(task.figure(np.vstack([given, first])) - task.figure(np.vstack([given, second])))[None]

        row = compare_trials(task, {1: one}, {1: two}, ("one", "two")) if few else None
        add(f"difference in {name}", np.vstack([one.given, one.own, two.own]), difference, row)

    for mean, deviation in MEANS.items():
        unit = np.repeat(np.arange(units), rng.integers(10, 51, units))
        label, total = rng.choice(CLASSES, len(unit), p=[0.4, 0.3, 0.2, 0.1]), mean * (1 - mean) / deviation**2 - 1
        rates = rng.beta(mean * total, (1 - mean) * total, (2, units))[:, unit]
        wrong = (label + rng.integers(1, CLASSES, rates.shape)) % CLASSES
        answers = np.where(rng.random(rates.shape) < rates, label, wrong)
        macro = MacroF1(**vars(task_of("embeddings", [str(one) for one in range(CLASSES)])))
        parts = [macro.sums(pl.DataFrame({"unit": unit, "label": label, "prediction": one})) for one in answers]
        add_difference(f"macro F1 near {mean:.0%}", macro, *parts)
    for share, (low, high) in ((0.75, (1, 3)), (0.95, (1, 3)), (0.4, (0, 1)), (0.75, (10, 50))):
        true = rng.integers(low, high + 1, units)
        parts = []
        for _ in range(2):
            correct = rng.binomial(true, share)
            predicted = correct + rng.binomial(true - correct, 0.5) + rng.binomial(true - correct, 0.25)
            parts.append(
                Sums(
                    "sentence", np.arange(units), true[None].astype(float), np.stack([predicted, correct]).astype(float)
                )
            )
        add_difference(f"entity F1, {share:.0%} of {low} to {high}", TAGGING, *parts)
    tokens = rng.integers(20, 80, units)
    nll = rng.gamma(4, 0.5, units) * tokens + rng.normal(0, 1, (2, units)) * np.sqrt(tokens)
    add("perplexity", np.stack([tokens, nll[0]]), lambda sums: np.exp(sums[1:] / sums[0]))
    add("ratio of two", np.stack([tokens, nll[0] - nll[1]]), lambda sums: np.exp(sums[1:] / sums[0]))
    unit, true_numbers = np.repeat(np.arange(units), 20), rng.normal(size=20 * units)
    said = 0.7 * true_numbers + rng.normal(0, 0.6, (2, len(unit))) + rng.normal(0, 0.4, (2, units))[:, unit]
    ccc = Concordance(**vars(task_of("embeddings")))
    parts = [ccc.sums(pl.DataFrame({"unit": unit, "label": true_numbers, "prediction": one})) for one in said]
    add("CCC", np.vstack([parts[0].given, parts[0].own]), lambda sums: ccc.figure(sums)[None])
    add_difference("CCC", ccc, *parts)
    return found


def passes(rng: np.random.Generator, items: int, units: int, margin: float) -> list[bool]:
    """Whether a method that is worse by the margin passes: by sign flips, and in the package."""
    rate = rng.gamma(OWN**-2, OWN**2, units) if items > 1 else np.ones(units)
    chances = [np.minimum(share * rate, 0.5) for share in (WON + margin, WON)]
    kinds = np.stack([chances[0], chances[1], 1 - chances[0] - chances[1]], axis=1)
    counts = rng.multinomial(items, kinds)
    sums = (counts[:, 1] - counts[:, 0]) / items
    gaps = np.repeat([-1.0, 1.0, 0.0], counts.sum(0))
    flipped = paired_sign_flip(sums + margin, np.ones(units), one_sided=True)["p"]
    scored = engine.non_inferiority(gaps, sums, np.ones(units), margin, level=0.9)[1]
    if not gaps.any():  # there are no signs to flip
        flipped = max(flipped, scored)
    return [flipped <= 0.05, scored <= 0.05]


def told_apart(rng: np.random.Generator, speakers: int, spread: float) -> list[bool]:
    """Whether two systems of speaker verification are told apart: over single trials, and over enrolled speakers."""
    enrolled, target = rng.integers(0, speakers, TRIALS), rng.random(TRIALS) < 0.5
    tested = np.where(target, enrolled, (enrolled + rng.integers(1, speakers, TRIALS)) % speakers)
    shared, scores = rng.normal(0, 0.7, TRIALS), []
    for _ in range(2):
        part = rng.normal(0, spread, speakers)
        scores.append(2.5 * target + part[enrolled] + part[tested] + shared + rng.normal(0, 0.7, TRIALS))
    task, found = EqualErrors(**vars(task_of("embeddings"))), []
    for unit in (np.arange(TRIALS), enrolled):
        rows = [pl.DataFrame({"unit": unit, "label": target.astype(float), "prediction": one}) for one in scores]
        first, second = ({0: task.sums(one)} for one in rows)
        p = compare_trials(task, first, second, ("first", "second")).p
        found.append(p is not None and p <= 0.05)
    return found


def covered(found: list[Interval | None], truths: list[float]) -> list[bool]:
    """Whether each interval contains the true value."""
    pairs = zip(found, truths, strict=True)
    return [one is not None and one.low <= truth <= one.high for one, truth in pairs]


def print_row(name: str, hits: list[list[bool]]) -> None:
    """Print the share of the rounds in which each interval contains the true value; none if there never was one."""
    shares = 100 * np.mean(hits, axis=0)
    print(f"| {name} | " + " | ".join(f"{one:.1f}" if one else "none" for one in shares) + " |", flush=True)


def main(rounds: int = 2_000, seed: int = 0) -> None:
    """Print the tables."""
    rng = np.random.default_rng(seed)
    names = [f"{what} {100 * mean:.0f} %" for mean in MEANS for what in ("accuracy", "balanced")]
    print("| speakers | " + " | ".join(f"{name}: bootstrap | daamctl" for name in [*names, "difference"]) + " |")
    print("| --- " * (2 * len(names) + 3) + "|")
    big = draw(rng, 200_000, 0.75)
    gap = float(grouped_means(big[2], big[0]).mean() - grouped_means(big[3], big[0]).mean())
    for speakers in SPEAKERS:
        hits = []
        for _ in range(rounds):
            drawn = {mean: draw(rng, speakers, mean) for mean in reversed(MEANS)}
            found: list[Interval | None] = [
                make(one, speaker, kind)
                for speaker, classes, one, _ in (drawn[mean] for mean in MEANS)
                for kind in (None, classes)
                for make in (bootstrap, share)
            ]
            speaker, _, one, two = drawn[0.75]
            sizes, sums = np.bincount(speaker), np.bincount(speaker, one - two)
            found += [bootstrap(one - two, speaker), engine.flip_interval(sums / sizes.mean(), sizes / sizes.mean())]
            hits.append(covered(found, [mean for mean in MEANS for _ in range(4)] + [gap, gap]))
        print_row(str(speakers), hits)
    print("\n| items | " + " | ".join(f"accuracy {100 * mean:.0f} %: bootstrap | daamctl" for mean in ALONE) + " |")
    print("| --- " * (2 * len(ALONE) + 1) + "|")
    for items in ITEMS:
        units, hits = np.arange(items), []
        for _ in range(rounds):
            answers = [(rng.random(items) < mean).astype(float) for mean in ALONE]
            found = [make(one, units) for one in answers for make in (bootstrap, share)]
            hits.append(covered(found, [mean for mean in ALONE for _ in range(2)]))
        print_row(str(items), hits)
    print("\n| units | " + " | ".join(f"F1 {100 * mean:.0f} %: bootstrap | daamctl" for mean in SPREADS) + " |")
    print("| --- " * (2 * len(SPREADS) + 1) + "|")
    truths = [float(entity_f1(tagged(rng, 200_000, (10, 50), mean).sum(1, keepdims=True))[0, 0]) for mean in SPREADS]
    for number, entities in TAGGED:
        hits = []
        for _ in range(rounds):
            found = [one for mean in SPREADS for one in tagged_intervals(tagged(rng, number, entities, mean))]
            hits.append(covered(found, [truth for truth in truths for _ in range(2)]))
        print_row(f"{number} of {entities[0]} to {entities[1]} entities", hits)
    print("\n| units | " + " | ".join(f"{number}: bootstrap | daamctl" for number in OTHERS) + " |")
    print("| --- " * (2 * len(OTHERS) + 1) + "|")
    rng = np.random.default_rng(seed)
    exact = {name: value for name, (value, _) in other_figures(rng, 500_000).items()}
    exact |= {name: 0.0 for name in exact if "difference" in name}
    shares: dict[str, list[list[bool]]] = {name: [] for name in exact}
    for _ in range(rounds):
        row: dict[str, list[bool]] = {name: [] for name in shares}
        for number in OTHERS:
            for name, (_, pair) in other_figures(rng, number).items():
                row[name] += covered(pair, [exact[name]] * 2)
        for name, hit in row.items():
            shares[name].append(hit)
    for name, several in shares.items():
        print_row(name, several)
    print("\n| | " + " | ".join(f"margin of {100 * margin:.0f} %: sign flips | daamctl" for margin in MARGINS) + " |")
    print("| --- " * (2 * len(MARGINS) + 1) + "|")
    rng = np.random.default_rng(seed)
    for items_each, number in COMPARED:
        hits = [[one for margin in MARGINS for one in passes(rng, items_each, number, margin)] for _ in range(rounds)]
        print_row(f"{number} items" if items_each == 1 else f"{number} speakers of {items_each} items", hits)
    print("\n| | told apart over trials | over enrolled speakers |\n| --- | --- | --- |")
    rng = np.random.default_rng(seed)
    for speakers, spread in VERIFIED:
        hits = [told_apart(rng, speakers, spread) for _ in range(rounds // 4)]
        print_row(f"{speakers} speakers, {spread:g}", hits)


if __name__ == "__main__":
    typer.run(main)
