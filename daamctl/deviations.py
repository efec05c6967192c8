"""Where the papers' released code departs from their text or from good practice, and what a pipeline does about it.

Every row D1 … D64 says what was found, which setting or choice of methods decides it here, and its two values;
`verdict` compares a pipeline's settings with them. Source: arXiv 2401.11143v4 against its released code (commit
093212b; docs/sources.md#deviations), partly by running it on small inputs. Class A changes the printed figures or their
meaning, B can change them, C is small or practical. Nothing here imports torch: settings of methods are read from their
source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.methods import METHODS, resolve_method, settings_of

AS_PUBLISHED = "as-published"
CORRECTED = "corrected"
ALWAYS = "always corrected"
NOT_HERE = "does not apply"

TRAINED_DAAM = ("daam-v1", "daam-v2", "gqdaam", "gqdaam-published")
DAAM = (*TRAINED_DAAM, "daam-frozen")
MIXTURE = ("mixture-daam",)
GROUPED = ("gqdaam", "gqdaam-published", "gqa", "gqa-published")

SCRIPT_SEEDS = {"speech": 1, "text": 111, "image": 333}

State = tuple[str, str]
"""`as-published`, `corrected`, `always corrected` or anything else for a third value; and that value in words."""


class Switch(Protocol):
    """What decides a row."""

    @property
    def where(self) -> str:
        """Name of the setting or choice, for the table."""

    def states(self, config: Config) -> Iterator[State]:
        """What a pipeline uses: one state per setting or trained method, none where the row does not concern it."""


@dataclass(frozen=True)
class Settings:
    """Settings of the pipeline, by dotted path.

    Args:
        published: values that together are the published set-up.
        corrected: alternatives, each of values that together are a corrected one; None: whatever is not published.
        idle: values under which the row does not concern the pipeline.
        searched: setting of `train` that the row is about; where it is chosen on the held-out group, it is corrected.
    """

    published: Mapping[str, Any]
    corrected: tuple[Mapping[str, Any], ...] | None = None
    idle: Mapping[str, Any] | None = None
    searched: str | None = None

    @property
    def where(self) -> str:
        """The dotted paths."""
        return ", ".join([*self.published, *(["train.search"] if self.searched else [])])

    def states(self, config: Config) -> Iterator[State]:
        """At most one state for all of them together."""
        if self.idle is not None and _holds(config, self.idle):
            return
        if self.searched is not None and _is_searched(config, self.searched):
            yield CORRECTED, "searched"
            return
        value = ", ".join(str(_value(config, path)) for path in self.published)
        if _holds(config, self.published):
            yield AS_PUBLISHED, value
        elif self.corrected is None or any(_holds(config, wanted) for wanted in self.corrected):
            yield CORRECTED, value
        else:
            yield "", value


@dataclass(frozen=True)
class MethodSetting:
    """A setting of some methods, wherever one of them is trained.

    Args:
        methods: names of the table; variants with another decoder count as the method itself.
        name: the setting.
        published: its published value.
        corrected: its corrected value; None: there is none.
    """

    methods: tuple[str, ...]
    name: str
    published: Any
    corrected: Any = None

    @property
    def where(self) -> str:
        """The path, with the first of the methods as example."""
        others = ", …" if len(self.methods) > 1 else ""
        return f"method_settings.{self.methods[0]}.{self.name}{others}"

    def states(self, config: Config) -> Iterator[State]:
        """One state per method trained."""
        for method, base in _trained(config, self.methods):
            value = settings_of(method, config.method_settings).get(self.name, _defaults(base)[self.name])
            state = {self.published: AS_PUBLISHED, self.corrected: CORRECTED}.get(value, "")
            yield state, f"{method}: {value}"


@dataclass(frozen=True)
class Choice:
    """Which of several methods is trained.

    Args:
        published: names of the methods that do as the released code.
        corrected: names of their counterparts.
    """

    published: tuple[str, ...]
    corrected: tuple[str, ...]

    @property
    def where(self) -> str:
        """`methods`, with both names."""
        return f"methods: {self.published[0]} or {self.corrected[0]}"

    def states(self, config: Config) -> Iterator[State]:
        """One state per method trained."""
        for state, names in ((AS_PUBLISHED, self.published), (CORRECTED, self.corrected)):
            yield from ((state, method) for method, _ in _trained(config, names))


@dataclass(frozen=True)
class Controls:
    """Methods that every comparison needs and the papers lack.

    Args:
        names: all of them make the row corrected, none of them as published.
    """

    names: tuple[str, ...]

    @property
    def where(self) -> str:
        """`methods`, with the names."""
        return f"methods: {', '.join(self.names)}"

    def states(self, config: Config) -> Iterator[State]:
        """One state."""
        found = [name for name in self.names if name in config.methods]
        state = CORRECTED if len(found) == len(self.names) else "" if found else AS_PUBLISHED
        yield state, ", ".join(found) or "no control"


@dataclass(frozen=True)
class Kept:
    """A property of methods that this project keeps as published, because text and code can be read so.

    Args:
        methods: it concerns pipelines that train one of these.
    """

    methods: tuple[str, ...]

    @property
    def where(self) -> str:
        """No switch."""
        return "kept"

    def states(self, config: Config) -> Iterator[State]:
        """One state per method trained."""
        yield from ((AS_PUBLISHED, method) for method, _ in _trained(config, self.methods))


@dataclass(frozen=True)
class Always:
    """This project always does the corrected thing."""

    @property
    def where(self) -> str:
        """No switch."""
        return "always"

    def states(self, config: Config) -> Iterator[State]:
        """One state."""
        yield ALWAYS, ALWAYS


@dataclass(frozen=True)
class FineTuned:
    """Which of several ways of fine-tuning is trained.

    Args:
        published: names of those that do as the released code.
        corrected: names of their counterparts; none: this project keeps the published way in all of them.
    """

    published: tuple[str, ...]
    corrected: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """`finetunes`, with both names."""
        return f"finetunes: {self.published[0]} or {self.corrected[0]}" if self.corrected else "kept"

    def states(self, config: Config) -> Iterator[State]:
        """One state per way trained."""
        for state, names in ((AS_PUBLISHED, self.published), (CORRECTED, self.corrected)):
            yield from ((state, name) for name in config.finetunes if name in names)


@dataclass(frozen=True)
class Budget:
    """Whether fine-tuning and the methods are trained alike.

    Either both have as many epochs and batches as large, or both choose their rate on the held-out group and stop when
    that group no longer improves.
    """

    @property
    def where(self) -> str:
        """The settings compared."""
        return "finetune.epochs, batch_size, search, patience beside those of train"

    def states(self, config: Config) -> Iterator[State]:
        """One state."""
        ours, theirs = config.finetune, config.train
        same = (ours.epochs, ours.batch_size) == (theirs.epochs, theirs.batch_size)
        to_the_end = theirs.selection == "dev-group" and all(
            one.search != "none" and one.patience is not None and one.patience < one.epochs for one in (ours, theirs)
        )
        state = CORRECTED if same or to_the_end else AS_PUBLISHED
        yield state, f"{ours.epochs} epochs, batch {ours.batch_size}"


@dataclass(frozen=True)
class ScriptSeeds:
    """Whether every fold is trained once, with the seed of the released script for its modality (D40).

    The scripts say 1 for speech, 111 for text, and for images 333, that of daam-v1 alone 42; the one that fine-tunes a
    speech encoder says 42, those for text and images set no seed.
    """

    @property
    def where(self) -> str:
        """The settings."""
        return "train.seeds, finetune.seeds"

    def states(self, config: Config) -> Iterator[State]:
        """One state per method and way trained."""
        modality = CORPORA.load(config.download.corpus).modality or "speech"
        for method in config.methods:
            of_v1 = modality == "image" and resolve_method(method)[0] == "daam-v1"
            yield self._state(config.seeds_of("train"), 42 if of_v1 else SCRIPT_SEEDS[modality], "training")
        for _ in config.finetunes:
            yield self._state(config.seeds_of("finetune"), 42 if modality == "speech" else None, "fine-tuning")

    @staticmethod
    def _state(seeds: tuple[int, ...], script: int | None, what: str) -> State:
        words = f"{what}: {', '.join(map(str, seeds))}"
        if len(seeds) > 1:
            return CORRECTED, words
        if seeds == (script,):
            return AS_PUBLISHED, words
        return "", f"{words} instead of {'none' if script is None else script}"


@dataclass(frozen=True)
class Only:
    """A switch that concerns pipelines of one modality, or those that fine-tune.

    Args:
        switch: the switch.
        modality: speech, text or image; None: any.
        finetuning: only where something is fine-tuned.
    """

    switch: Switch
    modality: str | None = None
    finetuning: bool = False

    @property
    def where(self) -> str:
        """Where the switch is, with what it applies to."""
        limits = [self.modality or "", "fine-tuning" if self.finetuning else ""]
        return f"{self.switch.where} ({', '.join(filter(None, limits))})"

    def states(self, config: Config) -> Iterator[State]:
        """Those of the switch; none where it does not concern the pipeline."""
        held = CORPORA.load(config.download.corpus).modality  # None: a manifest, which may hold anything
        if self.modality not in (None, held or self.modality):
            return
        for seen in map(config.for_adapter, config.finetunes) if self.finetuning else (config,):
            yield from self.switch.states(seen)


@dataclass(frozen=True)
class Elsewhere:
    """A row that no pipeline decides.

    Args:
        subject: what it applies to.
    """

    subject: str

    @property
    def where(self) -> str:
        """What it applies to."""
        return f"applies to {self.subject}"

    def states(self, config: Config) -> Iterator[State]:
        """None."""
        yield from ()


@dataclass(frozen=True)
class Deviation:
    """One row.

    Args:
        number: n of Dn.
        kind: A, B or C.
        what: the finding.
        published: the value of the released code.
        corrected: the other one.
        switches: what decides it; several where several methods are concerned.
    """

    number: int
    kind: Literal["A", "B", "C"]
    what: str
    published: str
    corrected: str
    switches: tuple[Switch, ...]

    @property
    def where(self) -> str:
        """Names of the settings that decide it."""
        return "; ".join(switch.where for switch in self.switches)


def verdict(row: Deviation, config: Config) -> str:
    """What a pipeline does: `as-published`, `corrected`, `other (value)`, `always corrected` or `does not apply`.

    `other` also stands where the methods of a pipeline differ, and then names each.
    """
    states = [state for switch in row.switches for state in switch.states(config)]
    names = {state for state, _ in states}
    if not names:
        return NOT_HERE
    if len(names) == 1 and "" not in names:
        return names.pop()
    return f"other ({', '.join(dict.fromkeys(value for _, value in states))})"


def _value(config: Config, path: str) -> Any:
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def _holds(config: Config, wanted: Mapping[str, Any]) -> bool:
    return all(_value(config, path) == value for path, value in wanted.items())


def _is_searched(config: Config, name: str) -> bool:
    """Whether a setting of `train` is chosen on the held-out group."""
    train = config.train
    return train.search != "none" and train.selection == "dev-group" and bool(getattr(train, f"search_{name}"))


def _trained(config: Config, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Full name and table name of every method of the pipeline that is one of `names`, or one with another decoder."""
    for method in config.methods:
        base = resolve_method(method)[0]
        if base in names:
            yield method, base


@cache
def _defaults(method: str) -> dict[str, Any]:
    return METHODS.defaults(method)


_LORA, _LORA_PLUS = ("lora-r4", "lora-r8"), ("lora-plus-r4", "lora-plus-r8")
_LORA_OF_TEXT = ("lora-r8-qk",)
_PUBLISHED_LORA, _PUBLISHED_PLUS = (tuple(f"{name}-published" for name in names) for names in (_LORA, _LORA_PLUS))
_EITHER = FineTuned((*_PUBLISHED_LORA, *_PUBLISHED_PLUS), (*_LORA, *_LORA_PLUS, *_LORA_OF_TEXT))
_PRINT = (Elsewhere("the printed text"),)
_ALWAYS = (Always(),)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        1, "A", "MHA attends over the samples of the batch; the text says over the layers of a sample",
        "batch", "layers",
        (Choice(("mha-published",), ("mha",)), MethodSetting(("mha-bn",), "attend_over", "batch", "layers")),
    ),
    Deviation(
        2, "A", "LoRA hooks on WavLM's projections are never called, so LoRA has no effect on speech",
        "hooks never called", "effective adapters", (Only(_EITHER, "speech"),),
    ),
    Deviation(
        3, "A", "LoRA+ leaves the new classifier untrained",
        "head frozen", "head trained", (FineTuned(_PUBLISHED_PLUS, _LORA_PLUS),),
    ),
    Deviation(
        4, "A", "LoRA on text leaves Llama's head at random",
        "head frozen", "head trained", (Only(_EITHER, "text"),),
    ),
    Deviation(
        5, "A", "GQA sums the queries of a group before the softmax and scales twice",
        "summed, scaled twice", "standard",
        (Choice(("gqdaam-published", "gqa-published"), ("gqdaam", "gqa")),),
    ),
    Deviation(
        6, "A", "the layer ablation trains batch attention over one layer, not a DAAM",
        "mha-published", "none, or attention over layers",
        (
            Settings(  # a method that is not named is never one that attends over the batch
                {"ablate.method": "mha-published"},
                idle={"ablate.k": (), "ablate.layers": (), "ablate.presets": ()},
            ),
        ),
    ),
    Deviation(
        7, "A", "the epoch reported, and the schedule, follow the accuracy on the test fold itself",
        "best-on-test", "dev-group or last", (Settings({"train.selection": "best-on-test"}),),
    ),
    Deviation(8, "A", "the text script called v2 builds eight heads", "8 heads", "daam-v2 has one head", _ALWAYS),
    Deviation(
        9, "A", "GQDAAM for vision stops at a reshape",
        "cannot run", "sizes that fit", (Only(Always(), "image"),),
    ),
    Deviation(
        10, "A", "batch norm stands before the reshape and stops with an error",
        "cannot run", "mha-bn normalises the images", _ALWAYS,
    ),
    Deviation(
        11, "A", "AdamW with decay 0.01; the text says Adam with 0.1",
        "adamw, 0.01", "adam, 0.1; or decay searched",
        (
            Settings(
                {"train.optimizer": "adamw", "train.weight_decay": 0.01},
                ({"train.optimizer": "adam", "train.weight_decay": 0.1},),
                searched="weight_decay",
            ),
        ),
    ),
    Deviation(
        12, "A", "vision starts at rate 1e-5; the text says 1e-4",
        "1e-5", "1e-4, or searched",
        (Only(Settings({"train.lr": 1e-5}, ({"train.lr": 1e-4},), searched="lr"), "image"),),
    ),
    Deviation(
        13, "A", "the mean over time includes the zeros that pad a clip to 5 s",
        "all-frames", "valid-frames", (Only(Settings({"extract.pooling": "all-frames"}), "speech"),),
    ),
    Deviation(
        14, "A", "DAAM and MHA get the raw waveform, LoRA the one its feature extractor normalises",
        "never; the published LoRA: encoder", "encoder for all", (
            Only(Settings({"extract.normalize": "never"}, ({"extract.normalize": "encoder"},)), "speech"),
        ),
    ),
    Deviation(
        15, "A", "LoRA rows number the folds by size, the others by session",
        "by size", "by session", (Only(Always(), finetuning=True),),
    ),
    Deviation(16, "A", "LoRA adds alpha xAB without dividing by r", "alpha", "alpha / r", (_EITHER,)),
    Deviation(
        17, "B", "LoRA on query and value; the text says query and key",
        "q, v", "q, k", (FineTuned((*_EITHER.published, *_LORA, *_LORA_PLUS), _LORA_OF_TEXT),),
    ),
    Deviation(
        18, "A", "LoRA differs in epochs, batch, rate and head besides the method",
        "unequal budgets", "matched budgets, or both to their end", (Only(Budget(), finetuning=True),),
    ),
    Deviation(
        19, "A", "density maps pile up over all epochs; small batches count as much as full ones",
        "all-epochs", "final-model", (Settings({"train.density_maps": "all-epochs"}),),
    ),
    Deviation(20, "A", "the vision scripts record no maps", "none", "recorded", (Only(Always(), "image"),)),
    Deviation(
        21, "B", "gradients are clipped to norm 1000 while multiplied by the loss scale",
        "scaled, 1000", "unscaled, or no clipping",
        (
            Settings(
                {"train.grad_clip": "scaled", "train.grad_clip_norm": 1000.0},
                ({"train.grad_clip": "unscaled"}, {"train.grad_clip_norm": None}),
            ),
        ),
    ),
    Deviation(
        22, "B", "each 5 s piece counts as a sample of its own in the accuracy",
        "clip", "utterance", (Settings({"evaluate.unit": "clip"}),),
    ),
    Deviation(
        23, "B", "rest pieces are kept at any length, down to 2 ms",
        "keep", "merge or drop, e.g. below 0.5 s",
        (Only(Settings({"segment.tail": "keep"}, ({"segment.tail": "merge"}, {"segment.tail": "drop"})), "speech"),),
    ),
    Deviation(
        24, "C", "two floors are added to the variance; the text has one, Algorithm 1 both",
        "double", "single", (MethodSetting(DAAM, "eps", "double", "single"),),
    ),
    Deviation(
        25, "B", "the variance is a difference of moments, which cancels where the mean is large",
        "moments", "two-pass", (MethodSetting(DAAM, "variance", "moments", "two-pass"),),
    ),
    Deviation(
        26, "C", "pooling inside the head scrambles the axes unless there is one frame",
        "scrambled", "pooled over time before", _ALWAYS,
    ),
    Deviation(
        27, "B", "heads split the layers; the text says subspaces of the features",
        "layers", "features", (Kept(DAAM), MethodSetting(MIXTURE, "norm_axis", "layers", "features")),
    ),
    Deviation(
        28, "B", "the kernel divides by 2 xi, as Algorithm 1; elsewhere the text squares the width",
        "2xi", "2c2", (MethodSetting(DAAM, "kernel", "2xi", "2c2"),),
    ),
    Deviation(
        29, "A", "maps are shown without the untrained module's, which looks much the same",
        "no control", "untrained map beside it", _ALWAYS,
    ),
    Deviation(
        30, "A", "the mixture multiplies its Gaussians, which gives one Gaussian",
        "product", "sum", (MethodSetting(MIXTURE, "op", "product", "sum"),),
    ),
    Deviation(31, "C", "the mixture ignores the epsilon given", "always 1e-8", "the value given", _ALWAYS),
    Deviation(
        32, "B", "the mixture's widths start at random",
        "lognormal", "constant", (MethodSetting(MIXTURE, "init", "lognormal", "constant"),),
    ),
    Deviation(
        33, "C", "the mixture's variance is unbiased, DAAM's biased; one layer per head gives NaN",
        "unbiased", "biased", (MethodSetting(MIXTURE, "variance", "unbiased", "biased"),),
    ),
    Deviation(
        34, "C", "the mixture's statistics count padding as zeros",
        "counted", "no padding reaches a method", _ALWAYS,
    ),
    Deviation(
        35, "C", "the mixture's residual lies outside the normalised weights, a gain of 1 + w",
        "outside", "-", (Kept(MIXTURE),),
    ),
    Deviation(
        36, "B", "no script trains the mixture; the blog calls it DAAM v2",
        "names mixed up", "mixture-daam and daam-v2 are two", _ALWAYS,
    ),
    Deviation(
        37, "B", "parameter counts with the last layer in some scripts, without it in others",
        "mixed", "all trainable parameters", _ALWAYS,
    ),
    Deviation(38, "C", "shares of parameters in the text are other units than they say", "-", "-", _PRINT),
    Deviation(
        39, "C", "focal loss has a factor 0.25 for every class, which balances nothing",
        "0.25", "1",
        (
            Settings(
                {"train.focal_alpha": 0.25}, ({"train.focal_alpha": 1.0},), idle={"train.loss": "cross-entropy"}
            ),
        ),
    ),
    Deviation(
        40, "B", "one fixed seed per script; repeats cannot be repeated",
        "1; text 111; images 333, daam-v1 42; LoRA 42 or none", "several", (ScriptSeeds(),),
    ),
    Deviation(41, "C", "anomaly detection is left on", "on", "off", _ALWAYS),
    Deviation(
        42, "C", "float16 with loss scaling while training, validation in float32",
        "published", "any other; evaluation always float32", (Settings({"train.precision": "published"}),),
    ),
    Deviation(
        43, "C", "resuming looks elsewhere than saving writes; methods share one folder",
        "overwritten", "a folder per method and fold", _ALWAYS,
    ),
    Deviation(44, "C", "paths of the authors, a key press awaited, a fixed device", "cannot run", "settings", _ALWAYS),
    Deviation(
        45, "B", "the mean over tokens includes the first, which is no word",
        "with it", "without it", (Only(Settings({"extract.pool_special_tokens": True}), "text"),),
    ),
    Deviation(
        46, "B", "the logit is read at the last position, also where it is padding",
        "last", "last token", (Only(_EITHER, "text"),),
    ),
    Deviation(47, "B", "no script extracts vision features", "unknown", "stated", (Only(Always(), "image"),)),
    Deviation(
        48, "B", "the last layer is taken after the encoder's final norm, the others before",
        "true", "false", (Settings({"extract.final_norm": True}),),
    ),
    Deviation(
        49, "C", "LoRA trains with dropout, DAAM's features come without",
        "unequal", "stated", (Only(Settings({"finetune.encoder_dropout": True}), finetuning=True),),
    ),
    Deviation(
        50, "B", "a second script builds the model once for all folds, so later ones have seen their test data",
        "shared", "a new model per fold", _ALWAYS,
    ),
    Deviation(
        51, "B", "a third script splits clips at random, across utterances and speakers",
        "by clip", "by group of speakers", _ALWAYS,
    ),
    Deviation(
        52, "A", "some printed LoRA+ folds differ from the result files",
        "-", "quoted as printed", _PRINT,
    ),
    Deviation(53, "C", "bare squeezes break for one layer or one frame", "by luck", "explicit shapes", _ALWAYS),
    Deviation(54, "C", "batches with NaN are skipped with a line on the screen", "skipped", "training fails", _ALWAYS),
    Deviation(
        55, "C", "with today's libraries no LoRA layer attaches, in silence",
        "none", "checked", (Only(Always(), finetuning=True),),
    ),
    Deviation(56, "C", "captions and text name different models for a figure", "unclear", "maps name theirs", _ALWAYS),
    Deviation(
        57, "B", "printed deviations are of the population in some rows, of the sample in others",
        "mixed", "sample, with n", _ALWAYS,
    ),
    Deviation(
        58, "A", "no baseline without attention, and no weighted sum of the layers",
        "no control", "both controls", (Controls(("none", "weighted-sum")),),
    ),
    Deviation(59, "C", "features are saved per frame, 190 GB", "per frame", "pooled", _ALWAYS),
    Deviation(
        60, "B", "GQDAAM projects every encoder to width 512, without residual, which the text does not mention",
        "512", "-", (MethodSetting(GROUPED, "width", 512),),
    ),
    Deviation(
        61, "C", "xi may become negative, where the kernel explodes",
        "free", "softplus", (MethodSetting(TRAINED_DAAM, "scaled_variance", "free", "softplus"),),
    ),
    Deviation(
        62, "C", "mean and variance are a sample's own; an early text speaks of the population's",
        "per sample", "-", (Kept(DAAM),),
    ),
    Deviation(
        63, "C", "the first version's best accuracies are the later runs' first", "one run", "runs listed", _ALWAYS,
    ),
    Deviation(64, "C", "two folds are identical in the rows of MHA and MHA with batch norm", "-", "-", _PRINT),
)  # fmt: skip
"""All rows, in order."""
