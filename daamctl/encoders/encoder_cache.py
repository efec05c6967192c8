"""Cache of encoder metadata, so that the model need not be loaded.

Hashing the weights takes as long as loading them. So the facts found when an encoder was opened are kept in a small
file named by a hash of everything they depend on: the weight files, the settings, the libraries and this package. If
any of these cannot be determined for certain, the encoder is opened again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from daamctl.artifacts.io import content_key, read_json, write_json
from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.config.keys import names
from daamctl.config.marks import Changes
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.encoders.base import Encoder
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.encoders.preset import Preset
from daamctl.errors import ArtifactError, EncoderError
from daamctl.provenance import device_name

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "pillow")
ELSEWHERE = "adapter_config.json"
"""A folder with this file may take its weights from another folder."""
SETTLED_S = 2.0
"""Younger files are not trusted: coarse file system clocks count whole seconds, so a later change may go unnoticed."""
FREE = frozenset(names("extract", Changes.NOTHING))


@dataclass(frozen=True)
class EncoderFacts:
    """Recorded facts of an encoder.

    Args:
        facts: as in `OpenedEncoder`.
        layers: layer numbers that it provides.
        embed_dim: D.
    """

    facts: dict[str, Any]
    layers: tuple[int, ...]
    embed_dim: int


@dataclass(frozen=True)
class CacheKey:
    """Cache key: everything that the facts of an encoder depend on.

    Args:
        key: hash of it; None if part of it cannot be determined.
        commit: name of the folder of weights; for weights from the hub, their commit.
    """

    key: str | None
    commit: str | None = None


class LazyEncoder:
    """An encoder that is opened on first use; its facts may come from the cache.

    Args:
        folder: folder of the cache.
        config: the extract settings.
        modality: what it is to read.
        max_duration_s: longest clip, in seconds.
        device: resolved device.
        precision: resolved precision.

    Raises:
        EncoderError: it must be opened and cannot be; see `open_encoder`.
    """

    def __init__(
        self,
        folder: Path,
        config: ExtractConfig,
        *,
        modality: Modality,
        max_duration_s: float,
        device: str,
        precision: str,
    ) -> None:
        self.folder, self.config, self.device = folder, config, device
        self.options: dict[str, Any] = {"modality": modality, "max_duration_s": max_duration_s, "precision": precision}
        self._opened: OpenedEncoder | None = None
        self._origin = self._origin_now()
        known = read_facts(folder, self._origin)
        self.known = self._opened_anew() if known is None else known

    @property
    def encoder(self) -> Encoder:
        """The encoder, open.

        Raises:
            EncoderError: as `open_encoder`; or the encoder differs from the cached facts.
        """
        if self._opened is None:
            opened = self._open(self.known.facts["weights_sha256"])
            if self._origin_now() != self._origin or _key(_known(opened)) != _key(self.known):
                (self.folder / f"{self._origin.key}.json").unlink(missing_ok=True)
                raise EncoderError(
                    f"encoder '{self.config.encoder}' has changed while it was opened", fix="run the same command again"
                )
            self._opened = opened
        return self._opened.encoder

    def _opened_anew(self) -> EncoderFacts:
        self._opened = self._open(None)
        known = _known(self._opened)
        if self._origin_now() == self._origin and known.facts["revision"] in (None, self._origin.commit):
            write_facts(self.folder, self._origin, known)
        return known

    def _open(self, weights_sha256: str | None) -> OpenedEncoder:
        return open_encoder(self.config, device=self.device, weights_sha256=weights_sha256, **self.options)

    def _origin_now(self) -> CacheKey:
        return cache_key_of(self.config, {**self.options, "device": self.device.split(":")[0]})


def cache_key_of(config: ExtractConfig, options: dict[str, Any]) -> CacheKey:
    """Compute the cache key of the encoder named in the settings.

    Args:
        config: the extract settings.
        options: further arguments of `open_encoder`, as JSON-able values.
    """
    name = config.encoder
    preset: Preset | None = ENCODERS.load(name) if name in ENCODERS else None
    made_here = config.weights == "random" or (preset is not None and preset.hub_id is None)
    folder = None if made_here else _folder((preset and preset.hub_id) or name, config.revision)
    files = [] if folder is None or (folder / ELSEWHERE).exists() else _files(folder)
    libraries = _libraries()
    if libraries is None or not (made_here or files):
        return CacheKey(None)
    # Random numbers, and sums over them, may depend on the processor's instruction set and the number of threads.
    machine = [device_name("cpu"), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    settings = {name: value for name, value in config.model_dump().items() if name not in FREE}
    decisive = {
        "settings": settings,
        "options": options,
        "libraries": libraries,
        "code": _code(),
        "files": files,
        "machine": machine if made_here else [],
    }
    return CacheKey(content_key(decisive), folder.name if folder is not None else None)


def read_facts(folder: Path, origin: CacheKey) -> EncoderFacts | None:
    """Read the cached facts; None if there are none or the file is damaged."""
    if origin.key is None:
        return None
    try:
        value = read_json(folder / f"{origin.key}.json")
        known = EncoderFacts(value["facts"], tuple(value["layers"]), value["embed_dim"])
        return known if value["key"] == _key(known) and known.facts["weights_sha256"] else None
    except (ArtifactError, OSError, KeyError, TypeError, ValueError):
        return None


def write_facts(folder: Path, origin: CacheKey, known: EncoderFacts) -> None:
    """Write facts to the cache; a folder that is not writable only costs opening the encoder again."""
    if origin.key is None:
        return
    try:
        write_json(folder / f"{origin.key}.json", {**asdict(known), "key": _key(known)})
    except (ArtifactError, OSError):
        return


def _known(opened: OpenedEncoder) -> EncoderFacts:
    return EncoderFacts(opened.facts, opened.encoder.layers, opened.encoder.embed_dim)


def _key(known: EncoderFacts) -> str:
    return content_key(asdict(known))


def _folder(source: str, revision: str | None) -> Path | None:
    """Folder of the weights: a local one, or the hub snapshot that would be loaded now; None if it is not here."""
    local = Path(source).expanduser()
    if local.is_dir():
        return local.resolve()
    if not HUB_ID.match(source):
        return None
    from huggingface_hub import hf_hub_download

    try:  # like opening: with a network it asks whether the branch has moved
        return Path(hf_hub_download(source, "config.json", revision=revision)).parent
    except Exception:  # opening the encoder will report the error
        return None


def _files(folder: Path) -> list[list[Any]]:
    """Path, size and times of every file of a folder; empty if one was just written or is unreadable."""
    found = []
    try:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            real = path.resolve(strict=True)
            state = real.stat()
            if time.time() - max(state.st_mtime, state.st_ctime) < SETTLED_S:
                return []
            found.append([str(path), str(real), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns])
    except OSError:
        return []
    return found


@lru_cache
def _libraries() -> list[list[str]] | None:
    """Name, version and source of each library; None if one is an editable install."""
    found = []
    for name in LIBRARIES:
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        source = package.read_text("direct_url.json") or "{}"
        if json.loads(source).get("dir_info", {}).get("editable"):
            return None
        found.append([name, package.version, source])
    return found


@lru_cache
def _code() -> str:
    """Hash of all code involved in opening encoders, presets included."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
