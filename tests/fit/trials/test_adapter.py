"""Fine-tuning: repeatable, resumable, the same whatever goes through the encoder at once, a fresh encoder per fold."""

from __future__ import annotations

import json
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

from daamctl.adapters import FINETUNES, Effect, FineTuned, build_finetune
from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings
from daamctl.errors import MethodError, TrainingError
from daamctl.extraction.batching import plan_batches
from daamctl.methods import WeightsMetadata, load_weights, read_metadata
from daamctl.progress import Progress
from daamctl.fit import adapter_training, loop
from daamctl.fit.adapter_training import AdapterTraining, ItemSet, Opened, predict, rate_factor
from daamctl.fit.checkpoint import save_state
from daamctl.fit.runner import kept_fold, train_fold
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials import adapter
from daamctl.fit.trials.adapter import AdapterTrial, EncoderSource
from tests.fixtures.projects import REPOSITORY
from tests.fixtures.resume import Killed, evaluated, kill_when, save_always
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
        self.read = list[int]()
        self.change, self.items = change, texts()
        self.source = EncoderSource(table(), self.open)

    def open(self) -> Opened:
        encoder = Encoder(tiny("bert").model)
        self.change(encoder)
        self.opened.append(weakref.ref(encoder))
        self.last = encoder
        sizes = np.array([len(ids) for ids in self.items])
        plan = partial(plan_batches, budget=60, equal_length=encoder.equal_length_batches)
        targets = torch.tensor([number % 2 for number in range(NUMBER)])
        items = ItemSet(targets, sizes, self.item, plan)
        return Opened(encoder, {"source": "tiny bert", "weights_sha256": "00", "max_tokens": 4096}, items)

    def item(self, row: int) -> Tensor:
        self.read.append(row)
        return self.items[row]


def config(train: dict[str, Any] | None = None, **settings: Any) -> Config:
    quick = {"epochs": 3, "lr": 0.01, "batch_size": 6, "device": "cpu", "search": "none", "patience": None, **settings}
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
    assert run["config"]["finetune"]["epochs"] == len(fold.history()) == metrics["epochs"] == 8
    history, predictions = fold.history(), fold.predictions()
    scores = list(zip(history["dev_accuracy"], -history["dev_loss"], strict=True))
    assert metrics["selected_epoch"] == scores.index(max(scores)) + 1
    assert metrics["accuracy"] == history["test_accuracy"][metrics["selected_epoch"] - 1]
    assert set(predictions["group"]) == {"g2"}
    assert (predictions["logits"].list.arg_max() == predictions["target"]).mean() == metrics["accuracy"]
    assert metrics["accuracy_last"] > 0.8  # chance is 0.5
    assert history["train_loss"][-1] < 0.8 * history["train_loss"][0]


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
    assert torch.equal(predict(model, opened.encoder, opened.items, rows), logits_of(fold))
    alone = torch.cat([predict(model, opened.encoder, opened.items, rows[[i]]) for i in range(len(rows))])
    torch.testing.assert_close(alone, logits_of(fold), atol=1e-5, rtol=1e-4)  # neighbours in a batch do not matter


@pytest.mark.parametrize("method", FINETUNES)
def test_every_way_is_loaded_again(tmp_path: Path, method: str) -> None:
    fold = make(tmp_path, method=method, epochs=2)
    path = fold.folder / "weights.safetensors"
    shown = read_metadata(path)
    published = method.endswith("-published")
    assert (shown.kind, shown.method, shown.inputs["max_tokens"]) == ("adapter", method, 128 if published else 512)
    opened = Made().source.take()
    model = load_weights(path, encoder=opened)
    assert isinstance(model, FineTuned)
    rows = np.array([int(name[1:3]) for name in fold.predictions()["clip_id"]])
    found = predict(model, opened.encoder, opened.items, rows)
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


@pytest.mark.parametrize("dropout", [False, True])
def test_same_seed_same_numbers_other_seed_other_numbers(tmp_path: Path, dropout: bool) -> None:
    first, second = (values(make(tmp_path, name, encoder_dropout=dropout)) for name in "ab")
    assert first == second
    assert values(make(tmp_path, "c", seed=2, encoder_dropout=dropout))["logits"] != first["logits"]


def test_dropout_of_the_encoder_is_a_switch(tmp_path: Path) -> None:
    plain, dropped = make(tmp_path, "a"), make(tmp_path, "b", encoder_dropout=True)
    assert plain.history()["train_loss"][0] != dropped.history()["train_loss"][0]


def test_interrupted_training_resumes_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_always(monkeypatch)
    whole = values(make(tmp_path, "whole", epochs=5, encoder_dropout=True))

    def die(entry: dict[str, Any]) -> None:
        if entry["epoch"] == 4:
            raise Killed

    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    with pytest.raises(Killed):
        train_fold(trial(epochs=5, encoder_dropout=True), *where, root=tmp_path, on_epoch=die)
    assert not where[0].exists()
    state = torch.load(next(where[1].glob("*/resume.pt")), weights_only=True)
    assert len(state["trained"]) == 10  # nothing of the frozen encoder
    epochs: list[Any] = []
    again = trial(epochs=5, encoder_dropout=True)
    resumed = train_fold(again, *where, root=tmp_path, on_epoch=lambda entry: epochs.append(entry["epoch"]))
    assert epochs == [1, 2, 3, 4, 5]
    assert values(resumed) == whole
    assert list(where[1].glob("*/resume.pt")) == []


WITHIN: dict[str, Any] = {"epochs": 2, "batch_size": 2, "accumulate": 2, "encoder_dropout": True}
"""Six steps in each of two epochs."""


class Counter(Progress):
    """Counts items, and does something when there are so many."""

    def __init__(self, most: int = 10**9, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(2 * 36, "tuning", "items")
        self.most, self.act = most, act

    def advance(self, units: int = 1) -> None:
        super().advance(units)
        if self.done >= self.most:
            self.act()


def stop() -> None:
    raise Killed


def cut(root: Path, act: Callable[[], None]) -> None:
    """Die in the second epoch, after four of its six steps; three are saved."""
    loop.CHECKPOINT_EVERY_S, loop.SAVING_FRACTION = 0.0, float("inf")
    bar = Counter(12 + 24 + 8, act)
    train_fold(trial(**WITHIN), root / "cut" / "lora-r4", root / "work" / "cut", root=root, advance=bar.advance)


@pytest.mark.parametrize("killed", ["by an exception", pytest.param("by the system", marks=pytest.mark.slow)])
def test_training_interrupted_within_an_epoch_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole = values(make(tmp_path, "whole", **WITHIN))
    if killed == "by an exception":
        for name in ("CHECKPOINT_EVERY_S", "SAVING_FRACTION"):
            monkeypatch.setattr(loop, name, 0.0)  # `cut` changes them, monkeypatch sets them back
        with pytest.raises(Killed):
            cut(tmp_path, stop)
    else:
        here = "import os, pathlib, sys; from tests.fit.trials.test_adapter import cut"
        death = "cut(pathlib.Path(sys.argv[1]), lambda: os.kill(os.getpid(), 9))"
        done = subprocess.run([sys.executable, "-c", f"{here}; {death}", str(tmp_path)], cwd=REPOSITORY, check=False)
        assert done.returncode == -signal.SIGKILL
    state = torch.load(next((tmp_path / "work" / "cut").glob("*/resume.pt")), weights_only=True)
    assert (len(state["history"]), state["pass"]["steps"]) == (1, 3)
    assert len(state["trained"]) == len(state["optimizer"]["state"]) == 10  # nothing of the frozen encoder
    made, bar = Made(), Counter()
    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    resumed = train_fold(trial(made, **WITHIN), *where, root=tmp_path, advance=bar.advance)
    assert values(resumed) == whole
    assert "resuming after epoch 1 of 2 and 3 of 6 steps" in caplog.text
    assert bar.done == 2 * 36  # as many as without the interruption
    # 2 items to check the effect, 3 steps of 2, two evaluations of 12, and the last one of the test part
    assert len(made.read) == 2 + 3 * 2 + 24 + 12


def test_a_state_saved_by_plain_steps_goes_on_by_the_fused_ones_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_always(monkeypatch)
    whole = make(tmp_path, "whole", epochs=3).history()["train_loss"]

    def die(entry: dict[str, Any]) -> None:
        if entry["epoch"] == 2:
            raise Killed

    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    with pytest.raises(Killed):
        train_fold(trial(epochs=3), *where, root=tmp_path, on_epoch=die)
    build, step, used = adapter_training.build_optimizer, torch.optim.AdamW.step, list[bool]()
    monkeypatch.setattr(adapter_training, "build_optimizer", lambda groups, fused: build(groups, fused=not fused))
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["fused"]), step(self))[1]
    )
    resumed = train_fold(trial(epochs=3), *where, root=tmp_path).history()["train_loss"]
    assert set(used) == {True}
    assert resumed.to_list() == pytest.approx(whole.to_list(), rel=1e-4)


def test_resume_file_of_the_former_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written after epochs alone, and said nothing of passes."""
    save_always(monkeypatch)
    whole = values(make(tmp_path, "whole", **WITHIN))
    kept: dict[str, Any] = {}

    def keep(work: Path, key: str, state: dict[str, Any]) -> None:
        if "pass" not in state and len(state["history"]) == 1:
            state.pop("threads")
            state.pop("joules")
            save_state(work, key, state)
            kept.update(state)
            raise Killed

    monkeypatch.setattr(loop, "save_state", keep)
    with pytest.raises(Killed):
        make(tmp_path, "cut", **WITHIN)
    former = {"optimizer", "scaler", "trained", "most", "best", "history", "train_s", "selected_epoch"}
    assert kept.keys() == former
    monkeypatch.setattr(loop, "save_state", save_state)
    assert values(make(tmp_path, "cut", **WITHIN)) == whole


def test_state_of_half_a_pass_is_not_needed_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the evaluation of the only epoch: what is left is the evaluation."""
    save_always(monkeypatch)
    settings: dict[str, Any] = {**WITHIN, "epochs": 1}
    whole = values(make(tmp_path, "whole", **settings))
    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    with pytest.raises(Killed):
        train_fold(trial(**settings), *where, root=tmp_path, advance=Counter(12 + 6, stop).advance)

    def step(*_: Any) -> None:
        raise AssertionError("there is nothing left to train on")

    monkeypatch.setattr(AdapterTraining, "step", step)
    assert values(train_fold(trial(**settings), *where, root=tmp_path)) == whole


@pytest.mark.parametrize("name", ["dev", "test", "final"])
def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = values(make(tmp_path, "whole", **WITHIN))
    kill_when(monkeypatch, lambda state: evaluated(state, name) == 1)
    with pytest.raises(Killed):
        make(tmp_path, "cut", **WITHIN)
    save_always(monkeypatch)
    made, bar = Made(), Counter()
    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    resumed = train_fold(trial(made, **WITHIN), *where, root=tmp_path, advance=bar.advance)
    assert values(resumed) == whole
    assert bar.done == 2 * 36
    assert 0 < len(made.read) < {"dev": 2 + 24 + 12 + 24, "test": 2 + 12 + 12 + 24, "final": 2 + 12}[name] + 12


def test_evaluated_batches_of_another_plan_are_not_taken(tmp_path: Path) -> None:
    fold, opened = make(tmp_path, epochs=1), Made().source.take()
    model, rows = load_weights(fold.folder / "weights.safetensors", encoder=opened), np.arange(5)
    assert isinstance(model, FineTuned)
    whole = predict(model, opened.encoder, opened.items, rows)
    found = [torch.zeros(len(rows) + 1, whole.shape[1])]
    assert torch.equal(predict(model, opened.encoder, opened.items, rows, found=found), whole)
    assert sum(map(len, found)) == len(rows)


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
    fold, split = make(tmp_path, "a", made), make(tmp_path, "b", accumulate=3)
    assert fold.result["run"]["micro_batch"] == 2
    assert max(len(lengths) for lengths in made.last.met) == 2
    torch.testing.assert_close(logits_of(fold), logits_of(split), atol=1e-4, rtol=1e-4)
    assert "out of memory; from now on 3 item(s) at once (raise finetune.accumulate)" in caplog.text
    assert "from now on 2 item(s) at once" in caplog.text
    assert "items in a test batch; trying halves" in caplog.text


def test_item_that_does_not_fit_alone_stops_with_advice(tmp_path: Path) -> None:
    def fill(encoder: Encoder) -> None:
        encoder.most = 0

    with pytest.raises(TrainingError, match=r"not even one item fits.*\n  use --set finetune.gradient_checkpointing"):
        make(tmp_path, "a", Made(fill))


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
    monkeypatch.setattr("daamctl.fit.run_precision.resolve_precision", lambda *_, **__: "float16")
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


def test_a_large_encoder_is_gone_before_the_next_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "KEPT_SHARE", 0.0)
    made = Made()
    for fold in (1, 2):
        train_fold(trial(made, fold=fold, epochs=1), tmp_path / "m", tmp_path / "work", root=tmp_path)
    assert made.opened[0]() is None


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
def test_a_training_asks_a_gpu_for_kernels_that_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings alone leave the backward pass of attention as it is; other trainings keep them."""

    def strict() -> bool:
        return not torch.is_deterministic_algorithms_warn_only_enabled()

    torch.use_deterministic_algorithms(True, warn_only=True)
    training = trial(epochs=1).starter(lambda _: None)(None, tmp_path, "k")
    assert isinstance(training, AdapterTraining)
    monkeypatch.setattr(adapter_training, "seed_everything", lambda *_: None)
    monkeypatch.setattr(adapter_training, "build_optimizer", lambda groups, fused: torch.optim.AdamW(groups))
    monkeypatch.setattr(torch.amp.grad_scaler, "GradScaler", lambda *_, enabled: None)
    monkeypatch.setattr(training, "_check_effect", lambda: Effect(0, 0, 0.0, ()))
    training.device = "cuda"  # nothing is computed
    training.prepare()
    assert strict()
    training.release()
    assert not strict()
    training.done.notes.append("met one that has none")
    training.prepare()
    assert not strict()


def test_moments_that_do_not_fit_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of a batch would not help, and a second try would meet half of them made."""

    def full(self: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", full)
    with pytest.raises(TrainingError, match=r"^the moments of the optimiser, .* do not fit in the device's memory\n"):
        make(tmp_path)


def test_targets_are_sent_to_a_gpu_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trial(epochs=1).starter(lambda _: None)(None, tmp_path, "k")
    assert isinstance(training, AdapterTraining)
    training.prepare()
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
    selected = int(fold.result["metrics"]["selected_epoch"] or 0)
    # 2 epochs of 12 items, each with 12 of the held-out group; then the refit; each model is checked on a batch of 6
    refit = selected * (24 + 12) + 12
    assert len(made.read) == 6 + 2 * (12 + 12) + 6 + refit
    assert fold.history()["test_accuracy"].is_not_null().all()


@pytest.mark.parametrize(("selection", "dev"), [("best-on-test", None), ("last", None)])
def test_other_selections(tmp_path: Path, selection: str, dev: str | None) -> None:
    fold = make(tmp_path, train={"selection": selection})
    metrics = fold.result["metrics"]
    assert fold.result["run"]["dev_group"] is dev
    assert metrics["dev_accuracy"] is None
    assert fold.result["meta"]["num_train_clips"] == 24
    assert metrics["selected_epoch"] == 3 or selection == "best-on-test"
    best = metrics["accuracy_best_on_test"] if selection == "best-on-test" else metrics["accuracy_last"]
    assert metrics["accuracy"] == best


def test_rates_rise_over_a_tenth_of_the_steps_and_fall_to_zero() -> None:
    found = [rate_factor(step, 20, "linear") for step in range(20)]
    assert found == pytest.approx([0.5, *(1 - np.arange(19) / 19)])
    assert [rate_factor(step, 20, "constant") for step in (0, 7, 19)] == [1, 1, 1]
    assert rate_factor(0, 1, "linear") == 1


def test_first_rate_of_each_epoch_stands_in_the_history(tmp_path: Path) -> None:
    assert make(tmp_path).history()["lr"].to_list() == pytest.approx([0.01 * f for f in (1, 4 / 6, 2 / 6)])


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
    assert torch.equal(predict(model, opened.encoder, opened.items, rows, precision="bfloat16"), logits_of(same))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(predict(model, opened.encoder, opened.items, rows), logits_of(same))
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
    assert torch.equal(predict(model, opened.encoder, opened.items, rows), logits_of(mixed))
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
    monkeypatch.setattr("daamctl.fit.run_precision.resolve_precision", lambda *_, **__: "float16")
    fold = make(tmp_path, "b", method=method, epochs=1)
    assert fold.result["meta"]["precision"] == "float16"
    assert norms[2] == pytest.approx(exact, rel=0.1)  # two steps each; unscaled, not 65536 times as large
    assert fold.history()["train_loss"].is_finite().all()


SEARCHED: dict[str, Any] = {
    "search": "halving", "search_lr": (1e-4, 1e-2), "search_epochs": 1, "search_widen": 0, "epochs": 2,
}  # fmt: skip


def test_the_chosen_candidate_is_what_it_would_be_alone(tmp_path: Path) -> None:
    found = make(tmp_path, "searched", **SEARCHED)
    search = found.result["search"]
    assert [part["settings"] for part in search["candidates"]] == [{"lr": 1e-4}, {"lr": 1e-2}]
    assert [len(part["dev_accuracy"]) for part in search["candidates"]] == [1, 1]
    assert (search["epochs"], search["edges"]) == (1, [])
    scores = [(part["dev_accuracy"][0], -part["dev_loss"][0]) for part in search["candidates"]]
    assert scores[search["chosen"]] == max(scores)
    lr = search["candidates"][search["chosen"]]["settings"]["lr"]
    alone = make(tmp_path, "alone", epochs=2, lr=lr)
    assert values(found) == values(alone)
    assert "search" not in alone.result
    assert found.history()["dev_loss"][0] == search["candidates"][search["chosen"]]["dev_loss"][0]
    assert found.history()["dev_loss"].is_finite().all()


def test_the_better_rate_is_chosen_and_an_edge_is_extended(tmp_path: Path) -> None:
    """A rate at which nothing is learned in one epoch loses against one a hundred times as large."""
    settings = {**SEARCHED, "search_lr": (1e-7, 1e-6, 1e-2), "search_widen": 1}
    search = make(tmp_path, **settings).result["search"]
    rates = [part["settings"]["lr"] for part in search["candidates"]]
    assert rates == [1e-7, 1e-6, 1e-2, 100.0]
    assert [part["added"] for part in search["candidates"]] == [False, False, False, True]
    assert rates[search["chosen"]] == 1e-2


def test_nothing_of_the_search_sees_the_test_group(tmp_path: Path) -> None:
    """With the test labels permuted, the same rates are tried and chosen, and the same weights come out."""
    other = Made()
    rows = np.flatnonzero(other.source.clips.rows["group"].to_numpy() == "g2")
    opened = other.source.open

    def permuted() -> Opened:
        found = opened()
        found.items.targets[rows] = found.items.targets[rows].flip(0)
        return found

    other.source.open = permuted
    true, wrong = make(tmp_path, "true", **SEARCHED), make(tmp_path, "wrong", other, **SEARCHED)
    assert true.result["run"]["test_group"] == "g2"
    assert true.result["search"] == wrong.result["search"]
    assert values(true)["weights"] == values(wrong)["weights"]
    assert true.history()["dev_loss"].equals(wrong.history()["dev_loss"])
    assert not true.predictions()["target"].equals(wrong.predictions()["target"])


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(tmp_path, "whole", **SEARCHED)
    save_always(monkeypatch)
    where = (tmp_path / "cut" / "lora-r4", tmp_path / "work" / "cut")
    for items in (36 + 6, 2 * 36 + 6):  # in the second candidate, and after the choice
        with pytest.raises(Killed):
            train_fold(trial(**SEARCHED), *where, root=tmp_path, advance=Counter(items, stop).advance)
    bar, epochs = Counter(), list[Any]()
    resumed = train_fold(
        trial(**SEARCHED),
        *where,
        root=tmp_path,
        advance=bar.advance,
        on_epoch=lambda entry: epochs.append(entry["epoch"]),
    )
    assert values(resumed) == values(whole)
    assert resumed.result["search"] == whole.result["search"]
    assert epochs == [1, 2]
    assert bar.done == 3 * 36  # every candidate for one epoch, the chosen one for another
    assert not list(where[1].glob("**/resume.pt"))


def test_items_of_a_search_are_counted_once(tmp_path: Path) -> None:
    bar, one = Counter(), trial(**SEARCHED)
    train_fold(one, tmp_path / "m", tmp_path / "work", root=tmp_path, advance=bar.advance)
    assert bar.done == one.units == 36 * 3


def test_a_rate_that_diverges_is_only_not_chosen(tmp_path: Path) -> None:
    wild = {**SEARCHED, "search_lr": (1e-2, 1e30), "grad_clip_norm": None, "schedule": "constant"}
    search = make(tmp_path, method="linear-probe", **wild).result["search"]
    assert search["chosen"] == 0
    assert search["candidates"][1]["dev_accuracy"] == []


def test_published_forms_and_other_selections_are_not_searched(tmp_path: Path) -> None:
    fold = make(tmp_path, method="lora-r4-published", **{**SEARCHED, "epochs": 1})
    assert "search" not in fold.result
    assert fold.history()["lr"][0] == 0.01  # as given
    assert trial(train={"selection": "last"}, **SEARCHED).grid is None
    assert trial(**SEARCHED).grid is not None


def test_patience_ends_fine_tuning_except_of_published_forms(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr": 1e-12, "epochs": 4, "patience": 1}  # nothing improves by the least gain
    fold = make(tmp_path, "a", **settings)
    assert fold.result["metrics"]["epochs"] == len(fold.history()) == 2
    assert len(make(tmp_path, "b", method="lora-r4-published", **settings).history()) == 4
