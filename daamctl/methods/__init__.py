"""Trainable layer fusions: one file per idea, one row per method in the table below.

A method maps the pooled layers of a frozen encoder, shape (B, L, D), to class logits, shape (B, C). This package does
not depend on configuration files, folders or the command line, so it can be used inside other models:

    from daamctl.methods import build
    model = build("daam-v1", num_layers=24, embed_dim=1024, num_classes=4)
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from daamctl.data.registry import Registry
from daamctl.errors import MethodError, UnknownNameError, suggest
from daamctl.methods import heads
from daamctl.methods.settings import GROUPS, Sizes

if TYPE_CHECKING:
    from daamctl.methods.base import FusionClassifier as FusionClassifier
    from daamctl.methods.base import Traits as Traits
    from daamctl.methods.daam import MultiHeadDAAM as MultiHeadDAAM
    from daamctl.methods.daam import density_weights as density_weights
    from daamctl.methods.decoder import ConvDecoder as ConvDecoder
    from daamctl.methods.decoder import MLPDecoder as MLPDecoder
    from daamctl.methods.decoder import feature_grid as feature_grid
    from daamctl.methods.gct import LayerGate as LayerGate
    from daamctl.methods.gqa import GroupedQueryAttention as GroupedQueryAttention
    from daamctl.methods.gqa import SummedQueryAttention as SummedQueryAttention
    from daamctl.methods.mha import BatchSelfAttention as BatchSelfAttention
    from daamctl.methods.mha import LayerSelfAttention as LayerSelfAttention
    from daamctl.methods.mixture import DensityAttention as DensityAttention
    from daamctl.methods.mixture import DensityBlock as DensityBlock
    from daamctl.methods.mixture import mixture_weights as mixture_weights
    from daamctl.methods.probes import Layers as Layers
    from daamctl.methods.probes import RidgeProbe as RidgeProbe
    from daamctl.methods.published import load_published as load_published
    from daamctl.methods.weighted_sum import WeightedSum as WeightedSum
    from daamctl.methods.weights import load_weights as load_weights
    from daamctl.methods.weights import save_weights as save_weights
    from daamctl.methods.weights_metadata import WeightsMetadata as WeightsMetadata
    from daamctl.methods.weights_metadata import read_metadata as read_metadata

METHODS = Registry(
    "method",
    {
        # controls
        "none": "daamctl.methods.none:none",
        "last-layer": "daamctl.methods.single_layer:last_layer",
        "best-layer": "daamctl.methods.single_layer:best_layer",
        "mean": "daamctl.methods.weighted_sum:mean",
        "static-gate": "daamctl.methods.static_gate:static_gate",
        "daam-frozen": "daamctl.methods.daam:daam_frozen",
        # Density Adaptive Attention
        "daam-v1": "daamctl.methods.daam:daam_v1",
        "daam-v2": "daamctl.methods.daam:daam_v2",
        "gqdaam": "daamctl.methods.gqdaam:gqdaam",
        "gqdaam-published": "daamctl.methods.gqdaam:gqdaam_published",
        "mixture-daam": "daamctl.methods.mixture:mixture_daam",
        # dot-product attention
        "mha": "daamctl.methods.mha:mha",
        "mha-published": "daamctl.methods.mha:mha_published",
        "mha-bn": "daamctl.methods.mha:mha_bn",
        "gqa": "daamctl.methods.gqa:gqa",
        "gqa-published": "daamctl.methods.gqa:gqa_published",
        # Gaussian and sigmoid gates of standardised layers
        "gct-b0": "daamctl.methods.gct:gct_b0",
        "gct-b1": "daamctl.methods.gct:gct_b1",
        "lct": "daamctl.methods.lct:lct",
        "sga": "daamctl.methods.sga:sga",
        "bi-sga": "daamctl.methods.sga:bi_sga",
        # layer fusion of the field
        "weighted-sum": "daamctl.methods.weighted_sum:weighted_sum",
        "weighted-sum-ln": "daamctl.methods.weighted_sum:weighted_sum_ln",
        "scalar-mix": "daamctl.methods.weighted_sum:scalar_mix",
        "attentive": "daamctl.methods.attentive:attentive",
        "alf": "daamctl.methods.alf:alf",
        "laya": "daamctl.methods.laya:laya",
        "varan": "daamctl.methods.varan:varan",
        "varan-published": "daamctl.methods.varan:varan_published",
        "se": "daamctl.methods.se:se",
        "eca": "daamctl.methods.eca:eca",
        "sls": "daamctl.methods.sls:sls",
        "hconv": "daamctl.methods.hconv:hconv",
        "concat": "daamctl.methods.concat:concat",
        "dwatt": "daamctl.methods.dwatt:dwatt",
        "dwatt-scaled": "daamctl.methods.dwatt:dwatt_scaled",
        "base-plus-n": "daamctl.methods.base_plus_n:base_plus_n",
        # closed-form probes
        "ridge-last": "daamctl.methods.probes:ridge_last",
        "ridge-best-layer": "daamctl.methods.probes:ridge_best_layer",
        "ridge-mean": "daamctl.methods.probes:ridge_mean",
        "ridge-concat": "daamctl.methods.probes:ridge_concat",
        "ridge-average": "daamctl.methods.probes:ridge_average",
    },
    groups=GROUPS,
    entry_points="daamctl.methods",
    suffix="decoder",
)
"""Name of a method -> its builder, which takes `Sizes` and the settings; its docstring's first line describes it."""

CLOSED_FORM = ("ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "ridge-average")
"""Probes solved in closed form instead of trained; a trained method should reach at least their accuracy."""
NEEDS_DEV = ("best-layer",)
"""Methods of which part is chosen on a held-out group (`Traits.needs_dev`), so that `check` need not build them."""
SINGLE_LAYER = ("ridge-best-layer", "best-layer", "ridge-last", "last-layer")
"""Methods that classify from one layer. The first two choose it in every fold without its test group."""
COUNTERPARTS = {
    "last-layer": "ridge-last",
    "best-layer": "ridge-best-layer",
    "base-plus-n": "ridge-last",
    "concat": "ridge-concat",
    "hconv": "ridge-concat",
    "laya": "ridge-concat",
    "varan": "ridge-average",
    "varan-published": "ridge-average",
    "dwatt": "ridge-concat",
    "dwatt-scaled": "ridge-concat",
}
"""Closed-form probe with the same input as a method, where it does not follow from the method's decoder."""

MODULES = {
    name: module
    for module, names in {
        "base": ("FusionClassifier", "Traits"),
        "daam": ("MultiHeadDAAM", "density_weights"),
        "decoder": ("ConvDecoder", "MLPDecoder", "feature_grid"),
        "gct": ("LayerGate",),
        "gqa": ("GroupedQueryAttention", "SummedQueryAttention"),
        "mha": ("BatchSelfAttention", "LayerSelfAttention"),
        "mixture": ("DensityAttention", "DensityBlock", "mixture_weights"),
        "probes": ("Layers", "RidgeProbe"),
        "published": ("load_published",),
        "weighted_sum": ("WeightedSum",),
        "weights": ("load_weights", "save_weights"),
        "weights_metadata": ("WeightsMetadata", "read_metadata"),
    }.items()
    for name in names
}
"""Public name -> the module that it is imported from on first use, so that listing methods needs no torch."""


def build(method: str, *, num_layers: int, embed_dim: int, num_classes: int, **settings: Any) -> FusionClassifier:
    """Build any method of the table as a module that maps (B, L, D) to logits (B, C).

    Refuses heads of a single layer if there are several layers: their density would do nothing.

    Args:
        method: a name from `METHODS`, or one with a decoder suffix, e.g. `daam-v1-mlp`.
        num_layers: L, number of stored encoder layers.
        embed_dim: D, width of one layer's vector.
        num_classes: C.
        settings: the method's own settings, e.g. num_heads.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: the sizes or settings do not fit the method.
    """
    model = rebuild(method, num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, **settings)
    check_fits(method, settings, num_layers=num_layers, embed_dim=embed_dim)
    return model


def rebuild(method: str, *, num_layers: int, embed_dim: int, num_classes: int, **settings: Any) -> FusionClassifier:
    """Build a method for existing weights, also with heads of a single layer; arguments and errors as in `build`."""
    name, preset = resolve_method(method)
    sizes = Sizes(num_layers, embed_dim, num_classes)
    for what, least in (("num_layers", 1), ("embed_dim", 1), ("num_classes", 2)):
        if getattr(sizes, what) < least:
            raise MethodError(f"{method}: {what} must be at least {least}, got {getattr(sizes, what)}")
    check_settings(method, settings)
    builder = METHODS.load(name)
    model = builder(sizes, **METHODS.arguments(name, {**settings, **preset}))
    from daamctl.methods.base import FusionClassifier as Expected  # only now, because it imports torch

    if not isinstance(model, Expected):
        raise MethodError(f"{method}: its builder must return a FusionClassifier, got {type(model).__name__}")
    if model.traits.closed_form and name not in CLOSED_FORM:
        raise MethodError(
            f"{method}: a method of a package is trained in steps, but its traits say closed_form, as only those of "
            f"{', '.join(CLOSED_FORM)} may",
            fix="leave the method out, or return another FusionClassifier than a RidgeProbe",
        )
    return model


def fuses_layers(method: str) -> bool:
    """Whether a method combines several layers; raises as `resolve_method`."""
    return resolve_method(method)[0] not in SINGLE_LAYER


def resolve_method(method: str) -> tuple[str, dict[str, Any]]:
    """Split a method's full name into its name in the table and the settings that its suffix implies.

    `daam-v1-mlp` is `daam-v1` with `decoder="mlp"`. It is trained and reported under its own name, beside `daam-v1`,
    which separates the effect of a fusion from that of its decoder.

    Raises:
        UnknownNameError: there is no such method, or it does not have that decoder.
    """
    name, _, decoder = method.rpartition("-")
    if method not in METHODS and name in METHODS and method in METHODS.variants(name):
        return name, {"decoder": decoder}
    METHODS.module_of(method)
    return method, {}


def counterparts(method: str) -> tuple[str, ...]:
    """Closed-form probes that a trained method should reach, the closest first; empty for a probe itself.

    The closest probe sees what the method's decoder sees: one layer, the mean of the layers, or, for the convolutional
    decoder and fusions with weights for every layer and feature, all layers side by side. The others are fallbacks for
    pipelines without that one.

    Args:
        method: a full name, e.g. `daam-v1-mlp`; any name outside the table counts as a fine-tuning method.
    """
    if method in CLOSED_FORM:
        return ()
    try:
        name, preset = resolve_method(method)
    except UnknownNameError:
        return ("ridge-last",)
    if name in ("last-layer", "best-layer", "base-plus-n"):
        return tuple(dict.fromkeys((COUNTERPARTS[name], "ridge-last")))
    decoder = preset.get("decoder") or METHODS.defaults(name).get("decoder")
    closest = COUNTERPARTS.get(name) or ("ridge-concat" if decoder == "conv" else "ridge-mean")
    return tuple(dict.fromkeys((closest, "ridge-mean", "ridge-average", "ridge-last")))


def closest_probes(methods: Iterable[str]) -> list[str]:
    """The closest probe of each of some trained methods, see `counterparts`; each once."""
    return list(dict.fromkeys(counterparts(method)[0] for method in methods))


def settings_of(method: str, method_settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a method; a variant inherits those of its base method.

    Raises:
        UnknownNameError: there is no such method.
    """
    name, preset = resolve_method(method)
    return {**method_settings.get(name, {}), **preset, **method_settings.get(method, {})}


def check_settings(method: str, settings: Mapping[str, Any]) -> None:
    """Check names, types and named choices of a method's own settings, without importing the method.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: a setting is unknown to the method, has the wrong type, or is not one of the choices.
    """
    name, preset = resolve_method(method)
    defaults, choices = METHODS.defaults(name), METHODS.choices(name)
    for key, value in settings.items():
        if key not in defaults:
            raise MethodError(f"{method}: unknown setting '{key}'", fix=suggest(key, defaults))
        if key in preset and value != preset[key]:
            raise MethodError(f"{method}: {key} is {preset[key]!r} by its name, got {value!r}", fix=f"use '{name}'")
        default = defaults[key]
        if key in choices and value not in choices[key]:
            allowed = " or ".join(repr(choice) for choice in choices[key])
            raise MethodError(f"{method}: {key} must be {allowed}, got {value!r}")
        if default == heads.AUTO:
            if value != heads.AUTO and (type(value) is not int or value < 1):
                raise MethodError(f"{method}: {key} must be 'auto' or a whole number of at least 1, got {value!r}")
            continue
        if type(default) is int and (type(value) is not int or value < min(1, default)) and default >= 0:
            raise MethodError(f"{method}: {key} must be a whole number of at least {min(1, default)}, got {value!r}")
        alike = {float: (float, int), tuple: (tuple, list)}.get(type(default), (type(default),))
        if default is not None and type(value) not in alike:
            raise MethodError(f"{method}: {key} must be like {default!r}, got {value!r}")


def check_fits(method: str, settings: Mapping[str, Any], *, num_layers: int, embed_dim: int) -> None:
    """Check that a method can be built for these sizes, without importing it.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it cannot be built, or a head would have one layer of several, so that its density would do
        nothing.
    """
    check_settings(method, settings)
    defaults = METHODS.defaults(resolve_method(method)[0])
    heads.check_fits(settings, defaults, num_layers=num_layers, embed_dim=embed_dim)


def __getattr__(name: str) -> Any:
    """Import a public name; see `MODULES`."""
    if name in MODULES:
        return getattr(importlib.import_module(f"daamctl.methods.{MODULES[name]}"), name)
    raise AttributeError(f"module 'daamctl.methods' has no attribute '{name}'")
