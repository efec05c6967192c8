"""What is recorded of an encoder, known again without opening it, for as long as nothing that decides it has changed.

To learn the hash of weights takes as long as to load them. So what opening gave is kept in a small file under a hash of
all that it came from: the files of the weights, the settings, the libraries, this package. Where any of that cannot be
told for certain, the encoder is opened.
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
"""A folder with this file may have its weights in another one."""
SETTLED_S = 2.0
"""Files younger than this may be changed again without a trace: coarse clocks of file systems count whole seconds."""
FREE = frozenset(names("extract", Changes.NOTHING))


@dataclass(frozen=True)
class EncoderFacts:
    """What is recorded of an encoder.

    Args:
        facts: see `OpenedEncoder`.
        layers: layer numbers that it gives.
        embed_dim: D.
    """

    facts: dict[str, Any]
    layers: tuple[int, ...]
    embed_dim: int


@dataclass(frozen=True)
class CacheKey:
    """All that decides what is recorded of an encoder.

    Args:
        key: hash of it; None: not all of it can be told.
        commit: name of the folder of weights; where they are from the hub, their commit.
    """

    key: str | None
    commit: str | None = None


class LazyEncoder:
    """An encoder that is opened when it is first needed; what is recorded of it may be known before.

    Args:
        folder: where that is remembered.
        config: the extract settings.
        modality: what it is to read.
        max_duration_s: longest clip, in seconds.
        device: resolved device.
        precision: resolved precision.

    Raises:
        EncoderError: it has to be opened and cannot be, see `open_encoder`.
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
            EncoderError: see `open_encoder`; or it is no longer the one that is known.
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
    """What decides the facts of the encoder that the settings name.

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
    # Random numbers, and sums over them, may depend on the processor's instructions and on threads.
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
    """What is remembered of an origin; None: nothing, or nothing whole."""
    if origin.key is None:
        return None
    try:
        value = read_json(folder / f"{origin.key}.json")
        known = EncoderFacts(value["facts"], tuple(value["layers"]), value["embed_dim"])
        return known if value["key"] == _key(known) and known.facts["weights_sha256"] else None
    except (ArtifactError, OSError, KeyError, TypeError, ValueError):
        return None


def write_facts(folder: Path, origin: CacheKey, known: EncoderFacts) -> None:
    """Keep what is known under its origin; a folder that cannot be written costs only the time to open it again."""
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
    """Folder of weights: a local one, or the snapshot that the hub's library would take now; None: it is not here."""
    local = Path(source).expanduser()
    if local.is_dir():
        return local.resolve()
    if not HUB_ID.match(source):
        return None
    from huggingface_hub import hf_hub_download

    try:  # as opening does it: with network it asks whether the branch has moved
        return Path(hf_hub_download(source, "config.json", revision=revision)).parent
    except Exception:  # whatever it is, opening says it
        return None


def _files(folder: Path) -> list[list[Any]]:
    """Path, size and times of every file of a folder; none where one has just been written, or cannot be seen."""
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
    """Name, version and source of each library; None where one is edited in place."""
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
    """Hash of all code that opens encoders, presets included."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
