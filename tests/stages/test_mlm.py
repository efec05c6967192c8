"""`mlm` from a folder of text to its report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from daamctl.artifacts.masked import masked_run
from daamctl.errors import ConfigError, CorpusError, UnknownNameError
from daamctl.fit.masked import MaskedFit, MaskedSettings
from daamctl.fit.runner import FILE
from daamctl.stages import mlm
from daamctl.store.files import SaveTimer
from tests.fixtures.masked_models import save_masked, save_texts

FAST = MaskedSettings(epochs=1, lr=1e-3)


def test_perplexities_from_text_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, texts = str(save_masked(tmp_path / "tiny")), save_texts(tmp_path / "texts")
    options = {"fusions": ["weighted-sum"], "finetune": True, "seeds": (1, 2), "settings": FAST}
    path = mlm.run(tmp_path, encoder, source=texts, **options)
    found = masked_run(path.parent).open()
    assert found is not None
    assert [way.name for way in found.ways] == [
        *("last-layer", "weighted-sum"),
        *("last-layer-finetuned", "weighted-sum-finetuned"),
    ]
    assert found.articles == 5
    assert "first 4 of the 5 articles of valid.txt train" in found.split
    assert len(found.notes) == 3
    tokens = pq.read_table(path.parent / "tokens.parquet")
    nll = [pq.read_table(path.parent / f"weighted-sum/seed{seed}/nll.parquet")["nll"].to_numpy() for seed in (1, 2)]
    assert tokens.num_rows == len(nll[0]) == found.tokens
    way = found.ways[1]
    assert way.perplexity == pytest.approx(np.exp(np.mean(nll)))
    assert way.low < way.perplexity < way.high
    assert way.ratio == pytest.approx(way.perplexity / found.ways[0].perplexity)
    assert found.ways[0].ratio is None
    assert found.ways[0].epochs == [0]
    report = (tmp_path / "data/report/mlm-tiny/report.md").read_text(encoding="utf-8")
    assert "2.90" in report
    assert "cannot be compared" in report

    # everything is finished: nothing trains again, not even where the folder of text is only registered
    called: list[str] = []
    real = mlm.fit_and_save
    monkeypatch.setattr(mlm, "fit_and_save", lambda *given: called.append(given[0][0].name) or real(*given))
    before = path.read_bytes()
    assert mlm.run(tmp_path, encoder, **options).read_bytes() == before
    assert called == []
    (path.parent / "weighted-sum/seed2/nll.parquet").write_bytes(b"damaged")
    assert mlm.run(tmp_path, encoder, **options).read_bytes() == before
    assert called == ["weighted-sum"]
    mlm.run(tmp_path, encoder, rate=0.3, fusions=[])
    assert called[1:] == ["last-layer"]
    assert json.loads(path.read_text(encoding="utf-8"))["settings"]["masking"]["rate"] == 0.3


class Stopped(Exception):
    """The process ends here."""


def test_an_interrupted_training_continues_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, texts = str(save_masked(tmp_path / "tiny")), save_texts(tmp_path / "texts")
    options = {"source": texts, "fusions": ["concat"], "settings": MaskedSettings(epochs=2, batch_size=2)}
    whole = mlm.run(tmp_path, encoder, **options, name="whole").parent / "concat/seed1/nll.parquet"
    work, folder = tmp_path / "data/.work/mlm/cut/concat-seed1", tmp_path / "data/mlm/cut"
    saved = 0

    def save(timer: SaveTimer, now: Callable[[], None]) -> None:
        nonlocal saved
        now()
        saved += work.exists()
        if saved == 4:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(SaveTimer, "save_if_due", save)
        with pytest.raises(Stopped):
            mlm.run(tmp_path, encoder, **options, name="cut")
    assert (work / FILE).is_file()
    assert not (folder / "concat").exists()
    assert not work.with_name("last-layer-seed1").exists()  # that training is finished
    continued: list[int] = []
    real = MaskedFit.restore

    def restore(self: MaskedFit, state: dict[str, Any]) -> None:
        real(self, state)
        continued.append(self.steps)

    monkeypatch.setattr(MaskedFit, "restore", restore)
    mlm.run(tmp_path, encoder, **options, name="cut")
    assert continued == [3]  # the first state is that before training
    assert (folder / "concat/seed1/nll.parquet").read_bytes() == whole.read_bytes()
    assert not work.exists()


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    encoder = str(save_masked(tmp_path / "tiny"))
    with pytest.raises(CorpusError, match="not registered"):
        mlm.run(tmp_path, encoder)
    texts = save_texts(tmp_path / "texts")
    with pytest.raises(UnknownNameError, match="unknown layer fusion 'dwat'"):
        mlm.run(tmp_path, encoder, source=texts, fusions=["dwat"])
    with pytest.raises(ConfigError, match="rate must be between 0 and 1, got 0"):
        mlm.run(tmp_path, encoder, source=texts, rate=0)
    with pytest.raises(ConfigError, match="cannot name a folder"):
        mlm.run(tmp_path, encoder, source=texts, name="../x")
    (texts / "test.txt").write_text(" <unk> <unk>\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="no token that can be masked"):
        mlm.run(tmp_path, encoder, source=texts)
    assert not (tmp_path / "data/mlm").exists()
    shutil.rmtree(texts)
    with pytest.raises(CorpusError, match="no folder"):
        mlm.run(tmp_path, encoder)
