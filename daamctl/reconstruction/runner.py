"""Train seeds of one arm, here or on an engine, and write each finished training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import save_file

from daamctl.artifacts.integrity import hashes_of
from daamctl.artifacts.io import locked, replace_dir
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
from daamctl.devices import is_out_of_memory, resolve_device
from daamctl.errors import TrainingError
from daamctl.fit.checkpoint import load_state
from daamctl.fit.loop import Finished, Progress, Trained
from daamctl.fit.runner import fit_and_save
from daamctl.provenance import device_name, versions
from daamctl.reconstruction.codes import perplexity
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.training import ArmTrial


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
        self.folder, self.work_dir = folder, work
        train, test = (CropPixels(crops, part, images) for part in ("train", "test"))
        self.trial = partial(ArmTrial, arm, crops, settings, keyed, resolve_device(device), train, test)

    def work(self, tasks: Sequence[int], advance: Callable[[int], None]) -> Iterator[Path]:
        """Train every seed; yield the folder of each finished training.

        Raises:
            TrainingError: a step does not fit into memory, or there are fewer training crops than a batch has.
            DivergedError: a loss is no longer finite.
        """
        for trial in map(self.trial, tasks):
            work, target = self.work_dir / f"{trial.arm}-seed{trial.seed}", training_dir(self.folder, trial.seed)
            with locked(work.with_suffix(".lock"), what=trial.what):
                if trial.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats(trial.device)
                try:
                    for event in fit_and_save([trial], work, trial.key, load_state(work, trial.key)):
                        if isinstance(event, Progress):
                            advance(event.units * trial.settings.batch_size)
                        elif isinstance(event, Finished):
                            write_training(work / "finished", trial, event.trained)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    raise TrainingError(
                        f"{trial.what}: out of memory with {trial.settings.batch_size} crops in a step",
                        fix="lower reconstruct.batch_size or crop.size, or end what else runs on this device",
                    ) from error
                replace_dir(work / "finished", target)
                shutil.rmtree(work, ignore_errors=True)
            yield target


def write_training(folder: Path, trial: ArmTrial, trained: Trained) -> None:
    """Write all files of a finished training, result.json last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model, found, device = trained.model, trained.facts, trial.device
    head = {"arm": trial.arm, "seed": trial.seed, "key": trial.key}
    weights = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    # One entry: safetensors writes several in any order, so equal weights would be different files.
    save_file(weights, folder / WEIGHTS, metadata={ENTRY: json.dumps(head, sort_keys=True)})
    save_file({"reconstructions": found["reconstructions"], **found["densities"]}, folder / EXAMPLES)
    rows = trial.crops.part("test").select("crop_id", "utterance_id")
    scores = [pl.Series(name, values, dtype=pl.Float32) for name, values in found["scores"].items()]
    write_frame(folder / SCORES, rows.with_columns(scores), head)
    write_frame(folder / HISTORY, pl.DataFrame(trained.history), head)
    result = Reconstruction(
        key=trial.key,
        arm=trial.arm,
        seed=trial.seed,
        settings=trial.keyed,
        parameters=sum(one.numel() for one in model.parameters()),
        block_parameters=[sum(one.numel() for one in block.parameters()) for block in model.blocks.values()],
        steps=trial.units_of_training,
        perplexity=perplexity(found["uses"]),
        used=int((found["uses"] > 0).sum()),
        change=found["change"],
        train_s=trained.train_s,
        crops_per_s=trial.units_of_training * trial.settings.batch_size / trained.train_s,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None,
        precision=trial.precision,
        device=device_name(device),
        meta={"versions": versions()},
        files=hashes_of(folder.iterdir()),
    )
    write_record(folder / RESULT, asdict(result))
