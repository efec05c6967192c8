"""The published LoRA and LoRA+: their formula, their counts, and what they do not train."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from daamctl.adapters import build_finetune, check_effect, lora_published
from tests.adapters.test_base import PUBLISHED, TARGETS, copies, make, moved, step
from tests.fixtures.tiny_models import batch, outline, tiny

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA = {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 13824}
ENCODERS = {
    "speech": (lambda: hf.WavLMModel(hf.WavLMConfig(**LARGE, feat_extract_norm="layer", do_stable_layer_norm=True)), 4),
    "image": (lambda: hf.BeitModel(hf.BeitConfig(**LARGE, use_relative_position_bias=True)), 100),
    "text": (lambda: hf.LlamaModel(hf.LlamaConfig(**LLAMA)), 4),
}
COUNTS = {  # docs/sources.md#parameter-counts, as printed in the papers; of it, what no optimiser of LoRA+ holds
    ("speech", "r4"): (394_244, 1_028),
    ("speech", "r8"): (787_460, 1_028),
    ("image", "r4"): (495_716, 102_500),
    ("image", "r8"): (888_932, 102_500),
    ("text", "r4"): (3_276_800, 0),
    ("text", "r8"): (6_553_600, 0),
}


@pytest.mark.parametrize(("modality", "rank"), COUNTS)
@pytest.mark.parametrize("kind", ["lora", "lora-plus"])
def test_counts_are_the_printed_ones(modality: str, rank: str, kind: str) -> None:
    make_model, classes = ENCODERS[modality]
    with torch.device("meta"):
        model = build_finetune(f"{kind}-{rank}-published", outline(make_model(), modality), num_classes=classes, seed=0)
    flagged, idle = COUNTS[modality, rank]
    assert sum(value.numel() for value in model.parameters() if value.requires_grad) == flagged
    held = sum(value.numel() for value in model.trained().values())
    assert held == flagged - (idle if kind == "lora-plus" else 0)
    assert len(model.adapted) == (80 if modality == "text" else 48)  # the search by name would find none in BEiT (D55)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("architecture", ["wavlm", "wavlm-base"])
def test_on_wavlm_the_adapters_do_nothing(name: str, architecture: str) -> None:
    model, inputs, mask = make(name, architecture)
    expected = model(inputs, mask)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if ".low_rank." in key:
                value.normal_(std=10)
    assert torch.equal(model(inputs, mask), expected)
    before = copies(model)
    step(model, inputs, mask, times=3)
    trained = moved(before, model)
    assert trained == (set() if "plus" in name else {"head.classifier.weight", "head.classifier.bias"})
    effect = check_effect(model, inputs, mask, TARGETS, nn.functional.cross_entropy)
    assert (effect.with_gradient, effect.output_change) == (0, 0.0)


@pytest.mark.parametrize("architecture", ["wavlm", "wav2vec2", "beit", "llama"])
def test_head_is_never_trained_where_it_was_not(architecture: str) -> None:
    text = architecture == "llama"
    for name in ("lora-r4-published", "lora-plus-r4-published"):
        model, inputs, mask = make(name, architecture)
        before = copies(model)
        step(model, inputs, mask)
        heads = {key for key in moved(before, model) if key.startswith("head.")}
        assert heads == (set() if text or "plus" in name else {"head.classifier.weight", "head.classifier.bias"})
        flagged = {key for key, value in model.named_parameters() if key.startswith("head.") and value.requires_grad}
        assert flagged == (set() if text else {"head.classifier.weight", "head.classifier.bias"})


def test_update_is_not_divided_by_the_rank() -> None:
    encoder = tiny("wav2vec2")
    model = build_finetune("lora-r8-published", encoder, num_classes=3, seed=1)
    linear = encoder.model.get_submodule(model.adapted[0])
    update, x = linear.low_rank, torch.randn(2, 3, 32)
    assert update.a.shape == (32, 8)
    assert not update.b.any()
    with torch.no_grad():
        before = linear(x)
        update.b.normal_()
        assert torch.allclose(linear(x), before + 16 * x @ update.a @ update.b, atol=1e-4)


@pytest.mark.parametrize("rank", [4, 8])
def test_start_of_a_has_variance_one_over_rank(rank: int) -> None:
    torch.manual_seed(0)
    assert lora_published.LowRank(4096, 8, rank).a.std().item() == pytest.approx(rank**-0.5, rel=0.02)


def test_rates_are_the_published_ones() -> None:
    model, _, _ = make("lora-plus-r4-published", "beit")
    groups = model.parameter_groups(1e-4, 0.01)
    assert sorted(group["lr"] for group in groups) == pytest.approx([1e-4, 2.828e-4])
    faster = next(group for group in groups if group["lr"] > 2e-4)
    assert {value.shape[0] for value in faster["params"]} == {4}  # B
    same, _, _ = make("lora-r4-published", "beit")
    assert {group["lr"] for group in same.parameter_groups(1e-4, 0.01)} == {1e-4}


def test_norm_of_the_images_is_the_encoders_own() -> None:
    encoder = tiny("beit")
    model = build_finetune("lora-r4-published", encoder, num_classes=3, seed=1)
    assert torch.equal(model.head.norm.weight, encoder.model.pooler.layernorm.weight)
    assert model.head.norm.weight.mean() != 1
    assert model.head.norm.eps == 1e-12
    encoder = tiny("beit")
    encoder.model.pooler = None
    plain = build_finetune("lora-r4-published", encoder, num_classes=3, seed=1)
    assert torch.equal(plain.head.norm.weight, torch.ones(32))
    assert plain.head.norm.eps == 1e-12


def test_texts_are_padded_with_the_end_token_and_read_at_the_end() -> None:
    encoder = tiny("llama")
    inputs, mask = batch(encoder)
    missing = 128 - inputs["input_ids"].shape[1]
    padded = {
        "input_ids": nn.functional.pad(inputs["input_ids"], (0, missing), value=encoder.model.config.eos_token_id),
        "attention_mask": nn.functional.pad(inputs["attention_mask"], (0, missing)),
    }
    last = encoder.hidden(padded)[:, -1]
    model = build_finetune("lora-r4-published", encoder, num_classes=3, seed=1)
    expected = last @ model.head.score.weight.T
    assert torch.allclose(model(inputs, mask), expected, atol=1e-6)
    assert torch.allclose(model(padded, mask), expected, atol=1e-6)  # long enough already
    other = {**inputs, "input_ids": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 7)}
    assert not torch.equal(other["input_ids"], inputs["input_ids"])
    assert torch.equal(model(other, mask), model(inputs, mask))  # whatever the batch was padded with
    longer = {name: nn.functional.pad(value, (0, 9)) for name, value in padded.items()}
    assert torch.equal(model(longer, mask), model(padded, mask))
    ids = torch.randint(3, 50, (3, 140), generator=torch.Generator().manual_seed(0))
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = encoder.hidden({"input_ids": ids[:, :128]})[:, -1] @ model.head.score.weight.T
    assert torch.allclose(model(whole, mask), expected, atol=1e-6)
    assert torch.allclose(model({"input_ids": ids}, mask), expected, atol=1e-6)


def test_logits_of_a_text_do_not_depend_on_its_batch() -> None:
    encoder = tiny("llama")
    model = build_finetune("lora-r4-published", encoder, num_classes=3, seed=1).eval()
    short, long = torch.tensor([5, 6, 7]), torch.randint(3, 50, (140,), generator=torch.Generator().manual_seed(0))
    alone = model(*encoder.collate([short]))
    for other in (long[:20], long):
        assert torch.allclose(model(*encoder.collate([short, other]))[:1], alone, atol=1e-6)
