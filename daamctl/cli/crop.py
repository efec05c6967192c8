"""`daamctl crop`."""

from __future__ import annotations

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    sets: common.Sets = None,
    if_possible: common.IfPossible = False,
    dry_run: common.DryRun = False,
) -> None:
    """Choose square crops of images, for pipelines that reconstruct them. Writes a table and copies no pixels."""
    layout, config = common.resolve(pipeline, sets)
    common.stop_if_dry(dry_run, config)
    common.stop_if_impossible(if_possible, layout, config, "crop")
    from daamctl.stages import crop

    common.show_path(crop.run(layout, config))
