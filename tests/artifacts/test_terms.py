"""Words of numbers and lists."""

from __future__ import annotations

from daamctl.artifacts.terms import counted, percent, with_article


def test_words_of_numbers() -> None:
    assert [counted(number, "fold") for number in (0, 1, 2)] == ["0 folds", "1 fold", "2 folds"]
    assert [percent(fraction) for fraction in (0.6464, 1, None)] == ["64.6 %", "100.0 %", "-"]


def test_the_article_goes_by_the_first_letter() -> None:
    assert [with_article(word) for word in ("fold", "item")] == ["a fold", "an item"]
