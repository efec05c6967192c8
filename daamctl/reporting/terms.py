"""Terms used in a report: what the means run over, and how the epoch was chosen.

They depend on whether there are folds or one official test part.
"""

from __future__ import annotations

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.results import Rule
from daamctl.methods import CLOSED_FORM


def is_official(evaluation: Evaluation) -> bool:
    """Whether the corpus has one official test part, so that runs differ in their seed only."""
    return evaluation.num_folds == 1


def is_few_shot(evaluation: Evaluation) -> bool:
    """Whether every seed draws its own training sentences."""
    return evaluation.provenance.config.get("train", {}).get("shots") is not None


def runs(evaluation: Evaluation) -> str:
    """What means and deviations are taken over."""
    if is_official(evaluation):
        return "seeds"
    return "folds and seeds" if max(len(evaluation.seeds), len(tuned_seeds(evaluation))) > 1 else "folds"


def tuned_seeds(evaluation: Evaluation) -> list[int]:
    """Seeds of fine-tuned encoders; empty if they are those of the methods over stored layers."""
    found = sorted({row.seed for entry in evaluation.methods.values() if entry.finetune for row in entry.runs})
    return found if found != sorted(evaluation.seeds) else []


def tested(evaluation: Evaluation) -> str:
    """What the methods are tested on."""
    return "test part" if is_official(evaluation) else "test group"


def held_out(evaluation: Evaluation, *, article: bool = False) -> str:
    """What settings, or the epoch, are chosen on."""
    rows = (row for entry in evaluation.methods.values() for row in entry.runs)
    name = next((row.dev_group for row in rows if row.dev_group), None)
    if not is_official(evaluation):
        return "a held-out training group" if article else "held-out training group"
    if name == "dev":
        return "the official dev part" if article else "official dev part"
    share = f" ({name.replace('%', ' %', 1)})" if name else ""
    return f"held-out training {evaluation.task.clip}s{share}"


def trained(evaluation: Evaluation) -> list[str]:
    """Methods that are trained in steps; the others are solved in closed form."""
    return [name for name in evaluation.methods if not is_closed_form(name)]


def is_closed_form(label: str) -> bool:
    """Whether a method, called as in the report, is solved in closed form."""
    return label.partition(" ")[0] in CLOSED_FORM


def moment(evaluation: Evaluation) -> str:
    """What a point of a training is called: a step of a budget, or an epoch."""
    return "epoch" if evaluation.provenance.config.get("train", {}).get("steps") is None else "step"


def selection_rule(evaluation: Evaluation, rule: Rule | None = None) -> str:
    """How the reported weights were chosen, as a clause of a sentence; None: those of methods over stored layers."""
    test = tested(evaluation)
    group = held_out(evaluation, article=True) if is_official(evaluation) else "one held-out training group"
    rules = [evaluation.methods[name].rule for name in trained(evaluation)]
    if rule is None and None not in rules:  # nothing is trained over stored layers
        if len(rules) == len(evaluation.methods):
            return selection_rule(evaluation, rules[0])
        return probe_rule(evaluation)
    by_steps, given = moment(evaluation) == "step", _given(evaluation)
    rule = rule or Rule(evaluation.selection, by_steps, not given, evaluation.refit)
    if rule.to_the_end:
        chosen = "and settings are"
        if not rule.searched:
            chosen = "with given settings; what is chosen, as the penalty of a probe, is"
        words = f"training ends after a fixed number of steps, {chosen} the best on {group}, never on the {test}"
    else:
        words = f"the reported epoch is the best on {group}, never on the {test}"
    found = {
        "dev-group": words,
        "best-on-test": f"the reported epoch is the best on the {test} itself, as published, so results are optimistic",
        "last": "training is reported as it ends, so no data is used to choose anything",
    }[rule.selection]
    if rule.refit and rule.selection != "last":
        found += "; the model is then trained again with the held-out items included"
    return found


def probe_rule(evaluation: Evaluation) -> str:
    """How the settings of closed-form probes were chosen, as a clause of a sentence."""
    group = held_out(evaluation, article=True) if is_official(evaluation) else "one held-out training group"
    chosen = group if evaluation.selection == "dev-group" else "training items left out one by one"
    found = f"the settings of a probe, such as its penalty, are the best on {chosen}, never on the {tested(evaluation)}"
    # not `evaluation.refit`, which is of trainings in steps
    if evaluation.selection == "dev-group" and evaluation.provenance.config.get("train", {}).get("refit"):
        found += "; the probe is then solved again with the held-out items included"
    return found


def tuned_rules(evaluation: Evaluation) -> dict[str, list[str]]:
    """How the weights of fine-tuned encoders were chosen, where `selection_rule` does not say it: clause -> methods."""
    found: dict[str, list[str]] = {}
    for name, entry in evaluation.methods.items():
        if entry.rule is not None:
            found.setdefault(selection_rule(evaluation, entry.rule), []).append(name)
    found.pop(selection_rule(evaluation), None)
    return found


def chosen_on_test(evaluation: Evaluation) -> list[str]:
    """Methods whose epoch was chosen on the test part itself."""
    rules = {name: evaluation.methods[name].rule or evaluation for name in trained(evaluation)}
    return [name for name, rule in rules.items() if rule.selection == "best-on-test"]


def selection_words(evaluation: Evaluation) -> str:
    """`selection_rule` in a few words, for a cell of a table."""
    where = "chosen on held-out training data"
    rule, last = f"epoch {where}", "last epoch"
    if moment(evaluation) == "step":
        rule = last = "fixed number of steps"
        if not _given(evaluation):
            rule += f", settings {where}"
    if evaluation.refit:
        rule += ", then trained again with the held-out data"
    return {"dev-group": rule, "best-on-test": "best epoch on test", "last": last}[evaluation.selection]


def _given(evaluation: Evaluation) -> bool:
    """Whether nothing was searched."""
    return bool(evaluation.provenance.config.get("train", {}).get("search") == "none")
