"""`daamctl importance`."""

from __future__ import annotations

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    sets: common.Sets = None,
    dry_run: common.DryRun = False,
) -> None:
    """Importance Factor maps and pictures, beside those of the untrained module."""
    layout, config = common.resolve(pipeline, sets, corpus=corpus, encoder=encoder)
    common.stop_if_dry(dry_run, config)
    from daamctl.stages import importance

    common.show_path(importance.run(layout, config))


command.__name__ = "importance"
