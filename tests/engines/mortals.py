"""Extraction and training as they are, but for one worker that dies once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from daamctl.extraction.shards import ShardResult
from daamctl.stages.extract import Extractor, Shard
from daamctl.training.features import Features
from daamctl.training.runner import train_fold
from daamctl.training.trial import FoldSpec
from daamctl.training.trials.fusion import FusionTrial
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


def mortal_fold(data: Features, spec: FoldSpec, *, folder: Path, work: Path, root: Path, **_: Any) -> Path:
    """A fold from its features, but the worker of the second fold dies once, after an epoch."""

    def on_epoch(entry: Any) -> None:
        note(root, f"fold {spec.fold} epoch {entry['epoch']}")
        if spec.fold == 2:
            die_once(root)

    return train_fold(FusionTrial(spec, data), folder, work, root=root, on_epoch=on_epoch).folder
