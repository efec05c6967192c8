"""Where the papers' released code departs from their text or from good practice, and what a pipeline does about it.

`deviations.yaml` lists the deviations D1, D2, … and describes its fields. A deviation has switches, which select in a
pipeline what the released code does or the corrected behaviour; `verdict` reads them from the settings of a pipeline.
Nothing in this module imports torch: settings of methods are read from their source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from daamctl.adapters import FINETUNES
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.errors import suggest
from daamctl.methods import METHODS, resolve_method, settings_of
from daamctl.paper.numbers import FOLDER, StrictModel, read_data

AS_PUBLISHED = "as-published"
CORRECTED = "corrected"
ALWAYS = "always corrected"
NOT_HERE = "does not apply"

CONTROLS = ("none", "weighted-sum")
"""Methods that every comparison needs and that the papers lack (D58)."""
SCRIPT_SEEDS = {"speech": 1, "text": 111, "image": 333}
"""Modality -> seed of the released training scripts (D40)."""
ITEMS = {"speech": "clips", "vision": "images", "text": "texts"}
"""Modality, as `numbers.csv` names it -> what is classified."""

State = tuple[str, str]
"""`as-published`, `corrected`, `always corrected` or "" for a third value; and that value in words."""


class Switch(StrictModel):
    """What selects one of the two behaviours in a pipeline: of one modality, or by the settings of each fine-tuning."""

    modality: Literal["speech", "text", "image"] | None = None
    finetuning: bool = False

    def states(self, config: Config) -> Iterator[State]:
        """What a pipeline uses: one state per setting or trained method, none if the switch does not concern it."""
        modality = CORPORA.load(config.download.corpus).modality  # None: a manifest, which may hold any
        if self.modality is not None and modality not in (self.modality, None):
            return
        for one in map(config.for_adapter, config.finetunes) if self.finetuning else (config,):
            yield from self._states(one)

    @property
    def where(self) -> str:
        """Name of the setting, choice or procedure, for the table."""
        limits: list[str] = [self.modality] if self.modality else []
        if self.finetuning:
            limits.append("fine-tuning")
        return f"{self._name} ({', '.join(limits)})" if limits else self._name

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def _states(self, config: Config) -> Iterator[State]:
        raise NotImplementedError


class SettingSwitch(Switch):
    """Values of settings, of the pipeline or of some methods.

    Args:
        published: values that together are the published set-up, by dotted path (with `methods`: by name).
        corrected: alternatives, each of values that together are corrected; None: all other values are.
        methods: methods whose settings these are; empty: they are settings of the pipeline.
        idle: values, or several for a setting, with which the deviation does not concern the pipeline.
        searched: setting of `train` that counts as corrected if the held-out group chooses among several values of it.
    """

    kind: Literal["setting"]
    published: dict[str, Any]
    corrected: tuple[dict[str, Any], ...] | None = None
    methods: tuple[str, ...] = ()
    idle: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    searched: str | None = None

    @field_validator("methods")
    @classmethod
    def _known_methods(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        _check_known("method", names, METHODS)
        return names

    @model_validator(mode="after")
    def _known_settings(self) -> SettingSwitch:
        if self.methods:
            for method in self.methods:
                for values in (self.published, *(self.corrected or ())):
                    _check_known(f"setting of {method}", values, METHODS.defaults(method))
            return self
        sections = {name: getattr(field.annotation, "model_fields", {}) for name, field in Config.model_fields.items()}
        known = {f"{section}.{name}" for section, parts in sections.items() for name in parts}
        for values in (self.published, self.idle, *(self.corrected or ())):
            _check_known("setting", values, known)
        if self.searched:
            _check_known("setting", [f"train.search_{self.searched}"], known)
        return self

    @property
    def _name(self) -> str:
        if self.methods:
            others = ", …" if len(self.methods) > 1 else ""
            return ", ".join(f"method_settings.{self.methods[0]}.{name}" for name in self.published) + others
        return ", ".join([*self.published, *(["train.search"] if self.searched else [])])

    def _states(self, config: Config) -> Iterator[State]:
        if self.methods:
            for method in _trained(config, self.methods):
                own = METHODS.defaults(resolve_method(method)[0]) | settings_of(method, config.method_settings)
                state, value = self._compared(own)
                yield state, f"{method}: {value}"
            return
        corrected = [path for values in self.corrected or () for path in values]
        values = {path: _value(config, path) for path in (*self.published, *self.idle, *corrected)}
        # a value may itself be a tuple, so it is compared as a whole as well
        if self.idle and all(values[name] in (allowed, *allowed) for name, allowed in self.idle.items()):
            return
        train = config.train
        on_held_out = train.search != "none" and train.selection == "dev-group"
        candidates = getattr(train, f"search_{self.searched}") if self.searched is not None and on_held_out else ()
        # with a choice on the held-out group, the value given in the settings is not used
        if len(candidates) > 1:
            yield CORRECTED, "searched"
            return
        if candidates:  # the one candidate replaces the setting, and nothing is chosen
            values[f"train.{self.searched}"] = candidates[0]
        yield self._compared(values)

    def _compared(self, values: Mapping[str, Any]) -> State:
        """Whether these values are the published ones, corrected ones or others."""
        text = ", ".join(str(values[name]) for name in self.published)
        if _holds(values, self.published):
            return AS_PUBLISHED, text
        if self.corrected is None or any(_holds(values, wanted) for wanted in self.corrected):
            return CORRECTED, text
        return "", text


class MethodSwitch(Switch):
    """Which methods or fine-tunings are trained.

    Args:
        published: names of those that do what the released code does.
        corrected: names of their counterparts; empty: daamctl keeps the published behaviour.
    """

    kind: Literal["method"]
    published: tuple[str, ...]
    corrected: tuple[str, ...] = ()

    @field_validator("published", "corrected")
    @classmethod
    def _known_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        _check_known("method", names, FINETUNES if set(names) & set(FINETUNES) else METHODS)
        return names

    @property
    def _name(self) -> str:
        if not self.corrected:
            return "kept"
        kind = "finetunes" if self.published[0] in FINETUNES else "methods"
        return f"{kind}: {self.published[0]} or {self.corrected[0]}"

    def _states(self, config: Config) -> Iterator[State]:
        for state, names in ((AS_PUBLISHED, self.published), (CORRECTED, self.corrected)):
            for name in (*_trained(config, names), *(name for name in config.finetunes if name in names)):
                yield state, name


class ProcedureSwitch(Switch):
    """A procedure that a function of this module examines, by its name in `PROCEDURES`."""

    kind: Literal["procedure"]
    name: str

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        _check_known("procedure", [name], PROCEDURES)
        return name

    @property
    def _name(self) -> str:
        return PROCEDURES[self.name][0]

    def _states(self, config: Config) -> Iterator[State]:
        yield from PROCEDURES[self.name][1](config)


AnySwitch = Annotated[SettingSwitch | MethodSwitch | ProcedureSwitch, Field(discriminator="kind")]


class Deviation(StrictModel):
    """One deviation; `deviations.yaml` describes the fields."""

    number: int
    kind: Literal["A", "B", "C"] = Field(alias="class")
    finding: str
    published: str
    corrected: str
    definition: str | None = None
    switches: tuple[AnySwitch, ...] = Field(min_length=1)

    @property
    def where(self) -> str:
        """Names of the settings, choices or procedures that decide it."""
        return "; ".join(switch.where for switch in self.switches)

    @property
    def is_of_comparison(self) -> bool:
        """Whether it is about which methods a run compares, not about what one of them does."""
        return any(isinstance(switch, ProcedureSwitch) and switch.name == "controls" for switch in self.switches)


class Remark(StrictModel):
    """What the released code does in place of a published method."""

    method: str
    text: str
    modality: str | None = None


class Deviations(StrictModel):
    """The content of `deviations.yaml`, which describes the fields."""

    groups: dict[str, tuple[str, ...]]
    remarks: tuple[Remark, ...]
    deviations: tuple[Deviation, ...]

    @field_validator("deviations")
    @classmethod
    def _numbered(cls, rows: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
        for position, row in enumerate(rows, start=1):
            if row.number != position:
                raise ValueError(f"numbers must run from 1 without gaps; number {position} is {row.number}")
        return rows


@cache
def read_deviations() -> Deviations:
    """Read and check `deviations.yaml`."""
    return read_data(FOLDER / "deviations.yaml", Deviations)


def deviations() -> tuple[Deviation, ...]:
    """All deviations, in order."""
    return read_deviations().deviations


def verdict(row: Deviation, config: Config) -> str:
    """What a pipeline does: `as-published`, `corrected`, `always corrected`, `does not apply` or `other (value)`.

    It is `other`, with the value of each, also if the methods of a pipeline differ.
    """
    states = [state for switch in row.switches for state in switch.states(config)]
    names = {state for state, _ in states}
    if not names:
        return NOT_HERE
    # an empty state is neither, and is told with its value
    if len(names) == 1 and "" not in names:
        return names.pop()
    return f"other ({', '.join(dict.fromkeys(value for _, value in states))})"


def remark(method: str, modality: str) -> str:
    """What the released code does in place of a published method; empty if it does what the papers say.

    `modality`: speech, vision or text, as `numbers.csv` names it.
    """
    for one in read_deviations().remarks:
        if method.startswith(one.method) and one.modality in (None, modality):
            return one.text.replace("{items}", ITEMS.get(modality, "items"))
    return ""


def _budget(config: Config) -> Iterator[State]:
    """Whether fine-tuning and the methods are trained alike.

    They are if both have the same number of epochs and the same batch size, or if both choose their learning rate on
    the held-out group and let it fall to 0.
    """
    ours, theirs = config.finetune, config.train
    same = theirs.steps is None and (ours.epochs, ours.batch_size) == (theirs.epochs, theirs.batch_size)
    # with a rate that falls to 0, both are trained to their end
    falls = ours.schedule == "linear" and theirs.schedule in ("cosine", "linear")
    converged = theirs.selection == "dev-group" and falls and all(one.search != "none" for one in (ours, theirs))
    yield CORRECTED if same or converged else AS_PUBLISHED, f"{ours.epochs} epochs, batch {ours.batch_size}"


def _controls(config: Config) -> Iterator[State]:
    """Whether the controls are trained: all of them is corrected, none of them as published."""
    given = _trained(config, CONTROLS)
    found = list(dict.fromkeys(resolve_method(name)[0] for name in given))
    state = CORRECTED if len(found) == len(CONTROLS) else "" if found else AS_PUBLISHED
    yield state, ", ".join(given) or "no control"


def _seeds(config: Config) -> Iterator[State]:
    """Whether every fold is trained once, with the seed of the released script for its modality.

    The scripts set 1 for speech, 111 for text and 333 for images, but 42 for daam-v1 on images. The script that
    fine-tunes a speech encoder sets 42; those for text and images set no seed.
    """
    modality = CORPORA.load(config.download.corpus).modality or "speech"
    # the papers have no script for it
    if modality not in SCRIPT_SEEDS:
        return
    for method in config.methods:
        v1_on_images = modality == "image" and resolve_method(method)[0] == "daam-v1"
        script = 42 if v1_on_images else SCRIPT_SEEDS[modality]
        yield _seed_state(config.seeds_of("train"), script, "training")
    for _ in config.finetunes:
        yield _seed_state(config.seeds_of("finetune"), 42 if modality == "speech" else None, "fine-tuning")


def _seed_state(seeds: tuple[int, ...], script: int | None, what: str) -> State:
    words = f"{what}: {', '.join(map(str, seeds))}"
    if len(seeds) > 1:
        return CORRECTED, words
    if seeds == (script,):
        return AS_PUBLISHED, words
    return "", f"{words} instead of {'none' if script is None else script}"


PROCEDURES: dict[str, tuple[str, Callable[[Config], Iterator[State]]]] = {
    "always": ("always", lambda _: iter([(ALWAYS, ALWAYS)])),
    "print": ("applies to the printed text", lambda _: iter([])),
    "budget": ("finetune.epochs, batch_size, search, schedule beside those of train", _budget),
    "controls": (f"methods: {', '.join(CONTROLS)}", _controls),
    "seeds": ("train.seeds, finetune.seeds", _seeds),
}
"""Name of a procedure -> its name in the table, and what a pipeline does."""


def _check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a ValueError, to which pydantic adds the key, unless all names are known."""
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {kind} '{name}'; {suggest(name, known)}")


def _value(config: Config, path: str) -> Any:
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def _holds(values: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings have the wanted values; a list of the file is a tuple in the settings."""
    return all(values[name] == (tuple(value) if isinstance(value, list) else value) for name, value in wanted.items())


def _trained(config: Config, names: tuple[str, ...]) -> list[str]:
    """The methods of the pipeline that are among `names`; a variant with another decoder counts as the method."""
    return [method for method in config.methods if resolve_method(method)[0] in names]
