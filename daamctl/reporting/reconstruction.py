"""The report of a pipeline that reconstructs images: verdict, scores, pictures, codes and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.reconstruction import METRICS, ArmScores, Reconstruction
from daamctl.artifacts.scores import ALPHA, Compared
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
from daamctl.reporting.figure_gallery import gallery
from daamctl.reporting.figure_spec import COLOURS, DASHES, Axis, Figure, Line, Mark, Panel, Rule
from daamctl.reporting.figures import drawn
from daamctl.reporting.sentences import say

FIRST = "psnr"
"""The score that decides the verdict."""
WITH_INTERVAL = ("psnr", "ssim")
"""Scores whose intervals are shown; those of the others, with five digits, would not fit."""


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
    of_reference = found.scores.figure(found.reference, FIRST)
    images, seeds = of_reference.units or 0, of_reference.runs
    crops = found.scores.frames["scores"]["items"][0]
    facts = Facts(
        [
            ("Crops", f"{found.train_crops:,} train, {crops:,} test, of {plural(images, 'test image')}"),
            ("Training", f"{found.steps:,} steps, {plural(seeds, 'seed')}"),
            ("Computed in", " and ".join(sorted({f"{run.precision}, {run.device}" for run in runs}))),
        ]
    )
    pictures = {"original": originals, **{arm: one.pictures for arm, one in arms.items()}}
    shown = gallery(pictures, "reconstructions.png", "Test crops and their reconstructions, one row per block")
    first: list[Block] = [Text(" ".join(verdict(found))), facts, Text(say("claim"))]
    first += [_scores(found), _differences(found)]
    examples = f"Test crops at fixed places, and their reconstructions with seed {runs[0].seed}."
    others = ", ".join(f"`{name}` {value}" for name, value in settings.items() if name not in reconstructed)
    closed = [f"`{name}`: {settings[name]}" for name in reconstructed]
    return Document(
        f"Reconstruction: {found.run}",
        found.run,
        [
            Section("verdict", "Does the block help?", first),
            Section("pictures", "Reconstructions", [Text(examples), shown]),
            Section("training", "Training", [drawn(_curves(arms)), _cost(arms)]),
            Section("codes", "Codes", [Text(say("codes")), _codes(arms)]),
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


def verdict(found: ArmScores) -> list[str]:
    """What the comparison says on every arm, in a sentence each."""
    rows = gaps(found, FIRST)
    if not rows:
        return [f"Only the reference, `{found.reference}`, was trained, so there is nothing to compare."]
    return [_sentence(row, len(rows)) for row in rows]


def gaps(found: ArmScores, metric: str) -> list[Compared]:
    """Every other arm minus the reference."""
    return [row.turned() for row in found.scores.comparisons(metric)]


def judged(row: Compared) -> str:
    """What the comparison in `FIRST` says: better, worse, seeds disagree, one seed, or no difference shown."""
    if not row.is_significant:
        return "no difference shown"
    if row.runs == 1:
        return "one seed"
    if row.runs != (row.ahead if row.difference > 0 else row.behind):
        return "seeds disagree"
    return "better" if row.difference > 0 else "worse"


def _sentence(row: Compared, comparisons: int) -> str:
    arm, reference, says = f"`{row.first}`", f"`{row.second}`", judged(row)
    # of five images or fewer there is none
    limits = "" if row.low is None else f" [{Number(row.low, 'signed')}, {Number(row.high, 'signed')}; not corrected]"
    how = f"{Number(row.difference, 'signed')} dB PSNR{limits}, {p_value(row.p_holm)} after correction"
    if row.runs != 1:
        how += f", the same sign in {row.ahead if row.difference > 0 else row.behind} of {row.runs} seeds"
    if says in ("better", "worse"):
        return f"{arm} reconstructs {says} than {reference}: {how}."
    if says == "no difference shown":
        least = "" if row.detectable is None else f" From {row.detectable:.3f} dB on it would have been seen."
        # with few images no difference is significant, however large
        if row.floor is not None and (floor := min(1.0, row.floor * comparisons)) > ALPHA:
            least = f" {plural(row.units or 0, 'image')} allow no p below {floor:.3g} after correction."
        return f"{arm} does not differ from {reference} beyond chance: {how}.{least}"
    why = "there is one seed" if says == "one seed" else "seeds disagree"
    return f"{arm} differs from {reference} on these images, but {why}, so the block need not be the reason: {how}."


def _scores(found: ArmScores) -> Table:
    columns, rows = ["Block"], []
    for name, (label, better) in METRICS.items():
        columns.append(f"{label} {'↑' if better > 0 else '↓'}{INTERVAL if name in WITH_INTERVAL else ''}")
    for arm in found.arms:
        cells: list[Cell] = [arm]
        for name in METRICS:
            one = found.scores.figure(arm, name)
            low, high = (one.low, one.high) if name in WITH_INTERVAL else (None, None)
            cells.append(Number(one.pooled, "plain" if name in WITH_INTERVAL else "fine", low=low, high=high))
        rows.append(cells)
    return Table("scores", "Scores on test crops, mean over seeds", columns, rows)


def _differences(found: ArmScores) -> Table:
    rows: dict[tuple[str, str], list[Cell]] = {}
    for name, (label, better) in METRICS.items():
        kind, small = ("signed", "plain") if name in WITH_INTERVAL else ("fine-signed", "fine")
        for row in gaps(found, name):
            rows[row.first, name] = [
                row.first,
                label,
                Number(row.difference, kind, low=row.low, high=row.high),  # type: ignore[arg-type]
                Number(row.p_holm, "p"),
                f"{row.ahead if better > 0 else row.behind} of {row.runs}",
                Number(row.detectable_here, small),  # type: ignore[arg-type]
            ]
    ordered = [rows[arm, name] for arm in found.arms if arm != found.reference for name in METRICS]
    columns = ["Block", "Score", f"Minus {found.reference}{UNCORRECTED}", "p (Holm)", "Seeds better", "Detectable"]
    note = say("note_differences")
    return Table("differences", f"Differences from {found.reference}", columns, ordered, frozenset({1, 4}), note=note)


def _curves(arms: Mapping[str, ArmRuns]) -> Figure:
    marks: list[Mark] = []
    for (arm, one), colour, dash in zip(arms.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        mean = np.mean([list(curve) for curve in one.curves], axis=0)
        marks.append(Line(list(range(1, len(mean) + 1)), mean.tolist(), arm, colour, dash))
    panel = Panel("", Axis("Epoch", whole=True), Axis("Reconstruction loss", digits=4), marks)
    return Figure("curves", "Reconstruction loss of training by epoch, mean over seeds", {("all",): [panel]})


def _cost(arms: Mapping[str, ArmRuns]) -> Table:
    rows: list[list[Cell]] = []
    for arm, one in arms.items():
        peaks = [run.peak_bytes for run in one.runs if run.peak_bytes is not None]
        rows.append(
            [
                arm,
                Number(one.runs[0].parameters, "count"),
                ", ".join(f"{number:,}" for number in one.runs[0].block_parameters),
                Number(float(np.median([run.crops_per_s for run in one.runs])), "count"),
                Number(float(np.mean([run.train_s for run in one.runs])), "seconds"),
                Number(float(max(peaks)), "mib") if peaks else DASH,
            ]
        )
    columns = ["Block", "Parameters", "In each block", "Crops/s (median)", "A training (s)", "GPU memory (MiB)"]
    return Table("cost", "Size and cost", columns, rows, frozenset({2}))


def _codes(arms: Mapping[str, ArmRuns]) -> Table:
    rows: list[list[Cell]] = [
        [
            arm,
            ", ".join(f"{run.perplexity:.1f}" for run in one.runs),
            ", ".join(str(run.used) for run in one.runs),
            Number(one.runs[0].settings["codes"], "count"),
        ]
        for arm, one in arms.items()
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
