"""`protocols`: what a protocol of evaluation is worth, in points, on the same stored vectors.

Closed-form probes of the last layer, the best layer, the mean of the layers and all layers side by side are fitted and
tested under each protocol of `PROTOCOLS`. Items are paired: what is compared is whether the probe is right about an
item, averaged over repetitions. Nothing is trained by gradient. Writes `data/protocols/<run>/`: protocols.parquet,
protocols.json, and report.html with its tables and pictures. It is not a stage of the DAG; the report shows its result.
What each probe says under each protocol is kept below `data/.work/`, so that no later command computes it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.protocols import PROBES, Protocols, write_protocols
from daamctl.artifacts.runs import check_classifies
from daamctl.artifacts.scores import Compared, ProtocolScore
from daamctl.artifacts.splits import (
    are_pairs,
    cross_validated,
    dev_groups,
    fold_groups,
    is_official,
    pair_part,
    split_of,
)
from daamctl.artifacts.utterances import SENTENCE
from daamctl.compute.progress import progress
from daamctl.compute.threads import use_free_cores
from daamctl.config import Config
from daamctl.config.keys import names as settings_names
from daamctl.config.marks import AppliesTo
from daamctl.corpora.groups import assign_groups, cross_groups, shared
from daamctl.data.task import Task
from daamctl.errors import ConfigError, UnknownNameError
from daamctl.evaluation.comparison import SCHEMA, compare_methods, method_intervals
from daamctl.evaluation.probe import FoldRows, Ids, fit_probe
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.statistics import grouped_means
from daamctl.fit.features import Features, load_features
from daamctl.methods.base import FusionClassifier
from daamctl.methods.probes import ridge_best_layer, ridge_concat, ridge_last, ridge_mean
from daamctl.methods.settings import Sizes
from daamctl.reporting.protocols import document
from daamctl.reporting.write import write_report
from daamctl.store.files import check_writable, content_key, kept_path, open_kept
from daamctl.store.provenance import code_hash

log = logging.getLogger(__name__)

REPEATS = 5
"""Random partitions or draws, over which whether an item is right is averaged."""
SHOTS, DEV_SHARE, XARES_FOLDS = 8, 0.2, 4
MOST_SPEAKERS = 50
"""With more speakers, they are not left out one at a time."""
SEED = 0
BUILDERS: dict[str, Callable[[Sizes], FusionClassifier]] = dict(
    zip(PROBES, (ridge_last, ridge_best_layer, ridge_mean, ridge_concat), strict=True)
)
MAEB, SUPERB, EMOBOX, XARES = "arXiv 2602.16008", "arXiv 2105.01051", "arXiv 2406.07162", "arXiv 2505.16369"


class Fold(NamedTuple):
    """Row numbers of one fold, and whether the held-out part may be added to the training part for the last fit."""

    train: Ids
    dev: Ids
    test: Ids
    held: bool = True


@dataclass(frozen=True)
class Protocol:
    """A way to train and test.

    Args:
        text: what it does, in one sentence.
        folds: what training and test never share, or where the folds come from.
        chooses: what chooses the penalty and the layer: the next group, as in training; a random part of the training
            items; the training items, left out one at a time; or the test items themselves.
        shots: train on so many utterances per class; None: on all.
        source: empty for a protocol that is not of a benchmark or paper.
        own: the probe that comes closest to that of the source.
    """

    text: str
    folds: Literal["own", "official", "speakers", "sentences", "both", "one-speaker-out", "random", "random-less"]
    chooses: Literal["group", "random", "train", "test"] = "group"
    shots: int | None = None
    repeats: int = 1
    source: str = ""
    own: str = ""


PROTOCOLS = {
    "speakers": Protocol("no speaker is in training and test", "speakers"),
    "pipeline": Protocol("the folds of the pipeline", "own"),
    "official": Protocol("the official training and test part of the corpus", "official"),
    "sentences": Protocol("no sentence is in training and test; speakers may be", "sentences"),
    "both": Protocol("neither a speaker nor a sentence is in training and test", "both"),
    "one-speaker-out": Protocol("each speaker is tested alone, training is on all others", "one-speaker-out"),
    "random": Protocol("random folds, whatever speakers and sentences they share", "random", repeats=REPEATS),
    "random-less": Protocol("random folds, training on as few items as `both`", "random-less", repeats=REPEATS),
    "8-shot": Protocol(
        f"folds of `speakers`, training on {SHOTS} random utterances per class, whose leave-one-out error chooses",
        "speakers", "train", SHOTS, REPEATS,
    ),
    "emobox": Protocol(
        "random folds, as its EmoDB lists are; the test items choose the penalty, because every checkpoint is tested",
        "random", "test", None, REPEATS, EMOBOX, "last",
    ),
    "superb": Protocol(
        "folds of `speakers`; a random 20 % of the training utterances choose the penalty, which share its speakers",
        "speakers", "random", None, 1, SUPERB, "mean",
    ),
    "x-ares": Protocol(
        "4 folds of speakers; the tested fold chooses the penalty, as it chooses the epoch there",
        "speakers", "test", None, 1, XARES, "last",
    ),
    "maeb": Protocol(
        f"random folds, training on {SHOTS} random utterances per class, whose leave-one-out error chooses",
        "random", "train", SHOTS, REPEATS, MAEB, "last",
    ),
    "daam": Protocol(
        "folds of `speakers`; the test items choose penalty and layer, as they choose the epoch there",
        "speakers", "test", None, 1, "docs/sources.md", "all",
    ),
}  # fmt: skip
"""Name -> protocol; the first that is possible is what all others are compared with."""
PRICES = {"random": ("sentences",), "random-less": ("both",)}
"""Protocol -> further protocols that it is compared with: both train on about as many items."""


def run(layout: Layout, config: Config, *, names: Sequence[str] = ()) -> Path:
    """Probe the vectors of a pipeline under each protocol.

    Args:
        names: of `PROTOCOLS`; empty: all that are possible. The one that the others are compared with is added.

    Returns:
        Path of the page.

    Raises:
        UnknownNameError: there is no such protocol.
        ConfigError: the pipeline does not classify items, or a named protocol is not possible with its corpus.
        ArtifactError: no embeddings, or embeddings made with other settings.
    """
    for name in names:
        if name not in PROTOCOLS:
            raise UnknownNameError("protocol", name, PROTOCOLS)
    check_classifies(layout.run_name, config)
    features = load_features(layout, config)
    task = features.head.task
    if not task.by_accuracy:
        raise ConfigError(f"'{layout.run_name}' tags words, and protocols are compared by the accuracy of items")
    possible, absent = partitions(features.clips, config)
    for name in names:
        if name in absent:
            raise ConfigError(f"protocol '{name}' is not possible with '{layout.run_name}': {absent[name]}")
    reference = next(iter(possible))
    chosen = [name for name in possible if not names or name in (*names, reference)]
    folds = {name: folds_of(name, possible, features.clips, config) for name in chosen}
    folder = layout.stage("protocols")
    check_writable(folder)
    tables = _probed(layout, config, features, folds)
    result = Protocols(
        run=layout.run_name,
        embeddings_key=features.head.key,
        item=task.unit(config.evaluate.unit),
        reference=reference,
        texts={name: PROTOCOLS[name].text for name in chosen},
        sources={name: PROTOCOLS[name].source for name in chosen},
        absent={} if names else absent,
        train={name: config.section("train")[name] for name in settings_names("train", AppliesTo.PROBES)},
        rows=_scores(tables, folds, reference, task),
    )
    write_protocols(folder, result)
    return write_report(folder, document(result))


def _probed(
    layout: Layout, config: Config, features: Features, folds: Mapping[str, list[Fold]]
) -> dict[tuple[str, str], pl.DataFrame]:
    """Protocol and probe -> table of its predictions, with the column `seconds`; kept for the next time."""
    cells = [(name, probe) for name in folds for probe in PROBES]
    tables: dict[tuple[str, str], pl.DataFrame] = {}
    targets = features.targets().numpy()
    work = layout.work / "protocols" / layout.run_name
    keys = {name: _key(own, features, config) for name, own in folds.items()}
    use_free_cores()
    with progress(sum(len(folds[name]) for name, _ in cells), "probing under each protocol", "probes") as bar:
        for name, probe in cells:
            path, key = work / f"{name}-{probe}.arrow", keys[name]
            with open_kept(path, key) as file:
                table = None if file is None else pl.read_ipc_stream(file)
            if table is None:
                started = time.monotonic()
                parts = []
                for fold in folds[name]:
                    parts.append(_tested(features, targets, config, fold, probe))
                    bar.advance()
                table = _over_repeats(parts).with_columns(seconds=time.monotonic() - started)
                with kept_path(path, key) as temporary:
                    table.write_ipc_stream(temporary)
            else:
                bar.advance(len(folds[name]))
            tables[name, probe] = table
    return tables


def _scores(
    tables: Mapping[tuple[str, str], pl.DataFrame], folds: Mapping[str, list[Fold]], reference: str, task: Task
) -> list[ProtocolScore]:
    """Figures of every probe under every protocol, and their differences to the reference for the same probe."""
    rows: list[ProtocolScore] = []
    for (name, probe), own in tables.items():
        protocol = PROTOCOLS[name]
        # each alone: protocols may test other items
        intervals = method_intervals({name: own}, task=task)[name]
        # also with a protocol that trains on as many items: else the size of the training part is part of the price
        pairs = [(one, tables[one, probe]) for one in (reference, *PRICES.get(name, ())) if one in folds]
        gaps = [(against, *_compared(own, other, task)) for against, other in pairs if against != name]
        for metric in task.over_items:
            interval = intervals.metrics.get(metric)
            cell: dict[str, Any] = {
                "protocol": name,
                "probe": probe,
                "metric": metric,
                "value": _mean(own, metric),
                "low": interval and interval.low,
                "high": interval and interval.high,
                "items": len(own),
                "folds": len(folds[name]) // protocol.repeats,
                "repeats": protocol.repeats,
                "trained": float(
                    np.mean([len(part.train) + (len(part.dev) if part.held else 0) for part in folds[name]])
                ),
                "seconds": own["seconds"][0],
                "source_probe": probe == protocol.own,
            }
            found = [(against, one) for against, *every in gaps for one in every if one.metric == metric]
            rows += [
                ProtocolScore(
                    **cell, against=against, difference=one.difference, difference_low=one.low,
                    difference_high=one.high, p=one.p, unit=one.unit, units=one.units,
                )
                for against, one in found
            ] or [ProtocolScore(**cell)]  # fmt: skip
    return rows


def partitions(clips: pl.DataFrame, config: Config) -> tuple[dict[str, list[pl.Series]], dict[str, str]]:
    """Protocol -> groups of the N clips in each repetition; and protocol that is not possible -> why.

    Where the groups of the pipeline share no speaker, no sentence, or neither, they are those of the protocol so named.
    """
    own, settings = clips["group"], config.download
    official, pairs, speakers = is_official(own), are_pairs(own), clips["speaker"].n_unique()
    number = settings.num_groups if official else max(2, len(dev_groups(own)))
    made: dict[str, list[pl.Series]] = {"official" if official else "own": [own]}
    why: dict[str, str] = {}
    if official:
        why["own"] = "the folds of the pipeline are those of `official`"
    else:
        why["official"] = "the corpus has no official training and test part"
    if speakers < 2 or not (clips["speaker"] != clips["utterance_id"]).any():
        lacking = ("speakers", "one-speaker-out", "both", "random-less")
        why |= dict.fromkeys(lacking, "who the items come from is unknown")
    elif pairs:
        made["speakers"] = [pair_part(own, "speaker")]
    elif official or shared(clips):
        made["speakers"] = [assign_groups(clips, number, stratify=settings.folds == "stratified")["group"]]
    else:
        made["speakers"] = [own]
        why["own"] = "the folds of the pipeline share no speaker, so they are those of `speakers`"
    if "speakers" in made and speakers <= MOST_SPEAKERS:
        made["one-speaker-out"] = [clips["speaker"]]
    elif "speakers" in made:
        why["one-speaker-out"] = (
            f"there are {speakers} speakers, and at most {MOST_SPEAKERS} are left out one at a time"
        )
    told = ""
    items = clips.unique("utterance_id")
    unsaid = items.height if SENTENCE not in clips.columns else items[SENTENCE].null_count()
    sentences = 0 if unsaid else clips[SENTENCE].n_unique()
    if unsaid:
        told = f"the sentence of {unsaid} of {items.height} items is unknown"
    elif sentences == 1:
        told = "all items have the same sentence"
    elif sentences == clips["utterance_id"].n_unique():
        told = "no two items have the same sentence"
    else:
        grouped = clips.with_columns(group=pair_part(own, "sentence"))
        # the folds of the pipeline already share no sentence, and share speakers where these are known
        given = not official and not shared(grouped, SENTENCE) and ("speakers" not in made or bool(shared(grouped)))
        grouped = grouped if given else assign_groups(clips, number, unit=SENTENCE)
        # a class whose sentences nobody else says, as in a corpus with one text per emotion
        within = grouped.group_by("label").agg(pl.col("group").n_unique()).filter(pl.col("group") == 1)["label"].sort()
        if len(within):
            told = f"the sentences of '{within[0]}' would all be tested together, and none would be left to train on"
        elif not given and "speakers" in made and not shared(grouped):
            told = "folds that share no sentence share no speaker either"
        elif given and (name := "both" if pairs else "sentences") not in why:
            why.setdefault("own", f"the folds of the pipeline are those of `{name}`")
        made["sentences"] = [grouped["group"]]
        if pairs:
            made["both"] = [own]
        elif "speakers" in made:
            made["both"] = [cross_groups(clips.with_columns(group=made["speakers"][0]), number)["group"]]
    if "both" in made and not all(len(fold.train) for fold in folds_of("both", made, clips, config)):
        nothing = "a fold would train on nothing: each other item shares a speaker or a sentence with what is held out"
        for name in ("both", "random-less"):
            why.setdefault(name, nothing)
    if told:
        for name in ("sentences", "both", "random-less"):
            why.setdefault(name, told)
    # groups are dealt out by a hash of these names, so another prefix gives other groups
    seeded = [clips.with_columns(_own=f"{seed} " + pl.col("utterance_id")) for seed in range(REPEATS)]
    made["random"] = [assign_groups(one, number, stratify=True, unit="_own")["group"] for one in seeded]
    made |= {"random-less": made["random"]} if "both" in made else {}
    found = {name: made[one.folds] for name, one in PROTOCOLS.items() if one.folds in made and one.folds not in why}
    absent = {name: why[one.folds] for name, one in PROTOCOLS.items() if one.folds in why}
    if "x-ares" in found:
        found["x-ares"] = [assign_groups(clips, XARES_FOLDS)["group"]]
        if found["x-ares"][0].n_unique() < XARES_FOLDS:
            absent["x-ares"] = f"{speakers} speakers are too few for {XARES_FOLDS} folds"
            del found["x-ares"]
    return found, absent


def folds_of(name: str, groups: Mapping[str, list[pl.Series]], clips: pl.DataFrame, config: Config) -> list[Fold]:
    """The folds of a protocol, one repetition after the other."""
    protocol, own = PROTOCOLS[name], groups[name]
    hold = config.train.selection == "dev-group"
    size = 0.0
    if protocol.folds == "random-less":
        both = folds_of("both", groups, clips, config)
        # the share of the clips that `both` trains on, so that only what is shared differs from it
        size = float(np.mean([len(part.train) + len(part.dev) for part in both])) / len(clips)
    found = []
    for seed in range(protocol.repeats):
        one = own[seed % len(own)]
        for number, test_group in enumerate(fold_groups(one)):
            if is_official(one):
                split = split_of(clips, 1, config.train)
                train, dev, test = split.train, split.dev, split.test
            else:
                held = hold and len(dev_groups(one)) > 2
                _, train, dev, test = cross_validated(one, test_group, dev_group=held)
            # a generator per fold: leaving out a protocol or a repetition changes no other
            rng = np.random.default_rng([SEED, seed, number])
            every = np.sort(np.concatenate([train, dev]))
            if protocol.shots is not None:
                every = _drawn(clips, every, rng, shots=protocol.shots)
            if protocol.chooses == "train":
                # an empty held-out part: leave-one-out error chooses the penalty
                found.append(Fold(every, dev[:0], test))
            elif protocol.chooses == "test":
                # the choice sees the test items, which is what this protocol is to show
                found.append(Fold(every, test, test, held=False))
            elif protocol.chooses == "random":
                dev = _drawn(clips, every, rng, share=DEV_SHARE)
                # not fitted again with what chose, as the benchmark does not
                found.append(Fold(np.setdiff1d(every, dev), dev, test, held=False))
            elif size:
                share = size * len(clips) / len(every)
                train, dev = (_drawn(clips, part, rng, share=share) for part in (train, dev))
                found.append(Fold(train, dev, test))
            else:
                found.append(Fold(train, dev, test))
    return found


def _key(folds: Sequence[Fold], features: Features, config: Config) -> str:
    """Content key of what probes say about the items of these folds, under which it is kept."""
    return content_key(
        {
            "embeddings": features.head.key,
            "unit": config.evaluate.unit,
            "refit": config.train.refit,
            "code": code_hash(__name__, "daamctl", (__name__, "daamctl.evaluation.probe", "daamctl.methods")),
            "folds": [[*(rows.tolist() for rows in (one.train, one.dev, one.test)), one.held] for one in folds],
        }
    )


def _drawn(
    clips: pl.DataFrame, rows: Ids, rng: np.random.Generator, *, share: float = 1.0, shots: int | None = None
) -> Ids:
    """Rows of whole utterances, drawn at random: a share of them, or at most a number per class."""
    names, first, owner = np.unique(clips["utterance_id"].to_numpy()[rows], return_index=True, return_inverse=True)
    order = rng.permutation(len(names))
    if shots is None:
        kept = order[: round(share * len(names))]
    else:
        labels = clips["label"].to_numpy()[rows[first]]
        kept = np.concatenate([order[labels[order] == label][:shots] for label in np.unique(labels)])
    return rows[np.isin(owner, kept)]


def _tested(features: Features, targets: NDArray[np.int64], config: Config, fold: Fold, probe: str) -> pl.DataFrame:
    """Whether a probe is right about each test item of a fold; `targets`: class ids of all clips."""
    layers = range(len(features.layers))
    places = [layers[-1]] if probe == "last" else layers
    rows = FoldRows(fold.train, fold.dev, fold.test)
    refit = fold.held and config.train.refit
    logits, _ = fit_probe(
        features.x, targets, rows, places, len(features.head.classes), refit=refit, build=BUILDERS[probe]
    )
    frame = features.clips[fold.test].with_columns(
        target=pl.Series(targets[fold.test]), logits=pl.Series(logits.tolist())
    )
    items = items_of(frame, config.evaluate.unit)
    right = (items.predictions == items.targets).astype(np.float64)
    return pl.DataFrame({"item": items.ids, "speaker": items.speakers, "target": items.targets, "correct": right})


def _over_repeats(tested: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """How often a probe is right about each item, as a share of the repetitions; columns of an `item_table`."""
    every = pl.concat(tested)
    # repetitions of random folds test every item several times
    one = every.group_by("item").agg(pl.col("speaker", "target").first(), pl.col("correct").mean()).sort("item")
    same = {"fold": 0, "seed": 0, "n_test": 1, "n_train": 1}  # folds do not count here
    return one.with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in same.items()).select(list(SCHEMA))


def _compared(own: pl.DataFrame, other: pl.DataFrame, task: Task) -> list[Compared]:
    """Own minus other, over the items that both test."""
    pair = {"own": own.join(other, on="item", how="semi"), "other": other.join(own, on="item", how="semi")}
    return compare_methods(pair, task=task, same_folds=False)[0]


def _mean(table: pl.DataFrame, metric: str) -> float:
    classes = table["target"].to_numpy() if metric == "balanced_accuracy" else None
    return float(grouped_means(table["correct"].to_numpy(), np.zeros(len(table), dtype=np.int64), classes)[0])
