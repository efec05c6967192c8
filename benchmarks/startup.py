"""How long the commands take that have nothing to do: help, lists, finished stages, and `dvc repro` of finished work.

Repeat it:

    python -m benchmarks.startup --out data/bench/startup.json    # --help for other sizes

Makes a project in a temporary folder (set TMPDIR to choose where) with a small finished pipeline over texts, and a
second one with the stages of every pipeline of this repository, each left out with a note, as on a machine that has
none of their corpora; DVC is told that all of it is up to date. Then every command runs in a process of its own, in
turns. The baselines are a Python that does nothing, and for stages that compute one that imports torch.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import command, conclude, in_turns, ratio
from daamctl.artifacts.layout import Layout
from daamctl.config import load_config, pipeline_names
from daamctl.data.stage_table import folder_stages, steps_of
from daamctl.store.files import write_text

NAME = "tiny"
SETTINGS = """# A small pipeline over generated texts.
methods: [none]
download: {corpus: demo-text, folds: stratified, num_groups: 3}
extract: {encoder: llama-micro}
train: {epochs: 1, device: cpu}
ablate: {k: [], layers: [[1]]}
importance: {audit: false}
"""
REPOSITORY = Path(__file__).resolve().parents[1]
NOTHING, TORCH = "python -c pass", "python -c 'import torch'"
LIGHT = ("help", "ls methods", "check --write", "check --inventory", "segment")
"""Commands that need no torch."""
HEAVY, SERVED = ("extract", "train", "evaluate", "ablate", "importance", "report"), ", served"
"""Stages that need torch; the same as stages of one `dvc repro`."""
GOALS = {"help": "<= 0.35 s"}


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each command.")] = 5,
    whole: Annotated[bool, typer.Option("--whole/--no-whole", help="Also `dvc repro` of every pipeline.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Time commands that have nothing to do."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        tiny, paper = Path(folder) / "tiny", Path(folder) / "paper"
        make_tiny(tiny)
        runs = {
            NOTHING: partial(run_in, tiny, "python", "-c", "pass"),
            TORCH: partial(run_in, tiny, "python", "-c", "import torch"),
            **{name: partial(run_in, tiny, "daamctl", *words) for name, words in commands().items()},
            **{f"{name}{SERVED}": partial(served, tiny, *commands()[name]) for name in HEAVY},
            "dvc repro, one pipeline": partial(run_in, tiny, "dvc", "repro"),
        }
        if whole:
            make_whole(paper)
            runs["dvc repro, every pipeline"] = partial(run_in, paper, "dvc", "repro")
        for run in runs.values():
            run()  # the first one fills caches
        ways = in_turns(runs, repeats, "seconds")
    named = [way for way in ways if way not in (NOTHING, TORCH)]
    ratios = [ratio(ways, "seconds", way, NOTHING, goal=goal_of(way)) for way in named]
    ratios += [ratio(ways, "seconds", way, TORCH) for way in commands() if way not in LIGHT]
    ratios += [ratio(ways, "seconds", f"{name}{SERVED}", name) for name in HEAVY]
    sizes = {"pipelines": len(pipeline_names(REPOSITORY)) if whole else 1}
    conclude("startup", sizes, ways, ratios, device="cpu", out=out)


def commands() -> dict[str, Sequence[str]]:
    """What is timed in the small project: name -> words after `daamctl`."""
    stages = {stage: [stage, NAME] for stage in folder_stages()[1:]}
    stages["train"] += ["--method", "none"]
    return {
        "help": ["--help"],
        "ls methods": ["ls", "methods"],
        "check --write": ["check", NAME, "--write"],
        "check --inventory": ["check", "--inventory"],
        **stages,
    }


def goal_of(way: str) -> str | None:
    """What a command should reach, in seconds on an idle machine."""
    return "<= 10 s" if way.startswith("dvc") else GOALS.get(way)


def run_in(root: Path, *words: str) -> dict[str, float]:
    """Run a command of this environment in a project."""
    return command([str(Path(sys.executable).parent / words[0]), *words[1:]], root)


def served(root: Path, *words: str) -> dict[str, float]:
    """Run a stage as DVC does: the server that it starts lives as long as this process."""
    os.environ["DVC_STAGE"] = "stage"
    try:
        return run_in(root, "daamctl", *words)
    finally:
        del os.environ["DVC_STAGE"]


def make_tiny(root: Path) -> None:
    """A project with one finished pipeline, which DVC knows to be finished."""
    (root / "pipelines").mkdir(parents=True)
    write_text(root / "params.yaml", f"pipelines: [{NAME}]\n")
    write_text(root / "pipelines" / f"{NAME}.yaml", SETTINGS)
    shutil.copyfile(REPOSITORY / "dvc.yaml", root / "dvc.yaml")
    run_in(root, "daamctl", "run", NAME)
    _commit(root)


def make_whole(root: Path) -> None:
    """A project with the stages of every pipeline of this repository, all of them left out."""
    from daamctl.artifacts.skipped import Obstacle, leave_out

    root.mkdir(parents=True)
    shutil.copytree(REPOSITORY / "pipelines", root / "pipelines")
    for name in ("params.yaml", "stages.yaml", "dvc.yaml"):
        shutil.copyfile(REPOSITORY / name, root / name)
    obstacle = Obstacle("left out here", "run it elsewhere")
    for pipeline in pipeline_names(root):
        config = load_config(root, pipeline)
        layout = Layout.of(root, pipeline, config)
        for stage, entry in steps_of(config):
            leave_out(layout, stage, obstacle, entry)
    run_in(root, "daamctl", "paper")
    _commit(root)


def _commit(root: Path) -> None:
    """Tell DVC that everything there is up to date."""
    run_in(root, "daamctl", "check", "--write")
    run_in(root, "daamctl", "check", "--inventory")
    run_in(root, "dvc", "init", "--no-scm", "-q")
    run_in(root, "dvc", "config", "core.analytics", "false")
    run_in(root, "dvc", "commit", "-f", "-q")


if __name__ == "__main__":
    typer.run(main)
