"""Cache of encoder metadata, so that a known encoder need not be opened.

Hashing the weights takes as long as loading them. So what was found when an encoder was opened is kept in a small file,
named by a hash of everything that it depends on: the files of weights, the settings, the libraries and this package.
Files are identified by path, size and times, not by content: reading them is what the cache avoids. If any of this
cannot be determined for certain, the encoder is opened.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.config.keys import names
from daamctl.config.marks import Affects
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.encoders.base import Encoder
from daamctl.encoders.encoder_size import folder_called, use_cache_without_hub
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import EncoderError
from daamctl.store.files import content_key, keep_json, kept_json
from daamctl.store.provenance import device_name

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "pillow")
ELSEWHERE = "adapter_config.json"
"""A folder with this file may load its weights from another folder."""
SETTLED_S = 2.0
"""Files younger than this are not trusted: some file systems count whole seconds, so a later change could go unnoticed.
"""
HARMLESS = frozenset(names("extract", Affects.NOTHING))
"""Settings of the extract stage that no result depends on."""


@dataclass(frozen=True)
class EncoderFacts:
    """Recorded facts of an encoder.

    Args:
        facts: as in `OpenedEncoder`.
    """

    facts: dict[str, Any]
    layers: tuple[int, ...]
    embed_dim: int


class LazyEncoder:
    """An encoder that is opened on first use; its facts may come from the cache.

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
        self.config, self.device = config, device
        self.options: dict[str, Any] = {"modality": modality, "max_duration_s": max_duration_s, "precision": precision}
        self._opened: OpenedEncoder | None = None
        self._key = self._key_now()
        self._file = folder / f"{self._key}.json"
        cached = None if self._key is None else kept_json(self._file, self._key)
        if cached:
            self.known = EncoderFacts(**{**cached, "layers": tuple(cached["layers"])})
            return
        self._opened = self._open(None)
        self.known = _facts(self._opened)
        if self._key is not None and self._key_now() == self._key:  # else its files changed in the meantime
            keep_json(self._file, self._key, asdict(self.known))

    @property
    def encoder(self) -> Encoder:
        """The encoder, open.

        Raises:
            EncoderError: as `open_encoder`; or the encoder differs from the cached facts.
        """
        if self._opened is None:
            opened = self._open(self.known.facts["weights_sha256"])
            if self._key_now() != self._key or content_key(asdict(_facts(opened))) != content_key(asdict(self.known)):
                self._file.unlink(missing_ok=True)
                raise EncoderError(
                    f"encoder '{self.config.encoder}' has changed while it was opened", fix="run the same command again"
                )
            self._opened = opened
        return self._opened.encoder

    def _open(self, weights_sha256: str | None) -> OpenedEncoder:
        return open_encoder(self.config, device=self.device, weights_sha256=weights_sha256, **self.options)

    def _key_now(self) -> str | None:
        return cache_key_of(self.config, {**self.options, "device": self.device.split(":")[0]})


def cache_key_of(config: ExtractConfig, options: dict[str, Any]) -> str | None:
    """Hash of everything that the facts of the configured encoder depend on; None if part of it is uncertain.

    Args:
        options: further arguments of `open_encoder`, as JSON-able values.
    """
    name = config.encoder
    preset = ENCODERS.get(name)
    if config.weights == "random" or (preset is not None and preset.source is None):
        # Random numbers, and sums over them, may depend on the processor's instruction set.
        origin: list[Any] | None = [device_name("cpu"), torch.backends.cpu.get_cpu_capability()]
    else:
        origin = _files((preset and preset.source) or name, config.revision)
    if origin is None:
        return None
    settings = {name: value for name, value in config.model_dump().items() if name not in HARMLESS}
    return content_key(
        {"settings": settings, "options": options, "libraries": _libraries(), "code": _code(), "origin": origin}
    )


def _facts(opened: OpenedEncoder) -> EncoderFacts:
    return EncoderFacts(opened.facts, opened.encoder.layers, opened.encoder.embed_dim)


def _files(source: str, revision: str | None) -> list[list[Any]] | None:
    """Path, size and times of every file of an encoder; None if a file is missing, unreadable or was just written.

    Args:
        source: a local folder or a hub id, which stands for the snapshot that would be loaded now.
    """
    folder = folder_called(source)
    if not folder.is_dir():
        if not HUB_ID.match(source):
            return None
        from huggingface_hub import hf_hub_download

        use_cache_without_hub()
        try:  # like opening an encoder: if there is a network, ask whether the branch has moved
            folder = Path(hf_hub_download(source, "config.json", revision=revision)).parent
        except Exception:  # opening the encoder will report the error
            return None
    folder, found = folder.absolute(), []
    if (folder / ELSEWHERE).exists():
        return None
    try:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            real = path.resolve(strict=True)
            state = real.stat()
            if time.time() - max(state.st_mtime, state.st_ctime) < SETTLED_S:
                return None
            found.append([str(path), str(real), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns])
    except OSError:
        return None
    return found or None


@lru_cache
def _libraries() -> list[list[str]] | None:
    """Version and source of each library; None if one is missing, or is an editable install, which may change."""
    found = []
    for name in LIBRARIES:
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        source = package.read_text("direct_url.json") or "{}"
        if json.loads(source).get("dir_info", {}).get("editable"):
            return None
        found.append([package.version, source])
    return found


@lru_cache
def _code() -> str:
    """Hash of all code involved in opening encoders, presets included."""
    return content_key([path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))])
