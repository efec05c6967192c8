"""`protocols`: folds that share what they say and nothing else, and figures that are those of the probes of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import daamctl
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.protocols import PROBES, Protocols, find_protocols
from daamctl.artifacts.results import read_folds
from daamctl.cli.app import app
from daamctl.config import Config, DownloadConfig, load_config
from daamctl.config.keys import probe_settings
from daamctl.corpora.groups import assign_groups
from daamctl.errors import ArtifactError, ConfigError, CorpusError, UnknownNameError
from daamctl.evaluation.consistency import protocols_otherwise
from daamctl.fit.features import load_features
from daamctl.reporting.document import Text, if_current
from daamctl.reporting.protocols import section as section_of
from daamctl.stages import protocols
from daamctl.stages.download import _group_by_sentence
from daamctl.stages.protocols import PROTOCOLS, Fold, folds_of, partitions
from tests.fixtures.exported import in_project, shared_project


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_project(tmp_path_factory)


def corpus(**columns: pl.Expr) -> pl.DataFrame:
    """Six speakers read eight sentences, some of them twice, in four classes."""
    rng = np.random.default_rng(0)
    rows = [(f"s{who}", f"t{what}") for who in range(6) for what in range(8) for _ in range(rng.integers(1, 4))]
    names = [f"u{number:03d}" for number in range(len(rows))]
    table = pl.DataFrame(rows, schema=["speaker", "sentence"], orient="row").with_columns(
        utterance_id=pl.Series(names),
        clip_id=pl.Series(names),
        label=pl.Series([str(one) for one in rng.integers(0, 4, len(rows))]),
    )
    return assign_groups(table, 3).with_columns(**columns)


def shared(clips: pl.DataFrame, fold: Fold, column: str) -> set[str]:
    values = clips[column].to_numpy()
    known = np.concatenate([fold.train, fold.dev]) if fold.held else fold.train
    return set(values[known]) & set(values[fold.test])


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name not in ("pipeline", "official")])
def test_training_and_test_share_what_the_protocol_says(name: str) -> None:
    clips = corpus()
    possible, _ = partitions(clips, Config())
    folds = folds_of(name, possible, clips, Config())
    protocol = PROTOCOLS[name]
    apart = {"speakers": ["speaker"], "one-speaker-out": ["speaker"], "sentences": ["sentence"]}.get(protocol.folds, [])
    apart = ["speaker", "sentence"] if protocol.folds == "both" else apart
    tested = np.concatenate([fold.test for fold in folds])
    for fold in folds:
        assert not set(fold.train) & set(fold.test)
        assert not set(fold.train) & set(fold.dev)
        for column in ("speaker", "sentence"):
            assert not shared(clips, fold, column) or column not in apart
        if protocol.chooses == "test":
            assert set(fold.dev) == set(fold.test)
        if protocol.shots:
            assert clips[fold.train]["label"].value_counts()["count"].max() <= protocol.shots
    for column in {"speaker", "sentence"} - set(apart):  # what is not held apart is shared
        assert any(shared(clips, fold, column) for fold in folds)
    assert sorted(tested) == sorted([*range(len(clips))] * protocol.repeats)  # each item once in every repetition


def test_random_folds_with_less_train_on_as_much_as_both() -> None:
    clips = corpus()
    possible, _ = partitions(clips, Config())
    less, both = (
        np.mean([len(fold.train) + len(fold.dev) for fold in folds_of(name, possible, clips, Config())])
        for name in ("random-less", "both")
    )
    assert less == pytest.approx(both, rel=0.05)


def test_what_is_not_known_leaves_protocols_out() -> None:
    possible, absent = partitions(corpus().drop("sentence"), Config())
    assert {"sentences", "both", "random-less"} <= set(absent)
    assert "is unknown" in absent["sentences"]
    assert "speakers" in possible
    possible, absent = partitions(corpus(speaker=pl.col("utterance_id")), Config())
    assert "who the items come from is unknown" in absent["speakers"]
    assert "who the items come from is unknown" in absent["one-speaker-out"]
    assert next(iter(possible)) == "pipeline"


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        (pl.lit("t"), "all items have the same sentence"),
        (pl.col("utterance_id"), "no two items have the same sentence"),
        (pl.col("label"), "the sentences of '0' would all be tested together"),
        (pl.col("speaker"), "folds that share no sentence share no speaker either"),
    ],
)
def test_sentences_that_make_no_folds_are_left_out(sentence: pl.Expr, reason: str) -> None:
    possible, absent = partitions(corpus(sentence=sentence), Config())
    for name in ("sentences", "both", "random-less"):
        assert reason in absent[name]
        assert name not in possible
    assert {"speakers", "random"} <= set(possible)


def test_a_fold_without_training_items_leaves_its_protocol_out() -> None:
    """Five speakers say two sentences of their own each."""
    few = corpus().filter(pl.col("speaker") < "s5", pl.col("sentence") < "t2")
    possible, absent = partitions(few.with_columns(sentence=pl.format("{} {}", "speaker", "sentence")), Config())
    assert {"speakers", "sentences", "random"} <= set(possible)
    for name in ("both", "random-less"):
        assert absent[name].startswith("a fold would train on nothing: ")
        assert name not in possible


def test_folds_that_share_neither_speakers_nor_sentences_are_those_of_speakers_alone() -> None:
    clips = corpus(sentence=pl.format("{} {}", "speaker", "sentence"))
    possible, _ = partitions(clips, Config())
    assert possible["speakers"][0].equals(clips["group"])
    folds = folds_of("sentences", possible, clips, Config())
    assert not any(shared(clips, fold, "sentence") for fold in folds)
    assert any(shared(clips, fold, "speaker") for fold in folds)


@pytest.mark.parametrize(("number", "possible"), [(50, True), (51, False)])
def test_many_speakers_are_not_left_out_one_at_a_time(number: int, possible: bool) -> None:
    many = corpus(speaker=pl.format("s{}", pl.int_range(pl.len()) % number), group=pl.lit(None, pl.String))
    found, absent = partitions(assign_groups(many, 3), Config())
    assert ("one-speaker-out" in found) is possible
    told = "there are 51 speakers, and at most 50 are left out one at a time"
    assert absent.get("one-speaker-out") == (None if possible else told)


@pytest.mark.parametrize(("speakers", "reason"), [(3, "3 speakers are too few for 4 folds"), (4, None)])
def test_too_few_speakers_leave_four_folds_of_speakers_out(speakers: int, reason: str | None) -> None:
    possible, absent = partitions(corpus().filter(pl.col("speaker") < f"s{speakers}"), Config())
    assert "speakers" in possible
    assert ("x-ares" in possible, absent.get("x-ares")) == (reason is None, reason)


def test_random_folds_as_small_as_both_need_both() -> None:
    found, _ = partitions(corpus(sentence=pl.col("utterance_id")), Config())
    assert "random" in found
    assert "random-less" not in found


def test_an_official_split_is_a_protocol() -> None:
    clips = corpus(group=pl.when(pl.col("speaker") < "s4").then(pl.lit("train")).otherwise(pl.lit("test")))
    possible, absent = partitions(clips, Config())
    assert "official" in possible
    assert list(absent) == ["pipeline"]
    assert "are those of `official`" in absent["pipeline"]
    (fold,) = folds_of("official", possible, clips, Config())
    assert set(clips["speaker"].to_numpy()[fold.test]) == {"s4", "s5"}
    assert len(fold.train) + len(fold.dev) + len(fold.test) == len(clips)


@pytest.mark.parametrize(("disjoint", "name"), [("sentence", "sentences"), ("both", "both")])
def test_folds_of_the_pipeline_are_those_of_the_protocol_that_they_follow(disjoint: str, name: str) -> None:
    settings = DownloadConfig(disjoint=disjoint, num_groups=3)
    clips = _group_by_sentence(corpus().with_columns(group=pl.lit(None, pl.String)), "text", settings, str)
    possible, absent = partitions(clips, Config())
    assert absent["pipeline"] == f"the folds of the pipeline are those of `{name}`"
    assert possible[name][0].to_list() == clips["group"].to_list()
    for one in ("speakers", "sentences"):
        grouped = clips.with_columns(group=possible[one][0])
        assert grouped.group_by(one.removesuffix("s")).agg(pl.col("group").n_unique())["group"].max() == 1


def test_folds_of_speakers_are_those_of_the_pipeline_or_made_as_its_settings_say() -> None:
    by_hand = corpus(group=pl.when(pl.col("speaker") < "s2").then(pl.lit("few")).otherwise(pl.lit("many")))
    possible, why = partitions(by_hand, Config())
    assert possible["speakers"][0].equals(by_hand["group"])
    assert why["pipeline"] == "the folds of the pipeline share no speaker, so they are those of `speakers`"
    shares = corpus(
        group=pl.when(pl.int_range(pl.len()) % 3 == 0).then(pl.lit("a")).otherwise(pl.lit("b")),
        label=pl.col("speaker").replace_strict({"s0": "x", "s1": "x"}, default="y"),
    )
    for folds in ("corpus", "stratified"):
        possible, why = partitions(shares, Config.model_validate({"download": {"folds": folds}}))
        made = assign_groups(shares, 2, stratify=folds == "stratified")["group"]
        assert possible["speakers"][0].equals(made)
        assert "pipeline" not in why
    assert not made.equals(assign_groups(shares, 2, stratify=False)["group"])


def test_pairs_of_unknown_speakers_stay_the_folds_of_the_pipeline() -> None:
    alone = corpus(speaker=pl.col("utterance_id"), group=pl.lit(None, pl.String))
    clips = _group_by_sentence(alone, "text", DownloadConfig(disjoint="both", num_groups=3), str)
    possible, absent = partitions(clips, Config())
    assert next(iter(possible)) == "pipeline"
    assert "who the items come from is unknown" in absent["both"]


@pytest.mark.usefixtures("blank_pictures")
def test_figures_are_those_of_the_probes_of_the_run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {name: replace(one, repeats=min(one.repeats, 2)) for name, one in protocols.PROTOCOLS.items()}
    monkeypatch.setattr(protocols, "PROTOCOLS", fewer)
    config = load_config(trained, "tiny")
    layout = Layout.of(trained, "tiny", config)
    with in_project(trained):
        page = protocols.run(layout, config)
        rows = daamctl.results("tiny", "protocols", root=trained)
    assert page.is_file()
    found = find_protocols(layout.stage("protocols"))
    assert found is not None
    assert probe_settings(config).items() < found.train.items()
    assert found.train["test_part"] is found.train["shots"] is None  # so that a value now is another
    scores = read_evaluation(layout.stage("evaluate")).scores
    own = "pipeline" if "pipeline" in set(rows["protocol"]) else "speakers"
    for metric in ("accuracy", "balanced_accuracy"):
        found = rows.filter(protocol=own, probe="mean", metric=metric)["value"]
        assert found.unique().to_list() == pytest.approx([scores.figure("ridge-mean", metric, "utterance").pooled])
    assert set(rows["probe"]) == set(PROBES)
    gaps = rows.filter(metric="accuracy").drop_nulls("against")
    for row in gaps.iter_rows(named=True):
        other = rows.filter(protocol=row["against"], probe=row["probe"], metric="accuracy")["value"][0]
        assert row["difference"] == pytest.approx(row["value"] - other)


def test_a_report_shows_no_protocols_of_other_settings(trained: Path) -> None:
    layout = Layout.of(trained, "tiny", load_config(trained, "tiny"))
    evaluation, folds = read_evaluation(layout.stage("evaluate")), read_folds(layout.method("ridge-mean"))
    made: dict[str, Any] = {"run": "tiny", "embeddings_key": "k", "reference": "speakers", "texts": {}, "sources": {}}
    for item, refit, said in (
        ("utterance", False, ""),
        ("utterance", True, "train.refit: true (now false)"),
        ("clip", False, "scored per clip (now per utterance)"),
    ):
        found = Protocols(**made, item=item, absent={}, train={"refit": refit})
        changed = protocols_otherwise(found, evaluation, folds)
        assert changed == [said] * bool(said)
        part = if_current(section_of, found, key="k", command="daamctl protocols tiny", changed=changed)
        how = f"It was found with other settings: {said}. Run again: daamctl protocols tiny"
        assert part is not None
        assert (part.blocks == [Text(how, caution=True)]) == bool(said)


def test_probes_see_the_layers_of_their_names() -> None:
    rng, clips = np.random.default_rng(0), corpus()
    targets = rng.integers(0, 4, len(clips))
    x = torch.from_numpy(rng.normal(size=(len(clips), 3, 8)).astype("float32"))
    x[:, 0, :4] += 9 * torch.nn.functional.one_hot(torch.from_numpy(targets), 4)  # the first layer alone has the label
    x[:, 1:, :4] = 1  # what does not vary adds nothing to the mean of standardised layers
    rows = np.arange(len(clips))
    fold = Fold(rows[::2], rows[1::4], rows[3::4])
    features: Any = SimpleNamespace(x=x, layers=(1, 2, 3), clips=clips, head=SimpleNamespace(classes=list("abcd")))
    found = {probe: protocols._tested(features, targets, Config(), fold, probe) for probe in PROBES}
    right = {probe: table["correct"].mean() for probe, table in found.items()}
    assert right["best"] == right["all"] == 1.0
    assert right["last"] < 0.6
    assert right["mean"] > 0.9
    assert found["all"]["target"].to_list() == [targets[row] for row in rows[3::4]]


def test_balanced_accuracy_weighs_classes_alike() -> None:
    table = pl.DataFrame({"target": [0, 0, 0, 1], "correct": [1.0, 1.0, 1.0, 0.0]})
    assert [protocols._mean(table, metric) for metric in ("accuracy", "balanced_accuracy")] == [0.75, 0.5]


@pytest.mark.usefixtures("blank_pictures")
def test_what_a_probe_says_under_a_protocol_is_kept(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(trained, "tiny")
    layout = Layout.of(trained, "tiny", config)
    fitted: list[str] = []
    tested, every = protocols._tested, {"last", "best", "mean", "all"}

    def count(*args: Any) -> pl.DataFrame:
        if len(fitted) == stop:
            raise KeyboardInterrupt
        fitted.append(args[-1])
        return tested(*args)

    def figures(names: Sequence[str], config: Config = config) -> tuple[pl.DataFrame, list[str]]:
        fitted.clear()
        with in_project(trained):
            protocols.run(layout, config, names=names)
            return daamctl.results("tiny", "protocols", root=trained), list(fitted)

    monkeypatch.setattr(protocols, "_tested", count)
    kept, stop = layout.work / "protocols" / "tiny", -1
    shutil.rmtree(kept, ignore_errors=True)
    reference = next(iter(partitions(load_features(layout, config).clips, config)[0]))
    stop = 3 * len(layout_folds(layout, config, reference))
    with pytest.raises(KeyboardInterrupt):
        figures([reference])
    assert len(list(kept.iterdir())) == 3
    stop = -1
    first, probes = figures([reference])
    assert set(probes) == {"all"}  # the others were finished before the interruption
    both, probes = figures([reference, "random"])
    assert set(probes) == every
    assert len(probes) == 4 * len(layout_folds(layout, config, "random"))
    again, probes = figures([reference, "random"])
    assert probes == []
    assert again.equals(both)
    assert both.filter(protocol=reference).equals(first)
    (kept / "random-mean.arrow").write_bytes(b"damaged")
    again, probes = figures([reference, "random"])
    assert set(probes) == {"mean"}
    assert again.drop("seconds").equals(both.drop("seconds"))
    for section, setting in (("train", {"refit": not config.train.refit}), ("evaluate", {"unit": "clip"})):
        changed = config.model_copy(update={section: getattr(config, section).model_copy(update=setting)})
        assert set(figures([reference], changed)[1]) == every


def layout_folds(layout: Layout, config: Config, name: str) -> list[Fold]:
    clips = load_features(layout, config).clips
    return folds_of(name, partitions(clips, config)[0], clips, config)


def test_wrong_words_are_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(trained, "tiny")
    layout = Layout.of(trained, "tiny", config)
    with pytest.raises(UnknownNameError, match="unknown protocol 'speaker'"):
        protocols.run(layout, config, names=["speaker"])
    told = r"protocol 'both' is not possible with 'tiny': the sentence of \d+ of \d+ items is unknown"
    with pytest.raises(ConfigError, match=told):
        protocols.run(layout, config, names=["both"])
    monkeypatch.chdir(trained)
    result = CliRunner().invoke(app, ["protocols", "tiny", "--protocol", "speaker"])
    assert result.exit_code == 3
    assert "Traceback" not in result.output


@pytest.mark.parametrize("disjoint", ["sentence", "both"])
def test_groups_by_sentence(disjoint: str) -> None:
    settings = DownloadConfig(disjoint=disjoint, num_groups=3)
    rows = _group_by_sentence(
        corpus().drop("group").with_columns(group=pl.lit(None, pl.String)), "speech", settings, str
    )
    if disjoint == "sentence":
        assert rows.group_by("sentence").agg(pl.col("group").n_unique())["group"].max() == 1
        assert rows["group"].n_unique() == 3
    else:
        assert rows["group"].n_unique() == 9
    with pytest.raises(CorpusError, match="needs the sentence of every utterance"):
        _group_by_sentence(corpus().drop("sentence"), "speech", settings, lambda *words: json.dumps(words))


def test_a_project_that_cannot_be_written_is_refused_before_the_work(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(trained, "tiny")
    layout = Layout.of(trained, "tiny", config)
    monkeypatch.setattr(protocols, "_probed", None)
    monkeypatch.setattr(Layout, "stage", lambda *_: trained / "params.yaml" / "protocols")
    with pytest.raises(ArtifactError, match=r"cannot write .*\n  a file is where a folder should be"):
        protocols.run(layout, config, names=["speakers"])
