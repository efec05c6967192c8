"""`judge`: which of several models is better, from files of predictions that any tool made. Needs no project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.predictions import Predictions, Verdict
from daamctl.errors import ConfigError
from daamctl.evaluation.judge import judge
from daamctl.evaluation.prediction_files import names_of, of_table, read_predictions
from daamctl.store.files import fitting, write_text


def run(
    sources: Sequence[Path | str | Any],
    *,
    columns: Mapping[str, str] | None = None,
    items: Path | None = None,
    metric: str = "accuracy",
    margin: float | None = None,
    common: bool = False,
) -> tuple[Verdict, list[Predictions]]:
    """Read predictions and compare them.

    Args:
        sources: files or folders (`read_predictions`), also as NAME=PATH, or tables of polars or pandas.
        columns: what a column is -> its name, where it is not recognised.
        items: file with the labels and groups of the items.
        metric: which ranks the models: accuracy or balanced_accuracy.
        margin: fraction of accuracy that a model may be worse than the first.
        common: judge the items that all have, if they differ.

    Raises:
        ConfigError: see `judge`.
        ArtifactError: a file is missing or damaged.
    """
    if len(sources) < 2:
        raise ConfigError(f"a comparison needs predictions of two models or more, got {len(sources)}")
    named: list[tuple[str | None, Any]] = []  # a table has no name
    for source in sources:
        if not isinstance(source, Path | str):
            named.append((None, source))
            continue
        given, separator, path = str(source).partition("=")
        if separator and not fitting(Path(source)):
            named.append((given or None, Path(path).expanduser()))  # a shell leaves the ~ of NAME=~/PATH as it is
        else:
            named.append((None, Path(source).expanduser()))
    names = iter(names_of([one for name, one in named if name is None and isinstance(one, Path)]))
    files = []
    for number, (name, one) in enumerate(named, 1):
        if isinstance(one, Path):
            files.append(read_predictions(one, columns, items, name or next(names)))
        else:
            table = one if isinstance(one, pl.DataFrame) else pl.DataFrame(one.to_dict(orient="list"), strict=False)
            if items is not None:
                raise ConfigError("`items` adds labels to files; join them to a table yourself")
            files.append(of_table(table, columns or {}, f"table {number}"))
    return judge(files, metric=metric, margin=margin, common=common), files


def write_page(verdict: Verdict, files: Sequence[Predictions], path: Path) -> None:
    """Write the page, one file of HTML."""
    from daamctl.reporting.judge import document
    from daamctl.reporting.render import to_html
    from daamctl.store.version import __version__

    write_text(path, to_html(document(verdict, files), version=__version__))
