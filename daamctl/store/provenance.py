"""Provenance of results: library versions, commit, device, and a hash of the code that computed them."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
from functools import cache, lru_cache
from pathlib import Path

PACKAGES = (
    "torch",
    "torchaudio",
    "transformers",
    "peft",
    "numpy",
    "pyarrow",
    "polars",
    "scikit-learn",
    "mlflow",
    "dvc",
)


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


DECISIVE = ("daamctl", "params.yaml", "pipelines")
"""Files of a project that a result can depend on: code and settings."""
FOLD_CODE = ("daamctl.fit", "daamctl.artifacts.splits", "daamctl.data.spans")
"""Modules that a fold depends on, besides its method's or adapter's own."""


def git_commit(root: Path) -> str | None:
    """Commit of the project, with `+changes` if its code or settings differ from it; None outside git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *DECISIVE)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def device_name(device: str) -> str:
    """The device with its model name, e.g. `cuda (NVIDIA A100)`."""
    if device.startswith("cuda"):
        import torch

        return f"{device} ({torch.cuda.get_device_name(device)})"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{device} ({model})"


@lru_cache
def code_hash(module: str, within: str | tuple[str, ...], parts: tuple[str, ...] = ()) -> str:
    """Hash of the code of a module and of the modules that it imports from `within`.

    The hash covers the syntax trees. It ignores comments, docstrings (every statement that is only a string) and
    layout, so editing these does not invalidate finished results.

    Args:
        module: dotted name; its source is read but not imported.
        within: dotted package, or several; imports from outside them are not followed.
        parts: modules and packages in them; if given, imports from outside them are not followed either.

    Raises:
        ImportError: there is no such module.
    """
    trees: dict[str, str] = {}
    packages = (within,) if isinstance(within, str) else within
    todo = [module]
    while todo:
        name = todo.pop()
        # the `__init__` of our own packages holds only the table
        if name in trees or (name in packages and name.partition(".")[0] == "daamctl"):
            continue
        code = _code_of(name)
        if code is None:
            if name == module:
                raise ImportError(f"no module {module}")
            continue  # an imported name that is not a module
        trees[name], imports = code
        for found in imports:
            is_part = not parts or any(f"{found}.".startswith(f"{part}.") for part in parts)
            if is_part and any(f"{found}.".startswith(f"{package}.") for package in packages):
                todo.append(found)
    text = "\n".join(f"{name}\n{trees[name]}" for name in sorted(trees))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache  # a command hashes many modules of the same package
def _code_of(module: str) -> tuple[str, list[str]] | None:
    """Code of a module without comments, docstrings and layout, and what it imports; None: there is no such module."""
    source = _source(module)
    if source is None:
        return None
    tree = ast.parse(source.read_text(encoding="utf-8"))
    imports = _imports(tree, module if source.name == "__init__.py" else module.rpartition(".")[0])
    # unparsed text is the same in every Python version, a dumped tree is not
    return ast.unparse(_without_strings(tree)), imports


def _source(module: str) -> Path | None:
    """File of a module, located without importing it; None if there is no such module."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if rest:
        paths = [Path(folder, *rest) for folder in spec.submodule_search_locations or []]
        files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    else:
        files = [Path(spec.origin)] if spec.origin is not None and spec.origin.endswith(".py") else []
    return next((file for file in files if file.is_file()), None)


def _imports(tree: ast.Module, package: str) -> list[str]:
    """Dotted names that a module of a package imports in any form; some may be functions, not modules."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def _without_strings(tree: ast.Module) -> ast.Module:
    """Remove every statement that is only a string: docstrings, including those below a constant or an attribute."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # a lambda's body is an expression
                kept = [one for one in block if not _is_string(one)]
                setattr(node, name, kept or [ast.Pass()] if block else [])
    return tree


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
