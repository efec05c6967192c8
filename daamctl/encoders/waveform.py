"""Speech encoders that read raw waveforms through a convolutional front end: WavLM, HuBERT, wav2vec 2.0 and similar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.base import LayerPooler, PooledEncoder, PoolingOptions, normalized, padded_samples
from daamctl.errors import EncoderError


class WaveformEncoder(PooledEncoder):
    """Pools the layers of a waveform encoder.

    Args:
        model: the Hugging Face base model, in eval mode, on its device.
        device: resolved device.
        precision: resolved precision of the forward pass.
        sampling_rate: Hz the model was trained on.
        normalize: scale every clip to zero mean and unit variance first.
        options: pooling.
    """

    modality: Modality = "speech"

    def __init__(
        self,
        model: Any,
        *,
        device: str,
        precision: str,
        sampling_rate: int,
        normalize: bool,
        options: PoolingOptions,
    ) -> None:
        config = model.config
        encoder = getattr(model, "encoder", None)
        layers = getattr(encoder, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not hasattr(config, "conv_kernel"):
            raise EncoderError(f"{type(model).__name__} has no waveform front end with transformer layers behind it")
        self.model, self.device, self.precision = model, device, precision
        self.sampling_rate, self.normalize, self.options = sampling_rate, normalize, options
        self.embed_dim = int(config.hidden_size)
        self.layers = tuple(range(0 if options.layer_00 else 1, len(layers) + 1))
        # Only the pre-norm ("stable layer norm") variants end in a norm; in others that module is before layer 1.
        stable = bool(getattr(config, "do_stable_layer_norm", False))
        self.has_final_norm = stable
        norm = encoder.layer_norm if stable and options.final_norm and encoder is not None else None
        self.pooler = LayerPooler(list(layers), norm, layer_00=options.layer_00)
        # Group norm in the front end averages over time, padding included: such models get equal lengths and no mask.
        # data2vec's stacked position convolutions leak padding into the clip, even with a mask.
        padding_leaks = (
            getattr(config, "feat_extract_norm", "layer") == "group" or config.model_type == "data2vec-audio"
        )
        self.masked = not padding_leaks and not options.all_frames
        self.equal_length_batches = padding_leaks and not options.all_frames
        self.convolutions = list(zip(config.conv_kernel, config.conv_stride, strict=True))

    def num_frames(self, num_samples: int) -> int:
        """Number of frames that the front end produces for `num_samples` samples (its convolutions do not pad)."""
        for kernel, stride in self.convolutions:
            num_samples = (num_samples - kernel) // stride + 1
        return num_samples

    @property
    def min_samples(self) -> int:
        """Shortest input that yields one frame: 400 samples for the usual front end."""
        samples = 1
        for kernel, stride in reversed(self.convolutions):
            samples = (samples - 1) * stride + kernel
        return samples

    def positions(self, size: int) -> int:
        """Number of frames, padding of the published pooling included; see `PooledEncoder`."""
        return self.num_frames(max(self.padded(size), self.min_samples))

    def padded(self, size: int) -> int:
        """Samples after padding; see `Encoder`."""
        return round(self.options.pad_to_s * self.sampling_rate) if self.options.all_frames else size

    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`. Clips shorter than one frame are zero-padded to it."""
        clips = [normalized(clip) if self.normalize else clip for clip in items]
        lengths = [max(len(clip), self.min_samples) for clip in clips]
        width = max(lengths)
        if self.options.all_frames:
            width = padded_samples(width, self.options.pad_to_s, self.sampling_rate)
            lengths = [width] * len(clips)
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
