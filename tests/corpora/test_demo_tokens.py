"""The made-up sentences: complete, repeatable, and tags follow from the words before, not from the word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora import demo_tokens
from daamctl.corpora.fingerprint import validate


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_tokens.generate(tmp_path_factory.mktemp("corpora") / "demo-tokens")


@pytest.fixture(scope="module")
def rows(root: Path) -> pl.DataFrame:
    return demo_tokens.prepare(root)


def test_fingerprint_holds(rows: pl.DataFrame) -> None:
    assert validate(demo_tokens.CORPUS, rows) == []
    counts = dict(rows.group_by("group").agg(pl.col("sentence").n_unique()).iter_rows())
    assert counts == demo_tokens.SENTENCES
    texts = rows.group_by("sentence", maintain_order=True).agg(pl.col("text").str.join(" "))
    assert texts["text"].n_unique() == sum(demo_tokens.SENTENCES.values())


def test_repeatable(root: Path) -> None:
    assert demo_tokens.sentences(0) == demo_tokens.sentences(0)
    assert demo_tokens.sentences(0) != demo_tokens.sentences(1)
    again = demo_tokens.generate(root.parent.with_name("again") / "demo-tokens")
    for part in demo_tokens.SENTENCES:
        assert (again / f"{part}.conll").read_bytes() == (root / f"{part}.conll").read_bytes()


def test_made_only_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(demo_tokens, "sentences", fail)
    assert demo_tokens.generate(root) == root
    with pytest.raises(AssertionError, match="generated again"):
        demo_tokens.generate(root, seed=1)


def accuracy(rows: pl.DataFrame, *features: str) -> float:
    """Share of names in the test part whose tag is the most frequent one for these features in the training part."""
    before = pl.col("text").shift(1).over("sentence").fill_null("")
    rows = rows.with_columns(before=before).filter(pl.col("label").str.starts_with("B-"))
    best: dict[tuple[str, ...], Counter[str]] = {}
    for *key, label in rows.filter(group="train").select(*features, "label").iter_rows():
        best.setdefault(tuple(key), Counter())[label] += 1
    right = [
        tuple(key) in best and best[tuple(key)].most_common(1)[0][0] == label
        for *key, label in rows.filter(group="test").select(*features, "label").iter_rows()
    ]
    return sum(right) / len(right)


def test_context_decides(rows: pl.DataFrame) -> None:
    assert accuracy(rows, "text") < 0.55
    assert 0.8 < accuracy(rows, "before") < 1.0
