"""The command that repairs an artifact follows from its place, and on the command line from the options given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.cli.app import app
from daamctl.planning.repair import repair_of
from tests.fixtures.folds import write_method
from tests.fixtures.projects import REPOSITORY


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("download/demo/utterances.parquet", "daamctl download demo"),
        ("segment/demo/clips.parquet", "daamctl segment demo"),
        ("train/demo", "daamctl run demo"),
        ("train/demo-published-recipe", "daamctl run demo --set train.recipe=published"),
        ("train/demo/mean", "daamctl train demo --method mean"),
        ("train/demo/lora-r8/fold2-seed7/result.json", "daamctl finetune demo --method lora-r8 --fold 2 --seed 7"),
        ("train/demo-published-recipe/mean", "daamctl train demo --set train.recipe=published --method mean"),
        ("reconstruct/demo-vqvae/daam/seed1", "daamctl reconstruct demo-vqvae --method daam --seed 1"),
        ("truncate/demo/layers-1-2/fold1-seed1", "daamctl truncate demo"),
    ],
)
def test_what_is_missing_and_what_is_there(project: Path, place: str, command: str) -> None:
    path = project / "data" / place
    assert repair_of(path) == f"make it: {command}"
    path.mkdir(parents=True)
    force = " --force" if "--seed" in command else ""  # it looks finished
    assert repair_of(path) == f"make it again: {command}{force}"


def test_an_evaluation_without_trainings_is_made_by_all_stages(project: Path) -> None:
    path = project / "data/evaluate/demo/evaluation.json"
    assert repair_of(path) == "make it: daamctl run demo"
    (project / "data/train/demo/mean").mkdir(parents=True)
    assert repair_of(path) == "make it: daamctl evaluate demo"


def test_a_folder_of_the_user_is_no_artifact(project: Path) -> None:
    assert repair_of(project.parent / "data/train/anna/a.wav") is None
    assert repair_of(project / "data/train/demo/mean/data/train/x") == "make it: daamctl train demo --method mean"


@pytest.mark.parametrize("place", ["data/corpora/x", "data/x", "x", "other/segment/demo/x"])
def test_what_no_stage_makes(project: Path, place: str) -> None:
    assert repair_of(project / place) is None


def test_what_belongs_to_no_run(project: Path) -> None:
    assert repair_of(project / "data/mlm/bert/mlm.json") == "make it: run the same command with --force"
    (project / "data/check").mkdir(parents=True)
    assert repair_of(project / "data/check") == "make it again: daamctl check --inventory"


def test_an_ad_hoc_run_is_known_by_its_folds(project: Path) -> None:
    from daamctl.config import Config

    config = Config.model_validate({"download": {"corpus": "demo"}, "extract": {"encoder": "wavlm-micro"}})
    layout = Layout.of(project, None, config)
    write_method(layout, config, "mean", folds=(1,))
    place = project / "data/train/demo-wavlm-micro/mean/fold1-seed1/weights.safetensors"
    words = "train --corpus demo --encoder wavlm-micro --method mean --fold 1 --seed 1"
    assert repair_of(place) == f"make it: daamctl {words}"
    whole = "train --corpus demo --encoder wavlm-micro --method mean"
    assert repair_of(place.parents[2]) == f"make it again: daamctl {whole}"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_the_command_line_repeats_the_options_given(project: Path) -> None:
    for words in (["extract", "demo"], ["train", "demo", "-m", "mean"], ["show", "demo"], ["compare", "demo", "emodb"]):
        assert call(*words).stderr.splitlines()[1].startswith("  make it: daamctl ")
    result = call("extract", "--corpus", "demo", "--encoder", "wavlm-micro", "--set", "segment.tail=drop")
    assert result.stderr.endswith("make it: daamctl segment --corpus demo --set segment.tail=drop\n")


def test_no_command_repairs_what_the_user_gives(tmp_path: Path, project: Path) -> None:
    result = call("predict", str(REPOSITORY / "docs"), "x.wav")
    assert result.exit_code == 3
    assert "make it" not in result.stderr


def test_a_corpus_that_no_pipeline_is_named_after(project: Path) -> None:
    (project / "data/download/images").mkdir(parents=True)
    (project / "data/download/images/utterances.parquet").write_text("x")
    assert call("download", "nothing").stderr.startswith("UnknownNameError: unknown pipeline or corpus 'nothing'\n")
    result = call("segment", "--corpus", "images")
    assert result.stderr.endswith("\n  make it again: daamctl download --corpus images\n")
