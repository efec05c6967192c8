"""Masked language models: the head at masked positions, blocks, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import BartConfig, BertConfig, FNetConfig, FunnelConfig, FunnelForMaskedLM, GPT2Config

from daamctl.encoders.masked import last_layer, open_masked
from daamctl.errors import EncoderError
from tests.fixtures.masked_models import save_masked, tokenizer


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_head_reads_masked_positions_as_the_library_reads_all(tmp_path: Path, kind: str) -> None:
    found = open_masked(str(save_masked(tmp_path, kind)), device="cpu", max_tokens=512)
    ids = torch.tensor([[0, 5, 4, 7, 4, 2], [0, 4, 8, 2, 1, 1]])
    attention, positions = (ids != 1).long(), (ids == 4).nonzero(as_tuple=True)
    with torch.no_grad():
        whole = found.model(input_ids=ids, attention_mask=attention).logits[positions]
        ours = found.logits(ids, attention, positions, last_layer)
        seen: list[tuple[int, ...]] = []
        found.logits(
            ids, attention, positions, lambda layers, *_: seen.extend(x.shape for x in layers) or layers[0][:, 0]
        )
    torch.testing.assert_close(ours, whole)
    assert ours.shape == (3, 19)
    assert seen == [(2, 6, 16)] * 3  # layers 1 to L, without the embedding output
    assert found.max_tokens == (38 if kind == "roberta" else 40)


def test_blocks_hold_all_tokens_and_those_that_the_tokenizer_adds(tmp_path: Path) -> None:
    found = open_masked(str(save_masked(tmp_path)), device="cpu", max_tokens=5)
    blocks = found.blocks("the cat sees @rare@ dog", unknown="@rare@")
    assert [found.tokenizer.convert_ids_to_tokens(block.tolist()) for block in blocks] == [
        ["<s>", "the", "cat", "sees", "</s>"],
        ["<s>", "<unk>", "dog", "</s>"],
    ]


def test_models_that_cannot_predict_masked_tokens_are_refused(tmp_path: Path) -> None:
    def opened(folder: Path, max_tokens: int = 512) -> None:
        open_masked(str(folder), device="cpu", max_tokens=max_tokens)

    with pytest.raises(EncoderError, match=r"'headless' has no MLM head among its weights: cls\.predictions"):
        opened(save_masked(tmp_path / "headless", head=False))
    with pytest.raises(EncoderError, match="no mask token"):
        opened(save_masked(tmp_path / "unmasked", mask=False))
    with pytest.raises(EncoderError, match="has 22 tokens, the model 19"):
        opened(save_masked(tmp_path / "larger", spare=3))
    with pytest.raises(EncoderError, match="no room for text"):
        opened(save_masked(tmp_path / "short"), 2)
    BertConfig(num_hidden_layers=100_000).save_pretrained(tmp_path / "deep")
    started = time.perf_counter()
    with pytest.raises(EncoderError, match=r"num_hidden_layers is 100,000, supported are up to 1,000 layers"):
        opened(tmp_path / "deep")
    assert time.perf_counter() - started < 1.0
    GPT2Config().save_pretrained(tmp_path / "causal")
    with pytest.raises(EncoderError, match="type 'gpt2', which has no masked language model"):
        opened(tmp_path / "causal")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EncoderError, match="holds no config"):
        opened(tmp_path / "empty")


def test_models_whose_layers_cannot_be_fused_are_refused_before_anything_runs(tmp_path: Path) -> None:
    BartConfig().save_pretrained(tmp_path / "bart")
    FNetConfig().save_pretrained(tmp_path / "fnet")  # padding would change its predictions
    words = tokenizer()
    # its lower layers have fewer positions
    config = FunnelConfig(vocab_size=len(words), d_model=16, n_head=2, d_head=8, d_inner=32, block_sizes=[1, 1])
    FunnelForMaskedLM(config).save_pretrained(tmp_path / "funnel")
    words.save_pretrained(tmp_path / "funnel")
    for name, what in {
        "bart": "is of type 'bart', which has a decoder",
        "fnet": "is of type 'fnet', which has no attention heads",
        "funnel": r"layers of .* 2 of shape \(1, 5, 16\) are needed, but it has 5 of \(1, 5, 16\), \(1, 3, 16\)",
    }.items():
        with pytest.raises(EncoderError, match=what) as error:
            open_masked(str(tmp_path / name), device="cpu", max_tokens=512)
        assert error.value.fix == "take another encoder, e.g.: daamctl mlm --encoder FacebookAI/roberta-base"
