"""Fine-tuning on the words of sentences: a sentence is one item, and each of its words counts the same."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from daamctl.adapters import build_finetune
from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.results import Fold
from daamctl.config import Config, ExtractConfig
from daamctl.data.spans import word_id
from daamctl.encoders.tokens import TokenEncoder
from daamctl.extraction.batching import plan_batches
from daamctl.extraction.items import TokenItems
from daamctl.fit.adapter import AdapterTrial, EncoderAndItems, EncoderSource, ItemSet, predict
from daamctl.fit.runner import train_fold
from daamctl.fit.trial import FoldSpec
from tests.encoders.test_text import marked_tokenizer, model_of
from tests.fixtures.resume import Killed, kill_when, under_way

CLASSES = ("O", "B-name", "I-name")
NUMBER = 30


def table() -> ClipTable:
    """Sentences of 2 to 6 words; those of capital letters are names."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUMBER):
        inside = False
        for position in range(rng.integers(2, 7)):
            name = bool(rng.random() < 0.5)
            label = CLASSES[0] if not name else CLASSES[2 if inside else 1]
            inside = name
            sentence = f"s{number:02d}"
            rows.append(
                {
                    "clip_id": f"{word_id(sentence, position)}#000",
                    "utterance_id": word_id(sentence, position),
                    "sentence": sentence,
                    "position": position,
                    "text": "".join(rng.choice(list("ABC" if name else "xyz"), rng.integers(1, 4))),
                    "label": label,
                    "speaker": sentence,
                    "group": ("train", "dev", "test")[number % 3],
                }
            )
    return ClipTable("toy", CLASSES, pl.DataFrame(rows), {}, "tokens")


def opened(clips: ClipTable) -> EncoderAndItems:
    options = ExtractConfig(max_tokens=60)
    model = deepcopy(model_of("bert")).requires_grad_(False)
    encoder = TokenEncoder("bert", model, marked_tokenizer(), device="cpu", precision="float32", options=options)
    items = TokenItems(clips.rows, clips.rows, encoder, 60, 80)
    targets = torch.tensor([CLASSES.index(label) for label in clips.rows["label"]])
    plan = partial(plan_batches, budget=items.budget, equal_length=False)
    facts = {"source": "tiny bert", "weights_sha256": "00", "max_tokens": 60}
    return EncoderAndItems(encoder, facts, ItemSet(targets, items.sizes, items.read, plan, items.members))


def trial(train: dict[str, Any] | None = None, **settings: Any) -> AdapterTrial:
    quick = {"epochs": 2, "lr": 0.01, "batch_size": 4, "device": "cpu", "search": "none", **settings}
    config = Config.model_validate({"finetune": quick, "train": {"refit": False, **(train or {})}})
    clips = table()
    return AdapterTrial(FoldSpec("toy", "lora-r4", 1, 1, config), EncoderSource(clips, partial(opened, clips)))


def make(root: Path, name: str, train: dict[str, Any] | None = None, **settings: Any) -> Fold:
    return train_fold(trial(train, **settings), root / name / "lora-r4", root / "work" / name, root=root)


def test_at_a_constant_rate_the_epoch_is_that_of_the_best_entity_f1(tmp_path: Path) -> None:
    fold = make(tmp_path, "a", {"refit": True}, epochs=8, schedule="constant")
    metrics, history = fold.result["metrics"], fold.history()
    assert history["dev_f1"].max() > 0.6
    assert metrics["dev_entity_f1"] == history["dev_f1"].max()
    assert metrics["entity_f1"] == history["test_f1"][int(metrics["selected_epoch"] or 0) - 1]
    words = table().rows.filter(pl.col("group") == "test")
    assert fold.predictions()["utterance_id"].to_list() == words["utterance_id"].to_list()


def test_a_refit_reports_its_own_f1_and_that_of_the_held_out_part_before(tmp_path: Path) -> None:
    alone, again = (make(tmp_path, str(refit), {"refit": refit}, epochs=8) for refit in (False, True))
    metrics, history = again.result["metrics"], again.history()
    assert metrics["selected_epoch"] is None
    assert history["dev_f1"].equals(alone.history()["dev_f1"])
    assert metrics["dev_entity_f1"] == history["dev_f1"][-1] > 0.6
    assert metrics["entity_f1"] == history["test_f1"][-1]
    assert not history["train_loss"].equals(alone.history()["train_loss"])


def test_a_few_shot_trial_is_another_one(tmp_path: Path) -> None:
    few = make(tmp_path, "few", {"shots": 4}, epochs=1)
    assert few.is_few_shot
    assert few.result["run"]["dev_group"] == "1 of 4 sentences"
    assert len({trial(train).key for train in ({}, {"shots": 4}, {"shots": 5}, {"test_part": "dev"})}) == 4


def test_every_word_has_the_same_weight_however_a_batch_is_cut(tmp_path: Path) -> None:
    whole, cut = (make(tmp_path, str(pieces), accumulate=pieces, epochs=1).history() for pieces in (1, 4))
    assert 0.5 < whole["train_loss"][0] < 2  # the mean over words, not over sentences
    for name in ("train_loss", "dev_loss", "dev_f1", "test_f1"):
        assert cut[name][0] == pytest.approx(whole[name][0], rel=1e-4)


def test_logits_are_those_of_each_sentence_by_itself_in_the_order_asked_for() -> None:
    clips = table()
    ready = opened(clips)
    model = build_finetune("linear-probe", ready.encoder, num_classes=3, seed=0)
    rows = np.random.default_rng(1).permutation(len(clips.rows))
    found = predict(model, ready, rows)
    assert ready.items.members is not None
    for item, members in enumerate(ready.items.members):
        alone = model(*ready.encoder.collate([ready.items.read(item)]))
        at = [int(np.flatnonzero(rows == row)[0]) for row in members]
        torch.testing.assert_close(found[at], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [2, 3, 4], ids=["in the first pass", "after it", "in the second"])
def test_an_interrupted_training_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A pass has three steps."""
    expected = make(tmp_path, "whole")
    with monkeypatch.context() as context:
        kill_when(context, lambda state: under_way(state)["steps"] == steps)
        with pytest.raises(Killed):
            make(tmp_path, "killed")
    found = make(tmp_path, "killed")
    assert found.predictions().equals(expected.predictions())
    assert found.result["metrics"] == expected.result["metrics"]


def test_the_steps_of_sentences_are_counted() -> None:
    one = trial({"refit": True})
    assert one.units_of_training == 2 * 3  # 10 sentences, 4 at a time, in each of 2 passes
    assert one.units == 2 * 3 + 2 * 5  # the refit has 20
