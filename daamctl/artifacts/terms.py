"""Numbers, lists and names in texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daamctl.store.files import expanded


def counted(number: int, word: str) -> str:
    """A number of things in words, e.g. `2 folds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def with_article(word: str) -> str:
    """`a fold`, `an item`."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words joined as `a, b and c`, or with another word before the last one."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def encoder_label(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Name of an encoder for readers, which says so if its weights are random.

    Args:
        facts: as recorded in the embeddings; `name` and `source` are used.
        settings: the section `extract`; its `name` takes precedence.
    """
    shown = settings.get("name") or str(without_path(facts.get("name") or settings.get("encoder", "unknown")))
    return f"{shown} with random weights" if "(random weights" in str(facts.get("source")) else shown


def without_path(value: object) -> object:
    """The name of a folder instead of its path: reports may be shared, so they show no local path."""
    folder = expanded(str(value))
    return folder.name if folder.is_absolute() else value


def percent(fraction: float | None) -> str:
    """0.6464 -> `64.6 %`; None -> `-`."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
