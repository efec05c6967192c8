"""Audio reading: every format and rate, exact pieces, and one clear error for each kind of broken file."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch

from daamctl.data import audio
from daamctl.errors import AudioError
from tests.fixtures.recordings import wav_bytes


def tone(rate: int, seconds: float = 1.0, *, channels: int = 1, hertz: float = 440.0) -> np.ndarray:
    time = np.arange(round(rate * seconds)) / rate
    return np.repeat(0.5 * np.sin(2 * np.pi * hertz * time)[:, None], channels, axis=1)


def write(path: Path, samples: np.ndarray, rate: int, subtype: str | None = None) -> Path:
    sf.write(path, samples, rate, subtype=subtype)
    return path


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize(
    ("suffix", "subtype"),
    [("wav", "PCM_16"), ("wav", "PCM_24"), ("wav", "FLOAT"), ("flac", "PCM_16"), ("flac", "PCM_24"), ("ogg", None)],
)
def test_every_format_and_rate_gives_the_same_tone(tmp_path: Path, rate: int, suffix: str, subtype: str | None) -> None:
    path = write(tmp_path / f"a.{suffix}", tone(rate, channels=2), rate, subtype)
    info = audio.probe(path)
    assert (info.num_samples, info.sampling_rate, info.n_channels) == (rate, rate, 2)
    waveform = audio.load(path, sampling_rate=16000)
    assert waveform.shape == (16000,)
    assert waveform.dtype == torch.float32
    expected = torch.from_numpy(tone(16000)[:, 0]).float()
    inner = slice(1000, -1000)  # the resampler sees nothing beyond the ends
    assert (waveform[inner] - expected[inner]).abs().max() < (0.05 if suffix == "ogg" else 2e-3)


def test_mp3_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp3", tone(44100, 2.0), 44100)
    info = audio.probe(path)
    waveform = audio.load(path, duration_s=info.num_samples / info.sampling_rate, sampling_rate=16000)
    assert abs(len(waveform) - 32000) < 2500
    assert 0.25 < float(waveform.square().mean().sqrt()) < 0.45


def test_channels_are_averaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.column_stack([np.full(100, 0.5), np.full(100, -0.25)]), 16000, "FLOAT")
    assert torch.allclose(audio.load(path, sampling_rate=16000), torch.full((100,), 0.125))


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_piece_is_exact_to_the_sample(tmp_path: Path, suffix: str) -> None:
    ramp = np.arange(20000, dtype=np.int16)
    path = tmp_path / f"a.{suffix}"
    sf.write(path, ramp, 22050)
    piece = audio.load(path, start_s=5000 / 22050, duration_s=777 / 22050, sampling_rate=22050)
    assert (piece * 32768).round().to(torch.int16).tolist() == ramp[5000:5777].tolist()
    rest = audio.load(path, start_s=19999 / 22050, sampling_rate=22050)
    assert len(rest) == 1


def test_times_between_two_floats_still_hit_their_sample(tmp_path: Path) -> None:
    samples = np.arange(20000, dtype=np.int16)
    sf.write(tmp_path / "a.wav", samples, 22050)
    places = [place for place in range(20000) if int(place / 22050 * 22050) != place]
    assert places  # times that truncation would put one sample too early
    for place in places[:50]:
        piece, _ = audio.read_piece(tmp_path / "a.wav", start_s=place / 22050, duration_s=1 / 22050)
        assert round(float(piece[0, 0]) * 32768) == place


def test_piece_outside_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16000), 16000)
    with pytest.raises(AudioError, match=r"a\.wav has 1\.000 s of audio; 0\.5 s to 1\.5 s lies outside"):
        audio.load(path, start_s=0.5, duration_s=1.0, sampling_rate=16000)
    with pytest.raises(AudioError, match="holds no samples"):
        audio.load(path, start_s=1.0, sampling_rate=16000)
    with pytest.raises(AudioError, match="lies outside"):
        audio.load(path, start_s=-1.0, sampling_rate=16000)


@pytest.mark.parametrize("read", [audio.probe, lambda path: audio.load(path, sampling_rate=16000)])
def test_broken_files_are_named(tmp_path: Path, read: object) -> None:
    assert callable(read)
    cases = {
        "missing.wav": (None, "no recording"),
        "empty.wav": (b"", r"empty \(0 bytes\)"),
        "text.wav": (b"this is not audio at all, however long it may be" * 4, "not audio that can be read"),
        "text.raw": (b"headerless" * 100, "not audio that can be read"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(AudioError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)
    with pytest.raises(AudioError, match="is not a file"):
        read(tmp_path)


def test_file_without_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "none.wav", np.zeros((0, 1)), 16000)
    with pytest.raises(AudioError, match=r"none\.wav holds no samples"):
        audio.probe(path)
    with pytest.raises(AudioError, match="holds no samples"):
        audio.load(path, sampling_rate=16000)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_truncated_file_is_found_from_its_header(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 48000)
    path = write(tmp_path / f"cut.{suffix}", noise, 16000)
    audio.probe(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(AudioError, match=rf"cut\.{suffix} is truncated"):
        audio.probe(path)
    with pytest.raises(AudioError):
        audio.load(path, duration_s=3.0, sampling_rate=16000)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_streamed_wav_of_unknown_length_is_accepted(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "pipe.wav", tone(16000), 16000)
    data = bytearray(path.read_bytes())
    place = data.index(b"data") + 4
    data[place : place + 4] = struct.pack("<I", size)
    path.write_bytes(data)
    assert audio.probe(path).num_samples == 16000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_samples_are_refused(tmp_path: Path, value: float) -> None:
    samples = tone(16000)
    samples[500] = value
    path = write(tmp_path / "a.wav", samples, 16000, "FLOAT")
    with pytest.raises(AudioError, match="NaN or infinite"):
        audio.load(path, sampling_rate=16000)
    assert len(audio.load(path, start_s=0.1, sampling_rate=16000)) == 14400


def test_warnings_about() -> None:
    loud = torch.zeros(1000)
    loud[:10] = 1.0
    assert audio.warnings_about(loud) == set()
    loud[:11] = -1.0
    assert audio.warnings_about(loud) == {"clipped"}
    assert audio.warnings_about(torch.full((10,), 9e-5)) == {"silent"}
    assert audio.warnings_about(torch.tensor([0.0, 2e-4])) == set()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            {"rate": 2_147_483_647},
            r"1 channel\(s\) at 2147483647 Hz by its header; read are at most 64 at 1000 to 768000",
        ),
        ({"rate": 768_001}, "at 768001 Hz"),
        ({"rate": 999}, "at 999 Hz"),
        ({"rate": 0}, "not audio that can be read"),
        ({"rate": 4_294_967_295}, "not audio that can be read"),
        ({"rate": 16_000, "channels": 65}, r"65 channel\(s\)"),
        ({"rate": 16_000, "channels": 65_535}, "not audio that can be read"),
        ({"rate": 16_000, "channels": 0}, "not audio that can be read"),
        ({"rate": 16_000, "size": 0x7FFFFFF0}, "is truncated: its header promises 2147483632 bytes"),
        ({"rate": 16_000, "size": 0xFFFFFFF0}, "is truncated: its header promises 4294967280 bytes"),
    ],
)
def test_headers_that_no_recorder_writes(tmp_path: Path, header: dict[str, int], message: str) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(**header))
    with pytest.raises(AudioError, match=message) as caught:
        audio.probe(path)
    assert "\n" not in caught.value.message
    if "size" not in header:
        with pytest.raises(AudioError, match=message):
            audio.load(path, sampling_rate=16_000)


def test_what_is_too_long_to_read_at_all_or_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.wav", tone(16000, 2.0, channels=2), 16000)
    monkeypatch.setattr(audio, "MOST_VALUES", 63_999)
    with pytest.raises(AudioError, match=r"0 s to the end of 2 channel\(s\) .* \(64,000 values; at most 63,999\)"):
        audio.load(path, sampling_rate=16000)
    assert len(audio.load(path, start_s=1.0, sampling_rate=16000)) == 16000
    monkeypatch.setattr(audio, "LONGEST_H", 1 / 3600)
    with pytest.raises(AudioError, match="h by its header; at most"):
        audio.probe(path)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 192000])
@pytest.mark.parametrize("target", [16000, 24000])
def test_the_filter_for_odd_rates_is_that_of_torchaudio(
    rate: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual rates keep torchaudio's own numbers, bit by bit; the other way gives the same up to rounding."""
    import torchaudio.functional as F

    noise = torch.randn(rate // 3, generator=torch.Generator().manual_seed(rate)) / 4
    usual = audio.resample(noise, rate, target)
    assert torch.equal(usual, F.resample(noise, rate, target))
    monkeypatch.setattr(audio, "MOST_TAPS", 0)
    torch.testing.assert_close(audio.resample(noise, rate, target), usual, atol=5e-5, rtol=0)


@pytest.mark.parametrize("rate", [1009, 15_991, 44_101, 767_999])
def test_odd_rates_give_the_same_tone(tmp_path: Path, rate: int) -> None:
    hertz = 100.0
    path = write(tmp_path / "a.wav", tone(rate, hertz=hertz), rate, "FLOAT")
    waveform = audio.load(path, sampling_rate=16000)
    assert waveform.shape == (16000,)
    expected = torch.from_numpy(tone(16000, hertz=hertz)[:, 0]).float()
    assert (waveform - expected)[1000:-1000].abs().max() < 5e-3


def test_odd_rates_take_little_memory(tmp_path: Path) -> None:
    """15,991 Hz took 4.4 GB. The address space of the process is limited, so that a failure costs nothing."""
    (tmp_path / "a.wav").write_bytes(wav_bytes(15_991, 15_991))
    code = """
import resource, sys
from pathlib import Path
import torch, torchaudio.functional, soundfile
from daamctl.data import audio
torch.set_num_threads(1)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 500_000_000,) * 2)
print(len(audio.load(Path(sys.argv[1]), sampling_rate=16_000)))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.wav")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "16000", done.stderr[-500:]
