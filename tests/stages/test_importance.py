"""Stage `importance` on synthetic folds."""

import json

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.results import read_folds
from daamctl.artifacts.utterances import read_frame
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.stages import importance
from tests.fixtures.folds import make_layout, random_predictions, write_fold, write_method

CONFIG = Config.model_validate(
    {
        "methods": ["none", "daam-v1", "daam-v2"],
        "importance": {"dpi": 50},
        "method_settings": {"daam-v1": {"num_heads": 2}},
    }
)


@pytest.fixture
def layout(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "none")
    write_method(layout, CONFIG, "daam-v1", density_shape=(6, 8), learned=5.0)
    write_method(layout, CONFIG, "daam-v2", density_shape=(6, 8), learned=0.01)
    return layout


def test_table_equals_an_independent_computation(layout):
    importance.run(layout, CONFIG)
    rows, head = read_frame(layout.stage("importance") / "importance.parquet")
    assert rows.columns == [
        "method", "fold", "seed", "layer", "feature", "density", "importance", "untrained_density",
        "untrained_importance",
    ]  # fmt: skip
    assert len(rows) == 2 * 6 * 6 * 8
    assert head["methods"] == ["daam-v1", "daam-v2"]
    mean = np.mean([fold.density()["trained"] for fold in read_folds(layout.method("daam-v1"))], axis=0)
    part = rows.filter((pl.col("method") == "daam-v1") & (pl.col("fold") == 0))
    expected = (mean - mean.min()) / (mean.max() - mean.min())
    cell = part.filter((pl.col("layer") == 3) & (pl.col("feature") == 8))
    assert cell["importance"].item() == pytest.approx(expected[2, 7], abs=1e-6)
    assert cell["density"].item() == pytest.approx(mean[2, 7], abs=1e-6)
    assert set(part["seed"]) == {0}


def test_summary(layout):
    summary = json.loads(importance.run(layout, CONFIG).read_text())
    entry = summary["methods"]["daam-v1"]
    mean = np.mean([fold.density()["trained"] for fold in read_folds(layout.method("daam-v1"))], axis=0, dtype=float)
    assert entry["ranking"] == (np.argsort(-mean.mean(axis=1)) + 1).tolist()
    assert sum(entry["contribution_percent"].values()) == pytest.approx(100)
    assert entry["contribution_percent"]["2"] == pytest.approx(100 * mean[1].sum() / mean.sum())
    assert entry["num_heads"] == 2
    assert entry["folds"] == [[fold, 1] for fold in range(1, 6)]
    assert summary["without_density"] == ["none"]
    assert summary["note"] == "Importance Factor of daam-v1, daam-v2; without a density: none."


def test_caution_only_where_the_map_is_geometry(layout):
    methods = json.loads(importance.run(layout, CONFIG).read_text())["methods"]
    assert methods["daam-v1"]["correlation_with_untrained"] < 0.9
    assert methods["daam-v1"]["caution"] is None
    assert methods["daam-v2"]["correlation_with_untrained"] > 0.9
    assert "mostly geometry" in methods["daam-v2"]["caution"]


def test_pictures_follow_the_settings(layout):
    importance.run(layout, CONFIG)
    folder = layout.stage("importance")
    kinds = ("heatmap", "layers")
    assert {p.name for p in folder.glob("*.png")} == {f"daam-v{n}-{kind}.png" for n in (1, 2) for kind in kinds}
    importance.run(layout, CONFIG.model_copy(update={"methods": ("none", "daam-v1")}))
    assert {p.name for p in folder.glob("*.png")} == {f"daam-v1-{kind}.png" for kind in kinds}


def test_without_any_density_it_explains(layout):
    config = CONFIG.model_copy(update={"methods": ("none",)})
    summary = json.loads(importance.run(layout, config).read_text())
    assert summary["methods"] == {}
    assert summary["note"].startswith("No finished fold of none has a density")
    rows, _ = read_frame(layout.stage("importance") / "importance.parquet")
    assert rows.is_empty()


def test_density_that_does_not_fit(layout):
    rng = np.random.default_rng(0)
    maps = {"trained": np.ones((4, 8), np.float32), "untrained": np.ones((4, 8), np.float32)}
    write_fold(layout, CONFIG, "daam-v1", 5, 1, random_predictions(rng, 5, 1.0, 5), density=maps)
    with pytest.raises(ArtifactError, match=r"'daam-v1' have different shapes: \[\(4, 8\), \(6, 8\)\]") as error:
        importance.run(layout, CONFIG)
    assert error.value.fix == "daamctl train --pipeline toy --method daam-v1"
    write_fold(layout, CONFIG, "daam-v1", 5, 1, random_predictions(rng, 5, 1.0, 5), density=maps,
               changes={"run.layers": [1, 2]})  # fmt: skip
    with pytest.raises(ArtifactError, match=r"map 'trained' has shape \(4, 8\), but the fold has 2 layers"):
        importance.run(layout, CONFIG)
