"""The machine's register of corpora."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from daamctl.config.corpus_keys import key_of
from daamctl.corpora.sources import files_root, forget, register, source_of, sources_file
from daamctl.errors import ConfigError, CorpusError


def test_unregistered(tmp_path: Path) -> None:
    assert source_of(tmp_path, "emodb") is None
    with pytest.raises(CorpusError, match="'emodb' is not registered") as caught:
        files_root(tmp_path, "emodb")
    assert "daamctl download --corpus emodb --from DIR" in str(caught.value)


def test_inside_the_project_is_stored_relative(tmp_path: Path) -> None:
    project = tmp_path / "project"
    folder = project / "data" / "corpora" / "demo"
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    register(project, "demo", folder)
    register(project, "emodb", tmp_path / "elsewhere")
    stored = yaml.safe_load(sources_file(project).read_text())
    assert stored == {"demo": "data/corpora/demo", "emodb": str(tmp_path / "elsewhere")}
    assert files_root(project, "demo") == folder
    project.rename(tmp_path / "moved")
    assert files_root(tmp_path / "moved", "demo").is_dir()


def test_a_copy_for_an_experiment_of_dvc_finds_what_its_project_has(tmp_path: Path) -> None:
    copy = tmp_path / "project/.dvc/tmp/exps/standalone/tmp1/project"
    (tmp_path / "project/data/corpora/own").mkdir(parents=True)
    register(tmp_path / "project", "emodb", tmp_path / "project/data/corpora/own")
    register(tmp_path / "project", "iemocap", tmp_path / "gone")
    assert files_root(copy, "emodb") == tmp_path / "project/data/corpora/own"
    assert source_of(copy, "iemocap") is None
    register(copy, "emodb", tmp_path)
    assert files_root(copy, "emodb") == tmp_path


def test_folder_that_is_gone(tmp_path: Path) -> None:
    register(tmp_path, "emodb", tmp_path / "gone")
    with pytest.raises(CorpusError, match=r"was registered at .*gone, which does not exist") as caught:
        files_root(tmp_path, "emodb")
    assert "daamctl download --corpus emodb --from DIR" in str(caught.value)


@pytest.mark.parametrize("registered", [True, False])
def test_a_corpus_that_daamctl_makes_needs_no_folder(tmp_path: Path, registered: bool) -> None:
    if registered:
        register(tmp_path, "digits", tmp_path / "data/corpora/digits")
    with pytest.raises(CorpusError, match="'digits' is not on this machine") as caught:
        files_root(tmp_path, "digits")
    assert caught.value.fix == "daamctl download digits makes it"
    register(tmp_path, "digits", tmp_path / "gone")
    with pytest.raises(CorpusError, match="download --corpus digits --from DIR"):
        files_root(tmp_path, "digits")


def test_manifests_have_keys_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").touch()
        register(tmp_path, key_of("manifest", tmp_path / name / f"{name}.csv"), tmp_path / name / f"{name}.csv")
    assert files_root(tmp_path, "manifest:a") == tmp_path / "a"
    assert files_root(tmp_path, "manifest:b") == tmp_path / "b"
    assert source_of(tmp_path, "manifest") == tmp_path / "b" / "b.csv"
    with pytest.raises(CorpusError, match="'manifest:c' is not registered") as caught:
        files_root(tmp_path, "manifest:c")
    assert "daamctl download --corpus manifest --from c.csv" in str(caught.value)


def test_folder_as_manifest(tmp_path: Path) -> None:
    for name in ("pets.v1", "pets.v2"):
        (tmp_path / name).mkdir()
        register(tmp_path, key_of("manifest", tmp_path / name), tmp_path / name)
    assert files_root(tmp_path, "manifest:pets.v1") == tmp_path / "pets.v1"
    assert files_root(tmp_path, "manifest:pets.v2") == tmp_path / "pets.v2"
    (tmp_path / "b" / "pets.v1").mkdir(parents=True)
    with pytest.raises(CorpusError, match=r"another manifest named 'pets\.v1' is registered"):
        register(tmp_path, "manifest:pets.v1", tmp_path / "b" / "pets.v1")
    (tmp_path / "pets.v1").rmdir()
    with pytest.raises(CorpusError, match=r"was registered at .*pets\.v1, which does not exist") as caught:
        files_root(tmp_path, "manifest:pets.v1")
    assert "daamctl download --corpus manifest --from pets.v1" in str(caught.value)


def test_two_manifests_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.csv").touch()
    register(tmp_path, "manifest:list", tmp_path / "a" / "list.csv")
    register(tmp_path, "manifest:list", tmp_path / "a" / "list.csv")
    with pytest.raises(CorpusError, match="another manifest named 'list' is registered"):
        register(tmp_path, "manifest:list", tmp_path / "b" / "list.csv")
    (tmp_path / "a" / "list.csv").unlink()
    register(tmp_path, "manifest:list", tmp_path / "b" / "list.csv")
    assert files_root(tmp_path, "manifest:list") == tmp_path / "b"


def test_simultaneous_registrations_all_arrive(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: register(tmp_path, f"corpus{number}", tmp_path / str(number)), range(40)))
    assert len(yaml.safe_load(sources_file(tmp_path).read_text())) == 40


def test_what_was_met_in_a_folder_is_forgotten_before_others_take_its_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        register(tmp_path, "emodb", tmp_path / name, f"content-{name}")
    forget(tmp_path, "emodb", tmp_path / "a")
    assert source_of(tmp_path, "emodb", "content-a") is None
    assert source_of(tmp_path, "emodb", "content-b") == source_of(tmp_path, "emodb") == tmp_path / "b"


def test_damaged_register(tmp_path: Path) -> None:
    sources_file(tmp_path).parent.mkdir(parents=True)
    sources_file(tmp_path).write_text("demo: [1, 2]\n")
    with pytest.raises(CorpusError, match="'demo' must be a path"):
        source_of(tmp_path, "demo")
    sources_file(tmp_path).write_text("demo: [\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        source_of(tmp_path, "demo")


def test_tagged_sentences_have_keys_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    for place in (tmp_path / "mine.conll", tmp_path / "table.parquet"):
        place.touch()
        register(tmp_path, key_of("conll", place), place)
        assert files_root(tmp_path, f"conll:{place.stem}") == tmp_path
    register(tmp_path, key_of("conll", tmp_path / "split"), tmp_path / "split")
    assert files_root(tmp_path, "conll:split") == tmp_path / "split"
    assert source_of(tmp_path, "conll") == tmp_path / "split"
    with pytest.raises(CorpusError, match="'conll:other' is not registered") as caught:
        files_root(tmp_path, "conll:other")
    assert "daamctl download --corpus conll --from other.conll" in str(caught.value)
