"""The commands of the stages: corpora or pipelines, decoders, engines, and what reaches a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from PIL import Image
from typer.testing import CliRunner

from daamctl.adapters import FINETUNES
from daamctl.artifacts.clips import read_clips
from daamctl.cli.app import app
from daamctl.compute import ray_engine as engines_ray
from daamctl.compute.local_engine import LocalEngine
from daamctl.compute.ray_engine import RayEngine
from daamctl.stages import extract, finetune, train
from tests.fixtures.recordings import write_pipeline


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(("corpus", "modality", "count"), [("digits", "image", 1797), ("demo-text", "text", 600)])
def test_corpora_that_need_no_network(project: Path, corpus: str, modality: str, count: int) -> None:
    result = call("download", "--corpus", corpus)  # pipelines of these names take fewer classes
    assert (result.exit_code, result.stdout) == (0, f"data/download/{corpus}/utterances.parquet\n")
    result = call("segment", "--corpus", corpus)
    assert (result.exit_code, result.stdout) == (0, f"data/segment/{corpus}/clips.parquet\n")
    clips = read_clips(project / f"data/segment/{corpus}/clips.parquet")
    assert (clips.modality, clips.rows.height) == (modality, count)


def test_folder_of_images(project: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        for index in range(4):
            path = tmp_path / "pets" / part / ("cat", "dog")[index % 2] / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (3, 3)).save(path)
    assert call("download", "manifest", "--from", str(tmp_path / "pets")).exit_code == 0
    assert call("segment", "--corpus", "manifest").exit_code == 0
    rows = read_clips(project / "data/segment/manifest/clips.parquet").rows
    assert rows["path"].to_list()[0] == "test/cat/0.jpg"
    assert dict(rows.group_by("group").len().rows()) == {"train": 4, "test": 4}


@pytest.mark.usefixtures("project")
def test_export_of_texts_is_refused() -> None:
    assert call("download", "--corpus", "demo-text").exit_code == 0
    result = call("segment", "--corpus", "demo-text", "--write-audio")
    assert result.exit_code == 3
    assert result.stderr.endswith(
        "ConfigError: segment.write_audio exports audio, but corpus 'demo-text' consists of texts\n"
        "  use --set segment.write_audio=false\n"
    )


def test_corpora_say_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = call("ls", "corpora").stdout.splitlines()
    found = {line.split()[0]: line.split(maxsplit=1)[1].split(" | ")[0] for line in lines if " | " in line}
    assert found == {
        "demo": "speech",
        "emodb": "speech",
        "iemocap": "speech",
        "demo-text": "text",
        "agnews": "text",
        "digits": "image",
        "cifar100": "image",
        "images": "image",
        "coco": "image",
        "demo-tokens": "tokens",
        "wnut17": "tokens",
        "conll2003": "tokens",
        "wikiann": "tokens",
        "conll": "tokens",
        "manifest": "speech, text or image",
        "embeddings": "embeddings",
    }


def test_download_takes_a_pipeline(project: Path) -> None:
    write_pipeline(project, "tones")
    assert call("download", "tones").stdout == "data/download/tones/utterances.parquet\n"
    assert call("download", "demo", "--dry-run").exit_code == 0
    assert "unknown pipeline or corpus 'emdob'\n  did you mean 'emodb'?" in call("download", "emdob").stderr


COMMANDS = {"extract": (), "train": ("--method", "none"), "finetune": ("--method", "lora-r8")}
STAGES = {"extract": extract, "train": train, "finetune": finetune}


def start(command: str, *words: str, **environment: str) -> Any:
    return CliRunner().invoke(app, [command, "--pipeline", "demo", *COMMANDS[command], *words], env=environment)


@pytest.mark.parametrize("command", COMMANDS)
def test_engine_comes_from_the_option_or_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    engines: list[Any] = []

    def run(*_: Any, engine: Any, **options: Any) -> Path:
        engines.append(engine)
        return Path.cwd()

    monkeypatch.setattr(STAGES[command], "run", run)
    assert start(command).exit_code == 0
    assert start(command, "--engine", "ray", "--workers", "3", "--gpus-per-worker", "0.5").exit_code == 0
    assert start(command, DAAMCTL_ENGINE="ray").exit_code == 0
    assert start(command, "--engine", "local", "--workers", "2", DAAMCTL_ENGINE="ray").exit_code == 0
    assert [type(engine) for engine in engines] == [LocalEngine, RayEngine, RayEngine, LocalEngine]
    assert [engine.workers for engine in engines] == [None, 3, None, 2]
    assert engines[1].gpus_per_worker == 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_engine_and_one_that_is_not_installed(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    result = start(command, "--engine", "rai")
    assert (result.exit_code, result.stderr) == (
        3,
        "UnknownNameError: unknown engine 'rai'\n  did you mean 'ray'? known: local, ray\n",
    )
    monkeypatch.setattr(engines_ray, "find_spec", lambda name: None)
    result = start(command, "--engine", "ray")
    assert (result.exit_code, result.stderr) == (
        3,
        "ConfigError: engine 'ray' is not installed\n  pip install 'daamctl[ray]'\n",
    )


def test_options_of_another_engine_are_refused(project: Path) -> None:
    result = start("extract", "--gpus-per-worker", "0.5")
    assert result.exit_code == 3
    assert "--gpus-per-worker is for clusters" in result.stderr


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the stage was asked to train."""
    names: list[str] = []

    def run(layout: Any, config: Any, *, method: str, **options: Any) -> Path:
        names.append(method)
        return Path.cwd() / method

    monkeypatch.setattr(train, "run", run)
    return names


@pytest.mark.parametrize(
    ("method", "decoder", "name"),
    [
        ("daam-v1", "mlp", "daam-v1-mlp"),
        ("daam-v1", "conv", "daam-v1"),
        ("daam-v1-mlp", "mlp", "daam-v1-mlp"),
        ("mha-published", "mlp", "mha-published-mlp"),
    ],
)
def test_decoder_makes_the_name(project: Path, trained: list[str], method: str, decoder: str, name: str) -> None:
    assert call("train", "demo", "-m", method, "--decoder", decoder).exit_code == 0
    assert trained == [name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-m", "weighted-sum", "--decoder", "mlp"],
            "MethodError: weighted-sum: no decoder 'mlp'; this method has only one decoder\n",
        ),
        (
            ["-m", "daam-v1", "--decoder", "lstm"],
            "MethodError: daam-v1: no decoder 'lstm'; available: conv, mlp\n",
        ),
        (
            ["-m", "daam-v1-mlp", "--decoder", "conv"],
            "MethodError: daam-v1: --decoder conv contradicts 'daam-v1-mlp', which sets mlp\n",
        ),
        (
            ["-m", "daam-v1", "--decoder", "conv", "--set", "method_settings.daam-v1.decoder=mlp"],
            "MethodError: daam-v1: --decoder conv contradicts method_settings, which sets mlp\n",
        ),
    ],
)
def test_decoder_that_cannot_be(project: Path, trained: list[str], words: list[str], message: str) -> None:
    result = call("train", "demo", *words)
    assert (result.exit_code, result.stderr) == (3, message)
    assert trained == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the stage was asked to do."""
    calls: list[dict[str, Any]] = []

    def run(layout: Any, config: Any, **options: Any) -> Path:
        calls.append({"device": config.finetune.device, "seeds": config.seeds_of("finetune"), **options})
        return Path.cwd() / options["method"]

    monkeypatch.setattr(finetune, "run", run)
    return calls


def test_options_reach_the_stage(project: Path, asked: list[dict[str, Any]]) -> None:
    words = ("--fold", "2", "--seed", "7", "--device", "cpu", "--seeds", "1,2", "--force", "--no-track")
    result = call("finetune", "-p", "demo", "-m", "lora-r8", *words)
    assert (result.exit_code, result.stdout) == (0, "lora-r8\n")
    assert asked == [
        {
            "device": "cpu", "seeds": (1, 2), "method": "lora-r8", "fold": 2, "seed": 7, "force": True, "track": False,
            "engine": ANY,
        }
    ]  # fmt: skip


def test_seeds_hold_where_fine_tuning_has_its_own(project: Path, asked: list[dict[str, Any]]) -> None:
    (project / "pipelines/mine.yaml").write_text("finetune: {seeds: [42]}\n")
    for words in ((), ("--seeds", "1,2"), ("--seeds", "1,2", "--set", "finetune.seeds=[7]")):
        call("finetune", "-p", "mine", "-m", "ia3", *words)
    assert [one["seeds"] for one in asked] == [(42,), (1, 2), (7,)]


def test_dry_run_shows_the_settings_only(project: Path, asked: list[dict[str, Any]]) -> None:
    result = call("finetune", "-p", "demo", "-m", "lora-r8", "--set", "finetune.lr=0.5", "--dry-run")
    assert "lr: 0.5" in result.stdout
    assert asked == []


def test_unknown_name_ends_in_a_suggestion(project: Path) -> None:
    result = call("finetune", "-p", "demo", "-m", "dora")
    assert result.exit_code == 3
    assert result.stderr.startswith("UnknownNameError: unknown fine-tuning method 'dora'\n  did you mean 'dora-r8'?")
    assert call("finetune", "-p", "demo", "-m", "ia3", "--fold", "two").exit_code == 2


def test_ls_shows_every_way_with_a_line(project: Path) -> None:
    result = call("ls", "finetunes")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in FINETUNES)
    assert "BitFit" in result.stdout
