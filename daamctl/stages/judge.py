"""`judge`: which of several models is better, from files of predictions that any tool made. Needs no project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.predictions import Predictions, Verdict
from daamctl.config import nearest_root
from daamctl.errors import ConfigError, UnknownNameError, first_few
from daamctl.evaluation.judge import judge
from daamctl.evaluation.prediction_columns import COLUMNS, of_table
from daamctl.evaluation.prediction_files import names_of, read_models, read_predictions
from daamctl.store.files import expanded, fitting, write_text
from daamctl.store.tables import rows_of_json, table_of_rows, to_polars, without_nan


def run(
    sources: Sequence[Path | str | Any],
    *,
    columns: Mapping[str, str | Sequence[str] | None] | None = None,
    items: Path | None = None,
    metric: str = "accuracy",
    margin: float | None = None,
    common: bool = False,
) -> tuple[Verdict, list[Predictions]]:
    """Read predictions and compare them.

    Args:
        sources: files or folders (`read_predictions`), also as NAME=PATH, or RUN/METHOD of the project; or tables
            (`_table`); or a mapping of names to them; or one with the predictions of several models (`read_models`).
        columns: what a column is -> its name, where it is not recognised; None: recognise it; of prediction or
            correct also several, one for each model.
        items: file with the labels and groups of the items.
        metric: which ranks the models, see `judge`; also with hyphens.
        margin: fraction of the metric that a model may be worse than the first.
        common: judge the items that all have, if they differ.

    Raises:
        ConfigError: see `judge`.
        ArtifactError: a file is missing or damaged.
    """
    given, metric = _names(columns or {}), metric.replace("-", "_")
    models: list[tuple[str | None, Any]] = [(None, source) for source in sources]
    if len(sources) == 1 and isinstance(sources[0], Mapping):
        models = [(str(name), source) for name, source in sources[0].items()]
    named: list[tuple[str | None, Path | pl.DataFrame]] = []
    for name, source in models:
        if isinstance(source, Path | str):
            called, separator, path = str(source).partition("=")
            is_named = name is None and separator != "" and not fitting(Path(source))
            named.append((called or None, _place(path)) if is_named else (name, _place(source)))
        elif items is not None:
            raise ConfigError("`items` adds labels to files; join them to a table yourself")
        else:
            named.append((name, _table(source)))
    if len(named) == 1:
        files = read_models(named[0][1], given, items, metric=metric)
        return judge(files, metric=metric, margin=margin, common=common), files
    single = {role: name for role, name in given.items() if isinstance(name, str) and role != "model"}
    if several := next((role for role in given if role not in single), None):
        raise ConfigError(f"several models in one file (--{several}) are judged alone, got {len(named)} files")
    files = [
        read_predictions(one, single, items, name, metric=metric)
        if isinstance(one, Path)
        else of_table(one, single, name or f"table {number}", metric=metric)
        for number, (name, one) in enumerate(named, 1)
    ]
    if len({file.name for file in files}) < len(files):
        paths = {number: one for number, (name, one) in enumerate(named) if name is None and isinstance(one, Path)}
        for number, name in zip(paths, names_of(list(paths.values())), strict=True):
            files[number] = replace(files[number], name=name)
    return judge(files, metric=metric, margin=margin, common=common), files


def _names(columns: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """The names that are given; a list of one is this one."""
    known, given = (*COLUMNS, "model"), dict[str, str | list[str]]()
    for role, names in columns.items():
        if role not in known:
            raise ConfigError(f"'{role}' is no kind of column; known: {', '.join(known)}")
        if names is None:
            continue
        is_one = isinstance(names, str) or not isinstance(names, Iterable)  # tables may have numbers for names
        several = [str(name) for name in ([names] if is_one else names)]
        if len(several) > 1 and role not in ("prediction", "correct"):
            raise ConfigError(f"{role} is one column, got several: {first_few(several)}")
        if several:
            given[role] = several if len(several) > 1 else several[0]
    return given


def _place(given: Path | str) -> Path:
    """Where a file or folder is; RUN/METHOD, if there is no such path, is the folder of a method of the project."""
    path = expanded(given)  # a shell leaves the ~ of NAME=~/PATH as it is
    if fitting(path) or path.is_absolute() or len(path.parts) != 2 or (root := nearest_root()) is None:
        return path
    folder = root / "data" / "train" / path
    methods = [one.name for one in folder.parent.glob("*/")]
    if methods and path.name not in methods:
        raise UnknownNameError("method", path.name, methods, of=path.parts[0])
    return folder if methods else path


def _table(given: Any) -> pl.DataFrame:
    """A table of polars, pandas (with an index unless it counts rows), pyarrow or `datasets`, or a list of objects."""
    try:
        if isinstance(given, pl.DataFrame | pl.LazyFrame):
            return given.lazy().collect()
        if isinstance(given, Sequence):
            return table_of_rows(rows_of_json(list(given)), flat=True)
        if hasattr(given, "to_pydict"):
            return to_polars(given)
        if hasattr(given, "reset_index"):
            is_named = any(name is not None for name in given.index.names)
            # a copy of the row numbers names no item, and numbers of several tables, one below the other, many
            if is_named or (given.index.is_unique and [*given.index] != [*range(len(given))]):
                given = given.reset_index()
        columns = {str(name): without_nan(values) for name, values in given.to_dict("list").items()}
        return pl.DataFrame(columns, strict=False)
    except (AttributeError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        why = "" if isinstance(error, AttributeError | TypeError) else f": {str(error).splitlines()[0]}"
        kind = type(given).__name__
        raise ConfigError(f"a file, or a table of polars, pandas or pyarrow is needed, got {kind}{why}") from error


def is_page(path: Path) -> bool:
    """Whether a file is a page that `write_page` wrote."""
    with path.open("rb") as file:
        head = file.read(1000)
    return head.startswith(b"<!DOCTYPE html>") and b"<title>Which " in head


def write_page(verdict: Verdict, files: Sequence[Predictions], path: Path) -> None:
    """Write the page, one file of HTML."""
    from daamctl.reporting.judge import document
    from daamctl.reporting.render import to_html
    from daamctl.store.version import __version__

    write_text(path, to_html(document(verdict, files), version=__version__))
