"""The papers' tables of accuracies, and the means and standard deviations that their own folds give.

Values are in percent. Printed folds are rounded. A printed mean or deviation therefore agrees with its folds if some
unrounded folds could have given it (docs/sources.md#means-and-standard-deviations).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.errors import UnknownNameError
from daamctl.paper.deviations import remark
from daamctl.paper.numbers import PublishedNumber, experiments, numbers

DEFAULT_SOURCE = "daam-v4"
RANGES_TABLE = "daam-blog/learned-ranges"
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
        layers: layer numbers it was trained on; "" for all.
        folds: split name -> printed value.
        printed: mean and deviation with the digits printed, e.g. "62.3 ± 2.00"; "" if no mean is printed.
        population_std: divisor n; `sample_std`: divisor n - 1.
        mean_agrees: whether folds that round to the printed ones can have the printed mean.
        std_is: which deviation the printed one can be: population, sample, population or sample, neither, or not
            printed.
        protocol: how it was made, as far as text and released code say.
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
class PublishedTable:
    """A published table and the rows that belong to its experiment.

    Args:
        repeats: whether the printed columns are repeats of one official split, not folds.
        rows: methods that have printed folds, in print order.
    """

    source: str
    name: str
    corpus: str
    encoder: str
    repeats: bool
    rows: tuple[PublishedRow, ...]

    @property
    def protocol(self) -> str:
        """How its numbers were made."""
        return REPEATS_PROTOCOL if self.repeats else SPEECH_PROTOCOL

    @property
    def methods(self) -> list[PublishedRow]:
        """Rows of methods, trained on all layers."""
        return [row for row in self.rows if not row.layers]

    @property
    def few_layers(self) -> list[PublishedRow]:
        """Rows that are choices of layers, not methods; they belong to the ablation."""
        return [row for row in self.rows if row.layers]

    def row(self, method: str) -> PublishedRow | None:
        """The row of a method, or None."""
        return next((row for row in self.rows if row.method == method), None)


@dataclass(frozen=True)
class LearnedRange:
    """Ranges of the parameters of the papers' best density after training; initially offset 0, variance 2.

    Lowest and highest mean offset (delta), and scaled variance (xi). Source: docs/sources.md#learned-ranges.
    """

    corpus: str
    encoder: str
    offset: tuple[float, float]
    scaled_variance: tuple[float, float]


def published_tables() -> list[str]:
    """Every table with folds, as "source/table"; those of daam-v4 may be named without source."""
    return list(dict.fromkeys(number.full_table for number in numbers() if _is_fold(number)))


def read_published(table: str) -> PublishedTable:
    """Read one table of the papers, e.g. "T2-iemocap" (of daam-v4), or with its source "gaam-v1/T2".

    Raises:
        UnknownNameError: no such table, or it has no folds.
    """
    key = table if "/" in table else f"{DEFAULT_SOURCE}/{table}"
    known = published_tables()
    if key not in known:
        short = [name.removeprefix(f"{DEFAULT_SOURCE}/") for name in known]
        raise UnknownNameError("published table", table, short)
    names = next((one.tables for one in experiments() if one.tables[0] == key), (key,))
    wanted = [number for name in names for number in numbers() if number.full_table == name]
    groups: dict[tuple[str, str, str], list[PublishedNumber]] = {}
    for number in wanted:
        groups.setdefault((number.table, number.method, number.layers), []).append(number)
    # a row with a single number has no folds to check
    rows = tuple(_row(part) for part in groups.values() if sum(map(_is_fold, part)) > 1)
    first = wanted[0]
    return PublishedTable(first.source, first.table, first.corpus, first.encoder, first.modality != "speech", rows)


def learned_ranges() -> list[LearnedRange]:
    """The ranges that the authors' post prints, one per modality."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for number in numbers():
        if number.full_table == RANGES_TABLE:
            found.setdefault((number.corpus, number.encoder), {})[number.split] = float(number.value)
    return [
        LearnedRange(
            *names,
            (value["mean-offset-min"], value["mean-offset-max"]),
            (value["scaled-variance-min"], value["scaled-variance-max"]),
        )
        for names, value in found.items()
    ]


def _is_fold(number: PublishedNumber) -> bool:
    """Whether it is the accuracy of one fold or repeat."""
    return number.is_fold and number.unit == "percent"


def _row(part: list[PublishedNumber]) -> PublishedRow:
    folds = {number.split: number.value for number in part if _is_fold(number)}
    others = {number.split: number.value for number in part if not _is_fold(number)}
    values = np.array([float(text) for text in folds.values()])
    half = max(_half_unit(text) for text in folds.values())
    mean, std = others.get("mean"), others.get("std")
    return PublishedRow(
        part[0].table,
        part[0].method,
        part[0].layers,
        folds={split: float(text) for split, text in folds.items()},
        printed=" ± ".join(text for text in (mean, std) if text) if mean else "",
        printed_mean=None if mean is None else float(mean),
        printed_std=None if std is None else float(std),
        mean=float(values.mean()),
        population_std=float(values.std()),
        sample_std=float(values.std(ddof=1)),
        mean_agrees=mean is None or abs(float(mean) - values.mean()) <= half + _half_unit(mean) + 1e-9,
        std_is=_std_is(std, values, half),
        protocol=_protocol(part[0], len(folds)),
    )


def _protocol(number: PublishedNumber, num_folds: int) -> str:
    """How the row of a number was made."""
    lora = number.method.startswith("lora")
    if number.modality == "speech":
        order = ", folds ordered by size (D15)" if lora else ""
        text = f"per clip, best epoch on the test fold, {num_folds} folds by session{order}, one run each"
    else:
        text = f"best epoch on the official test set, {num_folds} runs"
    if lora:
        text += "; own batch size and epochs (D18)"
    note = remark(number.method, number.modality)
    return f"{text}; {note}" if note else text


def _std_is(printed: str | None, folds: NDArray[Any], half: float) -> str:
    """Which deviation of the printed folds (n,), with a rounding error of up to `half`, the printed one can be."""
    if printed is None:
        return "not printed"
    value = float(printed)
    tolerance = _half_unit(printed) + 1e-9
    low, high = _std_range(folds, half)
    exact, reachable = [], []
    for name, factor in (("population", 1.0), ("sample", float(np.sqrt(len(folds) / (len(folds) - 1))))):
        if abs(value - factor * folds.std()) <= tolerance:
            exact.append(name)
        if factor * low - tolerance <= value <= factor * high + tolerance:
            reachable.append(name)
    return " or ".join(exact or reachable) or "neither"


def _std_range(folds: NDArray[Any], half: float) -> tuple[float, float]:
    """Smallest and largest population deviation of values within `half` of `folds`.

    The deviation is convex, so its largest value lies at a corner; the smallest is that of values pulled towards one
    centre c, at the best c.
    """
    corners = folds + half * np.array(list(product((-1.0, 1.0), repeat=len(folds))))
    centres = np.linspace(folds.min(), folds.max(), 2001)[:, None]
    # how far a value stays from the centre after moving towards it as far as rounding allows
    rest = np.maximum(np.abs(folds - centres) - half, 0.0)
    return float(np.sqrt((rest**2).mean(axis=1).min())), float(corners.std(axis=1).max())


def _half_unit(text: str) -> float:
    """Half of the last printed digit: 0.05 for "66.1"."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])
