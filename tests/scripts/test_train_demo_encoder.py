"""The script that trains the demo's encoder; it takes half an hour, so this is a training of one step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from transformers import AutoFeatureExtractor, WavLMModel

from tests.fixtures.projects import REPOSITORY


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("script", REPOSITORY / "scripts" / "train_demo_encoder.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_writes_a_model_that_opens(tmp_path: Path) -> None:
    state = np.random.get_state()  # transformers draws masks from it
    try:
        script().main(tmp_path, steps=1, batch=2, seconds=0.5, utterances=2, lr=1e-3, seed=0)
    finally:
        np.random.set_state(state)
    model, loading = WavLMModel.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.config.num_hidden_layers == 12
    assert AutoFeatureExtractor.from_pretrained(tmp_path).do_normalize is False
    with torch.no_grad():
        assert torch.isfinite(model(torch.zeros(1, 8000)).last_hidden_state).all()


def test_every_frame_has_a_vowel_and_a_sound() -> None:
    data = script().corpus(3, 8000, np.random.default_rng(0))
    assert data.speech.shape == (3, 8000)
    assert data.vowels.shape == (3, 24)  # (8000 - 400) // 320 + 1
    assert data.sound.shape == (3, 24, 2)
    assert torch.isfinite(data.sound).all()
    assert data.vowels.unique().numel() > 1
