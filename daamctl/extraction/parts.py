"""Parts of an unfinished shard on disk, so that a kill costs at most about half a minute, however slow the machine is.

A part holds the rows that were finished since the previous one. It is written under the content key of its clips and
their order; parts with another key, and damaged ones, are removed. A resumed shard is planned like an undisturbed one,
and only whole batches are taken from parts, so the finished file has the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daamctl.store.files import SaveTimer, kept_path, open_kept

PART_EVERY_S = 30.0
SAVING_FRACTION = 0.05

Marks = dict[str, list[int]]


def parts_folder(work: Path) -> Path:
    """Folder of the parts of all shards in a folder of unfinished work."""
    return work.with_name(f"{work.name}-parts")


class ShardParts:
    """Parts of one shard.

    Args:
        key: content key of the shard's clips, their order, and their embeddings.
    """

    def __init__(self, shard: Path, key: str) -> None:
        self.folder, self.stem, self.key = parts_folder(shard.parent), shard.stem, key
        self.timer = SaveTimer(every_s=PART_EVERY_S, fraction=SAVING_FRACTION)
        self.unsaved: list[int] = []

    def load(self, vectors: NDArray[np.generic], n_frames: NDArray[np.int32], marks: Marks) -> set[int]:
        """Read all parts into the arrays of a shard; return the rows that they hold.

        Args:
            vectors: (N, L, D), filled in.
            n_frames: (N,), filled in.
            marks: warning -> rows, extended.
        """
        found: set[int] = set()
        for path in self._files():
            with open_kept(path, self.key) as file:
                if file is None:
                    path.unlink(missing_ok=True)  # costs only the work that it would have saved
                    continue
                with np.load(file, allow_pickle=False) as part:
                    rows = part["rows"]
                    vectors[rows], n_frames[rows] = part["vectors"], part["n_frames"]
                    marked: Marks = json.loads(str(part["marks"]))
            found.update(rows.tolist())
            for name, some in marked.items():
                marks.setdefault(name, []).extend(some)
        return found

    def add(self, rows: Iterable[int]) -> None:
        """Note rows as finished."""
        self.unsaved.extend(rows)

    def save_if_due(self, vectors: NDArray[np.generic], n_frames: NDArray[np.int32], marks: Marks) -> None:
        """Write the rows finished since the last part, if that is long enough ago; arguments as in `load`."""
        if self.unsaved:
            self.timer.save_if_due(lambda: self._save(vectors, n_frames, marks))

    def remove(self) -> None:
        """Delete all parts of the shard."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _save(self, vectors: NDArray[np.generic], n_frames: NDArray[np.int32], marks: Marks) -> None:
        rows, among = np.array(self.unsaved), set(self.unsaved)
        marked = {name: [row for row in some if row in among] for name, some in marks.items()}
        number = max((int(path.stem.rsplit("-", 1)[1]) for path in self._files()), default=-1) + 1
        with kept_path(self.folder / f"{self.stem}-{number:04d}.npz", self.key) as temporary:
            np.savez(
                temporary,
                rows=rows,
                vectors=vectors[rows],
                n_frames=n_frames[rows],
                marks=np.array(json.dumps(marked)),
            )
        self.unsaved.clear()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.stem}-[0-9][0-9][0-9][0-9]*.npz"))
