"""Files that users bring: folders of recordings, images and texts, and tables of them."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

import polars as pl

from daamctl.artifacts.utterances import Modality
from daamctl.corpora.groups import part_of
from daamctl.corpora.images import FORMATS
from daamctl.errors import ConfigError, CorpusError, first_few, listing, suggest
from daamctl.store.tables import (
    decoded,
    parsed_json,
    parsed_json_lines,
    read_any_parquet,
    read_separated,
    rows_of_json,
    table_of_rows,
    whole_escapes,
    written_name,
)

SUFFIXES: dict[Modality, tuple[str, ...]] = {
    "speech": (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".w64", ".sph", ".caf"),
    "image": tuple(FORMATS),
    "text": (".txt",),
}
"""Suffixes of files that a folder is searched for."""
JSON = (".json", ".jsonl", ".ndjson")
SEPARATED = (".csv", ".tsv", ".txt")
SINGLE = (
    "id", "path", "text", "label", "speaker", "group", "utterance", "utterance_id", "sentence", "start_s", "end_s",
)  # fmt: skip
"""Columns of one value a row."""
BELOW_PEOPLE = ("lesion", "lesion_id", "slide_id", "wsi_id")
"""Columns of what a person may have several of, each with several items."""
ALIKE = {
    "path": ("where the file is", (
        "file", "file_name", "filename", "file_path", "filepath", "audio", "audio_path", "wav", "wav_path", "image",
        "image_path", "img", "audio_filepath", "slice_file_name")),
    "text": ("the text", ("content", "document", "review", "tweet", "comment", "message", "utterance", "sentence")),
    "tokens": ("the words", ("words",)),
    "tags": ("their tags", ("ner_tags", "ner", "labels", "bio")),
    "label": ("the class", (
        "class", "target", "gold_label", "emotion", "emotions", "emo", "emo_class", "category", "labels", "y",
        "sentiment", "intent", "topic", "label_text", "label_name")),
    "group": ("the fold, or the training and test part", ("split", "split_set", "fold", "subset", "partition")),
    "speaker": ("who an item comes from", (
        "speaker_id", "spk", "spk_id", "spkr_id", "author", "author_id", "subject", "subject_id", "participant",
        "participant_id", "patient", "patient_id", "client_id", "user", "user_id", "writer", "writer_id",
        "reviewer_id", *BELOW_PEOPLE)),
    "sentence": ("what is said", ("sentence_id",)),
    "utterance_id": ("the name of an item", ("id", "utt_id")),
    "start_s": ("where an item begins in its file, in seconds", ("start", "start_time", "begin", "onset", "offset")),
    "end_s": ("where it ends", ("end", "end_time", "stop")),
}  # fmt: skip
"""Column -> what it tells, and names that others give it."""
HEAD = 10_000
"""Bytes of a table that tell its columns."""
ID = re.compile(r"(?!.*(?i:class|label|target|category))((.*[a-z_ -])?ID|.*(Id|[_ -]id)|id|asin)$")
"""Names of columns of ids, other than those of classes."""
DIALOGUE = (
    "dialogue", "dialogue_id", "dialog", "dialog_id", "conversation", "conversation_id", "conv_id", "session",
    "session_id", "call", "call_id", "meeting", "meeting_id", "recording", "recording_id", "interview", "interview_id",
)  # fmt: skip
"""Names of columns that tell in which conversation something is said."""
ROLE = (
    r"(?i)^((speaker|spkr?|s|channel|ch|person|p)?[ _-]?([a-z]|\d{1,2})|agent|customer|caller|callee|user|system|"
    r"assistant|operator|client|therapist|doctor|patient|interviewer|interviewee|host|guest|teacher|student)$"
)
"""How speakers are called that are told apart within a conversation only."""
MOST_ROLES = 6

PAIRS = (
    ("premise", "hypothesis"), ("context", "hypothesis"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"), ("text1", "text2"), ("question1", "question2"), ("question", "sentence"),
    ("question", "passage"), ("question", "context"), ("title", "text"), ("title", "body"), ("title", "description"),
    ("title", "content"), ("title", "review"), ("subject", "body"), ("subject", "message"),
)  # fmt: skip
"""Names of two columns that are a text together."""
NESTED = re.compile(r"\s*\[\s*\[\s*\{")
FIELD = re.compile(r"\{([^{}]+)\}")
"""A column in a template, as in `{title} {body}`."""
HEAR = "task_metadata.json"
"""File in a folder of vectors that HEAR's evaluation kit made."""
ROOT = "{data_root}/"
"""What SpeechBrain writes before a path that is relative to the folder of the data."""

log = logging.getLogger(__name__)


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below a folder, in the order of their names, without hidden ones; `above`: folders that led here."""
    real = folder.resolve()
    if real in above:  # a link to a folder that it is in
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from files_below(path, (*above, real))
        elif path.is_file() or path.is_symlink():  # not a pipe, which waits for a writer; a broken link is told later
            yield path


def tell_unused(path: Path, columns: Sequence[str], known: Sequence[str]) -> None:
    """Warn about columns that a file may have under another name, among those that are `known` and that it lacks."""
    for role in (role for role in ALIKE if role in known and role not in columns):
        if name := alike(role, columns):
            what = ALIKE[role][0]
            log.warning("%s: the column '%s' is not used; if it tells %s, rename it '%s'", path.name, name, what, role)


def roles_doubt(rows: pl.DataFrame, source: Path, columns: Mapping[str, str], word: str) -> list[str]:
    """A sentence if speakers seem to be roles, such as A and B of every conversation, so that many count as one.

    Args:
        source: what `daamctl new` reads.
        columns: our columns -> those of the source, where they differ.
        word: for a speaker.
    """
    within = next((name for name in rows.columns if name.lower() in DIALOGUE), "path")
    if not {within, "speaker"} <= set(rows.columns) or not rows["speaker"].str.contains(ROLE).all():
        return []
    names = rows["speaker"].unique().sort()
    if len(names) > MOST_ROLES:  # as people are numbered, who may all be in each of some sessions
        return []
    per_dialogue = rows.drop_nulls(within).group_by(within).agg(pl.col("speaker").n_unique())["speaker"].to_list()
    if len(per_dialogue) <= len(names) or 2 * sum(per_dialogue) < max(3, len(names)) * len(per_dialogue):
        return []
    template = "-".join(f"{{{columns.get(name, name)}}}" for name in (within, "speaker"))
    named = ",".join(f"{role}={name}" for role, name in {**columns, "speaker": template}.items() if role != name)
    make = f"daamctl new NAME --from {quote(str(source))} --columns {quote(named)}"
    return [
        f"the {word}s {first_few(names.to_list())} are in most of {len(per_dialogue):,} values of '{within}'; if they "
        f"are other people in each, all of one name count as one {word}: {make}"
    ]


def alike(role: str, columns: Sequence[str]) -> str | None:
    """The first of some columns that others use for what is in ours, e.g. speakerId for speaker; None: none.

    People come before what is theirs, e.g. patient_id before lesion_id.
    """

    def plain(name: str) -> str:
        return re.sub(r"[\s_-]", "", name.lower())

    others = {plain(name) for name in (role, *ALIKE.get(role, ("", ()))[1])}
    found = [name for name in columns if plain(name) in others]
    return min(found, key=lambda name: plain(name) in map(plain, BELOW_PEOPLE), default=None)


def names_items(table: Path) -> bool:
    """Whether a table, of which only the beginning is read, has a column of files or texts with a usual name."""
    with table.open("rb") as file:
        head = file.read(HEAD).decode(errors="replace")
    names = (
        re.findall(r'"(\w+)"\s*:', head)
        if table.suffix.lower() in JSON
        else re.split(r'[",;\t\r]+', head.split("\n")[0])
    )
    return any(alike(role, names) for role in ("path", "text"))


def renames(missing: Iterable[str], columns: Sequence[str]) -> dict[str, str]:
    """Missing column -> what it is called here; nothing for those that are not there at all."""
    return {name: other for name in missing if (other := alike(name, columns))}


def renaming(found: Mapping[str, str]) -> str:
    """What `renames` has found, as advice."""
    return "rename the " + listing("column", [f"'{other}' to {name}" for name, other in found.items()])


def text_pair(columns: Iterable[str]) -> tuple[str, ...]:
    """The two columns that are a text together; empty if there are none."""
    lower = {name.strip().lower(): name for name in columns}
    return next(((lower[one], lower[other]) for one, other in PAIRS if {one, other} <= lower.keys()), ())


def check_named(given: Mapping[str, str], known: Sequence[str], source: Path, columns: Sequence[str]) -> None:
    """Check the columns that `daamctl new --columns` names: ours -> that of the source, or a template of several.

    Raises:
        CorpusError: one is not known, or the source lacks it.
    """
    for role, name in given.items():
        if role not in known:
            what = f"--columns has {role}={name}; '{role}' is no column that it can name"
            raise CorpusError(what, fix=suggest(role, known))
        if absent := [one for one in named_columns(name, columns) if one not in columns]:
            what = f"--columns has {role}={name}; there is no '{absent[0]}': {source} has the columns"
            raise CorpusError(f"{what} {first_few(columns, 20)}", fix=suggest(absent[0], columns))


def named_columns(name: str, columns: Sequence[str]) -> list[str]:
    """The columns that `--columns` reads for one of ours: that of this name, or those in braces of a template."""
    return [name] if name in columns else list(dict.fromkeys(FIELD.findall(name))) or [name]


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template such as `{title} {body}` with the values of its columns; missing ones are empty, and 3.0 is 3."""

    def text(field: re.Match[str]) -> str:
        value = values[field[1]]
        if value is None:
            return ""
        return str(int(value) if isinstance(value, float) and value.is_integer() else value)

    return FIELD.sub(text, template).strip()


def with_templates(table: pl.DataFrame, given: Mapping[str, str]) -> pl.DataFrame:
    """A table with a column for every template that `--columns` gives, under the template as its name."""
    for template in given.values():
        fields = named_columns(template, table.columns)
        if fields != [template]:
            texts = [filled(template, row) for row in table.select(fields).iter_rows(named=True)]
            table = table.with_columns(pl.Series(template, texts, pl.String))
    return table


def relabelled(rows: pl.DataFrame, labels: Mapping[str, str]) -> pl.DataFrame:
    """Rows whose labels have the names that `daamctl new --labels` gives; words have no `label`.

    Raises:
        ConfigError: there is no such label.
    """
    if not labels:
        return rows
    known = rows["label"].cast(pl.String) if "label" in rows.columns else pl.Series(dtype=pl.String)
    if unknown := sorted(set(labels) - set(known)):
        found = first_few(sorted(set(known.drop_nulls())), 20) or "none"
        raise ConfigError(
            f"--labels names {first_few(unknown)}, but the labels are {found}", fix="correct --labels or --pattern"
        )
    return rows.with_columns(label=known.replace(dict(labels)))


def match_names(ids: Sequence[str | None], names: Iterable[str]) -> list[str | None]:
    """The one of some names (paths) that each id means: by the whole name or its last parts; None: none or several.

    Endings of recordings, images and texts do not count. An id of one part of an official split means none of another.
    """
    endings = {ending for group in SUFFIXES.values() for ending in group}

    def short(name: str) -> str:
        ending = Path(name).suffix
        return name.removesuffix(ending) if ending.lower() in endings else name

    def tails(name: str) -> Iterator[str]:
        """The name, and what is left of it without the first folder, without the first two, and so on."""
        while name:
            yield name
            name = name.partition("/")[2]

    known: dict[str, str | None] = {}
    for name in names:
        for tail in tails(short(name)):
            known[tail] = name if known.get(tail, name) == name else None

    def parts(name: str) -> set[str | None]:
        return {part_of(folder) for folder in name.split("/")[:-1]} - {None}

    wanted = [short((given or "").strip().replace("\\", "/")) for given in ids]
    found = [next((known[tail] for tail in tails(name) if tail in known), None) for name in wanted]
    pairs = [(one, parts(name), parts(one or "")) for name, one in zip(wanted, found, strict=True)]
    return [None if ours and theirs and not ours & theirs else one for one, ours, theirs in pairs]


def read_text(source: Path | BinaryIO) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, or in UTF-16 with one.

    Raises:
        CorpusError: it cannot be read, or is in another encoding.
    """
    try:
        if isinstance(source, Path):
            return decoded(source.read_bytes(), quote(str(source)))
        return decoded(source.read())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        name = source if isinstance(source, Path) else "standard input"
        raise CorpusError(f"{name} cannot be read: {reason}") from error


def one_hot(table: pl.DataFrame) -> pl.Series | None:
    """The label of each row of a table with a column for each class, of 0 and 1, or of the shares of raters.

    Returns:
        The class with the 1, or the largest share (null where several have it); None: there are no such columns.
    """
    texts = table.select(pl.col(name).cast(pl.String) for name, kind in table.schema.items() if not kind.is_nested())
    flags = [one.name for one in texts if set(one) <= {"0", "1", "0.0", "1.0", "false", "true"}]
    classes = texts.select(pl.col(flags).is_in(["1", "1.0", "true"]))
    if len(flags) < 2 or (classes.sum_horizontal() != 1).any():
        numbers = texts.select(pl.all().cast(pl.Float64, strict=False))
        classes = numbers.select(one for one in numbers if one.is_between(0, 1).all(ignore_nulls=False))
        if classes.width < 3 or not len(classes) or not classes.sum_horizontal().is_between(0.98, 1.02).all():
            return None
    shares = classes.to_numpy()
    largest: pl.Series = pl.Series("label", classes.columns)[shares.argmax(axis=1)]
    is_tie = (shares == shares.max(axis=1, keepdims=True)).sum(axis=1) > 1
    return largest.set(pl.Series(is_tie), None)


def is_list(cells: pl.Series) -> bool:
    """Whether the first cell is a list of numbers, written as text."""
    return bool(len(cells)) and re.match(r"\[\s*-?[\d.]", cells[0] or "") is not None


def lines_of(text: str) -> list[str]:
    """Lines of a text. `splitlines` would also split at rare characters within lines, e.g. form feeds."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _json_table(text: str, *, lines: bool) -> pl.DataFrame:
    """A table in JSON: see `rows_of_json`, or an object a line, which files of any ending may have."""
    if NESTED.match(text):  # dialogues, each a list of its utterances
        dialogues = [one for one in parsed_json(text) if isinstance(one, list)]
        rows = [
            {"dialogue": str(at), **row} for at, one in enumerate(dialogues) for row in one if isinstance(row, dict)
        ]
        return table_of_rows(rows)
    listed = text.lstrip().startswith("[")
    if listed or lines:
        with suppress(pl.exceptions.PolarsError):  # columns of several kinds; what follows needs several times as long
            read = pl.read_json if listed else pl.read_ndjson
            return read(io.BytesIO(whole_escapes(text).encode()), infer_schema_length=None)
    try:
        content = parsed_json_lines(text) if lines and not listed else parsed_json(text)
    except json.JSONDecodeError:
        content = parsed_json_lines(text)
    if isinstance(content, dict) and not any(isinstance(one, dict | list) for one in content.values()):
        content = [content]
    return table_of_rows(_rows_of_parts(content) or rows_of_json(content))


def _rows_of_parts(content: Any) -> list[dict[str, Any]]:
    """Rows of an object with a list for each part of a split, as CLINC's {"oos_train": [[text, label], ...]}.

    Of rows that are pairs, the place with fewer values is the label. Empty: it is another object.
    """
    named = {name: part_of(name) for name in content} if isinstance(content, dict) else {}
    if len(set(named.values())) < 2 or None in named.values():
        return []
    if not all(isinstance(rows, list) for rows in content.values()):
        return []
    rows = [(named[name], row) for name, rows in content.items() for row in rows]
    if all(isinstance(row, dict) for _, row in rows):
        return [{**row, "group": part} for part, row in rows]
    if not all(isinstance(row, list) and len(row) == 2 and all(isinstance(one, str) for one in row) for _, row in rows):
        return []
    label = min((0, 1), key=lambda place: len({row[place] for _, row in rows}))
    return [{"text": row[1 - label], "label": row[label], "group": part} for part, row in rows]


def _plain(table: pl.DataFrame) -> pl.DataFrame:
    """A table whose columns are texts, numbers, truth values or nested: times in seconds, dates as text, no bytes."""
    kinds = table.schema.items()
    as_seconds = [name for name, kind in kinds if kind == pl.Duration]
    as_text = [name for name, kind in kinds if kind in (pl.Date, pl.Datetime, pl.Time, pl.Categorical, pl.Enum)]
    return table.with_columns(
        pl.col([name for name, kind in kinds if name in SINGLE and kind.is_float()]).fill_nan(None),
        (pl.col(as_seconds).dt.total_microseconds() / 1e6).round(6),
        pl.col(as_text).cast(pl.String),
        pl.col(pl.Decimal).cast(pl.Float64),
        *(pl.lit(None, pl.String).alias(name) for name, kind in kinds if kind == pl.Binary),
    )


def is_file(path: Path) -> bool:
    """Whether there is a file; False also for what is too long to be a path, e.g. a text."""
    try:
        return path.is_file()
    except OSError:
        return False


def numbers_of_lines(table: pl.DataFrame, path: Path) -> pl.Series:
    """Number of the line in a file of separated columns with which each row of its table begins; else of the row."""
    line = pl.int_range(1, pl.len() + 1)
    if path.suffix.lower() in SEPARATED:  # below the heading, and cells may hold line breaks
        breaks = pl.sum_horizontal(pl.col(pl.String).str.count_matches("\n").fill_null(0))
        line = line + 1 + breaks.cum_sum().shift(1, fill_value=0)
    return table.select(line.cast(pl.Int64)).to_series()


def read_table(path: Path, *, fix: str | None = None) -> pl.DataFrame:
    """Read a Parquet or JSON file (`rows_of_json`, or an object a line), or any other as separated columns of texts.

    Args:
        fix: what to do if it cannot be read.

    Returns:
        The table; names of columns have no spaces around them.

    Raises:
        CorpusError: the file is no such table, two of its columns have one name, or one of `SINGLE` has lists.
    """
    try:
        if path.suffix.lower() == ".parquet":
            table = read_any_parquet(path)
        elif path.suffix.lower() in JSON:
            table = _json_table(read_text(path), lines=path.suffix.lower() != ".json")
        else:
            table = read_separated(read_text(path))
    except (pl.exceptions.PolarsError, OSError, ValueError, LookupError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorpusError(f"{path} cannot be read as a CSV, Parquet or JSON table: {reason}", fix=fix) from error
    names = [written_name(name).strip() for name in table.columns]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        is_item = twice[0].isdecimal()  # unlike the name of a column
        raise CorpusError(
            f"{path} has several columns named {first_few(twice)}",
            fix="write their names into the first line" if is_item else "remove or rename all but one of them",
        )
    if pattern := next((name for name in names if name == "*" or re.fullmatch(r"\^.*\$", name)), None):
        raise CorpusError(  # polars would take it for the names of others
            f"{path} has a column named '{pattern}'",
            fix="rename it, or write the names of the columns into the first line",
        )
    table = table.rename({name: name.strip() for name in table.columns if written_name(name).strip()})
    table = _plain(table).with_columns(pl.col(pl.String).str.strip_prefix(ROOT))
    if listed := next((name for name in SINGLE if name in table.columns and table[name].dtype.is_nested()), None):
        raise CorpusError(f"{path}: the column '{listed}' has several values in a row; it must have one", fix=fix)
    return table
