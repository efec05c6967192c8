"""The command: exit codes, one message per expected failure, tracebacks for bugs, and options that become settings."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner

from daamctl import __version__
from daamctl.cli import app as main
from daamctl.cli.app import app
from daamctl.config import Config, load_config
from daamctl.data import stage_table
from daamctl.errors import ArtifactError
from daamctl.fit import tracking
from daamctl.stages import (
    download,
    evaluate,
    extract,
    finetune,
    inventory,
    pipeline,
    plan,
    report,
    track,
    train,
)
from daamctl.store.files import atomic_path, locked
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.recordings import write_pipeline

STAGES = {name: importlib.import_module(f"daamctl.stages.{name}") for name in stage_table.STAGES}
NEEDED = {"train": ["--method", "mha"], "finetune": ["--method", "lora-r8"], "reconstruct": ["--method", "daam"]}


@pytest.fixture(autouse=True)
def hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages do not run, so that nothing is loaded."""
    monkeypatch.setattr(inventory, "answers", lambda _: True)


def pipeline_with(stage: str) -> str:
    return "vqvae" if stage_table.STAGES[stage].task == "reconstruct" else "emodb"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


class Recorder:
    """Stands in for a stage and keeps the arguments it got."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.args, self.options = error, (), dict[str, Any]()

    def __call__(self, *args: Any, **options: Any) -> Path:
        self.args, self.options = args, options
        if self.error is not None:
            raise self.error
        return Path.cwd() / "data" / "made"


@pytest.mark.usefixtures("project")
def test_version_and_help() -> None:
    assert call("--version").output == f"{__version__}\n"
    result = call("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in (*STAGES, "run", "ls", "check", "doctor", "track", "ui"))
    assert call().exit_code == 2  # nothing asked for: help, as a usage error


def test_a_full_disk_takes_no_version() -> None:
    words = [sys.executable, "-m", "daamctl", "--version"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "ArtifactError: [Errno 28] No space left on device\n  free space, then run it again\n"
    assert (done.returncode, done.stderr) == (3, told)


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["train"],
        ["train", "--method"],
        ["train", "--method", "mha", "--fold", "two"],
        ["train", "--method", "mha", "--fold", "-1"],
        ["train", "--method", "mha", "--seed", "x"],
        ["train", "demo", "--method", "mha", "-m", "none"],
        ["ablate", "--layers", "9,x"],
        ["report", "--colour", "red"],
    ],
)
def test_usage_errors_exit_with_2(project: Path, words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert "Error" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["extract", "--pipeline", "dmeo"],
            "ConfigError: unknown pipeline 'dmeo'\n  did you mean 'demo'? (pipelines/<name>.yaml)\n",
        ),
        (
            ["train", "--pipeline", "demo", "--method", "daam-v3"],
            "UnknownNameError: unknown method 'daam-v3'\n  did you mean 'daam-v2'? similar: daam-v1, gqdaam\n",
        ),
        (
            ["extract", "--pipeline", "demo", "--set", "extract.poling=x", "--set", "train.lr=-1"],
            "ConfigError: pipeline 'demo' with the options given: extract.poling: unknown setting; "
            "did you mean 'pooling'?\n"
            "  train.lr: input should be greater than 0 (got -1)\n",
        ),
        (
            ["extract", "--set", "extract.pooling"],
            "ConfigError: --set takes section.key=value, got 'extract.pooling'\n",
        ),
        (
            ["extract", "--pipeline", "demo", "--encoder", "wavlm-large"],
            "ConfigError: --encoder cannot be combined with a pipeline: 'demo' already sets it\n"
            "  omit the pipeline, or write a new file in pipelines/ with the encoder you want\n",
        ),
        (
            ["evaluate", "--pipeline", "demo", "--corpus", "emodb"],
            "ConfigError: --corpus cannot be combined with a pipeline: 'demo' already sets it\n"
            "  omit the pipeline, or write a new file in pipelines/ with the corpus you want\n",
        ),
        (
            ["download", "--corpus", "conll", "--from", "my words.conll"],
            "ConfigError: 'conll' is also the name of a pipeline, of the corpus conll2003, and both would use "
            "data/download/conll\n  write a pipeline of another name, with download: {corpus: conll}: "
            "daamctl new NAME --from 'my words.conll'\n",
        ),
        (
            ["ls", "method"],
            "UnknownNameError: unknown category 'method'\n"
            "  did you mean 'methods'? known: blocks, corpora, encoders, finetunes, methods, metrics, pipelines\n",
        ),
    ],
)
def test_expected_failure_is_one_message_and_3(project: Path, words: list[str], message: str) -> None:
    result = call(*words)
    assert result.exit_code == 3
    assert result.stderr == message
    assert result.stdout == ""


def test_a_method_that_is_not_given_is_a_usage_error_with_those_of_the_pipeline(project: Path) -> None:
    result = call("train", "demo")
    assert result.exit_code == 2
    assert "methods of the pipeline: none-mlp," in " ".join(result.stderr.replace("│", " ").split())


def test_missing_artifact_names_the_command(project: Path) -> None:
    result = call("extract", "--pipeline", "demo")
    assert result.exit_code == 3
    assert result.stderr == (
        f"ArtifactError: no file {project}/data/segment/demo/clips.parquet\n  make it: daamctl segment demo\n"
    )


def test_outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    result = call("report")
    assert result.exit_code == 3
    assert result.stderr == "ConfigError: no params.yaml here or above; daamctl init DIR makes a project\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_file_system_that_refuses_is_an_expected_failure(project: Path, monkeypatch: Any, code: int) -> None:
    monkeypatch.setattr(report, "run", Recorder(OSError(code, os.strerror(code))))
    result = call("report", "--pipeline", "demo")
    assert result.exit_code == 3
    advice = "free space" if code == errno.ENOSPC else "fix permissions"
    assert result.stderr == f"ArtifactError: [Errno {code}] {os.strerror(code)}\n  {advice}, then run it again\n"


def test_full_disk_as_safetensors_words_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(report, "run", Recorder(error))
    assert call("report", "--pipeline", "demo").exit_code == 3


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_is_an_expected_failure(project: Path, monkeypatch: Any, error: Exception) -> None:
    monkeypatch.setattr(report, "run", Recorder(error))
    result = call("report", "--pipeline", "demo")
    assert result.exit_code == 3
    first, second = result.stderr.splitlines()
    assert first.startswith("MemoryError: there is not enough memory")
    assert "ulimit -v" in second


@pytest.mark.parametrize(
    ("path", "kind", "words", "message"),
    [
        ("data", "file", ["segment", "-p", "demo"], "Not a directory"),
        ("data", "file", ["download", "demo"], "a file is where a folder should be"),
        ("data/download/demo/utterances.parquet", "folder", ["segment", "-p", "demo"], "utterances.parquet"),
        ("data/segment", "file", ["extract", "-p", "demo"], "segment"),
        ("data/train/demo/none", "file", ["evaluate", "-p", "demo"], "none"),
        ("data/evaluate/demo/evaluation.json", "folder", ["report", "-p", "demo", "--no-track"], "evaluation.json"),
        ("data/check", "file", ["check", "--inventory", "-p", "demo"], "a file is where a folder should be"),
        ("pipelines/x.yaml", "folder", ["check", "-p", "x"], "is not a regular file"),
    ],
)
def test_a_file_in_place_of_a_folder_and_the_reverse(
    project: Path, path: str, kind: str, words: list[str], message: str
) -> None:
    target = project / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        target.write_text("x")
    else:
        target.mkdir()
    result = call(*words)
    assert result.exit_code == 3, result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "x" * 300],
        ["plan", "x" * 5000],
        ["extract", "--corpus", "x" * 300, "--encoder", "wavlm-micro"],
        ["extract", "--corpus", "demo", "--encoder", "x" * 5000],
        ["extract", "--corpus", "demo", "--encoder", f"{'x' * 90}/{'x' * 300}"],
        ["download", "manifest", "--from", "x" * 5000],
        ["compare", "x" * 300, "demo"],
        ["track", "-p", "x" * 300],
    ],
)
def test_names_that_are_too_long(project: Path, words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 3, result.exception
    assert result.stderr.count("\n") <= 2


def test_a_pipeline_that_is_not_utf8(project: Path) -> None:
    (project / "pipelines/demo.yaml").write_bytes("# Grün\nmethods: [none]\n".encode("latin-1"))
    for words in (["check"], ["plan", "demo"], ["run", "demo"]):
        result = call(*words)
        assert result.exit_code == 3
        assert "demo.yaml is not UTF-8: invalid start byte at byte 4\n" in result.stderr
    assert "demo  " in call("ls", "pipelines").stdout


def test_the_name_of_a_pipeline_that_is_not_utf8(project: Path) -> None:
    name = os.fsdecode(b"\xfcber")
    (project / f"pipelines/{name}.yaml").write_text("methods: [none]\n")
    result = call("run", name)
    assert result.exit_code == 3
    assert result.stderr == "ConfigError: the name of pipeline '\\udcfcber' cannot be printed\n  rename its file\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--seeds", "4294967296"], 3, "input should be less than or equal to 4294967295"),
        (["--seeds", "9" * 5000], 2, "must be whole numbers"),
        (["--set", "train.seeds=[-1]"], 3, "input should be greater than or equal to 0"),
        (["--set", f"train.seeds=[{'9' * 5000}]"], 3, "is not a YAML value"),
        (["--set", "train.seeds=2024-99-99"], 3, "is not a YAML value"),
        (["--set", "extract.seed=99999999999999999999"], 3, "input should be less than or equal to 4294967295"),
        (["--seeds", "1", "--fold", "9" * 5000], 2, "must be a number"),
    ],
)
def test_seeds_out_of_range(project: Path, words: list[str], code: int, message: str) -> None:
    result = call("train", "-p", "demo", "-m", "mha", *words)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("error", [KeyError("bug"), FileNotFoundError(errno.ENOENT, "bug")])
def test_bug_keeps_its_traceback(project: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(report, "run", Recorder(error))
    result = call("report", "--pipeline", "demo")
    assert result.exit_code == 1
    assert result.exception is error


def test_bug_shows_its_traceback_on_stderr(project: Path) -> None:
    script = (
        "from daamctl.stages import report\n"
        "def run(*_, **__): raise KeyError('bug')\n"
        "report.run = run\n"
        "from daamctl.cli.app import main; main()"
    )
    words = [sys.executable, "-c", script, "report", "--pipeline", "demo"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=project)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.endswith("KeyError: 'bug'\n")


def test_what_an_encoding_lacks_is_printed_as_its_code(tmp_path: Path) -> None:
    rows = "item,label,prediction\n" + "".join(f"{item},x,x\n" for item in range(20))
    (tmp_path / "b.csv").write_text(rows + "20,x,x\n")
    (tmp_path / "c.csv").write_text(rows + "20,x,\u6012\u2212\n", encoding="utf-8")
    (tmp_path / "d.csv").write_text(rows + "20,x,y\n")
    words = [sys.executable, "-m", "daamctl", "judge", "b.csv", "c.csv", "d.csv"]
    given = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path, env=given, encoding="cp1252"
    )
    assert done.returncode == 0
    assert "(\\u6012-)" in done.stdout
    assert "-4.8" in done.stdout  # cp1252 lacks the minus sign, too


def test_expected_failure_shows_no_traceback_in_a_real_process(project: Path) -> None:
    words = [sys.executable, "-m", "daamctl", "extract", "--set", "x"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=project)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "ConfigError: --set takes section.key=value, got 'x'\n"


@pytest.mark.parametrize("stage", list(STAGES))
def test_every_stage_gets_layout_and_settings_and_prints_its_path(project: Path, monkeypatch: Any, stage: str) -> None:
    recorder = Recorder()
    monkeypatch.setattr(STAGES[stage], "run", recorder)
    monkeypatch.setattr("daamctl.cli.show.show_results", lambda *_, **__: None)
    name = pipeline_with(stage)
    result = call(stage, "--pipeline", name, *NEEDED.get(stage, []), "--set", "train.epochs=2")
    assert result.exit_code == 0, result.output
    assert result.stdout == "data/made\n"
    layout, config = recorder.args
    assert layout.pipeline == layout.run_name == name
    assert layout.root == project.resolve()
    assert config == load_config(project, name, {"train.epochs": 2})


@pytest.mark.parametrize("stage", [name for name, spec in stage_table.STAGES.items() if spec.task is not None])
@pytest.mark.usefixtures("project")
def test_a_stage_of_another_task_is_refused(monkeypatch: Any, stage: str) -> None:
    monkeypatch.setattr(STAGES[stage], "run", Recorder(AssertionError("ran")))
    other = {"emodb": "vqvae", "vqvae": "emodb"}[pipeline_with(stage)]
    result = call(stage, "-p", other, *NEEDED.get(stage, []))
    assert result.exit_code == 3
    assert f"so it has no stage '{stage}'\n  its stages: download, " in result.stderr


@pytest.mark.parametrize("stage", list(STAGES))
def test_dry_run_prints_the_resolved_settings_and_runs_nothing(project: Path, monkeypatch: Any, stage: str) -> None:
    recorder = Recorder(AssertionError("ran"))
    monkeypatch.setattr(STAGES[stage], "run", recorder)
    result = call(stage, "-p", "iemocap", *NEEDED.get(stage, []), "--set", "train.seeds=[3]", "--dry-run")
    assert result.exit_code == 0
    assert recorder.args == ()
    assert Config.model_validate(yaml.safe_load(result.stdout)) == load_config(project, "iemocap", {"train.seeds": [3]})


@pytest.mark.parametrize(
    ("words", "settings", "options"),
    [
        (["extract", "--device", "cpu", "--precision", "float32"], {"extract.device": "cpu"}, {"force": False}),
        (["extract", "--revision", "abc", "--force"], {"extract.revision": "abc"}, {"force": True}),
        (["segment", "--tail", "drop", "--write-audio"], {"segment.tail": "drop", "segment.write_audio": True}, {}),
        (["train", "-m", "none", "--fold", "2"], {}, {"method": "none", "fold": 2, "seed": None}),
        (["train", "-m", "none", "--seed", "7", "--no-track"], {}, {"fold": None, "seed": 7, "track": False}),
        (["train", "-m", "none", "--force"], {}, {"force": True, "track": True}),
        (["train", "-m", "none", "--device", "cpu"], {"train.device": "cpu", "extract.device": "auto"}, {}),
        (["ablate", "--layers", "9", "--layers", "2,3"], {"ablate.layers": ((9,), (2, 3))}, {"track": True}),
        (["ablate", "-m", "mean"], {"ablate.method": "mean"}, {"force": False}),
        (["download", "--from", "some/dir"], {}, {"source": Path("some/dir"), "force": False}),
        (["segment", "--set", "segment.tail=pad", "--tail", "drop"], {"segment.tail": "pad"}, {}),
    ],
)
def test_options_become_settings(
    project: Path, monkeypatch: Any, words: list[str], settings: Any, options: Any
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(STAGES[words[0]], "run", recorder)
    result = call(*words, "--pipeline", "demo")
    assert result.exit_code == 0, result.output
    config = recorder.args[1]
    for key, value in settings.items():
        section, name = key.split(".")
        assert getattr(getattr(config, section), name) == value, key
    assert {key: recorder.options[key] for key in options} == options


def test_ad_hoc_run_names_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(extract, "run", recorder)
    assert call("extract", "--corpus", "emodb", "--encoder", "microsoft/wavlm-base").exit_code == 0
    layout, config = recorder.args
    assert layout.run_name == "emodb-wavlm-base"
    assert config.extract.encoder == "microsoft/wavlm-base"
    monkeypatch.setattr(download, "run", recorder)
    assert call("download", "emodb").exit_code == 0
    assert recorder.args[0].table_name == "emodb"


BEFORE_TRAINING = ("download", "segment", "extract")
RECIPE_COMMANDS = {
    **{name: STAGES[name] for name in stage_table.stages_of_task("classify") if name not in BEFORE_TRAINING},
    "finetune": finetune,
    "plan": plan,
    "run": pipeline,
}


@pytest.mark.parametrize("words", [["--recipe", "published"], ["--set", "train.recipe=published"]])
@pytest.mark.parametrize("name", list(RECIPE_COMMANDS))
def test_another_recipe_gets_folders_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    recorder = Recorder(ArtifactError("enough"))  # the plan would be printed
    monkeypatch.setattr(RECIPE_COMMANDS[name], "run", recorder)
    needed = {"finetune": ["--method", "lora-r4"], **NEEDED}.get(name, [])
    call(name, *(["emodb"] if name in ("plan", "run") else ["-p", "emodb"]), *needed, *words)
    layout, config = recorder.args
    assert layout.run_name == "emodb-published-recipe"
    assert layout.embeddings == project / "data/extract/emodb"
    assert config == load_config(project, "emodb", {"train.recipe": "published"})
    assert layout.command("evaluate") == "daamctl evaluate emodb --set train.recipe=published"


@pytest.mark.parametrize(
    ("name", "recipe", "run"),
    [
        ("emodb", "searched", "emodb"),
        ("emodb-as-published", "published", "emodb-as-published"),
        ("emodb-as-published", "searched", "emodb-as-published-searched-recipe"),
    ],
)
def test_recipe_of_the_pipeline_itself_changes_no_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, recipe: str, run: str
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(evaluate, "run", recorder)
    monkeypatch.setattr("daamctl.cli.show.show_results", lambda *_, **__: None)
    assert call("evaluate", "-p", name, "--recipe", recipe).exit_code == 0
    assert recorder.args[0].run_name == run


@pytest.mark.usefixtures("project")
def test_unknown_recipe_is_one_clear_error() -> None:
    result = call("train", "-p", "demo", "-m", "none", "--recipe", "publishd")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "ConfigError: pipeline 'demo' with the options given: train.recipe: input should be 'searched' or 'published' "
        "(got 'publishd')\n"
    )


def test_run_calls_the_whole_pipeline(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(pipeline, "run", recorder)
    monkeypatch.setattr("daamctl.cli.run.show_results", lambda *_, **__: None)
    assert call("run", "demo", "--device", "cpu", "--no-track", "--from", "x").exit_code == 0
    layout, config = recorder.args
    assert layout.pipeline == "demo"
    assert (config.extract.device, config.train.device) == ("cpu", "cpu")
    assert recorder.options == {"source": Path("x"), "track": False}


@pytest.mark.parametrize(("pipeline_name", "last"), [("demo", "report"), ("demo-vqvae", "score")])
def test_whole_pipeline_runs_every_stage_in_order(
    project: Path, monkeypatch: pytest.MonkeyPatch, pipeline_name: str, last: str
) -> None:
    called: list[str] = []
    for name, module in STAGES.items():

        def stage(*_: Any, name: str = name, **options: Any) -> Path:
            called.append(" ".join([name, *([options["method"]] if "method" in options else [])]))
            return Path.cwd() / name

        monkeypatch.setattr(module, "run", stage)
    monkeypatch.setattr("daamctl.cli.run.show_results", lambda *_, **__: None)
    result = call("run", pipeline_name)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{last}\n"
    config, expected = load_config(project, pipeline_name), []
    for name, spec in stage_table.stages_of_task(config.task).items():
        expected += [name] if spec.for_each is None else [f"{name} {entry}" for entry in getattr(config, spec.for_each)]
    assert called == expected


def test_check_reports_every_error_of_every_pipeline(project: Path) -> None:
    (project / "pipelines/bad.yaml").write_text("extract: {pooling: x}\nsegmnt: {}\n")
    (project / "pipelines/worse.yaml").write_text(
        "download: {corpus: emdb}\nextract: {encoder: wavlm-larg}\nmethods: [daam-v1, daam-v9, daam-v1]\n"
        "method_settings: {mah: {}}\nablate: {rank_by: daam}\n"
    )
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("  - demo\n", "  - deemo\n"))
    result = call("check")
    assert result.exit_code == 3
    lines = result.stderr.splitlines()
    expected = [
        "params.yaml: pipelines: unknown name 'deemo'; did you mean 'demo'?",
        "pipeline 'bad': extract.pooling: input should be 'valid-frames', 'all-frames', 'last-token' or 'first-token' "
        "(got 'x')",
        "segmnt: unknown setting; did you mean 'segment'?",
        "pipeline 'worse': download.corpus: unknown name 'emdb'; did you mean 'emodb'?",
        "pipeline 'worse': extract.encoder: unknown encoder 'wavlm-larg'",
        "pipeline 'worse': methods: unknown name 'daam-v9'; did you mean 'daam-v",
        "pipeline 'worse': method_settings: unknown name 'mah'; did you mean 'mha'?",
        "pipeline 'worse': ablate.rank_by: unknown name 'daam'; ",
        "pipeline 'worse': methods: a method is listed twice in ['daam-v1', 'daam-v9', 'daam-v1']",
    ]
    for text in expected:
        assert any(text in line for line in lines), text
    assert sum(line.startswith("ConfigError: ") for line in lines) == 1


def test_seeds_of_the_command_line_replace_those_of_the_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(evaluate, "run", recorder)
    monkeypatch.setattr("daamctl.cli.show.show_results", lambda *_, **__: None)
    assert call("evaluate", "--pipeline", "demo", "--seeds", "1, 2,3").exit_code == 0
    assert recorder.args[1].train.seeds == (1, 2, 3)
    result = call("evaluate", "--pipeline", "demo", "--seeds", "1;2")
    assert result.exit_code == 2
    assert "must be whole numbers separated by commas" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods: []", "methods: at least one method is needed"),
        ("download: {classes: [a, a]}", "download.classes: at least two different classes are needed, got ['a', 'a']"),
    ],
)
def test_check_finds_contradictions(project: Path, text: str, message: str) -> None:
    (project / "pipelines/mine.yaml").write_text(text)
    result = call("check", "--pipeline", "mine")
    assert result.exit_code == 3
    assert result.stderr == f"ConfigError: pipeline 'mine': {message}\n"


@pytest.mark.parametrize(
    "text",
    [
        "method_settings: {daam-v1: {nun_heads: 4}}",
        "extract: {weights: random, encoder: someone/something}",
        "extract: {pooling: all-frames}\nsegment: {tail: merge}",
    ],
)
def test_check_finds_what_would_fail_hours_later(project: Path, text: str) -> None:
    (project / "pipelines/mine.yaml").write_text(text)
    assert call("check", "--pipeline", "mine").exit_code == 3


def test_check_of_one_pipeline(project: Path) -> None:
    (project / "pipelines/bad.yaml").write_text("train: {lr: x}")
    assert call("check", "--pipeline", "demo").stdout == "1 pipeline(s) valid: demo\n"
    result = call("check", "--pipeline", "emod")
    assert result.exit_code == 3
    assert result.stderr.startswith("ConfigError: unknown pipeline 'emod'\n  did you mean 'emodb'? similar: demo")


def test_check_writes_what_each_stage_reads(project: Path) -> None:
    result = call("check", "--pipeline", "demo", "--inventory")
    assert result.exit_code == 0
    folder = project / "data/check/demo"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 8 + len(load_config(project, "demo").trained)

    def changed(text: str) -> set[str]:
        (project / "pipelines/demo.yaml").write_text(text)
        assert call("check", "--pipeline", "demo", "--inventory").exit_code == 0
        return {name for name, content in before.items() if (folder / name).read_bytes() != content}

    demo = (project / "pipelines/demo.yaml").read_text()
    assert changed(demo + "# a comment\n") == set()
    assert changed(demo.replace("{audit_clips: 20}", "{audit_clips: 20, dpi: 99}")) == {"importance.json"}
    assert changed(demo + "report: {title: x}\n") == {"report.json"}
    assert changed(demo + "method_settings: {daam-v1-mlp: {num_heads: 4}}\n") == {"train-daam-v1-mlp.json"}
    assert changed(demo + "segment: {tail: drop}\n") == {"segment.json"}
    assert changed(demo.replace("{encoder: wavlm-demo}", "{encoder: wavlm-demo, device: cpu}")) == set()
    assert changed(demo.replace("{encoder: wavlm-demo}", "{encoder: wavlm-demo, seed: 1}")) == {"extract.json"}
    with_train = changed(demo + "train: {grad_clip_norm: 3.0}\n")
    listed = {f"train-{name}.json" for name in load_config(project, "demo").methods}
    assert with_train == listed | {"ablate.json"}


def test_ablation_is_made_again_when_the_unit_changes(project: Path) -> None:
    path = project / "data/check/demo/ablate.json"
    assert call("check", "--pipeline", "demo", "--inventory").exit_code == 0
    before = path.read_bytes()
    demo = project / "pipelines/demo.yaml"
    demo.write_text(demo.read_text().replace("evaluate: {", "evaluate: {unit: clip, "))
    assert call("check", "--pipeline", "demo", "--inventory").exit_code == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize("what", ["pipelines", "corpora", "encoders", "methods", "metrics"])
def test_ls_shows_every_name_with_its_line(project: Path, monkeypatch: Any, what: str) -> None:
    from daamctl.stages.ls import entries

    monkeypatch.setenv("COLUMNS", "200")
    result = call("ls", what)
    assert result.exit_code == 0
    assert len(entries(what)) >= 3
    for name, text in entries(what):
        line = next(line for line in result.stdout.splitlines() if line.startswith(name + " "))
        assert text[:60] in line
    assert what in call("ls").stdout


def test_ls_works_outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    result = call("ls")
    assert result.exit_code == 0
    assert "daam-v1" in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "pipelines (of a new project: daamctl init DIR)"
    assert any(line.startswith("emodb-as-published ") for line in lines)


def test_doctor_works_outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    result = call("doctor")
    assert result.exit_code == 0, result.output
    found = dict(line.rstrip().split(maxsplit=1) for line in result.stdout.splitlines())
    assert found["project"] == "none here; daamctl init DIR makes one"
    assert found["tracking"] == "mlflow.db in the project"
    assert not list(tmp_path.iterdir())


def test_track_passes_the_pipeline(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(track, "run", recorder)
    assert call("track", "-p", "demo").exit_code == 0
    assert recorder.args == (project.resolve(), "demo")


def test_doctor_runs_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = call("doctor")
    assert result.exit_code == 0, result.output
    for word in ("project", "cpu", "auto means", "versions", "disk", "decoders", "hub", "tracking", "corpus iemocap"):
        assert any(line.startswith(word) for line in result.stdout.splitlines()), word
    assert "does not exist yet" in result.stdout


def test_ui_without_runs_and_with_a_server(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("ui")
    assert result.exit_code == 3
    assert result.stderr == (
        f"ArtifactError: MLflow at sqlite:///{project}/mlflow.db has no runs of this project\n"
        "  run a pipeline (daamctl run demo), or send finished runs: daamctl track\n"
    )
    started: list[list[str]] = []
    killed: list[tuple[int, int]] = []

    class Server:
        pid = 123

        def __init__(self, words: list[str], *, start_new_session: bool) -> None:
            started.append(words)

        def poll(self) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setattr(os, "killpg", lambda *args: killed.append(args))
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "")  # so that what is set is taken back
    monkeypatch.delenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION")
    monkeypatch.setattr(tracking, "run_links", lambda _, address: {"demo": f"{address}/#/experiments/1/runs"})
    monkeypatch.setattr(track, "unsent", lambda _: "2 of 9 finished folds are not in MLflow")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        result = call("ui", "--port", str(port))
    told = f"ConfigError: cannot listen on 127.0.0.1:{port}: it is in use\n  choose another --port or --host\n"
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", told)
    result = call("ui", "--port", "5001")
    assert result.exit_code == 0
    assert result.stderr.endswith("\nstopped\n")
    assert killed == [(123, signal.SIGKILL)]
    assert result.stderr.startswith("2 of 9 finished folds are not in MLflow\n")
    assert result.stdout == (
        "demo  http://127.0.0.1:5001/#/experiments/1/runs\nThe links work once the server runs; stop it with Ctrl+C.\n"
    )
    words = ["-m", "mlflow", "ui", "--backend-store-uri", f"sqlite:///{project}/mlflow.db"]
    assert started[0][1:] == [*words, "--host", "127.0.0.1", "--port", "5001", "--workers", "1"]
    assert os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"  # its processes outlive the server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:1")
    assert call("ui").stdout == "demo  http://host:1/#/experiments/1/runs\n"
    assert len(started) == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(Server, "poll", lambda _: 0)
    result = call("ui", "--port", "5001")
    assert result.exit_code == 3
    assert "the server of MLflow has ended by itself, with exit code 0\n  its messages above say why" in result.stderr


def test_errors_of_an_artifact_carry_their_fix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "run", Recorder(ArtifactError("gone", fix="make it: daamctl x")))
    assert call("report").stderr == "ArtifactError: gone\n  make it: daamctl x\n"


def test_download_wants_a_corpus_or_a_pipeline(project: Path) -> None:
    result = call("download")
    assert result.exit_code == 2
    assert "give a pipeline or a corpus" in result.stderr


def test_check_shows_wrong_types_and_unknown_names_together(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("methods: [none, daam-v9]\ntrain: {seeds: [], lr: x}\n")
    result = call("check", "--pipeline", "mine")
    assert result.exit_code == 3
    for text in ("unknown name 'daam-v9'", "seeds must be one or more different integers", "train.lr: "):
        assert text in result.stderr


def test_interruption_says_how_to_go_on(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from daamctl.stages import evaluate

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "run", interrupt)
    result = call("evaluate", "--pipeline", "demo")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; what is finished is kept; run the same command again to resume\n"


def test_an_interrupted_force_promises_no_resume(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run", interrupt)
    result = call("train", "-p", "demo", "-m", "mha", "--force")
    assert result.exit_code == 130
    how = "without --force to resume; with --force it starts over"
    kept = "finished folds and saved steps are kept"
    assert result.stderr == f"interrupted; {kept}; run the same command again {how}\n"


def test_interruption_of_what_is_written_at_the_end_promises_nothing(project: Path, monkeypatch: Any) -> None:
    from daamctl.cli.app import NOTHING_KEPT, app
    from daamctl.stages import judge, serve

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judge, "run", interrupt)
    monkeypatch.setattr(serve, "run", interrupt)
    monkeypatch.setattr("daamctl.models.folder.record_file", Path)
    for words in (["judge", "a.csv", "b.csv"], ["serve", "model"]):
        result = call(*words)
        assert result.exit_code == 130
        assert result.stderr == "interrupted; nothing is kept; the same command starts from the beginning\n"
    assert set(NOTHING_KEPT) <= {command.name for command in app.registered_commands}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_every_signal_clears_files_and_locks(project: Path, monkeypatch: Any, number: int, code: int) -> None:
    def write_and_stop(*_: Any, **__: Any) -> None:
        with locked(project / "lock", what="x"), atomic_path(project / "data/half.txt") as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), number)
            time.sleep(60)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one started by nohup this one
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(train, "run", write_and_stop)
    result = call("train", "-p", "demo", "-m", "mha")
    assert result.exit_code == code
    kept = "finished folds and saved steps are kept"
    assert result.stderr == f"interrupted; {kept}; run the same command again to resume\n"
    assert list((project / "data").iterdir()) == []
    with FileLock(project / "lock", timeout=0):
        pass
    assert {one: signal.getsignal(one) for one in before} == before


STUCK = """
import sys, time
from daamctl.stages import init
def run(folder):
    print("ready", flush=True)
    {body}
init.run = run
from daamctl.cli.app import main
sys.argv = ["daamctl", "init", "x"]
main()
"""
AGAIN = "interrupted; what is finished is kept; run the same command again to resume\n"


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(300)",
        "__import__('slow')",  # which turns it into another error, as libraries do
        "__import__('threading').Thread(target=time.sleep, args=[300]).start(); time.sleep(300)",
        "__import__('swallow').it()",
        "__import__('swallow').it(once=True)",
    ],
)
def test_ctrl_c_ends_what_does_not_let_go(tmp_path: Path, body: str) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\ntry: time.sleep(300)\nexcept BaseException as error: raise ImportError('broken') from error\n"
    )
    (tmp_path / "swallow.py").write_text(
        "import time\ndef it(once=False):\n    while True:\n        try: time.sleep(300)\n"
        "        except KeyboardInterrupt:\n            if once: raise ValueError('wrapped')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path)])}
    process = subprocess.Popen([sys.executable, "-c", STUCK.format(body=body)], cwd=tmp_path, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, AGAIN)


@pytest.mark.parametrize(("command", "number"), [("train", signal.SIGTERM), ("serve", signal.SIGINT)])
def test_sigterm_ends_what_does_not_let_go_but_no_server(monkeypatch: Any, command: str, number: int) -> None:
    def end(by: int) -> None:
        raise SystemExit(by)

    monkeypatch.setattr(main, "_end_now", end)
    monkeypatch.setattr(main, "ANSWER_S", dict.fromkeys(main.ANSWER_S, 0.0))
    monkeypatch.setattr(main._Group, "running", SimpleNamespace(info_name=command))
    signals, wakeup = os.pipe()
    os.write(wakeup, bytes([signal.SIGCHLD, signal.SIGTERM, signal.SIGINT]))
    with pytest.raises(SystemExit) as ended:
        main._watch(signals)
    assert ended.value.code == number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "tiny", "--no-track"], "download"),
        (["run", "tiny", "--no-track"], "extract"),
        (["run", "tiny", "--no-track"], "] train "),
        (["train", "tiny", "-m", "daam-v1-mlp", "--no-track", "--workers", "2"], "2 worker processes"),
        (["repro", "extract@tiny"], "Running stage 'extract"),
    ],
)
def test_ctrl_c_in_a_terminal_ends_every_process(project: Path, words: list[str], line: str) -> None:
    """A terminal sends the signal to all processes of the command."""
    write_pipeline(project, train="search: none, refit: false")
    before = {path for path in project.rglob(".*-????????*") if "dvc" not in path.parts}
    module = ["-m", "daamctl"]
    if words[0] == "train":
        for stage in ("download", "segment", "extract"):
            subprocess.run([sys.executable, *module, stage, "tiny"], check=True, capture_output=True, cwd=project)
    if words[0] == "repro":
        text = (project / "params.yaml").read_text()
        (project / "params.yaml").write_text(text.replace("  - demo\n", "  - tiny\n  - demo\n", 1))
        shutil.copyfile(REPOSITORY / "dvc.yaml", project / "dvc.yaml")
        for command in (["daamctl", "check", "--write"], ["dvc", "init", "--no-scm", "-q"]):
            subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, cwd=project)
        module = ["-m", "dvc"]
    else:
        words = [*words, "--set", "train.epochs=100000", "--set", "train.device=cpu"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, *module, *words], cwd=project, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    said = ""
    try:
        assert process.stdout is not None
        while line not in said:
            said += (read := process.stdout.readline())
            assert read, said
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    said += rest
    assert process.returncode == (130 if module[1] == "daamctl" else 255), said
    assert "run the same command again to resume" in said
    assert "Traceback" not in said
    assert {path for path in project.rglob(".*-????????*") if "dvc" not in path.parts} == before


def test_a_signal_that_is_ignored_stays_ignored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup."""

    def hang_up(*_: Any, **__: Any) -> Path:
        os.kill(os.getpid(), signal.SIGHUP)
        return project / "made"

    monkeypatch.setattr(evaluate, "run", hang_up)
    monkeypatch.setattr("daamctl.cli.show.show_results", lambda *_, **__: None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert call("evaluate", "--pipeline", "demo").exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "words",
    [
        ("compare", "demo-vqvae", "demo"),
        ("truncate", "demo-vqvae"),
        ("export", "demo-vqvae/daam", "--out", "x"),
        ("preflight", "-p", "demo-vqvae"),
    ],
)
def test_commands_for_methods_refuse_a_pipeline_that_reconstructs(words: tuple[str, ...]) -> None:
    result = call(*words)
    assert result.exit_code == 3
    assert result.stderr == (
        "ConfigError: demo-vqvae reconstructs images, so it has no methods and folds\n  its blocks are compared "
        "by: daamctl show demo-vqvae\n"
    )


def test_streams_that_are_closed_lead_nowhere(project: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m daamctl check demo <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=project).returncode == 0
    assert subprocess.run(["sh", "-c", command.replace("demo", "nosuch")], cwd=project).returncode == 3
