"""WikiAnn (PAN-X): people, places and organisations in sentences of Wikipedia, in any of 282 languages.

Source: X. Pan et al., "Cross-lingual Name Tagging and Linking for 282 Languages", ACL 2017; the parts train, dev and
test are those of A. Rahimi, Y. Li, T. Cohn, "Massively Multilingual Transfer for NER", ACL 2019. The folder of a
language has files of two columns, separated by tabs, in BIO; words carry the language (`en:Paris`). Links and page
titles made the tags, so they are less reliable than those of people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from daamctl.corpora.base import Corpus
from daamctl.corpora.conll import TABLES, part_files, read_columns, read_rows, token_rows
from daamctl.corpora.tags import Sentence
from daamctl.errors import CorpusError

GET_IT = (
    "get the archive of a language (https://github.com/afshinrahimi/mmner) and register its folder with train, dev and "
    "test: daamctl download wikiann --from DIR"
)


def prepare(root: Path) -> pl.DataFrame:
    """Read the folder of one language, as files of columns or as the hub has it, as tables."""
    places = part_files(root)
    if not places:
        below = sorted(path.name for path in root.iterdir() if path.is_dir() and part_files(path))
        hint = f"; it has folders of languages, {', '.join(below[:5])}: give one of them" if below else ""
        raise CorpusError(f"{root} does not look like a language of WikiAnn: no train, dev and test{hint}", fix=GET_IT)
    tables = [path for path in places.values() if path.suffix.lower() in TABLES]
    read = {path: read_columns(path, columns=2, fix=GET_IT) for path in places.values() if path not in tables}
    read |= {path: read_rows(path, fix=GET_IT) for path in tables}
    return token_rows([(part, path, _without_language(read[path], path)) for part, path in places.items()])


def _without_language(sentences: Sequence[Sentence], path: Path) -> list[Sentence]:
    """Remove the language before the words, if most of them have one."""
    count = sum(len(sentence.words) for sentence in sentences)
    starts = Counter(word.partition(":")[0] for sentence in sentences for word in sentence.words if ":" in word)
    language, number = starts.most_common(1)[0] if starts else ("", 0)
    if 2 * number <= count:
        return list(sentences)
    prefix = f"{language}:"
    for sentence in sentences:
        for index, word in enumerate(sentence.words):
            if not word.startswith(prefix) or word == prefix:
                raise CorpusError(
                    f"{path}:{sentence.place + index}: the word '{word}' does not begin with '{prefix}' as others do, "
                    "or there is nothing after it",
                    fix=GET_IT,
                )
    return [replace(one, words=[word.removeprefix(prefix) for word in one.words]) for one in sentences]


CORPUS = Corpus(
    name="wikiann",
    title="WikiAnn: sentences of Wikipedia in one of 282 languages (train, dev and test part), three entity types",
    licence="not stated by its authors; the text is Wikipedia's, CC BY-SA",
    classes=(),  # small languages lack some
    prepare=prepare,
    fingerprint=None,
    how_to_get=GET_IT,
    modality="tokens",
)
