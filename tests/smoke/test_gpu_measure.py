"""The measurements of a GPU, at tiny sizes on a CPU, and the script that runs them on a machine without network."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.gpu_measure import VARIANTS, app
from tests.fixtures.projects import REPOSITORY

STUB = """#!/bin/sh
echo "$@ | ${DAAMCTL_ROOT:+a project} $HF_HUB_OFFLINE" >> "$CALLS"
case "$*" in
*"pip install"*) echo "$PIP_INDEX_URL" ;;
*"train -p demo"*) mkdir -p "$DAAMCTL_ROOT/data/train" ;;
*"gpu_check timings"*) exit 3 ;;
esac
"""


def measured(tmp_path: Path, *words: str) -> list[dict[str, object]]:
    out = tmp_path / "found.json"
    kept = torch.backends.cudnn.allow_tf32
    done = CliRunner().invoke(app, [words[0], str(out), *words[1:]])
    torch.backends.cudnn.allow_tf32 = kept
    assert done.exit_code == 0, done.output
    found: list[dict[str, object]] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_extraction_is_measured_in_every_variant(tmp_path: Path) -> None:
    found = measured(tmp_path, "extract", "--tiny")
    assert len(found) == 4 * len(VARIANTS)
    assert all(float(str(row.get("clips_per_s", row.get("ms")))) > 0 for row in found)


@pytest.mark.slow
def test_whole_trainings_are_measured(tmp_path: Path) -> None:
    found = measured(tmp_path, "folds", "--tiny")
    assert len(found) == 4
    assert all("seconds" in row for row in found)


@pytest.mark.slow
def test_fine_tuning_repeats(tmp_path: Path) -> None:
    found = measured(tmp_path, "finetune", "--tiny")
    assert [(row["deterministic"], row["repeats"]) for row in found[:2]] == [(False, True), (True, True)]
    assert found[2]["evaluated"] == "float32"


def test_two_trees_of_folds_are_compared_bit_by_bit(tmp_path: Path) -> None:
    for tree, value in (("one", 1.0), ("other", 1.0), ("third", 1.0 + 2**-20)):
        for method in ("daam-v1", "mha"):
            folder = tmp_path / tree / "demo" / method / "fold1-seed1"
            folder.mkdir(parents=True)
            logits = pl.Series("logits", [[value, 2.0]], dtype=pl.List(pl.Float32))
            pl.DataFrame([logits]).write_parquet(folder / "predictions.parquet")
    trees = [str(tmp_path / tree) for tree in ("one", "other", "third", "none")]
    assert measured(tmp_path, "same", *trees[:2], "daam-v1") == [{"fold": "fold1-seed1", "same": True}]
    assert measured(tmp_path, "same", trees[0], trees[2], "daam-v1") == [{"fold": "fold1-seed1", "same": False}]
    assert measured(tmp_path, "same", trees[0], trees[3], "daam-v1") == [{"fold": "fold1-seed1", "same": False}]


def offline(tmp_path: Path, *words: str) -> tuple[int, list[str]]:
    """Exit code of the script, and what it would have run."""
    stub, calls, wheels = tmp_path / "python", tmp_path / "calls", tmp_path / "wheels"
    stub.write_text(STUB)
    stub.chmod(0o755)
    wheels.mkdir(exist_ok=True)
    (wheels / "some.whl").touch()
    given = {**os.environ, "PYTHON": str(stub), "CALLS": str(calls), "TMPDIR": str(tmp_path)}
    calls.unlink(missing_ok=True)
    script = [str(REPOSITORY / "scripts/gpu_offline.sh"), *words]
    done = subprocess.run(script, env=given, cwd=tmp_path, capture_output=True, text=True, check=False)
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_parts_need_no_network_and_go_on_after_a_failure(tmp_path: Path) -> None:
    code, calls = offline(tmp_path, "check", "wheels", "out")
    assert code == 0
    assert "--no-index --no-deps" in calls[0]
    assert calls[0].count(str(tmp_path / "wheels/some.whl")) == 1
    assert all(call.endswith(" 1") for call in calls[1:])  # offline
    commands = [call.split("-m daamctl ")[1].split(" ")[0] for call in calls if "-m daamctl" in call]
    assert commands == ["download", "segment", "extract", "train", "train", "train", "finetune"]
    assert all("a project" in call for call in calls if "-m daamctl" in call)
    assert sum("gpu_measure same" in call for call in calls) == 1
    assert "gpu_check tests" in calls[-1]
    assert "a project" not in calls[-1]
    code, calls = offline(tmp_path, "extraction", "wheels", "out")
    assert [call.split(" ")[2] for call in calls] == ["extract", "timings"]  # nothing is installed again
    assert code == 1
    for part, names in (("training", ["training", "folds"]), ("finetuning", ["finetune", "text", "vision"])):
        code, calls = offline(tmp_path, part, "wheels", "out")
        assert (code, [call.split(" ")[2] for call in calls]) == (0, names)
    assert offline(tmp_path, "all", "wheels", "out") == (2, [])
    assert offline(tmp_path, "check") == (2, [])
    assert [path.name for path in tmp_path.glob("tmp.*")] == []
