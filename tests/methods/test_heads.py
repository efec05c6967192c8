"""How many heads split the layers: the rule behind `auto`, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.errors import MethodError
from daamctl.methods import METHODS, build, check_fits, load_weights, rebuild, resolve_method, save_weights
from daamctl.methods.heads import AUTO, auto_heads, check_heads, heads_of, resolved

DEPTHS = (4, 6, 12, 24, 32, 40)
WIDTHS = (384, 512, 768)
VARIANTS = [f"{name}-mlp" for name in METHODS if "mlp" in METHODS.choices(name).get("decoder", ())]
SPLIT = [name for name in METHODS if METHODS.defaults(name).get("num_heads") == AUTO]


@pytest.mark.parametrize(
    ("num_layers", "heads"),
    [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (7, 1), (8, 2), (9, 3), (12, 4), (16, 4), (24, 8), (32, 8),
     (36, 12), (40, 8), (48, 16)],
)  # fmt: skip
def test_rule(num_layers: int, heads: int) -> None:
    assert auto_heads(num_layers) == heads_of("auto", num_layers) == heads
    assert heads_of(5, num_layers) == 5


def test_methods_whose_heads_split_the_layers() -> None:
    assert set(SPLIT) == {"daam-v1", "daam-frozen", "gqdaam", "gqdaam-published", "mixture-daam"}


def test_resolved_settings() -> None:
    assert resolved({"num_heads": "auto", "eps": "single"}, 12) == {"num_heads": 4, "eps": "single"}
    assert resolved({"num_heads": "auto", "norm_axis": "layers"}, 6)["num_heads"] == 2
    assert resolved({"num_heads": "auto", "norm_axis": "features"}, 6)["num_heads"] == 8
    assert resolved({"num_heads": 3}, 12) == {"num_heads": 3}
    assert resolved({}, 12) == {}


@pytest.mark.parametrize("num_layers", DEPTHS)
@pytest.mark.parametrize("method", [*METHODS, *VARIANTS])
def test_every_method_fits_every_depth_without_a_setting(method: str, num_layers: int) -> None:
    for width in WIDTHS:
        with torch.device("meta"):
            assert build(method, num_layers=num_layers, embed_dim=width, num_classes=4) is not None
    name = resolve_method(method)[0]
    small = {key: value for key, value in {"hidden_channels": 4, "width": 16}.items() if key in METHODS.defaults(name)}
    model = build(method, num_layers=num_layers, embed_dim=16, num_classes=4, **small).eval()
    x = torch.randn(3, num_layers, 16, generator=torch.Generator().manual_seed(0))
    assert model(x).isfinite().all()


@pytest.mark.parametrize("method", SPLIT)
@pytest.mark.parametrize("num_layers", [24, 40])
def test_auto_is_the_published_eight_bit_for_bit(method: str, num_layers: int) -> None:
    sizes: dict[str, Any] = {"num_layers": num_layers, "embed_dim": 16, "num_classes": 4, "hidden_channels": 4}
    x = torch.randn(3, num_layers, 16, generator=torch.Generator().manual_seed(0))
    logits = []
    for settings in ({}, {"num_heads": 8}, {"num_heads": "auto"}):
        torch.manual_seed(0)
        logits.append(build(method, **sizes, **settings).eval()(x))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("num_layers", [6, 12, 24])
@pytest.mark.parametrize("method", SPLIT)
def test_weights_with_auto_heads_load_again(tmp_path: Path, method: str, num_layers: int) -> None:
    sizes = {"num_layers": num_layers, "embed_dim": 16, "num_classes": 4}
    x = torch.randn(3, num_layers, 16, generator=torch.Generator().manual_seed(0))
    for settings in ({"hidden_channels": 4}, {"hidden_channels": 4, "num_heads": "auto"}):
        model = build(method, **sizes, **settings).eval()
        save_weights(model, tmp_path / "weights.safetensors", method=method, settings=settings, **sizes)
        assert torch.equal(load_weights(tmp_path / "weights.safetensors")(x), model(x))


@pytest.mark.parametrize(
    ("parts", "whole", "possible", "nearest"),
    [(8, 6, "1, 2, 3", 2), (8, 12, "1, 2, 3, 4, 6", 4), (7, 24, "1, 2, 3, 4, 6, 8, 12", 6), (2, 7, "1", 1),
     (3, 2, "1", 1), (2, 1, "1", 1), (0, 4, "1, 2", 1)],
)  # fmt: skip
def test_no_number_is_proposed_that_leaves_one_layer_a_head(
    parts: int, whole: int, possible: str, nearest: int
) -> None:
    with pytest.raises(MethodError) as caught:
        check_heads("num_heads", parts, whole)
    assert caught.value.message == (
        f"num_heads ({parts}) must divide the number of layers ({whole}); possible: {possible}"
    )
    assert caught.value.setting == ("num_heads", nearest)


@pytest.mark.parametrize(
    ("method", "num_layers", "settings", "words"),
    [
        ("daam-v1", 6, {"num_heads": 6}, r"num_heads \(6\) leaves one of 6 layers to a head, .*; possible: 1, 2, 3$"),
        ("daam-v1-mlp", 24, {"num_heads": 24}, r"num_heads \(24\) leaves one of 24 layers to a head"),
        ("daam-frozen", 2, {"num_heads": 2}, r"num_heads \(2\) leaves one of 2 layers to a head, .*; possible: 1$"),
        ("gqdaam", 6, {"num_heads": 6}, r"num_heads \(6\) leaves one of 6 layers to a head"),
        ("gqdaam-published", 6, {"num_heads": 6}, r"num_heads \(6\) leaves one of 6 layers to a head"),
        ("mixture-daam", 12, {"num_heads": 8, "variance": "biased"}, r"num_heads \(8\) leaves one of 12 layers to a"),
        ("mixture-daam", 12, {"num_heads": 16, "variance": "biased", "norm_axis": "features"},
         r"num_heads \(16\) leaves one of 16 features to a head, .*; possible: at most 8$"),
        ("lct", 6, {"num_groups": 6}, r"num_groups \(6\) leaves one of 6 layers to a group, .*; possible: 1, 2, 3$"),
    ],
)  # fmt: skip
def test_one_layer_a_head_is_refused(method: str, num_layers: int, settings: dict[str, Any], words: str) -> None:
    sizes = {"num_layers": num_layers, "embed_dim": 16, "num_classes": 4}
    with pytest.raises(MethodError, match=f"^{words}"):
        build(method, **sizes, **settings)
    assert rebuild(method, **sizes, **settings) is not None  # weights that exist still load


@pytest.mark.parametrize("method", ["daam-v1", "daam-frozen", "gqdaam", "mixture-daam", "lct"])
def test_over_one_layer_a_head_is_allowed(method: str) -> None:
    """An ablation down to one layer trains what is left of the method."""
    settings: dict[str, Any] = {"mixture-daam": {"variance": "biased"}}.get(method, {})
    assert build(method, num_layers=1, embed_dim=16, num_classes=4, **settings) is not None


@pytest.mark.parametrize(
    "method", [name for name in METHODS if {"num_heads", "num_groups", "query_heads"} & set(METHODS.defaults(name))]
)
def test_what_fits_can_be_built_and_nothing_else_is_refused(method: str) -> None:
    """Fitting is told without building; only one layer (or feature) a head is refused besides what cannot be built."""
    defaults = METHODS.defaults(method)
    whole = [
        {},
        *({key: value} for key in ("num_heads", "num_groups", "query_heads", "kv_heads") for value in (1, 2, 3, 5, 8)),
    ]
    axes = [{"norm_axis": axis, "variance": way} for axis in ("layers", "features") for way in ("unbiased", "biased")]
    grid = [{**one, **other} for one in whole for other in (axes if "norm_axis" in defaults else [{}])]
    grid = [settings for settings in grid if set(settings) <= set(defaults)]
    refused = 0
    for settings in grid:
        for num_layers, embed_dim in ((1, 16), (2, 9), (4, 24), (6, 16), (8, 10), (12, 40)):
            sizes = {"num_layers": num_layers, "embed_dim": embed_dim}
            expected, said = None, None
            try:
                with torch.device("meta"):
                    rebuild(method, **sizes, num_classes=3, **settings)
            except MethodError as error:
                expected = error.message
            try:
                check_fits(method, settings, **sizes)
            except MethodError as error:
                said = error.message
            refused += said is not None
            assert said == expected or (expected is None and "to a head, with" in said.replace("group,", "head,"))
    assert refused


def test_weights_trained_with_one_layer_a_head_load(tmp_path: Path) -> None:
    settings = {"num_heads": 6, "hidden_channels": 4}
    sizes = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}
    model = rebuild("daam-v1", **sizes, **settings).eval()
    save_weights(model, tmp_path / "weights.safetensors", method="daam-v1", settings=settings, **sizes)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load_weights(tmp_path / "weights.safetensors")(x), model(x))
