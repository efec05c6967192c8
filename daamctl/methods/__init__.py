"""Trainable layer fusions: one file per idea, one line per method in the table below.

A method turns the pooled layers of a frozen encoder, shape (B, L, D), into class logits, shape (B, C). This package
knows nothing of configuration files, folders or the command line, so it can be used inside other models:

    from daamctl.methods import build
    model = build("daam-v1", num_layers=24, embed_dim=1024, num_classes=4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daamctl.registry import Registry

if TYPE_CHECKING:
    from daamctl.methods.base import FusionClassifier
    from daamctl.methods.daam import MultiHeadDAAM, density_weights
    from daamctl.methods.decoder import ConvDecoder, MLPDecoder, feature_grid
    from daamctl.methods.mha import LayerSelfAttention
    from daamctl.methods.published import load_published
    from daamctl.methods.weighted_sum import WeightedSum

METHODS = Registry(
    "method",
    {
        "none": "daamctl.methods.none:none",
        "weighted-sum": "daamctl.methods.weighted_sum:weighted_sum",
        "mha": "daamctl.methods.mha:mha",
        "daam-v1": "daamctl.methods.daam:daam_v1",
        "daam-v2": "daamctl.methods.daam:daam_v2",
    },
)

_LAZY = {
    "FusionClassifier": "base",
    "MultiHeadDAAM": "daam",
    "density_weights": "daam",
    "ConvDecoder": "decoder",
    "MLPDecoder": "decoder",
    "feature_grid": "decoder",
    "LayerSelfAttention": "mha",
    "WeightedSum": "weighted_sum",
    "load_published": "published",
}

__all__ = [
    "METHODS",
    "ConvDecoder",
    "FusionClassifier",
    "LayerSelfAttention",
    "MLPDecoder",
    "MultiHeadDAAM",
    "WeightedSum",
    "build",
    "density_weights",
    "feature_grid",
    "load_published",
]


def build(method: str, *, num_layers: int, embed_dim: int, num_classes: int, **settings: Any) -> FusionClassifier:
    """Build any method of the table as a module that maps (B, L, D) to logits (B, C).

    Args:
        method: a name from `METHODS`.
        num_layers: L, number of stored encoder layers.
        embed_dim: D, width of one layer's vector.
        num_classes: C.
        settings: the method's own arguments, e.g. num_heads.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: the sizes or settings do not fit the method.
    """
    from daamctl.errors import MethodError

    builder = METHODS.load(method)
    for name, value, least in (
        ("num_layers", num_layers, 1),
        ("embed_dim", embed_dim, 1),
        ("num_classes", num_classes, 2),
    ):
        if value < least:
            raise MethodError(f"{method}: {name} must be at least {least}, met {value}")
    check_settings(method, settings)
    model: FusionClassifier = builder(num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, **settings)
    return model


def check_settings(method: str, settings: dict[str, Any]) -> None:
    """Check names and kinds of a method's own settings, without importing the method.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: a setting is unknown to the method, or its value is of the wrong kind.
    """
    from daamctl.errors import MethodError, suggest

    defaults = METHODS.defaults(method)
    for name, value in settings.items():
        if name not in defaults:
            raise MethodError(f"{method}: unknown setting '{name}'", fix=suggest(name, defaults))
        if type(defaults[name]) is int and (type(value) is not int or value < 1):
            raise MethodError(f"{method}: {name} must be a whole number of at least 1, met {value!r}")
        if type(defaults[name]) is not type(value):
            raise MethodError(f"{method}: {name} must be like {defaults[name]!r}, met {value!r}")


def __getattr__(name: str) -> Any:
    """Import the public classes on first use, so that listing methods needs no torch."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"daamctl.methods.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'daamctl.methods' has no attribute '{name}'")
