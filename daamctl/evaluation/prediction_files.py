"""Predictions that any tool made: one row per tested item, whatever file they are in.

Reads CSV, TSV, JSON, JSON lines, Parquet, Feather and npz files, and the outputs of many tools (docs/judge.md). Logs of
language models are read by `sample_logs`, lines of text by `text_layouts`. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from daamctl.artifacts.predictions import Predictions
from daamctl.data.task import TASKS
from daamctl.errors import ArtifactError, ConfigError, first_few
from daamctl.evaluation import sample_logs
from daamctl.evaluation.prediction_columns import (
    COLUMNS,
    INDEX,
    SCORES,
    SENTENCES,
    answers_without_names,
    by_last_part,
    by_task,
    column_of,
    named_columns,
    of_table,
    plain_name,
    predicted_name,
    scores_without_names,
    text_of,
)
from daamctl.evaluation.sample_logs import MODEL, Opened
from daamctl.evaluation.text_layouts import of_lines
from daamctl.store.files import fitting, is_pattern
from daamctl.store.tables import (
    decoded,
    parsed_json,
    parsed_json_lines,
    quote_of,
    read_any_parquet,
    read_separated,
    rows_of_json,
    separator_of,
    table_of_rows,
    to_polars,
)

DECIMAL_COMMA = re.compile(r"(?:^|;)\s*[-+]?\d+,\d+\s*(?:;|$)", re.MULTILINE)
"""A number as spreadsheets of some countries write it, beside semicolons."""
TEXTS = (".csv", ".tsv", ".txt", ".score", ".conll", ".ark", ".trn", ".pra", ".json", ".jsonl", ".ndjson")
"""Kinds of files that may be compressed (.gz)."""
PLAIN = (".txt", ".score", ".trn", ".pra", "")
"""Kinds of files that may have lines of words."""
JSON_LINES = re.compile(r"\s*\{.*\}\s*\n\s*\{")
"""How NeMo's `.json` begins."""
ARROW = (".arrow", ".feather")
SUFFIXES = (*TEXTS, ".parquet", *ARROW, ".npz", ".npy", ".eval")
ZSTANDARD = 93
"""Number of this compression in zip files."""
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotImplementedError,
    MemoryError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, pa.ArrowException, pl.exceptions.PolarsError,
)  # fmt: skip
"""What damaged files, and files of another content, raise."""
FOLDS = {
    "fold*-seed*/predictions.parquet": r"fold(\d+)-seed(\d+)",
    "test_*predict.txt": r"test_(?:fold)?(\w*?)_?predict()",
}
"""Files of the folds in a folder, of daamctl and of s3prl -> where their fold and seed are."""
VOXCELEB = r"^(id\d{5})-.+_id\d{5}-"
"""How s3prl names trials of VoxCeleb, with the enrolled speaker first."""
WITHOUT_NAMES = ("s3prl", "sclite", "Kaldi")
"""Tools in whose lines nothing tells whether they are labels or predictions."""
SUMMARY = re.compile(
    r"(?i)(?:^|[\W_])(?:rank(?:ing)?|mean|average|avg|overall|total|param(?:eter)?s?|size|dimensions?|tokens|memory|context|"
    r"length|year|date|cost|price|votes|rtfx?|latency|speed|throughput|flops|co2)(?:$|[\W_])"
)
"""What columns of a leaderboard are called that are no tasks."""
GIVEN = "label of --items"
"""Name of the labels of another file beside a column of the same name."""
MTEB = "mteb_model_meta"
"""What is in a file of MTEB beside predictions."""


def read_predictions(
    path: Path,
    columns: Mapping[str, str] | None = None,
    items: Path | None = None,
    name: str | None = None,
    *,
    metric: str = "accuracy",
) -> Predictions:
    """Read the predictions of a model.

    Args:
        path: a file, or the folder of a method that daamctl trained, or of s3prl's predictions of several folds; or a
            pattern such as seed*.csv, which several of these fit: seeds, folds or tasks of one model.
        columns: what a column is (a key of `COLUMNS`) -> its name in the file, where it is not recognised.
        items: another file with the label, and perhaps the speaker, of every item.
        name: of the model; None: the one that the file tells, else of the file.
        metric: what will rank the models; where it is one of `ERRORS`, answers are not right or wrong.

    Raises:
        ArtifactError: a file is missing, damaged, or no known kind of file.
        ConfigError: a column is missing, or says nothing usable.
    """
    columns = dict(columns or {})
    tool, frame, notes = _read(path, columns, items, metric)
    model = column_of(frame, "model", None, str(path))
    told = [] if model is None else text_of(frame[model].unique()).to_list()
    name = name or (told[0] if len(told) == 1 else None) or names_of([path])[0]
    found = of_table(frame, columns, name, path, metric=metric)
    return replace(found, tool=tool, notes=(*found.notes, *notes))


def read_models(
    source: Path | pl.DataFrame,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    items: Path | None = None,
    *,
    metric: str = "accuracy",
) -> list[Predictions]:
    """Read the predictions of several models in one file or table, which has rows or a column for each.

    Args:
        columns: as in `read_predictions`; or prediction, or correct -> a column for each model; or model -> the column
            that says whose a row is.
        metric: see `read_predictions`.

    Raises:
        ArtifactError, ConfigError: see `read_predictions`; or there is one model.
    """
    single = {role: name for role, name in (columns or {}).items() if isinstance(name, str)}
    wide = {role: names for role, names in (columns or {}).items() if not isinstance(names, str)}
    if len(wide) > 1 or not wide.keys() <= {"prediction", "correct"}:
        raise ConfigError(f"the models of one file differ in prediction or correct, got several {' and '.join(wide)}")
    given = single.pop("model", None)
    what = source if isinstance(source, Path) else Path("the table")
    if isinstance(source, Path):
        tool, frame, notes = _read(source, single, items, metric)
    else:
        tool, frame, notes = "table", by_task(source, single, str(what)), ()
    model = column_of(frame, "model", given, str(what))
    values = {} if wide else scores_without_names(frame, single, metric)
    answers = answers_without_names(frame, single) if model is None and not wide else []
    if len(answers) > 1:
        wide = {"prediction": answers}
    if len(values) > 1 and (model is None or frame[model].is_unique().all()):
        frame, note = _leaderboard(frame, values, model)
        named = {role: name for role, name in single.items() if role != "item" or name in frame.columns}
        notes, model, single = (*notes, note), model or MODEL, {**named, "prediction": "score"}
    if wide:
        found = [
            of_table(frame, {**single, role: name}, name, what, metric=metric)
            for role, names in wide.items()
            for name in names
        ]
    else:
        if model is None or frame[model].n_unique() < 2:
            raise ConfigError(
                f"a comparison needs predictions of two models or more, got 1 in {what}",
                fix="give another file, or name the columns of several models: --prediction A --prediction B, or the "
                "one that says whose a row is: --model; columns of scores, called after models: --metric mean",
            )
        owners = text_of(frame[model])
        if absent := owners.null_count():
            raise ConfigError(f"{what}: {absent} of {len(frame)} rows have no {model}")
        parts = frame.with_columns(owners).partition_by(model, as_dict=True, include_key=False)
        found = [of_table(part, single, str(name), what, metric=metric) for (name,), part in parts.items()]
        notes = (f"whose a row is: {model}", *notes)
    return [replace(one, tool=tool, notes=(*one.notes, *notes)) for one in found]


def _leaderboard(frame: pl.DataFrame, scores: Mapping[str, pl.Series], model: str | None) -> tuple[pl.DataFrame, str]:
    """A row for each model and item, of a table with columns of scores, and a note.

    Args:
        scores: columns called after the models or, if each row is of a model, after the items -> their numbers.
        model: the column that says whose a row is.
    """
    columns = [name for name in scores if model is None or not SUMMARY.search(name)]
    left = [name for name in scores if name not in columns]
    others = [name for name in frame.columns if name not in (*scores, MODEL, "score")] if model is None else [model]
    called = MODEL if model is None else "item"
    numbers = frame.with_columns(**{name: scores[name] for name in columns})
    # not every model has a score for every item
    rows = numbers.unpivot(columns, index=others, variable_name=called, value_name="score").drop_nulls("score")
    told = f"; left out: {first_few(left, 4)}" if left else ""
    return rows, f"each of {len(columns)} columns is of one {called}: {first_few(columns, 3)}{told}"


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names of files: as few last parts of their paths as tell them apart."""
    whole = [path if path.is_fifo() else path.resolve() for path in paths]
    parts = [Path(str(path).removesuffix(".gz")).with_suffix("").parts for path in whole]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{index} {path.stem}" for index, path in enumerate(paths, 1)]  # the same file twice


def _with_items(
    frame: pl.DataFrame, path: Path, items: Path, columns: Mapping[str, str], tool: str, metric: str
) -> tuple[pl.DataFrame, list[str]]:
    """The table with the labels and groups of its items, which are in another file, and notes."""
    kind, other, _ = _open(items, {role: columns[role] for role in ("item", "group") if role in columns}, metric)
    if (kind in WITHOUT_NAMES or other.columns == ["prediction"]) and "label" not in other.columns:
        other = other.rename({"prediction": "label"}, strict=False)
    theirs = {role: name for role, name in columns.items() if name in other.columns}
    given = columns.get("item")  # in one of the files, or both
    here = column_of(frame, "item", None if "item" in theirs and given not in frame.columns else given, str(path))
    there = column_of(other, "item", theirs.get("item"), str(items))
    truth = column_of(other, "label", theirs.get("label"), str(items))
    # submissions to Kaggle call the answers as the labels are called
    if truth is not None and (columns.get("prediction") == truth or {*frame.columns} == {here, truth}):
        frame = frame.rename({truth: predicted_name(truth)}, strict=False)
    added = {} if there is None else {"item": text_of(other[there])}
    sentences = named_columns(other, SENTENCES) if metric == "entity_f1" else []
    for column in (truth, column_of(other, "group", theirs.get("group"), str(items)), *sentences):
        if column is not None and column not in (there, *frame.columns):
            added[column] = other[column]
    if here is None and len(frame) == len(other):
        told = [f"rows without names of items are those of {items.name}, in its order"]
        return frame.with_columns(**added), told
    if here is None:
        raise ConfigError(
            f"{path} has {len(frame)} rows without names of items, and {items} {len(other)}; without names, both "
            "need the same items in the same order",
            fix="name them with --item",
        )
    if there is None:
        raise ConfigError(f"{items} has no column of items", fix="name it with --item")
    if truth in frame.columns and truth != there:
        added[GIVEN] = text_of(other[truth])
    known = pl.DataFrame(added)
    again = known.filter(pl.col("item").is_duplicated())
    if len(again):
        raise ConfigError(f"{items}: item '{again['item'][0]}' occurs more than once ({len(again)} such rows)")
    frame = frame.with_columns(text_of(frame[here]).alias(here))
    if tool == "MTEB":
        frame = _mteb_parts(frame, known["item"], items)
    if short := by_last_part([frame[here], known["item"]]):
        frame, known = frame.with_columns(short[0]), known.with_columns(short[1])
    lacking = frame.filter(~pl.col(here).is_in(known["item"].to_list()))
    if len(lacking):
        raise ConfigError(
            f"{items} lacks {len(lacking)} of the {len(frame)} items of {path}, e.g. '{lacking[here][0]}'"
        )
    told = []
    if unused := known.filter(~pl.col("item").is_in(frame[here].to_list()))["item"].to_list():
        told = [f"{len(unused)} of the {len(known)} items of {items.name} have no prediction, e.g. '{unused[0]}'"]
    order: Literal["left", "right"] = "right" if metric == "entity_f1" else "left"  # the words are in order there
    frame = frame.join(known, left_on=here, right_on="item", how="left", maintain_order=order)
    if truth is not None and GIVEN in frame.columns:
        own, other_labels = text_of(frame[truth]), frame[GIVEN]
        differ = (own != other_labels).sum()
        if differ and {*own} & {*other_labels}:  # else the same labels are written in another way
            raise ConfigError(
                f"{path} and {items} have another {truth} for {differ} of {len(frame)} items",
                fix=f"if this column of {path.name} has the answers: --prediction {truth}",
            )
        frame = frame.drop(GIVEN)
    return frame.rename({here: theirs.get("item", here)}), told


def _read(path: Path, columns: Mapping[str, str], items: Path | None, metric: str) -> Opened:
    """What is in a file or folder, as one table, with the labels of another file."""
    tool, frame, notes = _open(path, columns, metric)
    frame = by_task(frame, columns, str(path))
    if items is None:
        return tool, frame, notes
    frame, told = _with_items(frame, path, items, columns, tool, metric)
    return tool, frame, (*notes, *told)


def _open(path: Path, columns: Mapping[str, str], metric: str | None = None) -> Opened:
    """What is in a file or folder, as one table.

    Args:
        columns: see `read_predictions`; correct is the metric of lm-evaluation-harness, or the scorer of Inspect, that
            says how good an answer is.
        metric: what will rank the models; where it compares texts, a file may have one in each line.
    """
    if is_pattern(path):
        return _fitting(path, columns)
    correct = columns.get("correct")
    if not path.exists():
        raise ArtifactError(f"no file {path}", fix=_beside(path))
    suffix, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
    if suffix == ".gz" and inner in TEXTS:
        suffix = inner
    if suffix not in (*SUFFIXES, "") and not path.is_dir():
        raise _unknown(path, suffix)
    try:
        if path.is_dir():
            return _folder(path)
        if suffix == ".parquet":
            return _parquet(read_any_parquet(path), correct, path)
        if suffix in ARROW:
            return "table", _arrow(path), ()
        if suffix == ".npz":
            return _npz(path)
        if suffix == ".npy":
            return "table", _npy(path), ()
        if suffix == ".eval":
            return _inspect(path, correct)
        text = _text_of(path)
        if suffix == "" and path.is_fifo():  # as <(jq -c ... FILE) is
            suffix = {"{": ".jsonl", "[": ".json"}.get(text.lstrip()[:1], ".csv")
        if suffix in (".jsonl", ".ndjson") or (suffix == ".json" and JSON_LINES.match(text)):
            return _records(rows_of_json(parsed_json_lines(text)), correct, path)
        if suffix == ".json":
            return _json(parsed_json(text), correct, path)
        return _text(text, suffix, path, columns, metric)
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0] or repr(error)
        if "Object arrays" in reason:  # numpy would have the user unpickle them
            reason = "it has Python objects; store texts as texts: array.astype(str)"
        raise ArtifactError(f"{path} cannot be read: {reason}") from error


def _unknown(path: Path, suffix: str) -> ArtifactError:
    return ArtifactError(
        f"{path}: unknown kind of file '{suffix}'; known: {', '.join(SUFFIXES)}",
        fix="save it as one of these, e.g. as CSV; a compressed file must end in .gz",
    )


def _text(text: str, suffix: str, path: Path, columns: Mapping[str, str], metric: str | None) -> Opened:
    """A separated table, or lines of words, whose kind their content tells."""
    has_words = path.name == "text" or metric in ("word_accuracy", "character_accuracy")
    if (found := of_lines(text, plain=suffix in PLAIN, words=has_words)) is not None:
        return found[0], _with_truth(path, found[1], _lines), ()
    if metric in ("word_accuracy", "character_accuracy") and path.suffix == ".txt" and _are_texts(text):
        lines = [line.strip() for line in text.splitlines()]
        return "table", pl.DataFrame({"prediction": lines}, {"prediction": pl.String()}), ()
    if suffix == "" and any(len(line.split()) not in (0, 2) for line in text.splitlines()):
        raise _unknown(path, suffix)
    if suffix == ".ark":
        return _s3prl(path, text, " ")
    first = text.partition("\n")[0].lower()
    if suffix in PLAIN and "\t" not in first and "," not in first:
        words = [line.split() for line in text.splitlines()]
        if words and all(len(row) == 1 for row in words):  # one answer in each line, as of TweetEval
            return "table", pl.DataFrame({"prediction": [row[0] for row in words]}), ()
        return _s3prl(path, text)
    if path.name.endswith("predict.csv") and _truth_of(path).exists():
        head = first.split(",")
        if len(head) == 4 and head[0] not in COLUMNS["item"]:  # else it has a head
            return _s3prl(path, text, ",")
    return _csv(text, {columns.get("item"), columns.get("group")})


def _are_texts(text: str) -> bool:
    """Whether each line is a text, rather than columns, or an item and an answer."""
    lines = text.splitlines()
    if not lines or "\t" in text:
        return False
    head = {*re.split("[,;]", lines[0].strip().lower())}
    return not head & {"item", "id", *COLUMNS["prediction"]} and any(len(line.split()) != 2 for line in lines)


def _text_of(path: Path) -> str:
    content = path.read_bytes()
    return decoded(gzip.decompress(content) if path.suffix.lower() == ".gz" else content)


def _member(path: Path, name: str) -> bytes:
    """A member of a zip file. Inspect packs them with Zstandard, which Python reads from version 3.14 on."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        if info.compress_type != ZSTANDARD:
            return archive.read(name)
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
        file.seek(name_length + extra_length, os.SEEK_CUR)
        packed = file.read(info.compress_size)
    content: bytes = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()
    return content


def _beside(path: Path) -> str | None:
    """Files of known kinds beside a missing one."""
    names = sorted(one.name for one in path.parent.glob("*"))
    found = [name for name in names if Path(name.removesuffix(".gz")).suffix in SUFFIXES]
    return f"in {path.parent}: {first_few(found, 8)}" if found else None


def _csv(text: str, names: Collection[str | None]) -> Opened:
    """A separated table.

    Args:
        names: columns of items or groups, beside those with usual names.
    """
    texts = {}
    for column in read_separated(text):
        is_name = column.name in names or plain_name(column.name) in (*COLUMNS["item"], *COLUMNS["group"])
        # 007 is no number, and as names of items, 1.1 and 1.10 are two
        if column.str.contains(r"^\s*[-+]?0\d" + (r"|\.\d*[1-9]|\d[eE]\d" if is_name else "")).any():
            texts[column.name] = pl.String
    separator = separator_of(text)
    frame = pl.read_csv(
        io.StringIO(text),
        separator=separator,
        quote_char=quote_of(text),
        infer_schema_length=None,
        schema_overrides=texts,
        decimal_comma=separator == ";" and DECIMAL_COMMA.search(text) is not None,
    )
    is_nkululeko = {"predicted", "truth", "uncertainty"} <= set(frame.columns)
    return ("nkululeko" if is_nkululeko else "table"), frame, ()


def _parquet(frame: pl.DataFrame, correct: str | None, path: Path) -> Opened:
    """A table, details of lighteval, or the logits of clips of daamctl, whose record may be beside them."""
    if {"doc", "metric", "model_response"} <= set(frame.columns):
        return sample_logs.lighteval(frame, correct, path)
    if not {"clip_id", "utterance_id", "target", "logits"} <= set(frame.columns):
        return "table", frame, ()
    from daamctl.evaluation.scoring import items_of

    items, source, record = items_of(frame, "utterance"), "speaker", path.with_name("result.json")
    names = dict(zip(frame["target"], frame["label"], strict=True)) if "label" in frame.columns else {}
    if record.is_file():
        run = json.loads(record.read_text(encoding="utf-8"))["run"]
        names |= enumerate(run["classes"])  # also of classes that no item has
        source = TASKS[run["modality"]].with_sources(frame["utterance_id"], frame["speaker"]).source
    classes = [names.get(index, str(index)) for index in range(items.outputs.shape[1])]
    table = {
        "item": items.ids,
        "label": [classes[index] for index in items.targets],
        source if source in COLUMNS["group"] else "group": items.speakers,
    }
    if len(classes) == 2:  # so that models can be ranked by them
        answers = pl.DataFrame(items.outputs, [f"logits_{name}" for name in classes])
    else:
        answers = pl.DataFrame({"prediction": [classes[index] for index in items.predictions]})
    return "daamctl", pl.DataFrame(table, {name: pl.String() for name in table}).with_columns(answers), ()


def _arrow(path: Path) -> pl.DataFrame:
    """A file of Arrow, or a stream, as `datasets` writes it to files of the same ending."""
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    with pa.ipc.open_file(path) if is_file else pa.ipc.open_stream(path) as rows:
        return to_polars(rows.read_all(), validate=True)


def _npy(path: Path) -> pl.DataFrame:
    """Classes, or scores of classes, of items in an order that is known elsewhere."""
    array = np.load(path, allow_pickle=False)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"the array has the shape {array.shape}, not a row for each item")
    array = array.reshape(len(array), -1)
    if array.shape[1] == 1:
        return pl.DataFrame({"prediction": array[:, 0]})
    return pl.DataFrame({"predictions": array.tolist()})


def _inspect(path: Path, scorer: str | None) -> Opened:
    """A log of Inspect, which is a zip file."""
    with zipfile.ZipFile(path) as archive:
        has_header = "header.json" in archive.namelist()  # written at the end
    header = parsed_json(decoded(_member(path, "header.json"))) if has_header else {}
    log = {**header, "samples": parsed_json(decoded(_member(path, "summaries.json")))}
    return sample_logs.inspect(log, scorer, path)


def _npz(path: Path) -> Opened:
    # numpy alone would take what is no zip file for a pickle
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    sizes = {name: len(array) for name, array in found.items() if array.ndim}
    number = max(sizes.values(), default=0)
    columns = {name: array for name, array in found.items() if array.ndim in (1, 2) and len(array) == number}
    known = {name for names in COLUMNS.values() for name in names} - set(SCORES)
    if short := next((name for name in found if name.lower() in known and name in sizes.keys() - columns.keys()), None):
        raise ValueError(f"'{short}' has the shape {found[short].shape}, but there are {number} items")
    frame = pl.DataFrame({name: array if array.ndim == 1 else array.tolist() for name, array in columns.items()})
    tool = "Hugging Face Trainer" if {"predictions", "label_ids"} <= set(columns) else "table"
    return tool, frame, ()


def _json(content: Any, correct: str | None, path: Path) -> Opened:
    """A table, an object item -> answer, or what a tool writes that stores more than one list of items."""
    if isinstance(content, dict):
        if isinstance(content.get("samples"), list):
            return sample_logs.inspect(content, correct, path)
        if {"submitted_ids", "resolved_ids"} <= content.keys():
            return sample_logs.swe_bench(content)
        if isinstance(details := content.get("details"), dict) and "type" in details:
            return sample_logs.open_compass(content, correct, path)
        if MTEB in content:
            return _mteb(content)
        if isinstance(results := content.get("results"), dict) and "evalId" in content:
            return _records(results["results"], correct, path)
        if not any(isinstance(one, dict | list) for one in content.values()):
            content = [{"item": item, "prediction": answer} for item, answer in content.items()]
    return _records(rows_of_json(content), correct, path)


def _mteb(content: Mapping[str, Any]) -> Opened:
    """Predictions of a task of MTEB by subset and split: for each experiment a list of classes, in the items' order."""
    parts = {
        f"{subset}/{split}/": lists
        for subset, splits in content.items()
        if subset != MTEB
        for split, lists in splits.items()
    }
    rows = [
        (f"{part if len(parts) > 1 else ''}{number}", answer, experiment)
        for part, lists in parts.items()
        for experiment, answers in enumerate(lists, 1)
        for number, answer in enumerate(answers)
    ]
    if not all(isinstance(answer, int | float | str) for _, answer, _ in rows):
        raise ValueError("it has predictions of MTEB that are no classes")
    found = pl.DataFrame(rows, ["item", "prediction", "seed"], orient="row", strict=False)
    model = content[MTEB].get("model_name")
    return "MTEB", found.with_columns(pl.lit(model).alias(MODEL)) if model else found, ()


def _mteb_parts(frame: pl.DataFrame, known: pl.Series, items: Path) -> pl.DataFrame:
    """Predictions of MTEB with the items that were tested.

    Each list is of all items, or of one part of a cross-validation: then there are as many predictions as items, and
    the parts are those of scikit-learn's `KFold(shuffle=True, random_state=42)`.
    """
    found = []
    for (prefix,), rows in frame.group_by(pl.col("item").str.replace(r"\d+$", ""), maintain_order=True):
        number = int(known.str.contains(rf"^{re.escape(str(prefix))}\d+$").sum())
        sizes = rows["seed"].value_counts(sort=True)["count"].to_list()
        if set(sizes) != {number}:
            if sum(sizes) != number:
                told = first_few([str(one) for one in sizes], 10)
                raise ConfigError(
                    f"{items} has {number} items of the predictions of MTEB, whose lists have {told}",
                    fix="give a row for every item of the split that was tested, numbered from 0 in its order",
                )
            parts = np.array_split(np.random.RandomState(42).permutation(number), len(sizes))
            order = pl.Series(np.concatenate([np.sort(part) for part in parts]))
            rows = rows.with_columns(item=pl.lit(prefix) + order.cast(pl.String))
        found.append(rows)
    return pl.concat(found)


def _records(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """One object per item."""
    if not records:
        raise ValueError("it has no item")
    if "doc_id" in records[0] and ("resps" in records[0] or "filtered_resps" in records[0]):
        return sample_logs.lm_eval(records, correct, path)
    if {"sample_score", "target"} <= records[0].keys():
        return sample_logs.eval_scope(records, correct, path)
    if "instance_id" in records[0] and isinstance(records[0].get("stats"), list):
        return sample_logs.helm(records, correct, path)
    if "sample_id" in records[0] and isinstance(records[0].get("evaluation"), dict):
        return sample_logs.every_eval_ever(records, correct, path)
    if "model_info" in records[0] and isinstance(records[0].get("evaluation_results"), list):
        return sample_logs.figures_of_data_sets(records, correct)
    if isinstance(records[0].get("spec"), dict) and any("event_id" in one for one in records):
        return sample_logs.openai_evals(records, correct, path)
    if {"promptIdx", "testIdx", "success"} <= records[0].keys():
        return sample_logs.promptfoo(records, correct, path)
    if {"scores_chosen", "scores_rejected", "results"} <= records[0].keys():
        model = pl.lit(path.name.partition("_outputs.")[0]).alias(MODEL)
        return "RewardBench", table_of_rows(records, flat=True).with_columns(model, correct="results"), ()
    tool = "EmoBox" if {"key", "pred"} <= records[0].keys() else "table"
    return tool, table_of_rows(records, flat=True), ()


def _truth_of(path: Path) -> Path:
    """The file of labels that s3prl, ESPnet and fairseq write beside predictions."""
    name = re.sub(r"^hypo?\.", "ref.", path.name)
    return path.with_name(name.replace("predict", "truth").replace("-hyp", "-ref"))


def _s3prl(path: Path, text: str, separator: str | None = None) -> Opened:
    """Two columns without a head, `item answer`, and the labels in a second file: `test_fold1_truth.txt`.

    Args:
        separator: behind which everything is one answer: a comma of intents, `item,action,object,location`, or a space
            before recognised words; None: an answer is one word.
    """
    frame = _pairs(text, separator)
    if frame["item"].str.contains(VOXCELEB).all():
        frame = frame.with_columns(speaker=frame["item"].str.extract(VOXCELEB))
    return "s3prl", _with_truth(path, frame, partial(_pairs, separator=separator)), ()


def _with_truth(path: Path, frame: pl.DataFrame, read: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    """The table with the labels of a second file, whose answers are the labels, if there is one."""
    truth = _truth_of(path)
    if "label" in frame.columns or truth == path or not truth.exists():
        return frame
    labels = read(_text_of(truth)).select("item", label="prediction")
    if others := sorted({*labels["item"]} ^ {*frame["item"]}):
        raise ValueError(f"{truth.name} has other items; only in one of the two are {first_few(others)}")
    return frame.join(labels, on="item", maintain_order="left")


def _lines(text: str) -> pl.DataFrame:
    if (found := of_lines(text, plain=True, words=True)) is None:
        raise ValueError("its lines are neither 'utterance words' nor 'words (utterance)'")
    return found[1]


def _pairs(text: str, separator: str | None) -> pl.DataFrame:
    lines = [line for line in text.splitlines() if line.strip()]
    if separator == " ":
        lines = [f"{line.strip()} " for line in lines]  # of an item, perhaps without a word
    rows = [line.split(separator, 1 if separator else -1) for line in lines]
    wrong = next((number for number, row in enumerate(rows, 1) if len(row) != 2), None)
    if wrong is not None:
        raise ValueError(f"line {wrong} has {len(rows[wrong - 1])} words; need an item and an answer")
    return pl.DataFrame(rows, {"item": pl.String(), "prediction": pl.String()}, orient="row")


def _fitting(pattern: Path, columns: Mapping[str, str]) -> Opened:
    """Predictions of one model in all files or folders that fit a pattern: its seeds, folds or tasks."""
    if not (paths := fitting(pattern)):
        raise ArtifactError(f"no file fits {pattern}", fix="correct the pattern")
    opened, names, parts = [_open(path, columns) for path in paths], names_of(paths), []
    frames, told = _numbered_apart([frame for _, frame, _ in opened], names, columns)
    for frame, name in zip(frames, names, strict=True):
        seed = column_of(frame, "seed", None, name)
        within = pl.lit("") if seed is None else pl.lit(" ") + pl.col(seed).cast(pl.String)
        parts.append(frame.with_columns((pl.lit(name) + within).alias(seed or "seed")))
    notes = dict.fromkeys(note for *_, own in opened for note in own)
    try:
        return opened[0][0], pl.concat(parts, how="diagonal_relaxed"), (*notes, *told)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ArtifactError(f"{pattern}: the files have different columns: {reason}") from error


def _numbered_apart(
    frames: Sequence[pl.DataFrame], names: Sequence[str], columns: Mapping[str, str]
) -> tuple[Sequence[pl.DataFrame], list[str]]:
    """The tables of several files in each of which pandas has numbered the rows, and a note if that tells no items.

    Files whose labels are the same, row by row, are repeats of the same items; others have other items.
    """
    item, label = (column_of(frames[0], role, columns.get(role), names[0]) for role in ("item", "label"))
    if item not in INDEX or not all(item in one.columns and [*one[item]] == [*range(len(one))] for one in frames):
        return frames, []
    if label is not None:
        kinds = [tuple(text_of(one[label])) if label in one.columns else () for one in frames]
    elif all(re.search("fold", name, re.IGNORECASE) for name in names):
        if len({len(one) for one in frames}) == 1 < len(frames):
            what = f"{first_few(names)}: rows are numbered in each file, and nothing tells if folds have the same items"
            raise ConfigError(what, fix="add a column with the names of the items")
        kinds = [(name,) for name in names]
    else:
        return frames, []
    parts = {kind: number for number, kind in enumerate(dict.fromkeys(kinds), 1)}
    if len(parts) == 1:
        return frames, []
    apart = [
        one.with_columns((pl.lit(f"{parts[kind]}/") + pl.col(item).cast(pl.String)).alias(item))
        for one, kind in zip(frames, kinds, strict=True)
    ]
    return apart, [
        f"rows are numbered in each file; the {len(frames)} files have {len(parts)} sets of items: 1/0, 2/0, …"
    ]


def _folder(path: Path) -> Opened:
    """Predictions of several folds, of a method that daamctl trained or of s3prl; or a data set of `datasets`."""
    if shards := sorted(path.glob("data-*.arrow")):
        return "table", pl.concat(_open(shard, {})[1] for shard in shards), ()
    for pattern, place in FOLDS.items():
        parts = []
        for file in sorted(path.glob(pattern)):
            tool, frame, notes = _open(file, {})
            fold, seed = re.search(place, file.relative_to(path).as_posix()).groups()  # type: ignore[union-attr]
            numbers = {"fold": fold or "1", "seed": seed}
            parts.append(frame.with_columns(pl.lit(one).alias(role) for role, one in numbers.items() if one))
        if parts:
            return tool, pl.concat(parts), notes
    if (path / "text").is_file():  # of Kaldi
        file = path / "text"
        try:
            frame = _lines(_text_of(file))
            if (file := path / "utt2spk").is_file():
                known = _pairs(_text_of(file), None).rename({"prediction": "speaker"})
                frame = frame.join(known, on="item", how="left", maintain_order="left")
        except UNREADABLE as error:
            raise ArtifactError(f"{file} cannot be read: {error}") from error
        return "Kaldi", frame, ()
    raise ArtifactError(
        f"{path}: no predictions of folds in this folder", fix=f"give a file, or a folder with {' or '.join(FOLDS)}"
    )
