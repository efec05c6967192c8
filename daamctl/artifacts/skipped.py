"""Skipped stages: `skipped.json` = {reason, fix} in place of results that cannot be made on this machine.

`daamctl check --inventory` records for every pipeline whether it can run (`data/check/<pipeline>/machine.json`, see
`daamctl.stages.inventory`). With `--if-possible`, as in dvc.yaml, a stage that cannot run leaves a note and succeeds.
So does each stage that reads its results; DVC then continues with the other pipelines. Finished results are never
replaced by a note: if a corpus is removed, its results stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.data.stage_table import STAGES
from daamctl.errors import ArtifactError
from daamctl.store.files import read_json, write_json
from daamctl.store.records import SKIPPED_FILE

MACHINE = "machine.json"
"""Whether a pipeline can run on this machine."""


@dataclass(frozen=True)
class Obstacle:
    """Why a pipeline or stage cannot run on this machine."""

    reason: str
    fix: str | None = None


def check_folder(root: Path, pipeline: str) -> Path:
    """Folder of what the inventory records of a pipeline: `MACHINE`, and what each stage depends on."""
    return root / "data" / "check" / pipeline


def read_inventory(root: Path, pipeline: str) -> Obstacle | None:
    """Why a pipeline cannot run on this machine, as the inventory recorded it; None if it can, or is not recorded.

    Raises:
        ArtifactError: the record is damaged.
    """
    path = check_folder(root, pipeline) / MACHINE
    if not path.is_file():
        return None
    found = read_json(path)
    try:
        return None if found["runs"] else Obstacle(found["reason"], found["fix"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{path} does not say whether '{pipeline}' can run", path=path) from error


def read_note(path: Path) -> dict[str, Any]:
    """Read the note of a skipped stage or method: `reason`, and what else it has.

    Raises:
        ArtifactError: it is damaged.
    """
    fix = f"delete {path}, then run the stage again"
    found = read_json(path, fix=fix)
    if not isinstance(found, dict) or not isinstance(found.get("reason"), str):
        raise ArtifactError(f"{path} does not say why the stage was skipped", fix=fix)
    return found


def folder_of(layout: Layout, stage: str, name: str | None = None) -> Path:
    """Results folder of a stage, or that of one entry of the list that it runs for, e.g. of a method."""
    if name is not None:
        return layout.stage("train" if stage == "finetune" else stage) / name
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
    note = read_note(path)
    return Obstacle(note["reason"], note.get("fix"))


def obstacle_of(layout: Layout, config: Config, stage: str) -> Obstacle | None:
    """What prevents a stage from running: an entry of the inventory, or a note in place of its inputs."""
    spec = STAGES[stage]
    if spec.needs_machine and layout.pipeline is not None:
        found = read_inventory(layout.root, layout.pipeline)
        if found is not None:
            return found
    if not spec.reads:
        return None
    upstream = spec.reads[0]
    entries = STAGES[upstream].for_each
    if entries is None:
        return note_of(folder_of(layout, upstream), upstream)
    names = config.trained if upstream == "train" else getattr(config, entries)
    notes = [note_of(folder_of(layout, upstream, name), upstream) for name in names]
    # one method that was trained is enough to go on with
    return notes[0] if notes and all(notes) else None


def remove_note(layout: Layout, stage: str, name: str | None = None) -> None:
    """Remove the note of a stage that is about to run."""
    (folder_of(layout, stage, name) / SKIPPED_FILE).unlink(missing_ok=True)


def leave_out(layout: Layout, stage: str, obstacle: Obstacle, name: str | None = None) -> bool:
    """Write the note of a stage that cannot run, and the other folders that dvc.yaml declares; existing results stay.

    Args:
        name: entry of the list that the stage runs for, e.g. the method.

    Returns:
        Whether the stage was skipped; False: it has results, which stay.
    """
    folder = folder_of(layout, stage, name)
    if is_finished(folder, stage):
        return False
    for other in STAGES[stage].beside:
        # DVC fails if a declared output is missing
        layout.stage(other).mkdir(parents=True, exist_ok=True)
    method = {} if name is None else {"method": name}
    write_json(folder / SKIPPED_FILE, {**method, "reason": obstacle.reason, "fix": obstacle.fix})
    return True
