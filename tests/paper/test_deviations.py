"""The deviations: complete, true to the settings they name; the pairs of pipelines are at their two ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from daamctl.config import Config, load_config
from daamctl.errors import ConfigError, UnknownNameError
from daamctl.methods import METHODS
from daamctl.paper.deviations import (
    ALWAYS,
    AS_PUBLISHED,
    CORRECTED,
    NOT_HERE,
    Deviation,
    Deviations,
    MethodSwitch,
    ProcedureSwitch,
    SettingSwitch,
    Switch,
    deviations,
    remark,
    verdict,
)
from daamctl.paper.numbers import FOLDER, read_data
from daamctl.stages.check import problems_of
from tests.fixtures.projects import REPOSITORY
from tests.test_sources import anchors_of

ROWS = {row.number: row for row in deviations()}
KINDS = "AAAAAAAAAAAAAAAABAAABBBCBCBBAACBCCCBBCCBCCCCBBBBCBBACCCCBACBCCCC"
"""Classes of D1 to D64."""
PAIRS = [(name, f"{name}-as-published") for name in ("iemocap", "emodb", "cifar100", "agnews")]
# Repeats of one split need seeds, and only one is published (D40); 35 epochs of Llama2-13B are out of reach (D18).
OPEN = {("cifar100", 40), ("agnews", 40), ("agnews", 18)}
ADDED = {58: CORRECTED}
"""The papers' twins also train the controls under the published settings, for the column beside the print."""


def config(methods: tuple[str, ...] = ("none",), **sections: Any) -> Config:
    return Config.model_validate({"methods": methods, **sections})


def switchable(row: Deviation) -> bool:
    """Whether a pipeline can decide the row, for the settings or methods that exist."""
    fixed = [
        switch.name in ("always", "print")
        if isinstance(switch, ProcedureSwitch)
        else isinstance(switch, MethodSwitch) and not switch.corrected
        for switch in row.switches
    ]
    return not all(fixed)


def settings_switches(*, of_methods: bool) -> list[tuple[Deviation, SettingSwitch]]:
    """The switches of settings, of methods or of the pipeline, with their rows."""
    return [
        (row, switch)
        for row in deviations()
        for switch in row.switches
        if isinstance(switch, SettingSwitch) and bool(switch.methods) == of_methods
    ]


def test_every_row_is_there_once_in_order() -> None:
    assert [row.number for row in deviations()] == list(range(1, 65))
    assert "".join(row.kind for row in deviations()) == KINDS
    for row in deviations():
        assert all((row.finding, row.published, row.corrected, row.where))
        assert len(row.finding) <= 110


def test_definitions_are_the_sections_that_name_the_deviation() -> None:
    text = (REPOSITORY / "docs" / "sources.md").read_text(encoding="utf-8")
    sections = dict(zip(anchors_of(text), re.split(r"^##+ ", text, flags=re.MULTILINE)[1:], strict=True))
    sections.pop("deviations")
    for row in deviations():
        naming = [anchor for anchor, section in sections.items() if re.search(rf"\bD{row.number}\b", section)]
        assert row.definition == (naming[0] if naming else None), row.number


def test_settings_of_methods_have_two_values() -> None:
    met = 0
    for _, switch in settings_switches(of_methods=True):
        (name, published), *others = switch.published.items()
        assert not others
        values = {published, *(values[name] for values in switch.corrected or ())}
        for method in switch.methods:
            assert METHODS.defaults(method)[name] in values
            choices = METHODS.choices(method).get(name)
            assert choices is None or set(choices) == values
            met += 1
    assert met > 20


@pytest.mark.parametrize("value", ["published", "corrected"])
def test_values_of_rows_are_values_of_their_settings(value: str) -> None:
    met = 0
    for row, switch in settings_switches(of_methods=False):
        wanted = [switch.published] if value == "published" else switch.corrected or ()
        for values in wanted:
            made = with_values(values, switch)
            assert verdict(row, made) == (AS_PUBLISHED if value == "published" else CORRECTED), row.number
            met += 1
    assert met > (10 if value == "published" else 5)


def test_only_the_controls_are_a_matter_of_what_is_compared() -> None:
    assert [row.number for row in deviations() if row.is_of_comparison] == [58]


def with_values(values: Mapping[str, Any], switch: SettingSwitch) -> Config:
    """A pipeline that a switch concerns, with these dotted settings; refuses an unknown setting or value."""
    tree: dict[str, Any] = {
        "download": {"corpus": {"text": "agnews", "image": "digits"}.get(str(switch.modality), "demo")},
        "finetunes": ("lora-r8",) if switch.finetuning else (),
    }
    if switch.searched is not None:
        tree["train"] = {"search": "none"}
    if "train.loss" in switch.idle:
        tree["train"] = {"loss": "focal"}
    for path, value in values.items():
        section, name = path.split(".")
        tree.setdefault(section, {})[name] = value
    if values.get("extract.pooling") == "all-frames":  # does not go with the default, merge
        tree.setdefault("segment", {}).setdefault("tail", "keep")
    if {"best-on-test", "all-epochs"} & {str(value) for value in tree.get("train", {}).values()}:
        tree["train"]["steps"] = None  # these choose an epoch
    return Config.model_validate(tree)


@pytest.mark.parametrize(
    ("number", "made", "expected"),
    [
        (1, config(("mha",)), CORRECTED),
        (1, config(("mha-published",)), AS_PUBLISHED),
        (1, config(("mha-published-mlp",)), AS_PUBLISHED),
        (1, config(("mha", "mha-published")), "other (mha-published, mha)"),
        (1, config(("mha-bn",)), CORRECTED),
        (1, config(("mha-bn",), method_settings={"mha-bn": {"attend_over": "batch"}}), AS_PUBLISHED),
        (
            1,
            config(("mha", "mha-bn"), method_settings={"mha-bn": {"attend_over": "batch"}}),
            "other (mha, mha-bn: batch)",
        ),
        (1, config(("daam-v1",)), NOT_HERE),
        (5, config(("gqa-published", "gqdaam-published")), AS_PUBLISHED),
        (6, config(), CORRECTED),
        (6, config(ablate={"method": "mha-published"}), AS_PUBLISHED),
        (6, config(ablate={"method": "mha-published", "k": []}), NOT_HERE),
        (7, config(train={"selection": "last"}), CORRECTED),
        (10, config(), ALWAYS),
        (11, config(), CORRECTED),
        (11, config(train={"search_weight_decay": [10.0]}), "other (adamw, 10.0)"),  # one candidate: nothing is chosen
        (11, config(train={"search_weight_decay": [0.1, 1.0]}), CORRECTED),
        (11, config(train={"search": "none"}), AS_PUBLISHED),
        (11, config(train={"search_weight_decay": []}), AS_PUBLISHED),
        (11, config(train={"selection": "last"}), AS_PUBLISHED),  # nothing is held out, so nothing is searched
        (11, config(train={"search": "none", "optimizer": "adam"}), "other (adam, 0.01)"),
        (12, config(download={"corpus": "digits"}, train={"lr": 1e-5}), CORRECTED),
        (12, config(download={"corpus": "digits"}, train={"search": "none", "lr": 1e-5}), AS_PUBLISHED),
        (14, config(extract={"normalize": "always"}), "other (always)"),
        (21, config(train={"grad_clip": "scaled", "grad_clip_norm": 1000}), AS_PUBLISHED),
        (21, config(train={"grad_clip": "scaled"}), CORRECTED),
        (21, config(train={"grad_clip_norm": 1000}), CORRECTED),
        (21, config(train={"grad_clip": "scaled", "grad_clip_norm": 5}), "other (scaled, 5.0)"),
        (23, config(segment={"tail": "pad"}), "other (pad)"),
        (25, config(("daam-v1",)), CORRECTED),
        (25, config(("daam-v1-mlp",), method_settings={"daam-v1": {"variance": "moments"}}), AS_PUBLISHED),
        (
            25,
            config(("daam-v1", "daam-v2"), method_settings={"daam-v2": {"variance": "moments"}}),
            "other (daam-v1: two-pass, daam-v2: moments)",
        ),
        (25, config(("mixture-daam",)), NOT_HERE),
        (33, config(("mixture-daam",), method_settings={"mixture-daam": {"variance": "biased"}}), CORRECTED),
        (39, config(), NOT_HERE),
        (39, config(train={"loss": "focal", "focal_alpha": 0.5}), "other (0.5)"),
        (40, config(), AS_PUBLISHED),
        (40, config(train={"seeds": [1, 2]}), CORRECTED),
        (40, config(train={"seeds": [7]}), "other (training: 7 instead of 1)"),
        (40, config(download={"corpus": "agnews"}, train={"seeds": [111]}), AS_PUBLISHED),
        (40, config(download={"corpus": "agnews"}), "other (training: 1 instead of 111)"),
        (40, config(("mha", "daam-v2"), download={"corpus": "cifar100"}, train={"seeds": [333]}), AS_PUBLISHED),
        (40, config(("daam-v1-mlp",), download={"corpus": "cifar100"}, train={"seeds": [42]}), AS_PUBLISHED),
        (
            40,
            config(("mha", "daam-v1"), download={"corpus": "cifar100"}, train={"seeds": [333]}),
            "other (training: 333, training: 333 instead of 42)",
        ),
        (40, config(finetunes=["lora-r8"], finetune={"seeds": [42]}), AS_PUBLISHED),
        (40, config(finetunes=["lora-r8"]), "other (training: 1, fine-tuning: 1 instead of 42)"),
        (
            40,
            config(finetunes=["ia3"], download={"corpus": "agnews"}, train={"seeds": [111]}),
            "other (training: 111, fine-tuning: 111 instead of none)",
        ),
        (18, config(finetunes=["ia3"], finetune_settings={"bitfit": {"epochs": 1}}), CORRECTED),  # not trained
        (18, config(finetunes=["ia3"], finetune_settings={"ia3": {"schedule": "constant"}}), AS_PUBLISHED),
        (
            18,
            config(finetunes=["bitfit", "ia3"], finetune_settings={"ia3": {"epochs": 1, "schedule": "constant"}}),
            "other (10 epochs, batch 8, 1 epochs, batch 8)",
        ),
        (18, config(finetunes=["ia3"], finetune={"search": "none"}), AS_PUBLISHED),
        (18, config(finetunes=["ia3"], train={"search": "none"}), AS_PUBLISHED),
        (18, config(finetunes=["ia3"], train={"steps": None, "epochs": 10, "batch_size": 8}), CORRECTED),
        (48, config(), AS_PUBLISHED),
        (48, config(download={"corpus": "embeddings"}), NOT_HERE),  # whose last layer is not known
        (49, config(finetunes=["ia3"], finetune_settings={"ia3": {"encoder_dropout": True}}), AS_PUBLISHED),
        (42, config(), CORRECTED),
        (58, config(("daam-v1",)), AS_PUBLISHED),
        (58, config(("none", "daam-v1")), "other (none)"),
        (58, config(("none", "weighted-sum")), CORRECTED),
        (58, config(("none-mlp", "weighted-sum")), CORRECTED),
        (60, config(("gqa",), method_settings={"gqa": {"width": 64}}), "other (gqa: 64)"),
        (62, config(("daam-v1",)), AS_PUBLISHED),
        (62, config(("mha",)), NOT_HERE),
        (2, config(), NOT_HERE),
        (2, config(finetunes=("lora-r8-qk",)), CORRECTED),
        (17, config(finetunes=("lora-r8-qk",)), CORRECTED),
        (17, config(finetunes=("lora-r8", "lora-plus-r4-published")), AS_PUBLISHED),
        (17, config(finetunes=("lora-r8", "lora-r8-qk")), "other (lora-r8, lora-r8-qk)"),
    ],
)  # fmt: skip
def test_verdict(number: int, made: Config, expected: str) -> None:
    assert verdict(ROWS[number], made) == expected


def test_unknown_method_is_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown method 'daam-v9'"):
        verdict(ROWS[25], config(("daam-v9",)))


@pytest.mark.parametrize(("corrected", "published"), PAIRS)
def test_pairs_of_pipelines_are_at_both_ends(corrected: str, published: str) -> None:
    first, second = load_config(REPOSITORY, corrected), load_config(REPOSITORY, published)
    assert problems_of(first) == problems_of(second) == []
    rows = [row for row in deviations() if switchable(row) and (corrected, row.number) not in OPEN]
    rows = [row for row in rows if verdict(row, second) != NOT_HERE]
    assert len(rows) >= 25
    wanted = {row.number: AS_PUBLISHED for row in rows} | ({} if corrected == "emodb" else ADDED)
    assert {row.number: verdict(row, second) for row in rows} == wanted
    class_a = [row for row in rows if row.kind == "A"]
    assert len(class_a) >= 10
    assert {row.number: verdict(row, first) for row in class_a} == {row.number: CORRECTED for row in class_a}
    assert first.download == second.download
    assert first.extract.encoder == second.extract.encoder


@pytest.mark.parametrize("name", [published for _, published in PAIRS])
def test_as_published_names_every_switch(name: str) -> None:
    """A default that changes must not change what was published."""
    said = yaml.safe_load((REPOSITORY / "pipelines" / f"{name}.yaml").read_text(encoding="utf-8"))
    used = load_config(REPOSITORY, name)
    for _, switch in settings_switches(of_methods=False):
        if list(switch.states(used)):
            for path in switch.published:
                section, setting = path.split(".")
                assert setting in said[section], path
    for _, switch in settings_switches(of_methods=True):
        for method in set(switch.methods) & set(said["methods"]):
            assert switch.published.keys() <= said["method_settings"][method].keys(), method
    assert "seeds" in said["train"]


def test_published_training_is_that_of_the_released_scripts() -> None:
    """What no row is about: 35 epochs of batches of 8 at 1e-4, plateau of 10 epochs, focal loss of 2.5.

    Source: docs/sources.md#training-set-up and #focal-loss.
    """
    train = load_config(REPOSITORY, "iemocap-as-published").train
    assert (train.epochs, train.batch_size, train.lr) == (35, 8, 1e-4)
    assert (train.schedule, train.plateau_factor, train.plateau_patience) == ("plateau", 0.1, 10)
    assert (train.loss, train.focal_gamma) == ("focal", 2.5)


def test_remarks_name_the_items_of_the_modality() -> None:
    assert remark("mha", "speech") == "attends over the clips of a batch, not over the layers (D1)"
    assert "the images of a batch" in remark("mha-bn", "vision")
    assert remark("daam-v2", "text") == "the released script builds eight heads, which is v1 (D8); ours has one"
    assert [remark("lora-plus-r4", modality)[-8:] for modality in ("vision", "text")] == ["zen (D3)", "(D3, D4)"]
    assert remark("daam-v2", "speech") == remark("daam-v1", "text") == ""


def test_there_are_three_kinds_of_switch() -> None:
    assert set(Switch.__subclasses__()) == {SettingSwitch, MethodSwitch, ProcedureSwitch}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[6].update(clas="A"), r"deviations\.7\.clas: unknown key"),
        (lambda rows: rows[6].pop("finding"), r"deviations\.7\.finding: missing"),
        (lambda rows: rows[6].update(switches=[]), r"deviations\.7\.switches: "),
        (
            lambda rows: rows[6]["switches"][0].update(published={"train.selection_": "last"}),
            r"deviations\.7\.switches\.1\.setting: unknown setting 'train\.selection_'; did you mean",
        ),
        (
            lambda rows: rows[0]["switches"][0].update(published=["mha-publishd"]),
            r"deviations\.1\.switches\.1\.method\.published: unknown method 'mha-publishd'; did you mean",
        ),
        (
            lambda rows: rows[0]["switches"][1].update(published={"attend": "batch"}),
            r"deviations\.1\.switches\.2\.setting: unknown setting of mha-bn 'attend'; did you mean 'attend_over'",
        ),
        (
            lambda rows: rows[7]["switches"][0].update(name="never"),
            r"deviations\.8\.switches\.1\.procedure\.name: unknown procedure 'never'",
        ),
        (lambda rows: rows[7]["switches"][0].update(kind="way"), r"deviations\.8\.switches\.1: "),
        (lambda rows: rows.pop(3), r"deviations: numbers must run from 1 without gaps; number 4 is 5"),
    ],
)
def test_mistakes_are_named_with_their_key(change: Callable[[Any], object], message: str, tmp_path: Path) -> None:
    tree = yaml.safe_load((FOLDER / "deviations.yaml").read_text(encoding="utf-8"))
    change(tree["deviations"])
    path = tmp_path / "deviations.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"deviations\.yaml: {message}"):
        read_data(path, Deviations)
