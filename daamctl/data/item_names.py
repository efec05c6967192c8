"""Names of the items of well-known corpora, which tell who speaks, which dialogue it is, or the class by a code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

WITHIN = r"^(?:.*/|[a-z]+-)?"
"""What may stand before a name: folders, or the corpus in the keys of EmoBox."""
ENDING = r"\.[A-Za-z]\w{1,4}$"


@dataclass(frozen=True)
class Names:
    """How a corpus names its items.

    Args:
        form: what its names have in common, without their ending.
        word: what the names tell of an item.
        part: which part of the form tells it.
        label: the pattern that reads the class, which is a code; "": they do not tell it; None: they may.
        by_speaker: the pattern that reads speakers as classes, where people do that.
    """

    form: str
    word: str = "speaker"
    part: str = "${1}"
    label: str | None = None
    by_speaker: str = ""

    def are_of(self, items: pl.Series) -> pl.Series:
        """Whether each item has such a name."""
        return items.str.replace(ENDING, "").str.contains(WITHIN + self.form)

    def groups(self, items: pl.Series) -> pl.Series:
        """What the names tell of each item."""
        return items.str.replace(ENDING, "").str.replace(WITHIN + self.form, self.part)


NAMES = {
    # perhaps with the speaker before it, as ESPnet writes it, or a number behind it, as Lhotse does
    "LibriSpeech": Names(r"(?:\d{1,5}-)??(\d{1,5})-\d{3,6}-\d{4}(?:-\d+)?$", label=""),
    "MLS": Names(r"(\d{1,5})_\d{1,5}_\d{6}$", label=""),
    "AISHELL": Names(r"[A-Z]{3}\d{3}(S\d{4})W\d{4}(?:-\d+)?$", label=""),
    "TIMIT": Names(r"([MF][A-Z]{3}\d)[_/]S[AIX]\d{1,4}$"),
    "AMI": Names(r"AMI_[A-Z]{2}\d{4}[a-d]?_\w{3}_([MF][A-Z]{2}\d{3})_\d{7}_\d{7}$", label=""),
    "Switchboard": Names(r"((?:sw0|en_)\d{4}-[AB])_\d{6}-\d{6}$", label=""),
    "TED-LIUM": Names(r"([A-Z]\w+_\d{4}[A-Z]*)-\d{7}-\d{7}(?:-\d+)?$", "talk", label=""),
    "GigaSpeech": Names(r"([A-Z]{3}\d{10})_S\d{7}(?:-\d+)?$", "recording", label=""),
    "VoxCeleb": Names(r"(id\d{5})/[\w-]{11}/\d{5}$", label="", by_speaker="{label}/{_}/{_}"),
    "VCTK": Names(r"([ps]\d{1,3})_\d{3}(?:_mic\d)?$", label=""),
    "Speech Commands": Names(r"([0-9a-f]{8})_nohash_\d+$"),
    "EmoDB": Names(r"(\d\d)[ab]\d\d[WLEAFTN][a-f]$", label="{speaker:2}{sentence:3}{label:1}{_:1}"),
    "RAVDESS": Names(r"(?:\d\d-){6}(\d\d)$", label="{_}-{_}-{label}-{_}-{sentence}-{_}-{speaker}"),
    "CREMA-D": Names(r"(1\d{3})[_-][A-Z]{3}[_-][A-Z]{3}[_-][A-Z]{1,2}$", label="{speaker}_{sentence}_{label}_{_}"),
    "MSP-IMPROV": Names(
        r"MSP-IMPROV-S\d\d[AHNS]-([FM]\d\d)-[PRST]-[FM]{2}\d\d$",
        label="MSP-IMPROV-{sentence:3}{label:1}-{speaker}-{_}-{_}",
    ),
    "SAVEE": Names(r"(DC|JE|JK|KL)[_/](?:a|d|f|h|n|sa|su)\d\d$"),
    "ShEMO": Names(r"([FM]\d\d)[AFHNSW]\d\d$", label="{speaker:3}{label:1}{_:2}"),
    "CaFE": Names(r"(\d\d)-[CDJNPST]-[12]-\d$", label="{speaker}-{label}-{_}-{sentence}"),
    "IEMOCAP": Names(r"(Ses0\d)[FM]_(?:impro|script)\w*_([FM])\w{3}$", part="${1}${2}", label=""),
    "MSP-Podcast": Names(r"(MSP-PODCAST_\d{4})_\d{4}(?:_\d+)*$", "podcast"),
    "KDEF": Names(r"[AB]([FM]\d\d)(?:AF|AN|DI|HA|NE|SA|SU)(?:S|[FH][LR])$", label="{_:1}{speaker:3}{label:2}{_}"),
    "ESC-50": Names(r"[1-5]-(\d+)-[A-Z]-\d{1,2}$", "recording"),
    "UrbanSound8K": Names(r"(\d+)-\d-\d{1,2}-\d{1,3}$", "recording"),
    "MELD": Names(r"(dia\d+)_utt\d+$", "dialogue", label=""),
}


def groups_in_names(items: pl.Series) -> tuple[str, str, pl.DataFrame] | None:
    """Groups that the names of a known corpus tell: its name, the word for a group, and the table of item and group.

    None: it is not known, or no two items have a group in common.
    """
    for corpus, names in NAMES.items():
        if names.are_of(items).all() and 1 < (group := names.groups(items)).n_unique() < len(items):
            return corpus, names.word, pl.DataFrame({"item": items, "group": group})
    return None


def most_names(items: Sequence[str]) -> str | None:
    """The corpus that tells the class by a code, or not at all, whose names most items have; None: there is none."""
    known = pl.Series(items, dtype=pl.String)
    told = (corpus for corpus, names in NAMES.items() if names.label is not None)
    return next((corpus for corpus in told if 2 * NAMES[corpus].are_of(known).sum() > len(known)), None)


def speakers_in_names(items: pl.Series, labels: pl.Series) -> tuple[str, pl.Series] | None:
    """The corpus whose names these are, and the speaker of every item, (N,).

    None: they are not known, or each class has one speaker, as where speakers are the classes.
    """
    found = None if items.null_count() else groups_in_names(items)
    if found is None or found[1] != "speaker":
        return None
    corpus, word, table = found
    pairs = table.select("group", label=labels).unique()
    return None if len(pairs) == labels.n_unique() else (corpus, table["group"].alias(word))
