"""Stage `ablate`: retrain on the layers of highest and lowest Importance Factor, the papers' layers, and given layers.

A closed-form probe of the same input is trained beside the method on every group, to judge how well it was trained.
Writes `data/ablate/<run>/<group>-<method>/fold*/` and ablation.json, see `daamctl.artifacts.ablation`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
)
from daamctl.artifacts.ablation import (
    FILE,
    Ablation,
    GroupAccuracy,
    LayerAccuracy,
    PresetDifference,
    RankedDifference,
    RunAccuracy,
)
from daamctl.artifacts.results import RESULT, Fold, read_folds
from daamctl.config import Config
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.evaluation.fairness import judge
from daamctl.evaluation.scoring import score_predictions
from daamctl.fit.features import Features, load_features
from daamctl.fit.subsets import train_on_layers
from daamctl.fit.trial import build_method
from daamctl.layout import Layout
from daamctl.methods import counterparts, resolve_method
from daamctl.methods.activity_check import constant_weight
from daamctl.methods.base import FusionClassifier
from daamctl.planning.ablation import TIED, choose_method, choose_ranking, layer_scores, ranked, tied, why_nothing
from daamctl.store.files import remove_others
from daamctl.store.records import hashes_of, write_record
from daamctl.tracking import make_tracker, send_missing

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
    "nothing": "'{name}' learned nothing ({why}), but ablate.rank_by names it. Results based on it say nothing about "
    "the layers.",
    "marked": "{name}: {mark}: {reasons}. Training, rather than the layers, may explain this figure{probe}.",
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
        force: train again even what is finished.

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
    chosen, notes = _choose(layout, config, features, groups)
    groups, method = groups if chosen else [], chosen or ""
    ties = cut_ties(order, config.ablate.k, ranking.score) if groups else {}
    borders = [NOTES["tie"].format(group=name, inside=a, outside=b) for name, (a, b) in ties.items()]
    notes = [*ranking.notes, *borders, *notes, *_method_notes(method, config, features, groups)]
    sets = {"all": features.layers, **{group.name: group.layers for group in groups}} if groups else {}
    closest = counterparts(method)[:1] if groups else ()
    folder = layout.stage("ablate")
    tracker = make_tracker(layout.root, enabled=track)
    try:
        folder.mkdir(parents=True, exist_ok=True)

        def train(what: str, name: str) -> list[Fold]:
            target = folder / f"{name}-{what}"
            return train_on_layers(what, features, sets[name], target, layout, config, tracker, force=force)

        folds = {name: train(method, name) for name in sets}
        probes = {name: {probe: train(probe, name) for probe in closest} for name in sets}
        remove_others(folder, {f"{name}-{one}" for name in sets for one in (method, *closest)}, folders=True)
        send_missing(tracker, [fold for name in sets if name != "all" for fold in folds[name]])
    finally:
        tracker.close()
    unit, margin = config.evaluate.unit, config.evaluate.margin
    rows = {name: _scores(part, unit) for name, part in folds.items()}
    beside = {name: [row for part in found.values() for row in _scores(part, unit)] for name, found in probes.items()}
    judged = {name: judge(part, probes[name], unit=unit, margin=margin) for name, part in folds.items()}
    marks = {name: one.mark for name, one in judged.items()}

    def figures(name: str) -> dict[str, Any]:
        own, probe = (over_runs([row.compared for row in part.get(name, [])]) for part in (rows, beside))
        return {**vars(own), "per_fold": rows.get(name, []), "probe": probe, "mark": marks.get(name, "")}

    tables = [
        GroupAccuracy(name=one.name, kind=one.kind, k=one.k, layers=list(one.layers), **figures(one.name))
        for one in groups
    ]
    differences, presets = _differences(config, order, rows, beside, marks) if groups else ([], [])
    cautions = list(ranking.cautions)
    for name, one in judged.items():
        if one.mark:
            level = figures(name)["probe"].mean
            probe = "" if level is None else f"; {closest[0]} reaches {100 * level:.1f} % on the same layers"
            reasons = "; ".join(one.reasons)
            label = "baseline" if name == "all" else name
            cautions.append(NOTES["marked"].format(name=label, mark=one.mark, reasons=reasons, probe=probe))
    cautions += [one.contradicts for one in (*differences, *presets) if one.contradicts]
    for caution in cautions:
        log.warning(caution)
    result = Ablation(
        rank_by=ranking.rank_by,
        method=next((fold.label for part in folds.values() for fold in part), chosen),
        probe=next(iter(closest), None),
        unit=unit,
        embeddings_key=features.head.key,
        ranking=order,
        baseline=LayerAccuracy(layers=list(features.layers), **figures("all")),
        groups=tables,
        differences=differences,
        presets=presets,
        alone=alone_tests(tables, ranking.score),
        notes=notes,
        cautions=cautions,
        run=layout.run_name,
        files=hashes_of(folder, folder.glob(f"*/*/{RESULT}")),
        metric=features.head.task.primary,
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
            path=layout.method(name),
        )
    notes = [NOTES["ranking"].format(rank_by=name)]
    if chosen.rejected:
        notes.append(NOTES["passed over"].format(what="ranking method", why=chosen.reasons))
    cautions = []
    nothing = why_nothing(layout, config, name) if named else None
    if nothing:
        cautions.append(NOTES["nothing"].format(name=name, why=nothing))
    return Ranking(name, score, notes, cautions)


def _choose(
    layout: Layout, config: Config, features: Features, groups: Sequence[LayerGroup]
) -> tuple[str | None, list[str]]:
    """The method that is trained on the groups (None if no method qualifies), and notes on the choice.

    Raises:
        ArtifactError: the method is not trained on all layers, so it is unknown whether it learns anything.
    """
    if not groups:
        return None, []
    chosen = choose_method(layout, config, _sizes(features), {group.k for group in groups})
    if chosen.name is None:
        if chosen.rejected:
            why = f"no method without a density qualifies ({chosen.reasons})"
        else:
            why = "no method of this pipeline without a density fits these groups"
        return None, [NOTES["untrained"].format(why=why)]
    if config.ablate.method is None:
        _trained(layout, chosen.name, "the method to train on few layers cannot be chosen")
    passed = [NOTES["passed over"].format(what="method to train", why=chosen.reasons)] if chosen.rejected else []
    return chosen.name, passed


def _sizes(features: Features) -> tuple[int, int, int]:
    return len(features.layers), features.head.embed_dim, len(features.head.classes)


def _trained(layout: Layout, name: str, what: str) -> list[Fold]:
    """The finished folds of a method.

    Raises:
        ArtifactError: there is none.
    """
    place = layout.method(name)
    folds = read_folds(place)
    if not folds:
        raise ArtifactError(f"{what}: '{name}' is not trained in {place}", path=place)
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


def _scores(folds: Sequence[Fold], unit: str) -> list[RunAccuracy]:
    rows = []
    for fold in folds:
        found = score_predictions(fold.predictions(), unit, fold.task)
        rows.append(RunAccuracy(fold.fold, fold.seed, float(found["accuracy"]), found.get("entity_f1")))
    return rows


def _differences(
    config: Config,
    ranking: Sequence[int],
    rows: Mapping[str, list[RunAccuracy]],
    beside: Mapping[str, list[RunAccuracy]],
    marks: Mapping[str, str],
) -> tuple[list[RankedDifference], list[PresetDifference]]:
    """Highest minus lowest layers for every k, and the papers' high minus low layers, beside the closed-form probe."""

    def compared(what: str, high: str, low: str) -> dict[str, Any]:
        found, probe = (difference(paired_differences(part[high], part[low])) for part in (rows, beside))
        judged = not marks[high] and not marks[low] and min(found.n, probe.n) > 1
        return {**vars(found), "probe": probe, "contradicts": contradiction(what, found, probe), "judged": judged}

    ranked = [
        RankedDifference(k=k, **compared(f"highest-{k} minus lowest-{k}", f"highest-{k}", f"lowest-{k}"))
        for k in dict.fromkeys(config.ablate.k if ranking else ())
    ]
    presets = []
    for name in dict.fromkeys(config.ablate.presets):
        high, low = PRESETS[name]
        found = compared(name, group_name(high), group_name(low))
        presets.append(PresetDifference(name=name, high=list(high), low=list(low), **found))
    return ranked, presets
