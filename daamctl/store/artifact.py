"""What is made once: a folder that its record finishes, under a key, a lock and a seal.

The record is written last. It is sealed and holds the content key and the SHA-256 of the other files, so whoever opens
the folder notices what was changed, cut, exchanged or moved. Unfinished work lies elsewhere on the same file system; a
rename puts the folder in place.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Generic

from daamctl.errors import ArtifactError
from daamctl.store.files import atomic_path, locked
from daamctl.store.records import (
    SKIPPED_FILE,
    Record,
    check_file,
    hashes_of,
    parse_record,
    read_sealed,
    write_record,
)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Artifact(Generic[Record]):
    """A folder and its record.

    Args:
        path: the record in the folder.
        kind: its dataclass or typed dictionary. Names that it does not have are ignored.
        fix: what makes the artifact again, for errors; None: the command line knows.
        keys: content keys with which it is kept.
        work: folder of its unfinished work; None: this process does not make it.
        what: the artifact, for messages.
        owner: field of the record that is the name of the folder, where a record has it; empty: no field is.
        hide: folder to remove from paths in texts, because reports may be shared.
        remember: pattern of the names of large files, of which an earlier comparison counts, see `check_file`.
    """

    path: Path
    kind: type[Record]
    fix: str | None = None
    keys: Collection[str] = ()
    work: Path | None = None
    what: str = ""
    owner: str = "run"
    hide: Path | None = None
    remember: str = ""

    def __post_init__(self) -> None:
        self.folder, self._seen = self.path.parent, self._state()

    def read(self) -> Record:
        """Read the record; the other files are not looked at.

        Raises:
            ArtifactError: it is missing, incomplete, changed, of another folder or of another version of daamctl.
        """
        found = read_sealed(self.path, fix=self.fix)
        if self.hide is not None:
            found = json.loads(json.dumps(found, ensure_ascii=False).replace(f"{self.hide}/", ""))
        record = parse_record(found, self.kind, path=self.path, fix=self.fix)
        owner = getattr(record, self.owner, None)
        if owner not in (None, self.folder.name):
            raise ArtifactError(f"{self.path} belongs to the run '{owner}'", fix=self.fix, path=self.path)
        return record

    def check(self, record: Record) -> None:
        """Compare the files with the hashes in the record.

        Raises:
            ArtifactError: one is missing, damaged or from elsewhere.
        """
        for name, wanted in (_field(record, "files") or {}).items():
            if not (self.folder / name).resolve().is_relative_to(self.folder.resolve()):
                what = f"{self.path} names a file outside the folder: {name}"
                raise ArtifactError(what, fix=self.fix, path=self.path)
            check_file(self.folder / name, wanted, fix=self.fix, remember=fnmatch(name, self.remember))

    def open(self) -> Record:
        """Read the record and check the files. Raises ArtifactError as `read` and `check`."""
        record = self.read()
        self.check(record)
        return record

    def find(self) -> Record | None:
        """Like `open`, but None if there is no record, or an empty one beside the note of a skipped stage."""
        if not self.path.exists():
            return None
        if (self.folder / SKIPPED_FILE).is_file() and not self.path.read_bytes().strip():
            return None
        return self.open()

    def keep(self, level: int = logging.WARNING) -> Record | None:
        """The record if the artifact is finished, whole and of one of the keys, else None; a damaged one is logged."""
        try:
            record = self.read() if self.path.exists() else None
            if record is None or self.key_of(record) not in self.keys:
                return None
            self.check(record)
        except ArtifactError as error:
            log.log(level, "%s is not kept: %s", self.what, error.message)
            return None
        return record

    def key_of(self, record: Record) -> str:
        """The content key in a record."""
        return str(_field(record, "key"))

    @contextmanager
    def lock(self, *, force: bool = True) -> Iterator[Record | None]:
        """Hold the lock while the block makes the artifact. If the block succeeds, its unfinished work is removed.

        Args:
            force: make again what was finished when this object was created; what another process makes meanwhile is
                new enough.

        Yields:
            What is finished, perhaps by another process meanwhile, if it may be kept.
        """
        assert self.work is not None
        with locked(self.work.with_name(f"{self.work.name}.lock"), what=self.what):
            old = self.folder.parent.glob(f".{self.folder.name}-old-{8 * '[0-9a-f]'}")
            for left in (self.work / "finished", *old):  # of a command that was killed while it made the artifact
                shutil.rmtree(left, ignore_errors=True)
            again = not force or self._state() != self._seen
            yield self.keep(logging.DEBUG) if again else None  # who looked before has said why it is not kept
            shutil.rmtree(self.work, ignore_errors=True)

    @contextmanager
    def make(self) -> Iterator[Path]:
        """Yield a new folder for the files, the record last (`seal`); if the block succeeds, it becomes the artifact.

        Raises:
            ArtifactError: the file system refuses a write.
        """
        with atomic_path(self.folder, at=self.work and self.work / "finished") as new:
            new.mkdir()
            yield new

    def seal(self, folder: Path, record: Any, files: Iterable[Path] | None = None) -> None:
        """Write the record of a folder, with the hashes of its files.

        Args:
            folder: from `make`, or that of the artifact.
            record: a record or its content, without `files`.
            files: the files; None: all.
        """
        content = record if isinstance(record, dict) else asdict(record)
        write_record(folder / self.path.name, {**content, "files": hashes_of(folder, files)})

    def _state(self) -> tuple[int, int] | None:
        """Number and time stamp of the record's file, which change when it is made again; None without one."""
        if not self.path.exists():
            return None
        state = self.path.stat()
        return state.st_ino, state.st_mtime_ns  # two that are made at once may have one time stamp


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name, None)
