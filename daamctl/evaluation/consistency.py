"""Check that folds can be compared, and that an evaluation is of the folds that are there now.

Folds can be compared if they have the same embeddings and the same training settings.
Settings that cannot change a score (device, list of seeds) are ignored. The embeddings key covers the download, segment
and extract settings. A fine-tuned encoder reads clips instead of embeddings and has its own training settings; it must
agree with the methods over stored layers in clips, encoder weights, loss and selection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from daamctl.adapters import stage_of
from daamctl.adapters.released import SUFFIX, is_published
from daamctl.artifacts.evaluation import Evaluation, Run
from daamctl.artifacts.importance import Importance
from daamctl.artifacts.layer_sets import Ablation, LayerSets
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.protocols import Protocols
from daamctl.artifacts.results import Fold, fold_dirs, intact_folds, read_folds
from daamctl.artifacts.runs import find_run
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config
from daamctl.config.keys import embedding_settings, finetuning_data_settings, without_effect
from daamctl.config.marks import Affects
from daamctl.errors import ArtifactError, ConfigError, first_few
from daamctl.store.differences import flat

TRAINING = ("train", "finetune")
"""Sections of settings that are read in training."""
COVERED_BY_EMBEDDINGS = frozenset({"download", "segment", "extract"})
HARMLESS = without_effect(Affects.NOTHING, Affects.RUNS)
"""Settings in which comparable runs may differ."""
NULL_IF_ABSENT = tuple(name for name in sorted(without_effect(Affects.IF_SET)) if name.startswith("train."))
"""Settings that some folds do not record; absent means null."""


def check_method(method: str, folds: Sequence[Fold]) -> None:
    """Check that all folds of a method were made with the same settings.

    Raises:
        ArtifactError: a setting differs.
    """
    first = folds[0]
    expected = _own(first)
    for other in folds[1:]:
        found = _own(other)
        for name in {**expected, **found}:
            if found.get(name) != expected.get(name):
                raise ArtifactError(
                    f"folds of '{method}' were made with different settings: {name} is {_show(expected.get(name))} in "
                    f"{first.folder.name}, {_show(found.get(name))} in {other.folder.name}",
                    path=other.folder.parent,
                )


def check_methods(folds: Mapping[str, Sequence[Fold]], config: Config) -> None:
    """Check that different methods share embeddings, folds, classes and training settings, as far as they have them.

    Args:
        folds: method -> its finished folds.
        config: settings; those that `finetune_settings` gives to one method need not be shared.

    Raises:
        ArtifactError: a setting differs between two methods.
    """
    seen: dict[str, tuple[Any, Fold]] = {}
    for method, part in folds.items():
        adapter = config.finetune_settings.get(method)
        own = {f"finetune.{name}" for name in adapter.own} if adapter else set[str]()
        for fold in part:
            for name, value in _shared(fold).items():
                if name in own:
                    continue
                expected, other = seen.setdefault(name, (value, fold))
                if value == expected:
                    continue
                if name.startswith(("data_key", "embeddings_key")):  # a setting that the hash covers says more
                    one, two = (flat(each.result["run"]["config"]) for each in (other, fold))
                    for setting, usual in flat(_data(fold, Config())).items():
                        values = one.get(setting, usual), two.get(setting, usual)
                        if values[0] != values[1]:
                            name, (expected, value) = setting, values
                            break
                old = [each for each in (other, fold) if _changed(each, config)]
                raise ArtifactError(
                    f"methods cannot be compared: {name} is {_show(expected)} for '{other.result['run']['method']}', "
                    f"{_show(value)} for '{method}'",
                    # where no setting tells which one is out of date, `run` makes that one again
                    path=old[-1].folder.parent if old else fold.folder.parent.parent,
                )


def differences(fold: Fold, config: Config) -> list[str]:
    """Training settings in which a fold differs from the current settings, e.g. `train.epochs: 3 (now 35)`."""
    if fold.result["run"].get("finetune"):
        config = config.for_adapter(fold.result["run"]["method"])
    made, now = _training(fold), flat({stage: config.section(stage) for stage in TRAINING})
    return [
        f"{name}: {_show(made[name])} (now {_show(now[name])})"
        for name in made
        if name in now and name not in HARMLESS and made[name] != now[name]
    ]


def scored_folds(layout: Layout, config: Config, evaluation: Evaluation) -> tuple[list[Fold], list[str]]:
    """The folds behind an evaluation, and what makes it out of date, with the command to run."""
    again = layout.command("evaluate")
    found: list[Fold] = []
    absent, changed = [], []
    for name, entry in evaluation.methods.items():
        stage = stage_of(name)
        trained = {(fold.fold, fold.seed): fold for fold in read_folds(layout.method(name))}
        rows = {row.run: row for row in entry.runs}
        found += [trained[run] for run in rows if run in trained]
        if not rows.keys() <= trained.keys():
            absent.append(name)
        wanted = {run for run in trained if run in rows or run[1] in config.seeds_of(stage)}
        if not all(run in rows and is_scored(trained[run], rows[run]) for run in wanted):
            changed.append(name)
    new = [name for name in config.trained if name not in evaluation.methods and name not in evaluation.skipped]
    stale = []
    if absent:
        stale.append(
            f"Trained folds are missing for {', '.join(absent)}, so details that only they contain are missing."
        )
    if changed:
        stale.append(f"These methods were trained again after scoring: {', '.join(changed)}. To update, run: {again}")
    if new:
        untrained = layout.pipeline and any(not fold_dirs(layout.method(name)) for name in new)
        make = layout.command("run") if untrained else again
        stale.append(f"These methods are in the settings but not scored: {', '.join(new)}. To score them, run: {make}")
    return found, stale


def other_settings(layout: Layout, config: Config, evaluation: Evaluation, folds: Sequence[Fold]) -> list[str]:
    """A line on the settings in which folds differ from those in the files of the project, if they do.

    Before it, a line on those of `evaluate` that the evaluation does not have, with the command that gives it them.

    Args:
        config: settings, perhaps with some of the command line.
        evaluation: its notes may tell some of them already.
    """
    lines = []
    if others := scored_otherwise(evaluation, config):
        again = layout.command("evaluate")
        lines.append(f"The evaluation has other settings of evaluate: {', '.join(others)}. To update, run: {again}")
    if layout.overrides:
        with suppress(ConfigError):  # the files may be valid only with the options given
            config = find_run(layout.root, layout.run_name)[1]
    found: dict[str, None] = {}
    for fold in folds:
        found |= dict.fromkeys(_changed(fold, config))
    rest = [text for text in found if not any(text in note for note in evaluation.notes)]
    file = f"{PIPELINES_DIR}/{layout.pipeline}.yaml" if layout.pipeline else PARAMS_FILE
    if rest:
        lines.append(f"These results were made with other settings than those of {file}: {first_few(rest)}.")
    return lines


def scored_otherwise(evaluation: Evaluation, config: Config) -> list[str]:
    """Settings of `evaluate` that an evaluation does not have, e.g. `unit 'utterance' (now 'clip')`."""
    scored = {
        "reference": (evaluation.comparison.reference, config.reference),
        "unit": (evaluation.main_unit, config.evaluate.unit),
        "margin": (evaluation.fairness.margin, config.evaluate.margin),
    }
    return [f"{name} {_show(had)} (now {_show(now)})" for name, (had, now) in scored.items() if had != now]


def layers_otherwise(
    folder: Path, found: LayerSets, unit: str, folds: Sequence[Fold], *, config: Config | None = None
) -> list[str]:
    """Settings in which a result on sets of layers differs from an evaluation, e.g. `train.shots: null (now 4)`.

    Args:
        folder: of the result, with the folds that were trained for it.
        unit: of the evaluation.
        folds: those behind the evaluation; of the same method if there are any, which have all its settings.
        config: settings, of which `ablate` chooses the sets; None: how they were chosen does not count.
    """
    changed = [] if found.unit == unit else [f"evaluate.unit: {_show(found.unit)} (now {_show(unit)})"]
    if config is not None and isinstance(found, Ablation):
        changed += _differing("ablate", found.settings, config.section("ablate"))
        if not _among(found.folds, folds):
            changed.append(f"layers ranked by an earlier training of '{found.rank_by}'")
    parts = (intact_folds(folder / f"{name}-{found.method}") for name in sorted({row.set for row in found.rows}))
    made = next((part[0] for part in parts if part), None)  # all were made with the same settings
    if made is None:
        return changed
    own = [fold for fold in folds if fold.result["run"]["method"] == found.method]
    facts = _own if own else _training
    before = facts(made)
    for fold in own or folds:
        now = facts(fold)
        for name in {**before, **now}:
            same = before.get(name) == now.get(name) or name in HARMLESS or name == "layers"
            if not same and (own or (name in before and name in now)):
                changed.append(f"{name}: {_show(before.get(name))} (now {_show(now.get(name))})")
    return list(dict.fromkeys(changed))


def protocols_otherwise(found: Protocols, evaluation: Evaluation, folds: Sequence[Fold]) -> list[str]:
    """Settings in which a result of `protocols` differs from an evaluation and the folds behind it."""
    changed = [] if found.item == evaluation.item else [f"scored per {found.item} (now per {evaluation.item})"]
    for fold in folds:
        changed += _differing("train", found.train, fold.result["run"]["config"]["train"])
    return list(dict.fromkeys(changed))


def scores_otherwise(found: Importance, evaluation: Evaluation, folds: Sequence[Fold]) -> list[str]:
    """In what layer scores differ from an evaluation and the folds behind it, e.g. `per utterance (now per clip)`."""
    changed = [] if _among(found.folds, folds) else ["of folds that are not these"]
    unit = found.probed and evaluation.task.unit(found.probed.unit)
    if unit and unit != evaluation.item:
        changed.append(f"per {unit} (now per {evaluation.item})")
    return changed


def is_scored(fold: Fold, row: Run) -> bool:
    """Whether a row of an evaluation was computed from this fold and not from another training."""
    run, meta = fold.result["run"], fold.result["meta"]
    return row.train_s == meta["train_s"] and row.num_parameters == run["num_parameters"]


def _changed(fold: Fold, config: Config) -> list[str]:
    """Settings of data and training in which a fold differs from the current ones, as `differences` writes them."""
    made, usual, now = fold.result["run"]["config"], *(_data(fold, one) for one in (Config(), config))
    changed = [
        f"{stage}.{name}: {_show(before)} (now {_show(value)})"
        for stage in now.keys() & made.keys()
        for name, value in now[stage].items()
        if (before := made[stage].get(name, usual[stage].get(name))) != value
    ]
    return sorted(changed) + differences(fold, config)


def _data(fold: Fold, config: Config) -> dict[str, dict[str, Any]]:
    """Settings, by section, that decide which vectors or items a fold was trained on."""
    modality: Any = fold.modality
    found = embedding_settings(config, modality)
    return found | (
        {"extract": finetuning_data_settings(config, modality)} if fold.result["run"].get("finetune") else {}
    )


def _training(fold: Fold) -> dict[str, Any]:
    """Settings that a fold was trained with, by dotted name."""
    config = fold.result["run"]["config"]
    made = flat({stage: config[stage] for stage in TRAINING if stage in config})
    return {**dict.fromkeys(NULL_IF_ABSENT), **made}


def _shared(fold: Fold) -> dict[str, Any]:
    """Facts that all methods of a comparison must share."""
    run, meta = fold.result["run"], fold.result["meta"]
    encoder = meta["encoder"]
    # the published variants prepare the same clips differently (D14, D47)
    data = f"data_key{SUFFIX if is_published(run['method']) else ''}" if run.get("finetune") else "embeddings_key"
    dtype = encoder.get("weights_dtype", "float32")  # the hash of the weights depends on their number format
    clips = [meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]]
    if fold.is_few_shot:  # every seed draws other sentences
        clips = clips[2:]
    values = {
        f"hash of the encoder's weights in {dtype}": encoder.get("weights_sha256"),
        "classes": run["classes"],
        "num_folds": run["num_folds"],
        f"test group of fold {run['fold']}": run["test_group"],
        f"clips of fold {run['fold']}": clips,
        **_training(fold),
        data: meta["embeddings_key"],  # last, so that a setting that differs is named before the hash
    }
    return {name: value for name, value in values.items() if name not in HARMLESS}


def _own(fold: Fold) -> dict[str, Any]:
    """Facts that all folds of a method must share."""
    run = fold.result["run"]
    own = {name: part for name, part in run["config"].items() if name not in COVERED_BY_EMBEDDINGS}
    per_fold = f" of fold {run['fold']}"
    values = {**_shared(fold), **flat(own), "layers": run["layers"], "embed_dim": run["embed_dim"]}
    return {name: value for name, value in values.items() if name not in HARMLESS and not name.endswith(per_fold)}


def _differing(section: str, had: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that both have, with other values."""
    differ = [name for name, value in had.items() if name in now and now[name] != value]
    return [f"{section}.{name}: {_show(had[name])} (now {_show(now[name])})" for name in differ]


def _among(keys: Sequence[str], folds: Sequence[Fold]) -> bool:
    return {*keys} <= {fold.result["run"]["key"] for fold in folds}


def _show(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
