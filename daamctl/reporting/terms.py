"""Terms used in a report: what was scored, what the means run over, and how the epoch was chosen.

They depend on the modality, and on whether there are folds or one official test part.
"""

from __future__ import annotations

from dataclasses import replace

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.terms import METRIC_NAMES, Terms, metric_of, terms_of


def terms(evaluation: Evaluation) -> Terms:
    """What this modality calls clips, utterances and speakers."""
    words = terms_of(evaluation.modality)
    return replace(words, source=evaluation.entities.unit) if evaluation.entities else words


def item(evaluation: Evaluation, unit: str | None = None) -> str:
    """The word for a unit of scoring; None means the main unit."""
    return terms(evaluation).unit(unit or evaluation.main_unit)


def metric(evaluation: Evaluation, *, capital: bool = False) -> str:
    """What methods are judged by: entity F1 of taggers, else accuracy."""
    name = METRIC_NAMES[metric_of(evaluation.modality)]
    return name[0].upper() + name[1:] if capital else name


def is_official(evaluation: Evaluation) -> bool:
    """Whether the corpus has one official test part, so that runs differ in their seed only."""
    return evaluation.num_folds == 1


def runs(evaluation: Evaluation) -> str:
    """What means and deviations are taken over."""
    if is_official(evaluation):
        return "seeds"
    return "folds and seeds" if len(evaluation.seeds) > 1 else "folds"


def tested(evaluation: Evaluation) -> str:
    """What the methods are tested on."""
    return "test part" if is_official(evaluation) else "test group"


def held_out(evaluation: Evaluation, *, article: bool = False) -> str:
    """What settings, or the epoch, are chosen on."""
    rows = (row for entry in evaluation.methods.values() for row in entry.per_fold)
    name = next((row.dev_group for row in rows if row.dev_group), None)
    if not is_official(evaluation):
        return "a held-out training group" if article else "held-out training group"
    if name == "dev":
        return "the official dev part" if article else "official dev part"
    share = f" ({name.replace('%', ' %', 1)})" if name else ""
    return f"held-out training {terms(evaluation).clip}s{share}"


def moment(evaluation: Evaluation) -> str:
    """What a point of a training is called: a step of a budget, or an epoch."""
    return "epoch" if evaluation.provenance.config.get("train", {}).get("steps") is None else "step"


def selection_rule(evaluation: Evaluation) -> str:
    """How the reported weights were chosen, as a clause of a sentence."""
    test = tested(evaluation)
    group = held_out(evaluation, article=True) if is_official(evaluation) else "one held-out training group"
    if moment(evaluation) == "step":
        rule = f"training ends after a fixed number of steps, and settings are the best on {group}, never on the {test}"
        if evaluation.refit:
            rule += "; the model is then trained again with that group included"
    else:
        rule = f"the reported epoch is the best on {group}, never on the {test}"
    return {
        "dev-group": rule,
        "best-on-test": f"the reported epoch is the best on the {test} itself, as published, so results are optimistic",
        "last": "training is reported as it ends, so no data is used to choose anything",
    }[evaluation.selection]
