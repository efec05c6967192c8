"""What all speech encoders share: the sampling rate, the normalisation of clips, and the published padding."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.base import Encoder
from daamctl.encoders.presets import Preset
from daamctl.errors import EncoderError
from daamctl.store.files import content_key

WINDOW_SAMPLES, HOP_SAMPLES = 400, 160
"""Samples of a frame of Kaldi's mel filterbanks and between two, which their feature extractors fix (16 kHz)."""
NO_SETTINGS = {"feature_extractor_type", "processor_class", "transformers_version", "auto_map"}
"""Entries of the file of a feature extractor that change no feature."""
NORMALIZE_EPS = 1e-7  # as in the feature extractors of the waveform models


class SpeechEncoder(Encoder):
    """An encoder that reads waveforms (T,).

    Attributes:
        sampling_rate: Hz that the model was trained on.
        normalize: whether every clip is scaled to zero mean and unit variance first.
        all_frames: average over every frame of input zero-padded to `pad_to_s`, without attention mask (published).
    """

    modality: ClassVar[Modality] = "speech"
    poolings: ClassVar[tuple[str, ...]] = ("valid-frames", "all-frames")
    has_window: ClassVar[bool] = False
    """Whether its input always spans the same time, however long a clip is, which `extract.window_s` shortens."""
    by_reader: ClassVar[bool] = True
    """Whether its input is what the feature extractor makes of a clip, by all settings of that."""

    def set_up(self, model: Any, reader: Any) -> None:
        """Read rate and normalisation; see `Encoder`."""
        if self.options.window_s is not None and not self.has_window:
            raise EncoderError(
                f"{self.what} has no fixed input, so extract.window_s has no effect", fix="set extract.window_s to null"
            )
        self.sampling_rate = int(reader.sampling_rate)
        own = bool(getattr(reader, "do_normalize", False))
        self.normalize = own if self.options.normalize == "encoder" else self.options.normalize == "always"
        self.all_frames = self.options.pooling == "all-frames"

    @staticmethod
    def load_reader(source: str, **options: Any) -> Any:
        """Load the feature extractor; see `Encoder`."""
        from transformers import AutoFeatureExtractor

        return AutoFeatureExtractor.from_pretrained(source, **options)

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make a feature extractor for 16 kHz; see `Encoder`."""
        from transformers import Wav2Vec2FeatureExtractor

        return Wav2Vec2FeatureExtractor(do_normalize=preset.normalize, sampling_rate=16000)

    def facts(self) -> dict[str, Any]:
        """Pooling, normalisation, sampling rate and a hash of the feature extractor; see `Encoder`."""
        facts: dict[str, Any] = {
            "pooling": self.options.pooling,
            "normalize": self.normalize,
            "sampling_rate": self.sampling_rate,
        }
        if self.options.window_s is not None:
            facts["window_s"] = self.options.window_s
        if self.by_reader:
            settings = json.loads(self.reader.to_json_string())
            facts["features"] = content_key({name: settings[name] for name in settings.keys() - NO_SETTINGS})
        return facts

    def normalized(self, clip: Tensor) -> Tensor:
        """Normalise a clip (T,) to zero mean and unit variance over its own samples, if the encoder wants it."""
        if not self.normalize:
            return clip
        return (clip - clip.mean()) / (clip.var(correction=0) + NORMALIZE_EPS).sqrt()

    def refuse_longer(self, longest: int, limit: int) -> None:
        """Refuse a clip whose samples are more than the model has positions for.

        Raises:
            EncoderError: it is longer.
        """
        if longest > limit:
            seconds, most = (number / self.sampling_rate for number in (longest, limit))
            raise EncoderError(
                f"a clip of {seconds:g} s is longer than the {most:g} s that {self.what} can take",
                fix=f"lower segment.max_duration_s{', or raise extract.window_s' if self.options.window_s else ''}",
            )

    def published_samples(self, longest: int) -> int:
        """Number of samples that the published pooling (`all_frames`) pads every clip to.

        Raises:
            EncoderError: a clip is longer, so its vector would depend on the other clips of its batch.
        """
        samples = round(self.pad_to_s * self.sampling_rate)
        if longest > samples:
            raise EncoderError(
                f"pooling over all frames pads to {self.pad_to_s:g} s, but a clip has "
                f"{longest / self.sampling_rate:g} s",
                fix="use extract.pooling=valid-frames, or a segment.tail other than merge",
            )
        return samples


def mel_frames(samples: int) -> int:
    """Number of filterbank frames that lie whole within a clip of at least one window."""
    return 1 + (samples - WINDOW_SAMPLES) // HOP_SAMPLES


def padded_to(clip: Tensor, samples: int) -> Tensor:
    """A clip (T,), with zeros at its end if it is shorter than `samples`."""
    return torch.nn.functional.pad(clip, (0, max(0, samples - len(clip))))


def trial_clip(samples: int) -> Tensor:
    """Noise (samples,) for a trial run; the same at every call."""
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(0))
