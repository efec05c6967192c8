"""Decoders against an independent NumPy form, their shapes and parameter counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.errors import MethodError
from daamctl.methods import ConvDecoder, MLPDecoder, Traits, feature_grid
from daamctl.methods.decoder import check_choice, classify_map, classify_vector
from daamctl.methods.settings import DecoderOptions, Sizes


@pytest.mark.parametrize(
    ("dim", "grid"),
    [
        (1024, (32, 32)),
        (5120, (64, 80)),
        (768, (24, 32)),
        (1280, (32, 40)),
        (512, (16, 32)),
        (13, (1, 13)),
        (1, (1, 1)),
    ],
)
def test_feature_grid(dim: int, grid: tuple[int, int]) -> None:
    assert feature_grid(dim) == grid


def test_feature_grid_is_the_squarest_factorisation() -> None:
    for dim in range(1, 200):
        pairs = [(h, dim // h) for h in range(1, dim + 1) if dim % h == 0 and h <= dim // h]
        assert feature_grid(dim) == min(pairs, key=lambda pair: pair[1] - pair[0])


@pytest.mark.parametrize(
    ("width", "embed_dim", "num_heads", "grid"),
    [
        (512, 1024, 8, (8, 64)),  # the published ones, docs/sources.md#decoder
        (512, 5120, 8, (64, 8)),
        (512, 4096, 8, (64, 8)),  # a head is as wide as the encoder's own image is high
        (512, 768, 8, (8, 64)),
        (512, 1024, 16, (32, 16)),
        (512, 1024, 3, (16, 32)),  # heads that do not divide the row say nothing about its shape
        (512, 1024, 1, (1, 512)),
        (1024, 1024, 8, (8, 128)),
        (13, 64, 13, (13, 1)),
    ],
)
def test_feature_grid_of_a_projected_row(width: int, embed_dim: int, num_heads: int, grid: tuple[int, int]) -> None:
    assert feature_grid(width, embed_dim=embed_dim, num_heads=num_heads) == grid


def test_feature_grid_keeps_every_feature() -> None:
    for width in range(1, 60):
        for embed_dim in (1, 12, 60, 64):
            for num_heads in (1, 4, 8):
                assert math.prod(feature_grid(width, embed_dim=embed_dim, num_heads=num_heads)) == width


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3x3 correlation, stride 1, padding 1, by loops: x (B, I, H, W), weight (O, I, 3, 3)."""
    batch, _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.empty((batch, weight.shape[0], height, width))
    for i in range(height):
        for j in range(width):
            out[:, :, i, j] = np.einsum("bihw,oihw->bo", padded[:, :, i : i + 3, j : j + 3], weight) + bias
    return out


@pytest.mark.parametrize("dim", [12, 7])
def test_conv_decoder_equals_numpy(dim: int) -> None:
    decoder = ramp(ConvDecoder(num_layers=3, embed_dim=dim, num_classes=4, hidden_channels=5))
    x = np.random.default_rng(1).standard_normal((2, 3, dim))
    p = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    image = x.reshape(2, 3, *{12: (3, 4), 7: (1, 7)}[dim])  # row by row, in the stored order of the features
    image = np.maximum(convolve(image, p["conv1.weight"], p["conv1.bias"]), 0)
    image = np.maximum(convolve(image, p["conv2.weight"], p["conv2.bias"]), 0)
    expected = image.reshape(2, -1) @ p["fc.weight"].T + p["fc.bias"]
    found = decoder(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_conv_decoder_takes_the_grid_given() -> None:
    sizes = {"num_layers": 3, "embed_dim": 12, "num_classes": 4, "hidden_channels": 5}
    square, flat = ramp(ConvDecoder(**sizes)), ramp(ConvDecoder(**sizes, grid=(2, 6)))
    x = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1))
    p = {name: value.detach().double().numpy() for name, value in flat.named_parameters()}
    image = x.double().numpy().reshape(2, 3, 2, 6)
    for name in ("conv1", "conv2"):
        image = np.maximum(convolve(image, p[f"{name}.weight"], p[f"{name}.bias"]), 0)
    expected = image.reshape(2, -1) @ p["fc.weight"].T + p["fc.bias"]
    np.testing.assert_allclose(flat(x).detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(square(x), flat(x))


@pytest.mark.parametrize("sum_layers", [False, True])
def test_mlp_decoder_equals_numpy(sum_layers: bool) -> None:
    decoder = ramp(MLPDecoder(embed_dim=6, num_classes=3, hidden_dim=4, sum_layers=sum_layers))
    rows = np.random.default_rng(1).standard_normal((5, 7, 6) if sum_layers else (5, 6))
    x = np.einsum("bld->bd", rows) if sum_layers else rows
    p = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    hidden = np.maximum(x @ p["projector.weight"].T + p["projector.bias"], 0)
    expected = hidden @ p["classifier.weight"].T + p["classifier.bias"]
    found = decoder(torch.from_numpy(rows).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "convolutions", "linear"),
    [((24, 1024, 4), 221_720, 98_308), ((24, 1024, 100), 221_720, 2_457_700), ((40, 5120, 4), 369_192, 819_204)],
)
def test_published_sizes(sizes: tuple[int, int, int], convolutions: int, linear: int) -> None:
    """docs/sources.md#parameter-counts: convolution pair and fc."""
    with torch.device("meta"):
        decoder = ConvDecoder(num_layers=sizes[0], embed_dim=sizes[1], num_classes=sizes[2])
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in decoder.named_children()}
    assert count == {"conv1": count["conv1"], "conv2": convolutions - count["conv1"], "fc": linear}
    assert tuple(decoder.conv1.weight.shape) == (512, sizes[0], 3, 3)


def test_weights_start_xavier_uniform() -> None:
    torch.manual_seed(0)
    decoder = ConvDecoder(num_layers=6, embed_dim=64, num_classes=4, hidden_channels=32)
    for layer, fans in ((decoder.conv1, (6 * 9, 32 * 9)), (decoder.conv2, (32 * 9, 6 * 9)), (decoder.fc, (384, 4))):
        bound = math.sqrt(6 / sum(fans))  # Glorot and Bengio, 2010
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_fused_map_goes_to_either_decoder() -> None:
    sizes = Sizes(3, 12, 4)
    x, traits = torch.randn(2, 3, 12), Traits(batch_dependent=True)
    for name, kind in (("conv", ConvDecoder), ("mlp", MLPDecoder)):
        options = DecoderOptions(decoder=name, hidden_channels=5, hidden_dim=6)  # type: ignore[arg-type]
        model = classify_map(nn.Identity(), sizes, options, traits=traits)
        assert type(model.decoder) is kind
        assert model.traits is traits
        assert torch.equal(model(x), model.decoder(x))
        assert model(x).shape == (2, 4)
    assert classify_map(nn.Identity(), sizes, DecoderOptions(), grid=(2, 6)).decoder.grid == (2, 6)
    narrow = classify_map(nn.Identity(), sizes, DecoderOptions(), width=9)
    assert (narrow.decoder.grid, narrow.decoder.fc.in_features) == ((3, 3), 3 * 9)
    assert model.decoder.projector.out_features == 6


def test_fused_vector_goes_to_the_shared_head() -> None:
    model = classify_vector(nn.Flatten(), Sizes(3, 12, 4), 6, width=36)
    assert model.traits == Traits()
    x = torch.randn(2, 3, 12)
    assert torch.equal(model(x), model.decoder(x.flatten(1)))
    assert [tuple(p.shape) for p in model.parameters()] == [(6, 36), (6,), (4, 6), (4,)]


def test_unknown_decoder_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^decoder must be 'conv' or 'mlp', got 'cnn'$"):
        classify_map(nn.Identity(), Sizes(3, 4, 2), DecoderOptions(decoder="cnn"))  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"^colour must be 'red', got 'blue'$"):
        check_choice("colour", "blue", ("red",))
    check_choice("colour", "red", ("red", "blue"))


def ramp(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return module
