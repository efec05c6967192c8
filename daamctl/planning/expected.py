"""What a pipeline has, and what it will have as far as this machine can tell before it runs. Nothing is written.

Tables, embeddings and fine-tuned encoders count if they were made with the present settings, folds of methods if their
stage would keep them. What is missing is expected: numbers of items from the published counts of the corpus, sizes of
encoders and methods from torch's meta device, where no weights are read. Sizes are in bytes.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch

from daamctl.artifacts.embeddings import (
    EmbeddingsMetadata,
    check_settings,
    embeddings_in,
    finished_sets,
    read_head,
    with_keys,
)
from daamctl.artifacts.inputs import clips_of, crops_of, embeddings_of, utterances_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import CROPS
from daamctl.artifacts.results import Fold, intact_folds
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.splits import Split, fold_groups, split_of
from daamctl.compute.devices import is_held, resolve_device
from daamctl.config import Config, TrainingStage
from daamctl.config.keys import embedding_settings
from daamctl.corpora.corpus_stats import corpus_stats_of
from daamctl.data.stage_table import STAGES
from daamctl.data.task import task_of
from daamctl.encoders.encoder_size import EncoderSize, encoder_size_of
from daamctl.errors import ArtifactError, MethodError, TrainingError
from daamctl.fit.adapter import AdapterTrial, EncoderAndItems, EncoderSource
from daamctl.fit.features import POOL_CLIPS, Features, gpu_room, open_features
from daamctl.fit.runner import kept_folds
from daamctl.fit.trial import FoldSpec, FusionTrial, build_method, candidates_of, trials_of
from daamctl.methods import CLOSED_FORM
from daamctl.methods.probes import concat_bytes
from daamctl.store.files import content_key
from daamctl.store.tables import METADATA_KEY

T = TypeVar("T")
FeatureSource = Literal["memory", "device", "stream"]
"""Where training reads features from: memory, the GPU, or the disk in every epoch."""
ROW_BYTES = 150
"""Approximate size of a clip in a table, or of its predictions without the logits."""
ADAM_BYTES = 12
"""Bytes per trained number besides itself: its gradient and Adam's two moments."""


@dataclass(frozen=True)
class MethodSize:
    """Size of a method; `scored`: its layers get a score, which the audit of `importance` tests."""

    num_parameters: int
    density: bool
    scored: bool


class Expected:
    """The artifacts and sizes of a pipeline.

    Attributes:
        outdated: stage -> why its existing result does not match the settings.
        utterances, clips, crops: the tables; None if they are missing or outdated.
        head: metadata of the embeddings; None likewise.
        stats: number, lengths and groups of the items, as far as they are known.
        splits: one per fold; empty if the items are unknown or cannot be split.
        no_split: why the items cannot be split, or None.
        copies: how many copies of each fold are kept; a local tracking store keeps the second.

    Raises:
        ArtifactError: an artifact is damaged.
    """

    def __init__(self, layout: Layout, config: Config) -> None:
        self.layout, self.config = layout, config
        self.outdated: dict[str, str] = {}
        self.utterances = self._current("download", layout.utterances, utterances_of)
        self.clips = self._current("segment", layout.clips, clips_of)
        self.head = self._current("extract", layout.embeddings / STAGES["extract"].finished, embeddings_of)
        self.crops = self._current("crop", layout.stage("crop") / CROPS, crops_of)
        self.stats = corpus_stats_of(config, self.utterances, self.clips)
        self.copies = 1 if os.environ.get("MLFLOW_TRACKING_URI") else 2
        self.splits: list[Split] = []
        self.no_split: Obstacle | None = None
        if (rows := self.stats.rows) is not None:
            try:
                numbers = range(1, len(fold_groups(rows["group"])) + 1)
                self.splits = [split_of(rows, number, config.train) for number in numbers]
            except TrainingError as error:
                self.no_split = Obstacle(error.message, error.fix)

    def _current(self, stage: str, path: Path, read: Callable[[Layout, Config], T]) -> T | None:
        if not path.exists():
            return None
        try:
            found = read(self.layout, self.config)
            if isinstance(found, EmbeddingsMetadata):
                embeddings_in(self.layout.embeddings).check(found)
        except ArtifactError as error:
            self.outdated[stage] = error.message
            return None
        return found

    def num_runs(self) -> int:
        """Number of trainings of a method: folds x seeds; 0 if the folds are not known yet."""
        return len(self.splits) * len(self.config.seeds_of("train"))

    @functools.cached_property
    def encoder_size(self) -> EncoderSize | None:
        """Size of the encoder; None if nothing on this machine tells it."""
        if self.stats.modality is None or not self.config.has_encoder:
            return None
        return encoder_size_of(self.config.extract, self.stats.modality)

    @property
    def given(self) -> dict[str, Any]:
        """Facts of the file of given embeddings; empty if there is none, or it is not known yet."""
        return self.utterances.facts if self.utterances is not None else {}

    @functools.cached_property
    def vectors(self) -> tuple[tuple[int, ...], int] | None:
        """Stored layers, perhaps with layer 0, and D; None if they are not known yet."""
        if self.head is not None:
            return self.head.layers, self.head.embed_dim
        if self.given:
            return tuple(self.given["layers"]), int(self.given["embed_dim"])
        if (size := self.encoder_size) is None:
            return None
        return tuple(range(1 - self.config.extract.layer_00, size.num_layers + 1)), size.embed_dim

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int] | None:
        """L (without layer 0), D and C; None if they are not known yet."""
        classes = self.stats.classes if self.head is None else len(self.head.classes)
        if self.vectors is None or classes is None:
            return None
        return sum(layer > 0 for layer in self.vectors[0]), self.vectors[1], classes

    @property
    def num_items(self) -> int | None:
        """Number of clips, texts or images; None if it is not known yet."""
        return None if self.stats.rows is None else len(self.stats.rows)

    @property
    def storage(self) -> str:
        """Number format of the stored vectors."""
        return str(self.given.get("storage", self.config.extract.storage))

    @property
    def vector_numbers(self) -> int:
        """L x D; 0 if they are not known yet."""
        return self.sizes[0] * self.sizes[1] if self.sizes else 0

    @property
    def vector_bytes(self) -> int:
        """Bytes of all layers of one clip in training; 0 if not known yet."""
        return self.vector_numbers * np.dtype(self.storage).itemsize

    def items(self) -> str:
        """Number of items as text, e.g. `353 clips, 0.25 h`."""
        if self.num_items is None or self.stats.modality is None:
            return "not known yet"
        sign = "≥ " if self.stats.at_least else "≈ " if self.stats.about else ""
        text = f"{sign}{self.num_items:,} {task_of(self.stats.modality).clip}s"
        if self.stats.modality == "speech" and self.stats.lengths is not None:
            text += f", {self.stats.lengths.sum() / 3600:.2f} h"
        return text

    def extracted_clips(self) -> int:
        """Number of clips in the shards of an interrupted extraction with the present settings."""
        if self.clips is None:
            return 0
        wanted, most = self.clips.rows["clip_id"].implode(), 0
        for folder in (self.layout.work / "extract").glob(f"*-{self.config.extract.shard_clips}"):
            found = 0
            for shard in folder.glob("embeddings-*.parquet"):
                try:
                    file = pq.ParquetFile(shard)
                    made = json.loads(file.metadata.metadata[METADATA_KEY])["settings"]
                    check_settings(made, self.config, self.clips.modality, what="shards", path=shard)
                    ids = pl.Series(file.read(columns=["clip_id"])["clip_id"].to_pylist(), dtype=pl.String)
                except (OSError, ValueError, KeyError, TypeError, ArtifactError):  # damaged, or of other settings
                    continue
                found += len(ids) if ids.is_in(wanted).all() else 0
            most = max(most, found)
        return most

    def same_vectors(self) -> Path | None:
        """Folder of finished embeddings, perhaps of another pipeline, whose shards `extract` will use, if any."""
        if self.clips is None or self.head is not None:
            return None
        settings = embedding_settings(self.config, self.clips.modality)
        for folder in finished_sets(self.layout.data):
            with suppress(ArtifactError):
                found = read_head(folder)
                tolerated = self.config.extract.max_unreadable_fraction * len(self.clips.rows)
                # the encoder is taken to be as it was: its weights are not read for a plan
                ours = with_keys(replace(found, settings=settings), self.clips)
                if ours.vectors_key == found.vectors_key and len(found.unreadable) <= tolerated:
                    return folder
        return None

    @functools.cached_property
    def features(self) -> Features:
        """The embeddings, of which no vectors are read."""
        return open_features(self.layout, self.config)

    def kept(self, method: str, layers: tuple[int, ...] | None = None, folder: Path | None = None) -> list[Fold]:
        """Folds that training a method will keep; none without embeddings, which are part of the key.

        Args:
            layers: on which it is trained; None: all.
            folder: in which the folds are; None: that of the method.
        """
        if self.head is None or not self.splits:
            return []
        features = self.features if layers is None else self.features.subset(layers)
        trials = trials_of(FusionTrial, self.layout, method, features, self.config)
        found = kept_folds(folder or self.layout.method(method), trials)
        return [fold for fold in found.values() if fold is not None]

    def finetuned(self, method: str) -> list[Fold]:
        """Folds that fine-tuning with a method will keep; none without clips, which are part of the key."""
        if self.clips is None or not self.splits:
            return []
        config, folds = self.config.for_adapter(method), intact_folds(self.layout.method(method))
        # the encoder is taken to be as it was: its weights are not read for a plan
        facts = {content_key(made): made for made in (fold.result["meta"]["encoder"] for fold in folds)}
        sources = [EncoderSource(self.clips, _closed, made) for made in facts.values()]
        trials = [trial for one in sources for trial in trials_of(AdapterTrial, self.layout, method, one, config)]
        keys = {trial.key for trial in trials}
        return [fold for fold in folds if fold.result["run"]["key"] in keys]

    def method(self, method: str, layers: int | None = None) -> tuple[MethodSize | None, Obstacle | None]:
        """Size of a method over all layers or `layers` of them, or why it cannot be built."""
        if self.sizes is None:
            return None, None
        try:
            with torch.device("meta"):
                model = build_method(method, self.config, layers or self.sizes[0], *self.sizes[1:])
        except MethodError as error:
            return None, Obstacle(error.message, error.fix)
        scored = model.has_density or model.weighs_layers
        number = sum(value.numel() for value in model.state_dict().values())
        return MethodSize(number, model.has_density, scored), None

    def feature_source(self) -> FeatureSource | None:
        """Where training will read the features from; None if their size is not known yet."""
        if self.num_items is None or self.sizes is None:
            return None
        nbytes, wanted = self.num_items * self.vector_bytes, self.config.train.features
        if wanted != "stream" and nbytes <= gpu_room(resolve_device(self.config.train.device), 1):
            return "device"
        return "memory" if is_held(nbytes, wanted) else "stream"

    def training_bytes(self, beside: int = 0) -> int | None:
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
        """Memory of everything that training a method on `layers` layers (None: all) holds besides the features."""
        if method not in CLOSED_FORM:
            return self.models_at_once(method, layers) * (4 + ADAM_BYTES) * size.num_parameters
        clips = max((len(split.train) for split in self.splits), default=0)
        beside = 0
        if method == "ridge-concat" and self.sizes is not None:
            beside = concat_bytes(clips, layers or self.sizes[0], self.sizes[1])
        return 4 * size.num_parameters + beside

    def models_at_once(self, method: str, layers: int | None = None) -> int:
        """Number of models of a stack, as training itself will decide.

        Raises:
            MethodError: the method does not fit these sizes, or the settings.
        """
        source, device = self.feature_source(), resolve_device(self.config.train.device)
        if self.sizes is None or self.num_items is None or source in (None, "stream"):
            return 1
        num_layers, dim, classes = self.sizes
        numbers = tuple(range(1, (layers or num_layers) + 1))
        head = EmbeddingsMetadata("", "", tuple(map(str, range(classes))), numbers, dim, {}, {}, self.num_items)
        one = torch.empty(1, dtype=getattr(torch, self.storage), device=device if source == "device" else "cpu")
        x = one.expand(self.num_items, len(numbers), dim)  # the right shape without the memory
        trial = FusionTrial(FoldSpec("", method, 1, 0, self.config), Features(head, pl.DataFrame(), x, numbers))
        return max(1, min(trial.most_members, len(candidates_of(method, self.config)) * self.num_runs()))

    def table_bytes(self) -> int | None:
        """Disk of the utterance or clip table."""
        return None if self.num_items is None else self.num_items * ROW_BYTES

    def embeddings_bytes(self) -> int | None:
        """Disk of the embeddings."""
        if self.num_items is None or self.vectors is None:
            return None
        return self.num_items * len(self.vectors[0]) * self.vectors[1] * np.dtype(self.storage).itemsize

    def fold_bytes(self, weights: Iterable[int], stage: TrainingStage = "train") -> int | None:
        """Disk of all folds of trainings whose folds have so many bytes of weights each."""
        if not self.splits or self.stats.classes is None:
            return None
        tested = sum(len(split.test) for split in self.splits) * (ROW_BYTES + 4 * self.stats.classes)
        return self.copies * len(self.config.seeds_of(stage)) * sum(len(self.splits) * one + tested for one in weights)


def _closed() -> EncoderAndItems:
    raise AssertionError("a plan opens no encoder")
