"""Options shared by several commands, and their translation into settings."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from daamctl.config import Config
    from daamctl.layout import Layout


def complete_pipeline(incomplete: str) -> list[str]:
    """Shell completion: names of pipeline files."""
    from daamctl.config import find_root, pipeline_names
    from daamctl.errors import DaamctlError

    try:
        return [name for name in pipeline_names(find_root()) if name.startswith(incomplete)]
    except DaamctlError:
        return []


def completer(module: str, table: str) -> Callable[[str], list[str]]:
    """Shell completion: names in a table of a module, which is imported only then."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in getattr(importlib.import_module(module), table) if name.startswith(incomplete)]

    return complete


complete_method = completer("daamctl.methods", "METHODS")
complete_encoder = completer("daamctl.encoders", "ENCODERS")
complete_corpus = completer("daamctl.corpora", "CORPORA")
complete_recipe = completer("daamctl.config", "RECIPES")


def complete_run(incomplete: str) -> list[str]:
    """Shell completion: pipelines and PIPELINE/METHOD."""
    name, slash, method = incomplete.partition("/")
    if slash:
        return [f"{name}/{found}" for found in complete_method(method)]
    return complete_pipeline(incomplete)


Pipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline", "-p", help="Name of a file in pipelines/, without .yaml.", autocompletion=complete_pipeline
    ),
]
Run = Annotated[
    str,
    typer.Option("--pipeline", "-p", metavar="RUN", help="PIPELINE or PIPELINE/METHOD.", autocompletion=complete_run),
]
Corpus = Annotated[str | None, typer.Option(help="Corpus, if no pipeline is given.", autocompletion=complete_corpus)]
EncoderName = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="Encoder: a preset, a Hugging Face id or a local folder.", autocompletion=complete_encoder
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable.")
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="published|searched",
        help="Training recipe. Results of a recipe other than the pipeline's are stored in separate folders.",
        autocompletion=complete_recipe,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", metavar="N,N,…", help="Train every fold with these seeds instead of those in the settings."
    ),
]
DeviceName = Annotated[str | None, typer.Option("--device", help="Device: auto, cpu, mps, cuda or cuda:N.")]
Force = Annotated[bool, typer.Option("--force", help="Run again even if the results are up to date.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings and exit.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", envvar="DAAMCTL_ENGINE", help="Where to run: local, or ray (a cluster)."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of parallel workers. Default: one per GPU; without GPUs, one per machine or per fold."
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(min=0.0, help="With --engine ray: GPUs per worker. 0.5 lets two workers share a GPU."),
]
NoTrack = Annotated[bool, typer.Option("--no-track", help="Do not log to MLflow.")]
IfPossible = Annotated[
    bool,
    typer.Option(
        "--if-possible", help="If the inventory says that this cannot run here, write a note and exit with 0."
    ),
]


def pipeline_first(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take its `Pipeline` or `Run` as its last argument, too; other commands are returned as they are.

    An option without a default must be given in either form. Both may be given if they agree.
    """
    hints = get_type_hints(command, include_extras=True)
    option = next((name for name, hint in hints.items() if hint in (Pipeline, Run)), None)
    if option is None:
        return command
    own = inspect.signature(command).parameters
    metavar, complete = ("PIPELINE", complete_pipeline) if hints[option] == Pipeline else ("RUN", complete_run)

    @functools.wraps(command)
    def either(argument: str | None, **given: Any) -> None:
        chosen = one_of(argument, given.pop(option), metavar)
        if chosen is None and own[option].default is inspect.Parameter.empty:
            raise typer.BadParameter(f"give it as an argument, or with -p {metavar}", param_hint=metavar)
        if chosen and metavar == "RUN":
            check_run(chosen)
        command(**given, **{option: chosen})

    argument = typer.Argument(metavar=metavar, help="The same as --pipeline.", autocompletion=complete)
    hints["argument"] = Annotated[str | None, argument]
    defaults = {name: parameter.default for name, parameter in own.items()} | {"argument": None, option: None}
    keyword = inspect.Parameter.KEYWORD_ONLY
    either.__annotations__ = hints
    either.__dict__["__signature__"] = inspect.Signature(
        [inspect.Parameter(n, keyword, default=defaults[n], annotation=hints[n]) for n in hints if n != "return"]
    )
    return either


def one_of(argument: str | None, option: str | None, metavar: str) -> str | None:
    """The argument or `--pipeline`, whichever is given.

    Raises:
        ConfigError: both are, and they differ.
    """
    from daamctl.errors import ConfigError

    if None not in (argument, option) and argument != option:
        raise ConfigError(f"{metavar} is '{argument}', but --pipeline is '{option}'", fix="give one of the two")
    return argument or option


def resolve(
    pipeline: str | None,
    sets: list[str] | None = None,
    *,
    corpus: str | None = None,
    encoder: str | None = None,
    **named: Any,
) -> tuple[Layout, Config]:
    """Build the layout and the settings from command-line options.

    Args:
        pipeline: pipeline name or None.
        sets: values of `--set`.
        corpus: value of `--corpus`.
        encoder: value of `--encoder`.
        named: other settings, with `__` for the dot in their key; None means not given.

    Raises:
        ConfigError: a setting is wrong, or `--corpus` or `--encoder` is combined with a pipeline.
    """
    from daamctl.config import find_root, inspect_config, load_config, parse_overrides
    from daamctl.errors import ConfigError
    from daamctl.layout import Layout

    if pipeline is not None and (corpus is not None or encoder is not None):
        given = "--corpus" if corpus is not None else "--encoder"
        raise ConfigError(
            f"{given} cannot be combined with --pipeline: pipeline '{pipeline}' already sets it",
            fix=f"omit --pipeline, or write a new file in pipelines/ with the {given[2:]} you want",
        )
    options = {key.replace("__", "."): value for key, value in named.items() if value is not None}
    overrides: dict[str, Any] = dict(options)
    if corpus is not None:
        overrides["download.corpus"] = corpus
    if encoder is not None:
        overrides["extract.encoder"] = encoder
    overrides.update(parse_overrides(sets or []))
    root = find_root()
    config = load_config(root, pipeline, overrides)
    if "train.seeds" in options and "finetune.seeds" not in overrides and config.finetune.seeds is not None:
        # --seeds applies to both stages
        overrides["finetune.seeds"] = options["finetune.seeds"] = options["train.seeds"]
        config = load_config(root, pipeline, overrides)
    recipe = None  # the pipeline's own
    if any(key.partition(".")[0] == "train" for key in overrides):
        before, _ = inspect_config(root, pipeline)
        if before is not None and before.train.recipe != config.train.recipe:
            recipe = config.train.recipe
    words = [*(_as_set(key, value) for key, value in options.items()), *(sets or [])]
    return Layout.of(root, pipeline, config, words, recipe), config


def _as_set(key: str, value: Any) -> str:
    """The value of `--set` equivalent to a named option."""
    import json

    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"{key}={text}"


def seed_list(text: str | None) -> list[int] | None:
    """Parse the value of `--seeds`.

    Raises:
        BadParameter: the value is not a comma-separated list of whole numbers.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 20 for word in words):  # the settings check the range
        raise typer.BadParameter(f"must be whole numbers separated by commas, got '{text}'", param_hint="--seeds")
    return [int(word) for word in words]


def with_decoder(method: str, decoder: str, config: Config) -> str:
    """Full name of a method with one of its decoders: `daam-v1` and `mlp` give `daam-v1-mlp`.

    Raises:
        UnknownNameError: the method does not exist.
        MethodError: the method has no such decoder, or its name or the settings choose another one.
    """
    from daamctl.errors import MethodError
    from daamctl.methods import METHODS, resolve_method, settings_of

    base, preset = resolve_method(method)
    choices, default = METHODS.choices(base).get("decoder", ()), METHODS.defaults(base).get("decoder")
    if decoder not in choices:
        known = f"available: {', '.join(choices)}" if choices else "this method has only one decoder"
        raise MethodError(f"{method}: no decoder '{decoder}'; {known}")
    name = base if decoder == default else f"{base}-{decoder}"
    for what, said in ((f"'{method}'", preset), ("method_settings", settings_of(name, config.method_settings))):
        if said.get("decoder", decoder) != decoder:
            raise MethodError(f"{name}: --decoder {decoder} contradicts {what}, which sets {said['decoder']}")
    return name


def fold_number(fold: str) -> int | None:
    """Parse the value of `--fold`; None means all folds.

    Raises:
        typer.BadParameter: the value is neither a number nor `all`.
    """
    if fold != "all" and not (fold.isdecimal() and len(fold) < 10):
        raise typer.BadParameter(f"must be a number or 'all', got '{fold}'", param_hint="--fold")
    return None if fold == "all" else int(fold)


def stop_if_dry(dry_run: bool, config: Config) -> None:
    """With `--dry-run`, print the resolved settings as YAML and exit."""
    if dry_run:
        import yaml

        typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), nl=False)
        raise typer.Exit


def stop_if_impossible(
    if_possible: bool, layout: Layout, config: Config, stage: str, *, method: str | None = None
) -> None:
    """Refuse a stage that the pipeline does not have, and exit with `--if-possible` from one that cannot run here.

    Results of such a stage are kept; without results, a note is written in their place.

    Args:
        if_possible: whether the option was given. If not, only an earlier note is removed.
        method: entry of the list that the stage runs for, e.g. the method.

    Raises:
        ConfigError: the stage is of another task than the pipeline, a name is unknown, or settings contradict.
        EncoderError: the encoder that the stage would open cannot be had here.
    """
    from daamctl.artifacts.skipped import folder_of, is_finished, leave_out, obstacle_of, remove_note
    from daamctl.errors import ConfigError
    from daamctl.stage_table import STAGES, stages_of_task

    if STAGES[stage].task not in (None, config.task):
        does = {"classify": "lists no reconstructions", "reconstruct": "reconstructs images"}[config.task]
        raise ConfigError(
            f"{layout.run_name} {does}, so it has no stage '{stage}'",
            fix=f"its stages: {', '.join(stages_of_task(config.task))}",
        )

    obstacle = obstacle_of(layout, config, stage) if if_possible else None
    if obstacle is None:
        from daamctl.adapters import FINETUNES
        from daamctl.methods import resolve_method
        from daamctl.reconstruction import BLOCKS
        from daamctl.stages import inventory
        from daamctl.stages.check import refuse_problems

        remove_note(layout, stage, method)
        if method is not None:
            {"train": resolve_method, "finetune": FINETUNES.module_of, "reconstruct": BLOCKS.module_of}[stage](method)
        refuse_problems(config, layout.run_name)
        if stage in ("extract", "finetune") and not is_finished(folder_of(layout, stage, method), stage):
            inventory.require(layout.root, config, ["encoder"])
        return
    what = " ".join([layout.run_name, stage, *([method] if method else [])])
    left_out = leave_out(layout, stage, obstacle, method)
    typer.echo(f"{what}: {'skipped' if left_out else 'cannot run here, earlier results are kept'}: {obstacle.reason}")
    raise typer.Exit


def check_run(run: str) -> None:
    """Refuse an unknown PIPELINE/METHOD, or PIPELINE alone, before anything slow is imported.

    Raises:
        UnknownNameError: there is no such pipeline or run, or no such method.
    """
    from daamctl.artifacts.runs import find_run, trained_methods
    from daamctl.config import find_root
    from daamctl.methods import resolve_method

    name, _, method = run.partition("/")
    layout, config = find_run(find_root(), name)
    if method and method not in (*config.trained, *trained_methods(layout)):
        resolve_method(method)


def show_path(path: Path) -> None:
    """Print the path of a result, relative to the current folder if it is inside."""
    try:
        typer.echo(str(path.relative_to(Path.cwd())))
    except ValueError:
        typer.echo(str(path))


def show_line(console: Console, text: str) -> None:
    """Print a line, whole where nobody watches."""
    console.print(text, soft_wrap=not console.is_terminal)


def escaped(text: str) -> str:
    """Text in which Rich sees no markup."""
    from rich.markup import escape

    return escape(text)
