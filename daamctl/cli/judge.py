"""`daamctl judge`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import escaped, print_wide, show_line, show_path
from daamctl.store.files import check_output


class Metric(StrEnum):
    """What ranks the models."""

    accuracy = "accuracy"
    balanced = "balanced-accuracy"
    macro_f1 = "macro-f1"
    weighted_f1 = "weighted-f1"
    entity_f1 = "entity-f1"
    multilabel_f1 = "multilabel-f1"
    multilabel_macro_f1 = "multilabel-macro-f1"
    word_accuracy = "word-accuracy"
    character_accuracy = "character-accuracy"
    counted_accuracy = "counted-accuracy"
    mean = "mean"
    mean_loss = "mean-loss"
    ccc = "ccc"
    pearson = "pearson"
    spearman = "spearman"
    r2 = "r2"
    auroc = "auroc"
    eer_accuracy = "eer-accuracy"
    average_precision = "average-precision"


def command(
    run: Run,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE FILE …",
            help="Predictions of each model, or NAME=FILE: CSV, JSON, Parquet, npz, a folder, or a quoted 'seed*.csv'; "
            "RUN/METHOD of the project; or one file of all models.",
        ),
    ],
    items: Annotated[
        Path | None, typer.Option(help="File with label and speaker of every item, if they are not in the others.")
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the items; in a leaderboard, a pattern of such columns."),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the true labels.")] = None,
    prediction: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of the predictions. Repeatable: one for each model of one file."),
    ] = None,
    correct: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that says whether an item is right; a metric or scorer of a log. Repeatable as --prediction.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that says whose a row is, in one file of all models.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of what items have in common: speaker, document, sentence."),
    ] = None,
    fold: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the folds.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the seeds or repeats.")] = None,
    metric: Annotated[
        Metric, typer.Option(metavar="METRIC", help=f"What ranks the models: {', '.join(Metric)}.")
    ] = Metric.accuracy,
    margin: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="Test that each is less than so many points (hundredths) worse than the first file."
        ),
    ] = None,
    common: Annotated[bool, typer.Option("--common", help="Judge the items that all files have.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="Write a page with tables and figures.")] = None,
) -> None:
    """Say which of several models is better, by how much, and how sure that is, from predictions of any tool."""
    from daamctl.stages import judge

    if html is not None:
        check_output(html, "a page of judge", judge.is_page, option="--html")
    columns = {"item": item, "label": label, "group": group, "fold": fold, "seed": seed, "model": model}
    verdict, read = judge.run(
        files,
        columns={**columns, "prediction": prediction, "correct": correct},
        items=items,
        metric=metric.value,
        margin=None if margin is None else margin / 100,
        common=common,
    )
    if html is not None:
        judge.write_page(verdict, read, html)
    if run.json:
        import json

        typer.echo(json.dumps(verdict.as_json(), indent=2))
        return
    from daamctl.reporting.judge import ranking, sentences

    if len(read) > 2:
        table = ranking(verdict)
        print_wide(table.columns, [[str(cell) for cell in row] for row in table.rows], keys=1)
    for line in sentences(verdict):
        show_line(escaped(line))
    for note in verdict.notes:
        show_line(f"[dim]- {escaped(note)}[/]")
    if html is not None:
        show_path(html)
