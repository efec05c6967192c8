"""Terms that a report explains: as a tooltip where each first stands, and in a section at the end.

A term is a regular expression and its explanation. Only terms that occur in a report are in its glossary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from daamctl.reporting.document import CODE, Block, Bullets, Folded, Section, Table, Text

GLOSSARY = {
    "WA": "weighted accuracy, the share of correct items; speech papers call it so because frequent classes weigh more",
    "UA": "unweighted accuracy, also balanced accuracy: the mean over classes of the share of correct items",
    "Linear probe": "a ridge classifier on one layer (ridge-last), solved in closed form, so always fully trained",
    "Fusion": "a method that classifies from all layers instead of one",
    "Importance Factor": "mean density of a feature under a method's Gaussians, scaled to 0 to 1 over all layers",
    "Density": "value of the Gaussian that a DAAM head places around the mean of its features",
    "Geometry": "a pattern of a map that the untrained method shows as well, because of how layers are cut into heads",
    "τ": "Kendall's rank correlation of two rankings: 1 if they are equal, 0 if they are unrelated, −1 if reversed",
    "ρ": "Spearman's rank correlation: 1 if two rankings are equal, 0 if they are unrelated, −1 if reversed",
    "Deletion": "test of a layer score: layers are replaced by their mean, those with the highest score first",
    "Insertion": "test of a layer score: layers are put back into a mean, those with the highest score first",
    "Undertrained": "worse than a closed-form probe of the same input, on the data it was trained on too",
    "Overfitted": "worse than a closed-form probe of the same input, but not on the data it was trained on",
    "Collapsed": "worse than a closed-form probe, because its second training ended worse than the first",
    "Learned nothing": "no better than always giving one class, or best in the first epoch of every run",
    "Holm": "a correction that keeps the chance of any false finding among several tests at the level",
    "ECE": "expected calibration error: how far the predicted probabilities are from the observed frequencies",
    "Jackknife": "repeats a calculation without each unit in turn, to see how much chance changes it",
    "Sign-flip test": "compares two methods by how often random signs of their differences give as large a mean",
}
"""Term, as in the glossary -> explanation. In a report it may begin with a small letter and end with an s."""


def with_glossary(sections: Sequence[Section]) -> list[Section]:
    """Sections of a report, with a section that explains the terms they use; unchanged if they use none."""
    words = "\n".join(text for section in sections for text in _texts(section.blocks))
    lines = [f"{term}: {text}." for term, text in GLOSSARY.items() if _pattern(term).search(words)]
    if not lines:
        return list(sections)
    return [*sections, Section("terms", "Terms", [Bullets(lines)])]


def explainer() -> Callable[[str], Markup]:
    """A function that marks each term with its explanation where it first occurs, and code; other text is escaped."""
    left = dict(GLOSSARY)

    def mark(text: str) -> Markup:
        found: dict[tuple[int, int], str] = {}
        for term in list(left):
            match = _pattern(term).search(text)
            # Two terms may overlap; the other one is explained where it next occurs.
            if match and not any(start < match.end() and match.start() < end for start, end in found):
                found[match.span()] = left.pop(term)
        marked, end = Markup(""), 0
        for (start, stop), meaning in sorted(found.items()):
            word = Markup('<abbr title="{}" tabindex="0">{}</abbr>').format(meaning, text[start:stop])
            marked, end = marked + escape(text[end:start]) + word, stop
        return marked + escape(text[end:])

    def explain(text: str) -> Markup:
        parts = CODE.split(text)
        return Markup("").join(
            Markup("<code>{}</code>").format(part) if number % 2 else mark(part) for number, part in enumerate(parts)
        )

    return explain


def _pattern(term: str) -> re.Pattern[str]:
    """Matches a term as a word of its own; its first letter may be small unless the term is an abbreviation."""
    first, rest = re.escape(term[0]), re.escape(term[1:])
    if len(term) > 1 and not term.isupper():
        first = f"[{term[0].upper()}{term[0].lower()}]"
    return re.compile(rf"(?<!\w){first}{rest}s?(?!\w)")


def _texts(blocks: Sequence[Block]) -> list[str]:
    """The words of blocks: paragraphs, lists, and the headings and notes of tables."""
    found = []
    for block in blocks:
        if isinstance(block, Text):
            found.append(block.text)
        elif isinstance(block, Bullets):
            found += block.lines
        elif isinstance(block, Table):
            found += [block.caption, *block.columns, block.note]
        elif isinstance(block, Folded):
            found += _texts(block.blocks)
    return found
