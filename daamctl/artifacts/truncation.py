"""Result of `truncate`: `data/truncate/<run>/truncation.json`.

Taggers are compared by entity F1, all else by accuracy. These, differences and shares are fractions. The JSON has the
same names and nesting as the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from daamctl.artifacts.statistics import Design
from daamctl.store.artifact import Artifact

FILE = "truncation.json"


@dataclass(frozen=True, kw_only=True)
class NonInferiority:
    """Whether a method is at most a margin worse than a reference.

    Args:
        accuracy: over all items, averaged over seeds.
        difference: accuracy, or entity F1 where there is one, minus that of the reference.
        low: lower end of the interval of the difference; None without independent units.
        p: one-sided p-value of the hypothesis that it is worse by the margin or more; None without units.
        floor: smallest p-value that these units allow.
        entity_f1: over all entities, averaged over seeds; None where the items are no words.
    """

    accuracy: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    floor: float | None
    entity_f1: float | None = None

    @property
    def compared(self) -> float:
        """The metric that is compared."""
        return self.accuracy if self.entity_f1 is None else self.entity_f1


@dataclass(frozen=True, kw_only=True)
class LayersResult(NonInferiority):
    """The metric after training on some of the layers, and what they cost.

    Args:
        time: share of the whole encoder's time up to the highest of the layers; None if not measured.
        parameters: share of the whole encoder's parameters up to that layer; None if unknown.
        enough: whether the layers are not worse, and all longer prefixes neither; None: not tested, as a single layer,
            and as a prefix where a longer one did not pass or no test exists.
    """

    layers: list[int]
    time: float | None
    parameters: float | None
    enough: bool | None = None

    @property
    def highest(self) -> int:
        """The highest of the layers."""
        return max(self.layers)


@dataclass(frozen=True)
class Truncation:
    """How few layers of an encoder are enough for a method.

    Args:
        unit: "utterance" or "clip".
        margin: largest difference that counts as not worse; declared beforehand.
        alpha: one-sided level of the tests.
        level: level of the intervals of the differences.
        prefixes: training on the layers up to k, by k; without `whole`.
        singles: training on one layer each, by layer.
        smallest: smallest k whose layers are enough; None if there is none.
        device: device on which time was measured; None if it was not.
        files: SHA-256 of `result.json` of every fold trained for it, by its path in the folder of the run.
    """

    run: str
    method: str
    label: str
    unit: str
    modality: str
    margin: float
    alpha: float
    level: float
    design: Design
    embeddings_key: str
    whole: LayersResult
    prefixes: list[LayersResult]
    singles: list[LayersResult]
    smallest: int | None
    device: str | None
    notes: list[str]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def enough(self) -> LayersResult | None:
        """The shortest prefix that is enough."""
        return next((one for one in self.prefixes if one.highest == self.smallest), None)

    @property
    def cost(self) -> Literal["time", "parameters"] | None:
        """What the cost is told in: time if it was measured, else parameters; None if neither is known."""
        if self.whole.time is not None:
            return "time"
        return None if self.whole.parameters is None else "parameters"

    def as_json(self) -> dict[str, Any]:
        """Content of the file."""
        return asdict(self)


def find_truncation(folder: Path, *, hide: Path | None = None) -> Truncation | None:
    """The truncation in the folder of a run, see `Artifact.find`; `hide`: folder to remove from paths in texts."""
    return Artifact(folder / FILE, Truncation, hide=hide).find()


def layers_name(layers: Sequence[int]) -> str:
    """Name of consecutive layers in folders and tables: `layers-1-to-9`, or `layer-9`."""
    if len(layers) == 1:
        return f"layer-{layers[0]}"
    return f"layers-{layers[0]}-to-{layers[-1]}"
