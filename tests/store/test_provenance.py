"""Provenance: a code hash that follows what a module does, not how it is written; versions; the commit."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from daamctl.config import Config
from daamctl.fit.trial import FoldSpec, FusionTrial
from daamctl.methods import METHODS
from daamctl.store import provenance
from daamctl.store.provenance import code_hash, git_commit, versions

MAIN = '''"""Doc."""
from samplepkg.helper import double

def f(x):
    """Doc of f."""
    return double(x) + 1
'''


@pytest.fixture
def hash_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Hash of `samplepkg.main` after writing the sources given."""
    folder = tmp_path / "samplepkg"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "samplepkg", raising=False)

    def write(main: str = MAIN, helper: str = "def double(x):\n    return 2 * x\n", init: str = "") -> str:
        (folder / "__init__.py").write_text(init)
        (folder / "main.py").write_text(main)
        (folder / "helper.py").write_text(helper)
        (folder / "unrelated.py").write_text("import os\n")
        importlib.invalidate_caches()
        code_hash.cache_clear()
        provenance._code_of.cache_clear()
        return code_hash("samplepkg.main", "samplepkg")

    yield write
    sys.modules.pop("samplepkg", None)
    code_hash.cache_clear()
    provenance._code_of.cache_clear()


def test_comments_docstrings_and_layout_do_not_count(hash_with: Callable[..., str]) -> None:
    plain = hash_with()
    assert len(plain) == 16
    edited = MAIN.replace('"""Doc of f."""', '"""Another text."""').replace("def f(x):", "# why\n\n\ndef f(\n    x\n):")
    assert hash_with(edited) == plain
    assert hash_with(MAIN.replace('    """Doc of f."""\n', "")) == plain
    assert hash_with(init='"""The table."""\nTABLE = {"a": 1}\n') == plain  # the package itself only holds the table


@pytest.mark.parametrize(
    ("without", "with_strings"),
    [
        ("LIMIT = 3\n", 'LIMIT = 3\n"""Why three."""\n'),
        ("class A:\n    size: int = 3\n", 'class A:\n    size: int = 3\n    """Why three."""\n'),
        ("def g(x):\n    y = x\n    return y\n", "def g(x):\n    y = x\n    'why'\n    return y\n"),
        ("def g(x):\n    pass\n", 'def g(x):\n    """Nothing."""\n'),
        (
            "try:\n    a = 1\nexcept OSError:\n    pass\nelse:\n    a = 2\nfinally:\n    a = 3\n",
            "try:\n    a = 1\n    'w'\nexcept OSError:\n    'w'\nelse:\n    'w'\n    a = 2\n"
            "finally:\n    a = 3\n    'w'\n",
        ),
        ("match LIMIT:\n    case 3:\n        pass\n", "match LIMIT:\n    case 3:\n        'w'\n"),
    ],
)
def test_no_statement_that_is_only_a_string_counts(
    hash_with: Callable[..., str], without: str, with_strings: str
) -> None:
    assert hash_with(MAIN + with_strings) == hash_with(MAIN + without)


def test_strings_that_are_used_count(hash_with: Callable[..., str]) -> None:
    assert hash_with(MAIN + 'NAME = """a"""\n') != hash_with(MAIN + 'NAME = """b"""\n')
    assert hash_with(MAIN + "g = lambda: 'a'\n") != hash_with(MAIN + "g = lambda: 'b'\n")


def test_code_counts(hash_with: Callable[..., str]) -> None:
    plain = hash_with()
    assert hash_with(MAIN.replace("+ 1", "+ 2")) != plain
    assert hash_with(MAIN.replace("f(x)", "g(x)")) != plain


def test_imports_within_are_followed_and_others_are_not(hash_with: Callable[..., str]) -> None:
    plain = hash_with()
    assert hash_with(helper="def double(x):\n    return 3 * x\n") != plain
    assert hash_with(helper="def double(x):\n    # twice\n    return 2 * x\n") == plain


def test_only_the_parts_asked_for_are_followed(hash_with: Callable[..., str]) -> None:
    def hashed(helper: str, *parts: str) -> str:
        hash_with(helper=helper)
        return code_hash("samplepkg.main", "samplepkg", parts)

    one, other = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x + x\n"
    assert hashed(one, "samplepkg.helper") != hashed(other, "samplepkg.helper")
    assert hashed(one, "samplepkg.help") == hashed(other, "samplepkg.help")


def test_code_of_a_fold_leaves_out_what_it_does_not_depend_on() -> None:
    """Reports, commands and the other methods may change without giving the folds another version."""
    spec = FoldSpec("p", "daam-v1", 1, 1, Config())
    code = FusionTrial.code.fget(SimpleNamespace(spec=spec))  # type: ignore[attr-defined]
    read: list[str] = []
    code_hash.cache_clear()
    provenance._code_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        real = provenance._source
        patch.setattr(provenance, "_source", lambda name: read.append(name) or real(name))
        assert FusionTrial.code.fget(SimpleNamespace(spec=spec)) == code  # type: ignore[attr-defined]
    modules = {name for name in read if real(name) is not None}
    assert {
        "daamctl.fit.loop",
        "daamctl.fit.steps",
        "daamctl.artifacts.splits",
        "daamctl.methods.daam",
    } <= modules
    left_out = ("daamctl.reporting", "daamctl.cli", "daamctl.stages", "daamctl.methods.sga", "daamctl.fit.runner")
    assert not [name for name in modules if name.startswith(left_out)]


def test_cycles_end(hash_with: Callable[..., str]) -> None:
    cyclic = "from samplepkg.main import f\ndef double(x):\n    return 2 * x\n"
    assert hash_with(helper=cyclic) != hash_with()


@pytest.mark.parametrize(
    "form", ["from samplepkg import helper", "import samplepkg.helper", "from .helper import double"]
)
def test_every_form_of_import_is_followed(hash_with: Callable[..., str], form: str) -> None:
    main = MAIN.replace("from samplepkg.helper import double", form)
    assert hash_with(main) != hash_with(main, helper="def double(x):\n    return 3 * x\n")


def test_what_an_init_imports_and_what_it_defines_is_followed(hash_with: Callable[..., str]) -> None:
    def hashed(init: str, helper: str) -> str:
        hash_with("from samplepkg import double", helper, init)
        return code_hash("samplepkg.main", "samplepkg")

    one, other = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x + x\n"
    assert hashed(one, "") != hashed(other, "")
    assert hashed("from .helper import double\n", one) != hashed("from .helper import double\n", other)


def test_every_method_has_a_hash_of_its_own_file() -> None:
    hashes = {name: code_hash(METHODS.module_of(name), "daamctl.methods") for name in METHODS}
    modules = {METHODS.module_of(name) for name in METHODS}
    assert hashes["daam-v1"] == hashes["daam-v2"]  # one file
    assert len(set(hashes.values())) == len(modules) >= 20


def test_versions_name_python_and_torch() -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_commit_with_mark_for_changes(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    for name in ("params.yaml", "notes.md"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "notes.md").write_text("2")
    assert git_commit(tmp_path) == commit  # no result depends on it
    (tmp_path / "params.yaml").write_text("2")
    assert git_commit(tmp_path) == f"{commit}+changes"
