"""Train seeds of one arm, here or on an engine, and write each finished training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file

from daamctl.artifacts.integrity import hashes_of
from daamctl.artifacts.io import content_key, locked, replace_dir
from daamctl.artifacts.reconstruction import (
    EXAMPLES,
    HISTORY,
    RESULT,
    SCORES,
    WEIGHTS,
    Crops,
    Reconstruction,
    training_dir,
)
from daamctl.artifacts.records import write_record
from daamctl.artifacts.results import ENTRY
from daamctl.artifacts.utterances import write_frame
from daamctl.config.schema import ReconstructConfig
from daamctl.devices import resolve_device, resolve_precision
from daamctl.provenance import device_name, versions
from daamctl.reconstruction.codes import perplexity
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.training import Trained, train_arm

VERSION = 1
"""Part of the key of a training; raised when its computation changes."""


def key_of(arm: str, seed: int, settings: dict[str, Any], crops: Crops) -> str:
    """Hash of everything that can change a training.

    Args:
        arm: its block.
        seed: its seed.
        settings: those of `reconstruct` that can change a result.
        crops: the table of crops.
    """
    return content_key({"version": VERSION, "arm": arm, "seed": seed, "settings": settings, "crops": crops.key})


def examples_of(crops: Crops, wanted: int) -> list[int]:
    """Rows of the test crops that are kept as pictures, evenly spaced."""
    number = crops.part("test").height
    return sorted({int(row) for row in np.linspace(0, number - 1, min(wanted, number))})


class ArmWorker:
    """Trains seeds of one arm; a task is a seed, and its result the folder of the training.

    Args:
        arm: a name from `BLOCKS`.
        crops: the table of crops.
        settings: of the model and of training.
        keyed: the settings that can change a result.
        device: the setting, or the device of this worker.
        folder: will hold `seed<N>/`.
        work: folder for unfinished work, on the same file system.
        images: folder that the paths of images are relative to.
    """

    description = None
    num_devices = 1

    def __init__(
        self,
        arm: str,
        crops: Crops,
        settings: ReconstructConfig,
        keyed: dict[str, Any],
        device: str,
        *,
        folder: Path,
        work: Path,
        images: Path,
    ) -> None:
        self.arm, self.crops, self.settings, self.keyed = arm, crops, settings, keyed
        self.folder, self.work_dir = folder, work
        self.device = resolve_device(device)
        self.train, self.test = (CropPixels(crops, part, images) for part in ("train", "test"))

    def work(self, tasks: Sequence[int], advance: Callable[[int], None]) -> Iterator[Path]:
        """Train every seed; yield the folder of each finished training."""
        for seed in tasks:
            work = self.work_dir / f"{self.arm}-seed{seed}"
            target = training_dir(self.folder, seed)
            key = key_of(self.arm, seed, self.keyed, self.crops)
            with locked(work.with_suffix(".lock"), what=f"{self.arm} seed {seed}"):
                if self.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats(self.device)
                examples = examples_of(self.crops, self.settings.examples)
                trained = train_arm(
                    self.arm, self.train, self.test, examples, self.settings,
                    seed=seed, device=self.device, work=work, key=key, advance=advance,
                )  # fmt: skip
                finished = work / "finished"
                self._write(finished, trained, seed, key)
                replace_dir(finished, target)
                shutil.rmtree(work, ignore_errors=True)
            yield target

    def _write(self, folder: Path, trained: Trained, seed: int, key: str) -> None:
        """Write all files, result.json last."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        head = {"arm": self.arm, "seed": seed, "key": key}
        weights = {name: value.contiguous().cpu() for name, value in trained.model.state_dict().items()}
        # One entry: safetensors writes several in any order, so equal weights would be different files.
        save_file(weights, folder / WEIGHTS, metadata={ENTRY: json.dumps(head, sort_keys=True)})
        save_file({"reconstructions": trained.reconstructions, **trained.densities}, folder / EXAMPLES)
        rows = self.crops.part("test").select("crop_id", "utterance_id")
        scores = [pl.Series(name, values, dtype=pl.Float32) for name, values in trained.scores.items()]
        write_frame(folder / SCORES, rows.with_columns(scores), head)
        write_frame(folder / HISTORY, pl.DataFrame(trained.history), head)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.startswith("cuda") else None
        result = Reconstruction(
            key=key,
            arm=self.arm,
            seed=seed,
            settings=self.keyed,
            parameters=sum(one.numel() for one in trained.model.parameters()),
            block_parameters=[
                sum(one.numel() for one in block.parameters()) for block in trained.model.blocks.values()
            ],
            steps=trained.steps,
            perplexity=perplexity(trained.uses),
            used=int((trained.uses > 0).sum()),
            change=trained.change,
            train_s=trained.train_s,
            crops_per_s=trained.steps * self.settings.batch_size / trained.train_s,
            peak_bytes=peak,
            precision=resolve_precision(self.settings.precision, self.device, work="convolutions"),
            device=device_name(self.device),
            meta={"versions": versions()},
            files=hashes_of(folder.iterdir()),
        )
        write_record(folder / RESULT, asdict(result))
