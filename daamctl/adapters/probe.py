"""The control: the encoder as it is, and a linear classifier on the mean of its last hidden state."""

from __future__ import annotations

from typing import Any

from daamctl.adapters.base import Adaptation


def linear_probe(encoder: Any) -> Adaptation:
    """Only a linear classifier on the mean of the frozen encoder's last hidden state."""
    return Adaptation(())
