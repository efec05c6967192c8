"""Texts whose lines have a form of their own: what recognisers of speech and their scorers write."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from daamctl.artifacts.predictions import Predictions
from daamctl.errors import ArtifactError, ConfigError
from daamctl.evaluation.judge import judge
from daamctl.evaluation.prediction_files import read_predictions

SAID = {"ann-1": "it goes on", "ann-2": "so it is", "bob-1": "and on", "bob-2": "it is he"}
HEARD = {"ann-1": "it goes", "ann-2": "so it is", "bob-1": "", "bob-2": "he is he now"}
OTHER = {"ann-1": "it goes on", "ann-2": "so is it", "bob-1": "and", "bob-2": "it is he"}


def icefall(folder: Path, heard: dict[str, str]) -> Path:
    lines = []
    for item, words in heard.items():
        lines += [f"{item}:\tref={SAID[item].split()}", f"{item}:\thyp={words.split()}"]
        lines += [f"{item}:\ttimestamp_hyp=[0.04, 0.2]"]
    path = folder / "recogs-test-clean-greedy_search.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def kaldi_details(folder: Path, heard: dict[str, str]) -> Path:
    """The words stand below one another; a gap has three stars."""
    lines = []
    for item, words in heard.items():
        said, understood = SAID[item].split(), words.split()
        number = max(len(said), len(understood))
        for key, one in (("ref", said), ("hyp", understood)):
            lines.append(f"{item} {key}  {'  '.join([*one, *['***'] * (number - len(one))])}")
        lines += [f"{item} op   {'  '.join('C' * number)}", f"{item} #csid 1 0 0 0"]
    path = folder / "per_utt"
    path.write_text("\n".join(lines) + "\n")
    return path


def wenet(folder: Path, heard: dict[str, str]) -> Path:
    parts = [
        f"\nutt: {item}\nWER: 33.33 % N=3 C=2 S=0 D=1 I=0\nlab: {SAID[item]}\nrec: {words}\n\n"
        for item, words in heard.items()
    ]
    path = folder / "wer"
    path.write_text("".join(parts) + "=" * 75 + "\n\nOverall -> 33.33 % N=11 C=7 S=1 D=3 I=1\n")
    return path


def sclite(folder: Path, heard: dict[str, str]) -> Path:
    (folder / "ref.trn").write_text("".join(f"{words}\t({item})\n" for item, words in sorted(SAID.items())))
    path = folder / "hyp.trn"
    path.write_text(";; a comment\n" + "".join(f"{words}\t({item})\n" for item, words in heard.items()))
    return path


def fairseq(folder: Path, heard: dict[str, str]) -> Path:
    for name, texts in (("hypo", heard), ("ref", SAID)):
        lines = [f"{words} ({item})\n" for item, words in texts.items()]
        (folder / f"{name}.word-checkpoint_best.pt-test.txt").write_text("".join(lines))
    return folder / "hypo.word-checkpoint_best.pt-test.txt"


TOOLS = {icefall: "icefall", kaldi_details: "Kaldi", wenet: "WeNet", sclite: "sclite", fairseq: "sclite"}


@pytest.mark.parametrize("write", TOOLS, ids=lambda write: write.__name__)
def test_what_was_said_and_heard(write, tmp_path: Path) -> None:
    found = read_predictions(write(tmp_path, HEARD), metric="word_accuracy")
    assert found.tool == TOOLS[write]
    read = {
        item: (label, prediction) for item, label, prediction in found.rows.select("item", "label", "prediction").rows()
    }
    assert read == {item: (SAID[item], HEARD[item] or None) for item in SAID}
    # sclite takes the beginning of a name for the speaker
    assert found.group == ("speaker" if TOOLS[write] == "sclite" else None)


def test_compressed_references_beside_compressed_hypotheses(tmp_path: Path) -> None:
    for path in (sclite(tmp_path, HEARD), tmp_path / "ref.trn"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = read_predictions(tmp_path / "hyp.trn.gz", metric="word_accuracy")
    assert sorted(found.rows["label"]) == sorted(SAID.values())


def test_models_are_ranked_by_the_word_error_rate(tmp_path: Path) -> None:
    models: list[Predictions] = []
    for number, heard in enumerate((HEARD, OTHER)):
        folder = tmp_path / str(number)
        folder.mkdir()
        models.append(read_predictions(sclite(folder, heard), name=str(number), metric="word_accuracy"))
    verdict = judge(models, metric="word_accuracy")
    # of eleven words 5 are wrong (on; and, on; it for he, now too many), or 3 (is and it; on)
    assert verdict.values["word_accuracy"] == {"0": pytest.approx(1 - 5 / 11), "1": pytest.approx(1 - 3 / 11)}
    assert models[0].rows["group"].to_list() == ["ann", "ann", "bob", "bob"]


ALIGNMENTS = """
\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE

Speakers:
    0:  ann
    1:  bob

Speaker sentences   0:  ann   #utts: 2
id: (ann-1)
Scores: (#C #S #D #I) 2 0 1 0
REF:  it goes ON
HYP:  it goes **
Eval:         D

id: (ann-2)
Scores: (#C #S #D #I) 3 0 0 0
Attributes: Case_sensitve
REF:  so it is
HYP:  so it is

Speaker sentences   1:  bob   utt# 0 of 1
id: (bob-2)
Labels: <O,F1,M>
Scores: (#C #S #D #I) 2 1 0 1
"""


@pytest.mark.parametrize("name", ["hyp.trn.pra", "result.txt"])
def test_counts_above_the_alignments_of_sclite(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(ALIGNMENTS)
    found = read_predictions(path, metric="counted_accuracy")
    assert (found.tool, found.group) == ("sclite", "speaker")
    assert found.rows.select("item", "group", "label", "prediction").rows() == [
        ("ann-1", "ann", "3", "1"), ("ann-2", "ann", "3", "0"), ("bob-2", "bob", "3", "2"),
    ]  # fmt: skip
    path.write_text(ALIGNMENTS.replace("id: (ann-2)\n", ""))
    with pytest.raises(ArtifactError, match=r"no line 'id: \(utterance\)' is above one of the lines 'Scores:'"):
        read_predictions(path, metric="counted_accuracy")


def test_lines_of_words_and_the_labels_of_a_second_file(tmp_path: Path) -> None:
    for folder, texts in (("mine", HEARD), ("data", SAID)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text").write_text("".join(f"{item} {words}\n" for item, words in texts.items()))
    (tmp_path / "data" / "utt2spk").write_text("".join(f"{item} {item[:3]}\n" for item in SAID))
    with pytest.raises(ConfigError, match="have no label"):
        read_predictions(tmp_path / "mine" / "text", metric="word_accuracy")
    expected = {item: (SAID[item], HEARD[item] or None) for item in SAID}
    for items, group in ((tmp_path / "data" / "text", None), (tmp_path / "data", "speaker")):
        found = read_predictions(tmp_path / "mine" / "text", items=items, metric="word_accuracy")
        assert (found.tool, found.group) == ("Kaldi", group)
        assert {one: rest for one, *rest in found.rows.select("item", "label", "prediction").rows()} == {
            item: list(pair) for item, pair in expected.items()
        }
    assert found.rows["group"].to_list() == ["ann", "ann", "bob", "bob"]


def test_texts_without_names_of_utterances(tmp_path: Path) -> None:
    (tmp_path / "hyp.txt").write_text("it goes\n\nso it is\n")
    (tmp_path / "said.txt").write_text("it goes on\nand on\nso it is\n")
    found = read_predictions(tmp_path / "hyp.txt", items=tmp_path / "said.txt", metric="word_accuracy")
    assert found.rows.select("item", "label", "prediction").rows() == [
        ("1", "it goes on", "it goes"), ("2", "and on", None), ("3", "so it is", "so it is"),
    ]  # fmt: skip
    with pytest.raises(ArtifactError, match="line 2 has 3 words; need an item and an answer"):
        read_predictions(tmp_path / "hyp.txt", items=tmp_path / "said.txt")
    for name, text in (("p.txt", "u1 goes\nu2 on\n"), ("c.txt", "id,label,hyp\nu1,it goes,goes\nu2,on,on\n")):
        (tmp_path / name).write_text(text)  # these have names
    (tmp_path / "y.txt").write_text("u2 on\nu1 goes\n")
    found = read_predictions(tmp_path / "p.txt", items=tmp_path / "y.txt", metric="word_accuracy")
    assert found.rows.select("item", "label", "prediction").rows() == [("u1", "goes", "goes"), ("u2", "on", "on")]
    found = read_predictions(tmp_path / "c.txt", metric="word_accuracy")
    assert found.rows.select("item", "label", "prediction").rows() == [("u1", "it goes", "goes"), ("u2", "on", "on")]
    (tmp_path / "hyp.txt").write_text("")
    with pytest.raises(ConfigError, match=r"hyp\.txt: no row"):
        read_predictions(tmp_path / "hyp.txt", metric="word_accuracy")


def test_a_word_for_each_item_needs_no_ending(tmp_path: Path) -> None:
    (tmp_path / "utt2emo").write_text("u1 joy\nu2 fear\n")
    (tmp_path / "labels.txt").write_text("u2 fear\nu1 fear\n")
    found = read_predictions(tmp_path / "utt2emo", items=tmp_path / "labels.txt")
    assert found.rows["correct"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.trn", "{ it / this } goes (u-1)\non (u-2)\n", r"several texts, \{ a / b \}, are given of u-1"),
        ("a.txt", "u1:\tref=['a', 'b'\nu1:\thyp=['a']\n", "utterance 'u1': the words are no list: "),
        ("a.txt", "u1:\tref=['a']\nu1:\tref=['a']\n", "utterance 'u1' has two lines of 'ref'"),
        ("a.txt", "u1:\tref=['a']\nu1:\thyp=['a']\nu2:\tref=['a']\n", "not both texts, said and understood, .* of u2"),
        ("hyp.trn", "a b (u-1)\nc (u-2)\n", "ref.trn has other items; only in one of the two are u-2, u-3"),
        ("b.trn", "a b (u-1)\n\nc\nd (u-2)\n", r"line 3 does not end with the name of the utterance, .*: u-1$"),
        ("hyp.txt", "a b (u-1)\nc (u-2)\n", "its lines are neither 'utterance words' nor"),
        ("text", "some words\nand more words\n", "unknown kind of file ''"),
    ],
)  # fmt: skip
def test_a_bad_line_is_told(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "ref.trn").write_text("a b (u-1)\nc (u-3)\n")
    (tmp_path / "ref.txt").write_text("one line\n")
    with pytest.raises(ArtifactError, match=message):
        read_predictions(tmp_path / name)


@pytest.mark.parametrize("names", [("None-0", "None-1"), ("7-1", "8-1"), ("ann-1", "bob-1"), ("ann-1", "ann-2", "bob")])
def test_names_that_tell_no_speakers(names: tuple[str, ...], tmp_path: Path) -> None:
    """All are of one, each is of another, or one has no part before a hyphen."""
    (tmp_path / "hyp.trn").write_text("".join(f"some words ({name})\n" for name in names))
    (tmp_path / "ref.trn").write_text("".join(f"some more words ({name})\n" for name in names))
    assert read_predictions(tmp_path / "hyp.trn", metric="word_accuracy").group is None


@pytest.mark.parametrize(
    "text",
    [
        "item label prediction\nu1 a b\nu2 a a b\n",
        "u1 a b\nu1 a\n",
        "u1 a b\nu2 c d\n",
        "u1 a\nu2\n",
        "u1 a (0.9)\nu2 b (0.7)\n",
    ],
)
def test_other_lines_are_not_taken_for_texts(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(ArtifactError, match=r"line \d has \d words; need an item and an answer"):
        read_predictions(tmp_path / "x.txt")
