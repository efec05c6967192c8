"""`daamctl ablate`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="Method to retrain.", autocompletion=common.complete_method),
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option("--layers", help="Also train on these layers, e.g. 9 or 22,23,24. Repeatable.")
    ] = None,
    presets: Annotated[
        list[str] | None,
        typer.Option("--preset", help="Also train on layers named in the papers, e.g. speech-9-23. Repeatable."),
    ] = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    force: common.Force = False,
    no_track: common.NoTrack = False,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Retrain on the layers of highest and of lowest importance, and compare the results."""
    groups = None
    if layers:
        try:
            groups = [[int(number) for number in group.split(",")] for group in layers]
        except ValueError:
            raise typer.BadParameter(
                f"must be layer numbers such as 9 or 22,23,24, got {' '.join(layers)}", param_hint="--layers"
            ) from None
    layout, config = common.resolve(
        pipeline,
        sets,
        corpus=corpus,
        encoder=encoder,
        ablate__method=method,
        ablate__layers=groups,
        ablate__presets=presets or None,
        train__recipe=recipe,
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "ablate")
    from daamctl.stages import ablate

    common.show_path(ablate.run(layout, config, force=force, track=not no_track))
