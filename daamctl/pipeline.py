"""Every stage of one pipeline, in order, in this process."""

from __future__ import annotations

import logging
from pathlib import Path

from daamctl.config import Config
from daamctl.layout import Layout

log = logging.getLogger(__name__)


def run(layout: Layout, config: Config, *, source: Path | None = None, track: bool = True) -> Path:
    """Run download to report; finished work made from identical inputs is kept.

    Args:
        layout: where artifacts lie.
        config: all settings.
        source: folder or manifest of the corpus, if it is not registered yet.
        track: log to MLflow.

    Returns:
        The report.
    """
    from daamctl.stages import ablate, check, download, evaluate, extract, importance, report, segment, train

    check.run(layout.root, [layout.pipeline] if layout.pipeline else None)
    steps = (
        ("download", lambda: download.run(layout, config, source=source)),
        ("segment", lambda: segment.run(layout, config)),
        ("extract", lambda: extract.run(layout, config)),
        *((f"train {name}", lambda name=name: train.run(layout, config, method=name, track=track)) for name in config.methods),
        ("evaluate", lambda: evaluate.run(layout, config)),
        ("importance", lambda: importance.run(layout, config)),
        ("ablate", lambda: ablate.run(layout, config, track=track)),
        ("report", lambda: report.run(layout, config)),
    )
    path = layout.root
    for number, (name, step) in enumerate(steps, start=1):
        log.info("[%d/%d] %s", number, len(steps), name)
        path = step()
    return path
