"""Audit of layer scores: do they reflect how useful the layers are? One test per row of a table, and what it lacks.

`ablate` and `importance` write the tests to `audit.parquet`, one `LayerTest` each; `audit` in
`data/importance/<run>/summary.json` says what could not be tested. Accuracies and their differences are fractions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from daamctl.store.tables import read_frame, write_frame

TABLE = "audit.parquet"
_TEXT, _INTEGER, _NUMBER = pl.String(), pl.Int64(), pl.Float64()
AUDIT: dict[str, pl.DataType] = {
    "stage": _TEXT, "method": _TEXT, "score": _TEXT, "test": _TEXT, "value": _NUMBER, "p": _NUMBER, "floor": _NUMBER,
    "verdict": _TEXT, "number": _INTEGER, "k": _INTEGER, "high": _TEXT, "low": _TEXT,
}  # fmt: skip
"""Columns of the table: those of `LayerTest`, and the stage."""
Verdict = Literal["yes", "unclear", "not shown", "cannot be told"]


class LayerTest(NamedTuple):
    """One test of the layer scores of a method, one-sided.

    score: the score after training, or before it (untrained). test, and its value:

    - probe: rank correlation with the accuracy of a linear probe of each layer, p by permutation; probe-turned: p over
      the rotated and mirrored profiles; probe-depth: likewise, without the linear trend along depth.
    - deletion, insertion: area between the accuracy curve of replacing layers in the order of the score, or of putting
      them back, and that of random orders; positive is better than random.
    - alone: rank correlation with the figure of sets of `k` layers that were trained alone; alone-folds: figure of the
      set with the highest score (`high`, e.g. 22,23,24) minus that with the lowest, mean over folds.

    floor: smallest possible p. verdict: yes: p, of `probe` also the other two, is at most the level of the audit;
    unclear: only p is; cannot be told: no smaller p is possible. number: of layers, random orders, sets or folds.
    """

    method: str
    score: str
    test: str
    value: float | None = None
    p: float | None = None
    floor: float | None = None
    verdict: Verdict | None = None
    number: int | None = None
    k: int | None = None
    high: str | None = None
    low: str | None = None


def write_tests(folder: Path, run: str, tests: Iterable[LayerTest]) -> Path:
    """Write the tests of a stage into its folder; return the file."""
    content = [{"stage": folder.parent.name, **one._asdict()} for one in tests]
    write_frame(folder / TABLE, pl.DataFrame(content, AUDIT), {"run": run, "table": "audit"})
    return folder / TABLE


def read_tests(folder: Path) -> list[LayerTest]:
    """Read the tests of a stage.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    return [LayerTest(*row) for row in read_frame(folder / TABLE)[0].select(LayerTest._fields).iter_rows()]


@dataclass(frozen=True)
class Audit:
    """What the audit covers.

    Args:
        missing: why there is no audit, with the command that makes it.
        no_ablation: why there are no tests on layers trained alone, with the commands that make them; else None.
        not_audited: method -> reason.
        methods: audited method -> what could not be tested and why, with the command that repairs it.
        clips: largest number of test clips of a fold on which layers are replaced.
        orders: number of random orders.
        level: largest p-value for the verdict "yes".
        sentence: summary in one or two sentences.
        note: how to read the tests.
    """

    missing: list[str]
    no_ablation: str | None
    not_audited: dict[str, str]
    methods: dict[str, list[str]]
    clips: int
    orders: int
    level: float
    sentence: str
    note: str
