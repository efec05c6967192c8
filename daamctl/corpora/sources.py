"""Register of where each corpus is on this machine: `data/corpora/sources.yaml`, one line per corpus; not an artifact.

Artifacts name a corpus by its key, and files relative to its root, so they are the same on every machine. The key is
the corpus name. Each manifest has its own key, `manifest:<file name without suffix>`; its root is the folder of the
manifest file (or the manifest itself, if that is a folder). The plain key `manifest` points to the last one registered.
The same holds for files of embeddings and of tagged sentences and for folders of images, whose keys begin with
`embeddings:`, `conll:` and `images:`.

There may be several copies of a corpus. `<key>@<content>` is where the files of a table are: `download` has met there
just those whose hash the table holds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from daamctl.config import read_yaml
from daamctl.config.corpus_keys import CONLL, IMAGES, MANIFEST, is_table
from daamctl.config.schema import EMBEDDINGS
from daamctl.corpora import CORPORA
from daamctl.errors import CorpusError
from daamctl.store.files import locked, write_text

if TYPE_CHECKING:
    from daamctl.artifacts.layout import Layout
    from daamctl.artifacts.reconstruction import Crops
    from daamctl.artifacts.utterances import CorpusTable

_DEFAULTS = {MANIFEST: ".csv", EMBEDDINGS: ".npz", CONLL: ".conll", IMAGES: ""}
COPIES = (".dvc", "tmp", "exps")
"""Where, in a project, DVC puts a copy of it for an experiment."""


def sources_file(root: Path) -> Path:
    """Path of the project's register."""
    return root / "data" / "corpora" / "sources.yaml"


def register(root: Path, corpus: str, folder: Path, content: str = "") -> None:
    """Record where a corpus is on this machine: its root folder; of a manifest the file, or the folder that is one.

    Args:
        content: hash of the files that were met there, for `root_of`.

    Raises:
        CorpusError: another manifest file of the same name is registered and still there.
    """
    path = sources_file(root)
    absolute = _absolute(folder)
    with locked(path.with_name(".sources.lock"), what="the register of corpora"):
        entries = _read(path)
        kind, is_file, _ = corpus.partition(":")
        if is_file:
            known, table = _expand(root, entries.get(corpus)), _without_suffix(absolute)  # in any format of a table
            if known is not None and known.exists() and _without_suffix(_absolute(known)) != table:
                what = "manifest" if kind == MANIFEST else "file"
                raise CorpusError(
                    f"another {what} named '{table.name}' is registered: {known}",
                    fix=f"rename {absolute}, so that tables made from the two can be told apart",
                )
            entries[kind] = _shorten(root, absolute)
        entries[corpus] = _shorten(root, absolute)
        if content:
            entries[f"{corpus}@{content}"] = entries[corpus]
        write_text(path, yaml.safe_dump(entries, sort_keys=True, allow_unicode=True))


def forget(root: Path, corpus: str, folder: Path) -> None:
    """Forget which files of a corpus were met in a folder, before others take their place."""
    path = sources_file(root)
    with locked(path.with_name(".sources.lock"), what="the register of corpora"):
        gone = _shorten(root, _absolute(folder))
        entries = {
            key: place for key, place in _read(path).items() if not key.startswith(f"{corpus}@") or place != gone
        }
        write_text(path, yaml.safe_dump(entries, sort_keys=True, allow_unicode=True))


def source_of(root: Path, corpus: str, content: str = "") -> Path | None:
    """Where `corpus` was registered on this machine, even if it no longer exists; None if it was not registered.

    A copy of a project, in which `dvc exp run --temp` works, has no register; it finds what the project has.
    """
    found = _expand(root, _read(sources_file(root)).get(f"{corpus}@{content}" if content else corpus))
    project = next((folder.parents[2] for folder in root.parents if folder.parts[-3:] == COPIES), None)
    if found is not None or project is None:
        return found
    there = source_of(project, corpus, content)
    return there if there is not None and there.exists() else None


def root_of(layout: Layout, table: CorpusTable | Crops) -> Path:
    """Folder that the paths in a table are relative to, with the files that `download` met there for it.

    Raises:
        CorpusError: the corpus is not registered on this machine, or only another copy of it; or its folder is gone.
    """
    met, registered = (source_of(layout.root, table.corpus, content) for content in (table.content, ""))
    if met != registered and not (met and met.exists()) and registered and registered.exists():
        raise CorpusError(
            f"corpus '{table.corpus}' is registered at {registered}, but the table of '{layout.table_name}' may be of "
            "another copy",
            fix=f"make the table again: {layout.command('download')}, with --from DIR if it was another copy",
        )
    return files_root(layout.root, table.corpus, table.content if met else "")


def files_root(project_root: Path, corpus: str, content: str = "") -> Path:
    """Folder that the paths in the tables of a corpus, given by its key, are relative to, for recordings and images.

    Raises:
        CorpusError: the corpus is not registered on this machine, or its folder is gone.
    """
    name, is_file, stem = corpus.partition(":")
    source = source_of(project_root, corpus, content)
    place = (source.name if source else f"{stem}{_DEFAULTS[name]}") if is_file else "DIR"
    fix = f"daamctl download --corpus {name} --from {place}"
    own = project_root / "data" / "corpora" / name
    if source in (None, own) and not own.is_dir() and (known := CORPORA.load(name)).obtain and known.url is None:
        raise CorpusError(f"corpus '{corpus}' is not on this machine", fix=known.how_to_get)
    if source is None:
        raise CorpusError(f"corpus '{corpus}' is not registered on this machine", fix=f"register it: {fix}")
    folder = source.parent if is_file and is_table(source) else source
    if not folder.is_dir():
        raise CorpusError(
            f"corpus '{corpus}' was registered at {folder}, which does not exist",
            fix=f"make the folder reachable, or register its new place: {fix}",
        )
    return folder


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    entries = read_yaml(path)
    wrong = [key for key, value in entries.items() if not isinstance(value, str)]
    if wrong:
        raise CorpusError(f"{path}: '{wrong[0]}' must be a path, got {entries[wrong[0]]!r}", fix="correct or delete it")
    return entries


def _absolute(path: Path) -> Path:
    # not resolve(): a link in the project to another disk must keep its path in the project
    return Path(os.path.abspath(path))  # noqa: PTH100


def _shorten(root: Path, path: Path) -> str:
    """Path relative to the project if possible, so that a project can be moved as a whole."""
    base = _absolute(root)
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else str(path)


def _expand(root: Path, entry: str | None) -> Path | None:
    return None if entry is None else root / entry


def _without_suffix(source: Path) -> Path:
    return source.with_suffix("") if is_table(source) else source
