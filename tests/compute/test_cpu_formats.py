"""Number formats by measurement: what decides, what is kept, and that a decision does not flip."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.compute import cpu_formats
from daamctl.compute.cpu_formats import CpuFormats, decide, in_words
from daamctl.store.files import kept_json
from tests.fixtures.damage import damages

STEP = "convolution step"


def times(*, encoder: float = 1.0, step: float = 1.0, last: float = 1.0) -> dict[str, float]:
    """Times of a processor where bfloat16 and channels-last are so many times faster."""
    return {
        "matrix product, float32": 2.0,
        "matrix product, bfloat16": 2.0 / encoder,
        "convolution, float32": 1.0,
        "convolution, bfloat16": 1.0 / encoder,
        f"{STEP}, float32": 3.0,
        f"{STEP}, bfloat16": 3.0 / step,
        f"{STEP}, float32, channels last": 3.0 / last,
        f"{STEP}, bfloat16, channels last": 3.0 / step / last,
    }


@pytest.fixture
def measured(monkeypatch: Any, tmp_path: Path) -> list[dict[str, float]]:
    """Measurements to come, on a made-up processor; each is used once."""
    coming: list[dict[str, float]] = []
    monkeypatch.setenv("DAAMCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_formats, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(cpu_formats, "measure", lambda: coming.pop(0))
    return coming


def found() -> CpuFormats:
    """The decision of a new process."""
    return cpu_formats.cpu_formats.__wrapped__()


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("flags\t\t: fpu sse avx512_bf16 avx2\n", "x86_64", True),
        ("flags\t\t: fpu amx_bf16\n", "x86_64", True),
        ("flags\t\t: fpu avx512f\nbugs : avx512_bf16\n", "x86_64", False),
        ("Features\t: fp asimd bf16\n", "aarch64", True),
        ("flags\t\t: fpu bf16\n", "x86_64", False),
    ],
)
def test_bfloat16_of_the_processor(monkeypatch: Any, tmp_path: Path, text: str, kind: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(cpu_formats.platform, "machine", lambda: kind)
    monkeypatch.setattr(cpu_formats, "Path", lambda _: tmp_path / "cpuinfo")
    assert cpu_formats.cpu_has_bfloat16.__wrapped__() is expected
    monkeypatch.setattr(cpu_formats, "Path", lambda _: tmp_path / "absent")
    assert cpu_formats.cpu_has_bfloat16.__wrapped__() is False


@pytest.mark.parametrize(
    ("gains", "encoder", "convolutions"),
    [
        ({"encoder": 0.5, "step": 0.5}, "float32", "float32"),
        ({"encoder": 2.0, "step": 0.8}, "bfloat16", "float32"),
        ({"encoder": 0.8, "step": 2.0}, "float32", "bfloat16"),
        ({"encoder": 1.05, "step": 1.05}, "float32", "float32"),  # no clear gain: the exact one
    ],
)
def test_the_faster_format_is_used_for_each_kind_of_work(
    gains: dict[str, float], encoder: str, convolutions: str
) -> None:
    decided = decide(times(**gains))
    assert (decided.encoder, decided.convolutions) == (encoder, convolutions)


def test_formats_are_compared_each_in_its_best_memory_layout() -> None:
    slower_last = times(step=1.2) | {f"{STEP}, float32, channels last": 1.5, f"{STEP}, bfloat16, channels last": 4.0}
    decided = decide(slower_last)
    assert decided.channels_last == {"float32": True, "bfloat16": False}
    assert decided.convolutions == "float32"  # 1.5 against 2.5


def kept() -> Any:
    return kept_json(cpu_formats.cache_file(), f"{cpu_formats._processor()}, torch {torch.__version__}")


def test_a_processor_is_measured_once(measured: list[dict[str, float]], caplog: Any) -> None:
    caplog.set_level("INFO", "daamctl")
    measured += [times(encoder=2, step=2), times(encoder=0.5, step=0.5)]
    first = found()
    assert found() == first
    assert len(measured) == 1  # the second measurement, which says the contrary, was never taken
    assert caplog.text.count("measured on this processor") == 1
    assert "matrix product 2 x" in caplog.text


def test_another_version_of_torch_is_measured_again(measured: list[dict[str, float]], monkeypatch: Any) -> None:
    measured += [times(encoder=2), times(encoder=0.5)]
    assert found().encoder == "bfloat16"
    monkeypatch.setattr(torch, "__version__", "100.0")
    assert found().encoder == "float32"
    assert measured == []


def test_a_flipped_decision_is_not_used(measured: list[dict[str, float]]) -> None:
    measured += [times(encoder=2)]
    decided = found()
    content = cpu_formats.cache_file().read_bytes()
    for damaged in damages(content, flips=200, cuts=50):
        cpu_formats.cache_file().write_bytes(damaged)
        assert kept() is None
    cpu_formats.cache_file().write_bytes(content)
    assert found() == decided


@pytest.mark.parametrize("content", ["", "[]", "{}{", '{"unknown": 1}'])
def test_a_damaged_file_is_written_anew(measured: list[dict[str, float]], content: str) -> None:
    measured += [times(encoder=2), times(encoder=2)]
    decided = found()
    cpu_formats.cache_file().write_text(content)
    assert found() == decided
    assert kept() == asdict(decided)


def test_a_folder_that_cannot_be_written_only_costs_the_measurement(
    measured: list[dict[str, float]], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    measured += [times(encoder=2)]
    assert found().encoder == "bfloat16"


def test_without_instructions_for_bfloat16_nothing_is_measured(
    measured: list[dict[str, float]], monkeypatch: Any
) -> None:
    monkeypatch.setattr(cpu_formats, "cpu_has_bfloat16", lambda: False)
    assert found() == CpuFormats()
    assert in_words(found()) == "bfloat16 is not native, float32 is used"


def test_the_measurement_leaves_the_threads_as_they_are(monkeypatch: Any) -> None:
    monkeypatch.setattr(cpu_formats, "ROUNDS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(cpu_formats.measure()) == set(times())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
