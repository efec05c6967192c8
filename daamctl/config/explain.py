"""What settings mean, which values are allowed and what they can change, in words, from `schema` and its marks."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from daamctl.config.keys import MODALITIES
from daamctl.config.marks import Affects, AppliesTo
from daamctl.config.schema import Config, Section
from daamctl.errors import ConfigError

FIRST = (
    *("download.corpus", "download.source", "segment.max_duration_s", "extract.encoder", "methods"),
    *("finetunes", "train.recipe", "train.search_lr", "train.seeds", "evaluate.reference"),
)
"""The settings that people change first."""
EFFECTS: dict[Any, str] = {
    "train.recipe": "the settings that the recipe sets, and so every result of `{}`",
    Affects.NOTHING: "no result; only e.g. speed, memory, tolerance or a name",
    Affects.RUNS: "which runs there are, or an input that a run records",
    Affects.IF_SET: "every result of `{}`, unless it is null",
    Affects.MAPS: "density maps and what is computed from them, but no accuracy",
}
APPLIES: dict[Any, str] = {
    AppliesTo.STORED: "fine-tuning does not use it",
    AppliesTo.FINETUNING: "fine-tuning uses it too",
    AppliesTo.PROBES: "closed-form probes use it too",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
TYPES |= {"null": "null", "object": "mapping"}


def settings() -> dict[str, FieldInfo]:
    """Dotted name -> field of every setting, in the order of the schema."""
    found: dict[str, FieldInfo] = {}
    for name, field in Config.model_fields.items():
        parts = field.default.__class__.model_fields if isinstance(field.default, Section) else {}
        found |= {f"{name}.{part}": below for part, below in parts.items()} or {name: field}
    return found


def find(name: str) -> list[str]:
    """The setting of this name, or those of the section of this name; else a ConfigError with the nearest names."""
    known = settings()
    if found := [other for other in known if other == name or other.startswith(f"{name}.")]:
        return found
    near = [other for other in known if other.endswith(f".{name}")] or difflib.get_close_matches(name, known, 3, 0.5)
    raise ConfigError(
        f"unknown setting '{name}'", fix=f"did you mean: {', '.join(near)}" if near else "list them: daamctl explain"
    )


def meaning(name: str) -> str:
    """What a setting means, with its unit, in one paragraph."""
    return " ".join((settings()[name].description or "").split())


def allowed(name: str) -> str:
    """Allowed values of a setting, e.g. `list of numbers > 0`."""
    section, _, part = name.rpartition(".")
    owner = Config.model_fields[section].default.__class__ if section else Config
    return _values(owner.model_json_schema()["properties"][part])


def _values(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_values, schema["anyOf"]))
    if names := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(map(str, names))
    kind = schema["type"]
    if kind == "array":
        return f"list of: {_values(schema['items'])}"
    bounds = " and ".join(f"{sign} {schema[bound]:.10g}" for bound, sign in BOUNDS.items() if bound in schema)
    return f"{TYPES[kind]} {bounds}".strip()


def can_change(name: str) -> str:
    """What a setting can change, by its marks, and what it applies to."""
    stage, _, _ = name.rpartition(".")
    marks = settings()[name].metadata
    usual = "every result of `{}` and of the stages that read it" if stage else "which results there are"
    effect = next((EFFECTS[mark] for mark in (name, *marks) if mark in EFFECTS), usual)
    kinds = " and ".join(mark.name.lower() for mark in marks if mark in MODALITIES)
    told = [effect.format(stage), f"applies to {kinds} only" if kinds else "", *map(APPLIES.get, marks)]
    return "; ".join(filter(None, told))


def value_of(config: Config, name: str) -> str:
    """The value of a setting, as a YAML file has it."""
    section, _, part = name.rpartition(".")
    value = config.section(section)[part] if section else config.model_dump(mode="json")[part]
    return value if isinstance(value, str) else json.dumps(value)
