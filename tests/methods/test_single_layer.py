"""Controls on one layer: the last one, and the best one of heads that train side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import MLPDecoder, build

LAYERS, DIM, CLASSES, HIDDEN = 5, 6, 3, 7
SIZES: dict[str, Any] = {"num_layers": LAYERS, "embed_dim": DIM, "num_classes": CLASSES, "hidden_dim": HIDDEN}


def best(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build("best-layer", **SIZES)


def separate(seed: int = 0) -> list[MLPDecoder]:
    """One head per layer, made one after another."""
    torch.manual_seed(seed)
    return [MLPDecoder(embed_dim=DIM, num_classes=CLASSES, hidden_dim=HIDDEN) for _ in range(LAYERS)]


def data(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, LAYERS, DIM, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def planted(size: int, layer: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Only `layer` tells the class: it stands in its first features."""
    x, y = data(size, seed)
    x[:, layer, :CLASSES] += 6 * nn.functional.one_hot(y, CLASSES)
    return x, y


def test_last_layer_reads_the_last_layer_only() -> None:
    model = build("last-layer", **SIZES)
    x, _ = data(4)
    assert torch.equal(model(x), model.decoder(x[:, LAYERS - 1]))
    weights = model.fusion.layer_weights(x)  # type: ignore[operator]
    assert weights.tolist() == [[0, 0, 0, 0, 1]] * 4
    torch.testing.assert_close(model.fusion(x), (weights.unsqueeze(-1) * x).sum(1))
    assert sum(p.numel() for p in model.fusion.parameters()) == 0


def test_heads_equal_numpy() -> None:
    model = best()
    x, _ = data(4)
    p = {name: value.detach().double().numpy() for name, value in model.decoder.named_parameters()}
    expected = np.empty((4, LAYERS, CLASSES))
    for layer in range(LAYERS):
        hidden = x[:, layer].double().numpy() @ p["projector_weight"][layer].T + p["projector_bias"][layer]
        expected[:, layer] = np.maximum(hidden, 0) @ p["classifier_weight"][layer].T + p["classifier_bias"][layer]
    np.testing.assert_allclose(model.decoder(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    for layer in range(LAYERS):
        model.fusion.chosen.fill_(layer)
        np.testing.assert_allclose(model(x).detach().numpy(), expected[:, layer], rtol=1e-4, atol=1e-5)
        assert torch.equal(model.fusion(x), x[:, layer])
        assert model.fusion.layer_weights(x).tolist() == [[float(i == layer) for i in range(LAYERS)]] * 4


def test_start_is_that_of_separate_heads() -> None:
    model = best()
    for layer, head in enumerate(separate()):
        assert torch.equal(model.decoder.projector_weight[layer], head.projector.weight)
        assert torch.equal(model.decoder.projector_bias[layer], head.projector.bias)
        assert torch.equal(model.decoder.classifier_weight[layer], head.classifier.weight)
        assert torch.equal(model.decoder.classifier_bias[layer], head.classifier.bias)
    assert model.decoder.projector_weight.abs().max() <= 1 / math.sqrt(DIM)
    assert sum(p.numel() for p in model.parameters()) == LAYERS * (DIM * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_trains_as_separate_heads_would(decay: float) -> None:
    model, heads = best(), separate()
    joint = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=decay)
    alone = [torch.optim.Adam(head.parameters(), lr=1e-2, weight_decay=decay) for head in heads]
    start = model.decoder(data(8)[0]).detach()
    for step in range(20):
        x, y = data(8, seed=step)
        loss, logits = model.training_loss(x, y, nn.functional.cross_entropy)
        losses = [nn.functional.cross_entropy(head(x[:, layer]), y) for layer, head in enumerate(heads)]
        torch.testing.assert_close(loss, torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits, heads[-1](x[:, -1]), atol=1e-5, rtol=1e-5)
        for optimizer, value in ((joint, loss), *zip(alone, losses, strict=True)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    x, _ = data(8)
    expected = torch.stack([head(x[:, layer]) for layer, head in enumerate(heads)], 1)
    torch.testing.assert_close(model.decoder(x), expected, atol=1e-5, rtol=1e-5)
    assert (expected - start).abs().max() > 0.1


def test_loss_is_that_of_one_head_and_its_gradient_that_of_all() -> None:
    """What is recorded does not grow with the number of layers; the step of SGD does not shrink with it."""
    model, heads = best(), separate()
    x, y = data(8)
    loss, _ = model.training_loss(x, y, nn.functional.cross_entropy)
    assert loss.item() == pytest.approx(math.log(CLASSES), rel=0.2)
    loss.backward()
    for layer, head in enumerate(heads):
        nn.functional.cross_entropy(head(x[:, layer]), y).backward()
        found = model.decoder.projector_weight.grad[layer], model.decoder.classifier_bias.grad[layer]
        torch.testing.assert_close(found, (head.projector.weight.grad, head.classifier.bias.grad), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_chooses_the_layer_that_tells_the_class(layer: int) -> None:
    model = best()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(100):
        loss, _ = model.training_loss(*planted(32, layer, seed=step), nn.functional.cross_entropy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.fusion.chosen.item() == LAYERS - 1
    x, y = planted(300, layer, seed=1000)
    model.eval().choose(x, y)
    assert model.fusion.chosen.item() == layer
    assert (model(x).argmax(-1) == y).double().mean() > 0.9
    assert (best()(x).argmax(-1) == y).double().mean() < 0.7  # the start has not learned it


def test_choice_counts_every_chunk_and_takes_the_first_of_equals() -> None:
    """Heads that always say one class: how often each is right can be planned, over more than one chunk."""
    model = best()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        for layer, answer in enumerate([0, 1, 2, 1, 2]):
            model.decoder.classifier_bias[layer, answer] = 1
    x, _ = data(700)
    for counts, chosen in (((300, 250, 150), 0), ((100, 350, 250), 1), ((100, 200, 400), 2), ((50, 325, 325), 1)):
        y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        model.choose(x, y)
        assert model.fusion.chosen.item() == chosen
    model.choose(x.half(), torch.full((700,), 2))  # stored number format
    assert model.fusion.chosen.item() == 2
    assert model.fusion.chosen.dtype == torch.int64
    assert model.traits.needs_dev


def test_choice_is_saved_with_the_weights(tmp_path: Path) -> None:
    model, other = best(), best(seed=1)
    x, _ = data(4)
    model.fusion.chosen.fill_(2)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert other.fusion.chosen.item() == 2
    assert torch.equal(other(x), model(x))


def test_exported_and_compiled_models_follow_the_choice() -> None:
    model = best().eval()
    x, _ = data(4)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for layer in (1, 3):
        model.fusion.chosen.fill_(layer)
        expected = model.decoder(x)[:, layer]
        torch.testing.assert_close(compiled(x), expected)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_no_density() -> None:
    with pytest.raises(MethodError, match=r"^ChosenLayer has no density$"):
        best()(data(2)[0], return_density=True)
