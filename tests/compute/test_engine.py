"""What travels between workers and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.compute.engine import Units, answer, answer_task, await_files, failure, received
from daamctl.errors import ArtifactError, CorpusError, DaamctlError
from tests.compute.workers import Squares


class Stubborn(Exception):
    """It cannot be pickled back: its class wants two arguments, and remembers one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def test_results_and_units_arrive(tmp_path: Path) -> None:
    assert received(answer(lambda: {"a": 1})) == {"a": 1}
    units, (square, _) = received(answer_task(lambda: Squares(tmp_path, "cpu"), 7))
    assert (units, square) == (Units(7), 49)


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
