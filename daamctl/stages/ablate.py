"""Stage `ablate`: retrain on the layers of highest and lowest Importance Factor, the papers' layers, and given layers.

Writes `data/ablate/<run>/<group>-<method>/fold*/` and ablation.json, see `daamctl.artifacts.ablation`.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from daamctl.analysis.ablation import (
    PRESETS,
    LayerGroup,
    alone_tests,
    choose_groups,
    contradiction,
    cut_ties,
    difference,
    group_name,
    over_runs,
    paired_differences,
    probe_difference,
)
from daamctl.analysis.probe import Rows, fit_probe
from daamctl.artifacts.ablation import (
    FILE,
    Ablation,
    GroupAccuracy,
    LayerAccuracy,
    PresetDifference,
    RankedDifference,
    RunAccuracy,
)
from daamctl.artifacts.io import sha256_file
from daamctl.artifacts.records import write_record
from daamctl.artifacts.results import RESULT, Fold, read_folds
from daamctl.artifacts.splits import chosen_folds, split_of
from daamctl.artifacts.terms import metric_of
from daamctl.config import AblateConfig, Config
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.evaluation.scoring import items_of, score_items
from daamctl.evaluation.tagging import f1_of
from daamctl.layout import Layout
from daamctl.methods import resolve_method
from daamctl.methods.activity_check import constant_weight
from daamctl.methods.base import FusionClassifier
from daamctl.planning.ablation import TIED, choose_method, choose_ranking, layer_scores, ranked, tied, why_nothing
from daamctl.tracking import make_tracker, send_missing
from daamctl.training.features import Features, load_features
from daamctl.training.layer_subsets import train_on_layers
from daamctl.training.trials.fusion import build_method

log = logging.getLogger(__name__)

NOTES = {
    "ranking": "Layers are ranked by the mean Importance Factor of '{rank_by}' over all folds, as in the papers. The "
    "maps are computed on test data, but without labels.",
    "none": "The layers are measured with the decoder only ('none'), because a DAAM over a single layer multiplies its "
    "input by a constant.",
    "passed over": "Not used as {what}: {why}.",
    "unranked": "Layers are not ranked: {why}. Choose layers with ablate.layers.",
    "tie": "Layers {inside} and {outside} have the same score, but only the first is in {group}: ties are broken by "
    "layer number.",
    "nothing": "'{name}' learned nothing ({why}), but {where} names it. Results based on it say nothing about the "
    "layers.",
    "untrained": "No layers are trained alone: {why}. Add a method without a density, such as 'none'.",
    "constant": "On {groups} '{method}' does not weight anything: its initial weight is {weight:.3g} for every input, "
    "and training can only change that constant (D6, D33). These rows measure the decoder, not the weighting.",
}
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
        layout: folders of the artifacts.
        config: all settings.
        force: train again even what is finished.
        track: log to MLflow.

    Returns:
        The file with the results.

    Raises:
        ArtifactError: no finished folds of the ranking method, or no embeddings, or the two do not belong together.
        ConfigError: a method that the pipeline does not list, or layer groups that do not fit.
        MethodError: the method does not fit one of the groups; before anything is trained.
    """
    if unlisted := config.unlisted():
        raise ConfigError("; ".join(unlisted.values()))
    features = load_features(layout, config)
    ranking = _rank(layout, config, features)
    order = ranked(ranking.score)
    groups = choose_groups(order, config.ablate.k, config.ablate.layers, features.layers, config.ablate.presets)
    chosen, notes, cautions = _choose(layout, config, features, groups)
    groups, method = groups if chosen else [], chosen or ""
    ties = cut_ties(order, config.ablate.k, ranking.score) if groups else {}
    borders = [NOTES["tie"].format(group=name, inside=a, outside=b) for name, (a, b) in ties.items()]
    notes = [*ranking.notes, *borders, *notes, *_method_notes(method, config, features, groups)]
    cautions = [*ranking.cautions, *cautions]
    folder = layout.stage("ablate")
    tracker = make_tracker(layout.root, enabled=track)
    try:
        folder.mkdir(parents=True, exist_ok=True)

        def train(layers: tuple[int, ...], name: str) -> list[Fold]:
            target = folder / f"{name}-{method}"
            return train_on_layers(method, features, layers, target, layout, config, tracker, force=force)

        baseline = train(features.layers, "all") if groups else []
        results = {}
        for group in groups:
            results[group.name] = train(group.layers, group.name)
        _remove_strays(folder, {f"{name}-{method}" for name in ("all", *results)})
        send_missing(tracker, [fold for folds in results.values() for fold in folds])
    finally:
        tracker.close()
    rows = {group.name: _scores(results[group.name], config.evaluate.unit) for group in groups}
    tables = [
        GroupAccuracy(
            name=group.name,
            kind=group.kind,
            k=group.k,
            layers=list(group.layers),
            per_fold=rows[group.name],
            **_over_runs(rows[group.name]),
        )
        for group in groups
    ]
    differences, presets = _differences(config, order, features, groups, rows)
    base = _scores(baseline, config.evaluate.unit)
    result = Ablation(
        rank_by=ranking.rank_by,
        method=next((fold.label for folds in [baseline, *results.values()] for fold in folds), chosen),
        unit=config.evaluate.unit,
        embeddings_key=features.head.key,
        ranking=order,
        baseline=LayerAccuracy(layers=list(features.layers), per_fold=base, **_over_runs(base)),
        groups=tables,
        differences=differences,
        presets=presets,
        alone=alone_tests(tables, ranking.score),
        notes=notes,
        cautions=[*cautions, *(one.contradicts for one in (*differences, *presets) if one.contradicts)],
        run=layout.run_name,
        files={str(path.relative_to(folder)): sha256_file(path) for path in sorted(folder.glob(f"*/*/{RESULT}"))},
        metric=metric_of(features.head.modality),
    )
    write_record(folder / FILE, result.as_json())
    if not groups:
        log.info("ablate: nothing to train. %s", " ".join(notes) or "No layers are chosen (ablate.k, ablate.layers).")
    return folder / FILE


@dataclass(frozen=True)
class Ranking:
    """How the layers are ranked.

    Args:
        rank_by: the ranking method; None if no method qualifies.
        score: layer -> mean Importance Factor; empty if layers are not ranked.
        notes: how the ranking was made.
        cautions: reasons to distrust it.
    """

    rank_by: str | None
    score: dict[int, float]
    notes: list[str]
    cautions: list[str]


def _rank(layout: Layout, config: Config, features: Features) -> Ranking:
    """Score the layers.

    Raises:
        ArtifactError: the method is not trained, or on other layers.
    """
    chosen = choose_ranking(layout, config, _sizes(features))
    if chosen.name is None:
        why = "no method of this pipeline has a density"
        if chosen.rejected:
            why = f"no density qualifies ({chosen.reasons})"
        return Ranking(None, {}, [NOTES["unranked"].format(why=why)], [])
    name, named = chosen.name, config.ablate.rank_by is not None
    folds = _trained(layout, name, "layers cannot be ranked")
    score = layer_scores(folds)
    if not score or tied(score):
        why = f"'{name}' {f'cannot be used, {TIED}' if score else 'has no density'} (ablate.rank_by)"
        return Ranking(name, {}, [NOTES["unranked"].format(why=why)], [])
    if list(score) != list(features.layers):
        raise ArtifactError(
            f"layers cannot be ranked: '{name}' was trained on layers {list(score)}, but the embeddings hold "
            f"{list(features.layers)}",
            fix="train it again: " + layout.command("train", "--method", name),
        )
    notes = [NOTES["ranking"].format(rank_by=name)]
    if chosen.rejected:
        notes.append(NOTES["passed over"].format(what="ranking method", why=chosen.reasons))
    cautions = []
    nothing = why_nothing(layout, config, name) if named else None
    if nothing:
        cautions.append(NOTES["nothing"].format(name=name, where="ablate.rank_by", why=nothing))
    return Ranking(name, score, notes, cautions)


def _choose(
    layout: Layout, config: Config, features: Features, groups: Sequence[LayerGroup]
) -> tuple[str | None, list[str], list[str]]:
    """The method that is trained on the groups (None if no method qualifies), notes on the choice, and cautions.

    Raises:
        ArtifactError: the method is not trained on all layers, so it is unknown whether it learns anything.
    """
    if not groups:
        return None, [], []
    chosen = choose_method(layout, config, _sizes(features), {group.k for group in groups})
    if chosen.name is None:
        if chosen.rejected:
            why = f"no method without a density qualifies ({chosen.reasons})"
        else:
            why = "no method of this pipeline without a density fits these groups"
        return None, [NOTES["untrained"].format(why=why)], []
    if config.ablate.method is None:
        _trained(layout, chosen.name, "the method to train on few layers cannot be chosen")
        passed = [NOTES["passed over"].format(what="method to train", why=chosen.reasons)] if chosen.rejected else []
        return chosen.name, passed, []
    nothing = why_nothing(layout, config, chosen.name)
    cautions = [NOTES["nothing"].format(name=chosen.name, where="ablate.method", why=nothing)] if nothing else []
    return chosen.name, [], cautions


def _sizes(features: Features) -> tuple[int, int, int]:
    return len(features.layers), features.head.embed_dim, len(features.head.classes)


def _trained(layout: Layout, name: str, what: str) -> list[Fold]:
    """The finished folds of a method.

    Raises:
        ArtifactError: there is none.
    """
    again = layout.command("train", "--method", name)
    folds = read_folds(layout.method(name), again=again)
    if not folds:
        raise ArtifactError(f"{what}: '{name}' is not trained in {layout.method(name)}", fix=f"train it: {again}")
    return folds


def _method_notes(method: str, config: Config, features: Features, groups: Sequence[LayerGroup]) -> list[str]:
    """Notes on the method on these layers.

    Raises:
        MethodError: it does not fit a group. The error suggests settings that fit.
    """
    if not groups:
        return []
    sizes: dict[int, str] = {}  # number of layers -> names of the groups
    for group in groups:
        sizes[group.k] = f"{sizes[group.k]}, {group.name}" if group.k in sizes else group.name
    sizes[len(features.layers)] = "all layers"
    _check_fits(method, config, features, sizes)
    notes = [NOTES["none"]] if resolve_method(method)[0] == "none" else []
    for k, names in sizes.items():
        x = torch.randn(4, k, features.head.embed_dim, generator=torch.Generator().manual_seed(0))
        weights = []
        for seed in STARTS:
            weights.append(constant_weight(_started(method, config, features, k, seed), x))
            if weights[-1] is None:  # it weights its inputs differently; of most methods, the first start shows it
                break
        if None not in weights:
            notes.append(NOTES["constant"].format(groups=names, method=method, weight=weights[0]))
    return notes


def _started(method: str, config: Config, features: Features, k: int, seed: int) -> FusionClassifier:
    """The untrained method on k layers for a seed. Does not change the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_method(method, config, k, features.head.embed_dim, len(features.head.classes))


def _check_fits(method: str, config: Config, features: Features, sizes: Mapping[int, str]) -> None:
    """Check that the method can be built for every number of layers.

    Raises:
        MethodError: it cannot. The error suggests settings that fit.
    """
    rest = (features.head.embed_dim, len(features.head.classes))
    problems, fix = [], None
    for k, names in sizes.items():
        try:
            with torch.device("meta"):
                build_method(method, config, k, *rest)
        except MethodError as error:
            problems.append(f"{names}: {error.message}")
            fix = fix or error.fix
    if not problems:
        return
    for settings in FIXES:
        changed = {**config.method_settings, method: {**config.method_settings.get(method, {}), **settings}}
        try:
            for k in sizes:
                build_method(method, config.model_copy(update={"method_settings": changed}), k, *rest)
        except MethodError:
            continue
        words = " ".join(f"--set method_settings.{method}.{name}={value}" for name, value in settings.items())
        fix = f"all groups and the baseline fit with {words}"
        break
    raise MethodError("; ".join(problems), fix=fix)


def _remove_strays(folder: Path, wanted: set[str]) -> None:
    """Remove layer groups that the settings or a new ranking no longer have."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _scores(folds: Sequence[Fold], unit: str) -> list[RunAccuracy]:
    rows = []
    for fold in folds:
        predictions, classes = fold.predictions(), fold.result["run"]["classes"]
        accuracy = float(score_items(items_of(predictions, unit), len(classes))["accuracy"])
        f1 = f1_of(predictions, classes) if fold.modality == "tokens" else None
        rows.append(RunAccuracy(fold.fold, fold.seed, accuracy, f1))
    return rows


def _over_runs(rows: Sequence[RunAccuracy]) -> dict[str, Any]:
    return vars(over_runs([row.compared for row in rows]))


def _differences(
    config: Config,
    ranking: Sequence[int],
    features: Features,
    groups: Sequence[LayerGroup],
    rows: Mapping[str, list[RunAccuracy]],
) -> tuple[list[RankedDifference], list[PresetDifference]]:
    """Highest minus lowest layers for every k, and the papers' high minus low layers, beside linear probes."""
    if not groups:
        return [], []
    layers = {group.name: group.layers for group in groups}
    probes = _probe(features, config, _compared(config.ablate, groups))
    ranked = []
    for k in dict.fromkeys(config.ablate.k if ranking else ()):
        high, low = f"highest-{k}", f"lowest-{k}"
        found = difference(paired_differences(rows[high], rows[low]))
        probe = probe_difference(probes, layers[high], layers[low])
        caution = contradiction(f"{high} minus {low}", found, probe)
        ranked.append(RankedDifference(k=k, probe=probe, contradicts=caution, **vars(found)))
    presets = []
    for name in dict.fromkeys(config.ablate.presets):
        given, other = PRESETS[name]
        found = difference(paired_differences(rows[group_name(given)], rows[group_name(other)]))
        probe = probe_difference(probes, given, other)
        presets.append(
            PresetDifference(
                name=name,
                high=list(given),
                low=list(other),
                probe=probe,
                contradicts=contradiction(name, found, probe),
                **vars(found),
            )
        )
    return ranked, presets


def _compared(settings: AblateConfig, groups: Sequence[LayerGroup]) -> list[int]:
    """The layers between which differences are taken."""
    compared = {layer for group in groups if group.kind in ("highest", "lowest") for layer in group.layers}
    return sorted(compared.union(*(group for name in settings.presets for group in PRESETS[name])))


def _probe(features: Features, config: Config, layers: Sequence[int]) -> dict[tuple[int, int | None], dict[int, float]]:
    """Fold and seed -> layer -> metric of the ablation on the test group, of `ridge-last` on that layer alone.

    The seed is None unless seeds draw the training sentences.
    """
    if not layers:
        return {}
    targets, classes = features.targets().numpy(), features.head.classes
    words = features.head.modality == "tokens"
    seeds: Sequence[int | None] = [None] if config.train.shots is None else config.train.seeds
    found: dict[tuple[int, int | None], dict[int, float]] = {}
    for number, seed in itertools.product(chosen_folds(features.clips["group"], None), seeds):
        split = split_of(features.clips, number, config.train, seed or 0)
        rows = Rows(split.train, split.dev, split.test)
        tested = features.clips[split.test].with_columns(target=pl.Series(targets[split.test], dtype=pl.Int32))
        found[number, seed] = {}
        for layer in layers:
            place = features.layers.index(layer)
            scores, _ = fit_probe(features.x, targets, rows, [place], len(classes), refit=config.train.refit)
            predictions = tested.with_columns(logits=pl.Series(scores.tolist()))
            if words:
                found[number, seed][layer] = f1_of(predictions, classes)
            else:
                items = items_of(predictions, config.evaluate.unit)
                found[number, seed][layer] = score_items(items, len(classes))["accuracy"]
    return found
