"""Rules for the rows of a table: an expression that finds the wrong ones, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from daamctl.errors import first_few

Rule = tuple[pl.Expr, str]
"""Rows that break it, and a phrase in which `{places}` are the first of them and `{number}` is how many there are."""
NAMED_AT_MOST = 3


def broken(rows: pl.DataFrame, rules: Iterable[Rule], place: pl.Expr) -> Iterator[str]:
    """The phrases of the rules that a table breaks; `place` names a row, and rows of one name count once."""
    for wrong, phrase in rules:
        places = rows.filter(wrong).select(place.cast(pl.String)).to_series().drop_nulls().unique(maintain_order=True)
        if len(places):
            yield phrase.format(places=first_few(places.to_list(), NAMED_AT_MOST), number=len(places))
