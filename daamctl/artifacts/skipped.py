"""Stages left out because they cannot run here: `skipped.json` = {reason, fix} in the place of results.

`daamctl check --inventory` says of every pipeline whether it can run (`data/inventory/<pipeline>.json`, see
`daamctl.stages.inventory`). With `--if-possible`, as in dvc.yaml, a stage that cannot run leaves a note and succeeds,
and so does each stage that would read its results; DVC then goes on with the other pipelines. Finished results are
never replaced by a note: where a corpus is gone, what was made from it stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daamctl.artifacts.io import read_json, write_json, write_text
from daamctl.artifacts.results import SKIPPED_FILE
from daamctl.config import Config
from daamctl.layout import Layout
from daamctl.stage_table import STAGES


@dataclass(frozen=True)
class Obstacle:
    """Why a pipeline or stage cannot run here.

    Args:
        reason: what is missing.
        fix: how to get it.
    """

    reason: str
    fix: str | None = None


def inventory_file(root: Path, pipeline: str) -> Path:
    """Where the inventory says whether a pipeline can run."""
    return root / "data" / "inventory" / f"{pipeline}.json"


def folder_of(layout: Layout, stage: str, name: str | None = None) -> Path:
    """Where a stage's results lie, of `train` and `finetune` those of the method `name`."""
    if name is not None:
        return layout.method(name)
    own = {"download": layout.utterances.parent, "segment": layout.clips.parent, "extract": layout.embeddings}
    return own.get(stage) or layout.stage(stage)


def is_finished(folder: Path, stage: str) -> bool:
    """Whether a stage has results in its folder; the empty files beside a note do not count."""
    return any(path.stat().st_size for path in folder.glob(STAGES[stage].finished))


def note_of(folder: Path, stage: str) -> Obstacle | None:
    """Why a stage was left out; None where it was not, or has results all the same."""
    path = folder / SKIPPED_FILE
    if not path.is_file() or is_finished(folder, stage):
        return None
    note = read_json(path)
    return Obstacle(note["reason"], note["fix"]) if "fix" in note else None  # without: a method that is not listed


def obstacle_of(layout: Layout, config: Config, stage: str) -> Obstacle | None:
    """What keeps a stage from running: the inventory's word, or a note in the place of what it reads.

    Args:
        layout: where artifacts lie.
        config: all settings.
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
    """Write the note of a stage that cannot run, and the files that dvc.yaml declares; results that are there stay.

    Args:
        layout: where artifacts lie.
        stage: the stage.
        obstacle: what keeps it from running.
        name: method, of `train` and `finetune`.

    Returns:
        Whether it was left out; False: its results stay.
    """
    folder = folder_of(layout, stage, name)
    if is_finished(folder, stage):
        return False
    for file, text in STAGES[stage].declared.items():
        write_text(folder / file, text)
    method = {} if name is None else {"method": name}
    write_json(folder / SKIPPED_FILE, {**method, "reason": obstacle.reason, "fix": obstacle.fix})
    return True


def _all_of(notes: Iterable[Obstacle | None]) -> Obstacle | None:
    """The first of the notes if there is nothing but notes."""
    found = list(notes)
    return found[0] if found and all(found) else None
