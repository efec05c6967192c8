"""`daamctl new`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import show_line


def command(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new pipeline.")],
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Folder of recordings, images or texts, a table of them, tagged words, a file of embeddings, or a "
            "data set of the Hugging Face hub (Parquet files, or a folder of save_to_disk).",
        ),
    ],
    pattern: Annotated[
        str | None,
        typer.Option(
            help="Where label and speaker are in the path of a file, e.g. '{label}/{speaker}_{_}.wav'; {_} skips a "
            "part, {label:1} has one character, {_:#} digits, {label+}_ ends at the last _. Default: proposed from the "
            "names."
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="CODE=NAME,...", help="Names of the classes for the labels that are there.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=NAME,...",
            help="Columns of a table or data set, e.g. label=EmoClass,speaker=SpkrID, or a template of several, e.g. "
            "'text={title} {body},path=wavs/{id}.wav'; braces also hold a name with a comma.",
        ),
    ] = None,
) -> None:
    """Make a pipeline from recordings, images, texts, tagged words or embeddings."""
    from daamctl.config import find_root
    from daamctl.encoders.encoder_size import check_name
    from daamctl.stages import check, inventory, new

    root = find_root()
    if run.encoder is not None:
        check_name(run.encoder)
    given = {"labels": _pairs("--labels", labels), "columns": _pairs("--columns", columns)}
    made = new.run(root, name, source, pattern=pattern, **given, encoder=run.encoder, force=run.force)
    rows = ({"pattern": made.pattern} if made.pattern else {}) | made.facts
    width = max(map(len, rows))
    for heading, text in rows.items():
        show_line(f"{heading:<{width}}  {text}")
    for doubt in made.doubts:
        show_line(f"doubt: {doubt}")
    for path in filter(None, (made.manifest, made.pipeline)):
        show_line(f"wrote {path.relative_to(root)}")
    check.run(root, [name], write=True)
    then = f"daamctl run {name}; what that takes: daamctl plan {name}"
    if (obstacle := inventory.run(root, [name])[name]) is None:
        show_line(f"Next: {then}")
        return
    show_line(f"It cannot run here yet: {obstacle.reason}")
    if obstacle.fix:
        show_line(f"Next: {obstacle.fix}")
    show_line(f"Then: {then}")


def _pairs(option: str, text: str | None) -> dict[str, str]:
    from daamctl.errors import ConfigError

    pairs = {}
    # a comma separates pairs only where another A= follows, so that a template may have one
    for item in filter(None, re.split(r",(?=[^,=]*=)", text or "")):
        code, sign, name = (part.strip(" ,") for part in item.partition("="))
        if not (code and sign and name) or code in pairs or ("," in name and "{" not in name):
            example = "01=neutral,02=calm" if option == "--labels" else "label=Class,'text={a, b}' for a column 'a, b'"
            raise ConfigError(f"{option} takes A=B, each A once, got '{item}'", fix=f"e.g. {example}")
        pairs[code] = name
    return pairs
