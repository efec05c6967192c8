"""Check whether the methods of a comparison were trained well, and if not, why.

A difference between two methods is informative only if both were trained well. A ridge probe has a closed-form
solution, so a trained method with a clearly lower accuracy than a probe of the same input was not; of taggers, entity
F1 is compared. A method that reaches its probe is fair, whatever its settings. One that does not is:

- collapsed, if a refit ended with a higher training loss than the candidate that it repeats;
- undertrained, if it is also below the probe on the clips it was trained on;
- overfitted, if it reaches the probe on these.

A probe at chance is fully trained: its input does not tell the classes, which is a result, not an unfair comparison.
So is a method at chance that reaches its probe.
Without a probe, it is undertrained if most runs select one of the last epochs, or settings at an edge of a search over
more than two values; a smaller search tells nothing. All values are fractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from daamctl.artifacts.evaluation import MARKS, ROUNDING, Fairness, IdenticalPredictions, MethodFairness, Status
from daamctl.artifacts.results import Fold, edges_of
from daamctl.artifacts.terms import listed
from daamctl.data.task import Task
from daamctl.errors import UnknownNameError
from daamctl.evaluation.comparison import accuracies_of, item_table, method_intervals
from daamctl.evaluation.scoring import Items, items_of
from daamctl.evaluation.statistics import grouped_means
from daamctl.methods import CLOSED_FORM, METHODS, closest_probes, counterparts, resolve_method
from daamctl.methods.heads import resolved

LEVEL = 0.95
"""Level of the one-sided interval for an accuracy above chance."""
LEAST_FOLDS = 3
"""With fewer folds, the interval is computed over items, because the spread over folds is unreliable."""
LAST_SHARE = 0.1
"""A fold that selects an epoch within this last share of the epochs has not converged."""
SAME_LOGITS = 1e-6
"""Largest relative difference between logits that count as equal (rounding)."""


def assess(
    folds: Mapping[str, Sequence[Fold]],
    items: Mapping[str, Sequence[Items]],
    tables: Mapping[str, pl.DataFrame],
    *,
    margin: float,
) -> Fairness:
    """Judge a comparison.

    Args:
        folds: method -> its finished folds.
        items: method -> what each fold was scored on, in the main unit.
        tables: method -> its `item_table` in the main unit.
        margin: largest acceptable gap to the closed-form counterpart.
    """
    methods = {name: assess_method(name, folds, items[name], tables, margin=margin) for name in folds}
    verdict, text = _verdict(methods, margin)
    return Fairness(
        verdict=verdict,
        text=text,
        margin=margin,
        methods=methods,
        identical=identical_groups(folds, items),
    )


def assess_method(
    method: str,
    folds: Mapping[str, Sequence[Fold]],
    items: Sequence[Items],
    tables: Mapping[str, pl.DataFrame],
    *,
    margin: float,
) -> MethodFairness:
    """Judge the training of one method.

    Args:
        folds: the method, and the probes it is compared with -> finished folds.
        items: items that each fold of the method was scored on, in the main unit.
        tables: `item_table` of the method and of the probes it is compared with, in the main unit.
        margin: largest acceptable gap to the closed-form counterpart.
    """
    own = folds[method]
    counterpart, gaps = _gaps(method, folds, tables)
    gap = mean(gaps.values()) if gaps else None
    probe = [] if counterpart is None else folds[counterpart]
    train_gap, dev_gap = (_clip_gap(own, probe, name) for name in ("train_accuracy", "dev_accuracy"))
    ended = [one for fold in own if (one := _finished(fold)) is not None]
    unfinished = len(ended) - sum(ended) if ended and method not in CLOSED_FORM else None
    chosen, edges, highest = _searched(own)
    # a gap of exactly the margin is allowed, however it was rounded
    below = gap is not None and gap < -margin - ROUNDING
    nothing = _learned_nothing(method, own, items, tables[method], reached=gap is not None and not below)
    status: Status = "fair"
    reasons: list[str] = []
    if nothing:
        status, reasons = "learned nothing", nothing
    elif method in CLOSED_FORM:
        status = "closed form"
    elif below:
        assert gap is not None
        reasons = [f"{-100 * gap:.1f} points below {counterpart}"]
        collapsed = sum(bool(fold.result["metrics"].get("collapsed")) for fold in own)
        least = -margin if own[0].task.by_accuracy else 0.0  # where accuracy tells little, no gap of it is small
        if collapsed:
            status = "collapsed"
            reasons.append(f"the refit collapsed in {collapsed} of {len(own)} runs")
        elif train_gap is None or train_gap < least - ROUNDING:
            status = "undertrained"
            reasons += _beside(train_gap, "the training parts")
        else:
            status = "overfitted"
            reasons += [*_beside(train_gap, "the training parts"), *_beside(dev_gap, "what was held out")]
    # without a probe, only the course of the training itself can tell
    elif gap is None:
        reasons = _held_back(unfinished, edges, len(own))
        if reasons:
            status = "undertrained"
        elif not any(
            edges_of([one["settings"] for one in search["candidates"]])
            for fold in own
            if (search := fold.result.get("search")) is not None
        ):
            status = "not checked"
            reasons = [f"no closed-form probe such as {counterparts(method)[0]} is among the methods"]
    return MethodFairness(
        status=status,
        reasons=reasons,
        counterpart=counterpart,
        gap=gap,
        gaps=gaps,
        train_gap=train_gap,
        dev_gap=dev_gap,
        runs=len(own),
        unfinished=unfinished,
        chosen=chosen,
        edges=edges,
        highest=highest,
        as_probe=method in CLOSED_FORM or (gap is not None and not below),
    )


def judge(folds: Sequence[Fold], probes: Mapping[str, Sequence[Fold]], *, unit: str, margin: float) -> MethodFairness:
    """Judge the training of one method from its folds, by the rules of `assess`.

    Args:
        probes: finished folds of closed-form probes of the same input, by method.
        unit: utterance or clip.
        margin: largest acceptable gap to the closed-form counterpart.
    """
    method = folds[0].result["run"]["method"]
    known = {**probes, method: folds}
    items = {name: [items_of(fold.predictions(), unit, fold.task) for fold in part] for name, part in known.items()}
    tables = {name: item_table(part, items[name]) for name, part in known.items()}
    return assess_method(method, known, items[method], tables, margin=margin)


def identical_groups(
    folds: Mapping[str, Sequence[Fold]], items: Mapping[str, Sequence[Items]]
) -> list[IdenticalPredictions]:
    """Groups of methods with identical predictions and, up to rounding, identical logits in every fold.

    Args:
        folds: method -> its finished folds.
        items: method -> items of each fold, in any unit. They tell most methods apart without reading logits.
    """
    # by predictions first: logits are read only of methods that may be equal
    alike: dict[tuple[Any, ...], list[str]] = {}
    for method, part in folds.items():
        runs = tuple(
            (fold.fold, fold.seed, one.predictions.tobytes()) for fold, one in zip(part, items[method], strict=True)
        )
        alike.setdefault(runs, []).append(method)
    groups = []
    for methods in alike.values():
        while len(methods) > 1:
            first, *others = methods
            logits = _logits(folds[first])
            same = [name for name in others if _same_logits(logits, _logits(folds[name]))]
            if same:
                groups.append(
                    IdenticalPredictions([first, *same], _why_identical({name: folds[name] for name in (first, *same)}))
                )
            methods = [name for name in others if name not in same]
    return groups


def _gaps(
    method: str, folds: Mapping[str, Sequence[Fold]], tables: Mapping[str, pl.DataFrame]
) -> tuple[str | None, dict[str, float]]:
    """The first available closed-form counterpart, and the primary figure minus its figure in every shared fold."""
    counterpart = next((name for name in counterparts(method) if name in tables), None)
    if counterpart is None:
        return None, {}
    task = folds[method][0].task
    if task.by_accuracy:
        ours, theirs = (
            _fold_means((fold, value) for (fold, _), value in accuracies_of(tables[name]).items())
            for name in (method, counterpart)
        )
    else:
        own, probe = folds[method], folds[counterpart]
        if own[0].is_few_shot:  # a seed draws the training sentences
            shared = {fold.seed for fold in own} & {fold.seed for fold in probe}
            own, probe = ([fold for fold in part if fold.seed in shared] for part in (own, probe))
        ours, theirs = (
            _fold_means((fold.fold, float(fold.result["metrics"][task.primary] or 0.0)) for fold in part)
            for part in (own, probe)
        )
    return counterpart, {str(fold): ours[fold] - theirs[fold] for fold in sorted(ours.keys() & theirs.keys())}


def _beside(gap: float | None, where: str) -> list[str]:
    """How far a method is above or below its probe on a part of the data; nothing if it is not known."""
    if gap is None:
        return []
    size = f"{100 * abs(gap):.1f} points"
    return [f"{'equal to' if size == '0.0 points' else f'{size} below' if gap < 0 else f'{size} above'} it on {where}"]


def _fold_means(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Fold -> mean of its values, over seeds."""
    found: dict[int, list[float]] = {}
    for fold, value in values:
        found.setdefault(fold, []).append(value)
    return {fold: mean(part) for fold, part in found.items()}


def _clip_gap(own: Sequence[Fold], probe: Sequence[Fold], name: str) -> float | None:
    """Mean difference of an accuracy per clip from the probe's, over the folds of both; None if it is not recorded."""
    theirs = {(fold.fold, fold.seed): fold.result["metrics"].get(name) for fold in probe}
    by_fold = {fold: value for (fold, _), value in theirs.items()}  # a probe of stored layers has one seed
    gaps = []
    for fold in own:
        ours, other = fold.result["metrics"].get(name), theirs.get((fold.fold, fold.seed), by_fold.get(fold.fold))
        if ours is not None and other is not None:
            gaps.append(ours - other)
    return mean(gaps) if gaps else None


def _finished(fold: Fold) -> bool | None:
    """Whether training with epochs selected none of its last ones; None if no epoch is selected."""
    metrics = fold.result["metrics"]
    selected, epochs = metrics.get("selected_epoch"), metrics.get("epochs")
    if fold.result["run"]["config"]["train"]["selection"] == "last" or selected is None or epochs is None:
        return None
    return bool(selected <= (1 - LAST_SHARE) * epochs)


def _searched(folds: Sequence[Fold]) -> tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]]:
    """Values that the searches of all runs chose, and how often each setting ended at an edge, and at the highest."""
    chosen: dict[str, Counter[str]] = {}
    edges: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for fold in folds:
        search = fold.result.get("search")
        if search is None:
            continue
        for name, value in search["candidates"][search["chosen"]]["settings"].items():
            chosen.setdefault(name, Counter())[value if isinstance(value, str) else f"{value:g}"] += 1
            tried = {one["settings"].get(name) for one in search["candidates"]}
            numbers = [number for number in tried if isinstance(number, int | float)]
            # then higher values may help
            highest[name] += len(numbers) > 1 and value == max(numbers)
        edges.update(search["edges"])
    return {name: dict(counts.most_common()) for name, counts in chosen.items()}, dict(edges), dict(+highest)


def _held_back(unfinished: int | None, edges: Mapping[str, int], runs: int) -> list[str]:
    """Reasons to think that a method without a probe is undertrained."""
    reasons = []
    if unfinished is not None and unfinished > runs / 2:
        reasons.append(f"selected one of its last epochs in {unfinished} of {runs} runs")
    reasons += [
        f"chose the lowest or highest {name} tried in {number} of {runs} runs"
        for name, number in edges.items()
        if number > runs / 2
    ]
    return reasons


def _learned_nothing(
    method: str, folds: Sequence[Fold], items: Sequence[Items], table: pl.DataFrame, *, reached: bool
) -> list[str]:
    """Reasons why a method learned nothing; empty if it learned something.

    Selecting epoch 1 in every run is not a reason if the method reaches its counterpart or classifies all held-out
    items correctly, because an easy task can be learned in one epoch.
    """
    reasons = []
    if all(len(set(part.predictions.tolist())) == 1 for part in items) and len(table) > len(folds):
        reasons.append("predicts the same class for every item of a fold")
    elif folds[0].task.classes:
        reasons += _not_above_chance(table, folds[0].task)
    metrics = [fold.result["metrics"] for fold in folds]
    selects = method not in CLOSED_FORM and folds[0].result["run"]["config"]["train"]["selection"] != "last"
    first = all(one.get("selected_epoch") == 1 and (one.get("epochs") or 0) > 1 for one in metrics)
    perfect = all(one.get("dev_accuracy") == 1.0 for one in metrics)
    if selects and first and not reached and not perfect:
        reasons.append("selected epoch 1 in every run")
    return reasons


def _not_above_chance(table: pl.DataFrame, task: Task) -> list[str]:
    """Whether neither accuracy is above that of a constant answer by more than its one-sided margin.

    Chance is the share of the most frequent class for accuracy, and 1 / C of the C classes tested for balanced
    accuracy. The margin is that of a t interval over folds; with fewer than three folds, of a normal interval over
    items. An accuracy is above chance too if its interval over independent units (`method_intervals`) is: folds that
    differ in difficulty, such as sites, spread far also where all of them are above.
    """
    averaged = (
        table.group_by("fold", "item").agg(pl.col("target").first(), pl.col("correct").mean()).sort("fold", "item")
    )
    correct, targets = averaged["correct"].to_numpy().astype(np.float64), averaged["target"].to_numpy()
    majority = int(np.bincount(targets, minlength=len(task.classes)).argmax())
    numbers = averaged["fold"].to_numpy()
    parts = [numbers == number for number in np.unique(numbers)]
    if len(parts) >= LEAST_FOLDS:
        balanced = [_balanced(correct[part], targets[part]) for part in parts]
        plain = [float((correct[part] - (targets[part] == majority)).mean()) for part in parts]
        above = [_lower_over_folds(values) > ROUNDING for values in (balanced, plain)]
    else:
        above = [
            _balanced(correct, targets) - _margin_over_items(correct, targets) > ROUNDING,
            float((correct - (targets == majority)).mean()) - _margin_over_items(correct, np.zeros_like(targets))
            > ROUNDING,
        ]
    if any(above):
        return []
    share = float((targets == majority).mean())
    chance = {"accuracy": share, "balanced_accuracy": 1 / len(np.unique(targets))}
    over_units = method_intervals({"": table}, task=task, level=2 * LEVEL - 1)[""].metrics
    if any(one.low - chance[name] > ROUNDING for name, one in over_units.items()):
        return []
    shown = mean(accuracies_of(table).values())  # as the report shows it
    return [
        f"neither its accuracy, {100 * shown:.1f} %, nor its balanced accuracy is above chance (most frequent "
        f"class: {100 * share:.1f} %)"
    ]


def _balanced(correct: NDArray[np.float64], targets: NDArray[Any]) -> float:
    """Balanced accuracy minus that of a constant answer, over the classes that are tested."""
    everything = np.zeros(len(targets), dtype=np.int64)
    return float(grouped_means(correct, everything, targets)[0] - 1 / len(np.unique(targets)))


def _lower_over_folds(values: Sequence[float]) -> float:
    """Lower end of the one-sided t interval of a mean over folds."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - stats.t.ppf(LEVEL, len(values) - 1) * error)


def _margin_over_items(correct: NDArray[np.float64], strata: NDArray[Any]) -> float:
    """Margin of the mean over strata of the mean of their items, by the normal approximation."""
    _, index, counts = np.unique(strata, return_inverse=True, return_counts=True)
    means = np.bincount(index, weights=correct) / counts
    squares = np.bincount(index, weights=(correct - means[index]) ** 2)
    return float(stats.norm.ppf(LEVEL) * np.sqrt((squares / counts**2).sum()) / len(counts))


def _logits(folds: Sequence[Fold]) -> list[tuple[list[str], NDArray[np.float64]]]:
    """Clip ids and logits (N, C) of every run."""
    frames = [fold.predictions() for fold in folds]
    return [(frame["clip_id"].to_list(), np.array(frame["logits"].to_list(), dtype=np.float64)) for frame in frames]


def _same_logits(
    first: Sequence[tuple[list[str], NDArray[np.float64]]], second: Sequence[tuple[list[str], NDArray[np.float64]]]
) -> bool:
    for (ids, one), (other_ids, other) in zip(first, second, strict=True):
        if ids != other_ids or one.shape != other.shape or (one.argmax(1) != other.argmax(1)).any():
            return False
        if np.abs(one - other).max() > SAME_LOGITS * max(np.abs(one).max(), np.abs(other).max()):
            return False
    return True


def _why_identical(folds: Mapping[str, Sequence[Fold]]) -> str | None:
    """Why methods compute the same, if their settings and densities show it."""
    if all(len(part[0].result["run"]["layers"]) == 1 for part in folds.values()):
        return "there is only one layer, so there is nothing to fuse"
    last = [name for name, part in folds.items() if all(map(_chose_last_layer, part))]
    if last:
        return f"{listed(last)} chose the last layer in every fold"
    known = [_resolved(part[0]) for part in folds.values()]
    if None not in known and all(one == known[0] for one in known):
        return "they are the same method with the same settings"
    constant = [name for name, part in folds.items() if _constant_density(part[0])]
    if constant:
        first = folds[constant[0]][0]
        layers = len(first.result["run"]["layers"])
        single = " because each head has one layer" if _num_heads(_resolved(first)) == layers else ""
        return f"the density of {listed(constant)} is constant{single}, so it has no effect"
    if all(one and one[0] in ("daam-v1", "daam-v2") and _num_heads(one) == 1 for one in known):
        return "daam-v1 with one head is the same as daam-v2"
    return None


def _chose_last_layer(fold: Fold) -> bool:
    """Whether a method that chooses one layer, such as `ridge-best-layer`, chose the last."""
    search = fold.result.get("search")
    layer = None if search is None else search["candidates"][search["chosen"]]["settings"].get("layer")
    return layer is not None and layer == fold.result["run"]["layers"][-1]


def _resolved(fold: Fold) -> tuple[str, dict[str, Any]] | None:
    """Registered name and all settings of a method; None for fine-tuning methods."""
    run = fold.result["run"]
    try:
        name, preset = resolve_method(run["method"])
    except UnknownNameError:
        return None
    settings = {**METHODS.defaults(name), **preset, **run["config"].get("method", {})}
    return name, resolved(settings, len(run["layers"]))


def _num_heads(method: tuple[str, dict[str, Any]] | None) -> int | None:
    """Number of heads; None for methods without heads."""
    if method is None:
        return None
    name, settings = method
    return 1 if name == "daam-v2" else settings.get("num_heads")


def _constant_density(fold: Fold) -> bool:
    maps = fold.density()
    return maps is not None and bool(np.ptp(maps["trained"]) <= SAME_LOGITS * np.abs(maps["trained"]).max())


def _verdict(
    methods: Mapping[str, MethodFairness], margin: float
) -> tuple[Literal["fair", "not fair", "not checked"], str]:
    trained = {name: one for name, one in methods.items() if name not in CLOSED_FORM}
    doubted = {name: one for name, one in methods.items() if one.doubtful}
    marked = {mark: [name for name, one in doubted.items() if one.status == mark] for mark in MARKS}
    if any(marked.values()):
        claims = []
        for mark, names in marked.items():
            if names and mark == "learned nothing":
                claims.append(f"{listed(names)} learned nothing")
            elif names:
                claims.append(f"{listed(names)} {'is' if len(names) == 1 else 'are'} {mark}")
        reasons = [f"{name}: {', '.join(one.reasons)}" for name, one in doubted.items()]
        return "not fair", f"This comparison is not fair: {listed(claims)}. {'; '.join(reasons)}."
    unchecked = [name for name, one in methods.items() if one.status == "not checked"]
    if unchecked:
        probes = closest_probes(unchecked)
        checked = len(unchecked) < len(trained)
        return "not checked", (
            f"The fairness of this comparison was not checked{f' for {listed(unchecked)}' if checked else ''}. To "
            f"check it, add {listed(probes)}, closed-form {'probe' if len(probes) == 1 else 'probes'} of the "
            "same input, to the methods, or try three or more learning rates (search_lr)."
        )
    return "fair", (
        f"This comparison is fair: no method is more than {100 * margin:g} points below its closed-form probe."
    )
