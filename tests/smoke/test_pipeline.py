"""The whole pipeline in one process, on a tiny corpus of real audio files: every stage, every artifact, kept work."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import polars as pl
import pytest

from daamctl.artifacts.embeddings import METADATA_FILE, layer_column, read_embeddings, read_head
from daamctl.artifacts.importance import find_importance
from daamctl.artifacts.layer_sets import find_ablation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import Config, load_config
from daamctl.errors import ArtifactError, ConfigError, EncoderError, TrainingError
from daamctl.planning.repair import repair_of
from daamctl.stages import download, extract, pipeline, segment, train
from daamctl.store.tables import read_parquet
from tests.fixtures.recordings import write_pipeline


def settings(project: Path, name: str = "tiny") -> tuple[Layout, Config]:
    config = load_config(project, name)
    return Layout.of(project, name, config), config


@pytest.mark.usefixtures("blank_pictures")
def test_every_stage_writes_what_the_next_one_reads(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    few = "methods: [none-mlp, weighted-sum, daam-v1-mlp]\nablate: {k: [1]}\nimportance: {dpi: 60}\n"
    write_pipeline(project, more=few, train="grad_clip_norm: 1.0")
    layout, config = settings(project)
    report = pipeline.run(layout, config, track=False)
    assert report.name == "report.html"
    html = report.read_text(encoding="utf-8")
    assert not re.search(r"""<(script|link|img|iframe)[^>]*(src|href)=["']https?:""", html)
    for method in config.methods:
        assert method in html
        assert len(read_folds(layout.method(method))) == 3
    metrics = json.loads((layout.stage("metrics") / "none-mlp.json").read_text())
    assert metrics["accuracy"] > 0.8  # two tones; chance is 0.5
    assert {"accuracy.png", "learning.png"} <= {path.name for path in layout.stage("plots").iterdir()}
    ablation = find_ablation(layout.stage("ablate"))
    assert ablation is not None
    assert list(ablation.sets) == ["highest-1", "lowest-1"]
    summary = find_importance(layout.stage("importance"))
    assert summary is not None
    assert summary.audit.no_ablation is None  # the first run already has what the ablation found
    assert [one.method for one in summary.tests if one.test == "alone"] == ["weighted-sum", "daam-v1-mlp"]

    closed = [path for path in layout.data.rglob("*") if path.is_file() and path.stat().st_mode & 0o777 == 0o600]
    assert closed == []  # others may read what the umask lets them read

    before = {path: path.stat().st_mtime_ns for path in (layout.data / "train").rglob("result.json")}
    with caplog.at_level(logging.INFO, logger="daamctl"):
        extract.run(layout, config)
        for method in config.methods:
            train.run(layout, config, method=method, track=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "3 of 3 folds are finished and kept" in caplog.text
    assert "are up to date" in caplog.text


def test_two_pipelines_share_one_extraction(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_pipeline(project, "twin")
    text = path.read_text()
    path.write_text(text.replace("tones.csv}", "tones.csv, num_groups: 3, folds: stratified}"))
    write_pipeline(project)
    for name in ("tiny", "twin"):
        layout, config = settings(project, name)
        download.run(layout, config)
        segment.run(layout, config)
    extract.run(*settings(project, "tiny"))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the clips were embedded twice")

    monkeypatch.setattr(extract, "make_shards", never)
    extract.run(*settings(project, "twin"))
    first, second = (project / "data/extract" / name for name in ("tiny", "twin"))
    names = sorted(path.name for path in first.glob("embeddings-*.parquet"))
    assert len(names) == 6
    assert [(second / name).read_bytes() for name in names] == [(first / name).read_bytes() for name in names]
    one, other = read_head(first), read_head(second)
    assert other.vectors_key == one.vectors_key
    assert other.key != one.key  # folds depend on the groups
    assert read_embeddings(second)[0]["group"].n_unique() == 3


def test_embeddings_hold_one_column_per_layer_and_their_origin(project: Path) -> None:
    write_pipeline(project, more="segment: {max_duration_s: 0.25, tail: keep}\n")
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    folder = extract.run(layout, config)
    head = read_head(folder)
    assert (len(head.layers), head.embed_dim) == (24, 64)
    facts = ("weights_sha256", "transformers", "final_norm", "pooling", "normalize", "precision", "storage", "revision")
    assert set(facts) <= head.encoder.keys()
    table = read_parquet(folder / "embeddings-00000.parquet")
    assert table.column_names[:2] == ["clip_id", "n_frames"]
    assert table.column_names[2:] == [layer_column(layer) for layer in range(1, 25)]
    assert str(table.schema.field("layer_01").type) == "fixed_size_list<element: halffloat>[64]"
    frames = pl.Series(table["n_frames"].to_pylist())
    assert frames.min() is not None
    assert frames.max() == 12  # 0.25 s = 4000 samples: (4000 - 400) // 320 + 1


def test_clips_made_with_other_settings_are_refused(project: Path) -> None:
    write_pipeline(project)
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    write_pipeline(project, more="segment: {tail: pad, tail_below_s: null}\n")
    with pytest.raises(ArtifactError) as caught:
        extract.run(*settings(project))
    assert str(caught.value) == (
        "the clips were made with other settings: segment.tail: made with 'merge', asked for 'pad'; "
        "segment.tail_below_s: made with 0.5, asked for None"
    )
    assert repair_of(caught.value.path, layout) == "make it again: daamctl segment tiny"


def test_unreadable_audio_is_named_and_nothing_is_half_written(project: Path) -> None:
    write_pipeline(project)
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    (project / "tones" / "s3-1.wav").write_bytes(b"RIFF")
    with pytest.raises(Exception, match=r"1 of 48 clips cannot be read \(tolerated: 0.0%\): s3-1#000: .*s3-1.wav"):
        extract.run(layout, config)
    assert not (layout.embeddings / METADATA_FILE).exists()
    tolerant = load_config(project, "tiny", {"extract.max_unreadable_fraction": 0.05})
    head = read_head(extract.run(layout, tolerant))
    assert head.num_clips == 47
    assert list(head.unreadable) == ["s3-1#000"]


def test_encoder_that_is_not_here_says_how_to_get_it(project: Path) -> None:
    write_pipeline(project, more="")
    path = project / "pipelines" / "tiny.yaml"
    path.write_text(path.read_text().replace("extract: {", "extract: {encoder: wavlm-large, "))
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    with pytest.raises(EncoderError, match="hf download microsoft/wavlm-large"):
        extract.run(layout, config)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_pipeline_without_a_ranking_method_still_ends_in_a_report(project: Path) -> None:
    write_pipeline(project, more="methods: [weighted-sum]\nablate: {layers: [[3], [20, 21]], method: weighted-sum}\n")
    layout, config = settings(project)
    report = pipeline.run(layout, config, track=False)
    ablation = find_ablation(layout.stage("ablate"))
    assert ablation is not None
    assert list(ablation.sets.values()) == [(3,), (20, 21)]
    assert ablation.notes[0].startswith("Layers are not ranked: no method of this pipeline has a density.")
    assert "Layers are not ranked" in report.read_text(encoding="utf-8")  # beside the results of the chosen layers
    write_pipeline(project, more="methods: [weighted-sum]\n")
    report = pipeline.run(*settings(project), track=False)
    assert "Training on few layers" not in report.read_text(encoding="utf-8")


def test_method_that_does_not_fit_is_found_before_anything_runs(project: Path) -> None:
    write_pipeline(project, more="method_settings: {daam-v1: {num_heads: 7}}\n")
    with pytest.raises(ConfigError) as caught:
        pipeline.run(*settings(project), track=False)
    assert "num_heads (7) must divide the number of layers (24); possible: 1, 2, 3, 4, 6, 8, 12" in str(caught.value)
    assert not (project / "data").exists()


def test_folds_that_cannot_be_trained_are_found_in_download(project: Path) -> None:
    write_pipeline(project)
    manifest = project / "tones" / "tones.csv"
    manifest.write_text(manifest.read_text().replace("low,s4", "high,s4").replace("low,s5", "high,s5"))
    with pytest.raises(TrainingError, match=r"fold 1: the train part \(the other groups\) holds only class 'high'"):
        download.run(*settings(project))
