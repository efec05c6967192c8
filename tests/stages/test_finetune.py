"""Stage `finetune` on real audio and a tiny WavLM, and what evaluation and report make of its folds."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.results import read_folds
from daamctl.config import Config, load_config
from daamctl.errors import ArtifactError, AudioError, TrainingError, UnknownNameError
from daamctl.layout import Layout
from daamctl.stages import compare, download, evaluate, extract, finetune, report, segment, train
from tests.fixtures.folds import make_layout, write_method
from tests.fixtures.recordings import write_pipeline

MORE = (
    "methods: [none]\n"
    "finetunes: [linear-probe]\n"
    "finetune: {epochs: 2, lr: 0.01, device: cpu}\n"
    "report: {interactive: false}\n"
)


def settings(project: Path, **overrides: Any) -> tuple[Layout, Config]:
    config = load_config(project, "tiny", {key.replace("__", "."): value for key, value in overrides.items()})
    return Layout.of(project, "tiny", config), config


@pytest.fixture
def clips(project: Path) -> Path:
    """A project with the clip table of the tones."""
    write_pipeline(project, more=MORE)
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    return project


def test_folds_are_made_without_embeddings_and_kept(clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout, config = settings(clips)
    folder = finetune.run(layout, config, method="linear-probe", track=False)
    assert folder == layout.method("linear-probe")
    folds = read_folds(folder)
    assert [fold.result["run"]["test_group"] for fold in folds] == ["g0", "g1", "g2"]
    assert not layout.embeddings.exists()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    with caplog.at_level(logging.INFO, logger="daamctl"):
        finetune.run(layout, config, method="linear-probe", track=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "linear-probe: 3 of 3 folds are finished and kept" in caplog.text
    other = settings(clips, train__seeds=[2])
    finetune.run(*other, method="linear-probe", fold=2, track=False)
    assert [(fold.fold, fold.seed) for fold in read_folds(folder)] == [(1, 1), (2, 1), (2, 2), (3, 1)]
    shutil.rmtree(folder / "fold3-seed1")
    finetune.run(layout, config, method="linear-probe", track=False)
    assert [(fold.fold, fold.seed) for fold in read_folds(folder)] == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises(TrainingError, match="--fold must be 1 to 3 or all, met 4"):
        finetune.run(layout, config, method="linear-probe", fold=4, track=False)


def test_a_method_and_a_fine_tuned_encoder_are_evaluated_and_reported_together(clips: Path) -> None:
    layout, config = settings(clips)
    extract.run(layout, config)
    train.run(layout, config, method="none", track=False)
    with pytest.raises(ArtifactError) as caught:
        evaluate.run(layout, config)
    assert caught.value.fix == "train it: daamctl finetune --pipeline tiny --method linear-probe"
    finetune.run(layout, config, method="linear-probe", track=False)
    found = json.loads(evaluate.run(layout, config).read_text())
    assert list(found["methods"]) == ["none", "linear-probe"]
    compared = found["comparison"]["result"]["comparisons"][0]
    assert (compared["first"], compared["second"]) == ("none", "linear-probe")
    assert found["counts"]["utterance"] == 48
    assert not any("other settings" in note for note in found["notes"])
    notes = json.loads(evaluate.run(*settings(clips, finetune__lr=0.5)).read_text())["notes"]
    assert "trained with other settings than those of now: finetune.lr: 0.01 (now 0.5)" in notes
    page = report.run(layout, config, track=False)
    row = next(line for line in (page.parent / "tables/cost.csv").read_text().splitlines() if "linear-probe" in line)
    assert row.split(",")[1:4] == ["130", "0", "130"]  # one linear map of 64 features to 2 classes
    assert "linear-probe" in page.read_text()
    result = json.loads(compare.run(clips, "tiny/none", "tiny/linear-probe").read_text())
    assert "finetune.lr" in {entry["name"] for entry in result["settings"]["can_change"]}


def test_recordings_that_cannot_be_read(clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    (clips / "tones/s3-1.wav").write_bytes(b"RIFF")
    layout, config = settings(clips)
    with pytest.raises(AudioError, match=r"s3-1\.wav"):
        finetune.run(layout, config, method="linear-probe", track=False)
    with pytest.raises(AudioError, match=r"1 of 48 clips cannot be read \(tolerated: 1.0%\): s3-1#000: "):
        finetune.run(*settings(clips, extract__max_unreadable_fraction=0.01), method="linear-probe", track=False)
    finetune.run(*settings(clips, extract__max_unreadable_fraction=0.05), method="linear-probe", track=False)
    assert "1 of 48 clips cannot be read and are left out: s3-1#000" in caplog.text
    sizes = [fold.result["meta"]["num_test_clips"] for fold in read_folds(layout.method("linear-probe"))]
    assert sizes == [16, 15, 16]


def test_clips_made_with_other_settings_are_refused(clips: Path) -> None:
    with pytest.raises(ArtifactError, match=r"segment.tail: made with 'keep', asked for 'pad'"):
        finetune.run(*settings(clips, segment__tail="pad"), method="linear-probe", track=False)


def test_missing_clips_and_unknown_names_say_what_to_do(project: Path) -> None:
    write_pipeline(project, more=MORE)
    layout, config = settings(project)
    with pytest.raises(ArtifactError, match="make them: daamctl segment --pipeline tiny"):
        finetune.run(layout, config, method="linear-probe", track=False)
    with pytest.raises(UnknownNameError, match="unknown way of fine-tuning 'lora-r9'\n  did you mean 'lora-r"):
        finetune.run(layout, config, method="lora-r9", track=False)


TUNED: dict[str, Any] = {
    "run.finetune": True,
    "run.config.finetune": {"epochs": 3},
    "run.config.train": {"loss": "focal", "selection": "dev-group"},
    "meta.embeddings_key": "0123456789abcdef",
    "run.layers": [24],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.config.train": {"loss": "cross-entropy"}}, r"train.loss is 'focal' for 'none', 'cross-entropy' for 'l"),
        ({"meta.num_train_clips": 7}, r"clips of fold 1 is \[300, 100, \d+\] for 'none', \[7, 100, \d+\] for 'linear"),
        ({"run.config.finetune": {"epochs": 4}}, r"finetune.epochs is 3 for 'lora-r8', 4 for 'linear-probe'"),
        ({"meta.embeddings_key": "f" * 16}, r"data_key is '0123456789abcdef' for 'lora-r8', 'ffffffffffffffff' for"),
        (
            {"meta.encoder": {"weights_sha256": "a"}},
            r"hash of the encoder's weights in float32 is null for 'none', 'a' for 'linear-probe'",
        ),
        ({}, None),
        ({"meta.encoder": {"weights_sha256": "a", "weights_dtype": "bfloat16"}}, None),  # another hash, perhaps as good
    ],
)
def test_what_is_shared_must_agree_and_nothing_else(tmp_path: Path, changes: Any, message: str | None) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["none"], "finetunes": ["lora-r8", "linear-probe"]})
    write_method(layout, config, "none")
    write_method(layout, config, "lora-r8", changes=TUNED)
    write_method(layout, config, "linear-probe", changes={**TUNED, **changes})
    if message is None:
        assert evaluate.run(layout, config).is_file()
        return
    with pytest.raises(ArtifactError, match=message):
        evaluate.run(layout, config)


def test_folds_of_one_way_must_be_made_alike(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": [], "finetunes": ["lora-r8"]})
    write_method(layout, config, "lora-r8", folds=(1, 2, 3, 4), changes=TUNED)
    write_method(layout, config, "lora-r8", folds=(5,), changes={**TUNED, "run.config.finetune": {"epochs": 4}})
    with pytest.raises(ArtifactError, match=r"finetune.epochs is 3 in fold1-seed1, 4 in fold5-seed1") as caught:
        evaluate.run(layout, config)
    assert caught.value.fix == "train them again: daamctl finetune --pipeline toy --method lora-r8"
