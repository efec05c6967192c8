"""What commands share: how they take a pipeline, names that are refused before any work, and `--if-possible`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.skipped import Obstacle, folder_of, leave_out
from daamctl.cli.app import app
from daamctl.cli.options import OPTIONS, Run, UsedBy, taken
from daamctl.config import explain, load_config
from daamctl.data.stage_table import stages_of_task
from daamctl.stages import inventory

NAMES = {"train": "none", "finetune": "lora-r4"}
HEAVY = ("torch", "transformers", "mlflow", "sklearn")
REASON = "corpus 'iemocap' is not on this machine"


def terms_of(stage: str) -> list[str]:
    return [stage, "--pipeline", "iemocap", *(["--method", NAMES[stage]] if stage in NAMES else [])]


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def left_out(project: Path) -> Layout:
    """A project whose inventory forbids `iemocap`."""
    path = project / "data/check/iemocap/machine.json"
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


def test_a_stage_that_needs_no_encoder_goes_on_without_it(project: Path) -> None:
    assert call("download", "digits").exit_code == 0
    path = project / "pipelines/digits.yaml"
    path.write_text(path.read_text().replace("beit-micro", "/nowhere/enc"))
    inventory.run(project, ["digits"])
    for stage, said in (
        ("download", "cannot run here, earlier results are kept: no folder /nowhere/enc\n"),
        ("segment", "data/segment/digits/clips.parquet\n"),
        ("extract", "skipped: no folder /nowhere/enc\n"),
    ):
        result = call(stage, "digits", "--if-possible")
        assert (result.exit_code, result.stdout.removeprefix(f"digits {stage}: ")) == (0, said)
    assert call("segment", "digits").exit_code == 3


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
    assert command == ["extract", "demo", "--set", "download.source=my data"]
    layout, _ = Run("train", "demo", sets=["extract.layer_00=true"], seeds=[1, 2], device="cpu").settings()
    assert shlex.split(layout.command("train"))[3:] == [
        "--set", "train.seeds=[1,2]", "--set", "train.device=cpu", "--set", "extract.layer_00=true",
    ]  # fmt: skip
    assert Run("train", corpus="demo", encoder="wavlm-micro").settings()[0].overrides == ()


def completions(name: str, option: str, word: str) -> list[str]:
    command = COMMANDS[name]
    context = command.make_context(name, [], resilient_parsing=True)
    (found,) = (one for one in command.params if one.name == option)
    return [item.value for item in found.shell_complete(context, word)]


@pytest.mark.usefixtures("project")
def test_completion_offers_what_each_command_takes() -> None:
    for name in sorted(COMMANDS.keys() - NO_PIPELINE - OTHERWISE - {"deviations"}):
        for option in ("argument", "pipeline"):
            assert {"demo", "demo-random"} <= set(completions(name, option, "demo"))
    assert "demo/daam-v1" in completions("export", "argument", "demo/daam")
    assert "coco" in completions("download", "argument", "co")
    assert completions("doctor", "method", "al") == ["alf", "all"]
    for name, one in {"train": "daam-v1", "ablate": "mean", "finetune": "lora-r8", "reconstruct": "identity"}.items():
        assert one in completions(name, "method", one[:2])
    assert completions("show", "table", "conf") == ["confusion"]


def test_every_option_names_commands_that_exist_and_settings_that_fit() -> None:
    known = explain.settings()
    for option in OPTIONS:
        names = [
            name for mark in OPTIONS[option].__metadata__ if isinstance(mark, UsedBy) for name in mark.commands.split()
        ]
        assert names
        assert len(names) == len(set(names))
        assert set(names) <= COMMANDS.keys()
        for name in names:
            assert set(taken(option, name) or ()) <= known.keys()
            assert option in {one.name for one in COMMANDS[name].params}


COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
NO_PIPELINE = {
    "init",
    "ls",
    "new",
    "mlm",
    "paper",
    "predict",
    "serve",
    "ui",
    "import-checkpoint",
    "import-vectors",
    "identify",
    "verify",
}
"""Commands that take none."""
OTHERWISE = {"compare", "judge", "shots"}
"""Commands that take two runs, or a family of pipelines."""
WORDS = {"explain": ["train.lr"]}
"""Arguments after the pipeline."""
REQUIRED = {"--method": "nine", "--out": "x"}


def required(name: str) -> list[str]:
    """Options without which a command does not start."""
    return [word for option in COMMANDS[name].params if option.required and option.opts[0] in REQUIRED
            for word in (option.opts[0], REQUIRED[option.opts[0]])]  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - NO_PIPELINE - OTHERWISE))
def test_the_pipeline_is_an_argument_or_an_option(project: Path, name: str) -> None:
    """Every command is walked: one that takes a pipeline takes it in both forms."""
    more = [*WORDS.get(name, []), *required(name)]
    unknown = [call(name, *words, *more) for words in (["dmeo"], ["-p", "dmeo"], ["dmeo", "-p", "dmeo"])]
    for result in unknown:
        assert result.exit_code == 3, result.output
        assert "'dmeo'" in result.stderr
        assert "did you mean 'demo'?" in result.stderr
    assert len({result.stderr for result in unknown[1:]}) == 1
    if name != "deviations":  # which takes several
        differs = call(name, "demo", "-p", "emodb", *more)
        assert differs.exit_code == 3
        assert all(text in differs.stderr for text in ("is 'demo', but --pipeline is 'emodb'", "give one of the two"))


@pytest.mark.parametrize("name", sorted(NO_PIPELINE | OTHERWISE))
def test_other_commands_take_no_pipeline(name: str) -> None:
    options = [word for option in COMMANDS[name].params for word in (*option.opts, option.metavar)]
    assert not {"-p", "--pipeline", "PIPELINE", "RUN"} & set(options)


@pytest.mark.usefixtures("project")
def test_both_forms_mean_the_same() -> None:
    for name, *words in (["deviations"], ["explain", "train.lr"], ["train", "-m", "mean", "--dry-run"], ["check"]):
        results = [call(name, *form, *words) for form in (["demo"], ["-p", "demo"], ["demo", "-p", "demo"])]
        assert {(result.exit_code, result.stdout) for result in results} == {(0, results[0].stdout)}
        assert results[0].stdout != call(name, *words).stdout


def test_a_deviation_is_explained() -> None:
    assert call("explain", "D40").stdout.startswith("D40: one fixed seed per script")
    unknown = call("explain", "D999")
    assert unknown.exit_code == 3
    assert "unknown deviation 'D999'; known: D1 to D64" in unknown.stderr


@pytest.mark.usefixtures("project")
def test_words_in_the_other_order() -> None:
    assert call("explain", "train.lr", "demo").stdout == call("explain", "demo", "train.lr").stdout != ""
    assert call("show", "scores", "demo").stderr == call("show", "demo", "scores").stderr
    assert "unknown pipeline 'dmeo'" in call("explain", "dmeo", "train.lr").stderr
    assert call("explain", "d1", "iemocap").stdout.endswith("\n  iemocap: corrected\n")
    assert "unknown pipeline or run 'scores'" in call("show", "scores", "figures").stderr


@pytest.mark.parametrize("name", ["run", "plan"])
@pytest.mark.usefixtures("project")
def test_options_reach_the_stages_that_a_pipeline_has(name: str) -> None:
    options = ("--device", "cpu", "--seeds", "7", "--dry-run")
    own = yaml.safe_load(call(name, "demo-vqvae", *options).stdout)
    assert (own["reconstruct"]["device"], own["reconstruct"]["seeds"]) == ("cpu", [7])
    assert own["train"]["seeds"] != [7]
    own = yaml.safe_load(call(name, "demo", *options).stdout)
    assert (own["train"]["device"], own["extract"]["device"], own["train"]["seeds"]) == ("cpu", "cpu", [7])
    assert own["reconstruct"]["seeds"] != [7]
    result = call(name, "demo-vqvae", "--recipe", "published")
    assert result.stderr.endswith("demo-vqvae reconstructs images, so it has no training recipe\n  omit --recipe\n")


@pytest.mark.usefixtures("project")
def test_a_command_that_needs_a_pipeline_says_so() -> None:
    for name in ("run", "plan", "truncate"):
        result = call(name)
        assert result.exit_code == 2
        assert "give it as an argument, or with -p" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "demo", "-m", "daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["finetune", "demo", "-m", "lora-r9"], "unknown fine-tuning method 'lora-r9'\n  did you mean 'lora-r8'?"),
        (["train", "demo", "-m", "ia3"], "it there: daamctl finetune demo --method ia3\n"),
        (["finetune", "demo", "-m", "mean"], "it there: daamctl train demo --method mean\n"),
        (["reconstruct", "demo-vqvae", "-m", "damm"], "unknown block 'damm'\n  did you mean 'daam'?"),
        (["ablate", "demo", "-m", "daam-v9"], "ablate.method: unknown name 'daam-v9'; did you mean 'daam-v2'?"),
        (["ablate", "demo", "--set", "ablate.rank_by=mah"], "ablate.rank_by: unknown name 'mah'; did you mean 'mha'?"),
        (
            ["evaluate", "demo", "--set", "evaluate.reference=meen"],
            "evaluate.reference: unknown name 'meen'; did you mean 'mean'?",
        ),
        (["evaluate", "demo", "--set", "train.epoch=3"], "train.epoch: unknown setting; did you mean 'epochs'?"),
        (["report", "demo", "--set", "report.published=T2-x"], "report.published: unknown published table 'T2-x'"),
        (["extract", "demo", "--set", "extract.encoder=wavlm-lrage"], "'wavlm-lrage'\n  did you mean 'wavlm-large'?"),
        (["extract", "demo-text", "--set", "extract.encoder=lama-micro"], "did you mean 'llama-micro'?"),
        (["extract", "digits", "--set", "extract.encoder=biet-micro"], "did you mean 'beit-micro'?"),
        (["run", "demo", "--set", "extract.encoder=../x/whisper"], "extract.encoder: no folder ../x/whisper\n"),
        (["run", "demo", "--set", "extract.encoder=a/b/whisper"], "extract.encoder: no folder a/b/whisper\n"),
        (["extract", "--corpus", "demmo", "--encoder", "wavlm-demo"], "download.corpus: unknown name 'demmo'; did"),
        (["extract", "demo", "--engine", "loccal"], "unknown engine 'loccal'\n  did you mean 'local'?"),
        (["truncate", "demo/daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["truncate", "demo/nosuch"], "unknown method 'nosuch' of 'demo'\n  known: daam-v1-mlp, "),
        (["run", "demo", "--device", "cuda:99"], "device 'cuda:99' is not on this machine"),
        (["run", "demo", "--device", "cpu", "--set", "train.precision=float16"], "precision 'float16' needs a GPU"),
        (["run", "nosuch"], " more (pipelines/<name>.yaml); all of them: daamctl ls pipelines\n"),
        (["export", "dmeo/daam-v1", "--out", "x"], "unknown pipeline or run 'dmeo'\n  did you mean 'demo'?"),
        (["compare", "demo/mean", "dmeo"], "unknown pipeline or run 'dmeo'\n  did you mean 'demo'?"),
        (["doctor", "-m", "daam-v9"], "unknown method 'daam-v9'\n  did you mean 'daam-v2'?"),
        (["mlm", "--encoder", "bert/base"], "encoder 'bert/base' is neither a folder here nor in the local cache"),
        (["mlm", "--encoder", "../x/bert"], "no folder ../x/bert\n"),
        (["run", "far"], "encoder 'microsoft/wavlm-large' is not in the local cache"),
        (["extract", "far"], "encoder 'microsoft/wavlm-large' is not in the local cache"),
        (["extract", "--encoder", "wavlm-large"], "encoder 'microsoft/wavlm-large' is not in the local cache"),
        (["extract", "--encoder", "../x/whisper"], "extract.encoder: no folder ../x/whisper\n"),
        (["finetune", "far", "-m", "ia3"], "encoder 'microsoft/wavlm-large' is not in the local cache"),
        (["download", "--from", "no/corpus", "emodb"], "no/corpus"),
        (["predict", "no/model", "x.wav"], "no folder no/model\n"),
        (["serve", "no/model"], "no folder no/model\n"),
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
             "extract demo --engine x", "evaluate demo --set train.epoch=3", "mlm --encoder ./x",
             "extract far", "finetune far -m ia3", "predict no/model x", "serve no/model"]  # fmt: skip
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        f"for line in {lines!r}:\n"
        "    try: app(line.split())\n"
        "    except SystemExit as end: assert end.code == 3, line\n"
        f"    assert not [n for n in {HEAVY!r} if n in sys.modules], line\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=project)
    assert done.returncode == 0, done.stderr
