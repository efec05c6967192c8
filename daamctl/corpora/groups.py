"""Form groups (the units of the folds) for corpora without groups, or with `download.folds: stratified`.

Groups never share a speaker. As in scikit-learn's StratifiedGroupKFold, speakers with the most rows are assigned first,
each to the group that it fits best. Unlike there, the result does not depend on the order of the rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping

import polars as pl

from daamctl.artifacts.splits import PAIR, fold_groups, is_official
from daamctl.artifacts.utterances import SENTENCE

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("dev", "devel", "development", "val", "valid", "validation"), "dev"),
}
"""Names of the parts of an official split -> the name of the group."""
IN_NAME = re.compile(rf"(?<![^-_ .])({'|'.join(PARTS)})(?![^-_ .])")
BETWEEN_WORDS = re.compile(r"[-_ ./]+|(?<=\d)(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])")
"""Where words of a name end, as in dev-clean, C50train and TestSet, but not in contest."""

EVEN = 1.25
"""Groups are even if the largest has at most this many times the mean."""


def part_of(name: str, words: Mapping[str, str] = PARTS) -> str | None:
    """The part that a name is for: by its last word, as cv-valid-train, else by the only word for one, as dev-clean."""
    found = [words.get(word.lower()) for word in BETWEEN_WORDS.split(name)]
    return found[-1] or (next(filter(None, found)) if len({*found} - {None}) == 1 else None)


def parts_of(names: Collection[str]) -> dict[str, str]:
    """Name -> its part, if each is named for one, and they are of several parts; else empty.

    What is named for an evaluation is the test part, or the dev part beside another test part.
    """
    evaluation = "dev" if "test" in map(part_of, names) else "test"
    words = PARTS | dict.fromkeys(("eval", "evaluation"), evaluation)
    found = {name: part for name in names if (part := part_of(name, words))}
    return found if len(found) == len(names) and len({*found.values()}) > 1 else {}


def part_and_rest(name: str) -> tuple[str, str] | None:
    """The part that a name is for, see `part_of`, and the rest of it in small letters; None: it is for none."""
    part = part_of(name)
    return None if part is None else (part, IN_NAME.sub("", name.lower()))


def official_groups(rows: pl.DataFrame) -> pl.DataFrame:
    """Rename the groups of an official split to the names that the folds use; other groups stay as they are."""
    parts = {PARTS.get(name.lower()) for name in rows["group"].unique().drop_nulls()}
    if None in parts or not {"train", "test"} <= parts:
        return rows
    return rows.with_columns(pl.col("group").str.to_lowercase().replace_strict(PARTS))


def with_test_part(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Rows without `group` if it says nothing; where only train and dev are there, the latter becomes the test part.

    It says nothing if it is the same for all items, or not given for some. Numbers of folds become texts. If each group
    is named for a part, one of them for training, those with longer names, such as validation_matched, get its name.

    Returns:
        The rows, and which names were changed.
    """
    if "group" not in rows.columns:
        return rows, []
    rows = rows.with_columns(pl.col("group").cast(pl.String))
    names = rows["group"].fill_null("").unique().sort()
    named = parts_of(names)
    parts = {name: PARTS.get(name.lower(), name) for name in names} | named
    found = {*parts.values()}
    if "" in found or len(found) == 1:
        return rows.drop("group"), []
    new = {name: part for name, part in named.items() if "train" in found and name.lower() not in PARTS}
    read_as = ", ".join(f"{name} = {part}" for name, part in new.items())
    told = [f"read as parts of an official split: {read_as}"] if new else []
    if found == {"train", "dev"}:
        new |= {name: "test" for name, part in parts.items() if part == "dev"}
        told.append("no test part with labels, so the validation part is the test part")
    return rows.with_columns(pl.col("group").replace(new)), told


def assign_groups(
    rows: pl.DataFrame, num_groups: int, *, stratify: bool = False, unit: str = "speaker"
) -> pl.DataFrame:
    """Assign every speaker to one of `group1` ... so that the groups are about equal, in a new column `group`.

    A speaker is assigned to the group that increases the sum over classes and groups of (share of the class in the
    group)^2 least; of equally good groups, to the smallest. With one speaker per row, the rows of every class are
    dealt out in turn. With fewer speakers than groups, every speaker is a group.

    Args:
        stratify: balance every class, and take speakers of the same size and classes in a pseudo-random order (by a
            hash of their names). Otherwise balance only the sizes, and take speakers of equal size by name.
        unit: the column that groups never share.
    """
    label = pl.col("label") if stratify else pl.lit("")
    counts = rows.group_by(unit, label.alias("label")).len().sort(unit, "label")
    total: dict[str, int] = {}
    members: dict[str, dict[str, int]] = {}
    for speaker, name, count in counts.iter_rows():
        members.setdefault(speaker, {})[name] = count
        total[name] = total.get(name, 0) + count
    contents: list[dict[str, int]] = [{} for _ in range(min(num_groups, len(members)))]  # class -> rows, per group
    sizes = [0] * len(contents)

    def growth(own: dict[str, int], group: int) -> float:
        """Increase of the sum of squared shares if a speaker with these rows joins a group."""
        pairs = [(total[name], contents[group].get(name, 0), count) for name, count in own.items()]
        return sum(count * (2 * present + count) / whole**2 for whole, present, count in pairs)

    def rank(name: str) -> str:
        """Sort key among speakers of equal size."""
        return hashlib.sha256(name.encode()).hexdigest() if stratify else name

    groups = {}
    # class by class among equally large speakers, so that the remainders of the classes go to different groups
    order = sorted(members, key=lambda name: (-sum(members[name].values()), [*members[name]], rank(name)))
    for speaker in order:
        own = members[speaker]
        best = min(range(len(contents)), key=lambda group: (growth(own, group), sizes[group]))
        for name, count in own.items():
            contents[best][name] = contents[best].get(name, 0) + count
        sizes[best] += sum(own.values())
        groups[speaker] = f"group{best + 1}"
    return rows.with_columns(group=pl.col(unit).replace_strict(groups, return_dtype=pl.String))


def cross_groups(rows: pl.DataFrame, num_groups: int, *, stratify: bool = False) -> pl.DataFrame:
    """Cross groups of speakers with `num_groups` groups of sentences; the names tell `artifacts.splits` so.

    The groups of speakers are those of the rows if they share no speaker and are no official split, else new ones.
    """
    if rows["group"].null_count() or is_official(rows["group"]) or shared(rows):
        rows = assign_groups(rows, num_groups, stratify=stratify)
    order = {name: number for number, name in enumerate(fold_groups(rows["group"]), 1)}
    speakers = rows["group"].replace_strict(order, return_dtype=pl.String)
    sentences = assign_groups(rows, num_groups, stratify=stratify, unit=SENTENCE)["group"].str.strip_prefix("group")
    return rows.with_columns(pl.format(PAIR, speakers, sentences).alias("group"))


def shared(rows: pl.DataFrame, unit: str = "speaker") -> list[str]:
    """Speakers, or values of another column, that are in more than one group, sorted."""
    counts = rows.group_by(unit).agg(pl.col("group").n_unique())
    return counts.filter(pl.col("group") > 1)[unit].sort().to_list()


def unevenness(rows: pl.DataFrame) -> float:
    """Size of the largest group in units of the mean size: 1 if all groups are equal."""
    sizes: list[int] = rows.group_by("group").len()["len"].to_list()
    return max(sizes) * len(sizes) / sum(sizes)


def even_number(rows: pl.DataFrame, num_groups: int, *, stratify: bool = False) -> int | None:
    """The number of groups nearest to `num_groups`, at least 3 and at most twice it, that gives even groups.

    The larger one of two equally near ones; None if no number gives even groups.
    """
    most = min(rows["speaker"].n_unique(), 2 * num_groups)
    for number in sorted(range(3, most + 1), key=lambda number: (abs(number - num_groups), -number)):
        if unevenness(assign_groups(rows, number, stratify=stratify)) <= EVEN:
            return number
    return None


def have_classes(rows: pl.DataFrame, num_groups: int, *, stratify: bool = False) -> bool:
    """Whether each of the groups that `assign_groups` forms has items of several classes."""
    groups = assign_groups(rows, num_groups, stratify=stratify).group_by("group").agg(pl.col("label").n_unique())
    return bool((groups["label"] > 1).all())
