"""The Audio Spectrogram Transformer, which reads a log-mel spectrogram of fixed length as an image of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from daamctl.encoders.presets import Preset
from daamctl.encoders.speech import HOP_SAMPLES, WINDOW_SAMPLES, SpeechEncoder, mel_frames, padded_to, trial_clip


class SpectrogramEncoder(SpeechEncoder):
    """Pools the layers of an Audio Spectrogram Transformer; arguments as in `SpeechEncoder`.

    The model has learned positions for 10.24 s and no attention mask. Shorter clips are padded as in its training. The
    mean is over the patches that lie within the clip, at least the first of each band; `all_frames` takes those of
    `pad_to_s` seconds. Neither takes the class and distillation tokens.
    """

    def set_up(self, model: Any, reader: Any) -> None:
        """Read the grid of patches; see `Encoder`."""
        super().set_up(model, reader)
        self.normalize = self.options.normalize == "always"  # its own normalisation is of the spectrogram
        config = model.config
        self.patch, self.stride, self.mel_frames = config.patch_size, config.time_stride, int(config.max_length)
        self.bands: int = (config.num_mel_bins - self.patch) // config.frequency_stride + 1
        self.columns: int = (self.mel_frames - self.patch) // self.stride + 1
        self.discover([trial_clip(self.padded(0) // 2)])

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make the feature extractor for a model's size; see `Encoder`."""
        from transformers import ASTFeatureExtractor

        return ASTFeatureExtractor(num_mel_bins=config.num_mel_bins, max_length=config.max_length)

    def positions(self, size: int) -> int:
        """Number of patches, and two tokens; see `Encoder`."""
        return 2 + self.bands * self.columns

    def padded(self, size: int) -> int:
        """Samples after padding; see `Encoder`."""
        return WINDOW_SAMPLES + (self.mel_frames - 1) * HOP_SAMPLES

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`.

        Raises:
            EncoderError: a clip is longer than the model's positional range.
        """
        clips = [self.normalized(clip) for clip in items]
        longest = max(len(clip) for clip in clips)
        self.refuse_longer(longest, self.mel_frames * HOP_SAMPLES)
        samples = [self.published_samples(longest) if self.all_frames else len(clip) for clip in clips]
        waves = [padded_to(clip, WINDOW_SAMPLES).numpy() for clip in clips]
        found = self.reader(waves, sampling_rate=self.sampling_rate, return_tensors="pt")
        frames = torch.tensor([mel_frames(max(number, WINDOW_SAMPLES)) for number in samples])
        columns = (1 + (frames - self.patch) // self.stride).clamp(1, self.columns)
        inside = torch.arange(self.columns) < columns[:, None]  # (B, columns); patches are in order of bands
        tokens = torch.zeros(len(clips), 2, dtype=torch.bool)
        mask = torch.cat([tokens, inside.repeat(1, self.bands)], dim=1)
        return {"input_values": found["input_values"].to(self.model.dtype)}, mask
