"""The files that a new project starts with. The wheel holds a copy of them; a checkout is such a project itself."""

from __future__ import annotations

from pathlib import Path

PATTERNS = (
    "dvc.yaml",
    "stages.yaml",
    "pipelines/*.yaml",
    "data/README.md",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    "params.yaml",  # last, because a folder with this file is a project
)
"""Relative to the project folder. `setup.py` copies these files into the wheel."""
PACKAGED = Path(__file__).parents[1] / "starter_files"
"""Where the wheel has them."""


def files() -> dict[str, Path]:
    """Path in a new project -> the file to copy. They are read-only templates."""
    source = PACKAGED if PACKAGED.is_dir() else Path(__file__).parents[2]
    return files_in(source)


def files_in(folder: Path) -> dict[str, Path]:
    """Files of a project folder that every new project gets, in the order of `PATTERNS`."""
    found = (path for pattern in PATTERNS for path in sorted(folder.glob(pattern), key=lambda path: path.stem))
    return {path.relative_to(folder).as_posix(): path for path in found}
