"""Training on all clips: with the settings that the folds have chosen, and those that they had no choice of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.config import Config, TrainConfig
from daamctl.errors import MethodError
from daamctl.fit import subsets
from daamctl.fit.subsets import train_on_all
from tests.fixtures.added import SOURCE, install
from tests.fixtures.fits import drawn, settings

SEARCH = {"search": "grid", "search_lr": (0.001, 0.01), "search_weight_decay": (1.0,), "weight_decay": 0.01}


def fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any] | None, **train: Any) -> TrainConfig:
    """The settings of the training on all clips, after one fold that chose these; None: it had nothing to choose."""
    found: list[TrainConfig] = []

    def train_fold(trial: Any, *_: Any, **__: Any) -> Any:
        found.append(trial.config.train)
        return SimpleNamespace(weights=lambda: tmp_path)

    monkeypatch.setattr(subsets, "train_fold", train_fold)
    config = Config().model_copy(update={"train": settings(**train)})
    result: dict[str, Any] = {} if chosen is None else {"search": {"candidates": [{"settings": chosen}], "chosen": 0}}
    layout = Layout.of(tmp_path, "tiny", config)
    train_on_all("mean", [SimpleNamespace(result=result)], drawn(), layout, config, 1, tmp_path)  # type: ignore[list-item]
    return found[0]


def test_a_decay_that_all_candidates_share_is_that_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a search has only what its candidates differ in."""
    train = fixed(tmp_path, monkeypatch, {"lr": 0.01}, **SEARCH)
    assert (train.search, train.refit, train.selection) == ("none", False, "last")
    assert (train.lr, train.weight_decay) == (0.01, 1.0)


def test_a_search_of_one_candidate_has_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {**SEARCH, "search_lr": (0.02,), "search_standardize": ("layer",)}
    train = fixed(tmp_path, monkeypatch, None, **one)
    assert (train.lr, train.weight_decay, train.standardize) == (0.02, 1.0, "layer")


NEEDY = """
def needy(sizes: Sizes) -> FusionClassifier:
    \"""A method of which part is chosen on a held-out group.\"""
    model = peak(sizes)
    return FusionClassifier(model.fusion, model.decoder, Traits(needs_dev=True))
"""


def test_a_method_that_chooses_on_a_held_out_group_is_not_trained_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCE.replace("import FusionClassifier", "import FusionClassifier, Traits") + NEEDY
    install(tmp_path / "site", monkeypatch, {"needy": "my_fusions:needy"}, source=source)
    config = Config().model_copy(update={"train": settings()})
    for method in ("best-layer", "needy"):
        with pytest.raises(MethodError, match=f"^{method}: part of it is chosen on a held-out group, so it cannot be"):
            train_on_all(method, [], drawn(), Layout.of(tmp_path, "tiny", config), config, 1, tmp_path)


def test_without_a_search_the_settings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = fixed(tmp_path, monkeypatch, None, lr=0.3, weight_decay=0.2)
    assert (train.lr, train.weight_decay) == (0.3, 0.2)
