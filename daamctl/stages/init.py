"""Make a project: settings, pipelines and the DVC graph in a folder of the user's choice."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from daamctl.errors import ConfigError, first_few
from daamctl.store import starter
from daamctl.store.files import write_text

DVC_CONFIG = ".dvc/config"


def run(folder: Path) -> str | None:
    """Write the files of a new project and initialise DVC; make the folder if need be. Nothing that exists is changed.

    Returns:
        What DVC refused, or None: the project works without DVC, by `daamctl run`.

    Raises:
        ConfigError: the folder is a file, or holds other files under the same names.
        ArtifactError: the file system refuses a write.
    """
    texts = {name: source.read_text(encoding="utf-8") for name, source in starter.files().items() if name != DVC_CONFIG}
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file", fix="name a folder: daamctl init DIR")
    taken = []
    for name, text in texts.items():
        path = folder / name
        if not path.exists() and all(parent.is_dir() or not parent.exists() for parent in path.parents):
            continue
        if not path.is_file() or path.read_bytes() != text.encode():
            taken.append(name)
    if taken:
        raise ConfigError(
            f"{folder} holds other files with the names of a project's: {first_few(taken)}",
            fix="name a new folder: daamctl init DIR",
        )
    for name, text in texts.items():
        write_text(folder / name, text)
    return None if (folder / ".dvc").exists() else _init_dvc(folder)


def _init_dvc(folder: Path) -> str | None:
    """Initialise DVC as `dvc init` would, below git if the folder is, with the settings of every project."""
    from dvc.config import Config, merge
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    git = next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
    try:
        with (
            Repo.init(str(folder), no_scm=git is None, subdir=git not in (None, folder)) as repo,
            repo.config.edit("repo") as settings,
        ):
            merge(settings, Config.load_file(str(starter.files()[DVC_CONFIG])))
    except BaseException as error:
        shutil.rmtree(folder / ".dvc", ignore_errors=True)  # else the next attempt would take it for whole
        if not isinstance(error, (DvcException, OSError)):
            raise
        return " ".join(str(error).split())
    return None
