"""The HTTP interface: answers, limits and errors, and many clients at once."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import soundfile
from PIL import Image
from starlette.testclient import TestClient

from daamctl.errors import EncoderError
from daamctl.models import server
from daamctl.models.inputs import files_as_rows
from daamctl.models.model import ExportedModel
from daamctl.models.predict import PartialPrediction, embed_next
from daamctl.models.server import Limits, make_app
from tests.fixtures.exported import handmade
from tests.fixtures.recordings import wav_bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    return ExportedModel.open(handmade(tmp_path_factory.mktemp("served") / "model"), device="cpu")


@pytest.fixture
def client(model: ExportedModel) -> Iterator[TestClient]:
    with client_of(model, Limits(megabytes=0.3, seconds=2.0)) as client:
        yield client


def client_of(model: ExportedModel, limits: Limits | None = None, **options: Any) -> TestClient:
    return TestClient(make_app(model, limits or Limits()), base_url="http://127.0.0.1:8000", **options)


def wave(seconds: float = 0.3, seed: int = 0) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.random.default_rng(seed).normal(0, 0.1, round(16000 * seconds)), 16000, format="WAV")
    return stream.getvalue()


def test_a_recording_gets_what_predict_says(client: TestClient, model: ExportedModel, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wave())
    row = model.predict([tmp_path / "a.wav"]).row(0, named=True)
    answer = client.post("/predict", content=wave())
    assert answer.status_code == 200
    found = answer.json()
    assert found["class"] == row["class"]
    assert found["probabilities"] == pytest.approx({"high": row["p_high"], "low": row["p_low"]}, abs=1e-5)
    assert found["entropy"] == pytest.approx(row["entropy"], abs=1e-5)
    assert len(found["layer_weights"]) == 24
    assert [clip["duration_s"] for clip in found["clips"]] == [0.3]
    assert "daamctl-" not in answer.text  # no path of the server


def test_health_and_description(client: TestClient) -> None:
    health = client.get("/health").json()
    assert health["classes"] == ["high", "low"]
    assert client.get("/").json() == health  # where a browser looks first
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/health", "/predict"}
    assert set(paths["/predict"]["post"]["requestBody"]["content"]) == {"audio/*", "multipart/form-data"}
    assert set(paths["/predict"]["post"]["responses"]) == {"200", "400", "408", "413", "422", "500", "503"}


@pytest.mark.parametrize(
    ("content", "kind", "status", "reason"),
    [
        (b"", "audio/wav", 422, "the request is empty"),
        (b"no audio", "audio/wav", 422, "the file is not audio that can be read"),
        (wave()[:-100], "audio/wav", 422, "the file is truncated"),
        (wave(2.5), "audio/wav", 413, "the recording lasts 2.5 s, allowed are 2 s"),
        (bytes(400_000), "audio/wav", 413, "the request is larger than 0.3 MB"),
        (wave(), "multipart/form-data; boundary=x", 422, "the form cannot be read"),
        (wave(), "multipart/form-data", 422, "the form cannot be read: "),
    ],
)
def test_what_cannot_be_answered_has_a_reason(
    client: TestClient, content: bytes, kind: str, status: int, reason: str
) -> None:
    answer = client.post("/predict", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert answer.json()["error"].startswith(reason)


def test_a_form_gets_the_answer_of_its_file(client: TestClient) -> None:
    """As `curl -F file=@FILE` sends it; the name of the field is free, and other fields are ignored."""
    alone = client.post("/predict", content=wave()).json()
    for field in ("file", "recording"):
        answer = client.post("/predict", files={field: ("a.wav", wave(), "audio/wav")}, data={"note": "a text"})
        assert answer.status_code == 200, answer.text
        assert answer.json() == alone
    form = client.build_request("POST", "/predict", files={"file": ("a.wav", wave(), "audio/wav")})
    form.headers["content-type"] = form.headers["content-type"].replace("multipart/form-data", "Multipart/Form-Data")
    assert client.send(form).json() == alone


@pytest.mark.parametrize(
    ("files", "status", "reason"),
    [
        ({"file": ("a.wav", wave(2.5))}, 413, "the recording lasts 2.5 s, allowed are 2 s"),
        ({"file": ("a.wav", bytes(400_000))}, 413, "the request is larger than 0.3 MB"),
        ({"file": ("a.wav", b"no audio")}, 422, "the file is not audio that can be read"),
        ({"file": ("a.wav", b"")}, 422, "the file in the form is empty"),
        ({"note": (None, "a text")}, 422, "the form holds no file"),
        ({"note": (None, "a" * 1_100_000)}, 413, "the request is larger than 0.3 MB"),
        ({"a": ("a.wav", wave(0.1)), "b": ("b.wav", wave(0.1))}, 422, "the form cannot be read: Too many files"),
    ],
)
def test_a_form_that_cannot_be_answered_has_a_reason(
    client: TestClient, files: dict[str, Any], status: int, reason: str
) -> None:
    answer = client.post("/predict", files=files)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(reason)


def test_errors_of_the_framework_are_json_too(client: TestClient) -> None:
    for answer in (client.get("/nowhere"), client.get("/predict")):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]
    assert answer.headers["allow"] == "POST"


def test_many_clients_get_their_own_answers(client: TestClient, model: ExportedModel) -> None:
    def ask(number: int) -> tuple[int, dict[str, Any]]:
        answer = client.post("/predict", content=wave(0.2 + 0.01 * (number % 5), number % 5))
        return answer.status_code, answer.json()

    alone = [ask(number) for number in range(5)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(ask, range(40)))
    for number, (status, found) in enumerate(together):
        assert status == 200
        assert found["probabilities"] == pytest.approx(alone[number % 5][1]["probabilities"], abs=1e-5)
        assert found["clips"][0]["duration_s"] == alone[number % 5][1]["clips"][0]["duration_s"]


def test_waiting_requests_are_predicted_together_and_fail_alone(
    model: ExportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def fails_on_long(parts: Sequence[tuple[PartialPrediction, int]]) -> None:
        sizes.append(len(parts))
        if any(one.chunk.clips["duration_s"].max() == 1.0 for one, count in parts if count):
            raise EncoderError("too long for this encoder")
        embed_next(parts)

    monkeypatch.setattr(server, "embed_next", fails_on_long)
    with client_of(model) as client, ThreadPoolExecutor(8) as threads:
        seconds = [1.0, *[0.3] * 7]
        answers = list(threads.map(lambda length: client.post("/predict", content=wave(length)), seconds))
    assert [answer.status_code for answer in answers] == [422, *[200] * 7]
    assert answers[0].json() == {"error": "too long for this encoder"}
    assert max(sizes) > 1


def test_an_unexpected_error_is_an_answer_and_not_the_end(
    model: ExportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def breaks_once(parts: Sequence[tuple[PartialPrediction, int]]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        embed_next(parts)

    monkeypatch.setattr(server, "embed_next", breaks_once)
    with client_of(model, raise_server_exceptions=False) as client:
        first, second = (client.post("/predict", content=wave()) for _ in range(2))
    assert (first.status_code, second.status_code) == (500, 200)
    assert "see the log" in first.json()["error"]


def test_a_long_recording_takes_turns_with_short_ones(model: ExportedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long one has 9 clips and comes first; the short one is answered after the turn that is running."""
    turns: list[list[int]] = []
    started, going = threading.Event(), threading.Event()

    def watched(parts: Sequence[tuple[PartialPrediction, int]]) -> None:
        turns.append([count for _, count in parts])
        started.set()
        going.wait(60)
        embed_next(parts)

    monkeypatch.setattr(server, "embed_next", watched)
    with client_of(model, Limits(together=2)) as client, ThreadPoolExecutor(2) as threads:
        long = threads.submit(client.post, "/predict", content=wave(45.0))
        assert started.wait(60)
        short = threads.submit(client.post, "/predict", content=wave(1.0))
        time.sleep(0.2)  # it is in the queue before the first turn ends
        going.set()
        assert short.result().json()["class"] in ("high", "low")
        assert not long.done()
        clips = long.result().json()["clips"]
    assert turns[0] == [2]
    assert [1, 1] in turns[1:3]
    assert [clip["start_s"] for clip in clips] == [5.0 * number for number in range(9)]


def test_turns_give_what_predict_says(model: ExportedModel, tmp_path: Path) -> None:
    """Whatever the turns, clip by clip: 12 s are clips of 5, 5 and 2 s, weighted by their durations."""
    (tmp_path / "a.wav").write_bytes(wave(12.0))
    whole = model.predict([tmp_path / "a.wav"])
    work = PartialPrediction(model, files_as_rows([tmp_path / "a.wav"]))
    while work.left:
        embed_next([(work, 1)])
    for name in ("p_high", "entropy", "weight_03", "disagreement"):
        np.testing.assert_allclose(work.rows()[name].to_numpy(), whole[name].to_numpy(), atol=1e-5)


def test_what_is_doubtful_about_an_item_stays_with_it(model: ExportedModel, tmp_path: Path) -> None:
    """Clips of three requests go through the encoder together; that of the second is silent."""
    works = []
    for name, content in (("a", wave()), ("b", b""), ("c", wave(seed=1))):
        path = tmp_path / f"{name}.wav"
        path.write_bytes(content)
        if name == "b":
            soundfile.write(path, np.zeros(4800), 16000)
        works.append(PartialPrediction(model, files_as_rows([path])))
    embed_next([(work, 1) for work in works])
    assert [work.left for work in works] == [0, 0, 0]
    warnings = [work.rows()["warning"][0] for work in works]
    assert [one is not None for one in warnings] == [False, True, False]
    assert "silent" in warnings[1]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost.evil.example:8000"])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    """A page of another site reaches a local server under its own name (DNS rebinding)."""
    for path in ("/health", "/docs", "/openapi.json"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 400
        assert "--allow-host" in answer.json()["error"]


def test_known_hosts_are_answered(model: ExportedModel) -> None:
    app = make_app(model, hosts=["Models.example", "10.1.2.3", "*.lab.example"])
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000", "10.1.2.3:8000", "models.example:8000",
                     "a.lab.example"):  # fmt: skip
            assert client.get("/health", headers={"host": host}).status_code == 200
        assert client.get("/health", headers={"host": "lab.example"}).status_code == 400
    with TestClient(make_app(model, hosts=["*"]), base_url="http://anything.example") as client:
        assert client.get("/health").status_code == 200


def test_all_bodies_together_have_a_limit(model: ExportedModel) -> None:
    """The limit counts requests that are not answered yet, and only those."""
    with client_of(model, Limits(total_megabytes=0.1)) as client:
        for _ in range(20):  # 0.02 MB each, one after another
            assert client.post("/predict", content=wave(0.6)).status_code == 200
        refused = client.post("/predict", content=wave(4.0))
        assert refused.status_code == 503
        assert "too many requests" in refused.json()["error"]
        assert client.post("/predict", content=wave(0.6)).status_code == 200


@pytest.mark.parametrize(("rate", "channels"), [(2_147_483_647, 1), (1, 1), (0, 1), (16_000, 65_535), (16_000, 0)])
def test_a_header_that_no_recorder_writes_is_an_answer(client: TestClient, rate: int, channels: int) -> None:
    answer = client.post("/predict", content=wav_bytes(rate, channels=channels))
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("the file ")
    assert client.post("/predict", content=wave()).status_code == 200


def test_no_path_of_the_server_is_in_an_answer_about_a_clip_that_cannot_be_read(model: ExportedModel) -> None:
    samples, file = np.random.default_rng(0).normal(0, 0.1, 160_000).astype(np.float32), io.BytesIO()
    samples[120_000] = np.nan  # of the second clip
    soundfile.write(file, samples, 16000, format="WAV", subtype="FLOAT")
    with client_of(model) as client:
        answer = client.post("/predict", content=file.getvalue())
    assert answer.status_code == 200, answer.text
    for part in (answer.json(), answer.json()["clips"][1]):
        assert part["error"].startswith("the file holds samples that are NaN or infinite")
    assert "daamctl-" not in answer.text


def test_texts(tmp_path: Path) -> None:
    texts = ExportedModel.open(handmade(tmp_path / "model", "text"), device="cpu")
    with client_of(texts, Limits(texts=2)) as client:
        answer = client.post("/predict", json={"texts": ["one", ""]}).json()
        assert answer["items"][0]["class"] in ("high", "low")
        assert "it is empty" in answer["items"][1]["error"]
        for body, status in (({"text": "one"}, 422), ({"texts": []}, 422), ([1], 422), ({"texts": ["a"] * 3}, 413)):
            refused = client.post("/predict", json=body)
            assert refused.status_code == status
            assert "texts" in refused.json()["error"]
        refused = client.post("/predict", json={"texts": ["a"], "coverage": 0.9})
        assert refused.status_code == 422
        assert refused.json()["error"].endswith("but got coverage; coverage is set by --coverage")
        long = client.post("/predict", json={"texts": ["a", "b" * 100_001]})
        assert long.status_code == 413
        assert long.json() == {"error": "text 2 has 100001 characters, allowed are 100000"}
        half = client.post("/predict", content='{"texts": ["\\ud83d one"]}')  # of an emoji
        assert half.json()["items"][0]["class"] in ("high", "low")
        (body,) = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"].values()
        assert body["schema"]["properties"]["texts"]["maxItems"] == 2
        assert body["schema"]["properties"]["texts"]["items"]["maxLength"] == 100_000


def test_sentences(tmp_path: Path) -> None:
    """Each gets the tags of `predict`, whatever sentences of other requests share its turn."""
    tagger = ExportedModel.open(handmade(tmp_path / "model", "tokens"), device="cpu")
    texts = ["Ada King ran to Bo", "", "so it is", "the very last one"]
    rows = tagger.predict(texts)
    with client_of(tagger, Limits(together=2)) as client, ThreadPoolExecutor(6) as threads:
        posted = threads.map(lambda part: client.post("/predict", json={"texts": part}), [texts, texts[2:]] * 3)
        answers = [answer.json()["items"] for answer in posted]
        assert [item["error"] for item in client.post("/predict", json={"texts": [" "]}).json()["items"]] == [
            "it has no words"
        ]
        assert "tags words" in client.get("/openapi.json").json()["info"]["description"].lower()
    for items in answers[::2]:
        assert [item["item"] for item in items] == ["1", "2", "3", "4"]
        assert items[1] == {"item": "2", "words": [], "entities": [], "error": "it has no words"}
        for item in items:
            own = rows.filter(pl.col("item") == item["item"])
            words, entities = (own.filter(pl.col("unit") == unit) for unit in ("word", "entity"))
            assert [word["text"] for word in item["words"]] == texts[int(item["item"]) - 1].split()
            assert [word["tag"] for word in item["words"]] == words["tag"].to_list()
            assert [word["probability"] for word in item["words"]] == pytest.approx(
                words["probability"].to_list(), abs=1e-5
            )
            assert [(one["text"], one["position"]) for one in item["entities"]] == entities["text", "position"].rows()
    assert rows.filter(pl.col("unit") == "entity").height > 0
    for whole, part in zip(answers[::2], answers[1::2], strict=True):
        for one, other in zip(whole[2:], part, strict=True):
            assert [word["tag"] for word in one["words"]] == [word["tag"] for word in other["words"]]


def test_words_of_a_request_are_limited(tmp_path: Path) -> None:
    """One sentence goes through the encoder in one turn, and every word has vectors in memory."""
    tagger = ExportedModel.open(handmade(tmp_path / "model", "tokens", depth=1), device="cpu")
    with client_of(tagger) as client:
        for texts in (["a " * 10_001], ["a " * 5_000, "a " * 5_001]):
            refused = client.post("/predict", json={"texts": texts})
            assert refused.status_code == 413
            assert refused.json() == {"error": "the request holds 10001 words, allowed are 10000"}


def test_parameters_of_an_address_are_refused(client: TestClient) -> None:
    """Who asks for a coverage there would take an answer without sets for one with them."""
    answer = client.post("/predict?coverage=0.9", content=wave())
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("/predict has no parameters, but got coverage")


def test_images(tmp_path: Path) -> None:
    images = ExportedModel.open(handmade(tmp_path / "model", "image"), device="cpu")
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(stream, "PNG")
    with client_of(images) as client:
        assert client.post("/predict", content=stream.getvalue()).json()["class"] in ("high", "low")
        assert "not an image" in client.post("/predict", content=b"text").json()["error"]
