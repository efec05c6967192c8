"""The harness that the benchmarks share, and every one of them from end to end at tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as together
from benchmarks import harness
from tests.fixtures.exported import handmade
from tests.fixtures.projects import REPOSITORY


def run(name: str, out: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What a benchmark writes, and what it prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert found["benchmark"] == name
    assert done.stdout.startswith(name)
    return found, done.stdout


def test_ways_take_turns_and_ratios_stay_within_a_round() -> None:
    clock = iter([2.0, 8.0, 3.0, 6.0, 1.0, 2.0])
    calls: list[str] = []

    def measure(way: str) -> dict[str, float]:
        calls.append(way)
        return {"seconds": next(clock)}

    ways = harness.in_turns({"new": lambda: measure("new"), "old": lambda: measure("old")}, 3, "seconds")
    assert calls == ["new", "old"] * 3
    assert ways["new"]["seconds"] == {"runs": [2.0, 3.0, 1.0], "median": 2.0, "min": 1.0, "max": 3.0}
    found = harness.ratio(ways, "seconds", "new", "old", inverse=True, goal=">= 2")
    assert found["ratio"] == "old / new"
    assert (found["runs"], found["median"], found["goal"]) == ([4.0, 2.0, 2.0], 2.0, ">= 2")
    assert harness.ratio(ways, "seconds", "new", "old")["runs"] == [0.25, 0.5, 0.5]


def test_conclusion_holds_figures_ratios_and_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = {way: {"seconds": harness.figures([seconds])} for way, seconds in (("new", 1.0), ("old", 4.0))}
    ratios = [harness.ratio(ways, "seconds", "new", "old", goal="<= 0.5")]
    harness.conclude("toy", {"clips": 3}, ways, ratios, device="cpu", out=tmp_path / "toy.json", method="none")
    found = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))
    assert (found["benchmark"], found["sizes"], found["method"]) == ("toy", {"clips": 3}, "none")
    assert (found["ways"], found["ratios"]) == (ways, ratios)
    assert found["machine"]["device"].startswith("cpu")
    assert found["versions"]["daamctl"]
    printed = capsys.readouterr().out
    assert "toy: clips 3" in printed
    assert "new / old" in printed
    assert "<= 0.5" in printed


def test_a_command_runs_in_a_project_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAAMCTL_ROOT", "elsewhere")
    code = "import os; assert 'DAAMCTL_ROOT' not in os.environ; open('here', 'w').close()"
    found = harness.command([sys.executable, "-c", code], tmp_path)
    assert (tmp_path / "here").exists()
    assert found["seconds"] > 0
    assert 5e6 < found["peak_bytes"] < 5e9
    with pytest.raises(RuntimeError, match=r"failed:(.|\n)*ZeroDivisionError"):
        harness.command([sys.executable, "-c", "1 / 0"], tmp_path)


def test_apart_is_another_process() -> None:
    assert harness.apart(os.getpid) != os.getpid()


def test_every_benchmark_is_named() -> None:
    files = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py")}
    by_themselves = {"serve", "gpu_check", "gpu_measure"}  # one needs an exported model, the others a GPU
    assert files == {*together.NAMES, *by_themselves, "__init__", "__main__", "harness"}


@pytest.mark.slow
def test_serve(tmp_path: Path) -> None:
    model, text, out = handmade(tmp_path / "model", "text"), tmp_path / "text.txt", tmp_path / "figures.json"
    text.write_text("rain")
    load = ["--clients", "2", "--seconds", "3", "--slow", "2", "--long", str(text), "--timeout", "1"]
    command = [sys.executable, "-m", "benchmarks.serve", str(model), str(text), *load, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    for part in (found, found["long"]):
        assert part["requests"] > 0
        assert (part["lost"], part["classes"]) == (0, 1)
        assert part["p50_s"] <= part["p99_s"]
    assert found["peak_bytes"] >= found["idle_bytes"] > 0


@pytest.mark.slow
def test_large_corpus(tmp_path: Path) -> None:
    words = ["--clips", "200", "--layers", "4", "--dim", "16", "--repeats", "2"]
    found, printed = run("large_corpus", tmp_path / "figures.json", *words)
    assert list(found["ways"]) == ["read", "preflight", "report"]
    assert all(len(one["seconds"]["runs"]) == 2 for one in found["ways"].values())
    assert {one["ratio"] for one in found["ratios"]} == {"preflight / read", "report / read"}
    assert found["sizes"]["clips"] == 200
    assert "preflight / read" in printed


@pytest.mark.slow
def test_streaming(tmp_path: Path) -> None:
    words = ["--clips", "600", "--layers", "2", "--dim", "16", "--repeats", "2", "--device", "cpu"]
    found, _ = run("streaming", tmp_path / "figures.json", *words)
    assert list(found["ways"]) == ["memory", "stream", "read"]
    speeds = [found["ways"][way]["clips_per_s"]["runs"] for way in ("stream", "memory")]
    ratio = next(one for one in found["ratios"] if one["quantity"] == "clips_per_s")
    assert ratio["ratio"] == "stream / memory"
    assert ratio["runs"] == pytest.approx([ours / theirs for ours, theirs in zip(*speeds, strict=True)])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_extraction_memory(tmp_path: Path) -> None:
    words = ["--tokens", "2048", "--width", "128", "--layers", "2", "--layers", "10", "--repeats", "1"]
    found, _ = run("extraction_memory", tmp_path / "figures.json", *words)
    slopes = {way: found["ways"][way]["bytes_per_layer"]["median"] for way in ("pooled", "hidden states")}
    assert slopes["hidden states"] == pytest.approx(4 * 2048 * 128, rel=0.3)  # one float32 matrix per layer
    assert slopes["pooled"] < 0.3 * slopes["hidden states"]
    assert found["ratios"][-1]["ratio"] == "pooled / hidden states"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_truncated(tmp_path: Path) -> None:
    words = ["--encoder", "llama-micro", "--items", "1", "--repeats", "1"]
    found, _ = run("truncated", tmp_path / "figures.json", *words)
    *cut, whole = found["ways"]
    assert whole.startswith("all ")
    sizes = [found["ways"][way]["parameters"]["median"] for way in (*cut, whole)]
    assert sizes == sorted(set(sizes))
    assert [one["ratio"] for one in found["ratios"]] == [f"{way} / {whole}" for way in cut] * 4


@pytest.mark.slow
def test_window(tmp_path: Path) -> None:
    words = ["--encoder", "whisper-tiny", "--items", "1", "--repeats", "1", "--windows", "3"]
    found, _ = run("window", tmp_path / "figures.json", *words)
    assert list(found["ways"]) == ["3 s", "30 s"]
    assert [one["ratio"] for one in found["ratios"]] == ["3 s / 30 s"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_freed_memory(tmp_path: Path) -> None:
    words = ["--layers", "2", "--dim", "16", "--batch", "4", "--steps", "1", "--repeats", "1"]
    found, _ = run("freed_memory", tmp_path / "figures.json", *words)
    assert {one["quantity"] for one in found["ratios"]} == {"seconds", "peak_bytes"}
    assert set(found["ways"]) == {"kept", "returned"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_position_bias(tmp_path: Path) -> None:
    words = ["--layers", "1", "--clips", "2", "--clip-s", "1", "--repeats", "1"]
    found, _ = run("position_bias", tmp_path / "figures.json", *words)
    assert list(found["ways"]) == ["one pass", "three passes"]
    assert [one["quantity"] for one in found["ratios"]] == ["seconds", "peak_bytes"]


@pytest.mark.slow
def test_concat_probe(tmp_path: Path) -> None:
    found, _ = run("concat_probe", tmp_path / "figures.json", "--rows", "60", "--clips", "600", "--repeats", "1")
    accuracy = {name: one["accuracy"]["median"] for name, one in found["ways"].items()}
    assert list(accuracy) == ["all", "components", "sample"]
    assert accuracy["all"] > accuracy["components"] > accuracy["sample"]


@pytest.mark.slow
def test_training(tmp_path: Path) -> None:
    words = ["--clips", "24", "--layers", "8", "--dim", "16", "--small-dim", "16", "--repeats", "2", "--device", "cpu"]
    found, printed = run("training", tmp_path / "figures.json", *words)
    small = [f"{name} {how}" for name in ("weighted-sum", "daam-v2-mlp") for how in ("apart", "together")]
    assert list(found["ways"]) == ["reference", "limit", "ours", "reference fold", "ours fold", *small]
    assert all(len(one["step_s"]["runs"]) == 2 for one in found["ways"].values())
    expected = ["reference fold / ours fold", "reference / ours", "limit / ours"]
    assert [one["ratio"] for one in found["ratios"]][:3] == expected
    fold = found["ways"]["ours fold"]
    assert fold["fold_s"]["median"] == pytest.approx(2 * 3 * fold["step_s"]["median"])  # two epochs of three steps
    assert (found["method"], found["members"], found["sizes"]["batch"]) == ("daam-v1", 25, 8)
    assert "weighted-sum together" in printed


@pytest.mark.slow
def test_search(tmp_path: Path) -> None:
    words = ["mean", "--clips", "60", "--dim", "16", "--steps", "12", "--repeats", "2"]
    found, printed = run("search", tmp_path / "figures.json", *words)
    assert list(found["ways"]) == ["mean side by side", "mean one by one", "mean one recipe"]
    expected = [(quantity, "mean one by one / mean side by side") for quantity in ("seconds", "cpu_s")]
    expected += [("accuracy", f"mean side by side / mean {other}") for other in ("one by one", "one recipe")]
    assert [(one["quantity"], one["ratio"]) for one in found["ratios"]] == expected
    assert all(len(one["seconds"]["runs"]) == 2 for one in found["ways"].values())
    assert found["against_one_by_one"]["mean"]["same"] in (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert abs(found["against_one_by_one"]["mean"]["accuracy"]) < 0.1
    assert "mean side by side" in printed


@pytest.mark.slow
def test_startup(tmp_path: Path) -> None:
    found, _ = run("startup", tmp_path / "figures.json", "--repeats", "1", "--no-whole")
    ratios = {one["ratio"]: one for one in found["ratios"]}
    assert ratios["help / python -c pass"]["goal"] == "<= 0.35 s"
    assert {"train / python -c 'import torch'", "dvc repro, one pipeline / python -c pass"} <= ratios.keys()
    assert "segment / python -c 'import torch'" not in ratios
