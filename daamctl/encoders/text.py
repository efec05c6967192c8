"""Text encoders, causal or bidirectional: any Hugging Face base model whose layers are found or returned.

Batches are padded on the right with an attention mask, and padding is never averaged. Whether the tokens added by the
tokenizer are averaged is a setting (D45). Language-model heads, decoders and caches are not used.
"""

from __future__ import annotations

import hashlib
import json
import string
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.base import Batch, Encoder
from daamctl.encoders.presets import Preset
from daamctl.errors import EncoderError

TRIAL = ("density adaptive attention", "daam")  # unequal lengths, to test padding too
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
BYTE_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
"""Ids in `byte_tokenizer`, as settings of a model with random weights; the 256 bytes follow."""
LETTER_PAIRS = tuple((a, b) for a in string.ascii_lowercase for b in string.ascii_lowercase)
"""Merges of `byte_tokenizer` for random weights: averaged over single bytes, vectors hardly distinguish topics."""

POSITIONS = ("max_position_embeddings", "max_encoder_position_embeddings", "max_seq_len")
"""Settings of a model that state its number of positions; the last two are LED's and MPT's."""


class TextEncoder(Encoder):
    """Pools the layers of a text model.

    Raises:
        EncoderError: the tokenizer does not fit the model, or the model's layers cannot be pooled (see `find_layers`).
    """

    modality: ClassVar[Modality] = "text"
    poolings: ClassVar[tuple[str, ...]] = ("valid-frames", "last-token", "first-token")

    def set_up(self, model: Any, reader: Any) -> None:
        """Read tokenizer and limits, and find out how padding acts; see `Encoder`."""
        model.config.use_cache = False
        reader.truncation_side = "right"
        self.tokenizer = reader
        if len(reader) <= len(set(reader.all_special_ids)):
            raise EncoderError(
                f"{self.what} comes with a tokenizer without a vocabulary; its files are missing",
                fix="save those of the original model in it: AutoTokenizer.from_pretrained(ID).save_pretrained(FOLDER)",
            )
        self.sends_mask = True
        try:
            self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        except (NotImplementedError, AttributeError) as error:
            raise EncoderError(f"{self.what} has no table of token embeddings, so it cannot read text") from error
        self.first, self.last = added_tokens(reader)
        self.pad = padding_id(reader, model.config, self.vocabulary)
        limit = model_limit(model, reader)
        self.max_tokens = min(self.options.max_tokens, limit)
        self.tokens(TRIAL, self.max_tokens)  # fails at once if the limit leaves no room for text
        trial, _ = self.tokens(TRIAL, limit)
        self.discover(trial)
        if self.options.pooling == "first-token":
            of_texts, _ = self.pool(trial)
            why = "puts no token before a text" if not self.first else "gives all texts one vector at their first token"
            if not self.first or self.is_close(of_texts[:1], of_texts[1:]):
                raise EncoderError(f"{self.what} {why}", fix="set extract.pooling to valid-frames or last-token")
        # A model that mixes positions but ignores the mask would see the padding of its neighbours.
        heeds_mask = self.is_close(self.pool(trial[1:])[0], self.pool(trial)[0][1:])
        # The longest text of a batch chooses the factors of LongRoPE for all; the trial is too short to show it.
        rope = getattr(model.config, "rope_parameters", None) or {}
        switches = rope.get("rope_type") == "longrope" and rope["original_max_position_embeddings"] < self.max_tokens
        self.equal_length_batches = switches or not heeds_mask
        self.was_padded = switches and heeds_mask
        # A padding mask keeps torch from its fastest attention on GPUs; after a causal one, padding changes nothing.
        self.sends_mask = not (self.device.startswith("cuda") and self.ignores_padding(trial))

    @staticmethod
    def load_reader(source: str, **options: Any) -> Any:
        """Load the tokenizer; see `Encoder`."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source, **options)

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make a tokenizer of bytes and pairs of letters; see `Encoder`."""
        return byte_tokenizer(LETTER_PAIRS)

    def tokens(self, texts: Sequence[str], limit: int) -> tuple[list[Tensor], list[bool]]:
        """Turn texts into token ids, truncated to `limit` tokens.

        Returns:
            For each text its ids (T,), added tokens included, and whether it was truncated.

        Raises:
            EncoderError: the limit leaves no room for text.
        """
        if limit <= self.first + self.last:
            raise EncoderError(
                f"a limit of {limit} tokens leaves no room for text beside the {self.first + self.last} that the "
                f"tokenizer of {self.what} adds",
                fix="raise extract.max_tokens",
            )
        whole = self.tokenizer(list(texts), verbose=False)["input_ids"]
        cut = [len(ids) > limit for ids in whole]
        for row in (row for row, too_long in enumerate(cut) if too_long):
            whole[row] = self.tokenizer(texts[row], truncation=True, max_length=limit, verbose=False)["input_ids"]
        return [torch.tensor(ids, dtype=torch.long) for ids in whole], cut

    def num_text_tokens(self, ids: Tensor) -> int:
        """Number of tokens of the text itself among (T,) ids."""
        return len(ids) - self.first - self.last

    def positions(self, size: int) -> int:
        """Number of tokens, which is the size itself; see `Encoder`."""
        return size

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch token ids (T,); see `Encoder`.

        Raises:
            EncoderError: the tokenizer produces an id that the model does not have.
        """
        lengths = torch.tensor([len(ids) for ids in items])[:, None]
        batch = nn.utils.rnn.pad_sequence(list(items), batch_first=True, padding_value=self.pad)
        if int(batch.max()) >= self.vocabulary:
            raise EncoderError(
                f"the tokenizer gives token {int(batch.max())}, the model has {self.vocabulary}: they do not belong "
                "together"
            )
        positions = torch.arange(batch.shape[1])
        real = positions < lengths  # (B, T)
        first, last = (0, 0) if self.options.pool_special_tokens else (self.first, self.last)
        mask = (positions >= first) & (positions < lengths - last)
        if self.options.pooling == "last-token":
            mask &= positions == lengths - last - 1
        if self.options.pooling == "first-token":
            mask = (positions == 0).expand_as(real)
        return {"input_ids": batch, "attention_mask": real.long()}, mask

    def to_batch(self, items: Sequence[Tensor]) -> Batch:
        """Collate a batch, without its padding mask if the model needs none; see `Encoder`."""
        batch = super().to_batch(items)
        return batch if self.sends_mask else _without_mask(batch)

    @torch.inference_mode()
    def ignores_padding(self, items: Sequence[Tensor]) -> bool:
        """Whether the vectors of items of unequal lengths are the same without a padding mask: the model is causal."""
        batch = super().to_batch(items)
        masked, plain = (self.run_async(one)().values for one in (batch, _without_mask(batch)))
        return self.is_close(masked, plain)

    def facts(self) -> dict[str, Any]:
        """Tokenizer, limit and added tokens; see `Encoder`."""
        return {
            "pooling": self.options.pooling,
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
            "max_tokens": self.max_tokens,
            "special_tokens": {"first": self.first, "last": self.last, "pooled": self.options.pool_special_tokens},
        }


def model_limit(model: Any, tokenizer: Any) -> int:
    """Longest input in tokens: the lower of the tokenizer's limit and the model's positions; unlimited without both."""
    limits = [int(tokenizer.model_max_length), sys.maxsize]
    # RoBERTa and its variants start counting positions after the padding id
    tables = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
    offsets = [module.padding_idx + 1 for module in tables if getattr(module, "padding_idx", None) is not None]
    stated = [getattr(model.config, name, None) for name in POSITIONS]
    limits += [int(number) - max(offsets, default=0) for number in stated if number is not None and int(number) > 0]
    return min(limits)


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of everything that maps text to ids; independent of state left by earlier calls."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        value: Any = [type(tokenizer).__name__, tokenizer.get_vocab(), added_tokens(tokenizer)]
    else:
        value = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _without_mask(batch: Batch) -> Batch:
    return replace(batch, inputs={name: value for name, value in batch.inputs.items() if name != "attention_mask"})


def byte_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> Any:
    """Tokenizer without a learned vocabulary: one token per UTF-8 byte, after a begin-of-sequence token as in Llama.

    Args:
        merges: pairs of characters to merge into one token within a word, in order of priority.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {PAD: BYTE_TOKENS["pad_token_id"], BOS: BYTE_TOKENS["bos_token_id"], EOS: BYTE_TOKENS["eos_token_id"]}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(first + second for first, second in merges)]
    vocabulary = {**ids, **{token: i for i, token in enumerate(tokens, len(ids))}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, ids[BOS])])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD)


def added_tokens(tokenizer: Any) -> tuple[int, int]:
    """Number of tokens that the tokenizer adds before and after a text."""
    marks = tokenizer(TRIAL[1], return_special_tokens_mask=True)["special_tokens_mask"]
    first = next((at for at, mark in enumerate(marks) if not mark), len(marks))
    last = next((at for at, mark in enumerate(reversed(marks)) if not mark), 0)
    return first, last


def padding_id(tokenizer: Any, config: Any, vocabulary: int) -> int:
    """Id for padding: never averaged, but some models number their positions by it."""
    known = (getattr(config, "pad_token_id", None), tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(one) for one in known if one is not None and 0 <= one < vocabulary), 0)
