"""Definition of a corpus: how to obtain it, how to read it, and facts for validating what was read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.utterances import Modality
from daamctl.data.task import Task, task_of
from daamctl.errors import CorpusError, first_few

_TYPES = {"index": pl.Int64, "position": pl.Int64, "start_s": pl.Float64, "duration_s": pl.Float64}


def _schema(columns: str) -> dict[str, Any]:
    """Column -> its type; those that `_TYPES` does not name are text."""
    return {name: _TYPES.get(name, pl.String) for name in columns.split()}


PREPARED = _schema("utterance_id path label speaker group start_s duration_s")
"""Columns returned by a speech corpus's `prepare`. A null duration means the whole file; a null group, that groups are
yet to be formed."""
PREPARED_TEXT = _schema("utterance_id text label speaker group")
"""Columns of a text corpus. If the authors are unknown, `speaker` is the utterance_id."""
PREPARED_IMAGE = _schema("utterance_id path index label speaker group")
"""Columns of an image corpus; `index` is the row within a Parquet file of images, null if the file is a single
image."""
PREPARED_TOKENS = _schema("utterance_id sentence position text label speaker group")
"""Columns of a token corpus: one row per word (`text`). `sentence` names its sentence and `position` counts from 0;
utterance_id is `<sentence>-<position, four digits>`. `label` is the tag in BIO. If documents or authors are unknown,
`speaker` is the sentence."""
PREPARED_EMBEDDINGS = _schema("utterance_id clip_id path index label speaker group")
"""Columns of given embeddings: one row per clip; `path` is their file and `index` the row in it."""
SCHEMAS: dict[Modality, dict[str, Any]] = {
    "speech": PREPARED, "text": PREPARED_TEXT, "image": PREPARED_IMAGE, "tokens": PREPARED_TOKENS,
    "embeddings": PREPARED_EMBEDDINGS,
}  # fmt: skip
MAX_LISTED = 20
"""Up to this many classes are listed individually."""
NO_LABEL = ("nan", "null", "n/a", "na", "none", "unknown", "?", "-")
"""Labels that tables often have where none is known, in lower case."""


def modality_of(rows: pl.DataFrame) -> Modality:
    """Modality of a corpus whose own `modality` is None, from the columns of its rows."""
    if set(PREPARED) <= set(rows.columns):
        return "speech"
    return "image" if set(PREPARED_IMAGE) <= set(rows.columns) else "text"


def class_counts(rows: pl.DataFrame, classes: tuple[str, ...]) -> str:
    """Number of rows per class; abbreviated if there are many classes."""
    found = dict(rows.group_by("label").len().iter_rows())
    counts = [found.get(name, 0) for name in classes]
    if len(classes) > MAX_LISTED:
        low, high = min(counts), max(counts)
        return f"{len(classes)} with {low if low == high else f'{low} to {high}'} each"
    return ", ".join(f"{name} {count}" for name, count in zip(classes, counts, strict=True))


def check_labels(rows: pl.DataFrame, what: str, fix: str) -> None:
    """Refuse labels that are no classes: numbers to predict, or the names of the items.

    Args:
        what: where the labels are from.

    Raises:
        CorpusError: there are more labels than one for two items.
    """
    labels = rows["label"].unique().sort().to_list()
    if pl.Series(labels).cast(pl.Float64, strict=False).null_count() == 0:
        fix += "; numbers to predict become classes in a column of your own, e.g. low, middle and high"
    if len(labels) > max(2, len(rows) / 2):  # two classes of one item are refused for their folds, or their number
        raise CorpusError(
            f"{what}: {len(rows)} items have {len(labels)} different labels ({first_few(labels, 3)}); a class needs "
            "several items",
            fix=fix,
        )


def spelled(label: str) -> str:
    """A label without what may be spelled differently: capitals, separators and zeros before a number."""
    return re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"(?!^-\d)[\s_-]+", " ", label)).strip().casefold() or label


def known_labels(labels: pl.Series, named: Iterable[str]) -> tuple[pl.Series, str]:
    """Labels, null where there is none, and what such items lack; `-` is none (SNLI) beside two others without `+`.

    Args:
        named: labels that are classes in any case.
    """
    if labels.dtype.is_float():
        labels = labels.fill_nan(None)
    if labels.dtype == pl.String:
        labels = labels.str.strip_chars().replace("", None)
        classes = {*labels.drop_nulls()}
        if "-" in classes - {*named} and "+" not in classes and len(classes) > 2:
            return labels.replace("-", None), "without a label or with '-'"
    return labels, "without a label"


def label_doubts(labels: Iterable[str]) -> list[str]:
    """Labels that may be one class, or none, one sentence each."""
    labels = sorted(labels)
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(spelled(label), []).append(label)
    told = [
        f"the labels {' and '.join(map(repr, names))} may be one class, spelled differently"
        for names in alike.values()
        if len(names) > 1
    ]
    parts_of = {name: {part.strip() for part in re.split("[;|,]", name)} - {""} for name in labels}
    often = Counter(part for parts in parts_of.values() for part in parts)
    several = [name for name, parts in parts_of.items() if len(parts) > 1 and any(often[part] > 1 for part in parts)]
    if several:
        more = f" (and {len(several) - 1} more)" if several[1:] else ""
        told.append(f"the label '{several[0]}'{more} may be several, and is a class of its own; give each item one")
    # - beside + is a class
    keys = [key for key in alike if key in NO_LABEL and not (key == "-" and "+" in alike)]
    unknown = [name for key in keys for name in alike[key]]
    return told + [f"the label '{name}' may stand for items whose class is not known" for name in unknown]


def counts(names: Iterable[str], *numbers: int) -> dict[str, int]:
    """Expected counts, one per name."""
    return dict(zip(names, numbers, strict=True))


@dataclass(frozen=True)
class Fingerprint:
    """Counts expected from a complete copy of the corpus.

    Args:
        per_class: utterances per class, for every class the corpus has (also those not selected).
        per_speaker: utterances per speaker over the default classes; empty if not known.
        per_group: utterances per group over the default classes; empty if not known.
        balanced: every group has the same number of each default class.
    """

    per_class: Mapping[str, int]
    per_speaker: Mapping[str, int] = field(default_factory=dict)
    per_group: Mapping[str, int] = field(default_factory=dict)
    balanced: bool = False


@dataclass(frozen=True)
class Durations:
    """Distribution of recording lengths, for planning before the corpus is on this machine.

    It is assumed to be log-normal, which fits recordings of single utterances well: for IEMOCAP it predicts 7,817 clips
    of at most 5 s; the release has 7,757.

    Args:
        mean_s: mean, in seconds.
        log_std: standard deviation of the natural logarithm of the seconds.
    """

    mean_s: float
    log_std: float

    def lengths(self, number: int) -> NDArray[np.float64]:
        """Lengths (N,) in seconds, at the quantiles of `number` recordings, in a seeded order."""
        normal = NormalDist(math.log(self.mean_s) - self.log_std**2 / 2, self.log_std)
        quantiles = [normal.inv_cdf((index + 0.5) / number) for index in range(number)]
        return np.asarray(np.random.default_rng(0).permutation(np.exp(quantiles)))


@dataclass(frozen=True)
class Corpus:
    """One corpus: the object that each corpus file defines as `CORPUS`.

    Args:
        licence: terms of use, and where to apply for it.
        classes: default classes, in label order; empty: all classes found, sorted (manifests).
        obtain: generates or downloads it into a folder and returns the root; None: it must be given with --from.
        url: source from which `obtain` downloads; None: it needs no network.
        adopt: converts a copy given with --from to the form that `prepare` reads, in the folder given second or,
            without replacing what is there, third, and returns the root; None: a copy is read as it is.
        fingerprint: expected counts; None: unknown (manifests).
        durations: published lengths of its recordings; None: unknown, or no recordings.
        aliases: alternative spellings of class names -> canonical name.
        modality: what it contains; None: depends on the table itself (manifests).
        facts: facts of given embeddings, from their file; None: it consists of something else.
    """

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    prepare: Callable[[Path], pl.DataFrame]
    fingerprint: Fingerprint | None
    how_to_get: str
    obtain: Callable[[Path], Path] | None = None
    url: str | None = None
    adopt: Callable[[Path, Path, Path], Path] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    modality: Modality | None = "speech"
    durations: Durations | None = None
    facts: Callable[[Path], dict[str, Any]] | None = None

    @property
    def task(self) -> Task:
        """What is asked of it; of a table that has yet to be read, what is asked of recordings."""
        return task_of(self.modality or "speech", self.classes)
