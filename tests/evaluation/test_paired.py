"""Two trained methods on the same items: figures against `compare_methods`, what is listed, noted and refused."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.comparison import SettingDifference
from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.data.task import Task
from daamctl.errors import ArtifactError
from daamctl.evaluation.comparison import compare_methods
from daamctl.evaluation.paired import TrainedMethod, compare_paired, disagreements
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.statistics import holm, nadeau_bengio
from tests.fixtures.folds import make_layout, write_fold, write_items, write_method

COMMAND = "daamctl compare left right"


def settings(**sections):
    return Config.model_validate({"train": {"seeds": [1, 2]}, **sections})


def trained(root, side, method="mha", *, config=None, unit="utterance", skill=1.0, seeds=(1, 2), edit=None, **changes):
    """A method with synthetic folds; `edit` changes predictions, `changes` records (`__` for the dot)."""
    config, layout = config or settings(), make_layout(root, side)
    records = {key.replace("__", "."): value for key, value in changes.items()}
    write_method(layout, config, method, skill=skill, seeds=seeds, changes=records)
    for fold in read_folds(layout.method(method)) if edit else []:
        write_fold(layout, config, method, fold.fold, fold.seed, edit(fold.predictions()), changes=records)
    return TrainedMethod.of(side, method, read_folds(layout.method(method)), unit, config, f"make {side}")


def noise(seed=5):
    """Without it the fixture gives both sides the same noise."""
    rng = np.random.default_rng(seed)

    def edit(part):
        logits = np.asarray(part["logits"].to_list()) + rng.normal(size=(len(part), 4))
        return part.with_columns(logits=pl.Series(logits.tolist(), dtype=pl.List(pl.Float32)))

    return edit


def one(pair, unit="utterance"):
    return compare_paired([pair], unit, COMMAND)


def of(result, metric="accuracy"):
    """The first comparison in a metric."""
    return next(row for row in result.comparisons if row.metric == metric)


def test_figures_equal_compare_methods_with_holm_over_the_pairs(tmp_path):
    edit = noise()
    pairs = [
        (trained(tmp_path, "left", method), trained(tmp_path, "right", method, skill=0.7, edit=edit))
        for method in ("mha", "daam-v1")
    ]
    result = compare_paired(pairs, "utterance", COMMAND)
    expected = [compare_methods({part.name: part.table for part in pair}) for pair in pairs]
    assert result.kind == "paired"
    assert [entry.first for entry in result.pairs] == ["left/mha", "left/daam-v1"]
    rows = [row for alone, _ in expected for row in alone]
    for metric in Task.over_items:
        for name in ("p", "p_folds"):
            raw = [getattr(row, name) for row in rows if row.metric == metric]
            corrected = [getattr(row, f"{name}_holm") for row in result.comparisons if row.metric == metric]
            assert corrected == pytest.approx(holm(raw))
            assert corrected != pytest.approx(raw)
    alone = {"p_holm": None, "p_folds_holm": None}
    assert [replace(row, **alone) for row in result.comparisons] == [replace(row, **alone) for row in rows]
    for entry in result.pairs:
        assert entry.design.n_items == 200
        assert entry.design.seeds == {entry.first: [1, 2], entry.second: [1, 2]}
    assert result.floor == pytest.approx(2.0**-9)


def test_swapped_sides_swap_signs_and_keep_p(tmp_path):
    # the sides differ in the share tested, so a test that took the first side's would depend on the order
    left = trained(tmp_path, "left", meta__num_train_clips=200)
    right = trained(tmp_path, "right", skill=0.7, edit=noise())
    there, back = (one(pair) for pair in ((left, right), (right, left)))
    for metric in Task.over_items:
        first, second = (of(result, metric) for result in (there, back))
        assert first.difference == pytest.approx(-second.difference)
        assert first.p_folds == pytest.approx(second.p_folds)
    sizes = [fold.result["meta"] for fold in left.folds if fold.seed == 1]
    both = [part.table.group_by("fold", "item").agg(pl.col("correct").mean()) for part in (left, right)]
    gaps = both[0].join(both[1], on=["fold", "item"]).group_by("fold", maintain_order=True)
    gaps = gaps.agg(gap=(pl.col("correct") - pl.col("correct_right")).mean())["gap"].to_list()
    tested = [meta["num_test_clips"] for meta in sizes]
    trained_on = [meta["num_train_clips"] + meta["num_dev_clips"] for meta in sizes]  # both, after a refit
    assert of(there).p_folds == pytest.approx(nadeau_bengio(gaps, tested, trained_on).p)
    assert any("the test over folds uses the larger one" in note for note in there.notes)
    one_way, other_way = of(there), of(back)
    assert (one_way.wins, one_way.losses) == (other_way.losses, other_way.wins)


def test_what_one_pair_differs_in_names_its_method(tmp_path):
    pairs = [
        (trained(tmp_path, "left", method), trained(tmp_path, "right", method, run__num_parameters=number))
        for method, number in (("mha", 1234), ("daam-v1", 9))
    ]
    listed = compare_paired(pairs, "utterance", COMMAND).settings.can_change
    assert listed == [SettingDifference("model.num_parameters", 1234, 9, ["daam-v1"])]


def test_settings_read_after_training_are_listed_as_harmless(tmp_path):
    config = settings(report={"title": "Other"}, methods=["mha", "gqa"])
    pair = trained(tmp_path, "left"), trained(tmp_path, "right", config=config)
    listed = one(pair).settings
    assert listed.can_change == []
    assert [row.name for row in listed.cannot_change] == ["report.title", "methods"]


def test_identical_sides_differ_in_nothing(tmp_path):
    result = one((trained(tmp_path, "left"), trained(tmp_path, "right")))
    entry, row = result.pairs[0], of(result)
    assert (result.settings.can_change, result.settings.cannot_change) == ([], [])
    assert (row.wins, row.losses, entry.disagreements) == (0, 0, [])
    assert row.difference == 0.0
    assert result.notes[-1] == "no recorded setting that can change the results differs"


def test_most_consistent_disagreements_come_first(tmp_path):
    pair = trained(tmp_path, "left"), trained(tmp_path, "right", skill=0.7, edit=noise())
    found = disagreements(*pair)
    sides = []
    for part in pair:
        answers = {}
        for fold in part.folds:
            items = items_of(fold.predictions(), "utterance")
            for index, name in enumerate(items.ids):
                target = items.targets[index]
                answers.setdefault(name, []).append(
                    (items.predictions[index] == target, items.probabilities[index, target])
                )
        sides.append({name: np.mean(values, axis=0) for name, values in answers.items()})
    gaps = {name: sides[0][name] - sides[1][name] for name in sides[0]}
    ranked = sorted((name for name in gaps if gaps[name][0]), key=lambda n: (-abs(gaps[n][0]), -abs(gaps[n][1]), n))
    assert len(ranked) > 10
    assert [row.item for row in found] == ranked[:10]
    for row in found:
        assert [row.first_right, row.first_probability] == pytest.approx(sides[0][row.item])
        assert [row.second_right, row.second_probability] == pytest.approx(sides[1][row.item])
    assert {abs(row.first_right - row.second_right) for row in found} == {1.0}


def test_notes_name_selection_on_test_reconstruction_batches_and_stale_settings(tmp_path):
    left = trained(tmp_path, "left", "sga", seeds=(1,), run__reconstructed="reading A")
    right = trained(
        tmp_path, "right", "sga", seeds=(1,), config=settings(train={"selection": "best-on-test", "steps": None}),
        run__eval_batches={"size": 8, "order": "clip table", "clips_sha256": "0" * 64}, run__config__train__epochs=34,
    )  # fmt: skip
    assert left.notes == ["left/sga: reading A; a reconstruction, not a replication"]
    assert right.notes == [
        "right: epochs are selected on the test groups themselves (D7), so its results are inflated",
        "right/sga: predictions depend on the other clips in the batch (D1)",
        "right/sga: trained with other settings than the current ones: train.epochs: 34 (now 35)",
    ]
    result = one((left, right))
    assert set(result.notes) >= {*left.notes, *right.notes}
    assert result.pairs[0].first_label == "left/sga (reconstructed)"
    assert result.pairs[0].second_label == "right/sga"


def test_changed_code_is_noted(tmp_path):
    pair = trained(tmp_path, "left", seeds=(1,)), trained(tmp_path, "right", seeds=(1,), run__key="other")
    assert any("code of the method has changed" in note for note in one(pair).notes)


def test_family_too_large_for_its_floor_is_noted(tmp_path):
    def six(part):  # six speakers: floor 1/32, five methods: 5/32
        return part.with_columns(
            speaker=part["group"] + (part["utterance_id"].str.starts_with("f1u00")).cast(pl.String)
        )

    pairs = [
        tuple(trained(tmp_path, side, method, seeds=(1,), edit=six) for side in ("left", "right"))
        for method in ("none", "mean", "mha", "gqa", "daam-v1")
    ]
    result = compare_paired(pairs, "utterance", COMMAND)
    assert result.floor == pytest.approx(1 / 32)
    assert any("after correction over 5 methods, no p-value below 0.1562 is possible" in note for note in result.notes)


# refusals


def test_other_test_items_are_refused_with_the_settings_to_blame(tmp_path):
    left = trained(tmp_path, "left")
    right = trained(tmp_path, "right", config=settings(download={"num_groups": 4}), edit=lambda part: part.slice(3))
    with pytest.raises(ArtifactError, match="'left/mha' and 'right/mha' were not tested on the same items") as error:
        one((left, right))
    again = "different items cannot be paired. If they should be equal, make them again: make left, make right. "
    again += "To judge the items that both have: daamctl judge left/mha right/mha --common"
    assert error.value.fix == f"they differ in download.num_groups; {again}"
    right = trained(tmp_path, "right", edit=lambda part: part.slice(3))
    with pytest.raises(ArtifactError, match="not tested on the same items") as error:
        one((left, right))
    assert error.value.fix == f"their settings of download and segment agree; {again}"
    right = trained(tmp_path, "right", config=settings(download={"source": "x"}), edit=lambda part: part.slice(3))
    with pytest.raises(ArtifactError, match="not tested on the same items") as error:
        one((left, right))
    assert error.value.fix == f"they differ in download.source; {again}"


def test_other_targets_are_refused(tmp_path):
    left = trained(tmp_path, "left")
    right = trained(tmp_path, "right", edit=lambda part: part.with_columns(target=(part["target"] + 1) % 4))
    with pytest.raises(ArtifactError, match="'left/mha' and 'right/mha' were tested with different targets"):
        one((left, right))
    right = trained(tmp_path, "right", run__classes=["a", "b", "c", "d"])
    with pytest.raises(ArtifactError, match="different targets: neutral, happy, angry, sad and a, b, c, d"):
        one((left, right))


def test_clips_cut_differently_are_compared_by_utterance_only(tmp_path):
    # the ids may be the same though the clips are not: what counts are the settings
    config = settings(segment={"tail": "drop"})
    pair = [trained(tmp_path, "left", unit="clip"), trained(tmp_path, "right", unit="clip", config=config)]
    with pytest.raises(ArtifactError, match="same utterances but on different clips") as error:
        one(pair, "clip")
    assert "segment.tail" in error.value.message
    assert error.value.fix == f"compare them by utterance: {COMMAND} --unit utterance"
    pair = [
        trained(tmp_path, "left"),
        trained(tmp_path, "right", config=config, edit=lambda part: part.unique("utterance_id", maintain_order=True)),
    ]
    result = one(pair)
    assert "data.test_clips_key" in {row.name for row in result.settings.can_change}
    assert result.pairs[0].design.n_items == 200


def test_texts_are_compared_as_units_of_their_own(tmp_path):
    config, sides = Config.model_validate({"train": {"seeds": [1]}}), []
    for side, skill, clips in (("left", 0.5, 100), ("right", 2.5, 200)):
        layout = make_layout(tmp_path, side)
        write_items(layout, config, "mha", seeds=(1,), skill=skill, changes={"meta.num_train_clips": clips})
        sides.append(TrainedMethod.of(side, "mha", read_folds(layout.method("mha")), "clip", config, f"make {side}"))
    result = one(tuple(sides), "clip")
    (entry,) = result.pairs
    assert sides[0].task.item == "text"
    assert (entry.design.unit, entry.design.source_word) == ("item", "author")
    assert of(result).unit == "text"
    assert {row.speaker for row in entry.disagreements} == {None}
    assert not any("the test over folds" in note for note in result.notes)  # there is one


def test_an_undertrained_side_is_marked_and_explains_the_difference(tmp_path):
    late = {"metrics__selected_epoch": 100, "metrics__epochs": 100}
    left, right = trained(tmp_path, "left", **late), trained(tmp_path, "right", skill=0.7, edit=noise())
    result = one((left, right))
    (entry,) = result.pairs
    assert (entry.first, entry.first_label) == ("left/mha", "left/mha (undertrained)")
    assert entry.second_label == "right/mha"
    assert entry.doubt == (
        "training alone may explain this difference, whatever the p-value: left/mha (undertrained)"
    )  # fmt: skip
    assert entry.fairness["first"].unfinished == 10
    assert "left/mha: undertrained: selected one of its last epochs in 10 of 10 runs" in result.notes
    fair = one((trained(tmp_path, "other"), right)).pairs[0]
    assert fair.doubt is None
    probe = replace(left, method="ridge-mean", fairness=replace(left.fairness, status="learned nothing", as_probe=True))
    assert one((probe, right)).pairs[0].doubt is None  # solved in closed form


def test_identical_predictions_are_noted(tmp_path):
    result = one((trained(tmp_path, "left"), trained(tmp_path, "right")))
    said = "the predictions of left/mha and right/mha are identical in every fold: "
    assert said + "they are the same method with the same settings" in result.notes
