"""Metadata of weights files, for layer fusions and fine-tuned encoders; reading them needs no torch.

They are a single metadata entry, because safetensors writes several entries in random order, and equal weights should
give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from daamctl.errors import MethodError

ENTRY = "daamctl"
SCHEMA = 1
"""Version of the metadata; raise it when a field changes its meaning."""
FUSION: Final = "fusion"
ADAPTER: Final = "adapter"
IDENTITY = ("name", "source", "revision", "weights_sha256", "weights_dtype")
"""Facts of an encoder that are always present; null if unknown."""
POOLING = ("pooling", "final_norm", "special_tokens", "class_tokens")
INPUTS = ("sampling_rate", "normalize", "features", "tokenizer_sha256", "max_tokens", "processor", "image_size")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a model was trained on: its classes and its inputs. Unknown values are None or empty.

    Args:
        classes: names of the C classes, in the order of the logits.
        layers: numbers of the L layers, in order (Hugging Face's hidden-state index); for an adapter the last one.
        modality: speech, text or image.
        encoder: name as set, source (hub id or folder), revision, weights_sha256, weights_dtype and further facts.
        pooling: over which positions a layer is averaged, and whether the last layer is taken after the final norm.
        inputs: how items become the encoder's inputs: sampling rate and normalisation for speech, tokenizer and token
            limit for text, steps of the processor for images.
        precision: number format of the encoder's forward pass; for an adapter that of inference.
        storage: number format of the stored vectors; None for an adapter.
        made_with: the settings of `segment` (speech only) and `extract` that can change the vectors.
        fold: key, method, number and seed of the training.
    """

    classes: tuple[str, ...] | None = None
    layers: tuple[int, ...] | None = None
    modality: str | None = None
    encoder: Mapping[str, Any] = field(default_factory=dict)
    pooling: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    storage: str | None = None
    made_with: Mapping[str, Any] = field(default_factory=dict)
    fold: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        facts: Mapping[str, Any],
        *,
        classes: Sequence[str],
        layers: Sequence[int],
        modality: str,
        settings: Mapping[str, Mapping[str, Any]],
        fold: Mapping[str, Any] | None = None,
    ) -> Origin:
        """Make an origin from the facts that `open_encoder` returns; no fact is lost."""
        elsewhere = {*POOLING, *INPUTS, "precision", "storage", "modality"}
        sections = ("segment", "extract") if modality == "speech" else ("extract",)
        return cls(
            classes=tuple(classes),
            layers=tuple(layers),
            modality=modality,
            # facts that this version does not read are kept: they may tell two encoders apart
            encoder=dict.fromkeys(IDENTITY) | {name: facts[name] for name in facts if name not in elsewhere},
            pooling={name: facts[name] for name in POOLING if name in facts},
            inputs={name: facts[name] for name in INPUTS if name in facts},
            precision=facts.get("precision"),
            storage=facts.get("storage"),
            made_with={section: dict(settings[section]) for section in sections if section in settings},
            fold=dict(fold or {}),
        )


@dataclass(frozen=True, kw_only=True)
class WeightsMetadata(Origin):
    """Metadata of a weights file.

    Args:
        kind: `fusion`: a fusion of pooled layers; `adapter`: the trained tensors of a fine-tuned encoder.
        method: a name from the table of methods, or of fine-tuning methods.
        num_layers: L; 1 for an adapter.
        standardize: layer, feature or whiten, if a fusion standardises its input.
        head_parameters: for an adapter, number of trained parameters in its classifier.
    """

    kind: Literal["fusion", "adapter"]
    method: str
    settings: Mapping[str, Any]
    num_layers: int
    embed_dim: int
    num_classes: int
    standardize: str | None = None
    head_parameters: int | None = None
    schema: int = SCHEMA

    def contradictions(self) -> list[str]:
        """Names of the fields that do not fit the others."""
        names = (("classes", self.classes, self.num_classes), ("layers", self.layers, self.num_layers))
        wrong = [
            name for name, values, size in names if values is not None and not len(set(values)) == len(values) == size
        ]
        if self.kind == ADAPTER:
            if not isinstance(self.encoder.get("weights_sha256"), str):
                wrong.append("encoder")
            if self.head_parameters is None:
                wrong.append("head_parameters")
        return wrong

    def entry(self) -> dict[str, str]:
        """The metadata entry of a safetensors file, without unknown values."""
        # readers take what is absent for unknown, so files stay the same when a field is added
        known = {name: value for name, value in asdict(self).items() if value is not None and value != {}}
        return {ENTRY: json.dumps({**known, "settings": dict(self.settings)}, sort_keys=True)}


def read_metadata(path: Path | str) -> WeightsMetadata:
    """Read the metadata of a weights file, without its tensors.

    Raises:
        MethodError: there is no such file, it is not a weights file of daamctl, or its metadata are damaged or
            incomplete.
    """
    path = Path(path)
    with opened(path, "np") as file:
        entries = file.metadata() or {}
    return parse(path, entries)


@contextmanager
def opened(path: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file; a missing or damaged one raises `MethodError`."""
    if not path.is_file():
        raise MethodError(f"no file {path}")
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise MethodError(f"{path} cannot be read as weights: {one_line(error)}", path=path) from error


def parse(path: Path, entries: Mapping[str, str]) -> WeightsMetadata:
    """Parse the metadata of a safetensors file; what a later version adds is left out.

    Raises:
        MethodError: the entry of daamctl is missing, damaged or incomplete.
    """
    where = f"{path}: metadata entry '{ENTRY}'"
    if ENTRY not in entries:
        raise MethodError(
            f"{path} is not a weights file of daamctl: no metadata entry '{ENTRY}'",
            fix="a checkpoint of the published code: daamctl import-checkpoint FILE",
        )
    try:
        found = json.loads(entries[ENTRY])
    except (ValueError, RecursionError) as error:
        raise MethodError(f"{where} is not JSON: {one_line(error)}", path=path) from error
    head = {name: value for name, value in found.items() if value is not None} if isinstance(found, dict) else {}
    schema = head.get("schema")
    # the type itself, because True is an instance of int
    if type(schema) is int and schema > SCHEMA:
        raise MethodError(
            f"{path} follows schema {schema} of weights files, this version of daamctl knows those up to {SCHEMA}",
            fix="update daamctl, or train the fold again",
        )
    wrong = [] if type(schema) is int else ["schema"]
    try:
        # of JSON, because in Python a strict tuple is not a list
        metadata = TypeAdapter(WeightsMetadata).validate_json(json.dumps(head), strict=True)
        wrong += metadata.contradictions()
    except ValidationError as error:
        wrong += [str(one["loc"][0]) if one["loc"] else "encoding" for one in error.errors(include_url=False)]
    if wrong:
        raise MethodError(f"{where} lacks a valid {', '.join(dict.fromkeys(wrong))}", path=path)
    return metadata


def one_line(error: Exception) -> str:
    """The first line of an error's text, or its type if there is no text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
