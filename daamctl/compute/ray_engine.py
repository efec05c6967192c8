"""Ray engine: work on a cluster, where every worker is an actor.

It joins a cluster if there is one (`RAY_ADDRESS`, or one started on this machine); otherwise it starts Ray on this
machine for the duration of the command. Ray restarts a dead worker and gives it its task again. Finished results are in
files, so only work in progress is repeated. Source: docs.ray.io, "Ray Core: actor fault tolerance".
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from daamctl.compute.engine import (
    AGAIN,
    Engine,
    R,
    T,
    Units,
    Worker,
    answer,
    answer_task,
    received,
    set_up_worker,
)
from daamctl.errors import ConfigError, WorkerError

log = logging.getLogger(__name__)

CONNECT_S = 10.0
RETRIES = 3
"""Times that a task is retried after its worker died, so that a task that kills every worker ends eventually."""


@dataclass(frozen=True)
class WorkerResources:
    """Resources that each worker reserves.

    Args:
        num_cpus: processors, and threads, per worker.
        num_gpus: GPUs per worker, possibly a fraction.
    """

    workers: int
    num_cpus: int
    num_gpus: float


def share_of(
    nodes: Sequence[Mapping[str, float]],
    device: str,
    *,
    workers: int | None,
    gpus_per_worker: float | None,
    tasks: int,
    per_gpu: int | None = None,
) -> WorkerResources:
    """Divide a cluster among workers.

    Args:
        nodes: resources of each machine, by Ray's names: CPU, GPU.
        device: the setting: auto, cpu, mps, cuda; unless it is cpu, GPUs are used if there are any.
        workers: number of workers; None: as many as the GPUs allow; without GPUs, one per task or, if `per_gpu` is
            None, one per machine.
        gpus_per_worker: GPUs per worker; None: one, or a fraction if several workers share a GPU.
        tasks: number of tasks; more workers would be idle.
        per_gpu: limit of workers that share a GPU; None: one, and without GPUs one worker per machine.

    Raises:
        ConfigError: the device names a particular GPU, a worker needs more GPUs than a machine has, or
            CUDA is requested without GPUs.
    """
    if device.startswith("cuda") and gpus_per_worker == 0:
        raise ConfigError(
            f"--gpus-per-worker 0 leaves no GPU for device '{device}'",
            fix="use --device cpu, or leave --gpus-per-worker out",
        )
    if device.startswith("cuda:"):
        raise ConfigError(f"device '{device}' is one GPU of one machine; Ray chooses", fix="use --device auto or cuda")
    total = sum(node.get("GPU", 0) for node in nodes)
    largest = max((node.get("GPU", 0) for node in nodes), default=0)
    use_gpus = device == "cuda" or (device == "auto" and total > 0 and gpus_per_worker != 0)
    if use_gpus and (gpus_per_worker or 1 / (per_gpu or 1)) > largest:
        raise ConfigError(
            f"{gpus_per_worker or 1:g} GPU(s) per worker: machines of this Ray cluster have {largest:g} at most",
            fix="use --device cpu, or fewer --gpus-per-worker",
        )
    gpus = (gpus_per_worker or 1 / max(1, min(per_gpu or 1, -(-tasks // int(total))))) if use_gpus else 0.0
    used = [node for node in nodes if node.get("GPU", 0) >= gpus]
    cpus = [int(node.get("CPU", 0)) for node in used]
    # number of workers that fit on each machine
    room = [int(node["GPU"] / gpus + 1e-6) for node in used] if gpus else cpus
    if workers is None:
        workers = tasks if per_gpu is not None else sum(room) if gpus else len(used)
    workers = max(1, min(workers, tasks))
    at_once = min(workers, sum(room))
    sizes = range(max(cpus, default=1), 1, -1)

    def fits(size: int) -> bool:
        return sum(min(most, cpu // size) for most, cpu in zip(room, cpus, strict=True)) >= at_once

    return WorkerResources(workers, next(filter(fits, sizes), 1), gpus)


class RayEngine(Engine):
    """Runs work on a Ray cluster, or on this machine under Ray.

    Args:
        workers: number of parallel workers; None: see `share_of`.
        gpus_per_worker: GPUs per worker, possibly a fraction; None: see `share_of`.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, *, workers: int | None = None, gpus_per_worker: float | None = None) -> None:
        if find_spec("ray") is None:
            raise ConfigError("engine 'ray' is not installed", fix="pip install 'daamctl[ray]'")
        self.workers, self.gpus_per_worker = workers, gpus_per_worker
        self._connected = False

    @property
    def in_process(self) -> bool:
        """See `Engine.in_process`."""
        return False

    def describe(self, open_worker: Callable[[str], Worker[Any, Any]], device: str) -> Any:
        """Open a worker in a Ray task and return its description; Ray ends the task's process if it used a GPU."""
        ray = self._connect()
        share = self._share(device, tasks=1)
        ask = ray.remote(num_cpus=1, num_gpus=share.num_gpus, max_retries=RETRIES)(_describe)
        with _ray_errors():
            return received(ray.get(ask.remote(open_worker, self._device(device), share.num_gpus)))

    def map(
        self,
        open_worker: Callable[[str], Worker[T, R]],
        tasks: Sequence[T],
        *,
        device: str,
        per_gpu: int | None = None,
    ) -> Iterator[R | Units]:
        """Hand out tasks, each to the next idle actor; see `Engine`."""
        if not tasks:
            return
        ray = self._connect()
        from ray.exceptions import RayActorError

        share = self._share(device, tasks=len(tasks), per_gpu=per_gpu)
        log.info("%d worker(s) with %d CPU(s) and %g GPU(s) each", share.workers, share.num_cpus, share.num_gpus)
        # sent to each machine once; in a list, an actor receives the reference and asks for the object only once
        shared = [ray.put(open_worker)]
        options = {"num_cpus": share.num_cpus, "num_gpus": share.num_gpus}
        kind = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **options)(_Actor)
        actors = [kind.remote(self._device(device), share.num_gpus) for _ in range(share.workers)]
        # a task is given to an actor only once Ray has found room for the actor
        running: dict[Any, tuple[Any, int | None]] = {actor.ready.remote(): (actor, None) for actor in actors}
        left = deque(enumerate(tasks))
        done = 0
        try:
            with _ray_errors():
                while done < len(tasks):
                    (reference,), _ = ray.wait(list(running), num_returns=1)
                    actor, number = running.pop(reference)
                    try:
                        message = ray.get(reference)
                    except RayActorError as error:
                        if number is None:
                            raise
                        raise WorkerError(
                            f"{RETRIES + 1} workers died at the same work, number {number + 1}", fix=AGAIN
                        ) from error
                    if left:
                        following, task = left.popleft()
                        running[actor.work.remote(shared, task)] = (actor, following)
                    else:
                        ray.kill(actor)  # what it has reserved may be needed to restart one that has died
                    if number is not None:
                        done += 1
                        yield from received(message)
        finally:
            for actor in actors:
                ray.kill(actor)

    def close(self) -> None:
        """Leave the cluster; shut it down if this engine started it."""
        if self._connected:
            import ray

            ray.shutdown()
            self._connected = False

    def _share(self, device: str, *, tasks: int, per_gpu: int | None = None) -> WorkerResources:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return share_of(
            nodes,
            device,
            workers=self.workers,
            gpus_per_worker=self.gpus_per_worker,
            tasks=tasks,
            per_gpu=per_gpu,
        )

    def _device(self, device: str) -> str:
        """Device of each worker: the CPU if no GPUs are wanted."""
        return "cpu" if device == "auto" and self.gpus_per_worker == 0 else device

    def _connect(self) -> Any:
        """Join or start Ray, unless this process (or a program that uses daamctl as a library) has already done so."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        if not ray.is_initialized():
            if not _join():
                _start()
            self._connected = True
        return ray


def _join() -> bool:
    """Join the cluster at RAY_ADDRESS, else one running on this machine; False if there is none."""
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if address == "local":
        return False
    try:
        _knock(address or "auto")
        ray.init(address=address or "auto", logging_level=logging.ERROR)
    except ConnectionError as error:
        if address is None:
            return False
        raise WorkerError(
            f"no Ray cluster at RAY_ADDRESS={address}", fix="start it: ray start --head; or unset RAY_ADDRESS"
        ) from error
    log.info("joined the Ray cluster at %s", ray.get_runtime_context().gcs_address)
    return True


def _knock(address: str) -> None:
    """Fail fast if nothing listens at an address; Ray itself would retry for minutes and log many lines.

    Raises:
        ConnectionError: nothing listens at HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            raise ConnectionError(str(error)) from error


def _start() -> None:
    """Start Ray on this machine. A random token, valid for this process only, keeps other users out."""
    import ray

    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Report failures of Ray itself as one short message; let errors of the tasks pass unchanged."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise WorkerError(f"Ray: {type(error).__name__}: {first.strip()[:300]}", fix=AGAIN) from error


def _set_up(num_gpus: float) -> None:
    """Prepare a worker process; hide all GPUs from one that has reserved none, which Ray does not do."""
    if not num_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch reads it when it first uses CUDA
    set_up_worker(None)  # Ray sets OMP_NUM_THREADS to num_cpus


def _describe(open_worker: Callable[[str], Worker[Any, Any]], device: str, num_gpus: float) -> bytes:
    _set_up(num_gpus)
    return answer(lambda: open_worker(device).description)


class _Actor:
    """A worker as an actor; the worker is opened at the first task, so that its errors are returned."""

    def __init__(self, device: str, num_gpus: float) -> None:
        _set_up(num_gpus)
        self._device = device
        self._worker: Worker[Any, Any] | None = None

    def ready(self) -> None:
        """Return once the actor runs."""

    def work(self, shared: Sequence[Any], task: Any) -> bytes:
        """Do one task; return the message with its result. `shared`: a reference to what opens the worker."""

        def opened() -> Worker[Any, Any]:
            if self._worker is None:
                import ray

                self._worker = ray.get(shared[0])(self._device)
            return self._worker

        return answer_task(opened, task)
