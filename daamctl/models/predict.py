"""Predict rows of items with an exported model, in chunks that are kept until all are done.

Recordings are cut as in training, and pooled layers are rounded to the number format in which training read them.
The logits of an item are the mean over its clips, weighted by their durations, and over the members of the model; its
probabilities are the softmax of that mean, as in evaluation.

Columns of the result: item, unit (`item` or `clip`), for recordings clip, start_s and duration_s (seconds), label (if
known), class, set (of items, if the model was opened with a coverage), `p_<class>` for each class, entropy (nats),
disagreement (share of the members that predict another class than their mean does; null for a single member),
`weight_<layer>` for each layer (if the method weighs layers), warning (`silent`, `clipped`, `truncated`,
`blank`; `short` of a whole recording) and error (why there is no prediction, or which clip is missing from it).
Taggers give the columns of `daamctl.models.tagging`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray
from scipy.special import entr, softmax

from daamctl.artifacts.clips import SCHEMAS, means_of_clips, weights_of
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.corpora.vector_file import READERS, open_vectors
from daamctl.data import audio
from daamctl.data.task import task_of
from daamctl.encoders.base import Encoder
from daamctl.errors import AudioError, CorpusError, first_few
from daamctl.evaluation.conformal import in_set
from daamctl.extraction.cutting import cut
from daamctl.extraction.items import Items, open_items
from daamctl.extraction.stream import EmbeddedClips, Opener, embed_clips, embed_sets
from daamctl.models.folder import ModelRecord
from daamctl.models.inputs import files_of
from daamctl.models.tagging import tagged_rows, words_of
from daamctl.store.files import content_key, kept_path, open_kept

CHUNK = 64
"""Items that are predicted, and kept after an interruption, together."""


@dataclass(frozen=True)
class Outputs:
    """What the members say about N clips.

    Args:
        logits: (F, N, C) logits of the F members.
        layer_weights: (N, L) weight of each layer, mean over the members; None if the method weighs no layers.
    """

    logits: Float64[np.ndarray, "F N C"]
    layer_weights: Float64[np.ndarray, "N L"] | None


class Model(Protocol):
    """What a prediction takes of an exported model; see `daamctl.models.model.ExportedModel`."""

    record: ModelRecord
    device: str
    smallest: float | None

    @property
    def config(self) -> Config:
        """Settings of the clips and the vectors."""

    @property
    def encoder(self) -> Encoder:
        """The encoder, open."""

    def classify(self, vectors: Shaped[np.ndarray, "N L D"], /) -> Outputs:
        """Classify pooled layers."""

    def of_layers(self, vectors: Shaped[np.ndarray, "N K D"], /) -> Shaped[np.ndarray, "N L D"]:
        """The model's layers among all that the encoder returns."""


@dataclass
class _Chunk:
    """Some items of the input.

    Args:
        clips: their clips; empty until the chunk is opened.
        owner: (n,) row of the item of each clip.
        errors: row of an item -> why it cannot be read.
    """

    number: int
    rows: pl.DataFrame
    clips: pl.DataFrame = field(default_factory=pl.DataFrame)
    owner: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    errors: dict[int, str] = field(default_factory=dict)


def predict_all(model: Model, rows: pl.DataFrame) -> pl.DataFrame:
    """Predict items; see `predict_parts`.

    Raises:
        CorpusError: there is none.
    """
    if rows.is_empty():
        raise CorpusError(f"there is no {task_of(model.record.modality).whole} to predict", fix="give at least one")
    return pl.concat([frame for _, frame in predict_parts(model, rows)])


def predict_parts(
    model: Model, rows: pl.DataFrame, *, work: Path | None = None, batch_size: int | None = None
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Predict items, some at a time.

    Args:
        rows: the items, see `daamctl.models.inputs`, or for a tagger `daamctl.models.sentences`.
        work: folder in which finished chunks are kept; the caller removes it. None: nothing is kept.
        batch_size: most clips per forward pass of the encoder, if it is lower than the settings allow.

    Yields:
        Number of items and their predictions, in order, with the columns above; the row of an item is followed by those
        of its clips. Texts and images have no rows of clips.

    Raises:
        EncoderError: the encoder cannot be opened, or fails.
        ArtifactError: the file system refuses a write to `work`.
    """
    key = "" if work is None else _key(model, rows)
    chunks: list[_Chunk] = []
    kept: dict[int, pl.DataFrame] = {}
    for number, part in enumerate(rows.iter_slices(CHUNK)):
        chunks.append(_Chunk(number, part))
        with nullcontext() if work is None else open_kept(_part(work, number), key) as file:
            if file is not None:
                # small beside the encoder, so they wait in memory for their turn
                kept[number] = pl.read_ipc_stream(file)
    predicted = _predict_chunks(model, [chunk for chunk in chunks if chunk.number not in kept], batch_size)
    for chunk in chunks:
        frame = kept.get(chunk.number)
        if frame is None:
            frame = next(predicted)
            if work is not None:
                with kept_path(_part(work, chunk.number), key) as temporary:
                    frame.write_ipc_stream(temporary)
        yield len(chunk.rows), frame


def _part(work: Path, number: int) -> Path:
    return work / f"part-{number:06d}.arrow"


def _key(model: Model, rows: pl.DataFrame) -> str:
    """Content key of what a prediction depends on. Files are identified by size and time stamp."""
    states = []
    for path in rows["path"] if "path" in rows.columns else ():
        try:
            state = Path(path).stat() if path else None
        except OSError:
            state = None
        # hashing many hours of sound takes minutes, and a resumed run should start at once
        states.append([state.st_size, state.st_mtime_ns] if state else None)
    record = model.record
    return content_key(
        {
            "model": [record.files, record.classes, record.layers, record.segment, record.extract, model.smallest],
            "encoder": [record.encoder["weights_sha256"], model.device, model.encoder.precision],
            "rows": rows.with_columns(pl.col(pl.Float64).cast(pl.String)).to_dict(as_series=False),  # a time may be NaN
            "states": states,
        }
    )


def _predict_chunks(model: Model, chunks: list[_Chunk], batch_size: int | None) -> Iterator[pl.DataFrame]:
    """The predictions of each chunk, in order."""
    if not chunks:
        return
    encoder = model.encoder

    def opener(chunk: _Chunk) -> Opener:
        def open_chunk() -> tuple[Items, list[str], None]:
            chunk.clips = _clips_of(model, chunk)
            items = open_items(chunk.clips, model.record.modality, Path("/"), encoder, model.config)
            if batch_size is not None and len(items.sizes):
                # the budget is in samples, tokens or images, so a number of clips is that many of the longest
                items.budget = min(items.budget, batch_size * encoder.padded(int(items.sizes.max())))
            return items, chunk.clips["clip_id"].to_list(), None

        return open_chunk

    waiting = iter(chunks)
    storage = str(model.record.encoder["storage"])
    for event in embed_sets(encoder, map(opener, chunks), storage=storage, strict=False):
        if not isinstance(event, Units):
            yield _frame(model, next(waiting), event)


class PartialPrediction:
    """Items whose clips are embedded a few at a time, so that a long recording does not keep others waiting.

    A sentence, whose words the encoder reads together, counts as one clip.

    Args:
        model: the exported model; its encoder is open.
    """

    def __init__(self, model: Model, rows: pl.DataFrame) -> None:
        self.model, self.chunk, self.done = model, _Chunk(0, rows), 0
        self.chunk.clips = _clips_of(model, self.chunk)
        # the words of a sentence go through the encoder together
        parts = self.chunk.owner if model.record.modality == "tokens" else np.arange(len(self.chunk.clips))
        self.ends = np.flatnonzero(np.diff(parts, append=-1)) + 1
        size, storage = len(self.chunk.clips), model.record.encoder["storage"]
        vectors = np.zeros((size, len(model.encoder.layers), model.encoder.embed_dim), storage)
        self.embedded = EmbeddedClips(vectors, np.zeros(size, np.int32))

    @property
    def left(self) -> int:
        """Number of clips, or sentences, that are not embedded."""
        return int((self.ends > self.done).sum())

    def rows_of(self, count: int) -> int:
        """Number of rows of the next clips or sentences."""
        return int(self.ends[self.ends > self.done][count - 1]) - self.done if count else 0

    def rows(self) -> pl.DataFrame:
        """The predictions, when no clip is left; see `predict_all`."""
        return _frame(self.model, self.chunk, self.embedded)


def embed_next(parts: Sequence[tuple[PartialPrediction, int]]) -> None:
    """Embed the next clips or sentences of several requests together, as many of each as given.

    Raises:
        EncoderError: the encoder fails.
    """
    model = parts[0][0].model
    sizes = [(one, one.rows_of(count)) for one, count in parts]
    slices = [one.chunk.clips.slice(one.done, size) for one, size in sizes]
    if model.record.modality == "tokens":  # names of sentences are those of one request
        slices = [part.with_columns(pl.format(f"{number} {{}}", name).alias(name) for name in ("sentence", "clip_id"))
                  for number, part in enumerate(slices)]  # fmt: skip
    clips = pl.concat(slices)
    if clips.is_empty():
        return
    items = open_items(clips, model.record.modality, Path("/"), model.encoder, model.config)
    storage = str(model.record.encoder["storage"])
    found = embed_clips(model.encoder, items, clips["clip_id"].to_list(), storage=storage, strict=False)
    start = 0
    for one, size in sizes:
        own, shift = range(start, start + size), one.done - start
        one.embedded.vectors[one.done : one.done + size] = found.vectors[start : start + size]
        one.embedded.unreadable |= {row + shift: why for row, why in found.unreadable.items() if row in own}
        for mark, rows in found.marks.items():
            one.embedded.marks.setdefault(mark, []).extend(row + shift for row in rows if row in own)
        # set at the end: if the encoder fails, the same clips are tried again
        one.done, start = one.done + size, start + size


def _clips_of(model: Model, chunk: _Chunk) -> pl.DataFrame:
    """The clips of a chunk's items, in their order; sets `owner` and `errors`."""
    modality = model.record.modality
    if modality == "tokens":
        words = words_of(chunk.rows)
        chunk.owner = words["owner"].to_numpy()
        return words
    names = [f"{number:09d}" for number in range(len(chunk.rows))]
    rows = chunk.rows.with_columns(pl.Series("utterance_id", names), speaker=pl.lit(None), group=pl.lit(None))
    if modality == "speech":
        clips = cut(_measured(rows, chunk.errors), model.config.segment)
    else:
        rows = rows.with_columns(
            clip_id=pl.col("item"), index=pl.lit(None, pl.Int64), text=pl.col("text").fill_null("")
        )
        if modality == "image":
            rows = rows.with_columns(path=pl.col("path").fill_null(""))
        clips = rows.select(list(SCHEMAS[modality]))
    chunk.owner = clips["utterance_id"].cast(pl.Int64).to_numpy()
    return clips.with_columns(clip_id=pl.Series([chunk.rows["item"][int(row)] for row in chunk.owner], dtype=pl.String))


def _measured(rows: pl.DataFrame, errors: dict[int, str]) -> pl.DataFrame:
    """The recordings that can be opened, with duration and sampling rate; the others go to `errors`."""
    found = []
    for number, row in enumerate(rows.iter_rows(named=True)):
        try:
            if not row["path"]:
                raise AudioError("the table names no file")
            info = audio.probe(Path(row["path"]))
            seconds, start = info.num_samples / info.sampling_rate, row["start_s"] or 0.0
            length = seconds - start if row["duration_s"] is None else row["duration_s"]
            end = start + length
            if not (start >= 0 and end <= seconds + audio.END_SLACK_S):  # also if one is NaN
                raise AudioError(f"{row['path']} has {seconds:.3f} s of audio; {start:g} s to {end:g} s lies outside")
            length = min(length, seconds - start)
            if round(length * info.sampling_rate) < 1:
                raise AudioError(f"{row['path']}: {start:g} s to {end:g} s holds no samples")
        except AudioError as error:
            errors[number] = error.message
            continue
        found.append({**row, "start_s": start, "duration_s": length, "sampling_rate": info.sampling_rate})
    schema: dict[str, Any] = {**rows.schema, "start_s": pl.Float64, "duration_s": pl.Float64, "sampling_rate": pl.Int32}
    return pl.DataFrame(found, schema=schema)


def _frame(model: Model, chunk: _Chunk, embedded: EmbeddedClips) -> pl.DataFrame:
    """Rows of a chunk's items and clips."""
    size, number = len(chunk.rows), len(chunk.clips)
    readable = np.ones(number, bool)
    readable[list(embedded.unreadable)] = False
    outputs = model.classify(model.of_layers(embedded.vectors))
    logits = outputs.logits.transpose(1, 0, 2)  # (n, F, C)
    weights = outputs.layer_weights
    found = dict(embedded.marks)
    if model.record.modality == "speech":
        seconds = np.bincount(chunk.owner, chunk.clips["duration_s"], minlength=size)
        found["short"] = np.flatnonzero(readable & (seconds < audio.SHORT_S)[chunk.owner]).tolist()
    marks: dict[int, list[str]] = {}
    for mark in sorted(found):
        for row in found[mark]:
            marks.setdefault(row, []).append(mark)
    clip_errors = [embedded.unreadable.get(row) for row in range(number)]
    clip_warnings = [", ".join(marks.get(row, [])) or None for row in range(number)]
    if model.record.modality == "tokens":
        columns = _columns(model, logits, weights, readable)
        return tagged_rows(chunk.rows, chunk.clips, columns, clip_warnings, clip_errors)
    owner = chunk.owner[readable]
    counts = np.bincount(owner, minlength=size)
    of_clips = weights_of(owner, chunk.clips.filter(readable))

    def per_item(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean over the readable clips of each item; values (n, …)."""
        return means_of_clips(values[readable], owner, of_clips, size)

    errors, warnings = _of_items(chunk, clip_errors, marks)
    items = pl.DataFrame(
        {
            "item": chunk.rows["item"],
            "unit": ["item"] * size,
            "clip": pl.Series([None] * size, dtype=pl.Int32),
            "start_s": pl.Series([None] * size, dtype=pl.Float64),
            "duration_s": pl.Series([None] * size, dtype=pl.Float64),
            "label": chunk.rows["label"],
            **_columns(model, per_item(logits), None if weights is None else per_item(weights), counts > 0),
            "warning": pl.Series(warnings, dtype=pl.String),
            "error": pl.Series(errors, dtype=pl.String),
        }
    )
    if model.record.modality != "speech":
        return _with_sets(model, items).drop("clip", "start_s", "duration_s")
    # row of the first clip of the same item: owners ascend
    first = np.searchsorted(chunk.owner, chunk.owner)
    clips = pl.DataFrame(
        {
            "item": chunk.clips["clip_id"],
            "unit": ["clip"] * number,
            "clip": pl.Series(np.arange(number) - first, dtype=pl.Int32),
            "start_s": chunk.clips["start_s"],
            "duration_s": chunk.clips["duration_s"],
            "label": chunk.clips["label"],
            **_columns(model, logits, weights, readable),
            "warning": pl.Series(clip_warnings, dtype=pl.String),
            "error": pl.Series(clip_errors, dtype=pl.String),
        },
        schema=dict[str, Any](items.schema),
    )
    # each item, then its clips
    order = np.argsort(np.concatenate([np.arange(size), chunk.owner]), kind="stable")
    return pl.concat([_with_sets(model, items), clips], how="diagonal")[order]


def _with_sets(model: Model, items: pl.DataFrame) -> pl.DataFrame:
    """Items with the set of classes that holds the true one with the coverage that the model was opened with."""
    if model.smallest is None:
        return items
    classes = model.record.classes
    held = in_set(items.select([f"p_{name}" for name in classes]).fill_null(0.0).to_numpy(), model.smallest)
    names = [list(compress(classes, row)) for row in held]
    sets = pl.Series("set", names, dtype=pl.List(pl.String))
    column = pl.select(pl.when(items["class"].is_not_null()).then(sets)).to_series().alias("set")
    return items.insert_column(items.columns.index("class") + 1, column)


def _of_items(
    chunk: _Chunk, clip_errors: list[str | None], marks: dict[int, list[str]]
) -> tuple[list[str | None], list[str | None]]:
    """Errors and warnings of the items: their own, else those of their clips."""
    errors: list[str | None] = [chunk.errors.get(row) for row in range(len(chunk.rows))]
    found: list[list[str]] = [[] for _ in range(len(chunk.rows))]
    for row, owner in enumerate(chunk.owner.tolist()):
        errors[owner] = errors[owner] or clip_errors[row]
        found[owner] += marks.get(row, [])
    return errors, [", ".join(dict.fromkeys(names)) or None for names in found]


def predict_vectors(model: Model, inputs: Sequence[str]) -> pl.DataFrame:
    """Predict embeddings that other software made, with a model that was trained on such (docs/embeddings.md).

    Args:
        inputs: files of embeddings, which need no labels; folders and globs of such files.

    Returns:
        The columns above; one row per utterance, whose logits are the mean over its items, all of equal weight.

    Raises:
        CorpusError: there is none, or no such file, it cannot be read, or it has other layers or features.
    """
    record, frames = model.record, []
    for path in (path for word in inputs for path in files_of(word, tuple(READERS))):
        file = open_vectors(path)
        if not set(record.layers) <= set(file.layers) or file.shape[2] != record.embed_dim:
            has, reads = (first_few([str(one) for one in layers], 8) for layers in (file.layers, record.layers))
            raise CorpusError(
                f"{path} has {file.shape[2]} features of the layers {has}; the model reads {record.embed_dim} of the "
                f"layers {reads}",
                fix=f"give vectors made as those of the training were ({record.encoder['name']})",
            )
        table, places = file.columns(required=("id",)), [file.layers.index(layer) for layer in record.layers]
        numbered = [f"{path}:{number}" for number in range(1, len(table) + 1)]
        named = [pl.col(name) for name in ("utterance", "id") if name in table.columns]
        label = pl.col("label") if "label" in table.columns else pl.lit(None, pl.String).alias("label")
        table = table.select(
            pl.coalesce(*named, pl.Series(numbered)).alias("item"), pl.lit("item").alias("unit"), label
        )
        items = table.unique("item", keep="first", maintain_order=True)
        owner = table["item"].replace_strict(items["item"], range(len(items))).to_numpy()
        logits, weights, finite = [], [], []
        for block in file.blocks():
            vectors = block[:, places]
            finite.append(np.isfinite(vectors).all((1, 2)))
            outputs = model.classify(np.where(finite[-1][:, None, None], vectors, 0.0))
            logits.append(outputs.logits.transpose(1, 0, 2))
            weights += [] if outputs.layer_weights is None else [outputs.layer_weights]
        parts = [np.concatenate(part) for part in (logits, weights) if part]
        means = [means_of_clips(part, owner, np.ones(len(owner)), len(items)) for part in parts]
        # an utterance with one bad vector has no mean
        known = np.bincount(owner, ~np.concatenate(finite), len(items)) == 0
        reasons = [None if one else "its vector holds values that are not numbers" for one in known]
        columns = _columns(model, means[0], means[1] if len(means) > 1 else None, known)
        found = items.with_columns(
            **columns, warning=pl.lit(None, pl.String), error=pl.Series(reasons, dtype=pl.String)
        )
        frames.append(_with_sets(model, found))
    if not frames:
        raise CorpusError("there are no embeddings to predict", fix=f"give files of them ({', '.join(READERS)})")
    return pl.concat(frames)


def _columns(
    model: Model,
    logits: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    known: NDArray[np.bool_],
) -> dict[str, pl.Series]:
    """Columns from logits (N, F, C) and layer weights (N, L); null where nothing is known."""
    classes = model.record.classes
    mean = logits.mean(axis=1)
    probabilities = softmax(mean, axis=1) if len(mean) else mean
    top = mean.argmax(axis=1)
    columns = {"class": pl.Series([classes[index] for index in top], dtype=pl.String)}
    values: dict[str, Any] = {f"p_{name}": probabilities[:, index] for index, name in enumerate(classes)}
    values["entropy"] = entr(probabilities).sum(axis=1)
    # share of the folds' models that answer another class than their mean
    others = (logits.argmax(axis=2) != top[:, None]).mean(axis=1)
    values["disagreement"] = others if logits.shape[1] > 1 else np.full(len(mean), np.nan)
    if weights is not None:
        values |= {f"weight_{layer:02d}": weights[:, index] for index, layer in enumerate(model.record.layers)}
    columns |= {name: pl.Series(column, dtype=pl.Float64).fill_nan(None) for name, column in values.items()}
    nothing = pl.Series(~known)
    return {
        name: pl.select(pl.when(nothing).then(None).otherwise(column)).to_series() for name, column in columns.items()
    }
