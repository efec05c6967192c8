"""Models that read log-mel filterbanks every 10 ms: w2v-BERT 2.0 joins two frames to one, Parakeet eight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from daamctl.encoders.presets import Preset
from daamctl.encoders.speech import HOP_SAMPLES, WINDOW_SAMPLES, SpeechEncoder, mel_frames, padded_to, trial_clip

JOINED = 2
MIN_SAMPLES = WINDOW_SAMPLES + (JOINED - 1) * HOP_SAMPLES


class FilterbankEncoder(SpeechEncoder):
    """Pools the layers of w2v-BERT 2.0; arguments as in `SpeechEncoder`.

    Clips shorter than one frame of the model (35 ms) are zero-padded to it. A mel frame without a partner is left out.
    """

    poolings: ClassVar[tuple[str, ...]] = ("valid-frames",)

    def set_up(self, model: Any, reader: Any) -> None:
        """Drop what follows the layers in fine-tuned models; see `Encoder`."""
        super().set_up(model, reader)
        model.intermediate_ffn = model.adapter = None
        self.discover([trial_clip(WINDOW_SAMPLES + 20 * HOP_SAMPLES)])

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make the usual feature extractor; see `Encoder`."""
        from transformers import SeamlessM4TFeatureExtractor

        return SeamlessM4TFeatureExtractor()

    def positions(self, size: int) -> int:
        """Number of frames of a clip; see `Encoder`."""
        return -(-mel_frames(max(size, MIN_SAMPLES)) // JOINED)

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`."""
        clips = [padded_to(self.normalized(clip), MIN_SAMPLES) for clip in items]
        found = self.reader(
            [clip.numpy() for clip in clips], sampling_rate=self.sampling_rate, return_tensors="pt"
        )  # (B, T, 160) and (B, T)
        mask = found["attention_mask"]
        return {"input_features": found["input_features"].to(self.model.dtype), "attention_mask": mask}, mask.bool()


class ParakeetEncoder(SpeechEncoder):
    """Pools the layers of Parakeet, a FastConformer; arguments as in `SpeechEncoder`.

    Convolutions that halve the frames three times make one frame of 80 ms. Clips shorter than two mel frames (20 ms),
    which its feature extractor cannot normalise, are zero-padded to them.
    """

    poolings: ClassVar[tuple[str, ...]] = ("valid-frames",)

    def set_up(self, model: Any, reader: Any) -> None:
        """Read the distance between frames; see `Encoder`."""
        super().set_up(model, reader)
        self.halvings: int = model.config.subsampling_factor.bit_length() - 1
        self.hop: int = reader.hop_length
        self.discover([trial_clip(20 * self.hop * model.config.subsampling_factor)])

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make the usual feature extractor; see `Encoder`."""
        from transformers import ParakeetFeatureExtractor

        return ParakeetFeatureExtractor(feature_size=config.num_mel_bins)

    def positions(self, size: int) -> int:
        """Number of frames of a clip; see `Encoder`."""
        return self._frames(max(size // self.hop, 2))

    def _frames(self, mels: int) -> int:
        for _ in range(self.halvings):
            mels = (mels - 1) // 2 + 1
        return mels

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`."""
        clips = [padded_to(self.normalized(clip), 2 * self.hop) for clip in items]
        found = self.reader(
            [clip.numpy() for clip in clips], sampling_rate=self.sampling_rate, return_tensors="pt"
        )  # (B, T, mels) and (B, T)
        inside = found["attention_mask"]
        n_frames = torch.tensor([self._frames(int(number)) for number in inside.sum(1)])
        mask = torch.arange(self._frames(inside.shape[1])) < n_frames[:, None]
        return {"input_features": found["input_features"].to(self.model.dtype), "attention_mask": inside}, mask
