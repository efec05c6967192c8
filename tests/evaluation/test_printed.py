"""Printed rows: which folds may be paired, what is tested, and ours reduced to what a printed row has."""

import numpy as np
import pytest

from daamctl.artifacts.comparison import FoldAccuracy, PrintCheck, RowFigures
from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.evaluation.paired import TrainedMethod
from daamctl.evaluation.printed import NO_TEST, PRINTED_TEST, Row, compare_printed, trained_row
from daamctl.evaluation.statistics import nadeau_bengio
from tests.fixtures.folds import make_layout, write_items, write_method

FIRST, SECOND = (0.61, 0.66, 0.58, 0.64, 0.60), (0.58, 0.60, 0.59, 0.60, 0.55)


def row(
    name, values=FIRST, *, sessions=(1, 2, 3, 4, 5), corpus="iemocap", printed=True, mean_agrees=True, std_is="sample"
):
    disagrees = not mean_agrees or std_is == "neither"
    columns = enumerate(zip(sessions, values, strict=True), 1)
    figures = RowFigures(
        name=f"published:T/{name}", label=name, corpus=corpus, fairness=None,
        print=PrintCheck("", mean_agrees, std_is, disagrees) if printed else None,
        as_published=over_runs(values), as_reported=None,
        folds=[FoldAccuracy(f"F{column}", session, value) for column, (session, value) in columns],
    )  # fmt: skip
    return Row(name, {"method": name, "runs.num_folds": len(values)}, figures, [f"note of {name}"])


def entry_of(first, second):
    return compare_printed([(first, second)]).comparisons[0]


def test_same_sessions_are_paired_and_tested():
    result = compare_printed([(row("a"), row("b", SECOND))])
    entry = result.comparisons[0]
    gaps = np.subtract(FIRST, SECOND)
    assert result.kind == "both-printed"
    assert [fold.difference for fold in entry.folds] == pytest.approx(gaps)
    assert entry.difference == pytest.approx(gaps.mean())
    assert entry.test.p == pytest.approx(nadeau_bengio(gaps.tolist(), 1, 4).p)
    assert entry.test.p_holm == entry.test.p
    assert (entry.about_test, entry.not_aligned, entry.same_columns) == (PRINTED_TEST, None, True)
    assert result.notes == ["note of a", "note of b"]
    assert [one.name for one in result.settings.can_change] == ["method"]


def test_p_is_corrected_over_all_pairs():
    result = compare_printed([(row("a"), row("a2", SECOND)), (row("b"), row("b2", SECOND))])
    for entry in result.comparisons:
        assert entry.test.p_holm == pytest.approx(min(1.0, 2 * entry.test.p))
    assert result.notes == ["note of a", "note of b", "note of a2", "note of b2"]


def test_columns_in_another_order_are_paired_by_session():
    order = (5, 3, 1, 2, 4)
    entry = entry_of(row("lora", [FIRST[session - 1] for session in order], sessions=order), row("b", SECOND))
    assert [fold.difference for fold in entry.folds] == pytest.approx(np.subtract(FIRST, SECOND))
    assert not entry.same_columns
    notes = compare_printed([(row("lora", sessions=order), row("b"))]).notes
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
    result = compare_printed([(row("a"), second)])
    entry = result.comparisons[0]
    assert entry.not_aligned.startswith(reason)
    assert (entry.folds, entry.test) == (None, None)
    assert entry.about_test == "no test: the published columns cannot be paired"
    assert any(f"not compared by fold, because {reason}" in note for note in result.notes)


def test_no_test_against_ours_or_where_the_sizes_are_not_known():
    entry = entry_of(row("a", printed=False), row("b", SECOND))
    assert (entry.test, entry.about_test) == (None, NO_TEST)
    assert compare_printed([(row("a", printed=False), row("b"))]).kind == "printed"
    entry = entry_of(row("a", corpus="emodb"), row("b", SECOND, corpus="emodb"))
    assert (entry.test, entry.about_test) == (
        None,
        "no test: n_test / n_train of the folds of emodb is unknown",
    )


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"mean_agrees": False}, "mean"), ({"std_is": "neither"}, "deviation"), ({}, None),
     ({"mean_agrees": False, "std_is": "neither"}, "mean and deviation")],
)  # fmt: skip
def test_a_print_that_contradicts_its_folds_is_noted(options, wrong):
    notes = compare_printed([(row("a", **options), row("b", SECOND))]).notes
    found = [note for note in notes if "cannot come from the printed folds" in note]
    text = f"published:T/a: the printed {wrong} cannot come from the printed folds"
    assert found == ([text] if wrong else [])


def test_ours_is_reduced_to_what_a_printed_row_has(tmp_path):
    config = Config.model_validate({"download": {"corpus": "iemocap"}, "train": {"seeds": [1, 2]}})
    layout = make_layout(tmp_path)
    write_method(layout, config, "mha", seeds=(1, 2), changes={"run.reconstructed": "reading A"})
    folds = read_folds(layout.method("mha"))
    trained = TrainedMethod.of("toy", "mha", folds, "utterance", config, "make it")
    made = trained_row(trained, "utterance")
    best = [fold.result["metrics"]["accuracy_best_on_test"] for fold in folds]
    assert made.figures.as_published == over_runs(best)
    assert [(fold.fold, fold.session) for fold in made.figures.folds] == [(f"Ses0{n}", n) for n in range(1, 6)]
    assert [fold.value for fold in made.figures.folds] == pytest.approx(np.reshape(best, (5, 2)).mean(axis=1))
    scores = [trained.task.score(part)["balanced_accuracy"] for part in trained.items]
    assert made.figures.as_reported["balanced_accuracy"] == over_runs(scores)
    assert made.figures.label == "toy/mha (reconstructed)"
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
    assert trained_row(few, "clip").stated["model.layers"] == "9, 12"


def test_seeds_of_texts_stand_beside_printed_repeats(tmp_path):
    config = Config.model_validate({"download": {"corpus": "agnews"}, "train": {"seeds": [1, 2, 3]}})
    layout = make_layout(tmp_path)
    write_items(layout, config, "mha")
    ours = trained_row(
        TrainedMethod.of("toy", "mha", read_folds(layout.method("mha")), "utterance", config, "make it"), "utterance"
    )
    assert (ours.stated["scoring.unit"], ours.stated["runs.num_folds"], ours.stated["runs.per_fold"]) == ("item", 1, 3)
    printed = row("mha", FIRST[:3], sessions=(None, None, None), corpus="agnews")
    printed.stated.update(ours.stated)
    result = compare_printed([(ours, printed)])
    assert result.settings.can_change == []
    assert result.comparisons[0].not_aligned == "columns or groups are not numbered sessions"
