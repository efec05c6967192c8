"""What things are called: recordings have speakers and clips, a text or an image is one item of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daamctl.artifacts.utterances import Modality


@dataclass(frozen=True)
class Terms:
    """The words for one modality, in the singular.

    Args:
        item: what is classified, a row of the utterance table.
        clip: what is trained on, a row of the clip table.
        source: what an item comes from, the unit of independence.
        original: what a corpus is made of.
        examine: what one does to see whether two items are alike.
        unknown: what is said where every item is its own source.
    """

    item: str
    clip: str
    source: str
    original: str
    examine: str
    unknown: str

    def unit(self, unit: str) -> str:
        """The word for a unit of scoring, "utterance" or "clip"."""
        return self.clip if unit == "clip" else self.item


WORDS: dict[str, Terms] = {
    "speech": Terms("utterance", "clip", "speaker", "recording", "listen to", "Who speaks is not known"),
    "text": Terms("text", "text", "author", "text", "read", "Who wrote the texts is not known"),
    "image": Terms("image", "image", "source", "image", "look at", "Where the images come from is not known"),
}


def terms_of(modality: Modality | str) -> Terms:
    """The words for a modality."""
    return WORDS[modality]


def counted(number: int, word: str) -> str:
    """A number of things in words, e.g. `2 folds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def with_article(word: str) -> str:
    """`a fold`, `an item`."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def listed(words: Sequence[str]) -> str:
    """Words joined as `a, b and c`."""
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def percent(fraction: float | None) -> str:
    """0.6464 -> `64.6 %`; None -> `-`."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
