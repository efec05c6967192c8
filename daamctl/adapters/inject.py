"""Insert peft's adapters into an encoder in place, without a wrapper, so that its call does not change."""

from __future__ import annotations

import re
from typing import Any

from torch import nn


def inject(model: nn.Module, config: Any) -> None:
    """Put adapters of one peft configuration into a model.

    peft would match a list of names also as endings of other names; `exactly` gives what it takes to the letter.

    Args:
        model: changed in place; its own weights are frozen.
    """
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, model)


def exactly(names: tuple[str, ...]) -> str:
    """A pattern that matches these names and no others."""
    return "|".join(map(re.escape, names))
