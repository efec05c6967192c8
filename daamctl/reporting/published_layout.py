"""Where every printed number stands in the report of the whole paper: one table, row and column each.

The tables are made from these places, so a number without one cannot be shown; `place` then raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from daamctl.reporting.published import records

Record = dict[str, str]

SOURCES = ("daam-v4", "gaam-v1", "daam-blog")
"""The paper, its first version and the authors' post; `dwatt` is another paper."""
PRINTED, THERE = "Published", "Published there"


@dataclass(frozen=True)
class Dataset:
    """One of the three experiments.

    Args:
        key: name of the corrected pipeline; the other is `<key>-as-published`.
        title: as a reader knows it.
        corpus: name in `published.csv`.
        modality: speech, vision or text, as there.
        table: its main table in daam-v4.
        first: its table in gaam-v1.
        item: what is classified.
        high: layers of high Importance Factor, as printed.
        low: of low.
    """

    key: str
    title: str
    corpus: str
    modality: str
    table: str
    first: str
    item: str
    high: tuple[int, ...]
    low: tuple[int, ...]


DATASETS = (
    Dataset("iemocap", "IEMOCAP", "iemocap", "speech", "T2-iemocap", "T2", "utterance", (9,), (23,)),
    Dataset("cifar100", "CIFAR-100", "cifar100", "vision", "T2-cifar100", "T3", "image", (10, 11, 12), (22, 23, 24)),
    Dataset("agnews", "AG News", "ag-news", "text", "T2-agnews", "T4", "text", (19, 20, 21), (37, 38, 39)),
)
BY_CORPUS = {dataset.corpus: dataset for dataset in DATASETS}

REPEATS = {
    ("daam-blog", "T2"): ("daam-v4", "T2-iemocap"),
    ("daam-blog", "T3"): ("daam-v4", "T2-cifar100"),
    ("daam-blog", "T4"): ("daam-v4", "T2-agnews"),
    ("daam-blog", "extended-results"): ("daam-v4", "T4", "T5", "T6"),
    ("daam-blog", "ablation-iemocap"): ("daam-v4", "T2-if-iemocap"),
    ("gaam-v1", "T6"): ("daam-v4", "T2-if-iemocap"),
    ("daam-blog", "ablation-text-vision"): ("daam-v4", "T2-if-text-vision"),
    ("gaam-v1", "T7"): ("daam-v4", "T2-if-text-vision"),
    ("daam-blog", "learned-ranges"): ("daam-v4", "T2-modality-summary"),
    ("gaam-v1", "T5"): ("daam-v4", "T2-modality-summary"),
}
"""(source, table) -> the source and tables whose figures it prints once more."""
QUANTITIES = {
    "mean-offset-min": "δ lowest",
    "mean-offset-max": "δ highest",
    "mean-offset-width": "δ width",
    "scaled-variance-min": "ξ lowest",
    "scaled-variance-max": "ξ highest",
    "scaled-variance-width": "ξ width",
}
COUNTED = {
    "million-params-total": "total (millions)",
    "million-params-daam-part": "DAAM part (millions)",
    "million-params-attention": "attention part (millions)",
    "params": "attention part",
    "gaussians-per-head": "Gaussians per head",
}
"""Unit of a printed count -> what is counted."""
TERMS = {"mha": "MHA", "mha-bn": "MHA with batch norm", "lora-best": "best LoRA", "daam-best": "best DAAM"}
"""What the post's summaries compare; `-minus-` stands between two."""
LARGEST = "Largest of the three: best DAAM minus MHA"
"""Row of the claim that the abstracts make."""
CLAIMS = {
    "lora-over-daam": "Parameters of LoRA over those of DAAM, at least (times)",
    "lora-over-dat": "Parameters of LoRA over those of DAT, at least (times)",
    "dat-versus-lora": "Parameters that DAT has fewer than LoRA, at least (%)",
    "daam-versus-lora": "Parameters that DAAM has fewer than LoRA (%)",
    "percent-overhead": "Parameters that GQDAAM adds to GQA (%)",
    "percent-overhead-as-printed": "Parameters that GQDAAM adds to GQA, as a range (%)",
}
"""Unit or method of a claim in the text -> its row."""


@dataclass(frozen=True)
class Place:
    """A table's key, a row's first cell and a column's heading."""

    table: str
    row: str
    column: str = PRINTED


def place(record: Record) -> Place:
    """Where a printed number stands.

    Raises:
        LookupError: nowhere; the report would leave it out.
    """
    where = (record["source"], record["table"])
    rule = RULES.get(where)
    if rule is None:
        raise LookupError(f"no table of the report has a place for {' '.join(where)}")
    return rule(record)


def is_fold(record: Record) -> bool:
    """Whether it is one fold (F1, …) or repeat (R1, …)."""
    return record["split"][0] in "FR" and record["split"][1:].isdigit()


@cache
def rows_of(table: str) -> dict[str, tuple[Record, ...]]:
    """The printed numbers of one table of the report: row -> records, in print order."""
    rows: dict[str, list[Record]] = {}
    for record in records():
        if record["source"] in SOURCES and (where := place(record)).table == table:
            rows.setdefault(where.row, []).append(record)
    return {row: tuple(part) for row, part in rows.items()}


def printed(part: Sequence[Record]) -> str:
    """Printed numbers of one row as text; several sources that print the same once, others behind a stroke."""
    by_table: dict[tuple[str, str], list[Record]] = {}
    for record in part:
        by_table.setdefault((record["source"], record["table"]), []).append(record)
    return " / ".join(dict.fromkeys(_text(own) for own in by_table.values()))


def printed_in(part: Sequence[Record]) -> str:
    """The sources and tables of printed numbers."""
    by_source: dict[str, list[str]] = {}
    for record in part:
        by_source.setdefault(record["source"], []).append(record["table"])
    return "; ".join(f"{source} {', '.join(dict.fromkeys(tables))}" for source, tables in by_source.items())


def ablation_row(dataset: Dataset, layers: str, kind: str) -> str:
    """Row of layers that were trained alone; `kind` is high or low."""
    return f"{dataset.title}: {'layers' if '-' in layers else 'layer'} {layers} ({kind})"


def difference_row(dataset: Dataset) -> str:
    """Row of high minus low layers."""
    return f"{dataset.title}: high minus low (points)"


def _text(part: Sequence[Record]) -> str:
    value = {record["split"]: record["value"].replace("-", "−") for record in part}
    folds = ", ".join(record["value"] for record in part if is_fold(record))
    mean = " ± ".join(value[split] for split in ("mean", "std") if split in value)
    spans = [
        f"{sign}{value[f'{start}min']} to {value[f'{start}max']}"
        for start, sign in (("", ""), ("mean-offset-", "δ "), ("scaled-variance-", "ξ "))
        if {f"{start}min", f"{start}max"} <= value.keys()
    ]
    single = [] if folds or mean or spans else list(value.values())
    return "; ".join(text for text in (folds, mean, *spans, *single) if text)


def _result(record: Record) -> Place:
    key = BY_CORPUS[record["dataset"]].key
    if is_fold(record):
        return Place(f"folds-{key}", record["method"], record["split"])
    return Place(f"results-{key}", record["method"])


def _first(record: Record) -> Place:
    key = BY_CORPUS[record["dataset"]].key
    if is_fold(record):
        return Place(f"first-folds-{key}", record["method"], record["split"])
    return Place(f"first-{key}", record["method"])


def _ablation(record: Record) -> Place:
    dataset = BY_CORPUS[record["dataset"]]
    if record["method"] == "high-minus-low":
        return Place("ablation", difference_row(dataset))
    if is_fold(record):
        return Place("ablation-folds", record["method"], record["split"])
    return Place("ablation", ablation_row(dataset, record["layers"], "high" if "high" in record["method"] else "low"))


def _learned(record: Record) -> Place:
    return Place("learned", f"{BY_CORPUS[record['dataset']].title}: {QUANTITIES[record['split']]}")


def _parameters(record: Record) -> Place:
    if record["unit"] in CLAIMS:
        return _claim(record)
    words = COUNTED.get(record["unit"], record["split"].replace("gaussians", "Gaussians").replace("-", " "))
    return Place("parameters", f"{record['method']}, {words}")


def _best(record: Record) -> Place:
    if record["dataset"] not in BY_CORPUS:
        return Place("best", LARGEST)
    words = " minus ".join(TERMS[term] for term in record["method"].split("-minus-"))
    return Place("best", f"{BY_CORPUS[record['dataset']].title}: {words}")


def _claim(record: Record) -> Place:
    if record["method"] == "daam-best-minus-mha":
        return _best(record)
    return Place("claims", CLAIMS[record["unit"] if record["unit"] in CLAIMS else record["method"]])


def _repeated(record: Record) -> Place:
    if record["method"] == "high-minus-low":
        return _ablation(record)
    title, layers = BY_CORPUS[record["dataset"]].title, record["layers"] and f" {record['layers']}"
    return Place("repeated", f"{record['source']} {record['table']}: {title}, {record['method']}{layers}", THERE)


RULES: dict[tuple[str, str], Callable[[Record], Place]] = {
    **{("daam-v4", name): _result for name in ("T2-iemocap", "T2-cifar100", "T2-agnews", "T4", "T5", "T6")},
    **{("gaam-v1", name): _first for name in ("T2", "T3", "T4")},
    **{("daam-v4", name): _ablation for name in ("T2-if-iemocap", "T2-if-text-vision")},
    ("daam-v4", "T2-modality-summary"): _learned,
    ("daam-blog", "text-learned-ranges"): _learned,
    **{(source, "T1"): _parameters for source in SOURCES},
    ("daam-v4", "T3"): _parameters,
    ("daam-blog", "T-gqdaam-params"): _parameters,
    ("daam-blog", "text-mixture"): _parameters,
    **{("daam-blog", name): _best for name in ("T5", "conclusion-table", "text-T3")},
    **{("daam-v4", f"text-{name}"): _claim for name in ("abstract", "s1.1", "conclusion")},
    **{("gaam-v1", f"text-{name}"): _claim for name in ("abstract", "s4.2")},
    **{("daam-blog", f"text-{name}"): _claim for name in ("introduction", "T1")},
    **dict.fromkeys(REPEATS, _repeated),
}
"""(source, table) -> how its numbers find their place."""
