"""Resumable downloads, and atomic unpacking of archives.

A download is written to `<target>.part` and gets its final name when its checksum matches. Sizes are in bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import lzma
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from daamctl.errors import DownloadError
from daamctl.store.files import atomic_path, locked, put, sha256_file

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

ATTEMPTS = 5
BACKOFF_S = 1.0
"""Wait after the first failed attempt; doubled after each further one."""
TIMEOUT_S = 30.0
"""Longest silence of the server."""
CHUNK_BYTES = 1 << 18
ENCRYPTED = 0x1
"""Flag of a zip member."""
MOST_EXPANSION = 100
"""Largest ratio of what an archive contains to its own size."""
FREE_EXPANSION_BYTES = 100_000_000
"""Unpacked size that every archive may have."""
COMPLETED = ".completed"
"""Marker file in a folder that was unpacked or generated completely."""
OFFLINE = "download it elsewhere and register it: daamctl download CORPUS --from DIR"

_RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)


class _Retry(Exception):
    """A temporary failure."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    fix: str = OFFLINE,
) -> Path:
    """Download a file, or resume its download.

    Args:
        target: final name; untouched until the whole file has arrived and matches.
        sha256: expected checksum; None: not known.
        md5: the same, for files whose source publishes nothing better.
        size: expected size in bytes; None: not known.
        fix: what to do if the machine cannot reach the server.

    Returns:
        `target`.

    Raises:
        DownloadError: the server cannot be reached, refuses, or sends a different file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(target.name + ".lock"), what=target.name):
        if target.is_file() and _difference(target, sha256, md5, size) is None:
            return target
        part = target.with_name(target.name + ".part")
        _download(url, part, fix)
        difference = _difference(part, sha256, md5, size)
        if difference is not None:
            part.unlink()
            raise DownloadError(
                f"{url} is not the expected file: {difference}", fix="run it again; if this persists, " + fix
            )
        put(part, target)
    return target


@contextlib.contextmanager
def made_whole(target: Path, marker: str) -> Iterator[Path]:
    """Yield a new folder; if the block succeeds, the folder gets the marker file and replaces `target`."""
    with atomic_path(target) as new:
        new.mkdir()
        yield new
        (new / COMPLETED).write_text(marker, encoding="utf-8")


def is_whole(target: Path, marker: str | None = None) -> bool:
    """Whether `made_whole` completed the folder, with this marker or with any."""
    done = target / COMPLETED
    return done.is_file() and marker in (None, done.read_text(encoding="utf-8"))


def unpack(archive: Path, target: Path) -> Path:
    """Unpack a zip or tar archive into `target`, atomically.

    Returns:
        `target`.

    Raises:
        DownloadError: the archive is damaged, encrypted, of another kind, unreasonably large when unpacked, or has
            members that point outside `target`.
    """
    if is_whole(target):
        return target
    try:
        with made_whole(target, f"unpacked from {archive.name}\n") as new:
            _extract(archive, new)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError) as error:
        # RuntimeError: a zip member is packed in a way that Python does not know
        raise DownloadError(f"cannot unpack {archive}: {error}", fix=f"delete {archive} and run it again") from error
    return target


def _difference(path: Path, sha256: str | None, md5: str | None, size: int | None) -> str | None:
    """How a file differs from what is expected; None if it does not."""
    found = path.stat().st_size
    if size is not None and found != size:
        return f"{found} bytes, {size} expected"
    if sha256 is not None and (digest := sha256_file(path)) != sha256:
        return f"SHA-256 {digest}, {sha256} expected"
    if md5 is not None and (digest := _md5(path)) != md5:
        return f"MD5 {digest}, {md5} expected"
    return None


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(url: str, part: Path, fix: str) -> None:
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            wait = BACKOFF_S * 2 ** (attempt - 1)
            log.warning("%s: %s; trying again in %g s (%d of %d)", url, reason, wait, attempt + 1, ATTEMPTS)
            time.sleep(wait)
        try:
            _attempt(url, part, fix)
            return
        except _Retry as error:
            reason = str(error)
    raise DownloadError(f"cannot download {url}: {reason} ({ATTEMPTS} attempts)", fix="offline? " + fix)


def _attempt(url: str, part: Path, fix: str) -> None:
    """Send one request and append to `part`, or overwrite it if the server ignores ranges."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    # without this header a server may compress, and its byte counts would refer to another stream
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as answer:
            if answer.status_code == 416:
                if answer.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                    return
                part.unlink()
                raise _Retry("the unfinished download does not match the file on the server; starting again")
            if answer.status_code in _RETRY_STATUS:
                raise _Retry(f"the server answered {answer.status_code} {answer.reason}")
            if answer.status_code not in (200, 206):
                raise DownloadError(f"{url}: the server answered {answer.status_code} {answer.reason}", fix=fix)
            resumed = answer.status_code == 206 and have > 0
            if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise _Retry("the server sent a different part of the file")
            _receive(answer, part, have if resumed else 0)
    except requests.exceptions.InvalidURL as error:
        raise DownloadError(f"'{url}' is not an address: {error}", fix=fix) from error
    except (requests.exceptions.RequestException, ConnectionError, TimeoutError) as error:
        raise _Retry(f"the connection failed ({type(error).__name__})") from error
    except OSError as error:  # the disk, not the network
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write {part}: {reason}", fix="free space or fix permissions") from error


def _receive(answer: requests.Response, part: Path, offset: int) -> None:
    length = answer.headers.get("Content-Length")
    total = offset + int(length) if length is not None and length.isdigit() else None
    received = offset
    with part.open("ab" if offset else "wb") as stream, _progress(part.stem, offset, total) as advance:
        for chunk in answer.iter_content(CHUNK_BYTES):
            stream.write(chunk)
            received += len(chunk)
            advance(len(chunk))
    if total is not None and received < total:
        raise _Retry(f"the connection ended after {received} of {total} bytes")


@contextlib.contextmanager
def _progress(name: str, done: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, one log line elsewhere; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        whole = f" of {total / 1e6:.1f} MB" if total is not None else ""
        log.info("downloading %s%s", name, whole + (f", continuing at {done / 1e6:.1f} MB" if done else ""))
        yield lambda num_bytes: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda num_bytes: progress.advance(task, num_bytes)


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                _check_member(archive, info.filename)
                if info.flag_bits & ENCRYPTED:
                    raise DownloadError(
                        f"{archive} contains '{info.filename}', which is encrypted",
                        fix="unpack it elsewhere and register the folder: daamctl download CORPUS --from DIR",
                    )
            _check_size(archive, sum(info.file_size for info in file.infolist()))
            file.extractall(folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as file:
            total = 0
            for member in file:
                total += member.size
                _check_size(archive, total)  # before the next step, which unpacks this member to find its end
                _check_member(archive, member.name)
                if not (member.isfile() or member.isdir()):  # a corpus has no links or devices, which may point outside
                    raise DownloadError(
                        f"{archive} contains '{member.name}', which is neither a file nor a folder",
                        fix=f"delete {archive} and run it again",
                    )
            if hasattr(tarfile, "data_filter"):
                file.extractall(folder, filter="data")
            else:  # Python before 3.11.4; what the filter refuses is refused above
                file.extractall(folder)
    else:
        raise DownloadError(f"{archive} is neither a zip nor a tar archive", fix=f"delete {archive} and run it again")


def _check_size(archive: Path, total: int) -> None:
    """Refuse an archive that would fill the disk: recordings, images and texts shrink far less."""
    packed = archive.stat().st_size
    if total > max(MOST_EXPANSION * packed, FREE_EXPANSION_BYTES):
        raise DownloadError(
            f"{archive} has {packed / 1e6:.1f} MB, and {total / 1e6:.0f} MB or more when unpacked; "
            f"at most {MOST_EXPANSION} times its size is allowed",
            fix=f"delete {archive} and run it again",
        )


def _check_member(archive: Path, name: str) -> None:
    # zipfile would silently rewrite such names; an archive with such names is not the expected one
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name.split("/")[0]:
        raise DownloadError(f"{archive} contains '{name}', which points outside its folder: not unpacked")
