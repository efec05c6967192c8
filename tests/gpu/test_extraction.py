"""Extraction on a GPU: the same vectors whatever the precision, the order of copies and the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import extraction
from benchmarks.extraction import Bench
from daamctl.artifacts.embeddings import read_embeddings, write_head
from daamctl.config import Config
from daamctl.config.schema import ExtractConfig
from daamctl.encoders import load
from daamctl.encoders.base import Batch, PooledBatch
from daamctl.encoders.load import open_encoder
from tests.encoders.test_load import WORDS, saved
from tests.fixtures import gpu

pytestmark = [*gpu.GPU, pytest.mark.filterwarnings("ignore::UserWarning")]
FAMILIES = ["wavlm-micro", "llama-micro", "beit-micro", "whisper-tiny"]


def prepared(folder: Path, encoder: str, *, clips: int = 16, **settings: Any) -> Bench:
    """Drawn items of the encoder's modality, and the encoder with random weights."""
    given = {"encoder": encoder, "weights": "random", "device": gpu.DEVICE, "precision": "bfloat16", **settings}
    folder.mkdir(exist_ok=True)
    return extraction.prepared(Config.model_validate({"extract": given}), clips, None, folder)


def vectors(bench: Bench, name: str) -> NDArray[np.floating[Any]]:
    """What our extraction stores, (N, L, D)."""
    folder = bench.folder / name
    folder.mkdir()
    extraction.ours(bench, folder)
    write_head(folder, extraction.head(bench), bench.rows)
    return np.asarray(read_embeddings(folder)[1])


@pytest.mark.parametrize("encoder", FAMILIES)
def test_bfloat16_is_near_float32_for_every_family(tmp_path: Path, encoder: str) -> None:
    """Padded batches of ours against every item by itself, over all items and layers."""
    found = extraction.agreement(prepared(tmp_path, encoder))
    assert found["the same item by itself in float32"] > 0.999


def test_causal_texts_need_no_mask(tmp_path: Path) -> None:
    bench = prepared(tmp_path, "llama-micro", precision="float32", storage="float32")
    assert not bench.ours.sends_mask
    plain = vectors(bench, "plain")
    bench.ours.sends_mask = True
    np.testing.assert_allclose(plain, vectors(bench, "masked"), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("encoder", FAMILIES)
def test_no_attention_is_planned_by_cudnn(tmp_path: Path, encoder: str) -> None:
    """It would plan anew for every shape of a batch."""
    bench = prepared(tmp_path, encoder, clips=4)
    names = gpu.kernels(lambda: vectors(bench, "found"))
    assert any("attention" in name for name in names)
    assert [name for name in names if "cudnn_attention" in name or ("cudnn" in name and "sdpa" in name)] == []


def test_batches_under_way_keep_their_order_and_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 batches, each behind a slow kernel, give what they give when each is awaited before the next is sent."""
    monkeypatch.setattr(extraction, "NUMBER", 400)
    bench = prepared(tmp_path, "wavlm-micro", clips=400, max_batch_s=6)
    assert len(extraction.our_batches(bench)) >= 200
    run, hidden = bench.ours.run_async, bench.ours.hidden

    def awaited(batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
        found = run(batch, storage)()
        torch.cuda.synchronize()
        return lambda: found

    def slow(inputs: Mapping[str, Tensor]) -> Any:
        torch.cuda._sleep(1_000_000)
        return hidden(inputs)

    monkeypatch.setattr(bench.ours, "run_async", awaited)
    expected = vectors(bench, "one by one")
    monkeypatch.setattr(bench.ours, "run_async", run)
    monkeypatch.setattr(bench.ours, "hidden", slow)
    np.testing.assert_array_equal(vectors(bench, "under way"), expected)


@pytest.mark.parametrize("encoder", FAMILIES)
def test_a_launch_does_not_wait_for_the_gpu(tmp_path: Path, encoder: str) -> None:
    bench = prepared(tmp_path, encoder, clips=4)
    batch = extraction.our_batches(bench)[0]
    bench.ours.prepare_for_inference()
    expected = bench.ours.run_async(batch)().values.clone()
    with gpu.no_waiting():
        wait = bench.ours.run_async(batch)
    assert torch.equal(wait().values, expected)


def test_memory_that_runs_out_is_met_with_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The allocator itself refuses batches of more than three; the vectors are the same, and nothing is held."""
    bench = prepared(tmp_path, "wavlm-micro", precision="float32", storage="float32")
    expected = vectors(bench, "whole")
    torch.cuda.empty_cache()
    held, hidden = torch.cuda.memory_allocated(), bench.ours.hidden

    def hungry(inputs: Mapping[str, Tensor]) -> Any:
        gpu.ask_for_memory(len(next(iter(inputs.values()))), most=3)
        return hidden(inputs)

    monkeypatch.setattr(bench.ours, "hidden", hungry)
    np.testing.assert_allclose(vectors(bench, "halves"), expected, atol=1e-4, rtol=1e-3)
    assert "clips in a batch; trying halves" in caplog.text
    assert torch.cuda.memory_allocated() <= held + 1_000_000


def test_the_first_gpu_by_its_number_is_the_same(tmp_path: Path) -> None:
    named, numbered = (
        vectors(prepared(tmp_path / device[-1], "wavlm-micro", device=device), "found")
        for device in (gpu.DEVICE, f"{gpu.DEVICE}:0")
    )
    np.testing.assert_array_equal(named, numbered)


@gpu.TWO_GPUS
def test_weights_spread_over_two_gpus_give_the_same_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "text", "LlamaModel", "LlamaConfig", **WORDS)

    def opened() -> Any:
        settings = ExtractConfig.model_validate({"encoder": path})
        usual: dict[str, Any] = {"max_duration_s": 5.0, "device": gpu.DEVICE, "precision": "float32"}
        return open_encoder(settings, modality="text", **usual).encoder

    alone = opened()
    size = sum(value.nbytes for value in alone.model.parameters())
    plan = {"device_map": "auto", "max_memory": {0: int(0.7 * size), 1: 2 * size}}
    monkeypatch.setattr(load, "_plan_memory", lambda *_, **__: plan)
    spread = opened()
    assert {str(value.device) for value in spread.model.parameters()} == {"cuda:0", "cuda:1"}
    items, _ = alone.tokens(("stocks fell", "a longer text about nothing"), 30)
    torch.testing.assert_close(spread.pool(items)[0], alone.pool(items)[0], atol=1e-4, rtol=1e-3)
