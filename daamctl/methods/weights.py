"""Weights files: a `.safetensors` file with metadata, from which the model can be built without any other file.

Only a fine-tuned encoder also needs the pretrained encoder; the metadata name it. `weights_metadata` defines the
metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from safetensors.torch import save
from torch import Tensor, nn

from daamctl.errors import MethodError, UnknownNameError, first_few
from daamctl.methods import rebuild
from daamctl.methods.base import FusionClassifier, Standardize
from daamctl.methods.weights_metadata import ADAPTER, FUSION, Origin, WeightsMetadata, one_line, opened, parse
from daamctl.store.files import atomic_path

if TYPE_CHECKING:
    from daamctl.adapters import FineTuned


def save_weights(
    model: FusionClassifier,
    path: Path | str,
    *,
    method: str,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    settings: Mapping[str, Any],
    origin: Origin | None = None,
) -> None:
    """Write a model's weights, with the metadata that are needed to build it again. The write is atomic.

    Args:
        model: a model made by `build` with the arguments below.
        path: the file, usually `.safetensors`; an existing file is replaced.
        origin: what it was trained on; None: unknown.

    Raises:
        ArtifactError: the file system refuses the write.
    """
    metadata = WeightsMetadata(
        kind=FUSION,
        method=method,
        settings=settings,
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_classes=num_classes,
        standardize=model.standardize.kind if isinstance(model.standardize, Standardize) else None,
        **(vars(origin) if origin is not None else {}),
    )
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_weights(path, tensors, metadata)


def write_weights(path: Path | str, tensors: dict[str, Tensor], metadata: WeightsMetadata) -> None:
    """Write tensors with metadata. The write is atomic.

    Args:
        tensors: contiguous tensors on the CPU.

    Raises:
        ArtifactError: the file system refuses the write.
    """
    data = save(tensors, metadata=metadata.entry())
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(data)


@overload
def load_weights(path: Path | str) -> FusionClassifier: ...


@overload
def load_weights(path: Path | str, *, encoder: Any) -> FusionClassifier | FineTuned: ...


def load_weights(path: Path | str, *, encoder: Any = None) -> FusionClassifier | FineTuned:
    """Build a model from a fold's weights file, or from one that `save_weights` has written.

    Args:
        encoder: for a fine-tuned encoder, what `daamctl.encoders.load.open_encoder` returns for the pretrained encoder
            that it was trained from, freshly opened; it is changed in place. Ignored for fusions.

    Returns:
        A fusion in eval mode, on the CPU, in the number format of the file; or a fine-tuned encoder in eval mode, on
        the device of `encoder`.

    Raises:
        MethodError: there is no such file, it is not a weights file of daamctl, or its tensors do not fit its metadata;
            or the encoder is missing, is another one, pools or reads its input in another way, or has been adapted
            before.
    """
    path = Path(path)
    tensors, entries = read_safetensors(path)
    metadata = parse(path, entries)
    try:
        return _fine_tuned(metadata, tensors, encoder) if metadata.kind == ADAPTER else _fusion(metadata, tensors)
    except (MethodError, UnknownNameError) as error:
        raise MethodError(f"{path}: {error.message}", fix=error.fix, path=path) from error


def _fusion(metadata: WeightsMetadata, tensors: Mapping[str, Tensor]) -> FusionClassifier:
    """Build a fusion. Raises MethodError if the tensors do not fit."""
    num_layers, embed_dim = metadata.num_layers, metadata.embed_dim
    sizes = {"num_layers": num_layers, "embed_dim": embed_dim, "num_classes": metadata.num_classes}

    def build() -> FusionClassifier:
        model = rebuild(metadata.method, **sizes, **metadata.settings)
        kind = metadata.standardize  # None: also of a `ridge-mean` that earlier versions solved on raw layers
        model.standardize = nn.Identity() if kind is None else Standardize.empty(kind, num_layers, embed_dim)
        return model

    try:
        with torch.device("meta"):  # sizes that the tensors do not have may not fit into memory
            check_fit(build(), tensors)
        model = build()
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # impossible sizes
        raise MethodError(f"{metadata.method} cannot be built as the file says: {one_line(error)}") from error
    formats = {value.dtype for value in tensors.values() if value.is_floating_point()}
    if len(formats) == 1:
        model.to(formats.pop())
    fill(model, tensors)
    return model.eval()


def _fine_tuned(metadata: WeightsMetadata, tensors: Mapping[str, Tensor], encoder: Any) -> FineTuned:
    """Build a fine-tuned encoder. Raises MethodError if the encoder is another one, or the tensors do not fit."""
    from daamctl.adapters import build_finetune

    how = "load_weights(path, encoder=opened), with what daamctl.encoders.load.open_encoder gives for it"
    needed = _named(metadata.encoder)
    if encoder is None:
        raise MethodError(f"{metadata.method} is trained over the encoder {needed}, which has to be given", fix=how)
    facts = getattr(encoder, "facts", None)
    if facts is None or not hasattr(encoder, "encoder"):
        raise MethodError(f"encoder is a {type(encoder).__name__}, which does not say what encoder it is", fix=how)
    if facts.get("weights_sha256") != metadata.encoder["weights_sha256"]:
        raise MethodError(f"{metadata.method} is trained over the encoder {needed}, got {_named(facts)}", fix=how)
    for name, there in {**metadata.pooling, **metadata.inputs}.items():
        # fine-tuning reads after the final norm in any case, and cuts texts itself
        if name not in ("final_norm", "max_tokens") and facts.get(name) != there:
            raise MethodError(
                f"{metadata.method} is trained with {name} {there}, the encoder given has {name} {facts.get(name)}",
                fix="open it with the settings that made_with in the metadata of the file names",
            )
    if any(value.requires_grad for value in encoder.encoder.model.parameters()):
        raise MethodError(f"the encoder {needed} given has been adapted before", fix="open it anew")
    model = build_finetune(metadata.method, encoder.encoder, num_classes=metadata.num_classes, seed=0)
    model.load_trainable(tensors)
    return model.eval()


def _named(facts: Mapping[str, Any]) -> str:
    """Source, revision and hash of an encoder, for messages."""
    known = {"revision": facts.get("revision"), "weights sha256": facts.get("weights_sha256")}
    more = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
    return f"{facts.get('source') or facts.get('name') or 'without a name'} ({more or 'weights unknown'})"


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file.

    Raises:
        MethodError: there is no such file, or it cannot be read.
    """
    with opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, names: Mapping[str, str] | None = None) -> None:
    """Copy weights into a model.

    Args:
        model: changed in place; keeps its number format.
        tensors: tensors by the model's own names.
        names: names for messages, of tensors that are not called by the model's own names there.

    Raises:
        MethodError: a tensor is missing, unknown, or of another shape.
    """
    check_fit(model, tensors, names=names)
    model.load_state_dict(dict(tensors))


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], *, names: Mapping[str, str] | None = None) -> None:
    """Check that weights have the names and shapes of a model's; arguments and errors as in `fill`."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unknown:
        raise MethodError(
            f"weights do not fit: missing {first_few(sorted(missing))}; unknown {first_few(sorted(unknown))}"
        )
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            called = (names or {}).get(name, name)
            raise MethodError(f"weights do not fit: {called} is {tuple(tensors[name].shape)} where {shape} is needed")
