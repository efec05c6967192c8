"""The folder of an exported model: damaged, foreign and newer ones are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daamctl.errors import ArtifactError
from daamctl.models.folder import FILE, SCHEMA, read_model
from daamctl.models.model import ExportedModel
from daamctl.store.records import write_record
from tests.fixtures.exported import handmade


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "model")


def change(folder: Path, **values: object) -> None:
    """Change the record, and seal it again."""
    record = json.loads((folder / FILE).read_text())
    record.pop("sha256")
    write_record(folder / FILE, {**record, **values})


def cut(folder: Path) -> None:
    path = folder / "fold-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def without(folder: Path, name: str) -> None:
    record = json.loads((folder / FILE).read_text())
    del record["sha256"], record[name]
    write_record(folder / FILE, record)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "no folder"),
        (lambda folder: (folder / FILE).unlink(), "is not an exported model: it has no model.json"),
        (lambda folder: (folder / FILE).write_text("{"), "is not valid JSON"),
        (lambda folder: (folder / FILE).write_text("[1]"), "has no seal"),
        (lambda folder: (folder / FILE).write_text('{"model": "another"}'), "has no seal"),
        (lambda folder: change(folder, schema=SCHEMA + 1), f"follows schema {SCHEMA + 1}"),
        (lambda folder: without(folder, "classes"), "is incomplete"),
        (lambda folder: change(folder, members=[]), "lacks the hash of any weights"),
        (lambda folder: change(folder, files={}), "lacks the hash of fold-1"),
        (lambda folder: change(folder, files={"../other": "0"}), "names a file outside the folder"),
        (lambda folder: (folder / FILE).write_text((folder / FILE).read_text().replace("high", "hugh")), "was changed"),
        (lambda folder: (folder / "fold-1.safetensors").unlink(), "no file"),
        (cut, "is damaged or from elsewhere"),
    ],
)
def test_what_is_no_whole_model_is_refused(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(ArtifactError) as error:
        ExportedModel.open(folder, device="cpu")
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert error.value.fix


def test_a_whole_model_is_read(folder: Path) -> None:
    record = read_model(folder)
    assert [member.file for member in record.members] == [name for name in record.files if name.startswith("fold-")]
    (folder / "notes.txt").write_text("a file of the user's own is no damage")
    assert read_model(folder) == record
