"""The section on the shortest encoder: what it says with and without a result, a test and a cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daamctl.artifacts.layer_sets import LayerRow
from daamctl.reporting.document import Folded, Table, Text, if_current
from daamctl.reporting.truncation import figure, notes, section, sentence
from tests.fixtures.truncations import DESIGN, ROWS
from tests.fixtures.truncations import truncation as found


def changed(**values: float | None) -> list[LayerRow]:
    return [one._replace(**values) for one in ROWS]


def test_the_answer() -> None:
    assert sentence(found()) == (
        "Layers 1–2 are enough: −0.4 points [−1.4, +0.6] against all 4 layers (ridge-concat, margin 2.0 points); "
        "50 % of the encoder's time and 50 % of its parameters."
    )
    assert sentence(found(rows=changed(time=None, parameters=None))).endswith("(ridge-concat, margin 2.0 points).")
    assert sentence(found(rows=changed(p=0.01))).startswith("Layer 1 is enough: −10.0 points")
    assert sentence(found(rows=changed(p=0.2))) == (
        "No shorter encoder is shown to be enough: layers 1–3 differ by 0.0 points [−1.0, +1.0] from all 4 layers "
        "(ridge-concat, margin 2.0 points)."
    )


def test_what_learned_nothing_answers_nothing() -> None:
    doubt = "; but ridge-concat learned nothing on all layers, so this is no evidence."
    one = found(nothing="all layers")
    assert sentence(one).endswith(f"50 % of the encoder's time and 50 % of its parameters{doubt}")
    assert sentence(replace(one, rows=changed(p=0.2))).endswith(f"margin 2.0 points){doubt}")
    part = section(one)
    assert part.blocks[0] == Text(sentence(one), caution=True)


def test_without_units_nothing_is_tested() -> None:
    untested = changed(p=None, difference_low=None, difference_high=None)
    one = found(rows=untested, design=replace(DESIGN, unit=None, reason="there is one fold"))
    assert sentence(one) == "Whether fewer layers are enough cannot be tested: there is one fold."
    (panel,) = figure(one).views[()]
    assert panel.marks[0].band is None


def test_the_section() -> None:
    part = section(found())
    tables = {block.key: block for block in part.blocks if isinstance(block, Table)}
    rows = [[str(cell) for cell in row] for row in tables["truncation"].rows]
    assert rows[1] == ["1–2", "89.6", "−0.4 [−1.4, +0.6]", "50.0", "50.0", "0.010", "yes"]
    assert rows[-1] == ["1–4", "90.0", "–", "100.0", "100.0", "–", "–"]
    whole, longest, middle, *rest = ROWS
    early = section(found(rows=[whole, longest, middle._replace(p=0.2), *rest]))
    (table, *_) = [block for block in early.blocks if isinstance(block, Table)]
    assert [list(map(str, cells[-2:])) for cells in table.rows] == [
        ["–", "not tested"], ["0.200", "no"], ["0.010", "yes"], ["–", "–"],
    ]  # fmt: skip
    assert "to the first that fails, so p needs no correction. Intervals are not corrected." in table.note
    (folded,) = [block for block in part.blocks if isinstance(block, Folded)]
    (single,) = [block for block in folded.blocks if isinstance(block, Table)]
    assert [str(cells[0]) for cells in single.rows] == ["1", "2"]
    texts = [block.text for block in part.blocks if isinstance(block, Text)]
    assert {sentence(found()), "A note.", "Time was measured on cpu (Fast)."} <= set(texts)
    means = "Accuracies are means over folds; differences and intervals are over all items, so signs may disagree."
    assert notes(found()) == ["A note.", means]
    assert means in texts
    assert notes(found(design=replace(DESIGN, n_folds=1))) == ["A note."]


def test_no_result_and_one_of_other_embeddings() -> None:
    assert if_current(section, None, key="k", command="") is None
    stale = if_current(section, found(), key="other", command="daamctl truncate toy")
    assert stale is not None
    (text,) = stale.blocks
    assert isinstance(text, Text)
    assert text.caution
    assert text.text.endswith("Run again: daamctl truncate toy")


@pytest.mark.parametrize(
    ("change", "name", "cost"),
    [({}, "Encoder's time", 25.0), ({"time": None}, "Encoder's parameters", 25.0),
     ({"time": None, "parameters": None}, "Layers", 25.0)],
)  # fmt: skip
def test_the_figure_takes_the_best_cost_that_is_known(change: dict[str, None], name: str, cost: float) -> None:
    (panel,) = figure(found(rows=changed(**change))).views[()]
    assert panel.x.label == name
    line = panel.marks[0]
    assert line.x[0] == cost
    assert line.band[0][1] == pytest.approx(100 * (0.9 - 0.014))
    assert panel.marks[2].x == [50.0]
