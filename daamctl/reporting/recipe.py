"""Effect of the training recipe: the same methods trained with the searched and with the published recipe.

The section "selection" shows it beside the effect of choosing the epoch on the test items. It needs two runs, one per
recipe: a pipeline and the same pipeline retrained with the published recipe, or a pipeline and its as-published twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import LAST, Scores
from daamctl.artifacts.terms import listed
from daamctl.methods import CLOSED_FORM
from daamctl.reporting.document import points

AGAIN = "-published-recipe"
"""Suffix of a run's name: the pipeline, trained with the published recipe."""
BACK = "-searched-recipe"
"""Suffix of a run's name: a pipeline that uses the published recipe, trained with the searched recipe."""
TWIN = "-as-published"
READINGS = {"accuracy": "as reported", LAST: "at the end"}
NAMED_AT_MOST = 8


@dataclass(frozen=True)
class Sibling:
    """A run with the other recipe.

    Args:
        searched: whether this run has the searched recipe.
        reading: which of its accuracies to use, a key of `READINGS`.
        own_reading: which accuracy of the reported run to use.
    """

    name: str
    searched: bool
    reading: str = "accuracy"
    own_reading: str = "accuracy"


@dataclass(frozen=True)
class Recipe:
    """Gain of the searched recipe over the published one.

    Args:
        gains: label -> accuracy per clip with the searched minus the published recipe, mean over folds; not empty.
        searched: name of the run with this recipe, and which of its accuracies is used; likewise `published`.
        others: other settings in which the two runs differ.
    """

    gains: Mapping[str, float]
    searched: tuple[str, str]
    published: tuple[str, str]
    others: Sequence[str]


def siblings(run: str, recipe: str) -> list[Sibling]:
    """Runs with the other recipe that a run can be compared with, best first.

    An as-published twin picks the epoch on the test items, so its accuracy at the last epoch is used instead.
    """
    if run.endswith(AGAIN):
        return [Sibling(run.removesuffix(AGAIN), searched=True)]
    if run.endswith(BACK):
        return [Sibling(run.removesuffix(BACK), searched=False)]
    if run.endswith(TWIN):
        return [Sibling(run.removesuffix(TWIN), searched=True, own_reading=LAST)]
    if recipe == "published":
        return []
    # the same pipeline with the other recipe differs in least
    return [Sibling(run + AGAIN, searched=False), Sibling(run + TWIN, searched=False, reading=LAST)]


def gains(searched: tuple[Evaluation, str], published: tuple[Evaluation, str]) -> dict[str, float]:
    """Accuracy with the searched recipe minus accuracy with the published one, for every shared method.

    Args:
        searched: evaluation of the run, and which accuracy per clip to use; likewise `published`.

    Returns:
        Method -> mean over the folds that tested the same group and number of clips, averaged over seeds. Closed-form
        probes are skipped, because a recipe does not affect them.
    """
    (first, first_rule), (second, second_rule) = searched, published
    found = {}
    for name in first.methods:
        if name in second.methods and name not in CLOSED_FORM:
            ours, theirs = _by_fold(first.scores, name, first_rule), _by_fold(second.scores, name, second_rule)
            if shared := ours.keys() & theirs.keys():
                found[name] = mean(mean(ours[key]) - mean(theirs[key]) for key in shared)
    return found


def recipe_text(recipe: Recipe) -> str:
    """Sentence on the effect of the recipe."""
    most = max(recipe.gains, key=lambda name: abs(recipe.gains[name]))
    return (
        "Training with the searched instead of the published recipe changes accuracy by "
        f"{points(mean(recipe.gains.values()))} points on average, most for {most} ({points(recipe.gains[most])})."
    )


def recipe_note(recipe: Recipe, evaluation: Evaluation) -> str:
    """Note on the recipe column: which runs it compares and in what else they differ."""
    (ours, read), (theirs, other) = recipe.searched, recipe.published
    text = (
        f"Recipe: {ours} {READINGS[read]} minus {theirs} {READINGS[other]}, mean over folds, per "
        f"{evaluation.task.clip}."
    )
    if recipe.others:
        more = len(recipe.others) - NAMED_AT_MOST
        named = [*recipe.others[:NAMED_AT_MOST], *([f"{more} more"] if more > 0 else [])]
        text += (
            f" This is not the effect of the recipe alone: the runs also differ in {listed(named)}. To see all "
            f"differences: daamctl compare {ours} {theirs}."
        )
    return text


def _by_fold(scores: Scores, method: str, rule: str) -> dict[tuple[Any, ...], list[float]]:
    """(fold, test group, number of clips) -> accuracy of every seed."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in scores.runs(method, rule, "clip").values():
        # other folds of the same corpus share numbers, but not groups and their sizes
        found.setdefault((row.fold, row.test_group, row.items), []).append(row.value)
    return found
