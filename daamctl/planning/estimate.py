"""Estimate disk and memory by arithmetic: items, layers, parameters and bytes.

Numbers of items come from the embeddings or the clip table, or before these exist from the published counts of the
corpus. Encoders and methods are built on torch's meta device, so no weights are read. Sizes are in bytes.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from daamctl.artifacts.embeddings import EmbeddingsMetadata, is_held
from daamctl.artifacts.skipped import Obstacle, folder_of
from daamctl.artifacts.splits import Split, fold_groups, split_of
from daamctl.config import Config, TrainingStage
from daamctl.corpora.corpus_stats import corpus_stats_of
from daamctl.data.task import task_of
from daamctl.devices import resolve_device
from daamctl.encoders.encoder_size import EncoderSize, encoder_size_of
from daamctl.errors import MethodError, TrainingError
from daamctl.fit.features import POOL_CLIPS, Features, gpu_room
from daamctl.fit.trial import FoldSpec, FusionTrial, build_method, candidates_of
from daamctl.methods import CLOSED_FORM
from daamctl.methods.ridge import MAX_KERNEL_CLIPS
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.rows import Row

FeatureSource = Literal["memory", "device", "stream"]
"""Where training reads features from: memory, the GPU, or the disk in every epoch."""
ROW_BYTES = 150
"""Approximate size of a clip in a table, or of its predictions without the logits."""
ADAM_BYTES = 12
"""Bytes per trained number besides itself: its gradient and Adam's two moments."""


@dataclass(frozen=True)
class MethodSize:
    """Size of a method, known without training it.

    Args:
        scored: whether its layers get a score, which the audit of `importance` tests.
    """

    num_parameters: int
    density: bool
    scored: bool


def method_size(method: str, config: Config, sizes: tuple[int, int, int]) -> MethodSize:
    """Size of a method, built on the meta device.

    Args:
        method: a name from the table of methods.
        sizes: L, D and C.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it does not fit these sizes, or the settings.
    """
    with torch.device("meta"):
        model = build_method(method, config, *sizes)
    scored = model.has_density or model.weighs_layers
    return MethodSize(sum(value.numel() for value in model.state_dict().values()), model.has_density, scored)


class ResourceEstimate:
    """Sizes of a pipeline's work.

    Attributes:
        stats: number, lengths and groups of the items, as far as they are known.
        splits: one per fold; empty if the items are unknown or cannot be split.
        no_split: why the items cannot be split, or None.
        copies: how many copies of each fold are kept; a local tracking store keeps the second.
    """

    def __init__(self, status: ArtifactStatus) -> None:
        self.status, self.config = status, status.config
        self.stats = corpus_stats_of(self.config, status.utterances, status.clips)
        self.splits, self.no_split = self._make_splits()
        self.copies = 1 if os.environ.get("MLFLOW_TRACKING_URI") else 2

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Fold and seed of every training of a method; empty if the folds are not known yet."""
        return self.runs_of("train")

    def runs_of(self, stage: TrainingStage) -> list[tuple[int, int]]:
        """Fold and seed of every training of a stage; empty if the folds are not known yet."""
        return [(split.fold, seed) for split in self.splits for seed in self.config.seeds_of(stage)]

    @functools.cached_property
    def encoder_size(self) -> EncoderSize | None:
        """Size of the encoder; None if nothing on this machine tells it."""
        if self.stats.modality is None or not self.config.has_encoder:
            return None
        return encoder_size_of(self.config.extract, self.stats.modality)

    @property
    def given(self) -> dict[str, Any]:
        """Facts of the file of given embeddings; empty if there is none, or it is not known yet."""
        return self.status.utterances.facts if self.status.utterances is not None else {}

    @property
    def storage(self) -> str:
        """Number format of the stored vectors."""
        return str(self.given.get("storage", self.config.extract.storage))

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int] | None:
        """L (without layer 0), D and C; None if they are not known yet."""
        head = self.status.head
        if head is not None:
            return sum(layer > 0 for layer in head.layers), head.embed_dim, len(head.classes)
        if self.given and self.stats.classes:
            return sum(layer > 0 for layer in self.given["layers"]), self.given["embed_dim"], self.stats.classes
        if self.encoder_size is None or self.stats.classes is None:
            return None
        return self.encoder_size.num_layers, self.encoder_size.embed_dim, self.stats.classes

    @functools.cached_property
    def num_items(self) -> int | None:
        """Number of clips, texts or images; None if it is not known yet."""
        return None if self.stats.rows is None else len(self.stats.rows)

    @property
    def vector_numbers(self) -> int:
        """L x D; 0 if they are not known yet."""
        return self.sizes[0] * self.sizes[1] if self.sizes else 0

    @property
    def vector_bytes(self) -> int:
        """Bytes of all layers of one clip in training; 0 if not known yet."""
        return self.vector_numbers * np.dtype(self.storage).itemsize

    @property
    def finetune_dtype(self) -> torch.dtype:
        """Number format of the weights in fine-tuning."""
        name = self.config.extract.weights_dtype
        dtype: torch.dtype = getattr(torch, "float32" if name == "auto" else name)
        return dtype

    def items(self) -> str:
        """Number of items as text, e.g. `353 clips, 0.25 h`."""
        if self.num_items is None or self.stats.modality is None:
            return "not known yet"
        sign = "≥ " if self.stats.at_least else "≈ " if self.stats.about else ""
        text = f"{sign}{self.num_items:,} {task_of(self.stats.modality).clip}s"
        if self.stats.modality == "speech" and self.stats.lengths is not None:
            text += f", {self.stats.lengths.sum() / 3600:.2f} h"
        return text

    def method(self, method: str, layers: int | None = None) -> tuple[MethodSize | None, Obstacle | None]:
        """Size of a method over all layers or `layers` of them, or why it cannot be built."""
        if self.sizes is None:
            return None, None
        try:
            return method_size(method, self.config, (layers or self.sizes[0], *self.sizes[1:])), None
        except MethodError as error:
            return None, Obstacle(error.message, error.fix)

    def feature_source(self) -> FeatureSource | None:
        """Where training will read the features from; None if their size is not known yet."""
        if self.num_items is None or self.sizes is None:
            return None
        nbytes = self.num_items * self.vector_bytes
        wanted, device = self.config.train.features, resolve_device(self.config.train.device)
        if wanted != "stream" and nbytes <= gpu_room(device, 1):
            return "device"
        return "memory" if is_held(nbytes, wanted) else "stream"

    def training_bytes(self, beside: int) -> int | None:
        """Memory of training: the features, and `beside` bytes of everything else."""
        source = self.feature_source()
        if source is None or self.num_items is None:
            return None
        clips = {
            "memory": 2 * self.num_items,  # all features, and the parts of a fold
            "device": self.num_items,
            "stream": min(self.num_items, POOL_CLIPS + 2 * self.config.extract.shard_clips),
        }
        return beside + self.vector_bytes * clips[source]

    def state_bytes(self, method: str, size: MethodSize, layers: int | None = None) -> int:
        """Memory of everything that training a method holds besides the features.

        Args:
            method: a name from the table of methods.
            layers: number of layers; None: all.

        Raises:
            MethodError: it does not fit these sizes, or the settings.
        """
        if method in CLOSED_FORM:
            return 4 * size.num_parameters + self._kernel_bytes(method)
        return self.trainings(method, layers) * (4 + ADAM_BYTES) * size.num_parameters

    def trainings(self, method: str, layers: int | None = None) -> int:
        """Number of models held at once: those of a stack.

        Raises:
            MethodError: it does not fit these sizes, or the settings.
        """
        wanted = len(candidates_of(method, self.config)) * len(self.runs)
        return max(1, min(self._most_members(method, layers), wanted))

    def _most_members(self, method: str, layers: int | None) -> int:
        """Largest number of trainings that can run jointly, as training itself will decide."""
        source, device = self.feature_source(), resolve_device(self.config.train.device)
        if self.sizes is None or self.num_items is None or source in (None, "stream"):
            return 1
        num_layers, dim, classes = self.sizes
        numbers = tuple(range(1, (layers or num_layers) + 1))
        head = EmbeddingsMetadata("", "", tuple(map(str, range(classes))), numbers, dim, {}, {}, self.num_items)
        dtype = getattr(torch, self.storage)
        one = torch.empty(1, dtype=dtype, device=device if source == "device" else "cpu")
        x = one.expand(self.num_items, len(numbers), dim)  # the right shape without the memory
        spec = FoldSpec("", method, 1, 0, self.config)
        return FusionTrial(spec, Features(head, pl.DataFrame(), x, numbers)).most_members

    def _kernel_bytes(self, method: str) -> int:
        """Memory of the inner products of the training clips and of the copy that is solved, in float32."""
        if method != "ridge-concat":
            return 0
        clips = min(max((len(split.train) for split in self.splits), default=0), MAX_KERNEL_CLIPS)
        return 2 * 4 * clips**2

    def table_bytes(self) -> int | None:
        """Disk of the utterance or clip table."""
        return None if self.num_items is None else self.num_items * ROW_BYTES

    def embeddings_bytes(self) -> int | None:
        """Disk of the embeddings."""
        if self.given and self.num_items is not None:
            numbers = len(self.given["layers"]) * int(self.given["embed_dim"])
            return self.num_items * numbers * np.dtype(self.storage).itemsize
        if self.encoder_size is None or self.num_items is None:
            return None
        layers = self.encoder_size.num_layers + self.config.extract.layer_00
        return self.num_items * layers * self.encoder_size.embed_dim * np.dtype(self.config.extract.storage).itemsize

    def fold_bytes(self, weights: int, stage: TrainingStage = "train") -> int | None:
        """Disk of all folds of one method, each with `weights` bytes of weights."""
        if not self.splits or self.stats.classes is None:
            return None
        tested = sum(len(split.test) for split in self.splits)
        each_seed = len(self.splits) * weights + tested * (ROW_BYTES + 4 * self.stats.classes)
        return self.copies * len(self.config.seeds_of(stage)) * each_seed

    def fill_disk(self, row: Row, whole: int | None) -> Row:
        """Fill in the disk of a row: the size on disk if it is done, otherwise the estimate and what is left of it."""
        if row.is_done:
            folder = folder_of(self.status.layout, row.stage, row.method)
            row.disk_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            row.disk_left_bytes = 0
        elif whole is not None:
            row.disk_bytes = whole
            row.disk_left_bytes = round(whole * (1 - row.done / row.total)) if row.total else whole
        return row

    def _make_splits(self) -> tuple[list[Split], Obstacle | None]:
        rows = self.stats.rows
        if rows is None:
            return [], None
        numbers = range(1, len(fold_groups(rows["group"])) + 1)
        try:
            return [split_of(rows, number, self.config.train) for number in numbers], None
        except TrainingError as error:
            return [], Obstacle(error.message, error.fix)
