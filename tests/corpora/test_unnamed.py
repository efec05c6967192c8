"""Lists without names of columns, in the layouts in which corpora are published."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora.files import read_table
from daamctl.corpora.lists import table_of
from daamctl.corpora.unnamed import kaldi_parts, read_kaldi, read_unnamed
from daamctl.errors import CorpusError

TEXTS = ["it was, well, fine", "so long", "not a word", "come on in", "go away now", "what a day"]


def pairs(path: Path) -> list[tuple[str, str]] | None:
    found = read_unnamed(path)
    return None if found is None else found.select("label", "text").rows()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_numbered_classes_and_several_texts(tmp_path: Path) -> None:
    """As DBpedia, Yelp and Yahoo are published; the class of a number is in a file beside."""
    rows = "".join(f'{number % 2 + 1},"Title {number}"," {text}"\n' for number, text in enumerate(TEXTS))
    path = write(tmp_path / "train.csv", rows)
    expected = [(str(number % 2 + 1), f"Title {number} {text}") for number, text in enumerate(TEXTS)]
    assert pairs(path) == expected
    write(tmp_path / "classes.txt", "Company\nVillage\n")
    assert pairs(path) == [({"1": "Company", "2": "Village"}[label], text) for label, text in expected]
    write(tmp_path / "classes.txt", "Company\n")  # does not have all
    assert pairs(path) == expected


@pytest.mark.parametrize("name", ["spam.tsv", "spam.txt", "SpamCollection", "spam.data"])
@pytest.mark.parametrize("label_first", [True, False])
def test_a_label_and_a_text(name: str, label_first: bool, tmp_path: Path) -> None:
    rows = [("ham" if number % 3 else "spam", f'"{text}' if number == 2 else text) for number, text in enumerate(TEXTS)]
    lines = ["\t".join(row if label_first else row[::-1]) for row in rows]
    assert pairs(write(tmp_path / name, "\n".join(lines))) == rows


def test_one_label_and_one_text_among_others(tmp_path: Path) -> None:
    """As SemEval (a number first) and Sentiment140 (numbers, dates and users) are published."""
    texts = [f"it was said: {text}" for text in TEXTS]
    expected = [(str(n % 2), text) for n, text in enumerate(texts)]
    assert pairs(write(tmp_path / "s.tsv", "".join(f"{n}\t{n % 2}\t{t}\n" for n, t in enumerate(texts)))) == expected
    rows = "".join(f'"{n % 2}","{n}","Mon Apr 6","none","user{n}","{text}"\n' for n, text in enumerate(texts))
    assert pairs(write(tmp_path / "tweets.csv", rows)) == expected
    assert pairs(write(tmp_path / "users.csv", rows.replace("user0", "user1"))) == expected
    piped = "".join(f"LJ{n}|it is {n} now|{n % 2}\n" for n in range(6))
    assert pairs(write(tmp_path / "piped.txt", piped)) == [(str(n % 2), f"it is {n} now") for n in range(6)]
    several = [str(n % 2) if n < 4 else "0,1" for n in range(6)]  # as GoEmotions
    lines = "".join(f"{text}\t{label}\tid{text[-3:]}\n" for text, label in zip(texts, several, strict=True))
    assert pairs(write(tmp_path / "go.tsv", lines)) == expected[:4]


def test_a_label_behind_an_at(tmp_path: Path) -> None:
    """As Financial PhraseBank is published; texts may hold the sign, too."""
    labels = ["positive", "neutral"] * 3
    rows = [f"{text} @home .@{label}\n" for text, label in zip(TEXTS, labels, strict=True)]
    path = write(tmp_path / "Sentences_AllAgree.txt", "".join(rows))
    assert pairs(path) == [(label, f"{text} @home .") for text, label in zip(TEXTS, labels, strict=True)]


def test_fasttext(tmp_path: Path) -> None:
    lines = [f"__label__{'ab'[number % 2]} {text}\n" for number, text in enumerate(TEXTS)]
    assert pairs(write(tmp_path / "t.txt", "".join(lines))) == list(zip("ababab", TEXTS, strict=True))
    path = write(tmp_path / "two.txt", "".join([*lines, "__label__a __label__b both\n"]))
    with pytest.raises(CorpusError, match=r"two\.txt:7: an item has several labels; it must have one"):
        read_unnamed(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("named.csv", "label,text\n" + "".join(f"{'ab'[n % 2]},{text!r}\n" for n, text in enumerate(TEXTS))),
        ("last.csv", "some text,label\n" + "".join(f"{text!r},{'ab'[n % 2]}\n" for n, text in enumerate(TEXTS))),
        ("index.csv", ",text,label\n" + "".join(f"{n},{text!r},{'ab'[n % 2]}\n" for n, text in enumerate(TEXTS))),
        ("words.tsv", "I\tO\nlive\tO\nin\tO\nParis\tB-loc\n\nI\tO\ngo\tO\n"),
        ("words.txt", "I O\nlive O\nin O\nParis B-loc\n\nI O\ngo O\n"),
        ("prose.txt", "Once upon a time, there was a king.\nHe was old, and he died.\nOh, no.\nThe end, my friend.\n"),
        ("each.csv", "".join(f"{n},{text!r}\n" for n, text in enumerate(TEXTS))),  # every item a class
        (
            "cola.tsv",
            "".join(f"s{n // 2}\t{n % 2}\tit was said: {text}\n" for n, text in enumerate(TEXTS)),
        ),  # two labels
        ("few.csv", "1,a text\n1,b text\n"),
        ("gap.csv", "1,a text\n1,b text\n2,\n2,c text\n"),
        ("empty.csv", ""),
        ("other.json", "[]"),
    ],
)
def test_what_is_another_kind_of_file(name: str, text: str, tmp_path: Path) -> None:
    assert read_unnamed(write(tmp_path / name, text)) is None


def kaldi(folder: Path, utterances: str, *, segments: bool = False) -> Path:
    """A data folder whose recordings are two above, as a recipe has them."""
    folder.mkdir(parents=True)
    top = folder.parents[1]
    for name in utterances:
        (top / "wav").mkdir(exist_ok=True)
        (top / "wav" / f"{name}.wav").write_bytes(b"")
    write(folder / "wav.scp", "".join(f"{name} wav/{name}.wav\n" for name in utterances))
    keys = [f"{name}-{part}" for name in utterances for part in "12"] if segments else list(utterances)
    write(folder / "utt2spk", "".join(f"{key} s{key[0]}\n" for key in keys))
    write(folder / "utt2emo", "".join(f"{key} {'anger' if key[0] < 'c' else 'joy'}\n" for key in keys))
    write(folder / "utt2dur", "".join(f"{key} 1.0\n" for key in keys))
    write(folder / "utt2emo", (folder / "utt2emo").read_text() + "zz fear\n")  # of an utterance that is not here
    write(folder / "text", "".join(f"{key} HELLO THERE\n" for key in keys))
    if segments:
        write(folder / "segments", "".join(f"{key} {key[0]} {key[-1]}.5 {key[-1]}.75\n" for key in keys))
    return folder


def test_a_data_folder_of_kaldi(tmp_path: Path) -> None:
    folder = kaldi(tmp_path / "data" / "all", "abcd")
    rows = read_kaldi(kaldi_parts(folder))
    assert rows["utterance_id"].to_list() == list("abcd")
    assert rows["path"].to_list() == [f"{tmp_path}/wav/{name}.wav" for name in "abcd"]
    assert rows["label"].to_list() == ["anger"] * 2 + ["joy"] * 2
    assert rows["speaker"].to_list() == [f"s{name}" for name in "abcd"]
    assert "group" not in rows.columns


def test_parts_and_segments_of_kaldi(tmp_path: Path) -> None:
    kaldi(tmp_path / "data" / "train", "abcd", segments=True)
    kaldi(tmp_path / "data" / "test", "ef")
    (tmp_path / "data" / "lang").mkdir()
    rows = read_kaldi(kaldi_parts(tmp_path / "data"))
    assert rows["group"].to_list() == ["test"] * 2 + ["train"] * 8
    assert rows.row(2, named=True) == {
        "utterance_id": "a-1", "path": f"{tmp_path}/wav/a.wav", "label": "anger", "speaker": "sa", "group": "train",
        "start_s": "1.5", "end_s": "1.75",
    }  # fmt: skip
    assert kaldi_parts(tmp_path / "data" / "lang") == kaldi_parts(tmp_path / "none") == {}


def test_a_segment_of_kaldi_may_reach_to_the_end(tmp_path: Path) -> None:
    folder = kaldi(tmp_path / "data" / "all", "abcd", segments=True)
    (folder / "segments").write_text((folder / "segments").read_text().replace(" 2.75", " -1"))
    assert read_kaldi(kaldi_parts(folder))["end_s"].to_list() == ["1.75", None] * 4
    (folder / "segments").write_text((folder / "segments").read_text().replace(" 1.75", " -1.00"))
    kaldi(tmp_path / "data" / "test", "ef", segments=True)
    assert read_kaldi(kaldi_parts(tmp_path / "data"))["end_s"].to_list() == [None] * 8 + ["1.75", "2.75"] * 2


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("wav.scp", "a sph2pipe a.sph |\n", "has a command, 'sph2pipe a.sph |', not a file"),
        ("wav.scp", "\n", "wav.scp has no lines with a name and a file"),
        ("wav.scp", "a elsewhere/a.wav\n", "names elsewhere/a.wav, which is in no folder above"),
        ("utt2emo", "a anger\n", "utt2emo lacks b, c, d"),
        ("utt2lang", "a de\n", "has utt2emo, utt2lang: which are the labels?"),
        ("segments", "a-1 a 0.5\n", "segments has no recording, begin and end of a-1"),
        ("segments", "a-1 z 0.5 1\n", "segments has no recording, begin and end of a-1"),
        ("utt2emo", None, "has no labels, such as utt2emo or utt2lang"),
    ],
)
def test_kaldi_folders_that_are_refused(file: str, text: str | None, message: str, tmp_path: Path) -> None:
    folder = kaldi(tmp_path / "data" / "all", "abcd")
    if text is None:
        (folder / file).unlink()
    else:
        write(folder / file, text)
    with pytest.raises(CorpusError, match=re.escape(message)) as caught:
        read_kaldi(kaldi_parts(folder))
    assert caught.value.fix or file in ("utt2emo", "segments", "wav.scp")


def test_texts_and_labels_in_two_files(tmp_path: Path) -> None:
    """As TweetEval is published."""
    for part, number in (("train", 3), ("val", 1), ("test", 2)):
        (tmp_path / f"{part}_text.txt").write_text("".join(f"text {index}, of @user\n" for index in range(number)))
        (tmp_path / f"{part}_labels.txt").write_text("".join(f"{index % 2}\n" for index in range(number)))
    (tmp_path / "mapping.txt").write_text("0\tnot\n1\tvery offensive\n")
    found = table_of(tmp_path, None, {})
    assert found is not None
    assert found.table.filter(pl.col("group") == "train")["label"].to_list() == ["not", "very offensive", "not"]
    assert set(found.table["group"]) == {"train", "val", "test"}
    (tmp_path / "val_labels.txt").write_text("1\n0\n")
    with pytest.raises(CorpusError, match=r"val_labels\.txt and val_text\.txt have 2 and 1 lines"):
        table_of(tmp_path, None, {})


def test_texts_and_labels_in_folders_of_parts(tmp_path: Path) -> None:
    """As SNIPS and ATIS are published."""
    for part, number in (("train", 3), ("valid", 1), ("test", 2)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "seq.in").write_text("".join(f"play song {index}\n" for index in range(number)))
        (tmp_path / part / "label").write_text("".join(f"{'ab'[index % 2]}\n" for index in range(number)))
        (tmp_path / part / "seq.out").write_text("O O B-song\n" * number)
    found = table_of(tmp_path, None, {})
    assert found is not None
    assert found.table.filter(pl.col("group") == "train").select("label", "text").rows() == [
        ("a", "play song 0"), ("b", "play song 1"), ("a", "play song 2"),
    ]  # fmt: skip
    assert set(found.table["group"]) == {"train", "valid", "test"}


@pytest.mark.parametrize("names", [("pos.txt", "neg.txt"), ("rt-polarity.pos", "rt-polarity.neg")])
def test_a_file_of_texts_for_each_class(names: tuple[str, str], tmp_path: Path) -> None:
    """As the sentences of Movie Review are published."""
    lines = [f"{text} {number}" for number, text in enumerate(TEXTS * 4)]
    for name in names:
        write(tmp_path / name, "\n".join(f"{line} {name}" for line in lines) + "\n\n")
    write(tmp_path / "rt.README.1.0.txt", "Cite us.")
    found = table_of(tmp_path, None, {})
    assert found is not None
    assert not found.named
    expected = {(name[-3:] if "-" in name else name[:3], f"{line} {name}") for name in names for line in lines}
    assert set(found.table.select("label", "text").rows()) == expected
    write(tmp_path / names[0], "\n".join(lines[:19]))  # few lines are one text
    assert table_of(tmp_path, None, {}) is None


def test_names_of_classes_beside_their_numbers(tmp_path: Path) -> None:
    table = pl.DataFrame({"text": TEXTS, "label": [0, 1] * 3, "label_text": ["bad", "good"] * 3})
    path = tmp_path / "reviews.jsonl"
    table.write_ndjson(path)
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.columns == {"label": "label_text"}
    table.with_columns(label_text=pl.Series(["bad", "good", "good"] * 2)).write_ndjson(path)
    assert table_of(path, "manifest", {}) is None  # they are none


def test_a_column_of_0_and_1_for_each_class(tmp_path: Path) -> None:
    """As ISIC's truth is published."""
    flags = {name: [float(at % 3 == place) for at in range(6)] for place, name in enumerate(("MEL", "NV", "BCC"))}
    path = tmp_path / "truth.csv"
    pl.DataFrame({"image": [f"ISIC_{at}" for at in range(6)], **flags}).write_csv(path)
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.table["label"].to_list() == ["MEL", "NV", "BCC"] * 2
    pl.DataFrame({"image": [f"ISIC_{at}" for at in range(6)], **flags, "NV": 1.0}).write_csv(path)
    assert table_of(path, "manifest", {}) is None  # some have two classes


def test_the_shares_of_raters_who_chose_each_class(tmp_path: Path) -> None:
    """As EMO-SUPERB publishes its labels; where two classes have the largest share, none is the label."""
    path = tmp_path / "labels_consensus_1.csv"
    table = pl.DataFrame({
        "FileName": [f"{at}.wav" for at in range(4)],
        "angry": [0.574, 0.01, 0.48, 0.01],
        "sad": [0.386, 0.94, 0.03, 0.46],
        "happy": [0.04, 0.05, 0.49, 0.53],
        "EmoAct": [1.4, 2.0, 0.9, 1.0],
        "SpkrID": [7, 7, 8, 8],
        "Split_Set": ["Train", "Train", "Development", "Test"],
    })  # fmt: skip
    table.write_csv(path)
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.table["label"].to_list() == ["angry", "sad", "happy", "happy"]
    assert found.columns == {"path": "FileName", "speaker": "SpkrID", "group": "Split_Set"}
    table.with_columns(angry=pl.Series([0.48, 0.01, 0.48, 0.01]), sad=pl.Series([0.48, 0.94, 0.03, 0.46])).write_csv(
        path
    )
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.table["label"].to_list() == ["sad", "happy", "happy"]
    assert found.doubts == ["1 item without a label left out"]
    table.with_columns(sad=pl.Series([0.386, 0.94, 0.03, 0.8])).write_csv(path)
    assert table_of(path, "manifest", {}) is None  # the last are no shares of 1
    table.with_columns(EmoClass=pl.Series(["A", "S", "H", "H"])).write_csv(path)  # as MSP-Podcast has it
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.columns["label"] == "EmoClass"


def test_columns_of_urbansound8k(tmp_path: Path) -> None:
    """Its `start` and `end` are those in the longer recording, not in the file."""
    path = tmp_path / "UrbanSound8K.csv"
    rows = [f"{at}-3-0-0.wav,{at},0.5,4.5,1,{1 + at % 2},3,{('dog_bark', 'siren')[at % 2]}" for at in range(6)]
    path.write_text("\n".join(["slice_file_name,fsID,start,end,salience,fold,classID,class", *rows]))
    found = table_of(path, "manifest", {})
    assert found is not None
    assert found.columns == {"path": "slice_file_name", "label": "class", "group": "fold"}
    assert found.doubts[0].startswith("the column 'start' is not used, since each file occurs once")


@pytest.mark.parametrize("as_objects", [True, False])
def test_an_object_with_a_list_for_each_part(as_objects: bool, tmp_path: Path) -> None:
    """As CLINC150 is published, with pairs of text and label."""
    pairs = [[text, ("go", "stay")[at % 2]] for at, text in enumerate(TEXTS)]
    rows = [{"text": text, "label": label} for text, label in pairs] if as_objects else pairs
    path = tmp_path / "data_full.json"
    path.write_text(json.dumps({"oos_val": rows[:1], "train": rows[:4], "test": rows[4:]}), encoding="utf-8")
    found = read_table(path)
    assert found["group"].to_list() == ["dev", *["train"] * 4, *["test"] * 2]
    assert found.select("text", "label").rows() == [tuple(one) for one in (*pairs[:1], *pairs)]
