"""Names of the items of well-known corpora, which tell who speaks, which dialogue it is, or the class by a code."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

WITHIN = r"^(?:.*/|[a-z]+-)?"
"""What may stand before a name: folders, or the corpus in the keys of EmoBox."""
NAMED = {
    # perhaps with the speaker before it, as ESPnet writes it, or a number behind it, as Lhotse does
    "LibriSpeech": ("speaker", r"(?:\d{1,5}-)??(\d{1,5})-\d{3,6}-\d{4}(?:-\d+)?$", "${1}"),
    "MLS": ("speaker", r"(\d{1,5})_\d{1,5}_\d{6}$", "${1}"),
    "AISHELL": ("speaker", r"[A-Z]{3}\d{3}(S\d{4})W\d{4}(?:-\d+)?$", "${1}"),
    "TIMIT": ("speaker", r"([MF][A-Z]{3}\d)[_/]S[AIX]\d{1,4}$", "${1}"),
    "AMI": ("speaker", r"AMI_[A-Z]{2}\d{4}[a-d]?_\w{3}_([MF][A-Z]{2}\d{3})_\d{7}_\d{7}$", "${1}"),
    "Switchboard": ("speaker", r"((?:sw0|en_)\d{4}-[AB])_\d{6}-\d{6}$", "${1}"),
    "TED-LIUM": ("talk", r"([A-Z]\w+_\d{4}[A-Z]*)-\d{7}-\d{7}(?:-\d+)?$", "${1}"),
    "GigaSpeech": ("recording", r"([A-Z]{3}\d{10})_S\d{7}(?:-\d+)?$", "${1}"),
    "VoxCeleb": ("speaker", r"(id\d{5})/[\w-]{11}/\d{5}$", "${1}"),
    "VCTK": ("speaker", r"([ps]\d{1,3})_\d{3}(?:_mic\d)?$", "${1}"),
    "Speech Commands": ("speaker", r"([0-9a-f]{8})_nohash_\d+$", "${1}"),
    "EmoDB": ("speaker", r"(\d\d)[ab]\d\d[WLEAFTN][a-f]$", "${1}"),
    "IEMOCAP": ("speaker", r"(Ses0\d)[FM]_(?:impro|script)\w*_([FM])\w{3}$", "${1}${2}"),
    "RAVDESS": ("speaker", r"(?:\d\d-){6}(\d\d)$", "${1}"),
    "CREMA-D": ("speaker", r"(1\d{3})[_-][A-Z]{3}[_-][A-Z]{3}[_-][A-Z]{1,2}$", "${1}"),
    "MSP-IMPROV": ("speaker", r"MSP-IMPROV-S\d\d[AHNS]-([FM]\d\d)-[PRST]-[FM]{2}\d\d$", "${1}"),
    "SAVEE": ("speaker", r"(DC|JE|JK|KL)[_/](?:a|d|f|h|n|sa|su)\d\d$", "${1}"),
    "ShEMO": ("speaker", r"([FM]\d\d)[AFHNSW]\d\d$", "${1}"),
    "CaFE": ("speaker", r"(\d\d)-[CDJNPST]-[12]-\d$", "${1}"),
    "MSP-Podcast": ("podcast", r"(MSP-PODCAST_\d{4})_\d{4}(?:_\d+)*$", "${1}"),
    "ESC-50": ("recording", r"[1-5]-(\d+)-[A-Z]-\d{1,2}$", "${1}"),
    "UrbanSound8K": ("recording", r"(\d+)-\d-\d{1,2}-\d{1,3}$", "${1}"),
    "MELD": ("dialogue", r"(dia\d+)_utt\d+$", "${1}"),
}
"""Corpus -> what its names of items have in common, the form of a name without its ending, and the part of it."""
CODED = {
    "EmoDB": "{speaker:2}{_:3}{label:1}{_:1}",
    "RAVDESS": "{_}-{_}-{label}-{_}-{_}-{_}-{speaker}",
    "MSP-IMPROV": "MSP-IMPROV-{_:3}{label:1}-{speaker}-{_}-{_}",
    "ShEMO": "{speaker:3}{label:1}{_:2}",
    "CaFE": "{speaker}-{label}-{_}-{_}",
    "IEMOCAP": "",
}
"""Corpus whose names tell the emotion by a code, or not at all -> the pattern that reads it."""
ENDING = r"\.[A-Za-z]\w{1,4}$"


def groups_in_names(items: pl.Series) -> tuple[str, str, pl.DataFrame] | None:
    """Groups that the names of a known corpus tell: its name, the word for a group, and the table of item and group.

    None: it is not known, or no two items have a group in common.
    """
    names = items.str.replace(ENDING, "")
    for corpus, (word, form, part) in NAMED.items():
        if names.str.contains(WITHIN + form).all():
            group = names.str.replace(WITHIN + form, part)
            if 1 < group.n_unique() < len(items):
                return corpus, word, pl.DataFrame({"item": items, "group": group})
    return None


def coded_names(items: Sequence[str]) -> tuple[str, str] | None:
    """The corpus of `CODED` whose names most items have, and its pattern; None: they are not known."""
    names = pl.Series(items, dtype=pl.String).str.replace(ENDING, "")
    found = (one for one in CODED if names.str.contains(WITHIN + NAMED[one][1]).sum() * 2 > len(names))
    return next(((corpus, CODED[corpus]) for corpus in found), None)


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
