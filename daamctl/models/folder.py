"""The folder of an exported model: `model.json`, one weights file per fold, a model card, perhaps the encoder.

`model.json` is sealed and holds the SHA-256 of every other file (see `daamctl.store.artifact`), so whoever reads
the folder notices a file that was changed, cut or exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from daamctl.artifacts.utterances import Modality
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.files import check_output, read_json
from daamctl.store.records import read_sealed

FILE = "model.json"
ENCODER_DIR = "encoder"
"""Folder of the encoder within an exported model, if it is included."""
SCHEMA = 1
"""Version of `model.json`; raise it when a field changes its meaning."""
AGAIN = "export it again: daamctl export RUN --out FOLDER"

Kind = Literal["mean", "fold", "refit"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """The model of one training. An exported model averages the logits of its members.

    Args:
        fold: 1-based; None if it was trained on all data.
        test_group: group that it was not trained on; None if it was trained on all data.
    """

    file: str
    fold: int | None
    seed: int
    test_group: str | None


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """What the members were trained on.

    Args:
        items: number of tested utterances, texts or images.
        per_class: class -> number of items.
        embeddings_key: content key of the embeddings with their labels and folds.
        vectors_key: content key of the vectors alone; None in folds older than it.
    """

    name: str
    licence: str
    items: int
    clips: int
    per_class: dict[str, int]
    embeddings_key: str
    vectors_key: str | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure.

    Args:
        value: as a fraction, or in nats.
        unit: "fraction" or "nats".
        low: lower end of the interval; None without one.
        level: level of the interval, e.g. 0.95.
    """

    name: str
    alias: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    level: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredScores:
    """How well models trained like this one classify items that they were not trained on.

    Args:
        item: name of an item, e.g. "utterance".
        protocol: how they were measured, in one or two sentences.
        clusters: what the intervals resample, e.g. "10 speakers"; None without intervals.
        recalls: class -> recall; None for a class without test items.
    """

    figures: list[Figure]
    n: int
    item: str
    protocol: str
    clusters: str | None = None
    recalls: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A place where the released code of the papers departs from their text, and where this model follows the code."""

    number: int
    finding: str
    state: str


@dataclass(frozen=True, kw_only=True)
class PredictionSets:
    """How sets of classes are made that hold the true one with a given probability (`daamctl.evaluation.conformal`).

    Args:
        unit: name of what is independent, e.g. speaker.
        units: number of them that the sets are calibrated on; 0: all that a fold tests was in its training.
        smallest: coverage, e.g. "0.90" -> smallest probability of a class in a set.
    """

    unit: str
    units: int
    smallest: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """The content of `model.json`.

    Args:
        run: pipeline or run that trained the model.
        decoder: name of its decoder; None if it has only one.
        modality: speech, text, image or tokens (a tagger).
        classes: class names, in the order of the logits.
        layers: layer numbers in use (Hugging Face's hidden-state index).
        encoder: facts of the encoder: name, source, revision, weights_sha256, pooling, normalisation, precision,
            storage, licence (None: unknown) and others.
        extract: settings that the vectors were made with.
        segment: settings that the clips were cut with.
        kind: mean: the mean of all folds; fold: one fold; refit: trained on all data.
        measured: None if nothing was measured.
        warnings: what a user must know, one sentence each.
        versions: package -> version, of the training.
        daamctl: version of daamctl that exported it.
        sets: None: of a tagger, or of a training whose epochs were chosen on the test groups.
        text: template of the columns that a text was made of; None: texts were given.
        fine_tuned: whether the method fine-tunes the encoder, instead of fusing the layers of a frozen one.
        files: path within the folder -> SHA-256 of every other file.
    """

    schema: int
    run: str
    method: str
    decoder: str | None
    settings: dict[str, Any]
    modality: Modality
    classes: list[str]
    layers: list[int]
    embed_dim: int
    encoder: dict[str, Any]
    extract: dict[str, Any]
    segment: dict[str, Any]
    kind: Kind
    members: list[Member]
    corpus: CorpusFacts
    measured: MeasuredScores | None
    deviations: list[Deviation]
    warnings: list[str]
    versions: dict[str, str]
    daamctl: str
    sets: PredictionSets | None = None
    text: str | None = None
    fine_tuned: bool = False
    files: dict[str, str] = field(default_factory=dict)


def record_file(folder: Path) -> Path:
    """Path of the record of an exported model.

    Raises:
        ArtifactError: the folder is missing, or is not an exported model.
    """
    if not folder.is_dir():
        raise ArtifactError(
            f"no folder {folder}",
            fix="give the folder of an exported model; make one: daamctl export PIPELINE/METHOD --out FOLDER",
        )
    if not (folder / FILE).is_file():
        raise ArtifactError(f"{folder} is not an exported model: it has no {FILE}", fix=AGAIN)
    return folder / FILE


def read_model(folder: Path) -> ModelRecord:
    """Read and check an exported model: the record, and the hash of every file.

    Raises:
        ArtifactError: the folder is missing, is not an exported model, follows a newer schema, or is damaged.
    """
    path = record_file(folder)
    schema = read_sealed(path, fix=AGAIN).get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ArtifactError(
            f"{path} follows schema {schema}, this version of daamctl knows those up to {SCHEMA}",
            fix="update daamctl",
        )
    record = Artifact(path, ModelRecord, AGAIN, owner="").open()
    # weights without a hash in the sealed record could be exchanged unnoticed
    absent = [member.file for member in record.members if member.file not in record.files]
    if absent or not record.members:
        raise ArtifactError(f"{path} lacks the hash of {', '.join(absent) or 'any weights'}", fix=AGAIN)
    return record


@contextmanager
def write_model(out: Path, record: ModelRecord, *, force: bool) -> Iterator[Path]:
    """Write an exported model: yield a new folder for all other files. It appears whole or not at all.

    Args:
        force: replace an exported model that is there.

    Raises:
        ArtifactError: there is something else, an exported model without `force`, or the file system refuses.
    """
    check_free(out, force=force)
    artifact = Artifact(out.absolute() / FILE, ModelRecord)
    with artifact.make() as new:
        yield new
        artifact.seal(new, record)


def check_free(out: Path, *, force: bool) -> None:
    """Check that an exported model may be written to a folder.

    Raises:
        ArtifactError: there is something else, or an exported model without `force`.
    """
    check_output(out, "an exported model", lambda folder: "daamctl" in read_json(folder / FILE), folder=True)
    if (out / FILE).is_file() and not force:
        raise ArtifactError(f"{out} holds an exported model already", fix="replace it with --force, or choose another")
