"""Printed rows: which folds may be paired, what is tested, and ours reduced to what a printed row has."""

import numpy as np
import pytest

from daamctl.artifacts.comparison import Row, by_session
from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.results import read_folds
from daamctl.artifacts.scores import BEST_ON_TEST
from daamctl.config import Config
from daamctl.evaluation.paired import TrainedMethod
from daamctl.evaluation.printed import (
    NO_TEST,
    PRINTED_TEST,
    PrintedSide,
    compare_printed,
    figure_of,
    score_of,
    trained_side,
)
from daamctl.evaluation.statistics import nadeau_bengio
from tests.fixtures.folds import make_layout, write_items, write_method

FIRST, SECOND = (0.61, 0.66, 0.58, 0.64, 0.60), (0.58, 0.60, 0.59, 0.60, 0.55)


def row(name, values=FIRST, *, sessions=(1, 2, 3, 4, 5), corpus="iemocap", printed=True, wrong=()):
    columns = enumerate(zip(sessions, values, strict=True), 1)
    full = f"published:T/{name}"
    return PrintedSide(
        name, Row(full, name, corpus, wrong=list(wrong), fairness=None if printed else "fair"),
        {"method": name, "runs.num_folds": len(values)}, [figure_of(full, "clip", BEST_ON_TEST, values)],
        [score_of(full, f"F{column}", session, value) for column, (session, value) in columns], [f"note of {name}"],
    )  # fmt: skip


def compared(first, second):
    """The result of one pair, its row and what it is besides."""
    result = compare_printed([(first, second)])
    return result, result.comparisons[0], result.pairs[0]


def gaps_of(result):
    one, other = (by_session(result.scores, side) for side in (result.pairs[0].first, result.pairs[0].second))
    return [one[session] - other[session] for session in sorted(one)]


def test_same_sessions_are_paired_and_tested():
    result, found, pair = compared(row("a"), row("b", SECOND))
    gaps = np.subtract(FIRST, SECOND)
    assert result.kind == "both-printed"
    assert gaps_of(result) == pytest.approx(gaps)
    assert found.difference == pytest.approx(gaps.mean())
    assert (found.first_value, found.second_value) == pytest.approx((np.mean(FIRST), np.mean(SECOND)))
    assert found.p == found.p_holm == pytest.approx(nadeau_bengio(gaps.tolist(), 1, 4).p)
    assert (found.test, found.unit, found.units) == ("nadeau-bengio", "printed fold", 5)
    assert (pair.about_test, pair.not_aligned) == (PRINTED_TEST, None)
    assert result.notes == ["note of a", "note of b"]
    assert [one.name for one in result.settings.can_change] == ["method"]


def test_p_is_corrected_over_all_pairs():
    result = compare_printed([(row("a"), row("a2", SECOND)), (row("b"), row("b2", SECOND))])
    for found in result.comparisons:
        assert found.p_holm == pytest.approx(min(1.0, 2 * found.p))
    assert result.notes == ["note of a", "note of b", "note of a2", "note of b2"]


def test_columns_in_another_order_are_paired_by_session():
    order = (5, 3, 1, 2, 4)
    lora = row("lora", [FIRST[session - 1] for session in order], sessions=order)
    assert gaps_of(compared(lora, row("b", SECOND))[0]) == pytest.approx(np.subtract(FIRST, SECOND))
    notes = compared(row("lora", sessions=order), row("b"))[0].notes
    assert "the columns of a LoRA row are sessions 5, 3, 1, 2, 4 (D15)" in notes[-1]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (row("b", corpus="demo"), "the corpora differ: iemocap and demo"),
        (row("b", sessions=[None] * 5), "columns or groups are not numbered sessions"),
        (row("b", sessions=(1, 2, 3, 4, 6)), "the folds are not the same sessions"),
        (row("b", FIRST[:4], sessions=(1, 2, 3, 4)), "the folds are not the same sessions"),
    ],
)
def test_what_is_not_the_same_sessions_is_not_paired(second, reason):
    result, found, pair = compared(row("a"), second)
    assert pair.not_aligned.startswith(reason)
    assert (found.test, found.p) == (None, None)
    assert pair.about_test == "no test: the published columns cannot be paired"
    assert any(f"not compared by fold, because {reason}" in note for note in result.notes)


def test_no_test_against_ours_or_where_the_sizes_are_not_known():
    result, found, pair = compared(row("a", printed=False), row("b", SECOND))
    assert (result.kind, found.test, pair.about_test) == ("printed", None, NO_TEST)
    _, found, pair = compared(row("a", corpus="emodb"), row("b", SECOND, corpus="emodb"))
    assert (found.test, pair.about_test) == (None, "no test: n_test / n_train of the folds of emodb is unknown")


@pytest.mark.parametrize("wrong", [["mean"], ["deviation"], ["mean", "deviation"], []])
def test_a_print_that_contradicts_its_folds_is_noted(wrong):
    notes = compared(row("a", wrong=wrong), row("b", SECOND))[0].notes
    found = [note for note in notes if "cannot come from the printed folds" in note]
    text = f"published:T/a: the printed {' and '.join(wrong)} cannot come from the printed folds"
    assert found == ([text] if wrong else [])


def test_ours_is_reduced_to_what_a_printed_row_has(tmp_path):
    config = Config.model_validate({"download": {"corpus": "iemocap"}, "train": {"seeds": [1, 2]}})
    layout = make_layout(tmp_path)
    write_method(layout, config, "mha", seeds=(1, 2), changes={"run.reconstructed": "reading A"})
    folds = read_folds(layout.method("mha"))
    trained = TrainedMethod.of("toy", "mha", folds, "utterance", config, "make it")
    made = trained_side(trained, "utterance")
    best = [fold.result["metrics"]["accuracy_best_on_test"] for fold in folds]
    figures = {one.metric: (one.unit, one.mean, one.std, one.runs) for one in made.figures}
    assert figures[BEST_ON_TEST] == ("clip", *vars(over_runs(best)).values())
    assert [(one.test_group, one.fold) for one in made.scores] == [(f"Ses0{n}", n) for n in range(1, 6)]
    assert [one.value for one in made.scores] == pytest.approx(np.reshape(best, (5, 2)).mean(axis=1))
    scores = [trained.task.score(part)["balanced_accuracy"] for part in trained.items]
    assert figures["balanced_accuracy"] == ("utterance", *vars(over_runs(scores)).values())
    assert (made.row.label, made.row.published) == ("toy/mha (reconstructed)", False)
    assert made.notes == trained.notes != []
    assert made.stated == {
        "method": "mha",
        "download.corpus": "iemocap",
        "extract.encoder": "wavlm-micro",
        "train.selection": "dev-group",
        "model.layers": "all",
        "scoring.unit": "utterance",
        "runs.num_folds": 5,
        "runs.per_fold": 2,
    }
    write_method(layout, config, "none", changes={"run.layers": [9, 12]})
    few = TrainedMethod.of("toy", "none", read_folds(layout.method("none")), "clip", config, "make it")
    assert trained_side(few, "clip").stated["model.layers"] == "9, 12"


def test_seeds_of_texts_stand_beside_printed_repeats(tmp_path):
    config = Config.model_validate({"download": {"corpus": "agnews"}, "train": {"seeds": [1, 2, 3]}})
    layout = make_layout(tmp_path)
    write_items(layout, config, "mha")
    ours = trained_side(
        TrainedMethod.of("toy", "mha", read_folds(layout.method("mha")), "utterance", config, "make it"), "utterance"
    )
    assert (ours.stated["scoring.unit"], ours.stated["runs.num_folds"], ours.stated["runs.per_fold"]) == ("item", 1, 3)
    printed = row("mha", FIRST[:3], sessions=(None, None, None), corpus="agnews")
    printed.stated.update(ours.stated)
    result = compare_printed([(ours, printed)])
    assert result.settings.can_change == []
    assert result.pairs[0].not_aligned == "columns or groups are not numbered sessions"
