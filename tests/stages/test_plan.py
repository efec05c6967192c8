"""What is done, what is missing and what the rest will take, by arithmetic and from recorded times."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from daamctl.artifacts.clips import read_clips, write_clips
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.splits import split_of
from daamctl.compute.energy import Meter
from daamctl.config import Config, load_config
from daamctl.data.stage_table import STAGES
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import encoder_size_of
from daamctl.errors import ConfigError, MethodError
from daamctl.extraction.stopwatch import timing_file
from daamctl.fit import adapter, runner
from daamctl.planning.recorded import work_of_fold
from daamctl.planning.tasks import Task
from daamctl.stages import ablate, download, evaluate, extract, finetune, pipeline, plan, report, segment, train
from daamctl.store.files import read_json, write_json
from daamctl.store.records import write_record
from tests.fixtures.given import items, write_items
from tests.fixtures.recordings import write_pipeline

pytestmark = pytest.mark.usefixtures("blank_pictures")
METHODS = (
    "methods: [mean, daam-v1-mlp]\nablate: {method: mean, rank_by: daam-v1-mlp, k: [1]}\n"
    "importance: {audit_clips: 2, audit_orders: 2}\nreport: {interactive: false}\n"
)
QUICK = {"train.search": "none", "train.refit": False, "train.steps": 4}
TUNED = METHODS + "finetunes: [linear-probe]\nfinetune: {epochs: 1, search: none, device: cpu}\n"


def settings(project: Path, name: str, overrides: Mapping[str, Any] | None = None) -> tuple[Layout, Config]:
    config = load_config(project, name, overrides)
    return Layout.of(project, name, config), config


def planned(
    project: Path,
    name: str = "tiny",
    overrides: Mapping[str, Any] | None = None,
    *,
    blockers: Mapping[str, Obstacle | None] | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The rows by stage or method, and the whole result."""
    result = plan.run(*settings(project, name, overrides), blockers=blockers or {})
    return {row["method"] or row["stage"]: row for row in result["stages"]}, result


def set_speed(layout: Layout, **changes: float) -> None:
    """Change the recorded speed of the extraction."""
    path = timing_file(layout.embeddings)
    write_json(path, {**read_json(path), **changes})


def states(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: row["state"] for name, row in rows.items()}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_demo_before_anything_ran(project: Path) -> None:
    before = files(project)
    rows, result = planned(project, "demo")
    assert files(project) == before  # nothing is written
    assert list(rows) == ["download", "segment", "extract", "none-mlp", "mean", "weighted-sum", "daam-v1-mlp",
                          "daam-v2-mlp", "ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "evaluate",
                          "ablate", "importance", "report"]  # fmt: skip
    assert set(states(rows).values()) == {"to do"}
    clips = rows["extract"]["total"]
    assert 330 < clips < 390  # the 320 recordings give 360
    assert rows["extract"]["work"] == f"≈ {clips} clips, 0.25 h"
    assert rows["extract"]["disk_bytes"] == rows["extract"]["disk_left_bytes"] == clips * 12 * 64 * 2
    assert (rows["mean"]["total"], rows["mean"]["work"]) == (
        5,
        "5 folds × 3 trainings × 200 steps",
    )  # two candidates and the refit
    assert rows["ridge-mean"]["work"] == "5 folds"
    for name in ("extract", "mean", "daam-v2-mlp", "ablate", "importance"):
        assert (rows[name]["basis"], rows[name]["time_s"]) == ("not known", None)
        assert (rows[name]["about"], rows[name]["at_least"]) == (True, False)
    for name in ("mean", "daam-v2-mlp", "ablate", "importance"):
        assert rows[name]["memory_at_least"] is False
        if rows[name]["memory_bytes"] is not None:
            assert rows[name]["memory_bytes"] >= 2 * 320 * 12 * 64 * 2  # the features and the parts of a fold
    assert rows["extract"]["memory_at_least"]  # activations are not counted
    assert any(note.endswith("measure it: daamctl plan demo --measure") for note in result["notes"])
    assert rows["ablate"]["work"] == "4 groups × 5 folds"
    assert (result["totals"]["about"], result["totals"]["at_least"]) == (True, False)
    assert any(note.startswith("≈: estimated from the published durations") for note in result["notes"])
    assert result["totals"]["possible"]


def test_result_is_json_of_one_form(project: Path) -> None:
    _, result = planned(project, "demo")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert list(result) == ["pipeline", "encoder", "machine", "stages", "totals", "notes"]
    assert list(result["machine"]) == ["device", "disk_free_bytes", "memory_available_bytes", "gpu_free_bytes"]
    assert list(result["totals"]) == [
        "disk_bytes", "memory_bytes", "gpu_memory_bytes", "time_s", "joules", "at_least", "at_least_of", "about",
        "possible",
    ]  # fmt: skip
    assert all(list(row) == [field.name for field in fields(Task)] for row in result["stages"])
    assert [field.name for field in fields(Task)] == [
        "stage", "method", "state", "done", "total", "unit", "reason", "fix", "work", "disk_bytes", "disk_left_bytes",
        "memory_bytes", "memory_on", "memory_at_least", "time_s", "took_s", "joules", "basis", "at_least", "about",
        "notes",
    ]  # fmt: skip


def test_from_the_first_stage_to_the_last(project: Path) -> None:
    write_pipeline(project, more=TUNED)
    rows, _ = planned(project)
    assert set(states(rows).values()) == {"to do"}
    assert rows["extract"]["total"] is None  # of a manifest nothing is known before it is read
    assert (rows["extract"]["at_least"], rows["extract"]["about"]) == (True, False)
    layout, config = settings(project, "tiny")
    download.run(layout, config)
    segment.run(layout, config)

    rows, result = planned(project)
    assert [rows[name]["state"] for name in ("download", "segment", "extract")] == ["done", "done", "to do"]
    assert not result["totals"]["at_least"]
    assert "time_s" in result["totals"]["at_least_of"]
    for name in ("extract", "mean", "daam-v1-mlp", "linear-probe", "ablate", "importance"):
        assert rows[name]["basis"] == "not known", name
        assert rows[name]["time_s"] is None, name
        assert rows[name]["memory_bytes"] > 0, name
        assert rows[name]["disk_bytes"] > 0, name

    extract.run(layout, config)
    train.run(layout, config, method="mean", fold=2, track=False)
    finetune.run(layout, config, method="linear-probe", fold=1, track=False)
    rows, result = planned(project)
    assert rows["extract"]["state"] == "done"
    assert rows["extract"]["disk_bytes"] == sum(path.stat().st_size for path in layout.embeddings.iterdir())
    for name in ("mean", "linear-probe"):
        assert (rows[name]["state"], rows[name]["done"], rows[name]["total"]) == ("partly", 1, 3)
        assert (rows[name]["basis"], rows[name]["time_s"]) == ("recorded", pytest.approx(2 * rows[name]["took_s"]))
    assert rows["ablate"]["basis"] == "estimated"  # from the method that it retrains
    assert result["totals"]["time_s"] == pytest.approx(sum(row["time_s"] or 0 for row in rows.values()))
    assert rows["daam-v1-mlp"]["state"] == rows["evaluate"]["state"] == "to do"

    pipeline.run(layout, config, track=False)
    rows, result = planned(project)
    assert set(states(rows).values()) == {"done"}
    assert (result["totals"]["disk_bytes"], result["totals"]["time_s"]) == (0, 0)
    assert rows["ablate"]["took_s"] > 0

    for change, again in (
        ({"evaluate.unit": "clip"}, ["evaluate", "ablate", "importance", "report"]),
        ({"evaluate.reference": "daam-v1-mlp"}, ["evaluate", "report"]),
        ({"importance.audit_orders": 3}, ["importance", "report"]),
        ({"importance.dpi": 100}, ["importance", "report"]),
        ({"ablate.k": []}, ["ablate", "importance", "report"]),
        ({"report.title": "Tones"}, ["report"]),
    ):
        changed, _ = planned(project, overrides=change)
        assert [name for name, state in states(changed).items() if state != "done"] == again
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
    assert changed["linear-probe"]["reason"] == "3 folds are kept if the clips do not change"

    clips = read_clips(layout.clips)  # two clips of one group change their labels: all numbers stay
    labels, group = clips.rows["label"].to_list(), clips.rows["group"]
    other = next(row for row, label in enumerate(labels) if label != labels[0] and group[row] == group[0])
    labels[0], labels[other] = labels[other], labels[0]
    write_clips(layout.clips, replace(clips, rows=clips.rows.with_columns(label=pl.Series(labels))))
    assert planned(project)[0]["linear-probe"]["state"] == "to do"


def test_fine_tuning_on_few_sentences(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed draws other sentences, with other numbers of words, and a batch is of sentences."""
    text = "download: {corpus: demo-tokens}\nextract: {encoder: llama-micro}\nmethods: [ridge-last]\n"
    text += "train: {shots: 3, seeds: [1, 2]}\nfinetunes: [linear-probe]\n"
    text += "finetune: {epochs: 2, batch_size: 16, search: none, device: cpu}\n"
    (project / "pipelines/few.yaml").write_text(text, encoding="utf-8")
    layout, config = settings(project, "few")
    for stage in (download, segment):
        stage.run(layout, config)
    assert planned(project, "few")[0]["linear-probe"]["work"] == "1 fold × 2 seeds × 2 trainings × 2 steps"
    finetune.run(layout, config, method="linear-probe", track=False)
    assert planned(project, "few")[0]["linear-probe"]["state"] == "done"
    monkeypatch.setattr(adapter, "KEY_FORMAT", 0)  # other code trains again
    assert planned(project, "few")[0]["linear-probe"]["state"] == "to do"


def test_what_is_to_do_is_what_run_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(project, more=TUNED)
    layout, config = settings(project, "tiny", QUICK)
    for stage in (download, segment, extract):
        stage.run(layout, config)
    train.run(layout, config, method="mean", fold=2, track=False)
    made: Counter[str] = Counter()
    real = runner.write_fold

    def count(folder: Path, *words: Any, **more: Any) -> dict[str, Any]:
        made[folder.parent.name.partition("-fold")[0]] += 1
        return real(folder, *words, **more)

    monkeypatch.setattr(runner, "write_fold", count)
    ablated = layout.stage("ablate")
    for removed, kept in (
        ([], []),
        # the maps of a fold that was trained again with the same result stay
        ([layout.method("mean") / "fold1-seed1", ablated / "lowest-1-mean" / "fold3-seed1"], ["importance"]),
        ([], []),
    ):
        for path in removed:
            shutil.rmtree(path)
        rows, _ = planned(project, overrides=QUICK)
        left = {name: row["total"] - row["done"] for name, row in rows.items() if row["unit"] == "folds"}
        files = {name: layout.stage(name) / STAGES[name].finished for name in ("evaluate", "importance", "report")}
        before = {name: path.stat().st_mtime_ns if path.exists() else 0 for name, path in files.items()}
        made.clear()
        pipeline.run(layout, config, track=False)
        trained = {name: made[name] for name in config.trained}
        trained["ablate"] = sum(number for name, number in made.items() if name.endswith("est-1-mean"))
        assert trained == left
        to_do = [name for name in files if rows[name]["state"] != "done"]
        assert [name for name in to_do if files[name].stat().st_mtime_ns == before[name]] == kept
        assert set(states(planned(project, overrides=QUICK)[0]).values()) == {"done"}
    assert sum(made.values()) == 0  # nothing was left the last time


def test_plan_and_stage_agree_on_what_an_ablation_trains_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(project, more=METHODS)
    layout, config = settings(project, "tiny", QUICK)
    for stage in (download, segment, extract):
        stage.run(layout, config)
    for method in config.methods:
        train.run(layout, config, method=method, track=False)
    scores = {layer: float(layer) for layer in range(1, 25)}
    for module in (plan, ablate):
        monkeypatch.setattr(module, "layer_scores", lambda _: scores)
    trained: list[Path] = []
    real = runner.write_fold
    monkeypatch.setattr(runner, "write_fold", lambda *a, **k: (trained.append(a[0]), real(*a, **k))[1])

    def left() -> tuple[int, str]:
        row = planned(project, overrides=QUICK)[0]["ablate"]
        return row["total"] - row["done"], row["state"]

    assert left() == (6, "to do")
    for changed, again in (
        ({}, 6),
        ({}, 0),
        ({3: 99.0}, 3),  # another layer is the highest: three folds
        (dict.fromkeys(scores, 1.0), 0),  # no ranking: nothing to train, but another table
    ):
        scores.update(changed)
        number, state = left()
        assert number == again or (again == 0 and number == 1)
        assert (state == "done") == (not changed and bool(trained))
        trained.clear()
        ablate.run(layout, config, track=False)
        assert len([path for path in trained if "ridge" not in str(path)]) == again
        assert left()[1] == "done"
        trained.append(Path())


def test_what_was_made_of_other_results_is_to_do_whatever_the_times_of_files(project: Path) -> None:
    write_pipeline(project, more="methods: [mean]\nablate: {k: []}\n")
    layout, config = settings(project, "tiny")
    pipeline.run(layout, config, track=False)
    assert set(states(planned(project)[0]).values()) == {"done"}
    ablate.run(layout, config, track=False)  # an equal result
    assert set(states(planned(project)[0]).values()) == {"done"}
    for name in ("evaluate", "importance", "report"):
        os.utime(layout.stage(name) / STAGES[name].finished, (0, 0))  # as if a copy had mixed the times up
    assert set(states(planned(project)[0]).values()) == {"done"}
    written = read_json(layout.report_settings)
    write_json(layout.report_settings, written["settings"])  # as an earlier version wrote it
    rows, _ = planned(project)
    assert {name for name, state in states(rows).items() if state == "to do"} == {"report"}
    assert rows["report"]["reason"] == "written with other settings or results, or by an earlier version"
    write_json(layout.report_settings, written)
    trained = layout.method("mean") / "fold1-seed1" / "result.json"
    result = read_json(trained)
    result["meta"]["train_s"] += 1
    write_record(trained, result)
    os.utime(trained, (0, 0))
    rows, _ = planned(project)  # the maps of the same weights are the same
    assert {name for name, state in states(rows).items() if state == "to do"} == {"evaluate", "report"}
    assert "trained again after scoring: mean" in rows["evaluate"]["reason"]
    evaluate.run(layout, config)
    assert {name for name, state in states(planned(project)[0]).items() if state == "to do"} == {"report"}
    report.run(layout, config, track=False)
    assert set(states(planned(project)[0]).values()) == {"done"}


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
    rows, result = planned(project, "iemocap", blockers={"corpus": corpus, "encoder": encoder})
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
    rows, _ = planned(project, blockers={"corpus": corpus, "encoder": None})
    assert (rows["download"]["state"], rows["segment"]["state"]) == ("done", "done")
    assert (rows["extract"]["reason"], rows["report"]["reason"]) == ("no corpus", "no corpus")
    extract.run(layout, config)
    rows, _ = planned(project, blockers={"corpus": corpus, "encoder": encoder})
    assert rows["mean"]["state"] == "to do"  # the embeddings are all that it needs


def test_encoder_that_is_too_large_for_this_machine(project: Path) -> None:
    blockers = {"encoder": Obstacle("encoder 'llama2-13b' needs 40 GB of GPU memory, this machine has no GPU")}
    overrides = {"extract.min_gpu_memory_gb": 1e6, "finetunes": ["lora-r8"]}
    rows, result = planned(project, "agnews", overrides, blockers=blockers)
    assert rows["extract"]["disk_bytes"] == 127_600 * 40 * 5120 * 2
    assert rows["extract"]["memory_bytes"] == pytest.approx(2 * 13e9, rel=0.02)
    assert rows["extract"]["memory_on"] == "cuda"
    assert (rows["extract"]["time_s"], rows["lora-r8"]["time_s"]) == (None, None)
    assert rows["daam-v1"]["work"] == "1 fold × 3 seeds × 2 trainings × 37500 steps"  # official parts
    assert rows["daam-v1"]["total"] == 3
    trained = 40 * 2 * 8 * (5120 + 5120) + 5120 * 4 + 4  # numbers, in float32; with gradient and two means
    assert rows["lora-r8"]["memory_bytes"] == rows["extract"]["memory_bytes"] + (4 + 12) * trained
    assert rows["lora-r8"]["memory_at_least"]
    assert result["totals"]["gpu_memory_bytes"] == rows["lora-r8"]["memory_bytes"]
    assert result["totals"]["at_least_of"] == ["gpu_memory_bytes", "time_s", "joules"]


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ({}, 3),
        ({"finetune.gradient_checkpointing": True}, 4),
        ({"finetune_settings": {"lora-r4": {"gradient_checkpointing": True}}}, 4),
    ],
)
def test_fine_tuning_without_finished_folds_is_estimated_from_extraction(
    project: Path, overrides: dict[str, Any], passes: int
) -> None:
    write_pipeline(project, more=METHODS + "finetunes: [lora-r4]\nfinetune: {epochs: 2, device: cpu}\n", train="")
    layout, config = settings(project, "tiny")
    for stage in (download, segment, extract):
        stage.run(layout, config)
    set_speed(layout, clips=10, seconds=20.0)
    rows, result = planned(project, overrides=overrides)
    row = rows["lora-r4"]
    assert row["basis"] == "estimated"
    assert row["notes"] == [f"a training step is taken as {passes} forward passes, as fast as in extract"]
    clips = read_clips(layout.clips).rows
    splits = [split_of(clips, fold, config.train) for fold in (1, 2, 3)]
    trained, held_out = sum(len(one.train) for one in splits), sum(len(one.dev) for one in splits)
    read = 3 * 2 * trained + 2 * (trained + held_out)  # each of three rates for two epochs, and the refit
    assert row["time_s"] == pytest.approx(read * passes * 2.0)
    encoder = ENCODERS["wavlm-micro"].shape
    added = encoder["num_hidden_layers"] * 2 * 4 * 2 * 64 + 64 * 2 + 2  # two maps of rank 4 a layer; the classifier
    size = encoder_size_of(config.extract, "speech")
    assert size is not None
    assert row["memory_bytes"] == 4 * size.num_parameters + (4 + 12) * added
    assert (row["at_least"], row["memory_at_least"]) == (False, True)
    assert "memory_bytes" in result["totals"]["at_least_of"]


def test_times_scale_from_the_folds_of_another_pipeline(project: Path) -> None:
    """Per training clip and allowed epoch; extraction per clip."""
    write_pipeline(project, more="methods: [mean]\n")
    layout, config = settings(project, "tiny")
    for stage in (download, segment, extract):
        stage.run(layout, config)
    train.run(layout, config, method="mean", fold=1, track=False)
    fold = layout.method("mean") / "fold1-seed1"
    result = json.loads((fold / "result.json").read_text())
    result["meta"]["train_s"] = 60.0
    write_record(fold / "result.json", result)
    set_speed(layout, clips=10, seconds=20.0)
    shutil.copy(project / "pipelines/tiny.yaml", project / "pipelines/other.yaml")
    rows, _ = planned(project, "other", {"train.batch_size": 5, "train.search": "none"})
    assert rows["mean"]["time_s"] is None  # nothing is known of its clips before `segment`
    other, _ = settings(project, "other")
    for stage in (download, segment):
        stage.run(other, config)
    changes = {"train.steps": 7, "train.search": "none", "train.refit": False, "train.seeds": [1, 2]}
    rows, _ = planned(project, "other", {**changes, "extract.storage": "float32"})
    per_clip = 60.0 / work_of_fold("mean", config, 16, 16, 16)
    fold = config.train.batch_size * 7 + 7 * (16 + 16) // 3  # 7 steps, each with a record
    assert rows["mean"]["time_s"] == pytest.approx(per_clip * fold * 3 * 2)  # 3 folds, 2 seeds
    assert rows["extract"]["time_s"] == pytest.approx(2.0 * 48)
    for name in ("mean", "extract"):
        assert (rows[name]["basis"], rows[name]["notes"]) == ("recorded", ["time scaled from 'tiny'"])


def test_vectors_that_exist_are_not_planned_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another pipeline, and a pipeline's own after its folds have changed."""
    write_pipeline(project, more="methods: [mean]\n")
    for stage in (download, segment, extract):
        stage.run(*settings(project, "tiny"))
    monkeypatch.setattr(extract, "make_shards", None)  # nothing may be embedded from here on
    shutil.copy(project / "pipelines/tiny.yaml", project / "pipelines/other.yaml")
    for name, changes in (("other", {}), ("tiny", {"download.folds": "stratified", "download.num_groups": 4})):
        for stage in (download, segment):
            stage.run(*settings(project, name, changes))
        row = planned(project, name, changes)[0]["extract"]
        assert (row["state"], row["basis"], row["disk_bytes"], row["reason"]) == ("to do", "quick", 0, None)
        assert "they are used, not embedded again" in row["notes"][0]
        extract.run(*settings(project, name, changes))
        assert planned(project, name, changes)[0]["extract"]["state"] == "done"
    assert planned(project, "other", {"extract.final_norm": False})[0]["extract"]["basis"] == "recorded"


def test_energy_is_recorded_and_planned_like_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(project, more="methods: [mean]\n")
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    monkeypatch.setattr(Meter, "used", lambda meter, seconds: 50 * seconds)  # a GPU of 50 W
    extract.run(layout, config)
    train.run(layout, config, method="mean", fold=1, track=False)
    meta = json.loads((layout.method("mean") / "fold1-seed1" / "result.json").read_text())["meta"]
    assert meta["joules"] == pytest.approx(50 * meta["train_s"], abs=0.05)  # both are rounded to thousandths
    timing = json.loads(timing_file(layout.embeddings).read_text())
    assert timing["joules"] == pytest.approx(50 * timing["seconds"], abs=0.05)
    rows, result = planned(project, "tiny")
    assert rows["mean"]["joules"] == pytest.approx(meta["joules"] / meta["train_s"] * rows["mean"]["time_s"])
    assert result["totals"]["joules"] == rows["mean"]["joules"]
    monkeypatch.undo()
    train.run(layout, config, method="mean", fold=2, track=False)  # where the driver does not tell
    rows, result = planned(project, "tiny")
    assert (rows["mean"]["joules"], result["totals"]["joules"]) == (None, 0.0)
    assert rows["mean"]["time_s"] > 0


def test_measured_on_a_few_clips(project: Path) -> None:
    write_pipeline(project, more=TUNED)
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    before = files(project)
    with pipeline.measured(layout, config) as measured:
        result = plan.run(layout, config, blockers={}, measured=measured)
    assert files(project) == before
    rows = {row["method"] or row["stage"]: row for row in result["stages"]}
    for name in ("extract", "mean", "daam-v1-mlp", "linear-probe", "ablate", "importance"):
        assert rows[name]["time_s"] > 0, name
        assert rows[name]["state"] == "to do", name
    for name in ("extract", "mean", "linear-probe"):
        assert (rows[name]["basis"], rows[name]["notes"]) == ("measured", [])
    assert not any("--measure" in note for note in result["notes"])


def test_measuring_runs_the_quick_stages_first(project: Path) -> None:
    write_pipeline(project, more="methods: [mean]\n")
    layout, config = settings(project, "tiny")
    assert not layout.clips.exists()
    with pipeline.measured(layout, config) as measured:
        result = plan.run(layout, config, blockers={}, measured=measured)
    assert layout.clips.is_file()
    bases = {row["stage"]: row["basis"] for row in result["stages"] if row["stage"] in ("extract", "train")}
    assert bases == {"extract": "measured", "train": "measured"}
    states = {row["stage"]: row["state"] for row in result["stages"]}
    assert (states["segment"], states["extract"]) == ("done", "to do")


def test_method_that_does_not_fit(project: Path) -> None:
    seven, name = {"method_settings.daam-v1-mlp.num_heads": 7}, "daam-v1-mlp"
    rows, _ = planned(project, "demo", {**seven, "ablate.rank_by": name})
    assert rows[name]["state"] == "not possible"
    assert "num_heads (7) must divide the number of layers (12)" in rows[name]["reason"]
    assert f"--set method_settings.{name}.num_heads=4" in rows[name]["fix"]
    assert rows["ablate"]["state"] == "not possible"  # it ranks by that method
    assert rows["mean"]["state"] == rows["evaluate"]["state"] == "to do"
    rows, _ = planned(project, "demo", seven)
    assert (rows["ablate"]["state"], rows["ablate"]["work"]) == ("to do", "4 groups × 5 folds")  # daam-v2-mlp stands in


def test_ablation_by_a_method_that_is_not_listed(project: Path) -> None:
    rows, _ = planned(project, "demo", {"ablate.rank_by": "gqdaam"})
    assert rows["ablate"]["state"] == "not possible"
    assert rows["ablate"]["reason"].startswith("ablate.rank_by: 'gqdaam' is not among the methods of this pipeline (")


@pytest.mark.parametrize(
    ("overrides", "stage", "reason"),
    [
        ({"ablate.presets": ["text-19-21-37-39"]}, "ablate", "[19, 20, 21] is not among the layers 1 to 12"),
        ({"download.folds": "stratified", "download.num_groups": 2}, "mean", "2 group(s) (group1, group2) cannot be"),
    ],
)
def test_settings_that_do_not_fit_the_data(project: Path, overrides: dict[str, Any], stage: str, reason: str) -> None:
    rows, _ = planned(project, "demo", overrides)
    assert rows[stage]["state"] == "not possible"
    assert reason in rows[stage]["reason"]


def test_an_export_of_clips_is_still_to_make(project: Path) -> None:
    layout, config = settings(project, "demo")
    for stage in (download, segment):
        stage.run(layout, config)
    assert planned(project, "demo")[0]["segment"]["state"] == "done"
    assert planned(project, "demo", {"segment.write_audio": True})[0]["segment"]["state"] == "to do"
    segment.run(*settings(project, "demo", {"segment.write_audio": True}))
    assert planned(project, "demo", {"segment.write_audio": True})[0]["segment"]["state"] == "done"


def test_given_vectors_have_their_own_layer_numbers_before_extraction(project: Path) -> None:
    source = write_items(project / "vectors.npz", items(layers=[3, 6, 9, 12]))
    more = f"{METHODS}download: {{corpus: embeddings, source: {source.name}}}\n"
    (project / "pipelines" / "given.yaml").write_text(more)
    layout, config = settings(project, "given")
    for stage in (download, segment):
        stage.run(layout, config)
    rows, _ = planned(project, "given", {"ablate.layers": [[9], [3, 6]]})
    assert rows["ablate"]["state"] == "to do"
    rows, _ = planned(project, "given", {"ablate.layers": [[1]]})
    assert "[1] is not among the layers 3 to 12" in rows["ablate"]["reason"]


@pytest.mark.parametrize(("features", "words"), [("memory", "held in memory"), ("stream", "read from disk in every")])
def test_where_training_takes_the_features_from(project: Path, features: str, words: str) -> None:
    rows, result = planned(project, "demo", {"train.features": features})
    assert any(f"0.5 MB, {words}" in note for note in result["notes"])
    assert rows["mean"]["memory_bytes"] > (2 if features == "memory" else 1) * 320 * 12 * 64 * 2


def test_layers_are_ranked_by_a_density_only(project: Path) -> None:
    rows, _ = planned(project, "demo", {"ablate.rank_by": "mean", "ablate.layers": [[9], [3, 4]]})
    assert rows["ablate"]["work"] == "2 groups × 5 folds"
    rows, _ = planned(project, "demo", {"ablate.rank_by": "mean"})
    assert (rows["ablate"]["work"], rows["ablate"]["basis"]) == ("nothing to train", "quick")


def test_encoder_that_cannot_be_fine_tuned(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MethodError("linear-probe: not with this encoder", fix="take another")

    monkeypatch.setattr(plan, "finetune_size", refuse)
    write_pipeline(project, more=TUNED)
    layout, config = settings(project, "tiny")
    for stage in (download, segment):
        stage.run(layout, config)
    row = planned(project)[0]["linear-probe"]
    assert (row["state"], row["reason"], row["fix"]) == (
        "not possible", "linear-probe: not with this encoder", "take another",
    )  # fmt: skip
    assert row["time_s"] is None


def test_device_that_is_not_here(project: Path) -> None:
    with pytest.raises(ConfigError, match="device 'cuda:99' is not on this machine"):
        planned(project, "demo", {"train.device": "cuda:99"})
