"""What lies on disk of a pipeline, told as the stages tell it.

Tables, embeddings and tuned encoders count by the settings they were made with, folds of methods by their content keys,
and what rests on trained folds by whether it is newer than they are. Nothing is written.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import EmbeddingsMetadata, check_settings, open_embeddings, read_head
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.skipped import folder_of
from daamctl.artifacts.splits import Split
from daamctl.artifacts.utterances import METADATA_KEY, CorpusTable, Modality, read_utterances
from daamctl.config import Config
from daamctl.config.keys import names
from daamctl.config.marks import Of
from daamctl.corpora.sources import key_of
from daamctl.errors import ArtifactError
from daamctl.evaluation.consistency import differences
from daamctl.layout import Layout
from daamctl.stage_table import STAGES
from daamctl.training.features import Features
from daamctl.training.runner import kept_fold
from daamctl.training.trial import FoldSpec
from daamctl.training.trials.fusion import FusionTrial

Runs = Collection[tuple[int, int]]
"""Fold and seed of everything that is trained."""


class ArtifactStatus:
    """What is finished, if it is what the settings ask for.

    Args:
        layout: where artifacts lie.
        config: all settings.

    Attributes:
        utterances, clips: the tables; None where they are not there or other ones.
        old_utterances, old_clips: what is wrong with those there, or None.
        head: facts of the embeddings; `old_head` likewise.

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
        """The embeddings, left on disk, to tell which folds are finished."""
        if self.head is None:
            return None
        clips, stored = open_embeddings(self.layout.embeddings)
        return Features(self.head, clips, stored, stored.layers, self.config.train.features == "stream")

    def shards(self) -> int:
        """Clips in shards that an interrupted extraction with the settings of now has left."""
        if self.clips is None:
            return 0
        found = [0]
        for folder in (self.layout.work / "extract").glob(f"*-{self.config.extract.shard_clips}"):
            done = 0
            for path in folder.glob("embeddings-*.parquet"):
                try:
                    file = pq.ParquetFile(path)
                    head = json.loads(file.metadata.metadata[METADATA_KEY])
                    check_settings(head["settings"], self.config, self.clips.modality, what="shards", fix="")
                except (OSError, ValueError, KeyError, TypeError, ArtifactError):
                    continue
                ids = pl.Series(file.read(columns=["clip_id"])["clip_id"].to_pylist(), dtype=pl.String)
                done += len(ids) if ids.is_in(self.clips.rows["clip_id"].implode()).all() else 0
            found.append(done)
        return max(found)

    def trained(self, method: str, runs: Runs) -> list[Fold]:
        """Finished folds of a method; none where there are no embeddings to tell them by."""
        if self.features is None:
            return []
        folder = self.layout.method(method)
        specs = [FoldSpec(self.layout.run_name, method, *run, self.config) for run in runs]
        found = [kept_fold(folder, FusionTrial(spec, self.features)) for spec in specs]
        return [fold for fold in found if fold is not None]

    def tuned(self, method: str, splits: Sequence[Split], modality: Modality | None) -> list[Fold]:
        """Finished folds of a way of fine-tuning, trained with the settings of now on as many clips."""
        sizes = {split.fold: (len(split.train), len(split.dev), len(split.test)) for split in splits}
        folds = read_folds(self.layout.method(method))
        return [fold for fold in folds if sizes.get(fold.fold) == _sizes(fold) and self._is_current(fold, modality)]

    def alone(self, method: str, names: Sequence[str], runs: Runs) -> list[Fold]:
        """Finished folds of a method on groups of the ablation, whatever layers a ranking chose for them then."""
        if self.features is None:
            return []
        kept = []
        for name in names:
            folder = self.layout.stage("ablate") / f"{name}-{method}"
            for fold in read_folds(folder):
                layers = tuple(fold.result["run"]["layers"])
                if (fold.fold, fold.seed) in runs and set(layers) <= set(self.features.layers):
                    spec = FoldSpec(self.layout.run_name, method, fold.fold, fold.seed, self.config)
                    kept += [fold] if kept_fold(folder, FusionTrial(spec, self.features.subset(layers))) else []
        return kept

    def made(self, stage: str) -> Path | None:
        """What a stage writes last; None where it is not there, or empty."""
        file = folder_of(self.layout, stage) / STAGES[stage].finished
        return file if file.is_file() and file.stat().st_size else None

    def is_outdated(self, stage: str, folders: Sequence[Path]) -> bool:
        """Whether what a stage writes last is older than the results in the folders that it rests on."""
        file = self.made(stage)
        inputs = [path for folder in folders for path in (*folder.glob("*.json"), *folder.glob("fold*/result.json"))]
        newest = max((path.stat().st_mtime for path in inputs), default=0.0)
        return file is not None and file.stat().st_mtime < newest

    def _table(self, stage: Literal["download", "segment"]) -> tuple[CorpusTable | None, str | None]:
        """The table of a stage, if it is the one that the settings ask for; else what is wrong with the one there."""
        layout, config = self.layout, self.config
        read, path = (read_utterances, layout.utterances) if stage == "download" else (read_clips, layout.clips)
        if not path.exists():
            return None, None
        try:
            table: CorpusTable = read(path)
            made = {"download": table.settings} if stage == "download" else table.settings
            check_settings(made, config, table.modality, what=f"{stage} table", fix="")
        except ArtifactError as error:
            return None, error.message
        source = config.download.source
        if source is not None and (key := key_of(config.download.corpus, Path(source))) != table.corpus:
            return None, f"the table is of '{table.corpus}', asked for '{key}'"
        return table, None

    def _read_head(self) -> tuple[EmbeddingsMetadata | None, str | None]:
        """Facts of the embeddings, if they are those that the settings ask for; else why they are not."""
        folder = self.layout.embeddings
        if not (folder / STAGES["extract"].finished).exists():
            return None, None
        try:
            head = read_head(folder)
            check_settings(head.settings, self.config, head.modality, what="embeddings", fix="")
        except ArtifactError as error:
            return None, error.message
        number = head.num_clips + len(head.unreadable)
        if self.clips is not None and number != len(self.clips.rows):
            return None, f"the embeddings are of {number} clips, the clip table has {len(self.clips.rows)}"
        return head, None

    def _is_current(self, fold: Fold, modality: Modality | None) -> bool:
        """Whether a tuned encoder was trained with the settings of now."""
        made, now = fold.result["run"]["config"], self.config.section("extract")
        sections = {stage: made[stage] for stage in ("download", "segment", "extract")}
        sections["extract"] = {**made["extract"], **{name: now[name] for name in names("extract", Of.STORED)}}
        try:
            check_settings(sections, self.config, modality or "speech", what="folds", fix="")
        except ArtifactError:
            return False
        return fold.seed in self.config.seeds_of("finetune") and not differences(fold, self.config)


def _sizes(fold: Fold) -> tuple[int, int, int]:
    """Clips that a fold was trained, selected and tested on."""
    meta = fold.result["meta"]
    return meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]
