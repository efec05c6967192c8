"""Read audio files: header facts, and exact segments as mono float32 at a given sampling rate.

libsndfile decodes (WAV, FLAC, OGG, MP3; any bit depth), and torchaudio's windowed-sinc filter resamples. A header is
checked against the limits below before anything is allocated for its samples. Units: `*_s` are seconds, `num_samples`
counts samples per channel, `sampling_rate` is Hz.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daamctl.errors import AudioError

if TYPE_CHECKING:
    import numpy as np
    import torch

SILENCE = 1e-4
"""Amplitude below which a sample counts as silence (-80 dB of full scale)."""
FULL_SCALE = 0.999
"""Amplitude from which a sample counts as clipped."""
CLIPPED_FRACTION = 0.01
"""Share of clipped samples above which a waveform counts as clipped."""
SHORT_S = 0.1
"""Seconds below which a recording is doubtful: a syllable lasts longer."""
END_SLACK_S = 0.01
"""Seconds that a piece may extend beyond the end of its file: tables often round times to hundredths."""

RATES = (1_000, 768_000)
"""Lowest and highest sampling rate that is read, in Hz."""
MOST_CHANNELS = 64
LONGEST_H = 48
"""Longest recording that is read, in hours."""
MOST_VALUES = 1 << 26
"""Most values (samples times channels) that are decoded at once: 268 MB, ten minutes of stereo at 48 kHz."""
MOST_TAPS = 1 << 22
"""Largest kernel that torchaudio may make to resample; it has a filter per phase, millions for coprime rates."""

# An MP3 header includes the encoder's padding, which decoders cut off: up to two frames may be missing.
_MP3_SLACK = 2 * 1152
# Writers that cannot seek back (pipes) store these values as the size of the data chunk.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000)  # the last by SoX
# libsndfile returns the largest 64-bit number for streams of unknown length.
_UNKNOWN_LENGTH = 1 << 62


@dataclass(frozen=True)
class AudioInfo:
    """Header facts of an audio file.

    Args:
        num_samples: samples per channel.
        sampling_rate: Hz.
        n_channels: number of channels.
    """

    num_samples: int
    sampling_rate: int
    n_channels: int


def probe(path: Path) -> AudioInfo:
    """Read the header of an audio file.

    Raises:
        AudioError: the file is missing, empty, without samples, shorter than its header states, beyond the limits, or
        not audio.
    """
    _check_exists(path)
    with _open(path) as file:
        info = AudioInfo(file.frames, file.samplerate, file.channels)
        if info.num_samples == 0:
            raise AudioError(f"{path} holds no samples")
        if info.num_samples >= _UNKNOWN_LENGTH:
            raise AudioError(f"{path} does not say how long it is")
        if info.num_samples > LONGEST_H * 3600 * info.sampling_rate:
            hours = info.num_samples / info.sampling_rate / 3600
            raise AudioError(f"{path} lasts {hours:,.0f} h by its header; at most {LONGEST_H} h are read")
        if file.format == "FLAC":
            _check_last_sample(path, file)
    promised = _promised_bytes(path)
    if promised is not None and promised[0] > promised[1]:
        raise AudioError(f"{path} is truncated: its header promises {promised[0]} bytes of audio, {promised[1]} follow")
    return info


def load(path: Path, *, start_s: float = 0.0, duration_s: float | None = None, sampling_rate: int) -> torch.Tensor:
    """Decode a segment of a file, mix it down to mono and resample it.

    The segment is resampled on its own, without the samples around it.

    Args:
        start_s: start of the segment, in seconds.
        duration_s: its length in seconds; None: to the end of the file.
        sampling_rate: target rate in Hz.

    Returns:
        float32 waveform, shape (num_samples,).

    Raises:
        AudioError: the file cannot be decoded, is beyond the limits, ends before the segment does, or the segment has
        no or non-finite samples.
    """
    import torch

    samples, rate = read_piece(path, start_s=start_s, duration_s=duration_s)
    waveform = torch.from_numpy(samples).mean(dim=1)
    if not bool(torch.isfinite(waveform).all()):
        raise AudioError(f"{path} holds samples that are NaN or infinite ({_piece(start_s, duration_s)})")
    if rate != sampling_rate:
        waveform = resample(waveform, rate, sampling_rate)
    return waveform.contiguous()


def resample(waveform: torch.Tensor, rate: int, target: int) -> torch.Tensor:
    """Resample with the filter of `torchaudio.functional.resample` (six zero crossings, roll-off 0.99, Hann window).

    Where the rates have a large kernel, e.g. coprime ones, its values are computed for one block of samples at a time.

    Args:
        waveform: shape (num_samples,).
        rate: its rate in Hz.

    Returns:
        float32, shape (ceil(num_samples * target / rate),).
    """
    import torch
    import torchaudio.functional as F

    common, base = math.gcd(rate, target), 0.99 * min(rate, target)
    reach = math.ceil(6 * rate / base)  # samples on each side that the filter sees
    if target // common * (2 * reach + rate // common) <= MOST_TAPS:
        resampled: torch.Tensor = F.resample(waveform, rate, target)
        return resampled
    padded = torch.nn.functional.pad(waveform.double(), (reach, reach + 1))
    blocks = []
    for times in torch.arange(math.ceil(len(waveform) * target / rate)).split(max(1, (1 << 18) // reach)):
        near = (times * rate // target)[:, None] + torch.arange(-reach, reach + 1)
        t = ((near * target - times[:, None] * rate) * (base / rate / target)).clamp(-6, 6)
        kernel = torch.sinc(t) * torch.cos(t * math.pi / 12).square() * (base / rate)
        blocks.append((kernel * padded[near + reach]).sum(1).float())
    return torch.cat(blocks)


def read_piece(path: Path, *, start_s: float = 0.0, duration_s: float | None = None) -> tuple[np.ndarray, int]:
    """Decode a segment without mixing or resampling.

    Returns:
        float32 samples of shape (num_samples, n_channels), and the file's rate in Hz.

    Raises:
        AudioError: as for `load`, but non-finite samples are allowed.
    """
    import soundfile as sf

    _check_exists(path)
    with _open(path) as file:
        start = round(start_s * file.samplerate)
        length = file.frames - start if duration_s is None else round(duration_s * file.samplerate)
        slack = _MP3_SLACK if file.format in ("MPEG", "MP3") else 0
        if start < 0 or start + length > file.frames + slack:
            raise AudioError(
                f"{path} has {file.frames / file.samplerate:.3f} s of audio; {_piece(start_s, duration_s)} lies outside"
            )
        if length <= 0:
            raise AudioError(f"{path}: {_piece(start_s, duration_s)} holds no samples")
        if length * file.channels > MOST_VALUES:
            raise AudioError(
                f"{path}: {_piece(start_s, duration_s)} of {file.channels} channel(s) at {file.samplerate} Hz is too "
                f"much to decode at once ({length * file.channels:,} values; at most {MOST_VALUES:,})"
            )
        try:
            file.seek(start)
            samples = file.read(length, dtype="float32", always_2d=True)
        except (sf.LibsndfileError, RuntimeError) as error:
            raise AudioError(f"{path} cannot be decoded ({_piece(start_s, duration_s)}): {error}") from error
        if len(samples) == 0 or len(samples) + slack < length:
            piece = _piece(start_s, duration_s)
            raise AudioError(f"{path} is truncated: {length} samples expected ({piece}), {len(samples)} decoded")
        return samples, file.samplerate


def warnings_about(waveform: torch.Tensor) -> set[str]:
    """Warnings about a waveform: `silent`, `clipped`, both or none. They do not exclude it."""
    amplitude = waveform.abs()
    warnings = set()
    if bool((amplitude < SILENCE).all()):
        warnings.add("silent")
    if float((amplitude >= FULL_SCALE).float().mean()) > CLIPPED_FRACTION:
        warnings.add("clipped")
    return warnings


def _check_exists(path: Path) -> None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:  # ValueError: the name holds a null byte
        raise AudioError(f"no recording {path} ({getattr(error, 'strerror', error)})") from error
    if not path.is_file():
        raise AudioError(f"{path} is not a file")
    if size == 0:
        raise AudioError(f"{path} is empty (0 bytes)")


def _open(path: Path) -> Any:
    import soundfile as sf

    try:
        file = sf.SoundFile(path)
    except (sf.LibsndfileError, RuntimeError, TypeError) as error:
        # TypeError: soundfile treats names ending in .raw as headerless audio and asks for their sampling rate
        reason = getattr(error, "error_string", str(error))
        raise AudioError(f"{path} is not audio that can be read (WAV, FLAC, OGG, MP3): {reason}") from error
    if not RATES[0] <= file.samplerate <= RATES[1] or file.channels > MOST_CHANNELS:
        file.close()
        raise AudioError(
            f"{path} has {file.channels} channel(s) at {file.samplerate} Hz by its header; read are at most "
            f"{MOST_CHANNELS} at {RATES[0]} to {RATES[1]} Hz"
        )
    return file


def _check_last_sample(path: Path, file: Any) -> None:
    """Check the end of a FLAC file: its header states a length, so only decoding the end shows whether it is there."""
    try:
        file.seek(file.frames - 1)
        whole = len(file.read(1)) == 1
    except RuntimeError:
        whole = False
    if not whole:
        raise AudioError(f"{path} is truncated: its header promises {file.frames} samples, the last cannot be decoded")


def _promised_bytes(path: Path) -> tuple[int, int] | None:
    """Bytes that a RIFF/WAVE header promises and bytes that follow; None for other formats and unknown sizes.

    libsndfile silently shortens such a file, so a damaged copy would pass for a short recording.
    """
    with path.open("rb") as stream:
        head = stream.read(12)
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            return None
        while len(chunk := stream.read(8)) == 8:
            name, size = struct.unpack("<4sI", chunk)
            if name == b"data":
                return None if size in _UNKNOWN_SIZES else (size, path.stat().st_size - stream.tell())
            stream.seek(size + size % 2, 1)  # chunks are padded to even length
    return None


def _piece(start_s: float, duration_s: float | None) -> str:
    return f"{start_s:g} s to " + ("the end" if duration_s is None else f"{start_s + duration_s:g} s")
