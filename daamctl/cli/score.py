"""`daamctl score`."""

from __future__ import annotations

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    sets: common.Sets = None,
    if_possible: common.IfPossible = False,
    no_track: common.NoTrack = False,
    dry_run: common.DryRun = False,
) -> None:
    """Compare reconstructions with different blocks, image by image, and write the report with pictures."""
    layout, config = common.resolve(pipeline, sets)
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "score")
    from daamctl.stages import score

    common.show_path(score.run(layout, config, track=not no_track))
