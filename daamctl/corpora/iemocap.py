"""IEMOCAP, dyadic conversations of ten actors in five sessions: 5,531 utterances in the four usual classes.

Source: C. Busso et al., "IEMOCAP: Interactive emotional dyadic motion capture database", LREV 2008. It is licensed per
institution, so it is read from a registered folder and never downloaded. Label lines are in
`Session*/dialog/EmoEvaluation/*.txt`: `[start - end] <tab> TURN <tab> emotion <tab> [valence, activation, dominance]`,
with times in seconds and dimensions from 1 to 5. Audio is `Session*/sentences/wav/<dialogue>/<turn>.wav`, 16 kHz.
Counts: computed from public file lists that agree on every utterance.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from daamctl.corpora.base import PREPARED, Corpus, Durations, counts
from daamctl.corpora.fingerprint import TOTAL, HintedFingerprint
from daamctl.errors import CorpusError

# excitement is merged into happiness, as in the papers; `annotation` keeps the original
LABELS = {
    "neu": "neutral",
    "hap": "happiness",
    "exc": "happiness",
    "ang": "anger",
    "sad": "sadness",
    "fru": "frustration",
    "sur": "surprise",
    "fea": "fear",
    "dis": "disgust",
    "oth": "other",
    "xxx": "undecided",
}
KINDS = {"impro": "improvised", "script": "scripted"}
LABEL_LINE = re.compile(
    r"^\[(?P<start>[\d.]+) - (?P<end>[\d.]+)\]\t(?P<turn>\S+)\t(?P<emotion>\w+)"
    r"\t\[(?P<valence>[\d.]+), (?P<activation>[\d.]+), (?P<dominance>[\d.]+)\]$"
)
TURN = re.compile(
    r"^(?P<dialogue>(?P<session>Ses\d\d)[FM]_(?P<kind>impro|script)(?P<scene>\d+_\d+)?\w*)_(?P<letter>[FM])\w+$"
)

LAYOUT = "Session*/dialog/EmoEvaluation/*.txt"
GET_IT = (
    "request it at https://sail.usc.edu/iemocap and register the folder of Session1 to Session5: "
    "daamctl download iemocap --from DIR"
)
SCHEMA = {
    **PREPARED,
    "annotation": pl.String,
    "kind": pl.String,
    "sentence": pl.String,
    "valence": pl.Float64,
    "activation": pl.Float64,
    "dominance": pl.Float64,
}


def prepare(root: Path) -> pl.DataFrame:
    """Read the label files of a full release.

    Every turn is a row, whether or not its annotation belongs to a default class.

    Args:
        root: the folder of Session1 to Session5.

    Raises:
        CorpusError: the release is incomplete, a label line does not parse, or a turn is labelled twice.
    """
    # glob is not recursive: the subfolders Categorical, Attribute and Self-evaluation have opinions of single raters.
    # Names that start with a dot are leftovers of macOS archives and are not text.
    files = sorted(path for path in root.glob(LAYOUT) if not path.name.startswith("."))
    if not files:
        raise CorpusError(_not_found(root), fix=GET_IT)
    rows = [row for path in files for row in _read_labels(path)]
    seen: dict[object, object] = {}
    for row in rows:
        if seen.setdefault(row["utterance_id"], row["path"]) is not row["path"]:
            raise CorpusError(f"{root}: turn '{row['utterance_id']}' is labelled more than once", fix=GET_IT)
    return pl.DataFrame(rows, schema=SCHEMA)


def _not_found(root: Path) -> str:
    message = f"{root} does not look like IEMOCAP: no label files {LAYOUT}"
    if not root.is_dir():
        return f"{root} is not a folder"
    inner = [path.parent for path in root.glob("*/Session1") if path.is_dir()]
    return message + (f"; did you mean {inner[0]}?" if inner else "")


def _read_labels(path: Path) -> list[dict[str, object]]:
    """Rows of one dialogue.

    Other lines, the header (`%`) and opinions of single raters (`C-`, `A-`), are ignored.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.startswith("["):
            rows.append(_parse(line.rstrip(), path, number))
    if not rows:
        raise CorpusError(f"{path} has no label lines", fix=GET_IT)
    return rows


def _parse(line: str, path: Path, number: int) -> dict[str, object]:
    label = LABEL_LINE.match(line)
    turn = TURN.match(label["turn"]) if label else None
    if label is None or turn is None or label["emotion"] not in LABELS:
        raise CorpusError(
            f"{path}, line {number}: not a label line: {line!r}; expected "
            f"'[start - end]<tab>TURN<tab>emotion<tab>[v, a, d]', emotion one of {', '.join(LABELS)}",
            fix="restore the file from the release",
        )
    session = path.parents[2].name
    return {
        "utterance_id": label["turn"],
        "path": f"{session}/sentences/wav/{turn['dialogue']}/{label['turn']}.wav",
        "label": LABELS[label["emotion"]],
        # the letter of the last token is the speaker; the first one only says who wears the motion-capture markers
        "speaker": turn["session"] + turn["letter"],
        "group": session,
        "start_s": 0.0,
        "duration_s": None,
        "annotation": label["emotion"],
        "kind": KINDS[turn["kind"]],
        # all sessions play the same scripts, while an improvised dialogue has words of its own
        "sentence": f"script{turn['scene']}" if turn["scene"] else turn["dialogue"],
        "valence": float(label["valence"]),
        "activation": float(label["activation"]),
        "dominance": float(label["dominance"]),
    }


SPEAKERS = [f"Ses0{session}{letter}" for session in range(1, 6) for letter in "FM"]
CLASSES = ("sadness", "neutral", "happiness", "anger")
ALIASES = {
    **LABELS,
    **dict.fromkeys(("happy", "excited", "happiness_excited"), "happiness"),
    "angry": "anger",
}

CORPUS = Corpus(
    name="iemocap",
    title="IEMOCAP: 5,531 utterances of 10 actors in 5 sessions, four classes (exc merged into happiness)",
    licence="per institution, for research; https://sail.usc.edu/iemocap",
    classes=CLASSES,
    prepare=prepare,
    fingerprint=HintedFingerprint(
        per_class={"sadness": 1084, "neutral": 1708, "happiness": 1636, "anger": 1103},
        per_speaker=counts(SPEAKERS, 528, 557, 481, 542, 522, 629, 528, 503, 590, 651),
        per_group={"Session1": 1085, "Session2": 1023, "Session3": 1151, "Session4": 1031, "Session5": 1241},
        hints={
            ("happiness", 595): "label 'exc' is missing?",
            ("happiness", 1041): "label 'hap' is missing?",
            (TOTAL, 4490): "label 'exc' is missing?",
            (TOTAL, 2588): "only scripted dialogues were found",
            (TOTAL, 2943): "only improvised dialogues were found",
        },
    ),
    how_to_get=GET_IT,
    aliases=ALIASES,
    durations=Durations(mean_s=4.55, log_std=0.69),  # 6.99 h in the four classes, median 3.58 s
)
