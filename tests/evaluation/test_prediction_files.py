"""Predictions of every tool are read as the same rows, and each bad file gives one line."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset

from daamctl.errors import ArtifactError, ConfigError, DaamctlError
from daamctl.evaluation.prediction_columns import of_table
from daamctl.evaluation.prediction_files import names_of, read_models, read_predictions
from tests.fixtures.predictions import rows, write_json, write_lines

LABELS = ["anger", "joy", "anger", "fear"]
ANSWERS = ["anger", "joy", "joy", "anger"]
RIGHT = [1.0, 1.0, 0.0, 0.0]
ITEMS = ["a", "b", "c", "d"]


def scikit_learn(folder: Path) -> Path:
    table = pl.DataFrame({"": range(4), "y_true": LABELS, "y_pred": ANSWERS})
    table.write_csv(folder / "table.csv")
    return folder / "table.csv"


def nkululeko(folder: Path) -> Path:
    scores = {name: [float(name == answer) for answer in ANSWERS] for name in ("anger", "fear", "joy")}
    table = pl.DataFrame(
        {"file": ITEMS, "start": ["0 days"] * 4, **scores, "predicted": ANSWERS, "truth": LABELS}
        | {"uncertainty": [0.1] * 4, "correct": [one == 1 for one in RIGHT]}
    )
    table.write_csv(folder / "emodb_pred.csv")
    return folder / "emodb_pred.csv"


def trainer(folder: Path) -> Path:
    logits = np.array([[2.0, 0, 1], [0, 0, 3], [0, 0, 1], [5, 1, 1]], dtype=np.float32)
    np.savez(folder / "output.npz", predictions=logits, label_ids=np.array([0, 2, 0, 1]))
    return folder / "output.npz"


def s3prl(folder: Path) -> Path:
    for name, values in (("predict", ANSWERS), ("truth", LABELS)):
        text = "".join(f"{item} {value}\n" for item, value in zip(ITEMS, values, strict=True))
        (folder / f"test_fold1_{name}.txt").write_text(text, encoding="utf-8")
    return folder / "test_fold1_predict.txt"


def lm_eval(folder: Path) -> Path:
    samples = [
        {"doc_id": index, "target": 1, "resps": [["x"]], "filtered_resps": ["x"], "filter": "none", "metrics": ["acc"]}
        | {"acc": right}
        for index, right in enumerate(RIGHT)
    ]
    return write_lines(folder / "samples_task.jsonl", samples)


def inspect_log(folder: Path) -> Path:
    samples = [
        {"id": item, "epoch": 1, "target": "x", "scores": {"match": {"value": "C" if right else "I", "answer": "x"}}}
        for item, right in zip(ITEMS, RIGHT, strict=True)
    ]
    return write_json(folder / "log.json", {"version": 2, "status": "success", "samples": samples})


def inspect_archive(folder: Path) -> Path:
    log = json.loads(inspect_log(folder).read_text(encoding="utf-8"))
    with zipfile.ZipFile(folder / "log.eval", "w") as archive:
        archive.writestr("summaries.json", json.dumps(log["samples"]))
    return folder / "log.eval"


def inspect_archive_zstd(folder: Path) -> Path:
    """As Inspect packs it; Python before 3.14 cannot, so the compressed bytes are stored and then called Zstandard."""
    log = json.loads(inspect_log(folder).read_text(encoding="utf-8"))
    path = folder / "zstd.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", "{}")
        packed = pa.compress(json.dumps(log["samples"]).encode(), "zstd", asbytes=True)
        archive.writestr("summaries.json", packed)
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # the method of the last member
        start = content.rindex(signature)
        content[start + place : start + place + 2] = (93).to_bytes(2, "little")
    path.write_bytes(content)
    return path


def lighteval(folder: Path) -> Path:
    rows = [
        {
            "doc": {"query": f"{item}?", "id": item},
            "metric": {"em": 1 - right, "acc": right},
            "model_response": {"a": 1},
        }
        for item, right in zip(ITEMS, RIGHT, strict=True)
    ]
    pl.DataFrame(rows).write_parquet(folder / "details_task_2026.parquet")
    return folder / "details_task_2026.parquet"


def helm(folder: Path) -> Path:
    def stats(item: str, trial: int, **values: float) -> dict[str, Any]:
        told = [{"name": {"name": name, "split": "test"}, "count": 1, "mean": value} for name, value in values.items()]
        return {"instance_id": item, "train_trial_index": trial, "stats": [*told, {"name": {"name": "x"}, "count": 0}]}

    rows = [stats(item, 0, exact_match=right) for item, right in zip(ITEMS, RIGHT, strict=True)]
    rows += [stats(item, 0, num_tokens=9.0) for item in ITEMS]  # in objects of their own
    perturbed = {**stats("a", 0, exact_match=0.0), "perturbation": {"name": "typos"}}
    return write_json(folder / "per_instance_stats.json", [*rows, perturbed])


def every_eval_ever(folder: Path) -> Path:
    rows = [
        {"sample_id": item, "evaluation_name": "GSM8K", "evaluation": {"score": 0.5, "is_correct": right == 1}}
        for item, right in zip(ITEMS, RIGHT, strict=True)
    ]
    return write_lines(folder / "run_samples.jsonl", rows)


def swe_bench(folder: Path) -> Path:
    report = {"total_instances": 5, "submitted_ids": ITEMS, "resolved_ids": ["a", "b"], "unresolved_ids": ["c"]}
    return write_json(folder / "model.run.json", {**report, "empty_patch_ids": ["d"], "incomplete_ids": ["e"]})


def score_columns(folder: Path) -> Path:
    scores = {f"prob_{name}": [0.1 + (name == answer) for answer in ANSWERS] for name in ("anger", "fear", "joy")}
    pl.DataFrame({"item": ITEMS, "label": LABELS, "duration_s": [9.0] * 4, **scores}).write_parquet(
        folder / "p.parquet"
    )
    return folder / "p.parquet"


def caret(folder: Path) -> Path:
    table = pl.DataFrame({"pred": ANSWERS, "obs": LABELS, "rowIndex": range(1, 5), "Resample": ["Fold1"] * 4})
    table.write_csv(folder / "caret.csv", quote_style="non_numeric")
    return folder / "caret.csv"


def evalplus(folder: Path) -> Path:
    rows = [
        {"task_id": item, "completion": "x", "passed": right == 1} for item, right in zip(ITEMS, RIGHT, strict=True)
    ]
    return write_lines(folder / "samples.jsonl", rows)


def of_columns(folder: Path) -> Path:
    return write_json(folder / "columns.json", {"id": ITEMS, "gold": LABELS, "output": ANSWERS})


def of_pandas(orient: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        table = pd.DataFrame({"gold": LABELS, "output": ANSWERS}, index=pd.Index(ITEMS, name="id"))
        if orient != "index":
            table = table.reset_index()
        table.to_json(folder / "p.json", orient=orient)
        return folder / "p.json"

    write.__name__ = f"pandas_{orient}"
    return write


def of_weights_and_biases(folder: Path) -> Path:
    data = [list(row) for row in zip(ITEMS, LABELS, ANSWERS, strict=True)]
    return write_json(folder / "t.table.json", {"columns": ["id", "label", "prediction"], "data": data, "ncols": 3})


def feather(folder: Path) -> Path:
    pl.DataFrame({"id": ITEMS, "label": LABELS, "prediction": ANSWERS}).write_ipc(folder / "p.feather")
    return folder / "p.feather"


def of_datasets(folder: Path) -> Path:
    table = Dataset.from_dict({"id": ITEMS, "label": LABELS, "prediction": ANSWERS})
    table.save_to_disk(folder / "saved", num_shards=2)
    return folder / "saved"


WRITERS: dict[Callable[[Path], Path], str] = {
    scikit_learn: "table", nkululeko: "nkululeko", trainer: "Hugging Face Trainer", s3prl: "s3prl",
    lm_eval: "lm-evaluation-harness", inspect_log: "Inspect", inspect_archive: "Inspect",
    inspect_archive_zstd: "Inspect", score_columns: "table", of_columns: "table",
    caret: "table", evalplus: "table", lighteval: "lighteval", helm: "HELM", every_eval_ever: "Every Eval Ever",
    swe_bench: "SWE-bench",
    of_weights_and_biases: "table", feather: "table", of_datasets: "table",
    **{of_pandas(orient): "table" for orient in ("columns", "index", "split", "table", "records")},
}  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_files_of_every_tool_are_read(write: Callable[[Path], Path], tmp_path: Path) -> None:
    found = rows(write(tmp_path))
    assert found.tool == WRITERS[write]
    assert found.rows["correct"].to_list() == RIGHT
    assert found.rows["item"].n_unique() == 4


def test_answers_by_item_have_their_labels_in_another_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "p.json", dict(zip(ITEMS, ANSWERS, strict=True)))
    items = [{"id": item, "label": label} for item, label in zip(ITEMS, LABELS, strict=True)]
    assert rows(path, items=write_lines(tmp_path / "items.jsonl", items)).rows["correct"].to_list() == RIGHT


def test_emobox_has_its_labels_in_another_file(tmp_path: Path) -> None:
    answers = [{"key": item, "pred": answer} for item, answer in zip(ITEMS, ANSWERS, strict=True)]
    items = [{"key": item, "emo": label, "spk": item * 2} for item, label in zip(ITEMS, LABELS, strict=True)]
    path, labels = write_json(tmp_path / "p.json", answers), write_lines(tmp_path / "items.jsonl", items[::-1])
    found = rows(path, items=labels)
    assert (found.tool, found.group) == ("EmoBox", "spk")
    assert found.rows["correct"].to_list() == RIGHT
    assert found.rows["group"].to_list() == ["aa", "bb", "cc", "dd"]
    write_lines(labels, [item | {"key": f"wav/{item['key']}.wav"} for item in items])
    assert rows(path, items=labels).rows.equals(found.rows)
    write_lines(labels, [*items, {"key": "e", "emo": "sad", "spk": "ee"}])
    more = rows(path, items=labels)
    assert more.rows.equals(found.rows)
    assert more.notes[-1] == "1 of the 5 items of items.jsonl have no prediction, e.g. 'e'"
    write_lines(labels, items[1:])
    with pytest.raises(ConfigError, match=r"lacks 1 of the 4 items of .*, e\.g\. 'a'"):
        rows(path, items=labels)
    write_lines(labels, items + items[:1])
    with pytest.raises(ConfigError, match="item 'a' occurs more than once"):
        rows(path, items=labels)


@pytest.mark.parametrize(("here", "there"), [("fid", "item"), ("item", "fid"), ("fid", "fid")])
def test_the_column_of_the_items_may_be_named_in_either_file(here: str, there: str, tmp_path: Path) -> None:
    pl.DataFrame({here: ITEMS, "prediction": ANSWERS}).write_csv(tmp_path / "answers.csv")
    pl.DataFrame({there: ITEMS[::-1], "label": LABELS[::-1]}).write_csv(tmp_path / "labels.csv")
    found = rows(tmp_path / "answers.csv", items=tmp_path / "labels.csv", columns={"item": "fid"})
    assert found.rows.select("item", "correct").rows() == list(zip(ITEMS, RIGHT, strict=True))


def mteb(path: Path, **splits: list[list[Any]]) -> Path:
    return write_json(path, {"mteb_model_meta": {"model_name": "m", "revision": "1"}, "default": splits})


def test_mteb_repeats_the_test_set_or_leaves_out_its_parts(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    target = [0, 1, 0, 2, 1]
    pl.DataFrame({"label": target}).with_row_index("item").write_csv(labels)
    found = rows(mteb(tmp_path / "a.json", test=[[0, 1, 0, 2, 1], [0, 1, 0, 2, 2]]), items=labels)
    assert found.tool == "MTEB"
    assert found.rows["item"].to_list() == [*"01234"] * 2
    assert found.rows["seed"].to_list() == ["1"] * 5 + ["2"] * 5
    assert found.rows["correct"].to_list() == [1.0] * 9 + [0.0]
    # scikit-learn: [test for _, test in KFold(2, shuffle=True, random_state=42).split(range(5))]
    parts = [[1, 2, 4], [0, 3]]
    crossed = mteb(tmp_path / "b.json", train=[[target[index] for index in part] for part in parts])
    found = rows(crossed, items=labels)
    assert found.rows["item"].to_list() == [*"12403"]
    assert found.rows["correct"].to_list() == [1.0] * 5
    pl.DataFrame({"label": [*target, 0]}).with_row_index("item").write_csv(tmp_path / "more.csv")
    with pytest.raises(ConfigError, match=r"more\.csv has 6 items of the predictions of MTEB, whose lists have 3, 2"):
        rows(crossed, items=tmp_path / "more.csv")
    with pytest.raises(ConfigError, match="have no label") as error:
        rows(crossed)
    assert "--items" in str(error.value.fix)
    several = rows(mteb(tmp_path / "c.json", dev=[[0]], test=[[1]]), columns={"label": "prediction"})
    assert several.rows["item"].to_list() == ["default/dev/0", "default/test/0"]
    names = [f"default/{split}/{number}" for split in ("dev", "test") for number in range(5)]
    pl.DataFrame({"item": names, "label": target * 2}).write_csv(tmp_path / "two.csv")
    lists = [[target[index] for index in part] for part in parts]
    several = rows(mteb(tmp_path / "c.json", dev=lists, test=[target, target]), items=tmp_path / "two.csv")
    assert several.rows["item"].to_list()[:5] == [f"default/dev/{number}" for number in (1, 2, 4, 0, 3)]
    assert several.rows["correct"].to_list() == [1.0] * 15
    with pytest.raises(ArtifactError, match=r"d\.json cannot be read: it has predictions of MTEB that are no classes"):
        rows(mteb(tmp_path / "d.json", test=[[[0, 1]]]))


def test_folders_give_folds_and_seeds(tmp_path: Path) -> None:
    s3prl(tmp_path)
    for name in ("predict", "truth"):
        second = (tmp_path / f"test_fold1_{name}.txt").read_text(encoding="utf-8").replace("a ", "e ")
        (tmp_path / f"test_fold2_{name}.txt").write_text(second, encoding="utf-8")
    found = rows(tmp_path)
    assert found.rows["fold"].to_list() == ["1"] * 4 + ["2"] * 4
    assert found.rows["correct"].to_list() == RIGHT * 2


def test_the_slots_of_an_intent_are_one_answer(tmp_path: Path) -> None:
    """s3prl's task of Fluent Speech Commands writes three slots."""
    (tmp_path / "test_predict.csv").write_text("a.wav,increase,heat,none\nb.wav,increase,heat,kitchen\n")
    (tmp_path / "test_truth.csv").write_text("a.wav,increase,heat,none\nb.wav,increase,heat,washroom\n")
    found = rows(tmp_path / "test_predict.csv")
    assert found.tool == "s3prl"
    assert found.rows["correct"].to_list() == [1.0, 0.0]
    assert found.rows["label"].to_list() == ["increase,heat,none", "increase,heat,washroom"]
    (tmp_path / "test_predict.csv").write_text("id,label,prediction,note\na,1,1,x\nb,2,1,y\n")  # with a head
    assert rows(tmp_path / "test_predict.csv").rows["correct"].to_list() == [1.0, 0.0]
    (tmp_path / "test_predict.csv").write_text("a.wav,increase,heat,none\nb.wav,increase,heat,kitchen\n")
    (tmp_path / "test_truth.csv").unlink()  # then it is any table, here without a head
    with pytest.raises(ConfigError, match="have no"):
        rows(tmp_path / "test_predict.csv")


def test_a_pattern_gives_seeds_and_folds_of_one_model(tmp_path: Path) -> None:
    for seed, answers in (("1", ANSWERS), ("2", LABELS)):
        table = pl.DataFrame({"item": ITEMS, "label": LABELS, "prediction": answers})
        table.write_csv(tmp_path / f"seed{seed}.csv")
    found = rows(tmp_path / "seed*.csv")
    assert found.rows["item"].to_list() == ITEMS * 2
    assert found.rows["seed"].to_list() == ["seed1"] * 4 + ["seed2"] * 4
    assert found.rows["correct"].to_list() == [*RIGHT, 1, 1, 1, 1]
    table.with_columns(seed=7).write_csv(tmp_path / "seed2.csv")
    assert rows(tmp_path / "seed*.csv").rows["seed"].to_list() == ["seed1"] * 4 + ["seed2 7"] * 4
    table.write_csv(tmp_path / "seed2.csv")
    assert rows(tmp_path / "seed[12].csv").rows.equals(found.rows)
    assert rows(tmp_path / "seed?.csv").rows.equals(found.rows)
    for fold in ("fold1", "fold2"):  # s3prl writes a folder per fold
        (tmp_path / f"mine_{fold}").mkdir()
        for name in ("predict", "truth"):
            text = (s3prl(tmp_path).with_name(f"test_fold1_{name}.txt")).read_text(encoding="utf-8")
            text = "".join(f"{fold}-{line}\n" for line in text.splitlines())
            (tmp_path / f"mine_{fold}" / f"test_{fold}_{name}.txt").write_text(text, encoding="utf-8")
    found = rows(tmp_path / "mine_*")
    assert found.rows["fold"].to_list() == ["1"] * 4 + ["2"] * 4
    assert found.rows["item"].to_list() == [f"{fold}-{item}" for fold in ("fold1", "fold2") for item in ITEMS]
    with pytest.raises(ArtifactError, match=r"no file fits .*seeds\*"):
        rows(tmp_path / "seeds*")
    pl.DataFrame({"item": ITEMS, "label": LABELS, "prediction": [[1, 2]] * 4}).write_parquet(tmp_path / "seed3.parquet")
    with pytest.raises(ArtifactError, match="have different columns"):
        rows(tmp_path / "seed*")


def test_rows_without_names_are_repeats_if_their_labels_agree(tmp_path: Path) -> None:
    for seed in (1, 2):
        trainer(tmp_path).rename(tmp_path / f"seed{seed}.npz")
    found = rows(tmp_path / "seed*.npz")
    assert found.rows["item"].to_list() == ["1", "2", "3", "4"] * 2
    assert any("2 repeats of the same 4 rows" in note for note in found.notes)
    other = pl.DataFrame({"label_ids": [0, 1, 0, 2], "prediction": [0, 0, 0, 0]})
    other.write_csv(tmp_path / "seed3.csv")  # other labels: other items
    assert rows(tmp_path / "seed*").rows["item"].to_list() == [str(number) for number in range(1, 13)]
    unlabelled = pl.DataFrame({"correct": [True, False] * 2, "seed": [1, 1, 2, 2]})
    assert of_table(unlabelled, {}, "table").rows["item"].to_list() == ["1", "2", "3", "4"]


def test_clips_of_daamctl_become_utterances(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / f"fold3-seed{seed}"
        folder.mkdir()
        pl.DataFrame(
            {
                "clip_id": ["u1#000", "u1#001", "u2#000"],
                "utterance_id": ["u1", "u1", "u2"],
                "label": ["anger", "anger", "joy"],
                "speaker": ["s", "s", "t"],
                "duration_s": [1.0, 3.0, 2.0],
                "target": [0, 0, 1],
                "logits": [[5.0, 0.0], [0.0, 2.0], [1.0, 0.0]],  # u1: 1.25 to 1.5
            }
        ).write_parquet(folder / "predictions.parquet")
    found = rows(tmp_path)
    assert found.tool == "daamctl"
    assert found.group == "speaker"
    assert found.rows.rows()[0] == ("u1", "anger", "joy", 0.0, "s", "3", "1", 0.25, None)
    assert found.rows["prediction"].to_list() == ["joy", "anger"] * 2


@pytest.mark.parametrize(
    ("modality", "sources", "group"),
    [
        ("speech", ["s", "s", "t"], "speaker"),
        ("text", ["s", "s", "t"], "author"),
        ("image", ["s", "s", "t"], "group"),  # no table says `source` of what belongs together
        ("tokens", ["a", "a", "b"], "sentence"),
        ("tokens", ["d", "d", "d"], "document"),
    ],
)
def test_a_record_of_daamctl_says_what_belongs_together(
    modality: str, sources: list[str], group: str, tmp_path: Path
) -> None:
    names = ["a-0000", "a-0001", "b-0000"]
    pl.DataFrame(
        {
            "clip_id": [f"{name}#000" for name in names],
            "utterance_id": names,
            "speaker": sources,
            "duration_s": 1.0,
            "target": [0, 1, 1],
            "logits": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        }
    ).write_parquet(tmp_path / "predictions.parquet")
    record = {"run": {"modality": modality, "classes": ["O", "B-x", "I-x"]}}
    (tmp_path / "result.json").write_text(json.dumps(record), encoding="utf-8")
    found = rows(tmp_path / "predictions.parquet")
    assert (found.group, found.rows["group"].to_list()) == (group, sources)
    assert found.rows["label"].to_list() == ["O", "B-x", "B-x"]
    assert found.rows["prediction"].to_list() == ["O", "B-x", "I-x"]


def test_a_spreadsheet_of_another_country(tmp_path: Path) -> None:
    """Semicolons, decimal commas, a byte order mark; an answer may still have a comma."""
    path = tmp_path / "p.csv"
    path.write_text("\ufeffitem;label;p_a;p_b\n1;a;0,75;0,25\n2;b;1e-3;0,999\n3;a;,4;0,6\n", encoding="utf-8")
    assert rows(path).rows["prediction"].to_list() == ["a", "b", "b"]
    path.write_text("item;label;prediction;correct\n1;x, y;x, y;1,0\n2;z;x, y;0,0\n", encoding="utf-8")
    assert rows(path).rows["correct"].to_list() == [1.0, 0.0]
    path.write_text("item;label;prediction;confidence\n1;a;a;0.75\n2;b;a;0.5\n", encoding="utf-8")
    assert rows(path).rows["correct"].to_list() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "text", "separator"),
    [
        ("p.csv", "label;prediction\n1;1.0\n0;1.0\n", ";"),
        ("p.tsv", "label\tprediction\n1\t 1\n0\t1\n", "\t"),
        ("q.csv", "label|pred\n1|1\n0|1\n", "|"),
    ],
)
def test_numbers_are_the_same_in_every_spelling(name: str, text: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = rows(tmp_path / name)
    assert found.rows["correct"].to_list() == [1.0, 0.0]
    assert found.by_order
    assert found.rows["item"].to_list() == ["1", "2"]


def test_ids_keep_their_zeros_and_objects_their_scores(tmp_path: Path) -> None:
    ids = ["007", "010", "100", "101"]
    table = pl.DataFrame({"id": ids, "label": LABELS, "pred": ANSWERS, "speaker": ["01", "02", "01", "02"]})
    packed = tmp_path / "p.csv.gz"
    packed.write_bytes(gzip.compress(table.write_csv().encode()))
    found = rows(packed)
    assert (found.name, found.group) == ("p", "speaker")
    assert found.rows["item"].to_list() == ids
    assert found.rows["group"].unique().sort().to_list() == ["01", "02"]
    scores = [{name: float(name == answer) for name in sorted(LABELS)} for answer in ANSWERS]
    records = [{"id": one, "label": label, "probs": part} for one, label, part in zip(ids, LABELS, scores, strict=True)]
    found = rows(write_lines(tmp_path / "p.jsonl", records))
    assert found.rows.select("item", "correct").rows() == list(zip(ids, RIGHT, strict=True))
    assert found.notes == ("read: item = id, label = label, prediction = class of the largest score",)
    assert names_of([packed, tmp_path / "q.csv"]) == ["p", "q"]
    for content, name in ((gzip.compress(b"x")[:12], "d.csv.gz"), (b"x", "p.parquet.gz")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=r"cannot be read|unknown kind of file"):
            rows(tmp_path / name)


def test_long_ids_and_truth_values_are_the_same_in_every_file(tmp_path: Path) -> None:
    ids, labels, answers = [1234567890123456789 + one for one in range(2)], [True, False], [True, True]
    lines = "".join(f"{row[0]},{row[1]},{row[2]}\n" for row in zip(ids, labels, answers, strict=True))
    (tmp_path / "p.csv").write_text(f"id,label,pred\n{lines}", encoding="utf-8")
    records = [{"id": one, "label": label, "pred": pred} for one, label, pred in zip(ids, labels, answers, strict=True)]
    found = [rows(path).rows for path in (tmp_path / "p.csv", write_lines(tmp_path / "p.jsonl", records))]
    assert found[0].equals(found[1])
    assert found[0]["item"].to_list() == [str(one) for one in ids]


def test_columns_can_be_named(tmp_path: Path) -> None:
    table = pl.DataFrame({"w": ITEMS, "label": ["x"] * 4, "wanted": LABELS, "got": ANSWERS, "who": ["m", "n"] * 2})
    table.write_csv(tmp_path / "t.csv")
    columns = {"item": "w", "label": "wanted", "prediction": "got", "group": "who"}
    found = rows(tmp_path / "t.csv", columns=columns)
    assert found.rows["correct"].to_list() == RIGHT
    assert found.group == "who"
    with pytest.raises(ConfigError, match="has no column 'nothing'; it has w, label, wanted, got, who"):
        rows(tmp_path / "t.csv", columns={"item": "nothing"})


@pytest.mark.parametrize(
    ("label", "prediction"),
    [
        ("emotion_true", "emotion_pred"),
        ("Actual Emotion", "Predicted Emotion"),
        ("emotion", "emotion_pred"),
        ("ref_label", "hyp_label"),
        ("target_emotion", "pred_emotion"),
        ("gt", "pred"),
    ],
)
def test_columns_may_be_a_pair(label: str, prediction: str, tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"image": ["a", "b", "c"], label: ["x", "y", "y"], prediction: ["x", "x", "y"], "conf": [0.9] * 3}
    )
    table.write_csv(tmp_path / "mine.csv")
    found = read_predictions(tmp_path / "mine.csv")
    assert found.notes[0] == f"read: item = image, label = {label}, prediction = {prediction}"
    assert found.rows["correct"].to_list() == [1, 0, 1]


def test_of_two_pairs_none_counts(tmp_path: Path) -> None:
    names = ["arousal_true", "arousal_pred", "valence_true", "valence_pred"]
    pl.DataFrame({name: [1.5, 2.5, 3.5] for name in names}).write_csv(tmp_path / "mine.csv")
    with pytest.raises(ConfigError, match="have no prediction"):
        read_predictions(tmp_path / "mine.csv", metric="ccc")


def test_an_image_with_several_questions_is_no_item(tmp_path: Path) -> None:
    table = {
        "image": ["a", "a", "b"],
        "question": ["p", "q", "p"],
        "label": ["x", "y", "y"],
        "prediction": ["x", "x", "y"],
    }
    pl.DataFrame(table).write_csv(tmp_path / "mine.csv")
    assert read_predictions(tmp_path / "mine.csv").notes[0].startswith("read: item = row number, ")
    pl.DataFrame({**table, "image": [b"a", b"b", b"c"]}).write_parquet(
        tmp_path / "mine.parquet"
    )  # the images themselves
    assert read_predictions(tmp_path / "mine.parquet").notes[0].startswith("read: item = row number, ")


def test_two_columns_of_one_name_are_refused_if_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("id,label,prediction,prediction,note,note\n1,a,a,b,x,y\n")
    with pytest.raises(ConfigError, match=r"two\.csv has several columns named prediction"):
        read_predictions(path)
    path.write_text("id,label,prediction,note,note\n1,a,a,x,y\n")
    assert read_predictions(path).rows["correct"].to_list() == [1.0]


def test_a_missing_answer_is_wrong() -> None:
    found = of_table(pl.DataFrame({"label": ["a", "b"], "pred": ["a", None]}), {}, "m")
    assert found.rows["correct"].to_list() == [1.0, 0.0]


def test_one_file_has_rows_or_columns_of_several_models(tmp_path: Path) -> None:
    wide = pl.DataFrame(
        {"id": ["a", "b", "c"], "y_true": ["x", "y", "y"], "svm": ["x", "y", "x"], "tree": ["y", "y", "y"]}
    )
    long = pl.concat([wide.select("id", "y_true", pl.col(one).alias("y_pred"), system=pl.lit(one))
                      for one in ("tree", "svm")])  # fmt: skip
    right = {"svm": [1.0, 1.0, 0.0], "tree": [0.0, 1.0, 1.0]}
    for name, table in (("wide", wide), ("long", long)):
        table.write_csv(tmp_path / f"{name}.csv")
    named = {"prediction": ["svm", "tree"]}
    found = {
        "wide": read_models(tmp_path / "wide.csv", named),
        "wide table": read_models(wide, named),
        "long": read_models(tmp_path / "long.csv"),
        "named": read_models(long.rename({"system": "who"}), {"model": "who"}),
        "any case": read_models(long.rename({"system": "System"})),
        "numbers": read_models(long.with_columns(model=pl.col("system") == "svm").drop("system")),
    }
    for name, models in found.items():
        words = ["false", "true"] if name == "numbers" else ["svm", "tree"] if "wide" in name else ["tree", "svm"]
        assert [one.name for one in models] == words
        for one in models:
            assert one.rows["item"].to_list() == ["a", "b", "c"]
            assert one.rows["correct"].to_list() == right[{"false": "tree", "true": "svm"}.get(one.name, one.name)]
    assert "whose a row is: system" in found["long"][0].notes
    correct = wide.select("id", A=pl.lit(1), B=pl.col("svm") == pl.col("y_true"))
    judged = read_models(correct, {"correct": ["A", "B"]})
    assert [one.rows["correct"].to_list() for one in judged] == [[1.0] * 3, right["svm"]]
    wide.select("id", label="y_true").write_csv(tmp_path / "labels.csv")
    long.drop("y_true").write_csv(tmp_path / "bare.csv")
    bare = read_models(tmp_path / "bare.csv", None, tmp_path / "labels.csv")
    assert {one.name: one.rows["correct"].to_list() for one in bare} == right


TIME = "2026-11-29T10-00-00.000000"
LOGS: dict[str, tuple[Callable[[Path], Path], str]] = {  # log -> its writer, its path of model A
    "lm-eval": (lm_eval, f"A/samples_quiz_{TIME}.jsonl"),
    "lighteval": (lighteval, f"details/A/{TIME}/details_quiz_{TIME}.parquet"),
    "HELM": (helm, "quiz:subject=law,model=A/per_instance_stats.json"),
}


@pytest.mark.parametrize("tool", [*LOGS, "Inspect", "Every Eval Ever", "OpenAI Evals", "MTEB", "table"])
def test_a_model_has_the_name_that_its_file_tells(tmp_path: Path, tool: str) -> None:
    paths = []
    for model in ("A", "B"):
        if tool in LOGS:
            write, place = LOGS[tool]
            path = tmp_path / place.replace("A/", f"{model}/")
            path.parent.mkdir(parents=True)
            write(tmp_path).rename(path)
        elif tool == "Inspect":
            log = json.loads(inspect_log(tmp_path).read_text(encoding="utf-8"))
            path = write_json(tmp_path / f"{TIME}{model}.json", log | {"eval": {"model": model, "task": "quiz"}})
        elif tool == "Every Eval Ever":
            lines = every_eval_ever(tmp_path).read_text(encoding="utf-8").splitlines()
            path = write_lines(tmp_path / f"x{model}.jsonl", [json.loads(one) | {"model_id": model} for one in lines])
        elif tool == "OpenAI Evals":
            event = {"event_id": 1, "sample_id": "q", "type": "match", "data": {"correct": True, "expected": "a"}}
            path = write_lines(tmp_path / f"x{model}.jsonl", [{"spec": {"completion_fns": [model]}}, event])
        elif tool == "MTEB":
            content = {"mteb_model_meta": {"model_name": model}, "default": {"test": [[1, 2, 1]]}}
            path = write_json(tmp_path / f"x{model}.json", content)
        else:
            path = tmp_path / f"x{model}.csv"
            path.write_text(f"id,label,pred,classifier\na,x,x,{model}\nb,y,x,{model}\n")
        paths.append(path)
    if tool == "MTEB":
        pl.DataFrame({"item": ["0", "1", "2"], "label": ["1", "2", "2"]}).write_csv(tmp_path / "labels.csv")
    items = tmp_path / "labels.csv" if tool == "MTEB" else None
    assert [rows(path, items=items).name for path in paths] == ["A", "B"]
    assert rows(paths[0], name="mine", items=items).name == "mine"
    parts = zip(paths[0].relative_to(tmp_path).parts, paths[1].relative_to(tmp_path).parts, strict=True)
    pattern = tmp_path.joinpath(*(one if one == other else one.replace("A", "*") for one, other in parts))
    both = read_models(pattern, {}, items)  # all files at once
    assert [one.name for one in both] == ["A", "B"]
    assert {tuple(one.rows["item"]) for one in both} == {tuple(rows(paths[0], items=items).rows["item"])}


def test_one_run_has_no_repeats_and_a_named_label_is_sure() -> None:
    one = of_table(pl.DataFrame({"label": ["x", "y"], "pred": ["x", "x"], "seed": [1, 1]}), {}, "m")
    assert not [note for note in one.notes if "repeats" in note]
    two = of_table(pl.DataFrame({"label": ["x", "y"] * 2, "pred": ["x"] * 4, "seed": [1, 1, 2, 2]}), {}, "m")
    assert "2 repeats of the same 2 rows: their labels agree in order" in two.notes
    table = pl.DataFrame(
        {"id": ["a", "b"], "label": ["0", "1"], "score": [0.5, 0.75], "0": [0.9, 0.1], "1": [0.1, 0.9]}
    )
    with pytest.raises(ConfigError, match="is 'label' the true label or the answer of a pipeline"):
        of_table(table, {}, "m")
    assert of_table(table, {"label": "label"}, "m").rows["correct"].to_list() == [1.0, 1.0]


def test_answers_are_in_the_column_that_fits_the_labels(tmp_path: Path) -> None:
    weka = tmp_path / "weka.csv"
    weka.write_text("inst#,actual,predicted,error,prediction,id\n1,1:a,1:a,,0.9,u1\n2,2:b,1:a,+,0.8,u2\n")
    found = rows(weka)
    assert found.rows.select("item", "label", "prediction", "correct").rows() == [
        ("u1", "1:a", "1:a", 1.0), ("u2", "2:b", "1:a", 0.0),
    ]  # fmt: skip
    assert "prediction = predicted" in found.notes[0]
    with pytest.raises(ConfigError, match=r"no prediction \(0\.8, 0\.9\) is among the labels"):
        rows(weka, columns={"prediction": "prediction"})
    odd = pl.DataFrame({"id": ["a"], "emotion (predicted)": ["x"], "emotion": ["y"], "pred": ["y"]})
    assert of_table(odd, {}, "x").rows.select("label", "correct").rows() == [("y", 1.0)]
    knime = pl.DataFrame({"row ID": ["r1"], "emo": ["a"], "Prediction (emo)": ["a"], "P (emo=a)": [0.7]})
    assert of_table(knime, {}, "x").rows.select("item", "prediction", "correct").rows() == [("r1", "a", 1.0)]


def test_a_log_under_another_name_tells_no_model(tmp_path: Path) -> None:
    for write in (lm_eval, lighteval, helm):
        path = write(tmp_path)
        assert rows(path).name == path.stem


def test_runs_within_files_of_a_pattern_are_repeats(tmp_path: Path) -> None:
    for name in ("one", "two"):
        lines = [f"{item},x,x,{run}" for run in (1, 2) for item in "ab"]
        (tmp_path / f"{name}.csv").write_text("\n".join(["item,label,pred,run", *lines]) + "\n")
    found = rows(tmp_path / "*.csv").rows
    assert found["item"].value_counts()["count"].to_list() == [4, 4]
    assert sorted(found["seed"].unique()) == ["one 1", "one 2", "two 1", "two 2"]


def test_grades_and_words_say_whether_an_answer_is_right(tmp_path: Path) -> None:
    given = ["C", "I", "P", "N", "pass", "Failed", "YES", "0.25", "1"]
    table = pl.DataFrame({"id": range(len(given)), "score_match": given})
    found = of_table(table, {"correct": "score_match"}, "x")
    assert found.rows["correct"].to_list() == [1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.0, 0.25, 1.0]


def test_items_of_several_tasks_are_not_the_same(tmp_path: Path) -> None:
    table = pl.DataFrame({"task": ["law", "law", "art", "art"], "id": [1, 2, 1, 2], "correct": [1, 0, 1, 1]})
    table.write_csv(tmp_path / "all.csv")
    for name, part in table.partition_by("task", as_dict=True).items():
        part.write_csv(tmp_path / f"part-{name[0]}.csv")
    names = ["art/1", "art/2", "law/1", "law/2"]
    assert sorted(rows(tmp_path / "all.csv").rows["item"]) == names
    assert sorted(rows(tmp_path / "part-*.csv").rows["item"]) == names
    assert rows(tmp_path / "part-law.csv").rows["item"].to_list() == ["1", "2"]
    assert sorted(of_table(table.rename({"id": "no"}), {"item": "no"}, "x").rows["item"]) == names
    found = of_table(table, {"group": "task"}, "x")
    assert (found.group, found.rows["group"].to_list()) == ("task", ["law", "law", "art", "art"])
    one_each = table.unique("task", maintain_order=True)
    assert of_table(one_each, {"item": "task"}, "x").rows["item"].to_list() == ["law", "art"]  # a task may be the item
    both = pl.concat([table.with_columns(model=pl.lit(one)) for one in "AB"])
    assert [sorted(one.rows["item"]) for one in read_models(both)] == [names, names]
    apart = table.with_columns(id=pl.Series(["a", "b", "c", "d"]))
    assert of_table(apart, {}, "x").rows["item"].to_list() == ["a", "b", "c", "d"]
    pl.DataFrame({"id": names, "speaker": ["s", "t", "s", "t"]}).write_csv(tmp_path / "who.csv")
    assert rows(tmp_path / "all.csv", items=tmp_path / "who.csv").rows["group"].to_list() == ["s", "t", "s", "t"]


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"id": ["a"], "label": ["x"], "pred": ["x"]}, {}, "two models or more, got 1 in the table"),
        ({"id": ["a", "b"], "label": ["x", "x"], "pred": ["x", "y"], "model": ["m", "m"]}, {}, "got 1 in the table"),
        ({"id": ["a", "a"], "label": ["x", "x"], "pred": ["x", "y"], "model": ["m", None]}, {}, "1 of 2 rows have no"),
        ({"id": ["a"], "label": ["x"], "pred": ["x"]}, {"model": "who"}, "the table has no column 'who'; it has id"),
        ({"id": ["a"], "label": ["x"], "pred": ["x"]}, {"prediction": ["pred", "no"]}, "the table has no column 'no'"),
        ({"id": ["a"], "label": ["x"]}, {"item": ["id", "label"]}, "differ in prediction or correct, got several item"),
        ({"id": ["a"]}, {"prediction": ["id", "x"], "correct": ["id", "x"]}, "got several prediction and correct"),
    ],
)  # fmt: skip
def test_one_table_of_one_model_or_of_nothing_usable_is_refused(
    table: dict[str, list[str]], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_models(pl.DataFrame(table), columns)


def test_samples_without_a_score_are_left_out(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"id": 1, "epoch": 1, "scores": {"a": {"value": 0.25}, "b": {"value": "P"}}},
        {"id": 1, "epoch": 2, "scores": {"a": {"value": True}, "b": {"value": "N"}}},
        {"id": 2, "epoch": 1, "error": "x"},
    ]
    path = write_json(tmp_path / "l.json", {"samples": samples})
    found = rows(path)
    assert found.rows.select("item", "seed", "correct").rows() == [("1", "1", 0.25), ("1", "2", 1.0)]
    assert found.notes[1] == "accuracy is the mean of correct, which also has values between 0 and 1"
    assert found.notes[3] == "1 samples have no score and are left out"
    assert rows(path, columns={"correct": "b"}).rows["correct"].to_list() == [0.5, 0.0]


def test_a_model_that_always_says_the_same_is_told() -> None:
    table = pl.DataFrame({"item": ITEMS, "label": LABELS, "prediction": ["joy"] * 4})
    assert "the prediction is 'joy' for every item" in of_table(table, {}, "table").notes
    for different in (table.with_columns(prediction=pl.Series(ANSWERS)), table.with_columns(label=pl.lit("joy"))):
        assert len(of_table(different, {}, "table").notes) == 1


def test_what_was_read_is_told() -> None:
    table = pl.DataFrame({"idx": ["a", "b", "c", "d"], "truth": LABELS, "output": ["anger", "happy", None, "fear"]})
    assert of_table(table, {}, "m").notes == (
        "read: item = idx, label = truth, prediction = output",
        "1 of 4 predictions are missing and count as wrong",
        "1 of 4 predictions are no label of any item (happy)",
    )


def test_an_explicit_column_counts_before_those_that_are_recognised() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": LABELS, "pred": ANSWERS, "ok": [0, 0, 0, 1]})
    assert of_table(table, {"correct": "ok"}, "m").rows["correct"].to_list() == [0.0, 0.0, 0.0, 1.0]


def test_the_answer_of_a_pipeline_is_no_label() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": ANSWERS, "score": [0.9, 0.8, 0.7, 0.6]})
    with pytest.raises(ConfigError, match="is 'label' the true label or the answer of a pipeline"):
        of_table(table, {}, "m")
    with pytest.raises(ConfigError, match="is 'label' or 'truth' the true label"):
        of_table(table.drop("score").with_columns(truth=pl.Series(LABELS)), {}, "m")
    named = of_table(table.with_columns(truth=pl.Series(LABELS)), {"label": "truth", "prediction": "label"}, "m")
    assert named.rows["correct"].to_list() == RIGHT


def test_all_columns_of_scores_count_and_gaps_do_not() -> None:
    scores = {f"prob_{name}": [0.1 + (name == answer) for answer in ANSWERS] for name in ("anger", "fear", "joy")}
    table = pl.DataFrame({"id": ITEMS, "label": LABELS, **scores, "prob_disgust": [0.0, 0.0, 0.0, 9.0]})
    assert of_table(table, {}, "m").rows["prediction"].to_list() == [*ANSWERS[:3], "disgust"]
    for gap in (None, float("nan")):
        with pytest.raises(ConfigError, match=r"scores of the classes .* have gaps"):
            of_table(table.with_columns(prob_joy=pl.Series([gap, 1.0, 1.0, 1.0])), {}, "m")
    for lists, message in (
        ([[1.0]] * 4, "two or more scores"),
        ([[1.0, 2.0]] * 3 + [None], "two or more scores"),
        ([[float("nan"), 1.0]] * 4, "no numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            of_table(pl.DataFrame({"label": [0, 1, 0, 1], "logits": lists}), {}, "m")


@pytest.mark.parametrize(
    ("further", "left_out"),
    [
        ({"prob_entropy": [0.9] * 4, "score_total": [9.0] * 4}, "prob_entropy"),  # those of the labels add up to 1
        ({"prob_disgust": [0.0, 0.0, 0.0, 0.7], "prob_margin": [2.0] * 4}, "prob_margin"),
        ({"class_weight": [9.0] * 4, "pred_score": [None] * 4}, ""),
    ],
)
def test_what_is_called_like_a_score_may_be_none(further: dict[str, list[float]], left_out: str) -> None:
    whole = [1.0 - value for value in further.get("prob_disgust", [0.0] * 4)]
    scores = {
        f"prob_{name}": [all_ * (0.8 if name == one else 0.1) for one, all_ in zip(ANSWERS, whole, strict=True)]
        for name in ("anger", "fear", "joy")
    }
    found = of_table(pl.DataFrame({"id": ITEMS, "label": LABELS, **scores, **further}), {}, "m")
    assert found.rows["prediction"].to_list() == [*ANSWERS[:3], "disgust" if whole[3] < 1 else ANSWERS[3]]
    note = f"left out beside the scores of the labels: {left_out}"
    assert [one for one in found.notes if "left out" in one] == ([note] if left_out else [])


def test_samples_of_two_tasks_are_not_the_same_items(tmp_path: Path) -> None:
    for task in ("one", "two"):
        samples = [{"doc_id": index, "doc_hash": f"{task}{index}", "resps": [], "metrics": ["acc"], "acc": 1.0}
                   for index in range(3)]  # fmt: skip
        write_lines(tmp_path / f"{task}.jsonl", samples)
    labels = [rows(tmp_path / f"{task}.jsonl").rows["label"].to_list() for task in ("one", "two")]
    assert labels[0] != labels[1]


BAD: dict[str, tuple[str | bytes, str]] = {
    "a.xlsx": ("x", "unknown kind of file '.xlsx'; known: .csv"),
    "b.csv": ("", "cannot be read: empty"),
    "c.csv": ("label,prediction\n", "no row"),
    "d.csv": ("label,prediction\na,b\n", r"no prediction \(b\) is among the labels \(a\)"),
    "e.csv": ("item,label,pred\n1,a,a\n1,a,a\n", "item '1' occurs more than once"),
    "f.csv": ("item,label\n1,a\n", "have no prediction"),
    "g.csv": ("item,pred\n1,a\n", "have no label"),
    "h.csv": ("item,correct\n1,2\n2,1\n", "must be true, false or a number from 0 to 1, got '2'"),
    "i.csv": ("item,correct\n1,yes\n2,maybe\n", "got 'maybe'"),
    "j.csv": ("item,label,pred\n1,,a\n2,a,a\n", "1 of 2 items have no label"),
    "k.csv": ("item,label,pred\n,a,a\n2,a,a\n", "1 of 2 rows have no item"),
    "l.json": ("{", "cannot be read"),
    "m.json": ("[1, 2]", "need a list of objects, one per item, or"),
    "n.json": ('{"a": 1}', "have no label"),
    "n2.json": ('{"a": 1, "b": [2]}', "need a list of objects"),
    "n3.json": ('{"columns": ["a", "b"], "data": [[1]]}', "cannot be read"),
    "n4.json": ('{"a": {"0": 1}, "b": {"1": 1}}', "cannot be read"),
    "n5.json": ('{"a": [1, 2], "b": [1]}', "lists of columns must have one length, got a 2, b 1"),
    "n8.json": ('{"evalId": "e", "results": {"results": []}}', "cannot be read: it has no item"),
    "n9.csv": (
        "id,label,pred,correct\n1,a,a,1\n2,b,b.,1\n",
        "'correct' and a comparison of .* disagree on 1 of 2 rows",
    ),
    "n6.feather": ("ARROW1", "cannot be read"),
    "n7.arrow": ("no Arrow", "cannot be read"),
    "o.jsonl": ('{"a": 1}\n{', "cannot be read"),
    "p.parquet": (b"PAR1xxxxPAR1", "cannot be read"),
    "q.npz": (b"PK\x03\x04", "cannot be read"),
    "r.eval": (b"PK\x03\x04", "cannot be read"),
    "s_predict.txt": ("a b\nc\n", "line 2 has 1 words"),
    "t.csv": (b"\xff\xfe\x00", "cannot be read"),
    "u.json": ('{"samples": []}', "the samples have no score"),
    "u1.json": ('[{"instance_id": "a", "stats": [{"mean": 1}]}]', "cannot be read"),
    "u2.json": ('[{"sample_id": "a", "evaluation": {}}]', "cannot be read"),
    "u3.json": ('{"submitted_ids": 3, "resolved_ids": []}', "cannot be read"),
    "u4.json": ('{"submitted_ids": [], "resolved_ids": []}', "no row"),
    "w.npz": (b"", "cannot be read"),
    "x.npz": (b"\x93NUMPY", "cannot be read"),
    "x.npy": (b"\x93NUMPY\x01\x00\x0a\x00{'shape': (\n", "cannot be read"),
    "y.json": ("[" * 100_000, "cannot be read"),
    "z.json": ('[{"id": 1, "correct": {"a": 1}}]', "have no prediction"),
    "v.csv": ("item,label,pred\n1,a,a,a\n2,a,a\n", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_clear_line(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DaamctlError, match=message) as error:
        rows(path)
    assert "\n" not in error.value.message
    assert name in error.value.message


def test_a_damaged_file_of_a_saved_data_set_gives_one_clear_line(tmp_path: Path) -> None:
    folder = of_datasets(tmp_path)
    damaged = folder / "data-00001-of-00002.arrow"
    damaged.write_bytes(damaged.read_bytes()[:60])
    with pytest.raises(ArtifactError, match=r"data-00001-of-00002\.arrow cannot be read"):
        rows(folder)


def test_a_missing_file_names_those_beside_it(tmp_path: Path) -> None:
    scikit_learn(tmp_path)
    with pytest.raises(ArtifactError, match="no file") as error:
        rows(tmp_path / "tables.csv")
    assert error.value.fix is not None
    assert "table.csv" in error.value.fix
    with pytest.raises(ArtifactError, match="no predictions of folds"):
        rows(tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", y_true=np.array([{}, {}], dtype=object), y_pred=np.array([0, 1]))
    with pytest.raises(ArtifactError, match=r"cannot be read.*Python objects"):
        rows(tmp_path / "p.npz")


def test_names_tell_files_apart() -> None:
    paths = [Path("a/run/p.csv"), Path("b/run/p.csv"), Path("b/run/q.csv")]
    assert names_of(paths) == ["a/run/p", "b/run/p", "b/run/q"]
    assert names_of([Path("x/p.csv"), Path("x/q.csv")]) == ["p", "q"]
    assert names_of([Path("p.csv"), Path("p.csv")]) == ["1 p", "2 p"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_text_files_of_spreadsheets(tmp_path: Path, encoding: str) -> None:
    text = "item,label,prediction\na,Glück,Glück\nb,Wut,Glück\n"
    content = codecs.BOM_UTF16_BE + text.encode("utf-16-be") if encoding == "utf-16-be" else text.encode(encoding)
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert read_predictions(path).rows["label"].to_list() == ["Glück", "Wut"]


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("item,label,prediction\na,Glück,Wut\n".encode("cp1252"))
    with pytest.raises(ArtifactError, match=r"it is not UTF-8 \(line 2: byte 0xfc\); save it as UTF-8"):
        read_predictions(path)


def test_an_array_of_items_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, item=np.array(["a", "b"]), label=np.array(["x", "y", "x"]), prediction=np.array(["x", "y", "y"]))
    with pytest.raises(ArtifactError, match=r"'item' has the shape \(2,\), but there are 3 items"):
        read_predictions(path)
    np.savez(path, item=np.array(["a", "b"], dtype=object))
    with pytest.raises(ArtifactError, match=r"store texts as texts: array.astype\(str\)"):
        read_predictions(path)
    path.write_text("item,label\n")  # numpy would offer to unpickle it
    with pytest.raises(ArtifactError, match="not a zip file"):
        read_predictions(path)


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_a_pipe_has_no_ending(tmp_path: Path, kind: str) -> None:
    table = pl.DataFrame({"item": ["1", "2", "3"], "label": ["x", "y", "x"], "prediction": ["x", "x", "x"]})
    content = {"csv": table.write_csv(), "json": table.write_json(), "jsonl": table.write_ndjson()}[kind]
    pipe = tmp_path / "63"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,))
    writer.start()
    found = read_predictions(pipe)
    writer.join()
    assert (found.name, found.rows["correct"].to_list()) == ("63", [1.0, 0.0, 1.0])


def test_what_scores_lack_is_said() -> None:
    table = pl.DataFrame(
        {"item": ["a", "b", "c"], "label": ["x", "y", "z"], "x": [0.1, 0.2, 0.3], "y": [0.4, 0.5, 0.6]}
    )
    with pytest.raises(ConfigError, match="t: there are scores for x, y, but none for z"):
        of_table(table, {}, "t")
    texts = table.with_columns(pl.col("x", "y").cast(pl.String), z=pl.lit("?"))  # "none for none", if texts were scores
    with pytest.raises(ConfigError, match="t: the columns item, label, x, y, z have no prediction"):
        of_table(texts, {}, "t")
    with pytest.raises(ConfigError, match="'prediction' has lists, not one answer in each row"):
        of_table(table.select("item", "label", prediction=pl.concat_list("label")), {}, "t")
    several = table.select("item", prediction="label", label=pl.concat_list("label"))
    with pytest.raises(ConfigError, match="'label' has lists, not one label in each row"):
        of_table(several, {}, "t")
    assert of_table(several.with_columns(correct=1), {}, "t").rows["correct"].to_list() == [1.0] * 3


def test_a_log_may_have_cut_texts_and_columns_of_several_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"item": 1, "label": "x", "prediction": "x", "said": "ha\\ud83d", "choices": "x"}\n'
        '{"item": 2, "label": "y", "prediction": "x", "said": "", "choices": ["x", "y"]}\n'
    )
    assert read_predictions(tmp_path / "a.jsonl").rows["correct"].to_list() == [1.0, 0.0]


def test_a_score_may_be_the_logarithm_of_zero() -> None:
    zero = float("-inf")
    table = pl.DataFrame({"item": ["a", "b"], "label": ["x", "y"], "x": [0.0, zero], "y": [zero, 0.0]})
    assert of_table(table, {}, "t").rows["correct"].to_list() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="have gaps"):
        of_table(table.with_columns(x=-pl.col("x")), {}, "t")


def test_odd_types_of_a_parquet_file(tmp_path: Path) -> None:
    """Bytes and times are texts; lists of texts are no scores, and arrays of numbers are."""
    spans = pl.Series([1, 2, 3], dtype=pl.Int64).cast(pl.Duration("us"))
    frame = pl.DataFrame({"id": spans, "label": [b"a", b"b", b"\xff"], "pred": [b"a", b"a", b"\xff"]})
    frame.write_parquet(tmp_path / "odd.parquet")
    assert read_predictions(tmp_path / "odd.parquet").rows["correct"].to_list() == [1, 0, 1]
    scores = pl.Series([[0.1, 0.9], [0.8, 0.2]], dtype=pl.Array(pl.Float32, 2))
    pl.DataFrame({"id": ["x", "y"], "label": [1, 1], "logits": scores}).write_parquet(tmp_path / "array.parquet")
    assert read_predictions(tmp_path / "array.parquet").rows["correct"].to_list() == [1, 0]
    pl.DataFrame({"id": ["x"], "label": ["a"], "logits": [["a", "b"]]}).write_parquet(tmp_path / "texts.parquet")
    with pytest.raises(ConfigError, match="'logits' has scores that are no numbers"):
        read_predictions(tmp_path / "texts.parquet")


@pytest.mark.parametrize("ending", [".conll", ".tsv", ".txt", ".conll.gz"])
@pytest.mark.parametrize("columns", ["", " NNP I-NP"])
def test_words_in_lines_with_their_tags(tmp_path: Path, ending: str, columns: str) -> None:
    """As conlleval reads them, and flair writes them."""
    lines = ["-DOCSTART- X O O", "", f"Ada{columns} B-per B-per", f"Lovelace{columns} I-per O", "", "",
             f"met{columns} O O", f"Charles{columns} B-per B-org", ""]  # fmt: skip
    path = tmp_path / f"x{ending}"
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    found = rows(path)
    assert (found.tool, found.group) == ("conlleval", "sentence")
    assert found.rows["item"].to_list() == ["000000-0000", "000000-0001", "000001-0000", "000001-0001"]
    assert found.rows["group"].to_list() == ["000000"] * 2 + ["000001"] * 2
    assert found.rows["label"].to_list() == ["B-per", "I-per", "O", "B-per"]
    assert found.rows["prediction"].to_list() == ["B-per", "O", "O", "B-org"]


def test_counted_errors_of_speechbrain(tmp_path: Path) -> None:
    head = "%WER 40.00 [ 2 / 5, 0 ins, 1 del, 1 sub ]\nScored 2 sentences, 0 not present in hyp.\n"
    one = f"{'=' * 80}\nu-1, %WER 66.67 [ 2 / 3, 0 ins, 1 del, 1 sub ]\nso ; it ; goes\n= ; S ; D\nso ; is ; <eps>\n"
    other = f"{'=' * 80}\nu-2, %WER 0.00 [ 0 / 2, 0 ins, 0 del, 0 sub ]\non ; on\n= ; =\non ; on\n"
    path = tmp_path / "wer_test.txt"
    path.write_text(f"{head}{one}{other}")
    found = read_predictions(path, metric="counted_accuracy")
    assert found.tool == "SpeechBrain"
    assert found.rows.select("item", "label", "prediction").rows() == [("u-1", "3", "2"), ("u-2", "2", "0")]
    path.write_text(head)
    with pytest.raises(ArtifactError, match="has no line 'utterance, %WER"):
        read_predictions(path, metric="counted_accuracy")


def test_counted_errors_of_meeteval(tmp_path: Path) -> None:
    path = tmp_path / "a_cpwer_per_reco.json"
    overlap = {"overlap_rate": 0.1, "overlap_time": 1.0, "total_time": 10.0}
    path.write_text(json.dumps({
        name: {"error_rate": errors / 80, "errors": errors, "length": 80, "insertions": 0, "deletions": 3,
               "substitutions": errors - 3, "reference_self_overlap": overlap, "assignment": [["B", "B"], ["A", None]]}
        for name, errors in (("ses00", 12), ("ses01", 9))
    }))  # fmt: skip
    found = read_predictions(path, metric="counted_accuracy")
    assert found.rows.select("item", "label", "prediction").rows() == [("ses00", "80", "12"), ("ses01", "80", "9")]


def test_seconds_of_wrong_speakers_of_pyannote(tmp_path: Path) -> None:
    parts = ("correct", "false alarm", "missed detection", "confusion")
    columns = [("diarization error rate", "%"), ("total", ""), *((name, unit) for name in parts for unit in ("", "%"))]
    seconds = {  # of speech, and of its parts; a sum of the same turns may differ in its last digit
        "ses00": (80.0, 70.0, 9.0, 8.0, 2.0),
        "ses01": (85.77000000000001, 85.77, 0.0, 0.0, 0.0),
        "TOTAL": (165.77, 155.77, 9.0, 8.0, 2.0),
    }
    values = [
        (100 * sum(errors) / total, total, *(value for one in (right, *errors) for value in (one, 100 * one / total)))
        for total, right, *errors in seconds.values()
    ]
    head = pd.MultiIndex.from_tuples(columns)
    pd.DataFrame(values, index=pd.Index(seconds, name="item"), columns=head).to_csv(tmp_path / "der.csv")
    found = read_predictions(tmp_path / "der.csv", metric="counted_accuracy")
    assert found.tool == "pyannote"
    read = found.rows.select("item", "label", "prediction").rows()
    assert read == [("ses00", "80.0", "19"), ("ses01", "85.77", "0")]
    (tmp_path / "der.csv").write_text(",diarization error rate,total\n,%,\nses00,1,2\n")
    with pytest.raises(ArtifactError, match=r"der\.csv cannot be read: 'false alarm'"):
        read_predictions(tmp_path / "der.csv", metric="counted_accuracy")


ONE, TWO, OTHER = "id01/x1/00001.wav", "id01/x2/00002.wav", "id02/y1/00001.wav"
TRIALS = [("1", ONE, TWO, "0.71"), ("0", ONE, OTHER, "-0.2"), ("0", OTHER, TWO, "0.05")]
"""Label, enrolled, tested, score."""


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("{0} {1} {2}", "veri_test2.txt"),  # VoxCeleb
        ("{1} {2} {3}", "x.txt"),  # Kaldi
        ("{1} {2} {word}", "trials.txt"),
        ("{1} {2} {3} {word}", "vox1_O.score"),  # WeSpeaker
        ("{stem1} {stem2} {0} {3}", "scores.txt"),  # SpeechBrain
    ],
)
def test_trials_of_speaker_verification(tmp_path: Path, layout: str, name: str) -> None:
    lines = [
        layout.format(*one, word="target" if one[0] == "1" else "nontarget", stem1=one[1][:-4], stem2=one[2][:-4])
        for one in TRIALS
    ]
    path = tmp_path / name
    path.write_text("\n".join([*lines, lines[0], ""]))  # a trial that stands twice counts once
    if "3" not in layout:
        with pytest.raises(ConfigError, match="have no prediction"):
            rows(path)
        scores = tmp_path / "scores.txt"
        scores.write_text("".join(f"{one[1]} {one[2]} {one[3]}\n" for one in TRIALS))
        found = read_predictions(scores, items=path)
    elif layout == "{1} {2} {3}":
        with pytest.raises(ConfigError, match="have no label"):
            rows(path)
        labels = tmp_path / "labels.txt"
        labels.write_text("".join(f"{one[0]} {one[1]} {one[2]}\n" for one in TRIALS))
        found = read_predictions(path, items=labels)
    else:
        found = rows(path)
    assert (found.tool, found.group) == ("speaker verification", "speaker")
    assert found.rows["item"].to_list() == [f"{one[1][:-4]} {one[2][:-4]}" for one in TRIALS]
    assert found.rows["group"].to_list() == ["id01", "id01", "id02"]
    assert found.rows["label"].to_list() == ["1", "0", "0"]
    assert found.rows["prediction"].to_list() == ["0.71", "-0.2", "0.05"]


def test_trials_of_s3prl_belong_together_by_the_enrolled_speaker(tmp_path: Path) -> None:
    one, other = "id10270-5r_0-W-00001_id10270-8jEA-00008", "id10271-1gtz-00001_id10270-x_y-00004"
    (tmp_path / "test_predict.txt").write_text(f"{one} 0.7\n{other} -0.1\n")
    (tmp_path / "test_truth.txt").write_text(f"{one} 1\n{other} 0\n")
    found = rows(tmp_path / "test_predict.txt")
    assert (found.tool, found.group) == ("s3prl", "speaker")
    assert found.rows["group"].to_list() == ["id10270", "id10271"]


@pytest.mark.parametrize("line", ["u1 0 1", "a b c", "a b 1 0", "a b 0.5 0.7", "one line of five words", "a b 1 2 3"])
def test_lines_that_are_no_trials(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.txt").write_text(f"{line}\n" * 2)
    with pytest.raises(ArtifactError, match=r"line 1 has \d words; need an item and an answer"):
        rows(tmp_path / "x.txt")


SCORES = pd.DataFrame({"a": [61.5, 70.0, 80.25], "b": [60.0, 71.0, None]}, pd.Index(["x", "y", "z"], name="task_name"))
"""Scores of two models on three tasks."""
BOARDS = {
    "long": (SCORES.melt(ignore_index=False, var_name="model_name", value_name="score").reset_index(), None),
    "wide": (SCORES.reset_index(), "each of 2 columns is of one model: a, b"),
    "leaderboard": (
        SCORES.T.reset_index(names="Model").assign(**{"Rank (Borda)": 1, "Mean (Task)": 70.6, "RTFx": 512}),
        "each of 3 columns is of one item: x, y, z; left out: Rank (Borda), Mean (Task), RTFx",
    ),
}  # fmt: skip


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("kind", BOARDS)
def test_scores_of_models_on_tasks(tmp_path: Path, kind: str, index: bool) -> None:
    table, note = BOARDS[kind]
    table.to_csv(tmp_path / "x.csv", index=index)  # pandas writes the numbers of the rows, too
    first, second = read_models(tmp_path / "x.csv", metric="mean")
    assert [first.name, second.name] == ["a", "b"]
    assert first.rows.select("item", "prediction").rows() == [("x", "61.5"), ("y", "70.0"), ("z", "80.25")]
    assert note is None or note in first.notes
    if kind == "long":  # where an empty cell may be an error
        assert second.rows["prediction"].to_list() == ["60", "71", None]
    else:
        assert second.rows.select("item", "prediction").rows() == [("x", "60"), ("y", "71")]


LINES = {
    "p.txt": "joy\nfear\n",
    "y.txt": "joy\njoy\n",
    "y.csv": "id,speaker,label,other\na,s1,joy,1\nb,s2,joy,2\n",
}


@pytest.mark.parametrize("kind", ["classes", "numbers", "scores"])
@pytest.mark.parametrize("items", ["y.txt", "y.npy", "y.csv"])
def test_answers_in_the_order_of_the_labels(kind: str, items: str, tmp_path: Path) -> None:
    for name, text in LINES.items():
        (tmp_path / name).write_text(text if kind == "classes" else text.replace("joy", "0").replace("fear", "1"))
    np.save(tmp_path / "y.npy", np.array(["joy", "joy"] if kind == "classes" else [0, 0]))
    np.save(tmp_path / "p.npy", np.array([0, 1] if kind == "numbers" else [[2.0, 1.0], [-3.0, 1.5]]))
    path = tmp_path / ("p.txt" if kind == "classes" else "p.npy")
    found = read_predictions(path, items=tmp_path / items)
    assert found.rows["correct"].to_list() == [1, 0]
    assert found.notes[-1] == f"rows without names of items are those of {items}, in its order"
    named = items == "y.csv"
    assert found.by_order is not named
    assert found.rows["item"].to_list() == (["a", "b"] if named else ["1", "2"])
    assert found.group == ("speaker" if named else None)


def test_as_many_answers_as_labels_are_needed(tmp_path: Path) -> None:
    for name, text in LINES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "p.txt").write_text("joy\nfear\njoy\n")
    with pytest.raises(ConfigError, match=r"p.txt has 3 rows without names of items, and .*y.txt 2; without names"):
        read_predictions(tmp_path / "p.txt", items=tmp_path / "y.txt")
    (tmp_path / "n.csv").write_text("id,prediction\na,joy\n")
    with pytest.raises(ConfigError, match=r"y.txt has no column of items"):
        read_predictions(tmp_path / "n.csv", items=tmp_path / "y.txt")


def test_answers_in_columns_that_are_called_after_models(tmp_path: Path) -> None:
    head, rows = "id,label,emotion,split,bert", ["a,joy,joy,test,joy", "b,fear,fear,test,", "c,joy,joy,test,fear"]
    (tmp_path / "one.csv").write_text("\n".join([head, *rows]))
    found = read_predictions(tmp_path / "one.csv")
    assert found.rows["prediction"].to_list() == ["joy", None, "fear"]
    assert found.notes[0] == "read: item = id, label = label, prediction = bert"
    (tmp_path / "two.csv").write_text(
        "\n".join([f"{head},gpt", *(f"{row},joy" for row in rows[:2]), f"{rows[2]},fear"])
    )
    with pytest.raises(ConfigError, match=r"the columns .* have no prediction"):  # of two, one must be chosen
        read_predictions(tmp_path / "two.csv")
    assert [one.name for one in read_models(tmp_path / "two.csv")] == ["bert", "gpt"]


def test_a_model_may_answer_what_is_no_label_or_always_the_same(tmp_path: Path) -> None:
    labels = ["joy", "fear", "sad"] * 5
    models = {
        "svm": labels[::-1],
        "rf": ["disgust", *labels[1:]],
        "const": ["joy"] * 15,
        "mood": ["?"] * 2 + labels[2:],
    }
    pl.DataFrame({"id": range(15), "label": labels, **models}).write_csv(tmp_path / "wide.csv")
    found = {one.name: one.rows["correct"].to_list() for one in read_models(tmp_path / "wide.csv")}
    assert found == {"svm": [0, 1, 0] * 5, "rf": [0, *[1] * 14], "const": [1, 0, 0] * 5}


def test_the_column_of_the_answers_is_not_that_of_the_labels() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": ANSWERS, "score": [0.9] * 4, "gold": LABELS})
    assert of_table(table, {"prediction": "label"}, "m").rows["correct"].to_list() == RIGHT
    with pytest.raises(ConfigError, match="have no label"):
        of_table(table.drop("gold"), {"prediction": "label"}, "m")


@pytest.mark.parametrize("columns", [{}, {"prediction": "target"}, {"label": "target", "prediction": "target"}])
def test_submissions_call_the_answers_as_the_labels(columns: dict[str, str], tmp_path: Path) -> None:
    for name, values in (("answers", ANSWERS), ("labels", LABELS)):
        pl.DataFrame({"id": ITEMS, "target": values}).write_csv(tmp_path / f"{name}.csv")
    found = rows(tmp_path / "answers.csv", items=tmp_path / "labels.csv", columns=columns)
    assert found.rows["correct"].to_list() == RIGHT
    assert found.notes[0] == "read: item = id, label = target, prediction = target (predicted)"


def test_labels_of_two_files_that_disagree_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"id": ITEMS, "label": ANSWERS, "pred": ANSWERS}).write_csv(tmp_path / "answers.csv")
    pl.DataFrame({"id": ITEMS, "label": LABELS}).write_csv(tmp_path / "labels.csv")
    with pytest.raises(ConfigError, match="have another label for 2 of 4 items") as error:
        rows(tmp_path / "answers.csv", items=tmp_path / "labels.csv")
    assert error.value.fix == "if this column of answers.csv has the answers: --prediction label"
    found = rows(tmp_path / "answers.csv", items=tmp_path / "labels.csv", columns={"prediction": "label"})
    assert found.rows["correct"].to_list() == RIGHT
    numbers = {"anger": 0, "fear": 1, "joy": 2}
    pl.DataFrame({"id": ITEMS, "label": [numbers[one] for one in LABELS]}).write_csv(tmp_path / "labels.csv")
    assert rows(tmp_path / "answers.csv", items=tmp_path / "labels.csv").rows["correct"].to_list() == [1.0] * 4


def test_a_verdict_in_the_file_counts_or_is_left_out() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": LABELS, "pred": ANSWERS, "is_correct": [True, True, False, True]})
    with pytest.raises(ConfigError, match=r"'is_correct' and .* 'label' with 'pred' disagree on 1 of 4 rows") as error:
        of_table(table, {}, "m")
    assert error.value.fix == "choose: --correct is_correct, or --prediction 'pred'"
    assert of_table(table, {"prediction": "pred"}, "m").rows["correct"].to_list() == RIGHT
    assert of_table(table, {"correct": "is_correct"}, "m").rows["correct"].to_list() == [1, 1, 0, 1]
    assert of_table(table.with_columns(is_correct=pl.Series(RIGHT)), {}, "m").rows["correct"].to_list() == RIGHT
    assert of_table(table.with_columns(is_correct=5), {}, "m").rows["correct"].to_list() == RIGHT  # no verdict


@pytest.mark.parametrize(("column", "given"), [("Question ID", {}), ("Frage", {"item": "Frage"})])
def test_names_of_items_that_look_like_numbers_stay_as_they_are(
    column: str, given: dict[str, str], tmp_path: Path
) -> None:
    names = ["1.1", "1.10", "12e3", "12e345"]
    pl.DataFrame({column: names, "correct": RIGHT}).write_csv(tmp_path / "x.csv")
    assert read_predictions(tmp_path / "x.csv", given).rows["item"].to_list() == names


def test_rows_that_pandas_numbered_in_each_file(tmp_path: Path) -> None:
    def write(name: str, labels: list[str], answers: list[str] = ANSWERS) -> None:
        table = pl.DataFrame({"": range(len(labels)), "y_true": labels, "y_pred": answers[: len(labels)]})
        table.write_csv(tmp_path / f"{name}.csv")

    for number in (0, 1):
        write(f"cv_fold{number}", LABELS, ANSWERS[:: 1 - 2 * number])  # two models, tested on the same items
        write(f"fold{number}", LABELS[:: 1 - 2 * number])
        for seed in (0, 1):
            write(f"part{number}_seed{seed}", LABELS[:: 1 - 2 * number], ANSWERS[:: 1 - 2 * seed])
    same = read_predictions(tmp_path / "cv_fold*.csv").rows
    assert same["item"].to_list() == ["0", "1", "2", "3"] * 2
    folds = read_predictions(tmp_path / "fold*.csv")
    assert folds.rows["item"].to_list() == [f"{part}/{row}" for part in (1, 2) for row in range(4)]
    assert folds.notes[-1] == "rows are numbered in each file; the 2 files have 2 sets of items: 1/0, 2/0, …"
    seeds = read_predictions(tmp_path / "part*.csv").rows
    assert seeds["item"].n_unique() == 8
    assert seeds["seed"].n_unique() == 4


def test_folds_without_labels_are_of_other_items_if_their_sizes_differ(tmp_path: Path) -> None:
    for fold, number in enumerate((2, 3, 3)):
        pl.DataFrame({"": range(number), "loss": [0.5] * number}).write_csv(tmp_path / f"a_fold{fold}.csv")
        pl.DataFrame({"": range(3), "loss": [0.5] * 3}).write_csv(tmp_path / f"b_fold{fold}.csv")
        pl.DataFrame({"": range(3), "loss": [0.5] * 3}).write_csv(tmp_path / f"seed{fold}.csv")
    assert read_predictions(tmp_path / "a_fold*.csv", metric="mean_loss").rows["item"].n_unique() == 8
    with pytest.raises(ConfigError, match="nothing tells if folds have the same items"):
        read_predictions(tmp_path / "b_fold*.csv", metric="mean_loss")
    assert read_predictions(tmp_path / "seed*.csv", metric="mean_loss").rows["item"].n_unique() == 3


def test_caret_names_rows_by_their_index(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "": range(1, 5),
            "pred": ANSWERS,
            "obs": LABELS,
            "rowIndex": [7, 8, 7, 9],
            "Resample": ["F1", "F1", "F2", "F2"],
        }
    )
    table.write_csv(tmp_path / "x.csv")
    found = read_predictions(tmp_path / "x.csv").rows
    assert found.select("item", "fold").rows() == [("7", "F1"), ("8", "F1"), ("7", "F2"), ("9", "F2")]


def test_lists_of_a_json_object_beside_figures(tmp_path: Path) -> None:
    table = {"accuracy": 0.5, "classes": ["anger", "fear", "joy"], "y_true": LABELS, "y_pred": ANSWERS}
    assert rows(write_json(tmp_path / "x.json", table)).rows["correct"].to_list() == RIGHT


@pytest.mark.parametrize("name", ["proba_{}", "class_{}", "{}_prob", "Pred {}", "{} score"])
def test_names_of_columns_of_scores(name: str) -> None:
    scores = {name.format(one): [float(one == answer) for answer in ANSWERS] for one in ("anger", "fear", "joy")}
    assert of_table(pl.DataFrame({"id": ITEMS, "label": LABELS, **scores}), {}, "m").rows["correct"].to_list() == RIGHT


def test_true_and_false_may_be_predicted_as_numbers() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": [True, False, True, False], "pred": [1, 0, 0, None]})
    found = of_table(table.with_columns(correct=pl.Series([1, 1, 0, 0])), {}, "m").rows
    assert found["correct"].to_list() == [1, 1, 0, 0]
    assert found["prediction"].to_list() == ["true", "false", "false", None]


def test_numbers_may_be_predicted_as_true_and_false() -> None:
    table = pl.DataFrame({"id": ITEMS, "label": [1, 0, 1, 0], "pred": [True, False, False, None]})
    for pred in (pl.col("pred"), pl.col("pred").cast(pl.String).str.to_titlecase()):
        found = of_table(table.with_columns(pred), {}, "m").rows
        assert found.select("prediction", "correct").rows() == [("1", 1), ("0", 1), ("0", 0), (None, 0)]


def test_as_many_parts_of_a_path_as_tell_items_apart(tmp_path: Path) -> None:
    paths = ["c0/0.png", "c0/1.png", "c1/0.png", "c1/1.png"]
    pl.DataFrame({"path": [f"/data/a/{one}" for one in paths], "pred": ANSWERS}).write_csv(tmp_path / "x.csv")
    pl.DataFrame({"path": [f"D:\\b\\{one}" for one in paths], "label": LABELS}).write_csv(tmp_path / "y.csv")
    assert rows(tmp_path / "x.csv", items=tmp_path / "y.csv").rows["correct"].to_list() == RIGHT


@pytest.mark.parametrize(
    "text",
    [
        "id,label,sex\na,0,0\nb,1,1\nc,1,0\n",  # numbers may mean anything
        "id,label,split\na,joy,joy\nb,fear,joy\n",  # the same for all
        "id,label,note\na,joy,joy\nb,fear,anger\n",
        "id,label,note\na,joy,joy\nb,joy,fear\n",
    ],
)
def test_other_columns_are_no_answers(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ConfigError, match="have no prediction"):
        read_predictions(tmp_path / "x.csv")


def test_columns_of_a_leaderboard_are_chosen_by_a_pattern(tmp_path: Path) -> None:
    """Their cells may have a deviation, a percent sign and spaces."""
    (tmp_path / "x.csv").write_text(
        "Model ,A WER,A CER,B WER ,Average WER,note\n"
        "m1    ,10.5,3.0, 5.0 ± 0.3,7.7,65.3 / 61.2\nm2    ,11,3.5, 4.5 (1.2),7.8,x\nm3,9%,2.5,,9,\n"
    )
    models = read_models(tmp_path / "x.csv", {"item": "*WER*"}, metric="mean_loss")
    read = {one.name: dict(one.rows.select("item", "prediction").rows()) for one in models}
    assert read == {
        "m1": {"A WER": "10.5", "B WER": "5.0"}, "m2": {"A WER": "11.0", "B WER": "4.5"}, "m3": {"A WER": "9"}
    }  # fmt: skip
    assert models[0].notes[-1] == "each of 2 columns is of one item: A WER, B WER ; left out: Average WER"
    with pytest.raises(ConfigError, match=r"has no column 'C.'"):
        read_models(tmp_path / "x.csv", {"item": "C*"}, metric="mean_loss")


@pytest.mark.parametrize(
    "text",
    [
        "task,A,B\nx,0.5,0.4\ny,0.6,0.7\nAverage,0.55,0.55\n",
        "model,task,score\nA,x,0.5\nA,y,0.6\nA,avg.,0.55\nB,x,0.4\nB,y,0.7\nB,avg.,0.55\n",
    ],
)
def test_the_mean_of_all_tasks_is_no_task(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    for model in read_models(tmp_path / "x.csv", metric="mean"):
        assert model.rows["item"].to_list() == ["x", "y"]
        assert any(note.startswith("left out, being of all items: ") for note in model.notes)


def test_lines_of_kaldi_may_have_equally_many_words(tmp_path: Path) -> None:
    text = "u1 bin blue at f\nu2 set red by g\n"
    (tmp_path / "text").write_text(text)
    (tmp_path / "said.txt").write_text(text)
    wanted = ["bin blue at f", "set red by g"]
    for path in (tmp_path, tmp_path / "text", tmp_path / "said.txt"):
        found = read_predictions(path, items=tmp_path / "said.txt", metric="word_accuracy")
        assert found.rows["prediction"].to_list() == wanted


@pytest.mark.parametrize(("name", "content"), [("text", b"u1 caf\xe9 au lait\n"), ("utt2spk", b"u1 s1 more\n")])
def test_a_broken_file_in_a_folder_of_kaldi_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "text").write_text("u1 one two\nu2 one two\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{tmp_path / name} cannot be read: "):
        read_predictions(tmp_path)


def test_tasks_name_the_items_only_where_nothing_else_does(tmp_path: Path) -> None:
    for text, items in (
        ("id,task,score\na,x,0.5\nb,y,0.6\n", ["a", "b"]),
        (",task,score\n0,x,0.5\n1,y,0.6\n", ["x", "y"]),
        ("task,score\nx,0.5\nx,0.6\n", ["1", "2"]),  # of two questions
    ):
        (tmp_path / "x.csv").write_text(text)
        assert read_predictions(tmp_path / "x.csv", metric="mean").rows["item"].to_list() == items


@pytest.mark.parametrize("metric", ["mean", "mean_loss"])
def test_columns_of_scores_that_are_called_as_usual_are_of_one_model(tmp_path: Path, metric: str) -> None:
    (tmp_path / "x.csv").write_text("item,score,loss,other\nx,0.5,2,3\ny,0.6,1,3\n")
    with pytest.raises(ConfigError, match="two models or more, got 1 in"):
        read_models(tmp_path / "x.csv", metric=metric)


@pytest.mark.parametrize("said", ["text", "sentence"])
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_recognised_words_of_nemo(tmp_path: Path, ending: str, said: str) -> None:
    """NeMo calls a file with an object in each line .json."""
    records = [
        {"audio_filepath": f"/wav/{item}.wav", "duration": 1.5, said: text, "pred_text": heard}
        for item, text, heard in (("u1", "it goes", "it does"), ("u2", "on", ""))
    ]
    path = tmp_path / f"predictions{ending}"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = read_predictions(path, metric="word_accuracy")
    read = found.rows.select("item", "label", "prediction").rows()
    assert read == [("/wav/u1.wav", "it goes", "it does"), ("/wav/u2.wav", "on", None)]
    assert found.group is None


def test_recognised_words_of_s3prl(tmp_path: Path) -> None:
    (tmp_path / "test-noLM-hyp.ark").write_text("u1 IT GOES\nu2 \nu3 ON\n")
    (tmp_path / "test-noLM-ref.ark").write_text("u2 SO\nu1 IT GOES ON\nu3 ON\n")
    found = rows(tmp_path / "test-noLM-hyp.ark")
    assert found.tool == "s3prl"
    read = found.rows.sort("item").select("item", "label", "prediction").rows()
    assert read == [("u1", "IT GOES ON", "IT GOES"), ("u2", "SO", None), ("u3", "ON", "ON")]
