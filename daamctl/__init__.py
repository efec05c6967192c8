"""daamctl: probe frozen encoders layer by layer, and check Density Adaptive Attention honestly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

__version__ = "0.1.0"


def results(run: str, table: str = "figures", *, root: Path | str | None = None) -> pl.DataFrame:
    """Read a table of the results of a run, e.g. `daamctl.results("emodb", "comparisons")`.

    Args:
        run: name of a pipeline or an ad-hoc run.
        table: one of figures, scores, comparisons, confusion, speakers, entities, history, layers and audit
            (docs/reports.md).
        root: project folder; None: the one around the working directory.

    Raises:
        daamctl.errors.DaamctlError: there is no such run or table, the stage that writes it has not run, or a file is
            damaged.
    """
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root
    from daamctl.evaluation.scores import read_scores

    layout, _ = find_run(find_root() if root is None else Path(root), run)
    return read_scores(layout, table)
