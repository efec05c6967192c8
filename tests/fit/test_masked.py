"""Masked language modelling: draws of masks, likelihoods and training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from daamctl.encoders.masked import MaskedModel, open_masked
from daamctl.errors import ConfigError, DivergedError
from daamctl.fit import masked
from daamctl.fit.loop import Event, Finished, Progress, Trained, fit
from daamctl.fit.masked import FUSIONS, Masked, MaskedFit, MaskedFusion, MaskedSettings, MaskedTrial, Masking
from daamctl.fit.runner import load_state, save_state
from tests.fixtures.masked_models import save_masked

TEXT = "the small red cat sees a large blue dog . " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MaskedModel:
    return open_masked(str(save_masked(tmp_path_factory.mktemp("bert"))), device="cpu", max_tokens=12)


def masking(model: MaskedModel, rate: float = 0.3, seed: int = 1) -> Masking:
    return Masking(rate, seed, model.mask_id, torch.tensor(model.plain_ids))


def trial(
    model: MaskedModel, name: str, blocks: Any, drawn: list[Masked], settings: MaskedSettings, **options: Any
) -> MaskedTrial:
    given = {"finetune": False, "seed": 1, **options}
    return MaskedTrial(model, blocks, drawn, drawn, masking(model), settings, {}, name, **given)


def result(events: Iterable[Event]) -> Trained:
    (found,) = [event.trained for event in events if isinstance(event, Finished)]
    return found


def test_masks_have_the_rate_spare_special_tokens_and_are_drawn_by_block() -> None:
    blocks = [torch.cat([torch.tensor([0]), torch.randint(5, 1000, (1000,)), torch.tensor([3, 2])]) for _ in range(20)]
    drawn = Masking(0.15, 1, 4, torch.arange(5, 1000)).apply(blocks, 2)
    before = torch.cat([one.targets for one in drawn])
    after = torch.cat([one.ids[one.where] for one in drawn])
    assert [len(one.where) for one in drawn] == [150] * 20
    assert all(((one.where > 0) & (one.where < 1001)).all() for one in drawn)
    assert float((after == 4).float().mean()) == pytest.approx(0.8, abs=0.03)
    assert float((after == before).float().mean()) == pytest.approx(0.1, abs=0.03)
    for one, block in zip(drawn, blocks, strict=True):
        assert torch.equal(one.targets, block[one.where])
        rest = torch.ones(len(block), dtype=torch.bool)
        rest[one.where] = False
        assert torch.equal(one.ids[rest], block[rest])
    again = Masking(0.15, 1, 4, torch.arange(5, 1000)).apply(blocks[:3], 2)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(again, drawn, strict=False))
    for seed, part, epoch in ((2, 2, 0), (1, 1, 0), (1, 2, 1)):
        other = Masking(0.15, seed, 4, torch.arange(5, 1000)).apply(blocks, part, epoch)
        assert not torch.equal(other[0].where, drawn[0].where)
    assert Masking(0.15, 1, 4, torch.arange(5, 1000)).apply([torch.tensor([0, 3, 2])], 2) == []


def test_frozen_last_layer_scores_the_released_model(model: MaskedModel) -> None:
    drawn = masking(model).apply(model.blocks(TEXT, unknown="@"), 2)
    found = result(fit([trial(model, "last-layer", [], drawn, MaskedSettings(batch_size=3))]))
    expected = []
    for one in drawn:  # one block at a time: padding must have no effect
        with torch.no_grad():
            logits = model.model(input_ids=one.ids[None]).logits[0].double()
        expected += [-logits[at].log_softmax(0)[true].item() for at, true in zip(one.where, one.targets, strict=True)]
    assert found.facts["nll"] == pytest.approx(np.array(expected), abs=1e-5)
    assert (found.facts["added"], found.facts["trained"]) == (0, 0)
    assert [entry["epoch"] for entry in found.history] == [0] == [found.last["epoch"]]


@pytest.mark.parametrize("finetune", [False, True])
@pytest.mark.parametrize("name", FUSIONS)
def test_every_way_trains_what_it_should_and_leaves_the_model_as_it_was(
    model: MaskedModel, name: str, finetune: bool
) -> None:
    blocks = model.blocks(TEXT, unknown="@")
    drawn = masking(model).apply(blocks, 1)
    before = {key: value.clone() for key, value in model.model.state_dict().items()}
    settings = MaskedSettings(epochs=3, batch_size=2, lr=5e-3, fusion_lr=5e-2)

    def train() -> Trained:
        return result(fit([trial(model, name, blocks, drawn, settings, finetune=finetune, seed=3)]))

    found = train()
    assert all(torch.equal(value, before[key]) for key, value in model.model.state_dict().items())
    assert not any(one.requires_grad for one in model.model.parameters())
    own = sum(one.numel() for one in model.model.parameters()) if finetune else 0
    trained, dev = found.facts["trained"], [float(entry["dev_loss"] or 0.0) for entry in found.history]
    assert trained == found.facts["added"] + own
    assert len(dev) == (4 if trained else 1)
    assert found.last["epoch"] == int(np.argmin(dev))
    nll = found.facts["nll"]
    assert nll.mean() == pytest.approx(min(dev), abs=1e-5)  # test is dev here: the chosen epoch is scored
    if trained:
        assert dev[1] != dev[0]  # later steps of only three weights may be below rounding
    if trained > 3:  # three weights cannot help random layers
        assert min(dev) < dev[0]
    assert np.array_equal(train().facts["nll"], nll)


@pytest.mark.parametrize(("name", "finetune"), [("concat", False), ("last-layer", True)])
def test_training_continues_from_any_state(model: MaskedModel, tmp_path: Path, name: str, finetune: bool) -> None:
    """At a state within an epoch, after its last step, after its record, and at the end."""
    blocks = model.blocks(TEXT, unknown="@")
    drawn, settings = masking(model).apply(blocks, 1), MaskedSettings(epochs=2, batch_size=2, lr=5e-3, fusion_lr=5e-2)

    def one() -> MaskedTrial:
        return trial(model, name, blocks, drawn, settings, finetune=finetune)

    states = 0
    events = []
    for event in fit([one()]):
        events.append(event)
        if isinstance(event, Progress):
            save_state(tmp_path / str(states), "k", event.state())
            states += 1
    whole, steps = result(events), sum(event.units for event in events if isinstance(event, Progress))
    assert steps == one().units_of_training == 2 * -(-len(blocks) // 2)
    assert states == steps + 3  # the records, with that before training
    for number in range(states):
        again = list(fit([one()], load_state(tmp_path / str(number), "k")))
        assert sum(event.units for event in again if isinstance(event, Progress)) == steps
        found = result(again)
        assert found.history == whole.history
        assert all(torch.equal(value, whole.weights[key]) for key, value in found.weights.items())
        assert np.array_equal(found.facts["nll"], whole.facts["nll"])


def test_parameters_of_the_fusions(model: MaskedModel) -> None:
    layers, width = 3, 16
    built = {name: MaskedFusion(build(layers, width, 2)) for name, build in FUSIONS.items()}
    counts = {name: sum(one.numel() for one in fusion.parameters()) for name, fusion in built.items()}
    assert counts["weighted-sum"] == layers
    assert counts["concat"] == layers * width**2 + width
    assert counts["base-plus-2"] == 2 * (12 * width**2 + 13 * width)
    assert counts["dwatt"] == counts["dwatt-scaled"]
    with pytest.raises(ConfigError, match="no layer fusion 'daam'"):
        list(fit([trial(model, "daam", [], [], MaskedSettings())]))


class Waits(TorchDispatchMode):
    """Operations that wait for a GPU: reading a number, and selecting by a mask of bools, whose size is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        flat = [one for part in args for one in (part if isinstance(part, list | tuple) else [part])]
        selects = "index" in name and any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in flat)
        if selects or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FUSIONS)
def test_no_pass_waits_for_a_gpu(model: MaskedModel, name: str) -> None:
    """Selecting by a mask of bools did, in every layer. The library itself asks once whether anything is padded."""
    drawn = masking(model).apply(model.blocks(TEXT, unknown="@"), 1)
    fusion = MaskedFusion(FUSIONS[name](model.num_layers, model.embed_dim, model.num_heads))
    with Waits() as waits:
        loss = masked.nll(model, fusion, drawn[:2]).mean()
        if loss.requires_grad:
            loss.backward()
    assert set(waits.seen) <= {"aten::_local_scalar_dense"}
    assert len(waits.seen) <= 1
    with Waits() as waits:
        assert bool(torch.ones(2)[torch.tensor([True, False])].sum())
    assert len(waits.seen) == 2


def test_a_loss_that_is_not_finite_is_refused_after_its_epoch(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = model.blocks(TEXT, unknown="@")
    drawn = masking(model).apply(blocks, 1)
    real, calls, settings = masked.nll, [], MaskedSettings(batch_size=2)

    def broken(*given: Any) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return real(*given) * (float("nan") if calls[-1] else 1.0)

    monkeypatch.setattr(masked, "nll", broken)
    with pytest.raises(DivergedError, match=r"^weighted-sum: the loss is nan in epoch 1\n  lower --lr or --fusion-lr"):
        list(fit([trial(model, "weighted-sum", blocks, drawn, settings)]))
    assert sum(calls) == -(-len(blocks) // 2) > 1


def test_a_dev_loss_that_is_not_finite_at_the_end_is_refused(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = model.blocks(TEXT, unknown="@")
    drawn = masking(model).apply(blocks, 1)
    real, settings, scored = MaskedFit._score, MaskedSettings(epochs=2), []

    def broken(*given: Any) -> Any:
        scored.append(real(*given))
        return scored[-1] * (float("nan") if len(scored) == 3 else 1.0)  # after epoch 2

    monkeypatch.setattr(MaskedFit, "_score", broken)
    with pytest.raises(DivergedError, match=r"^the held-out loss is nan in epoch 2\n  lower --lr or --fusion-lr"):
        list(fit([trial(model, "weighted-sum", blocks, drawn, settings)]))
