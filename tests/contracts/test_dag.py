"""dvc.yaml: every stage's command, dependency and file exists, for every pipeline and everything that it trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from daamctl.cli.app import app
from daamctl.config import load_config, pipeline_names, read_yaml
from daamctl.data.stage_table import STAGES as SPECS
from daamctl.data.stage_table import stages_of_task
from daamctl.methods import METHODS, resolve_method
from daamctl.paper.numbers import experiments
from daamctl.stages import check, inventory
from tests.fixtures.projects import REPOSITORY

ORDER = ("check", *SPECS)
WHOLE_PAPER = "report@paper"
COMMANDS = {WHOLE_PAPER: "paper"}
LISTED: list[str] = read_yaml(REPOSITORY / "params.yaml")["pipelines"]
SHOTS = (8, 16, 32, 64, 128)
FAMILY = [f"wnut17-{shots}-shots" for shots in SHOTS]
EVERY = "every-method"
"""Shipped, but not listed: a plain `dvc repro` would take long."""


def raw_stages() -> dict[str, dict[str, Any]]:
    raw = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))
    assert raw["vars"] == ["stages.yaml"]
    stages: dict[str, dict[str, Any]] = raw["stages"]
    return stages


def filled(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What stands in dvc.yaml for each value of an item, and the value."""
    for part, value in item.items():
        many = enumerate(value) if isinstance(value, list) else ()
        yield from ((f"${{item.{part}[{number}]}}", one) for number, one in many)
        if isinstance(value, str):
            yield f"${{item.{part}}}", value


def dvc_stages() -> dict[str, dict[str, Any]]:
    """Every stage with its values filled in, as DVC expands it: address -> stage."""
    table = read_yaml(REPOSITORY / "stages.yaml")
    stages: dict[str, dict[str, Any]] = {}
    for name, stage in raw_stages().items():
        body, items = stage, {"": {}}
        if "matrix" in stage:
            assert stage["matrix"] == {"pipeline": "${pipelines}"}
            body = {key: value for key, value in stage.items() if key != "matrix"}
            items = {f"@{pipeline}": {"pipeline": pipeline} for pipeline in LISTED}
        elif "foreach" in stage:
            assert stage["foreach"] == f"${{{name}_stages}}"
            body, items = stage["do"], {f"@{key}": item for key, item in table[f"{name}_stages"].items()}
        for key, item in items.items():
            text = json.dumps(body).replace("${key}", key.removeprefix("@"))
            for part, value in filled(item):
                assert part in text, name + key
                text = text.replace(part, value)
            assert "${" not in text, name + key
            stages[name + key] = json.loads(text)
    return stages


STAGES = dvc_stages()


def outs_of(stage: dict[str, Any]) -> list[Path]:
    return [Path(next(iter(item)) if isinstance(item, dict) else item) for item in stage["outs"]]


def stage_of(address: str) -> str:
    return address.split("@")[0]


def can_be_left_out(address: str) -> bool:
    """Whether it is of a pipeline, which may not be able to run here."""
    return stage_of(address) in SPECS and address not in COMMANDS


def place(address: str) -> tuple[int, bool]:
    """When it may run: in the order of stages, the reports on several pipelines after those of the pipelines."""
    return ORDER.index(stage_of(address)), address in COMMANDS


def pipeline_of(address: str) -> str:
    return str(STAGES[address]["cmd"].split()[2])


def test_stages_are_in_order() -> None:
    assert tuple(raw_stages()) == ORDER
    names = LISTED
    number = 2  # check and the report on several pipelines
    for config in (load_config(REPOSITORY, name) for name in names):
        for spec in stages_of_task(config.task).values():
            number += 1 if spec.for_each is None else len(getattr(config, spec.for_each))
    assert len(STAGES) == number


def test_every_command_exists_with_its_options() -> None:
    group: Any = typer.main.get_command(app)
    for address, stage in STAGES.items():
        program, name, *words = stage["cmd"].split()
        assert program == "daamctl"
        assert name == COMMANDS.get(address, stage_of(address))
        context = group.commands[name].make_context(name, list(words))  # refuses what the command does not take
        if "@" in address and address not in COMMANDS:
            assert address.split("@")[1].startswith(context.params["argument"])


def test_stages_that_can_be_left_out_say_so() -> None:
    for address, stage in STAGES.items():
        assert ("--if-possible" in stage["cmd"].split()) == can_be_left_out(address), address


@pytest.mark.parametrize(
    "address", ["train@demo-daam-v1-mlp", "report@iemocap", "finetune@iemocap-lora-r8", WHOLE_PAPER]
)
def test_addresses_are_those_that_a_reader_would_type(address: str) -> None:
    assert address in STAGES


def test_every_method_is_trained_somewhere() -> None:
    assert {resolve_method(name)[0] for name in load_config(REPOSITORY, EVERY).methods} == set(METHODS)


def test_every_dependency_is_made_before_or_there() -> None:
    made = {out: address for address, stage in STAGES.items() for out in outs_of(stage)}
    assert len(made) == sum(len(outs_of(stage)) for stage in STAGES.values())  # no out has two makers
    inside: dict[Path, set[str]] = {}
    for out, address in made.items():
        for folder in out.parents:
            inside.setdefault(folder, set()).add(address)
    met = 0
    for address, stage in STAGES.items():
        for dep in map(Path, stage.get("deps", [])):
            makers = {made[path] for path in (dep, *dep.parents) if path in made} | inside.get(dep, set())
            assert makers or (REPOSITORY / dep).exists(), f"{address}: nothing makes {dep}"
            assert all(place(maker) < place(address) for maker in makers)
            met += 1
    assert met > 300


def test_a_stage_depends_on_the_results_that_it_reads_and_on_no_others() -> None:
    for address, stage in STAGES.items():
        if not can_be_left_out(address):
            continue
        parts = [Path(dep).parts for dep in stage["deps"]]
        results = [part[1] for part in parts if part[0] == "data" and part[1] in SPECS]
        assert sorted(results) == sorted(SPECS[stage_of(address)].reads), address
        assert all(part[2] == pipeline_of(address) for part in parts if part[0] == "data" and part[1] in SPECS)


def test_outputs_are_the_folders_that_a_stage_that_is_left_out_makes_too() -> None:
    for address, stage in STAGES.items():
        if can_be_left_out(address):
            spec = SPECS[stage_of(address)]
            own = "train" if spec.name == "finetune" else spec.name
            name = pipeline_of(address)
            wanted = [f"data/{folder}/{name}" for folder in (own, *spec.beside)]
            outs = [out.as_posix() for out in outs_of(stage)]
            assert [out.removesuffix(f"/{address.removeprefix(f'{spec.name}@{name}-')}") for out in outs] == wanted


def test_metrics_and_plots_are_folders_outside_the_cache() -> None:
    """DVC would report every pipeline that was not run as an error if it knew files, or outputs in its cache."""
    raw = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))
    assert (raw["metrics"], raw["plots"]) == (["data/metrics"], ["data/plots"])
    for stage in STAGES.values():
        assert not {"metrics", "plots"} & stage.keys()
        for out in stage["outs"]:
            ((path, options),) = out.items()
            shown = path.startswith(("data/metrics/", "data/plots/"))
            assert options["cache"] is False if shown else options["persist"], path


def test_the_machine_is_looked_at_every_time() -> None:
    assert STAGES["check"]["always_changed"] is True
    assert "deps" not in STAGES["check"]
    assert "--inventory" in STAGES["check"]["cmd"]


def test_the_graph_needs_no_checkout_of_the_code() -> None:
    assert all(dep.startswith("data/") for stage in STAGES.values() for dep in stage.get("deps", []))


def test_importance_waits_for_the_ablation_that_its_audit_reads() -> None:
    for name in [stage.split("@")[1] for stage in STAGES if stage_of(stage) == "importance"]:
        assert f"data/ablate/{name}" in STAGES[f"importance@{name}"]["deps"]
        assert not any("importance" in dep for dep in STAGES[f"ablate@{name}"]["deps"])


def test_paper_waits_for_its_six_pipelines() -> None:
    names = [f"{one.key}{twin}" for one in experiments() for twin in ("", "-as-published")]
    assert STAGES[WHOLE_PAPER]["deps"] == [f"data/report/{name}" for name in names]
    assert [out.as_posix() for out in outs_of(STAGES[WHOLE_PAPER])] == ["data/report/paper", "data/plots/paper"]


def test_all_shipped_pipelines_are_listed_but_the_points_of_a_curve() -> None:
    assert sorted([*LISTED, *FAMILY, EVERY]) == sorted(pipeline_names(REPOSITORY))


def test_the_curves_wait_for_their_pipelines_which_differ_in_the_shots_alone(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text(
        params.read_text().replace("  - wnut17\n", "".join(f"  - {name}\n" for name in ("wnut17", *FAMILY)))
    )
    check.run(project, write=True)
    curves = read_yaml(project / "stages.yaml")["report_stages"]["wnut17-shots"]
    assert curves == {"cmd": "daamctl shots wnut17", "reads": [f"evaluate/{name}" for name in (*FAMILY, "wnut17")]}
    few = [load_config(REPOSITORY, name) for name in FAMILY]
    assert tuple(config.train.shots for config in few) == SHOTS
    alike = [config.model_copy(update={"train": config.train.model_copy(update={"shots": 1})}) for config in few]
    assert all(config == alike[0] for config in alike)


def test_settings_are_watched_as_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC copies `params` into dvc.lock, which it parses and writes again for every stage."""
    assert not [address for address, stage in STAGES.items() if "params" in stage]
    monkeypatch.setattr(inventory, "answers", lambda _: False)
    inventory.run(project)
    wanted = {dep for stage in STAGES.values() for dep in stage.get("deps", []) if dep.startswith("data/check/")}
    assert len(wanted) == sum(can_be_left_out(address) for address in STAGES)  # each has its own
    written = {path.relative_to(project).as_posix() for path in (project / "data/check").rglob("*.json")}
    assert written - wanted == {f"data/check/{name}/machine.json" for name in LISTED}
    assert wanted < written
