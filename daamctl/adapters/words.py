"""Classifier of the words of sentences, on the last hidden state (B, T, D) of their tokens."""

from __future__ import annotations

from torch import Tensor, nn


class WordHead(nn.Module):
    """Mean over the tokens of each word, followed by one linear map."""

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(embed_dim, num_classes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map (B, T, D) and the tokens of each word (B, W, T) to logits (N, C).

        N counts the words that have a token, sentence by sentence: one of fewer than W words has none in the others.
        """
        tokens = mask.sum(-1)  # (B, W)
        real = tokens > 0
        words = (mask.to(hidden.dtype) @ hidden)[real] / tokens[real][:, None]
        logits: Tensor = self.classifier(words)
        return logits
