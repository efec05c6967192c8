"""Read checkpoints of the code published with the papers.

Its key names: `daam.gcts.<i>.c` or `daam.daams.<i>.c` (scaled variance of head i, shape (1, D)), `….mean_offset`,
`conv1`, `conv2`, `fc`; all of them with a leading `module.` when trained with data parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.base import FusionClassifier

HEAD_KEY = re.compile(r"^daam\.(?:gcts|daams)\.(\d+)\.(c|mean_offset)$")
DECODER_KEYS = tuple(f"{layer}.{part}" for layer in ("conv1", "conv2", "fc") for part in ("weight", "bias"))


def load_published(source: Path | str | Mapping[str, Tensor]) -> FusionClassifier:
    """Load a DAAM v1 or v2 checkpoint trained with the published code.

    The moment-difference variance of that code is kept (D25).

    Args:
        source: a state dict, or a `.safetensors` / `.pt` / `.pth` file that holds one, plain or under
            `model_state_dict`, `state_dict` or `model`. Files are read without unpickling code.

    Returns:
        Our module in eval mode, on CPU, with the same logits and densities.

    Raises:
        MethodError: the file cannot be read, or the keys or shapes are not those of a published DAAM decoder.
    """
    state = _strip(_read(Path(source)) if isinstance(source, (str, Path)) else dict(source))
    heads: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        match = HEAD_KEY.match(key)
        if match:
            heads.setdefault(int(match[1]), {})[match[2]] = value
    missing = [key for key in DECODER_KEYS if key not in state]
    extra = [key for key in state if not HEAD_KEY.match(key) and key not in DECODER_KEYS]
    whole = bool(heads) and sorted(heads) == list(range(len(heads))) and all(len(head) == 2 for head in heads.values())
    if missing or extra or not whole:
        raise MethodError(
            f"not a published DAAM checkpoint: missing keys {missing}, unknown keys {extra[:5]}, "
            f"heads found {sorted(heads)}, each of which needs c and mean_offset"
        )
    return _assemble(state, [heads[i] for i in sorted(heads)])


def _assemble(state: Mapping[str, Tensor], heads: list[dict[str, Tensor]]) -> FusionClassifier:
    try:
        model = build(
            "daam-v1" if len(heads) > 1 else "daam-v2",
            num_layers=state["conv1.weight"].shape[1],
            embed_dim=heads[0]["c"].shape[-1],
            num_classes=state["fc.weight"].shape[0],
            variance="moments",
            hidden_channels=state["conv1.weight"].shape[0],
            **({"num_heads": len(heads)} if len(heads) > 1 else {}),
        )
        ours = {f"decoder.{key}": state[key] for key in DECODER_KEYS}
        ours["fusion.scaled_variance"] = torch.cat([head["c"].reshape(1, -1) for head in heads])
        ours["fusion.offset"] = torch.cat([head["mean_offset"].reshape(1, -1) for head in heads])
        model.load_state_dict(ours)
    except (RuntimeError, IndexError) as error:
        raise MethodError(f"published checkpoint does not fit together: {error}") from error
    return model.eval()


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        value = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise MethodError(f"no file {path}") from error
    except Exception as error:  # torch and safetensors raise many kinds for a damaged file
        raise MethodError(f"{path} cannot be read as weights: {error}") from error
    for name in ("model_state_dict", "state_dict", "model"):
        if isinstance(value, dict) and isinstance(value.get(name), dict):
            value = value[name]
    if not isinstance(value, dict) or not all(isinstance(item, Tensor) for item in value.values()):
        raise MethodError(f"{path} holds no state dict")
    return value


def _strip(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop the DataParallel prefix `module.`."""
    return {key.removeprefix("module."): value for key, value in state.items()}
