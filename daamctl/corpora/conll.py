"""Sentences with a tag for every word: files of columns, as those of CoNLL, and tables of your own.

A file of columns has one word per line and an empty line after each sentence. Columns are separated by tabs, or else by
spaces; the first is the word, the last its tag, or the other way round. `-DOCSTART-` lines separate documents. A table
(Parquet or JSON) has one row per sentence, with lists of strings in `tokens` and `tags`, and perhaps `id`, `group` and
`speaker`. Tags of any scheme in `corpora.tags` become BIO, and so do types without prefixes and prefixes without types.

A folder holds the parts of an official split: train, dev and test, with or without a suffix.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.config.corpus_keys import COLUMNS
from daamctl.corpora.annotations import is_tagged_table, kind_of, read_annotations, with_lists
from daamctl.corpora.base import PREPARED_TOKENS, Corpus
from daamctl.corpora.files import JSON, lines_of, read_table, read_text, renames
from daamctl.corpora.groups import PARTS, official_groups, part_and_rest, with_test_part
from daamctl.corpora.hub import features_of, names_of, reading
from daamctl.corpora.tags import ALLOWED, Sentence, broken, scheme_of, split_tag, to_bio, with_types
from daamctl.data.spans import word_id
from daamctl.errors import CorpusError, first_few, listing

log = logging.getLogger(__name__)

DOCUMENT = "-DOCSTART-"
"""First column of a line before a document."""
NUMBER = re.compile(r"\d+([-.]\d+)?")
LOOKED_AT = 10_000
"""Bytes of a file that tell whether it has tagged words."""
MOST_WORDS = 10_000
"""Longest sentence, in words."""
TABLES = (".parquet", ".csv", *JSON)
NAMES = ("tokens", "tags", "id", "group", "speaker")
SPLIT_TABLES = (*TABLES, *(suffix for suffix in COLUMNS if suffix != ".txt"))
"""Suffixes of files in whose names words for parts are looked for first; a `.txt` may be a list of anything."""
_SHOWN = 3

GET_IT = (
    "write a file with a word and its tag on each line and an empty line after each sentence (or a folder with train, "
    "dev and test, or a Parquet table with the columns tokens and tags), and make a pipeline of it: "
    "daamctl new NAME --from FILE"
)
FIX = "correct the file and run it again"
WRITE_BIO = "write each word and its tag in BIO on a line, and an empty line after each sentence"
"""What to do with files of CoNLL-2012, and those without tags."""


def read_columns(path: Path, *, columns: int | None = None, fix: str = FIX) -> list[Sentence]:
    """Read a file of columns, in UTF-8.

    Args:
        columns: expected number of columns; None: two or more, as many as in its first line.

    Raises:
        CorpusError: the file is missing or not UTF-8, or a line has another number of columns, no word or no tag.
    """
    found: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    document = 0
    start = "" if columns is None else f"; {columns} are expected"
    # an empty line ends the last sentence too
    lines = [*lines_of(read_text(path)), ""]
    if lines[0].startswith("#begin document"):
        raise CorpusError(f"{path} is in the form of CoNLL-2012, with entities in brackets", fix=WRITE_BIO)
    table = _without_comments([_fields(line) for line in lines])
    rows = [fields for fields in table if len(fields) > 1 and fields[0] != DOCUMENT]
    word_at, tag_at = 0, -1
    # some corpora have the tag first, e.g. MIT Movie
    if rows and split_tag(rows[0][-1]) is None and split_tag(rows[0][0]) is not None:
        word_at, tag_at = -1, 0
    # as in Universal Dependencies, where 3-4 and 5.1 are no words; of two columns the first is a word, e.g. a year
    whole = [fields for fields in rows if fields[0].isdecimal() and len(fields) > 2]
    numbered = len(rows) > 1 and len(whole) > 0 and all(NUMBER.fullmatch(fields[0]) for fields in rows)
    if numbered:
        rows = whole
        if all("NER=" in fields[-1] for fields in rows):  # within the last column of CoNLL-U, as of hr500k
            for fields in rows:
                fields[-1] = fields[-1].partition("NER=")[2].partition("|")[0]
        # of many columns the first that has a tag in every row; 0 is the number, 1 the word
        tagged = [at for at in range(2, len(rows[0])) if all(split_tag((row[at:] or [""])[0]) for row in rows)]
        word_at, tag_at = 1, next(iter(tagged), -1)
        if not any(split_tag(fields[tag_at]) for fields in rows):  # as of Universal Dependencies
            raise CorpusError(f"{path}: no column has tags ({ALLOWED})", fix=WRITE_BIO)
    whole_tags = with_types(fields[tag_at] for fields in rows)
    for number, (line, fields) in enumerate(zip(lines, table, strict=True), 1):
        if numbered and fields and not fields[0].isdecimal():
            continue
        if fields and fields[0] != DOCUMENT:
            # a first line with one column is an error itself, not the rule for all others
            columns = columns or max(2, len(fields))
            # some rows of Universal NER lack what is behind the tag
            if len(fields) != columns and not (numbered and 0 < tag_at < len(fields) < columns):
                what = "a single column" if len(fields) == 1 else f"{len(fields)} columns"
                start = start or f"; {columns} are expected, a word first and its tag last"
                raise CorpusError(f"{path}:{number}: {what} ('{line.strip()[:60]}'){start}", fix=fix)
            word, tag = fields[word_at], whole_tags.get(fields[tag_at], fields[tag_at])
            if not word or split_tag(tag) is None:
                what = f"tag '{tag}' is none of {ALLOWED}" if word else "no word"
                raise CorpusError(f"{path}:{number}: {what}", fix=fix)
            words.append(word)
            tags.append(tag)
            if len(words) > MOST_WORDS:
                raise CorpusError(
                    f"{path}:{number}: a sentence of more than {MOST_WORDS:,} words",
                    fix="put an empty line after each sentence",
                )
        elif words:
            found.append(Sentence(words, tags, number - len(words), document))
            words, tags = [], []
        document += bool(fields) and fields[0] == DOCUMENT
    if not found:
        raise CorpusError(f"{path} has no words", fix=fix)
    return found


def is_columns(path: Path) -> bool:
    """Whether a file of any suffix begins with tagged words, one a line."""
    try:
        with path.open("rb") as file:
            head = file.read(LOOKED_AT)
    except OSError:  # whoever reads it says what is wrong
        return False
    lines = lines_of(head.decode(errors="replace"))[: -1 if len(head) == LOOKED_AT else None]  # the last one may be cut
    table = _without_comments([_fields(line) for line in lines])
    rows = [fields for fields in table if fields and fields[0] != DOCUMENT]
    return bool(rows) and all(len(row) > 1 and (split_tag(row[0]) or split_tag(row[-1])) for row in rows)


def _fields(line: str) -> list[str]:
    """Columns of a line, separated by tabs or else by spaces; none if it is empty."""
    if not line.strip():
        return []
    return [one.strip(" ") for one in line.split("\t")] if "\t" in line else [one for one in line.split(" ") if one]


def _without_comments(table: Sequence[list[str]]) -> list[list[str]]:
    """The fields of lines, none for comments before a sentence, such as `# id 7` and `# text = ...`.

    A word may be `#` too, so a comment is what has another number of columns than words have, or no tag.
    """
    columns = next((len(fields) for fields in table if fields and fields[0] != DOCUMENT and fields[0][:1] != "#"), 0)
    found: list[list[str]] = []
    for fields in table:
        comment = bool(fields) and (fields[0] == "#" or fields[0].startswith("# ")) and not (found and found[-1])
        found.append(fields)
        if comment and not (len(fields) == columns and any(split_tag(one) for one in (fields[0], fields[-1]))):
            found[-1] = []
    return found


def read_parts(files: Mapping[str, Path], *, columns: int, what: str, fix: str) -> pl.DataFrame:
    """Read the files of columns of an official split as `token_rows`.

    Args:
        files: group -> file.
        columns: as for `read_columns`.
    """
    missing = [path for path in files.values() if not path.is_file()]
    if missing:
        names = ", ".join(path.name for path in missing)
        raise CorpusError(f"{missing[0].parent} does not look like {what}: no {names}", fix=fix)
    return token_rows([(part, path, read_columns(path, columns=columns, fix=fix)) for part, path in files.items()])


def token_rows(parts: Sequence[tuple[str | None, Path, Sequence[Sentence]]]) -> pl.DataFrame:
    """Rows of a token corpus, with tags in BIO.

    The source of a word (`speaker`) is its document if every part has two or more, else its sentence.

    Args:
        parts: group, file and sentences of each part; group None: groups are yet to be formed, or given by the
            sentences.

    Raises:
        CorpusError: the name of a sentence occurs twice in a part.
    """
    scheme = scheme_of(sentence.tags for _, _, sentences in parts for sentence in sentences)
    # a single document would put a whole part into one unit, and leave nothing to resample
    documents = all(len({sentence.document for sentence in sentences}) > 1 for _, _, sentences in parts)
    given = [{sentence.name for sentence in sentences if sentence.name} for _, _, sentences in parts]
    # each part may count its sentences anew
    anew = len(set().union(*given)) < sum(map(len, given))
    columns: dict[str, list[object]] = {name: [] for name in PREPARED_TOKENS}
    for part, path, sentences in parts:
        lone = []
        for number, sentence in enumerate(sentences, 1):
            name = sentence.name or f"{part or 'sentence'}-{number:06d}"
            if anew and sentence.name:
                name = f"{part}-{name}"
            document = f"{part or 'all'}-document-{sentence.document:05d}" if documents else None
            # the place is that of the first word, so these are line numbers
            lone += [sentence.place + index for index in broken(sentence.tags, scheme)]
            length = len(sentence.words)
            columns["utterance_id"] += [word_id(name, position) for position in range(length)]
            columns["sentence"] += [name] * length
            columns["position"] += range(length)
            columns["text"] += sentence.words
            columns["label"] += to_bio(sentence.tags)
            columns["speaker"] += [sentence.speaker or document or name] * length
            columns["group"] += [sentence.group or part] * length
        if lone:
            log.warning(
                "%s: %s where %s has none (line %s); what continues no entity is read as the begin of one",
                *(path, counted(len(lone), "tag"), scheme, first_few([str(line) for line in lone], _SHOWN)),
            )
    rows = pl.DataFrame(columns, schema=PREPARED_TOKENS)
    twice = rows.filter(pl.col("utterance_id").is_duplicated())
    if len(twice):
        raise CorpusError(f"{parts[0][1]}: two sentences are named '{twice['sentence'][0]}'", fix="rename one of them")
    return rows


def part_files(root: Path) -> dict[str, Path]:
    """Group -> file of an official split in a folder: train, dev and test, also by other names in `groups.PARTS`.

    Without such files, tables, or else `.txt` files, whose names are equal apart from such a word, e.g.
    train_sent_emo.csv and test_sent_emo.csv.

    Raises:
        CorpusError: two files are of the same part.
    """
    files = [path for path in sorted(root.iterdir()) if path.is_file() and not path.name.startswith(".")]
    named = [(PARTS[path.stem.lower()], path) for path in files if path.stem.lower() in PARTS]
    if not named:
        by_form: dict[tuple[str, str], list[tuple[str, Path]]] = {}
        for path in files:
            if found_in := part_and_rest(path.stem):
                by_form.setdefault((path.suffix.lower(), found_in[1]), []).append((found_in[0], path))
        splits = {form: one for form, one in by_form.items() if len(one) > 1 and "train" in dict(one)}
        tables = [one for (kind, _), one in splits.items() if kind in SPLIT_TABLES]
        texts = [one for (kind, _), one in splits.items() if kind == ".txt"]
        named = chosen[0] if len(chosen := tables or texts) == 1 else []
    found: dict[str, Path] = {}
    for part, path in named:
        if part in found:
            raise CorpusError(
                f"{root} has two files of the part '{part}': {found[part].name} and {path.name}",
                fix="move one of them out of the folder",
            )
        found[part] = path
    return {part: found[part] for part in ("train", "dev", "test") if part in found}


def classes_of(types: Iterable[str]) -> tuple[str, ...]:
    """Tags of entity types in label order: `O`, then `B-` and `I-` of each type."""
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def prepare(root: Path) -> pl.DataFrame:
    """Read a file of columns, a table, or a folder with the parts of an official split; `group` is null without one.

    Raises:
        CorpusError: the file or folder is wrong; the message names the line or row.
    """
    files: dict[str | None, Path] = {None: root}
    if root.is_dir() and kind_of(root):
        return _with_test_part(token_rows([(None, root, read_annotations(root) or [])]), root)
    if root.is_dir():
        files = dict(part_files(root).items())
        if not files:
            raise CorpusError(f"{root} has no files named train, dev and test, with or without a suffix", fix=GET_IT)
    elif not root.is_file():
        raise CorpusError(f"no file {root}", fix=GET_IT)
    elif root.suffix.lower() not in (*TABLES, *COLUMNS):
        raise CorpusError(
            f"{root} is of an unknown kind (allowed: {', '.join((*COLUMNS, *TABLES))}, or a folder)", fix=GET_IT
        )
    reader = {path: read_rows if path.suffix.lower() in TABLES else read_columns for path in files.values()}
    return _with_test_part(token_rows([(part, path, reader[path](path)) for part, path in files.items()]), root)


def _with_test_part(rows: pl.DataFrame, root: Path) -> pl.DataFrame:
    """Rows with the names of groups that folds use; without a test part, the dev part is it."""
    if set(rows["group"].unique()) == {"train", "dev"}:
        log.warning("%s: no test part, so the dev part is the test part", root)
        rows, _ = with_test_part(rows)
    return official_groups(rows)


def read_rows(path: Path, *, tagged: bool = True, fix: str = GET_IT) -> list[Sentence]:
    """Read a table with one row per sentence.

    Args:
        path: Parquet or JSON.
        tagged: whether there must be tags; without them, those of a sentence are empty.

    Raises:
        CorpusError: a column is missing, or a row has no words, as many tags as words, or a tag of no scheme.
    """
    import pyarrow.parquet as pq

    if (found := read_annotations(path)) is not None:
        return found
    table = read_table(path, fix=fix)
    if is_tagged_table(table):
        table = with_lists(table)
    tag_column = renames(["tags"], table.columns).get("tags", "")
    has_tags = "tags" in table.columns or table.schema.get(tag_column) == pl.List(pl.String)
    lists = NAMES[:2] if tagged or has_tags else NAMES[:1]
    absent = [name for name in lists if name not in table.columns]
    own = renames(absent, table.columns)
    table = table.rename({other: name for name, other in own.items()})
    missing = [name for name in lists if name not in table.columns]
    if missing:
        shown = ", ".join(table.columns)[:200]
        raise CorpusError(f"{path} lacks the {listing('column', missing)}; it has {shown}", fix=fix)
    if tagged and table.schema["tags"] == pl.List(pl.Int64):
        classes = None
        if path.suffix.lower() == ".parquet":
            with reading(path):
                classes = names_of(features_of(pq.read_schema(path)).get(own.get("tags", "tags")))
        if classes is None:
            raise CorpusError(
                f"{path}: the tags are numbers, and their names are not in the file",
                fix="export the data set by Dataset.to_parquet, which keeps the names, or write names for the numbers",
            )
        told = pl.element().replace_strict(dict(enumerate(classes)), default=None, return_dtype=pl.String)
        table = table.with_columns(pl.col("tags").list.eval(told))
    for name in lists:
        if table.schema[name] != pl.List(pl.String):
            raise CorpusError(f"{path}: {name} has {table.schema[name]}; lists of strings are expected", fix=fix)
    given = [name for name in NAMES[2:] if name in table.columns]
    table = table.select(*lists, pl.col(given).cast(pl.String).str.strip_chars().replace("", None))
    whole_tags = with_types(table["tags"].explode().drop_nulls()) if "tags" in lists else {}
    found = []
    for number, row in enumerate(table.iter_rows(named=True), 1):
        words, tags = row["tokens"] or [], [whole_tags.get(tag, tag) for tag in row.get("tags") or []]
        wrong = next((tag for tag in tags if tag is None or split_tag(tag) is None), "O")
        problem = None
        if "tags" in lists and len(words) != len(tags):
            problem = f"{counted(len(words), 'token')} and {counted(len(tags), 'tag')}"
        elif not 0 < len(words) <= MOST_WORDS:
            problem = f"{len(words)} tokens; 1 to {MOST_WORDS:,} are allowed"
        elif not all(word and word.strip() for word in words):
            problem = "an empty token"
        elif wrong != "O":
            problem = f"tag '{wrong}' is none of {ALLOWED}"
        elif empty := [name for name in given if row[name] is None]:
            problem = f"empty {empty[0]}"
        if problem is not None:
            raise CorpusError(f"{path}: row {number} has {problem}", fix=FIX)
        found.append(Sentence(words, tags, number, 0, row.get("id"), row.get("group"), row.get("speaker")))
    if not found:
        raise CorpusError(f"{path} has no rows", fix=fix)
    return found


CORPUS = Corpus(
    name="conll",
    title="your own sentences with a tag for every word: a file or folder of columns, or a table",
    licence="yours",
    classes=(),
    prepare=prepare,
    fingerprint=None,
    how_to_get=GET_IT,
    modality="tokens",
)
