"""The search on the held-out group: what is tried, chosen and recorded, and what it never sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from daamctl.artifacts.results import Fold
from daamctl.config import TrainConfig
from daamctl.errors import TrainingError
from daamctl.fit import loop
from daamctl.fit.features import Features, load_features
from daamctl.fit.runner import train_fold, train_group
from daamctl.fit.search import Grid, Rounds, grid_of
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.layout import Layout
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.resume import save_always

SEARCH = {
    "search": "halving",
    "search_weight_decay": (),
    "search_lr": (1e-4, 1e-3, 1e-2),
    "search_epochs": 2,
    "epochs": 6,
    "precision": "float32",
}


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    return load_features(Layout(project, "test", "test", "test"), config())


def spec(method: str = "weighted-sum", number: int = 2, **train: Any) -> FoldSpec:
    return FoldSpec("test", method, number, 1, config(**{**SEARCH, **train}))


def train(features: Features, project: Path, name: str, method: str = "weighted-sum", **more: Any) -> Fold:
    return train_fold(
        FusionTrial(spec(method, **more), features), project / name, project / "work" / name, root=project
    )


def grid(**settings: Any) -> Grid:
    found = grid_of(TrainConfig(**{"search_lr": (1e-3, 1e-2, 1e-1), "search_weight_decay": (), **settings}))
    assert found is not None
    return found


def history(*scores: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"epoch": i, "dev_accuracy": a, "dev_loss": b} for i, (a, b) in enumerate(scores, start=1)]


def test_the_loss_decides_then_accuracy_then_order() -> None:
    three = [history((0.5, 1.0)), history((0.9, 2.0), (0.4, 0.5)), history((0.6, 1.0))]
    assert grid().ranked(three) == [1, 2, 0]
    assert grid().ranked([three[2], three[2], three[0]]) == [0, 1, 2]


def test_every_round_compares_its_own_epochs_alone() -> None:
    """The better half is trained further; a resumed search must choose it again, and no other."""
    four = [history((0.5, 1 - a), (0.5, 1 - b), (0.5, 1 - c), (0.5, 1 - d)) for a, b, c, d in [
        (0.1, 0.2, 0.9, 0.9), (0.5, 0.6, 0.6, 0.7), (0.6, 0.5, 0.6, 0.8), (0.1, 0.1, 0.1, 0.1)]]  # fmt: skip
    settings = {"search_lr": (1e-3, 1e-2, 1e-1, 1.0), "search_epochs": 2, "search_widen": 0}
    rounds = Rounds(grid(**settings))
    assert (rounds.alive, rounds.until, rounds.over) == ([0, 1, 2, 3], 2, False)
    rounds.next(four)
    assert (rounds.alive, rounds.until, rounds.over) == ([1, 2], 4, False)
    rounds.next(four)
    assert (rounds.alive, rounds.over) == ([2], True)
    assert [len(part["dev_accuracy"]) for part in rounds.part["candidates"]] == [2, 4, 4, 2]
    assert rounds.part["epochs"] == 4
    full = Rounds(grid(**settings, search="full"))
    full.next(four)
    assert (full.alive, full.over) == ([0], True)


def test_a_grid_of_one_has_nothing_to_choose() -> None:
    rounds = Rounds(grid(search_lr=(1e-3,)))
    assert not rounds.over
    rounds.next([history((0.5, 1.0))])
    assert rounds.over
    assert rounds.part["edges"] == []


def test_the_grid_is_extended_at_the_same_ratio_as_often_as_allowed() -> None:
    low, high = history((0.5, 0.1)), history((0.5, 0.9))
    one = grid(search_lr=(1e-3, 4e-3, 1.6e-2), search_widen=2)
    assert one.widen([low, high, high]) == {"lr": 2.5e-4, "weight_decay": 0.01, "standardize": "feature"}
    assert one.widen([high, high, high, low]) == {"lr": 6.25e-5, "weight_decay": 0.01, "standardize": "feature"}
    assert one.widen([high, high, high, high, low]) is None  # twice is enough
    assert one.record([high, high, high, high, low], 4)["edges"] == ["lr"]
    assert [part["added"] for part in one.record([high, high, high, high, low], 4)["candidates"]] == [False] * 3 + [
        True
    ] * 2
    two = grid()
    assert two.widen([high, low, high]) is None
    assert two.record([high, low, high], 1)["edges"] == []
    assert grid().widen([high, high, low]) == {"lr": 1.0, "weight_decay": 0.01, "standardize": "feature"}
    assert grid(search_widen=0).widen([high, high, low]) is None
    assert grid(search_lr=(1e-3,)).widen([low]) is None


def test_decay_and_standardisation_are_searched_where_named() -> None:
    one = grid(search_weight_decay=(0.0, 0.01, 0.1), search_standardize=("none", "feature"), search_widen=1)
    assert len(one.candidates) == 3 * 3 * 2
    low, high = history((0.5, 0.1)), history((0.5, 0.9))
    histories = [high] * 5 + [low] + [high] * 12
    assert one.candidates[5] == {"lr": 1e-3, "weight_decay": 0.1, "standardize": "feature"}
    assert one.widen(histories) == {"lr": 1e-4, "weight_decay": 0.1, "standardize": "feature"}
    record = one.record([*histories, high], 5)
    assert record["candidates"][record["chosen"]]["settings"] == one.candidates[5]
    assert record["edges"] == ["weight_decay"]
    assert set(grid().record([low, high, high], 0)["candidates"][0]["settings"]) == {"lr"}


def test_every_candidate_diverged() -> None:
    with pytest.raises(TrainingError, match=r"not finite at any of the learning rates tried \(0.001, 0.01, 0.1\)"):
        grid().ranked([[], [], []])
    assert grid().ranked([[], history((0.1, 1)), []])[0] == 1


def test_the_chosen_candidate_is_what_it_would_be_alone(features: Features, project: Path) -> None:
    """A search is bookkeeping: training with the chosen rate gives the same weights, epochs and predictions."""
    found = train(features, project, "searched", batch_folds="never")
    search = found.result["search"]
    assert [part["settings"]["lr"] for part in search["candidates"]][:3] == [1e-4, 1e-3, 1e-2]
    lengths = [len(part["dev_accuracy"]) for part in search["candidates"]]
    assert set(lengths) <= {2, 4, 6}  # 8 are not allowed
    chosen = search["candidates"][search["chosen"]]
    assert len(chosen["dev_accuracy"]) == max(lengths) == search["epochs"]
    assert min(chosen["dev_loss"]) == min(min(part["dev_loss"]) for part in search["candidates"])
    alone = train(features, project, "alone", search="none", lr=chosen["settings"]["lr"])
    assert found.history().equals(alone.history())
    assert found.predictions().equals(alone.predictions())
    assert "search" not in alone.result
    assert found.history()["dev_accuracy"].to_list() == chosen["dev_accuracy"]


def test_side_by_side_chooses_as_one_by_one(features: Features, project: Path) -> None:
    wanted = [FusionTrial(spec(number=number, batch_folds="always"), features) for number in (1, 2, 3)]
    joint = train_group(wanted, project / "joint", project / "work/joint", root=project)
    for fold in joint:
        alone = train(features, project, "apart", number=fold.fold, batch_folds="never")
        for name in ("chosen", "edges", "epochs"):
            assert fold.result["search"][name] == alone.result["search"][name]  # type: ignore[literal-required]
        assert fold.result["metrics"] == pytest.approx(alone.result["metrics"], abs=1e-4)


@pytest.mark.parametrize("together", ["never", "always"])
def test_nothing_of_it_sees_the_test_group(features: Features, project: Path, together: str) -> None:
    """With the test labels permuted, the same candidates are tried and chosen, and the same weights come out."""
    rows = np.flatnonzero(features.clips["group"].to_numpy() == "group2")
    labels = features.clips["label"].to_numpy().copy()
    labels[rows] = np.random.default_rng(0).permutation(labels[rows])
    other = replace(features, clips=features.clips.with_columns(pl.Series("label", labels)))
    assert not other.targets().equal(features.targets())
    options = {"standardize": "feature", "patience": 2, "batch_folds": together}
    ours, theirs = (train(data, project, name, **options) for name, data in (("true", features), ("permuted", other)))
    assert ours.result["run"]["test_group"] == "group2"
    assert ours.result["search"] == theirs.result["search"]
    weights = [(fold.folder / "weights.safetensors").read_bytes() for fold in (ours, theirs)]
    assert weights[0] == weights[1]
    assert ours.predictions()["logits"].equals(theirs.predictions()["logits"])
    assert ours.result["metrics"]["accuracy"] != theirs.result["metrics"]["accuracy"]


def test_a_rate_that_diverges_is_only_not_chosen(features: Features, project: Path) -> None:
    fold = train(features, project, "wild", "none-mlp", search_lr=(1e-3, 1e-2, 1e30), search_widen=0)
    search = fold.result["search"]
    assert search["chosen"] in (0, 1)
    assert len(search["candidates"][2]["dev_accuracy"]) < 2
    json.dumps(fold.result, allow_nan=False)


def test_an_interrupted_search_goes_on_where_it_was(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = FusionTrial(spec(batch_folds="never"), features)  # side by side, rounding depends on who else is there
    whole = train(features, project, "whole", batch_folds="never")
    save_always(monkeypatch)
    where = (project / "cut", project / "work/cut")
    done: list[int] = []

    def die_after(steps: int) -> Any:
        def advance(units: int) -> None:
            done.append(1)
            if len(done) >= steps:
                raise KeyboardInterrupt

        return advance

    for steps in (4, 7):  # among the candidates, and after the choice
        with pytest.raises(KeyboardInterrupt):
            train_fold(one, *where, root=project, advance=die_after(steps))
    before = len(done)
    resumed = train_fold(one, *where, root=project, advance=lambda units: done.append(units))
    everything = sum(len(part["dev_accuracy"]) for part in whole.result["search"]["candidates"])
    assert before < everything
    assert len(done) - before < everything
    assert resumed.result["search"] == whole.result["search"]
    assert resumed.history().equals(whole.history())
    assert resumed.predictions().equals(whole.predictions())


def test_patience_ends_training_and_the_budget_is_told(features: Features, project: Path) -> None:
    fold = train(features, project, "patient", search="none", epochs=200, patience=3, lr=1e-2)
    metrics, epochs = fold.result["metrics"], len(fold.history())
    assert epochs == metrics["epochs"] < 200
    assert metrics["finished"] is True
    assert loop.epochs_waited(fold.history().to_dicts()) == 3
    short = train(features, project, "short", search="none", epochs=2, lr=1e-4)
    assert short.result["metrics"]["selected_epoch"] == 2
    assert short.result["metrics"]["finished"] is False
    last = train(features, project, "last", search="none", epochs=2, selection="last")
    assert last.result["metrics"]["finished"] is None


def test_waiting_counts_gains_that_matter() -> None:
    slow = history(*[(0.5, 1.0 - 0.001 * i) for i in range(10)])
    assert loop.epochs_waited(slow) == 9
    assert loop.epochs_waited(history((0.5, 1.0), (0.5, 0.98), (0.4, 0.1))) == 1
    assert loop.epochs_waited(history((0.5, 1.0), (0.6, 5.0))) == 0


def test_standardised_by_the_training_part_alone(features: Features, project: Path) -> None:
    from safetensors.torch import load_file

    from daamctl.methods import load_weights

    for kind in ("layer", "feature"):
        fold = train(features, project, kind, "daam-v2-mlp", search="none", standardize=kind, epochs=1)
        held = load_file(fold.folder / "weights.safetensors")
        groups = features.clips["group"].to_numpy()
        part = features.x[torch.from_numpy(~np.isin(groups, ["group2", "group3"]))].double()  # type: ignore[index]
        axes = (0,) if kind == "feature" else (0, 2)
        torch.testing.assert_close(held["standardize.mean"], part.mean(axes).view(24, -1).float())
        deviation = part.std(axes, correction=0).view(24, -1).float()
        torch.testing.assert_close(1 / held["standardize.scale"], deviation)
        model = load_weights(fold.folder / "weights.safetensors")
        rows = torch.from_numpy(np.flatnonzero(groups == "group2"))
        logits = model(features.x[rows].float())  # type: ignore[index]
        torch.testing.assert_close(logits, torch.tensor(fold.predictions()["logits"].to_list()), atol=1e-5, rtol=1e-4)
