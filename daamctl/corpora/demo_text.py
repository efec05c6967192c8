"""A synthetic corpus of notices on a town's board, so that text commands can be tried without a download.

Sentences come from small grammars and word lists of four topics that share places, people and much of their wording.
Some notices borrow a word of another topic, so a bag of words gets most of them right, but not all. Each topic has few
words, so that even the 64 features of a random encoder can tell which ones a notice uses. Ten invented authors differ
in habits: greeting, closing, hedges, length, punctuation. Each group has two of them, so folds are author-independent.
Accuracies on it show that a pipeline works, not how good it is.

The same seed gives the same texts: each author has their own PCG64 stream.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.corpora import manifest
from daamctl.corpora.base import Corpus, Fingerprint
from daamctl.corpora.fetch import is_whole, made_whole
from daamctl.store.files import write_text

log = logging.getLogger(__name__)

VERSION = 2
"""Raised whenever the generator gives other texts, so that older copies are generated again."""
FILE = "notices.csv"
PER_AUTHOR = {"cooking": 18, "gardening": 16, "repairs": 14, "sailing": 12}
"""Texts of every author by class; not balanced, so that accuracy and balanced accuracy differ."""
BORROWED_FRACTION = 0.12
"""Chance that a word of a topic is taken from another topic instead."""
PLAIN_FRACTION = 0.15
"""Chance that a sentence has no word of a topic at all."""


@dataclass(frozen=True)
class Topic:
    """Terms of one class: things, what is done with them (forms that follow "to"), and how they are."""

    things: tuple[str, ...]
    actions: tuple[str, ...]
    qualities: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in text.split())


# Some words are in two lists: a pot holds a plant or soup, a mast is as wooden as a fence.
TOPICS = {
    "cooking": Topic(
        _words("soup bread oven pot kitchen_knife dough"),
        _words("bake stir taste slice"),
        _words("fresh warm sour sweet"),
    ),
    "gardening": Topic(
        _words("hedge seed_bed soil pot bean_row spade"), _words("plant water dig trim"), _words("fresh green dry wild")
    ),
    "repairs": Topic(
        _words("roof ladder lamp hinge drill fence"),
        _words("fix drill paint tighten"),
        _words("broken loose rusty wooden"),
    ),
    "sailing": Topic(
        _words("boat rope mast anchor hull rudder"), _words("tie hoist sail fold"), _words("wet calm windy wooden")
    ),
}
NAMES = _words("Mara Oskar Lena Tomas Ilka Bruno Signe Pavel Runa Emil")
PLACES = _words("behind_the_school near_the_bridge at_the_old_mill in_Long_Lane by_the_river next_to_the_library")
TIMES = _words("on_Monday on_Saturday tomorrow this_evening next_week at_noon before_sunrise after_work")
TOPICAL = (
    "{who} wants to {action} the {quality} {thing} {place}",
    "we will {action} the {thing} {time}",
    "has anyone seen the {quality} {thing} of {who}",
    "the {thing} {place} is too {quality}",
    "{time} {who} showed us how to {action} the {thing}",
    "I lent my {thing} to {who} and need it {time}",
)
PLAIN = (
    "we meet {place} {time}",
    "please ask {who} if you have questions",
    "{who} will be there {time}",
    "bring something to drink and a friend",
    "it took longer than we thought",
    "call me or leave a note {place}",
)


@dataclass(frozen=True)
class Author:
    """Habits of one writer.

    Args:
        greeting: how a notice may begin.
        closing: how it may end.
        hedge: put in front of some sentences.
        sentences: mean number of sentences beyond the first.
        politeness: chance of greeting, closing and hedge.
        lower: writes without capitals.
    """

    name: str
    greeting: str
    closing: str
    hedge: str
    mark: str
    sentences: float
    politeness: float
    lower: bool


GREETINGS = ("Hello all", "Dear neighbours", "Hi", "Good morning", "To whom it may concern")
CLOSINGS = ("Thanks", "Kind regards", "See you", "Yours", "Bye for now")
HEDGES = ("perhaps", "honestly", "as I said", "by the way", "I think")
MARKS = (".", "!", " ...", ".", ".")


def author_of(index: int, seed: int) -> Author:
    """The habits of one of the ten authors."""
    rng = _rng(seed, index, 0)
    greeting, closing, hedge, mark = (_pick(rng, words) for words in (GREETINGS, CLOSINGS, HEDGES, MARKS))
    sentences, politeness = 0.6 + 1.6 * rng.random(), rng.random()
    return Author(NAMES[index], greeting, closing, hedge, mark, sentences, politeness, rng.random() < 0.25)


def notices(seed: int = 0) -> pl.DataFrame:
    """Every text, with the columns of a manifest of texts."""
    rows = []
    for index, name in enumerate(NAMES):
        author, rng = author_of(index, seed), _rng(seed, index, 1)
        # every author writes as much about each topic, so the author alone tells nothing of the class
        labels = [label for label, count in PER_AUTHOR.items() for _ in range(count)]
        for number, place in enumerate(np.argsort(rng.random(len(labels)), kind="stable")):
            rows.append(
                {
                    "utterance_id": f"{name}-{number:03d}",
                    "text": notice(author, labels[place], rng),
                    "label": labels[place],
                    "speaker": name,
                    "group": f"group{index // 2 + 1}",
                }
            )
    return pl.DataFrame(rows)


def notice(author: Author, label: str, rng: np.random.Generator) -> str:
    """One text; its first sentence is always about the topic."""
    count = 1 + int(rng.poisson(author.sentences))
    sentences = [
        _sentence(author, label, rng, topical=place == 0 or rng.random() > PLAIN_FRACTION) for place in range(count)
    ]
    if rng.random() < author.politeness:
        sentences.insert(0, author.greeting)
    if rng.random() < author.politeness:
        sentences.append(f"{author.closing}, {author.name}")
    text = " ".join(sentence[0].upper() + sentence[1:] + author.mark for sentence in sentences)
    return text.lower() if author.lower else text


def _sentence(author: Author, label: str, rng: np.random.Generator, *, topical: bool) -> str:
    others = [name for name in TOPICS if name != label]

    def topic() -> Topic:
        return TOPICS[_pick(rng, others) if rng.random() < BORROWED_FRACTION else label]

    words = {
        "thing": _pick(rng, topic().things),
        "action": _pick(rng, topic().actions),
        "quality": _pick(rng, topic().qualities),
        "who": _pick(rng, NAMES),
        "place": _pick(rng, PLACES),
        "time": _pick(rng, TIMES),
    }
    sentence = _pick(rng, TOPICAL if topical else PLAIN).format(**words)
    return f"{author.hedge}, {sentence}" if rng.random() < 0.4 * author.politeness else sentence


def _pick(rng: np.random.Generator, items: tuple[str, ...] | list[str]) -> str:
    return items[int(rng.random() * len(items))]


def _rng(*stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(stream)))


def generate(root: Path, *, seed: int = 0) -> Path:
    """Generate the corpus in `root`, atomically, unless it exists already.

    Returns:
        `root`.
    """
    marker = f"daamctl demo texts, version {VERSION}, seed {seed}\n"
    if not is_whole(root, marker):
        log.info("generating the demo texts in %s", root)
        with made_whole(root, marker) as new:
            write_text(new / FILE, notices(seed).write_csv())
    return root


def prepare(root: Path) -> pl.DataFrame:
    """Read the corpus that `generate` wrote."""
    return manifest.prepare(root / FILE)


CORPUS = Corpus(
    name="demo-text",
    title="invented notices of ten authors: 600 texts, four topics; made on this machine",
    licence="none needed: it is computed",
    classes=tuple(PER_AUTHOR),
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class={label: count * len(NAMES) for label, count in PER_AUTHOR.items()},
        per_speaker={name: sum(PER_AUTHOR.values()) for name in NAMES},
        per_group={f"group{number}": 2 * sum(PER_AUTHOR.values()) for number in range(1, 6)},
    ),
    how_to_get="daamctl download demo-text makes it",
    obtain=generate,
    modality="text",
)
