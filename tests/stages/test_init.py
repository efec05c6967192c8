"""A new project: complete, with DVC, inside git or not; what is in the folder stays."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.errors import ConfigError
from daamctl.stages import check, init
from daamctl.store.starter import files


def settings_of_dvc(folder: Path) -> str:
    return " ".join((folder / ".dvc/config").read_text().split())


def test_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "some/where"
    assert init.run(folder) is None
    for name, source in files().items():
        assert name == init.DVC_CONFIG or (folder / name).read_bytes() == source.read_bytes()
    assert "no_scm = True analytics = false check_update = false" in settings_of_dvc(folder)
    assert check.run(folder, ["demo"], write=True) == ["demo"]


def test_inside_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for folder in (tmp_path, tmp_path / "sub"):
        assert init.run(folder) is None
        assert "no_scm" not in settings_of_dvc(folder)
        assert "analytics = false" in settings_of_dvc(folder)


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines/demo.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds other files with the names of a project's: pipelines/demo.yaml\n"):
        init.run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", "pipelines"}
    (tmp_path / "pipelines/demo.yaml").unlink()
    init.run(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    init.run(tmp_path)  # the same files again overwrite nothing


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file\n"):
        init.run(tmp_path / "file")
    (tmp_path / "data").touch()
    with pytest.raises(ConfigError, match=r"holds other files .*: data/README.md\n"):
        init.run(tmp_path)
    with pytest.raises(ConfigError, match="holds other files"):
        init.run(tmp_path / "file/below")


def test_the_command_says_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "_init_dvc", lambda folder: f"{folder.name} is ignored by git")
    result = CliRunner().invoke(app, ["init", "my project"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("my project is a project. Next:\n  cd 'my project'\n  daamctl run demo ")
    assert result.stderr == (
        "dvc repro needs DVC, which could not be set up (my project is ignored by git). Later: dvc init\n"
    )


def test_dvc_that_refuses_is_no_failure(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*\n")
    refusal = init.run(tmp_path / "sub")
    assert refusal is not None
    assert "is ignored by your SCM tool" in refusal
    assert (tmp_path / "sub/params.yaml").is_file()


def test_an_attempt_that_failed_leaves_no_half_of_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    def stopped(folder: str, **_: Any) -> None:
        (Path(folder) / ".dvc").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Repo, "init", stopped)
        with pytest.raises(KeyboardInterrupt):
            init.run(tmp_path / "p")
    assert init.run(tmp_path / "p") is None
    assert "no_scm = true" in (tmp_path / "p/.dvc/config").read_text(encoding="utf-8").lower()
