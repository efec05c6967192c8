"""VARAN (Diatlova, Balagansky, Varlamov and Spirin, 2025, arXiv 2508.12061), on pooled layers.

Every layer has a head of its own. Which layer answers is a hidden variable: attention over the layers of a sample gives
its distribution, which a prior holds near the middle layers. `varan` maximises the lower bound of the likelihood,
`varan-published` what the released code computes instead (docs/sources.md#variational-layer-weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Traits, at_least_float32
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import Sizes
from daamctl.methods.single_layer import LayerHeads
from daamctl.methods.weighted_sum import weigh_layers

NONCENTRALITY = 10.0
POISSON_TERMS, HALVINGS = 60, 60
TAILS = 0.01
"""Share of the prior's chi-squared distribution that is cut off at each end."""


class LayerPosterior(nn.Module):
    """q(l | x) = softmax over l of w . (attention over the layers of x)_l + b; maps to D values for q, k and v first.

    Trainable: 7 D^2 + 5 D + 1.

    Raises:
        MethodError: the number of heads does not divide D.
    """

    def __init__(self, *, embed_dim: int, num_heads: int = 16) -> None:
        super().__init__()
        check_heads("num_heads", num_heads, embed_dim, "the layer width", least=1)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.score = nn.Linear(embed_dim, 1)

    def log_weights(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        """Logarithm of the weights of the layers of x (B, L, D)."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        mixed, _ = self.attention(query, key, value, need_weights=False)
        scores = self.score(mixed).squeeze(-1)
        with torch.autocast(x.device.type, enabled=False):
            return at_least_float32(scores).log_softmax(-1)

    def layer_weights(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        """Weights of the layers of x (B, L, D), sum 1."""
        return self.log_weights(x).exp()

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B D"]:
        """Sum layers (B, L, D) to (B, D)."""
        return weigh_layers(x, self.layer_weights(x))


class Varan(FusionClassifier):
    """Logits: sum over l of q(l | x) log p_l(c | x), with p_l the softmax of the head of layer l.

    Args:
        beta: weight of the divergence from the prior.
        published: take the loss of the released code.
    """

    fusion: LayerPosterior
    prior: Tensor

    def __init__(
        self, fusion: LayerPosterior, heads: LayerHeads, prior: Tensor, *, beta: float, published: bool
    ) -> None:
        # what is the same for all layers cancels in the softmax
        super().__init__(fusion, heads, Traits(inert=("fusion.score.bias", "fusion.attention.out_proj.bias")))
        self.beta, self.published = beta, published
        self.register_buffer("prior", prior)

    def forward(
        self, x: Float[Tensor, "B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "B C"] | tuple[Float[Tensor, "B C"], Float[Tensor, "B L D"]]:
        """Logits (B, C) of x (B, L, D), which are not normalised.

        Raises:
            MethodError: `return_density` is set.
        """
        if return_density:
            return super().forward(x, return_density=True)
        log_weights, log_probabilities = self._layers(x)
        return (log_weights.exp().unsqueeze(-1) * log_probabilities).sum(-2)

    def training_loss(
        self, x: Float[Tensor, "B L D"], y: Int[Tensor, " B"], criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B C"]]:
        """Negative lower bound, with beta times the divergence. It is of the likelihood, whatever the criterion."""
        log_weights, log_probabilities = self._layers(x)
        weights, log_prior = log_weights.exp(), self.prior.log()
        losses = -log_probabilities.gather(-1, y.view(-1, 1, 1).expand(-1, len(self.prior), 1)).squeeze(-1)  # (B, L)
        if self.published:
            # the loss of a layer is averaged over the batch first, so weights that depend on the sample learn nothing
            # from it; and the divergence is that of the prior from the weights
            loss = (weights.mean(0) * losses.mean(0)).sum()
            divergence = (self.prior * (log_prior - log_weights)).sum(-1).mean()
        else:
            loss = (weights * losses).sum(-1).mean()
            divergence = (weights * (log_weights - log_prior)).sum(-1).mean()
        return loss + self.beta * divergence, (weights.unsqueeze(-1) * log_probabilities).sum(-2)

    def _layers(self, x: Float[Tensor, "B L D"]) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L C"]]:
        """Log weights of the layers, and log probabilities of the classes by the head of each."""
        x = self.standardize(x)
        log_weights, logits = self.fusion.log_weights(x), self.decoder(x)
        with torch.autocast(x.device.type, enabled=False):
            return log_weights, at_least_float32(logits).log_softmax(-1)


def layer_prior(num_layers: int, df: float) -> list[float]:
    """Prior of the layers: a non-central chi-squared density at L points between its tails, from the upper one down.

    It is a mixture of central ones, with df + 2 j degrees of freedom and Poisson weights of j.

    Raises:
        MethodError: `df` is not above 0, or not finite.
    """
    if not 0 < df < math.inf:
        raise MethodError(f"prior_df must be above 0 and finite, got {df:g}")
    # on the CPU, because a method is also built without memory, on the device `meta`
    terms = torch.arange(POISSON_TERMS, dtype=torch.float64, device="cpu")
    shapes, half = df / 2 + terms, NONCENTRALITY / 2
    poisson = (terms * math.log(half) - half - torch.lgamma(terms + 1)).exp()

    def quantile(share: float) -> float:
        low, high = 0.0, 10 * (df + NONCENTRALITY) + 100
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = float((poisson * torch.special.gammainc(shapes, torch.full_like(terms, middle / 2))).sum())
            low, high = (middle, high) if below < share else (low, middle)
        return high

    low, high = quantile(TAILS), quantile(1 - TAILS)
    density = []
    for index in range(num_layers):
        x = high - (high - low) * index / max(1, num_layers - 1)
        logs = (shapes - 1) * math.log(x) - x / 2 - shapes * math.log(2) - torch.lgamma(shapes)
        density.append(float((poisson * logs.exp()).sum()))
    return [one / sum(density) for one in density]


def varan(
    sizes: Sizes, *, num_heads: int = 16, beta: float = 0.05, prior_df: float = 35.0, hidden_dim: int = 256
) -> FusionClassifier:
    """VARAN: a linear head for every layer, weighted by attention over the layers, near a prior."""
    return _build(sizes, num_heads, beta, prior_df, hidden_dim, published=False)


def varan_published(
    sizes: Sizes, *, num_heads: int = 16, beta: float = 0.05, prior_df: float = 35.0, hidden_dim: int = 256
) -> FusionClassifier:
    """VARAN with the loss of the released code, which does not teach the weights of single samples."""
    return _build(sizes, num_heads, beta, prior_df, hidden_dim, published=True)


def _build(
    sizes: Sizes, num_heads: int, beta: float, prior_df: float, hidden_dim: int, *, published: bool
) -> FusionClassifier:
    if not 0 <= beta < math.inf:
        raise MethodError(f"beta must be at least 0 and finite, got {beta:g}")
    fusion = LayerPosterior(embed_dim=sizes.embed_dim, num_heads=num_heads)
    heads = LayerHeads(
        num_layers=sizes.num_layers,
        embed_dim=sizes.embed_dim,
        num_classes=sizes.num_classes,
        hidden_dim=hidden_dim,
        linear=True,
    )
    prior = torch.tensor(layer_prior(sizes.num_layers, prior_df))
    return Varan(fusion, heads, prior, beta=beta, published=published)
