"""Write the tables of docs/settings.md, which name every setting, from daamctl/config/schema.py and params.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from daamctl.config import Config, load_config
from daamctl.config.explain import FIRST, allowed, can_change, meaning, settings, value_of
from daamctl.config.marks import Affects, AppliesTo
from daamctl.config.schema import Section
from daamctl.store.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
NOTE = "Where the last column is empty, a setting can change every result of its stage and of the stages that read it."
BEGIN, END = "<!-- begin: python scripts/settings_page.py -->\n", "<!-- end -->\n"


def tables(config: Config) -> str:
    """The settings that people change first, then all of them by stage, as Markdown.

    Args:
        config: the defaults of params.yaml.
    """
    lines = ["## Ten settings to start with", "", *_table(config, FIRST), "## All settings", "", NOTE, ""]
    for section, names in groupby(settings(), key=lambda name: name.rpartition(".")[0]):
        what = getattr(config, section) if section else config
        assert isinstance(what, Section)
        lines += [f"### {section or 'Lists of a pipeline'}", ""]
        if section:
            lines += [" ".join((what.__doc__ or "").partition("\n\n")[0].split()), ""]
        lines += _table(config, names)
    return "\n".join(lines)


def _table(config: Config, names: Iterable[str]) -> Iterator[str]:
    yield "| setting | default | allowed | meaning | can change |"
    yield "| --- | --- | --- | --- | --- |"
    for name in names:
        value = value_of(config, name) if name != "pipelines" else "all shipped ones"
        marked = any(isinstance(mark, Affects | AppliesTo) for mark in settings()[name].metadata)
        yield f"| `{name}` | `{value}` | {allowed(name)} | {meaning(name)} | {can_change(name) if marked else ''} |"
    yield ""


def main() -> None:
    """Replace the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    write_text(PAGE, before + BEGIN + "\n" + tables(load_config(ROOT)) + END + after)


if __name__ == "__main__":
    main()
