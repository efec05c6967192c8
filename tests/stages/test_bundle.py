"""Bundles: what `bundle` writes `verify` accepts anywhere, and nothing that was changed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.errors import ArtifactError
from daamctl.stages import bundle
from daamctl.store.records import SEAL, seal_of
from daamctl.store.version import __version__
from tests.fixtures.exported import in_project, shared_project

Files = dict[str, bytes]
EVALUATION = "data/evaluate/tiny/evaluation.json"
FIGURES = "data/evaluate/tiny/figures.parquet"
FOLD = "data/train/tiny/weighted-sum/fold2-seed1"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = shared_project(tmp_path_factory)
    with in_project(root):
        return bundle.write(root, "tiny", tmp_path_factory.mktemp("bundles") / "tiny.zip")


def opened(path: Path) -> Files:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def closed(files: Files, path: Path, *, hashed: bool = True) -> Path:
    """Write a bundle; with the hashes of its files in the metadata."""
    if hashed:
        crate = json.loads(files[bundle.CRATE])
        for one in crate["@graph"]:
            if one["@type"] == "File" and one["@id"] in files:
                one["sha256"] = hashlib.sha256(files[one["@id"]]).hexdigest()
        files = {**files, bundle.CRATE: json.dumps(crate).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def sealed(record: bytes, **changes: object) -> bytes:
    content = {**json.loads(record), **changes}
    return json.dumps({**content, SEAL: seal_of(content)}).encode()


def of_table(content: bytes, change: Callable[[pl.DataFrame], pl.DataFrame]) -> bytes:
    table = pq.read_table(io.BytesIO(content))
    changed = change(pl.DataFrame(pl.from_arrow(table))).to_arrow().cast(table.schema.remove_metadata())
    out = io.BytesIO()
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), out)
    return out.getvalue()


def test_a_bundle_is_verified_without_its_project(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = bundle.verify(written)
    assert found.wrong == []
    assert (found.run, found.folds) == ("tiny", 6)
    result = CliRunner().invoke(app, ["verify", str(written)])
    assert result.exit_code == 0
    assert "Verified" in result.output
    assert "made by" not in result.output


def published(path: Path) -> str | None:
    (root,) = [one for one in json.loads(opened(path)[bundle.CRATE])["@graph"] if one["@id"] == "./"]
    return root.get("datePublished")


def test_the_same_run_gives_the_same_bytes(
    written: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = shutil.copytree(shared_project(tmp_path_factory), tmp_path / "project")
    for file in root.rglob("*"):
        os.utime(file, (0, 0))  # git keeps no times
    with in_project(root):
        again = bundle.write(root, "tiny", tmp_path / "again.zip")
    assert again.read_bytes() == written.read_bytes()
    results = {path: json.loads(path.read_text()) for path in root.glob("data/train/tiny/*/*/result.json")}
    assert published(again) == max(result["meta"]["date"] for result in results.values())
    for path, result in results.items():  # of an earlier version
        del result["meta"]["date"]
        path.write_bytes(sealed(json.dumps({name: value for name, value in result.items() if name != SEAL}).encode()))
    with in_project(root):
        assert published(bundle.write(root, "tiny", again)) is None
    assert bundle.verify(again).wrong == []


def test_a_report_of_another_evaluation_is_left_out_and_named(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    root, out = shared_project(tmp_path_factory), tmp_path_factory.mktemp("bundles") / "other.zip"
    page = root / "data/report/tiny/report.html"
    page.parent.mkdir(parents=True)
    page.touch()
    os.utime(page, (0, 0))
    own, bundled = hashlib.sha256((root / EVALUATION).read_bytes()).hexdigest(), {}
    records = {"earlier version": {}, "other": {"inputs": {"evaluate/tiny/evaluation.json": "0"}},
               "own": {"inputs": {"evaluate/tiny/evaluation.json": own, "train/tiny/of/another": "1"}}}  # fmt: skip
    try:
        for name, record in records.items():
            caplog.clear()
            (page.parent / "settings.json").write_text(json.dumps(record))
            with in_project(root):
                bundle.write(root, "tiny", out)
            bundled[name] = "data/report/tiny/report.html" in opened(out), caplog.text.rstrip()
    finally:
        shutil.rmtree(page.parent)
    assert bundled.pop("own") == (True, "")
    for is_there, text in bundled.values():
        assert not is_there
        assert "report.html is not known to be of this evaluation and left out" in text
        assert text.endswith("then bundle: daamctl report tiny")


def test_a_machine_without_a_temporary_folder_gives_one_line(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/none"])
    result = CliRunner().invoke(app, ["verify", str(written)])
    assert result.exit_code == 3
    assert result.stderr == (
        "ArtifactError: [Errno 2] No usable temporary directory found in ['/none']\n"
        "  name a folder that can be written (export TMPDIR=FOLDER), then run it again\n"
    )


def test_a_home_that_is_the_root_hides_nothing(
    written: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a user without a name."""
    root = shared_project(tmp_path_factory)
    monkeypatch.setenv("HOME", "/")
    with in_project(root):
        again = bundle.write(root, "tiny", tmp_path_factory.mktemp("bundles") / "again.zip")
    assert again.read_bytes() == written.read_bytes()


def test_it_holds_results_and_neither_weights_nor_paths(
    written: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = opened(written)
    assert {bundle.CRATE, bundle.SETTINGS, bundle.METHODS, EVALUATION, FIGURES, f"{FOLD}/predictions.parquet"} <= set(
        files
    )
    assert not [name for name in files if name.endswith((".safetensors", ".wav"))]
    root = str(shared_project(tmp_path_factory)).encode()
    assert not [name for name, content in files.items() if root in content]
    crate = {one["@id"]: one for one in json.loads(files[bundle.CRATE])["@graph"]}
    assert crate[bundle.CRATE]["about"] == {"@id": "./"}
    assert {one["@id"] for one in crate["./"]["hasPart"]} == set(files) - {bundle.CRATE}
    assert "sign-flip test" in files[bundle.METHODS].decode()


def forged_prediction(files: Files) -> Files:
    name = f"{FOLD}/predictions.parquet"
    return {**files, name: of_table(files[name], lambda rows: rows.with_columns(pl.col("logits").list.reverse()))}


def forged_figure(files: Files) -> Files:
    """A figure is raised, and all hashes and seals are made again."""
    raised = of_table(files[FIGURES], lambda rows: rows.with_columns(mean=pl.col("mean") + 0.01))
    record = json.loads(files[EVALUATION])
    hashes = {**record["files"], "figures.parquet": hashlib.sha256(raised).hexdigest()}
    return {**files, FIGURES: raised, EVALUATION: sealed(files[EVALUATION], files=hashes)}


def forged_record(files: Files) -> Files:
    return {**files, EVALUATION: sealed(files[EVALUATION], num_folds=30)}


def without_a_fold(files: Files) -> Files:
    return {name: content for name, content in files.items() if not name.startswith(FOLD)}


def another_file(files: Files) -> Files:
    return {**files, "data/more.txt": b"more"}


@pytest.mark.parametrize(
    "forge",
    [forged_prediction, forged_figure, forged_record, without_a_fold, another_file],
    ids=lambda one: one.__name__,
)
def test_what_was_changed_does_not_verify(written: Path, tmp_path: Path, forge: Callable[[Files], Files]) -> None:
    path = closed(forge(opened(written)), tmp_path / "forged.zip")
    result = CliRunner().invoke(app, ["verify", str(path)])
    assert result.exit_code == 3, result.output
    assert "Traceback" not in result.output


def test_the_figure_that_differs_is_named(written: Path, tmp_path: Path) -> None:
    wrong = bundle.verify(closed(forged_figure(opened(written)), tmp_path / "forged.zip")).wrong
    assert any(line.startswith("figures.") and "weighted-sum" in line and "recomputed" in line for line in wrong)


def test_a_changed_byte_is_seen(written: Path, tmp_path: Path) -> None:
    files = opened(written)
    files[bundle.METHODS] = files[bundle.METHODS].replace(b"e", b"a", 1)
    wrong = bundle.verify(closed(files, tmp_path / "changed.zip", hashed=False)).wrong
    assert any(line.startswith(bundle.METHODS) for line in wrong)


def of_crate(files: Files, entity: str, **changes: str) -> Files:
    crate = json.loads(files[bundle.CRATE])
    next(one for one in crate["@graph"] if one["@id"] == entity).update(changes)
    return {**files, bundle.CRATE: json.dumps(crate).encode()}


def test_what_the_metadata_claim_is_compared_too(written: Path, tmp_path: Path) -> None:
    path = closed(of_crate(opened(written), "#encoder", name="gpt"), tmp_path / "claims.zip")
    wrong = bundle.verify(path).wrong
    assert len(wrong) == 1
    assert wrong[0].startswith(bundle.CRATE)
    assert "'gpt' in the bundle" in wrong[0]
    assert "does not verify: 1 difference\n" in CliRunner().invoke(app, ["verify", str(path)]).output


def test_a_stranger_cannot_write_to_the_terminal(written: Path, tmp_path: Path) -> None:
    files = of_crate({**opened(written), "data/\x1b[2J": b""}, "#daamctl", version="9.9\x1b[31m")
    result = CliRunner().invoke(app, ["verify", str(closed(files, tmp_path / "hostile.zip"))])
    assert result.exit_code == 3
    assert "\x1b" not in result.output
    assert "9.9" in result.output


def test_what_another_version_wrote_is_named(written: Path, tmp_path: Path) -> None:
    files = of_crate(opened(written), "#daamctl", version="9.9")
    del files[EVALUATION]
    with pytest.raises(ArtifactError, match=r"cannot be verified, which daamctl 9.9 wrote: it has 0 files"):
        bundle.verify(closed(files, tmp_path / "later.zip"))


def test_other_code_of_this_version_is_named_and_what_one_side_lacks_is_told_apart(
    written: Path, tmp_path: Path
) -> None:
    files = of_crate(opened(written), "#daamctl", version=__version__)
    provenance = json.loads(files[EVALUATION])["provenance"]
    del provenance["code_versions"]
    files[EVALUATION] = sealed(files[EVALUATION], provenance=provenance, num_folds=30)
    result = CliRunner().invoke(app, ["verify", str(closed(files, tmp_path / "earlier.zip"))])
    made, changed, lacking = result.stdout.splitlines()[1:]
    assert made.startswith(f"made by daamctl {__version__}, verified with other code, {bundle.version()}: ")
    assert changed.startswith("evaluation.json.num_folds: 30 in the bundle")
    assert lacking.startswith("evaluation.json.provenance.code_versions: nothing in the bundle")
    assert "does not verify: 2 differences, of which 1 in what only one side has\n" in result.stderr
    assert result.stderr.endswith(f"verify it with the code that made it: daamctl {__version__}\n")


def test_a_record_that_grows_in_memory_is_refused(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 1 << 20)
    files = {**opened(written), "data/more.json": b"[" + b"0," * (1 << 16) + b"0]"}
    with pytest.raises(ArtifactError, match="more than 1 MB of memory"):
        bundle.verify(closed(files, tmp_path / "large.zip"))


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "a/../../outside.txt"])
def test_names_that_leave_the_folder_are_refused(written: Path, tmp_path: Path, name: str) -> None:
    path = closed({**opened(written), name: b"outside"}, tmp_path / "hostile.zip", hashed=False)
    with pytest.raises(ArtifactError, match="cannot be verified"):
        bundle.verify(path)
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04"])
def test_what_is_no_bundle_gives_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.zip"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["verify", str(path)])
    assert result.exit_code == 3
    assert "cannot be verified: it is not a zip file" in result.output
    assert "write one: daamctl bundle RUN" in result.output


def test_a_folder_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is a folder, a bundle is one file") as error:
        bundle.verify(tmp_path)
    assert error.value.fix == "give the zip file: daamctl verify FILE.zip"


def test_only_a_bundle_is_replaced(written: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root, out = shared_project(tmp_path_factory), tmp_path / "tiny.zip"
    out.write_text("keep me")
    with in_project(root), pytest.raises(ArtifactError, match="exists and is not a bundle") as error:
        bundle.write(root, "tiny", out)
    assert error.value.fix == "choose another file with --out"
    assert out.read_text() == "keep me"
    out.write_bytes(written.read_bytes())
    with in_project(root):
        assert bundle.write(root, "tiny", out).read_bytes() == written.read_bytes()


def test_an_evaluation_with_options_of_the_command_line_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = shutil.copytree(shared_project(tmp_path_factory), tmp_path / "project")
    file = root / "pipelines" / "tiny.yaml"
    file.write_text(file.read_text().replace("steps: 40", "steps: 41"))
    with in_project(root), pytest.raises(ArtifactError) as error:
        bundle.write(root, "tiny", tmp_path / "tiny.zip")
    assert error.value.message.endswith("than those of pipelines/tiny.yaml: train.steps: 40 (now 41).")
    assert error.value.fix == "make it and the report again, then bundle: daamctl evaluate tiny; daamctl report tiny"
    assert not (tmp_path / "tiny.zip").exists()


def test_a_run_that_was_not_evaluated_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = shared_project(tmp_path_factory)
    with in_project(root):
        result = CliRunner().invoke(app, ["bundle", "tinny"])
    assert result.exit_code == 3
    assert "tinny" in result.output
