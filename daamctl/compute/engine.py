"""The engine and the protocol of its workers, and the messages by which workers answer.

A task is a shard to extract or a fold to train. Workers and engines are generators of results, and say meanwhile how
much is done (`Units`), for a progress bar. Messages are pickled bytes between processes of one run; they are never
written to files. Errors are pickled unchanged, so a failure reads the same wherever it happens.
"""

from __future__ import annotations

import pickle
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from daamctl.errors import ArtifactError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

AGAIN = "run the same command again to resume"
VISIBLE_WITHIN_S = 90.0  # NFS caches attributes of folders for up to 60 s (acdirmax)


@dataclass(frozen=True)
class Units:
    """Units of work that are finished since the last time, e.g. clips."""

    number: int


class Worker(Protocol[T_contra, R_co]):
    """A worker: opened once per process, then given many tasks.

    Attributes:
        description: what must be known about the work before there are tasks, e.g. the metadata of the embeddings.
        num_devices: number of devices that one worker uses.
    """

    @property
    def description(self) -> Any:
        """Description of the work, available before there are tasks."""

    @property
    def num_devices(self) -> int:
        """Number of devices that this worker uses."""

    def work(self, tasks: Sequence[T_contra]) -> Iterator[R_co | Units]:
        """Do tasks; yield one result for each. A task may be handed out again, so doing it twice must be harmless."""


class Engine(ABC):
    """Runs tasks somewhere. Arguments must be picklable. Use it as a context manager, which closes it at the end."""

    @property
    @abstractmethod
    def in_process(self) -> bool:
        """Whether a single worker is wanted, which is this process."""

    @abstractmethod
    def describe(self, open_worker: Callable[[str], Worker[Any, Any]], device: str) -> Any:
        """Open one worker where the workers will run, and return its description of the work.

        Args:
            open_worker: opens a worker on a device.
            device: the setting: auto, cpu, mps, cuda or cuda:N.
        """

    @abstractmethod
    def map(
        self,
        open_worker: Callable[[str], Worker[T, R]],
        tasks: Sequence[T],
        *,
        device: str,
        per_gpu: int | None = None,
    ) -> Iterator[R | Units]:
        """Distribute tasks over workers; yield results as they finish, in any order.

        Args:
            open_worker: opens a worker on a device; arrays in it are shared by the workers of a machine, and read-only.
            device: the setting: auto, cpu, mps, cuda or cuda:N.
            per_gpu: default limit of workers that share a GPU; None: a worker fills a GPU, or without GPUs a machine.

        Raises:
            WorkerError: a worker died, and no other can do its work.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything that this engine has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(work: Callable[[], Any]) -> bytes:
    """In a worker: return the message with what `work` gives, or with its error."""
    try:
        return pickle.dumps((work(), None))
    except Exception as error:
        return failure(error)


def answer_task(open_worker: Callable[[], Worker[T, R]], task: T) -> bytes:
    """In a worker: do one task and return the message with all its units and its result, or with its error."""

    def work() -> tuple[Units, R]:
        events = list(open_worker().work([task]))
        # one result for a task, else the worker breaks its protocol
        (result,) = (one for one in events if not isinstance(one, Units))
        # one message for a task: a progress bar needs no message for every batch
        return Units(sum(one.number for one in events if isinstance(one, Units))), result

    return answer(work)


def failure(error: Exception) -> bytes:
    """Message that carries an error, with the worker's traceback as a note."""
    text = "".join(traceback.format_exception(error))
    error.add_note(f"on a worker:\n{text}")
    try:
        pickle.loads(message := pickle.dumps((None, error)))
    except Exception:  # some libraries' errors cannot be pickled and restored
        message = pickle.dumps((None, RuntimeError(text)))
    return message


def received(message: bytes) -> Any:
    """In the main process: return what a message carries, or raise its error."""
    found, error = pickle.loads(message)
    if error is not None:
        raise error
    return found


def await_files(paths: Iterable[Path], timeout_s: float = VISIBLE_WITHIN_S) -> None:
    """Wait until files written by workers are visible in this process; network file systems cache a file's absence.

    Raises:
        ArtifactError: a file does not appear; the workers probably see another folder under this path.
    """
    deadline = time.monotonic() + timeout_s
    for path in paths:
        while not path.exists():
            if time.monotonic() > deadline:
                raise ArtifactError(
                    f"a worker wrote {path}, but it is not here",
                    fix="put the project on a file system that every machine of the cluster mounts at the same path",
                )
            time.sleep(min(1.0, timeout_s))


def set_up_worker(threads: int | None) -> None:
    """Prepare a worker process: logging, environment and torch's threads (None: as OMP_NUM_THREADS says)."""
    import torch

    from daamctl.compute.environment import prepare

    prepare()
    if threads is not None:
        torch.set_num_threads(threads)
