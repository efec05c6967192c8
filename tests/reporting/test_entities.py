"""The section on entities: what was tested, what intervals resample, and what chose the epoch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from daamctl.artifacts.entities import Entities, MethodEntities
from daamctl.artifacts.statistics import Interval
from daamctl.data.spans import EntityScores, SpanErrors, TypeScores
from daamctl.reporting.document import Number, Table, Text
from daamctl.reporting.entities import section
from daamctl.reporting.verdict import labelled
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed


def blocks_of(changes: dict[str, Any], **of: Any) -> list[Any]:
    """The blocks of the section, for one method."""
    scores = TypeScores(4, 4, 2, 0.5, 0.5, 0.5)
    found = EntityScores("lenient", scores, {"PER": scores}, SpanErrors(2, 0, 0, 0, 2, 2))
    one = MethodEntities(Interval(0.5, 0.4, 0.6, 0.95, 14, 14, "jackknife"), 0.5, [0.5], found, best_on_test=0.6)
    data = {**evaluation({"none": 0.5}), **changes, "entities": asdict(Entities(None, {"none": one}, {}, **of))}
    shown = section(labelled(parsed(data)))
    assert shown is not None
    return list(shown.blocks)


def said(changes: dict[str, Any], **of: Any) -> str:
    """The texts of the section."""
    return " ".join(block.text for block in blocks_of(changes, **of) if isinstance(block, Text))


def inflation(changes: dict[str, Any]) -> float | None:
    """Inflation of the method, in the first table."""
    table = next(block for block in blocks_of(changes) if isinstance(block, Table))
    cell = table.rows[0][table.columns.index("Inflation (points)")]
    assert isinstance(cell, Number)
    return cell.value


def test_documents_are_named_where_they_are_the_units() -> None:
    text = said({}, unit="document", sentences=80)
    assert "Entities of 80 sentences in 14 documents of the test part." in text
    assert "Intervals are over documents" in text
    text = said({})
    assert "Entities of 14 sentences of the test part." in text
    assert "Intervals are over sentences" in text
    assert "too high" not in text


def test_an_epoch_chosen_on_the_reported_part_is_said() -> None:
    data = evaluation({"none": 0.5})
    data["provenance"]["config"]["train"] = {"test_part": "dev"}
    text = said({"selection": "best-on-test", "provenance": data["provenance"]})
    assert "of the dev part" in text
    assert "The epochs were chosen on the dev part itself, as published, so every F1 is too high." in text


def test_inflation_is_known_only_where_the_epoch_was_chosen_elsewhere() -> None:
    assert inflation({}) is not None
    assert inflation({"selection": "best-on-test"}) is None
