"""`daamctl download`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli import common


def command(
    corpus: Annotated[
        str | None,
        typer.Argument(help="Corpus (see `daamctl ls corpora`), or pipeline.", autocompletion=common.complete_corpus),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", help="Pipeline.", autocompletion=common.complete_pipeline)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Corpus folder; a manifest: a table, or a folder with images by class; or a file of embeddings.",
        ),
    ] = None,
    sets: common.Sets = None,
    force: common.Force = False,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Download a corpus or register a local copy, validate it, and write its utterance table."""
    if corpus is None and pipeline is None:
        raise typer.BadParameter("give a corpus or a pipeline", param_hint="CORPUS")
    from daamctl.config import find_root, pipeline_names
    from daamctl.corpora import CORPORA

    if pipeline or (corpus not in CORPORA and corpus in pipeline_names(find_root())):
        corpus, pipeline = None, common.one_of(corpus, pipeline, "CORPUS")
    layout, config = common.resolve(pipeline, sets, corpus=corpus)
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "download")
    from daamctl.stages import download

    common.show_path(download.run(layout, config, source=source, force=force))
