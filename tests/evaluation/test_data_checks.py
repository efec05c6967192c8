"""Every check on data with one planted fault, and on data without any."""

import numpy as np
import polars as pl
import pytest

from daamctl.data.task import task_of
from daamctl.evaluation import data_checks
from daamctl.evaluation.data_checks import CorpusFacts, check_data, numbered, text_ids

CLASSES = ("anger", "neutral", "sadness")
CHECKS = [
    "values", "group-sizes", "class-balance", "absent-classes", "speakers", "utterances", "duplicates",
    "near-duplicates", "duplicate-labels",
]  # fmt: skip


def make_clips(*, groups=5, utterances=102):
    """Two clips per utterance, two speakers per group."""
    number = groups * utterances
    owner = np.repeat(np.arange(number), 2)
    group = owner // utterances
    return pl.DataFrame(
        {
            "clip_id": [f"u{u}#{i % 2}" for i, u in enumerate(owner)],
            "utterance_id": [f"u{u}" for u in owner],
            "label": [CLASSES[u % len(CLASSES)] for u in owner],
            "speaker": [f"s{2 * g + u % 2}" for g, u in zip(group, owner, strict=True)],
            "group": [f"g{g}" for g in group],
        }
    )


def make_values(clips, *, layers=3, features=16, dtype=np.float16):
    """Large offsets and one huge feature, as large encoders have."""
    values = np.random.default_rng(0).standard_normal((len(clips), layers, features))
    values[..., 3] = 50 * values[..., 3] + 400
    return (values + 5).astype(dtype)


def changed(clips, rows, **columns):
    """The clips with other values in some rows."""
    index = pl.int_range(pl.len()).is_in(rows)
    return clips.with_columns(pl.when(index).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
                              for name, value in columns.items())  # fmt: skip


def found(clips, values, classes=CLASSES, checks=CHECKS, modality="speech", **known):
    known = CorpusFacts(task_of(modality, classes), lengths=modality == "text", **known)
    findings = list(check_data(clips, values, known))
    assert [finding.check for finding in findings] == checks
    return {finding.check: finding for finding in findings}


def not_ok(findings):
    return {name: finding.severity for name, finding in findings.items() if finding.severity != "ok"}


@pytest.fixture
def clips():
    return make_clips()


@pytest.fixture
def values(clips):
    return make_values(clips)


def test_clean_data(clips, values):
    findings = list(check_data(clips, values, CorpusFacts(task_of("speech", CLASSES))))
    assert len(findings) == CorpusFacts(task_of("speech", CLASSES)).num_checks
    assert [finding.severity for finding in findings] == ["ok"] * len(CHECKS)
    for finding in findings:
        assert finding.text.endswith(".")
        assert finding.examples == ()
    by_name = {finding.check: finding for finding in findings}
    assert by_name["speakers"].numbers == {"speakers": 10, "shared": 0, "clips": 0}
    assert by_name["class-balance"].numbers["clips"] == dict.fromkeys(CLASSES, 340)
    assert by_name["class-balance"].numbers["most_frequent_share_per_group"] == {f"g{g}": 1 / 3 for g in range(5)}
    assert by_name["group-sizes"].numbers == {"groups": 5, "utterances": {f"g{g}": 102 for g in range(5)}}


def test_values_that_are_not_finite(clips, values):
    values[7, 2, 1], values[9, 0, 0], values[9, 1, 0] = np.nan, np.inf, -np.inf
    findings = found(clips, values)
    assert not_ok(findings) == {"values": "warning"}
    assert findings["values"].numbers == {"clips": 2}
    assert findings["values"].examples == ("u3#1", "u4#1")
    assert findings["values"].text.startswith("Values that are not finite occur in 2 clips: ")


def test_speaker_in_two_groups(clips, values):
    findings = found(changed(clips, [0, 1, 2], speaker="s9"), values)
    assert not_ok(findings) == {"speakers": "warning"}
    assert findings["speakers"].numbers == {"speakers": 10, "shared": 1, "clips": 3 + 102}
    assert findings["speakers"].examples == ("s9",)
    assert findings["speakers"].text.startswith("Groups share 1 of 10 speakers (105 clips): test groups ")


def test_utterance_in_two_groups(clips, values):
    findings = found(changed(clips, [1], group="g3", speaker="s6"), values)
    assert not_ok(findings) == {"utterances": "warning"}
    assert findings["utterances"].numbers == {"utterances": 510, "shared": 1, "clips": 2}
    assert findings["utterances"].examples == ("u0",)


def test_equal_embeddings_across_groups(clips, values):
    values[1017] = values[3]  # u508 in g4 is u1 in g0, both neutral
    findings = found(clips, values)
    assert not_ok(findings) == {"duplicates": "warning"}
    assert findings["duplicates"].numbers == {"sets": 1, "clips": 2, "sets_across_groups": 1}
    assert findings["duplicates"].examples == ("u1#1 = u508#1",)


def test_equal_embeddings_within_a_group_or_an_utterance(clips, values):
    values[1] = values[0]  # both clips of u0: no finding
    values[12] = values[6]  # u6 is u3, one group, one label
    findings = found(clips, values)
    assert not_ok(findings) == {"duplicates": "note"}
    assert findings["duplicates"].numbers == {"sets": 1, "clips": 2, "sets_across_groups": 0}
    assert findings["duplicates"].text.endswith("(1 set), all within one group.")


def test_equal_embeddings_with_different_labels(clips, values):
    values[4] = values[2] = values[0]  # u0, u1 and u2 of g0, one label each
    findings = found(clips, values)
    assert not_ok(findings) == {"duplicates": "note", "duplicate-labels": "warning"}
    assert findings["duplicate-labels"].numbers == {"sets": 1, "near_pairs": 0, "utterances": 0}
    assert findings["duplicate-labels"].examples == ("u0#0 = u1#0 = u2#0",)


def test_utterance_with_two_labels(clips, values):
    findings = found(changed(clips, [8], label="sadness"), values)
    assert not_ok(findings) == {"duplicate-labels": "warning"}
    assert findings["duplicate-labels"].numbers == {"sets": 0, "near_pairs": 0, "utterances": 1}
    assert findings["duplicate-labels"].examples == ("u4",)


@pytest.mark.parametrize("block", [100, 10_000])
def test_almost_equal_embeddings(clips, values, monkeypatch, block):
    monkeypatch.setattr(data_checks, "BLOCK_ROWS", block)
    noise = np.random.default_rng(1).standard_normal(values[0].shape)
    values[1017] = values[3] + 0.01 * noise  # across groups, one label
    values[10] = values[9] + 0.01 * noise  # u5 and u4: one group, two labels
    values[1] = values[0] + 0.01 * noise  # one utterance: no finding
    findings = found(clips, values)
    assert not_ok(findings) == {"near-duplicates": "warning", "duplicate-labels": "warning"}
    assert findings["near-duplicates"].numbers == {"pairs": 1, "cosine": 0.999}
    assert findings["near-duplicates"].examples == ("u1#1 ~ u508#1",)
    assert findings["duplicate-labels"].numbers == {"sets": 0, "near_pairs": 1, "utterances": 0}
    assert findings["duplicate-labels"].examples == ("u4#1 ~ u5#0",)


@pytest.mark.parametrize(("features", "told"), [(1, True), (7, True), (8, False)])
def test_vectors_of_few_features_are_no_near_duplicates(clips, features, told):
    values = np.random.default_rng(0).standard_normal((len(clips), 3, features)).astype(np.float32)
    findings = found(clips, values)
    assert not_ok(findings) == {}
    text = f"because vectors of few features ({features}) often have almost the same direction."
    assert (text in findings["near-duplicates"].text) is told


def test_cosine_is_that_of_standardised_means(clips, values):
    """All pairs by the formula, at a cosine that many of them pass."""
    mean = values.astype(np.float64).mean(axis=1)
    z = (mean - mean.mean(axis=0)) / mean.std(axis=0)
    cosine = z @ z.T / np.linalg.norm(z, axis=1) / np.linalg.norm(z, axis=1)[:, None]
    group, label, owner = (clips[name].to_numpy() for name in ("group", "label", "utterance_id"))
    pairs = np.triu(cosine > 0.7, 1) & (owner[:, None] != owner)
    expected = (pairs & (group[:, None] != group)).sum(), (pairs & (label[:, None] != label)).sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_checks, "NEAR_COSINE", 0.7)
        met = data_checks.near_pairs(clips, values, data_checks.content_ids(values, clips["clip_id"].to_numpy()))
    assert expected[0] > 100
    assert (met.across, met.mislabelled) == expected
    assert len(met.across_examples) == len(met.mislabelled_examples) == 5


def test_equal_words_are_copies_only_in_equal_sentences():
    a, b, c = np.eye(3, 4, dtype=np.float32)[:, None]
    rows = np.stack([a, b, a, c, a, b])
    first, second, begin, other, *copies = data_checks.content_ids(rows, np.array(["s1", "s1", "s2", "s2", "s3", "s3"]))
    assert copies == [first, second]
    assert len({first, second, begin, other}) == 4


def test_embeddings_that_do_not_vary_are_duplicates_and_nothing_else(clips):
    values = np.full((len(clips), 2, 4), 0.1, np.float32)
    findings = found(clips, values)
    assert not_ok(findings) == {"duplicates": "warning", "duplicate-labels": "warning"}
    assert findings["duplicates"].numbers == {"sets": 1, "clips": 1020, "sets_across_groups": 1}
    assert findings["duplicates"].examples == ("u0#0 = u0#1 = u1#0 = u1#1 = u2#0",)


def test_classes(clips, values):
    rows = [row for row, group in enumerate(clips["group"]) if group != "g2"]
    findings = found(changed(clips, rows, label="anger"), values, (*CLASSES, "joy"))
    assert not_ok(findings) == {"class-balance": "note", "absent-classes": "warning"}
    share = (4 * 204 + 68) / 1020
    assert findings["class-balance"].numbers["most_frequent_share"] == pytest.approx(share)
    assert findings["class-balance"].numbers["most_frequent_share_per_group"]["g0"] == 1.0
    assert f"anger, has {100 * share:.0f} % of the clips, {4 * share:.1f} times" in findings["class-balance"].text
    absent = findings["absent-classes"]
    assert absent.numbers["absent"]["g2"] == ["joy"]
    assert absent.numbers["absent"]["g0"] == ["joy", "neutral", "sadness"]
    assert absent.examples[0] == "g0: joy, neutral, sadness"
    assert absent.text == "Classes are absent from 5 of 5 groups, so their results leave them out."


@pytest.mark.parametrize(("utterances", "severity"), [(15, "warning"), (21, "note"), (99, "note"), (102, "ok")])
def test_group_sizes(utterances, severity):
    clips = make_clips(utterances=utterances)
    finding = found(clips, make_values(clips))["group-sizes"]
    assert finding.severity == severity
    assert finding.text == (
        f"The smallest of 5 groups, g0, has {utterances} utterances: one of them changes its accuracy by "
        f"{100 / utterances:.1f} points."
    )
    assert len(finding.examples) == (0 if severity == "ok" else 5)


def test_too_few_groups():
    clips = make_clips(groups=2)
    finding = found(clips, make_values(clips))["group-sizes"]
    assert finding.severity == "warning"
    assert finding.text.startswith("There are 2 groups; ")


TEXT_CHECKS = ["values", "lengths", *CHECKS[1:]]


def make_items(*, train=300, test=120):
    """Texts or images of unknown origin with an official split."""
    number = train + test
    return pl.DataFrame(
        {
            "clip_id": [f"t{i}#000" for i in range(number)],
            "utterance_id": [f"t{i}" for i in range(number)],
            "label": [CLASSES[i % len(CLASSES)] for i in range(number)],
            "speaker": [f"t{i}" for i in range(number)],
            "group": ["train"] * train + ["test"] * test,
            "n_frames": [10 + i % 90 for i in range(number)],
        }
    )


def test_official_split_of_texts_whose_authors_are_unknown():
    items = make_items()
    findings = found(items, make_values(items), checks=TEXT_CHECKS, modality="text", tested=["test"], max_tokens=512)
    assert not_ok(findings) == {"speakers": "note"}
    assert findings["speakers"].text == (
        "Who wrote the texts is not known: whether two groups share an author cannot be checked."
    )
    assert findings["group-sizes"].text == (
        "The tested group, test, has 120 texts: one of them changes its accuracy by 0.8 points."
    )
    assert findings["lengths"].text == "Texts have 10 to 99 tokens, half of them at most 51; none was truncated."
    assert findings["utterances"].text == "No text is in two groups."
    assert "% of the texts" in findings["class-balance"].text


@pytest.mark.parametrize(("limit", "cut", "severity"), [(99, 4, "note"), (90, 40, "warning"), (None, 0, "ok")])
def test_texts_that_were_cut(limit, cut, severity):
    items = make_items()
    finding = found(items, make_values(items), checks=TEXT_CHECKS, modality="text", max_tokens=limit)["lengths"]
    assert finding.severity == severity
    assert finding.numbers == {"shortest": 10, "median": 51, "longest": 99, "limit": limit, "cut": cut}
    assert len(finding.examples) == min(cut, 5)


def test_a_small_official_test_part_is_named_and_the_large_training_part_is_not():
    items = make_items(train=15, test=30)
    finding = found(items, make_values(items), modality="image", tested=["test"])["group-sizes"]
    assert (finding.severity, finding.examples) == ("note", ("test",))


def test_equal_texts_are_found_by_what_they_say():
    items = make_items()
    texts = [f"Item number {i}" for i in range(len(items))]
    texts[310] = "  ITEM number\n7 "  # of the test part
    findings = found(items, make_values(items), checks=TEXT_CHECKS, modality="text", tested=["test"],
                     content=text_ids(texts))  # fmt: skip
    assert findings["duplicate-labels"].severity == "ok"  # both are of one class
    assert findings["duplicates"].text == (
        "2 texts are equal (1 set), 1 of them across groups: test groups contain texts that were trained on."
    )
    assert findings["duplicates"].examples == ("t7#000 = t310#000",)


def test_what_only_train_and_dev_share_was_not_tested():
    items = make_items().with_columns(speaker=pl.lit("a") + pl.int_range(pl.len()).cast(pl.String))
    items = changed(items, [0, 1, 2], group="dev")
    items = changed(items, [2, 3], speaker="b")
    texts = ["one", *(f"Item number {i}" for i in range(len(items) - 2)), "two"]
    texts[7] = "one"
    shared = "train and dev share them, so results on dev are too high."
    for row, expected in ((5, shared), (len(items) - 1, "that were trained on, so their results are too high.")):
        findings = found(changed(items, [row], speaker="b"), make_values(items), checks=TEXT_CHECKS, modality="text",
                         content=text_ids(texts))  # fmt: skip
        assert findings["speakers"].text.endswith(expected)
        assert findings["duplicates"].text == f"2 texts are equal (1 set), 1 of them across groups: {shared}"


def test_copies_of_images_are_found_even_where_their_embeddings_differ_a_little():
    items = make_items()
    files = [b"%d" % i for i in range(len(items))]
    files[301] = files[0]
    values = make_values(items)
    values[303] = values[3]  # equal embeddings of other files are near duplicates
    findings = found(items, values, modality="image", tested=["test"], content=numbered(files))
    assert findings["duplicates"].examples == ("t0#000 = t301#000",)
    assert findings["duplicates"].text.startswith("2 images are equal (1 set), 1 of them across groups")
    assert findings["near-duplicates"].examples == ("t3#000 ~ t303#000",)
    assert findings["near-duplicates"].text.endswith("look at them, they may be copies of one image.")
    assert findings["near-duplicates"].text.startswith("1 pair of images from different groups have")
    assert findings["speakers"].text.startswith("Where the images come from is not known: whether two groups share a ")


def test_authors_that_are_known_are_checked():
    items = make_items().with_columns(speaker=pl.lit("a") + (pl.int_range(pl.len()) % 7).cast(pl.String))
    finding = found(items, make_values(items), checks=TEXT_CHECKS, modality="text")["speakers"]
    assert finding.severity == "warning"
    assert finding.text.startswith("Groups share 7 of 7 authors (420 texts): ")
