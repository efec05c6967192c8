"""`daamctl segment`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    tail: Annotated[
        str | None, typer.Option(help="What to do with the short last clip of a recording: keep, pad, merge or drop.")
    ] = None,
    write_audio: Annotated[
        bool | None, typer.Option("--write-audio", help="Also write the clips as FLAC files.")
    ] = None,
    sets: common.Sets = None,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Cut recordings into clips of at most 5 s. Writes a table and copies no audio. Texts and images stay whole."""
    layout, config = common.resolve(pipeline, sets, corpus=corpus, segment__tail=tail, segment__write_audio=write_audio)
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "segment")
    from daamctl.stages import segment

    common.show_path(segment.run(layout, config))
