"""HTML and Markdown: everything that users bring stays text, in markup as in scripts."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO

import numpy as np
from matplotlib.image import imread, imsave

from daamctl.reporting.document import Code, Document, Folded, Linked, Number, Plot, Section, Table, Text
from daamctl.reporting.figure_spec import Axis, Figure, Line, Panel, Picture, rows
from daamctl.reporting.render import to_html, to_markdown

HOSTILE = "</script><b>\"'&|`*_[x](y)\u2028"


def png() -> bytes:
    stream = BytesIO()
    imsave(stream, np.random.default_rng(0).random((64, 64, 3)), format="png")
    return stream.getvalue()


def document() -> Document:
    picture = Picture("a.png", HOSTILE, png())
    panel = Panel(HOSTILE, Axis(HOSTILE), rows([HOSTILE]), [Line([float("nan")], [0], HOSTILE)])
    plot = Plot(Figure("p", HOSTILE, {(HOSTILE,): [panel]}, (HOSTILE,)), [picture])
    table = Table("t", HOSTILE, [HOSTILE, "n"], [[HOSTILE, Number(0.5, std=0.25)], ["b", Number(None)]], note=HOSTILE)
    blocks = [Text(HOSTILE, caution=True), plot, Folded(HOSTILE, [table, Code(HOSTILE)])]
    return Document(HOSTILE, "run", [Section("s", HOSTILE, blocks)])


def test_html_escapes_everything() -> None:
    text = to_html(document(), version="1", interactive=True)
    assert "<b>" not in text
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\';' in text
    found = re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found.group(1))
    assert data["choices"] == data["views"][0]["chosen"] == [HOSTILE]
    (line,) = data["views"][0]["panels"][0]["marks"]
    assert (line["name"], line["x"]) == (HOSTILE, [None])
    assert len(re.findall(r"<script[ >]", text)) == len(re.findall("</script>", text)) == 4
    assert text.count("* plotly.js v") == 1
    assert re.findall(r'data-value="([^"]+)"', text) == ["0.5"]


def test_without_figures_there_is_no_plotly() -> None:
    empty = Document("D", "run", [Section("s", "S", [Text("t")])])
    for text in (to_html(empty, version="1"), to_html(document(), version="1", interactive=False)):
        assert "plotly.js v" not in text
        assert "application/json" not in text
        assert len(text) < 100_000


def test_pictures_in_the_page_have_few_colours_and_are_no_larger() -> None:
    text = to_html(document(), version="1", interactive=False)
    found = re.search(r'src="data:image/png;base64,([^"]+)"', text)
    assert found is not None
    data = base64.b64decode(found.group(1))
    assert len(data) < len(png()) / 2
    own, small = imread(BytesIO(png()))[..., :3], imread(BytesIO(data))[..., :3]
    assert own.shape == small.shape
    assert np.abs(own - small).mean() < 0.1
    assert len(np.unique(small.reshape(-1, 3), axis=0)) <= 256


def test_markdown_escapes_everything_and_keeps_code_as_it_is() -> None:
    text = to_markdown(document(), version="1")
    assert "<b>" not in text.replace(f"    {HOSTILE.splitlines()[0]}", "")
    assert "| b | – |" in text
    assert "50.0 ± 25.0 |" in text
    assert "](y)" not in text.replace("\\]", "").split("    </script>")[0]
    assert "(pictures/a.png)" in text


def test_code_in_a_text_is_code_in_both() -> None:
    table = Table("t", "Same title", ["n", "a|b `x`"], [["a_b", "`y_z`"]])
    blocks = [Text("Run: `daamctl ls --set 'a=[1]' <b>`"), Folded("Same title", [table])]
    coded = Document("D", "run", [Section("s", "S", blocks)])
    assert "Run: <code>daamctl ls --set &#39;a=[1]&#39; &lt;b&gt;</code>" in to_html(coded, version="1")
    markdown = to_markdown(coded, version="1")
    assert "Run: `daamctl ls --set 'a=[1]' <b>`" in markdown
    assert "| n | a\\|b `x` |" in markdown
    assert "| a\\_b | `y_z` |" in markdown
    assert markdown.count("Same title") == 1


def test_linked_cells_show_their_note_and_lead_to_files() -> None:
    rows = [["a", Linked(Number(0.5), HOSTILE, [("runs", "../runs"), ("report", "../r.html")])],
            ["b", Linked("not run", "no corpus")]]  # fmt: skip
    linked = Document("D", "run", [Section("s", "S", [Table("t", "c", ["n", "Ours"], rows, frozenset({1}))])])
    html, markdown = to_html(linked, version="1"), to_markdown(linked, version="1")
    assert '<td data-value="0.5" class="words noted">50.0<small>&lt;/script&gt;' in html
    assert '; <a href="../runs">runs</a>, <a href="../r.html">report</a></small></td>' in html
    assert '<td class="words noted">not run<small>no corpus</small></td>' in html
    assert "; [runs](../runs), [report](../r.html)) |" in markdown
    assert "| b | not run (no corpus) |" in markdown
    assert "<b>" not in html + markdown


def test_long_row_names_may_break() -> None:
    names = ["short", "a name of a row that is rather long"]
    table = Table("t", "c", ["n", "x"], [[name, Number(0.5)] for name in names])
    html = to_html(Document("D", "run", [Section("s", "S", [table])]), version="1")
    assert '<th scope="row" class="words">short</th>' in html
    assert '<th scope="row" class="words long">a name of a row that is rather long</th>' in html
