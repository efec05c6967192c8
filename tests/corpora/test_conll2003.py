"""CoNLL-2003: IOB1 and converted copies give the same rows; articles are the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.corpora import conll2003
from daamctl.corpora.fingerprint import validate
from daamctl.errors import CorpusError

TEXT = """\
-DOCSTART- -X- -X- O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER
. . O O

-DOCSTART- -X- -X- O

Rome NNP I-NP I-LOC
Paris NNP B-NP B-LOC
New NNP I-NP I-MISC
Yorker NNP I-NP I-MISC
"""
LABELS = ["B-ORG", "O", "B-PER", "O", "B-LOC", "B-LOC", "B-MISC", "I-MISC"]


def copy(folder: Path, text: str = TEXT) -> Path:
    for name in conll2003.FILES.values():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_iob1_becomes_bio(tmp_path: Path) -> None:
    rows = conll2003.prepare(copy(tmp_path))
    assert rows["label"].to_list() == LABELS * 3
    assert rows["text"].to_list()[:3] == ["U.N.", "official", "Ekeus"]
    assert rows["group"].to_list() == ["train"] * 8 + ["dev"] * 8 + ["test"] * 8
    assert rows["speaker"].unique(maintain_order=True).to_list()[:3] == [
        "train-document-00001",
        "train-document-00002",
        "dev-document-00001",
    ]
    converted = TEXT.splitlines(keepends=True)
    words = iter(LABELS)
    lines = [
        line if line.startswith("-DOC") or not line.strip() else f"{line.rpartition(' ')[0]} {next(words)}\n"
        for line in converted
    ]
    assert conll2003.prepare(copy(tmp_path, "".join(lines))).equals(rows)


def test_fingerprint_is_the_published_one() -> None:
    expected = conll2003.CORPUS.fingerprint
    assert expected is not None
    # Tjong Kim Sang and De Meulder 2003, tables 1 and 2: words, then entities of train, dev and test
    assert expected.per_group == {"train": 203_621, "dev": 51_362, "test": 46_435}
    entities = {
        "LOC": (7_140, 1_837, 1_668),
        "MISC": (3_438, 922, 702),
        "ORG": (6_321, 1_341, 1_661),
        "PER": (6_600, 1_842, 1_617),
    }
    for kind, numbers in entities.items():
        assert expected.per_class[f"B-{kind}"] == sum(numbers)
    assert sum(expected.per_class.values()) == sum(expected.per_group.values())
    assert set(expected.per_class) == set(conll2003.CORPUS.classes)


def test_other_copies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no eng\.train, eng\.testa, eng\.testb") as caught:
        conll2003.prepare(tmp_path)
    assert "daamctl download conll2003 --from DIR" in str(caught.value)
    with pytest.raises(CorpusError, match=r"eng\.train:1: 2 columns .* 4 are expected"):
        conll2003.prepare(copy(tmp_path, "Rome B-LOC\n"))
    assert "O: 3 found, 250660 expected" not in validate(conll2003.CORPUS, conll2003.prepare(copy(tmp_path)))


def test_is_never_downloaded() -> None:
    assert conll2003.CORPUS.obtain is None
    assert conll2003.CORPUS.url is None
