"""`daamctl show`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli.options import AfterPipeline, Run
from daamctl.cli.terminal import escaped, print_table, print_wide, show_line

if TYPE_CHECKING:
    from daamctl.artifacts.evaluation import Evaluation
    from daamctl.artifacts.layout import Layout
    from daamctl.artifacts.reconstruction import ArmScores
    from daamctl.artifacts.scores import Compared
    from daamctl.config import Config

PLAIN_WIDTH = 200
CORRECTED = "p is corrected for the number of comparisons (Holm), intervals are not."
TABLE_NAMES = (
    "figures", "scores", "comparisons", "confusion", "speakers", "entities", "history", "layers", "audit", "protocols",
)  # fmt: skip


def command(
    run: Run,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help=f"One of {', '.join(TABLE_NAMES)}. Default: a summary.",
            autocompletion=lambda incomplete: [name for name in TABLE_NAMES if name.startswith(incomplete)],
        ),
        AfterPipeline(lambda word: word in TABLE_NAMES),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
) -> None:
    """Print the results of an evaluation: each method, its interval, its difference from the reference, and a verdict.

    RUN is PIPELINE, or PIPELINE/METHOD for one method beside the reference. With TABLE, print a table of all figures.
    If a pipeline reconstructs images, its methods are blocks.
    """
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root
    from daamctl.errors import ConfigError

    if csv and run.json:
        raise ConfigError("a table is printed in one form, not as CSV and as JSON", fix="leave out --csv or --json")
    name, _, method = str(run.pipeline).partition("/")
    layout, config = find_run(find_root(), name, reconstructs=True)
    if table is not None or csv or run.json:
        form = "csv" if csv else "json" if run.json else "text"
        show_table(layout, table or "figures", method=method or None, form=form)
    else:
        show_results(layout, config, method=method or None)


def show_table(layout: Layout, table: str, *, method: str | None = None, form: str = "text") -> None:
    """Print a table of a run.

    Args:
        table: one of `daamctl.artifacts.scores.TABLES`.
        method: only its rows; of comparisons, those with it on either side. None: all.
        form: text, csv or json.

    Raises:
        UnknownNameError: there is no such table.
        ArtifactError: the stage that writes it has not run, or a file is damaged.
    """
    import polars as pl

    from daamctl.errors import ArtifactError
    from daamctl.evaluation.scores import csv_of, read_scores

    rows = read_scores(layout, table)
    if method is not None:
        # a table of pairs has no column `method`
        sides = [name for name in ("method", "first", "second") if name in rows.columns]
        rows = rows.filter(pl.any_horizontal(pl.col(sides) == method))
    if form == "csv":
        typer.echo(csv_of(rows), nl=False)
    elif form == "json":
        typer.echo(rows.write_json())
    elif rows.is_empty():
        of, filled = f" of {method}" if method else "", []
        for name in TABLE_NAMES:
            with suppress(ArtifactError):
                filled += [] if read_scores(layout, name).is_empty() else [name]
        show_line(escaped(f"'{layout.run_name}' has no {table}{of}; tables with rows: {', '.join(filled)}"))
    else:
        cells = [
            # adding 0.0 turns -0.0 into 0.0
            ["–" if one is None else f"{one + 0.0:.4g}" if isinstance(one, float) else str(one) for one in row]
            for row in rows.iter_rows()
        ]
        numeric = [index for index, kind in enumerate(rows.dtypes) if kind.is_numeric()]
        keys = min(numeric, default=1)
        print_wide(rows.columns, cells, width=PLAIN_WIDTH, keys=keys, right=numeric)


def show_results(layout: Layout, config: Config | None = None, *, method: str | None = None) -> None:
    """Print the results of a run.

    Args:
        config: the current settings, to say whether the evaluation is of the folds that are there; None: it was just
            made, so only its files are read.
        method: the method to print beside the reference; None: all.

    Raises:
        ArtifactError: there is no evaluation, or it is damaged.
        UnknownNameError: the method was not evaluated.
    """
    from daamctl.artifacts.evaluation import read_evaluation
    from daamctl.artifacts.reconstruction import read_arm_scores
    from daamctl.artifacts.terms import listed
    from daamctl.errors import ArtifactError, UnknownNameError
    from daamctl.evaluation.consistency import other_settings, scored_folds
    from daamctl.planning.repair import repair_of
    from daamctl.reporting.answers import fusing
    from daamctl.reporting.document import Number, percent, points
    from daamctl.reporting.sentences import outside
    from daamctl.reporting.verdict import against, labelled, order, warnings

    if layout.task == "reconstruct":
        _show_arms(read_arm_scores(layout.stage("score")), method)
        return
    evaluation = read_evaluation(layout.stage("evaluate"))
    if method is not None and method not in evaluation.methods:
        raise UnknownNameError("evaluated method", method, evaluation.methods)
    # from here on, methods are known by their labels
    only = None if method is None else evaluation.methods[method].label
    stale: list[str] = []
    if config is not None:
        try:
            scored, stale = scored_folds(layout, config, evaluation)
            stale += other_settings(layout, config, evaluation, scored)
        except ArtifactError as error:  # of a fold or the embeddings, which the results no longer need
            stale = [f"{error.message}; {repair_of(error.path or layout.data, layout)}"]
    evaluation = labelled(evaluation)
    reference, metric = evaluation.comparison.reference, evaluation.task.primary
    gaps = {**against(evaluation), **({} if evaluation.by_accuracy else against(evaluation, metric))}
    # methods that lack folds for the primary figure come last
    names = [*evaluation.ranked, *(name for name in order(evaluation) if name not in evaluation.ranked)]
    cells, figures = [], []
    figure = "accuracy" if evaluation.by_accuracy else evaluation.task.metric
    head = ("method", f"{figure} % [95 %]", f"minus {reference} [95 %]", "p", "verdict")
    for name in names:
        # one method alone would have nothing to be compared with
        if only not in (None, name) and name != reference:
            continue
        shown, gap = evaluation.primary(name) or evaluation.accuracy(name), gaps.get(name)
        text = "" if gap is None else points(gap.difference)
        text += f" [{points(gap.low)}, {points(gap.high)}]" if gap and gap.low is not None else ""
        level = percent(shown.mean)
        level += "" if shown.low is None else f" [{percent(shown.low)}, {percent(shown.high)}]"
        p = "" if gap is None or gap.p_holm is None else str(Number(gap.p_holm, "p"))
        cells.append((name, level, text, p, _verdict(evaluation, name, gap)))
        figures.append(shown)
    show_line(f"[bold]{escaped(evaluation.run)}[/]")
    print_table(head, cells, width=PLAIN_WIDTH, bold=True)
    over = ""
    if evaluation.by_accuracy:
        folds = f" and means over folds; intervals and differences are over all {evaluation.item}s"
        over = f"Accuracies are per {evaluation.item}{folds if evaluation.num_folds > 1 else ''}. "
    show_line(f"{over}Differences are in points. {CORRECTED}")
    if note := outside(figures, evaluation.item):
        show_line(note)
    if only is None and evaluation.by_accuracy and (tiers := evaluation.scores.tiers(metric)):
        told = (f"{at}. {listed([one for one in tiers if tiers[one] == at])}" for at in sorted({*tiers.values()}))
        show_line(f"Tiers, in each the methods that may be the best of those left: {'; '.join(told)}.")
    for text in (*evaluation.leaks, *warnings(evaluation, stale)) if only is None else stale:
        show_line(f"[yellow]{escaped(text)}[/]")
    if only is None:
        show_line(escaped(fusing(evaluation)))


def _show_arms(found: ArmScores, arm: str | None) -> None:
    """Print what blocks do to reconstructions, with their differences in the score that ranks."""
    from daamctl.artifacts.reconstruction import METRICS
    from daamctl.errors import UnknownNameError
    from daamctl.reporting.document import Number
    from daamctl.reporting.reconstruction import FIRST, WITH_INTERVAL, gaps, judged, verdict

    if arm is not None and arm not in found.arms:
        raise UnknownNameError("scored block", arm, found.arms)
    rows, cells = {row.first: row for row in gaps(found, FIRST)}, []
    for name in found.arms if arm is None else dict.fromkeys((arm, found.reference)):
        figures = [
            str(Number(found.scores.figure(name, one).pooled, "plain" if one in WITH_INTERVAL else "fine"))
            for one in METRICS
        ]
        row = rows.get(name)
        gap = row and f"{Number(row.difference, 'signed')} [{Number(row.low, 'signed')}, {Number(row.high, 'signed')}]"
        p = "" if row is None else str(Number(row.p_holm, "p"))
        cells.append((name, *figures, gap or "", p, "reference" if row is None else judged(row)))
    show_line(f"[bold]{escaped(found.run)}[/]")
    labels = [label for label, _ in METRICS.values()]
    head = ("block", *labels, f"minus {found.reference} (dB PSNR) [95 %]", "p", "verdict")
    print_table(head, cells, width=PLAIN_WIDTH, bold=True)
    show_line(CORRECTED)
    if arm is None:
        for sentence in verdict(found):
            show_line(escaped(sentence.replace("`", "")))


def _verdict(evaluation: Evaluation, name: str, gap: Compared | None) -> str:
    """What the corrected test says about a method; whoever is badly trained, on either side, puts it in doubt."""
    from daamctl.reporting.verdict import doubtful

    reference, family = evaluation.comparison.reference, evaluation.comparison.family
    if name == reference:
        return "reference"
    if gap is None or gap.p_holm is None or family is None:
        return "not tested"
    words = ("better" if gap.difference > 0 else "worse") if gap.p_holm <= family.alpha else "no difference shown"
    doubt = "; training may explain it" if doubtful(evaluation, [name, str(reference)]) else ""
    return f"{words}{doubt}"
