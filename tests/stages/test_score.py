"""`crop`, `reconstruct` and `score`: from images to a report; what is finished is kept, what is wrong is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import read_arm_scores
from daamctl.cli.app import app
from daamctl.compute.local_engine import LocalEngine
from daamctl.config import Config, load_config
from daamctl.errors import ArtifactError, ConfigError, CorpusError
from daamctl.evaluation.scores import read_scores
from daamctl.planning.repair import repair_of
from daamctl.stages import crop, download, plan, reconstruct, score
from tests.fixtures.reconstruction import SETTINGS, write_images

SHARED = ("crop", "reconstruct", "score", "report", "plots")


def settings(root: Path) -> Config:
    config = load_config(root, "vqvae")
    return config.model_copy(
        update={
            "reconstructions": ("identity", "daam"),
            "crop": config.crop.model_copy(update={"size": 8, "per_image": 4}),
            "reconstruct": SETTINGS,
        }
    )


@pytest.fixture
def run(project: Path) -> tuple[Layout, Config]:
    """A pipeline with its crops."""
    config = settings(project)
    layout = Layout.of(project, "vqvae", config)
    download.run(layout, config, source=write_images(project / "mine"))
    crop.run(layout, config)
    return layout, config


def train(run: tuple[Layout, Config]) -> None:
    for arm in run[1].reconstructions:
        reconstruct.run(*run, method=arm)


def times(layout: Layout) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in layout.stage("reconstruct").rglob("*") if path.is_file()}


def test_images_to_report(run: tuple[Layout, Config], monkeypatch: pytest.MonkeyPatch) -> None:
    layout, config = run
    train(run)
    report = score.run(layout, config, track=False)
    found = read_arm_scores(layout.stage("score"))
    assert list(found.arms) == ["identity", "daam"]
    assert (found.train_crops, found.steps) == (32, 8)
    psnr, own = found.scores.figure("daam", "psnr"), found.scores.frames["scores"].filter(method="daam", metric="psnr")
    assert (psnr.units, own["items"].to_list()) == (2, [8, 8])
    tables = [pl.read_parquet(layout.stage("reconstruct") / f"daam/seed{seed}/scores.parquet") for seed in (1, 2)]
    assert own["value"].to_list() == pytest.approx([table["psnr"].mean() for table in tables], rel=1e-6)
    assert psnr.pooled == pytest.approx(own["value"].mean())
    assert read_scores(layout, "comparisons")["second"].to_list() == 4 * ["daam"]
    assert read_scores(layout, "confusion").is_empty()
    monkeypatch.chdir(layout.root)
    shown = CliRunner().invoke(app, ["show", "vqvae/daam"])
    assert shown.exit_code == 0, shown.output
    of_gap = next(row for row in found.scores.comparisons("psnr")).turned()
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["vqvae", "block", "daam", "identity", "p"]
    assert f"{of_gap.difference:+.3f} [".replace("-", "−") in shown.stdout
    unknown = CliRunner().invoke(app, ["show", "vqvae/none"])
    assert unknown.exit_code == 3
    assert "unknown scored block 'none'" in unknown.stderr
    page, text = report.read_text(encoding="utf-8"), (report.parent / "report.md").read_text(encoding="utf-8")
    assert "reconstruct.commitment" in page
    assert "reconstructed" in text
    assert "dB PSNR" in text
    with Image.open(report.parent / "pictures/reconstructions.png") as picture:
        assert picture.height > 3 * 8
    assert (layout.stage("plots") / "curves.png").is_file()

    def left(config: Config) -> list[str]:
        rows = plan.run(layout, config, blockers={})["stages"]
        return [row["stage"] for row in rows if row["state"] != "done"]

    assert left(config) == []
    assert left(config.model_copy(update={"score": config.score.model_copy(update={"reference": "daam"})})) == ["score"]
    before = times(layout)
    train(run)  # nothing to do
    assert times(layout) == before
    (layout.stage("reconstruct") / "daam/seed1/scores.parquet").write_bytes(b"cut")
    with pytest.raises(ArtifactError, match=r"scores.parquet") as damaged:
        score.run(layout, config, track=False)
    command = "daamctl reconstruct vqvae --method daam --seed 1 --force"
    assert repair_of(damaged.value.path, layout) == f"make it again: {command}"
    train(run)
    changed = {path.parent.name for path, stamp in times(layout).items() if before.get(path) != stamp}
    assert changed == {"seed1"}
    assert left(config) == ["score"]
    made = json.loads((layout.stage("reconstruct") / "daam/seed1/result.json").read_text())
    assert made["block_parameters"] == [24] * 4
    other = config.model_copy(update={"reconstruct": SETTINGS.model_copy(update={"lr": 1e-3})})
    with pytest.raises(ArtifactError, match=r"result\.json was made with other settings or crops") as old:
        score.run(layout, other, track=False)
    assert repair_of(old.value.path, layout) == "make it again: daamctl run vqvae"  # all arms at once
    fewer = config.model_copy(update={"reconstruct": SETTINGS.model_copy(update={"seeds": (2,)})})
    reconstruct.run(layout, fewer, method="daam")
    assert sorted(path.name for path in (layout.stage("reconstruct") / "daam").iterdir()) == ["seed2"]


@pytest.mark.slow
def test_workers_give_the_same_files(run: tuple[Layout, Config]) -> None:
    layout, config = run
    folder = reconstruct.run(layout, config, method="daam")
    alone = {path.parent.name: path.read_bytes() for path in folder.glob("*/weights.safetensors")}
    shutil.rmtree(folder)
    with LocalEngine(workers=2) as engine:
        reconstruct.run(layout, config, method="daam", engine=engine)
    assert {path.parent.name: path.read_bytes() for path in folder.glob("*/weights.safetensors")} == alone


def test_without_crops_the_command_is_named(project: Path) -> None:
    config = settings(project)
    layout = Layout.of(project, "vqvae", config)
    with pytest.raises(ArtifactError, match="no file") as missing:
        reconstruct.run(layout, config, method="daam")
    assert repair_of(missing.value.path, layout) == "make it: daamctl crop vqvae"


def test_a_corpus_without_images(project: Path) -> None:
    config = load_config(project, "demo-text")
    layout = Layout.of(project, "demo-text", config)
    download.run(layout, config)
    with pytest.raises(CorpusError, match="has no images to reconstruct"):
        crop.run(layout, config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop: {size: 30}", r"crop.size \(30\) must be a multiple of 8: reconstruct.widths halve it 3 times"),
        ("reconstruct: {widths: [30, 64, 128]}", r"num_heads \(4\) must divide every width, got 30"),
        ("score: {reference: none}", "score.reference: 'none' is not among reconstructions"),
    ],
)
def test_settings_that_do_not_fit(project: Path, text: str, message: str) -> None:
    path = project / "pipelines/mine.yaml"
    path.write_text(f"download: {{corpus: images}}\nreconstructions: [identity, daam]\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(project, "mine")
