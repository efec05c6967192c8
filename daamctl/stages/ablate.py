"""Stage `ablate`: retrain on the layers of highest and lowest Importance Factor, the papers' layers, and given layers.

A closed-form probe of the same input is trained beside the method on every set of layers, to judge how well it was
trained. Writes `data/ablate/<run>/<set>-<method>/fold*/`, layers.parquet and ablation.json, see
`daamctl.artifacts.layer_sets`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch

from daamctl.artifacts.layer_sets import ABLATION, ALL, Ablation, Contrast, minus, over_runs, write_layer_sets
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_folds
from daamctl.compute.devices import seed_torch
from daamctl.config import Config
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.evaluation.fairness import judge
from daamctl.evaluation.layer_sets import PRESETS, alone_tests, choose_sets, contradiction, cut_ties, set_name
from daamctl.evaluation.scores import run_rows
from daamctl.fit.features import Features, load_features
from daamctl.fit.subsets import misfits, train_on_layers
from daamctl.fit.tracking import make_tracker, send_missing
from daamctl.fit.trial import build_method
from daamctl.methods import counterparts, resolve_method
from daamctl.methods.activity_check import constant_weight
from daamctl.planning.layer_sets import TIED, choose_method, choose_ranking, layer_scores, ranked, tied, why_nothing
from daamctl.store.files import remove_others

log = logging.getLogger(__name__)

FIXES: tuple[dict[str, Any], ...] = (
    {"num_heads": "auto"},
    {"variance": "biased"},  # one layer has no unbiased variance (D33)
    {"num_heads": "auto", "variance": "biased"},
    {"num_groups": 1},
)
"""Settings that make methods fit few layers. The error suggests the first that works."""
STARTS = range(8)
"""Seeds of the initialisations to check. In a single one, a ReLU may be dead for all inputs by chance (`se`)."""


def run(layout: Layout, config: Config, *, force: bool = False, track: bool = True) -> Path:
    """Ablate layers.

    Args:
        force: train again even what is finished.

    Returns:
        The file with the results.

    Raises:
        ArtifactError: no finished folds of the ranking method, or no embeddings, or the two do not belong together.
        ConfigError: a method that the pipeline does not list, or sets of layers that do not fit.
        MethodError: the method does not fit one of the sets; before anything is trained.
    """
    if unlisted := config.unlisted():
        raise ConfigError("; ".join(unlisted.values()))
    features, settings = load_features(layout, config), config.ablate
    rank_by, score, ranking, notes, cautions = _rank(layout, config, features)
    order = ranked(score)
    sets = choose_sets(order, settings.k, settings.layers, features.layers, settings.presets)
    ks = [k for k in settings.k if f"highest-{k}" in sets]
    notes += [
        f"k = {k} is left out: the {k} highest and the {k} lowest of {len(order)} layers overlap (ablate.k)."
        for k in settings.k
        if order and k not in ks
    ]
    method, choice = _choose(layout, config, features, sets)
    trained: list[str] = []
    if method is None:
        sets = {}
        notes += choice
    else:
        notes += [
            f"Layers {inside} and {outside} have the same score, but only the first is in {name}: ties are broken by "
            "layer number."
            for name, (inside, outside) in cut_ties(order, ks, score).items()
        ]
        notes += [*choice, *_method_notes(method, config, features, sets)]
        sets = {ALL: features.layers, **sets}
        trained = [method, *counterparts(method)[:1]]
    folder = layout.stage("ablate")
    folder.mkdir(parents=True, exist_ok=True)
    folds: dict[str, dict[str, list[Fold]]] = {one: {} for one in trained}  # method -> set -> folds
    with closing(make_tracker(layout.root, enabled=track)) as tracker:
        for one, parts in folds.items():
            for name, layers in sets.items():
                target = folder / f"{name}-{one}"
                parts[name] = train_on_layers(one, features, layers, target, layout, config, tracker, force=force)
        # what an earlier run has trained on other sets
        remove_others(folder, {f"{name}-{one}" for name in sets for one in trained}, folders=True)
        own = folds.get(method or "", {})  # the probe is not tracked
        send_missing(tracker, [fold for name, part in own.items() if name != ALL for fold in part])
    found = Ablation(
        run=layout.run_name,
        method=method,
        label=own[ALL][0].label if own else "",
        unit=config.evaluate.unit,
        modality=features.head.modality,
        embeddings_key=features.head.key,
        notes=notes,
        rows=[
            row
            for one, parts in folds.items()
            for name, layers in sets.items()
            for row in run_rows(name, layers, parts[name], config.evaluate.unit)
        ],
        rank_by=rank_by,
        probe=next(iter(trained[1:]), None),
        ranking=order,
        marks={},
        contrasts=[],
        cautions=cautions,
        settings=config.section("ablate"),
        folds=sorted(fold.result["run"]["key"] for fold in ranking),
    )
    _add_marks(found, folds, config.evaluate.margin)
    if sets:
        pairs = {f"highest-{k} minus lowest-{k}": (f"highest-{k}", f"lowest-{k}") for k in ks}
        pairs |= {name: (set_name(PRESETS[name][0]), set_name(PRESETS[name][1])) for name in settings.presets}
        _add_contrasts(found, pairs)
    for caution in cautions:
        log.warning(caution)
    tests = alone_tests(rank_by or "", score, {layers: found.runs(name) for name, layers in found.sets.items()})
    everything = chain.from_iterable(part for each in folds.values() for part in each.values())
    write_layer_sets(folder / ABLATION, replace(found, tests=tests), everything)
    if not sets:
        log.info("ablate: nothing to train. %s", " ".join(notes) or "No layers are chosen (ablate.k, ablate.layers).")
    return folder / ABLATION


def _add_marks(found: Ablation, folds: Mapping[str, Mapping[str, list[Fold]]], margin: float) -> None:
    """Mark the sets on which the method was not trained well, with a caution each."""
    for name, part in folds.get(found.method or "", {}).items():
        beside = {one: parts[name] for one, parts in folds.items() if one != found.method}
        judged = judge(part, beside, unit=found.unit, margin=margin)
        found.marks[name] = judged.mark if judged.doubtful else ""
        if judged.doubtful:
            level = over_runs(found.probed(name).values()).mean
            probe = "" if level is None else f"; {found.probe} reaches {100 * level:.1f} % on the same layers"
            found.cautions.append(
                f"{'baseline' if name == ALL else name}: {judged.mark}: {'; '.join(judged.reasons)}. Training, rather "
                f"than the layers, may explain this figure{probe}."
            )


def _add_contrasts(found: Ablation, pairs: Mapping[str, tuple[str, str]]) -> None:
    """Compare sets of high and of low importance, with a caution where the probe contradicts the method.

    Args:
        pairs: name of the difference -> the two sets.
    """
    for name, (high, low) in pairs.items():
        gap = over_runs(minus(found.runs(high), found.runs(low)).values())
        other = over_runs(minus(found.probed(high), found.probed(low)).values())
        verdict: Literal["yes", "no", "not judged"] = "not judged"
        if caution := contradiction(name, gap, other):
            found.cautions.append(caution)
            verdict = "yes"
        elif not found.marks[high] and not found.marks[low] and min(gap.n, other.n) > 1:
            verdict = "no"
        found.contrasts.append(Contrast(name, high, low, verdict))


def _rank(
    layout: Layout, config: Config, features: Features
) -> tuple[str | None, dict[int, float], list[Fold], list[str], list[str]]:
    """Rank the layers.

    Returns:
        The ranking method (None if no method qualifies), layer -> mean Importance Factor (empty if layers are not
        ranked), the folds that it is the mean over, notes and cautions.
    """
    chosen = choose_ranking(layout, config, _sizes(features))
    name, why, score = chosen.name, "no method of this pipeline has a density", {}
    folds: list[Fold] = []
    if name is not None:
        folds = _trained(layout, config, name, "layers cannot be ranked")
        score = layer_scores(folds)
        why = f"'{name}' {f'cannot be used, {TIED}' if score else 'has no density'} (ablate.rank_by)"
    elif chosen.rejected:
        why = f"no density qualifies ({chosen.rejected})"
    if name is None or not score or tied(score):
        advice = "" if config.ablate.layers or config.ablate.presets else " Choose layers with ablate.layers."
        return name, {}, [], [f"Layers are not ranked: {why}.{advice}"], []
    if list(score) != list(features.layers):
        raise ArtifactError(
            f"layers cannot be ranked: '{name}' was trained on layers {list(score)}, but the embeddings hold "
            f"{list(features.layers)}",
            path=layout.method(name),
        )
    cautions: list[str] = []
    notes = [
        f"Layers are ranked by the mean Importance Factor of '{name}' over all folds, as in the papers. The maps are "
        "computed on test data, but without labels."
    ]
    if chosen.rejected:
        notes.append(f"Not used as ranking method: {chosen.rejected}.")
    if config.ablate.rank_by is not None and (nothing := why_nothing(layout, config, name)):
        cautions.append(
            f"'{name}' learned nothing ({nothing}), but ablate.rank_by names it. Results based on it say nothing about "
            "the layers."
        )
    return name, score, folds, notes, cautions


def _choose(
    layout: Layout, config: Config, features: Features, sets: Mapping[str, tuple[int, ...]]
) -> tuple[str | None, list[str]]:
    """The method that is trained on the sets (None if no method qualifies), and notes on the choice."""
    if not sets:
        return None, []
    chosen = choose_method(layout, config, _sizes(features), set(map(len, sets.values())))
    if chosen.name is None:
        why = "no method of this pipeline without a density fits these groups"
        if chosen.rejected:
            why = f"no method without a density qualifies ({chosen.rejected})"
        return None, [f"No layers are trained alone: {why}. Add a method without a density, such as 'none'."]
    if config.ablate.method is None:
        _trained(layout, config, chosen.name, "the method to train on few layers cannot be chosen")
    return chosen.name, [f"Not used as method to train: {chosen.rejected}."] if chosen.rejected else []


def _sizes(features: Features) -> tuple[int, int, int]:
    return len(features.layers), features.head.embed_dim, len(features.head.classes)


def _trained(layout: Layout, config: Config, name: str, what: str) -> list[Fold]:
    """The finished folds of a method with the seeds of the settings, of which there must be one."""
    place = layout.method(name)
    folds = [fold for fold in read_folds(place) if fold.seed in config.train.seeds]
    if not folds:
        seeds = ", ".join(map(str, config.train.seeds))
        raise ArtifactError(f"{what}: '{name}' is not trained in {place} (train.seeds: {seeds})", path=place)
    return folds


def _method_notes(method: str, config: Config, features: Features, sets: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Notes on the method on these layers. If it does not fit a set, a MethodError suggests settings that fit."""
    sizes: dict[int, str] = {}  # number of layers -> names of the sets
    for name, layers in sets.items():
        k = len(layers)
        sizes[k] = f"{sizes[k]}, {name}" if k in sizes else name
    sizes[len(features.layers)] = "all layers"
    if problems := misfits(method, sizes, features, config):
        fix = next((error.fix for error in problems.values() if error.fix), None)
        for settings in FIXES:
            changed = {**config.method_settings, method: {**config.method_settings.get(method, {}), **settings}}
            if not misfits(method, sizes, features, config.model_copy(update={"method_settings": changed})):
                words = " ".join(f"--set method_settings.{method}.{name}={value}" for name, value in settings.items())
                fix = f"all groups and the baseline fit with {words}"
                break
        raise MethodError("; ".join(f"{sizes[k]}: {error.message}" for k, error in problems.items()), fix=fix)
    notes = []
    if resolve_method(method)[0] == "none":
        notes.append(
            "The layers are measured with the decoder only ('none'), because a DAAM over a single layer multiplies its "
            "input by a constant."
        )
    for k, names in sizes.items():
        x = torch.randn(4, k, features.head.embed_dim, generator=torch.Generator().manual_seed(0))
        weights = []
        for seed in STARTS:
            with torch.random.fork_rng(devices=[]):
                seed_torch(seed)
                model = build_method(method, config, k, features.head.embed_dim, len(features.head.classes))
            weights.append(constant_weight(model, x))
            if weights[-1] is None:  # it weights its inputs differently; of most methods, the first start shows it
                break
        if None not in weights:
            notes.append(
                f"On {names} '{method}' gives every input the same weight, {weights[0]:.3g} before training (D6, D33). "
                "These rows measure the decoder and what else the method trains, not the weighting."
            )
    return notes
