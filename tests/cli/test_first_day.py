"""What a new user meets first: one grammar for pipelines, and names and places that are checked before any work."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from typer.main import get_command
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.errors import suggest
from tests.fixtures.recordings import write_pipeline

HEAVY = ("torch", "transformers", "mlflow", "sklearn")


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def commands_of_pipelines() -> list[str]:
    """Commands with an option `-p`; the first argument of `explain` is a setting."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = [name for name, command in commands.items() if any("-p" in option.opts for option in command.params)]
    return [name for name in found if name != "explain"]


def required(name: str) -> list[str]:
    """Options without which a command does not start."""
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    words = {"--method": "nine", "--out": "x"}
    return [word for option in command.params if option.required for word in (option.opts[0], words[option.opts[0]])]


def test_every_command_of_pipelines_is_known() -> None:
    """A command whose function takes a pipeline or a run has the option, so that the next test covers it."""
    found = set(commands_of_pipelines())
    for group in app.registered_commands:
        assert group.callback is not None
        taken = {"pipeline", "run"} & set(inspect.signature(group.callback).parameters)
        name = group.name or group.callback.__name__
        assert (name in found) == bool(taken), name
    assert {"train", "run", "plan", "check", "track", "doctor", "truncate", "export", "download"} <= found


@pytest.mark.parametrize("name", commands_of_pipelines())
def test_the_pipeline_is_the_first_argument_or_an_option(project: Path, name: str) -> None:
    more = required(name)
    unknown = [call(name, *words, *more) for words in (["dmeo"], ["-p", "dmeo"], ["dmeo", "-p", "dmeo"])]
    for result in unknown:
        assert result.exit_code == 3, result.output
        assert "'dmeo'" in result.stderr
    assert len({result.stderr for result in unknown[1:]}) == 1
    differs = call(name, "demo", "-p", "emodb", *more)
    assert differs.exit_code == 3
    assert all(text in differs.stderr for text in ("demo", "--pipeline", "emodb"))


@pytest.mark.usefixtures("project")
def test_a_command_that_needs_a_pipeline_says_so() -> None:
    for name in ("run", "plan", "truncate"):
        result = call(name)
        assert result.exit_code == 2
        assert "give it as the first argument, or with -p" in " ".join(result.stderr.split())


def test_a_message_proposes_three_names() -> None:
    known = [f"method-{number:02d}" for number in range(40)]
    assert suggest("metod-07", known) == "did you mean 'method-07'? similar: method-37, method-30"
    assert suggest("x", known).endswith("method-07 and 32 more")
    assert suggest("method-1", known[:2]) == "did you mean 'method-01'? known: method-00, method-01"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "demo", "-m", "daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["finetune", "demo", "-m", "lora-r9"], "unknown fine-tuning method 'lora-r9'\n  did you mean 'lora-r8'?"),
        (["reconstruct", "demo-vqvae", "-m", "damm"], "unknown block 'damm'\n  did you mean 'daam'?"),
        (["ablate", "demo", "-m", "daam-v9"], "ablate.method: unknown name 'daam-v9'; did you mean 'daam-v2'?"),
        (["ablate", "demo", "--set", "ablate.rank_by=mah"], "ablate.rank_by: unknown name 'mah'; did you mean 'mha'?"),
        (["evaluate", "demo", "--set", "evaluate.reference=meen"], "evaluate.reference: unknown name 'meen'; known:"),
        (["evaluate", "demo", "--set", "train.epoch=3"], "train.epoch: unknown setting; did you mean 'epochs'?"),
        (["report", "demo", "--set", "report.published=T2-x"], "report.published: unknown published table 'T2-x'"),
        (["extract", "demo", "--set", "extract.encoder=wavlm-lrage"], "'wavlm-lrage'\n  did you mean 'wavlm-large'?"),
        (["extract", "demo-text", "--set", "extract.encoder=lama-micro"], "did you mean 'llama-micro'?"),
        (["extract", "digits", "--set", "extract.encoder=biet-micro"], "did you mean 'beit-micro'?"),
        (["run", "demo", "--set", "extract.encoder=../x/whisper"], "extract.encoder: no folder ../x/whisper\n"),
        (["run", "demo", "--set", "extract.encoder=a/b/whisper"], "extract.encoder: no folder a/b/whisper\n"),
        (["extract", "--corpus", "demmo", "--encoder", "wavlm-demo"], "download.corpus: unknown name 'demmo'; did"),
        (["extract", "demo", "--engine", "lokal"], "unknown engine 'lokal'\n  did you mean 'local'?"),
        (["truncate", "demo/daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["export", "dmeo/daam-v1", "--out", "x"], "unknown pipeline or run 'dmeo'\n  did you mean 'demo'?"),
        (["compare", "demo/mean", "dmeo"], "unknown pipeline or run 'dmeo'\n  did you mean 'demo'?"),
        (["doctor", "-m", "daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["mlm", "--encoder", "../x/bert"], "no folder ../x/bert\n"),
        (["run", "far"], "encoder 'microsoft/wavlm-large' is not in the local cache"),
    ],
)
def test_a_name_is_refused_before_any_work(
    project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    (project / "pipelines/far.yaml").write_text("download: {corpus: demo}\nextract: {encoder: wavlm-large}\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(project / "hub"))
    result = call(*words)
    assert result.exit_code == 3, result.output
    assert message in result.stderr
    assert not (project / "data/download").exists()


def test_names_are_refused_without_torch(project: Path) -> None:
    """In processes of their own, since this one has imported it; several commands in each, to be quick."""
    (project / "pipelines/far.yaml").write_text("download: {corpus: demo}\nextract: {encoder: some/encoder}\n")
    lines = ["run far", "train demo -m daam-v9", "extract demo --set extract.encoder=wavlm-lrage", "doctor -m x",
             "finetune demo -m x", "truncate demo/x", "export demo/x --out y", "compare demo/x emodb", "check dmeo",
             "extract demo --engine x", "evaluate demo --set train.epoch=3", "mlm --encoder ./x"]  # fmt: skip
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        f"for line in {lines!r}:\n"
        "    try: app(line.split())\n"
        "    except SystemExit as end: assert end.code == 3, line\n"
        f"    assert not [n for n in {HEAVY!r} if n in sys.modules], line\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=project)
    assert done.returncode == 0, done.stderr


def test_a_source_that_does_not_exist_fails_check_and_run(project: Path) -> None:
    write_pipeline(project, "tones")
    assert call("check", "tones").exit_code == 0
    (project / "tones/tones.csv").unlink()
    for words in (["check", "tones"], ["run", "tones"]):
        result = call(*words)
        assert result.exit_code == 3
        assert f"{project}/tones/tones.csv" in result.stderr
    assert call("check", "tones", "--write").exit_code == 0  # dvc repro leaves it out and goes on


def test_without_the_hub_only_the_cache_is_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would try to reach the hub for a minute."""
    from daamctl.encoders.encoder_size import use_cache_without_hub

    def head(*_: object, **__: object) -> None:
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    use_cache_without_hub()
    from huggingface_hub.constants import is_offline_mode

    assert is_offline_mode()


def test_download_takes_a_pipeline(project: Path) -> None:
    write_pipeline(project, "tones")
    assert call("download", "tones").stdout == "data/download/tones/utterances.parquet\n"
    assert call("download", "demo", "--dry-run").exit_code == 0
    assert "unknown name 'emdob'; did you mean 'emodb'?" in call("download", "emdob").stderr
