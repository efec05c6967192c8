"""The classifier of words: each word by itself, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from daamctl.adapters import FINETUNES, build_finetune, check_effect
from daamctl.adapters.words import WordHead
from daamctl.errors import MethodError
from tests.fixtures.tiny_models import tiny

MASK = torch.tensor([[[0, 1, 1, 0], [0, 0, 0, 1]], [[0, 1, 0, 0], [0, 0, 0, 0]]]).bool()
"""Two sentences: of two words, the first of two tokens, and of one word."""


def test_a_word_is_the_mean_of_its_tokens() -> None:
    torch.manual_seed(0)
    head, hidden = WordHead(3, 5), torch.randn(2, 4, 3)
    expected = torch.stack([(hidden[0, 1] + hidden[0, 2]) / 2, hidden[0, 3], hidden[1, 1]])
    torch.testing.assert_close(head(hidden, MASK), head.classifier(expected))


def test_padding_has_no_effect() -> None:
    head, hidden = WordHead(3, 5), torch.randn(2, 4, 3)
    wider = torch.nn.functional.pad(MASK, (0, 2, 0, 1))
    torch.testing.assert_close(head(torch.nn.functional.pad(hidden, (0, 0, 0, 2)), wider), head(hidden, MASK))


@pytest.mark.parametrize("name", [name for name in FINETUNES if name.endswith("-published")])
def test_a_published_classifier_of_texts_tags_no_words(name: str) -> None:
    encoder = tiny("llama")
    encoder.modality = "tokens"
    with pytest.raises(MethodError, match=f"^{name}: ") as error:
        build_finetune(name, encoder, num_classes=3, seed=0)
    assert error.value.fix == f"use '{name.removesuffix('-published')}'"


@pytest.mark.parametrize("name", [name for name in FINETUNES if not name.endswith("-published")])
def test_every_other_way_of_fine_tuning_acts_on_words(name: str) -> None:
    encoder = tiny("bert")
    encoder.modality = "tokens"
    model = build_finetune(name, encoder, num_classes=5, seed=0)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]), "attention_mask": MASK.new_ones(2, 4).long()}
    inputs["attention_mask"][1, 2:] = 0
    targets = torch.tensor([0, 1, 2])
    assert check_effect(model, inputs, MASK, targets, torch.nn.functional.cross_entropy).silent == ()
    assert model(inputs, MASK).shape == (3, 5)
