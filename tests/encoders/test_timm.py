"""Encoders of timm, through transformers: layer n is block n, or stage n after the stem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from daamctl.config import ExtractConfig
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import EncoderError

timm = pytest.importorskip("timm", reason="timm is not installed: pip install -e '.[timm]'")
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
STAGES = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}


def saved(folder: Path, name: str, **settings: Any) -> Path:
    """A folder as timm saves it."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **settings)
    timm.models.save_for_hf(model, str(folder), safe_serialization=True, model_args=settings)
    return folder


def opened(folder: Path, **options: Any) -> OpenedEncoder:
    settings = ExtractConfig(encoder=str(folder), **options)
    return open_encoder(settings, modality="image", max_duration_s=5.0, device="cpu", precision="float32")


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


@pytest.mark.parametrize("class_token", [False, True])
def test_layers_of_a_transformer_are_its_blocks(tmp_path: Path, class_token: bool) -> None:
    folder = saved(tmp_path / "vit", "vit_tiny_patch16_224", **VIT)
    encoder = opened(folder, layer_00=True, pool_class_token=class_token).encoder
    pixels = encoder.pixels(picture())
    vectors, counted = encoder.pool([pixels])
    model, caught = encoder.model.timm_model, []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, given, out: caught.append((given[0], out)))
    with torch.inference_mode():
        end = model.forward_features(pixels[None])
    states = [caught[0][0], *(out for _, out in caught[:-1]), end]
    means = torch.stack([state[0, 0 if class_token else 1 :].mean(0) for state in states])
    torch.testing.assert_close(vectors[0], means, atol=2e-5, rtol=1e-4)
    assert (encoder.layers, counted.tolist()) == ((0, 1, 2, 3), [16 + class_token])
    assert encoder.hidden({"pixel_values": pixels[None]}).shape == (1, 17, 16)
    with pytest.raises(EncoderError, match="so no method can fuse their frames"):
        encoder.hidden_layers({"pixel_values": pixels[None]})


@pytest.mark.parametrize(("name", "settings", "stem"), [("convnext_atto", STAGES, False), ("resnet10t", {}, True)])
def test_layers_of_a_hierarchical_model_are_its_stages(
    tmp_path: Path, name: str, settings: dict[str, Any], stem: bool
) -> None:
    encoder = opened(saved(tmp_path / name, name, **settings)).encoder
    pixels = encoder.pixels(picture())
    with torch.inference_mode():
        maps = encoder.model.timm_model.forward_intermediates(pixels[None], intermediates_only=True)
    means = [one[0].mean((1, 2)) for one in maps][stem:]
    assert encoder.layers == (1, 2, 3, 4)
    assert encoder.widths == tuple(map(len, means))
    for vector, mean in zip(encoder.pool([pixels])[0][0], means, strict=True):
        torch.testing.assert_close(vector[: len(mean)], mean, atol=2e-5, rtol=1e-4)


def test_what_prepares_the_images_is_a_fact(tmp_path: Path) -> None:
    folder = saved(tmp_path / "vit", "vit_tiny_patch16_224", **VIT)
    before = opened(folder).facts
    found = json.loads((folder / "config.json").read_text())
    found["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.5}
    (folder / "config.json").write_text(json.dumps(found))
    after = opened(folder).facts
    assert before["processor"]["interpolation"] == after["processor"]["interpolation"] == "bicubic"
    assert (after["processor"]["mean"], after["processor"]["crop_pct"]) == ([0.1, 0.2, 0.3], 0.5)
    assert {name for name in before if before[name] != after[name]} == {"processor"}
