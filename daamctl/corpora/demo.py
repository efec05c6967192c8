"""A synthetic corpus in the layout of IEMOCAP, so that every command can be tried without a licence or a download.

A source-filter voice (G. Fant, "Acoustic Theory of Speech Production", 1960) in NumPy: glottal pulses with jitter and
vibrato, four formants per vowel, breath noise, one loudness arc per syllable. Emotion shifts pitch level and range,
loudness, speaking rate, spectral tilt and breathiness; utterances and speakers scatter around these, so the classes
overlap. It is not speech: accuracies on it show that a pipeline works, not how good it is.

The same seed gives the same samples: each turn has its own PCG64 stream, and rounding to 16 bits hides last-digit
differences between math libraries. Rates in Hz, pitch intervals in semitones, levels in dB, times in seconds.
"""

from __future__ import annotations

import logging
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daamctl.corpora import iemocap
from daamctl.corpora.base import Corpus, Durations, Fingerprint
from daamctl.corpora.fetch import is_whole, made_whole

log = logging.getLogger(__name__)

VERSION = 1
"""Raised whenever the generator gives other samples, so that older copies are generated again."""
SAMPLING_RATE = 16_000
SESSIONS = (1, 2, 3, 4, 5)
LETTERS = ("F", "M")
# One session's dialogues: who wears the markers, and what is played. Both speak in each.
DIALOGUES = ("F_impro01", "M_impro02", "F_script01_1", "M_script01_2")
# Turns of every speaker by annotation; not balanced, so that accuracy and balanced accuracy differ. `fru` and `xxx`
# belong to no default class.
PLAN = {"neu": 9, "hap": 3, "exc": 5, "ang": 8, "sad": 7, "fru": 2, "xxx": 2}
# Samples of one turn of each woman and each man: 5.01 s and 10.02 s. What is left after pieces of 5 s (160 and 320
# samples) is shorter than one frame of a speech encoder (400 samples).
ODD_LENGTHS = {"F": 80_160, "M": 160_320}
LONG_TURNS = 3
"""Further turns of each speaker that are longer than 5 s."""


@dataclass(frozen=True)
class EmotionStyle:
    """How an emotion sounds, relative to the speaker's habit.

    Args:
        pitch_st: shift of the pitch level, in semitones.
        range_st: spread of pitch within an utterance, in semitones.
        rate: syllables per second.
        tilt: pole of the low-pass on the voice source: higher is darker.
        breath: amplitude of breath noise relative to the voice source.
        mood: mean valence, activation and dominance, 1 to 5.
    """

    pitch_st: float
    range_st: float
    level_db: float
    rate: float
    tilt: float
    breath: float
    mood: tuple[float, float, float]


STYLES = {
    "neu": EmotionStyle(0.0, 1.7, 0.0, 4.4, 0.80, 0.06, (3.0, 2.5, 3.0)),
    "hap": EmotionStyle(2.6, 3.4, 1.5, 4.7, 0.74, 0.06, (4.0, 3.0, 3.0)),
    "exc": EmotionStyle(3.8, 4.0, 3.0, 5.1, 0.70, 0.05, (4.0, 4.0, 3.5)),
    "ang": EmotionStyle(1.8, 2.3, 4.5, 5.0, 0.58, 0.02, (1.5, 4.0, 4.0)),
    "sad": EmotionStyle(-1.2, 1.0, -3.5, 3.5, 0.88, 0.13, (2.0, 2.0, 2.0)),
    "fru": EmotionStyle(0.8, 1.9, 2.0, 4.5, 0.68, 0.04, (2.0, 3.0, 3.0)),
    "xxx": EmotionStyle(0.8, 2.2, 0.5, 4.5, 0.75, 0.06, (2.5, 3.0, 3.0)),
}
# Standard deviations of one utterance around its style; what makes the classes overlap.
PITCH_SD, RANGE_SD, LEVEL_SD, RATE_SD, TILT_SD = 1.3, 0.25, 2.0, 0.1, 0.05

# Formants of a, e, i, o, u and schwa for a man's vocal tract, and the formants' bandwidths, in Hz.
VOWELS = np.array(
    [
        [730.0, 1090.0, 2440.0, 3400.0],
        [530.0, 1840.0, 2480.0, 3500.0],
        [270.0, 2290.0, 3010.0, 3600.0],
        [570.0, 840.0, 2410.0, 3300.0],
        [300.0, 870.0, 2240.0, 3300.0],
        [500.0, 1500.0, 2500.0, 3500.0],
    ]
)
BANDWIDTHS = np.array([80.0, 100.0, 140.0, 200.0])


@dataclass(frozen=True)
class Speaker:
    """A voice and its habits.

    Args:
        pitch: usual pitch in Hz.
        tract: formant frequencies relative to `VOWELS`; a shorter vocal tract has higher ones.
        tilt: shift of the source's low-pass pole.
        rate: speaking rate relative to others.
        noise_db: level of the room and recorder.
    """

    pitch: float
    tract: float
    level_db: float
    tilt: float
    rate: float
    noise_db: float


@dataclass(frozen=True)
class Turn:
    """One turn of the plan; `stream` seeds its own random stream."""

    session: int
    dialogue: str
    letter: str
    name: str
    emotion: str
    num_samples: int
    stream: tuple[int, ...]


@dataclass(frozen=True)
class Utterance:
    """An utterance: int16 samples (N,), and at each of them the pitch in Hz, and the row of `VOWELS`.

    Args:
        tilt: pole of the low-pass on the voice source.
    """

    samples: np.ndarray
    pitch: np.ndarray
    vowels: np.ndarray
    tilt: float


def generate(root: Path, *, seed: int = 0) -> Path:
    """Generate Session1 to Session5 in `root`, atomically, unless they exist; other seeds give other recordings."""
    marker = f"daamctl demo corpus, version {VERSION}, seed {seed}\n"
    if is_whole(root, marker):
        return root
    log.info("generating the demo corpus in %s", root)
    with made_whole(root, marker) as new:
        for session in SESSIONS:
            _write_session(new / f"Session{session}", plan(session, seed), seed)
    return root


def plan(session: int, seed: int) -> list[Turn]:
    """Every turn of one session: the two speakers take turns within each dialogue."""
    lists = [list(_turns_of(session, letter, seed)) for letter in LETTERS]
    return [turn for pair in zip(*lists, strict=True) for turn in pair]


def _turns_of(session: int, letter: str, seed: int) -> Iterator[Turn]:
    stream = (seed, session, LETTERS.index(letter))
    rng = _rng(stream)
    emotions = rng.permutation([emotion for emotion, count in PLAN.items() for _ in range(count)])
    lengths = _lengths(rng, len(emotions), letter)
    per_dialogue = -(-len(emotions) // len(DIALOGUES))
    for index, (emotion, length) in enumerate(zip(emotions, lengths, strict=True)):
        dialogue = f"Ses{session:02d}{DIALOGUES[index // per_dialogue]}"
        name = f"{dialogue}_{letter}{index % per_dialogue:03d}"
        yield Turn(session, dialogue, letter, name, str(emotion), int(length), (*stream, index))


def _lengths(rng: np.random.Generator, count: int, letter: str) -> np.ndarray:
    """Turn lengths in samples: mostly 1 to 4 s, a few longer than a clip, one from `ODD_LENGTHS`."""
    seconds = np.clip(np.exp(rng.normal(np.log(2.1), 0.42, count)), 0.8, 4.9)
    places = rng.permutation(count)
    seconds[places[:LONG_TURNS]] = rng.uniform(5.2, 9.0, LONG_TURNS)
    samples = np.rint(seconds * SAMPLING_RATE)
    samples[places[LONG_TURNS]] = ODD_LENGTHS[letter]
    return np.asarray(samples, dtype=np.int64)


def speaker_of(session: int, letter: str, seed: int) -> Speaker:
    """The voice of one of the ten speakers."""
    rng = _rng((seed, session, LETTERS.index(letter), 1_000_000))
    pitch, tract = (205.0, 1.16) if letter == "F" else (118.0, 1.0)
    return Speaker(
        pitch=pitch * 2.0 ** (rng.normal(0.0, 1.5) / 12.0),
        tract=tract * (1.0 + rng.normal(0.0, 0.03)),
        level_db=rng.normal(0.0, 1.2),
        tilt=rng.normal(0.0, 0.02),
        rate=1.0 + rng.normal(0.0, 0.06),
        noise_db=rng.uniform(-66.0, -56.0),
    )


def speak(speaker: Speaker, style: EmotionStyle, num_samples: int, rng: np.random.Generator) -> Utterance:
    """One utterance, and how it sounds at every sample."""
    rate = style.rate * speaker.rate * np.exp(rng.normal(0.0, RATE_SD))
    edges = _syllables(rng, num_samples, rate)
    pitch = _pitch(rng, edges, num_samples, speaker, style)
    tilt = float(np.clip(style.tilt + speaker.tilt + rng.normal(0.0, TILT_SD), 0.3, 0.95))
    source = _source(rng, pitch, style, tilt)
    vowels = rng.integers(0, len(VOWELS), len(edges) - 1)
    voice = _formants(source, edges, VOWELS[vowels] * speaker.tract)
    voice *= _loudness(rng, edges, num_samples)
    level_db = -27.0 + speaker.level_db + style.level_db + rng.normal(0.0, LEVEL_SD)
    voice *= 10.0 ** (level_db / 20.0) / np.sqrt(np.mean(voice**2) + 1e-12)
    voice += _consonants(rng, edges, num_samples) * 10.0 ** ((level_db - 12.0) / 20.0)
    voice += rng.normal(0.0, 10.0 ** (speaker.noise_db / 20.0), num_samples)
    samples = np.asarray(np.rint(np.clip(voice, -0.98, 0.98) * 32767.0).astype("<i2"))
    return Utterance(samples, pitch, np.repeat(vowels, np.diff(edges)), tilt)


def _rng(stream: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(stream)))


def _syllables(rng: np.random.Generator, num_samples: int, rate: float) -> np.ndarray:
    """Sample numbers at which syllables begin, and the end; shape (syllables + 1,)."""
    count = max(1, round(num_samples / SAMPLING_RATE * rate))
    widths = np.exp(rng.normal(0.0, 0.25, count))
    ends = np.cumsum(widths) / np.sum(widths) * num_samples
    return np.asarray(np.concatenate([[0.0], np.rint(ends)]), dtype=np.int64)


def _pitch(
    rng: np.random.Generator, edges: np.ndarray, num_samples: int, speaker: Speaker, style: EmotionStyle
) -> np.ndarray:
    """Pitch in Hz per sample: falling over the utterance, an accent per syllable, vibrato and jitter."""
    from scipy.signal import lfilter

    spread = style.range_st * np.exp(rng.normal(0.0, RANGE_SD))
    level = style.pitch_st + rng.normal(0.0, PITCH_SD)
    time = np.arange(num_samples) / SAMPLING_RATE
    middles = (edges[1:] + edges[:-1]) / 2.0 / SAMPLING_RATE
    accents = np.interp(time, middles, rng.normal(0.0, spread, len(middles)))
    falling = spread * (0.5 - np.arange(num_samples) / num_samples)
    vibrato = 0.25 * np.sin(2.0 * np.pi * (rng.uniform(4.5, 6.0) * time + rng.uniform()))
    jitter = lfilter([0.05], [1.0, -0.95], rng.normal(0.0, 0.8, num_samples))
    return np.asarray(speaker.pitch * 2.0 ** ((level + accents + falling + vibrato + jitter) / 12.0))


def _source(rng: np.random.Generator, pitch: np.ndarray, style: EmotionStyle, tilt: float) -> np.ndarray:
    """Derivative of a Rosenberg glottal pulse, breath noise while the glottis is open, and a one-pole low-pass."""
    from scipy.signal import lfilter

    phase = np.mod(rng.uniform() + np.cumsum(pitch) / SAMPLING_RATE, 1.0)
    rising, falling = 0.40, 0.16  # shares of a period
    closing = np.clip((phase - rising) / falling, 0.0, 1.0)
    flow = np.where(phase < rising, 0.5 - 0.5 * np.cos(np.pi * phase / rising), np.cos(0.5 * np.pi * closing))
    breath = style.breath * flow * rng.normal(0.0, 1.0, len(pitch))
    return np.asarray(lfilter([1.0 - tilt], [1.0, -tilt], np.diff(flow, prepend=flow[0]) + breath))


def _formants(source: np.ndarray, edges: np.ndarray, formants: np.ndarray) -> np.ndarray:
    """Resonances of the vocal tract, one vowel per syllable; filter states run on across syllables."""
    from scipy.signal import sosfilt

    radius = np.exp(-np.pi * BANDWIDTHS / SAMPLING_RATE)
    state = np.zeros((len(BANDWIDTHS), 2))
    voice = np.empty_like(source)
    for start, end, frequencies in zip(edges[:-1], edges[1:], formants, strict=True):
        turn = -2.0 * radius * np.cos(2.0 * np.pi * np.minimum(frequencies, 7000.0) / SAMPLING_RATE)
        zero, one = np.zeros_like(radius), np.ones_like(radius)
        sections = np.stack([1.0 + turn + radius**2, zero, zero, one, turn, radius**2], axis=1)
        voice[start:end], state = sosfilt(sections, source[start:end], zi=state)
    return voice


def _loudness(rng: np.random.Generator, edges: np.ndarray, num_samples: int) -> np.ndarray:
    """Amplitude per sample: an arc per syllable, some stressed, some nearly silent (pauses)."""
    count = len(edges) - 1
    peaks = np.exp(rng.normal(0.0, 0.25, count)) * np.where(rng.uniform(size=count) < 0.07, 0.02, 1.0)
    peaks[0] = max(peaks[0], 0.5)  # an utterance of one syllable must not be a pause
    index = np.repeat(np.arange(count), np.diff(edges))
    within = (np.arange(num_samples) - edges[index]) / np.maximum(np.diff(edges), 1)[index]
    return np.asarray(peaks[index] * (0.08 + 0.92 * np.sin(np.pi * within) ** 0.8))


def _consonants(rng: np.random.Generator, edges: np.ndarray, num_samples: int) -> np.ndarray:
    """Short noise bursts at the beginning of about half of the syllables, of unit level."""
    bursts = np.zeros(num_samples)
    for start in edges[:-1]:
        length = int(rng.integers(400, 1200))
        present, strength = rng.uniform() < 0.5, rng.uniform(0.3, 1.0)
        noise = np.diff(rng.normal(0.0, 0.7, length + 1)) * np.hanning(length)
        end = min(start + length, num_samples)
        if present:
            bursts[start:end] += strength * noise[: end - start]
    return bursts


def _write_session(folder: Path, turns: list[Turn], seed: int) -> None:
    speakers = {letter: speaker_of(turns[0].session, letter, seed) for letter in LETTERS}
    labels: dict[str, list[str]] = {}
    clock: dict[str, float] = {}
    for turn in turns:
        # the second number keeps this stream apart from those of the plan and the voices
        rng = _rng((*turn.stream, 1))
        spoken = speak(speakers[turn.letter], STYLES[turn.emotion], turn.num_samples, rng)
        wav = folder / "sentences" / "wav" / turn.dialogue / f"{turn.name}.wav"
        wav.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(wav), "wb") as file:
            file.setparams((1, 2, SAMPLING_RATE, turn.num_samples, "NONE", "not compressed"))
            file.writeframes(spoken.samples.tobytes())
        start = clock.get(turn.dialogue, 6.29) + rng.uniform(0.1, 1.2)
        clock[turn.dialogue] = start + turn.num_samples / SAMPLING_RATE
        labels.setdefault(turn.dialogue, []).append(_label_lines(turn, start, clock[turn.dialogue], rng))
    for dialogue, lines in labels.items():
        path = folder / "dialog" / "EmoEvaluation" / f"{dialogue}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "% [START_TIME - END_TIME] TURN_NAME EMOTION [V, A, D]\n\n"
        path.write_text(head + "\n".join(lines), encoding="utf-8", newline="\n")


_WORDS = {
    "neu": "Neutral state",
    "hap": "Happiness",
    "exc": "Excited",
    "ang": "Anger",
    "sad": "Sadness",
    "fru": "Frustration",
    "xxx": "Other",
}


def _label_lines(turn: Turn, start: float, end: float, rng: np.random.Generator) -> str:
    """A turn's label line and the opinions of single raters below it, as in the release."""
    scores = np.clip(np.rint(np.array(STYLES[turn.emotion].mood) + rng.normal(0.0, 0.6, (2, 3))), 1, 5)
    v, a, d = scores.mean(axis=0)
    lines = [f"[{start:.4f} - {end:.4f}]\t{turn.name}\t{turn.emotion}\t[{v:.4f}, {a:.4f}, {d:.4f}]"]
    lines += [f"C-E{rater}:\t{_WORDS[turn.emotion]};\t()" for rater in (2, 3, 4)]
    lines += [
        f"A-E{rater}:\tval {int(s[0])}; act {int(s[1])}; dom  {int(s[2])};\t()"
        for rater, s in zip((3, 4), scores, strict=True)
    ]
    return "\n".join(lines) + "\n"


def _fingerprint() -> Fingerprint:
    per_class: dict[str, int] = {}
    for emotion, count in PLAN.items():
        label = iemocap.LABELS[emotion]
        per_class[label] = per_class.get(label, 0) + count * len(SESSIONS) * len(LETTERS)
    chosen = sum(count for emotion, count in PLAN.items() if iemocap.LABELS[emotion] in iemocap.CLASSES)
    return Fingerprint(
        per_class=per_class,
        per_speaker={f"Ses{session:02d}{letter}": chosen for session in SESSIONS for letter in LETTERS},
        per_group={f"Session{session}": chosen * len(LETTERS) for session in SESSIONS},
    )


CORPUS = Corpus(
    name="demo",
    title="synthetic voices in IEMOCAP's layout: 320 utterances, 10 speakers, four classes; made on this machine",
    licence="none needed: it is computed, and no recording of anyone",
    classes=iemocap.CLASSES,
    prepare=lambda root: iemocap.prepare(root).drop("sentence"),  # the voices have no words
    fingerprint=_fingerprint(),
    how_to_get="daamctl download demo makes it",
    obtain=generate,
    aliases=iemocap.ALIASES,
    durations=Durations(mean_s=2.84, log_std=0.55),
)
