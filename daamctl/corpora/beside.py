"""Labels in a file beside each recording or image, and the cuts of Lhotse.

a/1.wav, a/1.json               values of an item, as the shards of WebDataset are unpacked; `.cls`, `.lab`: its label
cuts.jsonl.gz                   a cut a line: a piece of a recording, with one supervision
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.corpora.files import SUFFIXES, files_below, read_text
from daamctl.corpora.groups import part_of
from daamctl.errors import CorpusError

BESIDE = (".json", ".cls", ".lab", ".label")
CUTS = (".jsonl", ".jsonl.gz")


def read_beside(folder: Path) -> pl.DataFrame | None:
    """Recordings or images of a folder that all have a file with their values beside them; None: they have not.

    Returns:
        Columns path (relative to the folder), and label, or the values of the JSON files that are no lists or objects.

    Raises:
        CorpusError: a `.json` file beside an item is no JSON object.
    """
    known = {*SUFFIXES["speech"], *SUFFIXES["image"]}
    rows = []
    for item in files_below(folder):
        if item.suffix.lower() not in known:
            continue
        told = next((path for end in BESIDE if (path := item.with_suffix(end)).is_file()), None)
        if told is None:
            return None
        content = read_text(told).strip()
        values: Any = {"label": content}
        if told.suffix != ".json" and "\n" in content:  # e.g. times of phones
            return None
        if told.suffix == ".json":
            try:
                values = json.loads(content)
            except ValueError as error:
                raise CorpusError(f"{told} cannot be read as JSON: {error}") from error
            if not isinstance(values, Mapping):
                raise CorpusError(f"{told} is no JSON object with the values of {item.name}")
        plain = {name: one for name, one in values.items() if not isinstance(one, list | Mapping)}
        place = item.relative_to(folder)
        part = part_of(place.parts[0]) if len(place.parts) > 1 else None
        rows.append({**plain, "path": place.as_posix(), **({"group": part} if part else {})})
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None


def read_cuts(path: Path) -> pl.DataFrame | None:
    """Cuts of Lhotse, with the columns path, start_s, end_s, and what the supervisions tell; None: it is another file.

    Paths begin where the recipe ran; they stay as they are.

    Raises:
        CorpusError: a cut has several supervisions, or no file, or is damaged.
    """
    if not path.name.lower().endswith(CUTS) or not path.is_file():
        return None
    rows: list[dict[str, Any]] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                cut = json.loads(line)
                if not rows and not (isinstance(cut, dict) and {"supervisions", "recording"} <= cut.keys()):
                    return None
                rows.append(_of_cut(cut, f"{path}:{len(rows) + 1}"))
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        if not rows:  # perhaps a table; whoever reads it says what is wrong
            return None
        raise CorpusError(f"{path}:{len(rows) + 1}: no cut of Lhotse: {str(error)[:160]}") from error
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None


def _of_cut(cut: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Path, times and values of a cut."""
    told, files = cut["supervisions"], [one for one in cut["recording"]["sources"] if one.get("type") == "file"]
    if len(told) != 1 or len(files) != 1:
        raise CorpusError(
            f"{place}: a cut with {len(told)} supervisions and {len(files)} files; one of each is expected",
            fix="cut the recordings: cuts.trim_to_supervisions()",
        )
    start = cut["start"] + told[0]["start"]
    values = {
        **(told[0].get("custom") or {}),
        **{name: told[0].get(name) for name in ("speaker", "gender", "language")},
    }
    plain = {name: one for name, one in values.items() if one is not None and not isinstance(one, list | Mapping)}
    ends = {"start_s": start, "end_s": start + told[0]["duration"]}
    return {"utterance_id": cut["id"], "path": files[0]["source"], **plain, **ends}
