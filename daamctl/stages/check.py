"""Validate settings of pipelines, without torch unless they fine-tune; write `stages.yaml`, which dvc.yaml expands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daamctl.adapters import FINETUNES
from daamctl.artifacts.dag import PAPER, check_stages, families, write_stages
from daamctl.config import EMBEDDINGS, PARAMS_FILE, Config, inspect_config, pipeline_names, read_yaml
from daamctl.corpora import CORPORA
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import MOST_LAYERS, check_name, configuration_of, shape_of
from daamctl.errors import ConfigError, DaamctlError, EncoderError, MethodError, UnknownNameError, first_few, suggest
from daamctl.methods import (
    CLOSED_FORM,
    METHODS,
    NEEDS_DEV,
    SINGLE_LAYER,
    check_fits,
    check_settings,
    fuses_layers,
    resolve_method,
    settings_of,
)
from daamctl.methods.heads import AUTO
from daamctl.paper.tables import read_published
from daamctl.reconstruction import BLOCKS
from daamctl.store.files import expanded

log = logging.getLogger(__name__)


def run(root: Path, pipelines: list[str] | None = None, *, write: bool = False) -> list[str]:
    """Check settings.

    Args:
        pipelines: names; None: all files in `pipelines/`, and the list of pipelines in `params.yaml`, but not whether
            encoders support the fine-tuning methods.
        write: also write `stages.yaml`.

    Returns:
        The pipelines that were checked.

    Raises:
        ConfigError: every problem of every pipeline, one per line (a source that does not exist is one unless `write`);
            or `stages.yaml` is out of date.
    """
    names = pipelines if pipelines is not None else pipeline_names(root)
    problems = [] if pipelines is not None else _table_problems(root)
    configs: dict[str, Config] = {}
    of: dict[str, list[str]] = {}  # problem -> the pipelines that have it, e.g. all, if it is in params.yaml
    for name in names:
        try:
            config, found = inspect_config(root, name)
        except DaamctlError as error:
            problems.append(str(error))
            continue
        if config is not None:
            configs[name] = config
            # of all pipelines together this would take half a minute
            more = problems_of(config, adapters=pipelines is not None)
            found += [problem for problem in more if problem not in found]
            source = config.download.source
            if source is not None and not (place := root / expanded(source)).exists():
                absent = f"download.source: no file or folder {place}"
                if write:  # DVC leaves this pipeline out
                    log.warning("pipeline '%s': %s", name, absent)
                else:
                    found.append(absent)
        for problem in found:
            of.setdefault(problem, []).append(name)
    for problem, having in of.items():
        where = f"pipeline '{having[0]}'" if len(having) == 1 else f"pipelines {first_few(having, 3)}"
        problems.append(f"{where}: {problem}")
    if problems:
        raise ConfigError("\n".join(problems))
    for name, config in configs.items():
        for lack in unanswered(config):
            log.warning("pipeline '%s': its report cannot say %s", name, lack)
    if write:
        write_stages(root)
    elif pipelines is None:
        check_stages(root)
    return names


def refuse_problems(config: Config, what: str, *, adapters: bool = False, encoder: bool = True) -> None:
    """Raise a ConfigError with every problem of the settings of `what`, one per line, if there are any."""
    if problems := problems_of(config, adapters=adapters, encoder=encoder):
        raise ConfigError(f"{what}: " + "\n  ".join(problems))


def problems_of(config: Config, *, adapters: bool = False, encoder: bool = True) -> list[str]:
    """Problems of settings that have valid types: unknown names and contradictions.

    Args:
        adapters: also whether the encoder supports the fine-tuning methods, which takes torch and some seconds.
        encoder: also whether the encoder exists, which the inventory reports, too.
    """
    data = _data_problems(config, encoder=encoder)
    if config.task == "reconstruct":
        return [*data, *_reconstruction_problems(config)]
    found = [*data, *_method_problems(config), *_finetune_problems(config), *_misfits(config)]
    return [*found, *_adapter_misfits(config)] if adapters else found


def unanswered(config: Config) -> Iterator[str]:
    """Questions of the report's first section that a valid pipeline cannot answer, and what to add.

    Pipelines with the published recipe keep what was published, and whoever turns the audit off means it.
    """
    if config.task != "classify" or config.train.recipe == "published":
        return
    corpus = config.download.corpus
    if corpus in CORPORA and not CORPORA.load(corpus).task.by_accuracy:
        return  # methods are compared by another figure with the reference
    probes = [name for name in SINGLE_LAYER[:2] if name in config.methods]
    fusions = [name for name in config.methods if fuses_layers(name)]
    if not probes:
        yield f"whether fusing layers helps; add {SINGLE_LAYER[0]} to methods"
    elif not fusions:
        yield "whether fusing layers helps; add a method that fuses them to methods, e.g. ridge-mean"
    elif SINGLE_LAYER[1] not in probes and not set(CLOSED_FORM) & set(fusions):
        yield f"whether fusing layers helps; add ridge-mean to methods, which is solved as {SINGLE_LAYER[0]} is"


def _data_problems(config: Config, *, encoder: bool) -> Iterator[str]:
    """Problems of corpus and encoder; `encoder`: also whether there is such an encoder."""
    if config.download.corpus not in CORPORA:
        yield _unknown("download.corpus", config.download.corpus, CORPORA)
    classes = config.download.classes
    if classes is not None and config.task == "classify" and len(set(classes)) < 2:
        yield f"download.classes: at least two different classes are needed, got {list(classes)}"
    name = config.extract.encoder
    if not config.has_encoder:
        return
    try:
        if encoder:
            check_name(name)
    except EncoderError as error:
        yield f"extract.encoder: {error}"
    if config.extract.weights == "random" and name not in ENCODERS:
        yield f"extract.weights: random works with presets only, got encoder '{name}'"


def _method_problems(config: Config) -> Iterator[str]:
    """Problems of `methods`, their settings, the methods of the ablation, and groups that cannot be split."""
    if not config.methods:
        yield "methods: at least one method is needed"
    if len(set(config.methods)) != len(config.methods):
        yield f"methods: a method is listed twice in {list(config.methods)}"
    for name in config.methods:
        if not _is_method(name):
            yield _unknown("methods", name, METHODS)
        elif name in FINETUNES:  # as a package may call its own
            yield f"methods: '{name}' is also a fine-tuning method; the package that adds it must call it otherwise"
    for name, settings in config.method_settings.items():
        if not _is_method(name):
            yield _unknown("method_settings", name, METHODS)
            continue
        try:
            check_settings(name, settings)
        except MethodError as error:
            yield f"method_settings: {error}"
    selection = config.train.selection
    if selection != "dev-group":
        for name in config.methods:
            if name in NEEDS_DEV:
                yield (
                    f"methods: part of '{name}' is chosen on a held-out group, "
                    f"which train.selection={selection} does not set aside"
                )
    # with other settings a corpus may have groups of its own, which `download` counts
    formed = config.download.folds == "stratified" or config.download.disjoint == "sentence"
    held_out = selection == "dev-group" and config.train.shots is None
    if formed and config.download.num_groups < (needed := 3 if held_out else 2):
        last = "; with two groups, set train.selection to last" if held_out else ""
        parts = "train, dev and test" if held_out else "train and test"
        yield f"download.num_groups: {needed} or more are needed for {parts}, got {config.download.num_groups}{last}"
    reference = config.evaluate.reference
    if reference is not None and reference not in config.trained:
        yield _unknown("evaluate.reference", reference, config.trained)
    if config.report.published is not None:
        try:
            read_published(config.report.published)
        except ConfigError as error:
            yield f"report.published: {error}"
    unlisted = config.unlisted()
    for where, chosen in (("ablate.rank_by", config.ablate.rank_by), ("ablate.method", config.ablate.method)):
        if chosen is not None and not _is_method(chosen):
            yield _unknown(where, chosen, METHODS)
        elif where in unlisted:
            yield unlisted[where]


def _reconstruction_problems(config: Config) -> Iterator[str]:
    """Problems of `reconstructions`, and lists that do not go with them."""
    if len(set(config.reconstructions)) != len(config.reconstructions):
        yield f"reconstructions: a block is listed twice in {list(config.reconstructions)}"
    for name in config.reconstructions:
        if name not in BLOCKS:
            yield _unknown("reconstructions", name, BLOCKS)
    if config.finetunes:
        yield "finetunes: a pipeline with reconstructions has no encoder to fine-tune; leave it empty"
    corpus = config.download.corpus
    modality = CORPORA.load(corpus).modality if corpus in CORPORA else None
    if modality not in (None, "image"):
        yield f"reconstructions: corpus '{corpus}' has no images"


def _finetune_problems(config: Config) -> Iterator[str]:
    """Problems of `finetunes` and their settings."""
    if config.finetunes and not config.has_encoder:
        yield f"finetunes: download.corpus is '{EMBEDDINGS}', so there is no encoder to fine-tune; leave it empty"
    if len(set(config.finetunes)) != len(config.finetunes):
        yield f"finetunes: a fine-tuning method is listed twice in {list(config.finetunes)}"
    for where, names in (("finetunes", config.finetunes), ("finetune_settings", config.finetune_settings)):
        for name in names:
            if name not in FINETUNES:
                yield _unknown(where, name, FINETUNES)


def _misfits(config: Config) -> list[str]:
    """Methods and sets of layers that do not fit the layers of the encoder, if its depth and width are known."""
    corpus = config.download.corpus
    if not config.has_encoder:  # their file tells the layers; `train` reports methods that do not fit
        return []
    shape = shape_of(config.extract, CORPORA.load(corpus).modality if corpus in CORPORA else None)
    if shape is None:
        return []
    num_layers, embed_dim = shape
    if num_layers > MOST_LAYERS:
        return [f"extract.encoder: its config.json says {num_layers:,} layers, supported are up to {MOST_LAYERS:,}"]
    to_build = [("methods", method, num_layers) for method in config.methods]
    if config.ablate.method is not None:
        groups = [len(layers) for layers in config.ablate.layers]
        if config.ablate.rank_by in (None, *config.methods):
            groups = [*config.ablate.k, *groups]
        to_build += [("ablate.method", config.ablate.method, k) for k in dict.fromkeys(groups) if 0 < k <= num_layers]
    problems = []
    if config.ablate.layers or config.ablate.presets:
        from daamctl.evaluation.layer_sets import choose_sets  # imports SciPy

        layers = range(0 if config.extract.layer_00 else 1, num_layers + 1)
        try:
            choose_sets((), (), config.ablate.layers, layers, config.ablate.presets)
        except ConfigError as error:
            problems.append(str(error))
    for where, method, number in to_build:
        try:
            settings = settings_of(method, config.method_settings)
            check_settings(method, settings)
        except (UnknownNameError, MethodError):
            continue  # reported already
        try:
            check_fits(method, settings, num_layers=number, embed_dim=embed_dim)
        except MethodError as error:
            repair = ""
            if error.setting is not None:
                name, value = error.setting
                if METHODS.defaults(resolve_method(method)[0]).get(name) == AUTO:  # it fits any number of layers
                    value = AUTO
                repair = f"\n  set method_settings: {{{method}: {{{name}: {value}}}}}, or leave the method out"
            problems.append(
                f"{where}: {method} on {number} of {num_layers} layers x {embed_dim} of encoder "
                f"'{config.extract.encoder}': {error}{repair}"
            )
    return problems


def _adapter_misfits(config: Config) -> Iterator[str]:
    """Fine-tuning methods that the encoder does not support, if its configuration is known."""
    names = [name for name in dict.fromkeys(config.finetunes) if name in FINETUNES]
    modality = CORPORA.load(config.download.corpus).modality if config.download.corpus in CORPORA else None
    if not names or not config.has_encoder or shape_of(config.extract, modality) is None:
        return
    from daamctl.encoders.load import modality_read_by  # imports torch
    from daamctl.planning.finetune_size import finetune_size

    if modality is None and (found := configuration_of(config.extract, "speech")) is not None:
        modality = modality_read_by(found[0])  # of a table, whose columns tell it when it is read
    if modality is None:
        return
    for name in names:
        try:
            finetune_size(name, config.for_adapter(name).extract, modality, 2)
        except MethodError as error:
            yield f"finetunes: {error}"


def _table_problems(root: Path) -> list[str]:
    """Differences between the pipelines listed in params.yaml, which `dvc repro` runs, and the files."""
    listed, files = read_yaml(root / PARAMS_FILE).get("pipelines"), pipeline_names(root)
    listed = listed if isinstance(listed, list) else []  # of another type, each pipeline says so
    place = f"{PARAMS_FILE}: pipelines"
    problems = [
        _unknown(place, name, files) if isinstance(name, str) else f"{place}: YAML reads {name}; put the name in quotes"
        for name in listed if name not in files
    ]  # fmt: skip
    if PAPER in files:
        problems.append(f"pipeline '{PAPER}': report@{PAPER} is the report on the papers; rename the pipeline")
    for name in (f"{family}-shots" for family in families(files)):
        if name in files:
            problems.append(f"pipeline '{name}': report@{name} is the report on a family; rename the pipeline")
    if unlisted := sorted(set(files) - {name for name in listed if isinstance(name, str)}):
        log.warning("not listed under pipelines in %s, so dvc repro skips them: %s", PARAMS_FILE, ", ".join(unlisted))
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
