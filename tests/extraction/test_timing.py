"""What a few timed batches say of all items; the clock is not tested, what is extrapolated from it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.config import Config, ExtractConfig
from daamctl.encoders.base import Batch, Pooled
from daamctl.encoders.encoder_size import EncoderSize
from daamctl.encoders.load import open_encoder
from daamctl.errors import CorpusError, EncoderError
from daamctl.extraction import timing
from daamctl.extraction.stream import embed_clips
from daamctl.extraction.timing import PeakMemory, RandomItems, items_to_time, time_embedding, why_not_timed

PRESETS: dict[Modality, str] = {"speech": "wavlm-micro", "text": "llama-micro", "image": "beit-micro"}


def opened(modality: Modality) -> Any:
    config = ExtractConfig(encoder=PRESETS[modality])
    return open_encoder(config, modality=modality, max_duration_s=5.0, device="cpu", precision="float32").encoder


class Clock:
    """An encoder whose batches take a second per unit of padded cost, and 10 more for each item."""

    modality = "text"
    layers = (1, 2)
    embed_dim = 3
    equal_length_batches = False

    def __init__(self) -> None:
        self.now, self.batches = 0.0, list[int]()

    def max_useful_batch(self, size: int) -> int:
        return 10**6

    def prepare_for_inference(self) -> None:
        """Nothing to prepare."""

    def to_batch(self, items: list[Tensor]) -> Batch:
        ids = torch.nn.utils.rnn.pad_sequence(items, batch_first=True)
        return Batch({"input_ids": ids}, torch.ones_like(ids), torch.ones(len(items)))

    def padded(self, size: int) -> int:
        return size

    def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], Pooled]:
        number, width = batch.mask.shape
        self.now += number * (10 + width)
        self.batches.append(number)
        return lambda: Pooled.of(torch.zeros(number, 2, 3), storage)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    encoder = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: encoder.now)
    return encoder


def test_few_batches_tell_the_time_of_all(clock: Clock) -> None:
    sizes = np.repeat([100, 60, 20], [50, 48, 250])
    found = time_embedding(clock, RandomItems(clock, sizes, 1000), storage="float32", within_s=1e6)  # type: ignore[arg-type]
    assert found.cost == 50 * 100 + 48 * 60 + 250 * 20  # batches of 10, 16 and 50
    assert (found.largest, found.tried) == (1000, 1000)
    assert found.seconds == pytest.approx(50 * 110 + 48 * 70 + 250 * 30)
    assert len(clock.batches) == 5  # two single items, then one batch of each length
    assert found.per_cost == found.seconds / found.cost


def test_batches_are_cut_to_the_time_there_is(clock: Clock) -> None:
    items = RandomItems(clock, np.full(1000, 10), 10_000)  # type: ignore[arg-type]
    found = time_embedding(clock, items, storage="float32", within_s=100)
    assert clock.batches == [1, 1, 5]
    assert (found.tried, found.largest) == (50, 10_000)
    assert found.seconds == pytest.approx(1000 * 20)


def test_one_slow_item_is_enough(clock: Clock) -> None:
    items = RandomItems(clock, np.array([30, 20]), 1000)  # type: ignore[arg-type]
    found = time_embedding(clock, items, storage="float32", within_s=1)
    assert clock.batches == [1]
    assert (found.cost, found.tried) == (60, 30)  # both share one batch, padded to the longer one
    assert found.seconds == pytest.approx(60 * 40 / 30)


def test_items_that_cannot_be_read(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: RandomItems, row: int) -> Tensor:
        raise CorpusError("text 'a' is empty")

    monkeypatch.setattr(RandomItems, "read", read)
    with pytest.raises(EncoderError, match="none of 1 items tried can be read: text 'a' is empty"):
        time_embedding(clock, RandomItems(clock, np.array([3]), 9), storage="float32", within_s=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("modality", list(PRESETS))
@pytest.mark.parametrize("known", [True, False])
def test_random_items_can_be_embedded(modality: Modality, known: bool) -> None:
    encoder, config = opened(modality), Config()
    lengths = {"speech": np.array([0.3, 0.5]), "text": np.array([40.0, 9.0]), "image": np.ones(2)}[modality]
    items, scale = items_to_time(
        encoder, config, clips=None, root=None, lengths=lengths if known else None, own_tokens=True
    )
    expected = {"speech": [4800, 8000], "text": [10, 2], "image": [1, 1]}[modality]
    typical = {"speech": 80_000, "text": 100, "image": 1}[modality]
    assert items.sizes.tolist() == (expected if known else [typical] * 64)
    assert scale == (1.0 if known else None)
    assert items.budget == {"speech": 80 * 16_000, "text": 16_384, "image": 64}[modality]
    few = timing.Chosen(items, np.array([1]))
    assert not embed_clips(encoder, few, ["a"], storage="float16").unreadable


def test_own_texts_are_read_where_the_tokenizer_is_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_TEXTS", 2)
    encoder = opened("text")
    clips = pl.DataFrame({"clip_id": list("abcd"), "text": ["X" * 5, "Y", "Z", "X" * 8]})
    options: dict[str, Any] = {"clips": clips, "root": tmp_path, "lengths": clips["text"].str.len_chars().to_numpy()}
    items, scale = items_to_time(encoder, Config(), own_tokens=True, **options)
    assert (items.sizes.tolist(), scale) == ([6, 9], 2.0)  # the first and the last, with the token in front
    items, scale = items_to_time(encoder, Config(), own_tokens=False, **options)
    assert (items.sizes.tolist(), scale) == ([1, 1, 1, 2], 1.0)


def test_weights_that_would_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "free_on", lambda device: [20_000_000_000])
    here, elsewhere = EncoderSize(1, 1, 1, True), EncoderSize(1, 1, 1, False)
    config = ExtractConfig()
    assert why_not_timed(here, 9_000_000_000, config, "cpu") is None
    words = "its weights take 11.0 GB, 20.0 GB are free on cpu"
    assert why_not_timed(here, 11_000_000_000, config, "cpu") == words
    assert why_not_timed(elsewhere, 7_000_000_000, config, "cpu") is None
    assert "random ones take minutes to make" in str(why_not_timed(elsewhere, 9_000_000_000, config, "cpu"))
    wanting = ExtractConfig(min_gpu_memory_gb=1e6)
    assert "it needs 1e+06 GB of GPU memory" in str(why_not_timed(here, 1, wanting, "cpu"))


def test_peak_is_the_most_within_the_block() -> None:
    with PeakMemory("cpu") as memory:
        held = np.ones(40_000_000 // 8)
        time.sleep(10 * timing.POLL_S)
        del held
    assert memory.taken >= 30_000_000
    assert not memory._thread.is_alive()
