"""Masked language modelling: masking, layer fusions in front of the head, training and negative log-likelihoods.

The head is the model's own. A frozen encoder keeps its head frozen too, so only the fusion is trained; a fine-tuned
one is trained whole. There is no dropout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daamctl.devices import sent
from daamctl.errors import ConfigError, DivergedError
from daamctl.fit.rng import seed_everything
from daamctl.methods.base_plus_n import TokenLayers
from daamctl.methods.concat import ConcatLinear
from daamctl.methods.dwatt import DepthWiseAttention
from daamctl.methods.weighted_sum import WeightedSum

log = logging.getLogger(__name__)

KEEP, RANDOM = 0.1, 0.1
"""Shares of the chosen tokens that stay, and that a random token replaces; the others become the mask token (BERT)."""

Positions = tuple[Tensor, ...]
"""Rows and columns of the masked positions. Selecting by a mask of bools would wait for a GPU, at every layer."""


class Model(Protocol):
    """What training needs of a masked language model, see `daamctl.encoders.masked.MaskedModel`."""

    @property
    def model(self) -> Any:
        """The model with its head."""

    @property
    def pad(self) -> int:
        """Id for padding."""

    @property
    def device(self) -> str:
        """Where the model is."""

    @property
    def num_layers(self) -> int:
        """L."""

    @property
    def embed_dim(self) -> int:
        """D."""

    @property
    def num_heads(self) -> int:
        """Attention heads of a layer."""

    def logits(self, ids: Tensor, attention: Tensor, positions: Positions, fuse: Any) -> Tensor:
        """Logits (M, vocabulary) at the masked positions."""


class _PerToken(nn.Module):
    """A fusion of the layers of each masked token."""

    def __init__(self, fusion: nn.Module) -> None:
        super().__init__()
        self.fusion = fusion

    def forward(self, layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
        fused: Tensor = self.fusion(torch.stack([layer[positions] for layer in layers], dim=1))
        return fused


class _LastLayer(nn.Module):
    """No fusion."""

    def forward(self, layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
        return layers[-1][positions]


class _ExtraLayers(nn.Module):
    """Two further transformer layers over the tokens of a block."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.layers = TokenLayers(embed_dim=embed_dim, num_extra_layers=2, num_heads=num_heads)

    def forward(self, layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
        read: Tensor = self.layers(layers[-1], attention > 0)
        return read[positions]


FUSIONS: dict[str, Callable[[Model], nn.Module]] = {
    "last-layer": lambda _: _LastLayer(),
    "weighted-sum": lambda model: _PerToken(WeightedSum(num_layers=model.num_layers)),
    "concat": lambda model: _PerToken(ConcatLinear(num_layers=model.num_layers, embed_dim=model.embed_dim)),
    "dwatt": lambda model: _PerToken(DepthWiseAttention(num_layers=model.num_layers, embed_dim=model.embed_dim)),
    "dwatt-scaled": lambda model: _PerToken(
        DepthWiseAttention(num_layers=model.num_layers, embed_dim=model.embed_dim, scaled=True)
    ),
    "base-plus-2": lambda model: _ExtraLayers(model.embed_dim, model.num_heads),
}
"""What stands between the encoder and its head. Layers are those of transformer layers 1 to L."""


@dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Args:
        rate: share of the tokens of a block to predict; at least one is.
        seed: seed of the draws.
        mask_id: id of the mask token.
        plain_ids: ids of all tokens that are not special, (V,): what may be masked, and what replaces at random.
    """

    rate: float
    seed: int
    mask_id: int
    plain_ids: Tensor

    def apply(self, blocks: Sequence[Tensor], part: int, epoch: int = 0) -> list[Masked]:
        """Mask blocks (T,); those without a plain token are left out.

        A draw depends on seed, part, epoch and the number of the block alone, so it is the same for every method.
        """
        found = [self._masked(block, number, [part, epoch]) for number, block in enumerate(blocks)]
        return [one for one in found if one is not None]

    def _masked(self, ids: Tensor, number: int, draw: list[int]) -> Masked | None:
        rng = np.random.default_rng([self.seed, *draw, number])
        plain = torch.isin(ids, self.plain_ids).nonzero().flatten().numpy()
        if not len(plain):
            return None
        chosen = np.sort(rng.choice(plain, size=max(1, round(self.rate * len(plain))), replace=False))
        where = torch.from_numpy(chosen)
        dice = torch.from_numpy(rng.random(len(chosen)))
        spare = self.plain_ids[torch.from_numpy(rng.integers(len(self.plain_ids), size=len(chosen)))]
        targets = ids[where]
        new = torch.where(dice < KEEP, targets, torch.where(dice < KEEP + RANDOM, spare, self.mask_id))
        changed = ids.clone()
        changed[where] = new
        return Masked(number, changed, where, targets)


@dataclass(frozen=True)
class Masked:
    """A masked block.

    Args:
        block: its number.
        ids: (T,), with masks.
        where: positions to predict, (M,), sorted.
        targets: true ids there, (M,).
    """

    block: int
    ids: Tensor
    where: Tensor
    targets: Tensor


@dataclass(frozen=True)
class MaskedSettings:
    """Settings of a training.

    Args:
        epochs: number of epochs.
        batch_size: blocks a step.
        lr: highest learning rate of a fine-tuned encoder and what stands on it; falls linearly to 0.
        fusion_lr: the same for a fusion on a frozen encoder.
        weight_decay: of AdamW.
        grad_clip_norm: largest norm of the gradient.
    """

    epochs: int = 3
    batch_size: int = 8
    lr: float = 5e-5
    fusion_lr: float = 1e-3
    weight_decay: float = 0.01
    grad_clip_norm: float = 1.0


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        nll: negative log-likelihood of every masked token of the test part, in nats, (N,).
        dev: mean of the dev part before training and after each epoch.
        epoch: the epoch with the lowest, whose weights were scored; 0 is before training.
        added: parameters of the fusion.
        trained: parameters that were trained.
    """

    nll: NDArray[np.float32]
    dev: list[float]
    epoch: int
    added: int
    trained: int


def train_masked(
    model: Model,
    name: str,
    blocks: Sequence[Tensor],
    dev: Sequence[Masked],
    test: Sequence[Masked],
    masking: Masking,
    settings: MaskedSettings,
    *,
    finetune: bool,
    seed: int,
) -> Trained:
    """Train one way, choose its epoch on the dev part, and score the test part once.

    The model has its former weights afterwards.

    Args:
        model: the open model.
        name: one of `FUSIONS`.
        blocks: training blocks, masked anew in every epoch.
        dev: masked blocks that choose the epoch.
        test: masked blocks to score.
        masking: how the training blocks are masked.
        settings: of the training.
        finetune: train encoder and head too.
        seed: seed of the fusion's weights and of the order.

    Raises:
        ConfigError: there is no such fusion.
        DivergedError: the loss is no longer finite.
    """
    if name not in FUSIONS:
        raise ConfigError(f"no layer fusion '{name}' for masked tokens", fix=f"known: {', '.join(FUSIONS)}")
    seed_everything(seed, model.device)
    fusion = FUSIONS[name](model).to(model.device)
    released = {key: value.clone() for key, value in model.model.state_dict().items()} if finetune else {}
    model.model.requires_grad_(finetune)
    try:
        weights = [*fusion.parameters(), *(model.model.parameters() if finetune else ())]
        losses = [_mean(model, fusion, dev, settings)]
        best, kept = 0, [one.detach().clone() for one in weights]
        steps = settings.epochs * -(-len(blocks) // settings.batch_size)
        if weights:
            lr = settings.lr if finetune else settings.fusion_lr
            optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=settings.weight_decay)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
            for epoch in range(1, settings.epochs + 1):
                order = np.random.default_rng([seed, epoch]).permutation(len(blocks))
                masked = masking.apply(blocks, 0, epoch)
                ordered = sorted(masked, key=lambda one: int(order[one.block]))
                total = torch.zeros((), device=model.device)
                for batch in _batches(ordered, settings.batch_size):
                    loss = _nll(model, fusion, batch).mean()
                    total += loss.detach()
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(weights, settings.grad_clip_norm)
                    optimizer.step()
                    schedule.step()
                if not torch.isfinite(total):  # once an epoch, because it waits for a GPU
                    raise DivergedError(
                        f"{name}: the loss is {float(total)} in epoch {epoch}", fix="lower --lr or --fusion-lr"
                    )
                losses.append(_mean(model, fusion, dev, settings))
                log.info("%s: epoch %d of %d, dev loss %.4f", name, epoch, settings.epochs, losses[-1])
                if losses[-1] < losses[best]:
                    best, kept = epoch, [one.detach().clone() for one in weights]
            with torch.no_grad():
                for one, value in zip(weights, kept, strict=True):
                    one.copy_(value)
        nll = _score(model, fusion, test, settings)
    finally:
        model.model.requires_grad_(False)
        if released:
            model.model.load_state_dict(released)
    added = sum(one.numel() for one in fusion.parameters())
    return Trained(nll, losses, best, added, sum(one.numel() for one in weights))


def _batches(masked: Sequence[Masked], size: int) -> Iterator[Sequence[Masked]]:
    for start in range(0, len(masked), size):
        yield masked[start : start + size]


def _nll(model: Model, fusion: nn.Module, batch: Sequence[Masked]) -> Tensor:
    """Negative log-likelihood of every masked token of a batch, (M,)."""
    ids = nn.utils.rnn.pad_sequence([one.ids for one in batch], batch_first=True, padding_value=model.pad)
    attention = torch.zeros_like(ids)
    for row, one in enumerate(batch):
        attention[row, : len(one.ids)] = 1
    rows = torch.cat([torch.full_like(one.where, row) for row, one in enumerate(batch)])
    columns, targets = (torch.cat([getattr(one, name) for one in batch]) for name in ("where", "targets"))
    ids, attention, rows, columns, targets = (
        sent(value, model.device) for value in (ids, attention, rows, columns, targets)
    )
    logits = model.logits(ids, attention, (rows, columns), fusion)
    return nn.functional.cross_entropy(logits.float(), targets, reduction="none")


@torch.no_grad()
def _score(model: Model, fusion: nn.Module, masked: Sequence[Masked], settings: MaskedSettings) -> NDArray[np.float32]:
    """Negative log-likelihoods in the order of the blocks and positions, (N,)."""
    found: NDArray[np.float32] = torch.cat(
        [_nll(model, fusion, batch).cpu() for batch in _batches(masked, settings.batch_size)]
    ).numpy()
    return found


def _mean(model: Model, fusion: nn.Module, masked: Sequence[Masked], settings: MaskedSettings) -> float:
    return float(_score(model, fusion, masked, settings).mean(dtype=np.float64))
