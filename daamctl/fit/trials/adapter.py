"""Trials that fine-tune an encoder: its source, content key, model, and files of a finished fold.

Every training has an encoder of its own, so that nothing trained in one fold can reach another (D50).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from daamctl.adapters import FINETUNES, FineTuned, build_finetune
from daamctl.adapters.released import departures, is_published, own_input
from daamctl.artifacts.clips import ClipTable, clips_key
from daamctl.artifacts.io import content_key
from daamctl.artifacts.splits import Split, joined
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings, shared_with_finetuning
from daamctl.devices import free_on
from daamctl.engines.base import Engine
from daamctl.fit.adapter_training import AdapterTraining, Opened, notes_on
from daamctl.fit.loop import Training, TrainingSetup
from daamctl.fit.search import Grid, Settings, Start, adapter_grid
from daamctl.fit.trial import ResultParts, Trial, TrialData, entity_f1_of, for_refit
from daamctl.methods.weights import write_weights
from daamctl.methods.weights_metadata import ADAPTER, Origin, WeightsMetadata
from daamctl.provenance import FOLD_CODE, code_hash

KEY_FORMAT = 2  # raise it when a change of the loop makes finished folds wrong
KEPT_SHARE = 0.1
"""Largest share of the free memory that an encoder may take to be kept for the next trainings."""
FREE_FACTS = frozenset({"name", "source", "revision", "transformers", "num_layers", "precision", "storage"})
"""Facts of an encoder that cannot change what it computes, given the other facts."""


class EncoderSource(TrialData):
    """The clips of a corpus, and a function that opens a fresh encoder for them.

    Opening one takes seconds, most of them to hash its weights. So one that is small beside the free memory of its
    device is kept as it was opened, and copied for every training. Open encoders are not pickled.

    Args:
        clips: the clips, without unreadable ones.
        open: opens an encoder and its items.
    """

    def __init__(self, clips: ClipTable, open: Callable[[], Opened]) -> None:
        self.clips, self.open = clips, open
        self._opened: Opened | None = None
        self._kept: Opened | None = None
        self._facts: Mapping[str, Any] | None = None

    @property
    def table(self) -> ClipTable:
        """See `TrialData.table`."""
        return self.clips

    @property
    def facts(self) -> Mapping[str, Any]:
        """Recorded facts of the encoder. Opens it if necessary; `take` then returns that encoder first."""
        if self._facts is None:
            self._opened = self.open()
            self._facts = self._opened.facts
        return self._facts

    def ask_worker(self, engine: Engine, device: str) -> None:
        """Let a worker open the encoder and report its facts; this machine may lack the memory for it."""
        if self._facts is None:
            self._facts = engine.describe(partial(_FactsWorker, self), device)
            self._opened = None

    def take(self) -> Opened:
        """Return a fresh encoder, without keeping a reference to it."""
        if self._kept is None:
            opened, self._opened = self._opened or self.open(), None
            devices = {value.device for value in opened.encoder.model.parameters()}
            size = sum(value.nbytes for value in opened.encoder.model.parameters())
            if len(devices) > 1 or size > KEPT_SHARE * free_on(opened.encoder.device)[0]:
                return opened
            self._kept = opened
        return replace(self._kept, encoder=deepcopy(self._kept.encoder))

    def data_key(self, config: Config) -> str:
        """Content key of the training data: the items, and all that affects how the encoder reads them."""
        facts = {name: value for name, value in self.facts.items() if name not in FREE_FACTS}
        if "max_tokens" in facts:
            facts["max_tokens"] = min(facts["max_tokens"], config.finetune.max_tokens)
        if facts.get("pooling") == "all-frames":
            facts["pad_to_s"] = config.segment.max_duration_s
        settings = finetuning_data_settings(config, self.clips.modality)
        return content_key({"clips": clips_key(self.clips), "encoder": facts, "settings": settings})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_kept": None}


class _FactsWorker:
    """A worker that opens an encoder and has no tasks."""

    num_devices = 1

    def __init__(self, source: EncoderSource, device: str) -> None:
        self.description = dict(source.facts)

    def work(self, tasks: Sequence[None], advance: Callable[[int], None]) -> Iterator[None]:
        """Do nothing."""
        yield from tasks


class AdapterTrial(Trial):
    """One fold of a method that fine-tunes the encoder.

    Args:
        spec: which fold; its settings have this method's overrides applied (`Config.for_adapter`). `finetune` applies,
            and the part of `train` that it shares.
        data: the clips and the encoder.
    """

    stage = "finetune"
    title = "fine-tuning"
    unit = "items"
    trials_per_gpu = 1
    data: EncoderSource

    @cached_property
    def key(self) -> str:
        """Content key of everything that affects the result; the machine does not."""
        return content_key(
            {
                "format": KEY_FORMAT,
                "data": self.data.data_key(self.config),
                "method": self.spec.method,
                "code": self._code,
                "finetune": key_settings(self.config, "finetune"),
                "train": shared_with_finetuning(self.config),
                "fold": self.spec.fold,
                "seed": self.spec.seed,
            }
        )

    @property
    def _code(self) -> list[str]:
        """Hashes of the code of the adapter, with fusions that it uses, of its classifier, and of attention."""
        head = "words" if self.clips.modality == "tokens" else "heads"
        modules = (FINETUNES.module_of(self.spec.method), f"daamctl.adapters.{head}")
        parts = ("daamctl.adapters", "daamctl.methods")
        return [*(code_hash(name, "daamctl", parts) for name in modules), code_hash("daamctl.attention", "daamctl")]

    @property
    def grid(self) -> Grid | None:
        """See `Trial.grid`."""
        return adapter_grid(self.spec.method, self.config)

    @property
    def units(self) -> int:
        """Upper bound on the items, or words, trained on and evaluated."""
        split = self.split
        return (len(split.train) + len(split.dev) + len(split.test)) * super().units

    def starter(self, advance: Callable[[int], None]) -> Start:
        """See `Trial.starter`; every training has an encoder of its own."""
        f1 = entity_f1_of(self)

        def start(settings: Settings | None, work: Path, key: str) -> Training:
            finetune = self.config.finetune.model_copy(update=settings or {})
            config = self.config.model_copy(update={"finetune": finetune})
            setup = self._setup(work, key, advance, may_diverge=settings is not None, entity_f1=f1)
            return self._training(self.split, config, setup)

        return start

    def refit(self, first: Training, work: Path, key: str, advance: Callable[[int], None]) -> Training:
        """See `Trial.refit`."""
        assert isinstance(first, AdapterTraining)
        setup = self._setup(work, key, advance, first=first.done, entity_f1=for_refit(first.setup.entity_f1))
        return self._training(joined(self.split), first.config, setup)

    def result_parts(self, training: Training) -> ResultParts:
        """See `Trial.result_parts`."""
        assert isinstance(training, AdapterTraining)
        assert training.effect is not None
        opened, model = training.loaded.opened, training.loaded.model
        config = {stage: self.config.section(stage) for stage in ("download", "segment", "extract", "finetune")}
        return ResultParts(
            targets=opened.items.targets[self.split.test],
            run={
                "layers": [max(opened.encoder.layers)],
                "embed_dim": opened.encoder.embed_dim,
                "num_parameters": sum(value.numel() for value in model.trained().values()),
                "reconstructed": "",
                "eval_batches": None,
                "config": {**config, "train": shared_with_finetuning(self.config), "method": {}},
                "finetune": True,
                "effect": asdict(training.effect),
                "adapted": list(model.adapted),
                "notes": [*notes_on(model, training.effect), *training.done.notes],
                "micro_batch": training.micro_batch,
            },
            meta={
                "code": {"training": code_hash(__name__, "daamctl", FOLD_CODE), "method": content_key(self._code)},
                "embeddings_key": self.data.data_key(self.config),
                "encoder": dict(opened.facts),
                "evaluation_precision": _evaluated_in(opened, training),
            },
        )

    def write_weights(self, folder: Path, training: Training) -> None:
        """Write the trained tensors; see `daamctl.methods.weights`."""
        assert isinstance(training, AdapterTraining)
        opened, model = training.loaded.opened, training.loaded.model
        head = [value.numel() for name, value in model.trained().items() if name.startswith("head.")]
        metadata = WeightsMetadata(
            kind=ADAPTER,
            method=self.spec.method,
            settings={},
            num_layers=1,
            embed_dim=opened.encoder.embed_dim,
            num_classes=len(self.clips.classes),
            head_parameters=sum(head),
            **vars(self._origin(opened, _evaluated_in(opened, training))),
        )
        write_weights(folder / "weights.safetensors", model.trainable_state(), metadata)

    def _setup(self, work: Path, key: str, advance: Callable[[int], None], **options: Any) -> TrainingSetup:
        return TrainingSetup(self.spec.seed, self.device, self.precision, work, key, advance=advance, **options)

    def _training(self, split: Split, config: Config, setup: TrainingSetup) -> AdapterTraining:
        """Training of a fresh encoder with these settings."""

        def open_model() -> tuple[Opened, FineTuned]:
            opened = self.data.take()
            model = build_finetune(
                self.spec.method, opened.encoder, num_classes=len(self.clips.classes), seed=self.spec.seed
            )
            sections = {name: config.section(name) for name in ("extract", "finetune")}
            model.notes += departures(self.spec.method, self.clips.modality, sections)
            return opened, model

        patience = None if is_published(self.spec.method) else config.finetune.patience
        return AdapterTraining(open_model, split, config, setup, patience=patience)

    def _origin(self, opened: Opened, precision: str) -> Origin:
        """What was read, and how it is evaluated; some published methods set their own input."""
        sections = {
            "segment": key_settings(self.config, "segment"),
            "extract": finetuning_data_settings(self.config, self.clips.modality),
        }
        max_tokens = self.config.finetune.max_tokens
        for path, value in own_input(self.spec.method, self.clips.modality).items():
            section, name = path.split(".")
            if section in sections:
                sections[section][name] = value
            else:
                max_tokens = value
        facts = {name: value for name, value in opened.facts.items() if name != "storage"}
        facts["precision"] = precision
        if "max_tokens" in facts:
            facts["max_tokens"] = min(facts["max_tokens"], max_tokens)
        last = (max(opened.encoder.layers),)
        return Origin.of(
            facts,
            classes=self.clips.classes,
            layers=last,
            modality=self.clips.modality,
            settings=sections,
            fold=self.owner,
        )


def _evaluated_in(opened: Opened, training: AdapterTraining) -> str:
    """Number format of evaluation: that of autocast, or without it that of the encoder's weights."""
    if training.eval_precision != "float32":
        return training.eval_precision
    return str(opened.facts.get("weights_dtype", "float32"))
