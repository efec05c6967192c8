"""`daamctl mlm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import print_content, show_path


def command(
    run: Run,
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="A Hugging Face id or a local folder, with its MLM head.", show_default=False),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Folder of WikiText-2, or of text in its form; remembered.",
            show_default=False,
        ),
    ] = None,
    fusion: Annotated[
        list[str] | None,
        typer.Option(
            help="What stands between encoder and head; repeatable. Default: weighted-sum, concat and dwatt; also "
            "dwatt-scaled and base-plus-2. The last layer is always there.",
            show_default=False,
        ),
    ] = None,
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Also train encoder and head with each of them.")
    ] = False,
    mask_rate: Annotated[float, typer.Option(help="Share of tokens to mask.")] = 0.15,
    mask_seed: Annotated[int, typer.Option(min=0, help="Seed of the masks, which all ways share.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs; the one with the lowest dev loss is scored.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Blocks a step.")] = 8,
    lr: Annotated[float, typer.Option(min=0.0, help="Learning rate with --finetune.")] = 5e-5,
    fusion_lr: Annotated[float, typer.Option(min=0.0, help="Learning rate of fusions on a frozen encoder.")] = 1e-3,
    max_tokens: Annotated[int, typer.Option(min=4, help="Longest block, in tokens.")] = 512,
    name: Annotated[
        str | None, typer.Option(help="Name of the results. Default: that of the encoder.", show_default=False)
    ] = None,
) -> None:
    """Perplexity of masked tokens: an encoder with its own head, and layer fusions between the two."""
    from daamctl.config import Config, ExtractConfig, find_root
    from daamctl.stages import inventory

    root = find_root()
    inventory.require(root, Config(extract=ExtractConfig(encoder=encoder)), ["encoder"])
    from daamctl.fit.masked import MaskedSettings
    from daamctl.stages import mlm

    path = mlm.run(
        root,
        encoder,
        source=source,
        fusions=fusion or ("weighted-sum", "concat", "dwatt"),
        finetune=finetune,
        rate=mask_rate,
        mask_seed=mask_seed,
        seeds=run.seeds or [1],
        max_tokens=max_tokens,
        settings=MaskedSettings(epochs=epochs, batch_size=batch_size, lr=lr, fusion_lr=fusion_lr),
        device=run.device or "auto",
        name=name,
        force=run.force,
    )
    if run.json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    from daamctl.artifacts.masked import masked_run
    from daamctl.reporting import perplexity

    found = masked_run(path.parent).open()
    notes = (found.split, *found.notes)
    print_content([perplexity.table(found)], notes, perplexity.sentence(found), captions=False)
    show_path(path)
