"""One number format for all methods of a run, in whatever process and on whatever machine they are trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daamctl import devices
from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.cpu_formats import CpuFormats
from daamctl.errors import ConfigError
from daamctl.fit.run_precision import run_precision
from daamctl.fit.trial import FoldSpec
from daamctl.layout import Layout
from daamctl.stages import evaluate, train
from daamctl.store.files import read_json
from tests.fixtures.embeddings import config, write_embeddings

METHODS = ("ridge-mean", "none-mlp", "none", "mha-mlp")


@pytest.fixture
def layout(project: Path) -> Layout:
    write_embeddings(project / "data/extract/test", config())
    return Layout(project, "test", "test", "test")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A CPU that is faster in bfloat16."""
    on(monkeypatch, "bfloat16")
    return monkeypatch


def on(machine: pytest.MonkeyPatch, convolutions: str) -> None:
    """Go on with a CPU whose convolutions are fastest in this format."""
    machine.setattr(devices, "cpu_formats", lambda: CpuFormats(convolutions=convolutions))


def settings(*methods: str, **options: str) -> Config:
    return config(epochs=1, **options).model_copy(update={"methods": methods or METHODS})


def found(layout: Layout | None, method: str, own: Config, device: str = "cpu") -> str:
    return run_precision(FoldSpec("test", method, 1, 1, own, layout), "train", device)


def test_methods_trained_on_different_machines_have_one_format(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    """The report used to warn about the mix that `auto` had made."""
    own = settings()
    for method, here in zip(METHODS, ("bfloat16", "bfloat16", "float32", "float32"), strict=True):
        on(machine, here)
        train.run(layout, own, method=method, track=False)
        if here == "float32":  # a clone lacks the note; the finished folds are there
            shutil.rmtree(layout.work)
    formats = {fold.result["meta"]["precision"] for name in METHODS[1:] for fold in read_folds(layout.method(name))}
    assert formats == {"bfloat16"}
    assert not any("precision" in note for note in read_json(evaluate.run(layout, own))["notes"])


def test_the_methods_of_the_run_decide_on_a_cpu(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(None, "none-mlp", settings()) == "float32"  # belongs to no run
    assert found(layout, "none-mlp", settings("none-mlp", "mha-mlp")) == "float32"
    shutil.rmtree(layout.work)
    assert found(layout, "none-mlp", settings("none-mlp", "none")) == "bfloat16"
    assert found(layout, "none-mlp", settings("none-mlp", "mha-mlp")) == "bfloat16"  # settled
    shutil.rmtree(layout.work)
    by_settings = settings("mha-mlp", "weighted-sum").model_copy(
        update={"method_settings": {"weighted-sum": {"decoder": "conv"}}}
    )
    assert found(layout, "mha-mlp", by_settings) == "bfloat16"


def test_a_gpu_goes_on_as_a_cpu_began_and_says_so(
    layout: Layout, machine: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    on(machine, "float32")
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: True)
    assert found(layout, "none", settings()) == "float32"
    assert found(None, "none", settings(), "cuda") == "bfloat16"
    assert caplog.messages == []
    assert found(layout, "none", settings(), "cuda") == "float32"
    assert caplog.messages == ["trained in float32, as other folds of 'test'; alone, 'auto' means bfloat16 here"]


def test_a_setting_is_neither_noted_nor_overruled(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(layout, "none", settings(precision="float32")) == "float32"
    assert not layout.work.exists()
    assert found(layout, "none", settings()) == "bfloat16"
    assert found(layout, "none", settings(precision="float32")) == "float32"
    assert found(layout, "none", settings(precision="published")) == "float32"


def test_float16_of_a_gpu_is_refused_on_a_cpu(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    assert found(layout, "none", settings(), "cuda") == "float16"
    with pytest.raises(ConfigError, match=r"trained in float16, which needs a GPU\n  train on a GPU, or .*=float32$"):
        found(layout, "none", settings())


def test_fine_tuning_has_a_format_of_its_own(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(layout, "none", settings()) == "bfloat16"
    spec = FoldSpec("test", "lora-r8", 1, 1, settings(), layout)
    assert run_precision(spec, "finetune", "cpu") == "float32"
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: True)
    assert run_precision(spec, "finetune", "cuda") == "float32"
