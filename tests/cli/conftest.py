"""What every test of the command line needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """The command sets up logging for its process; here it must not outlive the test."""
    root, ours = logging.getLogger(), logging.getLogger("daamctl")
    handlers, level, own = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(own)
