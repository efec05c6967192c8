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
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from daamctl.compute.progress import progress
from daamctl.errors import DownloadError
from daamctl.store.files import atomic_path, locked, put, sha256_file

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""Most attempts in a row that bring nothing."""
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


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    fix: str = OFFLINE,
) -> Path:
    """Download a file, or resume its download.

    Args:
        target: final name; untouched until the whole file has arrived and matches.
        sha256: expected checksum; None: not known.
        md5: the same, for files whose source publishes nothing better.
        fix: what to do if the machine cannot reach the server.

    Raises:
        DownloadError: the server cannot be reached, refuses, or sends a different file.
    """

    def difference(path: Path) -> str | None:
        """How a file differs from what is expected; None if it does not."""
        if sha256 is not None and (digest := sha256_file(path)) != sha256:
            return f"SHA-256 {digest}, {sha256} expected"
        if md5 is not None:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            return None if digest == md5 else f"MD5 {digest}, {md5} expected"
        return None

    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(target.name + ".lock"), what=target.name):
        if target.is_file() and difference(target) is None:
            return target
        part = target.with_name(target.name + ".part")
        failed = 0  # attempts since the last one that brought something
        most = part.stat().st_size if part.exists() else 0
        while (reason := _attempt(url, part, fix)) is not None:
            have = part.stat().st_size if part.exists() else 0
            failed, most = (0, have) if have > most else (failed + 1, most)
            if failed == ATTEMPTS:
                advice = "what has arrived is kept: run it again, or " if have else "offline? "
                raise DownloadError(f"cannot download {url}: {reason} ({ATTEMPTS} attempts)", fix=advice + fix)
            wait = BACKOFF_S * 2 ** max(0, failed - 1)
            log.warning("%s: %s; trying again in %g s (%d of %d)", url, reason, wait, failed + 1, ATTEMPTS)
            time.sleep(wait)
        if (wrong := difference(part)) is not None:
            part.unlink()
            raise DownloadError(
                f"{url} is not the expected file: {wrong}", fix="run it again; if this persists, " + fix
            )
        put(part, target)
    return target


def _attempt(url: str, part: Path, fix: str) -> str | None:
    """Send one request and append to `part`, or overwrite it if the server ignores ranges.

    The temporary failure to try again after; None if the file has arrived. A lasting one is a DownloadError.
    """
    import requests

    have = part.stat().st_size if part.exists() else 0
    # without this header a server may compress, and its byte counts would refer to another stream
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as answer:
            span = answer.headers.get("Content-Range", "")
            if answer.status_code == 416:
                if span.rpartition("/")[2] == str(have):
                    return None
                part.unlink()
                return "the unfinished download does not match the file on the server; starting again"
            if answer.status_code in _RETRY_STATUS:
                return f"the server answered {answer.status_code} {answer.reason}"
            if answer.status_code not in (200, 206):
                raise DownloadError(f"{url}: the server answered {answer.status_code} {answer.reason}", fix=fix)
            if answer.status_code == 200:
                have = 0
            elif have and not span.startswith(f"bytes {have}-"):
                return "the server sent a different part of the file"
            length = answer.headers.get("Content-Length", "")
            total = have + int(length) if length.isdigit() else 0  # 0: unknown
            megabytes = have // 10**6
            log.info("downloading %s%s", part.stem, f" of {total / 1e6:.1f} MB" if total else "")
            with (
                part.open("ab" if have else "wb") as stream,
                progress(total // 10**6, f"downloading {part.stem}", "MB", megabytes) as bar,
            ):
                for chunk in answer.iter_content(CHUNK_BYTES):
                    stream.write(chunk)
                    have += len(chunk)
                    bar.advance(have // 10**6 - bar.done)
            return f"the connection ended after {have} of {total} bytes" if have < total else None
    except (
        requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema
    ) as error:  # fmt: skip
        raise DownloadError(f"'{url}' is not an address: {error}", fix=fix) from error
    except (requests.exceptions.RequestException, ConnectionError, TimeoutError) as error:
        return f"the connection failed ({type(error).__name__})"
    except OSError as error:  # the disk, not the network
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write {part}: {reason}", fix="free space or fix permissions") from error


@contextlib.contextmanager
def made_whole(target: Path, marker: str) -> Iterator[Path]:
    """Yield a new folder; if the block succeeds, the folder gets the marker file and replaces `target`.

    Only one process may do this at a time.
    """
    # a fixed name, so that the next call removes what a killed one has left: archives may be large
    with atomic_path(target, at=target.with_name(f".{target.name}-unfinished")) as new:
        new.mkdir()
        yield new
        (new / COMPLETED).write_text(marker, encoding="utf-8")


def is_whole(target: Path, marker: str | None = None) -> bool:
    """Whether `made_whole` completed the folder, with this marker or with any."""
    done = target / COMPLETED
    return done.is_file() and marker in (None, done.read_text(encoding="utf-8"))


def unpack(archive: Path, target: Path) -> Path:
    """Unpack a zip or tar archive into `target`, atomically.

    Raises:
        DownloadError: the archive is damaged, encrypted, of another kind, unreasonably large when unpacked, or has
            members that point outside `target`.
    """
    if is_whole(target):
        return target
    again = f"delete {archive} and run it again"

    def check(name: str, total: int) -> None:
        """Refuse a name outside the folder, which zipfile would silently rewrite, and what would fill the disk."""
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name.split("/")[0]:
            raise DownloadError(f"{archive} contains '{name}', which points outside its folder: not unpacked")
        packed = archive.stat().st_size  # recordings, images and texts shrink far less
        if total > max(MOST_EXPANSION * packed, FREE_EXPANSION_BYTES):
            raise DownloadError(
                f"{archive} has {packed / 1e6:.1f} MB, and {total / 1e6:.0f} MB or more when unpacked; "
                f"at most {MOST_EXPANSION} times its size is allowed",
                fix=again,
            )

    total = 0
    try:
        with made_whole(target, f"unpacked from {archive.name}\n") as new:
            if tarfile.is_tarfile(archive):  # first: a tar whose last member is a zip looks like one, too
                with tarfile.open(archive) as tar:
                    for member in tar:
                        total += member.size
                        check(member.name, total)  # before the next step, which unpacks this member to find its end
                        if not (member.isfile() or member.isdir()):  # links and devices may point outside
                            what = f"{archive} contains '{member.name}', which is neither a file nor a folder"
                            raise DownloadError(what, fix=again)
                    tar.extraction_filter = getattr(tarfile, "data_filter", None)  # in Python 3.11.4 and later
                    tar.extractall(new)
            elif zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as file:
                    for info in file.infolist():
                        total += info.file_size
                        check(info.filename, total)
                        if info.flag_bits & ENCRYPTED:
                            raise DownloadError(
                                f"{archive} contains '{info.filename}', which is encrypted",
                                fix="unpack it elsewhere and register the folder: daamctl download CORPUS --from DIR",
                            )
                    file.extractall(new)
            else:
                raise DownloadError(f"{archive} is neither a zip nor a tar archive", fix=again)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, RuntimeError) as error:
        # RuntimeError: a zip member is packed in a way that Python does not know
        raise DownloadError(f"cannot unpack {archive}: {error}", fix=again) from error
    return target
