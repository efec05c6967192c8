"""Closed-form probes on their way to a finished fold: the same from memory and disk, blind to the test group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold
from daamctl.artifacts.splits import joined, make_split
from daamctl.errors import MethodError
from daamctl.fit.features import Features, load_features
from daamctl.fit.loop import Recorded
from daamctl.fit.ridge import search_part
from daamctl.fit.runner import in_groups, kept_fold, summary_line, train_fold, train_group
from daamctl.fit.trial import FoldSpec, FusionTrial
from daamctl.methods import CLOSED_FORM, load_weights, probes
from daamctl.methods.probes import Candidate, Solution
from tests.fixtures.embeddings import config, write_embeddings


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    return load_features(Layout(project, "test", "test", "test"), config())


def make(features: Features, root: Path, method: str, name: str = "a", /, **train: Any) -> Fold:
    spec = FoldSpec("test", method, 2, 1, config(**train))
    return train_fold(FusionTrial(spec, features), root / name / method, root / "work" / name, root=root)


def weights(fold: Fold) -> dict[str, torch.Tensor]:
    return load_file(fold.folder / "weights.safetensors")


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_fold_is_whole_and_honest(method: str, features: Features, project: Path) -> None:
    spec = FoldSpec("test", method, 2, 1, config())
    events = list(train_group([FusionTrial(spec, features)], project / method, project / "w", root=project))
    (fold,) = [event for event in events if isinstance(event, Fold)]
    told = [event.entry for event in events if isinstance(event, Recorded)]
    run, metrics, history = fold.result["run"], fold.result["metrics"], fold.history().to_dicts()
    assert told == history
    (entry,) = history
    assert (entry["step"], entry["epoch"], entry["lr"]) == (1, None, None)
    assert entry["train_loss"] > 0
    assert (metrics["selected_epoch"], metrics["epochs"], metrics["collapsed"]) == (None, None, 0)
    assert metrics["accuracy"] == metrics["accuracy_best_on_test"] == metrics["accuracy_last"] == entry["test_accuracy"]
    predictions = fold.predictions()
    assert set(predictions["group"]) == {run["test_group"]} == {"group2"}
    predicted = predictions["logits"].list.arg_max()
    assert (predicted == predictions["target"]).mean() == pytest.approx(entry["test_accuracy"])
    search = fold.result["search"]
    chosen = search["candidates"][search["chosen"]]
    assert search["steps"] == 0
    assert [one["settings"]["penalty"] for one in search["candidates"]] == list(probes.PENALTIES)
    assert chosen["dev_accuracy"] == [pytest.approx(entry["dev_accuracy"])]
    assert chosen["dev_accuracy"] == max(one["dev_accuracy"] for one in search["candidates"])
    assert run["config"]["train"] == {"selection": "dev-group", "refit": False, "dev_fraction": 0.1}
    assert "notes" not in run
    assert fold.result["meta"]["precision"] == "float32"
    if method == "ridge-best-layer":
        assert metrics["chosen_layer"] == chosen["settings"]["layer"]
        assert metrics["chosen_layer"] in (6, 7, 8, 9)  # these carry the class
        layer_weights = fold.layer_weights()
        assert layer_weights is not None
        assert layer_weights["trained"].argmax() + 1 == metrics["chosen_layer"]
    if method != "ridge-last":  # the last layer carries nothing
        assert metrics["accuracy"] > 0.8
    assert f" with penalty {chosen['settings']['penalty']:g} (dev " in summary_line(fold)
    assert "epoch" not in summary_line(fold)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_from_disk_the_probe_is_the_same(method: str, features: Features, project: Path) -> None:
    disk = load_features(Layout(project, "test", "test", "test"), config(features="stream"))
    held, streamed = make(features, project, method, "a"), make(disk, project, method, "b", features="stream")
    assert (held.result["meta"]["features"], streamed.result["meta"]["features"]) == ("memory", "stream")
    assert held.result["search"] == streamed.result["search"]
    assert held.result["run"]["key"] == streamed.result["run"]["key"]
    for name, value in weights(held).items():
        assert torch.equal(value, weights(streamed)[name]), name
    assert held.predictions()["logits"].to_list() == streamed.predictions()["logits"].to_list()


@pytest.mark.parametrize("selection", ["dev-group", "last"])
@pytest.mark.parametrize("method", CLOSED_FORM)
def test_labels_of_the_test_group_have_no_say(method: str, selection: str, features: Features, project: Path) -> None:
    tested = features.clips["group"].to_numpy() == "group2"
    labels = features.clips["label"].to_numpy().copy()
    labels[tested] = np.roll(labels[tested], 3)
    changed = replace(features, clips=features.clips.with_columns(pl.Series("label", labels)))
    first = make(features, project, method, "a", selection=selection)
    second = make(changed, project, method, "b", selection=selection)
    assert first.predictions()["target"].to_list() != second.predictions()["target"].to_list()
    assert first.result["search"] == second.result["search"]
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name


def test_test_features_have_no_say_either(features: Features, project: Path) -> None:
    assert isinstance(features.x, torch.Tensor)
    x = features.x.clone()
    x[torch.from_numpy(features.clips["group"].to_numpy() == "group2")] *= 100
    for method in CLOSED_FORM:
        first, second = make(features, project, method, "a"), make(replace(features, x=x), project, method, "b")
        for name, value in weights(first).items():
            assert torch.equal(value, weights(second)[name]), (method, name)


def test_without_a_held_out_group(features: Features, project: Path) -> None:
    for method in CLOSED_FORM:
        fold = make(features, project, method, selection="best-on-test")
        assert fold.result["metrics"]["dev_accuracy"] is None
        search = fold.result["search"]
        losses = [one["dev_loss"][0] for one in search["candidates"]]
        assert losses[search["chosen"]] == min(losses)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_a_probe_is_solved_once_more_under_the_same_penalty(method: str, features: Features, project: Path) -> None:
    before, after = make(features, project, method, "a"), make(features, project, method, "b", refit=True)
    assert after.result["search"] == before.result["search"]
    first, second = weights(before), weights(after)
    assert all(torch.equal(first[f"decoder.{name}"], second[f"decoder.{name}"]) for name in ("penalty", "sharpness"))
    assert isinstance(features.x, torch.Tensor)
    split = make_split(features.clips, 2, dev_group=True)
    rows = torch.from_numpy(joined(split).train)
    assert len(rows) == len(split.train) + len(split.dev)
    x = features.x[rows].double()
    if method in ("ridge-concat", "ridge-average"):
        torch.testing.assert_close(second["decoder.mean"].double(), x.mean(0), atol=1e-5, rtol=1e-5)
    for name in ("dev_accuracy", "dev_loss"):
        assert after.history()[name].to_list() == before.history()[name].to_list()


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_a_probe_fitted_to_the_same_clips_again_is_the_same(
    method: str, features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(features, project, method, "a")
    monkeypatch.setattr("daamctl.methods.probes.Layers.join", lambda self, _: self)
    after = make(features, project, method, "b", refit=True)
    for name, value in weights(before).items():
        torch.testing.assert_close(value, weights(after)[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_weights_on_disk_predict_the_same(method: str, features: Features, project: Path) -> None:
    fold = make(features, project, method)
    assert isinstance(features.x, torch.Tensor)
    model = load_weights(fold.folder / "weights.safetensors")
    x = features.x[torch.from_numpy(features.clips["group"].to_numpy() == "group2")].float()
    with torch.no_grad():
        np.testing.assert_allclose(model(x), fold.predictions()["logits"].to_list(), rtol=1e-5, atol=1e-4)


def trial_of(features: Features, method: str, **train: Any) -> FusionTrial:
    return FusionTrial(FoldSpec("test", method, 2, 1, config(**train)), features)


def test_settings_of_steps_are_no_part_of_the_key(features: Features, project: Path) -> None:
    folder = make(features, project, "ridge-mean").folder.parent
    steps = {
        "lr": 0.5, "epochs": 9, "batch_size": 3, "loss": "cross-entropy", "optimizer": "adam", "weight_decay": 0.5,
        "schedule": "constant", "grad_clip_norm": 1.0, "precision": "bfloat16", "density_maps": "all-epochs",
        "steps": None,
    }  # fmt: skip
    assert kept_fold(folder, trial_of(features, "ridge-mean", **steps)) is not None
    assert kept_fold(folder, trial_of(features, "ridge-mean", selection="last")) is None
    assert kept_fold(folder, trial_of(features, "ridge-mean", dev_fraction=0.3)) is None
    assert kept_fold(folder, trial_of(features.subset((3, 4)), "ridge-mean")) is None
    assert trial_of(features, "mean").key != trial_of(features, "mean", lr=0.5).key


def test_probes_are_solved_one_by_one(features: Features) -> None:
    specs = [FoldSpec("test", "ridge-last", fold, 1, config(stack="always")) for fold in (1, 2, 3)]
    trials = [FusionTrial(spec, features) for spec in specs]
    assert in_groups(trials) == [[trial] for trial in trials]


def test_components_of_the_layers_are_recorded(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes, "LARGEST_SYSTEM", 70)  # of 96 training clips, and more features
    caplog.set_level("INFO")
    fold = make(features, project, "ridge-concat")
    note = f"of every layer the first {70 // len(features.layers)} principal components"
    assert fold.result["run"]["notes"] == [note]
    assert note in caplog.text
    assert "notes" not in make(features, project, "ridge-average").result["run"]


def test_features_that_are_not_finite_are_refused(features: Features, project: Path) -> None:
    assert isinstance(features.x, torch.Tensor)
    x = features.x.clone()
    x[-1, 3, 5] = torch.nan
    with pytest.raises(MethodError, match="features of the training clips are not finite"):
        make(replace(features, x=x), project, "ridge-concat")


@pytest.mark.parametrize(
    ("accuracies", "chosen", "edges"),
    [
        ([0.5, 0.6, 0.7], 2, ["penalty"]),
        ([0.7, 0.6, 0.5], 0, ["penalty"]),
        ([0.5, 0.7, 0.6], 1, []),
        ([0.5, 0.7, 0.7], 2, []),  # larger penalties would change nothing
        ([0.7, 0.7, 0.5], 0, []),
        ([0.7], 0, []),
    ],
)
def test_edge_of_the_penalties(accuracies: list[float], chosen: int, edges: list[str]) -> None:
    candidates = tuple(Candidate(10.0**k, None, one, 1.0, torch.empty(0)) for k, one in enumerate(accuracies))
    found = search_part(Solution(candidates, chosen), (1, 2))
    assert found["edges"] == edges
    assert found["candidates"][0] == {
        "settings": {"penalty": 1.0}, "dev_accuracy": accuracies[:1], "dev_loss": [1.0]
    }  # fmt: skip


def test_layer_is_recorded_by_its_number() -> None:
    candidate = Candidate(1.0, 1, 0.5, 1.0, torch.empty(0))
    assert search_part(Solution((candidate,), 0), (7, 12))["candidates"][0]["settings"] == {
        "penalty": 1.0, "layer": 12
    }  # fmt: skip
