"""Images without classes, for pipelines that reconstruct them: a folder of your own, and COCO 2017.

Source of COCO: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014. Only its images are read.
Every image counts as its own source.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from daamctl.corpora.base import PREPARED_IMAGE, Corpus, Fingerprint
from daamctl.corpora.files import files_below
from daamctl.corpora.images import FORMATS
from daamctl.errors import CorpusError

LABEL = "image"
"""The only class."""
COCO_PARTS = {"train2017": "train", "val2017": "test"}
GET_IMAGES = "give a folder of images: daamctl download images --from DIR"
GET_COCO = (
    "unpack train2017.zip and val2017.zip (19 GB, cocodataset.org) into one folder and register it: "
    "daamctl download coco --from DIR"
)


def prepare_folder(root: Path) -> pl.DataFrame:
    """List the images of a folder and its sub-folders; groups are yet to be formed."""
    return _rows(root, {root: None}, GET_IMAGES)


def prepare_coco(root: Path) -> pl.DataFrame:
    """List the images of `train2017` (train part) and `val2017` (test part)."""
    missing = [name for name in COCO_PARTS if not (root / name).is_dir()]
    if missing:
        raise CorpusError(f"{root} has no folder {' and '.join(missing)}", fix=GET_COCO)
    return _rows(root, {root / name: part for name, part in COCO_PARTS.items()}, GET_COCO)


def _rows(root: Path, folders: dict[Path, str | None], fix: str) -> pl.DataFrame:
    found = [
        (path.relative_to(root).as_posix(), part)
        for folder, part in folders.items()
        for path in files_below(folder)
        if path.suffix.lower() in FORMATS
    ]
    if not found:
        raise CorpusError(f"{root} has no images ({', '.join(FORMATS)})", fix=fix)
    names, parts = zip(*found, strict=True)
    columns = [names, names, [None] * len(found), [LABEL] * len(found), names, parts]
    return pl.DataFrame(columns, schema=PREPARED_IMAGE)


IMAGES = Corpus(
    name="images",
    title="a folder of images of your own, without classes, to reconstruct them",
    licence="yours",
    classes=(LABEL,),
    prepare=prepare_folder,
    fingerprint=None,
    how_to_get=GET_IMAGES,
    modality="image",
)
COCO = Corpus(
    name="coco",
    title="COCO 2017: 123,287 photographs without their annotations, to reconstruct them",
    licence="Flickr terms of use, various Creative Commons licences; https://cocodataset.org/#termsofuse",
    classes=(LABEL,),
    prepare=prepare_coco,
    fingerprint=Fingerprint(per_class={LABEL: 123_287}, per_group={"train": 118_287, "test": 5_000}),
    how_to_get=GET_COCO,
    modality="image",
)
