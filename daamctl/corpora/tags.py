"""Schemes of tags that mark entities in sentences, and their conversion to BIO.

Every tag is `O` (outside) or a prefix, a dash and a type. How prefixes mark entities:

- BIO (IOB2): B begins an entity, I continues it.
- IOB1: I begins and continues; B begins an entity right after one of the same type (CoNLL-2003).
- IOBES (BIOES): B begins, I continues and E ends an entity of several words; S is an entity of one. BMES has M for I.
- BILOU: as IOBES, with L for E and U for S.

A tag that is none of `ALLOWED` is a ValueError; readers have refused it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from daamctl.data.spans import OUTSIDE

Scheme = Literal["BIO", "IOB1", "IOBES", "BILOU"]

PREFIXES = "BIMESLU"
ALLOWED = f"O, or {', '.join(f'{prefix}-' for prefix in PREFIXES)} and a type"
"""Which tags there are, for messages."""
UNTYPED = "entity"
"""Type of the entities of a corpus that names none."""
_ENDS = ("E", "L", "S", "U")
_SINGLE = ("S", "U")


@dataclass(frozen=True)
class Sentence:
    """Words and tags of one sentence.

    Args:
        tags: tag of each word, as in the file.
        place: where the first word is: the line of a file, or the row of a table.
        document: number of its document in the file, from 1; 0: none.
    """

    words: Sequence[str]
    tags: Sequence[str]
    place: int
    document: int = 0
    name: str | None = None
    group: str | None = None
    speaker: str | None = None


def split_tag(tag: str) -> tuple[str, str] | None:
    """Prefix and type of a tag, `("O", "")` outside; None if it is no tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, _, kind = tag.partition("-")
    # one letter: an empty prefix would be in the string, too
    return (prefix, kind) if len(prefix) == 1 and prefix in PREFIXES and kind else None


def with_types(tags: Iterable[str]) -> dict[str, str]:
    """Tag -> the tag with prefix and type, for the tags of a file that writes one of them alone; else empty.

    B, I and the like alone, as in the files of BioBERT, mark entities of a single type. Of types alone, as in Few-NERD,
    neighbours of the same type are one entity.
    """
    found = set(tags)
    others = found - {OUTSIDE}
    if others == found or any(tag[1:2] == "-" for tag in others):
        return {}
    untyped = others <= set(PREFIXES) and others & {"B", "I"}
    return {tag: f"{tag}-{UNTYPED}" if untyped else f"I-{tag}" for tag in others}


def to_bio(tags: Sequence[str]) -> list[str]:
    """Convert the tags of one sentence, of any scheme, to BIO.

    A word begins an entity if its tag says so, or if the word before it is outside, of another type, or the end of an
    entity. So broken sequences are read as conlleval and seqeval's default read them: what continues nothing begins.
    """
    parts = [_split(tag) for tag in tags]
    return [
        OUTSIDE if prefix == OUTSIDE else ("B-" if begins else "I-") + kind
        for (prefix, kind), begins in zip(parts, _begins(parts), strict=True)
    ]


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a corpus, from the prefixes that it uses; between BIO and IOB1, from where entities begin.

    Entities that begin with I, and no B where IOB1 has none, make it IOB1. So BIO with a broken entity is still BIO.
    """
    prefixes: set[str] = set()
    begins_with_i = needless_b = False
    for tags in sentences:
        parts = [_split(tag) for tag in tags]
        prefixes.update(prefix for prefix, _ in parts)
        before = ""
        for (prefix, kind), begins in zip(parts, _begins(parts), strict=True):
            begins_with_i |= begins and prefix == "I"
            # IOB1 writes B only where an entity follows another one of its type
            needless_b |= prefix == "B" and before != kind
            before = kind
    if prefixes & {"L", "U"}:
        return "BILOU"
    if prefixes & {"E", "S", "M"}:
        return "IOBES"
    return "IOB1" if begins_with_i and not needless_b else "BIO"


def broken(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """Indexes of the words of one sentence whose tags the scheme does not allow there.

    In BIO: an I that continues no entity of its type. In IOBES and BILOU: a tag that continues none, and one that must
    be continued, but is not. In IOB1: none.
    """
    if scheme == "IOB1":
        return []
    parts = [_split(tag) for tag in tags]
    begins = _begins(parts)
    found = []
    for index, (prefix, _) in enumerate(parts):
        lone = begins[index] and prefix not in ("B", *_SINGLE)
        # whether no word after it belongs to the same entity
        last = index + 1 == len(parts) or parts[index + 1][0] == OUTSIDE or begins[index + 1]
        unfinished = scheme != "BIO" and prefix in ("B", "I", "M") and last
        if lone or unfinished:
            found.append(index)
    return found


def _split(tag: str) -> tuple[str, str]:
    parts = split_tag(tag)
    if parts is None:
        raise ValueError(f"'{tag}' is none of {ALLOWED}")
    return parts


def _begins(parts: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether each word begins an entity."""
    found, before = [], (OUTSIDE, "")
    for prefix, kind in parts:
        found.append(
            prefix != OUTSIDE and (prefix in ("B", *_SINGLE) or before[0] in (OUTSIDE, *_ENDS) or before[1] != kind)
        )
        before = (prefix, kind)
    return found
