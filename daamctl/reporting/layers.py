"""Sections about layers: Importance Factor maps, reliability of layer scores, and training on few layers.

Input: summary.json of the importance stage and ablation.json. If one is missing, the report names the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daamctl.artifacts.terms import Terms, listed
from daamctl.figures.layers import LayerRun
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
    count,
    layers_text,
    spread,
)
from daamctl.reporting.published import NO_MODULE, PublishedTable

Labels = Mapping[str, str]
DensityRuns = Mapping[str, tuple[Sequence[int], Sequence[LayerRun]]]

SCORE_KINDS = {"importance": "Importance Factor", "weight": "layer weight"}
ALONE = (
    "Layers each", "Groups", "ρ over groups", "p over groups", "Highest score", "Lowest score",
    "High minus low (points)", "p over folds", "Smallest p possible",
)  # fmt: skip
"""Columns of the test whether single layers with a high score have a higher accuracy."""
SHOWN_LAYERS = 5
LEAST_DISTINCT = 3
"""Number of different values that a score needs to rank layers, as in the audit."""
UNRANKED = "does not rank layers"


def importance(
    summary: Mapping[str, Any] | None, runs: DensityRuns, pngs: Mapping[str, bytes], *, labels: Labels, command: str
) -> Section:
    """Importance Factor maps, layer scores, their stability and their audit.

    Args:
        summary: result of the importance stage; None if it has not run.
        runs: label -> layer numbers and maps, the mean map first.
        pngs: pictures of the importance stage, by file name.
        labels: method -> label in the report.
        command: command that runs the stage.
    """
    title = "Which layers matter"
    if summary is None:
        return Section("importance", title, [Text(f"Not computed yet. Run: {command}")])
    blocks: list[Block] = []
    if summary["methods"]:
        blocks += _maps(summary, runs, labels)
    else:
        blocks.append(Text(summary["note"]))
    scores = summary.get("scores") or {}
    blocks += _scores(scores, labels, command) if scores else [Text(f"No layer scores are stored. Run: {command}")]
    blocks += _audit(summary.get("audit"), labels, command)
    unscored = {labels.get(name, name): why for name, why in (summary.get("without_score") or {}).items()}
    if unscored:
        blocks.append(
            Folded("Methods without a layer score", [Bullets([f"{k}: {why}" for k, why in unscored.items()])])
        )
    blocks += _gallery(summary, scores, pngs, labels)
    return Section("importance", title, blocks)


def ablation(
    result: Mapping[str, Any] | None,
    summary: Mapping[str, Any] | None,
    table: PublishedTable | None,
    *,
    labels: Labels,
    words: Terms,
    command: str,
) -> Section:
    """Retraining on few layers, whether layer scores predict the result, and the papers' results.

    Args:
        result: result of the ablation; None if it has not run.
        summary: result of the importance stage, whose audit tests every score; None if it has not run.
        table: published table.
        labels: method -> label in the report.
        words: what the modality calls its units.
        command: command that runs the ablation.
    """
    title = "Training on few layers"
    if result is None:
        return Section("ablation", title, [Text(f"Not computed yet. Run: {command}")])
    if not result["groups"]:
        return Section("ablation", title, [Text("No layers were chosen, so nothing was trained on few layers."),
                                           *map(Text, result["notes"])])  # fmt: skip
    baseline = result["baseline"]
    rows = [_group_row("baseline", baseline, baseline)]
    rows += [_group_row(group["name"], group, baseline) for group in result["groups"]]
    text = f"The method “{result['method']}” is trained again on the chosen layers only."
    if result["ranking"]:
        ranking = ", ".join(map(str, result["ranking"]))
        text = f"Layers by Importance Factor of {result['rank_by']}, highest first: {ranking}. {text}"
    columns = ["Layers chosen", "Numbers", "Mean ± std", "n", "Minus baseline (points)"]
    caption = f"Accuracy per {words.unit(result['unit'])} in percent, trained on few layers"
    blocks: list[Block] = [Text(text), *map(Text, result["notes"])]
    blocks += [Text(line, caution=True) for line in result.get("cautions", [])]
    blocks.append(Table("few-layers", caption, columns, rows, frozenset({1})))
    blocks += [*_differences(result), *_alone(result), *_alone_by_score(summary, labels), *_published_layers(table)]
    return Section("ablation", title, blocks)


def _maps(summary: Mapping[str, Any], runs: DensityRuns, labels: Labels) -> list[Block]:
    methods = {labels.get(name, name): entry for name, entry in summary["methods"].items()}
    text = (
        "The Importance Factor is the mean density, scaled to 0..1 over the whole map. A high value means that a "
        "feature is close to the mean of its head. Layer 1 is at the bottom. Patterns that the untrained map also "
        "shows were not learned, so look at the difference."
    )
    without = [labels.get(name, name) for name in summary["without_density"]]
    cautions = {name: entry["caution"] for name, entry in methods.items() if entry["caution"]}
    blocks: list[Block] = [Text(text)]
    if without:
        blocks.append(Text(f"These methods have no density and therefore no map: {listed(without)}."))
    if cautions:
        told = f"{len(cautions)} of {len(methods)} maps mostly reflect geometry, not what was learned: "
        blocks.append(Text(f"{told}{listed(list(cautions))}.", caution=True))
        blocks.append(Folded("Reasons", [Bullets([f"{name}: {why}" for name, why in cautions.items()])]))
    blocks += [*_places_table(methods), *_explorer(methods, runs)]
    return [*blocks, _geometry_table(methods), _contribution_table(methods)]


def _places_table(methods: Mapping[str, Any]) -> list[Table]:
    """Mean scores of the layers at the same position inside their heads; empty if no map has such positions."""
    placed = {name: entry for name, entry in methods.items() if entry.get("head_positions")}
    most = max((len(entry["head_positions"]["means"]) for entry in placed.values()), default=0)
    rows: list[list[Cell]] = []
    for name, entry in placed.items():
        counts = entry["head_positions"]["counts"]
        for which, key in ((name, "head_positions"), (f"{name}, untrained", "head_positions_untrained")):
            means = [*entry[key]["means"], *[None] * (most - len(counts))]
            flag = ("yes" if entry["caution"] else "no") if which == name else DASH
            heads, layers = Number(entry["num_heads"], "count"), ", ".join(map(str, counts))
            rows.append([which, flag, heads, layers, *(Number(mean, "plain") for mean in means)])
    positions = (f"Position {i + 1}" for i in range(most))
    columns = ["Method", "Mostly geometry?", "Heads", "Layers at each position", *positions]
    note = (
        "Position 1 is the first layer of every head, position 2 the second, and so on. Patterns that the untrained "
        "map also shows were not learned. Mostly geometry: the position explains most of the differences between "
        "layers, or the map is almost equal to the untrained one."
    )
    caption = "Mean Importance Factor of the layers at each position inside their heads"
    return [Table("places", caption, columns, rows, frozenset({1, 3}), note)] if rows else []


def _explorer(methods: Mapping[str, Any], runs: DensityRuns) -> list[Block]:
    shown = {name: runs[name] for name in methods if name in runs}
    if not shown:
        return []
    alt = "; ".join(
        f"{name}: {_top(entry)}, contribution from "
        f"{min(entry['contribution_percent'].values()):.2f} to {max(entry['contribution_percent'].values()):.2f} %"
        for name, entry in methods.items()
    )
    alt = f"Importance Factor and layer contribution, trained beside untrained. {alt}. The numbers are in the tables."
    return [figures.drawn(figures.importance(shown, alt))]


def _geometry_table(methods: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for name, entry in methods.items():
        place = entry.get("head_positions") or {}
        rows.append(
            [name, _first(entry["ranking"]) or UNRANKED, _first(entry["ranking_untrained"]) or UNRANKED,
             Number(entry["correlation_with_untrained"], "signed"), Number(entry["num_heads"], "count"),
             Number(place.get("share")), Number(place.get("adjusted_share")), Number(place.get("p"), "p")]
        )  # fmt: skip
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


def _contribution_table(methods: Mapping[str, Any]) -> Folded:
    layers = list(dict.fromkeys(str(layer) for entry in methods.values() for layer in entry["layers"]))
    columns, rows = ["Layer"], [[layer] for layer in sorted(layers, key=int)]
    cells: list[list[Cell]] = [list(row) for row in rows]
    for name, entry in methods.items():
        columns += [name, f"{name}, untrained"]
        for row in cells:
            for key in ("contribution_percent", "contribution_percent_untrained"):
                share = entry[key].get(str(row[0]))
                row.append(Number(None if share is None else share / 100, "share"))
    table = Table("contribution", "Layer contribution in percent of the density, mean over runs", columns, cells)
    return Folded(table.caption, [table])


def _scores(scores: Mapping[str, Any], labels: Labels, command: str) -> list[Block]:
    rows: list[list[Cell]] = []
    for name, entry in scores.items():
        stable, before = entry["stability"], entry["stability_untrained"]
        rows.append(
            [labels.get(name, name), SCORE_KINDS.get(entry["kind"], entry["kind"]), _score_first(entry),
             Number(stable["tau_mean"], "signed"), Number(stable["tau_min"], "signed"),
             Number(stable["pairs"], "count"), Number(before["tau_mean"], "signed"),
             Number(entry["tau_with_untrained"], "signed")]
        )  # fmt: skip
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
    tied = [labels.get(name, name) for name, entry in scores.items() if not entry["ranking"]]
    text = f"{listed(tied)}: every layer has the same score, so the layers are not ranked."
    return [Text(text), table] if tied else [table]


def _audit(audit: Mapping[str, Any] | None, labels: Labels, command: str) -> list[Block]:
    if not audit:
        return [Text(f"The layer scores were not tested against the usefulness of the layers. Run: {command}")]
    compared = audit.get("comparison") or {}
    blocks: list[Block] = [Text(compared["sentence"])] if compared.get("sentence") else []
    lacking = [line for entry in audit.get("methods", {}).values() for line in entry.get("missing", [])]
    lines = [*audit.get("missing", []), audit.get("no_ablation"), *lacking]
    blocks += [Text(line, caution=True) for line in lines if line]
    rows = [_audit_row(row, labels) for row in compared.get("table") or []]
    if rows:
        columns = [
            "Method", "Score", "ρ with probe", "p (probe)", "Tracks the probe?", "ρ, untrained",
            *(f"{kind}{end}" for kind in ("Deletion", "Insertion") for end in
              (" (points)", ", p", " beats random?", ", untrained (points)")),
        ]  # fmt: skip
        note = (
            "Probe: accuracy of a linear classifier on each layer alone. Deletion and insertion: area between the "
            "accuracy curve in the order of the score and the curve of random orders; above 0 is better than random. "
            f"Untrained: the same for the score before training. {compared.get('note', '')}"
        )
        table = Table("audit", "Do layer scores reflect how useful the layers are?", columns, rows,
                      frozenset({1, 4, 8, 12}), note)  # fmt: skip
        blocks += [table, *_probe(audit)]
    skipped = {labels.get(name, name): why for name, why in (audit.get("not_audited") or {}).items()}
    if skipped:
        blocks.append(
            Folded("Scores that were not tested", [Bullets([f"{name}: {why}" for name, why in skipped.items()])])
        )
    return blocks


def _audit_row(row: Mapping[str, Any], labels: Labels) -> list[Cell]:
    cells: list[Cell] = [
        labels.get(row["method"], row["label"]),
        SCORE_KINDS.get(row["kind"], row["kind"]) + ("" if row["learned"] else ", not learned"),
        Number(row["spearman_rho"], "signed"), Number(row["p"], "p"), row["tracks_probe"] or DASH,
        Number(row["spearman_rho_untrained"], "signed"),
    ]  # fmt: skip
    for kind in ("deletion", "insertion"):
        cells += [
            Number(row[f"{kind}_advantage"], "points"), Number(row[f"{kind}_p"], "p"),
            row[f"{kind}_beats_random"] or DASH,
            Number(row[f"{kind}_advantage_untrained"], "points"),
        ]  # fmt: skip
    return cells


def _probe(audit: Mapping[str, Any]) -> list[Block]:
    probe = audit.get("probe")
    if not probe:
        return []
    rows: list[list[Cell]] = [[layer, Number(value)] for layer, value in probe["layers"].items()]
    unit = audit.get("settings", {}).get("unit", "clip")
    caption = f"Accuracy per {unit} in percent of a linear probe on each layer alone"
    note = f"Mean over the test groups of {probe['folds']} folds." if probe["folds"] > 1 else "On the test part."
    if probe.get("most_clips"):
        note += f" Fitted on at most {count(probe['most_clips'])} training {unit}s and scored on as many test {unit}s."
    table = Table("probe", caption, ["Layer", "Accuracy"], rows, note=note)
    return [Folded(caption, [table])]


def _gallery(
    summary: Mapping[str, Any], scores: Mapping[str, Any], pngs: Mapping[str, bytes], labels: Labels
) -> list[Block]:
    """The pictures of the importance stage, collapsed by method."""
    blocks: list[Block] = []
    for name in dict.fromkeys([*summary["methods"], *scores]):
        label, entry, score = labels.get(name, name), summary["methods"].get(name), scores.get(name)
        alts: dict[str | None, str] = {}
        if entry:
            alts |= {entry["heatmap"]: _heatmap_alt(label, entry), entry["layers_picture"]: _bars_alt(label, entry)}
        if score:
            alts |= {score["band"]: _band_alt(label, score), score["replacement"]: _replacement_alt(label)}
        shown = [Picture(file, alt, pngs[file]) for file, alt in alts.items() if file]
        blocks += [Folded(label, shown)] if shown else []
    return [Folded(f"Pictures of every method ({len(blocks)})", blocks)] if blocks else []


def _heatmap_alt(label: str, entry: Mapping[str, Any]) -> str:
    correlation = entry["correlation_with_untrained"]
    same = "" if correlation is None else f" Their correlation is {correlation:.2f}."
    return (
        f"Importance Factor of {label}, {len(entry['layers'])} layers by {entry['num_features']} features, trained "
        f"beside untrained. On average: {_top(entry)}.{same}"
    )


def _bars_alt(label: str, entry: Mapping[str, Any]) -> str:
    shares = entry["contribution_percent"]
    if not entry["ranking"]:
        return f"Layer contribution in {label}, trained beside untrained: the same for every layer."
    high, low = max(shares, key=shares.get), min(shares, key=shares.get)
    return (
        f"Layer contribution in {label}, trained beside untrained: from {shares[low]:.2f} % (layer {low}) to "
        f"{shares[high]:.2f} % (layer {high})."
    )


def _band_alt(label: str, score: Mapping[str, Any]) -> str:
    return (
        f"{SCORE_KINDS.get(score['kind'], score['kind']).capitalize()} per layer of {label}: mean and range over "
        f"{len(score['folds'])} runs, trained beside untrained. Highest layers: {_score_first(score)}."
    )


def _replacement_alt(label: str) -> str:
    return (
        f"Accuracy of the trained {label} while layers are replaced by their mean, and while they are put back, in "
        "order of its score and in random orders; the areas between the curves are in the table."
    )


def _score_first(entry: Mapping[str, Any]) -> str:
    """The highest layers, unless the score does not rank layers."""
    distinct = {round(value, 9) for value in entry["trained"].values()}
    return _first(entry["ranking"]) if entry["ranking"] and len(distinct) >= LEAST_DISTINCT else UNRANKED


def _top(entry: Mapping[str, Any]) -> str:
    """The layer with the highest mean Importance Factor, as a clause."""
    return f"highest on layer {entry['ranking'][0]}" if entry["ranking"] else "the same on every layer"


def _first(ranking: Sequence[int]) -> str:
    return ", ".join(map(str, ranking[:SHOWN_LAYERS]))


def _group_row(name: str, group: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Cell]:
    gap: Cell = DASH if group is baseline else Number(paired_mean(group, baseline), "points")
    return [name, layers_text(group["layers"]), spread(group), Number(group["n"], "count"), gap]


def paired_mean(group: Mapping[str, Any], baseline: Mapping[str, Any]) -> float | None:
    """Mean difference in accuracy between two groups of layers, over the runs (fold and seed) that both have."""
    base = {(row["fold"], row["seed"]): row["accuracy"] for row in baseline["per_fold"]}
    gaps = [row["accuracy"] - base[key] for row in group["per_fold"] if (key := (row["fold"], row["seed"])) in base]
    return sum(gaps) / len(gaps) if gaps else None


def _differences(result: Mapping[str, Any]) -> list[Table]:
    named = [(f"{part['k']} highest minus {part['k']} lowest", part) for part in result["differences"]]
    named += [
        (f"{part['name']}: {layers_text(part['high'])} minus {layers_text(part['low'])}", part)
        for part in result.get("presets", [])
    ]
    probed = any(part.get("probe") for _, part in named)
    rows: list[list[Cell]] = [
        [name, spread(part, "points"), Number(part["n"], "count"),
         f"{sum(row['difference'] > 0 for row in part['per_fold'])} of {len(part['per_fold'])}",
         *([spread(part["probe"], "points"), "yes" if part["contradicts"] else "no"] if probed else [])]
        for name, part in named
    ]  # fmt: skip
    if not rows:
        return []
    columns = ["Layers", "Mean ± std (points)", "n", "Ahead in"]
    columns += ["Linear probes (points)", "Contradicted?"] if probed else []
    note = (
        "Linear probes: the same difference, for the mean accuracy of ridge probes of single layers on test items. "
        "Contradicted: the two differences have opposite signs and differ by more than either std."
    )
    caption = "Accuracy on layers of high importance minus accuracy on layers of low importance, run by run, in points"
    return [
        Table("high-low", caption, columns, rows, frozenset({5}) if probed else frozenset(), note if probed else "")
    ]


def _alone(result: Mapping[str, Any]) -> list[Table]:
    rows = [_alone_cells(test) for test in result.get("alone", [])]
    if not rows:
        return []
    note = (
        f"Score: Importance Factor of {result['rank_by']}. ρ: rank correlation between the score of a group and its "
        "accuracy. p over folds: sign-flip test. Both p-values are one-sided."
    )
    caption = "Do layers of high importance give a higher accuracy when trained alone?"
    return [Table("alone", caption, ALONE, rows, frozenset({4, 5}), note)]


def _alone_by_score(summary: Mapping[str, Any] | None, labels: Labels) -> list[Table]:
    """The test of `_alone` for the score of every method."""
    scores = (summary or {}).get("scores") or {}
    audited = ((summary or {}).get("audit") or {}).get("methods") or {}
    rows: list[list[Cell]] = [
        [
            labels.get(name, name),
            SCORE_KINDS.get(kind := scores.get(name, {}).get("kind", ""), kind),
            *_alone_cells(test),
        ]
        for name, entry in audited.items()
        for test in entry.get("alone") or []
    ]
    if not rows:
        return []
    note = (
        "All scores are tested on the same layers, chosen by the Importance Factor of the ranking method and by the "
        "settings. Highest and lowest refer to the method’s own score. The p-values are not corrected for the number "
        "of methods."
    )
    caption = "Do layers with a high score give a higher accuracy when trained alone? Scores of every method"
    return [Table("alone-scores", caption, ["Method", "Score", *ALONE], rows, frozenset({1, 6, 7}), note)]


def _alone_cells(test: Mapping[str, Any]) -> list[Cell]:
    return [
        str(test["k"]), Number(test["num_groups"], "count"), Number(test["spearman_rho"], "signed"),
        Number(test["p_groups"], "p"), layers_text(test["high"]) or DASH, layers_text(test["low"]) or DASH,
        Number(test["difference"], "points"), Number(test["p_folds"], "p"), Number(test["floor_folds"], "p"),
    ]  # fmt: skip


def _published_layers(table: PublishedTable | None) -> list[Table]:
    rows = [row for row in table.rows if row.method.startswith(NO_MODULE)] if table else []
    if not rows:
        return []
    cells: list[list[Cell]] = [
        [row.method, row.layers, Number(row.mean / 100, std=row.sample_std / 100)] for row in rows
    ]
    of = "repeats" if table and table.repeats else "folds"
    unit = "" if of == "repeats" else ", per clip"
    caption = f"Published results for few layers (percent{unit}, best epoch on test)"
    columns = ["Choice", "Layers", f"Mean ± sample std of the {of}"]
    return [Table("published-layers", caption, columns, cells, frozenset({1}))]
