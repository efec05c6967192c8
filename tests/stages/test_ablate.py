"""Stage `ablate`: which groups are trained, what is refused before training, and what is said of the method."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.layer_sets import Ablation, find_ablation, minus
from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.data.task import TASKS
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.evaluation.scoring import items_of
from daamctl.planning.repair import repair_of
from daamctl.reporting.document import Table, Text
from daamctl.reporting.layers import ablation
from daamctl.stages import ablate
from tests.fixtures.embeddings import FIXED, write_embeddings
from tests.fixtures.folds import make_layout, random_density, random_predictions, write_fold, write_method


def settings(methods=(), **ablate_settings):
    """Settings that list what they name, and `methods`."""
    small = {name: {"hidden_dim": 8} for name in ("none-mlp", "weighted-sum", "daam-v1-mlp", "last-layer")}
    ablated = {"k": [1], "rank_by": "daam-v1", "method": "none-mlp", **ablate_settings}
    named = [name for name in (ablated["rank_by"], ablated["method"]) if name]
    return Config.model_validate(
        {
            "methods": list(dict.fromkeys([*methods, *named])),
            "method_settings": small,
            "train": {"steps": 10, "passes": 0, "lr": 0.01, "batch_size": 16, "device": "cpu", **FIXED},
            "ablate": ablated,
        }
    )


def run(layout, config) -> Ablation:
    path = ablate.run(layout, config, track=False)
    found = find_ablation(path.parent)
    assert found is not None
    return found


def mean(runs):
    return np.mean(list(runs.values()))


def write_constant(layout, method):
    """Folds of a method that gives one class for every item."""
    for fold in (1, 2, 3):
        rows = random_predictions(np.random.default_rng(fold), fold, 1.0, 40)
        same = pl.Series([[1.0, 0.0, 0.0, 0.0]] * len(rows), dtype=pl.List(pl.Float32))
        density = random_density(np.random.default_rng(fold), (24, 16), 5.0) if "daam" in method else None
        write_fold(layout, settings(), method, fold, 1, rows.with_columns(logits=same), density=density)


@pytest.fixture
def layout(tmp_path):
    layout = make_layout(tmp_path)
    write_embeddings(layout.embeddings, settings(), num_groups=3)
    write_method(layout, settings(), "daam-v1", folds=(1, 2, 3), density_shape=(24, 16), learned=5.0)
    return layout


@pytest.fixture
def untrained(monkeypatch):
    """Fail if anything is trained."""

    def never(*_args, **_kwargs):
        raise AssertionError("trained before it was checked")

    monkeypatch.setattr(ablate, "train_on_layers", never)


def test_groups_presets_and_their_tests(layout):
    result = run(layout, settings(k=[1, 3], presets=["speech-9-23"], layers=[[6], [9]]))
    names = list(result.sets)
    assert names[:4] == ["highest-1", "lowest-1", "highest-3", "lowest-3"]
    assert names[4:] == ["layers-6", "layers-9", "layers-23"]
    assert [(one.name, one.high, one.low) for one in result.contrasts] == [
        ("highest-1 minus lowest-1", "highest-1", "lowest-1"),
        ("highest-3 minus lowest-3", "highest-3", "lowest-3"),
        ("speech-9-23", "layers-9", "layers-23"),
    ]
    folds = {name: read_folds(layout.stage("ablate") / f"{name}-none-mlp") for name in names}
    for name in names:
        items = [items_of(fold.predictions(), "utterance") for fold in folds[name]]
        assert list(result.runs(name).values()) == [(one.predictions == one.targets).mean() for one in items]
    assert [(one.test, one.k) for one in result.tests] == [
        (test, k) for k in (1, 3) for test in ("alone", "alone-folds")
    ]
    assert result.tests[0].high == str(result.ranking[0])
    assert result.embeddings_key == "test-0-16"
    assert result.rows[0].layers == tuple(range(1, 25))
    assert {row.set for row in result.rows} == {"all", *names}


def test_the_folds_that_rank_are_those_of_the_seeds_of_the_settings(layout):
    folds = read_folds(layout.method("daam-v1"))
    before = run(layout, settings())
    write_method(layout, settings(), "daam-v1", folds=(1, 2, 3), seeds=(7,), density_shape=(24, 16), learned=9.0)
    found = run(layout, settings())
    assert found.ranking == before.ranking
    assert found.folds == sorted(fold.result["run"]["key"] for fold in folds)
    assert found.settings == settings().section("ablate")


@pytest.mark.parametrize(
    ("method", "fix"),
    [
        ("daam-v1", "--set method_settings.daam-v1.num_heads=auto"),
        ("gqdaam-mlp", "--set method_settings.gqdaam-mlp.num_heads=auto"),
        (
            "mixture-daam",
            "--set method_settings.mixture-daam.num_heads=auto --set method_settings.mixture-daam.variance=biased",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused_before_training(layout, untrained, method, fix):
    config = settings(k=[1, 3], method=method)
    eight = config.model_copy(update={"method_settings": {method: {"num_heads": 8}}})
    with pytest.raises(MethodError) as error:
        ablate.run(layout, eight, track=False)
    assert error.value.fix == f"all groups and the baseline fit with {fix}"
    assert error.value.message.startswith(f"highest-1, lowest-1: {method}: num_heads (8) must")
    assert f"; highest-3, lowest-3: {method}: num_heads (8) must" in error.value.message


def test_the_fix_is_one_and_what_is_left_is_said(layout):
    config = settings(method="daam-v1-mlp")
    fixed = {**config.method_settings, "daam-v1-mlp": {"hidden_dim": 8, "num_heads": 1}}
    assert run(layout, config.model_copy(update={"method_settings": fixed})).notes[1] == (
        "On highest-1, lowest-1 'daam-v1-mlp' gives every input the same weight, 1 before training (D6, D33). These "
        "rows measure the decoder and what else the method trains, not the weighting."
    )


@pytest.mark.parametrize(
    ("method", "changes", "groups"),
    [
        ("daam-v2", {}, ["highest-1, lowest-1"]),
        ("gqdaam", {"num_heads": 1}, ["highest-1, lowest-1"]),
        ("mixture-daam", {"num_heads": 1, "variance": "biased"}, ["highest-1, lowest-1"]),
        ("daam-v1", {}, ["highest-1, lowest-1"]),
        ("sga", {}, ["highest-1, lowest-1"]),
        ("weighted-sum", {}, ["highest-1, lowest-1"]),
        ("se", {}, []),
        ("mha", {}, ["highest-1, lowest-1"]),
        ("concat", {}, []),
    ],
)
def test_fusions_that_weigh_nothing_are_named(layout, method, changes, groups):
    config = settings(method=method).model_copy(update={"method_settings": {method: changes}})
    features = ablate.load_features(layout, config)
    chosen = ablate.choose_sets([3, 7], config.ablate.k, (), features.layers)
    notes = ablate._method_notes(method, config, features, chosen)
    assert [note.split(" '")[0].removeprefix("On ") for note in notes] == groups


def test_one_layer_a_head_is_refused_where_there_are_several(layout, untrained):
    config = settings(k=[3], method="daam-v1")
    with pytest.raises(MethodError) as error:
        ablate.run(layout, config.model_copy(update={"method_settings": {"daam-v1": {"num_heads": 3}}}), track=False)
    assert error.value.message == (
        "highest-3, lowest-3: daam-v1: num_heads (3) leaves one of 3 layers to a head, with a weight that is "
        "the same for every input; possible: 1"
    )
    assert error.value.fix == "all groups and the baseline fit with --set method_settings.daam-v1.num_heads=auto"


def test_layers_that_the_encoder_does_not_have(layout, untrained):
    with pytest.raises(ConfigError, match=r"text-19-21-37-39: \[37, 38, 39\] is not among the layers 1 to 24"):
        ablate.run(layout, settings(presets=["text-19-21-37-39"]), track=False)
    with pytest.raises(ConfigError, match=r"ablate.layers: \[25\] is not among the layers 1 to 24"):
        ablate.run(layout, settings(layers=[[25]]), track=False)


def test_ranking_of_other_layers(layout, untrained):
    write_method(layout, settings(), "daam-v1", folds=(1, 2, 3), density_shape=(12, 16))
    with pytest.raises(ArtifactError, match=r"was trained on layers .*, 12\], but the embeddings hold") as error:
        ablate.run(layout, settings(), track=False)
    assert repair_of(error.value.path, layout) == "make it again: daamctl train toy --method daam-v1"


@pytest.mark.parametrize("rank_by", ["daam-v2", None])
def test_ranking_that_is_not_trained(layout, untrained, rank_by):
    with pytest.raises(ArtifactError, match="layers cannot be ranked: 'daam-v2' is not trained") as error:
        ablate.run(layout, settings(["daam-v2"], rank_by=rank_by), track=False)
    assert repair_of(error.value.path, layout) == "make it: daamctl train toy --method daam-v2"


def test_what_is_named_but_not_listed_is_refused(layout, untrained):
    config = settings().model_copy(update={"methods": ("none", "daam-v1")})
    message = r"^ablate.method: 'none-mlp' is not among the methods of this pipeline \(none, daam-v1\); add it to `meth"
    with pytest.raises(ConfigError, match=message):
        ablate.run(layout, config, track=False)


def test_methods_are_chosen_among_those_listed(layout):
    for method in ("weighted-sum", "none-mlp", "daam-v2"):
        shape = (24, 16) if "daam" in method else None
        write_method(layout, settings(), method, folds=(1, 2, 3), density_shape=shape)
    listed = ["daam-v2", "mha-published", "weighted-sum", "none-mlp", "daam-v1"]
    result = run(layout, settings(listed, rank_by=None, method=None))
    assert (result.rank_by, result.method) == ("daam-v1", "none-mlp")
    assert not any("ablate.rank_by" in caution for caution in result.cautions)
    assert not any("Not used" in note for note in result.notes)


def test_methods_that_learned_nothing_are_passed_over(layout):
    write_constant(layout, "daam-v1")
    write_constant(layout, "none-mlp")
    write_method(layout, settings(), "gct-b0", folds=(1, 2, 3), density_shape=(24, 16))
    write_method(layout, settings(), "weighted-sum", folds=(1, 2, 3))
    result = run(layout, settings(["gct-b0", "none-mlp", "daam-v1", "weighted-sum"], rank_by=None, method=None))
    assert (result.rank_by, result.method) == ("gct-b0", "weighted-sum")
    assert "Not used as ranking method: daam-v1: predicts the same class for every item of a fold." in result.notes
    assert "Not used as method to train: none-mlp: predicts the same class for every item of a fold." in result.notes
    assert not any("ablate.rank_by" in caution for caution in result.cautions)


def test_named_methods_that_learned_nothing_are_used_with_a_caution(layout):
    write_constant(layout, "daam-v1")
    write_constant(layout, "none-mlp")
    result = run(layout, settings())
    assert (result.rank_by, result.method) == ("daam-v1", "none-mlp")
    assert list(result.sets) == ["highest-1", "lowest-1"]
    assert result.cautions[0] == (
        "'daam-v1' learned nothing (predicts the same class for every item of a fold), but ablate.rank_by names it. "
        "Results based on it say nothing about the layers."
    )


@pytest.mark.parametrize("rank_by", ["daam-v1", None])
def test_a_density_that_ties_all_layers_ranks_none(layout, rank_by):
    rng = np.random.default_rng(0)
    flat = {name: np.ones((24, 16), np.float32) for name in ("trained", "untrained")}
    for fold in (1, 2, 3):
        write_fold(layout, settings(), "daam-v1", fold, 1, random_predictions(rng, fold, 1.0, 40), density=flat)
    result = run(layout, settings(["daam-v1"], rank_by=rank_by, layers=[[9]]))
    assert (result.ranking, [one.name for one in result.contrasts], list(result.tests)) == ([], [], [])
    assert list(result.sets) == ["layers-9"]
    assert result.notes[0].startswith("Layers are not ranked: ")
    assert "its scores tie all layers" in result.notes[0]
    advice = "Choose layers with ablate.layers."  # which was followed
    assert (advice in result.notes[0], advice in run(layout, settings(["daam-v1"], rank_by=rank_by)).notes[0]) == (
        False, True,
    )  # fmt: skip


def test_a_border_that_cuts_through_a_tie_is_told(layout):
    rng = np.random.default_rng(0)
    maps = np.repeat([0.9, 0.5, 0.5, *np.linspace(0.4, 0.1, 21)], 16).reshape(24, 16).astype(np.float32)
    for fold in (1, 2, 3):
        rows = random_predictions(rng, fold, 1.0, 40)
        write_fold(layout, settings(), "daam-v1", fold, 1, rows, density={"trained": maps, "untrained": maps})
    notes = run(layout, settings(k=[2])).notes
    assert notes[1] == (
        "Layers 2 and 3 have the same score, but only the first is in highest-2: ties are broken by layer number."
    )
    assert not any("have the same score" in note for note in run(layout, settings(k=[1])).notes)


def test_numbers_that_the_encoder_has_too_few_layers_for_are_told(layout):
    result = run(layout, settings(k=[1, 13]))
    assert list(result.sets) == ["highest-1", "lowest-1"]
    assert [one.name for one in result.contrasts] == ["highest-1 minus lowest-1"]
    assert result.notes[1] == ("k = 13 is left out: the 13 highest and the 13 lowest of 24 layers overlap (ablate.k).")


def test_without_a_method_that_measures_layers_nothing_is_trained(layout, untrained):
    result = run(layout, settings(["daam-v1", "mha-published"], method=None, presets=["speech-9-23"]))
    assert (result.rank_by, result.method, result.rows, result.contrasts) == ("daam-v1", None, [], [])
    assert result.notes[-1] == (
        "No layers are trained alone: no method of this pipeline without a density fits these groups. Add a method "
        "without a density, such as 'none'."
    )


def test_without_a_ranking_presets_still_run(layout):
    write_method(layout, settings(), "weighted-sum", folds=(1, 2, 3))
    config = settings(rank_by="weighted-sum", presets=["speech-9-23"])
    result = run(layout, config)
    assert list(result.sets) == ["layers-9", "layers-23"]
    assert (result.ranking, [one.name for one in result.contrasts], list(result.tests)) == ([], ["speech-9-23"], [])


def write_ranking(layout, order):
    """Folds of daam-v1 whose map ranks the layers so."""
    scores = np.empty(24)
    scores[np.array(order) - 1] = np.linspace(0.9, 0.1, 24)
    maps = np.repeat(scores, 16).reshape(24, 16).astype(np.float32)
    for fold in (1, 2, 3):
        rows = random_predictions(np.random.default_rng(fold), fold, 1.0, 40)
        write_fold(layout, settings(), "daam-v1", fold, 1, rows, density={"trained": maps, "untrained": maps})


def test_the_closed_form_probe_stands_beside_every_group(layout):
    """Layers 6 to 9 carry the class: the probe of the method's input finds it where two epochs of training do not."""
    write_ranking(layout, [6, 7, 8, 9, *range(10, 25), 1, 2, 3, 4, 5])
    result = run(layout, settings(k=[2], presets=["speech-9-23"]))
    assert result.probe == "ridge-mean"
    means, layers = {}, {"highest-2": [6, 7], "lowest-2": [4, 5], "layers-9": [9], "layers-23": [23]}
    for name, numbers in {"all": list(range(1, 25)), **layers}.items():
        folds = read_folds(layout.stage("ablate") / f"{name}-ridge-mean")
        assert [fold.result["run"]["layers"] for fold in folds] == [numbers] * 3
        items = [items_of(fold.predictions(), "utterance") for fold in folds]
        means[name] = np.array([(part.predictions == part.targets).mean() for part in items])
    assert list(result.probed("all").values()) == pytest.approx(means["all"])
    assert any(caution.startswith("baseline: ") for caution in result.cautions)
    for name in layers:
        assert list(result.probed(name).values()) == pytest.approx(means[name])
    assert means["highest-2"].mean() - means["lowest-2"].mean() > 0.3
    alone = settings(["ridge-mean"], k=[2], method="ridge-mean")
    train = alone.train.model_copy(update={"seeds": (1, 2)})  # of a probe, they are one fit
    result = run(layout, alone.model_copy(update={"train": train}))
    assert result.probe is None
    assert list(result.runs("highest-2").values()) == pytest.approx(means["highest-2"])


@pytest.mark.parametrize(
    ("skills", "marks", "contradicted"),
    [
        # skill of the method on the highest and on the lowest layer, then that of the probe
        ((3.0, 0.8, 3.0, 0.8), ["", ""], "no"),
        ((1.5, 0.8, 3.0, 0.8), ["undertrained", ""], "not judged"),
        ((3.0, -1.0, 3.0, -1.0), ["", ""], "no"),  # the layer tells nothing, to the probe neither
        ((3.0, -1.0, 3.0, 3.0), ["", "learned nothing"], "not judged"),
        ((-1.0, 3.0, 3.0, 0.8), ["learned nothing", ""], "yes"),
    ],
)
def test_groups_are_judged_like_methods(layout, monkeypatch, caplog, skills, marks, contradicted):
    write_ranking(layout, [6, 7, 8, 9, *range(10, 25), 1, 2, 3, 4, 5])
    known = dict(zip(("highest-1", "lowest-1"), zip(skills[:2], skills[2:], strict=True), strict=True))

    def planted(method, features, layers, folder, layout, config, *_args, **_kwargs):
        name = folder.name.removesuffix(f"-{method}")
        skill = known.get(name, (3.0, 3.0))[method == "ridge-mean"]
        place = make_layout(layout.root, f"planted-{name}")
        write_method(place, Config(), method, folds=(1, 2, 3), skill=skill, utterances=200)
        return read_folds(place.method(method))

    monkeypatch.setattr(ablate, "train_on_layers", planted)
    config = settings(k=[1])
    result = run(layout, config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"margin": 0.1})}))
    assert [result.marks[name] for name in result.sets] == marks
    cautions = {caution.partition(":")[0]: caution for caution in result.cautions}
    assert [name in cautions for name in known] == list(map(bool, marks))
    for name, mark in result.marks.items():
        if mark:
            assert cautions[name].startswith(f"{name}: {mark}: ")
            assert cautions[name].endswith(
                "Training, rather than the layers, may explain this figure; ridge-mean reaches "
                f"{100 * mean(result.probed(name)):.1f} % on the same layers."
            )
    assert ("highest-1 minus lowest-1" in cautions) == (contradicted == "yes")
    found, probe = (mean(minus(part("highest-1"), part("lowest-1"))) for part in (result.runs, result.probed))
    if contradicted == "yes":
        assert cautions["highest-1 minus lowest-1"].startswith(
            f"highest-1 minus lowest-1: the ablation finds {100 * found:+.1f} points, the closed-form probe on "
            f"the same layers {100 * probe:+.1f}. They contradict each other by more than either"
        )
    assert set(result.cautions) <= set(caplog.messages)
    again = "daamctl ablate toy"
    part = ablation(result, None, [], labels={}, task=TASKS["speech"], command=again)
    assert [block.text for block in part.blocks if isinstance(block, Text) and block.caution] == result.cautions
    tables = {block.key: block for block in part.blocks if isinstance(block, Table)}
    table = tables["high-low"]
    assert table.columns[-2:] == ["Closed-form probe (points)", "Contradicted?"]
    assert str(table.rows[0][-1]) == contradicted
    named = [f"{name} ({mark})" if mark else name for name, mark in zip(known, marks, strict=True)]
    assert [row[0] for row in tables["few-layers"].rows] == ["baseline", *named]


def test_streamed_embeddings_are_ablated(layout, monkeypatch):
    """Under auto, few layers are taken into memory where all do not fit; asked to stream, they are streamed."""
    nbytes = 72 * 24 * 16 * 2
    monkeypatch.setattr("daamctl.compute.devices.free_memory", lambda: nbytes)
    for way, expected in (("auto", "memory"), ("stream", "stream")):
        config = settings()
        config = config.model_copy(update={"train": config.train.model_copy(update={"features": way})})
        result = run(layout, config)
        assert list(result.sets) == ["highest-1", "lowest-1"]
        folder = layout.stage("ablate")
        for name, taken in (("all-none-mlp", "stream"), ("highest-1-none-mlp", expected)):
            folds = read_folds(folder / name)
            assert [fold.result["meta"]["features"] for fold in folds] == [taken] * 3
        assert folds[0].result["run"]["layers"] == result.ranking[:1]
