"""Settings: order of precedence, messages that name path, value and nearest name, and every problem at once."""

from __future__ import annotations

import os
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from daamctl.config import RECIPES, Config, find_root, load_config, parse_overrides, pipeline_names, read_yaml
from daamctl.config.schema import ImportanceConfig
from daamctl.data.stage_table import STAGES
from daamctl.errors import ConfigError


def message(root: Path, overrides: dict[str, Any], pipeline: str | None = "demo") -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(root, pipeline, overrides)
    return str(caught.value)


def test_order_is_defaults_params_pipeline_overrides(project: Path) -> None:
    (project / "params.yaml").write_text("train: {epochs: 7, lr: 0.5}\n")
    (project / "pipelines/mine.yaml").write_text("train: {lr: 0.25, batch_size: 3}\n")
    assert load_config(project).train.model_dump(include={"epochs", "lr", "batch_size"}) == {
        "epochs": 7,
        "lr": 0.5,
        "batch_size": 32,
    }
    config = load_config(project, "mine", {"train.batch_size": 4})
    assert (config.train.epochs, config.train.lr, config.train.batch_size) == (7, 0.25, 4)


def test_empty_files_give_the_defaults(project: Path) -> None:
    (project / "params.yaml").write_text("# nothing\n")
    (project / "pipelines/empty.yaml").write_text("")
    assert load_config(project, "empty") == Config()


def test_every_problem_is_reported_at_once_with_its_path_and_nearest_name(project: Path) -> None:
    text = message(project, {"train.epoch": 5, "extrac.encoder": "x", "segment.tail": "foo", "train.lr": 0})
    assert text.splitlines() == [
        "pipeline 'demo' with the options given: "
        "segment.tail: input should be 'keep', 'pad', 'merge' or 'drop' (got 'foo')",
        "  train.lr: input should be greater than 0 (got 0)",
        "  train.epoch: unknown setting; did you mean 'epochs'?",
        "  extrac: unknown setting; did you mean 'extract'?",
    ]


def test_unknown_key_far_from_all_lists_what_is_known(project: Path) -> None:
    known = ", ".join(sorted(ImportanceConfig.model_fields))
    assert message(project, {"importance.zzz": 1}, None) == (
        f"params.yaml with the options given: importance.zzz: unknown setting; known: {known}"
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"train": 5}, "train: input should be a mapping, {...} (got 5)"),
        ({"train.seeds": ["a"]}, "train.seeds.0: input should be a valid integer"),
        ({"extract.device": "tpu"}, "extract.device: unknown device 'tpu'; allowed: auto, cpu, mps, cuda, cuda:N"),
        ({"methods": "none"}, "methods: input should be a list, [...] (got 'none')"),
        ({"ablate.layers": [1, 2]}, "ablate.layers.0: input should be a list, [...] (got 1)"),
        ({"method_settings": [1]}, "method_settings: input should be a mapping, {...} (got [1])"),
        ({"train.lr": float("nan")}, "train.lr: "),
        ({"train.lr": float("inf")}, "train.lr: input should be a finite number (got inf)"),
        ({"segment.max_duration_s": float("inf")}, "segment.max_duration_s: input should be a finite number"),
        ({"train.weight_decay": -0.1}, "train.weight_decay: input should be greater than or equal to 0 (got -0.1)"),
        ({"download.max_unreadable_fraction": 1.5}, "input should be less than or equal to 1 (got 1.5)"),
        ({"train.plateau_factor": 1.0}, "train.plateau_factor: input should be less than 1 (got 1.0)"),
        ({"segment.tail_below_s": 0}, "segment.tail_below_s: input should be greater than 0 (got 0)"),
        ({"train.grad_clip": "norm"}, "train.grad_clip: input should be 'unscaled' or 'scaled' (got 'norm')"),
        (
            {"train.density_maps": "all"},
            "train.density_maps: input should be 'final-model' or 'all-epochs' (got 'all')",
        ),
        ({"train.precision": "fp16"}, "'auto', 'float32', 'bfloat16', 'float16' or 'published' (got 'fp16')"),
        ({"extract.precision": "published"}, "'auto', 'float32', 'bfloat16' or 'float16' (got 'published')"),
        ({"ablate.k": [0]}, "ablate.k.0: input should be greater than or equal to 1 (got 0)"),
        # fold folders are named fold<k>-seed<s> and read back by that pattern, which has no sign
        ({"train.seeds": [-1]}, "train.seeds.0: input should be greater than or equal to 0 (got -1)"),
    ],
)
def test_wrong_values_name_path_and_value(project: Path, overrides: dict[str, Any], expected: str) -> None:
    assert expected in message(project, overrides)


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_seeds_must_differ(project: Path, seeds: list[int]) -> None:
    assert message(project, {"train.seeds": seeds}) == (
        f"pipeline 'demo' with the options given: train: seeds must be one or more different integers, got {seeds}"
    )


def test_unknown_pipeline_names_the_nearest(project: Path) -> None:
    assert message(project, {}, "dmeo") == "unknown pipeline 'dmeo'\n  did you mean 'demo'? (pipelines/<name>.yaml)"
    text = message(project, {}, "demo-txt")
    assert text.endswith("did you mean 'demo-text'? similar: demo, demo-tokens (pipelines/<name>.yaml)")


def test_what_dvc_expands_over_belongs_in_params(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("pipelines: [demo]\n")
    assert message(project, {}, "mine") == "pipeline 'mine': pipelines: belongs in params.yaml, not in a pipeline file"


@pytest.mark.parametrize("below", [None, 0.5])
def test_padding_every_clip_alike_rules_out_longer_ones(project: Path, below: float | None) -> None:
    overrides = {"extract.pooling": "all-frames", "segment.tail": "merge", "segment.tail_below_s": below}
    assert message(project, overrides) == (
        "pipeline 'demo' with the options given: extract.pooling=all-frames pads clips to segment.max_duration_s, "
        "which segment.tail=merge exceeds; set segment.tail to keep, pad or drop"
    )


def test_recipe_stands_between_params_and_the_pipeline(project: Path) -> None:
    (project / "params.yaml").write_text("train: {epochs: 7, batch_size: 9, seeds: [4]}\nfinetune: {lr: 0.5}\n")
    (project / "pipelines/mine.yaml").write_text("train: {recipe: published, epochs: 50, lr: 0.25}\n")
    config = load_config(project, "mine", {"train.lr": 0.125})
    assert config.train.recipe == "published"
    assert config.train.seeds == (4,)  # no recipe has seeds: params.yaml
    assert (config.train.batch_size, config.train.search, config.finetune.lr) == (8, "none", 1e-4)  # the recipe
    assert config.train.epochs == 50  # the pipeline itself
    assert config.train.lr == 0.125  # --set


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_recipe_sets_all_that_it_stands_for(project: Path, recipe: str) -> None:
    other = next(name for name in RECIPES if name != recipe)
    (project / "params.yaml").write_text(f"train: {{recipe: {other}, epochs: 7}}\n")
    (project / "pipelines/mine.yaml").write_text("")
    config = load_config(project, "mine", {"train.recipe": recipe})
    for section, wanted in RECIPES[recipe].items():
        assert {name: getattr(getattr(config, section), name) for name in wanted} == wanted


def test_command_line_names_the_recipe_last(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("train: {recipe: published, epochs: 50}\n")
    config = load_config(project, "mine", {"train.recipe": "searched"})
    own = load_config(project)
    assert config.train == own.train.model_copy(update={"epochs": 50})
    assert config.finetune == own.finetune


def test_the_published_recipe_counts_epochs_whatever_steps_the_pipeline_has(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("train: {steps: 30, lr: 0.25}\n")
    published = load_config(project, "mine", {"train.recipe": "published"}).train
    assert (published.steps, published.schedule, published.lr) == (None, "plateau", 0.25)
    assert load_config(project, "mine", {"train.recipe": "searched"}) == load_config(project, "mine")
    assert "plateau needs epochs" in message(project, {"train.recipe": "published", "train.steps": 30}, "mine")
    own = "train: {recipe: published, steps: 30, schedule: cosine}\n"
    (project / "pipelines/mine.yaml").write_text(own)
    assert load_config(project, "mine", {"train.recipe": "published"}).train.steps == 30
    (project / "params.yaml").write_text("train: {recipe: published, steps: null, schedule: plateau}\n")
    (project / "pipelines/mine.yaml").write_text("train: {recipe: searched, steps: 30}\n")
    assert load_config(project, "mine").train.steps == 30
    assert load_config(project, "mine", {"train.recipe": "published"}).train.steps is None  # params.yaml is of it


@pytest.mark.parametrize("where", ["pipeline", "options"])
def test_recipe_of_params_changes_nothing(project: Path, where: str) -> None:
    (project / "params.yaml").write_text("train: {recipe: published, epochs: 7}\n")
    (project / "pipelines/mine.yaml").write_text("train: {recipe: published}\n" if where == "pipeline" else "")
    config = load_config(project, "mine", {"train.recipe": "published"} if where == "options" else {})
    assert config == load_config(project)
    assert config.train.epochs == 7


@pytest.mark.parametrize("value", ["published-one", None, 3, ["published"]])
def test_unknown_recipe_is_one_problem(project: Path, value: Any) -> None:
    assert message(project, {"train.recipe": value}) == (
        "pipeline 'demo' with the options given: train.recipe: input should be 'searched' or 'published' "
        f"(got {value!r})"
    )


@pytest.mark.parametrize("where", ["params", "pipeline", "options"])
def test_section_that_is_no_mapping_is_one_problem(project: Path, where: str) -> None:
    (project / "params.yaml").write_text("train: 5\n" if where == "params" else "")
    (project / "pipelines/mine.yaml").write_text("train: 5\n" if where == "pipeline" else "")
    text = message(project, {"train": 5} if where == "options" else {}, "mine")
    assert text.endswith("train: input should be a mapping, {...} (got 5)")
    assert len(text.splitlines()) == 1


def test_published_recipe_is_that_of_the_as_published_pipelines(project: Path) -> None:
    """But for what a pipeline has its own value of: the batch of fine-tuning."""
    twin, wanted = load_config(project, "iemocap-as-published"), deepcopy(RECIPES["published"])
    del wanted["finetune"]["batch_size"]
    for section, values in wanted.items():
        assert {name: getattr(getattr(twin, section), name) for name in values} == values


def test_merge_is_deep_and_keeps_what_is_not_named(project: Path) -> None:
    (project / "params.yaml").write_text("method_settings: {daam-v1: {num_heads: 4}}\n")
    config = load_config(project, None, {"method_settings.mha.num_heads": 2, "train.epochs": 3})
    assert config.method_settings == {"daam-v1": {"num_heads": 4}, "mha": {"num_heads": 2}}
    assert config.train.epochs == 3


def test_a_way_of_fine_tuning_has_its_own_settings_over_the_common_ones(project: Path) -> None:
    (project / "params.yaml").write_text(
        "finetune: {lr: 0.5, epochs: 7}\nfinetune_settings: {full-finetune: {lr: 1.0e-5, grad_clip_norm: null}}\n"
    )
    config = load_config(project, None, {"finetune_settings.full-finetune.batch_size": 2})
    tuned = config.for_adapter("full-finetune").finetune
    assert (tuned.lr, tuned.grad_clip_norm, tuned.batch_size, tuned.epochs) == (1e-5, None, 2, 7)
    assert config.for_adapter("lora-r8") is config
    assert (config.finetune.lr, config.finetune.grad_clip_norm, config.finetune.batch_size) == (0.5, 1.0, 8)
    assert config.model_dump()["finetune_settings"] == {
        "full-finetune": {"batch_size": 2, "lr": 1e-5, "grad_clip_norm": None}
    }
    again = Config.model_validate(config.model_dump(mode="json"))
    assert again.for_adapter("full-finetune") == config.for_adapter("full-finetune")
    assert again == config


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"full-finetune.lrr": 1}, "full-finetune.lrr: unknown setting; did you mean 'lr'?"),
        ({"full-finetune.lr": 0}, "full-finetune.lr: input should be greater than 0 (got 0)"),
        # what decides the items, or where they are computed, is the same for all
        ({"ia3.max_tokens": 5}, "ia3.max_tokens: unknown setting; known: accumulate, batch_size, encoder_dropout, "),
        ({"ia3": 5}, "ia3: input should be a mapping, {...} (got 5)"),
    ],
)
def test_wrong_settings_of_a_way_name_path_and_value(project: Path, overrides: dict[str, Any], expected: str) -> None:
    text = message(project, {f"finetune_settings.{name}": value for name, value in overrides.items()})
    assert f"finetune_settings.{expected}" in text


def test_fine_tuning_has_the_seeds_of_training_unless_it_has_its_own(project: Path) -> None:
    assert load_config(project, None, {"train.seeds": [1, 2]}).seeds_of("finetune") == (1, 2)
    config = load_config(project, None, {"train.seeds": [1, 2], "finetune.seeds": [42]})
    assert (config.seeds_of("train"), config.seeds_of("finetune")) == ((1, 2), (42,))
    assert "finetune: seeds must be one or more different integers, got []" in message(project, {"finetune.seeds": []})


@pytest.mark.parametrize("section", ["train", "finetune"])
@pytest.mark.parametrize("values", [[], [0.001, 0.001]])
def test_a_search_without_a_choice_is_refused(project: Path, section: str, values: list[float]) -> None:
    expected = f"{section}: search_lr must be one or more different values, got {values}"
    assert expected in message(project, {f"{section}.search_lr": values})


def test_a_wrong_value_in_a_list_is_one_problem(project: Path) -> None:
    text = message(project, {"reconstruct.widths": [0]}, "vqvae")
    assert text.endswith("reconstruct.widths.0: input should be greater than or equal to 1 (got 0)")
    assert len(text.splitlines()) == 1
    assert "reconstruct.widths: tuple should have at least 1 item" in message(project, {"reconstruct.widths": []})


def test_pictures_that_cannot_be_drawn_are_refused(project: Path) -> None:
    for dpi in (2, 1_000_000):  # no letter is that small, and no memory that large
        assert "importance.dpi: input should be " in message(project, {"importance.dpi": dpi})


def test_overrides_are_yaml_values() -> None:
    words = ["train.lr=1e-3", "train.seeds=[1, 2]", "download.classes=null", "a.b=x=y", "segment.write_audio=true"]
    assert parse_overrides(words) == {
        "train.lr": "1e-3",  # YAML 1.1 reads it as text; the typed tree turns it into a number
        "train.seeds": [1, 2],
        "download.classes": None,
        "a.b": "x=y",
        "segment.write_audio": True,
    }


def test_text_number_becomes_a_number(project: Path) -> None:
    assert load_config(project, None, parse_overrides(["train.lr=1e-3"])).train.lr == 1e-3


@pytest.mark.parametrize("word", ["train.lr", "=3"])
def test_override_without_key_or_sign(word: str) -> None:
    with pytest.raises(ConfigError, match=f"^--set takes section.key=value, got '{word}'$"):
        parse_overrides([word])


def test_override_that_is_not_yaml() -> None:
    with pytest.raises(ConfigError, match=r"^--set train.seeds: '\[1' is not a YAML value$"):
        parse_overrides(["train.seeds=[1"])


def test_read_yaml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with pytest.raises(ConfigError, match=f"^no file {path}$"):
        read_yaml(path)
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match=r"a\.yaml is not valid YAML: .*line 1"):
        read_yaml(path)
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match=r"must hold a mapping of settings, got list"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &a [*a]\n", "more than 100,000 values"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 12)), "100,000 values"),
        ("a: " + "[" * 100_000, "nested more than 50 levels deep"),
        ("a: 1\n" * 250_000, "has 1,250,000 bytes; at most 1,000,000 are allowed"),
    ],
)
def test_files_that_would_take_forever_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_yaml(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' stands in line 1 and again in line 3"),
        ("a: 1\nb: {lr: 1, lr: 2}\n", "'lr' stands in line 2 and again in line 2"),
        ("a:\n- x: 1\n  x: 2\n", "'x' stands in line 2 and again in line 3"),
    ],
)
def test_a_key_may_stand_once(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert caught.value.message == f"{path} is not valid YAML: {told}"
    assert caught.value.fix == "correct it, then look at it again: daamctl check"


def test_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &x {lr: 1}\nb: *x\nc: {<<: *x, epochs: 2}\n")
    assert read_yaml(path) == {"a": {"lr": 1}, "b": {"lr": 1}, "c": {"lr": 1, "epochs": 2}}


def test_only_utf8_text_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("a: größer".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"a\.yaml is not UTF-8: invalid .* at byte 5$"):
        read_yaml(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.yaml is not a regular file$"):
        read_yaml(tmp_path / "pipe.yaml")


@pytest.mark.parametrize("name", ["../../x", "/etc", "", ".", "a/b", "-x"])
def test_a_corpus_cannot_lead_out_of_the_project(project: Path, name: str) -> None:
    expected = f"download.corpus: a name consists of letters, digits, '.', '_' and '-', got '{name}'"
    assert expected in message(project, {"download.corpus": name})


@pytest.mark.parametrize("name", ["../outside", "/etc/x", ".", "", "demo/../demo"])
def test_a_pipeline_is_a_name_not_a_path(project: Path, name: str) -> None:
    (project / "outside.yaml").write_text("methods: [none]\n")
    with pytest.raises(ConfigError, match=rf"^unknown pipeline '{re.escape(name)}'"):
        load_config(project, name)


def test_root_is_found_from_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "data/x").mkdir(parents=True)
    monkeypatch.chdir(project / "data/x")
    assert find_root() == project.resolve()
    assert pipeline_names(find_root()) == sorted(path.stem for path in (project / "pipelines").iterdir())


def test_root_by_environment(project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError, match=r"^no params.yaml here or above; daamctl init DIR makes a project$"):
        find_root()
    monkeypatch.setenv("DAAMCTL_ROOT", str(project))
    assert find_root() == project.resolve()
    monkeypatch.setenv("DAAMCTL_ROOT", str(elsewhere))
    with pytest.raises(ConfigError, match=f"^DAAMCTL_ROOT is '{elsewhere}', which holds no params.yaml$"):
        find_root()


def test_section_is_json_able() -> None:
    assert Config().section("train")["seeds"] == [1]
    assert Config().section("ablate")["k"] == [1, 3]


def test_every_setting_has_a_description() -> None:
    sections = [field.annotation for field in Config.model_fields.values() if hasattr(field.annotation, "model_fields")]
    assert len(sections) == len({*Config.model_fields} & {*STAGES})
    fields = {f"{s.__name__}.{name}": field for s in [Config, *sections] for name, field in s.model_fields.items()}
    lacking = [
        name
        for name, field in fields.items()
        if not field.description and not hasattr(field.annotation, "model_fields")
    ]
    assert lacking == []


def test_whether_a_setting_named_the_reference() -> None:
    """An evaluation may be older than the settings, so its reference may be none of theirs."""
    methods = ["mean", "none", "ridge-last"]
    settings = [Config.model_validate({"methods": methods, "evaluate": {"reference": one}}) for one in (None, "mean")]
    assert [one.reference for one in settings] == ["none", "mean"]
    assert [one.names_reference("none") for one in settings] == [False, False]
    assert [one.names_reference("ridge-last") for one in settings] == [True, True]
