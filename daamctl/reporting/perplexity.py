"""The report of `daamctl mlm`: perplexities beside the published ones."""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.masked import MaskedRun, MaskedWay
from daamctl.reporting.document import DASH, Block, Bullets, Cell, Document, Facts, Number, Section, Table, Text
from daamctl.reporting.sentences import say


def document(found: MaskedRun, published: Sequence[tuple[str, str, str]]) -> Document:
    """Build the report.

    Args:
        published: printed numbers: what, value, and how it came about.
    """
    encoder, masking = found.encoder, found.settings["masking"]
    facts = Facts(
        [
            ("Encoder", f"{encoder['name']}, {encoder['layers']} layers x {encoder['features']}"),
            (
                "Test part",
                f"{found.articles:,} articles, {found.blocks:,} blocks of up to {encoder['max_tokens']} tokens",
            ),
            ("Masked", f"{100 * masking['rate']:g} % with seed {masking['seed']}: {found.tokens:,} tokens"),
        ]
    )
    blocks: list[Block] = [facts, Text(sentence(found)), table(found), Bullets([found.split, *found.notes])]
    columns = ["Quantity", "Published", "What it is"]
    rows: list[list[Cell]] = [list(row) for row in published]
    beside = Table("published", "Printed in the DWAtt paper", columns, rows, frozenset({1, 2}))
    return Document(
        f"Masked language modelling: {found.name}",
        f"mlm-{found.name}",
        [
            Section("perplexity", "Perplexity", blocks),
            Section("published", "Published", [Text(say("not_comparable")), beside]),
        ],
    )


def sentence(found: MaskedRun) -> str:
    """Which ways are better or worse than the last layer, by their intervals."""
    others = [way for way in found.ways if way.ratio is not None]
    better = [_label(way) for way in others if way.ratio_high is not None and way.ratio_high < 1]
    worse = [_label(way) for way in others if way.ratio_low is not None and way.ratio_low > 1]
    if not others:
        return f"The last layer has perplexity {found.ways[0].perplexity:.3f}."
    return (
        f"Lower perplexity than the last layer with the same encoder: {', '.join(better) or 'none'}; "
        f"higher: {', '.join(worse) or 'none'}."
    )


def table(found: MaskedRun) -> Table:
    """One row per way."""
    columns = ["Layers", "Encoder", "Perplexity", "Ratio to last layer", "Added", "Trained", "Epoch", "By seed"]
    rows: list[list[Cell]] = [
        [
            way.fusion,
            "fine-tuned" if way.finetuned else "frozen",
            Number(way.perplexity, "plain", low=way.low, high=way.high),
            DASH if way.ratio is None else Number(way.ratio, "plain", low=way.ratio_low, high=way.ratio_high),
            Number(way.added, "count"),
            Number(way.trained, "count"),
            ", ".join(map(str, way.epochs)),
            ", ".join(f"{value:.3f}" for value in way.by_seed),
        ]
        for way in found.ways
    ]
    return Table("perplexity", "Test perplexity", columns, rows, frozenset({1, 6, 7}), note=say("note_perplexity"))


def _label(way: MaskedWay) -> str:
    return f"{way.fusion} ({'fine-tuned' if way.finetuned else 'frozen'})"
