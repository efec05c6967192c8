"""Decoders: from fused layers to class logits.

`ConvDecoder` is the published one: two 3x3 convolutions over the layers as image channels, then one linear layer.
All fusions that give a single vector share `MLPDecoder`. A map of layers can use it too, after a sum over the layers;
this separates the effect of a fusion from that of its decoder.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.settings import DecoderOptions, Sizes


def feature_grid(width: int, *, embed_dim: int | None = None, num_heads: int = 8) -> tuple[int, int]:
    """Height and width of the image that one feature row becomes, in its stored order.

    A row of the encoder's own width becomes the factor pair nearest to a square, H <= W: 32x32 for 1024, 64x80 for
    5120. If an attention with heads has projected the row from `embed_dim` to `width`, one side is `num_heads` and the
    other the head width. The head width comes first if it equals the encoder's own height, else the number of heads:
    8x64 for 1024 -> 512, 64x8 for 5120 -> 512. These are the published shapes (docs/sources.md#decoder).

    Args:
        embed_dim: encoder width D that the row was projected from; None: the row has the encoder's own width.
        num_heads: heads of the projecting attention; if it does not divide `width`, the first rule applies.
    """
    if embed_dim is None or width % num_heads:
        height = next(h for h in range(math.isqrt(width), 0, -1) if width % h == 0)
        return height, width // height
    head_dim = width // num_heads
    return (head_dim, num_heads) if feature_grid(embed_dim)[0] == head_dim else (num_heads, head_dim)


class ConvDecoder(nn.Module):
    """The published decoder: conv L->512 3x3, ReLU, conv 512->L 3x3, ReLU, flatten, linear to C.

    Every layer's feature row becomes one H x W image channel. As in the published code, the weights of the three
    modules start Xavier uniform and the biases at torch's default (docs/sources.md#decoder).

    Args:
        embed_dim: width of a row, H * W.
        hidden_channels: width between the convolutions.
        grid: (H, W); None: see `feature_grid`.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        embed_dim: int,
        num_classes: int,
        hidden_channels: int = 512,
        grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.grid = grid or feature_grid(embed_dim)
        self.conv1 = nn.Conv2d(num_layers, hidden_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(hidden_channels, num_layers, 3, padding=1)
        self.fc = nn.Linear(num_layers * embed_dim, num_classes)
        for module in (self.conv1, self.conv2, self.fc):
            nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B C"]:
        """Map fused layers (B, L, D) to logits (B, C)."""
        image = x.unflatten(-1, self.grid)  # (B, L, H, W)
        image = self.conv1(image).relu()  # (B, 512, H, W)
        image = self.conv2(image).relu()  # (B, L, H, W)
        logits: Tensor = self.fc(image.flatten(1))
        return logits


class MLPDecoder(nn.Module):
    """The decoder of all fusions that give a single vector: linear D->256, ReLU, linear 256->C.

    The width is that of the projector in SUPERB's downstream probe (Yang et al., 2021), which has no activation.

    Args:
        sum_layers: sum a map of layers (B, L, D) over L first (docs/sources.md#decoder).
    """

    def __init__(self, *, embed_dim: int, num_classes: int, hidden_dim: int = 256, sum_layers: bool = False) -> None:
        super().__init__()
        self.sum_layers = sum_layers
        self.projector = nn.Linear(embed_dim, hidden_dim)
        self.classifier = nn.Linear(hidden_dim, num_classes)

    def forward(self, x: Float[Tensor, "B *L D"]) -> Float[Tensor, "B C"]:
        """Map one vector per sample (B, D), or a map of layers (B, L, D) with `sum_layers`, to logits (B, C)."""
        if self.sum_layers:
            x = x.sum(-2)  # (B, D)
        logits: Tensor = self.classifier(self.projector(x).relu())
        return logits


def classify_map(
    fusion: nn.Module,
    sizes: Sizes,
    decoder: DecoderOptions,
    *,
    width: int | None = None,
    grid: tuple[int, int] | None = None,
    traits: Traits = Traits(),  # noqa: B008
) -> FusionClassifier:
    """Join a fusion that gives a map of layers to either decoder.

    Args:
        fusion: maps (B, L, D) to (B, L, width).
        width: of a row of the fused map; None: D.
        grid: of the conv decoder; None: see `feature_grid`.

    Raises:
        MethodError: unknown decoder.
    """
    check_choice("decoder", decoder.decoder, ("conv", "mlp"))
    width, num_classes = width or sizes.embed_dim, sizes.num_classes
    if decoder.decoder == "mlp":
        mlp = MLPDecoder(embed_dim=width, num_classes=num_classes, hidden_dim=decoder.hidden_dim, sum_layers=True)
        return FusionClassifier(fusion, mlp, traits)
    conv = ConvDecoder(
        num_layers=sizes.num_layers,
        embed_dim=width,
        num_classes=num_classes,
        hidden_channels=decoder.hidden_channels,
        grid=grid,
    )
    return FusionClassifier(fusion, conv, traits)


def classify_vector(
    fusion: nn.Module,
    sizes: Sizes,
    hidden_dim: int,
    *,
    width: int | None = None,
    traits: Traits = Traits(),  # noqa: B008
) -> FusionClassifier:
    """Join a fusion that gives one vector to the shared MLP decoder.

    Args:
        fusion: maps (B, L, D) to (B, width).
        width: of the fused vector; None: D.
    """
    mlp = MLPDecoder(embed_dim=width or sizes.embed_dim, num_classes=sizes.num_classes, hidden_dim=hidden_dim)
    return FusionClassifier(fusion, mlp, traits)


def check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check a named choice.

    Raises:
        MethodError: it is not one of the allowed names.
    """
    if value not in allowed:
        raise MethodError(f"{what} must be {' or '.join(repr(name) for name in allowed)}, got {value!r}")
