"""What is done, what is missing and what the rest will take; no figure of time is tested, only that there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daamctl import pipeline
from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.splits import split_of
from daamctl.config import Config, load_config
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import encoder_size_of
from daamctl.errors import ConfigError, MethodError
from daamctl.extraction.timing import Speed
from daamctl.layout import Layout
from daamctl.planning import calibration
from daamctl.planning.rows import Row
from daamctl.stages import download, extract, finetune, plan, segment, train
from tests.fixtures.recordings import write_pipeline

METHODS = (
    "methods: [mean, daam-v1-mlp]\nablate: {method: mean, rank_by: daam-v1-mlp, k: [1]}\n"
    "importance: {audit_clips: 2, audit_orders: 2}\nreport: {interactive: false}\n"
)
TUNED = METHODS + "finetunes: [linear-probe]\nfinetune: {epochs: 1, device: cpu}\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EMBEDDING_S", "TUNING_S", "TRAINING_S"):
        monkeypatch.setattr(calibration, name, 0.05)


def settings(project: Path, name: str, overrides: Mapping[str, Any] | None = None) -> tuple[Layout, Config]:
    config = load_config(project, name, overrides)
    return Layout.of(project, name, config), config


def planned(
    project: Path,
    name: str = "tiny",
    overrides: Mapping[str, Any] | None = None,
    *,
    lacking: Mapping[str, Obstacle | None] | None = None,
    calibrate: bool = False,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The rows by stage or method, and the whole result."""
    result = plan.run(*settings(project, name, overrides), lacking=lacking or {}, calibrate=calibrate)
    return {row["method"] or row["stage"]: row for row in result["stages"]}, result


def states(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: row["state"] for name, row in rows.items()}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_demo_before_anything_ran(project: Path) -> None:
    before = files(project)
    rows, result = planned(project, "demo", calibrate=True)
    assert files(project) == before  # nothing is written
    assert list(rows) == ["download", "segment", "extract", "none", "weighted-sum", "mha", "daam-v1", "daam-v2",
                          "ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "ridge-average", "evaluate",
                          "ablate", "importance", "report"]  # fmt: skip
    assert set(states(rows).values()) == {"to do"}
    clips = rows["extract"]["total"]
    assert 330 < clips < 390  # the 320 recordings give 360
    assert rows["extract"]["work"] == f"≈ {clips} clips, 0.25 h"
    assert rows["extract"]["disk_bytes"] == rows["extract"]["disk_left_bytes"] == clips * 24 * 64 * 2
    assert rows["extract"]["basis"] == "measured"
    assert (rows["mha"]["total"], rows["mha"]["work"]) == (5, "5 folds × at most 33 epochs")  # of the search too
    assert rows["ridge-mean"]["work"] == "5 folds"
    assert (rows["mha"]["at_most"], rows["ablate"]["at_most"], rows["ridge-mean"]["at_most"]) == (True, True, False)
    assert any(note.startswith("≤: assumes the maximum number of epochs") for note in result["notes"])
    for name in ("none", "daam-v2", "ablate", "importance"):
        assert rows[name]["basis"] == "measured"
        assert rows[name]["time_s"] > 0
        assert rows[name]["memory_bytes"] >= 2 * 320 * 24 * 64 * 2  # the features and the parts of a fold
        assert (rows[name]["about"], rows[name]["at_least"]) == (True, False)
    assert rows["ablate"]["work"] == "4 groups × 5 folds"
    assert (result["totals"]["about"], result["totals"]["at_least"]) == (True, False)
    assert any(note.startswith("≈: estimated from the published durations") for note in result["notes"])
    assert result["totals"]["possible"]


def test_result_is_json_of_one_form(project: Path) -> None:
    _, result = planned(project, "demo")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert list(result) == ["pipeline", "calibrated", "seconds", "machine", "stages", "totals", "notes"]
    assert list(result["machine"]) == ["device", "disk_free_bytes", "memory_available_bytes", "gpu_free_bytes"]
    assert list(result["totals"]) == [
        "disk_bytes", "memory_bytes", "gpu_memory_bytes", "time_s", "at_least", "at_least_of", "at_most",
        "about", "possible",
    ]  # fmt: skip
    assert all(list(row) == [field.name for field in fields(Row)] for row in result["stages"])
    assert [field.name for field in fields(Row)] == [
        "stage", "method", "state", "done", "total", "unit", "reason", "fix", "work", "disk_bytes", "disk_left_bytes",
        "memory_bytes", "memory_on", "time_s", "took_s", "basis", "at_least", "at_least_of", "at_most", "about",
        "notes",
    ]  # fmt: skip


def test_without_calibration_no_time_is_made_up(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open_encoder", "time_method"):
        monkeypatch.setattr(calibration, name, lambda *_, **__: pytest.fail("measured"))
    rows, result = planned(project, "demo")
    assert {row["time_s"] for row in rows.values() if row["basis"] != "quick"} == {None}
    assert result["totals"]["time_s"] == 0
    assert rows["mha"]["disk_bytes"] > 0


def test_from_the_first_stage_to_the_last(project: Path) -> None:
    write_pipeline(project, more=TUNED)
    rows, _ = planned(project)
    assert set(states(rows).values()) == {"to do"}
    assert rows["extract"]["total"] is None  # of a manifest nothing is known before it is read
    assert (rows["extract"]["at_least"], rows["extract"]["about"]) == (True, False)
    layout, config = settings(project, "tiny")
    download.run(layout, config)
    segment.run(layout, config)

    rows, result = planned(project, calibrate=True)
    assert [rows[name]["state"] for name in ("download", "segment", "extract")] == ["done", "done", "to do"]
    assert not result["totals"]["at_least"]
    for name in ("extract", "mean", "daam-v1-mlp", "linear-probe", "ablate", "importance"):
        assert rows[name]["basis"] == "measured", name
        assert rows[name]["time_s"] > 0, name
        assert rows[name]["memory_bytes"] > 0, name
        assert rows[name]["disk_bytes"] > 0, name
    assert result["totals"]["time_s"] == pytest.approx(sum(row["time_s"] or 0 for row in rows.values()))

    extract.run(layout, config)
    train.run(layout, config, method="mean", fold=2, track=False)
    finetune.run(layout, config, method="linear-probe", fold=1, track=False)
    rows, _ = planned(project)
    assert rows["extract"]["state"] == "done"
    assert rows["extract"]["disk_bytes"] == sum(path.stat().st_size for path in layout.embeddings.iterdir())
    for name in ("mean", "linear-probe"):
        assert (rows[name]["state"], rows[name]["done"], rows[name]["total"]) == ("partly", 1, 3)
        assert (rows[name]["basis"], rows[name]["time_s"]) == ("recorded", pytest.approx(2 * rows[name]["took_s"]))
    assert rows["daam-v1-mlp"]["state"] == rows["evaluate"]["state"] == "to do"

    pipeline.run(layout, config, track=False)
    rows, result = planned(project, calibrate=True)
    assert set(states(rows).values()) == {"done"}
    assert (result["totals"]["disk_bytes"], result["totals"]["time_s"]) == (0, 0)
    assert rows["ablate"]["took_s"] > 0

    changed, _ = planned(project, overrides={"evaluate.unit": "clip"})
    assert [name for name, state in states(changed).items() if state != "done"] == ["evaluate", "report"]
    changed, _ = planned(project, overrides={"ablate.k": [1, 3]})
    assert (changed["ablate"]["state"], changed["ablate"]["done"], changed["ablate"]["total"]) == ("partly", 6, 12)
    assert (changed["importance"]["state"], changed["report"]["state"]) == ("to do", "to do")
    changed, _ = planned(project, overrides={"train.seeds": [1, 2]})
    assert (changed["mean"]["done"], changed["mean"]["total"], changed["linear-probe"]["done"]) == (3, 6, 3)
    changed, _ = planned(project, overrides={"finetune.lr": 0.5, "train.features": "stream"})
    assert (changed["linear-probe"]["state"], changed["mean"]["state"]) == ("to do", "to do")
    changed, result = planned(project, overrides={"extract.storage": "float32"})
    assert "extract.storage: made with 'float16', asked for 'float32'" in changed["extract"]["reason"]
    assert changed["mean"]["reason"] == "3 folds are kept if the embeddings do not change"
    assert (changed["segment"]["state"], changed["linear-probe"]["state"]) == ("done", "done")
    changed, _ = planned(project, overrides={"segment.tail": "drop"})
    assert [name for name, state in states(changed).items() if state == "done"] == ["download"]


def test_what_is_older_than_its_inputs_is_to_do(project: Path) -> None:
    write_pipeline(project, more="methods: [mean]\nablate: {k: []}\n")
    layout, config = settings(project, "tiny")
    pipeline.run(layout, config, track=False)
    assert set(states(planned(project)[0]).values()) == {"done"}
    train.run(layout, config, method="mean", fold=1, force=True, track=False)
    rows, _ = planned(project)
    assert {name for name, state in states(rows).items() if state == "to do"} == {"evaluate", "importance", "report"}
    assert rows["evaluate"]["reason"] == "older than its inputs"


def test_interrupted_extraction_counts(project: Path) -> None:
    write_pipeline(project, more=METHODS)
    layout, config = settings(project, "tiny")
    for stage in (download, segment, extract):
        stage.run(layout, config)
    shutil.move(layout.embeddings, layout.work / "extract" / "0011-8")
    (layout.work / "extract/0011-8/embeddings.json").unlink()
    (layout.work / "extract/0011-8/embeddings-00003.parquet").unlink()
    (layout.work / "extract/0011-8/embeddings-00004.parquet").write_bytes(b"broken")
    row = planned(project)[0]["extract"]
    assert (row["state"], row["done"], row["total"]) == ("partly", 32, 48)
    assert row["disk_left_bytes"] == row["disk_bytes"] / 3
    assert planned(project, overrides={"extract.layer_00": True})[0]["extract"]["state"] == "to do"


def test_what_cannot_run_here_says_why(project: Path) -> None:
    corpus, encoder = Obstacle("no corpus", "fetch it"), Obstacle("no weights", "download them")
    rows, result = planned(project, "iemocap", lacking={"corpus": corpus, "encoder": encoder})
    assert set(states(rows).values()) == {"not possible"}
    assert {rows[name]["reason"] for name in ("download", "segment")} == {"no corpus"}
    assert {(row["reason"], row["fix"]) for name, row in rows.items() if name not in ("download", "segment")} == {
        ("no weights", "download them")
    }
    assert not result["totals"]["possible"]
    assert rows["extract"]["disk_bytes"] == 7817 * 24 * 1024 * 2  # what it would take is told all the same
    assert rows["extract"]["memory_bytes"] == pytest.approx(4 * 315e6, rel=0.01)

    write_pipeline(project, more=METHODS)
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    rows, _ = planned(project, lacking={"corpus": corpus, "encoder": None})
    assert (rows["download"]["state"], rows["segment"]["state"]) == ("done", "done")
    assert (rows["extract"]["reason"], rows["report"]["reason"]) == ("no corpus", "no corpus")
    extract.run(layout, config)
    rows, _ = planned(project, lacking={"corpus": corpus, "encoder": encoder})
    assert rows["mean"]["state"] == "to do"  # the embeddings are all that it needs


def test_weights_that_are_elsewhere_are_stood_in_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset's shape is enough to time it."""
    from daamctl.encoders.preset import Preset
    from daamctl.encoders.presets import wavlm_micro

    preset = Preset("someone/not-here", "wavlm", wavlm_micro.PRESET.shape, normalize=False)
    monkeypatch.setattr(wavlm_micro, "PRESET", preset)
    write_pipeline(project, more=TUNED)
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    rows, result = planned(project, calibrate=True)
    assert (rows["extract"]["basis"], rows["linear-probe"]["basis"]) == ("measured", "measured")
    assert any("random weights of its shape" in note for note in result["notes"])


def test_encoder_that_is_too_large_is_not_loaded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "open_encoder", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr(calibration, "time_method", lambda *_, **__: calibration.MethodSpeed(0.01, 0.001))
    lacking = {"encoder": Obstacle("encoder 'llama2-13b' needs 40 GB of GPU memory, this machine has no GPU")}
    monkeypatch.setattr("daamctl.planning.reading.write_sample", lambda *_: pytest.fail("written"))
    monkeypatch.setattr("daamctl.planning.reading.Reading.rate", 1e9)
    overrides = {"extract.min_gpu_memory_gb": 1e6, "finetunes": ["lora-r8"]}
    rows, result = planned(project, "agnews", overrides, lacking=lacking, calibrate=True)
    assert rows["extract"]["disk_bytes"] == 127_600 * 40 * 5120 * 2
    assert rows["extract"]["memory_bytes"] == pytest.approx(2 * 13e9, rel=0.02)
    assert rows["extract"]["memory_on"] == "cuda"
    assert (rows["extract"]["time_s"], rows["lora-r8"]["time_s"]) == (None, None)
    assert (
        "extract, finetune: not measured: it needs 1e+06 GB of GPU memory (its weights take 25.7 GB)" in result["notes"]
    )
    assert rows["daam-v1"]["work"] == "1 fold × 3 seeds × at most 120 epochs"  # official parts
    assert rows["daam-v1"]["total"] == 3
    trained = 40 * 2 * 8 * (5120 + 5120) + 5120 * 4 + 4  # numbers, in float32; with gradient and two means
    assert rows["lora-r8"]["memory_bytes"] == rows["extract"]["memory_bytes"] + (4 + 12) * trained
    assert (rows["lora-r8"]["at_least_of"], rows["extract"]["at_least_of"]) == (["memory_bytes"], [])
    assert result["totals"]["gpu_memory_bytes"] == rows["lora-r8"]["memory_bytes"]
    assert result["totals"]["at_least_of"] == ["gpu_memory_bytes"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({}, "a training step on 8 items is taken as 3 forward passes"),
        ({"finetune.gradient_checkpointing": True}, "a training step on 8 items is taken as 4 forward passes"),
        ({"finetune.accumulate": 8}, "a training step on 1 item is taken as 3 forward passes"),
        (
            {"finetune_settings": {"lora-r4": {"gradient_checkpointing": True}}},
            "a training step on 8 items is taken as 4 forward passes",
        ),
    ],
)
def test_fine_tuning_that_is_not_timed_is_estimated_from_the_forward_pass(
    project: Path, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(calibration, "TUNING_S", -1.0)  # no time is left
    monkeypatch.setattr(calibration, "time_embedding", lambda *_, **__: Speed(2.0, 1000, 100, 100))
    write_pipeline(project, more=METHODS + "finetunes: [lora-r4]\nfinetune: {epochs: 2, device: cpu}\n")
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    rows, result = planned(project, overrides=overrides, calibrate=True)
    row = rows["lora-r4"]
    assert row["basis"] == "estimated"
    assert row["notes"] == [f"not measured: {words}, as fast as in the large batches of extract"]
    clips, passes = read_clips(layout.clips).rows, 4 if "4 forward" in words else 3
    splits = [split_of(clips, fold, config.train) for fold in (1, 2, 3)]
    passed = [passes * len(one.train) + len(one.dev) + len(one.test) for one in splits]
    samples = 16000 * float(clips["duration_s"].to_numpy().mean())
    epochs = 3 * 2 + 2  # each of three rates for two epochs, which is all that there are, and the refit of one
    assert row["time_s"] == pytest.approx(epochs * sum(passed) * samples * 2.0 / 1000, rel=0.01)
    encoder = ENCODERS.load("wavlm-micro").shape
    trained = encoder["num_hidden_layers"] * 2 * 4 * 2 * 64 + 64 * 2 + 2  # two maps of rank 4 a layer; the classifier
    outline = encoder_size_of(config.extract, "speech")
    assert outline is not None
    assert row["memory_bytes"] == 4 * outline.num_parameters + (4 + 12) * trained
    assert (row["at_least"], row["at_least_of"]) == (False, ["memory_bytes"])
    assert result["totals"]["at_least_of"] == ["memory_bytes"]


def test_published_texts_are_all_of_one_length() -> None:
    sizes, config = np.array([9, 200, 4000]), Config.model_validate({"finetune": {"max_tokens": 512}})
    assert calibration._as_tuned(sizes, "lora-r4-published", config, "text").tolist() == [128, 128, 128]
    assert calibration._as_tuned(sizes, "lora-r4", config, "text").tolist() == [9, 200, 512]
    assert calibration._as_tuned(sizes, "lora-r4-published", config, "speech").tolist() == sizes.tolist()


def test_methods_beyond_the_time_for_calibration_stay_unknown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LIMIT_S", -1.0)
    rows, result = planned(project, "demo", calibrate=True)
    assert (rows["mha"]["basis"], rows["ablate"]["basis"]) == ("not known", "not known")
    words = "not measured, because it would take too long: none, weighted-sum, mha, daam-v1, daam-v2, ridge-last, "
    assert any(note.startswith(words) for note in result["notes"])


def test_method_that_does_not_fit(project: Path) -> None:
    seven = {"method_settings.daam-v1.num_heads": 7}
    rows, _ = planned(project, "demo", {**seven, "ablate.rank_by": "daam-v1"})
    assert rows["daam-v1"]["state"] == "not possible"
    assert "num_heads (7) must divide the number of layers (24)" in rows["daam-v1"]["reason"]
    assert "--set method_settings.daam-v1.num_heads=6" in rows["daam-v1"]["fix"]
    assert rows["ablate"]["state"] == "not possible"  # it ranks by that method
    assert rows["mha"]["state"] == rows["evaluate"]["state"] == "to do"
    rows, _ = planned(project, "demo", seven)
    assert (rows["ablate"]["state"], rows["ablate"]["work"]) == ("to do", "4 groups × 5 folds")  # daam-v2 stands in


def test_ablation_by_a_method_that_is_not_listed(project: Path) -> None:
    rows, _ = planned(project, "demo", {"ablate.rank_by": "gqdaam"})
    assert rows["ablate"]["state"] == "not possible"
    assert rows["ablate"]["reason"].startswith("ablate.rank_by: 'gqdaam' is not among the methods of this pipeline (")


@pytest.mark.parametrize(
    ("overrides", "stage", "reason"),
    [
        ({"ablate.presets": ["text-19-21-37-39"]}, "ablate", "[37, 38, 39] is not among the layers 1 to 24"),
        ({"download.folds": "stratified", "download.num_groups": 2}, "mha", "2 group(s) (group1, group2) cannot be"),
    ],
)
def test_settings_that_do_not_fit_the_data(project: Path, overrides: dict[str, Any], stage: str, reason: str) -> None:
    rows, _ = planned(project, "demo", overrides)
    assert rows[stage]["state"] == "not possible"
    assert reason in rows[stage]["reason"]


@pytest.mark.parametrize(("rate", "least"), [(1e-3, []), (None, ["time_s"])])
def test_reading_from_disk_is_counted(
    project: Path, monkeypatch: pytest.MonkeyPatch, rate: float | None, least: list[str]
) -> None:
    """At a byte in a thousand seconds nothing else counts; where the rate is not known, the time is a lower bound."""
    monkeypatch.setattr("daamctl.planning.reading.reading_rate", lambda *_, **__: rate)
    before = files(project)
    changes = {"train.features": "stream", "train.search": "none", "train.refit": False}
    changes |= {"train.epochs": 3, "ablate.k": [2]}
    rows, result = planned(project, "demo", changes, calibrate=True)
    assert files(project) == before
    row, clips = rows["mha"], rows["extract"]["total"]
    assert (row["at_least_of"], rows["ablate"]["at_least_of"]) == (least, least)
    assert result["totals"]["at_least_of"] == least
    words = "which the times do not include" if rate is None else "at 0 MB per second"
    assert any(f"read from disk in every epoch, {words}" in note for note in result["notes"])
    if rate is not None:
        nbytes = 24 * 64 * 2 * clips  # all lie in one shard, which every pass over the training part reads whole
        passes = 5 * (3 + 2)  # of five folds three epochs; the parts to evaluate are read once and held
        assert row["time_s"] == pytest.approx(passes * nbytes / rate, rel=1e-3)
        assert rows["ablate"]["time_s"] == pytest.approx(2 * 2 / 24 * passes * nbytes / rate, rel=1e-3)  # two groups


@pytest.mark.parametrize(("features", "words"), [("memory", "held in memory"), ("stream", "read from disk in every")])
def test_where_training_takes_the_features_from(project: Path, features: str, words: str) -> None:
    rows, result = planned(project, "demo", {"train.features": features})
    assert any(f"1.1 MB, {words}" in note for note in result["notes"])
    assert rows["mha"]["memory_bytes"] > (2 if features == "memory" else 1) * 320 * 24 * 64 * 2


def test_layers_are_ranked_by_a_density_only(project: Path) -> None:
    rows, _ = planned(project, "demo", {"ablate.rank_by": "mha", "ablate.layers": [[9], [3, 4]]})
    assert rows["ablate"]["work"] == "2 groups × 5 folds"
    rows, _ = planned(project, "demo", {"ablate.rank_by": "mha"})
    assert (rows["ablate"]["work"], rows["ablate"]["basis"]) == ("0 groups × 5 folds", "quick")


def test_encoder_that_cannot_be_tuned_or_opened(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MethodError("linear-probe: not with this encoder", fix="take another")

    monkeypatch.setattr(calibration, "time_finetune", refuse)
    write_pipeline(project, more=TUNED)
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    row = planned(project, calibrate=True)[0]["linear-probe"]
    assert (row["state"], row["reason"], row["fix"]) == (
        "not possible", "linear-probe: not with this encoder", "take another",
    )  # fmt: skip
    assert row["time_s"] is None
    rows, _ = planned(project, overrides={"extract.encoder": "beit-micro"}, calibrate=True)
    assert rows["extract"]["reason"] == "encoder 'beit-micro' reads images, the corpus holds speech"
    assert {rows[name]["state"] for name in ("extract", "linear-probe", "mean", "report")} == {"not possible"}


def test_device_that_is_not_here(project: Path) -> None:
    with pytest.raises(ConfigError, match="device 'cuda:99' is not on this machine"):
        planned(project, "demo", {"train.device": "cuda:99"})
