"""A lazy table of named objects, e.g. methods, encoders, corpora or metrics.

A table maps a name to "module:attribute". A module is imported only when one of its names is loaded, so listing names
is cheap. Installed packages may add names by entry points.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from daamctl.errors import ConfigError, UnknownNameError

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""What a package may call its objects; they also name folders."""


@dataclass(frozen=True)
class Added:
    """An object of another package.

    Args:
        target: "module:attribute".
        package: the package that has the entry point.
    """

    target: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


class Registry:
    """A read-only table from names to lazily imported objects.

    Args:
        kind: what the table holds, in the singular; used in error messages.
        table: name -> "package.module:attribute".
        groups: dataclasses of settings. An argument annotated with one of them, by its own name, stands for all fields
            of that dataclass.
        entry_points: group of the entry points by which other packages add names; None: they cannot.
        suffix: setting of which the other choices make variants of a name, e.g. `daam-v1-mlp`; empty: there are none.

    Raises:
        ValueError: a target is not of the form "module:attribute".
    """

    def __init__(
        self,
        kind: str,
        table: Mapping[str, str],
        *,
        groups: Sequence[type] = (),
        entry_points: str | None = None,
        suffix: str = "",
    ) -> None:
        for name, target in table.items():
            if target.count(":") != 1:
                raise ValueError(f"{kind} '{name}': target '{target}' is not of the form 'module:attribute'")
        self.kind = kind
        self._table = dict(table)
        self._groups = {group.__name__: group for group in groups}
        self._entry_points, self._suffix = entry_points, suffix
        self._trees: dict[str, ast.Module] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self.added

    def __iter__(self) -> Iterator[str]:
        return iter([*self._table, *self.added])

    def __len__(self) -> int:
        return len(self._table) + len(self.added)

    @cached_property
    def added(self) -> dict[str, Added]:
        """What other packages add, by name.

        Raises:
            ConfigError: a name is taken, or cannot name a folder.
        """
        if self._entry_points is None:
            return {}
        from importlib import metadata  # only now, because it takes as long to import as the rest of this

        found: dict[str, Added] = {}
        for one in metadata.entry_points(group=self._entry_points):
            own = Added(one.value, one.dist.name, one.dist.version) if one.dist else Added(one.value, "unknown", "")
            base = one.name.rpartition("-")[0]
            taken = one.name in self._table or (base in self._table and one.name in self.variants(base))
            owner = "daamctl" if taken else found[one.name].package if one.name in found else None
            problem = None if owner is None else f"{owner} has a {self.kind} of this name"
            if not NAME.fullmatch(one.name):
                problem = "names have lower-case letters and digits, with single hyphens between them"
            elif one.value.count(":") != 1:
                problem = f"its target '{one.value}' is not of the form 'module:function'"
            if problem:
                raise ConfigError(
                    f"{self.kind} '{one.name}' of the package {own.package}: {problem}",
                    fix=f"correct its entry points, or remove it: pip uninstall {own.package}",
                )
            found[one.name] = own
        return found

    def module_of(self, name: str) -> str:
        """Dotted module that defines `name`, without importing it.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        return self._target(name).split(":")[0]

    def package_of(self, name: str) -> Added | None:
        """The package that added a name; None for those of the table.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        self._target(name)
        return None if name in self._table else self.added[name]

    def modules_of(self, name: str) -> tuple[str, ...]:
        """Top-level modules of the package that added a name; empty for names of the table.

        They are those that its installation lists or, where it is edited in place, all beside the module of the name.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        if (added := self.package_of(name)) is None:
            return ()
        from importlib import metadata  # see `added`

        top = self.module_of(name).partition(".")[0]
        files = [file for one in metadata.distributions(name=added.package) for file in one.files or ()]
        modules = {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
        spec = importlib.util.find_spec(top)
        if top not in modules and spec is not None:
            places = [*(spec.submodule_search_locations or []), spec.origin or ""]
            modules = {top, *(beside.stem for beside in Path(places[0]).parent.iterdir())}
        return tuple(sorted(modules - {"daamctl"}))

    def load(self, name: str) -> Any:
        """Import and return the object called `name`.

        Raises:
            UnknownNameError: `name` is not in the table.
            ConfigError: the package that added it does not work.
        """
        module, attribute = self._target(name).split(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # other people's code may raise anything
            if name in self._table:
                raise
            raise self._broken(name, f"{type(error).__name__}: {error}") from error

    def _target(self, name: str) -> str:
        if name in self._table:
            return self._table[name]
        if name not in self.added:
            raise UnknownNameError(self.kind, name, self, is_open=self._entry_points is not None)
        return self.added[name].target

    def _broken(self, name: str, why: str) -> ConfigError:
        module = self._target(name).partition(":")[0]
        return ConfigError(
            f"{self.kind} '{name}' of the package {self.added[name].package}: {why}",
            fix=f"correct the package; to see more: python -c 'import {module}'",
        )

    def summary(self, name: str) -> str:
        """First line of the docstring of `name`, read from its source without importing it.

        It is the docstring of the function or class, the string below an assignment, or else that of the module.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        tree, attribute = self._parse(name)
        text = _docstring(tree, attribute) or ast.get_docstring(tree) or ""
        return text.splitlines()[0] if text else ""

    def variants(self, name: str) -> list[str]:
        """Full names of the variants of `name`, e.g. `daam-v1-mlp` of `daam-v1`.

        Raises:
            UnknownNameError: `name` is not in the table.
        """
        default = self.defaults(name).get(self._suffix)
        return [f"{name}-{choice}" for choice in self.choices(name).get(self._suffix, ()) if choice != default]

    def defaults(self, name: str) -> dict[str, Any]:
        """Settings of the function that `name` stands for, with their defaults, read without importing it.

        A setting is an argument with a default, or a field of a group.

        Raises:
            UnknownNameError: `name` is not in the table.
            ConfigError: the package that added it has an argument without a plain default.
        """
        settings: dict[str, Any] = {}
        for argument, default in self._keywords(name):
            group = self._group_of(argument)
            if group is not None:
                settings |= {field.name: field.default for field in fields(group)}
            elif default is not None:
                settings[argument.arg] = self._value(name, f"the default of {argument.arg}", default)
            elif name not in self._table:
                groups = " or ".join(self._groups)
                raise self._broken(name, f"its argument {argument.arg} needs a default, or the annotation {groups}")
        return settings

    def choices(self, name: str) -> dict[str, tuple[Any, ...]]:
        """Allowed values of the arguments annotated `Literal[...]`, read from the source without importing it.

        Raises:
            UnknownNameError: `name` is not in the table.
            ConfigError: the package that added it has an argument whose choices are not plain values.
        """
        allowed: dict[str, tuple[Any, ...]] = {}
        for argument, _ in self._keywords(name):
            group = self._group_of(argument)
            if group is not None:
                hints = get_type_hints(group)
                allowed |= {key: get_args(hint) for key, hint in hints.items() if get_origin(hint) is Literal}
            elif items := _literal_items(argument.annotation):
                allowed[argument.arg] = tuple(self._value(name, f"a value of {argument.arg}", item) for item in items)
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
        """Arguments but the first of the function that `name` stands for, with their defaults; empty for others."""
        node = _function(*self._parse(name))
        if node is None:
            return []
        if len(node.args.posonlyargs) > 1:
            raise self._broken(name, "its settings cannot stand before a /")
        usual = [*node.args.posonlyargs, *node.args.args]
        defaults = [*[None] * (len(usual) - len(node.args.defaults)), *node.args.defaults]
        keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        return [*list(zip(usual, defaults, strict=True))[1:], *keywords]

    def _value(self, name: str, what: str, node: ast.expr) -> Any:
        """A value in the source."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError) as error:
            if name in self._table:
                raise
            raise self._broken(name, f"{what} must be a plain value, got {ast.unparse(node)}") from error

    def _group_of(self, argument: ast.arg) -> Any:
        """The group that an argument is annotated with; None for all other arguments."""
        written = argument.annotation
        name: str = written.attr if isinstance(written, ast.Attribute) else getattr(written, "id", "")
        return self._groups.get(name)

    def _parse(self, name: str) -> tuple[ast.Module, str]:
        module, attribute = self._target(name).split(":")
        if module in self._trees:
            return self._trees[module], attribute
        try:
            spec = importlib.util.find_spec(module)
            if spec is None or spec.origin is None:
                raise ImportError(f"{self.kind} '{name}': no module {module}")
            tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        except Exception as error:
            if name in self._table:
                raise
            raise self._broken(name, f"{type(error).__name__}: {error}") from error
        if name not in self._table and _function(tree, attribute) is None:
            raise self._broken(name, f"{spec.origin} does not define a function '{attribute}'")
        self._trees[module] = tree
        return tree, attribute


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


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
