"""Checkpoints of the published code give the published numbers in our modules.

Two sources: tensors made with the published modules (shared/golden), and a restatement of the published decoder in this
file, written from FACTS 1 to 3, so that the core check never skips.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import load_published

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared/golden/iemocap-daamv1.safetensors"
LAYERS, DIM, CLASSES, BATCH = 24, 16, 4, 3


class Head(nn.Module):
    """One density head over its layers; input (B, n, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.full((1, DIM), 2.0))
        self.mean_offset = nn.Parameter(torch.zeros(1, DIM))

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.mean(x, dim=1, keepdim=True)
        variance = torch.abs(torch.mean(x**2, dim=1, keepdim=True) - mean**2) + 1e-8
        normalized = (x - (mean + self.mean_offset)) / torch.sqrt(variance + 1e-5)
        return torch.exp(-(normalized**2) / (2 * self.c))


class Heads(nn.Module):
    """Splits the layers in equal runs; `name` is what the published class calls its list."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__()
        setattr(self, name, nn.ModuleList(Head() for _ in range(number)))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        heads = getattr(self, self.name)
        return torch.cat([head(part) for head, part in zip(heads, x.chunk(len(heads), dim=1), strict=True)], dim=1)


class Published(nn.Module):
    """The published decoder: DAAM, two convolutions on 4 x 4 images, one linear layer."""

    def __init__(self, heads: int, name: str) -> None:
        super().__init__()
        self.daam = Heads(heads, name)
        self.conv1 = nn.Conv2d(LAYERS, 512, kernel_size=3, stride=1, padding=1)
        self.conv2 = nn.Conv2d(512, LAYERS, kernel_size=3, stride=1, padding=1)
        self.fc = nn.Linear(LAYERS * DIM, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        density = self.daam(x)
        image = (x * density).view(len(x), LAYERS, 4, 4)
        image = torch.relu(self.conv2(torch.relu(self.conv1(image))))
        return self.fc(image.view(len(x), -1)), density


def make(heads: int = 8, name: str = "gcts") -> Published:
    """The published module with parameters moved off their start values."""
    torch.manual_seed(5)
    model = Published(heads, name)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith(".c"):
                p.copy_(1.5 + torch.rand(p.shape))
            elif key.endswith("mean_offset"):
                p.copy_(0.2 * torch.randn(p.shape))
    return model.eval()


def check_equal(model: Published, source: Path | str | Mapping[str, Tensor]) -> None:
    x = 2 * torch.randn(BATCH, LAYERS, DIM, generator=torch.Generator().manual_seed(9)) + 0.5
    ours = load_published(source)
    assert not ours.training
    with torch.no_grad():
        expected, expected_density = model(x)
        logits, density = ours(x, return_density=True)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(density, expected_density, atol=1e-5, rtol=1e-5)
    assert density.std() > 0.05


def test_golden_tensors() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden tensors at {GOLDEN}")
    golden = load_file(GOLDEN)
    ours = load_published({k.removeprefix("param/"): v for k, v in golden.items() if k.startswith("param/")})
    assert sum(p.numel() for p in ours.parameters()) == 336_412
    with torch.no_grad():
        logits, density = ours(golden["input"], return_density=True)
    torch.testing.assert_close(logits, golden["logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(density, golden["density"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 8, 24])
@pytest.mark.parametrize("name", ["gcts", "daams"])
def test_state_dict_gives_the_published_numbers(heads: int, name: str) -> None:
    model = make(heads, name)
    check_equal(model, model.state_dict())


def test_ten_heads_and_more_stay_in_numeric_order() -> None:
    """As text, daam.gcts.10 comes before daam.gcts.2."""
    model = make(12)
    shuffled = dict(sorted(model.state_dict().items()))
    assert list(shuffled).index("daam.gcts.10.c") < list(shuffled).index("daam.gcts.2.c")
    check_equal(model, shuffled)


@pytest.mark.parametrize("wrapper", [None, "model_state_dict", "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_torch_files(tmp_path: Path, wrapper: str | None, prefix: str) -> None:
    model = make()
    state: Any = {prefix + key: value for key, value in model.state_dict().items()}
    path = tmp_path / "best.pt"
    torch.save(state if wrapper is None else {"epoch": 3, wrapper: state}, path)
    check_equal(model, path)
    check_equal(model, str(path))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors_files(tmp_path: Path, prefix: str) -> None:
    model = make(1, "daams")
    path = tmp_path / "best.safetensors"
    save_file({prefix + key: value.contiguous() for key, value in model.state_dict().items()}, path)
    check_equal(model, path)


def test_half_precision_weights_are_widened(tmp_path: Path) -> None:
    state = {key: value.half() for key, value in make().state_dict().items()}
    ours = load_published(state)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_missing_and_damaged_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"best{suffix}"
    with pytest.raises(MethodError, match=f"^no file {path}$"):
        load_published(path)
    path.write_bytes(b"not weights at all")
    with pytest.raises(MethodError, match=f"^{path} cannot be read as weights: "):
        load_published(path)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    torch.save(make().state_dict(), path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(MethodError, match="cannot be read as weights"):
        load_published(path)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def test_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "best.pt", tmp_path / "mark"
    torch.save({"fc.weight": Evil(str(mark))}, path)
    with pytest.raises(MethodError, match=r"cannot be read as weights: (?s:.*)"):
        load_published(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the file does carry code: an unguarded load runs it
    assert mark.exists()


@pytest.mark.parametrize("value", [[1, 2], {"epoch": 3}, {"model": {"a": 1}}, torch.zeros(3)])
def test_file_without_a_state_dict(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "best.pt")
    with pytest.raises(MethodError, match=r"best\.pt holds no state dict$"):
        load_published(tmp_path / "best.pt")


def test_missing_and_unknown_keys_are_named() -> None:
    state = dict(make().state_dict())
    del state["fc.bias"]
    state["gate.weight"] = torch.zeros(1)
    with pytest.raises(MethodError) as caught:
        load_published(state)
    assert str(caught.value) == (
        "not a published DAAM checkpoint: missing keys ['fc.bias'], unknown keys ['gate.weight'], "
        "heads found [0, 1, 2, 3, 4, 5, 6, 7], each of which needs c and mean_offset"
    )


@pytest.mark.parametrize("gone", ["daam.gcts.3.c", "daam.gcts.3.mean_offset", "daam.gcts.3."])
def test_incomplete_heads(gone: str) -> None:
    state = {key: value for key, value in make().state_dict().items() if not key.startswith(gone)}
    with pytest.raises(MethodError, match="not a published DAAM checkpoint"):
        load_published(state)


def test_no_head_at_all() -> None:
    state = {key: value for key, value in make().state_dict().items() if not key.startswith("daam")}
    with pytest.raises(MethodError, match=r"heads found \[\], each of which needs c"):
        load_published(state)


def test_heads_that_do_not_divide_the_layers() -> None:
    state = {key: value for key, value in make().state_dict().items() if not key.startswith("daam.gcts.7")}
    with pytest.raises(MethodError, match=r"num_heads \(7\) must divide the number of layers \(24\)"):
        load_published(state)


def test_shapes_that_do_not_fit() -> None:
    state = {**make().state_dict(), "fc.weight": torch.zeros(CLASSES, 7)}
    with pytest.raises(MethodError, match=r"^published checkpoint does not fit together: "):
        load_published(state)


@pytest.mark.parametrize(
    ("key", "shape"), [("daam.gcts.1.c", (1, DIM + 1)), ("daam.gcts.0.c", ()), ("conv1.weight", (4,))]
)
def test_odd_shapes_are_refused_in_words(key: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(MethodError):
        load_published({**make().state_dict(), key: torch.zeros(shape)})
