"""Train the encoder of the demo: WavLM's architecture, 12 layers x 64, on generated speech.

Repeat it (about 15 minutes on one CPU core):

    python scripts/train_demo_encoder.py --out daamctl/encoders/wavlm_demo

The speech comes from the demo corpus's synthesiser, but from other speakers than the corpus's ten. The labels are never
an emotion. Layer 4 learns the pitch and loudness of each frame, layer 8 the speaking style of the utterance (range of
pitch, rate, breath and so on, drawn independently), and the layers above a code of the frame's vowel. Spans of frames
are masked, so that context counts too. So the layers hold different things, as in encoders of real speech.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import WavLMConfig, WavLMModel

from daamctl.corpora.demo import SAMPLING_RATE, STYLES, VOWELS, EmotionStyle, speak, speaker_of
from daamctl.encoders import ENCODERS

FIRST_SESSION = 1000
"""Speakers of sessions from this one on are heard in training; those of the corpus are 1 to 5."""
REGULARISATION: dict[str, Any] = {
    "layerdrop": 0.0,
    "hidden_dropout": 0.05,
    "attention_dropout": 0.05,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "mask_time_prob": 0.3,
    "mask_time_length": 5,
    "mask_feature_prob": 0.0,
}
"""Dropout, and masked spans of frames."""
WINDOW, HOP = 400, 320
"""Of the convolutions, in samples."""
SOUND, STYLE = 4, 8
"""Layers that learn how a frame sounds, and how an utterance is spoken."""
NUM_SOUND = 2
"""Pitch and loudness."""
SPREAD = {"pitch_st": 1.5, "range_st": 1.0, "level_db": 2.5, "rate": 0.5, "tilt": 0.1, "breath": 0.04}
"""Properties of a style, and about their standard deviations."""
MIDDLE = {name: float(np.mean([getattr(style, name) for style in STYLES.values()])) for name in SPREAD}


class Corpus(NamedTuple):
    """Utterances of equal length: int16 (U, T), vowels (U, frames), sound (U, frames, 2), and style (U, 6)."""

    speech: torch.Tensor
    vowels: torch.Tensor
    sound: torch.Tensor
    style: torch.Tensor


def main(
    out: Annotated[Path, typer.Option(help="Folder for config.json and model.safetensors.")],
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 800,
    batch: Annotated[int, typer.Option(min=1, help="Utterances per step.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.5, help="Duration of an utterance.")] = 2.0,
    utterances: Annotated[int, typer.Option(min=1, help="Different utterances.")] = 2000,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of weights, speech and masks.")] = 0,
) -> None:
    """Train the encoder and write it in half precision."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # transformers draws masks with NumPy
    rng = np.random.default_rng(seed)
    data = corpus(utterances, round(seconds * SAMPLING_RATE), rng)
    model = WavLMModel(WavLMConfig(**ENCODERS["wavlm-demo"].shape, **REGULARISATION))
    codes = torch.randn(len(VOWELS), model.config.hidden_size)
    sounds = torch.nn.Linear(model.config.hidden_size, NUM_SOUND)
    styles = torch.nn.Linear(model.config.hidden_size, len(SPREAD))
    parameters = [*model.parameters(), *sounds.parameters(), *styles.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    model.train()
    start, right = time.monotonic(), 0.0
    for step in range(steps):
        chosen = torch.from_numpy(rng.integers(0, len(data.speech), batch))
        states = model(data.speech[chosen].float() / 32768.0, output_hidden_states=True).hidden_states
        normed = [F.layer_norm(state, state.shape[-1:]) for state in states]
        loss = F.mse_loss(sounds(normed[SOUND]), data.sound[chosen])
        wanted_style = data.style[chosen][:, None].expand(-1, normed[STYLE].shape[1], -1)
        loss = loss + 2.0 * F.mse_loss(styles(normed[STYLE]), wanted_style)
        wanted = codes[data.vowels[chosen]]
        for layer in range(STYLE + 1, len(normed)):
            share = (layer - STYLE) / (len(normed) - 1 - STYLE)
            loss = loss + share * F.mse_loss(normed[layer], wanted)
        frames = normed[-1] @ codes.T - codes.square().sum(1) / 2  # the nearest code has the highest value
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        right = 0.99 * right + 0.01 * (frames.argmax(-1) == data.vowels[chosen]).float().mean().item()
        if (step + 1) % 100 == 0:
            share = right / (1.0 - 0.99 ** (step + 1))
            typer.echo(f"step {step + 1}: loss {loss.item():.3f}, frames right {share:.1%}, "
                       f"{time.monotonic() - start:.0f} s", err=True)  # fmt: skip
    write(model, out)


def corpus(utterances: int, num_samples: int, rng: np.random.Generator) -> Corpus:
    """Generate speech of 400 speakers, each utterance in a style of its own."""
    voices = [speaker_of(FIRST_SESSION + number, letter, 0) for number in range(200) for letter in "FM"]
    starts = HOP * np.arange((num_samples - WINDOW) // HOP + 1)
    speech, vowels, sound, styles = [], [], [], []
    for number in range(utterances):
        drawn = style(rng)
        spoken = speak(voices[number % len(voices)], drawn, num_samples, rng)
        windows = np.lib.stride_tricks.sliding_window_view(spoken.samples / 32768.0, WINDOW)[starts]
        levels = np.log10(np.sqrt((windows**2).mean(axis=1)) + 1e-4)
        pitches = np.log2(spoken.pitch[starts + WINDOW // 2] / 150.0)
        speech.append(spoken.samples)
        vowels.append(spoken.vowels[starts + WINDOW // 2])
        sound.append(np.stack([2.0 * pitches, 2.0 * levels + 3.0], axis=1))
        styles.append([(getattr(drawn, name) - MIDDLE[name]) / spread for name, spread in SPREAD.items()])
    return Corpus(
        torch.from_numpy(np.stack(speech)),
        torch.from_numpy(np.stack(vowels)),
        torch.from_numpy(np.stack(sound)).float(),
        torch.tensor(styles),
    )


def style(rng: np.random.Generator) -> EmotionStyle:
    """A style between those of the corpus: each property lies anywhere between its extremes."""
    values = {}
    for field in fields(EmotionStyle):
        if field.name == "mood":
            continue
        among = [getattr(one, field.name) for one in STYLES.values()]
        values[field.name] = rng.uniform(min(among), max(among))
    return EmotionStyle(**values, mood=(3.0, 3.0, 3.0))


def write(model: WavLMModel, out: Path) -> None:
    """Write config.json and float16 weights, without what the training alone needs."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    settings = {"model_type": "wavlm", "architectures": ["WavLMModel"], **ENCODERS["wavlm-demo"].shape}
    write_settings(out / "config.json", settings)
    reader = {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "do_normalize": False,
        "sampling_rate": SAMPLING_RATE,
    }
    write_settings(out / "preprocessor_config.json", reader)


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write one of the model's JSON files."""
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
