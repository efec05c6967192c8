"""`daamctl new`: what to run next, also where the encoder cannot be had."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daamctl.artifacts.skipped import Obstacle
from daamctl.cli.app import app
from daamctl.cli.new import _pairs
from daamctl.config import load_config, read_yaml
from daamctl.encoders.encoder_size import shape_of
from daamctl.errors import ConfigError
from daamctl.stages import check, inventory, new


def texts(folder: Path) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(6):
            (folder / label / f"{number}.txt").write_text(f"A {label}, number {number}\n")
    return folder


@pytest.mark.parametrize(
    ("obstacle", "last"),
    [
        (None, ["Next: daamctl run mine; what that takes: daamctl plan mine"]),
        (
            Obstacle("the encoder is not here", "hf download it"),
            [
                "It cannot run here yet: the encoder is not here",
                "Next: hf download it",
                "Then: daamctl run mine; what that takes: daamctl plan mine",
            ],
        ),
    ],
)
def test_next_command(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: Obstacle | None, last: list[str]
) -> None:
    monkeypatch.setattr(inventory, "run", lambda _root, names: dict.fromkeys(names, obstacle))
    source = texts(tmp_path / "texts")
    result = CliRunner().invoke(app, ["new", "mine", "--from", str(source), "--encoder", "llama-micro"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-len(last) :] == last


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("label=EmoClass,speaker=SpkrID", {"label": "EmoClass", "speaker": "SpkrID"}),
        (" label = a , ", {"label": "a"}),
        ("text={a}, {b} or {c},label=d", {"text": "{a}, {b} or {c}", "label": "d"}),
        ("01=neutral,02:calm", None),
        ("a=b,a=c", None),
        ("=b", None),
    ],
)
def test_pairs(text: str, pairs: dict[str, str] | None) -> None:
    if pairs is None:
        with pytest.raises(ConfigError, match="takes A=B, each A once, got"):
            _pairs("--columns", text)
    else:
        assert _pairs("--columns", text) == pairs


def test_names_of_columns_with_commas_stand_in_braces(project: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _pairs("--columns", "label=class, new")
    assert caught.value.fix == "e.g. label=Class,'text={a, b}' for a column 'a, b'"
    items = [f"notice {number},{'ab'[number % 2]}" for number in range(8)]
    (tmp_path / "list.csv").write_text("\n".join(['"text, short","class, new"', *items]))
    columns = _pairs("--columns", "text={text, short},label={class, new}")
    made = new.run(project, "mine", tmp_path / "list.csv", columns=columns, encoder="llama-micro")
    assert made.facts["classes"] == "a 4, b 4"


def test_other_pipelines_are_no_concern(project: Path, tmp_path: Path) -> None:
    """Neither questions that they leave open, nor mistakes in them, nor that dvc does not run them."""
    (project / "pipelines" / "theirs.yaml").write_text("methods: [none]\n")
    (project / "pipelines" / "wrong.yaml").write_text("methods: [nine]\n")
    source = str(texts(tmp_path / "texts"))
    made = CliRunner().invoke(app, ["new", "mine", "--from", source, "--encoder", "llama-micro"])
    assert made.exit_code == 0, made.output
    assert not [name for name in ("theirs", "wrong", "wnut17") if name in made.output]
    assert "mine" in read_yaml(project / "stages.yaml")["report_stages"]
    assert (project / "data/check/mine/report.json").is_file()


def test_question_names_a_folder_without_its_path(project: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "far" / "own-encoder"
    encoder.mkdir(parents=True)
    (encoder / "config.json").write_text("{}")
    words = ["new", "mine", "--from", str(texts(tmp_path / "texts")), "--encoder", str(encoder)]
    CliRunner().invoke(app, words)
    assert (project / "pipelines" / "mine.yaml").read_text().startswith("# Which layers of own-encoder tell")


@pytest.mark.parametrize("inside", [True, False])
def test_the_folder_of_an_encoder_is_found_wherever_a_command_is_typed(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    far = tmp_path_factory.mktemp("far")
    encoder = (project if inside else far) / "wavlm-micro"  # a name that a preset has, too
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps({"num_hidden_layers": 7, "hidden_size": 8}))
    monkeypatch.chdir(project / "pipelines")
    words = ["new", "mine", "--from", str(texts(far / "texts")), "--encoder", os.path.relpath(encoder)]
    assert CliRunner().invoke(app, words).exit_code == 0
    settings = load_config(project, "mine").extract
    assert settings.encoder == ("./wavlm-micro" if inside else str(encoder))
    for place in (project, project / "data"):
        monkeypatch.chdir(place)
        assert shape_of(settings, "text") == (7, 8)
        assert check.run(project, ["mine"]) == ["mine"]


def test_an_encoder_that_does_not_exist_is_refused_before_anything_is_written(project: Path, tmp_path: Path) -> None:
    words = ["new", "mine", "--from", str(texts(tmp_path / "texts")), "--encoder", "../x/bert"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 3
    assert result.stderr.startswith("EncoderError: no folder ../x/bert\n")
    assert not (project / "pipelines/mine.yaml").exists()


def test_what_a_table_leads_to(project: Path) -> None:
    (project / "texts.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(12)))
    result = CliRunner().invoke(app, ["new", "mine", "--from", "texts.csv", "--encoder", "llama-micro"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["items", "12"]
    assert [line for line in lines if line.startswith("wrote")] == ["wrote pipelines/mine.yaml"]
    assert lines[-1].startswith("Next: daamctl run mine")
