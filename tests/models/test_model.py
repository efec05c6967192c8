"""Opening an exported model in Python, for every kind of input, and its encoder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from daamctl.adapters import build_finetune
from daamctl.config import ExtractConfig
from daamctl.encoders.load import open_encoder
from daamctl.errors import ArtifactError, CorpusError, EncoderError
from daamctl.methods import load_weights
from daamctl.models import model as model_module
from daamctl.models.folder import FILE
from daamctl.models.model import ExportedModel, FineTunedEncoder
from daamctl.models.predict import predict_vectors
from daamctl.store.records import write_record
from tests.fixtures.added import install
from tests.fixtures.exported import handmade


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade(tmp_path_factory.mktemp("speech") / "model")


def change(folder: Path, part: str, **values: object) -> None:
    record = json.loads((folder / FILE).read_text())
    record.pop("sha256")
    write_record(folder / FILE, {**record, part: {**record[part], **values}})


def test_logits_are_those_of_the_members(speech: Path) -> None:
    model = ExportedModel.open(speech, device="cpu")
    size = (3, len(model.record.layers), model.record.embed_dim)
    vectors = np.random.default_rng(0).standard_normal(size).astype(np.float16)
    outputs = model.classify(vectors)
    x = torch.from_numpy(vectors.astype(np.float32))
    for index in (0, 1):
        expected = load_weights(speech / f"fold-{index + 1}.safetensors")(x).detach().numpy()
        np.testing.assert_allclose(outputs.logits[index], expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"need \(N, 24, "):
        model.classify(vectors[:, :2])


def test_a_method_of_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        install(tmp_path / "site", here)
        folder = handmade(tmp_path / "model", method="peak")
        assert len(ExportedModel.open(folder, device="cpu").members) == 2
    with pytest.raises(ArtifactError, match="unknown method 'peak', which no installed package has") as error:
        ExportedModel.open(folder, device="cpu")
    assert error.value.fix == "install it as it was in training: model.json has its version"


@pytest.mark.parametrize("modality", ["text", "tokens"])
def test_a_fine_tuned_model_never_sees_padding(modality: Any) -> None:
    """A GPU sends no mask to a causal encoder, which needs none; what was put on top of its layers does."""
    extract = ExtractConfig(encoder="llama-micro")
    opened = open_encoder(extract, modality=modality, max_duration_s=5.0, device="cpu", precision="float32")
    encoder: Any = opened.encoder
    texts = ["one word", "many more words, so that the other needs padding"]
    if modality == "text":
        items = encoder.tokens(texts, 100)[0]
    else:
        items = [part for words in encoder.word_tokens([text.split() for text in texts], 100) for part in words]
    model = build_finetune("base-plus-1", encoder, num_classes=2, seed=1).eval()
    encoder.sends_mask = False
    tuned = FineTunedEncoder(model, SimpleNamespace(layers=[1], classes=["a", "b"]), "float32")  # type: ignore[arg-type]
    with torch.no_grad():
        evaluated = model(*encoder.collate(items))
    torch.testing.assert_close(tuned.run_async(encoder.to_batch(items))().values[:, 0], evaluated)


def test_vectors_are_classified_with_the_kernels_of_training(speech: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no encoder is opened, which would choose them: a GPU's convolutions would round to TF32."""
    chosen: list[bool] = []
    monkeypatch.setattr(model_module, "choose_gpu_kernels", lambda: chosen.append(True))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)  # there may be no GPU here
    opened = ExportedModel.open(speech, device="cpu")
    assert not chosen
    ExportedModel(opened.folder, opened.record, opened.members, device="cuda:0")
    assert chosen


def test_recordings_longer_than_a_clip(speech: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 12 * 16000)
    soundfile.write(tmp_path / "long.wav", noise, 16000)
    rows = ExportedModel.open(speech, device="cpu").predict([tmp_path / "long.wav"])
    assert rows["unit"].to_list() == ["item", "clip", "clip", "clip"]
    assert rows["start_s"].to_list() == [None, 0.0, 5.0, 10.0]


def test_texts(tmp_path: Path) -> None:
    model = ExportedModel.open(handmade(tmp_path / "model", "text"), device="cpu")
    rows = model.predict(["the cat sat", "", "rain is wet"])
    assert rows["unit"].to_list() == ["item"] * 3
    assert rows["class"].is_null().to_list() == [False, True, False]
    assert "it is empty" in rows["error"][1]
    assert "clip" not in rows.columns
    alone = model.predict(["rain is wet"])
    assert abs(alone["p_low"][0] - rows["p_low"][2]) < 1e-5


def test_nothing_to_predict_is_one_line(tmp_path: Path) -> None:
    for modality, inputs, word in (("text", [], "text"), ("tokens", [""], "sentence")):
        model = ExportedModel.open(handmade(tmp_path / modality, modality, depth=1), device="cpu")  # type: ignore[arg-type]
        with pytest.raises(CorpusError, match=f"there is no {word} to predict"):
            model.predict(inputs)
    with pytest.raises(CorpusError, match="there are no embeddings to predict"):
        predict_vectors(model, [])


def test_images(tmp_path: Path) -> None:
    model = ExportedModel.open(handmade(tmp_path / "model", "image"), device="cpu")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    rows = model.predict([tmp_path])
    assert rows["item"].to_list() == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert rows["class"].is_null().to_list() == [False, True]
    assert "not an image" in rows["error"][1]


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    folder = handmade(tmp_path / "model")
    change(folder, "extract", seed=1)
    with pytest.raises(EncoderError, match="is not the one that the model was trained on"):
        _ = ExportedModel.open(folder, device="cpu").encoder
    change(folder, "segment", tail="keep")
    change(folder, "extract", seed=0, pooling="all-frames")
    with pytest.raises(EncoderError, match="has pooling all-frames, the model needs valid-frames"):
        _ = ExportedModel.open(folder, device="cpu").encoder
    change(folder, "extract", pooling="valid-frames", colour="red")
    with pytest.raises(ArtifactError, match=r"extract\.colour"):
        _ = ExportedModel.open(folder, device="cpu").encoder


def test_features_are_compared_if_the_model_says_which_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = handmade(tmp_path / "model")
    monkeypatch.setattr("daamctl.encoders.waveform.WaveformEncoder.by_reader", True)
    _ = ExportedModel.open(folder, device="cpu").encoder
    change(folder, "encoder", features="others")
    with pytest.raises(EncoderError, match=r"has features [0-9a-f]{16}, the model needs others"):
        _ = ExportedModel.open(folder, device="cpu").encoder


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("classes", ["low", "high"], r"other classes than model\.json: \('high', 'low'\), not \('low', 'high'\)"),
        ("classes", ["high", "middle"], r"other classes than model\.json: \('high', 'low'\), not \('high', 'middle'\)"),
        ("classes", ["high", "low", "middle"], r"other classes than model\.json"),
        ("layers", [*range(24, 0, -1)], r"other layers than model\.json: \(1, 2, "),
        ("modality", "text", r"other modality than model\.json: speech, not text"),
        ("embed_dim", 10**9, r"other numbers of layers, features and classes than model\.json: \(24, \d+, 2\), not"),
        ("fine_tuned", True, r"other kinds of weights than model\.json: fusion, not adapter"),
        ("encoder", {"weights_sha256": "0" * 64}, r"other encoder than model\.json: [0-9a-f]{64}, not 0{64}"),
    ],
)
def test_a_record_that_says_other_things_than_its_weights(tmp_path: Path, name: str, value: Any, message: str) -> None:
    """Its seal and its hashes are right: classes in another order would answer with the wrong names."""
    folder = handmade(tmp_path / "model")
    record = json.loads((folder / FILE).read_text())
    record.pop("sha256")
    new = {**record[name], **value} if isinstance(value, dict) else value
    write_record(folder / FILE, {**record, name: new})
    started = time.perf_counter()
    with pytest.raises(ArtifactError, match=rf"fold-1\.safetensors has {message}") as error:
        ExportedModel.open(folder, device="cpu")
    assert time.perf_counter() - started < 1.0
    assert error.value.fix == "export it again: daamctl export RUN --out FOLDER"


def test_an_encoder_from_a_folder_has_to_be_named(tmp_path: Path) -> None:
    folder = handmade(tmp_path / "model")
    change(folder, "extract", encoder="my-encoder")
    with pytest.raises(EncoderError, match="which is not in its folder") as error:
        _ = ExportedModel.open(folder, device="cpu").encoder
    assert "--encoder FOLDER" in str(error.value.fix)
    with pytest.raises(EncoderError, match="no folder"):
        _ = ExportedModel.open(folder, device="cpu", encoder=tmp_path / "gone").encoder
