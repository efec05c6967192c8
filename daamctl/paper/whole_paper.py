"""The report on the whole paper: every published table beside the results of two pipelines.

Sources: daam-v4 (arXiv 2401.11143v4), gaam-v1 (its first version) and daam-blog (the authors' post); see
docs/sources.md#the-papers. Each experiment has two pipelines: `<name>-as-published` follows the released code and its
scoring, `<name>` corrects the deviations that change results. Each of our cells names its protocol and links to its
runs, or says why there is no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daamctl.artifacts.terms import listed
from daamctl.paper import claims, reproduced
from daamctl.paper.deviations import remark
from daamctl.paper.numbers import (
    Experiment,
    experiments,
    numbers,
    printed,
    rows_by_experiment,
    rows_of,
)
from daamctl.paper.reproduced import EIGHT_HEADS, OURS, Pair
from daamctl.paper.sections import agreement, print_check
from daamctl.paper.tables import read_published
from daamctl.reporting.document import (
    DASH,
    Block,
    Bullets,
    Cell,
    Document,
    Facts,
    Folded,
    Linked,
    Number,
    Section,
    Table,
    Text,
    plural,
)

CONTROLS = ("none", "weighted-sum", "linear-probe")
"""Our control methods, which the papers do not have (D58)."""
TUNED = ("dora-r8", "houlsby", "full-finetune")
"""Fine-tuning methods to compare with the papers' LoRA rows; the papers do not have them."""
STARTS = {"δ": 0.0, "ξ": 2.0}
SEPARATE_FOLDS = "LoRA rows number the folds by size (D15) and have their own batch size and epochs (D18)."


def whole_paper(pairs: Mapping[str, Pair]) -> Document:
    """Build the report from the two pipelines of every experiment, by its key: all published results beside ours."""
    sections = [
        _overview([pairs[one.key] for one in experiments()]),
        *(_results(one, pairs[one.key]) for one in experiments()),
        _first_version(pairs),
        _ablation(pairs),
        _learned(pairs),
        claims.parameters(),
        claims.best(pairs),
        claims.in_text(),
        claims.repeated(),
        claims.dwatt(),
    ]
    return Document("Density Adaptive Attention: every published table and ours", "paper", sections)


def _overview(pairs: Sequence[Pair]) -> Section:
    pipelines = [one for pair in pairs for one in pair]
    there = [one for one in pipelines if one.evaluation]
    runs = sum(len(entry.runs) for one in there for entry in one.methods.values())
    facts = [
        ("Published numbers shown", f"{len(numbers())}"),
        ("Pipelines with results", f"{len(there)} of {len(pipelines)}"),
        ("Trained runs", f"{runs}"),
    ]
    text = (
        "This report compares every number published in the paper (daam-v4), its first version (gaam-v1) and the "
        "authors’ post (daam-blog) with two of our results. Each result names its protocol and links to its runs and "
        "to the report of its pipeline. If there is no result, the cell says why."
    )
    lines = [
        "As published: training and scoring follow the released code. Every clip is scored separately, and the epoch "
        "is the best on the test data, which inflates all results (D7).",
        "Corrected: the deviations that change results are corrected (see daamctl deviations). Settings are chosen on "
        "held-out training data, whole utterances are scored, and results have a 95 % confidence interval.",
        "± is the standard deviation: as printed for the papers, with divisor n − 1 for ours.",
    ]
    cautions = [line for one in pipelines for line in (*reproduced.mismatches(one), *reproduced.unfair(one))]
    lacking = [one for one in pipelines if not one.evaluation]
    if lacking:
        cautions.append(f"No results yet: {listed([one.pipeline for one in lacking])}. The table says why.")
    rows: list[list[Cell]] = []
    for one in pipelines:
        absent = sum(len(entry.missing) for entry in one.methods.values())
        missing = f"{plural(absent, 'run')} missing" if absent else "no run missing"
        shown = Linked(plural(len(one.methods), "method"), missing, one.links()) if one.evaluation else "none"
        rows.append([one.pipeline, shown, one.why["evaluate"] or DASH, one.fix or DASH, ", ".join(one.made) or "none"])
    columns = ["Pipeline", "Results", "Why not", "How to get them", "Stages with output"]
    table = Table("pipelines", "The pipelines of this report", columns, rows, frozenset({1, 2, 3, 4}))
    blocks: list[Block] = [Facts(facts), Text(text), Bullets(lines), *(Text(line, caution=True) for line in cautions)]
    return Section("overview", "Overview", [*blocks, table])


def _results(experiment: Experiment, pair: Pair) -> Section:
    """The main table of an experiment."""
    table = read_published(experiment.tables[0])
    rows = table.methods
    cells: list[list[Cell]] = []
    for row in rows:
        note = remark(row.method, experiment.modality) or DASH
        folds = Linked(Number(row.mean / 100, std=row.sample_std / 100), agreement(row))
        cells.append([row.method, row.printed, folds, *_our_cells(pair, row.method, row.mean), note])
    foot: list[list[Cell]] = []
    for names, what in ((CONTROLS, "control"), (TUNED, "fine-tuning, beside LoRA")):
        foot += [[name, "not published", DASH, *_our_cells(pair, name, None), what] for name in names]
    columns = ["Method", "Published", "From its folds", OURS[0], "Ours minus published (points)", OURS[1], "Remark"]
    note = (
        "From its folds: mean ± sample std (divisor n − 1) of the printed folds, and whether the printed mean and "
        "deviation agree with them. Ours minus published: ours as published minus the mean of the printed folds. "
        + ("The printed columns are repeats of one split." if table.repeats else SEPARATE_FOLDS)
    )
    key, caption = experiment.key, _caption(experiment, experiment.tables[0])
    main = Table(f"results-{key}", caption, columns, cells, frozenset({1, 2, 3, 5, 6}), note, foot)
    check = print_check(rows, f"folds-{key}", where=f" of {experiment.title}")
    return Section(key, experiment.title, [Text(table.protocol), main, Folded(check.caption, [check])])


def _our_cells(pair: Pair, method: str, mean: float | None) -> list[Cell]:
    published, corrected = pair
    gap = DASH if mean is None else reproduced.gap(published, method, mean)
    return [reproduced.figure(published, method), gap, reproduced.figure(corrected, method)]


def _caption(experiment: Experiment, table: str) -> str:
    where = table.replace("/", " ")
    return f"Accuracy in percent on {experiment.title} ({experiment.encoder}): {where}, and ours"


def _first_version(pairs: Mapping[str, Pair]) -> Section:
    text = (
        "The first version of the paper has no LoRA rows. It compares with two Gaussian gates, SGA and bi-SGA, which "
        "the last version drops. Its other rows repeat numbers of the last version: all folds on IEMOCAP, and one best "
        "accuracy elsewhere, which is repeat R1 of the last version (D63)."
    )
    columns = [
        "Method", "Published", "In the last version", OURS[0], "Ours minus published (points)", OURS[1], "Remark",
    ]  # fmt: skip
    blocks: list[Block] = [Text(text)]
    for experiment in experiments():
        key = f"first-{experiment.key}"
        cells: list[list[Cell]] = []
        for method, part in rows_of(key).items():
            ours = _our_cells(pairs[experiment.key], method, float(part[0].value))
            note, last = remark(method, experiment.modality) or DASH, "dropped"
            if row := read_published(experiment.tables[0]).row(method):
                # elsewhere than on IEMOCAP the first version prints one best accuracy only
                split = "mean" if part[0].split == "mean" else "R1"
                shown = row.printed_mean if split == "mean" else row.folds["R1"]
                last = f"{'the same' if shown == float(part[0].value) else f'{shown:g}'} ({split})"
            cells.append([method, printed(part), last, *ours, note])
        caption = _caption(experiment, experiment.first)
        blocks.append(Table(key, caption, columns, cells, frozenset({1, 2, 3, 5, 6})))
    folds = print_check(read_published("gaam-v1/T2").rows, "first-folds-iemocap", where=" of gaam-v1 T2")
    return Section("first", "The first version", [*blocks, Folded(folds.caption, [folds])])


def _ablation(pairs: Mapping[str, Pair]) -> Section:
    cells: list[list[Cell]] = []
    for experiment, name, part in rows_by_experiment("ablation"):
        pair = pairs[experiment.key]
        if part[0].method == "high-minus-low":
            ours = [reproduced.high_minus_low(one) for one in pair]
        else:
            ours = [reproduced.few_layers(one, part[0].layer_numbers) for one in pair]
        cells.append([name, printed(part), *ours])
    text = (
        "The papers train only on layers of high or of low Importance Factor and take the difference as evidence for "
        "the score. The only released script for this trains attention over the batch on a single layer (D6). On a "
        "single layer, DAAM has nothing to weight."
    )
    caption = "Accuracy in percent after training on few layers: daam-v4 T2-if-iemocap and T2-if-text-vision, and ours"
    note = "Minus rows: from daam-blog; ours over the shared folds. For text and images, a single run is published."
    main = Table("ablation", caption, ["Layers", "Published", *OURS], cells, frozenset({1, 2, 3}), note)
    rows = read_published(experiments()[0].tables[0]).few_layers
    folds = print_check(rows, "ablation-folds", where=" of single layers on IEMOCAP")
    picked: list[list[Cell]] = []
    for experiment in experiments():
        theirs = f"high {_layers(experiment.layers('high'))}; low {_layers(experiment.layers('low'))}"
        mine = [reproduced.layers_by_importance(one, EIGHT_HEADS) for one in pairs[experiment.key]]
        picked.append([experiment.title, theirs, *mine])
    note = "Published: the layers that the papers train alone. Ours: by mean Importance Factor over all features."
    caption, columns = "Layers selected by the Importance Factor", ["Data", "Published", *OURS]
    layers = Table("layers", caption, columns, picked, frozenset({1, 2, 3}), note)
    return Section("ablation", "Training on few layers", [Text(text), main, Folded(folds.caption, [folds]), layers])


def _layers(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"


def _learned(pairs: Mapping[str, Pair]) -> Section:
    cells: list[list[Cell]] = []
    for experiment, name, part in rows_by_experiment("learned"):
        sign, end = name.removeprefix(f"{experiment.title}: ").split()
        start = "0" if end == "width" else f"{STARTS[sign]:g}"
        ours = [reproduced.learned(one, EIGHT_HEADS, sign, end) for one in pairs[experiment.key]]
        cells.append([name, printed(part), start, *ours])
    text = (
        "Offset δ and scaled variance ξ of the best density with eight heads. The published values hardly differ from "
        "the initial values, so the density is almost unchanged by training (D29)."
    )
    note = (
        f"Ours: lowest and highest over all heads and features of {EIGHT_HEADS}, mean ± sample std over runs. The "
        "papers do not say over which folds theirs are."
    )
    caption = "Learned ranges: daam-v4 T2-modality-summary (widths: daam-blog), and ours"
    columns = ["Parameter", "Published", "Initial value", *OURS]
    table = Table("learned", caption, columns, cells, frozenset({1, 3, 4}), note)
    return Section("learned", "Learned ranges", [Text(text), table])
