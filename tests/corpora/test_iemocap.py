"""IEMOCAP's reader on a small tree in the exact format of the release."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.corpora import iemocap
from daamctl.errors import CorpusError

HEAD = "% [START_TIME - END_TIME] TURN_NAME EMOTION [V, A, D]\n\n"


def block(turn: str, emotion: str, dimensions: str = "2.5000, 2.5000, 2.5000") -> str:
    return (
        f"[6.2901 - 8.2357]\t{turn}\t{emotion}\t[{dimensions}]\n"
        "C-E2:\tNeutral;\t()\nC-E4:\tNeutral; Anger;\t(a bit [loud] - 1)\nC-F1:\tNeutral;\t()\n"
        "A-E3:\tval 3; act 2; dom  2;\t()\nA-M1:\tval 2; act 3; dom   ;\t()\n\n"
    )


def write(root: Path, session: int, dialogue: str, *blocks: str) -> Path:
    path = root / f"Session{session}" / "dialog" / "EmoEvaluation" / f"{dialogue}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + "".join(blocks), encoding="utf-8")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    codes = ("neu", "hap", "exc", "ang", "sad", "fru", "sur", "fea", "dis", "oth", "xxx")
    turns = [block(f"Ses01F_impro01_F{index:03d}", code) for index, code in enumerate(codes)]
    path = write(tmp_path, 1, "Ses01F_impro01", *turns, block("Ses01F_impro01_M000", "neu", "3.6667, 1.0000, 4.5000"))
    write(tmp_path, 5, "Ses05M_script01_1b", block("Ses05M_script01_1b_FXX0", "sad"))
    # leftovers and single raters' files, which must not be read
    (path.parent / "._Ses01F_impro01.txt").write_bytes(b"\x00\x05\x16\x07[1 - 2]\tnonsense")
    for name in ("Categorical", "Attribute", "Self-evaluation"):
        (path.parent / name).mkdir()
        (path.parent / name / "Ses01F_impro01_e2_cat.txt").write_text("Ses01F_impro01_F000 :Neutral state; ()\n")
    return tmp_path


def test_every_turn_is_a_row(root: Path) -> None:
    rows = iemocap.prepare(root)
    assert rows.height == 13
    assert rows["label"].to_list()[:11] == [
        "neutral", "happiness", "happiness", "anger", "sadness", "frustration",
        "surprise", "fear", "disgust", "other", "undecided",
    ]  # fmt: skip
    assert rows["annotation"].to_list()[1:3] == ["hap", "exc"]


def test_speaker_is_the_letter_of_the_last_token(root: Path) -> None:
    man, woman = iemocap.prepare(root).rows(named=True)[-2:]
    assert man == {
        "utterance_id": "Ses01F_impro01_M000",
        "path": "Session1/sentences/wav/Ses01F_impro01/Ses01F_impro01_M000.wav",
        "label": "neutral",
        "speaker": "Ses01M",
        "group": "Session1",
        "start_s": 0.0,
        "duration_s": None,
        "annotation": "neu",
        "kind": "improvised",
        "sentence": "Ses01F_impro01",
        "valence": 3.6667,
        "activation": 1.0,
        "dominance": 4.5,
    }
    assert (woman["speaker"], woman["kind"], woman["group"]) == ("Ses05F", "scripted", "Session5")
    assert woman["path"] == "Session5/sentences/wav/Ses05M_script01_1b/Ses05M_script01_1b_FXX0.wav"


def test_other_folders_are_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no label files Session\*/dialog/EmoEvaluation/\*\.txt") as caught:
        iemocap.prepare(tmp_path)
    assert "daamctl download iemocap --from DIR" in str(caught.value)
    with pytest.raises(CorpusError, match="is not a folder"):
        iemocap.prepare(tmp_path / "nowhere")


def test_folder_one_level_too_high(root: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer" / "IEMOCAP_full_release"
    outer.mkdir(parents=True)
    (root / "Session1").rename(outer / "Session1")
    with pytest.raises(CorpusError, match=r"did you mean .*IEMOCAP_full_release\?"):
        iemocap.prepare(outer.parent)


def test_turn_labelled_twice(root: Path) -> None:
    write(root, 1, "Ses01F_impro02", block("Ses01F_impro01_F000", "neu"))
    with pytest.raises(CorpusError, match="turn 'Ses01F_impro01_F000' is labelled more than once"):
        iemocap.prepare(root)


def test_turn_labelled_twice_in_one_file(root: Path) -> None:
    write(root, 1, "Ses01F_impro02", *[block("Ses01F_impro02_F000", "neu")] * 2)
    with pytest.raises(CorpusError, match="turn 'Ses01F_impro02_F000' is labelled more than once"):
        iemocap.prepare(root)


@pytest.mark.parametrize(
    "line",
    [
        "[6.2901 - 8.2357]\tSes01F_impro02_F000\tneu\n",
        "[6.2901 - 8.2357] Ses01F_impro02_F000 neu [2.5, 2.5, 2.5]\n",
        "[6.2901 - 8.2357]\tSes01F_impro02_F000\tjoy\t[2.5000, 2.5000, 2.5000]\n",
        "[6.2901 - 8.2357]\tSomeone_F000\tneu\t[2.5000, 2.5000, 2.5000]\n",
    ],
)
def test_line_that_does_not_parse(root: Path, line: str) -> None:
    write(root, 1, "Ses01F_impro02", line)
    with pytest.raises(CorpusError, match=r"Ses01F_impro02\.txt, line 3: not a label line"):
        iemocap.prepare(root)


def test_file_without_labels(root: Path) -> None:
    write(root, 1, "Ses01F_impro02")
    with pytest.raises(CorpusError, match=r"Ses01F_impro02\.txt has no label lines"):
        iemocap.prepare(root)
