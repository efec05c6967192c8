"""The benchmark of extraction at tiny sizes: what it compares is the same thing, and what it writes is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import extraction
from daamctl.config import Config


@pytest.mark.parametrize("encoder", ["wavlm-micro", "llama-micro", "beit-micro"])
def test_ways_agree_and_are_told(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extraction, "NUMBER", 8)
    out = tmp_path / "found.json"
    sizes = {"clips": 5, "repeats": 2, "corpus_folder": None, "shard_clips": 2, "profile": False}
    extraction.main(encoder=encoder, device="cpu", precision="float32", out=out, **sizes)  # type: ignore[arg-type]
    found = json.loads(out.read_text())
    assert set(found["ways"]) == {"reference", "peer", "ours", "limit"}
    assert all(len(way["items_per_s"]["runs"]) == 2 for way in found["ways"].values())
    names = [(one["quantity"], one["ratio"], one["goal"]) for one in found["ratios"]]
    assert names == [
        ("items_per_s", "ours / reference", ">= 5"),
        ("items_per_s", "ours / limit", ">= 0.9"),
        ("items_per_s", "ours / peer", None),
        ("stored_bytes_per_item", "reference / ours", ">= 400"),
    ]
    layers, width = (16, 64) if encoder == "llama-micro" else (24, 64)
    assert found["ways"]["ours"]["stored_bytes_per_item"]["median"] > layers * width  # zstd saves less than half
    assert found["agreement"]["the same item by itself in float32"] > 0.99999  # stored as float16
    assert found["agreement"]["the reference"] < 0.99999 or encoder == "beit-micro"
    assert "lowest cosine" in capsys.readouterr().out


def test_recordings_of_the_user_and_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = extraction.np.random.default_rng(0)
    extraction.soundfile.write(tmp_path / "long.wav", 0.1 * rng.standard_normal(96000), 16000)
    table = extraction.cut(tmp_path)
    assert table.select("start_s", "duration_s").rows() == [(0.0, 5.0), (5.0, 1.0)]
    extraction.main(encoder="wavlm-micro", clips=2, corpus_folder=tmp_path, device="cpu", profile=True)
    assert "aten::mkldnn_convolution" in capsys.readouterr().out


def test_many_clips_are_for_what_overlaps_and_few_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The released code and the peer compute with torch's own kernels, ours with those of extraction."""
    monkeypatch.setattr(extraction, "NUMBER", 2)
    monkeypatch.setattr(extraction, "SLOW_CLIPS", 3)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert extraction.default_clips("cuda") == 6000
    settings = {"encoder": "wavlm-micro", "weights": "random", "device": "cpu", "shard_clips": 2}
    bench = extraction.prepared(Config.model_validate({"extract": settings}), 7, None, tmp_path)
    assert len(bench.rows) == 7
    seen: dict[str, tuple[int, bool]] = {}

    def watched(name: str) -> Callable[[extraction.Bench, Path], None]:
        def way(work: extraction.Bench, folder: Path) -> None:
            seen[name] = len(work.rows), torch.backends.cudnn.allow_tf32
            (folder / "x").write_bytes(b"12")

        return way

    for name in ("reference", "peer", "ours"):
        monkeypatch.setattr(extraction, name, watched(name))
    monkeypatch.setattr(extraction, "timed", lambda work, _: work() or 0.5)
    found = {name: way() for name, way in extraction.ways(bench, bench).items() if name != "limit"}
    assert seen == {"reference": (3, True), "peer": (3, True), "ours": (7, False)}
    assert [found[name]["items_per_s"] for name in ("reference", "peer", "ours", "proposed")] == [6, 6, 14, 14]
    assert found["ours"]["stored_bytes_per_item"] == 2 / 7
