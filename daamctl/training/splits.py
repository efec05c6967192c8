"""Folds: which groups train, select and test."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from daamctl.errors import TrainingError


@dataclass(frozen=True)
class Split:
    """Rows of one fold.

    Args:
        fold: 1-based.
        num_folds: number of groups.
        test_group: group `fold` in natural order.
        dev_group: the group after it, cyclically, or None.
        train: (n,) row numbers.
        dev: (n,) row numbers, empty without a dev group.
        test: (n,) row numbers.
    """

    fold: int
    num_folds: int
    test_group: str
    dev_group: str | None
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def fold_groups(groups: pl.Series) -> list[str]:
    """Group names in natural order (group2 before group10); fold k tests the k-th."""
    return sorted(
        groups.unique().to_list(), key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)]
    )


def make_split(clips: pl.DataFrame, fold: int, *, dev_group: bool) -> Split:
    """Split clips for one fold.

    Args:
        clips: rows with `group` and `label`.
        fold: 1-based number of the test group.
        dev_group: hold out the next group for selecting the epoch.

    Raises:
        TrainingError: no such fold, too few groups, or a part with fewer than two classes.
    """
    names = fold_groups(clips["group"])
    needed = 3 if dev_group else 2
    if len(names) < needed:
        raise TrainingError(
            f"{len(names)} group(s) ({', '.join(names)}) cannot be split into train{', dev' if dev_group else ''} and "
            f"test; at least {needed} are needed",
            fix="give the corpus more groups, by a group column or download.num_groups, each with its own speakers"
            + ("; with two groups, use train.selection=last" if dev_group else ""),
        )
    if not 1 <= fold <= len(names):
        raise TrainingError(f"fold must be 1 to {len(names)} or 'all', met {fold}")
    test, dev = names[fold - 1], names[fold % len(names)] if dev_group else None
    group = clips["group"].to_numpy()
    parts = {
        "test": np.flatnonzero(group == test),
        "dev": np.flatnonzero(group == dev) if dev is not None else np.empty(0, np.int64),
        "train": np.flatnonzero((group != test) & (group != dev)),
    }
    labels = clips["label"]
    for part, rows in parts.items():
        if part == "dev" and dev is None:
            continue
        classes = labels[rows].unique().to_list()
        if len(classes) < 2:
            where = {"test": test, "dev": dev}.get(part) or "the other groups"
            raise TrainingError(
                f"fold {fold}: the {part} part ({where}) holds only class '{classes[0]}'; "
                "at least two classes are needed",
                fix="regroup the corpus (group column or download.num_groups): every group needs several classes",
            )
    return Split(fold, len(names), test, dev, parts["train"], parts["dev"], parts["test"])
