"""The report in a real browser: no error, every figure drawn, every control works, nothing is asked of a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from daamctl.config import Config
from daamctl.stages import evaluate, importance, report
from tests.fixtures.folds import make_layout, write_method

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = os.environ.get("CHROME") or next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser found: none of {', '.join(NAMES)}, CHROME not set")

WATCH = """<script>
window.problems = [];
addEventListener("error", event => problems.push("error: " + event.message));
addEventListener("unhandledrejection", event => problems.push("rejection: " + event.reason));
addEventListener("securitypolicyviolation", event => problems.push("policy: " + event.blockedURI));
for (const name of ["error", "warn"]) {
  const own = console[name];
  console[name] = (...words) => { problems.push(name + ": " + words.join(" ")); own(...words); };
}
</script>"""

# What a reader does, as far as a script can do it: presses, picks, sorts. What came of it ends up in the page.
ACT = """<script>
addEventListener("load", async () => {
  const pause = () => new Promise(done => setTimeout(done, 150));
  const seen = {};
  try {
    await pause();
    const figures = [...document.querySelectorAll("figure[data-figure]")];
    const live = key => document.querySelector("#figure-" + key + " .live");
    seen.ready = figures.filter(figure => figure.classList.contains("ready")).length;
    seen.drawn = figures.filter(figure => figure.querySelector(".js-plotly-plot .main-svg")).length;
    seen.pictures = figures.filter(figure =>
      getComputedStyle(figure.querySelector("img")).display === "none").length;
    const map = live("importance"), figure = map.parentElement;
    seen.titles = map.layout.annotations.map(one => one.text);
    const pick = async text => {  // an option of a control, which is a list or a group of buttons
      for (const option of figure.querySelectorAll("option")) if (option.text === text) {
        option.parentElement.value = text;
        option.parentElement.dispatchEvent(new Event("change"));
      }
      for (const input of figure.querySelectorAll("input")) if (input.value === text) input.click();
      await pause();
    };
    const first = () => ({z: Array.from(map.data[0].z[0]), lines: map.data.slice(1).map(line => Array.from(line.x)),
      label: map.layout.xaxis2.title.text});
    seen.controls = [...figure.querySelectorAll(".controls > div")].map(box =>
      [...box.querySelectorAll("option, input")].map(one => one.value));
    seen.states = [first()];
    for (const text of ["untrained", "difference"]) { await pick(text); seen.states.push(first()); }
    await pick("trained");
    await pick(seen.controls[1][1]);
    seen.fold = first();
    await pick(seen.controls[0][1]);
    seen.other = first();
    seen.kept = figure.querySelector("select").value;
    const learning = live("learning"), inputs = learning.parentElement.querySelectorAll("input");
    inputs[inputs.length - 1].click();
    await pause();
    seen.learning = [learning.layout.title.text, inputs[inputs.length - 1].value];
    const table = document.querySelector("#table-results"), heading = table.tHead.rows[0].cells[1];
    const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
    seen.order = [order()];
    for (let press = 0; press < 3; press += 1) {
      const button = heading.querySelector("[role=button]");
      button.focus();
      seen.focused = document.activeElement === button;
      button.dispatchEvent(new KeyboardEvent("keydown", {key: press ? " " : "Enter", cancelable: true}));
      seen.order.push([heading.getAttribute("aria-sort"), ...order()]);
    }
    seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    seen.buttons = [...document.querySelectorAll(".modebar-btn")].map(button => button.dataset.title);
  } catch (error) { problems.push("act: " + error.stack); }
  seen.problems = problems;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>"""


def browse(page: Path, profile: Path, *, width: int = 1300) -> dict[str, Any]:
    """Open a page, let `ACT` do its work, and read what it saw."""
    assert BROWSER is not None
    words = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", f"--window-size={width},1000",
        "--virtual-time-budget=20000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return dict(json.loads(unescape(found.group(1))))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a script that watches at its head and one that acts at its end."""
    config = Config.model_validate({"methods": ["none", "daam-v1", "daam-v2"], "importance": {"dpi": 40}})
    layout = make_layout(tmp_path_factory.mktemp("browser"))
    write_method(layout, config, "none", skill=0.5)
    write_method(layout, config, "daam-v1", skill=1.0, density_shape=(6, 32), learned=1.0)
    write_method(layout, config, "daam-v2", skill=2.0, density_shape=(6, 32), learned=0.5)
    evaluate.run(layout, config)
    importance.run(layout, config)
    path = report.run(layout, config, track=False)
    text = path.read_text(encoding="utf-8")
    acting = path.with_name("acting.html")
    acting.write_text(text.replace("<head>", f"<head>{WATCH}", 1).replace("</body>", f"{ACT}</body>"), encoding="utf-8")
    return acting


@pytest.fixture(scope="module")
def seen(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return browse(page, tmp_path_factory.mktemp("profile"))


def test_no_error_and_no_request(seen: dict[str, Any]) -> None:
    assert seen["problems"] == []


def test_every_figure_is_drawn_in_place_of_its_picture(seen: dict[str, Any], page: Path) -> None:
    expected = page.read_text(encoding="utf-8").count(" data-figure=")
    assert expected == 6
    assert (seen["ready"], seen["drawn"], seen["pictures"]) == (expected, expected, expected)


def test_maps_can_be_switched_to_untrained_and_difference(seen: dict[str, Any]) -> None:
    trained, untrained, difference = seen["states"]
    assert trained["z"] != untrained["z"]
    assert difference["z"] == pytest.approx(
        [a - b for a, b in zip(trained["z"], untrained["z"], strict=True)], abs=1e-6
    )
    shares, before = trained["lines"]
    assert untrained["lines"] == [shares, before]
    change = [a - b for a, b in zip(shares, before, strict=True)]
    assert difference["lines"] == [pytest.approx(change, abs=2e-4)]
    assert sum(shares) == pytest.approx(100, abs=0.01)
    assert difference["label"] == "Contribution, trained minus untrained (points)"


def test_runs_and_methods_can_be_picked(seen: dict[str, Any]) -> None:
    methods, runs, maps = seen["controls"]
    assert len(methods) == 2
    assert runs[0] == "mean of 5 runs"
    assert len(runs) == 6
    assert maps == ["trained", "untrained", "difference"]
    assert seen["fold"]["z"] != seen["states"][0]["z"]
    assert seen["other"]["z"] != seen["fold"]["z"]
    assert seen["kept"] == runs[1]  # another method keeps the run
    assert seen["learning"][0] == seen["learning"][1] == "none"
    assert [title.partition(",")[0] for title in seen["titles"]] == [seen["controls"][0][0], "Layer contribution"]


def test_tables_sort_by_keyboard_and_back(seen: dict[str, Any]) -> None:
    start, down, up, back = seen["order"]
    assert start == ["daam-v2", "daam-v1", "none"]
    assert down == ["descending", *start]
    assert up == ["ascending", *start[::-1]]
    assert back == [None, *start]
    assert seen["focused"] is True


def test_plotly_offers_nothing_that_leaves_the_page(seen: dict[str, Any]) -> None:
    assert set(seen["buttons"]) == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}


def test_page_never_scrolls_sideways(page: Path, seen: dict[str, Any], tmp_path: Path) -> None:
    assert seen["wide"] <= 0
    assert browse(page, tmp_path, width=500)["wide"] <= 0
