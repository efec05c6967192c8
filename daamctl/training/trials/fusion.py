"""Trials that fuse the stored layers of a frozen encoder: content key, model, and files of a finished fold."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from copy import deepcopy
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from daamctl.artifacts.io import content_key
from daamctl.artifacts.results import ENTRY
from daamctl.artifacts.splits import joined
from daamctl.config import Config
from daamctl.config.keys import key_settings, probe_settings
from daamctl.devices import resolve_device
from daamctl.errors import MethodError
from daamctl.methods import CLOSED_FORM, METHODS, build, resolve_method, save_weights, settings_of
from daamctl.methods.base import FusionClassifier, Standardize
from daamctl.methods.probes import RidgeProbe
from daamctl.methods.weights_metadata import Origin
from daamctl.provenance import FOLD_CODE, code_hash
from daamctl.training.batched import MOST_MEMBERS, separable
from daamctl.training.closed_form import ClosedFormTraining
from daamctl.training.features import Features, is_on, part_of, source_of, split_features
from daamctl.training.fusion_training import FusionTraining
from daamctl.training.graphed import MOST_STREAMS, obstacle
from daamctl.training.loop import Trained, Training, TrainingSetup
from daamctl.training.rng import seed_everything
from daamctl.training.run_precision import run_precision
from daamctl.training.search import Grid, Settings, Start, grid_of
from daamctl.training.standardize import fit_standardize
from daamctl.training.trial import FoldSpec, ResultParts, Trial, entity_f1_of, for_refit

log = logging.getLogger(__name__)

KEY_FORMAT = 2  # raise it when a change of the loop makes finished folds wrong
CPU_BATCH_NUMBERS = 100_000
"""Largest batch per training, B * L * D numbers, for which batching folds pays on a CPU. Beyond it, memory traffic
limits the speed, not the number of kernels (benchmarks/training.py)."""
CPU_PARAMETERS = 300_000
"""Largest number of trainable parameters for which batching folds pays on a CPU (same benchmark)."""
CPU_STEP_NUMBERS = 1_000_000
"""Numbers in the batches of all trainings that fit in a CPU's caches beside everything else."""


class FusionTrial(Trial):
    """One fold of a method over stored layers.

    Args:
        spec: which fold; `train` and the settings of the method apply.
        data: the embeddings.
    """

    stage = "train"
    title = "training"
    unit = "epochs"
    trials_per_gpu = 4  # the models are small, their features are not
    data: Features

    def __init__(self, spec: FoldSpec, data: Features) -> None:
        super().__init__(spec, data)
        self.settings = settings_of(spec.method, spec.config.method_settings)  # of the method, defaults included
        self.closed_form = spec.method in CLOSED_FORM
        if self.closed_form:  # a probe is solved in one go, and then refits by itself
            self.epochs, self.refits = 1, False

    @cached_property
    def key(self) -> str:
        """Content key of everything that affects the result; the machine does not."""
        return self._key(stream=self.data.stream)

    @property
    def accepted_keys(self) -> set[str]:
        """The key; under `train.features=auto` also that of features read from elsewhere."""
        if self.config.train.features == "auto":
            return {self._key(stream=stream) for stream in (False, True)}
        return {self.key}

    @property
    def code(self) -> dict[str, str]:
        """Hashes of the code that the fold depends on: of training, and of its method."""
        method = METHODS.module_of(resolve_method(self.spec.method)[0])
        training = code_hash(__name__, "daamctl", FOLD_CODE)
        return {"training": training, "method": code_hash(method, "daamctl.methods")}

    @property
    def grid(self) -> Grid | None:
        """See `Trial.grid`."""
        return None if self.closed_form else grid_of(self.config.train)

    @property
    def most_members(self) -> int:
        """See `Trial.most_members`."""
        return most_members(self.spec, self.data)

    def starter(self, advance: Callable[[int], None]) -> Start:
        """See `Trial.starter`; the trainings share features, standardisation and untrained maps."""
        train, dev, test = split_features(self.data, self.split, self.device)
        f1 = entity_f1_of(self)
        fitted: dict[str, Standardize] = {}  # by the setting `train.standardize`, which candidates may differ in
        untrained: dict[str, Trained] = {}  # likewise

        def start(settings: Settings | None, work: Path, key: str) -> Training:
            config = self.config.train.model_copy(update=settings or {})
            model = self.build()
            if self.closed_form:
                setup = self._setup("float32", work, key, advance, entity_f1=f1)
                probe = cast(RidgeProbe, model)
                return ClosedFormTraining(probe, train, dev, test, config, setup, layers=self.data.layers)
            if model.traits.batch_dependent and not untrained:
                log.warning(
                    "%s: a prediction depends on the other clips of its batch (D1); evaluated %d at a time, in the "
                    "order of the clip table",
                    self.spec.method,
                    config.batch_size,
                )
            standardize = config.standardize
            if standardize != "none":
                if standardize not in fitted:
                    fitted[standardize] = fit_standardize(train, standardize, self.device)
                model.standardize = deepcopy(fitted[standardize])
            setup = self._setup(self.precision, work, key, advance, may_diverge=settings is not None, entity_f1=f1)
            training = FusionTraining(model, train, dev, test, config, setup, untrained=untrained.get(standardize))
            untrained.setdefault(standardize, training.done)
            if config.graphs == "auto" and training.obstacle is not None:
                _tell(self.spec.method, training.obstacle)
            return training

        return start

    def refit(self, first: Training, work: Path, key: str, advance: Callable[[int], None]) -> Training:
        """See `Trial.refit`; learning rates are repeated, and a layer chosen on the held-out group stays chosen."""
        assert isinstance(first, FusionTraining)
        train = part_of(self.data, joined(self.split).train, self.device)
        model = self.build()
        if first.config.standardize != "none":
            model.standardize = fit_standardize(train, first.config.standardize, self.device)
        if model.traits.needs_dev:
            model.load_state_dict({"fusion.chosen": first.best["fusion.chosen"]}, strict=False)
        f1 = for_refit(first.setup.entity_f1)
        setup = self._setup(first.precision, work, key, advance, first=first.done, entity_f1=f1)
        return FusionTraining(model, train, None, first.test, first.config, setup)

    def build(self) -> FusionClassifier:
        """Build the method, initialised from the seed."""
        seed_everything(self.spec.seed, self.device)
        sizes = (len(self.data.layers), self.data.head.embed_dim, len(self.data.head.classes))
        return build_method(self.spec.method, self.config, *sizes)

    def result_parts(self, training: Training) -> ResultParts:
        """See `Trial.result_parts`."""
        assert isinstance(training, FusionTraining | ClosedFormTraining)
        model, features = training.model, self.data
        sections = ("download", "segment", "extract", "train") if self.config.has_encoder else ("download", "train")
        config = {stage: self.config.section(stage) for stage in sections}
        metrics: dict[str, float | int | None] = {}
        if self.closed_form:
            config["train"] = probe_settings(self.config)
            metrics["finished"] = True
        chosen = dict(model.named_buffers()).get("fusion.chosen")  # index of the layer that a method has selected
        if chosen is not None:
            metrics["chosen_layer"] = features.layers[int(chosen)]
        return ResultParts(
            targets=features.targets()[self.split.test],
            run={
                "layers": list(features.layers),
                "embed_dim": features.head.embed_dim,
                "num_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
                "reconstructed": model.traits.reconstructed,
                "eval_batches": self._eval_batches(model),
                "config": {**config, "method": self.settings},
                **({"notes": training.done.notes} if training.done.notes else {}),
            },
            metrics=metrics,
            meta={
                "code": self.code,
                "embeddings_key": features.head.key,
                **({"vectors_key": features.head.vectors_key} if features.head.vectors_key else {}),
                "encoder": features.head.encoder,
                "features": source_of(training.train),
            },
        )

    def write_weights(self, folder: Path, training: Training) -> None:
        """Write the weights, the density maps and the layer weights."""
        assert isinstance(training, FusionTraining | ClosedFormTraining)
        head, done = self.data.head, training.done
        save_weights(
            training.model,
            folder / "weights.safetensors",
            method=self.spec.method,
            num_layers=len(self.data.layers),
            embed_dim=head.embed_dim,
            num_classes=len(head.classes),
            settings=self.settings,
            origin=Origin.of(
                head.encoder,
                classes=head.classes,
                layers=self.data.layers,
                modality=head.modality,
                settings=head.settings,
                fold=self.owner,
            ),
        )
        entry = {ENTRY: json.dumps({"fold": self.owner}, sort_keys=True)}
        if done.density is not None and done.untrained_density is not None:
            maps = {"trained": done.density.contiguous(), "untrained": done.untrained_density.cpu().contiguous()}
            save_file(maps, folder / "density.safetensors", entry)
        if done.layer_weights is not None and done.untrained_layer_weights is not None:
            weights = {"trained": done.layer_weights, "untrained": done.untrained_layer_weights}
            save_file(weights, folder / "layer_weights.safetensors", entry)

    def _setup(
        self, precision: str, work: Path, key: str, advance: Callable[[int], None], **options: Any
    ) -> TrainingSetup:
        return TrainingSetup(self.spec.seed, self.device, precision, work, key, advance=advance, **options)

    def _key(self, *, stream: bool) -> str:
        train = probe_settings(self.config) if self.closed_form else key_settings(self.config, "train")
        parts: dict[str, Any] = {
            "format": KEY_FORMAT,
            "embeddings": self.data.head.key,
            "layers": self.data.layers,
            "method": self.spec.method,
            "settings": self.settings,
            "code": self.code["method"],
            "train": train,
            "fold": self.spec.fold,
            "seed": self.spec.seed,
        }
        if stream and not self.closed_form:  # the order of batches differs
            parts["stream"] = True
        return content_key(parts)

    def _eval_batches(self, model: FusionClassifier) -> dict[str, int | str] | None:
        """How the test clips were batched, for methods whose predictions depend on it; else None."""
        if not model.traits.batch_dependent:
            return None
        order = "\n".join(self.data.clips["clip_id"].gather(self.split.test).to_list())
        return {
            "size": self.config.train.batch_size,
            "order": "clip table",
            "clips_sha256": hashlib.sha256(order.encode()).hexdigest(),
        }


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


@cache
def _tell(method: str, obstacle: str) -> None:
    """Log, once, why the steps of a method are not recorded."""
    log.debug("%s trains without CUDA graphs: %s", method, obstacle)


def most_members(spec: FoldSpec, features: Features) -> int:
    """Largest number of trainings like this one that can be trained jointly (`train_jointly`); 1: only on its own.

    Raises:
        MethodError: the method does not fit these sizes.
        ConfigError: the requested device or precision is not available.
    """
    train, device = spec.config.train, resolve_device(spec.config.train.device)
    if train.batch_folds == "never" or not is_on(features.x, device):
        return 1
    with torch.device("meta"):
        sizes = (len(features.layers), features.head.embed_dim, len(features.head.classes))
        model = build_method(spec.method, spec.config, *sizes)
    if model.traits.closed_form:
        return 1
    precision = run_precision(spec, "train", device)
    if train.graphs == "auto" and obstacle(model, device, precision, held=True) is None:
        return MOST_STREAMS
    if not separable(model) or train.density_maps == "all-epochs" or precision == "float16":
        return 1
    numbers = train.batch_size * sizes[0] * sizes[1]
    if train.batch_folds == "always":
        return MOST_MEMBERS
    if device != "cpu" or numbers > CPU_BATCH_NUMBERS or sum(p.numel() for p in model.parameters()) > CPU_PARAMETERS:
        return 1
    return min(MOST_MEMBERS, CPU_STEP_NUMBERS // numbers)
