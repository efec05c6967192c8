"""The benchmark of density attention compares equal modules and writes a ratio for every way it measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import typer

from benchmarks import daam
from daamctl.methods import MultiHeadDAAM


def test_every_case_has_its_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daam, "LEAST_S", 1e-6)
    out = tmp_path / "daam.json"
    daam.main(shapes=["2x16x8", "3x16x2x3"], compiled=False, device="cpu", repeats=2, out=out)
    found = json.loads(out.read_text(encoding="utf-8"))
    cases = [f"{name} {shape}" for shape in ("2x16x8", "3x16x2x3") for name in ("v1", "v2", "mixture")]
    assert list(found["ways"]) == [f"{case}, {way}" for case in cases for way in ("ours", "published", "limit")]
    assert [(one["quantity"], one["ratio"]) for one in found["ratios"]] == [
        (f"seconds, {case}", f"{way} / ours") for case in cases for way in ("published", "limit")
    ]
    for case in cases:
        batch, layers, dim = daam.sizes_of(case.split()[-1])
        for way in ("ours", "published", "limit"):
            figures = found["ways"][f"{case}, {way}"]
            for seconds, speed in zip(figures["seconds"]["runs"], figures["gb_per_s"]["runs"], strict=True):
                assert speed == pytest.approx(5 * 4 * batch * layers * dim / seconds / 1e9)


def test_channel_maps_are_weighted_along_their_channels() -> None:
    assert daam.sizes_of("8x64x56x56") == (8, 64, 3136)
    assert daam.sizes_of("8x24x1024") == (8, 24, 1024)


@pytest.mark.parametrize("shape", ["8", "8x24", "8x24xd", "8x24x0", "8x12x4", "8x8x4", "8x24x2x2x2"])
def test_shapes_that_cannot_be(shape: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"a multiple of 8, at least 16, got {shape}$"):
        daam.sizes_of(shape)


@pytest.mark.parametrize("name", ["v1", "v2", "mixture"])
def test_a_form_that_computes_something_else_is_not_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = daam.drawn("2x16x8", "cpu")
    module = daam.modules(8)[name]
    assert list(daam.both(module, x, grad)) == ["ours", "published"]
    published = daam.PublishedDAAM if isinstance(module, MultiHeadDAAM) else daam.PublishedMixture
    head = published.head
    monkeypatch.setattr(published, "head", lambda self, i, part: head(self, i, part) * (1 + 1e-3 * (i == 0)))
    with pytest.raises(RuntimeError, match=r"^published: tensor 0 of output and gradients is off by "):
        daam.both(module, x, grad)


def test_without_a_compiler_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: torch.nn.Module) -> object:
        def call(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no working C++ compiler\nsearched: g++")

        return type("Compiled", (), {"__call__": staticmethod(call), "parameters": module.parameters})()

    monkeypatch.setattr(torch, "compile", broken)
    found = daam.try_compile(daam.modules(8)["v1"], *daam.drawn("2x16x8", "cpu"))
    assert found == (None, "no working C++ compiler")


def test_nothing_that_is_not_a_number_agrees() -> None:
    one = torch.ones(2)
    daam.agree("same", [one], [one], 1e-6)
    with pytest.raises(RuntimeError, match=r"^other: tensor 0 .* is off by nan of its largest$"):
        daam.agree("other", [one * math.nan], [one], 1e-6)
