"""The verdict in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daamctl.artifacts.reconstruction import ArmScores
from daamctl.artifacts.scores import Compared, Scores, frame_of
from daamctl.reporting.reconstruction import verdict


def minus_identity(gap: float, p: float = 0.001, seeds: tuple[float, ...] = (1.0, 1.0)) -> Compared:
    """`daam` minus the reference, with a sign for every seed, which is turned with `gap`."""
    ahead = sum(one * gap > 0 for one in seeds)
    return Compared(
        first="daam", second="identity", metric="psnr", first_value=20 + gap, second_value=20.0, difference=gap,
        low=gap - 0.1, high=gap + 0.1, unit="image", units=40, p=p, p_holm=p, detectable=0.15, runs=len(seeds),
        ahead=ahead, behind=len(seeds) - ahead,
    )  # fmt: skip


def said(*rows: Compared) -> str:
    frames = {"comparisons": frame_of("comparisons", [row.turned() for row in rows])}
    [sentence] = verdict(
        ArmScores(run="x", reference="identity", arms={}, train_crops=2560, steps=640, scores=Scores("image", frames))
    )
    return sentence


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            minus_identity(0.5),
            "`daam` reconstructs better than `identity`: +0.500 dB PSNR [+0.400, +0.600; not corrected], p = 0.001 "
            "after correction, the same sign in 2 of 2 seeds.",
        ),
        (minus_identity(-0.5), "`daam` reconstructs worse than `identity`: −0.500 dB"),
        (minus_identity(0.05, p=0.4), "`daam` does not differ from `identity` beyond chance: +0.050 dB"),
        (minus_identity(0.5, seeds=(1.2, -0.2)), "but seeds disagree, so the block need not be the reason"),
        (
            minus_identity(0.5, seeds=(1.0,)),
            "on these images, but there is one seed, so the block need not be the reason: +0.500 dB PSNR [+0.400, "
            "+0.600; not corrected], p = 0.001 after correction.",
        ),
    ],
)
def test_a_sentence_per_arm(row: Compared, words: str) -> None:
    assert words in said(row)


def test_what_could_have_been_seen() -> None:
    assert "From 0.150 dB on it would have been seen." in said(minus_identity(0.05, p=0.4))


def test_nothing_could_have_been_seen_on_few_images() -> None:
    row = replace(minus_identity(0.05, p=0.25), units=4, floor=0.125)
    assert said(row).endswith("the same sign in 2 of 2 seeds. 4 images allow no p below 0.125 after correction.")
    assert "would have been seen" not in said(row)
    assert "would have been seen" in said(replace(row, floor=0.05))


def test_only_a_reference() -> None:
    assert said() == "Only the reference, `identity`, was trained, so there is nothing to compare."
