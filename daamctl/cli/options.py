"""The options that commands share. Each is declared once, in `Run`, with the commands that take it."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from daamctl.data.stage_table import STAGES
from daamctl.errors import MOST_KNOWN, ConfigError, DaamctlError, UnknownNameError, first_few

if TYPE_CHECKING:
    from daamctl.artifacts.layout import Layout
    from daamctl.config import Config

RUNS = ("show", "truncate", "export")
"""Commands whose first argument may also be PIPELINE/METHOD."""
NEED_PIPELINE = ("run", "plan", "bundle", *RUNS)
FOLDS = "train finetune"
READ_FOLDS = "evaluate ablate importance report"
TRAINED = f"{FOLDS} reconstruct"
METHODS = {
    **dict.fromkeys(("train", "ablate", "doctor"), ("daamctl.methods", "METHODS")),
    "finetune": ("daamctl.adapters", "FINETUNES"),
    "reconstruct": ("daamctl.reconstruction", "BLOCKS"),
}
"""Command -> module and name of the table in which `--method` is looked up."""


@dataclass(frozen=True)
class UsedBy:
    """The commands that take an option, and the settings that it gives there, in which `{}` stands for the command."""

    commands: str
    gives: str = ""


@dataclass(frozen=True)
class AfterPipeline:
    """Marks an argument that follows the pipeline: whether a word given in place of the pipeline is this one."""

    meant: Callable[[str], bool]


def complete_pipeline(incomplete: str) -> list[str]:
    """Shell completion: names of pipeline files."""
    from daamctl.config import find_root, pipeline_names

    try:
        return [name for name in pipeline_names(find_root()) if name.startswith(incomplete)]
    except DaamctlError:
        return []


def completer(module: str, table: str) -> Callable[[str], list[str]]:
    """Shell completion: names in a table of a module, which is imported only then."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in getattr(importlib.import_module(module), table) if name.startswith(incomplete)]

    return complete


complete_corpus = completer("daamctl.corpora", "CORPORA")


def complete_method(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: what `--method` of a command may be."""
    every = ["all"] if ctx.info_name == "doctor" and "all".startswith(incomplete) else []
    return [*completer(*METHODS[str(ctx.info_name)])(incomplete), *every]


def complete_run(incomplete: str) -> list[str]:
    """Shell completion: pipelines and PIPELINE/METHOD."""
    name, slash, method = incomplete.partition("/")
    if slash:
        return [f"{name}/{found}" for found in completer(*METHODS["train"])(method)]
    return complete_pipeline(incomplete)


def complete_first(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion of the first argument: pipelines, PIPELINE/METHOD, or pipelines and corpora."""
    if ctx.info_name in RUNS:
        return complete_run(incomplete)
    more = complete_corpus(incomplete) if ctx.info_name == "download" else []
    return list(dict.fromkeys([*complete_pipeline(incomplete), *more]))


def fold_number(text: str) -> int | None:
    """Parse `--fold`; None means all folds."""
    if text != "all" and not (text.isdecimal() and len(text) < 10):
        raise typer.BadParameter(f"must be a number or 'all', got '{text}'")
    return None if text == "all" else int(text)


def whole_numbers(text: str) -> list[int]:
    """Parse `--seeds`, or one group of `--layers`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 20 for word in words):  # the settings check the range
        raise typer.BadParameter(f"must be whole numbers separated by commas, got '{text}'")
    return [int(word) for word in words]


@dataclass(frozen=True)
class Run:
    """What a command was asked for. A field is an option of the commands that its `UsedBy` names."""

    command: str
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", help="The same as the first argument.", autocompletion=complete_first),
        UsedBy(f"{' '.join(STAGES)} run plan preflight protocols check explain doctor track bundle {' '.join(RUNS)}"),
    ] = None
    corpus: Annotated[
        str | None,
        typer.Option(help="Corpus, if no pipeline is given.", autocompletion=complete_corpus),
        UsedBy(f"download segment extract {FOLDS} {READ_FOLDS} preflight protocols", "download.corpus"),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            help="Encoder: a preset, a Hugging Face id or a local folder.",
            autocompletion=completer("daamctl.encoders", "ENCODERS"),
        ),
        UsedBy(f"extract {FOLDS} {READ_FOLDS} preflight protocols", "extract.encoder"),
        UsedBy("new"),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of a Hugging Face model."),
        UsedBy("extract", "extract.revision"),
    ] = None
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Corpus folder; a manifest: a table, or a folder with images by class; or a file of embeddings.",
        ),
        UsedBy("download run"),
    ] = None
    tail: Annotated[
        str | None,
        typer.Option(help="What to do with the short last clip of a recording: keep, pad, merge or drop."),
        UsedBy("segment", "segment.tail"),
    ] = None
    write_audio: Annotated[
        bool | None,
        typer.Option("--write-audio", help="Also write the clips as FLAC files."),
        UsedBy("segment", "segment.write_audio"),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Method; for finetune its adapter, for reconstruct a block: see `daamctl ls`.",
            autocompletion=complete_method,
        ),
        UsedBy(f"{TRAINED} doctor"),
        UsedBy("ablate", "ablate.method"),
    ] = None
    decoder: Annotated[
        str | None,
        typer.Option(help="Decoder: conv or mlp, if the method offers both. daam-v1 with mlp is daam-v1-mlp."),
        UsedBy("train"),
    ] = None
    layers: Annotated[
        list[Any] | None,
        typer.Option(
            metavar="N,N,…", parser=whole_numbers, help="Also train on these layers, e.g. 9 or 22,23,24. Repeatable."
        ),
        UsedBy("ablate", "ablate.layers"),
    ] = None
    preset: Annotated[
        list[str] | None,
        typer.Option(help="Also train on layers named in the papers, e.g. speech-9-23. Repeatable."),
        UsedBy("ablate", "ablate.presets"),
    ] = None
    audit: Annotated[
        bool | None,
        typer.Option("--audit/--no-audit", help="Test whether layer scores reflect how useful the layers are."),
        UsedBy("importance", "importance.audit"),
    ] = None
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--static", help="Interactive figures in report.html, or static pictures only (5 MB smaller)."
        ),
        UsedBy("report", "report.interactive"),
    ] = None
    fold: Annotated[
        int | None, typer.Option(metavar="N|all", parser=fold_number, help="Train this fold only."), UsedBy(FOLDS)
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Train with this seed only."), UsedBy(TRAINED)
    ] = None
    seeds: Annotated[
        Any,
        typer.Option(
            metavar="N,N,…",
            parser=whole_numbers,
            help="Train every fold with these seeds instead of those in the settings.",
        ),
        UsedBy(f"{FOLDS} evaluate", "train.seeds"),
        UsedBy("reconstruct", "reconstruct.seeds"),
        UsedBy("run plan", "train.seeds reconstruct.seeds"),
        UsedBy("mlm"),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="published|searched",
            help="Training recipe. Results of a recipe other than the pipeline's are stored in separate folders.",
            autocompletion=completer("daamctl.config", "RECIPES"),
        ),
        UsedBy(f"{FOLDS} {READ_FOLDS} run plan", "train.recipe"),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help="Device: auto, cpu, mps, cuda or cuda:N."),
        UsedBy(f"extract {TRAINED}", "{}.device"),
        UsedBy("run plan", "extract.device train.device finetune.device reconstruct.device"),
        UsedBy("mlm predict serve identify"),
    ] = None
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Add to every item the set of classes that holds the true one with probability P, e.g. 0.9.",
        ),
        UsedBy("predict serve"),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(help="Precision: auto, float32, bfloat16 or float16."),
        UsedBy("extract", "extract.precision"),
    ] = None
    engine: Annotated[
        str,
        typer.Option(envvar="DAAMCTL_ENGINE", help="Where to run: local, or ray (a cluster)."),
        UsedBy(f"extract {TRAINED}"),
    ] = "local"
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of parallel workers. Default: one per GPU; without GPUs, one per machine or per fold."
        ),
        UsedBy(f"extract {TRAINED}"),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0.0, help="With --engine ray: GPUs per worker. 0.5 lets two workers share a GPU."),
        UsedBy(f"extract {TRAINED}"),
    ] = None
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable."),
        UsedBy(f"{' '.join(STAGES)} run plan preflight protocols doctor"),
    ] = None
    force: Annotated[
        bool,
        typer.Option("--force", help="Do it again and replace what is there, even if it is up to date."),
        UsedBy(f"download extract {TRAINED} ablate truncate mlm export new"),
    ] = False
    track: Annotated[
        bool,
        typer.Option(" /--no-track", show_default=False, help="Do not log to MLflow."),
        UsedBy(" ".join(["run", *(name for name, spec in STAGES.items() if spec.tracked)])),
    ] = True
    if_possible: Annotated[
        bool,
        typer.Option(
            "--if-possible", help="If the inventory says that this cannot run here, write a note and exit with 0."
        ),
        UsedBy(" ".join(STAGES)),
    ] = False
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON instead of a table."),
        UsedBy("plan show compare judge truncate mlm identify"),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the resolved settings and exit."),
        UsedBy(f"{' '.join(STAGES)} run plan preflight"),
    ] = False

    def settings(self) -> tuple[Layout, Config]:
        """Folders and settings of the pipeline, or of the corpus and the encoder; `--dry-run` prints them and exits.

        The pipeline of `download` may also be a corpus, if no pipeline has its name.

        Raises:
            ConfigError: a setting is wrong, `--corpus` or `--encoder` is combined with a pipeline, `--corpus` has the
                name of a pipeline of another corpus, or `--recipe` is given for one that reconstructs images.
        """
        from daamctl.artifacts.layout import Layout
        from daamctl.config import find_root, inspect_config, load_config, parse_overrides, pipeline_names
        from daamctl.config.corpus_keys import FILES

        root, own = find_root(), {"corpus", "encoder"}
        names = pipeline_names(root)
        if self.command == "download" and self.pipeline and self.pipeline not in names:
            from daamctl.corpora import CORPORA

            if self.pipeline not in CORPORA:
                raise UnknownNameError("pipeline or corpus", self.pipeline, {*names, *CORPORA})
            return replace(self, pipeline=None, corpus=self.pipeline).settings()
        for name in own:
            if self.pipeline is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"--{name} cannot be combined with a pipeline: '{self.pipeline}' already sets it",
                    fix=f"omit the pipeline, or write a new file in pipelines/ with the {name} you want",
                )
        other = inspect_config(root, self.corpus)[0] if self.corpus in names else None
        if other is not None and other.download.corpus != self.corpus:  # its table would be replaced
            raise ConfigError(
                f"'{self.corpus}' is also the name of a pipeline, of the corpus {other.download.corpus}, and both "
                f"would use data/download/{self.corpus}",
                fix=f"write a pipeline of another name, with download: {{corpus: {self.corpus}}}"
                + (f": daamctl new NAME --from {quote(str(self.source or 'PATH'))}" if self.corpus in FILES else ""),
            )
        before, _ = inspect_config(root, self.pipeline)
        task = "classify" if before is None else before.task
        if self.recipe is not None and task == "reconstruct":
            raise ConfigError(f"{self.pipeline} reconstructs images, so it has no training recipe", fix="omit --recipe")
        given = {
            key: (name, getattr(self, name))
            for name in OPTIONS
            if getattr(self, name) is not None
            for key in taken(name, self.command) or ()
            if STAGES[key.partition(".")[0]].task in (None, task)  # `run` and `plan` take pipelines of both tasks
        }
        overrides = {key: value for key, (_, value) in given.items()} | parse_overrides(self.sets or [])
        config = load_config(root, self.pipeline, overrides)
        if given.get("train.seeds") and "finetune.seeds" not in overrides and config.finetune.seeds is not None:
            given["finetune.seeds"] = given["train.seeds"]  # --seeds applies to both stages
            overrides["finetune.seeds"] = self.seeds
            config = load_config(root, self.pipeline, overrides)
        own_recipe = before is None or before.train.recipe == config.train.recipe
        recipe = None if own_recipe else config.train.recipe
        if self.dry_run:
            import yaml

            typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), nl=False)
            raise typer.Exit
        words = [_as_set(key, value) for key, (name, value) in given.items() if name not in own]
        return Layout.of(root, self.pipeline, config, [*words, *(self.sets or [])], recipe), config


OPTIONS = {name: hint for name, hint in get_type_hints(Run, include_extras=True).items() if name != "command"}
"""Field of `Run` -> its annotation."""


def taken(name: str, command: str) -> list[str] | None:
    """The settings that an option gives in a command; None if the command does not take it."""
    for mark in OPTIONS[name].__metadata__:
        if isinstance(mark, UsedBy) and command in mark.commands.split():
            return mark.gives.format(command).split()
    return None


def _as_set(key: str, value: Any) -> str:
    """The value of `--set` equivalent to a named option."""
    import json

    return f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def with_options(work: Callable[..., None], name: str) -> Callable[..., None]:
    """A function as the command of this name; one with a parameter `run: Run` takes the options of `Run` besides.

    The pipeline is its first argument, too. Both forms may be given if they agree. An error about an artifact gets the
    command that makes it.
    """
    hints = {
        key: hint for key, hint in get_type_hints(work, include_extras=True).items() if key not in ("run", "return")
    }
    own = inspect.signature(work).parameters
    shared = {option: hint for option, hint in OPTIONS.items() if "run" in own and taken(option, name) is not None}
    each = STAGES[name].for_each if name in STAGES else None
    first = "RUN" if name in RUNS else "PIPELINE"
    follows = {
        key: mark.meant for key, hint in hints.items() for mark in hint.__metadata__ if isinstance(mark, AfterPipeline)
    }

    @functools.wraps(work)
    def command(**given: Any) -> None:
        options = {option: given.pop(option) for option in shared}
        if "pipeline" in shared:
            word, option = given.pop("argument"), options["pipeline"]
            for other, meant in follows.items():
                if word is not None and meant(word) and not (given[other] and meant(given[other])):
                    word, given[other] = given[other], word  # also if both are given in the other order
            if None not in (word, option) and word != option:
                raise ConfigError(f"{first} is '{word}', but --pipeline is '{option}'", fix="give one of the two")
            options["pipeline"] = word or option
            if not options["pipeline"] and name in NEED_PIPELINE:
                raise typer.BadParameter(f"give it as an argument, or with -p {first}", param_hint=first)
        run = Run(name, **options)
        try:
            if name in RUNS:
                check_run(str(run.pipeline), reconstructs=name == "show")
            if each and run.method is None:
                listed = first_few(getattr(run.settings()[1], each), MOST_KNOWN)
                raise typer.BadParameter(f"give one; {each} of the pipeline: {listed}", param_hint="--method")
            work(*((run,) if "run" in own else ()), **given)
        except DaamctlError as error:
            if error.path is not None and error.fix is None:
                from daamctl.planning.repair import repair_of

                error.fix = repair_of(error.path, run.settings()[0] if "sets" in shared else None)
            raise

    text = "PIPELINE or PIPELINE/METHOD." if name in RUNS else "Name of a file in pipelines/, without .yaml."
    text = "PIPELINE, or a corpus: see `daamctl ls`." if name == "download" else text
    argument = Annotated[str | None, typer.Argument(metavar=first, help=text, autocompletion=complete_first)]
    every = ({"argument": argument} if "pipeline" in shared else {}) | hints | shared
    defaults = {key: one.default for key, one in own.items()} | {"argument": None}
    defaults |= {key: getattr(Run, key) for key in shared}
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__annotations__ = every
    command.__dict__["__signature__"] = inspect.Signature(
        [inspect.Parameter(key, keyword, default=defaults[key], annotation=hint) for key, hint in every.items()]
    )
    return command


def check_run(run: str, *, reconstructs: bool = False) -> None:
    """Refuse an unknown PIPELINE/METHOD, or PIPELINE alone, before anything slow is imported.

    Args:
        reconstructs: whether the pipeline may reconstruct images, with blocks instead of methods.

    Raises:
        UnknownNameError: there is no such pipeline or run, or no such method.
        ConfigError: it reconstructs images and may not.
    """
    from daamctl.artifacts.runs import find_run, trained_methods
    from daamctl.config import find_root
    from daamctl.methods import resolve_method

    name, _, method = run.partition("/")
    layout, config = find_run(find_root(), name, reconstructs=reconstructs)
    known = dict.fromkeys([*(config.trained if layout.pipeline else ()), *trained_methods(layout)])
    if method and config.task == "classify" and method not in known:
        try:
            resolve_method(method)
        except UnknownNameError as error:
            if error.is_slip:  # `truncate` takes methods that the run does not have
                raise
            raise UnknownNameError("method", method, known, of=name) from None
