"""Stage `ablate`: which groups are trained, what is refused before training, and what is said of the method."""

from __future__ import annotations

import json

import numpy as np
import pytest

from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.stages import ablate
from tests.fixtures.embeddings import write_embeddings
from tests.fixtures.folds import make_layout, write_method


def settings(**ablate_settings):
    methods = {"none-mlp": {"hidden_dim": 8}, "weighted-sum": {"hidden_dim": 8}, "daam-v1-mlp": {"hidden_dim": 8}}
    return Config.model_validate(
        {
            "methods": ["none", "daam-v1"],
            "method_settings": methods,
            "train": {"epochs": 2, "lr": 0.01, "batch_size": 16, "device": "cpu"},
            "ablate": {"k": [1], "method": "none-mlp", **ablate_settings},
        }
    )


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

    monkeypatch.setattr(ablate, "train_all", never)


def test_groups_presets_and_their_tests(layout):
    config = settings(k=[1, 3], presets=["speech-9-23"], layers=[[6], [9]])
    result = json.loads(ablate.run(layout, config, track=False).read_text())
    names = [group["name"] for group in result["groups"]]
    assert names[:4] == ["highest-1", "lowest-1", "highest-3", "lowest-3"]
    assert names[4:] == ["layers-6", "layers-9", "layers-23"]
    assert [group["kind"] for group in result["groups"]][4:] == ["given", "given", "preset"]
    rows = {group["name"]: group["per_fold"] for group in result["groups"]}
    (preset,) = result["presets"]
    assert (preset["name"], preset["high"], preset["low"], preset["n"]) == ("speech-9-23", [9], [23], 3)
    expected = [a["accuracy"] - b["accuracy"] for a, b in zip(rows["layers-9"], rows["layers-23"], strict=True)]
    assert [row["difference"] for row in preset["per_fold"]] == pytest.approx(expected)
    assert [part["k"] for part in result["alone"]] == [1, 3]
    assert result["alone"][0]["high"] == [result["ranking"][0]]
    assert result["embeddings_key"] == "test-0-16"
    assert result["baseline"]["layers"] == list(range(1, 25))


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
    result = json.loads(
        ablate.run(layout, config.model_copy(update={"method_settings": fixed}), track=False).read_text()
    )
    assert result["notes"][1] == (
        "On highest-1, lowest-1 'daam-v1-mlp' weighs nothing: its weight is 1 for every input at the start, and "
        "training can at most make it another constant (D6, D33). These rows measure what follows, not the weighing."
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
    chosen = ablate.choose_groups([3, 7], config.ablate.k, (), features.layers)
    notes = ablate._method_notes(config, features, chosen)
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
    assert error.value.fix == "train it again: daamctl train --pipeline toy --method daam-v1"


def test_ranking_that_is_not_trained(tmp_path, untrained):
    with pytest.raises(ArtifactError, match="layers cannot be ranked: 'daam-v1' is not trained"):
        ablate.run(make_layout(tmp_path), settings(), track=False)


def test_without_a_ranking_presets_still_run(layout):
    config = settings(rank_by="daam-v2", presets=["speech-9-23"])
    result = json.loads(ablate.run(layout, config, track=False).read_text())
    assert [group["name"] for group in result["groups"]] == ["layers-9", "layers-23"]
    assert (result["ranking"], result["differences"], result["alone"]) == ([], [], [])
    means = {group["name"]: np.mean([row["accuracy"] for row in group["per_fold"]]) for group in result["groups"]}
    assert result["presets"][0]["mean"] == pytest.approx(means["layers-9"] - means["layers-23"])


def test_streamed_embeddings_are_ablated(layout, monkeypatch):
    """Under auto, few layers are taken into memory where all do not fit; asked to stream, they are streamed."""
    nbytes = 72 * 24 * 16 * 2
    monkeypatch.setattr("daamctl.artifacts.embeddings.free_memory", lambda: nbytes)
    for way, expected in (("auto", "memory"), ("stream", "stream")):
        config = settings()
        config = config.model_copy(update={"train": config.train.model_copy(update={"features": way, "epochs": 1})})
        result = json.loads(ablate.run(layout, config, track=False).read_text())
        assert [group["name"] for group in result["groups"]] == ["highest-1", "lowest-1"]
        folder = layout.stage("ablate")
        for name, taken in (("all-none-mlp", "stream"), ("highest-1-none-mlp", expected)):
            folds = read_folds(folder / name)
            assert [fold.result["meta"]["features"] for fold in folds] == [taken] * 3
        assert folds[0].result["run"]["layers"] == result["ranking"][:1]
