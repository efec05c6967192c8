"""Folds trained together against the same folds one by one: numbers, files, schedules of their own, interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.fit import loop, runner
from daamctl.fit.batched import JointAdam, clipped, separable
from daamctl.fit.features import Features, load_features
from daamctl.fit.runner import in_groups, kept_fold, train_fold, train_group
from daamctl.fit.trial import FoldSpec, Trial
from daamctl.fit.trials import fusion
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.layout import Layout
from daamctl.methods import METHODS, build, settings_of
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.resume import Killed, save_always

SEEDS = (1, 2)


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    found = load_features(Layout(project, "test", "test", "test"), config())
    keep = np.delete(np.arange(len(found.clips)), [3, 30, 31, 32, 80])  # parts of unequal size
    assert isinstance(found.x, torch.Tensor)
    return Features(found.head, found.clips[keep], found.x[torch.from_numpy(keep)], found.layers)


def specs(method: str = "weighted-sum", folds: tuple[int, ...] = (1, 2, 3), **train: Any) -> list[FoldSpec]:
    settings = config(**{"batch_size": 8, "precision": "float32", **train})
    return [FoldSpec("test", method, number, seed, settings) for number in folds for seed in SEEDS]


def trials(wanted: list[FoldSpec], features: Features) -> list[Trial]:
    return [FusionTrial(spec, features) for spec in wanted]


def apart(wanted: list[FoldSpec], features: Features, root: Path) -> list[Fold]:
    return [train_fold(trial, root / "apart", root / "work/a", root=root) for trial in trials(wanted, features)]


def joint(wanted: list[FoldSpec], features: Features, root: Path, **more: Any) -> list[Fold]:
    return train_group(trials(wanted, features), root / "joint", root / "work/j", root=root, **more)


def assert_alike(ours: Fold, theirs: Fold, tolerance: float = 2e-4) -> None:
    """Same files, same choices, numbers within the tolerance."""
    assert sorted(path.name for path in ours.folder.iterdir()) == sorted(path.name for path in theirs.folder.iterdir())
    assert ours.result["run"] == theirs.result["run"]
    assert ours.result["metrics"] == pytest.approx(theirs.result["metrics"])
    for name in ("lr", "train_loss", "train_accuracy", "dev_accuracy", "test_accuracy"):
        found, expected = (one.history()[name].drop_nulls().to_list() for one in (ours, theirs))
        assert found == pytest.approx(expected, rel=tolerance)
    logits = [torch.tensor(one.predictions()["logits"].to_list()) for one in (ours, theirs)]
    torch.testing.assert_close(*logits, atol=tolerance, rtol=tolerance)
    for path in ours.folder.glob("*.safetensors"):
        found, expected = load_file(path), load_file(theirs.folder / path.name)
        inert = model_of(ours.result["run"]["method"]).traits.inert
        for name in list(found):
            if name in inert or name.endswith("in_proj_bias"):  # moved by rounding alone, and move nothing
                del found[name], expected[name]
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


SHARED = [name for name in METHODS if "decoder" not in METHODS.defaults(name)] + [
    f"{name}-mlp" for name in METHODS if "decoder" in METHODS.defaults(name)
]


def model_of(method: str) -> Any:
    return build(method, num_layers=24, embed_dim=16, num_classes=4, **settings_of(method, {}))


@pytest.mark.parametrize("method", [name for name in SHARED if "published" not in name and separable(model_of(name))])
def test_every_small_method_gives_the_same_together(method: str, features: Features, project: Path) -> None:
    wanted = specs(method, (1, 2), epochs=2, lr=3e-4, batch_size=24)
    for ours, theirs in zip(joint(wanted, features, project), apart(wanted, features, project), strict=True):
        assert_alike(ours, theirs)
        assert ours.result["meta"]["together"] == 4
        assert "together" not in theirs.result["meta"]


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam", "weight_decay": 0.1, "grad_clip_norm": 0.01, "loss": "cross-entropy"},
        {"selection": "best-on-test", "plateau_patience": 0, "plateau_factor": 0.5},
        {"selection": "last", "schedule": "constant"},
        {"precision": "bfloat16"},
    ],
)
def test_settings_hold_for_each_member(features: Features, project: Path, settings: dict[str, Any]) -> None:
    wanted = specs("attentive", epochs=5, lr=2e-3, **settings)
    together, alone = joint(wanted, features, project), apart(wanted, features, project)
    for ours, theirs in zip(together, alone, strict=True):
        # In bfloat16 one of the 21 held-out clips may tip.
        assert_alike(ours, theirs, 0.06 if settings.get("precision") == "bfloat16" else 2e-4)
    if "plateau_patience" in settings:
        rates = {tuple(one.history()["lr"].to_list()) for one in together}
        assert len(rates) > 1  # members really have rates of their own


def test_members_are_those_asked_for(features: Features, project: Path) -> None:
    wanted, told = specs(epochs=2), []
    found = joint(wanted, features, project, on_epoch=lambda trial, entry: told.append((trial.spec, entry)))
    assert [(one.result["run"]["fold"], one.result["run"]["seed"]) for one in found] == [
        (spec.fold, spec.seed) for spec in wanted
    ]
    assert sorted((spec.fold, spec.seed, entry["epoch"]) for spec, entry in told) == [
        (fold, seed, epoch) for fold in (1, 2, 3) for seed in SEEDS for epoch in (1, 2)
    ]
    assert all(kept_fold(project / "joint", trial) is not None for trial in trials(wanted, features))
    assert not list((project / "work/j").glob("*/*"))


def test_interrupted_members_go_on_each_from_its_own_epoch(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_always(monkeypatch)
    wanted = specs(epochs=4)
    whole = joint(wanted, features, project / "whole")

    def die(trial: Trial, entry: loop.Epoch) -> None:
        if (trial.spec.fold, trial.spec.seed, entry["epoch"]) == (2, 1, 3):
            raise Killed

    with pytest.raises(Killed):
        joint(wanted, features, project, on_epoch=die)
    states = [loop.load_state(path.parent, FusionTrial(spec, features).key) for spec in wanted
              for path in (project / "work/j").glob(f"*-fold{spec.fold}-seed{spec.seed}/resume.pt")]  # fmt: skip
    assert {len(state["history"]) for state in states if state} == {2, 3}
    seen: list[Any] = []
    resumed = joint(wanted, features, project, on_epoch=lambda trial, entry: seen.append(entry["epoch"]))
    assert sorted(seen) == sorted([1, 2, 3, 4] * 6)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert_alike(ours, theirs)


def test_what_another_process_finished_is_taken(features: Features, project: Path, monkeypatch: Any) -> None:
    wanted = specs(epochs=1)
    made = apart(wanted[:1], features, project)

    def finished(folder: Path, trial: Trial, before: int | None) -> Fold | None:
        return made[0] if trial.spec is wanted[0] else None

    monkeypatch.setattr(runner, "finished_meanwhile", finished)
    found = joint(wanted, features, project)
    assert found[0] is made[0]
    assert [one.result["meta"]["together"] for one in found[1:]] == [5] * 5


@pytest.mark.parametrize(
    ("method", "train"),
    [
        ("daam-v1", {}),  # convolutions
        ("sls", {}),  # batch normalisation
        ("best-layer", {}),  # chooses on the held-out group
        ("mha-published-mlp", {}),  # sees its batch
        ("weighted-sum", {"batch_folds": "never"}),
        ("daam-v1-mlp", {"density_maps": "all-epochs"}),
    ],
)
def test_what_trains_by_itself(features: Features, method: str, train: dict[str, Any]) -> None:
    wanted = trials(specs(method, **train), features)
    assert in_groups(wanted) == [[trial] for trial in wanted]


def test_groups_hold_one_method_and_what_caches_hold(features: Features, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, others = trials(specs(), features), trials(specs("mean", (1,)), features)
    assert in_groups(wanted + others) == [wanted, others]
    numbers = 8 * 24 * 16
    monkeypatch.setattr(fusion, "CPU_STEP_NUMBERS", 4 * numbers)
    assert [len(group) for group in in_groups(wanted)] == [4, 2]
    with monkeypatch.context() as fewer:
        fewer.setattr(fusion, "CPU_PARAMETERS", 1000)
        assert [len(group) for group in in_groups(wanted)] == [1] * 6
    monkeypatch.setattr(fusion, "CPU_BATCH_NUMBERS", numbers - 1)
    assert [len(group) for group in in_groups(wanted)] == [1] * 6


def test_nothing_is_shared_on_disk(project: Path) -> None:
    write_embeddings(project / "data/extract/test", config())
    streamed = load_features(Layout(project, "test", "test", "test"), config(features="stream"))
    wanted = trials(specs(features="stream"), streamed)
    assert in_groups(wanted) == [[trial] for trial in wanted]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_joint_adam_is_adam(kind: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes, rates = [(3, 2), (4,)], [0.1, 0.01, 0.1]

    def made() -> tuple[list[list[torch.nn.Parameter]], list[Any]]:
        values = [[torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in rates]
        return values, [kind(one, lr=lr, weight_decay=0.5, fused=True) for one, lr in zip(values, rates, strict=True)]

    (ours, our_steps), (theirs, their_steps) = made(), made()

    def alone(values: Any, steps: Any, gradients: list[torch.Tensor]) -> None:
        for index, (one, step) in enumerate(zip(values, steps, strict=True)):
            for value, gradient in zip(one, gradients, strict=True):
                value.grad = gradient[index].clone(memory_format=torch.contiguous_format)
            step.step()

    first = [torch.randn(len(rates), *shape, generator=generator) for shape in shapes]
    alone(ours, our_steps, first)
    alone(theirs, their_steps, first)
    stacks = [torch.empty(len(rates), *shape) for shape in shapes]
    update = JointAdam(our_steps, stacks, our_steps[0].param_groups[0]["params"])
    for _ in range(5):
        gradients = [torch.randn(len(rates), *shape[::-1], generator=generator).transpose(1, -1) for shape in shapes]
        update(gradients)
        alone(theirs, their_steps, gradients)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_each_member_is_clipped_by_its_own_norm() -> None:
    gradients = [torch.randn(3, 2, 4), torch.randn(3, 5)]
    gradients[0][1] *= 1e-4
    gradients[1][1] *= 1e-4
    found = clipped(gradients, 0.1)
    for index in range(3):
        values = [torch.nn.Parameter(torch.zeros_like(one[index])) for one in gradients]
        for value, one in zip(values, gradients, strict=True):
            value.grad = one[index].clone()
        torch.nn.utils.clip_grad_norm_(values, 0.1)
        for value, one in zip(values, found, strict=True):
            torch.testing.assert_close(one[index], value.grad)


def test_settings_alone_decide_the_key(features: Features) -> None:
    alone, batched = specs(batch_folds="never")[0], specs()[0]
    assert FusionTrial(alone, features).key == FusionTrial(batched, features).key
    assert isinstance(Config().train.batch_folds, str)
