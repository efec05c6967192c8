"""Sentences to tag, as rows: plain text, files of columns, and tables.

Columns: item (name in the output), words, tags (BIO; null if unknown).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.config.corpus_keys import COLUMNS
from daamctl.corpora.annotations import kind_of, read_annotations
from daamctl.corpora.conll import TABLES, read_columns, read_rows
from daamctl.corpora.files import lines_of, read_text
from daamctl.corpora.tags import Sentence, split_tag, to_bio
from daamctl.errors import CorpusError
from daamctl.models.inputs import files_of

PLAIN = ".txt"
"""Suffix of a file with one sentence per line."""
SUFFIXES = (PLAIN, *(suffix for suffix in COLUMNS if suffix != PLAIN))
"""Suffixes of files that a folder is searched for."""
SCHEMA: dict[str, Any] = {"item": pl.String, "words": pl.List(pl.String), "tags": pl.List(pl.String)}
FIX = f"give sentences ({', '.join(SUFFIXES)}), or a table of them with a column tokens ({', '.join(TABLES)})"


def read_sentences(inputs: Sequence[str]) -> pl.DataFrame:
    """Find all sentences that the words of a command name.

    Args:
        inputs: files, folders and globs. A `.txt` file has one sentence per line, with spaces between its words;
            others hold columns or are tables, as for the corpus `conll`. A table may lack tags. A folder of brat is
            read as a whole.

    Returns:
        Rows with the columns of `SCHEMA`, in the given order.

    Raises:
        CorpusError: there is no such file or folder, it is of another kind or damaged, or no sentence is left.
    """
    rows: list[Any] = []
    for word in inputs:
        folder = Path(word)
        if folder.is_dir() and kind_of(folder):
            rows += [_named(folder, one) for one in read_annotations(folder) or []]
        else:
            rows += [row for path in files_of(word, SUFFIXES) for row in _of_file(path)]
    if not rows:
        raise CorpusError("there is no sentence to tag", fix=FIX)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def lines_as_sentences(lines: Iterable[str]) -> pl.DataFrame:
    """Lines as sentences, named by their number from 1; empty ones are left out."""
    return pl.DataFrame(list(_of_lines(lines, "")), schema=SCHEMA, orient="row")


def _of_lines(lines: Iterable[str], prefix: str) -> Iterable[tuple[str, list[str], None]]:
    for number, line in enumerate(lines, 1):
        if words := line.split():
            yield f"{prefix}{number}", words, None


def _of_file(path: Path) -> Iterable[tuple[str, Sequence[str], Sequence[str] | None]]:
    suffix = path.suffix.lower()
    if suffix == PLAIN:
        lines = lines_of(read_text(path))
        if any(lines) and all(_is_tagged(line) for line in lines if line.strip()):
            raise CorpusError(
                f"{path} has a word and its tag on each line, but {PLAIN} means one sentence per line",
                fix=f"rename it to {path.with_suffix(COLUMNS[0]).name}",
            )
        return _of_lines(lines, f"{path}:")
    if suffix in TABLES:
        return [_named(path, one) for one in read_rows(path, tagged=False, fix=FIX)]
    if suffix in SUFFIXES:
        return [_named(path, one) for one in read_columns(path)]
    raise CorpusError(f"{path} is of another kind than the model reads", fix=FIX)


def _named(path: Path, sentence: Sentence) -> tuple[str, Sequence[str], Sequence[str] | None]:
    tags = to_bio(sentence.tags) if sentence.tags else None
    return sentence.name or f"{path}:{sentence.place}", sentence.words, tags


def _is_tagged(line: str) -> bool:
    fields = line.split()
    return len(fields) > 1 and split_tag(fields[-1]) is not None
