"""The tasks of a pipeline that reconstructs images."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.skipped import Obstacle
from daamctl.config import Config, load_config
from daamctl.planning.tasks import Blockers, Task
from daamctl.stages import crop, download, plan, reconstruct
from tests.fixtures.reconstruction import SETTINGS, write_images

NOTHING = {"corpus": None, "encoder": None}


def rows_of(layout: Layout, config: Config, blockers: Blockers = NOTHING) -> list[Task]:
    return [Task(**row) for row in plan.run(layout, config, blockers=blockers)["stages"]]


def test_before_and_after_a_training(project: Path) -> None:
    config = load_config(project, "vqvae")
    config = config.model_copy(
        update={
            "reconstructions": ("identity", "daam"),
            "crop": config.crop.model_copy(update={"size": 8, "per_image": 4}),
            "reconstruct": SETTINGS,
        }
    )
    layout = Layout.of(project, "vqvae", config)
    states = [row.state for row in rows_of(layout, config)]
    assert states == ["to do"] * 5
    download.run(layout, config, source=write_images(project / "mine"))
    crop.run(layout, config)
    reconstruct.run(layout, config, method="daam", seed=1)
    rows = rows_of(layout, config)
    assert [(row.stage, row.method, row.state) for row in rows] == [
        ("download", None, "done"),
        ("crop", None, "done"),
        ("reconstruct", "identity", "to do"),
        ("reconstruct", "daam", "partly"),
        ("score", None, "to do"),
    ]
    identity, daam = rows[2], rows[3]
    assert (identity.basis, daam.basis) == ("measured", "recorded")
    assert identity.work == daam.work == "8 steps"
    assert daam.time_s == daam.took_s  # one of two
    assert identity.disk_left_bytes == identity.disk_bytes
    assert daam.disk_left_bytes == daam.disk_bytes // 2
    other = config.model_copy(update={"crop": config.crop.model_copy(update={"seed": 5})})
    assert [row.state for row in rows_of(layout, other)] == ["done", *["to do"] * 4]


def test_published_size_is_known_before_the_corpus_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan._Planner, "_step_s", lambda *_: 0.5)
    config = load_config(project, "vqvae-as-published")
    layout = Layout.of(project, "vqvae-as-published", config)
    rows = rows_of(layout, config, {"corpus": Obstacle("no COCO", "get it"), "encoder": None})
    assert {row.state for row in rows} == {"not possible"}
    identity = rows[2]
    steps = 176 * (118_287 // 32)
    assert identity.work == f"{steps:,} steps"
    assert identity.time_s == 0.5 * steps
    assert identity.about


def test_steps_are_timed_with_the_kernels_of_a_training(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic ones, which are slower."""
    called: list[str] = []
    monkeypatch.setattr(plan, "seed_everything", lambda _, device: called.append(device))
    config = load_config(project, "demo-vqvae")
    rows = rows_of(Layout.of(project, "demo-vqvae", config), config)
    assert called == [rows[2].memory_on, rows[3].memory_on]
    assert (rows[2].time_s or 0) > 0
