"""The report on the papers: every published table beside the results of two pipelines.

Sources: daam-v4 (arXiv 2401.11143v4), gaam-v1 (its first version) and daam-blog (the authors' post); see
docs/sources.md#the-papers. Each experiment has two pipelines: `<name>-as-published` follows the released code and its
scoring, `<name>` corrects the deviations that change results. Each of our cells names its protocol and links to its
runs, or says why there is no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daamctl.artifacts.terms import listed
from daamctl.reporting import published_claims, reproduced
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
from daamctl.reporting.papers import agreement, print_check
from daamctl.reporting.published import NO_MODULE, PublishedRow, read_published, records, remark
from daamctl.reporting.published_layout import (
    BY_CORPUS,
    DATASETS,
    SOURCES,
    Dataset,
    Record,
    ablation_row,
    difference_row,
    printed,
    rows_of,
)
from daamctl.reporting.reproduced import EIGHT_HEADS, OURS, Ours, Pair

CONTROLS = ("none", "weighted-sum", "linear-probe")
"""Our control methods, which the papers do not have (D58)."""
TUNED = ("dora-r8", "houlsby", "full-finetune")
"""Fine-tuning methods to compare with the papers' LoRA rows; the papers do not have them."""
STARTS = {"δ": 0.0, "ξ": 2.0}
SEPARATE_FOLDS = "LoRA rows number the folds by size (D15) and have their own batch size and epochs (D18)."


def whole_paper(pairs: Mapping[str, Pair]) -> Document:
    """Build the report: all published results beside ours.

    Args:
        pairs: key of every dataset -> its two pipelines.
    """
    ordered = [pairs[dataset.key] for dataset in DATASETS]
    sections = [
        _overview(ordered),
        *(_results(dataset, pairs[dataset.key]) for dataset in DATASETS),
        _first_version(pairs),
        _ablation(pairs),
        _learned(pairs),
        published_claims.parameters(),
        published_claims.best(pairs),
        published_claims.in_text(),
        published_claims.repeated(),
        _left_out(),
    ]
    return Document("Density Adaptive Attention: every published table and ours", "paper", sections)


def _overview(pairs: Sequence[Pair]) -> Section:
    pipelines = [one for pair in pairs for one in pair]
    there = [one for one in pipelines if one.evaluation]
    runs = sum(len(entry.per_fold) for one in there for entry in one.methods.values())
    shown = [record for record in records() if record["source"] in SOURCES]
    facts = [
        ("Published numbers shown", f"{len(shown)}"),
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
        "Corrected: the deviations that change results are corrected (see daamctl deviations). The epoch is chosen on "
        "held-out training data, whole utterances are scored, and results have a 95 % confidence interval.",
        "± is the standard deviation: as printed for the papers, with divisor n − 1 for ours.",
    ]
    cautions = [line for one in pipelines for line in (*reproduced.mismatches(one), *reproduced.unfair(one))]
    lacking = [one for one in pipelines if not one.evaluation]
    if lacking:
        cautions.append(f"No results yet: {listed([one.pipeline for one in lacking])}. The table says why.")
    rows = [_pipeline_row(one) for one in pipelines]
    columns = ["Pipeline", "Results", "Why not", "How to get them", "Stages with output"]
    table = Table("pipelines", "The pipelines of this report", columns, rows, frozenset({1, 2, 3, 4}))
    blocks: list[Block] = [Facts(facts), Text(text), Bullets(lines), *(Text(line, caution=True) for line in cautions)]
    return Section("overview", "Overview", [*blocks, table])


def _pipeline_row(one: Ours) -> list[Cell]:
    figures: Cell = "none"
    if one.evaluation:
        lacking = sum(len(entry.missing) for entry in one.methods.values())
        missing = f"{plural(lacking, 'run')} missing" if lacking else "no run missing"
        figures = Linked(plural(len(one.methods), "method"), missing, one.links())
    return [one.pipeline, figures, one.why["evaluate"] or DASH, one.fix or DASH, ", ".join(one.made) or "none"]


def _results(dataset: Dataset, pair: Pair) -> Section:
    table = read_published(dataset.table)
    rows = [row for row in table.rows if not row.method.startswith(NO_MODULE)]
    cells = [
        [*_printed_cells(row), *_our_cells(pair, row.method, row.mean), remark(row.method, dataset.modality) or DASH]
        for row in rows
    ]
    beside = [*((name, "control") for name in CONTROLS), *((name, "fine-tuning, beside LoRA") for name in TUNED)]
    foot = [[name, "not published", DASH, *_our_cells(pair, name, None), what] for name, what in beside]
    columns = ["Method", "Published", "From its folds", OURS[0], "Ours minus published (points)", OURS[1], "Remark"]
    note = (
        "From its folds: mean ± sample std (divisor n − 1) of the printed folds, and whether the printed mean and "
        "deviation agree with them. Ours minus published: ours as published minus the mean of the printed folds. "
        + (SEPARATE_FOLDS if dataset.modality == "speech" else "The printed columns are repeats of one split.")
    )
    main = Table(f"results-{dataset.key}", _caption(dataset, f"daam-v4 {dataset.table}"), columns, cells,
                 frozenset({1, 2, 3, 5, 6}), note, foot)  # fmt: skip
    folds = print_check(rows, f"folds-{dataset.key}", where=f" of {dataset.title}")
    return Section(dataset.key, dataset.title, [Text(table.protocol), main, Folded(folds.caption, [folds])])


def _printed_cells(row: PublishedRow) -> list[Cell]:
    return [row.method, row.printed, Linked(Number(row.mean / 100, std=row.sample_std / 100), agreement(row))]


def _our_cells(pair: Pair, method: str, mean: float | None) -> list[Cell]:
    published, corrected = pair
    gap = DASH if mean is None else reproduced.gap(published, method, mean)
    return [reproduced.figure(published, method), gap, reproduced.figure(corrected, method)]


def _caption(dataset: Dataset, source: str) -> str:
    encoder = next(record["encoder"] for record in records() if record["dataset"] == dataset.corpus)
    return f"Accuracy in percent on {dataset.title} ({encoder}): {source}, and ours"


def _first_version(pairs: Mapping[str, Pair]) -> Section:
    text = (
        "The first version of the paper has no LoRA rows. It compares with two Gaussian gates, SGA and bi-SGA, which "
        "the last version drops. Its other rows repeat numbers of the last version: all folds on IEMOCAP, and one best "
        "accuracy elsewhere, which is repeat R1 of the last version (D63)."
    )
    blocks: list[Block] = [Text(text)]
    for dataset in DATASETS:
        rows = rows_of(f"first-{dataset.key}")
        cells: list[list[Cell]] = [
            [method, printed(part), _in_last(part[0]), *_our_cells(pairs[dataset.key], method, _single(part)),
             remark(method, dataset.modality) or DASH]
            for method, part in rows.items()
        ]  # fmt: skip
        columns = [
            "Method", "Published", "In the last version", OURS[0], "Ours minus published (points)", OURS[1], "Remark",
        ]  # fmt: skip
        caption = _caption(dataset, f"gaam-v1 {dataset.first}")
        blocks.append(Table(f"first-{dataset.key}", caption, columns, cells, frozenset({1, 2, 3, 5, 6})))
    folds = print_check(read_published("gaam-v1/T2").rows, "first-folds-iemocap", where=" of gaam-v1 T2")
    return Section("first", "The first version", [*blocks, Folded(folds.caption, [folds])])


def _single(part: Sequence[Record]) -> float:
    """The mean of a row, or its only number."""
    return float(part[0]["value"])


def _in_last(record: Record) -> str:
    """The number of the last version for a row of the first version."""
    row = read_published(BY_CORPUS[record["dataset"]].table).row(record["method"])
    if row is None:
        return "dropped"
    shown = row.printed_mean if record["split"] == "mean" else row.folds["R1"]
    same = "the same" if shown == float(record["value"]) else f"{shown:g}"
    return f"{same} ({'mean' if record['split'] == 'mean' else 'R1'})"


def _ablation(pairs: Mapping[str, Pair]) -> Section:
    rows, table = rows_of("ablation"), read_published(DATASETS[0].table)
    cells: list[list[Cell]] = []
    for dataset in DATASETS:
        pair = pairs[dataset.key]
        for kind, layers in (("high", dataset.high), ("low", dataset.low)):
            span = str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
            name = ablation_row(dataset, span, kind)
            cells.append([name, printed(rows[name]), *(reproduced.few_layers(one, layers) for one in pair)])
        name = difference_row(dataset)
        cells.append([name, printed(rows[name]), *(reproduced.high_minus_low(one) for one in pair)])
    text = (
        "The papers train only on layers of high or of low Importance Factor and take the difference as evidence for "
        "the score. The only released script for this trains attention over the batch on a single layer (D6). On a "
        "single layer, DAAM has nothing to weight."
    )
    caption = "Accuracy in percent after training on few layers: daam-v4 T2-if-iemocap and T2-if-text-vision, and ours"
    note = "Minus rows: from daam-blog; ours over the shared folds. For text and images, a single run is published."
    main = Table("ablation", caption, ["Layers", "Published", *OURS], cells, frozenset({1, 2, 3}), note)
    folds = print_check([row for row in table.rows if row.method.startswith(NO_MODULE)], "ablation-folds",
                        where=" of single layers on IEMOCAP")  # fmt: skip
    return Section(
        "ablation", "Training on few layers", [Text(text), main, Folded(folds.caption, [folds]), _picked(pairs)]
    )


def _picked(pairs: Mapping[str, Pair]) -> Table:
    rows: list[list[Cell]] = [
        [dataset.title, f"high {_layers(dataset.high)}; low {_layers(dataset.low)}",
         *(reproduced.layers_by_importance(one, EIGHT_HEADS) for one in pairs[dataset.key])]
        for dataset in DATASETS
    ]  # fmt: skip
    note = "Published: the layers that the papers train alone. Ours: by mean Importance Factor over all features."
    caption = "Layers selected by the Importance Factor"
    return Table("layers", caption, ["Data", "Published", *OURS], rows, frozenset({1, 2, 3}), note)


def _layers(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"


def _learned(pairs: Mapping[str, Pair]) -> Section:
    rows = rows_of("learned")
    cells: list[list[Cell]] = []
    for dataset in DATASETS:
        for name, part in rows.items():
            if name.startswith(f"{dataset.title}: "):
                sign, end = name.removeprefix(f"{dataset.title}: ").split()
                start = "0" if end == "width" else f"{STARTS[sign]:g}"
                own = (reproduced.learned(one, EIGHT_HEADS, sign, end) for one in pairs[dataset.key])
                cells.append([name, printed(part), start, *own])
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


def _left_out() -> Section:
    number = sum(record["source"] not in SOURCES for record in records())
    text = (
        f"The {number} numbers of the DWAtt paper are about tokens (named entities, perplexity) and have no "
        "counterpart here. Its three modules are available as the methods dwatt, concat and base-plus-n. "
        "As an adaptation of this project, they read pooled layers."
    )
    return Section("left-out", "Not included", [Text(text)])
