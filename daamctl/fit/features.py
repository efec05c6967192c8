"""Embeddings of a corpus as training data: on disk, in memory or on a GPU."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.embeddings import (
    EmbeddingsMetadata,
    StoredVectors,
    is_held,
    open_embeddings,
)
from daamctl.artifacts.inputs import embeddings_of
from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.devices import free_memory, resolve_device
from daamctl.fit.feature_split import InMemorySplit, Part, StreamedSplit
from daamctl.fit.trial import TrialData
from daamctl.layout import Layout

log = logging.getLogger(__name__)

HELD_SHARE = 0.25  # of free memory: a dev or test part on disk up to this size is read once, not every epoch
GPU_HEADROOM = 8_000_000_000
"""Bytes of a GPU to leave free beside the features. The convolutional decoder keeps two maps of 512 channels for the
256 clips of an evaluation batch, which take 5.4 GB with 5120 features. On a small GPU, half of the memory is left
instead."""


@dataclass(frozen=True)
class Features(TrialData):
    """Embeddings of a corpus, in memory, on a GPU or on disk.

    A tensor in memory is pickled as an array, which the worker processes of a machine can share.

    Args:
        clips: N rows.
        x: (N, L, D) in the stored number format; vectors on disk are read on demand.
        layers: the L layer numbers.
        stream: training reads them from disk in every epoch, in a different order than from memory.
    """

    head: EmbeddingsMetadata
    clips: pl.DataFrame
    x: torch.Tensor | StoredVectors
    layers: tuple[int, ...]
    stream: bool = False

    @property
    def table(self) -> ClipTable:
        """See `TrialData.table`."""
        head = self.head
        return ClipTable(head.corpus, head.classes, self.clips, head.settings, head.modality)

    def targets(self) -> torch.Tensor:
        """Class ids (N,)."""
        index = {name: i for i, name in enumerate(self.head.classes)}
        return torch.tensor([index[label] for label in self.clips["label"]])

    def subset(self, layers: tuple[int, ...]) -> Features:
        """The same clips with fewer layers."""
        if isinstance(self.x, StoredVectors):
            return replace(self, x=self.x.subset(layers), layers=layers)
        rows = [self.layers.index(layer) for layer in layers]
        return replace(self, x=self.x[:, rows].contiguous(), layers=layers)

    def prepare_in_process(self, config: Config) -> Features:
        """Move the features to the training GPU if they fit, else into memory if they fit."""
        return place_features(to_gpu(self, config), config)

    def prepare_for_workers(self, config: Config) -> Features:
        """Read the features into memory if they fit."""
        return place_features(self, config)

    def prepare_in_worker(self, config: Config, per_gpu: int) -> Features:
        """Move the features to the worker's share of its GPU if they fit."""
        return to_gpu(self, config, tasks=per_gpu)

    def __getstate__(self) -> dict[str, Any]:
        x = self.x.numpy() if isinstance(self.x, torch.Tensor) else self.x
        return {**self.__dict__, "x": x}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["x"], np.ndarray):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes
                state = {**state, "x": torch.from_numpy(state["x"])}
        self.__dict__.update(state)


def load_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings and decide where training reads them from: `open_features`, then `place_features`."""
    return place_features(open_features(layout, config, layers), config)


def open_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings on disk, without reading vectors; this suffices to tell which folds are finished.

    Raises:
        ArtifactError: they are missing or were made with other settings; names the settings and the command.
    """
    head = embeddings_of(layout, config)
    clips, stored = open_embeddings(layout.embeddings, layers)
    return Features(head, clips, stored, stored.layers, stream=config.train.features == "stream")


def place_features(features: Features, config: Config) -> Features:
    """Decide whether training holds the features in memory or streams them from disk in every epoch.

    Under `auto` they are read into memory if it is large enough (`is_held`). For a GPU see `to_gpu`.
    """
    stored = features.x
    if not isinstance(stored, StoredVectors):
        return features
    if is_held(stored.nbytes, config.train.features):
        return replace(features, x=torch.from_numpy(stored.load()), stream=False)
    log.info("the embeddings take %.1f GB in memory: every epoch reads them from disk", stored.nbytes / 1e9)
    return replace(features, stream=True)


def to_gpu(features: Features, config: Config, *, tasks: int = 1) -> Features:
    """Move all features to the training GPU if they fit; otherwise return them unchanged. All folds share them.

    Features on disk are read shard by shard, so they need not fit in main memory.

    Args:
        config: training settings; with `train.features=stream` nothing is held.
        tasks: number of processes that share the GPU, each with its own copy of the features.
    """
    device = resolve_device(config.train.device)
    if config.train.features == "stream" or features.x.nbytes > gpu_room(device, tasks):
        return features
    log.info("the embeddings take %.1f GB: held on %s", features.x.nbytes / 1e9, device)
    if isinstance(features.x, torch.Tensor):
        return replace(features, x=features.x.to(device))
    whole = StreamedSplit(features.x, np.arange(len(features.x)), features.targets())
    return replace(features, x=whole.hold(device).x, stream=False)


def gpu_room(device: str, tasks: int) -> float:
    """Bytes of a GPU that one of `tasks` processes may use for features; 0 on other devices."""
    if not device.startswith("cuda"):
        return 0
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch, which reuses it
    ours = min(free, total / tasks)
    return max(ours - GPU_HEADROOM, ours / 2)


def is_on(x: torch.Tensor | StoredVectors, device: str) -> bool:
    """Whether vectors are in memory on the training device; see `to_gpu`."""
    return isinstance(x, torch.Tensor) and x.device.type == torch.device(device).type


def split_features(features: Features, split: Split, device: str) -> tuple[Part, Part | None, Part]:
    """Split the features into training, dev and test parts.

    Features in memory or on a GPU are not copied: the parts index them, so folds share them. Features on disk are
    streamed, except that a small dev or test part is read once and held.
    """

    def evaluated(rows: np.ndarray) -> Part:
        part = part_of(features, rows, device)
        if isinstance(part, StreamedSplit) and part.nbytes <= HELD_SHARE * free_memory():
            return part.hold()
        return part

    dev = None if split.dev_group is None else evaluated(split.dev)
    return part_of(features, split.train, device), dev, evaluated(split.test)


def part_of(features: Features, rows: np.ndarray, device: str) -> InMemorySplit | StreamedSplit:
    """Part with the given clips, by ascending row number."""
    x, index = features.x, torch.from_numpy(rows)
    y = features.targets()[index]
    if isinstance(x, torch.Tensor):
        pin = device.startswith("cuda") and x.device.type == "cpu"
        return InMemorySplit(x, y.to(x.device), index.to(x.device), pin=pin)
    assert features.stream, "place_features decides it, because the key of the fold depends on it"
    return StreamedSplit(x, rows, y, pin=device.startswith("cuda"))


def source_of(features: Features) -> str:
    """Where training reads features from: stream, memory or device."""
    if features.stream:
        return "stream"
    return "memory" if isinstance(features.x, StoredVectors) or features.x.device.type == "cpu" else "device"
