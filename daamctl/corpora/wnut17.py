"""WNUT-17: rare and emerging entities of six types in 5,690 posts and comments, with an official split.

Source: L. Derczynski, E. Nichols, M. van Erp, N. Limsopatham, "Results of the WNUT2017 Shared Task on Novel and
Emerging Entity Recognition", W-NUT 2017. Files of two columns in BIO: 3,394 sentences to train on (older posts of
Twitter), 1,009 of YouTube for development, 1,287 of several sites to test. Authors are not known.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from daamctl.corpora.base import Corpus, Fingerprint, counts
from daamctl.corpora.conll import classes_of, read_parts
from daamctl.corpora.fetch import fetch, is_whole, made_whole

URL = "https://raw.githubusercontent.com/leondz/emerging_entities_17/master"
FILES = {
    "train": ("wnut17train.conll", "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
    "dev": ("emerging.dev.conll", "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
    "test": ("emerging.test.annotated", "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0"),
}
"""Part -> file and its SHA-256."""
TYPES = ("corporation", "creative-work", "group", "location", "person", "product")

OFFLINE = f"copy {', '.join(name for name, _ in FILES.values())} to this machine: daamctl download wnut17 --from DIR"
GET_IT = "daamctl download wnut17 fetches it (0.8 MB); a copy of your own: daamctl download wnut17 --from DIR"


def obtain(folder: Path) -> Path:
    """Download the three files into `folder`."""
    if not is_whole(folder):
        with made_whole(folder, f"{URL}\n") as new:
            for name, sha256 in FILES.values():
                fetch(f"{URL}/{name}", new / name, sha256=sha256, fix=OFFLINE)
    return folder


def prepare(root: Path) -> pl.DataFrame:
    """Read a copy; see `read_parts`."""
    files = {part: root / name for part, (name, _) in FILES.items()}
    return read_parts(files, columns=2, what="WNUT-17", fix=GET_IT)


CORPUS = Corpus(
    name="wnut17",
    title="WNUT-17: 3,394, 1,009 and 1,287 posts (official train, dev and test part), six types of rare entities",
    licence="CC BY 4.0; https://github.com/leondz/emerging_entities_17",
    classes=classes_of(TYPES),
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class=counts(classes_of(TYPES), 95_707, 321, 80, 387, 557, 468, 245, 772, 372, 1_559, 583, 383, 423),
        per_group={"train": 62_730, "dev": 15_733, "test": 23_394},
    ),
    how_to_get=GET_IT,
    obtain=obtain,
    url=URL,
    modality="tokens",
)
