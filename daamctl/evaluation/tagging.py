"""Entity scores of taggers: each method's F1 with interval, kinds of errors, and its difference from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.results import Fold
from daamctl.artifacts.scores import F1_BEST_ON_TEST, F1_STRICT, Tagged
from daamctl.data.spans import count_entities, entity_scores, micro_f1, sentence_of
from daamctl.data.task import Tagging
from daamctl.evaluation.comparison import with_holm
from daamctl.evaluation.trials import compare_trials, mean_figure, predictions_of, trial_intervals, trials_of
from daamctl.methods import CLOSED_FORM


def entity_rows(folds: Mapping[str, Sequence[Fold]], complete: Sequence[str], reference: str) -> dict[str, list[Any]]:
    """Score the entities of every method; F1 is micro-averaged, and the mean over trials (seeds).

    Args:
        folds: method -> its finished folds.
        complete: methods of which no fold is missing; only these are scored.
        reference: method that the others are compared with.

    Returns:
        Table -> rows; none if the items are no words, or no method is complete.
    """
    task = next(iter(folds.values()))[0].task
    if not isinstance(task, Tagging) or not complete:
        return {}
    parts = {method: [(fold, fold.predictions()) for fold in folds[method]] for method in complete}
    trials = {method: trials_of(task, own) for method, own in parts.items()}
    word = next(iter(trials[complete[0]].values())).word
    rows: dict[str, list[Any]] = {"figures": [], "scores": [], "entities": []}
    for method, f1 in zip(complete, trial_intervals(task, list(trials.values())), strict=True):
        words = predictions_of(parts[method])
        sentences = [sentence_of(frame["utterance_id"]) for frame in words.values()]
        targets = [frame["target"].to_numpy() for frame in words.values()]
        predicted = [frame["logits"].list.arg_max().to_numpy() for frame in words.values()]
        every = zip(sentences, targets, predicted, strict=True)
        trial = {
            task.primary: [mean_figure(task, [one]) for one in trials[method].values()],
            F1_STRICT: [micro_f1(count_entities(*each, task.classes, "strict")) for each in every],
        }
        for metric, values in trial.items():
            own: dict[str, Any] = {"method": method, "unit": word, "metric": metric}
            rows["scores"] += [{**own, "seed": seed, "value": value} for seed, value in zip(words, values, strict=True)]
            level = over_runs(values)
            own |= {"mean": level.mean, "std": level.sample_std, "runs": level.n}
            if metric == task.primary:
                own |= {"mean": f1.value, "pooled": f1.value, "low": f1.low, "high": f1.high}
                own |= {"resampled": word, "units": f1.n_clusters}
            rows["figures"].append(own)
        if (added := _inflation(folds[method])) is not None:
            best = {"method": method, "unit": word, "metric": F1_BEST_ON_TEST, "mean": f1.value + added}
            rows["figures"].append({**best, "runs": len(folds[method])})
        names = [f"{number}/{name}" for number, own_names in enumerate(sentences) for name in own_names]
        scores = entity_scores(names, np.concatenate(targets), np.concatenate(predicted), task.classes)
        rows["entities"].append(Tagged(method=method, **vars(scores.micro), **vars(scores.errors)))
        rows["entities"] += [Tagged(method=method, type=kind, **vars(one)) for kind, one in scores.per_type.items()]
    base = trials.get(reference, {})
    others = [method for method in complete if method != reference and base.keys() & trials[method].keys()]
    pairs = [compare_trials(task, trials[name], base, (name, reference)) for name in others]
    return {**rows, "comparisons": with_holm(pairs)}


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


def _inflation(folds: Sequence[Fold]) -> float | None:
    """What the epoch with the highest F1 on the test part would add, mean over the runs; None: not recorded."""
    added = []
    for fold in folds:
        best, reported = (fold.result["metrics"].get(name) for name in ("entity_f1_best_on_test", "entity_f1"))
        if best is None or reported is None or fold.result["run"].get("method") in CLOSED_FORM:
            return None
        added.append(best - reported)
    return float(np.mean(added))
