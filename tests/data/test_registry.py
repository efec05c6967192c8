"""The lazy table: names without imports, one owner per attribute, helpful errors, summaries read from source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import pytest

from daamctl.data.registry import Registry
from daamctl.errors import ConfigError, UnknownNameError
from tests.fixtures.added import install

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


Open = Callable[..., Registry]


@pytest.fixture
def opened(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A table with one name of its own, to which a package adds what the test says."""

    def make_open(entries: dict[str, str], source: str = SOURCE, package: str = "more-things") -> Registry:
        install(tmp_path / package, monkeypatch, entries, source=source, package=package, group="daamctl.things")
        return Registry("thing", {"bare": f"{module}:bare"}, groups=(Paint,), entry_points="daamctl.things")

    return make_open


def test_a_package_adds_names_that_are_imported_when_loaded(opened: Open) -> None:
    table = opened({"painted": "more_things:painted", "documented": "more_things:documented"})
    assert list(table) == ["bare", "painted", "documented"]
    assert len(table) == 3
    assert "painted" in table
    assert str(table.package_of("painted")) == "more-things 0.1"
    assert table.package_of("bare") is None
    assert table.module_of("painted") == "more_things"
    assert table.summary("documented") == "Function line."
    assert table.defaults("painted") == {"layers": 2, "paint": "red", "coats": 1, "undercoat": None}
    assert table.choices("painted") == {"paint": ("red", "blue")}
    assert "more_things" not in sys.modules
    assert table.load("documented")() == 3
    with pytest.raises(
        UnknownNameError, match=r"^unknown thing 'zzz', which no installed package has\n  known: bare, doc"
    ):
        table.load("zzz")
    with pytest.raises(UnknownNameError, match=r"^unknown thing 'document'\n  did you mean 'documented'\?"):
        table.load("document")


def test_packages_are_looked_through_only_for_names_that_the_table_lacks(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("looked through"))
    table = Registry("thing", {"bare": f"{module}:bare"}, entry_points="daamctl.things")
    assert "bare" in table
    assert table.load("bare")() is table.defaults("bare").get("x")
    assert "other" not in Registry("thing", {"bare": f"{module}:bare"})  # a table that nobody adds to


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"bare": "more_things:bare"}, "thing 'bare' of the package more-things: daamctl has a thing of this name"),
        ({"Bare 2": "more_things:bare"}, "'Bare 2' of the package more-things: names have lower-case letters and dig"),
        ({"../x": "more_things:bare"}, "names have lower-case letters and digits, with single hyphens between them"),
        ({"two": "more_things"}, "its target 'more_things' is not of the form 'module:function'"),
    ],
)
def test_names_that_a_package_cannot_add(opened: Open, entries: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        list(opened(entries))
    assert caught.value.fix == "correct its entry points, or remove it: pip uninstall more-things"


@pytest.mark.parametrize("edited", [True, False])
def test_modules_of_a_package_are_those_beside_it_or_those_that_are_listed(
    opened: Open, tmp_path: Path, edited: bool
) -> None:
    table = opened({"extra": "more_things:bare"})
    folder = tmp_path / "more-things"
    for module in ("blocks.py", "foreign.py"):
        (folder / module).write_text("")
    (folder / "parts").mkdir()
    (folder / "parts/__init__.py").write_text("")
    record = "" if edited else "more_things.py,,\nblocks.py,,\nparts/__init__.py,,\n"
    (folder / "more_things-0.1.dist-info/RECORD").write_text(f"more_things-0.1.dist-info/METADATA,,\n{record}")
    assert table.modules_of("bare") == ()
    found = set(table.modules_of("extra"))
    assert {"more_things", "blocks", "parts"} <= found
    assert ("foreign" in found) == edited


def test_two_packages_cannot_have_one_name(opened: Open) -> None:
    opened({"extra": "more_things:bare"})
    with pytest.raises(ConfigError, match=r"thing 'extra' of the package \S+: \S+ has a thing of this name"):
        list(opened({"extra": "still_more:bare"}, package="still-more"))


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("more_things:absent", SOURCE, "more_things.py does not define a function 'absent'"),
        ("more_things:VALUE", SOURCE, "more_things.py does not define a function 'VALUE'"),
        ("nowhere.at_all:f", SOURCE, "ModuleNotFoundError: No module named 'nowhere'"),
        ("more_things:f", "def f(:\n", "SyntaxError: "),
    ],
)
def test_a_package_that_cannot_be_read(opened: Open, target: str, source: str, message: str) -> None:
    table = opened({"extra": target}, source)
    with pytest.raises(ConfigError, match=f"^thing 'extra' of the package more-things: .*{message}") as caught:
        table.defaults("extra")
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("correct the package; to see more: python -c 'import ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("*, size: int = WIDTH", "the default of size must be a plain value, got WIDTH"),
        ("*, size: int = 2 * 128", "the default of size must be a plain value, got 2 \\* 128"),
        ("*, shape: Literal[ROUND] = 'round'", "a value of shape must be a plain value, got ROUND"),
        ("*, size: int", "its argument size needs a default, or the annotation Paint"),
        ("size: int", "its argument size needs a default, or the annotation Paint"),
        ("size: int = 1, /", "its settings cannot stand before a /"),
    ],
)
def test_arguments_that_a_package_cannot_have(opened: Open, arguments: str, message: str) -> None:
    table = opened({"extra": "more_things:extra"}, f"def extra(first, {arguments}): ...\n")
    with pytest.raises(ConfigError, match=f"^thing 'extra' of the package more-things: {message}"):
        (table.defaults("extra"), table.choices("extra"))


def test_every_argument_but_the_first_is_a_setting_and_a_group_may_be_named_by_its_module(opened: Open) -> None:
    table = opened({"extra": "more_things:extra"}, "def extra(first, tone=2, *, paint: colours.Paint): ...\n")
    assert table.defaults("extra") == {"tone": 2, "paint": "red", "coats": 1}
    assert table.arguments("extra", {"coats": 3}) == {"paint": Paint(coats=3)}


def test_a_package_cannot_take_the_name_of_a_variant(opened: Open, module: str) -> None:
    opened({"chosen-square": "more_things:bare"})
    table = Registry("thing", {"chosen": f"{module}:chosen"}, entry_points="daamctl.things", suffix="shape")
    assert table.variants("chosen") == ["chosen-square"]
    with pytest.raises(ConfigError, match="thing 'chosen-square' of the package more-things: daamctl has a thing of"):
        list(table)


def test_a_package_that_cannot_be_imported(opened: Open) -> None:
    table = opened({"extra": "more_things:extra"}, "def extra(*, size: int = 2): ...\nimport daamctl_absent\n")
    assert table.defaults("extra") == {"size": 2}
    with pytest.raises(ConfigError, match="of the package more-things: ModuleNotFoundError: No module named 'daamctl_"):
        table.load("extra")
