"""Settings of the released LoRA scripts, by dotted name: how they read items and how they train.

Source: docs/sources.md#released-lora. A `-published` variant always reads items as the scripts do, whatever the
settings; if its training settings differ, its figures say so. This module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SUFFIX = "-published"
TEXT_LENGTH = 128
"""Number of tokens to which every text is cut or padded."""

INPUT: Mapping[str, Mapping[str, Any]] = {
    # The waveform as returned by the feature extractor, at its own length, padding masked (D14).
    "speech": {"extract.pooling": "valid-frames", "extract.normalize": "encoder"},
    "text": {"finetune.max_tokens": TEXT_LENGTH},
    # transformers' mean over the patches excludes the class token.
    "image": {"extract.pool_class_token": False},
}
"""Modality -> how its items are read."""
_ROWS = {"speech": "D14", "text": "D18", "image": "D47"}

_ALWAYS = {
    "finetune.weight_decay": 0.01,
    "finetune.schedule": "constant",
    "finetune.grad_clip_norm": None,
    "finetune.encoder_dropout": True,
}
TRAINING: Mapping[str, Mapping[str, Any]] = {
    "speech": {"train.loss": "focal", "finetune.epochs": 35, "finetune.batch_size": 4, "finetune.lr": 1e-4, **_ALWAYS},
    "text": {
        "train.loss": "cross-entropy",
        "finetune.epochs": 1,
        "finetune.batch_size": 1,
        "finetune.lr": 1e-6,
        **_ALWAYS,
    },
    "image": {
        "train.loss": "cross-entropy",
        "finetune.epochs": 35,
        "finetune.batch_size": 16,
        "finetune.lr": 1e-4,
        **_ALWAYS,
    },
}
"""Modality -> how the adapters are trained."""


def is_published(name: str) -> bool:
    """Whether a fine-tuning method reproduces the released scripts."""
    return name.endswith(SUFFIX)


def own_input(name: str, modality: str) -> Mapping[str, Any]:
    """Input settings that a fine-tuning method fixes itself; empty except for the published variants."""
    return INPUT.get(modality, {}) if is_published(name) else {}


def departures(name: str, modality: str, settings: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Notes on where a published variant overrides the settings, or the settings differ from the released script.

    Args:
        name: a fine-tuning method; only published variants have such notes.
        settings: those of the sections `extract`, `train` and `finetune`.
    """
    if not is_published(name):
        return ()
    notes = []
    read = _differing(INPUT[modality], settings)
    if read:
        notes.append(f"items are read as by the released script, whatever is set: {read} ({_ROWS[modality]})")
    trained = _differing(TRAINING[modality], settings)
    if trained:
        notes.append(f"the released script trains otherwise: {trained} (D18)")
    return tuple(notes)


def _differing(released: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Released values that differ from the settings, as `finetune.batch_size=4 (set: 8)`."""
    found = []
    for path, value in released.items():
        section, name = path.split(".")
        given = settings[section][name]
        if path == "train.loss" and given == "square":  # for fine-tuning cross-entropy
            given = "cross-entropy"
        if given != value:
            found.append(f"{path}={_show(value)} (set: {_show(given)})")
    return ", ".join(found)


def _show(value: Any) -> str:
    return json.dumps(value).strip('"')
