"""What the marks of the settings say: which of them count in keys, which DVC watches, which cannot change a figure."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from daamctl.config import Config
from daamctl.config.keys import (
    Modality,
    embedding_settings,
    finetuning_data_settings,
    key_settings,
    names,
    probe_settings,
    shared_with_finetuning,
    watched_settings,
    without_effect,
)
from daamctl.config.marks import Affects, AppliesTo
from daamctl.config.schema import Section


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("section", "changed", "in_key", "watched"),
    [
        ("train", {"lr": 0.5}, True, True),
        ("train", {"refit": False}, True, True),
        ("train", {"density_maps": "all-epochs", "steps": None, "schedule": "constant"}, True, True),
        ("train", {"seeds": [7]}, False, True),
        ("train", {"features": "stream"}, False, True),
        ("train", {"device": "cpu"}, False, False),
        ("train", {"stack": "never"}, False, False),
        ("train", {"graphs": "auto"}, False, False),
        ("finetune", {"lr": 0.5}, True, True),
        ("finetune", {"gradient_checkpointing": True}, False, False),
        ("extract", {"layer_00": True}, True, True),
        ("extract", {"weights_dtype": "float16"}, False, True),
        ("extract", {"name": "ours"}, False, False),
        ("extract", {"pad_frames_to": 8}, True, True),
        ("extract", {"window_s": 3}, True, True),
        ("extract", {"writers": 2, "image_bytes": True}, False, False),
        ("extract", {"max_batch_s": 3.0, "shard_clips": 2, "min_gpu_memory_gb": 3.0}, False, False),
        ("segment", {"tail": "drop"}, True, True),
        ("segment", {"write_audio": True}, False, True),
        ("download", {"num_groups": 3}, True, True),
        ("download", {"source": "elsewhere"}, False, True),
        ("download", {"check_fingerprint": False, "max_unreadable_fraction": 0.5}, False, False),
    ],
)
def test_a_mark_decides_keys_and_what_dvc_watches(
    section: str, changed: dict[str, Any], in_key: bool, watched: bool
) -> None:
    before, after = Config(), config(**{section: changed})
    assert (key_settings(before, section) != key_settings(after, section)) == in_key
    assert (watched_settings(before, section) != watched_settings(after, section)) == watched


@pytest.mark.parametrize(
    ("owners", "setting"),
    [
        ({"speech"}, {"normalize": "always"}),
        ({"speech", "text", "tokens"}, {"pooling": "last-token"}),
        ({"text", "tokens"}, {"max_tokens": 9}),
        ({"tokens"}, {"subwords": "mean"}),
        ({"image"}, {"pool_class_token": True}),
        ({"image"}, {"pool_class_token": "only"}),
    ],
)
def test_settings_of_another_modality_do_not_count(owners: set[str], setting: dict[str, Any]) -> None:
    changed = config(extract=setting)
    for modality in get_args(Modality):
        differ = embedding_settings(Config(), modality) != embedding_settings(changed, modality)
        assert differ == (modality in owners)
    assert embedding_settings(Config()) != embedding_settings(changed)


def test_fine_tuning_shares_loss_and_selection_and_reads_no_stored_vectors() -> None:
    shared = {"loss", "focal_gamma", "focal_alpha", "selection", "refit", "dev_fraction"}
    assert set(shared_with_finetuning(Config())) == shared
    stored = config(extract={"storage": "float32", "precision": "float32", "layer_00": True, "max_tokens": 3})
    assert finetuning_data_settings(stored, "text") == finetuning_data_settings(Config(), "text")
    other = config(extract={"pool_special_tokens": True})
    assert finetuning_data_settings(other, "text") != finetuning_data_settings(Config(), "text")


def test_probes_go_by_what_is_held_out_alone() -> None:
    assert probe_settings(config(train={"lr": 0.5, "epochs": 3})) == probe_settings(Config())
    assert set(probe_settings(Config())) == {"selection", "refit", "dev_fraction"}


def test_settings_without_effect_are_named_with_their_section() -> None:
    assert without_effect(Affects.MAPS) == {"train.density_maps"}
    assert {"train.device", "finetune.device", "extract.device", "train.recipe"} < without_effect(Affects.NOTHING)
    assert not without_effect(*Affects) & {"train.lr", "train.precision", "extract.pooling"}


def test_every_mark_is_used() -> None:
    sections = [name for name, value in Config() if isinstance(value, Section)]
    for mark in (*Affects, *AppliesTo):
        assert any(names(section, mark) for section in sections), mark
