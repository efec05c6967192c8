"""`daamctl explain`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from daamctl.cli.options import AfterPipeline, Run, complete_pipeline


def command(
    run: Run,
    setting: Annotated[
        str | None,
        typer.Argument(
            metavar="SETTING", help="Setting, e.g. train.search_lr, a section, e.g. train, or a deviation, e.g. D40."
        ),
        AfterPipeline(lambda word: word not in complete_pipeline(word)),
    ] = None,
) -> None:
    """Explain a setting: meaning, allowed values, default, what it can change, and its value in a pipeline.

    Without a setting: the ten that people set first. The pipeline may be left out. A number such as D40 stands for a
    place where the papers' code deviates from their text.
    """
    from daamctl.config import (
        PARAMS_FILE,
        PIPELINES_DIR,
        Config,
        explain,
        find_root,
        load_config,
        nearest_root,
        read_yaml,
    )
    from daamctl.errors import ConfigError

    pipeline = run.pipeline
    root = find_root() if pipeline else nearest_root()
    plain = load_config(root) if root else Config()
    own = load_config(root, pipeline) if root and pipeline else plain
    if setting is not None and re.fullmatch(r"[Dd]\d+", setting):
        from daamctl.paper.deviations import deviations, verdict

        number, every = int(setting[1:]), deviations()
        if not 1 <= number <= len(every):
            raise ConfigError(
                f"unknown deviation '{setting}'; known: D1 to D{len(every)}", fix="list them: daamctl deviations"
            )
        found = every[number - 1]
        typer.echo(f"D{found.number}: {found.finding}")
        typer.echo(f"  as published: {found.published}\n  corrected: {found.corrected}\n  switch: {found.where}")
        if pipeline:
            typer.echo(f"  {pipeline}: {verdict(found, own)}")
        return
    names = explain.FIRST if setting is None else explain.find(setting)
    file = f"{PIPELINES_DIR}/{pipeline}.yaml"
    given = read_yaml(root / file) if root and pipeline else {}
    for name in names:
        typer.echo(f"{name}: {explain.meaning(name)}")
        typer.echo(f"  default: {explain.value_of(plain, name)}; allowed: {explain.allowed(name)}")
        if pipeline:
            section, _, last = name.rpartition(".")
            inherited = PARAMS_FILE if explain.value_of(own, name) == explain.value_of(plain, name) else "its recipe"
            where = file if last in (given.get(section) or {} if section else given) else inherited
            typer.echo(f"  {pipeline}: {explain.value_of(own, name)}, from {where}")
        if len(names) == 1:
            typer.echo(f"  can change: {explain.can_change(name)}")
    if setting is None:
        typer.echo("All settings: docs/settings.md, or daamctl explain SECTION")
