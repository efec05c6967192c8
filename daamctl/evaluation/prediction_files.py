"""Predictions that any tool made: one row per tested item, whatever file they are in.

Reads CSV, TSV, JSON, JSON lines, Parquet, Feather and npz files, and the outputs of daamctl, s3prl, EmoBox, nkululeko,
detectors of spoofed speech, the Hugging Face Trainer, MTEB, lm-evaluation-harness, Inspect, lighteval, HELM,
OpenCompass, Every Eval Ever, OpenAI's Evals, promptfoo and SWE-bench. docs/judge.md shows each of them. Nothing is
unpickled.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from daamctl.artifacts.predictions import Predictions
from daamctl.data.spans import is_tag, word_id
from daamctl.data.task import TASKS
from daamctl.errors import ArtifactError, ConfigError, first_few
from daamctl.evaluation import sample_logs
from daamctl.evaluation.prediction_columns import (
    COLUMNS,
    SCORES,
    by_last_part,
    by_task,
    column_of,
    of_table,
    predicted_name,
    text_of,
)
from daamctl.evaluation.sample_logs import MODEL, Opened
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
TEXTS = (".csv", ".tsv", ".txt", ".score", ".conll", ".ark", ".json", ".jsonl", ".ndjson")
"""Kinds of files that may be compressed (.gz)."""
ARROW = (".arrow", ".feather")
SUFFIXES = (*TEXTS, ".parquet", *ARROW, ".npz", ".eval")
ZSTANDARD = 93
"""Number of this compression in zip files."""
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotImplementedError,
    zipfile.BadZipFile, zlib.error, pa.ArrowException, pl.exceptions.PolarsError,
)  # fmt: skip
"""What damaged files, and files of another content, raise."""
FOLDS = {
    "fold*-seed*/predictions.parquet": r"fold(\d+)-seed(\d+)",
    "test_*predict.txt": r"test_(?:fold)?(\w*?)_?predict()",
}
"""Files of the folds in a folder, of daamctl and of s3prl -> where their fold and seed are."""
KEYS = {"bonafide", "spoof"}
"""Labels of ASVspoof."""
VOXCELEB = r"^(id\d{5})-.+_id\d{5}-"
"""How s3prl names trials of VoxCeleb, with the enrolled speaker first."""
TARGETS = {"1": "1", "0": "0", "target": "1", "nontarget": "0"}
"""Labels of trials of speaker verification: is it the speaker who is enrolled?"""
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
    tool, frame, notes = _read(path, columns, items)
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
        tool, frame, notes = _read(source, single, items)
    else:
        tool, frame, notes = "table", by_task(source, single, str(what)), ()
    if wide:
        found = [
            of_table(frame, {**single, role: name}, name, what, metric=metric)
            for role, names in wide.items()
            for name in names
        ]
    else:
        model = column_of(frame, "model", given, str(what))
        if model is None or frame[model].n_unique() < 2:
            raise ConfigError(
                f"a comparison needs predictions of two models or more, got 1 in {what}",
                fix="give another file, or name the columns of several models: --prediction A --prediction B, or the "
                "one that says whose a row is: --model",
            )
        owners = text_of(frame[model])
        if absent := owners.null_count():
            raise ConfigError(f"{what}: {absent} of {len(frame)} rows have no {model}")
        parts = frame.with_columns(owners).partition_by(model, as_dict=True, include_key=False)
        found = [of_table(part, single, str(name), what, metric=metric) for (name,), part in parts.items()]
        notes = (f"whose a row is: {model}", *notes)
    return [replace(one, tool=tool, notes=(*one.notes, *notes)) for one in found]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names of files: as few last parts of their paths as tell them apart."""
    whole = [path if path.is_fifo() else path.resolve() for path in paths]
    parts = [Path(str(path).removesuffix(".gz")).with_suffix("").parts for path in whole]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{index} {path.stem}" for index, path in enumerate(paths, 1)]  # the same file twice


def _with_items(frame: pl.DataFrame, path: Path, items: Path, columns: Mapping[str, str], tool: str) -> pl.DataFrame:
    """The table with the labels and groups of its items, which are in another file."""
    _, other, _ = _open(items, None)
    theirs = {role: name for role, name in columns.items() if name in other.columns}
    given = columns.get("item")  # in one of the files, or both
    here = column_of(frame, "item", None if "item" in theirs and given not in frame.columns else given, str(path))
    there = column_of(other, "item", theirs.get("item"), str(items))
    if here is None or there is None:
        raise ConfigError(f"{path if here is None else items} has no column of items", fix="name it with --item")
    if (label := columns.get("label")) in other.columns and label == columns.get("prediction"):
        frame = frame.rename({label: predicted_name(label)}, strict=False)
    added = {"item": text_of(other[there])}
    for role in ("label", "group"):
        column = column_of(other, role, theirs.get(role), str(items))
        if column is not None and column not in (there, *frame.columns):
            added[column] = other[column]
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
    frame = frame.join(known, left_on=here, right_on="item", how="left", maintain_order="left")
    return frame.rename({here: theirs.get("item", here)})


def _read(path: Path, columns: Mapping[str, str], items: Path | None) -> Opened:
    """What is in a file or folder, as one table, with the labels of another file."""
    tool, frame, notes = _open(path, columns.get("correct"))
    frame = by_task(frame, columns, str(path))
    return tool, frame if items is None else _with_items(frame, path, items, columns, tool), notes


def _open(path: Path, correct: str | None) -> Opened:
    """What is in a file or folder, as one table.

    Args:
        correct: the metric of lm-evaluation-harness, or the scorer of Inspect, that says how good an answer is.
    """
    if path.is_dir():
        return _folder(path)
    if is_pattern(path):
        return _fitting(path, correct)
    if not path.exists():
        raise ArtifactError(f"no file {path}", fix=_beside(path))
    suffix, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
    if packed := suffix == ".gz" and inner in TEXTS:
        suffix = inner
    is_pipe = suffix == "" and path.is_fifo()  # as <(jq -c ... FILE) is
    if suffix not in SUFFIXES and not is_pipe:
        raise ArtifactError(
            f"{path}: unknown kind of file '{suffix}'; known: {', '.join(SUFFIXES)}",
            fix="save it as one of these, e.g. as CSV; a compressed file must end in .gz",
        )
    try:
        if suffix == ".parquet":
            return _parquet(read_any_parquet(path), correct, path)
        if suffix in ARROW:
            return "table", _arrow(path), ()
        if suffix == ".npz":
            return _npz(path)
        if suffix == ".eval":
            with zipfile.ZipFile(path) as archive:
                has_header = "header.json" in archive.namelist()  # written at the end
            header = parsed_json(decoded(_member(path, "header.json"))) if has_header else {}
            log = {**header, "samples": parsed_json(decoded(_member(path, "summaries.json")))}
            return sample_logs.inspect(log, correct, path)
        content = path.read_bytes()
        text = decoded(gzip.decompress(content) if packed else content)
        if is_pipe:
            suffix = {"{": ".jsonl", "[": ".json"}.get(text.lstrip()[:1], ".csv")
        if suffix in (".jsonl", ".ndjson"):
            return _records(rows_of_json(parsed_json_lines(text)), correct, path)
        if suffix == ".json":
            return _json(parsed_json(text), correct, path)
        if text.startswith("%WER"):
            return "SpeechBrain", _error_counts(text), ()
        if text.startswith(",diarization error rate,"):
            return "pyannote", _diarized(text), ()
        if (words := _tagged_words(text)) is not None:
            return "conlleval", words, ()
        if suffix == ".ark":
            return _s3prl(path, text, " ")
        if suffix in (".txt", ".score") and "\t" not in text.partition("\n")[0] and "," not in text.partition("\n")[0]:
            if (keys := _spoofing(text)) is not None:
                return "ASVspoof", keys, ()
            if (trials := _verified(text)) is not None:
                return "speaker verification", trials, ()
            return _s3prl(path, text)
        if path.name.endswith("predict.csv") and _truth_of(path).exists():
            first = text.partition("\n")[0].lower().split(",")
            if len(first) == 4 and first[0] not in COLUMNS["item"]:  # else it has a head
                return _s3prl(path, text, ",")
        return _csv(text)
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0] or repr(error)
        if "Object arrays" in reason:  # numpy would have the user unpickle them
            reason = "it has Python objects; store texts as texts: array.astype(str)"
        raise ArtifactError(f"{path} cannot be read: {reason}") from error


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


def _tagged_words(text: str) -> pl.DataFrame | None:
    """Words in lines, their true and predicted tags last, with an empty line after each sentence; None: another file.

    This is what conlleval reads, and flair writes.
    """
    rows: list[tuple[str, str, str, str]] = []
    sentence, position = 0, 0
    for line in text.splitlines():
        word = line.split()
        if not word or word[0] == "-DOCSTART-":
            sentence, position = sentence + (position > 0), 0
            continue
        if len(word) < 3 or not (is_tag(word[-2]) and is_tag(word[-1])):
            return None
        name = f"{sentence:06d}"
        rows.append((word_id(name, position), name, word[-2], word[-1]))
        position += 1
    return pl.DataFrame(rows, ["item", "sentence", "label", "prediction"], orient="row") if rows else None


def _error_counts(text: str) -> pl.DataFrame:
    """Errors and words of each utterance, which SpeechBrain writes above the alignment."""
    rows = re.findall(r"^(\S+), %WER \S+ \[ (\d+) / (\d+), ", text, re.MULTILINE)
    if not rows:
        raise ValueError("it has no line 'utterance, %WER ... [ errors / words, ...'")
    return pl.DataFrame(rows, ["item", "errors", "length"], orient="row")


def _diarized(text: str) -> pl.DataFrame:
    """Seconds of error and of speech of each recording, in a report of pyannote.metrics that pandas wrote as CSV.

    Its head has two lines: what a column is, and whether it has percent.
    """
    names, units, *rows = csv.reader(io.StringIO(text))
    at = {name: place for place, (name, unit) in enumerate(zip(names, units, strict=True)) if unit != "%"}
    parts = [at[name] for name in ("false alarm", "missed detection", "confusion")]
    return pl.DataFrame(
        [
            (row[0], sum(float(row[place]) for place in parts), float(row[at["total"]]))
            for row in rows
            if len(row) == len(names) and row[0] != "TOTAL" and any(row[1:])
        ],
        ["item", "errors", "length"],
        orient="row",
    )


def _spoofing(text: str) -> pl.DataFrame | None:
    """Lines with the key of a trial, bonafide or spoof, of ASVspoof or of detectors made for it; None: another file.

    The keys have `speaker item ... key ...`, the outputs of detectors `item attack key score`.
    """
    rows = {number: line.split() for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    first = next(iter(rows.values()), [])
    if len(first) < 4 or not KEYS & set(first):
        return None
    key, item = next(at for at, word in enumerate(first) if word in KEYS), int(len(first) > 4)
    for number, row in rows.items():
        if len(row) != len(first) or row[key] not in KEYS:
            raise ValueError(
                f"line {number} has not {len(first)} words, or none of {' and '.join(sorted(KEYS))} where others do"
            )
    columns = [pl.Series(column) for column in zip(*rows.values(), strict=True)]
    found = {"item": columns[item], "label": columns[key]}
    found |= {"speaker": columns[0]} if item else {"prediction": columns[-1]}
    return pl.DataFrame(found)


def _verified(text: str) -> pl.DataFrame | None:
    """Trials of speaker verification, with their labels, scores or both; None: another file.

    Lines are `label enrolled tested` as in the lists of VoxCeleb, `enrolled tested label` or `enrolled tested score` as
    Kaldi has them, or `enrolled tested` and both, as SpeechBrain and WeSpeaker write them. Trials belong together by
    the speaker who is enrolled (docs/sources.md#trials-of-speaker-verification): the first folder of a path, or the
    name.
    """
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows or {len(row) for row in rows} not in ({3}, {4}):
        return None
    columns = [pl.Series(column) for column in zip(*rows, strict=True)]
    are_labels = [set(column.unique()) <= TARGETS.keys() for column in columns]
    at = [0] if are_labels[0] and len(columns) == 3 else [*range(2, len(columns))]
    enrolled, tested = (columns[place] for place in range(len(columns)) if place not in at)
    labels = [place for place in at if are_labels[place]]
    scores = [place for place in at if place not in labels]
    if len(labels) > 1 or len(scores) > 1 or not all(one.str.contains("[A-Za-z]").all() for one in (enrolled, tested)):
        return None
    if any(columns[place].cast(pl.Float64, strict=False).null_count() for place in scores):
        return None
    ids = [one.str.replace(r"\.(?:wav|flac|m4a|mp3|npy)$", "") for one in (enrolled, tested)]
    found = {"item": ids[0] + " " + ids[1], "speaker": enrolled.str.replace("/.*$", "")}
    found |= {"label": columns[labels[0]].replace(TARGETS)} if labels else {}
    found |= {"prediction": columns[scores[0]]} if scores else {}
    return pl.DataFrame(found).unique(maintain_order=True)


def _csv(text: str) -> Opened:
    # 007 is no number
    names = {column.name: pl.String for column in read_separated(text) if column.str.contains(r"^\s*[-+]?0\d").any()}
    separator = separator_of(text)
    frame = pl.read_csv(
        io.StringIO(text),
        separator=separator,
        quote_char=quote_of(text),
        infer_schema_length=None,
        schema_overrides=names,
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
    if "doc_id" in records[0] and ("resps" in records[0] or "filtered_resps" in records[0]):
        return sample_logs.lm_eval(records, correct, path)
    if {"sample_score", "target"} <= records[0].keys():
        return sample_logs.eval_scope(records, correct, path)
    if "instance_id" in records[0] and isinstance(records[0].get("stats"), list):
        return sample_logs.helm(records, correct, path)
    if "sample_id" in records[0] and isinstance(records[0].get("evaluation"), dict):
        return sample_logs.every_eval_ever(records, correct, path)
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
    """The file of labels that s3prl writes beside predictions."""
    return path.with_name(path.name.replace("predict", "truth").replace("-hyp", "-ref"))


def _s3prl(path: Path, text: str, separator: str | None = None) -> Opened:
    """Two columns without a head, `item answer`, and the labels in a second file: `test_fold1_truth.txt`.

    Args:
        separator: behind which everything is one answer: a comma of intents, `item,action,object,location`, or a space
            before recognised words; None: an answer is one word.
    """
    frame = _pairs(text, "prediction", separator)
    if frame["item"].str.contains(VOXCELEB).all():
        frame = frame.with_columns(speaker=frame["item"].str.extract(VOXCELEB))
    truth = _truth_of(path)
    if truth == path or not truth.exists():
        return "s3prl", frame, ()
    labels = _pairs(truth.read_text(encoding="utf-8-sig"), "label", separator)
    if set(labels["item"]) != set(frame["item"]):
        raise ValueError(f"{truth.name} has other items")
    return "s3prl", frame.join(labels, on="item"), ()


def _pairs(text: str, second: str, separator: str | None) -> pl.DataFrame:
    lines = [line for line in text.splitlines() if line.strip()]
    if separator == " ":
        lines = [f"{line.strip()} " for line in lines]  # of an item, perhaps without a word
    rows = [line.split(separator, 1 if separator else -1) for line in lines]
    wrong = next((number for number, row in enumerate(rows, 1) if len(row) != 2), None)
    if wrong is not None:
        raise ValueError(f"line {wrong} has {len(rows[wrong - 1])} words; need an item and an answer")
    return pl.DataFrame(rows, {"item": pl.String(), second: pl.String()}, orient="row")


def _fitting(pattern: Path, correct: str | None) -> Opened:
    """Predictions of one model in all files or folders that fit a pattern: its seeds, folds or tasks."""
    if not (paths := fitting(pattern)):
        raise ArtifactError(f"no file fits {pattern}", fix="correct the pattern")
    opened = [_open(path, correct) for path in paths]
    parts = []
    for (_, frame, _), name in zip(opened, names_of(paths), strict=True):
        seed = column_of(frame, "seed", None, name)
        within = pl.lit("") if seed is None else pl.lit(" ") + pl.col(seed).cast(pl.String)
        parts.append(frame.with_columns((pl.lit(name) + within).alias(seed or "seed")))
    notes = dict.fromkeys(note for *_, own in opened for note in own)
    try:
        return opened[0][0], pl.concat(parts, how="diagonal_relaxed"), tuple(notes)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ArtifactError(f"{pattern}: the files have different columns: {reason}") from error


def _folder(path: Path) -> Opened:
    """Predictions of several folds, of a method that daamctl trained or of s3prl; or a data set of `datasets`."""
    if shards := sorted(path.glob("data-*.arrow")):
        return "table", pl.concat(_open(shard, None)[1] for shard in shards), ()
    for pattern, place in FOLDS.items():
        parts = []
        for file in sorted(path.glob(pattern)):
            tool, frame, notes = _open(file, None)
            fold, seed = re.search(place, file.relative_to(path).as_posix()).groups()  # type: ignore[union-attr]
            numbers = {"fold": fold or "1", "seed": seed}
            parts.append(frame.with_columns(pl.lit(one).alias(role) for role, one in numbers.items() if one))
        if parts:
            return tool, pl.concat(parts), notes
    raise ArtifactError(
        f"{path}: no predictions of folds in this folder", fix=f"give a file, or a folder with {' or '.join(FOLDS)}"
    )
