"""A pipeline over tagged words in one process, few-shot and whole, to a report with entity F1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from scipy.special import softmax
from scipy.stats import ttest_1samp
from seqeval.metrics import f1_score
from typer.testing import CliRunner

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import read_embeddings, read_head
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.importance import find_importance
from daamctl.artifacts.layer_sets import find_ablation, find_truncation, layers_name
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.artifacts.scores import Scores
from daamctl.artifacts.splits import split_of
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.data.spans import sentence_of
from daamctl.errors import ConfigError, MethodError, TrainingError, UnknownNameError
from daamctl.evaluation.audit import parts_of
from daamctl.models.folder import read_model
from daamctl.reporting.truncation import sentence
from daamctl.stages import compare, export, pipeline, predict, preflight, shots, truncate
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.ridge import ridge_scores

QUICK: dict[str, Any] = {
    "methods": ["last-layer", "daam-v1-mlp", "ridge-concat"],
    "train.steps": 60,
    "train.passes": 0,
    "train.refit": False,
    "report.interactive": False,
    "importance.dpi": 60,
    "ablate.k": [],
}


def run(project: Path, name: str = "demo-tokens", **changes: Any) -> tuple[Layout, Path]:
    config = load_config(project, name, {**QUICK, **changes})
    layout = Layout.of(project, name, config)
    with blank_pictures():
        return layout, pipeline.run(layout, config, track=False).parent


def test_the_report_has_the_entity_f1_of_seqeval(project: Path) -> None:
    pipeline_file = project / "pipelines/demo-tokens.yaml"
    settings = yaml.safe_load(pipeline_file.read_text(encoding="utf-8"))
    settings["train"] |= {"steps": 60, "passes": 0, "refit": False}  # what `export` compares with the training
    pipeline_file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    named = {"ablate.rank_by": "daam-v1-mlp", "ablate.method": "last-layer"}
    layout, report = run(project, **{"ablate.k": [1], **named})
    found = read_evaluation(layout.stage("evaluate"))
    f1s = {method: found.scores.figure(method, "entity_f1") for method in QUICK["methods"]}
    assert list(found.methods) == list(f1s)
    for method, f1 in f1s.items():
        (fold,) = read_folds(layout.method(method))
        words = fold.predictions()
        tags = words["target"].to_numpy(), words["logits"].list.arg_max().to_numpy()
        assert f1.mean == pytest.approx(seqeval_f1(words, *tags, fold.result["run"]["classes"]))
        assert f1.units == 160
        assert fold.result["metrics"]["entity_f1"] == pytest.approx(f1.mean)
    fold = read_folds(layout.method("last-layer"))[0]
    history = fold.history()
    assert fold.result["metrics"]["dev_entity_f1"] == history["dev_f1"][-1]
    check_layers(layout)
    check_ablation(layout)
    every_set = truncate._fitting
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncate, "_fitting", lambda *given: ([*(sets := every_set(*given)[0])[:3], *sets[-2:]], []))
        check_truncation(project, layout, f1s["ridge-concat"].mean)
    best = max(f1s, key=lambda name: f1s[name].mean)
    assert best == found.ranked[0]
    page = (report / "report.md").read_text(encoding="utf-8")
    assert f"{best} finds entities best: F1 {100 * f1s[best].mean:.1f} %" in page
    assert "Entities of 160 sentences of the test part" in page
    assert "Take the method over stored layers with the highest entity F1 further" in page
    assert f"daamctl export demo-tokens/{best} --out model" in page
    assert "## Best method and its lead in accuracy per word" in page
    assert "The main figure is entity F1, in its own section" in page
    assert "its entity F1 is more than 2.0 points below a closed-form probe" in page

    config = load_config(project, "demo-tokens", QUICK)
    preflight.run(layout, config)
    check_prediction(project, layout)


def check_layers(layout: Layout) -> None:
    """The F1 of a layer is that of a linear probe of its vectors, as seqeval computes it."""
    summary = find_importance(layout.stage("importance"))
    assert summary is not None
    clips, vectors, _ = read_embeddings(layout.embeddings)
    classes = read_head(layout.embeddings).classes
    split = split_of(clips, 1, load_config(layout.root, "demo-tokens", QUICK).train)
    y = np.array([classes.index(label) for label in clips["label"]])
    x = torch.from_numpy(vectors[:, 3])
    test = split.test
    guess = ridge_scores(x, y, split, len(classes), refit=False).argmax(-1).numpy()
    assert len(summary.profile) == vectors.shape[1]
    assert summary.profile[3].value == pytest.approx(seqeval_f1(clips[test], y[test], guess, classes))


def check_ablation(layout: Layout) -> None:
    """Groups of layers are compared by the F1 of seqeval, and so are their closed-form probes."""
    found = find_ablation(layout.stage("ablate"))
    assert found is not None
    assert found.task.primary == "entity_f1"
    assert list(found.sets) == ["highest-1", "lowest-1"]
    for name in found.sets:
        for method, runs in (("last-layer", found.runs(name)), ("ridge-last", found.probed(name))):
            (fold,) = read_folds(layout.stage("ablate") / f"{name}-{method}")
            words = fold.predictions()
            tags = words["target"].to_numpy(), words["logits"].list.arg_max().to_numpy()
            f1 = seqeval_f1(words, *tags, fold.result["run"]["classes"])
            assert list(runs.values()) == [pytest.approx(f1)]
            own = (name, method, "accuracy")
            (right,) = [row.value for row in found.rows if (row.set, row.method, row.kind) == own]
            assert right == pytest.approx((tags[0] == tags[1]).mean())


def check_truncation(project: Path, layout: Layout, whole: float) -> None:
    """Fewer layers are compared by entity F1: with all layers, that of the train stage."""
    truncate.run(project, "demo-tokens")
    found = find_truncation(layout.stage("truncate"))
    assert found is not None
    assert (found.whole.kind, found.whole.value) == ("entity_f1", pytest.approx(whole))
    own = (found.whole.set, "accuracy", None)
    (right,) = [row.value for row in found.rows if (row.set, row.kind, row.fold) == own]
    assert found.whole.value < right
    for row in (*found.prefixes, *found.singles):
        (fold,) = read_folds(layout.stage("truncate") / f"{layers_name(row.layers)}-ridge-concat")
        words = fold.predictions()
        tags = words["target"].to_numpy(), words["logits"].list.arg_max().to_numpy()
        f1 = seqeval_f1(words, *tags, fold.result["run"]["classes"])
        assert (row.value, row.difference) == pytest.approx((f1, f1 - whole))
    assert "of entity F1)" in sentence(found)


def seqeval_f1(words: pl.DataFrame, *tags: Any) -> float:
    gold, guess, classes = tags
    _, starts = np.unique(sentence_of(words["utterance_id"]), return_index=True)
    parts = [np.split(np.array(classes)[ids], np.sort(starts)[1:]) for ids in (gold, guess)]
    return float(f1_score(*([part.tolist() for part in column] for column in parts)))


def check_prediction(project: Path, layout: Layout) -> None:
    """An exported tagger tags the test sentences as training stored it."""
    model = export.run(project, "demo-tokens/last-layer", project / "model")
    (fold,) = read_folds(layout.method("last-layer"))
    stored = fold.predictions()
    clips = read_clips(layout.stage("segment") / "clips.parquet").rows
    words = clips.filter(pl.col("group") == "test").sort("sentence", "position")
    lines = [
        "".join(f"{text}\t{label}\n" for text, label in part.select("text", "label").iter_rows())
        for part in words.partition_by("sentence", maintain_order=True)
    ]
    (project / "test.conll").write_text("\n".join(lines), encoding="utf-8")
    found = predict.run(model, [str(project / "test.conll")], out=project / "found.parquet", device="cpu")
    rows = found.rows.filter(pl.col("unit") == "word")
    logits = np.stack(stored.sort("utterance_id")["logits"].to_list())
    classes = fold.result["run"]["classes"]
    np.testing.assert_allclose(
        rows.select([f"p_{name}" for name in classes]).to_numpy(), softmax(logits, axis=1), atol=1e-4
    )
    assert found.entities is not None
    assert found.entities.micro.f1 == pytest.approx(fold.result["metrics"]["entity_f1"], abs=0.01)
    assert predict.run(model, [], lines=["to be", "or not"], device="cpu").rows["item"].to_list().count("2") >= 2
    with pytest.raises(MethodError, match="leave out"):
        export.run(project, "demo-tokens/last-layer", project / "other", register="a-name")


def test_few_shot_trials_draw_other_sentences(project: Path) -> None:
    changes: dict[str, Any] = {"methods": ["last-layer", "ridge-concat"], "train.shots": 8, "train.seeds": [1, 2]}
    changes |= {
        "finetunes": ["full-finetune-concat"],
        "finetune.epochs": 1,
        "finetune.search": "none",
        "finetune.lr": 0.01,
    }
    base = yaml.safe_load((project / "pipelines/demo-tokens.yaml").read_text(encoding="utf-8"))
    short = {"steps": 60, "passes": 0}
    few = {
        **base,
        "train": {**base["train"], **short, "shots": 8, "seeds": [1, 2]},
        "evaluate": {"reference": "last-layer"},
    }
    (project / "pipelines/few-8-shots.yaml").write_text(yaml.safe_dump(few), encoding="utf-8")
    layout, report = run(project, "few-8-shots", **changes, **{"train.refit": True})
    folds = {fold.seed: fold for fold in read_folds(layout.method("last-layer"))}
    sizes = {seed: fold.result["meta"]["num_train_clips"] for seed, fold in folds.items()}
    assert sizes[1] != sizes[2]
    for fold in folds.values():
        assert fold.result["run"]["dev_group"] == "2 of 24 sentences"
        assert fold.result["meta"]["num_test_clips"] == 1173
    clips, _, _ = read_embeddings(layout.embeddings)
    for fold in folds.values():  # the layers are probed on what trained the methods
        train, _, test = parts_of(clips, fold)
        assert (len(train), len(test)) == (fold.result["meta"]["num_train_clips"], 1173)
    found = read_evaluation(layout.stage("evaluate")).scores
    assert len(found.trials("ridge-concat", "entity_f1")) == 2
    tuned = read_folds(layout.method("full-finetune-concat"))
    assert found.trials("full-finetune-concat", "entity_f1") == pytest.approx(
        {f.seed: f.result["metrics"]["entity_f1"] for f in tuned}
    )
    assert "means of 2 trials" in (report / "report.md").read_text(encoding="utf-8")
    check_comparison(project, found)
    check_curves(project, found)
    check_card(project)
    with pytest.raises(TrainingError, match="asks for 300 sentences"):
        run(project, **{**changes, "train.shots": 100})


def check_card(project: Path) -> None:
    """Two seeds on an official test part, which no training has seen: its words count once."""
    record = read_model(export.run(project, "few-8-shots/last-layer", project / "few"))
    assert record.measured is not None
    assert record.measured.protocol.startswith(
        "Every word of the official test part was classified once per seed (2 seeds), by"
    )
    assert record.measured.n == record.corpus.items == sum(record.corpus.per_class.values()) == 1173
    assert not any("do not test it on this corpus" in warning for warning in record.warnings)


def check_comparison(project: Path, found: Scores) -> None:
    """Two taggers are compared by entity F1, as `evaluate` compares them."""
    path = compare.run(project, "few-8-shots/ridge-concat", "few-8-shots/last-layer")
    f1 = json.loads(path.read_text(encoding="utf-8"))["comparisons"][0]
    wanted = next(pair for pair in found.comparisons("entity_f1") if pair.first == "ridge-concat")
    assert f1["metric"] == "entity_f1"
    names = ("difference", "low", "high")
    assert [f1[name] for name in names] == pytest.approx([getattr(wanted, name) for name in names])
    shown = CliRunner().invoke(app, ["compare", "few-8-shots/ridge-concat", "few-8-shots/last-layer"])
    assert "entity F1" in shown.stdout, shown.output


def check_curves(project: Path, found: Scores) -> None:
    """The report on a family has the figures of its pipelines, and names those that are not made."""
    (project / "pipelines/few.yaml").write_text("download: {corpus: demo-tokens}\n", encoding="utf-8")
    with blank_pictures():
        folder = shots.run(project, "few").parent
    page = (folder / "report.md").read_text(encoding="utf-8")
    best = found.figure("ridge-concat", "entity_f1")
    assert best.low is not None
    assert best.high is not None
    assert f"| ridge-concat | {100 * best.mean:.1f} \\[{100 * best.low:.1f}, {100 * best.high:.1f}\\] |" in page
    assert "few: not made yet; run: daamctl run few" in page
    gaps = pl.read_csv(folder / "tables/shots-differences.csv").row(0, named=True)
    one, two = (np.array([*found.trials(name, "entity_f1").values()]) for name in ("ridge-concat", "last-layer"))
    expected = ttest_1samp(one - two, 0).confidence_interval(0.95)
    assert gaps["Over trials, low [points]"] == pytest.approx(100 * expected.low)
    assert gaps["Ahead in"] == f"{int((one > two).sum())} of 2"
    file = project / "pipelines/few-8-shots.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("steps: 60", "steps: 61"), encoding="utf-8")
    with blank_pictures():
        page = shots.run(project, "few").with_name("report.md").read_text(encoding="utf-8")
    (note,) = [line for line in page.splitlines() if "few-8-shots: These results were made with other settings" in line]
    assert "train.steps: 60 (now 61)" in note
    file.write_text(text, encoding="utf-8")
    (project / "pipelines/few-4-shots.yaml").write_text("train: {shots: 5}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="its name says 4"):
        shots.run(project, "few")
    with pytest.raises(UnknownNameError):
        shots.run(project, "demo")
