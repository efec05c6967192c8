"""The lazy table: names without imports, one owner per attribute, helpful errors, summaries read from source."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from daamctl.data.registry import Registry
from daamctl.errors import UnknownNameError

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

def painted(size: int, *, layers: int = 2, paint: Paint, undercoat: Paint | None = None) -> int:
    return 5

VALUE = 5
"""Value line."""

OTHER = 6
'''


@dataclass(frozen=True, kw_only=True)
class Paint:
    paint: Literal["red", "blue"] = "red"
    coats: int = 1


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "registry_sample.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "registry_sample", raising=False)
    return "registry_sample"


def make(module: str) -> Registry:
    names = ("documented", "bare", "Thing", "chosen", "painted", "VALUE", "OTHER")
    return Registry("thing", {name.lower(): f"{module}:{name}" for name in names}, groups=(Paint,))


def test_names_keep_their_order_and_nothing_is_imported(module: str) -> None:
    table = make(module)
    assert list(table) == ["documented", "bare", "thing", "chosen", "painted", "value", "other"]
    assert len(table) == 7
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


def test_an_argument_annotated_with_a_group_stands_for_its_fields(module: str) -> None:
    table = make(module)
    assert table.defaults("painted") == {"layers": 2, "paint": "red", "coats": 1, "undercoat": None}
    assert table.choices("painted") == {"paint": ("red", "blue")}
    assert table.arguments("painted", {"coats": 3, "layers": 4}) == {"layers": 4, "paint": Paint(coats=3)}
    assert table.arguments("painted", {"paint": "blue"}) == {"paint": Paint(paint="blue")}
    assert table.arguments("chosen", {"size": 1}) == {"size": 1}
    assert module not in sys.modules


@pytest.mark.parametrize("name", ["documented", "thing", "value", "other"])
def test_what_takes_no_keywords_has_no_defaults_and_no_choices(module: str, name: str) -> None:
    assert make(module).defaults(name) == make(module).choices(name) == {}


@pytest.mark.parametrize("method", ["load", "module_of", "summary", "defaults", "choices"])
def test_unknown_name_gets_the_nearest_and_all(module: str, method: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        getattr(make(module), method)("documentd")
    assert str(caught.value) == (
        "unknown thing 'documentd'\n  did you mean 'documented'? known: bare, chosen, documented, "
        "other, painted, thing, value"
    )


def test_unknown_name_far_from_all(module: str) -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown thing 'zzz'"):
        make(module).arguments("zzz", {})
    with pytest.raises(UnknownNameError, match=r"^unknown thing 'zzz'\n  known: bare, chosen, documented"):
        make(module).load("zzz")


@pytest.mark.parametrize("target", ["package.module", "a:b:c", ""])
def test_target_form_is_checked(target: str) -> None:
    with pytest.raises(ValueError, match=f"thing 'x': target '{target}' is not of the form 'module:attribute'"):
        Registry("thing", {"x": target})


def test_summary_of_a_module_that_is_not_there() -> None:
    with pytest.raises(ImportError, match="thing 'x': no module daamctl_absent"):
        Registry("thing", {"x": "daamctl_absent:y"}).summary("x")
