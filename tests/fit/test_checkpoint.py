"""When the state of a fold is saved, and what a damaged or foreign file costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from daamctl.fit import checkpoint
from daamctl.fit.checkpoint import FILE, SaveTimer, load_state, save_state
from tests.fixtures.damage import damages


def test_saving_is_as_seldom_as_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = [0.0], list[float]()
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def save() -> None:
        saved.append(now[0])
        now[0] += 2.0  # which is a twentieth of 40 s

    timer = SaveTimer(every_s=5.0, fraction=0.05)
    for _ in range(200):
        now[0] += 1.0
        timer.save_if_due(save)
    assert saved == [5.0, 47.0, 89.0, 131.0, 173.0]


def test_state_of_other_inputs_or_a_damaged_one_is_none(tmp_path: Path) -> None:
    assert load_state(tmp_path, "a") is None
    save_state(tmp_path, "a", {"trained": {"w": torch.ones(2)}, "pass": {"steps": 3}})
    state = load_state(tmp_path, "a")
    assert state is not None
    assert (state["pass"], state["trained"]["w"].tolist()) == ({"steps": 3}, [1.0, 1.0])
    assert load_state(tmp_path, "b") is None
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    assert load_state(tmp_path, "a") is None


def test_no_flip_and_no_cut_of_a_state_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_state(tmp_path, "a", {"trained": {"w": torch.ones(2)}, "history": [{"epoch": 1}], "threads": 2})
    for damaged in damages((tmp_path / FILE).read_bytes(), flips=300, cuts=100):
        (tmp_path / FILE).write_bytes(damaged)
        assert load_state(tmp_path, "a") is None
        assert not (tmp_path / FILE).exists()
    assert len(caplog.messages) == 400
