"""Vision encoders on tiny models of Hugging Face's own classes: the mean over patches, class tokens in or out."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from daamctl.config import ExtractConfig
from daamctl.encoders.cut import cut_config
from daamctl.encoders.image import ImageEncoder, plain_processor, processor_facts
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import EncoderError

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
# model type, settings, class and register tokens in front of the patches, whether it ends in a norm
CASES: dict[str, tuple[str, dict[str, Any], int, bool]] = {
    "beit": ("beit", {"use_relative_position_bias": True}, 1, False),
    "beit-shared": ("beit", {"use_shared_relative_position_bias": True, "use_mask_token": True}, 1, False),
    "vit": ("vit", {}, 1, True),
    "deit": ("deit", {}, 2, True),
    "dinov2": ("dinov2", {}, 1, True),
    "dinov2-registers": ("dinov2_with_registers", {"num_register_tokens": 3}, 4, True),
    "dinov3": ("dinov3_vit", {"num_register_tokens": 4}, 5, True),
    "siglip": ("siglip_vision_model", {}, 0, True),
    "mae": ("vit_mae", {"mask_ratio": 0.75}, 1, True),
}
NAMES = list(CASES)
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}


@cache
def model_of(case: str) -> Any:
    from transformers import AutoConfig, AutoModel

    kind, further, _, _ = CASES[case]
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES, **further)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # random models leave class tokens and biases at zero, which hides mistakes
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def encoder_of(case: str, *, processor: Any = None, precision: str = "float32", **options: Any) -> ImageEncoder:
    return ImageEncoder(
        case,
        model_of(case),
        plain_processor(32) if processor is None else processor,
        device="cpu",
        precision=precision,
        options=ExtractConfig(**options),
    )


def pictures(number: int = 3) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (20 + 7 * i, 30, 3), np.uint8)) for i in range(number)]


@torch.inference_mode()
def reference(case: str, pixels: Tensor, counted: slice, *, final_norm: bool = True) -> Tensor:
    """(N + 1, D): the mean of every hidden state of one image by itself, over some of its positions."""
    model = model_of(case)
    caught: list[Any] = []
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 3)
    handle = layers[-1].register_forward_hook(lambda _m, _i, out: caught.append(out))
    output = model(pixel_values=pixels[None], output_hidden_states=True)
    handle.remove()
    raw = caught[0][0] if isinstance(caught[0], tuple) else caught[0]
    assert torch.equal(raw, output.last_hidden_state) != CASES[case][3]
    last = output.last_hidden_state if final_norm else raw
    return torch.stack([state[0, counted].mean(0) for state in [*output.hidden_states[:-1], last]])


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("case", NAMES)
def test_pooled_layers_are_means_of_hidden_states(case: str, class_token: bool, final_norm: bool) -> None:
    encoder = encoder_of(case, layer_00=True, pool_class_token=class_token, final_norm=final_norm)
    pixels = [encoder.pixels(image) for image in pictures()]
    pooled, counts = encoder.pool(pixels)
    prefix = CASES[case][2]
    counted = slice(None) if class_token else slice(prefix, None)
    for row, one in enumerate(pixels):
        torch.testing.assert_close(pooled[row], reference(case, one, counted, final_norm=final_norm), **TOLERANCE)
    assert counts.tolist() == [16 + prefix * class_token] * 3
    assert encoder.modality == "image"
    assert encoder.layers == (0, 1, 2, 3)
    assert encoder.embed_dim == 16
    assert encoder.num_class_tokens == prefix
    assert encoder.has_final_norm == CASES[case][3]
    assert not encoder.equal_length_batches


@pytest.mark.parametrize("case", NAMES)
def test_the_class_token_alone(case: str) -> None:
    if case == "siglip":
        with pytest.raises(EncoderError, match="'siglip' has no class token") as caught:
            encoder_of(case, pool_class_token="only")
        assert caught.value.fix == "set extract.pool_class_token to false"
        return
    encoder = encoder_of(case, layer_00=True, pool_class_token="only")
    pixels = [encoder.pixels(image) for image in pictures()]
    pooled, counts = encoder.pool(pixels)
    for row, one in enumerate(pixels):
        torch.testing.assert_close(pooled[row], reference(case, one, slice(0, 1)), **TOLERANCE)
    assert counts.tolist() == [1, 1, 1]
    assert encoder.facts()["class_tokens"] == {"number": CASES[case][2], "pooled": "only"}


BLOCKS = {"depths": [1, 1, 1]}
MAPS = {**BLOCKS, "hidden_sizes": [8, 16, 24]}
# model type, settings, widths of its states, whether the first is the embedding, whether the output is a norm of them
HIERARCHICAL: dict[str, tuple[str, dict[str, Any], list[int], bool, bool]] = {
    "swin": (
        "swin",
        {**BLOCKS, "image_size": 32, "patch_size": 2, "embed_dim": 8, "num_heads": [1, 2, 2], "window_size": 2},
        [8, 16, 32, 32],
        True,
        True,
    ),
    "convnext": ("convnext", {**MAPS, "num_stages": 3, "patch_size": 2}, [8, 8, 16, 24], True, False),
    "resnet": ("resnet", {**MAPS, "embedding_size": 8, "layer_type": "basic"}, [8, 8, 16, 24], True, False),
    "bit": ("bit", {**MAPS, "embedding_size": 8, "num_groups": 2}, [8, 8, 16, 24], True, True),
    "pvt_v2": (
        "pvt_v2",
        {
            **MAPS, "num_encoder_blocks": 3, "num_attention_heads": [1, 2, 2], "sr_ratios": [2, 2, 1],
            "mlp_ratios": [2, 2, 2], "patch_sizes": [3, 3, 3], "strides": [2, 2, 2],
        },
        [8, 16, 24],
        False,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(HIERARCHICAL))
def test_hierarchical_models(case: str) -> None:
    """Every state that the library returns, averaged over its own positions; narrower ones end in zeros."""
    kind, settings, widths, embedded, normed = HIERARCHICAL[case]
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **settings)).eval()
    options: dict[str, Any] = {"device": "cpu", "precision": "float32"}
    encoder = ImageEncoder(case, model, plain_processor(32), options=ExtractConfig(), **options)
    pixels = [encoder.pixels(image) for image in pictures()]
    pooled, _ = encoder.pool(pixels)
    with torch.inference_mode():
        output = model(torch.stack(pixels), output_hidden_states=True)
    states = [*output.hidden_states[:-1], output.last_hidden_state]
    assert [state.shape[1 if state.ndim == 4 else 2] for state in states] == widths
    means = [state.flatten(2).mean(2) if state.ndim == 4 else state.mean(1) for state in states][embedded:]
    for layer, mean in enumerate(means):
        torch.testing.assert_close(pooled[:, layer, : mean.shape[1]], mean, **TOLERANCE)
        assert not pooled[:, layer, mean.shape[1] :].any()
    assert encoder.layers == tuple(range(1, len(means) + 1))
    assert encoder.embed_dim == pooled.shape[2] == max(widths)
    assert encoder.widths == tuple(widths[embedded:])
    assert encoder.has_final_norm == normed
    if embedded:
        first = ImageEncoder(case, model, plain_processor(32), options=ExtractConfig(layer_00=True), **options)
        torch.testing.assert_close(first.pool(pixels)[0][:, 1:], pooled)
    else:
        with pytest.raises(EncoderError, match="gives no layer 0"):
            ImageEncoder(case, model, plain_processor(32), options=ExtractConfig(layer_00=True), **options)
    inputs, mask = encoder.collate(pixels)
    if kind == "swin":
        assert encoder.hidden(inputs).shape == (3, mask.shape[1], 32)
    else:  # maps, which a classifier over positions cannot read
        with pytest.raises(EncoderError, match="is not that of its last layer, so it cannot be fine-tuned"):
            encoder.hidden(inputs)
    with pytest.raises(EncoderError, match="differ in shape, so no method can fuse their frames"):
        encoder.hidden_layers(inputs)
    with pytest.raises(EncoderError, match="cannot be cut"):
        cut_config(model.config, 2, encoder.what)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mobilenet_v1", {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 4}),
        (
            "mobilevit",
            {"image_size": 32, "hidden_sizes": [8, 8, 8], "neck_hidden_sizes": [4, 4, 4, 8, 8, 8, 8],
             "num_attention_heads": 2},
        ),
    ],
)  # fmt: skip
def test_states_without_an_embedding_are_layers_from_the_first_on(kind: str, settings: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **settings)).eval()
    options: dict[str, Any] = {"device": "cpu", "precision": "float32"}
    encoder = ImageEncoder(kind, model, plain_processor(32), options=ExtractConfig(), **options)
    pixels = encoder.pixels(pictures()[0])
    stages = model.layer if kind == "mobilenet_v1" else model.encoder.layer
    caught: list[Tensor] = []
    handles = [stage.register_forward_hook(lambda _m, _i, out: caught.append(out)) for stage in stages]
    pooled, _ = encoder.pool([pixels])
    for handle in handles:
        handle.remove()
    assert encoder.layers == tuple(range(1, len(stages) + 1))
    for vector, out in zip(pooled[0], caught, strict=True):
        torch.testing.assert_close(vector[: out.shape[1]], out[0].mean((1, 2)), **TOLERANCE)


def test_maps_with_features_last() -> None:
    """SAM's layers give (B, H, W, D), and a neck follows them."""
    from transformers import SamVisionConfig, SamVisionModel

    sizes: dict[str, Any] = {name: SIZES[name] for name in SIZES if name != "intermediate_size"}
    torch.manual_seed(0)
    config = SamVisionConfig(**sizes, mlp_dim=24, output_channels=16, global_attn_indexes=[1], window_size=2)
    model = SamVisionModel(config).eval()
    options: dict[str, Any] = {"device": "cpu", "precision": "float32", "options": ExtractConfig()}
    encoder = ImageEncoder("sam", model, plain_processor(32), **options)
    pixels = [encoder.pixels(image) for image in pictures()]
    with torch.inference_mode():
        states = model(torch.stack(pixels), output_hidden_states=True).hidden_states
    means = torch.stack([state.mean((1, 2)) for state in states[1:]], dim=1)
    torch.testing.assert_close(encoder.pool(pixels)[0], means, **TOLERANCE)
    assert (encoder.layers, encoder.embed_dim, encoder.has_final_norm) == ((1, 2, 3), 16, False)


@pytest.mark.parametrize("case", ["beit", "vit"])
def test_class_token_matters(case: str) -> None:
    within, without = (encoder_of(case, pool_class_token=flag) for flag in (True, False))
    pixels = [within.pixels(image) for image in pictures()]
    assert not torch.allclose(within.pool(pixels)[0], without.pool(pixels)[0], atol=1e-4)


def test_a_model_that_packs_its_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "pixtral", ("pixtral", {}, 0, False))
    with pytest.raises(EncoderError, match="'pixtral' turns 2 items into 1, so they cannot be told apart"):
        encoder_of("pixtral")


def test_collate_and_hidden() -> None:
    encoder = encoder_of("vit")
    inputs, mask = encoder.collate([encoder.pixels(image) for image in pictures()])
    assert inputs["pixel_values"].shape == (3, 3, 32, 32)
    assert mask.shape == (3, 17)
    assert mask.sum(1).tolist() == [16] * 3
    hidden = encoder.hidden(inputs)
    assert hidden.shape == (3, 17, 16)
    assert hidden.requires_grad
    assert torch.equal(hidden, model_of("vit")(**inputs).last_hidden_state)


@pytest.mark.parametrize("case", NAMES)
def test_bytes_are_looked_up_to_the_same_values(case: str) -> None:
    encoder = encoder_of(case)
    floats = [encoder.pixels(image) for image in pictures()]
    expected, _ = encoder.pool(floats)
    assert encoder.values is None
    encoder = encoder_of(case, image_bytes=True)
    assert encoder.values is not None
    found = [encoder.pixels(image) for image in pictures()]
    assert {one.dtype for one in found} == {torch.uint8}
    assert encoder.to_batch(found).inputs["pixel_values"].dtype == torch.uint8
    assert torch.equal(encoder.collate(found)[0]["pixel_values"], torch.stack(floats))
    assert torch.equal(encoder.pool(found)[0], expected)


def test_values_are_not_looked_up_where_that_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of("vit")
    process = encoder._processed

    def by_contrast(image: Image.Image, **options: bool) -> Tensor:
        pixels = process(image, **options)
        return pixels if options else pixels / pixels.std()

    def stubborn(image: Image.Image, **options: bool) -> Tensor:
        raise TypeError(f"unexpected {', '.join(options)}")

    for other in (by_contrast, stubborn):
        monkeypatch.setattr(encoder, "_processed", other)
        assert encoder.values_of_bytes() is None


def test_pixels_follow_the_processor() -> None:
    """Resized, to [0, 1], then mean 0.5 and std 0.5: white is 1, black is -1."""
    encoder = encoder_of("vit")
    for value, expected in ((255, 1.0), (0, -1.0)):
        pixels = encoder.pixels(Image.new("RGB", (50, 40), (value,) * 3))
        assert pixels.shape == (3, 32, 32)
        assert pixels.dtype == torch.float32
        torch.testing.assert_close(pixels, torch.full_like(pixels, expected))
    ramp = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8)[:, None, None], (1, 64, 3)))
    half = ramp.resize((32, 32), Image.Resampling.BILINEAR)
    expected_pixels = (torch.from_numpy(np.array(half)).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(encoder.pixels(ramp), expected_pixels)


def test_facts_say_how_images_are_prepared() -> None:
    from transformers import BitImageProcessorPil

    processor = BitImageProcessorPil(
        size={"shortest_edge": 40},
        crop_size={"height": 32, "width": 32},
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.5, 0.6, 0.7],
        resample=3,
    )
    facts = encoder_of("dinov2", processor=processor, pool_class_token=True).facts()
    assert facts["image_size"] == [32, 32]
    assert facts["class_tokens"] == {"number": 1, "pooled": True}
    found = facts["processor"]
    assert found["size"] == {"shortest_edge": 40}
    assert found["crop_size"] == {"height": 32, "width": 32}
    assert (found["image_mean"], found["image_std"]) == ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    assert found["resample"] == "bicubic"
    assert found["rescale_factor"] == pytest.approx(1 / 255)
    processor.do_normalize = False
    assert "image_mean" not in processor_facts(processor)


def test_settings_that_only_one_processor_has_are_facts() -> None:
    from transformers import BeitImageProcessorPil, ConvNextImageProcessorPil, DPTImageProcessorPil

    assert processor_facts(ConvNextImageProcessorPil(crop_pct=0.7))["crop_pct"] == 0.7
    assert processor_facts(DPTImageProcessorPil(ensure_multiple_of=32))["ensure_multiple_of"] == 32
    # older files have settings that nothing reads any more
    assert processor_facts(BeitImageProcessorPil(reduce_labels=True)) == processor_facts(BeitImageProcessorPil())


def test_processor_that_keeps_proportions() -> None:
    from transformers import BitImageProcessorPil

    processor = BitImageProcessorPil(size={"shortest_edge": 32}, do_center_crop=False)
    with pytest.raises(EncoderError, match=r"^the image processor of encoder 'vit' leaves images of unequal shape: 3x"):
        encoder_of("vit", processor=processor)


def test_processor_of_another_size() -> None:
    with pytest.raises(EncoderError, match=r"^encoder 'vit' cannot be run on a trial input: .*40\*40.*32\*32"):
        encoder_of("vit", processor=plain_processor(40))


def test_bfloat16_is_near_and_pooled_in_float32() -> None:
    plain, half = encoder_of("vit"), encoder_of("vit", precision="bfloat16")
    pixels = [plain.pixels(image) for image in pictures()]
    found = half.pool(pixels)[0]
    assert found.dtype == torch.float32
    assert not torch.equal(found, plain.pool(pixels)[0])
    torch.testing.assert_close(found, plain.pool(pixels)[0], atol=0.15, rtol=0.1)


def processor_folder(folder: Path, **settings: Any) -> str:
    """A folder with the settings of a processor of which transformers has no PIL version, as published."""
    found = {
        "image_processor_type": "DINOv3ViTImageProcessorFast", "do_resize": True, "size": {"height": 24, "width": 40},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "do_center_crop": None, "do_convert_rgb": None,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps({**found, **settings}))
    return str(folder)


def test_a_processor_without_a_pil_version(tmp_path: Path) -> None:
    """As DINOv3's: it resizes bytes instead of fractions, so values differ by at most one of 256 levels."""
    reader = ImageEncoder.load_reader(processor_folder(tmp_path))
    assert type(reader).__name__ == "ViTImageProcessorPil"
    picture = pictures()[0]
    found = reader(picture, return_tensors="pt")["pixel_values"][0]
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255
    resized = torch.nn.functional.interpolate(pixels, (24, 40), mode="bilinear", antialias=True)[0]
    wanted = (resized - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    assert float((found - wanted).abs().max()) < 1.01 / 255 / 0.2
    facts = processor_facts(reader)
    assert (facts["size"], facts["resample"]) == ({"height": 24, "width": 40}, "bilinear")


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
@pytest.mark.parametrize("settings", [{"do_pad": True}, {"size": {"shortest_edge": 24}}])
def test_a_processor_that_needs_torchvision(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(EncoderError, match="needs torchvision, which is not installed\n  install the version"):
        ImageEncoder.load_reader(processor_folder(tmp_path, **settings))


needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="timm is not installed: pip install -e '.[timm]'"
)
TIMM_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
TIMM_STAGES = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}


def saved_by_timm(folder: Path, name: str, **settings: Any) -> Path:
    import timm

    torch.manual_seed(0)
    size = {"input_size": (3, 32, 32)} if "img_size" in settings else None
    model = timm.create_model(name, pretrained=False, pretrained_cfg_overlay=size, **settings)
    timm.models.save_for_hf(model, str(folder), safe_serialization=True, model_args=settings)
    return folder


def opened(folder: Path, **options: Any) -> OpenedEncoder:
    settings = ExtractConfig(encoder=str(folder), **options)
    return open_encoder(settings, modality="image", max_duration_s=5.0, device="cpu", precision="float32")


@needs_timm
@pytest.mark.parametrize("class_token", [False, True])
def test_layers_of_a_transformer_of_timm_are_its_blocks(tmp_path: Path, class_token: bool) -> None:
    folder = saved_by_timm(tmp_path / "vit", "vit_tiny_patch16_224", **TIMM_VIT)
    encoder = opened(folder, layer_00=True, pool_class_token=class_token).encoder
    pixels = encoder.pixels(pictures()[0])
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


@needs_timm
@pytest.mark.parametrize(("name", "settings", "stem"), [("convnext_atto", TIMM_STAGES, False), ("resnet10t", {}, True)])
def test_layers_of_a_hierarchical_model_of_timm_are_its_stages(
    tmp_path: Path, name: str, settings: dict[str, Any], stem: bool
) -> None:
    encoder = opened(saved_by_timm(tmp_path / name, name, **settings)).encoder
    pixels = encoder.pixels(pictures()[0])
    with torch.inference_mode():
        maps = encoder.model.timm_model.forward_intermediates(pixels[None], intermediates_only=True)
    means = [one[0].mean((1, 2)) for one in maps][stem:]
    assert encoder.layers == (1, 2, 3, 4)
    assert encoder.widths == tuple(map(len, means))
    for vector, mean in zip(encoder.pool([pixels])[0][0], means, strict=True):
        torch.testing.assert_close(vector[: len(mean)], mean, atol=2e-5, rtol=1e-4)


@needs_timm
def test_what_prepares_the_images_of_timm_is_a_fact(tmp_path: Path) -> None:
    folder = saved_by_timm(tmp_path / "vit", "vit_tiny_patch16_224", **TIMM_VIT)
    before = opened(folder).facts
    found = json.loads((folder / "config.json").read_text())
    found["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.5}
    (folder / "config.json").write_text(json.dumps(found))
    after = opened(folder).facts
    assert before["processor"]["interpolation"] == after["processor"]["interpolation"] == "bicubic"
    assert (after["processor"]["mean"], after["processor"]["crop_pct"]) == ([0.1, 0.2, 0.3], 0.5)
    assert {name for name in before if before[name] != after[name]} == {"processor"}
