"""Schemes of tags: what they mean, how they are told apart, and what is broken."""

from __future__ import annotations

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from daamctl.corpora.tags import Scheme, broken, scheme_of, split_tag, to_bio

# "Ann Lee met Bo Cy in Rio": Ann Lee and Bo are people, one after the other; so is Cy, by itself
BIO = ["B-PER", "I-PER", "B-PER", "O", "B-PER", "B-LOC", "O"]
SAME: dict[Scheme, list[str]] = {
    "BIO": BIO,
    "IOB1": ["I-PER", "I-PER", "B-PER", "O", "I-PER", "I-LOC", "O"],
    "IOBES": ["B-PER", "E-PER", "S-PER", "O", "S-PER", "S-LOC", "O"],
    "BILOU": ["B-PER", "L-PER", "U-PER", "O", "U-PER", "U-LOC", "O"],
}


@pytest.mark.parametrize("scheme", SAME)
def test_every_scheme_gives_the_same_bio(scheme: Scheme) -> None:
    assert to_bio(SAME[scheme]) == BIO
    assert scheme_of([["O"], SAME[scheme]]) == scheme
    assert broken(SAME[scheme], scheme) == []


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_keeps_the_entities_that_seqeval_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("X", "creative-work"))]
    for _ in range(200):
        tags = [known[index] for index in rng.integers(len(known), size=rng.integers(1, 8))]
        assert get_entities(to_bio(tags)) == get_entities(tags), tags
        assert broken(to_bio(tags), "BIO") == []
        assert to_bio(to_bio(tags)) == to_bio(tags)


@pytest.mark.parametrize(
    ("tags", "scheme", "wrong"),
    [
        ("I-X I-X O I-X", "BIO", [0, 3]),
        ("B-X I-Y I-Y", "BIO", [1]),
        ("B-X I-X B-X", "IOBES", [1, 2]),
        ("E-X O I-X E-X S-X", "IOBES", [0, 2]),
        ("B-X M-X E-X O M-X", "IOBES", [4]),
        ("B-X L-X I-X", "BILOU", [2]),
        ("I-X B-Y", "IOB1", []),
    ],
)
def test_broken_sequences(tags: str, scheme: Scheme, wrong: list[int]) -> None:
    assert broken(tags.split(), scheme) == wrong


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["O O"], "BIO"),
        (["B-X I-X O"], "BIO"),
        (["B-X I-X O", "O I-X"], "BIO"),  # one broken entity
        (["I-X O", "I-X B-X"], "IOB1"),
        (["I-X B-Y"], "BIO"),  # IOB1 has a B only after the same type
        (["B-X E-X"], "IOBES"),
        (["B-X M-X E-X"], "IOBES"),
        (["S-X", "B-X I-X"], "IOBES"),
        (["U-X"], "BILOU"),
    ],
)
def test_schemes_are_told_apart(sentences: list[str], scheme: Scheme) -> None:
    assert scheme_of([tags.split() for tags in sentences]) == scheme


@pytest.mark.parametrize("tag", ["", "B", "B-", "-X", "X-PER", "PER", "o", "BI-X", "b-X"])
def test_what_is_no_tag(tag: str) -> None:
    assert split_tag(tag) is None
    with pytest.raises(ValueError, match=f"'{tag}' is none of O, or B-, I-"):
        to_bio(["O", tag])


def test_types_may_have_dashes() -> None:
    assert split_tag("B-creative-work") == ("B", "creative-work")
