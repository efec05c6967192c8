"""Trials that fine-tune an encoder: its source, content key, model, and files of a finished fold.

Every training has an encoder of its own, so that nothing trained in one fold can reach another (D50).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from daamctl.adapters import FINETUNES, build_finetune
from daamctl.adapters.released import departures, own_input
from daamctl.artifacts.clips import ClipTable, clips_key
from daamctl.artifacts.splits import Split, joined
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings, shared_with_finetuning
from daamctl.devices import free_on, release_memory
from daamctl.engines.base import Engine
from daamctl.fit.adapter import AdapterFit, Opened
from daamctl.fit.loop import Fit, Member, Settings, Trained
from daamctl.fit.rng import seed_everything
from daamctl.fit.search import adapter_candidates
from daamctl.fit.trial import ResultParts, Trial, TrialData
from daamctl.methods.weights import write_weights
from daamctl.methods.weights_metadata import ADAPTER, Origin, WeightsMetadata
from daamctl.provenance import FOLD_CODE, code_hash
from daamctl.store.files import content_key

KEY_FORMAT = 3  # raise it when a change of the loop makes finished folds wrong
KEPT_SHARE = 0.1
"""Largest share of the free memory that an encoder may take to be kept for the next trainings."""
FREE_FACTS = frozenset({"name", "source", "revision", "transformers", "num_layers", "precision", "storage"})
"""Facts of an encoder that cannot change what it computes, given the other facts."""


class EncoderSource(TrialData):
    """The clips of a corpus, and a function that opens a fresh encoder for them.

    Opening one takes seconds, most of them to hash its weights. So one that is small beside the free memory of its
    device is kept as it was opened, and copied for every training. Open encoders are not pickled.

    Args:
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
    """

    stage = "finetune"
    title = "fine-tuning"
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
    def candidates(self) -> list[Settings]:
        """See `Trial.candidates`."""
        return adapter_candidates(self.spec.method, self.config)

    @property
    def units_of_training(self) -> int:
        """See `Trial.units_of_training`."""
        return self._steps(self.split)

    @property
    def units(self) -> int:
        """See `Trial.units`; the refit takes more steps, since it has more items."""
        return len(self.candidates) * self.units_of_training + self.refits * self._steps(joined(self.split))

    def _steps(self, split: Split) -> int:
        """Steps of a training; a few more where a long sentence of tagged words is cut into several items."""
        items = len(set(self.clips.task.wholes(self.clips.rows["clip_id"][split.train])))
        return self.config.finetune.epochs * -(-items // self.config.finetune.batch_size)

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trial.start`."""
        (member,) = members
        trial = cast(AdapterTrial, member.trial)
        finetune = trial.config.finetune.model_copy(update=member.settings)
        config = trial.config.model_copy(update={"finetune": finetune})
        release_memory()  # what the training before this one has held
        seed_everything(trial.spec.seed, trial.device)
        opened = trial.data.take()
        method, number = trial.spec.method, len(trial.clips.classes)
        model = build_finetune(method, opened.encoder, num_classes=number, seed=trial.spec.seed)
        sections = {name: config.section(name) for name in ("extract", "finetune")}
        model.notes += departures(method, trial.clips.modality, sections)
        return AdapterFit(member, opened, model, config)

    def result_parts(self, trained: Trained) -> ResultParts:
        """See `Trial.result_parts`."""
        (opened, model), facts = trained.model, trained.facts
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
                "effect": facts["effect"],
                "adapted": list(model.adapted),
                "notes": [*facts["notes"], *trained.notes],
                "micro_batch": facts["micro_batch"],
            },
            meta={
                "code": {"training": code_hash(__name__, "daamctl", FOLD_CODE), "method": content_key(self._code)},
                "embeddings_key": self.data.data_key(self.config),
                "encoder": dict(opened.facts),
                "evaluation_precision": facts["evaluation_precision"],
            },
        )

    def write_weights(self, folder: Path, trained: Trained) -> None:
        """Write the trained tensors; see `daamctl.methods.weights`."""
        opened, model = trained.model
        metadata = WeightsMetadata(
            kind=ADAPTER,
            method=self.spec.method,
            settings={},
            num_layers=1,
            embed_dim=opened.encoder.embed_dim,
            num_classes=len(self.clips.classes),
            head_parameters=sum(value.numel() for name, value in model.trained().items() if name.startswith("head.")),
            **vars(self._origin(opened, trained.facts["evaluation_precision"])),
        )
        write_weights(folder / "weights.safetensors", model.trainable_state(), metadata)

    def _origin(self, opened: Opened, precision: str) -> Origin:
        """What was read, and how it is evaluated; some published methods set their own input."""
        own, modality = own_input(self.spec.method, self.clips.modality), self.clips.modality
        extract = finetuning_data_settings(self.config, modality)
        extract |= {path.removeprefix("extract."): own[path] for path in own if path.startswith("extract.")}
        sections = {"segment": key_settings(self.config, "segment"), "extract": extract}
        facts = {name: value for name, value in opened.facts.items() if name != "storage"} | {"precision": precision}
        if "max_tokens" in facts:
            longest = own.get("finetune.max_tokens", self.config.finetune.max_tokens)
            facts["max_tokens"] = min(facts["max_tokens"], longest)
        last, classes = (max(opened.encoder.layers),), self.clips.classes
        return Origin.of(facts, classes=classes, layers=last, modality=modality, settings=sections, fold=self.owner)
