"""Sections about layers: Importance Factor maps, reliability of layer scores, and training on few layers.

Input: the results of the importance stage and of the ablation. If one is missing, the report names the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.importance import DensityMaps, Importance, LayerScores
from daamctl.artifacts.layer_sets import ALL, Ablation, LayerRow, minus, over_runs
from daamctl.artifacts.results import marked
from daamctl.artifacts.terms import listed
from daamctl.data.task import FIGURES, Task
from daamctl.reporting import figures
from daamctl.reporting.document import (
    DASH,
    Block,
    Bullets,
    Cell,
    Folded,
    Kind,
    Number,
    Section,
    Table,
    Text,
    layers_text,
    plural,
    spread,
)
from daamctl.reporting.figure_layers import MethodMaps
from daamctl.reporting.figure_spec import Picture
from daamctl.reporting.sentences import outside, say

Labels = Mapping[str, str]
AllMaps = Mapping[str, MethodMaps]
Shares = Mapping[int, LayerRow]
"""Layer -> its figure over all runs."""

SCORES = ("trained", "untrained")
SCORE_KINDS = {"importance": "Importance Factor", "weight": "layer weight"}
ALONE = (
    "Layers each", "Groups", "ρ over groups", "p over groups", "Highest score", "Lowest score",
    "High minus low (points)", "p over folds", "Smallest p possible",
)  # fmt: skip
"""Columns of the test whether single layers with a high score do better."""
SHOWN_LAYERS = 5
LEAST_DISTINCT = 3
"""Number of different values that a score needs to rank layers, as in the audit."""
UNRANKED = "does not rank layers"


def importance(
    summary: Importance | None, maps: AllMaps, pngs: Mapping[str, bytes], *, labels: Labels, task: Task, command: str
) -> Section:
    """Importance Factor maps, layer scores, their stability and their audit; `labels`: method -> label in the report.

    Args:
        summary: result of the importance stage; None if it has not run.
        maps: label -> maps of a method with a density.
        pngs: pictures of the importance stage, by file name.
    """
    title = "Which layers matter"
    if summary is None:
        return Section("importance", title, [Text(f"Not computed yet. Run: `{command}`")])
    blocks: list[Block] = []
    if summary.methods:
        blocks += _maps(summary, maps, labels)
    else:
        blocks.append(Text(summary.note))
    blocks += _scores(summary, labels) if summary.scores else [Text("No method has a layer score.")]
    blocks += [*_audit(summary, labels), *_probe(summary, task)]
    unscored = [f"{labels.get(name, name)}: {why}" for name, why in summary.without_score.items()]
    if unscored:
        blocks.append(Folded("Methods without a layer score", [Bullets(unscored)]))
    blocks += _gallery(summary, pngs, labels)
    return Section("importance", title, blocks)


def ablation(
    result: Ablation | None,
    summary: Importance | None,
    published: Sequence[Table],
    *,
    labels: Labels,
    task: Task,
    command: str,
) -> Section | None:
    """Retraining on few layers, whether layer scores predict the result, and the papers' results.

    None: no layers were chosen, and the papers have no such results.

    Args:
        result: result of the ablation, `summary` of the importance stage, whose audit tests every score; None if the
            stage has not run.
        published: tables of the papers' results for few layers.
    """
    title = "Training on few layers"
    if result is None:
        return Section("ablation", title, [Text(f"Not computed yet. Run: `{command}`")])
    notes = [Text(note) for note in result.notes]
    if not result.rows:
        return Section("ablation", title, [*notes, *published]) if published else None
    rows: list[list[Cell]] = []
    # the first rows are those of the baseline
    for name, layers in {ALL: result.rows[0].layers, **result.sets}.items():
        own, shown = result.runs(name), "baseline" if name == ALL else name
        found = over_runs(own.values())
        gap: Cell = DASH
        if name != ALL:
            gap = Number(over_runs(minus(own, result.runs(ALL)).values()).mean, "points")
        probe = spread(over_runs(result.probed(name).values()))
        numbers, runs = layers_text(layers), Number(found.n, "count")
        rows.append([marked(shown, result.marks.get(name, "")), numbers, spread(found), runs, gap, probe])
    text = f"The method “{result.label}” is trained again on the chosen layers only."
    if result.probe:
        text += f" Beside it, the closed-form probe {result.probe} is solved on the same layers."
    if result.ranking:
        ranking = ", ".join(map(str, result.ranking))
        text = f"Layers by Importance Factor of {result.rank_by}, highest first: {ranking}. {text}"
    columns = ["Layers chosen", "Numbers", "Mean ± std", "n", "Minus baseline (points)", "Closed-form probe"]
    caption = f"{task.title}{task.per(result.unit)} in percent, trained on few layers"
    blocks: list[Block] = [Text(text), *notes]
    blocks += [Text(line, caution=True) for line in result.cautions]
    blocks.append(Table("few-layers", caption, columns, rows, frozenset({1})))
    blocks += [*_differences(result), *_alone(result), *_alone_by_score(summary, labels), *published]
    return Section("ablation", title, blocks)


def _maps(summary: Importance, maps: AllMaps, labels: Labels) -> list[Block]:
    methods = {labels.get(name, name): entry for name, entry in summary.methods.items()}
    without = [labels.get(name, name) for name in summary.without_density]
    cautions = {name: entry.caution for name, entry in methods.items() if entry.caution}
    blocks: list[Block] = [Text(say("maps"))]
    if without:
        blocks.append(Text(f"These methods have no density and therefore no map: {listed(without)}."))
    if cautions:
        text = f"{len(cautions)} of {len(methods)} maps mostly reflect geometry, not what was learned: "
        blocks.append(Text(f"{text}{listed(list(cautions))}.", caution=True))
        blocks.append(Folded("Reasons", [Bullets([f"{name}: {why}" for name, why in cautions.items()])]))
    blocks += _positions_table(methods)
    shares = {labels.get(name, name): summary.by_layer(name, "contribution") for name in summary.methods}
    blocks += _maps_figure(methods, shares, maps)
    return [*blocks, _geometry_table(methods), _contribution_table(shares)]


def _positions_table(methods: Mapping[str, DensityMaps]) -> list[Table]:
    """Mean scores of the layers at the same position inside their heads; empty if no map has such positions."""
    placed = {name: entry.head_positions for name, entry in methods.items() if entry.head_positions}
    most = max((len(found.means) for found in placed.values()), default=0)
    rows: list[list[Cell]] = []
    for name, found in placed.items():
        flag = "yes" if methods[name].caution else "no"
        before = methods[name].head_positions_untrained or found
        for which, mark, scores in ((name, flag, found), (f"{name}, untrained", DASH, before)):
            # heads of other methods may have more positions
            means = [*scores.means, *[None] * (most - len(scores.means))]
            counts = ", ".join(map(str, found.counts))
            cells = [Number(value, "plain") for value in means]
            rows.append([which, mark, Number(methods[name].num_heads, "count"), counts, *cells])
    positions = (f"Position {i + 1}" for i in range(most))
    columns = ["Method", "Mostly geometry?", "Heads", "Layers at each position", *positions]
    caption = "Mean Importance Factor of the layers at each position inside their heads"
    return [Table("places", caption, columns, rows, frozenset({1, 3}), say("note_places"))] if rows else []


def _maps_figure(methods: Mapping[str, DensityMaps], shares: Mapping[str, Shares], maps: AllMaps) -> list[Block]:
    """Maps and layer contribution of every method; empty without maps."""
    shown = {name: maps[name] for name in methods if name in maps}
    if not shown:
        return []
    described = []
    for name, entry in methods.items():
        own = [100 * row.value for row in shares[name].values()]
        described.append(f"{name}: {_highest_clause(entry)}, contribution from {min(own):.2f} to {max(own):.2f} %")
    alt = (
        "Importance Factor and layer contribution, trained beside untrained. "
        f"{'; '.join(described)}. The numbers are in the tables."
    )
    return [figures.drawn(figures.importance(shown, alt))]


def _geometry_table(methods: Mapping[str, DensityMaps]) -> Table:
    rows: list[list[Cell]] = []
    for name, entry in methods.items():
        position = entry.head_positions
        rows.append(
            [
                name,
                _first_layers(entry.ranking) or UNRANKED,
                _first_layers(entry.ranking_untrained) or UNRANKED,
                Number(entry.correlation_with_untrained, "signed"),
                Number(entry.num_heads, "count"),
                Number(position.share if position else None),
                Number(position.adjusted_share if position else None),
                Number(position.p if position else None, "p"),
            ]
        )
    columns = [
        "Method", "Highest layers, trained", "Highest, untrained", "Pearson r with untrained", "Heads",
        "Explained by position in head (%)", "Adjusted (%)", "p",
    ]  # fmt: skip
    caption = "How much of each map existed before training"
    return Table("geometry", caption, columns, rows, frozenset({1, 2}), say("note_geometry"))


def _contribution_table(shares: Mapping[str, Shares]) -> Folded:
    columns = ["Layer", *(column for name in shares for column in (name, f"{name}, untrained"))]
    rows: list[list[Cell]] = []
    for layer in sorted({layer for own in shares.values() for layer in own}):
        found = [own.get(layer) for own in shares.values()]
        pairs = [(row.value, row.untrained) if row else (None, None) for row in found]
        rows.append([str(layer), *(Number(share, "share") for pair in pairs for share in pair)])
    table = Table("contribution", "Layer contribution in percent of the density, mean over runs", columns, rows)
    return Folded(table.caption, [table])


def _scores(summary: Importance, labels: Labels) -> list[Block]:
    scores = summary.scores
    rows: list[list[Cell]] = []
    for name, entry in scores.items():
        rows.append(
            [
                labels.get(name, name),
                SCORE_KINDS.get(entry.kind, entry.kind),
                _highest_layers(entry, summary.by_layer(name, entry.kind)),
                Number(entry.stability.tau_mean, "signed"),
                Number(entry.stability.tau_min, "signed"),
                Number(entry.stability.pairs, "count"),
                Number(entry.stability_untrained.tau_mean, "signed"),
                Number(entry.tau_with_untrained, "signed"),
            ]
        )
    columns = [
        "Method", "Score", "Highest layers", "τ between runs, mean", "Lowest", "Pairs", "Untrained, mean",
        "τ with untrained",
    ]  # fmt: skip
    caption = "Layer scores and how stable they are over runs"
    table = Table("stability", caption, columns, rows, frozenset({1, 2}), say("note_stability"))
    tied = [labels.get(name, name) for name, entry in scores.items() if not entry.ranking]
    text = f"{listed(tied)}: every layer has the same score, so the layers are not ranked."
    return [Text(text), table] if tied else [table]


def _audit(summary: Importance, labels: Labels) -> list[Block]:
    audit = summary.audit
    blocks: list[Block] = [Text(audit.sentence)] if audit.sentence else []
    missing = [*audit.missing, *([audit.no_ablation] if audit.no_ablation else [])]
    missing += [line for lines in audit.methods.values() for line in lines]
    blocks += [Text(line, caution=True) for line in missing]
    tests = {(one.method, one.score, one.test): one for one in summary.tests}
    rows: list[list[Cell]] = []
    for name in audit.methods:
        scored = summary.scores[name]
        kind = SCORE_KINDS.get(scored.kind, scored.kind) + ("" if scored.learned else ", not learned")
        row: list[Cell] = [labels.get(name, scored.label), kind]
        for test in ("probe", "deletion", "insertion"):
            one, before = (tests.get((name, score, test), LayerTest(name, score, test)) for score in SCORES)
            unit: Kind = "signed" if test == "probe" else "points"
            row += [Number(one.value, unit), Number(one.p, "p"), one.verdict or DASH, Number(before.value, unit)]
        rows.append(row)
    if rows:
        columns = [
            "Method", "Score", "ρ with probe", "p (probe)", "Tracks the probe?", "ρ, untrained",
            *(f"{kind}{end}" for kind in ("Deletion", "Insertion") for end in
              (" (points)", ", p", " beats random?", ", untrained (points)")),
        ]  # fmt: skip
        caption, note = "Do layer scores reflect how useful the layers are?", say("note_audit", audit.note)
        blocks.append(Table("audit", caption, columns, rows, frozenset({1, 4, 8, 12}), note))
    skipped = [f"{labels.get(name, name)}: {why}" for name, why in audit.not_audited.items()]
    if skipped:
        blocks.append(Folded("Scores that were not tested", [Bullets(skipped)]))
    return blocks


def _probe(summary: Importance, task: Task) -> list[Block]:
    """The figures behind “which layer is best”."""
    probed, profile = summary.probed, summary.profile
    if probed is None or not profile:
        return []
    by_accuracy, metric = profile[0].kind == "accuracy", FIGURES[profile[0].kind]
    rows: list[list[Cell]] = []
    for one in profile:
        value = Number(one.value, low=one.low, high=one.high)
        rows.append([str(one.layers[0]), value, Number(one.difference, "points"), Number(one.p, "p")])
    unit = f" per {task.unit(probed.unit)}" if by_accuracy else ""
    caption = f"{metric[0].upper()}{metric[1:]}{unit} in percent of ridge-last on each layer alone [95 % interval]"
    note = f"{say('note_probe', probed.resampled or 'fold')} {outside(profile, task.unit(probed.unit))}".strip()
    columns = ["Layer", metric[0].upper() + metric[1:], "Minus best layer (points)", "p (Holm)"]
    return [Folded(caption, [Table("probe", caption, columns, rows, note=note)])]


def _gallery(summary: Importance, pngs: Mapping[str, bytes], labels: Labels) -> list[Block]:
    """The pictures of the importance stage, collapsed by method."""
    blocks: list[Block] = []
    for name in dict.fromkeys([*summary.methods, *summary.scores]):
        label, entry, score = labels.get(name, name), summary.methods.get(name), summary.scores.get(name)
        alts: dict[str, str] = {}
        if entry:
            size = f"{len(entry.layers)} layers by {entry.num_features} features"
            correlation = entry.correlation_with_untrained
            same = "" if correlation is None else f" Their correlation is {correlation:.2f}."
            alts[entry.heatmap] = (
                f"Importance Factor of {label}, {size}, trained beside untrained. On average: "
                f"{_highest_clause(entry)}.{same}"
            )
            span, shares = "the same for every layer", summary.by_layer(name, "contribution").values()
            if entry.ranking:
                ends = (choose(shares, key=lambda row: row.value) for choose in (min, max))
                low, high = (f"{100 * row.value:.2f} % (layer {row.layers[0]})" for row in ends)
                span = f"from {low} to {high}"
            alts[entry.layers_picture] = f"Layer contribution in {label}, trained beside untrained: {span}."
        if score:
            highest = _highest_layers(score, summary.by_layer(name, score.kind))
            alts[score.band] = (
                f"{SCORE_KINDS.get(score.kind, score.kind).capitalize()} per layer of {label}: mean and range over "
                f"{plural(len(score.folds), 'run')}, trained beside untrained. Highest layers: {highest}."
            )
        if score and score.replacement:
            alts[score.replacement] = (
                f"Accuracy of the trained {label} while layers are replaced by their mean, and while they are put "
                "back, in order of its score and in random orders; the areas between the curves are in the table."
            )
        blocks.append(Folded(label, [Picture(file, alt, pngs[file]) for file, alt in alts.items()]))
    return [Folded(f"Pictures of every method ({len(blocks)})", blocks)] if blocks else []


def _highest_layers(entry: LayerScores, values: Shares) -> str:
    """The highest layers, unless the score does not rank layers."""
    largest = max((abs(row.value) for row in values.values()), default=0.0) or 1.0
    distinct = {round(row.value / largest, 6) for row in values.values()}  # as the audit counts them
    least = min(LEAST_DISTINCT, len(values))
    return _first_layers(entry.ranking) if entry.ranking and len(distinct) >= least else UNRANKED


def _highest_clause(entry: DensityMaps) -> str:
    """The layer with the highest mean Importance Factor, as a clause."""
    return f"highest on layer {entry.ranking[0]}" if entry.ranking else "the same on every layer"


def _first_layers(ranking: Sequence[int]) -> str:
    return ", ".join(map(str, ranking[:SHOWN_LAYERS]))


def _differences(result: Ablation) -> list[Table]:
    rows: list[list[Cell]] = []
    for one in result.contrasts:
        high, low = result.sets[one.high], result.sets[one.low]
        name = f"{one.name}: {layers_text(high)} minus {layers_text(low)}"
        if one.high.startswith("highest-"):
            name = f"{len(high)} highest minus {len(low)} lowest"
        gaps = minus(result.runs(one.high), result.runs(one.low))
        probe = over_runs(minus(result.probed(one.high), result.probed(one.low)).values())
        found, ahead = over_runs(gaps.values()), f"{sum(gap > 0 for gap in gaps.values())} of {len(gaps)}"
        ends: list[Cell] = [ahead, spread(probe, "points"), one.contradicted]
        rows.append([name, spread(found, "points"), Number(found.n, "count"), *ends])
    if not rows:
        return []
    columns = ["Layers", "Mean ± std (points)", "n", "Ahead in", "Closed-form probe (points)", "Contradicted?"]
    metric = result.task.metric
    caption = f"Layers of high importance minus layers of low importance, {metric}, run by run, in points"
    return [Table("high-low", caption, columns, rows, frozenset({5}), say("note_high_low"))]


def _alone(result: Ablation) -> list[Table]:
    rows = list(_alone_rows(result.tests))
    if not rows:
        return []
    metric = result.task.metric
    note = say("note_alone", result.rank_by, metric)
    caption = f"Do layers of high importance give a higher {metric} when trained alone?"
    return [Table("alone", caption, ALONE, [cells for _, cells in rows], frozenset({4, 5}), note)]


def _alone_by_score(summary: Importance | None, labels: Labels) -> list[Table]:
    """The test of `_alone` for the score of every method."""
    rows: list[list[Cell]] = []
    for name, cells in _alone_rows(summary.tests) if summary else ():
        kind = summary.scores[name].kind if summary and name in summary.scores else ""
        rows.append([labels.get(name, name), SCORE_KINDS.get(kind, kind), *cells])
    if not rows:
        return []
    caption = "Do layers with a high score do better when trained alone? Scores of every method"
    columns, words = ["Method", "Score", *ALONE], frozenset({1, 6, 7})
    return [Table("alone-scores", caption, columns, rows, words, say("note_alone_scores"))]


def _alone_rows(tests: Sequence[LayerTest]) -> Iterator[tuple[str, list[Cell]]]:
    """Method and cells of `ALONE` for each number of layers, which has two tests: over sets, and over folds."""
    gaps = {(one.method, one.k): one for one in tests if one.test == "alone-folds"}
    for one in tests:
        if one.test == "alone":
            gap = gaps[one.method, one.k]
            high, low = (layers_text(list(map(int, end.split(",")))) if end else DASH for end in (one.high, one.low))
            sets = Number(one.number, "count"), Number(one.value, "signed"), Number(one.p, "p")
            folds = Number(gap.value, "points"), Number(gap.p, "p"), Number(gap.floor, "p")
            yield one.method, [str(one.k), *sets, high, low, *folds]
