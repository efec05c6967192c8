"""Keys of corpora: the name of a corpus, followed by that of a file or folder if there may be several.

`daamctl.corpora.sources` registers the place of each.
"""

from __future__ import annotations

from pathlib import Path

from daamctl.config.schema import EMBEDDINGS

MANIFEST = "manifest"
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".json", ".jsonl", ".ndjson")
"""Suffixes of a manifest that is a file; all others are folders."""
VECTORS = (".parquet", ".npz", ".safetensors")
"""Suffixes of a file of embeddings."""
COLUMNS = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".tsv", ".txt")
"""Suffixes of a file of tagged words."""
CONLL = "conll"
IMAGES = "images"
FILES = (MANIFEST, EMBEDDINGS, CONLL, IMAGES)
"""Corpora of which there may be several. Most are files; manifests and tagged sentences may be folders, images are."""


def key_of(corpus: str, source: Path) -> str:
    """Key under which a corpus given as `source` is registered."""
    return f"{corpus}:{source.stem if is_table(source) else source.name}" if corpus in FILES else corpus


def is_table(source: Path) -> bool:
    """Whether a corpus is a file rather than a folder."""
    return source.suffix.lower() in (*TABLES, *VECTORS, *COLUMNS)
