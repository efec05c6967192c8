"""`stages.yaml`: it has a line for every method that a pipeline lists, and says so where it has not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from daamctl.artifacts.dag import (
    PAPER_PIPELINES,
    STAGES_FILE,
    check_stages,
    families,
    family_of,
    write_stages,
)
from daamctl.data.stage_table import STAGES
from daamctl.errors import ConfigError
from tests.fixtures.projects import REPOSITORY


@pytest.fixture
def two(project: Path) -> Path:
    """A project of two pipelines: one with the default methods, one with its own and a way of fine-tuning."""
    (project / "params.yaml").write_text("pipelines: [plain, own]\nmethods: [none, mha]\n")
    (project / "pipelines/plain.yaml").write_text("")
    (project / "pipelines/own.yaml").write_text("methods: [daam-v1-mlp]\nfinetunes: [lora-r8]\n")
    return project


ONCE = ("segment", "extract", "evaluate", "ablate", "importance")
"""Stages that a pipeline that classifies has once."""


def report(name: str) -> dict[str, Any]:
    """The report of a pipeline."""
    settings = [f"check/{name}/{stage}.json" for stage in ("report", "evaluate")]
    results = [f"{stage}/{name}" for stage in STAGES["report"].reads]
    return {"cmd": f"daamctl report {name} --if-possible", "reads": settings + results}


def test_one_line_per_method_that_a_pipeline_lists(two: Path) -> None:
    text = write_stages(two).read_text()
    assert text.startswith("# What dvc.yaml expands over")
    once = {f"{name}_stages": {one: {"pipeline": one} for one in ("plain", "own")} for name in ONCE}
    none = {f"{name}_stages": {} for name in ("crop", "reconstruct", "score")}
    assert yaml.safe_load(text) == {
        **once,
        **none,
        "train_stages": {
            "plain-none": {"pipeline": "plain", "method": "none"},
            "plain-mha": {"pipeline": "plain", "method": "mha"},
            "own-daam-v1-mlp": {"pipeline": "own", "method": "daam-v1-mlp"},
        },
        "finetune_stages": {"own-lora-r8": {"pipeline": "own", "method": "lora-r8"}},
        "report_stages": {name: report(name) for name in ("plain", "own")},
    }
    check_stages(two)


def test_a_pipeline_that_reconstructs_has_the_stages_of_its_task_alone(two: Path) -> None:
    (two / "pipelines/own.yaml").write_text("reconstructions: [identity, daam]\n")
    made = yaml.safe_load(write_stages(two).read_text())
    own = {part: {one for one in stages if one.startswith("own")} for part, stages in made.items()}
    assert {part: found for part, found in own.items() if found} == {
        "crop_stages": {"own"},
        "reconstruct_stages": {"own-identity", "own-daam"},
        "score_stages": {"own"},
    }
    check_stages(two)


def test_what_is_lacking_is_named(two: Path) -> None:
    write_stages(two)
    (two / "pipelines/own.yaml").write_text("methods: [daam-v1-mlp, sga]\nfinetunes: [lora-r8, ia3]\n")
    with pytest.raises(ConfigError) as caught:
        check_stages(two)
    assert str(caught.value) == (
        "stages.yaml is out of date: it lacks train@own-sga, lacks finetune@own-ia3\n"
        "  write it again: daamctl check --write"
    )  # fmt: skip
    (two / STAGES_FILE).unlink()
    with pytest.raises(ConfigError, match=r"lacks segment@plain, lacks segment@own, .* and \d+ more"):
        check_stages(two)


def test_two_methods_are_not_one_stage(two: Path) -> None:
    (two / "pipelines/own-daam.yaml").write_text("methods: [v1-mlp]\n")
    (two / "params.yaml").write_text("pipelines: [own, own, own-daam]\nmethods: [none]\n")
    for refuse in (write_stages, check_stages):
        with pytest.raises(ConfigError, match=r"^pipelines 'own' and 'own-daam' both have the stage "):
            refuse(two)


@pytest.mark.parametrize(("name", "is_plain"), [("größe_2.b", True), ("a b", False), ("a$b", False), ("a@b", False),
                                                ("it's", False), ("-a", False)])  # fmt: skip
def test_names_that_the_commands_of_dvc_cannot_hold(two: Path, name: str, is_plain: bool) -> None:
    (two / f"pipelines/{name}.yaml").write_text("methods: [none]\n")
    (two / "params.yaml").write_text(f'pipelines: ["{name}"]\n')
    if is_plain:
        write_stages(two)
        return
    with pytest.raises(ConfigError) as caught:
        write_stages(two)
    assert caught.value.message.startswith(f"params.yaml lists pipeline '{name}', but DVC needs a name of letters")
    assert caught.value.fix is not None
    assert shlex.split(caught.value.fix.partition(": ")[2]) == ["daamctl", "run", "--", name]


def test_a_method_or_a_pipeline_too_many_is_named(two: Path) -> None:
    write_stages(two)
    (two / "pipelines/own.yaml").write_text("methods: [daam-v1-mlp]\n")
    with pytest.raises(ConfigError, match=r"it still has finetune@own-lora-r8\n  write it again"):
        check_stages(two)
    params = two / "params.yaml"
    params.write_text(params.read_text().replace("plain, own", "plain"))
    with pytest.raises(ConfigError, match=r"it still has segment@own, still has extract@own, .* and \d more"):
        check_stages(two)


def test_paper_is_reported_where_its_six_pipelines_are(two: Path) -> None:
    for name in PAPER_PIPELINES:
        (two / f"pipelines/{name}.yaml").touch()
    params = two / "params.yaml"
    params.write_text(f"pipelines: [plain, {', '.join(PAPER_PIPELINES)}]\nmethods: [none]\n")
    made = yaml.safe_load(write_stages(two).read_text())["report_stages"]
    assert list(made) == ["plain", *PAPER_PIPELINES, "paper"]
    assert made["paper"] == {"cmd": "daamctl paper", "reads": [f"report/{name}" for name in PAPER_PIPELINES]}
    assert {len(stage["reads"]) for stage in made.values()} == {6}
    params.write_text(params.read_text().replace("agnews, ", ""))
    with pytest.raises(ConfigError, match=r"still has \w+@agnews, "):
        check_stages(two)
    assert "paper" not in yaml.safe_load(write_stages(two).read_text())["report_stages"]


def test_report_that_reads_something_else_is_found(two: Path) -> None:
    path = write_stages(two)
    path.write_text(path.read_text().replace("ablate/own]", "extract/own]"))
    with pytest.raises(ConfigError, match=r"^stages\.yaml is out of date: it lacks report@own\n"):
        check_stages(two)


def test_without_pipelines_for_dvc_no_file_is_needed(project: Path) -> None:
    (project / "params.yaml").write_text("")
    (project / STAGES_FILE).unlink()
    check_stages(project)


def test_the_project_s_own_file_is_current(project: Path) -> None:
    assert write_stages(project).read_text() == (REPOSITORY / STAGES_FILE).read_text()


def test_a_family_of_few_shot_pipelines_has_a_report(two: Path) -> None:
    names = ["own", "own-16-shots", "own-8-shots", "owner-8-shots", "own-08-shots", "plain"]
    assert families(names) == ["own", "owner"]
    assert family_of("own", names) == {"own-8-shots": 8, "own-16-shots": 16, "own": None}
    assert family_of("plain", names) == {}
    (two / "params.yaml").write_text("pipelines: [own, own-8-shots]\n")
    (two / "pipelines/own-8-shots.yaml").write_text("methods: [none]\n")
    found = yaml.safe_load(write_stages(two).read_text())["report_stages"]["own-shots"]
    assert found["cmd"] == "daamctl shots own"
    assert found["reads"][:3] == ["evaluate/own-8-shots", "evaluate/own", "check/own-8-shots/evaluate.json"]
    assert len(set(found["reads"])) == 6


def test_a_family_is_not_larger_than_a_report_reads(two: Path) -> None:
    names = [f"few-{shots}-shots" for shots in range(1, 8)]
    for name in names:
        (two / f"pipelines/{name}.yaml").write_text("methods: [none]\n")
    (two / "params.yaml").write_text(f"pipelines: [{', '.join(names)}]\n")
    with pytest.raises(ConfigError, match="few has 7 few-shot pipelines"):
        write_stages(two)
