"""Verdicts on predictions of any tool: as `compare` and SciPy have them, and clear where items do not fit."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from seqeval.metrics import f1_score as entity_f1
from sklearn.metrics import f1_score, r2_score, roc_auc_score

import daamctl
from daamctl.artifacts.comparison import PairedResult, read_comparison
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.predictions import Verdict
from daamctl.artifacts.terms import listed
from daamctl.config import load_config
from daamctl.data.sign_flip import paired_sign_flip
from daamctl.data.spans import word_id
from daamctl.data.task import FIGURES
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError
from daamctl.reporting.document import Document
from daamctl.reporting.judge import document, sentences
from daamctl.stages import compare, judge
from tests.fixtures.folds import predictions_frame, write_fold, write_method

NAMES = ["anger", "fear", "joy"]


def table(skill: float, seed: int, *, items: int = 240, speakers: int = 12) -> pl.DataFrame:
    """Predictions that are right with this probability."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    labels = shared.choice(NAMES, items, p=[0.5, 0.3, 0.2])
    answers = np.where(own.random(items) < skill, labels, own.choice(NAMES, items))
    who = [f"s{index % speakers:02d}" for index in range(items)]
    return pl.DataFrame(
        {"utterance": [f"u{index:03d}" for index in range(items)], "speaker": who, "label": labels, "pred": answers}
    )


def by_speaker(one: pl.DataFrame, other: pl.DataFrame) -> np.ndarray:
    """Difference in accuracy for every speaker."""
    gap = (one["pred"] == one["label"]).cast(pl.Int64) - (other["pred"] == other["label"]).cast(pl.Int64)
    return one.select("speaker", gap=gap).group_by("speaker").agg(pl.col("gap").mean())["gap"].to_numpy()


def test_tables_of_every_library_have_the_same_verdict() -> None:
    one, other = table(0.75, 1), table(0.6, 2)
    pair = daamctl.judge(one, other).pair("table 1", "table 2")
    for convert in (
        lambda rows: rows.lazy(),
        lambda rows: rows.to_pandas(),
        lambda rows: rows.to_pandas().set_index(["utterance", "speaker"]),
        lambda rows: rows.to_pandas().assign(**{"3": 0}).rename(columns={"3": 3}),
        lambda rows: rows.to_arrow(),
        lambda rows: rows.to_dicts(),
    ):
        verdict = daamctl.judge({"small": convert(one), 7: convert(other)})
        assert verdict.pair("small", "7") == replace(pair, first="small", second="7")


@pytest.mark.parametrize("kind", ["pandas", "objects", "json"])
@pytest.mark.parametrize(
    ("column", "message"),
    [("label", "2 of 240 items have no label"), ("speaker", "2 of 240 items have no speaker, e.g. 'u000'")],
)
def test_nan_among_texts_is_a_missing_value(kind: str, column: str, message: str, tmp_path: Path) -> None:
    """As in the CSV file of the same table."""

    def given(name: str, skill: float, empty: str) -> Any:
        rows = table(skill, 1).to_pandas().astype(object)
        rows.loc[:1, empty] = np.nan
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        (tmp_path / f"{name}.json").write_text(json.dumps(rows.to_dict("records")))
        return {"pandas": rows, "objects": rows.to_dict("records")}.get(kind, tmp_path / f"{name}.json")

    for files in (
        {"x": given("x", 0.8, column), "y": given("y", 0.6, column)},
        {name: tmp_path / f"{name}.csv" for name in "xy"},
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            daamctl.judge(files)
    verdict = daamctl.judge({"x": given("x", 0.8, "pred"), "y": given("y", 0.6, "pred")})
    assert "2 of 240 predictions are missing and count as wrong" in verdict.notes


@pytest.mark.parametrize("given", [None, 3, [], [1], {"item": ["a"]}, np.zeros(3)])
def test_what_is_no_table_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="a file, or a table of polars, pandas or pyarrow is needed, got "):
        daamctl.judge(table(0.75, 1), given)


def test_the_figures_are_those_of_scipy() -> None:
    one, other = table(0.75, 1), table(0.6, 2)
    verdict = daamctl.judge(one, other)
    pair = verdict.pair(*verdict.models)
    gaps = by_speaker(one, other)
    expected = stats.permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert pair.difference == pytest.approx(gaps.mean())  # speakers have as many items each
    assert (pair.p, pair.exact, pair.units) == (pytest.approx(expected.pvalue), True, 12)
    assert pair.low is not None
    assert pair.high is not None
    for shift, rejected in ((pair.low - 1e-3, True), (pair.low + 1e-3, False), (pair.high + 1e-3, True)):
        test = stats.permutation_test((gaps - shift,), np.mean, permutation_type="samples", n_resamples=np.inf)
        assert bool(test.pvalue <= 0.05) == rejected
    right = [(found["pred"] == found["label"]).to_numpy() for found in (one, other)]
    assert pair.wins == (right[0] & ~right[1]).sum()
    recalls = [np.mean([part[(one["label"] == name).to_numpy()].mean() for name in NAMES]) for part in right]
    balanced = verdict.pair(*verdict.models, metric="balanced_accuracy")
    assert balanced.difference == pytest.approx(recalls[0] - recalls[1])


def test_it_agrees_with_compare_to_the_digit(project: Path) -> None:
    config = load_config(project, None, {"download.corpus": "iemocap", "extract.encoder": "wavlm-large"})
    layout = Layout.of(project, None, config)
    for method, skill in (("mha", 1.4), ("mean", 0.8)):
        write_method(layout, config, method, skill=skill, seeds=(1, 2))
    run = layout.run_name
    report = read_comparison(compare.run(project, f"{run}/mha", f"{run}/mean")).result
    assert isinstance(report, PairedResult)
    verdict, _ = judge.run([layout.method("mha"), layout.method("mean")])
    assert verdict.models == ["mha", "mean"]
    for metric in verdict.metrics:
        ours = verdict.pair("mha", "mean", metric)
        theirs = next(one for one in report.comparisons if one.metric == metric)
        for name in ("first_value", "second_value", "difference", "low", "high", "p", "units", "detectable", "wins"):
            assert getattr(ours, name) == getattr(theirs, name), name
    # in the project, methods have names, and a file of this name comes first
    assert vars(daamctl.judge(f"{run}/mha", f"second={run}/mean"))["models"] == ["mha", "second"]
    with pytest.raises(UnknownNameError, match=f"^unknown method 'meen' of '{run}'\n  did you mean 'mean'"):
        daamctl.judge(f"{run}/mha", f"{run}/meen")
    with pytest.raises(ArtifactError, match="no file other/mean"):
        daamctl.judge(f"{run}/mha", "other/mean")
    (project / run).mkdir()
    table(0.6, 1).write_csv(project / run / "mean")
    with pytest.raises(ArtifactError, match=f"{run}/mean: unknown kind of file"):
        daamctl.judge(f"{run}/mha", f"{run}/mean")


def test_it_agrees_with_compare_on_taggers_of_other_seeds(project: Path) -> None:
    config = load_config(project, None, {"download.corpus": "demo-tokens", "extract.encoder": "llama-micro"})
    layout, tags = Layout.of(project, None, config), ["O", "B-per", "I-per", "B-loc", "I-loc", "I-org"]
    changes = {"run.modality": "tokens", "run.classes": tags, "run.num_folds": 1}
    for method, skill, seeds in (("mha", 0.85, (2, 10)), ("mean", 0.7, (1, 2)), ("gqa", 0.7, (4, 5, 6))):
        for seed in seeds:
            rows = tagged(skill, seed).with_columns(place=pl.int_range(pl.len()).over("sentence"))
            rows = rows.filter(pl.col("sentence").str.len_chars() == 2)  # ten, so that the test is exact
            names = [word_id(sentence, place) for sentence, place in rows.select("sentence", "place").rows()]
            said = [tags.index(tag) for tag in rows["prediction"]]
            part = predictions_frame(names, [0] * len(rows), np.eye(len(tags))[said]).with_columns(
                rows["label"], speaker=rows["sentence"],
                target=rows["label"].replace_strict(tags, range(len(tags)), return_dtype=pl.Int32),
            )  # fmt: skip
            write_fold(layout, config, method, 1, seed, part, changes=changes)
    for other in ("mean", "gqa"):
        sides = [f"{layout.run_name}/{method}" for method in ("mha", other)]
        report = read_comparison(compare.run(project, *sides)).result
        verdict = vars(daamctl.judge(*sides, metric="entity_f1"))
        ours = next(one for one in verdict["pairs"] if one.metric == "entity_f1")
        theirs = next(one for one in report.comparisons if one.metric == "entity_f1")
        for name in ("first_value", "second_value", "difference", "low", "high", "p", "units", "detectable"):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_a_tier_holds_the_models_that_may_be_the_best() -> None:
    verdict = daamctl.judge(table(0.3, 5), table(0.9, 1), table(0.88, 2), table(0.32, 3))
    assert verdict.models[:2] == ["table 2", "table 3"]
    assert verdict.tiers == [verdict.models[:2], verdict.models[2:]]
    told = sentences(verdict)[-1]
    assert told == f"Tiers, in each the models that may be the best of those left: 1. table 2 and table 3; " \
        f"2. {listed(verdict.models[2:])}."  # fmt: skip
    assert "corrected over the 3 other models" in sentences(verdict)[1]


def test_repeats_are_averaged_and_their_number_is_told() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    twice = pl.concat([one.with_columns(seed=pl.lit(1)), other.with_columns(seed=pl.lit(2))])
    verdict = daamctl.judge(twice, other)
    gap = np.mean([by_speaker(one, other).mean() / 2])
    assert verdict.pair(*verdict.models).difference == pytest.approx(gap)
    assert "models differ in their number of repeats: table 1 2, table 2 1" in verdict.notes


def test_without_groups_every_item_is_its_own() -> None:
    tables = [one.drop("speaker") for one in (table(0.75, 1), table(0.6, 2))]
    verdict = daamctl.judge(*tables)
    assert (verdict.design.unit, verdict.design.n_units) == ("item", 240)
    assert any("so each item is its own unit" in note for note in verdict.notes)
    assert verdict.needed is None or verdict.needed > 240
    alone = daamctl.judge(*(one.with_columns(speaker=pl.col("utterance")) for one in tables))
    assert (alone.design.unit, alone.design.n_units) == ("item", 240)
    assert alone.pair(*verdict.models) == verdict.pair(*verdict.models)


def test_groups_that_only_names_tell_are_tested_and_said() -> None:
    names = {f"u{number:03d}": f"{number % 12 + 3:02d}a{number // 12:02d}Fa" for number in range(240)}
    given = [one.with_columns(pl.col("utterance").replace(names)) for one in (table(0.75, 1), table(0.6, 2))]
    unnamed = [one.drop("speaker") for one in given]
    verdict, told = daamctl.judge(*unnamed), daamctl.judge(*given)
    assert verdict.pair("table 1", "table 2") == told.pair("table 1", "table 2")
    note = "speakers are known from the names of EmoDB, e.g. 03 from 03a00Fa; --group names others"
    assert note in verdict.notes
    assert note not in told.notes
    alone = daamctl.judge(*unnamed, group="utterance")
    assert (alone.design.unit, alone.design.n_units) == ("item", 240)
    assert note not in alone.notes


def test_few_groups_give_figures_without_a_test() -> None:
    verdict = daamctl.judge(table(0.75, 1, speakers=4), table(0.6, 2, speakers=4))
    assert verdict.pair(*verdict.models).p is None
    assert sentences(verdict)[1] == "There is no test: only 4 speakers are tested, 5 are needed."
    assert "to test single items, name their column with --group" in verdict.notes


def test_nothing_is_detectable_with_five_groups() -> None:
    verdict = daamctl.judge(table(0.75, 1, speakers=5), table(0.6, 2, speakers=5))
    said = " ".join(sentences(verdict))
    assert "5 speakers allow no p below 0.0625. A lead of" in said
    assert "Detectable" not in said


def test_how_many_more_would_do() -> None:
    one, other = table(0.75, 1), table(0.72, 7)
    verdict = daamctl.judge(one, other)
    pair = verdict.pair(*verdict.models)
    assert verdict.needed is not None
    assert pair.p is not None
    assert pair.p > 0.05
    effect = abs(pair.difference) / by_speaker(one, other).std(ddof=1)
    limit = stats.t.isf(0.025, verdict.needed - 1)
    assert stats.nct.sf(limit, verdict.needed - 1, effect * np.sqrt(verdict.needed)) == pytest.approx(0.8, abs=0.01)


def test_a_lead_among_more_models_takes_more_speakers() -> None:
    """The lead over the second is corrected for the other models, as tiers are."""
    one, other, third = table(0.7, 22), table(0.64, 122), table(0.4, 222)
    two, three = daamctl.judge({"x": one, "y": other}), daamctl.judge({"x": one, "y": other, "z": third})
    assert two.pair("x", "y").p == three.pair("x", "y").p == 0.03125
    assert (two.tiers, two.needed) == ([["x"], ["y"]], None)
    assert (three.tiers, three.needed) == ([["x", "y"], ["z"]], 17)
    # fewer than seven speakers have no p as small as 0.05 / 2, and seven only if all of them agree
    few = {
        name: table(*own, items=60, speakers=5) for name, own in (("x", (0.9, 0)), ("y", (0.5, 100)), ("z", (0.3, 200)))
    }
    verdict = daamctl.judge(few)
    assert (verdict.pair("x", "y").units_needed(), verdict.needed) == (6, 8)


def test_a_margin_is_tested_against_the_first() -> None:
    one, other = table(0.75, 1), table(0.75, 3)
    verdict = daamctl.judge(one, other, margin=0.2)
    ((name, found),) = verdict.not_worse.items()
    assert (name, found.difference) == ("table 2", pytest.approx(by_speaker(other, one).mean()))
    assert found.p is not None
    assert found.low is not None
    assert (found.p <= 0.05, found.low > -0.2) == (True, True)
    assert any("less than 20 points of accuracy worse than table 1 is shown" in one for one in sentences(verdict))
    strict = daamctl.judge(one, other, margin=0.99 * -found.low).not_worse["table 2"]
    assert strict.low == found.low
    assert strict.p is not None
    assert strict.p > 0.05


def test_scores_without_labels_have_no_classes() -> None:
    rng = np.random.default_rng(1)
    tables = [pl.DataFrame({"id": range(50), "acc": rng.random(50)}) for _ in range(2)]
    verdict = daamctl.judge(*tables)
    assert verdict.metrics == ["accuracy"]
    gaps = (tables[0]["acc"] - tables[1]["acc"]).to_numpy()
    assert abs(verdict.pair(*verdict.models).difference) == pytest.approx(abs(gaps.mean()))
    assert not any("By class" in line for line in sentences(verdict))
    with pytest.raises(ConfigError, match="no balanced accuracy"):
        daamctl.judge(*tables, metric="balanced_accuracy")


def test_rows_without_names_are_paired_by_order_if_their_labels_agree() -> None:
    one, other = (found.drop("utterance") for found in (table(0.8, 1), table(0.5, 2)))
    verdict = daamctl.judge(one, other)
    assert verdict.pair(*verdict.models).difference == pytest.approx(by_speaker(one, other).mean())
    assert any("paired by their order" in note for note in verdict.notes)
    for wrong, message in ((other.head(9), "has 9 rows and"), (other.reverse(), "cannot be paired by the order")):
        with pytest.raises(ConfigError, match=message) as error:
            daamctl.judge(one, wrong)
        assert error.value.fix == "name the column of the items with --item"


def refused(one: pl.DataFrame, other: pl.DataFrame, message: str) -> ConfigError:
    with pytest.raises(ConfigError, match=message) as error:
        daamctl.judge(one, other)
    return error.value


def test_other_items_are_refused_or_left_out() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    error = refused(one, other.tail(200), r"table 2 lacks 40 of 240 and has 0 others, e\.g\. 'u000'")
    assert error.fix == "judge the 200 items that all files have: --common"
    verdict = daamctl.judge(one, other.tail(200), common=True)
    assert verdict.pair(*verdict.models).difference == pytest.approx(
        by_speaker(one.tail(200), other.tail(200)).mean(), abs=0.01
    )
    assert verdict.design.n_items == 200
    renamed = other.with_columns(utterance="x" + pl.col("utterance"))
    assert "no item is in all files" in refused(one, renamed, "different items").message


def test_items_are_matched_by_the_last_part_of_their_paths() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    expected = daamctl.judge(one, other)
    paths = one.with_columns(utterance="/corpora/here/" + pl.col("utterance") + ".wav")
    found = daamctl.judge(paths, other.with_columns(utterance="D:\\there\\" + pl.col("utterance") + ".flac"))
    assert found.pairs == expected.pairs
    assert "items are matched by the last part of their names, without the ending" in found.notes
    assert found.items["item"].to_list() == one["utterance"].to_list()
    assert not any("last part" in note for note in expected.notes)
    again = paths.with_columns(pl.col("utterance").str.replace("u001.wav", "other/u000.wav", literal=True))
    refused(again, other, "no item is in all files|different items")  # two would have the same name


def test_labels_may_be_numbers_in_one_file_and_names_in_another() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    expected = daamctl.judge(one, other)
    numbers = {name: str(number) for number, name in enumerate(NAMES)}
    for names in (numbers, {name: name.upper() for name in NAMES}):
        found = daamctl.judge(one, other.with_columns(pl.col("label", "pred").replace(names)))
        assert found.pairs == expected.pairs
        told = ", ".join(f"{theirs} = {ours}" for ours, theirs in sorted(names.items(), key=lambda pair: pair[1]))
        assert f"table 2 writes labels in another way: {told}" in found.notes
    merged = {"anger": "0", "fear": "1", "joy": "1"}  # not one to one
    refused(one, other.with_columns(pl.col("label", "pred").replace(merged)), "240 items have more than one label")
    swapped = {"anger": "fear", "fear": "anger"}  # the same names: a mistake, not a spelling
    refused(one, other.with_columns(pl.col("label", "pred").replace(swapped)), "items have more than one label")


def test_rows_without_names_may_spell_labels_differently() -> None:
    one, other = (table(skill, seed).drop("utterance") for skill, seed in ((0.8, 1), (0.6, 2)))
    numbers = {name: str(number) for number, name in enumerate(NAMES)}
    found = daamctl.judge(one, other.with_columns(pl.col("label", "pred").replace(numbers)))
    assert found.pairs == daamctl.judge(one, other).pairs
    shuffled = other.sample(fraction=1.0, shuffle=True, seed=3).with_columns(pl.col("label", "pred").replace(numbers))
    refused(one, shuffled, "cannot be paired by the order of their rows")


def test_another_label_or_group_of_an_item_is_refused() -> None:
    one = table(0.8, 1)
    label = one.with_columns(label=pl.when(pl.col("utterance") == "u007").then(pl.lit("none")).otherwise("label"))
    refused(one, label, r"1 items have more than one label, e\.g\. 'u007': '.*' in table 1, 'none' in table 2")
    group = one.with_columns(speaker=pl.when(pl.col("utterance") == "u007").then(pl.lit("x")).otherwise("speaker"))
    refused(one, group, r"more than one group, e\.g\. 'u007': 's07' in table 1, 'x' in table 2")
    doubled = pl.concat([one, one.head(1)])
    refused(one, doubled, "item 'u000' occurs more than once")


def test_one_model_is_none() -> None:
    with pytest.raises(ConfigError, match="a comparison needs predictions of two models or more, got 1"):
        daamctl.judge(table(0.8, 1))


def test_notes_are_made_only_where_there_is_something_to_tell() -> None:
    verdict = daamctl.judge(table(0.8, 1), table(0.6, 2))
    assert not [note for note in verdict.notes if "number of repeats" in note or note.startswith("only the")]


def test_equal_models_are_equal() -> None:
    verdict = daamctl.judge(table(0.8, 1), table(0.8, 1))
    assert re.match(
        r"table 1 and table 2 have the same accuracy, [\d.]+ %, 95 % interval of the difference −(\d\.\d) to \+\1\.",
        sentences(verdict)[0],
    )
    assert verdict.tiers == [["table 1", "table 2"]]


def test_models_that_differ_where_no_speaker_does_have_the_interval_of_equal_ones() -> None:
    """One speaker has an item that only one model gets right, and one that only the other does."""
    one = table(0.8, 1)
    right = (one["pred"] == one["label"]).to_numpy()
    own = (one["speaker"] == "s03").to_numpy()
    won, lost = np.flatnonzero(own & ~right)[0], np.flatnonzero(own & right)[0]
    answers = one["pred"].to_list()
    answers[won], answers[lost] = one["label"][int(won)], "none of these"
    other = one.with_columns(pred=pl.Series(answers))
    pair, equal = (daamctl.judge({"x": one, "y": two}).pair("x", "y") for two in (other, one))
    assert (pair.wins, pair.losses, pair.difference) == (1, 1, 0)
    assert (pair.low, pair.high, pair.p) == (equal.low, equal.high, 1.0)
    assert equal.low is not None
    assert equal.low < 0


def test_of_several_models_what_could_be_detected_is_corrected_too() -> None:
    """Six speakers allow p = 0.031, so nothing can be told apart once three models are compared."""
    tables = {name: table(skill, 1, speakers=6) for name, skill in (("x", 1.0), ("y", 0.3), ("z", 0.2))}
    two = " ".join(sentences(daamctl.judge({name: tables[name] for name in "xy"})))
    assert "They can be told apart" in two
    assert "Detectable with 80 % power: " in two
    three = " ".join(sentences(daamctl.judge(tables)))
    assert "They cannot be told apart" in three
    assert "6 speakers allow no p below 0.0625 after correction." in three
    assert "Detectable" not in three


def test_a_group_whose_plural_is_another_is_called_group() -> None:
    one, other = (table(skill, 1).rename({"speaker": "family"}) for skill in (0.8, 0.6))
    assert " over 12 groups: " in " ".join(sentences(daamctl.judge({"x": one, "y": other}, group="family")))


def test_the_line_of_the_picture_is_the_difference_that_leads() -> None:
    """A large speaker is for one model, small ones are for the other."""
    rows = [("a", index, 1, 0) for index in range(200)] + [(who, 0, 0, 1) for who in "bcdefg"]
    items, first, second = (
        [f"{who}{index}" for who, index, *_ in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
    )
    base = pl.DataFrame({"speaker": [row[0] for row in rows], "item": items})
    verdict = daamctl.judge({"x": base.with_columns(correct=pl.Series(first)),
                             "y": base.with_columns(correct=pl.Series(second))})  # fmt: skip
    page = str(document(verdict, []))
    assert verdict.pair("x", "y").difference == pytest.approx(194 / 206)
    assert "over all items +94.2 points" in page


def test_files_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, skill in (("a", 0.8), ("b", 0.6)):
        (tmp_path / name).mkdir()
        table(skill, ord(name)).write_csv(tmp_path / name / "out.csv")
    verdict, _ = judge.run([f"large={tmp_path}/a/out.csv", tmp_path / "b/out.csv"])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert judge.run(["large=~/a/out.csv", "~/b/out.csv"])[0].pairs == verdict.pairs
    assert verdict.models == ["large", "out"]
    assert daamctl.judge(tmp_path / "a/out.csv", tmp_path / "b/out.csv").models == ["a/out", "b/out"]
    for seed, skill in ((1, 0.8), (2, 0.7)):
        (tmp_path / f"lr=0.1,seed={seed}").mkdir()
        table(skill, seed).write_csv(tmp_path / f"lr=0.1,seed={seed}/out.csv")
    pattern = f"{tmp_path}/lr=0.1,seed=*/out.csv"
    assert daamctl.judge(pattern, f"other={tmp_path}/b/out.csv").models == ["out", "other"]
    for name, model in (("a", "svm"), ("b", "tree")):
        one = pl.read_csv(tmp_path / name / "out.csv").with_columns(model=pl.lit(model))
        one.write_csv(tmp_path / name / "told.csv")
        one.with_columns(model=pl.lit("same")).write_csv(tmp_path / name / "same.csv")
    told = [tmp_path / "a/told.csv", tmp_path / "b/told.csv"]
    assert daamctl.judge(*told).models == ["svm", "tree"]
    assert daamctl.judge(f"mine={told[0]}", told[1]).models == ["mine", "tree"]
    assert daamctl.judge(tmp_path / "a/same.csv", tmp_path / "b/same.csv").models == ["a/same", "b/same"]
    assert daamctl.judge(f"sweep={pattern}", tmp_path / "b/out.csv").models == ["sweep", "out"]


def test_the_page_has_the_sentences_and_every_table(tmp_path: Path) -> None:
    tables: Mapping[str, pl.DataFrame] = {"x": table(0.8, 1), "y": table(0.6, 2), "z": table(0.5, 3)}
    paths: Sequence[Path] = [tmp_path / f"{name}.csv" for name in tables]
    for path, found in zip(paths, tables.values(), strict=True):
        found.write_csv(path)
    verdict, files = judge.run(paths)
    judge.write_page(verdict, files, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert isinstance(verdict, Verdict)
    for text in (
        "Which is better: x, y and z?",
        "By speaker",
        "By class",
        "Items that decide",
        "All pairs",
        "x: table",
    ):
        assert text in page
    assert "tables/" not in page  # there are no other files
    assert "<svg" in page or "data:image" in page


def test_many_models_have_a_short_title_and_the_pairs_of_the_best_first() -> None:
    verdict, files = judge.run([table(0.4 + 0.1 * number, number) for number in range(6)])
    page = document(verdict, files)
    assert page.title == "Which of 6 models is best?"
    (pairs,) = [one for one in page.tables if one.key == "pairs"]
    names = [f"{first} − {second}" for first, second in itertools.combinations(verdict.models, 2)]
    assert [str(row[0]) for row in pairs.rows] == names
    few, files = judge.run([table(0.8, 1), table(0.6, 2)])
    assert document(few, files).title == "Which is better: table 1 and table 2?"


@pytest.mark.parametrize("known", [[], ["speaker"], ["label"], ["speaker", "label"]])
def test_the_page_has_no_column_of_what_is_not_known(tmp_path: Path, known: list[str]) -> None:
    for name, found in (("x", table(0.8, 1)), ("y", table(0.6, 2))):
        right = found.with_columns(correct=pl.col("label") == pl.col("pred"))
        right.select("utterance", "correct", *known).write_csv(tmp_path / f"{name}.csv")
    verdict, files = judge.run([tmp_path / "x.csv", tmp_path / "y.csv"])
    judge.write_page(verdict, files, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    heads = re.findall(r"<th [^>]*>([^<]*)<", page[page.index("Items that decide: share") :])
    assert heads[: heads.index("x (%)")] == ["Item", *(name.capitalize() for name in known)]


def counted(rights: dict[str, tuple[int, int]], *, speakers: int = 6) -> list[pl.DataFrame]:
    """Two models on ten items of each class, of which they get so many right, the same ones as far as possible."""
    rows = [(f"{label}{item}", f"s{item % speakers}", label) for label in rights for item in range(10)]
    tables = []
    for side in range(2):
        answers = [label if int(name.removeprefix(label)) < rights[label][side] else "wrong" for name, _, label in rows]
        frame = pl.DataFrame(rows, schema=["item", "speaker", "label"], orient="row")
        tables.append(frame.with_columns(prediction=pl.Series(answers)))
    return tables


def test_what_decides_is_named() -> None:
    told = dict(enumerate(daamctl.judge(*counted({"a": (9, 7), "b": (5, 6), "c": (4, 4)})).sentences))
    text = "\n".join(told.values())
    assert "Only table 1 is right on 2 of 30 items, only table 2 on 1." in text
    assert "By class, only table 1 / only table 2: a 2/0, b 0/1." in text  # nothing of c
    assert "The speakers that decide, in points of accuracy: s1 +16.7, s2 +16.7, s5 −33.3." in text
    assert "Items that decide: a7, a8, b5." in text


def test_of_many_classes_and_items_the_first_are_named() -> None:
    text = "\n".join(daamctl.judge(*counted(dict.fromkeys("abcdef", (9, 8)))).sentences)
    assert "By class, only table 1 / only table 2: a 1/0, b 1/0, c 1/0, d 1/0, e 1/0, …" in text
    assert "Items that decide: a8, b8, c8, d8, e8, …" in text


def test_items_that_are_numbers_are_in_their_order() -> None:
    one, other = counted({"a": (9, 4), "b": (5, 5)})
    numbers = pl.Series([str(3 * place) for place in range(20)])  # of a4 to a8: 12, 15, ...
    text = "\n".join(daamctl.judge(*(table.with_columns(item=numbers) for table in (one, other))).sentences)
    assert "Items that decide: 12, 15, 18, 21, 24." in text
    names = pl.Series([str(place) for place in range(6, 26)])  # of a4 to a8: 10, ...
    text = "\n".join(
        daamctl.judge(*(table.with_columns(item=names) for table in counted({"a": (6, 1), "b": (5, 5)}))).sentences
    )
    assert "Items that decide: 7, 8, 9, 10, 11." in text


def test_five_items_are_all_that_decide() -> None:
    text = "\n".join(daamctl.judge(*counted({"a": (9, 4), "b": (5, 5)})).sentences)
    assert "Items that decide: a4, a5, a6, a7, a8." in text


def rows_of(page: Document, key: str) -> list[list[str]]:
    (found,) = [one for one in page.tables if one.key == key]
    return [[str(cell) for cell in row] for row in found.rows]


def test_the_tables_of_the_page_hold_the_figures() -> None:
    first, second = counted({"a": (9, 7), "b": (5, 6), "c": (4, 4)})
    verdict, files = judge.run([first, second])
    page, pair = document(verdict, files), verdict.pair("table 1", "table 2")
    ends = {name: [f"{100 * end:.1f}" for end in (one["accuracy"].low, one["accuracy"].high)]
            for name, one in verdict.intervals.items()}  # fmt: skip
    best, other = rows_of(page, "models")
    assert best[:3] == ["table 1", "1", f"60.0 [{', '.join(ends['table 1'])}]"]
    assert best[4:] == ["", "", ""]
    assert other[:3] == ["table 2", "1", f"56.7 [{', '.join(ends['table 2'])}]"]
    gaps = [f"{-100 * end:+.1f}".replace("-", "−") for end in (pair.difference, pair.high, pair.low)]
    assert other[4:] == [f"{gaps[0]} [{gaps[1]}, {gaps[2]}]", f"{pair.p:.3f}", f"{pair.p_holm:.3f}"]
    assert not [one for one in page.tables if one.key == "pairs"]
    assert rows_of(page, "label") == [
        ["a", "10", "+20.0", "2", "0"], ["b", "10", "−10.0", "0", "1"], ["c", "10", "0.0", "0", "0"],
    ]  # fmt: skip
    assert rows_of(page, "group")[:3] == [
        ["s1", "6", "+16.7", "1", "0"], ["s2", "6", "+16.7", "1", "0"], ["s5", "3", "−33.3", "0", "1"],
    ]  # fmt: skip
    assert rows_of(page, "items") == [
        ["a7", "s1", "a", "100.0", "0.0"], ["a8", "s2", "a", "100.0", "0.0"], ["b5", "s5", "b", "0.0", "100.0"],
    ]  # fmt: skip
    (items,) = [one for one in page.tables if one.key == "items"]
    assert (items.columns[:3], items.note, items.text_columns) == (["Item", "Speaker", "Label"], "", {1, 2})


def test_many_items_that_decide_are_cut() -> None:
    for number, note in ((5, ""), (6, "The first 50; --json has all items.")):
        rights = dict.fromkeys("abcdef"[:number], (10, 0)) | {"z": (5, 5)}
        page = document(*judge.run(counted(rights)))
        (items,) = [one for one in page.tables if one.key == "items"]
        assert (len(items.rows), items.note) == (50, note)


def test_the_pairs_of_three_models_are_of_one_metric() -> None:
    tables = [table(0.5 + 0.1 * number, number) for number in range(3)]
    page = document(*judge.run(tables))
    assert len(rows_of(page, "pairs")) == 3


def test_a_notebook_shows_the_sentences() -> None:
    verdict = daamctl.judge(table(0.8, 1), table(0.6, 2))
    assert str(verdict).startswith("table 1 leads table 2 by +")
    assert "\n- read: item = utterance" in str(verdict)
    shown = verdict._repr_markdown_()
    assert shown is not None
    assert shown.startswith("table 1 leads table 2 by +")
    assert shown.count("  \n") == len(verdict.sentences) - 1
    assert "sentences" not in verdict.as_json()
    plain = replace(verdict, sentences=())
    assert (plain._repr_markdown_(), str(plain)) == (None, repr(plain))


def test_speakers_count_by_their_items() -> None:
    """One speaker has most items: interval and test are of the difference over all items, which is printed."""
    sizes = {"s0": (200, 0.9, 0.5)} | {f"s{index}": (20, 0.4, 0.8) for index in range(1, 9)}
    rows: dict[str, list[pl.DataFrame]] = {"x": [], "y": []}
    for who, (count, *shares) in sizes.items():
        for share, found in zip(shares, rows.values(), strict=True):
            right = [index < share * count for index in range(count)]
            items = [f"{who}-{index}" for index in range(count)]
            found.append(pl.DataFrame({"item": items, "speaker": who, "correct": right}))
    verdict = daamctl.judge(*(pl.concat(parts) for parts in rows.values()))
    pair = verdict.pair(*verdict.models)
    assert pair.difference == pytest.approx((80 - 64) / 360)
    assert pair.low is not None
    assert pair.high is not None
    assert pair.low < 0 < pair.difference < pair.high
    assert pair.p is not None
    assert pair.p > 0.05
    assert verdict.tiers == [verdict.models]


def test_speakers_of_one_file_do_and_half_of_them_do_not() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    for pair in ((one, other.drop("speaker")), (one.drop("speaker"), other)):
        assert (
            daamctl.judge(*pair).pair("table 1", "table 2").p == daamctl.judge(one, other).pair("table 1", "table 2").p
        )
    gap = pl.when(pl.col("utterance") != "u003").then("speaker")
    error = refused(one.with_columns(speaker=gap), other.with_columns(speaker=gap), "1 of 240 items have no speaker")
    assert "'u003'" in error.message


def test_items_that_end_like_clips_keep_their_documents() -> None:
    tables = [found.with_columns(utterance=pl.col("speaker") + "#" + pl.int_range(pl.len()).cast(pl.String))
              for found in (table(0.8, 1), table(0.6, 2))]  # fmt: skip
    assert daamctl.judge(*tables).design.n_units == 12


def test_wrong_arguments_of_the_function_are_refused() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    for settings, message in (
        ({"groups": "speaker"}, "'groups' is no kind of column"),
        ({"nope": 1}, "'nope' is no kind of column; known: item, label, prediction, correct, group, fold, seed, model"),
        ({"label": ["a", "b"]}, "label is one column, got several: a, b"),
        ({"margin": 5.0}, "margin must be a fraction"),
        ({"margin": "1"}, "margin must be a fraction from 0 to 1, got '1'"),
        ({"margin": 1}, "a margin of 1 is 100 points of accuracy; it must be less"),
        ({"metric": "f1"}, "metric 'f1' is not known; known: accuracy, balanced_accuracy"),
    ):
        with pytest.raises(ConfigError, match=message):
            daamctl.judge(one, other, **settings)  # type: ignore[arg-type]


def test_what_says_nothing_more_is_no_wrong_argument() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    plain = daamctl.judge(one, other, metric="macro_f1")
    for settings in ({"group": None}, {"group": ["speaker"]}, {"prediction": ["pred"]}, {"correct": []}):
        assert daamctl.judge(one, other, metric="macro-f1", **settings).pairs == plain.pairs  # type: ignore[arg-type]
    numbers = [rows.to_pandas().set_axis(range(4), axis="columns") for rows in (one, other)]
    found = daamctl.judge(*numbers, metric="macro_f1", item=0, group=1, label=2, prediction=3)  # type: ignore[arg-type]
    assert [replace(pair, unit="speaker") for pair in found.pairs] == plain.pairs


def test_many_different_scores_take_no_longer() -> None:
    """All flips at once: as the normal distribution has it."""
    rng = np.random.default_rng(3)
    gaps = rng.normal(0.02, 1, 3000)
    p = paired_sign_flip(gaps)["p"]
    expected = 2 * stats.norm.sf(abs(gaps.sum()) / np.sqrt((gaps**2).sum()))
    assert p == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("metric", ["macro_f1", "weighted_f1"])
def test_models_are_ranked_by_f1(metric: str) -> None:
    tables = {name: table(skill, seed) for name, skill, seed in (("x", 0.6, 2), ("y", 0.8, 1), ("z", 0.58, 3))}
    verdict = daamctl.judge(tables, metric=metric)
    average = metric.removesuffix("_f1")
    for name, rows in tables.items():
        wanted = f1_score(rows["label"].to_numpy(), rows["pred"].to_numpy(), average=average)
        assert verdict.values[metric][name] == pytest.approx(wanted)
        interval = verdict.intervals[name][metric]
        assert interval.value == pytest.approx(wanted)
        assert interval.low < interval.value < interval.high
    assert verdict.models[0] == "y"
    assert verdict.metrics == ["accuracy", "balanced_accuracy", metric]
    three = (
        f"accuracy, balanced accuracy and {metric.replace('_f1', ' F1')} are three families; do not report the best of"
    )
    assert f"{three} the three" in verdict.notes
    assert not any("two families" in note for note in verdict.notes)
    pair = verdict.pair("y", "x")
    by_accuracy = verdict.pair("y", "x", "accuracy")
    assert (pair.wins, pair.losses, pair.ties) == (by_accuracy.wins, by_accuracy.losses, by_accuracy.ties)
    assert pair.detectable == pytest.approx(by_accuracy.detectable, rel=0.3)
    lines = sentences(verdict)
    name = metric.replace("_", " ").replace("f1", "F1")
    assert re.fullmatch(
        rf"y leads \w by \+\d+\.\d points of {name} \(.* and .* %\), 95 % interval .* to .*\.", lines[0]
    )
    assert lines[1].startswith("Exact sign-flip test over 12 speakers: p = ")
    assert any(line.startswith("Accuracy: ") for line in lines)
    assert "swaps the predictions of two models in whole groups" in str(document(verdict, []))
    assert verdict.tiers[0] == ["y"]


@pytest.mark.parametrize(("metric", "classes"), [("balanced_accuracy", 120), ("macro_f1", 120), ("accuracy", 0)])
def test_more_than_a_hundred_labels_are_classes_if_that_is_asked_for(metric: str, classes: int) -> None:
    number = pl.int_range(pl.len())
    rows = {
        name: table(0.8, 1, items=600).with_columns(
            label=number % 120, pred=pl.when(number % every == 0).then(7).otherwise(number % 120)
        )
        for name, every in (("x", 7), ("y", 5))
    }
    verdict = daamctl.judge(rows, metric=metric)
    assert verdict.metrics == [*dict.fromkeys(["accuracy", *["balanced_accuracy"] * (classes > 0), metric])]
    if metric == "macro_f1":
        wanted = {name: f1_score(one["label"], one["pred"], average="macro") for name, one in rows.items()}
        assert verdict.values["macro_f1"] == pytest.approx(wanted)
    with pytest.raises(ConfigError, match="600 items have 600 labels, and 2 to 300 are needed"):
        daamctl.judge({name: one.with_columns(label=number) for name, one in rows.items()}, metric="macro_f1")


def test_f1_of_repeats_is_the_mean_of_each() -> None:
    parts = [table(0.7, seed).with_columns(seed=pl.lit(seed)) for seed in (4, 5)]
    wanted = np.mean([f1_score(part["label"].to_numpy(), part["pred"].to_numpy(), average="macro") for part in parts])
    other = pl.concat([table(0.5, seed).with_columns(seed=pl.lit(seed)) for seed in (6, 7)])
    verdict = daamctl.judge({"x": pl.concat(parts), "y": other}, metric="macro_f1")
    assert verdict.values["macro_f1"]["x"] == pytest.approx(wanted)
    verdict = daamctl.judge({"x": pl.concat(parts), "y": table(0.5, 6)}, metric="macro_f1")
    assert verdict.values["macro_f1"]["x"] == pytest.approx(wanted)
    assert "models differ in their number of repeats: x 2, y 1" in verdict.notes
    uneven = pl.concat([parts[0], parts[1].head(100)])
    with pytest.raises(ConfigError, match="needs every item equally often, and some are tested up to 2 times"):
        daamctl.judge({"x": uneven, "y": uneven}, metric="macro_f1")


def test_what_f1_needs() -> None:
    one, other = (
        table(0.7, seed).select("utterance", "label", correct=pl.col("pred") == pl.col("label")) for seed in (1, 2)
    )
    with pytest.raises(ConfigError, match="macro F1 needs predictions, and a file says only which are right"):
        daamctl.judge(one, other, metric="macro_f1")
    answers = [table(0.7, seed).with_columns(label="utterance", pred="utterance") for seed in (1, 2)]
    with pytest.raises(ConfigError, match="there is no macro F1: 240 items have 240 labels, and 2 to 120 are needed"):
        daamctl.judge(*answers, metric="macro_f1")
    few = [table(0.7, seed, speakers=3) for seed in (1, 2)]
    verdict = daamctl.judge(*few, metric="macro_f1")
    assert (verdict.intervals, verdict.pair(*verdict.models).p) == ({}, None)
    assert "There is no test" in sentences(verdict)[1]


def test_scores_of_one_class_have_no_auroc() -> None:
    one = table(0.8, 1).with_columns(label=pl.lit("spoof"), pred=pl.Series(np.linspace(0.1, 0.9, 240)))
    with pytest.raises(ConfigError, match="table 1: there is no AUROC: all labels are 'spoof'"):
        daamctl.judge(one, one, metric="auroc")


def test_the_index_of_pandas_names_the_items_if_it_is_not_that_of_the_rows() -> None:
    one = table(0.8, 1).drop("utterance", "speaker").to_pandas()
    shuffled = one.sample(frac=1, random_state=1)
    verdict = daamctl.judge(one.set_index(one.index + 7), shuffled.set_index(shuffled.index + 7))
    assert verdict.pair("table 1", "table 2").wins == verdict.pair("table 1", "table 2").losses == 0
    # the numbers of tables one below the other are no names
    stacked = one.set_index(one.index % 48)
    assert len(daamctl.judge(stacked, stacked).items) == 240


def test_f1_of_labels_that_are_numbers_in_one_file() -> None:
    one, other = table(0.8, 1), table(0.6, 2)
    codes = {name: str(number) for number, name in enumerate(NAMES)}
    coded = other.with_columns(pl.col("label", "pred").replace(codes))
    found = daamctl.judge({"x": one, "y": coded}, metric="macro_f1")
    assert found.values == daamctl.judge({"x": one, "y": other}, metric="macro_f1").values


def measured(noise: float, seed: int) -> pl.DataFrame:
    """Predictions of numbers."""
    rows, rng = table(0.5, 1), np.random.default_rng(seed)
    label = np.random.default_rng(0).uniform(1, 7, len(rows))
    return rows.with_columns(label=label, pred=label + rng.normal(0, noise, len(rows)))


@pytest.mark.parametrize("metric", ["ccc", "pearson", "spearman", "r2"])
def test_numbers_are_judged_by_agreement(metric: str) -> None:
    tables = {"x": measured(1.0, 2), "y": measured(0.6, 1)}
    verdict = daamctl.judge(tables, metric=metric)
    assert (verdict.models, verdict.metrics) == (["y", "x"], [metric])
    label, said = (tables["y"][name].to_numpy() for name in ("label", "pred"))
    if metric == "r2":
        assert verdict.values[metric]["y"] == pytest.approx(r2_score(label, said))
    if metric in ("pearson", "spearman"):
        wanted = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[metric](label, said)[0]
        assert verdict.values[metric]["y"] == pytest.approx(wanted)
    errors = {name: (rows["pred"] - rows["label"]).abs() for name, rows in tables.items()}
    pair = verdict.pair("y", "x")
    assert (pair.wins, pair.losses) == ((errors["y"] < errors["x"]).sum(), (errors["y"] > errors["x"]).sum())
    lines = sentences(verdict)
    assert re.fullmatch(r"y leads x by \+0\.\d{3} of .* \(0\.\d{3} and 0\.\d{3}\), 95 % interval .* to .*\.", lines[0])
    assert f"y is closer to the label of {pair.wins} of 240 items, x to that of {pair.losses}." in lines
    assert not any("right" in line or "By class" in line or "point" in line for line in lines)
    by_speaker = errors["y"] - errors["x"]
    gaps = tables["x"].select("speaker").with_columns(gap=by_speaker).group_by("speaker").agg(pl.col("gap").mean())
    most = gaps.sort(pl.col("gap").abs(), descending=True).row(0)
    assert f"in the mean of absolute errors: {most[0]} {most[1]:+.3f}".replace("-", "−") in "\n".join(lines)
    page = str(document(verdict, []))
    assert "'y closer', 'x closer'" in page
    assert "Items that decide: absolute error" in page
    assert "(%)" not in page


def test_numbers_are_not_taken_for_classes() -> None:
    tables = {"x": measured(1.0, 2), "y": measured(0.6, 1)}
    for metric in ("accuracy", "balanced_accuracy", "macro_f1"):
        with pytest.raises(ConfigError, match="numbers, not classes\n  rank the models by agreement: --metric ccc, "):
            daamctl.judge(tables, metric=metric)
    whole = {name: rows.with_columns(pl.col("label").round()) for name, rows in tables.items()}
    with pytest.raises(ConfigError, match="x: labels and predictions are numbers, not classes"):
        daamctl.judge(whole)
    # half stars are classes, where predictions are such, too
    stars = [rows.with_columns((pl.col("label", "pred") * 2).round() / 2) for rows in tables.values()]
    assert daamctl.judge(*stars).metrics == ["accuracy", "balanced_accuracy"]
    assert daamctl.judge(*stars, metric="ccc").metrics == ["ccc"]


def scored(noise: float, seed: int) -> pl.DataFrame:
    """Scores of two classes."""
    rows, rng = table(0.5, 1), np.random.default_rng(seed)
    spoof = np.random.default_rng(0).integers(0, 2, len(rows))
    label = np.where(spoof, "spoof", "bona fide")
    return rows.with_columns(label=label, pred=spoof + rng.normal(0, noise, len(rows)))


def test_scores_are_judged_whatever_their_scale() -> None:
    tables = {"x": scored(1.0, 2), "y": scored(0.6, 1)}
    verdict = daamctl.judge(tables, metric="auroc")
    assert (verdict.models, verdict.metrics) == (["y", "x"], ["auroc"])
    wanted = {name: roc_auc_score(rows["label"] == "spoof", rows["pred"]) for name, rows in tables.items()}
    assert verdict.values["auroc"] == pytest.approx(wanted)
    assert "higher scores mean 'spoof', not 'bona fide'" in verdict.notes
    lines = sentences(verdict)
    assert re.fullmatch(r"y leads x by \+\d+\.\d points of AUROC \(.* and .* %\), 95 % interval .* to .*\.", lines[0])
    # of each class, errors are the share of the other one with a higher, or lower, score
    errors = verdict.items.join(tables["y"].select("label", item="utterance"), on="item").group_by("label_right")
    assert errors.agg(pl.col("y").mean())["y"].to_list() == pytest.approx([1 - wanted["y"]] * 2)
    other = {**tables, "x": tables["x"].with_columns(pl.col("pred").exp() * 100)}
    again = daamctl.judge(other, metric="auroc")
    assert (again.values, again.pairs) == (verdict.values, verdict.pairs)
    turned = daamctl.judge(
        {name: rows.with_columns(label=(pl.col("label") == "bona fide").cast(int)) for name, rows in tables.items()},
        metric="eer_accuracy",
    )
    assert "higher scores mean '1', not '0'" in turned.notes
    rates = daamctl.judge(tables, metric="eer_accuracy").values["eer_accuracy"]
    assert "below 50 %, so the scores of x, y may be those of the other class" in turned.notes
    assert not any("below 50" in note for note in verdict.notes)
    assert turned.values["eer_accuracy"] == pytest.approx({name: 1 - rate for name, rate in rates.items()})


def test_scores_of_both_classes_are_read(tmp_path: Path) -> None:
    tables = {"x": scored(1.0, 2), "y": scored(0.6, 1)}
    wanted = daamctl.judge(tables, metric="auroc").values
    each = {name: rows.select("utterance", "speaker", "label", pl.col("pred").alias("prob_spoof"),
                              (-pl.col("pred")).alias("prob_bona fide")) for name, rows in tables.items()}  # fmt: skip
    assert daamctl.judge(each, metric="auroc").values == wanted
    assert daamctl.judge(each).metrics == ["accuracy", "balanced_accuracy"]
    # 1 is bona fide in one file
    codes = {"bona fide": "1", "spoof": "0"}
    coded = (
        each["y"]
        .with_columns(pl.col("label").replace(codes))
        .rename({f"prob_{a}": f"prob_{b}" for a, b in codes.items()})
    )
    mixed = daamctl.judge({**each, "y": coded}, metric="auroc")
    assert mixed.values == wanted
    assert "y writes labels in another way: 0 = spoof, 1 = bona fide" in mixed.notes
    for name, rows in tables.items():
        spoof, scores = (rows["label"] == "spoof").cast(int).to_numpy(), rows["pred"].to_numpy()
        one = scores[:, None] if name == "x" else np.stack([-scores, scores], axis=1)
        np.savez(
            tmp_path / f"{name}.npz", predictions=one, label_ids=spoof, speaker=rows["speaker"].to_numpy().astype(str)
        )
    assert daamctl.judge(*tmp_path.glob("*.npz"), metric="auroc").values == wanted
    ratings = {name: rows.with_columns(pl.col("pred").round()) for name, rows in tables.items()}
    found = daamctl.judge(ratings, metric="auroc").values["auroc"]
    assert found["x"] == pytest.approx(roc_auc_score(tables["x"]["label"] == "spoof", ratings["x"]["pred"]))
    both = {name: rows.with_columns(score="pred", pred="label") for name, rows in tables.items()}
    with pytest.raises(
        ConfigError, match="x: AUROC needs scores, and the predictions are bona fide, spoof\n  name the c"
    ):
        daamctl.judge(both, metric="auroc")
    assert daamctl.judge(both, metric="auroc", prediction="score").values == wanted
    folds = {name: rows.with_columns(fold=pl.col("speaker")) for name, rows in tables.items()}
    told = daamctl.judge(folds, metric="auroc")
    assert told.values == wanted
    assert "scores of 12 folds are ranked together, though their models may have other scales" in told.notes


def test_detectors_of_spoofed_speech_and_the_keys_of_asvspoof(tmp_path: Path) -> None:
    """Layouts as of ASVspoof 2019 and 2021 and of AASIST; a higher score is bona fide."""
    tables = {"x": scored(1.0, 2), "y": scored(0.6, 1)}
    keys = []
    for name, rows in tables.items():
        lines = []
        for item, speaker, label, score in rows.select("utterance", "speaker", "label", -pl.col("pred")).iter_rows():
            key, attack = ("spoof", "A07") if label == "spoof" else ("bonafide", "-")
            lines.append(f"{item} {score:.6f}" if name == "x" else f"{item} {attack} {key} {score:.6f}")
            if name == "x":
                keys.append(f"{speaker} {item} - {attack} {key}")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "keys.trl.txt").write_text("\n".join(keys) + "\n")
    found = daamctl.judge(
        tmp_path / "x.txt", tmp_path / "y.txt", items=tmp_path / "keys.trl.txt", metric="eer_accuracy"
    )
    wanted = daamctl.judge(tables, metric="eer_accuracy")
    assert found.values["eer_accuracy"] == pytest.approx(wanted.values["eer_accuracy"])
    assert (found.design.unit, found.design.n_units) == ("speaker", 12)
    assert "higher scores mean 'bonafide', not 'spoof'" in found.notes
    assert found.pair("y", "x").p == wanted.pair("y", "x").p
    (tmp_path / "bad.txt").write_text("a - spoof 1\nb - bonafide\n")
    with pytest.raises(ArtifactError, match="line 2 has not 4 words, or none of bonafide and spoof where others do"):
        daamctl.judge(tmp_path / "bad.txt", tmp_path / "y.txt")
    (tmp_path / "other.txt").write_text("a b\nc d e\n")
    with pytest.raises(ArtifactError, match="line 2 has 3 words; need an item and an answer"):
        daamctl.judge(tmp_path / "other.txt", tmp_path / "y.txt")


def test_scores_of_very_many_single_items_have_fewer_levels() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 6000)
    rows = [pl.DataFrame({"label": label, "pred": label + rng.normal(0, 1, 6000)}) for _ in range(2)]
    found = daamctl.judge(*rows, metric="auroc").values["auroc"]
    assert list(found.values()) == pytest.approx([roc_auc_score(label, one["pred"]) for one in rows], abs=1e-4)


def test_what_scores_need() -> None:
    tables = {"x": scored(1.0, 2), "y": scored(0.6, 1)}
    with pytest.raises(
        ConfigError, match="x: predictions are scores, not classes\n  rank the models by them: --metric au"
    ):
        daamctl.judge(tables)
    three = [rows.with_columns(label=pl.int_range(pl.len()) % 3) for rows in tables.values()]
    with pytest.raises(ConfigError, match="AUROC needs two classes, and there are 3 labels: 0, 1, 2"):
        daamctl.judge(*three, metric="auroc")
    gaps = [rows.with_columns(label=pl.when(pl.int_range(pl.len()) < 3).then(None).otherwise(pl.lit("a")))
            for rows in tables.values()]  # fmt: skip
    with pytest.raises(ConfigError, match="table 1: 3 of 240 items have no label"):
        daamctl.judge(*gaps, metric="auroc")
    first = pl.when(pl.int_range(pl.len()) < 3).then(None).otherwise("pred")
    with pytest.raises(ConfigError, match=r"x: AUROC needs numbers, and 3 of 240 predictions are none, e\.g\. that of"):
        daamctl.judge({**tables, "x": tables["x"].with_columns(pred=first)}, metric="auroc")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("pred", "joy", "x: CCC needs numbers, and 3 of 240 predictions are none, e.g. 'joy' of item 'u000'"),
        ("label", "joy", "x: CCC needs numbers, and 3 of 240 labels are none, e.g. 'joy' of item 'u000'"),
        ("pred", None, "x: CCC needs numbers, and 3 of 240 predictions are none, e.g. that of item 'u000'"),
        ("pred", "inf", "x: CCC needs numbers, and 3 of 240 predictions are none, e.g. 'inf' of item 'u000'"),
    ],
)
def test_what_is_no_number_is_refused(column: str, value: str | None, message: str) -> None:
    first = pl.when(pl.int_range(pl.len()) < 3).then(pl.lit(value, pl.String))
    tables = {"x": measured(1.0, 2), "y": measured(0.6, 1)}
    for name in ("x", "y") if column == "label" else ("x",):
        tables[name] = tables[name].with_columns(first.otherwise(pl.col(column).cast(pl.String)).alias(column))
    with pytest.raises(ConfigError, match=re.escape(message)):
        daamctl.judge(tables, metric="ccc")


def test_labels_that_are_all_the_same_have_no_agreement() -> None:
    tables = [table(0.5, seed).with_columns(label=pl.lit(3), pred=pl.lit(seed)) for seed in (3, 4)]
    with pytest.raises(ConfigError, match="there is no CCC: all labels are the same"):
        daamctl.judge(*tables, metric="ccc")
    with pytest.raises(ConfigError, match="is among the labels") as refused:
        daamctl.judge(*tables)
    assert refused.value.fix is not None
    assert "--metric ccc" in refused.value.fix
    some = [rows.with_columns(pred=pl.when(pl.col("speaker") == "s01").then(3).otherwise("pred")) for rows in tables]
    with pytest.raises(ConfigError, match="there is no CCC: all labels are the same"):
        daamctl.judge(*some, metric="ccc")


def test_whole_numbers_are_measured_too() -> None:
    """Ages, say, of which none is predicted exactly, or some are no age of anybody."""
    one = table(0.5, 1).with_columns(label=pl.int_range(pl.len()) * 2 % 80)
    odd = {name: one.with_columns(pred=pl.col("label") + shift) for name, shift in (("x", 1), ("y", 31))}
    verdict = daamctl.judge(odd, metric="ccc")
    assert verdict.models == ["x", "y"]
    assert [note for note in verdict.notes if "no label of any item" in note] == []
    near = {name: rows.with_columns(pl.col("pred") + 1) for name, rows in odd.items()}
    assert daamctl.judge(near, metric="ccc").notes == verdict.notes
    assert any("no label of any item" in note for note in daamctl.judge(near).notes)


def error_counts(rate: float, seed: int) -> pl.DataFrame:
    """Errors that a scorer has counted, as MeetEval calls them."""
    rows, rng = table(0.5, 1).drop("label", "pred"), np.random.default_rng(seed)
    length = np.random.default_rng(0).integers(1, 30, len(rows))
    return rows.with_columns(errors=rng.binomial(length, rate), length=length)


def test_counted_errors_are_judged_by_their_rate() -> None:
    tables = {"x": error_counts(0.3, 2), "y": error_counts(0.1, 1)}
    verdict = daamctl.judge(tables, metric="counted_accuracy", margin=0.05)
    assert (verdict.models, verdict.metrics) == (["y", "x"], ["counted_accuracy"])
    rates = {name: rows["errors"].sum() / rows["length"].sum() for name, rows in tables.items()}
    assert verdict.values["counted_accuracy"] == pytest.approx({name: 1 - rate for name, rate in rates.items()})
    assert verdict.notes == ["read: item = utterance, label = length, prediction = errors, group = speaker"]
    lines = sentences(verdict)
    assert lines[0].startswith("y leads x by +")
    assert " points of counted accuracy (1 − error rate) (" in lines[0]
    assert re.fullmatch(r"y has fewer errors on \d+ of 240 items, x on \d+\.", lines[3])
    # one table of several models names the columns of their errors
    wide = tables["x"].with_columns(better=tables["y"]["errors"])
    named = daamctl.judge(wide, metric="counted_accuracy", prediction=["errors", "better"])
    assert named.values["counted_accuracy"] == pytest.approx({"errors": 1 - rates["x"], "better": 1 - rates["y"]})
    with pytest.raises(ConfigError, match="have no prediction") as refused:
        daamctl.judge(tables)
    assert refused.value.fix is not None
    assert refused.value.fix.endswith("--items FILE; to rank by counted errors: --metric counted-accuracy")


@pytest.mark.parametrize("column", ["pesq", "graded"])
def test_scores_on_any_scale_are_judged_by_their_mean(column: str) -> None:
    base = table(0.5, 1).drop("label", "pred")
    quality = np.random.default_rng(0).normal(30, 5, 240)
    noise = [np.random.default_rng(seed).normal(0, 2, 240) for seed in (1, 2)]
    one = base.with_columns(pl.Series(column, quality + noise[0] + 1))
    other = base.with_columns(pl.Series(column, quality + noise[1]))
    given = {} if column == "pesq" else {"correct": column}  # as a metric of a log is named
    verdict = daamctl.judge({"x": one, "y": other}, metric="mean", margin=0.5, **given)
    assert verdict.models == ["x", "y"]
    assert verdict.values == {
        "mean": {"x": pytest.approx(one[column].mean()), "y": pytest.approx(other[column].mean())}
    }
    assert verdict.notes == [f"read: item = utterance, prediction = {column}, group = speaker"]
    gaps = by_speaker_mean(one, other, column)
    pair = verdict.pair("x", "y")
    assert pair.p == pytest.approx(paired_sign_flip(gaps)["p"])
    assert pair.wins == int((one[column] > other[column]).sum())
    lines = sentences(verdict)
    assert re.fullmatch(r"x leads y by \+\d\.\d{3} of mean score \(3\d\.\d{3} and .*", lines[0])
    assert lines[3] == f"x scores higher on {pair.wins} of 240 items, y on {pair.losses}."
    page = str(document(verdict, []))
    assert "Mean score" in page
    assert "x higher" in page
    assert "(%)" not in page
    with pytest.raises(ConfigError) as refused:
        daamctl.judge({"x": one, "y": other}, **given)
    assert refused.value.fix is not None
    assert refused.value.fix.endswith("of scores on any scale: --metric mean" if given else
                                      "; to rank by scores on any scale: --metric mean")  # fmt: skip
    silent = one.with_columns(pl.when(pl.col("speaker") == "s01").then(None).otherwise(column).alias(column))
    with pytest.raises(ConfigError, match="mean score needs numbers, and 20 of 240 predictions are none"):
        daamctl.judge({"x": one, "y": silent}, metric="mean", **given)


def test_losses_are_judged_by_their_mean_too() -> None:
    base, rng = table(0.5, 1).drop("label", "pred"), np.random.default_rng(0)
    low = base.with_columns(nll=pl.Series(rng.exponential(1.0, 240)))
    high = base.with_columns(nll=pl.Series(rng.exponential(1.5, 240)))
    verdict = daamctl.judge({"x": high, "y": low}, metric="mean_loss")
    assert verdict.models == ["y", "x"]
    assert verdict.values["mean_loss"] == pytest.approx({"x": -high["nll"].mean(), "y": -low["nll"].mean()})
    pair = verdict.pair("y", "x")
    assert (pair.wins, pair.losses) == ((low["nll"] < high["nll"]).sum(), (high["nll"] < low["nll"]).sum())
    lines = sentences(verdict)
    assert re.match(r"y leads x by \+0\.\d{3} of negative mean loss \(−\d\.\d{3} and −\d\.\d{3}\), 95 % ", lines[0])
    assert lines[3] == f"y has a lower loss on {pair.wins} of 240 items, x on {pair.losses}."
    page = str(document(verdict, []))
    assert "y lower" in page
    with pytest.raises(ConfigError) as refused:
        daamctl.judge({"x": high, "y": low})
    assert refused.value.fix is not None
    assert refused.value.fix.endswith("--items FILE; to rank by losses: --metric mean-loss")


def by_speaker_mean(one: pl.DataFrame, other: pl.DataFrame, column: str) -> np.ndarray:
    """Difference of the mean of a column for every speaker."""
    gap = one[column] - other[column]
    return one.select("speaker", gap=gap).group_by("speaker").agg(pl.col("gap").mean())["gap"].to_numpy()


def test_what_counted_errors_need() -> None:
    one = error_counts(0.1, 1)
    less = one.with_columns(pl.col("errors").cast(pl.Int64) - 1)
    with pytest.raises(ConfigError, match=r"needs numbers from 0 on, and \d+ of 240 predictions are none, e\.g\. '-1'"):
        daamctl.judge({"x": one, "y": less}, metric="counted_accuracy")
    nothing = one.with_columns(length=0)
    with pytest.raises(ConfigError, match="errors are counted of nothing, all labels are 0"):
        daamctl.judge({"x": nothing, "y": nothing}, metric="counted_accuracy")
    # silence may have errors; a speaker of whom nothing was said adds them
    silent = [
        rows.with_columns(length=pl.col("length") * (pl.col("speaker") != "s01"))
        for rows in (one, error_counts(0.2, 3))
    ]
    verdict = daamctl.judge({"x": silent[0], "y": silent[1]}, metric="counted_accuracy")
    assert verdict.values["counted_accuracy"]["x"] == pytest.approx(
        1 - silent[0]["errors"].sum() / silent[0]["length"].sum()
    )


@pytest.mark.parametrize("metric", ["balanced_accuracy", "macro_f1", "ccc", "word_accuracy", "counted_accuracy"])
def test_a_margin_is_of_the_metric(metric: str) -> None:
    made = {"ccc": measured, "counted_accuracy": error_counts}.get(metric, table)
    one, other = (made(*setting) for setting in ((0.6, 1), (0.7, 2)))
    verdict = daamctl.judge({"x": one, "y": other}, metric=metric, margin=0.1)
    ((name, found),) = verdict.not_worse.items()
    values = verdict.values[metric]
    assert name == "y"
    assert (found.value, found.difference) == pytest.approx((values["y"], values["y"] - values["x"]))
    shown = f"That y is less than {'0.1' if metric == 'ccc' else '10 points'} of {FIGURES[metric]} worse than x is"
    assert any(line.startswith(shown) for line in sentences(verdict))
    assert found.low is not None
    for margin in (0.0, 0.02, -0.99 * found.low, -1.01 * found.low):
        if margin >= 0:
            again = daamctl.judge({"x": one, "y": other}, metric=metric, margin=margin).not_worse["y"]
            assert again.p is not None
            assert again.low == found.low
            assert (again.p <= 0.05) == (found.low > -margin)
    if metric in ("ccc", "word_accuracy"):  # Student's t with a jackknife over speakers
        speakers, gaps = one["speaker"].unique(), []
        for speaker in speakers:
            parts = {name: rows.filter(pl.col("speaker") != speaker) for name, rows in (("x", one), ("y", other))}
            left = daamctl.judge(parts, metric=metric).values[metric]
            gaps.append(left["y"] - left["x"])
        number = len(speakers)
        error = np.sqrt((number - 1) / number * ((np.array(gaps) - np.mean(gaps)) ** 2).sum())
        assert found.p == pytest.approx(stats.t.sf((found.difference + 0.1) / error, number - 1))
        assert found.low == pytest.approx(found.difference - stats.t.isf(0.05, number - 1) * error)
    same = daamctl.judge({"x": one, "y": one}, metric=metric, margin=0.1).not_worse["y"]
    assert same.difference == 0
    assert same.p is not None
    assert same.p < 1e-3
    alone = [rows.filter(pl.col("speaker") < "s03") for rows in (one, other)]
    untested = daamctl.judge({"x": alone[0], "y": alone[1]}, metric=metric, margin=0.1)
    assert untested.not_worse["y"].p is None
    assert any(line.endswith("worse than x cannot be tested.") for line in sentences(untested))


def test_the_column_of_the_labels_may_be_called_as_that_of_the_predictions(tmp_path: Path) -> None:
    """As in MSP-Podcast's challenge: EmoAct of the answers, and EmoAct and SpkrID of the labels."""
    names = {"utterance": "FileName", "speaker": "SpkrID", "label": "EmoAct"}
    for name, rows in (("x", measured(1.0, 2)), ("y", measured(0.6, 1))):
        rows.select(FileName="utterance", EmoAct="pred").write_csv(tmp_path / f"{name}.csv")
    measured(1.0, 2).select("utterance", "speaker", "label").rename(names).write_csv(tmp_path / "labels.csv")
    files = [tmp_path / "x.csv", tmp_path / "y.csv"]
    same = {"label": "EmoAct", "prediction": "EmoAct", "metric": "ccc"}
    found = daamctl.judge(*files, items=tmp_path / "labels.csv", **same)
    wanted = daamctl.judge({"x": measured(1.0, 2), "y": measured(0.6, 1)}, metric="ccc")
    assert found.values == wanted.values
    assert (found.design.unit_word, found.pair("x", "y")) == ("speaker", wanted.pair("x", "y"))
    with pytest.raises(
        ConfigError, match=r"x\.csv: the column 'EmoAct' cannot be both label and prediction\n  name another"
    ):
        daamctl.judge(*files, **same)


def test_labels_that_do_not_repeat_are_not_translated() -> None:
    """Else other labels would pass for other names of the same."""
    rows = measured(1.0, 2)
    with pytest.raises(ConfigError, match="240 items have more than one label"):
        daamctl.judge(rows, rows.with_columns(pl.col("label") + 0.001), metric="ccc")


def test_predictions_of_a_regression_of_the_trainer(tmp_path: Path) -> None:
    tables = {"x": measured(1.0, 2), "y": measured(0.6, 1)}
    for name, rows in tables.items():
        label, said = (rows[column].to_numpy().astype(np.float32) for column in ("label", "pred"))
        np.savez(tmp_path / f"{name}.npz", predictions=said[:, None], label_ids=label)
    found = daamctl.judge(tmp_path / "x.npz", tmp_path / "y.npz", metric="pearson")
    for name, rows in tables.items():
        assert found.values["pearson"][name] == pytest.approx(stats.pearsonr(rows["label"], rows["pred"])[0], abs=1e-6)


def tagged(skill: float, seed: int) -> pl.DataFrame:
    """Words of 40 sentences, whose names say nothing of their order, with tags that are right with this probability."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    rows = []
    for sentence in range(40):
        for word in range(int(shared.integers(4, 12))):
            inside = word > 0 and rows[-1]["label"] != "O" and shared.random() < 0.5
            label = f"I-{rows[-1]['label'][2:]}" if inside else str(shared.choice(["O", "O", "B-per", "B-loc"]))
            said = label if own.random() < skill else str(own.choice(["O", "B-per", "I-per", "I-org"]))
            rows.append(
                {"item": f"{len(rows) * 7919 % 1000}", "sentence": f"s{sentence}", "label": label, "prediction": said}
            )
    return pl.DataFrame(rows)


def seqeval_f1(rows: pl.DataFrame) -> float:
    parts = rows.partition_by("sentence", maintain_order=True)
    return float(entity_f1(*([part[name].to_list() for part in parts] for name in ("label", "prediction"))))


def test_taggers_are_ranked_by_entities() -> None:
    tables = {"x": tagged(0.7, 1), "y": tagged(0.85, 2)}
    verdict = daamctl.judge(tables, metric="entity_f1")
    assert verdict.values["entity_f1"] == {name: pytest.approx(seqeval_f1(rows)) for name, rows in tables.items()}
    assert (verdict.models[0], verdict.pair("y", "x").unit, verdict.pair("y", "x").units) == ("y", "sentence", 40)
    assert sentences(verdict)[0].startswith("y leads x by +")
    plain = daamctl.judge(tables)
    note = "labels are tags of words, which are compared by entity F1: --metric entity-f1"
    assert (note in plain.notes, note in verdict.notes) == (True, False)
    assert plain.pair("y", "x") == verdict.pair("y", "x", "accuracy")


@pytest.mark.parametrize("documents", [False, True])
def test_names_of_words_tell_their_sentence(documents: bool) -> None:
    rows = {"x": tagged(0.7, 1), "y": tagged(0.85, 2)}
    position = pl.int_range(pl.len()).over("sentence").cast(pl.String).str.zfill(4)
    named = {
        name: table.with_columns(item=pl.col("sentence") + "-" + position).with_columns(
            document=pl.col("sentence").str.slice(1).cast(pl.Int64) // (5 if documents else 1)
        )
        for name, table in rows.items()
    }
    found = daamctl.judge({name: table.drop("sentence") for name, table in named.items()}, metric="entity_f1")
    assert found.values["entity_f1"] == {name: pytest.approx(seqeval_f1(table)) for name, table in rows.items()}
    assert (found.design.unit_word, found.design.n_units) == ("document", 8 if documents else 40)


def test_sentences_hold_entities_and_documents_are_drawn() -> None:
    rows = {"x": tagged(0.7, 1), "y": tagged(0.85, 2)}
    number = pl.col("sentence").str.slice(1).cast(pl.Int64)
    # documents number their sentences alike, and the speakers of two take turns
    for columns in ({"document": number // 5, "sentence": number % 5}, {"speaker": number % 8}):
        given = {name: table.with_columns(**columns) for name, table in rows.items()}
        found = daamctl.judge(given, metric="entity_f1")
        assert found.values["entity_f1"] == {name: pytest.approx(seqeval_f1(table)) for name, table in rows.items()}
        assert (found.design.unit_word, found.design.n_units) == (next(iter(columns)), 8)
    gap = given["x"].with_columns(sentence=pl.when(pl.col("item") != "919").then("sentence"))
    with pytest.raises(ConfigError, match=r"1 of \d+ words have no sentence, e\.g\. '919'"):
        daamctl.judge(gap, gap, metric="entity_f1")


def test_words_are_in_the_order_of_the_first_file(tmp_path: Path) -> None:
    rows = {"x": tagged(0.7, 1), "y": tagged(0.85, 2)}
    wanted = daamctl.judge(rows, metric="entity_f1")
    other = rows["y"].sort("sentence", "item")
    found = daamctl.judge({"x": rows["x"], "y": other}, metric="entity_f1")
    assert found.values == wanted.values
    assert found.pairs == wanted.pairs
    assert found.notes == [*wanted.notes[:-1], "words are in the order of x; that of y is another", wanted.notes[-1]]
    # or in that of the file with the labels, which may also tell the sentences
    document = pl.col("sentence").str.slice(1).cast(pl.Int64) // 5
    rows["x"].drop("prediction").with_columns(document=document).write_csv(tmp_path / "items.csv")
    for name, table in {"x": rows["x"].sort("item"), "y": other}.items():
        table.select("item", "prediction").write_csv(tmp_path / f"{name}.csv")
    files = [tmp_path / "x.csv", tmp_path / "y.csv"]
    found = daamctl.judge(*files, items=tmp_path / "items.csv", metric="entity_f1")
    assert (found.values, found.design.n_units) == (wanted.values, 8)


def test_names_that_only_look_like_those_of_words_tell_no_sentence() -> None:
    rows = {"x": tagged(0.7, 1), "y": tagged(0.85, 2)}
    number = pl.lit("clip-") + pl.int_range(pl.len()).cast(pl.String).str.zfill(4)
    named = {name: table.with_columns(item=number) for name, table in rows.items()}
    assert daamctl.judge(named, metric="entity_f1").pair("y", "x") == daamctl.judge(rows, metric="entity_f1").pair(
        "y", "x"
    )


def test_what_entities_need() -> None:
    rows = tagged(0.7, 1)
    with pytest.raises(ConfigError, match="needs the sentence or document of every word\n  name its column"):
        daamctl.judge(rows.drop("sentence"), rows.drop("sentence"), metric="entity_f1")
    with pytest.raises(ConfigError, match="there is no entity F1: 'anger' is not a BIO tag"):
        daamctl.judge(table(0.7, 1).sort("speaker"), table(0.6, 2).sort("speaker"), metric="entity_f1")
    mixed = rows.sort("item")
    with pytest.raises(ConfigError, match="there is no entity F1: the words of a sentence do not follow each other"):
        daamctl.judge(mixed, mixed, metric="entity_f1")
    # a prediction that is missing, or no tag, is no entity
    holes = rows.with_columns(prediction=pl.when(pl.col("prediction") == "O").then(None).otherwise("prediction"))
    assert daamctl.judge(rows, holes, metric="entity_f1").pair("table 1", "table 2").difference == 0


def heard(noise: float, seed: int) -> pl.DataFrame:
    """Words that were recognised."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    words = ["so", "it", "goes", "on", "and"]
    true = [" ".join(shared.choice(words, shared.integers(1, 9))) for _ in range(240)]
    said = [
        " ".join(
            str(own.choice(words)) if own.random() < noise else word for word in text.split() if own.random() > 0.1
        )
        for text in true
    ]
    return table(0.5, 1).with_columns(label=pl.Series(true), pred=pl.Series(said))


@pytest.mark.parametrize("metric", ["word_accuracy", "character_accuracy"])
def test_recognised_words_are_judged_by_their_errors(metric: str) -> None:
    tables = {"x": heard(0.3, 2), "y": heard(0.1, 1)}
    verdict = daamctl.judge(tables, metric=metric)
    assert (verdict.models, verdict.metrics) == (["y", "x"], [metric])
    lines = sentences(verdict)
    name = {"word_accuracy": "word accuracy (1 − WER)", "character_accuracy": "character accuracy (1 − CER)"}[metric]
    wanted = rf"y leads x by \+\d+\.\d points of {re.escape(name)} \(\d+\.\d and \d+\.\d %\), 95 % interval .*"
    assert re.fullmatch(wanted, lines[0])
    assert f"in the mean of {metric.split('_')[0]} errors: s" in "\n".join(lines)
    assert lines[2].endswith(" points.")
    page = str(document(verdict, []))
    assert f"Items that decide: {metric.split('_')[0]} errors" in page
    plain = daamctl.judge(tables)
    note = "labels are texts, and only equal ones are right; for the word error rate: --metric word-accuracy"
    assert (note in plain.notes, note in verdict.notes) == (True, False)
    assert note not in daamctl.judge(table(0.7, 1), table(0.6, 2)).notes
    named = [rows.with_columns(pl.col("label", "pred") + " face") for rows in (table(0.7, 1), table(0.6, 2))]
    assert note not in daamctl.judge(*named).notes
    with pytest.raises(ConfigError, match=r"no prediction .* is among the labels"):
        daamctl.judge(*(rows.with_columns(pred=pl.lit("a wall")) for rows in named))


def test_what_word_errors_need() -> None:
    one, other = heard(0.1, 1), heard(0.3, 2)
    never = [rows.with_columns(pred=pl.col("pred") + " x") for rows in (one, other)]  # no text is right
    assert daamctl.judge(*never, metric="word_accuracy").models == ["table 1", "table 2"]
    right = [rows.drop("pred").with_columns(correct=pl.lit(value=True)) for rows in (one, other)]
    with pytest.raises(
        ConfigError, match=r"x: word accuracy .* needs texts, and 240 of 240 predictions are none, e\.g\. "
    ):
        daamctl.judge({"x": right[0], "y": right[1]}, metric="word_accuracy")
    silent = one.with_columns(pred=pl.when(pl.col("speaker") == "s01").then(pl.lit("")).otherwise("pred"))
    verdict = daamctl.judge({"x": one, "y": silent}, metric="word_accuracy")
    words = one.filter(pl.col("speaker") == "s01")["label"].str.split(" ").list.len().sum()
    assert verdict.items.filter(pl.col("group") == "s01")["y"].sum() == words
