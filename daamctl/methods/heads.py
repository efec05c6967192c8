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
"""Layers of the papers' encoders (FACTS 2), which get the published number of heads."""
ENOUGH = 3
"""Layers that a head should have, as the published 8 heads have of 24. Of two, standardised, one is -1 and one +1, so a
head of two only sees which is larger."""


def auto_heads(num_layers: int) -> int:
    """The number of heads that `auto` stands for.

    The published 8 of 24 and 40 layers; else the largest divisor of the number of layers that leaves at least three a
    head: 2 of 6, 4 of 12, 8 of 32; one head of fewer than six.

    Args:
        num_layers: L.
    """
    if num_layers in PUBLISHED_LAYERS:
        return PUBLISHED_HEADS
    return _largest(num_layers, num_layers)


def heads_of(setting: Heads, num_layers: int) -> int:
    """The number of heads over L layers that a setting stands for."""
    return auto_heads(num_layers) if setting == AUTO else int(setting)


def resolved(settings: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """A method's settings with the number that `num_heads: auto` stands for.

    Args:
        settings: all settings of a method, its defaults among them.
        num_layers: L.
    """
    if settings.get("num_heads") != AUTO:
        return dict(settings)
    over_features = settings.get("norm_axis") == "features"
    return {**settings, "num_heads": PUBLISHED_HEADS if over_features else auto_heads(num_layers)}


def check_heads(what: str, parts: int, whole: int, whole_name: str = "the number of layers") -> None:
    """Check that the layers split into heads of equal size.

    Args:
        what: name of the setting.
        parts: heads, or groups.
        whole: layers.
        whole_name: what they are called in messages.

    Raises:
        MethodError: they do not; names the numbers that leave at least two layers a head, and the nearest that is not
            larger and leaves three.
    """
    if parts < 1 or whole % parts:
        raise MethodError(
            f"{what} ({parts}) must divide {whole_name} ({whole}); possible: {_possible(whole)}",
            setting=(what, _largest(whole, parts)),
        )


def check_compares(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], *, num_layers: int, embed_dim: int
) -> None:
    """Check that no head is left a single layer (or feature) while there are several.

    Args:
        settings: the method's own settings, other than the defaults.
        defaults: of the method; those of a method with heads or groups over the layers tell it.
        num_layers: L.
        embed_dim: D.

    Raises:
        MethodError: one is; names the numbers that would do.
    """
    what = "num_heads" if defaults.get("num_heads") == AUTO else "num_groups"
    every = resolved({**defaults, **settings}, num_layers)
    axis = every.get("norm_axis", "layers")
    parts, whole = every.get(what, 1), embed_dim if axis == "features" else num_layers
    if 1 < whole < 2 * parts:
        raise MethodError(
            f"{what} ({parts}) leaves one of {whole} {axis} to a {what[4:-1]}, with a weight that is the same for "
            f"every input; possible: {_possible(whole)}",
            setting=(what, _largest(whole, parts)),
        )


def _possible(num_layers: int) -> str:
    """The numbers of heads that leave at least two layers each; of one layer, one."""
    return ", ".join(str(n) for n in _divisors(num_layers) if num_layers >= 2 * n or num_layers == 1)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _largest(num_layers: int, most: int) -> int:
    """The largest divisor of L, `most` at most, that leaves enough layers a head; 1 where none does."""
    return max((n for n in _divisors(num_layers) if n <= most and num_layers // n >= ENOUGH), default=1)
