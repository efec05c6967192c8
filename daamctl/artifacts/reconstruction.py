"""Files of a pipeline that reconstructs images.

`data/crop/<run>/crops.parquet` has one row per crop. `data/reconstruct/<run>/<arm>/seed<N>/` has one training:
weights.safetensors, examples.safetensors (reconstructions of the examples as uint8 (E, 3, S, S), the mean weight of
every channel before and after training), scores.parquet (one row per test crop), history.parquet, and result.json,
which is written last. `data/score/<run>/` compares the arms: score.json and tables (`daamctl.artifacts.scores`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import InstanceOf

from daamctl.artifacts.scores import Scores, read_table, table_file
from daamctl.artifacts.utterances import frame_key
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.tables import read_frame, write_frame

CROPS = "crops.parquet"
RESULT = "result.json"
SCORES = "scores.parquet"
HISTORY = "history.parquet"
EXAMPLES = "examples.safetensors"
WEIGHTS = "weights.safetensors"
SCORE = "score.json"
TABLES_OF_ARMS = ("figures", "scores", "comparisons")
METRICS = {"psnr": ("PSNR (dB)", +1), "ssim": ("SSIM", +1), "l1": ("L1", -1), "l2": ("L2", -1)}
"""Score of reconstructions -> its name in texts, and +1 if more is better, -1 if less is; the first one ranks."""
COLUMNS: dict[str, Any] = {
    "crop_id": pl.String,
    "utterance_id": pl.String,
    "path": pl.String,
    "index": pl.Int64,
    "left": pl.Int32,
    "top": pl.Int32,
    "part": pl.String,
}
"""Columns of the table of crops. `left` and `top` are in pixels of the scaled image; part is train or test."""


@dataclass(frozen=True)
class Crops:
    """The table of crops.

    Args:
        corpus: key under which the corpus is registered.
        rows: see `COLUMNS`.
        settings: those of `crop`.
        content: hash of the images.
    """

    corpus: str
    rows: pl.DataFrame
    settings: dict[str, Any]
    content: str

    @cached_property
    def key(self) -> str:
        """Hash of all that decides the pixels of the crops."""
        shape = {name: self.settings[name] for name in ("size", "resize")}
        return frame_key(self.rows) + f"-{self.content}-{shape['size']}-{shape['resize']}"

    def part(self, name: str) -> pl.DataFrame:
        """The crops of `train` or `test`."""
        return self.rows.filter(pl.col("part") == name)


def write_crops(path: Path, crops: Crops) -> None:
    """Write the table atomically."""
    head = {"corpus": crops.corpus, "settings": crops.settings, "content": crops.content}
    write_frame(path, crops.rows, {**head, "rows": frame_key(crops.rows)})


def read_crops(path: Path) -> Crops:
    """Read the table.

    Raises:
        ArtifactError: it is missing, damaged or changed.
    """
    rows, head = read_frame(path)
    if not {"corpus", "settings", "content", "rows"} <= head.keys() or set(COLUMNS) - set(rows.columns):
        raise ArtifactError(f"{path} is not a table of crops", path=path)
    if frame_key(rows) != head["rows"]:
        raise ArtifactError(f"{path} was changed after it was written: its content does not match its hash", path=path)
    return Crops(head["corpus"], rows, head["settings"], head["content"])


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """One training of one arm.

    Args:
        key: of everything that can change it.
        seed: of the start and of the order of crops.
        settings: those of `reconstruct`.
        perplexity: of the codes over the test crops.
        used: codes that the test crops use.
        change: block -> |block(x) - x| / |x| over the examples, before and after training.
        train_s: seconds of training.
        crops_per_s: training crops per second.
        peak_bytes: memory of the GPU; None on a CPU.
        files: hashes of the files beside it.
    """

    key: str
    arm: str
    seed: int
    settings: dict[str, Any]
    parameters: int
    block_parameters: list[int]
    steps: int
    perplexity: float
    used: int
    change: dict[str, tuple[float, float]]
    train_s: float
    crops_per_s: float
    peak_bytes: int | None
    precision: str
    device: str
    meta: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)


def training_of(arm: Path, seed: int, *, key: str = "", work: Path | None = None) -> Artifact[Reconstruction]:
    """A training in the folder of its arm.

    Args:
        key: content key with which it is kept.
        work: folder for unfinished work on the same file system.
    """
    name = f"{arm.name}-seed{seed}"
    return Artifact(arm / f"seed{seed}" / RESULT, Reconstruction, keys=[key], work=work and work / name, what=name)


@dataclass(frozen=True, kw_only=True)
class ArmScores:
    """Comparison of all arms. Its figures are in tables (`daamctl.artifacts.scores`), where an arm is a method.

    Args:
        reference: arm that the others are compared with.
        arms: arm -> keys of its trainings, by seed, in the order of the pipeline.
        files: hashes of the tables beside it.
        scores: the tables, which are not in the record.
    """

    run: str
    reference: str
    arms: dict[str, list[str]]
    train_crops: int
    steps: int
    files: dict[str, str] = field(default_factory=dict)
    scores: InstanceOf[Scores] = field(default_factory=Scores)


def read_arm_scores(folder: Path) -> ArmScores:
    """The comparison in the folder of a run, with its tables; raises ArtifactError, see `Artifact.open`."""
    found = Artifact(folder / SCORE, ArmScores).open()
    frames = {name: read_table(table_file(folder, name)) for name in TABLES_OF_ARMS}
    return replace(found, scores=Scores("image", frames))
