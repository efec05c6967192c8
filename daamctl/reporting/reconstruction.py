"""The report of a pipeline that reconstructs images: verdict, scores, pictures, codes and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.reconstruction import ArmScores, Reconstruction, ScoredArm
from daamctl.figures.gallery import gallery
from daamctl.figures.spec import COLOURS, DASHES, Axis, Figure, Line, Mark, Panel, Rule
from daamctl.reporting.document import (
    DASH,
    INTERVAL,
    UNCORRECTED,
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Facts,
    Number,
    Section,
    Table,
    Text,
    p_value,
    plural,
)
from daamctl.reporting.figures import drawn
from daamctl.reporting.sentences import say

ALPHA = 0.05
FIRST = "psnr"
"""The score that decides the verdict."""


@dataclass(frozen=True)
class ScoreName:
    """How a score is shown; `better`: +1 if more is better, -1 if less is."""

    label: str
    better: int


@dataclass(frozen=True)
class ArmRuns:
    """What the report shows of the trainings of one arm.

    Args:
        curves: reconstruction loss by epoch, one per seed.
        pictures: reconstructions of the examples with the first seed, uint8 (E, S, S, 3).
        densities: `<block>.before` and `<block>.after` -> mean weight of every channel, (C,), of the first seed.
    """

    runs: Sequence[Reconstruction]
    curves: Sequence[Sequence[float]]
    pictures: NDArray[np.uint8]
    densities: Mapping[str, NDArray[np.float32]]


def document(
    found: ArmScores,
    arms: Mapping[str, ArmRuns],
    originals: NDArray[np.uint8],
    names: Mapping[str, ScoreName],
    settings: Mapping[str, Any],
    reconstructed: Sequence[str],
    commands: Sequence[str],
) -> Document:
    """Build the report.

    Args:
        arms: arm -> its trainings.
        originals: the examples, uint8 (E, S, S, 3).
        settings: dotted name -> value of all settings of crops, model and training; the source does not state those in
            `reconstructed`.
    """
    runs = [run for one in arms.values() for run in one.runs]
    facts = Facts(
        [
            ("Crops", f"{found.train_crops:,} train, {found.crops:,} test, of {plural(found.images, 'test image')}"),
            ("Training", f"{found.steps:,} steps, {plural(len(found.seeds), 'seed')}"),
            ("Computed in", " and ".join(sorted({f"{run.precision}, {run.device}" for run in runs}))),
        ]
    )
    pictures = {"original": originals, **{arm: one.pictures for arm, one in arms.items()}}
    shown = gallery(pictures, "reconstructions.png", "Test crops and their reconstructions, one row per block")
    first: list[Block] = [Text(verdict(found)), facts, Text(say("claim"))]
    first += [_scores(found, names), _differences(found, names)]
    examples = f"Test crops at fixed places, and their reconstructions with seed {found.seeds[0]}."
    others = ", ".join(f"`{name}` {value}" for name, value in settings.items() if name not in reconstructed)
    closed = [f"`{name}`: {settings[name]}" for name in reconstructed]
    return Document(
        f"Reconstruction: {found.run}",
        found.run,
        [
            Section("verdict", "Does the block help?", first),
            Section("pictures", "Reconstructions", [Text(examples), shown]),
            Section("training", "Training", [drawn(_curves(arms)), _cost(found, arms)]),
            Section("codes", "Codes", [Text(say("codes")), _codes(found, arms)]),
            Section("blocks", "What the blocks do", _blocks(arms)),
            Section(
                "protocol",
                "Protocol",
                [
                    Text("The post does not state these settings, so they are reconstructed:"),
                    Bullets(closed),
                    Text(f"The others: {others}."),
                    Code("\n".join(commands)),
                ],
            ),
        ],
    )


def verdict(found: ArmScores) -> str:
    """What the comparison says on every arm, in a sentence each."""
    others = [arm for arm in found.arms if arm.arm != found.reference]
    if not others:
        return f"Only the reference, `{found.reference}`, was trained, so there is nothing to compare."
    return " ".join(_sentence(arm, found) for arm in others)


def _sentence(arm: ScoredArm, found: ArmScores) -> str:
    score = arm.scores[FIRST]
    assert score.difference is not None
    assert score.difference_interval is not None
    assert score.test is not None
    gap, interval, seeds = score.difference, score.difference_interval, score.difference_by_seed
    p, ahead = score.test.p_holm, sum((one > 0) == (gap > 0) for one in seeds)
    limits = f"[{Number(interval.low, 'signed')}, {Number(interval.high, 'signed')}; not corrected]"
    how = f"{Number(gap, 'signed')} dB PSNR {limits}, {p_value(p)} after correction"
    how += f", the same sign in {ahead} of {len(seeds)} seeds"
    clear = p is not None and p <= ALPHA and not interval.low <= 0 <= interval.high
    if clear and ahead == len(seeds):
        return f"`{arm.arm}` reconstructs {'better' if gap > 0 else 'worse'} than `{found.reference}`: {how}."
    if clear:
        return (
            f"`{arm.arm}` differs from `{found.reference}` on these images, but seeds disagree, so the block need not "
            f"be the reason: {how}."
        )
    least = "" if score.detectable is None else f" From {score.detectable:.3f} dB on it would have been seen."
    return f"`{arm.arm}` does not differ from `{found.reference}` beyond chance: {how}.{least}"


def _scores(found: ArmScores, names: Mapping[str, ScoreName]) -> Table:
    arrows = {name: "↑" if one.better > 0 else "↓" for name, one in names.items()}
    ends = {name: INTERVAL if name in WITH_INTERVAL else "" for name in names}
    columns = ["Block", *(f"{one.label} {arrows[name]}{ends[name]}" for name, one in names.items())]
    rows: list[list[Cell]] = []
    for arm in found.arms:
        cells: list[Cell] = [arm.arm]
        for name in names:
            score = arm.scores[name]
            low, high = (score.interval.low, score.interval.high) if ends[name] else (None, None)
            cells.append(Number(score.value, "plain" if ends[name] else "fine", low=low, high=high))
        rows.append(cells)
    return Table("scores", "Scores on test crops, mean over seeds", columns, rows)


WITH_INTERVAL = ("psnr", "ssim")
"""Scores whose intervals are shown; those of the others, with five digits, would not fit."""


def _differences(found: ArmScores, names: Mapping[str, ScoreName]) -> Table:
    rows: list[list[Cell]] = []
    for arm in found.arms:
        for name, how in names.items():
            score = arm.scores[name]
            if score.difference is None or score.difference_interval is None or score.test is None:
                continue
            kind = "signed" if name in WITH_INTERVAL else "fine-signed"
            better = sum(one * how.better > 0 for one in score.difference_by_seed)
            low, high = score.difference_interval.low, score.difference_interval.high
            small = Number(score.detectable, "plain" if kind == "signed" else "fine")
            rows.append(
                [
                    arm.arm,
                    how.label,
                    Number(score.difference, kind, low=low, high=high),  # type: ignore[arg-type]
                    Number(score.test.p_holm, "p"),
                    f"{better} of {len(score.difference_by_seed)}",
                    small,
                ]
            )
    columns = ["Block", "Score", f"Minus {found.reference}{UNCORRECTED}", "p (Holm)", "Seeds better", "Detectable"]
    note = say("note_differences")
    return Table("differences", f"Differences from {found.reference}", columns, rows, frozenset({1, 4}), note=note)


def _curves(arms: Mapping[str, ArmRuns]) -> Figure:
    marks: list[Mark] = []
    for (arm, one), colour, dash in zip(arms.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        mean = np.mean([list(curve) for curve in one.curves], axis=0)
        marks.append(Line(list(range(1, len(mean) + 1)), mean.tolist(), arm, colour, dash))
    panel = Panel("", Axis("Epoch", whole=True), Axis("Reconstruction loss", digits=4), marks)
    return Figure("curves", "Reconstruction loss of training by epoch, mean over seeds", {("all",): [panel]})


def _cost(found: ArmScores, arms: Mapping[str, ArmRuns]) -> Table:
    rows: list[list[Cell]] = []
    for arm in found.arms:
        peaks = [peak for peak in arm.peak_bytes if peak is not None]
        seconds = float(np.mean([run.train_s for run in arms[arm.arm].runs]))
        rows.append(
            [
                arm.arm,
                Number(arm.parameters, "count"),
                ", ".join(f"{number:,}" for number in arm.block_parameters),
                Number(float(np.median(arm.crops_per_s)), "count"),
                Number(seconds, "seconds"),
                Number(float(max(peaks)), "mib") if peaks else DASH,
            ]
        )
    columns = ["Block", "Parameters", "In each block", "Crops/s (median)", "A training (s)", "GPU memory (MiB)"]
    return Table("cost", "Size and cost", columns, rows, frozenset({2}))


def _codes(found: ArmScores, arms: Mapping[str, ArmRuns]) -> Table:
    rows: list[list[Cell]] = [
        [
            arm.arm,
            ", ".join(f"{value:.1f}" for value in arm.perplexity),
            ", ".join(str(number) for number in arm.used),
            Number(arms[arm.arm].runs[0].settings["codes"], "count"),
        ]
        for arm in found.arms
    ]
    columns = ["Block", "Perplexity by seed", "Codes in use by seed", "Codes"]
    return Table("codes", "Use of the codebook", columns, rows, frozenset({1, 2}))


def _blocks(arms: Mapping[str, ArmRuns]) -> list[Block]:
    places = list(next(iter(arms.values())).runs[0].change)
    rows: list[list[Cell]] = []
    for arm, one in arms.items():
        cells: list[Cell] = [arm]
        for place in places:
            before, after = (float(np.mean([run.change[place][when] for run in one.runs])) for when in (0, 1))
            cells.append(f"{100 * before:.1f} → {100 * after:.1f}")
        rows.append(cells)
    note = "Relative norm of what the block adds, in percent, over the examples, mean over seeds."
    columns = ["Block", *places]
    blocks: list[Block] = [
        Table("change", "How far a block changes its input, before → after training (%)", columns, rows,
              frozenset(range(1, len(columns))), note=note)
    ]  # fmt: skip
    densities = {arm: one.densities for arm, one in arms.items() if one.densities}
    for arm, values in densities.items():
        blocks.append(drawn(_density_figure(arm, values, places)))
    return blocks


def _density_figure(arm: str, values: Mapping[str, NDArray[np.float32]], places: Sequence[str]) -> Figure:
    """Mean weight of every channel, sorted, before and after training, relative to equal weights."""
    views: dict[tuple[str, ...], list[Panel]] = {}
    for place in places:
        marks: list[Mark] = [Rule(1.0, "equal weights")]
        styles = (("before", COLOURS[0], DASHES[1]), ("after", COLOURS[1], DASHES[0]))
        for when, colour, dash in styles:
            weights = np.sort(values[f"{place}.{when}"])[::-1]
            relative = weights / weights.mean()
            marks.append(Line(list(range(1, len(relative) + 1)), relative.tolist(), f"{when} training", colour, dash))
        views[(place,)] = [Panel(place, Axis("Channel, by weight"), Axis("Mean weight / mean"), marks)]
    alt = f"Mean density of every channel in the blocks of {arm}, before and after training"
    return Figure(f"densities-{arm}", alt, views, ("Block",), small=(3.0, 1.8), columns=3)
