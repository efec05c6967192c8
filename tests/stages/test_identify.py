"""What made given vectors: each layer, norm, pooling, way of reading and number format is found again."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetModel
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.config import ExtractConfig
from daamctl.encoders.load import open_encoder
from daamctl.encoders.text import BYTE_TOKENS, byte_tokenizer
from daamctl.errors import CorpusError
from daamctl.stages import identify

IDS = [f"u{number}" for number in range(6)]
WAVES = [0.3 + 0.1 * np.random.default_rng(number).standard_normal(9000 + 700 * number) for number in range(6)]
TEXTS = [f"{word} it is, said the {word}" for word in ("here", "a much longer story", "x", "why", "green tea", "two")]


@cache
def encoder_of(name: str, precision: str = "float32") -> Any:
    config = ExtractConfig.model_validate({"encoder": name, "weights_dtype": precision})
    modality: Any = "speech" if name.startswith("wavlm") else "text"
    return open_encoder(config, modality=modality, max_duration_s=5.0, device="cpu", precision=precision).encoder


@cache
def speech_states(precision: str = "float32", pad_s: float = 0.0, normalize: bool = False) -> list[Tensor]:
    """Hidden states (L + 1, T, D) of the recordings by the model alone; the last is after the final norm."""
    model = encoder_of("wavlm-micro", precision).model
    found = []
    for number in range(6):
        wave = torch.from_numpy(sf.read(io_bytes(number), dtype="float32")[0])
        wave = (wave - wave.mean()) / wave.std(correction=0) if normalize else wave
        wave = torch.nn.functional.pad(wave, (0, max(0, int(pad_s * 16000) - len(wave))))
        with torch.inference_mode():
            output = model(wave[None].to(model.dtype), output_hidden_states=True)
        states = [*output.hidden_states[:-1], output.last_hidden_state]
        found.append(torch.stack(states).float()[:, 0])
    return found


def io_bytes(number: int) -> Any:
    import io

    buffer = io.BytesIO()
    sf.write(buffer, WAVES[number], 16000, format="WAV", subtype="FLOAT")
    buffer.seek(0)
    return buffer


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    folder = tmp_path / "audio"
    folder.mkdir()
    for number, name in enumerate(IDS):
        (folder / f"{name}.wav").write_bytes(io_bytes(number).read())
    return folder


def vectors(folder: Path, values: list[Tensor], **more: Any) -> Path:
    path = folder / "mine.npz"
    stacked = torch.stack(values).numpy()
    np.savez(path, id=IDS, label=list("ababab"), embeddings=stacked.astype(more.pop("dtype", "float32")), **more)
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float, tmp_path: Path, audio: Path) -> None:
    states = [one[1:3].mean(1) for one in speech_states()]
    states[2][1, 3] = value
    path = vectors(tmp_path, states, layers=np.array([4, 5]))
    with pytest.raises(CorpusError, match=r"mine\.npz: item 'u2' has values that are not finite in layer 5"):
        identify.run(path, encoders=["wavlm-micro"], audio=audio)


def test_layers_norm_and_mean(tmp_path: Path, audio: Path) -> None:
    states = speech_states(normalize=encoder_of("wavlm-micro").normalize)
    path = vectors(tmp_path, [one[[1, 2, -1]].mean(1) for one in states], layers=np.array([4, 5, 9]))
    found = identify.run(path, encoders=["wavlm-micro"], audio=audio, items=4)
    last = len(states[0]) - 1
    assert [(one.layer, one.state) for one in found.matches] == [
        (4, "layer 1"), (5, "layer 2"), (9, f"layer {last} after the final norm"),
    ]  # fmt: skip
    assert found.same
    assert found.worst < 1e-4
    assert (found.items, found.pool, found.precision, found.scale, found.storage) == (
        4, "mean over its own frames", "float32", "as they are", "float32",
    )  # fmt: skip
    assert found.reading == "as its feature extractor reads it"


@pytest.mark.parametrize(
    ("pool", "reduced"),
    [
        ("its last frame", lambda states: states[:, -1]),
        ("first frame", lambda states: states[:, 0]),
        ("maximum", lambda states: states.amax(1)),
    ],
)
def test_poolings(tmp_path: Path, audio: Path, pool: str, reduced: Any) -> None:
    path = vectors(tmp_path, [reduced(one)[[1]] for one in speech_states(normalize=True)], dtype="float16")
    found = identify.run(path, encoders=["wavlm-micro"], audio=audio)
    assert (found.same, found.pool, found.matches[0].state) == (True, pool, "layer 1")
    assert found.storage == "float16"


def test_other_ways_of_reading(tmp_path: Path, audio: Path) -> None:
    own = encoder_of("wavlm-micro").normalize
    for states, words in (
        (speech_states(normalize=not own), "not normalised" if own else "normalised to zero mean and unit variance"),
        (speech_states(normalize=own, pad_s=5), "padded with zeros to 5 s, without a mask"),
    ):
        path = vectors(tmp_path, [one[[2]].mean(1) for one in states])
        found = identify.run(path, encoders=["wavlm-micro"], audio=audio)
        assert (found.same, found.reading, found.matches[0].state) == (True, words, "layer 2")


def test_a_reading_that_a_clip_is_too_long_for_is_passed_over(
    tmp_path: Path, audio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, *more = identify.READINGS["speech"]
    short = ("padded with zeros to 0.7 s, without a mask", {"pooling": "all-frames"}, 0.7)  # the longest has 0.78 s
    monkeypatch.setitem(identify.READINGS, "speech", (usual, short, *more))
    states = speech_states(normalize=encoder_of("wavlm-micro").normalize, pad_s=5)
    path = vectors(tmp_path, [one[[2]].mean(1) for one in states])
    found = identify.run(path, encoders=["wavlm-micro"], audio=audio)
    assert (found.same, found.reading, found.left_out) == (True, "padded with zeros to 5 s, without a mask", ())


def test_bfloat16(tmp_path: Path, audio: Path) -> None:
    states = speech_states("bfloat16", normalize=encoder_of("wavlm-micro").normalize)
    path = vectors(tmp_path, [one[[1, 2]].mean(1).bfloat16().float() for one in states])
    found = identify.run(path, encoders=["wavlm-micro"], audio=audio, items=2)  # slow on some processors
    assert (found.same, found.precision, found.storage) == (True, "bfloat16", "bfloat16")


def table(folder: Path) -> Path:
    path = folder / "texts.csv"
    path.write_text("id,text\n" + "".join(f'{name},"{text}"\n' for name, text in zip(IDS, TEXTS, strict=True)))
    return path


@pytest.mark.parametrize(
    ("pool", "place"),
    [
        ("its last token", lambda states: states[:, -1]),
        ("mean with added tokens", lambda states: states.mean(1)),
        ("mean over its own tokens", lambda states: states[:, 1:].mean(1)),  # begin of sequence is added
    ],
)
def test_texts_and_unit_length(tmp_path: Path, pool: str, place: Any) -> None:
    encoder, values = encoder_of("llama-micro"), []
    for text in TEXTS:
        with torch.inference_mode():
            output = encoder.model(**encoder.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        vector = place(torch.stack(output.hidden_states)[[2], 0])
        values.append(vector / vector.norm(dim=1, keepdim=True))
    path = vectors(tmp_path, values)
    found = identify.run(path, encoders=["bert-micro", "llama-micro"], texts=table(tmp_path))
    assert (found.encoder, found.same, found.pool) == ("llama-micro", True, pool)
    assert found.matches[0].state == "layer 2"
    assert found.scale == "scaled to unit length"
    assert len(found.left_out) == 1


def test_an_encoder_whose_hidden_states_the_library_gives(tmp_path: Path) -> None:
    folder = str(tmp_path / "xlnet")
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=300, d_model=16, n_layer=3, n_head=2, d_inner=24, **BYTE_TOKENS)
    XLNetModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    encoder = encoder_of(folder)
    values = [encoder.pool(encoder.tokens([text], 60)[0])[0][0, 1:2] for text in TEXTS]
    found = identify.run(vectors(tmp_path, values), encoders=[folder], texts=table(tmp_path))
    assert (found.exact, found.matches[0].state) == (True, "layer 2")


def test_weights_that_are_close_are_told_from_equal_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, folders = encoder_of("llama-micro").model, [str(tmp_path / "other"), str(tmp_path / "own")]
    for folder, change in zip(folders, (0.003, 0.0), strict=True):
        copied = deepcopy(model)
        for weight in copied.parameters():
            weight.data *= 1 + change * torch.randn_like(weight)
        copied.save_pretrained(folder)
        encoder_of("llama-micro").tokenizer.save_pretrained(folder)
    encoder = encoder_of("llama-micro")
    path = vectors(tmp_path, [encoder.pool(encoder.tokens([text], 60)[0])[0][0, 1:2] for text in TEXTS])
    found = identify.run(path, encoders=folders[:1], texts=table(tmp_path))
    assert (found.same, found.exact, found.precision) == (True, False, "float32")
    result = call(path, "--texts", tmp_path / "texts.csv", "--encoder", folders[0])
    assert f"close to {folders[0]}, but not equal, {found.worst:.4f} apart: made by other weights" in " ".join(
        result.stdout.split()
    )
    assert identify.run(path, encoders=folders, texts=table(tmp_path)).encoder == folders[1]  # and not the first


@pytest.mark.parametrize("format_", [torch.bfloat16, torch.float16])
def test_storage_in_16_bits_leaves_it_exact(format_: torch.dtype, tmp_path: Path) -> None:
    encoder = encoder_of("llama-micro")
    values = [encoder.pool(encoder.tokens([text], 60)[0])[0][0, 1:2].to(format_).float() for text in TEXTS]
    found = identify.run(vectors(tmp_path, values), encoders=["llama-micro"], texts=table(tmp_path))
    assert (found.exact, found.precision) == (True, "float32")
    assert found.worst > 1e-5


def test_vectors_need_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", id=IDS, embeddings=np.ones((6, 1, encoder_of("llama-micro").embed_dim), "float32"))
    assert not identify.run(tmp_path / "mine.npz", encoders=["llama-micro"], texts=table(tmp_path), items=2).same


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, ["identify", *map(str, words)])


def test_none_of_these(tmp_path: Path, audio: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(identify.READINGS, "speech", identify.READINGS["speech"][:2])
    width = encoder_of("wavlm-micro").embed_dim
    path = vectors(tmp_path, [torch.randn(1, width, generator=torch.Generator().manual_seed(one)) for one in range(6)])
    result = call(path, "--audio", audio, "--encoder", "wavlm-micro", "--items", "2")
    assert result.exit_code == 0, result.output
    assert "made by none of these: the closest is wavlm-micro, 1." in result.stdout
    shown = json.loads(call(path, "--audio", audio, "--encoder", "wavlm-micro", "--items", "2", "--json").stdout)
    assert (shown["same"], shown["items"], len(shown["matches"])) == (False, 2, 1)


def test_the_answer_on_the_terminal(tmp_path: Path, audio: Path) -> None:
    states = speech_states(normalize=encoder_of("wavlm-micro").normalize)
    path = vectors(tmp_path, [one[[1]].mean(1) for one in states])
    result = call(path, "--audio", audio, "--encoder", "wavlm-micro")
    assert result.stdout.splitlines()[-1] == (
        "made by wavlm-micro: mean over its own frames; input as its feature extractor reads it; computed in float32; "
        "as they are; stored as float32 (6 items)"
    )


def test_mistakes_are_one_line(tmp_path: Path, audio: Path) -> None:
    path, narrow = vectors(tmp_path, [torch.ones(1, 3)] * 6), ["--encoder", "wavlm-micro"]
    (tmp_path / "other").mkdir()
    for words, message in (
        ([path, *narrow], "give the recordings"),
        ([path, *narrow, "--audio", tmp_path / "none"], "no folder"),
        ([path, *narrow, "--audio", tmp_path / "other"], "none of the items"),
        ([path, *narrow, "--audio", audio], "no encoder could be tried: encoder 'wavlm-micro' has"),
        ([path, *narrow, "--texts", tmp_path / "none.csv"], "cannot be read"),
        ([path, "--encoder", "no-such", "--audio", audio], "no encoder could be tried"),
        ([tmp_path / "none.npz", *narrow, "--audio", audio], "no file"),
        ([path, *narrow, "--audio", audio, "--device", "foo"], "unknown device 'foo'"),
    ):
        result = call(*words)
        assert (result.exit_code, result.stdout) == (3, ""), result.output
        assert message in result.stderr
        assert "Traceback" not in result.stderr
