"""Files of columns and tables of tagged sentences; every fault with its line."""

from __future__ import annotations

import logging
from pathlib import Path

import polars as pl
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from daamctl.corpora import conll
from daamctl.corpora.base import PREPARED_TOKENS
from daamctl.corpora.lists import corpus_of
from daamctl.errors import CorpusError

TEXT = "Ann\tB-PER\nLee\tI-PER\nsings\tO\n\nin\tO\nRio\tB-LOC\n"
WORDS = ["Ann", "Lee", "sings", "in", "Rio"]
LABELS = ["B-PER", "I-PER", "O", "O", "B-LOC"]


def write(path: Path, text: str | bytes = TEXT) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_file(tmp_path: Path) -> None:
    rows = conll.prepare(write(tmp_path / "mine.conll"))
    assert dict(rows.schema) == PREPARED_TOKENS
    assert (rows["text"].to_list(), rows["label"].to_list()) == (WORDS, LABELS)
    assert rows["sentence"].to_list() == ["sentence-000001"] * 3 + ["sentence-000002"] * 2
    assert rows["position"].to_list() == [0, 1, 2, 0, 1]
    assert rows["utterance_id"].to_list()[-1] == "sentence-000002-0001"
    assert rows["speaker"].equals(rows["sentence"].alias("speaker"))
    assert rows["group"].null_count() == 5


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\t", " "),
        TEXT.replace("\t", "  "),
        TEXT.replace("\t", "\tNN\t"),  # what is between first and last is left out
        TEXT.replace("\n", "\r\n"),
        "\ufeff" + TEXT,
        "\n\n" + TEXT + "\n\t\n",  # empty lines anywhere, also with a tab alone
        "-DOCSTART- O\n\n" + TEXT.replace("\t", " "),
        TEXT.replace("B-PER", "I-PER").replace("B-LOC", "I-LOC"),  # IOB1
        TEXT.replace("I-PER", "E-PER").replace("B-LOC", "S-LOC"),
    ],
)
def test_forms_of_a_file(tmp_path: Path, text: str) -> None:
    expected = conll.prepare(write(tmp_path / "plain.conll"))
    assert conll.prepare(write(tmp_path / "other.txt", text)).equals(expected)


def test_utf16(tmp_path: Path) -> None:
    expected = conll.prepare(write(tmp_path / "mine.conll", TEXT))
    assert conll.prepare(write(tmp_path / "mine.conll", TEXT.encode("utf-16"))).equals(expected)


def test_rare_characters_do_not_split_words(tmp_path: Path) -> None:
    text = "a\u2028b\tO\nx\u00a0y\tO\nz\x85\tB-X\n"
    rows = conll.prepare(write(tmp_path / "mine.conll", text))
    assert rows["text"].to_list() == ["a\u2028b", "x\u00a0y", "z\x85"]


def test_the_tag_may_come_first(tmp_path: Path) -> None:
    """As MIT's restaurants and films are published."""
    text = "O\tshow\nB-ACTOR\tAnn\nI-ACTOR\tLee\n\nO\tO\n"
    rows = conll.prepare(write(tmp_path / "mine.bio", text))
    assert rows["text"].to_list() == ["show", "Ann", "Lee", "O"]
    assert rows["label"].to_list() == ["O", "B-ACTOR", "I-ACTOR", "O"]


def test_types_without_prefixes(tmp_path: Path) -> None:
    """As Few-NERD is published: neighbours of one type are one entity."""
    text = "Ann\tperson-actor\nLee\tperson-actor\nin\tO\nRome\tplace\nBo\tperson-actor\n\nBo\tperson-actor\n"
    rows = conll.prepare(write(tmp_path / "mine.conll", text))
    person = ["B-person-actor", "I-person-actor"]
    assert rows["label"].to_list() == [*person, "O", "B-place", person[0], person[0]]


@pytest.mark.parametrize("tags", [list("BIOOB"), list("BEOOS")])
@pytest.mark.parametrize("suffix", [".conll", ".jsonl"])
def test_prefixes_without_types(tmp_path: Path, tags: list[str], suffix: str) -> None:
    """As the files of BioBERT: the entities have one type."""
    path = write(tmp_path / f"mine{suffix}", "".join(f"{word}\t{tag}\n" for word, tag in zip(WORDS, tags, strict=True)))
    if suffix == ".jsonl":
        pl.DataFrame({"tokens": [WORDS], "tags": [tags]}).write_ndjson(path)
    assert conll.prepare(path)["label"].to_list() == ["B-entity", "I-entity", "O", "O", "B-entity"]


def test_usual_names_of_columns(tmp_path: Path) -> None:
    rows = [{"id": "a", "words": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]}]
    pl.DataFrame(rows).write_ndjson(tmp_path / "mine.jsonl")
    assert conll.prepare(tmp_path / "mine.jsonl")["label"].to_list() == ["B-PER", "O"]
    rows = [{"words": ["x", "y"], "ner_tags": ["O", "O"], "tokens": ["Ann", "ran"], "tags": ["B-PER", "O"]}]
    pl.DataFrame(rows).write_ndjson(tmp_path / "both.jsonl")  # our names come first
    assert conll.prepare(tmp_path / "both.jsonl")["text"].to_list() == ["Ann", "ran"]


@pytest.mark.parametrize(
    "text",
    [
        "# id 7\tdomain=train\nAnn _ _ B-PER\nran _ _ O\n\n# id 8\nRio _ _ B-LOC\n",  # MultiCoNER
        # Universal NER
        "# sent_id = 1\n# text = Ann O\n1\tAnn\tB-PER\t-\n2-3\tran\t_\t-\n2\tran\tO\t-\n\n1\tRio\tB-LOC\t-",
        # the last columns of which are missing in some rows
        "# newdoc id = a\n# text = Ann\n1\tAnn\tB-PER\t-\tx\n2\tran\tO\n\n1\tRio\tB-LOC\t-\tx",
        "0\tAnn\tB-PER\n1\tran\tO\n\n0\tRio\tB-LOC\n",  # WikiNEuRal
        # CoNLL-U of hr500k
        "# sent_id = 1\n1\tAnn\t_\tSpaceAfter=No|NER=B-PER\n2\tran\t_\tNER=O\n\n1\tRio\t_\tNER=B-LOC|x=1\n",
    ],
)
def test_comments_and_numbered_words(tmp_path: Path, text: str) -> None:
    rows = conll.prepare(write(tmp_path / "mine.conllu", text))
    assert rows["text"].to_list() == ["Ann", "ran", "Rio"]
    assert rows["label"].to_list() == ["B-PER", "O", "B-LOC"]
    assert rows["sentence"].n_unique() == 2


@pytest.mark.parametrize("text", ["1999 O\n2001 O\n", "3.14 O\n2.71 O\n", "3.14 CD O\n2.71 CD O\n"])
def test_numbers_alone_are_words(tmp_path: Path, text: str) -> None:
    rows = conll.prepare(write(tmp_path / "mine.conll", text))
    assert rows["text"].to_list() == [line.split()[0] for line in text.splitlines()]


def test_a_word_may_be_a_number_sign(tmp_path: Path) -> None:
    rows = conll.prepare(write(tmp_path / "mine.conll", "#\tO\n1\tO\n\n#\tO\n# \tO\n"))
    assert rows["text"].to_list() == ["#", "1", "#", "#"]


def test_a_split_without_a_test_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train.conll", "dev.conll"):
        write(tmp_path / name)
    with caplog.at_level(logging.WARNING):
        assert conll.prepare(tmp_path)["group"].to_list() == ["train"] * 5 + ["test"] * 5
    assert "no test part, so the dev part is the test part" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ann\tB-PER\nLee\n", r"mine.conll:2: a single column \('Lee'\); 2 are expected"),
        ("Ann\n", r"mine.conll:1: a single column \('Ann'\); 2 are expected"),
        ("Ann\tB-PER\n\nLee\tNN\tO\n", r"mine.conll:3: 3 columns \('Lee\tNN\tO'\); 2 are expected"),
        ("Ann B-PER\nthe New York B-LOC\n", "mine.conll:2: 4 columns"),
        ("Ann\tX-PER\n", "mine.conll:1: tag 'X-PER' is none of O, or B-, I-, M-, E-, S-, L-, U- and a type"),
        ("O\tO\nAnn\tB-\n", "mine.conll:2: tag 'B-' is none of"),
        ("Ann\t\n", "mine.conll:1: tag '' is none of"),
        ("O\tO\n\tO\n", "mine.conll:2: no word"),
        ("1\tAnn\tB-PER\tx\n2\tran\n", "mine.conll:2: 2 columns"),
        (
            "# text = Ann ran\n1\tAnn\tAnn\tPROPN\t_\n2\tran\trun\tVERB\t_\n",
            r"mine.conll: no column has tags \(O, or B-",
        ),
        ("#begin document (a); part 000\na 0 0 Ann (PER)\n", "is in the form of CoNLL-2012, with entities in brackets"),
        ("", "has no words"),
        ("\n\n", "has no words"),
        ("Ann\tO\nZo\xeb\tO\n".encode("latin1"), r"mine.conll cannot be read: it is not UTF-8 \(line 2: byte 0xeb\)"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        conll.prepare(write(tmp_path / "mine.conll", text))


def test_file_without_empty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conll, "MOST_WORDS", 3)
    with pytest.raises(CorpusError, match=r"mine\.conll:4: a sentence of more than 3 words") as caught:
        conll.prepare(write(tmp_path / "mine.conll", "a\tO\n" * 5))
    assert "put an empty line after each sentence" in str(caught.value)


def test_broken_sequences_are_read_as_conlleval_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = conll.prepare(write(tmp_path / "mine.conll", "a\tB-X\nb\tI-Y\n\nc\tI-X\nd\tI-X\n"))
    assert rows["label"].to_list() == ["B-X", "B-Y", "B-X", "I-X"]
    assert "2 tags where BIO has none (line 2, 4)" in caplog.text
    caplog.clear()
    conll.prepare(write(tmp_path / "other.conll"))
    assert caplog.text == ""


def test_documents_are_sources(tmp_path: Path) -> None:
    one = "-DOCSTART- -X- O\n\nA x O\nB x O\n\nC x O\n\n-DOCSTART- -X- O\n\nD x B-X\n"
    rows = conll.prepare(write(tmp_path / "mine.conll", one))
    documents = [f"all-document-{number:05d}" for number in (1, 1, 1, 2)]
    assert rows["speaker"].to_list() == documents
    assert rows["sentence"].n_unique() == 3
    single = conll.prepare(write(tmp_path / "single.conll", one.rpartition("-DOCSTART-")[0]))
    assert single["speaker"].equals(single["sentence"].alias("speaker"))  # one document tells nothing


def test_folder_with_an_official_split(tmp_path: Path) -> None:
    for name in ("train.conll", "valid.txt", "TEST"):
        write(tmp_path / name)
    write(tmp_path / "readme.txt", "not read")
    rows = conll.prepare(tmp_path)
    assert rows["group"].to_list() == ["train"] * 5 + ["dev"] * 5 + ["test"] * 5
    assert rows["sentence"][5] == "dev-000001"
    write(tmp_path / "dev")
    with pytest.raises(CorpusError, match=r"two files of the part 'dev': dev and valid\.txt"):
        conll.prepare(tmp_path)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (("train.csv", "dev_matched.csv", "test_predictions.csv"), {"train": "train.csv"}),
        (("train.conll", "test_a.conll", "test_b.conll"), {"train": "train.conll"}),
        (("train_a.csv", "test_a.csv", "test_b.csv"), {"train": "train_a.csv", "test": "test_a.csv"}),
        (("train_a.csv", "test_a.csv", "train_b.csv", "test_b.csv"), {}),  # which of the two?
        (("a.train.txt", "a.test.txt", "test_b.csv"), {"train": "a.train.txt", "test": "a.test.txt"}),
        (("train_a.csv", "test_a.csv", "a.train.txt", "a.test.txt"), {"train": "train_a.csv", "test": "test_a.csv"}),
    ],
)
def test_names_of_parts_are_equal_apart_from_the_word(
    tmp_path: Path, files: tuple[str, ...], found: dict[str, str]
) -> None:
    for name in files:
        write(tmp_path / name, "text,label")
    assert conll.part_files(tmp_path) == {part: tmp_path / name for part, name in found.items()}


@pytest.mark.parametrize("form", ["{}", "{}.ner", "{}.bmes", "{}.conllu", "en_ewt-ud-{}.iob2"])
def test_files_of_a_split_are_recognised_by_their_content_or_suffix(tmp_path: Path, form: str) -> None:
    for part in ("train", "dev", "test"):
        write(tmp_path / form.format(part), "# newdoc id = weblog-1\n# text = Ann ran to Rio .\nAnn\tB-PER\nran\tO\n")
    assert corpus_of(tmp_path) == "conll"
    assert set(conll.prepare(tmp_path)["group"]) == {"train", "dev", "test"}
    for other in ("import os\nprint(os)\n", "Ann ran to Rio .\n", ""):
        write(tmp_path / form.format("test"), other)
        assert (corpus_of(tmp_path) is None) == (form in ("{}", "{}.ner", "{}.bmes"))
    (tmp_path / form.format("test")).unlink()


def test_scheme_is_that_of_all_parts(tmp_path: Path) -> None:
    """A part without adjacent entities must not be read as another scheme than the rest."""
    write(tmp_path / "train", "a\tI-X\nb\tB-X\n")
    write(tmp_path / "test", "a\tI-X\nb\tI-X\n")
    assert conll.prepare(tmp_path)["label"].to_list() == ["B-X", "B-X", "B-X", "I-X"]


def test_folder_of_something_else(tmp_path: Path) -> None:
    write(tmp_path / "mine.conll")
    with pytest.raises(CorpusError, match="no files named train, dev and test"):
        conll.prepare(tmp_path)
    with pytest.raises(CorpusError, match=r"no file .*absent"):
        conll.prepare(tmp_path / "absent.conll")
    with pytest.raises(CorpusError, match=r"mine\.xml is of an unknown kind \(allowed: \.conll, \.conllu, \.bio"):
        conll.prepare(write(tmp_path / "mine.xml"))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_table(tmp_path: Path, suffix: str) -> None:
    table = pl.DataFrame(
        {
            "id": ["a", "b"],
            "tokens": [WORDS[:3], WORDS[3:]],
            "tags": [LABELS[:3], LABELS[3:]],
            "group": ["Train", "TEST"],
            "speaker": ["x", "x"],
        }
    )
    path = tmp_path / f"mine{suffix}"
    table.write_parquet(path) if suffix == ".parquet" else table.write_ndjson(path)
    rows = conll.prepare(path)
    assert (rows["text"].to_list(), rows["label"].to_list()) == (WORDS, LABELS)
    assert rows["utterance_id"].to_list() == ["a-0000", "a-0001", "a-0002", "b-0000", "b-0001"]
    assert rows["group"].to_list() == ["train"] * 3 + ["test"] * 2
    assert set(rows["speaker"]) == {"x"}
    table.select("tokens", "tags").write_parquet(tmp_path / "bare.parquet")
    bare = conll.prepare(tmp_path / "bare.parquet")
    assert bare["sentence"].unique().sort().to_list() == ["sentence-000001", "sentence-000002"]
    assert bare["group"].null_count() == 5


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": [["a"]]}, "lacks the column tags; it has tokens"),
        ({"words": [["a"]], "kinds": [["O"]]}, "lacks the column tags; it has tokens, kinds"),
        ({"words": [["a"]], "ner_tags": [[1]]}, "the tags are numbers, and their names are not in the file"),
        ({"tokens": [["a"]], "tags": [[1.5]]}, "tags has List.Float64.; lists of strings are expected"),
        ({"tokens": ["a b"], "tags": [["O"]]}, "tokens has String; lists of strings are expected"),
        ({"tokens": [["a"], ["b", "c"]], "tags": [["O"], ["O"]]}, "row 2 has 2 tokens and 1 tag"),
        ({"tokens": [["a", " "]], "tags": [["O", "O"]]}, "row 1 has an empty token"),
        ({"tokens": [["a", None]], "tags": [["O", "O"]]}, "row 1 has an empty token"),
        ({"tokens": [["a"]], "tags": [["PER"]]}, "row 1 has tag 'PER' is none of|tag 'PER' is none of"),
        ({"tokens": [["a"], []], "tags": [["O"], []]}, "row 2 has 0 tokens; 1 to 10,000 are allowed"),
        ({"tokens": [["a"]], "tags": [["O"]], "group": [" "]}, "row 1 has empty group"),
        ({"tokens": [["a"], ["b"]], "tags": [["O"], ["O"]], "id": ["x", "x"]}, "two sentences are named 'x'"),
    ],
)
def test_faults_of_a_table(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    pl.DataFrame(columns).write_parquet(tmp_path / "mine.parquet")
    with pytest.raises(CorpusError, match=message):
        conll.prepare(tmp_path / "mine.parquet")


def test_each_part_may_count_its_sentences_anew(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.csv").write_text(f"sentence_id,word,tag\n0,Ann,B-PER\n0,sings,O\n1,{part},O\n")
    rows = conll.prepare(tmp_path)
    assert rows["sentence"].unique().sort().to_list() == ["test-0", "test-1", "train-0", "train-1"]
    assert (rows["speaker"] == rows["sentence"]).all()
    (tmp_path / "test.csv").write_text("sentence_id,word,tag\nx,Ann,B-PER\n")
    assert conll.prepare(tmp_path)["sentence"].unique().sort().to_list() == ["0", "1", "x"]


def test_numbers_of_a_table_of_the_hub_get_their_names(tmp_path: Path) -> None:
    features = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=["O", "B-PER"]))})
    place = tmp_path / "mine.parquet"
    Dataset.from_dict({"tokens": [["Ann", "sings"]], "ner_tags": [[1, 0]]}, features=features).to_parquet(place)
    assert conll.prepare(place)["label"].to_list() == ["B-PER", "O"]
    Dataset.from_dict({"tokens": [["Ann", "sings"]], "ner_tags": [[1, -1]]}, features=features).to_parquet(place)
    with pytest.raises(CorpusError, match="row 1 has tag 'None' is none of"):
        conll.prepare(place)


def test_classes_in_label_order() -> None:
    assert conll.classes_of(("PER", "LOC")) == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
