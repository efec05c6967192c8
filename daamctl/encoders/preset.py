"""Named encoder presets, defined in `presets/`. Imports no torch, so that presets can be listed and checked quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daamctl.artifacts.utterances import Modality


@dataclass(frozen=True)
class Preset:
    """A named encoder.

    Args:
        hub_id: Hugging Face id; None: not on the hub.
        model_type: Hugging Face model type; for a speech encoder a name from `FAMILIES`.
        shape: configuration values that differ from the model type's defaults, for random weights; always includes
            depth and width.
        normalize: speech: whether its feature extractor makes the waveform zero-mean and unit-variance.
        embedding_std: standard deviation of random token embeddings; None: same as all other weights.
        folder: a model that daamctl ships: config.json and model.safetensors.
        licence: of the weights, as an identifier of the Hugging Face hub; None: unknown, or there are no weights.
    """

    hub_id: str | None
    model_type: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    normalize: bool = True
    modality: Modality = "speech"
    embedding_std: float | None = None
    folder: Path | None = None
    licence: str | None = None

    @property
    def source(self) -> str | None:
        """What transformers loads, a folder or a hub id; None: exists only with random weights."""
        return self.hub_id if self.folder is None else str(self.folder)
