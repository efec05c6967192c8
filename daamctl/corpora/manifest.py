"""Your own recordings, texts or images, listed in a table; or a folder of images with one sub-folder per class.

    recordings  path,label,speaker[,group][,start_s,end_s][,utterance_id]
    texts       text,label[,group][,speaker][,utterance_id]
    images      path,label[,group][,speaker][,utterance_id]

The table is CSV, Parquet or JSON. Paths are relative to its folder. Absolute paths are allowed, but artifacts
made from them work on this machine only. `start_s` and `end_s` are seconds within the file; by default a piece reaches
from the beginning to the end. `speaker` is the source of an item, the unit of independence; without it every text or
image is its own source. `sentence` names what is said, if others say it too. `group` is the unit of the folds. Groups
named train and test, and perhaps dev (or val), are an official split; without groups, `assign_groups` forms
speaker-disjoint ones. Further columns are kept (from CSV as text).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import SENTENCE, Modality
from daamctl.config.corpus_keys import TABLES
from daamctl.corpora.base import SCHEMAS, Corpus
from daamctl.corpora.files import (
    ID,
    alike,
    files_below,
    is_file,
    is_list,
    numbers_of_lines,
    one_hot,
    read_table,
    renames,
    renaming,
    tell_unused,
    text_pair,
)
from daamctl.corpora.groups import PARTS, official_groups
from daamctl.corpora.images import CONVERT, FORMATS, UNREAD
from daamctl.corpora.rules import NAMED_AT_MOST, Rule, broken
from daamctl.errors import CorpusError, first_few, listing

log = logging.getLogger(__name__)

REQUIRED: dict[Modality, tuple[str, ...]] = {
    "speech": ("path", "label", "speaker"),
    "text": ("text", "label"),
    "image": ("path", "label"),
}
OPTIONAL = ("group", "speaker", SENTENCE)
CONTENT: dict[Modality, str] = {"speech": "path", "text": "text", "image": "path"}
# measured on recordings; written by the reader, or meaningless for images
RESERVED: dict[Modality, tuple[str, ...]] = {
    "speech": ("duration_s", "sampling_rate", "n_channels"),
    "text": (),
    "image": ("index", "start_s", "end_s"),
}
LONGEST_S = 1e9
"""Seconds of no recording."""
MANY_NUMBERED = 8
"""Columns whose names end in numbers that look like the features of vectors."""
RATINGS = ("stars", "overall", "rating", "ratings", "score")
"""Names of columns, in lower case, of what reviewers say."""
_LINE = "__line"
_IMAGE_SUFFIX = rf"(?i)({'|'.join(suffix.replace('.', '[.]') for suffix in FORMATS)})\s*$"

EXAMPLE = "path,label,speaker[,group][,start_s,end_s][,utterance_id]"
GET_IT = (
    f"write a CSV file with the columns {EXAMPLE}, for texts text,label, for images path,label, and register it: "
    "daamctl download manifest --from FILE.csv; or give a folder with one folder of images per class, or words with "
    "tags in a .conll file"
)


def prepare(root: Path) -> pl.DataFrame:
    """Read a manifest: a table (CSV, Parquet, JSON), or a folder of images.

    One row per recording or piece of one, text or image, with the columns of its modality in `corpora.base`; `group` is
    null if none is given.

    Raises:
        CorpusError: the table or folder is wrong; names every kind of fault, each with the column and the lines.
    """
    modality: Modality = "image"
    given: list[str] = []
    faults = _Faults(root)
    if root.is_dir():
        rows = _image_folder(root)
    else:
        rows = _read(root)
        modality = _modality(rows, faults)
        given = rows.columns
        rows = _check_columns(rows, modality, faults)
        if not faults.found:
            # recordings and images are named by their paths
            tell_unused(root, given, (*OPTIONAL, "utterance_id") if modality == "text" else OPTIONAL)
        rows = _names(rows, modality, faults)
        if modality == "speech":
            rows = _times(rows, faults)
        if modality == "image":
            rows = rows.with_columns(index=pl.lit(None, pl.Int64))
        if modality != "text":
            if "speaker" in rows.columns and rows["path"].is_unique().all() and (rows["speaker"] == rows["path"]).all():
                rows = rows.drop("speaker")  # as `daamctl new` writes where it knows none
            prefix = root.parent.absolute().as_posix().rstrip("/") + "/"
            posix = pl.col("path").str.replace_all("\\", "/", literal=True)
            rows = rows.with_columns(path=posix.str.strip_prefix(prefix))
        rows = official_groups(rows)
    rows = rows.with_columns(utterance_id=_identity(rows, modality))
    repeated = pl.col("utterance_id").is_not_null() & pl.col("utterance_id").is_duplicated()
    faults.rows(rows, (repeated, "the same piece, or utterance_id, more than once in {places}"))
    # without faults, the stage reports what it cannot read; without labels, `new` reads the table, and finds more files
    if faults.found and modality != "text" and "label" in given:
        paths = rows["path"].drop_nulls().unique().to_list()
        absent = [path for path in paths if not is_file(root.parent / path)]
        faults.rows(rows, (pl.col("path").is_in(absent), "no such file, in {places}"))
    faults.refuse()
    if "speaker" not in rows.columns:
        rows = rows.with_columns(speaker=pl.col("utterance_id"))
    head = list(SCHEMAS[modality])
    further = [name for name in rows.columns if name not in (*head, "end_s", _LINE)]
    return rows.select(*head, *further)


def _read(path: Path) -> pl.DataFrame:
    """Read the table, with a column of line numbers."""
    if not path.is_file():
        raise CorpusError(f"no manifest file {path}", fix=GET_IT)
    if path.suffix.lower() not in TABLES:
        allowed = f"{', '.join(TABLES)}, or a folder of images"
        raise CorpusError(f"{path} is of an unknown kind (allowed: {allowed})", fix=GET_IT)
    rows = read_table(path, fix=GET_IT)
    return rows.with_columns(numbers_of_lines(rows, path).alias(_LINE))


def _modality(rows: pl.DataFrame, faults: _Faults) -> Modality:
    """Modality from the columns, perhaps under other names: `path` of images or of recordings, else `text`."""
    if "text" in rows.columns and "path" not in rows.columns:
        return "text"
    name = "path" if "path" in rows.columns else alike("path", rows.columns)
    if name is None or rows.schema[name].is_nested():
        return "text" if alike("text", rows.columns) else "speech"
    is_image = pl.col(name).cast(pl.String).str.contains(_IMAGE_SUFFIX)
    count = rows.select(is_image.sum()).item()
    if count == 0:
        unread = [path for path in rows[name].cast(pl.String).drop_nulls() if path.lower().endswith(UNREAD)]
        if unread:
            faults.add(
                f"{counted(len(unread), 'image')} of a format that is not read, e.g. {unread[0]} (allowed: "
                f"{', '.join(FORMATS)})",
                f"{CONVERT.format(Path(unread[0]).suffix)}; and correct the paths",
            )
        return "image" if unread else "speech"
    if name != "path":  # the table is refused
        return "image"
    others = rows.height - count - rows["path"].null_count()
    if count < others:
        faults.rows(rows, (is_image, "an image, unlike the other files, in {places}"))
        return "speech"
    faults.rows(rows, (~is_image, "not an image, unlike the other files, in {places}"))
    return "image"


def _check_columns(rows: pl.DataFrame, modality: Modality, faults: _Faults) -> pl.DataFrame:
    """Note missing and reserved columns; a missing column is filled in, so that the others can be checked."""
    path = faults.path
    found = [name for name in rows.columns if name != _LINE]
    missing = [name for name in REQUIRED[modality] if name not in found]
    vectors = [name for name, kind in rows.schema.items()
               if _has_numbers(kind) or (kind == pl.String and is_list(rows[name]))]  # fmt: skip
    write = f"write embeddings: daamctl import-vectors {quote(str(path))}"
    if missing:
        told, fix = _lacking(rows.drop(_LINE), missing, modality, path)
        faults.add(told, write if vectors and CONTENT[modality] in missing else fix)
    if CONTENT[modality] in missing:
        numbered = [name for name in found if name[-1:].isdecimal()]
        if vectors or len(numbered) >= MANY_NUMBERED:
            one = f"'{vectors[0]}' may be a vector" if vectors else f"{first_few(numbered, 3)} may be features"
            faults.add(one, write)
        faults.refuse()
    reserved = [name for name in RESERVED[modality] if name in found]
    if reserved:
        speech = modality == "speech"
        advice = "; a piece of a file is given by start_s and end_s"
        why = "which daamctl measures on the files" if speech else "but lists images"
        named = f"the {listing('column', reserved)}"
        faults.add(f"has {named}, {why}", f"remove or rename {named}{advice if speech else ''}")
    if rows.is_empty():
        faults.add("has no rows", GET_IT)
    return rows.drop(reserved).with_columns(pl.lit("?").alias(name) for name in missing)


def _has_numbers(kind: pl.DataType) -> bool:
    """Whether a column has lists of numbers, or lists of such lists."""
    inner = kind.inner if isinstance(kind, pl.List | pl.Array) else None
    return isinstance(inner, pl.DataType) and (inner.is_numeric() or _has_numbers(inner))


def _lacking(rows: pl.DataFrame, missing: list[str], modality: Modality, path: Path) -> tuple[str, str]:
    """What is told of missing columns, and what helps: other names for columns that may be these."""
    found, content = rows.columns, CONTENT[modality]
    shown = ", ".join(found)[:200]
    if not shown.isprintable():
        raise CorpusError(f"{path} is not a text table", fix=GET_IT)
    told = f"lacks the {listing('column', missing).replace('path', 'path (or text)')}"
    single = [name for name, kind in rows.schema.items() if not kind.is_nested()]
    renamed = renames(missing, single)
    complete = len(renamed) == len(missing)
    if complete:
        left = [name for name in single if name not in renamed.values()]
        renamed |= renames([name for name in OPTIONAL if name not in (*missing, *found)], left)
    guessed, others = ({}, []) if complete else _by_values(rows)
    is_lacking = {"label": "label" in missing, content: content in missing and content not in renamed}
    guessed = {role: other for role, other in guessed.items() if is_lacking.get(role, is_lacking[content])}
    columns = guessed or {role: "COLUMN" for role in missing if role != "speaker"}
    named = ",".join(f"{role}={other}" for role, other in (columns | renamed).items())
    how = ", by their values perhaps so" if guessed.keys() - renamed.keys() else ""
    make = f"daamctl new NAME --from {quote(str(path))}"
    name_them = f"name them{how}: {make} --columns {quote(named)}" if named else f"have them looked for: {make}"
    if others and "label" in guessed and "label" not in renamed:
        name_them += f" (or label={first_few(others)})"
    packed = alike("path", found)
    if packed and "path" in missing and isinstance(rows.schema[packed], pl.Struct):  # as tables of `datasets` have
        told += f", and '{packed}' holds the files themselves; it has {shown}"
        return told, f"make a pipeline of it as it is: {make}"
    write = f"; or {GET_IT}"
    if renamed:
        return f"{told}; it has {shown}", f"{renaming(renamed)}, or {name_them}" + ("" if complete or how else write)
    if len(missing) == len(REQUIRED[modality]) and (
        len(found) == 1 or any(len(name) > 60 or name.isdecimal() for name in found)
    ):
        fix = f"write the names of the columns into the first line; {GET_IT}"
        return f"{told}; it has {shown}, which look like items", fix
    texts = " (of texts: text=COLUMN,label=COLUMN; a path from columns: 'path=wav/{COLUMN}.wav')"
    fix = name_them if how else f"{name_them}{texts if 'path' in missing else ''}{write}"
    return f"{told}; it has {shown}", fix


def _by_values(rows: pl.DataFrame) -> tuple[dict[str, str], list[str]]:
    """What may be items, as texts perhaps in two or three columns, and labels, by values that differ or repeat.

    Returns:
        Column of ours -> column or template, and others that may as well be the label.
    """
    rows = rows.select(pl.col(name).cast(pl.String) for name, kind in rows.schema.items() if not kind.is_nested())
    counts = {name: rows[name].drop_nulls().n_unique() for name in rows.columns}
    pair = text_pair(counts)
    letters = [name for name in counts if rows[name].str.contains(r"[^\W\d_]").any()]
    items = list(pair) or [name for name in letters if 2 * counts[name] > len(rows)]
    labels = [name for name, count in counts.items() if name not in pair and 2 <= count <= len(rows) // 3]
    labels = [name for name in labels if not ID.match(name)]
    if not items or not labels:
        return {}, []
    usual = alike("label", labels)
    labels.sort(key=lambda name: (name.lower() not in RATINGS, name not in letters, counts[name]))
    label, others = usual or labels[0], [] if usual else labels[1:]
    others = [name for name in others if name in letters] or ([] if label in letters else others)
    item = max(items, key=lambda name: rows[name].str.len_chars().sum())
    # a text has several words
    if rows[item].str.contains(r"[^\s][.][A-Za-z0-9]{2,5}$").all() or not rows[item].str.contains(r"\S\s+\S").any():
        return {"path": item, "label": label}, others
    if one_hot(rows) is not None:  # `new` finds the labels
        return {"text": item}, []
    texts = pair or [name for name in items if rows[name].str.count_matches(r"\S\s+\S").sum() >= 2 * len(rows)]
    text = " ".join(f"{{{name}}}" for name in texts) if 2 <= len(texts) <= 3 else item
    return {"text": text, "label": label}, others


def _names(rows: pl.DataFrame, modality: Modality, faults: _Faults) -> pl.DataFrame:
    """Strip the columns of names, where empty cells become null. Texts are not changed; empty ones are refused."""
    known = ("path", "label", "speaker", "group", "utterance_id", SENTENCE)
    names = [name for name in known if name in rows.columns]
    if modality == "text":
        rows = rows.with_columns(pl.col("text").cast(pl.String))
        faults.rows(rows, (pl.col("text").fill_null("").str.strip_chars() == "", "empty text in {places}"))
        names = [name for name in names if name != "path"]
    stripped = pl.col(names).cast(pl.String).str.strip_chars()
    rows = rows.with_columns(stripped.replace("", None))
    needed = [name for name in names if name not in ("group", SENTENCE)]
    faults.rows(rows, *((pl.col(name).is_null(), f"empty {name} in {{places}}") for name in needed))
    if "group" not in rows.columns:
        return rows.with_columns(group=pl.lit(None, pl.String))
    if rows["group"].null_count() < rows.height:
        faults.rows(rows, (pl.col("group").is_null(), "empty group (give all or none) in {places}"))
    return rows


def _times(rows: pl.DataFrame, faults: _Faults) -> pl.DataFrame:
    """`start_s` and `duration_s` from the optional columns `start_s` and `end_s`."""
    for name in ("start_s", "end_s"):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, pl.Float64).alias(name))
        text = pl.col(name).cast(pl.String).str.strip_chars().replace("", None)
        number = text.str.replace(r"^([-+]?\d+),(\d+)$", "${1}.${2}").cast(pl.Float64, strict=False)  # a decimal comma
        usable = (number.abs() < LONGEST_S).fill_null(False)  # neither NaN nor infinite
        faults.rows(rows, (text.is_not_null() & ~usable, f"{name} is not a number in {{places}}"))
        rows = rows.with_columns(pl.when(usable).then(number).alias(name))
    rows = rows.with_columns(pl.col("start_s").fill_null(0.0))
    faults.rows(
        rows,
        (pl.col("start_s") < 0, "negative start_s in {places}"),
        (pl.col("end_s") <= pl.col("start_s"), "end_s is not after start_s in {places}"),
    )
    return rows.with_columns(duration_s=pl.col("end_s") - pl.col("start_s"))


def _identity(rows: pl.DataFrame, modality: Modality) -> pl.Expr | pl.Series:
    """The given utterance_id, or one made from the row, independent of the order of the rows.

    From a path: its stem if no other file has it, else the whole path, with the suffix only if needed. Pieces of one
    file are distinguished by their start. From a text: a hash of it and its label; equal rows are numbered.
    """
    if "utterance_id" in rows.columns:
        return pl.col("utterance_id")
    if modality == "text":
        pairs = rows.select(pl.col("label", "text").fill_null("")).iter_rows()
        keys = pl.DataFrame({"key": [hashlib.sha256("\n".join(pair).encode()).hexdigest()[:16] for pair in pairs]})
        number = pl.int_range(1, pl.len() + 1).over("key")
        return keys.select(pl.when(number > 1).then(pl.format("{}-{}", "key", number)).otherwise("key")).to_series()
    path = pl.col("path")
    whole = path.str.replace(r"\.[^./]*$", "")
    stem = whole.str.split("/").list.last()
    longer = pl.when(path.n_unique().over(whole) == 1).then(whole).otherwise(path)
    name = pl.when(path.n_unique().over(stem) == 1).then(stem).otherwise(longer)
    if modality == "image":
        return name
    start = "@" + (pl.col("start_s") * 1000).round().cast(pl.Int64).cast(pl.String) + "ms"
    return pl.when(pl.len().over("path") > 1).then(name + start).otherwise(name)


class _Faults:
    """What is wrong with a manifest, collected so that one message tells it all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[tuple[str, str]] = []

    def add(self, what: str, fix: str) -> None:
        """Note a fault of the whole table, and what to do about it."""
        self.found.append((what, fix))

    def rows(self, rows: pl.DataFrame, *rules: Rule) -> None:
        """Note the rules that rows break, each with the first of these rows."""
        unit = "row" if self.path.suffix.lower() == ".parquet" else "line"
        content = pl.col("path" if "path" in rows.columns else "text").cast(pl.String).fill_null("")
        text = content.str.replace_all(r"\s+", " ").str.strip_chars()
        short = pl.when(text.str.len_chars() <= 200).then(text).otherwise(text.str.slice(0, 200) + " ...")
        excerpt = pl.when(text == "").then(pl.lit("")).otherwise(pl.format(" ({})", short))
        for phrase in broken(rows, rules, pl.format(unit + " {}{}", pl.col(_LINE), excerpt)):
            self.add(phrase, "correct the manifest and run it again")

    def refuse(self) -> None:
        """Raise a CorpusError with every fault; do nothing if there is none."""
        if not self.found:
            return
        faults = [what for what, _ in self.found]
        fixes = dict.fromkeys(fix for _, fix in self.found)
        listed = f" {faults[0]}" if len(faults) == 1 else "".join(f"\n    {what}" for what in faults)
        raise CorpusError(f"{self.path}:{listed}", fix="\n  ".join(fixes))


def _image_folder(root: Path) -> pl.DataFrame:
    """Rows of a folder of images: `<class>/…`, or `train/<class>/…`, `test/<class>/…`, optionally `dev/<class>/…`."""
    files = [path.relative_to(root) for path in files_below(root)]
    top = {path.parts[0].lower() for path in files if len(path.parts) > 1}
    depth = 1 if top and top <= PARTS.keys() else 0  # an official split
    strays = [root / path for path in files if _is_image(path) and len(path.parts) < depth + 2]
    if strays:
        raise CorpusError(
            f"{counted(len(strays), 'image')} outside the sub-folders of the classes: {_some(strays)}",
            fix="move them into a sub-folder, or out of the folder",
        )
    others = [path for path in files if not _is_image(path) and len(path.parts) >= depth + 2]
    rows = [
        (path.as_posix(), path.parts[depth], PARTS[path.parts[0].lower()] if depth else None)
        for path in files
        if _is_image(path)
    ]
    if not rows:
        raise CorpusError(
            f"{root} has no images ({', '.join(FORMATS)}) in sub-folders, one per class",
            fix="give such a folder, or a table: " + GET_IT,
        )
    if others:
        log.warning("%s: left out %s without an image: %s", root, counted(len(others), "file"), _some(others))
    schema = {"path": pl.String, "label": pl.String, "group": pl.String}
    table = pl.DataFrame(rows, schema, orient="row")
    return table.with_columns(index=pl.lit(None, pl.Int64), **{_LINE: pl.lit(0)})


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in FORMATS


def _some(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths[:NAMED_AT_MOST])


CORPUS = Corpus(
    name="manifest",
    title="your own recordings, texts or images, listed in a table; or a folder of images by class",
    licence="yours",
    classes=(),
    prepare=prepare,
    fingerprint=None,
    how_to_get=GET_IT,
    modality=None,
)
