"""Groups: speaker-disjoint, of about equal size or equal class shares, whatever the order of the rows."""

from __future__ import annotations

import hashlib

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daamctl.artifacts.splits import PAIR
from daamctl.corpora.groups import (
    assign_groups,
    cross_groups,
    even_number,
    official_groups,
    part_and_rest,
    part_of,
    parts_of,
    unevenness,
    with_test_part,
)


def test_of_two_words_for_parts_the_last_counts() -> None:
    assert parts_of({"cv-valid-train", "cv-valid-test"}) == {"cv-valid-train": "train", "cv-valid-test": "test"}
    assert parts_of({"train_splits", "train_dev_x"}) == {}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("news-bydate-Train", "train"),
        ("dev-clean-2", "dev"),
        ("valid train", "train"),
        ("C50train", "train"),
        ("CDR_TestSet", "test"),
        ("contest", None),
        ("train_dev_x", None),
        ("x", None),
    ],
)
def test_the_part_of_a_name(name: str, part: str | None) -> None:
    assert part_of(name) == part


def test_what_is_named_for_an_evaluation_is_the_dev_part_beside_a_test_part() -> None:
    assert parts_of(["LA_train", "LA_eval"]) == {"LA_train": "train", "LA_eval": "test"}
    assert parts_of(["train", "evaluation", "test"]) == {"train": "train", "evaluation": "dev", "test": "test"}
    assert parts_of(["train", "eval", "more"]) == parts_of(["train", "test_of_train"]) == {}


def shuffled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sample(fraction=1.0, shuffle=True, seed=1)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(1, 8))
def test_groups_are_speaker_disjoint_and_balanced(speakers: list[int], num_groups: int) -> None:
    rows = pl.DataFrame({"speaker": [f"s{number}" for number in speakers]})
    grouped = assign_groups(rows, num_groups)
    assert grouped.group_by("speaker").agg(pl.col("group").n_unique())["group"].max() == 1
    names = sorted(grouped["group"].unique())
    assert names == [f"group{number}" for number in range(1, min(num_groups, len(set(speakers))) + 1)]
    sizes = grouped.group_by("group").len()["len"].to_list()
    largest_speaker = max(speakers.count(number) for number in set(speakers))
    assert max(sizes) - min(sizes) <= largest_speaker
    assert dict(grouped.unique().rows()) == dict(assign_groups(shuffled(rows), num_groups).unique().rows())


def test_largest_speakers_are_placed_first() -> None:
    rows = pl.DataFrame({"speaker": [*"aaaaabbbccd"]})
    groups = dict(assign_groups(rows, 2).unique().rows())
    assert groups == {"a": "group1", "b": "group2", "c": "group2", "d": "group1"}


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=200), st.integers(1, 8))
def test_items_of_nobody_are_dealt_out_class_by_class(labels: list[str], num_groups: int) -> None:
    rows = pl.DataFrame({"speaker": [f"u{number}" for number in range(len(labels))], "label": labels})
    grouped = assign_groups(rows, num_groups, stratify=True)
    groups = [f"group{number}" for number in range(1, min(num_groups, len(labels)) + 1)]
    for wanted in (*set(labels), None):
        chosen = grouped if wanted is None else grouped.filter(pl.col("label") == wanted)
        counts = [chosen.filter(pl.col("group") == name).height for name in groups]
        assert max(counts) - min(counts) <= 1  # the remainders of the classes go to different groups
    assert sorted(grouped.rows()) == sorted(assign_groups(shuffled(rows), num_groups, stratify=True).rows())


def test_stratified_order_is_not_that_of_the_names() -> None:
    rows = pl.DataFrame({"speaker": [f"u{number:03d}" for number in range(100)], "label": ["x"] * 100})
    groups = assign_groups(rows, 5, stratify=True)["group"].to_list()
    assert groups != [f"group{number % 5 + 1}" for number in range(100)]
    assert groups[:5] == ["group4", "group3", "group5", "group5", "group3"]  # a hash: the same on every machine


def test_speakers_of_one_class_are_spread_over_the_groups() -> None:
    """Sizes alone would put both speakers of class y into one group."""
    counts = {"a": {"x": 6}, "b": {"x": 6}, "c": {"y": 2}, "d": {"y": 2}, "e": {"x": 4}, "f": {"x": 4}}
    rows = [(name, label) for name, own in counts.items() for label, n in own.items() for _ in range(n)]
    grouped = assign_groups(pl.DataFrame(rows, schema=["speaker", "label"], orient="row"), 2, stratify=True)
    found = dict(grouped.group_by("group", "label").len().select(pl.concat_str("group", "label"), "len").rows())
    assert found == {"group1x": 10, "group2x": 10, "group1y": 2, "group2y": 2}
    assert grouped.group_by("speaker").agg(pl.col("group").n_unique())["group"].max() == 1


def test_a_rare_class_is_spread_before_a_frequent_one() -> None:
    """By squares of shares of the classes: the last speaker goes to 8 of 15 x and 1 of 5 y, not to 5 x and 3 y."""
    counts = {"a": {"x": 3, "y": 2}, "b": {"x": 2, "y": 1}, "c": {"x": 2, "y": 1}, "d": {"x": 8, "y": 1}}
    rows = [(name, label) for name, own in counts.items() for label, n in own.items() for _ in range(n)]
    grouped = assign_groups(pl.DataFrame(rows, schema=["speaker", "label"], orient="row"), 2, stratify=True)
    last = max("bc", key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    found = dict(grouped.select("speaker", "group").unique().rows())
    assert found == {"a": "group2", "b": "group2", "c": "group2", "d": "group1"} | {last: "group1"}


def test_crossed_groups_keep_those_that_share_no_speaker() -> None:
    rows = pl.DataFrame([(name, text) for name in "abcd" for text in "xyz"], ["speaker", "sentence"], orient="row")
    apart = rows.with_columns(group=pl.Series([*["one"] * 3, *["two"] * 6, *["one"] * 3]))
    for given_, kept in ((apart, True), (apart.with_columns(group=pl.Series(["one", "two"] * 6)), False)):
        names = cross_groups(given_, 3)["group"].str.extract_groups(PAIR.format(r"(\d+)", r"(\d+)"))
        crossed = rows.with_columns(names.struct.rename_fields(["of_speaker", "of_sentence"]).struct.unnest())
        for unit in ("speaker", "sentence"):
            assert crossed.group_by(unit).agg(pl.col(f"of_{unit}").n_unique())[f"of_{unit}"].max() == 1
        assert (crossed["of_speaker"].to_list() == [{"one": "1", "two": "2"}[one] for one in apart["group"]]) is kept


def test_number_of_groups_that_divides() -> None:
    def of(*sizes: int) -> pl.DataFrame:
        return pl.DataFrame({"speaker": [f"s{index}" for index, size in enumerate(sizes) for _ in range(size)]})

    six = of(*[10] * 6)
    assert unevenness(assign_groups(six, 5)) == 20 / 12
    assert even_number(six, 5) == 6
    assert even_number(of(*[10] * 9), 5) == 5  # 20, 20, 20, 20, 10
    assert even_number(of(*[10] * 8), 7) == 8
    assert even_number(of(*[10] * 12), 5) == 5  # 30 is 1.25 times the mean of 24
    assert even_number(of(9, *[10] * 11), 5) == 6  # 30 is more than that of 23.8; 4 is as near, but less
    assert even_number(of(60, 6, 6, 6), 3) is None


def in_groups(*names: str | None) -> pl.DataFrame:
    return pl.DataFrame({"group": names}, schema={"group": pl.String})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("Train", "Testing", "valid"), ["train", "test", "dev"]),
        (("Train", "Test"), ["train", "test"]),
        (("Train", "valid"), ["Train", "valid"]),  # no test part
        (("Train", "Test", "Session3"), ["Train", "Test", "Session3"]),  # folds
    ],
)
def test_groups_of_an_official_split_get_its_names(names: tuple[str, ...], expected: list[str]) -> None:
    assert official_groups(in_groups(*names))["group"].to_list() == expected


INSTEAD = "no test part with labels, so the validation part is the test part"


@pytest.mark.parametrize(
    ("names", "expected", "told"),
    [
        (("train", "Valid"), ["train", "test"], [INSTEAD]),
        (("train", "valid", "test"), ["train", "valid", "test"], []),
        (
            ("train", "dev_matched", "dev_mismatched"),
            ["train", "test", "test"],
            ["read as parts of an official split: dev_matched = dev, dev_mismatched = dev", INSTEAD],
        ),
        (
            ("train", "dev_matched", "test_matched"),  # of MultiNLI
            ["train", "dev", "test"],
            ["read as parts of an official split: dev_matched = dev, test_matched = test"],
        ),
        (("dev-clean", "test-clean", "test-other"), ["dev-clean", "test-clean", "test-other"], []),  # folds
        (("train", "train"), None, []),
        (("train", None), None, []),
        (("a", "b"), ["a", "b"], []),
    ],
)
def test_the_dev_part_stands_in_for_a_test_part(
    names: tuple[str | None, ...], expected: list[str] | None, told: list[str]
) -> None:
    rows, found = with_test_part(in_groups(*names))
    assert found == told
    assert (rows["group"].to_list() if "group" in rows.columns else None) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Train_clean", ("train", "_clean")),
        ("clean-test", ("test", "clean-")),
        ("r8-train-all-terms", ("train", "r8--all-terms")),
        ("contest.test", ("test", "contest.")),
        ("clean", None),
        ("retrain", None),
    ],
)
def test_a_part_is_a_word_of_a_name(name: str, expected: tuple[str, str] | None) -> None:
    assert part_and_rest(name) == expected
