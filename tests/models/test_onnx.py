"""The module that is exported computes what the encoder's own reading and pooling give; and so does ONNX."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.encoders.base import Encoder
from daamctl.encoders.load import open_encoder
from daamctl.errors import EncoderError, MethodError
from daamctl.methods import build
from daamctl.methods.base import FusionClassifier
from daamctl.models import onnx as module
from daamctl.models.onnx import BATCHES, Graph, check_installed, write_onnx

ENCODERS: dict[str, Modality] = {
    "wavlm-micro": "speech", "whisper-tiny": "speech", "llama-micro": "text", "beit-micro": "image",
}  # fmt: skip
OTHERS: dict[str, Modality] = {
    "wav2vec2-large": "speech", "hubert-large": "speech", "roberta-large": "text", "vit-large": "image",
    "dinov2-large": "image",
}  # fmt: skip
"""Of these only the graph as a whole is compared: even two of their layers take long."""
ONE_TOKEN = [("llama-micro", {"pooling": "last-token"}), ("roberta-large", {"pooling": "first-token"}),
             ("beit-micro", {"pool_class_token": "only"})]  # fmt: skip


def opened(name: str, **settings: object) -> tuple[Encoder, list[FusionClassifier]]:
    """An encoder cut after its second layer, and two models over it."""
    config = ExtractConfig.model_validate({"encoder": name, "weights": "random", **settings})
    encoder = open_encoder(
        config,
        modality={**ENCODERS, **OTHERS}[name],
        max_duration_s=5.0,
        device="cpu",
        precision="float32",
        highest_layer=2,
    ).encoder
    torch.manual_seed(0)
    members = [
        build("weighted-sum", num_layers=len(encoder.layers), embed_dim=encoder.embed_dim, num_classes=3).eval()
        for _ in range(2)
    ]
    return encoder, members


@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in ENCODERS), *ONE_TOKEN])
def test_the_graph_equals_reading_and_pooling(name: str, settings: dict[str, str]) -> None:
    encoder, members = opened(name, **settings)
    graph = Graph(encoder, members, list(encoder.layers), "float32").eval()
    for index, size in enumerate(BATCHES):
        batch = module._batch(encoder, size, index)
        with torch.no_grad():
            found = graph(batch)
        for ours, theirs in zip(found, module._by_torch(graph, batch), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5)


def test_what_a_graph_cannot_do_is_refused() -> None:
    encoder, members = opened("wavlm-micro", pooling="all-frames")
    with pytest.raises(EncoderError, match="pooling=valid-frames"):
        Graph(encoder, members, [1, 2], "float32")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MethodError, match="--onnx needs onnx, onnxscript, onnxruntime") as error:
        check_installed()
    assert error.value.fix == "pip install 'daamctl[onnx]'"


def compared(
    monkeypatch: pytest.MonkeyPatch, storage: str, pooled: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[dict[str, float], ...]:
    """Compare torch with a runtime that has other pooled values, where logits are so large that rounding matters."""
    encoder, members = opened("wavlm-micro")
    with torch.no_grad():
        for member in members:
            list(member.parameters())[-2].mul_(30)  # the weights of the last layer, so that logits are around 10
    layers = list(encoder.layers)

    class Runtime(Graph):
        def _pooled(self, *given: Any) -> torch.Tensor:
            return pooled(super()._pooled(*given))

    def run(_: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [one.numpy() for one in Runtime(encoder, members, layers, storage)(torch.from_numpy(inputs["x"]))]

    session = SimpleNamespace(run=run, get_inputs=lambda: [SimpleNamespace(name="x")])
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=lambda *_, **__: session))
    batches = [module._batch(encoder, size, index) for index, size in enumerate(BATCHES)]
    graph = Graph(encoder, members, layers, storage)
    return module._compare(Path("model.onnx"), graph, batches, ["logits", "layer_weights"])


def test_what_storage_rounds_differently_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    worst, allowed, _ = compared(monkeypatch, "float16", lambda pooled: pooled * (1 + 1e-5))
    assert 1e-4 < worst["logits"] < allowed["logits"] < 5e-3
    assert allowed["layer_weights"] == 1e-4
    _, allowed, _ = compared(monkeypatch, "float32", lambda pooled: pooled * (1 + 1e-7))
    assert allowed == {"logits": 1e-4, "layer_weights": 1e-4}


@pytest.mark.parametrize("storage", ["float16", "float32"])
@pytest.mark.parametrize("pooled", [lambda x: x.roll(1, -1), lambda x: x - x.mean(), lambda x: x * float("nan")])
def test_a_wrong_graph_is_refused(
    monkeypatch: pytest.MonkeyPatch, storage: str, pooled: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with pytest.raises(MethodError, match=r"ONNX differs from torch: probabilities by .* allowed is 0.00"):
        compared(monkeypatch, storage, pooled)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ENCODERS, *OTHERS])
@pytest.mark.filterwarnings("ignore")
def test_onnx_equals_torch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    encoder, members = opened(name)
    write_onnx(tmp_path, encoder, members, list(encoder.layers), "float16")
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert max(parity["largest_difference"].values()) <= 1e-4
    assert len({tuple(shape) for shape in parity["shapes"]}) == 3
    other = Graph(encoder, [*members[:1]], list(encoder.layers), "float16").eval()
    batches = [module._batch(encoder, 1, 0)]
    with pytest.raises(MethodError, match="ONNX differs from torch: probabilities by"):
        module._compare(tmp_path / "model.onnx", other, batches, ["logits", "layer_weights"])
