"""`daamctl show`: the results of an evaluation in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import daamctl
from daamctl.artifacts.scores import TABLES
from daamctl.cli.app import app
from daamctl.cli.show import TABLE_NAMES
from daamctl.cli.terminal import print_table, print_wide
from daamctl.config import Config
from daamctl.reporting.answers import fusing
from daamctl.reporting.verdict import labelled
from daamctl.stages import evaluate
from tests.fixtures.compared import fused
from tests.fixtures.folds import make_layout, write_method
from tests.fixtures.records import parsed, write_evaluation

VALUES = {"ridge-best-layer": 0.5, "daam-v1": 0.6, "mha": 0.45, "ridge-mean": 0.55}


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["show", *words])


def write(project: Path, **options: Any) -> dict[str, Any]:
    data = fused(VALUES, status={"mha": "undertrained"}, **options)
    data["run"] = "demo"
    write_evaluation(project / "data/evaluate/demo", data)
    return data


@pytest.fixture
def shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return project


def test_every_method_with_its_verdict(shown: Path) -> None:
    data = write(shown)
    result = call("demo")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "demo"
    assert lines[1].split("  ")[0] == "method"
    assert "  minus ridge-best-layer [95 %]  p" in lines[1]
    rows = {line.split()[0]: " ".join(line.split()) for line in lines[2:6]}
    assert list(rows) == ["daam-v1", "ridge-mean", "ridge-best-layer", "mha"]  # best first
    assert rows["daam-v1"] == "daam-v1 60.0 [55.0, 65.0] +10.0 [+8.0, +11.0] 0.010 better"
    assert rows["ridge-best-layer"] == "ridge-best-layer 50.0 [45.0, 55.0] reference"
    told = "mha (undertrained) 45.0 [40.0, 50.0] −5.0 [−7.0, −4.0] 0.010 worse; training may explain it"
    assert rows["mha"] == told
    assert "training may explain" not in rows["daam-v1"]
    assert lines[6] == (
        "Accuracies are per utterance and means over folds; intervals and differences are over all utterances. "
        "Differences are in points. p is corrected for the number of comparisons (Holm), intervals are not."
    )
    assert "This comparison is not fair: training alone may explain the results of mha." in lines[7]
    assert lines[-1] == fusing(labelled(parsed(data)))  # as the report says it


def test_methods_that_may_be_the_best_share_a_tier(shown: Path) -> None:
    data = fused(VALUES)
    pairs = data["tables"]["comparisons"]
    rows = [
        pairs[0] | {"family": "all pairs", "first": one, "second": two, "first_value": VALUES[one],
                    "second_value": VALUES[two], "p": 0.01 if {one, two} == {"daam-v1", "mha"} else 0.2}
        for one, two in combinations(VALUES, 2)
    ]  # fmt: skip
    write_evaluation(shown / "data/evaluate/demo", data | {"run": "demo", "tables": {"comparisons": [*pairs, *rows]}})
    lines = [line for line in call("demo").stdout.splitlines() if line.startswith("Tiers")]
    told = "1. daam-v1, ridge-mean and ridge-best-layer; 2. mha."
    assert lines == [f"Tiers, in each the methods that may be the best of those left: {told}"]
    assert "Tiers" not in call("demo/mha").stdout


@pytest.mark.parametrize(("p", "verdict"), [(0.4, "0.400  no difference shown"), (None, "  not tested")])
def test_without_a_significant_difference(shown: Path, p: float | None, verdict: str) -> None:
    write(shown, p_holm=p)
    (row,) = (line for line in call("demo").stdout.splitlines() if line.startswith("ridge-mean"))
    assert row.rstrip().endswith(verdict)


def test_one_method_beside_the_reference(shown: Path) -> None:
    write(shown)
    first = [line.split(" ")[0] for line in call("demo/daam-v1").stdout.splitlines()]
    assert first[2:4] == ["daam-v1", "ridge-best-layer"]
    assert "mha" not in first


def test_means_over_folds_of_other_sizes_are_explained(shown: Path) -> None:
    (shown / "pipelines" / "toy.yaml").write_text("# Toy.\nmethods: [none]\n")
    layout, config = make_layout(shown), Config.model_validate({"methods": ["none"]})
    write_method(layout, config, "none", skill=9.0, folds=(1, 2), utterances=6)
    write_method(layout, config, "none", skill=0.5, folds=(3, 4, 5), utterances=200)
    evaluate.run(layout, config)
    note = (
        "Some figures lie outside their intervals: figures are means over folds, intervals and tests count every "
        "utterance once, and the folds differ in size."
    )
    assert note in call("toy").stdout.splitlines()
    write(shown)
    assert note not in call("demo").stdout.splitlines()


@pytest.mark.parametrize("run", ["toy", "toy/none"])
def test_an_evaluation_of_an_earlier_training_is_named(shown: Path, run: str) -> None:
    (shown / "pipelines" / "toy.yaml").write_text("# Toy.\nmethods: [none]\n")
    layout, config = make_layout(shown), Config.model_validate({"methods": ["none"]})
    write_method(layout, config, "none", epochs=1)
    evaluate.run(layout, config)
    stale = "These methods were trained again after scoring: none. To update, run: daamctl evaluate toy"
    assert stale not in call(run).stdout
    write_method(layout, config, "none", epochs=1, num_parameters=77)
    assert stale in call(run).stdout.splitlines()


def test_results_are_shown_beside_embeddings_that_are_damaged(shown: Path) -> None:
    (shown / "pipelines" / "toy.yaml").write_text("# Toy.\nmethods: [none]\n")
    layout, config = make_layout(shown), Config.model_validate({"methods": ["none"]})
    write_method(layout, config, "none", epochs=1)
    evaluate.run(layout, config)
    layout.embeddings.mkdir(parents=True)
    (layout.embeddings / "embeddings.json").write_text("damaged")
    result = call("toy")
    assert result.exit_code == 0, result.output
    assert "make it again: daamctl extract toy" in result.stdout


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("demo", "make it: daamctl run demo"),
        ("demoo", "demo"),
        ("demo/sga", "unknown evaluated method 'sga'"),
    ],
)
def test_what_is_refused(shown: Path, run: str, message: str) -> None:
    if "/" in run:
        write(shown)
    result = call(run)
    assert (result.exit_code, result.stdout) == (3, "")
    assert message in result.stderr


def test_torch_is_not_imported(shown: Path) -> None:
    write(shown)
    code = (
        "import sys; from daamctl.cli import show; from pathlib import Path\n"
        "from daamctl.artifacts.layout import Layout\n"
        "show.show_results(Layout(Path('.'), 'demo', 'demo', 'demo')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=shown, capture_output=True)


@pytest.fixture
def scored(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo, evaluated with two methods."""
    monkeypatch.chdir(project)
    config = Config.model_validate({"methods": ["none", "mha"]})
    layout = make_layout(project, "demo")
    for name in config.methods:
        write_method(layout, config, name)
    evaluate.run(layout, config)
    return project


@pytest.mark.usefixtures("scored")
def test_tables_as_text_csv_and_json() -> None:
    text = call("demo", "figures").stdout
    assert text.split()[:4] == ["method", "unit", "metric", "mean"]
    assert call("-p", "demo", "figures").stdout == text
    rows = json.loads(call("demo", "figures", "--json").stdout)
    assert {row["method"] for row in rows} == {"none", "mha"}
    csv = call("demo", "figures", "--csv").stdout.splitlines()
    assert (csv[0].split(",")[:3], len(csv)) == (["method", "unit", "metric"], 1 + len(rows))
    assert {row["method"] for row in json.loads(call("demo/mha", "scores", "--json").stdout)} == {"mha"}
    families = [row["family"] for row in json.loads(call("demo/mha", "comparisons", "--json").stdout)]
    assert sorted(families) == ["all pairs", "all pairs", "reference", "reference"]  # two metrics
    none = "'demo' has no entities of mha; tables with rows: figures, scores, comparisons, confusion, speakers, history"
    assert call("demo/mha", "entities").stdout.strip() == none
    assert json.loads(call("demo", "entities", "--json").stdout) == []
    refused = call("demo", "figure")
    assert refused.exit_code == 3
    assert "unknown table 'figure'" in refused.output
    assert "did you mean 'figures'?" in refused.output
    both = call("demo", "figures", "--csv", "--json")
    assert (both.exit_code, "one form, not as CSV and as JSON" in both.output) == (3, True)
    assert set(TABLE_NAMES) == set(TABLES)
    speakers = json.loads(call("demo", "speakers", "--json").stdout)
    assert daamctl.results("demo", "speakers").to_dicts() == speakers
    missing = call("demo", "layers")
    assert missing.exit_code == 3
    assert "make it: daamctl importance" in missing.output


def test_a_wide_table_is_cut_into_several_with_the_first_columns(capsys: pytest.CaptureFixture[str]) -> None:
    head = ["method", "metric", "units", *(f"figure{number}" for number in range(6))]
    rows = [[f"method-{row}", "accuracy", "10", *(f"0.{row}{number}" for number in range(6))] for row in range(4)]
    print_wide(head, rows, width=40, keys=2, right=range(2, 9))
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert all(len(line) <= 40 for line in lines[:-1])
    assert [line for line in lines if line.startswith("method ")] == [
        "method    figure0  figure1  figure2",
        "method    figure3  figure4  figure5",
    ]
    assert lines[-1] == "in all rows: metric accuracy, units 10"
    assert set(printed.replace(",", "").split()) >= {cell for row in rows for cell in row}
    print_wide(head, rows, width=200, keys=2, right=range(2, 9))
    (first, *others) = capsys.readouterr().out.splitlines()
    assert (first.split(), len(others)) == (head, 4)
    print_wide(head, rows[:3], width=40, keys=2, right=range(2, 9))  # few rows may be alike by chance
    assert "in all rows" not in capsys.readouterr().out


def test_a_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    head = ("method", "accuracy % [95 %]", "minus the mean of layers")
    rows = [("ridge-best-layer", "92.4 [88.1, 95.8]", "−2.9 [−5.4, 0.0]"), ("mean", "95.3", "")]

    def printed(columns: int) -> list[str]:
        print_table(head, rows, width=columns)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    assert printed(70)[1] == "ridge-best-layer  92.4 [88.1, 95.8]  −2.9 [−5.4, 0.0]"
    wrapped = [
        "                                     minus the mean",
        "method            accuracy % [95 %]  of layers",
        "ridge-best-layer  92.4 [88.1, 95.8]  −2.9 [−5.4, 0.0]",
        "mean              95.3",
    ]
    assert printed(56) == wrapped  # names of columns are wrapped first
    assert printed(53)[2] == "ridge-best-layer 92.4 [88.1, 95.8] −2.9 [−5.4, 0.0]"  # then columns move together
    print_table(("", "", ""), [("a" * 30, "b" * 30, "")], width=40)  # a column may have neither a name nor a cell
    assert "a" * 15 in capsys.readouterr().out
