"""Training on a GPU: repeatable, without waiting, and every command that trains or reads what was trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from daamctl.artifacts.embeddings import EmbeddingsMetadata
from daamctl.artifacts.importance import CURVES_FILE
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.compute.local_engine import LocalEngine
from daamctl.config import Config, load_config
from daamctl.fit import graphs as graphs_of
from daamctl.fit.features import Features
from daamctl.fit.loop import Member, Trained, fit
from daamctl.fit.steps import seed_everything
from daamctl.fit.trial import stackable
from daamctl.methods import CLOSED_FORM, METHODS
from daamctl.methods.contract import SMALL, Case
from daamctl.stages import download, importance, pipeline, plan, segment, train
from daamctl.store.tables import read_frame
from tests.contracts.test_methods import small
from tests.fixtures import gpu
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.fits import Toy, results, state_after, toys
from tests.fixtures.projects import write_project
from tests.fixtures.recordings import write_pipeline

pytestmark = [
    *gpu.GPU,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("blank_pictures"),
]
TRAINED = [name for name in METHODS if name not in CLOSED_FORM]
GRAPHED = [
    name for name in TRAINED if graphs_of.obstacle(Case(name, small(name)).build(), gpu.DEVICE, held=True) is None
]
STEPS = 20


@pytest.fixture(scope="module")
def data() -> Features:
    """Drawn clips, on the GPU in the stored format; the sizes of folds differ."""
    layers, dim, classes = SMALL
    groups = (52, 60, 49, 55)
    rng, number = np.random.default_rng(0), sum(groups)
    names, ids = [f"c{index}" for index in range(classes)], [f"u{row}" for row in range(number)]
    table = pl.DataFrame(
        {
            "clip_id": ids, "utterance_id": ids, "label": [names[row % classes] for row in range(number)],
            "speaker": ids, "group": np.repeat(["g1", "g2", "g3", "g4"], groups),
        }
    )  # fmt: skip
    x = torch.from_numpy(rng.standard_normal((number, layers, dim))).half().to(gpu.DEVICE)
    numbers = tuple(range(1, layers + 1))
    head = EmbeddingsMetadata("drawn", "drawn", tuple(names), numbers, dim, {"name": "drawn"}, {}, number)
    return Features(head, table, x, numbers)


def trials(
    data: Features, method: str, precision: str = "bfloat16", folds: tuple[int, ...] = (2,), **train: Any
) -> list[Toy]:
    """Folds with all that a training does."""
    fixed = {"steps": STEPS, "batch_size": 8, "device": gpu.DEVICE, "grad_clip_norm": 1.0, "lr": 1e-3, **train}
    return toys(folds, data=data, make=Case(method, small(method)).build, how=precision, **fixed)


def outcome(found: list[Trained]) -> list[Any]:
    """All that must repeat."""
    return [
        (
            one.history,
            one.logits.tolist(),
            {name: value.tolist() for name, value in one.maps.items()},
            {name: value.tolist() for name, value in one.model.state_dict().items()},
        )
        for one in found
    ]


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_and_repeats_bit_by_bit(data: Features, method: str) -> None:
    """Its first step raises where a tensor gets no gradient."""
    seed_everything(1, gpu.DEVICE)
    first, second = (results(fit(trials(data, method))) for _ in range(2))
    assert outcome(first) == outcome(second)
    assert first[0].logits.isfinite().all()


@pytest.mark.parametrize("method", ["daam-v1", "mha", "weighted-sum"])
@pytest.mark.parametrize(("graphs", "then"), [("never", "never"), ("auto", "auto"), ("auto", "never")])
def test_a_training_that_resumes_repeats_bit_by_bit(data: Features, method: str, graphs: str, then: str) -> None:
    seed_everything(1, gpu.DEVICE)
    whole = results(fit(trials(data, method)))
    state = state_after(trials(data, method, graphs=graphs), 17)
    assert state is not None
    assert outcome(results(fit(trials(data, method, graphs=then), state))) == outcome(whole)


@pytest.mark.parametrize("graphs", ["never", "auto"])
@pytest.mark.parametrize("method", TRAINED)
def test_no_step_waits_for_the_gpu(data: Features, method: str, graphs: str) -> None:
    """A hundred steps until the first record; those before the sixth check the gradients, warm up and record."""
    (trial,) = trials(data, method, graphs=graphs, steps=1000)
    stack = trial.start([Member(trial, 0, {}, final=True)])
    steps = stack.run()
    for _ in range(graphs_of.WARM_UP + 2):
        next(steps)
    with gpu.no_waiting():
        taken = sum(1 for _ in steps)
    assert taken == 100 - graphs_of.WARM_UP - 2
    assert math.isfinite(float(stack.record()[0]["train_loss"] or 0))


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("method", GRAPHED)
def test_replayed_steps_are_the_steps_bit_by_bit(data: Features, method: str, precision: str) -> None:
    """The same deterministic kernels run on the same numbers; also epochs with a smaller last batch."""
    seed_everything(1, gpu.DEVICE)
    for budget in ({}, {"steps": None, "epochs": 2}):
        replayed, eager = (
            results(fit(trials(data, method, precision, graphs=one, **budget))) for one in ("auto", "never")
        )
        assert outcome(replayed) == outcome(eager)


@pytest.mark.parametrize("graphs", ["never", "auto"])
@pytest.mark.parametrize("method", [name for name in GRAPHED if stackable(Case(name, small(name)).build())])
def test_a_stack_is_its_models_alone(data: Features, method: str, graphs: str) -> None:
    """Folds and candidates side by side, with refits of their own settings."""
    seed_everything(1, gpu.DEVICE)
    searched = {"search": "grid", "search_lr": (3e-4, 1e-3), "search_weight_decay": (0.0, 1.0), "refit": True}
    together, alone = (
        results(fit(trials(data, method, "float32", (1, 2, 3), stack=one, graphs=graphs, **searched)))
        for one in ("auto", "never")
    )
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-3, rtol=1e-3)
        assert ours.search is not None
        assert theirs.search is not None
        losses = [[one["dev_loss"][-1] for one in found["candidates"]] for found in (ours.search, theirs.search)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_folds_of_the_command_are_the_same_with_graphs(tmp_path: Path) -> None:
    found = []
    for graphs in ("auto", "never"):
        settings = config(device=gpu.DEVICE, epochs=3, graphs=graphs)
        layout = folds_of(tmp_path / graphs, settings, "daam-v1")
        found.append(read_folds(layout.method("daam-v1")))
    for ours, theirs in zip(*found, strict=True):
        assert ours.predictions()["logits"].to_list() == theirs.predictions()["logits"].to_list()


@pytest.mark.parametrize("stack", ["always", "never"])
def test_plan_measures_folds_together_and_apart(tmp_path: Path, stack: str) -> None:
    write_project(tmp_path)
    write_pipeline(tmp_path, more="methods: [weighted-sum]\n")
    overrides = {"train.stack": stack, "train.device": gpu.DEVICE, "extract.device": gpu.DEVICE}
    settings = load_config(tmp_path, "tiny", overrides)
    layout = Layout.of(tmp_path, "tiny", settings)
    for stage in (download, segment):
        stage.run(layout, settings)
    with pipeline.measured(layout, settings) as measured:
        result = plan.run(layout, settings, blockers={}, measured=measured)
    rows = {row["method"] or row["stage"]: row for row in result["stages"]}
    assert rows["weighted-sum"]["basis"] == rows["extract"]["basis"] == "measured"
    assert rows["weighted-sum"]["time_s"] > 0


def folds_of(root: Path, settings: Config, method: str, **options: Any) -> Layout:
    """Folds of a method on drawn embeddings."""
    layout = Layout(root, "test", "test", "test")
    write_embeddings(layout.embeddings, settings)
    train.run(layout, settings, method=method, track=False, **options)
    return layout


@pytest.mark.parametrize("method", ["weighted-sum", "daam-v1"])
def test_importance_repeats_the_accuracy_of_training(tmp_path: Path, method: str) -> None:
    settings = config(device=gpu.DEVICE, epochs=6)
    settings = settings.model_copy(
        update={
            "methods": (method,),
            "importance": settings.importance.model_copy(update={"audit_clips": 1000, "audit_orders": 2}),
        }
    )
    layout = folds_of(tmp_path, settings, method)
    importance.run(layout, settings)
    curves, _ = read_frame(layout.stage("importance") / CURVES_FILE)
    rows = curves.filter(layers=0, kind="deletion", order="score").sort("fold", "seed")
    expected = [fold.result["metrics"]["accuracy"] for fold in read_folds(layout.method(method))]
    assert rows["accuracy"].to_list() == pytest.approx(expected, abs=1e-6)


def test_the_first_gpu_by_its_number_is_the_same(tmp_path: Path) -> None:
    found = []
    for device in (gpu.DEVICE, f"{gpu.DEVICE}:0"):
        layout = folds_of(tmp_path / device[-1], config(device=device, epochs=2), "daam-v1")
        found.append([fold.predictions()["logits"].to_list() for fold in read_folds(layout.method("daam-v1"))])
    assert found[0] == found[1]


@gpu.TWO_GPUS
def test_two_workers_take_a_gpu_each(tmp_path: Path) -> None:
    settings = config(device=gpu.DEVICE, epochs=2)
    alone = folds_of(tmp_path / "alone", settings, "daam-v1")
    with LocalEngine(workers=2) as engine:
        shared = folds_of(tmp_path / "shared", settings, "daam-v1", engine=engine)
    one, two = (read_folds(layout.method("daam-v1")) for layout in (alone, shared))
    assert [fold.result["metrics"] for fold in one] == [fold.result["metrics"] for fold in two]
    assert {fold.result["meta"]["device"].split(" ")[0] for fold in two} == {"cuda:0", "cuda:1"}
