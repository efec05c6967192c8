"""A pipeline over given embeddings in one process: no encoder is opened, and every later stage works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from daamctl.artifacts.importance import find_importance
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.cli.app import app
from daamctl.config import Config, load_config
from daamctl.encoders import encoder_cache
from daamctl.evaluation.scoring import items_of
from daamctl.stages import check, compare, finetune, inventory, pipeline, plan, preflight, truncate
from tests.fixtures.given import items, write_items
from tests.fixtures.pictures import blank_pictures

YAML = """# Which layers of given embeddings tell the classes apart?
download: {corpus: embeddings, source: mine.npz}
train: {steps: 30, passes: 0, search: none, refit: false, lr: 0.01, device: cpu}
methods: [none-mlp, daam-v1-mlp, ridge-best-layer]
ablate: {k: [1]}
importance: {dpi: 60, audit_clips: 20}
report: {interactive: false}
"""


@pytest.fixture
def given(project: Path) -> tuple[Layout, Config]:
    write_items(project / "mine.npz", items(72, name="my encoder", licence="CC0"))
    (project / "pipelines" / "mine.yaml").write_text(YAML, encoding="utf-8")
    params = project / "params.yaml"
    params.write_text(re.sub(r"pipelines:.*?\n\n", "pipelines: [mine]\n\n", params.read_text(), flags=re.DOTALL))
    config = load_config(project, "mine")
    return Layout.of(project, "mine", config), config


@pytest.mark.usefixtures("blank_pictures")
def test_every_stage_works_on_given_embeddings(given: tuple[Layout, Config], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encoder_cache, finetune, truncate):  # where it is called
        monkeypatch.setattr(module, "open_encoder", None)
    layout, config = given
    with blank_pictures():
        pipeline.run(layout, config, track=False)
    for method in config.methods:
        folds = read_folds(layout.method(method))
        assert len(folds) == 3
        assert all("extract" not in fold.result["run"]["config"] for fold in folds)
    page = (layout.stage("report") / "report.md").read_text(encoding="utf-8")
    sha = folds[0].result["meta"]["encoder"]["sha256"]
    assert f"Embeddings from mine.npz (SHA-256 {sha[:12]}, my encoder, CC0): 36 test utterances (72 items)" in page
    assert "wavlm" not in page.replace("wavlm-large (authors", "")
    evaluation = json.loads((layout.stage("evaluate") / "evaluation.json").read_text())
    assert evaluation["comparison"]["family"]["design"]["n_units"] == 6  # speakers
    summary = find_importance(layout.stage("importance"))
    assert summary is not None
    assert max(summary.profile, key=lambda one: one.value).layers == (2,)
    _predict_again(layout, monkeypatch)
    path = compare.run(layout.root, "mine/none-mlp", "mine/daam-v1-mlp")
    assert json.loads(path.read_text())["kind"] == "paired"
    assert json.loads(preflight.run(layout, config).read_text())["encoder"]["source"] == "mine.npz"
    made = plan.run(layout, config, blockers=inventory.blockers(layout.root, config))
    assert {row["stage"]: row["state"] for row in made["stages"]} == {row["stage"]: "done" for row in made["stages"]}


def _predict_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that is exported gives its own test items the probabilities that training stored."""
    monkeypatch.chdir(layout.root)
    own = next(fold for fold in read_folds(layout.method("daam-v1-mlp")) if fold.fold == 1)
    stored = items_of(own.predictions(), "utterance", own.task)
    done = CliRunner().invoke(app, ["export", "mine/daam-v1-mlp", "--out", "model", "--folds", "1"])
    assert done.exit_code == 0, done.output
    card = Path("model/README.md").read_text(encoding="utf-8")
    assert "of vectors that other software made (`my encoder`, embeddings from mine.npz, SHA-256" in card
    assert "daamctl serve" not in card
    new = items(72, label=None, speaker=None, group=None)
    new["embeddings"][3, 0, 0] = np.nan
    write_items(Path("new.parquet"), new)
    done = CliRunner().invoke(app, ["predict", "model", "new.parquet", "--out", "found.parquet"])
    assert done.exit_code == 0, done.output
    found = pl.read_parquet("found.parquet")
    assert found["item"].to_list() == [f"u{number}" for number in range(36)]  # one row per utterance
    assert "label" not in found.columns
    lost = found.filter(pl.col("class").is_null()).select("item", "error").rows()
    assert lost == [("u1", "its vector holds values that are not numbers")]
    rows = found.with_row_index().filter(pl.col("item").is_in(stored.ids) & pl.col("class").is_not_null())
    places = [stored.ids.index(item) for item in rows["item"]]
    assert len(places) >= 10
    classes = own.result["run"]["classes"]
    values = rows.select([f"p_{name}" for name in classes]).to_numpy()
    assert np.abs(values - stored.probabilities[places]).max() < 1e-6

    write_items(Path("few.npz"), {**items(), "embeddings": items()["embeddings"][:, :2]})
    for words, message in (
        (["predict", "model", "few.npz"], "few.npz has 8 features of the layers 1, 2; the model reads 8 of the layers"),
        (["predict", "model"], "standard input holds texts, the model reads files of embeddings"),
        (["serve", "model"], "model reads given embeddings, whose encoder is elsewhere, so there is nothing to serve"),
        (["export", "mine/daam-v1-mlp", "--out", "other", "--onnx"], "reads given embeddings, so ONNX and MLflow"),
        (
            ["export", "mine/daam-v1-mlp", "--out", "other", "--layers", "1-2", "--onnx"],
            "so ONNX and MLflow cannot take",
        ),
        (["export", "mine/daam-v1-mlp", "--out", "other", "--layers", "1-2", "--folds", "9"], "--folds must be mean,"),
        (["export", "mine/daam-v1-mlp", "--out", "other", "--with-encoder"], "reads given embeddings and no encoder"),
    ):
        refused = CliRunner().invoke(app, words, input="x")
        assert refused.exit_code == 3, refused.output
        assert message in refused.stderr
    assert not layout.stage("truncate").exists()  # what is refused trains nothing


def test_commands_know_that_there_is_no_encoder(given: tuple[Layout, Config]) -> None:
    layout, config = given
    root = layout.root
    check.write_stages(root)
    check.run(root, ["mine"], write=True)
    stages = yaml.safe_load((root / "stages.yaml").read_text())["train_stages"].values()
    assert [one["method"] for one in stages if one["pipeline"] == "mine"] == list(config.methods)
    assert inventory.run(root) == {"mine": None}
    first = plan.run(layout, config, blockers=inventory.blockers(root, config))
    rows = {row["stage"]: row for row in first["stages"]}
    assert (rows["extract"]["state"], rows["extract"]["basis"]) == ("to do", "quick")
    assert not any("encoder '" in note for note in first["notes"])
    (root / "pipelines" / "mine.yaml").write_text(YAML + "finetunes: [lora-r8]\n", encoding="utf-8")
    shown = CliRunner().invoke(app, ["check", "-p", "mine"])
    assert shown.exit_code == 3
    assert "download.corpus is 'embeddings', so there is no encoder to fine-tune" in shown.output
