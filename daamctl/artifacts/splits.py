"""Cross-validation folds: which groups train, select and test.

A corpus whose groups are `train` and `test`, and optionally `dev`, has an official split: a single fold that tests on
`test`. In any other corpus every group is the test group once. If every group is a pair of speakers and sentences
(`download.disjoint: both`), items that have only the speakers or only the sentences of a test group are in no part of
its fold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.config import TrainConfig
from daamctl.data.spans import OUTSIDE, are_words, sentence_of
from daamctl.data.task import TASKS
from daamctl.errors import TrainingError

OFFICIAL = ("train", "dev", "test")
PAIR = "speakers{}-sentences{}"
"""Name of a group that is a pair."""
HELD_OUT_SEED = 0  # the same for all methods and seeds, so that they select on the same items


@dataclass(frozen=True)
class Split:
    """Rows of one fold.

    Args:
        fold: 1-based.
        num_folds: number of groups that serve as test group.
        test_group: group `fold` in natural order.
        dev_group: the group after it, cyclically; in an official split without a dev part, a description of the items
            held out from the training part; None if nothing is held out.
        train: (n,) row numbers.
        dev: (n,) row numbers, empty without a dev group.
        test: (n,) row numbers.
    """

    fold: int
    num_folds: int
    test_group: str
    dev_group: str | None
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def joined(split: Split) -> Split:
    """The same fold with the held-out group merged into the training part."""
    train = np.sort(np.concatenate([split.train, split.dev]))
    return replace(split, dev_group=None, train=train, dev=np.empty(0, np.int64))


def is_official(groups: pl.Series) -> bool:
    """Whether the groups form an official train/test split."""
    names = set(groups.unique())
    return {"train", "test"} <= names <= set(OFFICIAL)


def fold_groups(groups: pl.Series) -> list[str]:
    """Groups that serve as test group, in natural order (group2 before group10); fold k tests on the k-th."""
    if is_official(groups):
        return ["test"]
    return sorted(
        sorted(groups.unique()), key=lambda name: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)]
    )


def make_split(
    clips: pl.DataFrame, fold: int, *, dev_group: bool, dev_fraction: float = 0.1, test_part: str | None = None
) -> Split:
    """Split clips for one fold.

    Args:
        clips: rows with `group` and `label`.
        fold: 1-based number of the test group.
        dev_group: hold out the next group for selecting the epoch; in an official split, its dev part.
        dev_fraction: share of each class to hold out from the training part if an official split has no dev part.
        test_part: `dev` tests on the dev part of an official split, and holds out from the training part.

    Raises:
        TrainingError: no such fold, too few groups, or a part with fewer than two classes.
    """
    names = fold_groups(clips["group"])
    official = is_official(clips["group"])
    # the groups stand in a ring: each is held out while the one before it is tested
    needed, rings = 3 if dev_group else 2, names if official else dev_groups(clips["group"])
    if len(rings) < needed and not official:
        # `download` finds most corpora of too few groups; embeddings have neither column
        kind = "text" if "text" in clips.columns else "image" if "index" in clips.columns else "speech"
        source = TASKS[kind].source
        fix = (
            f"give the corpus more groups, each with its own {source}s, by a group column in its table or with "
            f"download: {{num_groups: {needed}}} in the pipeline"
        )
        if (speakers := clips["speaker"].n_unique() if "speaker" in clips.columns else needed) < needed:
            fix = (
                f"its items come from {counted(speakers, source)}: add others, or leave out the column speaker, and "
                f"every item counts alone; results then hold for these {source}s only"
            )
            if are_words(clips):
                source = TASKS["tokens"].with_sources(clips["utterance_id"], clips["speaker"]).source
                fix = f"its words come from {counted(speakers, source)}: add others; an empty line ends a sentence"
        raise TrainingError(
            f"{len(rings)} group(s) ({', '.join(rings)}) cannot be split into train{', dev' if dev_group else ''} and "
            f"test; at least {needed} are needed",
            fix=fix + ("; with two groups, write train: {selection: last} into the pipeline" if dev_group else ""),
        )
    if not 1 <= fold <= len(names):
        raise TrainingError(f"fold must be 1 to {len(names)} or 'all', got {fold}")
    test = names[fold - 1] if test_part is None else test_part
    group = clips["group"].to_numpy()
    if test not in group:
        raise TrainingError(f"the corpus has no {test} part to test on", fix="remove train.test_part from the settings")
    parts = {"test": np.flatnonzero(group == test)}
    if official:
        parts["train"] = np.flatnonzero(group == "train")
        # a dev part that is tested cannot choose the settings
        held_out = dev_group and test_part is None
        parts["dev"] = np.flatnonzero(group == "dev") if held_out else np.empty(0, np.int64)
        dev = "dev" if dev_group else None
        if dev_group and not len(parts["dev"]):
            dev = f"{dev_fraction:.0%} of train"
            parts["train"], parts["dev"] = _hold_out(clips, parts["train"], dev_fraction)
    else:
        dev, parts["train"], parts["dev"], parts["test"] = cross_validated(clips["group"], test, dev_group=dev_group)
    labels = clips["label"]
    for part, rows in parts.items():
        if part == "dev" and dev is None:
            continue
        classes = labels[rows].unique().to_list()
        if len(classes) < 2:
            where = {"test": test, "dev": dev}.get(part) or "the other groups"
            held = f"only class '{classes[0]}'" if classes else "no recording, as no class has two"
            raise TrainingError(
                f"fold {fold}: the {part} part ({where}) holds {held}; at least two classes are needed",
                fix="regroup the corpus (download.folds=stratified, a smaller download.num_groups, or a column group): "
                "every group needs several classes",
            )
    return Split(fold, len(names), test, dev, parts["train"], parts["dev"], parts["test"])


def dev_groups(groups: pl.Series) -> list[str]:
    """What is held out in turn, in natural order: the groups; of pairs, their speakers."""
    return fold_groups(pair_part(groups, "speaker"))


def cross_validated(
    groups: pl.Series, test: str, *, dev_group: bool
) -> tuple[str | None, np.ndarray, np.ndarray, np.ndarray]:
    """The fold that tests on a group: name of the held-out group, and rows of the training, held-out and test part.

    Of pairs, the held-out part has the next speakers and, like the training part, none of the test part's sentences.

    Args:
        groups: (N,), no official split.
        dev_group: hold out the group after `test`; without it, the held-out part is empty.
    """
    held, sentences = (pair_part(groups, name).to_numpy() for name in ("speaker", "sentence"))
    tested = (groups == test).to_numpy()
    # any row of the test group tells its speakers and sentences
    place, ring = int(tested.argmax()), dev_groups(groups)
    # groups without pairs are their own speakers and sentences, so this is every other group
    others = (held != held[place]) & (sentences != sentences[place])
    dev = ring[(ring.index(held[place]) + 1) % len(ring)] if dev_group else None
    out = others & (held == (dev or ""))
    train, dev_rows, test_rows = (np.flatnonzero(part) for part in (others & ~out, out, tested))
    return dev, train, dev_rows, test_rows


def are_pairs(groups: pl.Series) -> bool:
    """Whether every group is a pair of speakers and sentences."""
    return bool(groups.str.contains(f"^{PAIR.format('[0-9]+', '[0-9]+')}$").all())


def pair_part(groups: pl.Series, column: str) -> pl.Series:
    """The half of each pair that says whether groups share a `speaker` or a `sentence`; other groups as they are."""
    halves = {"speaker": "^(.*)-", "sentence": "-(.*)$"}
    return groups.str.extract(halves[column]) if column in halves and are_pairs(groups) else groups


def chosen_folds(groups: pl.Series, fold: int | None) -> list[int]:
    """Numbers of the folds to train: the given one, or all.

    Raises:
        TrainingError: there is no such fold.
    """
    number = len(fold_groups(groups))
    if fold is not None and not 1 <= fold <= number:
        raise TrainingError(f"--fold must be {f'1 to {number}' if number > 1 else '1'} or all, got {fold}")
    return list(range(1, number + 1)) if fold is None else [fold]


def split_of(clips: pl.DataFrame, fold: int, train: TrainConfig, seed: int = 0) -> Split:
    """Split a fold according to the settings.

    Args:
        clips: rows with `group` and `label`.
        fold: 1-based.
        seed: of the training; draws the sentences of few-shot training.

    Raises:
        TrainingError: as `make_split` and `few_shot`.
    """
    held_out, few = train.selection == "dev-group", train.shots is not None
    split = make_split(
        clips, fold, dev_group=held_out and not few, dev_fraction=train.dev_fraction, test_part=train.test_part
    )
    if train.shots is None:
        return split
    return few_shot(split, clips, train.shots, seed, dev_fraction=train.dev_fraction if held_out else None)


def few_shot(split: Split, clips: pl.DataFrame, shots: int, seed: int, *, dev_fraction: float | None) -> Split:
    """Draw the training sentences of a few-shot trial: N C of them, uniformly and without replacement.

    C is the number of entity types. The draw is not stratified, so a type may be absent. What is held out is a share of
    the drawn sentences, because the dev part of a corpus is too large for a few-shot trial.
    Source: docs/sources.md#token-tasks.

    Args:
        split: the split of all sentences, with nothing held out.
        clips: words, with `utterance_id` and `label`.
        shots: N.
        dev_fraction: share of the drawn sentences to hold out, at least one, but not all; None: hold out nothing.

    Raises:
        TrainingError: the rows are no words, there are fewer sentences, or the only one would be held out.
    """
    if not are_words(clips):
        raise TrainingError(
            "train.shots draws sentences, but the corpus is not made of tagged words", fix="set train.shots to null"
        )
    types = {label[2:] for label in clips["label"].unique() if label != OUTSIDE}
    sentence = sentence_of(clips["utterance_id"])
    known = np.unique(sentence[split.train])
    number = shots * len(types)
    if number > len(known):
        raise TrainingError(
            f"train.shots={shots} asks for {number} sentences ({len(types)} entity types), the training part has "
            f"{len(known)}",
            fix=f"at most --set train.shots={len(known) // len(types)}",
        )
    drawn = np.random.default_rng([seed, shots]).permutation(known)[:number]
    if dev_fraction is not None and number == 1:
        raise TrainingError(
            "train.shots=1 draws 1 sentence (1 entity type); it would be held out, and none would be left to train on",
            fix="at least --set train.shots=2, or --set train.selection=last",
        )
    # one sentence is left to train on
    held = 0 if dev_fraction is None else min(max(1, round(dev_fraction * number)), number - 1)
    train = np.flatnonzero(np.isin(sentence, drawn[held:]))
    dev = np.flatnonzero(np.isin(sentence, drawn[:held]))
    group = f"{held} of {number} sentences" if held else None
    return replace(split, dev_group=group, train=train, dev=dev)


def _hold_out(clips: pl.DataFrame, rows: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows kept and rows held out: about the same share of the recordings of every class; of words, sentences."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    if are_words(clips):
        sentence = sentence_of(clips["utterance_id"].gather(rows))
        known = np.unique(sentence)
        held_out = rng.permutation(known)[: max(1, round(fraction * len(known)))]
        out = rows[np.isin(sentence, held_out)]
        return np.setdiff1d(rows, out), out
    part = clips[rows].select("label", "utterance_id")  # the clips of a recording stay together
    recordings = part.unique(maintain_order=True).sort("label", maintain_order=True)
    held: list[str] = []
    for _, of_class in recordings.group_by("label", maintain_order=True):
        # one recording of every class is left to train on
        number = min(max(1, round(fraction * len(of_class))), len(of_class) - 1)
        held += rng.permutation(of_class["utterance_id"].to_numpy())[:number].tolist()
    out = rows[part["utterance_id"].is_in(held).to_numpy()]
    return np.setdiff1d(rows, out), out
