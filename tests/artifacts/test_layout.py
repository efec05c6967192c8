"""Where artifacts lie, and the commands that errors name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from daamctl.artifacts.layout import Layout, split_recipe
from daamctl.config import Config
from daamctl.data.stage_table import folder_stages

ROOT = Path("/project")


def config(corpus: str, encoder: str) -> Config:
    return Config.model_validate({"download": {"corpus": corpus}, "extract": {"encoder": encoder}})


def test_pipeline_names_every_folder() -> None:
    layout = Layout.of(ROOT, "mine", config("emodb", "wavlm-large"))
    assert layout.utterances == ROOT / "data/download/mine/utterances.parquet"
    assert layout.clips == ROOT / "data/segment/mine/clips.parquet"
    assert layout.embeddings == ROOT / "data/extract/mine"
    assert layout.method("mha") == ROOT / "data/train/mine/mha"
    assert layout.stage("report") == ROOT / "data/report/mine"
    assert layout.corpora == ROOT / "data/corpora"
    assert layout.work == ROOT / "data/.work"


@pytest.mark.parametrize(
    ("encoder", "run"),
    [
        ("wavlm-large", "emodb-wavlm-large"),
        ("microsoft/wavlm-base", "emodb-wavlm-base"),
        ("/models/mine", "emodb-mine"),
        ("models/mine/", "emodb-mine"),
    ],
)
def test_ad_hoc_run_shares_tables_and_has_its_own_embeddings(encoder: str, run: str) -> None:
    layout = Layout.of(ROOT, None, config("emodb", encoder))
    assert layout.utterances == ROOT / "data/download/emodb/utterances.parquet"
    assert layout.clips == ROOT / "data/segment/emodb/clips.parquet"
    assert layout.embeddings == ROOT / "data/extract" / run
    assert layout.method("mha") == ROOT / "data/train" / run / "mha"


def test_another_recipe_shares_the_embeddings_and_has_its_own_results() -> None:
    own, other = (Layout.of(ROOT, "mine", Config(), recipe=recipe) for recipe in (None, "published"))
    assert (other.utterances, other.clips, other.embeddings) == (own.utterances, own.clips, own.embeddings)
    assert other.run_name == "mine-published-recipe"
    assert other.method("mha") == ROOT / "data/train/mine-published-recipe/mha"
    assert other.stage("evaluate") == ROOT / "data/evaluate/mine-published-recipe"
    ad_hoc = Layout.of(ROOT, None, config("emodb", "wavlm-large"), recipe="searched")
    assert ad_hoc.run_name == "emodb-wavlm-large-searched-recipe"
    assert ad_hoc.embeddings == ROOT / "data/extract/emodb-wavlm-large"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mine", ("mine", None)),
        ("mine-published-recipe", ("mine", "published")),
        ("mine-as-published-searched-recipe", ("mine-as-published", "searched")),
        ("mine-other-recipe", ("mine-other-recipe", None)),
    ],
)
def test_name_of_a_run_tells_its_recipe(name: str, parts: tuple[str, str | None]) -> None:
    assert split_recipe(name) == parts


def test_command_of_a_whole_run_names_the_pipeline_first() -> None:
    layout = Layout.of(ROOT, "mine", Config(), ["train.recipe=published"], "published")
    assert layout.command("run") == "daamctl run mine --set train.recipe=published"
    assert layout.command("evaluate") == "daamctl evaluate mine --set train.recipe=published"
    assert layout.command("extract") == "daamctl extract mine"


def test_command_of_a_pipeline() -> None:
    layout = Layout.of(ROOT, "mine", Config())
    assert layout.command("train", "--method", "mha") == "daamctl train mine --method mha"


def test_command_of_an_ad_hoc_run_repeats_its_options() -> None:
    layout = Layout.of(ROOT, None, config("emodb", "wavlm-large"))
    assert layout.command("extract") == "daamctl extract --corpus emodb --encoder wavlm-large"


GIVEN = [
    "download.num_groups=3",
    "segment.tail=drop",
    "extract.encoder=/my models/one",
    "train.lr=0.1",
    "methods=[mean]",
]


@pytest.mark.parametrize(
    ("stage", "repeated"),
    [("download", 1), ("segment", 2), ("extract", 3), ("train", 5), ("finetune", 5), ("report", 5), ("preflight", 5)],
)
def test_command_repeats_the_settings_given_that_the_stage_goes_by(stage: str, repeated: int) -> None:
    layout = Layout.of(ROOT, "mine", Config(), GIVEN)
    words = shlex.split(layout.command(stage, "--force"))
    expected = [
        "daamctl",
        stage,
        "mine",
        *(part for word in GIVEN[:repeated] for part in ("--set", word)),
    ]
    assert words == [*expected, "--force"]
    assert ("'extract.encoder=/my models/one'" in layout.command(stage)) is (repeated > 2)


def test_command_of_an_ad_hoc_run_is_quoted_and_sets_nothing_twice() -> None:
    layout = Layout.of(ROOT, None, config("emodb", "/my models/one"), ["extract.layer_00=true", "ablate.k=[1]"])
    assert layout.command("extract") == (
        "daamctl extract --corpus emodb --encoder '/my models/one' --set extract.layer_00=true"
    )
    assert layout.command("segment") == "daamctl segment --corpus emodb"
    assert shlex.split(layout.command("ablate"))[-2:] == ["--set", "ablate.k=[1]"]
    extra = "--set extract.layer_00=false"
    assert layout.command("extract", extra).count("extract.layer_00") == 1
    assert layout.command("extract", extra).endswith(extra)


def test_every_stage_has_its_module() -> None:
    folder = Path(__file__).resolve().parents[2] / "daamctl/stages"
    for stage in folder_stages():
        assert (folder / f"{stage}.py").is_file()
