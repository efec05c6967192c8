"""Files of a pipeline that reconstructs images.

`data/crop/<run>/crops.parquet` has one row per crop. `data/reconstruct/<run>/<arm>/seed<N>/` has one training:
weights.safetensors, examples.safetensors (reconstructions of the examples as uint8 (E, 3, S, S), the mean weight of
every channel before and after training), scores.parquet (one row per test crop), history.parquet, and result.json,
which is written last. `data/score/<run>/score.json` compares the arms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.statistics import Interval, SignFlipTest
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
class ScoreOf:
    """One score of one arm, over all test images and seeds.

    Args:
        value: mean over images; seeds and the crops of an image are averaged first.
        difference: minus the reference, paired by image; None for the reference itself.
        test: sign-flip test of the difference, with Holm's correction over arms.
        detectable: smallest difference that a paired t-test on these images would detect.
    """

    value: float
    by_seed: list[float]
    interval: Interval
    difference: float | None = None
    difference_by_seed: list[float] = field(default_factory=list)
    difference_interval: Interval | None = None
    test: SignFlipTest | None = None
    detectable: float | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredArm:
    """One arm.

    Args:
        scores: score -> figures.
        crops_per_s: training speed, by seed.
        peak_bytes: memory of the GPU, by seed.
    """

    arm: str
    scores: dict[str, ScoreOf]
    perplexity: list[float]
    used: list[int]
    block_parameters: list[int]
    parameters: int
    crops_per_s: list[float]
    peak_bytes: list[int | None]
    keys: list[str]


@dataclass(frozen=True, kw_only=True)
class ArmScores:
    """Comparison of all arms.

    Args:
        reference: arm that the others are compared with.
        images: test images, the unit of intervals and tests.
        arms: in the order of the pipeline.
    """

    run: str
    reference: str
    seeds: list[int]
    images: int
    crops: int
    train_crops: int
    steps: int
    arms: list[ScoredArm]
