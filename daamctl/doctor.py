"""What this machine has that matters here, and whether a method holds what every method must, as lines to read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daamctl.corpora import CORPORA
from daamctl.corpora.sources import source_of
from daamctl.devices import cpu_has_bfloat16, resolve_device, resolve_precision
from daamctl.errors import MethodError
from daamctl.provenance import device_name, git_commit, versions
from daamctl.tracking import shown_store, store_uri

if TYPE_CHECKING:
    from daamctl.methods.contract import Case, Finding

NUMERIC_WIDTH = 16  # wide enough for every check, small enough for seconds


def examine(root: Path) -> list[tuple[str, str]]:
    """Look around: (subject, finding) pairs in reading order."""
    lines = [("project", f"{root} (commit {git_commit(root) or 'none'})")]
    lines += _devices()
    lines.append(("versions", ", ".join(f"{name} {version}" for name, version in versions().items())))
    disk = shutil.disk_usage(root)
    lines.append(("disk", f"{disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.1f} GB"))
    lines.append(("decoders", _decoders()))
    lines.append(("hub", _hub()))
    lines.append(("tracking", _tracking(root)))
    lines += [(f"corpus {name}", _corpus(root, name)) for name in CORPORA if name != "manifest"]
    return lines


def examine_method(
    method: str, settings: Mapping[str, Any], *, num_layers: int, embed_dim: int, num_classes: int
) -> Iterator[Finding]:
    """Check a method: numbers at a small width, parameters at the sizes asked for and at those of the papers.

    Args:
        method: a name in the table, or a variant such as `daam-v1-mlp`.
        settings: the method's own settings.
        num_layers: L.
        embed_dim: D.
        num_classes: C.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it cannot be built for these sizes and settings.
    """
    from daamctl.methods.contract import run_checks

    yield from run_checks(_case(method, settings, (num_layers, embed_dim, num_classes)))


def _case(method: str, settings: Mapping[str, Any], sizes: tuple[int, int, int]) -> Case:
    """Numbers are computed at the smallest part of the width, 16 or more, that the settings (heads) allow."""
    import torch

    from daamctl.methods.contract import PUBLISHED_PARAMETERS, Case

    def fits(width: int) -> bool:
        try:
            Case(method, settings, (sizes[0], width, sizes[2])).build()
        except MethodError:
            return False
        return True

    widths = [width for width in range(NUMERIC_WIDTH, sizes[1]) if sizes[1] % width == 0]
    with torch.device("meta"):
        Case(method, settings, sizes).build()
        width = next(filter(fits, widths), sizes[1])
    published = {} if settings else PUBLISHED_PARAMETERS.get(method, {})
    return Case(method, settings, (sizes[0], width, sizes[2]), tuple(dict.fromkeys([sizes, *published])))


def _devices() -> list[tuple[str, str]]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    bfloat16 = "native" if cpu_has_bfloat16() else "not native (float32 is used)"
    lines = [("cpu", f"{device_name('cpu')}, {cores} cores, {memory:.0f} GB memory, bfloat16 {bfloat16}")]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        lines.append(("gpu", f"cuda:{index} {facts.name}, {facts.total_memory / 1e9:.0f} GB"))
    if not torch.cuda.is_available():
        lines.append(("gpu", "none that torch can use"))
    device = resolve_device("auto")
    extract = resolve_precision("auto", device, cpu_auto=True)
    small = resolve_precision("auto", device, cpu_auto=False)
    train = extract if small == extract else f"{extract} (without convolutions {small})"
    lines.append(("auto means", f"device {device}, precision {extract} for extract, {train} for train"))
    return lines


def _decoders() -> str:
    import soundfile

    formats = soundfile.available_formats()
    wanted = ("WAV", "FLAC", "OGG", "MP3")
    found = [name for name in wanted if name in formats]
    lacking = [name for name in wanted if name not in formats]
    return f"soundfile {soundfile.__version__}: {', '.join(found)}" + (
        f"; lacks {', '.join(lacking)}" if lacking else ""
    )


def _hub() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    cached = sorted(
        path.name.removeprefix("models--").replace("--", "/") for path in Path(HF_HUB_CACHE).glob("models--*")
    )
    offline = "offline by HF_HUB_OFFLINE; " if HF_HUB_OFFLINE else ""
    return f"{offline}cache {HF_HUB_CACHE}: {', '.join(cached) or 'no models'}"


def _tracking(root: Path) -> str:
    uri = store_uri(root)
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        return f"{uri} ({f'{path.stat().st_size / 1e6:.1f} MB' if path.exists() else 'not made yet'})"
    return f"{shown_store(root)} (from MLFLOW_TRACKING_URI)"


def _corpus(root: Path, name: str) -> str:
    source = source_of(root, name)
    corpus = CORPORA.load(name)
    if source is None:
        return f"not in place: {corpus.how_to_get}"
    return str(source) if source.exists() else f"registered at {source}, which is gone: {corpus.how_to_get}"
