"""Sections on what the papers say of their own tables: parameters, summaries, claims in the text, repetitions.

Most of it needs no run: parameters are counted on the methods, summaries and claims are computed from printed numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daamctl.artifacts.terms import listed
from daamctl.paper import counts, reproduced
from daamctl.paper.numbers import (
    Experiment,
    PublishedNumber,
    experiments,
    numbers,
    printed,
    printed_in,
    read_claims,
    rows_by_experiment,
    rows_of,
)
from daamctl.paper.reproduced import EIGHT_HEADS, OURS, Pair, ReproducedResults
from daamctl.paper.sections import agreement
from daamctl.paper.tables import read_published
from daamctl.reporting.document import DASH, Cell, Linked, Number, Section, Table, Text

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
    note = "✓: computed counts that round to the published one. LoRA rows: rank 4 / rank 8."
    caption = "Published counts and what they include"
    main = Table("parameters", caption, columns, cells, frozenset({1, 2, 3, 4}), note)
    return Section("parameters", "Parameters", [Text(text), main, _count_table()])


def _counted(name: str, part: Sequence[PublishedNumber]) -> list[Cell]:
    """Computed counts, and what the ends of a published range include."""
    sizes = read_claims().sizes
    if name in sizes:
        return [sizes[name], DASH, DASH]
    method, kind = name.split(", ")
    if kind == "attention part":
        same = counts.shown(method, kind)
        return [same, "✓ attention part" if same.split("; ")[0] == part[0].value else "✗", DASH]
    counted = method
    if method == "gqdaam" and kind.startswith("DAAM part"):
        counted = EIGHT_HEADS  # the density inside
    value = {number.split: number.value for number in part}
    ends = [counts.fits(counted, value[split]) for split in ("min", "max", "single") if split in value]
    shown = counts.shown(counted, "total" if kind.startswith("total") else "attention part")
    return [shown, *ends, *[DASH] * (2 - len(ends))]


def _count_table() -> Table:
    """All computed counts."""
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
    cells: list[list[Cell]] = []
    for experiment, name, part in rows_by_experiment("best"):
        terms = part[0].method.split("-minus-")
        groups = [read_claims().groups[term] for term in terms]
        compare = reproduced.of_group if len(groups) == 1 else reproduced.difference
        own = [compare(one, *groups) for one in pairs[experiment.key]]
        shown = Linked(printed(part), printed_in(part))
        cells.append([name, shown, _from_table(experiment, terms, part[0].value), *own])
    for name, part in rows_of("best").items():
        if not part[0].pipeline:  # the largest lead of all experiments
            shown = Linked(f"about {printed(part)}", printed_in(part))
            largest = [_largest_lead([pairs[one.key][side] for one in experiments()]) for side in (0, 1)]
            leads = {}
            for one in experiments():
                means = _means(one)
                leads[one.title] = means[_top(means, "daam-best")] - means["mha"]
            title = max(leads, key=lambda title: leads[title])
            cells.append([name, shown, Linked(Number(leads[title] / 100, "points"), title), *largest])
    text = (
        "The post and the abstracts summarise the main tables by the best row of each kind. Choosing the best row "
        "after seeing the results favours the kind with more rows. Ours are chosen the same way."
    )
    columns = ["Row", "Published", "From the main table", *OURS]
    caption = "Summaries in the post and the abstracts, in percent and points, and ours"
    table = Table("best", caption, columns, cells, frozenset({1, 2, 3, 4}))
    return Section("best", "Summaries", [Text(text), table])


def _means(experiment: Experiment) -> dict[str, float]:
    """Method -> printed mean in percent, of the main table."""
    rows = read_published(experiment.tables[0]).rows
    return {row.method: row.printed_mean for row in rows if row.printed_mean is not None}


def _top(means: Mapping[str, float], term: str) -> str:
    """The method of highest mean in a group."""
    group = [name for name in read_claims().groups[term] if name in means]
    return max(group, key=lambda name: means[name])


def _from_table(experiment: Experiment, terms: Sequence[str], value: str) -> Linked:
    """Value of a summary row according to the main table, and whether the summary agrees."""
    means = _means(experiment)
    tops = [_top(means, term) for term in terms]
    found = means[tops[0]] - (means[tops[1]] if len(tops) > 1 else 0.0)
    agrees = "agrees" if abs(found - float(value)) < ROUNDING else "✗ differs"
    number = Number(found / 100, "points" if len(tops) > 1 else "percent")
    return Linked(number, f"{' minus '.join(tops)}; {agrees}")


def _largest_lead(pipelines: Sequence[ReproducedResults]) -> Cell:
    """The largest lead of the best DAAM over attention, over the experiments that were run."""
    groups = read_claims().groups
    leads = []
    for one in pipelines:
        lead = reproduced.lead(one, groups["daam-best"], groups["mha"])
        if lead is not None:
            leads.append((lead, one))
    if not leads:
        return Linked("not run", f"none of {listed([one.pipeline for one in pipelines])} has both")
    top = max(leads, key=lambda pair: pair[0])[1]
    cell = reproduced.difference(top, groups["daam-best"], groups["mha"])
    return Linked(cell.cell, f"{top.experiment.title}, largest of {len(leads)}; {cell.note}", cell.links)


def in_text() -> Section:
    """Comparisons of counts in the papers' text, recomputed."""
    rows = rows_of("claims")
    cells: list[list[Cell]] = []
    for claim in read_claims().claims:
        part = rows[claim.row]
        computed, verdicts = [], []
        for one in claim.comparisons:
            found = counts.ratios(*one.first, *one.second)  # modality -> first count over second
            if claim.unit != "times":
                percent = claim.unit == "percent"
                found = {name: 100 * (ratio if percent else 1 - 1 / ratio) for name, ratio in found.items()}
            style = {"times": "{:.2f}", "percent": "{:.2f} %", "fewer": "{:.0f} %"}[claim.unit]
            shown = [f"{name} {style.format(ratio).replace('-', '−')}" for name, ratio in found.items()]
            computed.append(f"{one.text}: {', '.join(shown)}")
            held = [name for name, ratio in found.items() if ratio >= (claim.least or 0.0)]
            holds = "yes" if len(held) == len(found) else f"{listed(held)} only" if held else "no"
            verdicts.append(f"{one.name}: {holds}" if one.name else holds)
        verdict = claim.verdict or "; ".join(verdicts)
        cells.append([claim.row, Linked(printed(part), printed_in(part)), "; ".join(computed), verdict])
    columns = ["Claim", "Published", "Computed", "Holds?"]
    caption = "Claims on numbers of parameters in the papers’ text, and the computed counts"
    note = "v1, v2: daam-v1, daam-v2 with the papers’ decoder (DAT). Without fc: without its last linear layer."
    table = Table("claims", caption, columns, cells, frozenset({1, 2, 3}), note)
    return Section("claims", "Claims in the text", [table])


def repeated() -> Section:
    """Numbers that are printed more than once."""
    cells: list[list[Cell]] = []
    for name, part in rows_of("repeated").items():
        tables = read_claims().repeats[part[0].full_table]
        row = (part[0].corpus, part[0].method, part[0].layers)
        first = [one for one in numbers() if one.full_table in tables and (one.corpus, one.method, one.layers) == row]
        cells.append([name, printed(part), printed_in(first), printed(first), _agrees(part, first)])
    columns = ["Number", "Published there", "Shown above from", "Published", "Agrees?"]
    text = "These numbers repeat a table shown above, where ours are beside them."
    caption = "Numbers printed more than once, and whether they agree"
    table = Table("repeated", caption, columns, cells, frozenset({1, 2, 3, 4}))
    return Section("repeated", "Repeated elsewhere", [Text(text), table])


def _agrees(part: Sequence[PublishedNumber], first: Sequence[PublishedNumber]) -> str:
    """Whether numbers that are printed twice are the same; `single` and `best` name the same number."""
    known = {number.split.replace("best", "single"): number.value for number in first}
    lines = []
    for number in part:
        split = number.split.replace("best", "single")
        if split not in known:
            rows = read_published(number.full_table).rows
            row = next(row for row in rows if (row.method, row.layers) == (number.method, number.layers))
            lines.append(f"{split} is printed only here: {agreement(row)} of its folds")
        elif float(known[split]) != float(number.value):
            lines.append(f"no: {split} {number.value} here, {known[split]} there")
    return "; ".join(lines) or "yes"


def dwatt() -> Section:
    """The numbers of the DWAtt paper: what they are, and what contradicts what."""
    text = (
        "DWAtt is another paper, whose Concat and Base+n are baselines here too. It prints differences and no absolute "
        "F1, which its figures alone show, so no figure of ours stands beside them. They are of the best epoch on the "
        "dev part, that is, chosen on what they report. conll-as-published trains and scores as it does, conll does it "
        "honestly; wnut17 and its few-shot pipelines ask the same of data that anyone can get."
    )
    rows: list[list[Cell]] = [
        [name, Linked(printed(part), printed_in(part)), *read_claims().dwatt[name]]
        for name, part in rows_of("dwatt").items()
    ]
    columns = ["Quantity", "Published", "What it is", "Here"]
    table = Table("dwatt", "Numbers of the DWAtt paper", columns, rows, frozenset({1, 2, 3}))
    return Section("dwatt", "Tagging and perplexity: the DWAtt paper", [Text(text), table])
