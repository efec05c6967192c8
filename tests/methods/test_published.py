"""Checkpoints of the published code give the published numbers in our modules.

Two sources: tensors made with the published modules (shared/golden), and restatements of the published forward passes
in this file, written from docs/sources.md, so that no core check depends on files outside the repository. They run in
float64, but for DAAM's difference of moments, whose rounding in float32 is part of what is published (D25).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import DensityBlock, load_published
from daamctl.methods.published import recognise

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared/golden"
State = dict[str, Tensor]


# State dicts under the published names. Weights are scaled to keep logits near 1.


def numbers(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator)


def decoder_state(layers: int, inputs: int, classes: int, hidden: int = 16) -> State:
    """The convolutions and the linear layer behind `layers` images of `inputs` pixels."""
    r = numbers(1)
    return {
        "conv1.weight": r(hidden, layers, 3, 3) / math.sqrt(9 * layers),
        "conv1.bias": 0.1 * r(hidden),
        "conv2.weight": r(layers, hidden, 3, 3) / math.sqrt(9 * hidden),
        "conv2.bias": 0.1 * r(layers),
        "fc.weight": r(classes, layers * inputs) / math.sqrt(layers * inputs),
        "fc.bias": 0.1 * r(classes),
    }


def density_state(heads: int, dim: int, start: str = "daam.gcts") -> State:
    r = numbers(2)
    state = {}
    for head in range(heads):
        state[f"{start}.{head}.c"] = 1.5 + r(1, dim).abs()
        state[f"{start}.{head}.mean_offset"] = 0.2 * r(1, dim)
    return state


def grouped_state(dim: int, width: int = 512, rows: int = 128) -> State:
    r = numbers(3)
    shapes = {
        "embed_transform": (width, dim),
        "gqa.q_proj": (width, width),
        "gqa.k_proj": (rows, width),
        "gqa.v_proj": (rows, width),
        "gqa.out_proj": (width, rows),
    }
    state = {}
    for name, (rows_, columns) in shapes.items():
        gain = 4 if name in ("gqa.q_proj", "gqa.k_proj") else 1  # else the doubly scaled softmax is flat
        state[f"{name}.weight"] = gain * r(rows_, columns) / math.sqrt(columns)
        state[f"{name}.bias"] = 0.1 * r(rows_)
    return {**state, "gqa.norm.weight": 1 + 0.2 * r(rows), "gqa.norm.bias": 0.1 * r(rows)}


def attention_state(dim: int, start: str = "mha") -> State:
    r = numbers(4)
    return {
        f"{start}.in_proj_weight": 2 * r(3 * dim, dim) / math.sqrt(dim),
        f"{start}.in_proj_bias": 0.1 * r(3 * dim),
        f"{start}.out_proj.weight": r(dim, dim) / math.sqrt(dim),
        f"{start}.out_proj.bias": 0.1 * r(dim),
    }


def batch_norm_state(layers: int) -> State:
    r = numbers(5)
    return {
        "batch_norm.weight": 1 + 0.3 * r(layers),
        "batch_norm.bias": 0.2 * r(layers),
        "batch_norm.running_mean": 0.3 * r(layers),
        "batch_norm.running_var": 0.5 + r(layers).abs(),
        "batch_norm.num_batches_tracked": torch.tensor(17),
    }


def mixture_state(heads: list[int], densities: list[int], start: str = "daam.") -> State:
    """One block for every number of heads; spreads of either sign."""
    r = numbers(6)
    state = {}
    for block, (number, size) in enumerate(zip(heads, densities, strict=True)):
        for head in range(number):
            name = f"{start}layers.{block}.attention_heads.{head}"
            state[f"{name}.mean_offsets"] = 0.5 * r(size)
            state[f"{name}.c"] = (1 + r(size).abs()) * (-1) ** head
    return state


# The published forward passes, x (B, L, D).


def decoder(state: State, x: Tensor, grid: tuple[int, int]) -> Tensor:
    image = x.reshape(len(x), -1, *grid)
    image = F.relu(F.conv2d(image, state["conv1.weight"], state["conv1.bias"], padding=1))
    image = F.relu(F.conv2d(image, state["conv2.weight"], state["conv2.bias"], padding=1))
    return image.flatten(1) @ state["fc.weight"].T + state["fc.bias"]


def density(state: State, x: Tensor, start: str = "daam.gcts") -> Tensor:
    heads = sum(key.startswith(start) for key in state) // 2
    weights = []
    for head, part in enumerate(x.chunk(heads, dim=1)):
        m = part.mean(1, keepdim=True)
        v = ((part**2).mean(1, keepdim=True) - m**2).abs() + 1e-8
        y = (part - (m + state[f"{start}.{head}.mean_offset"])) / (v + 1e-5).sqrt()
        weights.append(torch.exp(-(y**2) / (2 * state[f"{start}.{head}.c"])))
    return torch.cat(weights, 1)


def grouped(state: State, x: Tensor, query_heads: int = 8) -> Tensor:
    def linear(name: str, value: Tensor) -> Tensor:
        return value @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    x = linear("embed_transform", x)
    q, k, v = (linear(f"gqa.{name}_proj", x) for name in "qkv")
    size = q.shape[-1] // query_heads
    key_heads = k.shape[-1] // size
    group = query_heads // key_heads
    mixed = []
    for j in range(key_heads):
        key, value = k[..., j * size : (j + 1) * size], v[..., j * size : (j + 1) * size]
        scores = 0
        for i in range(j * group, (j + 1) * group):
            scores = scores + q[..., i * size : (i + 1) * size] / math.sqrt(size) @ key.transpose(1, 2)
        mixed.append(torch.softmax(scores / math.sqrt(size), -1) @ value)
    joined = torch.cat(mixed, -1)
    mean = joined.mean(-1, keepdim=True)
    var = ((joined - mean) ** 2).mean(-1, keepdim=True)
    joined = (joined - mean) / (var + 1e-5).sqrt() * state["gqa.norm.weight"] + state["gqa.norm.bias"]
    return linear("gqa.out_proj", joined)


def attention_over_batch(state: State, x: Tensor, start: str = "mha", heads: int = 8) -> Tensor:
    dim = x.shape[-1]
    size = dim // heads
    output = torch.empty_like(x)
    for layer in range(x.shape[1]):
        q, k, v = (x[:, layer] @ state[f"{start}.in_proj_weight"].T + state[f"{start}.in_proj_bias"]).split(dim, -1)
        mixed = []
        for i in range(heads):
            part = slice(i * size, (i + 1) * size)
            mixed.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(size), -1) @ v[:, part])
        joined = torch.cat(mixed, -1)
        output[:, layer] = joined @ state[f"{start}.out_proj.weight"].T + state[f"{start}.out_proj.bias"]
    return output


def batch_norm(state: State, x: Tensor) -> Tensor:
    mean, var, weight, bias = (
        state[f"batch_norm.{name}"].view(-1, 1) for name in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def mixture(state: State, x: Tensor, axes: list[int], start: str = "daam.") -> tuple[Tensor, list[Tensor]]:
    """Output and the weights of every block."""
    weights = []
    for block, axis in enumerate(axes):
        name = f"{start}layers.{block}.attention_heads"
        heads = sum(key.startswith(f"{name}.") for key in state) // 2
        size, total, parts = x.shape[axis] // heads, x.shape[axis], []
        for head in range(heads):
            part = x.narrow(axis, head * size, total - head * size if head == heads - 1 else size)
            mean, var = part.mean(axis, keepdim=True), part.var(axis, keepdim=True) + 1e-8
            joint = torch.ones_like(part)
            for m, c in zip(state[f"{name}.{head}.mean_offsets"], state[f"{name}.{head}.c"], strict=True):
                y = (part - (mean + m)) / var.sqrt()
                joint = joint * torch.exp(-(y**2) / (2 * c**2)) / torch.sqrt(2 * torch.pi * c**2)
            parts.append(joint / joint.sum(axis, keepdim=True).clamp(min=1e-8))
        weights.append(torch.cat(parts, axis))
        x = x * weights[-1] + x
    return x, weights


# Helpers


def sample(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.3


def double(state: Mapping[str, Tensor]) -> State:
    return {key: value.double() for key, value in state.items()}


def check_equal(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.02


def run(source: Any, x: Tensor, **options: Any) -> Tensor:
    model = load_published(source, **options)
    assert not model.training
    with torch.no_grad():
        return model(x)


SMALL = {**density_state(8, 16), **decoder_state(24, 16, 4)}


def check_small(source: Any) -> None:
    """A DAAM v1 of 24 layers with 4 x 4 images."""
    x = sample(3, 24, 16)
    model = load_published(source)
    with torch.no_grad():
        logits, weights = model(x, return_density=True)
    expected = density(SMALL, x)
    check_equal(weights, expected)
    check_equal(logits, decoder(double(SMALL), x.double() * expected, (4, 4)))


# Golden tensors


@pytest.mark.parametrize(
    ("name", "method", "parameters"),
    [("iemocap-daamv1", "daam-v1", 336_412), ("iemocap-gqdaam", "gqdaam-published", 1_272_348)],
)
def test_golden_decoders(name: str, method: str, parameters: int) -> None:
    path = GOLDEN / f"{name}.safetensors"
    if not path.exists():
        pytest.skip(f"no golden tensors at {path}")
    golden = load_file(path)
    weights = {key.removeprefix("param/"): value for key, value in golden.items() if key.startswith("param/")}
    assert recognise(weights).method == method
    for source in (path, golden, weights):
        model = load_published(source)
        assert sum(p.numel() for p in model.parameters()) == parameters
        with torch.no_grad():
            logits, density = model(golden["input"], return_density=True)
        torch.testing.assert_close(logits, golden["logits"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(density, golden["density"], atol=1e-5, rtol=1e-5)


def test_golden_density_block() -> None:
    path = GOLDEN / "mixture-axis1.safetensors"
    if not path.exists():
        pytest.skip(f"no golden tensors at {path}")
    golden = load_file(path)
    block = load_published(path, norm_axis=1)
    assert isinstance(block, DensityBlock)
    with torch.no_grad():
        output, densities = block(golden["input"], return_density=True)
    torch.testing.assert_close(output, golden["output"], atol=1e-5, rtol=1e-5)
    for i, weights in enumerate(densities):
        torch.testing.assert_close(weights, golden[f"density/layer_{i}"], atol=1e-5, rtol=1e-5)


# Restated modules


@pytest.mark.parametrize("start", ["daam.gcts", "daam.daams", "gct.gcts", "gct.daams"])
@pytest.mark.parametrize(
    ("layers", "dim", "classes", "heads", "grid"),
    [(24, 1024, 100, 8, (32, 32)), (40, 5120, 4, 8, (64, 80)), (40, 12, 4, 1, (3, 4)), (24, 16, 4, 24, (4, 4))],
)
def test_daam(start: str, layers: int, dim: int, classes: int, heads: int, grid: tuple[int, int]) -> None:
    state = {**density_state(heads, dim, start), **decoder_state(layers, dim, classes, hidden=4)}
    x = sample(2, layers, dim)
    seen = recognise(state)
    assert seen.method == ("daam-v1" if heads > 1 else "daam-v2")
    assert seen.sizes == {"num_layers": layers, "embed_dim": dim, "num_classes": classes}
    with torch.no_grad():
        logits, weights = load_published(state)(x, return_density=True)
    expected = density(state, x, start)
    check_equal(weights, expected)
    check_equal(logits, decoder(double(state), x.double() * expected, grid))


@pytest.mark.parametrize("start", ["daam.gcts", "gct.gcts", None])
@pytest.mark.parametrize(
    ("layers", "dim", "grid"), [(24, 1024, (8, 64)), (40, 5120, (64, 8)), (6, 10, (8, 64))], ids=str
)
def test_grouped_query(start: str | None, layers: int, dim: int, grid: tuple[int, int]) -> None:
    heads = 8 if layers % 8 == 0 else 2
    state = {**(density_state(heads, dim, start) if start else {}), **grouped_state(dim)}
    state |= decoder_state(layers, 512, 4, hidden=4)
    x = sample(2, layers, dim)
    seen = recognise(state)
    settings = {"width": 512, "query_heads": 8, "kv_heads": 2, "hidden_channels": 4}
    if start:
        settings |= {"variance": "moments", "num_heads": heads}
    assert (seen.method, seen.settings) == ("gqdaam-published" if start else "gqa-published", settings)
    weighted = x.double()
    if start:
        weights = density(state, x, start)
        check_equal(load_published(state)(x, return_density=True)[1], weights)
        weighted = weighted * weights
    check_equal(run(state, x), decoder(double(state), grouped(double(state), weighted), grid))


def test_other_numbers_of_query_heads() -> None:
    state = {**grouped_state(16, width=32, rows=8), **decoder_state(6, 32, 4)}
    x = sample(2, 6, 16)
    for query_heads in (4, 8, 16):
        seen = recognise(state, query_heads=query_heads)
        assert seen.settings["kv_heads"] == query_heads // 4
        size = 32 // query_heads
        grid = (size, query_heads) if size == 4 else (query_heads, size)
        expected = decoder(double(state), grouped(double(state), x.double(), query_heads), grid)
        check_equal(run(state, x, query_heads=query_heads), expected)


@pytest.mark.parametrize("start", ["mha", "gct"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_attention_over_the_batch(start: str, batch: int) -> None:
    state = {**attention_state(32, start), **decoder_state(6, 32, 4)}
    x = sample(batch, 6, 32)
    assert recognise(state).method == "mha-published"
    expected = decoder(double(state), attention_over_batch(double(state), x.double(), start), (4, 8))
    check_equal(run(state, x), expected)
    if batch > 1:
        assert (run(state, x[:1]) - expected[:1]).abs().max() > 0.05  # its prediction depends on its batch (D1)


@pytest.mark.parametrize("batch", [1, 8])
def test_one_layer_attention_of_the_ablation(batch: int) -> None:
    """Its script hands the attention (B, D): torch takes the samples for a sequence, as with more layers."""
    state = {**attention_state(1024), **decoder_state(1, 1024, 4)}
    x = sample(batch, 1, 1024)
    seen = recognise(state)
    assert (seen.method, seen.sizes["num_layers"]) == ("mha-published", 1)
    assert "the input is (B, 1, D)" in seen.note
    check_equal(run(state, x), decoder(double(state), attention_over_batch(double(state), x.double()), (32, 32)))


@pytest.mark.parametrize("start", ["mha", "gct"])
def test_attention_and_batch_normalisation(start: str) -> None:
    state = {**attention_state(16, start), **batch_norm_state(6), **decoder_state(6, 16, 4)}
    x = sample(3, 6, 16)
    seen = recognise(state)
    assert (seen.method, seen.settings["attend_over"]) == ("mha-bn", "batch")
    model = load_published(state)
    assert model.fusion.norm.num_batches_tracked.item() == 17
    mixed = batch_norm(double(state), attention_over_batch(double(state), x.double(), start))
    check_equal(run(state, x), decoder(double(state), mixed, (4, 4)))


@pytest.mark.parametrize(
    ("norm_axis", "axis"), [(1, "layers"), (-2, "layers"), (2, "features"), (-1, "features"), ([2, 2], "features")]
)
def test_mixture_decoder(norm_axis: Any, axis: str) -> None:
    """The script released later has 4 heads of 4 Gaussians over the layers, in one block."""
    blocks = 2 if isinstance(norm_axis, list) else 1
    state = {**mixture_state([4] * blocks, [4] * blocks), **decoder_state(9, 12, 4)}
    x = sample(3, 9, 12)
    seen = recognise(state, norm_axis=norm_axis)
    assert (seen.method, seen.settings["norm_axis"]) == ("mixture-daam", axis)
    fused, weights = mixture(double(state), x.double(), [1 if axis == "layers" else 2] * blocks)
    with torch.no_grad():
        logits, found = load_published(state, norm_axis=norm_axis)(x, return_density=True)
    check_equal(logits, decoder(double(state), fused, (3, 4)))
    check_equal(1 + found, torch.stack([1 + w for w in weights]).prod(0))


@pytest.mark.parametrize(
    ("norm_axis", "heads", "densities"), [(1, [8, 8], [4, 4]), (2, [3], [5]), ([1, -1, 2], [4, 3, 1], [2, 5, 1])]
)
def test_bare_density_block(norm_axis: Any, heads: list[int], densities: list[int]) -> None:
    state = mixture_state(heads, densities, start="")
    x = sample(2, 17, 14)
    axes = norm_axis if isinstance(norm_axis, list) else [norm_axis] * len(heads)
    expected, weights = mixture(double(state), x.double(), axes, start="")
    block = load_published(state, norm_axis=norm_axis)
    assert isinstance(block, DensityBlock)
    assert recognise(state).method == "density-block"
    with torch.no_grad():
        output, densities_ = block(x, return_density=True)
    check_equal(output, expected)
    for found, w in zip(densities_, weights, strict=True):
        torch.testing.assert_close(found, w.float(), atol=1e-5, rtol=1e-5)


# Where a state dict comes from


def test_ten_heads_and_more_stay_in_numeric_order() -> None:
    """As text, daam.gcts.10 comes before daam.gcts.2."""
    state = {**density_state(12, 16), **decoder_state(24, 16, 4)}
    x, shuffled = sample(2, 24, 16), dict(sorted(state.items()))
    assert list(shuffled).index("daam.gcts.10.c") < list(shuffled).index("daam.gcts.2.c")
    assert torch.equal(run(shuffled, x), run(state, x))
    check_equal(run(state, x), decoder(double(state), x.double() * density(state, x), (4, 4)))


@pytest.mark.parametrize("wrapper", [None, "model_state_dict", "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_torch_files(tmp_path: Path, wrapper: str | None, prefix: str) -> None:
    state: Any = {prefix + key: value for key, value in SMALL.items()}
    path = tmp_path / "best.pt"
    torch.save(state if wrapper is None else {"epoch": 3, wrapper: state}, path)
    check_small(path)
    check_small(str(path))


def test_published_checkpoint_file(tmp_path: Path) -> None:
    """With everything that the published scripts store beside the weights, in either format of torch."""
    weights = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(weights.parameters())
    weights(torch.ones(2)).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 7,
        "state_dict": SMALL,
        "optimizer": optimizer.state_dict(),
        "best_val_accuracy": 0.672,
        "attention_weights": [[torch.zeros(24, 16)], {"layer_0": torch.zeros(2, 24, 16)}, None],
    }
    for zipped in (True, False):
        torch.save(checkpoint, tmp_path / "checkpoint.pth", _use_new_zipfile_serialization=zipped)
        check_small(tmp_path / "checkpoint.pth")


@pytest.mark.parametrize("prefix", ["", "module.", "param/", "param/module."])
def test_safetensors_files(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "best.safetensors"
    others = {"input": torch.zeros(3), "logits": torch.zeros(2)} if prefix.startswith("param/") else {}
    save_file({**others, **{prefix + key: value for key, value in SMALL.items()}}, path)
    check_small(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_become_float32(dtype: torch.dtype) -> None:
    state = {key: value.to(dtype) for key, value in SMALL.items()}
    ours = load_published(state)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    x = sample(2, 24, 16)
    torch.testing.assert_close(run(state, x), run({key: value.float() for key, value in state.items()}, x))


def test_weights_are_copied() -> None:
    state = {key: value.clone() for key, value in SMALL.items()}
    with torch.no_grad():
        for p in load_published(state).parameters():
            p.zero_()
    check_small(state)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_missing_and_damaged_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"best{suffix}"
    with pytest.raises(MethodError, match=f"^no file {path}$"):
        load_published(path)
    with pytest.raises(MethodError, match=f"^no file {tmp_path}$"):
        load_published(tmp_path)
    for content in (b"", b"not weights at all", b"\x80\x04\x95"):
        path.write_bytes(content)
        with pytest.raises(MethodError, match=f"^{path} cannot be read as weights: [^\n]+$"):
            load_published(path)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.999])
def test_truncated_file(tmp_path: Path, fraction: float) -> None:
    path = tmp_path / "best.pt"
    torch.save(SMALL, path)
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(MethodError, match=r"cannot be read as weights: it is damaged or of another format$"):
        load_published(path)


def test_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "best.pth").touch()
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(MethodError, match=r"best\.pth cannot be read as weights: Permission denied$"):
        load_published(tmp_path / "best.pth")


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def test_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "best.pt", tmp_path / "mark"
    torch.save({"fc.weight": Evil(str(mark))}, path)
    with pytest.raises(MethodError, match=r"as weights: it contains code \(\w+\.mkdir\), which is not run$"):
        load_published(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the file does carry code: an unguarded load runs it
    assert mark.exists()


@pytest.mark.parametrize("value", [[1, 2], {"epoch": 3}, {"model": {"a": 1}}, {3: torch.zeros(1)}, torch.zeros(3)])
def test_file_without_a_state_dict(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "best.pt")
    with pytest.raises(MethodError, match=r"best\.pt does not map names to tensors$"):
        load_published(tmp_path / "best.pt")


# What is not a published checkpoint

FAMILIES: dict[str, State] = {
    "daam-v1": SMALL,
    "daam-v2": {**density_state(1, 16), **decoder_state(6, 16, 4)},
    "gqdaam-published": {**density_state(2, 16), **grouped_state(16, 32, 8), **decoder_state(6, 32, 4)},
    "gqa-published": {**grouped_state(16, 32, 8), **decoder_state(6, 32, 4)},
    "mha-published": {**attention_state(16), **decoder_state(6, 16, 4)},
    "mha-bn": {**attention_state(16), **batch_norm_state(6), **decoder_state(6, 16, 4)},
    "mixture-daam": {**mixture_state([2, 2], [3, 3]), **decoder_state(6, 16, 4)},
    "density-block": mixture_state([2, 3], [3, 1], start=""),
}


def refusal(state: Mapping[str, Tensor], **options: Any) -> str:
    with pytest.raises(MethodError) as caught:
        load_published(state, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("method", list(FAMILIES))
def test_missing_and_unknown_keys_are_named(method: str) -> None:
    state = FAMILIES[method]
    assert recognise(state).method == method
    extra = refusal({**state, "gate.weight": torch.zeros(1)})
    assert extra == f"not a published checkpoint, but closest to {method}: missing none; unknown gate.weight"
    for gone in state:
        text = refusal({key: value for key, value in state.items() if key != gone})
        assert gone in text or method == "mha-bn"  # without any key of the norm it is a whole other module


@pytest.mark.parametrize("method", list(FAMILIES))
def test_every_tensor_of_another_shape_is_refused(method: str) -> None:
    state = FAMILIES[method]
    for key, value in state.items():
        shapes = [(), (0,), (2, 2, 2), tuple(size + 1 for size in value.shape) or (3,)]
        for shape in shapes:
            if tuple(value.shape) != shape:
                assert refusal({**state, key: torch.zeros(shape)})


def test_messages_name_shapes() -> None:
    assert refusal({**SMALL, "fc.weight": torch.zeros(4, 7)}) == (
        "weights do not fit: fc.weight is (4, 7) where (4, 384) is needed"
    )
    assert refusal({**SMALL, "daam.gcts.1.c": torch.zeros(1, 17)}) == (
        "weights do not fit: daam.gcts.1.c is (1, 17) where (1, 16) is needed"
    )
    assert refusal({**SMALL, "conv1.weight": torch.zeros(4)}) == (
        "weights do not fit: conv1.weight is (4,) where 4 non-empty axes are needed"
    )
    whole = {**SMALL, "conv2.bias": torch.zeros(24, dtype=torch.int64)}
    assert refusal(whole) == "conv2.bias is torch.int64, not floating-point numbers"


@pytest.mark.parametrize("state", [{}, {"a": torch.zeros(1)}, decoder_state(6, 16, 4)])
def test_no_attention_at_all(state: State) -> None:
    names = ", ".join(sorted(state)[:5]) or "none"
    assert refusal(state).startswith(f"no published module has these keys: {names}")


def test_something_that_is_no_state_dict() -> None:
    assert refusal({"fc.weight": 3}) == "the state dict does not map names to tensors"  # type: ignore[dict-item]


def test_gap_in_the_heads() -> None:
    state = {key: value for key, value in SMALL.items() if not key.startswith("daam.gcts.3.")}
    assert "missing daam.gcts.3.c, daam.gcts.3.mean_offset; unknown none" in refusal(state)
    huge = {**SMALL, "daam.gcts.99999999999.c": torch.zeros(1, 16)}
    assert "more; unknown daam.gcts.99999999999.c" in refusal(huge)


def test_heads_that_do_not_divide_the_layers() -> None:
    state = {key: value for key, value in SMALL.items() if not key.startswith("daam.gcts.7")}
    assert refusal(state).startswith("num_heads (7) must divide the number of layers (24)")


def test_vision_gqdaam_cannot_run() -> None:
    """D9: one head, and an fc for 24 * 1024 inputs behind an attention that gives 24 * 512."""
    state = {**density_state(1, 1024), **grouped_state(1024), **decoder_state(24, 1024, 100)}
    assert refusal(state) == (
        "this is the published vision GQDAAM, which cannot run (D9): "
        "its fc takes 24*1024 inputs, its attention gives 24*512"
    )


def test_grouped_heads_that_do_not_fit() -> None:
    state = {**grouped_state(16, width=32, rows=6), **decoder_state(6, 32, 4)}
    assert refusal(state) == "gqa.k_proj has 6 rows, not a multiple of the head width 32/8"
    assert refusal(FAMILIES["mha-bn"], query_heads=3).startswith("num_heads (3) must divide the layer width (16)")


def test_axes_of_the_mixture() -> None:
    state = FAMILIES["mixture-daam"]
    for norm_axis in (0, 3, [1, 2]):
        assert refusal(state, norm_axis=norm_axis) == (
            f"norm_axis with a decoder must be 1 or -2 (layers), 2 or -1 (features), got {norm_axis}"
        )
    uneven = {**mixture_state([2, 3], [3, 3]), **decoder_state(6, 16, 4)}
    assert refusal(uneven) == "num_heads must be the same in all blocks with a decoder, got [2, 3]"
    assert (
        refusal({**state, "fc.weight": torch.zeros(4, 97)}) == "fc.weight has 97 inputs, not a multiple of the 6 layers"
    )
    assert refusal(FAMILIES["density-block"], norm_axis=[1]).startswith("norm_axis must be one number or 2, one per")
