"""Checks of a set of embeddings before training: leaks, duplicates, classes, group sizes.

Every check gives exactly one finding. A warning means that results on these folds are doubtful; a note is something
that their readers should know. Groups are the folds: each is the test group once, except in an official split, where
only one is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.splits import is_official, pair_part
from daamctl.artifacts.terms import counted, with_article
from daamctl.data.task import TASKS, Task

Floats = NDArray[np.floating[Any]]
Severity = Literal["ok", "note", "warning"]

SPEECH = TASKS["speech"]
NEAR_COSINE = 0.999
"""Mean-of-layers vectors above this cosine are near duplicates."""
LEAST_FEATURES = 8
"""With fewer, some of many unrelated vectors have such a cosine: with one feature half of all pairs."""
FEW_UTTERANCES, SOME_UTTERANCES = 20, 100
"""In a smaller group one utterance changes its accuracy by more than 5 points (a warning), or 1 point (a note)."""
MANY_CUT = 0.05
"""A larger share of truncated texts is a warning."""
IMBALANCE = 1.5
"""A most frequent class with more than this many times the even share is a note."""
MAX_EXAMPLES = 5
TRAIN_AND_DEV = "train and dev share them, so results on dev are too high."
BLOCK_ROWS = 1024
"""Clips to compare with all others at once."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    severity: Severity
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """Pairs of clips from different utterances that are near duplicates, but not equal.

    Args:
        across: pairs whose groups differ, with ids of the first of them.
        mislabelled: pairs whose labels differ.
    """

    across: int
    mislabelled: int
    across_examples: tuple[str, ...]
    mislabelled_examples: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """A sample of a set that is too large to compare each clip with each.

    Args:
        rows: (n,) row numbers in the set.
        x: (n, L, D) vectors of these rows.
    """

    rows: NDArray[np.int64]
    x: Floats


@dataclass(frozen=True)
class CorpusFacts:
    """Facts that the checks need besides clips and vectors.

    Args:
        lengths: whether the items are texts, whose lengths are checked.
        tested: groups that are tested; None: all.
        content: (N,) numbers that are equal if texts or images are; None: compare embeddings instead.
        sentences: whether it is known what is said.
        max_tokens: longest text that is not truncated, in tokens that are averaged; None: no limit, or no text.
    """

    task: Task
    lengths: bool = False
    tested: Sequence[str] | None = None
    content: NDArray[np.int64] | None = None
    sentences: bool = False
    max_tokens: int | None = None

    @property
    def num_checks(self) -> int:
        """Number of findings."""
        return 9 + self.lengths + self.sentences


def check_data(
    clips: pl.DataFrame,
    x: Floats | StoredVectors,
    known: CorpusFacts,
    *,
    drawn: Sample | None = None,
) -> Iterator[Finding]:
    """Run every check; yields `known.num_checks` findings.

    Args:
        clips: N rows with clip_id, utterance_id, label, speaker and group; texts also have n_frames, their tokens.
        x: (N, L, D), stored number format; vectors on disk are read twice.
        drawn: the sample in which near duplicates are searched; required if `x` is on disk. None: all clips.
    """
    task = known.task.with_sources(clips["utterance_id"], clips["speaker"])
    yield check_values(clips, x, task)
    if known.lengths:
        yield check_lengths(clips, known.max_tokens)
    yield check_group_sizes(clips, known.tested, task)
    yield check_class_balance(clips, task)
    yield check_absent_classes(clips, task.classes)
    yield check_shared(clips, "speaker", task)
    yield check_shared(clips, "utterance_id", task)
    if known.sentences:
        yield check_shared(clips, "sentence", task)
    wholes = task.wholes(clips["clip_id"])
    content = content_ids(x, wholes) if known.content is None else known.content
    yield check_duplicates(clips, content, task, stored=known.content is None)
    unsought = ""
    if (wholes != clips["clip_id"].to_numpy()).any():  # words, which are read with their sentence
        unsought = f"{task.clip}s recur"
    elif x.shape[-1] < LEAST_FEATURES:
        unsought = f"vectors of few features ({x.shape[-1]}) often have almost the same direction"
    if unsought:
        pairs = Pairs(0, 0, (), ())
    elif drawn is not None:
        pairs = near_pairs(clips[drawn.rows], drawn.x, content[drawn.rows])
    else:
        assert isinstance(x, np.ndarray)
        pairs = near_pairs(clips, x, content)
    if unsought:
        text = f"Almost equal {task.clip}s are not looked for, because {unsought}."
        yield Finding("near-duplicates", "ok", text)
    else:
        yield check_near_duplicates(pairs, task, among=None if drawn is None else len(drawn.rows))
    yield check_duplicate_labels(clips, content, pairs, task)


def check_values(clips: pl.DataFrame, x: Floats | StoredVectors, task: Task = SPEECH) -> Finding:
    """Find values that are not finite; in float16 these are mostly overflows."""
    bad = np.array([not np.isfinite(row).all() for row in x], dtype=bool)
    numbers = {"clips": int(bad.sum())}
    if not bad.any():
        return Finding("values", "ok", "All values of the embeddings are finite.", numbers)
    text = f"Values that are not finite occur in {_clips(bad.sum(), task)}: training on them gives no usable numbers."
    return Finding("values", "warning", text, numbers, _first(clips["clip_id"].gather(np.flatnonzero(bad))))


def check_lengths(clips: pl.DataFrame, max_tokens: int | None) -> Finding:
    """Describe the lengths of texts, and find those truncated at the limit of the encoder or `extract.max_tokens`."""
    lengths = clips["n_frames"]
    low, middle, high = (int(value) for value in (lengths.min(), lengths.median(), lengths.max()))  # type: ignore[arg-type]
    cut = pl.Series([False] * clips.height) if max_tokens is None else lengths >= max_tokens
    number = int(cut.sum())
    numbers = {"shortest": low, "median": middle, "longest": high, "limit": max_tokens, "cut": number}
    text = f"Texts have {low} to {high} tokens, half of them at most {middle}"
    if not number:
        return Finding("lengths", "ok", f"{text}; none was truncated.", numbers)
    share = number / clips.height
    text += f"; {counted(number, 'text')} ({100 * share:.1f} %) were truncated at {max_tokens} tokens."
    severity: Severity = "warning" if share > MANY_CUT else "note"
    return Finding("lengths", severity, text, numbers, _first(clips["clip_id"].filter(cut)))


def check_group_sizes(clips: pl.DataFrame, tested: Sequence[str] | None = None, task: Task = SPEECH) -> Finding:
    """Find too few groups, or tested groups with too few utterances to measure an accuracy."""
    rows = clips.group_by("group").agg(pl.col("utterance_id").n_unique().alias("size")).sort("size", "group")
    sizes = dict(rows.iter_rows())
    numbers = {"groups": len(sizes), "utterances": {name: sizes[name] for name in sorted(sizes)}}
    measured = {name: size for name, size in sizes.items() if tested is None or name in tested}
    name, smallest = next(iter(measured.items()))
    examples = _first(name for name, size in measured.items() if size < SOME_UTTERANCES)
    if len(sizes) < 3 and len(measured) == len(sizes):
        text = f"There are {counted(len(sizes), 'group')}; a training, a held-out and a test group need three."
        return Finding("group-sizes", "warning", text, numbers, examples)
    which = f"smallest of {len(sizes)} groups, {name}," if len(measured) > 1 else f"tested group, {name},"
    moved = 100 / smallest
    text = (
        f"The {which} has {counted(smallest, task.item)}: one of them changes its accuracy by "
        f"{moved:.{1 if moved >= 0.1 else 3}f} points."
    )
    severity: Severity = "ok"
    if smallest < SOME_UTTERANCES:
        severity = "warning" if smallest < FEW_UTTERANCES else "note"
    return Finding("group-sizes", severity, text, numbers, examples)


def check_class_balance(clips: pl.DataFrame, task: Task) -> Finding:
    """Find a dominant class: its share of all clips, and per group."""
    found, classes = Counter(clips["label"]), task.classes
    counts = {name: found[name] for name in classes}
    name = max(counts, key=lambda one: counts[one])
    share, even = counts[name] / max(clips.height, 1), 1 / len(classes)
    per_group = {
        str(group): max(Counter(rows["label"]).values()) / rows.height
        for (group,), rows in sorted(clips.group_by("group"))
    }
    numbers = {"clips": counts, "most_frequent_share": share, "most_frequent_share_per_group": per_group}
    text = f"The most frequent of {len(classes)} classes, {name}, has {100 * share:.0f} % of the {task.clip}s"
    if share <= IMBALANCE * even:
        return Finding("class-balance", "ok", f"{text} (an even share is {100 * even:.0f} %).", numbers)
    text += f", {share / even:.1f} times an even share: {task.imbalance}."
    return Finding("class-balance", "note", text, numbers)


def check_absent_classes(clips: pl.DataFrame, classes: Sequence[str]) -> Finding:
    """Find classes that are absent from a group."""
    lacking = {}
    for (group,), rows in sorted(clips.group_by("group")):
        absent = sorted(set(classes) - set(rows["label"]))
        if absent:
            lacking[str(group)] = absent
    numbers = {"groups": len(lacking), "absent": lacking}
    if not lacking:
        return Finding("absent-classes", "ok", "Every group has every class.", numbers)
    total = clips["group"].n_unique()
    text = f"Classes are absent from {len(lacking)} of {counted(total, 'group')}, so their results leave them out."
    examples = _first(f"{group}: {', '.join(absent)}" for group, absent in lacking.items())
    return Finding("absent-classes", "warning", text, numbers, examples)


def check_shared(clips: pl.DataFrame, column: str, task: Task = SPEECH) -> Finding:
    """Find what is in more than one group: speakers, sentences (null: unknown), or utterances with several clips."""
    names = {"speaker": ("speaker", task.source), "sentence": ("sentence", "sentence")}
    what, said = names.get(column, ("utterance", task.item))
    if column == "speaker" and not clips.is_empty() and bool((clips["speaker"] == clips["utterance_id"]).all()):
        text = f"{task.unknown}: whether two groups share {with_article(said)} cannot be checked."
        return Finding("speakers", "note", text, {"speakers": None, "shared": None, "clips": None})
    known = clips.with_columns(group=pair_part(clips["group"], column)).drop_nulls(column)
    rows = known.group_by(column).agg(pl.col("group").n_unique().alias("groups"))
    shared = rows.filter(pl.col("groups") > 1)[column].sort()
    concerned = clips.filter(pl.col(column).is_in(shared.implode()))
    affected = concerned.height
    numbers = {f"{what}s": rows.height, "shared": len(shared), "clips": affected}
    if shared.is_empty():
        return Finding(f"{what}s", "ok", f"No {said} is in two groups.", numbers)
    text = f"Groups share {len(shared)} of {counted(rows.height, said)} ({_clips(affected, task)}): "
    if is_official(clips["group"]) and "test" not in set(concerned["group"]):
        return Finding(f"{what}s", "warning", f"{text}{TRAIN_AND_DEV}", numbers, _first(shared))
    text += f"test groups contain {said}s that were trained on, so their results are too high"
    text += " for new sentences; `daamctl protocols` says by how much." if column == "sentence" else "."
    return Finding(f"{what}s", "warning", text, numbers, _first(shared))


def check_duplicates(
    clips: pl.DataFrame, content: NDArray[np.int64], task: Task = SPEECH, *, stored: bool = True
) -> Finding:
    """Find exactly equal clips of different utterances.

    Args:
        content: (N,) numbers that are equal if embeddings, or the clips themselves, are.
        stored: whether `content` is about embeddings rather than clips.
    """
    alike = "have exactly equal embeddings" if stored else "are equal"
    sets = _equal_sets(clips, content)
    leaking = [parts for rows in sets if len(parts := set(clips["group"].gather(rows))) > 1]
    across = len(leaking)
    numbers = {"sets": len(sets), "clips": sum(map(len, sets)), "sets_across_groups": across}
    if not sets:
        alike = alike.replace("exactly ", "")
        whole = task.original if task.clip == task.item else task.item
        return Finding("duplicates", "ok", f"No two {whole}s {alike}.", numbers)
    # first the sets that leak across groups
    shown = sorted(sets, key=lambda rows: clips["group"].gather(rows).n_unique() == 1)
    examples = _first(" = ".join(_first(clips["clip_id"].gather(rows))) for rows in shown)
    of = f" of different {task.item}s" if task.item != task.clip else ""
    text = f"{_clips(numbers['clips'], task)}{of} {alike} ({counted(len(sets), 'set')})"
    if not across:
        return Finding("duplicates", "note", f"{text}, all within one group.", numbers, examples)
    text += f", {across} of them across groups: "
    if is_official(clips["group"]) and not any("test" in parts for parts in leaking):
        return Finding("duplicates", "warning", f"{text}{TRAIN_AND_DEV}", numbers, examples)
    text += f"test groups contain {task.original}s that were trained on."
    return Finding("duplicates", "warning", text, numbers, examples)


def check_near_duplicates(pairs: Pairs, task: Task = SPEECH, *, among: int | None = None) -> Finding:
    """Find clips of different utterances and groups with almost equal embeddings.

    Args:
        among: number of clips that were compared; None: all.
    """
    numbers = {"pairs": pairs.across, "cosine": NEAR_COSINE, **({} if among is None else {"among_clips": among})}
    where = "" if among is None else f" in a sample of {_clips(among, task)}"
    if not pairs.across:
        return Finding("near-duplicates", "ok", f"No two groups share almost equal embeddings{where}.", numbers)
    of = f"different {task.item}s and" if task.item != task.clip else "different"
    text = (
        f"{counted(pairs.across, 'pair')} of {task.clip}s from {of} groups have almost equal embeddings"
        f"{where} (cosine above {NEAR_COSINE}): {task.examine} them, they may be copies of one {task.original}."
    )
    return Finding("near-duplicates", "warning", text, numbers, pairs.across_examples)


def check_duplicate_labels(
    clips: pl.DataFrame, content: NDArray[np.int64], pairs: Pairs, task: Task = SPEECH
) -> Finding:
    """Find equal or almost equal embeddings, or clips of one utterance, with different labels.

    `content` (N,): numbers that are equal if embeddings, or the clips themselves, are.
    """
    equal = [rows for rows in _equal_sets(clips, content) if clips["label"].gather(rows).n_unique() > 1]
    labels = clips.group_by("utterance_id").agg(pl.col("label").n_unique().alias("labels"))
    split = labels.filter(pl.col("labels") > 1)["utterance_id"].sort()
    numbers = {"sets": len(equal), "near_pairs": pairs.mislabelled, "utterances": len(split)}
    if not any(numbers.values()):
        return Finding("duplicate-labels", "ok", "No copies have different labels.", numbers)
    text = (
        f"Different labels occur on {counted(len(equal), 'set')} of equal {task.clip}s, "
        f"{counted(pairs.mislabelled, 'pair')} of almost equal ones"
        + (f" and the clips of {counted(len(split), 'utterance')}" if task.item != task.clip else "")
        + ": at most one label of each can be right."
    )
    examples = [" = ".join(_first(clips["clip_id"].gather(rows))) for rows in equal]
    return Finding(
        "duplicate-labels", "warning", text, numbers, _first([*examples, *pairs.mislabelled_examples, *split])
    )


def near_pairs(clips: pl.DataFrame, x: Floats, content: NDArray[np.int64]) -> Pairs:
    """Find near duplicates by the cosine of mean-of-layers vectors of x (N, L, D), standardised over all clips.

    Large encoders have a few features with huge values, which would make most clips similar without standardisation.
    Pairs of equal numbers in `content` (N,) do not count.
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


def _unit_vectors(x: Floats) -> NDArray[np.float32]:
    """Standardised mean-of-layers vectors (N, D) of length 1; 0 if not finite or if a feature does not vary."""
    with np.errstate(invalid="ignore"):  # opposite infinities
        parts = [part.mean(axis=1, dtype=np.float32) for part in np.array_split(x, -(-len(x) // BLOCK_ROWS))]
    mean = np.concatenate(parts)  # (N, D)
    broken = ~np.isfinite(mean).all(axis=1)
    mean[broken] = 0.0
    varies = mean.max(axis=0) > mean.min(axis=0)
    mean -= mean.mean(axis=0)
    mean -= mean.mean(axis=0)  # again: the rounding error of the first mean would matter for features that hardly vary
    deviation = mean.std(axis=0)
    mean *= np.where(varies & (deviation > 0), 1.0 / np.where(deviation > 0, deviation, 1.0), 0.0)
    mean[broken] = 0.0  # so that two of them are not similar
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.asarray(mean / np.where(length > 0, length, 1.0), dtype=np.float32)


def content_ids(x: Floats | StoredVectors, wholes: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers (N,) that are equal if rows (L, D) are equal byte by byte, and so is all that they were read with.

    An encoder that reads from left to right gives equal vectors to the first words of sentences that begin alike. These
    are no copies; words of equal sentences are.

    Args:
        wholes: what each row was read with (`Task.wholes`), (N,).
    """
    own = numbered(row.tobytes() for row in x)
    places: list[int] = []
    read: dict[Any, list[int]] = {}  # whole -> contents of its rows, in order
    for whole, number in zip(wholes, own.tolist(), strict=True):
        places.append(len(read.setdefault(whole, [])))
        read[whole].append(number)
    known = {whole: repr(numbers) for whole, numbers in read.items()}
    return numbered(f"{place} {known[whole]}".encode() for place, whole in zip(places, wholes, strict=True))


def text_ids(texts: Iterable[str]) -> NDArray[np.int64]:
    """Numbers (N,) that are equal if texts are equal up to case and white space."""
    return numbered(" ".join(text.casefold().split()).encode() for text in texts)


def numbered(contents: Iterable[bytes]) -> NDArray[np.int64]:
    """Numbers (N,) that are equal if contents are."""
    digests = (hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], dtype=np.int64)


def _equal_sets(clips: pl.DataFrame, content: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Row numbers of every set of equal embeddings from several utterances, in order."""
    rows = clips.select("utterance_id").with_columns(content=pl.Series(content)).with_row_index("row")
    sets = rows.group_by("content", maintain_order=True).agg("row", pl.col("utterance_id").n_unique().alias("owners"))
    return [np.array(found, dtype=np.int64) for found in sets.filter(pl.col("owners") > 1)["row"].to_list()]


def _first(items: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in islice(items, MAX_EXAMPLES))


def _clips(number: int, task: Task) -> str:
    return counted(int(number), task.clip)
