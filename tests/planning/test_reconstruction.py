"""The plan of a pipeline that reconstructs images."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.artifacts.skipped import Obstacle
from daamctl.config import load_config
from daamctl.layout import Layout
from daamctl.planning import reconstruction
from daamctl.planning.reconstruction import ReconstructionPlan
from daamctl.stages import crop, download, reconstruct
from tests.fixtures.reconstruction import SETTINGS, write_images

NOTHING = {"corpus": None, "encoder": None}


def plan(root: Path, name: str) -> ReconstructionPlan:
    config = load_config(root, name)
    return ReconstructionPlan(Layout.of(root, name, config), config, NOTHING)


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
    states = [row.state for row in ReconstructionPlan(layout, config, NOTHING).rows()]
    assert states == ["to do"] * 5
    download.run(layout, config, source=write_images(project / "mine"))
    crop.run(layout, config)
    reconstruct.run(layout, config, method="daam", seed=1)
    rows = ReconstructionPlan(layout, config, NOTHING).rows()
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
    assert [row.state for row in ReconstructionPlan(layout, other, NOTHING).rows()] == ["done", *["to do"] * 4]


def test_published_size_is_known_before_the_corpus_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReconstructionPlan, "_step_s", lambda *_: 0.5)
    found = plan(project, "vqvae-as-published")
    found.blockers = {"corpus": Obstacle("no COCO", "get it"), "encoder": None}
    rows = found.rows()
    assert {row.state for row in rows} == {"not possible"}
    identity = rows[2]
    steps = 176 * (118_287 // 32)
    assert identity.work == f"{steps:,} steps"
    assert identity.time_s == 0.5 * steps
    assert identity.about


def test_steps_are_timed_with_the_kernels_of_a_training(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic ones, which are slower."""
    called: list[str] = []
    monkeypatch.setattr(reconstruction, "seed_everything", lambda _, device: called.append(device))
    found = plan(project, "demo-vqvae")
    assert found._step_s("identity") > 0
    assert called == [found.device]
