"""The report on a family of few-shot pipelines without results; `tests/smoke/test_tokens.py` has one with results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daamctl.errors import ArtifactError, ConfigError
from daamctl.reporting import shots as reporting
from daamctl.stages import check, shots

NAMES = ("few-8-shots", "few-16-shots")


@pytest.fixture
def family(project: Path) -> Path:
    for path in (project / "pipelines").glob("*.yaml"):
        path.unlink()
    for name, number in zip(NAMES, (8, 16), strict=True):
        text = f"download: {{corpus: demo-tokens}}\nextract: {{encoder: llama-micro}}\ntrain: {{shots: {number}}}\n"
        (project / f"pipelines/{name}.yaml").write_text(text, encoding="utf-8")
    return project


def test_what_is_left_out_on_this_machine_is_named(family: Path) -> None:
    for name in NAMES:
        folder = family / "data/evaluate" / name
        folder.mkdir(parents=True)
        (folder / "skipped.json").write_text(json.dumps({"reason": "no such corpus here", "fix": "get it"}))
    page = shots.run(family, "few").with_name("report.md").read_text(encoding="utf-8")
    assert all(f"- {name}: no such corpus here" in page for name in NAMES)
    assert (family / "data/plots/few-shots").is_dir()  # DVC expects it


def test_without_any_result_the_next_command_is_named(family: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no pipeline of 'few' is evaluated\n  run one: daamctl run few-8-shots"):
        shots.run(family, "few")


def test_no_pipeline_may_have_the_name_of_the_report(family: Path) -> None:
    (family / "pipelines/few-shots.yaml").write_text("download: {corpus: demo-tokens}\n", encoding="utf-8")
    (family / "params.yaml").write_text(f"pipelines: [{', '.join(NAMES)}, few-shots]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="pipeline 'few-shots': report@few-shots is the report on a family"):
        check.run(family)


def test_where_the_reference_is_best_it_is_said() -> None:
    def point(number: int | None, best: str, p: float, *trials: float) -> Any:
        f1, gap = SimpleNamespace(mean=0.5, low=0.4, high=0.6), SimpleNamespace(is_significant=p <= 0.05)
        found = SimpleNamespace(
            scores=SimpleNamespace(figure=lambda *_: f1), comparison=SimpleNamespace(reference="mean")
        )
        against = {name: gap for name in best.split() if name != "mean"}
        over_trials = {name: (0.1, *trials, 2) for name in against if trials}
        return SimpleNamespace(
            name=str(number), shots=number, best=best.split(), evaluation=found, against=against,
            over_trials=over_trials,
        )  # fmt: skip

    text = reporting._sentence([point(4, "lora", 0.3), point(16, "mean", 1.0)])
    assert text.endswith(
        "with 16 shots, mean finds entities best: F1 50.0 % [40.0, 60.0]. The best method is the reference for 16 "
        "shots. The best method differs from the reference by more than chance for no other number of shots."
    )
    text = reporting._sentence([point(4, "mean", 1.0), point(16, "mean", 1.0)])
    assert text.endswith("]. The best method is the reference for 4 and 16 shots.")
    text = reporting._sentence([point(4, "lora", 0.3), point(16, "lora", 0.01)])
    assert text.endswith("]. The best method differs from the reference by more than chance for 16 shots.")
    assert reporting._sentence([point(4, "lora", 0.3)]).endswith("by more than chance for no number of shots.")
    text = reporting._sentence([point(4, "lora mean", 1.0), point(16, "lora mha", 0.01)])
    assert text == (
        "With 4 shots, lora and mean find entities best: F1 50.0 % [40.0, 60.0]; with 16 shots, lora and mha find "
        "entities best: F1 50.0 % [40.0, 60.0]. The best method is the reference for 4 shots. The best method differs "
        "from the reference by more than chance for 16 shots."
    )
    # without a number of shots, all sentences
    text = reporting._sentence([point(4, "lora", 0.3), point(None, "lora", 0.01)])
    assert text.endswith("]. The best method differs from the reference by more than chance with all sentences.")
    text = reporting._sentence([point(1, "mean", 1.0), point(8, "lora", 0.01), point(None, "lora", 0.01)])
    assert text.endswith(
        "]. The best method is the reference for 1 shot. The best method differs from the reference by more than "
        "chance for 8 shots and with all sentences."
    )
    # over trials, which only some pipelines have
    text = reporting._sentence(
        [point(4, "lora", 0.3, -0.2, 0.4), point(8, "lora mha", 0.01, 0.0, 0.2), point(16, "lora", 0.01, 0.1, 0.3)]
    )
    assert text.endswith(
        "differs from the reference by more than chance for 8 and 16 shots. This holds for these trained models; over "
        "trials, the difference may be chance for 8 shots."
    )


def test_trials_are_paired_by_their_seed() -> None:
    """Fine-tuning may have other seeds than training, as many of them."""
    values = {
        "mean": {1: 0.5, 2: 0.9, 3: 0.1},
        "lora": {2: 0.95, 3: 0.15, 4: 0.7},
        "alone": {7: 0.5, 8: 0.6, 9: 0.7},
    }
    found: Any = SimpleNamespace(
        scores=SimpleNamespace(trials=lambda name, _: values[name]),
        task=SimpleNamespace(primary="entity_f1"),
        ranked=list(values),
        comparison=SimpleNamespace(reference="mean"),
    )
    trials = shots._trials(found)
    assert list(trials) == ["lora"]
    assert trials["lora"] == pytest.approx((0.05, 0.05, 0.05, 2))
