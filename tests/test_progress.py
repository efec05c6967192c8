"""The log lines of long work."""

from __future__ import annotations

from daamctl.progress import Progress


def test_a_line_tells_what_is_left_until_more_is_done_than_expected() -> None:
    counter = Progress(10, "training", "epochs", done=2)
    counter.started -= 4.0
    counter.done = 6
    assert counter.line() == "training: 6 of 10 epochs, 1.0 epochs/s, 4 s left"
    counter.done = 14
    assert counter.line() == "training: 14 epochs, 3.0 epochs/s"
