"""The first section of a report: which layers carry the label, whether fusing layers helps, and what to do next.

The layers are judged by `ridge-last` on each layer alone (from the importance stage), fusing by the comparison of the
methods that fuse layers with a probe of the best single layer, which is chosen in every fold without its test group.
Closed-form fusions answer for a closed-form probe and trained ones for a trained probe: a trained head alone may be
worth more than fusing. The functions take an evaluation after `verdict.labelled`.
"""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.evaluation import Evaluation, MethodFairness
from daamctl.artifacts.importance import Importance
from daamctl.artifacts.layer_sets import LayerRow, Truncation
from daamctl.artifacts.scores import ALL_PAIRS, Compared
from daamctl.artifacts.statistics import Family
from daamctl.artifacts.terms import listed
from daamctl.data.sign_flip import EXACT_FLIPS_UP_TO, sign_flip_floor
from daamctl.methods import METHODS, closest_probes, fuses_layers, resolve_method
from daamctl.reporting import entities, figures
from daamctl.reporting.document import Block, Bullets, Section, Text, layers_text, p_value, percent, points
from daamctl.reporting.figures import drawn
from daamctl.reporting.sentences import outside
from daamctl.reporting.terms import is_closed_form
from daamctl.reporting.truncation import sentence as shortest
from daamctl.reporting.verdict import against, doubtful, order, short_names, warnings

MOST_UNITS = 1000
"""Larger estimates of the number of speakers needed are not worth a figure, unless there are almost as many."""
MOST_STEPS = 4
ALPHA = 0.05
"""Level of the tests of layers against the best one, after correction."""


def answers(
    evaluation: Evaluation,
    summary: Importance | None,
    *,
    stale: Sequence[str],
    command: str,
    truncation: Truncation | None = None,
) -> Section:
    """Two or three answers, the figure behind them, warnings, and the next steps.

    Args:
        summary: result of the importance stage; None if it has not run.
        stale: notes on folds that no longer match the evaluation.
        truncation: how few layers are enough; None if that was not asked.
    """
    profile = summary.profile if summary else []
    text = _layers(evaluation, summary) if summary and profile else f"The layers were not probed yet. Run: `{command}`"
    methods = map(evaluation.accuracy, evaluation.methods if evaluation.by_accuracy else ())
    note = outside([*profile, *methods], evaluation.item)
    if summary and summary.probed and evaluation.task.unit(summary.probed.unit) != evaluation.item:
        profile = []  # out of date: no axis of the figure is in two units
    blocks: list[Block] = [Text(leak, caution=True) for leak in evaluation.leaks]
    blocks += [
        Text(text),
        *([Text(note)] if note else []),
        Text(fusing(evaluation)),
        *([Text(shortest(truncation), caution=bool(truncation.nothing))] if truncation else []),
        _figure(evaluation, profile) if evaluation.by_accuracy else drawn(entities.figure(evaluation, profile)),
    ]
    blocks += [Text(text, caution=True) for text in warnings(evaluation, stale)]
    steps = next_steps(evaluation)
    if steps:
        blocks += [Text("What to do next:"), Bullets(steps[:MOST_STEPS])]
    return Section("answers", "Answers", blocks)


def next_steps(evaluation: Evaluation) -> list[str]:
    """What would make the answers clearer, most urgent first."""
    steps = _train_better(evaluation)
    missing = [name for name, entry in evaluation.methods.items() if entry.missing]
    if missing:
        steps.insert(0, f"Finish the missing folds of {listed(short_names(missing))}.")
    unchecked = [name for name, one in evaluation.fairness.methods.items() if one.status == "not checked"]
    if unchecked:
        probes = closest_probes(short_names(unchecked))
        steps.append(f"Add {listed(probes)} to the methods, to check whether the others were trained well.")
    if _one_layer(evaluation) or not evaluation.task.by_accuracy:
        return steps  # the other steps are about fusing, and `fusing` compares taggers with the reference alone
    found = _best_fusion(evaluation)
    if found is None:
        steps.append("Add ridge-best-layer to the methods, to see whether fusing beats the best single layer.")
    else:
        steps += _more_units(evaluation, *found)
    return steps


def _layers(evaluation: Evaluation, summary: Importance) -> str:
    """Which layers carry the label, or the entities."""
    profile, probed = summary.profile, summary.probed
    assert probed is not None
    best, last = max(profile, key=lambda one: one.value), profile[-1]
    interval = "" if best.low is None or best.high is None else f" [{percent(best.low)}, {percent(best.high)}]"
    score = f"{percent(best.value)} %{interval}"
    if best.kind == "accuracy":
        what, does = "the label", f"classifies {score} of {evaluation.task.unit(probed.unit)}s with a ridge probe"
    else:
        what, does = "the entities", f"reaches an entity F1 of {score} with a ridge probe"
    others, top = [one for one in profile if one is not best], best.layers[0]
    if not others:
        return f"Layer {top} {does}."
    # the test is over all items, where a layer with a lower mean over folds may be ahead
    near = [one.layers[0] for one in others if one.p is None or one.p > ALPHA or (one.difference or 0.0) > 0]
    floor = min((one.floor for one in others if one.floor is not None), default=1.0)
    text = f"Layer {top} carries {what} best: alone it {does}"
    if others and floor > ALPHA:
        why = f"the layers differ in too few {probed.resampled or 'fold'}s to test whether others are worse"
        text = f"Layer {top} has the highest figure: alone it {does}; {why}"
    elif others and len(near) == len(others):
        return f"No layer stands out: layer {top} alone {does}; no other layer is shown to be worse."
    elif near:
        text = f"Layer {top} has the highest figure: alone it {does}; not shown to be worse than it: "
        text += f"layer{'s' if len(near) > 1 else ''} {layers_text(near)}"
    if best is last:
        return f"{text}. It is the last layer."
    return f"{text}. The last layer, {last.layers[0]}, reaches {percent(last.value)} %."


def fusing(evaluation: Evaluation) -> str:
    """Whether fusing layers helps, or of taggers what their comparison says."""
    if not evaluation.by_accuracy:
        return entities.sentence(evaluation)
    if _one_layer(evaluation):
        return "There is one layer, so nothing to fuse."
    found = _best_fusion(evaluation)
    if found is None:
        lacking = "no probe of the best single layer stands beside the methods"
        if not any(_fuses(evaluation, name) for name in evaluation.methods):
            lacking = "no method fuses layers"
        return f"Whether fusing layers helps is unknown: {lacking}."
    family, best = found
    gain = _gain(best)
    p = "" if best.p_holm is None else f"; {p_value(best.p_holm)} after correction"
    layer = "the single layer chosen without the test group"  # not the highest figure of `_layers`
    versus = f"{best.first} differs by {gain} from a probe of {layer} ({family.reference}{p})"
    if best.p_holm is None:
        return f"Whether fusing layers helps cannot be tested: {versus}."
    trained = "; but its training is in doubt" if doubtful(evaluation, [best.first]) else ""
    if best.p_holm <= family.alpha and not _alike(best):
        why = "one is trained and the other solved in closed form, so the head may explain the difference"
        return f"Whether fusing layers helps is unclear: {versus}; but {why}."
    head = _of_the_other_kind(evaluation, family, best)
    if best.p_holm <= family.alpha and best.difference > 0:
        return f"Fusing layers helps: {versus}.{head}"
    if best.p_holm <= family.alpha:
        hurts = "Whether fusing layers hurts is unclear" if trained else "Fusing layers hurts"
        return f"{hurts}: {versus}{trained}.{head}"
    if family.floor_holm is not None and family.floor_holm > family.alpha:
        few = f"with so few {family.design.unit_word}s"
        return f"Whether fusing layers helps cannot be tested {few}: the best fusion {versus}{trained}.{head}"
    return f"Fusing layers does not help by more than chance: the best fusion {versus}{trained}.{head}"


def _one_layer(evaluation: Evaluation) -> bool:
    """Whether only one layer is stored, so that a fusion fuses nothing."""
    return all(len(entry.layers) == 1 for entry in evaluation.methods.values())


def _best_fusion(evaluation: Evaluation) -> tuple[Family, Compared] | None:
    """The comparison with the best single layer, and its best method that fuses layers and is fitted in the same way.

    If no fusion is, the best one.
    """
    family = evaluation.single_layer
    if family is None:
        return None
    pairs = against(evaluation, family=family)
    ranked = [pairs[name] for name in order(evaluation) if name in pairs]
    return family, next((one for one in ranked if _alike(one)), ranked[0])


def _of_the_other_kind(evaluation: Evaluation, family: Family, best: Compared) -> str:
    """What is known of the best fusion that is fitted in another way than the probe; empty if that says nothing new."""
    if not _alike(best):
        return ""
    names = order(evaluation)
    rows = [one.turned() for one in evaluation.scores.comparisons("accuracy", "single layer")]
    if trained := [one for one in rows if one.second != family.reference]:
        found = min(trained, key=lambda one: names.index(one.first))
        p = "" if found.p_holm is None else f"; {p_value(found.p_holm)} after correction"
        what = f"from a trained single layer ({found.second}{p})"
        return f" Of trained methods, {found.first} differs by {_gain(found)} {what}."
    rows = evaluation.scores.comparisons("accuracy", ALL_PAIRS)
    rows = [one if one.second == family.reference else one.turned() for one in rows]
    others = [one for one in rows if one.second == family.reference and _fuses(evaluation, one.first)]
    other = min((one for one in others if not _alike(one)), key=lambda one: names.index(one.first), default=None)
    if other is None or other.difference <= best.difference:
        return ""
    how = "trained" if is_closed_form(best.first) else "solved in closed form"
    return f" {other.first} differs by {_gain(other)}, but it is {how}, so its head may explain more than fusing does."


def _fuses(evaluation: Evaluation, label: str) -> bool:
    """Whether a method fuses the layers of a frozen encoder."""
    return not evaluation.methods[label].finetune and fuses_layers(label.partition(" ")[0])


def _gain(pair: Compared) -> str:
    ends = "" if pair.low is None or pair.high is None else f" [{points(pair.low)}, {points(pair.high)}; not corrected]"
    return f"{points(pair.difference)} points{ends}"


def _alike(pair: Compared) -> bool:
    """Whether both sides are trained, or both solved in closed form."""
    return is_closed_form(pair.first) == is_closed_form(pair.second)


def _more_units(evaluation: Evaluation, family: Family, best: Compared) -> list[str]:
    """How many speakers would make the lead of the best fusion testable; empty if it is significant."""
    design = family.design
    if best.p_holm is None or best.p_holm <= family.alpha or design.n_units is None:
        return []
    unit, number = design.unit_word, design.n_units
    if design.unit == "fold" and (design.n_speakers or 0) >= number:  # there are no further folds without speakers
        unit, number = design.source_word, design.n_speakers or number
    if family.floor_holm is not None and family.floor_holm > family.alpha:
        # enough for the table of results, too, which corrects over more comparisons
        size = max(one.size for one in (family, evaluation.comparison.family) if one is not None)
        floors = map(sign_flip_floor, range(EXACT_FLIPS_UP_TO + 1))  # beyond, random signs allow no smaller p-value
        needed = next((n for n, floor in enumerate(floors) if floor * size <= family.alpha), None)
        if needed is None or number > EXACT_FLIPS_UP_TO:
            return [f"Compare fewer methods: over {size:,} comparisons, no lead can be significant."]
        return [f"Add {unit}s: with {number}, no lead can be significant. {needed} would do."]
    enough = best.units_needed(family.alpha / family.size)  # the strictest step of Holm's correction
    if best.difference <= 0 or enough is None or enough <= number:
        return []
    most = max(MOST_UNITS, 10 * number)
    if enough > most:
        return [f"Stop looking for a better fusion here: its lead would take over {most:,} {unit}s to confirm."]
    return [f"Add {unit}s: confirming a lead of {points(best.difference)} points would take about {enough} of them."]


def _train_better(evaluation: Evaluation) -> list[str]:
    """Which settings would train the marked methods better, by the cause of their marks."""
    steps = []
    methods = evaluation.fairness.methods
    for section, tuned in (("train", False), ("finetune", True)):
        settings = evaluation.provenance.config.get(section, {})
        budget, given = settings.get("steps") is not None, settings.get("search") == "none"  # no value is searched
        overfitted = f"Add a larger value to {section}.search_weight_decay"
        if given:
            overfitted = f"Raise {section}.weight_decay"
        if tuned:
            overfitted = f"Raise {section}.weight_decay, or lower {section}.epochs"
        advice = {
            "undertrained": (f"Raise {section}.{'steps' if budget else 'epochs'}", "not trained enough"),
            "overfitted": (overfitted, "overfitted"),
            "collapsed": (
                f"Lower {section}.lr" if given else f"Add a lower value to {section}.search_lr",
                "worse after its refit",
            ),
        }
        found: dict[tuple[str, str], list[str]] = {}  # advice and reason -> methods
        for name, one in methods.items():
            if (evaluation.methods[name].effect is not None) != tuned:
                continue
            width = None if tuned or one.status != "undertrained" else _narrow_head(evaluation, name)
            if width is not None:
                number = len(evaluation.classes)
                text = f"Raise hidden_dim in method_settings, e.g. to {4 * number}"
                found.setdefault((text, f"given {width} hidden units for {number} classes"), []).append(name)
            elif one.status == "overfitted" and not tuned and _needs_no_penalty(methods.get(one.counterpart or "")):
                # what tells the classes apart varies little, so steps learn it slowly, and decay holds it back
                lower = "lower train.weight_decay" if given else "add lower values to train.search_weight_decay"
                text = f"{advice['undertrained'][0]}, and {lower}"
                found.setdefault((text, "behind a probe with next to no penalty"), []).append(name)
            elif one.status in advice:
                found.setdefault(advice[one.status], []).append(name)
            edges = [setting for setting, number in one.edges.items() if number > one.runs / 2]
            if one.status == "learned nothing" and one.as_probe:  # no learning rate helps
                if all(other.status == "learned nothing" for other in methods.values()):
                    found.setdefault(("Check the labels", "not better than chance"), []).append(name)
                continue
            for setting in {"undertrained": edges, "learned nothing": ["lr"]}.get(one.status, []):
                at_highest = one.highest.get(setting, 0) > one.runs / 2
                side, end = ("higher", "highest") if at_highest else ("lower", "lowest")
                text, why = f"Add {side} values to {section}.search_{setting}", f"best at the {end} value tried"
                if one.status == "learned nothing":
                    text = f"Set {section}.search=grid" if given else text
                    text, why = f"{text}, or leave the method out", "not better than chance"
                found.setdefault((text, why), []).append(name)
        for (text, why), names in found.items():
            steps.append(f"{text}: {listed(short_names(names))} {'was' if len(names) == 1 else 'were'} {why}.")
    return steps


def _needs_no_penalty(probe: MethodFairness | None) -> bool:
    """Whether a probe chose the lowest penalty in most runs."""
    edges = {} if probe is None else {one: number - probe.highest.get(one, 0) for one, number in probe.edges.items()}
    return probe is not None and edges.get("penalty", 0) > probe.runs / 2


def _narrow_head(evaluation: Evaluation, method: str) -> int | None:
    """Width of a method's MLP head if it is less than twice the number of classes: no number of steps helps it then."""
    base, _ = resolve_method(method.partition(" ")[0])  # without its marks
    settings = METHODS.defaults(base) | evaluation.methods[method].settings
    width = settings.get("hidden_dim") if settings.get("decoder", "mlp") == "mlp" else None
    return width if width is not None and width < 2 * len(evaluation.classes) else None


def _figure(evaluation: Evaluation, profile: Sequence[LayerRow]) -> Block:
    label = f"Accuracy per {evaluation.item}"
    methods = {}
    for name in order(evaluation):
        one = evaluation.accuracy(name)
        ends = None if one.low is None or one.high is None else (one.low, one.high)
        (short,) = short_names([name])  # notes such as "undertrained" would reach into the panel of the layers
        methods[short] = (one.mean, ends)
    means = ", ".join(f"{name} {percent(value)} %" for name, (value, _) in methods.items())
    alt = f"{label} of every method: {means}."
    if profile:
        best = max(profile, key=lambda one: one.value)
        top = f"highest {percent(best.value)} % at layer {best.layers[0]}"
        alt = f"Accuracy of a ridge probe of every layer, {top}. {alt}"
    chance = evaluation.main_chance.majority_fraction
    return figures.drawn(figures.answers(profile, methods, chance, label, f"{alt} The numbers are in the tables."))
