"""Where the parameters of a density ended, read from weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from daamctl.errors import MethodError
from daamctl.evaluation.learned import read_learned

OFFSET = np.array([[-0.5, 0.25], [0.0, 0.125]], np.float32)
WIDTH = np.array([[1.5, 2.0], [2.5, 0.0]], np.float32)


def weights(path: Path, prefix: str, **settings: str) -> Path:
    tensors = {f"{prefix}.offset": OFFSET, f"{prefix}.scaled_variance": WIDTH, "decoder.fc.weight": OFFSET}
    head = {"method": "m", "settings": settings, "num_layers": 2, "embed_dim": 2, "num_classes": 2}
    save_file(tensors, path, metadata={"daamctl": json.dumps({"schema": 1, "kind": "fusion", **head})})
    return path


@pytest.mark.parametrize("prefix", ["fusion", "fusion.daam"])
def test_lowest_and_highest_over_heads_and_features(tmp_path: Path, prefix: str) -> None:
    found = read_learned(weights(tmp_path / "w.safetensors", prefix))
    assert found is not None
    assert (found.num_heads, found.offset, found.scaled_variance) == (2, (-0.5, 0.25), (0.0, 2.5))


def test_softplus_is_applied(tmp_path: Path) -> None:
    found = read_learned(weights(tmp_path / "w.safetensors", "fusion", scaled_variance="softplus"))
    assert found is not None
    assert found.scaled_variance == pytest.approx((np.log(2), np.log1p(np.exp(2.5))))


def test_other_methods_have_none(tmp_path: Path) -> None:
    assert read_learned(weights(tmp_path / "w.safetensors", "somewhere")) is None


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"no")
    with pytest.raises(MethodError, match=r"w\.safetensors cannot be read"):
        read_learned(path)
