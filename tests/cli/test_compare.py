"""`daamctl compare`: what it prints with and without a terminal, `--json`, and its exit codes."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.cli.app import app
from daamctl.cli.compare import complete
from daamctl.config import load_config
from daamctl.stages import compare
from daamctl.store.records import write_record
from tests.fixtures.folds import write_method


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["compare", *words])


@pytest.fixture
def made(project: Path) -> Path:
    """Pipelines `one` and `two`, which differ in their learning rate and in what their report is called."""
    for name, lr, skill in (("one", 0.001, 1.5), ("two", 0.002, 0.5)):
        settings = {
            "download": {"corpus": "iemocap"}, "extract": {"encoder": "wavlm-large"}, "methods": ["mha", "daam-v1"],
            "train": {"lr": lr}, "report": {"title": f"[b]{name}[/b]"},
        }  # fmt: skip
        (project / "pipelines" / f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        config = load_config(project, name)
        for method in config.methods:
            write_method(Layout.of(project, name, config), config, method, skill=skill)
    return project


def rows(text: str, first: str) -> list[list[str]]:
    """Cells of the printed lines that begin with a word."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.split("  ")[0].strip() == first]


def test_plain_output_has_every_part(made: Path) -> None:
    result = call("one", "two")
    assert result.exit_code == 0, result.output
    text = result.stdout
    path = made / "data/compare/one__two/comparison.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    assert "\x1b" not in text
    assert text.splitlines()[0] == "one (A) and two (B), by utterance; 2 methods matched by name"
    assert text.splitlines()[-1] == "data/compare/one__two/comparison.json"
    assert rows(text, "train.lr") == [["train.lr", "0.001", "0.002"]]
    assert rows(text, "report.title") == [["report.title", "[b]one[/b]", "[b]two[/b]"]]
    assert "Different settings that can change the results: 1\n" in text
    assert "Different settings that cannot change the results: 1\n" in text
    for entry, method in zip(report["pairs"], ("mha", "daam-v1"), strict=True):
        printed = rows(text, method)
        wa, ua, counts, *items = printed
        one = next(row for row in report["comparisons"] if row["first"] == entry["first"])
        assert wa == [
            method, "WA", f"{100 * one['first_value']:.1f}", f"{100 * one['second_value']:.1f}",
            f"{100 * one['difference']:+.1f}", f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f}",
            *(f"{one[name]:.3g}" for name in ("p", "p_holm", "p_folds", "p_folds_holm")),
            f"{100 * one['detectable']:.1f}",
        ]  # fmt: skip
        assert ua[1] == "UA"
        assert counts == [method, *(str(one[name]) for name in ("wins", "losses", "ties"))]
        assert [row[1] for row in items] == [row["item"] for row in entry["disagreements"][:3]]
    assert "A - B in points, its interval not corrected;" in text
    assert " 95 % CI p p (Holm) p folds p folds (Holm) detectable " in " ".join(text.split())
    assert "p: sign-flip over speakers; p folds: nadeau-bengio over folds; Holm correction over 2 tests" in text
    assert "Design: 200 items, 5 folds, 10 speakers; 10 speakers are tested; seeds A 1; B 1" in text
    assert all(f"- {note}\n" in text for note in report["notes"])


def test_a_single_pair_shows_ten_disagreements(made: Path) -> None:
    text = call("one/mha", "two/mha").stdout
    report = json.loads((made / "data/compare/one.mha__two.mha/comparison.json").read_text(encoding="utf-8"))
    items = [row[1] for row in rows(text, "mha")[3:]]
    assert items == [row["item"] for row in report["pairs"][0]["disagreements"]]
    assert len(items) == 10


def test_identical_sides_say_none(made: Path) -> None:
    (made / "pipelines" / "three.yaml").write_text((made / "pipelines" / "one.yaml").read_text(encoding="utf-8"))
    config = load_config(made, "three")
    write_method(Layout.of(made, "three", config), config, "mha", skill=1.5)
    text = call("one/mha", "three/mha").stdout
    assert "can change the results: none\n" in text
    assert "cannot change the results: none\n" in text


def test_json_alone_on_stdout(made: Path) -> None:
    result = call("one", "two", "--json", "--unit", "clip")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["unit"] == "clip"


def test_a_terminal_gets_colours_and_no_line_is_lost(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    result = call("one", "two")
    assert result.exit_code == 0
    assert "\x1b[" in result.stdout
    plain = re.sub(r"\x1b\[[\d;]*m", "", result.stdout)
    assert rows(plain, "report.title") == [["report.title", "[b]one[/b]", "[b]two[/b]"]]


def test_printed_rows(made: Path) -> None:
    text = call("one", "published:T2-iemocap").stdout
    assert "only in B: lora-plus-r4" in text
    assert rows(text, "B")[0][1:4] == ["published:T2-iemocap/mha", "62.3 ± 2.00 ✗", "62.3 ± 2.2 (n = 5)"]
    assert rows(text, "B")[1][1:4] == ["published:T2-iemocap/daam-v1", "67.4 ± 1.49", "67.4 ± 1.7 (n = 5)"]
    assert len(rows(text, "mha")) == len(rows(text, "daam-v1")) == 5  # sessions
    assert text.count("no test: a published row has no test items") == 1
    text = call("published:gaam-v1/T2/daam-v1", "published:gaam-v1/T2/sga").stdout
    assert rows(text, "daam-v1 - sga")[-1] == ["daam-v1 - sga", "+3.2", "0.0144", "0.0144"]
    assert "assuming n_test / n_train = 0.25" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["onne", "two"], "UnknownNameError: unknown pipeline or run 'onne'\n  did you mean 'one'?"),
        (["one", "demo/mean"], "unknown method 'mean' of 'one'"),
        (["one/mha", "demo/mean"], "'demo/mean' has no finished fold\n  make it: daamctl train demo"),
        (["one", "one"], "are the same, so there is nothing"),
    ],
)
def test_refusals_exit_with_3(made: Path, words: list[str], message: str) -> None:
    result = call(*words)
    assert result.exit_code == 3
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("words", [["one"], ["one", "two", "--unit", "word"], ["one", "two", "three"]])
def test_usage_errors_exit_with_2(made: Path, words: list[str]) -> None:
    assert call(*words).exit_code == 2


def test_the_stage_gets_the_words(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(*args: Any, **options: Any) -> Path:
        seen.append((args, options))
        path = project / "comparison.json"
        path.write_text("{}\n", encoding="utf-8")
        return path

    monkeypatch.setattr(compare, "run", run)
    assert call("demo", "emodb", "--json").stdout == "{}\n"
    call("demo/mha", "published:T/y", "--unit", "clip", "--json")
    words = [(project, "demo", "emodb"), (project, "demo/mha", "published:T/y")]
    assert seen == [(words[0], {"unit": None}), (words[1], {"unit": "clip"})]


@pytest.mark.usefixtures("project")
def test_completion() -> None:
    assert "iemocap" in complete("iem")
    assert complete("pub") == ["published:"]
    assert "published:daam-v4/T2-iemocap" in complete("published:daam")
    assert set(complete("demo/daam-v")) == {"demo/daam-v1", "demo/daam-v2"}


def test_texts_are_called_texts(made: Path) -> None:
    for path in made.glob("data/train/*/*/*/result.json"):
        value = json.loads(path.read_text(encoding="utf-8"))
        write_record(path, {**value, "run": {**value["run"], "modality": "text"}})
    text = call("one", "two").stdout
    assert text.splitlines()[0] == "one (A) and two (B), by text; 2 methods matched by name"
    assert "\nBy text: right in most seeds: only A" in text
    assert "half of the seeds are not enough" in " ".join(text.split())
    assert "utterance" not in text.partition("Notes")[0]


def test_an_undertrained_side_is_told(made: Path) -> None:
    config = load_config(made, "two")
    layout = Layout.of(made, "two", config)
    write_method(layout, config, "mha", skill=0.5)
    write_method(layout, config, "ridge-concat", skill=3.0)
    text = call("one", "two").stdout
    assert "training alone may explain this difference, whatever the p-value: two/mha (undertrained)" in text
    assert "mha - mha (undertrained)" in text
    assert "- two/mha: undertrained: " in text
    assert "points below it on the training parts" in text
    report = json.loads(call("one", "two", "--json").stdout)
    first, second = report["pairs"]
    assert (first["second"], first["second_label"]) == ("two/mha", "two/mha (undertrained)")
    assert [first["fairness"][side]["status"] for side in ("first", "second")] == ["not checked", "undertrained"]
    assert (second["fairness"]["second"]["counterpart"], second["fairness"]["second"]["status"]) == (
        "ridge-concat", "undertrained",
    )  # fmt: skip
    printed = call("two/mha", "published:T2-iemocap").stdout
    assert "two/mha (undertrained)" in printed
    assert "- two/mha: undertrained: " in printed
    assert "significant" not in text + printed


def test_a_project_that_cannot_be_written_is_compared_all_the_same(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = call("one", "two").stdout.splitlines()
    stored = call("one", "two", "--json").stdout
    shutil.rmtree(made / "data/compare")
    (made / "data/compare").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    result = call("one", "two")
    assert (result.exit_code, result.stdout.splitlines()[:-1]) == (0, shown[:-1])
    (path,) = made.glob("daamctl-*/comparison.json")
    assert path.read_text() == stored
    refused = f"cannot write {made}/data/compare/one__two/comparison.json: "
    assert refused in result.stderr
    assert f". It is written to {path} instead\n" in result.stderr
