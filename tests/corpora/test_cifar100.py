"""CIFAR-100: records to pixels, the hub's copy, one conversion, and refusal of what is something else."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from daamctl.corpora import cifar100, images
from daamctl.errors import CorpusError

COUNTS = {"train": 7, "test": 3}


def pixels(part: str) -> np.ndarray:
    """uint8 images, shape (N, 32, 32, 3), no two rows, columns or channels alike."""
    rng = np.random.default_rng(len(part))
    return rng.integers(0, 256, (COUNTS[part], 32, 32, 3), dtype=np.uint8)


def labels(part: str) -> list[int]:
    return [(index * 37 + len(part)) % 100 for index in range(COUNTS[part])]


def write_binary(folder: Path, *parts: str) -> Path:
    """The release's form, written record by record from its description."""
    folder.mkdir(parents=True)
    for part in parts:
        with (folder / f"{part}.bin").open("wb") as stream:
            for image, label in zip(pixels(part), labels(part), strict=True):
                stream.write(bytes([label // 5, label]))
                for channel in range(3):
                    stream.write(image[:, :, channel].tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(cifar100.CLASSES) + "\n\n")
    return folder


def decoded(own: Path, part: str) -> np.ndarray:
    column = pq.read_table(own / f"{part}.parquet")["image"].to_pylist()
    return np.stack([np.asarray(Image.open(io.BytesIO(value["bytes"]))) for value in column])


def test_classes() -> None:
    assert len(set(cifar100.CLASSES)) == 100
    assert list(cifar100.CLASSES) == sorted(cifar100.CLASSES)
    assert [cifar100.CLASSES[number] for number in (0, 26, 39, 99)] == ["apple", "crab", "keyboard", "worm"]


def test_binary_version(tmp_path: Path) -> None:
    own = cifar100.adopt(write_binary(tmp_path / "given", "train", "test"), tmp_path / "own")
    assert own == tmp_path / "own"
    for part in COUNTS:
        assert np.array_equal(decoded(own, part), pixels(part))
    rows = cifar100.prepare(own)
    assert rows.columns == ["utterance_id", "path", "index", "label", "speaker", "group"]
    assert rows["label"].to_list() == [cifar100.CLASSES[number] for part in COUNTS for number in labels(part)]
    assert rows.row(8) == ("test-00001", "test.parquet", 1, rows["label"][8], "test-00001", "test")
    assert images.header_problems(rows, own).null_count() == 10


def test_the_folder_above_and_one_part(tmp_path: Path) -> None:
    write_binary(tmp_path / "given" / "cifar-100-binary", "test")
    own = cifar100.adopt(tmp_path / "given", tmp_path / "own")
    assert cifar100.prepare(own)["group"].to_list() == ["test"] * 3


def save(folder: Path, kind: str) -> Path:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
    from datasets import Image as ImageFeature

    features = Features(
        {"img": ImageFeature(), "fine_label": ClassLabel(num_classes=100), "coarse_label": Value("int64")}
    )
    parts = DatasetDict()
    for part in COUNTS:
        columns = {
            "img": [Image.fromarray(image) for image in pixels(part)],
            "fine_label": labels(part),
            "coarse_label": [0] * COUNTS[part],
        }
        parts[part] = Dataset.from_dict(columns, features=features)
    if kind == "arrow":
        parts.save_to_disk(folder)
    else:
        (folder / "cifar100").mkdir(parents=True)
        for part in parts:
            parts[part].to_parquet(folder / "cifar100" / f"{part}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_copy_of_the_hub_gives_the_same(tmp_path: Path, kind: str) -> None:
    own = cifar100.adopt(save(tmp_path / "saved", kind), tmp_path / "own")
    other = cifar100.adopt(write_binary(tmp_path / "given", "train", "test"), tmp_path / "other")
    assert cifar100.prepare(own).equals(cifar100.prepare(other))
    for part in COUNTS:
        assert np.array_equal(decoded(own, part), pixels(part))


def test_converted_once_and_anew_for_another_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, own = write_binary(tmp_path / "given", "train", "test"), tmp_path / "own"
    cifar100.adopt(given, own)
    made: list[str] = []
    write = images.write_images

    def count(path: Path, *args: object, **options: object) -> None:
        made.append(path.name)
        write(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "write_images", count)
    cifar100.adopt(given, own)
    cifar100.adopt(own, own)
    assert made == []
    (given / "train.bin").unlink()
    cifar100.adopt(given, own)
    assert made == ["test.parquet"]
    assert not (own / "train.parquet").exists()


def test_the_given_folder_is_only_read(tmp_path: Path) -> None:
    given = write_binary(tmp_path / "given", "train", "test")
    before = {path.name: path.stat().st_mtime_ns for path in given.iterdir()}
    os.chmod(given, 0o500)
    try:
        cifar100.adopt(given, tmp_path / "own")
    finally:
        os.chmod(given, 0o700)
    assert {path.name: path.stat().st_mtime_ns for path in given.iterdir()} == before


def test_obtain_fetches_converts_and_clears_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(url: str, target: Path, *, md5: str, **_: object) -> Path:
        calls.append((url, md5))
        with tarfile.open(target, "w:gz") as file:
            file.add(write_binary(tmp_path / "release", "train", "test"), arcname="cifar-100-binary")
        return target

    monkeypatch.setattr(cifar100, "fetch", fake)
    (tmp_path / "corpora").mkdir()
    for _ in range(2):
        own = cifar100.obtain(tmp_path / "corpora" / "cifar100")
    assert calls == [("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")]
    assert cifar100.prepare(own).height == 10
    assert [path.name for path in (tmp_path / "corpora").iterdir()] == ["cifar100"]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="does not look like CIFAR-100") as caught:
        cifar100.adopt(tmp_path / "empty", own)
    assert "daamctl download cifar100 --from DIR" in str(caught.value)
    given = write_binary(tmp_path / "given", "train", "test")
    content = (given / "test.bin").read_bytes()
    (given / "test.bin").write_bytes(content[:-1])
    with pytest.raises(CorpusError, match=r"test\.bin has 9221 bytes, which is not a multiple of 3074"):
        cifar100.adopt(given, own)
    (given / "test.bin").write_bytes(content[:1] + b"\x64" + content[2:])
    with pytest.raises(CorpusError, match=r"test\.bin: fine class 100 found, 0 to 99 allowed"):
        cifar100.adopt(given, own)
    (given / "test.bin").write_bytes(content)
    (given / "fine_label_names.txt").write_text("\n".join(reversed(cifar100.CLASSES)))
    with pytest.raises(CorpusError, match=r"fine_label_names\.txt does not list the 100 classes of CIFAR-100"):
        cifar100.adopt(given, own)
    assert not own.exists()
    with pytest.raises(CorpusError, match=r"has no train\.parquet or test\.parquet"):
        cifar100.prepare(given)


def test_a_python_version_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(CorpusError, match="does not look like CIFAR-100"):
        cifar100.adopt(tmp_path / "cifar-100-python", tmp_path / "own")
