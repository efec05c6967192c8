"""Parts of a pipeline's report on the papers: tables made from printed rows alone."""

from __future__ import annotations

from dataclasses import replace

from daamctl.paper.sections import agreement, few_layers, print_check, published
from daamctl.paper.tables import read_published
from daamctl.reporting.document import Text
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed


def test_agreement_of_a_print_with_its_folds() -> None:
    table = read_published("T2-iemocap")
    found = {row.method: agreement(row) for row in table.rows}
    assert found["daam-v1"] == "✓ population std"
    assert found["mha"] == "✗ std 2 is neither"
    assert found["mixture-daam"] == "✗ mean printed as 67.9; ✗ std 1.35 is neither"
    assert found["single-layer-high-if"] == "no std printed"


def test_no_epoch_is_said_to_be_chosen_where_steps_are_fixed() -> None:
    found = parsed(evaluation({"mha": 0.5}, reference="mha"))
    config = {**found.provenance.config, "train": {"steps": 300}}
    budget = replace(found, provenance=replace(found.provenance, config=config))
    for one, rule in ((found, "the reported epoch is the best on"), (budget, "training ends after a fixed number of")):
        part = published(one, read_published("T2-iemocap"), {})
        text = " ".join(block.text for block in part.blocks if isinstance(block, Text))
        assert f"is the main result of this report: per utterance, 5 folds, 1 seed; {rule}" in text


def test_print_check_shows_folds_and_what_they_give() -> None:
    table = print_check(read_published("T2-agnews").methods, "check", where=" of AG News")
    row = next([str(cell) for cell in row] for row in table.rows if row[0] == "daam-v1")
    assert table.columns == ["Method", "R1", "R2", "R3", *table.columns[4:]]
    assert row[1:7] == ["94.5", "94.5", "94.7", "94.57", "0.12", "0.09"]
    assert row[7:] == ["94.6 ± 0.11", "✓ population or sample std"]
    assert table.caption.startswith("The printed repeats of AG News in percent")


def test_few_layers_are_those_of_the_experiment() -> None:
    (table,) = few_layers(read_published("T2-iemocap"))
    assert [row[:2] for row in table.rows] == [["single-layer-high-if", "9"], ["single-layer-low-if", "23"]]
    assert table.columns[2] == "Mean ± sample std of the folds"
    assert few_layers(read_published("T2-agnews")) == []
