"""What the report says about the best method: every case of lead, floor, missing folds and reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daamctl.reporting.document import Bullets, Facts, Section, Text
from daamctl.reporting.verdict import against, family_texts, headline, labelled, order, warnings
from tests.fixtures.compared import evaluation, fused
from tests.fixtures.records import parsed


def words(section: Section) -> str:
    return " ".join(block.text for block in section.blocks if isinstance(block, Text))


def fact(section: Section) -> str:
    (facts,) = [block for block in section.blocks if isinstance(block, Facts)]
    return dict(facts.pairs)["Lead over the reference"]


def said(data: dict[str, Any]) -> tuple[str, str]:
    section = headline(labelled(parsed(data)), declared=True)
    return fact(section), words(section)


def test_lead_that_survives() -> None:
    short, text = said(evaluation({"none": 0.5, "sga": 0.6}))
    assert short == "significant"
    assert "sga (reconstructed) has the highest mean accuracy per utterance, 60.0 ± 2.0 % (n = 5)." in text
    assert "Its lead over the reference none, set by evaluate.reference, is +10.0 points" in text
    assert "(95 % interval +8.0 to +11.0, not corrected, over all test utterances)" in text
    assert "sign-flip test over 10 speakers: p = 0.002, p = 0.010 after correction over 1 comparison" in text
    assert "picked after seeing the results" in text


def test_classes_that_folds_lack_raise_the_balanced_accuracy_of_a_constant_answer() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    assert "gives 40.0 % accuracy and 50.0 % balanced accuracy. " in f"{said(data)[1]} "
    data["chance"]["utterance"] |= {"uniform_fraction": 0.6}
    told = "60.0 % balanced accuracy, the latter as a mean over folds, of which some test no item of a class."
    assert told in said(data)[1]


def test_few_shot_trials_train_on_items_of_their_own() -> None:
    data = {**evaluation({"none": 0.5}), "num_folds": 1, "seeds": [1, 2]}
    assert "the official split (300 clips for training, 100 held out for choosing), with 2 seeds." in said(data)[1]
    data["provenance"] |= {"config": {"train": {"shots": 8}}, "clips_per_fold": [[1, 290, 80, 150], [1, 310, 80, 150]]}
    told = "the official split (290 to 310 clips for training, 80 held out for choosing, drawn anew by each seed), with"
    assert told in said(data)[1]


def test_methods_with_the_same_accuracy_are_all_best() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6, "mha": 0.6})
    data["methods"]["mha"]["value"] += 1e-15  # rounding
    short, text = said(data)
    assert short == "significant"
    assert "sga (reconstructed) and mha have the highest mean accuracy per utterance, 60.0 % (n = 5)." in text
    assert "The lead of sga (reconstructed) over the reference none, set by evaluate.reference, is +10.0 points" in text
    (facts,) = [block for block in headline(labelled(parsed(data)), declared=True).blocks if isinstance(block, Facts)]
    assert dict(facts.pairs)["Best methods"] == "sga (reconstructed) and mha"
    short, text = said(evaluation({"mha": 0.6, "sga": 0.5, "none": 0.6}, "none"))
    assert short == "it is the reference"
    assert "none and mha have the highest mean accuracy" in text
    assert "none is the reference, set by evaluate.reference, so no method beats the reference." in text


def test_lead_that_does_not_survive() -> None:
    short, text = said(evaluation({"none": 0.5, "sga": 0.6}, p_holm=0.3))
    assert short == "not significant"
    assert "The lead is not significant at level 0.05." in text


def test_lead_that_no_design_like_this_could_show() -> None:
    short, text = said(evaluation({"none": 0.5, "sga": 0.6}, p_holm=0.074, floor_holm=0.074))
    assert short == "too few data to test"
    assert "no lead could be: with 10 speakers and this many comparisons, no corrected p-value below 0.074" in text


def test_reference_on_top() -> None:
    short, text = said(evaluation({"none": 0.6, "sga": 0.5, "mha": 0.55}))
    assert short == "it is the reference"
    assert "so no method beats the reference. Of 2 other methods, 2 are significantly worse at level 0.05" in text
    assert "sga (reconstructed) and mha" in text
    _, text = said(evaluation({"none": 0.6, "sga": 0.5}, p_holm=0.5))
    assert "Of 1 other method, 0 are significantly worse at level 0.05 after correction." in text


def test_without_a_test() -> None:
    short, text = said(evaluation({"none": 0.5, "sga": 0.6}, p_holm=None))
    assert short == "not tested"
    assert "No test is available: there is one fold." in text


def test_missing_folds_leave_a_method_untested() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["comparison"]["left_out"] = ["sga"]
    data["methods"]["sga"]["missing"] = [[5, 1]]
    short, text = said(data)
    assert short == "not tested"
    assert "It was not tested against none because folds are missing." in text
    assert any("Folds are missing for sga (reconstructed)" in line for line in warnings(labelled(parsed(data)), []))
    data["comparison"]["family"] = None
    assert said(data)[0] == "not tested"


def test_one_method_alone() -> None:
    short, text = said(evaluation({"none": 0.3}))
    assert short == "no other method"
    assert "No other method was run" in text
    assert "No method is better than that." in text


def test_differences_are_turned_round() -> None:
    found = against(labelled(parsed(evaluation({"none": 0.5, "sga": 0.6}))), "accuracy")["sga (reconstructed)"]
    assert (found.difference, found.low, found.high) == pytest.approx((0.1, 0.08, 0.11))
    assert (found.wins, found.losses, found.detectable) == (7, 3, 0.04)
    assert (found.runs, found.ahead) == (5, 4)


def test_each_family_has_its_own_differences() -> None:
    data = fused({"ridge-best-layer": 0.5, "mha": 0.6})
    data["tables"]["comparisons"][1] |= {"difference": -0.3, "low": -0.31, "high": -0.28}
    found = parsed(data)
    assert against(found)["mha"].difference == pytest.approx(0.1)
    assert against(found, family=found.single_layer)["mha"].difference == pytest.approx(0.3)


def test_folds_may_lead_where_items_lag() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["tables"]["comparisons"][0] |= {"difference": 0.1, "low": 0.08, "high": 0.12}  # none minus sga, over all items
    short, text = said(data)
    assert short == "none over all test utterances"
    assert "The folds differ in size, and over all test utterances it is behind the reference none, set by" in text
    assert "evaluate.reference: −10.0 points (95 % interval −12.0 to −8.0, not corrected); sign-flip test" in text
    assert "The difference is significant at level 0.05." in text
    assert "lead" not in text
    data["fairness"]["methods"]["none"]["status"] = "undertrained"
    assert "training alone may explain this difference because of none" in said(data)[1]
    data = evaluation({"none": 0.5, "sga": 0.6}, p_holm=0.074, floor_holm=0.074)
    data["tables"]["comparisons"][0] |= {"difference": 0.1}
    assert "The difference is not significant, and no difference could be: with 10 speakers" in said(data)[1]
    data["tables"]["comparisons"][0] |= {"difference": 1e-17}
    assert "Its lead over the reference none, set by evaluate.reference, is 0.0 points" in said(data)[1]


def test_a_mean_outside_its_interval_is_explained() -> None:
    data, note = evaluation({"none": 0.5, "sga": 0.6}), "Some figures lie outside their intervals: figures are means"
    assert note not in said(data)[1]
    found = labelled(parsed(data))
    figures = found.scores.frames["figures"].with_columns(low=0.51, high=0.59)
    apart = replace(found, scores=replace(found.scores, frames={**found.scores.frames, "figures": figures}))
    assert f"{note} over folds, intervals and tests count every utterance once, and" in words(
        headline(apart, declared=True)
    )


def test_finished_runs_are_counted() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["methods"]["sga"]["missing"] = [[4, 1], [5, 1]]
    section = headline(labelled(parsed(data)), declared=True)
    (facts,) = [block for block in section.blocks if isinstance(block, Facts)]
    done = sum(len(method["runs"]) for method in data["methods"].values())
    assert dict(facts.pairs)["Finished runs (method × fold × seed)"] == f"{done} of {done + 2}"


def test_labels_reach_tiers_and_leave_the_input_alone() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4})
    pairs = data["tables"]["comparisons"]
    third = pairs[0] | {"first": "sga", "second": "mha", "first_value": 0.6, "second_value": 0.4}
    data["tables"]["comparisons"] = [*pairs, *({**pair, "family": "all pairs"} for pair in (*pairs, third))]
    found = parsed(data)
    renamed = labelled(found)
    assert found.as_json() == parsed(data).as_json()
    assert order(found) == ["sga", "none", "mha"]
    assert found.scores.tiers("accuracy") == {"sga": 1, "none": 2, "mha": 3}
    family = renamed.comparison.family
    assert family is not None
    assert renamed.scores.tiers("accuracy") == {"sga (reconstructed)": 1, "none": 2, "mha": 3}
    assert family.methods == ["none", "sga (reconstructed)", "mha"]
    assert order(renamed) == ["sga (reconstructed)", "none", "mha"]


def lines(data: dict[str, Any], *, declared: bool = False) -> str:
    blocks = family_texts(labelled(parsed(data)), declared=declared)
    return " ".join(line for block in blocks if isinstance(block, Bullets) for line in block.lines) + " ".join(
        block.text for block in blocks if isinstance(block, Text)
    )


def test_family_is_told_in_words() -> None:
    text = lines(evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4}))
    assert "2 other methods against none, the default of evaluate.reference, on the same 100 test utterances" in text
    assert "Holm correction within each metric; two-sided tests at level 0.05." in text
    assert "sign-flip test over 10 speakers (all sign flips), after averaging over seeds" in text
    assert "Smallest possible p-value with 10 speakers: 0.002, or 0.004 after correction." in text
    assert "Smallest detectable difference: 4.0 points of accuracy" in text
    assert "Intervals resample only 10 speakers." in text


def test_random_sign_flips_are_told_with_the_number_that_was_drawn() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4})
    first, second = (row for row in data["tables"]["comparisons"] if row["metric"] == "accuracy")
    second |= {"exact": False, "flips": 100_000}
    assert "(all sign flips where few speakers differ, else 100,000 random ones)" in lines(data)
    first |= {"exact": False, "flips": 100_000}
    assert "(100,000 random sign flips)" in lines(data)


def test_nothing_is_detectable_if_no_p_value_can_be_small_enough() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["comparison"]["family"]["floor"] = 0.125
    assert "Smallest possible p-value with 10 speakers: 0.125" in lines(data)
    assert "detectable" not in lines(data)


def test_intervals_are_told_in_words() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4})
    same, other = (row for row in data["tables"]["comparisons"] if row["metric"] == "accuracy")
    same["interval"], other["interval"], other["resamples"] = "korn-graubard", "sign-flip", 10
    text = lines(data)
    assert "95 %, all values that the primary test does not reject" in text
    assert "for a method that differs from the reference in no speaker, that of the share of items" in text
    same["interval"] = "sign-flip"
    assert "differs from the reference in no" not in lines(data)


def test_family_without_whole_methods_says_why() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["comparison"] |= {"family": None, "left_out": ["none"]}
    assert "No methods were tested: the reference, none, has missing folds." in lines(data)
    data["comparison"] |= {"left_out": ["sga"]}
    assert "No methods were tested: the reference, none, was not trained on this machine." in lines(data)


def test_changed_settings_and_stale_folds_are_warnings() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["notes"] = ["trained with other settings than the current ones: lr 0.1", "sga: something else"]
    found = warnings(labelled(parsed(data)), ["Score them again."])
    assert found == ["Score them again.", "Trained with other settings than the current ones: lr 0.1."]


def test_the_verdict_on_the_comparison_comes_first() -> None:
    for status, caution in ((None, False), ({"sga": "undertrained"}, True)):
        section = headline(labelled(parsed(evaluation({"none": 0.5, "sga": 0.6}, status=status))), declared=True)
        assert section.blocks[0] == Text("The verdict.", caution=caution)
        (facts,) = [block for block in section.blocks if isinstance(block, Facts)]
        assert facts.pairs[0] == ("Is the comparison fair?", "no" if caution else "yes")


@pytest.mark.parametrize("status", ["undertrained", "learned nothing"])
@pytest.mark.parametrize("who", ["none", "sga"])
@pytest.mark.parametrize("p_holm", [0.001, 0.3])
def test_no_lead_by_or_over_an_undertrained_method_survives(status: str, who: str, p_holm: float) -> None:
    data = evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4}, p_holm=p_holm, status={who: status})
    short, text = said(data)
    assert short == "training may explain it"
    assert "significant" not in text
    label = f"none ({status})" if who == "none" else f"sga (reconstructed, {status})"
    assert f"training alone may explain this lead because of {label}" in text
    assert ("The reference is" in text) is (who == "none")
    family = lines(data)
    assert "significant" not in family
    assert f"Training alone may explain a difference from {label}, whatever the p-value." in family


def test_another_undertrained_method_leaves_a_lead_alone() -> None:
    short, _ = said(evaluation({"none": 0.5, "sga": 0.6, "mha": 0.4}, status={"mha": "undertrained"}))
    assert short == "significant"


def test_a_reference_on_top_of_undertrained_methods() -> None:
    _, text = said(evaluation({"none": 0.6, "sga": 0.5, "mha": 0.55}, status={"mha": "undertrained"}))
    assert (
        "2 are significantly worse at level 0.05 after correction: sga (reconstructed) and mha (undertrained)." in text
    )
    assert "Training alone may explain the lead over mha (undertrained)." in text
    _, text = said(evaluation({"none": 0.6, "sga": 0.5}, status={"none": "undertrained"}))
    assert "Training alone may explain the lead over sga (reconstructed)." in text


def test_equal_predictions_are_a_caution() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["fairness"]["identical"] = [{"methods": ["none", "sga"], "reason": None}]
    section = headline(labelled(parsed(data)), declared=True)
    cautions = [block.text for block in section.blocks if isinstance(block, Text) and block.caution]
    assert cautions == [
        "The predictions of none and sga (reconstructed) are identical in every fold: the reason is unknown."
    ]
