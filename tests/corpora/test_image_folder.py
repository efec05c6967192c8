"""Images without classes: a folder, and COCO's two parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.corpora.image_folder import COCO, prepare_coco, prepare_folder
from daamctl.errors import CorpusError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "bsds"


def test_images_of_sub_folders_too_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b.jpg", "a/c.PNG", "a/notes.txt", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rows = prepare_folder(tmp_path)
    assert rows["path"].to_list() == ["a/c.PNG", "b.jpg"]
    assert rows["group"].null_count() == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared photographs are not at {SHARED}")
def test_shared_photographs() -> None:
    assert prepare_folder(SHARED).height == 200


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"has no images \(\.png, .*\n.*daamctl download images --from DIR"):
        prepare_folder(tmp_path)


def test_coco_needs_both_parts(tmp_path: Path) -> None:
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017/1.jpg").touch()
    with pytest.raises(CorpusError, match="has no folder val2017"):
        prepare_coco(tmp_path)
    (tmp_path / "val2017").mkdir()
    (tmp_path / "val2017/2.jpg").touch()
    rows = prepare_coco(tmp_path)
    assert rows.select("path", "group").rows() == [("train2017/1.jpg", "train"), ("val2017/2.jpg", "test")]
    assert COCO.fingerprint is not None
    assert sum(COCO.fingerprint.per_group.values()) == sum(COCO.fingerprint.per_class.values())
