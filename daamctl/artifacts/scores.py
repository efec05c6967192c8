"""Tidy tables of the results of a run, one row per figure (docs/reports.md#tables-of-results), and what reads them.

Scores are fractions, losses as trained. Differences are first minus second. Methods have their own names, without
marks such as *undertrained*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.audit import AUDIT
from daamctl.artifacts.layer_sets import LAYERS
from daamctl.data.sign_flip import detectable_effect, sign_flip_floor, units_to_detect
from daamctl.errors import ArtifactError
from daamctl.store.tables import read_frame

Schema = dict[str, pl.DataType]
TEXT, INTEGER, NUMBER = pl.String(), pl.Int64(), pl.Float64()
_KINDS: dict[Any, pl.DataType] = {str: TEXT, int: INTEGER, float: NUMBER, bool: pl.Boolean()}
LEVEL = 0.95
"""Of all intervals."""
ALPHA = 0.05
"""Level of two-sided tests."""
ALL_PAIRS = "all pairs"
"""Family of comparisons."""
BEST_ON_TEST, LAST = "accuracy_best_on_test", "accuracy_last"
"""Metrics per clip of the same training at the epoch that is best on the test clips, and at the last epoch."""
F1_STRICT, F1_BEST_ON_TEST = "entity_f1_strict", "entity_f1_best_on_test"
"""Entity F1 by the rule `strict` (`daamctl.data.spans`), and at the epoch that is best on the test part."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A metric of a method: mean and sample standard deviation (divisor n - 1; None for one run) over its runs.

    pooled: over all test items as one set, seeds averaged; low, high: its 95 % interval over `units` units, called
    `resampled`; None if there is no interval.
    """

    method: str
    unit: str
    metric: str
    mean: float
    std: float | None = None
    runs: int
    pooled: float | None = None
    low: float | None = None
    high: float | None = None
    resampled: str | None = None
    units: int | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric of one run, a fold with a seed; fold and test_group are None for all folds of a seed together."""

    method: str
    fold: int | None = None
    seed: int
    test_group: str | None = None
    unit: str
    metric: str
    value: float
    items: int | None = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Two methods compared in one metric, over all test items, averaged over seeds.

    family: comparisons with the reference, with the best single layer, or of all pairs. low, high: 95 % interval of
    the difference; interval: how it was made, of `resamples` samples: sign-flip (all values that the test does not
    reject), or korn-graubard (both answer all items alike). p: of the test over `units` units, p_holm after Holm's
    correction, floor its smallest possible value; exact: whether all flips were tried. p_folds: of the corrected t-test
    over folds.
    detectable: smallest difference that a paired t-test on as many units would have detected with 80 % power. wins:
    items that only `first` got right in more than half of its seeds, losses: only `second`. ahead: those of the `runs`
    common runs in which `first` has the higher accuracy, behind: `second`. None: there is no such test or interval.
    """

    family: str = "reference"
    first: str
    second: str
    metric: str
    first_value: float
    second_value: float
    difference: float
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    units: int | None = None
    p: float | None = None
    p_holm: float | None = None
    floor: float | None = None
    p_folds: float | None = None
    p_folds_holm: float | None = None
    detectable: float | None = None
    interval: str | None = None
    resamples: int | None = None
    test: str | None = None
    exact: bool | None = None
    flips: int | None = None
    wins: int | None = None
    losses: int | None = None
    ties: int | None = None
    runs: int | None = None
    ahead: int | None = None
    behind: int | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the two can be told apart after Holm's correction."""
        return self.p_holm is not None and self.p_holm <= ALPHA

    @property
    def detectable_here(self) -> float | None:
        """`detectable`, unless so few units allow no p as small as `ALPHA`, however large the difference."""
        return self.detectable_at(ALPHA)

    def detectable_at(self, alpha: float) -> float | None:
        """What would be detected at another two-sided level, see `detectable_here`."""
        if not self.detectable or self.units is None or sign_flip_floor(self.units) > alpha:
            return None
        return self.detectable * detectable_effect(self.units, alpha) / detectable_effect(self.units, ALPHA)

    def units_needed(self, alpha: float = ALPHA) -> int | None:
        """About how many units would detect a difference of this size with 80 % power; None if that is not known.

        Args:
            alpha: two-sided level of this comparison, e.g. `ALPHA` over the size of its family.
        """
        if not self.detectable or not self.difference or self.units is None:
            return None
        effect = abs(self.difference) / self.detectable * detectable_effect(self.units, ALPHA)
        return units_to_detect(effect, alpha)

    def turned(self) -> Compared:
        """The same, second minus first."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            first_value=self.second_value,
            second_value=self.first_value,
            difference=-self.difference,
            low=None if self.high is None else -self.high,
            high=None if self.low is None else -self.low,
            wins=self.losses,
            losses=self.wins,
            ahead=self.behind,
            behind=self.ahead,
        )


@dataclass(frozen=True, kw_only=True)
class EntityTypeScore:
    """What a tagger did with the entities of a type (None: of all types), over all trials.

    The last six counts, of all types only, are kinds of errors (`daamctl.data.spans`).
    """

    method: str
    type: str | None = None
    gold: int
    predicted: int
    correct: int
    precision: float
    recall: float
    f1: float
    exact: int | None = None
    wrong_type: int | None = None
    wrong_boundaries: int | None = None
    wrong_both: int | None = None
    missed: int | None = None
    spurious: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProtocolScore:
    """A metric of a closed-form probe under a protocol, over all items, and its difference from another protocol.

    low, high: 95 % interval over the `units` units, called `unit`. against: the protocol that is subtracted, with the
    same probe; None for the reference itself. difference_low, difference_high: 95 % interval of the paired difference,
    p: of its sign-flip test. trained: mean number of clips that a fold trains on. seconds: of all folds and repeats.
    source_probe: whether this probe comes closest to that of the protocol's source.
    """

    protocol: str
    probe: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    against: str | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    unit: str | None = None
    units: int | None = None
    items: int
    folds: int
    repeats: int
    trained: float
    seconds: float
    source_probe: bool


def _schema(row: type) -> Schema:
    hints = get_type_hints(row)
    return {one.name: _KINDS[(get_args(hints[one.name]) or (hints[one.name],))[0]] for one in fields(row)}


OF_EVALUATE: dict[str, Schema] = {
    "figures": _schema(Figure),
    "scores": _schema(Score),
    "comparisons": _schema(Compared),
    "confusion": {"method": TEXT, "unit": TEXT, "actual": TEXT, "predicted": TEXT, "count": INTEGER},
    "speakers": {"method": TEXT, "speaker": TEXT, "items": INTEGER, "accuracy": NUMBER},
    "entities": _schema(EntityTypeScore),
    "history": {
        "method": TEXT, "fold": INTEGER, "seed": INTEGER, "step": INTEGER, "epoch": INTEGER, "train_loss": NUMBER,
        "train_accuracy": NUMBER, "dev_accuracy": NUMBER, "test_accuracy": NUMBER,
    },
}  # fmt: skip
"""The tables that `evaluate` writes; the learning curves of `history` are per clip."""
TABLES: dict[str, Schema] = {**OF_EVALUATE, "layers": LAYERS, "audit": AUDIT, "protocols": _schema(ProtocolScore)}


def frame_of(table: str, rows: Iterable[Any]) -> pl.DataFrame:
    """A table from its rows, records or dictionaries."""
    content = [row if isinstance(row, dict) else vars(row) for row in rows]
    return pl.DataFrame(content, TABLES[table])


def table_file(folder: Path, table: str) -> Path:
    """File of a table in the folder of its stage."""
    return folder / f"{table}.parquet"


def read_table(path: Path) -> pl.DataFrame:
    """Read a table of `TABLES`.

    Raises:
        ArtifactError: it is missing or damaged, or has other columns.
    """
    frame = read_frame(path)[0]
    if dict(frame.schema) != TABLES[path.stem]:
        raise ArtifactError(f"{path} has other columns than this version of daamctl writes", path=path)
    return frame


@dataclass(frozen=True)
class Scores:
    """The tables of an evaluation, without the learning curves.

    Args:
        unit: the main unit, which counts where none is named and the metric has several.
    """

    unit: str = "utterance"
    frames: Mapping[str, pl.DataFrame] = field(
        default_factory=lambda: {name: frame_of(name, ()) for name in OF_EVALUATE if name != "history"}
    )

    @classmethod
    def read(cls, folder: Path, unit: str) -> Scores:
        """Read the tables; ArtifactError if one is missing or damaged."""
        names = [name for name in OF_EVALUATE if name != "history"]
        return cls(unit, {name: read_table(table_file(folder, name)) for name in names})

    def renamed(self, names: Mapping[str, str]) -> Scores:
        """The same with other names of methods."""
        columns = ("method", "first", "second")
        return replace(self, frames={
            table: frame.with_columns(pl.col([one for one in columns if one in frame.columns]).replace(dict(names)))
            for table, frame in self.frames.items()
        })  # fmt: skip

    @cached_property
    def _figures(self) -> dict[tuple[str, str, str | None], Figure]:
        rows = [Figure(**row) for row in self.frames["figures"].iter_rows(named=True)]
        found: dict[tuple[str, str, str | None], Figure] = {(row.method, row.metric, row.unit): row for row in rows}
        # the last one of equal names stays: that of the main unit
        shown = sorted(rows, key=lambda row: row.unit == self.unit)
        return found | {(row.method, row.metric, None): row for row in shown}

    def find(self, method: str, metric: str = "accuracy", unit: str | None = None) -> Figure | None:
        """A figure of a method; None if there is none."""
        return self._figures.get((method, metric, unit))

    def figure(self, method: str, metric: str = "accuracy", unit: str | None = None) -> Figure:
        """A figure of a method, which has it."""
        return self._figures[method, metric, unit]

    def runs(self, method: str, metric: str = "accuracy", unit: str | None = None) -> dict[tuple[int, int], Score]:
        """(fold, seed) -> a metric of a method in that run."""
        rows = self._own("scores", method).filter(metric=metric, unit=unit or self.unit)
        return {(row["fold"], row["seed"]): Score(**row) for row in rows.iter_rows(named=True)}

    def trials(self, method: str, metric: str) -> dict[int, float]:
        """Seed -> a metric over all folds."""
        rows = self._own("scores", method).filter(pl.col("fold").is_null(), pl.col("metric") == metric)
        return dict(rows.select("seed", "value").rows())

    def comparisons(self, metric: str, family: str = "reference") -> list[Compared]:
        """The pairs of a family."""
        rows = self.frames["comparisons"].filter(metric=metric, family=family)
        return [Compared(**row) for row in rows.iter_rows(named=True)]

    def tiers(self, metric: str) -> dict[str, int]:
        """Method -> its tier, from 1 (`tie_tiers`); empty if no two methods were compared."""
        tiers = enumerate(tie_tiers(self.comparisons(metric, ALL_PAIRS)), 1)
        return {name: number for number, tier in tiers for name in tier}

    def confusion(self, method: str, unit: str | None = None) -> NDArray[np.int64]:
        """Counts (C, C); row: actual class, column: predicted class."""
        counts = self._own("confusion", method).filter(unit=unit or self.unit)["count"].to_numpy()
        # every pair of classes has a row, also where the count is zero
        size = round(len(counts) ** 0.5)
        return counts.reshape(size, size)

    def speakers(self, method: str) -> dict[str, tuple[float, int]]:
        """Known speaker -> accuracy over all runs, and number of items; empty if speakers are unknown."""
        rows = self._own("speakers", method).drop_nulls("speaker")
        return {row["speaker"]: (row["accuracy"], row["items"]) for row in rows.iter_rows(named=True)}

    def entities(self, method: str) -> dict[str | None, EntityTypeScore]:
        """Type, None for all types -> what the tagger did with its entities; empty for methods that were not scored."""
        return {row["type"]: EntityTypeScore(**row) for row in self._own("entities", method).iter_rows(named=True)}

    def _own(self, table: str, method: str) -> pl.DataFrame:
        return self.frames[table].filter(method=method)


def tie_tiers(pairs: Sequence[Compared]) -> list[list[str]]:
    """Methods in tiers, the best first. In a tier are those that may be the best of the methods that are left.

    This is a multiple comparison with the best (docs/sources.md#tiers): a method is left to the next tier if another is
    significantly better, with p of the pair times the number of others.

    Args:
        pairs: all pairs of the methods in one metric.
    """
    values = {one.first: one.first_value for one in pairs} | {one.second: one.second_value for one in pairs}
    # a pair that could not be tested cannot be told apart
    p = {frozenset((one.first, one.second)): 1.0 if one.p is None else one.p for one in pairs}
    left, tiers = sorted(values, key=lambda name: (-values[name], name)), list[list[str]]()
    while left:
        better = {name: [other for other in left if values[other] > values[name]] for name in left}
        # one of them is compared with all others that are left (Bonferroni)
        level = ALPHA / max(1, len(left) - 1)
        tiers.append([name for name in left if all(p[frozenset((name, one))] > level for one in better[name])])
        left = [name for name in left if name not in tiers[-1]]
    return tiers


def recalls(counts: NDArray[np.int64]) -> list[float | None]:
    """Recall of every class from confusion counts (C, C), in class order; None for a class without a target."""
    return [float(row[index] / row.sum()) if row.sum() else None for index, row in enumerate(counts)]
