"""Our cells beside the printed ones: protocols, groups, learned ranges, and why a cell is empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daamctl.artifacts.evaluation import Evaluation
from daamctl.paper.numbers import experiments
from daamctl.paper.reproduced import ReproducedResults, few_layers, learned, of_group, protocol
from daamctl.reporting.document import Number
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed

SPEECH = next(one for one in experiments() if one.modality == "speech")
RUNS = [((-0.5, 0.25), (0.75, 1.5)), ((-0.25, 0.5), (0.5, 2.0))]
"""Of two folds, lowest and highest delta and xi."""


def corrected(values: dict[str, float], **changes: Any) -> ReproducedResults:
    found: Evaluation = parsed(evaluation(values, reference=next(iter(values))) | changes)
    return ReproducedResults("p", SPEECH, False, found, why={"ablate": "not run"})


@pytest.mark.parametrize(
    ("selection", "told"),
    [
        ("dev-group", "per utterance, epoch chosen on held-out training data"),
        ("best-on-test", "per utterance, best epoch on test"),
        ("last", "per utterance, last epoch"),
    ],
)
def test_a_corrected_pipeline_tells_its_own_protocol(selection: str, told: str) -> None:
    ours = corrected({"mha": 0.5}, selection=selection)
    assert protocol(ours) == told
    # the released code scores clips at the epoch that is best on test, whatever else is evaluated
    assert protocol(replace(ours, as_published=True)) == "per clip, best epoch on test"
    assert protocol(replace(ours, evaluation=None)) == "per clip, best epoch on test"


def test_the_best_of_a_group_is_named() -> None:
    ours = corrected({"mha": 0.5, "daam-v1": 0.6})
    assert of_group(ours, ["daam-v1"]).note.startswith("per utterance")
    assert of_group(ours, ["mha", "daam-v1", "sga"]).note.startswith("daam-v1; per utterance")
    assert of_group(ours, ["sga"]).note == "not among the methods of p"
    published = replace(corrected({"mha": 0.5, "mha-published": 0.6}), as_published=True)
    # the note of its released form says it already
    assert of_group(published, ["mha", "sga"]).note.startswith("mha-published; per clip")


def test_learned_ranges_have_signs_and_deviations_where_they_belong() -> None:
    ours = replace(corrected({"daam-v1": 0.5}), learned={"daam-v1": RUNS})
    cells = {(name, end): learned(ours, "daam-v1", name, end).cell for name in "δξ" for end in ("lowest", "width")}
    cells["δ", "highest"] = learned(ours, "daam-v1", "δ", "highest").cell
    for (name, end), value in {("δ", "lowest"): -0.375, ("δ", "highest"): 0.375, ("δ", "width"): 0.75,
                               ("ξ", "lowest"): 0.625, ("ξ", "width"): 1.125}.items():  # fmt: skip
        number = cells[name, end]
        assert isinstance(number, Number)
        assert number.value == pytest.approx(value)
        assert number.kind == ("signed" if name == "δ" and end != "width" else "plain")
        assert number.std is not None
    (one,) = {str(learned(replace(ours, learned={"daam-v1": RUNS[:1]}), "daam-v1", "δ", "lowest").cell)}
    assert "±" not in one
    assert learned(replace(ours, learned={}), "daam-v1", "δ", "lowest").note.startswith(
        "there are no weights of daam-v1"
    )
    assert learned(ours, "sga", "δ", "lowest").note == "not among the methods of p"


def test_layers_that_were_not_trained_alone_say_so() -> None:
    assert few_layers(corrected({"mha": 0.5}), [1, 2]).note == "not run"
