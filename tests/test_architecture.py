"""The shape of the project: imports point down, tables are complete, the command starts fast, the DAG fits together."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from daamctl.adapters import FINETUNES
from daamctl.compute.engines import ENGINES
from daamctl.config import Config, load_config, pipeline_names, read_yaml
from daamctl.corpora import CORPORA
from daamctl.data import METRICS
from daamctl.data.stage_table import STAGES
from daamctl.encoders import ENCODERS, FAMILIES, SPEECH_TYPES
from daamctl.methods import METHODS, resolve_method
from daamctl.stages.ls import KINDS, TABLES, entries, header
from tests.fixtures.projects import REPOSITORY

PACKAGE = REPOSITORY / "daamctl"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Higher may import lower, never the other way, and within a level nothing.
LEVELS = [
    {"__main__", ""},
    {"cli"},
    {"stages"},
    {"planning", "models", "reconstruction"},
    {"paper", "extraction"},
    {"corpora", "encoders", "fit", "evaluation", "reporting"},
    {"adapters", "artifacts"},
    {"methods", "compute"},
    {"config", "data", "store"},
    {"errors"},
]
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}
UPWARDS = {
    ("methods", "adapters"),  # `load_weights` opens fine-tuned encoders too
}


def part_of(module: str) -> str:
    """`daamctl.methods.daam` -> `methods`; the package itself -> empty."""
    return [*module.split("."), ""][1]


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of every module imported anywhere in a file, also inside functions."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            for alias in node.names:  # `from daamctl.stages import train` imports a module
                if (REPOSITORY / node.module.replace(".", "/") / f"{alias.name}.py").exists():
                    yield f"{node.module}.{alias.name}"


def internal(path: Path) -> set[tuple[str, str]]:
    """(importing part, imported part) for every import of our own."""
    own = part_of(module_of(path))
    found = {name for name in imports_of(path) if name.split(".")[0] == "daamctl"}
    return {(own, part_of(name)) for name in found if part_of(name) != own}


def test_every_part_has_a_level() -> None:
    assert {part_of(module_of(path)) for path in MODULES} == set(LEVEL)
    assert len(MODULES) > 80


def test_imports_point_down() -> None:
    pairs = {pair for path in MODULES for pair in internal(path)}
    assert len(pairs) > 40
    wrong = {(a, b) for a, b in pairs if LEVEL[a] >= LEVEL[b] and (a, b) not in UPWARDS}
    assert wrong == set()
    assert pairs >= UPWARDS  # an exception that nothing needs any more must go


READ_INPUTS = {
    "adapters", "artifacts", "config", "corpora", "encoders", "extraction", "methods", "models", "paper", "planning",
    "stages/check", "stages/crop", "stages/download", "stages/export", "stages/extract", "stages/finetune",
    "stages/new", "stages/predict", "stages/segment",
}  # fmt: skip
READ_INPUTS |= {"evaluation/printed"}  # printed scores of recordings are per utterance or clip
READ_INPUTS |= {"fit/adapter"}  # the classifier of an adapter is for texts or for words


def test_only_readers_of_inputs_ask_for_the_modality() -> None:
    """What an item is, what is independent and which figure counts is asked of the task (`data/task.py`)."""
    asking = set()
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                if any(side.rpartition(".")[2] == "modality" for side in sides) and "None" not in sides:
                    asking.add(path.relative_to(PACKAGE).with_suffix("").as_posix())
    assert len(asking) > 20
    places = {
        next((place for place in READ_INPUTS if name.startswith(f"{place}/") or name == place), name) for name in asking
    }
    assert places == READ_INPUTS


def test_only_reports_and_commands_use_the_paper() -> None:
    """What the papers say must not change what is computed, so that the core works without their tables."""
    using = {
        path.relative_to(PACKAGE).as_posix() for path in MODULES if ("paper" in {name for _, name in internal(path)})
    }
    commands = {
        "stages/check.py",  # knows which names exist
        "stages/paper.py",
        "stages/mlm.py",
        "stages/compare.py",
        "stages/export.py",
        "cli/compare.py",
        "cli/deviations.py",
        "cli/explain.py",
    }
    assert using == {"stages/report.py", *commands}


def test_stages_never_import_stages() -> None:
    for path in (PACKAGE / "stages").glob("*.py"):
        others = {name for name in imports_of(path) if name.startswith("daamctl.stages.")}
        wanted = {"daamctl.stages.evaluate"} if path.name == "bundle.py" else set()  # scores again what it verifies
        assert others == wanted, path
    assert "daamctl.stages." in (PACKAGE / "stages/pipeline.py").read_text(encoding="utf-8")  # by the name in the table


def test_methods_import_torch_and_little_else() -> None:
    allowed = {"torch", "jaxtyping", "pydantic", "safetensors", "daamctl"} | set(sys.stdlib_module_names)
    for path in (PACKAGE / "methods").glob("*.py"):
        names = set(imports_of(path))
        assert {name.split(".")[0] for name in names} <= allowed, path
        ours = {part_of(name) for name in names if name.startswith("daamctl.")}
        assert ours <= {"methods", "data", "errors", "store"} | (
            {"adapters"} if path.name == "weights.py" else set()
        ), path


def test_adapters_know_nothing_of_files_and_settings() -> None:
    for path in (PACKAGE / "adapters").glob("*.py"):
        names = set(imports_of(path))
        assert {name.split(".")[0] for name in names} <= {"torch", "transformers", "peft", "daamctl"} | set(
            sys.stdlib_module_names
        ), path
        ours = {part_of(name) for name in names if name.startswith("daamctl.")}
        fusions = {"methods"} if path.name == "fusion.py" else set()
        assert ours <= {"adapters", "data", "errors", "compute"} | fusions, path
        assert "compute" not in ours or "daamctl.compute.attention" in names, path


def test_settings_and_artifacts_import_no_torch() -> None:
    parts = [*(path.relative_to(PACKAGE) for path in (PACKAGE / "config").glob("*.py")), Path("stages/check.py")]
    parts += [
        Path(f"{name}.py") for name in ("artifacts/layout", "errors", "data/registry", "stages/ls", "paper/deviations")
    ]
    for part in parts:
        names = {name.split(".")[0] for name in imports_of(PACKAGE / part)}
        assert names.isdisjoint({"torch", "transformers", "mlflow", "sklearn", "matplotlib"}), part


def test_only_the_command_line_catches_our_errors_as_a_whole() -> None:
    """`except DaamctlError` belongs in cli; `check` collects the errors of several pipelines."""
    catching = set()
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ExceptHandler) and node.type and "DaamctlError" in ast.unparse(node.type):
                catching.add(path.relative_to(PACKAGE).as_posix())
    assert catching <= {"cli/app.py", "cli/options.py", "stages/check.py"}


@pytest.mark.parametrize("table", [METHODS, FINETUNES, FAMILIES, CORPORA, METRICS], ids=lambda table: table.kind)
def test_every_target_resolves_and_has_a_line_of_text(table: Any) -> None:
    assert len(table) >= 3
    for name in table:
        assert table.load(name) is not None
        assert table.summary(name)
        assert re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", name)


ENGINE = {
    "base",
    "cost",
    "cut",
    "discovery",
    "frozen",
    "licence",
    "load",
    "masked",
    "save",
    "encoder_size",
    "presets",
    "encoder_cache",
    "speech",
}


@pytest.mark.parametrize(
    ("folder", "tables", "support"),
    [
        (
            "methods",
            (METHODS,),
            {
                "base",
                "contract",
                "decoder",
                "activity_check",
                "heads",
                "published",
                "ridge",
                "settings",
                "weights",
                "weights_metadata",
            },
        ),
        (
            "adapters",
            (FINETUNES,),
            {"module_lookup", "base", "activity_check", "heads", "inject", "words", "released"},
        ),
        (
            "compute",
            (ENGINES,),
            {
                "attention",
                "engine",
                "engines",
                "environment",
                "progress",
                "energy",
                "devices",
                "control_groups",
                "cpu_formats",
                "threads",
            },
        ),
        (
            "corpora",
            (CORPORA,),
            {
                "base",
                "dataset",
                "fetch",
                "file_names",
                "files",
                "fingerprint",
                "groups",
                "hub",
                "images",
                "rules",
                "annotations",
                "arrays",
                "beside",
                "corpus_stats",
                "lists",
                "unnamed",
                "dumps",
                "kaldi_archive",
                "sources",
                "tags",
                "vector_file",
                "wikitext2",  # has no classes; `daamctl mlm` alone reads it
            },
        ),
        ("encoders", (FAMILIES,), ENGINE),
    ],
)
def test_every_file_is_in_its_table(folder: str, tables: tuple[Any, ...], support: set[str]) -> None:
    found = [*(PACKAGE / folder).glob("*.py"), *(path.parent for path in (PACKAGE / folder).glob("*/__init__.py"))]
    files = {path.stem for path in found} - {"__init__"}
    listed = {table.module_of(name).rsplit(".", 1)[1] for table in tables for name in table}
    assert listed
    assert files == listed | support


def test_presets_name_a_known_family() -> None:
    for name in ENCODERS:
        preset = ENCODERS[name]
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert preset.summary.endswith(".")
        assert preset.modality != "speech" or preset.model_type in SPEECH_TYPES
        assert preset.hub_id is None or re.fullmatch(r"[\w.-]+/[\w.-]+", preset.hub_id)


def test_command_starts_without_heavy_imports() -> None:
    heavy = [
        "torch",
        "torchaudio",
        "transformers",
        "mlflow",
        "polars",
        "pyarrow",
        "pydantic",
        "numpy",
        "sklearn",
        "dvc",
        "ray",
    ]
    script = (
        "import json, sys, time; start = time.perf_counter(); import daamctl.cli.app; "
        f"print(json.dumps([[n for n in {heavy} if n in sys.modules], time.perf_counter() - start]))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded, seconds = json.loads(done.stdout)
    print(f"import daamctl.cli.app: {seconds:.2f} s")  # noqa: T201
    assert loaded == []


def test_listing_and_check_import_no_torch() -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from daamctl.config import load_config; from daamctl.paper.deviations import deviations, verdict\n"
        "from daamctl.stages.ls import KINDS, entries; from daamctl.stages import check\n"
        "assert all(entries(kind) for kind in KINDS); names = check.run(Path('.'))\n"
        "configs = [load_config(Path('.'), name) for name in names]\n"
        "assert all(verdict(row, config) for row in deviations() for config in configs)\n"
        "print([n for n in ('torch', 'transformers', 'mlflow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout == "[]\n"


LEAN = {
    "--help": "torch jaxtyping transformers mlflow pandas polars pyarrow numpy pydantic scipy sklearn matplotlib",
    "ls methods": "torch transformers mlflow pandas polars scipy sklearn matplotlib",
    "check --inventory": "torch transformers mlflow pandas scipy sklearn matplotlib",
    "download --pipeline demo-text": "torch transformers mlflow pandas scipy sklearn matplotlib",
    "segment --pipeline demo-text": "torch transformers mlflow pandas scipy sklearn matplotlib",
}
"""Command -> what it has no use for; the stages in the order in which they run."""


def test_commands_load_only_what_they_use(project: Path) -> None:
    for words, spared in LEAN.items():
        script = (
            "import sys; from daamctl.cli.app import app\n"
            f"try: app({words.split()})\n"
            "except SystemExit as end: assert not end.code, end.code\n"
            f"print([name for name in {spared.split()} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=project)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]", words


def test_training_loads_no_statistics() -> None:
    """They take as long to import as a closed-form probe takes to solve; only `evaluate` needs them."""
    script = "import sys, daamctl.stages.train; print([x for x in ('sklearn', 'statsmodels') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout == "[]\n"


def test_everything_public_has_a_docstring() -> None:
    lacking, met = [], 0
    for path in MODULES:
        tree = parsed(path)
        if not ast.get_docstring(tree):
            lacking.append(str(path))
        for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
            if isinstance(owner, ast.ClassDef) and owner.name.startswith("_"):
                continue
            for node in owner.body:
                if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
                    continue
                met += 1
                decorators = {ast.unparse(item) for item in node.decorator_list}
                if not ast.get_docstring(node) and "overload" not in decorators:
                    lacking.append(f"{path}:{node.lineno} {node.name}")
    assert met > 200
    assert lacking == []


def test_torch_and_torchaudio_are_raised_together() -> None:
    """The wheel of torchaudio names no torch, so pip would join any two of them."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = dict(one.split(">=") for one in settings["project"]["dependencies"] if one.startswith("torch"))
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line.partition("==")[0] in wanted)
    assert set(wanted) == {"torch", "torchaudio"} == set(pinned)
    assert wanted["torch"] == wanted["torchaudio"]
    assert pinned["torch"].split("+")[0] == pinned["torchaudio"].split("+")[0]
    assert pinned["torch"].startswith(f"{wanted['torch']}.")


def test_tests_mirror_modules_that_exist() -> None:
    """A test file named after a module that is gone tests nothing its reader would look for."""
    free = {"tests/test_architecture.py", "tests/test_sources.py", "tests/fit/test_adapter_words.py"}
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        where = path.relative_to(REPOSITORY).as_posix()
        several = ("tests/contracts", "tests/smoke", "tests/known_issues", "tests/scripts", "tests/gpu")  # modules
        if where in free or where.startswith(several):
            continue
        relative = path.relative_to(REPOSITORY / "tests")
        name = relative.name.removeprefix("test_")
        target = PACKAGE / relative.parent / name
        assert target.exists() or relative.as_posix() == "methods/test_build.py", f"{where}: no {target}"


def test_params_file_equals_the_defaults() -> None:
    """One place says what the defaults are; the file repeats them to be read and edited."""
    params = load_config(REPOSITORY)
    assert params.model_copy(update={"pipelines": ()}) == Config()
    assert set(read_yaml(REPOSITORY / "params.yaml")) == set(Config.model_fields)
    for name, section in read_yaml(REPOSITORY / "params.yaml").items():
        if isinstance(section, dict) and name not in ("method_settings", "finetune_settings"):
            assert set(section) == set(type(getattr(params, name)).model_fields), name


def test_every_pipeline_loads_and_says_what_it_is() -> None:
    names = pipeline_names(REPOSITORY)
    assert len(names) > 0
    listed = sorted(read_yaml(REPOSITORY / "params.yaml")["pipelines"])
    assert listed == [
        name for name in names if not name.endswith(("-shots", "every-method"))
    ]  # a plain `dvc repro` stays short
    for name in names:
        load_config(REPOSITORY, name)
        path = REPOSITORY / "pipelines" / f"{name}.yaml"
        assert header(path).endswith((".", "?")) or len(header(path)) > 20, name
        comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        text = " ".join(comments)
        assert all(word in text for word in ("Source:", "Cost:", "Expect:")), name


def test_listing_covers_every_table() -> None:
    assert KINDS == ("pipelines", "corpora", "encoders", "methods", "finetunes", "blocks", "metrics")
    for kind in KINDS:
        names = [name for name, _ in entries(kind)]
        if kind == "methods":
            decoders = [name for name in names if name not in METHODS]
            assert {"none-mlp", "daam-v1-mlp"} <= set(decoders)
            assert all(resolve_method(name)[1] == {"decoder": "mlp"} for name in decoders)
            names = [name for name in names if name in METHODS]
        assert names == (pipeline_names(REPOSITORY) if kind == "pipelines" else list(TABLES[kind]))


OTHERS = {
    "check",
    "compare",
    "export",
    "identify",
    "init",
    "inventory",
    "judge",
    "mlm",
    "new",
    "paper",
    "pipeline",
    "plan",
    "predict",
    "preflight",
    "protocols",
    "serve",
    "shots",
    "track",
    "truncate",
}


def test_stage_modules_are_the_stages_and_what_looks_at_them() -> None:
    names = {path.stem for path in (PACKAGE / "stages").glob("*.py")} - {"__init__"}
    several = {"bundle", "doctor", "ls"}  # more than one function to call
    assert names == {*STAGES, *OTHERS, *several}
    for name in names - several:
        assert callable(importlib.import_module(f"daamctl.stages.{name}").run)
