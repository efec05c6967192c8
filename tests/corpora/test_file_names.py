"""Patterns of file names: what they read, what they refuse, and what is proposed for common layouts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from daamctl.corpora.file_names import LIST_THEM, NamePattern, propose
from daamctl.errors import ConfigError, CorpusError


@pytest.mark.parametrize(
    ("pattern", "path", "values"),
    [
        ("{label}/{_}.wav", "a/b/calm/x.wav", {"label": "calm"}),
        ("{label}/{speaker}_{_}", "calm/s1_3_4.flac", {"label": "calm", "speaker": "s1"}),
        ("{speaker:2}{_:3}{label:1}{_:1}.wav", "wav/03a01Fa.wav", {"speaker": "03", "label": "F"}),
        ("{_}-{_}-{label}-{_}-{speaker}.wav", "A/03-01-05-02-12.wav", {"label": "05", "speaker": "12"}),
        ("{group}/{label}/{take}.wav", "train/calm/7.wav", {"group": "train", "label": "calm", "take": "7"}),
        ("{label}.{_}", "calm.1.wav", {"label": "calm"}),
        ("{label}/{_}", "sci.med/10012", {"label": "sci.med"}),
        ("{label+}_{_}", "pets/american_bulldog_12.jpg", {"label": "american_bulldog"}),
        ("{label+}_{_}.jpg", "Abyssinian_1.jpg", {"label": "Abyssinian"}),
        ("{label}/{_}.wav", "calm/x.mp3", None),
        ("{label}/{_}.wav", "x.wav", None),
        ("{label:1}.wav", "ab.wav", None),
        ("{label}+{_}.wav", "a+b.wav", {"label": "a"}),
        ("{speaker}_{label}{_:#}", "DC_sa07.wav", {"speaker": "DC", "label": "sa"}),
        ("{speaker:#}{label}.wav", "12calm.wav", {"speaker": "12", "label": "calm"}),
        ("{label}{_:#}.wav", "calm.wav", None),
    ],
)
def test_what_a_pattern_reads(pattern: str, path: str, values: dict[str, str] | None) -> None:
    assert NamePattern.parse(pattern).read(path) == values


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{speaker}/{_}.wav", "it has no {label}"),
        ("{label}_{label}.wav", "{label} stands twice"),
        ("{label}{speaker}.wav", "nothing separates {speaker} from the field before it; give widths, {label:1}"),
        ("{label}/{.wav", "it has a brace that is no field"),
        ("{label:x}/{_}.wav", "it has a brace that is no field"),
    ],
)
def test_what_is_no_pattern(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NamePattern.parse(pattern)
    assert caught.value.message == f"pattern '{pattern}': {reason}"


def test_words_in_front_of_numbers() -> None:
    pairs = list(product(range(3), ("angry", "calm"), (1, 2)))
    assert propose([f"{mood}{number:02}.wav" for number, (_, mood, _) in enumerate(pairs)]).text == "{label}{_:#}"
    spoken = [f"p{who:02}_{mood}{take}.wav" for who, mood, take in pairs]
    assert propose(spoken).text == "{speaker}_{label}{_:#}"
    assert propose(spoken).read(spoken[-1]) == {"speaker": "p02", "label": "calm"}
    with pytest.raises(CorpusError, match="nothing in the names of the files looks like a label"):
        propose([f"{part}{number:03}.png" for part in ("train", "test") for number in range(9)])


def test_classes_of_several_words() -> None:
    """As the Oxford pets are named, whose classes have one word or more."""
    kinds = ("Abyssinian", "american_bulldog", "american_pit_bull_terrier", "beagle")
    paths = [f"images/{kind}_{number}.jpg" for kind in kinds for number in range(3)]
    assert propose(paths).text == "{label+}_{_}"
    assert {propose(paths).read(path)["label"] for path in paths} == set(kinds)  # type: ignore[index]
    assert propose([f"{number % 2}/{path}" for number, path in enumerate(paths)]).text == "{label+}_{_}"
    assert propose([f"{'ab'[number % 2] * 3}/{path}" for number, path in enumerate(paths)]).text == "{label}/{_}/{_}"


MOODS = ("calm", "happy", "sad")
SPEAKERS = [f"s{number:02}" for number in range(6)]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("{mood}/{speaker}_{take}.wav", "{label}/{speaker}_{_}"),
        ("{speaker}/{mood}/{take}.wav", "{speaker}/{label}/{_}"),
        ("data/{speaker}/{mood}/take {take}.wav", "{speaker}/{label}/{_}"),
        ("all/{speaker}-{mood}-{take}.wav", "{speaker}-{label}-{_}"),
        ("{mood}/{take}{speaker}.wav", "{label}/{_}"),
        ("{speaker}/{take}_{mood}.wav", "{speaker}/{_}_{label}"),
    ],
)
def test_common_layouts_get_their_pattern(layout: str, expected: str) -> None:
    paths = [
        layout.format(mood=mood, speaker=speaker, take=take)
        for mood, speaker, take in product(MOODS, SPEAKERS, range(3))
    ]
    pattern = propose([*paths, "read me/notes.wav"])  # one file of another form
    assert pattern.text == expected
    assert {values["label"] for path in paths if (values := pattern.read(path))} == set(MOODS)


RAVDESS = "{_}-{_}-{label}-{_}-{sentence}-{_}-{speaker}"


def ravdess(folder: str, actors: Sequence[int]) -> list[str]:
    """Names as in RAVDESS: modality, channel, emotion, intensity, statement, repetition, actor."""
    return [
        f"{folder.format(actor=actor)}03-01-{emotion:02}-{intensity:02}-{statement:02}-{take:02}-{actor:02}.wav"
        for actor, emotion, intensity, statement, take in product(actors, range(1, 9), (1, 2), (1, 2), (1, 2))
        if (emotion, intensity) != (1, 2)  # neutral is never strong
    ]


@pytest.mark.parametrize(
    ("paths", "example"),
    [
        (
            [f"{s:02}{k}0{t}{c}a.wav" for s, k, t, c in product(range(3, 6), "ab", range(3), "WLN")],
            "{speaker:2}{sentence:3}{label:1}{_:1}",
        ),
        ([f"X{s:02}{k}1{c}.wav" for s, k, c in product(range(1, 4), "ab", "wln")], "{speaker:3}{_:2}{label:1}"),
        (
            [f"Actor_{s:02}/03-01-{e:02}-01-{s:02}.wav" for s, e in product(range(1, 9), range(1, 6))],
            "{_}-{_}-{label}-{_}-{speaker}",
        ),
        (ravdess("Actor_{actor:02}/", range(1, 25)), RAVDESS),
        (ravdess("Actor_{actor:02}/", range(1, 4)), RAVDESS),  # fewer actors than emotions
        (ravdess("Actor_{actor:02}/", (1, 2)), RAVDESS),
        (ravdess("", range(1, 25)), RAVDESS),
        (ravdess("", range(1, 6)), RAVDESS),
        (["a.wav", "b.wav"], "{label}/{speaker}_{_}"),
    ],
)
def test_codes_are_not_guessed_but_the_message_shows_a_pattern(paths: list[str], example: str) -> None:
    with pytest.raises(CorpusError, match=r"^nothing in the names of the files looks like a label, e\.g\. ") as caught:
        propose(paths)
    assert caught.value.fix is not None
    assert f"--pattern '{example}'" in caught.value.fix
    values = NamePattern.parse(example).read(paths[-1])
    if example == RAVDESS:
        assert values == {"label": "08", "sentence": "02", "speaker": paths[-1][-6:-4]}


def test_folders_of_an_official_split_are_groups() -> None:
    paths = [f"{part}/{label}/{n}.txt" for part in ("train", "test") for label in ("neg", "pos") for n in range(9)]
    pattern = propose(paths)
    assert pattern.text == "{group}/{label}/{_}"
    assert pattern.read("test/pos/8.txt") == {"group": "test", "label": "pos"}
    inner = propose([f"{label}/{part}/{n}.txt" for part in ("Train", "Test") for label in ("neg", "pos") for n in "12"])
    assert inner.text == "{label}/{group}/{_}"
    assert propose([path.replace("test", "more") for path in paths]).text == "{label}/{_}"


@pytest.mark.parametrize(
    "names",
    [
        ("train_splits", "dev_splits_complete", "output_repeated_splits_test"),
        ("ASVspoof2019_LA_train", "ASVspoof2019_LA_dev", "ASVspoof2019_LA_eval"),
        ("train-clean-100", "train-clean-360", "dev-clean", "test-clean"),
        ("Train", "Test1", "Test2"),
    ],
)
def test_folders_of_parts_under_longer_names_are_groups_and_never_classes(names: tuple[str, ...]) -> None:
    paths = [f"{name}/{label}/{n}.wav" for name in names for label in ("calm", "fear") for n in range(4)]
    assert propose(paths).text == "{group}/{label}/{_}"
    for by_folder in (False, True):
        for form in ("{name}/{n}.wav", "{name}/dia{n}_utt0.wav", "train/{name}/{n}.wav"):
            unlabelled = [form.format(name=name, n=n) for name in names for n in range(4)]
            with pytest.raises(CorpusError) as caught:
                propose(unlabelled, by_folder=by_folder)
            assert caught.value.fix == LIST_THEM


def test_parts_without_training_and_parts_beside_other_folders_are_no_classes() -> None:
    for names in (("dev-clean", "test-clean"), ("train", "test", "extra")):
        with pytest.raises(CorpusError):
            propose([f"{name}/{n}.png" for name in names for n in range(4)], by_folder=True)


MOODS = ("ANG", "HAP", "SAD")


def test_folders_of_folds_are_groups_and_emotions_are_labels() -> None:
    paths = [f"fold{fold}/{label}/{n}.wav" for fold in (1, 2, 3) for label in ("horn", "siren") for n in range(4)]
    assert propose(paths).text == "{group}/{label}/{_}"
    emotions = [f"{s}_{text}_{mood}_XX.wav" for s in range(1001, 1005) for text in ("DFA", "IEO") for mood in MOODS]
    assert propose(emotions).text == "{speaker}_{sentence}_{label}_{_}"  # CREMA-D
    assert propose([path.replace("_", "-") for path in emotions]).text == "{speaker}-{_}-{label}-{_}"
    doubled = [f"{who}_{mood}/{who}_{n}_{mood.lower()}.wav" for who in ("OAF", "YAF") for mood in MOODS for n in "abc"]
    assert propose(doubled).text == "{_}_{_}_{label}"


def test_folders_of_images_are_classes_whatever_they_are_called() -> None:
    paths = [f"{part}/{number}/{n}.png" for part in ("train", "test") for number in range(4) for n in range(6)]
    with pytest.raises(CorpusError, match="nothing in the names of the files looks like a label"):
        propose(paths)
    assert propose(paths, by_folder=True).text == "{group}/{label}/{_}"
    birds = ["images/001.Black_footed_Albatross/Black_footed_Albatross_0001.jpg", "images/003.Sooty/Sooty_0001.jpg"]
    birds += [path.replace("0001", "0002") for path in birds]
    assert propose(birds, by_folder=True).text == "{label}/{_}"
    for none in (["1.png", "2.png"], ["1/1.png", "2/1.png"], ["1/1.png", "1/2.png"]):
        with pytest.raises(CorpusError):
            propose(none, by_folder=True)


def test_images_beside_folders_of_classes_do_not_decide_how_these_are_read() -> None:
    paths = [f"{part}/n0{kind}/{n}.png" for part in ("train", "val") for kind in (1, 2) for n in range(4)]
    strays = ["sample.png", *(f"test/{n}.png" for n in range(3))]
    pattern = propose([*strays, *paths], by_folder=True)
    assert pattern.text == "{group}/{label}/{_}"
    assert [pattern.read(path) for path in strays] == [None] * 4


PATIENTS = [f"{('benign', 'malignant')[who % 2]}/patient{who:03}/img{n}.png" for who in range(8) for n in range(3)]


@pytest.mark.parametrize(
    ("change", "pattern", "by_folder"),
    [
        (("", ""), "{label}/{speaker}/{_}", True),
        (("", ""), "{label}/{speaker}/{_}", False),
        (("patient", "P"), "{label}/{speaker}/{_}", True),
        (("patient", "10"), "{label}/{speaker}/{_}", True),
        (("/img", "_img"), "{label}/{speaker}_{_}", True),
        (("/img", "/visit1_scan2/img"), "{label}/{speaker}/{_}/{_}", True),
    ],
)
def test_patients_who_have_one_class_each_are_sources(change: tuple[str, str], pattern: str, by_folder: bool) -> None:
    paths = [path.replace(*change) for path in PATIENTS]
    known = propose(paths, by_folder=by_folder)
    assert known.text == pattern
    assert "8" not in known.doubts[0]
    assert "are taken for the speakers, for want of others; without" in known.doubts[0]
    assert told(known.doubts[0], paths) == [{"label": "benign"}, {"label": "malignant"}]


def test_where_classes_are_numbers_too_patients_are_doubted() -> None:
    paths = [path.replace("benign", "0").replace("malignant", "1") for path in PATIENTS]
    assert propose(paths, by_folder=True).read(paths[-1]) == {"label": "1", "speaker": "patient007"}
    numbers = [path.replace("patient", "") for path in paths]
    (doubt,) = propose(numbers, by_folder=True).doubts
    assert told(doubt, numbers)[1] == {"label": "1", "speaker": "007"}


def test_folders_of_numbers_within_folders_of_words_are_no_classes() -> None:
    """As the slides of BreakHis; the folders around them are kinds of kinds."""
    kinds = {"adenosis": "benign", "fibroadenoma": "benign", "carcinoma": "malignant"}
    paths = [
        f"{tumour}/SOB/{kind}/SOB_{kind[0]}_14-{slide}00/{zoom}X/{n}.png"
        for (kind, tumour), slide, zoom, n in product(kinds.items(), range(11, 15), (40, 100, 200), range(3))
    ]
    pattern = propose(paths, by_folder=True)
    assert pattern.read(paths[-1]) == {"label": "carcinoma", "speaker": "SOB_c_14-1400"}
    readings = [told(doubt, paths)[1] for doubt in pattern.doubts]
    assert readings == [
        {"label": "malignant", "speaker": "SOB_c_14-1400"},
        {"label": "SOB_c_14-1400"},
        {"label": "carcinoma", "speaker": "200X"},
        {"label": "carcinoma"},
    ]
    people = [f"{sex}{who}/{n}.png" for sex, who, n in product(("AF", "AM"), range(10, 13), range(4))]
    assert "AF10, AF11, AF12, AM10, AM11 and 1 more are taken for the classes" in propose(people).doubts[0]


def test_kinds_of_pictures_are_no_classes() -> None:
    for kinds in (("aligned", "original"), ("JPEGImages", "SegmentationClass"), ("color", "grayscale", "segmented")):
        paths = [f"{kind}/{n:05}.jpg" for kind in kinds for n in range(6)]
        with pytest.raises(CorpusError) as caught:
            propose(paths, by_folder=True)
        assert caught.value.fix == LIST_THEM
        leaves = [f"{kind}/{leaf}/{n:05}.jpg" for kind in kinds for leaf in ("healthy", "rust") for n in range(6)]
        assert (propose(leaves, by_folder=True).text, propose(leaves).doubts) == ("{label}/{_}", ())


def told(doubt: str, paths: Sequence[str]) -> list[dict[str, str] | None]:
    """What the pattern in a doubt reads of the first and of the last path; it fits all."""
    found = NamePattern.parse(doubt.split("--pattern '")[1].split("'")[0])
    assert None not in [found.read(path) for path in paths]
    return [found.read(paths[0]), found.read(paths[-1])]


def test_the_first_of_several_numbers_is_the_speaker_and_the_others_are_doubted() -> None:
    paths = [f"{mood}/{s:02}_{text:02}_1.wav" for mood, s, text in product(MOODS, range(1, 5), range(1, 11))]
    pattern = propose(paths)
    assert pattern.text == "{label}/{speaker}_{_}_{_}"
    assert pattern.doubts == (
        "the speakers are taken to be 01, 02, 03, 04, e.g. 01 of ANG/01_02_1.wav; if they are 01, 02, 03, 04, 05 and 5 "
        "more, e.g. 02: --pattern '{label}/{_}_{speaker}_{_}'",
    )
    assert told(pattern.doubts[0], paths) == [{"label": "ANG", "speaker": "01"}, {"label": "SAD", "speaker": "10"}]
    two = propose([path for path in paths if "/01" in path or "/02" in path])  # perhaps takes
    assert two.text == "{label}/{_}_{speaker}_{_}"
    assert "if they are 01, 02, e.g. 01: --pattern '{label}/{speaker}_{_}_{_}'" in two.doubts[0]
    marked = [f"{mood}/s{s}_{text:02}.wav" for mood, s, text in product(MOODS, range(1, 5), range(1, 11))]
    assert (propose(marked).text, propose(marked).doubts) == ("{label}/{speaker}_{_}", ())


def test_a_number_of_a_speaker_may_have_a_name_or_a_sex_beside_it() -> None:
    """As in SUBESCO, where F_01 and M_01 are two people."""
    people = {"F_01": "OISHI", "F_02": "TITHI", "F_03": "ANIKA", "M_01": "RASEL", "M_02": "TUHIN", "M_03": "RONI"}
    each = list(product(people, range(1, 11), MOODS))
    named = propose(paths := [f"{who}_{people[who]}_S_{text}_{mood}_1.wav" for who, text, mood in each])
    assert (named.text, len(named.doubts)) == ("{_}_{_}_{speaker}_{_}_{_}_{label}_{_}", 1)
    assert {values["speaker"] for path in paths if (values := named.read(path))} == set(people.values())
    numbered = propose(paths := [f"{who}_{text}_{mood}.wav" for who, text, mood in each])
    assert numbered.text == "{speaker+}_{_}_{label}"
    assert {values["speaker"] for path in paths if (values := numbered.read(path))} == set(people)
    folders = propose([f"{who.replace('_', '/')}/{mood}/{text}.wav" for who, text, mood in each])
    assert folders.doubts == (
        "01, 02, 03 are each one speaker, though they stand with F, M; if they are two, rename them",
    )


def test_classes_and_speakers_that_could_be_swapped() -> None:
    """As in FSDD, whose classes are the digits."""
    spoken = [f"recordings/{n}_{who}_{take}.wav" for n, who, take in product(range(10), ("jackson", "theo"), range(4))]
    pattern = propose(spoken)
    assert pattern.read(spoken[0]) == {"label": "0", "speaker": "jackson"}
    assert "if they are jackson, theo, e.g. jackson: --pattern '{speaker}_{label}_{_}'" in pattern.doubts[0]
    coughs = [f"{s}_{what}_{take}.wav" for s, what, take in product(range(1, 7), ("cough", "sneeze"), range(2))]
    assert propose(coughs).read(coughs[0]) == {"label": "cough", "speaker": "1"}
    assert told(propose(coughs).doubts[0], coughs)[0] == {"label": "1", "speaker": "cough"}
    people, words = ("anna", "berta", "carla"), ("yes", "no", "stop")
    for layout in ("{who}/{word}/{take}.wav", "{word}/{who}/{take}.wav", "{who}/{take}_{word}.wav"):
        paths = [layout.format(who=who, word=word, take=take) for who, word, take in product(people, words, range(4))]
        read = propose(paths).read(paths[0]) or {}
        other = told(propose(paths).doubts[0], paths)[0] or {}
        assert {read["label"], other["label"]} == {"anna", "yes"}
        assert other["speaker"] == read["label"]


def test_a_series_of_folders_is_no_class_if_anything_else_is() -> None:
    """As the levels of MEAD, one of whose emotions is rare."""
    moods = ("angry", "contempt", "disgusted", "neutral")
    levels = [f"M00{s}/audio/{m}/level_{n}/{t}.wav" for s, m, n, t in product(range(3), moods, range(1, 4), range(4))]
    assert (propose(levels).text, propose(levels).doubts) == ("{speaker}/{_}/{label}/{_}/{_}", ())
    sessions = [f"session{n}/{mood}/{take}.wav" for n, mood, take in product(range(1, 5), moods, range(3))]
    assert propose(sessions).doubts == (
        "session1, session2, session3, session4 are taken for the speakers, for want of others; without: --pattern "
        "'{label}/{_}'",
    )
    parts = [f"part_{n}/p{s}_{take}.wav" for n, s, take in product((1, 2), range(4), range(3))]
    assert propose(parts).doubts[0].startswith("part_1, part_2 are taken for the classes, but may be sessions or parts")
    assert told(propose(parts).doubts[0], parts)
    sides = [f"class{n}/{side}_{take}.wav" for n, side, take in product((1, 2), ("left", "right"), range(3))]
    assert (propose(sides).text, len(propose(sides).doubts)) == ("{label}/{_}_{speaker}", 3)
    people = [f"part{n}/{mood}/{text}_{take}.wav" for n, mood, text, take in product(range(1, 5), moods, "123", "12")]
    assert "if they are part1, part2, part3, part4, e.g. part1: --pattern" in propose(people).doubts[0]
    images = propose([f"ISIC_part_{n % 2}/ISIC_{n}.jpg" for n in range(9)], by_folder=True)
    assert images.doubts[0].startswith("ISIC_part_0, ISIC_part_1 are taken for the classes, but may be sessions")


@pytest.mark.parametrize("layout", ["{who}_{mood}/{who}_{word}_{code}.wav", "{who}_{word}_{code}.wav"])
def test_tess(layout: str) -> None:
    moods = {"angry": "angry", "disgust": "disgust", "fear": "fear", "happy": "happy", "neutral": "neutral",
             "pleasant_surprised": "ps", "sad": "sad"}  # fmt: skip
    paths = [
        layout.format(who=who, mood=mood, word=word, code=code)
        for who, (mood, code), word in product(("OAF", "YAF"), moods.items(), ("back", "bar", "base"))
    ]
    assert (propose(paths).text, propose(paths).doubts) == ("{_}_{_}_{label}", ())


@pytest.mark.parametrize(
    ("corpus", "paths", "values"),
    [
        (
            "MSP-IMPROV",
            [
                f"session{s}/S01{m}/{k}/MSP-IMPROV-S01{m}-{g}0{s}-{k}-FM0{t}.wav"
                for s, m, k, g, t in product(range(1, 4), "AHNS", "PRST", "FM", range(1, 3))
            ],
            {"label": "S", "sentence": "S01", "speaker": "M03"},
        ),
        (
            "ShEMO",
            [
                f"{sex}/{sex[0].upper()}0{s}{m}0{t}.wav"
                for sex, s, m, t in product(("female", "male"), range(1, 4), "ANSW", range(1, 3))
            ],
            {"label": "W", "speaker": "M03"},
        ),
        (
            "RAVDESS",
            [
                f"Audio_{kind}_Actors_01-24/Actor_0{s}/03-0{n}-0{m}-01-0{t}-01-0{s}.wav"
                for (n, kind), s, m, t in product(enumerate(("Speech", "Song"), 1), range(1, 4), range(1, 6), range(2))
            ],
            {"label": "05", "sentence": "01", "speaker": "03"},
        ),
        (
            "KDEF",
            [
                f"KDEF/A{sex}0{n}/A{sex}0{n}{m}{side}.JPG"
                for sex, n, m, side in product("FM", (1, 2), ("AF", "AN", "SU"), ("FL", "S"))
            ],
            {"label": "SU", "speaker": "M02"},
        ),
        (
            "IEMOCAP",
            [
                f"Session{s}/sentences/wav/Ses0{s}F_impro0{n}/Ses0{s}F_impro0{n}_{g}00{t}.wav"
                for s, n, g, t in product(range(1, 4), range(1, 3), "FM", range(3))
            ],
            None,
        ),
    ],
)
def test_names_of_known_corpora_with_codes_are_refused(
    corpus: str, paths: list[str], values: dict[str, str] | None
) -> None:
    with pytest.raises(CorpusError, match=rf"; {corpus} (tells it by a code|does not tell it there)\n") as caught:
        propose(paths, folder="/data/x")
    fix = caught.value.fix or ""
    if values is None:
        assert fix == "daamctl download iemocap --from /data/x"
    else:
        assert told(fix, paths)[1] == values
    moods = dict(zip("AHNSW", ("anger", "happiness", "neutral", "sadness", "surprise"), strict=True))
    sorted_ = [f"{moods[name[3]]}/{name}" for path in paths if corpus == "ShEMO" and (name := path.split("/")[1])]
    assert not sorted_ or propose(sorted_).text == "{label}/{_}"
    visits = [f"{('ill', 'well')[s % 2]}/F0{s}S0{n}.wav" for s, n in product(range(6), range(3))]  # one letter
    assert propose(visits).text == "{label}/{_}"


def test_folders_that_agree_with_a_code_are_labels() -> None:
    """As those of CaFE, whose emotions have French names; the others are how strong they are."""
    moods = {"C": "Colère", "D": "Dégoût", "J": "Joie"}
    paths = [
        f"{moods[m]}/{strong}/{s:02}-{m}-{n}-{t}.wav"
        for s, m, (n, strong), t in product(range(1, 7), moods, enumerate(("Faible", "Fort"), 1), (1, 2))
    ]
    assert (propose(paths).text, propose(paths).doubts) == ("{label}/{_}/{speaker}-{_}-{_}-{sentence}", ())
    doubts = propose([*paths, neutral := "Neutre/01-N-1-1.wav"]).doubts  # which is never strong
    assert told(doubts[0], [*paths, neutral])[1] == {"label": "N", "sentence": "1", "speaker": "01"}


def test_an_ending_is_no_part_of_a_name() -> None:
    """As in Dogs vs. Cats, whose test images have no label."""
    paths = [f"train/{kind}.{n}.jpg" for kind in ("cat", "dog") for n in range(9)]
    pattern = propose([*paths, *(f"test1/{n}.jpg" for n in range(9))], by_folder=True)
    assert pattern.text == "{label}.{_}.jpg"
    assert (pattern.read(paths[0]), pattern.read("test1/1.jpg")) == ({"label": "cat"}, None)
    assert propose(paths, by_folder=True).text == "{label}.{_}"
    first = [f"{n}.{kind}.jpg" for n in range(9) for kind in ("cat", "dog")]
    assert propose(first).read("3.dog.jpg") == {"speaker": "3", "label": "dog"}
    assert propose([f"x.{mood}{n}.wav" for mood in MOODS for n in range(4)]).text == "{_}.{label}{_:#}.wav"


def test_a_doubt_names_what_its_pattern_reads() -> None:
    """Of a sex and a number, which are the speaker together, also at the end of a name."""
    paths = [f"{mood}/{text}_{sex}_{n:02}.wav" for mood, text, sex, n in product(MOODS, "xyz", "FM", range(1, 5))]
    assert propose(paths).read(paths[0]) == {"label": "ANG", "speaker": "F_01"}
    numbered = [path.replace("x_", "1_").replace("y_", "2_").replace("z_", "3_") for path in paths]
    doubt, _ = propose(numbered).doubts
    assert doubt.startswith("the speakers are taken to be 1, 2, 3, e.g. 1 of ANG/1_F_01.wav; if they are F_01, F_02, ")
    assert {values["speaker"] for values in told(doubt, numbered) if values} == {"F_01", "M_04"}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("{mood}/id1000{s}/a_video-{t:03}/0000{t}.wav", "{label}/{speaker}/{_}/{_}"),
        ("{mood}/p22{s}/p22{s}_00{t}.wav", "{label}/{speaker}/{_}"),
        ("{mood}/AMI_EN2001a_H00_MEE06{s}_000000{t}_0000594.wav", "{label}/{_}_{_}_{_}_{speaker}_{_}_{_}"),
        ("session{s}/p22{s}_00{t}.wav", "VCTK tell the speaker"),
        ("AMI_EN200{t}a_H00_MEE06{s}_0000001_0000594.wav", "AMI tell the speaker"),
        ("dia{s}_utt{t}.wav", "MELD tell the dialogue"),
    ],
)
def test_of_names_that_tell_no_class_folders_around_their_own_may_be_the_classes(form: str, expected: str) -> None:
    moods = ("left", "right")
    paths = [form.format(mood=mood, s=s, t=t) for mood, s, t in product(moods, range(1, 4), range(3))]
    if "{label}" in expected:
        assert (propose(paths).text, propose(paths).doubts) == (expected, ())
        return
    with pytest.raises(CorpusError, match=f"^the names of {expected}, but no class\n  write a CSV file"):
        propose(paths)
