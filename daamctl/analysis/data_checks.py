"""What may be wrong with a set of embeddings before anything is trained: leaks, duplicates, classes, group sizes.

Every check gives exactly one finding. A warning makes figures on these folds doubtful, a note should be known to who
reads them. Groups are the folds: each is the test group once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

Severity = Literal["ok", "note", "warning"]

NUM_CHECKS = 9
NEAR_COSINE = 0.999
"""Mean-of-layers vectors above this cosine are near duplicates."""
FEW_UTTERANCES, SOME_UTTERANCES = 20, 100
"""In a smaller group one utterance moves its accuracy by more than 5 points (a warning), or 1 point (a note)."""
IMBALANCE = 1.5
"""A most frequent class above this many times the even share is noted."""
MAX_EXAMPLES = 5
BLOCK_ROWS = 1024
"""Clips that are compared with all others at once."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        check: its name.
        severity: ok, note or warning.
        text: one sentence.
        numbers: what was counted.
        examples: ids of the first cases.
    """

    check: str
    severity: Severity
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """Clip pairs of different utterances that are near duplicates, but not equal.

    Args:
        across: pairs whose groups differ.
        mislabelled: pairs whose labels differ.
        across_examples: ids of the first of them.
        mislabelled_examples: ids of the first of them.
    """

    across: int
    mislabelled: int
    across_examples: tuple[str, ...]
    mislabelled_examples: tuple[str, ...]


def check_data(
    clips: pl.DataFrame,
    x: NDArray[np.floating[Any]],
    classes: Sequence[str],
    *,
    on_check: Callable[[], None] = lambda: None,
) -> list[Finding]:
    """Run every check.

    Args:
        clips: N rows with clip_id, utterance_id, label, speaker and group.
        x: (N, L, D), stored number format.
        classes: the declared class names.
        on_check: called `NUM_CHECKS` times.
    """
    findings = []
    for finding in _checks(clips, x, classes):
        findings.append(finding)
        on_check()
    return findings


def _checks(clips: pl.DataFrame, x: NDArray[np.floating[Any]], classes: Sequence[str]) -> Iterator[Finding]:
    yield check_values(clips, x)
    yield check_group_sizes(clips)
    yield check_class_balance(clips, classes)
    yield check_absent_classes(clips, classes)
    yield check_shared(clips, "speaker")
    yield check_shared(clips, "utterance_id")
    content = content_ids(x)
    yield check_duplicates(clips, content)
    pairs = near_pairs(clips, x, content)
    yield check_near_duplicates(pairs)
    yield check_duplicate_labels(clips, content, pairs)


def check_values(clips: pl.DataFrame, x: NDArray[np.floating[Any]]) -> Finding:
    """Values that are not finite, in float16 mostly overflows."""
    bad = np.array([not np.isfinite(row).all() for row in x], dtype=bool)
    numbers = {"clips": int(bad.sum())}
    if not bad.any():
        return Finding("values", "ok", "All values of the embeddings are finite.", numbers)
    text = f"Values that are not finite stand in {_clips(bad.sum())}: training on them gives no usable numbers."
    return Finding("values", "warning", text, numbers, _first(clips["clip_id"].gather(np.flatnonzero(bad))))


def check_group_sizes(clips: pl.DataFrame) -> Finding:
    """Too few groups, or groups with too few utterances to measure an accuracy on."""
    rows = clips.group_by("group").agg(pl.col("utterance_id").n_unique().alias("size")).sort("size", "group")
    sizes = dict(rows.iter_rows())
    numbers = {"groups": len(sizes), "utterances": {name: sizes[name] for name in sorted(sizes)}}
    name, smallest = next(iter(sizes.items()))
    examples = _first(name for name, size in sizes.items() if size < SOME_UTTERANCES)
    if len(sizes) < 3:
        text = f"There are {_count(len(sizes), 'group')}; a training, a held-out and a test group need three."
        return Finding("group-sizes", "warning", text, numbers, examples)
    text = (
        f"The smallest of {len(sizes)} groups, {name}, holds {_count(smallest, 'utterance')}: "
        f"one of them moves its accuracy by {100 / smallest:.1f} points."
    )
    severity: Severity = "ok"
    if smallest < SOME_UTTERANCES:
        severity = "warning" if smallest < FEW_UTTERANCES else "note"
    return Finding("group-sizes", severity, text, numbers, examples)


def check_class_balance(clips: pl.DataFrame, classes: Sequence[str]) -> Finding:
    """The share of the most frequent class, over all and per group."""
    counts = {name: clips.filter(pl.col("label") == name).height for name in classes}
    name = max(counts, key=lambda one: counts[one])
    share, even = counts[name] / max(clips.height, 1), 1 / len(classes)
    per_group = {
        str(group): max(Counter(rows["label"]).values()) / rows.height
        for (group,), rows in sorted(clips.group_by("group"))
    }
    numbers = {"clips": counts, "most_frequent_share": share, "most_frequent_share_per_group": per_group}
    text = f"The most frequent of {len(classes)} classes, {name}, has {100 * share:.0f} % of the clips"
    if share <= IMBALANCE * even:
        return Finding("class-balance", "ok", f"{text} (an even share is {100 * even:.0f} %).", numbers)
    text += f", {share / even:.1f} times an even share: read balanced accuracy beside accuracy."
    return Finding("class-balance", "note", text, numbers)


def check_absent_classes(clips: pl.DataFrame, classes: Sequence[str]) -> Finding:
    """Classes that a group lacks."""
    lacking = {}
    for (group,), rows in sorted(clips.group_by("group")):
        absent = sorted(set(classes) - set(rows["label"]))
        if absent:
            lacking[str(group)] = absent
    numbers = {"groups": len(lacking), "absent": lacking}
    if not lacking:
        return Finding("absent-classes", "ok", "Every group holds every class.", numbers)
    total = clips["group"].n_unique()
    text = f"Classes are absent from {len(lacking)} of {_count(total, 'group')}, whose figures leave them out."
    examples = _first(f"{group}: {', '.join(absent)}" for group, absent in lacking.items())
    return Finding("absent-classes", "warning", text, numbers, examples)


def check_shared(clips: pl.DataFrame, column: str) -> Finding:
    """Speakers, or utterances by their clips, that stand in more than one group.

    Args:
        clips: N rows.
        column: speaker or utterance_id.
    """
    what = "speaker" if column == "speaker" else "utterance"
    rows = clips.group_by(column).agg(pl.col("group").n_unique().alias("groups"))
    shared = rows.filter(pl.col("groups") > 1)[column].sort()
    affected = clips.filter(pl.col(column).is_in(shared.implode())).height
    numbers = {f"{what}s": rows.height, "shared": len(shared), "clips": affected}
    if shared.is_empty():
        return Finding(f"{what}s", "ok", f"No {what} stands in two groups.", numbers)
    text = (
        f"More than one group holds {len(shared)} of {_count(rows.height, what)} ({_clips(affected)}): "
        f"a test group holds {what}s that were trained on, so its figures are too high."
    )
    return Finding(f"{what}s", "warning", text, numbers, _first(shared))


def check_duplicates(clips: pl.DataFrame, content: NDArray[np.int64]) -> Finding:
    """Clips of different utterances with exactly equal embeddings.

    Args:
        clips: N rows.
        content: (N,) equal numbers where embeddings are equal.
    """
    sets = _equal_sets(clips, content)
    across = sum(clips["group"].gather(rows).n_unique() > 1 for rows in sets)
    numbers = {"sets": len(sets), "clips": sum(map(len, sets)), "sets_across_groups": across}
    if not sets:
        return Finding("duplicates", "ok", "No two utterances have equal embeddings.", numbers)
    # the sets that leak first
    shown = sorted(sets, key=lambda rows: clips["group"].gather(rows).n_unique() == 1)
    examples = _first(" = ".join(_first(clips["clip_id"].gather(rows))) for rows in shown)
    text = (
        f"{_clips(numbers['clips'])} of different utterances have exactly equal embeddings ({_count(len(sets), 'set')})"
    )
    if not across:
        return Finding("duplicates", "note", f"{text}, all within one group.", numbers, examples)
    text += f", {across} of them across groups: a test group holds recordings that were trained on."
    return Finding("duplicates", "warning", text, numbers, examples)


def check_near_duplicates(pairs: Pairs) -> Finding:
    """Clips of different utterances and groups with almost equal embeddings."""
    numbers = {"pairs": pairs.across, "cosine": NEAR_COSINE}
    if not pairs.across:
        return Finding("near-duplicates", "ok", "No two groups share almost equal embeddings.", numbers)
    text = (
        f"{_count(pairs.across, 'pair')} of clips from different utterances and groups have almost equal embeddings "
        f"(cosine above {NEAR_COSINE}): listen to them, they may be copies of one recording."
    )
    return Finding("near-duplicates", "warning", text, numbers, pairs.across_examples)


def check_duplicate_labels(clips: pl.DataFrame, content: NDArray[np.int64], pairs: Pairs) -> Finding:
    """Equal or almost equal embeddings, or clips of one utterance, with different labels.

    Args:
        clips: N rows.
        content: (N,) equal numbers where embeddings are equal.
        pairs: near duplicates.
    """
    equal = [rows for rows in _equal_sets(clips, content) if clips["label"].gather(rows).n_unique() > 1]
    labels = clips.group_by("utterance_id").agg(pl.col("label").n_unique().alias("labels"))
    split = labels.filter(pl.col("labels") > 1)["utterance_id"].sort()
    numbers = {"sets": len(equal), "near_pairs": pairs.mislabelled, "utterances": len(split)}
    if not any(numbers.values()):
        return Finding("duplicate-labels", "ok", "No copies have different labels.", numbers)
    text = (
        f"Different labels stand on {_count(len(equal), 'set')} of equal embeddings, "
        f"{_count(pairs.mislabelled, 'pair')} of almost equal ones and the clips of {_count(len(split), 'utterance')}: "
        "at most one label of each can be right."
    )
    examples = [" = ".join(_first(clips["clip_id"].gather(rows))) for rows in equal]
    return Finding(
        "duplicate-labels", "warning", text, numbers, _first([*examples, *pairs.mislabelled_examples, *split])
    )


def near_pairs(clips: pl.DataFrame, x: NDArray[np.floating[Any]], content: NDArray[np.int64]) -> Pairs:
    """Find near duplicates: cosine of the mean-of-layers vectors, each feature centred and scaled over all clips.

    Without the scaling, the few features with huge values that large encoders have would make most clips alike.

    Args:
        clips: N rows.
        x: (N, L, D).
        content: (N,) equal numbers where embeddings are equal; such pairs do not count.
    """
    unit = _unit_vectors(x)
    utterance, group, label = (
        np.unique(clips[name].to_numpy(), return_inverse=True)[1] for name in ("utterance_id", "group", "label")
    )
    names = clips["clip_id"]
    counts = {"across": 0, "mislabelled": 0}
    examples: dict[str, list[str]] = {"across": [], "mislabelled": []}
    for start in range(0, len(unit), BLOCK_ROWS):
        above = unit[start : start + BLOCK_ROWS] @ unit[start:].T > NEAR_COSINE
        left, right = (index + start for index in np.nonzero(np.triu(above, 1)))
        kept = (utterance[left] != utterance[right]) & (content[left] != content[right])
        left, right = left[kept], right[kept]
        for what, column in (("across", group), ("mislabelled", label)):
            differ = column[left] != column[right]
            counts[what] += int(differ.sum())
            cases = zip(left[differ], right[differ], strict=True)
            examples[what] += [f"{names[int(i)]} ~ {names[int(j)]}" for i, j in islice(cases, MAX_EXAMPLES)]
    return Pairs(counts["across"], counts["mislabelled"], _first(examples["across"]), _first(examples["mislabelled"]))


def _unit_vectors(x: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Standardised mean-of-layers vectors (N, D) of length 1; what is not finite or does not vary is 0."""
    with np.errstate(invalid="ignore"):  # opposite infinities
        parts = [part.mean(axis=1, dtype=np.float32) for part in np.array_split(x, -(-len(x) // BLOCK_ROWS))]
    mean = np.concatenate(parts)  # (N, D)
    broken = ~np.isfinite(mean).all(axis=1)
    mean[broken] = 0.0
    varies = mean.max(axis=0) > mean.min(axis=0)
    mean -= mean.mean(axis=0)
    mean -= mean.mean(axis=0)  # what rounding left of the mean would count for features that hardly vary
    deviation = mean.std(axis=0)
    mean *= np.where(varies & (deviation > 0), 1.0 / np.where(deviation > 0, deviation, 1.0), 0.0)
    mean[broken] = 0.0  # two of them are not alike
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.asarray(mean / np.where(length > 0, length, 1.0), dtype=np.float32)


def content_ids(x: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Numbers (N,), equal where rows (L, D) are equal byte by byte."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in x]
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], dtype=np.int64)


def _equal_sets(clips: pl.DataFrame, content: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row numbers of every set of equal embeddings that spans utterances, in order."""
    rows = clips.select("utterance_id").with_columns(content=pl.Series(content)).with_row_index("row")
    sets = rows.group_by("content", maintain_order=True).agg("row", pl.col("utterance_id").n_unique().alias("owners"))
    return [np.array(found, dtype=np.int64) for found in sets.filter(pl.col("owners") > 1)["row"].to_list()]


def _first(items: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in islice(items, MAX_EXAMPLES))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _clips(number: int) -> str:
    return _count(int(number), "clip")
