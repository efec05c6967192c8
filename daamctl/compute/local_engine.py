"""Local engine: work in this process, or in several processes of this machine.

Processes are spawned, because CUDA cannot be forked. Each opens its own worker at its first task. They end with this
process, whose exit closes their pipes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from daamctl.compute.devices import release_memory
from daamctl.compute.engine import AGAIN, Engine, R, T, Units, Worker, answer_task, received, set_up_worker
from daamctl.errors import ConfigError, WorkerError

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""Time that a worker process has to remove its unfinished files."""


class LocalEngine(Engine):
    """Runs work in this process, or in one process per GPU if several are visible.

    Args:
        workers: number of processes; None: one per visible GPU if the device may be any of them, else this process.
        gpus_per_worker: not supported by this engine.

    Raises:
        ConfigError: `gpus_per_worker` is given.
    """

    def __init__(self, *, workers: int | None = None, gpus_per_worker: float | None = None) -> None:
        if gpus_per_worker is not None:
            raise ConfigError(
                "--gpus-per-worker is for clusters; the local engine gives each worker one GPU",
                fix="leave it out, or use --engine ray",
            )
        self.workers = workers
        self._opened: tuple[Callable[[str], Worker[Any, Any]], Worker[Any, Any]] | None = None

    @property
    def in_process(self) -> bool:
        """Whether one worker is enough; see `Engine`."""
        return (self.workers or 1) == 1

    def describe(self, open_worker: Callable[[str], Worker[Any, Any]], device: str) -> Any:
        """Open a worker in this process and return its description. It is kept, in case no other process is needed."""
        worker = open_worker(device)
        self._opened = open_worker, worker
        return worker.description

    def map(
        self,
        open_worker: Callable[[str], Worker[T, R]],
        tasks: Sequence[T],
        *,
        device: str,
        per_gpu: int | None = None,
    ) -> Iterator[R | Units]:
        """Do tasks in this process, or in one process per device if that gives several; see `Engine`."""
        opened, self._opened = self._opened, None
        worker = opened[1] if opened is not None and opened[0] is open_worker else open_worker(device)
        devices = worker_devices(device, self.workers)
        if len(devices) > 1 and devices[0] != device:  # one device each is enough, unless a worker needs several
            devices = worker_devices(device, self.workers, worker.num_devices)
        devices = devices[: len(tasks)]
        if len(devices) < 2:
            yield from worker.work(tasks)
            return
        del worker, opened  # free their memory
        release_memory()
        log.info("%d worker processes: %s", len(devices), ", ".join(devices))
        yield from _map_in_processes(open_worker, tasks, devices)

    def close(self) -> None:
        """Release the worker."""
        self._opened = None


def worker_devices(device: str, workers: int | None, taken: int = 1) -> list[str]:
    """Device of each worker.

    Args:
        device: the setting: auto, cpu, mps, cuda or cuda:N.
        workers: number of workers; None: one per visible GPU, if the setting does not name one.
        taken: number of devices that one worker uses; if several, the GPUs are not divided among workers.
    """
    import torch

    gpus = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else 0
    if gpus < 2 or taken > 1:
        return [device] * (workers or 1)
    return [f"cuda:{number % gpus}" for number in range(workers or gpus)]


def _map_in_processes(
    open_worker: Callable[[str], Worker[T, R]], tasks: Sequence[T], devices: Sequence[str]
) -> Iterator[R | Units]:
    """Hand out tasks, each to the next idle process; there is one process per entry of `devices`."""
    import torch

    threads = max(1, torch.get_num_threads() // len(devices))
    left = deque(tasks)
    running: dict[Connection, tuple[BaseProcess, str]] = {}
    try:
        for device in devices:
            connection, process = _start(device, threads)
            running[connection] = process, device
            with _alive(process, device):
                connection.send(open_worker)
                connection.send(left.popleft())
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                with _alive(*running[pipe]):
                    message = pipe.recv_bytes()
                    if left:
                        pipe.send(left.popleft())
                    else:
                        pipe.close()
                        running.pop(pipe)[0].join()
                yield from received(message)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join(GRACE_S)
            process.kill()  # safe: files are written atomically
            process.join()


def _start(device: str, threads: int) -> tuple[Connection, BaseProcess]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, device, threads), daemon=True)
    resource_tracker.ensure_running()  # it would lift the mask
    stopping = {signal.SIGINT, signal.SIGHUP}  # a terminal sends them to all; the parent process handles them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stopping)  # which the process inherits, from its first moment
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, process


@contextmanager
def _alive(process: BaseProcess, device: str) -> Iterator[None]:
    """Name a worker process that has died if the block cannot send to it or receive from it."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        process.join()
        raise WorkerError(
            f"worker process {process.pid} on {device} has died (exit code {process.exitcode})",
            fix=f"{AGAIN}; exit code -9 is often memory that ran out: use fewer --workers",
        ) from error


def _serve(pipe: Connection, device: str, threads: int) -> None:
    """Main loop of a worker process: receives what opens it and tasks, and sends messages until the pipe is closed."""

    def stop(number: int, frame: Any) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a library may print what it makes of the end
        sys.exit(128 + number)  # removes unfinished files

    signal.signal(signal.SIGTERM, stop)
    set_up_worker(threads)
    opened: list[Worker[Any, Any]] = []

    def worker() -> Worker[Any, Any]:
        if not opened:
            opened.append(open_worker(device))
        return opened[0]

    try:
        open_worker = pipe.recv()
        while True:
            pipe.send_bytes(answer_task(worker, pipe.recv()))
    except (EOFError, ConnectionError):
        return
