"""Whether folds may stand in one table: made from the same embeddings, with the same training settings.

Settings that cannot change a figure (device, list of seeds) are not compared. The download, segment and extract
settings are covered by the embeddings key. A fine-tuned encoder reads clips instead of embeddings and has training
settings of its own: it shares with methods over stored layers the clips, the encoder's weights, loss and selection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from daamctl.adapters.released import SUFFIX, is_published
from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.config.keys import without_effect
from daamctl.config.marks import Changes
from daamctl.errors import ArtifactError

TRAINING = ("train", "finetune")
"""Sections of settings that are read in training."""
COVERED_BY_EMBEDDINGS = frozenset({"download", "segment", "extract"})
HARMLESS = without_effect(Changes.NOTHING, Changes.RUNS)
"""Settings in which runs may differ and still be compared."""


def check_method(method: str, folds: Sequence[Fold], *, fix: str) -> None:
    """Check that the folds of one method were made alike.

    Args:
        method: named in the error.
        folds: its finished folds.
        fix: the command that trains them again.

    Raises:
        ArtifactError: a setting differs; says which, with both values.
    """
    first = folds[0]
    expected = _own(first)
    for other in folds[1:]:
        met = _own(other)
        for name in {**expected, **met}:
            if met.get(name) != expected.get(name):
                raise ArtifactError(
                    f"folds of '{method}' were made with different settings: {name} is {_show(expected.get(name))} in "
                    f"{first.folder.name}, {_show(met.get(name))} in {other.folder.name}",
                    fix=f"train them again: {fix}",
                )


def check_methods(folds: Mapping[str, Sequence[Fold]], config: Config, *, fix: str) -> None:
    """Check that different methods share embeddings, folds, classes and training settings, as far as they have them.

    Args:
        folds: finished folds by method.
        config: settings; what `finetune_settings` gives to one way of fine-tuning is not shared.
        fix: the command that trains them again.

    Raises:
        ArtifactError: a setting differs between two methods; says which, with both values.
    """
    seen: dict[str, tuple[Any, str]] = {}
    for method, items in folds.items():
        way = config.finetune_settings.get(method)
        own = {f"finetune.{name}" for name in way.own} if way else set[str]()
        for fold in items:
            for name, value in _shared(fold).items():
                if name in own:
                    continue
                expected, owner = seen.setdefault(name, (value, method))
                if value != expected:
                    raise ArtifactError(
                        f"methods cannot be compared: {name} is {_show(expected)} for '{owner}', {_show(value)} for "
                        f"'{method}'",
                        fix=f"train what is out of date again: {fix}",
                    )


def differences(fold: Fold, config: Config) -> list[str]:
    """Training settings in which a fold differs from the settings of now, as `train.epochs: 3 (now 35)`."""
    if fold.result["run"].get("finetune"):
        config = config.for_adapter(fold.result["run"]["method"])
    made, now = _training(fold), flat({stage: config.section(stage) for stage in TRAINING})
    return [
        f"{name}: {_show(made[name])} (now {_show(now[name])})"
        for name in made
        if name in now and name not in HARMLESS and made[name] != now[name]
    ]


def _training(fold: Fold) -> dict[str, Any]:
    """The settings that a fold was trained with, under dotted names."""
    config = fold.result["run"]["config"]
    return flat({stage: config[stage] for stage in TRAINING if stage in config})


def _shared(fold: Fold) -> dict[str, Any]:
    run, meta = fold.result["run"], fold.result["meta"]
    encoder = meta["encoder"]
    # the published forms read the same clips in their own way (D14, D47)
    data = f"data_key{SUFFIX if is_published(run['method']) else ''}" if run.get("finetune") else "embeddings_key"
    held = encoder.get("weights_dtype", "float32")  # the hash of the weights is that of this format
    values = {
        data: meta["embeddings_key"],
        f"hash of the encoder's weights in {held}": encoder.get("weights_sha256"),
        "classes": run["classes"],
        "num_folds": run["num_folds"],
        f"test group of fold {run['fold']}": run["test_group"],
        f"clips of fold {run['fold']}": [meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]],
        **_training(fold),
    }
    return {name: value for name, value in values.items() if name not in HARMLESS}


def _own(fold: Fold) -> dict[str, Any]:
    run = fold.result["run"]
    own = {name: part for name, part in run["config"].items() if name not in COVERED_BY_EMBEDDINGS}
    per_fold = f" of fold {run['fold']}"
    values = {**_shared(fold), **flat(own), "layers": run["layers"], "embed_dim": run["embed_dim"]}
    return {name: value for name, value in values.items() if name not in HARMLESS and not name.endswith(per_fold)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return result


def _show(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
