"""Probes of layers and of their fusions: they are those of the methods, and how they are chosen and judged."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from daamctl.evaluation.probe import FoldRows, ProbeScores, choose, difference, judge, probe_layers
from daamctl.methods import Layers, build, ridge
from tests.fixtures.ridge import NUM_CLASSES, make_data, ridge_scores


def make_layers(*, num_layers=4, num_features=6, clips=90, seed=0):
    """Layers of rising skill, and three groups of clips."""
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.integers(NUM_CLASSES, size=clips // 2), 2)
    parts = [make_data(clips, num_features, seed=seed + layer)[0] for layer in range(num_layers)]
    x = np.stack(parts, axis=1)
    x += np.linspace(0, 2, num_layers)[:, None] * rng.standard_normal((NUM_CLASSES, num_features))[y][:, None]
    group = np.arange(clips) * 3 // clips
    folds = [FoldRows(*(np.flatnonzero(group == (part + fold) % 3) for part in (2, 1, 0))) for fold in range(3)]
    return torch.from_numpy(x).float(), y, folds


def scoring(y):
    def score(rows, logits):
        guess = logits.argmax(1).numpy()
        return {
            "accuracy": accuracy_score(y[rows], guess),
            "balanced_accuracy": balanced_accuracy_score(y[rows], guess),
        }

    return score


def probed(x, y, folds, **options):
    return probe_layers(x, y, folds, NUM_CLASSES, scoring(y), **options)


FUSIONS = {"mean": "ridge-mean", "average": "ridge-average", "concatenation": "ridge-concat"}


@pytest.mark.parametrize("refit", [False, True])
def test_probes_are_those_of_the_methods(refit):
    x, y, folds = make_layers()
    found = probed(x, y, folds, refit=refit)
    best, chosen = choose(found.layers)
    for number, fold in enumerate(folds):
        for layer in range(4):
            scores = ridge_scores(x[:, layer], y, fold, NUM_CLASSES, refit=refit)
            expected = scoring(y)(fold.test, scores)
            one = found.layers[layer]
            assert {name: values[number] for name, values in one.values.items()} == pytest.approx(expected)
        parts = [Layers(torch.from_numpy(y[rows]), lambda i, rows=rows: x[rows, i]) for rows in fold]
        for name, method in {**FUSIONS, "best": "ridge-best-layer"}.items():
            model = build(method, num_layers=4, embed_dim=6, num_classes=NUM_CLASSES)
            solution = model.solve(*parts[:2])
            candidate = solution.candidates[solution.chosen]
            if refit:
                model.refit(parts[0].join(parts[1]), candidate)
            with torch.no_grad():
                expected = scoring(y)(fold.test, model(x[fold.test]))["accuracy"]
            one = best if name == "best" else found.fusions[name]
            assert one.values["accuracy"][number] == pytest.approx(expected), name
            assert name != "best" or chosen[number] == candidate.layer
        counts = np.bincount(y[fold.train])
        assert found.chance.values["accuracy"][number] == pytest.approx((y[fold.test] == counts.argmax()).mean())


def test_without_a_held_out_group_the_choice_is_by_leaving_out():
    x, y, folds = make_layers()
    fold = FoldRows(np.concatenate(folds[0][:2]), np.empty(0, np.int64), folds[0].test)
    found = probed(x, y, [fold])
    best = build("ridge-best-layer", num_layers=4, embed_dim=6, num_classes=NUM_CLASSES)
    solution = best.solve(Layers(torch.from_numpy(y[fold.train]), lambda index: x[fold.train, index]))
    assert choose(found.layers)[1] == [solution.candidates[solution.chosen].layer]


def test_the_choice_never_sees_the_test_group():
    x, y, folds = make_layers()
    before = probed(x, y, folds[:1])
    other, labels = x.clone(), y.copy()
    other[folds[0].test] *= -7.0
    labels[folds[0].test] = np.roll(y[folds[0].test], 1)
    after = probed(other, labels, folds[:1])
    for one, two in zip(
        [*before.layers, *before.fusions.values()], [*after.layers, *after.fusions.values()], strict=True
    ):
        assert one.ranks == two.ranks
    assert not np.array_equal(before.fusions["mean"].values["accuracy"], after.fusions["mean"].values["accuracy"])


def test_blocks_of_the_kernel_do_not_show(monkeypatch):
    x, y, folds = make_layers()
    expected = probed(x, y, folds).fusions["concatenation"]
    monkeypatch.setattr(ridge, "KERNEL_ROWS", 7)
    concatenated = probed(x, y, folds).fusions["concatenation"]
    np.testing.assert_array_equal(concatenated.values["accuracy"], expected.values["accuracy"])


def test_stored_float16_is_enough():
    x, y, folds = make_layers(num_features=20)
    found, expected = (probed(part, y, folds) for part in (x.half(), x))
    ours, theirs = (part.fusions["mean"].values["accuracy"].mean() for part in (found, expected))
    assert abs(ours - theirs) < 0.05
    assert found.layers[3].values["accuracy"].mean() > 0.8 > found.chance.values["accuracy"].mean()


def test_the_best_rank_is_chosen_and_the_first_of_equals():
    first = ProbeScores({"one": np.array([0.1, 0.2]), "other": np.array([0.0, 0.1])}, ((-0.5, 0.3), (-0.5, 0.2)))
    second = ProbeScores({"one": np.array([0.4, 0.5]), "other": np.array([0.2, 0.3])}, ((-0.6, 0.4), (-0.5, 0.2)))
    chosen, which = choose([first, second])
    assert which == [1, 0]
    assert {name: values.tolist() for name, values in chosen.values.items()} == {"one": [0.4, 0.2], "other": [0.2, 0.1]}


def test_difference():
    found = difference(np.array([0.7, 0.8, 0.6, 0.9, 0.5]), np.array([0.6, 0.6, 0.6, 0.6, 0.6]))
    np.testing.assert_allclose(found.per_fold, [0.1, 0.2, 0.0, 0.3, -0.1])
    assert found.mean == pytest.approx(0.1)
    assert found.standard_error == pytest.approx(np.sqrt(0.1 / 4) / np.sqrt(5))
    assert found.margin == pytest.approx(2.1318 * found.standard_error, rel=1e-4)  # t(0.95, 4), from a table
    assert difference(np.ones(1), np.zeros(1)).margin is None


@pytest.mark.parametrize(
    ("gains", "case"),
    [
        ([0.05, 0.06, 0.04, 0.05, 0.05], "likely"),
        ([0.05, 0.15, -0.05, 0.06, 0.02], "cannot be told"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], "unlikely"),
        ([-0.05, -0.06, -0.04, -0.05, -0.05], "unlikely"),
        ([0.005, 0.006, 0.004, 0.005, 0.005], "unlikely"),  # sure, but worthless
        ([0.02, 0.02, 0.02], "likely"),
        ([0.02, 0.02], "cannot be told"),
        ([0.02], "cannot be told"),
    ],
)
def test_judgement(gains, case):
    assert judge(difference(np.array(gains), np.zeros(len(gains)))) == case
