"""The section on layers: means by place beside the words on geometry, and what the audit lacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.importance import Importance
from daamctl.artifacts.layer_sets import LayerRow
from daamctl.data.task import TASKS
from daamctl.reporting.document import Document, Section, Table, Text
from daamctl.reporting.layers import UNRANKED, importance
from daamctl.reporting.render import to_html, to_markdown
from daamctl.store.records import parse_record
from tests.fixtures.records import importance_of, maps_of

NO_ABLATION = "No layers trained alone; train them: daamctl ablate toy, then daamctl importance toy"


def entry(num_heads: int, means: list[float] | None, counts: list[int], caution: str | None = None) -> dict[str, Any]:
    places = {"num_heads": num_heads, "means": means, "counts": counts, "share": 0.75, "adjusted_share": 0.7, "p": 0.01}
    before = {**places, "means": [mean / 2 for mean in means or []]}
    return maps_of(
        list(range(1, 8)), num_heads=num_heads, caution=caution, head_positions=places if means else None,
        head_positions_untrained=before if means else None,
    )  # fmt: skip


def section(methods: dict[str, Any], *, scores: dict[str, Any] | None = None, **audit: Any) -> Section:
    found = importance_of(methods, scores=scores or {})
    found["audit"] |= audit
    summary = parse_record(found, Importance, path=Path("summary.json"), fix="")
    figures = [(name, kind) for name in methods for kind in ("importance", "contribution")]
    rows = [LayerRow(f"layer-{n}", (n,), name, kind, 0.5) for name, kind in figures for n in methods[name]["layers"]]
    summary = replace(summary, rows=rows)
    pngs = {"h.png": b"", "l.png": b""}
    return importance(
        summary, {}, pngs, labels={"daam-v1": "DAAM 1"}, task=TASKS["speech"], command="daamctl importance toy"
    )


def tables(part: Section) -> dict[str, Table]:
    return {block.key: block for block in part.blocks if isinstance(block, Table)}


def test_means_by_place_stand_beside_the_words_on_geometry() -> None:
    part = section(
        {
            "daam-v1": entry(3, [0.5, 0.25, 0.125], [3, 3, 1], caution="The trained map is mostly geometry: so it is."),
            "gqdaam": entry(2, [0.1, 0.2, 0.3, 0.4], [2, 2, 2, 1]),
            "daam-v2": entry(1, None, []),
        }
    )
    table = tables(part)["places"]
    assert table.columns[4:] == ["Position 1", "Position 2", "Position 3", "Position 4"]
    assert [list(map(str, row)) for row in table.rows] == [
        ["DAAM 1", "yes", "3", "3, 3, 1", "0.500", "0.250", "0.125", "–"],
        ["DAAM 1, untrained", "–", "3", "3, 3, 1", "0.250", "0.125", "0.062", "–"],
        ["gqdaam", "no", "2", "2, 2, 2, 1", "0.100", "0.200", "0.300", "0.400"],
        ["gqdaam, untrained", "–", "2", "2, 2, 2, 1", "0.050", "0.100", "0.150", "0.200"],
    ]
    words = "1 of 3 maps mostly reflect geometry, not what was learned: DAAM 1."
    cautions = [index for index, block in enumerate(part.blocks) if isinstance(block, Text) and block.text == words]
    assert part.blocks.index(table) == cautions[0] + 2  # the reasons of each stand folded between them


def test_without_heads_there_are_no_places() -> None:
    assert "places" not in tables(section({"daam-v2": entry(1, None, [])}))


@pytest.mark.parametrize("told", [None, NO_ABLATION])
def test_a_missing_ablation_is_said_in_both_forms(told: str | None) -> None:
    document = Document("t", "toy", [section({}, no_ablation=told)])
    html, markdown = to_html(document, version="1", interactive=False), to_markdown(document, version="1")
    assert (f"<strong>Note:</strong> {NO_ABLATION}" in html) == bool(told)
    assert (f"> **Note:** {NO_ABLATION}" in markdown) == bool(told)


def test_a_score_that_ties_all_layers_has_no_highest_layers() -> None:
    tied = {**entry(2, None, []), "ranking": [], "ranking_untrained": [], "correlation_with_untrained": None}
    stable = {"tau_mean": None, "tau_min": None, "pairs": 0}
    score = {
        "label": "DAAM 1", "kind": "importance", "learned": True, "folds": [[1, 1], [2, 1]],
        "layers": list(range(1, 8)),
        "ranking": [], "ranking_untrained": [], "stability": stable, "stability_untrained": stable,
        "tau_with_untrained": None, "band": "h.png", "replacement": None,
    }  # fmt: skip
    part = section({"daam-v1": tied}, scores={"daam-v1": score})
    assert [str(cell) for cell in tables(part)["geometry"].rows[0]][:3] == ["DAAM 1", *[UNRANKED] * 2]
    assert str(tables(part)["stability"].rows[0][2]) == UNRANKED
    markdown = to_markdown(Document("t", "toy", [part]), version="1")
    assert "DAAM 1: every layer has the same score, so the layers are not ranked." in markdown
    assert "highest on" not in markdown.casefold()
    assert f"Highest layers: {UNRANKED}" in markdown
