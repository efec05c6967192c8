"""The commands of docs/tutorial.md in their order, on a few generated recordings and a tiny encoder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import soundfile
import torch
import uvicorn
import yaml
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.models.folder import read_model
from daamctl.stages import serve
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.recordings import RATE
from tests.fixtures.tiny_models import SMALL

PAGE = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
(SETTINGS,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
LABELS = {"W": "anger", "L": "boredom", "E": "disgust", "A": "fear", "F": "happiness", "T": "sadness", "N": "neutral"}
PITCH = {letter: 150 * 1.6**step for step, letter in enumerate(LABELS)}
"""Hz of the tone, by the letter of the label."""
QUICK: dict[str, dict[str, Any]] = {
    "download": {"num_groups": 3},
    "extract": {"device": "cpu"},
    "train": {"steps": 20, "passes": 0, "search": "none", "refit": False, "device": "cpu"},
    "ablate": {"k": [1]},
    "importance": {"audit": False},
    "report": {"interactive": False},
}
"""What replaces the thorough settings of a real run."""


def write_recordings(folder: Path, speakers: range) -> None:
    """Write tones with names like EmoDB's: speaker, three characters of text, label, version."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(speakers.start)
    for speaker in speakers:
        for number, label in enumerate(LABELS):
            seconds = np.arange(RATE // 4) / RATE
            wave = 0.3 * np.sin(2 * np.pi * PITCH[label] * rng.uniform(0.95, 1.05) * seconds)
            soundfile.write(
                folder / f"{speaker:02}a0{number}{label}a.wav", wave + 0.01 * rng.normal(size=len(seconds)), RATE
            )


def write_encoder(folder: Path) -> None:
    """Write a WavLM with random weights and as many layers as Whisper-base's encoder has."""
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMModel

    torch.manual_seed(0)
    sizes = {**SMALL, "num_hidden_layers": 6, "conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16}
    WavLMModel(WavLMConfig(**sizes, num_conv_pos_embedding_groups=2)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the tutorial starts in."""
    write_recordings(tmp_path / "emodb/recordings", range(3, 9))
    write_recordings(tmp_path / "emodb/new", range(15, 17))
    names = sorted(path.name for path in (tmp_path / "emodb/new").iterdir())
    table = ["path,label", *(f"new/{name},{LABELS[name[5]]}" for name in names)]
    (tmp_path / "emodb/new.csv").write_text("\n".join(table) + "\n")
    write_encoder(tmp_path / "whisper-base")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "DAAMCTL_ROOT"):
        monkeypatch.delenv(name, raising=False)
    with blank_pictures():
        yield tmp_path


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks a server with curl")
@pytest.mark.filterwarnings("ignore:.*noload")  # of MLflow, about its own code; as an error it breaks later tests
def test_the_tutorial_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    server: Server | None = None
    try:
        for command in COMMANDS:
            words = shlex.split(command)
            names.append(" ".join(words[: 2 if words[0] == "daamctl" else 1]))
            if names[-1] == "cd":
                monkeypatch.chdir(words[1])
            elif names[-1] == "daamctl serve":
                server = Server(Path(words[2]))
            elif names[-1] == "curl":
                assert server is not None
                answer = yaml.safe_load(ask(words, server.port))
                assert set(answer["probabilities"]) == set(LABELS.values())
            else:
                found = CliRunner().invoke(app, words[1:], catch_exceptions=False)
                assert found.exit_code == 0, f"{command}\n{found.output}"
            if names[-1] == "daamctl new":
                add_settings(Path("pipelines/myemo.yaml"))
    finally:
        if server is not None:
            server.stop()
    steps = "init", "new", "run", "truncate", "report", "export", "predict", "predict", "serve"
    assert names == ["daamctl init", "cd", *(f"daamctl {step}" for step in steps[1:]), "curl"]
    record = read_model(folder / "emotion")
    assert record.layers == [1, 2, 3, 4, 5]
    assert record.encoder["licence"] is None
    assert (folder / "voices/data/report/myemo/report.html").is_file()
    items = pl.read_csv(folder / "scored.csv").filter(pl.col("unit") == "item")
    assert items["error"].null_count() == len(items) == 14
    assert (items["class"] == items["label"]).mean() > 0.5  # chance is 1/7


def add_settings(path: Path) -> None:
    """Add the line of the tutorial to a pipeline, and what makes it quick."""
    pipeline = yaml.safe_load(path.read_text()) | yaml.safe_load(SETTINGS)
    for section, values in QUICK.items():
        pipeline[section] = pipeline.get(section, {}) | values
    path.write_text("# The pipeline of the tutorial.\n" + yaml.safe_dump(pipeline))


class Server:
    """`serve` on a free port, in a thread of this process.

    Args:
        model: folder of the exported model.
    """

    def __init__(self, model: Path) -> None:
        made: list[uvicorn.Server] = []

        class Known(uvicorn.Server):
            """Tells where it is, so that it can be stopped without a signal."""

            def __init__(self, config: uvicorn.Config) -> None:
                super().__init__(config)
                made.append(self)

        def run() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(uvicorn, "Server", Known)
                serve.run(model, port=0, device="cpu")

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        while not (made and made[0].started):
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.server = made[0]
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """End the thread."""
        self.server.should_exit = True
        self.thread.join(timeout=60)


def ask(words: list[str], port: int) -> str:
    """Run a curl command of the tutorial with another port, on a recording that there is."""
    words = [word.replace(":8000", f":{port}").replace("15a01Fb", "15a04Fa") for word in words]
    return subprocess.run([*words, "-sS"], capture_output=True, text=True, check=True).stdout
