"""Validate the settings of pipelines without torch, and write the settings that each stage reads.

DVC compares these small files. Editing the settings of one method therefore does not invalidate the extraction, and
editing one pipeline does not invalidate another.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from daamctl.adapters import FINETUNES
from daamctl.artifacts.dag import PAPER, check_stages, stages_of, write_stages
from daamctl.artifacts.io import write_json
from daamctl.config import PARAMS_FILE, Config, inspect_config, pipeline_names, read_yaml
from daamctl.config.keys import shared_with_finetuning, watched_settings
from daamctl.config.schema import Section
from daamctl.corpora import CORPORA
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.encoders.encoder_size import shape_of
from daamctl.errors import ConfigError, DaamctlError, MethodError, UnknownNameError, suggest
from daamctl.methods import METHODS, NEEDS_DEV, check_fits, check_settings, resolve_method, settings_of
from daamctl.methods.heads import AUTO
from daamctl.stage_table import STAGES

log = logging.getLogger(__name__)


def run(root: Path, pipelines: list[str] | None = None, *, write: bool = False) -> list[str]:
    """Check settings.

    Args:
        root: project folder.
        pipelines: names; None: all files in `pipelines/`, and the list of pipelines in `params.yaml`.
        write: also write `data/check/<pipeline>/<stage>.json`, and `stages.yaml` if all pipelines are checked.

    Returns:
        The pipelines that were checked.

    Raises:
        ConfigError: every problem of every pipeline, one per line.
    """
    names = pipelines if pipelines is not None else pipeline_names(root)
    problems = [] if pipelines is not None else _table_problems(root)
    configs: dict[str, Config] = {}
    for name in names:
        try:
            config, found = inspect_config(root, name)
        except DaamctlError as error:
            problems.append(str(error))
            continue
        if config is not None:
            configs[name] = config
            found += [problem for problem in problems_of(config) if problem not in found]
        problems += [f"pipeline '{name}': {problem}" for problem in found]
    if problems:
        raise ConfigError("\n".join(problems))
    if pipelines is None and write:
        write_stages(root)
    elif pipelines is None:
        check_stages(root)
    if write:
        for name, config in configs.items():
            _write(root, name, config)
    return names


def problems_of(config: Config) -> list[str]:
    """Problems of settings that have valid types: unknown names and contradictions."""
    problems = []
    if config.download.corpus not in CORPORA:
        problems.append(_unknown("download.corpus", config.download.corpus, CORPORA))
    encoder = config.extract.encoder
    if encoder not in ENCODERS and not HUB_ID.match(encoder) and not Path(encoder).expanduser().is_dir():
        problems.append(_unknown("extract.encoder", encoder, ENCODERS) + "; or a Hugging Face id or a local folder")
    named = [("methods", name) for name in config.methods]
    named += [("method_settings", name) for name in config.method_settings]
    ablated = {"ablate.rank_by": config.ablate.rank_by, "ablate.method": config.ablate.method}
    named += [(where, name) for where, name in ablated.items() if name is not None]
    problems += [_unknown(where, name, METHODS) for where, name in named if not _is_method(name)]
    problems += [line for where, line in config.unlisted().items() if _is_method(str(ablated[where]))]
    problems += [_unknown("finetunes", name, FINETUNES) for name in config.finetunes if name not in FINETUNES]
    ways = [name for name in config.finetune_settings if name not in FINETUNES]
    problems += [_unknown("finetune_settings", name, FINETUNES) for name in ways]
    if len(set(config.finetunes)) != len(config.finetunes):
        problems.append(f"finetunes: a fine-tuning method is listed twice in {list(config.finetunes)}")
    for name, settings in config.method_settings.items():
        if _is_method(name):
            try:
                check_settings(name, settings)
            except MethodError as error:
                problems.append(f"method_settings: {error}")
    if config.extract.weights == "random" and encoder not in ENCODERS:
        problems.append(f"extract.weights: random works with presets only, got encoder '{encoder}'")
    if not config.methods:
        problems.append("methods: at least one method is needed")
    if len(set(config.methods)) != len(config.methods):
        problems.append(f"methods: a method is listed twice in {list(config.methods)}")
    selection = config.train.selection
    problems += [
        f"methods: part of '{name}' is chosen on a held-out group, which train.selection={selection} does not set aside"
        for name in config.methods
        if name in NEEDS_DEV and selection != "dev-group"
    ]
    classes = config.download.classes
    if classes is not None and len(set(classes)) < 2:
        problems.append(f"download.classes: at least two different classes are needed, got {list(classes)}")
    return problems + _misfits(config)


def _misfits(config: Config) -> list[str]:
    """Methods that cannot be built for the layers of the encoder, if its depth and width are known."""
    corpus = config.download.corpus
    shape = shape_of(config.extract, CORPORA.load(corpus).modality if corpus in CORPORA else None)
    if shape is None:
        return []
    num_layers, embed_dim = shape
    fits = [("methods", method, num_layers) for method in config.methods]
    groups = [
        *(config.ablate.k if config.ablate.rank_by in (None, *config.methods) else ()),
        *map(len, config.ablate.layers),
    ]
    if config.ablate.method is not None:
        fits += [("ablate.method", config.ablate.method, k) for k in dict.fromkeys(groups) if 0 < k <= num_layers]
    problems = []
    for where, method, number in fits:
        try:
            settings = settings_of(method, config.method_settings)
            check_settings(method, settings)
        except (UnknownNameError, MethodError):
            continue  # said already
        try:
            check_fits(method, settings, num_layers=number, embed_dim=embed_dim)
        except MethodError as error:
            problems.append(
                f"{where}: {method} on {number} of {num_layers} layers x {embed_dim} of encoder "
                f"'{config.extract.encoder}': {error}{_repair(method, error)}"
            )
    return problems


def _repair(method: str, error: MethodError) -> str:
    """Setting that makes a method fit; `auto` fits any number of layers."""
    if error.setting is None:
        return ""
    name, value = error.setting
    if METHODS.defaults(resolve_method(method)[0]).get(name) == AUTO:
        value = AUTO
    return f"\n  set method_settings: {{{method}: {{{name}: {value}}}}}, or leave the method out"


def _table_problems(root: Path) -> list[str]:
    """Problems of the list of pipelines that `dvc repro` expands over, compared with the files."""
    listed, files = read_yaml(root / PARAMS_FILE).get("pipelines") or [], pipeline_names(root)
    problems = [_unknown(f"{PARAMS_FILE}: pipelines", str(name), files) for name in listed if name not in files]
    if PAPER in files:
        problems.append(f"pipeline '{PAPER}': report@{PAPER} is the report on the papers; rename the pipeline")
    for name in sorted(set(files) - set(listed)):
        log.warning("pipeline '%s' is not listed under pipelines in %s, so dvc repro skips it", name, PARAMS_FILE)
    return problems


def _is_method(name: str) -> bool:
    """Whether a name is a registered method, or one with another decoder."""
    try:
        resolve_method(name)
    except UnknownNameError:
        return False
    return True


def _unknown(where: str, name: str, known: Any) -> str:
    return f"{where}: unknown name '{name}'; {suggest(name, known)}"


def _finetune_part(config: Config) -> dict[str, Any]:
    """Settings that the finetune stage reads. It opens the encoder itself and shares some settings with `train`."""
    finetune = watched_settings(config, "finetune")
    del finetune["seeds"]  # those of `train` may hold instead
    train = {**shared_with_finetuning(config), "seeds": list(config.seeds_of("finetune"))}
    return {
        "finetune": finetune,
        "train": train,
        "extract": watched_settings(config, "extract"),
    }


def _watched(config: Config, what: str) -> Any:
    """What DVC compares: a section of the settings, a list of the pipeline, or the seeds of everything trained."""
    if what == "seeds":
        finetuned = {"finetune": list(config.seeds_of("finetune"))} if config.finetunes else {}
        return {"train": list(config.seeds_of("train")), **finetuned}
    if what in type(config).model_fields and isinstance(getattr(config, what), Section):
        return watched_settings(config, what)
    return list(getattr(config, what))


def _write(root: Path, pipeline: str, config: Config) -> None:
    """Write one file per stage, and per method, with exactly the settings it reads."""
    parts = {
        name: {what: _watched(config, what) for what in spec.watches}
        for name, spec in STAGES.items()
        if spec.for_each is None
    }
    parts |= {f"{stage}-{name}": {"listed": False} for stage, name in stages_of(root, pipeline)}  # unless set below
    for method in config.methods:
        settings = settings_of(method, config.method_settings)
        parts[f"train-{method}"] = {"train": _watched(config, "train"), "settings": settings}
    for name in config.finetunes:
        parts[f"finetune-{name}"] = _finetune_part(config.for_adapter(name))
    folder = root / "data" / "check" / pipeline
    for name, part in parts.items():
        write_json(folder / f"{name}.json", part)
    for path in folder.iterdir():
        if path.stem not in parts:
            path.unlink()
