"""`daamctl evaluate`."""

from __future__ import annotations

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    seeds: common.Seeds = None,
    recipe: common.Recipe = None,
    sets: common.Sets = None,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Score every method per clip and per utterance, and test each one against the reference."""
    layout, config = common.resolve(
        pipeline, sets, corpus=corpus, encoder=encoder, train__seeds=common.seed_list(seeds), train__recipe=recipe
    )
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "evaluate")
    from daamctl.stages import evaluate

    common.show_path(evaluate.run(layout, config))
