"""Checking settings of methods without building them, and what is written for each train stage."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.errors import ConfigError
from daamctl.stages import check, inventory
from tests.fixtures.added import install
from tests.fixtures.recordings import write_pipeline


@pytest.fixture(autouse=True)
def nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "answers", lambda _: False)


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
        ("method_settings: {daam-v1: {variance: third}}", "method_settings: daam-v1: variance must be "),
        ("method_settings: {daam-v1: {num_haeds: 4}}", "method_settings: daam-v1: unknown setting 'num_haeds'"),
        (
            "method_settings: {daam-v1-mlp: {decoder: conv}}",
            "method_settings: daam-v1-mlp: decoder is 'mlp' by its name, got 'conv'",
        ),
        (
            "finetune_settings: {full-fintune: {lr: 1.0e-5}}",
            "finetune_settings: unknown name 'full-fintune'; did you mean 'full-finetune'?",
        ),
        (
            "methods: [none, best-layer]\ntrain: {selection: last}",
            "methods: part of 'best-layer' is chosen on a held-out group, which train.selection=last does not",
        ),
        (
            "download: {folds: stratified, num_groups: 2}",
            "download.num_groups: 3 or more are needed for train, dev and test, got 2; with two groups, set "
            "train.selection to last",
        ),
        (
            "download: {disjoint: sentence, num_groups: 1}\ntrain: {selection: last}",
            "download.num_groups: 2 or more are needed for train and test, got 1",
        ),
        ("ablate: {method: mah}", "ablate.method: unknown name 'mah'; did you mean 'mha'?"),
        (
            "methods: [none, mha]\nablate: {rank_by: daam-v1}",
            "ablate.rank_by: 'daam-v1' is not among the methods of this pipeline (none, mha); add it to `methods`, or "
            "leave ablate.rank_by null",
        ),
    ],
)
def test_what_is_wrong_with_methods(project: Path, text: str, message: str) -> None:
    found = problems(project, text)
    assert found[0].startswith(f"pipeline 'mine': {message}")
    assert sum(line.startswith("pipeline") for line in found) == 1


def test_two_groups_are_enough_where_nothing_is_held_out_or_the_corpus_may_have_more(project: Path) -> None:
    two = ("{folds: stratified, num_groups: 2}\ntrain: {selection: last}", "{disjoint: both, num_groups: 2}")
    for settings in two:
        (project / "pipelines/mine.yaml").write_text(f"download: {settings}\n")
        assert check.run(project, ["mine"]) == ["mine"]


def test_methods_of_another_package_are_known(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, {"peak": "my_fusions:peak", "lora-r4": "my_fusions:peak"})
    pipeline = project / "pipelines/mine.yaml"
    pipeline.write_text("methods: [mean, peak, ridge-mean]\nmethod_settings: {peak: {share: 0.25}}\n")
    check.run(project, ["mine"])
    assert problems(project, "methods: [peak]\nmethod_settings: {peak: {share: x}}") == [
        "pipeline 'mine': method_settings: peak: share must be like 0.5, got 'x'"
    ]
    assert problems(project, "methods: [mean, lora-r4]") == [
        "pipeline 'mine': methods: 'lora-r4' is also a fine-tuning method; the package that adds it must call it "
        "otherwise"
    ]
    listed = [" ".join(line.split()) for line in CliRunner().invoke(app, ["ls", "methods"]).stdout.splitlines()]
    assert any(line.startswith("peak my-fusions 0.1 | Highest value of each feature") for line in listed)
    told = CliRunner().invoke(app, ["doctor"]).stdout
    assert "of packages: peak (my-fusions 0.1), lora-r4 (my-fusions 0.1)" in " ".join(told.split())


def test_each_way_of_fine_tuning_depends_on_its_own_settings(project: Path) -> None:
    def written(more: str) -> dict[str, Any]:
        (project / "pipelines/mine.yaml").write_text(f"methods: [none]\nfinetunes: [ia3, full-finetune]\n{more}")
        inventory.run(project, ["mine"])
        folder = project / "data/check/mine"
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}

    plain = written("")
    assert plain["finetune-ia3"]["train"]["seeds"] == [1]
    assert "seeds" not in plain["finetune-ia3"]["finetune"]
    own = written("finetune_settings: {full-finetune: {lr: 1.0e-5}}\n")
    assert {name for name in own if own[name] != plain[name]} == {"finetune-full-finetune"}
    assert own["finetune-full-finetune"]["finetune"]["lr"] == 1e-5
    seeded = written("finetune: {seeds: [42]}\n")
    changed = {name for name in seeded if seeded[name] != plain[name]}
    assert changed == {"finetune-ia3", "finetune-full-finetune", "evaluate"}
    assert seeded["finetune-ia3"]["train"]["seeds"] == [42]


def test_variant_is_trained_with_the_settings_of_its_method(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text(
        "methods: [none, daam-v1, daam-v1-mlp]\n"
        "method_settings: {daam-v1: {num_heads: 4, hidden_dim: 64}, daam-v1-mlp: {hidden_dim: 32}}\n"
    )
    inventory.run(project, ["mine"])

    def written(method: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((project / f"data/check/mine/train-{method}.json").read_text())
        settings: dict[str, Any] = made.get("settings", made)
        return settings

    assert written("daam-v1") == {"num_heads": 4, "hidden_dim": 64}
    assert written("daam-v1-mlp") == {"num_heads": 4, "hidden_dim": 32, "decoder": "mlp"}
    assert written("none") == {}


def test_the_ablation_depends_on_the_methods_that_it_chooses_among(project: Path) -> None:
    def written(text: str) -> dict[str, Any]:
        (project / "pipelines/mine.yaml").write_text(text)
        inventory.run(project, ["mine"])
        made: dict[str, Any] = json.loads((project / "data/check/mine/ablate.json").read_text())
        return made

    plain = written("methods: [none, daam-v1]\n")
    assert (plain["ablate"]["rank_by"], plain["ablate"]["method"]) == (None, None)
    assert written("methods: [none, daam-v1, mha]\n") != plain
    assert written("methods: [none, daam-v1]\nablate: {method: none}\n") != plain


def test_the_check_that_dvc_runs_refuses_an_old_list_of_stages(project: Path) -> None:
    (project / "params.yaml").write_text("pipelines: [mine]\n")
    (project / "pipelines/mine.yaml").write_text("methods: [none, mha]\n")
    check.run(project, write=True)
    assert call("check", "--inventory").exit_code == 0
    folder = project / "data/check/mine"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for methods, difference in (("none", "still has train@mine-mha"), ("none, mha, sga", "lacks train@mine-sga")):
        (project / "pipelines/mine.yaml").write_text(f"methods: [{methods}]\n")
        result = call("check", "--inventory")
        said = f"ConfigError: stages.yaml is out of date: it {difference}\n  write it again: daamctl check --write\n"
        assert (result.exit_code, result.stderr) == (3, said)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert check.run(project, ["mine"]) == ["mine"]  # as `daamctl run` asks, which needs no list
    check.run(project, ["mine"], write=True)
    assert call("check", "--inventory").exit_code == 0


def test_stages_of_a_pipeline_whose_file_is_gone(project: Path) -> None:
    """It was removed by hand; the line of another pipeline says what is left of it."""
    (project / "params.yaml").write_text("pipelines: [mine, gone]\n")
    (project / "pipelines/mine.yaml").write_text("methods: [none]\n")
    lists = r"^params\.yaml lists pipeline 'gone', but there is no file pipelines/gone\.yaml\n  take 'gone' out of"
    with pytest.raises(ConfigError, match=lists):
        check.run(project, ["mine"], write=True)


@pytest.mark.parametrize("listed", ["3", "demo", "{demo: x}", "[{demo: x}]"])
def test_a_list_of_pipelines_that_is_none(project: Path, listed: str) -> None:
    (project / "params.yaml").write_text(f"pipelines: {listed}\n")
    once = r"pipelines agnews, agnews-as-published, cifar100 and \d+ more: pipelines\S*: input should be a .*$"
    with pytest.raises(ConfigError, match=once) as caught:
        check.run(project)
    assert "unknown name" not in caught.value.message


def test_check_of_everything_looks_at_the_stages_of_dvc(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("methods: [none]\n")
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("  - demo\n", "  - demo\n  - mine\n"))
    lacking = r"stages\.yaml is out of date: it lacks segment@mine, lacks extract@mine, .* \d more\n  write it"
    with pytest.raises(ConfigError, match=lacking):
        check.run(project)
    assert check.run(project, ["mine"]) == ["mine"]  # its own settings are in order
    check.run(project, write=True)
    check.run(project)


def test_a_pipeline_may_not_be_called_paper(project: Path) -> None:
    (project / "pipelines/paper.yaml").touch()
    with pytest.raises(ConfigError, match=r"^pipeline 'paper': report@paper is the report on the papers"):
        check.run(project)


def test_ways_of_fine_tuning_are_known_and_their_stages_read_what_they_use(project: Path) -> None:
    assert problems(project, "finetunes: [lora-r9]")[0].startswith(
        "pipeline 'mine': finetunes: unknown name 'lora-r9'; did you mean 'lora-r"
    )
    twice = "pipeline 'mine': finetunes: a fine-tuning method is listed twice in ['ia3', 'ia3']"
    assert problems(project, "finetunes: [ia3, ia3]") == [twice]

    def part(settings: str) -> dict[str, Any]:
        (project / "pipelines/mine.yaml").write_text(f"finetunes: [ia3]\n{settings}\n")
        inventory.run(project, ["mine"])
        found: dict[str, Any] = json.loads((project / "data/check/mine/finetune-ia3.json").read_text())
        return found

    usual = part("")
    assert part("train: {epochs: 3, lr: 0.5, device: cpu}\nfinetune: {device: cpu}\nmethods: [none]") == usual
    for text in ("finetune: {lr: 0.5}", "train: {loss: focal}", "train: {seeds: [2]}", "extract: {revision: a}"):
        assert part(text) != usual


README_EXAMPLE = (
    "extract: {encoder: wavlm-base-plus}\nmethods: [none, weighted-sum, daam-v1, gqdaam-mlp, mixture-daam]\n"
)


def test_ways_of_fine_tuning_that_do_not_fit_the_encoder_are_refused(project: Path) -> None:
    ways = "finetunes: [linear-probe, bitfit, lora-r8-published]\n"
    found = problems(project, f"download: {{corpus: demo-tokens}}\nextract: {{encoder: llama-micro}}\n{ways}")
    assert found == [
        "pipeline 'mine': finetunes: bitfit: LlamaModel has no biases",
        "  use lora-r8 or ln-tuning",
        "pipeline 'mine': finetunes: lora-r8-published: its classifier is for whole texts, not for words",
        "  use 'lora-r8'",
    ]
    # of a table nobody knows what is in it before it is read, so the encoder tells
    ways = "finetunes: [linear-probe, prompt-tuning]\n"
    found = problems(project, f"download: {{corpus: manifest}}\nextract: {{encoder: wavlm-micro}}\n{ways}")
    assert found[0].startswith("pipeline 'mine': finetunes: prompt-tuning: WavLMModel takes sound")


def test_default_methods_fit_an_encoder_of_twelve_layers(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text(README_EXAMPLE)
    assert check.run(project, ["mine"]) == ["mine"]
    (project / "pipelines/mine.yaml").write_text(
        README_EXAMPLE + "method_settings: {daam-v1: {num_heads: auto}, gqdaam: {num_heads: 3}}\n"
    )
    assert check.run(project, ["mine"]) == ["mine"]


@pytest.mark.parametrize(
    ("settings", "method", "said"),
    [
        (
            "daam-v1: {num_heads: 8}",
            "daam-v1",
            "num_heads (8) must divide the number of layers (12); possible: 1, 2, 3, 4, 6",
        ),
        (
            "daam-v1: {num_heads: 12}",
            "daam-v1",
            "num_heads (12) leaves one of 12 layers to a head, with a weight that is the same for every input; "
            "possible: 1, 2, 3, 4, 6",
        ),
        (
            "gqdaam: {num_heads: 5}",
            "gqdaam-mlp",
            "num_heads (5) must divide the number of layers (12); possible: 1, 2, 3, 4, 6",
        ),
        (
            "mixture-daam: {num_heads: 7}",
            "mixture-daam",
            "num_heads (7) leaves one of 12 positions to a head, which has no unbiased variance; use at most 6 heads",
        ),
        (
            "mixture-daam: {num_heads: 7, variance: biased}",
            "mixture-daam",
            "num_heads (7) leaves one of 12 layers to a head, with a weight that is the same for every input; "
            "possible: at most 6",  # its heads may differ in size
        ),
    ],
)
def test_heads_that_do_not_fit_the_preset_are_refused(project: Path, settings: str, method: str, said: str) -> None:
    assert problems(project, f"{README_EXAMPLE}method_settings: {{{settings}}}\n") == [
        f"pipeline 'mine': methods: {method} on 12 of 12 layers x 768 of encoder 'wavlm-base-plus': {said}",
        f"  set method_settings: {{{method}: {{num_heads: auto}}}}, or leave the method out",
    ]


def test_what_else_depends_on_depth_and_width(project: Path) -> None:
    found = problems(
        project,
        "extract: {encoder: whisper-tiny}\nmethods: [lct, mha, daam-v1, mixture-daam]\n"
        "method_settings: {lct: {num_groups: 3}, mha: {num_heads: 5}, mixture-daam: {num_heads: 2}}\n"
        "ablate: {method: mixture-daam, k: [1, 2], layers: [[1, 2, 3, 4]]}\n",
    )
    on = "of 4 layers x 384 of encoder 'whisper-tiny':"
    assert found == [
        f"pipeline 'mine': methods: lct on 4 {on} num_groups (3) must divide the number of layers (4); possible: 1, 2",
        "  set method_settings: {lct: {num_groups: 1}}, or leave the method out",
        f"pipeline 'mine': methods: mha on 4 {on} num_heads (5) must divide the layer width (384); possible: "
        "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 384",
        "  set method_settings: {mha: {num_heads: 4}}, or leave the method out",
        f"pipeline 'mine': ablate.method: mixture-daam on 1 {on} num_heads (2) must not exceed the positions on the "
        "norm axis (1)",
        "  set method_settings: {mixture-daam: {num_heads: auto}}, or leave the method out",
        f"pipeline 'mine': ablate.method: mixture-daam on 2 {on} num_heads (2) leaves one of 2 positions to a head, "
        "which has no unbiased variance; use at most 1 heads",
        "  set method_settings: {mixture-daam: {num_heads: auto}}, or leave the method out",
    ]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("ablate: {k: [1, 3], layers: [[1, 4]]}", None),  # 3 of 4 layers are left out
        ("ablate: {layers: [[0, 4]]}", ["pipeline 'mine': ablate.layers: [0] is not among the layers 1 to 4"]),
        ("ablate: {layers: [[0, 4]]}\nextract: {encoder: whisper-tiny, layer_00: true}", None),
        (
            "ablate: {presets: [speech-9-23]}",
            [
                "pipeline 'mine': ablate.presets: speech-9-23: [9] is not among the layers 1 to 4",
                "  it is meant for a deeper encoder; leave it out: --set 'ablate.presets=[]'",
            ],
        ),
    ],
)
def test_layers_of_an_ablation_that_the_encoder_lacks(project: Path, settings: str, told: list[str] | None) -> None:
    text = settings if "extract" in settings else f"extract: {{encoder: whisper-tiny}}\n{settings}"
    if told is None:
        (project / "pipelines/mine.yaml").write_text(f"{text}\n")
        assert check.run(project, ["mine"]) == ["mine"]
    else:
        assert problems(project, f"{text}\n") == told


def test_depth_of_a_local_folder(project: Path, tmp_path: Path) -> None:
    text = f"extract: {{encoder: {tmp_path}}}\nmethods: [daam-v1]\nmethod_settings: {{daam-v1: {{num_heads: 8}}}}\n"
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 512, "encoder_layers": 6, "decoder_layers": 8}))
    assert "must divide the number of layers (6); possible: 1, 2, 3" in problems(project, text)[0]
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 512, "encoder_layers": 24}))
    assert check.run(project, ["mine"]) == ["mine"]


def test_more_layers_than_any_encoder_has(project: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 16, "num_hidden_layers": 100_000}))
    assert problems(project, f"extract: {{encoder: {tmp_path}}}\n") == [
        "pipeline 'mine': extract.encoder: its config.json says 100,000 layers, supported are up to 1,000"
    ]


def test_an_encoder_of_unknown_depth_is_passed_over(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text(
        "extract: {encoder: someone/not-here}\nmethods: [daam-v1]\nmethod_settings: {daam-v1: {num_heads: 7}}\n"
    )
    assert check.run(project, ["mine"]) == ["mine"]


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_source_that_does_not_exist_fails_check_and_run(project: Path) -> None:
    write_pipeline(project, "tones")
    assert call("check", "tones").exit_code == 0
    (project / "tones/tones.csv").unlink()
    for words in (["check", "tones"], ["run", "tones"]):
        result = call(*words)
        assert result.exit_code == 3
        assert f"{project}/tones/tones.csv" in result.stderr
    assert call("check", "tones", "--write").exit_code == 0  # dvc repro leaves it out and goes on


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("methods: [none, mean, ridge-last]", ["whether fusing layers helps; add ridge-best-layer to methods"]),
        (
            "methods: [none, ridge-best-layer]",
            ["whether fusing layers helps; add ridge-mean to methods, which is solved"],
        ),
        ("methods: [none, ridge-best-layer, ridge-concat]", []),
        ("methods: [none, best-layer]", []),
        ("methods: [ridge-last, ridge-best-layer]", ["whether fusing layers helps; add a method that fuses them"]),
        ("importance: {audit: false}", []),  # it is on unless somebody turns it off
        ("methods: [none]\ntrain: {recipe: published}", []),  # keeps what was published
        ("download: {corpus: demo-tokens}\nextract: {encoder: llama-micro}\nmethods: [last-layer]", []),  # by entity F1
    ],
)
def test_questions_that_the_report_could_not_answer_are_warned_about(
    project: Path, caplog: pytest.LogCaptureFixture, text: str, lacks: list[str]
) -> None:
    (project / "pipelines/mine.yaml").write_text(text)
    assert check.run(project, ["mine"]) == ["mine"]
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == len(lacks)
    for line, lack in zip(found, lacks, strict=True):
        assert line.startswith(f"pipeline 'mine': its report cannot say {lack}")


def test_examples_of_the_documents_answer_both_questions(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """README, the tutorial and the page on corpora; also what `new` writes, which takes the default methods."""
    root = Path(__file__).parents[2]
    examples = ["download: {corpus: demo}"]
    for page in ("README.md", "docs/tutorial.md", "docs/corpora.md"):
        examples += [line for line in (root / page).read_text().splitlines() if line.startswith("methods: [")]
    assert len(examples) == 4
    for text in examples:
        (project / "pipelines/mine.yaml").write_text(text)
        check.run(project, ["mine"])
    check.run(project, ["demo", "emodb", "iemocap"])
    assert caplog.records == []


def test_pages_named_in_the_settings_exist() -> None:
    root = Path(__file__).parents[2]
    for path in (root / "params.yaml", *(root / "pipelines").glob("*.yaml")):
        for page in re.findall(r"docs/[\w-]+\.md", path.read_text()):
            assert (root / page).is_file(), f"{path.name}: no {page}"
