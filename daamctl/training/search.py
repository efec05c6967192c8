"""Choosing settings on the held-out group: every candidate is trained for some epochs, the best goes on to its end.

Learning rates stand on a logarithmic grid. Where the best candidate has the lowest or the highest rate tried, the grid
is extended beyond it. The test group has no part in the choice: candidates are compared by accuracy on the held-out
group, then by the loss there, each at its best epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from daamctl.artifacts.results import CandidatePart, SearchPart
from daamctl.config import TrainConfig
from daamctl.errors import TrainingError
from daamctl.training.loop import Epoch, Training, dev_score

Settings = dict[str, float | str]


class GridSettings(Protocol):
    """The settings of a search, of `train` or of `finetune`; `train.search` says what they mean."""

    search: str
    search_lr: tuple[float, ...]
    search_epochs: int
    search_widen: int


class Grid:
    """Which candidates to try, and which is the best.

    Args:
        config: settings of the search.
        others: further settings and the values to try of each; those with one value are not recorded.

    Attributes:
        candidates: what to train with, in the order in which they were added.
    """

    def __init__(self, config: GridSettings, others: Mapping[str, Sequence[float | str]] = {}) -> None:  # noqa: B006
        self.config = config
        self.searched = {"lr": sorted(config.search_lr), **{name: list(values) for name, values in others.items()}}
        self.candidates: list[Settings] = [
            dict(zip(self.searched, values, strict=True)) for values in product(*self.searched.values())
        ]
        self.first_round = len(self.candidates)

    def scores(self, histories: Sequence[Sequence[Epoch]]) -> list[tuple[float, float]]:
        """Best accuracy on the held-out group and the loss there, negated, of every candidate."""
        worst = (-math.inf, -math.inf)
        return [max((dev_score(entry) for entry in self.compared(one)), default=worst) for one in histories]

    def compared(self, history: Sequence[Epoch]) -> Sequence[Epoch]:
        """The epochs of a candidate that it is compared by: it may have been trained further since."""
        return history[: self.config.search_epochs] if self.config.search == "partial" else history

    def best(self, histories: Sequence[Sequence[Epoch]]) -> int:
        """Index of the best candidate, the first of equals.

        Args:
            histories: epochs of every candidate; of one that diverged those before.

        Raises:
            TrainingError: the loss of every candidate diverged in its first epoch.
        """
        scores = self.scores(histories)
        best = max(range(len(scores)), key=scores.__getitem__)
        if math.isinf(scores[best][0]):
            rates = ", ".join(f"{rate:g}" for rate in self.rates(self.candidates[best]))
            raise TrainingError(
                f"the training loss is not finite at any of the learning rates tried ({rates})",
                fix="lower them (search_lr), or train with --set train.precision=float32",
            )
        return best

    def rates(self, like: Settings) -> list[float]:
        """Rates tried with the same other settings, ascending."""
        others = {name: value for name, value in like.items() if name != "lr"}
        alike = [one for one in self.candidates if all(one[name] == value for name, value in others.items())]
        return sorted(float(one["lr"]) for one in alike)

    def widen(self, histories: Sequence[Sequence[Epoch]]) -> Settings | None:
        """Add a candidate beyond the edge at which the best one lies; None where it lies at none, or enough was added.

        Args:
            histories: as in `best`.
        """
        if len(self.candidates) - self.first_round >= self.config.search_widen:
            return None
        best = self.candidates[self.best(histories)]
        rates = self.rates(best)
        if len(rates) < 2:
            return None
        if best["lr"] == rates[0]:
            rate = rates[0] * rates[0] / rates[1]
        elif best["lr"] == rates[-1]:
            rate = rates[-1] * rates[-1] / rates[-2]
        else:
            return None
        self.candidates.append({**best, "lr": float(f"{rate:.3g}")})
        return self.candidates[-1]

    def edges(self, chosen: Settings) -> list[str]:
        """Settings whose lowest or highest value tried is the chosen one; two values have no inside to choose."""
        tried = {"lr": self.rates(chosen), "weight_decay": sorted(self.searched.get("weight_decay", []))}
        return [name for name, values in tried.items() if len(values) > 2 and chosen[name] in (values[0], values[-1])]

    def record(self, histories: Sequence[Sequence[Epoch]]) -> SearchPart:
        """What was tried and chosen."""
        chosen = self.best(histories)
        compared = [self.compared(history) for history in histories]
        candidates: list[CandidatePart] = [
            {
                "settings": {name: settings[name] for name in settings if name == "lr" or len(self.searched[name]) > 1},
                "dev_accuracy": [float(entry["dev_accuracy"] or 0.0) for entry in history],
                "dev_loss": [float(entry["dev_loss"] or 0.0) for entry in history],
                "added": index >= self.first_round,
            }
            for index, (settings, history) in enumerate(zip(self.candidates, compared, strict=True))
        ]
        return {
            "epochs": max(map(len, compared)),
            "candidates": candidates,
            "chosen": chosen,
            "edges": self.edges(self.candidates[chosen]),
        }


def grid_of(config: TrainConfig) -> Grid | None:
    """The candidates of a method over stored layers; None where nothing is searched, or there is no held-out group."""
    if config.search == "none" or config.selection != "dev-group":
        return None
    decays = config.search_weight_decay or (config.weight_decay,)
    return Grid(config, {"weight_decay": decays, "standardize": config.search_standardize or (config.standardize,)})


class Search:
    """The trainings of one fold: one for each candidate until the best is known, then that one alone.

    Args:
        start: makes the training of a candidate, given its number and settings, or the only one, given None.
        grid: the candidates; None: there is nothing to choose.

    Attributes:
        trainings: one for each candidate.
    """

    def __init__(self, start: Callable[[int, Settings | None], Training], grid: Grid | None) -> None:
        self.start, self.grid = start, grid
        candidates: list[Settings | None] = [None] if grid is None else [*grid.candidates]
        self.trainings = [start(number, settings) for number, settings in enumerate(candidates)]

    @property
    def epochs(self) -> int | None:
        """Epochs before the choice; None: all."""
        return self.grid.config.search_epochs if self.grid is not None and self.grid.config.search == "partial" else None

    @property
    def pending(self) -> list[Training]:
        """Candidates to be trained before the choice."""
        return [] if self.grid is None else [one for one in self.trainings if not one.reached(self.epochs)]

    @property
    def histories(self) -> list[list[Epoch]]:
        """Epochs of every candidate."""
        return [one.done.history for one in self.trainings]

    def extend(self) -> bool:
        """Once all candidates are trained: add one beyond an edge of the grid; False where none is needed."""
        settings = None if self.grid is None else self.grid.widen(self.histories)
        if settings is not None:
            self.trainings.append(self.start(len(self.trainings), settings))
        return settings is not None

    def choose(self, on_epoch: Callable[[Epoch], None]) -> Training:
        """The best candidate, to be trained to its end; the others are let go.

        Args:
            on_epoch: called with each of its epochs, those before the choice at once.
        """
        if self.grid is None:
            chosen = self.trainings[0]
        else:
            chosen = self.trainings[self.grid.best(self.histories)]
            chosen.done.search = self.grid.record(self.histories)
            chosen.searched_s = sum(one.done.train_s for one in self.trainings if one is not chosen)
        self.trainings = [chosen]
        chosen.follow(on_epoch)
        return chosen
