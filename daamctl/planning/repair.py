"""The command that makes an artifact again, from its place below `data`."""

from __future__ import annotations

import re
from pathlib import Path

from daamctl.adapters import stage_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.runs import find_run
from daamctl.config import PARAMS_FILE
from daamctl.data.stage_table import STAGES
from daamctl.errors import ArtifactError, ConfigError

BESIDE = ("truncate", "preflight", "protocols")
"""Commands that write a folder of the run, as stages do."""
OTHERS = {"mlm": "run the same command with --force", "check": "daamctl check --inventory"}
"""Folder below `data` that belongs to no run -> what writes it."""


def repair_of(path: Path, layout: Layout | None = None) -> str | None:
    """The command that makes an artifact, e.g. `make it: daamctl segment demo`; None if no stage made the file.

    Args:
        layout: that of the command that met the artifact. If it is its own, the command repeats the settings given.
    """
    roots = (folder.parent for folder in path.absolute().parents if folder.name == "data")
    own = layout and layout.root.absolute()
    root = next((root for root in roots if root == own or (root / PARAMS_FILE).is_file()), None)  # not a user's folder
    data = root and root / "data"
    parts = path.absolute().relative_to(data).parts if data else ("",)
    again = "make it again" if path.exists() else "make it"
    if parts[0] in OTHERS:
        return f"{again}: {OTHERS[parts[0]]}"
    if data is None or len(parts) < 2 or parts[0] not in (*STAGES, *BESIDE):
        return None
    stage, name, *below = parts
    if layout is None or name not in (layout.table_name, layout.run_name, layout.embeddings.name):
        try:
            layout, _ = find_run(data.parent, name, reconstructs=True)
        except (ConfigError, ArtifactError):  # e.g. of a pipeline that is gone
            layout = Layout(data.parent, name, name, name)
    words: list[str] = []
    each = stage in STAGES and bool(STAGES[stage].for_each)
    if each and not below:  # all methods of the run
        if layout.pipeline is not None:
            return f"{again}: {layout.command('run')}"
        below = sorted(one.name for one in path.glob("*/"))[:1]
    if each and below:
        method, *places = below
        words = ["--method", method]
        for option, number in re.findall(r"(fold|seed)(\d+)", places[0] if places else ""):
            words += [f"--{option}", number]
        if places and path.exists():  # it looks finished
            words.append("--force")
        stage = stage_of(method) if stage == "train" else stage
    elif stage in ("evaluate", "score") and layout.pipeline is not None and not path.exists():
        before = layout.stage("train" if stage == "evaluate" else "reconstruct")
        stage = stage if any(before.glob("*/")) else "run"  # nothing is trained yet
    return f"{again}: {layout.command(stage, *words)}"
