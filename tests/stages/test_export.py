"""Exporting a trained method: what the folder holds, what is refused, and that it predicts as training did."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_fold
from daamctl.config import ExtractConfig, load_config
from daamctl.encoders.licence import RANDOM
from daamctl.encoders.load import open_encoder
from daamctl.encoders.save import save_cut_encoder
from daamctl.errors import ArtifactError, ConfigError, EncoderError, MethodError, UnknownNameError
from daamctl.evaluation.conformal import smallest_probabilities
from daamctl.evaluation.scoring import items_of
from daamctl.extraction.items import open_items
from daamctl.extraction.stream import embed_clips
from daamctl.fit.features import load_features
from daamctl.fit.runner import train_fold
from daamctl.fit.trial import FoldSpec, FusionTrial
from daamctl.methods import METHODS, load_weights
from daamctl.models.card import card_of
from daamctl.models.folder import read_model
from daamctl.models.model import ExportedModel, open_for
from daamctl.planning.repair import repair_of
from daamctl.stages import download, evaluate, extract, segment, train
from daamctl.store.files import sha256_file
from daamctl.store.records import write_record
from tests.fixtures.exported import export_model, in_project, shared_project


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_project(tmp_path_factory)


def test_the_mean_of_all_folds(trained: Path) -> None:
    folder = export_model(trained, "mean")
    record = read_model(folder)
    assert [(one.file, one.fold, one.test_group) for one in record.members] == [
        ("fold-1.safetensors", 1, "g0"), ("fold-2.safetensors", 2, "g1"), ("fold-3.safetensors", 3, "g2"),
    ]  # fmt: skip
    assert record.kind == "mean"
    assert record.classes == ["high", "low"]
    assert record.segment["max_duration_s"] == 0.25
    assert record.encoder["weights_sha256"] == ExportedModel.open(folder).record.encoder["weights_sha256"]
    for member in record.members:
        fold = read_fold(trained / f"data/train/tiny/weighted-sum/fold{member.fold}-seed1")
        assert sha256_file(folder / member.file) == fold.result["files"]["weights.safetensors"]
    assert {path.name for path in folder.iterdir()} == {
        "model.json",
        "README.md",
        "MLmodel",
        *(m.file for m in record.members),
    }


def test_prediction_sets_are_calibrated_on_speakers_that_a_fold_was_not_trained_on(trained: Path) -> None:
    folds = [read_fold(trained / f"data/train/tiny/weighted-sum/fold{number}-seed1") for number in (1, 2, 3)]
    parts = [items_of(fold.predictions(), "utterance") for fold in folds]
    of_true = np.concatenate([part.probabilities[range(len(part)), part.targets] for part in parts])
    speakers = np.concatenate([part.speakers for part in parts])
    sets = read_model(export_model(trained, "sets")).sets
    assert sets is not None
    assert (sets.unit, sets.units) == ("speaker", len(set(speakers)))
    expected = smallest_probabilities(of_true, speakers)
    assert sets.smallest == pytest.approx({f"{level:.2f}": value for level, value in expected.items()})
    one = read_model(export_model(trained, "one", folds="2")).sets
    assert one is not None
    assert one.units == len(set(parts[1].speakers)) < sets.units


def test_speakers_that_their_fold_was_trained_on_calibrate_no_sets(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns(".work"))
    config = load_config(copy, "tiny").model_copy(update={"methods": ("ridge-mean",)})
    layout, manifest = Layout.of(copy, "tiny", config), copy / "tones" / "tones.csv"
    table = manifest.read_text()
    official = table.replace(",g0", ",train").replace(",g1", ",dev").replace(",g2", ",test")
    for text, shared, units in (
        (re.sub("(s5-[0-3].wav,.*),s5", r"\1,s0", table), "1 of 6 speakers", 5),
        (re.sub(",s[0-5]", ",s0", table), "1 of 1 speaker", 0),
        (official.replace(",s2", ",s0"), "1 of 5 speakers", 2),  # by train and dev alone
        (official.replace(",s5", ",s0"), "1 of 5 speakers", 1),
    ):
        manifest.write_text(text)
        with in_project(copy):
            for stage in (download, segment, extract):
                stage.run(layout, config)
            train.run(layout, config, method="ridge-mean", track=False)
            evaluate.run(layout, config)
        folder = export_model(copy, method="ridge-mean", force=True)
        sets, (leak,) = read_model(folder).sets, read_evaluation(layout.stage("evaluate")).leaks
        assert sets is not None
        assert sets.units == units
        assert leak.startswith(f"Groups share {shared} (")
        assert f"- {leak}" in (folder / "README.md").read_text()
        if not units:
            with pytest.raises(ConfigError, match="its folds test no speaker that they were not trained on"):
                ExportedModel.open(folder, coverage=0.5)


def test_the_figures_are_those_of_the_evaluation(trained: Path) -> None:
    scores = read_evaluation(trained / "data/evaluate/tiny").scores
    measured = read_model(export_model(trained, "figures")).measured
    assert measured is not None
    accuracy = measured.figures[0]
    figure = scores.figure("weighted-sum")
    assert (accuracy.value, accuracy.low, accuracy.high) == (figure.pooled, figure.low, figure.high)
    assert measured.n == 48
    assert measured.clusters == "6 speakers"
    single = read_model(export_model(trained, "figures-2", folds="2")).measured
    assert single is not None
    assert single.n == 16
    (row,) = [row for row in scores.runs("weighted-sum").values() if row.fold == 2]
    assert single.figures[0].value == row.value
    assert "`g1`" in single.protocol
    assert "steps, with given settings; what is chosen, as the penalty of a probe, is the best on" in single.protocol


def test_a_control_of_the_run_is_not_missing_from_the_model(trained: Path) -> None:
    """D58 is about the methods that are compared; ridge-mean alone would be one without a control."""
    record = read_model(export_model(trained, "control", method="ridge-mean"))
    assert 58 not in {one.number for one in record.deviations}


def test_the_card_has_a_head_for_the_hub_and_no_empty_sections(trained: Path) -> None:
    folder = export_model(trained, "card")
    _, head, body = (folder / "README.md").read_text().split("---\n", 2)
    (result,) = yaml.safe_load(head)["model-index"][0]["results"]
    assert result["dataset"] == {"name": "tones", "type": "tones"}  # the user's table, not `manifest`
    assert "manifest" not in head + body
    values = yaml.safe_load(head)
    assert values["pipeline_tag"] == "audio-classification"
    (result,) = values["model-index"][0]["results"]
    assert result["metrics"][0]["type"] == "accuracy"
    sections = body.split("\n## ")
    assert [section.splitlines()[0] for section in sections[1:]] == [
        "Intended use", "How to use it", "How it was trained", "How well it works", "Limits", "Licences",
    ]  # fmt: skip
    assert all(len(section.split("\n", 1)[1].strip()) > 20 for section in sections[1:])
    assert str(trained) not in body + (folder / "model.json").read_text()


def test_the_licence_of_the_encoder_is_named_or_said_to_be_unknown(trained: Path) -> None:
    record = read_model(export_model(trained, "licence"))
    assert record.encoder["licence"] == RANDOM
    for licence, text in (("mit", "mit."), (None, "unknown; ask who published it.")):
        card = card_of(replace(record, encoder={**record.encoder, "licence": licence}), "model")
        assert f"- Encoder {record.encoder['source']}: {text}" in card


def test_names_of_classes_stand_in_the_card_as_they_are(trained: Path) -> None:
    record = read_model(export_model(trained, "classes"))
    card = card_of(replace(record, classes=["arts and crafts", "news", "sports"]), "model")
    assert "as `arts and crafts`, `news` or `sports`." in card


def test_the_template_of_the_texts_travels_with_the_model(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("extract", ".work"))
    text = (copy / "pipelines/tiny.yaml").read_text()
    (copy / "pipelines/tiny.yaml").write_text(text.replace("download: {", "download: {text: '{title} {body}', "))
    folder = export_model(copy, "model")
    assert read_model(folder).text == "{title} {body}"
    assert "| texts | `{title} {body}`, of the columns of a table |" in (folder / "README.md").read_text()


def test_the_commands_of_the_card_work_for_any_name_of_its_folder(trained: Path) -> None:
    card = card_of(read_model(export_model(trained, "named")), 'my "best" model')
    assert "daamctl predict 'my \"best\" model' my-recordings/ --out" in card
    assert "daamctl serve 'my \"best\" model'\n" in card
    assert 'ExportedModel.open("my \\"best\\" model")' in card


def quickest(name: str) -> str:
    """The variant of a method that trains fastest."""
    return f"{name}-mlp" if "mlp" in METHODS.choices(name).get("decoder", ()) else name


@pytest.mark.parametrize("method", ["daam-v1", *(quickest(name) for name in METHODS if name != "mha-published")])
def test_an_exported_fold_predicts_what_training_stored(
    trained: Path, vectors: dict[str, np.ndarray], tmp_path: Path, method: str
) -> None:
    config = load_config(trained, "tiny", {"train.steps": 3, "train.selection": "dev-group"})
    layout = Layout.of(trained, "tiny", config)
    features = load_features(layout, config)
    trial = FusionTrial(FoldSpec("tiny", method, 1, 1, config), features)
    fold = train_fold(trial, tmp_path / method, tmp_path / "work", root=trained)
    stored = fold.predictions()
    assert fold.result["run"]["eval_batches"] is None
    record = replace(read_model(trained / "shared"), method=method)
    model = ExportedModel(trained, record, [load_weights(fold.folder / "weights.safetensors")])
    outputs = model.classify(np.stack([vectors[name] for name in stored["clip_id"]]))
    np.testing.assert_allclose(outputs.logits[0], np.array(stored["logits"].to_list()), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def vectors(trained: Path) -> dict[str, np.ndarray]:
    """Clip -> its vectors (L, D), by the encoder that an exported model opens."""
    model = ExportedModel.open(export_model(trained, "shared"), device="cpu")
    clips = read_clips(trained / "data/segment/tiny/clips.parquet").rows
    items = open_items(clips, "speech", trained / "tones", model.encoder, model.config)
    embedded = embed_clips(model.encoder, items, clips["clip_id"].to_list(), storage="float16")
    return dict(zip(clips["clip_id"], model.of_layers(embedded.vectors), strict=True))


def test_what_depends_on_the_batch_is_refused(trained: Path) -> None:
    config = load_config(trained, "tiny")
    layout = Layout.of(trained, "tiny", config)
    with in_project(trained):
        train.run(layout, config, method="mha-published-mlp", track=False)
    with pytest.raises(MethodError, match=r"mha-published-mlp cannot be exported: .* other items of a batch"):
        export_model(trained, "no", "mha-published-mlp")


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"method": ""}, ConfigError, "names no method"),
        ({"method": "weighted-som"}, UnknownNameError, "unknown method 'weighted-som' of 'tiny'"),
        ({"folds": "4"}, ConfigError, r"--folds must be mean, refit or a fold \(1 to 3\), got '4'"),
        ({"method": "lora-r8"}, UnknownNameError, "lora-r8"),
    ],
)
def test_bad_words_are_refused(trained: Path, words: dict[str, str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        export_model(trained, "no", **words)
    assert not (trained / "no").exists()


def test_only_an_exported_model_is_replaced_and_only_with_force(trained: Path) -> None:
    folder = export_model(trained, "again")
    with pytest.raises(ArtifactError, match="holds an exported model already"):
        export_model(trained, "again", folds="1")
    export_model(trained, "again", folds="1", force=True)
    assert read_model(folder).kind == "fold"
    (trained / "notes").mkdir(exist_ok=True)
    (trained / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="is not an exported model"):
        export_model(trained, "notes", force=True)
    assert (trained / "notes" / "mine.txt").read_text() == "mine"


def test_changed_settings_and_missing_evaluations_are_named(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("extract", ".work"))
    path = copy / "data/evaluate/tiny/evaluation.json"
    scored = json.loads(path.read_text())
    scored["methods"]["weighted-sum"]["runs"][0]["train_s"] += 1  # the fold was trained again since
    write_record(path, {name: value for name, value in scored.items() if name != "sha256"})
    with pytest.raises(ArtifactError, match="the evaluation of 'tiny' is not of these folds of weighted-sum"):
        export_model(copy, str(tmp_path / "out"))
    path.rename(copy / "kept.json")
    with pytest.raises(ArtifactError, match=r"evaluation\.json") as error:
        export_model(copy, "no")
    assert repair_of(error.value.path) == "make it: daamctl evaluate tiny"
    (copy / "kept.json").rename(copy / "data/evaluate/tiny/evaluation.json")
    folder = copy / "data/train/tiny/weighted-sum/fold2-seed1"
    result = json.loads((folder / "result.json").read_text())
    result["meta"]["train_s"] += 1  # trained again after scoring
    write_record(folder / "result.json", result)
    with pytest.raises(ArtifactError, match="the evaluation of 'tiny' is not of these folds of weighted-sum") as error:
        export_model(copy, "no")
    assert repair_of(error.value.path) == "make it again: daamctl evaluate tiny"
    text = (copy / "pipelines/tiny.yaml").read_text()
    (copy / "pipelines/tiny.yaml").write_text(text.replace("steps: 40", "steps: 50"))
    with pytest.raises(ArtifactError, match=r"other settings than now: train.steps: 40 \(now 50\)"):
        export_model(copy, "no")


def test_a_fold_selected_on_its_test_group_carries_a_warning(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns(".work"))
    text = (copy / "pipelines/tiny.yaml").read_text()
    (copy / "pipelines/tiny.yaml").write_text(
        text.replace("steps: 40", "steps: null, epochs: 1, selection: best-on-test")
    )
    config = load_config(copy, "tiny")
    layout = Layout.of(copy, "tiny", config)
    with in_project(copy):
        train.run(layout, config, method="weighted-sum", track=False)
        train.run(layout, config, method="ridge-mean", track=False)
        evaluate.run(layout, config)
    probe = read_model(export_model(copy, "probe", method="ridge-mean"))  # which has no epoch
    assert probe.measured is not None
    assert "such as its penalty, are the best on training items left out one by one" in probe.measured.protocol
    assert probe.sets is not None
    assert 7 not in {one.number for one in probe.deviations}
    assert not any("(D7)" in warning for warning in probe.warnings)
    folder = export_model(copy, "optimistic")
    with pytest.raises(ConfigError, match="has no prediction sets: export it again, or train it with a held-out group"):
        ExportedModel.open(folder, coverage=0.5)
    warning = "The epochs were selected on the test groups (D7), so the figures are too high."
    assert warning in read_model(folder).warnings
    assert f"- {warning}" in (folder / "README.md").read_text()


def test_with_its_encoder_a_model_needs_nothing_else(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_model(trained, "whole", folds="1", with_encoder=True)
    names = {path.name for path in (folder / "encoder").iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    assert all(f"encoder/{name}" in read_model(folder).files for name in names)
    away = shutil.copytree(folder, tmp_path / "away")
    tones = shutil.copytree(trained / "tones", tmp_path / "tones")
    monkeypatch.setattr("daamctl.encoders.load._random", None)  # the preset cannot be made again
    monkeypatch.chdir(tmp_path)
    rows = ExportedModel.open(away, device="cpu").predict([tones / "s0-0.wav"])
    monkeypatch.undo()
    expected = ExportedModel.open(export_model(trained, "bare", folds="1"), device="cpu").predict([tones / "s0-0.wav"])
    np.testing.assert_allclose(rows["p_low"], expected["p_low"], atol=1e-6)
    (away / "encoder" / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"config\.json is damaged or from elsewhere"):
        ExportedModel.open(away)


def test_an_encoder_is_cut_after_the_highest_layer_in_use(trained: Path, tmp_path: Path) -> None:
    whole = ExportedModel.open(export_model(trained, "bare-2", folds="1"), device="cpu", precision="float32")
    record = replace(whole.record, layers=[1, 3])
    opened = open_for(record, whole.config.extract, device="cpu", precision="float32")
    assert opened.encoder.layers == (1, 2, 3)
    save_cut_encoder(opened, tmp_path / "model" / "encoder")
    assert len(opened.encoder.model.encoder.layers) == 3
    config = whole.config.extract.model_copy(update={"encoder": str(tmp_path / "model" / "encoder")})
    again = open_for(record, config, device="cpu", precision="float32", included=True)
    clips = [torch.randn(4000, generator=torch.Generator().manual_seed(0))]
    expected = whole.encoder.pool(clips)[0][:, :3]
    for encoder in (opened.encoder, again.encoder):
        torch.testing.assert_close(encoder.pool(clips)[0], expected, atol=1e-5, rtol=1e-5)


def test_fewer_layers_with_a_cut_encoder(trained: Path) -> None:
    folder = export_model(trained, "short", folds="2", layers="1-3", with_encoder=True)
    record = read_model(folder)
    assert record.layers == [1, 2, 3]
    assert json.loads((folder / "encoder" / "config.json").read_text())["num_hidden_layers"] == 3
    fold = read_fold(trained / "data/truncate/tiny/layers-1-to-3-weighted-sum/fold2-seed1")
    scored = items_of(fold.predictions(), "utterance")
    model = ExportedModel.open(folder, device="cpu")
    assert len(model.encoder.model.encoder.layers) == 3
    rows = model.predict([trained / "tones" / f"{name}.wav" for name in scored.ids])
    rows = rows.filter(rows["unit"] == "item")
    np.testing.assert_allclose(rows.select("p_high", "p_low").to_numpy(), scored.probabilities, atol=1e-5)
    with pytest.raises(ConfigError, match=r"--layers must be 1-K with K from 1 to 24, got '1-25'"):
        export_model(trained, "no", layers="1-25")


@pytest.mark.parametrize("words", [{"layers": "1-3"}, {"folds": "refit"}])
def test_another_encoder_is_refused_before_anything_is_trained(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, str]
) -> None:
    options = {"modality": "speech", "max_duration_s": 1.0, "device": "cpu", "precision": "float32"}
    other = open_encoder(ExtractConfig(encoder="wavlm-micro"), **options).encoder
    next(other.model.parameters()).data += 1
    other.model.save_pretrained(tmp_path)
    other.reader.save_pretrained(tmp_path)
    for name in ("train_on_layers", "train_on_all"):
        monkeypatch.setattr(f"daamctl.stages.export.{name}", lambda *given: pytest.fail("trained"))
    with pytest.raises(EncoderError, match="is not the one that the model was trained on"):
        export_model(trained, "other", with_encoder=True, encoder=tmp_path, **words)
    assert not (trained / "other").exists()


def test_a_refit_trains_on_all_data_and_quotes_no_figure(trained: Path) -> None:
    folder = export_model(trained, "refit", folds="refit")
    record = read_model(folder)
    assert [(one.file, one.fold, one.test_group) for one in record.members] == [("refit.safetensors", None, None)]
    assert record.measured is None
    assert "No figure was measured" in (folder / "README.md").read_text()
    assert {path.name for path in folder.iterdir()} == {"model.json", "README.md", "MLmodel", "refit.safetensors"}
    model = ExportedModel.open(folder, device="cpu")
    standardize = model.members[0].state_dict().get("standardize.mean")
    config = load_config(trained, "tiny")
    x = load_features(Layout.of(trained, "tiny", config), config).x
    assert isinstance(x, torch.Tensor)
    assert standardize is not None
    torch.testing.assert_close(standardize, x.float().mean(0), atol=1e-3, rtol=1e-3)  # of all clips, not of a part
