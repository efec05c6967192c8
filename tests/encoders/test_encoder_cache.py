"""Facts of an encoder without opening it: only while everything that they come from is as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.config import ExtractConfig
from daamctl.encoders import encoder_cache
from daamctl.encoders.encoder_cache import LazyEncoder
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import EncoderError
from tests.encoders.test_load import WORDS, saved

COMMITS = ("a" * 40, "b" * 40)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The hash of weights that each opening was told."""
    told: list[str | None] = []

    def counting(*words: Any, weights_sha256: str | None = None, **options: Any) -> OpenedEncoder:
        told.append(weights_sha256)
        return open_encoder(*words, weights_sha256=weights_sha256, **options)

    monkeypatch.setattr(encoder_cache, "open_encoder", counting)
    monkeypatch.setattr(encoder_cache, "SETTLED_S", 0.0)  # the files of these tests are young
    return told


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return saved(tmp_path / "tiny", "LlamaModel", "LlamaConfig", **WORDS)


def lazy(
    memory: Path, encoder: str, *, device: str = "cpu", precision: str = "float32", **settings: Any
) -> LazyEncoder:
    config = ExtractConfig.model_validate({"encoder": encoder, **settings})
    usual: dict[str, Any] = {"modality": "text", "max_duration_s": 5.0}
    return LazyEncoder(memory, config, device=device, precision=precision, **usual)


def test_facts_are_known_again_and_the_weights_not_hashed_again(
    memory: Path, folder: str, opened: list[str | None]
) -> None:
    first = lazy(memory, folder)
    assert opened == [None]
    again = lazy(memory, folder)
    assert (again.known, opened) == (first.known, [None])
    items = again.encoder.pool([torch.tensor([1, 70, 80])])[0]  # type: ignore[attr-defined]
    assert opened == [None, first.known.facts["weights_sha256"]]
    assert torch.equal(items, first.encoder.pool([torch.tensor([1, 70, 80])])[0])
    assert len(opened) == 2  # each was opened once


@pytest.mark.parametrize(
    "settings",
    [
        {"weights_dtype": "bfloat16"},
        {"precision": "bfloat16"},
        {"layer_00": True},
        {"final_norm": False},
        {"storage": "float32"},
        {"max_tokens": 30},
        {"pool_special_tokens": True},
        {"revision": "v2"},
    ],
)
def test_every_setting_that_enters_the_facts_counts(
    memory: Path, folder: str, opened: list[str | None], settings: dict[str, Any]
) -> None:
    lazy(memory, folder)
    changed = lazy(memory, folder, **settings)
    assert opened == [None, None]
    config = ExtractConfig.model_validate(
        {"encoder": folder, **{name: value for name, value in settings.items() if name != "precision"}}
    )
    precision = settings.get("precision", "float32")
    whole = open_encoder(config, modality="text", max_duration_s=5.0, device="cpu", precision=precision)
    assert changed.known.facts == whole.facts
    lazy(memory, folder, **settings, max_batch_tokens=7, shard_clips=3)  # these decide nothing
    assert opened == [None, None]


def same_size(path: Path) -> None:
    """One other byte at the end, the same size and time."""
    state, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: same_size(folder / "model.safetensors"),
        lambda folder: saved(folder, "LlamaModel", "LlamaConfig", **{**WORDS, "hidden_size": 32}),
        lambda folder: (folder / "further.json").write_text("{}"),
        lambda folder: shutil.copytree(folder, folder.with_name("copy")) and folder.rename(folder.with_name("old")),
    ],
)
def test_other_files_are_another_encoder(
    memory: Path, folder: str, opened: list[str | None], change: Callable[[Path], Any]
) -> None:
    lazy(memory, folder)
    change(Path(folder))
    if not Path(folder).exists():
        folder = str(Path(folder).with_name("copy"))
    found = lazy(memory, folder)
    assert opened == [None, None]
    assert found.known.facts == lazy(memory, folder).known.facts
    config = ExtractConfig(encoder=folder)
    whole = open_encoder(config, modality="text", max_duration_s=5.0, device="cpu", precision="float32")
    assert found.known.facts == whole.facts


def test_weights_that_were_just_written_are_not_trusted(
    memory: Path, folder: str, opened: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_cache, "SETTLED_S", 3600.0)
    lazy(memory, folder)
    lazy(memory, folder)
    assert opened == [None, None]
    assert not memory.exists()


def test_an_adapter_whose_base_lies_elsewhere_is_opened(memory: Path, folder: str, opened: list[str | None]) -> None:
    (Path(folder) / encoder_cache.ELSEWHERE).write_text("{}")
    assert encoder_cache.cache_key_of(ExtractConfig(encoder=folder), {}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"facts": {}, "layers": [1], "embed_dim": 3, "key": "x"}'])
def test_a_damaged_memory_is_opened_instead(memory: Path, folder: str, opened: list[str | None], text: str) -> None:
    first = lazy(memory, folder).known
    (path,) = memory.iterdir()
    whole = path.read_text()
    path.write_text(text)
    assert lazy(memory, folder).known == first
    assert opened == [None, None]
    path.write_text(whole.replace(first.facts["weights_sha256"], "0" * 64))  # JSON, but not what was written
    assert lazy(memory, folder).known == first
    assert opened == [None, None, None]
    assert path.read_text() == whole


def test_random_weights_go_by_preset_and_seed(memory: Path, opened: list[str | None]) -> None:
    first = lazy(memory, "llama-micro").known
    assert lazy(memory, "llama-micro", weights="pretrained").known == first
    assert opened == [None]
    other = lazy(memory, "llama-micro", seed=1).known
    assert opened == [None, None]
    assert other.facts["weights_sha256"] != first.facts["weights_sha256"]


@pytest.mark.parametrize("what", ["_code", "_libraries", "device_name"])
def test_other_code_libraries_or_processor_may_give_other_weights(
    memory: Path, opened: list[str | None], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    lazy(memory, "llama-micro")
    monkeypatch.setattr(encoder_cache, what, lambda *_: ["other"])
    lazy(memory, "llama-micro")
    assert opened == [None, None]


def test_an_encoder_that_changes_under_way_is_named_and_forgotten(
    memory: Path, folder: str, opened: list[str | None]
) -> None:
    lazy(memory, folder)
    known = lazy(memory, folder)
    same_size(Path(folder) / "model.safetensors")
    with pytest.raises(EncoderError, match=r"has changed while it was opened\n  run the same command again"):
        known.encoder  # noqa: B018
    assert list(memory.iterdir()) == []


def test_a_snapshot_of_the_hub_goes_by_its_commit(
    memory: Path, folder: str, opened: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    repository = cache / "models--owner--name"
    for commit in COMMITS:
        shutil.copytree(folder, repository / "snapshots" / commit)
    same_size(repository / "snapshots" / COMMITS[1] / "model.safetensors")
    branch = repository / "refs/main"
    branch.parent.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    hashes = []
    for commit in COMMITS:
        branch.write_text(commit)
        facts = lazy(memory, "owner/name").known.facts
        assert facts["revision"] == commit
        hashes.append(facts["weights_sha256"])
        assert lazy(memory, "owner/name").known.facts == facts
    assert hashes[0] != hashes[1]
    assert opened == [None, None]
    pinned = lazy(memory, "owner/name", revision=COMMITS[0]).known.facts
    assert (pinned["weights_sha256"], len(opened)) == (hashes[0], 3)


@pytest.mark.parametrize("name", ["llama-mikro", "./nowhere", "owner/absent"])
def test_what_cannot_be_opened_is_refused_as_ever(memory: Path, opened: list[str | None], name: str) -> None:
    with pytest.raises(EncoderError) as caught:
        lazy(memory, name)
    config = ExtractConfig(encoder=name)
    with pytest.raises(EncoderError) as plain:
        open_encoder(config, modality="text", max_duration_s=5.0, device="cpu", precision="float32")
    assert str(caught.value) == str(plain.value)


def test_a_memory_that_cannot_be_written_costs_only_time(memory: Path, folder: str, opened: list[str | None]) -> None:
    memory.write_text("a file where the folder should be")
    first = lazy(memory, folder).known
    assert lazy(memory, folder).known == first
    assert opened == [None, None]
