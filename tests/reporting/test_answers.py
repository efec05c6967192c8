"""The first section of the report: which layers carry the label, whether fusing helps, what to do next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.importance import Importance, ProbedLayers
from daamctl.artifacts.layer_sets import LayerRow
from daamctl.reporting.answers import answers, next_steps
from daamctl.reporting.document import Bullets, Plot, Text
from daamctl.reporting.verdict import labelled
from daamctl.store.records import parse_record
from tests.fixtures.compared import compared, evaluation, fused
from tests.fixtures.records import importance_of, parsed

pytestmark = pytest.mark.usefixtures("blank_pictures")


def probed(
    *values: float,
    margin: float | None = 0.02,
    p: dict[int, float] | None = None,
    floor: float | None = 0.01,
    kind: str = "accuracy",
) -> Importance:
    """Layers from 1 on; `p` of those that are not worse than the best beyond chance."""
    best, p, rows = max(values), p or {}, []
    for n, value in enumerate(values, start=1):
        row = LayerRow(f"layer-{n}", (n,), "ridge-last", kind, value, difference=value - best)
        if margin is not None:
            row = row._replace(low=value - margin, high=value + margin)
        rows.append(row if value == best else row._replace(p=p.get(n, 0.01), floor=floor))
    found = importance_of({}, probed={"unit": "utterance", "resampled": "speaker"})
    return replace(parse_record(found, Importance, path=Path("summary.json"), fix=""), rows=rows)


def said(data: dict[str, Any], summary: Importance | None = None) -> str:
    section = answers(labelled(parsed(data)), summary, stale=[], command="daamctl importance")
    return " ".join(block.text for block in section.blocks if isinstance(block, Text))


BASE = {"ridge-best-layer": 0.5, "daam-v1": 0.6}


def test_the_layers_that_carry_the_label() -> None:
    text = said(fused(BASE), probed(0.5, 0.61, 0.62, 0.4, p={2: 0.4}))
    assert "Layer 3 has the highest figure: alone it classifies 62.0 % [60.0, 64.0] of utterances" in text
    assert "; not shown to be worse than it: layer 2. The last layer, 4, reaches 40.0 %." in text
    # The intervals of 2 and 3 overlap, and the paired test tells them apart all the same; 1 is outside and is not told.
    text = said(fused(BASE), probed(0.5, 0.61, 0.62, 0.4, p={1: 0.06}))
    assert "; not shown to be worse than it: layer 1. The last" in text
    text = said(fused(BASE), probed(0.5, 0.61, 0.62, 0.4))
    assert "Layer 3 carries the label best: alone it classifies 62.0 %" in text
    assert "not shown" not in text


def test_a_layer_that_is_ahead_over_all_items_is_not_worse() -> None:
    found = probed(0.5, 0.61, 0.84, 0.4)
    ahead = [row._replace(difference=0.157) if row.layers == (2,) else row for row in found.rows]
    text = said(fused(BASE), replace(found, rows=ahead))
    assert "Layer 3 has the highest figure: alone it classifies 84.0 %" in text
    assert "; not shown to be worse than it: layer 2. The last" in text


def test_a_figure_outside_its_interval_is_explained() -> None:
    found, note = probed(0.5, 0.61, 0.84), "Some figures lie outside their intervals: figures are means over folds"
    assert note not in said(fused(BASE), found)
    rows = [row._replace(low=0.58, high=0.68) if row.layers == (3,) else row for row in found.rows]
    section = answers(labelled(parsed(fused(BASE))), replace(found, rows=rows), stale=[], command="")
    second = section.blocks[1]
    assert isinstance(second, Text)
    assert second.text.startswith(note)


def test_one_layer_has_nothing_to_fuse() -> None:
    data = fused(BASE)
    for entry in data["methods"].values():
        entry["layers"] = [1]
    text = said(data, probed(0.62))
    assert "Layer 1 classifies 62.0 % [60.0, 64.0] of utterances with a ridge probe." in text
    assert "There is one layer, so nothing to fuse." in text
    assert "Fusing" not in text
    assert next_steps(labelled(parsed(data))) == []


def test_a_flat_profile() -> None:
    text = said(fused(BASE), probed(0.5, 0.51, 0.505, p={1: 0.3, 3: 0.9}))
    assert "No layer stands out: layer 2 alone classifies 51.0 %" in text
    assert "; no other layer is shown to be worse." in text


@pytest.mark.parametrize("floor", [None, 0.0625])
def test_too_few_speakers_to_compare_layers(floor: float | None) -> None:
    text = said(fused(BASE), probed(0.3, 0.62, 0.4, floor=floor))
    assert "Layer 2 has the highest figure: alone it classifies 62.0 %" in text
    assert (
        "; the layers differ in too few speakers to test whether others are worse. The last layer, 3, reaches 40.0 %."
        in text
    )


def test_warnings_are_cautions() -> None:
    data = fused(BASE, status={"daam-v1": "undertrained"})
    section = answers(labelled(parsed(data)), None, stale=["A fold is stale."], command="")
    cautions = [block.text for block in section.blocks if isinstance(block, Text) and block.caution]
    assert cautions == [
        "This comparison is not fair: training alone may explain the results of daam-v1.", "A fold is stale.",
    ]  # fmt: skip


def test_words_are_told_by_entity_f1() -> None:
    text = said(fused(BASE), probed(0.3, 0.5, 0.4, kind="entity_f1"))
    assert "Layer 2 carries the entities best: alone it reaches an entity F1 of 50.0 % [48.0, 52.0]" in text
    assert "The last layer, 3, reaches 40.0 %." in text


def test_without_intervals_or_probes() -> None:
    assert "alone it classifies 62.0 % of utterances" in said(fused(BASE), probed(0.5, 0.62, margin=None))
    half = probed(0.5, 0.62)
    half = replace(half, rows=[row._replace(low=None) for row in half.rows])
    assert "alone it classifies 62.0 % of utterances" in said(fused(BASE), half)
    assert "It is the last layer." in said(fused(BASE), probed(0.5, 0.62, margin=None))
    assert "The layers were not probed yet. Run: `daamctl importance`" in said(fused(BASE))


def test_whether_fusing_helps() -> None:
    gain = "+10.0 points [+8.0, +11.0; not corrected]"
    chosen = "from a probe of the single layer chosen without the test group (ridge-best-layer; "
    closed = {"ridge-best-layer": 0.5, "ridge-mean": 0.6}
    assert f"Fusing layers helps: ridge-mean differs by {gain} {chosen}" in said(fused(closed))
    text = said(fused(closed, p_holm=0.3))
    assert "Fusing layers does not help by more than chance: the best fusion ridge-mean differs by +10.0 points" in text
    worse = {"ridge-best-layer": 0.6, "ridge-mean": 0.5}
    assert "Fusing layers hurts: ridge-mean differs by −10.0 points" in said(fused(worse))
    stepped = {"best-layer": 0.6, "mean": 0.5}
    unclear = said(fused(stepped, "best-layer", status={"mean": "learned nothing"}))
    assert "Whether fusing layers hurts is unclear: mean (learned nothing) differs by −10.0 points" in unclear
    assert "; but its training is in doubt." in unclear
    assert "cannot be tested" in said(fused(closed, p_holm=None))
    assert "unknown: no probe of the best single layer" in said(evaluation({"none": 0.5, "sga": 0.6}))
    single = {"last-layer": 0.5, "ridge-best-layer": 0.6}
    assert "unknown: no method fuses layers" in said(evaluation(single, reference="last-layer"))


def of_kinds(values: dict[str, float]) -> dict[str, Any]:
    """An evaluation in which only closed-form fusions are compared with the closed-form probe, and all pairs are."""
    data = fused(values)
    rows = data["tables"]["comparisons"]
    pairs = [{**row, "family": "all pairs"} for row in rows if row["family"] == "reference"]
    own = [row for row in rows if row["family"] == "reference" or row["second"].startswith("ridge-")]
    data["tables"]["comparisons"] = [*own, *pairs]
    return data


def test_a_trained_head_is_not_taken_for_the_worth_of_fusing() -> None:
    both = said(of_kinds({"ridge-best-layer": 0.5, "ridge-mean": 0.52, "daam-v1": 0.6, "none": 0.55}))
    assert "Fusing layers helps: ridge-mean differs by +2.0 points" in both
    head = (
        "daam-v1 differs by +10.0 points [+8.0, +11.0; not corrected], but it is trained, so its head may explain more"
    )
    assert head in both
    assert "trained" not in said(of_kinds({"ridge-best-layer": 0.5, "ridge-mean": 0.6, "daam-v1": 0.55}))
    single = said(of_kinds({"ridge-best-layer": 0.5, "ridge-mean": 0.52, "daam-v1": 0.52, "last-layer": 0.6}))
    assert "last-layer" not in single  # it fuses nothing
    data = of_kinds({"ridge-best-layer": 0.5, "ridge-mean": 0.52, "daam-v1": 0.6, "best-layer": 0.57})
    rows = data["tables"]["comparisons"]
    rows.append({**compared("best-layer", "daam-v1", -0.03, 0.02), "family": "single layer"})
    assert said(data).count("trained") == 2
    trained = (
        "Of trained methods, daam-v1 differs by +3.0 points [+1.0, +4.0; not corrected] from a trained single layer"
    )
    assert f"{trained} (best-layer; p = 0.020 after correction)." in said(data)
    alone = said(fused(BASE))
    assert "Whether fusing layers helps is unclear: daam-v1 differs by +10.0 points" in alone
    assert "; but one is trained and the other solved in closed form, so the head may explain the difference." in alone
    assert "Fusing layers does not help by more than chance: the best fusion daam-v1" in said(fused(BASE, p_holm=0.3))
    few = "Whether fusing layers helps cannot be tested with so few speakers: the best fusion daam-v1 differs by"
    assert few in said(fused(BASE, p_holm=0.3, floor_holm=0.1))


def steps(data: dict[str, Any]) -> str:
    return " ".join(next_steps(labelled(parsed(data))))


def test_more_speakers() -> None:
    assert steps(fused(BASE)) == ""
    # 2^(1 - n) must reach 0.05 for one comparison, so n is at least 6.
    text = steps(fused(BASE, p_holm=0.074, floor_holm=0.074))
    assert text == "Add speakers: with 10, no lead can be significant. 6 would do."
    # The table of results has seven comparisons: 7 x 2^(1 - 8) is 0.055, 7 x 2^(1 - 9) is 0.027.
    few = fused(BASE, p_holm=0.074, floor_holm=0.074)
    few["comparison"] = {**few["comparison"], "family": {**few["single_layer"], "size": 7}}
    assert steps(few) == "Add speakers: with 10, no lead can be significant. 9 would do."
    # 2^-19, the smallest p-value of any number of speakers, is 0.057 after correction.
    few["comparison"]["family"]["size"] = 30_000
    assert steps(few) == "Compare fewer methods: over 30,000 comparisons, no lead can be significant."
    small = {"ridge-best-layer": 0.5, "daam-v1": 0.52}
    # 10 speakers detect 4 points, so twice as much as the lead; the quantiles of t are smaller with more speakers.
    data = fused(small, p_holm=0.3)
    assert "confirming a lead of +2.0 points would take about 34 of them" in steps(data)
    data["single_layer"]["size"] = 4
    assert "confirming a lead of +2.0 points would take about 49 of them" in steps(data)
    tiny = {"ridge-best-layer": 0.5, "daam-v1": 0.501}
    assert "over 1,000 speakers to confirm" in steps(fused(tiny, p_holm=0.3))
    for lead in (0.0, -0.02):  # nothing to confirm
        assert steps(fused({"ridge-best-layer": 0.5, "daam-v1": 0.5 + lead}, p_holm=0.3)) == ""
    unknown = fused(small, p_holm=0.3)
    for row in unknown["tables"]["comparisons"]:
        row["detectable"] = None
    assert steps(unknown) == ""
    enough = fused({"ridge-best-layer": 0.5, "daam-v1": 0.55}, p_holm=0.3)  # 10 speakers detect 4 points
    assert steps(enough) == ""


@pytest.mark.parametrize(("speakers", "step"), [(5, "Add authors: with 5,"), (None, "Add folds: with 5,")])
def test_folds_of_one_speaker_each_are_as_many_as_speakers(speakers: int | None, step: str) -> None:
    data = fused(BASE, p_holm=0.074, floor_holm=0.074)
    design = {"unit": "fold", "unit_word": "fold", "source_word": "author", "n_units": 5, "n_speakers": speakers}
    data["single_layer"]["design"] |= design
    assert steps(data).startswith(f"{step} no lead can be significant.")


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        (
            {"edges": {"lr": 4}, "highest": {"lr": 3}},
            "Add higher values to train.search_lr: daam-v1 was best at the highest value tried.",
        ),
        (
            {"edges": {"lr": 4}, "highest": {"lr": 1}},
            "Add lower values to train.search_lr: daam-v1 was best at the lowest value tried.",
        ),
        (
            {"status": "learned nothing", "highest": {"lr": 5}},
            "Add higher values to train.search_lr, or leave the method out: daam-v1 was not better than chance.",
        ),
        (
            {"status": "learned nothing", "highest": {"lr": 2}},
            "Add lower values to train.search_lr, or leave the method out: daam-v1 was not better than chance.",
        ),
        ({}, "Raise train.epochs: daam-v1 was not trained enough."),
        ({"status": "overfitted"}, "Add a larger value to train.search_weight_decay: daam-v1 was overfitted."),
        ({"status": "collapsed"}, "Add a lower value to train.search_lr: daam-v1 was worse after its refit."),
    ],
)
def test_methods_that_were_not_trained_well(changes: dict[str, Any], step: str) -> None:
    data = fused(BASE, status={"daam-v1": "undertrained"})
    data["fairness"]["methods"]["daam-v1"] |= {"runs": 5, **changes}
    assert step in steps(data)
    assert "training alone may explain the results of daam-v1" in said(data)
    effect = {"tensors": 1, "with_gradient": 1, "output_change": 0.1, "silent": []}
    data["methods"]["daam-v1"] |= {"finetune": True, "effect": effect}
    tuned = step.replace(
        "Add a larger value to train.search_weight_decay", "Raise train.weight_decay, or lower train.epochs"
    )
    assert tuned.replace("train.", "finetune.") in steps(data)


@pytest.mark.parametrize(
    ("status", "step"),
    [
        ("learned nothing", "Set train.search=grid, or leave the method out: daam-v1 was not better than chance."),
        ("overfitted", "Raise train.weight_decay: daam-v1 was overfitted."),
        ("collapsed", "Lower train.lr: daam-v1 was worse after its refit."),
    ],
)
def test_without_a_search_no_advice_is_on_what_is_searched(status: str, step: str) -> None:
    data = fused(BASE, status={"daam-v1": status})
    data["provenance"]["config"]["train"] = {"search": "none"}
    assert step in steps(data)
    assert "search_" not in steps(data)


def test_closed_form_probes_at_chance_are_advised_to_check_the_labels_if_no_method_is_better() -> None:
    probes, nothing = {"ridge-best-layer": 0.5, "ridge-mean": 0.5}, "learned nothing"
    text = steps(fused(probes, status=dict.fromkeys(probes, nothing)))
    assert "Check the labels: ridge-best-layer and ridge-mean were not better than chance." in text
    assert "search_lr" not in text
    assert "chance" not in steps(fused(probes, status={"ridge-mean": nothing}))


def test_a_probe_at_chance_is_fully_trained() -> None:
    data = fused({"ridge-best-layer": 0.6, "ridge-mean": 0.5}, status={"ridge-mean": "learned nothing"})
    assert "Fusing layers hurts: ridge-mean (learned nothing) differs by −10.0 points" in said(data)
    assert "not fair" not in said(data)


@pytest.mark.parametrize(
    ("lowest", "highest", "step"),
    [
        (
            5,
            0,
            "Raise train.epochs, and add lower values to train.search_weight_decay: daam-v1 was behind a probe with "
            "next to no penalty.",
        ),
        (5, 5, "Add a larger value to train.search_weight_decay: daam-v1 was overfitted."),
        (2, 0, "Add a larger value to train.search_weight_decay: daam-v1 was overfitted."),
        (
            3,
            0,
            "Raise train.epochs, and add lower values to train.search_weight_decay: daam-v1 was behind a probe with ",
        ),
    ],
)
def test_decay_is_not_raised_where_the_probe_needs_none(lowest: int, highest: int, step: str) -> None:
    data = fused(BASE | {"ridge-mean": 0.6}, status={"daam-v1": "undertrained"})
    methods = data["fairness"]["methods"]
    methods["daam-v1"] |= {"status": "overfitted", "runs": 5, "counterpart": "ridge-mean"}
    searched = {"edges": {"penalty": lowest}, "highest": {"penalty": highest}}
    methods["ridge-mean"] |= {"status": "closed form", "runs": 5, **searched}
    assert step in steps(data)


def test_advice_goes_to_marked_methods_and_follows_most_runs() -> None:
    data = fused(BASE | {"ridge-mean": 0.6})
    methods = data["fairness"]["methods"]
    methods["daam-v1"] |= {"runs": 5, "counterpart": "ridge-mean", "edges": {"lr": 5}}
    methods["ridge-mean"] |= {"status": "closed form", "runs": 5, "edges": {"penalty": 5}}
    assert steps(data) == ""
    methods["daam-v1"] |= {"status": "undertrained", "edges": {"lr": 2}}
    assert "search_lr" not in steps(data)
    methods["daam-v1"] |= {"edges": {"lr": 3}}
    assert "search_lr" in steps(data)


def test_taggers_are_not_told_how_many_speakers_a_lead_takes() -> None:
    small = fused({"ridge-best-layer": 0.5, "daam-v1": 0.52}, p_holm=0.3)
    assert "Add speakers" in steps(small)
    assert steps(small | {"modality": "tokens"}) == ""


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"decoder": "mlp", "hidden_dim": 3}, "Raise hidden_dim in method_settings, e.g. to 8: daam-v1 was given 3"),
        ({"decoder": "mlp", "hidden_dim": 4}, "Raise train.epochs: daam-v1 was not trained enough."),
        ({"hidden_dim": 3}, "Raise train.epochs: daam-v1 was not trained enough."),  # the conv decoder has none
    ],
)
def test_a_head_with_too_few_units_for_the_classes(settings: dict[str, Any], step: str) -> None:
    data = fused(BASE, status={"daam-v1": "undertrained"})
    data["methods"]["daam-v1"]["settings"] = settings
    assert len(data["classes"]) == 2
    assert step in steps(data)


def test_missing_folds_and_missing_probe() -> None:
    data = evaluation({"none": 0.5, "sga": 0.6})
    data["methods"]["sga"]["missing"] = [[5, 1]]
    text = steps(data)
    assert text.startswith("Finish the missing folds of sga. ")
    assert "Add ridge-best-layer to the methods" in text
    assert steps({**data, "modality": "tokens"}) == "Finish the missing folds of sga."


def test_a_method_without_a_probe_of_its_input() -> None:
    data = fused(BASE, status={"daam-v1": "not checked"})
    assert "Add ridge-concat to the methods, to check whether the others were trained well." in steps(data)


def test_the_figure_shows_layers_and_methods() -> None:
    summary = probed(0.5, 0.6)
    section = answers(labelled(parsed(fused(BASE))), summary, stale=[], command="")
    (plot,) = [block for block in section.blocks if isinstance(block, Plot)]
    (panels,) = plot.figure.views.values()
    assert [panel.title for panel in panels] == ["Layers", "Methods"]
    assert any("95 % interval" in str(mark) for mark in panels[1].marks)
    assert panels[0].y.limits == panels[1].x.limits
    assert not [block for block in section.blocks if isinstance(block, Bullets)]


def test_layers_that_were_scored_by_another_unit_share_no_axis_with_methods() -> None:
    summary = replace(probed(0.5, 0.6), probed=ProbedLayers("clip", "speaker"))
    section = answers(labelled(parsed(fused(BASE))), summary, stale=[], command="")
    assert "alone it classifies 60.0 % [58.0, 62.0] of clips" in str(section.blocks[0])
    (plot,) = [block for block in section.blocks if isinstance(block, Plot)]
    (panels,) = plot.figure.views.values()
    assert [panel.title for panel in panels] == ["Methods"]
