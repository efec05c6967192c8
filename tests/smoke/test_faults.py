"""Damage every file of a finished run: a fault is refused with a remedy, or it changes no result.

Files are cut, emptied, altered by one bit, and exchanged for their like from another fold, method or run; then the
later stages run. The second part kills the pipeline at random moments.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.config import Config, load_config
from daamctl.errors import DaamctlError
from daamctl.planning.repair import repair_of
from daamctl.stages import ablate, evaluate, extract, importance, pipeline, report, segment, train
from daamctl.store.files import sha256_file
from daamctl.store.records import SEAL
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.projects import write_project
from tests.fixtures.recordings import write_pipeline

pytestmark = pytest.mark.slow
MORE = """methods: [mean, weighted-sum]
ablate: {method: mean, rank_by: weighted-sum, k: [1]}
importance: {audit_clips: 2, audit_orders: 2}
report: {interactive: false}
"""
OTHER = [
    ("steps: 40", "steps: 30"),
    ("k: [1]", "k: [2]"),
    ("audit_orders: 2", "audit_orders: 3"),
    ("shard_clips: 8", "shard_clips: 8, seed: 1"),
    ("tones.csv}", "tones.csv, folds: stratified, num_groups: 4}"),
]
"""What the other run of the same name has instead."""
KILLS = 60
MEASURED = re.compile(r"seconds|_s$|sha256|bytes|time|files")
"""Names of values that may differ from run to run."""


def settings(project: Path) -> tuple[Layout, Config]:
    config = load_config(project, "tiny")
    return Layout.of(project, "tiny", config), config


def run_stages(project: Path, after: str) -> None:
    """Run the stages after one of them."""
    layout, config = settings(project)
    stages: dict[str, list[Callable[[], Any]]] = {
        "segment": [partial(segment.run, layout, config)],
        "extract": [partial(extract.run, layout, config)],
        "train": [partial(train.run, layout, config, method=name, track=False) for name in config.methods],
        "evaluate": [partial(evaluate.run, layout, config)],
        "ablate": [partial(ablate.run, layout, config, track=False)],
        "importance": [partial(importance.run, layout, config)],
        "report": [partial(report.run, layout, config, track=False)],
    }
    names = ["download", *stages]
    with blank_pictures():
        for name in names[names.index(after) + 1 :]:
            for stage in stages[name]:
                stage()


def without_measured(value: Any) -> Any:
    """A JSON value without times and hashes."""
    if isinstance(value, Mapping):
        return {key: without_measured(one) for key, one in value.items() if not MEASURED.search(key)}
    return [without_measured(one) for one in value] if isinstance(value, list) else value


def results(project: Path) -> dict[str, Any]:
    """What users read: the records of evaluation, ablation and importance, and the predictions of every fold."""
    data = project / "data"
    files = ("evaluate/tiny/evaluation.json", "ablate/tiny/ablation.json", "importance/tiny/summary.json")
    found: dict[str, Any] = {name: without_measured(json.loads((data / name).read_text())) for name in files}
    for path in sorted(data.glob("train/tiny/*/*/predictions.parquet")):
        found[str(path.relative_to(data))] = sha256_file(path)
    return found


def make(project: Path, changes: list[tuple[str, str]]) -> Path:
    """A finished run; `changes` replace text of its pipeline."""
    path = write_pipeline(write_project(project), more=MORE)
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with blank_pictures():
        pipeline.run(*settings(project), track=False)
    return project


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("finished") / "project", [])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("other") / "project", OTHER)


def faults(path: Path, project: Path, other: Path) -> Iterator[tuple[str, bytes]]:
    """Name and new content of each fault of a file."""
    content = path.read_bytes()
    yield "cut", content[: len(content) // 2]
    yield "emptied", b""
    draw = random.Random(str(path.relative_to(project)))
    for _ in range(3):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        yield f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    if path.suffix == ".json" and SEAL in json.loads(content):
        unsealed = json.loads(content)
        del unsealed[SEAL]
        yield "without its seal", json.dumps(unsealed).encode()
        yield "forged", re.sub(rb'"accuracy": 0\.\d+', b'"accuracy": 0.999', json.dumps(unsealed).encode())
    likes = [*path.parent.parent.glob(f"*/{path.name}"), *path.parent.parent.parent.glob(f"*/*/{path.name}")]
    likes += path.parent.glob(f"*{path.name[-12:]}")
    likes += [other / path.relative_to(project)]
    for like in sorted(set(likes) - {path}):
        if like.is_file() and like.read_bytes() != content:
            yield f"exchanged for {like.relative_to(like.parents[4])}", like.read_bytes()


@pytest.mark.parametrize("stage", ["download", "segment", "extract", "train", "evaluate", "ablate", "importance"])
def test_no_fault_changes_a_result_in_silence(finished: Path, other: Path, tmp_path: Path, stage: str) -> None:
    expected, count, silent = results(finished), Counter[str](), []
    folder = finished / "data" / stage / "tiny"
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        for fault, content in faults(path, finished, other):
            case = tmp_path / "case"
            shutil.copytree(finished, case, copy_function=os.link)
            place = case / path.relative_to(finished)
            stamp = place.stat().st_mtime_ns
            place.unlink()
            place.write_bytes(content)
            os.utime(place, ns=(stamp, stamp))  # bits rot without a new time stamp
            if stage in ("download", "segment", "extract"):
                shutil.rmtree(case / "data/train/tiny/mean")  # so that a method reads the embeddings anew
            what = f"{path.relative_to(folder)}, {fault}"
            try:
                run_stages(case, stage)
            except DaamctlError as error:
                count["refused"] += 1
                if not (error.fix or (error.path and repair_of(error.path))):  # as the command line adds it
                    silent.append(f"{what}: no remedy for: {error.message}")
            except Exception as error:  # what would be a traceback
                silent.append(f"{what}: {type(error).__name__}: {error}")
            else:
                told = "To update, run: daamctl" in (case / "data/report/tiny/report.md").read_text()
                count["told in the report" if told else "without effect"] += 1
                found = results(case)
                changed = [name for name in expected if found.get(name) != expected[name]]
                if changed and not told:
                    silent.append(f"{what}: other results in {changed}")
            shutil.rmtree(case)
    print(f"{stage}: {count.total()} faults: {dict(count)}")  # noqa: T201
    assert not silent, "\n".join(silent)


def test_kills_at_random_moments_leave_equal_results(finished: Path, tmp_path: Path) -> None:
    project, draw, kills = tmp_path / "killed", random.Random(0), 0
    words = [sys.executable, "-m", "daamctl", "run", "tiny", "--no-track"]
    options: dict[str, Any] = {"cwd": project, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    rounds: list[float] = []
    while kills < KILLS:
        shutil.rmtree(project, ignore_errors=True)
        write_pipeline(write_project(project), more=MORE)
        finished_alone = False
        while not finished_alone:
            started = time.monotonic()
            with subprocess.Popen(words, **options) as process:
                try:
                    output, _ = process.communicate(timeout=draw.uniform(1, 12) if kills < KILLS else None)
                    finished_alone = True
                    assert process.returncode == 0, output
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    kills += 1
            rounds.append(time.monotonic() - started)
        assert results(project) == results(finished)
    print(f"{kills} kills in {sum(rounds):.0f} s: equal results")  # noqa: T201
