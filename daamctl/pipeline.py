"""Run all stages of one pipeline, in order, in this process."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from daamctl.config import Config
from daamctl.layout import Layout
from daamctl.stage_table import STAGES

log = logging.getLogger(__name__)


def run(layout: Layout, config: Config, *, source: Path | None = None, track: bool = True) -> Path:
    """Run download to report; finished work with identical inputs is kept.

    Args:
        layout: locations of artifacts.
        config: all settings.
        source: folder or manifest of the corpus, if it is not registered yet.
        track: log to MLflow.

    Returns:
        The report.
    """
    importlib.import_module("daamctl.stages.check").run(layout.root, [layout.pipeline] if layout.pipeline else None)
    steps: list[tuple[str, Callable[[], Path]]] = []
    for name, spec in STAGES.items():
        options: dict[str, Any] = {"track": track} if spec.tracked else {}
        if name == "download":
            options["source"] = source
        step: partial[Path] = partial(importlib.import_module(f"daamctl.stages.{name}").run, layout, config, **options)
        if spec.for_each is None:
            steps.append((name, step))
        else:
            steps += [(f"{name} {entry}", partial(step, method=entry)) for entry in getattr(config, spec.for_each)]
    path = layout.root
    for number, (name, work) in enumerate(steps, start=1):
        log.info("[%d/%d] %s", number, len(steps), name)
        path = work()
    return path
