"""One generic lazy table of named things: methods, encoders, corpora, metrics.

A table maps a name to "module:attribute". Nothing is imported before `load`, so listing names costs nothing and no
import has a side effect.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from daamctl.errors import UnknownNameError


class Registry:
    """A read-only table from names to lazily imported objects.

    Args:
        kind: what the table holds, in the singular; used in error messages.
        table: name -> "package.module:attribute".

    Raises:
        ValueError: a target is not of the form "module:attribute".
    """

    def __init__(self, kind: str, table: Mapping[str, str]) -> None:
        for name, target in table.items():
            if target.count(":") != 1:
                raise ValueError(f"{kind} '{name}': target '{target}' is not of the form 'module:attribute'")
        self.kind = kind
        self._table = dict(table)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def module_of(self, name: str) -> str:
        """Dotted module that defines `name`, without importing it.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        return self._target(name).split(":")[0]

    def load(self, name: str) -> Any:
        """Import and return the object called `name`.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        module, attribute = self._target(name).split(":")
        return getattr(importlib.import_module(module), attribute)

    def _target(self, name: str) -> str:
        if name not in self._table:
            raise UnknownNameError(self.kind, name, self._table)
        return self._table[name]
