"""The tables of results: every method with its figures in their places, by fold and by rule of selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import BEST_ON_TEST, LAST
from daamctl.reporting.document import DASH, Section, Table, Text
from daamctl.reporting.results import folds, results, selection
from daamctl.reporting.results import tests as shown_tests
from daamctl.reporting.sentences import say
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed

pytestmark = pytest.mark.usefixtures("blank_pictures")


def table_of(part: Section, key: str) -> list[list[str]]:
    (table,) = [block for block in part.blocks if isinstance(block, Table) and block.key == key]
    return [[str(cell) for cell in row] for row in table.rows]


def with_runs(found: Evaluation, values: Mapping[str, Mapping[str, list[float]]]) -> Evaluation:
    """With the accuracies of folds 1 to 5; method -> metric -> values, and their mean as figure."""
    frames = dict(found.scores.frames)
    for method, given in values.items():
        for metric, own in given.items():
            chosen = (pl.col("method") == method) & (pl.col("metric") == metric)
            by_fold = dict(enumerate(own, start=1))
            value = pl.col("fold").replace_strict(by_fold, default=None, return_dtype=pl.Float64)
            frames["scores"] = frames["scores"].with_columns(value=pl.when(chosen).then(value).otherwise("value"))
            mean = pl.when(chosen).then(sum(own) / len(own)).otherwise("mean")
            frames["figures"] = frames["figures"].with_columns(mean=mean)
    return replace(found, scores=replace(found.scores, frames=frames))


def test_every_method_stands_beside_its_difference() -> None:
    data = evaluation({"none": 0.6, "mha": 0.5, "mean": 0.4})
    del data["tables"]["comparisons"][1]  # mean was not compared
    rows = table_of(results(parsed(data)), "results")
    spread, pooled = "60.0 ± 2.0", "60.0 [55.0, 65.0]"
    assert rows[0] == ["none", spread, pooled, spread, pooled, "reference", DASH, DASH, "5"]
    assert rows[1][-4:-1] == ["−10.0 [−12.0, −9.0]", "0.010", DASH]
    assert rows[2][-4:] == [DASH, DASH, DASH, "5"]


@pytest.mark.parametrize(("units", "shown"), [(5, DASH), (6, "4.0")])  # of five, the smallest p is 0.0625
def test_nothing_is_detectable_where_no_p_can_be_small_enough(units: int, shown: str) -> None:
    data = evaluation({"none": 0.5, "mha": 0.6})
    data["tables"]["comparisons"][0]["units"] = units
    (row,) = table_of(shown_tests(parsed(data), declared=True), "tests-accuracy")
    assert row[-1] == shown


def test_folds_stand_under_their_numbers() -> None:
    found = with_runs(parsed(evaluation({"none": 0.5})), {"none": {"accuracy": [0.1, 0.2, 0.3, 0.4, 0.5]}})
    counts = replace(found.counts, groups={"2": "Ses02"})
    part = folds(replace(found, counts=counts))
    (table,) = [block for block in part.blocks if isinstance(block, Table) and block.key == "folds"]
    assert table.columns[:6] == ["Method", "Fold 1", "Fold 2 (Ses02)", "Fold 3", "Fold 4", "Fold 5"]
    assert table_of(part, "folds") == [["none", "10.0", "20.0", "30.0", "40.0", "50.0", "30.0 ± 2.0", "5"]]
    assert "over folds." in str(table.note)
    assert "mean over its 2 seeds" in str(next(one for one in folds(replace(found, seeds=[1, 2])).blocks
                                               if isinstance(one, Table)).note)  # fmt: skip
    # 100 utterances in 150 clips: both units; one clip each: one table
    assert [block.key for block in part.blocks if isinstance(block, Table)] == ["folds", "units"]
    alike = folds(replace(found, counts=replace(counts, clip=100)))
    assert [block.key for block in alike.blocks if isinstance(block, Table)] == ["folds"]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ({}, "All seeds use the same training and test items."),
        ({"shots": 8}, "All seeds use the same test items, but each draws its own training items."),
    ],
)
def test_what_seeds_share_is_told(train: dict[str, int], told: str) -> None:
    data = evaluation({"none": 0.5})
    data["num_folds"] = 1
    data["provenance"]["config"]["train"] = train
    (table,) = [block for block in folds(parsed(data)).blocks if isinstance(block, Table)]
    assert table.note.startswith(told)


def test_classes_that_folds_lack_are_told_beside_the_figures_of_a_constant_answer() -> None:
    chance, note = parsed(evaluation({"none": 0.5})).main_chance, "Some folds test no item of a class."
    assert note not in say("note_metrics", "↑", "↓", chance)
    assert note in say("note_metrics", "↑", "↓", replace(chance, uniform_fraction=0.6))


def test_folds_that_are_missing_and_folds_that_never_were() -> None:
    data = evaluation({"none": 0.5, "mha": 0.4})
    data["methods"]["mha"]["runs"] = data["methods"]["mha"]["runs"][:3]
    data["methods"]["mha"]["missing"] = [[4, 1]]
    rows = table_of(folds(parsed(data)), "folds")
    assert rows[1][1:6] == ["40.0", "40.0", "40.0", "missing", DASH]


RUNS: dict[str, dict[str, list[float]]] = {
    "none": {"accuracy": [0.50] * 5, BEST_ON_TEST: [0.52] * 5, LAST: [0.49] * 5},
    "mha": {"accuracy": [0.48] * 5, BEST_ON_TEST: [0.56] * 5, LAST: [0.51] * 5},
}


def of_rules(**changes: Any) -> Evaluation:
    return replace(with_runs(parsed(evaluation({"none": 0.5, "mha": 0.48})), RUNS), **changes)


def test_what_choosing_on_the_test_items_is_worth() -> None:
    part = selection(of_rules())
    assert table_of(part, "selection") == [
        ["none", "50.0 ± 2.0", "52.0 ± 2.0", "49.0 ± 2.0", "+2.0"],
        ["mha", "48.0 ± 2.0", "56.0 ± 2.0", "51.0 ± 2.0", "+8.0"],
    ]
    assert table_of(part, "leads") == [["mha", "−2.0", "+4.0", "+2.0", "+6.0"]]
    text = " ".join(block.text for block in part.blocks if isinstance(block, Text))
    assert "5.0 points" in text  # on average
    assert "Ahead only if the epoch is chosen on the test fold: mha." in text
    assert "Best method: none as reported, mha best on test, mha at the end." in text


@pytest.mark.parametrize(
    ("ours", "told"), [(0.4, "none under all three rules"), (0.5, "none and mha as reported, none best on test, ")]
)
def test_the_best_method_of_every_rule_is_named(ours: float, told: str) -> None:
    runs = RUNS | {"mha": {"accuracy": [ours] * 5, BEST_ON_TEST: [0.5] * 5, LAST: [0.4] * 5}}
    part = selection(with_runs(parsed(evaluation({"none": 0.5, "mha": 0.4})), runs))
    assert isinstance(part.blocks[0], Text)
    assert f"Best method: {told}" in part.blocks[0].text


@pytest.mark.parametrize(("reference", "inflated"), [("none", True), ("ridge-last", False)])
def test_closed_form_probes_gain_nothing_from_choosing_the_epoch(reference: str, inflated: bool) -> None:
    methods = {"none": 0.5, "mha": 0.48, "ridge-last": 0.4}
    part = selection(with_runs(parsed(evaluation(methods, reference)), RUNS))
    text = " ".join(block.text for block in part.blocks if isinstance(block, Text))
    assert "would add +5.0 points to a trained method on average, most to mha (+8.0)" in text
    assert ("Selection also inflates the reference" in text) is inflated
    assert table_of(part, "selection")[2] == ["ridge-last", *["40.0 ± 2.0"] * 3, "0.0"]


def test_leads_need_the_reference_and_another_method() -> None:
    alone = with_runs(parsed(evaluation({"none": 0.5})), {"none": RUNS["none"]})
    for found in (alone, of_rules(comparison=replace(of_rules().comparison, reference="gone"))):
        assert not [block for block in selection(found).blocks if isinstance(block, Table) and block.key == "leads"]


def test_a_lead_of_a_rule_without_runs_is_unknown() -> None:
    found = of_rules()
    frames = dict(found.scores.frames)
    frames["scores"] = frames["scores"].filter(pl.col("metric") != BEST_ON_TEST)
    frames["figures"] = frames["figures"].filter(pl.col("metric") != BEST_ON_TEST)
    part = selection(replace(found, scores=replace(found.scores, frames=frames)))
    assert table_of(part, "leads") == [["mha", "−2.0", DASH, "+2.0", DASH]]
    assert table_of(part, "selection")[0] == ["none", "50.0 ± 2.0", DASH, "49.0 ± 2.0", DASH]


@pytest.mark.parametrize(
    ("ours", "best", "turned"),
    [(0.48, 0.56, True), (0.50, 0.56, True), (0.51, 0.56, False), (0.48, 0.52, False), (0.48, 0.51, False)],
)
def test_a_lead_that_selection_made_is_named(ours: float, best: float, turned: bool) -> None:
    runs = RUNS | {"mha": {"accuracy": [ours] * 5, BEST_ON_TEST: [best] * 5, LAST: [0.5] * 5}}
    part = selection(with_runs(parsed(evaluation({"none": 0.5, "mha": ours})), runs))
    lead = [block.text for block in part.blocks if isinstance(block, Text)][-1]
    assert ("mha" in lead) is turned
