"""What the methods of peft share. Their adapters are inserted in place, without a wrapper: the encoder's call stays."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from daamctl.adapters.module_lookup import are_fused, projections
from daamctl.compute.attention import call_projections


def attention_maps(model: nn.Module, roles: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Names of the maps with these roles, which the model then calls; notes; whether their weights are transposed."""
    names, notes = projections(model, roles), call_projections(model)
    if are_fused(names):
        notes += ("query, key and value are one map in this encoder, and adapted together",)
    return names, notes, not isinstance(model.get_submodule(names[0]), nn.Linear)


def exactly(names: tuple[str, ...]) -> str:
    """A pattern that matches these names and no others; peft would match a list also as endings of other names."""
    return "|".join(map(re.escape, names))
