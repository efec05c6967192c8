"""Following the advice that a report gives on a badly trained method makes the method better, on made-up corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from daamctl.artifacts.evaluation import Evaluation, read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.config import load_config
from daamctl.reporting.answers import next_steps
from daamctl.stages import download, evaluate, extract, segment, train

LAYERS = 3


def write_corpus(path: Path, *, clips: int, dim: int, distance: float, classes: int = 2) -> None:
    """Gaussian classes in four groups; layers share most of their noise."""
    rng = np.random.default_rng(0)
    target = rng.integers(classes, size=clips)
    centres = distance * rng.standard_normal((classes, 1, dim)) / np.sqrt(2 * dim)
    noise = rng.standard_normal((clips, 1, dim)) + 0.3 * rng.standard_normal((clips, LAYERS, dim))
    np.savez(
        path,
        id=[f"i{row}" for row in range(clips)],
        label=np.array(list("abcdefghij"))[target],
        speaker=[f"s{row}" for row in range(clips)],
        group=[f"g{row % 4}" for row in range(clips)],
        embeddings=(centres[target] + noise).astype("float32"),
    )


def evaluated(project: Path, method: str, settings: str) -> Evaluation:
    """Train a method and its probe with some settings, and evaluate both."""
    (project / "pipelines" / "made.yaml").write_text(
        "# Does the advice help?\ndownload: {corpus: embeddings, source: made.npz}\n"
        f"methods: [{method}, ridge-mean]\ntrain: {{device: cpu, {settings}}}\n",
        encoding="utf-8",
    )
    config = load_config(project, "made")
    layout = Layout.of(project, "made", config)
    for stage in (download, segment, extract):
        stage.run(layout, config)
    for name in config.methods:
        train.run(layout, config, method=name, track=False)
    evaluate.run(layout, config)
    return read_evaluation(layout.stage("evaluate"))


@pytest.mark.parametrize(
    ("status", "advice", "method", "corpus", "before", "after"),
    [
        (
            "undertrained",
            "Raise train.steps",
            "mean",
            {"clips": 120, "dim": 40, "distance": 2.0},
            "steps: 3, passes: 0",
            "steps: 120, passes: 0",
        ),
        (
            "undertrained",
            "Raise hidden_dim in method_settings, e.g. to 40: mean was given 2 hidden units for 10 classes.",
            "mean",
            {"clips": 400, "dim": 40, "distance": 5.0, "classes": 10},
            "steps: 120, passes: 0}\nmethod_settings: {mean: {hidden_dim: 2}",
            "steps: 120, passes: 0}\nmethod_settings: {mean: {hidden_dim: 40}",
        ),
        (
            "overfitted",
            "Add a larger value to train.search_weight_decay",
            "none-mlp",
            {"clips": 200, "dim": 104, "distance": 1.5},
            "search_weight_decay: [0.0]",
            "search_weight_decay: [0.0, 1.0, 10.0]",
        ),
        (
            "learned nothing",
            "Add lower values to train.search_lr",
            "none-mlp",
            {"clips": 120, "dim": 40, "distance": 3.0},
            "search_lr: [0.3]",
            "search_lr: [0.003, 0.3]",
        ),
    ],
)
def test_advice_helps(
    project: Path, status: str, advice: str, method: str, corpus: dict[str, float], before: str, after: str
) -> None:
    write_corpus(project / "made.npz", **corpus)  # type: ignore[arg-type]
    first = evaluated(project, method, before)
    assert first.fairness.methods[method].status == status
    assert any(step.startswith(advice) for step in next_steps(first))
    second = evaluated(project, method, after)
    assert second.fairness.methods[method].status != status
    gaps = [one.fairness.methods[method].gap for one in (first, second)]
    assert gaps[0] is not None
    assert gaps[1] is not None
    assert gaps[1] > gaps[0] + 0.02
