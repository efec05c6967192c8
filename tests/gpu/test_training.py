"""Training on a GPU: repeatable, without waiting, and every command that trains or reads what was trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl import pipeline
from daamctl.artifacts.io import read_json
from daamctl.artifacts.results import read_folds
from daamctl.config import Config, TrainConfig, load_config
from daamctl.engines.local import LocalEngine
from daamctl.fit import graphed, loop
from daamctl.fit.batched import train_jointly
from daamctl.fit.feature_split import InMemorySplit
from daamctl.fit.fusion_training import FusionTraining
from daamctl.fit.loop import Trained, TrainingSetup
from daamctl.fit.rng import seed_everything
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM, METHODS
from daamctl.methods.contract import SMALL, Case
from daamctl.stages import download, importance, plan, segment, train
from tests.contracts.test_methods import small
from tests.fixtures import gpu
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.projects import write_project
from tests.fixtures.recordings import write_pipeline
from tests.fixtures.resume import Killed, kill_when

pytestmark = [
    *gpu.GPU,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.usefixtures("blank_pictures"),
]
TRAINED = [name for name in METHODS if name not in CLOSED_FORM]
GRAPHED = [
    name
    for name in TRAINED
    if graphed.obstacle(Case(name, small(name)).build(), gpu.DEVICE, "bfloat16", held=True) is None
]
STEPS = 20


def part(clips: int, seed: int) -> InMemorySplit:
    """Drawn clips, on the GPU in the stored format."""
    layers, dim, classes = SMALL
    x = torch.randn(clips, layers, dim, generator=torch.Generator().manual_seed(seed)).half()
    return InMemorySplit(x.to(gpu.DEVICE), (torch.arange(clips) % classes).to(gpu.DEVICE))


def training(
    method: str, work: Path, precision: str = "bfloat16", *, seed: int = 1, graphs: str = "never"
) -> FusionTraining:
    """Two epochs, with all that a fold does."""
    seed_everything(seed, gpu.DEVICE)
    fixed = {"epochs": 2, "batch_size": 8, "refit": False, "selection": "dev-group", "grad_clip_norm": 1.0}
    settings = TrainConfig.model_validate({**fixed, "graphs": graphs})
    setup = TrainingSetup(seed, gpu.DEVICE, precision, work, key="k")
    model = Case(method, small(method)).build()
    return FusionTraining(model, part(8 * STEPS - 4, 1), part(12, 2), part(12, 3), settings, setup)


def outcome(done: Trained) -> tuple[Any, ...]:
    """All that must repeat."""
    return done.history, done.logits.tolist(), None if done.density is None else done.density.tolist()


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_and_repeats_bit_by_bit(tmp_path: Path, method: str) -> None:
    """Its first step raises where a tensor gets no gradient."""
    first, second = (training(method, tmp_path / name).complete() for name in "ab")
    assert outcome(first) == outcome(second)
    assert first.logits.isfinite().all()


@pytest.mark.parametrize("method", ["daam-v1", "mha"])
def test_a_training_that_resumes_within_an_epoch_repeats_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    whole = training(method, tmp_path / "whole").complete()
    with monkeypatch.context() as context:
        kill_when(
            context, lambda state: bool(state["history"]) and len(state.get("pass", {"losses": ()})["losses"]) == 7
        )
        with pytest.raises(Killed):
            training(method, tmp_path / "cut").complete()
    assert outcome(training(method, tmp_path / "cut").complete()) == outcome(whole)


@pytest.mark.parametrize("method", TRAINED)
def test_no_step_waits_for_the_gpu(tmp_path: Path, method: str) -> None:
    run = training(method, tmp_path)
    run.model.train()
    batches = list(run.train.batches(8, 1))[: STEPS - 1]  # the last one is smaller
    run.step(*batches[0])  # the first step checks the gradients
    with gpu.no_waiting():
        losses = [run.step(x, y)[0] for x, y in batches]
    assert torch.stack(losses).isfinite().all()


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of replays in an epoch, the last one shorter, and no resume file unless asked for."""
    monkeypatch.setattr(graphed, "BLOCK", 5)
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", float("inf"))


def same_weights(one: FusionTraining, other: FusionTraining) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("method", GRAPHED)
def test_replayed_steps_are_the_steps_bit_by_bit(tmp_path: Path, method: str, precision: str) -> None:
    """The same deterministic kernels run on the same numbers."""
    replayed, eager = (training(method, tmp_path / one, precision, graphs=one) for one in ("auto", "never"))
    assert outcome(replayed.complete()) == outcome(eager.complete())
    assert same_weights(replayed, eager)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("method", GRAPHED)
def test_no_replay_waits_for_the_gpu(tmp_path: Path, method: str) -> None:
    run = training(method, tmp_path, graphs="auto")
    steps = run.steps(1)
    for _ in range(graphed.WARM_UP + 1):
        next(steps)
    with gpu.no_waiting():
        taken = sum(1 for _ in steps)
    assert taken == STEPS - graphed.WARM_UP - 1
    assert math.isfinite(run.end_pass()[0])


@pytest.mark.usefixtures("short_blocks")
def test_trainings_on_streams_of_their_own_are_those_in_turn(tmp_path: Path) -> None:
    together, alone = (
        [training("daam-v1", tmp_path / one / str(seed), seed=seed, graphs="auto") for seed in range(1, 6)]
        for one in ("together", "alone")
    )
    train_jointly(together, None)
    for one, other in zip(together, alone, strict=True):
        assert outcome(one.complete()) == outcome(other.complete())
        assert same_weights(one, other)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("then", ["auto", "never"])
def test_a_replayed_training_resumes_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    whole = training("daam-v1", tmp_path / "whole").complete()
    with monkeypatch.context() as context:
        kill_when(
            context, lambda state: bool(state["history"]) and len(state.get("pass", {"losses": ()})["losses"]) >= 7
        )
        with pytest.raises(Killed):
            training("daam-v1", tmp_path / "cut", graphs="auto").complete()
    resumed = training("daam-v1", tmp_path / "cut", graphs=then)
    assert resumed.under_way is not None
    assert outcome(resumed.complete()) == outcome(whole)


def test_folds_of_the_command_are_the_same_with_graphs(tmp_path: Path) -> None:
    found = []
    for graphs in ("auto", "never"):
        settings = config(device=gpu.DEVICE, epochs=3, graphs=graphs, batch_folds="auto")
        layout = folds_of(tmp_path / graphs, settings, "daam-v1")
        found.append(read_folds(layout.method("daam-v1")))
    assert found[0][0].result["meta"]["together"] == len(found[0])
    for ours, theirs in zip(*found, strict=True):
        assert ours.predictions()["logits"].to_list() == theirs.predictions()["logits"].to_list()


@pytest.mark.parametrize("batch_folds", ["always", "never"])
def test_plan_measures_folds_together_and_apart(tmp_path: Path, batch_folds: str) -> None:
    write_project(tmp_path)
    write_pipeline(tmp_path, more="methods: [weighted-sum]\n")
    overrides = {"train.batch_folds": batch_folds, "train.device": gpu.DEVICE, "extract.device": gpu.DEVICE}
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
    audited = read_json(importance.run(layout, settings))["audit"]["methods"][method]
    folds = read_folds(layout.method(method))
    expected = sum(float(fold.result["metrics"]["accuracy"] or 0) for fold in folds) / len(folds)
    assert audited["accuracy"]["all_layers"] == pytest.approx(expected, abs=1e-6)


def test_the_first_gpu_by_its_number_is_the_same(tmp_path: Path) -> None:
    found = []
    for device in (gpu.DEVICE, f"{gpu.DEVICE}:0"):
        layout = folds_of(tmp_path / device[-1], config(device=device, epochs=2), "daam-v1")
        found.append([fold.predictions()["logits"].to_list() for fold in read_folds(layout.method("daam-v1"))])
    assert found[0] == found[1]


@gpu.TWO_GPUS
def test_two_workers_take_a_gpu_each(tmp_path: Path) -> None:
    settings = config(device=gpu.DEVICE, epochs=2, batch_folds="never")
    alone = folds_of(tmp_path / "alone", settings, "daam-v1")
    with LocalEngine(workers=2) as engine:
        shared = folds_of(tmp_path / "shared", settings, "daam-v1", engine=engine)
    one, two = (read_folds(layout.method("daam-v1")) for layout in (alone, shared))
    assert [fold.result["metrics"] for fold in one] == [fold.result["metrics"] for fold in two]
    assert {fold.result["meta"]["device"].split(" ")[0] for fold in two} == {"cuda:0", "cuda:1"}
