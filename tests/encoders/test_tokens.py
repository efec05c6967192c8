"""Vectors of words: means of hidden states over their sub-words, whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import normalizers
from torch import Tensor

from daamctl.config import ExtractConfig
from daamctl.encoders.text import byte_tokenizer
from daamctl.encoders.tokens import OUTSIDE, TokenEncoder
from daamctl.errors import EncoderError
from tests.encoders.test_text import TOLERANCE, marked_tokenizer, model_of

SENTENCES = [["Ada", "met", "Öl", "."], ["x"], ["a", "rather", "longwindedly", "written", "sentence"]]


def encoder_of(case: str, *, tokenizer: Any = None, max_tokens: int = 60, **options: Any) -> TokenEncoder:
    return TokenEncoder(
        case,
        model_of(case),
        marked_tokenizer() if tokenizer is None else tokenizer,
        device="cpu",
        precision="float32",
        options=ExtractConfig(max_tokens=max_tokens, **options),
    )


@torch.inference_mode()
def reference(case: str, item: Tensor, word: int) -> Tensor:
    """(N, D): every hidden state of one sentence by itself, averaged over the tokens of a word."""
    states = model_of(case)(input_ids=item[0][None], output_hidden_states=True).hidden_states[1:]
    return torch.stack([state[0, item[1] == word].mean(0) for state in states])


@pytest.mark.parametrize("subwords", ["first", "mean"])
@pytest.mark.parametrize("case", ["bert", "roberta", "llama", "gpt2"])
def test_vectors_are_means_over_the_sub_words(case: str, subwords: str) -> None:
    encoder = encoder_of(case, subwords=subwords)
    items = [part for parts in encoder.word_tokens(SENTENCES, 60) for part in parts]
    pooled, counts = encoder.pool(items)
    expected = torch.stack([reference(case, item, word) for item in items for word in range(int(item[1].max()) + 1)])
    torch.testing.assert_close(pooled, expected, **TOLERANCE)
    sizes = [len(word.encode()) for words in SENTENCES for word in words]
    assert counts.tolist() == (sizes if subwords == "mean" else [1] * len(sizes))
    assert encoder.modality == "tokens"


def test_a_space_belongs_to_the_word_that_its_token_ends_in() -> None:
    """As in the tokenizers of GPT-2 and RoBERTa; a token that is a space alone belongs to none."""
    (parts,) = encoder_of("bert", tokenizer=byte_tokenizer([("Ġ", "b")]), subwords="mean").word_tokens(
        [["aa", "bc", "d"]], 60
    )
    assert parts[0][1].tolist() == [OUTSIDE, 0, 0, 1, 1, OUTSIDE, 2]


def test_padding_and_neighbours_have_no_effect() -> None:
    encoder = encoder_of("bert")
    items = [parts[0] for parts in encoder.word_tokens(SENTENCES, 60)]
    together = encoder.pool(items)[0]
    alone = torch.cat([encoder.pool([item])[0] for item in items])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_a_long_sentence_is_cut_between_words() -> None:
    encoder = encoder_of("bert", max_tokens=9, subwords="mean")
    (parts,) = encoder.word_tokens([["abc", "def", "longerthanseven", "g"]], 9)
    assert [part[0].shape[0] <= 9 for part in parts] == [True] * len(parts)
    owners = [sorted(set(part[1].tolist()) - {OUTSIDE}) for part in parts]
    assert owners == [[0, 1], [2], [3]]
    assert int((parts[1][1] == 2).sum()) == 7  # what fits beside the two added tokens
    for part in parts:
        assert part[0, [0, -1]].tolist() == [1, 2]


def test_a_word_without_a_token_is_read_as_the_unknown_token() -> None:
    tokenizer = marked_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    encoder = encoder_of("bert", tokenizer=tokenizer)
    words = ["a", "\u200b", "b"]
    assert set(encoder.word_tokens([words], 60)[0][0][1].tolist()) == {OUTSIDE, 0, 2}
    tokenizer.unk_token = "<pad>"
    assert set(encoder.word_tokens([words], 60)[0][0][1].tolist()) == {OUTSIDE, 0, 1, 2}


def test_a_tokenizer_without_offsets_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(EncoderError, match="does not tell where its tokens are"):
        encoder_of("bert", tokenizer=Slow())
