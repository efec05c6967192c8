"""Closed-form probes: solved in one go, then evaluated and written like any other method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from daamctl.artifacts.results import SearchPart
from daamctl.config import TrainConfig
from daamctl.methods.probes import Layers, RidgeProbe, Solution
from daamctl.training.feature_split import InMemorySplit, Part, StreamedSplit
from daamctl.training.inference import accuracy_of, eval_batch, mean_layer_weights, predict, scores
from daamctl.training.loop import Epoch, Trained

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a model is evaluated, and in which number format it is fitted."""

    device: str
    precision: str = "float32"


class ClosedForm:
    """A probe to be solved, with the interface of `Training` that `FoldJob` uses.

    The probe is always fitted on the CPU, one layer at a time, so every machine gives the same probe.

    Args:
        model: a probe, on the CPU.
        train: training part.
        dev: held-out group that chooses the penalty; None: leave-one-out on the training part.
        test: test part; used for evaluation only.
        config: training settings.
        layers: the L stored layer numbers.
        seed: selects training clips if there are too many for the probe.
        device: resolved device of the evaluation.
        on_step: called once the probe is solved.
    """

    def __init__(
        self,
        model: RidgeProbe,
        train: Part,
        dev: Part | None,
        test: Part,
        config: TrainConfig,
        *,
        layers: tuple[int, ...],
        seed: int,
        device: str,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.train, self.dev, self.test, self.config = model, train, dev, test, config
        self.layers, self.seed, self.on_step = layers, seed, on_step
        self.on_epoch: Callable[[Epoch], None] = lambda epoch: None
        self.run = Place(device)

    def follow(self, on_epoch: Callable[[Epoch], None]) -> None:
        """Call `on_epoch` with the one entry of the history."""
        self.on_epoch = on_epoch

    def train_until(self, epochs: int | None) -> None:
        """Do nothing: `complete` solves the probe."""

    def complete(self) -> Trained:
        """Solve the probe and evaluate it.

        Raises:
            MethodError: features are not finite.
            ArtifactError: features on disk can no longer be read.
        """
        started = time.monotonic()
        model, device = self.model, self.run.device
        done = Trained(selected_epoch=1, epochs=1)
        done.untrained_layer_weights = mean_layer_weights(model.to(device), self.test, device)
        train, dev = layers_of(self.train), None if self.dev is None else layers_of(self.dev)
        solution = model.cpu().solve(train, dev, seed=self.seed)
        of_dev = scores(model.to(device), self.dev, device, self._batch)
        clips, fitted = len(self.train), solution.num_clips
        if dev is not None and self.config.refit:
            train = train.join(dev)
            clips, fitted = len(train.y), len(model.fitted(train, self.seed).y)
            model.cpu().refit(train, solution.candidates[solution.chosen], seed=self.seed)
        done.logits = predict(model.to(device), self.test, device, self._batch)
        done.history.append(
            {
                "epoch": 1,
                "lr": None,
                "train_loss": None,
                "train_accuracy": scores(model, self.train, device, self._batch)[0],
                "dev_accuracy": of_dev[0],
                "dev_loss": of_dev[1],
                "test_accuracy": accuracy_of(done.logits, self.test.y),
            }
        )
        done.layer_weights = mean_layer_weights(model, self.test, device)
        done.search = search_part(solution, self.layers)
        if fitted < clips:
            done.notes.append(f"fitted on {fitted:,} of {clips:,} training clips")
            log.info("%s", done.notes[-1])
        done.train_s = time.monotonic() - started
        self.on_step()
        self.on_epoch(done.history[0])
        return done

    @property
    def _batch(self) -> int:
        return eval_batch(self.model, self.config, self.run.device)


def layers_of(part: Part) -> Layers:
    """Give the probes a part layer by layer, on the CPU; from a part on disk, only that layer is read."""
    assert isinstance(part, InMemorySplit | StreamedSplit)
    return Layers(part.y.cpu(), partial(_layer, part))


def _layer(part: InMemorySplit | StreamedSplit, index: int) -> Tensor:
    """Features (N, D) of a layer, in the order of the part."""
    if isinstance(part, StreamedSplit):
        return torch.from_numpy(part.stored[part.rows, index])
    x = part.x[:, index]
    return (x if part.rows is None else x[part.rows]).cpu()


def search_part(solution: Solution, layers: tuple[int, ...]) -> SearchPart:
    """Record of the penalty's choice, as in `result.json`.

    The smallest or largest penalty counts as an edge only if its neighbour has another accuracy. A penalty that shrinks
    almost nothing, or almost everything, changes nothing when it is moved further out.

    Args:
        solution: the solved probe.
        layers: the L stored layer numbers.
    """
    candidates, chosen = solution.candidates, solution.chosen
    neighbours = {0: candidates[1:2], len(candidates) - 1: candidates[-2:-1]}.get(chosen, ())
    at_edge = any(one.accuracy != candidates[chosen].accuracy for one in neighbours)
    return {
        "epochs": 0,
        "candidates": [
            {
                "settings": {
                    "penalty": one.penalty,
                    **({} if one.layer is None else {"layer": float(layers[one.layer])}),
                },
                "dev_accuracy": [one.accuracy],
                "dev_loss": [one.error],
                "added": False,
            }
            for one in candidates
        ],
        "chosen": chosen,
        "edges": ["penalty"] if at_edge else [],
    }
