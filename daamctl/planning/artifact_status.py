"""Find which artifacts of a pipeline are finished and current, by the rules of the stages themselves.

Tables, embeddings and fine-tuned encoders are current if they were made with the present settings, folds of methods if
their content keys match, and later results if they are newer than the folds they depend on. Nothing is written.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq

from daamctl.artifacts.embeddings import EmbeddingsMetadata, check_settings, embeddings_in, open_embeddings
from daamctl.artifacts.inputs import clips_of, embeddings_of, utterances_of
from daamctl.artifacts.results import Fold, intact_folds
from daamctl.artifacts.skipped import folder_of
from daamctl.artifacts.splits import Split
from daamctl.artifacts.utterances import CorpusTable, Modality
from daamctl.config import Config
from daamctl.config.keys import names
from daamctl.config.marks import Of
from daamctl.errors import ArtifactError
from daamctl.evaluation.consistency import differences
from daamctl.fit.features import Features
from daamctl.fit.runner import kept_fold
from daamctl.fit.trial import FoldSpec, FusionTrial
from daamctl.layout import Layout
from daamctl.stage_table import STAGES
from daamctl.store.tables import METADATA_KEY

Runs = Collection[tuple[int, int]]
"""Fold and seed of each training."""


class ArtifactStatus:
    """Finished artifacts that match the settings.

    Attributes:
        utterances, clips: the tables; None if they are missing or were made with other settings.
        old_utterances, old_clips: why an existing table does not match, or None.
        head: metadata of the embeddings; None as for the tables.
        old_head: why existing embeddings do not match, or None.

    Raises:
        ArtifactError: an artifact is damaged.
    """

    def __init__(self, layout: Layout, config: Config) -> None:
        self.layout, self.config = layout, config
        self.utterances, self.old_utterances = self._table("download")
        self.clips, self.old_clips = self._table("segment")
        self.head, self.old_head = self._read_head()

    @functools.cached_property
    def features(self) -> Features | None:
        """The embeddings, left on disk; they suffice to recognise finished folds."""
        if self.head is None:
            return None
        clips, stored = open_embeddings(self.layout.embeddings)
        return Features(self.head, clips, stored, stored.layers, self.config.train.features == "stream")

    def extracted_clips(self) -> int:
        """Number of clips in the shards of an interrupted extraction with the present settings."""
        if self.clips is None:
            return 0
        most = 0
        for folder in (self.layout.work / "extract").glob(f"*-{self.config.extract.shard_clips}"):
            most = max(most, sum(self._clips_in(path) for path in folder.glob("embeddings-*.parquet")))
        return most

    def _clips_in(self, shard: Path) -> int:
        """Clips in a shard; 0 if it is damaged, or of other clips or settings."""
        assert self.clips is not None
        try:
            file = pq.ParquetFile(shard)
            head = json.loads(file.metadata.metadata[METADATA_KEY])
            check_settings(head["settings"], self.config, self.clips.modality, what="shards", path=shard)
        except (OSError, ValueError, KeyError, TypeError, ArtifactError):
            return 0
        ids = pl.Series(file.read(columns=["clip_id"])["clip_id"].to_pylist(), dtype=pl.String)
        return len(ids) if ids.is_in(self.clips.rows["clip_id"].implode()).all() else 0

    def trained(self, method: str, runs: Runs) -> list[Fold]:
        """Finished folds of a method; none without embeddings, because they are part of the key."""
        if self.features is None:
            return []
        return self._kept(self.layout.method(method), method, runs, self.features)

    def _kept(self, folder: Path, method: str, runs: Runs, features: Features) -> list[Fold]:
        specs = [FoldSpec(self.layout.run_name, method, *run, self.config) for run in runs]
        found = [kept_fold(folder, FusionTrial(spec, features)) for spec in specs]
        return [fold for fold in found if fold is not None]

    def finetuned(self, method: str, splits: Sequence[Split], modality: Modality | None) -> list[Fold]:
        """Finished folds of a fine-tuning method, trained with the present settings on as many clips."""
        sizes = {split.fold: (len(split.train), len(split.dev), len(split.test)) for split in splits}
        folds = intact_folds(self.layout.method(method))
        return [fold for fold in folds if sizes.get(fold.fold) == _sizes(fold) and self._is_current(fold, modality)]

    def ablated(self, method: str, sets: Mapping[str, tuple[int, ...]], runs: Runs) -> list[Fold]:
        """Finished folds of a method on sets of layers of the ablation."""
        if self.features is None:
            return []
        kept = []
        for name, layers in sets.items():
            folder = self.layout.stage("ablate") / f"{name}-{method}"
            kept += self._kept(folder, method, runs, self.features.subset(layers))
        return kept

    def finished_file(self, stage: str) -> Path | None:
        """The file that a stage writes last; None if it is missing or empty."""
        file = folder_of(self.layout, stage) / STAGES[stage].finished
        return file if file.is_file() and file.stat().st_size else None

    def is_outdated(self, stage: str, folders: Sequence[Path]) -> bool:
        """Whether a stage's last file is older than the results in the folders that it reads."""
        file = self.finished_file(stage)
        inputs = [path for folder in folders for path in (*folder.glob("*.json"), *folder.glob("fold*/result.json"))]
        newest = max((path.stat().st_mtime for path in inputs), default=0.0)
        return file is not None and file.stat().st_mtime < newest

    def _table(self, stage: Literal["download", "segment"]) -> tuple[CorpusTable | None, str | None]:
        """A stage's table if it is current; otherwise why the existing one is not."""
        layout = self.layout
        read, path = (utterances_of, layout.utterances) if stage == "download" else (clips_of, layout.clips)
        try:
            return (read(layout, self.config), None) if path.exists() else (None, None)
        except ArtifactError as error:
            return None, error.message

    def _read_head(self) -> tuple[EmbeddingsMetadata | None, str | None]:
        """Metadata of the embeddings if they match the settings; otherwise why they do not."""
        folder = self.layout.embeddings
        if not (folder / STAGES["extract"].finished).exists():
            return None, None
        try:
            head = embeddings_of(self.layout, self.config)
            embeddings_in(folder).check(head)
        except ArtifactError as error:
            return None, error.message
        return head, None

    def _is_current(self, fold: Fold, modality: Modality | None) -> bool:
        """Whether an encoder was fine-tuned with the present settings."""
        made, now = fold.result["run"]["config"], self.config.section("extract")
        sections = {stage: made[stage] for stage in ("download", "segment", "extract")}
        # fine-tuning does not read the stored embeddings, so how they are stored may differ
        sections["extract"] = {**made["extract"], **{name: now[name] for name in names("extract", Of.STORED)}}
        try:
            check_settings(sections, self.config, modality or "speech", what="folds", path=self.layout.method(""))
        except ArtifactError:
            return False
        return fold.seed in self.config.seeds_of("finetune") and not differences(fold, self.config)


def _sizes(fold: Fold) -> tuple[int, int, int]:
    """Numbers of clips of a fold's training, dev and test parts."""
    meta = fold.result["meta"]
    return meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]
