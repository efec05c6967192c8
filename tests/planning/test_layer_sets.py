"""Which methods an ablation chooses among those listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.planning.layer_sets import choose_method, choose_ranking, why_nothing
from daamctl.store.files import write_json
from tests.fixtures.folds import make_layout, write_method

SIZES = (24, 64, 4)


def config(*methods: str, **ablate: str) -> Config:
    return Config.model_validate({"methods": list(methods), "ablate": ablate})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return make_layout(tmp_path)


@pytest.mark.parametrize(
    ("methods", "rank_by", "method"),
    [
        (("none", "weighted-sum", "mha", "daam-v1", "daam-v2"), "daam-v1", "none"),
        (("daam-v2", "daam-v1-mlp", "mean", "none-mlp"), "daam-v1-mlp", "none-mlp"),
        (("daam-v2", "mha-published", "mha", "weighted-sum"), "daam-v2", "mha"),
        (("weighted-sum",), None, "weighted-sum"),
        (("daam-v1", "mha-published"), "daam-v1", None),  # the one weighs, the other measures the batch
    ],
)
def test_the_usual_ones_go_first(layout: Layout, methods: tuple[str, ...], rank_by: str, method: str) -> None:
    assert choose_ranking(layout, config(*methods), SIZES).name == rank_by
    assert choose_method(layout, config(*methods), SIZES, {1, 3}).name == method


def test_what_is_named_is_used(layout: Layout) -> None:
    named = config("none", "mha", "daam-v1", "daam-v2", rank_by="daam-v2", method="mha")
    assert (choose_ranking(layout, named, SIZES).name, choose_method(layout, named, SIZES, {1}).name) == (
        "daam-v2", "mha",
    )  # fmt: skip


def test_what_could_not_be_trained_is_passed_over(layout: Layout) -> None:
    write_json(layout.method("none") / "skipped.json", {"reason": "no such GPU"})
    chosen = choose_method(layout, config("none", "mean"), SIZES, {1})
    assert (chosen.name, chosen.rejected) == ("mean", "none: not trained, no such GPU")


def test_a_method_that_does_not_fit_few_layers_is_not_chosen(layout: Layout) -> None:
    settings = Config.model_validate({"methods": ["gqa", "mean"], "method_settings": {"gqa": {"num_heads": 24}}})
    assert choose_method(layout, settings, SIZES, {1}).name == "mean"


def test_the_probe_of_its_input_clears_a_method_of_having_learned_nothing(layout: Layout) -> None:
    """Epoch 1 in every fold is a bad sign, unless the task is learned in one epoch, as the probe tells."""
    settings = config("none", "ridge-concat")
    first = {"metrics.selected_epoch": 1, "metrics.epochs": 6}
    write_method(layout, settings, "none", changes=first)
    assert why_nothing(layout, config("none"), "none") == "selected epoch 1 in every run"
    write_method(layout, settings, "ridge-concat", skill=0.5)
    assert why_nothing(layout, settings, "none") is None
    write_method(layout, settings, "ridge-concat", skill=4.0)
    assert why_nothing(layout, settings, "none") == "selected epoch 1 in every run"


def test_a_method_with_a_damaged_fold_counts_as_not_trained_yet(layout: Layout) -> None:
    write_method(layout, config("none"), "none", changes={"metrics.selected_epoch": 1, "metrics.epochs": 6})
    assert choose_method(layout, config("none", "mean"), SIZES, {1}).name == "mean"
    next(layout.method("none").glob("*/predictions.parquet")).write_bytes(b"damaged")
    assert choose_method(layout, config("none", "mean"), SIZES, {1}).name == "none"
