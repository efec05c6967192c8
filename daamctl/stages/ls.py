"""List everything that can be named (pipelines, methods, …) with one line each, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daamctl.adapters import FINETUNES
from daamctl.config import PIPELINES_DIR, nearest_root, pipeline_names
from daamctl.corpora import CORPORA
from daamctl.data import METRICS
from daamctl.encoders import ENCODERS
from daamctl.methods import METHODS
from daamctl.reconstruction import BLOCKS
from daamctl.store import starter

TABLES: dict[str, Any] = {
    "corpora": CORPORA,
    "encoders": ENCODERS,
    "methods": METHODS,
    "finetunes": FINETUNES,
    "blocks": BLOCKS,
    "metrics": METRICS,
}
KINDS = ("pipelines", *TABLES)


def entries(kind: str) -> list[tuple[str, str]]:
    """Names of a kind, each with a line of text: the first line of the pipeline's header or of the docstring."""
    if kind == "corpora":
        any_of = "speech, text or image"
        return [(name, f"{CORPORA.load(name).modality or any_of} | {CORPORA.summary(name)}") for name in CORPORA]
    if kind == "encoders":
        return [(name, f"{ENCODERS[name].modality} | {ENCODERS[name].summary}") for name in ENCODERS]
    if kind == "methods":
        return [entry for name in METHODS for entry in _method(name)]
    if kind in TABLES:
        table = TABLES[kind]
        return [(name, table.summary(name)) for name in table]
    return [(path.stem, header(path)) for path in _pipelines()]


def _pipelines() -> list[Path]:
    """Pipeline files of the project; outside a project, those that a new one starts with."""
    root = nearest_root()
    if root is None:
        return [path for name, path in starter.files().items() if name.startswith(f"{PIPELINES_DIR}/")]
    return [root / PIPELINES_DIR / f"{name}.yaml" for name in pipeline_names(root)]


def _method(name: str) -> list[tuple[str, str]]:
    """A method, and below it its variants with another decoder."""
    decoders = {full: full.removeprefix(f"{name}-") for full in METHODS.variants(name)}
    others = [(full, f"The same with the {decoder.upper()} decoder.") for full, decoder in decoders.items()]
    package = METHODS.package_of(name)
    return [(name, f"{package} | {METHODS.summary(name)}" if package else METHODS.summary(name)), *others]


def header(path: Path) -> str:
    """First comment line of a pipeline file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    first = lines[0] if lines else ""
    return first.lstrip("# ").strip() if first.startswith("#") else ""
