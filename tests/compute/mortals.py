"""Extraction and training as they are, but for one worker that dies once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from daamctl.artifacts.results import Fold
from daamctl.compute.engine import Units
from daamctl.extraction.shards import ShardResult
from daamctl.fit.loop import Recorded
from daamctl.fit.runner import FoldWorker, train_group
from daamctl.fit.trial import FoldSpec, FusionTrial
from daamctl.stages.extract import Extractor, Shard
from tests.compute.workers import die_once, note


class MortalExtractor(Extractor):
    """Extraction as it is, but a worker that begins with the second shard dies once."""

    def work(self, tasks: Sequence[Shard]) -> Iterator[ShardResult | Units]:
        """See `Extractor.work`."""
        for shard in tasks:
            note(self.root, f"begun {shard.number}")
            if shard.number == 1:
                die_once(self.root)
            yield from super().work([shard])
            note(self.root, f"made {shard.number}")


class MortalFoldWorker(FoldWorker):
    """Training as it is, but the worker of the second fold dies once, after an epoch."""

    def work(self, tasks: Sequence[FoldSpec]) -> Iterator[tuple[tuple[int, int], Path]]:
        """See `FoldWorker.work`."""
        for spec in tasks:
            group, found = [FusionTrial(spec, self.data)], []
            for event in train_group(group, self.folder, self.work_dir, root=self.root):
                if isinstance(event, Recorded):
                    note(self.root, f"fold {spec.fold} epoch {event.entry['epoch']}")
                    if spec.fold == 2:
                        die_once(self.root)
                elif isinstance(event, Fold):
                    found.append(event.folder)
            yield (spec.fold, spec.seed), found[0]
