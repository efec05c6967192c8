"""`stages.yaml`: what dvc.yaml expands its train, finetune and report stages over.

Training has one stage per method that a pipeline lists. `report` has one per pipeline, and `paper`, the report over the
six pipelines of the papers, where all of them are listed. dvc.yaml can template a dependency but no list of them, so
every report has as many: six.

All pipelines by all methods would be several hundred stages more, and DVC reads and writes the lock file of them all
around every stage that runs: half an hour of a first `dvc repro` would go into that. So the file is written from the
pipelines' own lists (`daamctl check --write`), and a line that has become superfluous costs a second and harms nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from daamctl.artifacts.io import write_text
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, read_yaml
from daamctl.errors import ConfigError
from daamctl.stage_table import STAGES

STAGES_FILE = "stages.yaml"
HEADER = "# What dvc.yaml expands over: what the pipelines train and report. Written by `daamctl check --write`.\n"
REPORT = "report_stages"
LISTS = {name: spec.for_each for name, spec in STAGES.items() if spec.for_each is not None}
"""Stage -> the list of a pipeline that has a stage for each of its names."""
PAPER = "paper"
"""The report of the whole paper; no pipeline may be called so."""
PAPER_PIPELINES = tuple(f"{name}{twin}" for name in ("iemocap", "cifar100", "agnews") for twin in ("", "-as-published"))
"""The pipelines whose results it shows."""
REPORTED = ("check/{}/report.json", "check/{}/evaluate.json", *(f"{stage}/{{}}" for stage in STAGES["report"].reads))
"""What the report of a pipeline reads, below data: its settings, the reference declared, and results."""
NAMED_AT_MOST = 5

Table = dict[str, dict[str, dict[str, Any]]]
"""`<stage>_stages` -> what follows the @ in a stage's address -> pipeline and method, of `report` command and reads."""


def write_stages(root: Path) -> Path:
    """Write the file anew."""
    path = root / STAGES_FILE
    write_text(path, HEADER + yaml.safe_dump(_wanted(root), sort_keys=False, default_flow_style=None, width=1000))
    return path


def check_stages(root: Path) -> None:
    """Refuse a file that lacks what a pipeline lists, or has stages of what params.yaml does not list.

    Raises:
        ConfigError: naming some of them.
    """
    found, wanted = _found(root), _wanted(root)
    wrong = [
        f"lacks {part.removesuffix('_stages')}@{name}"
        for part, stages in wanted.items()
        for name, stage in stages.items()
        if found.get(part, {}).get(name) != stage
    ]
    there = {one.get("pipeline", name) for stages in found.values() for name, one in stages.items()}
    unlisted = sorted(there - set(wanted[REPORT]))
    wrong += [f"has stages of '{name}', which the pipelines of {PARAMS_FILE} do not make" for name in unlisted]
    if wrong:
        more = f" and {len(wrong) - NAMED_AT_MOST} more" if len(wrong) > NAMED_AT_MOST else ""
        text = f"{STAGES_FILE} {', '.join(wrong[:NAMED_AT_MOST])}{more}"
        raise ConfigError(text, fix="write it anew: daamctl check --write")


def stages_of(root: Path, pipeline: str) -> Iterator[tuple[str, str]]:
    """Stage (`train` or `finetune`) and method of every line that a pipeline has in the file."""
    found = _found(root)
    for stage in LISTS:
        for one in found.get(f"{stage}_stages", {}).values():
            if one["pipeline"] == pipeline:
                yield stage, one["method"]


def _found(root: Path) -> Table:
    path = root / STAGES_FILE
    return {part: stages or {} for part, stages in (read_yaml(path) if path.is_file() else {}).items()}


def _wanted(root: Path) -> Table:
    params = read_yaml(root / PARAMS_FILE)
    table: Table = {f"{stage}_stages": {} for stage in LISTS}
    for pipeline in _pipelines(root):
        settings = {**params, **read_yaml(root / PIPELINES_DIR / f"{pipeline}.yaml")}
        for stage, key in LISTS.items():
            names = settings.get(key, Config.model_fields[key].default) or []
            table[f"{stage}_stages"] |= {f"{pipeline}-{name}": {"pipeline": pipeline, "method": name} for name in names}
    return table | {REPORT: dict(_reports(_pipelines(root)))}


def _reports(pipelines: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name, command and reads (below data) of every report."""
    for name in pipelines:
        command = f"daamctl report --pipeline {name} --if-possible"
        yield name, {"cmd": command, "reads": [path.format(name) for path in REPORTED]}
    if set(PAPER_PIPELINES) <= set(pipelines):
        yield PAPER, {"cmd": f"daamctl {PAPER}", "reads": [f"report/{name}" for name in PAPER_PIPELINES]}


def _pipelines(root: Path) -> list[str]:
    return [str(name) for name in read_yaml(root / PARAMS_FILE).get("pipelines") or []]
