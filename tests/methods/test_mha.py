"""Self-attention over layers and over the batch, with and without batch norm, against an independent NumPy form."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.errors import MethodError
from daamctl.methods import BatchSelfAttention, LayerSelfAttention, build
from daamctl.methods.mha import NormalizedAttention

LAYERS, DIM, HEADS = 7, 12, 3
Module = TypeVar("Module", bound=nn.Module)


def moved(module: Module) -> Module:
    """All trainable tensors away from their start, the same for the same shapes."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return module


def make() -> LayerSelfAttention:
    return moved(LayerSelfAttention(embed_dim=DIM, num_heads=HEADS))


def make_batch() -> BatchSelfAttention:
    return moved(BatchSelfAttention(embed_dim=DIM, num_heads=HEADS))


def layers(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, LAYERS, DIM, generator=torch.Generator().manual_seed(seed))


def reference(module: Any, x: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d_k)) v per head (Vaswani et al., 2017), then the output projection; x (B, L, D)."""
    p = {name: value.detach().double().numpy() for name, value in module.attention.named_parameters()}
    q, k, v = np.split(x @ p["in_proj_weight"].T + p["in_proj_bias"], 3, axis=-1)
    width = DIM // HEADS
    outputs = []
    for head in range(HEADS):
        columns = slice(head * width, (head + 1) * width)
        scores = q[..., columns] @ k[..., columns].transpose(0, 2, 1) / np.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ v[..., columns])
    return np.concatenate(outputs, -1) @ p["out_proj.weight"].T + p["out_proj.bias"]


def test_attention_equals_numpy() -> None:
    module = make()
    x = np.random.default_rng(0).standard_normal((4, LAYERS, DIM))
    found = module(torch.from_numpy(x).float()).detach().numpy()
    assert found.shape == (4, LAYERS, DIM)
    np.testing.assert_allclose(found, reference(module, x), rtol=1e-4, atol=1e-5)


def test_samples_do_not_see_one_another() -> None:
    """The published code attends over the batch (D1); ours must not."""
    module = make()
    x = layers(4)
    other = x.clone()
    other[1:] += 5
    torch.testing.assert_close(module(other)[0], module(x)[0])


def test_layers_see_one_another() -> None:
    module = make()
    x = layers(1)
    other = x.clone()
    other[0, -1] += 5
    assert (module(other)[0, 0] - module(x)[0, 0]).abs().max() > 1e-3


def test_permuted_layers_give_permuted_output() -> None:
    module = make()
    x = layers(2)
    order = torch.tensor([3, 0, 6, 4, 1, 2, 5])
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


def test_start_and_number_of_parameters() -> None:
    module = LayerSelfAttention(embed_dim=DIM, num_heads=HEADS)
    assert sum(p.numel() for p in module.parameters()) == 4 * DIM**2 + 4 * DIM
    assert not module.attention.in_proj_bias.any()
    bound = np.sqrt(6 / (DIM + 3 * DIM))
    assert module.attention.in_proj_weight.abs().max() <= bound
    assert module.attention.in_proj_weight.std().item() == pytest.approx(bound / np.sqrt(3), rel=0.1)
    assert module.attention.dropout == 0


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(
        MethodError, match=r"^num_heads \(5\) must divide the layer width \(12\); possible: 1, 2, 3, 4, 6, 12$"
    ):
        LayerSelfAttention(embed_dim=12, num_heads=5)


def test_any_leading_axes() -> None:
    module, x = make(), layers(6)
    torch.testing.assert_close(module(x.view(2, 3, LAYERS, DIM)), module(x).view(2, 3, LAYERS, DIM))
    torch.testing.assert_close(module(x[0]), module(x)[0])


@pytest.mark.parametrize("make_module", [make, make_batch])
def test_inference_equals_training(make_module: Any) -> None:
    """Torch has a fused path for inference, which must not be another function."""
    module, x = make_module(), layers(4)
    expected = module.train()(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), expected, atol=1e-5, rtol=1e-5)


def test_layer_weights_are_the_attention_received() -> None:
    module, x = make(), layers(4)
    found = module.layer_weights(x)
    assert found.shape == (4, LAYERS)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))
    weight, bias = (p.detach().double() for p in (module.attention.in_proj_weight, module.attention.in_proj_bias))
    q, k, _ = (x.double() @ weight.T + bias).chunk(3, -1)
    q, k = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k))
    scores = (q @ k.transpose(-2, -1) / (DIM // HEADS) ** 0.5).softmax(-1)
    torch.testing.assert_close(found.double(), scores.mean((1, 2)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make_module", [make, make_batch])
def test_attention_leaves_float16_autocast_and_follows_bfloat16(make_module: Any) -> None:
    module, x = make_module(), layers(4)
    with torch.autocast("cpu", dtype=torch.float16):
        found = module(x)
    assert torch.equal(found, module(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(x)
    assert found.dtype == torch.float32
    assert 0 < (found - module(x)).abs().max() < 0.05
    assert module(x.half()).dtype == torch.float16


def test_published_attention_equals_numpy() -> None:
    module = make_batch()
    x = np.random.default_rng(0).standard_normal((4, LAYERS, DIM))
    found = module(torch.from_numpy(x).float()).detach().numpy()
    expected = reference(module, x.transpose(1, 0, 2)).transpose(1, 0, 2)  # the batch is the sequence
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_published_weights_are_between_samples() -> None:
    """docs/sources.md#multi-head-attention: for 24 layers and a batch of 8 the map measured is (24, 8, 8)."""
    module = BatchSelfAttention(embed_dim=DIM, num_heads=HEADS)
    x = torch.randn(8, 24, DIM, generator=torch.Generator().manual_seed(0))
    assert module.attention(x, x, x)[1].shape == (24, 8, 8)


def test_published_prediction_depends_on_its_batch() -> None:
    x = layers(8)
    other = torch.cat([x[:1], layers(7, seed=1)])
    published, repaired = build_pair()
    assert (published(other)[0] - published(x)[0]).abs().max() > 0.1
    assert (published(x[:1])[0] - published(x)[0]).abs().max() > 0.1
    torch.testing.assert_close(repaired(other)[0], repaired(x)[0])
    assert published.traits.batch_dependent
    assert not repaired.traits.batch_dependent


def test_published_layers_never_mix() -> None:
    x = layers(4)
    other = x.clone()
    other[:, 5] += 1
    for module, reached in ((make_batch(), {5}), (make(), set(range(LAYERS)))):
        change = (module(other) - module(x)).abs().amax((0, 2))
        assert {layer for layer in range(LAYERS) if change[layer] > 1e-3} == reached
        assert not change[[layer for layer in range(LAYERS) if layer not in reached]].any()


def test_published_is_a_linear_map_for_a_batch_of_one() -> None:
    module, x = make_batch(), layers(1)
    assert torch.equal(module.attention(x, x, x)[1], torch.ones(LAYERS, 1, 1))
    p = {name: value.detach().double().numpy() for name, value in module.attention.named_parameters()}
    values = x.double().numpy() @ p["in_proj_weight"][2 * DIM :].T + p["in_proj_bias"][2 * DIM :]
    expected = values @ p["out_proj.weight"].T + p["out_proj.bias"]
    np.testing.assert_allclose(module(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["mha-published", "mha-bn"])
def test_one_sample_without_its_batch_axis_is_refused(name: str) -> None:
    fusion = build(name, num_layers=LAYERS, embed_dim=DIM, num_classes=2, num_heads=HEADS).fusion
    with pytest.raises(MethodError, match=r"^attention needs layers of shape \(B, L, D\), got \(7, 12\)$"):
        fusion(torch.zeros(LAYERS, DIM))


@pytest.mark.parametrize("attend_over", ["layers", "batch"])
def test_normalisation_equals_numpy(attend_over: str) -> None:
    """Batch norm of every layer over batch and features: biased variance, eps 1e-5; running ones move by a tenth."""
    module = moved(NormalizedAttention(num_layers=LAYERS, embed_dim=DIM, num_heads=HEADS, attend_over=attend_over))
    x = np.random.default_rng(0).standard_normal((4, LAYERS, DIM))
    if attend_over == "layers":
        mixed = reference(module, x)
    else:
        mixed = reference(module, x.transpose(1, 0, 2)).transpose(1, 0, 2)
    mean, variance = mixed.mean((0, 2)), mixed.var((0, 2))
    weight, bias = (value.detach().double().numpy()[:, None] for value in (module.norm.weight, module.norm.bias))
    expected = (mixed - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * weight + bias
    found = module.train()(torch.from_numpy(x).float())
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-3, atol=1e-4)
    count = 4 * DIM
    running_mean, running_variance = 0.1 * mean, 0.9 + 0.1 * variance * count / (count - 1)
    np.testing.assert_allclose(module.norm.running_mean.numpy(), running_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module.norm.running_var.numpy(), running_variance, rtol=1e-4)
    expected = (mixed - running_mean[:, None]) / np.sqrt(running_variance[:, None] + 1e-5) * weight + bias
    found = module.eval()(torch.from_numpy(x).float())
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-3, atol=1e-4)


def test_normalisation_is_one_value_per_layer_not_per_feature() -> None:
    """docs/sources.md#multi-head-attention names it as BatchNorm1d(N) on (B, N, D); images make no difference."""
    module = moved(NormalizedAttention(num_layers=LAYERS, embed_dim=DIM, num_heads=HEADS))
    other = nn.BatchNorm1d(LAYERS)
    other.load_state_dict(module.norm.state_dict())
    x = layers(4)
    mixed, _ = module.attention(x, x, x)
    torch.testing.assert_close(module(x), other(mixed), atol=1e-5, rtol=1e-5)
    added = sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in make().parameters())
    assert added == 2 * LAYERS


def test_running_statistics_stay_in_float32_under_autocast() -> None:
    plain, cast = (moved(NormalizedAttention(num_layers=LAYERS, embed_dim=DIM, num_heads=HEADS)) for _ in range(2))
    x = layers(4) + 30
    expected = plain(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cast(x)
    assert found.dtype == cast.norm.running_var.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.0)
    torch.testing.assert_close(cast.norm.running_var, plain.norm.running_var, atol=1e-2, rtol=1e-2)
    assert not torch.equal(cast.norm.running_var, torch.ones(LAYERS))


@pytest.mark.parametrize("attend_over", ["layers", "batch"])
def test_normalised_predictions_depend_on_the_batch_only_over_the_batch(attend_over: str) -> None:
    sizes = {"num_layers": LAYERS, "embed_dim": DIM, "num_classes": 3, "num_heads": HEADS}
    model = moved(build("mha-bn", **sizes, attend_over=attend_over, hidden_channels=8)).eval()
    x = layers(4)
    change = (model(x[:1])[0] - model(x)[0]).abs().max().item()
    assert model.traits.batch_dependent == (attend_over == "batch")
    assert change > 1e-2 if attend_over == "batch" else change < 1e-5


def test_unknown_axis() -> None:
    with pytest.raises(MethodError, match=r"^attend_over must be 'layers' or 'batch', got 'time'$"):
        NormalizedAttention(num_layers=LAYERS, embed_dim=DIM, num_heads=HEADS, attend_over="time")


def build_pair() -> tuple[Any, Any]:
    """The published and the repaired model with the same tensors."""
    sizes = {"num_layers": LAYERS, "embed_dim": DIM, "num_classes": 3, "num_heads": HEADS, "hidden_channels": 8}
    published, repaired = moved(build("mha-published", **sizes)), build("mha", **sizes)
    repaired.load_state_dict(published.state_dict())
    return published.eval(), repaired.eval()


def test_mlp_decoder_behind_the_normalisation() -> None:
    model = moved(build("mha-bn-mlp", num_layers=LAYERS, embed_dim=DIM, num_classes=3, num_heads=HEADS)).eval()
    x = layers(4)
    p = {name: value.detach().double().numpy() for name, value in model.decoder.named_parameters()}
    summed = model.fusion(x).detach().double().numpy().sum(1)
    hidden = np.maximum(summed @ p["projector.weight"].T + p["projector.bias"], 0)
    expected = hidden @ p["classifier.weight"].T + p["classifier.bias"]
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-3, atol=1e-3)
