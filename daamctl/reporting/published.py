"""The figures printed in the papers, with the means and standard deviations that their own folds give.

Source: `published.csv`, every number printed in daam-v4 (arXiv 2401.11143v4), gaam-v1 (its first version), daam-blog
(the authors' post) and dwatt (docs/sources.md#the-papers); in percent. Printed folds are rounded, so a printed mean or
deviation counts as agreeing when some unrounded folds could have given it
(docs/sources.md#means-and-standard-deviations).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.errors import ConfigError, UnknownNameError

DEFAULT_SOURCE = "daam-v4"
NO_MODULE = ("single-layer", "three-layer")
"""Published rows that are layer choices, not methods; they belong to the ablation."""
COMPANIONS = {
    "daam-v4/T2-iemocap": ("T4", "T2-if-iemocap"),
    "daam-v4/T2-cifar100": ("T5",),
    "daam-v4/T2-agnews": ("T6",),
}
"""Tables that hold further rows of the same experiment: the mixture, and single layers by Importance Factor."""
RANGES_TABLE = ("daam-blog", "learned-ranges")
REMARKS = (
    ("mha-bn", "", "attends over the clips of a batch, not over the layers (D1); the released script cannot run (D10)"),
    ("mha", "", "attends over the clips of a batch, not over the layers (D1)"),
    ("daam-v2", "text", "the released script builds eight heads, which is v1 (D8)"),
    ("gqdaam", "vision", "query heads are summed before the softmax (D5); the released script cannot run (D9)"),
    ("gqdaam", "", "query heads are summed before the softmax (D5)"),
    ("lora-plus", "speech", "nothing is trained: neither the adapters (D2) nor the classifier (D3)"),
    ("lora-plus", "", "the classifier stays random and frozen (D3, D4)"),
    ("lora", "speech", "the adapters never enter the computation (D2)"),
    ("lora", "text", "the classifier stays random and frozen (D4)"),
    ("mixture", "", "no training script is published (D36)"),
    ("sga", "", "neither code nor formula is published"),
    ("bi-sga", "", "neither code nor formula is published"),
)
"""How a method's name begins, modality ("" for any) and what the released code does there; the first match holds."""
SPEECH_PROTOCOL = (
    "Published protocol: every clip of at most 5 s is scored by itself; the epoch reported is the best on the test "
    "fold itself; one fold per recording session; one run per fold. LoRA rows number the folds differently, so rows "
    "are not aligned fold by fold."
)
REPEATS_PROTOCOL = (
    "Published protocol: the official test set selects the epoch and is the figure reported; the columns are repeats "
    "of one split, not folds."
)


@dataclass(frozen=True)
class PublishedRow:
    """One method of a published table. Percent.

    Args:
        table: table it is printed in.
        method: name in daamctl's spelling.
        layers: layer numbers it was trained on; "" for all.
        folds: split name -> printed value.
        printed: mean and deviation with the digits printed, e.g. "62.3 ± 2.00"; "" if no mean is printed.
        printed_mean: None if not printed.
        printed_std: None if not printed.
        mean: mean of the printed folds.
        population_std: divisor n.
        sample_std: divisor n - 1.
        mean_agrees: whether folds that round to the printed ones can have the printed mean.
        std_is: which deviation the printed one can be: population, sample, population or sample, neither, or
            not printed.
        protocol: how it was made, in words, as far as text and released code say.
    """

    table: str
    method: str
    layers: str
    folds: dict[str, float]
    printed: str
    printed_mean: float | None
    printed_std: float | None
    mean: float
    population_std: float
    sample_std: float
    mean_agrees: bool
    std_is: str
    protocol: str

    @property
    def disagrees(self) -> bool:
        """Whether the print contradicts its own folds."""
        return not self.mean_agrees or self.std_is == "neither"


@dataclass(frozen=True)
class LearnedRange:
    """Where the parameters of the papers' best density model ended; started at offset 0, variance 2.

    Source: docs/sources.md#learned-ranges.

    Args:
        dataset: corpus name.
        encoder: encoder name.
        offset: lowest and highest mean offset (delta).
        scaled_variance: lowest and highest scaled variance (xi).
    """

    dataset: str
    encoder: str
    offset: tuple[float, float]
    scaled_variance: tuple[float, float]


@dataclass(frozen=True)
class PublishedTable:
    """A published table and the rows that belong to its experiment.

    Args:
        source: paper or version.
        name: table name.
        dataset: corpus name.
        encoder: encoder name.
        protocol: how its figures were made, in words.
        rows: methods that have printed folds, in print order.
    """

    source: str
    name: str
    dataset: str
    encoder: str
    protocol: str
    rows: tuple[PublishedRow, ...]

    @property
    def repeats(self) -> bool:
        """Whether the printed columns are repeats of one official split, not folds."""
        return self.protocol == REPEATS_PROTOCOL

    def row(self, method: str) -> PublishedRow | None:
        """The row of a method, or None."""
        return next((row for row in self.rows if row.method == method), None)


def published_tables() -> list[str]:
    """Every table with folds, as "source/table"; those of daam-v4 may be named without source."""
    return list(dict.fromkeys(f"{row['source']}/{row['table']}" for row in records() if _is_fold(row)))


def read_published(table: str, *, source: str | None = None) -> PublishedTable:
    """Read one table of the papers.

    Args:
        table: e.g. "T2-iemocap", or with its source "gaam-v1/T2".
        source: overrides the source; default daam-v4.

    Raises:
        UnknownNameError: no such table, or it holds no folds.
        ConfigError: a source is given twice and differs.
    """
    head, _, tail = table.rpartition("/")
    if head and source and head != source:
        raise ConfigError(f"published table '{table}' names source '{head}', but source '{source}' is asked for")
    key = f"{head or source or DEFAULT_SOURCE}/{tail}"
    known = published_tables()
    if key not in known:
        short = [name.removeprefix(f"{DEFAULT_SOURCE}/") for name in known]
        raise UnknownNameError("published table", table, short)
    owner, name = key.split("/")
    own = [row for row in records() if row["source"] == owner]
    wanted = [row for part in (name, *COMPANIONS.get(key, ())) for row in own if row["table"] == part]
    first = wanted[0]
    protocol = SPEECH_PROTOCOL if first["modality"] == "speech" else REPEATS_PROTOCOL
    return PublishedTable(owner, name, first["dataset"], first["encoder"], protocol, tuple(_rows(wanted)))


def learned_ranges() -> list[LearnedRange]:
    """The ranges that the authors' post prints, one per modality."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in records():
        if (row["source"], row["table"]) == RANGES_TABLE:
            found.setdefault((row["dataset"], row["encoder"]), {})[row["split"]] = float(row["value"])
    return [
        LearnedRange(
            *where,
            (part["mean-offset-min"], part["mean-offset-max"]),
            (part["scaled-variance-min"], part["scaled-variance-max"]),
        )
        for where, part in found.items()
    ]


@cache
def records() -> tuple[dict[str, str], ...]:
    """Every printed number: source, table, modality, dataset, encoder, method, layers, split, value (text), unit."""
    text = files("daamctl.reporting").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _is_fold(record: dict[str, str]) -> bool:
    return record["split"][:1] in ("F", "R") and record["split"][1:].isdigit() and record["unit"] == "percent"


def _rows(records: list[dict[str, str]]) -> list[PublishedRow]:
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for record in records:
        groups.setdefault((record["table"], record["method"], record["layers"]), []).append(record)
    return [_row(key, group) for key, group in groups.items() if sum(map(_is_fold, group)) > 1]


def _row(key: tuple[str, str, str], records: list[dict[str, str]]) -> PublishedRow:
    folds = {record["split"]: record["value"] for record in records if _is_fold(record)}
    printed = {record["split"]: record["value"] for record in records if record["split"] in ("mean", "std")}
    values = np.array([float(text) for text in folds.values()])
    half = max(_half_unit(text) for text in folds.values())
    mean, std = printed.get("mean"), printed.get("std")
    return PublishedRow(
        *key,
        folds={split: float(text) for split, text in folds.items()},
        printed=" ± ".join(text for text in (mean, std) if text) if mean else "",
        printed_mean=None if mean is None else float(mean),
        printed_std=None if std is None else float(std),
        mean=float(values.mean()),
        population_std=float(values.std()),
        sample_std=float(values.std(ddof=1)),
        mean_agrees=mean is None or abs(float(mean) - values.mean()) <= half + _half_unit(mean) + 1e-9,
        std_is=_std_is(std, values, half),
        protocol=_protocol(records[0], len(folds)),
    )


def remark(method: str, modality: str) -> str:
    """What the released code does in a method's place; empty if it does what the papers say."""
    words = next((words for name, kind, words in REMARKS if method.startswith(name) and kind in ("", modality)), "")
    return words if modality == "speech" else words.replace("the clips of", f"the {_items(modality)} of")


def _items(modality: str) -> str:
    """What is classified, in the plural, by the modality as `published.csv` names it."""
    return {"speech": "clips", "vision": "images", "text": "texts"}.get(modality, "items")


def _protocol(record: dict[str, str], number: int) -> str:
    method, modality = record["method"], record["modality"]
    lora = method.startswith("lora")
    if modality == "speech":
        order = ", folds ordered by size (D15)" if lora else ""
        text = f"per clip, best epoch on the test fold, {number} folds by session{order}, one run each"
    else:
        text = f"best epoch on the official test set, {number} runs"
    text += "; own batch size and epochs (D18)" if lora else ""
    words = remark(method, modality)
    return f"{text}; {words}" if words else text


def _std_is(printed: str | None, folds: NDArray[Any], half: float) -> str:
    if printed is None:
        return "not printed"
    unit, value, count = _half_unit(printed), float(printed), len(folds)
    factors = {"population": 1.0, "sample": float(np.sqrt(count / (count - 1)))}
    exact = [name for name, factor in factors.items() if abs(value - factor * folds.std()) <= unit + 1e-9]
    low, high = _std_range(folds, half)
    reachable = [name for name, f in factors.items() if f * low - unit - 1e-9 <= value <= f * high + unit + 1e-9]
    return " or ".join(exact or reachable) or "neither"


def _std_range(folds: NDArray[Any], half: float) -> tuple[float, float]:
    """Smallest and largest population deviation of values within `half` of `folds`.

    The deviation is convex, so its largest value lies at a corner; the smallest is that of values pulled towards one
    centre c, at the best c.
    """
    corners = folds + half * np.array(list(product((-1.0, 1.0), repeat=len(folds))))
    centres = np.linspace(folds.min(), folds.max(), 2001)[:, None]
    rest = np.maximum(np.abs(folds - centres) - half, 0.0)
    return float(np.sqrt((rest**2).mean(axis=1).min())), float(corners.std(axis=1).max())


def _half_unit(text: str) -> float:
    """Half of the last printed digit: 0.05 for "66.1"."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])
