"""The papers' statements about their own tables: parameters, summaries, claims in the text, and repetitions.

Most of it needs no run: parameters are counted on the methods, summaries and claims are computed from printed numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from daamctl.artifacts.terms import listed
from daamctl.reporting import counts, reproduced
from daamctl.reporting.document import DASH, Cell, Linked, Number, Section, Table, Text
from daamctl.reporting.papers import agreement
from daamctl.reporting.published import read_published, records
from daamctl.reporting.published_layout import (
    CLAIMS,
    DATASETS,
    LARGEST,
    REPEATS,
    THERE,
    Dataset,
    Record,
    printed,
    printed_in,
    rows_of,
)
from daamctl.reporting.reproduced import EIGHT_HEADS, OURS, Ours, Pair

DAAMS, LORAS = ("daam-v1", "daam-v2", "gqdaam"), ("lora-r4", "lora-r8", "lora-plus-r4", "lora-plus-r8")
GROUPS: dict[str, Sequence[str]] = {"mha": ("mha",), "mha-bn": ("mha-bn",), "lora-best": LORAS, "daam-best": DAAMS}
"""Group compared in the summaries -> rows whose best is used."""
SIZES = {
    "mixture-daam, heads": "8 in ours, one block",
    "mixture-daam, Gaussians per head": "4 in ours",
    "daam, Gaussians per head": "the encoder’s width: 1,024; 1,024; 5,120",
}
"""Rows with sizes rather than counts -> our values."""
ROUNDING = 1e-9


def parameters() -> Section:
    """Published parameter counts and what they include."""
    text = (
        "Counted on methods built at the papers’ sizes, without any run. The papers mix three counts: the attention "
        "only, everything but the last linear layer (without fc), and everything (D37)."
    )
    cells: list[list[Cell]] = [
        [name, Linked(printed(part), printed_in(part)), *_counted(name, part)]
        for name, part in rows_of("parameters").items()
    ]
    columns = ["Quantity", "Published", "Computed: speech; vision; text", "Lower end is", "Upper end is"]
    main = Table("parameters", "Published counts and what they include", columns, cells, frozenset({1, 2, 3, 4}),
                 "✓: computed counts that round to the published one. LoRA rows: rank 4 / rank 8.")  # fmt: skip
    return Section("parameters", "Parameters", [Text(text), main, _count_table()])


def _counted(name: str, part: Sequence[Record]) -> list[Cell]:
    """Computed counts, and what the ends of a published range include."""
    method, words = name.split(", ")
    if name in SIZES:
        return [SIZES[name], DASH, DASH]
    if words == "attention part":
        same = counts.shown(method, words)
        return [same, "✓ attention part" if same.split("; ")[0] == part[0]["value"] else "✗", DASH]
    kind, counted = ("total", method) if words.startswith("total") else ("attention part", method)
    if words.startswith("DAAM part") and method == "gqdaam":
        counted = EIGHT_HEADS  # the density inside
    value = {record["split"]: record["value"] for record in part}
    ends = [counts.fits(counted, value[split]) for split in ("min", "max", "single") if split in value]
    return [counts.shown(counted, kind), *ends, *[DASH] * (2 - len(ends))]


def _count_table() -> Table:
    kinds, modalities = ("attention part", "without fc", "total"), ("speech", "vision", "text")
    cells: list[list[Cell]] = [
        [name, *(Number(found[modality].named[kind], "count") for kind in kinds for modality in modalities)]
        for name, found in counts.counts().items()
    ]
    columns = ["Method", *(f"{kind[:1].upper()}{kind[1:]}, {modality}" for kind in kinds for modality in modalities)]
    note = (
        "WavLM-Large on IEMOCAP, BEiT-Large on CIFAR-100, Llama2-13B on AG News. GQA and GQDAAM in the released form. "
        "LoRA by formula: query and value projections, for rank 1 only the query. Its attention part is the adapters. "
        "Its total includes the classifier, which the released code leaves frozen on text (D4)."
    )
    return Table("counts", "Trainable parameters, computed", columns, cells, note=note)


def best(pairs: Mapping[str, Pair]) -> Section:
    """The best row of each kind, as summarised in the post, and ours."""
    rows = rows_of("best")
    cells: list[list[Cell]] = []
    for dataset in DATASETS:
        for name, part in rows.items():
            if name.startswith(f"{dataset.title}: "):
                terms = part[0]["method"].split("-minus-")
                own = (_of_terms(one, terms) for one in pairs[dataset.key])
                shown = Linked(printed(part), printed_in(part))
                cells.append([name, shown, _from_table(dataset, terms, part[0]["value"]), *own])
    part = rows[LARGEST]
    largest = (_largest_lead([pairs[dataset.key][side] for dataset in DATASETS]) for side in (0, 1))
    cells.append([LARGEST, Linked(f"about {printed(part)}", printed_in(part)), _largest_printed(), *largest])
    text = (
        "The post and the abstracts summarise the main tables by the best row of each kind. Choosing the best row "
        "after seeing the results favours the kind with more rows. Ours are chosen the same way."
    )
    columns = ["Row", "Published", "From the main table", *OURS]
    caption = "Summaries in the post and the abstracts, in percent and points, and ours"
    return Section("best", "Summaries", [
        Text(text), Table("best", caption, columns, cells, frozenset({1, 2, 3, 4})),
    ])  # fmt: skip


def _from_table(dataset: Dataset, terms: Sequence[str], value: str) -> Linked:
    """Value of a summary row according to the main table, and whether the summary agrees."""
    table = read_published(dataset.table)
    means = {row.method: row.printed_mean for row in table.rows if row.printed_mean is not None}
    tops = [max((name for name in GROUPS[term] if name in means), key=lambda name: means[name]) for term in terms]
    found = means[tops[0]] - (means[tops[1]] if len(tops) > 1 else 0.0)
    agrees = "agrees" if abs(found - float(value)) < ROUNDING else "✗ differs"
    number = Number(found / 100, "points" if len(tops) > 1 else "percent")
    return Linked(number, f"{' minus '.join(tops)}; {agrees}")


def _largest_printed() -> Linked:
    """The largest published lead of the best DAAM over attention."""
    leads = {}
    for dataset in DATASETS:
        means = {row.method: row.printed_mean or 0.0 for row in read_published(dataset.table).rows}
        leads[dataset.title] = max(means[name] for name in DAAMS) - means["mha"]
    title = max(leads, key=lambda title: leads[title])
    return Linked(Number(leads[title] / 100, "points"), title)


def _of_terms(one: Ours, terms: Sequence[str]) -> Cell:
    groups = [GROUPS[term] for term in terms]
    return reproduced.of_group(one, groups[0]) if len(groups) == 1 else reproduced.difference(one, groups[0], groups[1])


def _largest_lead(pipelines: Sequence[Ours]) -> Cell:
    """The largest lead of the best DAAM over attention, over the datasets that were run."""
    leads = [(found, one) for one in pipelines if (found := reproduced.lead(one, DAAMS, ("mha",))) is not None]
    if not leads:
        return Linked("not run", f"none of {listed([one.pipeline for one in pipelines])} has both")
    top = max(leads, key=lambda pair: pair[0])[1]
    cell = reproduced.difference(top, DAAMS, ("mha",))
    return Linked(cell.cell, f"{top.dataset.title}, largest of {len(leads)}; {cell.note}", cell.links)


def in_text() -> Section:
    """Comparisons of counts in the papers' text, recomputed."""
    rows, computed = rows_of("claims"), _computed_claims()
    cells: list[list[Cell]] = [
        [name, Linked(printed(rows[name]), printed_in(rows[name])), *computed[name]] for name in CLAIMS.values()
    ]
    columns = ["Claim", "Published", "Computed", "Holds?"]
    caption = "Claims on numbers of parameters in the papers’ text, and the computed counts"
    note = "v1, v2: daam-v1, daam-v2 with the papers’ decoder (DAT). Without fc: without its last linear layer."
    return Section("claims", "Claims in the text", [
        Table("claims", caption, columns, cells, frozenset({1, 2, 3}), note)
    ])  # fmt: skip


def _computed_claims() -> dict[str, tuple[str, str]]:
    """Claim -> computed value, and whether the claim holds."""
    over_daam = counts.ratios("lora-r4", "total", "daam-v1", "attention part")
    full = counts.ratios("lora-r4", "total", "daam-v1", "total")
    bare = counts.ratios("lora-r4", "without fc", "daam-v2", "without fc")
    over_gqa = counts.ratios("daam-v1", "attention part", "gqa", "attention part")
    over_decoder = counts.ratios("daam-v1", "attention part", "gqa", "without fc")
    times = f"rank 4 over v1, total: {_each(full, _times)}; over v2, without fc: {_each(bare, _times)}"
    fewer = f"v1 against rank 4, total: {_each(full, _fewer)}; v2, without fc: {_each(bare, _fewer)}"
    found = {
        "lora-over-daam": (f"rank 4 over the DAAM part of v1: {_each(over_daam, _times)}", _where(over_daam, 24)),
        "lora-over-dat": (times, f"total: {_where(full, 2)}; without fc: {_where(bare, 2)}"),
        "dat-versus-lora": (fewer, f"total: {_where(full, 1 / 0.56)}; without fc: {_where(bare, 1 / 0.56)}"),
        "daam-versus-lora": (fewer, "no count gives it (D38)"),
        "percent-overhead": (f"of the attention part: {_each(over_gqa, _percent)}", "text only"),
        "percent-overhead-as-printed": (
            f"of everything without fc: {_each(over_decoder, _percent)}",
            "no: the printed numbers are millions of parameters, not percent (D38)",
        ),
    }
    return {CLAIMS[key]: value for key, value in found.items()}


def _where(ratios: Mapping[str, float], least: float) -> str:
    """Modalities in which a ratio is large enough."""
    held = [modality for modality, ratio in ratios.items() if ratio >= least]
    return "yes" if len(held) == len(ratios) else f"{listed(held)} only" if held else "no"


def _each(ratios: Mapping[str, float], write: Callable[[float], str]) -> str:
    return ", ".join(f"{modality} {write(ratio)}" for modality, ratio in ratios.items())


def _times(ratio: float) -> str:
    return f"{ratio:.2f}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f} %"


def _fewer(ratio: float) -> str:
    """By how many percent the second count is smaller; negative if it is larger."""
    return f"{100 * (1 - 1 / ratio):.0f} %".replace("-", "−")


def repeated() -> Section:
    """Numbers that are printed more than once."""
    cells: list[list[Cell]] = []
    for name, part in rows_of("repeated").items():
        source, *tables = REPEATS[part[0]["source"], part[0]["table"]]
        first = [
            record for record in records()
            if record["source"] == source and record["table"] in tables and _same_row(record, part[0])
        ]  # fmt: skip
        cells.append([name, printed(part), printed_in(first), printed(first), _agrees(part, first)])
    columns = ["Number", THERE, "Shown above from", "Published", "Agrees?"]
    text = "These numbers repeat a table shown above, where ours are beside them."
    caption = "Numbers printed more than once, and whether they agree"
    return Section("repeated", "Repeated elsewhere", [
        Text(text), Table("repeated", caption, columns, cells, frozenset({1, 2, 3, 4})),
    ])  # fmt: skip


def _same_row(first: Record, second: Record) -> bool:
    return all(first[key] == second[key] for key in ("dataset", "method", "layers"))


def _agrees(part: Sequence[Record], first: Sequence[Record]) -> str:
    """Whether numbers printed twice are the same; single and best name the same thing."""
    known = {record["split"].replace("best", "single"): record["value"] for record in first}
    lines = []
    for record in part:
        split = record["split"].replace("best", "single")
        if split not in known:
            std = next(row for row in read_published(f"{record['source']}/{record['table']}").rows
                       if (row.method, row.layers) == (record["method"], record["layers"]))  # fmt: skip
            lines.append(f"{split} is printed only here: {agreement(std)} of its folds")
        elif float(known[split]) != float(record["value"]):
            lines.append(f"no: {split} {record['value']} here, {known[split]} there")
    return "; ".join(lines) or "yes"
