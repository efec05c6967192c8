"""Where work runs: in this process, in one process per device, or on a cluster.

An engine knows workers, tasks and devices, and nothing of encoders or folds. It decides no value: which one ran leaves
no trace in a content key. Nothing here imports torch or ray before work begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daamctl.registry import Registry

if TYPE_CHECKING:
    from daamctl.engines.base import Engine

ENGINES = Registry(
    "engine",
    {
        "local": "daamctl.engines.local:LocalEngine",
        "ray": "daamctl.engines.ray:RayEngine",
    },
)


def make_engine(name: str, *, workers: int | None = None, gpus_per_worker: float | None = None) -> Engine:
    """Make an engine; nothing is started before it has work.

    Args:
        name: a name from the table.
        workers: workers at once; None: as the engine finds right.
        gpus_per_worker: GPUs, or the share of one, for each; None: as the engine finds right.

    Raises:
        UnknownNameError: no such engine.
        ConfigError: its packages are not installed, or it has no such option.
    """
    engine: Engine = ENGINES.load(name)(workers=workers, gpus_per_worker=gpus_per_worker)
    return engine
