"""Read settings from the defaults, `params.yaml`, a pipeline file and the command line.

Later sources win: defaults < `params.yaml` < recipe < `pipelines/<name>.yaml` < `--set section.key=value` and named
options; but `--recipe published` counts epochs, whatever `steps` the pipeline has. Unknown keys and invalid values are
reported all at once, each with its dotted path and the nearest known name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from daamctl.config.schema import RECIPES, Config, TrainConfig
from daamctl.errors import ConfigError, suggest

PARAMS_FILE = "params.yaml"
PIPELINES_DIR = "pipelines"
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is several times as fast
MOST_BYTES = 1_000_000
"""Largest settings file."""
MOST_VALUES = 100_000
"""Largest number of values in a settings file."""
MOST_LEVELS = 50
"""Deepest nesting in a settings file."""


def find_root() -> Path:
    """Find the project folder, as `nearest_root` does; a ConfigError if there is none."""
    root = nearest_root()
    if root is None:
        raise ConfigError(f"no {PARAMS_FILE} here or above; daamctl init DIR makes a project")
    return root


def nearest_root() -> Path | None:
    """DAAMCTL_ROOT, or the nearest folder at or above the current one with a params.yaml; None if there is none.

    A ConfigError if DAAMCTL_ROOT is no project folder.
    """
    named = os.environ.get("DAAMCTL_ROOT")
    if named:
        if not (Path(named) / PARAMS_FILE).is_file():
            raise ConfigError(f"DAAMCTL_ROOT is '{named}', which holds no {PARAMS_FILE}")
        return Path(named).resolve()
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / PARAMS_FILE).is_file():
            return folder.resolve()
    return None


def pipeline_names(root: Path) -> list[str]:
    """Names of the pipeline files, sorted."""
    return sorted(path.stem for path in (root / PIPELINES_DIR).glob("*.yaml"))


def load_config(root: Path, pipeline: str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and validate the settings of a pipeline.

    Args:
        pipeline: name of a file in `pipelines/`; None: params.yaml alone.
        overrides: dotted key -> value, applied last.

    Raises:
        ConfigError: every problem found, one per line.
    """
    config, problems = inspect_config(root, pipeline, overrides)
    if problems or config is None:
        where = f"pipeline '{pipeline}'" if pipeline else PARAMS_FILE
        where += " with the options given" if overrides else ""
        raise ConfigError(f"{where}: " + ("\n" + " " * 2).join(problems))
    return config


def inspect_config(
    root: Path, pipeline: str | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[Config | None, list[str]]:
    """As `load_config`, but list all problems; invalid settings get their defaults, so that the rest can be inspected.

    Raises:
        ConfigError: a file is missing or is not YAML.
    """
    tree, problems = _merged(root, pipeline, overrides or {})
    while True:
        try:
            return Config.model_validate(tree), problems
        except ValidationError as error:
            # Checks across settings run only once every single setting is valid, so several rounds may be needed.
            found = error.errors()
            # a list with a wrong value is also said to be too short
            inner = {item["loc"][:-1] for item in found}
            problems += [_explain(item) for item in found if item["type"] != "too_short" or item["loc"] not in inner]
            removed = [_remove(tree, item["loc"]) for item in found]
            if not any(removed):
                return None, problems


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """Turn `section.key=value` words into dotted key -> YAML value; a ConfigError if a word is none."""
    result: dict[str, Any] = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes section.key=value, got '{item}'")
        try:
            result[key.strip()] = _parse(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}: '{text}' is not a YAML value") from error
    return result


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: the file is missing, no regular file, not UTF-8, too large, not YAML, or not a mapping.
    """
    if not path.exists():
        raise ConfigError(f"no file {path}")
    if not path.is_file():  # reading a named pipe would wait forever
        raise ConfigError(f"{path} is not a regular file")
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are allowed")
    try:
        value = _parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        what = f"{path} is not valid YAML: {' '.join(str(error).split())}"
        raise ConfigError(what, fix="correct it, then look at it again: daamctl check") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, got {type(value).__name__}")
    return value


def _parse(text: str) -> Any:
    """The value of a YAML document.

    A YAMLError if it is not valid, nested too deeply for libyaml's recursion, or so full of aliases that ten lines
    stand for billions of values.
    """
    depth, too_deep = 0, yaml.YAMLError(f"it is nested more than {MOST_LEVELS} levels deep")
    try:
        for event in yaml.parse(text, Loader=YAML_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MOST_LEVELS:
                raise too_deep
    except yaml.MarkedYAMLError as error:  # from PyYAML 6.0.4 on, libyaml itself reads 1,000 levels at most
        raise too_deep if "nesting depth" in str(error) else error from None
    loader = YAML_LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"with its aliases written out, it has more than {MOST_VALUES:,} values")
        _refuse_repeated_keys(node)
        return loader.construct_document(node)
    except ValueError as error:  # a number or date that Python refuses
        raise yaml.YAMLError(str(error)) from error
    finally:
        loader.dispose()


def _num_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of values in a node with all aliases written out; infinite if it contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # until its children are counted
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        known[id(node)] = 1 + sum(_num_values(child, known) for child in children)
    return known[id(node)]


def _refuse_repeated_keys(root: yaml.Node) -> None:
    """Raise a YAMLError if a mapping has a key twice; YAML's library would keep the last value without a word."""
    left: list[Any] = [root]
    done: set[int] = set()  # nodes: an alias is the node that it stands for
    while left:
        node = left.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[Any, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode):
                    if key.value in lines:
                        text = f"'{key.value}' stands in line {lines[key.value]} and again in line {line}"
                        raise yaml.YAMLError(text)
                    lines[key.value] = line
                left.append(value)


def _merged(root: Path, pipeline: str | None, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    tree = read_yaml(root / PARAMS_FILE)
    problems: list[str] = []
    difference: dict[str, Any] = {}
    if pipeline is not None:
        known = pipeline_names(root)
        if pipeline not in known:
            fix = f"{suggest(pipeline, known)} ({PIPELINES_DIR}/<name>.yaml)"
            fix += "; all of them: daamctl ls pipelines" if " more (" in fix else ""
            raise ConfigError(f"unknown pipeline '{pipeline}'", fix=fix)
        if not pipeline.isprintable():  # bytes that are no UTF-8, or line breaks, which no artifact could record
            raise ConfigError(f"the name of pipeline {pipeline!a} cannot be printed", fix="rename its file")
        difference = read_yaml(root / PIPELINES_DIR / f"{pipeline}.yaml")
        if "pipelines" in difference:
            problems.append(f"pipelines: belongs in {PARAMS_FILE}, not in a pipeline file")
    last: dict[str, Any] = {}
    for key, value in overrides.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        _merge(last, value)
    recipe = _recipe(tree, difference, last)
    _merge(tree, recipe)
    other, own, named = recipe != _recipe(tree, difference), difference.get("train"), tree.get("train")
    if other and isinstance(own, dict) and isinstance(named, dict) and named.get("steps", 0) is None:
        # the options name a recipe that counts epochs; the number of steps belongs to the pipeline's own recipe
        own.pop("steps", None)
    _merge(tree, difference)
    _merge(tree, last)
    return tree, problems


def _recipe(params: Mapping[str, Any], *above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the recipe that the pipeline or the command line names; empty if params.yaml names the same one."""
    sections = (part.get("train") for part in (params, *above))
    own, *named = (part.get("recipe") if isinstance(part, Mapping) else None for part in sections)
    wanted = next((name for name in reversed(named) if name is not None), None)
    if wanted in (None, own or TrainConfig.model_fields["recipe"].default):
        return {}
    return deepcopy(RECIPES.get(wanted, {})) if isinstance(wanted, str) else {}


def _remove(tree: Any, location: Sequence[Any]) -> bool:
    """Remove the setting at a location (for a list, the whole list); False if there is nothing to remove."""
    for part in location[:-1]:
        below = tree.get(part) if isinstance(tree, dict) else None
        if not isinstance(below, dict):
            location = location[: list(location).index(part) + 1]
            break
        tree = below
    if not location or not isinstance(tree, dict) or location[-1] not in tree:
        return False
    del tree[location[-1]]
    return True


def _merge(tree: dict[str, Any], difference: Mapping[str, Any]) -> None:
    for key, value in difference.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _explain(error: Any) -> str:
    """Format a pydantic error as `dotted.path: problem, the value found, the nearest name`."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown setting; {suggest(str(error['loc'][-1]), _fields_at(error['loc'][:-1]))}"
    message = error["msg"].removeprefix("Value error, ")
    message = re.sub(r"a valid dictionary( or instance of \w+)?", "a mapping, {...}", message)
    message = message.replace("a valid tuple", "a list, [...]")
    got = "" if error["type"] == "value_error" else f" (got {error['input']!r})"  # own checks include the value
    # a check across sections has no path; its message names the settings
    return f"{path}: {message[0].lower()}{message[1:]}{got}" if path else str(message)


def _fields_at(location: Sequence[Any]) -> list[str]:
    model: Any = Config
    for part in location:
        if get_origin(model) is dict:  # a mapping of sections whose keys are names, not settings
            model = get_args(model)[1]
            continue
        field = model.model_fields.get(part) if isinstance(part, str) and _is_section(model) else None
        model = field.annotation if field is not None else None
    return sorted(model.model_fields) if _is_section(model) else []


def _is_section(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)
