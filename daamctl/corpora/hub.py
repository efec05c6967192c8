"""Data sets of the Hugging Face hub, downloaded with the datasets library or read from a local copy.

A copy is a folder written by `save_to_disk` (Arrow files), or one with Parquet files whose names or folders start with
the part: `data/train-00000-of-00001.parquet`, `test/0000.parquet`. Code in a data set is never run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from daamctl.corpora.fetch import is_whole, made_whole
from daamctl.errors import CorpusError, DownloadError

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("train", "test")
_PART = re.compile(rf"({'|'.join(PARTS)})(?![a-z])", re.IGNORECASE)
_SAVED = ("dataset_dict.json", "state.json")


def obtain_dataset(hub_id: str, folder: Path, *, fix: str) -> Path:
    """Download the train and test part of a data set into `folder`, atomically, unless they are there.

    Raises:
        DownloadError: the hub cannot be reached, or does not have it.
    """
    if is_whole(folder):
        return folder
    from datasets import load_dataset  # type: ignore[import-untyped]
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    try:
        with made_whole(folder, f"{hub_id} from the hub\n") as new:
            for part in PARTS:
                load_dataset(hub_id, split=part).to_parquet(new / f"{part}.parquet")
    except (OSError, ValueError, DatasetsError) as error:  # no network, offline mode; unknown part; damaged file
        reason = " ".join(str(error).split())
        raise DownloadError(
            f"cannot load '{hub_id}' from the Hugging Face hub: {reason}", fix="offline? " + fix
        ) from error
    return folder


def read_parts(folder: Path, *columns: tuple[str, ...]) -> dict[str, pa.Table]:
    """Read the parts `train` and `test` of a copy of a data set, those that exist.

    Args:
        columns: for each column to read, its possible names; the first is its name in the result.

    Raises:
        CorpusError: a file is damaged, or lacks a column.
    """
    import pyarrow.parquet as pq

    try:
        if any((folder / name).is_file() for name in _SAVED):
            from datasets import DatasetDict, load_from_disk

            saved = load_from_disk(str(folder))
            parts = saved if isinstance(saved, DatasetDict) else {str(saved.split): saved}
            tables = {part: parts[part].with_format("arrow")[:] for part in PARTS if part in parts}
        else:
            files: dict[str, list[Path]] = {}
            for path in sorted(folder.rglob("[!.]*.parquet")):
                match = _PART.match(path.stem) or _PART.fullmatch(path.parent.name if path.parent != folder else "")
                if match:
                    files.setdefault(match[1].lower(), []).append(path)
            tables = {part: pq.read_table(files[part], partitioning=None) for part in PARTS if part in files}
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise CorpusError(f"{folder} is not a complete copy of a data set: {error}", fix="copy it again") from error
    chosen: dict[str, pa.Table] = {}
    for part, table in tables.items():
        names = [next((name for name in one if name in table.column_names), None) for one in columns]
        if None in names:
            shown, lacking = ", ".join(table.column_names)[:200], " or ".join(columns[names.index(None)])
            raise CorpusError(f"{folder}: a table lacks the column {lacking}; it has {shown}")
        chosen[part] = table.select(names).rename_columns([one[0] for one in columns])
    return chosen
