"""Per-layer embeddings: `data/extract/<run>/`, one row per clip, one fixed-size-list column per layer.

Columns: clip_id, utterance_id, label, speaker, group, n_frames, then `layer_01 …` (Hugging Face's hidden-state index;
`layer_00` is the embedding output). The head of each shard and `embeddings.json` hold the encoder's facts and the
content key. Rows stand in the order of the clip table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from daamctl.artifacts.io import read_json, write_json, write_parquet
from daamctl.artifacts.utterances import METADATA_KEY, Modality
from daamctl.config import Config
from daamctl.errors import ArtifactError

HEAD_FILE = "embeddings.json"
CLIP_COLUMNS = ("clip_id", "utterance_id", "label", "speaker", "group")


@dataclass(frozen=True)
class EmbeddingsHead:
    """What is known of a set of embeddings.

    Args:
        key: content key of all that determines the values: clips, encoder weights, settings.
        corpus: registered corpus name.
        classes: class names in label order.
        layers: stored layer numbers.
        embed_dim: D.
        encoder: id, revision, weights hash, transformers version, final_norm, pooling, …
        settings: the sections download, segment and extract.
        num_clips: rows in all shards.
        unreadable: clip_id -> reason, for clips left out under the stated tolerance.
        modality: what the clips are.
    """

    key: str
    corpus: str
    classes: tuple[str, ...]
    layers: tuple[int, ...]
    embed_dim: int
    encoder: dict[str, Any]
    settings: dict[str, Any]
    num_clips: int
    unreadable: dict[str, str] = field(default_factory=dict)
    modality: Modality = "speech"


def layer_column(layer: int) -> str:
    """Column name of a layer."""
    return f"layer_{layer:02d}"


def shard_path(folder: Path, index: int) -> Path:
    """File of one shard."""
    return folder / f"embeddings-{index:05d}.parquet"


def write_shard(
    path: Path,
    clips: pl.DataFrame,
    n_frames: np.ndarray,
    vectors: np.ndarray,
    layers: tuple[int, ...],
    head: dict[str, Any],
) -> None:
    """Write one shard atomically.

    Args:
        path: see `shard_path`.
        clips: rows of the clip table, B of them.
        n_frames: (B,) frames, tokens or patches averaged per clip.
        vectors: (B, L, D) in the stored number format.
        layers: the L layer numbers.
        head: facts repeated in the file's metadata.
    """
    columns: dict[str, pa.Array] = {name: clips[name].to_arrow() for name in CLIP_COLUMNS}
    columns["n_frames"] = pa.array(n_frames, pa.int32())
    for index, layer in enumerate(layers):
        flat = pa.array(np.ascontiguousarray(vectors[:, index]).reshape(-1))
        columns[layer_column(layer)] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[2])
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(head, sort_keys=True).encode()})
    write_parquet(path, table)


def shard_is_whole(path: Path, num_rows: int) -> bool:
    """Whether a shard opens and holds all its clips; not so where it left out unreadable ones, now perhaps repaired."""
    try:
        metadata = pq.ParquetFile(path).metadata
        head = json.loads(metadata.metadata[METADATA_KEY])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(metadata.num_rows == num_rows and head.get("unreadable") == 0)


def write_head(folder: Path, head: EmbeddingsHead) -> None:
    """Write the facts; their presence means the set is whole."""
    write_json(folder / HEAD_FILE, {**head.__dict__})


def read_head(folder: Path, *, fix: str | None = None) -> EmbeddingsHead:
    """Read the facts.

    Raises:
        ArtifactError: there are no whole embeddings in the folder.
    """
    if not (folder / HEAD_FILE).exists():
        raise ArtifactError(f"no embeddings in {folder}", fix=fix)
    value = read_json(folder / HEAD_FILE, fix=fix)
    try:
        return EmbeddingsHead(**{**value, "classes": tuple(value["classes"]), "layers": tuple(value["layers"])})
    except (TypeError, KeyError) as error:
        raise ArtifactError(f"{folder / HEAD_FILE} is not a set of embeddings: {error}", fix=fix) from error


def read_embeddings(
    folder: Path, layers: tuple[int, ...] | None = None, *, fix: str | None = None
) -> tuple[pl.DataFrame, np.ndarray, tuple[int, ...]]:
    """Read clips and vectors; only the columns of the layers asked for are read from disk.

    Args:
        folder: the set.
        layers: layer numbers; None: all but layer 0.
        fix: command named in errors.

    Returns:
        clips (clip columns and n_frames), vectors (N, L, D) in the stored format, and the layer numbers.

    Raises:
        ArtifactError: the set is missing or damaged, or a layer is not stored.
    """
    head = read_head(folder, fix=fix)
    chosen = layers if layers is not None else tuple(layer for layer in head.layers if layer > 0)
    absent = [layer for layer in chosen if layer not in head.layers]
    if absent or not chosen:
        stored = ", ".join(map(str, head.layers))
        raise ArtifactError(f"layers {absent or 'none'} are not stored in {folder}; stored: {stored}", fix=fix)
    names = [layer_column(layer) for layer in chosen]
    try:
        shards = sorted(folder.glob("embeddings-*.parquet"))
        table = pa.concat_tables(
            pq.read_table(path, columns=[*CLIP_COLUMNS, "n_frames", *names], partitioning=None) for path in shards
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"embeddings in {folder} cannot be read: {error}", fix=fix) from error
    if table.num_rows != head.num_clips:
        raise ArtifactError(f"{folder} holds {table.num_rows} clips, its head says {head.num_clips}", fix=fix)
    vectors = np.empty((table.num_rows, len(chosen), head.embed_dim), _numpy_dtype(table.schema.field(names[0]).type))
    for index, name in enumerate(names):
        start = 0
        for chunk in table.column(name).chunks:
            block = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, head.embed_dim)
            vectors[start : start + len(block), index] = block
            start += len(block)
    clips = pl.from_arrow(table.select([*CLIP_COLUMNS, "n_frames"]))
    assert isinstance(clips, pl.DataFrame)
    return clips, vectors, chosen


def _numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
    return dtype


# Settings that cannot change a stored value: how fast, how much is tolerated, where files lie.
FREE_SETTINGS = {
    "download": ("source", "check_fingerprint", "max_unreadable_fraction"),
    "segment": ("write_audio",),
    "extract": (
        "device",
        "weights_dtype",  # the hash of the weights as they are held tells it
        "min_gpu_memory_gb",
        "max_batch_s",
        "max_batch_tokens",
        "max_batch_images",
        "shard_clips",
        "max_unreadable_fraction",
    ),
}
# Settings of `extract` that concern one modality only.
OWN_SETTINGS = {
    "speech": ("pooling", "normalize"),
    "text": ("max_tokens", "pool_special_tokens"),
    "image": ("pool_class_token",),
}


def value_settings(config: Config, modality: Modality | None = None) -> dict[str, Any]:
    """The settings of download, segment and extract that determine the stored values of a modality; None: of any."""
    others = [name for kind, names in OWN_SETTINGS.items() if modality not in (None, kind) for name in names]
    left_out = {**FREE_SETTINGS, "extract": (*FREE_SETTINGS["extract"], *others)}
    return {
        stage: {name: value for name, value in config.section(stage).items() if name not in names}
        for stage, names in left_out.items()
    }


def check_settings(made: Mapping[str, Any], config: Config, modality: Modality, *, what: str, fix: str) -> None:
    """Check that an artifact was made with the settings asked for.

    Args:
        made: section -> settings it was made with; only these sections are compared. A setting that it does not know
            had its default.
        config: settings asked for.
        modality: what the artifact holds.
        what: the artifact, in the plural, for the message.
        fix: the command that makes it again.

    Raises:
        ArtifactError: names every setting that differs, with both values.
    """
    usual = value_settings(Config(), modality)
    differing = [
        f"{stage}.{name}: made with {before!r}, asked for {value!r}"
        for stage, section in value_settings(config, modality).items()
        if stage in made
        for name, value in section.items()
        if (before := made[stage].get(name, usual[stage][name])) != value
    ]
    if differing:
        raise ArtifactError(f"the {what} were made with other settings: " + "; ".join(differing), fix=fix)
