"""Given embeddings through download, segment and extract: stored as they are, in the order of their file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daamctl.artifacts.embeddings import read_embeddings, read_head
from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.errors import ArtifactError, CorpusError
from daamctl.extraction import given
from daamctl.stages import download, extract, segment
from tests.fixtures.given import items, write_items


def setting(**download: Any) -> Config:
    given = {"corpus": "embeddings", "source": "mine.npz", **download}
    return Config.model_validate({"download": given, "extract": {"shard_clips": 5}})


def prepared(project: Path, config: Config, name: str = "p") -> Layout:
    layout = Layout.of(project, name, config)
    download.run(layout, config)
    segment.run(layout, config)
    return layout


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_vectors_are_stored_in_the_order_of_the_file(
    project: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daamctl.corpora.vector_file.BLOCK_BYTES", 7 * 4 * 8 * 4)
    found = items(id=[f"i{row}" for row in range(23, -1, -1)], layers=[0, 1, 2, 3])
    write_items(project / f"mine{suffix}", found)
    config = setting(source=f"mine{suffix}")
    layout = prepared(project, config)
    extract.run(layout, config)
    clips, vectors, _ = read_embeddings(layout.embeddings, (0, 1, 2, 3))
    assert clips["clip_id"].to_list() == found["id"]
    assert clips["utterance_id"].to_list() == found["utterance"]
    np.testing.assert_array_equal(vectors, found["embeddings"])
    assert len(list(layout.embeddings.glob("embeddings-*.parquet"))) == 5
    head = read_head(layout.embeddings)
    assert (head.modality, head.layers, head.embed_dim) == ("embeddings", (0, 1, 2, 3), 8)
    assert head.encoder["name"] == f"embeddings from mine{suffix}"


def test_only_the_items_of_the_chosen_classes_are_stored(project: Path) -> None:
    found = items(label=["a", "a", "b", "b", "c", "c"] * 4)
    write_items(project / "mine.npz", found)
    config = setting(classes=["c", "a"])
    extract.run(layout := prepared(project, config), config)
    clips, vectors, _ = read_embeddings(layout.embeddings)
    rows = [row for row, label in enumerate(found["label"]) if label != "b"]
    assert clips["clip_id"].to_list() == [f"i{row}" for row in rows]
    np.testing.assert_array_equal(vectors, found["embeddings"][rows])
    assert read_head(layout.embeddings).classes == ("c", "a")


def test_stored_vectors_are_kept_and_shared(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_items(project / "mine.npz", items(group=None))
    config = setting(num_groups=4)
    extract.run(layout := prepared(project, config), config)
    (project / "mine.npz").rename(project / "moved.npz")
    extract.run(layout, config)  # the file is not needed again
    (project / "moved.npz").rename(project / "mine.npz")
    monkeypatch.setattr(extract, "store", None)
    other = setting(num_groups=3)
    extract.run(twin := prepared(project, other, "q"), other)
    one, two = (where.embeddings / "embeddings-00000.parquet" for where in (layout, twin))
    assert one.samefile(two)
    assert read_embeddings(twin.embeddings)[0]["group"].n_unique() == 3


def test_interrupted_storing_goes_on(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_items(project / "mine.npz", items())
    config = setting()
    layout = prepared(project, config)
    written: list[str] = []

    def dying(path: Path, *rest: Any) -> None:
        written.append(path.name)
        if len(written) == 3:
            raise KeyboardInterrupt
        real(path, *rest)

    real = given.write_shard
    monkeypatch.setattr(given, "write_shard", dying)
    with pytest.raises(KeyboardInterrupt):
        extract.run(layout, config)
    extract.run(layout, config)
    assert [name[-9] for name in written] == list("012234")
    np.testing.assert_array_equal(read_embeddings(layout.embeddings)[1], items()["embeddings"])


def test_a_file_that_changes_after_download_is_refused(project: Path) -> None:
    write_items(project / "mine.npz", items())
    config = setting()
    layout = prepared(project, config)
    write_items(project / "mine.npz", items(embeddings=items()["embeddings"] + 1))
    with pytest.raises(CorpusError) as caught:
        extract.run(layout, config)
    path = project / "mine.npz"
    assert str(caught.value) == (f"{path} has changed since it was read\n  read it again: daamctl download p")
    path.unlink()
    with pytest.raises(CorpusError, match=r"mine\.npz does not exist"):
        extract.run(layout, config)


def test_tables_of_other_settings_are_refused(project: Path) -> None:
    write_items(project / "mine.npz", items())
    config = setting()
    layout = prepared(project, config)
    with pytest.raises(ArtifactError, match=r"^the clips were made with other settings: download.num_groups: "):
        extract.run(layout, setting(num_groups=3))
    free = config.model_copy(update={"extract": config.extract.model_copy(update={"encoder": "wavlm-large"})})
    extract.run(layout, free)  # there is no encoder


def test_commands_without_a_pipeline_name_no_encoder(project: Path) -> None:
    config = setting()
    layout = Layout.of(project, None, config)
    assert (layout.run_name, layout.command("train")) == ("embeddings", "daamctl train --corpus embeddings")
    assert (
        replace(layout, corpus="emodb", encoder="x").command("extract") == "daamctl extract --corpus emodb --encoder x"
    )
