"""Fine-tuning: repeatable, resumable, the same whatever goes through the encoder at once, a fresh encoder per fold."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from daamctl.adapters import FINETUNES, FineTuned, build_finetune
from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings
from daamctl.errors import MethodError, TrainingError
from daamctl.extraction.batching import plan_batches
from daamctl.fit import adapter, loop
from daamctl.fit.adapter import (
    BLOCK_BATCHES,
    AdapterFit,
    AdapterTrial,
    EncoderAndItems,
    EncoderSource,
    ItemSet,
    pieces,
    predict,
    read_ahead,
    shuffled_batches,
)
from daamctl.fit.loop import Finished, Member, Progress, Recorded, Trained, fit
from daamctl.fit.runner import FILE, kept_fold, train_fold
from daamctl.fit.steps import adam, rate_factor
from daamctl.fit.trial import FoldSpec
from daamctl.methods import WeightsMetadata, load_weights, read_metadata
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.resume import Killed, kill_when, records, save_always, under_way
from tests.fixtures.tiny_models import Tiny, tiny

CLASSES = ("even", "odd")
GROUPS = 3
NUMBER = 36


class Shared(list[list[int]]):
    """A list that the copies of an encoder share."""

    def __deepcopy__(self, memo: Any) -> Shared:
        return self


class Encoder(Tiny):
    """A tiny text encoder that remembers which lengths it was given at once."""

    layers = (1, 2)
    equal_length_batches = False
    device = "cpu"

    def __init__(self, model: Any) -> None:
        super().__init__(model, "text")
        self.most, self.met = NUMBER, Shared()

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        if len(items) > self.most:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        self.met.append([len(item) for item in items])
        return super().collate(items)


def texts() -> list[Tensor]:
    """Token ids, 4 to 12 of them out of few: even or odd ones, nearly all of the time."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(NUMBER):
        ids = 10 + 2 * rng.integers(0, 3, rng.integers(4, 13))
        own = rng.random(len(ids)) < 0.95
        found.append(torch.from_numpy(ids + np.where(own, number % 2, 1 - number % 2)))
    return found


def table() -> ClipTable:
    names = [f"t{number:02d}" for number in range(NUMBER)]
    rows = pl.DataFrame(
        {
            "clip_id": [f"{name}#000" for name in names],
            "utterance_id": names,
            "text": [" ".join(map(str, ids.tolist())) for ids in texts()],
            "label": [CLASSES[number % 2] for number in range(NUMBER)],
            "speaker": names,
            "group": [f"g{number // 2 % GROUPS + 1}" for number in range(NUMBER)],
        }
    )
    return ClipTable("toy", CLASSES, rows, {}, "text")


class Made:
    """A source, and every encoder that it has opened."""

    def __init__(self, change: Callable[[Encoder], None] = lambda encoder: None) -> None:
        self.opened: list[Any] = []
        self.alive = list[int]()  # how many of them are still there when the next one is opened
        self.read = list[int]()
        self.change, self.items = change, texts()
        self.source = EncoderSource(table(), self.open)

    def open(self) -> EncoderAndItems:
        self.last: Any = None
        self.alive.append(sum(one() is not None for one in self.opened))
        encoder = Encoder(tiny("bert").model)
        self.change(encoder)
        self.opened.append(weakref.ref(encoder))
        self.last = encoder
        sizes = np.array([len(ids) for ids in self.items])
        plan = partial(plan_batches, budget=60, equal_length=encoder.equal_length_batches)
        targets = torch.tensor([number % 2 for number in range(NUMBER)])
        items = ItemSet(targets, sizes, self.item, plan)
        return EncoderAndItems(encoder, {"source": "tiny bert", "weights_sha256": "00", "max_tokens": 4096}, items)

    def item(self, row: int) -> Tensor:
        self.read.append(row)
        return self.items[row]


def config(train: dict[str, Any] | None = None, **settings: Any) -> Config:
    quick = {"epochs": 3, "lr": 0.01, "batch_size": 6, "device": "cpu", "search": "none", **settings}
    return Config.model_validate({"finetune": quick, "train": {"refit": False, **(train or {})}})


def make(root: Path, name: str = "a", made: Made | None = None, method: str = "lora-r4", **settings: Any) -> Fold:
    chosen = trial(made, method, seed=settings.pop("seed", 1), **settings)
    return train_fold(chosen, root / name / method, root / "work" / name, root=root)


def trial(
    made: Made | None = None, method: str = "lora-r4", seed: int = 1, fold: int = 2, **settings: Any
) -> AdapterTrial:
    return AdapterTrial(FoldSpec("toy", method, fold, seed, config(**settings)), (made or Made()).source)


def logits_of(fold: Fold) -> Tensor:
    return torch.tensor(fold.predictions()["logits"].to_list())


def values(fold: Fold) -> dict[str, Any]:
    """All that must repeat."""
    weights = load_file(fold.folder / "weights.safetensors")
    return {
        "metrics": fold.result["metrics"],
        "history": fold.history().to_dicts(),
        "logits": logits_of(fold).tolist(),
        "weights": {name: value.tolist() for name, value in weights.items()},
    }


def test_fold_is_whole_and_honest(tmp_path: Path) -> None:
    fold = make(tmp_path, epochs=8)
    run, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    assert (run["test_group"], run["dev_group"], run["num_folds"], run["finetune"]) == ("g2", "g3", 3, True)
    # A and B of two projections in two layers, and the classifier
    assert run["num_parameters"] == 2 * 2 * 2 * 4 * 32 + 32 * 2 + 2
    assert run["effect"]["tensors"] == run["effect"]["with_gradient"] == 8
    assert run["effect"]["output_change"] > 0
    assert len(run["adapted"]) == 4
    assert (meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"]) == (12, 12, 12)
    assert meta["evaluation_precision"] == "float32"
    assert set(run["config"]["train"]) == {"loss", "focal_gamma", "focal_alpha", "selection", "refit", "dev_fraction"}
    history, predictions = fold.history(), fold.predictions()
    assert history["epoch"].to_list() == list(range(1, run["config"]["finetune"]["epochs"] + 1))
    assert history["step"].to_list() == list(range(2, 17, 2))
    assert metrics["selected_epoch"] is None
    assert metrics["accuracy"] == metrics["accuracy_last"] == history["test_accuracy"][-1]
    assert set(predictions["group"]) == {"g2"}
    assert (predictions["logits"].list.arg_max() == predictions["target"]).mean() == metrics["accuracy"]
    assert metrics["accuracy_last"] > 0.8  # chance is 0.5
    assert history["train_loss"][-1] < 0.8 * history["train_loss"][0]


def test_at_a_constant_rate_the_best_epoch_is_kept_and_nothing_is_refitted(tmp_path: Path) -> None:
    given: dict[str, Any] = {"epochs": 8, "schedule": "constant"}
    fold, other = (make(tmp_path, str(refit), train={"refit": refit}, **given) for refit in (False, True))
    assert values(fold) == values(other)
    metrics, history, predictions = fold.result["metrics"], fold.history(), fold.predictions()
    scores = list(zip(history["dev_accuracy"], -history["dev_loss"], strict=True))
    selected = scores.index(max(scores)) + 1
    assert (metrics["selected_epoch"], metrics["epochs"]) == (selected, 8)
    assert metrics["accuracy"] == history["test_accuracy"][selected - 1]
    assert (predictions["logits"].list.arg_max() == predictions["target"]).mean() == metrics["accuracy"]
    shorter = make(tmp_path, "shorter", epochs=selected, schedule="constant", train={"selection": "dev-group"})
    assert values(shorter)["weights"] == values(fold)["weights"]


def test_weights_say_what_they_are_and_give_the_predictions_back(tmp_path: Path) -> None:
    fold, made = make(tmp_path), Made()
    path = fold.folder / "weights.safetensors"
    extract = finetuning_data_settings(config(), "text")
    assert read_metadata(path) == WeightsMetadata(
        schema=1,
        kind="adapter",
        method="lora-r4",
        settings={},
        num_layers=1,
        embed_dim=32,
        num_classes=2,
        classes=("even", "odd"),
        layers=(2,),
        modality="text",
        encoder={
            "name": None,
            "source": "tiny bert",
            "revision": None,
            "weights_sha256": "00",
            "weights_dtype": None,
        },
        inputs={"max_tokens": 512},  # not the encoder's 4096: finetune.max_tokens is lower
        precision="float32",
        made_with={"extract": extract},
        head_parameters=66,
        fold={"key": fold.result["run"]["key"], "method": "lora-r4", "fold": 2, "seed": 1},
    )
    opened = made.source.take()
    model = load_weights(path, encoder=opened)
    assert isinstance(model, FineTuned)
    assert not model.training
    assert not model.model.training
    assert len(load_file(path)) == 10  # nothing of the frozen encoder
    rows = np.array([int(name[1:3]) for name in fold.predictions()["clip_id"]])
    assert torch.equal(predict(model, opened, rows), logits_of(fold))
    alone = torch.cat([predict(model, opened, rows[[i]]) for i in range(len(rows))])
    torch.testing.assert_close(alone, logits_of(fold), atol=1e-5, rtol=1e-4)  # neighbours in a batch do not matter


@pytest.mark.parametrize("method", FINETUNES)
def test_every_way_is_loaded_again(tmp_path: Path, method: str) -> None:
    fold = make(tmp_path, method=method, epochs=1)
    path = fold.folder / "weights.safetensors"
    shown = read_metadata(path)
    published = method.endswith("-published")
    assert (shown.kind, shown.method, shown.inputs["max_tokens"]) == ("adapter", method, 128 if published else 512)
    opened = Made().source.take()
    model = load_weights(path, encoder=opened)
    assert isinstance(model, FineTuned)
    rows = np.array([int(name[1:3]) for name in fold.predictions()["clip_id"]])
    found = predict(model, opened, rows)
    torch.testing.assert_close(found, logits_of(fold), atol=1e-5, rtol=0)


def refusal(path: Path, encoder: Any = None) -> str:
    """The one line, and how to repair it."""
    with pytest.raises(MethodError) as caught:
        load_weights(path, encoder=encoder)
    assert "\n" not in caught.value.message
    return str(caught.value)


def test_an_encoder_has_to_be_given_and_the_right_one(tmp_path: Path) -> None:
    path = make(tmp_path, epochs=1).folder / "weights.safetensors"
    needed = f"{path}: lora-r4 is trained over the encoder tiny bert (weights sha256 00)"
    how = "\n  load_weights(path, encoder=opened), with what daamctl.encoders.load.open_encoder gives for it"
    assert refusal(path) == f"{needed}, which has to be given{how}"
    opened = Made().source.take()
    other = replace(opened, facts={"source": "other", "revision": "abc", "weights_sha256": "01"})
    assert refusal(path, other) == f"{needed}, got other (revision abc, weights sha256 01){how}"
    assert refusal(path, replace(opened, facts={})) == f"{needed}, got without a name (weights unknown){how}"
    assert refusal(path, opened.encoder).startswith(f"{path}: encoder is a Encoder, which does not say what encoder")
    load_weights(path, encoder=opened)  # refusals left it as it was
    assert refusal(path, opened) == (
        f"{path}: the encoder tiny bert (weights sha256 00) given has been adapted before\n  open it anew"
    )


def test_tensors_of_another_way_are_refused(tmp_path: Path) -> None:
    path = make(tmp_path, epochs=1).folder / "weights.safetensors"
    with safe_open(path, framework="pt") as file:
        entry = json.loads(file.metadata()["daamctl"])
    for change, message in (
        ({"method": "lora-r8"}, "weights do not fit lora-r8: "),
        ({"method": "lora-r5"}, "unknown fine-tuning method 'lora-r5'"),
        ({"num_classes": 3, "classes": ["a", "b", "c"]}, "weights do not fit lora-r4: "),
        ({"num_classes": 1, "classes": ["a"]}, "lora-r4: num_classes must be at least 2, got 1"),
    ):
        save_file(load_file(path), tmp_path / "w.safetensors", metadata={"daamctl": json.dumps(entry | change)})
        found = refusal(tmp_path / "w.safetensors", Made().source.take())
        assert found.startswith(f"{tmp_path / 'w.safetensors'}: {message}")


def test_same_seed_same_numbers_other_seed_other_numbers_and_dropout_is_a_switch(tmp_path: Path) -> None:
    losses = []
    for dropout in (False, True):
        given: dict[str, Any] = {"encoder_dropout": dropout, "epochs": 2}
        first, second = (values(make(tmp_path, f"{name} {dropout}", **given)) for name in "ab")
        assert first == second
        assert values(make(tmp_path, f"c {dropout}", seed=2, **given))["logits"] != first["logits"]
        losses.append(first["history"][0]["train_loss"])
    assert losses[0] != losses[1]


WITHIN: dict[str, Any] = {"epochs": 2, "batch_size": 2, "accumulate": 2, "encoder_dropout": True}
"""Six steps in each of two epochs."""


def die_after(steps: int, kill: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    def then(state: dict[str, Any]) -> None:
        if under_way(state)["steps"] == steps:
            kill()

    return then


def cut(root: Path) -> None:
    """Have the system end this process after three steps of the second epoch."""
    with pytest.MonkeyPatch.context() as context:
        save_always(context, die_after(9, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        make(root, "cut", **WITHIN)


@pytest.mark.slow
def test_a_training_that_the_system_kills_resumes_to_the_same_bits(tmp_path: Path) -> None:
    here = "import pathlib, sys; from tests.fit.test_adapter import cut; cut(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", here, str(tmp_path)], cwd=REPOSITORY, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "work" / "cut").glob(f"*/{FILE}"))
    assert values(make(tmp_path, "cut", **WITHIN)) == values(make(tmp_path, "whole", **WITHIN))


@pytest.fixture(scope="module", params=["linear", "constant"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The settings of a training that is not interrupted, and all that must repeat."""
    settings = {**WITHIN, "schedule": request.param}
    return settings, values(make(tmp_path_factory.mktemp("whole"), **settings))


@pytest.mark.parametrize(("steps", "recorded"), [(1, 0), (6, 0), (6, 1), (9, 1), (12, 2)])
def test_a_training_interrupted_after_any_step_resumes_to_the_same_bits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    recorded: int,
    undisturbed: tuple[Any, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    settings, whole = undisturbed
    found: list[dict[str, Any]] = []

    def reached(state: dict[str, Any]) -> bool:
        found.append(under_way(state))
        return found[-1]["steps"] == steps and len(records(state)) == recorded

    with monkeypatch.context() as context:
        kill_when(context, reached)
        with pytest.raises(Killed):
            make(tmp_path, "cut", **settings)
    assert not (tmp_path / "cut" / "lora-r4").exists()
    assert len(found[-1]["tensors"]) == len(found[-1]["optimizer"]["state"]) == 10  # nothing of the frozen encoder
    made = Made()
    assert values(make(tmp_path, "cut", made, **settings)) == whole
    assert f"resuming after {steps} steps" in caplog.text
    # 2 items for each step, two evaluations of 12 after each epoch, and the last one of the test part
    assert len(made.read) == (12 - steps) * 2 + (2 - recorded) * 24 + 12
    assert not list((tmp_path / "work" / "cut").glob(f"*/{FILE}"))


def test_what_has_happened_before_an_interruption_is_told_again(tmp_path: Path) -> None:
    one = trial(**WITHIN)
    whole = list(fit([one]))
    state: dict[str, Any] = {}
    for event in fit([one]):
        if isinstance(event, Progress):
            state = event.state()
            if under_way(state)["steps"] == 9:
                torch.save(state, tmp_path / "state")
                break
    resumed = list(fit([one], torch.load(tmp_path / "state", weights_only=True)))
    for events in (whole, resumed):
        assert sum(event.units for event in events if isinstance(event, Progress)) == one.units == 12
        assert [event.entry["epoch"] for event in events if isinstance(event, Recorded)] == [1, 2]
        assert isinstance(events[-1], Finished)


def test_a_state_saved_by_plain_steps_goes_on_by_the_fused_ones_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(tmp_path, "whole", epochs=3).history()["train_loss"]
    with monkeypatch.context() as context:
        kill_when(context, lambda state: under_way(state)["steps"] == 4)
        with pytest.raises(Killed):
            make(tmp_path, "cut", epochs=3)
    step, used = torch.optim.AdamW.step, list[bool]()
    monkeypatch.setattr(adapter, "adam", lambda groups, device, fused: adam(groups, device, fused=not fused))
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["fused"]), step(self))[1]
    )
    resumed = make(tmp_path, "cut", epochs=3).history()["train_loss"]
    assert used == [True, True]
    assert resumed.to_list() == pytest.approx(whole.to_list(), rel=1e-4)


def test_accumulating_gives_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    whole, split = make(tmp_path, "a"), make(tmp_path, "b", accumulate=4)
    torch.testing.assert_close(logits_of(split), logits_of(whole), atol=1e-3, rtol=1e-3)
    assert split.result["run"]["micro_batch"] == 2
    assert whole.result["run"]["micro_batch"] == 6
    assert split.history()["train_loss"].to_list() == pytest.approx(whole.history()["train_loss"].to_list(), rel=1e-3)
    assert split.result["run"]["key"] != whole.result["run"]["key"]  # rounding differs, and so may a prediction


def test_recomputing_activations_changes_nothing(tmp_path: Path) -> None:
    whole, recomputed = (make(tmp_path, name, gradient_checkpointing=name == "b") for name in "ab")
    torch.testing.assert_close(logits_of(recomputed), logits_of(whole), atol=1e-5, rtol=1e-5)
    assert recomputed.result["run"]["key"] == whole.result["run"]["key"]


def test_encoder_that_needs_equal_lengths_gets_them(tmp_path: Path) -> None:
    def demand(encoder: Encoder) -> None:
        encoder.equal_length_batches = True

    made = Made(demand)
    split, whole = make(tmp_path, "a", made), make(tmp_path, "b")
    assert all(len(set(lengths)) == 1 for lengths in made.last.met)
    assert {length for lengths in made.last.met for length in lengths} >= {4, 8, 12}
    torch.testing.assert_close(logits_of(split), logits_of(whole), atol=1e-3, rtol=1e-3)


def test_want_of_memory_halves_what_goes_through_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def narrow(encoder: Encoder) -> None:
        encoder.most = 2

    made = Made(narrow)
    fold, split = make(tmp_path, "a", made, batch_size=8), make(tmp_path, "b", batch_size=8, accumulate=4)
    assert fold.result["run"]["micro_batch"] == split.result["run"]["micro_batch"] == 2
    assert max(len(lengths) for lengths in made.last.met) == 2
    torch.testing.assert_close(logits_of(fold), logits_of(split), atol=1e-4, rtol=1e-4)
    assert "out of memory: from now on 2 items at once" in caplog.text
    searched = make(tmp_path, "c", Made(narrow), batch_size=8, **SEARCHED)  # the candidate has met it, not the result
    assert searched.result["run"]["micro_batch"] == 2


def test_a_resumed_training_knows_how_much_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(encoder: Encoder) -> None:
        encoder.most = 2

    with monkeypatch.context() as context:
        kill_when(context, lambda state: under_way(state)["steps"] == 1)
        with pytest.raises(Killed):
            make(tmp_path, "a", Made(narrow), batch_size=8)
    assert make(tmp_path, "a", batch_size=8).result["run"]["micro_batch"] == 2


def test_item_that_does_not_fit_alone_stops_with_advice(tmp_path: Path) -> None:
    def fill(encoder: Encoder) -> None:
        encoder.most = 0

    with pytest.raises(TrainingError, match=r"not even one item fits.*\n  use --set finetune.gradient_checkpointing"):
        make(tmp_path, "a", Made(fill))
    opened = Made(fill).source.take()
    model = build_finetune("lora-r4", opened.encoder, num_classes=2, seed=1)
    with pytest.raises(TrainingError, match=r"^one item does not fit in the device's memory\n"):
        predict(model, opened, np.arange(NUMBER))


def test_infinite_loss_stops_with_advice(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"(training|held-out) loss is (nan|inf) in epoch \d\n  lower finetune.lr"):
        make(tmp_path, method="linear-probe", lr=1e30, grad_clip_norm=None, schedule="constant")


def test_published_form_without_effect_is_recorded_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = Tiny.hidden
    monkeypatch.setattr(Tiny, "hidden", lambda self, inputs: hidden(self, inputs).detach())  # nothing gets through
    fold = make(tmp_path, method="lora-r4-published")
    assert fold.result["run"]["effect"]["with_gradient"] == 0
    assert "lora-r4-published: no gradient reaches 8 of the 8 tensors trained in the encoder" in caplog.text
    assert "random frozen score map (D4)" in caplog.text
    assert any(note.startswith("no gradient reaches") for note in fold.result["run"]["notes"])
    monkeypatch.setattr("daamctl.fit.trial.resolve_precision", lambda *_, **__: "float16")
    scaled = make(tmp_path, "c", method="lora-r4-published")  # there is nothing to unscale
    assert logits_of(scaled).tolist() == logits_of(fold).tolist()
    with pytest.raises(TrainingError, match="lora-r4 does not act on BertModel"):
        make(tmp_path, "b")


def test_finished_fold_is_kept_only_for_identical_inputs(tmp_path: Path) -> None:
    fold, made = make(tmp_path, epochs=1), Made()

    def kept(method: str = "lora-r4", source: EncoderSource = made.source, seed: int = 1, **settings: Any) -> bool:
        spec = FoldSpec("toy", method, 2, seed, config(**{"epochs": 1, **settings}))
        return kept_fold(fold.folder.parent, AdapterTrial(spec, source)) is not None

    assert kept()
    assert kept(device="auto", gradient_checkpointing=True, seeds=[7])
    assert kept(train={"epochs": 99, "lr": 0.5, "batch_size": 3, "device": "cpu", "seeds": [1, 2]})
    assert not kept(lr=0.02)
    assert not kept(train={"loss": "focal"})
    assert not kept(train={"selection": "last"})
    assert not kept("lora-r8")
    assert not kept(max_tokens=5)
    fewer = ClipTable("toy", CLASSES, table().rows[:-1], {}, "text")
    assert not kept(source=EncoderSource(fewer, made.open))
    other = Made()
    other.source._facts = {"weights_sha256": "01", "max_tokens": 4096}
    assert not kept(source=other.source)
    renamed = Made()
    renamed.source._facts = {"weights_sha256": "00", "max_tokens": 9999, "source": "a copy", "transformers": "6"}
    assert kept(source=renamed.source)


def test_every_fold_has_an_encoder_of_its_own_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened again if it is large; else copied from one that is opened once and never trained (D50)."""
    found = []
    for share in (0.0, 0.1):
        monkeypatch.setattr(adapter, "KEPT_SHARE", share)
        made = Made()
        for fold in (1, 2):
            one = trial(made, "full-finetune", fold=fold, epochs=1)
            result = train_fold(one, tmp_path / str(share) / "m", tmp_path / "work", root=tmp_path)
            assert result.result["run"]["num_parameters"] > 20_000
            found.append(values(result))
        assert len(made.opened) == (1 if share else 2)
    assert found[:2] == found[2:]
    fresh = Encoder(tiny("bert").model)
    for kept, value in zip(made.last.model.state_dict().values(), fresh.model.state_dict().values(), strict=True):
        assert torch.equal(kept, value)


@pytest.mark.parametrize("refit", [False, True])
def test_a_large_encoder_is_gone_before_the_next_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refit: bool
) -> None:
    """Also between the candidates of a search, and before the refit, however often the state is saved."""
    monkeypatch.setattr(adapter, "KEPT_SHARE", 0.0)
    save_always(monkeypatch)
    made = Made()
    for fold in (1, 2):
        one = trial(made, fold=fold, train={"refit": refit}, **SEARCHED)
        train_fold(one, tmp_path / "m", tmp_path / "work", root=tmp_path)
    assert made.alive == [0] * 6  # two candidates and the result, of two folds


def test_a_refit_that_collapsed_is_gone_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "KEPT_SHARE", 0.0)
    monkeypatch.setattr(loop, "collapsed", lambda refit, first: True)
    made = Made()
    assert make(tmp_path, "a", made, train={"refit": True}, **SEARCHED).result["metrics"]["replaced_refits"] == 1
    assert made.alive == [0] * 4


def test_an_open_encoder_is_not_sent_to_workers() -> None:
    made = Made()
    made.source.take()
    made.source.open = texts  # type: ignore[assignment]  # pickled with the source
    sent = pickle.loads(pickle.dumps(made.source))
    assert (sent._opened, sent._kept) == (None, None)
    assert made.source._kept is not None


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Deterministic kernels alone, as on a GPU."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_an_operation_that_cannot_repeat_is_noted_and_done_all_the_same(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Rough(Encoder):
        """Has an operation without a deterministic implementation, on a CPU too."""

        def hidden(self, inputs: Any) -> Tensor:
            if where == "training" or not torch.is_grad_enabled():
                torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
            return super().hidden(inputs)

    def rough(encoder: Encoder) -> None:
        encoder.__class__ = Rough

    expected = values(make(tmp_path, "plain"))
    torch.use_deterministic_algorithms(True)  # a training leaves it with warnings only
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch then says it at every step
        fold = make(tmp_path, "rough", Made(rough))
    assert values(fold) == expected
    note = "another run would differ by rounding: put_ has no deterministic implementation on cpu"
    assert [text for text in fold.result["run"]["notes"] if "rounding" in text] == [note]
    assert caplog.messages.count(note) == 1


@pytest.mark.usefixtures("deterministic")
def test_a_training_asks_a_gpu_for_kernels_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings alone leave the backward pass of attention as it is; other trainings keep them."""

    def strict() -> bool:
        return not torch.is_deterministic_algorithms_warn_only_enabled()

    torch.use_deterministic_algorithms(True, warn_only=True)
    one, zeros, scaler = trial(epochs=1), torch.zeros, torch.amp.grad_scaler.GradScaler
    monkeypatch.setattr(adapter, "seed_everything", lambda *_: None)
    monkeypatch.setattr(AdapterTrial, "device", "cuda")  # nothing is computed there
    monkeypatch.setattr(AdapterTrial, "precision", "float32")
    monkeypatch.setattr(adapter, "adam", lambda groups, device, fused: adam(groups, "cpu", fused=False))
    monkeypatch.setattr(torch.amp.grad_scaler, "GradScaler", lambda *_, enabled: scaler("cpu", enabled=False))
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, **more: zeros(*shape, **more))
    training = one.start([Member(one, 0, {}, final=True)])
    assert strict()
    state = training.state()
    training.finish()
    assert not strict()
    training = one.start([Member(one, 0, {}, final=True)])
    assert strict()
    training.trained[0].notes = ["met one that has none"]
    training.restore(state)
    assert not strict()
    first = Trained(notes=["met one that has none"])
    one.start([Member(one, 0, {}, ready=first, final=True)])
    assert not strict()


def test_moments_that_do_not_fit_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of a batch would not help, and a second try would meet half of them made."""

    def full(self: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", full)
    with pytest.raises(TrainingError, match=r"^the moments of the optimiser, .* do not fit in the device's memory\n"):
        make(tmp_path)


def test_targets_are_sent_to_a_gpu_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    one = trial(epochs=1)
    training = one.start([Member(one, 0, {})])
    assert isinstance(training, AdapterFit)
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: (sent.append(("pinned",)), self)[1])
    monkeypatch.setattr(Tensor, "to", lambda self, device, non_blocking: (sent.append((device, non_blocking)), self)[1])
    training.device = "cuda"
    assert training._targets(np.array([3, 4])).tolist() == [1, 0]
    assert sent == [("pinned",), ("cuda", True)]


def test_a_training_that_is_refitted_does_not_score_the_test_part(tmp_path: Path) -> None:
    """The refit does: an evaluation in float32 takes as long as half an epoch."""
    made = Made()
    fold = make(tmp_path, "refit", made, train={"refit": True}, epochs=2)
    # 2 epochs of 12 items, each with 12 of the held-out group; then the refit; each model is checked on a batch of 6
    assert len(made.read) == 6 + 2 * (12 + 12) + 6 + 2 * (24 + 12) + 12
    assert fold.history()["test_accuracy"].is_not_null().all()


@pytest.mark.parametrize("selection", ["best-on-test", "last"])
def test_other_selections(tmp_path: Path, selection: str) -> None:
    fold = make(tmp_path, train={"selection": selection, "steps": None}, schedule="constant")
    metrics = fold.result["metrics"]
    assert fold.result["run"]["dev_group"] is None
    assert metrics["dev_accuracy"] is None
    assert fold.result["meta"]["num_train_clips"] == 24
    assert metrics["selected_epoch"] == 3 or selection == "best-on-test"
    best = metrics["accuracy_best_on_test"] if selection == "best-on-test" else metrics["accuracy_last"]
    assert metrics["accuracy"] == best
    # Where the rate falls to 0, nothing is selected.
    falling = make(tmp_path, "falling", train={"selection": selection, "steps": None}).result["metrics"]
    assert (falling["selected_epoch"], falling["accuracy"]) == (None, falling["accuracy_last"])


def test_rates_rise_over_a_tenth_of_the_steps_and_fall_to_zero() -> None:
    found = [rate_factor("warm-up", step, 20) for step in range(20)]
    assert found == pytest.approx([0.5, *(1 - np.arange(19) / 19)])
    assert [rate_factor("constant", step, 20) for step in (0, 7, 19)] == [1, 1, 1]
    assert rate_factor("warm-up", 0, 1) == 1


def test_every_step_has_its_rate_and_the_first_of_an_epoch_stands_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, rates = torch.optim.AdamW.step, list[float]()
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    assert make(tmp_path).history()["lr"].to_list() == pytest.approx([0.01 * f for f in (1, 4 / 6, 2 / 6)])
    assert rates == pytest.approx([0.01 * factor / 6 for factor in (6, 5, 4, 3, 2, 1)])


def test_evaluation_can_use_the_precision_of_training(tmp_path: Path) -> None:
    exact = make(tmp_path, "a", precision="bfloat16")
    same = make(tmp_path, "b", precision="bfloat16", eval_precision="same")
    assert same.history()["train_loss"][0] == exact.history()["train_loss"][0]
    assert not torch.equal(logits_of(same), logits_of(exact))
    torch.testing.assert_close(logits_of(same), logits_of(exact), atol=0.2, rtol=0.1)
    assert same.result["meta"]["evaluation_precision"] == "bfloat16"
    path = same.folder / "weights.safetensors"
    assert read_metadata(path).precision == "bfloat16"
    opened = Made().source.take()
    model = load_weights(path, encoder=opened)
    assert isinstance(model, FineTuned)
    rows = np.array([int(name[1:3]) for name in same.predictions()["clip_id"]])
    assert torch.equal(predict(model, opened, rows, precision="bfloat16"), logits_of(same))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(predict(model, opened, rows), logits_of(same))
    plain = make(tmp_path, "c", precision="float32", eval_precision="same", epochs=1)
    assert plain.result["meta"]["evaluation_precision"] == "float32"
    assert torch.equal(logits_of(plain), logits_of(make(tmp_path, "d", precision="float32", epochs=1)))


def test_only_another_precision_of_evaluation_changes_the_key() -> None:
    assert "eval_precision" not in key_settings(config(), "finetune")  # as in older folds
    assert trial(eval_precision="same").key != trial().key


def test_mixed_precision_is_used_in_training_only(tmp_path: Path) -> None:
    exact, mixed = make(tmp_path, "a"), make(tmp_path, "b", precision="bfloat16")
    assert mixed.result["meta"]["precision"] == "bfloat16"
    assert mixed.history()["train_loss"].to_list() != exact.history()["train_loss"].to_list()
    assert mixed.history()["train_loss"].to_list() == pytest.approx(exact.history()["train_loss"].to_list(), rel=0.2)
    opened = Made().source.take()
    model = build_finetune("lora-r4", opened.encoder, num_classes=2, seed=1)
    model.load_trainable(load_file(mixed.folder / "weights.safetensors"))
    rows = np.array([int(name[1:3]) for name in mixed.predictions()["clip_id"]])
    assert torch.equal(predict(model, opened, rows), logits_of(mixed))
    made = Made()
    held = replace(made.open(), facts={"weights_dtype": "bfloat16"})
    made.source.open = lambda: held
    assert make(tmp_path, "c", made, epochs=1).result["meta"]["evaluation_precision"] == "bfloat16"


@pytest.mark.parametrize("method", ["lora-r4", "lora-plus-r4-published"])
def test_scaled_gradients_are_clipped_unscaled(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watched(parameters: Any, most: float) -> Tensor:
        norms.append(float(clip(parameters, most)))
        return torch.tensor(norms[-1])

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watched)
    make(tmp_path, "a", method=method, epochs=1)
    exact = norms[0]
    monkeypatch.setattr("daamctl.fit.trial.resolve_precision", lambda *_, **__: "float16")
    fold = make(tmp_path, "b", method=method, epochs=1)
    assert fold.result["meta"]["precision"] == "float16"
    assert norms[2] == pytest.approx(exact, rel=0.1)  # two steps each; unscaled, not 65536 times as large
    assert fold.history()["train_loss"].is_finite().all()


SEARCHED: dict[str, Any] = {"search": "grid", "search_lr": (1e-4, 1e-2), "epochs": 2}


def test_the_chosen_candidate_is_what_it_would_be_alone(tmp_path: Path) -> None:
    found = make(tmp_path, "searched", **SEARCHED)
    search = found.result["search"]
    assert [part["settings"] for part in search["candidates"]] == [{"lr": 1e-4}, {"lr": 1e-2}]
    assert [len(part["dev_accuracy"]) for part in search["candidates"]] == [2, 2]
    assert (search["steps"], search["edges"]) == (4, [])
    losses = [part["dev_loss"][-1] for part in search["candidates"]]
    assert losses[search["chosen"]] == min(losses)
    lr = search["candidates"][search["chosen"]]["settings"]["lr"]
    alone = make(tmp_path, "alone", epochs=2, lr=lr)
    assert values(found) == values(alone)
    assert "search" not in alone.result
    assert found.history()["dev_loss"].to_list() == search["candidates"][search["chosen"]]["dev_loss"]
    assert found.result["run"]["effect"] == alone.result["run"]["effect"]


def test_the_better_rate_is_chosen_and_an_edge_is_told(tmp_path: Path) -> None:
    """Rates at which nothing is learned lose against one that is ten thousand times as large."""
    search = make(tmp_path, **{**SEARCHED, "search_lr": (1e-7, 1e-6, 1e-2)}).result["search"]
    assert (search["chosen"], search["edges"]) == (2, ["lr"])


def test_a_candidate_is_judged_by_the_epoch_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constant = iter([False, True, True, False])  # whether one class is the answer to all items, two epochs of each rate
    monkeypatch.setattr(adapter, "is_one_class", lambda _: next(constant))
    monkeypatch.setattr(adapter, "improves", lambda _, selected, __: selected is None)  # the first epoch is kept
    assert make(tmp_path, **SEARCHED, schedule="constant").result["search"]["chosen"] == 0


def test_the_refit_repeats_the_chosen_candidate_on_more_items(tmp_path: Path) -> None:
    before, after = (make(tmp_path, str(refit), train={"refit": refit}, **SEARCHED) for refit in (False, True))
    assert after.result["search"] == before.result["search"]
    assert after.result["run"]["dev_group"] == "g3"
    first, again = before.history(), after.history()
    assert again["step"].to_list() == [4, 8]  # 24 items instead of 12
    for name in ("dev_accuracy", "dev_loss"):
        assert again[name].equals(first[name])
    assert not again["train_loss"].equals(first["train_loss"])
    chosen = before.result["search"]["candidates"][before.result["search"]["chosen"]]["settings"]["lr"]
    joined = make(tmp_path, "joined", epochs=2, lr=chosen, train={"selection": "last"})  # on the same 24 items
    assert values(joined)["weights"] == values(after)["weights"]
    assert values(joined)["logits"] == values(after)["logits"]


def test_nothing_of_the_search_sees_the_test_group(tmp_path: Path) -> None:
    """With the test labels permuted, the same rates are tried and chosen, and the same weights come out."""
    other = Made()
    rows = np.flatnonzero(other.source.table.rows["group"].to_numpy() == "g2")
    opened = other.source.open

    def permuted() -> EncoderAndItems:
        found = opened()
        found.items.targets[rows] = found.items.targets[rows].flip(0)
        return found

    other.source.open = permuted
    true, wrong = make(tmp_path, "true", **SEARCHED), make(tmp_path, "wrong", other, **SEARCHED)
    assert true.result["run"]["test_group"] == "g2"
    assert true.result["search"] == wrong.result["search"]
    assert values(true)["weights"] == values(wrong)["weights"]
    assert true.history()["dev_loss"].equals(wrong.history()["dev_loss"])
    assert not true.history()["test_accuracy"].equals(wrong.history()["test_accuracy"])


@pytest.mark.parametrize("refit", [False, True])
def test_an_interrupted_search_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refit: bool
) -> None:
    settings: dict[str, Any] = {"train": {"refit": refit}, **SEARCHED}
    whole = make(tmp_path, "whole", **settings)
    chosen, key = whole.result["search"]["chosen"], whole.result["run"]["key"]
    steps = {f"{key} 1": 3}  # in the second candidate, and in the refit
    if refit:
        steps[f"{key} {chosen} refit"] = 5
    for name, number in steps.items():

        def reached(state: dict[str, Any], name: str = name, number: int = number) -> bool:
            return state["under way"]["names"] == [name] and under_way(state)["steps"] == number

        with monkeypatch.context() as context:
            kill_when(context, reached)
            with pytest.raises(Killed):
                make(tmp_path, "cut", **settings)
    made = Made()
    resumed = make(tmp_path, "cut", made, **settings)
    assert values(resumed) == values(whole)
    assert resumed.result["search"] == whole.result["search"]
    assert resumed.result["run"]["effect"] == whole.result["run"]["effect"]
    # three steps of the refit and an evaluation; or a step of the candidate, and an evaluation of both parts
    assert len(made.read) == (3 * 6 + 12 if refit else 6 + 24) + 12
    assert not list((tmp_path / "work" / "cut").glob("**/state.pt"))


def test_steps_of_a_search_and_of_the_refit_are_counted(tmp_path: Path) -> None:
    one = trial(train={"refit": True}, **SEARCHED)
    done = sum(event.units for event in fit([one]) if isinstance(event, Progress))
    assert done == one.units == 2 * 4 + 8


def test_a_rate_that_diverges_is_only_not_chosen(tmp_path: Path) -> None:
    wild = {**SEARCHED, "search_lr": (1e-2, 1e30), "grad_clip_norm": None, "schedule": "constant"}
    search = make(tmp_path, method="linear-probe", **wild).result["search"]
    assert search["chosen"] == 0
    assert [len(part["dev_loss"]) for part in search["candidates"]] == [2, 0]


def test_published_forms_and_other_selections_are_not_searched(tmp_path: Path) -> None:
    fold = make(tmp_path, method="lora-r4-published", **{**SEARCHED, "epochs": 1})
    assert "search" not in fold.result
    assert fold.history()["lr"][0] == 0.01  # as given
    assert trial(train={"selection": "last"}, **SEARCHED).candidates == [{}]
    assert trial(**SEARCHED).candidates == [{"lr": 1e-4}, {"lr": 1e-2}]


@pytest.mark.parametrize(("number", "size"), [(1, 8), (7, 8), (300, 8), (1000, 3)])
def test_every_item_once_and_full_batches(number: int, size: int) -> None:
    batches = shuffled_batches(np.random.default_rng(0).integers(1, 99, number), size, seed=3)
    assert sorted(np.concatenate(batches)) == list(range(number))
    assert len(batches) == -(-number // size)
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)


def test_order_depends_on_the_seed_alone() -> None:
    sizes = np.random.default_rng(0).integers(1, 99, 200)
    first, again, other = (shuffled_batches(sizes, 8, seed) for seed in (1, 1, 2))
    assert [list(batch) for batch in first] == [list(batch) for batch in again]
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}


def test_neighbours_in_length_share_a_batch_and_batches_are_in_no_order() -> None:
    sizes = np.random.default_rng(0).permutation(BLOCK_BATCHES * 8)
    batches = shuffled_batches(sizes, 8, seed=1)
    assert all(np.ptp(sizes[batch]) == 7 for batch in batches)  # one block: sorted through
    longest = [int(sizes[batch].max()) for batch in batches]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_equal_sizes_are_shuffled_freely() -> None:
    batches = shuffled_batches(np.ones(400, np.int64), 8, seed=1)
    assert not any(np.ptp(batch) == 7 for batch in batches)


def test_pieces() -> None:
    items = [torch.zeros(size) for size in (5, 3, 5, 5, 3)]
    assert pieces(items, 2, equal_length=False) == [[0, 1], [2, 3], [4]]
    assert pieces(items, 2, equal_length=True) == [[0, 2], [3], [1, 4]]


def test_items_are_read_in_order_and_errors_come_through() -> None:
    def read(row: int) -> Tensor:
        if row == 9:
            raise ValueError("row 9")
        return torch.tensor(row)

    batches = [np.array([3, 1]), np.array([2]), np.array([7, 0]), np.array([4])]
    found = [(rows.tolist(), [int(item) for item in items]) for rows, items in read_ahead(batches, read, "cpu")]
    assert found == [([3, 1], [3, 1]), ([2], [2]), ([7, 0], [7, 0]), ([4], [4])]
    with pytest.raises(ValueError, match="row 9"):
        list(read_ahead([*batches, np.array([9])], read, "cuda"))
