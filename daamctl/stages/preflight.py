"""Checks before training: linear probes of every layer and of simple fusions, and checks of the data.

Not a stage of the DAG, because nothing depends on it. Reads `data/extract/<run>/`; writes to `data/preflight/<run>/`:
preflight.json with folds, probe (None if it could not run; `skipped` says why), headroom, checks and verdict.
Accuracies are fractions, per utterance or per clip as set by `evaluate.unit`. Probes of tagged words are compared by
`metric`, entity F1: a probe that tags nothing is right about most words.

If the embeddings are not held in memory (`train.features`), a seeded sample of whole utterances is probed and searched
for near duplicates; `sample` gives its number of clips. All other checks read every clip.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.runs import check_classifies
from daamctl.artifacts.splits import Split, fold_groups, is_official, split_of
from daamctl.artifacts.terms import percent
from daamctl.compute.progress import progress
from daamctl.config import Config
from daamctl.data.task import Task
from daamctl.errors import ArtifactError, TrainingError
from daamctl.evaluation.data_checks import Sample, check_data
from daamctl.evaluation.probe import (
    CONFIDENCE,
    WORTHWHILE,
    FoldRows,
    LayerProbes,
    ProbeScores,
    choose,
    difference,
    judge,
    probe_layers,
)
from daamctl.evaluation.scoring import score_predictions
from daamctl.fit.features import Features, load_features
from daamctl.methods.ridge import LARGEST_SYSTEM
from daamctl.planning.leaks import corpus_facts
from daamctl.store.files import check_writable, write_json

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 2_000_000_000
"""Largest size of a sample in memory, in bytes; fixed, so that every machine draws the same sample."""
SAMPLE_SEED = 0
RULE = (
    "likely: the mean gain over folds exceeds its margin. "
    f"unlikely: mean plus margin stays below {100 * WORTHWHILE:.0f} point. "
    "cannot be told: anything else, fewer than three folds, or no probe above chance. "
    f"The margin is the standard error of the mean times Student's t at {100 * CONFIDENCE:.0f} %, one-sided. "
    "The gain compares the best fusion (mean of layers, average of scores or concatenation) with the best single "
    "layer, both chosen in every fold without its test group. This is a guide, not a test: it uses linear probes only, "
    "so a trained fusion may gain more, and folds share training data."
)


def run(layout: Layout, config: Config) -> Path:
    """Probe the layers and check the data.

    Returns:
        Path of preflight.json.

    Raises:
        ConfigError: the pipeline reconstructs images.
        ArtifactError: no embeddings, or embeddings made with other settings.
    """
    check_classifies(layout.run_name, config)
    features = load_features(layout, config)
    num_clips, drawn, notes = features.clips.height, None, []
    if isinstance(features.x, StoredVectors):  # too large for memory, so probe a sample
        task, stored = features.head.task, features.x
        clips = features.clips.with_columns(utterance_id=task.wholes(features.clips["utterance_id"]))
        rows = sample_rows(clips, min(LARGEST_SYSTEM, SAMPLE_BYTES * len(stored) // stored.nbytes))
        drawn = Sample(rows, stored[rows])
        notes.append(
            f"Probed on a sample of {len(rows)} of {num_clips} {task.clip}s (whole {task.whole}s, seed {SAMPLE_SEED}, "
            "balanced over groups), because the embeddings do not fit in memory or train.features=stream keeps them "
            "on disk."
        )
    path = layout.stage("preflight") / "preflight.json"
    check_writable(path.parent)
    known = corpus_facts(layout, features)
    with progress(known.num_checks, "checking the data", "checks") as bar:
        x = features.x if isinstance(features.x, StoredVectors) else features.x.numpy()
        findings = []
        for finding in check_data(features.clips, x, known, drawn=drawn):
            findings.append(finding)
            bar.advance()
    if drawn is not None:
        features = replace(features, clips=features.clips[drawn.rows], x=torch.from_numpy(drawn.x))
    if config.train.shots is not None and len(config.train.seeds) > 1:
        notes.append(
            f"Probed after one draw of training {known.task.whole}s, that of seed {config.train.seeds[0]}; results are "
            f"means over {len(config.train.seeds)} draws (train.seeds)."
        )
    skipped = next((one.text for one in findings if one.check == "values" and one.severity != "ok"), None)
    splits: list[Split] = []
    probes = None
    if skipped is None:
        try:
            train = config.train
            groups = len(fold_groups(features.clips["group"]))
            if groups == 2 and not is_official(features.clips["group"]):  # none is left to hold out
                train = train.model_copy(update={"selection": "last"})
            splits = [split_of(features.clips, fold, train, train.seeds[0]) for fold in range(1, groups + 1)]
            probes = _probe(features, splits, config)
        except (TrainingError, ArtifactError) as error:
            splits, skipped = [], "; ".join(filter(None, (error.message, error.fix)))
    seeds = len(config.train.seeds)
    case, text = _judged(probes, known.task, skipped, features.clips["speaker"].n_unique(), seeds)
    if warned := [finding.check for finding in findings if finding.severity == "warning"]:
        text += f" The data checks have warnings ({', '.join(warned)}). Read them before you trust these results."
    result: dict[str, Any] = {
        "run": layout.run_name,
        "embeddings_key": features.head.key,
        "corpus": features.head.corpus,
        "modality": features.head.modality,
        "encoder": features.head.encoder,
        "classes": list(features.head.classes),
        "layers": list(features.layers),
        "embed_dim": features.head.embed_dim,
        "num_clips": num_clips,
        "sample": None if drawn is None else {"clips": features.clips.height, "seed": SAMPLE_SEED},
        "unit": known.task.unit(config.evaluate.unit),
        "metric": known.task.primary,
        "folds": [
            {
                "fold": split.fold,
                "test_group": split.test_group,
                "dev_group": split.dev_group,
                "num_train_clips": len(split.train),
                "num_dev_clips": len(split.dev),
                "num_test_clips": len(split.test),
            }
            for split in splits
        ],
        **_figures(probes, known.task.primary, features.layers, " ".join(notes)),
        "skipped": skipped,
        "checks": [{**asdict(finding), "examples": list(finding.examples)} for finding in findings],
        "verdict": {"case": case, "text": text, "rule": RULE},
    }
    write_json(path, result)
    return path


def sample_rows(clips: pl.DataFrame, most: int) -> NDArray[np.int64]:
    """Draw rows of whole utterances at random, the same number from every group if possible; row numbers, ascending.

    Args:
        clips: N rows with group and utterance_id.
        most: largest total number of rows. Larger groups fill up what small groups leave.
    """
    rng = np.random.default_rng(SAMPLE_SEED)
    groups = clips.with_row_index("row").group_by("group", maintain_order=True).agg("row", "utterance_id")
    groups = groups.sort(pl.col("row").list.len(), "group")
    chosen, left = [], most
    for number, (rows, utterances) in enumerate(groups.select("row", "utterance_id").iter_rows()):
        names, owner = np.unique(utterances, return_inverse=True)
        rank = rng.permutation(len(names))[owner]  # rank of each row's utterance in a random order
        taken = np.searchsorted(np.cumsum(np.bincount(rank)), left // (groups.height - number), side="right")
        chosen.append(np.array(rows, np.int64)[rank < taken])
        left -= len(chosen[-1])
    return np.sort(np.concatenate(chosen))


def _probe(features: Features, splits: Sequence[Split], config: Config) -> LayerProbes:
    targets, task = features.targets().numpy(), features.head.task
    folds = [FoldRows(split.train, split.dev, split.test) for split in splits]
    assert isinstance(features.x, torch.Tensor)

    def score(rows: NDArray[np.int64], logits: torch.Tensor) -> dict[str, float]:
        frame = features.clips[rows].with_columns(target=pl.Series(targets[rows]), logits=pl.Series(logits.tolist()))
        found = score_predictions(frame, config.evaluate.unit, task)
        return {name: found[name] for name in (*task.over_items, task.primary)}

    return probe_layers(features.x, targets, folds, len(task.classes), score, refit=config.train.refit)


def _figures(probes: LayerProbes | None, primary: str, layers: Sequence[int], note: str) -> dict[str, Any]:
    """The parts `probe` and `headroom`; `note` is on the probe."""
    if probes is None:
        return {"probe": None, "headroom": None}
    best, chosen = choose(probes.layers)
    fusions = probes.fusions
    fusion, chosen_fusions = choose(list(fusions.values()))
    probe: dict[str, Any] = {
        "layers": {str(layer): _summary(scores) for layer, scores in zip(layers, probes.layers, strict=True)},
        "best_layer": {**_summary(best), "chosen": [layers[index] for index in chosen]},
        "last_layer": _summary(probes.layers[-1]),
        **{name: _summary(scores) for name, scores in fusions.items()},
        "best_fusion": {**_summary(fusion), "chosen": [list(fusions)[index] for index in chosen_fusions]},
        "chance": _summary(probes.chance),
    }
    if note:
        probe["note"] = note
    named = {**fusions, "best_fusion": fusion, "last_layer": probes.layers[-1]}
    gains = {name: difference(scores.values[primary], best.values[primary]) for name, scores in named.items()}
    headroom = {name: {**asdict(gain), "per_fold": gain.per_fold.tolist()} for name, gain in gains.items()}
    return {"probe": probe, "headroom": headroom}


def _summary(scores: ProbeScores) -> dict[str, Any]:
    """Every result, with its values per fold."""
    return {
        name: {**asdict(over_runs(values.tolist())), "per_fold": values.tolist()}
        for name, values in scores.values.items()
    }


def _judged(probes: LayerProbes | None, task: Task, skipped: str | None, speakers: int, seeds: int) -> tuple[str, str]:
    """Whether fusing layers is likely to help: the case, and a text. Folds take a speaker each at least."""
    if probes is None:
        return "cannot be told", f"It is unclear whether fusing layers helps here: {(skipped or '').rstrip('.')}."
    if len(probes.layers) == 1:
        return "unlikely", "Fusing layers cannot help here: there is only one layer."
    best, fusion = choose(probes.layers)[0], choose(list(probes.fusions.values()))[0]
    gain = difference(fusion.values[task.primary], best.values[task.primary])
    if gain.margin is None or len(gain.per_fold) < 3:
        result = (
            f"the best linear fusion gains {100 * gain.mean:+z.1f} points of {task.metric} over the best single layer"
        )
        more = f"form folds from the same data with download: {{folds: stratified, num_groups: {min(5, speakers)}}}"
        advice = f"To find out, {more if speakers > 2 else f'add data: {speakers} {task.source}s give no third fold'}"
        why = f"{len(gain.per_fold)} folds are too few to distinguish a gain from chance ({result}). {advice}."
        if len(gain.per_fold) == 1:
            why = f"one test part has no spread over folds (on it, {result}). {advice}."
            if seeds == 1:
                why += (
                    " You can also repeat training on this part with several seeds (train.seeds: [1, 2, 3]) to see how "
                    "much results depend on the seed."
                )
        return "cannot be told", f"It is unclear whether fusing layers helps here: {why}"
    balanced = [one.values["balanced_accuracy"] for one in (best, fusion, probes.chance)]
    leads = [difference(one, balanced[2]) for one in balanced[:2]]
    if not any(one.margin is not None and one.mean > one.margin for one in leads):
        level = [percent(one.mean()) for one in balanced]
        return "cannot be told", (
            "It is unclear whether fusing layers helps here: neither the best layer nor a fusion is above chance "
            f"(balanced accuracy {level[0]} and {level[1]}, chance {level[2]})."
        )
    case = judge(gain)
    opening = {
        "likely": "Fusing layers is likely to help here",
        "unlikely": "Fusing layers is unlikely to help here",
        "cannot be told": "It is unclear from this data whether fusing layers helps",
    }
    return case, (
        f"{opening[case]}: the best linear fusion gains {100 * gain.mean:+z.1f} ± {100 * gain.margin:.1f} points of "
        f"{task.metric} over the best single layer."
    )
