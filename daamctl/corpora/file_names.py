"""Read labels and speakers out of the names of files: by a pattern, which can be proposed from the names themselves.

A pattern is a path in which fields stand in braces: `{label}/{speaker}_{_}.wav`. `{_}` skips a part; `{label:1}` has
exactly one character, `{_:#}` digits alone. Parts end at the next literal character or digits, `{label+}` at the last
one, and never contain `/`. A pattern describes the end of a path, so `{label}/{_}.wav` takes the folder that holds a
file. Without a suffix it fits any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from daamctl.corpora.groups import PARTS, parts_of
from daamctl.data.item_names import coded_names
from daamctl.errors import ConfigError, CorpusError, first_few

FIELD = re.compile(r"\{(\w+)(?::(\d+|#)|(\+))?\}")
SKIPPED = "_"
COLUMNS = ("label", "speaker", "group", "utterance_id")
"""Fields that a manifest gives a meaning; others are kept as further columns."""
SEPARATORS = re.compile(r"([-_. ]+)")
"""What separates the parts of a file's name."""
MOST_CLASSES = 50
"""More values than this are not proposed as labels."""
WORD = re.compile(r"[^\W\d_]{2,}")
"""A label that speaks for itself."""
DIGITS = "0123456789"
FOLD = re.compile(r"(?i)fold[-_ ]?\d+")
EMOTION = re.compile(r"(?i)(ang|anx|bor|cal|contempt|disg|dis$|exc|fea|hap|joy|neu|pleasant|ps$|sad|sur)")
"""How names of emotions, which most recordings with labels in their names have, begin."""
WORD_AND_NUMBER = re.compile(r"([^\W\d_]{2,})\d+")
NUMBERED = re.compile(
    r"(?i)(speaker|spk|actor|subject|sub|singer|female|male|s|p|id)?[-_ ]?[mf]?\d+[mf]?|(?=[a-f]*\d)[\da-f]{8,}"
)
"""What speakers are usually called, by numbers or hashes."""
SESSION = re.compile(
    r"(?i)(?:^|[-_ ])(?:sess?|session|dialog|dialogue|level|part|take|day|dis[ck]|cd|vol(?:ume)?|batch|set)[-_ ]?\d+"
)
"""What is numbered, but rather neither a class nor a speaker."""
SEXES = {"f", "m", "w", "female", "male"}
EXAMPLE = "{label}/{speaker}_{_}"
FEW_CODES = 12
"""Codes of classes are rarely more."""

LIST_THEM = "write a CSV file with the columns path and label, a line for each file, and give that: --from FILE.csv"


@dataclass(frozen=True)
class NamePattern:
    """A pattern of file names.

    Args:
        doubts: of a proposed one, what else the names may mean, and how to read them so.
    """

    text: str
    fields: tuple[str, ...]
    regex: re.Pattern[str]
    doubts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> NamePattern:
        """Parse a pattern.

        Raises:
            ConfigError: it has no label, a field twice, a field of no width right before another, or a brace that is
                no field.
        """
        parts: list[str] = []
        fields: list[str] = []
        end, is_open = 0, False  # whether the field before ends only at the next literal character
        for found in FIELD.finditer(text):
            name, width = found[1], found[2]
            if is_open and found.start() == end and width != "#":
                raise _wrong(text, f"nothing separates {found[0]} from the field before it; give widths, {{label:1}}")
            if name in fields:
                raise _wrong(text, f"{{{name}}} stands twice")
            # a field never crosses a folder
            fixed = r"\d+" if width == "#" else f"[^/]{{{width}}}"
            value = fixed if width else "[^/]+" if found[3] else "[^/]+?"
            parts += [
                re.escape(text[end : found.start()]),
                f"(?:{value})" if name == SKIPPED else f"(?P<{name}>{value})",
            ]
            fields += [] if name == SKIPPED else [name]
            end, is_open = found.end(), not width
        parts.append(re.escape(text[end:]))
        if re.search(r"[{}]", FIELD.sub("", text)):
            raise _wrong(text, "it has a brace that is no field")
        if "label" not in fields:
            raise _wrong(text, "it has no {label}")
        # people leave the suffix out, and mean any
        suffix = "" if PurePosixPath(FIELD.sub("x", text)).suffix else r"(?:\.[^./]+)?"
        return cls(text, tuple(fields), re.compile(f"(?:.*/)?{''.join(parts)}{suffix}"))

    def read(self, path: str) -> dict[str, str] | None:
        """Field -> value of a relative POSIX path; None if it does not fit."""
        found = self.regex.fullmatch(path)
        return None if found is None else found.groupdict()


def _wrong(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"pattern '{text}': {reason}", fix="write, e.g., --pattern '{label}/{speaker}_{_}.wav'; {_} skips a part"
    )


@dataclass(frozen=True)
class _Part:
    """A part of all paths: a folder level, or a piece of the file's name between separators.

    Args:
        place: index into the parts of a path.
        is_folder: whether it is a folder level.
        numbered: whether digits that follow the values are left out of them.
    """

    place: int
    is_folder: bool
    values: tuple[str, ...]
    numbered: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Value -> number of paths."""
        return Counter(self.values)

    def could_label(self) -> bool:
        """Whether it has a few values, of at least two letters each, most of which occur more than once.

        Pieces of a name that differ in their numbers alone, such as dia0 and dia1, are none.
        """
        counts = self.counts
        times = sorted(counts.values())
        return (
            2 <= len(counts) <= MOST_CLASSES
            and times[len(times) // 2] > 1
            and (self.is_folder or len({re.sub(r"\d+", "", value) for value in counts}) > 1)
            and all(WORD.search(value) and not NUMBERED.fullmatch(value) for value in counts)
        )

    def is_series(self) -> bool:
        """Whether it is a level of folders with one name and different numbers, as session1 and session2."""
        names = {re.sub(r"\d+", "", value) for value in self.counts}
        return self.is_folder and len(names) == 1 and names != {""}

    def is_emotion(self) -> bool:
        """Whether most of its values name emotions."""
        return sum(EMOTION.match(value) is not None for value in self.counts) * 2 > len(self.counts)

    def are_sexes(self) -> bool:
        """Whether it says who is a woman and who a man."""
        return {value.lower() for value in self.counts} <= SEXES

    def tells(self, other: _Part) -> bool:
        """Whether each of its values, if not empty, stands with one value of the other."""
        pairs = {(own, value) for own, value in zip(self.values, other.values, strict=True) if own}
        return len(pairs) == len(self.counts.keys() - {""})

    def crosses(self, other: _Part) -> bool:
        """Whether neither tells the other."""
        return not self.tells(other) and not other.tells(self)

    def rank(self) -> int:
        """How surely it names speakers: a folder (3), then numbers with letters, then plain ones, then sessions (0)."""
        if self.is_folder:
            return 0 if all(map(SESSION.search, self.counts)) else 3
        return 1 if all(map(str.isdecimal, self.counts)) else 2

    def words(self) -> _Part | None:
        """The words in front of numbers, as in angry01; None: not all values have that form."""
        found = [WORD_AND_NUMBER.fullmatch(value) for value in self.values]
        if self.is_folder or None in found:
            return None
        return _Part(self.place, False, tuple(one[1] for one in found if one is not None), numbered=True)

    def could_name_speakers(self, labels: Sequence[str]) -> bool:
        """Whether its values look like names of speakers, most of whom have several labels."""
        counts = self.counts
        several = Counter(value for value, _ in set(zip(self.values, labels, strict=True)))
        most_have = sum(number > 1 for number in several.values()) * 2 >= len(counts)
        # folders may be named after people
        named = all(NUMBERED.fullmatch(value) for value in counts) or self.is_folder
        return 1 < len(counts) <= len(labels) // 2 and most_have and named


def propose(paths: Sequence[str], *, by_folder: bool = False, folder: str = "FOLDER") -> NamePattern:
    """A pattern for relative POSIX paths, from their most frequent form.

    Folders named train and test (or dev), or fold1 and so on, are groups. The label is a part of letters with few
    values: one of emotions, or the innermost such folder, else a piece of the name. The speaker is another part,
    numbered or a folder, whose values have several labels each: a folder, else the first; plain numbers that no folder
    has twice are those of items. Where another part could be meant as well, the pattern has a doubt.

    Args:
        by_folder: where nothing else looks like a label, folders are classes whatever they are called, e.g. of images.
        folder: where the paths are, for messages.

    Raises:
        CorpusError: nothing looks like a label, or the names are of a corpus that tells it by a code; the message shows
            how to write a pattern for the first path.
    """
    # a README or a stray file should not decide how the others are read
    forms = Counter(_form(path) for path in paths)
    form = forms.most_common(1)[0][0]
    own = [path for path in paths if _form(path) == form]
    num_folders = form[0]
    parts = [
        _Part(place, place < num_folders, values)
        for place, values in enumerate(zip(*(_parts(path, form) for path in own), strict=True))
    ]
    splits = [part for part in parts if _is_split(part.counts)]
    worded = [one for part in parts if (one := part.words())]
    could = [part for part in (*parts, *worded) if part.could_label() and not _has_parts(part.counts)]
    sessions = [part for part in could if not part.rank()]
    labels = [part for part in could if part not in sessions]
    known = coded_names(paths)
    code = NamePattern.parse(known[1]) if known and known[1] else None
    read = [code.read(path) or {} for path in own] if code else []
    codes, voices = (_Part(-1, False, tuple(one.get(name, "") for one in read)) for name in ("label", "speaker"))
    if known and (not read or len(codes.counts.keys() - {""}) > 2):
        corpus, coded = known
        # folders that agree with the code, as those of emotions do, are labels
        agreeing = [part for part in labels if (codes.tells(part) if read else part.is_emotion())]
        if not agreeing:
            ways = [f"say where it is: --pattern '{coded}'; --labels CODE=NAME,... gives codes names"] if coded else []
            ways += [f"daamctl download {corpus.lower()} --from {folder}"] if corpus in ("EmoDB", "IEMOCAP") else []
            folders = [part for part in labels if part.is_folder][-1:]
            ways += [f"if {_few(one)} are the classes: --pattern '{_pattern(parts, form, one)}'" for one in folders]
            raise CorpusError(
                f"nothing in the names of the files looks like a label, e.g. {first_few(paths[:3])}; {corpus} "
                f"{'tells it by a code' if coded else 'does not tell it there'}",
                fix="; or ".join(ways),
            )
        labels = agreeing
    else:
        known, code, read = None, None, []
    example = _example(parts, form)
    if not labels and by_folder and (pattern := _by_folder(paths)) is not None:
        return replace(pattern, doubts=tuple(_series_doubt(part) for part in sessions[-1:]))
    if len(forms) > 1 and not any(part.is_folder for part in labels) and (pattern := _by_stem(paths)) is not None:
        return pattern
    if not labels and not sessions:
        if of_parts := [part for part in parts if _has_parts(part.counts)]:  # what agrees with them is no class either
            free = [part for part in parts if part.is_folder and len(part.counts) > 1 and not any(
                len({*zip(part.values, one.values, strict=True)}) == len(one.counts) for one in of_parts)]  # fmt: skip
            names = {part.place: "group" for part in splits[:1]} | {part.place: "label" for part in free[:1]}
            example = _written([names.get(part.place, SKIPPED) for part in parts], form) if free else ""
        where = f"say where it is, e.g. --pattern '{example}'; {{_}} skips a part, {{label:1}} is one character; "
        raise CorpusError(
            f"nothing in the names of the files looks like a label, e.g. {first_few(paths[:3])}",
            fix=f"{where}--labels CODE=NAME,... gives codes names" if example else LIST_THEM,
        )
    folders = [part for part in labels if part.is_folder]
    emotions = [part for part in labels if part.is_emotion()]
    label = ([part for part in emotions if part.is_folder] or emotions or folders or labels[:1] or sessions)[-1]
    # numbers that begin anew in every folder are those of items; of images also those that begin anew in every class
    levels = [part.values for part in parts if part.is_folder] + ([label.values] if by_folder else [])
    inside = list(zip(*levels, strict=True)) or [()] * len(own)
    others = [
        part
        for part in parts
        if part.place != label.place
        and (read or not known)  # else the names tell them in another way
        and not _has_parts(part.counts)
        and part.could_name_speakers(label.values)
        and (part.rank() != 1 or len(set(zip(inside, part.values, strict=True))) < len(own))
    ]
    others = [part for part in others if read and voices.tells(part) and part.tells(voices)] or others
    # two are rather takes than speakers; people write the speaker before the sentence and the take
    speaker = max(
        (part for part in others if len(part.counts) > 2),
        key=lambda part: (part.rank(), len(part.counts) if part.is_folder else -part.place),
        default=None,
    )
    instead: list[_Part] = []  # speakers that may be meant
    if speaker is not None:
        number, surely = speaker, speaker.rank()
        for part in parts[num_folders:]:  # the name of a speaker beside the number, as in 01_OISHI
            is_beside = surely == 1 and abs(part.place - number.place) == 1 and part.crosses(label)
            speaker = part if is_beside and part.tells(number) and all(map(WORD.fullmatch, part.counts)) else speaker
        is_named = speaker.is_folder and not all(map(NUMBERED.fullmatch, speaker.counts))
        instead = [
            part
            for part in others
            if part.place not in (number.place, speaker.place)
            and not (part.tells(speaker) and speaker.tells(part))
            and (part.rank() > 1 or surely == 1 or (part.rank() == 1 and is_named))
            and (len(part.counts) > 2 or (surely == 1 and part.place < speaker.place))
        ]
        is_digit = set(number.counts) == set(DIGITS) and number.place < label.place and not label.is_folder
        if is_digit and speaker is number and not emotions:  # spoken digits, as in 0_jackson_1
            label, speaker, instead = speaker, label, []
    pattern = NamePattern.parse(_pattern(parts, form, label, speaker, splits))
    ending = ""
    if any(len(_form(path)[1]) < len(form[1]) and pattern.read(path) for path in paths):
        # .jpg of 1.jpg would be taken for the number of cat.1.jpg
        ending = Counter(PurePosixPath(path).suffix for path in own).most_common(1)[0][0]
    doubts = [_series_doubt(label, EXAMPLE if by_folder else example)] if label.is_series() and not known else []
    words = could + [part for part in parts if part is speaker and part.rank() == 1 and len(part.counts) <= FEW_CODES]
    for part in {part.place: part for part in ([] if emotions or known else words)}.values():
        if part.place != label.place and part.crosses(label):
            is_swapped = speaker is not None and part.place == speaker.place
            who = label if is_swapped or (label.is_folder and (speaker is None or speaker.rank() < 2)) else speaker
            other = _pattern(parts, form, part, who, splits) + ending
            doubts.append(_instead("classes", label, part, own, other))
    if known and code and any(pattern.read(path) is None and code.read(path) for path in paths):
        doubts.append(
            f"the code of {known[0]} tells the class of those too that the pattern leaves out: --pattern '{known[1]}'"
        )
    for part in instead:
        other = _pattern(parts, form, label, part, splits) + ending
        doubts.append(_instead("speakers", speaker or part, part, own, other))
    if speaker is not None and speaker.is_folder and not speaker.rank():
        other = _pattern(parts, form, label, None, splits) + ending
        doubts.append(f"{_few(speaker)} are taken for the speakers, for want of others; without: --pattern '{other}'")
    if speaker is not None and "{speaker}" in pattern.text:
        doubts += [
            f"{_few(speaker)} are each one speaker, though they stand with {_few(part)}; if they are two, rename them"
            for part in parts
            if part.are_sexes() and part.place != label.place and part.crosses(speaker)
        ]
    return replace(NamePattern.parse(pattern.text + ending), doubts=tuple(doubts))


def _instead(what: str, taken: _Part, part: _Part, paths: Sequence[str], pattern: str) -> str:
    """The doubt that another part tells what one is taken for."""
    first, other, path = next(one for one in zip(taken.values, part.values, paths, strict=True) if one[0] != one[1])
    return (
        f"the {what} are taken to be {_few(taken)}, e.g. {first} of {path}; if they are {_few(part)}, e.g. {other}: "
        f"--pattern '{pattern}'"
    )


def _series_doubt(part: _Part, example: str = EXAMPLE) -> str:
    """The doubt that a series of folders has no classes."""
    told = f"{_few(part)} are taken for the classes, but may be sessions or parts; if so, say where the class is"
    return told if example == EXAMPLE else f"{told}, e.g. --pattern '{example}'"


def _few(part: _Part) -> str:
    return first_few(sorted(part.counts))


def _pattern(
    parts: Sequence[_Part], form: _Form, label: _Part, speaker: _Part | None = None, splits: Sequence[_Part] = ()
) -> str:
    """The pattern that reads these parts."""
    names = {label.place: f"label}}{{{SKIPPED}:#" if label.numbered else "label"}  # within braces: {label}{_:#}
    names |= {} if speaker is None else {speaker.place: "speaker"}
    names |= {part.place: "group" for part in splits[:1]}
    text = _written([names.get(part.place, SKIPPED) for part in parts], form)
    if speaker is not None and form[0] < speaker.place and speaker.place - 1 not in names:
        before = parts[speaker.place - 1]
        if before.are_sexes() and before.crosses(speaker):  # F_01 and M_01 are two
            text = re.sub(rf"\{{{SKIPPED}\}}([-_. ]+)\{{speaker\}}", "{speaker+}", text)
    return text


def _by_stem(paths: Sequence[str]) -> NamePattern | None:
    """The pattern by which the name before the last number is the label, e.g. american_bulldog_12; None: it is not."""
    found = [re.fullmatch(r"(.*[^\W\d_])([-_. ])\d+", PurePosixPath(path).stem) for path in paths]
    names = Counter(one[1] for one in found if one is not None)
    separators = {one and one[2] for one in found}
    # one file of another form, and the number before it may be anything
    if len(separators) > 1 or None in separators or not 2 <= len(names) <= MOST_CLASSES or min(names.values()) < 2:
        return None
    if _has_parts(names):
        return None
    return NamePattern.parse(f"{{label+}}{separators.pop()}{{{SKIPPED}}}")


def _by_folder(paths: Sequence[str]) -> NamePattern | None:
    """The pattern by which the innermost folder of several names is the label; None: it does not hold several files."""
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    depth = min(map(len, folders))
    levels = list(zip(*(parts[len(parts) - depth :] for parts in folders), strict=True))
    splits = [place for place, level in enumerate(levels) if _is_split(level)]
    named = [place for place, level in enumerate(levels) if len(set(level)) > 1 and not _has_parts(level)]
    if not named or len(set(levels[named[-1]])) > len(paths) // 2:
        return None
    fields = ["group" if place in splits[:1] else SKIPPED for place in range(depth)]
    fields[named[-1]] = "label"
    return NamePattern.parse(_written([*fields, SKIPPED], (depth, ())))


def _is_split(values: Iterable[str]) -> bool:
    """Whether values are the names of parts, one of them for training, or of folds."""
    names = set(values)
    parts = set(parts_of({name.rstrip(DIGITS) for name in names}).values())
    return len(names) > 1 and ({"train"} < parts or all(map(FOLD.fullmatch, names)))


def _has_parts(values: Iterable[str]) -> bool:
    """Whether values are no classes, since they are names of parts, perhaps beside other folders, or of folds."""
    names = {name.rstrip(DIGITS).lower() for name in values}
    parts = {PARTS[name] for name in names & PARTS.keys()}
    return len(set(parts_of(names).values())) > 1 or {"train"} < parts or _is_split(values)


_Form = tuple[int, tuple[str, ...]]
"""Number of folder levels, and the separators within the name."""


def _form(path: str) -> _Form:
    pure = PurePosixPath(path)
    return len(pure.parts) - 1, tuple(SEPARATORS.findall(pure.stem))


def _parts(path: str, form: _Form) -> list[str]:
    pure = PurePosixPath(path)
    return [*pure.parts[:-1], *(SEPARATORS.split(pure.stem)[::2] if form[1] else [pure.stem])]


def _written(fields: Sequence[str], form: _Form) -> str:
    """The pattern with these fields; skipped folders at its beginning are left out."""
    num_folders, separators = form
    named = [f"{{{name}}}" for name in fields]
    stem = "".join(part + separator for part, separator in zip(named[num_folders:], [*separators, ""], strict=True))
    if set(fields[num_folders:]) == {SKIPPED}:
        stem = f"{{{SKIPPED}}}"
    folders = named[:num_folders]
    while folders and folders[0] == f"{{{SKIPPED}}}":
        folders.pop(0)
    return "/".join([*folders, stem])


def _example(parts: Sequence[_Part], form: _Form) -> str:
    """A pattern for these paths: codes that agree with a folder, else the first or the last, are the speaker's.

    Of the other parts, that with the fewest values, at least three, is the label; of characters, the letters with most.
    """
    stems = parts[-1].values
    if not form[1] and len({*map(len, stems)}) == 1 and (length := len(stems[0])) > 4:
        begins = re.match(r"\D?\d*", stems[0])
        width = begins.end() if begins and 1 < begins.end() < length else 2
        letters = [place for place in range(width, length) if all(stem[place].isalpha() for stem in stems)]
        place = max(letters, key=lambda place: len({stem[place] for stem in stems}), default=width)
        skipped = [f"{{_:{number}}}" if number else "" for number in (place - width, length - place - 1)]
        return f"{{speaker:{width}}}{skipped[0]}{{label:1}}{skipped[1]}"
    folders, names = ([part for part in parts if part.is_folder is kind] for kind in (True, False))
    several = [part for part in names if len(part.counts) > 2]
    if len(names) < 2 or not several:
        return EXAMPLE
    pairs = [(part, set(zip(part.values, folder.values, strict=True))) for part in names for folder in folders]
    agreeing = [part for part, both in pairs if len(both) == len({value for _, value in both}) == len(part.counts) > 1]
    ends = [part for part in (names[-1], names[0]) if part in several and len(several) > 1]
    speaker = next(iter([*agreeing, *ends]), None)
    label = min([part for part in several if part is not speaker] or several, key=lambda part: len(part.counts))
    fields = {speaker.place: "speaker"} if speaker is not None else {}
    fields[label.place] = "label"
    return _written([fields.get(part.place, SKIPPED) for part in parts], form)
