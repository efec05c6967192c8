"""Texts and images go the whole way, through the shipped pipelines: one code path, the same files, their own words."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml
from scipy.special import softmax

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import read_head
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layer_sets import find_ablation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import Config, load_config
from daamctl.corpora import CORPORA, demo_text, digits
from daamctl.errors import MethodError
from daamctl.models.model import ExportedModel
from daamctl.stages import export, pipeline

ITEMS = 40
METHODS = ("none-mlp", "daam-v1-mlp")
FINETUNES = ("lora-r8", "lora-r8-published")
GROUPS = ["group1", "group2", "group3"]
QUICK = {
    "methods": METHODS,
    "finetunes": FINETUNES,
    "evaluate.reference": "none-mlp",
    "train.steps": 20,
    "train.passes": 0,
    "finetune.epochs": 1,
    "finetune.max_tokens": 64,
    "finetune.batch_size": 14,
    "train.search": "none",
    "train.refit": False,
    "finetune.search": "none",
    "ablate.k": [1],
    "ablate.rank_by": "daam-v1-mlp",  # left open, nothing would be chosen: so few steps teach nothing
    "ablate.method": "none-mlp",
    "ablate.presets": [],
    "importance.dpi": 40,
    "report.interactive": False,
    "download.check_fingerprint": False,
    **{f"{section}.device": "cpu" for section in ("extract", "train", "finetune")},
}


def few_texts(whole: Path, few: Path) -> None:
    """One notice of every author on every topic."""
    table = pl.read_csv(whole / demo_text.FILE)
    table.group_by("speaker", "label", maintain_order=True).head(1).write_csv(few / demo_text.FILE)


def few_images(whole: Path, few: Path) -> None:
    """The first images of digits 0 to 3."""
    table = pq.read_table(whole / digits.FILE)
    chosen = [row for row, label in enumerate(table["label"].to_pylist()) if label < 4]
    pq.write_table(table.take(chosen[:ITEMS]), few / digits.FILE)


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(
    ("name", "cut", "item", "head"),
    [
        ("demo-text", few_texts, "text", "random frozen score map (D4)"),
        ("digits", few_images, "image", "classifier on the frozen norm of the mean patch"),
    ],
)
def test_whole_way(name: str, cut: Callable[[Path, Path], None], item: str, head: str, project: Path) -> None:
    (project / "few").mkdir()
    cut(CORPORA.load(load_config(project, name).download.corpus).obtain(project / "whole"), project / "few")
    settings = yaml.safe_load((project / f"pipelines/{name}.yaml").read_text(encoding="utf-8"))
    for path, value in {**QUICK, "download.source": str(project / "few")}.items():
        section, _, key = path.partition(".")
        settings.update({section: {**settings.get(section, {}), key: value}} if key else {section: list(value)})
    (project / f"pipelines/{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    config = load_config(project, name)
    layout = Layout.of(project, name, config)
    report = pipeline.run(layout, config, track=False).parent

    made = read_head(layout.embeddings)
    assert made.num_clips == ITEMS
    for method in (*METHODS, *FINETUNES):
        results = [fold.result for fold in read_folds(layout.method(method))]
        assert [result["run"]["test_group"] for result in results] == GROUPS, method
        assert {result["run"]["modality"] for result in results} == {item}
        assert sum(result["meta"]["num_test_clips"] for result in results) == ITEMS
    ablation = find_ablation(layout.stage("ablate"))
    assert ablation is not None
    ranked = read(layout, "importance", "summary.json")["methods"]["daam-v1-mlp"]["ranking"]
    sets = [(layers, len(ablation.runs(name))) for name, layers in ablation.sets.items()]
    assert sets == [((ranked[0],), 3), ((ranked[-1],), 3)]
    assert sorted(ranked) == list(made.layers)
    check_effects(layout, report, head)
    check_report(layout, report, config, item)
    check_export(layout, name, item)


def check_effects(layout: Layout, report: Path, head: str) -> None:
    """Adapters act, the released form too: Llama and BEiT call the modules that WavLM passes by (D2)."""
    shown = {row[0].split(" (")[0]: row[1:] for row in rows(report / "tables" / "effects.csv")}
    assert tuple(shown) == FINETUNES
    for way in FINETUNES:
        run = read_folds(layout.method(way))[0].result["run"]
        assert run["effect"]["with_gradient"] == run["effect"]["tensors"] == 2 * len(run["adapted"]) > 0
        assert run["effect"]["output_change"] > 0
        assert shown[way][:3] == [str(len(run["adapted"])), *[str(run["effect"]["tensors"])] * 2]
        assert shown[way][-1] == "yes"
        assert any(head in note for note in run["notes"]) == way.endswith("published")


def check_export(layout: Layout, name: str, item: str) -> None:
    """A fine-tuned encoder that is exported with all it needs predicts what training stored."""
    folder = export.run(layout.root, f"{name}/lora-r8", layout.root / "tuned", folds="1", with_encoder=True)
    model = ExportedModel.open(folder, device="cpu")
    fold = next(one for one in read_folds(layout.method("lora-r8")) if one.fold == 1)
    stored = {row["utterance_id"]: row["logits"] for row in fold.predictions().iter_rows(named=True)}
    clips = read_clips(layout.clips).rows.filter(pl.col("utterance_id").is_in(list(stored)))
    inputs = clips["text"].to_list() if item == "text" else []
    for index in clips["index"] if item == "image" else ():
        inputs.append(layout.root / f"{index}.png")
        table = pq.read_table(layout.root / "few" / digits.FILE, columns=["image"])
        inputs[-1].write_bytes(table["image"][int(index)]["bytes"].as_py())
    found = model.predict(inputs).select([f"p_{one}" for one in model.record.classes]).to_numpy()
    wanted = softmax(np.array([stored[one] for one in clips["utterance_id"]]), axis=1)
    assert np.abs(found - wanted).max() < 1e-6
    with pytest.raises(MethodError, match="repeats a released script"):
        export.run(layout.root, f"{name}/lora-r8-published", layout.root / "never", folds="1")


def check_report(layout: Layout, report: Path, config: Config, item: str) -> None:
    """Every figure of the evaluation stands there, in the words of the modality."""
    evaluation = read(layout, "evaluate", "evaluation.json")
    assert (evaluation["counts"]["utterance"], tuple(evaluation["methods"])) == (ITEMS, config.trained)
    scores = read_evaluation(layout.stage("evaluate")).scores
    figures = {row[0].split(" (")[0]: float(row[1]) for row in rows(report / "tables" / "results.csv")}
    assert figures == {
        method: pytest.approx(100 * scores.figure(method, unit="utterance").mean) for method in evaluation["methods"]
    }
    text = (report / "report.md").read_text(encoding="utf-8")
    assert f"The main figure is accuracy per {item}" in text
    assert f"{ITEMS} test {item}s of 4 classes" in text
    prose = re.sub(r"^    .*$|\(pictures/.*?\)", "", text, flags=re.MULTILINE)  # without settings, names of files
    assert not re.search(r"\b(utterance|speaker|clip|recording)s?\b", prose)
    assert (report / "report.html").stat().st_size > 10_000
    assert {"accuracy.png", "learning.png", "learning.pdf"} <= {path.name for path in (report / "pictures").iterdir()}


def read(layout: Layout, stage: str, name: str) -> Any:
    return json.loads((layout.stage(stage) / name).read_text(encoding="utf-8"))


def rows(path: Path) -> Iterator[list[str]]:
    """The rows of a written table, without its heading."""
    with path.open(encoding="utf-8") as stream:
        yield from list(csv.reader(stream))[1:]
