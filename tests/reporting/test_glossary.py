from __future__ import annotations

from daamctl.reporting.document import Bullets, Folded, Section, Table, Text
from daamctl.reporting.glossary import GLOSSARY, explainer, with_glossary


def terms_of(*blocks: object) -> list[str]:
    sections = with_glossary([Section("one", "One", list(blocks))])  # type: ignore[arg-type]
    if len(sections) == 1:
        return []
    (lines,) = sections[-1].blocks
    assert isinstance(lines, Bullets)
    return [line.partition(":")[0] for line in lines.lines]


def test_glossary_has_the_terms_of_the_report_only() -> None:
    assert terms_of(Text("Kendall’s τ of two rankings."), Bullets(["The densities are equal."])) == ["τ"]
    assert terms_of(Text("Nothing to explain.")) == []
    assert terms_of(Text("This comparison is not fair: mean learned nothing.")) == ["Learned nothing"]


def test_terms_in_folded_parts_and_tables_count() -> None:
    table = Table("t", "Caption", ["Method", "Accuracy (WA)"], [], note="Holm correction.")
    assert terms_of(Folded("More", [table])) == ["WA", "Holm"]


def test_a_term_is_a_word_of_its_own() -> None:
    assert terms_of(Text("WATER, QUANTUM, confusion, probes")) == []
    assert terms_of(Text("Two linear probes and an undertrained fusion.")) == ["Linear probe", "Fusion", "Undertrained"]


def test_a_term_is_explained_where_it_first_stands() -> None:
    explain = explainer()
    first = explain("WA of <b> & WA")
    assert first == f'<abbr title="{GLOSSARY["WA"]}" tabindex="0">WA</abbr> of &lt;b&gt; &amp; WA'
    assert explain("WA again, and UA") == f'WA again, and <abbr title="{GLOSSARY["UA"]}" tabindex="0">UA</abbr>'


def test_each_page_explains_anew() -> None:
    assert explainer()("τ") == explainer()("τ")
