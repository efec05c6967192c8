"""WikiAnn: the language before the words goes, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora import wikiann
from daamctl.errors import CorpusError


def language(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    for part in ("train", "dev", "test", "extra"):
        (folder / part).write_text(text, encoding="utf-8")
    return folder


def test_language_is_removed(tmp_path: Path) -> None:
    text = "be-x-old:Мінск\tB-LOC\nbe-x-old::\tO\n\nbe-x-old:a:b\tO\n"
    rows = wikiann.prepare(language(tmp_path / "be-x-old", text))
    assert rows["text"].to_list() == ["Мінск", ":", "a:b"] * 3
    assert rows["group"].to_list() == ["train"] * 3 + ["dev"] * 3 + ["test"] * 3
    assert set(rows["label"]) == {"B-LOC", "O"}


def test_copy_without_a_language(tmp_path: Path) -> None:
    rows = wikiann.prepare(language(tmp_path, "at\tO\n10:30\tO\nin\tO\nRio\tB-LOC\n"))
    assert rows["text"].to_list()[:4] == ["at", "10:30", "in", "Rio"]


def test_words_that_lack_it(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="train:4: the word 'Rio' does not begin with 'en:' as others do"):
        wikiann.prepare(language(tmp_path, "en:a\tO\nen:in\tO\n\nRio\tB-LOC\nen:b\tO\n"))
    with pytest.raises(CorpusError, match="train:2: the word 'en:' does not"):
        wikiann.prepare(language(tmp_path, "en:a\tO\nen:\tO\n"))


def test_tables_as_the_hub_has_them(tmp_path: Path) -> None:
    for part in ("train", "validation", "test"):
        rows = {"tokens": [["en:Rio", "en:is"]], "ner_tags": [["B-LOC", "O"]], "langs": [["en", "en"]]}
        pl.DataFrame(rows).write_parquet(tmp_path / f"{part}-00000-of-00001.parquet")
    rows = wikiann.prepare(tmp_path)
    assert rows["text"].to_list() == ["Rio", "is"] * 3
    assert rows["group"].to_list() == ["train"] * 2 + ["dev"] * 2 + ["test"] * 2


def test_folder_of_languages(tmp_path: Path) -> None:
    language(tmp_path / "en", "en:a\tO\n")
    language(tmp_path / "de", "de:a\tO\n")
    with pytest.raises(CorpusError, match="folders of languages, de, en: give one of them"):
        wikiann.prepare(tmp_path)
    with pytest.raises(CorpusError, match="no train, dev and test") as caught:
        wikiann.prepare(tmp_path / "en" / "..")
    assert "daamctl download wikiann --from DIR" in str(caught.value)


def test_three_columns(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"train:1: 3 columns .* 2 are expected"):
        wikiann.prepare(language(tmp_path, "en:a\tx\tO\n"))
