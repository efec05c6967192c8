"""Counts: those of the methods, LoRA's by formula, and which of them a print has (docs/sources.md#parameter-counts)."""

from __future__ import annotations

import pytest

from daamctl.methods.contract import PUBLISHED_PARAMETERS, SPEECH, TEXT, VISION
from daamctl.paper.counts import BUILT, counts, fits, ratios, shown

SIZES = {"speech": SPEECH, "vision": VISION, "text": TEXT}


@pytest.mark.parametrize("name", BUILT)
def test_counts_are_those_of_the_contract(name: str) -> None:
    for modality, parts in counts()[name].items():
        known = PUBLISHED_PARAMETERS[BUILT[name]][SIZES[modality]]
        assert (parts.attention, parts.total) == (known.fusion, known.total)


@pytest.mark.parametrize(
    ("name", "speech", "vision", "text"),
    [
        ("daam-v1", 238_104, 238_104, 451_112),
        ("daam-v2", 223_768, 223_768, 379_432),
        ("gqdaam", 1_223_192, 1_223_192, 3_533_352),
        ("mha", 4_420_120, 4_420_120, 105_247_272),
        ("lora-r4", 393_216, 393_216, 3_276_800),
    ],
)
def test_without_the_last_layer(name: str, speech: int, vision: int, text: int) -> None:
    assert [parts.without_fc for parts in counts()[name].values()] == [speech, vision, text]


@pytest.mark.parametrize(
    ("name", "totals"),
    [
        ("lora-r4", [394_244, 495_716, 3_276_800]),
        ("lora-r8", [787_460, 888_932, 6_553_600]),
        ("lora-r1", [50_180, 151_652, 430_080]),
    ],
)
def test_lora_totals(name: str, totals: list[int]) -> None:
    assert [parts.total for parts in counts()[name].values()] == totals


@pytest.mark.parametrize(
    ("name", "printed", "words"),
    [
        ("daam-v1", "0.45", "✓ without fc (text)"),
        ("daam-v1", "0.22", "✗ none; nearest 0.238: without fc (speech)"),
        ("daam-v2", "0.22", "✓ without fc (speech and vision)"),
        ("daam-v2", "0.45", "✓ without fc, eight heads (text)"),
        ("gqdaam", "1.21", "✓ without fc, one head (vision)"),
        ("gqdaam", "3.55", "✗ none; nearest 3.533: without fc (text)"),
        ("gqdaam", "1.00", "✓ attention part (speech and vision)"),
        ("gqa", "0.984", "✗ none; nearest 0.985: attention part (speech)"),
        ("lora-r4-r8", "3.28", "✓ attention part, lora-r4 (text); total, lora-r4 (text)"),
        ("lora-r1", "0.43", "✓ total (text)"),
    ],
)
def test_what_a_printed_count_is(name: str, printed: str, words: str) -> None:
    assert fits(name, printed) == words


def test_counts_as_shown() -> None:
    assert shown("daam-v2", "attention part") == "2,048; 2,048; 10,240"
    assert shown("lora-r4-r8", "total").startswith("394,244; 495,716; 3,276,800 / 787,460;")


def test_ratios_are_by_modality() -> None:
    found = ratios("daam-v1", "attention part", "gqa", "attention part")
    assert found["text"] == pytest.approx(0.02658, abs=1e-5)
    assert list(found) == ["speech", "vision", "text"]
