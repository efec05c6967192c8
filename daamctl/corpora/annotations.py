"""Texts in which annotators have marked entities, as sentences with a tag for every word.

Exports of doccano, Label Studio, Prodigy and spaCy (JSON or JSON lines) and folders of brat hold spans of characters.
Those of SpERT and GLiNER (JSON) hold spans of words. Tables that others save as CSV have a word in each row, or lists
written as text.

A line of a text is a sentence. Punctuation marks, symbols and Chinese and Japanese characters are words of their own. A
word in which a span begins or ends belongs to it as a whole: to cut words there would tell where entities are.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.corpora.files import JSON, alike, files_below, lines_of, read_table, read_text
from daamctl.corpora.groups import part_of
from daamctl.corpora.tags import Sentence
from daamctl.data.spans import OUTSIDE
from daamctl.errors import CorpusError
from daamctl.store.tables import whole_escapes

log = logging.getLogger(__name__)

FIELDS = ("spans", "entities", "label", "labels", "annotations", "ner")
"""Where a text has its spans."""
START, END = ("start", "start_offset", "start_idx", "offset"), ("end", "end_offset", "end_idx")
KIND = ("label", "labels", "type", "entity", "entity_group", "tag", "category")
SURFACE = ("text", "entity", "name", "word", "mention")
"""Where a span has its text, which tells whether its end is part of it."""
LOOKED_AT = 100
"""Texts among which one with a span must be, for a file to be read as one of annotations."""
MANY_FILES = 1000
"""Files of a folder among which one of brat must be."""
SENTENCE = ("sentence #", "sentence_id", "sentence_idx", "sent_id", "sentence")
WORD = ("word", "words", "token", "tokens")
LISTED = (*WORD, "sentence", "text")
"""Names of columns, lower case: the sentence of a word, the word, and lists of words."""
TAG = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags")
OPENING, GAP = re.compile(r"\s*(\[(?=\s*[\[{]))?"), re.compile(r"[\s,]*")
"""What is before the first item of JSON, with the bracket of a list of lists or objects; and between two items."""
OWN = ("id", "group", "speaker")
"""What a text or sentence may tell of itself."""
QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
Read = TypeVar("Read")
Span = tuple[int, int, str]
"""Start, end (excluded) and type of an entity."""


@dataclass(frozen=True)
class Document:
    """A text and the entities in it.

    Args:
        text: the text, or its words.
        words: start and end of each word, where the annotations give them.
        left_out: number of spans whose text is not the one at their place.
    """

    text: str | list[str]
    spans: list[Span]
    words: list[tuple[int, int]] | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0


def read_annotations(path: Path) -> list[Sentence] | None:
    """Read a JSON file of annotated texts, or all of a folder of brat; None: it is another file.

    Raises:
        CorpusError: it is damaged, or no text has a word.
    """
    if path.is_dir():
        return _sentences(path, _of_brat(path))
    if kind_of(path) != "spans":
        return None
    return _sentences(path, _all(path, _of_value))


def kind_of(path: Path) -> Literal["spans", "classes"] | None:
    """What a JSON file, or a folder of brat, says of texts: looks at the first ones only; None: it is another file."""
    if path.is_dir():
        first = islice(files_below(path), MANY_FILES)
        brat = any(file.suffix == ".ann" and file.with_suffix(".txt").is_file() for file in first)
        return "spans" if brat else None
    if path.suffix.lower() not in JSON:
        return None
    try:
        values = list(islice(_values(read_text(path)), LOOKED_AT))
    except (ValueError, RecursionError):
        return None  # whoever reads it says what is wrong
    if any(document.spans for value in values if (document := _of_value(value)) is not None):
        return "spans"
    return "classes" if any(one[1] for value in values if (one := _class_of(value)) is not None) else None


def _values(text: str) -> Iterator[Any]:
    """The items of a JSON list, of JSON lines, or of an object that has them as `annotations`, one at a time.

    Pairs of a text and what spaCy knows of it become objects, as those of other tools.
    """
    text = whole_escapes(text)
    decoder, place = json.JSONDecoder(), _end(OPENING, text, 0)
    while (place := _end(GAP, text, place)) < len(text) and text[place] != "]":
        value, place = decoder.raw_decode(text, place)
        wrapped = isinstance(value, dict) and value.keys() <= {"classes", "annotations"}
        listed = value.get("annotations") if wrapped else None
        for one in listed if isinstance(listed, list) else [value]:
            if isinstance(one, list) and len(one) == 2 and isinstance(one[1], dict):
                yield {"text": one[0], **one[1]}
            else:
                yield one


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where a pattern ends that matches anywhere, perhaps nothing."""
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _all(path: Path, read: Callable[[Any], Read | None]) -> list[Read]:
    """What a function reads from the items of a JSON file; None: an item is something else."""
    try:
        return [one for value in _values(read_text(path)) if (one := read(value)) is not None]
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path} cannot be read as JSON: {error}") from error


def read_classified(path: Path) -> pl.DataFrame:
    """Texts with a class each, as the same tools write them: columns text and label, and perhaps group and speaker.

    Texts without a class are left out.

    Raises:
        CorpusError: the file is damaged, or a text has several classes.
    """
    found = _all(path, _class_of)
    several = [text for text, classes, _ in found if len(classes) > 1]
    if several:
        raise CorpusError(
            f"{path}: {len(several)} of {counted(len(found), 'text')} have several classes, e.g. '{several[0][:60]}'",
            fix="keep those with one",
        )
    rows = [{"text": text, "label": classes[0], **own} for text, classes, own in found if classes]
    columns = ["text", "label", *(name for name in ("group", "speaker") if any(name in row for row in rows))]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))


def _class_of(value: Any) -> tuple[str, list[str], dict[str, str]] | None:
    """A text, its classes and `_own`, as one of the tools writes them; None: something else, or not annotated."""
    if not isinstance(value, dict) or value.get("answer", "accept") != "accept":
        return None
    text, given = value.get("text"), value.get("label", value.get("labels", value.get("accept")))
    if isinstance(value.get("data"), dict):  # Label Studio
        text = value["data"].get("text")
        choices = [mark.get("choices") for mark in _marks(value) or []]
        given = [one for some in choices if isinstance(some, list) for one in some]
    elif isinstance(value.get("cats"), dict):
        given = [name for name, score in value["cats"].items() if isinstance(score, int | float) and score >= 0.5]
    if isinstance(text, str) and isinstance(given, list) and all(isinstance(one, str) for one in given):
        return text, given, _own(value)
    return None


def _own(value: Mapping[str, Any]) -> dict[str, str]:
    """What a text tells of itself, see `OWN`; in Label Studio beside it."""
    given = {**value["data"], **value} if isinstance(value.get("data"), dict) else value
    return {name: str(given[name]) for name in OWN if isinstance(given.get(name), str | int)}


def _marks(task: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """What the first annotator of a task of Label Studio has marked; None: nobody has finished it."""
    given = task.get("annotations")
    done = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    result = next((one.get("result") for one in done if not one.get("was_cancelled")), None)
    if not isinstance(result, list):
        return None
    values = [one.get("value") for one in result if isinstance(one, Mapping)]
    return [one for one in values if isinstance(one, Mapping)]


def _placed(text: str, mark: Mapping[str, Any], span: Span) -> Span | None:
    """A span of Label Studio, whose places may be in UTF-16, in which an emoji is two; None: its text is elsewhere."""
    units = text.encode("utf-16-le")
    start, end = (len(units[: 2 * place].decode("utf-16-le", "ignore")) for place in span[:2])
    given = mark.get("text")
    for found in (span, (start, end, span[2])):
        if not isinstance(given, str) or given.replace("\\n", "\n").split() == text[slice(*found[:2])].split():
            return found
    return None


def _of_value(value: Any) -> Document | None:
    """A text with spans, as one of the tools writes it; None: something else, or not annotated."""
    if not isinstance(value, dict) or value.get("answer", "accept") != "accept":  # Prodigy keeps what is rejected
        return None
    own = _own(value)
    if isinstance(value.get("data"), dict):  # Label Studio
        texts = [one for one in value["data"].values() if isinstance(one, str)]
        marks, text = _marks(value), value["data"].get("text", texts[0] if len(texts) == 1 else None)
        if not isinstance(text, str) or marks is None:
            return None
        placed = [_placed(text, one, span) for one in marks if (span := _span(one, None)) is not None]
        spans = [span for span in placed if span is not None]
        return Document(text, spans, own=own, left_out=len(placed) - len(spans))
    words = value.get("tokenized_text") or value.get("tokens")
    listed = isinstance(words, list) and bool(words) and all(isinstance(word, str) for word in words)
    text = words if listed else value.get(alike("text", list(value)) or "text")
    if not isinstance(text, str) and not (listed and isinstance(text, list)):
        return None
    for name in FIELDS:
        given = value.get(name)
        if isinstance(given, dict):  # type -> text -> spans, as CLUENER has them
            given = [
                {"text": held, "span": span, "type": kind}
                for kind, texts in given.items()
                for held, spans in (texts.items() if isinstance(texts, dict) else ())
                for span in (spans if isinstance(spans, list) else ())
            ]
        found = [_span(one, text) for one in given] if isinstance(given, list) else [None]
        spans = [one for one in found if one is not None]
        if len(spans) < len(found):
            continue
        if listed and "tokenized_text" in value:  # the last word of GLiNER's spans is part of them
            spans = [(start, end + 1, kind) for start, end, kind in spans]
        return Document(text, spans, None if listed else _ends(words), own)
    return None


def _ends(words: Any) -> list[tuple[int, int]] | None:
    """Start and end of the words that Prodigy gives; None if it gives none."""
    given = words if isinstance(words, list) else []
    ends = [(one.get("start"), one.get("end")) for one in given if isinstance(one, Mapping)]
    known = [(start, end) for start, end in ends if isinstance(start, int) and isinstance(end, int)]
    return known if known and len(known) == len(given) else None


def _span(one: Any, text: Any) -> Span | None:
    """A span, as a list of start, end and type, or as an object; None: it is something else."""
    surface = None
    if isinstance(one, dict):
        start, end, kind = (next((one[name] for name in names if name in one), None) for names in (START, END, KIND))
        if isinstance(one.get("span"), list) and len(one["span"]) == 2:
            start, end = one["span"]
        if end is None and isinstance(start, int) and isinstance(one.get("length"), int):
            end = start + one["length"]
        surface = next((one[name] for name in SURFACE if isinstance(one.get(name), str) and one[name] != kind), None)
    elif isinstance(one, list) and len(one) > 2:
        start, end, kind = one[:3]
    else:
        return None
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(kind, str) and kind.strip()):
        return None
    if isinstance(text, str) and surface and text[start:end] != surface == text[start : end + 1]:
        end += 1
    return start, end, kind.strip()


def _of_brat(folder: Path) -> list[Document]:
    """The texts of a folder of brat; their group is the part that their folder is named for."""
    found, left_out = [], 0
    for path in files_below(folder):
        text = path.with_suffix(".txt")
        if path.suffix != ".ann" or not text.is_file():
            continue
        spans = []
        for number, line in enumerate(lines_of(read_text(path)), 1):
            if not line.startswith("T"):  # relations, events and notes
                continue
            kind, _, places = [*line.split("\t"), ""][1].partition(" ")
            if ";" in places:
                left_out += 1
                continue
            try:
                start, end = map(int, places.split())
            except ValueError as error:
                raise CorpusError(f"{path}:{number}: no start and end in '{line[:60]}'") from error
            spans.append((start, end, kind))
        name = path.relative_to(folder).with_suffix("").as_posix()
        part = part_of(name.partition("/")[0]) if "/" in name else None
        found.append(Document(read_text(text), spans, own={"id": name, **({"group": part} if part else {})}))
    if left_out:
        log.warning("%s: left out, of several pieces: %s", folder, counted(left_out, "span"))
    return found


def words_of(text: str) -> list[tuple[int, int]]:
    """Start and end of the words of a text: what spaces separate, and marks, symbols and CJK characters each alone."""
    found: list[tuple[int, int]] = []
    begin = None
    for place, letter in enumerate(text):
        alone = (
            unicodedata.category(letter)[0] in "PS" or "\u3040" <= letter <= "\u9fff" or "\uf900" <= letter <= "\ufaff"
        )
        if begin is not None and (alone or letter.isspace()):
            found.append((begin, place))
            begin = None
        if alone:
            found.append((place, place + 1))
        elif begin is None and not letter.isspace():
            begin = place
    return found if begin is None else [*found, (begin, len(text))]


def _sentences(path: Path, documents: Sequence[Document]) -> list[Sentence]:
    """Sentences of all documents. If one has several, documents are the sources."""
    outside = [
        (one, [start, end])
        for one in documents
        for start, end, _ in one.spans
        if not 0 <= start <= end <= len(one.text)
    ]
    if outside:
        first, place = outside[0]
        shown = first.own.get("id") or str(first.text)
        raise CorpusError(
            f"{path}: {counted(len(outside), 'span')} not within the text, e.g. {place} of '{shown[:60]}' (allowed: 0 "
            f"to {len(first.text)})",
            fix="correct or remove such spans, and run it again",
        )
    told: Counter[str] = Counter({"left out (not at the place of their text)": sum(one.left_out for one in documents)})
    lines = [_lines(document, told) for document in documents]
    several = any(len(one) > 1 for one in lines)
    ids = [document.own.get("id") for document in documents]
    named = None not in ids and len(set(ids)) == len(ids)
    found = []
    for number, (document, sentences) in enumerate(zip(documents, lines, strict=True), 1):
        # the parts of a split may use the same ids
        name = f"{path.stem}-{ids[number - 1] if named else f'{number:06d}'}"
        for line, (words, tags) in enumerate(sentences, 1):
            own = f"{name}-{line}" if several else name
            speaker = document.own.get("speaker") or (name if several else None)
            found.append(Sentence(words, tags, number, 0, own, document.own.get("group"), speaker))
    if not found:
        raise CorpusError(f"{path} has no words")
    for what, number in (+told).items():
        log.warning("%s: %s %s", path, counted(number, "span"), what)
    return found


def _lines(document: Document, told: Counter[str]) -> list[tuple[list[str], list[str]]]:
    """Words and tags of each line of a document. Counts in `told` which spans were changed or left out.

    Of entities that overlap, the one that begins first is kept, and of these the longest.
    """
    text = document.text
    places = [(place, place + 1) for place in range(len(text))] if isinstance(text, list) else document.words
    places = words_of(text) if places is None and isinstance(text, str) else places or []
    tags = [OUTSIDE] * len(places)
    starts, ends = [first for first, _ in places], [last for _, last in places]
    for start, end, kind in sorted(document.spans, key=lambda span: (span[0], -span[1])):
        held = range(bisect_right(ends, start), bisect_left(starts, end))
        if not held or any(tags[index] != OUTSIDE for index in held):
            told["left out (inside another, or without a word)"] += 1
            continue
        tags[held[0] : held[-1] + 1] = [f"B-{kind}", *[f"I-{kind}"] * (len(held) - 1)]
        inner = text[start:end] if isinstance(text, str) else ""
        spaces = len(inner) - len(inner.lstrip()), len(inner) - len(inner.rstrip())
        exact = start + spaces[0], end - spaces[1]
        if (places[held[0]][0], places[held[-1]][1]) != exact:
            told["widened to whole words"] += 1
    found: list[tuple[list[str], list[str]]] = []
    before = None
    for (start, end), tag in zip(places, tags, strict=True):
        word = text[start] if isinstance(text, list) else text[start:end]
        is_new = before is None or (isinstance(text, str) and "\n" in text[before:start] and not tag.startswith("I-"))
        if is_new:
            found.append(([], []))
        found[-1][0].append(word)
        found[-1][1].append(tag)
        before = end
    return found


def column_of(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    """The column with one of the wanted names, in any case; of several, the one whose name is wanted first."""
    known = {name.lower(): name for name in reversed(list(names))}
    return next((known[name] for name in wanted if name in known), None)


def is_tagged_table(table: pl.DataFrame) -> bool:
    """Whether a table of texts has tagged words: a word in each row, or lists written as text."""
    texts = [name for name, kind in table.schema.items() if kind == pl.String]
    tag = column_of(texts, TAG)
    if tag is None or not len(table):
        return False
    if (table[tag][0] or "").startswith("["):
        return column_of(texts, LISTED) is not None
    return bool(column_of(texts, WORD) and column_of(texts, SENTENCE))


def is_tagged_list(path: Path) -> bool:
    """Whether a CSV file is a table of tagged words; whoever reads it says what is wrong with it."""
    try:
        return is_tagged_table(read_table(path))
    except CorpusError:
        return False


def with_lists(table: pl.DataFrame) -> pl.DataFrame:
    """Turn a table for which `is_tagged_table` holds into one with a sentence in each row: tokens, tags, and `OWN`.

    The name of a sentence may be in its first row alone. Each document may count its sentences anew.
    """
    table = table.select(name for name, kind in table.schema.items() if kind == pl.String or name in OWN)
    tag, own = column_of(table.columns, TAG) or "", [name for name in OWN if name in table.columns]
    if (table[tag][0] or "").startswith("["):
        word = column_of(table.columns, LISTED) or ""
        return table.select(*own, tokens=_listed(table[word]), tags=_listed(table[tag]))
    word, name = column_of(table.columns, WORD) or "", column_of(table.columns, SENTENCE) or ""
    own = [one for one in own if one != "id"]  # that of a word
    rows = table.select(
        *own, tokens=pl.col(word).fill_null(""), tags=pl.col(tag), id=pl.col(name).replace("", None).forward_fill()
    ).with_columns(run=pl.col("id").rle_id())
    rows = rows.with_columns(pl.col(own).cast(pl.String).replace("", None).forward_fill().over("run"))
    sentences = rows.group_by("run", "id", *own, maintain_order=True).agg("tokens", "tags").drop("run")
    return sentences.drop("id") if sentences["id"].is_duplicated().any() else sentences


def _listed(cells: pl.Series) -> pl.Series:
    """Lists that are written as text, as Python or numpy prints them; other cells are divided at spaces."""
    lists = [
        [one or two for one, two in QUOTED.findall(cell)] if cell.startswith("[") else cell.split()
        for cell in cells.fill_null("").to_list()
    ]
    return pl.Series(lists, dtype=pl.List(pl.String))
