"""Hyperparameter search on the held-out group by successive halving.

All candidates are trained for a few epochs. The better half is trained for twice as many, and so on, until one is left;
it is trained to the end (Jamieson and Talwalkar, AISTATS 2016). Learning rates form a logarithmic grid. If the best
candidate of the first round has the lowest or highest rate of the grid, a rate beyond that edge is added.

The test group is never used. Candidates are compared by the cross-entropy on the held-out group, each at its best
epoch. Accuracy would be too coarse: on a few dozen clips, many candidates get the same number right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from daamctl.adapters.released import is_published
from daamctl.artifacts.io import content_key
from daamctl.artifacts.results import CandidatePart, SearchPart
from daamctl.config import AdapterConfig, Config, TrainConfig
from daamctl.energy import total
from daamctl.errors import TrainingError
from daamctl.training.loop import Epoch, Training

Settings = dict[str, float | str]
Start = Callable[[Settings | None, Path, str], Training]
"""Starts a training, fresh or resumed from its checkpoint.

Arguments: the settings of a candidate (None without a search), its folder for unfinished work, and its content key.
"""


class Grid:
    """The candidates of a search, and their ranking.

    Args:
        config: search settings, from `train` or `finetune`.
        others: further settings and the values to try for each; settings with one value are not recorded.

    Attributes:
        candidates: settings of each candidate, in the order in which they were added.
    """

    def __init__(self, config: TrainConfig | AdapterConfig, others: Mapping[str, Sequence[float | str]] = {}) -> None:
        self.config = config
        self.searched: dict[str, list[Any]] = {
            "lr": sorted(config.search_lr),
            **{name: list(values) for name, values in others.items()},
        }
        self.candidates: list[Settings] = [
            dict(zip(self.searched, values, strict=True)) for values in product(*self.searched.values())
        ]
        self.first_round = len(self.candidates)

    def ranked(self, histories: Sequence[Sequence[Epoch]]) -> list[int]:
        """Indices of the candidates, best first; ties keep their order.

        Args:
            histories: epochs to compare each candidate by; if it diverged, those before that, possibly none.

        Raises:
            TrainingError: the loss of every candidate diverged in its first epoch.
        """
        scores = [max(map(_score, history), default=(-math.inf, 0.0)) for history in histories]
        if math.isinf(max(scores)[0]):
            tried = sorted({float(settings["lr"]) for settings in self.candidates})
            rates = ", ".join(f"{rate:g}" for rate in tried)
            raise TrainingError(
                f"the training loss is not finite at any of the learning rates tried ({rates})",
                fix="lower them (search_lr), or train with --set train.precision=float32",
            )
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)

    def rates(self, like: Settings) -> list[float]:
        """Learning rates tried with otherwise the same settings as `like`, ascending."""
        others = {name: value for name, value in like.items() if name != "lr"}
        alike = [one for one in self.candidates if all(one[name] == value for name, value in others.items())]
        return sorted(float(one["lr"]) for one in alike)

    def widen(self, histories: Sequence[Sequence[Epoch]]) -> Settings | None:
        """Add a candidate beyond the edge of the grid if the best one is at an edge, unless enough have been added.

        Args:
            histories: as in `ranked`.

        Returns:
            The new candidate, if there is one.
        """
        if len(self.candidates) - self.first_round >= self.config.search_widen:
            return None
        best = self.candidates[self.ranked(histories)[0]]
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
        """Settings chosen at the lowest or highest value tried; two values have no interior and do not count."""
        tried = {"lr": self.rates(chosen), "weight_decay": sorted(self.searched.get("weight_decay", []))}
        at_edge = []
        for name, values in tried.items():
            if len(values) > 2 and chosen[name] in (values[0], values[-1]):
                at_edge.append(name)
        return at_edge

    def record(self, histories: Sequence[Sequence[Epoch]], chosen: int) -> SearchPart:
        """Record what was tried and chosen.

        Args:
            histories: as in `ranked`.
            chosen: index of the chosen candidate.
        """
        recorded = [name for name, values in self.searched.items() if name == "lr" or len(values) > 1]
        candidates: list[CandidatePart] = []
        for index, (settings, history) in enumerate(zip(self.candidates, histories, strict=True)):
            candidates.append(
                {
                    "settings": {name: settings[name] for name in recorded},
                    "dev_accuracy": [float(entry["dev_accuracy"] or 0.0) for entry in history],
                    "dev_loss": [float(entry["dev_loss"] or 0.0) for entry in history],
                    "added": index >= self.first_round,
                }
            )
        return {
            "epochs": max(map(len, histories)),
            "candidates": candidates,
            "chosen": chosen,
            "edges": self.edges(self.candidates[chosen]),
        }


class Rounds:
    """Rounds of successive halving: which candidates to train next, and for how long.

    Attributes:
        alive: indices of the candidates not yet eliminated; one at the end.
        until: train each of them to this epoch in this round; None: to the end.
        compared: the epochs by which each candidate was last compared.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.alive = list(range(len(grid.candidates)))
        self.until = None if grid.config.search == "full" else grid.config.search_epochs
        self.compared: list[list[Epoch]] = []
        self.first = True

    def next(self, histories: Sequence[list[Epoch]]) -> None:
        """Start the next round; after the first one, first try a candidate beyond an edge.

        Args:
            histories: all epochs of every candidate, those of the finished round included.
        """
        for index in self.alive:
            history = histories[index][: self.until]
            if index < len(self.compared):
                self.compared[index] = history
            else:
                self.compared.append(history)
        if self.first and self.grid.widen(self.compared) is not None:
            self.alive.append(len(self.grid.candidates) - 1)
            return
        self.first = False
        order = self.grid.ranked(self.compared)
        # If candidates are trained to the end at once, there is no second round.
        num_kept = 1 if self.until is None else math.ceil(len(self.alive) / 2)
        self.alive = sorted([index for index in order if index in self.alive][:num_kept])
        self.until = None if self.until is None else 2 * self.until

    @property
    def over(self) -> bool:
        """Whether one candidate is left."""
        return not self.first and len(self.alive) == 1

    @property
    def part(self) -> SearchPart:
        """Record of the search; valid once one candidate is left."""
        return self.grid.record(self.compared, self.alive[0])


def _score(entry: Epoch) -> tuple[float, float]:
    """Sort key of an epoch when comparing candidates: the negated held-out loss, then the accuracy."""
    loss, accuracy = entry["dev_loss"], entry["dev_accuracy"]
    return (-math.inf if loss is None or math.isnan(loss) else -loss, accuracy or 0.0)


def grid_of(config: TrainConfig) -> Grid | None:
    """The candidates for a fusion method; None if nothing is searched or there is no held-out group."""
    if config.search == "none" or config.selection != "dev-group":
        return None
    decays = config.search_weight_decay or (config.weight_decay,)
    return Grid(config, {"weight_decay": decays, "standardize": config.search_standardize or (config.standardize,)})


def adapter_grid(method: str, config: Config) -> Grid | None:
    """The candidates for a fine-tuning method; None without a search. Published variants keep the given rate."""
    searched = config.finetune.search != "none" and config.train.selection == "dev-group"
    return Grid(config.finetune) if searched and not is_published(method) else None


def most_epochs(grid: Grid | None, epochs: int, *, refit: bool) -> int:
    """Upper bound on the epochs trained for one fold, all candidates included, unless the grid is widened.

    Args:
        grid: the candidates; None: a single set of settings.
        epochs: most epochs of each candidate.
        refit: whether the chosen candidate is trained again with the held-out group; see `refits`.
    """
    total = 2 * epochs if refit else epochs
    if grid is None:
        return total
    alive, until = len(grid.candidates), grid.config.search_epochs
    if grid.config.search == "full":
        return total + (alive - 1) * epochs
    while alive > 1:
        out = alive // 2  # number of candidates eliminated after this round
        total, alive, until = total + out * min(until, epochs), alive - out, 2 * until
    return total


def refits(config: TrainConfig) -> bool:
    """Whether the final training includes the held-out group, once that group has served for selection."""
    return config.refit and config.selection == "dev-group"


def may_stop(config: TrainConfig | AdapterConfig, selection: str) -> bool:
    """Whether early stopping is possible.

    Args:
        config: settings of `train` or of `finetune`.
        selection: how the epoch is chosen, see `train.selection`.
    """
    return config.patience is not None and selection == "dev-group"


class Search:
    """All trainings of one fold: one per candidate, until one is left.

    Args:
        start: starts the training of a candidate.
        grid: the candidates; None: no search.
        work: folder for unfinished work of the fold.
        key: content key of the fold.
    """

    def __init__(self, start: Start, grid: Grid | None, work: Path, key: str) -> None:
        self.start, self.work, self.key = start, work, key
        self.rounds = None if grid is None else Rounds(grid)
        self.trainings = [start(None, work, key)] if grid is None else []
        self._add_candidates()

    def pending(self) -> list[tuple[Training, int | None]]:
        """Candidates still to be trained in this round, with the epoch to train each to; empty once one is left."""
        while self.rounds is not None and not self.rounds.over:
            until = self.rounds.until
            alive = [self.trainings[index] for index in self.rounds.alive]
            waiting = [(training, until) for training in alive if not training.reached(until)]
            if waiting:
                return waiting
            self.rounds.next([training.done.history for training in self.trainings])
            self._add_candidates()
        return []

    def choose(self) -> Training:
        """Return the remaining candidate, to be trained to the end, and release the others."""
        if self.rounds is None:
            return self.trainings[0]
        chosen = self.trainings[self.rounds.alive[0]]
        chosen.done.search = self.rounds.part
        others = [training.done for training in self.trainings if training is not chosen]
        chosen.before_s = sum(done.train_s for done in others)
        chosen.before_joules = total(*(done.joules for done in others))
        self.trainings = [chosen]
        return chosen

    def _add_candidates(self) -> None:
        """Start the candidates of the grid that have no training yet."""
        if self.rounds is None:
            return
        for settings in self.rounds.grid.candidates[len(self.trainings) :]:
            work = self.work / f"candidate-{len(self.trainings)}"
            key = content_key({"fold": self.key, "candidate": settings})
            self.trainings.append(self.start(settings, work, key))
