"""Sections with results: comparison with the reference, metrics, folds, speakers, and the effect of epoch selection.

The functions take an evaluation after `verdict.labelled`. Methods are sorted by accuracy, best first. "Speaker" is the
source of an item, whatever the modality calls it. With one official test part, seeds take the place of folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

import numpy as np

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import BEST_ON_TEST, LAST, recalls
from daamctl.artifacts.terms import listed
from daamctl.data.task import FIGURES, Chance
from daamctl.reporting import figures
from daamctl.reporting.document import (
    DASH,
    DOWN,
    INTERVAL,
    UNCORRECTED,
    UP,
    Block,
    Cell,
    Folded,
    Number,
    Plot,
    Section,
    Table,
    Text,
    count,
    gap,
    percent,
    pooled,
    spread,
)
from daamctl.reporting.recipe import Recipe, recipe_note, recipe_text
from daamctl.reporting.sentences import say
from daamctl.reporting.terms import is_closed_form, is_official, moment, runs, tested, trained, tuned_seeds
from daamctl.reporting.verdict import against, family_texts, order

UNITS = ("utterance", "clip")
MAX_SPEAKER_COLUMNS = 24
MAX_SPEAKERS = 100
"""Above this number, speakers are summarised instead of listed."""
QUANTILES = {"Lowest": 0.0, "10 %": 0.1, "Median": 0.5, "90 %": 0.9, "Highest": 1.0}
MAX_CLASS_COLUMNS = 12
"""Above this number, classes become the rows of a collapsed table."""
RULES = {"accuracy": "As reported", BEST_ON_TEST: "Best on test", LAST: "At the end"}
"""Accuracy per clip by rule for choosing the epoch -> heading."""
Speakers = Mapping[str, Mapping[str, float]]
"""Method -> speaker -> accuracy."""


def results(evaluation: Evaluation) -> Section:
    """Mean, interval and difference from the reference for every method."""
    return Section("results", "Results", [_main_table(evaluation)])


def tests(evaluation: Evaluation, *, declared: bool) -> Section:
    """How the methods were tested against the reference, and every test."""
    blocks: list[Block] = [*family_texts(evaluation, declared=declared)]
    family = evaluation.comparison.family
    if family is not None:
        blocks += [
            _test_table(evaluation, metric) for metric in evaluation.task.over_items if against(evaluation, metric)
        ]
    return Section("tests", "Tests against the reference", blocks)


def _accuracy(evaluation: Evaluation) -> Plot:
    """Figure of the accuracy of every run."""
    label = f"Accuracy per {evaluation.item}"
    runs_of = {
        name: [(row.value, f"fold {row.fold}, seed {row.seed}") for row in evaluation.scores.runs(name).values()]
        for name in order(evaluation)
    }
    means = ", ".join(f"{name} {percent(mean(value for value, _ in part))} %" for name, part in runs_of.items())
    alt = f"{label} of every run, with the mean of each method: {means}. The numbers are in the tables."
    chance = evaluation.main_chance.majority_fraction
    return figures.drawn(figures.accuracy(runs_of, chance, label, alt))


def metrics(evaluation: Evaluation) -> Section:
    """Every metric of every method, the metrics without a model, and the recall of every class."""
    described = evaluation.metrics
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        cells = [
            spread(evaluation.scores.figure(name, key), "nats" if one.unit == "nats" else "percent")
            for key, one in described.items()
        ]
        rows.append([name, *cells, _n(evaluation, name)])
    table = Table(
        "metrics",
        f"All metrics per {evaluation.item}, mean ± sample std over {runs(evaluation)}; percent, log loss in nats",
        ["Method", *(f"{one.alias}\u00a0{UP if one.higher_is_better else DOWN}" for one in described.values()), "n"],
        rows,
        note=say("note_metrics", UP, DOWN, evaluation.main_chance),
        foot=_no_model(evaluation.main_chance, list(described)),
    )
    return Section("metrics", "All metrics", [table, *_recalls(evaluation)])


def folds(evaluation: Evaluation) -> Section:
    """Accuracy by method and fold (by seed for an official split), and in the other unit of scoring."""
    if is_official(evaluation):
        table = _seed_table(evaluation)
        return Section("folds", "Results by seed", [_accuracy(evaluation), table, *_unknown(evaluation)])
    groups, seeds = evaluation.counts.groups, len(evaluation.seeds)
    numbers = range(1, evaluation.num_folds + 1)
    headings = [f"Fold {number}" + (f" ({groups[str(number)]})" if str(number) in groups else "") for number in numbers]
    rows = [_by_run(evaluation, name, 0, numbers) for name in order(evaluation)]
    own = len(tuned_seeds(evaluation)) or seeds
    note = f"Std is the sample standard deviation (divisor n − 1) over {runs(evaluation)}."
    if max(seeds, own) > 1:
        number = f"{seeds} seeds" if own == seeds else f"seeds: {seeds}, of fine-tuned encoders {own}"
        note += f" The cell of a fold is the mean over its {number}."
    caption = f"Accuracy per {evaluation.item} in percent, by fold (test group in brackets)"
    table = Table("folds", caption, ["Method", *headings, "Mean ± std", "n"], rows, note=note)
    said = evaluation.task
    same = said.item == said.clip or evaluation.counts.utterance == evaluation.counts.clip
    blocks: list[Block] = [_accuracy(evaluation), table, *([] if same else [_unit_table(evaluation)])]
    return Section("folds", "Results by fold", [*blocks, *_unknown(evaluation)])


def _by_run(evaluation: Evaluation, name: str, part: int, numbers: Iterable[int]) -> list[Cell]:
    """Accuracy of a method by fold (`part` 0) or by seed (1), and over all runs."""
    found = evaluation.scores.runs(name).items()
    lacking = {run[part] for run in evaluation.methods[name].missing}
    cells: list[Cell] = [name]
    for number in numbers:
        values = [one.value for run, one in found if run[part] == number]
        cells.append(Number(mean(values)) if values else "missing" if number in lacking else DASH)
    return [*cells, spread(evaluation.accuracy(name)), _n(evaluation, name)]


def _unknown(evaluation: Evaluation) -> list[Text]:
    """Text shown instead of the section on speakers if speakers are unknown."""
    if any(evaluation.scores.speakers(name) for name in evaluation.methods):
        return []
    said = evaluation.task
    return [Text(f"{said.unknown}, so there are no results by {said.source}.")]


def _seed_table(evaluation: Evaluation) -> Table:
    known = {row.seed for entry in evaluation.methods.values() for row in entry.runs}
    seeds = [*evaluation.seeds, *sorted(known - {*evaluation.seeds})]  # fine-tuning may have its own seeds
    rows = [_by_run(evaluation, name, 1, seeds) for name in order(evaluation)]
    caption = f"Accuracy per {evaluation.item} in percent on the official test part, by seed"
    columns = ["Method", *(f"Seed {seed}" for seed in seeds), "Mean ± std", "n"]
    return Table("folds", caption, columns, rows, note=say("note_seeds", evaluation))


def speakers(evaluation: Evaluation) -> Section | None:
    """Accuracy by speaker and method; None if speakers are unknown, or each has one item, which is right or wrong."""
    said, unit = evaluation.task, evaluation.item
    who = said.source
    title = f"Results by {who}"
    scores = {name: evaluation.scores.speakers(name) for name in order(evaluation)}
    found = {name: {who: value for who, (value, _) in part.items()} for name, part in scores.items()}
    known = sorted({speaker for part in found.values() for speaker in part})
    if not known or all(number == 1 for part in scores.values() for _, number in part.values()):
        return None
    if len(known) > MAX_SPEAKERS:
        return Section("speakers", title, [_many_speakers(evaluation, found, len(known))])
    text = say("speakers", evaluation, who)
    chance = evaluation.main_chance.majority_fraction
    alt = (
        f"Accuracy per {unit} of {len(known)} {who}s under {len(found)} methods; means over {who}s: "
        + ", ".join(f"{name} {percent(mean(part.values()))} %" for name, part in found.items() if part)
        + ". The numbers are in the table."
    )
    plot = figures.drawn(figures.speakers(found, known, chance, label=f"Accuracy per {unit}", who=who, alt=alt))
    sizes = {speaker: max(part[speaker][1] for part in scores.values() if speaker in part) for speaker in known}
    table = _speaker_table(evaluation, found, sizes)
    few = len(known) <= MAX_SPEAKER_COLUMNS
    return Section("speakers", title, [Text(text), plot, table if few else Folded(table.caption, [table])])


def selection(evaluation: Evaluation, recipe: Recipe | str | None = None) -> Section | None:
    """Effect of choosing the epoch on the test items, on accuracies and on leads, and effect of the training recipe.

    None if all methods are closed-form probes.

    Args:
        recipe: effect of the recipe, or a text that says why it is unknown.
    """
    if not trained(evaluation):
        return None
    blocks: list[Block] = [Text(_selection_text(evaluation))]
    if recipe is not None:
        blocks.append(Text(recipe_text(recipe) if isinstance(recipe, Recipe) else recipe))
    blocks.append(_selection_table(evaluation, recipe if isinstance(recipe, Recipe) else None))
    reference = evaluation.comparison.reference
    if reference in evaluation.methods and len(evaluation.methods) > 1:
        blocks += [Text(_lead_text(evaluation, reference)), _lead_table(evaluation, reference)]
    title = f"Effect of choosing the {moment(evaluation)} on the {_test(evaluation)}"
    return Section("selection", title, blocks)


def _main_table(evaluation: Evaluation) -> Table:
    reference = evaluation.comparison.reference
    others, tiers = against(evaluation, "accuracy"), evaluation.scores.tiers("accuracy")
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        row: list[Cell] = [name]
        for metric in evaluation.task.over_items:
            figure = evaluation.scores.figure(name, metric)
            row += [spread(figure), pooled(figure)]
        one = others.get(name)
        row += [
            "reference" if name == reference else gap(one),
            Number(one.p_holm if one else None, "p"),
            Number(tiers.get(name), "count"),
            _n(evaluation, name),
        ]
        rows.append(row)
    over = evaluation.accuracy(next(iter(evaluation.methods))).resampled
    columns = [
        "Method", f"Accuracy (WA)\u00a0{UP}", f"WA pooled{INTERVAL}", f"Balanced accuracy (UA)\u00a0{UP}",
        f"UA pooled{INTERVAL}", f"WA minus {reference}{UNCORRECTED}", "p (Holm)", "Tier", "n",
    ]  # fmt: skip
    caption = f"Accuracy and balanced accuracy per {evaluation.item} in percent, and the difference from {reference}"
    return Table("results", caption, columns, rows, note=say("note_results", evaluation, over, tiers))


def _test_table(evaluation: Evaluation, metric: str) -> Table:
    reference = evaluation.comparison.reference
    found = against(evaluation, metric)
    official = is_official(evaluation)  # without a secondary test, show how often a method is ahead instead
    rows: list[list[Cell]] = []
    for one in (found[name] for name in order(evaluation) if name in found):
        second: list[Cell] = [Number(one.p_folds, "p"), Number(one.p_folds_holm, "p")]
        if official:
            second = [f"{one.ahead} of {one.runs}"]
        primary = [Number(value, "p") for value in (one.p, one.p_holm, one.floor)]
        counts = [Number(value, "count") for value in (one.wins, one.losses)]
        rows.append([one.first, gap(one), *primary, *second, *counts, Number(one.detectable_here, "size")])
    columns = [
        "Method", f"Difference (points){UNCORRECTED}", "Primary p", "Primary p (Holm)", "Smallest p possible",
        *(["Higher accuracy in seeds"] if official else ["Secondary p", "Secondary p (Holm)"]), "Wins", "Losses",
        "Detectable (points)",
    ]  # fmt: skip
    caption = f"Every method against {reference} in {FIGURES[metric]} per {evaluation.item}"
    return Table(f"tests-{metric.replace('_', '-')}", caption, columns, rows, note=say("note_tests", reference))


def _recalls(evaluation: Evaluation) -> list[Block]:
    """Recall of every class. Of many classes only the extremes, with the full table collapsed."""
    classes, methods = evaluation.classes, order(evaluation)
    counts = evaluation.main_chance.per_class
    found = {name: dict(zip(classes, recalls(evaluation.scores.confusion(name)), strict=True)) for name in methods}
    caption = f"Recall of every class per {evaluation.item} in percent"
    note = f"All {runs(evaluation)} together. n counts test items, each once."
    if len(classes) <= MAX_CLASS_COLUMNS:
        columns = ["Method", *(f"{label} (n\u00a0=\u00a0{count(counts[label])})" for label in classes)]
        rows: list[list[Cell]] = [[name, *(Number(found[name][label]) for label in classes)] for name in methods]
        return [Table("recalls", caption, columns, rows, note=note)]
    rows = [
        [label, Number(counts[label], "count"), *(Number(found[name][label]) for name in methods)] for label in classes
    ]
    table = Table("recalls", caption, ["Class", "n", *methods], rows, note=note)
    best = {label: value for label, value in found[methods[0]].items() if value is not None}
    shown = [f"{label} ({percent(best[label])} %)" for label in sorted(best, key=lambda label: best[label])]
    text = (
        f"Of {len(classes)} classes, {methods[0]} recalls {listed(shown[:-4:-1])} best and {listed(shown[:3])} worst."
    )
    return [Text(text), Folded(caption, [table])]


def _no_model(chance: Chance, described: Sequence[str]) -> list[list[Cell]]:
    known: dict[str, dict[str, Cell]] = {
        f"always “{chance.majority_class}”": {
            "accuracy": Number(chance.majority_fraction),
            "balanced_accuracy": Number(chance.uniform_fraction),
        },
        "uniform probabilities": {"log_loss": Number(chance.uniform_log_loss, "nats")},
        "class frequencies": {"log_loss": Number(chance.share_log_loss, "nats")},
    }
    return [[name, *(part.get(metric, DASH) for metric in described), DASH] for name, part in known.items()]


def _unit_table(evaluation: Evaluation) -> Table:
    columns: list[str] = ["Method"]
    for unit in UNITS:
        columns += [f"Per {unit}, mean of folds", f"Per {unit}, pooled"]
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        cells: list[Cell] = []
        for unit in UNITS:
            figure = evaluation.scores.figure(name, unit=unit)
            cells += [spread(figure), Number(figure.pooled)]
        rows.append([name, *cells])
    note = "Pooled: all test items of all folds and seeds are scored as one set, so larger folds weigh more."
    return Table("units", "Accuracy in percent, per utterance and per clip", columns, rows, note=note)


def _many_speakers(evaluation: Evaluation, found: Speakers, number: int) -> Table:
    """Quantiles of the accuracy over many speakers."""
    said = evaluation.task
    rows: list[list[Cell]] = [
        [name, *(Number(float(value)) for value in np.quantile(list(part.values()), list(QUANTILES.values())))]
        for name, part in found.items()
    ]
    caption = f"Accuracy per {evaluation.item} in percent: quantiles over {count(number)} {said.source}s"
    note = f"{said.source.capitalize()}s with one {said.item} have 0 or 100."
    return Table("speakers", caption, ["Method", *QUANTILES], rows, note=note)


def _speaker_table(evaluation: Evaluation, found: Speakers, known: Mapping[str, int]) -> Table:
    """Accuracy of every speaker; `known` has their numbers of items."""
    unit = evaluation.item
    rows: list[list[Cell]] = [
        [name, *(Number(part.get(speaker)) for speaker in known), Number(min(part.values(), default=None)),
         Number(max(part.values(), default=None))]
        for name, part in found.items()
    ]  # fmt: skip
    columns = [
        "Method",
        *(f"{speaker} (n\u00a0=\u00a0{count(number)})" for speaker, number in known.items()),
        "Lowest",
        "Highest",
    ]
    caption = f"Accuracy per {unit} in percent, by {evaluation.task.source} (n {unit}s)"
    return Table("speakers", caption, columns, rows)


def _selection_table(evaluation: Evaluation, recipe: Recipe | None) -> Table:
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        row: list[Cell] = [name, *(spread(evaluation.scores.find(name, rule, "clip")) for rule in RULES)]
        row.append(Number(_inflation(evaluation, name), "points"))
        if recipe:
            row.append(Number(recipe.gains.get(name), "points"))
        rows.append(row)
    reported, *others = RULES.values()
    columns = ["Method", f"{reported} ({evaluation.selection})", *others, "Inflation (points)"]
    columns += ["Recipe (points)"] if recipe else []
    clip = evaluation.task.clip
    caption = (
        f"Accuracy per {clip} in percent, mean ± sample std over {runs(evaluation)}, by rule for choosing the "
        f"{moment(evaluation)}"
    )
    note = "Inflation: best on test minus as reported."
    if clip != evaluation.task.item:
        note += f" Per {clip}, because {moment(evaluation)}s are scored per {clip}."
    note += f" {recipe_note(recipe, evaluation)}" if recipe else ""
    return Table("selection", caption, columns, rows, note=note)


def _selection_text(evaluation: Evaluation) -> str:
    inflation = {name: _inflation(evaluation, name) for name in order(evaluation) if not is_closed_form(name)}
    gains = {name: gain for name, gain in inflation.items() if gain is not None}
    if evaluation.selection == "best-on-test" or not gains:
        return say("selection", evaluation, _test(evaluation), average=None, most=None, gain=None, tops=None)
    most = max(gains, key=lambda name: gains[name])
    tops = {label: listed(best) for rule, label in RULES.items() if (best := evaluation.best(rule, "clip"))}
    return say("selection", evaluation, _test(evaluation), mean(gains.values()), most, gains[most], tops)


def _lead_table(evaluation: Evaluation, reference: str) -> Table:
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        if name != reference:
            leads = [_lead(evaluation, name, reference, rule) for rule in RULES]
            added = None if leads[0] is None or leads[1] is None else leads[1] - leads[0]
            rows.append([name, *(Number(lead, "points") for lead in leads), Number(added, "points")])
    columns = ["Method", *(f"Lead, {label.lower()}" for label in RULES.values()), "Due to selection"]
    clip = evaluation.task.clip
    caption = f"Lead over {reference} in points of accuracy per {clip}, by rule for choosing the {moment(evaluation)}"
    note = f"Mean over the {runs(evaluation)} that both have. Due to selection: best on test minus as reported."
    return Table("leads", caption, columns, rows, note=note)


def _lead_text(evaluation: Evaluation, reference: str) -> str:
    turned = []
    for name in evaluation.methods:
        own = _lead(evaluation, name, reference, "accuracy")
        best = _lead(evaluation, name, reference, "accuracy_best_on_test")
        if name != reference and own is not None and best is not None and own <= 0 < best:
            turned.append(name)
    inflated = (_inflation(evaluation, reference) or 0.0) > 0
    return say("leads", evaluation, reference, _test(evaluation), turned, inflated)


def _test(evaluation: Evaluation) -> str:
    return tested(evaluation) if is_official(evaluation) else "test fold"


def _lead(evaluation: Evaluation, name: str, reference: str, rule: str) -> float | None:
    """Mean paired difference under one rule for choosing the epoch."""
    theirs = evaluation.scores.runs(reference, rule, "clip")
    own = evaluation.scores.runs(name, rule, "clip")
    gaps = [row.value - theirs[run].value for run, row in own.items() if run in theirs]
    return mean(gaps) if gaps else None


def _inflation(evaluation: Evaluation, name: str) -> float | None:
    chosen, best = (evaluation.scores.find(name, rule, "clip") for rule in ("accuracy", BEST_ON_TEST))
    return None if chosen is None or best is None else best.mean - chosen.mean


def _n(evaluation: Evaluation, name: str) -> Number:
    """Number of runs of a method."""
    return Number(evaluation.accuracy(name).runs, "count")
