"""The report of the whole paper in a real browser: no error, nothing overflows, tables sort, at both widths."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from daamctl.stages import paper
from tests.smoke.test_report_browser import BROWSER, NAMES, WATCH

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser found: none of {', '.join(NAMES)}, CHROME not set")

ACT = """<script>
addEventListener("load", () => {
  const seen = {};
  try {
    for (const part of document.querySelectorAll("details")) part.open = true;
    const page = document.documentElement;
    seen.sideways = page.scrollWidth - page.clientWidth;
    seen.overflowing = [...document.querySelectorAll("th, td")]
      .filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent);
    seen.tables = document.querySelectorAll("table").length;
    const table = document.querySelector("#table-results-iemocap");
    table.tHead.rows[0].cells[2].querySelector("[role=button]").click();
    seen.highest = table.tBodies[0].rows[0].cells[0].textContent;
  } catch (error) { problems.push("act: " + error.stack); }
  seen.problems = problems;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>"""


@pytest.mark.parametrize("width", [1300, 500])
def test_page_holds_together(width: int, project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = paper.run(project)
    acting = path.with_name("acting.html")
    text = path.read_text(encoding="utf-8").replace("<head>", f"<head>{WATCH}", 1)
    acting.write_text(text.replace("</body>", f"{ACT}</body>"), encoding="utf-8")
    assert BROWSER is not None
    words = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
        f"--window-size={width},1000", "--virtual-time-budget=5000", "--dump-dom", acting.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(unescape(found.group(1)))
    assert seen["problems"] == []
    assert seen["sideways"] <= 0
    assert seen["overflowing"] == []
    assert seen["tables"] > 15
    assert seen["highest"] == "mixture-daam"
