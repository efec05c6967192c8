"""Examine the machine, check one method, or check the methods of a pipeline. All results are lines of text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daamctl.artifacts.layout import Layout
from daamctl.compute.cpu_formats import cpu_formats, in_words
from daamctl.compute.devices import free_memory, resolve_device, resolve_precision
from daamctl.compute.energy import joules
from daamctl.compute.threads import allowed_cores
from daamctl.config import Config
from daamctl.config.corpus_keys import FILES
from daamctl.corpora import CORPORA
from daamctl.corpora.sources import source_of
from daamctl.errors import ArtifactError, ConfigError, EncoderError, MethodError
from daamctl.fit.tracking import shown_store, store_uri
from daamctl.methods import CLOSED_FORM, METHODS, settings_of
from daamctl.methods.activity_check import constant_weight, gradient_sizes, logits_after_steps
from daamctl.methods.contract import PUBLISHED_PARAMETERS, SMALL, Case, Finding, run_checks, trainable
from daamctl.methods.settings import Sizes
from daamctl.store.provenance import device_name, git_commit, versions

INPUTS = 16
"""Number of items on which the methods of a pipeline are checked."""
STARTS = range(8)
"""Seeds of initial weights. A check fails only if it fails for all of them."""
COPIES = 8 * 4
"""Bytes per parameter: weights, gradients and the optimiser's two averages, in float64."""
MEMORY_SHARE = 0.5
"""Largest part of the free memory that the check of a method may take."""
NUMERIC_WIDTH = 16
"""Layer width for numerical checks: wide enough for every check, and each takes seconds."""


def examine(root: Path | None) -> list[tuple[str, str]]:
    """Examine the machine and the project.

    Args:
        root: project folder; None outside a project.

    Returns:
        (subject, finding) pairs in reading order.
    """
    lines = [("project", "none here; daamctl init DIR makes one")]
    if root is not None:
        lines = [("project", f"{root} (commit {git_commit(root) or 'none'})")]
    lines += _devices()
    lines.append(("versions", ", ".join(f"{name} {version}" for name, version in versions().items())))
    if METHODS.added:
        lines.append(("methods", "of packages: " + ", ".join(f"{name} ({one})" for name, one in METHODS.added.items())))
    disk = shutil.disk_usage(root or Path.cwd())
    lines.append(("disk", f"{disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.1f} GB"))
    lines.append(("decoders", _decoders()))
    lines.append(("hub", _hub()))
    lines.append(("tracking", _tracking(root)))
    lines += [(f"corpus {name}", _corpus(root, name)) for name in CORPORA if name not in FILES]
    return lines


def examine_method(
    method: str, settings: Mapping[str, Any], *, num_layers: int, embed_dim: int, num_classes: int
) -> Iterator[Finding]:
    """Check one method: its numbers at a small width, its parameters at the given sizes and at those of the papers.

    Numbers are computed at the smallest divisor of the width, at least 16, that the settings allow (e.g. the heads).

    Args:
        method: name of a method, or a variant such as `daam-v1-mlp`.
        num_layers: L.
        embed_dim: D.
        num_classes: C.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it cannot be built for these sizes and settings.
    """
    sizes = Sizes(num_layers, embed_dim, num_classes)

    def fits(width: int) -> bool:
        try:
            Case(method, settings, sizes._replace(embed_dim=width)).build()
        except MethodError:
            return False
        return True

    widths = [width for width in range(NUMERIC_WIDTH, embed_dim) if embed_dim % width == 0]
    with torch.device("meta"):
        Case(method, settings, sizes).build()
        # float64 over many seeds is slow at the full width, and shows nothing more
        width = next(filter(fits, widths), embed_dim)
    published = {} if settings else PUBLISHED_PARAMETERS.get(method, {})
    case = Case(method, settings, sizes._replace(embed_dim=width), tuple(dict.fromkeys([sizes, *published])))
    yield from run_checks(case)


def examine_pipeline(layout: Layout, config: Config) -> tuple[str, Iterator[Finding]]:
    """Check that every method of a pipeline is active at the pipeline's sizes and on its inputs.

    A density or gate must depend on the input, every parameter except the inert ones must get a gradient, and no two
    methods may compute the same. Parameters are first moved away from their initial values, because many of these are
    zero and would hide a fault.

    Returns:
        What the methods are checked on, and one finding for each method that is trained in steps.

    Raises:
        EncoderError: the sizes of the encoder or the number of classes are unknown until the embeddings exist.
        ArtifactError: likewise, for given embeddings.
    """
    from daamctl.planning.expected import Expected

    known = Expected(layout, config).sizes
    if known is None:
        if not config.has_encoder:
            raise ArtifactError("the layers of the embeddings are not known yet", path=layout.embeddings)
        raise EncoderError(
            f"depth and width of encoder '{config.extract.encoder}', or the classes of corpus "
            f"'{config.download.corpus}', are not known on this machine",
            path=layout.embeddings,
        )
    sizes = Sizes(*known)
    x, y, source = _inputs(layout, config, sizes)
    words = f"{sizes.num_layers} layers x {sizes.embed_dim} to {sizes.num_classes} classes, on {len(x)} {source}"
    return words, _effects(config, sizes, x, y)


def _inputs(layout: Layout, config: Config, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, str]:
    """Inputs (B, L, D), class ids (B,) and their description: stored vectors if they exist, else random ones."""
    from daamctl.fit.features import open_features

    try:
        features = open_features(layout, config)
    except ArtifactError:
        x = torch.randn(INPUTS, *sizes[:2], generator=torch.Generator().manual_seed(0))
        return x, torch.arange(INPUTS) % sizes[2], "random vectors (there are no embeddings with these settings)"
    assert not isinstance(features.x, torch.Tensor)
    # spread over the table, whose neighbours are often of one class or speaker
    rows = np.unique(np.linspace(0, len(features.clips) - 1, INPUTS).astype(np.int64))
    return torch.from_numpy(features.x[rows]).float(), features.targets()[rows], "of its own embeddings"


def _effects(config: Config, sizes: Sizes, x: Tensor, y: Tensor) -> Iterator[Finding]:
    """One finding for each method of a pipeline that is trained in steps."""
    seen: dict[str, Tensor] = {}
    for method in config.methods:
        if method in CLOSED_FORM:
            continue
        case = Case(method, settings_of(method, config.method_settings), sizes)
        try:
            with torch.device("meta"):
                need = COPIES * trainable(case.build())
        except MethodError as error:
            yield Finding(method, False, error.message)
            continue
        if need > MEMORY_SHARE * free_memory():
            yield Finding(method, True, f"not checked: it needs {need / 1e9:.1f} GB of memory")
            continue
        problems, text = _effect(case, x, y)
        logits = logits_after_steps(case.build(), x, y)
        # after some steps, because many methods begin as the mean of the layers
        twins = [name for name, other in seen.items() if torch.allclose(logits, other, rtol=1e-5, atol=1e-6)]
        problems += [f"computes the same as {name}" for name in twins]
        seen[method] = logits
        yield Finding(method, not problems, "; ".join(problems) or text)


def _effect(case: Case, x: Tensor, y: Tensor) -> tuple[list[str], str]:
    """What is wrong with a method on these inputs, and what was observed."""
    # a weight that varies at a small size must vary at these sizes, too
    small = replace(case, settings={}, sizes=SMALL)
    gate = constant_weight(small.make(), small.data()[0], gate=True) is None
    x = x.double()  # in float32, rounding alone makes the density of a single layer vary
    weights = []
    for seed in STARTS:  # several seeds, because a ReLU may be 0 for all inputs with one of them
        weight = constant_weight(case.make(seed).double(), x, gate=gate)
        if weight is None:
            break
        weights.append(weight)
    problems, seen = [], []
    model = case.make()
    what = "density" if model.has_density else "layer weight"
    if len(weights) == len(STARTS):
        problems.append(f"its {what} is {weights[0]:.3g} for every input, so it has no effect")
    elif model.has_density or (gate and model.weighs_layers):
        seen.append(f"{what} varies over inputs")
    lacking = set(dict(model.named_parameters())) - set(model.traits.inert)
    for seed in STARTS:
        sizes = gradient_sizes(case.make(seed).double(), x, y)
        lacking &= {name for name, size in sizes.items() if not size > 0}
        if not lacking:
            break
    problems += [f"{name} gets no gradient" for name in sorted(lacking)]
    seen.append(f"gradient reaches {len(sizes) - len(lacking)} of {len(sizes)} trainable tensors")
    return problems, "; ".join(seen)


def _devices() -> list[tuple[str, str]]:
    """CPU, GPUs, and what `auto` stands for on this machine."""
    cores = len(allowed_cores())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    lines = [("cpu", f"{device_name('cpu')}, {cores} cores, {memory:.0f} GB memory; {in_words(cpu_formats())}")]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(index)
        energy = ""
        if joules(f"cuda:{index}") is None:
            energy = ", energy not counted (its driver has no counter, or nvidia-ml-py is not installed)"
        lines.append(("gpu", f"cuda:{index} {facts.name}, {facts.total_memory / 1e9:.0f} GB{energy}"))
    if not torch.cuda.is_available():
        lines.append(("gpu", "none that PyTorch can use"))
    try:
        device = resolve_device("auto")
    except ConfigError as error:
        return [*lines, ("auto means", f"nothing: {error.message}; {error.fix}")]
    extract = resolve_precision("auto", device, work="encoder")
    wide = resolve_precision("auto", device, work="convolutions")
    small = resolve_precision("auto", device, work="other")
    train = wide if small == wide else f"{wide} (without convolutions {small})"
    lines.append(("auto means", f"device {device}, precision {extract} for extract, {train} for train"))
    return lines


def _decoders() -> str:
    """Audio formats that can be decoded."""
    import soundfile

    formats = soundfile.available_formats()
    wanted = ("WAV", "FLAC", "OGG", "MP3")
    text = f"soundfile {soundfile.__version__}: {', '.join(name for name in wanted if name in formats)}"
    missing = [name for name in wanted if name not in formats]
    return f"{text}; missing: {', '.join(missing)}" if missing else text


def _hub() -> str:
    """Cached models of the Hugging Face hub."""
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    try:
        names = [path.name for path in Path(HF_HUB_CACHE).iterdir()] if Path(HF_HUB_CACHE).is_dir() else []
    except OSError as error:
        return f"cache {HF_HUB_CACHE} cannot be read: {error.strerror}; to use another folder: export HF_HOME=FOLDER"
    cached = sorted(name.removeprefix("models--").replace("--", "/") for name in names if name.startswith("models--"))
    offline = "offline (HF_HUB_OFFLINE); " if HF_HUB_OFFLINE else ""
    return f"{offline}cache {HF_HUB_CACHE}: {', '.join(cached) or 'no models'}"


def _tracking(root: Path | None) -> str:
    """Address of the MLflow store."""
    if root is None and "MLFLOW_TRACKING_URI" not in os.environ:
        return "mlflow.db in the project"
    uri = store_uri(root or Path.cwd())
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        size = f"{path.stat().st_size / 1e6:.1f} MB" if path.exists() else "does not exist yet"
        return f"{uri} ({size})"
    return f"{shown_store(root or Path.cwd())} (from MLFLOW_TRACKING_URI)"


def _corpus(root: Path | None, name: str) -> str:
    """Where a corpus is, or how to get it."""
    source = None if root is None else source_of(root, name)
    corpus = CORPORA.load(name)
    if source is None:
        return f"not available: {corpus.how_to_get}"
    if source.exists():
        return str(source)
    return f"registered at {source}, which no longer exists: {corpus.how_to_get}"
