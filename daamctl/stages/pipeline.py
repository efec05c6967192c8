"""Run the stages of one pipeline in this process: all of them, or a short trial that measures the slow ones."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.runs import trained_methods
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.config import Config
from daamctl.data.stage_table import STAGES, steps_of
from daamctl.errors import MethodError, TrainingError

log = logging.getLogger(__name__)

MEASURED_CLIPS = 48
"""Approximate number of clips on which `measured` tries a pipeline."""
MEASURED_STEPS = 30
"""Steps of a method in the trial. The first one is slow; fine-tuning takes long, so it trains for one epoch only."""
MEASURED_EPOCHS = 10
"""Epochs of a method in the trial, if `train.steps` is null."""


def run(layout: Layout, config: Config, *, source: Path | None = None, track: bool = True) -> Path:
    """Run all stages; finished work with identical inputs is kept.

    Args:
        source: folder or manifest of the corpus, if it is not registered yet.

    Returns:
        The report.

    Raises:
        ConfigError: a setting is wrong, or a device is not there; nothing has run.
        CorpusError, EncoderError: the corpus or the encoder cannot be had here; nothing has run.
    """
    importlib.import_module("daamctl.stages.check").refuse_problems(config, layout.run_name, adapters=True)
    needs = {"corpus": source is None, "encoder": not (layout.embeddings / STAGES["extract"].finished).is_file()}
    inventory = importlib.import_module("daamctl.stages.inventory")
    inventory.require(layout.root, config, [need for need, open_yet in needs.items() if open_yet])
    steps, path = steps_of(config), layout.root
    # with all folds finished, training needs no device; extraction always asks for it
    done = {"extract": not config.has_encoder, "reconstruct": layout.stage("reconstruct").exists()}
    for stage in dict.fromkeys(stage for stage, _ in steps):
        settings: Any = getattr(config, stage, None)
        if hasattr(settings, "device") and not done.get(stage, bool(trained_methods(layout))):
            device = resolve_device(settings.device)
            resolve_precision(getattr(settings, "precision", "auto"), device, work="other")
    for number, (stage, entry) in enumerate(steps, start=1):
        options: dict[str, Any] = {"track": track} if STAGES[stage].tracked else {}
        if stage == "download":
            options["source"] = source
        if entry is not None:
            options["method"] = entry
        log.info("[%d/%d] %s", number, len(steps), f"{stage} {entry}" if entry else stage)
        path = importlib.import_module(f"daamctl.stages.{stage}").run(layout, config, **options)
        if stage == "extract":  # before hours of training
            for leak in importlib.import_module("daamctl.planning.leaks").leaks(layout, config):
                log.warning(leak)
    return path


@contextmanager
def measured(layout: Layout, config: Config) -> Iterator[Layout]:
    """Run extraction, training and fine-tuning on a few clips in a temporary folder, to record how long they take.

    Args:
        layout: locations of artifacts; the clip table is made if it does not exist.
        config: all settings; fewer steps are trained, and fine-tuning searches nothing.

    Yields:
        The layout of the temporary folder. A method that fails is left out, with a warning.

    Raises:
        ArtifactError: the clip table is damaged.
        EncoderError, CorpusError, AudioError: the clips cannot be embedded.
    """
    from daamctl.artifacts.clips import read_clips, write_clips
    from daamctl.corpora.sources import register, source_of

    if not layout.clips.is_file():
        for name in ("download", "segment"):  # which take seconds
            importlib.import_module(f"daamctl.stages.{name}").run(layout, config)
    clips = read_clips(layout.clips)
    each = -(-MEASURED_CLIPS // clips.rows["group"].n_unique())
    rows = clips.rows.sample(fraction=1.0, shuffle=True, seed=0).group_by("group", maintain_order=True).head(each)
    once = {"search": "none", "epochs": 1}
    length = {"epochs": MEASURED_EPOCHS} if config.train.steps is None else {"steps": MEASURED_STEPS}
    changes = {
        "train": config.train.model_copy(update=length),  # with the candidates, which are trained together
        "finetune": config.finetune.model_copy(update=once),
        "finetune_settings": {name: own.model_copy(update=once) for name, own in config.finetune_settings.items()},
    }
    config = config.model_copy(update=changes)
    with TemporaryDirectory(prefix=".measure-", dir=layout.data) as folder:
        trial = replace(layout, root=Path(folder))
        write_clips(trial.clips, replace(clips, rows=rows.sort("clip_id")))
        known = source_of(layout.root, clips.corpus, clips.content)
        if (source := known or source_of(layout.root, clips.corpus)) is not None:
            register(trial.root, clips.corpus, source, clips.content if known else "")
        logger = logging.getLogger("daamctl")
        level = logger.level
        logger.setLevel(logging.WARNING)  # the results of the trial mean nothing
        try:
            _try_stages(trial, config)
        finally:
            logger.setLevel(level)
        yield trial


def _try_stages(trial: Layout, config: Config) -> None:
    """Run extraction, and train one fold of every method."""
    importlib.import_module("daamctl.stages.extract").run(trial, config)
    for stage, methods in (("train", config.methods), ("finetune", config.finetunes)):
        run_stage = importlib.import_module(f"daamctl.stages.{stage}").run
        for method in methods:
            try:
                run_stage(trial, config, method=method, fold=1, seed=config.train.seeds[0], track=False)
            except (MethodError, TrainingError) as error:
                log.warning("%s: not measured: %s", method, error.message)
