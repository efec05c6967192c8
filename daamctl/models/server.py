"""The HTTP interface of an exported model, as a FastAPI application.

One thread predicts, because the hooks on the encoder's layers serve one forward pass at a time. Requests that arrive in
the meantime wait, and are predicted together in the next pass.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from daamctl import __version__, audio
from daamctl.errors import AudioError, DaamctlError, MethodError
from daamctl.models.inputs import files_as_rows, texts_as_rows
from daamctl.models.model import ExportedModel
from daamctl.models.predict import predict_all

log = logging.getLogger(__name__)

TOO_LARGE, UNUSABLE, FAILED = 413, 422, 500


@dataclass(frozen=True)
class Limits:
    """Largest requests that are accepted.

    Args:
        megabytes: size of a request, in units of 10^6 bytes.
        seconds: duration of a recording.
        texts: number of texts in a request.
        together: number of items that are predicted together.
    """

    megabytes: float = 50.0
    seconds: float = 600.0
    texts: int = 256
    together: int = 64


def make_app(model: ExportedModel, limits: Limits = Limits()) -> FastAPI:
    """Make the application.

    Args:
        model: the exported model; its encoder is opened here.
        limits: largest requests.

    Raises:
        MethodError: the model tags words.
        EncoderError: the encoder cannot be found or opened.
    """
    record = model.record
    if record.modality == "tokens":
        raise MethodError(f"{model.folder} tags words, which a server cannot do yet", fix="use daamctl predict")
    _ = model.encoder
    queue = _Queue(lambda rows: predict_all(model, rows), limits.together)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.work())
        yield
        await queue.stop()
        await worker

    app = FastAPI(
        title=f"{record.run}/{record.method}",
        description=f"Classifies as {', '.join(record.classes)}.",
        version=__version__,
        lifespan=lifespan,
    )

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "the prediction failed; see the log of the server"}, FAILED)

    @app.get("/health", summary="Whether the server is ready, and what it serves")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "model": f"{record.run}/{record.method}",
            "modality": record.modality,
            "classes": record.classes,
        }

    @app.post("/predict", summary="Classify one file, or texts", openapi_extra=_body(record.modality))
    async def predict(request: Request) -> JSONResponse:
        content = await _read(request, limits)
        if record.modality == "text":
            return JSONResponse({"items": await queue.predict(texts_as_rows(_texts(content, limits)))})
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            content = await _file_in_form(request, content)
        with tempfile.NamedTemporaryFile(prefix="daamctl-") as file:
            file.write(content)
            file.flush()
            if record.modality == "speech":
                _check_duration(Path(file.name), limits)
            (item,) = await queue.predict(files_as_rows([Path(file.name)]))
        if "error" in item and "class" not in item:
            raise HTTPException(UNUSABLE, item["error"].replace(file.name, "the file"))
        return JSONResponse({name: value for name, value in item.items() if name != "item"})

    return app


class _Queue:
    """Requests that wait for the thread that predicts.

    Args:
        predict: rows of items -> the table of predictions.
        together: most items in one call.
    """

    def __init__(self, predict: Callable[[pl.DataFrame], pl.DataFrame], together: int) -> None:
        self.call, self.together = predict, together
        self.waiting: asyncio.Queue[tuple[pl.DataFrame, asyncio.Future[list[dict[str, Any]]]] | None] = asyncio.Queue()

    async def predict(self, rows: pl.DataFrame) -> list[dict[str, Any]]:
        """Wait for the predictions of some rows.

        Raises:
            HTTPException: the model cannot predict them.
        """
        answer: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        await self.waiting.put((rows, answer))
        return await answer

    async def stop(self) -> None:
        """Let `work` end after what is waiting now."""
        await self.waiting.put(None)

    async def work(self) -> None:
        """Predict what is waiting, until `stop`."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "predict") as thread:
            while (first := await self.waiting.get()) is not None:
                group = [first]
                while not self.waiting.empty() and sum(len(rows) for rows, _ in group) < self.together:
                    following = self.waiting.get_nowait()
                    if following is None:
                        await self.stop()
                        break
                    group.append(following)
                answers = await loop.run_in_executor(thread, self._answers, [rows for rows, _ in group])
                for (_, answer), found in zip(group, answers, strict=True):
                    if answer.cancelled():  # the client is gone
                        continue
                    if isinstance(found, Exception):
                        answer.set_exception(found)
                    else:
                        answer.set_result(found)

    def _answers(self, parts: Sequence[pl.DataFrame]) -> list[list[dict[str, Any]] | Exception]:
        """The answer to each request. If they fail together, each is tried alone, so that one cannot spoil others."""
        try:
            items = as_items(self.call(pl.concat(parts)))
        except Exception as error:
            if len(parts) > 1:
                return [answer for part in parts for answer in self._answers([part])]
            if isinstance(error, DaamctlError):
                return [HTTPException(UNUSABLE, error.message)]
            log.exception("a prediction failed")
            return [error]
        answers: list[list[dict[str, Any]] | Exception] = []
        for part in parts:
            answers.append(items[: len(part)])
            items = items[len(part) :]
        return answers


def as_items(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """A table of predictions as nested values: one mapping per item, which holds those of its clips."""
    items: list[dict[str, Any]] = []
    for row in rows.iter_rows(named=True):
        found = {name: value for name, value in row.items() if value is not None and name not in ("unit", "label")}
        for prefix, name in (("p_", "probabilities"), ("weight_", "layer_weights")):
            part = {key.removeprefix(prefix): found.pop(key) for key in list(found) if key.startswith(prefix)}
            found |= {name: part} if part else {}
        if row["unit"] == "item":
            items.append(found)
        else:
            del found["item"]
            items[-1].setdefault("clips", []).append(found)
    return items


async def _read(request: Request, limits: Limits) -> bytes:
    """The body of a request, of which no more is read than allowed."""
    most = round(limits.megabytes * 1e6)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise HTTPException(TOO_LARGE, f"the request is larger than {limits.megabytes:g} MB")
    if not content:
        raise HTTPException(UNUSABLE, "the request is empty")
    return bytes(content)


async def _file_in_form(request: Request, body: bytes) -> bytes:
    """The content of the one file in a form, whatever the name of its field."""

    async def stream() -> AsyncGenerator[bytes]:
        yield body

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


def _texts(content: bytes, limits: Limits) -> list[str]:
    """The texts in a JSON body."""
    import json

    try:
        texts = json.loads(content)["texts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or not texts:
        raise HTTPException(UNUSABLE, 'the body must be JSON like {"texts": ["a text", "another"]}')
    if len(texts) > limits.texts:
        raise HTTPException(TOO_LARGE, f"the request holds {len(texts)} texts, allowed are {limits.texts}")
    return texts


def _check_duration(path: Path, limits: Limits) -> None:
    try:
        info = audio.probe(path)
    except AudioError as error:
        raise HTTPException(UNUSABLE, error.message.replace(str(path), "the file")) from error
    seconds = info.num_samples / info.sampling_rate
    if seconds > limits.seconds:
        raise HTTPException(TOO_LARGE, f"the recording lasts {seconds:.1f} s, allowed are {limits.seconds:g} s")


def _body(modality: str) -> dict[str, Any]:
    """What the OpenAPI page says about the body of a request."""
    if modality == "text":
        texts = {"type": "array", "items": {"type": "string"}}
        schema = {"type": "object", "required": ["texts"], "properties": {"texts": texts}}
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    kinds = {"speech": "audio/*", "image": "image/*"}
    schema = {"type": "string", "format": "binary"}
    form = {"type": "object", "required": ["file"], "properties": {"file": schema}}
    content = {kinds[modality]: {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}
