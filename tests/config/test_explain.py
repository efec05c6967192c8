"""`daamctl explain` and docs/settings.md: every setting, in words that follow from the schema and its marks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.config import Config, load_config
from daamctl.config.explain import FIRST, allowed, can_change, find, meaning, settings, value_of
from daamctl.errors import ConfigError
from tests.fixtures.projects import REPOSITORY


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["explain", *words])


def test_every_setting_has_a_meaning_and_allowed_values() -> None:
    sections = {name.partition(".")[0] for name in settings()}
    assert sections == set(Config.model_fields)
    assert {f"train.{name}" for name in type(Config().train).model_fields} <= set(settings())
    for name in settings():
        assert meaning(name).endswith((".", ")")), name
        assert allowed(name), name
        assert can_change(name), name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("train.search_lr", "list of: number > 0"),
        ("train.recipe", "searched, published"),
        ("train.steps", "whole number ≥ 1 or null"),
        ("train.plateau_factor", "number > 0 and < 1"),
        ("train.test_part", "dev or null"),
        ("ablate.layers", "list of: list of: whole number"),
        ("method_settings", "mapping"),
        ("segment.write_audio", "true or false"),
    ],
)
def test_allowed_values_are_those_of_the_schema(name: str, values: str) -> None:
    assert allowed(name) == values


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("train.epochs", "every result of `train` and of the stages that read it"),
        ("train.recipe", "the settings that the recipe sets, and so every result of `train`"),
        ("train.device", "no result; only e.g. speed, memory, tolerance or a name"),
        ("train.loss", "every result of `train` and of the stages that read it; fine-tuning uses it too"),
        ("extract.pad_frames_to", "every result of `extract`, unless it is null; applies to speech only"),
        ("methods", "which results there are"),
    ],
)
def test_what_a_setting_can_change_follows_from_its_marks(name: str, effect: str) -> None:
    assert can_change(name) == effect


@pytest.mark.parametrize(
    ("typo", "fix"),
    [
        ("train.serch_lr", "did you mean: train.search_lr, "),
        ("search_lr", "did you mean: train.search_lr, finetune.search_lr"),
        ("encodr", "did you mean: extract.encoder"),
        ("qqq", "list them: daamctl explain"),
    ],
)
def test_a_typo_proposes_the_nearest_names(typo: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(typo)
    assert str(caught.value).startswith(f"unknown setting '{typo}'\n  {fix}")
    assert len(str(caught.value).split(",")) <= 3


def test_a_setting_of_a_pipeline_and_where_it_is_set(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("methods: [none]\ntrain: {epochs: 7, recipe: published}\n")
    assert call("train.epochs", "-p", "mine").stdout == (
        "train.epochs: Passes over the training clips, if `steps` is null.\n"
        "  default: 35; allowed: whole number ≥ 1\n"
        "  mine: 7, from pipelines/mine.yaml\n"
        "  can change: every result of `train` and of the stages that read it\n"
    )
    for name, line in {
        "train.batch_size": "  mine: 8, from its recipe",
        "train.search_lr": "  mine: [0.0015, 0.006], from params.yaml",
        "methods": '  mine: ["none"], from pipelines/mine.yaml',
        "evaluate.unit": "  mine: utterance, from params.yaml",
    }.items():
        assert line in call(name, "-p", "mine").stdout.splitlines()
    assert call("train.epoch", "-p", "mine").exit_code == 3
    assert call("train.epochs", "-p", "other").stderr.startswith("ConfigError: unknown pipeline 'other'")


def test_alone_it_lists_ten_settings_and_of_a_section_all(project: Path) -> None:
    lines = call().stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [*FIRST, "All settings"]
    assert len(FIRST) == len(set(FIRST) & set(settings())) == 10
    shown = [line.partition(":")[0] for line in call("segment").stdout.splitlines() if not line.startswith(" ")]
    assert shown == find("segment")


def test_it_needs_neither_torch_nor_a_project(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        "try: app(['explain', 'train.lr'])\nexcept SystemExit as end: assert not end.code\n"
        "print([n for n in ('torch', 'numpy', 'polars', 'mlflow', 'transformers') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "default: 0.0001; allowed: number > 0" in done.stdout
    assert done.stdout.endswith("\n[]\n")


def test_the_page_is_what_the_script_writes() -> None:
    """To repair it: python scripts/settings_page.py."""
    spec = importlib.util.spec_from_file_location("script", REPOSITORY / "scripts" / "settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    config = load_config(REPOSITORY)
    page = script.PAGE.read_text(encoding="utf-8")
    assert page.partition(script.BEGIN)[2].partition(script.END)[0] == f"\n{script.tables(config)}"
    for name in settings():
        shown = value_of(config, name) if name != "pipelines" else "all shipped ones"
        assert f"| `{name}` | `{shown}` |" in page
