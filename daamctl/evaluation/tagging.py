"""Entity scores of taggers: each method's F1 with interval, kinds of errors, and its difference from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import t as student

from daamctl.artifacts.entities import Entities, MethodEntities, Rule
from daamctl.artifacts.results import Fold
from daamctl.artifacts.statistics import MetricComparison, NonInferiority
from daamctl.artifacts.terms import terms_of
from daamctl.artifacts.words import DOCUMENT, sentence_of, terms_for
from daamctl.errors import ArtifactError
from daamctl.evaluation.entities import (
    EntityCounts,
    compare_f1,
    count_entities,
    entity_scores,
    f1_intervals,
    f1_not_worse,
    micro_f1,
)
from daamctl.evaluation.statistics import with_holm
from daamctl.methods import CLOSED_FORM

RESAMPLES = 2000
"""Draws of the bootstraps; with all methods of a run, more would take minutes."""


def entities_of(folds: Mapping[str, Sequence[Fold]], complete: Sequence[str], reference: str | None) -> Entities | None:
    """Score the entities of every method.

    Args:
        folds: method -> its finished folds.
        complete: methods of which no fold is missing; only these are compared.
        reference: method that the others are compared with.

    Returns:
        The scores; None if no method is complete.
    """
    if not complete:
        return None
    words = {method: _trials(folds[method]) for method in complete}
    first = next(iter(words[complete[0]].values()))
    unit = first.unit
    counts = {method: _counted(trials, unit) for method, trials in words.items()}
    every = [list(counts[name].values()) for name in complete]
    intervals = dict(zip(complete, f1_intervals(every, resamples=RESAMPLES), strict=True))
    methods = {}
    for method in complete:
        trials, added = list(words[method].values()), _inflation(folds[method])
        together = (
            np.array([f"{number}/{name}" for number, one in enumerate(trials) for name in one.sentences]),
            np.concatenate([one.targets for one in trials]),
            np.concatenate([one.predictions for one in trials]),
            trials[0].classes,
        )
        methods[method] = MethodEntities(
            f1=intervals[method],
            strict=float(np.mean([micro_f1(one.counted("strict")) for one in trials])),
            per_trial=[micro_f1(one) for one in counts[method].values()],
            scores=entity_scores(*together),
            best_on_test=None if added is None else intervals[method].value + added,
        )
    base = counts.get(str(reference), {})
    others = [method for method in complete if method != reference and base.keys() & counts[method].keys()]
    pairs = [_shared(counts[name], base) for name in others]
    found = [compare_f1(own, theirs, resamples=RESAMPLES, unit=unit) for own, theirs in pairs]
    tests = with_holm([one.primary for one in found])
    compared = {name: replace(one, primary=test) for name, one, test in zip(others, found, tests, strict=True)}
    return Entities(reference if others else None, methods, compared, unit, len(first.counted().sentences))


def compare_taggers(first: Sequence[Fold], second: Sequence[Fold]) -> MetricComparison:
    """Entity F1 of one tagger minus that of another, over the test sentences, which must be the same.

    Raises:
        ArtifactError: no seed is in both, or the test part is a single sentence.
    """
    sides = [_trials(folds) for folds in (first, second)]
    unit = next(iter(sides[0].values())).unit
    own, theirs = _shared(*(_counted(trials, unit) for trials in sides))
    if not own:
        seeds = " and ".join(", ".join(map(str, trials)) for trials in sides)
        raise ArtifactError(
            f"taggers are compared by trials of the same seed; the seeds are {seeds}",
            fix="train both with the same train.seeds",
        )
    return compare_f1(own, theirs, resamples=RESAMPLES, unit=unit)


def taggers_not_worse(
    folds: Mapping[str, Sequence[Fold]],
    tested: Mapping[str, NonInferiority],
    *,
    reference: str,
    margin: float,
    alpha: float,
) -> dict[str, NonInferiority]:
    """Results of `not_worse`, with entity F1 compared in place of accuracy; where that has no test, neither has this.

    Args:
        folds: method -> its finished folds, the reference among them.
        margin: fraction of F1.
        alpha: one-sided level.
    """
    words = {name: _trials(own) for name, own in folds.items()}
    unit = next(iter(words[reference].values())).unit
    counts = {name: list(_counted(trials, unit).values()) for name, trials in words.items()}
    found = {}
    whole = _mean_f1(counts[reference])
    for name, result in tested.items():
        f1 = _mean_f1(counts[name])
        found[name] = result._replace(entity_f1=f1, difference=f1 - whole, low=None, high=None)
        if result.p is not None:
            gap, p, floor = f1_not_worse(counts[name], counts[reference], margin, alpha=alpha)
            found[name] = found[name]._replace(low=gap.low, high=gap.high, p=p, floor=floor)
    return found


def f1_of(predictions: pl.DataFrame, classes: Sequence[str]) -> float:
    """Entity F1 of predicted words, lenient.

    Args:
        predictions: `utterance_id`, `target` and `logits` of each word; sentences are whole.
        classes: tags; the index is the class id.
    """
    guess = predictions["logits"].list.arg_max().to_numpy()
    return micro_f1(count_entities(sentence_of(predictions["utterance_id"]), predictions["target"], guess, classes))


def over_trials(
    values: Sequence[float], others: Sequence[float], level: float = 0.95
) -> tuple[float, float, float, int]:
    """Difference of the F1 of two methods over trials that share their training sentences.

    Args:
        values: F1 of each trial of one method, two or more.
        others: F1 of the same trials of the other.

    Returns:
        Mean of `values - others`, both ends of its interval by Student's t, and in how many trials it is positive.

    Raises:
        ValueError: the numbers of trials differ, or there are fewer than two.
    """
    if len(values) != len(others) or len(values) < 2:
        raise ValueError(f"{len(values)} and {len(others)} trials; need the same number, at least 2")
    gaps = np.subtract(values, others)
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    margin = error * float(student.ppf((1 + level) / 2, len(gaps) - 1))
    return mean, mean - margin, mean + margin, int((gaps > 0).sum())


@dataclass(frozen=True)
class _Words:
    """Test words of one trial (seed), over all folds.

    Args:
        ids: ids of the words, shape (N,).
        sources: sentence or document of each word, shape (N,).
        targets: true class ids, shape (N,).
        predictions: predicted class ids, shape (N,).
    """

    ids: pl.Series
    sources: pl.Series
    targets: NDArray[np.int64]
    predictions: NDArray[np.int64]
    classes: Sequence[str]

    @cached_property
    def sentences(self) -> NDArray[Any]:
        """Sentence of each word, shape (N,)."""
        return sentence_of(self.ids)

    @property
    def unit(self) -> str:
        """What is resampled: sentences, or documents where several are known."""
        source = terms_for("tokens", self.ids, self.sources).source
        return source if self.sources.n_unique() > 1 else terms_of("tokens").source

    def counted(self, rule: Rule = "lenient") -> EntityCounts:
        """Counts per sentence."""
        return count_entities(self.sentences, self.targets, self.predictions, self.classes, rule)

    def by_unit(self, unit: str) -> EntityCounts:
        """Counts per sentence, or per document."""
        return per_source(self.counted(), self.sentences, self.sources) if unit == DOCUMENT else self.counted()


def per_source(counts: EntityCounts, sentences: NDArray[Any], sources: pl.Series) -> EntityCounts:
    """Counts per sentence as counts per source.

    Args:
        counts: of S sentences.
        sentences: sentence of each word, shape (N,).
        sources: source of each word, shape (N,).
    """
    source = dict(zip(sentences.tolist(), sources.to_list(), strict=True))
    return counts.grouped([source[name] for name in counts.sentences.tolist()])


def _trials(folds: Sequence[Fold]) -> dict[int, _Words]:
    """Seed -> its test words; seeds ascend.

    Raises:
        ArtifactError: they are of one sentence, so nothing can be resampled.
    """
    trials = {}
    for seed in sorted({fold.seed for fold in folds}):
        own = sorted((fold for fold in folds if fold.seed == seed), key=lambda fold: fold.fold)
        frames = [fold.predictions() for fold in own]
        trials[seed] = _Words(
            pl.concat([frame["utterance_id"] for frame in frames]),
            pl.concat([frame["speaker"] for frame in frames]),
            np.concatenate([frame["target"].to_numpy() for frame in frames]),
            np.concatenate([frame["logits"].list.arg_max().to_numpy() for frame in frames]).astype(np.int64),
            own[0].result["run"]["classes"],
        )
    if len(next(iter(trials.values())).counted().sentences) < 2:
        raise ArtifactError(
            "the test part has one sentence; intervals of entity F1 need two or more",
            fix="put more sentences into the test part",
        )
    return trials


def _mean_f1(trials: Sequence[EntityCounts]) -> float:
    return float(np.mean([micro_f1(one) for one in trials]))


def _counted(trials: Mapping[int, _Words], unit: str) -> dict[int, EntityCounts]:
    return {seed: one.by_unit(unit) for seed, one in trials.items()}


def _shared(
    first: Mapping[int, EntityCounts], second: Mapping[int, EntityCounts]
) -> tuple[list[EntityCounts], list[EntityCounts]]:
    """The trials of both whose seed the other has, in the same order."""
    seeds = [seed for seed in first if seed in second]
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def _inflation(folds: Sequence[Fold]) -> float | None:
    """What the epoch with the highest F1 on the test part would add, mean over the runs; None: not recorded."""
    added = []
    for fold in folds:
        best, reported = (fold.result["metrics"].get(name) for name in ("entity_f1_best_on_test", "entity_f1"))
        if best is None or reported is None or fold.result["run"].get("method") in CLOSED_FORM:
            return None
        added.append(best - reported)
    return float(np.mean(added))
