"""Stages that cannot run: who says so, what is left in the place of results, and that results are never replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.skipped import (
    MACHINE,
    Obstacle,
    check_folder,
    folder_of,
    is_finished,
    leave_out,
    note_of,
    obstacle_of,
    remove_note,
)
from daamctl.config import Config
from daamctl.data.stage_table import STAGES, stages_of_task

NAMES = {"train": "none", "finetune": "lora-r8", "reconstruct": "daam"}
WHY = Obstacle("no corpus", "get it")
CONFIG = Config(methods=("none", "mha"), finetunes=("lora-r8",))
OTHER = Config(reconstructions=("identity", "daam"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.of(tmp_path, "mine", CONFIG)


def finish(layout: Layout, stage: str, name: str | None = None) -> None:
    path = folder_of(layout, stage, name) / STAGES[stage].finished.replace("*", "1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def forbid(layout: Layout) -> None:
    path = check_folder(layout.root, "mine") / MACHINE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pipeline": "mine", "runs": False, "reason": WHY.reason, "fix": WHY.fix}))


@pytest.mark.parametrize(("config", "trained"), [(CONFIG, "train/mine/mha"), (OTHER, "reconstruct/mine/daam")])
def test_a_note_goes_down_the_whole_pipeline(layout: Layout, config: Config, trained: str) -> None:
    forbid(layout)
    for stage, spec in stages_of_task(config.task).items():
        for name in [None] if spec.for_each is None else getattr(config, spec.for_each):
            assert obstacle_of(layout, config, stage) == WHY, stage
            assert leave_out(layout, stage, WHY, name)
            assert note_of(folder_of(layout, stage, name), stage) == WHY
    note = json.loads((layout.data / trained / "skipped.json").read_text())
    assert note == {"method": Path(trained).name, "reason": "no corpus", "fix": "get it"}


def test_nothing_hinders_where_nobody_says_so(layout: Layout) -> None:
    assert [obstacle_of(layout, CONFIG, stage) for stage in STAGES] == [None] * len(STAGES)
    path = check_folder(layout.root, "mine") / MACHINE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pipeline": "mine", "runs": True, "reason": None, "fix": None}))
    assert [obstacle_of(layout, CONFIG, stage) for stage in STAGES] == [None] * len(STAGES)


def test_an_ad_hoc_run_asks_no_inventory(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path, None, CONFIG)
    path = check_folder(tmp_path, layout.run_name) / MACHINE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"runs": False, "reason": "x", "fix": None}))
    assert obstacle_of(layout, CONFIG, "download") is None


@pytest.mark.parametrize("stage", list(STAGES))
def test_finished_results_stay(layout: Layout, stage: str) -> None:
    name = NAMES.get(stage)
    finish(layout, stage, name)
    before = sorted(layout.root.rglob("*"))
    assert not leave_out(layout, stage, WHY, name)
    assert sorted(layout.root.rglob("*")) == before


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_note_beside_results_says_nothing(layout: Layout, stage: str) -> None:
    name = NAMES.get(stage)
    leave_out(layout, stage, WHY, name)
    folder = folder_of(layout, stage, name)
    assert not is_finished(folder, stage)
    finish(layout, stage, name)
    assert is_finished(folder, stage)
    assert note_of(folder, stage) is None
    remove_note(layout, stage, name)
    assert not (folder / "skipped.json").exists()


def test_one_trained_method_is_enough_to_go_on(layout: Layout) -> None:
    leave_out(layout, "train", WHY, "none")
    leave_out(layout, "finetune", WHY, "lora-r8")
    finish(layout, "train", "mha")
    assert obstacle_of(layout, CONFIG, "evaluate") is None
    assert obstacle_of(layout, CONFIG, "importance") is None


def test_the_other_folders_that_the_dag_declares_are_empty(layout: Layout) -> None:
    for stage, other in (("evaluate", "metrics"), ("report", "plots")):
        leave_out(layout, stage, WHY)
        assert [path.name for path in layout.stage(stage).iterdir()] == ["skipped.json"]
        assert list(layout.stage(other).iterdir()) == []
