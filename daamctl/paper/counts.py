"""Trainable parameters of the papers' methods, counted on the methods themselves, and what a printed count fits.

Prints mix three counts: of the attention alone, of everything but the last linear layer ("without fc") and of
everything (D37). LoRA is counted by its formula, because its encoders are too large to build for that
(docs/sources.md#parameter-counts).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from daamctl.artifacts.terms import listed
from daamctl.reporting.document import count

BUILT = {
    "none": "none",
    "daam-v1": "daam-v1",
    "daam-v2": "daam-v2",
    "gqdaam": "gqdaam-published",
    "gqa": "gqa-published",
    "mixture-daam": "mixture-daam",
    "mha": "mha",
    "mha-bn": "mha-bn",
}
"""Printed name -> the method built for it; only the released forms of GQA and GQDAAM have the printed counts (D5)."""
ADAPTED = {"lora-r4": (4, 2), "lora-r8": (8, 2), "lora-r1": (1, 1)}
"""Rank and number of projections per layer: query and value, of rank 1 the query alone."""
HEADS = {"speech": 256 * 4 + 4, "vision": 1024 * 100 + 100, "text": 0}
"""Trained parameters of LoRA's classifiers; the text one is frozen (D4)."""
FROZEN_HEAD = 5120 * 4
"""Weights of that frozen one, which the count of rank 1 seems to hold."""
OF_SCRIPTS = {
    "daam-v2": {("without fc, eight heads", "text"): 451_112},  # D8
    "gqdaam": {("without fc, one head", "vision"): 1_208_856},  # D9
}
"""Counts of the released scripts that have another number of heads; `daamctl.methods.contract` has them too."""
ALIASES = {"lora-r4-r8": ("lora-r4", "lora-r8"), "lora-plus-r4-r8": ("lora-r4", "lora-r8")}


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a method on one experiment: of the attention or the adapters, of all but the last layer, of all."""

    attention: int
    without_fc: int
    total: int

    @property
    def named(self) -> dict[str, int]:
        """Each under its name."""
        return {"attention part": self.attention, "without fc": self.without_fc, "total": self.total}


@cache
def counts() -> dict[str, dict[str, ParameterCounts]]:
    """Method -> modality (speech, vision, text) -> parameters, at the sizes of the papers' experiments."""
    import torch

    from daamctl.methods import build
    from daamctl.methods.contract import SPEECH, TEXT, VISION, trainable

    sizes = {"speech": SPEECH, "vision": VISION, "text": TEXT}
    found: dict[str, dict[str, ParameterCounts]] = {}
    for name, method in BUILT.items():
        for modality, (layers, width, classes) in sizes.items():
            with torch.device("meta"):
                model = build(method, num_layers=layers, embed_dim=width, num_classes=classes)
            total, last = trainable(model), trainable(model.decoder.get_submodule("fc"))
            found.setdefault(name, {})[modality] = ParameterCounts(trainable(model.fusion), total - last, total)
    for name, (rank, projections) in ADAPTED.items():
        for modality, (layers, width, _) in sizes.items():
            adapters = 2 * width * rank * projections * layers
            head = FROZEN_HEAD if rank == 1 and modality == "text" else HEADS[modality]
            found.setdefault(name, {})[modality] = ParameterCounts(adapters, adapters, adapters + head)
    return found


def shown(method: str, kind: str) -> str:
    """The computed counts of speech, vision and text, each in full; of LoRA's two ranks together, both."""
    return " / ".join(
        "; ".join(count(parts.named[kind]) for parts in counts()[name].values())
        for name in ALIASES.get(method, (method,))
    )


def fits(method: str, printed: str) -> str:
    """Which computed counts of a method round to a printed one in millions; the nearest where none does."""
    digits = len(printed.partition(".")[2])
    named = {
        (f"{kind}, {name}" if method in ALIASES else kind, modality): value / 1e6
        for name in ALIASES.get(method, (method,))
        for modality, parts in counts()[name].items()
        for kind, value in parts.named.items()
        if kind != "without fc" or value != parts.attention
    }
    named |= {kind: value / 1e6 for kind, value in OF_SCRIPTS.get(method, {}).items()}
    hits: dict[str, list[str]] = {}
    for (kind, modality), value in named.items():
        if abs(value - float(printed)) <= 0.5 * 10**-digits + 1e-12:
            hits.setdefault(kind, []).append(modality)
    if hits:
        return "✓ " + "; ".join(f"{kind} ({listed(modalities)})" for kind, modalities in hits.items())
    (kind, modality), value = min(named.items(), key=lambda item: abs(item[1] - float(printed)))
    return f"✗ none; nearest {value:.3f}: {kind} ({modality})"


def ratios(over: str, kind: str, under: str, under_kind: str) -> dict[str, float]:
    """A count of one method over a count of another, by modality."""
    first, second = counts()[over], counts()[under]
    return {modality: first[modality].named[kind] / second[modality].named[under_kind] for modality in first}
