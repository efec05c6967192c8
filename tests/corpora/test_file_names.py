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


RAVDESS = "{_}-{_}-{label}-{_}-{_}-{_}-{speaker}"


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
        ([f"{s:02}a0{t}{c}a.wav" for s, t, c in product(range(3, 6), range(3), "WLN")], "{speaker:2}{label:1}{_:4}"),
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
        assert values == {"label": "08", "speaker": paths[-1][-6:-4]}


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
    assert propose(emotions).text == "{speaker}_{_}_{label}_{_}"
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
