"""The folder of another pipeline, or of other inputs, in the place of this one's: every reader refuses it."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.masked import masked_run
from daamctl.cli.app import app
from daamctl.config import load_config
from daamctl.errors import ArtifactError
from daamctl.planning.repair import repair_of
from daamctl.stages import (
    ablate,
    crop,
    download,
    evaluate,
    export,
    extract,
    importance,
    mlm,
    reconstruct,
    score,
    segment,
    train,
)
from daamctl.store.files import read_json
from daamctl.store.records import write_record
from tests.fixtures.exported import METHODS, in_project
from tests.fixtures.masked_models import save_masked, save_texts
from tests.fixtures.pictures import blank_pictures
from tests.fixtures.projects import write_project
from tests.fixtures.reconstruction import write_images
from tests.fixtures.recordings import write_manifest, write_pipeline
from tests.stages.test_mlm import FAST

SETTINGS_OF_BOTH = f"methods: [{', '.join(METHODS)}]\nablate: {{k: [1]}}\nimportance: {{audit: true}}\n"
RECONSTRUCT = """
reconstructions: [identity]
crop: {size: 16, resize: null}
reconstruct: {widths: [8, 16], codes: 16, code_size: 8, norm_groups: 2, batch_size: 8, epochs: 1, seeds: [1],
  device: cpu, precision: float32}
score: {reference: identity}
"""


def run_stages(root: Path, name: str) -> Layout:
    config = load_config(root, name)
    layout = Layout.of(root, name, config)
    for stage in (download, segment, extract):
        stage.run(layout, config)
    for method in METHODS:
        train.run(layout, config, method=method, track=False)
    evaluate.run(layout, config)
    ablate.run(layout, config, track=False)
    importance.run(layout, config)
    return layout


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with `mine` and `other`: the same settings, other recordings of the same names."""
    root = write_project(tmp_path_factory.mktemp("both"))
    write_manifest(root / "tones", seed=1)
    for name, folder in (("mine", "tones"), ("other", "more")):
        write_pipeline(root, name, SETTINGS_OF_BOTH)
        path = root / "pipelines" / f"{name}.yaml"
        path.write_text(path.read_text().replace("tones/tones.csv", f"{folder}/{folder}.csv"))
    write_manifest(root / "more", seed=2).rename(root / "more" / "more.csv")
    with in_project(root), blank_pictures():
        for name in ("mine", "other"):
            run_stages(root, name)
    return root


@pytest.fixture
def root(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(both, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    return tmp_path / "project"


def replace(root: Path, *stages: str, mine: str = "mine", other: str = "other") -> None:
    """`cp -a data/STAGE/other data/STAGE/mine`."""
    for stage in stages:
        shutil.rmtree(root / "data" / stage / mine)
        shutil.copytree(root / "data" / stage / other, root / "data" / stage / mine)


def refused(command: str, name: str = "mine") -> str:
    """The message of a command that must end with exit code 3 and one line of text, and one of advice."""
    more = ["--no-track"] if command in ("train", "ablate", "report") else []
    method = ["--method", METHODS[0]] if command == "train" else []
    where = [name] if command == "truncate" else ["--pipeline", name]
    result = CliRunner().invoke(app, [command, *where, *method, *more])
    assert result.exit_code == 3, (command, result.output, result.exception)
    (line,) = [line for line in result.output.splitlines() if line.startswith("ArtifactError: ")]
    return line


def test_nothing_is_refused_that_is_as_it_was_made(root: Path) -> None:
    config = load_config(root, "mine")
    layout = Layout.of(root, "mine", config)
    before = read_json(layout.embeddings / "embeddings.json")
    run_stages(root, "mine")
    assert read_json(layout.embeddings / "embeddings.json") == before
    shutil.rmtree(root / "data" / "extract")  # to save space
    evaluate.run(layout, config)


@pytest.mark.parametrize("command", ["segment", "extract", "train", "preflight"])
def test_downloads_of_another_pipeline(root: Path, command: str) -> None:
    replace(root, "download")
    line = refused(command)
    if command == "segment":
        assert line.endswith("the utterances are of 'manifest:more', but the settings ask for 'manifest:tones'")
    else:
        assert line.endswith("utterances.parquet, which lies beside it")


@pytest.mark.parametrize("command", ["extract", "train", "preflight", "ablate", "importance", "truncate"])
@pytest.mark.parametrize("stages", [("segment",), ("download", "segment", "extract")])
def test_clips_of_another_pipeline(root: Path, command: str, stages: tuple[str, ...]) -> None:
    replace(root, *stages)
    line = refused(command)
    if command != "importance":  # it reads the folds first
        assert "are of 'manifest:more', but the settings ask for 'manifest:tones'" in line


@pytest.mark.parametrize("command", ["train", "preflight", "ablate", "importance", "truncate", "evaluate", "report"])
def test_embeddings_of_another_pipeline(root: Path, command: str) -> None:
    replace(root, "extract")
    line = refused(command)
    assert "are of 'manifest:more'" in line or "was trained on other embeddings than those in " in line


@pytest.mark.parametrize("command", ["train", "preflight", "ablate", "importance", "truncate"])
@pytest.mark.parametrize("name", ["embeddings-00000.parquet", "labels.parquet"])
def test_a_file_of_other_embeddings(root: Path, command: str, name: str) -> None:
    """`cp` of one shard, or of the labels; the size, the columns and the number of clips are the same."""
    for folder in ("other", "mine"):
        path = root / "data" / "extract" / folder / name
        assert path.exists()
    content = (root / "data" / "extract" / "other" / name).read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert refused(command).endswith(f"{name} is damaged or from elsewhere: its SHA-256 is not the one recorded")


def test_embeddings_of_other_clips_are_made_again(root: Path) -> None:
    """As after `segment` with other settings, before `extract`."""
    config = load_config(root, "mine", {"segment.max_duration_s": 0.2, "segment.tail": "drop"})
    layout = Layout.of(root, "mine", config)
    segment.run(layout, config)
    head = read_json(layout.embeddings / "embeddings.json")
    head["settings"]["segment"] |= {"max_duration_s": 0.2, "tail": "drop"}
    del head["sha256"]
    write_record(layout.embeddings / "embeddings.json", head)
    with pytest.raises(ArtifactError, match=r"the embeddings in .* are not of the clips in .*clips.parquet") as error:
        train.run(layout, config, method=METHODS[0], track=False)
    assert repair_of(error.value.path, layout) == "make it again: daamctl extract mine"


@pytest.mark.parametrize("command", ["evaluate", "importance", "report"])
def test_folds_of_another_pipeline(root: Path, command: str) -> None:
    replace(root, "train")
    assert refused(command).endswith("result.json belongs to the run 'other', not 'mine'")


def test_folds_of_another_pipeline_are_trained_again(root: Path) -> None:
    replace(root, "train")
    result = CliRunner().invoke(app, ["train", "--pipeline", "mine", "--method", METHODS[1], "--no-track"])
    assert result.exit_code == 0, result.output
    assert result.output.count("belongs to the run 'other', not 'mine'") == 3
    made = read_json(root / "data" / "train" / "mine" / METHODS[1] / "fold1-seed1" / "result.json")
    assert made["run"]["pipeline"] == "mine"


def test_folds_of_embeddings_that_were_made_again_are_refused(root: Path) -> None:
    (root / "pipelines" / "mine.yaml").write_text(
        (root / "pipelines" / "mine.yaml").read_text().replace("extract: {", "extract: {seed: 1, ")
    )
    config = load_config(root, "mine")
    layout = Layout.of(root, "mine", config)
    extract.run(layout, config)
    for command in ("evaluate", "importance", "report"):
        assert "was trained on other embeddings than those in " in refused(command)
    with pytest.raises(ArtifactError, match="was trained on other embeddings than those in ") as error:
        export.run(root, f"mine/{METHODS[0]}", root / "model")
    assert error.value.path is not None
    assert repair_of(error.value.path) == "make it again: daamctl run mine"
    with pytest.raises(ArtifactError, match="was trained on other embeddings than those in "):
        ablate.run(layout, load_config(root, "mine", {"ablate.rank_by": METHODS[0]}), track=False)
    for method in METHODS:
        train.run(layout, config, method=method, track=False)
    evaluate.run(layout, config)


@pytest.mark.parametrize(
    ("stage", "file"), [("evaluate", "evaluation"), ("ablate", "ablation"), ("importance", "summary")]
)
def test_results_of_another_pipeline(root: Path, stage: str, file: str) -> None:
    replace(root, stage)
    assert refused("report").endswith(f"{file}.json belongs to the run 'other'")


def test_crops_and_reconstructions_of_another_pipeline(root: Path) -> None:
    layouts = {}
    for name, more in (("mine", ""), ("other", ", seed: 3")):
        write_images(root / f"{name}-images", 12 if name == "mine" else 14)
        text = RECONSTRUCT.replace("resize: null", f"resize: null{more}")
        (root / "pipelines" / f"{name}.yaml").write_text(
            f"# Crops.\ndownload: {{corpus: images, source: {name}-images}}\n{text}"
        )
        config = load_config(root, name)
        layouts[name] = layout = Layout.of(root, name, config)
        for stage in (download, crop):
            stage.run(layout, config)
        reconstruct.run(layout, config, method="identity")
    config, layout = load_config(root, "mine"), layouts["mine"]
    score.run(layout, config, track=False)
    crops = root / "data" / "crop"
    shutil.copytree(crops / "mine", crops / "kept")
    replace(root, "crop")
    with pytest.raises(ArtifactError, match=r"crops\.parquet was made with other settings"):
        score.run(layout, config, track=False)
    plain = load_config(root, "mine", {"crop.seed": 3})
    again = partial(reconstruct.run, layout, plain, method="identity")
    for run in (partial(score.run, layout, plain, track=False), again):
        with pytest.raises(ArtifactError, match=r"crops\.parquet was not made from .*utterances\.parquet, which lies"):
            run()
    replace(root, "crop", other="kept")
    replace(root, "reconstruct")
    with pytest.raises(ArtifactError, match=r"result\.json was made with other settings or crops"):
        score.run(layout, config, track=False)
    replace(root, "download")
    with pytest.raises(ArtifactError, match=r"the utterances are of 'images:other-images', but the settings ask for"):
        crop.run(layout, config)


def test_a_masked_run_of_another_name(root: Path) -> None:
    texts = save_texts(root / "texts")
    options = {"source": texts, "fusions": ["concat"], "settings": FAST}
    mlm.run(root, str(save_masked(root / "other")), **options)  # type: ignore[arg-type]
    shutil.copytree(root / "data" / "mlm" / "other", root / "data" / "mlm" / "mine")
    with pytest.raises(ArtifactError, match=r"mlm\.json belongs to the run 'other'"):
        masked_run(root / "data" / "mlm" / "mine").open()
