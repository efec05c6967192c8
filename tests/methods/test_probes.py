"""Closed-form probes against NumPy, and what chooses their penalty."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import Ridge

from daamctl.errors import MethodError
from daamctl.methods import CLOSED_FORM, METHODS, Layers, build, load_weights, probes, save_weights
from daamctl.methods.probes import SHARPNESS
from daamctl.methods.ridge import PENALTIES, scaling_of
from tests.fixtures.ridge import alpha, one_hot

NUM_LAYERS, NUM_CLASSES = 4, 3
SHAPES = [(60, 7), (24, 33)]  # training clips and features: more clips than features, and fewer


def make_clips(number, width, *, seed=0, skill=0.6):
    """Layers (number, L, D) of rising skill and classes (number,); offsets and scales differ between features."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    y = np.arange(number) % NUM_CLASSES
    centres = fixed.standard_normal((NUM_CLASSES, NUM_LAYERS, width))
    x = skill * np.linspace(0.2, 1, NUM_LAYERS)[:, None] * centres[y] + rng.standard_normal((number, NUM_LAYERS, width))
    return 3 + x * fixed.uniform(0.1, 10, (NUM_LAYERS, width)), y


def layers_of(x, y):
    tensor = torch.as_tensor(x)
    return Layers(torch.as_tensor(y), lambda index: tensor[:, index])


def probe_of(method, width):
    return build(method, num_layers=NUM_LAYERS, embed_dim=width, num_classes=NUM_CLASSES).double()


def ridge(x, y, penalty):
    """Scores as a function of features, by the normal equations of the centred one-hot targets."""
    mean, deviation = x.mean(0), x.std(0)
    z, targets = (x - mean) / deviation, np.eye(NUM_CLASSES)[y]
    unit = (z**2).sum() / len(z)
    weights = np.linalg.solve(z.T @ z + penalty * unit * np.eye(z.shape[1]), z.T @ (targets - targets.mean(0)))
    return lambda other: (other - mean) / deviation @ weights + targets.mean(0)


def fitted(method, x, y, penalty, layer=None):
    """The scores of a probe under a penalty, as a function of layers (B, L, D)."""
    if method == "ridge-average":
        parts = [ridge(x[:, index], y, penalty) for index in range(NUM_LAYERS)]
        return lambda other: np.mean([part(other[:, index]) for index, part in enumerate(parts)], axis=0)
    view = {
        "ridge-last": lambda x: x[:, -1],
        "ridge-best-layer": lambda x: x[:, layer],
        "ridge-mean": lambda other: ((other - x.mean(0)) / x.std(0)).mean(1),  # standardised as in training
        "ridge-concat": lambda x: x.reshape(len(x), -1),
    }[method]
    scores = ridge(view(x), y, penalty)
    return lambda other: scores(view(other))


def candidates(method):
    """Penalties with, for a probe that chooses one, every layer."""
    layers = range(NUM_LAYERS) if method == "ridge-best-layer" else [None]
    return [(penalty, layer) for penalty in PENALTIES for layer in layers]


def figures(scores, y):
    return (scores.argmax(1) == y).mean(), ((scores - np.eye(NUM_CLASSES)[y]) ** 2).mean()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", CLOSED_FORM)
def test_probe_chosen_on_a_held_out_group_equals_numpy(method, shape):
    x, y = make_clips(*shape)
    dev, dev_y = make_clips(31, shape[1], seed=1)
    other, _ = make_clips(11, shape[1], seed=2)
    tried = {one: figures(fitted(method, x, y, *one)(dev), dev_y) for one in candidates(method)}
    penalty, layer = min(tried, key=lambda one: (-tried[one][0], tried[one][1]))
    model = probe_of(method, shape[1])
    solution = model.solve(layers_of(x, y), layers_of(dev, dev_y))
    assert [one.penalty for one in solution.candidates] == list(PENALTIES)
    chosen = solution.candidates[solution.chosen]
    assert (chosen.penalty, chosen.layer) == (penalty, layer)
    assert (chosen.accuracy, chosen.error) == pytest.approx(tried[penalty, layer])
    for one in solution.candidates:
        assert one.accuracy == pytest.approx(max(tried[same][0] for same in tried if same[0] == one.penalty))
        assert one.error == pytest.approx(tried[one.penalty, one.layer][1])
    assert model.decoder.penalty == pytest.approx(penalty)
    if layer is not None:
        assert model.fusion.chosen == layer
    with torch.no_grad():
        scores = model(torch.from_numpy(other)) / model.decoder.sharpness
    np.testing.assert_allclose(scores, fitted(method, x, y, penalty, layer)(other), atol=1e-8)


@pytest.mark.parametrize("shape", [(30, 5), (18, 33)])
@pytest.mark.parametrize("method", CLOSED_FORM)
def test_without_a_held_out_group_each_clip_is_left_out(method, shape):
    x, y = make_clips(*shape, skill=0.4)

    def refitted(penalty, layer):
        """As the closed form has it: the statistics and the penalty's unit are those of all clips."""
        mean, deviation = x.mean(0), x.std(0)
        z = (x - mean) / deviation
        rows = []
        for index in range(len(y)):
            rest = np.arange(len(y)) != index
            parts = {
                "ridge-average": [z[:, one] for one in range(NUM_LAYERS)],
                "ridge-last": [z[:, -1]],
                "ridge-best-layer": [z[:, layer or 0]],
                "ridge-mean": [z.mean(1) / z.mean(1).std(0)],
                "ridge-concat": [z.reshape(len(z), -1)],
            }[method]
            scores = []
            for part in parts:
                unit = (part**2).sum() / len(part)
                targets, centre = np.eye(NUM_CLASSES)[y[rest]], part[rest].mean(0)
                inner = part[rest] - centre
                system = inner.T @ inner + penalty * unit * np.eye(part.shape[1])
                weights = np.linalg.solve(system, inner.T @ (targets - targets.mean(0)))
                scores.append((part[index] - centre) @ weights + targets.mean(0))
            rows.append(np.mean(scores, axis=0))
        return figures(np.array(rows), y)

    tried = {one: refitted(*one) for one in candidates(method)}
    solution = probe_of(method, shape[1]).solve(layers_of(x, y))
    chosen = solution.candidates[solution.chosen]
    assert (chosen.penalty, chosen.layer) == min(tried, key=lambda one: tried[one][1])
    for one in solution.candidates:
        assert (one.accuracy, one.error) == pytest.approx(tried[one.penalty, one.layer])


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_scikit_learn_for_the_same_penalty(shape):
    x, y = (torch.as_tensor(part) for part in make_clips(*shape))
    dev, dev_y = make_clips(31, shape[1], seed=1)
    for method, features in (("ridge-last", x[:, -1]), ("ridge-concat", x.flatten(1))):
        probe = probe_of(method, shape[1])
        penalty = probe.solve(layers_of(x, y), layers_of(dev, dev_y)).penalty
        z = scaling_of(features)(features).numpy()
        expected = Ridge(alpha(z, penalty)).fit(z, one_hot(y)).predict(z)
        with torch.no_grad():
            np.testing.assert_allclose(probe(x) / probe.decoder.sharpness, expected, atol=1e-5)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_stored_float16_and_float32_weights_are_enough(method):
    x, y = make_clips(60, 7)
    dev, dev_y = make_clips(31, 7, seed=1)
    wide, narrow = probe_of(method, 7), probe_of(method, 7).float()
    half, held = torch.from_numpy(x).half(), torch.from_numpy(dev).half()
    expected = wide.solve(layers_of(half.double(), y), layers_of(held.double(), dev_y))
    assert narrow.solve(layers_of(half, y), layers_of(held, dev_y)).penalty == expected.penalty
    with torch.no_grad():
        torch.testing.assert_close(narrow(half.float()).double(), wide(half.double()), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_saved_weights_predict_the_same(method, tmp_path):
    x, y = make_clips(60, 7)
    model = probe_of(method, 7).float()
    solution = model.solve(layers_of(x, y), layers_of(*make_clips(31, 7, seed=1)))
    sizes = {"num_layers": NUM_LAYERS, "embed_dim": 7, "num_classes": NUM_CLASSES}
    save_weights(model, tmp_path / "w.safetensors", method=method, settings={}, **sizes)
    loaded = load_weights(tmp_path / "w.safetensors")
    tensor = torch.from_numpy(x).float()
    with torch.no_grad():
        assert torch.equal(loaded(tensor), model(tensor))
    assert loaded.decoder.penalty == torch.tensor(solution.penalty)
    assert loaded.traits.closed_form
    if method == "ridge-best-layer":
        assert loaded.fusion.layer_weights(tensor)[0].argmax() == solution.candidates[solution.chosen].layer


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_features_that_do_not_vary_count_for_nothing(method):
    x, y = make_clips(60, 7)
    dev, dev_y = make_clips(31, 7, seed=1)
    constant = np.full((1, NUM_LAYERS, 2), 1e4)
    wider = [np.concatenate([one, np.broadcast_to(constant, (len(one), NUM_LAYERS, 2))], 2) for one in (x, dev)]
    plain, padded = probe_of(method, 7), probe_of(method, 9)
    penalties = {
        plain.solve(layers_of(x, y), layers_of(dev, dev_y)).penalty,
        padded.solve(layers_of(wider[0], y), layers_of(wider[1], dev_y)).penalty,
    }
    assert len(penalties) == 1
    with torch.no_grad():
        expected, found = plain(torch.from_numpy(dev)), padded(torch.from_numpy(wider[1]))
        torch.testing.assert_close(found, expected)
        nothing = probe_of(method, 7)
        nothing.solve(layers_of(np.ones_like(x), y), layers_of(np.ones_like(dev), dev_y))
        scores = nothing(torch.ones(1, NUM_LAYERS, 7).double()) / nothing.decoder.sharpness
        np.testing.assert_allclose(scores[0], np.bincount(y) / len(y))


@pytest.mark.parametrize("method", CLOSED_FORM)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(method, value):
    x, y = make_clips(60, 7)
    x[5] = value
    with pytest.raises(MethodError, match=r"^features of the training clips are not finite$"):
        probe_of(method, 7).solve(layers_of(x, y))


def test_of_equal_penalties_the_larger_one_is_taken():
    """Where nothing varies, every penalty gives the same scores."""
    x, y = make_clips(60, 7)
    dev, dev_y = make_clips(31, 7, seed=1)
    for held in (layers_of(np.ones_like(dev), dev_y), None):
        assert probe_of("ridge-last", 7).solve(layers_of(np.ones_like(x), y), held).penalty == max(PENALTIES)


@pytest.mark.parametrize("method", CLOSED_FORM)
def test_solving_again_forgets_what_was_solved_before(method):
    first, second = probe_of(method, 7), probe_of(method, 7)
    dev = layers_of(*make_clips(31, 7, seed=1))
    first.solve(layers_of(*make_clips(60, 7, seed=5)), dev)
    first.solve(layers_of(*make_clips(60, 7)), dev)
    second.solve(layers_of(*make_clips(60, 7)), dev)
    for name, value in second.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name


@pytest.mark.parametrize(("values", "kept"), [(10**6, 5), (90 * 12, 3)])
def test_concatenation_of_many_clips_and_features_is_of_principal_components(monkeypatch, values, kept):
    x, y = make_clips(90, 7)
    dev, dev_y = make_clips(31, 7, seed=1)
    other, _ = make_clips(11, 7, seed=2)
    whole = probe_of("ridge-concat", 7)
    whole.solve(layers_of(x, y), layers_of(dev, dev_y))
    assert whole.components is None  # 28 features and 90 clips
    monkeypatch.setattr(probes, "LARGEST_SYSTEM", 20)
    monkeypatch.setattr(probes, "HELD_VALUES", values)
    mean, deviation = x.mean(0), x.std(0)
    parts = [np.linalg.svd(((x - mean) / deviation)[:, index])[2][:kept].T for index in range(NUM_LAYERS)]

    def reduced(own):
        z = (own - mean) / deviation
        return np.concatenate([z[:, index] @ part for index, part in enumerate(parts)], axis=1)

    z, targets = reduced(x), np.eye(NUM_CLASSES)[y]

    def scores(own, penalty):
        system = z.T @ z + penalty * (z**2).sum() / len(z) * np.eye(z.shape[1])
        return reduced(own) @ np.linalg.solve(system, z.T @ (targets - targets.mean(0))) + targets.mean(0)

    tried = {penalty: figures(scores(dev, penalty), dev_y) for penalty in PENALTIES}
    penalty = min(tried, key=lambda one: (-tried[one][0], tried[one][1]))
    model = probe_of("ridge-concat", 7)
    solution = model.solve(layers_of(x, y), layers_of(dev, dev_y))
    assert (model.components, solution.penalty) == (kept, penalty)
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(other)) / model.decoder.sharpness, scores(other, penalty))
    model.refit(layers_of(*make_clips(19, 7)), solution.candidates[solution.chosen])  # few clips: all components
    assert model.components is None


@pytest.mark.parametrize("skill", [0.0, 0.2, 0.5])
def test_sharpness_makes_the_cross_entropy_smallest(skill):
    x, y = make_clips(60, 7, skill=0.5)
    dev, dev_y = make_clips(301, 7, seed=1, skill=skill)
    model = probe_of("ridge-last", 7)
    solution = model.solve(layers_of(x, y), layers_of(dev, dev_y))
    scores = solution.candidates[solution.chosen].scores.numpy()

    def cross_entropy(factor):
        return -log_softmax(factor * scores, axis=1)[np.arange(len(dev_y)), dev_y].mean()

    best = minimize_scalar(cross_entropy, bounds=SHARPNESS, method="bounded", options={"xatol": 1e-6})
    assert cross_entropy(model.decoder.sharpness.item()) == pytest.approx(best.fun, abs=1e-9)
    if skill:
        assert best.fun < cross_entropy(1.0)


def test_sharpness_stays_within_its_range():
    y = torch.arange(30) % NUM_CLASSES
    right = torch.eye(NUM_CLASSES)[y]
    assert probes._sharpness(right, y) == pytest.approx(SHARPNESS[1])
    assert probes._sharpness(-right, y) == pytest.approx(SHARPNESS[0])


def test_table_lists_the_probes():
    assert [name for name in METHODS if name.startswith("ridge-")] == list(CLOSED_FORM)
    assert {METHODS.module_of(name) for name in CLOSED_FORM} == {"daamctl.methods.probes"}


def test_layers_too_large_to_be_held_give_the_same_probe(monkeypatch):
    x, y = make_clips(90, 7)
    dev = layers_of(*make_clips(31, 7, seed=1))
    held, read = probe_of("ridge-concat", 7), probe_of("ridge-concat", 7)
    held.solve(layers_of(x, y), dev)
    monkeypatch.setattr(probes, "HELD_VALUES", 100)
    read.solve(layers_of(x, y), dev)
    torch.testing.assert_close(read.decoder.weight, held.decoder.weight)
