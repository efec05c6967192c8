"""Downloads against a local server: interruption, resumption, wrong files, no server; and hostile archives."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from daamctl.corpora import fetch as module
from daamctl.corpora.fetch import fetch, is_whole, made_whole, unpack
from daamctl.errors import ArtifactError, DownloadError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; misbehaves as the server's attributes say."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.ranges.append(self.headers.get("Range"))
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        if server.honours_range and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = server.breaks.pop(0) if server.breaks else len(CONTENT)
        self.wfile.write(CONTENT[start:end])

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """The misbehaviours left, and what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.honours_range = True
        self.breaks: list[int] = []
        self.statuses: list[int] = []
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/a.bin"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "BACKOFF_S", 0.01)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


def test_plain_download_and_no_second_one(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.bin"
    assert fetch(server.url, target, sha256=SHA256) == target
    assert target.read_bytes() == CONTENT
    fetch(server.url, target, sha256=SHA256)
    assert server.ranges == [None]


def test_broken_connection_is_resumed_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.breaks = [300_000, 700_000]
    target = tmp_path / "a.bin"
    fetch(server.url, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert server.ranges[0] is None
    starts = [int(text.removeprefix("bytes=").removesuffix("-")) for text in server.ranges[1:] if text]
    assert len(starts) == 2
    assert 0 < starts[0] <= 300_000 < starts[1] <= 700_000


def test_a_connection_that_always_breaks_but_brings_something(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    server.breaks = list(range(100_000, len(CONTENT), 100_000))
    assert len(server.breaks) > module.ATTEMPTS
    assert fetch(server.url, tmp_path / "a.bin", sha256=SHA256).read_bytes() == CONTENT


def test_what_has_arrived_is_kept_for_the_next_call(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    server.statuses = [503] * module.ATTEMPTS
    with pytest.raises(
        DownloadError, match=r"503 .*\(5 attempts\)\n  what has arrived is kept: run it again, or download"
    ):
        fetch(server.url, tmp_path / "a.bin", sha256=SHA256)
    assert fetch(server.url, tmp_path / "a.bin", sha256=SHA256).read_bytes() == CONTENT


def test_a_later_call_continues(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.with_name("a.bin.part").write_bytes(CONTENT[:1000])
    fetch(server.url, target, sha256=SHA256)
    assert server.ranges == ["bytes=1000-"]
    assert target.read_bytes() == CONTENT
    assert not target.with_name("a.bin.part").exists()


def test_server_that_ignores_ranges_means_starting_anew(server: Server, tmp_path: Path) -> None:
    server.honours_range = False
    target = tmp_path / "a.bin"
    target.with_name("a.bin.part").write_bytes(b"x" * 1000)
    fetch(server.url, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"too long"])
def test_complete_or_overlong_part(server: Server, tmp_path: Path, part: bytes) -> None:
    target = tmp_path / "a.bin"
    target.with_name("a.bin.part").write_bytes(part)
    fetch(server.url, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with pytest.raises(DownloadError, match=f"SHA-256 {SHA256}, {'0' * 64} expected"):
        fetch(server.url, target, sha256="0" * 64)
    assert not target.exists()
    assert not target.with_name("a.bin.part").exists()


def test_md5_where_there_is_no_better_checksum(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with pytest.raises(DownloadError, match=f"MD5 {MD5}, {'0' * 32} expected"):
        fetch(server.url, target, md5="0" * 32)
    assert not target.exists()
    for _ in range(2):
        assert fetch(server.url, target, md5=MD5).read_bytes() == CONTENT
    assert len(server.ranges) == 2


def test_a_wrong_file_under_the_final_name_is_replaced(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    fetch(server.url, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_passing_server_trouble_is_waited_out(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert fetch(server.url, tmp_path / "a.bin", sha256=SHA256).read_bytes() == CONTENT


def test_lasting_refusal_is_reported_at_once(server: Server, tmp_path: Path) -> None:
    server.statuses = [404]
    with pytest.raises(DownloadError, match="the server answered 404"):
        fetch(server.url, tmp_path / "a.bin", sha256=SHA256)
    assert len(server.ranges) == 1


@pytest.mark.parametrize("url", ["example.org/corpus.zip", "ftp://example.org/corpus.zip", "http://"])
def test_what_is_no_address_is_not_tried_again(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DownloadError, match=f"'{url}' is not an address"):
        fetch(url, tmp_path / "corpus.zip")
    assert "attempt" not in caplog.text


def test_no_server(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadError, match="5 attempts") as caught:
        fetch(f"http://127.0.0.1:{port}/a", tmp_path / "a", sha256=None, fix="daamctl download emodb --from DIR")
    assert "offline? daamctl download emodb --from DIR" in str(caught.value)
    assert not (tmp_path / "a").exists()


def make_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def make_tar(path: Path, members: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            file.addfile(info)
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_unpack_once(tmp_path: Path, make: object) -> None:
    assert callable(make)
    archive = make(tmp_path / "a.archive", {"wav/a.wav": b"1", "b": b"2"})
    folder = unpack(archive, tmp_path / "out")
    assert (folder / "wav" / "a.wav").read_bytes() == b"1"
    assert (folder / ".completed").is_file()
    archive.unlink()
    assert unpack(archive, folder) == folder  # done already: the archive is not needed


def test_a_tar_that_ends_with_a_zip_is_no_zip(tmp_path: Path) -> None:
    make_zip(tmp_path / "inner.zip", {"c": b"3"})
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        file.add(tmp_path / "inner.zip", "inner.zip")
    folder = unpack(tmp_path / "a.tar", tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == [".completed", "inner.zip"]


def test_made_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert not is_whole(target)
    with made_whole(target, "first") as new:
        (new / "a").touch()
        assert not target.exists()
    assert is_whole(target)
    assert is_whole(target, "first")
    assert not is_whole(target, "second")
    with pytest.raises(ArtifactError), made_whole(target, "second") as new:
        (new / "none" / "b").touch()
    assert is_whole(target, "first")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unfinished_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "leftover").touch()
    unpack(make_zip(tmp_path / "a.zip", {"new": b""}), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".completed", "new"]


def test_the_next_call_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), made_whole(tmp_path / "out", "") as new:
        raise KeyboardInterrupt  # which removes the folder, but SIGKILL would not
    new.mkdir()
    (new / "partial").touch()
    unpack(make_zip(tmp_path / "a.zip", {"new": b""}), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".completed", "a.zip", "new", "out"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:/evil"])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_members_outside_the_folder_are_refused(tmp_path: Path, make: object, name: str) -> None:
    assert callable(make)
    folder = tmp_path / "deep" / "out"
    with pytest.raises(DownloadError, match="points outside its folder"):
        unpack(make(tmp_path / "a.archive", {"good": b"", name: b"bad"}), folder)
    assert not folder.exists()
    assert not list(tmp_path.rglob("evil"))
    assert list((tmp_path / "deep").iterdir()) == []


def test_tar_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar.gz", {}, link=("link", "../../secret"))
    with pytest.raises(DownloadError, match="contains 'link', which is neither a file nor a folder"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def make_packed_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("make", [make_packed_zip, make_tar])
def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Path]
) -> None:
    archive = make(tmp_path / "bomb", {f"{number}.wav": bytes(1_000_000) for number in range(5)})
    monkeypatch.setattr(module, "FREE_EXPANSION_BYTES", 1_000_000)
    with pytest.raises(DownloadError, match=r"has 0\.0 MB, and [25] MB or more when unpacked; at most 100 times its"):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb"]
    monkeypatch.setattr(module, "FREE_EXPANSION_BYTES", 5_000_000)
    assert len(list(unpack(archive, tmp_path / "out").glob("*.wav"))) == 5


@pytest.mark.parametrize(
    ("local", "central", "value", "reason"),
    [
        (6, 8, 1, r"a\.zip contains 'a\.wav', which is encrypted\n  unpack it elsewhere"),
        (8, 10, 97, r"cannot unpack .*a\.zip: .*compression method is not supported\n  delete .* and run it again$"),
    ],
)
def test_zip_members_that_python_cannot_open(tmp_path: Path, local: int, central: int, value: int, reason: str) -> None:
    archive = make_zip(tmp_path / "a.zip", {"a.wav": b"content"})
    content = bytearray(archive.read_bytes())
    content[local] = content[content.index(b"PK\x01\x02") + central] = value
    archive.write_bytes(content)
    with pytest.raises(DownloadError, match=reason):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"no archive")
    with pytest.raises(DownloadError, match="neither a zip nor a tar archive"):
        unpack(tmp_path / "none", tmp_path / "out")
    archive = make_zip(tmp_path / "a.zip", {"a": b"content " * 100})
    data = bytearray(archive.read_bytes())
    data[60] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(DownloadError, match=r"cannot unpack .*a\.zip"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
