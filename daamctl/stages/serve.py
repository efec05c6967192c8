"""`serve`: answer requests over HTTP with an exported model, until a signal ends it.

It is not a stage of the DAG and needs no project.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from daamctl.errors import ConfigError
from daamctl.models.model import ExportedModel
from daamctl.models.server import Limits, connections, make_app

log = logging.getLogger(__name__)

STOP_S = 30
"""Seconds that requests have to finish after a signal."""


def run(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    encoder: Path | None = None,
    device: str = "auto",
    coverage: float | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] = (),
) -> None:
    """Serve a model. Returns after SIGINT or SIGTERM, when the requests that were running are answered.

    Args:
        port: port to listen on; 0: any free one.
        encoder: folder of the encoder, if the model does not contain it.
        device: auto, cpu, mps, cuda or cuda:N.
        coverage: see `ExportedModel.open`.
        limits: what is accepted at most; `Limits()` if not given.
        hosts: further names and addresses under which clients may ask.

    Raises:
        ConfigError: the address cannot be used.
        ArtifactError: the model is missing, foreign or damaged.
        EncoderError: the encoder cannot be found or opened.
    """
    with listen(host, port) as listening:
        app = make_app(
            ExportedModel.open(folder, encoder=encoder, device=device, coverage=coverage),
            limits or Limits(),
            (f"[{host}]" if ":" in host else host, *hosts),
        )
        http = connections(limits or Limits())
        config = uvicorn.Config(app, http=http, ws="none", log_level="warning", timeout_graceful_shutdown=STOP_S)
        listening.listen(config.backlog)  # from here on, a client that is too early waits instead of being refused
        words = "serving on http://%s:%d; /docs, or offline /openapi.json, describes the interface"
        log.info(words, host, listening.getsockname()[1])
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:  # uvicorn raises the signal again after it has stopped
            log.info("stopped")


def listen(host: str, port: int) -> socket.socket:
    """Take a port, before anything that may take long. Raises ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        used = getattr(error, "errno", None) == errno.EADDRINUSE
        reason = "it is in use" if used else getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}", fix="choose another --port or --host") from error
    return listening
