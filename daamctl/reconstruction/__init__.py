"""VQ-VAEs that differ in one block: crops, model, codes, training, and scores of reconstructions.

Source: a post of the DAAM authors that shows Density Adaptive Attention in the blocks of a VQ-VAE
(docs/sources.md#vq-vae). It gives neither code nor a metric nor a baseline. What it leaves open is a setting marked
`Source.RECONSTRUCTED` (`daamctl.config.marks`). Importing this package does not import torch.
"""

from __future__ import annotations

from daamctl.data.registry import Registry

BLOCKS = Registry(
    "block",
    {
        "identity": "daamctl.reconstruction.blocks:identity",
        "daam": "daamctl.reconstruction.blocks:daam",
        "squeeze-excite": "daamctl.reconstruction.blocks:squeeze_excite",
        "static-gate": "daamctl.reconstruction.blocks:static_gate",
    },
)
"""Blocks of a VQ-VAE, the arms of a comparison. A builder takes channels, heads and Gaussians per head."""
