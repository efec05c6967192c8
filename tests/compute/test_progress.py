"""The log lines of long work."""

from __future__ import annotations

from daamctl.compute.progress import Progress


def test_a_line_tells_what_is_left_until_more_is_done_than_expected() -> None:
    counter = Progress(10, "training", "epochs", done=2)
    counter.started -= 4.0
    counter.done = 6
    assert counter.line() == "training: 6 of 10 epochs, 1.0 epochs/s, 4 s left"
    counter.done = 14
    assert counter.line() == "training: 14 epochs, 3.0 epochs/s"


def test_slow_units_and_long_times_are_readable() -> None:
    counter = Progress(100, "training", "folds", done=50)
    counter.started -= 600.0
    counter.done = 54
    assert counter.line() == "training: 54 of 100 folds, 2.5 min each, 1.9 h left"
