"""Named encoder presets, defined in `presets/`. Imports no torch, so that presets can be listed and checked quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from daamctl.artifacts.utterances import Modality


@dataclass(frozen=True)
class Preset:
    """A named encoder.

    Args:
        hub_id: Hugging Face id; None: exists only with random weights.
        model_type: Hugging Face model type; for a speech encoder a name from `FAMILIES`.
        shape: configuration values that differ from the model type's defaults, for random weights; always includes
            depth and width.
        normalize: speech: whether its feature extractor makes the waveform zero-mean and unit-variance.
        modality: what it reads.
        embedding_std: standard deviation of random token embeddings; None: same as all other weights.
    """

    hub_id: str | None
    model_type: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    normalize: bool = True
    modality: Modality = "speech"
    embedding_std: float | None = None
