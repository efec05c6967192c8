"""Labels in a file beside each recording or image, and the cuts of Lhotse.

a/1.wav, a/1.json               values of an item, as the shards of WebDataset are unpacked; `.cls`, `.lab`: its label
cuts.jsonl.gz                   a cut a line: a piece of a recording, with one supervision
"""

from __future__ import annotations

import gzip
import json
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
        CorpusError: a file beside an item is no JSON object, or lacks values that others have.
    """
    known = {*SUFFIXES["speech"], *SUFFIXES["image"]}
    rows = []
    for item in files_below(folder):
        if item.suffix.lower() not in known:
            continue
        told = next((path for end in BESIDE if (path := item.with_suffix(end)).is_file()), None)
        if told is None:
            return None
        values: Any = {"label": read_text(told).strip()}
        if "\n" in values["label"] and told.suffix != ".json":  # e.g. times of phones
            return None
        if told.suffix == ".json":
            try:
                values = json.loads(read_text(told))
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
        CorpusError: a cut has several supervisions, or no file.
    """
    if not path.name.lower().endswith(CUTS):
        return None
    content = path.read_bytes()
    text = gzip.decompress(content).decode() if path.suffix == ".gz" else read_text(path)
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cut = json.loads(line) if line.strip().startswith("{") else {}
        if "supervisions" not in cut or "recording" not in cut:
            return None
        sources = [one for one in cut["recording"].get("sources", []) if one.get("type") == "file"]
        if len(cut["supervisions"]) != 1 or len(sources) != 1:
            raise CorpusError(
                f"{path}:{number}: a cut with {len(cut['supervisions'])} supervisions and {len(sources)} files; one of "
                "each is expected",
                fix="cut the recordings: cuts.trim_to_supervisions()",
            )
        told = cut["supervisions"][0]
        start = cut["start"] + told["start"]
        plain = {name: told[name] for name in ("speaker", "gender", "language") if told.get(name)}
        custom = {name: one for name, one in (told.get("custom") or {}).items() if not isinstance(one, list | Mapping)}
        ends = {"start_s": start, "end_s": start + told["duration"]}
        rows.append({"utterance_id": cut["id"], "path": sources[0]["source"], **custom, **plain, **ends})
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None
