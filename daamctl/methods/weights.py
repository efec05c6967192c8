"""Weights files of our own: one `.safetensors` that says what it holds, so that it can be loaded without anything else.

All of that stands in a single metadata entry, because safetensors writes several in random order and equal weights
should give equal bytes.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from daamctl.errors import ArtifactError, MethodError, UnknownNameError
from daamctl.methods import rebuild
from daamctl.methods.base import FusionClassifier, Standardize

ENTRY = "daamctl"
SIZES = ("num_layers", "embed_dim", "num_classes")


def save_weights(
    model: FusionClassifier,
    path: Path | str,
    *,
    method: str,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    settings: Mapping[str, Any],
) -> None:
    """Write a model's weights and what it takes to build it again; whole, or not at all.

    Args:
        model: a model made by `build` with the arguments below.
        path: the file, by custom `.safetensors`; replaced if there is one.
        method: name given to `build`.
        num_layers: L.
        embed_dim: D.
        num_classes: C.
        settings: the method's own arguments.

    Raises:
        ArtifactError: the file system refuses the write.
    """
    path = Path(path)
    sizes = {"num_layers": num_layers, "embed_dim": embed_dim, "num_classes": num_classes}
    head: dict[str, Any] = {"method": method, "settings": dict(settings), **sizes}
    if isinstance(model.standardize, Standardize):
        head["standardize"] = model.standardize.kind
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    data = save(tensors, metadata={ENTRY: json.dumps(head, sort_keys=True)})
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}: {error.strerror or error}", fix="free space or fix permissions, then run it again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def load_weights(path: Path | str) -> FusionClassifier:
    """Build the model of a weights file written by `save_weights`.

    Returns:
        the model in eval mode, on CPU, in the number format of the file.

    Raises:
        MethodError: there is no such file, it is not one of ours, or its tensors do not fit what it says it is.
    """
    path = Path(path)
    tensors, metadata = read_safetensors(path)
    head = _head(path, metadata)
    try:
        model = rebuild(head["method"], **{name: head[name] for name in SIZES}, **head["settings"])
        if "standardize" in head:
            model.standardize = Standardize.empty(head["standardize"], head["num_layers"], head["embed_dim"])
        formats = {value.dtype for value in tensors.values() if value.is_floating_point()}
        if len(formats) == 1:
            model.to(formats.pop())
        fill(model, tensors)
    except (MethodError, UnknownNameError) as error:
        raise MethodError(f"{path}: {error.message}", fix=error.fix) from error
    return model.eval()


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        MethodError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise MethodError(f"no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise MethodError(f"{path} cannot be read as weights: {one_line(error)}") from error


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, names: Mapping[str, str] | None = None) -> None:
    """Give a model its weights.

    Args:
        model: filled in place; keeps its number format.
        tensors: by the model's own names.
        names: what to call a tensor in messages, where that is not the model's own name.

    Raises:
        MethodError: a tensor is missing, unknown, or of another shape.
    """
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unknown:
        raise MethodError(f"weights do not fit: missing {listed(missing)}; unknown {listed(unknown)}")
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            called = (names or {}).get(name, name)
            raise MethodError(f"weights do not fit: {called} is {tuple(tensors[name].shape)} where {shape} is needed")
    model.load_state_dict(dict(tensors))


def listed(names: set[str] | list[str], most: int = 5) -> str:
    """The first few names, sorted, and how many more there are."""
    shown = sorted(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(shown) or "none") + more


def one_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _head(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the file says it is.

    Raises:
        MethodError: it says nothing, or not all that is needed.
    """
    if ENTRY not in metadata:
        raise MethodError(
            f"{path} is not a weights file of daamctl: no metadata entry '{ENTRY}'",
            fix="a checkpoint of the published code: daamctl import-checkpoint FILE",
        )
    try:
        head = json.loads(metadata[ENTRY])
    except ValueError as error:
        raise MethodError(f"{path}: metadata entry '{ENTRY}' is not JSON: {one_line(error)}") from error
    kinds = {"method": str, "settings": dict, **dict.fromkeys(SIZES, int)}
    wrong = [name for name, kind in kinds.items() if not isinstance(head, dict) or type(head.get(name)) is not kind]
    if wrong:
        raise MethodError(f"{path}: metadata entry '{ENTRY}' lacks a valid {', '.join(wrong)}")
    return dict(head)
