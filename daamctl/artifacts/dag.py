"""`stages.yaml`: what dvc.yaml expands its train and finetune stages over, one line per method that a pipeline lists.

All pipelines by all methods would be several hundred stages more, and DVC reads and writes the lock file of them all
around every stage that runs: half an hour of a first `dvc repro` would go into that. So the file is written from the
pipelines' own lists (`daamctl check --write`), and a line that has become superfluous costs a second and harms nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from daamctl.artifacts.io import write_text
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, read_yaml
from daamctl.errors import ConfigError

STAGES_FILE = "stages.yaml"
HEADER = "# What dvc.yaml expands over: the methods that the pipelines list. Written by `daamctl check --write`.\n"
LISTS = {"train": "methods", "finetune": "finetunes"}
"""Stage -> the list of a pipeline that has a stage for each of its names."""
NAMED_AT_MOST = 5

Table = dict[str, dict[str, dict[str, str]]]
"""`<stage>_stages` -> what follows the @ in a stage's address -> pipeline and method."""


def write_stages(root: Path) -> Path:
    """Write the file anew."""
    path = root / STAGES_FILE
    write_text(path, HEADER + yaml.safe_dump(_wanted(root), sort_keys=False, default_flow_style=None, width=1000))
    return path


def check_stages(root: Path) -> None:
    """Refuse a file that lacks what a pipeline lists, or has stages of a pipeline that params.yaml does not list.

    Raises:
        ConfigError: naming some of them.
    """
    found, wanted = _found(root), _wanted(root)
    wrong = [f"lacks {name}" for part, stages in wanted.items() for name in stages if name not in found.get(part, {})]
    unlisted = {one["pipeline"] for stages in found.values() for one in stages.values()} - set(_pipelines(root))
    wrong += [f"has stages of '{name}', which {PARAMS_FILE} does not list" for name in sorted(unlisted)]
    if wrong:
        more = f" and {len(wrong) - NAMED_AT_MOST} more" if len(wrong) > NAMED_AT_MOST else ""
        text = f"{STAGES_FILE} {', '.join(wrong[:NAMED_AT_MOST])}{more}"
        raise ConfigError(text, fix="write it anew: daamctl check --write")


def stages_of(root: Path, pipeline: str) -> Iterator[tuple[str, str]]:
    """Stage (`train` or `finetune`) and method of every line that a pipeline has in the file."""
    for part, stages in _found(root).items():
        for one in stages.values():
            if one["pipeline"] == pipeline:
                yield part.removesuffix("_stages"), one["method"]


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
    return table


def _pipelines(root: Path) -> list[str]:
    return [str(name) for name in read_yaml(root / PARAMS_FILE).get("pipelines") or []]
