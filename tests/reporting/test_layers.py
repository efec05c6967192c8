"""The section on layers: means by place beside the words on geometry, and what the audit lacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.importance import Importance
from daamctl.artifacts.layer_sets import ALL, LayerRow
from daamctl.data.task import TASKS
from daamctl.reporting.document import Document, Folded, Picture, Section, Table, Text
from daamctl.reporting.layers import UNRANKED, ablation, importance
from daamctl.reporting.render import to_html, to_markdown
from daamctl.store.records import parse_record
from tests.fixtures.records import ablation_of, importance_of, maps_of

NO_ABLATION = "No layers trained alone; train them: daamctl ablate toy, then daamctl importance toy"


def entry(num_heads: int, means: list[float] | None, counts: list[int], caution: str | None = None) -> dict[str, Any]:
    places = {"num_heads": num_heads, "means": means, "counts": counts, "share": 0.75, "adjusted_share": 0.7, "p": 0.01}
    before = {**places, "means": [mean / 2 for mean in means or []]}
    return maps_of(
        list(range(1, 8)), num_heads=num_heads, caution=caution, head_positions=places if means else None,
        head_positions_untrained=before if means else None,
    )  # fmt: skip


def section(
    methods: dict[str, Any],
    *,
    scores: dict[str, Any] | None = None,
    audited: dict[str, list[str]] | None = None,
    **audit: Any,
) -> Section:
    found = importance_of(methods, scores=scores or {}, note="" if methods else "No method has a density.")
    found["audit"] |= {**audit, "methods": audited or {}}
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


def folded(part: Section, title: str) -> Folded:
    return next(block for block in part.blocks if isinstance(block, Folded) and block.title.startswith(title))


@pytest.mark.parametrize(("kind", "start"), [("accuracy", "Accuracy per utterance in"), ("entity_f1", "Entity F1 in")])
def test_the_probe_of_every_layer_has_the_figure_that_it_measured(kind: str, start: str) -> None:
    rows = [
        LayerRow("layer-1", (1,), "ridge-last", kind, 0.5, low=0.4, high=0.6, difference=-0.1, p=0.03),
        LayerRow("layer-2", (2,), "ridge-last", kind, 0.6, low=0.5, high=0.7, difference=0.0),
    ]
    found = importance_of({}, probed={"unit": "utterance", "resampled": "speaker"})
    summary = replace(parse_record(found, Importance, path=Path("summary.json"), fix=""), rows=rows)
    part = importance(summary, {}, {}, labels={}, task=TASKS["speech"], command="")
    (table,) = folded(part, start).blocks
    assert isinstance(table, Table)
    assert [list(map(str, row)) for row in table.rows] == [
        ["1", "50.0 [40.0, 60.0]", "−10.0", "0.030"], ["2", "60.0 [50.0, 70.0]", "0.0", "–"],
    ]  # fmt: skip
    assert table.columns[1] == start.partition(" per ")[0].partition(" in")[0]
    assert "speaker" in table.note
    assert "outside" not in table.note
    apart = replace(summary, rows=[rows[0], rows[1]._replace(high=0.55)])
    (table,) = folded(importance(apart, {}, {}, labels={}, task=TASKS["speech"], command=""), start).blocks
    assert isinstance(table, Table)
    assert "Some figures lie outside their intervals: figures are means over folds" in table.note


def scored(**changes: Any) -> dict[str, Any]:
    stable = {"tau_mean": 0.5, "tau_min": 0.25, "pairs": 1}
    return {
        "label": "Sum", "kind": "weight", "learned": True, "folds": [[1, 1], [2, 1]], "layers": [1, 2, 3],
        "ranking": [3, 2, 1], "ranking_untrained": [1, 2, 3], "stability": stable, "stability_untrained": stable,
        "tau_with_untrained": -1.0, "band": "h.png", "replacement": None, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(("learned", "kind"), [(True, "layer weight"), (False, "layer weight, not learned")])
def test_the_audit_says_what_a_score_is(learned: bool, kind: str) -> None:
    scores = {"weighted-sum": scored(learned=learned)}
    part = section({}, scores=scores, audited={"weighted-sum": ["No probe."]}, sentence="Of 1 score, 0 track it.")
    assert [str(cell) for cell in tables(part)["audit"].rows[0]][:2] == ["Sum", kind]
    texts = [block for block in part.blocks if isinstance(block, Text)]
    assert Text("Of 1 score, 0 track it.") in texts
    assert Text("No probe.", caution=True) in texts
    assert not [text for text in texts if not text.text or "has the same score" in text.text]
    assert Text("") not in section({}, scores=scores).blocks  # without a sentence
    assert "have no density" not in " ".join(text.text for text in texts)


def test_pictures_are_described() -> None:
    maps = {"daam-v1": maps_of([2, 1, 3], num_features=4)}
    found = importance_of(maps, scores={"daam-v1": scored(label="DAAM 1", kind="importance", replacement="r.png")})
    summary = parse_record(found, Importance, path=Path("summary.json"), fix="")
    rows = [LayerRow(f"layer-{n}", (n,), "daam-v1", kind, value) for kind in ("importance", "contribution")
            for n, value in ((1, 0.25), (2, 0.5), (3, 0.25))]  # fmt: skip
    pngs = dict.fromkeys(("h.png", "l.png", "r.png"), b"")
    part = importance(replace(summary, rows=rows), {}, pngs, labels={}, task=TASKS["speech"], command="")
    (method,) = folded(part, "Pictures of every method (1)").blocks
    assert isinstance(method, Folded)
    alts = {block.name: block.alt for block in method.blocks if isinstance(block, Picture)}
    assert alts["l.png"].endswith("from 25.00 % (layer 1) to 50.00 % (layer 2).")
    assert "Importance factor per layer of daam-v1: mean and range over 2 runs" in alts["h.png"]
    assert alts["r.png"].startswith("Accuracy of the trained daam-v1 while layers are replaced by their mean")
    # without a score, the map has the picture
    bare = parse_record(importance_of(maps), Importance, path=Path("summary.json"), fix="")
    part = importance(replace(bare, rows=rows), {}, pngs, labels={}, task=TASKS["speech"], command="")
    (method,) = folded(part, "Pictures of every method (1)").blocks
    assert isinstance(method, Folded)
    alts = {block.name: block.alt for block in method.blocks if isinstance(block, Picture)}
    assert alts["h.png"].startswith("Importance Factor of daam-v1, 3 layers by 4 features, trained beside untrained.")
    assert alts["h.png"].endswith("Their correlation is 0.25.")


@pytest.mark.parametrize(
    ("values", "highest"), [((0.6, 0.4), "2, 1"), ((0.5, 0.25, 0.25), UNRANKED), ((0.5, 0.3, 0.2), "2, 1, 3")]
)
def test_two_layers_are_ranked_by_two_values(values: tuple[float, ...], highest: str) -> None:
    ranking = [2, 1, 3][: len(values)]
    own = scored(label="sum", kind="weight", folds=[[1, 1]], layers=sorted(ranking), ranking=ranking)
    summary = parse_record(importance_of({}, scores={"sum": own}), Importance, path=Path("summary.json"), fix="")
    rows = [LayerRow(f"layer-{n}", (n,), "sum", "weight", value) for n, value in zip(ranking, values, strict=True)]
    shown = replace(summary, rows=rows)
    part = importance(shown, {}, {own["band"]: b""}, labels={}, task=TASKS["speech"], command="")
    assert str(tables(part)["stability"].rows[0][2]) == highest
    markdown = to_markdown(Document("t", "toy", [part]), version="1")
    assert f"mean and range over 1 run, trained beside untrained. Highest layers: {highest}." in markdown


def test_few_layers_stand_below_the_baseline() -> None:
    sets = {ALL: ((1, 2, 3), 0.6), "high": ((2, 3), 0.55), "low": ((1,), 0.4)}
    published = Table("published", "Published", ["a"], [["b"]])

    def few(result: Any, tables: list[Table]) -> Section | None:
        return ablation(result, None, tables, labels={}, task=TASKS["speech"], command="")

    part = few(ablation_of(sets, cautions=["Too few folds."], notes=["Chosen by hand."]), [published])
    assert part is not None
    rows = [list(map(str, row)) for row in tables(part)["few-layers"].rows]
    assert [row[:2] + row[4:5] for row in rows] == [
        ["baseline", "1, 2, 3", "–"], ["high", "2, 3", "−5.0"], ["low", "1", "−20.0"],
    ]  # fmt: skip
    assert Text("Too few folds.", caution=True) in part.blocks
    assert Text("Chosen by hand.") in part.blocks
    assert part.blocks[-1] is published
    assert few(ablation_of({}), []) is None
    empty = few(ablation_of({}, notes=["No layers."]), [published])
    assert empty is not None
    assert empty.blocks == [Text("No layers."), published]
