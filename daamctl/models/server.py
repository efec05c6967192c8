"""The HTTP interface of an exported model, as a FastAPI application.

One thread predicts, because the hooks on the encoder's layers serve one forward pass at a time. Requests that arrive in
the meantime wait, and take turns of a few clips each. `connections` closes connections that are too many or too slow.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from daamctl.corpora.conll import MOST_WORDS
from daamctl.data import audio
from daamctl.errors import AudioError, DaamctlError, MethodError
from daamctl.models.inputs import files_as_rows, texts_as_rows
from daamctl.models.model import ExportedModel
from daamctl.models.predict import PartialPrediction, embed_next
from daamctl.models.sentences import lines_as_sentences
from daamctl.store.tables import decoded, parsed_json
from daamctl.store.version import __version__

log = logging.getLogger(__name__)

FOREIGN, LATE, TOO_LARGE, UNUSABLE, GONE, FAILED, BUSY = 400, 408, 413, 422, 499, 500, 503
REFUSALS = {
    FOREIGN: "The request is for a host that the server is not known as",
    LATE: "The request did not come in time",
    TOO_LARGE: "The request, the recording or a text is larger than allowed",
    UNUSABLE: "The request holds nothing that can be predicted",
    FAILED: "The prediction failed",
    BUSY: "Too many requests wait for an answer",
}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
"""Hosts that a request may always be for."""
PARTS = {"clip": "clips", "word": "words", "entity": "entities"}
"""Unit of a row -> where its item holds it in an answer."""


@dataclass(frozen=True)
class Limits:
    """What is accepted at most.

    Args:
        megabytes: size of a request, in units of 10^6 bytes.
        texts: number of texts in a request.
        characters: length of a text or sentence.
        together: number of clips, texts or images that are predicted together.
        total_megabytes: size of all requests that are not answered yet.
        timeout_s: seconds in which a client has to send its request, and to read what it is sent.
    """

    megabytes: float = 50.0
    seconds: float = 600.0
    texts: int = 256
    characters: int = 100_000
    together: int = 16
    total_megabytes: float = 256.0
    connections: int = 128
    timeout_s: float = 60.0


class Refusal(BaseModel):
    """The answer to a request that is refused."""

    error: str


def make_app(model: ExportedModel, limits: Limits = Limits(), hosts: Sequence[str] = ()) -> FastAPI:
    """Make the application.

    Args:
        model: the exported model; its encoder is opened here.
        hosts: names and addresses under which clients may ask, beside `LOCAL`; `*`: any.

    Raises:
        MethodError: the model reads given embeddings.
        EncoderError: the encoder cannot be found or opened.
    """
    record = model.record
    if record.modality == "embeddings":
        raise MethodError(
            f"{model.folder} reads given embeddings, whose encoder is elsewhere, so there is nothing to serve",
            fix="use daamctl predict",
        )
    _ = model.encoder
    turns, bodies = _Turns(limits.together), _Bodies(limits)

    app = FastAPI(
        title=f"{record.run}/{record.method}",
        description=f"{'Tags words' if record.modality == 'tokens' else 'Classifies'} as {', '.join(record.classes)}.",
        version=__version__,
    )
    app.add_middleware(_KnownHosts, hosts=[*LOCAL, *hosts])

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the prediction failed; see the log of the server"}, FAILED)

    @app.get("/", include_in_schema=False)  # where a browser looks first
    @app.get("/health", summary="Whether the server is ready, and what it serves")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "model": f"{record.run}/{record.method}",
            "modality": record.modality,
            "classes": record.classes,
        }

    @app.post(
        "/predict",
        summary="Classify one file or texts, or tag sentences",
        openapi_extra=_body(record.modality, limits),
        responses={status: {"description": why, "model": Refusal} for status, why in REFUSALS.items()},
    )
    async def predict(request: Request) -> JSONResponse:
        if request.query_params:
            given = ", ".join(request.query_params)
            raise HTTPException(UNUSABLE, f"/predict has no parameters, but got {given}; coverage is set by --coverage")
        async with bodies.read(request) as content:
            if record.modality in ("text", "tokens"):
                texts = _texts(content, limits)
                words = sum(len(text.split()) for text in texts) if record.modality == "tokens" else 0
                if words > MOST_WORDS:  # every word has a vector of each layer in memory
                    raise HTTPException(TOO_LARGE, f"the request holds {words} words, allowed are {MOST_WORDS}")
                as_rows = texts_as_rows if record.modality == "text" else lines_as_sentences
                work = await asyncio.to_thread(PartialPrediction, model, as_rows(texts))
                found = {item["item"]: item for item in await turns.predict(work, request)}
                names = [str(number) for number in range(1, len(texts) + 1)]
                none = {"words": [], "entities": [], "error": "it has no words"}  # of a sentence
                return JSONResponse({"items": [found.get(name, {"item": name, **none}) for name in names]})
            with tempfile.NamedTemporaryFile(prefix="daamctl-") as file:
                is_form = request.headers.get("content-type", "").lower().startswith("multipart/form-data")
                file.write(await _file_in_form(request, content) if is_form else content)
                file.flush()
                content.clear()
                if record.modality == "speech":
                    _check_duration(Path(file.name), limits)
                work = await asyncio.to_thread(PartialPrediction, model, files_as_rows([Path(file.name)]))
                (item,) = await turns.predict(work, request)
        for part in (item, *item.get("clips", [])):
            if "error" in part:
                part["error"] = part["error"].replace(file.name, "the file")
        if "error" in item and "class" not in item:
            raise HTTPException(UNUSABLE, item["error"])
        return JSONResponse({name: value for name, value in item.items() if name != "item"})

    return app


class _KnownHosts:
    """Refuses requests under other names: a page on the web could reach the server under its own (DNS rebinding).

    Args:
        hosts: known names and addresses; a `*` in front stands for any beginning.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, [host.lower() for host in hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        answer = self.app
        if scope["type"] == "http":
            name = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "").lower())  # without the port
            if not any(name == host or (host[:1] == "*" and name.endswith(host[1:])) for host in self.hosts):
                error = f"this server is not known as '{name}'; daamctl serve --allow-host adds names and addresses"
                answer = JSONResponse({"error": error}, FOREIGN)
        await answer(scope, receive, send)


class _Turns:
    """Requests that wait for the thread that predicts. They take turns, so that a short one waits for about one turn.

    Args:
        together: most clips, texts or images in one turn.
    """

    def __init__(self, together: int) -> None:
        self.together, self.thread = together, ThreadPoolExecutor(1, "predict")
        self.waiting: list[tuple[PartialPrediction, asyncio.Future[list[dict[str, Any]]]]] = []
        self.running: asyncio.Task[None] | None = None

    async def predict(self, work: PartialPrediction, request: Request) -> list[dict[str, Any]]:
        """Wait for the predictions of some items.

        Raises:
            HTTPException: the model cannot predict them.
            ClientDisconnect: nobody waits for the answer any more.
        """
        answer: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self.waiting.append((work, answer))
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self.run())
        while not (await asyncio.wait({answer}, timeout=1.0))[0]:
            if await request.is_disconnected():
                answer.cancel()
                raise ClientDisconnect
        return answer.result()

    async def run(self) -> None:
        """Predict what is waiting, turn by turn, until all is answered."""
        while self.waiting:
            turn, self.waiting = self.waiting[: self.together], self.waiting[self.together :]
            turn = [one for one in turn if not one[1].cancelled()]
            share = max(1, self.together // max(1, len(turn)))  # clips of each
            parts = [(work, min(share, work.left)) for work, _ in turn]
            found = await asyncio.get_running_loop().run_in_executor(self.thread, _answers, parts) if parts else []
            for (work, answer), result in zip(turn, found, strict=True):
                if answer.cancelled():  # the client is gone
                    continue
                if result is None:  # it waits behind those that had no turn
                    self.waiting.append((work, answer))
                elif isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)


def _answers(parts: Sequence[tuple[PartialPrediction, int]]) -> list[list[dict[str, Any]] | Exception | None]:
    """Embed clips of several requests; the answers to those without further clips, None for the others.

    If they fail together, each is tried alone, so that one cannot spoil others.
    """
    try:
        embed_next(parts)
        if len(parts) == 1:
            return [None if parts[0][0].left else as_items(parts[0][0].rows())]
    except Exception as error:
        if len(parts) > 1:
            return [answer for part in parts for answer in _answers([part])]
        if isinstance(error, DaamctlError):
            return [HTTPException(UNUSABLE, error.message)]
        log.exception("a prediction failed")
        return [error]
    return [answer for one, _ in parts for answer in _answers([(one, 0)])]


def as_items(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """A table of predictions as nested values: one mapping per item, with those of its clips, or words and entities."""
    items: list[dict[str, Any]] = []
    for row in rows.iter_rows(named=True):
        found = {name: value for name, value in row.items() if value is not None and name not in ("unit", "label")}
        for prefix, name in (("p_", "probabilities"), ("weight_", "layer_weights")):
            part = {key.removeprefix(prefix): found.pop(key) for key in list(found) if key.startswith(prefix)}
            found |= {name: part} if part else {}
        if row["unit"] == "item":
            items.append(found)
            continue
        name = found.pop("item")
        if row["unit"] == "word":
            del found["words"]  # how many
            if not items or items[-1]["item"] != name:
                items.append({"item": name, "words": [], "entities": []})
        items[-1].setdefault(PARTS[row["unit"]], []).append(found)
    return items


class _Bodies:
    """The bodies of all requests that are not answered yet."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Read a body, no more of it than allowed; its size counts until the request is answered.

        Raises:
            HTTPException: it is empty or too large, or all bodies together are.
            ClientDisconnect: the client is gone.
        """
        content, size, most = bytearray(), 0, self.limits.megabytes * 1e6
        too_large = HTTPException(TOO_LARGE, f"the request is larger than {self.limits.megabytes:g} MB")
        if int(request.headers.get("content-length", 0)) > most:  # without waiting for it
            raise too_large
        try:
            async for part in request.stream():
                content += part
                size, self.held = size + len(part), self.held + len(part)
                if size > most:
                    raise too_large
                if self.held > self.limits.total_megabytes * 1e6:
                    raise HTTPException(BUSY, "the server has too many requests; try again later")
            if not content:
                raise HTTPException(UNUSABLE, "the request is empty")
            yield content
        finally:
            self.held -= size


def connections(limits: Limits) -> type[asyncio.Protocol]:
    """The class of uvicorn's connections, which closes those that are too many or too slow."""

    class Connection(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.set_deadline(limits.timeout_s)
            if len(self.connections) > limits.connections:
                self.refuse("503 Service Unavailable", "the server has too many connections; try again later")

        def data_received(self, data: bytes) -> None:
            if self.deadline is None:
                self.set_deadline(limits.timeout_s)
            super().data_received(data)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.set_deadline(limits.timeout_s)

        def on_response_complete(self) -> None:
            self.set_deadline(None)
            super().on_response_complete()
            if not self.cycle.response_complete:  # the client had sent part of its next request already
                self.set_deadline(limits.timeout_s)

        def connection_lost(self, exc: Exception | None) -> None:
            self.set_deadline(None)
            super().connection_lost(exc)

        def set_deadline(self, seconds: float | None) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            self.deadline = None if seconds is None else self.loop.call_later(seconds, self.check)

        def check(self) -> None:
            if self.flow.write_paused:
                self.transport.abort()
            elif self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
                self.refuse("408 Request Timeout", f"no whole request came within {limits.timeout_s:g} s")

        def refuse(self, status: str, error: str) -> None:
            body = json.dumps({"error": error})
            head = f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            self.transport.write(f"HTTP/1.1 {status}\r\n{head}\r\n\r\n{body}".encode())
            self.transport.close()

    return Connection


async def _file_in_form(request: Request, body: bytearray) -> bytes:
    """The content of the one file in a form, whatever the name of its field."""

    async def stream() -> AsyncGenerator[bytes]:
        yield bytes(body)

    try:
        form = await MultiPartParser(request.headers, stream(), max_files=1).parse()
    except MultiPartException as error:
        raise HTTPException(UNUSABLE, f"the form cannot be read: {error.message}") from error
    except KeyError as error:  # of the content type
        raise HTTPException(UNUSABLE, "the form cannot be read: its content type names no boundary") from error
    try:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        content = await files[0].read() if files else b""
    finally:
        await form.close()
    if not content:
        reason = "the file in the form is empty" if files else "the form holds no file"
        raise HTTPException(UNUSABLE, f"{reason}; send it as curl -F file=@FILE does")
    return content


def _texts(content: bytearray, limits: Limits) -> list[str]:
    """The texts in a JSON body."""
    try:
        body = parsed_json(decoded(bytes(content)))
        texts = body["texts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or not texts:
        raise HTTPException(UNUSABLE, 'the body must be JSON like {"texts": ["a text", "another"]}')
    if others := sorted(body.keys() - {"texts"}):
        error = f"the body may hold texts alone, but got {', '.join(others)}; coverage is set by --coverage"
        raise HTTPException(UNUSABLE, error)
    if len(texts) > limits.texts:
        raise HTTPException(TOO_LARGE, f"the request holds {len(texts)} texts, allowed are {limits.texts}")
    for number, text in enumerate(texts, 1):
        if len(text) > limits.characters:
            error = f"text {number} has {len(text)} characters, allowed are {limits.characters}"
            raise HTTPException(TOO_LARGE, error)
    return texts


def _check_duration(path: Path, limits: Limits) -> None:
    try:
        info = audio.probe(path)
    except AudioError as error:
        raise HTTPException(UNUSABLE, error.message.replace(str(path), "the file")) from error
    seconds = info.num_samples / info.sampling_rate
    if seconds > limits.seconds:
        raise HTTPException(TOO_LARGE, f"the recording lasts {seconds:.1f} s, allowed are {limits.seconds:g} s")


def _body(modality: str, limits: Limits) -> dict[str, Any]:
    """What the OpenAPI page says about the body of a request."""
    if modality in ("text", "tokens"):
        text = {"type": "string", "maxLength": limits.characters}
        texts = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.texts}
        fields = {"required": ["texts"], "properties": {"texts": texts}, "additionalProperties": False}
        schema = {"type": "object", **fields}
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    kinds = {"speech": "audio/*", "image": "image/*"}
    schema = {"type": "string", "format": "binary"}
    form = {"type": "object", "required": ["file"], "properties": {"file": schema}}
    content = {kinds[modality]: {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}
