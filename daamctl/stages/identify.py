"""`identify`: which encoder, layer, norm, pooling, input and arithmetic made given vectors, or none of those tried.

A few items are embedded again. Every hidden state, before and after the final norm, is pooled in several ways. The
distance of two vectors is that of their directions, |a / |a| - b / |b||, from 0 to 2, so that vectors scaled to unit
length are recognised, too. It needs no project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from daamctl.artifacts.utterances import Modality
from daamctl.compute.devices import autocast, resolve_device
from daamctl.compute.progress import progress
from daamctl.config import ExtractConfig
from daamctl.corpora.files import SUFFIXES, files_below, match_names, read_table
from daamctl.corpora.vector_file import VectorFile, open_vectors
from daamctl.data.audio import load
from daamctl.encoders.base import Encoder
from daamctl.encoders.load import open_encoder
from daamctl.encoders.speech import SpeechEncoder
from daamctl.encoders.text import TextEncoder
from daamctl.errors import CorpusError, EncoderError

SAME = 0.03
"""Largest distance that rounding explains."""
EXACT = 1e-3
"""Largest distance that storage explains; in bfloat16, which keeps 8 bits of a number, up to `2**-8`."""
READINGS: dict[Modality, tuple[tuple[str, dict[str, Any], float], ...]] = {
    "speech": (
        ("as its feature extractor reads it", {}, 0.0),
        ("not normalised", {"normalize": "never"}, 0.0),
        ("normalised to zero mean and unit variance", {"normalize": "always"}, 0.0),
        *(
            (f"padded with zeros to {seconds} s, without a mask", {"pooling": "all-frames", **more}, float(seconds))
            for seconds in (5, 10, 30)
            for more in ({}, {"normalize": "never"})
        ),
    ),
    "text": (("with the tokens that its tokenizer adds", {}, 0.0),),
}
"""Ways of reading an item: in words, settings of `extract`, and the length of `all-frames` in seconds."""


@dataclass(frozen=True)
class LayerMatch:
    """What is closest to a layer of a file.

    Attributes:
        layer: its number in the file.
        state, distance: hidden state of the encoder, in words, and its distance, a mean over items.
        next_state, next_distance: those of the second closest.
    """

    layer: int
    state: str
    distance: float
    next_state: str
    next_distance: float


@dataclass(frozen=True)
class Identification:
    """What is closest to the vectors of a file.

    Attributes:
        items: number of items that were embedded again.
        reading, pool, precision, scale: how the encoder gives these vectors, in words.
        storage: format that holds their values without loss.
        left_out: encoders that could not be tried, and why.
    """

    encoder: str
    items: int
    reading: str
    pool: str
    precision: str
    scale: str
    storage: str
    matches: tuple[LayerMatch, ...]
    left_out: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """Largest distance of a layer."""
        return max(match.distance for match in self.matches)

    @property
    def same(self) -> bool:
        """Whether every layer differs by no more than rounding, and far less than from the second closest."""
        return self.worst <= SAME and all(3 * match.distance <= match.next_distance for match in self.matches)

    @property
    def exact(self) -> bool:
        """Whether they are the same but for storage, or for arithmetic in 16 bits where that is closest."""
        by_storage = 2**-8 if self.storage == "bfloat16" else EXACT
        return self.same and (self.worst <= by_storage or self.precision != "float32")


def run(
    vectors: Path,
    *,
    encoders: Sequence[str],
    audio: Path | None = None,
    texts: Path | None = None,
    items: int = 8,
    device: str = "auto",
) -> Identification:
    """Find what made the vectors of a file.

    Args:
        vectors: a file of embeddings, see docs/embeddings.md.
        encoders: presets, ids or folders to try.
        audio: folder of recordings that are named like the items.
        texts: instead, a table with the columns id and text.
        items: how many are embedded again.

    Raises:
        CorpusError: the file cannot be read, none of its items is among the recordings or texts, or one that is
            embedded again has values that are not finite.
        EncoderError: none of the encoders could be tried.
    """
    device, file = resolve_device(device), open_vectors(vectors)
    modality: Modality = "speech" if texts is None else "text"
    rows, sources = _chosen(file, audio, texts, items)
    given = _rows_of(file, rows)
    if len(broken := np.argwhere(~np.isfinite(given))):
        item, layer = file.columns(required=("id",))["id"][rows[broken[0][0]]], file.layers[broken[0][1]]
        raise CorpusError(
            f"{vectors}: item '{item}' has values that are not finite in layer {layer}",
            fix="store its vectors again, or leave it out",
        )
    with np.errstate(over="ignore"):
        storage = "float16" if (given == given.astype("float16")).all() else file.storage
    if not (given.view(np.uint32) & 0xFFFF).any():  # its values are numbers of float16, too, unless very small or large
        storage = "bfloat16"
    best: Identification | None = None
    left_out = []
    with progress(len(encoders) * len(READINGS[modality]), "embedding again", "ways") as bar:
        for name in encoders:
            for reading in READINGS[modality]:
                bar.advance()
                if best is not None and best.exact:
                    continue
                try:
                    found = _closest(given, sources, file.layers, storage, name, reading, modality, device, "float32")
                except EncoderError as error:
                    if reading is READINGS[modality][0]:  # no other works then
                        left_out.append(str(error).splitlines()[0])
                        break
                    continue  # e.g. a clip is longer than what this one pads to
                best = found if best is None or found.worst < best.worst else best
    if best is None:
        raise EncoderError("no encoder could be tried: " + "; ".join(left_out))
    if best.same and best.worst > EXACT:  # arithmetic in 16 bits may be closer
        reading = next(one for one in READINGS[modality] if one[0] == best.reading)
        for precision in ("bfloat16", *(["float16"] if device != "cpu" else [])):
            found = _closest(given, sources, file.layers, storage, best.encoder, reading, modality, device, precision)
            best = found if found.worst < best.worst else best
    return replace(best, left_out=tuple(left_out))


def _chosen(
    file: VectorFile, audio: Path | None, texts: Path | None, items: int
) -> tuple[list[int], list[Path] | list[str]]:
    """Rows of the file that are embedded again, spread evenly, and their recordings or texts."""
    ids = file.columns(required=("id",))["id"].to_list()
    known: dict[str, Any]
    if audio is not None:
        if not audio.is_dir():
            raise CorpusError(f"no folder {audio}")
        paths = [path for path in files_below(audio) if path.suffix.lower() in SUFFIXES["speech"]]
        known = {path.relative_to(audio).as_posix(): path for path in paths}
    elif texts is not None:
        table = read_table(texts)
        if not {"id", "text"} <= set(table.columns):
            raise CorpusError(f"{texts} needs the columns id and text; it has {', '.join(table.columns)[:200]}")
        known = dict(table.select(pl.col("id", "text").cast(pl.String)).drop_nulls().iter_rows())
    else:
        raise CorpusError("give the recordings (--audio DIR) or the texts (--texts TABLE) of the items")
    found = [(row, known[name]) for row, name in enumerate(match_names(ids, known)) if name is not None]
    if not found:
        raise CorpusError(
            f"none of the items of {file.path} ({ids[0]}, ...) is in {audio or texts}",
            fix="recordings must be named like the items, but for their ending",
        )
    places = np.unique(np.linspace(0, len(found) - 1, min(items, len(found))).round().astype(int))
    return [found[place][0] for place in places], [found[place][1] for place in places]


def _rows_of(file: VectorFile, rows: Sequence[int]) -> NDArray[np.float32]:
    """Vectors (n, L, D) of some rows, ascending; the whole file need not fit into memory."""
    found, start = [], 0
    for block in file.blocks():
        found.append(block[[row - start for row in rows if start <= row < start + len(block)]])
        start += len(block)
    return np.concatenate(found).astype(np.float32)


def _closest(
    given: NDArray[np.float32],
    sources: Sequence[Any],
    layers: Sequence[int],
    storage: str,
    name: str,
    reading: tuple[str, dict[str, Any], float],
    modality: Modality,
    device: str,
    precision: str,
) -> Identification:
    """The pooling and the hidden states of an encoder that are closest to vectors (n, L, D) of these sources."""
    words, settings, pad_to_s = reading
    format_ = {"precision": precision, "weights_dtype": precision}
    config = ExtractConfig.model_validate({"encoder": name, "layer_00": True, **format_, **settings})
    encoder = open_encoder(
        config,
        modality=modality,
        max_duration_s=pad_to_s,
        device=device,
        precision=precision,
        weights_sha256="not needed",
    ).encoder
    if encoder.embed_dim != given.shape[2]:
        raise EncoderError(f"{encoder.what} has {encoder.embed_dim} features, the vectors have {given.shape[2]}")
    pooled = [_pooled(encoder, source) for source in sources]
    found = []
    for pool in pooled[0]:
        ours = np.stack([one[pool] for one in pooled])  # (n, K, D)
        apart = np.linalg.norm(_unit(given)[:, :, None] - _unit(ours)[:, None], axis=3).mean(0)  # (L, K)
        order = apart.argsort(axis=1)
        states = [f"layer {number}" for number in range(max(encoder.layers) + 1)]
        states += [f"layer {max(encoder.layers)} after the final norm"] if encoder.has_final_norm else []
        matches = tuple(
            LayerMatch(layer, states[first], float(apart[row, first]), states[second], float(apart[row, second]))
            for row, (layer, (first, second)) in enumerate(zip(layers, order[:, :2], strict=True))
        )
        lengths = np.linalg.norm(given, axis=2), np.linalg.norm(ours, axis=2)[:, order[:, 0]]
        ratio = lengths[0] / lengths[1]
        scale = "as they are" if np.abs(ratio - 1).max() < SAME else "multiplied by a factor"
        scale = "scaled to unit length" if np.abs(lengths[0] - 1).max() < EXACT and ratio.std() > EXACT else scale
        found.append(Identification(name, len(given), words, pool, precision, scale, storage, matches))
    return min(found, key=lambda one: one.worst)


def _pooled(encoder: Encoder, source: Any) -> dict[str, NDArray[np.float32]]:
    """Vectors (K, D) of an item's hidden states, after the final norm last, by pooling."""
    if isinstance(encoder, SpeechEncoder):
        item = load(source, sampling_rate=encoder.sampling_rate)
    else:
        assert isinstance(encoder, TextEncoder)
        item = encoder.tokens([source], encoder.max_tokens)[0][0]
    inputs, mask = encoder.collate([item])
    with torch.inference_mode(), autocast(encoder.device, encoder.precision):
        found = encoder.find(lambda: encoder.model(**inputs, output_hidden_states=True), mask.shape[-1])
    last = [found.normed] if encoder.has_final_norm else []
    if len({state.shape for state in found.states}) > 1:
        raise EncoderError(f"the layers of {encoder.what} differ in shape, so they cannot be compared with vectors")
    states = torch.stack([state[0].float().cpu() for state in (*found.states, *last)])  # (K, T, D)
    own = states[:, mask[0].cpu().bool()]
    text = isinstance(encoder, TextEncoder)
    what, place = ("tokens", "token") if text else ("frames", "frame")
    pools = {f"mean over its own {what}": own.mean(1), f"its last {place}": own[:, -1], "maximum": own.amax(1)}
    if own.shape[1] < states.shape[1]:
        also = "added tokens" if text else "the frames of the padding"
        pools |= {f"mean with {also}": states.mean(1), f"last {place}, of {also}": states[:, -1]}
    pools |= {f"first {place}": states[:, 0]}
    return {name: one.numpy() for name, one in pools.items()}


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (..., D) of length 1."""
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(1e-12)
    return unit
