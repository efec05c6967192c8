"""Sections about layers: Importance Factor maps, reliability of layer scores, and training on few layers.

Input: the results of the importance stage and of the ablation. If one is missing, the report names the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daamctl.artifacts.ablation import Ablation, AloneTest, LayerAccuracy, ProbedDifference
from daamctl.artifacts.audit import Audit, AuditRow
from daamctl.artifacts.importance import DensityMaps, Importance, LayerScores, ProbedLayers
from daamctl.artifacts.results import marked
from daamctl.artifacts.terms import listed
from daamctl.data.task import FIGURES, Task
from daamctl.figures.layers import MethodMaps
from daamctl.figures.spec import Picture
from daamctl.reporting import figures
from daamctl.reporting.document import (
    DASH,
    Block,
    Bullets,
    Cell,
    Folded,
    Number,
    Section,
    Table,
    Text,
    layers_text,
    spread,
)

Labels = Mapping[str, str]
AllMaps = Mapping[str, MethodMaps]

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
    summary: Importance | None, maps: AllMaps, pngs: Mapping[str, bytes], *, labels: Labels, command: str
) -> Section:
    """Importance Factor maps, layer scores, their stability and their audit.

    Args:
        summary: result of the importance stage; None if it has not run.
        maps: label -> maps of a method with a density.
        pngs: pictures of the importance stage, by file name.
        labels: method -> label in the report.
    """
    title = "Which layers matter"
    if summary is None:
        return Section("importance", title, [Text(f"Not computed yet. Run: `{command}`")])
    blocks: list[Block] = []
    if summary.methods:
        blocks += _maps(summary, maps, labels)
    else:
        blocks.append(Text(summary.note))
    blocks += _scores(summary.scores, labels) if summary.scores else [Text("No method has a layer score.")]
    blocks += [*_audit(summary.audit, labels), *(_probe(summary.probed) if summary.probed else [])]
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
        result: result of the ablation; None if it has not run.
        summary: result of the importance stage, whose audit tests every score; None if it has not run.
        published: tables of the papers' results for few layers.
        labels: method -> label in the report.
    """
    title = "Training on few layers"
    if result is None:
        return Section("ablation", title, [Text(f"Not computed yet. Run: `{command}`")])
    notes = [Text(note) for note in result.notes]
    if not result.groups:
        return Section("ablation", title, [*notes, *published]) if published else None
    baseline = result.baseline
    rows = [_layers_row("baseline", baseline, baseline)]
    rows += [_layers_row(group.name, group, baseline) for group in result.groups]
    text = f"The method “{result.method}” is trained again on the chosen layers only."
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
    text = (
        "The Importance Factor is the mean density, scaled to 0..1 over the whole map. A high value means that a "
        "feature is close to the mean of its head. Layer 1 is at the bottom. Patterns that the untrained map also "
        "shows were not learned, so look at the difference."
    )
    without = [labels.get(name, name) for name in summary.without_density]
    cautions = {name: entry.caution for name, entry in methods.items() if entry.caution}
    blocks: list[Block] = [Text(text)]
    if without:
        blocks.append(Text(f"These methods have no density and therefore no map: {listed(without)}."))
    if cautions:
        text = f"{len(cautions)} of {len(methods)} maps mostly reflect geometry, not what was learned: "
        blocks.append(Text(f"{text}{listed(list(cautions))}.", caution=True))
        blocks.append(Folded("Reasons", [Bullets([f"{name}: {why}" for name, why in cautions.items()])]))
    blocks += _positions_table(methods)
    blocks += _maps_figure(methods, maps)
    return [*blocks, _geometry_table(methods), _contribution_table(methods)]


def _positions_table(methods: Mapping[str, DensityMaps]) -> list[Table]:
    """Mean scores of the layers at the same position inside their heads; empty if no map has such positions."""
    placed = {name: entry.head_positions for name, entry in methods.items() if entry.head_positions}
    most = max((len(found.means) for found in placed.values()), default=0)
    rows: list[list[Cell]] = []
    for name, found in placed.items():
        flag = "yes" if methods[name].caution else "no"
        before = methods[name].head_positions_untrained or found
        for which, mark, scores in ((name, flag, found), (f"{name}, untrained", DASH, before)):
            means = [*scores.means, *[None] * (most - len(scores.means))]
            counts = ", ".join(map(str, found.counts))
            cells = [Number(value, "plain") for value in means]
            rows.append([which, mark, Number(methods[name].num_heads, "count"), counts, *cells])
    positions = (f"Position {i + 1}" for i in range(most))
    columns = ["Method", "Mostly geometry?", "Heads", "Layers at each position", *positions]
    note = (
        "Position 1 is the first layer of every head, position 2 the second, and so on. Patterns that the untrained "
        "map also shows were not learned. Mostly geometry: the position explains most of the differences between "
        "layers, or the map is almost equal to the untrained one."
    )
    caption = "Mean Importance Factor of the layers at each position inside their heads"
    return [Table("places", caption, columns, rows, frozenset({1, 3}), note)] if rows else []


def _maps_figure(methods: Mapping[str, DensityMaps], maps: AllMaps) -> list[Block]:
    """Maps and layer contribution of every method; empty without maps."""
    shown = {name: maps[name] for name in methods if name in maps}
    if not shown:
        return []
    described = []
    for name, entry in methods.items():
        shares = entry.contribution_percent.values()
        described.append(
            f"{name}: {_highest_clause(entry)}, contribution from {min(shares):.2f} to {max(shares):.2f} %"
        )
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
    note = (
        "Highest layers by mean Importance Factor. Explained by position: share of the differences between layers that "
        "the position of a layer inside its head explains. Adjusted: corrected for the number of positions. p: "
        "permutation of the layers. A high r or share means geometry rather than learning."
    )
    caption = "How much of each map existed before training"
    return Table("geometry", caption, columns, rows, frozenset({1, 2}), note)


def _contribution_table(methods: Mapping[str, DensityMaps]) -> Folded:
    columns = ["Layer"]
    for name in methods:
        columns += [name, f"{name}, untrained"]
    rows: list[list[Cell]] = []
    for layer in sorted({layer for entry in methods.values() for layer in entry.layers}):
        row: list[Cell] = [str(layer)]
        for entry in methods.values():
            for shares in (entry.contribution_percent, entry.contribution_percent_untrained):
                share = shares.get(str(layer))
                row.append(Number(None if share is None else share / 100, "share"))
        rows.append(row)
    table = Table("contribution", "Layer contribution in percent of the density, mean over runs", columns, rows)
    return Folded(table.caption, [table])


def _scores(scores: Mapping[str, LayerScores], labels: Labels) -> list[Block]:
    rows: list[list[Cell]] = []
    for name, entry in scores.items():
        rows.append(
            [
                labels.get(name, name),
                SCORE_KINDS.get(entry.kind, entry.kind),
                _highest_layers(entry),
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
    note = (
        "Kendall’s τ between the layer rankings of every pair of runs: 1 means the same ranking, 0 no agreement. A "
        "score that is equally stable before training is stable by construction."
    )
    caption = "Layer scores and how stable they are over runs"
    table = Table("stability", caption, columns, rows, frozenset({1, 2}), note)
    tied = [labels.get(name, name) for name, entry in scores.items() if not entry.ranking]
    text = f"{listed(tied)}: every layer has the same score, so the layers are not ranked."
    return [Text(text), table] if tied else [table]


def _audit(audit: Audit, labels: Labels) -> list[Block]:
    compared = audit.comparison
    blocks: list[Block] = [Text(compared.sentence)] if compared.sentence else []
    missing = [*audit.missing, *([audit.no_ablation] if audit.no_ablation else [])]
    missing += [line for entry in audit.methods.values() for line in entry.missing]
    blocks += [Text(line, caution=True) for line in missing]
    rows = [_audit_row(row, labels) for row in compared.table]
    if rows:
        columns = [
            "Method", "Score", "ρ with probe", "p (probe)", "Tracks the probe?", "ρ, untrained",
            *(f"{kind}{end}" for kind in ("Deletion", "Insertion") for end in
              (" (points)", ", p", " beats random?", ", untrained (points)")),
        ]  # fmt: skip
        note = (
            "Probe: accuracy of ridge-last on each layer alone. Deletion and insertion: area between the "
            "accuracy curve in the order of the score and the curve of random orders; above 0 is better than random. "
            f"Untrained: the same for the score before training. {compared.note}"
        )
        table = Table("audit", "Do layer scores reflect how useful the layers are?", columns, rows,
                      frozenset({1, 4, 8, 12}), note)  # fmt: skip
        blocks.append(table)
    skipped = [f"{labels.get(name, name)}: {why}" for name, why in audit.not_audited.items()]
    if skipped:
        blocks.append(Folded("Scores that were not tested", [Bullets(skipped)]))
    return blocks


def _audit_row(row: AuditRow, labels: Labels) -> list[Cell]:
    return [
        labels.get(row.method, row.label),
        SCORE_KINDS.get(row.kind, row.kind) + ("" if row.learned else ", not learned"),
        Number(row.spearman_rho, "signed"),
        Number(row.p, "p"),
        row.tracks_probe or DASH,
        Number(row.spearman_rho_untrained, "signed"),
        Number(row.deletion_advantage, "points"),
        Number(row.deletion_p, "p"),
        row.deletion_beats_random or DASH,
        Number(row.deletion_advantage_untrained, "points"),
        Number(row.insertion_advantage, "points"),
        Number(row.insertion_p, "p"),
        row.insertion_beats_random or DASH,
        Number(row.insertion_advantage_untrained, "points"),
    ]


def _probe(probed: ProbedLayers) -> list[Block]:
    """The figures behind “which layer is best”."""
    metric = FIGURES["accuracy" if probed.entity_f1 is None else "entity_f1"]
    rows: list[list[Cell]] = [
        [
            str(one.layer),
            Number(one.value, low=one.low, high=one.high),
            Number(layer.difference, "points"),
            Number(layer.p, "p"),
        ]
        for one, layer in zip(probed.profile, probed.layers, strict=True)
    ]
    unit = f" per {probed.unit}" if probed.entity_f1 is None else ""
    caption = f"{metric[0].upper()}{metric[1:]}{unit} in percent of ridge-last on each layer alone [95 % interval]"
    note = (
        "The mean over folds and seeds, as for every method; the last layer is the method ridge-last. The difference "
        "is over all test items, so its sign may be another than that of the means. p (Holm): paired test against the "
        f"best layer, over {probed.resampled or 'fold'}s, "
        "corrected for the number of layers. The best layer was picked by these figures, so its own is optimistic."
    )
    columns = ["Layer", metric[0].upper() + metric[1:], "Minus best layer (points)", "p (Holm)"]
    return [Folded(caption, [Table("probe", caption, columns, rows, note=note)])]


def _gallery(summary: Importance, pngs: Mapping[str, bytes], labels: Labels) -> list[Block]:
    """The pictures of the importance stage, collapsed by method."""
    blocks: list[Block] = []
    for name in dict.fromkeys([*summary.methods, *summary.scores]):
        label, entry, score = labels.get(name, name), summary.methods.get(name), summary.scores.get(name)
        alts: dict[str, str] = {}
        if entry:
            alts |= {entry.heatmap: _heatmap_alt(label, entry), entry.layers_picture: _bars_alt(label, entry)}
        if score:
            alts[score.band] = _band_alt(label, score)
        if score and score.replacement:
            alts[score.replacement] = _replacement_alt(label)
        blocks.append(Folded(label, [Picture(file, alt, pngs[file]) for file, alt in alts.items()]))
    return [Folded(f"Pictures of every method ({len(blocks)})", blocks)] if blocks else []


def _heatmap_alt(label: str, entry: DensityMaps) -> str:
    correlation = entry.correlation_with_untrained
    same = "" if correlation is None else f" Their correlation is {correlation:.2f}."
    return (
        f"Importance Factor of {label}, {len(entry.layers)} layers by {entry.num_features} features, trained "
        f"beside untrained. On average: {_highest_clause(entry)}.{same}"
    )


def _bars_alt(label: str, entry: DensityMaps) -> str:
    shares = entry.contribution_percent
    if not entry.ranking:
        return f"Layer contribution in {label}, trained beside untrained: the same for every layer."
    high, low = max(shares, key=lambda layer: shares[layer]), min(shares, key=lambda layer: shares[layer])
    return (
        f"Layer contribution in {label}, trained beside untrained: from {shares[low]:.2f} % (layer {low}) to "
        f"{shares[high]:.2f} % (layer {high})."
    )


def _band_alt(label: str, score: LayerScores) -> str:
    return (
        f"{SCORE_KINDS.get(score.kind, score.kind).capitalize()} per layer of {label}: mean and range over "
        f"{len(score.folds)} runs, trained beside untrained. Highest layers: {_highest_layers(score)}."
    )


def _replacement_alt(label: str) -> str:
    return (
        f"Accuracy of the trained {label} while layers are replaced by their mean, and while they are put back, in "
        "order of its score and in random orders; the areas between the curves are in the table."
    )


def _highest_layers(entry: LayerScores) -> str:
    """The highest layers, unless the score does not rank layers."""
    distinct = {round(value, 9) for value in entry.trained.values()}
    return _first_layers(entry.ranking) if entry.ranking and len(distinct) >= LEAST_DISTINCT else UNRANKED


def _highest_clause(entry: DensityMaps) -> str:
    """The layer with the highest mean Importance Factor, as a clause."""
    return f"highest on layer {entry.ranking[0]}" if entry.ranking else "the same on every layer"


def _first_layers(ranking: Sequence[int]) -> str:
    return ", ".join(map(str, ranking[:SHOWN_LAYERS]))


def _layers_row(name: str, row: LayerAccuracy, baseline: LayerAccuracy) -> list[Cell]:
    gap: Cell = DASH if row is baseline else Number(paired_mean(row, baseline), "points")
    numbers = layers_text(row.layers)
    return [marked(name, row.mark), numbers, spread(row), Number(row.n, "count"), gap, spread(row.probe)]


def paired_mean(group: LayerAccuracy, baseline: LayerAccuracy) -> float | None:
    """Mean difference between two groups of layers, over the runs (fold and seed) that both have."""
    base = {(row.fold, row.seed): row.compared for row in baseline.per_fold}
    gaps = [row.compared - base[key] for row in group.per_fold if (key := (row.fold, row.seed)) in base]
    return sum(gaps) / len(gaps) if gaps else None


def _differences(result: Ablation) -> list[Table]:
    named: list[tuple[str, ProbedDifference]] = []
    named += [(f"{part.k} highest minus {part.k} lowest", part) for part in result.differences]
    named += [(f"{part.name}: {layers_text(part.high)} minus {layers_text(part.low)}", part) for part in result.presets]
    rows: list[list[Cell]] = []
    for name, part in named:
        ahead = sum(row.difference > 0 for row in part.per_fold)
        rows.append(
            [
                name,
                spread(part, "points"),
                Number(part.n, "count"),
                f"{ahead} of {len(part.per_fold)}",
                spread(part.probe, "points"),
                "yes" if part.contradicts else "no" if part.judged else "not judged",
            ]
        )
    if not rows:
        return []
    columns = ["Layers", "Mean ± std (points)", "n", "Ahead in", "Closed-form probe (points)", "Contradicted?"]
    note = (
        "Contradicted: the two differences have opposite signs and differ by more than either std. Not judged: the "
        "method was not trained well on one of the groups, or there are too few runs."
    )
    metric = FIGURES[result.metric]
    caption = f"Layers of high importance minus layers of low importance, {metric}, run by run, in points"
    return [Table("high-low", caption, columns, rows, frozenset({5}), note)]


def _alone(result: Ablation) -> list[Table]:
    rows = [_alone_cells(test) for test in result.alone]
    if not rows:
        return []
    metric = FIGURES[result.metric]
    note = (
        f"Score: Importance Factor of {result.rank_by}. ρ: rank correlation between the score of a group and its "
        f"{metric}. p over folds: sign-flip test. Both p-values are one-sided."
    )
    caption = f"Do layers of high importance give a higher {metric} when trained alone?"
    return [Table("alone", caption, ALONE, rows, frozenset({4, 5}), note)]


def _alone_by_score(summary: Importance | None, labels: Labels) -> list[Table]:
    """The test of `_alone` for the score of every method."""
    if summary is None:
        return []
    rows: list[list[Cell]] = []
    for name, entry in summary.audit.methods.items():
        kind = summary.scores[name].kind if name in summary.scores else ""
        rows += [[labels.get(name, name), SCORE_KINDS.get(kind, kind), *_alone_cells(test)] for test in entry.alone]
    if not rows:
        return []
    note = (
        "All scores are tested on the same layers, chosen by the Importance Factor of the ranking method and by the "
        "settings. Highest and lowest refer to the method’s own score. The p-values are not corrected for the number "
        "of methods."
    )
    caption = "Do layers with a high score do better when trained alone? Scores of every method"
    return [Table("alone-scores", caption, ["Method", "Score", *ALONE], rows, frozenset({1, 6, 7}), note)]


def _alone_cells(test: AloneTest) -> list[Cell]:
    return [
        str(test.k),
        Number(test.num_groups, "count"),
        Number(test.spearman_rho, "signed"),
        Number(test.p_groups, "p"),
        layers_text(test.high) or DASH,
        layers_text(test.low) or DASH,
        Number(test.difference, "points"),
        Number(test.p_folds, "p"),
        Number(test.floor_folds, "p"),
    ]
