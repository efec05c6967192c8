"""What every method must do: one set of behaviours, run over every name of the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import METHODS, FusionClassifier, build

NAMES = list(METHODS)
LAYERS, DIM, CLASSES = 24, 16, 4

# FACTS 7: trainable parameters for (num_layers, embed_dim, num_classes). The weighted sum is not in the papers: one
# scalar per layer, then D -> 256 -> C with biases.
SPEECH, VISION, TEXT = (24, 1024, 4), (24, 1024, 100), (40, 5120, 4)
COUNTS = {
    "none": {SPEECH: 320_028, VISION: 2_679_420, TEXT: 1_188_396},
    "weighted-sum": {
        SPEECH: 24 + 1024 * 256 + 256 + 256 * 4 + 4,
        VISION: 24 + 1024 * 256 + 256 + 256 * 100 + 100,
        TEXT: 40 + 5120 * 256 + 256 + 256 * 4 + 4,
    },
    "mha": {SPEECH: 4_518_428, VISION: 6_877_820, TEXT: 106_066_476},
    "daam-v1": {SPEECH: 336_412, VISION: 2_695_804, TEXT: 1_270_316},
    "daam-v2": {SPEECH: 322_076, VISION: 2_681_468, TEXT: 1_198_636},
}
WITH_DENSITY = {"daam-v1", "daam-v2"}


def make(method: str, seed: int = 0) -> FusionClassifier:
    """A method with every parameter moved off its start value."""
    torch.manual_seed(seed)
    model = build(method, num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    return model


def batch(size: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(size, LAYERS, DIM, generator=torch.Generator().manual_seed(seed))


def test_table_is_met() -> None:
    assert len(NAMES) == 5
    assert set(COUNTS) == set(NAMES)


@pytest.mark.parametrize("sizes", [SPEECH, VISION, TEXT])
@pytest.mark.parametrize("method", NAMES)
def test_exact_parameter_count(method: str, sizes: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        model = build(method, num_layers=sizes[0], embed_dim=sizes[1], num_classes=sizes[2])
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == COUNTS[method][sizes]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("sizes", [(24, 16, 4), (8, 8, 2), (8, 24, 7), (40, 40, 3)])
def test_logits_have_one_column_per_class(method: str, sizes: tuple[int, int, int]) -> None:
    layers, dim, classes = sizes
    model = build(method, num_layers=layers, embed_dim=dim, num_classes=classes)
    for size in (1, 3):
        assert model(torch.randn(size, layers, dim)).shape == (size, classes)


@pytest.mark.parametrize("method", NAMES)
def test_gradient_reaches_every_parameter(method: str) -> None:
    model = make(method)
    nn.functional.cross_entropy(model(batch()), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert len(list(model.parameters())) > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("method", NAMES)
def test_batch_of_one_equals_its_row(method: str) -> None:
    model, x = make(method).eval(), batch()
    with torch.no_grad():
        whole = model(x)
        rows = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(rows, whole, atol=1e-5, rtol=1e-4)
    assert whole.std(0).min() > 1e-3  # rows differ, so the comparison says something


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", NAMES)
def test_order_of_the_batch_does_not_matter(method: str, training: bool) -> None:
    model, x = make(method).train(training), batch()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    with torch.no_grad():
        torch.testing.assert_close(model(x[order]), model(x)[order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", NAMES)
def test_evaluation_repeats_and_leaves_no_state(method: str) -> None:
    model, x = make(method).eval(), batch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert before.keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("method", NAMES)
def test_finite_under_bfloat16_autocast(method: str, scale: float) -> None:
    model = make(method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(scale * batch())
    assert logits.isfinite().all()
    nn.functional.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("method", NAMES)
def test_saved_weights_load_to_the_same_outputs(method: str, tmp_path: Path) -> None:
    model, x = make(method).eval(), batch()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other = make(method, seed=7).eval()
    with torch.no_grad():
        assert not torch.equal(other(x), model(x))
        other.load_state_dict(load_file(tmp_path / "w.safetensors"))
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("method", NAMES)
def test_same_seed_same_start(method: str) -> None:
    def start(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return build(method, num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES).state_dict()

    first, second, third = start(3), start(3), start(4)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert any(not torch.equal(value, third[name]) for name, value in first.items())


@pytest.mark.parametrize("method", NAMES)
def test_density_is_there_or_refused(method: str) -> None:
    model, x = make(method).eval(), batch()
    assert model.has_density == (method in WITH_DENSITY)
    if model.has_density:
        with torch.no_grad():
            logits, density = model(x, return_density=True)
            assert torch.equal(logits, model(x))
        assert density.shape == x.shape
        assert density.dtype == torch.float32
        assert 0 < density.min() < density.max() <= 1
    else:
        with pytest.raises(MethodError, match=r"has no density$"):
            model(x, return_density=True)


@pytest.mark.parametrize("method", NAMES)
def test_float16_features_train_like_their_float32_copy(method: str) -> None:
    """The loop casts stored float16 to float32; a method must not depend on what it was stored as."""
    model, x = make(method).eval(), batch().half()
    with torch.no_grad():
        assert model(x.float()).dtype == torch.float32
        assert torch.equal(model(x.float()), model(x.half().float()))


@pytest.mark.parametrize("method", NAMES)
def test_summary_is_one_line_of_text(method: str) -> None:
    line = METHODS.summary(method)
    assert line.endswith(".")
    assert 20 < len(line) < 120
