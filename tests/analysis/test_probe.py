"""Linear probes of layers and their fusions against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeClassifier, RidgeCV
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from daamctl.analysis import probe
from daamctl.analysis.probe import Rows, Scores, choose, difference, judge, probe_layers, ridge_probe
from daamctl.methods import ridge
from daamctl.methods.ridge import PENALTIES, fit_ridge
from tests.fixtures.ridge import NUM_CLASSES, SHAPES, alpha, left_out, make_data, one_hot


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("penalty", [1e-2, 1.0, 1e2])
def test_fixed_penalty_equals_scikit_learn(shape, penalty):
    x, y = make_data(*shape)
    x_test, _ = make_data(11, shape[1], seed=1)
    scaler = StandardScaler().fit(x)
    z = scaler.transform(x)
    expected = Ridge(alpha(z, penalty)).fit(z, one_hot(y))
    tensors = torch.from_numpy(x), torch.from_numpy(x_test)
    scores = ridge_probe(tensors[0], y, tensors[1], NUM_CLASSES, penalties=(penalty,))
    np.testing.assert_allclose(scores, expected.predict(scaler.transform(x_test)), atol=1e-9)
    classes = RidgeClassifier(alpha(z, penalty)).fit(z, y).predict(scaler.transform(x_test))
    assert scores.argmax(1).tolist() == classes.tolist()
    narrow = ridge_probe(tensors[0].float(), y, tensors[1].float(), NUM_CLASSES, penalties=(penalty,))
    assert narrow.dtype == torch.float32
    np.testing.assert_allclose(narrow, scores, atol=1e-4)


def test_features_that_do_not_vary_count_for_nothing():
    x, y = make_data(40, 5)
    wide = torch.from_numpy(np.column_stack([x, np.full(40, 0.1), np.full(40, 1e4)])).float()
    scores = ridge_probe(wide[:30], y[:30], wide[30:], NUM_CLASSES, penalties=(1.0,))
    expected = ridge_probe(wide[:30, :5], y[:30], wide[30:, :5], NUM_CLASSES, penalties=(1.0,))
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    nothing = ridge_probe(torch.ones(30, 4), y[:30], torch.ones(10, 4), NUM_CLASSES)
    np.testing.assert_allclose(nothing, np.tile(np.bincount(y[:30]) / 30, (10, 1)), atol=1e-6)


def make_layers(*, num_layers=4, num_features=6, clips=90, seed=0):
    """Layers of rising skill, three groups of clips, two clips per utterance."""
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.integers(NUM_CLASSES, size=clips // 2), 2)
    parts = [make_data(clips, num_features, seed=seed + layer)[0] for layer in range(num_layers)]
    x = np.stack(parts, axis=1)
    x += np.linspace(0, 2, num_layers)[:, None] * rng.standard_normal((NUM_CLASSES, num_features))[y][:, None]
    group = np.arange(clips) * 3 // clips
    folds = [Rows(*(np.flatnonzero(group == (part + fold) % 3) for part in (2, 1, 0))) for fold in range(3)]
    return torch.from_numpy(x), y, folds, np.arange(clips) // 2


def reference(x, y, rows):
    """Scores of all clips by scikit-learn, which chooses the penalty in the same way."""
    z = StandardScaler().fit(x[rows]).transform(x)
    alphas = [alpha(z[rows], penalty) for penalty in PENALTIES]
    return RidgeCV(alphas).fit(z[rows], one_hot(y)[rows]).predict(z)


def pooled(scores, y, units, rows):
    names = sorted(set(units[rows]))
    means = [scores[rows][units[rows] == name].mean(axis=0) for name in names]
    return [y[rows][units[rows] == name][0] for name in names], np.argmax(means, axis=1)


@pytest.mark.parametrize("by_utterance", [False, True])
def test_probes_of_layers_equal_scikit_learn(by_utterance):
    x, y, folds, units = make_layers()
    steps = []
    found = probe_layers(
        x, y, folds, NUM_CLASSES, units=units if by_utterance else None, on_step=lambda: steps.append(1)
    )
    assert len(steps) == 3 * (4 + 2)
    assert len(found.layers) == 4
    items = units if by_utterance else np.arange(len(y))
    for number, fold in enumerate(folds):
        layers = [reference(x[:, layer].numpy(), y, fold.train) for layer in range(4)]
        whole = np.concatenate(
            [StandardScaler().fit(part[fold.train]).transform(part) for part in x.numpy().swapaxes(0, 1)], 1
        )
        expected = {
            **dict(enumerate(layers)),
            "mean": reference(x.numpy().mean(axis=1), y, fold.train),
            "average": np.mean(layers, axis=0),
            "concatenation": reference(whole, y, fold.train),
            "chance": np.tile(np.bincount(y[fold.train]), (len(y), 1)),
        }
        met = {**dict(enumerate(found.layers)), **found.fusions(), "chance": found.chance}
        assert expected.keys() == met.keys()
        for name, scores in expected.items():
            test, dev = (pooled(scores, y, items, rows) for rows in (fold.test, fold.dev))
            assert met[name].accuracy[number] == pytest.approx(accuracy_score(*test)), name
            assert met[name].balanced_accuracy[number] == pytest.approx(balanced_accuracy_score(*test)), name
            assert met[name].choice_accuracy[number] == pytest.approx(accuracy_score(*dev)), name
            assert met[name].choice_balanced_accuracy[number] == pytest.approx(balanced_accuracy_score(*dev)), name


def test_probes_of_words_are_chosen_and_compared_by_their_own_figure():
    x, y, folds, _ = make_layers()
    by_accuracy = probe_layers(x, y, folds, NUM_CLASSES)
    found = probe_layers(x, y, folds, NUM_CLASSES, entity_f1=lambda rows, guess: float((y[rows] != guess).mean()))
    for one, other in zip(found.layers, by_accuracy.layers, strict=True):
        np.testing.assert_allclose(one.accuracy, other.accuracy)
        np.testing.assert_allclose(one.compared, 1 - other.compared)
        np.testing.assert_allclose(one.choice, 1 - other.choice)
    best, chosen = choose(found.layers)
    for fold, layer in enumerate(chosen):
        assert found.layers[layer].choice_accuracy[fold] == min(one.choice_accuracy[fold] for one in found.layers)
        assert best.compared[fold] == found.layers[layer].entity_f1[fold]


def test_without_a_held_out_group_the_choice_is_by_leaving_out():
    x, y, folds, _ = make_layers()
    fold = Rows(np.concatenate(folds[0][:2]), np.empty(0, np.int64), folds[0].test)
    found = probe_layers(x, y, [fold], NUM_CLASSES)
    for layer in range(4):
        z = StandardScaler().fit_transform(x[fold.train, layer])
        penalty = fit_ridge(torch.from_numpy(z), torch.from_numpy(y[fold.train]), NUM_CLASSES).penalty
        expected = (left_out(z, y[fold.train], alpha(z, penalty)).argmax(1) == y[fold.train]).mean()
        assert found.layers[layer].choice_accuracy == pytest.approx([expected])


def test_the_choice_never_sees_the_test_group():
    x, y, folds, _ = make_layers()
    before = probe_layers(x, y, folds[:1], NUM_CLASSES)
    other, labels = x.clone(), y.copy()
    other[folds[0].test] *= -7.0
    labels[folds[0].test] = 0
    after = probe_layers(other, labels, folds[:1], NUM_CLASSES)
    for one, two in zip(
        [*before.layers, *before.fusions().values()], [*after.layers, *after.fusions().values()], strict=True
    ):
        assert one.choice_accuracy == two.choice_accuracy
    assert not np.array_equal(before.mean.accuracy, after.mean.accuracy)


def test_many_clips_leave_out_the_concatenation(monkeypatch):
    x, y, folds, _ = make_layers()
    monkeypatch.setattr(probe, "MAX_KERNEL_CLIPS", 29)
    found = probe_layers(x, y, folds, NUM_CLASSES)
    assert found.concatenation is None
    assert list(found.fusions()) == ["mean", "average"]


def test_blocks_of_the_kernel_do_not_show(monkeypatch):
    x, y, folds, _ = make_layers()
    expected = probe_layers(x, y, folds, NUM_CLASSES).concatenation
    monkeypatch.setattr(ridge, "KERNEL_ROWS", 7)
    np.testing.assert_array_equal(probe_layers(x, y, folds, NUM_CLASSES).concatenation.accuracy, expected.accuracy)


def test_stored_float16_is_enough():
    x, y, folds, _ = make_layers(num_features=20)
    found, expected = (probe_layers(part, y, folds, NUM_CLASSES) for part in (x.half(), x))
    assert abs(found.mean.accuracy.mean() - expected.mean.accuracy.mean()) < 0.05
    assert found.layers[3].accuracy.mean() > 0.8 > found.chance.accuracy.mean()


def scores_of(test, choice, balanced=None):
    values = np.array(test, dtype=float), np.array(choice, dtype=float)
    return Scores(values[0], values[0] / 2, values[1], np.array(balanced, dtype=float) if balanced else values[1] / 2)


def test_choice_by_the_held_out_group_then_balanced_then_the_first():
    first = scores_of([0.1, 0.2, 0.3], [0.5, 0.5, 0.5], [0.4, 0.4, 0.4])
    second = scores_of([0.4, 0.5, 0.6], [0.6, 0.5, 0.5], [0.1, 0.5, 0.4])
    chosen, which = choose([first, second])
    assert which == [1, 1, 0]
    assert chosen.accuracy.tolist() == [0.4, 0.5, 0.3]
    assert chosen.balanced_accuracy.tolist() == [0.2, 0.25, 0.15]
    assert chosen.choice_accuracy.tolist() == [0.6, 0.5, 0.5]


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
