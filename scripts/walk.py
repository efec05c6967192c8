"""The way of one fold through the code: which files are entered, in the order in which a reader would follow it.

    python scripts/walk.py PROJECT PIPELINE METHOD [FOLD]

Trains the fold again (`--force`, without MLflow) and notes every function of the package when it is called for the
first time. Functions of the same file in a row are one visit; a visit to a file that the walk has left is a return.
Left aside is what every walk passes: settings, errors, devices, threads, files, hashes, versions, progress bars.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "daamctl"
ASIDE = (
    "config/", "artifacts/", "methods/", "attention.py", "cli/app.py", "cli/options.py", "cli/terminal.py",
    "cpu_formats.py", "devices.py", "energy.py", "environment.py", "errors.py", "store/", "layout.py",
    "progress.py", "provenance.py", "registry.py", "stage_table.py", "threads.py", "tracking.py", "engines/",
    "encoders/", "corpora/", "data/", "stages/check.py", "__init__.py", "__main__.py",
)  # fmt: skip


def walk(project: Path, words: list[str]) -> list[tuple[str, str]]:
    """File and function of every first call while a command runs in a project."""
    from daamctl.cli.app import main

    seen: dict[Any, tuple[str, str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in seen:
            path = Path(frame.f_code.co_filename)
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED and not frame.f_code.co_name.startswith("<")
            if path.is_relative_to(PACKAGE) and is_function:  # not the body of a module or a class
                seen[frame.f_code] = path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname

    os.chdir(project)
    sys.argv = ["daamctl", *words]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [call for call in seen.values() if not call[0].startswith(ASIDE)]


if __name__ == "__main__":
    folder, pipeline, method, *number = sys.argv[1:]
    options = ["train", pipeline, "-m", method, "--fold", *(number or ["1"]), "--force", "--no-track"]
    visits = [
        (file, [name for _, name in calls]) for file, calls in groupby(walk(Path(folder), options), lambda c: c[0])
    ]
    for file, names in visits:
        print(f"{file}: {', '.join(names)}")
    files = {file for file, _ in visits}
    print(f"\n{len(files)} files, {len(visits) - len(files)} returns")
