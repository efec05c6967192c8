"""Open an exported model: the members' weights at once, the encoder when it is first needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from pydantic import ValidationError

from daamctl.artifacts.terms import counted
from daamctl.compute.devices import autocast, choose_gpu_kernels, resolve_device, resolve_precision
from daamctl.config import Config, ExtractConfig, SegmentConfig
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.encoders.base import Batch, Encoder, PooledBatch
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.encoders.text import TextEncoder
from daamctl.errors import ArtifactError, ConfigError, EncoderError, MethodError, UnknownNameError
from daamctl.fit.steps import free_batch
from daamctl.methods.base import FusionClassifier
from daamctl.methods.weights import load_weights
from daamctl.methods.weights_metadata import ADAPTER, FUSION, INPUTS, POOLING, WeightsMetadata, read_metadata
from daamctl.models.folder import AGAIN, ENCODER_DIR, FILE, ModelRecord, read_model
from daamctl.models.inputs import read_inputs, texts_as_rows
from daamctl.models.predict import Outputs, predict_all, predict_vectors
from daamctl.models.sentences import lines_as_sentences
from daamctl.store.files import expanded

if TYPE_CHECKING:
    import polars as pl

    from daamctl.adapters import FineTuned

log = logging.getLogger(__name__)


class FineTunedEncoder:
    """A fine-tuned encoder in the place of a frozen one: it gives its logits as the only layer, (R, 1, C).

    What it does not define is that of the encoder.
    """

    def __init__(self, model: FineTuned, record: ModelRecord, precision: str) -> None:
        self.model, self.encoder = model.eval(), model.encoder
        if isinstance(self.encoder, TextEncoder):  # what is on top of a causal encoder needs the mask of padding
            self.encoder.sends_mask = True
        self.layers, self.embed_dim, self.precision = tuple(record.layers), len(record.classes), precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def prepare_for_inference(self) -> None:
        """Nothing: what frozen encoders are prepared with was not used in its evaluation."""

    @torch.inference_mode()
    def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
        """See `Encoder.run_async`."""
        inputs, mask = self.encoder.send(batch.inputs, batch.mask)
        with autocast(self.encoder.device, self.precision):
            logits = self.model(inputs, mask)
        return PooledBatch.of(logits.float()[:, None], storage).to_cpu()


class ExportedModel:
    """An exported model.

    Args:
        members: the models of its trainings, in eval mode; none if the encoder was fine-tuned.
        encoder: folder of the encoder; None: the one in the folder, else by its name.
        device: resolved device of the encoder and the members.
        precision: precision of the encoder's forward pass; None: that of the training.
        smallest: smallest probability of a class in the set of an item; None: predictions come without sets.
    """

    def __init__(
        self,
        folder: Path,
        record: ModelRecord,
        members: Sequence[FusionClassifier],
        *,
        encoder: Path | str | None = None,
        device: str = "cpu",
        precision: str | None = None,
        smallest: float | None = None,
    ) -> None:
        self.smallest = smallest
        self.folder, self.record, self.device = folder, record, device
        if device.startswith("cuda"):
            choose_gpu_kernels()  # also where vectors are classified and no encoder is opened
        self.members = [member.to(device).eval() for member in members]
        self._encoder_folder, self._precision = encoder, precision

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        encoder: Path | str | None = None,
        device: str = "auto",
        precision: str | None = None,
        coverage: float | None = None,
    ) -> ExportedModel:
        """Open an exported model. The encoder is opened on first use.

        Args:
            folder: the folder that `daamctl export` has written.
            encoder: folder of the encoder, if the model neither contains it nor names one that is in the cache.
            device: auto, cpu, mps, cuda or cuda:N.
            precision: precision of the encoder: auto, float32, bfloat16 or float16; None: that of the training.
            coverage: add to every item the set of classes that holds the true one with this probability.

        Raises:
            ArtifactError: the folder is missing, foreign, damaged, or of a newer version of daamctl.
            ConfigError: the device is not on this machine, or the model has no sets of this coverage.
        """
        folder = Path(folder)
        record = read_model(folder)
        smallest = None if coverage is None else _smallest(record, coverage)
        members = []
        for member in record.members:
            try:
                _check_member(record, read_metadata(folder / member.file), folder / member.file)
                if not record.fine_tuned:  # otherwise they are loaded into the encoder
                    members.append(load_weights(folder / member.file))
            except MethodError as error:
                is_foreign = isinstance(error.__cause__, UnknownNameError)
                fix = f"install it as it was in training: {FILE} has its version" if is_foreign else AGAIN
                raise ArtifactError(error.message, fix=fix) from error
        return cls(
            folder,
            record,
            members,
            encoder=encoder,
            device=resolve_device(device),
            precision=precision,
            smallest=smallest,
        )

    @cached_property
    def config(self) -> Config:
        """Settings of the clips and the vectors.

        Raises:
            ArtifactError: this version of daamctl does not know a setting.
        """
        settings = {"segment": self.record.segment, "extract": self.record.extract}
        try:
            return Config.model_validate({name: part for name, part in settings.items() if part})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ArtifactError(f"{self.folder}: {place}: {first['msg'].lower()}", fix=AGAIN) from error

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder, open. Layers above the highest that the model reads are not loaded.

        Raises:
            EncoderError: it cannot be found or opened, or is another one than in training.
        """
        config = self.config.extract.model_copy(update=self._encoder_source())
        wanted = self._precision or str(self.record.encoder["precision"])
        try:
            precision = resolve_precision(wanted, self.device, work="encoder")
        except ConfigError:
            if self._precision is not None:
                raise
            log.warning("the model was trained with %s, which needs a GPU; using float32", wanted)
            precision = "float32"
        included = config.encoder == str(self.folder / ENCODER_DIR)
        opened = open_for(self.record, config, device=self.device, precision=precision, included=included)
        if not self.record.fine_tuned:
            return opened.encoder
        [member] = self.record.members
        tuned = FineTunedEncoder(load_weights(self.folder / member.file, encoder=opened), self.record, precision)  # type: ignore[arg-type]
        return cast(Encoder, tuned)

    def classify(self, vectors: Shaped[np.ndarray, "N L D"]) -> Outputs:
        """Classify pooled layers.

        Args:
            vectors: (N, L, D) of the model's layers, in order; of a fine-tuned encoder its logits, (N, 1, C).

        Raises:
            ValueError: the vectors have another number of layers or features.
        """
        if self.record.fine_tuned:
            return Outputs(vectors[None, :, 0].astype(np.float64), None)
        expected = (len(self.record.layers), self.record.embed_dim)
        if vectors.shape[1:] != expected:
            raise ValueError(f"vectors have shape {vectors.shape}; need (N, {expected[0]}, {expected[1]})")
        size = min(free_batch(member, self.device) for member in self.members)
        logits = np.zeros((len(self.members), len(vectors), len(self.record.classes)))
        weigh = all(member.weighs_layers for member in self.members)
        weights = np.zeros(vectors.shape[:2]) if weigh else None
        with torch.inference_mode():
            for start in range(0, len(vectors), size):
                rows = slice(start, start + size)
                x = torch.from_numpy(vectors[rows].astype(np.float32)).to(self.device)
                for index, member in enumerate(self.members):
                    logits[index, rows] = _float64(member(x))
                    if weights is not None:
                        weights[rows] += _float64(member.layer_weights(x)) / len(self.members)
        return Outputs(logits, weights)

    def of_layers(self, vectors: Shaped[np.ndarray, "N K D"]) -> Shaped[np.ndarray, "N L D"]:
        """The model's layers among all that the encoder returns (N, K, D)."""
        places = [self.encoder.layers.index(layer) for layer in self.record.layers]
        return vectors[:, places]

    def predict(self, inputs: Sequence[str | Path]) -> pl.DataFrame:
        """Predict files, folders, globs and tables, or texts.

        Args:
            inputs: for a model of texts the texts themselves, for a tagger sentences with spaces between their words;
                otherwise files, as in `daamctl predict`.

        Returns:
            One row per item, and for recordings also one per clip; of a tagger one per word and entity. See
            `daamctl.models.predict`.

        Raises:
            CorpusError: there is no such file or folder, or it holds nothing that the model reads.
            EncoderError: the encoder cannot be found or opened.
        """
        if self.record.modality == "tokens":
            return predict_all(self, lines_as_sentences([str(text) for text in inputs]))
        if self.record.modality == "text":
            return predict_all(self, texts_as_rows([str(text) for text in inputs]))
        words = [str(path) for path in inputs]
        if self.record.modality == "embeddings":
            return predict_vectors(self, words)
        return predict_all(self, read_inputs(words, self.record.modality))

    def _encoder_source(self) -> dict[str, Any]:
        """Settings that name the encoder to open."""
        if self.record.modality == "embeddings":
            raise EncoderError(f"{self.folder} reads given embeddings and has no encoder")
        name, own = self.record.extract["encoder"], self.folder / ENCODER_DIR
        folder = self._encoder_folder or (own if own.is_dir() else None)
        if folder is not None:
            if not expanded(folder).is_dir():
                raise EncoderError(
                    f"no folder {folder}", fix=f"give a copy of {named(self.record)} with --encoder FOLDER"
                )
            return {"encoder": str(folder), "revision": None, "weights": "pretrained"}
        if name in ENCODERS or HUB_ID.match(name):
            return {}
        raise EncoderError(
            f"the model needs the encoder {named(self.record)}, which is not in its folder",
            fix="name its folder with --encoder FOLDER, or export again with --with-encoder",
        )


def open_for(
    record: ModelRecord, config: ExtractConfig, *, device: str, precision: str, included: bool = False
) -> OpenedEncoder:
    """Open the encoder of an exported model, cut after the highest layer that the model reads.

    Args:
        precision: resolved precision of its forward pass.
        included: whether it lies in the model's folder: cut already, its files compared with their hashes.

    Raises:
        EncoderError: it cannot be opened, or is another one than in training.
    """
    seconds = SegmentConfig.model_validate(record.segment).max_duration_s
    options: dict[str, Any] = {"modality": record.modality, "max_duration_s": seconds, "precision": precision}
    opened = open_encoder(config, device=device, **options)
    highest, facts = max(record.layers), record.encoder
    for name in ("weights_sha256", *POOLING, *INPUTS):
        there, here = facts.get(name), opened.facts.get(name)
        if there == here or (included and name in ("weights_sha256", "final_norm")):
            continue
        if name == "features" and there is None:  # exported by a version that did not record it
            continue
        if name != "weights_sha256":
            raise EncoderError(f"encoder '{config.encoder}' has {name} {here}, the model needs {there}")
        if facts.get("weights_dtype") == opened.facts.get("weights_dtype"):  # the hash depends on it
            raise EncoderError(
                f"encoder '{config.encoder}' is not the one that the model was trained on: its weights have "
                f"SHA-256 {str(here)[:12]}, not {str(there)[:12]}",
                fix=f"give a copy of {named(record)} with --encoder FOLDER",
            )
    if highest < max(opened.encoder.layers) and opened.encoder.pooler.layers:
        return open_encoder(config, device=device, highest_layer=highest, **options)
    return opened


def _smallest(record: ModelRecord, coverage: float) -> float:
    """Smallest probability of a class in a set of this coverage.

    Raises:
        ConfigError: the model has no such sets.
    """
    if record.sets is None:
        why = "it tags words" if record.modality == "tokens" else "export it again, or train it with a held-out group"
        raise ConfigError(f"{record.run}/{record.method} has no prediction sets: {why}")
    if not record.sets.units:
        why = f"its folds test no {record.sets.unit} that they were not trained on"
        raise ConfigError(
            f"{record.run}/{record.method} has no prediction sets: {why}",
            fix=f"train it on folds that share no {record.sets.unit}s, and export it again",
        )
    found = record.sets.smallest.get(f"{coverage:.2f}")
    if found is None or round(coverage, 2) != coverage:
        levels, units = list(record.sets.smallest), counted(record.sets.units, record.sets.unit)
        allowed = f"{levels[0]} to {levels[-1]} in steps of 0.01" if levels else "there is none"
        raise ConfigError(f"--coverage {coverage:g} is not available; with {units} to calibrate on: {allowed}")
    return found


def _check_member(record: ModelRecord, found: WeightsMetadata, path: Path) -> None:
    """Compare what a weights file says about itself, as far as it does, with `model.json`."""
    sizes = len(record.layers), record.embed_dim, len(record.classes)
    pairs = {
        "kinds of weights": (found.kind, ADAPTER if record.fine_tuned else FUSION),
        "numbers of trainings": (1 if record.fine_tuned else None, len(record.members)),
        "classes": (found.classes, tuple(record.classes)),
        "layers": (found.layers, tuple(record.layers)),
        "modality": (found.modality, record.modality),
        "encoder": (found.encoder.get("weights_sha256"), record.encoder.get("weights_sha256")),
        "numbers of layers, features and classes": ((found.num_layers, found.embed_dim, found.num_classes), sizes),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs not in (None, ours):
            raise ArtifactError(f"{path} has other {name} than {FILE}: {theirs}, not {ours}", fix=AGAIN)


def named(record: ModelRecord) -> str:
    """The encoder of a model, for messages."""
    return f"'{record.encoder['source']}' (weights SHA-256 {record.encoder['weights_sha256'][:12]})"


def _float64(values: torch.Tensor) -> NDArray[np.float64]:
    return values.cpu().double().numpy()
