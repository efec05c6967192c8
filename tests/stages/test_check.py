"""Checking settings of methods without building them, and what is written for each train stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daamctl.errors import ConfigError
from daamctl.stages import check


def problems(project: Path, text: str) -> list[str]:
    (project / "pipelines/mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        check.run(project, ["mine"])
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "methods: [none, attentive-mlp]",
            "methods: unknown name 'attentive-mlp'; did you mean 'attentive'?",  # it has no other decoder
        ),
        (
            "methods: [none, mha-published-mlp]",
            "methods: dvc.yaml has no train stage for mha-published-mlp; add it to trainable of params.yaml",
        ),
        ("method_settings: {daam-v1: {variance: third}}", "method_settings: daam-v1: variance must be "),
        ("method_settings: {daam-v1: {num_haeds: 4}}", "method_settings: daam-v1: unknown setting 'num_haeds'"),
        (
            "method_settings: {daam-v1-mlp: {decoder: conv}}",
            "method_settings: daam-v1-mlp: decoder is 'mlp' by its name, met 'conv'",
        ),
        ("ablate: {method: mah}", "ablate.method: unknown name 'mah'; did you mean 'mha'?"),
    ],
)
def test_what_is_wrong_with_methods(project: Path, text: str, message: str) -> None:
    found = problems(project, text)
    assert found[0].startswith(f"pipeline 'mine': {message}")
    assert sum(line.startswith("pipeline") for line in found) == 1


def test_variant_is_trained_with_the_settings_of_its_method(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text(
        "methods: [none, daam-v1, daam-v1-mlp]\n"
        "method_settings: {daam-v1: {num_heads: 4, hidden_dim: 64}, daam-v1-mlp: {hidden_dim: 32}}\n"
    )
    check.run(project, ["mine"], write=True)

    def written(method: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((project / f"data/check/mine/train-{method}.json").read_text())
        settings: dict[str, Any] = made.get("settings", made)
        return settings

    assert written("daam-v1") == {"num_heads": 4, "hidden_dim": 64}
    assert written("daam-v1-mlp") == {"num_heads": 4, "hidden_dim": 32, "decoder": "mlp"}
    assert written("none") == {}
    assert written("none-mlp") == written("mha") == {"listed": False}


def test_table_of_trainable_methods(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("  - sga\n", "  - sag\n  - lct\n"))
    with pytest.raises(ConfigError) as caught:
        check.run(project)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("params.yaml: trainable: unknown name 'sag'; did you mean 'sga'?")
    assert lines[1] == "params.yaml: trainable: lct stands there twice"


def test_without_a_list_for_dvc_every_method_may_be_trained(project: Path) -> None:
    (project / "params.yaml").write_text("")
    (project / "pipelines/mine.yaml").write_text("methods: [none, mha-published-mlp]\n")
    assert check.run(project, ["mine"]) == ["mine"]
