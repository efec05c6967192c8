"""EmoDB, the Berlin Database of Emotional Speech: 535 acted German utterances, 10 speakers, 7 emotions.

Source: F. Burkhardt et al., "A Database of German Emotional Speech", Interspeech 2005. All labels are in the file name,
`SSTTTEV.wav`: SS speaker, TTT text, E emotion, V version. All speakers say the same ten texts, so speaker-independent
folds still share sentences. Durations are in seconds; the release is 16 kHz mono.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from daamctl.corpora.base import PREPARED, Corpus, Durations, Fingerprint, counts
from daamctl.errors import CorpusError

URL = "http://emodb.bilderbar.info/download/download.zip"

FILE_NAME = re.compile(r"^(?P<speaker>\d\d)(?P<text>[ab]\d\d)(?P<emotion>[A-Z])(?P<version>[a-z])$")
# letters of the German names (Wut, Langeweile, Ekel, Angst, Freude, Trauer)
EMOTIONS = {"W": "anger", "L": "boredom", "E": "disgust", "A": "fear", "F": "happiness", "T": "sadness", "N": "neutral"}
MEN = ("03", "10", "11", "12", "15")
WOMEN = ("08", "09", "13", "14", "16")
# The n-th man with the n-th woman: five speaker-disjoint folds, each with both sexes, as IEMOCAP's sessions have.
GROUPS = {speaker: f"group{number}" for number, pair in enumerate(zip(MEN, WOMEN, strict=True), 1) for speaker in pair}

GET_IT = "daamctl download emodb fetches it (40 MB); a copy of your own: daamctl download emodb --from DIR"


def obtain(folder: Path) -> Path:
    """Download and unpack the release into `folder`."""
    from daamctl.corpora.fetch import fetch, is_whole, unpack

    if is_whole(folder):
        return folder
    # No checksum: the authors publish none, and we have none from a source we trust. A damaged archive fails its own
    # CRC on unpacking, and the fingerprint counts every speaker and class.
    archive = fetch(
        URL,
        folder.with_name(f"{folder.name}.zip"),
        sha256=None,
        fix="download it elsewhere, unpack it and register it: daamctl download emodb --from DIR",
    )
    unpack(archive, folder)
    archive.unlink()
    return folder


def prepare(root: Path) -> pl.DataFrame:
    """Read the file names of a copy.

    Args:
        root: the folder `wav`, or its parent.

    Raises:
        CorpusError: there are no such files, or a name is not of the form SSTTTEV.wav.
    """
    folder = root / "wav" if (root / "wav").is_dir() else root
    files = sorted(path for path in folder.glob("*.[wW][aA][vV]") if not path.name.startswith("."))
    if not files:
        raise CorpusError(f"{root} does not look like EmoDB: no .wav files in it or in its folder 'wav'", fix=GET_IT)
    return pl.DataFrame([_row(path, root) for path in files], schema=_SCHEMA)


_SCHEMA = {**PREPARED, "sentence": pl.String}


def _row(path: Path, root: Path) -> dict[str, object]:
    match = FILE_NAME.match(path.stem)
    if match is None or match["emotion"] not in EMOTIONS or match["speaker"] not in GROUPS:
        raise CorpusError(
            f"{path} is not an EmoDB recording: names are SSTTTEV.wav, SS one of {', '.join(sorted(GROUPS))}, "
            f"E one of {', '.join(EMOTIONS)}",
            fix=GET_IT,
        )
    return {
        "utterance_id": path.stem,
        "path": path.relative_to(root).as_posix(),
        "label": EMOTIONS[match["emotion"]],
        "speaker": match["speaker"],
        "group": GROUPS[match["speaker"]],
        "start_s": 0.0,
        "duration_s": None,
        "sentence": match["text"],
    }


CORPUS = Corpus(
    name="emodb",
    title="EmoDB: 535 acted German utterances, 10 speakers, 7 emotions (default: the four IEMOCAP has)",
    licence="freely available for research; http://emodb.bilderbar.info",
    # IEMOCAP's four classes in IEMOCAP's label order, so that a class id means the same emotion in both corpora
    classes=("sadness", "neutral", "happiness", "anger"),
    prepare=prepare,
    # counts of the release; per speaker and group over the four default classes
    fingerprint=Fingerprint(
        per_class=counts(EMOTIONS.values(), 127, 81, 46, 69, 71, 62, 79),
        per_speaker=counts(sorted(GROUPS), 39, 42, 30, 21, 35, 22, 36, 41, 34, 39),
        per_group={"group1": 81, "group2": 51, "group3": 71, "group4": 63, "group5": 73},
    ),
    how_to_get=GET_IT,
    obtain=obtain,
    url=URL,
    durations=Durations(mean_s=2.78, log_std=0.40),  # of all 535: 24.8 min, 25 of them over 5 s
    aliases={
        "angry": "anger",
        "bored": "boredom",
        "disgusted": "disgust",
        "anxiety": "fear",
        "happy": "happiness",
        "joy": "happiness",
        "sad": "sadness",
    },
)
