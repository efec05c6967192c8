"""Folds of fusions: whole files, keys, resuming, features from disk, and the number format of a run."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_fold, read_folds
from daamctl.artifacts.splits import split_of
from daamctl.compute import devices
from daamctl.compute.cpu_formats import CpuFormats
from daamctl.config import Config
from daamctl.errors import ArtifactError, ConfigError, MethodError, TrainingError
from daamctl.fit import features as features_module
from daamctl.fit.features import Features, InMemorySplit, StreamedSplit, fit_standardize, load_features
from daamctl.fit.graphs import obstacle
from daamctl.fit.runner import kept_fold, summary_line, train_fold
from daamctl.fit.stack import SingleModel
from daamctl.fit.trial import FoldSpec, FusionTrial, run_precision, stackable
from daamctl.methods import WeightsMetadata, build, load_weights, read_metadata
from daamctl.planning.repair import repair_of
from daamctl.stages import evaluate, train
from daamctl.store.files import read_json
from tests.fixtures.added import SOURCE, install
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.resume import Killed, kill_when, records


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    return load_features(Layout(project, "test", "test", "test"), config())


def make(features: Features, /, root: Path, name: str = "a", *, method: str = "daam-v1", **train: Any) -> Fold:
    spec = FoldSpec("test", method, 2, 1, config(**train))
    return train_fold(FusionTrial(spec, features), root / name / method, root / "work" / name, root=root)


def values(fold: Fold) -> dict[str, Any]:
    """All that must repeat: everything but the wall time."""
    weights = load_file(fold.folder / "weights.safetensors")
    return {
        "metrics": fold.result["metrics"],
        "history": fold.history().to_dicts(),
        "logits": fold.predictions()["logits"].to_list(),
        "weights": {name: value.tolist() for name, value in weights.items()},
        "density": {name: value.tolist() for name, value in (fold.density() or {}).items()},
    }


def test_fold_is_whole_and_honest(features: Features, project: Path) -> None:
    fold = make(features, project, epochs=4)
    run, metrics = fold.result["run"], fold.result["metrics"]
    assert (run["test_group"], run["dev_group"], run["num_folds"]) == ("group2", "group3", 5)
    assert run["num_parameters"] == 8 * 2 * 16 + 2 * 24 * 512 * 9 + 512 + 24 + 24 * 16 * 4 + 4
    history, predictions = fold.history(), fold.predictions()
    assert set(predictions["group"]) == {"group2"}
    assert len(history) == metrics["epochs"] == 4
    scores = list(zip(history["dev_accuracy"], -history["dev_loss"], strict=True))
    best_dev = scores.index(max(scores))
    assert metrics["selected_epoch"] == best_dev + 1  # of equals in accuracy the one with the lower loss
    assert metrics["accuracy"] == history["test_accuracy"][best_dev]
    assert metrics["accuracy_best_on_test"] == history["test_accuracy"].max()
    assert metrics["accuracy_last"] == history["test_accuracy"][-1]
    predicted = predictions["logits"].list.arg_max()
    assert (predicted == predictions["target"]).mean() == pytest.approx(metrics["accuracy"])
    assert metrics["accuracy_last"] > 0.5  # chance is 0.25
    density = fold.density()
    assert density is not None
    assert density["trained"].shape == density["untrained"].shape == (24, 16)
    assert (density["trained"] != density["untrained"]).any()
    assert json.loads((fold.folder / "result.json").read_text())["meta"]["embeddings_key"] == features.head.key


@pytest.mark.parametrize("method", ["daam-v1-mlp", "daam-frozen", "gqdaam-mlp", "mixture-daam-mlp"])
def test_an_encoder_of_twelve_layers_needs_no_setting(features: Features, project: Path, method: str) -> None:
    fold = make(features.subset(features.layers[:12]), project, method=method, epochs=2)
    assert fold.result["run"]["config"]["method"].get("num_heads") is None
    loaded = load_weights(fold.folder / "weights.safetensors")
    assert loaded(torch.zeros(2, 12, 16)).shape == (2, 4)
    density = fold.density()
    assert density is not None
    assert float(density["trained"].std()) > 0


ENCODER_FACTS = {
    "name": "wavlm-large",
    "modality": "speech",
    "source": "microsoft/wavlm-large",
    "revision": "c1423ed9",
    "weights_sha256": "5eed" * 16,
    "weights_dtype": "float32",
    "model_type": "wavlm",
    "transformers": "5.0",
    "num_layers": 24,
    "final_norm": True,
    "precision": "bfloat16",
    "storage": "float16",
    "pooling": "valid-frames",
    "normalize": True,
    "sampling_rate": 16000,
}
"""As `open_encoder` gives them for speech."""
ENCODER_FIELDS = (
    "name", "source", "revision", "weights_sha256", "weights_dtype", "model_type", "transformers", "num_layers",
)  # fmt: skip
"""Those that say which encoder it is; the others say how it was used."""


def test_weights_say_all_that_using_them_takes(features: Features, project: Path) -> None:
    features = replace(features, head=replace(features.head, encoder=ENCODER_FACTS))
    own = config(standardize="layer").model_copy(update={"method_settings": {"daam-v1": {"num_heads": 2}}})
    spec = FoldSpec("test", "daam-v1-mlp", 2, 1, own)
    fold = train_fold(FusionTrial(spec, features.subset((6, 7, 8, 9))), project / "a", project / "work", root=project)
    path = fold.folder / "weights.safetensors"
    moved = path.rename(project / "alone.safetensors")
    extract = features.head.settings["extract"]
    assert extract["encoder"] == "wavlm-micro"
    assert extract["weights"] == "pretrained"
    assert read_metadata(moved) == WeightsMetadata(
        schema=1,
        kind="fusion",
        method="daam-v1-mlp",
        settings={"num_heads": 2, "decoder": "mlp"},
        num_layers=4,
        embed_dim=16,
        num_classes=4,
        classes=("anger", "happiness", "neutral", "sadness"),
        layers=(6, 7, 8, 9),
        modality="speech",
        encoder={name: ENCODER_FACTS[name] for name in ENCODER_FIELDS},
        pooling={"pooling": "valid-frames", "final_norm": True},
        inputs={"sampling_rate": 16000, "normalize": True},
        precision="bfloat16",
        storage="float16",
        made_with={"segment": {"max_duration_s": 5.0, "tail": "merge", "tail_below_s": 0.5}, "extract": extract},
        standardize="layer",
        head_parameters=None,
        fold={"key": fold.result["run"]["key"], "method": "daam-v1-mlp", "fold": 2, "seed": 1},
    )
    model, predictions = load_weights(moved), fold.predictions()
    rows = torch.from_numpy((features.clips["group"] == "group2").to_numpy())
    with torch.no_grad():
        found = model(features.subset((6, 7, 8, 9)).x[rows].float())
    torch.testing.assert_close(found, torch.tensor(predictions["logits"].to_list()), atol=1e-5, rtol=1e-4)
    with safe_open(moved, framework="np") as file:
        assert list(file.metadata()) == ["daamctl"]  # several would stand in random order


STREAM = {"features": "stream"}


def streamed(project: Path, **train: Any) -> Features:
    """The same set, left on disk."""
    return load_features(Layout(project, "test", "test", "test"), config(**STREAM, **train))


@pytest.mark.parametrize("method", ["weighted-sum", "best-layer"])
def test_streamed_training_learns_as_much(features: Features, project: Path, method: str) -> None:
    """In two folds; both orders of batches are random, so only accuracies are near."""
    found = {}
    for name, data, extra in (("memory", features, {}), ("stream", streamed(project), STREAM)):
        spec = config(epochs=6, **extra)
        folds = [
            train_fold(
                FusionTrial(FoldSpec("t", method, k, 1, spec), data), project / name, project / "w", root=project
            )
            for k in (1, 2)
        ]
        assert {fold.result["meta"]["features"] for fold in folds} == {name}
        found[name] = sum(fold.result["metrics"]["accuracy"] for fold in folds) / 2
    assert found["memory"] == pytest.approx(found["stream"], abs=0.1)
    assert found["stream"] > 0.6


def test_streamed_training_repeats_and_has_its_own_key(features: Features, project: Path) -> None:
    data = streamed(project)
    first, second = make(data, project, "a", **STREAM), make(data, project, "b", **STREAM)
    assert values(first) == values(second)
    memory = make(features, project, "c")
    assert values(memory)["history"] != values(first)["history"]
    assert memory.result["run"]["key"] != first.result["run"]["key"]
    assert first.predictions()["clip_id"].to_list() == memory.predictions()["clip_id"].to_list()
    assert first.predictions()["target"].to_list() == memory.predictions()["target"].to_list()


def test_shards_of_another_size_make_another_streamed_fold(tmp_path: Path) -> None:
    keys = []
    for shards in (1, 2, 5):
        root = tmp_path / str(shards)
        write_embeddings(root / "data/extract/test", config(), shards=shards)
        for data in (streamed(root), load_features(Layout(root, "test", "test", "test"), config())):
            trial = FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config()), data)
            keys.append((shards, trial.key_when(stream=False), trial.key_when(stream=True)))
    assert [len(set(part)) for part in zip(*keys, strict=True)] == [3, 1, 3]
    plain = replace(data, shard_clips=None)  # as of older folds, with shards of the usual size
    assert FusionTrial(trial.spec, plain).key_when(stream=True) == keys[0][2]


def test_streamed_untrained_maps_are_those_of_memory(features: Features, project: Path) -> None:
    """What does not depend on the order of batches has the same bits."""
    found = [make(data, project, str(n), epochs=1).density() for n, data in enumerate((features, streamed(project)))]
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0]["untrained"] == found[1]["untrained"]).all()


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_evaluated_parts_on_disk_give_the_same_wherever_they_are(
    project: Path, features: Features, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    data = streamed(project)
    expected = values(make(data, project, "a", method="best-layer", **STREAM))
    monkeypatch.setattr(features_module, "HELD_SHARE", share)
    train, dev, test = data.parts(split_of(data.clips, 2, config().train), "cpu")
    kind = InMemorySplit if share else StreamedSplit
    assert (type(train), type(dev), type(test)) == (StreamedSplit, kind, kind)
    assert values(make(data, project, "b", method="best-layer", **STREAM)) == expected


def test_what_is_held_is_shared_by_all_parts(features: Features) -> None:
    for part in features.parts(split_of(features.clips, 2, config().train), "cpu"):
        assert isinstance(part, InMemorySplit)
        assert part.x is features.x


def test_a_part_in_main_memory_is_pinned_for_a_gpu_alone(features: Features) -> None:
    rows = np.arange(4)
    pinned = {device: features.part(rows, device).pin for device in ("cpu", "mps", "cuda", "cuda:1")}
    assert pinned == {"cpu": False, "mps": False, "cuda": True, "cuda:1": True}


def test_either_way_is_kept_under_auto(features: Features, project: Path) -> None:
    data = streamed(project)
    folder = make(data, project, **STREAM).folder.parent

    def kept(found: Features, **train: Any) -> bool:
        return kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config(**train)), found)) is not None

    assert kept(data, **STREAM)
    assert kept(features)  # auto
    assert not kept(features, features="memory")
    assert not kept(data.subset((3, 4)), **STREAM)


def test_subset_of_layers_on_disk(features: Features, project: Path) -> None:
    few, expected = streamed(project).subset((9, 3)), features.subset((9, 3))
    assert few.layers == (9, 3)
    assert few.stream
    assert (few.x.load() == expected.x.numpy()).all()
    first, second = make(few, project, "a", method="none", **STREAM), make(expected, project, "b", method="none")
    assert first.result["run"]["layers"] == second.result["run"]["layers"] == [9, 3]


def test_same_seed_same_numbers_other_seed_other_numbers(features: Features, project: Path) -> None:
    first, second = values(make(features, project, "a")), values(make(features, project, "b"))
    assert first == second
    spec = FoldSpec("test", "daam-v1", 2, 2, config())
    other = train_fold(FusionTrial(spec, features), project / "c", project / "work", root=project)
    assert values(other)["logits"] != first["logits"]


BUDGET = {"steps": 20, "search": "grid", "search_lr": (1e-3,), "refit": True}


@pytest.mark.parametrize(
    ("method", "way", "budget"),
    [
        ("daam-v1", "memory", {"epochs": 5}),
        ("weighted-sum", "stream", {"epochs": 5}),
        ("weighted-sum", "memory", BUDGET),
        ("weighted-sum", "stream", BUDGET),
    ],
)
def test_interrupted_training_resumes_to_the_same_result(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch, method: str, way: str, budget: dict[str, Any]
) -> None:
    given = {"features": way, "search_weight_decay": (0.0, 1.0), "stack": "never", **budget}
    features = streamed(project) if way == "stream" else features
    whole = values(make(features, project, "whole", method=method, **given))
    with monkeypatch.context() as context:
        kill_when(context, lambda state: len(records(state)) == 3)
        with pytest.raises(Killed):
            make(features, project, "cut", method=method, **given)
    assert not (project / "cut" / method).exists()
    seen: list[int] = []
    step = SingleModel.step
    monkeypatch.setattr(SingleModel, "step", lambda *words: (seen.append(1), step(*words))[1])
    assert values(make(features, project, "cut", method=method, **given)) == whole
    assert 0 < len(seen) < (3 * 20 if "steps" in budget else 25)
    assert list((project / "work").glob("**/state.pt")) == []


def test_resume_file_of_other_settings_is_ignored(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        kill_when(context, lambda state: len(records(state)) == 2)
        with pytest.raises(Killed):
            make(features, project, "m", method="none")
    assert list((project / "work/m").glob("*/state.pt"))
    fresh = make(features, project, "fresh", method="none", lr=3e-3)
    assert values(make(features, project, "m", method="none", lr=3e-3)) == values(fresh)


@pytest.mark.parametrize("kind", ["layer", "feature", "whiten"])
@pytest.mark.parametrize("again", [False, True])
def test_standardised_by_the_training_part_alone(features: Features, project: Path, kind: str, again: bool) -> None:
    """With a refit, the held-out group is part of it."""
    fold = make(features, project, method="daam-v2-mlp", standardize=kind, steps=3, refit=again)
    held = load_file(fold.folder / "weights.safetensors")
    left_out = ["group2"] if again else ["group2", "group3"]
    groups = features.clips["group"].to_numpy()
    part = features.x[torch.from_numpy(~np.isin(groups, left_out))].double()
    axes = (0, 2) if kind == "layer" else (0,)
    torch.testing.assert_close(held["standardize.mean"], part.mean(axes).view(24, -1).float())
    if kind == "whiten":
        expected = fit_standardize(InMemorySplit(part.half(), torch.zeros(len(part))), kind, "cpu").state_dict()
        torch.testing.assert_close({name: held[f"standardize.{name}"] for name in expected}, expected)
        return
    deviation = part.std(axes, correction=0).view(24, -1).float()
    torch.testing.assert_close(1 / held["standardize.scale"], deviation)


@pytest.mark.parametrize("again", [False, True])
def test_auto_whitens_collinear_features(features: Features, project: Path, again: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    clips, layers, dim = features.x.shape
    one = torch.randn(clips, layers, 1, generator=draw) * torch.randn(layers, dim, generator=draw)
    for x, kind in ((torch.randn(clips, layers, dim, generator=draw), "feature"), (one, "whiten")):
        data = replace(features, x=x.half())
        fold = make(data, project, kind, method="weighted-sum", standardize="auto", steps=3, refit=again)
        assert read_metadata(fold.folder / "weights.safetensors").standardize == kind


def test_a_budget_with_search_and_refit_is_written(features: Features, project: Path) -> None:
    given = {"steps": 25, "search": "grid", "search_lr": (1e-3, 1e-2), "search_weight_decay": (), "refit": True}
    fold = make(features, project, method="weighted-sum", **given)
    metrics, history, search = fold.result["metrics"], fold.history(), fold.result["search"]
    assert (metrics["selected_epoch"], metrics["epochs"]) == (None, None)
    assert metrics["accuracy"] == metrics["accuracy_last"] == history["test_accuracy"][-1]
    assert history["step"].to_list() == [2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    assert history["epoch"].null_count() == 10
    assert search["steps"] == 25
    chosen = search["candidates"][search["chosen"]]
    assert metrics["dev_accuracy"] == chosen["dev_accuracy"][-1]
    assert history["dev_loss"].to_list() == chosen["dev_loss"]
    assert (metrics["collapsed"], metrics["replaced_refits"]) == (0, 0)


def test_finished_fold_is_kept_only_for_identical_inputs(features: Features, project: Path) -> None:
    fold = make(features, project)
    folder = fold.folder.parent
    assert kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config()), features)) is not None
    assert (
        kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config(device="auto")), features)) is not None
    )
    assert kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config(lr=2e-3)), features)) is None
    changed = Config.model_validate({**config().model_dump(), "method_settings": {"daam-v1": {"num_heads": 4}}})
    assert kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, changed), features)) is None
    elsewhere = Config.model_validate({**config().model_dump(), "method_settings": {"mha": {"num_heads": 4}}})
    assert kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, elsewhere), features)) is not None
    assert kept_fold(folder, FusionTrial(FoldSpec("test", "daam-v1", 2, 1, config()), features.subset((3, 4)))) is None


@pytest.mark.parametrize(
    ("selection", "dev", "column"), [("best-on-test", None, "test_accuracy"), ("last", None, None)]
)
def test_other_selections(
    features: Features, project: Path, selection: str, dev: str | None, column: str | None
) -> None:
    fold = make(features, project, method="none", selection=selection, epochs=3)
    metrics = fold.result["metrics"]
    assert fold.result["run"]["dev_group"] is dev
    assert metrics["dev_accuracy"] is None
    assert fold.result["meta"]["num_train_clips"] == 96  # four of five groups
    if column is None:
        assert metrics["selected_epoch"] == 3
    else:
        assert metrics["accuracy"] == metrics["accuracy_best_on_test"] == fold.history()[column].max()


def test_infinite_loss_stops_with_advice(features: Features, project: Path) -> None:
    features.x[0] = float("inf")
    with pytest.raises(TrainingError, match=r"training loss is nan in epoch 1\n  lower train.lr"):
        make(features, project)


def test_damaged_fold_is_named(features: Features, project: Path) -> None:
    fold = make(features, project, method="none", epochs=1)
    (fold.folder / "result.json").write_text("{")
    with pytest.raises(ArtifactError, match="is not valid JSON"):
        read_fold(fold.folder)
    assert (
        kept_fold(fold.folder.parent, FusionTrial(FoldSpec("test", "none", 2, 1, config(epochs=1)), features)) is None
    )


def test_other_embedding_settings_are_refused(project: Path) -> None:
    made = config()
    write_embeddings(project / "data/extract/test", made)
    wanted = Config.model_validate(
        {**made.model_dump(), "extract": {"pooling": "all-frames"}, "segment": {"tail": "keep"}}
    )
    with pytest.raises(
        ArtifactError,
        match=r"extract.pooling: made with 'valid-frames', asked for 'all-frames'",
    ) as error:
        load_features(Layout(project, "test", "test", "test"), wanted)
    assert error.value.path == project / "data/extract/test"


def test_missing_embeddings_name_the_command(project: Path) -> None:
    with pytest.raises(ArtifactError, match="no embeddings in") as error:
        load_features(Layout(project, "test", "test", "test"), config())
    assert repair_of(error.value.path, Layout(project, "test", "test", "test")) == "make it: daamctl extract test"


def test_history_columns_are_typed(features: Features, project: Path) -> None:
    history = make(features, project, method="none", selection="last").history()
    assert history.schema["dev_accuracy"] == pl.Float64
    assert history["dev_accuracy"].null_count() == 3


def test_batch_dependent_method_records_its_batches_and_warns(
    features: Features, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fold = make(features, project, method="mha-published", batch_size=7)
    table = fold.predictions()
    assert table["batch"].to_list() == [i // 7 for i in range(len(table))]
    order = "\n".join(features.clips.filter(pl.col("group") == "group2")["clip_id"].to_list())
    assert fold.result["run"]["eval_batches"] == {
        "size": 7,
        "order": "clip table",
        "clips_sha256": hashlib.sha256(order.encode()).hexdigest(),
    }
    assert "a prediction depends on the other clips of its batch (D1)" in caplog.text
    model = load_weights(fold.folder / "weights.safetensors").eval()
    x = features.x[torch.from_numpy((features.clips["group"] == "group2").to_numpy())].float()
    with torch.no_grad():
        expected = torch.cat([model(rows) for rows in x.split(7)])
    torch.testing.assert_close(torch.tensor(table["logits"].to_list()), expected, atol=1e-5, rtol=1e-4)


def test_other_methods_record_no_batches(features: Features, project: Path) -> None:
    fold = make(features, project, method="none")
    assert fold.result["run"]["eval_batches"] is None
    assert "batch" not in fold.predictions().columns


def test_best_layer_says_which_and_needs_a_held_out_group(features: Features, project: Path) -> None:
    fold = make(features, project, method="best-layer", epochs=6)
    assert fold.result["metrics"]["chosen_layer"] in range(6, 10)  # the class is in layers 6 to 9
    with pytest.raises(MethodError, match=r"best-layer: part of it is chosen on a held-out group") as caught:
        make(features, project, "b", method="best-layer", selection="last")
    assert "--set train.selection=dev-group" in str(caught.value)


def test_variant_with_the_other_decoder_takes_the_settings_of_its_method(features: Features, project: Path) -> None:
    settings = config().model_copy(update={"method_settings": {"daam-v1": {"num_heads": 4}}})
    spec = FoldSpec("test", "daam-v1-mlp", 1, 1, settings)
    assert FusionTrial(spec, features).settings == {"num_heads": 4, "decoder": "mlp"}
    fold = train_fold(FusionTrial(spec, features), project / "daam-v1-mlp", project / "work", root=project)
    assert fold.result["run"]["num_parameters"] == 2 * 4 * 16 + 16 * 256 + 256 + 256 * 4 + 4
    assert fold.label == "daam-v1-mlp"


def test_a_method_of_another_package_is_trained_as_others(
    features: Features, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch)
    fold = make(features, project, method="peak", epochs=1)
    meta = fold.result["meta"]
    assert meta["versions"]["my-fusions"] == "0.1"
    assert meta["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert "my-fusions" not in make(features, project, method="mean", epochs=1).result["meta"]["versions"]
    # what its modules do when they are recorded, or stacked, nobody knows
    model = build("peak", num_layers=3, embed_dim=4, num_classes=2)
    assert obstacle(model, "cuda", held=True) == "another package defines a part of it"
    assert not stackable(model)
    # its code is part of the key, with what it imports of the other methods
    install(tmp_path / "site", monkeypatch, source=SOURCE.replace("x.amax(-2)", "x.amin(-2)"))
    again = make(features, project, method="peak", epochs=1)
    assert again.result["meta"]["code"]["method"] != meta["code"]["method"]
    assert again.result["run"]["key"] != fold.result["run"]["key"]


def test_code_of_a_method_covers_the_modules_beside_it(
    features: Features, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for block in ("x.amax(-2)", "x.amin(-2)"):
        install(tmp_path / "site", monkeypatch, source=f"from my_blocks import highest\n{SOURCE}")
        (tmp_path / "site/my_blocks.py").write_text(f"def highest(x):\n    return {block}\n")
        found.append(FusionTrial(FoldSpec("test", "peak", 2, 1, config()), features).code["method"])
    assert found[0] != found[1]


def test_reconstructed_methods_are_labelled(features: Features, project: Path) -> None:
    fold = make(features, project, method="sga")
    assert fold.label == "sga (reconstructed)"
    assert fold.result["run"]["reconstructed"] == "reading A, scalar"
    assert summary_line(fold).startswith("sga (reconstructed) fold 2/5")


@pytest.mark.parametrize(
    ("method", "native", "expected"),
    [("none", True, "bfloat16"), ("none", False, "float32"), ("none-mlp", True, "float32")],
)
def test_auto_precision_on_a_cpu_is_for_convolutions(
    features: Features, project: Path, monkeypatch: pytest.MonkeyPatch, method: str, native: bool, expected: str
) -> None:
    monkeypatch.setattr(devices, "cpu_formats", lambda: CpuFormats(convolutions="bfloat16" if native else "float32"))
    found = make(features, project, method=method, epochs=1)
    assert found.result["meta"]["precision"] == expected


METHODS = ("ridge-mean", "none-mlp", "none", "mha-mlp")


@pytest.fixture
def layout(project: Path) -> Layout:
    write_embeddings(project / "data/extract/test", config())
    return Layout(project, "test", "test", "test")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A CPU that is faster in bfloat16."""
    on(monkeypatch, "bfloat16")
    return monkeypatch


def on(machine: pytest.MonkeyPatch, convolutions: str) -> None:
    """Go on with a CPU whose convolutions are fastest in this format."""
    machine.setattr(devices, "cpu_formats", lambda: CpuFormats(convolutions=convolutions))


def settings(*methods: str, **options: str) -> Config:
    return config(epochs=1, **options).model_copy(update={"methods": methods or METHODS})


def found(layout: Layout | None, method: str, own: Config, device: str = "cpu") -> str:
    return run_precision(FoldSpec("test", method, 1, 1, own, layout), "train", device)


def test_methods_trained_on_different_machines_have_one_format(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    """The report used to warn about the mix that `auto` had made."""
    own = settings()
    for method, here in zip(METHODS, ("bfloat16", "bfloat16", "float32", "float32"), strict=True):
        on(machine, here)
        train.run(layout, own, method=method, track=False)
        if here == "float32":  # a clone lacks the note; the finished folds are there
            shutil.rmtree(layout.work)
    formats = {fold.result["meta"]["precision"] for name in METHODS[1:] for fold in read_folds(layout.method(name))}
    assert formats == {"bfloat16"}
    assert not any("precision" in note for note in read_json(evaluate.run(layout, own))["notes"])


def test_the_methods_of_the_run_decide_on_a_cpu(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(None, "none-mlp", settings()) == "float32"  # belongs to no run
    assert found(layout, "none-mlp", settings("none-mlp", "mha-mlp")) == "float32"
    shutil.rmtree(layout.work)
    assert found(layout, "none-mlp", settings("none-mlp", "none")) == "bfloat16"
    assert found(layout, "none-mlp", settings("none-mlp", "mha-mlp")) == "bfloat16"  # settled
    shutil.rmtree(layout.work)
    by_settings = settings("mha-mlp", "weighted-sum").model_copy(
        update={"method_settings": {"weighted-sum": {"decoder": "conv"}}}
    )
    assert found(layout, "mha-mlp", by_settings) == "bfloat16"


def test_a_gpu_goes_on_as_a_cpu_began_and_says_so(
    layout: Layout, machine: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    on(machine, "float32")
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: True)
    assert found(layout, "none", settings()) == "float32"
    assert found(None, "none", settings(), "cuda") == "bfloat16"
    assert caplog.messages == []
    assert found(layout, "none", settings(), "cuda") == "float32"
    assert caplog.messages == ["trained in float32, as other folds of 'test'; alone, 'auto' means bfloat16 here"]


def test_a_setting_is_neither_noted_nor_overruled(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(layout, "none", settings(precision="float32")) == "float32"
    assert not layout.work.exists()
    assert found(layout, "none", settings()) == "bfloat16"
    assert found(layout, "none", settings(precision="float32")) == "float32"
    assert found(layout, "none", settings(precision="published")) == "float32"


def test_float16_of_a_gpu_is_refused_on_a_cpu(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    assert found(layout, "none", settings(), "cuda") == "float16"
    with pytest.raises(ConfigError, match=r"trained in float16, which needs a GPU\n  train on a GPU, or .*=float32$"):
        found(layout, "none", settings())


def test_fine_tuning_has_a_format_of_its_own(layout: Layout, machine: pytest.MonkeyPatch) -> None:
    assert found(layout, "none", settings()) == "bfloat16"
    spec = FoldSpec("test", "lora-r8", 1, 1, settings(), layout)
    assert run_precision(spec, "finetune", "cpu") == "float32"
    machine.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: True)
    assert run_precision(spec, "finetune", "cuda") == "float32"
