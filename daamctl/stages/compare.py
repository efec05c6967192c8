"""`compare`: compare two pipelines, methods or published rows: their settings and their results.

Reads `data/train/<run>/<method>/` of both sides and the published tables. Writes `data/compare/<A>__<B>/
comparison.json` (with a hash where two pairs could share a folder), see `daamctl.artifacts.comparison`. It is not a
stage of the DAG.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from daamctl.adapters import stage_of
from daamctl.artifacts.comparison import ComparisonReport, PairedResult, PrintedResult, Row
from daamctl.artifacts.evaluation import find_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.runs import complete_folds, find_run, trained_methods, with_seeds
from daamctl.artifacts.scores import BEST_ON_TEST
from daamctl.config import Config, TrainingStage
from daamctl.corpora import CORPORA
from daamctl.data.task import task_of
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError
from daamctl.evaluation.consistency import check_method, check_methods, scored_folds
from daamctl.evaluation.paired import TrainedMethod, compare_paired
from daamctl.evaluation.printed import LORA_SESSIONS, PrintedSide, compare_printed, figure_of, score_of, trained_side
from daamctl.methods import counterparts
from daamctl.paper.tables import DEFAULT_SOURCE, PublishedRow, PublishedTable, published_tables, read_published
from daamctl.planning.repair import repair_of
from daamctl.store.files import content_key
from daamctl.store.records import write_record

logger = logging.getLogger(__name__)

PUBLISHED = "published:"


@dataclass(frozen=True)
class TrainedSide:
    """A side with trained folds.

    Args:
        name: pipeline or run, without a method.
        methods: the requested methods: one, or all.
        one: whether a single method was requested.
    """

    name: str
    layout: Layout
    config: Config
    methods: tuple[str, ...]
    one: bool

    def seeds(self, stage: TrainingStage) -> tuple[int, ...] | None:
        """The seeds of a stage in a pipeline; None for an ad-hoc run, which has no list of seeds."""
        return self.config.seeds_of(stage) if self.layout.pipeline else None


@dataclass(frozen=True)
class PublishedSide:
    """A published side.

    Args:
        name: `published:` and the table.
        methods: the requested rows: one, or all.
        one: whether a single row was requested.
    """

    name: str
    table: PublishedTable
    methods: tuple[str, ...]
    one: bool

    def row(self, method: str) -> PublishedRow:
        """The row of a method in `methods`."""
        row = self.table.row(method)
        assert row is not None
        return row


def run(root: Path, first: str, second: str, *, unit: str | None = None) -> Path:
    """Compare two sides.

    Args:
        first: a pipeline or run, `pipeline/method`, `published:TABLE` or `published:TABLE/method`.
        second: likewise; methods of whole pipelines and tables are matched by name.
        unit: "utterance" or "clip"; None: `evaluate.unit` of the sides, which must agree.

    Returns:
        Path of comparison.json; in a temporary folder if the project cannot be written.

    Raises:
        UnknownNameError: the pipeline, run, method or row does not exist.
        ConfigError: the sides share no method, are the same, or differ in `evaluate.unit`.
        ArtifactError: folds are missing or have different settings, or the sides were tested on different items.
    """
    a, b = _side(root, first), _side(root, second)
    pairs = _match(a, b)
    chosen = _unit(a, b, unit)
    firsts, seconds = zip(*pairs, strict=True)
    for side in {one.name: one for one in (a, b) if isinstance(one, TrainedSide)}.values():
        _warn_of_evaluation(side)
    if isinstance(a, TrainedSide) and isinstance(b, TrainedSide):
        loaded = list(zip(_load(a, firsts, chosen), _load(b, seconds, chosen), strict=True))
        modality: str | None = loaded[0][0].folds[0].modality
        result: PairedResult | PrintedResult = compare_paired(loaded, chosen, f"daamctl compare {first} {second}")
    else:
        corpora = [side.config.download.corpus for side in (a, b) if isinstance(side, TrainedSide)]
        rows = [_rows(side, names, chosen, both=not corpora) for side, names in ((a, firsts), (b, seconds))]
        modality = CORPORA.load(corpora[0]).modality if corpora else None
        result = compare_printed(list(zip(*rows, strict=True)))
    report = ComparisonReport(
        first=first,
        second=second,
        unit=chosen,
        item=task_of(modality).unit(chosen) if modality else None,
        matched=pairs,
        unmatched={
            "first": [name for name in a.methods if name not in firsts],
            "second": [name for name in b.methods if name not in seconds],
        },
        result=result,
    )
    path = root / "data" / "compare" / _folder(first, second) / "comparison.json"
    try:
        write_record(path, report.as_json())
    except ArtifactError as error:  # the project of somebody else, who lets others read it
        path = Path(mkdtemp(prefix="daamctl-")) / path.name
        logger.warning("%s. It is written to %s instead", error.message, path)
        write_record(path, report.as_json())
    logger.info("comparison: %s", path)
    return path


def _folder(first: str, second: str) -> str:
    """A folder name that is safe on any file system, with a hash if other sides could have the same one."""
    name = "__".join(re.sub(r"[^\w.-]+", ".", side) for side in (first, second))
    # `a__b` with `c` and `a` with `b__c`; the method `b` of `a` and the run `a.b`
    unclear = any(re.search(r"__|\b_|_\b|[^\w/-]", side.removeprefix(PUBLISHED)) for side in (first, second))
    return f"{name}-{content_key([first, second])}" if unclear else name


def _side(root: Path, text: str) -> TrainedSide | PublishedSide:
    if text.startswith(PUBLISHED):
        return _printed(text.removeprefix(PUBLISHED))
    name, _, method = text.partition("/")
    layout, config = find_run(root, name)
    there = trained_methods(layout)
    chosen = config.trained if layout.pipeline else there
    if not method:
        return TrainedSide(name, layout, config, tuple(chosen), one=False)
    # methods that the pipeline no longer lists can still be compared, if their folds are there
    known = dict.fromkeys([*chosen, *there])
    if method not in known:
        raise UnknownNameError("method", method, known, of=name)
    return TrainedSide(name, layout, config, (method,), one=True)


def _printed(text: str) -> PublishedSide:
    """A published table, or one row of it."""
    tables = published_tables()
    short = [name.removeprefix(f"{DEFAULT_SOURCE}/") for name in tables]
    known = {*tables, *short}
    name, method = (text, "") if text in known else (text.rpartition("/")[0], text.rpartition("/")[2])
    if name not in known:
        raise UnknownNameError("published table", text, short)
    table = read_published(name)
    rows = tuple(dict.fromkeys(row.method for row in table.rows))
    if method and method not in rows:
        raise UnknownNameError("row", method, rows, of=f"{PUBLISHED}{name}")
    return PublishedSide(PUBLISHED + name, table, (method,) if method else rows, one=bool(method))


def _match(a: TrainedSide | PublishedSide, b: TrainedSide | PublishedSide) -> list[tuple[str, str]]:
    """The pairs of methods: two single methods as given, otherwise matched by name."""
    if a.one and b.one:
        pairs = [(a.methods[0], b.methods[0])]
    else:
        single, many = (b, a) if b.one else (a, b)  # if neither is single, the order is that of the first
        if single.one and single.methods[0] not in many.methods:
            raise UnknownNameError("method", single.methods[0], many.methods, of=many.name)
        pairs = [(name, name) for name in single.methods if name in many.methods]
    if not pairs:
        raise ConfigError(
            f"'{a.name}' ({', '.join(a.methods)}) and '{b.name}' ({', '.join(b.methods)}) share no method",
            fix=f"name one method of each side: daamctl compare {a.name}/{a.methods[0]} {b.name}/{b.methods[0]}",
        )
    for one, other in pairs:
        # a table has two names, with and without its source, so names would not tell
        if _identity(a, one) == _identity(b, other):
            raise ConfigError(f"'{a.name}/{one}' and '{b.name}/{other}' are the same, so there is nothing to compare")
    return pairs


def _identity(side: TrainedSide | PublishedSide, method: str) -> tuple[Any, ...]:
    if isinstance(side, TrainedSide):
        return (side.layout.method(method),)
    return side.table.source, side.row(method)


def _unit(a: TrainedSide | PublishedSide, b: TrainedSide | PublishedSide, wanted: str | None) -> str:
    units = {side.name: side.config.evaluate.unit for side in (a, b) if isinstance(side, TrainedSide)}
    if not units:
        if wanted is not None:
            raise ConfigError("--unit does not apply to two published rows, which are compared as printed")
        return "as printed"
    if wanted is None and len(set(units.values())) > 1:
        found = ", ".join(f"{unit} for '{name}'" for name, unit in units.items())
        raise ConfigError(f"evaluate.unit differs: {found}", fix="choose one for both: --unit utterance or --unit clip")
    return wanted or next(iter(units.values()))


def _load(side: TrainedSide, methods: Sequence[str], unit: str) -> list[TrainedMethod]:
    """Load the finished folds of every method, and check that they are complete and have the same settings.

    Raises:
        ArtifactError: a fold is missing, or folds were made with different settings.
    """
    found: dict[str, list[Fold]] = {}
    for method in methods:
        found[method] = complete_folds(side.layout, method, side.seeds(stage_of(method)))
        check_method(method, found[method])
    check_methods(found, side.config)
    remake = side.layout.command("download")
    return [
        TrainedMethod.of(side.name, method, folds, unit, side.config, remake, _probes(side, method, folds))
        for method, folds in found.items()
    ]


def _warn_of_evaluation(side: TrainedSide) -> None:
    """Warn if the evaluation of a run is not of its folds."""
    try:
        evaluation = find_evaluation(side.layout.stage("evaluate"))
        stale = scored_folds(side.layout, side.config, evaluation)[1] if evaluation else []
    except ArtifactError as error:  # of the evaluation, or of a method that is not compared
        stale = [f"{error.message}; {repair_of(error.path or side.layout.data, side.layout)}"]
    for note in stale:
        logger.warning("the evaluation of '%s': %s", side.name, note)


def _probes(side: TrainedSide, method: str, folds: Sequence[Fold]) -> dict[str, list[Fold]]:
    """The closest closed-form probe of a method, trained in the same run on the same embeddings."""
    keys = {fold.result["meta"]["embeddings_key"] for fold in folds}
    for name in counterparts(method):
        found = with_seeds(read_folds(side.layout.method(name)), side.seeds("train"))
        if stage_of(method) == "train":  # a fine-tuned encoder has no embeddings
            found = [fold for fold in found if fold.result["meta"]["embeddings_key"] in keys]
        if found:
            return {name: found}
    return {}


def _rows(side: TrainedSide | PublishedSide, methods: Sequence[str], unit: str, *, both: bool) -> list[PrintedSide]:
    """Methods of a side as rows of a published table; `both`: the other side is published too."""
    if isinstance(side, TrainedSide):
        return [trained_side(loaded, unit) for loaded in _load(side, methods, unit)]
    return [_row(side, name, both=both) for name in methods]


def _row(side: PublishedSide, method: str, *, both: bool) -> PrintedSide:
    """A published row, with its figures and the facts that its table states; `both` as in `_rows`."""
    table, row, name = side.table, side.row(method), f"{side.name}/{method}"
    values, sessions = [value / 100 for value in row.folds.values()], _sessions(table, row)
    wrong = {"mean": not row.mean_agrees, "deviation": row.std_is == "neither"} if row.disagrees else {}
    speech = not table.repeats
    stated: dict[str, Any] = {
        "method": method,
        "download.corpus": table.corpus,
        "extract.encoder": table.encoder,
        "train.selection": "best-on-test",
        "model.layers": row.layers or "all",
        "scoring.unit": "clip" if speech else "item",
        "runs.num_folds": len(row.folds) if speech else 1,
        "runs.per_fold": 1 if speech else len(row.folds),
    }
    if both:  # only published tables have these
        stated |= {"table": f"{table.source}/{row.table}", "data.sessions": sessions}
    numbers: Sequence[int | None] = sessions or [None] * len(values)
    return PrintedSide(
        method,
        Row(name, name, table.corpus, row.printed or None, [what for what, found in wrong.items() if found]),
        stated,
        [figure_of(name, "clip", BEST_ON_TEST, values)],
        [score_of(name, *fold) for fold in zip(row.folds, numbers, values, strict=True)],
        [f"{side.name}: {table.protocol}"],
    )


def _sessions(table: PublishedTable, row: PublishedRow) -> list[int] | None:
    """The session behind each printed column; None where columns are repeats of one split."""
    if not all(name.startswith("F") for name in row.folds):
        return None
    columns = [int(name[1:]) for name in row.folds]
    # deviation D15: the released code orders these folds by their size, not by session
    grouped = table.corpus == "iemocap" and row.method.startswith("lora")
    return [LORA_SESSIONS[column - 1] for column in columns] if grouped else columns
