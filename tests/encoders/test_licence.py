"""The licence of an encoder: from its preset, or from the card of the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS
from daamctl.encoders.licence import RANDOM, licence_of


def test_every_preset_with_weights_has_a_licence() -> None:
    presets = {name: ENCODERS[name] for name in ENCODERS}
    assert {name for name, preset in presets.items() if preset.source and not preset.licence} == set()
    assert licence_of(ExtractConfig(encoder="wavlm-large")) == "cc-by-sa-3.0"


def test_random_weights_need_none() -> None:
    assert licence_of(ExtractConfig(encoder="wavlm-micro")) == RANDOM
    assert licence_of(ExtractConfig(encoder="wavlm-large", weights="random")) == RANDOM


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n# A model\n", "mit"),
        ("---\nlicense: other\nlicense_name: own-terms\n---\n", "own-terms"),
        ("---\nlicense: [mit, apache-2.0]\n---\n", "mit, apache-2.0"),
        ("---\ntags: [speech]\n---\n", None),
        ("---\nlicense: [mit\n---\n", None),
        ("---\n- mit\n---\n", None),
        ("# A model under MIT\n", None),
        (None, None),
    ],
)
def test_a_folder_says_it_in_the_head_of_its_card(tmp_path: Path, card: str | None, licence: str | None) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert licence_of(ExtractConfig(encoder=str(tmp_path))) == licence


def test_a_hub_checkpoint_says_it_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    cached = {("some/encoder", "README.md"): str(tmp_path / "README.md")}
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda source, name, revision: cached.get((source, name))
    )
    assert licence_of(ExtractConfig(encoder="some/encoder")) == "mit"
    assert licence_of(ExtractConfig(encoder="other/encoder")) is None
