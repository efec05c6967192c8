"""Whisper's encoder: the log-mel input always spans 30 s, and only the clip's own frames are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.base import LayerPooler, PooledEncoder, PoolingOptions, normalized, padded_samples
from daamctl.errors import EncoderError

HOP_SAMPLES = 160  # one mel frame; the front end halves the rate again
SAMPLES_PER_FRAME = 2 * HOP_SAMPLES
ENCODER_NAMES = {r"^(model\.)?encoder\.": ""}
"""Prefix of the encoder's weights in checkpoints of a whole model or a classifier -> prefix in the encoder alone."""


def load_encoder(source: str, **options: Any) -> Any:
    """Load the encoder of a Whisper checkpoint. The decoder is not built and may be missing from the checkpoint.

    Args:
        source: folder or Hugging Face id.
        options: options of `from_pretrained`.
    """
    from transformers.models.whisper.modeling_whisper import WhisperEncoder as HFEncoder

    return HFEncoder.from_pretrained(source, key_mapping=ENCODER_NAMES, **options)


class WhisperEncoder(PooledEncoder):
    """Pools the encoder layers of a Whisper model.

    The model has learned positions for 30 s and no attention mask. Shorter input is padded with silence, as in its
    training, and the frames of the padding are excluded from the mean.

    Args:
        model: the Hugging Face base model or its encoder alone, in eval mode, on its device.
        device: resolved device.
        precision: resolved precision of the forward pass.
        sampling_rate: Hz the model was trained on.
        normalize: scale every clip to zero mean and unit variance first.
        options: pooling; `all_frames` averages over the frames of `pad_to_s` seconds.
    """

    modality: Modality = "speech"
    equal_length_batches = False
    has_final_norm = True

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
        from transformers import WhisperFeatureExtractor

        config = model.config
        self.model = model.get_encoder()
        self.device, self.precision = device, precision
        self.sampling_rate, self.normalize, self.options = sampling_rate, normalize, options
        self.embed_dim = int(config.d_model)
        self.max_frames = int(config.max_source_positions)
        seconds = self.max_frames * SAMPLES_PER_FRAME // sampling_rate
        self.features = WhisperFeatureExtractor(
            feature_size=config.num_mel_bins, chunk_length=seconds, sampling_rate=sampling_rate, hop_length=HOP_SAMPLES
        )
        layers = list(self.model.layers)
        self.layers = tuple(range(0 if options.layer_00 else 1, len(layers) + 1))
        norm = self.model.layer_norm if options.final_norm else None
        self.pooler = LayerPooler(layers, norm, layer_00=options.layer_00)

    def positions(self, size: int) -> int:
        """Number of frames of the padded input; see `PooledEncoder`."""
        return self.max_frames

    def padded(self, size: int) -> int:
        """Samples after padding; see `Encoder`."""
        return self.max_frames * SAMPLES_PER_FRAME

    def gather(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`.

        Raises:
            EncoderError: a clip is longer than the model's positional range.
        """
        clips = [normalized(clip) if self.normalize else clip for clip in items]
        limit = self.max_frames * SAMPLES_PER_FRAME
        longest = max(len(clip) for clip in clips)
        if longest > limit:
            raise EncoderError(
                f"a clip of {longest / self.sampling_rate:.1f} s is longer than the {limit / self.sampling_rate:.0f} s "
                "this Whisper can take",
                fix="lower segment.max_duration_s",
            )
        mels = self.features(
            [clip.numpy() for clip in clips], sampling_rate=self.sampling_rate, return_tensors="pt"
        ).input_features  # (B, mels, 2 T)
        samples = [len(clip) for clip in clips]
        if self.options.all_frames:
            samples = [padded_samples(longest, self.options.pad_to_s, self.sampling_rate)] * len(clips)
        n_frames = torch.tensor([min(max(1, -(-n // SAMPLES_PER_FRAME)), self.max_frames) for n in samples])
        mask = torch.arange(self.max_frames) < n_frames[:, None]  # (B, T)
        return {"input_features": mels.to(self.model.dtype)}, mask
