"""Trials that fuse the stored layers of a frozen encoder: content key, model, and files of a finished fold."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from copy import deepcopy
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from daamctl.artifacts.results import ENTRY
from daamctl.artifacts.splits import joined
from daamctl.config import Config
from daamctl.config.keys import key_settings, probe_settings
from daamctl.devices import resolve_device
from daamctl.errors import MethodError
from daamctl.fit.features import Features, is_on, source_of, split_features
from daamctl.fit.loop import Fit, Member, Settings, Trained
from daamctl.fit.models import stackable
from daamctl.fit.ridge import RidgeFit
from daamctl.fit.rng import seed_everything
from daamctl.fit.run_precision import run_precision
from daamctl.fit.search import fusion_candidates, steps_of_training
from daamctl.fit.stack import Fusion, Stack
from daamctl.fit.standardize import fit_standardize
from daamctl.fit.trial import FoldSpec, ResultParts, Trial
from daamctl.methods import CLOSED_FORM, METHODS, build, resolve_method, save_weights, settings_of
from daamctl.methods.base import FusionClassifier
from daamctl.methods.weights_metadata import Origin
from daamctl.provenance import FOLD_CODE, code_hash
from daamctl.store.files import content_key

log = logging.getLogger(__name__)

KEY_FORMAT = 3  # raise it when a change of the loop makes finished folds wrong
MOST_MEMBERS = 64
"""Largest number of models in a stack."""
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
    """

    stage = "train"
    title = "training"
    trials_per_gpu = 4  # the models are small, their features are not
    chosen_on_dev = ("fusion.chosen",)
    data: Features

    def __init__(self, spec: FoldSpec, data: Features) -> None:
        super().__init__(spec, data)
        self.settings = settings_of(spec.method, spec.config.method_settings)  # of the method, defaults included
        self.closed_form = spec.method in CLOSED_FORM
        if self.closed_form:  # a probe refits by itself
            self.refits = False

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
    def candidates(self) -> list[Settings]:
        """See `Trial.candidates`."""
        return [{}] if self.closed_form else fusion_candidates(self.config.train)

    @property
    def units_of_training(self) -> int:
        """See `Trial.units_of_training`."""
        return steps_of_training(self.spec.method, self.config, len(self.split.train), len(self.split.dev))

    @property
    def most_members(self) -> int:
        """See `Trial.most_members`."""
        return most_members(self.spec, self.data)

    def stacks(self, members: Sequence[Member]) -> list[list[Member]]:
        """See `Trial.stacks`: candidates of equal standardisation and length, of as many trials as fit."""
        most = self.most_members
        if most == 1:
            return [[member] for member in members]
        found = [[member] for member in members if member.trained]
        groups: dict[Any, list[Member]] = {}
        for member in members:
            if not member.trained:
                alike = member.settings.get("standardize"), cast(FusionTrial, member.trial).units_of_training
                groups.setdefault(alike, []).append(member)
        for group in groups.values():
            each = len(group) // len({id(member.trial) for member in group})  # candidates of a trial
            together = max(most // each, 1) * each
            found += [group[start : start + together] for start in range(0, len(group), together)]
        return found

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trial.start`; candidates of a trial share features and standardisation."""
        fusions: list[Fusion] = []
        shared: dict[tuple[Trial, Any], tuple[Any, ...]] = {}
        for member in members:
            trial = cast(FusionTrial, member.trial)
            config = trial.config.train.model_copy(update=member.settings)
            if config.steps is not None:
                config = config.model_copy(update={"steps": trial.units_of_training})
            if (trial, config.standardize) not in shared:
                split = joined(trial.split) if member.refit else trial.split
                parts = split_features(trial.data, split, trial.device)
                kind = config.standardize
                fitted = None if kind == "none" or trial.closed_form else fit_standardize(parts[0], kind, trial.device)
                shared[trial, config.standardize] = (*parts, fitted)
            train, dev, test, fitted = shared[trial, config.standardize]
            model = trial.build()
            if fitted is not None:
                model.standardize = deepcopy(fitted)
            if member.first is not None and member.refit and model.traits.needs_dev:
                model.load_state_dict(member.first.weights, strict=False)
            dev, test = None if member.refit else dev, test if member.tested else None
            fusions.append(Fusion(model, config, train, dev, test, trial.spec.seed, trial.f1))
        if self.closed_form:
            return RidgeFit(members[0], fusions[0], self.device, self.data.layers)
        if fusions[0].model.traits.batch_dependent:
            _warn(
                f"{self.spec.method}: a prediction depends on the other clips of its batch (D1); evaluated "
                f"{self.config.train.batch_size} at a time, in the order of the clip table"
            )
        return Stack(members, fusions, self.device, self.precision)

    def build(self) -> FusionClassifier:
        """Build the method, initialised from the seed."""
        seed_everything(self.spec.seed, self.device)
        sizes = (len(self.data.layers), self.data.head.embed_dim, len(self.data.head.classes))
        return build_method(self.spec.method, self.config, *sizes)

    def result_parts(self, trained: Trained) -> ResultParts:
        """See `Trial.result_parts`."""
        model, features = trained.model, self.data
        sections = ("download", "segment", "extract", "train") if self.config.has_encoder else ("download", "train")
        config = {stage: self.config.section(stage) for stage in sections}
        metrics: dict[str, float | int | None] = {}
        if self.closed_form:
            config["train"] = probe_settings(self.config)
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
                **({"notes": trained.notes} if trained.notes else {}),
            },
            metrics=metrics,
            meta={
                "code": self.code,
                "embeddings_key": features.head.key,
                **({"vectors_key": features.head.vectors_key} if features.head.vectors_key else {}),
                "encoder": features.head.encoder,
                "features": source_of(self.data),
            },
        )

    def write_weights(self, folder: Path, trained: Trained) -> None:
        """Write the weights, the density maps and the layer weights."""
        head, done = self.data.head, trained
        save_weights(
            trained.model,
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
def _warn(words: str) -> None:
    """Warn once."""
    log.warning("%s", words)


def most_members(spec: FoldSpec, features: Features) -> int:
    """Largest number of trainings like this one in a stack.

    Raises:
        MethodError: the method does not fit these sizes.
        ConfigError: the requested device or precision is not available.
    """
    train, device = spec.config.train, resolve_device(spec.config.train.device)
    if train.stack == "never" or train.steps is None or not is_on(features.x, device):
        return 1
    with torch.device("meta"):
        sizes = (len(features.layers), features.head.embed_dim, len(features.head.classes))
        model = build_method(spec.method, spec.config, *sizes)
    if not stackable(model) or run_precision(spec, "train", device) == "float16":
        return 1
    numbers = train.batch_size * sizes[0] * sizes[1]
    if train.stack == "always" or device != "cpu":
        return MOST_MEMBERS
    if numbers > CPU_BATCH_NUMBERS or sum(p.numel() for p in model.parameters()) > CPU_PARAMETERS:
        return 1
    return max(1, min(MOST_MEMBERS, CPU_STEP_NUMBERS // numbers))
