"""The words of a report, by modality and by how the data was split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.results import Rule
from daamctl.reporting import terms
from daamctl.reporting.document import Table
from daamctl.reporting.results import folds as section_of_folds
from daamctl.reporting.sentences import say
from tests.fixtures.records import evaluation_of, method_of, parsed


def evaluation(*, folds: int = 1, seeds: int = 2, dev: str | None = None, **changes: Any) -> Evaluation:
    methods = {"none": method_of(0.5, label="none", folds=folds, dev=dev)}
    changes = {"modality": "text", **changes}
    return parsed(evaluation_of(methods, num_folds=folds, seeds=list(range(seeds)), **changes))


@pytest.mark.parametrize(
    ("folds", "seeds", "words"), [(5, 1, "folds"), (5, 2, "folds and seeds"), (1, 1, "seeds"), (1, 5, "seeds")]
)
def test_what_means_run_over(folds: int, seeds: int, words: str) -> None:
    assert terms.runs(evaluation(folds=folds, seeds=seeds)) == words


def test_fine_tuned_encoders_may_have_seeds_of_their_own() -> None:
    tuned = {**method_of(0.5, label="lora-r8"), "finetune": True}
    tuned["runs"] += [{**run, "seed": 2} for run in tuned["runs"]]
    found = parsed(evaluation_of({"none": method_of(0.5, label="none"), "lora-r8": tuned}, seeds=[1]))
    assert terms.tuned_seeds(found) == [1, 2]
    assert terms.tuned_seeds(replace(found, seeds=[1, 2])) == []
    assert terms.runs(found) == "folds and seeds"
    assert "in 5 folds with 1 seed each (fine-tuned encoders: 2); a fold" in say("what", found, "", "", [])
    (table,) = [block for block in section_of_folds(found).blocks if isinstance(block, Table) and block.key == "folds"]
    assert str(table.note).endswith(
        "over folds and seeds. The cell of a fold is the mean over its seeds: 1, of fine-tuned encoders 2."
    )


@pytest.mark.parametrize(
    ("dev", "folds", "words"),
    [
        ("10% of train", 1, "held-out training texts (10 % of train)"),
        ("dev", 1, "official dev part"),
        (None, 1, "held-out training texts"),
        ("Ses03", 5, "held-out training group"),
    ],
)
def test_what_selects_the_epoch(dev: str | None, folds: int, words: str) -> None:
    assert terms.held_out(evaluation(dev=dev, folds=folds)) == words


def test_the_rule_that_picks_the_epoch() -> None:
    rule = terms.selection_rule(evaluation(dev="dev"))
    assert rule == "the reported epoch is the best on the official dev part, never on the test part"
    rule = terms.selection_rule(evaluation(folds=5, modality="speech"))
    assert rule == "the reported epoch is the best on one held-out training group, never on the test group"
    assert "on the test part itself" in terms.selection_rule(evaluation(selection="best-on-test"))
    assert "reported as it ends" in terms.selection_rule(evaluation(selection="last"))
    budget = evaluation(folds=5, modality="speech")
    config = {**budget.provenance.config, "train": {"steps": 300}}
    budget = replace(budget, provenance=replace(budget.provenance, config=config), refit=True)
    assert terms.selection_rule(budget) == (
        "training ends after a fixed number of steps, and settings are the best on one held-out training group, never "
        "on the test group; the model is then trained again with the held-out items included"
    )
    words = "fixed number of steps, settings chosen on held-out training data"
    assert terms.selection_words(budget) == f"{words}, then trained again with the held-out data"
    assert terms.selection_words(replace(budget, refit=False)) == words
    given = replace(budget.provenance, config={"train": {"steps": 300, "search": "none"}})
    assert "steps, with given settings; what is chosen" in terms.selection_rule(replace(budget, provenance=given))
    words = "fixed number of steps, then trained again with the held-out data"
    assert terms.selection_words(replace(budget, provenance=given)) == words
    assert terms.selection_words(replace(budget, selection="last", refit=False)) == "fixed number of steps"


def test_closed_form_probes_have_no_epoch() -> None:
    probes = {"ridge-last": method_of(0.5, label="ridge-last (learned nothing)")}
    held = parsed(evaluation_of(probes))
    rule = "the settings of a probe, such as its penalty, are the best on {}, never on the test group"
    assert terms.selection_rule(held) == rule.format("one held-out training group")
    refit = replace(held, provenance=replace(held.provenance, config={"train": {"refit": True}}))
    again = "; the probe is then solved again with the held-out items included"
    assert terms.selection_rule(refit) == rule.format("one held-out training group") + again
    last = replace(refit, selection="last")
    assert terms.selection_rule(last) == rule.format("training items left out one by one")


def test_the_rule_of_fine_tuning_is_told_where_it_is_another_one() -> None:
    found = evaluation(folds=5, selection="best-on-test")
    entry = found.methods["none"]
    tuned = {"lora-r8": Rule("last", True, False, False), "houlsby": Rule("best-on-test", False, False, False)}
    methods = {"none": entry, **{name: replace(entry, rule=rule) for name, rule in tuned.items()}}
    found = replace(found, methods=methods)
    words = "training is reported as it ends, so no data is used to choose anything"
    assert terms.tuned_rules(found) == {words: ["lora-r8"]}
    assert "so results are optimistic. Of lora-r8: training is reported as it ends" in say("what", found, "x", "a", [])
    assert "chosen on the test curve, except of lora-r8." in say("learning", found, probes=False)
    assert "second training" not in say("learning", found, probes=False)
    found.methods["lora-r8"] = replace(found.methods["lora-r8"], rule=Rule("dev-group", True, True, True))
    told = "Of lora-r8, the curve of a held-out training group is from the training that chose the settings, the other"
    assert told in say("learning", found, probes=False)


@pytest.mark.parametrize(
    ("modality", "words"),
    [("speech", ["utterance", "clip"]), ("text", ["text", "text"]), ("image", ["image", "image"])],
)
def test_units(modality: str, words: list[str]) -> None:
    found = evaluation(modality=modality)
    assert [found.item, found.task.clip] == words
