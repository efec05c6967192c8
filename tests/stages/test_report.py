"""Stage `report`: what stands in the page, and that it is whole, escaped and self-contained."""

import json
import re
from html.parser import HTMLParser

import pytest

from daamctl.artifacts.io import write_json
from daamctl.config import Config
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.stages import evaluate, importance, report
from tests.fixtures.folds import make_layout, write_method

SETTINGS = {
    "methods": ["none", "daam-v1"],
    "importance": {"dpi": 40},
    "download": {"corpus": "iemocap"},
    "extract": {"encoder": "wavlm-large"},
    "report": {"published": "T2-iemocap"},
}
CONFIG = Config.model_validate(SETTINGS)
VOID = {"meta", "img", "br", "hr", "link"}


class Page(HTMLParser):
    """Collects images, checks that tags nest, and refuses scripts and addresses outside the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert tag != "script"
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        self.images += [values] if tag == "img" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def ablation() -> dict:
    def group(value, **more):
        rows = [{"fold": fold, "seed": 1, "accuracy": value} for fold in range(1, 6)]
        return {**more, "per_fold": rows, "mean": value, "sample_std": 0.01, "n": 5}

    differences = [{"fold": fold, "seed": 1, "difference": 0.03} for fold in range(1, 6)]
    return {
        "rank_by": "daam-v1",
        "method": "none",
        "ranking": [2, 1, 3, 6, 5, 4],
        "baseline": group(0.62, layers=[1, 2, 3, 4, 5, 6]),
        "groups": [group(0.55, name="highest-1", kind="highest", k=1, layers=[2]),
                   group(0.52, name="lowest-1", kind="lowest", k=1, layers=[4])],
        "differences": [{"k": 1, "per_fold": differences, "mean": 0.03, "sample_std": 0.0, "n": 5}],
        "unit": "utterance",
        "notes": ["A one-layer DAAM is the identity at start."],
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with everything in it: layout, HTML, Markdown."""
    layout = make_layout(tmp_path_factory.mktemp("report"))
    write_method(layout, CONFIG, "none", skill=2.0)
    write_method(layout, CONFIG, "daam-v1", folds=(1, 2, 3, 4), density_shape=(6, 8), learned=0.01)
    evaluate.run(layout, CONFIG)
    importance.run(layout, CONFIG)
    write_json(layout.stage("ablate") / "ablation.json", ablation())
    path = report.run(layout, CONFIG)
    return layout, path.read_text(encoding="utf-8"), (path.parent / "report.md").read_text(encoding="utf-8")


def test_page_is_self_contained(made):
    page = Page(made[1])
    assert len(page.images) == 1 + 2 + 2 * 2
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.images)
    assert all(len(image["alt"]) > 30 for image in page.images)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "http" not in re.sub(r'src="[^"]*"', "", made[1])


def test_tables_have_captions_and_scopes(made):
    text = made[1]
    assert text.count("<table>") == text.count("<caption>") > 7
    assert text.count('scope="row"') > 20


def test_numbers_of_the_evaluation_stand_in_the_page(made):
    layout, text, markdown = made
    evaluation = json.loads((layout.stage("evaluate") / "evaluation.json").read_text())
    summary = evaluation["methods"]["none"]["summary"]["utterance"]["accuracy"]
    figure = f"{100 * summary['mean']:.1f} ± {100 * summary['sample_std']:.1f}"
    assert figure in text
    assert figure in markdown
    majority = evaluation["chance"]["utterance"]["majority_fraction"]
    assert f"would give {100 * majority:.1f} % accuracy and 25.0 % balanced accuracy" in text


def test_headline_says_what_was_run(made):
    assert "Corpus iemocap, frozen encoder wavlm-large: 200 test utterances" in made[1]
    assert "never on the test group" in made[1]
    assert "none is highest with" in made[1]


def test_missing_fold_is_shown(made):
    assert "daam-v1: not every fold is finished; missing fold 5 seed 1" in made[1]
    assert "| daam-v1 | 5 | 1 |" in made[2]
    assert re.search(r"\| daam-v1 \|.*\| missing \|", made[2])


def test_selection_inflation(made):
    row = next(line for line in made[2].splitlines() if line.startswith("| none |") and line.endswith("+3.0 |"))
    assert row.count("±") == 3


def test_published_beside_ours(made):
    row = next(line for line in made[2].splitlines() if line.startswith("| daam-v1 | 67.4 ± 1.49"))
    assert row.count("±") == 3
    assert "| mixture-daam | 67.9 ± 1.35 ✗ | no counterpart | – | no counterpart |" in made[2]
    assert "| none | not printed |" in made[2]
    assert "not comparable" not in made[1]


def test_other_corpus_is_called_not_comparable(made):
    layout = made[0]
    path = layout.stage("evaluate") / "evaluation.json"
    before = path.read_text()
    changed = json.loads(before)
    changed["provenance"]["config"]["download"]["corpus"] = "demo"
    try:
        write_json(path, changed)
        text = report.run(layout, CONFIG).read_text()
    finally:
        path.write_text(before)
    assert "Our corpus is demo, the published one is iemocap: the figures are not comparable." in text


def test_importance_and_ablation(made):
    assert "mostly geometry" in made[1]
    assert "| highest-1 | 2 | 55.0 ± 1.0 | 5 | −7.0 |" in made[2]
    assert "| 1 | +3.0 ± 0.0 | 5 | 5 of 5 |" in made[2]
    assert "| single-layer-high-if | 9 | 64.0 | 2.7 |" in made[2]


def test_markdown_links_lead_to_pictures(made):
    layout, _, text = made
    links = re.findall(r"\]\((pictures/[^)]+)\)", text)
    assert len(links) == 7
    assert {layout.stage("report") / link for link in links} == set(layout.stage("report").glob("pictures/*.png"))


def test_markdown_tables_are_regular(made):
    lines = made[2].splitlines()
    for index, line in enumerate(lines):
        if line.startswith("|:---"):
            assert line.count("|") == lines[index - 1].count("|") == lines[index + 1].count("|")


def test_settings_are_printed(made):
    assert "published: T2-iemocap" in made[1]
    assert "65d9b1d" in made[1]
    assert "00112233aabbccdd" in made[1]


def test_bare_minimum(tmp_path):
    """One method, no importance, no ablation, no published table: the page says how to make the rest."""
    layout, config = make_layout(tmp_path), Config.model_validate({"methods": ["none"], "report": {"title": "<b>&"}})
    write_method(layout, config, "none", folds=(1,), epochs=1)
    evaluate.run(layout, config)
    text = report.run(layout, config).read_text()
    Page(text)
    assert "<h1>&lt;b&gt;&amp;</h1>" in text
    assert "Not made yet; make it: daamctl importance --pipeline toy" in text
    assert "Not made yet; make it: daamctl ablate --pipeline toy" in text
    assert "no other method was run" in text
    assert "Published figures" not in text
    assert (layout.stage("report") / "report.md").read_text().startswith("# &lt;b&gt;&amp;\n")


def test_without_dev_group_and_densities(tmp_path):
    config = Config.model_validate({"methods": ["none"], "train": {"selection": "best-on-test"}})
    layout = make_layout(tmp_path)
    write_method(layout, config, "none")
    evaluate.run(layout, config)
    importance.run(layout, config)
    text = report.run(layout, config).read_text()
    assert "so figures are optimistic" in text
    assert "No finished fold of none has a density" in text
    assert "held-out training group" not in text


def test_no_evaluation_names_the_command(tmp_path):
    with pytest.raises(ArtifactError, match=r"no file .*evaluation\.json") as error:
        report.run(make_layout(tmp_path), CONFIG)
    assert error.value.fix == "make it: daamctl evaluate --pipeline toy"


def test_lost_picture_names_the_command(made):
    layout = made[0]
    picture = layout.stage("importance") / "daam-v1-heatmap.png"
    data = picture.read_bytes()
    picture.unlink()
    try:
        with pytest.raises(ArtifactError, match=r"no picture .*daam-v1-heatmap\.png") as error:
            report.run(layout, CONFIG)
    finally:
        picture.write_bytes(data)
    assert error.value.fix == "make it: daamctl importance --pipeline toy"


def test_unknown_published_table(made):
    config = Config.model_validate({**SETTINGS, "report": {"published": "T2-iemocop"}})
    with pytest.raises(UnknownNameError, match="did you mean 'T2-iemocap'"):
        report.run(made[0], config)
