"""The section on entities: what was tested, what intervals resample, and what chose the epoch."""

from __future__ import annotations

from typing import Any

from daamctl.reporting.document import Number, Table, Text
from daamctl.reporting.entities import section, sentence
from daamctl.reporting.verdict import labelled
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed


def blocks_of(changes: dict[str, Any], unit: str = "sentence", sentences: int = 14) -> list[Any]:
    """The blocks of the section, for one method."""
    counts = {"gold": 4, "predicted": 4, "correct": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    kinds = {"exact": 2, "wrong_type": 0, "wrong_boundaries": 0, "wrong_both": 0, "missed": 2, "spurious": 2}
    entities = [{"method": "none", **counts, **kinds}, {"method": "none", "type": "PER", **counts}]
    shared = {"method": "none", "unit": unit}
    f1 = {"mean": 0.5, "runs": 1, "pooled": 0.5, "low": 0.4, "high": 0.6, "resampled": unit, "units": 14}
    figures = [
        {**shared, "metric": "entity_f1", **f1},
        {**shared, "metric": "entity_f1_strict", "mean": 0.5, "runs": 1},
        {**shared, "metric": "entity_f1_best_on_test", "mean": 0.6, "runs": 1},
    ]
    scores = [{**shared, "metric": "entity_f1", "seed": 1, "value": 0.5}]
    data = {**evaluation({"none": 0.5}), "modality": "tokens", "source": unit, "num_folds": 1, **changes}
    data["tables"] = {"figures": figures, "scores": scores, "entities": entities}
    data["counts"] = {**data["counts"], "wholes": sentences}
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
    assert "Entities of 14 sentences of all 5 folds." in said({"num_folds": 5})


def test_methods_that_find_the_same_share_are_all_best() -> None:
    data = {**evaluation({"none": 0.5, "mha": 0.5, "gqa": 0.4}), "modality": "tokens"}
    f1 = {"unit": "sentence", "metric": "entity_f1", "runs": 1, "low": 0.3, "high": 0.6}
    means = {"none": 0.5, "mha": 0.5, "gqa": 0.4}
    data["tables"] = {"figures": [{"method": name, "mean": mean, **f1} for name, mean in means.items()]}
    assert sentence(parsed(data)) == "none and mha find entities best: F1 50.0 % [30.0, 60.0]."
    data["tables"]["figures"][2]["mean"] = 0.5
    assert sentence(parsed(data)) == "All methods find entities equally well: F1 50.0 % [30.0, 60.0]."


def test_an_epoch_chosen_on_the_reported_part_is_said() -> None:
    data = evaluation({"none": 0.5})
    data["provenance"]["config"]["train"] = {"test_part": "dev"}
    text = said({"selection": "best-on-test", "provenance": data["provenance"]})
    assert "of the dev part" in text
    assert "The epochs were chosen on the dev part itself, as published, so every F1 is too high." in text
    data["methods"]["none"]["rule"] = {"selection": "last", "to_the_end": True, "searched": False, "refit": False}
    tuned = {"selection": "best-on-test", "methods": data["methods"]}  # which keeps its last weights
    assert "too high" not in said(tuned)
    assert inflation(tuned) is not None


def test_inflation_is_known_only_where_the_epoch_was_chosen_elsewhere() -> None:
    assert inflation({}) is not None
    assert inflation({"selection": "best-on-test"}) is None
