"""Text encoders that give one vector per layer and word instead of one per text.

A sentence is read as its words joined by spaces, the way a model met text in its training. A sub-word belongs to the
word of its last character, so tokenizers that put the space into the next sub-word are read right. The vector of a word
is that of its first sub-word, or the mean over its sub-words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.text import TRIAL, TextEncoder, tokenizer_hash
from daamctl.errors import EncoderError

OUTSIDE = -1
"""In place of a word: a token that belongs to none, or that is not pooled."""


class TokenEncoder(TextEncoder):
    """Pools the sub-words of each word, per layer; arguments as for `TextEncoder`.

    An item is an integer tensor (2, T): the token ids of a sentence or of a part of it, added tokens included, and for
    each token the word whose vector it contributes to, counted from 0 within the item, or `OUTSIDE`.

    Raises:
        EncoderError: as `TextEncoder`, or the tokenizer does not tell where its tokens are in the text.
    """

    modality: ClassVar[Modality] = "tokens"
    poolings: ClassVar[tuple[str, ...]] = ("valid-frames",)

    def set_up(self, model: Any, reader: Any) -> None:
        """See `TextEncoder`."""
        if not getattr(reader, "is_fast", False):
            raise EncoderError(
                f"the tokenizer of {self.what} does not tell where its tokens are in the text",
                fix="take an encoder with a fast tokenizer (a file tokenizer.json in its folder)",
            )
        super().set_up(model, reader)
        trial = reader(TRIAL[1], verbose=False)["input_ids"]
        self.added = trial[: self.first], trial[len(trial) - self.last :]  # before and after every text

    def word_tokens(self, sentences: Sequence[Sequence[str]], limit: int) -> list[list[Tensor]]:
        """Turn sentences into items; one that is longer than the limit gives several, cut between words.

        Args:
            limit: longest item, in tokens; a longer word keeps its first sub-words.

        Returns:
            For each sentence its items (2, T). Words are counted within the sentence. A word without a token, such as a
            lone control character, is read as the tokenizer's unknown token; if it has none, no item has that word.
        """
        unknown = self.tokenizer.unk_token
        items = []
        for words in sentences:
            ids, owners = self._tokenized(words)
            silent = set(range(len(words))) - set(owners)
            if silent and unknown is not None:
                ids, owners = self._tokenized([unknown if at in silent else word for at, word in enumerate(words)])
            parts = self._parts(ids, owners, limit)
            items.append([self._item(*part) for part in parts if max(part[1], default=OUTSIDE) != OUTSIDE])
        return items

    def _tokenized(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of a sentence without added tokens, and the word of each."""
        owner_of: list[int] = []  # of each character
        for at, word in enumerate(words):
            owner_of += [at] * len(word) + [OUTSIDE]
        found = self.tokenizer(" ".join(words), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        owners = [owner_of[end - 1] if end > start else OUTSIDE for start, end in found["offset_mapping"]]
        return found["input_ids"], owners

    def _parts(self, ids: list[int], owners: list[int], limit: int) -> Iterator[tuple[list[int], list[int]]]:
        """Cut a sentence between words into parts that fit beside the added tokens."""
        room = limit - self.first - self.last
        if len(ids) <= room:
            yield ids, owners
            return
        part: list[int] = []  # positions of the tokens
        for _, group in groupby(range(len(ids)), key=lambda at: owners[at]):
            word = list(group)[:room]
            if len(part) + len(word) > room:
                yield [ids[at] for at in part], [owners[at] for at in part]
                part = []
            part += word
        yield [ids[at] for at in part], [owners[at] for at in part]

    def _item(self, ids: list[int], owners: list[int]) -> Tensor:
        """Add the tokenizer's own tokens, and keep the owner of the tokens that are pooled."""
        if self.options.subwords == "first":
            first = {owner: at for at, owner in reversed(list(enumerate(owners)))}
            owners = [owner if first[owner] == at else OUTSIDE for at, owner in enumerate(owners)]
        before, after = self.added
        owners = [OUTSIDE] * self.first + owners + [OUTSIDE] * self.last
        return torch.tensor([before + ids + after, owners], dtype=torch.long)

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch items (2, T), or the ids (T,) of whole texts, on which an encoder is tried; see `Encoder`.

        Returns:
            The model's inputs, and for items (2, T) the mask (B, W, T) of the tokens of each word.
        """
        if items[0].ndim == 1:
            return super().collate_cpu(items)
        inputs, _ = super().collate_cpu([item[0] for item in items])
        owners = torch.nn.utils.rnn.pad_sequence([item[1] for item in items], batch_first=True, padding_value=OUTSIDE)
        words = torch.arange(int(owners.max()) + 1)
        return inputs, owners[:, None, :] == words[None, :, None]

    def facts(self) -> dict[str, Any]:
        """Tokenizer, limit, and the sub-words that make a word; see `Encoder`."""
        return {
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
            "max_tokens": self.max_tokens,
            "subwords": self.options.subwords,
        }
