"""The refit: once the held-out group has chosen, it joins the training part."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from daamctl.artifacts.results import Fold
from daamctl.artifacts.splits import joined, make_split
from daamctl.fit import loop
from daamctl.fit.features import Features, load_features
from daamctl.fit.runner import train_fold, train_group
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials import fusion
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM
from tests.fit.trials import test_adapter
from tests.fit.trials.test_adapter import Counter, Made, stop
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.resume import Killed, save_always

AGAIN = {"refit": True, "standardize": "feature", "precision": "float32"}
SEARCH = {"search": "halving", "search_lr": (1e-3, 1e-2), "search_weight_decay": (), "search_epochs": 1, "epochs": 6}


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    return load_features(Layout(project, "test", "test", "test"), config())


def spec(method: str = "weighted-sum", number: int = 2, **train: Any) -> FoldSpec:
    return FoldSpec("test", method, number, 1, config(**{**AGAIN, **train}))


def make(features: Features, /, project: Path, name: str, method: str = "weighted-sum", **train: Any) -> Fold:
    return train_fold(
        FusionTrial(spec(method, **train), features), project / name, project / "work" / name, root=project
    )


def weights(fold: Fold) -> dict[str, Tensor]:
    return load_file(fold.folder / "weights.safetensors")


def logits(fold: Fold) -> list[list[float]]:
    found: list[list[float]] = fold.predictions()["logits"].to_list()
    return found


@pytest.mark.parametrize("searched", [{"epochs": 6}, SEARCH])
@pytest.mark.parametrize("method", ["weighted-sum", "daam-v1-mlp"])
def test_it_is_a_training_on_all_but_the_test_group(
    method: str, searched: dict[str, Any], features: Features, project: Path
) -> None:
    """With the settings and the number of epochs that were chosen, and the held-out figures of the one before."""
    before = make(features, project, "before", method, **{**searched, "refit": False})
    after = make(features, project, "after", method, **searched)
    search = after.result.get("search")
    chosen = search["candidates"][search["chosen"]]["settings"] if search else {}
    epochs = before.result["metrics"]["selected_epoch"]
    plain = {"search": "none", "selection": "last", "refit": False, "epochs": epochs, **chosen}
    by_hand = make(features, project, "by-hand", method, **plain)
    assert logits(after) == logits(by_hand) != logits(before)
    for name, value in weights(by_hand).items():
        assert torch.equal(value, weights(after)[name]), name
    assert after.result.get("search") == before.result.get("search")
    history = after.history()
    assert history["test_accuracy"].to_list() == by_hand.history()["test_accuracy"].to_list()
    for name in ("dev_accuracy", "dev_loss", "lr"):
        assert history[name].to_list() == before.history()[name].to_list()[:epochs]
    metrics = after.result["metrics"]
    assert metrics["accuracy"] == metrics["accuracy_last"] == history["test_accuracy"][-1]
    for name in ("dev_accuracy", "selected_epoch", "finished"):
        assert metrics[name] == before.result["metrics"][name]


def test_the_rates_of_the_first_training_are_repeated(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = iter(np.linspace(0.1, 0.2, 1000))
    monkeypatch.setattr("daamctl.fit.loop.improves", lambda *_: True)  # the last epoch is chosen
    monkeypatch.setattr("daamctl.fit.inference.accuracy_of", lambda *_: 0.5)
    monkeypatch.setattr("daamctl.fit.inference.cross_entropy_of", lambda *_: next(growing))
    fold = make(features, project, "a", epochs=5, lr=0.1, plateau_patience=0, plateau_factor=0.5)
    assert fold.history()["lr"].to_list() == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.0125])


@pytest.mark.parametrize("method", ["weighted-sum", "best-layer", "ridge-best-layer", "ridge-concat"])
def test_labels_of_the_test_group_have_no_say(method: str, features: Features, project: Path) -> None:
    tested = features.clips["group"].to_numpy() == "group2"
    labels = features.clips["label"].to_numpy().copy()
    labels[tested] = np.roll(labels[tested], 3)
    changed = replace(features, clips=features.clips.with_columns(pl.Series("label", labels)))
    first, second = (make(data, project, name, method) for name, data in (("a", features), ("b", changed)))
    assert first.predictions()["target"].to_list() != second.predictions()["target"].to_list()
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name


def test_a_layer_chosen_on_the_held_out_group_stays_chosen(features: Features, project: Path) -> None:
    before = make(features, project, "before", "best-layer", refit=False, epochs=4)
    after = make(features, project, "after", "best-layer", epochs=4)
    layer = before.result["metrics"]["chosen_layer"]
    assert after.result["metrics"]["chosen_layer"] == layer != features.layers[-1]
    assert weights(after)["fusion.chosen"] == weights(before)["fusion.chosen"]


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_a_probe_is_solved_once_more_under_the_same_penalty(method: str, features: Features, project: Path) -> None:
    before, after = make(features, project, "a", method, refit=False), make(features, project, "b", method)
    assert after.result["search"] == before.result["search"]
    first, second = weights(before), weights(after)
    assert all(torch.equal(first[f"decoder.{name}"], second[f"decoder.{name}"]) for name in ("penalty", "sharpness"))
    assert isinstance(features.x, Tensor)
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
    before = make(features, project, "a", method, refit=False)
    monkeypatch.setattr("daamctl.methods.probes.Layers.join", lambda self, _: self)
    after = make(features, project, "b", method)
    for name, value in weights(before).items():
        torch.testing.assert_close(value, weights(after)[name], atol=1e-5, rtol=1e-4)


def test_together_it_is_the_same(features: Features, project: Path) -> None:
    settings = [spec("none-mlp", number, **SEARCH, batch_folds="always") for number in (1, 2, 3)]
    wanted = [FusionTrial(one, features) for one in settings]
    ours = train_group(wanted, project / "together", project / "w", root=project)
    assert {fold.result["meta"]["together"] for fold in ours} == {3}
    for fold, one in zip(ours, settings, strict=True):
        alone = make(features, project, f"alone-{one.fold}", "none-mlp", **SEARCH) if one.fold == 2 else None
        if alone is not None:
            torch.testing.assert_close(torch.tensor(logits(fold)), torch.tensor(logits(alone)), atol=2e-4, rtol=2e-4)
            assert fold.result["metrics"] == pytest.approx(alone.result["metrics"])


def test_from_disk_it_learns_too(features: Features, project: Path) -> None:
    data = load_features(Layout(project, "test", "test", "test"), config(features="stream"))
    fold = make(data, project, "a", epochs=6, lr=1e-2, features="stream")
    assert fold.result["meta"]["features"] == "stream"
    accuracy = fold.result["metrics"]["accuracy"]
    assert accuracy is not None
    assert accuracy > 0.6


def test_interrupted_it_goes_on_and_repeats_nothing_before(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_always(monkeypatch)
    settings: dict[str, Any] = {"epochs": 6, "lr": 1e-4}
    whole = make(features, project, "whole", **settings)
    last = whole.result["metrics"]["selected_epoch"]
    assert isinstance(last, int)
    assert last >= 3

    def die(entry: loop.Epoch) -> None:
        if entry["epoch"] == last - 1:
            raise Killed

    where = (project / "cut", project / "work" / "cut")
    with pytest.raises(Killed):
        train_fold(FusionTrial(spec(**settings), features), *where, root=project, on_epoch=die)
    assert list(where[1].glob("*/refit/resume.pt"))
    trained: list[int] = []
    again = FusionTrial(spec(**settings), features)
    resumed = train_fold(again, *where, root=project, advance=trained.append)
    assert len(trained) == 2  # one epoch was done but not saved
    assert (logits(resumed), resumed.result["metrics"]) == (logits(whole), whole.result["metrics"])
    assert not list(where[1].glob("**/resume.pt"))


def test_without_a_held_out_group_there_is_none(features: Features, project: Path) -> None:
    for selection in ("last", "best-on-test"):
        on, off = (
            make(features, project, f"{selection}-{refit}", selection=selection, refit=refit) for refit in (True, False)
        )
        assert logits(on) == logits(off)


TUNED: dict[str, Any] = {
    "epochs": 3,
    "search": "halving",
    "search_lr": (1e-3, 1e-2),
    "search_epochs": 1,
    "search_widen": 0,
}


def test_fine_tuning_is_repeated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = test_adapter.make(tmp_path, "before", **TUNED)
    split = joined(make_split(Made().source.clips.rows, 2, dev_group=True))
    assert (len(split.train), len(split.dev), len(split.test)) == (24, 0, 12)
    after = test_adapter.make(tmp_path, "after", train={"refit": True}, **TUNED)
    assert after.result["search"] == before.result["search"]
    assert logits(after) != logits(before)
    history, epochs = after.history(), before.result["metrics"]["selected_epoch"]
    assert isinstance(epochs, int)
    assert len(history) == epochs
    for name in ("dev_accuracy", "dev_loss"):
        assert history[name].to_list() == before.history()[name].to_list()[:epochs]
    assert history["train_loss"].to_list() != before.history()["train_loss"].to_list()[:epochs]
    assert after.result["metrics"]["accuracy"] == history["test_accuracy"][-1]

    save_always(monkeypatch)
    settings: dict[str, Any] = {"train": {"refit": True}, **TUNED}
    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    all_before = 36 + 3 * 36  # every candidate for one epoch, the chosen one to its end
    with pytest.raises(Killed):
        train_fold(
            test_adapter.trial(**settings), *where, root=tmp_path, advance=Counter(all_before + 13, stop).advance
        )
    assert list(where[1].glob("**/refit/resume.pt"))
    resumed = train_fold(test_adapter.trial(**settings), *where, root=tmp_path)
    assert (logits(resumed), resumed.result["metrics"]) == (logits(after), after.result["metrics"])
    assert not list(where[1].glob("**/resume.pt"))


def test_the_first_training_is_gone_when_the_refit_begins(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    real = fusion.build_method

    def watched(*words: Any) -> Any:
        model = real(*words)
        if next(model.parameters()).device.type != "meta":
            models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(fusion, "build_method", watched)
    left: list[int] = []
    trial = FusionTrial(spec(**SEARCH), features)
    folder, work = project / "a", project / "work"
    train_fold(trial, folder, work, root=project, on_epoch=lambda _: left.append(sum(m() is not None for m in models)))
    assert len(models) >= 3  # two candidates and the refit
    assert set(left) == {1}
