"""Where artifacts lie, and the commands that errors name."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.config import Config
from daamctl.layout import STAGES, Layout

ROOT = Path("/project")


def config(corpus: str, encoder: str) -> Config:
    return Config.model_validate({"download": {"corpus": corpus}, "extract": {"encoder": encoder}})


def test_pipeline_names_every_folder() -> None:
    layout = Layout.of(ROOT, "mine", config("emodb", "wavlm-large"))
    assert layout.utterances == ROOT / "data/download/mine/utterances.parquet"
    assert layout.clips == ROOT / "data/segment/mine/clips.parquet"
    assert layout.embeddings == ROOT / "data/extract/mine"
    assert layout.method("mha") == ROOT / "data/train/mine/mha"
    assert layout.stage("report") == ROOT / "data/report/mine"
    assert layout.corpora == ROOT / "data/corpora"
    assert layout.work == ROOT / "data/.work"


@pytest.mark.parametrize(
    ("encoder", "run"),
    [
        ("wavlm-large", "emodb-wavlm-large"),
        ("microsoft/wavlm-base", "emodb-wavlm-base"),
        ("/models/mine", "emodb-mine"),
        ("models/mine/", "emodb-mine"),
    ],
)
def test_ad_hoc_run_shares_tables_and_has_its_own_embeddings(encoder: str, run: str) -> None:
    layout = Layout.of(ROOT, None, config("emodb", encoder))
    assert layout.utterances == ROOT / "data/download/emodb/utterances.parquet"
    assert layout.clips == ROOT / "data/segment/emodb/clips.parquet"
    assert layout.embeddings == ROOT / "data/extract" / run
    assert layout.method("mha") == ROOT / "data/train" / run / "mha"


def test_command_of_a_pipeline() -> None:
    layout = Layout.of(ROOT, "mine", Config())
    assert layout.command("train", "--method", "mha") == "daamctl train --pipeline mine --method mha"


def test_command_of_an_ad_hoc_run_repeats_its_options() -> None:
    layout = Layout.of(ROOT, None, config("emodb", "wavlm-large"))
    assert layout.command("extract") == "daamctl extract --corpus emodb --encoder wavlm-large"


def test_every_stage_has_its_module_and_its_settings() -> None:
    folder = Path(__file__).resolve().parents[1] / "daamctl/stages"
    for stage in STAGES:
        assert (folder / f"{stage}.py").is_file()
        assert stage in Config.model_fields
