"""Building by name: every method, and every way to ask for one that cannot be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import daamctl.methods
from daamctl.errors import MethodError, UnknownNameError
from daamctl.methods import (
    METHODS,
    FusionClassifier,
    Traits,
    build,
    check_settings,
    counterparts,
    resolve_method,
    settings_of,
)
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import Sizes
from tests.fixtures.added import SOURCE, install

SIZES = {"num_layers": 8, "embed_dim": 16, "num_classes": 4}
NAMES = list(METHODS)


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        build("daam-v3", **SIZES)
    assert str(caught.value) == "unknown method 'daam-v3'\n  did you mean 'daam-v2'? similar: daam-v1, gqdaam"


def test_methods_of_another_package_are_built_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    assert build("peak", **SIZES, share=0.25).fusion.gate.item() == 0.25
    assert build("plain-mlp", **SIZES)(torch.zeros(2, 8, 16)).shape == (2, 4)
    assert counterparts("peak")[0] == "ridge-mean"
    assert counterparts("plain")[0] == "ridge-concat"
    with pytest.raises(MethodError, match=r"^peak: unknown setting 'shore'\n  did you mean 'share'\?"):
        build("peak", **SIZES, shore=0.25)
    with pytest.raises(MethodError, match=r"^wrong: its builder must return a FusionClassifier, got Peak$"):
        build("wrong", **SIZES)
    with pytest.raises(UnknownNameError, match=r"^unknown method 'zzz', which no installed package has"):
        build("zzz", **SIZES)


OWN = """

def own(
    sizes: Sizes, size: int = 0, *, widths: tuple = (8, 8), which: str | None = None, shift: int = -1
) -> FusionClassifier:
    \"""Settings of several kinds.\"""
    return peak(sizes, hidden_dim=widths[0])


def solved(sizes: Sizes) -> FusionClassifier:
    \"""A probe that claims to be solved.\"""
    return FusionClassifier(nn.Identity(), nn.Identity(), Traits(closed_form=True))
"""


def test_settings_of_another_package_may_be_nothing_lists_or_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"own": "my_fusions:own"}, source=SOURCE + OWN)
    for settings in ({"size": 0}, {"widths": [4, 4]}, {"which": "a"}, {"which": 3}):
        build("own", **SIZES, **settings)
    with pytest.raises(MethodError, match=r"^own: size must be a whole number of at least 0, got -1$"):
        build("own", **SIZES, size=-1)
    build("own", **SIZES, shift=-5)  # a negative default says nothing of the least value
    with pytest.raises(MethodError, match=r"^own: widths must be like \(8, 8\), got 4$"):
        build("own", **SIZES, widths=4)


def test_a_method_of_another_package_cannot_be_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("import FusionClassifier", "import FusionClassifier, Traits") + OWN
    install(tmp_path, monkeypatch, {"solved": "my_fusions:solved"}, source=source)
    with pytest.raises(MethodError, match=r"^solved: a method of a package is trained in steps, but its traits say"):
        build("solved", **SIZES)


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(("size", "value", "least"), [("num_layers", 0, 1), ("embed_dim", 0, 1), ("num_classes", 1, 2)])
def test_sizes_too_small(method: str, size: str, value: int, least: int) -> None:
    with pytest.raises(MethodError, match=f"^{method}: {size} must be at least {least}, got {value}$"):
        build(method, **{**SIZES, size: value})


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("none", "decoder, hidden_channels, hidden_dim"),
        ("none-mlp", "decoder, hidden_channels, hidden_dim"),
        ("weighted-sum", "hidden_dim"),
        ("mha", "decoder, hidden_channels, hidden_dim, num_heads"),
        ("daam-v1", "decoder, eps, hidden_channels, hidden_dim, kernel, num_heads, scaled_variance, variance"),
    ],
)
def test_unknown_setting_lists_the_known(method: str, known: str) -> None:
    with pytest.raises(MethodError) as caught:
        build(method, **SIZES, zzz=3)
    assert str(caught.value) == f"{method}: unknown setting 'zzz'\n  known: {known}"


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(
        MethodError, match=r"^mha: unknown setting 'n_heads'\n  did you mean 'num_heads'\? known: decoder"
    ):
        build("mha", **SIZES, n_heads=3)


@pytest.mark.parametrize(
    ("method", "heads", "whole"),
    [
        ("daam-v1", 3, r"the number of layers \(8\); possible: 1, 2, 4"),
        ("mha", 5, r"the layer width \(16\); possible: 1, 2, 4, 8, 16"),
    ],
)
def test_heads_that_do_not_divide_name_the_divisors(method: str, heads: int, whole: str) -> None:
    with pytest.raises(MethodError, match=rf"^num_heads \({heads}\) must divide {whole}$"):
        build(method, **SIZES, num_heads=heads)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("daam-v1", {"num_heads": "8"}),
        ("daam-v1", {"num_heads": 0}),
        ("mha", {"num_heads": -4}),
        ("daam-v1", {"variance": "one-pass"}),
        ("daam-v2", {"variance": None}),
        ("mixture-daam", {"num_blocks": True}),
        ("mha", {"num_heads": None}),
        ("none", {"hidden_channels": -1}),
        ("none", {"hidden_channels": 0}),
        ("weighted-sum", {"hidden_dim": 2.5}),
    ],
)
def test_setting_with_a_wrong_value_is_refused_at_once(method: str, settings: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match=next(iter(settings))):
        build(method, **SIZES, **settings)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("daam-v1", {"variance": "one-pass"}, "daam-v1: variance must be 'two-pass' or 'moments', got 'one-pass'"),
        ("daam-v1-mlp", {"eps": 2}, "daam-v1-mlp: eps must be 'double' or 'single', got 2"),
        ("daam-v1", {"num_heads": "8"}, "daam-v1: num_heads must be 'auto' or a whole number of at least 1, got '8'"),
        ("gqdaam", {"num_heads": True}, "gqdaam: num_heads must be 'auto' or a whole number of at least 1, got True"),
        ("mha", {"num_heads": "auto"}, "mha: num_heads must be a whole number of at least 1, got 'auto'"),
        ("mha", {"num_heads": 2.0}, "mha: num_heads must be a whole number of at least 1, got 2.0"),
        ("none", {"decoder": "cnn"}, "none: decoder must be 'conv' or 'mlp', got 'cnn'"),
        (
            "daam-v1-mlp",
            {"decoder": "conv"},
            "daam-v1-mlp: decoder is 'mlp' by its name, got 'conv'\n  use 'daam-v1'",
        ),
    ],
)
def test_settings_are_checked_without_building(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError) as caught:
        check_settings(method, settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("none", {}),
        ("none", {"decoder": "mlp"}),
        ("none-mlp", {"decoder": "mlp", "hidden_dim": 3}),
        ("daam-v1", {"num_heads": 1, "variance": "moments"}),
        ("daam-v1", {"num_heads": "auto"}),
    ],
)
def test_settings_that_are_right_pass(method: str, settings: dict[str, Any]) -> None:
    check_settings(method, settings)
    assert build(method, **SIZES, **settings) is not None


def test_every_named_choice_is_checked_by_its_builder_too() -> None:
    """The builders are public: a wrong choice must not fall through to another one."""
    met = 0
    for method in NAMES:
        heads = {"num_heads": 2} if "num_heads" in METHODS.defaults(method) else {}
        for key in METHODS.choices(method):
            arguments = METHODS.arguments(method, {**heads, key: "zzz"})
            with pytest.raises(MethodError, match=f"^{key} must be .*, got 'zzz'$"):
                METHODS.load(method)(Sizes(16, 16, 4), **arguments)
            met += 1
    assert met > 40


@pytest.mark.parametrize("method", [name for name in NAMES if "decoder" in METHODS.choices(name)])
def test_variant_with_the_other_decoder(method: str) -> None:
    """Under a name of its own, a map-type method takes the MLP on the sum over layers."""
    assert resolve_method(method) == (method, {})
    assert resolve_method(f"{method}-mlp") == (method, {"decoder": "mlp"})
    sizes = {**SIZES, "num_layers": 16}
    torch.manual_seed(0)
    named = build(f"{method}-mlp", **sizes).eval()
    torch.manual_seed(0)
    plain = build(method, **sizes, decoder="mlp").eval()
    x = torch.randn(3, 16, 16)
    assert isinstance(named.decoder, daamctl.methods.MLPDecoder)
    assert torch.equal(named(x), plain(x))


@pytest.mark.parametrize(
    "method", ["daam-v1-conv", "weighted-sum-mlp", "daam-v1-cnn", "mlp", "-mlp", "", "daam-v1-mlp-mlp"]
)
def test_no_other_name_stands_for_a_variant(method: str) -> None:
    for call in (resolve_method, lambda name: build(name, **SIZES), lambda name: settings_of(name, {})):
        with pytest.raises(UnknownNameError, match=f"^unknown method '{method}'"):
            call(method)


def test_settings_of_a_variant_lie_above_those_of_its_method() -> None:
    given = {"mha": {"num_heads": 4, "hidden_dim": 9}, "mha-mlp": {"hidden_dim": 5}, "none": {"hidden_dim": 1}}
    assert settings_of("mha", given) == {"num_heads": 4, "hidden_dim": 9}
    assert settings_of("mha-mlp", given) == {"num_heads": 4, "hidden_dim": 5, "decoder": "mlp"}
    assert settings_of("mha-mlp", {"mha": {"decoder": "conv"}}) == {"decoder": "mlp"}
    assert settings_of("se", given) == {}
    model = build("mha-mlp", **SIZES, **settings_of("mha-mlp", given))
    assert model.decoder.projector.out_features == 5


def test_check_heads_accepts_every_divisor() -> None:
    for parts in (1, 2, 3, 4, 6, 12):
        check_heads("parts", parts, 12, "the whole", least=1)


def test_density_of_a_method_that_has_none() -> None:
    model = build("mha", **SIZES)
    with pytest.raises(MethodError, match=r"^LayerSelfAttention has no density$"):
        model(torch.zeros(1, 8, 16), return_density=True)


def test_classifier_passes_the_density_through() -> None:
    class Fusion(nn.Module):
        def forward(self, x: torch.Tensor, *, return_density: bool = False) -> Any:
            return (x + 1, x * 2) if return_density else x + 1

    model = FusionClassifier(Fusion(), nn.Flatten(), Traits(density=True))
    x = torch.arange(6.0).view(1, 2, 3)
    logits, density = model(x, return_density=True)
    assert torch.equal(logits, model(x))
    assert torch.equal(logits, (x + 1).flatten(1))
    assert torch.equal(density, x * 2)


def test_training_loss_of_a_plain_method() -> None:
    model = build("none", **SIZES, hidden_channels=2)
    x, y = torch.randn(5, 8, 16), torch.tensor([0, 1, 2, 3, 0])
    loss, logits = model.training_loss(x, y, nn.functional.cross_entropy)
    assert torch.equal(logits, model(x))
    assert torch.equal(loss, nn.functional.cross_entropy(model(x), y))
    model.choose(x, y)
    assert torch.equal(logits, model(x))


def test_public_names_are_importable_and_no_others() -> None:
    for name in daamctl.methods.MODULES:
        assert getattr(daamctl.methods, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'daamctl.methods' has no attribute 'Nothing'$"):
        daamctl.methods.Nothing  # noqa: B018
