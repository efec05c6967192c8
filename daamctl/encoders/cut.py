"""Cut an encoder after one of its layers: the layers above are neither loaded nor run.

A cut model ends in its highest layer k. Its output is that layer's hidden state, as the whole model has it. The final
norm of the whole model never gets that state, so it is skipped; its weights stay in the model. The configuration
carries a mark (`MARK`), which saved folders keep.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from daamctl.errors import EncoderError

MARK = "daamctl_cut"
"""Key of the mark in a configuration (config.json)."""
BACKBONE = ("stage_names", "out_features", "out_indices")
"""Settings of vision models that name layers for object detection; the base model does not use them."""


@dataclass(frozen=True)
class EncoderCut:
    """Where an encoder was cut.

    Args:
        highest_layer: k, its last layer.
        of_layers: N, number of layers of the whole encoder.
        final_norm: whether the final norm follows the last layer; always False.
    """

    highest_layer: int
    of_layers: int
    final_norm: bool = False


def cut_of(config: Any) -> EncoderCut | None:
    """The mark of a Hugging Face configuration; None if the model is whole.

    Raises:
        EncoderError: the mark is damaged, or was made by a later version.
    """
    mark = getattr(config, MARK, None)
    if mark is None:
        return None
    try:
        cut = EncoderCut(**mark)
    except TypeError:
        cut = None
    known = cut is not None and cut.final_norm is False and type(cut.of_layers) is int
    if cut is None or not known or cut.highest_layer != getattr(config, depth_setting(config)):
        raise EncoderError(
            f"{MARK} in config.json does not describe the encoder: {mark}", fix="save the cut encoder again"
        )
    return cut


def depth_setting(config: Any) -> str:
    """Name of the setting with the number of layers, of an encoder-decoder those of its encoder."""
    own = "encoder_num_hidden_layers"  # Moonshine's `num_hidden_layers` are the decoder's
    usual: str = getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")
    return own if hasattr(config, own) else usual


def num_stages(config: Any) -> int:
    """Number of stages of a hierarchical model; 0: it is none."""
    depths = getattr(config, "depths", getattr(config, "depth", None))
    return len(depths) if isinstance(depths, (list, tuple)) else 0


def cut_config(config: Any, highest_layer: int, what: str) -> Any:
    """The configuration of a model that ends in a layer; the same one if that is its last layer already.

    Args:
        config: the Hugging Face configuration; not changed.
        highest_layer: k, from 1.

    Raises:
        EncoderError: there is no such layer, or the configuration cannot be cut.
    """
    depth = depth_setting(config)
    number = getattr(config, depth, None)
    if not isinstance(number, int):
        raise EncoderError(f"{what} cannot be cut: its configuration gives no number of layers")
    if num_stages(config):
        raise EncoderError(f"{what} cannot be cut: it is hierarchical")
    if not 1 <= highest_layer <= number:
        raise EncoderError(f"{what} has layers 1 to {number}, so it cannot be cut after layer {highest_layer}")
    if highest_layer == number:
        return config
    whole = cut_of(config)
    mark = asdict(EncoderCut(highest_layer, number if whole is None else whole.of_layers))
    values = {name: value for name, value in config.to_dict().items() if name not in BACKBONE}
    for name, value in values.items():
        if name.endswith("_types") and isinstance(value, (list, tuple)) and len(value) == number:
            values[name] = list(value[:highest_layer])  # one entry per layer
    cut = type(config).from_dict({**values, depth: highest_layer, MARK: mark})
    if getattr(cut, depth) != highest_layer:
        raise EncoderError(f"{what} cannot be cut: its configuration does not let the number of layers change")
    return cut


def cut_model(model: Any, highest_layer: int, what: str, **options: Any) -> Any:
    """A model with the lower layers of another one, whose tensors it shares.

    Args:
        options: of `AutoModel.from_config`.

    Raises:
        EncoderError: see `cut_config`.
    """
    from transformers import AutoModel

    config = cut_config(model.config, highest_layer, what)
    if config is model.config:
        return model
    state = torch.get_rng_state()
    cut = AutoModel.from_config(config, **options)
    torch.set_rng_state(state)
    missing, _ = cut.load_state_dict(model.state_dict(), strict=False, assign=True)
    if missing:
        raise EncoderError(f"{what} cannot be cut: a shorter one has weights of its own, such as {missing[0]}")
    return cut


def skip(module: nn.Module) -> None:
    """Have a norm or a projection give its input unchanged. Its weights stay."""
    module.register_forward_hook(_given)


def _given(_module: nn.Module, args: tuple[Any, ...], _out: Any) -> Any:
    return args[0]
