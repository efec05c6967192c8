"""Estimate times from the seconds that finished folds and extractions recorded.

Work of the same kind takes as long per clip, and in training per step and clip, as it took before on the same device.
`same kind` means: the same method on as many layers and features, the same fine-tuning method on the same encoder, or
extraction with the same encoder. A pipeline's own records come first, then those of other pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daamctl.adapters import FINETUNES
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, intact_folds
from daamctl.compute.devices import resolve_device
from daamctl.compute.energy import total
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.extraction.stopwatch import timing_file
from daamctl.fit.loop import RECORDS
from daamctl.fit.trial import clips_of_fold, refits, steps_of_training, trainings
from daamctl.methods import CLOSED_FORM
from daamctl.store.files import read_json
from daamctl.store.provenance import device_name

FORWARD_PASSES, FORWARD_PASSES_RECOMPUTED = 3, 4
"""Cost of a training step in forward passes: a backward pass costs about two, and gradient checkpointing adds one."""
MEASURED = "measured"
"""Source of speeds from a trial on a few clips."""


@dataclass(frozen=True)
class Throughput:
    """Recorded speed.

    Args:
        seconds: per clip in extraction; in training per clip of `work_of_fold`.
        source: `MEASURED`, or name of the pipeline that recorded it.
        joules: energy of the GPU for the same; None: not recorded.
        peak_memory_bytes: highest recorded GPU memory; None: not recorded.
    """

    seconds: float
    source: str
    joules: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class RecordedSpeeds:
    """Recorded speeds of extraction, training and fine-tuning.

    Args:
        measured: a layout in which a few clips were extracted and trained on, to fall back on.
    """

    layout: Layout
    config: Config
    measured: Layout | None = None

    def extraction(self) -> Throughput | None:
        """Speed of extraction with this encoder; None if none is recorded."""
        kind = (self.config.extract.encoder, device_name(resolve_device(self.config.extract.device)))
        for source, folder in self._folders("extract"):
            try:
                timing = read_json(timing_file(folder))
                if (timing["encoder"], timing["device"]) == kind and (clips := timing["clips"]):
                    energy = timing.get("joules")
                    return Throughput(timing["seconds"] / clips, source, None if energy is None else energy / clips)
            except (ArtifactError, KeyError, TypeError):  # there is none, or it is damaged
                continue
        return None

    def training(self, method: str, sizes: tuple[int, int, int] | None) -> Throughput | None:
        """Speed of a method or fine-tuning method; None if none is recorded.

        Args:
            sizes: L, D and C; None: not known yet.
        """
        tunes = method in FINETUNES
        device = device_name(resolve_device((self.config.finetune if tunes else self.config.train).device))

        def is_alike(fold: Fold) -> bool:
            run = fold.result["run"]
            if tunes:
                alike = run["config"]["extract"]["encoder"] == self.config.extract.encoder
            else:
                alike = sizes is not None and (len(run["layers"]), run["embed_dim"]) == sizes[:2]
            return alike and fold.result["meta"]["device"] == device

        for source, folder in self._folders("train"):
            rate = _rate([fold for fold in intact_folds(folder / method) if is_alike(fold)], source)
            if rate is not None:
                return rate
        return None

    def _folders(self, stage: str) -> Iterator[tuple[str, Path]]:
        """Source and folder of results to search: this pipeline's, those of the trial, those of other pipelines."""

        def folder_in(layout: Layout) -> Path:
            return layout.embeddings if stage == "extract" else layout.stage(stage)

        own = folder_in(self.layout)
        yield own.name, own
        if self.measured is not None:
            yield MEASURED, folder_in(self.measured)
        for folder in sorted((self.layout.data / stage).glob("[!.]*")):
            if folder != own:
                yield folder.name, folder


def work_of_fold(method: str, config: Config, train: int, dev: int, test: int) -> int:
    """Clips in all steps of a fold, and those that its records predict as parts of a step.

    In a short training, predictions take most of the time. With epochs they grow as the steps do and are left out.

    Args:
        train: number of clips to train on; likewise `dev` and `test`.
    """
    clips = clips_of_fold(method, config, train, dev)
    if method in FINETUNES or method in CLOSED_FORM or config.train.steps is None:
        return clips
    refitted, number = refits(method, config), trainings(method, config)
    tested = 1 if refitted else number  # a training that is repeated is not tested
    predicted = (number - refitted) * dev + tested * test
    return clips + min(RECORDS, steps_of_training(method, config, train, dev)) * predicted // FORWARD_PASSES


def _rate(folds: Sequence[Fold], source: str) -> Throughput | None:
    """Speed of folds of one method; None if there are none whose settings can be read."""
    seconds, passes, joules, peaks = 0.0, 0, list[float | None](), [0]
    for fold in folds:
        run, meta = fold.result["run"], fold.result["meta"]
        sections = {name: run["config"][name] for name in ("train", "finetune") if name in run["config"]}
        try:
            config = Config.model_validate(sections)
        except ValidationError:  # settings of an older version
            continue
        seconds += meta["train_s"]
        joules.append(meta.get("joules"))
        sizes = meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]
        passes += work_of_fold(run["method"], config, *sizes)
        peaks.append(meta["peak_memory_bytes"] or 0)
    if not passes:
        return None
    energy = total(*joules)
    return Throughput(seconds / passes, source, None if energy is None else energy / passes, max(peaks) or None)
