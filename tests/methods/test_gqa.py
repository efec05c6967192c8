"""Grouped-query attention, standard and as published, against independent NumPy forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import GroupedQueryAttention, SummedQueryAttention, build

Core = type[GroupedQueryAttention] | type[SummedQueryAttention]
CORES = pytest.mark.parametrize("core", [GroupedQueryAttention, SummedQueryAttention])
HEADS = pytest.mark.parametrize(("query_heads", "kv_heads"), [(8, 2), (4, 4), (4, 1), (1, 1), (6, 3)])
WIDTH = 24


def moved(module: nn.Module) -> nn.Module:
    """The module with every tensor off its start, biases and norm included."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return module


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def reference(module: nn.Module, x: np.ndarray, *, query_heads: int, kv_heads: int, summed: bool) -> tuple:
    """Output and the list of attention maps, head by head; x (L, W). docs/sources.md#grouped-query-attention, D5."""
    p = {name: value.detach().double().numpy() for name, value in module.named_parameters()}
    q, k, v = (x @ p[f"{name}.weight"].T + p[f"{name}.bias"] for name in ("query", "key", "value"))
    d, group = x.shape[1] // query_heads, query_heads // kv_heads

    def head(tensor: np.ndarray, number: int) -> np.ndarray:
        return tensor[:, number * d : (number + 1) * d]

    maps, outputs = [], []
    for kv in range(kv_heads):
        members = [head(q, kv * group + member) for member in range(group)]
        for query in [np.sum(members, 0) / np.sqrt(d)] if summed else members:
            scores = query @ head(k, kv).T / np.sqrt(d)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            maps.append(weights / weights.sum(-1, keepdims=True))
            outputs.append(maps[-1] @ head(v, kv))
    joined = np.concatenate(outputs, -1)
    centred = joined - joined.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["norm.weight"] + p["norm.bias"]
    return normed @ p["output.weight"].T + p["output.bias"], maps


@CORES
@HEADS
@pytest.mark.parametrize("layers", [1, 5])
def test_attention_equals_numpy(core: Core, query_heads: int, kv_heads: int, layers: int) -> None:
    heads = {"query_heads": query_heads, "kv_heads": kv_heads}
    module = moved(core(width=WIDTH, **heads)).double()
    x = sample(3, layers, WIDTH)
    found = module(x).detach().numpy()
    expected = [reference(module, row, **heads, summed=core is SummedQueryAttention)[0] for row in x.numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(module.float()(x.float()).detach().numpy(), expected, rtol=1e-3, atol=1e-3)


def test_standard_core_is_torch_attention_with_repeated_heads() -> None:
    module = moved(GroupedQueryAttention(width=WIDTH, query_heads=6, kv_heads=2)).double()
    x = sample(3, 5, WIDTH)

    def heads(projection: nn.Module, repeats: int) -> Tensor:
        return projection(x).view(3, 5, -1, 4).transpose(1, 2).repeat_interleave(repeats, dim=1)

    mixed = nn.functional.scaled_dot_product_attention(
        heads(module.query, 1), heads(module.key, 3), heads(module.value, 3)
    )
    torch.testing.assert_close(module(x), module.output(module.norm(mixed.transpose(1, 2).reshape(3, 5, WIDTH))))


def test_summed_core_sees_only_the_sum_of_a_group() -> None:
    """D5: six of the eight query heads are redundant."""
    module = moved(SummedQueryAttention(width=WIDTH, query_heads=6, kv_heads=2)).double()
    x, shift = sample(3, 5, WIDTH), sample(4, WIDTH, seed=1)
    before = module(x)
    with torch.no_grad():
        heads = module.query.weight.view(6, 4, WIDTH)
        heads[3] += shift  # heads 3 to 5 belong to the second key head
        heads[5] -= shift
    torch.testing.assert_close(module(x), before)
    with torch.no_grad():
        heads[2] += shift
    assert (module(x) - before).abs().max() > 1e-3


@CORES
def test_samples_do_not_see_one_another(core: Core) -> None:
    module = moved(core(width=WIDTH))
    x = sample(4, 5, WIDTH).float()
    other = x.clone()
    other[1:] += 5
    torch.testing.assert_close(module(other)[0], module(x)[0])


@CORES
def test_permuted_layers_give_permuted_output(core: Core) -> None:
    module = moved(core(width=WIDTH)).double()
    x, order = sample(2, 5, WIDTH), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


@CORES
def test_key_bias_is_inert(core: Core) -> None:
    module = moved(core(width=WIDTH)).double()
    x = sample(2, 5, WIDTH)
    before = module(x)
    with torch.no_grad():
        module.key.bias.add_(1)
    torch.testing.assert_close(module(x), before)


@CORES
def test_leading_axes_are_free(core: Core) -> None:
    module = moved(core(width=WIDTH)).double()
    x = sample(2, 3, 5, WIDTH)
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


@CORES
def test_gradients(core: Core) -> None:
    module = moved(core(width=8, query_heads=4, kv_heads=2)).double()
    assert torch.autograd.gradcheck(module, (sample(2, 3, 8).requires_grad_(),))


@CORES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_stay_in_float32_under_autocast(core: Core, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of queries and keys near 1e4 are beyond float16."""
    torch.manual_seed(0)
    module, seen = core(width=WIDTH, query_heads=4, kv_heads=2), []
    softmax = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda scores, dim: seen.append(scores) or softmax(scores, dim))
    x = (1e4 * sample(2, 5, WIDTH).float()).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        output = module(x)
    assert [scores.dtype for scores in seen] == [torch.float32]
    assert seen[0].isfinite().all()
    assert seen[0].abs().max() > torch.finfo(torch.float16).max
    assert output.isfinite().all()
    output.float().mean().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_published_core_is_almost_uniform_at_start() -> None:
    """D5: mean entropy of 24 layers drawn from N(0, 1): 3.13 nats against 2.54, of at most ln 24 = 3.18."""
    x = sample(24, 512).numpy()
    entropy = {}
    for core in (GroupedQueryAttention, SummedQueryAttention):
        torch.manual_seed(0)
        module = core(width=512)
        summed = core is SummedQueryAttention
        output, maps = reference(module, x, query_heads=8, kv_heads=2, summed=summed)
        np.testing.assert_allclose(module(torch.from_numpy(x).float()).detach().numpy(), output, atol=1e-4)
        entropy[core] = np.mean([-(weights * np.log(weights)).sum(-1) for weights in maps])
    assert entropy[SummedQueryAttention] == pytest.approx(3.13, abs=0.02)
    assert entropy[GroupedQueryAttention] == pytest.approx(2.54, abs=0.1)
    assert entropy[SummedQueryAttention] < math.log(24)


@CORES
def test_start(core: Core) -> None:
    """docs/sources.md#grouped-query-attention: Xavier normal with gain 1, zero biases."""
    torch.manual_seed(0)
    module = core(width=256)
    for projection in (module.query, module.key, module.value, module.output):
        assert not projection.bias.any()
        std = math.sqrt(2 / sum(projection.weight.shape))
        assert projection.weight.std().item() == pytest.approx(std, rel=0.03)
        assert projection.weight.abs().max() > 3 * std  # beyond any uniform of that spread
    assert module.norm.eps == 1e-5
    assert torch.equal(module.norm.weight, torch.ones_like(module.norm.weight))


@CORES
def test_heads_must_divide(core: Core) -> None:
    with pytest.raises(
        MethodError, match=r"^query_heads \(5\) must divide the width \(12\); possible: 1, 2, 3, 4, 6, 12$"
    ):
        core(width=12, query_heads=5)
    with pytest.raises(MethodError, match=r"^kv_heads \(3\) must divide query_heads \(4\); possible: 1, 2, 4$"):
        core(width=12, query_heads=4, kv_heads=3)


@CORES
def test_head_widths_the_published_layer_refuses(core: Core) -> None:
    assert core(width=10, query_heads=2, kv_heads=1)(torch.ones(1, 3, 10)).shape == (1, 3, 10)
    assert core(width=512, query_heads=2, kv_heads=1)(torch.ones(1, 3, 512)).shape == (1, 3, 512)


def count_of(*, layers: int, dim: int, classes: int, inner: int, width: int = 512) -> int:
    """docs/sources.md#grouped-query-attention and #decoder.

    Projection, q, k and v of two heads of 64, norm, output; two convolutions, one linear layer.
    """
    attention = (dim + 1) * width + (width + 1) * width + 2 * (width + 1) * 128 + 2 * inner + (inner + 1) * width
    return attention + (layers * 9 + 1) * 512 + (512 * 9 + 1) * layers + (layers * width + 1) * classes


@pytest.mark.parametrize(
    ("layers", "dim", "classes", "published", "grid"),
    [
        (24, 1024, 4, 1_255_964, (8, 64)),
        (24, 1024, 100, 2_435_708, (8, 64)),
        (40, 5120, 4, 3_533_356, (64, 8)),
    ],
)
def test_parameters_and_grid(layers: int, dim: int, classes: int, published: int, grid: tuple[int, int]) -> None:
    sizes = {"num_layers": layers, "embed_dim": dim, "num_classes": classes}
    for name, inner in (("gqa", 512), ("gqa-published", 128)):
        model = build(name, **sizes)
        total = sum(p.numel() for p in model.parameters())
        assert total == count_of(layers=layers, dim=dim, classes=classes, inner=inner)
        assert (total == published) == (name == "gqa-published")
        assert model.decoder.grid == grid


@CORES
def test_builders_project_first(core: Core) -> None:
    name = "gqa" if core is GroupedQueryAttention else "gqa-published"
    sizes = {"num_layers": 3, "embed_dim": 10, "num_classes": 2}
    model = build(name, **sizes, width=24, query_heads=6, kv_heads=3, hidden_channels=4).eval()
    assert type(model.fusion.attention) is core
    assert (model.fusion.attention.query_heads, model.fusion.attention.kv_heads) == (6, 3)
    x = sample(2, 3, 10).float()
    projected = x @ model.fusion.projection.weight.T + model.fusion.projection.bias
    torch.testing.assert_close(model(x), model.decoder(model.fusion.attention(projected)))
    assert model.traits.inert == ("fusion.attention.key.bias",)
    assert not model.has_density
