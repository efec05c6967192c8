"""Marks that declare what a setting can change, attached to its field in `schema`.

Everything that compares how two artifacts were made derives from these marks: content keys, what DVC watches, and the
differences that `compare` and `evaluate` report. A field without a mark can change every result of its stage.
"""

from __future__ import annotations

from enum import Enum


class Affects(Enum):
    """What a setting changes, if not every result of its stage."""

    NOTHING = "nothing"
    """Only speed, memory, tolerance or the place of execution: no artifact differs."""
    RUNS = "runs"
    """Which runs there are, or an input that the run itself records (a seed, a corpus folder, the hash of the weights).
    DVC watches it; it is not part of a key."""
    IF_SET = "if set"
    """Every result, unless it is null. It is younger than finished folds; so that they are kept, no key has a null."""
    MAPS = "maps"
    """Only density maps and what is computed from them: part of the key, but no accuracy depends on it."""


class AppliesTo(Enum):
    """What a setting applies to: in `extract`, a single modality; in `train`, more than the trained methods."""

    SPEECH = "speech"
    TEXT = "text"
    IMAGES = "image"
    TOKENS = "tokens"
    STORED = "stored"
    """Only stored vectors; fine-tuning reads the items themselves and does not use it."""
    FINETUNING = "finetuning"
    """Also used by fine-tuning."""
    PROBES = "probes"
    """Used by closed-form probes, which use no other setting of `train`."""


class DefaultSource(Enum):
    """Where the default of a setting comes from, if that is worth showing beside every figure."""

    RECONSTRUCTED = "reconstructed"
    """The source does not state it; the value is our choice."""
