"""Per-layer embeddings: `data/extract/<run>/`, one row per clip, one fixed-size-list column per layer.

Columns of the shards: clip_id, n_frames, then `layer_01 …` (Hugging Face's hidden-state index; `layer_00` is the
embedding output). The metadata of each shard and `embeddings.json` hold the encoder's facts and the content keys.
`labels.parquet` holds what does not affect the vectors: utterance_id, label, speaker and group of every clip_id, and
duration_s (seconds) of recordings, and the sentence where it is known. So pipelines with other labels or folds share
the shards. Rows are in the order of the clip table.

`embeddings.json` also holds the hash of every other file, which is compared when the embeddings are opened (see
`daamctl.store.artifact`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daamctl.artifacts.clips import ClipTable, clips_key, inputs_key
from daamctl.artifacts.utterances import SENTENCE, Modality
from daamctl.config import Config
from daamctl.config.corpus_keys import key_of
from daamctl.config.keys import embedding_settings, names
from daamctl.config.marks import Affects
from daamctl.data.task import Task, task_of
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.files import content_key
from daamctl.store.records import hashes_of, write_record
from daamctl.store.tables import METADATA_KEY, read_columns, read_frame, to_polars, write_frame, write_parquet

Block = tuple[NDArray[np.int64], NDArray[Any]]

METADATA_FILE = "embeddings.json"
LABELS_FILE = "labels.parquet"
SHARDS = "embeddings-*.parquet"
CLIP_COLUMNS = ("clip_id", "utterance_id", "label", "speaker", "group")
FORMAT = 1  # raise it when pooled values change for the same settings
DECISIVE = {
    "speech": ("weights_sha256", "normalize", "precision", "final_norm", "pooling", "sampling_rate", "features"),
    "text": (
        "weights_sha256",
        "precision",
        "final_norm",
        "pooling",
        "tokenizer_sha256",
        "max_tokens",
        "special_tokens",
    ),
    "image": ("weights_sha256", "precision", "final_norm", "processor", "class_tokens"),
    "tokens": ("weights_sha256", "precision", "final_norm", "tokenizer_sha256", "max_tokens", "subwords"),
    "embeddings": ("sha256",),
}
"""Facts of an encoder that determine the vectors, by modality; not every encoder has each."""


@dataclass(frozen=True)
class EmbeddingsMetadata:
    """Metadata of the embeddings of a corpus.

    Args:
        key: content key of everything that a fold depends on: the vectors, and the labels, speakers, groups and
            classes of the clips.
        corpus: registered corpus name.
        embed_dim: D.
        encoder: id, revision, weights hash, transformers version, final_norm, pooling, …
        settings: the sections download, segment and extract.
        num_clips: rows in all shards.
        unreadable: clip_id -> reason, for clips left out within the allowed tolerance.
        vectors_key: content key of everything that affects the vectors: inputs, encoder weights, settings.
        files: SHA-256 of the shards and the labels.
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
    vectors_key: str = ""
    files: dict[str, str] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """What is asked of the corpus."""
        return task_of(self.modality, self.classes)


def with_keys(head: EmbeddingsMetadata, clips: ClipTable) -> EmbeddingsMetadata:
    """The metadata with the keys of embeddings of these clips."""
    return replace(head, key=_key(head, clips=clips_key(clips)), vectors_key=_key(head, inputs=inputs_key(clips)))


def _key(head: EmbeddingsMetadata, **of: str) -> str:
    """Content key of the encoder, its settings, and what it embeds."""
    known = (*DECISIVE[head.modality], "equal_lengths")  # recorded where earlier versions gave other vectors
    decisive = {name: head.encoder[name] for name in known if name in head.encoder}
    if head.encoder.get("pooling") == "all-frames":
        decisive["pad_to_s"] = head.settings["segment"]["max_duration_s"]
    return content_key({"format": FORMAT, **of, "encoder": decisive, "settings": head.settings.get("extract", {})})


def label_columns(modality: Modality) -> list[str]:
    """Columns of `labels.parquet`, apart from the sentence."""
    return [*CLIP_COLUMNS, *(["duration_s"] if modality == "speech" else [])]


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
        clips: rows of the clip table, B of them; only their clip_id is written.
        n_frames: (B,) frames, tokens or patches averaged per clip.
        vectors: (B, L, D) in the stored number format.
        layers: the L layer numbers.
        head: metadata to repeat in the file.
    """
    columns: dict[str, pa.Array] = {"clip_id": clips["clip_id"].to_arrow(), "n_frames": pa.array(n_frames, pa.int32())}
    for index, layer in enumerate(layers):
        flat = pa.array(np.ascontiguousarray(vectors[:, index]).reshape(-1))
        columns[layer_column(layer)] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[2])
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(head, sort_keys=True).encode()})
    write_parquet(path, table)


def shard_is_whole(path: Path, num_rows: int) -> bool:
    """Whether a shard can be read and holds all its clips.

    False if it lacks unreadable clips: they may be repaired by now.
    """
    try:
        table = read_columns(path)
        head = json.loads(table.schema.metadata[METADATA_KEY])
    except Exception:  # a damaged file fails in many ways, and is made again
        return False
    return bool(table.num_rows == num_rows and head.get("unreadable") == 0)


def labels_of(head: EmbeddingsMetadata, clips: pl.DataFrame) -> pl.DataFrame:
    """The content of `labels.parquet`, from the rows of the clip table."""
    stored = clips.filter(~pl.col("clip_id").is_in(list(head.unreadable)))
    known = head.modality != "tokens" and SENTENCE in clips.columns  # the sentence of a word is its source
    return stored.select([*label_columns(head.modality), *([SENTENCE] if known else [])])


def write_head(folder: Path, head: EmbeddingsMetadata, clips: pl.DataFrame) -> None:
    """Write the labels, then the metadata, which marks the embeddings as complete.

    Args:
        head: the metadata; if `files` is empty, the shards are hashed now.
        clips: rows of the clip table; those of `head.unreadable` are left out.
    """
    write_frame(folder / LABELS_FILE, labels_of(head, clips), {"key": head.key})
    files = {**(head.files or hashes_of(folder, shards_in(folder))), **hashes_of(folder, [folder / LABELS_FILE])}
    write_record(folder / METADATA_FILE, replace(head, files=files).__dict__)


def shards_in(folder: Path) -> list[Path]:
    """Files of all shards, in order."""
    return sorted(folder.glob(SHARDS))


def finished_sets(data: Path) -> list[Path]:
    """Folders of all finished embeddings of a project; those with a leading dot are what a killed command left."""
    return sorted(path.parent for path in (data / "extract").glob(f"[!.]*/{METADATA_FILE}"))


def embeddings_in(folder: Path, **making: Any) -> Artifact[EmbeddingsMetadata]:
    """The embeddings in a folder; for `making` see `Artifact`."""
    return Artifact(folder / METADATA_FILE, EmbeddingsMetadata, remember=SHARDS, **making)


def read_head(folder: Path) -> EmbeddingsMetadata:
    """Read the metadata.

    Raises:
        ArtifactError: there are no complete embeddings in the folder, or the metadata are damaged.
    """
    if not (folder / METADATA_FILE).exists():
        raise ArtifactError(f"no embeddings in {folder}", path=folder)
    return embeddings_in(folder).read()


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """Vectors on disk, read on demand, with the indexing and iteration of an array (N, L, D).

    `stored[rows]` has shape (n, L, D); `stored[rows, index]` has the layer at that index only, (n, D). Only shards with
    one of the rows are opened, and only columns of the layers are read.

    Args:
        paths: the S shards.
        starts: (S + 1,) first row of each shard, and N.
        layers: the L layer numbers.
    """

    paths: tuple[Path, ...]
    starts: NDArray[np.int64]
    layers: tuple[int, ...]
    kind: pa.FixedSizeListType

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, D)."""
        return int(self.starts[-1]), len(self.layers), self.kind.list_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Number format of the stored vectors."""
        dtype: np.dtype[Any] = np.dtype(self.kind.value_type.to_pandas_dtype())
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes that all vectors take in memory."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def subset(self, layers: tuple[int, ...]) -> StoredVectors:
        """The same clips with fewer layers."""
        return replace(self, layers=layers)

    def read(self, shard: int) -> NDArray[Any]:
        """Read one shard, (n, L, D).

        Raises:
            ArtifactError: it is damaged, or has changed since it was opened.
        """
        path, names = self.paths[shard], [layer_column(layer) for layer in self.layers]
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read(names)
        except Exception as error:  # a damaged file fails in many ways
            raise _unreadable(path.parent, error) from error
        size = int(self.starts[shard + 1] - self.starts[shard])
        wrong = [name for name in names if name not in table.column_names or table.schema.field(name).type != self.kind]
        if wrong or table.num_rows != size:
            what = f"{wrong[0]} is missing or no {self.kind}" if wrong else f"{table.num_rows} clips instead of {size}"
            raise _unreadable(path.parent, f"{path.name}: {what}")
        vectors = np.empty((size, *self.shape[1:]), self.dtype)
        for index, name in enumerate(names):
            start = 0
            for chunk in table.column(name).chunks:
                block = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.shape[2])
                vectors[start : start + len(block), index] = block
                start += len(block)
        return vectors

    def blocks(self, rows: NDArray[np.int64], rng: np.random.Generator | None = None) -> Iterator[Block]:
        """Read rows shard by shard; a thread reads the next shard while the current one is in use.

        Args:
            rows: (n,) row numbers.
            rng: draws the order of the shards; None: stored order.

        Yields:
            positions in `rows`, ascending, and the vectors of these rows, (n', L, D). At most one block is read ahead
            of the current one.
        """
        shard_of = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        shards, first = np.unique(shard_of[order], return_index=True)
        places = dict(zip(shards.tolist(), np.split(order, first[1:]), strict=True)) if len(rows) else {}

        def block(shard: int) -> Block:
            vectors, local = self.read(shard), rows[places[shard]] - self.starts[shard]
            whole = len(local) == len(vectors) and bool((np.diff(local) == 1).all())
            return places[shard], vectors if whole else vectors[local]

        yield from _read_ahead(block, shards.tolist() if rng is None else rng.permutation(shards).tolist())

    def __getitem__(self, key: NDArray[np.int64] | tuple[NDArray[np.int64], int]) -> NDArray[Any]:
        rows, index = key if isinstance(key, tuple) else (key, None)
        source = self if index is None else self.subset((self.layers[index],))
        vectors = np.empty((len(rows), *source.shape[1:]), self.dtype)
        for places, block in source.blocks(rows):
            vectors[places] = block
        return vectors if index is None else vectors[:, 0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for _, block in self.blocks(np.arange(len(self))):
            yield from block

    def load(self) -> NDArray[Any]:
        """All vectors, (N, L, D)."""
        vectors = np.empty(self.shape, self.dtype)
        for shard in range(len(self.paths)):
            vectors[self.starts[shard] : self.starts[shard + 1]] = self.read(shard)
        return vectors


def _read_ahead(read: Callable[[int], Block], keys: Iterable[int]) -> Iterator[Block]:
    """Yield `read(key)` for every key, in order; a thread reads the next one meanwhile."""
    with ThreadPoolExecutor(1, "read-ahead") as thread:
        ahead: deque[Future[Block]] = deque()
        try:
            for key in keys:
                ahead.append(thread.submit(read, key))
                if len(ahead) > 1:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def open_embeddings(folder: Path, layers: tuple[int, ...] | None = None) -> tuple[pl.DataFrame, StoredVectors]:
    """Open the embeddings of a corpus: read the clips, leave the vectors on disk.

    Args:
        layers: layer numbers; None: all except layer 0.

    Returns:
        clips (clip columns, n_frames, and duration_s of recordings), and the vectors.

    Raises:
        ArtifactError: the embeddings are missing or damaged, or a layer is not stored.
    """
    head = read_head(folder)
    embeddings_in(folder).check(head)
    chosen = layers if layers is not None else tuple(layer for layer in head.layers if layer > 0)
    absent = [layer for layer in chosen if layer not in head.layers]
    if absent or not chosen:
        stored = ", ".join(map(str, head.layers))
        raise ArtifactError(f"layers {absent or 'none'} are not stored in {folder}; stored: {stored}", path=folder)
    paths = tuple(folder / name for name in sorted(head.files) if name != LABELS_FILE)
    if not paths:
        raise _unreadable(folder, "its record names no shards")
    labels, _ = read_frame(folder / LABELS_FILE)
    try:
        tables = [read_columns(path, ["clip_id", "n_frames"]) for path in paths]
        clips = to_polars(pa.concat_tables(tables))
        kind = pq.read_schema(paths[0]).field(layer_column(chosen[0])).type
    except Exception as error:  # a damaged file fails in many ways
        raise _unreadable(folder, error) from error
    if not labels["clip_id"].equals(clips["clip_id"]):
        raise _unreadable(folder, f"{LABELS_FILE} is not of the clips of the shards")
    starts = np.cumsum([0, *map(len, tables)])
    kind = pa.list_(kind.value_type, head.embed_dim)
    return labels.with_columns(clips["n_frames"]), StoredVectors(paths, starts, chosen, kind)


def read_embeddings(
    folder: Path, layers: tuple[int, ...] | None = None
) -> tuple[pl.DataFrame, NDArray[Any], tuple[int, ...]]:
    """Read clips and vectors into memory: clips, vectors (N, L, D) and the layer numbers; see `open_embeddings`."""
    clips, stored = open_embeddings(folder, layers)
    return clips, stored.load(), stored.layers


def _unreadable(folder: Path, why: object) -> ArtifactError:
    return ArtifactError(f"embeddings in {folder} cannot be read: {why}", path=folder)


def check_settings(
    made: Mapping[str, Any], config: Config, modality: Modality, *, what: str, path: Path, corpus: str | None = None
) -> None:
    """Check that an artifact was made with the current settings.

    Args:
        made: section -> settings it was made with; only these sections are compared. A missing setting is taken to have
            had its default.
        what: the artifact, in the plural, for the message.
        path: its file or folder.
        corpus: key of the corpus that it is of; None: not compared.

    Raises:
        ArtifactError: names every setting that differs, with both values; or it is of another file or folder.
    """
    usual = embedding_settings(Config(), modality)
    differing = [
        f"{stage}.{name}: made with {before!r}, asked for {value!r}"
        for stage, section in embedding_settings(config, modality).items()
        if stage in made
        for name in dict.fromkeys([*section, *names(stage, Affects.IF_SET)])  # a null one of these is in no record
        if (before := made[stage].get(name, usual[stage].get(name))) != (value := section.get(name))
    ]
    if differing:
        raise ArtifactError(f"the {what} were made with other settings: " + "; ".join(differing), path=path)
    source = config.download.source
    if None not in (corpus, source) and (key := key_of(config.download.corpus, Path(str(source)))) != corpus:
        raise ArtifactError(f"the {what} are of '{corpus}', but the settings ask for '{key}'", path=path)
