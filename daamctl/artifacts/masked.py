"""Results of `mlm`: `data/mlm/<name>/mlm.json`, and `<way>/seed<N>/result.json` for every training.

Negative log-likelihoods are in nats. The JSON has the same names and nesting as the classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daamctl.store.artifact import Artifact

FILE = "mlm.json"
TOKENS = "tokens.parquet"
"""Article, block and position of every masked token of the test part."""
TRAINING = "result.json"
NLL = "nll.parquet"
"""Negative log-likelihood of each of them after one training."""


@dataclass(frozen=True, kw_only=True)
class MaskedTraining:
    """One training of one way.

    Args:
        key: of everything that can change it.
        dev: mean negative log-likelihood of the dev part before training and after each epoch.
        epoch: the epoch that was scored; 0 is before training.
        added: parameters between encoder and head.
        files: hashes of the files beside it.
    """

    key: str
    dev: list[float]
    epoch: int
    added: int
    trained: int
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MaskedWay:
    """One way to predict masked tokens.

    Args:
        fusion: what stands between encoder and head.
        finetuned: whether encoder and head were trained too.
        added: parameters of the fusion.
        epochs: epoch that was scored, by seed.
        perplexity: exp of the mean negative log-likelihood over tokens and seeds.
        low: lower end of its 95 % interval over articles; None with fewer than two articles.
        ratio: perplexity divided by that of the last layer, with the same encoder; None for the last layer itself.
        ratio_low: lower end of its interval, paired.
    """

    fusion: str
    finetuned: bool
    added: int
    trained: int
    epochs: list[int]
    by_seed: list[float]
    perplexity: float
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.fusion}-finetuned" if self.finetuned else self.fusion


@dataclass(frozen=True, kw_only=True)
class MaskedRun:
    """Perplexities of all ways.

    Args:
        texts: part -> facts of its file.
        split: where training and dev part come from.
        files: hashes of the files beside it.
    """

    name: str
    encoder: dict[str, Any]
    texts: dict[str, dict[str, Any]]
    split: str
    notes: list[str]
    settings: dict[str, Any]
    seeds: list[int]
    articles: int
    blocks: int
    tokens: int
    ways: list[MaskedWay]
    device: str
    files: dict[str, str] = field(default_factory=dict)


def masked_run(folder: Path, *, work: Path | None = None) -> Artifact[MaskedRun]:
    """The results in a folder; `work`: folder of unfinished work."""
    what = f"the results of 'mlm' for {folder.name}"
    return Artifact(folder / FILE, MaskedRun, work=work, what=what, owner="name")
