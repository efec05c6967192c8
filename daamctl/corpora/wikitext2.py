"""WikiText-2: 720 Wikipedia articles in three parts, for masked language modelling (`daamctl mlm`).

Source: S. Merity et al., "Pointer Sentinel Mixture Models", ICLR 2017; CC BY-SA 3.0. It has no classes, so it is no
corpus of `daamctl download`: a folder is registered with `daamctl mlm --from`. Any text of the same form can be read:
UTF-8, one paragraph a line, ` = Title = ` between blank lines before every article.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from daamctl.corpora.files import lines_of, read_text
from daamctl.errors import CorpusError
from daamctl.store.files import sha256_file
from daamctl.store.tables import read_any_parquet

FILES = {
    "train": ("train.txt", "wiki.train.tokens", "wiki.train.raw", "train*.parquet"),
    "valid": ("valid.txt", "wiki.valid.tokens", "wiki.valid.raw", "valid*.parquet"),
    "test": ("test.txt", "wiki.test.tokens", "wiki.test.raw", "test*.parquet"),
}
"""Part -> names that its file may have, in order of preference."""
PUBLISHED = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
"""Tokens of a complete file as published: words, and one end for every line."""
ARTICLES = {"train": 600, "valid": 60, "test": 60}
UNKNOWN = "<unk>"
"""What stands for a rare word in the text."""
TRAIN_SHARE = 0.8
"""Share of the articles of the valid file that train where there is no train file; the others choose the epoch."""
GET_IT = "put train.txt (optional), valid.txt and test.txt of WikiText-2 into DIR: daamctl mlm --from DIR"
_TITLE = re.compile(r"\s*= [^=].* =\s*")


@dataclass(frozen=True)
class Article:
    """One article: file and number, e.g. `test-07`, and its paragraphs and headings, joined by spaces."""

    name: str
    text: str


@dataclass(frozen=True)
class TextFile:
    """What was found in one file, or in the pieces of one.

    Args:
        tokens: words, and one end for every line, which is how the sizes of WikiText are counted.
        complete: whether both numbers are those of the published file.
    """

    name: str
    sha256: str
    articles: int
    tokens: int
    complete: bool


@dataclass(frozen=True)
class Texts:
    """A folder of text.

    Args:
        dev: articles on which the epoch is chosen.
        files: part -> facts of its file.
        split: where `train` and `dev` come from, one sentence.
        notes: differences from the published files, one sentence each.
    """

    train: Sequence[Article]
    dev: Sequence[Article]
    test: Sequence[Article]
    files: dict[str, TextFile]
    split: str
    notes: list[str] = field(default_factory=list)


def read(root: Path) -> Texts:
    """Read a folder; without a train file, the valid file is split by articles.

    Raises:
        CorpusError: a file is missing, empty or not UTF-8, or there are too few articles to split.
    """
    if not root.is_dir():
        raise CorpusError(f"WikiText-2: there is no folder {root}", fix=GET_IT)
    parts: dict[str, list[Article]] = {}
    files: dict[str, TextFile] = {}
    for part, names in FILES.items():
        # the raw and the tokenised version have different names; the first in the list is preferred
        paths = next((found for name in names if (found := sorted(root.glob(name)))), [])
        if not paths and part == "train":
            continue
        if not paths:
            raise CorpusError(f"WikiText-2: {root} has no {part} file ({', '.join(names)})", fix=GET_IT)
        shown = ", ".join(path.name for path in paths)
        pieces = [re.search(r"-of-(\d+)", path.stem) for path in paths]
        if {int(piece[1]) if piece else 1 for piece in pieces} != {len(paths)}:
            raise CorpusError(
                f"WikiText-2: {root} has {shown}, which are not all pieces of one {part} file", fix=GET_IT
            )
        lines = [line for path in paths for line in _lines(path)]
        parts[part] = _articles(part, lines)
        if not parts[part]:
            raise CorpusError(f"{root / shown} has no text", fix=GET_IT)
        tokens = sum(len(line.split()) + 1 for line in lines)
        complete = (len(parts[part]), tokens) == (ARTICLES[part], PUBLISHED[part])
        files[part] = TextFile(shown, sha256_file(*paths), len(parts[part]), tokens, complete)
    notes = [
        f"{one.name} is not the published file: {one.articles:,} articles and {one.tokens:,} tokens, "
        f"published are {ARTICLES[part]} and {PUBLISHED[part]:,}."
        for part, one in files.items()
        if not one.complete
    ]
    if "train" in parts:
        split = f"Trained on {files['train'].name}; the epoch is chosen on {files['valid'].name}."
        return Texts(parts["train"], parts["valid"], parts["test"], files, split, notes)
    held = parts["valid"]
    if len(held) < 2:
        raise CorpusError(f"{root / files['valid'].name} has one article, which cannot be split", fix=GET_IT)
    # at least one article on each side
    number = min(len(held) - 1, max(1, round(TRAIN_SHARE * len(held))))
    split = (
        f"There is no train file: the first {number} of the {len(held)} articles of {files['valid'].name} train, the "
        "others choose the epoch."
    )
    return Texts(held[:number], held[number:], parts["test"], files, split, notes)


def _lines(path: Path) -> list[str]:
    """Lines of a file in UTF-8, or of the column `text` of a Parquet file."""
    if path.suffix == ".parquet":
        try:
            column = read_any_parquet(path)["text"].cast(pl.String)
        except (pl.exceptions.PolarsError, OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CorpusError(f"{path}: no column 'text' can be read: {reason}", fix=GET_IT) from error
        return [(line or "").rstrip("\n") for line in column]
    return lines_of(read_text(path))


def _articles(part: str, lines: Sequence[str]) -> list[Article]:
    """Cut the lines before every title; text before the first title is an article too."""
    # so that line `at` has its neighbours at `at` and `at + 2`
    padded = ["", *lines, ""]
    starts = [
        at
        for at, line in enumerate(lines)
        if _TITLE.fullmatch(line) and not padded[at].strip() and not padded[at + 2].strip()
    ]
    ends = [*starts, len(lines)]
    texts = [" ".join(" ".join(lines[a:b]).split()) for a, b in zip([0, *starts], ends, strict=True)]
    return [Article(f"{part}-{number:02d}", text) for number, text in enumerate(filter(None, texts), 1)]
