"""The block after every halving and doubling of the VQ-VAE: what the arms of a comparison differ in.

Every block is a residual, x + x * w. The arms differ in where the weights w come from: `daam` from the densities of
the channels of each pixel, `squeeze-excite` from the means of the channels over the image, `static-gate` from nothing
but learning, and `identity` has none.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import at_least_float32
from daamctl.methods.heads import check_heads
from daamctl.methods.mixture import DensityBlock
from daamctl.reconstruction import BLOCKS


class GroupExcitation(nn.Module):
    """x + x * s, with one gate s per group of channels: s = sigmoid(W2 relu(W1 u)), u the mean of every group.

    Squeeze-and-excitation (Hu et al., 2018, arXiv 1709.01507) on G groups of channels instead of single channels, with
    K hidden units and without biases. With G heads and K Gaussians per head it has as many parameters as DAAM: 2 G K.

    Args:
        groups: G; must divide the number of channels.
        hidden: K.
    """

    def __init__(self, *, groups: int, hidden: int) -> None:
        super().__init__()
        self.groups = groups
        self.squeeze = nn.Linear(groups, hidden, bias=False)
        self.excite = nn.Linear(hidden, groups, bias=False)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Weight the channels of x (B, C, H, W)."""
        with torch.autocast(x.device.type, enabled=False):
            grouped = at_least_float32(x).unflatten(1, (self.groups, -1))
            gates = self.excite(self.squeeze(grouped.mean((2, 3, 4))).relu()).sigmoid()
        gains = gates.repeat_interleave(x.shape[1] // self.groups, dim=1)[..., None, None]
        weighted: Tensor = x * gains.to(x.dtype)
        return x + weighted


class ChannelGate(nn.Module):
    """x + x * w with a learned weight per channel, the same for all images."""

    def __init__(self, channels: int, *, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, 1, 1), start))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Weight the channels of x (B, C, H, W)."""
        return x + x * self.weight.to(x.dtype)


def identity(channels: int, *, heads: int, gaussians: int) -> nn.Module:
    """The control without weights."""
    return nn.Identity()


def daam(channels: int, *, heads: int, gaussians: int) -> nn.Module:
    """Density Adaptive Attention over the channels of each pixel (Mixture of DAAM): 2 x heads x Gaussians weights."""
    return DensityBlock(norm_axis=1, num_heads=heads, num_densities=gaussians)


def squeeze_excite(channels: int, *, heads: int, gaussians: int) -> nn.Module:
    """Gates from the means of groups of channels over the image; as many weights as DAAM."""
    return GroupExcitation(groups=heads, hidden=gaussians)


def static_gate(channels: int, *, heads: int, gaussians: int) -> nn.Module:
    """One learned weight per channel, the same for all images; starts at the mean weight of DAAM."""
    return ChannelGate(channels, start=heads / channels)  # the weights of DAAM sum to 1 over the channels of a head


def make_block(name: str, channels: int, *, heads: int, gaussians: int) -> nn.Module:
    """Build the block of an arm.

    Args:
        name: a name from `BLOCKS`.

    Raises:
        UnknownNameError: no such arm.
        MethodError: `heads` does not divide C.
    """
    check_heads("reconstruct.num_heads", heads, channels, "the number of channels")
    block: nn.Module = BLOCKS.load(name)(channels, heads=heads, gaussians=gaussians)
    return block
