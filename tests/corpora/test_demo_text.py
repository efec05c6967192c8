"""The made-up texts: complete by their own plan, repeatable, author-independent, and neither trivial nor noise."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.artifacts.embeddings import read_embeddings
from daamctl.artifacts.layout import Layout
from daamctl.config import load_config
from daamctl.corpora import demo_text
from daamctl.corpora.fingerprint import validate
from daamctl.stages import download, extract, segment


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_text.generate(tmp_path_factory.mktemp("corpora") / "demo-text")


@pytest.fixture(scope="module")
def rows(root: Path) -> pl.DataFrame:
    return demo_text.prepare(root)


def test_fingerprint_holds(rows: pl.DataFrame) -> None:
    assert validate(demo_text.CORPUS, rows) == []
    assert rows.height == 600
    assert rows["text"].n_unique() == 600
    assert rows["text"].str.len_chars().min() > 20


def test_every_author_is_in_one_group_and_writes_about_everything(rows: pl.DataFrame) -> None:
    authors = rows.group_by("speaker").agg(pl.col("group").n_unique(), pl.col("label").n_unique())
    assert set(authors.select("group", "label").rows()) == {(1, 4)}
    assert rows.group_by("group").agg(pl.col("speaker").n_unique())["speaker"].to_list() == [2] * 5


def test_repeatable(root: Path) -> None:
    assert demo_text.notices(0).equals(demo_text.notices(0))
    assert not demo_text.notices(0).equals(demo_text.notices(1))
    again = demo_text.generate(root.parent.with_name("again") / "demo-text")
    assert (again / demo_text.FILE).read_bytes() == (root / demo_text.FILE).read_bytes()


def test_made_only_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(demo_text, "notices", fail)
    assert demo_text.generate(root) == root
    with pytest.raises(AssertionError, match="generated again"):
        demo_text.generate(root, seed=1)
    assert (root / demo_text.FILE).is_file()
    assert [path.name for path in root.parent.iterdir()] == ["demo-text"]


def test_learnable_across_authors_but_not_trivial(rows: pl.DataFrame) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import LeaveOneGroupOut, StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
    texts, groups = rows["text"].to_list(), rows["group"].to_numpy()
    scores = cross_val_score(model, texts, rows["label"].to_numpy(), groups=groups, cv=LeaveOneGroupOut())
    assert 0.85 < scores.mean() < 0.95  # majority class: 0.30
    style = cross_val_score(model, texts, rows["speaker"].to_numpy(), cv=StratifiedKFold(5))
    assert style.mean() > 0.4  # chance: 0.10


@pytest.mark.slow
def test_the_random_encoder_of_the_pipeline_keeps_the_topics(project: Path) -> None:
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    config = load_config(project, "demo-text", {"extract.precision": "float32", "extract.device": "cpu"})
    layout = Layout.of(project, "demo-text", config)
    for stage in (download, segment, extract):
        stage.run(layout, config)
    clips, vectors, layers = read_embeddings(layout.embeddings)
    assert layers[0] == 1
    probe = make_pipeline(StandardScaler(), RidgeClassifier(10.0))
    groups = clips["group"].to_numpy()
    scores = cross_val_score(probe, vectors[:, 0], clips["label"].to_numpy(), groups=groups, cv=LeaveOneGroupOut())
    assert len(scores) == 3
    assert scores.min() > 0.55  # majority class: 0.30
