"""`daamctl plan`: one table, its reasons and totals; JSON for programs; nothing is written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.cli.plan import _figures, _joules
from daamctl.planning.tasks import Task


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", *words])


def test_table_of_the_demo(project: Path) -> None:
    before = sorted(project.rglob("*"))
    result = call("demo")
    assert result.exit_code == 0, result.output
    assert sorted(project.rglob("*")) == before
    lines = result.stdout.splitlines()
    assert lines[0].startswith("demo with encoder wavlm-demo on ")
    assert lines[1].split() == ["stage", "state", "work", "disk", "memory", "time", "basis"]
    names = [line.split("  ")[0].strip() or line.split()[0] for line in lines[2:19]]
    assert names == ["download", "segment", "extract", "train", "none-mlp", "mean", "weighted-sum", "daam-v1-mlp",
                     "daam-v2-mlp", "ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "evaluate",
                     "ablate", "importance", "report"]  # fmt: skip
    assert lines[5].split() == ["train", "5", "folds", "×", "3", "trainings", "×", "200", "steps"]
    assert lines[4].split()[:7] == ["extract", "to", "do", "≈", "353", "clips,", "0.25"]
    assert lines[4].split().count("≈") == 2  # work and disk
    assert lines[4].split().count("≥") == 1  # memory, without activations
    totals = {line.split("  ")[0].strip(): line for line in lines[19:]}
    assert " needed, " in totals["disk"]
    assert totals["disk"].endswith(" free")
    assert totals["memory"].endswith(" available")
    assert "time left  not known yet; unknown for: extract, train, ablate, importance" in lines


def test_brief_has_a_row_for_each_stage(project: Path) -> None:
    lines = call("demo", "--brief").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:10]] == [
        "download", "segment", "extract", "train", "evaluate", "ablate", "importance", "report",
    ]  # fmt: skip
    assert "5 × 5 folds × 3 trainings × 200 steps, 4 × 5 folds " in lines[5]


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({}, "≈ 60 s"),
        ({"about": True}, "≈ 60 s"),
        ({"at_least": True}, "≥ 60 s"),  # not all items are known
        ({"time_at_least": True}, "≥ 60 s"),  # nor are the times of all methods of a stage
        ({"time_s": None, "basis": "not known"}, "?"),
        ({"basis": "quick"}, "seconds"),
    ],
)
def test_times_say_how_certain_they_are(row: dict[str, Any], shown: str) -> None:
    whole = asdict(Task("train", time_s=60.0, basis="recorded"))
    assert _figures({**whole, **row})[2] == shown


@pytest.mark.parametrize(("joules", "shown"), [(720.4, "720 J"), (5400.0, "1.5 Wh"), (9e6, "2.5 kWh")])
def test_energy_has_a_unit_for_its_size(joules: float, shown: str) -> None:
    assert _joules(joules) == shown


def test_json_is_the_whole_plan(project: Path) -> None:
    result = call("demo", "--json", "--seeds", "1,2", "--set", "methods=[mean]")
    value = json.loads(result.stdout)
    assert [row["method"] for row in value["stages"] if row["stage"] == "train"] == ["mean"]
    assert next(row["total"] for row in value["stages"] if row["method"] == "mean") == 10


def test_what_is_missing_is_named_once_with_its_fix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(project / "hub"))
    result = call("iemocap")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert text.count("corpus 'iemocap' is not on this machine") == 1
    assert "download, segment: not possible here: corpus 'iemocap'" in text
    assert "extract, train, finetune, evaluate, ablate, importance, report: not possible here: encoder 'micro" in text
    assert "daamctl download iemocap --from DIR" in text
    assert "with network: hf download microsoft/wavlm-large" in text
    assert "this includes stages that cannot run here" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dmeo"], "ConfigError: unknown pipeline 'dmeo'\n  did you mean 'demo'?"),
        (["demo", "--set", "train.steps=0"], "ConfigError: pipeline 'demo' with the options given: train.steps"),
        (["demo", "--device", "cuda:99"], "ConfigError: device 'cuda:99' is not on this machine"),
        (["demo", "--set", "methods=[nine]"], "ConfigError: demo: methods: unknown name 'nine'; did you"),
        (["iemocap", "--measure"], "CorpusError: "),
        (["demo", "--measure", "--set", "extract.encoder=wavlm-large"], "EncoderError: encoder 'microsoft/wavlm"),
    ],
)
def test_mistakes_end_in_one_message(project: Path, words: list[str], message: str) -> None:
    result = call(*words)
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith(message)
    assert not list((project / "data").glob("*/*"))  # nothing has run


def test_steps_of_a_reconstruction_are_measured_with_and_without_the_option(project: Path) -> None:
    result = call("demo-vqvae", "--measure")
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("  identity")]
    assert row.split()[-1] == "measured"


def test_dry_run_prints_settings(project: Path) -> None:
    result = call("demo", "--set", "train.epochs=3", "--dry-run")
    assert result.exit_code == 0
    assert "epochs: 3" in result.stdout
