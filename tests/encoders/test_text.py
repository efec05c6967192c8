"""Text encoders on tiny models of Hugging Face's own classes: means of hidden states, whatever is padded or added."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daamctl.config import ExtractConfig
from daamctl.encoders.text import BYTE_TOKENS, TextEncoder, byte_tokenizer, model_limit, tokenizer_hash
from daamctl.errors import EncoderError

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": 300, "d_model": 16, "num_layers": 3, "num_decoder_layers": 1, "num_heads": 2, "d_ff": 24, "d_kv": 8}
OPT = {
    "vocab_size": 300,
    "hidden_size": 16,
    "word_embed_proj_dim": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "ffn_dim": 24,
    "max_position_embeddings": 64,
    "do_layer_norm_before": False,
}
LED = {
    "vocab_size": 300,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "attention_window": 8,
    "max_encoder_position_embeddings": 64,
}
# model type, settings, name of its final norm in the model
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", SIZES, "norm"),
    "grouped-query": ("mistral", {**SIZES, "num_key_value_heads": 1}, "norm"),
    "gpt2": ("gpt2", {"vocab_size": 300, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64}, "ln_f"),
    "openai-gpt": ("openai-gpt", {"vocab_size": 300, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64}, ""),
    "bert": ("bert", SIZES, ""),
    "longformer": ("longformer", {**SIZES, "attention_window": [8, 8, 8]}, ""),
    "roberta": ("roberta", SIZES, ""),
    "pre-norm": ("roberta-prelayernorm", SIZES, "LayerNorm"),  # its classes are named like norms
    "projected": ("opt", OPT, ""),  # its output is half as wide as its layers
    "distilbert": ("distilbert", {"vocab_size": 300, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24}, ""),
    "modernbert": ("modernbert", {**SIZES, "global_attn_every_n_layers": 2}, "final_norm"),
    "t5": ("t5", T5, "final_layer_norm"),
    # without layers that hooks can read: these keep time first, those in several lists
    "xlnet": ("xlnet", {"vocab_size": 300, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24}, ""),
    "flaubert": ("flaubert", {"vocab_size": 300, "emb_dim": 16, "n_layers": 3, "n_heads": 2}, ""),
}
NAMES = list(CASES)
CAUSAL = ("llama", "grouped-query", "gpt2", "openai-gpt", "projected")
TEXTS = ("Stocks fell.", "A longer text about nothing at all", "äöü")
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}


@cache
def model_of(case: str) -> Any:
    from transformers import AutoConfig, AutoModel

    kind, sizes, _ = CASES[case]
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **BYTE_TOKENS)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # random models leave norms at one and biases at zero, which hides mistakes
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.get_encoder() if model.config.is_encoder_decoder else model


def marked_tokenizer() -> Any:
    """The byte tokenizer with a token at either end, as BERT and its kin have."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    special = [("<s>", 1), ("</s>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    return tokenizer


def encoder_of(
    case: str, *, tokenizer: Any = None, max_tokens: int = 60, precision: str = "float32", **options: Any
) -> TextEncoder:
    return TextEncoder(
        case,
        model_of(case),
        byte_tokenizer() if tokenizer is None else tokenizer,
        device="cpu",
        precision=precision,
        options=ExtractConfig(max_tokens=max_tokens, **options),
    )


@torch.inference_mode()
def reference(case: str, ids: Tensor, counted: slice, *, final_norm: bool = True) -> Tensor:
    """(N + 1, D): the mean of every hidden state of one text by itself, over some of its positions."""
    model, norm = model_of(case), CASES[case][2]
    output = model(input_ids=ids[None], output_hidden_states=True)
    last: list[Any] = [output.last_hidden_state]
    if norm and not final_norm:
        handle = getattr(model, norm).register_forward_pre_hook(lambda _m, args: last.append(args[0]))
        model(input_ids=ids[None])
        handle.remove()
    return torch.stack([state[0, counted].mean(0) for state in [*output.hidden_states[:-1], last[-1]]])


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("case", NAMES)
def test_pooled_layers_are_means_of_hidden_states(case: str, special: bool, final_norm: bool) -> None:
    """In one padded batch, every text has the vectors it has alone; added tokens count or do not."""
    encoder = encoder_of(
        case, tokenizer=marked_tokenizer(), layer_00=True, pool_special_tokens=special, final_norm=final_norm
    )
    ids, cut = encoder.tokens(TEXTS, 60)
    pooled, counts = encoder.pool(ids)
    counted = slice(None) if special else slice(1, -1)
    for row, own in enumerate(ids):
        torch.testing.assert_close(pooled[row], reference(case, own, counted, final_norm=final_norm), **TOLERANCE)
    assert counts.tolist() == [len(text.encode()) + 2 * special for text in TEXTS]
    assert cut == [False] * 3
    assert encoder.modality == "text"
    assert pooled.dtype == torch.float32
    assert encoder.layers == (0, 1, 2, 3)
    assert encoder.embed_dim == pooled.shape[2] == 16
    assert not encoder.equal_length_batches
    assert encoder.has_final_norm == bool(CASES[case][2])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("case", NAMES)
def test_the_last_token_alone(case: str, special: bool) -> None:
    encoder = encoder_of(
        case, tokenizer=marked_tokenizer(), layer_00=True, pool_special_tokens=special, pooling="last-token"
    )
    ids, _ = encoder.tokens(TEXTS, 60)
    pooled, counts = encoder.pool(ids)
    place = slice(-1, None) if special else slice(-2, -1)
    for row, own in enumerate(ids):
        torch.testing.assert_close(pooled[row], reference(case, own, place, final_norm=True), **TOLERANCE)
    assert counts.tolist() == [1, 1, 1]
    assert encoder.facts()["pooling"] == "last-token"


@pytest.mark.parametrize("case", NAMES)
def test_the_first_token_alone(case: str) -> None:
    options: dict[str, Any] = {"tokenizer": marked_tokenizer(), "layer_00": True, "pooling": "first-token"}
    if case in CAUSAL:
        with pytest.raises(EncoderError, match="gives all texts one vector at their first token") as caught:
            encoder_of(case, **options)
        assert caught.value.fix == "set extract.pooling to valid-frames or last-token"
        return
    encoder = encoder_of(case, **options)
    ids, _ = encoder.tokens(TEXTS, 60)
    pooled, counts = encoder.pool(ids)
    for row, own in enumerate(ids):
        torch.testing.assert_close(pooled[row], reference(case, own, slice(0, 1), final_norm=True), **TOLERANCE)
    assert counts.tolist() == [1, 1, 1]
    assert encoder.facts()["pooling"] == "first-token"


def test_a_tokenizer_that_puts_nothing_first() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    with pytest.raises(EncoderError, match="'t5' puts no token before a text"):
        encoder_of("t5", tokenizer=tokenizer, pooling="first-token")


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("canine", {**SIZES, "num_hash_buckets": 64}, "has no table of token embeddings, so it cannot read text"),
        ("dpr", SIZES, "gives no last hidden state, by which its layers are found"),
    ],
)
def test_models_that_cannot_be_read_are_refused(
    kind: str, sizes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, kind, (kind, sizes, ""))
    with pytest.raises(EncoderError, match=reason):
        encoder_of(kind)


def test_a_text_has_no_frames() -> None:
    with pytest.raises(EncoderError, match="cannot pool by all-frames") as caught:
        encoder_of("bert", pooling="all-frames")
    assert caught.value.fix == "set extract.pooling to valid-frames or last-token or first-token"


@pytest.mark.parametrize("case", ["llama", "bert"])
def test_special_tokens_matter(case: str) -> None:
    within, without = (encoder_of(case, pool_special_tokens=flag) for flag in (True, False))
    ids, _ = without.tokens(TEXTS[:1], 60)
    assert ids[0][0] == BYTE_TOKENS["bos_token_id"]
    assert (without.first, without.last) == (1, 0)  # begin of sequence alone, as with Llama
    assert not torch.allclose(within.pool(ids)[0], without.pool(ids)[0], atol=1e-3)
    assert within.pool(ids)[1].tolist() == [13]
    assert without.pool(ids)[1].tolist() == [12]


@pytest.mark.parametrize("case", NAMES)
def test_collate_masks_padding_and_hidden_is_the_last_state(case: str) -> None:
    encoder = encoder_of(case, tokenizer=marked_tokenizer())
    ids, _ = encoder.tokens(TEXTS, 60)
    inputs, mask = encoder.collate(ids)
    lengths = [len(own) for own in ids]
    assert inputs["input_ids"].shape == mask.shape == (3, max(lengths))
    assert inputs["attention_mask"].sum(1).tolist() == lengths
    assert mask.sum(1).tolist() == [length - 2 for length in lengths]
    assert not mask[:, 0].any()
    hidden = encoder.hidden(inputs)
    for row, own in enumerate(ids):
        alone = model_of(case)(input_ids=own[None]).last_hidden_state[0]
        torch.testing.assert_close(hidden[row, : len(own)], alone, **TOLERANCE)


def test_hidden_keeps_gradients_and_no_cache() -> None:
    encoder = encoder_of("llama")
    inputs, _ = encoder.collate(encoder.tokens(TEXTS, 60)[0])
    assert encoder.hidden(inputs).requires_grad
    assert encoder.model(**inputs).past_key_values is None


def test_a_model_that_does_not_heed_the_mask_gets_equal_lengths() -> None:
    from transformers import FNetConfig, FNetModel

    torch.manual_seed(0)
    model = FNetModel(FNetConfig(**{k: v for k, v in SIZES.items() if k != "num_attention_heads"}, **BYTE_TOKENS))
    encoder = TextEncoder(
        "fnet",
        model.eval(),
        byte_tokenizer(),
        device="cpu",
        precision="float32",
        options=ExtractConfig(max_tokens=60),
    )
    assert encoder.equal_length_batches


def test_texts_of_a_model_whose_positions_depend_on_the_longest_of_a_batch_get_equal_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LongRoPE: beside a longer text, a short one would be read by the factors for long ones."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    monkeypatch.setitem(
        CASES, "phi3", ("phi3", {**SIZES, "rope_parameters": rope, "original_max_position_embeddings": 40}, "")
    )
    assert encoder_of("phi3").equal_length_batches
    assert encoder_of("phi3").was_padded
    assert not encoder_of("phi3", max_tokens=40).equal_length_batches
    assert not encoder_of("llama").was_padded


def test_long_texts_are_cut_at_their_end() -> None:
    encoder = encoder_of("bert", tokenizer=marked_tokenizer(), max_tokens=10, pool_special_tokens=True)
    ids, cut = encoder.tokens(["12345678", "123456789", ""], encoder.max_tokens)
    assert cut == [False, True, False]
    assert [len(own) for own in ids] == [10, 10, 2]
    assert torch.equal(ids[0], ids[1])  # the tokens at either end stay
    assert [encoder.num_text_tokens(own) for own in ids] == [8, 8, 0]


@pytest.mark.parametrize(
    ("case", "limit"),
    [("bert", 64), ("llama", 64), ("roberta", 63), ("gpt2", 64), ("t5", 4096), ("led", 64), ("mpt", 64)],
)
def test_the_models_positions_limit_the_length(case: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "led", ("led", LED, ""))
    monkeypatch.setitem(
        CASES, "mpt", ("mpt", {"vocab_size": 300, "d_model": 16, "n_layers": 3, "n_heads": 2, "max_seq_len": 64}, "")
    )
    encoder = encoder_of(case, max_tokens=4096)
    assert encoder.max_tokens == limit
    ids, _ = encoder.tokens(["x" * 99], encoder.max_tokens)
    assert encoder.pool(ids)[0].isfinite().all()  # that many positions do exist


def test_the_tokenizers_limit_counts_too() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 20
    assert encoder_of("llama", tokenizer=tokenizer).max_tokens == 20
    assert model_limit(model_of("t5"), tokenizer) == 20


def test_no_room_for_text() -> None:
    with pytest.raises(EncoderError) as caught:
        encoder_of("bert", tokenizer=marked_tokenizer(), max_tokens=2)
    assert str(caught.value) == (
        "a limit of 2 tokens leaves no room for text beside the 2 that the tokenizer of encoder 'bert' adds\n"
        "  raise extract.max_tokens"
    )


def test_tokenizer_of_another_model() -> None:
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(f"word{i}") for i in range(50)])
    encoder = encoder_of("bert", tokenizer=tokenizer)
    ids, _ = encoder.tokens(["word49"], 60)
    with pytest.raises(EncoderError, match=r"^the tokenizer gives token 308, the model has 300: they do not belong"):
        encoder.pool(ids)


def test_tokenizer_without_files() -> None:
    from transformers import BertTokenizer

    with pytest.raises(EncoderError, match=r"^encoder 'bert' comes with a tokenizer without a vocabulary"):
        encoder_of("bert", tokenizer=BertTokenizer())


def test_tokenizer_of_sentencepiece(tmp_path: Path) -> None:
    """As DeBERTa-v3's, which has no tokenizer.json."""
    import sentencepiece

    (tmp_path / "text.txt").write_text("a text of words that return, of which the words are a text\n" * 20)
    marks = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    ids = {f"{name}_id": number for number, name in enumerate(marks)}
    pieces = {f"{name}_piece": mark for name, mark in marks.items()}
    files = {"input": str(tmp_path / "text.txt"), "model_prefix": str(tmp_path / "spm")}
    options = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**files, **options, **ids, **pieces)
    config = {**SIZES, "model_type": "deberta-v2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    tokenizer = TextEncoder.load_reader(str(tmp_path))
    found = tokenizer.convert_ids_to_tokens(tokenizer("words that return")["input_ids"])
    assert (found[0], found[-1]) == ("[CLS]", "[SEP]")
    assert "".join(found[1:-1]) == "▁words▁that▁return"
    assert "[UNK]" not in found


def test_byte_tokenizer_takes_any_text() -> None:
    tokenizer = byte_tokenizer()
    text = "Naïve\n\t漢字 🙂 \x00"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == 1 + len(text.encode())
    assert ids[0] == 1
    assert max(ids) < len(tokenizer) == 259
    assert tokenizer.decode(ids[1:]) == text


def test_hash_of_a_tokenizer_ignores_its_last_call() -> None:
    tokenizer = byte_tokenizer()
    before = tokenizer_hash(tokenizer)
    tokenizer(["a", "bc"], truncation=True, max_length=2, padding=True)
    assert tokenizer_hash(tokenizer) == before == tokenizer_hash(byte_tokenizer())
    assert tokenizer_hash(marked_tokenizer()) != before


def test_bfloat16_is_near_and_pooled_in_float32() -> None:
    ids, _ = encoder_of("llama").tokens(TEXTS, 60)
    plain = encoder_of("llama").pool(ids)[0]
    half = encoder_of("llama", precision="bfloat16").pool(ids)[0]
    assert half.dtype == torch.float32
    assert not torch.equal(half, plain)
    torch.testing.assert_close(half, plain, atol=0.15, rtol=0.1)


def test_no_hook_of_ours_is_left() -> None:
    encoder = encoder_of("bert", layer_00=True)

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in encoder.model.modules())

    before = hooks()  # the library leaves some of its own behind, which do nothing
    encoder.pool(encoder.tokens(TEXTS, 60)[0])
    encoder_of("bert")
    assert hooks() == before
    assert isinstance(encoder.pooler.layers[0], nn.Module)


def test_training_is_given_pinned_batches_with_their_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, pinned = encoder_of("llama"), []
    items, _ = encoder.tokens(TEXTS, 60)
    plain, plain_mask = encoder.collate(items)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (pinned.append(self.shape), self)[1])
    monkeypatch.setattr(encoder, "send", lambda inputs, mask: (inputs, mask))
    encoder.device, encoder.sends_mask = "cuda", False  # as inference on a GPU leaves it out
    inputs, mask = encoder.collate(items)
    assert torch.equal(mask, plain_mask)
    assert all(torch.equal(inputs[name], plain[name]) for name in ("input_ids", "attention_mask"))
    assert pinned == 3 * [mask.shape]


@pytest.mark.parametrize("case", NAMES)
def test_which_models_ignore_padding(case: str) -> None:
    encoder = encoder_of(case)
    items, _ = encoder.tokens(TEXTS, 60)
    ignores = ("llama", "grouped-query", "gpt2", "openai-gpt", "projected", "flaubert")  # the last finds it by its id
    assert encoder.ignores_padding(items) == (case in ignores)
    assert encoder.sends_mask  # on a CPU nothing is gained
    expected, counts = encoder.pool(items)
    encoder.sends_mask = False
    assert "attention_mask" not in encoder.to_batch(items).inputs
    found, same = encoder.pool(items)
    assert torch.equal(counts, same)
    assert torch.allclose(found, expected, **TOLERANCE) == (case in ignores)
