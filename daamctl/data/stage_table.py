"""The stages of a pipeline, declared once: order, what each reads and writes, and what it needs of the machine.

The folders (`layout`), the order of `daamctl run`, the commands, what DVC watches (`daamctl check --inventory`), what
this machine may have to leave out (`artifacts.skipped`) and the tests of dvc.yaml all follow this table.
CONTRIBUTING.md lists the files of a new stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["classify", "reconstruct"]


@dataclass(frozen=True)
class StageSpec:
    """One stage.

    Args:
        name: the command, the module in `daamctl.stages` and the folder below `data`.
        help: what it does, for `daamctl --help`.
        finished: the file that it writes last, or a pattern for it, in its folder.
        reads: stages whose results it reads. Without results of the first one it has nothing to do.
        watches: sections of the settings, or lists of a pipeline, that it runs again for. DVC compares their values.
        unit: what there is to do of it, in the plural.
        for_each: the list of a pipeline for whose entries it runs one at a time; None: it runs once per pipeline.
        code: part of the package for whose code it runs again; content keys then decide what is still valid.
        needs_machine: it needs a corpus, weights or a GPU, so it asks the inventory of this machine.
        beside: folders below `data` in which it also writes a folder of the run.
        task: of the pipelines that have the stage; None: all have it.
    """

    name: str
    help: str
    finished: str
    unit: str = "tables"
    reads: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()
    for_each: str | None = None
    code: Literal["methods", "adapters"] | None = None
    needs_machine: bool = False
    tracked: bool = False
    beside: tuple[str, ...] = ()
    task: Task | None = "classify"


STAGES: dict[str, StageSpec] = {
    spec.name: spec
    for spec in (
        StageSpec(
            "download",
            "Download a corpus or register a local copy, validate it, and write its utterance table.",
            "utterances.parquet",
            watches=("download",),
            needs_machine=True,
            task=None,
        ),
        StageSpec(
            "segment",
            "Cut recordings into clips of at most 5 s. Writes a table, copies no audio. Texts and images stay whole.",
            "clips.parquet",
            reads=("download",),
            watches=("segment", "download"),
        ),
        StageSpec(
            "extract",
            "Embed every clip, text or image: one vector per encoder layer, averaged over frames, tokens or patches.",
            "embeddings.json",
            unit="clips",
            reads=("segment",),
            watches=("extract",),
            needs_machine=True,
        ),
        StageSpec(
            "train",
            "Train one method on every fold or one. Finished folds made from identical inputs are kept.",
            "fold*-seed*/result.json",
            unit="folds",
            reads=("extract",),
            watches=("train",),
            for_each="methods",
            code="methods",
            tracked=True,
        ),
        StageSpec(
            "finetune",
            "Fine-tune the encoder on every fold or one, with an adapter or fully. Finished folds are kept.",
            "fold*-seed*/result.json",
            unit="folds",
            reads=("segment",),
            watches=("finetune", "train", "extract"),
            for_each="finetunes",
            code="adapters",
            needs_machine=True,
            tracked=True,
        ),
        StageSpec(
            "evaluate",
            "Score every method per clip and per utterance, and test each one against the reference.",
            "evaluation.json",
            reads=("train",),
            watches=("evaluate", "trained", "seeds"),
            beside=("metrics",),
        ),
        StageSpec(
            "ablate",
            "Retrain on the layers of highest and of lowest importance, and compare the results.",
            "ablation.json",
            unit="folds",
            reads=("extract", "train"),
            watches=("ablate", "evaluate", "train", "methods"),
            code="methods",
            tracked=True,
        ),
        StageSpec(
            "importance",
            "Compute Importance Factor maps of trained and untrained methods, and test if layer scores can be trusted.",
            "summary.json",
            reads=("train", "extract", "ablate"),
            watches=("importance", "methods"),
        ),
        StageSpec(
            "report",
            "Write the report: report.html, report.md, and every table as CSV and LaTeX.",
            "report.html",
            unit="pages",
            reads=("evaluate", "train", "importance", "ablate"),
            watches=("report", "trained"),
            tracked=True,
            beside=("plots",),
        ),
        StageSpec(
            "crop",
            "Choose square crops of images, for pipelines that reconstruct them. Writes a table and copies no pixels.",
            "crops.parquet",
            reads=("download",),
            watches=("crop",),
            task="reconstruct",
        ),
        StageSpec(
            "reconstruct",
            "Train a VQ-VAE with one kind of block, once per seed. Trainings made from identical inputs are kept.",
            "seed*/result.json",
            unit="trainings",
            reads=("crop",),
            watches=("reconstruct",),
            for_each="reconstructions",
            task="reconstruct",
        ),
        StageSpec(
            "score",
            "Compare reconstructions with different blocks, image by image, and write the report with pictures.",
            "score.json",
            reads=("reconstruct", "crop"),
            watches=("score", "reconstructions", "reconstruct"),
            tracked=True,
            beside=("report", "plots"),
            task="reconstruct",
        ),
    )
}
"""Stage -> what it is, in the order in which they run."""


def stages_of_task(task: Task) -> dict[str, StageSpec]:
    """The stages of pipelines with a task, in order."""
    return {name: spec for name, spec in STAGES.items() if spec.task in (None, task)}


def steps_of(config: Any) -> list[tuple[str, str | None]]:
    """What a pipeline runs, in order: stages, each with the entry of the list that it runs for, or None."""
    return [
        (name, entry)
        for name, spec in stages_of_task(config.task).items()
        for entry in (getattr(config, spec.for_each) if spec.for_each else (None,))
    ]


def folder_stages() -> tuple[str, ...]:
    """The stages of classification that have a folder of their own; that of `finetune` is the folder of `train`."""
    return tuple(name for name in stages_of_task("classify") if name != "finetune")
