"""Speech encoders that read raw waveforms through a convolutional front end: WavLM, HuBERT, wav2vec 2.0 and similar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from daamctl.encoders.cut import skip
from daamctl.encoders.speech import SpeechEncoder, trial_clip
from daamctl.errors import EncoderError


class WaveformEncoder(SpeechEncoder):
    """Pools the layers of a waveform encoder; arguments as in `SpeechEncoder`.

    Raises:
        EncoderError: the model has no convolutional front end, or its layers cannot be pooled (see `find_layers`).
    """

    by_reader = False

    def set_up(self, model: Any, reader: Any) -> None:
        """Read the convolutions of the front end; see `Encoder`."""
        super().set_up(model, reader)
        config = model.config
        if not hasattr(config, "conv_kernel"):
            raise EncoderError(f"{self.what} ({type(model).__name__}) has no waveform front end")
        # Group norm in the front end averages over time, padding included: such models get equal lengths and no mask.
        # Other convolutions leak padding into the clip, even with a mask: data2vec's stacked ones for positions, those
        # in the layers of a Conformer, and HuBERT's one for positions after a batch norm, which gives padding its bias.
        norm, kind = getattr(config, "feat_extract_norm", "layer"), config.model_type
        by_batch_norm = norm != "group" and getattr(config, "conv_pos_batch_norm", False)
        padding_leaks = norm == "group" or by_batch_norm or kind in ("data2vec-audio", "wav2vec2-conformer")
        self.masked = not padding_leaks and not self.all_frames
        self.equal_length_batches = padding_leaks and not self.all_frames
        self.was_padded = by_batch_norm and not self.all_frames
        if getattr(model, "adapter", None) is not None:  # follows the final norm, and is no layer
            skip(model.adapter)
        self.convolutions = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.discover([trial_clip(4 * self.min_samples)])

    def num_frames(self, num_samples: int) -> int:
        """Number of frames that the front end produces for `num_samples` samples (its convolutions do not pad)."""
        for kernel, stride in self.convolutions:
            num_samples = (num_samples - kernel) // stride + 1
        return num_samples

    @property
    def min_samples(self) -> int:
        """Shortest input that yields one frame: 400 samples for the usual front end."""
        return self.most_samples(0) + 1

    def positions(self, size: int) -> int:
        """Number of frames, padding of the published pooling included; see `Encoder`."""
        return self.num_frames(max(self.padded(size), self.min_samples))

    def most_samples(self, num_frames: int) -> int:
        """Longest input that yields this many frames."""
        samples = num_frames + 1
        for kernel, stride in reversed(self.convolutions):
            samples = (samples - 1) * stride + kernel
        return samples - 1

    def padded(self, size: int) -> int:
        """Samples after padding; see `Encoder`."""
        if self.all_frames:
            return round(self.pad_to_s * self.sampling_rate)
        multiple = self.options.pad_frames_to or 1
        if not self.masked or multiple == 1:
            return size
        num_frames = self.num_frames(max(size, self.min_samples))
        return self.most_samples(-(-num_frames // multiple) * multiple)

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`. Clips shorter than one frame are zero-padded to it."""
        clips = [self.normalized(clip) for clip in items]
        lengths = [max(len(clip), self.min_samples) for clip in clips]
        if self.all_frames:
            width = self.published_samples(max(lengths))
            lengths = [width] * len(clips)
        else:
            width = self.padded(max(lengths))
        batch = torch.zeros(len(clips), width)
        for row, clip in zip(batch, clips, strict=True):
            row[: len(clip)] = clip
        n_frames = torch.tensor([self.num_frames(length) for length in lengths])
        frames = torch.arange(self.num_frames(width))
        mask = frames < n_frames[:, None]  # (B, T)
        inputs = {"input_values": batch.to(self.model.dtype)}
        if self.masked and min(lengths) < width:
            samples = torch.arange(width) < torch.tensor(lengths)[:, None]
            inputs["attention_mask"] = samples.long()
        return inputs, mask
