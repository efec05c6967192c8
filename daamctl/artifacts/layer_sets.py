"""Results on sets of layers: what `ablate` and `truncate` train, and what `importance` probes.

Each of these stages writes its figures to `layers.parquet`, one `LayerRow` each, and a record beside it that says how
the sets were chosen and has the hash of the table: ablation.json, truncation.json and summary.json. Scores, differences
and shares are fractions.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import polars as pl

from daamctl.artifacts import audit
from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.statistics import Design
from daamctl.data.task import Task, task_of
from daamctl.store.artifact import Artifact
from daamctl.store.tables import read_frame, write_frame

if TYPE_CHECKING:
    from daamctl.artifacts.results import Fold

TABLE = "layers.parquet"
ABLATION, TRUNCATION = "ablation.json", "truncation.json"
ALL = "all"
"""Name of the set of all layers in an ablation."""
_TEXT, _INTEGER, _NUMBER = pl.String(), pl.Int64(), pl.Float64()
LAYERS: dict[str, pl.DataType] = {
    "stage": _TEXT, "set": _TEXT, "layers": _TEXT, "layer": _INTEGER, "method": _TEXT, "kind": _TEXT, "fold": _INTEGER,
    "seed": _INTEGER, "value": _NUMBER, "low": _NUMBER, "high": _NUMBER, "untrained": _NUMBER, "difference": _NUMBER,
    "difference_low": _NUMBER, "difference_high": _NUMBER, "p": _NUMBER, "floor": _NUMBER, "time": _NUMBER,
    "parameters": _NUMBER,
}  # fmt: skip
"""Columns of the table: those of `LayerRow`; `layers` as text such as 22,23,24; `layer` if it is one; the stage."""

Runs = dict[tuple[int, int], float]
"""(fold, seed) -> figure of that run."""


class LayerRow(NamedTuple):
    """One figure of a method on a set of layers.

    kind: accuracy or entity_f1 after training on these layers only; importance or weight of the layer in a method that
    was trained on all of them. fold, seed: the run; None: over all runs. low, high: 95 % interval. untrained: the
    figure before training. difference: from the best single layer (`importance`), or from all layers (`truncate`, with
    the ends of its interval). p: of the test of that difference; floor: the smallest that the units allow. time,
    parameters: share of the whole encoder's up to the highest of the layers; None if unknown.
    """

    set: str
    layers: tuple[int, ...]
    method: str
    kind: str
    value: float
    fold: int | None = None
    seed: int | None = None
    low: float | None = None
    high: float | None = None
    untrained: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    floor: float | None = None
    time: float | None = None
    parameters: float | None = None


@dataclass(frozen=True)
class MeanOverRuns:
    """Mean (None without runs) and standard deviation with divisor n - 1 (None for fewer than two) over n runs."""

    mean: float | None
    std: float | None
    n: int


def over_runs(values: Iterable[float]) -> MeanOverRuns:
    """Sum up the values of runs."""
    found = list(values)
    std = statistics.stdev(found) if len(found) > 1 else None
    return MeanOverRuns(statistics.fmean(found) if found else None, std, len(found))


def minus(high: Runs, low: Runs) -> Runs:
    """Difference of two figures in each run that has both."""
    return {run: value - low[run] for run, value in high.items() if run in low}


@dataclass(frozen=True, kw_only=True)
class LayerSets:
    """A method that was trained on several sets of layers.

    Args:
        method: None if no method qualifies.
        label: name of the method in reports.
        rows: the figures, which are not in the record but in the table.
        trained: content keys of the folds that were trained for it.
        files: SHA-256 of the table and of `result.json` of every fold that was trained for it, by path in the folder.
    """

    run: str
    method: str | None
    label: str
    unit: str
    modality: str
    embeddings_key: str
    notes: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    rows: Sequence[LayerRow] = ()

    @property
    def task(self) -> Task:
        """What is asked of the items; its primary figure is compared."""
        return task_of(self.modality)

    def runs(self, name: str, method: str | None = None) -> Runs:
        """The compared figure of each run on a set of layers.

        Args:
            method: None: the method, not the probe beside it.
        """
        own = (name, method or self.method, self.task.primary)
        return {
            (row.fold, row.seed): row.value
            for row in self.rows
            if (row.set, row.method, row.kind) == own and row.fold is not None and row.seed is not None
        }


@dataclass(frozen=True)
class Contrast:
    """A set of layers of high importance beside one of low importance.

    Args:
        name: `highest-3 minus lowest-3`, or the name of the papers' layers.
        contradicted: whether the closed-form probe contradicts the difference; "not judged": the method was not trained
            well on one of the sets, or there are too few runs.
    """

    name: str
    high: str
    low: str
    contradicted: Literal["yes", "no", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Ablation(LayerSets):
    """Training on the layers of highest and lowest Importance Factor, and on given layers.

    Args:
        rank_by: method whose Importance Factor ranks the layers; None if no method qualifies.
        probe: closed-form probe that is trained beside the method; None if the method is one itself.
        ranking: layers by Importance Factor, highest first; empty if they are not ranked.
        marks: set of layers -> how badly the method was trained on it, one of `MARKS`; empty if well.
        notes: how layers and method were chosen.
        settings: those of `ablate`.
        folds: content keys of the folds of `rank_by` that rank the layers; empty if they are not ranked.
        tests: whether layers of high importance do better alone; not in the record but in a table.
    """

    rank_by: str | None
    probe: str | None
    ranking: list[int]
    marks: dict[str, str]
    contrasts: list[Contrast]
    cautions: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    folds: list[str] = field(default_factory=list)
    tests: Sequence[LayerTest] = ()

    @property
    def sets(self) -> dict[str, tuple[int, ...]]:
        """Sets of layers besides all layers, by name."""
        return {row.set: row.layers for row in self.rows if row.set != ALL}

    def probed(self, name: str) -> Runs:
        """The compared figure of the probe in each run on a set of layers; empty without a probe."""
        return self.runs(name, self.probe) if self.probe else {}


@dataclass(frozen=True, kw_only=True)
class Truncation(LayerSets):
    """How few layers of an encoder are enough for a method.

    Args:
        margin: largest difference that counts as not worse; declared beforehand.
        alpha: one-sided level of the tests.
        level: level of the intervals of the differences.
        device: device on which time was measured; None if it was not.
        nothing: where the method learned nothing, "all layers" or "the fewer layers"; empty if nowhere.
    """

    method: str
    margin: float
    alpha: float
    level: float
    design: Design
    device: str | None
    nothing: str = ""

    @property
    def sets(self) -> list[LayerRow]:
        """The compared figure of every set of layers over all runs."""
        return [row for row in self.rows if row.fold is None and row.kind == self.task.primary]

    @property
    def whole(self) -> LayerRow:
        """Training on all layers."""
        return max(self.sets, key=lambda row: len(row.layers))

    @property
    def prefixes(self) -> list[LayerRow]:
        """Training on the layers up to k, by k, without all layers."""
        every = self.whole.layers
        found = [row for row in self.sets if row.layers == every[: len(row.layers)] != every and row.layers[-1] > 0]
        return sorted(found, key=lambda row: row.layers)

    @property
    def singles(self) -> list[LayerRow]:
        """Training on one layer each, by layer."""
        return sorted((row for row in self.sets if len(row.layers) == 1), key=lambda row: row.layers)

    @property
    def enough(self) -> dict[str, bool]:
        """Prefix -> whether it is not worse: from the longest to the first that fails, which ends the tests.

        Each test has the full level. The probability of one or more wrong passes is at most alpha, without a
        correction, because a wrong pass needs the first true null hypothesis of the order to be rejected (Maurer,
        Hothorn and Lehmacher 1995; Westfall and Krishen 2001).
        """
        found: dict[str, bool] = {}
        # from the longest on, which is the most likely to be enough: the order is fixed before the data are seen
        for row in reversed(self.prefixes):
            if row.p is None:
                break
            found[row.set] = row.p <= self.alpha
            if row.p > self.alpha:
                break
        return found

    @property
    def shortest(self) -> LayerRow | None:
        """The shortest prefix that is enough; None if none is."""
        enough = self.enough
        return next((row for row in self.prefixes if enough.get(row.set)), None)


Sets = TypeVar("Sets", bound=LayerSets)


def write_layer_sets(path: Path, found: LayerSets, folds: Iterable[Fold]) -> Path:
    """Write the table, then the record with the hashes of the table and of the folds in the same folder."""
    from daamctl.artifacts.results import RESULT  # imports the settings, which tables do not need

    # before the record, which holds their hashes
    tables = [write_rows(path.parent, found.run, found.rows)]
    if isinstance(found, Ablation):
        tables.append(audit.write_tests(path.parent, found.run, found.tests))
    own = sorted((fold for fold in folds if fold.folder.is_relative_to(path.parent)), key=lambda fold: fold.folder)
    results = [fold.folder / RESULT for fold in own]
    # `asdict` would copy thousands of rows, which the table has
    record = asdict(replace(found, rows=(), trained=[fold.result["run"]["key"] for fold in own]))
    content = {name: value for name, value in record.items() if name not in ("rows", "tests")}
    Artifact(path, type(found)).seal(path.parent, content, [*tables, *results])
    return path


def write_rows(folder: Path, run: str, rows: Iterable[LayerRow]) -> Path:
    """Write the table of a stage into its folder; return its file."""
    content: list[dict[str, Any]] = []
    for row in rows:
        layer = row.layers[0] if len(row.layers) == 1 else None
        named = {"stage": folder.parent.name, "layer": layer, "layers": layers_list(row.layers)}
        content.append({**row._asdict(), **named})
    write_frame(folder / TABLE, pl.DataFrame(content, LAYERS), {"run": run, "table": "layers"})
    return folder / TABLE


def read_rows(folder: Path) -> list[LayerRow]:
    """Read the table of a stage.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    frame = read_frame(folder / TABLE)[0].select(LayerRow._fields)
    rows = (LayerRow(*values) for values in frame.iter_rows())
    return [row._replace(layers=tuple(map(int, str(row.layers).split(",")))) for row in rows]


def find_ablation(folder: Path, *, hide: Path | None = None) -> Ablation | None:
    """Read the ablation of a run; None if there is none, or if it was skipped on this machine.

    Args:
        folder: folder of the run, `data/ablate/<run>`.
        hide: folder to remove from paths in texts.

    Raises:
        ArtifactError: a file is missing, incomplete, changed, of another run or of an older version of daamctl.
    """
    found = _find(folder / ABLATION, Ablation, hide)
    return None if found is None else replace(found, tests=audit.read_tests(folder))


def find_truncation(folder: Path, *, hide: Path | None = None) -> Truncation | None:
    """Read the truncation of a run, `data/truncate/<run>`, as `find_ablation` reads an ablation."""
    return _find(folder / TRUNCATION, Truncation, hide)


def _find(path: Path, kind: type[Sets], hide: Path | None) -> Sets | None:
    found = Artifact(path, kind, hide=hide).find()
    return None if found is None else replace(found, rows=read_rows(path.parent))


def layers_list(layers: Sequence[int]) -> str:
    """Layers as `--layers` takes them, e.g. `22,23,24`."""
    return ",".join(map(str, layers))


def layers_name(layers: Sequence[int]) -> str:
    """Name of consecutive layers in folders and tables: `layers-1-to-9`, or `layer-9`."""
    if len(layers) == 1:
        return f"layer-{layers[0]}"
    return f"layers-{layers[0]}-to-{layers[-1]}"
