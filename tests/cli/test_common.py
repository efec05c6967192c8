"""`--if-possible`: a stage that cannot run leaves a note, prints one line and succeeds, and loads nothing for that."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.artifacts.skipped import Obstacle, folder_of, leave_out
from daamctl.cli.app import app
from daamctl.cli.common import resolve
from daamctl.config import load_config
from daamctl.layout import Layout
from daamctl.stage_table import stages_of_task

NAMES = {"train": "none", "finetune": "lora-r4"}
REASON = "corpus 'iemocap' is not on this machine"


def terms_of(stage: str) -> list[str]:
    return [stage, "--pipeline", "iemocap", *(["--method", NAMES[stage]] if stage in NAMES else [])]


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def left_out(project: Path) -> Layout:
    """A project whose inventory forbids `iemocap`."""
    path = project / "data/inventory/iemocap.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pipeline": "iemocap", "runs": False, "reason": REASON, "fix": "ask for it"}))
    return Layout.of(project, "iemocap", load_config(project, "iemocap"))


def test_every_stage_of_a_pipeline_that_cannot_run(left_out: Layout) -> None:
    config = load_config(left_out.root, "iemocap")
    for stage, spec in stages_of_task("classify").items():
        for name in [None] if spec.for_each is None else getattr(config, spec.for_each):
            words = [stage, "-p", "iemocap", *(["-m", name] if name else []), "--if-possible"]
            result = call(*words)
            assert result.exit_code == 0, result.output
            what = " ".join(["iemocap", stage, *([name] if name else [])])
            assert result.stdout == f"{what}: skipped: {REASON}\n"
            assert json.loads((folder_of(left_out, stage, name) / "skipped.json").read_text())["fix"] == "ask for it"


@pytest.mark.parametrize("stage", list(stages_of_task("classify")))
def test_without_the_option_the_stage_runs_and_the_note_goes(left_out: Layout, stage: str) -> None:
    leave_out(left_out, stage, Obstacle(REASON), NAMES.get(stage))
    result = call(*terms_of(stage))
    assert result.exit_code == (0 if stage == "importance" else 3)  # which does without what is missing
    assert not (folder_of(left_out, stage, NAMES.get(stage)) / "skipped.json").exists()


def test_finished_results_are_kept(left_out: Layout) -> None:
    left_out.clips.parent.mkdir(parents=True)
    left_out.clips.write_text("rows")
    leave_out(left_out, "download", Obstacle(REASON))
    result = call("segment", "-p", "iemocap", "--if-possible")
    assert (result.exit_code, result.stdout) == (
        0,
        f"iemocap segment: cannot run here, earlier results are kept: {REASON}\n",
    )
    assert left_out.clips.read_text() == "rows"
    assert not (left_out.clips.parent / "skipped.json").exists()


def test_dry_run_leaves_no_note(left_out: Layout) -> None:
    result = call("download", "-p", "iemocap", "--if-possible", "--dry-run")
    assert result.exit_code == 0
    assert not (left_out.data / "download").exists()


def test_a_stage_that_is_left_out_loads_next_to_nothing(left_out: Layout) -> None:
    """DVC calls this for every stage of every pipeline that cannot run."""
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        "try: app(['finetune', '-p', 'iemocap', '-m', 'lora-r4', '--if-possible'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print([n for n in ('torch', 'numpy', 'polars', 'pyarrow', 'mlflow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=left_out.root)
    assert done.stdout == f"iemocap finetune lora-r4: skipped: {REASON}\n[]\n"


def test_options_and_settings_given_are_repeated_in_the_command_that_repairs(project: Path) -> None:
    words = ["--pipeline", "demo", "--method", "mean", "--seeds", "1,2", "--set", "download.source=my data"]
    result = call("train", *words)
    assert result.exit_code == 3
    command = shlex.split(result.stderr.splitlines()[-1].partition("daamctl")[2])
    assert command == ["extract", "--pipeline", "demo", "--set", "download.source=my data"]
    layout, _ = resolve("demo", ["extract.layer_00=true"], train__seeds=[1, 2], train__device="cpu")
    assert shlex.split(layout.command("train"))[4:] == [
        "--set", "train.seeds=[1,2]", "--set", "train.device=cpu", "--set", "extract.layer_00=true",
    ]  # fmt: skip
    assert resolve(None, corpus="demo", encoder="wavlm-micro")[0].overrides == ()
