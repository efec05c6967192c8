"""How many heads split the layers. Imports no torch, so that settings can be read and checked without it.

A density compares every layer with the others of its head. With one layer a head there is nothing to compare: the
weight is the same for every input, and the fusion does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from daamctl.errors import MethodError

AUTO = "auto"
Heads = int | Literal["auto"]
PUBLISHED_HEADS = 8
PUBLISHED_LAYERS = (24, 40)
"""Layers of the papers' encoders (docs/sources.md#the-papers), which get the published number of heads."""
ENOUGH = 3
"""Layers that a head should have, as in the published 8 heads of 24 layers. Two layers become -1 and +1 when they are
standardised, so a head of two only sees which one is larger."""


def auto_heads(num_layers: int) -> int:
    """The number of heads that `auto` means.

    For 24 and 40 layers the published 8. Otherwise the largest divisor of the number of layers that gives each head at
    least three layers: 2 for 6, 4 for 12, 8 for 32; one head for fewer than six.
    """
    if num_layers in PUBLISHED_LAYERS:
        return PUBLISHED_HEADS
    return _largest(num_layers, num_layers, ENOUGH)


def heads_of(setting: Heads, num_layers: int) -> int:
    """The number of heads over L layers that a setting means."""
    return auto_heads(num_layers) if setting == AUTO else int(setting)


def resolved(settings: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """A method's settings, with `num_heads: auto` replaced by a number.

    Args:
        settings: all settings of a method, defaults included.
    """
    if settings.get("num_heads") != AUTO:
        return dict(settings)
    # features are many, so the published number always has enough of them
    over_features = settings.get("norm_axis") == "features"
    return {**settings, "num_heads": PUBLISHED_HEADS if over_features else auto_heads(num_layers)}


def check_heads(what: str, parts: int, whole: int, whole_name: str = "the number of layers", *, least: int = 2) -> None:
    """Check that layers, or features, split into heads of equal size.

    Args:
        parts: number of heads or groups.
        whole: number of layers or features.
        least: least size of a head that the message may propose: 2 for a density, 1 for a dot product over features.

    Raises:
        MethodError: they do not; the message lists the possible numbers. `setting` holds the nearest smaller one.
    """
    if parts < 1 or whole % parts:
        raise MethodError(
            f"{what} ({parts}) must divide {whole_name} ({whole}); possible: {_possible(whole, least)}",
            setting=(what, _largest(whole, parts, ENOUGH if least > 1 else 1)),
        )


def check_positions(positions: int, num_heads: int, variance: str) -> None:
    """Check that an axis has enough positions for the heads of a mixture, which may differ in size.

    Raises:
        MethodError: there are fewer positions than heads; or one per head with the unbiased variance, for which the
            released module gives NaN (D33).
    """
    fewer = ("num_heads", max(1, positions // ENOUGH))
    if positions < num_heads:
        raise MethodError(
            f"num_heads ({num_heads}) must not exceed the positions on the norm axis ({positions})", setting=fewer
        )
    if positions < 2 * num_heads and variance == "unbiased":
        alone = f"num_heads ({num_heads}) leaves one of {positions} positions to a head, which has no unbiased variance"
        if positions == 1:
            raise MethodError(f"{alone}; use variance='biased'", setting=("variance", "biased"))
        raise MethodError(f"{alone}; use at most {positions // 2} heads", setting=fewer)


def check_fits(settings: Mapping[str, Any], defaults: Mapping[str, Any], *, num_layers: int, embed_dim: int) -> None:
    """Check that the heads and groups of a method fit its layers and features, without building it.

    Heads of a single layer (or feature) are refused if there are several: their weight is the same for every input.

    Args:
        settings: settings of the method that differ from the defaults.
        defaults: defaults of the method; `num_heads` is `auto` in methods whose heads split the layers.

    Raises:
        MethodError: they do not fit; the message lists the possible numbers.
    """
    every = resolved({**defaults, **settings}, num_layers)
    axis = every.get("norm_axis", "layers")
    what, whole = "num_heads", embed_dim if axis == "features" else num_layers
    if "norm_axis" in defaults:
        check_positions(whole, every["num_heads"], every["variance"])
    elif defaults.get("num_heads") == AUTO:
        check_heads("num_heads", every["num_heads"], num_layers)
    elif "num_heads" in defaults:
        check_heads("num_heads", every["num_heads"], embed_dim, "the layer width", least=1)
        return
    elif "num_groups" in defaults:
        what = "num_groups"
        check_heads(what, every[what], num_layers)
    if "query_heads" in defaults:
        check_heads("query_heads", every["query_heads"], every["width"], "the width", least=1)
        check_heads("kv_heads", every["kv_heads"], every["query_heads"], "query_heads", least=1)
    # a method without heads has one, which every number of layers fits
    parts = every.get(what, 1)
    if 1 < whole < 2 * parts:
        possible = f"at most {whole // 2}" if "norm_axis" in defaults else _possible(whole, 2)
        raise MethodError(
            f"{what} ({parts}) leaves one of {whole} {axis} to a {what[4:-1]}, with a weight that is the same for "
            f"every input; possible: {possible}",
            setting=(what, _largest(whole, parts, ENOUGH)),
        )


def _possible(whole: int, least: int) -> str:
    """Possible numbers of heads, comma-separated: one, and those that give each head at least `least` layers."""
    return ", ".join(str(n) for n in _divisors(whole) if n == 1 or whole >= least * n)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _largest(whole: int, most: int, least: int) -> int:
    """The largest divisor up to `most` that gives each head at least `least` layers; 1 if there is none."""
    return max((n for n in _divisors(whole) if n <= most and whole // n >= least), default=1)
