"""Closed-form probes: solved in one go, then evaluated and written like any other method."""

from __future__ import annotations

import logging
import time
from functools import partial

import torch
from torch import Tensor

from daamctl.artifacts.results import SearchPart
from daamctl.config import TrainConfig
from daamctl.methods.probes import Layers, RidgeProbe, Solution
from daamctl.training.feature_split import InMemorySplit, Part, StreamedSplit
from daamctl.training.inference import accuracy_of, eval_batch, mean_layer_weights, predict, scores
from daamctl.training.loop import Epoch, Training, TrainingSetup

log = logging.getLogger(__name__)


class ClosedFormTraining(Training):
    """A probe as a training of a single epoch, in which it is solved.

    The probe is always fitted on the CPU, one layer at a time, so every machine gives the same probe.

    Args:
        model: a probe, on the CPU.
        train: training part.
        dev: held-out group that chooses the penalty; None: leave-one-out on the training part.
        test: test part; used for evaluation only.
        config: training settings.
        setup: see `TrainingSetup`. The seed selects training clips if there are too many for the probe; the device is
            that of the evaluation.
        layers: the L stored layer numbers.
    """

    def __init__(
        self,
        model: RidgeProbe,
        train: Part,
        dev: Part | None,
        test: Part,
        config: TrainConfig,
        setup: TrainingSetup,
        *,
        layers: tuple[int, ...],
    ) -> None:
        super().__init__(setup, section="train", epochs=1, selection="last", patience=None)
        self.model, self.train, self.dev, self.test, self.config = model, train, dev, test, config
        self.layers = layers

    def train_epoch(self) -> None:
        """Solve the probe and evaluate it.

        Raises:
            MethodError: features are not finite.
            ArtifactError: features on disk can no longer be read.
        """
        self.meter.start()
        started = time.monotonic()
        model, device, done = self.model, self.device, self.done
        batch_size = eval_batch(model, self.config, device)
        done.untrained_layer_weights = mean_layer_weights(model.to(device), self.test, device)
        train, dev = layers_of(self.train), None if self.dev is None else layers_of(self.dev)
        solution = model.cpu().solve(train, dev, seed=self.seed)
        found: list[Tensor] = []
        dev_accuracy, dev_loss = scores(model.to(device), self.dev, device, batch_size, found=found)
        f1 = self.setup.entity_f1
        dev_f1 = f1["dev"](torch.cat(found)) if f1 and found else None
        clips, fitted = len(self.train), solution.num_clips
        if dev is not None and self.config.refit:
            train = train.join(dev)
            clips, fitted = len(train.y), len(model.fitted(train, self.seed).y)
            model.cpu().refit(train, solution.candidates[solution.chosen], seed=self.seed)
        done.logits = predict(model.to(device), self.test, device, batch_size)
        entry: Epoch = {
            "epoch": 1,
            "lr": None,
            "train_loss": None,
            "train_accuracy": scores(model, self.train, device, batch_size)[0],
            "dev_accuracy": dev_accuracy,
            "dev_loss": dev_loss,
            "test_accuracy": accuracy_of(done.logits, self.test.y),
        }
        if f1:
            entry |= {"dev_f1": dev_f1, "test_f1": f1["test"](done.logits)}
        done.history.append(entry)
        done.selected_epoch = 1
        done.layer_weights = mean_layer_weights(model, self.test, device)
        done.search = search_part(solution, self.layers)
        if fitted < clips:
            done.notes.append(f"fitted on {fitted:,} of {clips:,} training clips")
            log.info("%s", done.notes[-1])
        done.train_s = time.monotonic() - started
        done.joules = self.meter.used(done.train_s)
        self.advance(1)
        self.on_epoch(entry)

    def finish(self) -> None:
        """Do nothing: the results are complete once the probe is solved."""


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
