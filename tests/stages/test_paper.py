"""Stage `paper`: every printed number has its place, and every cell of ours a figure with its protocol, or a reason."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layer_sets import ABLATION, write_layer_sets
from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.paper.numbers import experiments, numbers
from daamctl.stages import evaluate, paper
from daamctl.store.files import write_json
from tests.fixtures.folds import make_layout, seal_fold, write_method
from tests.fixtures.records import ablation_of, importance_of, maps_of, write_importance

LARGEST = "Largest of the three: best DAAM minus MHA"
PIPELINES = [name for one in experiments() for name in (f"{one.key}-as-published", one.key)]
SECTIONS = [
    "overview", "iemocap", "cifar100", "agnews", "first", "ablation", "learned", "parameters", "best", "claims",
    "repeated", "dwatt",
]  # fmt: skip
OURS = ("Ours, as published", "Ours, corrected")
REASONS = ("not run", "not trained", "no map")
VOID = {"meta", "img", "br", "hr", "link"}


class Page(HTMLParser):
    """Sections, tables, links and ids of a page; checks that tags nest and nothing is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tables: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert not {"src", "srcset", "action", "poster"} & values.keys()
        self.sections += [values["id"]] if tag == "section" else []
        self.tables += [values["id"].removeprefix("table-")] if tag == "table" else []
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if tag == "a" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def make_pipeline(root: Path, name: str, **settings: Any) -> tuple[Layout, Config]:
    """A pipeline with a settings file and nothing made yet."""
    (root / "pipelines").mkdir(exist_ok=True)
    (root / "pipelines" / f"{name}.yaml").write_text("{}\n")
    made_of = {"download": {"corpus": "iemocap"}, "extract": {"encoder": "wavlm-large"}, **settings}
    return make_layout(root, name), Config.model_validate(made_of)


def write_weights(layout: Layout, method: str, fold: int) -> None:
    """Weights with offsets from -0.1 to 0.2 and scaled variances from 1.9 to 2.1 + fold / 10."""
    tensors = {
        "fusion.offset": np.array([[-0.1], [0.2]], np.float32),
        "fusion.scaled_variance": np.array([[1.9], [2.1 + fold / 10]], np.float32),
    }
    head = {"method": method, "settings": {}, "num_layers": 24, "embed_dim": 1024, "num_classes": 4}
    metadata = {"daamctl": json.dumps({"schema": 1, "kind": "fusion", **head})}
    save_file(tensors, layout.method(method) / f"fold{fold}-seed1" / "weights.safetensors", metadata=metadata)
    seal_fold(layout.method(method) / f"fold{fold}-seed1")


def write_ablation(layout: Layout, **values: float) -> None:
    """An ablation with single layers: layer -> accuracy of both folds."""
    sets = {f"layers-{layer[1:]}": ((int(layer[1:]),), value) for layer, value in values.items()}
    found = ablation_of(sets, runs=2, run=layout.run_name, method="none", label="mha-published", unit="clip")
    write_layer_sets(layout.stage("ablate") / ABLATION, found, ())


def cells(root: Path, table: str) -> dict[str, dict[str, str]]:
    """First cell -> heading -> cell of a written table."""
    with (root / "data/report/paper/tables" / f"{table}.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {row[next(iter(row))]: row for row in rows}


def write(root: Path) -> tuple[Page, str, str]:
    path = paper.run(root)
    html = path.read_text(encoding="utf-8")
    return Page(html), html, (path.parent / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which nothing ran; the inventory says why of one pipeline, a note of another."""
    root = tmp_path_factory.mktemp("empty")
    for name in PIPELINES[:5]:
        make_pipeline(root, name)
    told = {"pipeline": "iemocap", "runs": False, "reason": "corpus 'iemocap' is not registered",
            "fix": "daamctl download iemocap --from DIR"}  # fmt: skip
    write_json(root / "data/check/iemocap/machine.json", told)
    write_json(
        root / "data/check/cifar100/machine.json", {"pipeline": "cifar100", "runs": True, "reason": None, "fix": None}
    )
    note = {"reason": "needs a GPU with 28 GB; no weights", "fix": "run it on a larger machine"}
    write_json(root / "data/extract/agnews-as-published/skipped.json", note)
    evaluation = root / "data/evaluate/agnews-as-published"
    write_json(evaluation / "skipped.json", note)
    (evaluation / "evaluation.json").write_text("")
    write(root)
    return root


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which both IEMOCAP pipelines ran in part."""
    root = tmp_path_factory.mktemp("ran")
    published, config = make_pipeline(
        root, "iemocap-as-published", methods=["mha-published", "daam-v1"],
        train={"selection": "best-on-test", "steps": None},
        evaluate={"unit": "clip"},
    )  # fmt: skip
    write_method(published, config, "mha-published", skill=1.0)
    write_method(published, config, "daam-v1", skill=2.0, folds=(1, 2, 3))
    for fold in (1, 2):
        write_weights(published, "daam-v1", fold)
    evaluate.run(published, config)
    write_ablation(published, l9=0.65, l23=0.60)
    write_importance(
        published.stage("importance"),
        importance_of(
            {"daam-v1": maps_of([9, 8, 7, 23, 22, 24], ranking_untrained=[2, 5, 8], caution="yes")},
            run="iemocap-as-published",
        ),
    )
    published.stage("report").mkdir(parents=True)
    (published.stage("report") / "report.html").write_text("<p>")
    corrected, config = make_pipeline(root, "iemocap", methods=["none", "daam-v1", "sga"], finetunes=["full-finetune"])
    write_method(corrected, config, "none", skill=1.5)
    write_method(corrected, config, "daam-v1", skill=1.5, seeds=(1,))
    write_method(corrected, config, "sga", skill=1.5, changes={"run.reconstructed": "reading A, scalar"})
    write_method(corrected, config, "full-finetune", changes={"run.finetune": True, "run.layers": [24]})
    evaluate.run(corrected, config)
    write_ablation(corrected, l9=0.65)
    write_json(corrected.method("mha") / "skipped.json", {"method": "mha", "reason": "not listed by the pipeline"})
    write(root)
    return root


def test_every_printed_number_is_shown_in_its_place(empty: Path) -> None:
    for number in numbers():
        row = cells(empty, number.report_table)[number.report_row]
        heading = next(name for name in row if name.removesuffix(" [%]") == number.report_column)
        shown = re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", row[heading].replace("−", "-"))
        assert float(number.value) in map(float, shown), number
    assert len(numbers()) > 640


def test_page_is_whole_when_nothing_ran(empty: Path) -> None:
    page, html, markdown = write(empty)
    assert page.sections == SECTIONS
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") for link in page.links)
    assert {path.stem for path in (empty / "data/report/paper/tables").glob("*.csv")} == set(page.tables)
    assert "default-src 'none'" in html
    assert "0 of 6" in html
    assert markdown.startswith("# Density Adaptive Attention: every published table and ours\n")


def test_every_empty_cell_says_why(empty: Path) -> None:
    page, _, _ = write(empty)
    met = 0
    for table in page.tables:
        for row in cells(empty, table).values():
            for heading in OURS:
                if heading in row:
                    met += 1
                    assert row[heading] in REASONS
                    assert row[f"{heading}, note"]
    assert met > 200


@pytest.mark.parametrize(
    ("pipeline", "reason", "fix"),
    [
        ("iemocap", "corpus 'iemocap' is not registered", "daamctl download iemocap --from DIR"),
        ("iemocap-as-published", "not made yet", "daamctl run iemocap-as-published"),
        ("cifar100", "not made yet", "daamctl run cifar100"),
        ("agnews-as-published", "needs a GPU with 28 GB; no weights", "run it on a larger machine"),
        ("agnews", "there is no pipeline 'agnews' in this project", ""),
    ],
)
def test_why_a_pipeline_has_no_figures(empty: Path, pipeline: str, reason: str, fix: str) -> None:
    row = cells(empty, "pipelines")[pipeline]
    assert (row["Results"], row["Why not"], row["How to get them"]) == ("none", reason, fix)
    key = pipeline.removesuffix("-as-published")
    ours = OURS[pipeline == key]
    brief = reason.replace("; no weights", " (and 1 other reason)")
    for table in (f"results-{key}", f"first-{key}"):
        assert {row[f"{ours}, note"] for row in cells(empty, table).values()} == {brief}


def test_figures_stand_under_their_own_protocol(ran: Path) -> None:
    row = cells(ran, "results-iemocap")["daam-v1"]
    published, own = (read_evaluation(ran / "data/evaluate" / name).scores for name in PIPELINES[:2])
    if PIPELINES[0] == "iemocap":
        published, own = own, published
    best, main = published.figure("daam-v1", "accuracy_best_on_test"), own.figure("daam-v1", unit="utterance")
    assert float(row["Ours, as published [%]"]) == pytest.approx(100 * best.mean)
    assert float(row["Ours, as published, sample std [%]"]) == pytest.approx(100 * best.std)
    assert float(row["Ours minus published (points)"]) == pytest.approx(100 * best.mean - 67.36)
    assert float(row["Ours, corrected [%]"]) == pytest.approx(100 * main.mean)
    assert row["Ours, as published, note"] == (
        "per clip, best epoch on test, n = 3 of 5; ../../train/iemocap-as-published/daam-v1; "
        "../iemocap-as-published/report.html"
    )
    assert main.low is not None
    assert main.high is not None
    pooled = f"pooled {100 * main.low:.1f} to {100 * main.high:.1f} (95 %)"
    assert row["Ours, corrected, note"] == (
        "per utterance, fixed number of steps, settings chosen on held-out training data, then trained again with the "
        f"held-out data, n = 5; {pooled}; ../../train/iemocap/daam-v1"
    )


def test_released_forms_stand_for_printed_names_and_say_so(ran: Path) -> None:
    row = cells(ran, "results-iemocap")["mha"]
    assert row["Ours, as published, note"].startswith("mha-published; per clip, best epoch on test")
    assert (row["Ours, corrected [%]"], row["Ours, corrected, note"]) == ("not trained", "not listed by the pipeline")
    gqdaam = cells(ran, "results-iemocap")["gqdaam"]
    assert gqdaam["Ours, as published, note"] == "not among the methods of iemocap-as-published"
    assert cells(ran, "first-iemocap")["sga"]["Ours, corrected, note"].startswith("sga (reconstructed); per utterance")


def test_controls_follow_the_printed_rows(ran: Path) -> None:
    table = cells(ran, "results-iemocap")
    assert list(table)[-6:] == ["none", "weighted-sum", "linear-probe", "dora-r8", "houlsby", "full-finetune"]
    assert float(table["none"]["Ours, corrected [%]"]) > 0
    assert table["none"]["Ours minus published (points)"] == ""
    tuned = table["full-finetune"]
    assert float(tuned["Ours, corrected [%]"]) > 0
    assert tuned["Ours, as published, note"] == "not among the methods of iemocap-as-published"
    assert {table[name]["Remark"] for name in ("dora-r8", "houlsby", "full-finetune")} == {"fine-tuning, beside LoRA"}


def test_links_lead_to_runs_and_reports(ran: Path) -> None:
    page, html, markdown = write(ran)
    outside = {link for link in page.links if not link.startswith("#")}
    assert "../iemocap-as-published/report.html" in outside
    assert "../iemocap/report.html" not in outside  # it has no report
    assert all((ran / "data/report/paper" / link).exists() for link in outside)
    assert 'n = 3 of 5; <a href="../../train/iemocap-as-published/daam-v1">runs</a>' in html
    assert "n = 3 of 5; [runs](../../train/iemocap-as-published/daam-v1)" in markdown


def test_an_ablation_of_other_settings_is_not_shown_beside_the_methods(tmp_path: Path) -> None:
    layout, config = make_pipeline(tmp_path, "iemocap", methods=["none"])
    write_method(layout, config, "none")
    evaluate.run(layout, config)
    write_ablation(layout, l9=0.65)
    write(tmp_path)
    assert "n = 2" in cells(tmp_path, "ablation")["IEMOCAP: layer 9 (high)"]["Ours, corrected, note"]
    other = Config.model_validate({**config.model_dump(mode="json"), "train": {"lr": 0.5}})
    changes = {"run.method": "none", "run.layers": [9], "run.config.method": {"name": "none"}}
    write_method(layout, other, "layers-9-none", changes=changes)
    layout.method("layers-9-none").rename(layout.stage("ablate") / "layers-9-none")
    write(tmp_path)
    row = cells(tmp_path, "ablation")["IEMOCAP: layer 9 (high)"]
    assert row["Ours, corrected, note"] == (
        "done with other settings than the methods (train.lr: 0.5 (now 0.0001)): daamctl ablate iemocap"
    )


def test_ablation_ranges_and_layers(ran: Path) -> None:
    rows = cells(ran, "ablation")
    high, gap = rows["IEMOCAP: layer 9 (high)"], rows["IEMOCAP: high minus low (points)"]
    assert float(high["Ours, as published"]) == pytest.approx(65)
    assert high["Ours, as published, note"].startswith(
        "mha-published; per clip, best epoch on test, n = 2; ../../ablate/"
    )
    assert float(gap["Ours, as published"]) == pytest.approx(5)
    assert gap["Ours, corrected, note"] == "iemocap does not train on layer 23 alone"
    assert (
        rows["AG News: layers 19-21 (high)"]["Ours, corrected, note"] == "there is no pipeline 'agnews' in this project"
    )
    learned = cells(ran, "learned")
    name = next(name for name in learned["IEMOCAP: ξ width"] if name.startswith("Ours, as published"))
    assert float(learned["IEMOCAP: ξ width"][name]) == pytest.approx(0.35)  # mean of 0.3 and 0.4
    assert float(learned["IEMOCAP: δ lowest"][name]) == pytest.approx(-0.1)
    assert learned["IEMOCAP: δ lowest"]["Ours, corrected, note"] == "there are no weights of daam-v1 on this machine"
    layers = cells(ran, "layers")["IEMOCAP"]
    assert layers["Ours, as published"] == "highest 9, 8, 7; lowest 23, 22, 24"
    assert "untrained: highest 2, 5, 8; mostly geometry (D29)" in layers["Ours, as published, note"]
    assert layers["Ours, corrected, note"] == "not made yet: daamctl importance iemocap"


def test_best_rows_and_claims_name_what_they_are_made_of(ran: Path) -> None:
    rows = cells(ran, "results-iemocap")
    expected = float(rows["daam-v1"]["Ours, as published [%]"]) - float(rows["mha"]["Ours, as published [%]"])
    best = cells(ran, "best")
    lead, row = best["IEMOCAP: best DAAM minus MHA"], best[LARGEST]
    assert float(lead["Ours, as published"]) == pytest.approx(expected)
    assert lead["Ours, as published, note"].startswith("daam-v1 minus mha-published; per clip, best epoch on test")
    assert float(row["Ours, as published"]) == pytest.approx(expected)
    assert row["Ours, as published, note"].startswith("IEMOCAP, largest of 1; daam-v1 minus mha-published")
    assert row["Ours, corrected, note"] == "none of iemocap, cifar100 and agnews has both"


def test_another_corpus_is_called_not_comparable(tmp_path: Path) -> None:
    layout, config = make_pipeline(tmp_path, "iemocap", methods=["none"], download={"corpus": "demo"})
    write_method(layout, config, "none")
    evaluate.run(layout, config)
    _, html, _ = write(tmp_path)
    assert "iemocap: its corpus is demo, but the published one is iemocap. Do not compare the results." in html


def test_an_unfair_pipeline_is_called_that(tmp_path: Path) -> None:
    layout, config = make_pipeline(tmp_path, "iemocap", methods=["mha"])
    write_method(layout, config, "mha", skill=2.0, changes={"metrics.selected_epoch": 6, "metrics.epochs": 6})
    evaluate.run(layout, config)
    _, html, _ = write(tmp_path)
    assert "iemocap: This comparison is not fair: mha is undertrained." in re.sub("<[^>]+>", "", html)
    assert cells(tmp_path, "results-iemocap")["mha"]["Ours, corrected, note"].startswith("mha (undertrained); ")


def test_tables_of_an_earlier_report_go(tmp_path: Path) -> None:
    old = tmp_path / "data/report/paper/tables/of-another-day.csv"
    old.parent.mkdir(parents=True)
    old.write_text("x\n")
    write(tmp_path)
    assert not old.exists()


def test_damaged_result_names_the_file(tmp_path: Path) -> None:
    make_pipeline(tmp_path, "iemocap")
    path = tmp_path / "data/evaluate/iemocap/evaluation.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ArtifactError, match=r"evaluation\.json is not valid JSON"):
        paper.run(tmp_path)
