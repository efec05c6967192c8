"""Stage `report`: what stands in the page, and that it is whole, escaped and self-contained."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layer_sets import ABLATION, TRUNCATION, Ablation, Contrast, read_rows, write_layer_sets
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.scores import Scores
from daamctl.config import Config
from daamctl.config.keys import probe_settings
from daamctl.config.schema import EvaluateConfig
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.extraction.stopwatch import timing_file
from daamctl.planning.repair import repair_of
from daamctl.reporting.truncation import TITLE
from daamctl.reporting.verdict import labelled
from daamctl.stages import evaluate, importance, report
from daamctl.store.files import read_json, write_json
from daamctl.store.records import hashes_of, write_record
from daamctl.store.tables import read_frame, write_frame
from tests.fixtures.folds import EMBEDDINGS_KEY, make_layout, seal_fold, tuned, write_fold, write_items, write_method
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.records import ablation_of, importance_of, write_importance
from tests.fixtures.truncations import truncation

SETTINGS = {
    "methods": ["none", "daam-v1", "daam-v2", "sga", "mha-published"],
    "importance": {"dpi": 40},
    "download": {"corpus": "iemocap"},
    "extract": {"encoder": "wavlm-large"},
    "report": {"published": "T2-iemocap"},
}
CONFIG = Config.model_validate(SETTINGS)
Made = tuple[Layout, str, str]
"""Layout, HTML, Markdown."""
VOID = {"meta", "img", "br", "hr", "link"}
SECTIONS = [
    "answers", "results", "headline", "tests", "fairness", "metrics", "folds", "speakers", "selection", "published",
    "importance", "ablation", "use", "learned", "cost", "learning", "confusion", "missing", "provenance", "terms",
]  # fmt: skip
FIGURES = ["answers", "accuracy", "speakers", "importance", "learning", "confusion"]
pytestmark = pytest.mark.usefixtures("blank_pictures")  # only the fixture `made` draws its own
LOADS = {"src", "href", "srcset", "data", "poster", "action", "xlink:href"}


class Page(HTMLParser):
    """Collects what stands in a page, and checks that tags nest and nothing is loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.scripts: list[str] = []
        self.sections: list[str] = []
        self.figures: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in LOADS & values.keys():
            assert (values[name] or "").startswith(("#", "data:image/png;base64,")), (tag, name, values[name])
        self.ids += [values["id"] or ""] if "id" in values else []
        self.anchors += [values["href"] or ""] if "href" in values else []
        self.images += [values] if tag == "img" else []
        self.sections += [values["id"] or ""] if tag == "section" else []
        self.figures += [values["data-figure"] or ""] if "data-figure" in values else []
        self.scripts += [""] if tag == "script" else []
        assert not any(name.startswith("on") for name in values)
        if tag not in VOID:
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def ablation() -> Ablation:
    sets = {"all": ((1, 2, 3, 4, 5, 6), 0.62), "highest-1": ((2,), 0.55), "lowest-1": ((4,), 0.52)}
    return ablation_of(
        {**sets, "layers-9": ((9,), 0.56), "layers-23": ((23,), 0.53)},
        ranking=[2, 1, 3, 6, 5, 4],
        contrasts=[
            Contrast("highest-1 minus lowest-1", "highest-1", "lowest-1", "no"),
            Contrast("speech-9-23", "layers-9", "layers-23", "no"),
        ],
        tests=alone("daam-v1", 0.03),
        notes=["A one-layer DAAM is the identity at start."],
    )


def alone(method: str, difference: float, k: int = 1) -> list[LayerTest]:
    """Tests of a method's score on layers trained alone."""
    return [
        LayerTest(method, "trained", "alone", 1.0, 0.5, number=2, k=k, high="2", low="4"),
        LayerTest(method, "trained", "alone-folds", difference, 0.03125, 0.03125, number=5, k=k, high="2", low="4"),
    ]


TESTS = [
    LayerTest("daam-v1", "trained", "probe", 0.125, 0.4, 0.01, "not shown"),
    LayerTest("daam-v1", "untrained", "probe", 0.25, 0.3, 0.01, "not shown"),
    LayerTest("daam-v1", "trained", "deletion", 0.0123, 0.05, 0.05, "yes"),
    LayerTest("daam-v1", "untrained", "deletion", 0.01, 0.1, 0.05, "not shown"),
    LayerTest("daam-v1", "trained", "insertion", -0.0234, 0.6, 0.05, "not shown"),
    *alone("daam-v1", 0.03),
    *alone("daam-v2", -0.0125),
    *alone("daam-v2", 0.02, k=3),
]


def audit() -> dict[str, Any]:
    return {
        **importance_of({})["audit"],
        "no_ablation": "No layers trained alone on these embeddings; train them",
        "not_audited": {"daam-v2": "it does not rank the layers"},
        "methods": {"daam-v1": ["daam-v1 fold 4 seed 1 has no curves"]},
        "sentence": "Importance Factors track nothing here.",
        "note": "Not corrected.",
    }


def write_weights(layout: Layout, method: str, *, folds: int, num_heads: int) -> None:
    """Weights whose ranges are known: fold k has offsets from -k/100 to k/50 and scaled variances from 1.9 to 2.1."""
    for fold in range(1, folds + 1):
        offset = np.linspace(-fold / 100, fold / 50, num_heads * 8, dtype=np.float32).reshape(num_heads, 8)
        width = np.linspace(1.9, 2.1, num_heads * 8, dtype=np.float32).reshape(num_heads, 8)
        decoder = np.zeros((4, 250), np.float32)
        tensors = {"fusion.offset": offset, "fusion.scaled_variance": width, "decoder.fc.weight": decoder}
        head = {"method": method, "settings": {}, "num_layers": 6, "embed_dim": 8, "num_classes": 4}
        metadata = {"daamctl": json.dumps({"schema": 1, "kind": "fusion", **head})}
        save_file(tensors, layout.method(method) / f"fold{fold}-seed1" / "weights.safetensors", metadata=metadata)
        seal_fold(layout.method(method) / f"fold{fold}-seed1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run with everything in it: layout, HTML, Markdown."""
    layout = make_layout(tmp_path_factory.mktemp("report"))
    write_method(layout, CONFIG, "none", skill=1.2)
    write_method(layout, CONFIG, "daam-v1", folds=(1, 2, 3, 4), density_shape=(6, 8), learned=0.01)
    write_method(layout, CONFIG, "daam-v2", density_shape=(6, 8), learned=1.0, skill=3.0)
    write_method(layout, CONFIG, "sga", changes={"run.reconstructed": "reading A, scalar"}, epochs=3)
    batches = {"size": 8, "order": "clip table", "clips_sha256": "5eed" * 16}
    write_method(layout, CONFIG, "mha-published", changes={"run.eval_batches": batches}, epochs=3)
    write_weights(layout, "daam-v1", folds=4, num_heads=2)
    evaluate.run(layout, CONFIG)
    importance.run(layout, CONFIG)
    folder = layout.stage("importance")
    content = {**json.loads((folder / "summary.json").read_text()), "audit": audit()}
    write_importance(folder, content, rows=read_rows(folder), tests=TESTS)
    write_layer_sets(layout.stage("ablate") / ABLATION, ablation(), ())
    path = report.run(layout, CONFIG, track=False)
    return layout, path.read_text(encoding="utf-8"), (path.parent / "report.md").read_text(encoding="utf-8")


def evaluation_of(layout: Layout) -> dict[str, Any]:
    return dict(json.loads((layout.stage("evaluate") / "evaluation.json").read_text()))


def scores_of(layout: Layout) -> Scores:
    return read_evaluation(layout.stage("evaluate")).scores


def table_of(layout: Layout, key: str) -> dict[str, dict[str, str]]:
    """First cell -> heading -> cell of a CSV."""
    with (layout.stage("report") / "tables" / f"{key}.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {row[next(iter(row))]: row for row in rows}


def markdown_rows(text: str, start: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {start} |")
    ]


def test_page_is_whole_and_self_contained(made: Made) -> None:
    page = Page(made[1])
    assert page.sections == SECTIONS
    assert page.figures == FIGURES
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.anchors} <= set(page.ids)
    assert all(len(image["alt"] or "") > 30 for image in page.images)
    assert sum("plotly.js v" in script[:200] for script in page.scripts) == 1
    assert len(page.scripts) == 1 + len(FIGURES) + 2
    assert "default-src 'none'" in made[1]
    assert "connect-src" not in made[1]


def test_the_page_ends_in_what_to_do_with_a_model(made: Made) -> None:
    layout, _, text = made
    evaluation = evaluation_of(layout)
    (best,) = set(re.findall(rf"daamctl export {layout.run_name}/(\S+) --out model", text))
    assert f"daamctl truncate {layout.run_name}/{best} " in text
    assert "daamctl predict model " in text
    entry = evaluation["methods"][best]
    assert not entry["eval_batches"]  # its prediction would depend on the other items of a batch
    assert not entry["missing"]


def test_every_plot_has_a_picture_in_its_place(made: Made) -> None:
    for figure in re.findall(r"<figure id=\"figure-.*?</figure>", made[1], re.DOTALL):
        assert "<img " in figure
        data = re.search(r'<script type="application/json">(.*?)</script>', figure, re.DOTALL)
        assert data is not None
        assert json.loads(data.group(1))


def test_tables_have_captions_and_scopes(made: Made) -> None:
    text = made[1]
    assert text.count("<table ") == text.count("<caption>") > 20
    assert text.count('scope="row"') > 100


def test_numbers_of_the_evaluation_stand_everywhere(made: Made) -> None:
    layout, html, markdown = made
    evaluation, scores = evaluation_of(layout), scores_of(layout)
    table, tex = table_of(layout, "results"), (layout.stage("report") / "tables/results.tex").read_text()
    metrics = table_of(layout, "metrics")
    for name, entry in evaluation["methods"].items():
        label, accuracy = entry["label"], scores.figure(name)
        mean, std = 100 * accuracy.mean, 100 * (accuracy.std or 0.0)
        assert f"{mean:.1f} ± {std:.1f}" in html
        assert f"{mean:.1f} ± {std:.1f}" in markdown
        assert f"{label.replace('_', chr(92) + '_')} & {mean:.1f} $\\pm$ {std:.1f} & " in tex
        assert float(table[label]["Accuracy (WA) [%]"]) == pytest.approx(mean)
        assert float(table[label]["Accuracy (WA), sample std [%]"]) == pytest.approx(std)
        balanced, loss = scores.figure(name, "balanced_accuracy"), scores.figure(name, "log_loss")
        assert balanced.low is not None
        assert balanced.high is not None
        assert float(table[label]["UA pooled, low [%]"]) == pytest.approx(100 * balanced.low)
        assert float(table[label]["UA pooled, high [%]"]) == pytest.approx(100 * balanced.high)
        assert float(metrics[label]["Log loss (nats)"]) == pytest.approx(loss.mean, abs=1e-8), name
        ece = scores.figure(name, "ece").mean
        assert float(metrics[label]["Calibration error (ECE) [%]"]) == pytest.approx(100 * ece)
    majority = evaluation["chance"]["utterance"]["majority_fraction"]
    assert f"gives {100 * majority:.1f} % accuracy and 25.0 % balanced accuracy" in html


def test_differences_are_method_minus_reference(made: Made) -> None:
    layout, html, _ = made
    compared = evaluation_of(layout)["comparison"]
    assert compared["reference"] == "none"
    table = table_of(layout, "tests-accuracy")
    assert set(table) == {"daam-v2", "sga (reconstructed)", "mha-published"}
    pairs = scores_of(layout).frames["comparisons"].filter(second="daam-v2", metric="accuracy", family="reference")
    found, row = pairs.row(0, named=True), table["daam-v2"]
    assert float(row["Difference (points)"]) == pytest.approx(-100 * found["difference"])
    assert float(row["Difference (points), low"]) == pytest.approx(-100 * found["high"])
    assert float(row["Difference (points), high"]) == pytest.approx(-100 * found["low"])
    assert float(row["Difference (points), low"]) <= float(row["Difference (points)"])
    assert float(row["Primary p"]) == pytest.approx(found["p"])
    assert float(row["Primary p (Holm)"]) == pytest.approx(found["p_holm"])
    assert float(row["Secondary p (Holm)"]) == pytest.approx(found["p_folds_holm"], rel=1e-6)
    assert (int(row["Wins"]), int(row["Losses"])) == (found["losses"], found["wins"])
    assert float(row["Detectable (points)"]) == pytest.approx(100 * found["detectable"])
    page = (layout.stage("report") / "report.md").read_text(encoding="utf-8")
    assert "WA minus none \\[95 % interval, not corrected\\] | p (Holm) |" in page
    assert "Difference (points) \\[95 % interval, not corrected\\] | Primary p | Primary p (Holm) |" in page
    assert "or 0.00586 after correction" in html  # 3 comparisons of 10 speakers: 3 * 2 / 2^10


def test_headline_says_what_was_run_and_whether_the_lead_survives(made: Made) -> None:
    text = made[1]
    assert "Corpus iemocap, frozen encoder wavlm-large: 200 test utterances" in text
    assert "never on the test group" in text
    assert "daam-v2 has the highest mean accuracy per utterance" in text
    assert "Its lead over the reference none, the default of evaluate.reference" in text
    assert "The lead is significant at level 0.05." in text
    assert "Excluded because folds are missing: daam-v1." in text


def test_reconstructions_and_batches_are_named(made: Made) -> None:
    text = made[1]
    assert "not available: sga (reconstructed)" in text
    assert "sga (reconstructed): reading A, scalar" in text
    assert '<th scope="row" class="words">sga</th>' not in text
    assert table_of(made[0], "batches")["mha-published"]["SHA-256 of the clips in that order"] == "5eed" * 16


def test_missing_fold_is_shown(made: Made) -> None:
    assert "Folds are missing for daam-v1" in made[1]
    assert "| daam-v1 | 5 | 1 |" in made[2]
    assert any("missing" in row for row in markdown_rows(made[2], "daam-v1"))


def test_speakers_and_recalls(made: Made) -> None:
    layout = made[0]
    scores, classes = scores_of(layout), evaluation_of(layout)["classes"]
    speakers, found = table_of(layout, "speakers"), table_of(layout, "recalls")["sga (reconstructed)"]
    for speaker, (accuracy, _) in scores.speakers("sga").items():
        heading = next(name for name in speakers["none"] if name.startswith(speaker))
        assert float(speakers["sga (reconstructed)"][heading]) == pytest.approx(100 * accuracy)
    counts = scores.confusion("sga")
    for name, right, total in zip(classes, counts.diagonal(), counts.sum(axis=1), strict=True):
        heading = next(column for column in found if column.startswith(name))
        assert float(found[heading]) == pytest.approx(100 * right / total)


def test_selection_inflation_and_leads(made: Made) -> None:
    layout = made[0]
    inflation = table_of(layout, "selection")["none"]
    assert float(inflation["Inflation (points)"]) == pytest.approx(3.0, abs=0.2)
    scores = scores_of(layout)
    lead = {
        rule: 100
        * np.mean(
            [
                row.value - scores.runs("none", rule, "clip")[run].value
                for run, row in scores.runs("daam-v1", rule, "clip").items()
            ]
        )
        for rule in ("accuracy", "accuracy_best_on_test", "accuracy_last")
    }
    found = table_of(layout, "leads")["daam-v1"]
    assert float(found["Lead, as reported [points]"]) == pytest.approx(lead["accuracy"])
    assert float(found["Lead, best on test [points]"]) == pytest.approx(lead["accuracy_best_on_test"])
    assert float(found["Lead, at the end [points]"]) == pytest.approx(lead["accuracy_last"])
    expected = lead["accuracy_best_on_test"] - lead["accuracy"]
    assert float(found["Due to selection [points]"]) == pytest.approx(expected, abs=1e-6)


def recipe_run(root: Path, name: str, recipe: str, methods: dict[str, float], **train: Any) -> tuple[Layout, Config]:
    """An evaluated run of methods with some skill each."""
    layout = make_layout(root, name)
    config = Config.model_validate({"methods": list(methods), "train": {"recipe": recipe, **train}})
    for method, skill in methods.items():
        write_method(layout, config, method, skill=skill)
    evaluate.run(layout, config)
    return layout, config


def reported(layout: Layout, config: Config) -> str:
    return (report.run(layout, config, track=False).parent / "report.md").read_text(encoding="utf-8")


def readings(layout: Layout, method: str, reading: str) -> np.ndarray:
    return np.array([row.value for row in scores_of(layout).runs(method, reading, "clip").values()])


def recipe_column(layout: Layout, method: str) -> float:
    (label,) = [name for name in table_of(layout, "selection") if name.partition(" ")[0] == method]
    return float(table_of(layout, "selection")[label]["Recipe (points)"])


def test_what_the_recipe_is_worth_by_a_run_with_the_other_one(tmp_path: Path) -> None:
    own = recipe_run(tmp_path, "toy", "searched", {"none": 3.0, "mean": 2.0, "mha": 1.5})
    other = recipe_run(tmp_path, "toy-published-recipe", "published", {"none": 1.0, "mean": 2.0}, lr=0.5)
    recipe_run(
        tmp_path, "toy-as-published", "published", {"none": 0.5}, selection="best-on-test", steps=None
    )  # comes second
    expected = {
        name: 100 * float(np.mean(readings(own[0], name, "accuracy") - readings(other[0], name, "accuracy")))
        for name in ("none", "mean")
    }
    text = reported(*own)
    assert expected["none"] > 10
    assert {name: recipe_column(own[0], name) for name in expected} == pytest.approx(expected)
    (rest,) = [row for name, row in table_of(own[0], "selection").items() if name.startswith("mha")]
    assert rest["Recipe (points)"] == ""  # not trained with the other
    assert "Recipe: toy as reported minus toy-published-recipe as reported, mean over folds, per clip." in text
    assert "not the effect of the recipe alone" not in text  # the rate belongs to it
    mean = (expected["none"] + expected["mean"]) / 2
    assert f"recipe changes accuracy by {mean:+.1f} points on average, most for none" in text
    reported(*other)
    assert recipe_column(other[0], "none") == pytest.approx(expected["none"])


def test_what_the_recipe_is_worth_by_a_twin_stands_in_both_reports(tmp_path: Path) -> None:
    own = recipe_run(tmp_path, "toy", "searched", {"none": 3.0, "mha": 1.0})
    twin = recipe_run(tmp_path, "toy-as-published", "published", {"none": 1.0}, selection="best-on-test", steps=None,
                      precision="float16", epochs=7)  # fmt: skip
    gaps = readings(own[0], "none", "accuracy") - readings(twin[0], "none", "accuracy_last")
    for layout, config in (own, twin):
        text = reported(layout, config)
        assert recipe_column(layout, "none") == pytest.approx(100 * gaps.mean())
        assert "Recipe: toy as reported minus toy-as-published at the end, mean over folds, per clip." in text
        assert (
            "This is not the effect of the recipe alone: the runs also differ in train.selection and train.precision. "
            "To see all differences: daamctl compare toy toy-as-published."
        ) in text


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        (
            "toy", "searched",
            "The effect of the training recipe is unknown: it needs the same methods trained with the published "
            "recipe. Run: daamctl run toy --recipe published, then daamctl report toy",
        ),
        ("toy", "published", "these runs use the published recipe. To train with the other, set train.recipe="),
        ("toy-as-published", "published", "is unknown: it needs the runs of 'toy'. Run: daamctl run toy"),
        ("alone-as-published", "published", ""),
    ],
)  # fmt: skip
def test_without_a_run_with_the_other_recipe_a_sentence_says_how(
    tmp_path: Path, name: str, recipe: str, words: str
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines/toy.yaml").touch()
    layout, config = recipe_run(tmp_path, name, recipe, {"none": 3.0, "mha": 1.0})
    text = reported(layout, config)
    assert "Recipe (points)" not in text
    assert ("The effect of the training recipe" in text) == bool(words)
    assert words in text


def test_runs_that_do_not_go_together_show_no_recipe(tmp_path: Path) -> None:
    own = recipe_run(tmp_path, "toy", "searched", {"none": 3.0})
    other = recipe_run(tmp_path, "toy-published-recipe", "searched", {"none": 1.0})[0]
    assert "is unknown ('toy-published-recipe' has the same recipe): it needs" in reported(*own)
    other, config = recipe_run(tmp_path, "toy-published-recipe", "published", {"none": 1.0})
    write_method(other, config, "none", changes={"meta.embeddings_key": "another"})
    evaluate.run(other, config)
    assert "('toy-published-recipe' was trained on other embeddings)" in reported(*own)


PROBE_SETTINGS = {"run.config.train": {"selection": "dev-group", "refit": True, "dev_fraction": 0.1}}
"""What a closed-form probe records of training."""


def test_what_is_said_of_training_comes_from_a_trained_method(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["ridge-last", "mean"]})
    write_method(layout, config, "ridge-last", changes=PROBE_SETTINGS)
    write_method(layout, config, "mean")
    evaluate.run(layout, config)
    text = reported(layout, config)
    assert "training ends after a fixed number of steps" in text
    assert "Effect of choosing the step" in text
    assert "it needs the same methods trained with the published recipe" in text
    assert "Settings of the folds, if different" not in text


def test_probes_alone_are_told_nothing_of_epochs_and_recipes(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["ridge-last", "ridge-mean"]})
    for method in config.methods:
        write_method(layout, config, method, changes=PROBE_SETTINGS)
    evaluate.run(layout, config)
    said = re.sub("(?m)^    .*", "", reported(layout, config))  # without the settings
    assert "the settings of a probe, such as its penalty, are the best on one held-out training group" in said
    assert not re.search("the recipe|training recipe|published recipe|choosing the", said)
    assert "Settings of the folds, if different" not in said


def test_a_reference_set_after_the_evaluation_is_not_said_to_be_set(tmp_path: Path) -> None:
    own, config = recipe_run(tmp_path, "toy", "searched", {"none": 3.0, "mha": 1.0})
    text = reported(own, config.model_copy(update={"evaluate": EvaluateConfig(reference="mha")}))
    assert "The evaluation has other settings of evaluate: reference 'none' (now 'mha')." in text
    assert "the default of evaluate.reference" in text
    assert "set by evaluate.reference" not in text


def test_published_beside_ours(made: Made) -> None:
    row = markdown_rows(made[2], "daam-v1")
    assert any(cells[1:3] == ["67.4 ± 1.49", "yes"] and cells[4].count("±") == 1 for cells in row if len(cells) == 7)
    assert ["67.9 ± 1.35", "no"] in [cells[1:3] for cells in markdown_rows(made[2], "mixture-daam")]
    assert "| none | not published |" in made[2]
    assert "not comparable" not in made[1]
    assert "| mha / mha-published | 62.3 ± 2.00 | no | per clip, best epoch on the test fold" in made[2]
    assert "attends over the clips of a batch, not over the layers (D1)" in made[1]


def test_importance_audit_and_ablation(made: Made) -> None:
    layout, html, markdown = made
    assert "1 of 2 maps mostly reflect geometry, not what was learned: daam-v1." in re.sub("<[^>]+>", "", html)
    assert "Importance Factors track nothing here." in html
    assert "daam-v1 fold 4 seed 1 has no curves" in html
    assert "daam-v2: it does not rank the layers" in html
    for text in (html, markdown):
        assert "No layers trained alone on these embeddings; train them" in text
    row = table_of(layout, "audit")["daam-v1"]
    assert float(row["Deletion (points)"]) == pytest.approx(1.23)
    assert float(row["Insertion (points)"]) == pytest.approx(-2.34)
    assert "| highest-1 | 2 | 55.0 ± 0.0 | 5 | −7.0 | 56.0 ± 0.0 |" in markdown
    assert "| 1 highest minus 1 lowest | +3.0 ± 0.0 | 5 | 5 of 5 |" in markdown
    assert "| speech-9-23: 9 minus 23 | +3.0 ± 0.0 | 5 | 5 of 5 |" in markdown
    assert "| single-layer-high-if | 9 | 64.0 ± 2.7 |" in markdown
    rows = markdown_rows(markdown, "daam-v2")
    assert ["daam-v2", "Importance Factor", "1", "2", "+1.000", "0.500", "2", "4", "−1.2", "0.031", "0.031"] in rows
    assert [row[2] for row in rows if row[1] == "Importance Factor" and len(row) == 11] == ["1", "3"]
    assert float(table_of(layout, "alone-scores")["daam-v1"]["High minus low (points)"]) == pytest.approx(3.0)
    rows = read_rows(layout.stage("importance"))
    (share,) = [100 * (row.untrained or 0.0) for row in rows if row[1:4] == ((3,), "daam-v1", "contribution")]
    assert float(table_of(layout, "contribution")["3"]["daam-v1, untrained [%]"]) == pytest.approx(share)


def test_learned_ranges_and_cost(made: Made) -> None:
    layout = made[0]
    row = table_of(layout, "learned-ranges")
    assert row["daam-v1"]["Heads"] == "2"
    assert float(row["daam-v1"]["δ lowest"]) == pytest.approx(-0.025)  # mean of -0.01, -0.02, -0.03 and -0.04
    assert float(row["daam-v1"]["δ highest"]) == pytest.approx(0.05)
    assert float(row["daam-v1"]["ξ highest"]) == pytest.approx(2.1)
    assert row["daam-v1"]["Weight at y² = 2"] == f"{np.exp(-1 / 1.9):.3f} to {np.exp(-1 / 2.1):.3f}"
    printed = row["iemocap, wavlm-large (authors’ post)"]
    assert [float(printed[name]) for name in ("δ lowest", "δ highest", "ξ lowest", "ξ highest")] == [
        -0.06, 0.1, 1.88, 2.06,
    ]  # fmt: skip
    cost = table_of(layout, "cost")["daam-v1"]
    assert (cost["Trainable parameters"], cost["In fusion"], cost["In decoder"]) == ("1234", "234", "1000")
    assert cost["Seconds per fold"] == "12.5"
    assert not any(word in name for name in cost for word in ("nergy", "memory"))  # not recorded
    assert ("Epochs" in cost, cost["Steps"]) == (False, "60")
    assert table_of(layout, "cost")["none"]["In decoder"] == ""


def test_energy_stands_beside_the_times_where_it_is_recorded(tmp_path: Path) -> None:
    settings = {**SETTINGS, "methods": ["none"], "report": {"interactive": False}}
    layout, config = make_layout(tmp_path), Config.model_validate(settings)
    write_method(layout, config, "none", epochs=1)
    for number, path in enumerate(sorted(layout.method("none").glob("fold*/result.json"))):
        result = json.loads(path.read_text())
        result["meta"]["joules"] = 100.0 + 2 * (number % 2)
        write_record(path, result)
    write_json(timing_file(layout.embeddings), {"clips": 8, "seconds": 4.0, "joules": 20.0})
    evaluate.run(layout, config)
    text = report.run(layout, config, track=False).read_text()
    assert float(table_of(layout, "cost")["none"]["Energy per fold (J)"]) == pytest.approx(101.0, abs=0.5)
    assert table_of(layout, "runs")["none"]["Energy (J)"] in ("100", "100.0", "102", "102.0")
    assert "Extraction took 0.5 s and 2.5 J per clip." in text


def test_markdown_links_lead_to_pictures(made: Made) -> None:
    layout, _, text = made
    links = re.findall(r"\]\((pictures/[^)]+)\)", text)
    assert len(links) == len(set(links))
    assert {layout.stage("report") / link for link in links} == set(layout.stage("report").glob("pictures/*.png"))
    vectors = {path.stem for path in layout.stage("report").glob("pictures/*.pdf")}
    assert vectors == set(FIGURES)


def test_markdown_tables_are_regular(made: Made) -> None:
    lines = made[2].splitlines()
    heads = [index for index, line in enumerate(lines) if line.startswith("| :---")]
    assert len(heads) > 20
    for index in heads:
        assert lines[index].count("|") == lines[index - 1].count("|") == lines[index + 1].count("|")


def test_every_table_is_written(made: Made) -> None:
    layout, html, _ = made
    folder = layout.stage("report") / "tables"
    keys = set(re.findall(r'<table id="table-([^"]+)">', html))
    assert {path.stem for path in folder.glob("*.csv")} == {path.stem for path in folder.glob("*.tex")} == keys
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8") as stream:
            head, *rows = csv.reader(stream)
        assert len(set(head)) == len(head), path.name
        assert rows
        assert {len(row) for row in rows} == {len(head)}


def test_static_page_of_another_corpus_after_new_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**SETTINGS, "methods": ["none"], "report": {"published": "T2-iemocap", "interactive": False}}
    layout, config = make_layout(tmp_path), Config.model_validate(settings)
    write_method(layout, config, "none", epochs=1)
    evaluate.run(layout, config)
    path = layout.stage("evaluate") / "evaluation.json"
    changed = evaluation_of(layout)
    changed["provenance"]["config"]["download"]["corpus"] = "demo"
    changed["methods"]["none"]["runs"][0]["train_s"] += 1
    write_record(path, changed)
    folder = layout.stage("report")
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "of-another-day.csv").write_text("x\n")
    text = report.run(layout, config.model_copy(update={"methods": ("none", "mha")}), track=False).read_text()
    page = Page(text)
    assert len(page.scripts) == 1
    assert len(page.figures) == 5 <= len(page.images)
    assert "plotly.js v" not in text
    assert "Our corpus is demo, but the published one is iemocap. The results are not comparable." in text
    assert "These methods were trained again after scoring: none. To update, run: daamctl evaluate toy" in text
    assert "These methods are in the settings but not scored: mha" in text
    for line in ("trained again after scoring: none. To update, run: daamctl evaluate toy",
                 "but not scored: mha. To score them, run: daamctl run toy"):  # fmt: skip
        assert line in caplog.text  # console too
    assert {path.suffix for path in (folder / "tables").iterdir()} == {".csv", ".tex"}
    assert not (folder / "tables" / "of-another-day.csv").exists()


def test_provenance_says_how_to_repeat_it(made: Made) -> None:
    text = made[1]
    for part in ("git checkout 65d9b1d", "daamctl download iemocap --from DIR", "dvc repro report@toy",
                 "published: T2-iemocap", "00112233aabbccdd"):  # fmt: skip
        assert part in text, part
    assert str(made[0].root) not in text


def test_bare_minimum(tmp_path: Path) -> None:
    """One method, no importance, no ablation, no published table: the page says how to make the rest."""
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none"], "report": {"title": "<b>&"}})
    write_method(layout, config, "none", folds=(1,), epochs=1)
    evaluate.run(layout, config)
    text = report.run(layout, config, track=False).read_text()
    page = Page(text)
    assert "<h1>&lt;b&gt;&amp;</h1>" in text
    assert "Not computed yet. Run: <code>daamctl importance toy</code>" in text
    assert "Not computed yet. Run: <code>daamctl ablate toy</code>" in text
    assert "No other method was run" in text
    assert "published" not in page.sections
    assert page.figures == ["answers", "accuracy", "speakers", "learning", "confusion"]
    assert (layout.stage("report") / "report.md").read_text().startswith("# &lt;b&gt;&amp;\n")


def test_the_shortest_encoder_is_an_answer(tmp_path: Path) -> None:
    """The page shows a truncation of the same embeddings; one of others is named as stale."""
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none"]})
    write_method(layout, config, "none", folds=(1,), epochs=1)
    evaluate.run(layout, config)
    for key, closed in ((EMBEDDINGS_KEY, False), ("other", True)):
        write_layer_sets(layout.stage("truncate") / TRUNCATION, truncation(embeddings_key=key), ())
        page = report.run(layout, config, track=False)
        text = (page.parent / "report.md").read_text()
        answers, part = (text.partition(f"## {title}")[2].partition("\n## ")[0] for title in ("Answers", TITLE))
        assert ("Layers 1–2 are enough" in answers) is not closed
        assert ("on other embeddings. Run again: daamctl truncate toy" in part) is closed
        assert ('data-figure="truncation"' in page.read_text()) is not closed


def test_what_was_found_on_few_layers_with_other_settings_is_out_of_date(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    methods = ["none", "ridge-concat"]
    config, few = (
        Config.model_validate({"methods": methods, "train": {"epochs": 6, **train}}) for train in ({}, {"shots": 4})
    )
    layout = make_layout(tmp_path)

    def settings_of(method: str, config: Config) -> dict[str, Any]:
        # a closed-form probe does not record that `shots` is null
        train = probe_settings(config) if method == "ridge-concat" else config.section("train")
        return {"run.config.train": train, "run.config.method": {"name": method}}

    for method in methods:
        write_method(layout, config, method, folds=(1,), changes=settings_of(method, config))
    evaluate.run(layout, config)
    done = (("ablate", ablation(), ABLATION), ("truncate", truncation(), TRUNCATION))
    for made, stale in ((config, False), (few, True)):
        for stage, found, file in done:
            place, name, method = layout.stage(stage), f"{found.rows[0].set}-{found.method}", str(found.method)
            changes = {"run.method": method, "run.layers": [1], **settings_of(method, made)}
            write_method(layout, made, name, folds=(1,), changes=changes)
            shutil.rmtree(place / name, ignore_errors=True)
            place.mkdir(parents=True, exist_ok=True)
            layout.method(name).rename(place / name)
            write_layer_sets(place / file, replace(found, embeddings_key=EMBEDDINGS_KEY), read_folds(place / name))
        caplog.clear()
        text = (report.run(layout, config, track=False).parent / "report.md").read_text()
        answers, part = (text.partition(f"## {title}")[2].partition("\n## ")[0] for title in ("Answers", TITLE))
        assert ("Layers 1–2 are enough" in answers) is not stale
        how = "with other settings: train.shots: 4 (now null)"
        assert (f"It was found {how}. Run again: daamctl truncate toy" in part) is stale
        for what, stage in (
            ("The shortest encoder was found", "truncate"),
            ("Training on few layers was done", "ablate"),
        ):
            line = f"{what} {how}. To update, run: daamctl {stage} toy"
            assert (line in caplog.text, line in answers) == (stale, stale)


def test_layer_scores_of_another_unit_and_an_ablation_of_another_ranking_are_out_of_date(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["none", "daam-v1"], "ablate": {"k": [1], "method": "none"}})
    for method in config.methods:
        write_method(layout, config, method, folds=(1,))
    evaluate.run(layout, config)
    ranking = [fold.result["run"]["key"] for fold in read_folds(layout.method("daam-v1"))]
    made = replace(ablation(), embeddings_key=EMBEDDINGS_KEY, settings=config.section("ablate"), folds=ranking)
    again = "To update, run: daamctl"
    for unit, found, said in (
        ("utterance", made, []),
        ("clip", made, [f"Layer scores are per clip (now per utterance). {again} importance toy"]),
        ("utterance", replace(made, folds=["earlier"]),
         [f"other settings: layers ranked by an earlier training of 'daam-v1'. {again} ablate toy"]),
        ("utterance", replace(made, settings={**made.settings, "k": [2], "method": None}),
         [f"other settings: ablate.method: null (now 'none'), ablate.k: [2] (now [1]). {again} ablate toy"]),
    ):  # fmt: skip
        write_importance(layout.stage("importance"), importance_of({}, probed={"unit": unit, "resampled": "speaker"}))
        write_layer_sets(layout.stage("ablate") / ABLATION, found, ())
        text = (report.run(layout, config, track=False).parent / "report.md").read_text().replace("\\", "")
        answers = text.partition("## Answers")[2].partition("\n## ")[0]
        assert all(line in answers for line in said)
        assert answers.count(again) == len(said)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Speakers come from files that users bring; they must not become markup, script or LaTeX."""
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none", "mha"]})
    for method in ("none", "mha"):
        write_method(layout, config, method, epochs=1)
    evaluate.run(layout, config)
    folder, name = layout.stage("evaluate"), "</script><img src=http://x onerror=alert(1)>_%&"
    frame, head = read_frame(folder / "speakers.parquet")
    write_frame(folder / "speakers.parquet", frame.with_columns(pl.col("speaker").replace("Ses01F", name)), head)
    write_record(
        folder / "evaluation.json", {**evaluation_of(layout), "files": hashes_of(folder, folder.glob("*.parquet"))}
    )
    folder = report.run(layout, config, track=False).parent
    assert len(Page((folder / "report.html").read_text()).figures) == 5
    assert r"\textless{}/script\textgreater{}" in (folder / "tables/speakers.tex").read_text()
    assert "<img src" not in (folder / "report.md").read_text()


def test_without_dev_group_and_densities(tmp_path: Path) -> None:
    config = Config.model_validate({"methods": ["none"], "train": {"selection": "best-on-test", "steps": None}})
    layout = make_layout(tmp_path)
    write_method(layout, config, "none")
    evaluate.run(layout, config)
    importance.run(layout, config)
    text = report.run(layout, config, track=False).read_text()
    assert "so results are optimistic" in text
    assert "No method has a" in text
    assert "held-out training group" not in text


def test_no_evaluation_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no file .*evaluation\.json") as error:
        report.run(make_layout(tmp_path), CONFIG, track=False)
    assert repair_of(error.value.path, make_layout(tmp_path)) == "make it: daamctl run toy"


@pytest.mark.parametrize("name", ["daam-v1-heatmap.png", "daam-v2-band.png", "importance.parquet"])
def test_lost_file_of_the_importance_stage_names_the_command(made: Made, name: str) -> None:
    path = made[0].stage("importance") / name
    data = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(ArtifactError, match=rf"no (picture|file) .*{name}") as error:
            report.run(made[0], CONFIG, track=False)
        assert repair_of(error.value.path, made[0]) == "make it: daamctl importance toy"
    finally:
        path.write_bytes(data)


def test_unknown_published_table(made: Made) -> None:
    config = Config.model_validate({**SETTINGS, "report": {"published": "T2-iemocop"}})
    with pytest.raises(UnknownNameError, match="did you mean 'T2-iemocap'"):
        report.run(made[0], config, track=False)


class Recorder:
    """A tracker that keeps what it is given."""

    root = None  # no store

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []
        self.closed = False

    def report(self, *words: Any) -> None:
        self.reports.append(words)

    def close(self) -> None:
        self.closed = True


def test_the_encoder_is_named_below_the_heading(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["none"], "report": {"interactive": False}})
    write_method(layout, config, "none", epochs=1)
    evaluate.run(layout, config)
    path = layout.stage("evaluate") / "evaluation.json"
    data = read_json(path)
    data["provenance"]["encoder"] |= {"name": "/home/me/models/mine", "source": "mine (random weights, seed 0)"}
    write_record(path, data)
    lead = re.compile(r"<h1>[^\n]*</h1>\n<p>(.*?)</p>")
    found = lead.search(report.run(layout, config, track=False).read_text(encoding="utf-8"))
    assert found is not None
    assert found[1] == "Corpus demo, frozen encoder mine with random weights."
    named = config.model_copy(update={"extract": config.extract.model_copy(update={"name": "Ours & <theirs>"})})
    found = lead.search(report.run(layout, named, track=False).read_text(encoding="utf-8"))
    assert found is not None
    assert found[1] == "Corpus demo, frozen encoder Ours &amp; &lt;theirs&gt; with random weights."
    markdown = (layout.stage("report") / "report.md").read_text(encoding="utf-8").splitlines()
    assert markdown[2] == "Corpus demo, frozen encoder Ours &amp; &lt;theirs&gt; with random weights."


def test_headline_metrics_are_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none", "mha"]})
    for method, skill in (("none", 1.0), ("mha", 2.5)):
        write_method(layout, config, method, skill=skill, epochs=1)
    evaluate.run(layout, config)
    tracker, asked = Recorder(), []
    monkeypatch.setattr(report, "make_tracker", lambda root, **options: asked.append(options) or tracker)
    report.run(layout, config)
    assert asked == [{"enabled": True, "again": "daamctl report toy"}]
    assert tracker.closed
    ((name, folder, metrics, tags),) = tracker.reports
    scores = scores_of(layout)
    assert (name, folder) == ("toy", layout.stage("report"))
    assert metrics["best_accuracy"] == pytest.approx(scores.figure("mha").mean)
    assert metrics["best_log_loss"] == pytest.approx(scores.figure("mha", "log_loss").mean)
    assert metrics["difference_to_reference"] > 0
    assert metrics["missing_folds"] == 0
    assert tags["best_method"] == "mha"
    assert tags["encoder"] == "wavlm-micro"


def test_closed_form_probes_are_sent_to_mlflow_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage `train` leaves them out: opening MLflow takes longer than they do."""
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none", "ridge-mean"]})
    for method in config.methods:
        write_method(layout, config, method, epochs=1)
    evaluate.run(layout, config)
    sent: list[Fold] = []
    monkeypatch.setattr(report, "make_tracker", lambda root, **options: Recorder())
    monkeypatch.setattr(report, "send_missing", lambda tracker, folds: sent.extend(folds))
    report.run(layout, config)
    assert {fold.result["run"]["method"] for fold in sent} == {"ridge-mean"}
    assert len(sent) == len(read_folds(layout.method("ridge-mean")))


def made_of_items(root: Path, settings: dict[str, Any], methods: dict[str, dict[str, Any]], **items: Any) -> Made:
    """Report on an official split of texts or images."""
    layout, config = make_layout(root), Config.model_validate({"importance": {"dpi": 40}, **settings})
    for method, options in methods.items():
        write_items(layout, config, method, seeds=config.train.seeds, **items, **options)
    evaluate.run(layout, config)
    importance.run(layout, config)
    path = report.run(layout, config, track=False)
    return layout, path.read_text(encoding="utf-8"), (path.parent / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Made:
    settings = {
        "methods": ["none", "daam-v1", "mha"], "finetunes": ["lora-r8", "lora-r8-published", "linear-probe"],
        "download": {"corpus": "agnews"}, "extract": {"encoder": "llama2-13b"}, "train": {"seeds": [1, 2, 3]},
        "report": {"published": "T2-agnews"},
    }  # fmt: skip
    methods: dict[str, dict[str, Any]] = {
        "none": {"skill": 1.0},
        "daam-v1": {"density_shape": (6, 8)},
        "mha": {
            "skill": 1.2,
            "changes": {"run.eval_batches": {"size": 8, "order": "clip table", "clips_sha256": "5e"}},
        },
        "lora-r8": {"skill": 3.0, "changes": tuned(96, 90, notes=["the published rank"])},
        "lora-r8-published": {"skill": 0.7, "changes": tuned(96, 0)},
        "linear-probe": {"skill": 0.8, "changes": tuned(0, 0)},
    }
    with blank_pictures():
        return made_of_items(tmp_path_factory.mktemp("texts"), settings, methods)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Made:
    settings = {"methods": ["none", "mha"], "train": {"seeds": [1, 2], "selection": "best-on-test", "steps": None},
                "evaluate": {"unit": "clip"}, "report": {"interactive": False}}  # fmt: skip
    methods = {"none": {"skill": 2.5}, "mha": {"skill": 3.0}}
    with blank_pictures():
        return made_of_items(
            tmp_path_factory.mktemp("images"), settings, methods, modality="image", num_classes=100, items=400
        )


def test_words_of_speech_stand_in_reports_on_speech_only(made: Made, texts: Made, images: Made) -> None:
    """Settings keep their names."""
    ours = re.compile(r"\b(?:clip|utterance|speaker|recording|session)s?\b", re.IGNORECASE)
    for _, _, markdown in (texts, images):
        prose = re.sub(r"^    .*$", "", markdown, flags=re.MULTILINE)
        assert ours.findall(prose) == []
    assert len(set(map(str.lower, ours.findall(made[2])))) >= 6
    assert "in their batch (D1)" in texts[2]


def test_an_official_split_of_texts(texts: Made) -> None:
    layout, html, markdown = texts
    page = Page(html)
    assert page.sections == [name for name in SECTIONS if name not in ("speakers", "learned", "missing")]
    assert "Who wrote the texts is not known, so there are no results by author." in markdown
    assert "in the official split (2,160 texts for training, 240 held out for choosing), with 3 seeds" in markdown
    assert "the best on held-out training texts (10 % of train), never on the test part" in markdown
    assert "sign-flip test over 240 texts" in markdown
    assert "Secondary test: none, because there is only one fold." in markdown
    assert "Tier: methods that may be the best of those that the tiers above leave" in markdown
    seeds = table_of(layout, "folds")["daam-v1"]
    figures = [row.value for row in scores_of(layout).runs("daam-v1").values()]
    assert [float(seeds[f"Seed {seed} [%]"]) for seed in (1, 2, 3)] == pytest.approx([100 * one for one in figures])
    tests = table_of(layout, "tests-accuracy")["lora-r8 (fine-tuned)"]
    assert tests["Higher accuracy in seeds"] == "3 of 3"
    assert not any("Secondary" in name for name in tests)
    assert not (layout.stage("report") / "tables" / "units.csv").exists()
    assert "daamctl download agnews    # or with --from DIR, if you have a copy" in html


def test_printed_repeats_stand_beside_seeds(texts: Made, made: Made) -> None:
    layout, _, markdown = texts
    assert "the columns are repeats of one split, not folds" in markdown
    assert "A published repeat corresponds to one of our seeds" in markdown
    assert "not comparable" not in markdown
    row = table_of(layout, "published")["daam-v1"]
    best = readings(layout, "daam-v1", "accuracy_best_on_test")
    assert float(row["Ours, same protocol [%]"]) == pytest.approx(100 * np.mean(best))
    assert float(row["Ours, same protocol, sample std [%]"]) == pytest.approx(100 * np.std(best, ddof=1))
    assert float(row["Ours minus published (points)"]) == pytest.approx(100 * np.mean(best) - (94.5 + 94.5 + 94.7) / 3)
    assert row["Fits its repeats?"] == "yes"
    assert "The printed repeats in percent, and the mean and deviation computed from them" in markdown
    assert "A published repeat" not in made[2]
    assert "Fits its folds?" in made[2]


def test_repeats_beside_folds_are_not_comparable(tmp_path: Path) -> None:
    config = Config.model_validate({"methods": ["none"], "report": {"published": "T2-agnews", "interactive": False}})
    layout = make_layout(tmp_path)
    write_method(layout, config, "none", epochs=1)
    evaluate.run(layout, config)
    text = report.run(layout, config, track=False).read_text()
    assert "The published columns are repeats of one official split, but our runs are folds" in text


def test_fine_tuned_encoders_stand_among_the_methods(texts: Made) -> None:
    layout, html, markdown = texts
    assert "The encoder, or adapters in it, is also trained in lora-r8 (fine-tuned)." in markdown
    said = "the adapters have no effect (0 of 96 tensors receive a gradient), so the encoder is not changed (D2)."
    assert f"> **Note:** lora-r8-published (no effect): {said}" in markdown
    assert "lora-r8 (fine-tuned): 90 of 96 tensors receive a gradient; the others have no effect." in markdown
    effects = table_of(layout, "effects")
    assert list(effects) == ["lora-r8 (fine-tuned)", "linear-probe", "lora-r8-published (no effect)"]
    assert [row["Do they have an effect?"] for row in effects.values()] == [
        "6 do not", "none are trained", "no: the adapters have no effect",
    ]  # fmt: skip
    assert "lora-r8: the published rank" in html
    cost = table_of(layout, "cost")
    assert cost["lora-r8 (fine-tuned)"]["Trainable parameters"] == "98000"
    row = table_of(layout, "published")
    assert {"lora-r8 / lora-r8 (fine-tuned)", "lora-r8 / lora-r8-published (no effect)"} <= set(row)
    summary = json.loads((layout.stage("importance") / "summary.json").read_text())
    assert "lora-r8" not in summary["scores"] | summary["without_score"]


def test_a_hundred_classes_stay_readable(images: Made) -> None:
    layout, html, markdown = images
    assert "400 test images of 100 classes (class 00, class 01, class 02, …, class 99)" in markdown
    assert "the best on the test part itself, as published, so results are optimistic" in markdown
    recalls = table_of(layout, "recalls")
    assert len(recalls) == 100
    matrix = scores_of(layout).confusion("mha")
    assert float(recalls["class 07"]["mha [%]"]) == pytest.approx(100 * matrix[7, 7] / matrix[7].sum())
    assert re.search(r"<details>\s*<summary>Recall of every class per image in percent</summary>", html)
    assert "Of 100 classes, mha recalls class" in markdown
    with (layout.stage("report") / "tables" / "confusion.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["Method"] for row in rows] == ["mha"] * 10 + ["none"] * 10
    matrix = matrix.copy()
    np.fill_diagonal(matrix, 0)
    assert int(rows[0]["Count"]) == matrix.max()
    assert html.count("<td") < 3000
    alts = [image["alt"] or "" for image in Page(html).images]
    assert all(len(alt) < 1000 for alt in alts)


def test_many_authors_are_summed_up(tmp_path: Path) -> None:
    settings = {"methods": ["none", "mha"], "report": {"interactive": False}}
    methods = {"none": {"skill": 1.0}, "mha": {"skill": 2.0}}
    layout, html, markdown = made_of_items(tmp_path, settings, methods, authors=210, items=420)
    assert "Accuracy per text in percent: quantiles over 210 authors" in markdown
    row = table_of(layout, "speakers")["mha"]
    assert (float(row["Lowest [%]"]), float(row["Highest [%]"])) == (0.0, 100.0)
    assert 'data-figure="speakers"' not in html
    assert 'id="speakers-title">Results by author<' in html


def test_authors_of_a_single_text_have_no_results_of_their_own(tmp_path: Path) -> None:
    settings = {"methods": ["none", "mha"], "report": {"interactive": False}}
    methods = {"none": {"skill": 1.0}, "mha": {"skill": 2.0}}
    layout, html, markdown = made_of_items(tmp_path, settings, methods, authors=210, items=210)
    assert "Results by author" not in markdown + html
    assert "quantiles over" not in markdown
    assert scores_of(layout).speakers("mha")


def test_an_evaluation_of_an_older_version_names_the_command(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    write_record(layout.stage("evaluate") / "evaluation.json", {"methods": {}})
    with pytest.raises(ArtifactError, match="was made by another version") as error:
        report.run(layout, CONFIG, track=False)
    assert repair_of(error.value.path, layout) == "make it again: daamctl evaluate toy"


def search(rates: list[float], chosen: int, edges: list[str]) -> dict[str, Any]:
    """A search over learning rates, with three records of each candidate."""
    candidates = [
        {"settings": {"lr": rate}, "dev_accuracy": [0.3 + 0.1 * place] * 3, "dev_loss": [1.0] * 3}
        for place, rate in enumerate(rates)
    ]  # fmt: skip
    return {"steps": 300, "candidates": candidates, "chosen": chosen, "edges": edges}


@pytest.fixture(scope="module")
def unfair(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Searched methods beside a probe: `mean` and the reference below it, `mha` at an edge, `gqa` and `sga` equal."""
    methods = ["none", "mean", "mha", "gqa", "sga", "daam-v2", "ridge-mean", "ridge-concat"]
    config = Config.model_validate({"methods": methods})
    layout = make_layout(tmp_path_factory.mktemp("unfair"))
    inside, edge = search([1e-4, 1e-3, 1e-2], 1, []), search([1e-4, 1e-3, 1e-2], 2, ["lr"])
    write_method(layout, config, "none", skill=1.8, changes={"search": inside, "metrics.train_accuracy": 1.0})
    write_method(layout, config, "mean", skill=0.8, changes={"search": inside})
    write_method(layout, config, "mha", skill=4.0, changes={"search": edge})
    write_method(layout, config, "gqa", skill=2.6, changes={"search": inside})
    for fold in read_folds(layout.method("gqa")):
        changes = {"run.reconstructed": "reading A", "meta.precision": "bfloat16"}
        write_fold(layout, config, "sga", fold.fold, 1, fold.predictions(), changes=changes)
    write_method(layout, config, "daam-v2", skill=0.0, changes={"search": inside})
    penalty = {"settings": {"penalty": 10.0}, "dev_accuracy": [0.7], "dev_loss": [0.5]}
    solved = {"steps": 0, "candidates": [penalty], "chosen": 0, "edges": []}
    for probe in ("ridge-mean", "ridge-concat"):
        write_method(layout, config, probe, skill=2.5, changes={"search": solved})
    evaluate.run(layout, config)
    with blank_pictures():
        path = report.run(layout, config, track=False)
    return layout, path.read_text(encoding="utf-8"), (path.parent / "report.md").read_text(encoding="utf-8")


def test_an_unfair_comparison_is_called_that_first(unfair: Made) -> None:
    _, html, markdown = unfair
    first = markdown.split("## Best method and its lead")[1].strip().splitlines()[0]
    said = "This comparison is not fair: mean is undertrained, none is overfitted and daam-v2 learned nothing. none: "
    assert said in first
    assert re.search(r"points below ridge-concat, \S+ points above it on the training parts", first)
    assert "; mean: 35.0 points below ridge-mean, " in first
    assert "mha" not in first.partition("daam-v2 learned nothing.")[2]  # it reaches its probe, at an edge or not
    assert "training may explain it" in html
    assert "Whatever the p-value, training alone may explain this lead because of none (overfitted)" in html
    assert "significant at level" not in html.partition("plotly.js v")[0]
    assert "The predictions of gqa and sga (reconstructed) are identical in every fold" in html
    assert "Trained in bfloat16 and float32, because folds come from several runs" in html
    assert Page(html).figures == ["answers", "gaps", "search", "accuracy", "speakers", "learning", "confusion"]


def test_marks_stand_in_every_table(unfair: Made) -> None:
    layout = unfair[0]
    labels = {entry["label"] for entry in evaluation_of(layout)["methods"].values()}
    assert labels == {
        "none (overfitted)", "mean (undertrained)", "mha", "gqa", "sga (reconstructed)", "daam-v2 (learned nothing)",
        "ridge-mean", "ridge-concat",
    }  # fmt: skip
    tiers = labelled(read_evaluation(layout.stage("evaluate"))).scores.tiers("accuracy")
    assert {name: int(row["Tier"]) for name, row in table_of(layout, "results").items()} == tiers
    for key in ("results", "fairness", "folds", "speakers", "selection", "cost"):
        assert set(table_of(layout, key)) == labels, key
    assert set(table_of(layout, "learning")) == {name for name in labels if not name.startswith("ridge-")}
    assert set(table_of(layout, "metrics")) > labels  # and what needs no model
    for key in ("recalls", "leads", "confusion", "tests-accuracy"):
        assert set(table_of(layout, key)) <= labels, key
    assert evaluation_of(layout)["comparison"]["reference"] == "none"


def test_the_section_on_fairness_has_what_was_found(unfair: Made) -> None:
    layout, html, _ = unfair
    found, table = evaluation_of(layout)["fairness"], table_of(layout, "fairness")
    row = table["mean (undertrained)"]
    assert float(row["Gap to probe (points)"]) == pytest.approx(100 * found["methods"]["mean"]["gap"])
    spread = np.std(list(found["methods"]["mean"]["gaps"].values()), ddof=1)
    assert float(row["Gap to probe (points), sample std"]) == pytest.approx(100 * spread)
    assert row["Closed-form probe"] == "ridge-mean"
    assert row["Chosen (runs)"] == "lr 0.001 (5)"
    assert row["At edge of search"] == "none"
    assert row["Verdict"].startswith("undertrained: ")
    assert float(row["On training parts (points)"]) == pytest.approx(100 * found["methods"]["mean"]["train_gap"])
    assert float(row["On held-out groups (points)"]) == 0
    assert table["mha"]["At edge of search"] == "lr in 5 of 5"
    assert table["mha"]["Verdict"] == "fair"
    assert table["none (overfitted)"]["Closed-form probe"] == "ridge-concat"
    assert table["ridge-mean"]["Verdict"] == "closed form"
    assert table["sga (reconstructed)"]["Chosen (runs)"] == "not searched"
    data = re.search(r'id="figure-search".*?<script type="application/json">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    drawn = {view["chosen"][0]: view["panels"][0]["marks"] for view in json.loads(data.group(1))["views"]}
    assert set(drawn) == {"none (overfitted)", "mean (undertrained)", "mha", "gqa", "daam-v2 (learned nothing)"}
    assert [(line["name"], line["legend"], line["y"]) for line in drawn["mha"]] == [
        ("lr 0.0001", "Not chosen", [30.0] * 3), ("lr 0.001", "Not chosen", [40.0] * 3),
        ("lr 0.01 (chosen in 5 of 5)", "Chosen most often", [50.0] * 3),
    ]  # fmt: skip


def test_an_unchecked_comparison_says_how_to_check(made: Made) -> None:
    assert "The fairness of this comparison was not checked. To check it, add ridge-" in made[1]
    assert {row["Verdict"].partition(":")[0] for row in table_of(made[0], "fairness").values()} == {"not checked"}
