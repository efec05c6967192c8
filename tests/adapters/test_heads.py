"""The classifiers, against transformers' own models and plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from daamctl.adapters.heads import LastPositionHead, MeanHead, PatchHead, ProjectedHead, masked_mean
from tests.fixtures.tiny_models import IMAGE, LARGE, SPEECH, TEXT, Tiny, batch


def test_mean_over_the_positions_that_count() -> None:
    torch.manual_seed(0)
    hidden, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    expected = np.stack([hidden[0, :2].numpy().mean(0), hidden[1].numpy().mean(0)])
    np.testing.assert_allclose(masked_mean(hidden, mask).numpy(), expected, atol=1e-6)
    head = MeanHead(3, 4)
    logits = expected @ head.classifier.weight.detach().numpy().T + head.classifier.bias.detach().numpy()
    np.testing.assert_allclose(head(hidden, mask.bool()).detach().numpy(), logits, atol=1e-6)


@pytest.mark.parametrize("shape", [SPEECH, {**SPEECH, **LARGE}])
def test_speech_head_is_that_of_sequence_classification(shape: dict[str, object]) -> None:
    torch.manual_seed(0)
    theirs = hf.WavLMForSequenceClassification(hf.WavLMConfig(**shape, num_labels=4)).eval()
    encoder = Tiny(theirs.wavlm, "speech")
    inputs, mask = batch(encoder)
    head = ProjectedHead(32, 12, 4)
    assert not head.projector.weight.requires_grad
    assert head.classifier.weight.requires_grad
    head.load_state_dict({key: value for key, value in theirs.state_dict().items() if not key.startswith("wavlm.")})
    with torch.no_grad():
        assert torch.allclose(head(encoder.hidden(inputs), mask), theirs(**inputs).logits, atol=1e-6)


def test_image_head_is_that_of_image_classification() -> None:
    torch.manual_seed(0)
    theirs = hf.BeitForImageClassification(hf.BeitConfig(**IMAGE, num_labels=5)).eval()
    with torch.no_grad():
        theirs.beit.pooler.layernorm.weight.uniform_(0.5, 2)
    encoder = Tiny(theirs.beit, "image")
    inputs, mask = batch(encoder)
    head = PatchHead(theirs.beit.pooler.layernorm, 5)
    assert not any(value.requires_grad for value in head.norm.parameters())
    head.classifier.load_state_dict(theirs.classifier.state_dict())
    with torch.no_grad():
        assert torch.allclose(head(encoder.hidden(inputs), mask), theirs(**inputs).logits, atol=1e-6)


def test_text_head_is_that_of_sequence_classification_without_padding_token() -> None:
    torch.manual_seed(0)
    theirs = hf.LlamaForSequenceClassification(hf.LlamaConfig(**{**TEXT, "pad_token_id": None}, num_labels=4)).eval()
    ids = torch.randint(3, 50, (1, 12))
    mask = torch.tensor([[1] * 8 + [0] * 4])  # padded: the last position is read all the same (D46)
    head = LastPositionHead(32, 4)
    assert [key for key, _ in head.named_parameters()] == ["score.weight"]
    assert not head.score.weight.requires_grad
    head.score.load_state_dict(theirs.score.state_dict())
    with torch.no_grad():
        hidden = theirs.model(ids, attention_mask=mask).last_hidden_state
        assert torch.allclose(head(hidden, mask), theirs(ids, attention_mask=mask).logits, atol=1e-6)


def test_published_heads_start_as_transformers_models_do() -> None:
    torch.manual_seed(0)
    head = ProjectedHead(1024, 256, 100)
    for linear in (head.projector, head.classifier):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert not linear.bias.any()
