"""Paired comparisons on synthetic items: independent figures, refusals, and what happens without speakers."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import optimize, stats

from daamctl.artifacts.results import read_folds
from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import Design, Family
from daamctl.compute.progress import Progress
from daamctl.config import Config
from daamctl.data.sign_flip import paired_sign_flip
from daamctl.data.task import TASKS, Task
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation import comparison
from daamctl.evaluation.comparison import (
    SCHEMA,
    compare_methods,
    item_table,
    method_intervals,
    not_worse,
    with_least_trained,
)
from daamctl.evaluation.engine import mean_intervals
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.statistics import holm, minimal_detectable_difference, nadeau_bengio
from daamctl.store.records import parse_record
from tests.fixtures.folds import make_layout, predictions_frame, write_fold

FOLDS, PER_SPEAKER, CLASSES = 5, 30, 4


def make_table(skill=0.7, *, rng=0, seeds=(1, 2, 3), speakers=2, folds=FOLDS):
    """Items of one method: `speakers` per fold; speaker and class of every item are the same for every method."""
    fixed, own = np.random.default_rng(99), np.random.default_rng(rng)
    rows = []
    for fold in range(1, folds + 1):
        for index in range(speakers * PER_SPEAKER):
            speaker = f"S{fold}{'FMXYZ'[index % speakers]}"
            # The second speaker of fold 1 lacks class 3.
            target = int(fixed.integers(0, 3 if speaker == "S1M" else CLASSES))
            rows += [
                (f"{fold}-{index:03d}", speaker, fold, seed, target, bool(own.random() < skill), 60 + fold, 240)
                for seed in seeds
            ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def shares(table):
    """item -> (speaker, fold, target, share of seeds right), in plain Python."""
    found = {}
    for row in table.iter_rows(named=True):
        entry = found.setdefault(row["item"], (row["speaker"], row["fold"], row["target"], []))
        entry[3].append(row["correct"])
    return {item: (*entry[:3], np.mean(entry[3])) for item, entry in found.items()}


def of_pair(tables, index=0, **changes):
    """Metric -> comparison of one pair."""
    rows, _ = compare_methods(tables, **changes)
    pairs = list(dict.fromkeys((row.first, row.second) for row in rows))
    return {row.metric: row for row in rows if (row.first, row.second) == pairs[index]}


def compare(**changes):
    tables = {"a": make_table(0.75, rng=1), "b": make_table(0.6, rng=2), "c": make_table(0.7, rng=3)}
    return compare_methods(tables, **changes)


def test_figures_equal_an_independent_computation():
    a, b = make_table(0.75, rng=1), make_table(0.6, rng=2)
    result = of_pair({"a": a, "b": b})
    left, right = shares(a), shares(b)
    rows = [(speaker, fold, target, share - right[item][3]) for item, (speaker, fold, target, share) in left.items()]
    speaker, fold, target, d = (np.array(column) for column in zip(*rows, strict=True))
    size = np.bincount(target)

    def balanced(mask):
        return np.mean([d[mask & (target == c)].mean() for c in np.unique(target[mask])])

    everything = np.ones(len(d), dtype=bool)
    expected = {
        "accuracy": (
            d.mean(),
            np.ones(len(d)),
            [d[fold == k].mean() for k in range(1, 6)],
        ),
        "balanced_accuracy": (
            balanced(everything),
            1 / size[target],
            [balanced(fold == k) for k in range(1, 6)],
        ),
    }
    for metric, (difference, weights, folds) in expected.items():
        figures = result[metric]
        sums, sizes = (
            np.array([part[speaker == name].sum() for name in np.unique(speaker)]) for part in (weights * d, weights)
        )
        assert figures.difference == pytest.approx(sums.sum() / sizes.sum())
        assert figures.difference == pytest.approx(difference)
        assert figures.first_value - figures.second_value == pytest.approx(difference)
        assert figures.low < difference < figures.high
        assert (figures.test, figures.unit, figures.units) == ("sign-flip", "speaker", 10)
        assert figures.p == paired_sign_flip(sums)["p"]
        # The ends of the interval are just rejected: more than 5 % of all flips are as far from zero beyond them.
        for end, inwards in ((figures.low, 1), (figures.high, -1)):
            for step, kept in ((1e-6, True), (-1e-6, False)):
                assert (paired_sign_flip(sums - (end + inwards * step) * sizes)["p"] > 0.05) == kept
        assert figures.p_folds == pytest.approx(nadeau_bengio(folds, 63, 240).p)  # tested: 61 to 65 clips
        left_over = (sums - difference * sizes) / sizes.mean()
        assert figures.detectable == pytest.approx(minimal_detectable_difference(left_over))
        assert figures.wins == sum(left[item][3] > 0.5 >= right[item][3] for item in left)
        assert figures.losses == sum(right[item][3] > 0.5 >= left[item][3] for item in left)
        assert figures.wins + figures.losses + figures.ties == len(left) == 300


def test_a_speaker_counts_by_its_items_and_may_lack_a_class():
    """Speaker A: one item of class 0 (won); speaker B: two of class 0 (one won) and one of class 1 (lost)."""
    speakers = ["A", "B", "B", "B", "C", "D", "E"]
    targets = [0, 0, 0, 1, 1, 1, 1]
    first, second = [1, 1, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]
    tables = {
        name: pl.DataFrame(
            [(f"u{i}", speakers[i], 1 + i % 2, 1, targets[i], bool(right[i]), 3, 4) for i in range(7)],
            schema=SCHEMA, orient="row",
        )
        for name, right in (("x", first), ("y", second))
    }  # fmt: skip
    figures = of_pair(tables)
    assert figures["accuracy"].difference == pytest.approx(1 / 7)
    # Sums and numbers of items of the speakers, over the mean number of items.
    sums, sizes = np.array([1, 0, 0, 0, 0]) / 1.4, np.array([1, 3, 1, 1, 1]) / 1.4
    assert figures["accuracy"].detectable == pytest.approx(minimal_detectable_difference(sums - sizes / 7))
    assert figures["balanced_accuracy"].difference == pytest.approx((2 / 3 - 1 / 4) / 2)
    # Weights 1/3 (class 0) and 1/4 (class 1) add up to 2: speaker B has 1/3 + 0 - 1/4 of 1/3 + 1/3 + 1/4.
    sums, sizes = np.array([4, 1, 0, 0, 0]) / 12 * 5 / 2, np.array([4, 11, 3, 3, 3]) / 12 * 5 / 2
    difference = figures["balanced_accuracy"].difference
    assert figures["balanced_accuracy"].detectable == pytest.approx(
        minimal_detectable_difference(sums - difference * sizes)
    )


def test_seeds_are_averaged_not_counted():
    """Copies of a run under further seeds are no further evidence."""
    one = {"a": make_table(0.7, rng=1, seeds=(1,)), "b": make_table(0.65, rng=2, seeds=(1,))}
    copies = {
        name: pl.concat([table.with_columns(pl.lit(seed, pl.Int64).alias("seed")) for seed in range(20)])
        for name, table in one.items()
    }
    first, second = (of_pair(tables) for tables in (one, copies))
    for metric, row in first.items():
        more = {name: 20 * getattr(row, name) for name in ("runs", "ahead", "behind")}
        assert second[metric] == replace(row, **more)


def test_a_win_takes_more_than_half_of_the_seeds():
    """Of two seeds `a` gets u right twice, v once and w never; `b` gets all three right."""
    rights = {
        "a": {"u": (True, True), "v": (True, False), "w": (False, False)},
        "b": dict.fromkeys("uvw", (True, True)),
    }
    tables = {
        method: pl.DataFrame(
            [(item, "S", 1, seed, 0, right[seed], 3, 4) for item, right in items.items() for seed in (0, 1)],
            schema=SCHEMA, orient="row",
        )
        for method, items in rights.items()
    }  # fmt: skip
    result = of_pair(tables)["accuracy"]
    assert (result.wins, result.losses, result.ties) == (0, 2, 1)


def test_order_of_rows_does_not_matter():
    tables = {"a": make_table(0.75, rng=1), "b": make_table(0.6, rng=2)}
    turned = {name: table.sample(fraction=1.0, shuffle=True, seed=4) for name, table in tables.items()}
    assert compare_methods(turned) == compare_methods(tables)


def test_one_family_is_corrected_together():
    against, pairs = compare(reference="b"), compare()
    expected = (("b", "a"), ("b", "c")), (("a", "b"), ("a", "c"), ("b", "c"))
    for (rows, family), pairs_of in zip((against, pairs), expected, strict=True):
        assert [(row.first, row.second) for row in rows] == [pair for pair in pairs_of for _ in Task.over_items]
        assert family.size == len(pairs_of)
        for metric in Task.over_items:
            own = [row for row in rows if row.metric == metric]
            assert [row.p_holm for row in own] == pytest.approx(holm([row.p for row in own]))
            assert [row.p_folds_holm for row in own] == pytest.approx(holm([row.p_folds for row in own]))
    turned = pairs[0][0].turned()
    names = ("first", "second", "metric", "difference", "p", "wins", "losses", "ahead", "behind")
    assert [getattr(turned, name) for name in names] == [getattr(against[0][0], name) for name in names]
    assert (turned.low, turned.high) == (-pairs[0][0].high, -pairs[0][0].low)
    family = pairs[1]
    assert (family.methods, family.size, family.alpha, family.reference) == (["a", "b", "c"], 3, 0.05, None)
    assert (family.floor, family.floor_holm) == (2**-9, 3 * 2**-9)
    assert against[1].reference == "b"
    narrow, wide = compare(alpha=0.1)[0][0], pairs[0][0]
    assert wide.low < narrow.low < narrow.high < wide.high
    assert family.design == Design(
        unit="speaker", unit_word="speaker", source_word="speaker", reason="10 speakers are tested",
        n_units=10, n_items=300, n_speakers=10, n_folds=5, seeds={name: [1, 2, 3] for name in "abc"},
    )  # fmt: skip
    with pytest.raises(UnknownNameError, match="unknown method 'd'"):
        compare(reference="d")


def test_a_planted_difference_is_found_and_none_is_not():
    rng = np.random.default_rng(0)
    found = {0.0: 0, 0.08: 0}
    for shift in found:
        for _ in range(60):
            one, two = (int(value) for value in rng.integers(0, 2**31, 2))
            tables = {"a": make_table(0.65 + shift, rng=one, seeds=(1,)), "b": make_table(0.65, rng=two, seeds=(1,))}
            found[shift] += of_pair(tables)["accuracy"].p < 0.05
    assert stats.binomtest(found[0.0], 60, 0.05).pvalue > 0.01
    assert found[0.08] > 20


def test_identical_methods_do_not_differ():
    table = make_table()
    for part in of_pair({"a": table, "b": table}).values():
        assert (part.wins, part.losses, part.ties) == (0, 0, 300)
        assert part.difference == 0.0 == part.low + part.high
        assert part.high == pytest.approx(1 - 0.025 ** (1 / 300), abs=0.005)  # of so many items, some may differ
        assert part.p == part.p_holm == part.floor == 1.0
        assert part.p_folds is part.p_folds_holm is part.detectable is None


def test_result_survives_json():
    rows, family = compare()
    for one, kind in ((family, Family), (rows[0], Compared)):
        text = json.dumps(asdict(one), allow_nan=False)
        assert parse_record(json.loads(text), kind, path=Path("c.json"), fix="") == one


def test_one_method_alone_compares_with_nothing():
    rows, family = compare_methods({"a": make_table()})
    assert rows == []
    assert family.size == 0


def relabelled(table, where):
    return table.with_columns(pl.when(where).then(7).otherwise("target").alias("target"))


def sized(table, name, where):
    return table.with_columns(pl.when(where).then(200).otherwise(name).alias(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table.filter(pl.col("fold") != 3),
            "'b' lacks 60 of 300 and has 0 others, e.g. '3-000' of fold 3",
        ),
        (
            lambda table: table.with_columns(pl.col("item").str.replace("5-059", "5-999")),
            "'b' lacks 1 of 300 and has 1 others, e.g. '5-059' of fold 5",
        ),
        (
            lambda table: table.with_columns(pl.col("fold").replace({1: 2, 2: 1})),
            "'b' lacks 120 of 300 and has 120 others, e.g. '1-000' of fold 1",
        ),
        (
            lambda table: table.filter(pl.col("fold") != 3).with_columns(pl.col("fold").replace({1: 2, 2: 1})),
            "'b' lacks 60 of 300 and has 0 others, e.g. '3-000' of fold 3",
        ),
        (
            lambda table: relabelled(table, pl.col("item") == "2-004"),
            "'a' and 'b' were tested with different targets: 1 of 300 items differ, e.g. '2-004': . and 7",
        ),
        (
            lambda table: table.with_columns(pl.col("speaker").replace({"S4F": None})),
            "'a' and 'b' were tested with different speakers: 30 of 300 items differ, e.g. '4-000': S4F and None",
        ),
        (
            lambda table: pl.concat([table, table.filter(pl.col("item") == "2-004").head(1)]),
            "test item '2-004' of 'b' occurs more than once in fold 2, seed 1 .2 such rows.",
        ),
        (
            lambda table: relabelled(table, (pl.col("item") == "2-004") & (pl.col("seed") == 2)),
            "1 test items of 'b' change their target from seed to seed, e.g. '2-004' in fold 2",
        ),
        (
            lambda table: sized(table, "n_train", pl.col("fold") == 3),
            "'a' and 'b' were tested with different training-clip counts: 60 of 300 items differ, e.g. '3-000': "
            "240 and 200",
        ),
        (
            lambda table: sized(table, "n_test", pl.col("fold") == 3),
            "'a' and 'b' were tested with different test-clip counts: 60 of 300 items differ, e.g. '3-000': 63 and 200",
        ),
        (
            lambda table: sized(table, "n_train", (pl.col("fold") == 3) & (pl.col("seed") == 2)),
            "60 test items of 'b' change their training-clip count from seed to seed, e.g. '3-000' in fold 3",
        ),
    ],
)
def test_runs_on_other_items_are_refused(change, message):
    with pytest.raises(ArtifactError, match=message) as error:
        compare_methods({"a": make_table(rng=1), "b": change(make_table(rng=2))})
    assert "\n" not in error.value.message


def test_methods_with_and_without_a_refit_count_the_fewer_clips():
    refitted, plain = make_table(rng=1).with_columns(pl.col("n_train") + 60), make_table(rng=2)
    found = of_pair(with_least_trained({"a": refitted, "b": plain}))["accuracy"]
    assert found == of_pair({"a": make_table(rng=1), "b": plain})["accuracy"]


def without_speakers(table):
    return table.with_columns(pl.lit(None, pl.String).alias("speaker"))


def one_unknown(table):
    return table.with_columns(pl.col("speaker").replace({"S4F": None}))


def one_speaker_in_two_folds(table):
    return table.with_columns(pl.col("speaker").replace({"S6F": "S1F"}))


@pytest.mark.parametrize(
    ("sizes", "change", "unit", "n", "reason"),
    [
        ({}, without_speakers, "fold", 5, "the speaker of 300 of 300 test items is unknown; it runs over the 5 folds"),
        ({}, one_unknown, "fold", 5, "the speaker of 30 of 300 test items is unknown; it runs over the 5 folds"),
        ({"speakers": 1, "folds": 6}, one_speaker_in_two_folds, "speaker", 5, "5 speakers are tested"),
        ({"speakers": 1}, None, "fold", 5, "each fold tests one speaker; it runs over the 5 folds"),
        ({"speakers": 1, "folds": 10}, None, "fold", 10, "each fold tests one speaker; it runs over the 10 folds"),
        ({"folds": 2}, None, "fold", 2, "only 4 speakers are tested, 5 are needed; it runs over the 2 folds"),
        ({"folds": 1, "speakers": 5}, None, "speaker", 5, "5 speakers are tested"),
    ],
)
def test_where_speakers_cannot_carry_the_test_folds_do(sizes, change, unit, n, reason):
    tables = {name: make_table(skill, rng=1, **sizes) for name, skill in (("a", 0.9), ("b", 0.4))}
    rows, result = compare_methods({name: change(t) if change else t for name, t in tables.items()})
    assert result.design.unit == unit
    assert reason in result.design.reason
    assert (rows[0].unit, rows[0].units) == (unit, n)
    assert rows[0].p == rows[0].floor == result.floor == 2.0 ** (1 - n)
    assert rows[0].interval == (None if n < 6 else "sign-flip")
    assert (rows[0].low is None) == (rows[0].detectable_here is None) == (n < 6)
    assert rows[0].detectable is not None
    told = f"no p-value below {2.0 ** (1 - n):.4g} is possible, so no difference can be significant at 0.05, "
    told += "and none has an interval"
    assert (told in result.notes) == (n < 6)
    assert (result.design.reason in result.notes) == (unit == "fold")


def test_one_fold_without_speakers_has_no_test():
    tables = {name: without_speakers(make_table(rng=rng, folds=1)) for name, rng in (("a", 1), ("b", 2))}
    (part, _), result = compare_methods(tables)
    assert result.design.unit is None
    assert result.design.n_speakers is None
    assert result.notes[0] == (
        "no test is available: the speaker of 60 of 60 test items is unknown, and there is one fold"
    )
    assert part.low is part.p is part.p_folds is part.detectable is part.test is part.interval is None
    assert part.difference == pytest.approx(part.first_value - part.second_value)
    assert result.floor is result.floor_holm is None


def test_notes_name_what_limits_the_result():
    notes = compare()[1].notes
    assert notes == [
        "speakers of one fold are tested on the same trained models, so they are not fully independent",
        "accuracy and balanced accuracy are two families; do not report the better of the two",
    ]
    tables = {f"m{index}": make_table(rng=index, seeds=(1,)) for index in range(8)}
    tables["m0"] = make_table(rng=0, seeds=(1, 2))
    _, result = compare_methods(tables)
    assert result.floor_holm == 28 / 512
    assert result.notes[0] == (
        "after correction over 28 comparisons, no p-value below 0.05469 is possible, so no difference can be "
        "significant at 0.05; the tiers ask for less"
    )
    assert result.notes[-1] == "methods differ in their seeds, so some scores are averages over fewer runs than others"
    tables["m0"] = make_table(rng=0, seeds=(2,))
    assert compare_methods(tables)[1].notes[-1] == "methods differ in their seeds"


def test_interval_of_one_method():
    table = make_table()
    result = method_intervals({"a": table}, level=0.9)["a"]
    right = np.array([share for *_, share in shares(table).values()])
    assert result.word == "speaker"
    assert result.metrics["accuracy"].value == pytest.approx(right.mean())
    assert result.metrics["accuracy"].level == 0.9
    # an average of seeds tells as much as the number of single answers that would vary as little
    worth = len(right) * right.mean() * (1 - right.mean()) / right.var()
    speakers = np.unique([speaker for speaker, *_ in shares(table).values()], return_inverse=True)[1]
    assert [result.metrics["accuracy"]] == mean_intervals([right], speakers, level=0.9, items=worth)
    for metric in Task.over_items:
        assert result.metrics[metric].low < result.metrics[metric].value < result.metrics[metric].high
    alone = method_intervals({"a": without_speakers(make_table(folds=1))})["a"]
    assert alone.metrics == {}
    with pytest.raises(ArtifactError, match="test item '1-000' of 'a' occurs more than once"):
        method_intervals({"a": pl.concat([table, table])})


def test_a_perfect_method_has_an_interval_that_says_how_little_is_known():
    """All are right: the ends are those of Clopper and Pearson; rare classes widen that of the balanced accuracy."""
    table = make_table(1.0, folds=4)
    found = method_intervals({"a": table.with_columns(correct=pl.lit(1.0))})["a"]
    accuracy, balanced = (found.metrics[name] for name in Task.over_items)
    assert accuracy.value == balanced.value == accuracy.high == 1.0
    assert found.metrics["accuracy"].n_clusters == 8
    counts = np.bincount([target for _, _, target, _ in shares(table).values()])
    for interval, items in ((accuracy, counts.sum()), (balanced, len(counts) ** 2 / (1 / counts).sum())):
        few = (stats.t.ppf(0.975, items - 1) / stats.t.ppf(0.975, 7)) ** 2  # speakers tell less than as many items
        assert interval.low == pytest.approx(0.025 ** (1 / (items * few)), abs=1e-9)
    assert balanced.low < accuracy.low


def test_averages_of_seeds_are_worth_more_items_than_single_answers():
    """Items that are right in about half of many seeds tell as much as the seeds: their interval is narrow."""
    shares = 0.5 + 0.02 * np.random.default_rng(0).standard_normal(240)
    (plain,) = mean_intervals([shares], np.arange(240), items=240)
    table = make_table(folds=4)
    table = table.with_columns(correct=pl.Series(np.resize(shares, len(table))))
    found = method_intervals({"a": table})["a"].metrics["accuracy"]
    assert plain.high - plain.low > 0.12
    assert found.high - found.low < 0.02


def test_table_of_finished_folds(tmp_path):
    layout, config = make_layout(tmp_path), Config()
    logits = np.eye(4)[[0, 1, 1, 3]]
    for fold in (1, 2):
        for seed in (1, 2):
            rows = predictions_frame(["u", "v", "v", "w"], [0, 1, 1, 2], logits, group=f"Ses0{fold}")
            write_fold(layout, config, "none", fold, seed, rows)
    folds = read_folds(layout.method("none"))
    table = item_table(folds, [items_of(fold.predictions(), "utterance") for fold in folds])
    assert dict(table.schema) == SCHEMA
    assert table["item"].to_list() == ["u", "v", "w"] * 4
    assert table["correct"].to_list() == [True, True, False] * 4
    assert table.rows()[3] == ("u", "Ses01M", 1, 2, 0, True, 4, 400)  # 300, and the held-out 100 in the refit
    clips = item_table(folds, [items_of(fold.predictions(), "clip") for fold in folds])
    assert clips["item"].to_list()[:4] == ["u-c0", "v-c1", "v-c2", "w-c3"]
    values = of_pair({"x": table, "y": table})["accuracy"]
    assert values.first_value == pytest.approx(2 / 3)


def official(skill, *, rng, seeds=(1, 2, 3), items=400):
    """Texts of unknown origin in one official test part; class 3 is rare."""
    fixed, own = np.random.default_rng(99), np.random.default_rng(rng)
    targets = fixed.choice(CLASSES, items, p=[0.4, 0.3, 0.25, 0.05])
    rows = [
        (f"t{index}", f"t{index}", 1, seed, int(target), bool(own.random() < skill - 0.2 * (target == 3)), items, 1000)
        for index, target in enumerate(targets)
        for seed in seeds
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_items_are_the_units_where_nobody_is_known():
    tables = {"a": official(0.7, rng=1), "b": official(0.6, rng=2), "c": official(0.65, rng=3)}
    rows, result = compare_methods(tables, task=TASKS["text"])
    design = result.design
    assert (design.unit, design.unit_word, design.source_word) == ("item", "text", "author")
    assert (design.n_units, design.n_items, design.n_speakers, design.n_folds) == (400, 400, None, 1)
    assert design.reason == "who wrote the texts is not known, so each text is its own unit"
    # true also of few-shot trials, whose seeds draw their own training items
    assert result.notes[1] == (
        "all seeds share the test items of the only fold, so the results hold for methods trained on the items of "
        "these runs, and there is no secondary test"
    )
    assert not any("speaker" in note or "resample only" in note for note in result.notes)
    left, right = shares(tables["a"]), shares(tables["b"])
    d = np.array([share - right[item][3] for item, (*_, share) in left.items()])
    target = np.array([target for _, _, target, _ in left.values()])
    size = np.bincount(target)
    figures = {row.metric: row for row in rows[:2]}
    for metric, units in {
        "accuracy": d,
        "balanced_accuracy": d * len(d) / CLASSES / size[target],
    }.items():
        row = figures[metric]
        assert (row.unit, row.units) == ("text", 400)
        assert row.difference == pytest.approx(units.mean())
        weights = 1.0 if metric == "accuracy" else len(d) / CLASSES / size[target]
        assert row.detectable == pytest.approx(minimal_detectable_difference(units - units.mean() * weights))
        normal = 2 * stats.norm.sf(abs(units.sum()) / np.sqrt((units**2).sum()))
        assert row.p == pytest.approx(normal, abs=0.01)
        assert row.p_folds is None
        assert row.interval == "sign-flip"


def test_clips_of_one_utterance_stay_together_where_speakers_are_utterances():
    table = official(0.7, rng=1)
    halves = [table.with_columns(item=pl.col("item") + f"#{half:03d}") for half in range(2)]
    _, result = compare_methods({"a": pl.concat(halves), "b": pl.concat(halves)})
    assert (result.design.unit, result.design.unit_word) == ("item", "utterance")
    assert (result.design.n_units, result.design.n_items) == (400, 800)


def test_authors_that_are_known_are_the_units():
    author = "w" + (pl.col("item").str.slice(1).cast(pl.Int64) % 12).cast(pl.String)
    tables = {name: official(0.7, rng=rng).with_columns(speaker=author) for name, rng in (("a", 1), ("b", 2))}
    design = compare_methods(tables, task=TASKS["text"])[1].design
    assert (design.unit, design.unit_word, design.n_speakers) == ("speaker", "author", 12)
    assert design.reason == "12 authors are tested"


def test_how_often_a_method_is_ahead_is_told_run_by_run():
    first, second = official(0.9, rng=1), official(0.3, rng=2, seeds=(1, 2))
    found = of_pair({"a": first, "b": second})["accuracy"]
    assert (found.runs, found.ahead, found.behind) == (2, 2, 0)
    tie = of_pair({"a": first, "b": first})["accuracy"]
    assert (tie.runs, tie.ahead, tie.behind) == (3, 0, 0)


def test_not_worse_by_a_margin_equals_an_independent_computation():
    """The score test of Tango, with the restricted likelihood maximised numerically."""
    tables = {"all": make_table(0.75, rng=1), "few": make_table(0.74, rng=2), "none": make_table(0.4, rng=3)}
    margin, level = 0.1, 0.9
    design, found = not_worse(tables, reference="all", margin=margin)
    assert (design.unit, design.n_units) == ("speaker", 10)
    whole = shares(tables["all"])
    for name in ("few", "none"):
        rows = shares(tables[name])
        gaps = np.array([share - whole[item][3] for item, (_, _, _, share) in rows.items()])
        speakers = np.unique([speaker for speaker, *_ in rows.values()], return_inverse=True)[1]
        number, mean = len(gaps), gaps.mean()
        residuals = np.bincount(speakers, gaps - mean)
        error = (residuals**2).sum() * 10 / 9 / number**2
        won, lost = gaps[gaps > 0].sum() / number, -gaps[gaps < 0].sum() / number
        size = min((won + lost - mean**2) / error + 1, number)
        size *= (stats.t.ppf(0.95, number - 1) / stats.t.ppf(0.95, 9)) ** 2

        def p_of(beyond, won=won, lost=lost, size=size):
            def surprise(share):
                terms = ((lost, share), (won, share - beyond), (1 - won - lost, 1 - 2 * share + beyond))
                return -sum(part * np.log(expected) for part, expected in terms)

            edges = (max(beyond, 0) + 1e-12, (1 + beyond) / 2 - 1e-12)
            share = optimize.minimize_scalar(surprise, bounds=edges, method="bounded", options={"xatol": 1e-12}).x
            deviation = np.sqrt((2 * share - beyond - beyond**2) / size)
            return stats.norm.sf((won - lost + beyond) / deviation)

        result = found[name]
        assert result.p == pytest.approx(p_of(margin), rel=1e-4)
        assert result.difference == pytest.approx(mean)
        assert p_of(-result.low) == pytest.approx((1 - level) / 2, rel=1e-4)
        assert p_of(-result.high) == pytest.approx((1 + level) / 2, rel=1e-4)
        assert result.low < result.difference < result.high
    assert found["few"].p <= 0.05 < found["none"].p
    assert found["all"][1:5] == (0, 0, 0, 0)  # a method is not worse than itself


@pytest.mark.parametrize(("items", "shown"), [(100, False), (200, True)])
def test_agreeing_on_few_items_does_not_show_that_a_method_is_not_worse(items, shown):
    """If 2 % of the items tell two methods apart, none of 100 does in 13 % of cases, none of 200 in 2 %."""
    table = official(0.9, rng=1, seeds=(1,)).head(items)
    for level, margin in ((0.9, 0.02), (0.95, 0.02)):
        _, found = not_worse({"all": table, "same": table}, reference="all", margin=margin, alpha=(1 - level) / 2)
        same = found["same"]
        assert same.low == pytest.approx(((1 - level) / 2) ** (1 / items) - 1)
        assert same.p == pytest.approx(0.98**items)
        assert (same.p <= (1 - level) / 2) == (same.low >= -margin) == shown
    assert found["all"].p == 0


def test_not_worse_without_units():
    table = make_table(0.7, folds=1).with_columns(pl.lit(None, pl.String).alias("speaker"))
    _, found = not_worse({"all": table, "few": table}, reference="all", margin=0.02)
    assert (found["few"].p, found["few"].low, found["few"].difference) == (None, None, 0)


@pytest.mark.parametrize("number", [3, 250])
def test_many_pairs_are_counted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    @contextmanager
    def progress(total: int, what: str, unit: str):
        begun.append(total)
        yield Progress(total, what, unit)

    monkeypatch.setattr(comparison, "progress", progress)
    pairs = [("a", str(one)) for one in range(number)]
    assert list(comparison.with_progress(pairs)) == pairs
    assert begun == ([] if number == 3 else [250])
