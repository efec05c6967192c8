"""Reading WikiText-2: parts, articles, counts and faults."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora.wikitext2 import read
from daamctl.errors import CorpusError

VALID = " \n = Lobster = \n \n Lobsters are <unk> .\n \n = = Food = = \n \n They eat 1 = 1 = 1 .\n"


def folder(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (root / f"{name}.txt").write_text(text, encoding="utf-8")
    return root


def test_articles_begin_at_titles_and_without_a_train_file_the_valid_file_is_split(tmp_path: Path) -> None:
    formula = "\n = Filter = \n\n Text .\n = 1 m and k = \n More .\n"  # no blank lines around: no title
    found = read(folder(tmp_path, valid=VALID + "\n = Crab = \n\n Crabs .\n", test=formula))
    lobster = "= Lobster = Lobsters are <unk> . = = Food = = They eat 1 = 1 = 1 ."
    assert [article.text for article in found.train] == [lobster]
    assert [article.text for article in found.dev] == ["= Crab = Crabs ."]
    assert [(article.name, article.text) for article in found.test] == [
        ("test-01", "= Filter = Text . = 1 m and k = More .")
    ]
    assert found.split.startswith("There is no train file: the first 1 of the 2 articles of valid.txt train")
    assert found.files["test"].tokens == 13 + 6  # words and lines
    assert len(found.notes) == 2
    assert "60 and 245,569" in found.notes[1]


def test_a_train_file_is_used_and_parquet_reads_the_same(tmp_path: Path) -> None:
    folder(tmp_path, train=VALID, valid="\n = B = \n\n b .\n", test="\n = C = \n\n c .\n")
    plain = read(tmp_path)
    assert plain.split == "Trained on train.txt; the epoch is chosen on valid.txt."
    (tmp_path / "train.txt").unlink()
    rows = [f"{line}\n" for line in VALID.split("\n")[:-1]]
    pl.DataFrame({"text": rows}).write_parquet(tmp_path / "train-00000-of-00001.parquet")
    table = read(tmp_path)
    assert (table.train, table.files["train"].tokens) == (plain.train, plain.files["train"].tokens)


def test_all_pieces_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    folder(tmp_path, valid=VALID, test=VALID)
    for piece, title in enumerate(("A", "B")):
        table = pl.DataFrame({"text": ["", f" = {title} = ", "", "text"]})
        table.write_parquet(tmp_path / f"train-{piece:05d}-of-00002.parquet")
    found = read(tmp_path)
    assert [article.text for article in found.train] == ["= A = text", "= B = text"]
    assert found.files["train"].name == "train-00000-of-00002.parquet, train-00001-of-00002.parquet"
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(CorpusError, match=r"00000-of-00002\.parquet, which are not all pieces of one train file"):
        read(tmp_path)


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no folder"):
        read(tmp_path / "absent")
    folder(tmp_path, valid=VALID)
    with pytest.raises(CorpusError, match=r"no test file \(test.txt, wiki.test.tokens"):
        read(tmp_path)
    (tmp_path / "test.txt").write_bytes("Größe".encode("latin1"))
    with pytest.raises(CorpusError, match=r"not UTF-8 \(line 1: byte 0xf6\)"):
        read(tmp_path)
    folder(tmp_path, test=" \n\n")
    with pytest.raises(CorpusError, match=r"test.txt has no text"):
        read(tmp_path)
    folder(tmp_path, test=VALID)
    with pytest.raises(CorpusError, match="one article, which cannot be split"):
        read(tmp_path)
    pl.DataFrame({"other": ["a"]}).write_parquet(tmp_path / "train.parquet")
    with pytest.raises(CorpusError, match="no column 'text'"):
        read(tmp_path)
