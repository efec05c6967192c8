"""Which settings affect a result, derived from the marks of the fields."""

from __future__ import annotations

from typing import Any, Literal

from daamctl.config.marks import Affects, AppliesTo, DefaultSource
from daamctl.config.schema import Config, Section

Modality = Literal["speech", "text", "image", "tokens", "embeddings"]
MODALITIES = {AppliesTo.SPEECH, AppliesTo.TEXT, AppliesTo.IMAGES, AppliesTo.TOKENS}


def names(section: str, *marks: Affects | AppliesTo | DefaultSource) -> tuple[str, ...]:
    """Settings of a section that carry one of these marks, in order."""
    fields = type(getattr(Config(), section)).model_fields
    return tuple(name for name, field in fields.items() if any(mark in field.metadata for mark in marks))


def key_settings(config: Config, section: str) -> dict[str, Any]:
    """Settings of a section that can change a result; they go into the content key."""
    left_out = names(section, Affects.NOTHING, Affects.RUNS)
    return _set({name: value for name, value in config.section(section).items() if name not in left_out}, section)


def watched_settings(config: Config, section: str) -> dict[str, Any]:
    """Settings of a section that DVC watches: all but those that change nothing."""
    left_out = names(section, Affects.NOTHING)
    return {name: value for name, value in config.section(section).items() if name not in left_out}


def embedding_settings(config: Config, modality: Modality | None = None) -> dict[str, dict[str, Any]]:
    """Settings of download, segment and extract that affect the stored vectors of a modality; None: of any modality."""
    if modality == "embeddings":  # they are stored as they are
        return {"download": key_settings(config, "download")}
    found = {section: key_settings(config, section) for section in ("download", "segment", "extract")}
    if modality is not None:
        applying = {AppliesTo.TEXT, AppliesTo.TOKENS} if modality == "tokens" else {AppliesTo(modality)}
        others = {*names("extract", *MODALITIES)} - {*names("extract", *applying)}
        found["extract"] = {name: value for name, value in found["extract"].items() if name not in others}
    return found


def finetuning_data_settings(config: Config, modality: Modality) -> dict[str, Any]:
    """Settings of `extract` that affect how fine-tuning reads items and opens the encoder."""
    left_out = names("extract", AppliesTo.STORED)
    found = embedding_settings(config, modality)["extract"]
    return {name: value for name, value in found.items() if name not in left_out}


def shared_with_finetuning(config: Config) -> dict[str, Any]:
    """Settings of `train` that fine-tuning uses too, except the seeds."""
    train = config.section("train")
    return _set({name: train[name] for name in names("train", AppliesTo.FINETUNING)}, "train")


def probe_settings(config: Config) -> dict[str, Any]:
    """Settings of `train` that closed-form probes use."""
    train = config.section("train")
    return _set({name: train[name] for name in names("train", AppliesTo.PROBES)}, "train")


def _set(settings: dict[str, Any], section: str) -> dict[str, Any]:
    """The settings without those that are younger than finished folds and null."""
    younger = names(section, Affects.IF_SET)
    return {name: value for name, value in settings.items() if value is not None or name not in younger}


def without_effect(*changes: Affects) -> frozenset[str]:
    """Dotted names of all settings with one of these marks."""
    sections = [name for name, value in Config() if isinstance(value, Section)]
    return frozenset(f"{section}.{name}" for section in sections for name in names(section, *changes))
