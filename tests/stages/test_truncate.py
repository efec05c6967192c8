"""`truncate`: which layers are trained, what is kept, what is found, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from daamctl.artifacts.layer_sets import Truncation, find_truncation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.errors import ArtifactError, ConfigError, MethodError, UnknownNameError
from daamctl.fit import subsets
from daamctl.planning.repair import repair_of
from daamctl.reporting.truncation import notes, sentence
from daamctl.stages import truncate
from tests.fixtures import embeddings

LAYERS = tuple(range(1, 11))
SETTINGS = {
    "methods": ["none-mlp", "ridge-concat"],
    "method_settings": {"none-mlp": {"hidden_dim": 8}},
    "train": {"steps": 10, "batch_size": 32, "device": "cpu", **embeddings.FIXED},
    "extract": {"device": "cpu"},
}
SHARES = [number / 10 for number in range(11)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline `toy` with embeddings of ten layers, of which 6 to 9 carry the class."""
    monkeypatch.setattr(embeddings, "LAYERS", LAYERS)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pipelines": ["toy"]}))
    (tmp_path / "pipelines/toy.yaml").write_text(yaml.safe_dump(SETTINGS))
    config = load_config(tmp_path, "toy")
    embeddings.write_embeddings(Layout.of(tmp_path, "toy", config).embeddings, config, clips_per_group=48, num_groups=3)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder of ten layers without a front end."""
    for name in ("time_shares", "parameter_shares"):
        monkeypatch.setattr(truncate, name, lambda encoder: SHARES)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on few groups of layers."""
    monkeypatch.setattr(truncate, "_fitting", lambda *_: ([LAYERS, LAYERS[:9], (9,)], []))


def run(project: Path, name: str = "toy", **options: Any) -> Truncation:
    path = truncate.run(project, name, **options)
    found = find_truncation(path.parent)
    assert found is not None
    return found


@pytest.mark.usefixtures("measured")
def test_layers_behind_the_class_are_not_needed(project: Path) -> None:
    found = run(project, margin=0.08)
    assert (found.method, found.unit, found.design.unit, found.margin) == ("ridge-concat", "utterance", "speaker", 0.08)
    assert found.whole.layers == LAYERS
    assert [one.layers for one in found.prefixes] == [LAYERS[:k] for k in range(1, 10)]
    assert [one.layers for one in found.singles] == [(layer,) for layer in LAYERS]
    assert found.shortest is not None
    smallest = found.shortest.layers[-1]
    assert 6 <= smallest < 10  # layers 1 to 5 are noise
    assert list(found.enough.values()) == [True] * (10 - smallest) + [False]
    assert found.prefixes[4].value < 0.6 < found.prefixes[8].value
    assert found.prefixes[0].value == found.singles[0].value
    for one in found.sets:
        runs = found.runs(one.set)
        assert (len(runs), sum(runs.values()) / 3) == (3, pytest.approx(one.value))
    assert [one.time for one in found.prefixes] == SHARES[1:10]
    assert (found.whole.parameters, found.whole.time) == (1.0, 1.0)
    assert found.device is not None
    folder = project / "data/truncate/toy"
    result = json.loads((folder / "layers-1-to-7-ridge-concat/fold2-seed1/result.json").read_text())
    assert result["run"]["layers"] == list(LAYERS[:7])
    assert len(found.files) == 1 + 3 * 19
    assert found.nothing == ""


@pytest.mark.usefixtures("measured", "few")
def test_finished_folds_are_kept_and_damage_is_seen(project: Path) -> None:
    first = run(project)
    folder = project / "data/truncate/toy"
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/result.json")}
    assert run(project) == first
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*/result.json")} == times
    next(iter(times)).write_text("{}")
    with pytest.raises(ArtifactError, match="is damaged or from elsewhere") as error:
        find_truncation(folder)
    assert error.value.path is not None
    assert repair_of(error.value.path) == "make it again: daamctl truncate toy"
    assert replace(run(project), files={}) == replace(first, files={})  # trains that fold again


def test_a_method_that_learned_nothing_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "LAYERS", LAYERS[:5])  # which are noise
    config = load_config(project, "toy")
    folder = Layout.of(project, "toy", config).embeddings
    embeddings.write_embeddings(folder, config, clips_per_group=48, num_groups=3)
    found = run(project, margin=0.4)
    assert found.shortest is not None
    assert found.nothing == "all layers"
    (told,) = [text for text in (sentence(found), *notes(found)) if "learned nothing" in text]  # once
    assert told.endswith("; but ridge-concat learned nothing on all layers, so this is no evidence.")
    assert any(note.startswith("ridge-concat on all layers: neither its accuracy, ") for note in found.notes)


@pytest.mark.usefixtures("few")
def test_all_layers_are_those_of_the_train_stage(project: Path) -> None:
    """A method with an epoch is trained like the stage does; an encoder of another depth has no cost."""
    from daamctl.stages import train

    config = load_config(project, "toy")
    layout = Layout.of(project, "toy", config)
    train.run(layout, config, method="none-mlp", track=False)
    found = run(project, "toy/none-mlp")
    assert len(read_folds(layout.method("none-mlp"))) == 3
    assert not (project / "data/truncate/toy/layers-1-to-10-none-mlp").exists()
    assert len(found.files) == 1 + 6
    assert found.whole.time is found.whole.parameters is None
    assert "The encoder on this machine has another number of layers than the embeddings." in found.notes


def test_sizes_that_do_not_fit_are_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(method: str, config: Any, num_layers: int, *_: int) -> None:
        if num_layers < 3:
            raise MethodError("needs three layers")

    monkeypatch.setattr(subsets, "build_method", build)
    config = load_config(project, "toy")
    features = truncate.load_features(Layout.of(project, "toy", config), config)
    chosen, notes = truncate._fitting("none-mlp", config, features)
    assert chosen == [LAYERS[:k] for k in range(10, 2, -1)]
    assert notes == ["Not trained on 1 layer: needs three layers.", "Not trained on 2 layers: needs three layers."]


def test_what_is_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match="'lora-r8' fine-tunes the encoder"):
        truncate.run(project, "toy/lora-r8")
    with pytest.raises(UnknownNameError):
        truncate.run(project, "toy/ridge-conca")
    with pytest.raises(UnknownNameError):
        truncate.run(project, "tooy")


@pytest.mark.usefixtures("measured", "few")
def test_the_command_prints_the_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(app, ["truncate", "toy", "--margin", "8"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == "data/truncate/toy/truncation.json"
    assert lines[-2].startswith("Layers 1–")
    assert "are enough" in lines[-2]
    assert sum(line.startswith("1–10 ") for line in lines) == 1
    shown = json.loads(CliRunner().invoke(app, ["truncate", "toy", "--margin", "8", "--json"]).stdout)
    assert (shown["margin"], shown["smallest"]) == (0.08, 9)
    assert {row["set"]: row["enough"] for row in shown["layers"]} == {
        "layers-1-to-10": None, "layers-1-to-9": True, "layer-9": None,
    }  # fmt: skip
