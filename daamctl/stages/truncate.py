"""`truncate`: how few layers of the encoder are enough for a method.

Trains the method on layers 1 to k for every k, and on every single layer, from the stored embeddings, as the train
stage does. Tests that k layers are not worse than all layers by a margin, and tells what they cost
(docs/sources.md#shortest-encoder). Writes `data/truncate/<run>/layers-1-to-<k>-<method>/fold*/`, `layer-<k>-<method>/`,
layers.parquet and truncation.json, see `daamctl.artifacts.layer_sets`. It is not a stage of the DAG; the report shows
its result.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from daamctl.adapters import stage_of
from daamctl.artifacts.layer_sets import TRUNCATION, LayerRow, Truncation, layers_name, write_layer_sets
from daamctl.artifacts.results import Fold
from daamctl.artifacts.runs import find_run
from daamctl.artifacts.scores import ALPHA
from daamctl.artifacts.terms import counted
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.config import Config
from daamctl.encoders.cost import outline_shares, parameter_shares, time_shares
from daamctl.encoders.encoder_size import configuration_of
from daamctl.encoders.load import open_encoder
from daamctl.errors import ConfigError, EncoderError
from daamctl.evaluation.comparison import item_table, not_worse
from daamctl.evaluation.fairness import judge
from daamctl.evaluation.scores import run_rows
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.trials import primary_not_worse
from daamctl.fit.features import Features, load_features
from daamctl.fit.subsets import misfits, train_on_layers
from daamctl.fit.tracking import Tracker
from daamctl.methods import resolve_method
from daamctl.store.provenance import device_name

log = logging.getLogger(__name__)

PROBE = "ridge-concat"
"""Method if none is named: closed-form, so quick, and it uses every layer that it is given."""
MARGIN = 0.02
Layers = tuple[int, ...]


class _Cost(NamedTuple):
    """Shares of the encoder up to each layer, from layer 0 on; None: unknown."""

    time: list[float] | None = None
    parameters: list[float] | None = None
    device: str | None = None
    note: str | None = None


def run(root: Path, name: str, *, margin: float = MARGIN, force: bool = False) -> Path:
    """Find the shortest encoder that is enough.

    Args:
        name: `PIPELINE/METHOD`, or a pipeline alone for a closed-form probe; a run without a pipeline likewise.
        margin: largest difference in accuracy, or entity F1 of taggers, that counts as not worse, as a fraction.
        force: train again even what is finished.

    Returns:
        Path of truncation.json.

    Raises:
        UnknownNameError: there is no such pipeline, run or method.
        ConfigError: the method fine-tunes the encoder, or the embeddings have one layer.
        ArtifactError: there are no embeddings, or ones with other settings.
        MethodError: the method does not fit the embeddings.
    """
    run_name, _, method = name.partition("/")
    layout, config = find_run(root, run_name)
    method = method or PROBE
    if stage_of(method) == "finetune":
        raise ConfigError(
            f"'{method}' fine-tunes the encoder, so it cannot be trained again from stored layers",
            fix=f"daamctl truncate {run_name}, or with a method of: daamctl ls methods",
        )
    resolve_method(method)
    features = load_features(layout, config)
    if len(features.layers) < 2:
        raise ConfigError(f"the embeddings of '{run_name}' have one layer, so there is nothing to leave out")
    every, unit, task = features.layers, config.evaluate.unit, features.head.task
    sets, notes = _fitting(method, config, features)
    folder = layout.stage("truncate")
    folder.mkdir(parents=True, exist_ok=True)
    folds: dict[str, list[Fold]] = {}
    for layers in sets:
        name = layers_name(layers)
        target = folder / f"{name}-{method}"
        folds[name] = train_on_layers(method, features, layers, target, layout, config, Tracker(), force=force)
    cost, whole = _cost(config, features), layers_name(every)
    items = {
        name: item_table(own, [items_of(one.predictions(), unit, task) for one in own]) for name, own in folds.items()
    }
    design, by_accuracy = not_worse(items, reference=whole, margin=margin, task=task, alpha=ALPHA)
    tested = primary_not_worse(folds, by_accuracy, reference=whole, margin=margin, alpha=ALPHA)
    rows: list[LayerRow] = []
    for layers in sets:
        name, found = layers_name(layers), tested[layers_name(layers)]
        rows += run_rows(name, layers, folds[name], unit)
        if not task.by_accuracy and "accuracy" in task.metrics:
            rows.append(LayerRow(name, layers, method, "accuracy", by_accuracy[name].value))
        time, parameters = (None if shares is None else shares[layers[-1]] for shares in (cost.time, cost.parameters))
        rows.append(
            LayerRow(name, layers, method, task.primary, found.value, difference=found.difference,
                     difference_low=found.low, difference_high=found.high, p=found.p, time=time, parameters=parameters)
        )  # fmt: skip
    result = Truncation(
        run=layout.run_name,
        method=method,
        label=folds[whole][0].label,
        unit=unit,
        modality=features.head.modality,
        embeddings_key=features.head.key,
        rows=rows,
        margin=margin,
        alpha=ALPHA,
        level=1 - 2 * ALPHA,
        design=design,
        device=cost.device,
    )
    if design.unit != "speaker":
        result.notes.append(f"{design.reason[0].upper()}{design.reason[1:]}.")
    result.notes.extend([*notes, *([cost.note] if cost.note else [])])
    # a method that learned nothing on all layers loses nothing on fewer
    for where, one in (("all layers", result.whole), ("the fewer layers", result.shortest)):
        judged = one and judge(folds[one.set], {}, unit=unit, margin=config.evaluate.margin)
        if judged and judged.status == "learned nothing":
            result.notes.append(f"{method} on {where}: {'; '.join(judged.reasons)}.")  # the answer says the rest
            result = replace(result, nothing=where)
            break
    return write_layer_sets(folder / TRUNCATION, result, (fold for own in folds.values() for fold in own))


def _fitting(method: str, config: Config, features: Features) -> tuple[list[Layers], list[str]]:
    """All layers, shorter prefixes by falling k, and single layers; without those that the method does not fit."""
    every = features.layers
    # layer 0 alone is the input of the first layer, which costs nothing
    prefixes = [every[:number] for number in range(len(every), 0, -1) if every[number - 1] >= 1]
    wanted = list(dict.fromkeys([*prefixes, *((layer,) for layer in every)]))
    unfit = misfits(method, {len(layers) for layers in wanted}, features, config)
    # without the whole there is nothing to compare with
    if len(every) in unfit:
        raise unfit[len(every)]
    notes = [f"Not trained on {counted(size, 'layer')}: {error.message}." for size, error in sorted(unfit.items())]
    return [layers for layers in wanted if len(layers) not in unfit], notes


def _cost(config: Config, features: Features) -> _Cost:
    """Measure the encoder if it is on this machine; else count its parameters if its shape is known."""
    if not config.has_encoder:
        return _Cost(note="The embeddings are given, so the cost of their layers is unknown.")
    modality: Any = features.head.modality
    found = configuration_of(config.extract, modality)
    if found is None:
        return _Cost(note="The encoder is not on this machine, so the cost of its layers is unknown.")
    configuration, here = found
    note = "The encoder is not on this machine, so its time was not measured."
    if here:
        try:
            return _measured(config, features)
        except (ConfigError, EncoderError) as error:  # of the device, or of the encoder
            note = f"The encoder's time was not measured: {error.message}."
    return _Cost(parameters=_matching(outline_shares(configuration), features), note=note)


def _measured(config: Config, features: Features) -> _Cost:
    device = resolve_device(config.extract.device)
    log.info("measuring the time of the encoder's layers on %s", device)
    opened = open_encoder(
        config.extract,
        modality=features.head.modality,
        max_duration_s=config.segment.max_duration_s,
        device=device,
        precision=resolve_precision(config.extract.precision, device, work="encoder"),
        # hashing takes longer than measuring does, and nothing here is kept by it
        weights_sha256="not needed",
    )
    # the time of a layer is taken by its hook
    if not opened.encoder.pooler.layers:
        raise EncoderError("hooks cannot read its layers")
    parameters = _matching(parameter_shares(opened.encoder), features)
    time = _matching(time_shares(opened.encoder), features)
    if time is None:
        return _Cost(note="The encoder on this machine has another number of layers than the embeddings.")
    return _Cost(time, parameters, device_name(device))


def _matching(shares: list[float] | None, features: Features) -> list[float] | None:
    """The shares, if the encoder has as many layers as the embeddings."""
    return shares if shares is not None and len(shares) == max(features.layers) + 1 else None
