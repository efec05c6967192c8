"""Engines: run work in this process, in one process per device, or on a cluster.

An engine knows workers, tasks and devices, but not encoders or folds. It does not affect any result, so the engine is
not part of a content key. Importing this package imports neither torch nor ray; starting work does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daamctl.data.registry import Registry

if TYPE_CHECKING:
    from daamctl.compute.engine import Engine

ENGINES = Registry(
    "engine",
    {
        "local": "daamctl.compute.local_engine:LocalEngine",
        "ray": "daamctl.compute.ray_engine:RayEngine",
    },
)


def make_engine(name: str, *, workers: int | None = None, gpus_per_worker: float | None = None) -> Engine:
    """Create an engine; it starts nothing until it has work.

    Args:
        workers: number of parallel workers; None: the engine decides.
        gpus_per_worker: GPUs per worker, possibly a fraction; None: the engine decides.

    Raises:
        UnknownNameError: no such engine.
        ConfigError: its packages are not installed, or it has no such option.
    """
    engine: Engine = ENGINES.load(name)(workers=workers, gpus_per_worker=gpus_per_worker)
    return engine
