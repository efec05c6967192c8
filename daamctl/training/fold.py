"""Train one fold of one method, from embeddings to a finished fold folder."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file
from torch import nn

from daamctl.artifacts.embeddings import EmbeddingsMetadata, StoredVectors
from daamctl.artifacts.io import content_key, locked, replace_dir
from daamctl.artifacts.results import Fold, FoldResult, MetaPart, fold_dir, read_fold
from daamctl.artifacts.splits import Split, joined, split_of
from daamctl.config import Config, TrainConfig
from daamctl.config.keys import key_settings, probe_settings
from daamctl.devices import free_memory, resolve_device, resolve_precision
from daamctl.errors import ArtifactError, MethodError
from daamctl.methods import CLOSED_FORM, METHODS, build, resolve_method, save_weights, settings_of
from daamctl.methods.base import FusionClassifier, Standardize
from daamctl.methods.probes import RidgeProbe
from daamctl.methods.weights_metadata import Origin
from daamctl.provenance import code_hash
from daamctl.training.closed_form import ClosedForm
from daamctl.training.feature_split import InMemorySplit, Part, StreamedSplit
from daamctl.training.fold_files import identity, meta_of, metrics_of, write_finished
from daamctl.training.loop import Trained, Training, seed_everything
from daamctl.training.search import Search, Settings, Trial, grid_of, refits
from daamctl.training.standardize import fit_standardize

log = logging.getLogger(__name__)

KEY_FORMAT = 2  # raise it when a change of the loop makes finished folds wrong
HELD_SHARE = 0.25  # of free memory: a dev or test part on disk up to this size is read once, not every epoch


@dataclass(frozen=True)
class Features:
    """Embeddings of a corpus, in memory, on a GPU or on disk.

    Args:
        head: metadata of the embeddings.
        clips: N rows.
        x: (N, L, D) in the stored number format; vectors on disk are read on demand.
        layers: the L layer numbers.
        stream: training reads them from disk in every epoch, in a different order than from memory.
    """

    head: EmbeddingsMetadata
    clips: pl.DataFrame
    x: torch.Tensor | StoredVectors
    layers: tuple[int, ...]
    stream: bool = False

    def targets(self) -> torch.Tensor:
        """Class ids (N,)."""
        index = {name: i for i, name in enumerate(self.head.classes)}
        return torch.tensor([index[label] for label in self.clips["label"]])

    def subset(self, layers: tuple[int, ...]) -> Features:
        """The same clips with fewer layers."""
        if isinstance(self.x, StoredVectors):
            return replace(self, x=self.x.subset(layers), layers=layers)
        rows = [self.layers.index(layer) for layer in layers]
        return replace(self, x=self.x[:, rows].contiguous(), layers=layers)


@dataclass(frozen=True)
class FoldSpec:
    """Which fold to train, and with which settings.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of methods.
        fold: 1-based.
        seed: initial weights and order of batches.
        config: settings; `train` and the method's own apply.
    """

    name: str
    method: str
    fold: int
    seed: int
    config: Config

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of this method, defaults included."""
        return settings_of(self.method, self.config.method_settings)

    def key(self, features: Features) -> str:
        """Content key of everything that affects the result; the machine does not."""
        closed_form = self.method in CLOSED_FORM
        train = probe_settings(self.config) if closed_form else key_settings(self.config, "train")
        return content_key(
            {
                "format": KEY_FORMAT,
                "embeddings": features.head.key,
                "layers": features.layers,
                "method": self.method,
                "settings": self.settings,
                "code": code_hash(METHODS.module_of(resolve_method(self.method)[0]), "daamctl.methods"),
                "train": train,
                "fold": self.fold,
                "seed": self.seed,
                **({"stream": True} if features.stream and not closed_form else {}),
            }
        )


def build_method(method: str, config: Config, num_layers: int, embed_dim: int, num_classes: int) -> FusionClassifier:
    """Build a method with its settings.

    Raises:
        MethodError: the method does not fit these sizes, or needs a held-out group that the settings do not set aside;
            the message names the setting to change.
    """
    settings = settings_of(method, config.method_settings)
    try:
        model = build(method, num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, **settings)
    except MethodError as error:
        raise MethodError(
            f"{method}: {error.message}", fix=error.fix or _fix(method, error), setting=error.setting
        ) from error
    if model.traits.needs_dev and config.train.selection != "dev-group":
        raise MethodError(
            f"{method}: part of it is chosen on a held-out group, which train.selection={config.train.selection} "
            "does not set aside",
            fix="leave the method out, or use --set train.selection=dev-group",
        )
    return model


def _fix(method: str, error: MethodError) -> str:
    """Suggest how to repair settings with which a method cannot be built."""
    if error.setting is None:
        return f"correct method_settings.{method}, or leave the method out"
    name, value = error.setting
    return (
        f"add --set method_settings.{method}.{name}={value}, write that into the pipeline's file, or leave the method "
        "out"
    )


def kept_fold(method_dir: Path, spec: FoldSpec, features: Features) -> Fold | None:
    """The finished fold on disk if its inputs are identical; `train.features=auto` accepts either source."""
    folder = fold_dir(method_dir, spec.fold, spec.seed)
    try:
        fold = read_fold(folder)
    except ArtifactError:
        return None
    ways = {features.stream} if spec.config.train.features != "auto" else {True, False}
    keys = {spec.key(replace(features, stream=way)) for way in ways}
    return fold if fold.result["run"]["key"] in keys else None


def train_precision(model: nn.Module, train: TrainConfig, device: str) -> str:
    """Resolve the number format of the training step.

    On a CPU, `auto` means bfloat16 only for models with 2-D convolutions: they gain more than autocast costs, while the
    small matrices of the other methods do not.

    Raises:
        ConfigError: the device does not support it.
    """
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return resolve_precision(train.precision, device, cpu_auto=convolves)


class FoldJob:
    """One fold from its embeddings to a finished folder. For the arguments see `train_folds`."""

    def __init__(self, spec: FoldSpec, features: Features, method_dir: Path, work: Path) -> None:
        self.spec, self.features, self.method_dir = spec, features, method_dir
        self.device = resolve_device(spec.config.train.device)
        self.split = split_of(features.clips, spec.fold, spec.config.train)
        self.target = fold_dir(method_dir, spec.fold, spec.seed)
        self.folder = work / f"{method_dir.name}-fold{spec.fold}-seed{spec.seed}"
        self.key = spec.key(features)
        self.before = identity(self.target)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the fold against other processes."""
        return locked(self.folder.with_suffix(".lock"), what=f"{self.spec.method} fold {self.spec.fold}")

    def made_meanwhile(self) -> Fold | None:
        """The fold, if another process has finished it since this job was created; else None."""
        kept = kept_fold(self.method_dir, self.spec, self.features)
        return kept if kept is not None and identity(kept.folder) != self.before else None

    @property
    def refits(self) -> bool:
        """Whether to train again with the held-out group once the settings and the epoch are chosen."""
        return refits(self.spec.config.train) and self.spec.method not in CLOSED_FORM  # a probe refits by itself

    def refit(self, training: Trial) -> Training:
        """Return a training on the training part plus the held-out group, with the choices made on that group.

        Args:
            training: the chosen training, finished.
        """
        assert isinstance(training, Training)
        training.save()  # so that an interruption during the refit loses none of it
        train = _part(self.features, joined(self.split).train, self.device)
        model = self._model()
        if training.config.standardize != "none":
            model.standardize = fit_standardize(train, training.config.standardize, self.device)
        settings = {"candidate": training.key, "epochs": training.done.selected_epoch}
        return training.again(model, train, work=self.folder / "refit", key=content_key({"refit": settings}))

    def start(self, on_step: Callable[[], None]) -> Search:
        """Create the trainings of all candidates, each fresh or resumed from its checkpoint.

        Args:
            on_step: called after each epoch of each training.
        """
        config, parts = self.spec.config.train, _parts(self.features, self.split, self.device)
        if self.spec.method in CLOSED_FORM:
            probe = cast(RidgeProbe, self._model())
            solved = ClosedForm(
                probe,
                *parts,
                config,
                layers=self.features.layers,
                seed=self.spec.seed,
                device=self.device,
                on_step=on_step,
            )
            return Search(lambda number, settings: solved, None)
        if self._model().traits.batch_dependent:
            log.warning(
                "%s: a prediction depends on the other clips of its batch (D1); evaluated %d at a time, in the order "
                "of the clip table",
                self.spec.method,
                config.batch_size,
            )
        standards: dict[str, Standardize] = {}
        first: dict[str, Training] = {}

        def start(number: int, settings: Settings | None) -> Training:
            changed = config.model_copy(update=settings or {})
            kind = changed.standardize
            model = self._model()
            if kind != "none":
                if kind not in standards:
                    standards[kind] = fit_standardize(parts[0], kind, self.device)
                model.standardize = deepcopy(standards[kind])
            training = Training(
                model,
                *parts,
                changed,
                seed=self.spec.seed,
                device=self.device,
                precision=train_precision(model, config, self.device),
                work=self.folder if settings is None else self.folder / f"candidate-{number}",
                key=content_key({"fold": self.key, "candidate": settings}) if settings else self.key,
                may_diverge=settings is not None,
                untrained=first.get(kind),
                on_step=on_step,
            )
            first.setdefault(kind, training)
            return training

        return Search(start, grid_of(config))

    def _model(self) -> FusionClassifier:
        """Build the method, initialised from the seed."""
        spec, features = self.spec, self.features
        seed_everything(spec.seed, self.device)
        sizes = (len(features.layers), features.head.embed_dim, len(features.head.classes))
        return build_method(spec.method, spec.config, *sizes)

    def finish(self, training: Trial, root: Path, **meta: Any) -> Fold:
        """Train the remaining epochs, write all files and move the folder into place.

        Args:
            training: the chosen training.
            root: project folder, for the commit.
            meta: further entries of the result's `meta`.
        """
        trained = training.complete()
        result = _result(self.spec, self.key, self.features, self.split, trained, training, root)
        result["meta"] = cast(MetaPart, {**result["meta"], "features": _taken(training.train), **meta})
        if trained.search is not None:
            result["search"] = trained.search
        _write(self.folder / "finished", self.spec, self.features, self.split, trained, training.model, result)
        replace_dir(self.folder / "finished", self.target)
        shutil.rmtree(self.folder, ignore_errors=True)
        return read_fold(self.target)


def _parts(features: Features, split: Split, device: str) -> tuple[Part, Part | None, Part]:
    """Split the features into training, dev and test parts.

    Features in memory or on a GPU are not copied: the parts index them, so folds share them. Features on disk are
    streamed, except that a small dev or test part is read once and held.
    """

    def evaluated(rows: np.ndarray) -> Part:
        found = _part(features, rows, device)
        if isinstance(found, StreamedSplit) and found.nbytes <= HELD_SHARE * free_memory():
            return found.hold()
        return found

    train = _part(features, split.train, device)
    return train, evaluated(split.dev) if split.dev_group is not None else None, evaluated(split.test)


def _part(features: Features, rows: np.ndarray, device: str) -> InMemorySplit | StreamedSplit:
    """Part with the given clips, by ascending row number."""
    x, index = features.x, torch.from_numpy(rows)
    y = features.targets()[index]
    if isinstance(x, torch.Tensor):
        return InMemorySplit(x, y.to(x.device), index.to(x.device))
    assert features.stream, "settle decides, for the key of the fold says so"
    return StreamedSplit(x, rows, y, pin=device.startswith("cuda"))


def _taken(train: Part) -> str:
    """Where training read its features from: stream, memory or device."""
    if isinstance(train, StreamedSplit):
        return "stream"
    return "memory" if train.y.device.type == "cpu" else "device"


def _result(
    spec: FoldSpec,
    key: str,
    features: Features,
    split: Split,
    trained: Trained,
    training: Trial,
    root: Path,
) -> FoldResult:
    model = training.model
    chosen = _chosen_layer(model)
    config = {stage: spec.config.section(stage) for stage in ("download", "segment", "extract", "train")}
    if model.traits.closed_form:
        config["train"] = probe_settings(spec.config)
    return {
        "run": {
            "key": key,
            "pipeline": spec.name,
            "method": spec.method,
            "fold": spec.fold,
            "num_folds": split.num_folds,
            "modality": features.head.modality,
            "seed": spec.seed,
            "test_group": split.test_group,
            "dev_group": split.dev_group,
            "classes": list(features.head.classes),
            "layers": list(features.layers),
            "embed_dim": features.head.embed_dim,
            "num_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "reconstructed": model.traits.reconstructed,
            "eval_batches": _eval_batches(spec, features, split, model),
            "config": {**config, "method": spec.settings},
            **({"notes": trained.notes} if trained.notes else {}),  # type: ignore[typeddict-item]
        },
        "metrics": {
            **metrics_of(trained, spec.config.train.epochs, spec.config.train.selection),
            **({"finished": True} if model.traits.closed_form else {}),
            **({"chosen_layer": features.layers[chosen]} if chosen is not None else {}),
        },
        "meta": meta_of(
            split,
            trained,
            embeddings_key=features.head.key,
            encoder=features.head.encoder,
            device=training.run.device,
            precision=training.run.precision,
            root=root,
        ),
    }


def _chosen_layer(model: FusionClassifier) -> int | None:
    """Index of the layer that a method selected on the held-out group; None if the method selects none."""
    index = dict(model.named_buffers()).get("fusion.chosen")
    return None if index is None else int(index)


def _eval_batches(
    spec: FoldSpec, features: Features, split: Split, model: FusionClassifier
) -> dict[str, int | str] | None:
    """How the test clips were batched, for methods whose predictions depend on it; else None."""
    if not model.traits.batch_dependent:
        return None
    order = "\n".join(features.clips["clip_id"].gather(split.test).to_list())
    return {
        "size": spec.config.train.batch_size,
        "order": "clip table",
        "clips_sha256": hashlib.sha256(order.encode()).hexdigest(),
    }


def _write(
    folder: Path,
    spec: FoldSpec,
    features: Features,
    split: Split,
    trained: Trained,
    model: FusionClassifier,
    result: FoldResult,
) -> None:
    """Write all files of a finished fold, `result.json` last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_weights(
        model,
        folder / "weights.safetensors",
        method=spec.method,
        num_layers=len(features.layers),
        embed_dim=features.head.embed_dim,
        num_classes=len(features.head.classes),
        settings=spec.settings,
        origin=Origin.of(
            features.head.encoder,
            classes=features.head.classes,
            layers=features.layers,
            modality=features.head.modality,
            settings=features.head.settings,
        ),
    )
    if trained.density is not None and trained.untrained_density is not None:
        maps = {"trained": trained.density.contiguous(), "untrained": trained.untrained_density.cpu().contiguous()}
        save_file(maps, folder / "density.safetensors")
    if trained.layer_weights is not None and trained.untrained_layer_weights is not None:
        weights = {"trained": trained.layer_weights, "untrained": trained.untrained_layer_weights}
        save_file(weights, folder / "layer_weights.safetensors")
    write_finished(
        folder,
        features.clips[split.test],
        features.targets()[split.test],
        trained,
        spec.config,
        result,
        batch_size=spec.config.train.batch_size if model.traits.batch_dependent else None,
    )
