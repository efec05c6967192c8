"""The record of the audit has the layout of its file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from daamctl.artifacts.audit import Audit, MethodAloneTest
from daamctl.store.records import parse_record
from tests.fixtures.records import audited_method, importance_of


def test_the_method_of_a_test_on_layers_trained_alone_comes_first() -> None:
    test = MethodAloneTest(
        method="none", unit="clip", k=1, num_groups=2, spearman_rho=1.0, p_groups=0.5, high=[2], low=[4],
        difference=0.1, p_folds=0.03125, floor_folds=0.03125,
    )  # fmt: skip
    assert list(asdict(test))[:3] == ["method", "unit", "k"]


def test_what_is_read_is_what_was_written() -> None:
    curve = {"area": 0.5, "random_area": 0.65, "advantage": 0.15, "per_fold": [0.1, 0.2], "p": 0.05, "floor": 0.05,
             "verdict": "yes"}  # fmt: skip
    contents = importance_of({})["audit"]
    contents["methods"] = {"mha": audited_method(deletion={"score": curve, "untrained": None})}
    audit = parse_record(contents, Audit, path=Path("summary.json"), fix="")
    assert audit.methods["mha"].deletion is not None
    assert audit.methods["mha"].deletion.untrained is None
    assert asdict(audit) == contents
