"""Every stage of one pipeline, in order, in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
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
    from daamctl.stages import ablate, check, download, evaluate, extract, finetune, importance, report, segment, train

    check.run(layout.root, [layout.pipeline] if layout.pipeline else None)
    steps: list[tuple[str, Callable[[], Path]]] = [
        ("download", partial(download.run, layout, config, source=source)),
        ("segment", partial(segment.run, layout, config)),
        ("extract", partial(extract.run, layout, config)),
        *((f"train {name}", partial(train.run, layout, config, method=name, track=track)) for name in config.methods),
        *(
            (f"finetune {name}", partial(finetune.run, layout, config, method=name, track=track))
            for name in config.finetunes
        ),
        ("evaluate", partial(evaluate.run, layout, config)),
        ("ablate", partial(ablate.run, layout, config, track=track)),
        ("importance", partial(importance.run, layout, config)),
        ("report", partial(report.run, layout, config, track=track)),
    ]
    path = layout.root
    for number, (name, step) in enumerate(steps, start=1):
        log.info("[%d/%d] %s", number, len(steps), name)
        path = step()
    return path
