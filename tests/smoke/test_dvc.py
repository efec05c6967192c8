"""DVC makes what can be made here, leaves the rest out with a reason, and makes it once the reason is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daamctl.stages import check
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.recordings import write_manifest, write_pipeline

STAGES = ("download", "segment")  # tests/cli/test_options.py has every stage, without DVC


def dvc(project: Path, *words: str, fails: bool = False) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
        env={**os.environ, "PATH": path},
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def note(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "skipped.json").read_text())
    return found


@pytest.fixture
def two(project: Path) -> Path:
    """A DVC project of two pipelines over tones; those of `later` are not there yet."""
    write_pipeline(project, "tiny", "methods: [mean]\n")
    text = (project / "pipelines/tiny.yaml").read_text()
    (project / "pipelines/later.yaml").write_text(text.replace("tones/tones.csv", "later/later.csv"))
    params = project / "params.yaml"
    params.write_text(re.sub(r"pipelines:.*\n(  - .*\n)+", "pipelines: [tiny, later]\n", params.read_text()))
    shutil.copyfile(REPOSITORY / "dvc.yaml", project / "dvc.yaml")
    check.run(project, write=True)
    dvc(project, "init", "--no-scm", "-q")
    return project


@pytest.mark.slow
def test_metrics_are_those_of_what_ran_and_nothing_runs_twice(two: Path) -> None:
    dvc(two, "repro", "evaluate@tiny", "segment@later")
    rows = [line.split() for line in dvc(two, "metrics", "show").splitlines()]
    assert rows[0] == ["Path", "accuracy", "balanced_accuracy", "macro_f1"]
    assert [row[0] for row in rows[1:]] == ["data/metrics/tiny/mean.json"]
    again = dvc(two, "repro", "evaluate@tiny", "segment@later")
    assert again.count("Running stage") == again.count("Running stage 'check'") >= 1


def test_what_cannot_run_is_left_out_until_it_can(two: Path) -> None:
    output = dvc(two, "repro", "segment@tiny", "segment@later")
    data = two / "data"
    assert not list(data.glob("*/tiny/**/skipped.json"))
    reason = f"corpus 'manifest' should be at {two}/later/later.csv, but that does not exist"
    for stage in STAGES:
        assert note(data / stage / "later")["reason"] == reason, stage
        assert f"later {stage}: skipped: {reason}\n" in output
    before = {path: path.stat().st_mtime_ns for path in data.glob("*/tiny/**/*") if path.is_file()}

    write_manifest(two / "later").rename(two / "later/later.csv")
    again = dvc(two, "repro", "segment@tiny", "segment@later")
    assert "Running stage 'download@later'" in again
    assert "@tiny':" not in again
    assert (data / "segment/later/clips.parquet").is_file()
    assert not (data / "segment/later/skipped.json").exists()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_old_list_of_stages_fails_before_anything_runs(two: Path) -> None:
    """DVC reads stages.yaml before its first stage runs, so it would train a method that is no longer listed."""
    text = (two / "pipelines/tiny.yaml").read_text()
    (two / "pipelines/tiny.yaml").write_text(text.replace("methods: [mean]", "methods: [none]"))
    reason = "stages.yaml is out of date: it lacks train@tiny-none, still has train@tiny-mean"
    assert reason in dvc(two, "repro", "train@tiny-mean", fails=True)
    assert not (two / "data/download").exists()
