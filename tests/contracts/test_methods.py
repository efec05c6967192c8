"""What every method must do: the checks of `daamctl.methods.contract`, run over every name of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from daamctl.methods import CLOSED_FORM, METHODS, NEEDS_DEV, build
from daamctl.methods.contract import CHECKS, PUBLISHED_PARAMETERS, SPEECH, TEXT, VISION, Case, trainable

NAMES = list(METHODS)
SLOW = {"parameters", "autocast", "compile", "export", "sizes"}  # or not a matter of settings
COMPILED = {"daam-v1", "weighted-sum", "dwatt-scaled"}
"""Methods that the default run compiles."""

# Traits as the sources have them, so that none can go missing together with what it stands for.
GATES = {"gct-b0", "gct-b1", "lct", "sga", "bi-sga"}
DENSITY = {"daam-frozen", "daam-v1", "daam-v2", "gqdaam", "gqdaam-published", "mixture-daam"} | GATES
INERT = {name: {"fusion.attention.key.bias"} for name in ("gqa", "gqa-published", "gqdaam", "gqdaam-published")}
INERT |= {name: {"fusion.key.bias"} for name in ("dwatt", "dwatt-scaled")}
SHIFTS = {"fusion.score.bias", "fusion.attention.out_proj.bias"}
INERT |= dict.fromkeys(("varan", "varan-published"), SHIFTS)


def small(method: str) -> dict[str, Any]:
    """Settings that leave the formulas as they are and the matrices tiny."""
    sizes = {"hidden_channels": 16, "hidden_dim": 16, "width": 16, "attention_dim": 8, "adapter_dim": 8, "score_dim": 8}
    return {key: value for key, value in sizes.items() if key in METHODS.defaults(method)}


def variants() -> list[tuple[str, str, Any]]:
    """Every named choice of every method that is not its default."""
    return [
        (method, key, value)
        for method in NAMES
        for key, values in METHODS.choices(method).items()
        for value in values
        if value != METHODS.defaults(method)[key]
    ]


def checks() -> list[Any]:
    """Every check of every method; most compilations are slow."""
    pairs = [(check, method) for check in CHECKS if check != "parameters" for method in NAMES]
    return [
        pytest.param(*pair, marks=pytest.mark.slow if pair[0] == "compile" and pair[1] not in COMPILED else ())
        for pair in pairs
    ]


@pytest.mark.parametrize(("check", "method"), checks())
def test_method_holds(check: str, method: str) -> None:
    finding = CHECKS[check](Case(method, small(method)))
    assert finding.name == check
    assert finding.ok, finding.text


@pytest.mark.parametrize(("method", "key", "value"), variants())
def test_every_choice_holds(method: str, key: str, value: Any) -> None:
    case = Case(method, {**small(method), key: value})
    findings = [CHECKS[name](case) for name in CHECKS if name not in SLOW]
    assert [f"{finding.name}: {finding.text}" for finding in findings if not finding.ok] == []


def test_the_table_is_covered() -> None:
    assert {method for method, _, _ in variants()} >= {name for name in NAMES if METHODS.choices(name)}
    assert len(variants()) > 40


def test_traits_are_those_of_the_sources() -> None:
    traits = {method: build(method, num_layers=24, embed_dim=16, num_classes=4).traits for method in NAMES}
    assert {name for name, value in traits.items() if value.density} == DENSITY
    assert {name for name, value in traits.items() if value.batch_dependent} == {"mha-published"}
    assert {name for name, value in traits.items() if value.reconstructed} == GATES
    assert {name for name, value in traits.items() if value.needs_dev} == {"best-layer"} == set(NEEDS_DEV)
    assert {name for name, value in traits.items() if value.closed_form} == set(CLOSED_FORM)
    assert {name: set(value.inert) for name, value in traits.items() if value.inert} == INERT


@pytest.mark.parametrize("method", sorted(set(NAMES) - set(CLOSED_FORM)))
def test_stacked_scales_are_declared(method: str) -> None:
    """A scale starts as a constant, a matrix does not; decay would pull it to 0 where it should stay near 1."""
    model = build(method, num_layers=4, embed_dim=32, num_classes=3)
    named = {name: value for name, value in model.named_parameters() if value.ndim > 1 and name.endswith("weight")}
    constant = {name for name, value in named.items() if value.numel() > 1 and len(value.unique()) == 1}
    assert constant == set(model.traits.gains)


@pytest.mark.parametrize("method", PUBLISHED_PARAMETERS)
def test_published_parameter_counts(method: str) -> None:
    finding = CHECKS["parameters"](Case(method))
    assert finding.ok, finding.text
    assert set(PUBLISHED_PARAMETERS[method]) == {SPEECH, VISION, TEXT}
    assert finding.text.count("as defined") == 3


def linear(before: int, after: int) -> int:
    """Weights and biases of a linear map."""
    return (before + 1) * after


def mlp(width: int, classes: int) -> int:
    """The head of all single-vector fusions."""
    return linear(width, 256) + linear(256, classes)


def conv(layers: int, width: int, classes: int) -> int:
    """The published decoder."""
    return linear(layers * 9, 512) + linear(512 * 9, layers) + linear(layers * width, classes)


def attention(layers: int, dim: int) -> int:
    """Standard grouped-query attention at width 512 with 8 query and 2 key and value heads, and the map to it."""
    return linear(dim, 512) + 2 * linear(512, 512) + 2 * linear(512, 128) + 2 * 512


def hierarchy(layers: int, dim: int) -> int:
    """Convolutions of 5 layers over D channels, as many as 3 goes into the number of layers (24: 2, 40: 3)."""
    convolutions, rest = {24: (2, 3), 40: (3, 2)}[layers]
    return (convolutions - 1) * linear(5 * dim, dim) + linear(5 * dim, dim // rest)


def depth_wise(layers: int, dim: int) -> int:
    """An MLP with layer norm for every value and for the query, a layer norm for every value, and the map of keys."""
    bottleneck = linear(dim, dim // 2) + 2 * (dim // 2) + linear(dim // 2, dim)
    return (layers + 1) * bottleneck + layers * 2 * dim + linear(24, dim)


# Fusions that the papers do not count, from the formulas of docs/sources.md: (L, D) -> parameters.
FUSIONS: dict[str, Callable[[int, int], int]] = {
    "last-layer": lambda layers, dim: 0,
    "best-layer": lambda layers, dim: 0,
    "mean": lambda layers, dim: 0,
    "static-gate": lambda layers, dim: layers * dim,
    "daam-frozen": lambda layers, dim: 0,
    "gqdaam": lambda layers, dim: 2 * 8 * dim + attention(layers, dim),
    "mha-published": lambda layers, dim: 4 * linear(dim, dim),
    "gqa": attention,
    "gct-b0": lambda layers, dim: 0,
    "gct-b1": lambda layers, dim: 1,
    "lct": lambda layers, dim: 2 * dim,
    "sga": lambda layers, dim: 2,
    "bi-sga": lambda layers, dim: 3,
    "weighted-sum": lambda layers, dim: layers,
    "weighted-sum-ln": lambda layers, dim: layers,
    "scalar-mix": lambda layers, dim: layers + 1,
    "attentive": lambda layers, dim: linear(dim, 128) + 128,
    "alf": lambda layers, dim: 8 * dim**2 + 7 * dim,
    "laya": lambda layers, dim: layers * linear(dim, 96) + linear(layers * 96, 192) + linear(192, layers),
    "varan": lambda layers, dim: 7 * dim**2 + 5 * dim + 1,
    "varan-published": lambda layers, dim: 7 * dim**2 + 5 * dim + 1,
    "se": lambda layers, dim: linear(layers, layers // 4) + linear(layers // 4, layers),
    "eca": lambda layers, dim: 3,
    "sls": lambda layers, dim: linear(dim, 1) + 2,
    "hconv": hierarchy,
    "concat": lambda layers, dim: linear(layers * dim, dim),
    "dwatt": depth_wise,
    "dwatt-scaled": depth_wise,
    "base-plus-n": lambda layers, dim: (
        2 * (4 * linear(dim, dim) + linear(dim, 4 * dim) + linear(4 * dim, dim) + 4 * dim)
    ),
}
FUSIONS |= dict.fromkeys(CLOSED_FORM, lambda layers, dim: 0)
MAPS = {"static-gate", "daam-frozen", "gqdaam", "mha-published", "gqa"} | GATES


def decoder_of(method: str, layers: int, dim: int, classes: int) -> int:
    """What follows a fusion, at its defaults."""
    if method in CLOSED_FORM:
        return linear(layers * dim if method in ("ridge-concat", "ridge-average") else dim, classes)
    if method in MAPS:
        return conv(layers, 512 if method in ("gqdaam", "gqa") else dim, classes)
    if method == "laya":
        return mlp(96, classes)
    if method == "hconv":
        return mlp({24: dim // 3 * 3, 40: dim // 2 * 2}[layers], classes)
    return mlp(dim, classes) * (layers if method in ("best-layer", "varan", "varan-published") else 1)


def test_every_method_has_a_count() -> None:
    assert sorted([*FUSIONS, *PUBLISHED_PARAMETERS]) == sorted(NAMES)
    speech = {method: FUSIONS[method](24, 1024) for method in FUSIONS}
    assert speech["dwatt"] == 26_353_152  # docs/sources.md#depth-wise-attention
    assert speech["concat"] == 25_166_848
    assert speech["base-plus-n"] == 25_192_448
    assert speech["hconv"] == 6_990_165
    assert speech["se"] == 318
    assert speech["mha-published"] == 4_198_400
    assert conv(*SPEECH) == 320_028


@pytest.mark.parametrize("sizes", [SPEECH, VISION, TEXT])
@pytest.mark.parametrize("method", FUSIONS)
def test_parameter_counts_outside_the_papers(method: str, sizes: tuple[int, int, int]) -> None:
    layers, dim, classes = sizes
    with torch.device("meta"):
        model = build(method, num_layers=layers, embed_dim=dim, num_classes=classes)
    assert trainable(model.fusion) == FUSIONS[method](layers, dim)
    assert trainable(model.decoder) == decoder_of(method, layers, dim, classes)
    assert trainable(model) == trainable(model.fusion) + trainable(model.decoder)


# Every figure that the papers or the released scripts print, made from what it counts
# (docs/sources.md#parameter-counts).
PRINTED = {
    ("daam-v1", SPEECH): ("336,412", "total", {}),
    ("daam-v1", VISION): ("238,104", "without fc", {}),
    ("daam-v2", SPEECH): ("322,076", "total", {}),
    ("daam-v2", VISION): ("221,720", "convolutions", {}),
    ("daam-v2", TEXT): ("451,112", "without fc", {"method": "daam-v1"}),
    ("gqdaam-published", SPEECH): ("1,223,192", "without fc", {}),
    ("gqdaam-published", VISION): ("1,208,856", "without fc", {"num_heads": 1}),
    ("gqdaam-published", TEXT): ("3,533,352", "without fc", {}),
    ("mixture-daam", SPEECH): ("64", "fusion", {}),
    ("mixture-daam", VISION): ("64", "fusion", {}),
    ("mixture-daam", TEXT): ("64", "fusion", {}),
    ("mha", VISION): ("6,877,820", "total", {}),
    ("mha-bn", SPEECH): ("4,420,168", "without fc", {}),
    ("mha-bn", VISION): ("6,877,868", "total", {}),
}


@pytest.mark.parametrize(("method", "sizes"), PRINTED)
def test_printed_figures_count_what_is_said(method: str, sizes: tuple[int, int, int]) -> None:
    figure, what, settings = PRINTED[method, sizes]
    arguments = {"num_layers": sizes[0], "embed_dim": sizes[1], "num_classes": sizes[2], **settings}
    with torch.device("meta"):
        model = build(arguments.pop("method", method), **arguments)
    fc = trainable(model.decoder.fc)
    counts = {
        "total": trainable(model),
        "without fc": trainable(model) - fc,
        "convolutions": trainable(model.decoder) - fc,
        "fusion": trainable(model.fusion),
    }
    assert f"{counts[what]:,}" == figure
    assert PUBLISHED_PARAMETERS[method][sizes].printed.startswith(figure)


def test_no_printed_figure_is_left_out() -> None:
    printed = {(m, s) for m, counts in PUBLISHED_PARAMETERS.items() for s, count in counts.items() if count.printed}
    assert printed == set(PRINTED)
