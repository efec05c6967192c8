"""What a setting can change, said once, at its field in `schema`.

Everything that asks whether two artifacts were made alike is derived from these marks: content keys, what DVC watches,
the differences that `compare` and `evaluate` name. A field without a mark can change every result of its stage.
"""

from __future__ import annotations

from enum import Enum


class Changes(Enum):
    """What else a setting changes than the results."""

    NOTHING = "nothing"
    """Speed, memory, tolerance, where the work is done: no artifact differs."""
    RUNS = "runs"
    """Which runs there are, or how one is made that records it itself (a seed, a corpus folder, the hash of the
    weights). DVC watches it; it is no part of a key."""
    MAPS = "maps"
    """Density maps alone, and what is computed from them: part of the key, but no accuracy depends on it."""


class Of(Enum):
    """What a setting concerns: of `extract` one modality alone, of `train` more than the trained methods."""

    SPEECH = "speech"
    TEXT = "text"
    IMAGES = "image"
    STORED = "stored"
    """Stored vectors alone; fine-tuning, which reads the items themselves, has no use for it."""
    FINETUNING = "finetuning"
    """Fine-tuned encoders go by this setting of `train` too."""
    PROBES = "probes"
    """Closed-form probes go by this setting of `train`, and by no other."""
