"""Whisper's encoder, and those of audio language models that have its form.

The log-mel input always spans 30 s, and only the clip's own frames are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from daamctl.encoders.base import Encoder
from daamctl.encoders.speech import SpeechEncoder, trial_clip
from daamctl.errors import EncoderError

HOP_SAMPLES = 160  # one mel frame; the front end halves the rate again
SAMPLES_PER_FRAME = 2 * HOP_SAMPLES
TRIAL_FRAMES = 10
ENCODER_NAMES = {r"^(model\.)?encoder\.": ""}
"""Prefix of the encoder's weights in checkpoints of a whole model or a classifier -> prefix in the encoder alone."""


class WhisperEncoder(SpeechEncoder):
    """Pools the encoder layers of a Whisper model; arguments as in `SpeechEncoder`.

    The model has learned positions for 30 s and no attention mask. Shorter input is padded with silence, as in its
    training, and the frames of the padding are excluded from the mean. `all_frames` averages over the frames of
    `pad_to_s` seconds. With `extract.window_s` the input spans as many seconds, and the other positions are left out.
    """

    has_window: ClassVar[bool] = True
    by_reader = False  # it makes its own feature extractor

    def set_up(self, model: Any, reader: Any) -> None:
        """Keep the encoder alone, and make features for its rate; see `Encoder`."""
        from transformers import WhisperFeatureExtractor

        super().set_up(model, reader)
        self.model = model.get_encoder()
        config = self.model.config
        if self.options.window_s is not None:
            frames = self.options.window_s * self.sampling_rate // SAMPLES_PER_FRAME
            if frames > config.max_source_positions:
                seconds = config.max_source_positions * SAMPLES_PER_FRAME / self.sampling_rate
                raise EncoderError(
                    f"{self.what} reads {seconds:g} s, extract.window_s is {self.options.window_s}",
                    fix=f"set extract.window_s to at most {seconds:g}",
                )
            positions = self.model.embed_positions.weight[:frames].clone()
            self.model.embed_positions = nn.Embedding.from_pretrained(positions)
            self.model.max_source_positions = config.max_source_positions = frames
        self.max_frames = int(config.max_source_positions)
        seconds = self.max_frames * SAMPLES_PER_FRAME // self.sampling_rate
        self.features = WhisperFeatureExtractor(
            feature_size=config.num_mel_bins,
            chunk_length=seconds,
            sampling_rate=self.sampling_rate,
            hop_length=HOP_SAMPLES,
        )
        self.discover([trial_clip(TRIAL_FRAMES * SAMPLES_PER_FRAME)])

    @staticmethod
    def load_model(source: str, **options: Any) -> Any:
        """Load the encoder alone; the decoder is not built and may be missing from the checkpoint. See `Encoder`."""
        from transformers.models.whisper.modeling_whisper import WhisperEncoder as HFEncoder

        return HFEncoder.from_pretrained(source, key_mapping=ENCODER_NAMES, **options)

    def positions(self, size: int) -> int:
        """Number of frames of the padded input; see `Encoder`."""
        return self.max_frames

    def padded(self, size: int) -> int:
        """Samples after padding; see `Encoder`."""
        return self.max_frames * SAMPLES_PER_FRAME

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,); see `Encoder`.

        Raises:
            EncoderError: a clip is longer than the model's positional range.
        """
        clips = [self.normalized(clip) for clip in items]
        longest = max(len(clip) for clip in clips)
        self.refuse_longer(longest, self.max_frames * SAMPLES_PER_FRAME)
        mels = self.features(
            [clip.numpy() for clip in clips], sampling_rate=self.sampling_rate, return_tensors="pt"
        ).input_features  # (B, mels, 2 T)
        samples = [len(clip) for clip in clips]
        if self.all_frames:
            samples = [self.published_samples(longest)] * len(clips)
        n_frames = torch.tensor([min(max(1, -(-n // SAMPLES_PER_FRAME)), self.max_frames) for n in samples])
        mask = torch.arange(self.max_frames) < n_frames[:, None]  # (B, T)
        return {"input_features": mels.to(self.model.dtype)}, mask


class AudioTowerEncoder(WhisperEncoder):
    """Pools the audio encoder of Voxtral, Qwen2-Audio or Audio Flamingo 3; arguments as in `SpeechEncoder`.

    In the last two, as in the whole models, the frames of a clip do not attend to the padding. The mean over pairs of
    frames between their last layer and the final norm is left out: the norm here follows the last layer.
    """

    def set_up(self, model: Any, reader: Any) -> None:
        """Leave out the mean over pairs of frames; see `Encoder`."""
        model.avg_pooler = nn.Identity()
        self.has_mask = model.config.model_type != "voxtral_encoder"
        super().set_up(model, reader)

    @staticmethod
    def load_model(source: str, **options: Any) -> Any:
        """Load the audio encoder by its configuration; see `Encoder`."""
        return Encoder.load_model(source, **options)

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,), with the mask that the model takes; see `WhisperEncoder`."""
        inputs, mask = super().collate_cpu(items)
        if self.model.config.model_type == "audioflamingo3_encoder":
            inputs["input_features_mask"] = mask.repeat_interleave(2, dim=1)  # of mel frames
        elif self.model.config.model_type == "qwen2_audio_encoder":
            from transformers.masking_utils import create_bidirectional_mask

            shape = torch.empty(*mask.shape, 1, dtype=self.model.dtype)
            attended = create_bidirectional_mask(self.model.config, inputs_embeds=shape, attention_mask=mask)
            if isinstance(attended, Tensor):  # None: nothing is padded
                inputs["attention_mask"] = attended
        return inputs, mask
