"""Every citation resolves: docs/sources.md defines what is cited, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from tests.fixtures.projects import REPOSITORY

SOURCES = REPOSITORY / "docs" / "sources.md"
PLACES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "Makefile"),
    *("params.yaml", "stages.yaml", "dvc.yaml", "data/README.md"),
    *("daamctl", "docs", "pipelines", "benchmarks", "tests"),
)
TEXTS = {".py", ".md", ".yaml", ".csv", ".j2", ".cff", ""}
TESTS = ("tests/",)
"""A section that tests alone cite is not one that the code cites."""

CITATION = re.compile(r"sources\.md((?:(?:,\s+|\s+and\s+)?#[\w-]+)*)")
"""`docs/sources.md#heads`, or with more: `docs/sources.md#heads, #decoder and #mixture`; the name alone has none."""
ROW = re.compile(r"(?<![\w#.&])D(\d+)\b(?![./]\w)")
ELSEWHERE = re.compile(
    r"\b(?:FACTS|BASELINES|YARDSTICKS)\b|\b(?:CORPORA|DEVIATIONS|TRAINING|TOKENS_AND_VQVAE)\.md\b"
    r"|\bDEVIATIONS D?\d+|\bshared/paper\b"
)
"""Documents that are not in the project."""


def anchors_of(text: str) -> list[str]:
    """Anchors of the sections, as GitHub makes them of headings."""
    titles = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles]


def rows_of(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"^\| D(\d+) \|", text, re.MULTILINE)}


def flowing(text: str) -> str:
    """Text with its line breaks gone, and with them the signs that begin a comment."""
    return re.sub(r"\s*\n[ \t]*(?:#(?= ))?\s*", " ", text)


def cited_in(text: str) -> Iterator[str]:
    for match in CITATION.finditer(flowing(text)):
        yield from re.findall(r"#([\w-]+)", match.group(1))


def files() -> Iterator[tuple[str, str]]:
    """Name and text of every file that may cite, but this test."""
    for place in map(REPOSITORY.joinpath, PLACES):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix in TEXTS and path != Path(__file__):
                yield path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")


def unresolved(name: str, text: str, defined: str) -> list[str]:
    """What a text cites that `defined` does not define, and documents that it names instead."""
    anchors, rows = anchors_of(defined), rows_of(defined)
    own = re.findall(r"\]\(#([\w-]+)\)", text) if name == "docs/sources.md" else []
    found = [f"{name}: no section #{anchor}" for anchor in [*cited_in(text), *own] if anchor not in anchors]
    if not name.startswith(TESTS):
        found += [f"{name}: no row D{number}" for number in map(int, ROW.findall(text)) if number not in rows]
    return found + [f"{name}: {match.group()}" for match in ELSEWHERE.finditer(flowing(text))]


def test_every_citation_is_defined() -> None:
    defined = SOURCES.read_text(encoding="utf-8")
    assert [line for name, text in files() for line in unresolved(name, text, defined)] == []


def test_every_section_is_cited() -> None:
    anchors = anchors_of(SOURCES.read_text(encoding="utf-8"))
    assert len(anchors) == len(set(anchors))
    cited = {
        anchor
        for name, text in files()
        if name != "docs/sources.md" and not name.startswith(TESTS)
        for anchor in cited_in(text)
    }
    assert sorted(set(anchors) - cited) == []
    assert len(anchors) > 20


def test_every_section_says_where_it_comes_from() -> None:
    title, *sections = re.split(r"^## ", SOURCES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert title.startswith("# Sources")
    without = [section.splitlines()[0] for section in sections if "\nOrigin: " not in section]
    assert without == ["The papers"]  # which are the origin


def test_table_of_deviations_is_that_of_the_code() -> None:
    """To repair it: daamctl deviations --markdown --definitions."""
    table = CliRunner().invoke(app, ["deviations", "--markdown", "--definitions"]).stdout
    assert table.count("\n| D") == 64
    assert SOURCES.read_text(encoding="utf-8").endswith(f"\n\n{table}")


def test_documents_name_this_one() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "](docs/sources.md)" in (REPOSITORY / name).read_text(encoding="utf-8")


DEFINED = "## Heads\n## SGA and bi-SGA\n| D1 | A |\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see docs/sources.md#heads (D1)", []),
        ("docs/sources.md#heads, #sga-and-bi-sga and\n    # #heads", []),
        ("[page](docs/sources.md)", []),
        ("docs/sources.md#head", ["daamctl/x.py: no section #head"]),
        ("docs/sources.md#heads and\n#decoder", ["daamctl/x.py: no section #decoder"]),
        ("as in (D1, D65)", ["daamctl/x.py: no row D65"]),
        ("(FACTS 9)", ["daamctl/x.py: FACTS"]),
        ("(FACTS\n9)", ["daamctl/x.py: FACTS"]),
        ("see BASELINES 1-2", ["daamctl/x.py: BASELINES"]),
        ("(DEVIATIONS D1)", ["daamctl/x.py: DEVIATIONS D1"]),
        ("DEVIATIONS.md", ["daamctl/x.py: DEVIATIONS.md"]),
        ("shared/paper/CORPORA.md", ["daamctl/x.py: shared/paper", "daamctl/x.py: CORPORA.md"]),
        ("FREE_FACTS = 1; DEVIATIONS: tuple; CORPORA.load(); nn.Conv2d; (B, D); D2c", []),
    ],
)
def test_what_counts_as_unresolved(text: str, found: list[str]) -> None:
    assert unresolved("daamctl/x.py", text, DEFINED) == found


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], None]:
    """Put a changed copy of the page in its place."""

    def edit(old: str, new: str) -> None:
        text = SOURCES.read_text(encoding="utf-8")
        assert text.count(old) == 1
        copy = tmp_path / "sources.md"
        copy.write_text(text.replace(old, new), encoding="utf-8")
        monkeypatch.setattr("tests.test_sources.SOURCES", copy)

    return edit


def test_a_section_that_is_gone_or_added_is_noticed(edited: Callable[[str, str], None]) -> None:
    edited("\n## Heads\n", "\n## Head count\n")
    with pytest.raises(AssertionError, match="no section #heads"):
        test_every_citation_is_defined()
    with pytest.raises(AssertionError, match="head-count"):
        test_every_section_is_cited()


def test_a_row_that_is_gone_is_noticed(edited: Callable[[str, str], None]) -> None:
    edited("\n| D14 | A |", "\n| D99 | A |")
    with pytest.raises(AssertionError, match="no row D14"):
        test_every_citation_is_defined()
    with pytest.raises(AssertionError):
        test_table_of_deviations_is_that_of_the_code()
