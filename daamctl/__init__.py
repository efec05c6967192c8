"""daamctl: probe frozen encoders layer by layer, and check Density Adaptive Attention honestly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from daamctl.store.version import __version__ as __version__

if TYPE_CHECKING:
    import polars as pl

    from daamctl.artifacts.predictions import Verdict


def results(run: str, table: str = "figures", *, root: Path | str | None = None) -> pl.DataFrame:
    """Read a table of the results of a run, e.g. `daamctl.results("emodb", "comparisons")`.

    Args:
        run: name of a pipeline or an ad-hoc run.
        table: figures, scores, comparisons, confusion, speakers, entities, history, layers, audit or protocols;
            columns: docs/reports.md.
        root: project folder; None: the one around the working directory.

    Raises:
        daamctl.errors.DaamctlError: there is no such run or table, the stage that writes it has not run, or a file is
            damaged.
    """
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root
    from daamctl.evaluation.scores import read_scores

    layout, _ = find_run(find_root() if root is None else Path(root), run, reconstructs=True)
    return read_scores(layout, table)


def protocols(run: str, *names: str, root: Path | str | None = None) -> pl.DataFrame:
    """Test closed-form probes of a run's vectors under protocols, e.g. `daamctl.protocols("emodb")`.

    Args:
        run: name of a pipeline or an ad-hoc run.
        names: protocols (docs/protocols.md) beside the first one; none: all.
        root: project folder; None: the one around the working directory.

    Raises:
        daamctl.errors.DaamctlError: there is no such run or protocol, or there are no vectors.
    """
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root
    from daamctl.stages import protocols

    layout, config = find_run(find_root() if root is None else Path(root), run)
    protocols.run(layout, config, names=names)
    return results(run, "protocols", root=layout.root)


def judge(
    *models: Path | str | pl.DataFrame | Mapping[str, Path | str | pl.DataFrame],
    metric: str = "accuracy",
    margin: float | None = None,
    items: Path | str | None = None,
    common: bool = False,
    **columns: str | Sequence[str] | None,
) -> Verdict:
    """Compare models by their predictions on the same items, e.g. `daamctl.judge("a.csv", "b.csv", group="speaker")`.

    Args:
        models: files (docs/judge.md), or tables of polars, pandas or pyarrow; or a mapping of names to them; or one
            with the predictions of several models.
        metric: what ranks the models: accuracy, balanced_accuracy, macro_f1 or weighted_f1; of tags entity_f1, of
            items with several labels multilabel_f1 or multilabel_macro_f1, of texts word_accuracy or
            character_accuracy, of numbers ccc, pearson, spearman or r2, of scores of two classes auroc,
            average_precision or eer_accuracy, of counted errors counted_accuracy, of any scores mean, of losses
            mean_loss.
        margin: test that each model is less than this fraction of the metric worse than the first; 0.01 is a point.
        items: file with the labels and groups of the items.
        common: judge the items that all models have, if they differ.
        columns: names of columns that are not recognised: item, label, prediction, correct, group, fold or seed; in one
            table of several models, model="system", or prediction=["svm", "forest"].

    Raises:
        daamctl.errors.DaamctlError: a file cannot be read, or the items differ.
    """
    from dataclasses import replace

    from daamctl.reporting.judge import sentences
    from daamctl.stages import judge

    where = None if items is None else Path(items)
    verdict, _ = judge.run(models, columns=columns, items=where, metric=metric, margin=margin, common=common)
    return replace(verdict, sentences=sentences(verdict))
