"""Leaks between folds are said by `run`, by `evaluate` and first in the report."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.planning.leaks import leaks
from daamctl.stages import evaluate
from tests.fixtures.projects import write_project
from tests.fixtures.recordings import write_manifest, write_pipeline

COPIES = "4 clips of different utterances have exactly equal embeddings (2 sets), 2 of them across groups: test groups "


@pytest.mark.usefixtures("blank_pictures")
def test_leaks_come_first_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_project(tmp_path / "leaky")
    manifest = write_manifest(root / "tones")
    text = re.sub(r"^(s5-[0-3].wav,\w+),s5", r"\1,s0", manifest.read_text(), flags=re.MULTILINE)
    manifest.write_text(re.sub(r"^(s4-\d.wav,\w+),s4", r"\1,s4", text, flags=re.MULTILINE))
    for name in ("0", "2"):
        shutil.copyfile(root / "tones" / f"s1-{name}.wav", root / "tones" / f"s3-{name}.wav")
    write_pipeline(root, "leaky", "methods: [ridge-mean]\n")
    monkeypatch.chdir(root)
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    result = CliRunner().invoke(app, ["run", "leaky", "--no-track"])
    assert result.exit_code == 0, result.output
    config = load_config(root, "leaky")
    layout = Layout.of(root, "leaky", config)
    shared, copies = leaks(layout, config)
    assert copies.startswith(COPIES)
    assert shared.startswith("Groups share 1 of 6 speakers (")
    assert result.output.index(copies) < result.output.index("train ridge-mean")
    assert read_evaluation(layout.stage("evaluate")).leaks == [shared, copies]
    lines = (layout.stage("report") / "report.md").read_text().split("## Answers")[1].splitlines()
    assert next(line for line in lines if line).endswith(shared)
    preflight = CliRunner().invoke(app, ["preflight", "--pipeline", "leaky"]).output
    assert shared in preflight
    assert copies in preflight
    evaluated = CliRunner().invoke(app, ["evaluate", "--pipeline", "leaky"])
    assert evaluated.exit_code == 0
    assert evaluated.output.index(shared) < evaluated.output.index("accuracy")
    (root / "pipelines" / "leaky.yaml").write_text(
        (root / "pipelines" / "leaky.yaml").read_text().replace("extract: {", "extract: {seed: 1, ")
    )
    evaluate.run(layout, load_config(root, "leaky"))
    (why,) = read_evaluation(layout.stage("evaluate")).leaks
    assert why == (
        "whether folds share speakers or copies is not checked: the embeddings were made with other settings: "
        "extract.seed: made with 0, asked for 1"
    )
    shutil.rmtree(layout.embeddings)
    assert leaks(layout, config) == [shared, "whether folds share copies is not checked: there are no embeddings"]
    shutil.rmtree(layout.clips.parent)
    assert leaks(layout, config) == []
