"""The commands of the stages: one function serves all, since a stage says in `stage_table` what it is."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from daamctl.cli.options import Run, taken
from daamctl.cli.terminal import show_path
from daamctl.data.stage_table import STAGES, stages_of_task

if TYPE_CHECKING:
    from daamctl.artifacts.layout import Layout
    from daamctl.config import Config

PASSED = ("source", "method", "fold", "seed", "force", "track")
"""Options that a stage gets as they are, if its command takes them and they give no setting."""


def command(run: Run) -> None:
    """Run one stage of a pipeline and print the path of what it made."""
    stage = run.command
    if stage == "download" and run.pipeline is None and run.corpus is None:
        raise typer.BadParameter("give a pipeline or a corpus", param_hint="PIPELINE")
    layout, config = run.settings()
    options: dict[str, Any] = {name: getattr(run, name) for name in PASSED if taken(name, stage) == []}
    if run.decoder is not None:
        options["method"] = with_decoder(options["method"], run.decoder, config)
    check_possible(layout, config, stage, method=options.get("method"), if_possible=run.if_possible)
    if taken("engine", stage) is None:
        engine: Any = nullcontext()
    else:
        from daamctl.compute.engines import make_engine

        engine = make_engine(run.engine, workers=run.workers, gpus_per_worker=run.gpus_per_worker)
    with engine as opened:
        if opened is not None:
            options["engine"] = opened
        path = importlib.import_module(f"daamctl.stages.{stage}").run(layout, config, **options)
    if stage in ("evaluate", "score"):
        from daamctl.cli.show import show_results

        show_results(layout)
    show_path(path)


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


def check_possible(layout: Layout, config: Config, stage: str, *, method: str | None, if_possible: bool) -> None:
    """Refuse a stage that the pipeline does not have, and exit with `--if-possible` from one that cannot run here.

    Results of such a stage are kept; without results, a note is written in their place.

    Raises:
        ConfigError: the stage is of another task than the pipeline, a name is unknown, or settings contradict.
        EncoderError: the encoder that the stage would open cannot be had here.
    """
    from daamctl.artifacts.skipped import folder_of, is_finished, leave_out, obstacle_of, remove_note
    from daamctl.errors import ConfigError

    if STAGES[stage].task not in (None, config.task):
        does = {"classify": "lists no reconstructions", "reconstruct": "reconstructs images"}[config.task]
        raise ConfigError(
            f"{layout.run_name} {does}, so it has no stage '{stage}'",
            fix=f"its stages: {', '.join(stages_of_task(config.task))}",
        )
    if if_possible and (obstacle := obstacle_of(layout, config, stage)) is not None:
        what = " ".join([layout.run_name, stage, *([method] if method else [])])
        left_out = leave_out(layout, stage, obstacle, method)
        typer.echo(
            f"{what}: {'skipped' if left_out else 'cannot run here, earlier results are kept'}: {obstacle.reason}"
        )
        raise typer.Exit
    from daamctl.adapters import FINETUNES, stage_of
    from daamctl.methods import METHODS, resolve_method
    from daamctl.reconstruction import BLOCKS
    from daamctl.stages import inventory
    from daamctl.stages.check import refuse_problems

    remove_note(layout, stage, method)
    if method in {"train": FINETUNES, "finetune": METHODS}.get(stage, ()):
        right = stage_of(str(method))
        repair = layout.command(right, "--method", str(method))
        raise ConfigError(f"'{method}' belongs to the stage '{right}', not '{stage}'", fix=f"run it there: {repair}")
    if method is not None:
        {"train": resolve_method, "finetune": FINETUNES.module_of, "reconstruct": BLOCKS.module_of}[stage](method)
    # stages that need no encoder run without it; the inventory skips the others
    refuse_problems(config, layout.run_name, encoder=not if_possible)
    if stage in ("extract", "finetune") and not is_finished(folder_of(layout, stage, method), stage):
        inventory.require(layout.root, config, ["encoder"])
