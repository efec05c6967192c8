"""`predict`: classify new recordings, texts, images, vectors or the words of sentences with an exported model.

Writes one table. Finished chunks of items are kept in a hidden folder beside it until the table is complete, so that an
interrupted command resumes and gives the same table. It is not a stage of the DAG and needs no project.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import TEXTS
from daamctl.compute.progress import progress
from daamctl.data.spans import EntityScores
from daamctl.data.task import Task, task_of
from daamctl.errors import ConfigError, CorpusError, first_few
from daamctl.evaluation.scoring import items_of
from daamctl.models.inputs import read_inputs, texts_as_rows
from daamctl.models.model import ExportedModel
from daamctl.models.predict import predict_parts, predict_vectors
from daamctl.models.sentences import lines_as_sentences, read_sentences
from daamctl.models.tagging import scores_of
from daamctl.store.files import check_output, csv_text, write_text
from daamctl.store.tables import write_parquet

log = logging.getLogger(__name__)

FORMATS = (".parquet", ".csv", ".jsonl", ".ndjson")
"""Suffixes of the output."""
SMALLEST = 1e-300
"""Probability that stands for zero in a logarithm."""


@dataclass(frozen=True)
class PredictionResult:
    """Result of `run`.

    Args:
        rows: the table, see `daamctl.models.predict`, or for a tagger `daamctl.models.tagging`.
        scores: every metric over the n items whose label is known; None without labels, and for a tagger.
        unknown: labels that are no class of the model, with the number of their items.
        entities: of a tagger, scores over the sentences whose tags are known; None without tags.
        held, size: share of the items with a label whose set holds it, and mean number of classes in their sets.
    """

    rows: pl.DataFrame
    scores: dict[str, float] | None
    unknown: dict[str, int]
    entities: EntityScores | None = None
    held: float | None = None
    size: float | None = None


def run(
    folder: Path,
    inputs: Sequence[str],
    *,
    lines: Sequence[str] = (),
    out: Path | None = None,
    encoder: Path | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    coverage: float | None = None,
) -> PredictionResult:
    """Predict items.

    Args:
        inputs: files, folders, globs and tables, see `daamctl.models.inputs` and `daamctl.models.sentences`.
        lines: texts or sentences, e.g. from standard input.
        out: file to write: Parquet, CSV or JSON lines, by its suffix; None: write nothing.
        encoder: folder of the encoder, if the model does not contain it.
        batch_size: most clips per forward pass of the encoder.
        device: auto, cpu, mps, cuda or cuda:N.
        coverage: see `ExportedModel.open`.

    Raises:
        ConfigError: the output has an unknown suffix, or texts are given to a model that reads no texts.
        CorpusError: there is nothing to predict, or it is of another kind.
        ArtifactError: the model is missing, foreign or damaged, or the output cannot be written or is another file.
        EncoderError: the encoder cannot be found or opened.
    """
    if out is not None and out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out must end in {', '.join(FORMATS)}, got '{out}'")
    if out is not None:
        check_output(out, "a table of predictions", _is_own)
    model = ExportedModel.open(folder, encoder=encoder, device=device, coverage=coverage)
    modality = model.record.modality
    if lines and modality not in TEXTS:
        reads = "files of embeddings" if modality == "embeddings" else f"{task_of(modality).original}s"
        raise ConfigError(f"standard input holds texts, the model reads {reads}")
    words, task, work = modality == "tokens", task_of(modality, model.record.classes), None
    if modality == "embeddings":
        found = predict_vectors(model, inputs)
        labels = found["label"]
    else:
        parts = [lines_as_sentences(lines) if words else texts_as_rows(lines)] if lines else []
        if inputs or not lines:
            parts.append(read_sentences(inputs) if words else read_inputs(inputs, modality, model.record.text))
        rows = pl.concat(parts)
        if rows.is_empty():
            raise CorpusError("standard input holds no sentence")
        work = out.with_name(f".{out.name}.parts") if out is not None else None
        with progress(len(rows), "predicting", f"{task.whole}s") as bar:
            parts = []
            for items, part in predict_parts(model, rows, work=work, batch_size=batch_size):
                parts.append(part)
                bar.advance(items)
        found = pl.concat(parts)
        labels = rows["tags" if words else "label"]
    # nobody gave labels, so the column would be empty
    if labels.null_count() == len(labels):
        found = found.drop("label")
    if out is not None:
        _write(out, found)
    if work is not None:
        shutil.rmtree(work, ignore_errors=True)
    unit, answer = ("word", "tag") if words else ("item", "class")
    failed = found.filter((pl.col("unit") == unit) & pl.col(answer).is_null())
    if len(failed):
        told = failed.select("item", "error").iter_rows()
        reasons = [reason if reason.startswith(name) else f"{name} ({reason})" for name, reason in told]
        log.warning("%s cannot be read: %s", counted(len(failed), task.item), first_few(reasons, 3))
    return _scored(found, task, words=words)


def as_text(rows: pl.DataFrame, suffix: str) -> str:
    """Rows as CSV, in which no text is a formula, or as JSON lines."""
    if suffix == ".csv":
        rows = rows.with_columns(pl.col(pl.List(pl.String)).list.join("; "))
        return rows.with_columns(pl.col(pl.String).map_elements(csv_text, return_dtype=pl.String)).write_csv()
    return rows.write_ndjson()


def _is_own(out: Path) -> bool:
    """Whether a file is a table that `run` wrote."""
    scans = {".parquet": pl.scan_parquet, ".csv": pl.scan_csv}
    found: pl.LazyFrame = scans.get(out.suffix.lower(), pl.scan_ndjson)(out)  # type: ignore[operator]
    return {"item", "unit", "warning", "error"} <= set(found.collect_schema())


def _write(out: Path, rows: pl.DataFrame) -> None:
    if out.suffix.lower() == ".parquet":
        write_parquet(out, rows.to_arrow())
    else:
        write_text(out, as_text(rows, out.suffix.lower()))


def _scored(rows: pl.DataFrame, task: Task, *, words: bool) -> PredictionResult:
    """The result, with scores over the items, or sentences, that have a prediction and a known label."""
    if "label" not in rows.columns:
        return PredictionResult(rows, None, {})
    items, classes = rows, task.classes
    if not words:
        items = rows.filter((pl.col("unit") == "item") & pl.col("class").is_not_null() & pl.col("label").is_not_null())
    known = pl.col("label").is_in(classes)
    unknown = dict(items.filter(~known)["label"].value_counts(sort=True).iter_rows())
    if words:
        return PredictionResult(rows, None, unknown, scores_of(rows, classes))
    items = items.filter(known)
    if items.is_empty():
        return PredictionResult(rows, None, unknown)
    # The softmax of the logarithms of probabilities gives the probabilities again.
    logits = np.log(items.select([f"p_{name}" for name in classes]).to_numpy().clip(min=SMALLEST))
    frame = pl.DataFrame(
        {
            "clip_id": items["item"],
            "utterance_id": items["item"],
            "speaker": pl.Series([None] * len(items), dtype=pl.String),
            "target": [classes.index(label) for label in items["label"]],
            "logits": pl.Series(logits.tolist(), dtype=pl.List(pl.Float64)),
        }
    )
    scores = {**task.score(items_of(frame, "clip", task)), "n": len(items)}
    if "set" not in items.columns:
        return PredictionResult(rows, scores, unknown)
    held, size = items.select(pl.col("label").is_in(pl.col("set")).mean(), pl.col("set").list.len().mean()).row(0)
    return PredictionResult(rows, scores, unknown, held=held, size=size)
