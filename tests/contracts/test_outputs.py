"""Commands that write to a path that the user names replace their own output and nothing else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from daamctl.cli.app import app
from tests.cli.test_import_checkpoint import density
from tests.fixtures.exported import export_model, shared_project
from tests.stages.test_judge import table


def _write(path: Path, kind: str) -> None:
    """What another tool, or another command, may have left under the name."""
    if kind == "folder":
        path.mkdir()
        (path / "model.json").write_text('{"format": "layers-model"}')
    elif kind == "text":
        path.write_text("keep me\n")
    elif kind == "RO-Crate":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ro-crate-metadata.json", json.dumps({"@graph": []}))
    elif kind == "table":
        frame = pl.DataFrame({"item": ["a"], "label": ["b"]})
        {".csv": frame.write_csv, ".parquet": frame.write_parquet}[path.suffix](path)
    elif kind == "page":
        path.write_text("<!DOCTYPE html>\n<title>Mine</title>\n")
    else:
        save_file({"x": np.zeros(1)}, path)


@pytest.mark.parametrize(
    ("words", "name", "what", "others"),
    [
        (["judge", "a.csv", "b.csv", "--html"], "page.html", "a page of judge", ["text", "page", "folder"]),
        (["predict", "MODEL", "TONE", "--out"], "found.csv", "a table of predictions", ["text", "table", "folder"]),
        (["bundle", "tiny", "--out"], "tiny.zip", "a bundle", ["text", "RO-Crate", "folder"]),
        (["export", "tiny/weighted-sum", "--force", "--out"], "new", "an exported model", ["text", "folder"]),
        (["import-vectors", "given.npz", "--table", "labels.csv", "--axes", "D", "--out"], "vectors.parquet",
         "a file that import-vectors wrote", ["text", "table", "folder"]),
        (["import-checkpoint", "best.safetensors", "--out"], "mine.safetensors", "a converted checkpoint",
         ["text", "weights", "trained", "folder"]),
    ],
    ids=["judge", "predict", "bundle", "export", "import-vectors", "import-checkpoint"],
)  # fmt: skip
def test_only_own_output_is_replaced(
    words: list[str],
    name: str,
    what: str,
    others: list[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = shared_project(tmp_path_factory)
    model = root / "for-outputs"
    if not model.exists():
        export_model(root, model.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAAMCTL_ROOT", str(root))
    table(0.8, 1).write_csv("a.csv")
    table(0.6, 2).write_csv("b.csv")
    np.savez("given.npz", X=np.random.default_rng(0).normal(size=(4, 8)), ids=np.array(list("abcd")))
    pl.DataFrame({"id": list("abcd"), "label": list("xyxy")}).write_csv("labels.csv")
    save_file({key: value.numpy() for key, value in density().items()}, "best.safetensors")
    words = [{"MODEL": str(model), "TONE": str(root / "tones/s0-0.wav")}.get(word, word) for word in words]

    for kind in others:
        out = tmp_path / f"{kind}-{name}"
        if kind == "trained":
            out.write_bytes(next(model.glob("*.safetensors")).read_bytes())
        else:
            _write(out, kind)
        files = [out] if out.is_file() else [*out.iterdir()]
        before = [path.read_bytes() for path in files]
        result = CliRunner().invoke(app, [*words, str(out)])
        assert result.exit_code == 3, kind
        form = "folder" if words[0] == "export" else "file"
        message = f"ArtifactError: {out} exists and is not {what}\n  choose another {form} with {words[-1]}\n"
        assert result.stderr == message
        assert [path.read_bytes() for path in files] == before

    out = tmp_path / name
    if words[0] == "export":
        out.mkdir()
    else:
        out.touch()
    for _ in range(2):  # over what is empty, then over its own output
        result = CliRunner().invoke(app, [*words, str(out)])
        assert result.exit_code == 0, result.output
        assert out.is_dir() or out.stat().st_size
