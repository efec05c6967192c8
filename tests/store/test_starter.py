"""What a new project starts with: the same files from a checkout and from the wheel."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest
from setuptools.dist import Distribution

from daamctl.config import pipeline_names
from daamctl.store import starter
from tests.fixtures.projects import REPOSITORY


def test_a_checkout_is_its_own_template() -> None:
    names = list(starter.files())
    assert [name for name in names if name.startswith("pipelines/")] == [
        f"pipelines/{name}.yaml" for name in pipeline_names(REPOSITORY)
    ]
    assert {"dvc.yaml", "stages.yaml", ".gitignore", ".dvcignore", ".dvc/config", "data/README.md"} < set(names)
    assert names[-1] == "params.yaml"  # a folder counts as a project once it is complete
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert not tracked.stdout or set(names) <= set(tracked.stdout.splitlines())


def test_the_wheel_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))  # setup.py does so, too; this takes it back
    monkeypatch.chdir(REPOSITORY)
    kind = runpy.run_path("setup.py", run_name="setup")["BuildWithStarterFiles"]
    step = kind(Distribution({"packages": ["daamctl"]}))
    step.build_lib, step.packages = str(tmp_path), []
    step.ensure_finalized()
    step.packages = []  # the modules themselves are no concern of this test
    step.run()
    from_checkout = {name: path.read_bytes() for name, path in starter.files().items()}
    monkeypatch.setattr(starter, "PACKAGED", tmp_path / "daamctl/starter_files")
    from_wheel = {name: path.read_bytes() for name, path in starter.files().items()}
    assert from_wheel == from_checkout
    assert list(from_wheel) == list(from_checkout)
    assert {str(starter.PACKAGED / name) for name in from_wheel} <= set(step.get_outputs())
    assert set(from_wheel) <= set(step.get_source_files())


def test_an_editable_install_reads_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    monkeypatch.chdir(REPOSITORY)
    step = runpy.run_path("setup.py", run_name="setup")["BuildWithStarterFiles"](Distribution())
    step.build_lib, step.editable_mode = str(tmp_path), True
    step.ensure_finalized()
    step.run()
    assert not list(tmp_path.iterdir())
