"""The words of a report: what was scored, over what means run, and how the epoch was chosen.

They depend on the modality, and on whether every group was tested once or there is one official test part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daamctl.artifacts.terms import Terms, terms_of

Evaluation = Mapping[str, Any]


def terms(evaluation: Evaluation) -> Terms:
    """What clips, utterances and speakers are called."""
    return terms_of(evaluation.get("modality", "speech"))


def item(evaluation: Evaluation, unit: str | None = None) -> str:
    """The word for a unit of scoring; None: the main one."""
    return terms(evaluation).unit(unit or evaluation["main_unit"])


def is_official(evaluation: Evaluation) -> bool:
    """Whether one official test part was tested, and seeds are all that repeats it."""
    return bool(evaluation["num_folds"] == 1)


def runs(evaluation: Evaluation) -> str:
    """What means and deviations run over."""
    if is_official(evaluation):
        return "seeds"
    return "folds and seeds" if len(evaluation["seeds"]) > 1 else "folds"


def tested(evaluation: Evaluation) -> str:
    """Where figures are taken."""
    return "test part" if is_official(evaluation) else "test group"


def held_out(evaluation: Evaluation, *, article: bool = False) -> str:
    """What selects the epoch."""
    rows = (row for entry in evaluation["methods"].values() for row in entry["per_fold"])
    name = next((row["dev_group"] for row in rows if row.get("dev_group")), None)
    if not is_official(evaluation):
        return "a held-out training group" if article else "held-out training group"
    if name == "dev":
        return "the official dev part" if article else "official dev part"
    share = f" ({str(name).replace('%', ' %', 1)})" if name else ""
    return f"held-out training {terms(evaluation).clip}s{share}"


def selection_rule(evaluation: Evaluation) -> str:
    """How the epoch reported was chosen, as part of a sentence."""
    test = tested(evaluation)
    group = held_out(evaluation, article=True) if is_official(evaluation) else "one training group held out for that"
    rule = f"the epoch reported is the best on {group}, never on the {test}"
    if evaluation.get("refit"):
        rule = f"the number of epochs is the best on {group}, never on the {test}; then that group joins the training"
    return {
        "dev-group": rule,
        "best-on-test": f"the epoch reported is the best on the {test} itself, as published, so figures are optimistic",
        "last": "the epoch reported is the last one, so no data selects it",
    }[evaluation["selection"]]
