"""Data of the figures that a browser lets one explore; the page's script draws them (plotly.js).

Maps travel as bytes, one per cell, base64: 0 to 255 stands for 0 to 1. A map of 24 layers by 1024 features takes 33 kB;
wider ones are averaged over neighbouring features until they are no larger than that. Equal maps travel once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

MAX_CELLS = 32_768
"""Of one map; 44 kB as base64."""
MAX_MAPS_BYTES = 4_000_000
"""Of all maps of single folds, as base64; above it only the means travel."""


@dataclass(frozen=True)
class DensityRun:
    """The maps of one fold, or their mean.

    Args:
        name: as shown, e.g. `fold 2, seed 1`.
        trained: Importance Factor (L, D), in [0, 1].
        untrained: the same before training.
        share: contribution (L,) of the trained layers in percent.
        share_untrained: the same before training.
    """

    name: str
    trained: Array
    untrained: Array
    share: Array
    share_untrained: Array


def speaker_data(
    found: Mapping[str, Mapping[str, float]], speakers: Sequence[str], chance: float, *, unit: str, source: str
) -> dict[str, Any]:
    """Accuracies in percent, speakers x methods; `unit` and `source` are what items and speakers are called."""
    values = [[_percent(part.get(speaker)) for part in found.values()] for speaker in speakers]
    return {
        "methods": list(found), "speakers": list(speakers), "values": values, "unit": unit, "source": source,
        "chance": 100 * chance,
    }  # fmt: skip


def learning_data(curves: Mapping[str, Mapping[str, Mapping[str, Any]]], chance: float, *, unit: str) -> dict[str, Any]:
    """Curves in percent; of each the epochs, mean, low and high."""
    methods = {
        method: {
            name: {
                "epochs": curve["epochs"],
                **{key: list(map(_percent, curve[key])) for key in ("mean", "low", "high")},
            }
            for name, curve in part.items()
        }
        for method, part in curves.items()
    }
    return {"methods": methods, "chance": 100 * chance, "unit": unit}


def gap_data(gaps: Mapping[str, Sequence[float]], probes: Mapping[str, str], margin: float) -> dict[str, Any]:
    """Gaps of every fold to a closed-form probe, in points; `probes` names it."""
    methods = {
        name: {"values": list(map(_percent, part)), "probe": probes[name], "mean": _percent(float(np.mean(part)))}
        for name, part in gaps.items()
    }
    return {"methods": methods, "margin": 100 * margin}


def search_data(curves: Mapping[str, Sequence[tuple[str, Sequence[float], int, int]]], *, unit: str) -> dict[str, Any]:
    """Held-out accuracy in percent of every candidate: its settings, curve, and how many of the runs chose it."""
    methods = {
        name: [
            {"name": settings, "values": list(map(_percent, accuracy)), "chosen": chosen, "runs": runs}
            for settings, accuracy, chosen, runs in part
        ]
        for name, part in curves.items()
    }
    return {"methods": methods, "unit": unit}


def confusion_data(counts: Mapping[str, Sequence[Sequence[int]]], classes: Sequence[str]) -> dict[str, Any]:
    """Counts; row = actual class."""
    return {"methods": {name: list(map(list, part)) for name, part in counts.items()}, "classes": list(classes)}


def explorer_data(methods: Mapping[str, tuple[Sequence[int], Sequence[DensityRun]]]) -> dict[str, Any]:
    """Maps of every density method, as compact as they can be.

    Args:
        methods: method -> layer numbers and runs, their mean first.
    """
    packed = _pack(methods)
    if sum(map(len, packed["maps"])) > MAX_MAPS_BYTES:
        packed = _pack({name: (layers, runs[:1]) for name, (layers, runs) in methods.items()})
    return packed


def _pack(methods: Mapping[str, tuple[Sequence[int], Sequence[DensityRun]]]) -> dict[str, Any]:
    maps: dict[str, int] = {}
    packed: dict[str, Any] = {}
    for name, (layers, runs) in methods.items():
        num_features = runs[0].trained.shape[1]
        width = -(-num_features * len(layers) // MAX_CELLS)
        packed[name] = {
            "layers": [str(layer) for layer in layers],
            "features": num_features,
            "width": width,
            "runs": [
                {
                    "name": run.name,
                    "maps": [_map(maps, values, width) for values in (run.trained, run.untrained)],
                    "shares": [np.round(values, 4).tolist() for values in (run.share, run.share_untrained)],
                }
                for run in runs
            ],
        }
    return {"methods": packed, "maps": list(maps)}


def _map(maps: dict[str, int], values: Array, width: int) -> int:
    """Index of a map among all that travel."""
    starts = np.arange(0, values.shape[1], width)
    sizes = np.diff([*starts, values.shape[1]])
    cells = np.rint(255 * np.add.reduceat(values, starts, axis=1) / sizes).astype(np.uint8)
    return maps.setdefault(base64.b64encode(cells.tobytes()).decode("ascii"), len(maps))


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None or not np.isfinite(fraction) else round(100 * float(fraction), 3)
