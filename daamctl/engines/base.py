"""What an engine and its workers are, and the messages by which workers answer.

Messages are pickled bytes between processes of one run, never files. An error travels as it is, so the same failure has
the same words wherever it happens.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from daamctl.errors import ArtifactError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

AGAIN = "the same command goes on where it was"
VISIBLE_WITHIN_S = 90.0  # NFS keeps attributes of folders for up to 60 s (acdirmax)
MOST_TASKS = 8
"""Tasks handed over at once, at most: reading ahead works within them."""


class Worker(Protocol[T_contra, R_co]):
    """What is opened once per worker and then does many tasks.

    Attributes:
        facts: what must be known of the work before there are tasks.
        num_devices: devices that it takes by itself.
    """

    @property
    def facts(self) -> Any:
        """See above."""

    @property
    def num_devices(self) -> int:
        """See above."""

    def work(self, tasks: Sequence[T_contra], advance: Callable[[int], None]) -> Iterator[R_co]:
        """Do some tasks; one result for each. Doing a task twice must do no harm: it may be handed over again.

        Args:
            tasks: what to do.
            advance: called with the number of units that are finished.
        """


class Engine(Protocol):
    """Runs work somewhere. What is passed to it must be picklable; it is closed at the end of a `with` block."""

    def runs_here(self) -> bool:
        """Whether `each` would run in this process.

        Raises:
            ConfigError: several workers were asked for, and `each` has only this process.
        """

    def facts(self, open_worker: Callable[[str], Worker[Any, Any]], device: str) -> Any:
        """Open one worker where workers run, and return its facts.

        Args:
            open_worker: opens a worker on a device.
            device: the setting: auto, cpu, mps, cuda or cuda:N.
        """

    def work(
        self,
        open_worker: Callable[[str], Worker[T, R]],
        device: str,
        tasks: Sequence[T],
        advance: Callable[[int], None],
    ) -> Iterator[R]:
        """Do tasks by as many workers as there are; yields results as they come, in any order.

        Raises:
            WorkerError: a worker died, and its work cannot be done by another.
        """

    def each(
        self, call: Callable[[S, T], R], shared: S, tasks: Sequence[T], *, device: str, per_gpu: int
    ) -> Iterator[tuple[T, R]]:
        """Run independent tasks side by side; yields (task, result) as they come, in any order.

        Args:
            call: what to do, given `shared` and a task.
            shared: what all of them read; arrays in it are shared by the workers of a machine, and read-only.
            tasks: what to do.
            device: the setting.
            per_gpu: tasks on one GPU, at most, where nothing else was asked for.

        Raises:
            WorkerError: a worker died too often.
        """

    def close(self) -> None:
        """Stop what this engine has started."""

    def __enter__(self) -> Self:
        """Nothing is started yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""


class EngineBase:
    """An engine as a `with` block."""

    def close(self) -> None:
        """Stop what this engine has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def chunks(tasks: Sequence[T], workers: int) -> list[Sequence[T]]:
    """Tasks in the chunks that are handed over: several where there are many, one each towards small numbers."""
    size = max(1, min(MOST_TASKS, len(tasks) // (8 * workers)))
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def answers(open_worker: Callable[[], Worker[T, R]], tasks: Sequence[T]) -> Iterator[bytes]:
    """On a worker: do tasks; yields a message per result, and one on what stopped it."""
    counted = 0

    def advance(units: int) -> None:
        nonlocal counted
        counted += units

    try:
        for result in open_worker().work(tasks, advance):
            yield pickle.dumps((counted, result, None))
            counted = 0
    except Exception as error:
        yield failure(error)


def answer(call: Callable[[], R]) -> bytes:
    """On a worker: the message with the result of one call, or with its error."""
    try:
        return pickle.dumps((0, call(), None))
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> bytes:
    """A message that carries an error, with the worker's traceback as a note."""
    text = "".join(traceback.format_exception(error))
    error.add_note(f"on a worker:\n{text}")
    try:
        pickle.loads(message := pickle.dumps((0, None, error)))
    except Exception:  # an error of some library that does not survive it
        message = pickle.dumps((0, None, RuntimeError(text)))
    return message


def received(message: bytes, advance: Callable[[int], None] = lambda units: None) -> Any:
    """Here: the result that a message carries; its error is raised as it was."""
    units, result, error = pickle.loads(message)
    if error is not None:
        raise error
    advance(units)
    return result


def await_files(paths: Iterable[Path], timeout_s: float = VISIBLE_WITHIN_S) -> None:
    """Wait until files that workers wrote are seen here: clients of a network file system remember what was absent.

    Raises:
        ArtifactError: one does not appear; then the workers see another folder under this path.
    """
    deadline = time.monotonic() + timeout_s
    for path in paths:
        while not path.exists():
            if time.monotonic() > deadline:
                raise ArtifactError(
                    f"a worker wrote {path}, but it is not here",
                    fix="hold the project on a file system that every machine of the cluster mounts at the same path",
                )
            time.sleep(min(1.0, timeout_s))


def set_up_worker(threads: int | None) -> None:
    """Prepare the process of a worker: log lines, environment, threads of torch (None: what OMP_NUM_THREADS says)."""
    import torch

    from daamctl.environment import prepare

    prepare()
    if threads is not None:
        torch.set_num_threads(threads)
