"""Stage `finetune` on real audio and a tiny WavLM, and what evaluation and report make of its folds."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
import transformers

from daamctl.adapters import FineTuned
from daamctl.adapters.prompt import NUM_VECTORS
from daamctl.artifacts.clips import ClipTable, read_clips
from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.config import Config, ExtractConfig, load_config
from daamctl.corpora.sources import files_root
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.encoders.waveform import WaveformEncoder
from daamctl.errors import (
    ArtifactError,
    AudioError,
    ConfigError,
    EncoderError,
    MethodError,
    TrainingError,
    UnknownNameError,
)
from daamctl.extraction.items import open_items
from daamctl.methods import load_weights, read_metadata
from daamctl.models.folder import read_model
from daamctl.models.model import ExportedModel
from daamctl.planning.repair import repair_of
from daamctl.stages import compare, download, evaluate, export, extract, finetune, report, segment, train
from tests.fixtures.folds import make_layout, write_method
from tests.fixtures.recordings import write_pipeline
from tests.fixtures.tiny_models import tiny

MORE = (
    "methods: [none]\n"
    "finetunes: [linear-probe]\n"
    "finetune: {epochs: 2, lr: 0.01, search: none, device: cpu}\n"
    "report: {interactive: false}\n"
)


def settings(project: Path, **overrides: Any) -> tuple[Layout, Config]:
    config = load_config(project, "tiny", {key.replace("__", "."): value for key, value in overrides.items()})
    return Layout.of(project, "tiny", config), config


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WavLM of two layers: to fine-tune it takes a tenth of the time that the 24 of `wavlm-micro` take."""
    folder = tmp_path_factory.mktemp("shallow")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    front = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    transformers.WavLMModel(transformers.WavLMConfig(**shape, **front, feat_extract_norm="layer")).save_pretrained(
        folder
    )
    transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)
    return folder


@pytest.fixture
def clips(project: Path, shallow: Path) -> Path:
    """A project with the clip table of the tones."""
    path = write_pipeline(project, more=MORE)
    path.write_text(path.read_text().replace("extract: {", f"extract: {{encoder: {shallow}, "))
    layout, config = settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    return project


def test_folds_are_made_without_embeddings_and_kept(clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout, config = settings(clips)
    folder = finetune.run(layout, config, method="linear-probe", track=False)
    assert folder == layout.method("linear-probe")
    folds = read_folds(folder)
    assert [fold.result["run"]["test_group"] for fold in folds] == ["g0", "g1", "g2"]
    assert not layout.embeddings.exists()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    with caplog.at_level(logging.INFO, logger="daamctl"):
        finetune.run(layout, config, method="linear-probe", track=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "linear-probe: 3 of 3 folds are finished and kept" in caplog.text
    other = settings(clips, train__seeds=[2])
    finetune.run(*other, method="linear-probe", fold=2, track=False)
    assert [(fold.fold, fold.seed) for fold in read_folds(folder)] == [(1, 1), (2, 1), (2, 2), (3, 1)]
    shutil.rmtree(folder / "fold3-seed1")
    finetune.run(layout, config, method="linear-probe", track=False)
    assert [(fold.fold, fold.seed) for fold in read_folds(folder)] == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises(TrainingError, match="--fold must be 1 to 3 or all, got 4"):
        finetune.run(layout, config, method="linear-probe", fold=4, track=False)


@pytest.mark.usefixtures("blank_pictures")
def test_a_method_and_a_fine_tuned_encoder_are_evaluated_and_reported_together(clips: Path) -> None:
    layout, config = settings(clips)
    extract.run(layout, config)
    train.run(layout, config, method="none", track=False)
    with pytest.raises(ArtifactError) as caught:
        evaluate.run(layout, config)
    assert repair_of(caught.value.path, layout) == "make it: daamctl finetune tiny --method linear-probe"
    finetune.run(layout, config, method="linear-probe", track=False)
    found = json.loads(evaluate.run(layout, config).read_text())
    assert list(found["methods"]) == ["none", "linear-probe"]
    (compared,) = read_evaluation(layout.stage("evaluate")).scores.comparisons("accuracy")
    assert (compared.first, compared.second) == ("none", "linear-probe")
    assert found["counts"]["utterance"] == 48
    assert not any("other settings" in note for note in found["notes"])
    notes = json.loads(evaluate.run(*settings(clips, finetune__lr=0.5)).read_text())["notes"]
    assert "trained with other settings than the current ones: finetune.lr: 0.01 (now 0.5)" in notes
    page = report.run(layout, config, track=False)
    rows = {row["Method"]: row for row in csv.DictReader((page.parent / "tables/cost.csv").read_text().splitlines())}
    names = ("Trainable parameters", "In fusion or adapters", "In decoder or classifier", "Steps", "Epochs")
    # a mark such as "learned nothing" may follow a name: it hangs on the number format that is fast on this machine
    tuned, none = (
        next(row for name, row in rows.items() if name.startswith(start)) for start in ("linear-probe", "none")
    )
    assert [tuned[name] for name in names[:3]] == ["34", "0", "34"]  # one linear map of 16 features to 2 classes
    assert (none["Steps"], bool(tuned["Steps"])) == (str(config.train.steps), True)
    assert "linear-probe" in page.read_text()
    result = json.loads(compare.run(clips, "tiny/none", "tiny/linear-probe").read_text())
    assert "finetune.lr" in {entry["name"] for entry in result["settings"]["can_change"]}
    _predict_as_training_did(layout, config)


def _predict_as_training_did(layout: Layout, config: Config) -> None:
    """A fold that is exported gives its test clips the logits that training stored, with its encoder and without."""
    (fold,) = [fold for fold in read_folds(layout.method("linear-probe")) if fold.fold == 2]
    stored = {row["utterance_id"]: row["logits"] for row in fold.predictions().iter_rows(named=True)}
    clips = read_clips(layout.clips)
    rows = clips.rows.filter(pl.col("utterance_id").is_in(list(stored)))
    root = files_root(layout.root, clips.corpus)
    for out, options in ((layout.root / "without", {}), (layout.root / "with", {"with_encoder": True})):
        folder = export.run(layout.root, "tiny/linear-probe", out, folds="2", **options)  # type: ignore[arg-type]
        assert (folder / "encoder").is_dir() == bool(options)
        model = ExportedModel.open(folder, encoder=None if options else config.extract.encoder)
        assert model.record.fine_tuned
        found = model.predict([root / path for path in rows["path"]]).filter(unit="item")
        for name, probabilities in zip(
            rows["utterance_id"], found.select([f"p_{one}" for one in model.record.classes]).rows(), strict=True
        ):
            assert probabilities == pytest.approx(torch.tensor(stored[name]).softmax(0).tolist(), abs=1e-6)
    assert "fine-tuned with `linear-probe`" in (folder / "README.md").read_text(encoding="utf-8")
    for words, message in (
        (
            {},
            "linear-probe has fine-tuned an encoder of its own in every fold, so --folds must be one of them (1 to 3)",
        ),
        ({"folds": "2", "onnx": True}, "fine-tunes the encoder, which ONNX cannot take yet"),
        ({"folds": "2", "layers": "1-1"}, "linear-probe fine-tunes the whole encoder; leave out --layers"),
    ):
        with pytest.raises((ConfigError, MethodError), match=re.escape(message)):
            export.run(layout.root, "tiny/linear-probe", layout.root / "never", **words)  # type: ignore[arg-type]


def test_a_model_that_kept_its_last_weights_was_not_selected_on_the_test_part(clips: Path) -> None:
    """Whatever `train` says; without a schedule, an epoch is selected as `train` says."""
    for schedule, deviates in (("linear", False), ("constant", True)):
        path = clips / "pipelines" / "tiny.yaml"
        text = path.read_text().replace("methods: [none]", "methods: []")
        text = re.sub("steps: 40", "steps: null, selection: best-on-test", text)
        path.write_text(re.sub(r"epochs: .*?, lr", f"epochs: 1, schedule: {schedule}, lr", text))
        layout, config = settings(clips)
        finetune.run(layout, config, method="linear-probe", track=False)
        evaluate.run(layout, config)
        folder = export.run(clips, "tiny/linear-probe", clips / schedule, folds="2")
        record = read_model(folder)
        assert (7 in {one.number for one in record.deviations}) == deviates
        assert any("(D7)" in text for text in record.warnings) == deviates


def test_recordings_that_cannot_be_read(clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    (clips / "tones/s3-1.wav").write_bytes(b"RIFF")
    layout, config = settings(clips)
    with pytest.raises(AudioError, match=r"s3-1\.wav"):
        finetune.run(layout, config, method="linear-probe", track=False)
    with pytest.raises(AudioError, match=r"1 of 48 clips cannot be read \(tolerated: 1.0%\): s3-1#000: "):
        finetune.run(*settings(clips, extract__max_unreadable_fraction=0.01), method="linear-probe", track=False)
    finetune.run(*settings(clips, extract__max_unreadable_fraction=0.05), method="linear-probe", track=False)
    assert "1 of 48 clips cannot be read and are left out: s3-1#000" in caplog.text
    sizes = [fold.result["meta"]["num_test_clips"] for fold in read_folds(layout.method("linear-probe"))]
    assert sizes == [16, 15, 16]


def test_a_clip_that_is_too_long_is_refused_before_training(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the test group, which training does not come to before its end."""
    rate = 16000
    lengths = read_clips(settings(clips)[0].clips).rows["duration_s"]

    def collate(self: Any, items: Any, real: Any = WaveformEncoder.collate_cpu) -> Any:
        self.refuse_longer(max(map(len, items)), int(rate * lengths.max()) - 1)
        return real(self, items)

    monkeypatch.setattr(WaveformEncoder, "collate_cpu", collate)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: pytest.fail("a step was taken"))
    with pytest.raises(EncoderError, match=r"a clip of .* s is longer than the .* s that"):
        finetune.run(*settings(clips), method="linear-probe", fold=1, track=False)


def test_fine_tuning_says_that_it_reads_after_the_final_norm(clips: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(load_config(clips, "tiny").extract.encoder)
    config.do_stable_layer_norm = True
    transformers.WavLMModel(config).save_pretrained(clips / "stable")
    transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(
        clips / "stable"
    )
    given = {"extract__encoder": str(clips / "stable"), "extract__final_norm": False, "finetune__epochs": 1}
    (fold,) = read_folds(finetune.run(*settings(clips, **given), method="linear-probe", fold=1, track=False))
    note = "it reads the encoder's output after the final norm, whatever extract.final_norm is"
    assert fold.result["run"]["notes"] == [note]


def test_a_weights_file_says_how_to_open_its_encoder(clips: Path) -> None:
    """From the file alone: the encoder is opened as it says, and another one refused."""
    layout, config = settings(clips, extract__encoder="wavlm-micro")  # a random one, made from its seed
    (fold,) = read_folds(finetune.run(layout, config, method="ia3", fold=1, track=False))
    path = (fold.folder / "weights.safetensors").rename(clips / "alone.safetensors")
    shown = read_metadata(path)
    assert (shown.modality, shown.inputs, shown.pooling["pooling"]) == (
        "speech",
        {"sampling_rate": 16000, "normalize": False},
        "valid-frames",
    )
    assert shown.encoder["weights_dtype"] == shown.precision == "float32"
    assert set(shown.made_with) == {"segment", "extract"}

    def opened(**changes: Any) -> OpenedEncoder:
        extract = ExtractConfig.model_validate({**shown.made_with["extract"], **changes})
        longest = shown.made_with["segment"]["max_duration_s"]
        return open_encoder(extract, modality="speech", max_duration_s=longest, device="cpu", precision=shown.precision)

    with pytest.raises(MethodError, match=f"over the encoder .* {shown.encoder['weights_sha256']}\\), got .*seed 7"):
        load_weights(path, encoder=opened(seed=7))
    with pytest.raises(MethodError, match="with pooling valid-frames, the encoder given has pooling all-frames"):
        load_weights(path, encoder=opened(pooling="all-frames"))
    normalizing = opened()
    normalizing.facts["normalize"] = True
    with pytest.raises(MethodError, match="with normalize False, the encoder given has normalize True"):
        load_weights(path, encoder=normalizing)
    right = opened(final_norm=False)  # which changes nothing
    model = load_weights(path, encoder=right)
    assert isinstance(model, FineTuned)
    table = read_clips(layout.clips)
    items = open_items(table.rows, "speech", files_root(layout.root, table.corpus), right.encoder, config)
    index = {name: number for number, name in enumerate(table.rows["clip_id"])}
    predictions = fold.predictions()
    read = [items.read(index[name]) for name in predictions["clip_id"]]
    with torch.no_grad():
        found = torch.cat([model(*right.encoder.collate([item])) for item in read])
    torch.testing.assert_close(found, torch.tensor(predictions["logits"].to_list()), atol=1e-5, rtol=1e-4)


def test_a_way_is_trained_with_its_own_settings_and_seeds(clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = {"finetune_settings.linear-probe.epochs": 1, "finetune_settings.ia3.epochs": 9, "finetune__seeds": [5]}
    layout, config = settings(clips, **own)
    folder = finetune.run(layout, config, method="linear-probe", fold=1, track=False)
    assert [path.name for path in folder.iterdir()] == ["fold1-seed5"]
    (fold,) = read_folds(folder)
    assert len(fold.history()) == fold.result["run"]["config"]["finetune"]["epochs"] == 1
    with caplog.at_level(logging.INFO, logger="daamctl"):  # the same settings, however they came about
        plain = settings(clips, finetune__epochs=1)
        finetune.run(*plain, method="linear-probe", fold=1, seed=5, track=False)
    assert "linear-probe: 1 of 1 folds are finished and kept" in caplog.text


def test_clips_made_with_other_settings_are_refused(clips: Path) -> None:
    with pytest.raises(ArtifactError, match=r"segment.tail: made with 'merge', asked for 'pad'"):
        finetune.run(*settings(clips, segment__tail="pad"), method="linear-probe", track=False)


def test_missing_clips_and_unknown_names_say_what_to_do(project: Path) -> None:
    write_pipeline(project, more=MORE)
    layout, config = settings(project)
    with pytest.raises(ArtifactError, match="no file") as missing:
        finetune.run(layout, config, method="linear-probe", track=False)
    assert repair_of(missing.value.path, layout) == "make it: daamctl segment tiny"
    with pytest.raises(UnknownNameError, match="unknown fine-tuning method 'lora-r9'\n  did you mean 'lora-r"):
        finetune.run(layout, config, method="lora-r9", track=False)


def test_published_speech_reads_what_the_feature_extractor_gives(clips: Path, shallow: Path) -> None:
    """docs/sources.md#released-lora: normalised by itself (D14), own length, padded with its batch, masked."""
    model = transformers.WavLMModel.from_pretrained(shallow)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True)
    model.save_pretrained(clips / "wavlm")
    extractor.save_pretrained(clips / "wavlm")
    layout, config = settings(
        clips,
        segment__tail="keep",
        extract__encoder=str(clips / "wavlm"),
        extract__pooling="all-frames",
        extract__normalize="never",
    )
    table = read_clips(layout.clips)
    released, usual = (finetune._open(layout, config, table, name) for name in ("lora-r4-published", "lora-r4"))
    assert (released.facts["pooling"], released.facts["normalize"]) == ("valid-frames", True)
    waves = [released.items.read(row) for row in range(4)]
    assert len({len(wave) for wave in waves}) == 4
    expected = extractor([wave.numpy() for wave in waves], sampling_rate=16000, padding=True, return_tensors="pt")
    inputs, mask = released.encoder.collate(waves)
    torch.testing.assert_close(inputs["input_values"], expected["input_values"], atol=1e-5, rtol=1e-5)
    assert torch.equal(inputs["attention_mask"], expected["attention_mask"].long())
    frames = model._get_feat_extract_output_lengths(expected["attention_mask"].sum(1))
    assert torch.equal(mask.sum(1), frames)
    raw, _ = usual.encoder.collate(waves)  # all other ways read what the embeddings are made of
    assert raw.keys() == {"input_values"}
    assert raw["input_values"].shape == (4, 80000)
    assert torch.equal(raw["input_values"][0, : len(waves[0])], waves[0])


@pytest.mark.parametrize(("modality", "released"), [("image", (False, True, 512)), ("text", (True, False, 128))])
def test_published_images_and_texts_are_read_as_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modality: Any, released: tuple[bool, bool, int]
) -> None:
    """Without the class token, with the checkpoint's pooler; cut at 128 tokens."""
    met: list[tuple[bool, bool, int]] = []

    class Stop(Exception):
        pass

    def opened(extract: Any, *, keep_pooler: bool, **_: Any) -> Any:
        met.append((extract.pool_class_token, keep_pooler, 0))
        return SimpleNamespace(encoder=None)

    def items(*_: Any, max_tokens: int) -> None:
        met[-1] = (*met[-1][:2], max_tokens)
        raise Stop

    monkeypatch.setattr(finetune, "open_encoder", opened)
    monkeypatch.setattr(finetune, "open_items", items)
    monkeypatch.setattr(finetune, "root_of", lambda *_: tmp_path)
    config = Config.model_validate({"extract": {"pool_class_token": True}})
    clips = ClipTable("toy", ("a", "b"), pl.DataFrame(), {}, modality)
    for name in ("lora-plus-r8-published", "lora-plus-r8"):
        with pytest.raises(Stop):
            finetune._open(Layout.of(tmp_path, "toy", config), config, clips, name)
    assert met == [released, (True, False, 512)]


def test_fine_tuning_has_its_own_longest_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []

    def opened(extract: Any, **_: Any) -> Any:
        met.append(extract.max_tokens)
        raise EncoderError("stop")

    monkeypatch.setattr(finetune, "open_encoder", opened)
    config = Config.model_validate({"extract": {"max_tokens": 3}, "finetune": {"max_tokens": 40}})
    clips = ClipTable("toy", ("a", "b"), pl.DataFrame(), {}, "text")
    with pytest.raises(EncoderError, match="stop"):
        finetune._open(Layout.of(tmp_path, "toy", config), config, clips, "lora-r8")
    assert met == [40]


def test_training_texts_leave_room_for_the_vectors_of_prompt_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []

    def items(*_: Any, max_tokens: int) -> Any:
        met.append(max_tokens)
        raise EncoderError("stop")

    monkeypatch.setattr(finetune, "open_encoder", lambda *_, **__: SimpleNamespace(encoder=tiny("bert")))
    monkeypatch.setattr(finetune, "open_items", items)
    clips, config = ClipTable("toy", ("a", "b"), pl.DataFrame(), {}, "text"), Config()
    for name in ("prompt-tuning", "prefix-tuning"):
        with pytest.raises(EncoderError, match="stop"):
            finetune._open(Layout.of(tmp_path, "toy", config), config, clips, name)
    assert met == [160 - NUM_VECTORS, 512]


def test_published_form_beside_another_way_and_what_it_notes(clips: Path) -> None:
    """Its own input does not keep the two from being compared."""
    ways = ["linear-probe", "lora-r4-published"]
    layout, config = settings(clips, extract__normalize="always", finetunes=ways, methods=[], finetune__epochs=1)
    folds = {}
    for name in config.finetunes:
        folds[name] = read_folds(finetune.run(layout, config, method=name, track=False))
    keys = [{fold.result["meta"]["embeddings_key"] for fold in found} for found in folds.values()]
    assert [len(found) for found in keys] == [1, 1]
    assert keys[0] != keys[1]
    notes = [note for note in folds["lora-r4-published"][0].result["run"]["notes"] if "released script" in note]
    assert notes[0].endswith("whatever is set: extract.normalize=encoder (set: always) (D14)")
    assert "finetune.batch_size=4 (set: 8)" in notes[1]
    assert folds["linear-probe"][0].result["run"]["notes"] == []
    assert {fold.result["meta"]["evaluation_precision"] for found in folds.values() for fold in found} == {"float32"}
    assert evaluate.run(layout, config).is_file()


TUNED: dict[str, Any] = {
    "run.finetune": True,
    "run.config.finetune": {"epochs": 3},
    "run.config.train": {"loss": "square", "selection": "dev-group"},
    "meta.embeddings_key": "0123456789abcdef",
    "run.layers": [24],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run.config.train": {"loss": "focal"}}, r"train.loss is 'square' for 'none', 'focal' for 'linear-probe'"),
        ({"meta.num_train_clips": 7}, r"clips of fold 1 is \[300, 100, \d+\] for 'none', \[7, 100, \d+\] for 'linear"),
        ({"run.config.finetune": {"epochs": 4}}, r"finetune.epochs is 3 for 'lora-r8', 4 for 'linear-probe'"),
        ({"meta.embeddings_key": "f" * 16}, r"data_key is '0123456789abcdef' for 'lora-r8', 'ffffffffffffffff' for"),
        (
            {"meta.encoder": {"weights_sha256": "a"}},
            r"hash of the encoder's weights in float32 is null for 'none', 'a' for 'linear-probe'",
        ),
        ({}, None),
        ({"meta.encoder": {"weights_sha256": "a", "weights_dtype": "bfloat16"}}, None),  # another hash, perhaps as good
    ],
)
def test_what_is_shared_must_agree_and_nothing_else(tmp_path: Path, changes: Any, message: str | None) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["none"], "finetunes": ["lora-r8", "linear-probe"]})
    write_method(layout, config, "none")
    write_method(layout, config, "lora-r8", changes=TUNED)
    write_method(layout, config, "linear-probe", changes={**TUNED, **changes})
    if message is None:
        assert evaluate.run(layout, config).is_file()
        return
    with pytest.raises(ArtifactError, match=message):
        evaluate.run(layout, config)


def test_a_way_with_its_own_settings_stands_beside_the_others(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    ways = {"methods": ["none"], "finetunes": ["lora-r8", "linear-probe"]}
    config = Config.model_validate({**ways, "finetune_settings": {"linear-probe": {"epochs": 4}}})
    write_method(layout, config, "none")
    write_method(layout, config, "lora-r8", changes={**TUNED, "run.config.finetune": {"epochs": 10}})
    write_method(layout, config, "linear-probe", changes={**TUNED, "run.config.finetune": {"epochs": 4}})
    notes = json.loads(evaluate.run(layout, config).read_text())["notes"]
    assert not any("finetune." in note for note in notes)
    with pytest.raises(ArtifactError, match=r"finetune.epochs is 10 for 'lora-r8', 4 for 'linear-probe'"):
        evaluate.run(layout, Config.model_validate(ways))
    changed = Config.model_validate({**ways, "finetune_settings": {"linear-probe": {"epochs": 5}}})
    notes = json.loads(evaluate.run(layout, changed).read_text())["notes"]
    assert "trained with other settings than the current ones: finetune.epochs: 4 (now 5)" in notes


def test_fine_tuning_with_seeds_of_its_own_is_evaluated(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": ["none"], "finetunes": ["lora-r8"], "finetune": {"seeds": [42]}})
    write_method(layout, config, "none")
    write_method(layout, config, "lora-r8", changes=TUNED, seeds=(42,))
    found = json.loads(evaluate.run(layout, config).read_text())
    assert {row["seed"] for row in found["methods"]["none"]["runs"]} == {1}
    assert {row["seed"] for row in found["methods"]["lora-r8"]["runs"]} == {42}
    assert found["methods"]["lora-r8"]["missing"] == []
    message = r"no finished fold of method 'lora-r8' in .* with seed 1 \(available: 42\)"
    with pytest.raises(ArtifactError, match=message):
        evaluate.run(layout, config.model_copy(update={"finetune": Config().finetune}))


def test_folds_of_one_way_must_be_made_alike(tmp_path: Path) -> None:
    layout = make_layout(tmp_path)
    config = Config.model_validate({"methods": [], "finetunes": ["lora-r8"]})
    write_method(layout, config, "lora-r8", folds=(1, 2, 3, 4), changes=TUNED)
    write_method(layout, config, "lora-r8", folds=(5,), changes={**TUNED, "run.config.finetune": {"epochs": 4}})
    with pytest.raises(ArtifactError, match=r"finetune.epochs is 3 in fold1-seed1, 4 in fold5-seed1") as caught:
        evaluate.run(layout, config)
    assert repair_of(caught.value.path, layout) == "make it again: daamctl finetune toy --method lora-r8"
