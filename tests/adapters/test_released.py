"""What the published forms have of their own, and what they say where they are trained otherwise."""

from __future__ import annotations

import pytest

from daamctl.adapters import FINETUNES
from daamctl.adapters.released import INPUT, TRAINING, departures, is_published, own_input
from daamctl.config import Config, load_config
from daamctl.corpora import CORPORA
from tests.fixtures.projects import REPOSITORY

PUBLISHED = [name for name in FINETUNES if is_published(name)]


def sections(config: Config) -> dict[str, dict[str, object]]:
    return {name: config.section(name) for name in ("extract", "train", "finetune")}


def test_only_published_forms_have_an_input_of_their_own() -> None:
    assert len(PUBLISHED) == 4
    for modality, own in INPUT.items():
        assert all(own_input(name, modality) == own for name in PUBLISHED)
        assert all(not own_input(name, modality) for name in FINETUNES if name not in PUBLISHED)


@pytest.mark.parametrize("modality", TRAINING)
def test_every_setting_exists(modality: str) -> None:
    made = sections(Config())
    for path in (*INPUT[modality], *TRAINING[modality]):
        section, name = path.split(".")
        assert name in made[section]


@pytest.mark.parametrize("pipeline", ["iemocap-as-published", "cifar100-as-published", "agnews-as-published"])
def test_pipelines_train_as_released(pipeline: str) -> None:
    config = load_config(REPOSITORY, pipeline)
    modality = str(CORPORA.load(config.download.corpus).modality)
    for name in PUBLISHED:
        notes = departures(name, modality, sections(config.for_adapter(name)))
        assert all("items are read as by the released script" in note for note in notes)
    assert departures("lora-r8", modality, sections(config)) == ()


def test_other_settings_are_said_with_both_values() -> None:
    made = sections(Config.model_validate({"finetune": {"encoder_dropout": True, "epochs": 1, "batch_size": 2}}))
    assert departures("lora-r8-published", "text", made) == (
        "items are read as by the released script, whatever is set: finetune.max_tokens=128 (set: 512) (D18)",
        "the released script trains otherwise: finetune.batch_size=1 (set: 2), finetune.lr=1e-06 (set: 0.0001), "
        "finetune.schedule=constant (set: linear), finetune.grad_clip_norm=null (set: 1.0) (D18)",
    )
    assert "train.loss=focal (set: cross-entropy)" in departures("lora-r8-published", "speech", made)[-1]
    raw = sections(
        Config.model_validate({"extract": {"pooling": "all-frames", "normalize": "never"}, "segment": {"tail": "keep"}})
    )
    assert departures("lora-r8-published", "speech", raw)[0] == (
        "items are read as by the released script, whatever is set: extract.pooling=valid-frames (set: all-frames), "
        "extract.normalize=encoder (set: never) (D14)"
    )
