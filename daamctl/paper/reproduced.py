"""Our cells of a published table: a result with its protocol and links to its runs, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

from daamctl.artifacts.evaluation import Evaluation, MethodFacts
from daamctl.artifacts.importance import Importance
from daamctl.artifacts.layer_sets import Ablation, minus, over_runs
from daamctl.artifacts.results import marked
from daamctl.artifacts.scores import BEST_ON_TEST, Figure
from daamctl.paper.numbers import Experiment
from daamctl.reporting.document import DASH, Cell, Kind, Linked, Number, layers_text, percent, plural, spread
from daamctl.reporting.terms import selection_words
from daamctl.reporting.verdict import names

RELEASED = "-published"
"""Suffix of methods in their released form."""
OURS = ["Ours, as published", "Ours, corrected"]
"""Headings of our two columns."""
EIGHT_HEADS = "daam-v1"
"""Corresponds to the papers' best density with eight heads, whose learned ranges and map are published."""
SHOWN_LAYERS = 3


@dataclass(frozen=True)
class ReproducedResults:
    """Results of one pipeline, which follows the released code or corrects it; what is missing is None.

    Args:
        ablation: results of training on few layers.
        learned: method -> (delta, xi) of every run, each lowest and highest.
        why: stage (evaluate, ablate, importance) -> why its result is missing.
        fix: the command that produces the missing result.
        untrained: method -> why it was not trained.
    """

    pipeline: str
    experiment: Experiment
    as_published: bool
    evaluation: Evaluation | None = None
    ablation: Ablation | None = None
    importance: Importance | None = None
    learned: Mapping[str, Sequence[tuple[tuple[float, float], tuple[float, float]]]] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    fix: str = ""
    untrained: Mapping[str, str] = field(default_factory=dict)
    made: Sequence[str] = ()
    reported: bool = False

    @property
    def methods(self) -> Mapping[str, MethodFacts]:
        """Scored methods; none without an evaluation."""
        return self.evaluation.methods if self.evaluation else {}

    def own_name(self, method: str) -> str | None:
        """Our name of a published method: its released form if the pipeline follows the released code."""
        # methods whose released code does what the text says have no form of their own
        forms = [f"{method}{RELEASED}", method] if self.as_published else [method]
        return next((form for form in forms if form in self.methods), None)

    def not_run(self, stage: str) -> Linked:
        """The first reason why a stage has no result. The table of pipelines lists all reasons."""
        # a cell of a table has room for one
        first, *others = self.why[stage].split("; ")
        return Linked("not run", first + (f" (and {plural(len(others), 'other reason')})" if others else ""))

    def absent(self, method: str) -> Linked:
        """Why there is no result for a method."""
        if self.evaluation is None:
            return self.not_run("evaluate")
        skipped = self.evaluation.skipped
        for name in (method, f"{method}{RELEASED}"):
            if name in skipped or name in self.untrained:
                return Linked("not trained", skipped.get(name, {}).get("reason") or self.untrained[name])
        return Linked("not trained", f"not among the methods of {self.pipeline}")

    def links(self, folder: str = "") -> list[tuple[str, str]]:
        """Links of a cell: its runs, in a folder below data, and the pipeline's own report."""
        found = [("runs", f"../../{folder}")] if folder else []
        return [*found, ("report", f"../{self.pipeline}/report.html")] if self.reported else found

    def note(self, name: str, printed: str, protocol: str) -> str:
        """Name of the trained method if it differs from the published one, protocol, and number of runs."""
        entry = self.methods[name]
        what = f"{entry.label}; " if entry.label != printed else ""
        done, lacking = len(entry.runs), len(entry.missing)
        return f"{what}{protocol}, n = {done}" + (f" of {done + lacking}" if lacking else "")


Pair = tuple[ReproducedResults, ReproducedResults]
"""The pipelines of an experiment: as published, corrected."""


def value(ours: ReproducedResults, method: str) -> float | None:
    """The accuracy that a cell of this pipeline shows, as a fraction; None if there is none."""
    found = _accuracy(ours, method)
    return None if found is None else found.mean


def _accuracy(ours: ReproducedResults, method: str) -> Figure | None:
    """Mean and deviation: best on test for as-published pipelines, otherwise the main result."""
    name = ours.own_name(method)
    if name is None or ours.evaluation is None:
        return None
    if ours.as_published:
        return ours.evaluation.scores.find(name, BEST_ON_TEST)
    return ours.evaluation.accuracy(name)


def protocol(ours: ReproducedResults) -> str:
    """Protocol of this pipeline in a few words."""
    if ours.as_published or ours.evaluation is None:
        return f"{_per(ours, 'clip')}, best epoch on test"
    return f"{_per(ours, ours.evaluation.main_unit)}, {selection_words(ours.evaluation)}"


def figure(ours: ReproducedResults, method: str) -> Linked:
    """Accuracy of a method: best on test for as-published pipelines, else the main result with its interval."""
    name = ours.own_name(method)
    if name is None:
        return ours.absent(method)
    how = ours.note(name, method, protocol(ours))
    found = _accuracy(ours, method)
    if found is None:
        return Linked("not known", how)
    if found.low is not None:
        how += f"; pooled {percent(found.low)} to {percent(found.high)} (95 %)"
    return Linked(spread(found), how, ours.links(f"train/{ours.pipeline}/{name}"))


def gap(ours: ReproducedResults, method: str, printed: float) -> Cell:
    """Ours minus a printed percentage, in points."""
    found = value(ours, method)
    return DASH if found is None else Number(found - printed / 100, "points")


def highest(ours: ReproducedResults, group: Sequence[str]) -> tuple[str, float] | None:
    """The method of highest accuracy in a group, and its accuracy; None if none was trained."""
    values = {method: value(ours, method) for method in group}
    known = {method: found for method, found in values.items() if found is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def of_group(ours: ReproducedResults, group: Sequence[str]) -> Linked:
    """Accuracy of the highest method of a group, named; for a group of one method its own cell."""
    top = highest(ours, group)
    if top is None:
        return ours.absent(group[0])
    method, _ = top
    cell = figure(ours, method)
    if len(group) == 1 or str(ours.own_name(method)) in cell.note:
        return cell
    return Linked(cell.cell, f"{method}; {cell.note}", cell.links)


def lead(ours: ReproducedResults, first: Sequence[str], second: Sequence[str]) -> float | None:
    """The best method of one group minus the best of another, as a fraction; None if one was not trained."""
    top, other = highest(ours, first), highest(ours, second)
    return None if top is None or other is None else top[1] - other[1]


def difference(ours: ReproducedResults, first: Sequence[str], second: Sequence[str]) -> Linked:
    """The best method of one group minus the best of another, in points."""
    top, other = highest(ours, first), highest(ours, second)
    if top is None or other is None:
        return ours.absent((second if top else first)[0])
    words = " minus ".join(ours.methods[str(ours.own_name(method))].label for method in (top[0], other[0]))
    return Linked(Number(top[1] - other[1], "points"), f"{words}; {protocol(ours)}", ours.links())


def few_layers(ours: ReproducedResults, layers: Sequence[int]) -> Linked:
    """Accuracy after training on some layers alone."""
    made, name = ours.ablation, _set(ours, layers)
    if made is None or name is None:
        return _no_set(ours, layers)
    found = over_runs(made.runs(name).values())
    words = f"{marked(_ablated(ours), made.marks.get(name, ''))}, n = {found.n}"
    return Linked(spread(found), words, ours.links(f"ablate/{ours.pipeline}"))


def high_minus_low(ours: ReproducedResults) -> Linked:
    """Layers of high Importance Factor minus layers of low, over the folds that both have."""
    layers_high, layers_low = ours.experiment.layers("high"), ours.experiment.layers("low")
    made, high, low = ours.ablation, _set(ours, layers_high), _set(ours, layers_low)
    if made is None or high is None or low is None:
        return _no_set(ours, layers_low if high else layers_high)
    gap = over_runs(minus(made.runs(high), made.runs(low)).values()).mean
    words = marked(_ablated(ours), made.marks.get(high) or made.marks.get(low, ""))
    return Linked(Number(gap, "points"), words, ours.links(f"ablate/{ours.pipeline}"))


def layers_by_importance(ours: ReproducedResults, method: str) -> Linked:
    """Layers of highest and lowest mean Importance Factor, and those of the untrained module."""
    if ours.importance is None:
        return ours.not_run("importance")
    entry = ours.importance.methods.get(method)
    if entry is None:
        return Linked("no map", f"{method} has no map in {ours.pipeline}")
    if not entry.ranking:
        return Linked("no ranking", f"all layers have the same score under {method} in {ours.pipeline}")
    first, last = entry.ranking[:SHOWN_LAYERS], entry.ranking[-SHOWN_LAYERS:]
    before = layers_text(entry.ranking_untrained[:SHOWN_LAYERS])
    words = f"{method}; untrained: {f'highest {before}' if before else 'all layers tie'}"
    words += "; mostly geometry (D29)" if entry.caution else ""
    text = f"highest {', '.join(map(str, first))}; lowest {', '.join(map(str, last))}"
    return Linked(text, words, ours.links())


def learned(ours: ReproducedResults, method: str, parameter: str, end: str) -> Linked:
    """Lowest, highest or width (`end`) of a density's offset δ or scaled variance ξ, mean over runs."""
    runs = ours.learned.get(method)
    if not runs and ours.own_name(method) is None:
        return ours.absent(method)
    if not runs:
        return Linked("not known", f"there are no weights of {method} on this machine")
    spans = [run[parameter == "ξ"] for run in runs]
    values = {
        "lowest": [low for low, _ in spans],
        "highest": [high for _, high in spans],
        "width": [high - low for low, high in spans],
    }[end]
    kind: Kind = "signed" if parameter == "δ" and end != "width" else "plain"
    number = Number(mean(values), kind, std=stdev(values) if len(values) > 1 else None)
    return Linked(number, f"{method}, n = {len(runs)}", ours.links(f"train/{ours.pipeline}/{method}"))


def unfair(ours: ReproducedResults) -> list[str]:
    """The verdict of the evaluation if the comparison is not fair, otherwise nothing."""
    if ours.evaluation is None or ours.evaluation.fairness.verdict != "not fair":
        return []
    return [f"{ours.pipeline}: {ours.evaluation.fairness.text}"]


def mismatches(ours: ReproducedResults) -> list[str]:
    """Warnings if the corpus or the encoder is not the published one."""
    if ours.evaluation is None:
        return []
    corpus, encoder = names(ours.evaluation)
    pairs = (("corpus", corpus, ours.experiment.key), ("encoder", encoder, ours.experiment.encoder))
    return [
        f"{ours.pipeline}: its {what} is {own}, but the published one is {theirs}. Do not compare the results."
        for what, own, theirs in pairs
        if own != theirs
    ]


def _per(ours: ReproducedResults, unit: str) -> str:
    """Unit of scoring. An image or a text is one clip."""
    speech = ours.experiment.modality == "speech"
    return f"per {unit if speech and unit == 'clip' else ours.experiment.item}"


def _set(ours: ReproducedResults, layers: Sequence[int]) -> str | None:
    """Name of some layers in the ablation; None if it does not train on them."""
    sets = ours.ablation.sets if ours.ablation else {}
    return next((name for name, own in sets.items() if own == tuple(layers)), None)


def _no_set(ours: ReproducedResults, layers: Sequence[int]) -> Linked:
    """Why there is no result of training on some layers alone."""
    if ours.ablation is None:
        return ours.not_run("ablate")
    what = "layers" if len(layers) > 1 else "layer"
    return Linked("not trained", f"{ours.pipeline} does not train on {what} {layers_text(layers)} alone")


def _ablated(ours: ReproducedResults) -> str:
    """What was trained on few layers, and how it is scored."""
    made = ours.ablation
    if made is None:
        return ""
    rule = f", {selection_words(ours.evaluation)}" if ours.evaluation else ""
    return f"{made.label}; {_per(ours, made.unit)}{rule}"
