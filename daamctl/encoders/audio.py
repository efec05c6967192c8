"""Speech encoders of any other form: whatever a model's own feature extractor makes of clips of one length.

There is no list of model families. Only clips of equal length share a batch, so that none is padded to the length of
another.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from daamctl.encoders.discovery import ModelLayers, layer_input
from daamctl.encoders.speech import SpeechEncoder, padded_to, trial_clip
from daamctl.errors import EncoderError

SHORTEST_S, LONGEST_S = 0.1, 1.0
"""Bounds of the length to which shorter clips are zero-padded: the shortest, doubled until it gives a frame."""
SPEECHT5_ENCODER = r"^(speecht5\.)?encoder\."
"""What names of its weights have in front."""
OUTLINES = threading.Lock()
"""Held while a model runs on shapes; several threads collate."""


class AudioEncoder(SpeechEncoder):
    """Pools the layers of a model that reads waveforms or features; arguments as in `SpeechEncoder`.

    Where the feature extractor pads clips, e.g. to 30 s, the frames of the padding are excluded from the mean.

    Raises:
        EncoderError: the feature extractor does not give what the model reads, or its layers cannot be pooled.
    """

    poolings: ClassVar[tuple[str, ...]] = ("valid-frames",)
    any_positions = True
    equal_length_batches = True

    def set_up(self, model: Any, reader: Any) -> None:
        """Find the inputs that the model takes; see `Encoder`."""
        super().set_up(model, reader)
        self.normalize = self.options.normalize == "always"  # else the feature extractor normalises as it is set to
        if self.options.normalize == "never":
            reader.do_normalize = False
        self.taken = set(inspect.signature(model.forward).parameters)
        self.input_name = getattr(model, "main_input_name", "")
        if not self.input_name:  # as of EnCodec
            raise EncoderError(f"{self.what} is no transformer: it does not say what it reads")
        named = inspect.signature(reader.__call__).parameters
        options = {"sampling_rate": self.sampling_rate, "return_attention_mask": True, "return_tensors": "pt"}
        self.asked = {name: value for name, value in options.items() if name in named}
        self.shortest = round(SHORTEST_S * self.sampling_rate)
        # Whisper's cuts off what is longer, CLAP's reads a random part of it
        self.longest: int = getattr(reader, "n_samples", getattr(reader, "nb_max_samples", sys.maxsize))
        self.outline: Any = None  # the model without numbers; known after the trial
        self.num_positions: int | None = None  # of the last layer, if every layer is averaged over all that it has
        self.known_frames: dict[int, tuple[int, int]] = {}
        clip = trial_clip(self.sampling_rate)
        pair = [clip, clip.flip(0)]
        together, alone, again = (self._read(pair, one_by_one=each)[0] for each in (False, True, True))
        if not _same(alone, again):
            raise EncoderError(
                f"the feature extractor of {self.what} reads the same clip in another way each time",
                fix="switch off what is random in its preprocessor_config.json, e.g. set dither to 0",
            )
        self.one_by_one = not _same(together, alone)  # CLAP's treats a random clip of a batch as a long one
        self.discover([clip])

    def set_token_mask(self, found: ModelLayers) -> None:
        """Find the first layer, whose input tells the number of frames, and the shortest clip; see `Encoder`.

        Raises:
            EncoderError: frames and padding cannot be told apart.
        """
        if not found.layers:
            _, share = self._read([trial_clip(self.sampling_rate)])
            if share < 1:
                raise EncoderError(f"which frames of {self.what} are padding cannot be told: its layers are not found")
            self.num_positions = int(found.normed.shape[1])
            return
        place = next(name for name, module in self.model.named_modules() if module is found.layers[0])
        with torch.device("meta"):  # only shapes, and apart from the model, which may be at work
            self.outline = type(self.model)(self.model.config).eval()
        self.outline.get_submodule(place).register_forward_pre_hook(_stop, with_kwargs=True)
        while True:
            try:
                self.frames_of(self.shortest)
                return
            except EncoderError:
                if self.shortest >= LONGEST_S * self.sampling_rate:
                    raise
                self.shortest *= 2

    def positions(self, size: int) -> int:
        """Number of frames of a clip, or of positions of the last layer; see `Encoder`."""
        return self.num_positions or self.frames_of(max(size, self.shortest))[1]

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch waveforms (T,) of one length; see `Encoder`.

        Raises:
            EncoderError: they are longer than what the feature extractor reads.
        """
        clips = [padded_to(self.normalized(clip), self.shortest) for clip in items]
        self.refuse_longer(len(clips[0]), self.longest)
        inputs, _ = self._read(clips, one_by_one=self.one_by_one)
        before_trial = self.outline is None and self.num_positions is None
        valid, every = (0, 0) if before_trial else self.frames_of(len(clips[0]))
        return inputs, (torch.arange(every) < valid).repeat(len(clips), 1)

    def _read(self, clips: Sequence[Tensor], *, one_by_one: bool = False) -> tuple[dict[str, Tensor], float]:
        """The model's inputs for clips of one length, and which share of them is not padding."""
        if one_by_one and len(clips) > 1:
            each = [self._read([clip]) for clip in clips]
            return {name: torch.cat([inputs[name] for inputs, _ in each]) for name in each[0][0]}, each[0][1]
        try:
            found = self.reader([clip.numpy() for clip in clips], **self.asked)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise EncoderError(f"the feature extractor of {self.what} does not read waveforms: {reason}") from error
        if self.input_name not in found:
            raise EncoderError(f"{self.what} reads {self.input_name}, its feature extractor gives {', '.join(found)}")
        mask = next((value for name, value in found.items() if name.endswith("mask")), None)
        share = 1.0 if mask is None else float(mask[0].double().mean())
        left_out = mask if share == 1 else None
        inputs = {name: value for name, value in found.items() if name in self.taken and value is not left_out}
        values = inputs[self.input_name].to(self.model.dtype)
        return {**inputs, self.input_name: values}, share

    def frames_of(self, samples: int) -> tuple[int, int]:
        """Numbers of frames of a clip, without and with padding, by the shapes of what reaches the first layer."""
        if self.num_positions is not None:
            return 1, 1
        if samples not in self.known_frames:
            inputs, share = self._read([trial_clip(samples)])
            try:
                with OUTLINES:
                    self.outline(**{name: value.to("meta") for name, value in inputs.items()})
            except _FirstLayerReached as reached:
                frames: int = reached.args[0][1]
                self.known_frames[samples] = max(1, math.ceil(share * frames - 1e-6)), frames
            except (RuntimeError, NotImplementedError, ValueError) as error:
                raise EncoderError(f"{self.what} does not tell its number of frames: {error}") from error
        return self.known_frames[samples]


class SpeechT5Encoder(AudioEncoder):
    """The encoder of SpeechT5 with what it reads speech by; a checkpoint for text to speech lacks that."""

    @staticmethod
    def load_model(source: str, **options: Any) -> Any:
        """Load the encoder alone; see `Encoder`."""
        from transformers.models.speecht5.modeling_speecht5 import SpeechT5EncoderWithSpeechPrenet

        return SpeechT5EncoderWithSpeechPrenet.from_pretrained(source, key_mapping={SPEECHT5_ENCODER: ""}, **options)


def _same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether inputs of a model are equal up to rounding."""
    return all(
        torch.allclose(value.double(), theirs[name].double(), rtol=1e-3, atol=1e-3, equal_nan=True)
        for name, value in ours.items()
    )


class _FirstLayerReached(Exception):
    """The front end is done; its argument is the shape of what it gives."""


def _stop(_module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    raise _FirstLayerReached(layer_input(args, named).shape)
