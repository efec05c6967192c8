"""Bottleneck adapters after the feed-forward part of every layer.

    h + U gelu(D h)        D: d -> 64, U: 64 -> d, zero at start

Source: Houlsby et al. 2019, who add a second one after attention; a single one after the feed-forward part is the
common lighter variant (Pfeiffer et al. 2021). peft lacks it, so it is a forward hook here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.module_lookup import feed_forward_outputs, linear_sizes

BOTTLENECK = 64


def houlsby(encoder: Any) -> Adaptation:
    """A bottleneck of 64 with a residual path after the feed-forward part of every layer (Houlsby et al. 2019)."""
    model = encoder.model
    names = feed_forward_outputs(model)
    for name in names:
        linear = model.get_submodule(name)
        device = linear.get_parameter("weight").device  # layers may be on different GPUs
        linear.add_module("bottleneck", Bottleneck(linear_sizes(linear)[1]).to(device))
        linear.register_forward_hook(_add)
    return Adaptation(names)


class Bottleneck(nn.Module):
    """The low-rank update that the adapter adds to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, BOTTLENECK)
        self.up = nn.Linear(BOTTLENECK, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Map (…, D) to (…, D)."""
        inside = nn.functional.gelu(self.down(h.to(self.down.weight.dtype)))
        added: Tensor = self.up(inside)
        return added


def _add(module: Any, args: Any, output: Tensor) -> Tensor:
    """Forward hook of the feed-forward part's last linear map."""
    added: Tensor = module.bottleneck(output)
    return output + added.to(output.dtype)
