"""What a pipeline needs: how much there is to do, and the disk and memory that it takes.

Sizes come from the embeddings or the clip table, else from the corpus's known counts; of the encoder only its outline
is read, of a method only its parameters are counted. Sizes are in bytes.
"""

from __future__ import annotations

import functools
import os
from typing import Literal

import numpy as np
import polars as pl
import torch

from daamctl.artifacts.embeddings import EmbeddingsMetadata, is_held
from daamctl.artifacts.skipped import Obstacle, folder_of
from daamctl.artifacts.splits import Split, fold_groups, split_of
from daamctl.artifacts.terms import terms_of
from daamctl.config import TrainingStage
from daamctl.corpora.corpus_stats import corpus_stats_of
from daamctl.devices import resolve_device
from daamctl.encoders.encoder_size import EncoderSize, encoder_size_of
from daamctl.errors import MethodError, TrainingError
from daamctl.methods import CLOSED_FORM
from daamctl.methods.ridge import MAX_KERNEL_CLIPS
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.rows import Row
from daamctl.training.feature_split import POOL_CLIPS
from daamctl.training.features import Features, gpu_room
from daamctl.training.search import grid_of
from daamctl.training.timing import ADAM_BYTES, MethodSize, method_size
from daamctl.training.trial import FoldSpec
from daamctl.training.trials.fusion import most_members

Way = Literal["memory", "device", "stream"]
"""Where training takes features from: memory, a GPU that holds them all, or the disk, epoch by epoch."""
ROW_BYTES = 150
"""About, of a clip in a table, or of its predictions beside the logits."""


class ResourceEstimate:
    """Sizes of a pipeline's work.

    Args:
        present: what is finished.

    Attributes:
        material: the items, as far as they are known.
        splits: of every fold; none where the items are not known, or cannot be split: then `no_split` says why.
        copies: of every fold that are kept; the local tracking store has one.
    """

    def __init__(self, present: ArtifactStatus) -> None:
        self.present, self.config = present, present.config
        self.material = corpus_stats_of(self.config, present.utterances, present.clips)
        self.splits, self.no_split = self._make_splits()
        self.copies = 1 if os.environ.get("MLFLOW_TRACKING_URI") else 2

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Fold and seed of every run of a method; none where folds are not known yet."""
        return self.runs_of("train")

    def runs_of(self, stage: TrainingStage) -> list[tuple[int, int]]:
        """Fold and seed of everything that a stage trains; none where folds are not known yet."""
        return [(split.fold, seed) for split in self.splits for seed in self.config.seeds_of(stage)]

    @functools.cached_property
    def outline(self) -> EncoderSize | None:
        """Size of the encoder; None: not known here."""
        return None if self.material.modality is None else encoder_size_of(self.config.extract, self.material.modality)

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int] | None:
        """L (without layer 0), D and C; None: not known yet."""
        head = self.present.head
        if head is not None:
            return sum(layer > 0 for layer in head.layers), head.embed_dim, len(head.classes)
        if self.outline is None or self.material.classes is None:
            return None
        return self.outline.num_layers, self.outline.embed_dim, self.material.classes

    @property
    def vector_numbers(self) -> int:
        """L x D."""
        return self.sizes[0] * self.sizes[1] if self.sizes else 0

    @functools.cached_property
    def number(self) -> int | None:
        """Clips, texts or images; None: not known yet."""
        return None if self.material.rows is None else len(self.material.rows)

    @functools.cached_property
    def vector_bytes(self) -> int | None:
        """Bytes that the layers of one clip take in training."""
        if self.sizes is None:
            return None
        return self.sizes[0] * self.sizes[1] * np.dtype(self.config.extract.storage).itemsize

    def way(self, layers: int | None = None) -> Way | None:
        """Where training takes the features of all layers or so many from, as it will decide; None: not known yet."""
        if self.number is None or self.vector_bytes is None or self.sizes is None:
            return None
        nbytes = self.number * self.vector_bytes * (layers or self.sizes[0]) // self.sizes[0]
        wanted, device = self.config.train.features, resolve_device(self.config.train.device)
        if wanted != "stream" and nbytes <= gpu_room(device, 1):
            return "device"
        return "memory" if is_held(nbytes, wanted) else "stream"

    def members(self, method: str, layers: int | None = None) -> int:
        """How many trainings of a method over all layers or so many share a program, at most.

        Raises:
            MethodError: it does not fit these sizes, or the settings.
        """
        return min(self._most_members(method, layers), self.trainings(method, layers))

    def trainings(self, method: str, layers: int | None = None) -> int:
        """How many trainings of a method are held at once: of every fold of a group, one for each candidate.

        Raises:
            MethodError: it does not fit these sizes, or the settings.
        """
        grid = None if method in CLOSED_FORM else grid_of(self.config.train)
        candidates = 1 if grid is None else len(grid.candidates)
        return candidates * max(1, min(self._most_members(method, layers), len(self.runs)))

    def state_bytes(self, method: str, size: MethodSize, layers: int | None = None, *, taken: int | None = None) -> int:
        """Memory that the trainings of a method take beside the features.

        Args:
            method: a name from the table of methods.
            size: its size.
            layers: number of layers; None: all.
            taken: measured while one program trained; None: not measured.

        Raises:
            MethodError: it does not fit these sizes, or the settings.
        """
        if method in CLOSED_FORM:
            return (4 * size.num_parameters if taken is None else taken) + self._kernel_bytes(method)
        each, trainings = (4 + ADAM_BYTES) * size.num_parameters, self.trainings(method, layers)
        return trainings * each if taken is None else taken + (trainings - self.members(method, layers)) * each

    def _kernel_bytes(self, method: str) -> int:
        """Memory of the inner products of the training clips and of the copy that is solved, in float32."""
        if method != "ridge-concat":
            return 0
        clips = min(max((len(split.train) for split in self.splits), default=0), MAX_KERNEL_CLIPS)
        return 2 * 4 * clips**2

    def _most_members(self, method: str, layers: int | None) -> int:
        way, device = self.way(layers), resolve_device(self.config.train.device)
        if self.sizes is None or self.number is None or way in (None, "stream"):
            return 1
        number, dim, classes = self.sizes
        stored = tuple(range(1, (layers or number) + 1))
        head = EmbeddingsMetadata("", "", tuple(map(str, range(classes))), stored, dim, {}, {}, self.number)
        one = torch.empty(
            1, dtype=getattr(torch, self.config.extract.storage), device=device if way == "device" else "cpu"
        )
        features = Features(head, pl.DataFrame(), one.expand(self.number, len(stored), dim), stored)
        return most_members(FoldSpec("", method, 1, 0, self.config), features)

    @property
    def tuned_dtype(self) -> torch.dtype:
        """Number format in which fine-tuning holds the weights."""
        held = self.config.extract.weights_dtype
        dtype: torch.dtype = getattr(torch, "float32" if held == "auto" else held)
        return dtype

    def items(self) -> str:
        """What there is, in words."""
        material = self.material
        if self.number is None or material.modality is None:
            return "not known yet"
        sign = "≥ " if material.at_least else "≈ " if material.about else ""
        text = f"{sign}{self.number:,} {terms_of(material.modality).clip}s"
        if material.modality == "speech" and material.lengths is not None:
            text += f", {material.lengths.sum() / 3600:.2f} h"
        return text

    def method(self, method: str, layers: int | None = None) -> tuple[MethodSize | None, Obstacle | None]:
        """Size of a method over all layers or so many, or why it cannot be built."""
        if self.sizes is None:
            return None, None
        try:
            return method_size(method, self.config, (layers or self.sizes[0], *self.sizes[1:])), None
        except MethodError as error:
            return None, Obstacle(error.message, error.fix)

    def table_bytes(self) -> int | None:
        """Disk of the utterance or clip table."""
        return None if self.number is None else self.number * ROW_BYTES

    def embeddings_bytes(self) -> int | None:
        """Disk of the embeddings."""
        if self.outline is None or self.number is None:
            return None
        layers = self.outline.num_layers + self.config.extract.layer_00
        return self.number * layers * self.outline.embed_dim * np.dtype(self.config.extract.storage).itemsize

    def fold_bytes(self, weights: int, stage: TrainingStage = "train") -> int | None:
        """Disk of all folds of one method with so many bytes of weights each."""
        if not self.splits or self.material.classes is None:
            return None
        seeds, tested = len(self.config.seeds_of(stage)), sum(len(split.test) for split in self.splits)
        each = len(self.splits) * weights + tested * (ROW_BYTES + 4 * self.material.classes)
        return self.copies * seeds * each

    def training_bytes(self, beside: int) -> int | None:
        """Memory of the features as training takes them, and of what is beside them."""
        way = self.way()
        if way is None or self.number is None or self.vector_bytes is None:
            return None
        pool = min(self.number, POOL_CLIPS + 2 * self.config.extract.shard_clips)
        return beside + self.vector_bytes * {"memory": 2 * self.number, "device": self.number, "stream": pool}[way]

    def fill_disk(self, row: Row, whole: int | None) -> Row:
        """Disk: what is there if it is done, else what all of it will take, and what is still to be written."""
        if row.state == "done":
            folder = folder_of(self.present.layout, row.stage, row.method)
            row.disk_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            row.disk_left_bytes = 0
        elif whole is not None:
            row.disk_bytes = whole
            row.disk_left_bytes = round(whole * (1 - row.done / row.total)) if row.total else whole
        return row

    def _make_splits(self) -> tuple[list[Split], Obstacle | None]:
        rows = self.material.rows
        if rows is None:
            return [], None
        numbers = range(1, len(fold_groups(rows["group"])) + 1)
        try:
            return [split_of(rows, number, self.config.train) for number in numbers], None
        except TrainingError as error:
            return [], Obstacle(error.message, error.fix)
