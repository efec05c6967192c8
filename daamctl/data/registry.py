"""A lazy table of named objects, e.g. methods, encoders, corpora or metrics.

A table maps a name to "module:attribute". A module is imported only when one of its names is loaded, so listing names
is cheap.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from daamctl.errors import UnknownNameError


class Registry:
    """A read-only table from names to lazily imported objects.

    Args:
        kind: what the table holds, in the singular; used in error messages.
        table: name -> "package.module:attribute".
        groups: dataclasses of settings. An argument annotated with one of them, by its own name, stands for all fields
            of that dataclass.

    Raises:
        ValueError: a target is not of the form "module:attribute".
    """

    def __init__(self, kind: str, table: Mapping[str, str], *, groups: Sequence[type] = ()) -> None:
        for name, target in table.items():
            if target.count(":") != 1:
                raise ValueError(f"{kind} '{name}': target '{target}' is not of the form 'module:attribute'")
        self.kind = kind
        self._table = dict(table)
        self._groups = {group.__name__: group for group in groups}
        self._trees: dict[str, ast.Module] = {}

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

    def summary(self, name: str) -> str:
        """First line of the docstring of `name`, read from its source without importing it.

        It is the docstring of the function or class, the string below an assignment, or else that of the module.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        tree, attribute = self._parse(name)
        text = _docstring(tree, attribute) or ast.get_docstring(tree) or ""
        return text.splitlines()[0] if text else ""

    def defaults(self, name: str) -> dict[str, Any]:
        """Settings of the function that `name` stands for, with their defaults, read without importing it.

        A setting is a keyword argument with a default, or a field of a group.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        settings: dict[str, Any] = {}
        for argument, default in self._keywords(name):
            group = self._group_of(argument)
            if group is not None:
                settings |= {field.name: field.default for field in fields(group)}
            elif default is not None:
                settings[argument.arg] = ast.literal_eval(default)
        return settings

    def choices(self, name: str) -> dict[str, tuple[Any, ...]]:
        """Allowed values of the keyword arguments annotated `Literal[...]`, read from the source without importing it.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        allowed: dict[str, tuple[Any, ...]] = {}
        for argument, _ in self._keywords(name):
            group = self._group_of(argument)
            if group is not None:
                hints = get_type_hints(group)
                allowed |= {key: get_args(hint) for key, hint in hints.items() if get_origin(hint) is Literal}
            elif items := _literal_items(argument.annotation):
                allowed[argument.arg] = tuple(ast.literal_eval(item) for item in items)
        return allowed

    def arguments(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that pass settings to the function that `name` stands for: those of a group become one object.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        arguments = dict(settings)
        for argument, _ in self._keywords(name):
            group = self._group_of(argument)
            if group is not None:
                own = {field.name: arguments.pop(field.name) for field in fields(group) if field.name in arguments}
                arguments[argument.arg] = group(**own)
        return arguments

    def _keywords(self, name: str) -> list[tuple[ast.arg, ast.expr | None]]:
        """Keyword-only arguments of the function that `name` stands for, with their defaults; empty for others."""
        tree, attribute = self._parse(name)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == attribute:
                return list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
        return []

    def _group_of(self, argument: ast.arg) -> Any:
        """The group that an argument is annotated with; None for all other arguments."""
        return self._groups.get(argument.annotation.id) if isinstance(argument.annotation, ast.Name) else None

    def _parse(self, name: str) -> tuple[ast.Module, str]:
        module, attribute = self._target(name).split(":")
        if module not in self._trees:
            spec = importlib.util.find_spec(module)
            if spec is None or spec.origin is None:
                raise ImportError(f"{self.kind} '{name}': no module {module}")
            self._trees[module] = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        return self._trees[module], attribute


def _literal_items(annotation: ast.expr | None) -> list[ast.expr]:
    """The values in `Literal[...]`; none for other annotations."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal"):
        return []
    return annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]


def _docstring(tree: ast.Module, attribute: str) -> str | None:
    """Docstring of a function, class or assigned name at the top level of a module."""
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == attribute:
            return ast.get_docstring(node)
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        assigned = any(isinstance(target, ast.Name) and target.id == attribute for target in targets)
        if assigned and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return inspect.cleandoc(str(following.value.value))
    return None
