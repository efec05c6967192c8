"""Kill the process at the worst moment, start it again, and get the result of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_fold
from daamctl.config import Config, load_config
from daamctl.stages import crop, download, extract, segment, train
from daamctl.store.files import sha256_file
from tests.fixtures.recordings import write_pipeline

TIMEOUT_S = 240.0


COMMAND = """
import sys
from daamctl.cli.app import main
from daamctl.fit import runner
runner.CHECKPOINT_EVERY_S, runner.SAVING_FRACTION = 0.0, float("inf")  # save after every step
sys.argv[0] = "daamctl"
main()
"""


def daamctl(*words: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, *words]


def settings(project: Path, **overrides: Any) -> tuple[Layout, Config]:
    config = load_config(project, "tiny", {key.replace("__", "."): value for key, value in overrides.items()})
    return Layout.of(project, "tiny", config), config


def kill_when(condition: Callable[[], bool], *words: str) -> None:
    """Start a command and SIGKILL it as soon as the condition holds; it must not finish before."""
    with subprocess.Popen(daamctl(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert process.poll() is None, "the command ended before it could be killed"
            assert time.monotonic() < deadline, "the moment to kill never came"
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


WORDS = """
download: {corpus: demo-tokens}
extract: {encoder: llama-micro, shard_clips: 600}
methods: [daam-v1-mlp]
train: {shots: 8, dev_fraction: 0.2, search: none}
"""


@pytest.fixture(params=["recordings", pytest.param("words", marks=pytest.mark.slow)])
def tiny(project: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "words":
        (project / "pipelines/tiny.yaml").write_text(WORDS, encoding="utf-8")
    else:
        write_pipeline(project)
    download.run(*settings(project))
    segment.run(*settings(project))
    return project


def shards(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.glob("embeddings*"))}


@pytest.mark.slow  # tests/stages/test_extract.py interrupts it within this process
def test_killed_extraction_redoes_at_most_one_shard(tiny: Path) -> None:
    work, target = tiny / "data/.work/extract", tiny / "data/extract/tiny"
    words = ("extract", "--pipeline", "tiny")
    kill_when(lambda: len(list(work.glob("*/embeddings-*.parquet"))) >= 2, *words)
    finished = {path.name: path.stat().st_mtime_ns for path in work.glob("*/embeddings-*.parquet")}
    assert not target.exists()
    extract.run(*settings(tiny))
    resumed = shards(target)
    redone = [name for name, mtime in finished.items() if (target / name).stat().st_mtime_ns != mtime]
    assert len(redone) <= 1, f"more than one shard was made again: {redone}"
    extract.run(*settings(tiny), force=True)
    assert shards(target) == resumed
    assert len(resumed) == 7  # 48 clips in shards of 8, or 3,504 words in shards of 600, and the head


def test_killed_training_continues_to_the_same_result(tiny: Path) -> None:
    extract.run(*settings(tiny))
    folds = tiny / "data/train/tiny/daam-v1-mlp"
    words = ("train", "--pipeline", "tiny", "--method", "daam-v1-mlp", "--fold", "1", "--no-track")
    words += ("--set", "train.steps=400")
    kill_when(lambda: any((tiny / "data/.work/train/tiny").rglob("state.pt")), *words)
    assert not list(folds.glob("fold*"))

    def result() -> tuple[Any, ...]:
        fold = read_fold(folds / "fold1-seed1")
        weights = sha256_file(fold.folder / "weights.safetensors")
        return fold.history().to_dicts(), fold.predictions().to_dicts(), fold.result["metrics"], weights

    same = settings(tiny, train__steps=400)
    train.run(*same, method="daam-v1-mlp", fold=1, track=False)
    resumed = result()
    train.run(*same, method="daam-v1-mlp", fold=1, force=True, track=False)
    assert result() == resumed


@pytest.mark.slow
def test_killed_reconstruction_continues_to_the_same_weights(project: Path) -> None:
    layout = Layout.of(project, "demo-vqvae", config := load_config(project, "demo-vqvae", {"reconstruct.seeds": [1]}))
    download.run(layout, config)
    crop.run(layout, config)
    words = ("reconstruct", "-p", "demo-vqvae", "-m", "daam", "--seeds", "1")
    weights = layout.stage("reconstruct") / "daam/seed1/weights.safetensors"
    state = layout.work / "reconstruct/demo-vqvae/daam-seed1/state.pt"
    kill_when(lambda: steps_at(state) > 30, *words)
    subprocess.run(daamctl(*words), check=True, capture_output=True)
    continued = sha256_file(weights)
    subprocess.run(daamctl(*words, "--force"), check=True, capture_output=True)
    assert sha256_file(weights) == continued


def steps_at(path: Path) -> int:
    """Steps of the training under way in a resume file."""
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    return int(state["under way"]["fit"]["step"])
