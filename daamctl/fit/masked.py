"""Masked language modelling: masking, layer fusions in front of the head, training and negative log-likelihoods.

The head is the model's own. A frozen encoder keeps its head frozen too, so only the fusion is trained; a fine-tuned
one is trained whole. There is no dropout.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daamctl.compute.devices import sent
from daamctl.errors import ConfigError, DivergedError
from daamctl.fit.loop import Entry, Fit, Member, Trainable
from daamctl.fit.steps import adam, rate_factor, seed_everything, set_rate
from daamctl.methods.base_plus_n import TokenLayers
from daamctl.methods.concat import ConcatLinear
from daamctl.methods.dwatt import DepthWiseAttention
from daamctl.methods.weighted_sum import WeightedSum
from daamctl.store.files import content_key

log = logging.getLogger(__name__)

KEEP, RANDOM = 0.1, 0.1
"""Shares of the chosen tokens that stay, and that a random token replaces; the others become the mask token (BERT)."""

Positions = tuple[Tensor, ...]
"""Rows and columns of the masked positions. Selecting by a mask of bools would wait for a GPU, at every layer."""


class MaskedFusion(nn.Module):
    """What stands between the encoder and its head.

    Args:
        fusion: None: nothing, the head reads the last layer. `TokenLayers` read the last layer of all tokens; any other
            module fuses the layers of each masked token.
    """

    def __init__(self, fusion: nn.Module | None) -> None:
        super().__init__()
        self.fusion = fusion

    def forward(self, layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
        """See `daamctl.encoders.masked.Fuse`."""
        if self.fusion is None:
            return layers[-1][positions]
        if isinstance(self.fusion, TokenLayers):
            return self.fusion(layers[-1], attention > 0)[positions]  # type: ignore[no-any-return]
        return self.fusion(torch.stack([layer[positions] for layer in layers], dim=1))  # type: ignore[no-any-return]


FUSIONS: dict[str, Callable[[int, int, int], nn.Module | None]] = {
    "last-layer": lambda layers, width, heads: None,
    "weighted-sum": lambda layers, width, heads: WeightedSum(num_layers=layers),
    "concat": lambda layers, width, heads: ConcatLinear(num_layers=layers, embed_dim=width),
    "dwatt": lambda layers, width, heads: DepthWiseAttention(num_layers=layers, embed_dim=width),
    "dwatt-scaled": lambda layers, width, heads: DepthWiseAttention(num_layers=layers, embed_dim=width, scaled=True),
    "base-plus-2": lambda layers, width, heads: TokenLayers(embed_dim=width, num_extra_layers=2, num_heads=heads),
}
"""Makes a fusion from the number of transformer layers, whose outputs it reads, their features and attention heads."""


@dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Args:
        rate: share of the tokens of a block to predict; at least one is.
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
        found = []
        for number, ids in enumerate(blocks):
            rng = np.random.default_rng([self.seed, part, epoch, number])
            plain = torch.isin(ids, self.plain_ids).nonzero().flatten().numpy()
            if len(plain):
                chosen = np.sort(rng.choice(plain, size=max(1, round(self.rate * len(plain))), replace=False))
                where, dice = torch.from_numpy(chosen), torch.from_numpy(rng.random(len(chosen)))
                spare = self.plain_ids[torch.from_numpy(rng.integers(len(self.plain_ids), size=len(chosen)))]
                targets, changed = ids[where], ids.clone()
                replaced = torch.where(dice < KEEP + RANDOM, spare, self.mask_id)
                changed[where] = torch.where(dice < KEEP, targets, replaced)
                found.append(Masked(number, changed, where, targets))
        return found


@dataclass(frozen=True)
class Masked:
    """A masked block.

    Args:
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
        lr: highest learning rate of a fine-tuned encoder and what stands on it; falls linearly to 0.
        fusion_lr: the same for a fusion on a frozen encoder.
    """

    epochs: int = 3
    batch_size: int = 8
    lr: float = 5e-5
    fusion_lr: float = 1e-3
    weight_decay: float = 0.01
    grad_clip_norm: float = 1.0


@dataclass(frozen=True, eq=False)
class MaskedTrial(Trainable):
    """One fusion with one seed.

    Args:
        model: an open `daamctl.encoders.masked.MaskedModel`; it stays as it is.
        train: training blocks, masked anew in every epoch.
        dev: masked blocks that choose the epoch.
        masking: how the training blocks are masked.
        facts: everything else that can change the result, for the key.
        name: one of `FUSIONS`.
        finetune: train encoder and head too.
    """

    model: Any
    train: Sequence[Tensor]
    dev: Sequence[Masked]
    test: Sequence[Masked]
    masking: Masking
    settings: MaskedSettings
    facts: Mapping[str, Any]
    name: str
    finetune: bool
    seed: int
    stage, calmer = "mlm", "lower --lr or --fusion-lr"

    @property
    def key(self) -> str:
        """See `Trainable.key`."""
        return content_key({**self.facts, "fusion": self.name, "finetune": self.finetune, "seed": self.seed})

    @property
    def what(self) -> str:
        """See `Trainable.what`."""
        return self.name

    @property
    def units_of_training(self) -> int:
        """See `Trainable.units_of_training`."""
        return self.settings.epochs * -(-len(self.train) // self.settings.batch_size)

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trainable.start`."""
        return MaskedFit(members, self)


class MaskedFit(Fit):
    """A training whose epoch is chosen on the dev part. Its first record, epoch 0, is before training.

    It measures `nll`, the negative log-likelihood in nats of every masked token of the test part, (N,); `added`, the
    parameters of the fusion; and `trained`, those that were trained.

    Raises:
        ConfigError: there is no such fusion.
    """

    state_names = (*Fit.state_names, "loss", "optimizer")

    def __init__(self, members: Sequence[Member], trial: MaskedTrial) -> None:
        super().__init__(members, trial.model.device)
        if trial.name not in FUSIONS:
            raise ConfigError(f"no layer fusion '{trial.name}' for masked tokens", fix=f"known: {', '.join(FUSIONS)}")
        self.trial, model, settings = trial, trial.model, trial.settings
        seed_everything(trial.seed, self.device)
        self.fusion = MaskedFusion(FUSIONS[trial.name](model.num_layers, model.embed_dim, model.num_heads)).to(
            self.device
        )
        self.model = replace(model, model=deepcopy(model.model).requires_grad_()) if trial.finetune else model
        parts = nn.ModuleDict({"fusion": self.fusion, "model": self.model.model})
        self.weights = {name: one for name, one in parts.named_parameters() if one.requires_grad}
        lr = settings.lr if trial.finetune else settings.fusion_lr
        group = {"params": list(self.weights.values()), "lr": lr, "weight_decay": settings.weight_decay}
        self.optimizer: Any = adam([group], self.device, fused=False) if self.weights else None
        self.loss = torch.zeros((), device=self.device)

    def run(self) -> Iterator[int]:
        """See `Fit.run`; the unit of work is a step."""
        trial, epoch = self.trial, len(self.trained[0].history)
        if epoch == 0:
            return
        order = np.random.default_rng([trial.seed, epoch]).permutation(len(trial.train))
        masked = sorted(trial.masking.apply(trial.train, 0, epoch), key=lambda one: int(order[one.block]))
        for batch in self._batches(masked)[self.in_record :]:
            set_rate(self.optimizer, rate_factor("linear", self.steps, trial.units_of_training))
            loss = nll(self.model, self.fusion, batch).mean()
            self.loss += loss.detach()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.weights.values(), trial.settings.grad_clip_norm)
            self.optimizer.step()
            self.steps, self.in_record = self.steps + 1, self.in_record + 1
            yield 1

    def record(self) -> list[Entry]:
        """See `Fit.record`.

        Raises:
            DivergedError: the loss is no longer finite.
        """
        result, trial, epochs = self.trained[0], self.trial, self.trial.settings.epochs
        epoch = len(result.history)
        train = float(self.loss) / self.in_record if epoch else None  # once an epoch, because it waits for a GPU
        if train is not None and not math.isfinite(train):
            raise DivergedError(f"{trial.name}: the loss is {train} in epoch {epoch}", fix=trial.calmer)
        loss = float(self._score(trial.dev).mean(dtype=np.float64))
        if epoch:
            log.info("%s: epoch %d of %d, dev loss %.4f", trial.name, epoch, epochs, loss)
        if not epoch or loss < float(result.last["dev_loss"] or 0.0):
            result.selected_epoch = epoch + 1  # counted from the one before training
            result.weights = {name: one.detach().cpu().clone() for name, one in self.weights.items()}
        result.history.append({"epoch": epoch, "step": self.steps, "train_loss": train, "dev_loss": loss})
        self.loss.zero_()
        self.in_record, self.ended = 0, epoch == epochs or not self.weights
        return result.history[-1:]

    def state(self) -> dict[str, Any]:
        """See `Fit.state`."""
        return {**super().state(), "weights": {name: one.detach() for name, one in self.weights.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Fit.restore`."""
        super().restore(state)
        self._load(state["weights"])

    def finish(self) -> None:
        """See `Fit.finish`."""
        self._load(self.trained[0].weights)
        counts = [sum(one.numel() for one in weights) for weights in (self.fusion.parameters(), self.weights.values())]
        self.trained[0].facts = {"nll": self._score(self.trial.test), "added": counts[0], "trained": counts[1]}

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in weights.items():
            self.weights[name].copy_(value)

    def _batches(self, masked: Sequence[Masked]) -> list[Sequence[Masked]]:
        size = self.trial.settings.batch_size
        return [masked[start : start + size] for start in range(0, len(masked), size)]

    @torch.no_grad()
    def _score(self, masked: Sequence[Masked]) -> NDArray[np.float32]:
        """Negative log-likelihoods in the order of the blocks and positions, (N,)."""
        found = [nll(self.model, self.fusion, batch).cpu() for batch in self._batches(masked)]
        return torch.cat(found).numpy()


def nll(model: Any, fusion: nn.Module, batch: Sequence[Masked]) -> Tensor:
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
