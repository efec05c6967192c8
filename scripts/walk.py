"""The way of a command through the code: which files are entered, in the order in which a reader would follow it.

    python scripts/walk.py PROJECT train demo -m daam-v1-mlp --fold 1 --force --no-track
    python scripts/walk.py --below accuracy_by_fold PROJECT report demo

Runs the command and notes every function of the package when it is called for the first time; with `--below`, only
while a function of this name runs. Functions of the same file in a row are one visit; a visit to a file that the walk
has left is a return. Left aside is what every walk passes: settings, errors, devices, threads, files, hashes, versions,
progress bars. A command about vectors (`extract`, `predict`) shows the encoders, any other leaves them aside.
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
    "config/", "artifacts/", "methods/", "compute/", "corpora/", "data/", "store/", "cli/app.py", "cli/options.py",
    "cli/terminal.py", "fit/tracking.py", "stages/check.py", "stages/inventory.py", "errors.py", "__init__.py",
    "__main__.py",
)  # fmt: skip
VECTORS = ("extract", "predict")


def walk(project: Path, words: list[str], below: str = "") -> list[tuple[str, str]]:
    """File and function of every first call while a command runs in a project."""
    from daamctl.cli.app import main

    seen: dict[Any, tuple[str, str]] = {}
    depth: Any = threading.local()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        if frame.f_code.co_name == below:
            depth.now = getattr(depth, "now", 0) + (1 if event == "call" else -1)
        if event == "call" and frame.f_code not in seen and (not below or getattr(depth, "now", 0) > 0):
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
    aside = ASIDE if words[0] in VECTORS else (*ASIDE, "encoders/")
    return [call for call in seen.values() if not call[0].startswith(aside)]


if __name__ == "__main__":
    below, given = ("", sys.argv[1:]) if sys.argv[1] != "--below" else (sys.argv[2], sys.argv[3:])
    calls = groupby(walk(Path(given[0]), given[1:], below), lambda call: call[0])
    visits = [(file, [name for _, name in part]) for file, part in calls]
    for file, names in visits:
        print(f"{file}: {', '.join(names)}")
    files = {file for file, _ in visits}
    print(f"\n{len(files)} files, {len(visits) - len(files)} returns")
