"""The sentences of the pages, which `sentences.j2` and `judge.j2` hold as macros, so that a writer can edit them there.

A macro is called by its name, one of `judge.j2` as `judge.<name>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from daamctl.artifacts.layer_sets import LayerRow
from daamctl.artifacts.scores import Figure
from daamctl.artifacts.terms import listed, with_article
from daamctl.reporting import terms
from daamctl.reporting.document import ZERO, Number, count, kinds_of, p_value, percent, plural, points, spread


def say(macro: str, *facts: object, **named: object) -> str:
    """The text of a macro, on one line."""
    return _on_one_line(_macro(macro)(*facts, **named))


def say_each(macro: str, *facts: object, **named: object) -> list[str]:
    """The texts of a macro, each of which begins with a dash on a line of its own."""
    return [_on_one_line(text) for text in re.split(r"(?:^|\n) *- ", _macro(macro)(*facts, **named))[1:]]


def outside(figures: Iterable[Figure | LayerRow], item: str) -> str:
    """A note if a mean over folds lies outside its interval, which is over all items; else nothing."""
    for one in figures:
        value = one.mean if isinstance(one, Figure) else one.value
        if one.low is not None and one.high is not None and not one.low - ZERO <= value <= one.high + ZERO:
            return say("outside", item)
    return ""


def sentence(text: str) -> str:
    """A note as a sentence: `the folds differ` becomes `The folds differ.`."""
    return f"{text[:1].upper()}{text[1:]}."


def figure(value: float, metric: str) -> str:
    """A figure of this metric as it is shown, without its unit."""
    return str(Number(value, kinds_of(metric)[0]))


def gap(difference: float, metric: str) -> str:
    """The same of a difference."""
    return str(Number(difference, kinds_of(metric)[1]))


def _on_one_line(text: str) -> str:
    return re.sub(r"[ \n]+", " ", text).strip(" ")  # other white space, such as in a name, stays


def _macro(name: str) -> Any:
    file, _, macro = name.rpartition(".")
    return getattr(_module(file or "sentences"), macro)


@cache
def _module(file: str) -> Any:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters.update(
        count=count, figure=figure, gap=gap, listed=listed, p_value=p_value, percent=percent, plural=plural,
        points=points, sentence=sentence, spread=spread, with_article=with_article, fmt=format, held_out=terms.held_out,
        is_few_shot=terms.is_few_shot, is_official=terms.is_official, moment=terms.moment, runs=terms.runs,
        selection_rule=terms.selection_rule, tested=terms.tested, tuned_rules=terms.tuned_rules,
        tuned_seeds=terms.tuned_seeds,
    )  # fmt: skip
    return environment.get_template(f"{file}.j2").module
