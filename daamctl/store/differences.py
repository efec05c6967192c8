"""What differs between two records or two tables, by the name of every value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import polars as pl

TOLERANCE = 1e-9
"""Relative; the order of a sum changes the last digits."""


class Difference(NamedTuple):
    """Two values that differ, None if there is none, and the names of what they are in."""

    place: str
    first: Any
    second: Any


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return result


def differences(first: Any, second: Any, *, place: str, tolerance: float = TOLERANCE) -> Iterator[Difference]:
    """Everything in which two trees of dictionaries, lists, texts and numbers differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        pairs = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    elif isinstance(first, list) and isinstance(second, list):
        pairs = dict(enumerate(zip_longest(first, second)))
    else:
        same = first == second
        if isinstance(first, float | int) and isinstance(second, float | int):
            same = math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
            same = same or (math.isnan(first) and math.isnan(second))
        if not same:
            yield Difference(place, first, second)
        return
    for name, (one, other) in pairs.items():
        inner = ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)
        yield from differences(one, other, place=f"{place}.{inner}", tolerance=tolerance)


def by_row(table: pl.DataFrame, like: pl.DataFrame | None = None) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Leading values of a row -> the row. They are as few as tell all rows of `like` apart, else number the row.

    Args:
        like: None: this table.
    """
    like = table if like is None else like
    names: list[str] = []
    for name, kind in like.schema.items():
        if not (kind.is_float() or kind.is_nested()):
            names.append(name)
        if names and like.select(names).is_unique().all():
            break
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, row in enumerate(table.iter_rows(named=True), 1):
        key = tuple(row[name] for name in names if row.get(name) is not None)
        rows[key if key and key not in rows else (*key, f"row {number}")] = row
    return rows
