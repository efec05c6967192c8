"""Lists of items whose columns have no names: as text classification and Kaldi write them.

3,"Title","A text"                          a number of a class and texts, perhaps with the names in classes.txt
spam<TAB>A text                             a label and a text, in either order
7<TAB>spam<TAB>A text                       one label and one text, beside numbers, users and the like
__label__spam A text                        as fastText reads it
A text@positive                             as Financial PhraseBank is published
train_text.txt, train_labels.txt            the texts and the labels of a part, a line each, as TweetEval has them
train/seq.in, train/label                   the same, as SNIPS and ATIS have them
pos.txt, neg.txt                            the texts of a class, a line each, also as reviews.pos and reviews.neg
wav.scp, utt2spk, utt2emo, segments         a data folder of Kaldi
"""

from __future__ import annotations

import io
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.corpora.files import lines_of, read_text
from daamctl.corpora.groups import part_of
from daamctl.errors import CorpusError, first_few
from daamctl.store.tables import separator_of

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".tsv", ".txt", ".data", "")
MOST_CLASSES = 1000
MOST_COLUMNS, MOST_OTHERS = 4, 8
"""With more, they are not all texts, but names of users, dates and the like; with more still, nothing is guessed."""
MOST_FILES, LEAST_LINES = 20, 20
"""Files of a class each, and lines that are as many texts."""
POLARITY = {".pos", ".neg", ".neu"}
"""Endings that name a class."""
SEVERAL = r"^\d+(,\d+)+$"
"""Numbers of several classes, as in GoEmotions."""
ID = r"^\s*\w*\d\w*\s*$"
"""A number or a code, as items are named."""
FASTTEXT = re.compile(r"__label__(\S+)[ \t]+(.*\S)\s*")
AT_END = re.compile(r"(.*\S)\s*@(\w+)\s*")
CLASSES = "classes.txt"
"""File beside a list, with the name of each class, the first for 1."""
SCP, SEQUENCES = "wav.scp", "seq.in"
TO_THE_END = re.compile(r"-1(\.0*)?")
"""An end in `segments` that stands for that of the recording."""
NO_LABELS = ("spk", "dur", "num_frames", "num_samples", "num_channels", "uniq", "session", "text", "ctm")
"""`utt2X` that are no labels."""


def read_unnamed(path: Path) -> pl.DataFrame | None:
    """Items with `label` and `text` from a file whose first line is an item; None: it is another kind of file.

    Raises:
        CorpusError: the file cannot be read, or an item has several labels.
    """
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return None
    text = read_text(path)
    lines = [line for line in lines_of(text) if line.strip()]
    if (pairs := _marked(lines, path)) is not None:
        return pl.DataFrame(pairs, schema=["label", "text"], orient="row")
    tabs = bool(lines) and all("\t" in line for line in lines)
    separator, quote = ("\t", None) if tabs else (separator_of(text), '"')
    try:
        table = pl.read_csv(
            io.StringIO(text), separator=separator, has_header=False, infer_schema=False, quote_char=quote
        )
    except pl.exceptions.PolarsError:
        return None
    if len(table) < 4 or not 2 <= table.width <= MOST_OTHERS:
        return None
    recurring = [column.name for column in table if _recurs(column)]
    classes = path.parent / CLASSES
    if (found := _label_and_texts(table, recurring)) is not None:
        return found.with_columns(_named(found["label"], classes))
    # one text and one label among columns of other things, e.g. a number, a label and a text
    full = [column for column in table if not column.null_count()]
    long = [column for column in full if len(column[0].split()) > 2 and 2 * column.n_unique() > len(column)]
    short = [column for column in full if len(column[0].split()) <= 2 and column.name in recurring]
    if len(long) != 1 or len(short) != 1:
        return None
    table = pl.DataFrame({"label": _named(short[0], classes), "text": long[0]})
    single = table.filter(~pl.col("label").str.contains(SEVERAL))
    if several := len(table) - len(single):
        log.warning("%s: %s with several labels left out: an item has one here", path, counted(several, "item"))
    return single


def _marked(lines: Sequence[str], path: Path) -> list[tuple[str, str]] | None:
    """Label and text of lines that mark the label, at their beginning or end; None: they are no such lines."""
    found = [FASTTEXT.fullmatch(line) for line in lines]
    if found and all(found):
        pairs = [(one[1].rstrip(","), one[2]) for one in found if one is not None]
        if several := next((number for number, (_, rest) in enumerate(pairs, 1) if FASTTEXT.match(rest)), None):
            raise CorpusError(f"{path}:{several}: an item has several labels; it must have one")
        return pairs
    found = [AT_END.fullmatch(line) for line in lines]
    pairs = [(one[2], one[1]) for one in found if one is not None]
    return pairs if len(pairs) == len(lines) and 2 <= len(dict(pairs)) <= len(lines) // 2 else None


def _label_and_texts(table: pl.DataFrame, recurring: list[str]) -> pl.DataFrame | None:
    """`label` and `text` of a table whose first or last column is the label, beside texts; None: it is another one.

    Args:
        recurring: columns that may be labels.
    """
    if table.width > MOST_COLUMNS or any(table.null_count().row(0)):
        return None
    for place in (0, table.width - 1):
        labels, others = table.to_series(place), [one for index, one in enumerate(table) if index != place]
        others = [one for one in others if not (one.is_unique().all() and one.str.contains(ID).all())]
        # the first line is an item: its label recurs, and what stands beside it is a text, unlike the name of a column;
        # of two columns that recur, nothing tells which is the label
        if [labels.name] == recurring and any(" " in one[0].strip() for one in others):
            text_of = pl.select(pl.concat_str([one.str.strip_chars() for one in others], separator=" ")).to_series()
            return pl.DataFrame({"label": labels, "text": text_of})
    return None


def _recurs(column: pl.Series) -> bool:
    """Whether a column may be of labels: it has several values, and that of the first line recurs."""
    sizes = Counter(column)
    return sizes[column[0]] > 1 and 2 <= len(sizes) <= min(MOST_CLASSES, len(column) // 2)


def _named(labels: pl.Series, classes: Path) -> pl.Series:
    """The names of numbered classes, if a file has them."""
    names = lines_of(read_text(classes)) if classes.is_file() else []
    known = {str(number): name.strip() for number, name in enumerate(names, 1) if name.strip()}
    return labels.replace(known) if set(labels) <= known.keys() else labels


def read_pairs(folder: Path) -> pl.DataFrame | None:
    """Items with `label`, `text` and `group` from two files for each part of a split; None: there are none.

    Raises:
        CorpusError: the two have different numbers of lines.
    """
    tables = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        part, labels = path.name.removesuffix("_text.txt"), path.with_name(path.name.replace("_text.", "_labels."))
        if (path / SEQUENCES).is_file():
            path, labels = path / SEQUENCES, path / "label"
        elif part == path.name:
            continue
        if not labels.is_file():
            continue
        columns = {"label": lines_of(read_text(labels)), "text": lines_of(read_text(path))}
        if len(columns["label"]) != len(columns["text"]):
            numbers = f"{len(columns['label'])} and {len(columns['text'])}"
            raise CorpusError(f"{labels} and {path.name} have {numbers} lines; a label for each text is expected")
        tables.append(pl.DataFrame(columns).with_columns(pl.col("label").str.strip_chars(), group=pl.lit(part)))
    if not tables:
        return None
    names = _pairs(folder / "mapping.txt")
    return pl.concat(tables).with_columns(pl.col("label").replace(names))


def read_class_files(folder: Path) -> pl.DataFrame | None:
    """Items with `label` and `text` from a file for each class, with a text on every line; None: it has others.

    Raises:
        CorpusError: a file is not UTF-8.
    """
    files = [
        one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and "readme" not in one.name.lower()
    ]
    endings = {one.suffix.lower() for one in files}
    names = [one.stem if endings == {".txt"} else one.suffix[1:] for one in files]
    plain = all(re.fullmatch(r"[^\W\d_]+([-_ ][^\W\d_]+)*", name) and part_of(name) is None for name in names)
    if not 2 <= len(files) <= MOST_FILES or not plain or not all(one.is_file() for one in files):
        return None
    if endings != {".txt"} and not endings <= POLARITY:
        return None
    texts = [[line.strip() for line in lines_of(read_text(one)) if line.strip()] for one in files]
    # a few lines are one text
    if any(len(lines) < LEAST_LINES or any("\t" in line for line in lines[:LEAST_LINES]) for lines in texts):
        return None
    return pl.concat(pl.DataFrame({"label": name, "text": own}) for name, own in zip(names, texts, strict=True))


def kaldi_parts(folder: Path) -> dict[str, Path]:
    """Name -> data folder of Kaldi; of one without parts the name is empty. Empty: there are none."""
    if (folder / SCP).is_file():
        return {"": folder}
    return {one.name: one for one in sorted(folder.iterdir()) if (one / SCP).is_file()} if folder.is_dir() else {}


def read_kaldi(parts: Mapping[str, Path]) -> pl.DataFrame:
    """Recordings of data folders, with utterance_id, path, label and, as far as known, speaker, group and times.

    Kaldi's paths begin where its recipe runs, which is some folder above: the paths are absolute here.

    Raises:
        CorpusError: a folder has no labels, or no recording can be found.
    """
    tables = []
    for name, folder in parts.items():
        table = _kaldi_folder(folder)
        tables.append(table.with_columns(group=pl.lit(name)) if name else table)
    return pl.concat(tables, how="diagonal")


def _kaldi_folder(folder: Path) -> pl.DataFrame:
    recordings = _pairs(folder / SCP)
    if not recordings:
        raise CorpusError(f"{folder / SCP} has no lines with a name and a file")
    if piped := next((one for one in recordings.values() if one.endswith("|")), None):
        raise CorpusError(f"{folder / SCP} has a command, '{piped}', not a file", fix="write the recordings to files")
    file, labels = _kaldi_labels(folder)
    pieces = {key: value.split() for key, value in _pairs(folder / "segments").items()}
    if wrong := [key for key, piece in pieces.items() if len(piece) != 3 or piece[0] not in recordings]:
        raise CorpusError(f"{folder / 'segments'} has no recording, begin and end of {first_few(wrong)}")
    utterances = list(pieces or recordings)
    if missing := sorted(set(utterances) - labels.keys()):
        raise CorpusError(f"{file} lacks {first_few(missing)}")
    paths = [recordings[pieces[one][0] if pieces else one] for one in utterances]
    first = Path(paths[0])
    top = next((above for above in (folder, *folder.absolute().parents) if (above / first).is_file()), None)
    if top is None:
        raise CorpusError(f"{folder / SCP} names {first}, which is in no folder above", fix="correct the paths")
    columns: dict[str, Sequence[str | None]] = {
        "utterance_id": utterances,
        "path": [str((top / one).absolute()) for one in paths],
        "label": [labels[one] for one in utterances],
    }
    if speakers := _pairs(folder / "utt2spk"):
        columns["speaker"] = [speakers.get(one, one) for one in utterances]
    if pieces:
        ends = [None if TO_THE_END.fullmatch(one[2]) else one[2] for one in pieces.values()]
        columns |= {"start_s": [one[1] for one in pieces.values()], "end_s": ends}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def read_kaldi_labels(folder: Path) -> pl.DataFrame:
    """Name (`id`), label and, if known, speaker of each utterance of a data folder of Kaldi.

    Raises:
        CorpusError: it has no labels.
    """
    _, labels = _kaldi_labels(folder)
    speakers = _pairs(folder / "utt2spk")
    rows = {"id": list(labels), "label": list(labels.values()), "speaker": [speakers.get(one, one) for one in labels]}
    return pl.DataFrame(rows).drop([] if speakers else ["speaker"])


def _kaldi_labels(folder: Path) -> tuple[Path, dict[str, str]]:
    """The file with the labels, and the label of each utterance."""
    files = [path for path in sorted(folder.glob("utt2*")) if path.name.removeprefix("utt2") not in NO_LABELS]
    if len(files) != 1:
        names = first_few([path.name for path in files])
        what = f"{names}: which are the labels?" if files else "no labels, such as utt2emo or utt2lang"
        raise CorpusError(f"{folder} has {what}", fix="leave one file utt2<label> there, a line `utterance label` each")
    return files[0], _pairs(files[0])


def _pairs(path: Path) -> dict[str, str]:
    """Key -> the rest of each line of one of Kaldi's tables; empty if there is no such file."""
    lines = lines_of(read_text(path)) if path.is_file() else []
    return {fields[0]: fields[1].strip() for fields in (line.split(None, 1) for line in lines) if len(fields) > 1}
