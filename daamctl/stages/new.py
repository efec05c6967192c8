"""Make a pipeline from data: `pipelines/<name>.yaml`, its line in `params.yaml`, and for a folder a manifest.

Data are a folder of recordings, texts or images, a table of them, or sentences with tagged words. In a folder, names of
files say what label and speaker are (`corpora/file_names.py`). Every recording is decoded once, so that what is wrong
with the data is told before anything is computed. Nothing is copied, except the files that a data set of the Hugging
Face hub holds (`corpora/dataset.py`).
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from daamctl.artifacts.splits import is_official
from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import Modality, encoder_input
from daamctl.compute.progress import progress
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, read_yaml
from daamctl.config.corpus_keys import COLUMNS, MANIFEST, TABLES
from daamctl.corpora import CORPORA
from daamctl.corpora.base import check_labels, class_counts, label_doubts, spelled
from daamctl.corpora.beside import LARGEST, MOST_TABLES, listed_parts, naming_table
from daamctl.corpora.conll import SPLIT_TABLES, WRITE_BIO, is_columns, part_files
from daamctl.corpora.conll2003 import FILES as ENGLISH
from daamctl.corpora.dataset import is_dataset, unpack
from daamctl.corpora.file_names import COLUMNS as FIELDS
from daamctl.corpora.file_names import KIND, NamePattern, propose
from daamctl.corpora.files import (
    HEAR,
    SEPARATED,
    SUFFIXES,
    files_below,
    is_file,
    match_names,
    named_columns,
    names_items,
    numbers_of_lines,
    read_text,
    relabelled,
    roles_doubt,
    text_pair,
)
from daamctl.corpora.groups import PARTS, even_number, have_classes, official_groups, part_of, shared, with_test_part
from daamctl.corpora.images import CONVERT, image_problem
from daamctl.corpora.images import UNREAD as UNREAD_IMAGES
from daamctl.corpora.lists import ItemTable, corpus_of, table_of
from daamctl.corpora.unnamed import read_unnamed
from daamctl.data import audio
from daamctl.data.item_names import speakers_in_names
from daamctl.data.task import Task, task_of
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import folder_called
from daamctl.errors import AudioError, ConfigError, CorpusError, first_few
from daamctl.store.files import expanded, write_text

log = logging.getLogger(__name__)

MANIFESTS_DIR = "manifests"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ENCODER: dict[str, str] = {"speech": "wavlm-base-plus", "image": "dinov2-large", "text": "roberta-large"}
"""The encoder of a new pipeline, if none is named."""
QUICK = "mean, weighted-sum, daam-v1-mlp, daam-v2-mlp, ridge-last, ridge-best-layer, ridge-mean, ridge-concat"
QUICK_FOR_WORDS = "last-layer, weighted-sum, daam-v1-mlp, ridge-last, ridge-best-layer, ridge-concat"
"""Methods of a new pipeline. The convolutional decoder of the default methods takes minutes a fold without a GPU."""
FEW_SPEAKERS = 10
"""With fewer, hardly any lead of one method over another survives the tests over speakers."""
INITIALS, CODED = r"^[A-Z]{2}$", r"([/_])([a-z]{1,2})\d+\.\w+$"
"""How people are called, and a code for a class in the name of a file, as of SAVEE."""
MOST_FILES = 200_000
"""Files among which those of a table are looked for."""
LISTS_FOLDER = re.compile(
    r"(?i)(^|[-_ ])(meta([-_ ]?data)?|labels?|annotations?|(file)?lists?|tables?|[ct]svs?|splits?|partitions?|"
    r"protocols?|transcripts?|manifests?|info)($|[-_ ])"
)
"""Folders of tables, the files of which are in folders beside them."""
MANY_FOLDS = 30
"""More groups than people make as folds on purpose; leave-one-speaker-out has rarely more."""
MANY_ITEMS = 20_000
"""With more, a batch is larger than usual: ten passes are steps enough, and they take a fraction of the time."""
IMBALANCE = 3.0
"""A class with this many times the items of another is told."""
LONGEST_TEXT = 1_000_000
"""Bytes of a text file that is read."""
LISTS, FILE_NAME = ("metadata.csv", "metadata.jsonl"), b"file_name"
"""Lists within a folder of recordings or images, and a column that they have, as the library `datasets` reads them."""
UNLABELLED = {"unsup", "unlabeled", "unlabelled", "_background_noise_"}
"""Folders of items without a label, as of IMDB and Speech Commands."""
LIST_TEXTS = "write a CSV file with the columns text and label, and give that: --from FILE.csv"
MOST_WRAPPERS = 5
BESIDE_DATA = re.compile(r"(?i)\.|__macosx|readme|licen[cs]e")
"""How names begin of what is no data, beside the folder that is."""
PACKED = {".zip": "zipfile", ".tar": "tarfile", ".tgz": "tarfile"}
"""Archives -> the module of Python that unpacks them."""
HUB_NAME = re.compile(r"(?:(?:https?:/+huggingface\.co|hf:)/+datasets/+)?([\w-]+/[\w.-]+)")
ARRAYS = (".npy", ".pt", ".pth", ".ark", ".scp")
IMPORT = "of vectors, write a file first: daamctl import-vectors {source}"
UNREAD = (".m4a", ".mp4", ".aac", ".wma", ".webm", ".amr", ".3gp", ".flv", ".mkv", ".avi", ".mov", ".mpg")
"""Endings of recordings and films whose sound is not read."""


@dataclass
class NewPipeline:
    """What was made.

    Args:
        manifest: path of the table; None: it was given.
        pattern: the pattern that gave the columns; empty for a table.
        facts: what the data are: heading -> text.
        doubts: what is doubtful about them, one sentence each.
    """

    pipeline: Path
    manifest: Path | None
    pattern: str
    facts: dict[str, str]
    doubts: list[str]


@dataclass
class _Found:
    """Items, before the files that they name are read.

    Args:
        corpus: what reads them at `download`.
        source: the file that it reads; None: a manifest that is still to be written.
        files: folder that the paths of the rows are relative to.
        facts, doubts: see `NewPipeline`.
        text: name of the column that the texts have where they come from.
        pattern: what names of files were read by; None: a list names the items.
    """

    corpus: str
    source: Path | None
    files: Path
    modality: Modality
    rows: pl.DataFrame
    facts: dict[str, str]
    doubts: list[str]
    text: str = "text"
    pattern: NamePattern | None = None


def run(
    root: Path,
    name: str,
    folder: Path,
    *,
    pattern: str | None = None,
    labels: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    encoder: str | None = None,
    force: bool = False,
) -> NewPipeline:
    """Write the manifest and the pipeline, and list it in `params.yaml`.

    Args:
        name: of the pipeline and of the manifest.
        folder: recordings, images or texts, in any depth, perhaps with one of `LISTS`; or a table of them, tagged words
            (`corpora.conll`), a file of embeddings (`corpora.vector_file`), or a data set of the Hugging Face hub
            (`corpora.dataset`).
        pattern: where the label and the speaker are in a path; None: look at the names.
        labels: label in the names or the table -> class name.
        columns: column of a manifest -> column of the table or data set; the others of a data set are found by their
            names.
        encoder: preset, Hugging Face id or folder; None: one for the kind of data.
        force: replace a pipeline and a manifest of this name.

    Raises:
        ConfigError: the name, the pattern or the labels are wrong, or the pipeline exists.
        CorpusError: the folder holds no such files, or no labels can be found.
    """
    labels, columns = labels or {}, columns or {}
    manifest = root / MANIFESTS_DIR / f"{name}.csv"
    path = root / PIPELINES_DIR / f"{name}.yaml"
    if pattern is None:
        folder = _unwrapped(folder)
        lists = [folder / one for one in LISTS if (folder / one).is_file()]
        folder = next((one for one in lists if FILE_NAME in one.read_bytes()), folder)
    if (folder / HEAR).is_file():
        raise CorpusError(f"{folder} holds vectors of HEAR's evaluation kit", fix=IMPORT.format(source=folder))
    if folder.is_dir():
        log.info("listing the files below %s", folder)
    held = is_dataset(folder)
    corpus = None if held else corpus_of(folder)
    table = None if held or pattern is not None else table_of(folder, corpus, columns, labels)
    as_it_is = corpus is not None and table is None
    if (as_it_is and (pattern is not None or labels)) or (held and pattern is not None):
        fix = "leave out --labels" if pattern is None else "leave out --pattern"
        raise ConfigError(f"{folder} gives the labels itself", fix=fix)
    if columns and not held and (table is None or not columns.keys() <= table.columns.keys()):
        raise ConfigError(f"{folder} is neither a table of items nor a data set", fix="leave out --columns")
    made = manifest.with_suffix("") if held else manifest
    _check_name(name, [path] if as_it_is else [path, made], force=force)
    with _removed_if_it_fails(manifest, manifest.with_suffix("")):
        if held:
            listed, columns, doubts = unpack(folder, made, columns, labels)
            found = _listed(listed, corpus_of(listed) or MANIFEST, folder, columns, doubts, {})
        elif table is not None:
            found = _tabled(table, folder, manifest, root, labels)
        elif corpus is not None:
            found = _listed(folder, corpus, folder, {}, [], {})
        else:
            found = _found_in(folder, pattern, labels)
        rows, modality, facts, doubts = found.rows, found.modality, found.facts, found.doubts
        if modality in ("speech", "image"):
            rows, sound, told = _examined(found.files, rows, modality, listed=None if found.pattern else folder)
            facts |= sound
            doubts += told
        where = f"say where the class is: {'--pattern' if found.pattern else '--columns label=NAME'}"
        if modality in ("tokens", "embeddings"):  # whose columns have fixed names
            where = f"correct the labels in {folder}"
        if rows["label"].n_unique() < 2:
            raise CorpusError(f"all items have one label: {first_few(rows['label'].unique().to_list())}", fix=where)
        if modality != "tokens":
            check_labels(rows, str(folder), where)
        task = task_of(modality)
        if modality == "tokens" and "speaker" in rows.columns:
            task = task.with_sources(rows["utterance_id"], rows["speaker"])
        speakers = "with {speaker} in --pattern" if found.pattern else "with --columns speaker=NAME"
        doubts += _group_doubts(rows, task) + _class_doubts(rows, modality, task, speakers)
        if modality == "text" and found.text in (pair := text_pair([found.text, *rows.drop("text").columns])):
            doubts.append(
                f"of the texts only '{found.text}' is read; both: --columns 'text={{{pair[0]}}} {{{pair[1]}}}'"
            )
        if modality == "embeddings" and encoder is not None:
            raise ConfigError(f"{folder} has embeddings, which no encoder makes again", fix="leave out --encoder")
        if encoder is not None and encoder not in ENCODERS and expanded(encoder).is_dir():
            encoder = _from_root(expanded(encoder), root)
            encoder = f"./{encoder}" if encoder in ENCODERS else encoder
        folds, train = _fold_settings(rows, modality)
        source = _from_root(found.source or manifest, root)
        template = {"text": found.text} if modality == "text" and named_columns(found.text, []) != [found.text] else {}
        settings = {
            "download": {"corpus": found.corpus, "source": source, **template, **folds},
            "extract": {} if modality == "embeddings" else {"encoder": encoder or ENCODER[encoder_input(modality)]},
            "train": train,
        }
        text = _pipeline_text(name, settings, QUICK_FOR_WORDS if modality == "tokens" else QUICK)
        if found.source is None:
            write_text(manifest, _located(rows, folder, root).write_csv())
        write_text(path, text)
        _list_in_params(root / PARAMS_FILE, name)
        facts |= _facts(rows, task)
        written = None if as_it_is else found.source or manifest
        return NewPipeline(path, written, found.pattern.text if found.pattern else "", facts, doubts)


@contextmanager
def _removed_if_it_fails(*paths: Path) -> Iterator[None]:
    """Remove those of some paths that the block has made, so that the next attempt is not told that they exist."""
    absent = [path for path in paths if not path.exists()]
    try:
        yield
    except BaseException:
        for path in absent:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        raise


def _unwrapped(folder: Path) -> Path:
    """The folder within folders that hold nothing else, as archives unpack to."""
    for _ in range(MOST_WRAPPERS):
        inside = [one for one in folder.iterdir() if not BESIDE_DATA.match(one.name)] if folder.is_dir() else []
        if len(inside) != 1 or not inside[0].is_dir() or is_dataset(folder):
            break
        folder = inside[0]
    return folder


def _tabled(table: ItemTable, source: Path, manifest: Path, root: Path, labels: Mapping[str, str]) -> _Found:
    """Items of a table, which is written as the manifest."""
    columns = table.columns
    items, elsewhere = _renamed(table.table, columns, source, root)
    if source.is_dir() and "path" not in items.columns:
        spoken_files = [one for one in files_below(source) if one.suffix.lower() in SUFFIXES["speech"]]
        form = "--columns 'path=FOLDER/{COLUMN}.wav'"
        told = f"{counted(len(spoken_files), 'recording')} below {source} not read; if the tables name them: {form}"
        elsewhere += [told] if spoken_files else []
    may_tell = {"path", "label"} <= set(items.columns) and "speaker" not in table.has
    if may_tell and (spoken := speakers_in_names(items["path"], items["label"])):
        items = items.with_columns(spoken[1])
        columns = {**columns, "speaker": f"the names of {spoken[0]}"}
    write_text(manifest, relabelled(items, labels).write_csv())
    lines = dict(zip(numbers_of_lines(items, manifest), table.lines, strict=False))
    found = _listed(manifest, MANIFEST, source, columns, [*elsewhere, *table.doubts], lines)
    if not table.named and "columns" not in found.facts:
        label, first = table.table.select("label", "text").row(0)
        told = f"without names; the first item: label = {label}, text = {textwrap.shorten(first, 60)}"
        found.facts["columns"] = told
    return found


def _listed(
    source: Path,
    corpus: str,
    origin: Path,
    columns: Mapping[str, str],
    doubts: list[str],
    lines: Mapping[int, int],
) -> _Found:
    """Items of a list, without the columns that it leaves to us.

    Args:
        origin: what the list was made of, which messages name, because the list is removed then; or the list itself.
        columns: our columns -> those of the origin.
        doubts: on what the list was made of.
        lines: line of the list -> that of the origin, or the item in one without lines; empty: not known.
    """
    try:
        rows = CORPORA.load(corpus).prepare(source)
    except CorpusError as error:
        if source == origin:
            raise
        message = error.message.replace(str(source), str(origin))
        place = "line" if lines and origin.suffix.lower() in SEPARATED else "item"
        message = re.sub(r"\bline (\d+)", lambda at: f"{place} {lines.get(int(at[1]), int(at[1]) - 1)}", message)
        fix = (error.fix or "").replace("the manifest", str(origin)).replace(str(source), str(origin))
        raise CorpusError(message, fix=fix or None) from error
    kinds: dict[str, Modality] = {
        "position": "tokens", "text": "text", "clip_id": "embeddings", "index": "image", "path": "speech"
    }  # fmt: skip
    modality = next(kind for column, kind in kinds.items() if column in rows.columns)
    item = "sentence" if modality == "tokens" else "utterance_id"
    own = rows["speaker"].n_unique() == len(rows) or (rows["speaker"] == rows[item]).all()
    given = {"speaker": not own, "group": rows["group"].null_count() == 0}
    rows = rows.drop([name for name, is_given in given.items() if not is_given])
    if corpus == MANIFEST:
        doubts += roles_doubt(rows, origin, columns, task_of(modality).source)
    starts = rows["text"].str.extract(r"^([a-z-]{2,12}:).").drop_nulls() if modality == "tokens" else pl.Series()
    if 2 * len(starts) > len(rows) and starts.n_unique() == 1:
        doubts.append(f"words begin with '{starts[0]}'; without it: daamctl download wikiann --from {origin}")
    others = [f"{role} = {one}" for role, one in columns.items() if role != one]
    facts = {"columns": ", ".join(others)} if others else {}
    return _Found(corpus, source, source.parent, modality, rows, facts, doubts, text=columns.get("text", "text"))


def _check_name(name: str, paths: Sequence[Path], *, force: bool) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' cannot name a pipeline",
            fix="use up to 64 letters, digits, -, _ and ., beginning with a letter or digit",
        )
    if name in CORPORA:
        raise ConfigError(f"'{name}' is the name of a corpus", fix="take another name")
    taken = [str(path) for path in paths if path.exists()]
    if taken and not force:
        exist = "exists already" if len(taken) == 1 else "exist already"
        raise ConfigError(f"{first_few(taken)} {exist}", fix="take another name, or replace them with --force")


def _scan(folder: Path, suffix: str) -> tuple[Modality, list[str], list[Path]]:
    """Kind of data, its files as POSIX paths relative to the folder, and the files of other kinds.

    Files with `suffix`, which a pattern may end with, choose the kind; else those of which there are most.
    """
    if not folder.is_dir():
        what = f"{folder} is a file, but no list of items" if folder.is_file() else f"no file or folder {folder}"
        raise CorpusError(what, fix=_instead_of(folder))
    files = list(files_below(folder))
    of_kind = {kind: [file for file in files if file.suffix.lower() in ends] for kind, ends in SUFFIXES.items()}
    bare = [file for file in files if not file.suffix or file.suffix[1:].isdecimal()]
    if not any(of_kind.values()) and len({file.parent for file in bare}) > 1:
        of_kind["text"] = bare  # as those of 20 Newsgroups
    named = (kind for kind, ends in SUFFIXES.items() if suffix in ends and of_kind[kind])
    kind = next(named, max(of_kind, key=lambda kind: len(of_kind[kind])))
    chosen = set(of_kind[kind])
    others = [file for file in files if file not in chosen]
    if not of_kind[kind]:
        told, convert = _endings(others)
        known = "; ".join(f"{kind}: {', '.join(suffixes)}" for kind, suffixes in SUFFIXES.items())
        raise CorpusError(
            f"{folder} holds no recordings, images or texts ({known}){f'; it holds {told}' if told else ''}",
            fix=convert or _among(folder, others),
        )
    return kind, [file.relative_to(folder).as_posix() for file in of_kind[kind]], others


def _instead_of(source: Path) -> str:
    """What to give instead of a file that is no list of items, or of what does not exist."""
    suffix = source.suffix.lower()
    if not source.is_file():
        name = None if suffix in TABLES else HUB_NAME.fullmatch(source.as_posix())
        get = f"hf download {name[1]} --repo-type dataset --local-dir FOLDER" if name else ""
        of_hub = f"; for a data set of the Hugging Face hub: {get}, then --from FOLDER"
        return f"correct the path after --from{of_hub if get else ''}"
    if packed := next((PACKED[end] for end in source.suffixes if end in PACKED), None):
        return f"unpack it, and give the folder: python -m {packed} -e {source} FOLDER"
    if suffix == ".gz":
        return f"unpack it, and give {source.with_suffix('')}: python -m gzip -d {source}"
    if suffix in (".xlsx", ".xls", ".ods"):
        return "save it as CSV, and give that"
    if suffix in ARRAYS:
        return IMPORT.format(source=source)
    if is_columns(source):
        return f"name the file of tagged words {source.name}.conll, and give that"
    return f"give a folder, or a file in {', '.join(dict.fromkeys((*TABLES, *COLUMNS)))}"


def _among(folder: Path, files: Sequence[Path]) -> str:
    """What to give instead of a folder of other files."""
    lists = [file.parent for file in files if file.stem.lower() in PARTS and file.suffix in (*TABLES, *COLUMNS)]
    if lists and folder not in lists:
        return f"give the folder of one split, e.g. {lists[0]}"
    if any(file.suffix.lower() in ARRAYS for file in files):
        return IMPORT.format(source=folder)
    some = [file for file in files[:MOST_TABLES] if file.is_file()]  # a link may be broken
    some = sorted(some, key=lambda file: (part_of(file.stem) != "train", not names_items(file), -file.stat().st_size))
    if items := next((file for file in some if corpus_of(file) == MANIFEST or _is_unnamed(file)), None):
        more = f", or name the labels of all parts: --from {folder} --columns label=NAME"
        if len(part_files(folder)) < 2:
            others = [file.name for file in some if file.suffix.lower() in SPLIT_TABLES and file != items]
            more = f" (others: {first_few(others)})" if others else ""
        return f"give a table of items: --from {items}{more}"
    if any(file.suffix.lower().endswith("_conll") for file in files):
        return f"entities in brackets are not read: {WRITE_BIO}"
    tagged = [file.name for file in files[:MOST_TABLES] if file.suffix.lower() in COLUMNS or is_columns(file)]
    if set(ENGLISH.values()) <= set(tagged):
        return f"these are of CoNLL-2003: daamctl download conll2003 --from {folder}"
    if tagged:
        return f"name the files of tagged words train, dev and test; it has {first_few(tagged)}"
    return f"for texts, {LIST_TEXTS}" if files else "correct the path after --from"


def _is_unnamed(file: Path) -> bool:
    """Whether a file is a list of texts without names of columns."""
    with suppress(CorpusError):
        return file.stat().st_size <= LARGEST and read_unnamed(file) is not None
    return False


def _endings(files: Sequence[Path]) -> tuple[str, str]:
    """How many files have which ending, and how to convert those whose sound or image is not read."""
    endings = Counter(file.suffix.lower() or file.name for file in files)
    example = next((file.name for file in files if file.suffix.lower() in UNREAD), None)
    convert = f"convert recordings, e.g. ffmpeg -i {example} {Path(example).stem}.wav" if example else ""
    image = next((file.suffix for file in files if file.suffix.lower() in UNREAD_IMAGES), None)
    convert = convert or (CONVERT.format(image) if image else "")
    return first_few([f"{ending} ({number})" for ending, number in endings.most_common()]), convert


def _found_in(folder: Path, pattern: str | None, labels: Mapping[str, str]) -> _Found:
    """The files below a folder, of the kind of which there are most."""
    modality, found, others = _scan(folder, Path(pattern or "").suffix.lower())
    doubts = []
    aside = [one for one in found if UNLABELLED & {part.lower() for part in Path(one).parts[:-1]}]
    if pattern is None and aside:
        found = sorted(set(found) - set(aside))
        doubts.append(f"{counted(len(aside), 'file')} without a label left out, e.g. {aside[0]}")
    table = naming_table(others, found) if pattern is None else None
    images = modality == "image"
    try:
        known = propose(found, by_folder=images, folder=str(folder)) if pattern is None else NamePattern.parse(pattern)
    except CorpusError as error:
        if table is None:
            raise
        raise CorpusError(f"{error.message}; but {table.told}", fix=f"read that: {table.read}") from error
    if table is not None:
        doubts.append(f"{table.told}; to take the labels from there: {table.read}")
    doubts += known.doubts
    rows, left_out = _rows(folder, found, known, labels)
    if pattern is None and (lone := _without_trained_class(rows, known)):
        part = pl.col("group") if "group" in rows.columns else pl.col("path").str.extract("^([^/]+)/")
        kept = rows.filter(~pl.col("path").is_in(lone))
        doubts.append(f"{counted(len(lone), 'file')} without a class of the training part left out, e.g. {lone[0]}")
        if whole := {*rows.select(part).to_series()} - {*kept.select(part).to_series(), None}:
            doubts.append(f"left out as a whole: {first_few(sorted(whole))}")
        rows = kept
    if "group" not in rows.columns:
        parts, lists = listed_parts(others, rows["path"].to_list())
        if parts:
            others = [file for file in others if file not in lists]
            rows = rows.with_columns(group=pl.col("path").replace_strict(parts, default="train"))
    if others:
        doubts.insert(0, f"left out, of another kind: {'; '.join(filter(None, _endings(others)))}")
    rows, told = with_test_part(rows)
    doubts += told
    if left_out:
        doubts.append(
            f"{counted(len(left_out), 'file')} left out, which the pattern does not fit: {first_few(left_out)}"
        )
    doubts += _format_doubts(rows, known) or _copy_doubts(rows, known)
    if modality == "text":
        rows, told = _with_texts(folder, rows)
        doubts += told
        if "group" in rows.columns and pattern is None and not rows.select("label", "group").is_duplicated().any():
            doubts.append("each class has one file in each group; if a file has many texts, write a table: text,label")
    facts = {}
    may_tell = modality == "speech" and "speaker" not in rows.columns
    if may_tell and (spoken := speakers_in_names(rows["path"], rows["label"])):
        rows, facts = rows.with_columns(spoken[1]), {"columns": f"speaker = the names of {spoken[0]}"}
    return _Found(MANIFEST, None, folder, modality, rows, facts, doubts, pattern=known)


def _without_trained_class(rows: pl.DataFrame, pattern: NamePattern) -> list[str]:
    """Paths in parts that have none of the classes of the training part.

    Their files may be less deep, as of ASL Alphabet and GTSRB, so that the part or a folder in it is read as the class.
    """
    level = pattern.text.partition("{label")[2].count("/") + 1
    above = [f"/{path}".rsplit("/", level)[0] for path in rows["path"]]
    has_parts = "group" in rows.columns
    items = list(zip(rows["path"], rows["label"], rows["group"] if has_parts else above, strict=True))
    trained = {spelled(label) for _, label, part in items if part_of(part) == "train"}
    known = {part for _, label, part in items if not trained or spelled(label) in trained}
    return [path for path, label, part in items if part not in known and (has_parts or part_of(f"{part}/{label}"))]


def _format_doubts(rows: pl.DataFrame, pattern: NamePattern) -> list[str]:
    """Whether most items have files of several formats, as CREMA-D has its recordings."""
    files: dict[tuple[str, str], set[Path]] = {}
    for path, label in rows.select("path", "label").iter_rows():
        files.setdefault((label, Path(path).stem), set()).add(Path(path))
    several = [some for some in files.values() if len({path.suffix for path in some}) > 1]
    every = set[Path]().union(*several)
    if 2 * len(every) <= len(rows):
        return []
    endings = sorted({path.suffix for path in every})
    places = {end: {path.parent.as_posix() for path in every if path.suffix == end} for end in endings}
    choices = [f"--pattern '{pattern.text}{endings[-1]}'"]
    if not set.intersection(*places.values()):  # perhaps pictures and their masks
        choices = [f"--pattern '{pattern.text}{end}' (as in {min(places[end])})" for end in endings]
    return [
        f"the same names as {' and '.join(endings)}, so {len(several):,} items may be there more than once; to "
        f"read one format: {' or '.join(choices)}"
    ]


def _copy_doubts(rows: pl.DataFrame, pattern: NamePattern) -> list[str]:
    """Whether most items are in several folders, as PlantVillage has each leaf in colour, gray and segmented."""
    files: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path, *told in rows.select("path", *(one for one in FIELDS if one in rows.columns)).iter_rows():
        files.setdefault((*told, Path(path).stem), []).append(Path(path).parts)
    depth = Counter(len(parts) for some in files.values() for parts in some).most_common(1)[0][0]
    alike = ([parts for parts in some if len(parts) == depth] for some in files.values())
    several = [some for some in alike if len({parts[:-1] for parts in some}) > 1]
    if 2 * sum(map(len, several)) <= len(rows):
        return []
    level = next(place for place, names in enumerate(zip(*several[0], strict=True)) if len(set(names)) > 1)
    names = sorted({parts[level] for some in several for parts in some})
    numbers = [int(digits) for *_, stem in files if (digits := re.sub(r"\D", "", stem))]
    if max(numbers, default=0) < 2 * len(files) and not all(map(KIND.fullmatch, names)):
        return []  # numbers that begin anew in every folder
    fields = pattern.text.split("/")
    before = depth - len(fields)  # folders that the pattern leaves out
    written = [*["{_}"] * before, *fields]
    written[level] = names[0]
    return [
        f"the same names in {first_few(names)}, so {len(several):,} items may be there more than once; to read one "
        f"folder: --pattern '{'/'.join(written[min(level, before) :])}'"
    ]


def _rows(
    folder: Path, paths: Sequence[str], pattern: NamePattern, labels: Mapping[str, str]
) -> tuple[pl.DataFrame, list[str]]:
    """One row per file that the pattern fits, and the other files."""
    read = {path: pattern.read(path) for path in paths}
    fitting = {path: values for path, values in read.items() if values is not None}
    if not fitting:
        raise CorpusError(
            f"no file in {folder} fits the pattern '{pattern.text}', e.g. {paths[0]}", fix="correct --pattern"
        )
    rows = pl.DataFrame([{"path": path, **values} for path, values in fitting.items()])
    rows = relabelled(rows, labels)
    return rows, [path for path, values in read.items() if values is None]


def _recording(path: Path) -> dict[str, Any]:
    """Read a recording: a hash of its samples, how long it is, its format, and whether it has a fault."""
    audio.probe(path)  # a file that ends early, which decoding takes for a short one
    samples, rate = audio.read_piece(path)
    loudest = abs(samples).max()
    if not math.isfinite(loudest):
        raise AudioError(f"{path} holds samples that are NaN or infinite")
    return {
        "content": hashlib.sha256(samples.tobytes()).hexdigest(),
        "seconds": len(samples) / rate,
        "format": f"{rate} Hz, {counted(samples.shape[1], 'channel')}",
        "silent": bool(loudest < audio.SILENCE),
        f"shorter than {audio.SHORT_S:g} s": len(samples) < audio.SHORT_S * rate,
    }


def _image(path: Path) -> dict[str, Any]:
    """Read an image: a hash of its bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from error
    if problem := image_problem(io.BytesIO(content)):
        raise CorpusError(f"{path} {problem}")
    return {"content": hashlib.sha256(content).hexdigest()}


def _with_texts(folder: Path, rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The table with a column of texts instead of paths, and what is doubtful about them."""
    texts: dict[str, str] = {}
    for path in rows["path"]:
        with suppress(OSError, CorpusError):
            if (folder / path).stat().st_size <= LONGEST_TEXT:
                texts[path] = read_text(folder / path).strip()
    unread = [path for path in rows["path"] if not texts.get(path)]
    kept = rows.filter(~pl.col("path").is_in(unread))
    kept = kept.with_columns(
        text=pl.col("path").replace_strict(texts, return_dtype=pl.String), utterance_id=pl.col("path")
    )
    why = f"empty, not UTF-8, or over a megabyte: {first_few(unread)}"
    if not len(kept):
        raise CorpusError(f"all texts are {why}", fix="for UTF-8: iconv -f latin1 -t utf-8 OLD > NEW")
    told = [f"{counted(len(unread), 'text')} left out: {why}"] if unread else []
    equal = kept.filter(pl.col("text").is_duplicated())
    if len(equal):
        told.append(f"{counted(len(equal), 'text')} stand more than once, e.g. {first_few(equal['path'].to_list(), 2)}")
    return kept.drop("path"), told


def _examined(
    files: Path, rows: pl.DataFrame, modality: Modality, *, listed: Path | None
) -> tuple[pl.DataFrame, dict[str, str], list[str]]:
    """Read every file once: the rows of those that can be read, facts about the sound, and doubts.

    Args:
        files: folder that the paths of the rows are relative to.
        listed: the list that names the files, all of which must then be readable; None: they were found in a folder.
    """
    what, read = ("recordings", _recording) if modality == "speech" else ("images", _image)
    paths = rows["path"].unique(maintain_order=True).to_list()
    broken = [] if listed is None else [path for path in paths if not is_file(files / path)]
    found: list[dict[str, Any]] = []
    if not broken:
        with progress(len(paths), f"reading {files}", what) as bar:
            for path in paths:
                try:
                    found.append({"path": path, **read(files / path)})
                except (AudioError, CorpusError) as error:
                    log.warning("%s", error.message)
                    broken.append(path)
                bar.advance()
    if broken and listed is not None:
        raise CorpusError(
            f"{listed} lists {counted(len(broken), 'file')} that cannot be read: {first_few(broken)}",
            fix="correct the paths, which are relative to its folder, or remove the rows",
        )
    if not found:
        raise CorpusError(f"none of the {what} can be read", fix="correct the path after --from")
    rows = rows.filter(~pl.col("path").is_in(broken))
    table = pl.DataFrame(found).join(
        rows.select("path", "label").unique("path", keep="last"), on="path", maintain_order="left"
    )
    faults = {name: table.filter(name)["path"].to_list() for name in table.select(pl.col(pl.Boolean)).columns}
    told = [
        f"{counted(len(some), 'file')} {'is' if len(some) == 1 else 'are'} {fault}: {first_few(some)}"
        for fault, some in {**faults, "unreadable and left out": broken}.items()
        if some
    ]
    equal = table.group_by("content", maintain_order=True).agg("path", pl.col("label").n_unique())
    equal = equal.filter(pl.col("path").list.len() > 1).select("label", pl.col("path").list.head(3).list.join(" = "))
    for fault, sets in (
        ("equal files", equal),
        ("equal files with different labels", equal.filter(pl.col("label") > 1)),
    ):
        if len(sets):
            told.append(f"{fault}: {first_few(sets['path'].to_list())}")
    return rows, _sound_facts(table) if modality == "speech" else {}, told


def _fold_settings(rows: pl.DataFrame, modality: Modality) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of `download` and of `train` that folds over these items need."""
    download: dict[str, Any] = {}
    large = modality == "tokens" or len(rows) > MANY_ITEMS  # of words, about 16 sentences
    train: dict[str, Any] = {"batch_size": 256} if large else {}
    if "speaker" not in rows.columns or "group" in rows.columns or modality == "tokens":
        return download, train
    own = rows.with_columns(utterance_id=pl.int_range(pl.len()).cast(pl.String))
    stratify = modality != "speech"
    number = even_number(own, 5, stratify=stratify) or 5  # folds that the names give
    if not have_classes(own, number, stratify=stratify):  # as of patients, who are all ill or all well
        fitting = next((number for number in (5, 4, 3) if have_classes(own, number, stratify=True)), None)
        if fitting is not None:
            number = fitting
            download |= {} if stratify else {"folds": "stratified"}
    if number != 5:
        download["num_groups"] = number
    if rows["speaker"].n_unique() == 2:  # nobody is left to choose settings on
        download["num_groups"], train["selection"] = 2, "last"
    return download, train


def _group_doubts(rows: pl.DataFrame, task: Task) -> list[str]:
    """Whether groups share speakers, are many, or are folds with the names of parts, e.g. Train, Test1 and Test2."""
    if "group" not in rows.columns:
        return []
    groups, told = sorted(set(rows["group"])), []
    if "speaker" in rows.columns and (both := shared(rows)):
        told.append(
            f"{counted(len(both), task.source)} in more than one group, so folds are not {task.source}-independent: "
            f"{first_few(both)}; for folds that share none: download: {{folds: stratified}}"
        )
    named = any(group.lower().rstrip("0123456789_- ") in PARTS for group in groups)
    if len(groups) > MANY_FOLDS:
        told.append(
            f"{len(groups):,} groups are as many folds, each with a training of every method; if the column says what "
            "belongs together (speaker, author, document), name it speaker, not group"
        )
    elif named and not is_official(official_groups(rows)["group"]):
        told.append(
            f"the groups {first_few(groups)} are folds of a cross-validation; if they are an official split, name them "
            "train, test and perhaps dev, and leave out the others"
        )
    elif named:
        pairs = rows.select("group", "label").unique().rows()
        if unseen := {label for _, label in pairs} - {label for group, label in pairs if part_of(group) == "train"}:
            told.append(f"classes that the training part lacks, and no method can learn: {first_few(sorted(unseen))}")
    return told


def _class_doubts(rows: pl.DataFrame, modality: Modality, task: Task, how: str) -> list[str]:
    """What is doubtful about classes and speakers; `how`: what names the speakers."""
    told = label_doubts(rows["label"].unique())
    counts = dict(rows["label"].value_counts(sort=True).iter_rows())
    most, least = next(iter(counts)), list(counts)[-1]
    if counts[most] > IMBALANCE * counts[least] and task.by_accuracy:
        told.append(
            f"'{most}' has {counts[most]} items, '{least}' {counts[least]}: read balanced accuracy, not accuracy"
        )
    if "speaker" not in rows.columns:
        codes = rows["path"].str.extract(CODED, 2) if "path" in rows.columns else rows["label"].clear()
        if rows["label"].str.contains(INITIALS).all() and codes.null_count() == 0 and 1 < codes.n_unique() < MANY_FOLDS:
            between = "/".join(rows["path"].str.extract(CODED, 1).unique())
            told.append(
                f"{first_few(sorted(counts))} may be speakers, and {first_few(sorted(set(codes)))} the classes; "
                f"if so: --pattern '{{speaker}}{between}{{label}}{{_:#}}'"
            )
        if modality == "speech":
            told.append(
                "no speaker found in the names: the same voice may be in training and test, which flatters every "
                f"figure; name it {how}"
            )
        rare = sorted(label for label, count in counts.items() if count < 3)
        if rare and "group" not in rows.columns:
            told.append(f"fewer than three items have {first_few(rare)}: some folds cannot train or test it")
        return told
    speakers = rows["speaker"].n_unique()
    if speakers == 1 and "group" not in rows.columns:
        told.append(f"1 {task.source}: none is left to train on; without the speaker, every item counts alone")
    elif speakers < FEW_SPEAKERS:
        told.append(f"{counted(speakers, task.source)}: with so few hardly any difference of methods can be shown")
    classes = rows.group_by("speaker").agg(pl.col("label").n_unique(), pl.len()).filter(pl.col("len") > 1)
    single = classes.filter(pl.col("label") == 1)
    if single["len"].sum() * 2 > len(rows):
        told.append(
            f"{len(single)} of {len(classes)} {task.source}s with several items have one class only: a method may "
            f"learn the {task.source} instead"
        )
    owners = rows.group_by("label").agg(pl.col("speaker").n_unique())
    alone = sorted(owners.filter(pl.col("speaker") < 3)["label"])
    if alone:
        told.append(f"fewer than three {task.source}s have {first_few(alone)}: some folds cannot train or test it")
    return told


def _facts(rows: pl.DataFrame, task: Task) -> dict[str, str]:
    classes = tuple(rows["label"].value_counts(sort=True)["label"])
    facts = {"items": f"{len(rows):,}", "classes": class_counts(rows, classes)}
    if "speaker" in rows.columns:
        sizes = rows["speaker"].value_counts()["count"].to_list()
        items = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        facts[f"{task.source}s"] = f"{len(sizes)}, with {items} items each"
    if "group" in rows.columns:
        groups = sorted(set(rows["group"]))
        split = ", an official split" if is_official(official_groups(rows)["group"]) else ", a fold each"
        facts["groups"] = f"{first_few(groups)}{split}"
    return facts


def _sound_facts(recordings: pl.DataFrame) -> dict[str, str]:
    seconds = recordings["seconds"].sort()
    formats = first_few([f"{name} ({count})" for name, count in Counter(recordings["format"]).most_common()])
    shortest, median, longest = (f"{seconds[index]:.1f}" for index in (0, len(seconds) // 2, -1))
    each = f"{shortest} s each" if shortest == longest else f"{shortest} to {longest} s each, median {median} s"
    return {"sound": f"{seconds.sum() / 60:.1f} min; {each}", "format": formats}


def _renamed(
    table: pl.DataFrame, columns: Mapping[str, str], source: Path, root: Path
) -> tuple[pl.DataFrame, list[str]]:
    """A table with other names of columns, for a manifest of the project; and a doubt if its files are elsewhere.

    Args:
        source: the table's file, or the folder of its parts.
    """
    nested = [name for name in table.columns if table[name].dtype.is_nested()]
    read = [one for name in columns.values() for one in (name, *named_columns(name, []))]
    if (listed := next((name for name in read if name in nested), None)) is not None:
        raise CorpusError(
            f"{source}: the column '{listed}' has several values in a row; it must have one", fix="name another column"
        )
    made_of = named_columns(columns.get("text", ""), [])
    dropped = made_of if "text" in made_of else []  # with them beside the text, `predict` would fill it in again
    others = [name for name in table.columns if name not in (*columns, *columns.values(), *nested, *dropped)]
    table = table.select(*(pl.col(name).alias(column) for column, name in columns.items()), *others)
    if "path" not in table.columns:
        return table, []
    home = (source if source.is_dir() else source.parent).absolute()
    table = table.with_columns(pl.col("path").cast(pl.String))
    paths = table["path"].drop_nulls().to_list()
    first = paths[0] if paths else ""
    # beside the folder of a data set there may be others
    tops = (home, home.parent) if LISTS_FOLDER.search(home.name) else (home,)
    # perhaps from a folder above on, where a recipe ran
    folder = next((top for top in (home, *home.parents) if is_file(top / first)), None)
    if folder is None:  # perhaps in a folder such as clips/, beside the tables
        near = [one for top in tops for one in sorted(top.iterdir()) if one.is_dir() and is_file(one / first)]
        if len(near) > 1:
            near = [one for one in near if all(is_file(one / path) for path in paths)] or near
        if len(near) > 1:
            column = columns.get("path", "path")
            form = column if "{" in column else f"{{{column}}}"
            raise CorpusError(
                f"{source}: '{first}' is in {first_few([str(one) for one in near])}",
                fix=f"name the folder: --columns 'path={near[0].name}/{form}'",
            )
        folder = near[0] if near else None
    for top in tops if folder is None else ():  # perhaps without its ending, or folder, as in tables beside audio/
        names = [one.relative_to(top).as_posix() for one in islice(files_below(top), MOST_FILES)]
        found = match_names(table["path"].to_list(), names)
        if None not in found:
            folder, table, first = top, table.with_columns(path=pl.Series(found)), str(next(iter(found), ""))
            break
    folder = folder or home
    is_elsewhere = is_file(folder / first) and not first.startswith("/") and not (folder / first).is_relative_to(home)
    below = pl.lit(f"{_base(folder, root)}/") + pl.col("path")
    table = table.with_columns(pl.when(pl.col("path").str.starts_with("/")).then("path").otherwise(below))
    table = table if "speaker" in table.columns else table.with_columns(speaker=pl.col("path"))
    return table, [f"the files are not below {home}: the first is {folder / first}"] if is_elsewhere else []


def _base(folder: Path, root: Path) -> str:
    """A folder as a manifest names it: relative to the manifest's own if it is in the project, else absolute."""
    inside = folder.resolve().is_relative_to(root.resolve())
    return os.path.relpath(folder.resolve(), (root / MANIFESTS_DIR).resolve()) if inside else str(folder.resolve())


def _from_root(path: Path, root: Path) -> str:
    """A path as a pipeline names it, wherever the command is typed: relative to the project if it is in it."""
    full = Path(os.path.abspath(path))  # noqa: PTH100 (a link keeps its name)
    return (full.relative_to(root) if full.is_relative_to(root) else full).as_posix()


def _located(rows: pl.DataFrame, folder: Path, root: Path) -> pl.DataFrame:
    """The manifest, with the paths of the files from there."""
    if "path" in rows.columns:
        rows = rows.with_columns(path=pl.lit(f"{_base(folder, root)}/") + pl.col("path"))
        if "speaker" not in rows.columns:
            rows = rows.with_columns(speaker=pl.col("path"))
    first = [name for name in ("path", "text", *FIELDS) if name in rows.columns]
    return rows.select(*first, *(name for name in rows.columns if name not in first))


def _pipeline_text(name: str, settings: Mapping[str, Mapping[str, Any]], methods: str) -> str:
    lines = [yaml.safe_dump({key: dict(value)}, default_flow_style=True, width=200, allow_unicode=True).strip()[1:-1]
             for key, value in settings.items() if value]  # fmt: skip
    encoder = settings["extract"].get("encoder", "the encoder")
    called = Path(encoder).name if folder_called(encoder).is_dir() else encoder
    question = f"# Which layers of {called} tell the classes of '{name}' apart? Made by `daamctl new`.\n"
    lines += ["# Quick without a GPU. Slower by far: dwatt, and the papers' decoder (none, mha, daam-v1, daam-v2)."]
    return question + "\n".join([*lines, f"methods: [{methods}]"]) + "\n"


def _list_in_params(path: Path, name: str) -> None:
    """Add the pipeline to the list in `params.yaml`, and leave everything else, comments included, as it is."""
    if name in (read_yaml(path).get("pipelines") or []):
        return
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^pipelines:[^\n]*\n([ ]*)(?:[ ]*-[^\n]*\n|[ ]*#[^\n]*\n)+", text, re.MULTILINE)
    if found is None:
        raise ConfigError(f"{path} has no list of pipelines, one per line", fix=f"add the line '  - {name}' to it")
    line = f"{found[1]}{yaml.safe_dump([name])}"  # YAML takes a plain `off` for false
    write_text(path, text[: found.end()] + line + text[found.end() :])
