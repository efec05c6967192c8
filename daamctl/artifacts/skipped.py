"""Skipped stages: `skipped.json` = {reason, fix} in place of results that cannot be made on this machine.

`daamctl check --inventory` records for every pipeline whether it can run (`data/inventory/<pipeline>.json`, see
`daamctl.stages.inventory`). With `--if-possible`, as in dvc.yaml, a stage that cannot run leaves a note and succeeds.
So does each stage that reads its results; DVC then continues with the other pipelines. Finished results are never
replaced by a note: if a corpus is removed, its results stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daamctl.artifacts.io import read_json, write_json
from daamctl.config import Config
from daamctl.layout import Layout
from daamctl.stage_table import SKIPPED_FILE, STAGES


@dataclass(frozen=True)
class Obstacle:
    """Why a pipeline or stage cannot run on this machine.

    Args:
        reason: what is missing.
        fix: how to get it.
    """

    reason: str
    fix: str | None = None


def inventory_file(root: Path, pipeline: str) -> Path:
    """File in which the inventory records whether a pipeline can run."""
    return root / "data" / "inventory" / f"{pipeline}.json"


def folder_of(layout: Layout, stage: str, name: str | None = None) -> Path:
    """Results folder of a stage; for `train` and `finetune`, that of the method `name`."""
    if name is not None:
        return layout.method(name)
    own = {"download": layout.utterances.parent, "segment": layout.clips.parent, "extract": layout.embeddings}
    return own.get(stage) or layout.stage(stage)


def is_finished(folder: Path, stage: str) -> bool:
    """Whether a stage has results in its folder; empty files do not count."""
    return any(path.stat().st_size for path in folder.glob(STAGES[stage].finished))


def note_of(folder: Path, stage: str) -> Obstacle | None:
    """Why a stage was skipped; None if it was not, or has results anyway."""
    path = folder / SKIPPED_FILE
    if not path.is_file() or is_finished(folder, stage):
        return None
    note = read_json(path)
    return Obstacle(note["reason"], note["fix"]) if "fix" in note else None  # without `fix`: a method not listed


def obstacle_of(layout: Layout, config: Config, stage: str) -> Obstacle | None:
    """What prevents a stage from running: an entry of the inventory, or a note in place of its inputs.

    Args:
        layout: locations of artifacts.
        config: settings of the pipeline.
        stage: the stage.
    """
    spec = STAGES[stage]
    if spec.needs_machine and layout.pipeline is not None:
        path = inventory_file(layout.root, layout.pipeline)
        found = read_json(path) if path.is_file() else None
        if found is not None and not found["runs"]:
            return Obstacle(found["reason"], found["fix"])
    if not spec.reads:
        return None
    upstream = spec.reads[0]
    if upstream == "train":
        return _all_of(note_of(layout.method(name), "train") for name in config.trained)
    return note_of(folder_of(layout, upstream), upstream)


def remove_note(layout: Layout, stage: str, name: str | None = None) -> None:
    """Remove the note of a stage that is about to run."""
    (folder_of(layout, stage, name) / SKIPPED_FILE).unlink(missing_ok=True)


def leave_out(layout: Layout, stage: str, obstacle: Obstacle, name: str | None = None) -> bool:
    """Write the note of a stage that cannot run, and the other folders that dvc.yaml declares; existing results stay.

    Args:
        layout: locations of artifacts.
        stage: the stage.
        obstacle: what prevents it from running.
        name: method, for `train` and `finetune`.

    Returns:
        Whether the stage was skipped; False: it has results, which stay.
    """
    folder = folder_of(layout, stage, name)
    if is_finished(folder, stage):
        return False
    for other in STAGES[stage].beside:
        layout.stage(other).mkdir(parents=True, exist_ok=True)
    method = {} if name is None else {"method": name}
    write_json(folder / SKIPPED_FILE, {**method, "reason": obstacle.reason, "fix": obstacle.fix})
    return True


def _all_of(notes: Iterable[Obstacle | None]) -> Obstacle | None:
    """The first note if all inputs are notes; else None."""
    found = list(notes)
    return found[0] if found and all(found) else None
