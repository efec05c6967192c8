"""Extraction and training as they are, but for one worker that dies once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from daamctl.extraction.shards import ShardResult
from daamctl.fit.runner import FoldWorker, train_fold
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.stages.extract import Extractor, Shard
from tests.engines.workers import die_once, note


class MortalExtractor(Extractor):
    """Extraction as it is, but a worker that begins with the second shard dies once."""

    def work(self, tasks: Sequence[Shard], advance: Callable[[int], None]) -> Iterator[ShardResult]:
        """See `Extractor.work`."""
        for shard in tasks:
            note(self.root, f"begun {shard.number}")
            if shard.number == 1:
                die_once(self.root)
            yield from super().work([shard], advance)
            note(self.root, f"made {shard.number}")


class MortalFoldWorker(FoldWorker):
    """Training as it is, but the worker of the second fold dies once, after an epoch."""

    def work(self, tasks: Sequence[FoldSpec], advance: Callable[[int], None]) -> Iterator[tuple[tuple[int, int], Path]]:
        """See `FoldWorker.work`."""
        for spec in tasks:

            def on_epoch(entry: Any, fold: int = spec.fold) -> None:
                note(self.root, f"fold {fold} epoch {entry['epoch']}")
                if fold == 2:
                    die_once(self.root)

            trial = FusionTrial(spec, self.data)
            fold = train_fold(trial, self.folder, self.work_dir, root=self.root, on_epoch=on_epoch)
            yield (spec.fold, spec.seed), fold.folder
