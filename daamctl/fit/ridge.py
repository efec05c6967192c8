"""Closed-form probes: solved in one go, then evaluated and written like any other method."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from daamctl.artifacts.results import SearchPart
from daamctl.fit.features import Part, StreamedSplit
from daamctl.fit.loop import Entry, Fit, Member
from daamctl.fit.stack import Fusion
from daamctl.fit.steps import evaluated, maps_of, predict
from daamctl.methods.probes import Layers, RidgeProbe, Solution

log = logging.getLogger(__name__)


class RidgeFit(Fit):
    """A probe as a training of a single step, in which it is solved.

    The probe is always fitted on the CPU, one layer at a time, so every machine gives the same probe. Its first record
    is of the probe before the held-out group is added.

    Args:
        members: only one.
        fusion: the probe and its data. Without a held-out part the penalty is chosen by leave-one-out on the training
            part.
    """

    def __init__(self, members: Sequence[Member], fusion: Fusion, device: str, layers: tuple[int, ...]) -> None:
        super().__init__(members, device)
        self.fusion, self.layers, self.model = fusion, layers, cast(RidgeProbe, fusion.model)
        assert fusion.test is not None
        self.trained[0].untrained_maps = maps_of(self.model.to(device), fusion.test, device)

    def run(self) -> Iterator[int]:
        """Solve the probe.

        Raises:
            MethodError: features are not finite.
            ArtifactError: features on disk can no longer be read.
        """
        fusion = self.fusion
        dev = None if fusion.dev is None else layers_of(fusion.dev)
        self.solution = self.model.cpu().solve(layers_of(fusion.train), dev)
        yield 1

    def record(self) -> list[Entry]:
        """Evaluate the probe, and refit it with the held-out group."""
        fusion, model, device, result = self.fusion, self.model.to(self.device), self.device, self.trained[0]
        entry: Entry = {"step": 1, "epoch": None, "lr": None}
        size = fusion.config.batch_size
        for name, part in (("train", fusion.train), ("dev", fusion.dev)):
            # before the refit: accuracy on clips that the probe was fitted to would say nothing of the held-out group
            logits = None if part is None else predict(model, part, device, size)
            entry |= evaluated(name, logits, None if part is None else part.y, fusion.f1)
        if fusion.dev is not None and fusion.config.refit:
            train = layers_of(fusion.train).join(layers_of(fusion.dev))
            model.cpu().refit(train, self.solution.candidates[self.solution.chosen])
        assert fusion.test is not None
        result.logits = predict(model.to(device), fusion.test, device, size)
        entry |= evaluated("test", result.logits, fusion.test.y, fusion.f1)
        result.maps = maps_of(model, fusion.test, device)
        result.search = search_part(self.solution, self.layers)
        if model.components is not None:
            result.notes.append(f"of every layer the first {model.components:,} principal components")
            log.info("%s", result.notes[-1])
        # a single record ends it
        result.model, self.ended = model, True
        result.history.append(entry)
        return [entry]

    def state(self) -> dict[str, Any]:
        """Nothing: solving begins anew."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Forget what the probe of the state has recorded."""
        self.trained[0].history, self.trained[0].notes = [], []

    def finish(self) -> None:
        """Do nothing: the results are complete once the probe is solved."""


def layers_of(part: Part) -> Layers:
    """Give the probes a part layer by layer, on the CPU; from a part on disk, only that layer is read."""
    return Layers(part.y.cpu(), partial(_layer, part))


def _layer(part: Part, index: int) -> Tensor:
    """Features (N, D) of a layer, in the order of the part."""
    if isinstance(part, StreamedSplit):
        return torch.from_numpy(part.stored[part.rows, index])
    x = part.x[:, index]
    return (x if part.rows is None else x[part.rows]).cpu()


def search_part(solution: Solution, layers: tuple[int, ...]) -> SearchPart:
    """Record of the penalty's choice, as in `result.json`.

    The smallest or largest penalty counts as an edge only if its neighbour has another accuracy. A penalty that shrinks
    almost nothing, or almost everything, changes nothing when it is moved further out.
    """
    candidates, chosen = solution.candidates, solution.chosen
    neighbours = {0: candidates[1:2], len(candidates) - 1: candidates[-2:-1]}.get(chosen, ())
    at_edge = any(one.accuracy != candidates[chosen].accuracy for one in neighbours)
    return {
        "steps": 0,
        "candidates": [
            {
                "settings": {
                    "penalty": one.penalty,
                    **({} if one.layer is None else {"layer": float(layers[one.layer])}),
                },
                "dev_accuracy": [one.accuracy],
                "dev_loss": [one.error],
            }
            for one in candidates
        ],
        "chosen": chosen,
        "edges": ["penalty"] if at_edge else [],
    }
