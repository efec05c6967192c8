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
from functools import cached_property
from pathlib import PurePosixPath

import polars as pl

from daamctl.corpora import CORPORA
from daamctl.corpora.groups import PARTS, parts_of
from daamctl.data.item_names import NAMES, most_names
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
    r"(?i)(speaker|spk|actor|subject|sub|singer|patient|person|participant|case|female|male|s|p|id)?"
    r"[-_ ]?[mf]?\d+[mf]?|(?=[a-f]*\d)[\da-f]{8,}"
)
"""What speakers are usually called, by numbers or hashes."""
SESSION = re.compile(
    r"(?i)(?:^|[-_ ])(?:sess?|session|dialog|dialogue|level|part|take|day|dis[ck]|cd|vol(?:ume)?|batch|set)[-_ ]?\d+"
)
"""What is numbered, but rather neither a class nor a speaker."""
KIND = re.compile(
    r"(?i)(jpe?g|png)?[-_ ]?images?|imgs?|masks?|segment\w*|annotations?|labels?|trimaps?|ground[-_ ]?truth|gt|aligned|"
    r"cropped|resized|originals?|raw|colou?r|rgb|gr[ae]y([-_ ]?scale)?|depth|edges|thumbnails?"
)
"""Kinds of pictures of the same things, and what is drawn in them."""
SEXES = {"f", "m", "w", "female", "male"}
EXAMPLE = "{label}/{speaker}_{_}"
CODES = "--labels CODE=NAME,... gives codes names"
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
        return cls(text, re.compile(f"(?:.*/)?{''.join(parts)}{suffix}"))

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

    @cached_property
    def counts(self) -> Counter[str]:
        """Value -> number of paths."""
        return Counter(self.values)

    def could_label(self) -> bool:
        """Whether it has a few values, of at least two letters each, most of which occur more than once.

        Pieces of a name that differ in their numbers alone, such as dia0 and dia1, are none.
        """
        times = sorted(self.counts.values())
        return (
            2 <= len(times) <= MOST_CLASSES
            and times[len(times) // 2] > 1
            and (self.is_folder or len(self.without_numbers()) > 1)
            and all(WORD.search(value) and not NUMBERED.fullmatch(value) for value in self.counts)
            and not _has_parts(self.counts)
        )

    def without_numbers(self) -> set[str]:
        """What is left of its values without digits."""
        return {re.sub(r"\d+", "", value) for value in self.counts}

    def is_series(self) -> bool:
        """Whether it is a level of folders with a few names and more numbers, as session1 and session2."""
        names = self.without_numbers()
        return self.is_folder and "" not in names and 2 * len(names) <= len(self.counts)

    def are_ids(self) -> bool:
        """Whether its values, with two files each or more on average, are numbers, or numbers with a few words."""
        if 2 * len(self.counts) > len(self.values) or 2 * len(self.without_numbers()) > len(self.counts):
            return False
        if self.is_folder:
            return self.rank() > 0 and all(re.fullmatch(r"\S*\d\S*", value) for value in self.counts)
        return all(value[:1].isalpha() and NUMBERED.fullmatch(value) for value in self.counts)

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

    def equals(self, other: _Part) -> bool:
        """Whether each tells the other."""
        return self.tells(other) and other.tells(self)

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
        several = Counter(value for value, _ in set(zip(self.values, labels, strict=True)))
        most_have = sum(number > 1 for number in several.values()) * 2 >= len(several)
        # folders may be named after people
        named = self.is_folder or all(map(NUMBERED.fullmatch, several))
        return 1 < len(several) <= len(labels) // 2 and most_have and named and not _has_parts(several)


@dataclass(frozen=True)
class _Layout:
    """Paths, and of those in the most frequent form the parts: a stray file should not decide how others are read.

    Args:
        sentence: place of the part that tells what is said, in names of known corpora.
    """

    every: Sequence[str]
    form: _Form
    paths: Sequence[str]
    parts: Sequence[_Part]
    sentence: int | None = None

    @classmethod
    def of(cls, every: Sequence[str], *, whole: bool = False) -> _Layout:
        """The layout of relative POSIX paths; whole: the names of the files are one part."""
        forms = [(depth, () if whole else separators) for depth, separators in map(_form, every)]
        form = max(Counter(forms).items(), key=lambda one: (one[1], one[0][0] if whole else 0))[0]
        paths = [path for path, other in zip(every, forms, strict=True) if other == form]
        values = zip(*(_parts(path, form) for path in paths), strict=True)
        return cls(every, form, paths, [_Part(place, place < form[0], one) for place, one in enumerate(values)])

    @cached_property
    def fields(self) -> dict[int, str]:
        """Place -> field without label and speaker: the first part that names the parts of a split is the group."""
        group = next((part.place for part in self.parts if _is_split(part.counts)), None)
        named = {group: "group", self.sentence: "sentence"}
        return {part.place: named.get(part.place, SKIPPED) for part in self.parts}

    def written(self, names: dict[int, str]) -> str:
        """The pattern with these fields at these places."""
        return _written([*(self.fields | names).values()], self.form)

    def pattern(self, label: _Part, speaker: _Part | None = None) -> NamePattern:
        """The pattern that reads these parts."""
        names = {label.place: f"label}}{{{SKIPPED}:#" if label.numbered else "label"}  # within braces: {label}{_:#}
        text = self.written(names if speaker is None else {**names, speaker.place: "speaker"})
        if speaker is not None and not speaker.is_folder and speaker.place > self.form[0]:
            before = self.parts[speaker.place - 1]
            if before.are_sexes() and before.crosses(speaker):  # F_01 and M_01 are two
                text = re.sub(rf"\{{{SKIPPED}\}}([-_. ]+)\{{speaker\}}", "{speaker+}", text)
        pattern = NamePattern.parse(text)
        # .jpg of 1.jpg would be taken for the number of cat.1.jpg, and that of 1.cat.jpg for a part of the label
        ending = Counter(PurePosixPath(path).suffix for path in self.paths).most_common(1)[0][0]
        read = pattern.read(next(path for path in self.paths if path.endswith(ending)))
        is_part = read is None or any(value.endswith(ending) for value in read.values())
        of_others = (path for path in self.every if len(_form(path)[1]) < len(self.form[1]) and pattern.read(path))
        return NamePattern.parse(text + ending) if ending and (is_part or any(of_others)) else pattern


def propose(paths: Sequence[str], *, by_folder: bool = False, folder: str = "FOLDER") -> NamePattern:
    """A pattern for relative POSIX paths, from their most frequent form.

    Folders named train and test (or dev), or fold1 and so on, are groups. The label is a part of letters with few
    values: one of emotions, or the innermost such folder, else a piece of the name. The speaker is another part,
    numbered or a folder, whose values have several labels each: a folder, else the first; plain numbers that no folder
    has twice are those of items. Without one, folders of numbers, or numbers behind letters, that are many for each
    label are the speakers, as patients are. Where another part could be meant as well, the pattern has a doubt.

    Args:
        by_folder: where nothing else looks like a label, folders are classes whatever they are called, e.g. of images,
            except for those of kinds of pictures.
        folder: where the paths are, for messages.

    Raises:
        CorpusError: nothing looks like a label, or the names are of a corpus that tells it by a code or not at all; the
            message shows how to write a pattern for the first path.
    """
    layout = _Layout.of(paths)
    worded = [one for part in layout.parts if (one := part.words())]
    could = [part for part in (*layout.parts, *worded) if part.could_label()]
    sessions, labels = ([part for part in could if (part.rank() == 0) is kind] for kind in (True, False))
    if (corpus := most_names(paths)) and (pattern := _of_corpus(corpus, layout, labels, folder)):
        return pattern
    if not labels and by_folder and (pattern := _by_folder(paths)) is not None:
        return pattern
    is_mixed = len(layout.paths) < len(paths) and not any(part.is_folder for part in labels)
    if is_mixed and (pattern := _by_stem(paths)) is not None:
        return pattern
    if not labels and not sessions:
        # what agrees with the parts of a split is no class either
        of_parts = [part for part in layout.parts if _has_parts(part.counts)]
        several = [part for part in layout.parts if part.is_folder and len(part.counts) > 1]
        free = [part for part in several if not any(one.tells(part) for one in of_parts)]
        example = _example(layout) if not of_parts else layout.written({free[0].place: "label"}) if free else ""
        where = f"say where it is, e.g. --pattern '{example}'; {{_}} skips a part, {{label:1}} is one character"
        raise _no_label(paths, f"{where}; {CODES}" if example else LIST_THEM)
    label = _label_of(labels or sessions)
    speaker, others = _speaker_of(layout, label, by_folder=by_folder)
    spoken = speaker is not None and set(speaker.counts) == set(DIGITS) and speaker.place < label.place
    if speaker is not None and spoken and not label.is_folder and not label.is_emotion():  # as 0_jackson_1
        label, speaker, others = speaker, label, []
    pattern = layout.pattern(label, speaker)
    example = EXAMPLE if by_folder else _example(layout)
    doubts = [_series_doubt(label, example)] if label.is_series() and not label.is_emotion() else []
    # plain numbers may be codes of classes
    codes = [speaker] if speaker is not None and speaker.rank() == 1 and len(speaker.counts) <= FEW_CODES else []
    words = {part.place: part for part in (*could, *codes) if part.place != label.place and part.crosses(label)}
    for part in [] if label.is_emotion() else words.values():
        is_swapped = speaker is not None and part.place == speaker.place
        who = label if is_swapped or (label.is_folder and (speaker is None or speaker.rank() < 2)) else speaker
        doubts.append(_instead("label", pattern, layout.pattern(part, who), layout.paths))
    levels = [part for part in labels if part.is_folder and label.is_folder and not part.crosses(label)]
    for part in [] if label.is_emotion() else levels:  # wider or narrower classes
        if not part.equals(label):
            who = None if speaker is not None and part.place == speaker.place else speaker
            doubts.append(_instead("label", pattern, layout.pattern(part, who), layout.paths))
    doubts += [_instead("speaker", pattern, layout.pattern(label, part), layout.paths) for part in others]
    return replace(pattern, doubts=(*doubts, *_speaker_doubts(layout, pattern, label, speaker)))


def _speaker_doubts(layout: _Layout, pattern: NamePattern, label: _Part, speaker: _Part | None) -> list[str]:
    """Whether speakers may be sessions, or two of different sex have one number."""
    if speaker is None:
        return []
    doubts, who = [], _few(speaker)
    if not speaker.rank() or (speaker.are_ids() and not speaker.could_name_speakers(label.values)):
        without = layout.pattern(label).text
        doubts.append(f"{who} are taken for the speakers, for want of others; without: --pattern '{without}'")
    sexes = [part for part in layout.parts if part.are_sexes() and part.place != label.place and part.crosses(speaker)]
    if "{speaker}" in pattern.text:
        told = f"{who} are each one speaker, though they stand with"
        doubts += [f"{told} {_few(part)}; if they are two, rename them" for part in sexes]
    return doubts


def _of_corpus(corpus: str, layout: _Layout, labels: Sequence[_Part], folder: str) -> NamePattern | None:
    """The pattern for a corpus whose names tell the class by a code, or not at all.

    The label is a part that agrees with the code; without one, a part that names emotions in a corpus that `download`
    reads, or a folder around the corpus's own folders. None: the names tell fewer than three codes, so they are rather
    of something else.

    Raises:
        CorpusError: there is no such part.
    """
    names, is_own = NAMES[corpus], corpus.lower() in CORPORA
    code = NamePattern.parse(names.label) if names.label else None
    if code is not None:
        read = [code.read(path) or {} for path in layout.paths]
        codes, sentences = (
            _Part(-1, False, tuple(one.get(name, "") for one in read)) for name in ("label", "sentence")
        )
        spoken = [part.place for part in layout.parts if len(sentences.counts) > 1 and part.equals(sentences)]
        layout = replace(layout, sentence=next(iter(spoken), None))
        if len(codes.counts.keys() - {""}) < 3:
            return None
        found = [part for part in labels if codes.tells(part)]
    elif is_own:
        found = [part for part in labels if part.is_emotion()]
    else:
        found = [part for part in labels if part.place < layout.form[0] - names.form.count("/")]
    if not found and code is None and not is_own:
        fix = f"for the speakers as classes: --pattern '{names.by_speaker}'; or " if names.by_speaker else ""
        raise CorpusError(f"the names of {corpus} tell the {names.word}, but no class", fix=f"{fix}{LIST_THEM}")
    if not found:
        ways = [f"say where it is: --pattern '{names.label}'; {CODES}"] if code else []
        ways += [f"daamctl download {corpus.lower()} --from {folder}"] if is_own else []
        folders = [part for part in labels if part.is_folder][-1:]
        ways += [f"if {_few(part)} are the classes: --pattern '{layout.pattern(part).text}'" for part in folders]
        told = f"; {corpus} {'tells it by a code' if code else 'does not tell it there'}"
        raise _no_label(layout.every, "; or ".join(ways), told)
    label, tells = _label_of(found), _Part(-1, False, tuple(names.groups(pl.Series(layout.paths))))
    speakers = [part for part in layout.parts if names.word == "speaker" and part.equals(tells)]
    pattern = layout.pattern(label, next((part for part in speakers if part.place != label.place), None))
    others = [] if code or label.is_emotion() else [part for part in found if part.crosses(label)]
    doubts = [_instead("label", pattern, layout.pattern(part), layout.paths) for part in others]
    if code and any(pattern.read(path) is None and code.read(path) for path in layout.every):
        doubts.append(
            f"the code of {corpus} tells the class of those too that the pattern leaves out: --pattern '{names.label}'"
        )
    return replace(pattern, doubts=tuple(doubts))


def _no_label(paths: Sequence[str], fix: str, more: str = "") -> CorpusError:
    told = f"nothing in the names of the files looks like a label, e.g. {first_few(paths[:3])}{more}"
    return CorpusError(told, fix=fix)


def _label_of(labels: Sequence[_Part]) -> _Part:
    """The label of parts that could be it: one of emotions, rather a folder, the innermost; else the first piece.

    Folders of numbers within folders of words are no classes, but what belongs together, e.g. of a patient.
    """
    emotions = [part for part in labels if part.is_emotion()]
    folders = [part for part in emotions or labels if part.is_folder]
    words = [part for part in folders if not part.are_ids()]
    named = [part for part in folders if part in words or not any(part.tells(other) for other in words)]
    return (named or emotions or labels[:1])[-1]


def _speaker_of(layout: _Layout, label: _Part, *, by_folder: bool) -> tuple[_Part | None, list[_Part]]:
    """The speaker, and other parts that may be meant."""
    # numbers that begin anew in every folder are those of items; of images also those that begin anew in every class
    levels = [part.values for part in layout.parts if part.is_folder] + ([label.values] if by_folder else [])
    inside = list(zip(*levels, strict=True)) or [()] * len(layout.paths)
    could = [
        part
        for part in layout.parts
        if part.place != label.place
        and not label.tells(part)
        and part.could_name_speakers(label.values)
        and (part.rank() != 1 or len(set(zip(inside, part.values, strict=True))) < len(layout.paths))
    ]
    for part in layout.parts:  # who has one label each, as patients have
        are_many = part.place != label.place and len(part.counts) >= 2 * len(label.counts)
        if are_many and part.are_ids() and not any(part.tells(other) for other in could):
            could.append(part)
    # two are rather takes than speakers; people write the speaker before the sentence and the take
    surest = max(
        (part for part in could if len(part.counts) > 2),
        key=lambda part: (part.rank(), len(part.counts) if part.is_folder else -part.place),
        default=None,
    )
    if surest is None:
        return None, []
    speaker, is_number = surest, surest.rank() == 1
    if is_number:  # perhaps with the name of a speaker beside it, as in 01_OISHI
        beside = [part for part in layout.parts if not part.is_folder and abs(part.place - surest.place) == 1]
        named = [part for part in beside if all(map(WORD.fullmatch, part.counts)) and part.tells(surest)]
        speaker = next((part for part in reversed(named) if part.crosses(label)), surest)
    has_name = speaker.is_folder and not all(map(NUMBERED.fullmatch, speaker.counts))
    others = [
        part
        for part in could
        if part.place not in (surest.place, speaker.place)
        and not part.equals(speaker)
        and (is_number or part.rank() > 1 or (has_name and part.rank() == 1))
        and (len(part.counts) > 2 or (is_number and part.place < speaker.place))
    ]
    return speaker, others


def _instead(field: str, pattern: NamePattern, other: NamePattern, paths: Sequence[str]) -> str:
    """The doubt that another pattern reads what is meant."""
    read = [(path, pattern.read(path), other.read(path)) for path in paths]
    both = [(path, one[field], two[field]) for path, one, two in read if one and two]
    path, first, second = next(values for values in both if values[1] != values[2])
    taken, meant = (first_few(sorted({values[at] for values in both})) for at in (1, 2))
    return (
        f"the {'classes' if field == 'label' else 'speakers'} are taken to be {taken}, e.g. {first} of {path}; if they "
        f"are {meant}, e.g. {second}: --pattern '{other.text}'"
    )


def _series_doubt(part: _Part, example: str = EXAMPLE) -> str:
    """The doubt that a series of folders has no classes."""
    told = f"{_few(part)} are taken for the classes, but may be sessions or parts; if so, say where the class is"
    return told if example == EXAMPLE else f"{told}, e.g. --pattern '{example}'"


def _few(part: _Part) -> str:
    return first_few(sorted(part.counts))


def _by_stem(paths: Sequence[str]) -> NamePattern | None:
    """The pattern by which the name before the last number is the label, e.g. american_bulldog_12; None: it is not."""
    found = [re.fullmatch(r"(.*[^\W\d_])([-_. ])\d+", PurePosixPath(path).stem) for path in paths]
    names = Counter(one[1] for one in found if one is not None)
    separators = {one and one[2] for one in found}
    # one file of another form, and the number before it may be anything
    if len(separators) > 1 or None in separators or not 2 <= len(names) <= MOST_CLASSES or min(names.values()) < 2:
        return None
    return None if _has_parts(names) else NamePattern.parse(f"{{label+}}{separators.pop()}{{{SKIPPED}}}")


def _by_folder(paths: Sequence[str]) -> NamePattern | None:
    """The pattern by which the innermost folder of several names is the label; None: it does not hold several files."""
    layout = _Layout.of(paths, whole=True)
    *folders, stem = layout.parts
    layout = replace(layout, parts=[*folders, replace(stem, values=("",) * len(stem.values))])
    named = [part for part in folders if len(part.counts) > 1 and not _has_parts(part.counts)]
    persons = [part for part in named if all(NUMBERED.fullmatch(value) and WORD.match(value) for value in part.counts)]
    label = max(named, key=lambda part: (part not in persons, part.place), default=None)
    if label is None or len(label.counts) > len(layout.paths) // 2:
        return None
    speaker, _ = _speaker_of(layout, label, by_folder=True)
    pattern = layout.pattern(label, speaker)
    is_doubted = not label.rank() or (label.is_series() and all(map(WORD.search, label.counts)))
    doubts = [_series_doubt(label)] if is_doubted else []
    others = [part for part in named if not part.equals(label) and len(part.counts) <= MOST_CLASSES]
    doubts += [_instead("label", pattern, layout.pattern(part, label), layout.paths) for part in others]
    return replace(pattern, doubts=(*doubts, *_speaker_doubts(layout, pattern, label, speaker)))


def _is_split(values: Iterable[str]) -> bool:
    """Whether values are the names of parts, one of them for training, or of folds."""
    names = set(values)
    return "train" in parts_of({name.rstrip(DIGITS) for name in names}).values() or (
        len(names) > 1 and all(map(FOLD.fullmatch, names))
    )


def _has_parts(values: Iterable[str]) -> bool:
    """Whether values are no classes: names of parts, perhaps beside other folders, of folds, or kinds of pictures."""
    names = {name.rstrip(DIGITS) for name in values}
    return (
        _is_split(values)
        or (len(names) > 1 and all(map(KIND.fullmatch, names)))
        or bool(parts_of(names))
        or {"train"} < {PARTS[name.lower()] for name in names if name.lower() in PARTS}
    )


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


def _example(layout: _Layout) -> str:
    """A pattern for these paths: codes that agree with a folder, else the first or the last, are the speaker's.

    Of the other parts, that with the fewest values, at least three, is the label; of characters, the letters with most.
    """
    stems = layout.parts[-1].values
    if not layout.form[1] and len({*map(len, stems)}) == 1 and (length := len(stems[0])) > 4:
        begins = re.match(r"\D?\d*", stems[0])
        width = begins.end() if begins and 1 < begins.end() < length else 2
        letters = [place for place in range(width, length) if all(stem[place].isalpha() for stem in stems)]
        place = max(letters, key=lambda place: len({stem[place] for stem in stems}), default=width)
        skipped = [f"{{_:{number}}}" if number else "" for number in (place - width, length - place - 1)]
        return f"{{speaker:{width}}}{skipped[0]}{{label:1}}{skipped[1]}"
    folders, names = ([part for part in layout.parts if part.is_folder is kind] for kind in (True, False))
    several = [part for part in names if len(part.counts) > 2]
    if len(names) < 2 or not several:
        return EXAMPLE
    pairs = [(part, set(zip(part.values, folder.values, strict=True))) for part in names for folder in folders]
    agreeing = [part for part, both in pairs if len(both) == len({value for _, value in both}) == len(part.counts) > 1]
    ends = [part for part in (names[-1], names[0]) if part in several and len(several) > 1]
    speaker = next(iter([*agreeing, *ends]), None)
    label = min([part for part in several if part is not speaker] or several, key=lambda part: len(part.counts))
    fields = {speaker.place: "speaker"} if speaker is not None else {}
    return layout.written({**fields, label.place: "label"})
