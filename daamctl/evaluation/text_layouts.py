"""Predictions in lines of text whose form tells the tool: it has no names of columns, or a head of its own.

docs/judge.md shows the tools.
"""

from __future__ import annotations

import ast
import csv
import io
import re
from functools import partial

import polars as pl

from daamctl.data.spans import is_tag, word_id
from daamctl.errors import first_few

KEYS = {"bonafide", "spoof"}
"""Labels of ASVspoof."""
TARGETS = {"1": "1", "0": "0", "target": "1", "nontarget": "0"}
"""Labels of trials of speaker verification: is it the speaker who is enrolled?"""
SCLITE = re.compile(r"(.*?)\s*\(([^\s()]*[^\W\d][^\s()]*|\d+-[^\s()]+)\)\s*")
"""Words and the name of an utterance, which is not only a number, such as a confidence."""
RECOGNISED = {
    "icefall": re.compile(r"(.+?):\t(ref|hyp)=(.*)"),
    "Kaldi": re.compile(r"(\S+)\s+(ref|hyp)(?:\s+(.*))?"),
    "WeNet": re.compile(r"(utt|lab|rec):\s*(.*)"),
}
"""Tool -> lines with an utterance and what was said, `ref` or `lab`, and understood, `hyp` or `rec`."""
ROLES = {"ref": "label", "lab": "label", "hyp": "prediction", "rec": "prediction"}
NO_WORD = {"***", "<eps>"}
"""What Kaldi writes in an alignment where the other text has a word."""


def of_lines(text: str, *, plain: bool, words: bool = False) -> tuple[str, pl.DataFrame] | None:
    """The tool that wrote a text, and its table; None: it is another text.

    Args:
        plain: whether lines may have words instead of columns.
        words: whether they have words, though perhaps equally many.

    Raises:
        ValueError: a line is not like the others.
    """
    readers = {"SpeechBrain": _error_counts, "pyannote": _diarized, "conlleval": _tagged_words}
    if plain and not re.search("[\t,]", text.partition("\n")[0]):
        readers |= {"ASVspoof": _spoofing, "speaker verification": _verified}
    readers |= {"sclite": _sclite, "Kaldi": partial(_transcribed, words=words)} if plain else {}
    for tool, read in readers.items():
        if (found := read(text)) is not None:
            return tool, found
    return _recognised(text) if plain else None


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


def _error_counts(text: str) -> pl.DataFrame | None:
    """Errors and words of each utterance, which SpeechBrain writes above the alignment; None: another file."""
    if not text.startswith("%WER"):
        return None
    rows = re.findall(r"^(\S+), %WER \S+ \[ (\d+) / (\d+), ", text, re.MULTILINE)
    if not rows:
        raise ValueError("it has no line 'utterance, %WER ... [ errors / words, ...'")
    return pl.DataFrame(rows, ["item", "errors", "length"], orient="row")


def _diarized(text: str) -> pl.DataFrame | None:
    """Seconds of error and of speech of each recording, in a report of pyannote.metrics that pandas wrote as CSV.

    Its head has two lines: what a column is, and whether it has percent. None: another file.
    """
    if not text.startswith(",diarization error rate,"):
        return None
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


def _recognised(text: str) -> tuple[str, pl.DataFrame] | None:
    """References and hypotheses of a recogniser, in lines of `RECOGNISED`; None: another file."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tool = next((tool for tool, form in RECOGNISED.items() if lines and form.fullmatch(lines[0])), None)
    if tool is None:
        return None
    texts: dict[str, dict[str, str]] = {}
    item = ""
    for line in lines:
        if (found := RECOGNISED[tool].fullmatch(line)) is None:
            continue  # counts, times and totals
        *names, key, words = found.groups(default="")
        item = words if key == "utt" else (names or [item])[0]
        own = texts.setdefault(item, {})
        if key == "utt":
            continue
        if ROLES[key] in own:
            raise ValueError(f"utterance '{item}' has two lines of '{key}'")
        if words.startswith("["):
            try:
                words = " ".join(map(str, ast.literal_eval(words)))
            except (SyntaxError, TypeError) as error:
                raise ValueError(f"utterance '{item}': the words are no list: {words[:80]}") from error
        own[ROLES[key]] = " ".join(word for word in words.split() if word not in NO_WORD)
    if alone := [item for item, own in texts.items() if len(own) < 2]:
        raise ValueError(f"not both texts, said and understood, are there of {first_few(alone)}")
    return tool, pl.DataFrame([{"item": item, **own} for item, own in texts.items()])


def _sclite(text: str) -> pl.DataFrame | None:
    """Lines `words (utterance)` of sclite, ESPnet and fairseq, or sclite's counts of errors; None: another file.

    As for sclite, the speaker is what comes before the first hyphen or underscore of the name.
    """
    if re.search(r"^Scores: \(#C #S #D #I\) \d", text, re.MULTILINE):
        return _sclite_counts(text)
    lines = {number: line for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[:2] != ";;"}
    found = {number: SCLITE.fullmatch(line) for number, line in lines.items()}
    fitting = [one.groups() for one in found.values() if one is not None]
    if 2 * len(fitting) <= len(lines):
        return None
    if wrong := next((number for number, one in found.items() if one is None), None):
        raise ValueError(f"line {wrong} does not end with the name of the utterance, as others do: {fitting[0][1]}")
    rows = pl.DataFrame(fitting, ["prediction", "item"], orient="row")
    if several := rows.filter(pl.col("prediction").str.contains(r"(?:^|\s)\{\s.*\s/\s"))["item"].to_list():
        raise ValueError(f"several texts, {{ a / b }}, are given of {first_few(several)}; one is read")
    speaker = rows["item"].str.extract("^([^_-]+)[_-]")
    known = speaker.null_count() == 0 and 1 < speaker.n_unique() < len(rows)
    return rows.with_columns(speaker=speaker) if known else rows


def _sclite_counts(text: str) -> pl.DataFrame:
    """Errors and words of each utterance, as sclite writes them above alignments (`.pra`, ESPnet's `result.txt`)."""
    rows: list[tuple[str, str, int, int]] = []
    speaker = item = ""
    for line in text.splitlines():
        if found := re.match(r"Speaker sentences +\d+:\s*(.*?)\s*(?:#utts|utt#)", line):
            speaker = found[1]
        elif found := re.fullmatch(r"id: \((.+)\)\s*", line):
            item = found[1]
        elif found := re.fullmatch(r"Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)\s*", line):
            if not item:
                raise ValueError("no line 'id: (utterance)' is above one of the lines 'Scores:'")
            right, substituted, deleted, inserted = map(int, found.groups())
            rows.append((item, speaker, substituted + deleted + inserted, right + substituted + deleted))
            item = ""
    table = pl.DataFrame(rows, ["item", "speaker", "errors", "length"], orient="row")
    return table if 1 < table["speaker"].n_unique() < len(table) else table.drop("speaker")


def _transcribed(text: str, *, words: bool) -> pl.DataFrame | None:
    """Lines `utterance words` of Kaldi, in which the number of words differs, unless they are known to be words.

    None: another file.
    """
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    names = [row[0] for row in rows]
    numbers = {len(row[1].split()) if len(row) > 1 else 0 for row in rows}
    # one that stands twice is refused later
    are_names = len(set(names)) > 0.9 * len(names) and all(re.fullmatch(r"[^,;]*\d[^,;]*", name) for name in names)
    if not are_names or max(numbers) < 2 or (len(numbers) < 2 and not words):
        return None
    if any(line.count("\t") > 1 for line in text.splitlines()):
        return None
    return pl.DataFrame({"item": names, "prediction": [row[1].strip() if len(row) > 1 else "" for row in rows]})
