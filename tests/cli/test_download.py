"""`daamctl download` and `segment` of texts and images, and what `daamctl ls corpora` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from daamctl.artifacts.clips import read_clips
from daamctl.cli.app import app
from tests.fixtures.recordings import write_pipeline


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(("corpus", "modality", "count"), [("digits", "image", 1797), ("demo-text", "text", 600)])
def test_corpora_that_need_no_network(project: Path, corpus: str, modality: str, count: int) -> None:
    result = call("download", corpus)
    assert (result.exit_code, result.stdout) == (0, f"data/download/{corpus}/utterances.parquet\n")
    result = call("segment", "--corpus", corpus)
    assert (result.exit_code, result.stdout) == (0, f"data/segment/{corpus}/clips.parquet\n")
    clips = read_clips(project / f"data/segment/{corpus}/clips.parquet")
    assert (clips.modality, clips.rows.height) == (modality, count)


def test_folder_of_images(project: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        for index in range(4):
            path = tmp_path / "pets" / part / ("cat", "dog")[index % 2] / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (3, 3)).save(path)
    assert call("download", "manifest", "--from", str(tmp_path / "pets")).exit_code == 0
    assert call("segment", "--corpus", "manifest").exit_code == 0
    rows = read_clips(project / "data/segment/manifest/clips.parquet").rows
    assert rows["path"].to_list()[0] == "test/cat/0.jpg"
    assert dict(rows.group_by("group").len().rows()) == {"train": 4, "test": 4}


@pytest.mark.usefixtures("project")
def test_export_of_texts_is_refused() -> None:
    assert call("download", "demo-text").exit_code == 0
    result = call("segment", "--corpus", "demo-text", "--write-audio")
    assert result.exit_code == 3
    assert result.stderr.endswith(
        "ConfigError: segment.write_audio exports audio, but corpus 'demo-text' consists of texts\n"
        "  use --set segment.write_audio=false\n"
    )


def test_corpora_say_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = call("ls", "corpora").stdout.splitlines()
    found = {line.split()[0]: line.split(maxsplit=1)[1].split(" | ")[0] for line in lines if " | " in line}
    assert found == {
        "demo": "speech",
        "emodb": "speech",
        "iemocap": "speech",
        "demo-text": "text",
        "agnews": "text",
        "digits": "image",
        "cifar100": "image",
        "images": "image",
        "coco": "image",
        "demo-tokens": "tokens",
        "wnut17": "tokens",
        "conll2003": "tokens",
        "wikiann": "tokens",
        "conll": "tokens",
        "manifest": "speech, text or image",
        "embeddings": "embeddings",
    }


def test_download_takes_a_pipeline(project: Path) -> None:
    write_pipeline(project, "tones")
    assert call("download", "tones").stdout == "data/download/tones/utterances.parquet\n"
    assert call("download", "demo", "--dry-run").exit_code == 0
    assert "unknown name 'emdob'; did you mean 'emodb'?" in call("download", "emdob").stderr
