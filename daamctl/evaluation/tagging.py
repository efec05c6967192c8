"""Entity scores of taggers: each method's F1 with interval, kinds of errors, and its difference from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import t as student

from daamctl.artifacts.entities import Entities, MethodEntities
from daamctl.artifacts.results import Fold
from daamctl.data.spans import count_entities, entity_scores, micro_f1, sentence_of
from daamctl.data.task import Tagging
from daamctl.evaluation.statistics import with_holm
from daamctl.evaluation.trials import compare_trials, mean_figure, predictions_of, trial_intervals, trials_of
from daamctl.methods import CLOSED_FORM


def entities_of(folds: Mapping[str, Sequence[Fold]], complete: Sequence[str], reference: str | None) -> Entities | None:
    """Score the entities of every method.

    Args:
        folds: method -> its finished folds.
        complete: methods of which no fold is missing; only these are compared.
        reference: method that the others are compared with.

    Returns:
        The scores; None if the items are no words, or no method is complete.
    """
    task = next(iter(folds.values()))[0].task
    if not isinstance(task, Tagging) or not complete:
        return None
    parts = {method: [(fold, fold.predictions()) for fold in folds[method]] for method in complete}
    trials = {method: trials_of(task, own) for method, own in parts.items()}
    f1s = dict(zip(complete, trial_intervals(task, list(trials.values())), strict=True))
    methods = {}
    for method, f1 in f1s.items():
        words, added = list(predictions_of(parts[method]).values()), _inflation(folds[method])
        sentences = [sentence_of(frame["utterance_id"]) for frame in words]
        targets = [frame["target"].to_numpy() for frame in words]
        predicted = [frame["logits"].list.arg_max().to_numpy() for frame in words]
        strict = [
            micro_f1(count_entities(*trial, task.classes, "strict"))
            for trial in zip(sentences, targets, predicted, strict=True)
        ]
        names = [f"{number}/{name}" for number, own in enumerate(sentences) for name in own]
        methods[method] = MethodEntities(
            f1=f1,
            strict=float(np.mean(strict)),
            per_trial=[mean_figure(task, [one]) for one in trials[method].values()],
            scores=entity_scores(names, np.concatenate(targets), np.concatenate(predicted), task.classes),
            best_on_test=None if added is None else f1.value + added,
        )
    base = trials.get(str(reference), {})
    others = [method for method in complete if method != reference and base.keys() & trials[method].keys()]
    found = [compare_trials(task, trials[name], base) for name in others]
    tests = with_holm([one.primary for one in found])
    compared = {name: replace(one, primary=test) for name, one, test in zip(others, found, tests, strict=True)}
    word = next(iter(trials[complete[0]].values())).word
    return Entities(reference if others else None, methods, compared, word, len(np.unique(sentences[0])))


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
