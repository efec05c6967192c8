"""The table of stages: every stage reads what runs before it, and its words are those of the settings."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from typer.main import get_command

from daamctl.artifacts.embeddings import METADATA_FILE
from daamctl.cli.app import app
from daamctl.config import Config
from daamctl.data.stage_table import STAGES, StageSpec, folder_stages, stages_of_task

ORDER = list(STAGES)


@pytest.mark.parametrize("spec", STAGES.values(), ids=ORDER)
def test_a_stage_reads_only_what_runs_before_it(spec: StageSpec) -> None:
    assert all(ORDER.index(name) < ORDER.index(spec.name) for name in spec.reads)
    assert bool(spec.reads) == (spec.name != ORDER[0])


@pytest.mark.parametrize("spec", STAGES.values(), ids=ORDER)
def test_what_a_stage_watches_is_known_to_the_settings(spec: StageSpec) -> None:
    known = {*Config.model_fields, "trained", "seeds"}
    assert set(spec.watches) <= known
    assert spec.for_each is None or spec.for_each in Config.model_fields
    assert spec.name in spec.watches or spec.name not in Config.model_fields


@pytest.mark.parametrize("spec", STAGES.values(), ids=ORDER)
def test_a_stage_has_a_module_and_a_command(spec: StageSpec) -> None:
    assert callable(importlib.import_module(f"daamctl.stages.{spec.name}").run)
    assert spec.name in get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("task", ["classify", "reconstruct"])
def test_a_stage_reads_stages_of_its_own_task(task: Any) -> None:
    own = stages_of_task(task)
    assert "download" in own
    assert all(name in own for spec in own.values() for name in spec.reads)


def test_the_last_file_of_extraction_is_its_metadata() -> None:
    assert STAGES["extract"].finished == METADATA_FILE


def test_fine_tuned_encoders_lie_beside_the_methods() -> None:
    assert set(stages_of_task("classify")) - set(folder_stages()) == {"finetune"}
    assert STAGES["finetune"].finished == STAGES["train"].finished
