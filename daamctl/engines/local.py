"""Local engine: work in this process, or in one process per device.

Processes are spawned, because CUDA cannot be forked. Each has its own worker, opened at its first task. They end with
this process, whose exit closes their pipes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from daamctl.devices import release_memory
from daamctl.engines.base import AGAIN, EngineBase, R, S, T, Worker, answers, chunks, received, set_up_worker
from daamctl.errors import ConfigError, WorkerError

log = logging.getLogger(__name__)

PORTION_DONE = b""


class LocalEngine(EngineBase):
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
                "--gpus-per-worker says what a cluster is to reserve, the local engine takes one GPU per worker",
                fix="leave it out, or use --engine ray",
            )
        self.workers = workers
        self._worker: Worker[Any, Any] | None = None

    def runs_here(self) -> bool:
        """See `Engine.runs_here`: only `work` starts processes."""
        if (self.workers or 1) > 1:
            raise ConfigError(
                f"--workers {self.workers}: the local engine trains one fold after the other (allowed: 1)",
                fix=f"leave --workers out, or train folds side by side: --engine ray --workers {self.workers}",
            )
        return True

    def facts(self, open_worker: Callable[[str], Worker[Any, Any]], device: str) -> Any:
        """Open a worker in this process and return its facts. It is kept, in case no further process is needed."""
        self._worker = open_worker(device)
        return self._worker.facts

    def work(
        self,
        open_worker: Callable[[str], Worker[T, R]],
        device: str,
        tasks: Sequence[T],
        advance: Callable[[int], None],
    ) -> Iterator[R]:
        """Do tasks in this process, or in one process per device if that gives several; see `Engine`."""
        worker = self._worker or open_worker(device)
        devices = worker_devices(device, self.workers)
        if len(devices) > 1 and devices[0] != device:  # one device each is enough, unless a worker needs several
            devices = worker_devices(device, self.workers, worker.num_devices)
        parts = chunks(tasks, len(devices))
        if min(len(devices), len(parts)) < 2:
            yield from worker.work(tasks, advance)
            return
        self._worker = None
        del worker  # free its memory
        release_memory()
        log.info("%d worker processes: %s", len(devices), ", ".join(devices))
        yield from _by_processes(open_worker, devices[: len(parts)], parts, advance)

    def each(
        self, call: Callable[[S, T], R], shared: S, tasks: Sequence[T], *, device: str, per_gpu: int
    ) -> Iterator[tuple[T, R]]:
        """Run tasks one after another in this process; see `Engine.each`."""
        for task in tasks:
            yield task, call(shared, task)

    def close(self) -> None:
        """Release the worker."""
        self._worker = None


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


def _by_processes(
    open_worker: Callable[[str], Worker[T, R]],
    devices: Sequence[str],
    parts: Sequence[Sequence[T]],
    advance: Callable[[int], None],
) -> Iterator[R]:
    """Hand out chunks, each to the next idle process."""
    import torch

    threads = max(1, torch.get_num_threads() // len(devices))
    left = iter(parts)
    running: dict[Connection, tuple[BaseProcess, str]] = {}
    try:
        for device in devices:
            here, process = _start(open_worker, device, threads)
            running[here] = process, device
            here.send(next(left))
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                message = _message(pipe, *running[pipe])
                if message != PORTION_DONE:
                    yield received(message, advance)
                elif (following := next(left, None)) is not None:
                    pipe.send(following)
                else:
                    pipe.close()
                    running.pop(pipe)[0].join()
    finally:
        for process, _ in running.values():
            process.kill()  # safe: files are written atomically
            process.join()


def _start(open_worker: Callable[[str], Worker[T, R]], device: str, threads: int) -> tuple[Connection, BaseProcess]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, open_worker, device, threads), daemon=True)
    process.start()
    there.close()
    return here, process


def _message(pipe: Connection, process: BaseProcess, device: str) -> bytes:
    try:
        return pipe.recv_bytes()
    except (EOFError, ConnectionError) as error:
        process.join()
        raise WorkerError(
            f"worker process {process.pid} on {device} has died (exit code {process.exitcode})",
            fix=f"{AGAIN}; exit code -9 is often memory that ran out: use fewer --workers",
        ) from error


def _serve(pipe: Connection, open_worker: Callable[[str], Worker[T, R]], device: str, threads: int) -> None:
    """Main loop of a worker process: receives chunks and sends messages until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    set_up_worker(threads)
    opened: list[Worker[T, R]] = []

    def worker() -> Worker[T, R]:
        if not opened:
            opened.append(open_worker(device))
        return opened[0]

    while True:
        try:
            tasks = pipe.recv()
            for message in answers(worker, tasks):
                pipe.send_bytes(message)
            pipe.send_bytes(PORTION_DONE)
        except (EOFError, ConnectionError):
            return
