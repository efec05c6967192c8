"""Train one arm with one seed, and score its reconstructions of the test crops. Training can resume at any step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daamctl.config.schema import ReconstructConfig
from daamctl.devices import autocast, resolve_precision, sent
from daamctl.errors import DivergedError, TrainingError
from daamctl.methods.mixture import DensityBlock
from daamctl.reconstruction.codes import perplexity
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.scores import SCORES
from daamctl.reconstruction.vqvae import VQVAE
from daamctl.fit.checkpoint import SaveTimer, load_state, save_state
from daamctl.fit.models import channels_last
from daamctl.fit.rng import seed_everything

log = logging.getLogger(__name__)

SAVE_EVERY_S = 20.0
COLLAPSED = 0.05
"""Share of the codes in use below which a warning says so."""
SUMS = ("loss", "reconstruction", "commitment")
"""Means over an epoch in the history."""


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Args:
        model: in evaluation mode.
        history: one entry per epoch.
        scores: score -> value of every test crop, (N,).
        uses: how often the test crops use each code, (K,).
        reconstructions: of the examples, uint8 (E, 3, S, S).
        change: block -> |block(x) - x| / |x| over the examples, before and after training.
        densities: `<block>.before` and `<block>.after` -> mean weight of every channel, (C,); DAAM blocks only.
        train_s: seconds of training, of earlier attempts too.
        steps: optimiser steps.
    """

    model: VQVAE
    history: list[dict[str, float]]
    scores: dict[str, NDArray[np.float32]]
    uses: NDArray[np.int64]
    reconstructions: Tensor
    change: dict[str, tuple[float, float]]
    densities: dict[str, Tensor]
    train_s: float
    steps: int


def train_arm(
    arm: str,
    train: CropPixels,
    test: CropPixels,
    examples: Sequence[int],
    settings: ReconstructConfig,
    *,
    seed: int,
    device: str,
    work: Path,
    key: str,
    advance: Callable[[int], None] = lambda crops: None,
) -> Trained:
    """Train and score.

    Args:
        arm: a name from `BLOCKS`.
        train: training crops.
        test: test crops.
        examples: rows of the test crops that are kept as pictures.
        settings: of the model and of training.
        seed: of the start and of the order of crops.
        device: a resolved device.
        work: folder for the resume file.
        key: of everything that can change the result; a resume file of another key is ignored.
        advance: called with the number of crops trained on.

    Raises:
        DivergedError: the loss is no longer finite.
        TrainingError: there are fewer training crops than a batch has.
    """
    if len(train) < settings.batch_size:
        raise TrainingError(
            f"{len(train)} training crops are fewer than reconstruct.batch_size ({settings.batch_size})",
            fix="lower it, or raise crop.per_image",
        )
    precision = resolve_precision(settings.precision, device, work="convolutions")
    seed_everything(seed, device)
    model = VQVAE(arm, settings).to(device)
    if device.startswith("cuda") and channels_last(device, precision):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shown = _as_input(next(test.batches([examples])), device)
    fresh = VQVAEState.of(model, shown)
    history, train_s = _fit(
        model, train, settings,
        arm=arm, seed=seed, device=device, precision=precision, work=work, key=key, advance=advance,
    )  # fmt: skip
    model.eval()
    scores, uses = _score(model, test, settings.batch_size, device, precision)
    done = VQVAEState.of(model, shown)
    warn_if_collapsed(uses, arm, seed)
    return Trained(
        model=model,
        history=history,
        scores=scores,
        uses=uses,
        reconstructions=(done.images * 255).round().to(torch.uint8),
        change={name: (fresh.change[name], done.change[name]) for name in done.change},
        densities={f"{name}.{when}": values for when, one in (("before", fresh), ("after", done))
                   for name, values in one.densities.items()},
        train_s=train_s,
        steps=settings.epochs * _steps_per_epoch(len(train), settings),
    )  # fmt: skip


def _fit(
    model: VQVAE,
    train: CropPixels,
    settings: ReconstructConfig,
    *,
    arm: str,
    seed: int,
    device: str,
    precision: str,
    work: Path,
    key: str,
    advance: Callable[[int], None],
) -> tuple[list[dict[str, float]], float]:
    """Train a model in place, from its resume file if there is one; for the arguments see `train_arm`.

    Returns:
        History, and seconds of training.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=device.startswith("cuda"))
    scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=precision == "float16")
    state = load_state(work, key) or {"step": 0, "history": [], "sums": [0.0] * len(SUMS), "train_s": 0.0}
    if state["step"]:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        advance(state["step"] * settings.batch_size)
    sums = torch.tensor(state["sums"], dtype=torch.float64, device=device)
    history: list[dict[str, float]] = list(state["history"])
    started = time.perf_counter() - state["train_s"]
    timer = SaveTimer(every_s=SAVE_EVERY_S)
    per_epoch = _steps_per_epoch(len(train), settings)
    step, last = int(state["step"]), settings.epochs * per_epoch

    def save() -> None:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        progress = {"step": step, "history": history, "sums": sums.tolist(), "train_s": time.perf_counter() - started}
        save_state(work, key, {**parts, **progress})

    model.train()
    for images in train.batches(_order(len(train), settings, seed, start=step, stop=last)):
        losses = _losses(model, _as_input(images, device), settings, device, precision)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(losses[0]).backward()
        scaler.step(optimizer)
        scaler.update()
        sums += torch.stack(losses).detach()
        step += 1
        advance(len(images))
        if step % per_epoch == 0:
            means = (sums / per_epoch).tolist()
            if not np.isfinite(means).all():
                raise DivergedError(
                    f"{arm}, seed {seed}: the loss is {means[0]} in epoch {step // per_epoch}",
                    fix="lower reconstruct.lr",
                )
            history.append({"epoch": float(step // per_epoch), **dict(zip(SUMS, means, strict=True))})
            log.debug("%s, seed %d, epoch %d: loss %.5f", arm, seed, step // per_epoch, means[0])
            sums.zero_()
        timer.save_if_due(save)
    return history, time.perf_counter() - started


def _losses(
    model: VQVAE, given: Tensor, settings: ReconstructConfig, device: str, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    """What is minimised, and its two parts, see `SUMS`."""
    with autocast(device, precision):
        found = model(given)
    difference = found.images.float() - given
    reconstruction = difference.square().mean() if settings.loss == "l2" else difference.abs().mean()
    commitment = found.quantised.distance
    return reconstruction + settings.commitment * commitment, reconstruction, commitment


def _steps_per_epoch(number: int, settings: ReconstructConfig) -> int:
    """Whole batches of an epoch; an incomplete last one is left out."""
    return number // settings.batch_size


def warn_if_collapsed(uses: NDArray[np.int64], arm: str, seed: int) -> None:
    """Warn if the test crops use few of the codes."""
    used = int((uses > 0).sum())
    if used < COLLAPSED * len(uses):
        log.warning(
            "%s, seed %d: the codebook has collapsed: test crops use %d of %d codes (perplexity %.1f)",
            *(arm, seed, used, len(uses), perplexity(uses)),
        )


def _order(number: int, settings: ReconstructConfig, seed: int, *, start: int, stop: int) -> Iterator[list[int]]:
    """Rows of the batches of steps `start` to `stop`; the order of an epoch depends on seed and epoch alone."""
    per_epoch = _steps_per_epoch(number, settings)
    for epoch in range(start // per_epoch, -(-stop // per_epoch)):
        order = np.random.default_rng([seed, epoch]).permutation(number).tolist()
        for batch in range(start - epoch * per_epoch if epoch == start // per_epoch else 0, per_epoch):
            yield order[batch * settings.batch_size : (batch + 1) * settings.batch_size]


def _as_input(images: Tensor, device: str) -> Tensor:
    """Pixels from 0 … 255 to -1 … 1."""
    return sent(images, device).float() / 127.5 - 1


def _as_picture(images: Tensor) -> Tensor:
    """Values from -1 … 1 to 0 … 1; those outside are limited."""
    return ((images.float() + 1) / 2).clamp(0, 1)


@torch.no_grad()
def _score(
    model: VQVAE, test: CropPixels, batch_size: int, device: str, precision: str
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
    """Scores of every test crop, and how often each code is used."""
    found: dict[str, list[Tensor]] = {name: [] for name in SCORES}
    uses = np.zeros(len(model.codes.codes), np.int64)
    rows = range(len(test))
    for images in test.batches([rows[start : start + batch_size] for start in range(0, len(test), batch_size)]):
        given = _as_input(images, device)
        with autocast(device, precision):
            made = model(given)
        pictures, originals = _as_picture(made.images), _as_picture(given)
        for name, score in SCORES.items():
            found[name].append(score.compute(pictures, originals).cpu())
        uses += np.bincount(made.quantised.nearest.flatten().cpu().numpy(), minlength=len(uses))
    return {name: torch.cat(values).numpy() for name, values in found.items()}, uses


@dataclass(frozen=True)
class VQVAEState:
    """What a model does to the examples, in float32.

    Args:
        images: reconstructions in [0, 1], (E, 3, S, S).
        change: block -> |block(x) - x| / |x|.
        densities: DAAM block -> mean weight of every channel, (C,).
    """

    images: Tensor
    change: dict[str, float]
    densities: dict[str, Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, model: VQVAE, images: Tensor) -> VQVAEState:
        """Look at a model; its mode and its codes stay as they are.

        Args:
            model: the model.
            images: inputs (E, 3, S, S).
        """
        change: dict[str, float] = {}
        densities: dict[str, Tensor] = {}
        handles = []

        def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def hook(block: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
                (x,) = inputs
                change[name] = float((output - x).norm() / x.norm())
                if isinstance(block, DensityBlock):
                    weights = block.layers[0](x, return_density=True)[1]
                    densities[name] = weights.mean((0, 2, 3)).cpu()

            return hook

        training = model.training
        model.eval()
        try:
            handles += [block.register_forward_hook(look(name)) for name, block in model.blocks.items()]
            pictures = _as_picture(model(images).images).cpu()
        finally:
            for handle in handles:
                handle.remove()
            model.train(training)
        return cls(pictures, change, densities)
