"""Folds: natural order of groups, no clip in two parts, and refusals that say what to change."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.splits import fold_groups, make_split, split_of
from daamctl.config import TrainConfig
from daamctl.data.spans import sentence_of
from daamctl.errors import TrainingError


def clips(groups: list[str], labels: list[str] | None = None) -> pl.DataFrame:
    """Two clips per group, one of each label unless given."""
    repeated = [name for name in groups for _ in range(2)]
    table = pl.DataFrame({"group": repeated, "label": labels or ["a", "b"] * len(groups)})
    return table.with_row_index("utterance_id").cast({"utterance_id": pl.String})


@pytest.mark.parametrize(
    ("met", "ordered"),
    [
        (["group10", "group2", "group1"], ["group1", "group2", "group10"]),
        (["10", "9", "1"], ["1", "9", "10"]),
        (["Ses05", "Ses01"], ["Ses01", "Ses05"]),
        (["b", "a", "2"], ["2", "a", "b"]),
        (["s1e10", "s1e9", "s02e1"], ["s1e9", "s1e10", "s02e1"]),
    ],
)
def test_groups_stand_in_natural_order(met: list[str], ordered: list[str]) -> None:
    assert fold_groups(pl.Series(met * 2)) == ordered


def test_group_named_by_a_raised_digit() -> None:
    assert fold_groups(pl.Series(["²", "1"])) == ["1", "²"]


def test_too_few_speakers_for_groups() -> None:
    table = clips(["a"]).with_columns(speaker=pl.lit("only one"))
    with pytest.raises(TrainingError, match="cannot be split into train, dev and test") as caught:
        make_split(table, 1, dev_group=True)
    assert caught.value.fix == (
        "its items come from 1 speaker: add others, or leave out the column speaker, and every item counts alone; "
        "results then hold for these speakers only; with two groups, write train: {selection: last} into the pipeline"
    )


def test_too_few_groups_of_texts_and_images_are_told_in_their_words() -> None:
    for column, source in (("text", "author"), ("index", "source")):
        table = clips(["a"]).with_columns(pl.lit(None).alias(column), speaker=pl.lit("only one"))
        with pytest.raises(TrainingError) as caught:
            make_split(table, 1, dev_group=False)
        assert (caught.value.fix or "").startswith(f"its items come from 1 {source}: add others")
        assert (caught.value.fix or "").endswith(f"for these {source}s only")


def test_one_sentence_for_all_groups() -> None:
    words = [f"s1-{number:04d}" for number in range(3)]
    table = pl.DataFrame({"utterance_id": words, "label": ["O", "B-PER", "O"], "speaker": "s1", "group": "a"})
    with pytest.raises(TrainingError) as caught:
        make_split(table, 1, dev_group=False)
    assert caught.value.fix == "its words come from 1 sentence: add others; an empty line ends a sentence"


@pytest.mark.parametrize("dev_group", [True, False])
def test_every_clip_stands_in_exactly_one_part(dev_group: bool) -> None:
    table = clips(["g3", "g1", "g2", "g1", "g10"])
    names = ["g1", "g2", "g3", "g10"]
    for fold in range(1, 5):
        split = make_split(table, fold, dev_group=dev_group)
        rows = np.concatenate([split.train, split.dev, split.test])
        assert sorted(rows.tolist()) == list(range(10))
        assert (split.fold, split.num_folds, split.test_group) == (fold, 4, names[fold - 1])
        assert split.dev_group == (names[fold % 4] if dev_group else None)
        group = table["group"].to_numpy()
        assert set(group[split.test]) == {split.test_group}
        assert set(group[split.dev]) == ({split.dev_group} if dev_group else set())


def test_every_group_selects_once() -> None:
    table = clips(["a", "b", "c"])
    assert [make_split(table, fold, dev_group=True).dev_group for fold in (1, 2, 3)] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("groups", "dev_group", "expected"),
    [
        (
            ["a", "b"],
            True,
            "2 group(s) (a, b) cannot be split into train, dev and test; at least 3 are needed\n"
            "  give the corpus more groups, each with its own speakers, by a group column in its table or with "
            "download: {num_groups: 3} in the pipeline; with two groups, write train: {selection: last} into "
            "the pipeline",
        ),
        (
            ["a"],
            False,
            "1 group(s) (a) cannot be split into train and test; at least 2 are needed\n"
            "  give the corpus more groups, each with its own speakers, by a group column in its table or with "
            "download: {num_groups: 2} in the pipeline",
        ),
    ],
)
def test_too_few_groups(groups: list[str], dev_group: bool, expected: str) -> None:
    with pytest.raises(TrainingError) as caught:
        make_split(clips(groups), 1, dev_group=dev_group)
    assert str(caught.value) == expected


@pytest.mark.parametrize("fold", [0, 4, -1])
def test_no_such_fold(fold: int) -> None:
    with pytest.raises(TrainingError, match=f"^fold must be 1 to 3 or 'all', got {fold}$"):
        make_split(clips(["a", "b", "c"]), fold, dev_group=True)


@pytest.mark.parametrize(
    ("labels", "fold", "part"),
    [
        (["x", "x", "x", "y", "x", "y"], 1, "test part (a)"),
        (["x", "x", "x", "y", "x", "y"], 3, "dev part (a)"),
        (["x", "x", "x", "y", "x", "y"], 2, "train part (the other groups)"),
    ],
)
def test_part_with_one_class_is_named(labels: list[str], fold: int, part: str) -> None:
    with pytest.raises(TrainingError) as caught:
        make_split(clips(["a", "b", "c"], labels), fold, dev_group=True)
    assert str(caught.value) == (
        f"fold {fold}: the {part} holds only class 'x'; at least two classes are needed\n"
        "  regroup the corpus (download.folds=stratified, a smaller download.num_groups, or a column group): "
        "every group needs several classes"
    )


def test_official_split_has_one_fold_and_holds_out_a_share_of_every_class() -> None:
    groups = ["train"] * 20 + ["test"] * 3
    labels = ["x", "y", "y", "y"] * 10 + ["x", "y"] * 3
    table = clips(groups, labels)
    assert fold_groups(table["group"]) == ["test"]
    split = make_split(table, 1, dev_group=True, dev_fraction=0.2)
    assert (split.num_folds, split.test_group, split.dev_group) == (1, "test", "20% of train")
    assert split.test.tolist() == list(range(40, 46))
    assert sorted([*split.train, *split.dev]) == list(range(40))
    assert table["label"].gather(split.dev).value_counts(sort=True).rows() == [("y", 6), ("x", 2)]
    again = make_split(table, 1, dev_group=True, dev_fraction=0.2)
    assert again.dev.tolist() == split.dev.tolist()
    whole = make_split(table, 1, dev_group=False)
    assert (whole.dev_group, len(whole.dev), len(whole.train)) == (None, 0, 40)


def test_clips_of_a_recording_are_not_held_out_from_each_other() -> None:
    table = clips(["train"] * 50 + ["test"] * 3, ["x"] * 60 + ["y"] * 40 + ["x", "y"] * 3)
    table = table.with_columns(utterance_id=(pl.col("utterance_id").cast(pl.Int64) // 5).cast(pl.String))
    split = make_split(table, 1, dev_group=True, dev_fraction=0.2)
    assert sorted([*split.train, *split.dev]) == list(range(100))
    held = table[split.dev]
    assert not {*held["utterance_id"]} & {*table[split.train]["utterance_id"]}
    assert held.group_by("label").agg(pl.col("utterance_id").n_unique()).sort("label").rows() == [("x", 2), ("y", 2)]


def test_a_class_of_one_recording_is_trained_on() -> None:
    table = clips(["train"] * 3 + ["test"] * 2, ["a", "b", "a", "b", "c", "c", *"abab"])
    table = table.with_columns(utterance_id=pl.col("utterance_id").replace("5", "4"))
    split = make_split(table, 1, dev_group=True, dev_fraction=0.9)
    assert sorted(table["label"][split.dev]) == ["a", "b"]
    assert sorted(table["label"][split.train]) == ["a", "b", "c", "c"]
    with pytest.raises(TrainingError, match="holds no recording, as no class has two"):
        make_split(clips(["train", "test"]), 1, dev_group=True)


def test_the_order_of_groups_whose_names_mean_the_same_is_fixed() -> None:
    assert {tuple(fold_groups(pl.Series(["1", "01", "2", "001"]))) for _ in range(50)} == {("001", "01", "1", "2")}


def test_official_dev_part_is_used_as_it_is() -> None:
    split = make_split(clips(["test", "dev", "train"]), 1, dev_group=True)
    parts = split.train.tolist(), split.dev.tolist(), split.test.tolist()
    assert (split.dev_group, *parts) == ("dev", [4, 5], [2, 3], [0, 1])


def words(sentences: int, group: str = "train") -> pl.DataFrame:
    """Sentences of three words each, of two entity types, and two test sentences."""
    rows = [
        (f"{part}-{number}-{position:04d}", tag, part)
        for part, count in ((group, sentences), ("test", 2))
        for number in range(count)
        for position, tag in enumerate(("O", "B-a", "B-b" if number % 2 else "I-a"))
    ]
    return pl.DataFrame(rows, schema=["utterance_id", "label", "group"], orient="row")


def test_few_shot_draws_whole_sentences_per_type() -> None:
    rows = words(20)
    train = TrainConfig(shots=4, dev_fraction=0.25)
    drawn = {seed: split_of(rows, 1, train, seed) for seed in (1, 2)}
    for split in drawn.values():
        parts = [set(sentence_of(rows["utterance_id"][part])) for part in (split.train, split.dev, split.test)]
        assert [len(part) for part in parts] == [6, 2, 2]  # 4 shots of 2 types
        assert not parts[0] & parts[1]
        assert [len(part) for part in (split.train, split.dev)] == [18, 6]
    assert not np.array_equal(drawn[1].train, drawn[2].train)
    assert np.array_equal(drawn[1].train, split_of(rows, 1, train, 1).train)
    assert split_of(rows, 1, train.model_copy(update={"selection": "last"}), 1).dev_group is None


def test_few_shot_refusals() -> None:
    with pytest.raises(TrainingError, match=r"asks for 22 sentences \(2 entity types\), the training part has 20"):
        split_of(words(20), 1, TrainConfig(shots=11))
    with pytest.raises(TrainingError, match="not made of tagged words"):
        split_of(clips(["train", "test"]).with_columns(utterance_id=pl.lit("u")), 1, TrainConfig(shots=1))


def test_few_shot_leaves_a_sentence_to_train_on() -> None:
    one_type = words(20).with_columns(pl.col("label").replace("B-b", "B-a"))
    with pytest.raises(TrainingError, match=r"train\.shots=1 draws 1 sentence \(1 entity type\); it would be held out"):
        split_of(one_type, 1, TrainConfig(shots=1))
    assert len(split_of(one_type, 1, TrainConfig(shots=1, selection="last")).train) == 3
    split = split_of(one_type, 1, TrainConfig(shots=2, dev_fraction=0.9))
    assert (len(split.train), len(split.dev)) == (3, 3)


def test_sentences_are_held_out_whole() -> None:
    rows = words(20)
    split = make_split(rows, 1, dev_group=True, dev_fraction=0.2)
    train, dev = (set(sentence_of(rows["utterance_id"][part])) for part in (split.train, split.dev))
    assert (len(train), len(dev)) == (16, 4)
    assert not train & dev


def test_the_dev_part_may_be_the_one_that_is_reported() -> None:
    rows = pl.concat([words(20), words(5, "dev").filter(pl.col("group") == "dev")])
    split = split_of(rows, 1, TrainConfig(test_part="dev", selection="best-on-test", steps=None))
    assert split.test_group == "dev"
    assert set(rows["group"][split.test]) == {"dev"}
    assert set(rows["group"][split.train]) == {"train"}
    with pytest.raises(TrainingError, match="no dev part"):
        split_of(words(20), 1, TrainConfig(test_part="dev"))
