"""Stage `reconstruct`: train a VQ-VAE with one kind of block, once per seed; keep what is finished."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from daamctl.artifacts.inputs import crops_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import training_of
from daamctl.compute.engine import Engine, Units
from daamctl.compute.progress import progress
from daamctl.compute.threads import use_free_cores
from daamctl.config import Config
from daamctl.corpora.sources import root_of
from daamctl.reconstruction import BLOCKS
from daamctl.reconstruction.training import ArmWorker, kept_trainings
from daamctl.store.files import remove_others

log = logging.getLogger(__name__)


def run(
    layout: Layout,
    config: Config,
    *,
    method: str,
    seed: int | None = None,
    force: bool = False,
    engine: Engine | None = None,
) -> Path:
    """Train an arm, and give its folder.

    Args:
        method: the block, a name from `BLOCKS`.
        seed: one seed instead of `reconstruct.seeds`.
        force: train again even what is finished.
        engine: where to train; None: in this process, one seed after the other.

    Raises:
        UnknownNameError: no such block.
        ArtifactError: there is no table of crops.
        CorpusError: an image is gone or damaged.
        TrainingError: there are fewer crops than a batch has.
        DivergedError: a loss is no longer finite.
        WorkerError: a worker of the engine died too often.
    """
    BLOCKS.load(method)
    crops = crops_of(layout, config)
    root = root_of(layout, crops)
    settings = config.reconstruct
    folder = layout.stage("reconstruct") / method
    seeds = settings.seeds if seed is None else (seed,)
    if seed is None:
        remove_others(folder, [f"seed{one}" for one in seeds], "seed*", folders=True)
    done = dict.fromkeys(seeds) if force else kept_trainings(folder, method, config, crops, seeds)
    missing = [one for one, training in done.items() if training is None]
    if len(missing) < len(seeds):
        log.info("%s: %d of %d trainings are finished and kept", method, len(seeds) - len(missing), len(seeds))
    if not missing:
        return folder
    use_free_cores()
    work = layout.work / "reconstruct" / layout.run_name
    open_worker = partial(ArmWorker, method, crops, config, folder=folder, work=work, images=root, force=force)
    # an incomplete last batch is left out, as in training
    steps = settings.epochs * (crops.part("train").height // settings.batch_size)
    with progress(len(missing) * steps * settings.batch_size, f"reconstructing with {method}", "crops") as bar:
        if engine is None or engine.in_process:
            events = open_worker(settings.device).work(missing)
        else:
            events = engine.map(open_worker, missing, device=settings.device)
        for event in events:
            if isinstance(event, Units):
                bar.advance(event.number)
                continue
            found = training_of(folder, event).read()
            log.info(
                "%s seed %d: %d steps, %d of %d codes in use, %.1f s",
                *(method, found.seed, found.steps, found.used, settings.codes, found.train_s),
            )
    return folder
