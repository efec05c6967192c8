"""What travels between workers and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.engines.base import MOST_TASKS, answer, await_files, chunks, failure, received
from daamctl.errors import ArtifactError, CorpusError, DaamctlError


class Stubborn(Exception):
    """It cannot be pickled back: its class wants two arguments, and remembers one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


@pytest.mark.parametrize(
    ("tasks", "workers", "sizes"),
    [(3, 2, [1, 1, 1]), (40, 2, [2] * 20), (1000, 2, [MOST_TASKS] * 125), (0, 1, []), (17, 1, [2] * 8 + [1])],
)
def test_tasks_are_handed_over_in_small_portions(tasks: int, workers: int, sizes: list[int]) -> None:
    parts = chunks(range(tasks), workers)
    assert [len(part) for part in parts] == sizes
    assert [task for part in parts for task in part] == list(range(tasks))


def test_results_and_units_arrive() -> None:
    counted: list[int] = []
    assert received(answer(lambda: {"a": 1}), counted.append) == {"a": 1}
    assert counted == [0]


def test_errors_arrive_as_they_were_or_at_least_as_text() -> None:
    with pytest.raises(CorpusError) as caught:
        received(failure(CorpusError("no images", fix="daamctl ls corpora")))
    assert (caught.value.message, caught.value.fix) == ("no images", "daamctl ls corpora")
    assert isinstance(caught.value, DaamctlError)
    assert caught.value.__notes__[0].startswith("on a worker:")
    with pytest.raises(RuntimeError, match="Stubborn: one"):
        received(failure(Stubborn("one", "two")))


def test_files_of_workers_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "late"
    monkeypatch.setattr("time.sleep", lambda seconds: path.touch())  # it appears while we wait
    await_files([path])
    with pytest.raises(ArtifactError, match=r"a worker wrote .*never, but it is not here"):
        await_files([tmp_path / "never"], timeout_s=0.0)
