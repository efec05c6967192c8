"""The verdict in words."""

from __future__ import annotations

import pytest

from daamctl.artifacts.reconstruction import ArmScores, ScoredArm, ScoreOf
from daamctl.artifacts.statistics import Interval, SignFlipTest
from daamctl.reporting.reconstruction import verdict


def arm(name: str, gap: float | None, width: float = 0.1, p: float = 0.001, seeds: tuple[float, ...] = ()) -> ScoredArm:
    def interval(value: float) -> Interval:
        return Interval(value, value - width, value + width, 0.95, 40, 10_000, None)

    one = ScoreOf(value=20.0, by_seed=[20.0], interval=interval(20.0))
    if gap is not None:
        test = SignFlipTest(unit="image", mean=gap, n=40, p=p, p_holm=p, floor=0.0, exact=False, flips=100_000)
        one = ScoreOf(
            value=20.0 + gap,
            by_seed=[20.0 + gap],
            interval=interval(20.0 + gap),
            difference=gap,
            difference_by_seed=list(seeds or (gap, gap)),
            difference_interval=interval(gap),
            test=test,
            detectable=0.15,
        )
    return ScoredArm(
        arm=name, scores={"psnr": one}, perplexity=[1.0], used=[1], block_parameters=[], parameters=1,
        crops_per_s=[1.0], peak_bytes=[None], keys=["k"],
    )  # fmt: skip


def said(*arms: ScoredArm) -> str:
    found = ArmScores(
        run="x", reference="identity", seeds=[1, 2], images=40, crops=640, train_crops=2560, steps=640, arms=list(arms)
    )
    return verdict(found)


REFERENCE = arm("identity", None)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            arm("daam", 0.5),
            "`daam` reconstructs better than `identity`: +0.500 dB PSNR [+0.400, +0.600; not corrected], p = 0.001 "
            "after correction, the same sign in",
        ),
        (arm("daam", -0.5), "`daam` reconstructs worse than `identity`: −0.500 dB"),
        (arm("daam", 0.05, p=0.4), "`daam` does not differ from `identity` beyond chance: +0.050 dB"),
        (arm("daam", 0.5, seeds=(1.2, -0.2)), "but seeds disagree, so the block need not be the reason"),
    ],
)
def test_a_sentence_per_arm(other: ScoredArm, words: str) -> None:
    assert words in said(REFERENCE, other)


def test_what_could_have_been_seen() -> None:
    assert "From 0.150 dB on it would have been seen." in said(REFERENCE, arm("daam", 0.05, p=0.4))


def test_only_a_reference() -> None:
    assert said(REFERENCE) == "Only the reference, `identity`, was trained, so there is nothing to compare."
