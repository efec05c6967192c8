"""The number format of training steps. Where the setting is `auto`, one for all methods of a run, on every machine."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from daamctl.artifacts.results import intact_folds
from daamctl.config import TrainingStage
from daamctl.devices import resolve_precision
from daamctl.errors import ConfigError
from daamctl.methods import METHODS, resolve_method, settings_of
from daamctl.store.files import locked, read_json, write_json

if TYPE_CHECKING:
    from daamctl.fit.trial import FoldSpec

log = logging.getLogger(__name__)


def run_precision(spec: FoldSpec, stage: TrainingStage, device: str) -> str:
    """Resolve the setting of a stage for a training.

    `auto` is settled by the first training of a run, which notes it among the unfinished work; where that note is gone,
    finished folds tell it. On a CPU it means bfloat16 if a method of the run has 2-D convolutions and these are faster
    in it: they gain more than the small matrices of the other methods lose.

    Args:
        spec: the training; without a layout it belongs to no run.

    Raises:
        ConfigError: the device does not support the format.
    """
    config, layout = spec.config, spec.layout
    setting = config.finetune.precision if stage == "finetune" else config.train.precision
    methods = {spec.method, *(config.methods if layout else ())} if stage == "train" else ()
    convolves = any(_convolves(method, config.method_settings) for method in methods)
    own = resolve_precision(setting, device, work="convolutions" if convolves else "other")
    if setting != "auto" or layout is None:
        return own
    note = layout.work / stage / layout.run_name / "precision.json"
    with locked(note.with_suffix(".lock"), what="a note of the number format"):
        if not note.exists():
            place = layout.method("")
            folds = [fold for path in place.glob("*/") for fold in intact_folds(path)]
            made = Counter(
                fold.result["meta"]["precision"]
                for fold in folds
                if fold.result["run"]["config"].get(stage, {}).get("precision") == "auto"
            )
            write_json(note, made.most_common(1)[0][0] if made else own)
        noted = str(read_json(note, fix=f"delete {note}"))
    if noted == "float16" and device == "cpu":
        raise ConfigError(
            f"{stage}.precision is auto, and other folds of '{layout.run_name}' were trained in float16, which needs a "
            "GPU",
            fix=f"train on a GPU, or train all methods again with --set {stage}.precision=float32",
        )
    if noted != own:
        log.info("trained in %s, as other folds of '%s'; alone, 'auto' means %s here", noted, layout.run_name, own)
    return noted


def _convolves(method: str, method_settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a method has the convolutional decoder."""
    default = METHODS.defaults(resolve_method(method)[0]).get("decoder")
    return settings_of(method, method_settings).get("decoder", default) == "conv"
