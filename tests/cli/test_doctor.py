"""`daamctl doctor --method`: what it prints, its exit codes, and the sizes at which it checks."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.methods import METHODS, contract, rebuild
from daamctl.methods.activity_check import gradient_sizes
from daamctl.methods.attentive import AttentivePooling
from daamctl.methods.contract import Case, Finding
from daamctl.stages import doctor
from daamctl.stages.doctor import examine_method
from tests.fixtures.embeddings import write_embeddings


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Replace all checks by two, of which the second fails for `mha`; gives the cases they met."""
    cases: list[Case] = []

    def count(case: Case) -> Finding:
        cases.append(case)
        return Finding("count", True, f"sizes {case.sizes}")

    def order(case: Case) -> Finding:
        return Finding("order", case.method != "mha", "seen [as] it is")

    monkeypatch.setattr(contract, "CHECKS", {"count": count, "order": order})
    return cases


def test_every_check_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no project is needed
    result = call("--method", "daam-v1")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in contract.CHECKS]
    assert "24 x 1024 to 4 classes: 336,412 trainable (fusion 16,384, decoder 320,028 of which fc 98,308)" in lines[0]
    assert "as defined; printed: 238,104 without fc;" in lines[0]  # vision, beside our 2,695,804
    assert "\x1b" not in result.stdout


def test_a_terminal_gets_a_table(seen: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    result = call("-m", "none")
    assert result.exit_code == 0
    assert "\x1b[" in result.stdout
    plain = re.sub(r"\x1b\[[\d;]*m", "", result.stdout)
    assert [line.rstrip() for line in plain.splitlines()] == [
        "ok  count  sizes (24, 16, 4)",
        "ok  order  seen [as] it is",
    ]


def test_failing_checks_are_named_and_exit_with_3(seen: list[Case]) -> None:
    result = call("--method", "mha")
    assert result.exit_code == 3
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["ok", "count"], ["FAILED", "order"]]
    assert result.stderr == "MethodError: mha: 1 of 2 checks failed\n  order: seen [as] it is\n"


def test_all_methods_have_a_line_each(seen: list[Case]) -> None:
    result = call("--method", "all", "--width", "32")
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines] == list(METHODS)
    assert {line.split(maxsplit=2)[2] for line in lines} == {"2 checks", "fails order"}
    assert result.stderr == "MethodError: failed checks: 1\n  mha: order: seen [as] it is\n"


def test_sizes_that_a_method_refuses_are_no_fault(seen: list[Case]) -> None:
    result = call("--method", "all", "--num-layers", "7", "--width", "15")
    lines = {line.split()[1]: line for line in result.stdout.splitlines()}
    assert lines["mha"].split(maxsplit=2)[0] == "-"
    assert lines["daam-v1"].split(maxsplit=1)[0] == "ok"
    assert lines["mha"].endswith("must divide the layer width (15); possible: 1, 3, 5, 15")
    assert result.exit_code == 0  # the method that fails here cannot be built


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--num-layers", "7", "--set", "num_heads=8"],
            "num_heads (8) must divide the number of layers (7); possible: 1",
        ),
        (
            ["--num-layers", "7", "--set", "num_heads=7"],
            "num_heads (7) leaves one of 7 layers to a head, with a weight",
        ),
        (["--set", "num_heads=5"], "num_heads (5) must divide the number of layers (24); possible: 1, 2, 3, 4"),
        (["--set", "heads=2"], "daam-v1: unknown setting 'heads'\n  did you mean 'num_heads'? known: decoder"),
        (["--set", "variance=none"], "daam-v1: variance must be 'two-pass' or 'moments', got 'none'"),
    ],
)
def test_what_cannot_be_built_is_one_message(seen: list[Case], words: list[str], message: str) -> None:
    result = call("--method", "daam-v1", *words)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith(f"MethodError: {message}")


def test_unknown_method(seen: list[Case]) -> None:
    result = call("--method", "daam-v3")
    assert result.exit_code == 3
    assert result.stderr.startswith("UnknownNameError: unknown method 'daam-v3'\n  did you mean 'daam-v2'?")


@pytest.mark.parametrize(
    "words",
    [["--set", "num_heads=2"], ["--method", "all", "--set", "num_heads=2"], ["-m", "none", "--num-classes", "1"]],
)
def test_usage_errors(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_settings_and_sizes_reach_the_checks(seen: list[Case]) -> None:
    words = [
        "--set",
        "num_heads=2",
        "--set",
        "variance=moments",
        "--num-layers",
        "6",
        "--width",
        "64",
        "--num-classes",
        "3",
    ]
    assert call("--method", "daam-v1-mlp", *words).exit_code == 0
    settings = {"num_heads": 2, "variance": "moments"}
    assert seen == [Case("daam-v1-mlp", settings, sizes=(6, 16, 3), counted=((6, 64, 3),))]


@pytest.mark.parametrize(
    ("method", "settings", "width", "numeric"),
    [
        ("none", {}, 1024, 16),
        ("none", {}, 10, 10),  # narrower than wanted: as it is
        ("none", {}, 34, 17),  # the smallest part of the width that is wide enough
        ("none", {}, 37, 37),
        ("mha", {}, 5120, 16),
        ("mha", {"num_heads": 32}, 1024, 32),  # 16 cannot have 32 heads
        ("mha", {"num_heads": 5}, 5120, 20),
    ],
)
def test_numbers_are_computed_at_a_small_width(
    seen: list[Case], method: str, settings: dict[str, int], width: int, numeric: int
) -> None:
    list(examine_method(method, settings, num_layers=24, embed_dim=width, num_classes=4))
    assert [case.sizes for case in seen] == [(24, numeric, 4)]
    assert seen[0].counted[0] == (24, width, 4)


def test_published_sizes_are_counted_with_the_defaults_only(seen: list[Case]) -> None:
    for method, settings in (("mha", {}), ("mha", {"num_heads": 4}), ("mha-mlp", {}), ("se", {})):
        list(examine_method(method, settings, num_layers=24, embed_dim=1024, num_classes=4))
    assert [len(case.counted) for case in seen] == [3, 1, 1, 1]


def pipeline(project: Path, text: str, *words: str) -> Any:
    (project / "pipelines/mine.yaml").write_text(text)
    return call("-p", "mine", *words)


SMALL = "{hidden_channels: 4, hidden_dim: 8}"
TEXT = (
    "download: {corpus: demo}\nmethods: [none, weighted-sum, attentive, daam-v1]\n"
    f"method_settings: {{none: {SMALL}, daam-v1: {SMALL}}}\n"
)


def test_methods_of_a_pipeline_have_a_line_each(project: Path) -> None:
    result = pipeline(project, TEXT)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "24 layers x 64 to 4 classes, on 16 random vectors (there are no embeddings with these settings)",
        "ok      none          gradient reaches 6 of 6 trainable tensors",
        "ok      weighted-sum  gradient reaches 5 of 5 trainable tensors",
        "ok      attentive     layer weight varies over inputs; gradient reaches 7 of 7 trainable tensors",
        "ok      daam-v1       density varies over inputs; gradient reaches 8 of 8 trainable tensors",
    ]


def test_stored_embeddings_are_the_inputs(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text(TEXT)
    layout = Layout.of(project, "mine", load_config(project, "mine"), [])
    write_embeddings(layout.embeddings, load_config(project, "mine"), num_groups=3)
    result = pipeline(project, TEXT)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "24 layers x 16 to 4 classes, on 16 of its own embeddings"


def test_two_names_for_one_computation(project: Path) -> None:
    """Four layers are one head, as `daam-v2` has it."""
    text = "download: {corpus: demo}\nextract: {encoder: whisper-tiny}\nmethods: [mean, daam-v1-mlp, daam-v2-mlp]\n"
    result = pipeline(project, text)
    assert result.exit_code == 3
    assert result.stdout.splitlines()[1:] == [
        "ok      mean         gradient reaches 4 of 4 trainable tensors",
        "ok      daam-v1-mlp  density varies over inputs; gradient reaches 6 of 6 trainable tensors",
        "FAILED  daam-v2-mlp  computes the same as daam-v1-mlp",
    ]
    assert result.stderr == (
        "MethodError: pipeline 'mine': 1 of 3 methods failed\n  daam-v2-mlp: computes the same as daam-v1-mlp\n"
    )


def test_heads_of_one_layer_are_refused(project: Path) -> None:
    result = pipeline(project, TEXT, "--set", "method_settings.daam-v1.num_heads=24")
    assert result.exit_code == 3
    assert "FAILED  daam-v1       num_heads (24) leaves one of 24 layers to a head" in result.stdout


def test_a_method_that_does_nothing_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "build", rebuild)  # which does not refuse it
    result = pipeline(project, TEXT, "--set", "method_settings.daam-v1.num_heads=24")
    assert result.exit_code == 3
    line = result.stdout.splitlines()[-1]
    assert line.startswith("FAILED  daam-v1       its density is ")
    assert line.endswith(" for every input, so it has no effect; computes the same as none")


def test_a_gate_that_is_constant_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = AttentivePooling.layer_weights

    def stuck(self: Any, x: Tensor) -> Tensor:
        return plain(self, x) if x.shape[-1] == 16 else torch.full(x.shape[:-1], 0.25)

    monkeypatch.setattr(AttentivePooling, "layer_weights", stuck)
    result = pipeline(project, TEXT)
    assert result.exit_code == 3
    assert "FAILED  attentive     its layer weight is 0.25 for every input, so it has no effect" in result.stdout


def test_a_parameter_without_gradient_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_unused(method: str, **sizes: Any) -> Any:
        model = rebuild(method, **sizes)
        if method == "none":
            model.fusion.unused = nn.Parameter(torch.zeros(3))
        return model

    monkeypatch.setattr(contract, "build", with_unused)
    result = pipeline(project, TEXT)
    assert result.exit_code == 3
    assert result.stdout.splitlines()[1].startswith("FAILED  none          fusion.unused gets no gradient")


def test_sizes_that_nothing_tells(project: Path) -> None:
    result = pipeline(project, "extract: {encoder: someone/thing}\nmethods: [none]\n")
    assert result.exit_code == 3
    assert result.stderr.startswith(
        "EncoderError: depth and width of encoder 'someone/thing', or the classes of corpus"
    )
    assert call("-p", "demo", "--method", "mha").exit_code == 2


def test_one_dead_start_is_no_fault_of_the_method(project: Path) -> None:
    """At one start in some the ReLU of `se` is 0 for every input; a method fails only where all starts do."""
    text = "download: {corpus: demo}\nextract: {encoder: whisper-tiny}\nmethods: [se]\n"
    x = torch.randn(16, 4, 384, generator=torch.Generator().manual_seed(0))
    starts = [gradient_sizes(Case("se", {}, (4, 384, 4)).make(seed), x, torch.arange(16) % 4) for seed in range(8)]
    dead = [not min(sizes.values()) > 0 for sizes in starts]
    assert any(dead)
    assert not all(dead)
    assert pipeline(project, text).exit_code == 0


def test_a_cache_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/elsewhere/hub")
    monkeypatch.setattr(Path, "is_dir", refuse)
    told = "cache /elsewhere/hub cannot be read: Permission denied; to use another folder: export HF_HOME=FOLDER"
    assert doctor._hub() == told
