"""The plan of a pipeline that reconstructs images."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from daamctl.artifacts.reconstruction import (
    CROPS,
    RESULT,
    Crops,
    Reconstruction,
    read_crops,
    training_of,
)
from daamctl.artifacts.skipped import folder_of
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.devices import autocast, resolve_device, resolve_precision
from daamctl.errors import ArtifactError
from daamctl.fit.steps import seed_everything
from daamctl.layout import Layout
from daamctl.planning.rows import Blockers, Row, set_state
from daamctl.reconstruction.training import key_of
from daamctl.reconstruction.vqvae import VQVAE
from daamctl.repair import repair_of
from daamctl.stage_table import STAGES

TRIED_PIXELS = 32 * 64**2
"""Most pixels in a step that is timed on a CPU, where the time grows with them; on a GPU a whole batch is."""
TRIED_STEPS, TRIED_S = 3, 10.0
"""Most steps that are timed, and seconds after which no further one begins. The first is slower than the rest."""


class ReconstructionPlan:
    """Rows of `download`, `crop`, every arm, and `score`.

    Args:
        blockers: `corpus` -> what is missing on this machine, or None.
    """

    def __init__(self, layout: Layout, config: Config, blockers: Blockers) -> None:
        self.layout, self.config, self.blockers = layout, config, blockers
        self.device = resolve_device(config.reconstruct.device)

    def rows(self) -> list[Row]:
        """Every row, in the order of the stages."""
        download = Row("download", work=f"corpus {self.config.download.corpus}", unit="tables", total=1, basis="quick")
        download.done = int(self.layout.utterances.is_file())
        set_state(download, self.blockers.get("corpus"))
        crop = Row("crop", work=f"crops of {self.config.crop.size} pixels", unit="tables", total=1, basis="quick")
        crops = self._crops(crop)
        set_state(crop, None, [download])
        arms = [self._arm(arm, crop, crops) for arm in self.config.reconstructions]
        score = Row("score", work=f"{len(arms)} blocks", unit="tables", total=1, basis="quick")
        made = self.layout.stage("score") / STAGES["score"].finished
        results = [
            path for arm in arms for path in folder_of(self.layout, "reconstruct", arm.method).glob(f"seed*/{RESULT}")
        ]
        newer = made.is_file() and all(path.stat().st_mtime_ns <= made.stat().st_mtime_ns for path in results)
        score.done = int(newer and all(arm.is_done for arm in arms))
        set_state(score, None, arms)
        return [download, crop, *arms, score]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Notes that concern more than one row."""
        if any(row.basis == "measured" for row in rows if not row.is_done):
            return ["measured: some steps were timed on this machine now; other programs slow them down"]
        return []

    def _crops(self, row: Row) -> Crops | None:
        """The table of crops, if it is there and made with the settings."""
        path = self.layout.stage("crop") / CROPS
        if not path.is_file():
            return None
        try:
            found = read_crops(path)
        except ArtifactError as error:
            row.reason, row.fix = error.message, repair_of(path, self.layout)
            return None
        if found.settings != self.config.crop.model_dump(mode="json"):
            row.reason = "it was made with other settings"
            return None
        row.done = 1
        return found

    def _arm(self, arm: str, crop: Row, crops: Crops | None) -> Row:
        settings = self.config.reconstruct
        number = crops.part("train").height if crops is not None else self._expected_crops()
        steps = None if number is None else settings.epochs * (number // settings.batch_size)
        row = Row("reconstruct", arm, unit="trainings", total=len(settings.seeds))
        row.work = "" if steps is None else f"{steps:,} steps"
        row.memory_on, row.about = self.device.partition(":")[0], crops is None and number is not None
        kept = [] if crops is None else self._kept(arm, crops)
        row.done, row.took_s = len(kept), sum(one.train_s for one in kept) or None
        set_state(row, None, [crop])
        with torch.device("meta"):
            state = VQVAE(arm, settings).state_dict()
        each = sum(value.numel() * value.element_size() for value in state.values())
        row.disk_bytes = each * len(settings.seeds)
        row.disk_left_bytes = each * (len(settings.seeds) - row.done)
        if row.is_done or steps is None:
            return row
        left = len(settings.seeds) - row.done
        if kept:
            row.time_s, row.basis = left * sum(one.train_s for one in kept) / len(kept), "recorded"
        else:
            row.time_s, row.basis = left * steps * self._step_s(arm), "measured"
        return row

    def _kept(self, arm: str, crops: Crops) -> list[Reconstruction]:
        """Finished trainings that will be kept."""
        folder, found = self.layout.stage("reconstruct") / arm, []
        for seed in self.config.reconstruct.seeds:
            key = key_of(arm, seed, self.config, crops)
            found.append(training_of(folder, seed, key=key).keep())
        return [one for one in found if one is not None]

    def _expected_crops(self) -> int | None:
        """Training crops by the published counts of the corpus; None if they are not known."""
        corpus: Corpus = CORPORA.load(self.config.download.corpus)
        if corpus.fingerprint is None:
            return None
        groups = corpus.fingerprint.per_group
        total = sum(corpus.fingerprint.per_class.values())
        images = groups["train"] if "train" in groups else total - total // self.config.download.num_groups
        return images * self.config.crop.per_image

    def _step_s(self, arm: str) -> float:
        """Seconds of a training step on the device: the fastest of a few."""
        settings, side = self.config.reconstruct, self.config.crop.size
        size = settings.batch_size
        if self.device == "cpu":
            size = min(size, max(1, TRIED_PIXELS // side**2))
        precision = resolve_precision(settings.precision, self.device, work="convolutions")
        seed_everything(0, self.device)  # with the kernels of a training
        model = VQVAE(arm, settings).to(self.device).train()
        images = torch.rand(size, 3, side, side, device=self.device)
        times: list[float] = []
        while len(times) < TRIED_STEPS and sum(times) < TRIED_S:
            started = time.perf_counter()
            with autocast(self.device, precision):
                found = model(images)
            (found.images.float() - images).square().mean().backward()
            if self.device.startswith("cuda"):
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - started)
        return min(times) * settings.batch_size / size
