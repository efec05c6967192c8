"""Tables for `dvc plots`."""

from __future__ import annotations

import polars as pl

from daamctl.evaluation.scores import csv_of


def test_class_names_cannot_be_formulas() -> None:
    table = pl.DataFrame({"method": ["daam-v1", None], "actual": ["=HYPERLINK(1)", "sad"], "share": [-0.5, 1.0]})
    assert csv_of(table).splitlines() == ["method,actual,share", "daam-v1,'=HYPERLINK(1),-0.5", ",sad,1.0"]
