"""Options that several commands share, and how they become settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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


def complete_method(incomplete: str) -> list[str]:
    """Shell completion: methods."""
    from daamctl.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_encoder(incomplete: str) -> list[str]:
    """Shell completion: encoder presets."""
    from daamctl.encoders import ENCODERS

    return [name for name in ENCODERS if name.startswith(incomplete)]


def complete_corpus(incomplete: str) -> list[str]:
    """Shell completion: corpora."""
    from daamctl.corpora import CORPORA

    return [name for name in CORPORA if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Shell completion: recipes of training."""
    from daamctl.config import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


Pipeline = Annotated[
    str | None,
    typer.Option("--pipeline", "-p", help="A file in pipelines/, without .yaml.", autocompletion=complete_pipeline),
]
Corpus = Annotated[str | None, typer.Option(help="Corpus, when no pipeline names it.", autocompletion=complete_corpus)]
EncoderName = Annotated[
    str | None,
    typer.Option("--encoder", help="Preset, Hugging Face id or local folder.", autocompletion=complete_encoder),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable.")
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="published|searched",
        help="Recipe of training; one that is not the pipeline's own gets folders of its own.",
        autocompletion=complete_recipe,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="N,N,…", help="Seeds to train every fold with, instead of those of the settings."),
]
DeviceName = Annotated[str | None, typer.Option("--device", help="auto, cpu, mps, cuda or cuda:N.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is finished.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings and stop.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", envvar="DAAMCTL_ENGINE", help="Where to compute: local, or ray (a cluster)."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Workers at once. Default: one per GPU; without GPUs one per machine or per fold."),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(min=0.0, help="With --engine ray: GPUs for each worker; 0.5 puts two on one GPU."),
]
NoTrack = Annotated[bool, typer.Option("--no-track", help="Do not log to MLflow.")]
IfPossible = Annotated[
    bool,
    typer.Option("--if-possible", help="Where the inventory says that it cannot run here, leave a note and succeed."),
]


def resolve(
    pipeline: str | None,
    sets: list[str] | None = None,
    *,
    corpus: str | None = None,
    encoder: str | None = None,
    **named: Any,
) -> tuple[Layout, Config]:
    """Turn options into a layout and settings.

    Args:
        pipeline: pipeline name or None.
        sets: words of `--set`.
        corpus: value of `--corpus`.
        encoder: value of `--encoder`.
        named: further dotted keys with `__` for the dot; None means not given.

    Raises:
        ConfigError: a setting is wrong, or `--corpus` or `--encoder` would change a pipeline.
    """
    from daamctl.config import find_root, inspect_config, load_config, parse_overrides
    from daamctl.errors import ConfigError
    from daamctl.layout import Layout

    if pipeline is not None and (corpus is not None or encoder is not None):
        given = "--corpus" if corpus is not None else "--encoder"
        raise ConfigError(
            f"{given} would change what pipeline '{pipeline}' stands for",
            fix=f"leave out --pipeline, or write a new file in pipelines/ with the {given[2:]} you want",
        )
    overrides: dict[str, Any] = {key.replace("__", "."): value for key, value in named.items() if value is not None}
    if corpus is not None:
        overrides["download.corpus"] = corpus
    if encoder is not None:
        overrides["extract.encoder"] = encoder
    named_only = {key: value for key, value in overrides.items() if key not in ("download.corpus", "extract.encoder")}
    overrides.update(parse_overrides(sets or []))
    root = find_root()
    config = load_config(root, pipeline, overrides)
    if "train.seeds" in named_only and "finetune.seeds" not in overrides and config.finetune.seeds is not None:
        overrides["finetune.seeds"] = named_only["finetune.seeds"] = named_only["train.seeds"]  # --seeds: every fold
        config = load_config(root, pipeline, overrides)
    recipe = None
    if any(key.partition(".")[0] == "train" for key in overrides):  # else it is the pipeline's own
        own, _ = inspect_config(root, pipeline)
        recipe = config.train.recipe if own is not None and own.train.recipe != config.train.recipe else None
    words = [*map(_word, named_only.items()), *(sets or [])]
    return Layout.of(root, pipeline, config, words, recipe), config


def _word(item: tuple[str, Any]) -> str:
    """A named option as the word of `--set` that does the same."""
    import json

    key, value = item
    return f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def seed_list(text: str | None) -> list[int] | None:
    """The value of `--seeds`.

    Raises:
        BadParameter: it is not a list of whole numbers with commas between.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"must be whole numbers with commas between, met '{text}'", param_hint="--seeds")
    return [int(word) for word in words]


def with_decoder(method: str, decoder: str, config: Config) -> str:
    """The full name of a method with one of its decoders: `daam-v1` and `mlp` give `daam-v1-mlp`.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it has no such decoder, or its name or the settings say another one.
    """
    from daamctl.errors import MethodError
    from daamctl.methods import METHODS, resolve_method, settings_of

    base, preset = resolve_method(method)
    choices, default = METHODS.choices(base).get("decoder", ()), METHODS.defaults(base).get("decoder")
    if decoder not in choices:
        known = f"its decoders: {', '.join(choices)}" if choices else "it has no choice of decoder"
        raise MethodError(f"{method}: no decoder '{decoder}'; {known}")
    name = base if decoder == default else f"{base}-{decoder}"
    for what, said in ((f"'{method}'", preset), ("method_settings", settings_of(name, config.method_settings))):
        if said.get("decoder", decoder) != decoder:
            raise MethodError(f"{name}: --decoder {decoder} contradicts {what}, which says {said['decoder']}")
    return name


def fold_number(fold: str) -> int | None:
    """The fold that `--fold` names; None: all.

    Raises:
        typer.BadParameter: it is neither a number nor `all`.
    """
    if fold != "all" and not fold.isdecimal():
        raise typer.BadParameter(f"must be a number or 'all', met '{fold}'", param_hint="--fold")
    return None if fold == "all" else int(fold)


def stop_if_dry(dry_run: bool, config: Config) -> None:
    """With `--dry-run`, print the resolved settings as YAML and leave."""
    if dry_run:
        import yaml

        typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), nl=False)
        raise typer.Exit


def stop_if_impossible(
    if_possible: bool, layout: Layout, config: Config, stage: str, *, method: str | None = None
) -> None:
    """With `--if-possible`, leave where a stage cannot run: a note in the place of results, or results as they are.

    Args:
        if_possible: whether the option was given; if not, only an earlier note is removed.
        layout: where artifacts lie.
        config: all settings.
        stage: the stage.
        method: of `train` and `finetune`.
    """
    from daamctl.artifacts.skipped import leave_out, obstacle_of, remove_note

    obstacle = obstacle_of(layout, config, stage) if if_possible else None
    if obstacle is None:
        remove_note(layout, stage, method)
        return
    what = " ".join([layout.run_name, stage, *([method] if method else [])])
    left_out = leave_out(layout, stage, obstacle, method)
    typer.echo(f"{what}: {'left out' if left_out else 'finished earlier, kept as it is'}: {obstacle.reason}")
    raise typer.Exit


def show_path(path: Path) -> None:
    """Print what was written, relative to the current folder where that is shorter."""
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
