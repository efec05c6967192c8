"""What two methods differ in: every recorded setting is found, and sorted by whether it can change a figure."""

import pytest

from daamctl.artifacts.comparison import SettingDifference, SettingDifferences
from daamctl.artifacts.results import MetaPart, RunPart, read_folds
from daamctl.config import Config
from daamctl.evaluation.settings_diff import ABSENT, can_change, code_changed, differing, facts, merged
from daamctl.methods import METHODS
from tests.fixtures.folds import make_layout, write_fold, write_method

CONFIG = Config.model_validate({"methods": ["mha"]})
SECTIONS = ("download", "segment", "extract", "train")
SETTINGS = [f"{name}.{key}" for name in SECTIONS for key in CONFIG.section(name)]
HARMLESS = {
    "download.source", "download.check_fingerprint", "download.max_unreadable_fraction", "download.text",
    "segment.write_audio",
    "extract.device", "extract.max_batch_s", "extract.shard_clips", "extract.max_unreadable_fraction",
    "extract.weights_dtype", "extract.min_gpu_memory_gb", "extract.max_batch_tokens", "extract.max_batch_images",
    "extract.name", "extract.image_bytes", "extract.writers",
    "train.recipe", "train.seeds", "train.device", "train.stack", "train.features", "train.density_maps",
    "train.graphs",
}  # fmt: skip
BATCHES = {"size": 8, "order": "clip table", "clips_sha256": "0" * 64}
RECORDS = [
    ("run.num_folds", 10, ["runs.num_folds"]),
    ("run.test_group", "Ses09", ["data.test_groups"]),
    ("run.dev_group", None, ["data.held_out_groups"]),
    ("run.classes", ["a", "b", "c", "d"], ["data.classes"]),
    ("run.layers", [9], ["model.layers"]),
    ("run.embed_dim", 32, ["model.embed_dim"]),
    ("run.num_parameters", 99, ["model.num_parameters"]),
    ("run.reconstructed", "reading A", ["model.reconstructed"]),
    ("run.modality", "text", ["data.modality"]),
    ("run.finetune", True, ["model.fine_tuned"]),
    ("run.eval_batches", BATCHES, ["batches.size", "batches.order", "batches.clips_key"]),
    ("run.config.method.num_heads", 2, ["method.num_heads"]),
    ("meta.daamctl", "0.2.0", ["code.daamctl"]),
    ("meta.versions", {"python": "3.11.9", "torch": "2.12.0"}, ["versions.torch"]),
    ("meta.git_commit", None, ["code.git_commit"]),
    ("meta.device", "cuda (NVIDIA A100)", ["machine.device"]),
    ("meta.precision", "float16", ["machine.precision"]),
    ("meta.embeddings_key", "ffff", ["embeddings_key"]),
    ("meta.vectors_key", "ffff", ["vectors_key"]),
    ("meta.code", {"training": "a", "method": "b"}, ["code.training", "code.method"]),
    ("meta.encoder.revision", "def456", ["encoder.revision"]),
    ("meta.encoder", {"id": "microsoft/wavlm-large", "num_layers": 24}, ["encoder.revision"]),
    ("meta.features", "stream", ["data.streamed"]),
    ("meta.num_train_clips", 301, ["data.train_clips"]),
    ("meta.num_dev_clips", 0, ["data.held_out_clips"]),
]
"""Dotted key of result.json, another value, and the facts that then differ."""


def told(root, *, changes=None, method="mha", seeds=(1,), edit=None):
    layout = make_layout(root)
    write_method(layout, CONFIG, method, changes=changes, seeds=seeds)
    folds = read_folds(layout.method(method))
    predictions = [fold.predictions() for fold in folds]
    return folds, facts(folds, [edit(part) for part in predictions] if edit else predictions)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return told(tmp_path_factory.mktemp("plain"))


def named(difference):
    return {
        "can_change": [row.name for row in difference.can_change],
        "cannot_change": [row.name for row in difference.cannot_change],
    }


def test_the_same_folds_differ_in_nothing(tmp_path, plain):
    assert differing(plain[1], told(tmp_path)[1]) == SettingDifferences([], [])


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_listed_alone_and_in_its_group(tmp_path, plain, name):
    before = plain[1][name]
    found = differing(plain[1], told(tmp_path, changes={f"run.config.{name}": "other"})[1])
    rows = [SettingDifference(name, before, "other")]
    assert (found.can_change, found.cannot_change) == (([], rows) if name in HARMLESS else (rows, []))


def test_harmless_settings_exist():
    assert set(SETTINGS) >= HARMLESS


def test_settings_of_fine_tuning_that_cannot_change_a_figure():
    free = {name for name in CONFIG.section("finetune") if not can_change(f"finetune.{name}")}
    assert free == {"device", "gradient_checkpointing", "seeds"}


@pytest.mark.parametrize(("change", "value", "names"), RECORDS)
def test_every_other_record_is_listed(tmp_path, plain, change, value, names):
    found = named(differing(plain[1], told(tmp_path, changes={change: value})[1]))
    assert found == {"can_change": names, "cannot_change": []}


@pytest.mark.parametrize(
    ("shared", "change", "value", "name"),
    [
        ({"meta.code": {"training": "a", "method": "b"}}, "meta.git_commit", "other", "code.git_commit"),
        ({"meta.code": {"training": "a", "method": "b"}}, "meta.daamctl", "0.2.0", "code.daamctl"),
        ({"meta.vectors_key": "v"}, "meta.embeddings_key", "ffff", "embeddings_key"),
        ({"meta.vectors_key": "v"}, "meta.encoder.revision", "def456", "encoder.revision"),
        ({"meta.vectors_key": "v"}, "run.config.segment.tail", "drop", "segment.tail"),
        ({"meta.vectors_key": "v"}, "run.config.download.num_groups", 7, "download.num_groups"),
        ({}, "run.key", "other", "code.content_key"),
        ({}, "meta.versions.mlflow", "9", "versions.mlflow"),
        ({}, "meta.versions.transformers", "9", "versions.transformers"),
    ],
)
def test_what_cannot_matter_does_not_count(tmp_path, shared, change, value, name):
    one = told(tmp_path / "a", changes=shared)[1]
    other = told(tmp_path / "b", changes={**shared, change: value})[1]
    assert named(differing(one, other)) == {"can_change": [], "cannot_change": [name]}


def test_a_library_of_encoders_counts_in_fine_tuning(tmp_path):
    one = told(tmp_path / "a", changes={"run.finetune": True})[1]
    other = told(tmp_path / "b", changes={"run.finetune": True, "meta.versions.peft": "9"})[1]
    assert named(differing(one, other))["can_change"] == ["versions.peft"]


def test_other_methods_have_other_code(tmp_path):
    one = told(tmp_path / "a", changes={"meta.code": {"training": "a", "method": "b"}})[1]
    other = told(tmp_path / "b", method="gqa", changes={"meta.code": {"training": "a", "method": "c"}})[1]
    names = named(differing(one, other))["can_change"]
    assert "method" in names
    assert "code.method" not in names


def test_nothing_recorded_is_forgotten():
    """A field added to result.json must be compared, or be named here as no setting."""
    covered = {change.split(".")[1] for change, _, _ in RECORDS}
    elsewhere = {"pipeline", "fold", "seed", "key"}  # the name of a side; facts of all folds
    refused = {"method", "num_test_clips"}  # a fold that contradicts its folder or its predictions is not read
    measured = {"bfloat16_speed", "date", "train_s", "joules", "peak_memory_bytes", "effect", "notes"}
    # from the way of fine-tuning, from the memory at hand, from what else was to be trained, from the encoder's weights
    follows = {"adapted", "micro_batch", "together", "evaluation_precision"}
    assert covered | elsewhere | refused | measured | follows == {*RunPart.__annotations__, *MetaPart.__annotations__}


def test_seeds_and_folds_count(tmp_path, plain):
    found = differing(plain[1], told(tmp_path, seeds=(1, 2))[1]).can_change
    assert SettingDifference("runs.seeds", [1], [1, 2]) in found


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("label", ["data.test_utterances_key", "data.test_clips_key"]),
        ("speaker", ["data.test_utterances_key", "data.test_clips_key"]),
        ("clip_id", ["data.test_clips_key"]),
        ("utterance_id", ["data.test_utterances_key", "data.test_clips_key"]),
    ],
)
def test_test_items_are_compared_by_content(tmp_path, plain, column, names):
    found = named(differing(plain[1], told(tmp_path, edit=lambda part: part.with_columns(part[column] + "x"))[1]))
    assert found["can_change"] == names


def test_a_default_written_out_is_no_difference(tmp_path, plain):
    default = METHODS.defaults("mha")["num_heads"]
    changed = {"run.config.method.num_heads": default}
    assert plain[1]["method.num_heads"] == default
    assert differing(plain[1], told(tmp_path, changes=changed)[1]) == SettingDifferences([], [])


def test_settings_of_a_variant_and_of_a_method_that_is_gone(tmp_path):
    assert told(tmp_path / "a", method="mha-mlp")[1]["method.decoder"] == "mlp"
    gone = told(tmp_path / "b", method="gone")[1]
    assert [name for name in gone if name.startswith("method")] == ["method", "method.name"]


def test_what_only_one_side_has_is_shown_as_absent(plain):
    found = differing({**plain[1], "encoder.new": None}, plain[1]).can_change
    assert found == [SettingDifference("encoder.new", None, ABSENT)]


def test_folds_that_disagree_show_all_they_say(tmp_path):
    layout = make_layout(tmp_path)
    write_method(layout, CONFIG, "mha")
    rows = read_folds(layout.method("mha"))[4].predictions()
    write_fold(layout, CONFIG, "mha", 5, 1, rows, changes={"meta.device": "cuda"})
    folds = read_folds(layout.method("mha"))
    assert facts(folds, [fold.predictions() for fold in folds])["machine.device"] == ["cpu", "cuda"]


def test_merged_names_each_difference_once():
    row = SettingDifference
    parts = {
        "a": SettingDifferences([row("train.lr", 1, 2), row("method.k", 1, 2)], []),
        "b": SettingDifferences([row("train.lr", 1, 2), row("method.k", 1, 3)], [row("methods", 1, 2)]),
    }
    assert merged(parts) == SettingDifferences(
        [row("train.lr", 1, 2), row("method.k", 1, 2, ["a"]), row("method.k", 1, 3, ["b"])],
        [row("methods", 1, 2, ["b"])],
    )


def test_what_is_read_after_training_cannot_change_a_figure():
    assert not can_change("report.title")
    assert not can_change("methods")
    assert can_change("method.num_heads")
    assert can_change("something.new")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"run.key": "other"}, True),
        ({"run.key": "other", "run.config.train.seeds": [1, 2]}, True),
        ({"run.key": "other", "run.config.train.lr": 1.0}, False),
        ({"run.key": "other", "meta.embeddings_key": "ffff"}, False),
        ({"run.key": "other", "run.layers": [9]}, False),
        ({"run.key": "other", "run.config.method.num_heads": 2}, False),
    ],
)
def test_a_key_that_differs_alone_betrays_changed_code(tmp_path, plain, changes, expected):
    assert code_changed(plain[0], told(tmp_path, changes=changes)[0]) is expected
