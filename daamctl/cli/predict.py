"""`daamctl predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import print_table, show_line, show_path
from daamctl.store.files import expanded

if TYPE_CHECKING:
    import polars as pl

    from daamctl.stages.predict import PredictionResult

MOST_SHOWN = 40
"""Rows of the table on a terminal."""
MOST_CLASSES = 8
"""With more classes than this, the table on a terminal shows only the probability of the predicted one."""


def command(
    run: Run,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of an exported model.", show_default=False)],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders, globs, tables (CSV, Parquet, JSON); -: texts or sentences on standard input, "
            "one per line.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write: .parquet, .csv or .jsonl. Default: print the table."),
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="Folder of the encoder, if the model does not contain it.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Most clips per forward pass of the encoder; changes the speed only.")
    ] = None,
) -> None:
    """Predict recordings, texts, images or the tags of words with an exported model."""
    from daamctl.corpora.files import lines_of, read_text
    from daamctl.models.folder import record_file
    from daamctl.models.inputs import files_of

    words = inputs or ([] if sys.stdin.isatty() else ["-"])
    record_file(model)
    for word in words:
        if word != "-" and not expanded(word).is_dir():
            files_of(word, ())
    from daamctl.stages import predict

    lines = lines_of(read_text(sys.stdin.buffer)) if "-" in words else []
    found = predict.run(
        model,
        [word for word in words if word != "-"],
        lines=lines,
        out=out,
        encoder=encoder,
        batch_size=batch_size,
        device=run.device or "auto",
        coverage=run.coverage,
    )
    if out is not None:
        show_path(out)
    elif sys.stdout.isatty():
        _show(found.rows)
    else:
        typer.echo(predict.as_text(found.rows, ".csv"), nl=False)
    _show_scores(found)


def _show(rows: pl.DataFrame) -> None:
    """Print the first rows as a table."""
    names = [name for name in rows.columns if not name.startswith("weight_")]
    classes = [name for name in names if name.startswith("p_")]
    if len(classes) > MOST_CLASSES:
        names = [name for name in names if name not in classes]
    names = [name for name in names if rows[name].null_count() < len(rows)]
    print_table(names, [list(map(_cell, row)) for row in rows.head(MOST_SHOWN).select(names).iter_rows()])
    if len(rows) > MOST_SHOWN:
        show_line(f"and {len(rows) - MOST_SHOWN} more rows; write all of them with --out FILE")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "; ".join(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _show_scores(found: PredictionResult) -> None:
    """Print the metrics to standard error, so that they do not mix with a table on standard output."""
    from daamctl.artifacts.terms import counted
    from daamctl.data import METRICS

    if found.unknown:
        labels = ", ".join(f"{label} ({number})" for label, number in found.unknown.items())
        typer.echo(f"labels that are no class of the model: {labels}", err=True)
    if found.entities is not None:
        micro = found.entities.micro
        typer.echo(f"{micro.gold} entities in sentences with tags:", err=True)
        for name, value in (("Entity F1", micro.f1), ("Precision", micro.precision), ("Recall", micro.recall)):
            typer.echo(f"  {name:<24}{100 * value:.1f} %", err=True)
    if found.scores is None:
        return
    typer.echo(f"{counted(int(found.scores['n']), 'item')} with a label:", err=True)
    for name in (name for name in found.scores if name != "n"):
        metric, value = METRICS.load(name), float(found.scores[name])
        shown = f"{100 * value:.1f} %" if metric.unit == "fraction" else f"{value:.3f}"
        typer.echo(f"  {metric.alias:<24}{shown}", err=True)
    if found.held is not None and found.size is not None:
        typer.echo(f"  {'Class in its set':<24}{100 * found.held:.1f} %", err=True)
        typer.echo(f"  {'Classes per set':<24}{found.size:.2f}", err=True)
