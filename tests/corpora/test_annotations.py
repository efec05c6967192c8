"""Annotated texts as other tools export them: one made-up text in every form gives the same words and tags."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from daamctl.corpora import conll
from daamctl.corpora.annotations import kind_of, read_classified, words_of
from daamctl.corpora.lists import corpus_of, table_of
from daamctl.errors import CorpusError

TEXT = "Ann Lee, of Rio.\nBo sang"
SPANS = [(0, 7, "PER"), (12, 15, "LOC"), (17, 19, "PER")]
WORDS = ["Ann", "Lee", ",", "of", "Rio", ".", "Bo", "sang"]
LABELS = ["B-PER", "I-PER", "O", "O", "B-LOC", "O", "B-PER", "O"]
OBJECTS = [{"start": start, "end": end, "label": kind} for start, end, kind in SPANS]
STUDIO = [{"value": {"start": start, "end": end, "labels": [kind]}, "type": "labels"} for start, end, kind in SPANS]
EMPTY = {"text": "none", "label": []}
TOOLS: dict[str, Any] = {
    "doccano": {"id": 7, "text": TEXT, "label": SPANS},
    "doccano with relations": {
        "id": 7,
        "text": TEXT,
        "entities": [{"label": kind, "start_offset": start, "end_offset": end} for start, end, kind in SPANS],
        "relations": [],
    },
    "prodigy": {"text": TEXT, "spans": OBJECTS, "answer": "accept"},
    "spacy": [TEXT, {"entities": SPANS}],
    "label studio": {"id": 7, "data": {"text": TEXT}, "annotations": [{"result": STUDIO}]},
    "label studio, short": {"id": 7, "text": TEXT, "label": [{**one, "labels": [one["label"]]} for one in OBJECTS]},
}


def write(path: Path, values: list[Any]) -> Path:
    lines = path.suffix == ".jsonl"
    path.write_text("\n".join(map(json.dumps, values)) if lines else json.dumps(values, indent=1))
    return path


MORE: dict[str, Any] = {
    "cluener": {"PER": {"Ann Lee": [[0, 6]], "Bo": [[17, 18]]}, "LOC": {"Rio": [[12, 14]]}},
    "cmeee": [
        {"start_idx": start, "end_idx": end - 1, "type": kind, "entity": TEXT[start:end]} for start, end, kind in SPANS
    ],
    "stockmark": [{"name": TEXT[start:end], "span": [start, end], "type": kind} for start, end, kind in SPANS],
    "azure": [{"category": kind, "offset": start, "length": end - start} for start, end, kind in SPANS],
}
TOOLS |= {
    name: {"id": 7, "text": TEXT, "label" if name == "cluener" else "entities": one} for name, one in MORE.items()
}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("tool", TOOLS)
def test_tools(tmp_path: Path, tool: str, suffix: str) -> None:
    path = write(tmp_path / f"mine{suffix}", [TOOLS[tool]])
    rows = conll.prepare(path)
    assert (rows["text"].to_list(), rows["label"].to_list()) == (WORDS, LABELS)
    number = "7" if '"id": 7' in path.read_text() else "000001"
    assert rows["sentence"].unique(maintain_order=True).to_list() == [f"mine-{number}-1", f"mine-{number}-2"]
    assert set(rows["speaker"]) == {f"mine-{number}"}  # the text that both lines are of
    assert corpus_of(path) == "conll"


def test_wrapped_list_of_spacy(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"classes": ["PER"], "annotations": [TOOLS["spacy"], None]}))
    assert conll.prepare(path)["label"].to_list() == LABELS


def test_brat(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "one.txt").write_text(TEXT)
        lines = [f"T{number}\t{kind} {start} {end}\tx" for number, (start, end, kind) in enumerate(SPANS, 1)]
        lines += ["R1\tin Arg1:T1 Arg2:T2", "T9\tPER 0 3;8 11\tx", "#1\tAnnotatorNotes T1\tsure"]
        (tmp_path / part / "one.ann").write_text("\n".join(lines))
    rows = conll.prepare(tmp_path)
    assert (rows["text"].to_list(), rows["label"].to_list()) == (WORDS * 2, LABELS * 2)
    assert rows["group"].to_list() == ["test"] * 8 + ["train"] * 8
    assert corpus_of(tmp_path) == "conll"
    (tmp_path / "test").rename(tmp_path / "dev")
    assert set(conll.prepare(tmp_path)["group"]) == {"train", "test"}  # without a test part, the dev part is it
    (tmp_path / "dev" / "one.ann").write_text("T1\tPER none\tx")
    with pytest.raises(CorpusError, match=r"one\.ann:1: no start and end in 'T1"):
        conll.prepare(tmp_path)


def test_spans_of_words(tmp_path: Path) -> None:
    """SpERT's end after their last word, GLiNER's at it."""
    words = ["Ann", "Lee", "in", "Rio"]
    entities = [{"type": "PER", "start": 0, "end": 2}, {"type": "LOC", "start": 3, "end": 4}]
    spert = conll.prepare(write(tmp_path / "spert.json", [{"tokens": words, "entities": entities, "relations": []}]))
    gliner = [{"tokenized_text": words, "ner": [[0, 1, "PER"], [3, 3, "LOC"]]}]
    for rows in (spert, conll.prepare(write(tmp_path / "gliner.json", gliner))):
        assert rows["text"].to_list() == words
        assert rows["label"].to_list() == ["B-PER", "I-PER", "O", "B-LOC"]


def test_words_that_are_given(tmp_path: Path) -> None:
    tokens = [{"text": "New-York", "start": 0, "end": 8, "id": 0}, {"text": "!", "start": 9, "end": 10, "id": 1}]
    value = {"text": "New-York !", "tokens": tokens, "spans": [{"start": 0, "end": 8, "label": "LOC"}]}
    rows = conll.prepare(write(tmp_path / "mine.jsonl", [value]))
    assert rows["text"].to_list() == ["New-York", "!"]


def test_spans_that_fit_no_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spans = [(1, 3, "PER"), (0, 7, "ORG"), (4, 7, "PER"), (11, 12, "LOC"), (12, 16, "LOC")]
    with caplog.at_level(logging.WARNING):
        rows = conll.prepare(write(tmp_path / "mine.jsonl", [{"text": TEXT.split("\n")[0], "label": spans}]))
    assert rows["label"].to_list() == ["B-ORG", "I-ORG", "O", "O", "B-LOC", "I-LOC"]
    assert "3 spans left out (inside another, or without a word)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        rows = conll.prepare(
            write(tmp_path / "mine.jsonl", [{"text": TEXT, "label": [(1, 6, "PER"), (11, 15, "LOC")]}])
        )
    assert rows["label"].to_list()[:5] == ["B-PER", "I-PER", "O", "O", "B-LOC"]  # never cut: that would tell the entity
    assert "1 span widened to whole words" in caplog.text


@pytest.mark.parametrize("place", [[0, 5000], [-5, 3], [12, 7], [500, 510]])
def test_spans_outside_their_text_are_refused(tmp_path: Path, place: list[int]) -> None:
    path = write(tmp_path / "mine.jsonl", [TOOLS["doccano"], {"id": "b", "text": TEXT, "label": [[*place, "PER"]]}])
    with pytest.raises(CorpusError) as error:
        conll.prepare(path)
    assert f"mine.jsonl: 1 span not within the text, e.g. {place} of 'b' (allowed: 0 to 24)" in error.value.message


def test_spans_of_label_studio_are_found_by_their_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It counts as browsers do, where an emoji is two characters, and writes line breaks as in a string."""
    text = f"\U0001f600 {TEXT}"
    places = [(3, 10, "Ann Lee"), (15, 22, "Rio.\\nBo"), (23, 27, "song")]
    marks = [{"value": {"start": a, "end": b, "text": held, "labels": ["X"]}} for a, b, held in places]
    path = write(tmp_path / "mine.json", [{"data": {"text": text}, "annotations": [{"result": marks}]}])
    with caplog.at_level(logging.WARNING):
        rows = conll.prepare(path)
    assert rows["label"].to_list() == ["O", "B-X", "I-X", "O", "O", "B-X", "I-X", "I-X", "O"]
    assert "1 span left out (not at the place of their text)" in caplog.text


def test_what_was_not_annotated_is_left_out(tmp_path: Path) -> None:
    values = [TOOLS["prodigy"], {**TOOLS["prodigy"], "answer": "reject"}, {**TOOLS["label studio"], "annotations": []}]
    cancelled = {**TOOLS["label studio"], "annotations": [{"was_cancelled": True, "result": []}]}
    assert len(conll.prepare(write(tmp_path / "mine.jsonl", [*values, cancelled]))) == len(WORDS)


def test_parts_of_a_split_may_use_the_same_ids(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / f"{part}.jsonl", [TOOLS["doccano"], EMPTY])
    rows = conll.prepare(tmp_path)
    assert rows["group"].to_list() == ["train"] * 9 + ["test"] * 9
    assert corpus_of(tmp_path) == "conll"


def test_words_of_texts() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in words_of(text)]

    assert words("Don't go!\tNow") == ["Don", "'", "t", "go", "!", "Now"]
    assert words("हिन्दी में") == ["हिन्दी", "में"]  # vowel signs are no letters
    assert words("東京へ go") == ["東", "京", "へ", "go"]
    assert words("") == words(" \n") == []


def test_words_in_rows(tmp_path: Path) -> None:
    """As the corpora of Kaggle and of simpletransformers are published."""
    lines = ["Sentence #,Word,POS,Tag", "Sentence: 1,Ann,NNP,B-PER", ",Lee,NNP,I-PER", "Sentence: 2,sings,VB,O"]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines))
    rows = conll.prepare(path)
    assert rows["label"].to_list() == ["B-PER", "I-PER", "O"]
    assert rows["sentence"].to_list() == ["Sentence: 1", "Sentence: 1", "Sentence: 2"]
    assert corpus_of(path) == "conll"
    path.write_text("sentence_id,words,labels\n0,Ann,B-PER\n0,Lee,I-PER\n1,sings,O\n")
    assert conll.prepare(path)["label"].to_list() == ["B-PER", "I-PER", "O"]


def test_words_in_rows_keep_their_group_and_speaker(tmp_path: Path) -> None:
    lines = ["group,speaker,Sentence #,Word,Tag", "train,a,1,Ann,B-PER", ",,,sings,O", "test,b,2,Bo,B-PER"]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines))
    rows = conll.prepare(path)
    assert rows["group"].to_list() == ["train", "train", "test"]
    assert rows["speaker"].to_list() == ["a", "a", "b"]
    path.write_text("id,group,speaker,tokens,tags\nx,train,a,\"['Ann']\",\"['B-PER']\"\n")
    assert conll.prepare(path).select("sentence", "group", "speaker").rows() == [("x", "train", "a")]


def test_sentences_that_each_document_counts_anew_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("speaker,sentence_id,word,tag\na,0,Ann,B-PER\na,1,sings,O\nb,0,Bo,B-PER\nc,0,Cy,B-PER\n")
    rows = conll.prepare(path)
    assert rows["sentence"].to_list() == [f"sentence-{number:06d}" for number in range(1, 5)]
    assert rows["speaker"].to_list() == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    "row",
    [
        "Ann's ran;['B-PER', 'O']",
        "Ann's ran;['B-PER' 'O']",  # as numpy prints them
        '"[""Ann\'s"", \'ran\']";"[""B-PER"", ""O""]"',
    ],
)
def test_lists_written_as_text(tmp_path: Path, row: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"Sentence #;Sentence;Tag\n1;{row}\n")
    rows = conll.prepare(path)
    assert rows["text"].to_list() == ["Ann's", "ran"]
    assert rows["label"].to_list() == ["B-PER", "O"]


CLASSES: dict[str, Any] = {
    "doccano": {"id": 1, "text": "good", "label": ["pos"]},
    "prodigy": {"text": "good", "options": [{"id": "pos", "text": "Positive"}], "accept": ["pos"], "answer": "accept"},
    "spacy": ["good", {"cats": {"pos": 1.0, "neg": 0.0}}],
    "label studio": {"data": {"text": "good"}, "annotations": [{"result": [{"value": {"choices": ["pos"]}}]}]},
}


@pytest.mark.parametrize("tool", CLASSES)
def test_texts_with_a_class(tmp_path: Path, tool: str) -> None:
    path = write(tmp_path / "mine.jsonl", [CLASSES[tool], {"text": "not seen", "label": []}])
    assert (corpus_of(path), kind_of(path)) == ("manifest", "classes")
    assert read_classified(path).rows() == [("good", "pos")]
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.table.columns == ["text", "label"]


def test_texts_with_a_class_keep_their_group_and_speaker(tmp_path: Path) -> None:
    studio = {**CLASSES["label studio"], "data": {"text": "good", "group": "train", "speaker": 3}}
    doccano = {**CLASSES["doccano"], "group": "train", "speaker": 3}
    for value in (studio, doccano):
        path = write(tmp_path / "mine.jsonl", [value])
        assert read_classified(path).rows(named=True) == [
            {"text": "good", "label": "pos", "group": "train", "speaker": "3"}
        ]


def test_a_text_that_ends_in_half_of_an_emoji(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{**CLASSES["doccano"], "text": "well \ud83d"}])
    assert read_classified(path).rows() == [("well \ufffd", "pos")]


def test_texts_with_several_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [CLASSES["doccano"], {"text": "well", "label": ["pos", "neg"]}])
    with pytest.raises(CorpusError, match=r"1 of 2 texts have several classes, e\.g\. 'well'"):
        read_classified(path)


@pytest.mark.parametrize(
    "values",
    [
        [{"text": "good", "label": "pos"}],  # a manifest
        [{"tokens": ["a"], "tags": ["O"]}],
        [{"path": "a.wav", "label": "x", "speaker": "1"}],
        [[1, 2], [3, 4]],
        ["a", "b"],
        [{"data": {"text": "x"}, "annotations": [1, {"x": 1}]}],
        [{"data": {"text": "x"}, "annotations": [{"result": [{}, 1, {"value": {"choices": None}}]}]}],
        [{"classes": 1, "annotations": 2}],
        [{"text": "x", "cats": {"a": None}}],
        [{"text": "x", "label": [[0, "1", "A"]], "tokens": [{"a": 1}]}],
        [{"tokens": [{"a": 1}], "text": "x", "spans": []}],
    ],
)
def test_other_files(tmp_path: Path, values: list[Any]) -> None:
    assert kind_of(write(tmp_path / "mine.json", values)) is None
    (tmp_path / "broken.json").write_text('{"text": ')
    assert kind_of(tmp_path / "broken.json") is None
