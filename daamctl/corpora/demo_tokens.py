"""A synthetic corpus of tagged sentences, so that token commands can be tried without a download.

The same invented names are people, places and things, so a word alone does not tell its tag: the words before it do
("in Velda", "met Velda", "my Velda"). A few sentences have no cue, so nothing can be right everywhere. Scores on it
show that a pipeline works, not how good it is. No sentence occurs twice, and the same seed gives the same ones (PCG64).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.corpora.base import Corpus, Fingerprint, counts
from daamctl.corpora.conll import classes_of, read_parts
from daamctl.corpora.fetch import is_whole, made_whole
from daamctl.store.files import write_text

log = logging.getLogger(__name__)

VERSION = 1
"""Raised whenever the generator gives other sentences, so that older copies are generated again."""
AGAIN = "make it again: daamctl download demo-tokens --force"
SENTENCES = {"train": 240, "dev": 80, "test": 160}
"""Number of sentences of each part."""
TYPES = ("person", "place", "product")
NAMES = ("Velda", "Orrin", "Maku", "Tessel", "Brann", "Ilvo", "Sorra", "Quint", "Hesper", "Dorn", "Yara", "Pell")
SECOND = {"person": ("Ash", "Moor", "Lind", "Varga"), "place": ("Bay", "Hill"), "product": ("Mini", "40")}
"""Second words of entities of two words."""
LONG_FRACTION = 0.4
"""Chance that an entity has two words."""
TEMPLATES = (
    "I met {person} in {place}",
    "we asked {person} about my {product}",
    "{time} they drove to {place}",
    "she sold my {product} to uncle {person}",
    "uncle {person} lives in {place}",
    "have you tried my {product} ?",
    "it rained in {place} {time}",
    "I met {person} {time}",
    "my {product} broke on the way to {place}",
    "we asked {person} to fix it",
    "uncle {person} lent us my {product} {time}",
    "nobody was there {time}",
    "please bring something to drink",
    "{person} is late",
    "{product} is the best one",
    "{place} is far away",
)
"""Sentences; the last three have no cue."""
TIMES = ("on Monday", "last week", "before noon", "today")


def sentences(seed: int = 0) -> dict[str, list[list[tuple[str, str]]]]:
    """Part -> words and BIO tags of each sentence; no sentence occurs twice."""
    rng = np.random.Generator(np.random.PCG64(seed))
    seen: set[tuple[tuple[str, str], ...]] = set()
    parts: dict[str, list[list[tuple[str, str]]]] = {}
    for part, number in SENTENCES.items():
        made = parts[part] = []
        while len(made) < number:
            words = _sentence(rng)
            if tuple(words) not in seen:
                seen.add(tuple(words))
                made.append(words)
    return parts


def _sentence(rng: np.random.Generator) -> list[tuple[str, str]]:
    words: list[tuple[str, str]] = []
    for slot in _pick(rng, TEMPLATES).split():
        kind = slot.strip("{}")
        if kind in TYPES:
            words.append((_pick(rng, NAMES), f"B-{kind}"))
            if rng.random() < LONG_FRACTION:
                words.append((_pick(rng, SECOND[kind]), f"I-{kind}"))
        else:
            words += [(word, "O") for word in (_pick(rng, TIMES).split() if kind == "time" else [slot])]
    return words if words[-1][0] == "?" else [*words, (_pick(rng, (".", "!")), "O")]


def _pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(rng.random() * len(items))]


def generate(root: Path, *, seed: int = 0) -> Path:
    """Generate the corpus in `root`, atomically, unless it exists already."""
    marker = f"daamctl demo tokens, version {VERSION}, seed {seed}\n"
    if not is_whole(root, marker):
        log.info("generating the demo sentences in %s", root)
        with made_whole(root, marker) as new:
            for part, made in sentences(seed).items():
                texts = ["".join(f"{word}\t{tag}\n" for word, tag in words) for words in made]
                write_text(new / f"{part}.conll", "\n".join(texts))
    return root


def prepare(root: Path) -> pl.DataFrame:
    """Read the corpus that `generate` wrote."""
    files = {part: root / f"{part}.conll" for part in SENTENCES}
    return read_parts(files, columns=2, what="the demo sentences", fix=AGAIN)


CORPUS = Corpus(
    name="demo-tokens",
    title="invented sentences with tags for people, places and products: 240, 80 and 160; made on this machine",
    licence="none needed: it is computed",
    classes=classes_of(TYPES),
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class=counts(classes_of(TYPES), 2503, 279, 126, 210, 92, 202, 92),
        per_group={"train": 1723, "dev": 608, "test": 1173},
    ),
    how_to_get="daamctl download demo-tokens makes it",
    obtain=generate,
    modality="tokens",
)
