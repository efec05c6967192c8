"""Terms for each modality: recordings have speakers and clips; a text or an image is a single item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from daamctl.artifacts.utterances import Modality


@dataclass(frozen=True)
class Terms:
    """Terms of one modality, in the singular.

    Args:
        item: what is classified, a row of the utterance table.
        clip: what is trained on, a row of the clip table.
        source: where an item comes from; the unit of independence.
        original: what a corpus consists of.
        examine: verb for checking whether two items are alike.
        unknown: phrase for corpora in which every item is its own source.
    """

    item: str
    clip: str
    source: str
    original: str
    examine: str
    unknown: str

    def unit(self, unit: str) -> str:
        """The term for a unit of scoring, "utterance" or "clip"."""
        return self.clip if unit == "clip" else self.item


Metric = Literal["accuracy", "entity_f1"]
"""A metric by which models are compared."""
METRIC_NAMES: dict[Metric, str] = {"accuracy": "accuracy", "entity_f1": "entity F1"}

WORDS: dict[str, Terms] = {
    "speech": Terms("utterance", "clip", "speaker", "recording", "listen to", "Who speaks is not known"),
    "text": Terms("text", "text", "author", "text", "read", "Who wrote the texts is not known"),
    "tokens": Terms("word", "word", "sentence", "word", "read", "The sentences of the words are not known"),
    "embeddings": Terms("utterance", "item", "speaker", "item", "look at", "Who the items come from is not known"),
    "image": Terms("image", "image", "source", "image", "look at", "Where the images come from is not known"),
}


def terms_of(modality: Modality | str) -> Terms:
    """The terms of a modality."""
    return WORDS[modality]


def metric_of(modality: Modality | str) -> Metric:
    """What models of a modality are compared by: taggers by entity F1, all else by accuracy."""
    return "entity_f1" if modality == "tokens" else "accuracy"


def counted(number: int, word: str) -> str:
    """A number of things in words, e.g. `2 folds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def with_article(word: str) -> str:
    """`a fold`, `an item`."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def listed(words: Sequence[str]) -> str:
    """Words joined as `a, b and c`."""
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def encoder_label(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Name of an encoder for readers, which says so if its weights are random.

    Args:
        facts: as recorded in the embeddings; `name` and `source` are used.
        settings: the section `extract`; its `name` takes precedence.
    """
    shown = settings.get("name") or str(without_path(facts.get("name") or settings.get("encoder", "unknown")))
    return f"{shown} with random weights" if "(random weights" in str(facts.get("source")) else shown


def without_path(value: object) -> object:
    """The name of a folder instead of its path: reports may be shared, so they show no local path."""
    folder = Path(str(value)).expanduser()
    return folder.name if folder.is_absolute() else value


def percent(fraction: float | None) -> str:
    """0.6464 -> `64.6 %`; None -> `-`."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
