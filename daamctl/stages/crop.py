"""Stage `crop`: choose the places of square crops in images. Copies no pixels."""

from __future__ import annotations

import logging
from pathlib import Path

from daamctl.artifacts.inputs import utterances_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import CROPS, write_crops
from daamctl.config import Config
from daamctl.corpora.sources import root_of
from daamctl.errors import CorpusError
from daamctl.reconstruction.crops import place_crops

log = logging.getLogger(__name__)


def run(layout: Layout, config: Config) -> Path:
    """Write the table of crops.

    Returns:
        The file written.

    Raises:
        ArtifactError: there is no utterance table, or it was made with other settings.
        CorpusError: the corpus has no images, one cannot be decoded or is too small, or a part is empty.
    """
    table = utterances_of(layout, config)
    if table.modality != "image":
        raise CorpusError(f"corpus '{table.corpus}' has no images to reconstruct", fix="choose another download.corpus")
    crops = place_crops(table, root_of(layout, table), config.crop)
    path = layout.stage("crop") / CROPS
    write_crops(path, crops)
    side = config.crop.size
    counts = ", ".join(f"{part} {crops.part(part).height:,}" for part in ("train", "test"))
    log.info("%d images give crops of %d x %d pixels: %s", table.rows.height, side, side, counts)
    return path
