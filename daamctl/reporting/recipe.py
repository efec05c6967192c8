"""What the recipe of training is worth: the same methods with the searched and with the published one.

Beside what choosing the epoch on the test items adds it stands in the table of the section "selection". Two runs have a
recipe each: a pipeline trained again with the published one, or a pipeline and its as-published twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from daamctl.artifacts.terms import listed
from daamctl.methods import CLOSED_FORM
from daamctl.reporting.document import points
from daamctl.reporting.terms import Evaluation, terms

AGAIN = "-published-recipe"
"""Behind the name of a run: the pipeline of that name, trained with the published recipe."""
BACK = "-searched-recipe"
"""Behind the name of a run: the pipeline of that name, whose own recipe is the published one, with the searched one."""
TWIN = "-as-published"
READINGS = {"accuracy": "as reported", "accuracy_last": "at the last epoch"}
NAMED_AT_MOST = 8


@dataclass(frozen=True)
class Sibling:
    """A run with the other recipe.

    Args:
        name: of the run.
        searched: whether it is the one with the searched recipe.
        reading: how its accuracy is read, a key of `READINGS`.
        own_reading: how that of the run reported is read.
    """

    name: str
    searched: bool
    reading: str = "accuracy"
    own_reading: str = "accuracy"


@dataclass(frozen=True)
class Recipe:
    """What the searched recipe is worth over the published one.

    Args:
        gains: label of the method -> searched less published, a fraction of clips, mean over folds; at least one.
        searched: name of the run with the searched recipe, and how it is read.
        published: likewise.
        others: further settings in which the two runs differ.
    """

    gains: Mapping[str, float]
    searched: tuple[str, str]
    published: tuple[str, str]
    others: Sequence[str]


def recipe_of(evaluation: Evaluation) -> str:
    """The recipe that the folds of a run record; before there was a choice it was the published one."""
    return str(evaluation["provenance"]["config"].get("train", {}).get("recipe", "published"))


def siblings(run: str, recipe: str) -> list[Sibling]:
    """The runs that show what the recipe is worth to one of so a name, the best first.

    An as-published twin picks the epoch on the test items; its last epoch is picked by nothing, so it is read there.

    Args:
        run: name of the run reported.
        recipe: its own.
    """
    if run.endswith(AGAIN):
        return [Sibling(run.removesuffix(AGAIN), searched=True)]
    if run.endswith(BACK):
        return [Sibling(run.removesuffix(BACK), searched=False)]
    if run.endswith(TWIN):
        return [Sibling(run.removesuffix(TWIN), searched=True, own_reading="accuracy_last")]
    if recipe == "published":
        return []
    return [Sibling(run + AGAIN, searched=False), Sibling(run + TWIN, searched=False, reading="accuracy_last")]


def gains(searched: tuple[Evaluation, str], published: tuple[Evaluation, str]) -> dict[str, float]:
    """Accuracy with the searched recipe less that with the published one, of methods of the same name.

    Args:
        searched: evaluation.json of the one run, and which reading of the accuracy per clip.
        published: the same of the other.

    Returns:
        Method -> mean over the folds that tested the same group and as many clips, seeds averaged; probes in closed
        form, which no recipe trains, are left out.
    """
    found = {}
    for name in searched[0]["methods"]:
        if name in published[0]["methods"] and name not in CLOSED_FORM:
            ours, theirs = (_by_fold(evaluation["methods"][name], reading) for evaluation, reading in
                            (searched, published))  # fmt: skip
            if shared := ours.keys() & theirs.keys():
                found[name] = mean(mean(ours[key]) - mean(theirs[key]) for key in shared)
    return found


def recipe_text(recipe: Recipe) -> str:
    """What the recipe is worth, in one sentence."""
    most = max(recipe.gains, key=lambda name: abs(recipe.gains[name]))
    return (
        "With the searched recipe in the place of the published one accuracy changes by "
        f"{points(mean(recipe.gains.values()))} points on average, most for {most} ({points(recipe.gains[most])})."
    )


def recipe_note(recipe: Recipe, evaluation: Evaluation) -> str:
    """What the column is, and what else it holds."""
    (ours, read), (theirs, other) = recipe.searched, recipe.published
    text = (
        f"Recipe: {ours} {READINGS[read]} minus {theirs} {READINGS[other]}, mean over folds, per "
        f"{terms(evaluation).clip}."
    )
    if recipe.others:
        more = len(recipe.others) - NAMED_AT_MOST
        named = [*recipe.others[:NAMED_AT_MOST], *([f"{more} more"] if more > 0 else [])]
        text += (
            f" That is not the recipe alone: the two also differ in {listed(named)}; all of it: daamctl compare "
            f"{ours} {theirs}."
        )
    return text


def _by_fold(entry: Mapping[str, Any], reading: str) -> dict[tuple[Any, ...], list[float]]:
    """(fold, test group, number of clips) -> accuracy of every seed."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in entry["per_fold"]:
        if row[reading] is not None:
            found.setdefault((row["fold"], row["test_group"], row["clip"]["n"]), []).append(row[reading])
    return found
