"""`stages.yaml`: the pipelines, methods and reports over which dvc.yaml expands its stages.

A pipeline has the stages of its task only: one that reconstructs images trains no method, and the other way round.
Training has one stage per method or block that a pipeline lists. `report` has one stage per pipeline that classifies,
plus `paper`, the report over the papers' six pipelines, if all of them are listed, and one per family of few-shot
pipelines (`family_of`).
dvc.yaml can template a dependency but not a list of them, so every report has the same number: six.

All pipelines times all methods would be several hundred more stages. DVC reads and writes the lock file of all of them
around every stage, which would add half an hour to a first `dvc repro`. So the file is generated from the pipelines'
own lists (`daamctl check --write`). DVC reads it before any stage runs, so the first stage, `check`, fails if it is not
up to date.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, read_yaml
from daamctl.data.stage_table import STAGES, Task, stages_of_task
from daamctl.errors import ConfigError, first_few
from daamctl.store.files import write_text

STAGES_FILE = "stages.yaml"
HEADER = "# What dvc.yaml expands over: what the pipelines train and report. Written by `daamctl check --write`.\n"
REPORT = "report_stages"
OF_TASK = "reconstructions"
"""List whose entries make a pipeline reconstruct images."""
PAPER = "paper"
"""Report on the whole paper; no pipeline may have this name."""
PAPER_PIPELINES = tuple(f"{name}{twin}" for name in ("iemocap", "cifar100", "agnews") for twin in ("", "-as-published"))
"""Pipelines shown in it."""
REPORTED = ("check/{}/report.json", "check/{}/evaluate.json", *(f"{stage}/{{}}" for stage in STAGES["report"].reads))
"""Inputs of a pipeline's report, below data: its settings, the declared reference, and results."""
MOST_READS = 6
SHOTS = re.compile(r"(?P<family>.+)-(?P<shots>[1-9]\d*)-shots")
"""Name of a pipeline of a family of few-shot pipelines."""
FILLS = ("evaluate", "report", "train", "extract", "segment", "download")
"""Stages whose settings stand where a family has fewer pipelines than a report reads."""
NAMED_AT_MOST = 5
PLAIN = re.compile(r"[\w%+=:,.][\w%+=:,.-]*")
"""Names that the commands of dvc.yaml, which a shell reads, can hold as they are; DVC itself splits names at @."""

Table = dict[str, dict[str, dict[str, Any]]]
"""`<stage>_stages` -> the part of a stage's address after @ -> pipeline and method; for `report`, command and reads."""


def write_stages(root: Path) -> Path:
    """Regenerate the file."""
    path = root / STAGES_FILE
    write_text(path, HEADER + yaml.safe_dump(_wanted(root), sort_keys=False, default_flow_style=None, width=1000))
    return path


def check_stages(root: Path) -> None:
    """Check that the file has exactly the stages that the pipelines in params.yaml list.

    Raises:
        ConfigError: names some of the differences.
    """
    path, wanted = root / STAGES_FILE, _wanted(root)
    found: Table = read_yaml(path) if path.is_file() else {}
    wrong = []
    for part, stages in wanted.items():
        stage, old = part.removesuffix("_stages"), found.get(part) or {}
        # a stage that is listed with other inputs is lacking, too
        wrong += [f"lacks {stage}@{name}" for name, value in stages.items() if old.get(name) != value]
        wrong += [f"still has {stage}@{name}" for name in old if name not in stages]
    if wrong:
        text = f"{STAGES_FILE} is out of date: it {first_few(wrong, NAMED_AT_MOST)}"
        raise ConfigError(text, fix="write it again: daamctl check --write")


def _wanted(root: Path) -> Table:
    params = read_yaml(root / PARAMS_FILE)
    classified: list[str] = []
    table: Table = {f"{name}_stages": {} for name, spec in STAGES.items() if spec.task is not None}
    for pipeline in map(str, params.get("pipelines") or []):
        file = Path(PIPELINES_DIR, f"{pipeline}.yaml")
        if not (root / file).exists():
            fix = f"take '{pipeline}' out of pipelines in {PARAMS_FILE}, or make the file"
            raise ConfigError(f"{PARAMS_FILE} lists pipeline '{pipeline}', but there is no file {file}", fix=fix)
        if not PLAIN.fullmatch(pipeline):
            what = f"{PARAMS_FILE} lists pipeline '{pipeline}', but DVC needs a name of letters, digits and"
            fix = f"rename it and its file, or take it out of the list and use: daamctl run -- {shlex.quote(pipeline)}"
            raise ConfigError(f"{what} _ % + = : , . - (not first)", fix=fix)
        # not through `Config`, so that a wrong setting of one pipeline does not stop all others
        settings = {**params, **read_yaml(root / file)}
        task: Task = "reconstruct" if settings.get(OF_TASK) else "classify"
        classified += [pipeline] if task == "classify" else []
        for stage, spec in stages_of_task(task).items():
            if spec.for_each is not None:
                for name in settings.get(spec.for_each, Config.model_fields[spec.for_each].default) or []:
                    own = {"pipeline": pipeline, "method": name}
                    other = table[f"{stage}_stages"].setdefault(f"{pipeline}-{name}", own)
                    if other != own:
                        what = f"pipelines '{other['pipeline']}' and '{pipeline}' both have the stage"
                        fix = f"rename the file of one of the two, and its line under pipelines in {PARAMS_FILE}"
                        raise ConfigError(f"{what} {stage}@{pipeline}-{name}", fix=fix)
            elif spec.task is not None and stage != "report":
                table[f"{stage}_stages"][pipeline] = {"pipeline": pipeline}
    return table | {REPORT: dict(_reports(classified))}


def _reports(pipelines: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name, command and inputs (below data) of every report."""
    for name in pipelines:
        command = f"daamctl report {name} --if-possible"
        yield name, {"cmd": command, "reads": [path.format(name) for path in REPORTED]}
    for family in families(pipelines):
        members = family_of(family, pipelines)
        if len(members) > MOST_READS:
            raise ConfigError(
                f"{PARAMS_FILE}: {family} has {len(members)} few-shot pipelines, with '{family}' itself; at most "
                f"{MOST_READS} are allowed"
            )
        reads = [f"evaluate/{name}" for name in members]
        reads += [f"check/{name}/{stage}.json" for stage in FILLS for name in members]
        # dvc.yaml writes out this number of inputs, so each report reads exactly as many
        yield f"{family}-shots", {"cmd": f"daamctl shots {family}", "reads": reads[:MOST_READS]}
    if set(PAPER_PIPELINES) <= set(pipelines):
        yield PAPER, {"cmd": f"daamctl {PAPER}", "reads": [f"report/{name}" for name in PAPER_PIPELINES]}


def families(pipelines: Iterable[str]) -> list[str]:
    """Families of few-shot pipelines: the part before `-<N>-shots` of their names, each once."""
    return list(dict.fromkeys(found["family"] for name in pipelines if (found := SHOTS.fullmatch(name))))


def family_of(family: str, pipelines: Collection[str]) -> dict[str, int | None]:
    """Pipelines of a family -> their number of shots, ascending; None: the pipeline on all sentences, if there is one.

    Args:
        family: e.g. `wnut17`, of `wnut17-8-shots`, `wnut17-16-shots` and perhaps `wnut17`.
    """
    found = [(int(one["shots"]), name) for name in pipelines if (one := SHOTS.fullmatch(name))]
    members: dict[str, int | None] = {name: shots for shots, name in sorted(found) if name == f"{family}-{shots}-shots"}
    return members | ({family: None} if members and family in pipelines else {})
