"""The paragraphs for the methods section of a paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daamctl.config import Config
from daamctl.reporting.methods import methods_text
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.mark.parametrize(
    ("modality", "extract", "pooled"),
    [
        ("speech", {}, "the mean over its own frames; recordings are cut into clips of 5 s."),
        (
            "speech",
            {"pooling": "all-frames"},
            "the mean over all frames, zeros up to 5 s included; recordings are cut into clips of 5 s.",
        ),
        ("text", {}, "the mean over its tokens, without special tokens."),
        ("text", {"pool_special_tokens": True}, "the mean over its tokens, with special tokens."),
        ("text", {"pooling": "last-token"}, "its last token, without special tokens."),
        ("text", {"pooling": "first-token"}, "the token that its tokenizer puts first."),
        ("image", {}, "the mean over its patches, without class and register tokens."),
        ("image", {"pool_class_token": True}, "the mean over its patches, with class and register tokens."),
        ("image", {"pool_class_token": "only"}, "its class token."),
        ("tokens", {}, "that of its first sub-word."),
    ],
)
def test_how_vectors_are_pooled(modality: Any, extract: dict[str, Any], pooled: str) -> None:
    found = replace(parsed(evaluation({"none": 0.6})), modality=modality)
    found = replace(found, provenance=replace(found.provenance, encoder={"name": "an encoder"}))
    config = Config.model_validate({"extract": extract, "segment": {"tail": "keep"}})
    text = methods_text(found, config, corpus="a corpus")
    (vectors,) = [line for line in text.splitlines() if line.startswith("**Vectors.**")]
    assert vectors.endswith(f": {pooled}")


def test_a_probe_at_chance_is_still_solved_in_closed_form() -> None:
    found = parsed(evaluation({"mean": 0.6, "ridge-last": 0.4}, "mean", status={"ridge-last": "learned nothing"}))
    found = replace(found, provenance=replace(found.provenance, encoder={"name": "an encoder"}))
    text = methods_text(found, Config(), corpus="a corpus")
    (training,) = [line for line in text.splitlines() if line.startswith("**Training.**")]
    assert training.startswith("**Training.** mean: at least 200 steps")
    assert "ridge-last (learned nothing): ridge classifiers, solved in closed form" in training
