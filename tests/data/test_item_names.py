"""Names of known corpora: what they tell, and names that are no such."""

from __future__ import annotations

import polars as pl
import pytest

from daamctl.data.item_names import groups_in_names, speakers_in_names


@pytest.mark.parametrize(
    ("corpus", "name", "who", "word"),
    [
        ("LibriSpeech", "672-122797-{0:04d}", "672", "speaker"),
        ("LibriSpeech", "672-672-122797-{0:04d}", "672", "speaker"),
        ("LibriSpeech", "84-1211-{0:04d}-1234", "84", "speaker"),
        ("MLS", "4800_10003_{0:06d}", "4800", "speaker"),
        ("AISHELL", "wav/test/S0764/BAC009S0764W{0:04d}.wav", "S0764", "speaker"),
        ("TIMIT", "TEST/DR4/FADG0/SI{0}", "FADG0", "speaker"),
        ("TIMIT", "FADG0_SX{0}", "FADG0", "speaker"),
        ("AMI", "AMI_EN2001a_H00_MEE068_{0:07d}_0000594", "MEE068", "speaker"),
        ("Switchboard", "sw02001-A_{0:06d}-001156", "sw02001-A", "speaker"),
        ("Switchboard", "en_4156-A_{0:06d}-030248", "en_4156-A", "speaker"),
        ("TED-LIUM", "AimeeMullins_2009P-{0:07d}-0002881", "AimeeMullins_2009P", "talk"),
        ("GigaSpeech", "YOU0000000315_S{0:07d}-17", "YOU0000000315", "recording"),
        ("MSP-Podcast", "MSP-PODCAST_0002_{0:04d}.wav", "MSP-PODCAST_0002", "podcast"),
        ("ESC-50", "audio/1-100032-{1}-0.wav", "100032", "recording"),
        ("UrbanSound8K", "fold5/100032-3-0-{0}.wav", "100032", "recording"),
        ("VoxCeleb", "wav/id10270/5r0dWx_-7C8/{0:05d}.wav", "id10270", "speaker"),
        ("VCTK", "p225/p225_{0:03d}_mic1.flac", "p225", "speaker"),
        ("Speech Commands", "bed/0a7c2a8d_nohash_{0}.wav", "0a7c2a8d", "speaker"),
        ("EmoDB", "wav/03a{0:02d}Fa.wav", "03", "speaker"),
        ("IEMOCAP", "Ses01F_script01_1b_M{0:03d}", "Ses01M", "speaker"),
        ("RAVDESS", "Actor_12/03-01-06-01-02-{0:02d}-12.wav", "12", "speaker"),
        ("CREMA-D", "1001_DFA_ANG_{1}{1}", "1001", "speaker"),
        ("CREMA-D", "cremad-1001-DFA-ANG-{1}{1}", "1001", "speaker"),  # keys of EmoBox
        ("MSP-IMPROV", "session1/S01A/P/MSP-IMPROV-S01A-F01-P-FM{0:02d}.wav", "F01", "speaker"),
        ("SAVEE", "anger/DC_a{0:02d}.wav", "DC", "speaker"),
        ("ShEMO", "female/F01A{0:02d}.wav", "F01", "speaker"),
        ("CaFE", "Neutre/04-N-1-{0}.wav", "04", "speaker"),
        ("EmoDB", "emodb-03a{0:02d}Wb", "03", "speaker"),
        ("IEMOCAP", "iemocap-Ses01F_impro04_M{0:03d}", "Ses01M", "speaker"),
        ("RAVDESS", "ravdess-03-01-07-02-02-{0:02d}-12", "12", "speaker"),
        ("KDEF", "KDEF/AF01/AF01ANHL.JPG", "F01", "speaker"),
        ("MELD", "dia12_utt{0}.mp4", "dia12", "dialogue"),
    ],
)
def test_names_of_known_corpora_tell_what_belongs_together(corpus: str, name: str, who: str, word: str) -> None:
    others = {"672": "84", "84": "1089", "id10270": "id10271", "p225": "p226", "0a7c2a8d": "0ff728b5", "03": "08",
              "F01": "M02", "DC": "JE", "04": "07",
              "Ses01M": "Ses02M", "12": "07", "4800": "67",
              "S0764": "S0765", "FADG0": "MABW0", "MEE068": "FEE005", "sw02001-A": "sw02001-B",
              "en_4156-A": "en_4156-B", "AimeeMullins_2009P": "BillGates_2010", "YOU0000000315": "POD0000000004",
              "MSP-PODCAST_0002": "MSP-PODCAST_0113", "100032": "7061", "1001": "1002", "dia12": "dia3"}  # fmt: skip
    other = name.replace(who, others[who]).replace("Ses01F", "Ses02F")
    items = [form.format(number, "ABCDEF"[number % 6]) for form in (name, other) for number in range(6)]
    found = groups_in_names(pl.Series(items))
    assert found is not None
    assert found[:2] == (corpus, word)
    assert found[2]["group"].to_list() == [who] * 6 + [others[who]] * 6
    assert groups_in_names(pl.Series([*items, "another"])) is None
    assert groups_in_names(pl.Series(items[::6])) is None  # each has its own
    assert groups_in_names(pl.Series(["01-12-2025", "01-01-2026", "02-01-2026"])) is None  # dates


def test_speakers_that_are_the_classes_are_none() -> None:
    items = pl.Series([f"p{speaker}_{number:03d}" for speaker in (225, 226) for number in range(4)])
    labels = pl.Series(["x", "y"] * 4, dtype=pl.String)
    told = speakers_in_names(items, labels)
    assert told is not None
    assert told[0] == "VCTK"
    assert told[1].to_list() == ["p225"] * 4 + ["p226"] * 4
    assert speakers_in_names(items, pl.Series(["anna"] * 4 + ["berta"] * 4)) is None
    assert speakers_in_names(pl.Series([*items[:-1], None]), labels) is None
    assert speakers_in_names(pl.Series([f"dia{one % 2}_utt{one}" for one in range(8)]), labels) is None  # dialogues
