"""`truncate`: how few layers of the encoder are enough for a method.

Trains the method on layers 1 to k for every k, and on every single layer, from the stored embeddings, as the train
stage does. Tests that k layers are not worse than all layers by a margin, and tells what they cost
(docs/sources.md#shortest-encoder). Writes `data/truncate/<run>/layers-1-to-<k>-<method>/fold*/`, `layer-<k>-<method>/`
and truncation.json, see `daamctl.artifacts.truncation`. It is not a stage of the DAG; the report shows its result.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from daamctl.adapters import stage_of
from daamctl.artifacts.results import RESULT, Fold
from daamctl.artifacts.runs import find_run
from daamctl.artifacts.statistics import Design
from daamctl.artifacts.terms import counted
from daamctl.artifacts.truncation import FILE, LayersResult, NonInferiority, Truncation, layers_name
from daamctl.artifacts.utterances import encoder_input
from daamctl.config import Config
from daamctl.devices import resolve_device, resolve_precision
from daamctl.encoders.cost import outline_shares, parameter_shares, time_shares
from daamctl.encoders.encoder_size import PARTS, configuration_of
from daamctl.encoders.load import open_encoder
from daamctl.errors import ConfigError, EncoderError, MethodError
from daamctl.evaluation.comparison import item_table, not_worse
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.statistics import passed_in_sequence
from daamctl.evaluation.trials import primary_not_worse
from daamctl.fit.features import Features, load_features
from daamctl.fit.subsets import train_on_layers
from daamctl.fit.trial import build_method
from daamctl.methods import resolve_method
from daamctl.provenance import device_name
from daamctl.store.records import hashes_of, write_record
from daamctl.tracking import make_tracker

log = logging.getLogger(__name__)

PROBE = "ridge-concat"
"""Method if none is named: closed-form, so quick, and it uses every layer that it is given."""
MARGIN = 0.02
ALPHA = 0.05
Layers = tuple[int, ...]


@dataclass(frozen=True)
class _Cost:
    """Shares of the encoder up to each layer, from layer 0 on; None: unknown."""

    time: list[float] | None = None
    parameters: list[float] | None = None
    device: str | None = None
    note: str | None = None

    def up_to(self, layer: int) -> tuple[float | None, float | None]:
        """Shares of time and of parameters up to a layer."""
        time, parameters = (None if shares is None else shares[layer] for shares in (self.time, self.parameters))
        return time, parameters


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
    chosen, notes = _fitting(method, config, features)
    folder = layout.stage("truncate")
    folder.mkdir(parents=True, exist_ok=True)
    folds: dict[Layers, list[Fold]] = {}
    with closing(make_tracker(root, enabled=False)) as tracker:
        for layers in chosen:
            target = folder / f"{layers_name(layers)}-{method}"
            folds[layers] = train_on_layers(
                method, features, layers, target, layout, config, tracker, force=force
            )  # fmt: skip
    cost = _cost(config, features)
    result = _result(layout.run_name, method, config, features, folds, cost, margin)
    own = {fold.folder / RESULT for group in folds.values() for fold in group if fold.folder.is_relative_to(folder)}
    result = replace(
        result,
        notes=[*result.notes, *notes, *([cost.note] if cost.note else [])],
        files=hashes_of(folder, own),
    )
    write_record(folder / FILE, result.as_json())
    return folder / FILE


def _fitting(method: str, config: Config, features: Features) -> tuple[list[Layers], list[str]]:
    """All layers, shorter prefixes by falling k, and single layers; without those that the method does not fit.

    Raises:
        MethodError: it does not fit all layers.
    """
    every = features.layers
    prefixes = [every[:number] for number in range(len(every), 0, -1) if every[number - 1] >= 1]
    wanted = list(dict.fromkeys([*prefixes, *((layer,) for layer in every)]))
    unfit: dict[int, str] = {}
    for size in {len(layers) for layers in wanted}:
        try:
            with torch.device("meta"):
                build_method(method, config, size, features.head.embed_dim, len(features.head.classes))
        except MethodError as error:
            if size == len(every):
                raise
            unfit[size] = error.message
    notes = [f"Not trained on {counted(size, 'layer')}: {why}." for size, why in sorted(unfit.items())]
    return [layers for layers in wanted if len(layers) not in unfit], notes


def _result(
    run_name: str,
    method: str,
    config: Config,
    features: Features,
    folds: dict[Layers, list[Fold]],
    cost: _Cost,
    margin: float,
) -> Truncation:
    """Score the folds and test every prefix against all layers."""
    unit, every = config.evaluate.unit, features.layers
    tables = {
        layers_name(layers): item_table(group, [items_of(fold.predictions(), unit) for fold in group])
        for layers, group in folds.items()
    }
    design, tested = not_worse(
        tables, reference=layers_name(every), margin=margin, task=features.head.task, alpha=ALPHA
    )
    named = {layers_name(layers): group for layers, group in folds.items()}
    tested = primary_not_worse(named, tested, reference=layers_name(every), margin=margin, alpha=ALPHA)
    prefixes = [layers for layers in folds if layers == every[: len(layers)] and layers != every and layers[-1] >= 1]
    p_values = [tested[layers_name(layers)].p for layers in prefixes]
    passed = passed_in_sequence(p_values, alpha=ALPHA)
    enough = [place < passed if place <= passed and p is not None else None for place, p in enumerate(p_values)]

    def result(layers: Layers, enough: bool | None = None) -> LayersResult:
        time, parameters = cost.up_to(layers[-1])
        return LayersResult(
            **vars(tested[layers_name(layers)]), layers=list(layers), time=time, parameters=parameters, enough=enough
        )

    return Truncation(
        run=run_name,
        method=method,
        label=folds[every][0].label,
        unit=unit,
        modality=features.head.modality,
        margin=margin,
        alpha=ALPHA,
        level=1 - 2 * ALPHA,
        design=design,
        embeddings_key=features.head.key,
        whole=result(every),
        prefixes=[result(layers, one) for layers, one in zip(prefixes, enough, strict=True)][::-1],
        singles=[result((layer,)) for layer in every if (layer,) in folds],
        smallest=prefixes[passed - 1][-1] if passed else None,
        device=cost.device,
        notes=_notes(design, [tested[layers_name(layers)] for layers in prefixes]),
    )


def _notes(design: Design, tested: Sequence[NonInferiority]) -> list[str]:
    """What limits the tests."""
    notes = []
    if design.unit != "speaker":
        notes.append(f"{design.reason[0].upper()}{design.reason[1:]}.")
    floors = [one.floor for one in tested if one.floor is not None]
    if floors and max(floors) > ALPHA:
        notes.append(
            f"With {counted(design.n_units or 0, design.unit_word)}, no p-value below {max(floors):.2g} exists."
        )
    return notes


def _cost(config: Config, features: Features) -> _Cost:
    """Measure the encoder if it is on this machine; else count its parameters if its shape is known."""
    if not config.has_encoder:
        return _Cost(note="The embeddings are given, so the cost of their layers is unknown.")
    modality: Any = features.head.modality
    found = configuration_of(config.extract)
    if found is None:
        return _Cost(note="The encoder is not on this machine, so the cost of its layers is unknown.")
    configuration, here = found
    note = "The encoder is not on this machine, so its time was not measured."
    if here:
        try:
            return _measured(config, features, modality)
        except (ConfigError, EncoderError) as error:  # of the device, or of the encoder
            note = f"The encoder's time was not measured: {error.message}."
    part = getattr(configuration, PARTS.get(encoder_input(modality), ""), None) or configuration
    return _Cost(parameters=_matching(outline_shares(part), features), note=note)


def _measured(config: Config, features: Features, modality: Any) -> _Cost:
    device = resolve_device(config.extract.device)
    log.info("measuring the time of the encoder's layers on %s", device)
    opened = open_encoder(
        config.extract,
        modality=modality,
        max_duration_s=config.segment.max_duration_s,
        device=device,
        precision=resolve_precision(config.extract.precision, device, work="encoder"),
        weights_sha256="not needed",
    )
    parameters = _matching(parameter_shares(opened.encoder), features)
    time = _matching(time_shares(opened.encoder), features)
    if time is None:
        return _Cost(note="The encoder on this machine has another number of layers than the embeddings.")
    return _Cost(time, parameters, device_name(device))


def _matching(shares: list[float] | None, features: Features) -> list[float] | None:
    """The shares, if the encoder has as many layers as the embeddings."""
    return shares if shares is not None and len(shares) == max(features.layers) + 1 else None
