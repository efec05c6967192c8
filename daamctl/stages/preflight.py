"""Look before training: linear probes of every layer and of simple fusions, and checks of the data.

Not a stage of the DAG: nothing depends on it. Reads `data/extract/<run>/`; writes to `data/preflight/<run>/`:
preflight.json with folds, probe (None where it could not run: `skipped` says why), headroom, checks and verdict.
Accuracies are fractions, per utterance or per clip as `evaluate.unit` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from daamctl.analysis.ablation import summarize
from daamctl.analysis.data_checks import NUM_CHECKS, Finding, check_data
from daamctl.analysis.probe import (
    CONFIDENCE,
    MAX_KERNEL_CLIPS,
    WORTHWHILE,
    Difference,
    LayerProbes,
    Rows,
    Scores,
    choose,
    difference,
    judge,
    probe_layers,
)
from daamctl.artifacts.io import write_json
from daamctl.config import Config
from daamctl.errors import TrainingError
from daamctl.layout import Layout
from daamctl.progress import progress
from daamctl.training.fold import Features
from daamctl.training.run import load_features
from daamctl.training.splits import Split, fold_groups, is_official, make_split

RULE = (
    "likely: the mean gain over folds exceeds its margin. "
    f"unlikely: mean plus margin stays below {100 * WORTHWHILE:.0f} point. "
    "cannot be told: anything else, fewer than three folds, or no probe above chance. "
    f"The margin is the standard error of the mean times Student's t at {100 * CONFIDENCE:.0f} %, one-sided. "
    "The gain is that of the fusion (mean of layers, average of scores or concatenation) over the single layer, both "
    "chosen fold by fold without the test group. Linear probes only: what a trained fusion finds beyond them is not in "
    "it, and folds share training clips, so this is a guide and not a test."
)


def run(layout: Layout, config: Config) -> Path:
    """Probe the layers and check the data.

    Returns:
        Path of preflight.json.

    Raises:
        ArtifactError: no embeddings, or embeddings made with other settings.
    """
    features = load_features(layout, config)
    with progress(NUM_CHECKS, "checking the data", "checks") as bar:
        findings = check_data(features.clips, features.x.numpy(), features.head.classes, on_check=bar.advance)
    skipped = next((one.text for one in findings if one.check == "values" and one.severity != "ok"), None)
    splits: list[Split] = []
    if skipped is None:
        try:
            splits = _splits(features)
        except TrainingError as error:
            skipped = "; ".join(filter(None, (error.message, error.fix)))
    probes = _probe(features, splits, config) if splits else None
    result: dict[str, Any] = {
        "run": layout.run_name,
        "embeddings_key": features.head.key,
        "corpus": features.head.corpus,
        "encoder": features.head.encoder,
        "classes": list(features.head.classes),
        "layers": list(features.layers),
        "embed_dim": features.head.embed_dim,
        "num_clips": features.clips.height,
        "unit": config.evaluate.unit,
        "folds": [_fold(split) for split in splits],
        **_figures(probes, features.layers),
        "skipped": skipped,
        "checks": [{**asdict(finding), "examples": list(finding.examples)} for finding in findings],
        "verdict": _verdict(probes, findings, skipped),
    }
    path = layout.stage("preflight") / "preflight.json"
    write_json(path, result)
    return path


def _splits(features: Features) -> list[Split]:
    """Every fold, with a held-out group where there are three groups; with two, layers are chosen by leaving out."""
    clips = features.clips
    groups = len(fold_groups(clips["group"]))
    dev_group = groups > 2 or is_official(clips["group"])
    return [make_split(clips, fold, dev_group=dev_group) for fold in range(1, groups + 1)]


def _probe(features: Features, splits: Sequence[Split], config: Config) -> LayerProbes:
    units = features.clips["utterance_id"].to_numpy() if config.evaluate.unit == "utterance" else None
    folds = [Rows(split.train, split.dev, split.test) for split in splits]
    with progress(len(folds) * (len(features.layers) + 2), "probing the layers", "probes") as bar:
        return probe_layers(
            features.x,
            features.targets().numpy(),
            folds,
            len(features.head.classes),
            units=units,
            on_step=bar.advance,
        )


def _fold(split: Split) -> dict[str, Any]:
    return {
        "fold": split.fold,
        "test_group": split.test_group,
        "dev_group": split.dev_group,
        "num_train_clips": len(split.train),
        "num_dev_clips": len(split.dev),
        "num_test_clips": len(split.test),
    }


def _figures(probes: LayerProbes | None, layers: Sequence[int]) -> dict[str, Any]:
    """The parts `probe` and `headroom`."""
    if probes is None:
        return {"probe": None, "headroom": None}
    best, chosen = choose(probes.layers)
    fusions = probes.fusions()
    fusion, chosen_fusions = choose(list(fusions.values()))
    probe: dict[str, Any] = {
        "layers": {str(layer): _summary(scores) for layer, scores in zip(layers, probes.layers, strict=True)},
        "best_layer": {**_summary(best), "chosen": [layers[index] for index in chosen]},
        "last_layer": _summary(probes.layers[-1]),
        "mean": _summary(probes.mean),
        "average": _summary(probes.average),
        "concatenation": _summary(probes.concatenation) if probes.concatenation is not None else None,
        "best_fusion": {**_summary(fusion), "chosen": [list(fusions)[index] for index in chosen_fusions]},
        "chance": _summary(probes.chance),
    }
    if probes.concatenation is None:
        probe["note"] = f"The concatenation is left out above {MAX_KERNEL_CLIPS} training clips."
    named = {**fusions, "best_fusion": fusion, "last_layer": probes.layers[-1]}
    headroom = {name: _gain(difference(scores.accuracy, best.accuracy)) for name, scores in named.items()}
    return {"probe": probe, "headroom": headroom}


def _summary(scores: Scores) -> dict[str, Any]:
    """Every figure with its folds."""
    return {
        name: {**summarize(values := getattr(scores, name).tolist()), "per_fold": values}
        for name in ("accuracy", "balanced_accuracy", "choice_accuracy")
    }


def _gain(gain: Difference) -> dict[str, Any]:
    """A difference to the best single layer."""
    return {**asdict(gain), "per_fold": gain.per_fold.tolist()}


def _verdict(probes: LayerProbes | None, findings: Sequence[Finding], skipped: str | None) -> dict[str, str]:
    """Whether fusing layers is likely to help, in plain words."""
    case, text = _judged(probes, skipped)
    warned = [finding.check for finding in findings if finding.severity == "warning"]
    if warned:
        text += f" The data checks warn of {', '.join(warned)}: read that before trusting any figure here."
    return {"case": case, "text": text, "rule": RULE}


def _judged(probes: LayerProbes | None, skipped: str | None) -> tuple[str, str]:
    if probes is None:
        return "cannot be told", f"Whether fusing layers helps here cannot be told: {(skipped or '').rstrip('.')}."
    if len(probes.layers) == 1:
        return "unlikely", "Fusing layers cannot help here: there is only one layer."
    best, fusion = choose(probes.layers)[0], choose(list(probes.fusions().values()))[0]
    gain = difference(fusion.accuracy, best.accuracy)
    if gain.margin is None or len(gain.per_fold) < 3:
        few = f"{len(gain.per_fold)} folds are too few to tell a gain from chance"
        return "cannot be told", f"Whether fusing layers helps here cannot be told: {few}."
    if not any(_above_chance(scores, probes.chance) for scores in (best, fusion)):
        return "cannot be told", (
            "Whether fusing layers helps here cannot be told: neither the best layer nor a fusion is above chance "
            f"(balanced accuracy {_percent(best.balanced_accuracy)} and {_percent(fusion.balanced_accuracy)}, "
            f"chance {_percent(probes.chance.balanced_accuracy)})."
        )
    case = judge(gain)
    opening = {
        "likely": "Fusing layers is likely to help here",
        "unlikely": "Fusing layers is unlikely to help here",
        "cannot be told": "Whether fusing layers helps here cannot be told with this data",
    }
    return case, (
        f"{opening[case]}: the best linear fusion has {100 * gain.mean:+.1f} points of accuracy against the best "
        f"single layer, give or take {100 * gain.margin:.1f}."
    )


def _above_chance(scores: Scores, chance: Scores) -> bool:
    gain = difference(scores.balanced_accuracy, chance.balanced_accuracy)
    return gain.margin is not None and gain.mean > gain.margin


def _percent(values: np.ndarray) -> str:
    return f"{100 * float(values.mean()):.1f} %"
