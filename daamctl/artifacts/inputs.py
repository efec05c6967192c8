"""What a pipeline reads: tables, embeddings and crops, each made with its settings and from what lies beside it now.

A folder of another pipeline in the place of this one's, and a table that was made again since, are refused. What was
deleted, e.g. to save space, is not compared with. `read_folds` does the same for trained folds, `Artifact.read` for
the results of the later stages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daamctl.artifacts.clips import ClipTable, read_clips
from daamctl.artifacts.embeddings import EmbeddingsMetadata, check_settings, read_head, with_keys
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import CROPS, Crops, read_crops
from daamctl.artifacts.skipped import folder_of
from daamctl.artifacts.utterances import CorpusTable, UtteranceTable, read_utterances
from daamctl.config import Config
from daamctl.config.keys import key_settings
from daamctl.data.stage_table import STAGES, steps_of
from daamctl.errors import ArtifactError
from daamctl.store.records import hashes_of

CUT = ("start_s", "duration_s")
"""Columns that cutting changes."""


def utterances_of(layout: Layout, config: Config) -> UtteranceTable:
    """Read the utterances of a pipeline.

    Raises:
        ArtifactError: they are missing or damaged, or were made with other settings. So do the following functions, and
            if what they read was not made from what lies beside it now.
    """
    table, path = read_utterances(layout.utterances), layout.utterances
    made = {"download": table.settings}
    check_settings(made, config, table.modality, corpus=table.corpus, what="utterances", path=path)
    return table


def clips_of(layout: Layout, config: Config) -> ClipTable:
    """Read the clips of a pipeline, compared with the utterances."""
    table = read_clips(layout.clips)
    path = layout.utterances if table.modality == "embeddings" else layout.clips
    made = {stage: table.settings[stage] for stage in ("download", "segment")}
    check_settings(made, config, table.modality, corpus=table.corpus, what="clips", path=path)
    _check_source(layout, table, table.classes, layout.clips)
    return table


def embeddings_of(layout: Layout, config: Config) -> EmbeddingsMetadata:
    """Read the metadata of the embeddings of a pipeline, compared with the clips."""
    head, path = read_head(layout.embeddings), layout.embeddings
    check_settings(head.settings, config, head.modality, corpus=head.corpus, what="embeddings", path=path)
    if head.vectors_key and layout.clips.exists() and with_keys(head, clips_of(layout, config)).key != head.key:
        raise ArtifactError(f"the embeddings in {path} are not of the clips in {layout.clips}", path=path)
    return head


def crops_of(layout: Layout, config: Config) -> Crops:
    """Read the crops of a pipeline, compared with the utterances."""
    path = layout.stage("crop") / CROPS
    crops = read_crops(path)
    if any(crops.settings.get(name) != value for name, value in key_settings(config, "crop").items()):
        raise ArtifactError(f"{path} was made with other settings", path=path)
    _check_source(layout, crops, None, path)
    return crops


def inputs_of_report(layout: Layout, config: Config, stage: str) -> dict[str, Any]:
    """What a stage writes its report from: its settings, and the SHA-256 of every record that it reads."""
    paths = [
        path
        for name, entry in steps_of(config)
        if name in STAGES[stage].reads
        for path in folder_of(layout, name, entry).glob(STAGES[name].finished)
    ]
    return {"settings": config.section(stage), "inputs": hashes_of(layout.data, paths)}


def _check_source(layout: Layout, table: CorpusTable | Crops, classes: tuple[str, ...] | None, path: Path) -> None:
    """Check that all rows of a table are of the utterances that lie beside it, and of the same files."""
    if not layout.utterances.exists():
        return
    source = read_utterances(layout.utterances)
    on = [name for name in table.rows.columns if name in source.rows.columns and name not in CUT]
    others = table.rows.select(on).join(source.rows.select(on).unique(), on=on, how="anti", nulls_equal=True)
    same = (table.corpus, table.content) == (source.corpus, source.content) and classes in (None, source.classes)
    if not same or others.height:
        raise ArtifactError(f"{path} was not made from {layout.utterances}, which lies beside it", path=path)
