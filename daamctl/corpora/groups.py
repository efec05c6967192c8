"""Groups (the units of the folds) for corpora that have none, or whose own are to be pooled.

Groups never share a speaker. As in scikit-learn's StratifiedGroupKFold, the largest speakers are placed first, each
where it fits best; unlike there, nothing depends on the order of the rows.
"""

from __future__ import annotations

import hashlib

import polars as pl


def assign_groups(rows: pl.DataFrame, num_groups: int, *, stratify: bool = False) -> pl.DataFrame:
    """Put every speaker into one of `group1` ... so that the groups are about equal.

    A speaker goes where the sum over classes and groups of (share of the class in the group)^2 grows least, of equally
    good groups into the smallest. With one speaker per row, this deals out the rows of every class in turn.

    Args:
        rows: rows with `speaker`, and with `label` to stratify. With fewer speakers than groups, every speaker is one.
        num_groups: how many groups to form.
        stratify: equal shares of every class, speakers of one size and class in a pseudo-random order (a hash of their
            names); else only equal sizes, speakers of equal size by name.

    Returns:
        The rows with another `group`.
    """
    label = pl.col("label") if stratify else pl.lit("")
    counts = rows.group_by("speaker", label.alias("label")).len().sort("speaker", "label")
    total: dict[str, int] = {}
    members: dict[str, dict[str, int]] = {}
    for speaker, name, count in counts.iter_rows():
        members.setdefault(speaker, {})[name] = count
        total[name] = total.get(name, 0) + count
    held: list[dict[str, int]] = [{} for _ in range(min(num_groups, len(members)))]
    sizes = [0] * len(held)
    groups = {}
    # class by class among equally large speakers, so that the remainders of the classes go to different groups
    order = sorted(members, key=lambda name: (-sum(members[name].values()), [*members[name]], _rank(name, stratify)))
    for speaker in order:
        own = members[speaker]
        growth = [sum(n * (2 * has.get(name, 0) + n) / total[name] ** 2 for name, n in own.items()) for has in held]
        best = min(range(len(held)), key=lambda index: (growth[index], sizes[index]))
        for name, n in own.items():
            held[best][name] = held[best].get(name, 0) + n
        sizes[best] += sum(own.values())
        groups[speaker] = f"group{best + 1}"
    return rows.with_columns(group=pl.col("speaker").replace_strict(groups, return_dtype=pl.String))


def _rank(name: str, stratify: bool) -> str:
    return hashlib.sha256(name.encode()).hexdigest() if stratify else name
