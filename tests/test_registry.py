"""The lazy table: names without imports, one owner per attribute, helpful errors, summaries read from source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from daamctl.errors import UnknownNameError
from daamctl.registry import Registry

SOURCE = '''
"""Module line.

More."""

from __future__ import annotations

from typing import Literal

def documented() -> int:
    """Function line.

    More."""
    return 3

def bare() -> None: ...

class Thing:
    """Class line."""

def chosen(
    *,
    size: int,
    shape: Literal["round", "square"] = "round",
    level: Literal[3] = 3,
    name: str = "x",
    other: Optional[int] = None,
    nested: "list[Literal['a']]" = (),
) -> int:
    return 4

VALUE = 5
"""Value line."""

OTHER = 6
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "registry_sample.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "registry_sample", raising=False)
    return "registry_sample"


def make(module: str) -> Registry:
    names = ("documented", "bare", "Thing", "chosen", "VALUE", "OTHER")
    return Registry("thing", {name.lower(): f"{module}:{name}" for name in names})


def test_names_keep_their_order_and_nothing_is_imported(module: str) -> None:
    table = make(module)
    assert list(table) == ["documented", "bare", "thing", "chosen", "value", "other"]
    assert len(table) == 6
    assert "bare" in table
    assert "Bare" not in table
    assert table.module_of("bare") == module
    assert table.summary("documented") == "Function line."
    assert module not in sys.modules


def test_load_imports_the_attribute(module: str) -> None:
    table = make(module)
    assert table.load("documented")() == 3
    assert table.load("value") == 5
    assert module in sys.modules


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("documented", "Function line."),
        ("thing", "Class line."),
        ("value", "Value line."),
        ("bare", "Module line."),
        ("other", "Module line."),
    ],
)
def test_summary_is_the_nearest_docstring(module: str, name: str, line: str) -> None:
    assert make(module).summary(name) == line


def test_defaults_and_choices_are_read_without_importing(module: str) -> None:
    table = make(module)
    assert table.defaults("chosen") == {"shape": "round", "level": 3, "name": "x", "other": None, "nested": ()}
    assert table.choices("chosen") == {"shape": ("round", "square"), "level": (3,)}
    assert module not in sys.modules


@pytest.mark.parametrize("name", ["documented", "thing", "value", "other"])
def test_what_takes_no_keywords_has_no_defaults_and_no_choices(module: str, name: str) -> None:
    assert make(module).defaults(name) == make(module).choices(name) == {}


@pytest.mark.parametrize("method", ["load", "module_of", "summary", "defaults", "choices"])
def test_unknown_name_gets_the_nearest_and_all(module: str, method: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        getattr(make(module), method)("documentd")
    assert str(caught.value) == (
        "unknown thing 'documentd'\n  did you mean 'documented'? known: bare, chosen, documented, other, thing, value"
    )


def test_unknown_name_far_from_all(module: str) -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown thing 'zzz'\n  known: bare, chosen, documented"):
        make(module).load("zzz")


@pytest.mark.parametrize("target", ["package.module", "a:b:c", ""])
def test_target_form_is_checked(target: str) -> None:
    with pytest.raises(ValueError, match=f"thing 'x': target '{target}' is not of the form 'module:attribute'"):
        Registry("thing", {"x": target})


def test_summary_of_a_module_that_is_not_there() -> None:
    with pytest.raises(ImportError, match="thing 'x': no module daamctl_absent"):
        Registry("thing", {"x": "daamctl_absent:y"}).summary("x")
