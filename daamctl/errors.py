"""Expected failures: each message says what is wrong, the value found, what is allowed and how to repair it.

Only `daamctl.cli.app` catches these; it prints one message and exits with code 3. Anything else that escapes is a
bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MOST_KNOWN = 10
"""Known names that a message shows at most."""
LONGEST = 200
"""Characters of a name that a message shows at most."""


class DaamctlError(Exception):
    """Base of every expected failure.

    Args:
        message: what is wrong, with the value found and what is allowed.
        fix: the command or edit that repairs it, if there is one.
        path: the artifact that is wrong. Without a `fix`, the command line adds the command that makes it.
    """

    def __init__(self, message: str, *, fix: str | None = None, path: Path | None = None) -> None:
        self.message = message
        self.fix = fix
        self.path = path
        super().__init__(message)

    def __str__(self) -> str:
        """The message, and in a second line the repair."""
        return self.message if self.fix is None else f"{self.message}\n  {self.fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling by workers in other processes: some subclasses take other arguments than `args` holds."""
        return _restored, (type(self), self.message, self.fix), self.__dict__


def _restored(kind: type[DaamctlError], message: str, fix: str | None) -> DaamctlError:
    # without its own __init__, whose arguments are not known here
    error = kind.__new__(kind)
    DaamctlError.__init__(error, message, fix=fix)
    return error


class ConfigError(DaamctlError):
    """A setting in `params.yaml`, a pipeline file or on the command line is wrong."""


class UnknownNameError(ConfigError):
    """A name is not in its table.

    Args:
        kind: what the name should be, e.g. "method".
        of: what it should belong to, e.g. a run.
        is_open: installed packages may have more of them.

    Attributes:
        is_slip: whether a known name has a similar spelling.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, of: str = "", is_open: bool = False) -> None:
        known = list(known)
        self.is_slip = bool(difflib.get_close_matches(name, known, 1))
        more = f" of '{of}'" if of else ""
        if is_open and not self.is_slip:
            more += ", which no installed package has"
        super().__init__(f"unknown {kind} '{name}'{more}", fix=suggest(name, known))


class CorpusError(DaamctlError):
    """A corpus is absent, incomplete, or not what its fingerprint says."""


class AudioError(DaamctlError):
    """An audio file cannot be read, or contains nothing usable."""


class ArtifactError(DaamctlError):
    """A file that an earlier stage should have written is missing, damaged, or made with other settings."""


class EncoderError(DaamctlError):
    """An encoder cannot be found, loaded or used for this input."""


class MethodError(DaamctlError):
    """A method cannot be built for these sizes, or its weights do not fit.

    Args:
        setting: name and value of a method setting that would work, if one is known.
    """

    def __init__(self, message: str, *, setting: tuple[str, Any] | None = None, **more: Any) -> None:
        self.setting = setting
        super().__init__(message, **more)


class TrainingError(DaamctlError):
    """A fold cannot be trained: its data or its numbers do not allow it."""


class DivergedError(TrainingError):
    """The training loss is no longer finite; another learning rate may help."""


class WorkerError(DaamctlError):
    """A worker in another process or on another machine died, or cannot be reached."""


class DownloadError(DaamctlError):
    """A download failed or did not match its checksum."""


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, with up to two more names of similar spelling; and the known names, if they are few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names)
    parts = [f"did you mean '{close[0]}'?"] if close else []
    # a long list would hide the proposal
    if not close or len(names) <= MOST_KNOWN:
        parts.append(f"known: {first_few(names, MOST_KNOWN)}")
    elif close[1:]:
        parts.append(f"similar: {', '.join(close[1:])}")
    return " ".join(parts)


def first_few(names: Sequence[str], most: int = 5, *, separator: str = ", ") -> str:
    """The first names and how many more there are: `a, b and 3 more`; `none` if there are none.

    Args:
        most: number of names to show.
        separator: text between names; if it starts a new line, the number of further names gets a line of its own.
    """
    if not names:
        return "none"
    shown = separator.join(map(_on_a_line, names[:most]))
    if len(names) <= most:
        return shown
    before_more = separator if separator.startswith("\n") else " "
    return f"{shown}{before_more}and {len(names) - most} more"


def listing(word: str, names: Sequence[str], most: int = 5) -> str:
    """Names as `first_few` lists them, after what they are: `column a`, or `columns a, b and 3 more`."""
    return f"{word}{'' if len(names) == 1 else 's'} {first_few(names, most)}"


def _on_a_line(name: str) -> str:
    """A name, without what would break a line or colour a terminal, and not longer than `LONGEST`."""
    if not name.isprintable():
        name = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def two_sizes(need: float, there: float) -> tuple[str, str]:
    """Two numbers of bytes as text, with as many digits as tell them apart."""
    texts = _size(need), _size(there)
    return texts if texts[0] != texts[1] else (f"{need:,.0f} bytes", f"{there:,.0f} bytes")


def _size(number: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} bytes"
