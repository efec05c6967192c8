"""CoNLL-2003, English: entities of four types in 20,744 sentences of Reuters news, with an official split.

Source: E. Tjong Kim Sang, F. De Meulder, "Introduction to the CoNLL-2003 Shared Task", CoNLL 2003. Files of four
columns (word, part of speech, chunk, entity) in IOB1; a copy that was converted to BIO gives the same rows. The news
are licensed, so daamctl never downloads them. The source of a sentence is its article.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from daamctl.corpora.base import Corpus, Fingerprint, counts
from daamctl.corpora.conll import classes_of, read_parts

FILES = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
"""Part -> file."""
TYPES = ("PER", "ORG", "LOC", "MISC")
GET_IT = (
    "get the Reuters Corpus from NIST (https://trec.nist.gov/data/reuters/reuters.html) and make eng.train, eng.testa "
    "and eng.testb with the tools of the shared task: daamctl download conll2003 --from DIR"
)


def prepare(root: Path) -> pl.DataFrame:
    """Read a copy; see `read_parts`."""
    files = {part: root / name for part, name in FILES.items()}
    return read_parts(files, columns=4, what="CoNLL-2003", fix=GET_IT)


CORPUS = Corpus(
    name="conll2003",
    title="CoNLL-2003: 14,041, 3,250 and 3,453 news sentences (official train, dev and test part), four entity types",
    licence="Reuters Corpus, for research, from NIST; https://www.clips.uantwerpen.be/conll2003/ner",
    classes=classes_of(TYPES),
    prepare=prepare,
    # words of the parts and entities (B-) as published; the other tags as counted after conversion to BIO
    fingerprint=Fingerprint(
        per_class=counts(classes_of(TYPES), 250_660, 10_059, 6_991, 9_323, 5_290, 10_645, 1_671, 5_062, 1_717),
        per_group={"train": 203_621, "dev": 51_362, "test": 46_435},
    ),
    how_to_get=GET_IT,
    modality="tokens",
)
