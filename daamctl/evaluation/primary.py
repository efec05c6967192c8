"""Rows of primary figures that are not accuracy, e.g. entity F1: each method with interval, and against the reference.

Of taggers also the kinds of errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import t as student

from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.results import Fold
from daamctl.artifacts.scores import F1_STRICT, EntityTypeScore
from daamctl.data.spans import count_entities, entity_scores, micro_f1, sentence_of
from daamctl.data.task import Tagging
from daamctl.evaluation.comparison import with_holm
from daamctl.evaluation.trials import compare_trials, mean_figure, predictions_of, trial_intervals, trials_of
from daamctl.methods import CLOSED_FORM


def primary_rows(folds: Mapping[str, Sequence[Fold]], complete: Sequence[str], reference: str) -> dict[str, list[Any]]:
    """Primary figure of every method, the mean over trials (seeds).

    Args:
        folds: method -> its finished folds.
        complete: methods of which no fold is missing; only these are scored.
        reference: method that the others are compared with.

    Returns:
        Table -> rows; none if the primary figure is accuracy, or no method is complete. Without several units there is
        no interval.

    Raises:
        ArtifactError: there is one unit, and another method to compare with the reference.
    """
    task = next(iter(folds.values()))[0].task
    if task.by_accuracy or not complete:
        return {}
    parts = {method: [(fold, fold.predictions()) for fold in folds[method]] for method in complete}
    trials = {method: trials_of(task, own) for method, own in parts.items()}
    first = next(iter(trials[complete[0]].values()))
    # a single unit cannot be resampled
    several = len(first.units) > 1
    intervals = trial_intervals(task, list(trials.values())) if several else [None] * len(complete)
    rows: dict[str, list[Any]] = {"figures": [], "scores": [], "entities": []}
    for method, interval in zip(complete, intervals, strict=True):
        frames = predictions_of(parts[method])
        values = {task.primary: [mean_figure(task, [one]) for one in trials[method].values()]}
        if isinstance(task, Tagging):
            values[F1_STRICT], found = _entities(method, task, frames.values())
            rows["entities"] += found
        for metric, by_seed in values.items():
            own: dict[str, Any] = {"method": method, "unit": first.word, "metric": metric}
            rows["scores"] += [
                {**own, "seed": seed, "value": value} for seed, value in zip(frames, by_seed, strict=True)
            ]
            level = over_runs(by_seed)
            own |= {"mean": level.mean, "std": level.std, "runs": level.n}
            if metric == task.primary:
                own |= {"pooled": level.mean}
            if metric == task.primary and interval is not None:
                own |= {"mean": interval.value, "pooled": interval.value, "low": interval.low, "high": interval.high}
                own |= {"resampled": first.word, "units": interval.n_clusters}
            rows["figures"].append(own)
        if (added := _inflation(folds[method], task.primary)) is not None:
            best = {"method": method, "unit": first.word, "metric": f"{task.primary}_best_on_test"}
            mean = float(np.mean(values[task.primary])) if interval is None else interval.value
            rows["figures"].append({**best, "mean": mean + added, "runs": len(folds[method])})
    base = trials.get(reference, {})
    others = [method for method in complete if base and method != reference]
    pairs = [compare_trials(task, trials[name], base, (name, reference)) for name in others]
    return {**rows, "comparisons": with_holm(pairs)}


def _entities(method: str, task: Tagging, trials: Iterable[pl.DataFrame]) -> tuple[list[float], list[EntityTypeScore]]:
    """Strict F1 of every trial, and what the tagger did with the entities of all trials together."""
    parts = [
        (sentence_of(one["utterance_id"]), one["target"].to_numpy(), one["logits"].list.arg_max().to_numpy())
        for one in trials
    ]
    # trials predict the same sentences, and entities must not run on from one to the next
    names = [f"{number}/{name}" for number, (sentences, *_) in enumerate(parts) for name in sentences]
    targets, predicted = (np.concatenate([part[at] for part in parts]) for at in (1, 2))
    scores = entity_scores(names, targets, predicted, task.classes)
    found = [EntityTypeScore(method=method, **vars(scores.micro), **vars(scores.errors))]
    found += [EntityTypeScore(method=method, type=kind, **vars(one)) for kind, one in scores.per_type.items()]
    return [micro_f1(count_entities(*part, task.classes, "strict")) for part in parts], found


def over_trials(
    values: Sequence[float], others: Sequence[float], level: float = 0.95
) -> tuple[float, float, float, int]:
    """Difference of the figure of two methods over trials that share their training sentences.

    Args:
        values: figure of each trial of one method, two or more.
        others: figure of the same trials of the other.

    Returns:
        Mean of `values - others`, both ends of its interval by Student's t, and in how many trials it is positive.

    Raises:
        ValueError: the numbers of trials differ, or there are fewer than two.
    """
    if len(values) != len(others) or len(values) < 2:
        raise ValueError(f"{len(values)} and {len(others)} trials; need the same number, at least 2")
    gaps = np.subtract(values, others)
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    # with few trials the normal quantile would be too small
    margin = error * float(student.ppf((1 + level) / 2, len(gaps) - 1))
    return mean, mean - margin, mean + margin, int((gaps > 0).sum())


def _inflation(folds: Sequence[Fold], figure: str) -> float | None:
    """What the epoch with the highest figure on the test part would add, mean over the runs; None: not recorded."""
    added = []
    for fold in folds:
        best, reported = (fold.result["metrics"].get(name) for name in (f"{figure}_best_on_test", figure))
        # a probe has no epochs to choose from
        if best is None or reported is None or fold.result["run"].get("method") in CLOSED_FORM:
            return None
        added.append(best - reported)
    return float(np.mean(added))
